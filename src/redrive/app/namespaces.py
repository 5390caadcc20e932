"""`rd.jobs`, `rd.dead`, `rd.queues`: the verbs of the CLI, in Python. Every command is load → lifecycle → commit."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, overload

import msgspec

from redrive.app import triage
from redrive.app.acts import Acts, Order
from redrive.app.following import result_text
from redrive.app.purging import Purging
from redrive.app.sessions import check_asks, refused
from redrive.app.undoing import Undoing
from redrive.core import lifecycle
from redrive.core.changes import apply, decode, diff, merge
from redrive.core.changes import encode as encode_changes
from redrive.core.changes.change import edited, named
from redrive.core.effects import EffectRecord
from redrive.core.job import Attempt, Job, Json, State
from redrive.core.lifecycle import Transition
from redrive.core.payload import encode
from redrive.core.preflight import NotReady
from redrive.core.redact import redact
from redrive.core.store import MAX_PARTS, Applied, Commit, Event, Filter, Page, Put, Stale
from redrive.core.triage import Act, Acted, EditPreview, Note, outside_texts, quoted
from redrive.core.workflow import OUTPUT
from redrive.errors import CommitUnknown, InvalidInput, JobNotFound, JobNotReady, StaleJob
from redrive.insight.groups import GroupView
from redrive.insight.health import QueueNumbers
from redrive.runtime.inputs import preflight
from redrive.runtime.verify import nothing_landed
from redrive.runtime.workflow import is_step

if TYPE_CHECKING:
    from pathlib import Path

    from redrive.app import Redrive
    from redrive.app.exchange import Exported, Form, Imported, Source, Target
    from redrive.app.purging import PurgePlan
    from redrive.core.records import Mapping as Fields
    from redrive.core.redrives import RedriveRun

TRIES = 5
"""How often a command is decided anew when somebody else changed the job in between."""
SOMEBODY = "api"
ROOM = MAX_PARTS - 1
"""What fits into a commit beside the job itself."""


class _Namespace:
    def __init__(self, app: Redrive) -> None:
        self._app = app

    async def _find_one(self, id: str, states: tuple[State, ...] = ()) -> Job:
        """By its id, or by a part of it that only one job has."""
        store = self._app.store
        found = await store.get([id])
        if found:
            return found[0]
        if not 3 <= len(id) <= 32 or not id.isalnum():
            raise JobNotFound(f"no job {id!r}", job_id=id)
        page = await store.find(Filter(states=states, id_part=id.lower()), limit=2)
        if len(page.jobs) > 1:
            raise JobNotFound(f"{id!r} is the part of several ids; give more of it", job_id=id)
        if not page.jobs:
            raise JobNotFound(f"no job {id!r}", job_id=id)
        return (await store.get([page.jobs[0].id]))[0]

    async def _move(self, id: str, arrow: Callable[[Job, float], Transition], puts: Sequence[Put] = ()) -> Job:
        """Load, decide, commit; decided anew when somebody was faster."""
        job = await self._find_one(id)
        for _ in range(TRIES):
            transition = arrow(job, self._app.clock.now())
            others = (await self._app.workflows.companions(transition))[: ROOM - len(puts)]
            (outcome,) = await self._app.store.apply([Commit((transition, *others), tuple(puts))])
            if isinstance(outcome, Applied):
                self._app.bus.publish_moves([transition, *others])
                return transition.after(outcome.fences[0])
            if not isinstance(outcome, Stale):
                raise CommitUnknown(f"nobody knows whether job {job.short_id} was {transition.move}: look again")
            job = await self._find_one(job.id)
        raise StaleJob(f"job {job.short_id} keeps changing; try again", job_id=job.id)


class Jobs(_Namespace):
    """Single jobs, whatever their state."""

    async def get(self, id: str) -> Job:
        """The record itself, with its history. A part of the id is enough where it is unique."""
        return await self._find_one(id)

    async def story(self, id: str) -> Sequence[Event]:
        """Every move of a job, with who and why, from the beginning."""
        return await self._app.store.story((await self._find_one(id)).id)

    async def list(self, *, limit: int = 100, cursor: str | None = None, **filters: Any) -> Page:
        """Newest first. Filters: state, queue, task, agent, session_id, key, category, detail, …"""
        return await self._app.store.find(make_filter(filters), cursor, _check_limit(limit))

    async def cancel(self, id: str, *, who: str = SOMEBODY, why: str | None = None) -> Job:
        """No longer wanted. A running task sees ctx.cancelled; what it still says does not count."""
        job = await self._move(id, lambda job, now: lifecycle.cancelled(job, now, who=who, why=why))
        self._app.tell_workers(lambda worker: worker.cancelled(job.id))
        self._app._gateway.cancelled(job.id)
        return job

    async def result(self, id: str) -> Json:
        """The whole result of a done job, however long; None where it has none."""
        text = await result_text(self._app, await self._find_one(id))
        return msgspec.json.decode(text) if text else None

    async def approve(self, id: str, *, who: str = SOMEBODY, why: str | None = None) -> Job:
        """Yes to what a held job asks for: consent to exactly this, or its question. It goes on."""
        job = await self._find_one(id)
        puts = await self._app.sessions.approved(job, who, why)

        def arrow(job: Job, now: float) -> Transition:
            check_asks(job)
            return lifecycle.unblocked(job, now, who=who, why=why)

        return await self._move(job.id, arrow, puts)

    async def reject(self, id: str, *, who: str = SOMEBODY, why: str | None = None) -> Job:
        """No. A job that needed consent is discarded; a task that asked a question goes on with the answer."""
        job = await self._find_one(id)
        puts = await self._app.sessions.rejected(job, who, why)
        return await self._move(job.id, lambda job, now: refused(job, now, who, why), puts)

    async def effects(self, id: str | None = None, *, agent: str | None = None) -> Sequence[EffectRecord]:
        """What was done outside, effect by effect, as far as it is known: of one job, or of all, by agent."""
        prefix = f"{(await self._find_one(id)).id}/" if id is not None else ""
        documents = await self._app.store.docs("effect", prefix)
        found = [msgspec.json.decode(document.value, type=EffectRecord) for document in documents]
        return [effect for effect in found if agent in (None, effect.agent)]

    async def resolve(self, id: str, *, why: str, who: str = SOMEBODY, landed: bool = True) -> Job:
        """A person's word about an outcome nobody knew. Landed: the job is done. Not landed: it runs again."""
        if landed:
            return await self._move(id, lambda job, now: lifecycle.resolved(job, now, who=who, why=why))
        job = await self._find_one(id)
        if job.state is State.held and job.because == lifecycle.DEFERRED:
            job = await self._app.dead.recall(job.id, who=who, why=why)

        def again(job: Job, now: float) -> Transition:
            if job.state is State.held:
                return lifecycle.unblocked(job, now, who=who, why=why)
            attempts = self._app.registry.policy_for(job).max_attempts or 1
            return lifecycle.redriven(job, now, max_attempts=attempts, who=who, why=why, run_at=now)

        puts = [*await self._absent(job, f"{who}: {why}"), *nothing_landed(job)]
        return await self._move(job.id, again, puts)

    async def _absent(self, job: Job, note: str) -> Sequence[Put]:
        """The job's open effects, closed by a person: they did not land."""
        puts = []
        for document in await self._app.store.docs("effect", f"{job.id}/"):
            effect = msgspec.json.decode(document.value, type=EffectRecord)
            if effect.status in ("intended", "unknown"):
                closed = msgspec.structs.replace(effect, status="absent", at=self._app.clock.now(), note=note)
                puts.append(Put("effect", document.key, msgspec.json.encode(closed)))
        return puts

    async def erase(self, id: str | None = None, *, session_id: str | None = None, who: str = SOMEBODY) -> int:
        """Forget the contents of a job or of all jobs of a session, for privacy; live ones are cancelled first."""
        if (id is None) == (session_id is None):
            raise InvalidInput(field="erase", problem="give a job id or session_id=, one of them")
        jobs = [await self._find_one(id)] if id is not None else await self._of_session(str(session_id))
        for job in jobs:
            if job.state in (State.waiting, State.running, State.held):
                await self.cancel(job.id, who=who, why="erased")
            elif job.state is State.dead:
                await self._move(job.id, lambda job, now: lifecycle.purged(job, now, who=who, why="erased"))
        for job in jobs:
            await self._app.notices.forget(job)
        return await self._app.store.erase([job.id for job in jobs])

    async def _of_session(self, session_id: str) -> Sequence[Job]:
        found: builtins.list[Job] = []
        cursor = None
        while True:
            page = await self._app.store.find(Filter(session_id=session_id), cursor, 1000)
            found.extend(page.jobs)
            cursor = page.cursor
            if cursor is None:
                return found


