"""What a worker does for workflows: gives a step its upstream results, and moves its dependents when it ends.

Dependents move in the commit that ends the step. Dependents that do not fit, and those of two steps that ended at once
in two processes, are moved when the commit is on disk, or by the scheduler if a process died in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from redrive.core import lifecycle
from redrive.core.change import edited_payload
from redrive.core.commit import commit_each
from redrive.core.documents import RESULT, WORKFLOW
from redrive.core.job import Job, Json, State
from redrive.core.lifecycle import Transition
from redrive.core.store import MAX_PARTS, Commit, Filter, Store
from redrive.core.workflow import BLOCKED, HELD_FOR, Flow, FlowStep, fill_references, judge
from redrive.engine.attempt_state import AttemptState
from redrive.engine.clock import Clock
from redrive.engine.paging import read_pages
from redrive.engine.settle import RESULT_APART
from redrive.errors import JobError

log = logging.getLogger("redrive.workflow")
WHO: Final = WORKFLOW.name
"""The name under which steps are moved."""
COMPANIONS: Final = 200
"""Most dependents that move in the commit of the step they wait for."""
LOOKED_AT: Final = 25
"""Number of workflows that the scheduler checks in one round."""
FEW: Final = 4
FLOWS: Final = 500
DONE: Final = 50_000
_WAITING: Final = Filter(states=(State.held,), because=BLOCKED)
_ENDS: Final = (State.done, State.discarded, State.purged)
"""States of a step at which its dependents move."""


def is_step(job: Job) -> bool:
    return job.options_json is not None and job.options.workflow is not None


async def companions_of(store: Store, clock: Clock, move: Transition | None) -> tuple[Transition, ...]:
    """Lists the moves of other steps that belong to this end of a step; none for a job outside workflows."""
    if move is None or move.job.options_json is None or move.to not in _ENDS:
        return ()
    return await WorkflowSteps(store, clock).companions(move)


class WorkflowSteps:
    """Reads workflows, decides which steps move with a step, and moves waiting steps that were missed."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._flows: dict[str, Flow] = {}
        """Workflows read so far; their documents never change, so one read is enough."""
        self._done: set[str] = set()
        """Ids of steps known to be done: no move leads out of that state."""
        self._looked_at = ""

    async def flow(self, id: str) -> Flow | None:
        """Returns the workflow with this id; None if its document is gone."""
        if id not in self._flows:
            kept = await WORKFLOW.get(self._store, id)
            if kept is None:
                return None
            if len(self._flows) >= FLOWS:
                self._flows.clear()
            self._flows[id] = kept.value
        return self._flows[id]

    # -- at a step's start

    async def enter(self, state: AttemptState) -> Transition | None:
        """Puts earlier steps' outputs into the step's job, or returns the move that stops a step that may not run."""
        job = state.job
        flow = await self._flow_of(job)
        step, now = flow.by_job.get(job.id), self._clock.now()
        if step is None:
            return self._stranger(job, flow)
        jobs = await self._store.get([each.job_id for each in flow.before(step)])
        waits_for = _list_unfinished(flow, step, jobs)
        if waits_for:
            why = f"It waits for {', '.join(waits_for)} of workflow {flow.name}."
            return lifecycle.held_back(
                job, now, because=BLOCKED, why=why, recommendation=make_recommendation(flow), held_for=flow.held_for
            )
        state.results = results = await self._results(flow, jobs)
        lost = {flow.by_job[each.id].name for each in jobs} - results.keys()
        changes = _fill_outputs(job.changes_json, results, lost)
        edited = edited_payload(job) is not None  # outputs that the edit leaves out are no longer needed
        payload = job.payload if edited else _fill_outputs(job.payload, results, lost)
        state.stored, state.job = job, msgspec.structs.replace(job, payload=payload, changes_json=changes)
        return None

    async def _flow_of(self, job: Job) -> Flow:
        flow = await self.flow(job.options.workflow or "")
        if flow is None:
            raise JobError(f"job {job.short_id}: the document of its workflow is gone", job_id=job.id)
        return flow

    def _stranger(self, job: Job, flow: Flow) -> Transition:
        """Cancels a job of a refused workflow, which was started under the same key at the same instant as this one."""
        why = f"Workflow {flow.name} was started with other steps under the same key; this is not one of them."
        return lifecycle.cancelled(job, self._clock.now(), who=WHO, why=why)

    async def _results(self, flow: Flow, jobs: Sequence[Job]) -> dict[str, Json]:
        """Reads results by step. One dropped by retention is left out and logged; a step that needs it says so."""
        results: dict[str, Json] = {}
        for job in jobs:
            name = flow.by_job[job.id].name
            if job.payload is None:
                log.warning("workflow %s: the result of step %s is no longer kept", flow.name, name)
                continue
            text = job.result_json
            if text == RESULT_APART and (kept := await RESULT.get(self._store, f"{job.id}/")) is not None:
                text = kept.value.decode()
            results[name] = msgspec.json.decode(text) if text is not None else None
        return results

    # -- at a step's end

    async def add_companions(self, commit: Commit) -> Commit:
        """Adds the dependents' moves to the commit that ends a step. An error with the moves does not fail the step."""
        try:
            others = await self.companions(commit.transitions[0])
        except asyncio.CancelledError:
            return commit  # the worker is being stopped; the step has ended all the same, and its end must be kept
        except Exception as error:  # noqa: BLE001 - logged; the scheduler moves the dependents
            log.warning("dependents of job %s move later: %r", commit.transitions[0].job.short_id, error)
            return commit
        room = MAX_PARTS - len(commit.transitions) - len(commit.puts) - len(commit.guards)
        return msgspec.structs.replace(commit, transitions=(*commit.transitions, *others[:room]))

    async def companions(self, move: Transition) -> tuple[Transition, ...]:
        """Lists the moves that go with a step's end: of steps that need not wait any longer, or that wait in vain."""
        id = move.job.readable_options.workflow
        if id is None or move.to not in _ENDS:
            return ()
        flow = await self.flow(id)
        step = flow.by_job.get(move.job.id) if flow is not None else None
        if flow is None or step is None:
            return ()
        if move.to is State.done:
            ready = await self._ready(flow, flow.dependents[step.name], done=step)
            return tuple(self._unblock(job, step.name) for job in ready)
        behind = await self._jobs(flow.behind(step)[:COMPANIONS])
        return tuple(self._let_go(job, step.name, move.who) for job in behind if flow.holds(job))

    async def _ready(self, flow: Flow, steps: Iterable[FlowStep], done: FlowStep) -> list[Job]:
        """Lists the jobs of those steps that wait for nothing else, as many as fit into a commit."""
        states: dict[str, State] = {done.job_id: State.done}
        ready: list[FlowStep] = []
        for step in steps:
            if len(ready) == COMPANIONS:
                break
            if await self._all_done((flow.by_name[name].job_id for name in reversed(step.after)), states):
                ready.append(step)
        return [job for job in await self._jobs(ready) if flow.holds(job)]

    async def _all_done(self, ids: Iterable[str], states: dict[str, State]) -> bool:
        """Tells whether all steps are done, reading up to the first that is not: callers put the likely ones first."""
        unknown = (id for id in ids if id not in self._done and states.get(id) is not State.done)
        size = FEW
        while some := list(islice(unknown, size)):
            await self._look([id for id in some if id not in states], states)
            if any(states.get(id, State.done) is not State.done for id in some):
                return False
            size *= FEW
        return True

    async def _look(self, ids: Sequence[str], states: dict[str, State]) -> None:
        if not ids:
            return
        if len(self._done) > DONE:
            self._done.clear()
        for job in await self._store.get(ids):
            states[job.id] = job.state
            if job.state is State.done:
                self._done.add(job.id)

    async def _jobs(self, steps: Sequence[FlowStep]) -> list[Job]:
        return await self._store.get([step.job_id for step in steps]) if steps else []

    def _unblock(self, job: Job, step: str) -> Transition:
        """Makes the move that unblocks a step, which runs no earlier than the time it was enqueued for."""
        now = self._clock.now()
        move = lifecycle.unblocked(job, now, who=WHO, why=f"step {step} is done")
        return msgspec.structs.replace(move, set={**move.set, "run_at": max(now, job.run_at)})

    def _let_go(self, job: Job, step: str, who: str | None) -> Transition:
        return lifecycle.cancelled(job, self._clock.now(), who=who or WHO, why=f"its step {step} was let go")

    # -- moving the steps that were missed

    async def resume_after(self, commits: Sequence[Commit]) -> list[Transition]:
        """Moves dependents that these commits missed: of two steps that ended at once, neither saw the other one done.

        Never raises: the scheduler repeats a check that failed.
        """
        ended = [commit for commit in commits if _ends_a_step(commit)]
        return [move for commit in ended for move in await self._look_safely(self._left_by, commit)]

    async def _left_by(self, commit: Commit) -> list[Transition]:
        job = commit.transitions[0].job
        flow = await self._flow_of(job)
        if job.id not in flow.by_job:
            return []
        moved = {move.job.id for move in commit.transitions}
        step = flow.by_job[job.id]
        left = [each for each in flow.dependents[step.name] if each.job_id not in moved]
        moves: list[Transition] = []
        while left and (ready := await self._ready(flow, left, step)):
            moves += await commit_each(self._store, [self._unblock(job, step.name) for job in ready])
            seen = {job.id for job in ready}
            left = [each for each in left if each.job_id not in seen]
        return moves

    async def mind(self, most: int | None = LOOKED_AT) -> list[Transition]:
        """Moves steps that should have moved, in some of the workflows with waiting steps, in turn."""
        counted = await self._store.count(_WAITING, by=("held_for",))
        waiting = sorted(str(key) for (key,) in counted if key is not None and key.startswith(HELD_FOR))
        turn = [key for key in waiting if key > self._looked_at] + [key for key in waiting if key <= self._looked_at]
        moves: list[Transition] = []
        for key in turn[:most]:
            self._looked_at = key
            moves += await self._look_safely(self.resume, key.removeprefix(HELD_FOR))
        return moves

    async def resume(self, id: str) -> list[Transition]:
        """Moves all steps of one workflow that need not wait, or that wait in vain."""
        flow = await self.flow(id)
        if flow is None:
            log.warning("the document of workflow %s is gone; its steps stay held", id)
            return []
        held = await self._held(flow)
        strangers = [self._stranger(job, flow) for job in held if job.id not in flow.by_job]
        states: dict[str, State] = {}
        before = {
            flow.by_name[name].job_id for job in held if job.id in flow.by_job for name in flow.by_job[job.id].after
        }
        await self._look(sorted(before - self._done), states)
        verdict = judge(flow, held, states)
        moves = [self._unblock(job, ", ".join(flow.by_job[job.id].after)) for job in verdict.ready]
        moves += [self._let_go(job, step, None) for job, step in verdict.doomed]
        return await commit_each(self._store, [*strangers, *moves])

    async def _held(self, flow: Flow) -> list[Job]:
        wanted = msgspec.structs.replace(_WAITING, held_for=flow.held_for)
        return [job async for page in read_pages(self._store, wanted, 1000) for job in page]

    async def _look_safely(self, look: Callable[..., Awaitable[list[Transition]]], *what: object) -> list[Transition]:
        try:
            return await look(*what)
        except Exception as error:  # noqa: BLE001 - an error in one workflow must not stop the others
            log.warning("a workflow could not be looked after, it will be tried again: %r", error)
            return []


def _ends_a_step(commit: Commit) -> bool:
    first = commit.transitions[0] if commit.transitions else None
    return first is not None and first.to is State.done and is_step(first.job)


def make_recommendation(flow: Flow) -> str:
    """Makes the recommendation for a step that waits."""
    return f"Nothing to do: it runs when the steps before it are done; see `redrive workflows {flow.id[-8:]}`."


def _list_unfinished(flow: Flow, step: FlowStep, jobs: Sequence[Job]) -> list[str]:
    """Lists unfinished steps directly before this one. A step whose job is missing was done and then deleted."""
    states: Mapping[str, State] = {job.id: job.state for job in jobs}
    return [name for name in step.after if states.get(flow.by_name[name].job_id, State.done) is not State.done]


def _fill_outputs(text: str | None, results: Mapping[str, Json], lost: Collection[str]) -> str | None:
    if text is None or '"$output"' not in text:
        return text
    return msgspec.json.encode(fill_references(msgspec.json.decode(text), results, lost)).decode()