class Dead(_Namespace):
    """Dead letters: what failed, why, and what to do about it.

    The verbs of triage take one id and give the job; or `ids=[…]`, or the filters of `list` (all=True for everything),
    and give what became of them all. Whatever was done can be taken back with `undo`, except a purge.
    """

    def __init__(self, app: Redrive) -> None:
        super().__init__(app)
        self._acts = Acts(app)
        self._undoing = Undoing(app, self._acts)
        self._purging = Purging(app, self._acts)

    async def list(self, *, limit: int = 100, cursor: str | None = None, **filters: Any) -> Page:
        """Newest first. Filters: queue, task, agent, lane, because, category, detail, error_class, …"""
        chosen = make_filter({**filters, "state": "dead"})
        return await self._app.store.find(chosen, cursor, _check_limit(limit))

    async def show(self, id: str) -> Job:
        """One dead letter with every attempt, its cause, the decision and why."""
        return await self._find_one(id, (State.dead,))

    async def groups(self, **filters: Any) -> builtins.list[GroupView]:
        """The troubles behind the dead letters, unresolved ones first; `rd.groups` resolves or ignores them."""
        return await self._app.groups.list(**filters)

    @overload
    async def redrive(self, id: str, *, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def redrive(
        self, *, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., why: str | None = ..., **filters: Any
    ) -> RedriveRun: ...
    async def redrive(
        self,
        id: str | None = None,
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = SOMEBODY,
        why: str | None = None,
        **filters: Any,
    ) -> Job | RedriveRun:
        """Back to the queue: same id, key and history; fresh attempts where they were used up.

        Many at once are a redrive of their own, which workers carry out: see `rd.redrives`.
        """
        if id is None:
            return await self._app.redrives.start(ids, all=all, who=who, why=why, **filters)
        _check_alone(ids, filters, all=all)
        return await self._acts.one(triage.redriving(self._app, who, why), id)

    async def _act(
        self, order: Order, id: str | None, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool
    ) -> Job | Acted:
        if id is None:
            return await self._acts.many(order, ids, filters, all=all)
        _check_alone(ids, filters, all=all)
        return await self._acts.one(order, id)

    @overload
    async def reassign(self, id: str, *, agent: str, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def reassign(
        self, *, agent: str, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., why: str | None = ...,
        where: Mapping[str, Any] | None = ..., **filters: Any,
    ) -> Acted: ...  # fmt: skip
    async def reassign(
        self,
        id: str | None = None,
        *,
        agent: str,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = SOMEBODY,
        why: str | None = None,
        where: Mapping[str, Any] | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """Back to the queue for another agent. Consents that were given for the one before do not count for it.

        `agent` names the new one; `where={"agent": "cto"}` are filters whose names the verb has taken.
        """
        order = triage.reassigning(self._app, agent, who, why)
        return await self._act(order, id, ids, {**filters, **(where or {})}, all=all)

    @overload
    async def defer(
        self, id: str, *, owner: str, until: datetime | timedelta | float, who: str = ..., why: str | None = ...
    ) -> Job: ...
    @overload
    async def defer(
        self, *, owner: str, until: datetime | timedelta | float, ids: Sequence[str] = ..., all: bool = ...,
        who: str = ..., why: str | None = ..., where: Mapping[str, Any] | None = ..., **filters: Any,
    ) -> Acted: ...  # fmt: skip
    async def defer(
        self,
        id: str | None = None,
        *,
        owner: str,
        until: datetime | timedelta | float,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = SOMEBODY,
        why: str | None = None,
        where: Mapping[str, Any] | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """Out of the way until then (a time, or a span from now); `owner` sees to it. It comes back by itself.

        `where={"owner": "ceo"}` are filters whose names the verb has taken.
        """
        order = triage.deferring(self._app, owner, until, who, why)
        return await self._act(order, id, ids, {**filters, **(where or {})}, all=all)

    @overload
    async def recall(self, id: str, *, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def recall(
        self, *, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., why: str | None = ..., **filters: Any
    ) -> Acted: ...
    async def recall(
        self,
        id: str | None = None,
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = SOMEBODY,
        why: str | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """What was deferred is a dead letter again, before its time."""
        return await self._act(triage.recalling(who, why), id, ids, filters, all=all)

    async def edit(
        self,
        id: str,
        payload: dict[str, Json],
        *,
        repeat: Sequence[str] = (),
        who: str = SOMEBODY,
        why: str | None = None,
    ) -> Job:
        """Back to the queue with another input. The payload as it was enqueued stays; receivers get a new key.

        Effects of `ctx.once` that have landed are kept, except those named in `repeat`, which are done again.
        """
        encoded = encode(payload, limit=self._app.settings.payload_limit)
        if encoded.blobs:
            raise InvalidInput(field="payload", problem="a Blob cannot be edited in; enqueue a new job for it")
        text = encoded.text

        def arrow(job: Job, now: float) -> Transition:
            handler = self._app.registry.handlers.get(job.task)
            if handler is not None and not (is_step(job) and OUTPUT in text):
                handler.signature.arguments(text)  # refuse now what the worker could not use
            given = msgspec.json.decode(text)
            edit = edited(given, who, why)
            if quoted(given, outside_texts(job)):
                edit = msgspec.structs.replace(edit, tainted=True)
            changes = encode_changes(merge(decode(job.changes_json), [edit]))
            return self._redriven(job, now, who, why, {"changes_json": changes})

        order = Order("edit", who, why, arrow, {"repeat": builtins.list(repeat)})
        job = await self._acts.checked(order, id)  # what is refused must not have forgotten anything
        return await self._acts.one(order, job.id, await self._forgotten(job, repeat))

    async def preview_edit(self, id: str, payload: Mapping[str, Json]) -> EditPreview:
        """What an edit would mean: differences in words, errors by field, what it voids, what landed, what is tainted.

        Changes nothing.
        """
        from redrive.app.editing import preview

        return await preview(self._app, id, payload)

    async def _forgotten(self, job: Job, repeat: Sequence[str]) -> Sequence[Put]:
        """What was remembered for the old input: steps, what to look for outside, and the effects to be done again."""
        store = self._app.store
        effects = {document.key.partition("/")[2]: document for document in await store.docs("effect", f"{job.id}/")}
        if unknown := set(repeat) - effects.keys():
            known = ", ".join(effects) or "none"
            raise InvalidInput(field="repeat", problem=f"{min(unknown)!r} is no effect of this job; there are {known}")
        steps = [Put("step", document.key, None) for document in await store.docs("step", f"{job.id}/")]
        for start in range(0, len(steps), MAX_PARTS):
            await store.apply([Commit(puts=tuple(steps[start : start + MAX_PARTS]))])  # harmless to repeat
        return [*nothing_landed(job), *(Put("effect", effects[name].key, None) for name in repeat)]

    def _redriven(
        self,
        job: Job,
        now: float,
        who: str,
        why: str | None,
        changed: Mapping[str, str] = lifecycle.NO_CHANGE,
        by: lifecycle.Revival | None = None,
    ) -> Transition:
        """Refused where the job, as it would then be, could not start."""
        move = lifecycle.redriven(
            job, now, max_attempts=self._grant(job), who=who, why=why, run_at=now, changed=changed, by=by
        )
        registry = self._app.registry
        verdict = preflight(move.after(job.version), registry.handlers.get(job.task), registry, now)
        if isinstance(verdict, NotReady):
            raise JobNotReady(
                f"job {job.short_id} would die again: {verdict.why} {verdict.recommendation}", job_id=job.id
            )
        return move

    async def diff(self, id: str, one: int, other: int, *, secrets: bool = False) -> builtins.list[str]:
        """What two runs of a job were given differently, in words; empty where nothing was. Secrets are masked."""
        job = await self._find_one(id)
        runs = {attempt.run: attempt for attempt in job.history}
        inputs = self._inputs(job, secrets=secrets)
        if missing := {one, other} - inputs.keys():
            known = ", ".join(map(str, inputs)) or "none"
            raise InvalidInput(field="run", problem=f"{min(missing)} is not a run of this job; there are {known}")
        handler = self._app.registry.handlers.get(job.task)
        adapt, count = handler.adapt if handler else None, self._app.registry.count
        return _by_whom(runs[one], runs[other]) + diff(inputs[one], inputs[other], adapt=adapt, count=count)

    async def inputs(self, id: str, *, secrets: bool = False) -> dict[int, Json]:
        """What each run of a job was given. Secrets are masked."""
        return self._inputs(await self._find_one(id), secrets=secrets)

    def _inputs(self, job: Job, *, secrets: bool) -> dict[int, Json]:
        given = {attempt.run: self._input(job, attempt) for attempt in job.history}
        return given if secrets else {run: redact(one) for run, one in given.items()}

    def _input(self, job: Job, attempt: Attempt) -> Json:
        handler = self._app.registry.handlers.get(job.task)
        names = named(attempt)
        adapt, count = handler.adapt if handler else None, self._app.registry.count
        return apply(job.arguments, decode(attempt.changes), adapt, count, names=names).payload

    def _grant(self, job: Job) -> int:
        """As many attempts as its task gives; where the task is not known here, as many as it had at first."""
        if job.task not in self._app.registry.handlers and job.allowed is not None:
            return max(1, job.allowed // (job.grants + 1))
        return self._app.registry.policy_for(job).max_attempts or 1

    @overload
    async def move_lane(self, id: str, lane: str, *, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def move_lane(
        self, *, lane: str, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., why: str | None = ...,
        where: Mapping[str, Any] | None = ..., **filters: Any,
    ) -> Acted: ...  # fmt: skip
    async def move_lane(
        self,
        id: str | None = None,
        lane: str = "",
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = SOMEBODY,
        why: str | None = None,
        where: Mapping[str, Any] | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """`delayed`: it comes back by itself. `manual`: it waits for eyes. `where={"lane": …}` says from which."""
        return await self._act(triage.rerouting(lane, who, why), id, ids, {**filters, **(where or {})}, all=all)

    @overload
    async def discard(self, id: str, *, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def discard(
        self, *, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., why: str | None = ..., **filters: Any
    ) -> Acted: ...
    async def discard(
        self,
        id: str | None = None,
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = SOMEBODY,
        why: str | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """Let it go; it can be restored."""
        return await self._act(triage.discarding(who, why), id, ids, filters, all=all)

    @overload
    async def restore(self, id: str, *, who: str = ..., why: str | None = ...) -> Job: ...
    @overload
    async def restore(
        self, *, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., why: str | None = ..., **filters: Any
    ) -> Acted: ...
    async def restore(
        self,
        id: str | None = None,
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = SOMEBODY,
        why: str | None = None,
        **filters: Any,
    ) -> Job | Acted:
        """A discarded job is a dead letter again, in the manual lane."""
        return await self._act(triage.restoring(who, why), id, ids, filters, all=all)

    @overload
    async def note(self, id: str, text: str, *, who: str = ...) -> Job: ...
    @overload
    async def note(
        self, *, text: str, ids: Sequence[str] = ..., all: bool = ..., who: str = ..., **filters: Any
    ) -> Acted: ...
    async def note(
        self,
        id: str | None = None,
        text: str = "",
        *,
        ids: Sequence[str] = (),
        all: bool = False,
        who: str = SOMEBODY,
        **filters: Any,
    ) -> Job | Acted:
        """Write something beside it for whoever looks next; it moves nothing."""
        return await self._act(triage.noting(text, who), id, ids, filters, all=all)

    async def matching(self, verb: str, ids: Sequence[str] = (), *, all: bool = False, **filters: Any) -> int:
        """How many jobs a verb would be about, as things are now; for asking before acting."""
        return await self._acts.matching(verb, ids, filters, all=all)

    async def notes(self, id: str) -> Sequence[Note]:
        """What was written beside a job, in order."""
        return await self._acts.notes(id)

    async def acts(self, limit: int = 50) -> Sequence[Act]:
        """What was done to dead letters and said of groups, by whom and why, the latest first."""
        return await self._acts.latest(_check_limit(limit))

    async def undo(self, act_id: str, *, who: str = SOMEBODY, why: str | None = None) -> Acted:
        """Take an act back: every job that nobody has touched since goes where it was; the others are told.

        By the act's id; the last act on a single job by that job's id. A purge cannot be taken back.
        """
        return await self._undoing.undo(act_id, who, why)

    async def prune_acts(self) -> int:
        """Forget what can no longer be taken back. The scheduler does it."""
        return await self._acts.prune()

    async def add(
        self, job_id: str, payload: Json, error: BaseException | type[BaseException] | str | None = None, **said: Any
    ) -> Job:
        """Record a failed job, as `redrive.to_dead_letter` does and with its options: attempt, task, queue, lane, …"""
        from redrive.app.letters import Letters, said_of

        return await Letters(self._app).add(job_id, payload, error, said_of(said))

    async def take_in(self, job: Job) -> Job:
        """A dead letter that waited beside the store. The same failure twice is one; another one of its job counts."""
        from redrive.app.letters import Letter, Letters

        return await Letters(self._app).take_in(Letter(job))

    async def import_(
        self,
        source: Source,
        *,
        queue: str | None = None,
        task: str | None = None,
        mapping: Fields | Mapping[str, str] | None = None,
        completed: str | Path | Iterable[str] | None = None,
        aside: str | Path | None = None,
        as_: Form = "dead",
        dry_run: bool = False,
        who: str = SOMEBODY,
        why: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Imported:
        """Take in lines of JSON: our records, or another program's queue by `mapping`. Repeating it changes nothing.

        Ids that `completed` names are not taken in, and letters of them that stand here are closed. Lines that cannot
        be taken in are kept in `aside` (`<path>.aside.jsonl`), with number and reason.
        """
        from redrive.app import exchange

        return await exchange.import_(
            self._app, source, queue=queue, task=task, mapping=mapping, completed=completed, aside=aside, as_=as_,
            dry_run=dry_run, who=who, why=why, progress=progress,
        )  # fmt: skip

    async def export(
        self,
        path: Target = None,
        *,
        secrets: bool = False,
        overwrite: bool = False,
        append: bool = False,
        **filters: Any,
    ) -> Exported:
        """Write dead letters as lines of JSON that `import_`, grep and jq read. Takes the filters of `list`."""
        from redrive.app import exchange

        chosen = make_filter({**filters, "state": "dead"})
        how = {"secrets": secrets, "overwrite": overwrite, "append": append}
        return await exchange.export(self._app, path, chosen, **how)

    async def purge_plan(self, ids: Sequence[str] = (), *, all: bool = False, **filters: Any) -> PurgePlan:
        """How many dead letters a purge would remove for good, and a token that stands for exactly these."""
        return await self._purging.plan(ids, filters, all=all)

    async def purge(
        self,
        ids: Sequence[str] = (),
        *,
        who: str = SOMEBODY,
        why: str | None = None,
        all: bool = False,
        confirm: str | None = None,
        **filters: Any,
    ) -> int:
        """Remove contents for good, by id or by filter (dead letters only); the keys stay remembered. Counted.

        `confirm` is the token of `purge_plan`: nothing goes unless it is exactly what was counted there.
        """
        return await self._purging.purge(await self._acts.meant("purge", ids, filters, all=all), who, why, confirm)


def _by_whom(one: Attempt, other: Attempt) -> builtins.list[str]:
    """Who ran, and with which model, where that differs."""
    names = (("agent", one.agent, other.agent), ("model", one.model, other.model))
    return [f"{name}: {before or 'none'} → {after or 'none'}" for name, before, after in names if before != after]


class Queues(_Namespace):
    """Queues as they are now; pausing and resuming."""

    async def list(self) -> builtins.list[QueueNumbers]:
        return await self._app.numbers()

    async def pause(self, name: str, *, who: str = SOMEBODY, why: str | None = None) -> None:
        """Workers take nothing from it until it is resumed; what runs goes on."""
        await self._set(name, {"paused": True, "who": who, "why": why, "at": self._app.clock.now()})

    async def resume(self, name: str, *, who: str = SOMEBODY, why: str | None = None) -> None:
        await self._set(name, {"paused": False, "who": who, "why": why, "at": self._app.clock.now()})

    async def _set(self, name: str, value: dict[str, Any]) -> None:
        if not name or len(name) > 200:
            raise InvalidInput(field="queue", problem=f"{name!r} must be 1 to 200 characters")
        await self._app.store.apply([Commit(puts=(Put("queue", name, msgspec.json.encode(value)),))])
        self._app.tell_workers(lambda worker: worker.refresh())


def make_filter(said: dict[str, Any]) -> Filter:
    """Keyword filters as a Filter; an unknown one is refused by name."""
    said = {name: value for name, value in said.items() if value is not None}
    if "state" in said:
        states = said.pop("state")
        listed = [states] if isinstance(states, str) else list(states)
        try:
            said["states"] = tuple(State(state) for state in listed)
        except ValueError as error:
            raise InvalidInput(field="state", problem=f"{error}; there are {', '.join(State)}") from None
    if unknown := said.keys() - set(Filter.__struct_fields__):
        raise InvalidInput(field=min(unknown), problem="is not a filter")
    for name, value in said.items():
        try:
            msgspec.convert(value, _KINDS[name], strict=True)
        except msgspec.ValidationError:
            raise InvalidInput(field=name, problem=f"{value!r} is not {_kind(name)}") from None
    return Filter(**said)


_KINDS: Final = {field.name: field.type for field in msgspec.structs.fields(Filter)}


def _kind(name: str) -> str:
    return "a time in seconds since 1970" if name in ("since", "until", "due_at") else "a text"


def _check_alone(ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> None:
    """One id, or many: both would say two things."""
    if ids or filters or all:
        raise InvalidInput(field=min(filters, default="ids"), problem="give one id, or ids or a filter, not both")


def _check_limit(limit: int) -> int:
    if not 1 <= limit <= 10_000:
        raise InvalidInput(field="limit", problem=f"{limit} is not from 1 to 10000")
    return limit
