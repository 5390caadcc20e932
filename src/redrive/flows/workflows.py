"""`rd.workflow(name)` puts a workflow together and starts it; `rd.workflows` reads workflows that were started."""

from __future__ import annotations

import builtins
import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from redrive.core import workflow as rules
from redrive.core.checks import KEY_LIMIT, check_id, check_limit, check_name, optional_name
from redrive.core.documents import WORKFLOW
from redrive.core.job import Job, State, hash_payload, new_id
from redrive.core.store import Inserted, Put
from redrive.core.workflow import BLOCKED, Flow, FlowStep, Output, WorkflowStatus
from redrive.engine.workflow_steps import WHO, make_recommendation
from redrive.engine.workflow_steps import WorkflowSteps as Flows
from redrive.errors import IllegalMove, InvalidOption, InvalidPayload, JobDead, JobDiscarded, JobNotFound, KeyReused
from redrive.jobs.core import find_job
from redrive.jobs.tasks import Bound, JobAccess, JobHandle, Seconds, Task, read_seconds
from redrive.jobs.wait_for_job import wait_for_answer

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.jobs.enqueuer import Enqueuer
    from redrive.jobs.job_options import Prepared

log = logging.getLogger("redrive.workflow")
REFUSED: Final = ("idempotency_key", "on_duplicate", "fallback")
"""Options of jobs that a step cannot have: a step is accepted or refused together with its workflow."""
AnyTask = Task[Any, Any] | Bound[Any, Any] | str


class Step:
    """A step that was added to a workflow: name the step in `after=`, or pass its `output` on."""

    def __init__(self, home: Workflow, name: str, after: tuple[str, ...]) -> None:
        self._home = home
        self.name = name
        self.after = after

    @property
    def output(self) -> Any:
        """What the step will return, as an argument of a later one; `output["title"]` and `output.title` are parts."""
        return Output(self.name, home=self._home)

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"


class _Added(NamedTuple):
    """A step with the job that does it."""

    step: Step
    prepared: Prepared
    options: Mapping[str, Any]


class JobVerbs(JobAccess, Protocol):
    """What a workflow needs of `rd.jobs`."""

    async def cancel(self, id: str, *, who: str = ..., why: str | None = None) -> Job: ...


class Discard(Protocol):
    """Discards one dead letter: `rd.dead.discard`."""

    async def __call__(self, id: str, *, who: str = ..., why: str | None = ...) -> Job: ...


class WorkflowHome(NamedTuple):
    """The services that workflows work with."""

    core: Core
    enqueuer: Enqueuer
    jobs: JobVerbs
    discard: Discard

    @property
    def flows(self) -> Flows:
        return Flows(self.core.store, self.core.clock)


class Workflow:
    """A workflow being put together. Nothing is written before `start`."""

    def __init__(self, home: WorkflowHome, name: str) -> None:
        self._home = home
        self._core = home.core
        self._enqueuer = home.enqueuer
        self.name = check_name("workflow", name)
        self._steps: dict[str, _Added] = {}
        self._numbers: dict[str, int] = {}
        """How far the numbers of each task's steps are known to be taken."""

    def add(
        self,
        task: AnyTask,
        *args: Any,
        after: Iterable[Step | str] | Step | str = (),
        name: str | None = None,
        **kwargs: Any,
    ) -> Step:
        """Add a step: a task (with its options: `write.options(priority="high")`) and its arguments.

        The step waits for the steps in `after` and for those whose `output` it is given. Its name is the task's, with a
        number where that name is taken. An argument that is itself called `after` or `name` is given by position.
        """
        task_name, options = _task_of(task)
        used: list[str] = []
        payload = rules.store_references(self._bind(task_name, args, kwargs), used, self)
        step_name = self._free_name(name, task_name)
        plan = self._enqueuer.plan(task_name, options)
        prepared = self._enqueuer.prepare(plan._replace(handler=None) if used else plan, payload)
        rules.check_references(msgspec.json.decode(prepared.job.payload or "{}"), len(used))
        steps = [after] if isinstance(after, Step | str) else after
        waits_for = dict.fromkeys([*map(self._name_of, steps), *used])
        step = Step(self, step_name, tuple(waits_for))
        self._steps[step_name] = _Added(step, prepared, options)
        return step

    def _bind(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        """Name the arguments. A task that is known only by its name takes named ones, or one mapping."""
        handler = self._core.registry.handlers.get(name)
        if handler is not None:
            return handler.signature.bind(args, kwargs)
        if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs:
            return args[0]
        if args:
            raise InvalidPayload(field="arguments", problem=f"task {name!r} is not known here: name its arguments")
        return kwargs

    def _free_name(self, name: str | None, task: str) -> str:
        if name is not None:
            if check_name("name", name) in self._steps:
                raise InvalidOption(field="name", problem=f"there is a step {name!r} already")
            return name
        number = self._numbers.get(task, 1)
        while (free := task if number == 1 else f"{task}-{number}") in self._steps:
            number += 1
        self._numbers[task] = number
        return free

    def _name_of(self, step: object) -> str:
        if isinstance(step, str):
            return step
        if not isinstance(step, Step):
            raise InvalidOption(field="after", problem=f"{step!r} is neither a step nor a step's name")
        added = self._steps.get(step.name)
        if added is None or added.step is not step:
            raise InvalidOption(field="after", problem=f"{step!r} belongs to another workflow")
        return step.name

    # -- starting

    async def start(self, *, idempotency_key: str | None = None, session_id: str | None = None) -> WorkflowHandle:
        """Accept all steps durably, or none. With a key it is safe to repeat: the same workflow comes back."""
        optional_name("idempotency_key", idempotency_key, KEY_LIMIT)
        optional_name("session_id", session_id)
        rules.order_steps({name: added.step.after for name, added in self._steps.items()})
        flow = self._flow(idempotency_key)
        known = await self._home.flows.flow(flow.id)
        if known is not None:
            return self._find_again(flow, known)
        prepared = [self._job(flow, step, session_id) for step in flow.steps]
        documents = [WORKFLOW.put(flow.id, flow), *(put for _, puts in prepared for put in puts)]
        inserted = await self._enqueuer.insert([job for job, _ in prepared], documents)
        return await self._finish_start(flow, inserted)

    def _flow(self, key: str | None) -> Flow:
        """Make the document of the workflow: its steps, the steps they wait for, and the jobs that do them."""
        now = self._core.clock.now()
        id = new_id(now, random.getrandbits(74)) if key is None else rules.workflow_id(self.name, key)
        jobs = {name: step.prepared.job for name, step in self._steps.items()}
        shape = rules.shape_of(
            (name, job.task, job.queue, self._steps[name].step.after, hash_payload(job.payload or "{}", job.task))
            for name, job in jobs.items()
        )
        steps = [
            FlowStep(name, rules.step_id(id, name) if number else id, job.task, self._steps[name].step.after)
            for number, (name, job) in enumerate(jobs.items())
        ]
        return Flow(id, self.name, tuple(steps), shape, now)

    def _job(self, flow: Flow, step: FlowStep, session_id: str | None) -> tuple[Job, builtins.list[Put]]:
        """Make a step's job as it begins: waiting, or held until the steps before it are done."""
        added, now = self._steps[step.name], flow.created_at
        job = added.prepared.job
        options = msgspec.structs.replace(job.options, workflow=flow.id, step=step.name)
        held: dict[str, Any] = {
            "state": State.held,
            "because": BLOCKED,
            "held_for": flow.held_for,
            "held_at": now,
            "recommendation": make_recommendation(flow),
        }
        documents = [
            msgspec.structs.replace(put, key=put.key.replace(job.id, step.job_id, 1))
            for put in added.prepared.documents
        ]
        begun = msgspec.structs.replace(
            job,
            id=step.job_id,
            created_at=now,
            updated_at=now,
            session_id=added.options.get("session_id") or session_id or job.session_id,
            run_at=job.run_at if "run_at" in added.options else now + (job.run_at - job.created_at),
            options_json=msgspec.json.encode(options).decode(),
            **(held if step.after else {}),
        )
        return begun, documents

    async def _finish_start(self, flow: Flow, inserted: Sequence[Inserted]) -> WorkflowHandle:
        if not inserted[0].duplicate:
            return WorkflowHandle(self._home, flow)
        known = await self._home.flows.flow(flow.id)  # another process was faster, perhaps with other steps
        for job in [answer.job for answer in inserted if not answer.duplicate]:
            await self._take_back(job)
        if known is None:
            raise KeyReused(field="idempotency_key", problem=f"job {flow.id} owns it, and is no workflow's step")
        return self._find_again(flow, known)

    async def _take_back(self, job: Job) -> None:
        try:
            await self._home.jobs.cancel(job.id, who=WHO, why="its workflow was refused: the key was taken meanwhile")
        except IllegalMove as error:
            log.warning("%s", error)  # a worker was faster: it does not run what is no step

    def _find_again(self, flow: Flow, known: Flow) -> WorkflowHandle:
        if flow.shape != known.shape:
            raise KeyReused(
                field="idempotency_key",
                problem=f"already stands for workflow {known.id}, which has other steps or other inputs; use a new key",
            )
        return WorkflowHandle(self._home, known, duplicate=True)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} with {len(self._steps)} steps>"


def _task_of(task: AnyTask) -> tuple[str, Mapping[str, Any]]:
    options: Mapping[str, Any] = task.given if isinstance(task, Bound) else {}
    if refused := [name for name in REFUSED if name in options]:
        raise InvalidOption(field=refused[0], problem="is not for a step; a workflow's key is given to start()")
    return (task if isinstance(task, str) else task.name), options


class WorkflowHandle:
    """A workflow that was started, in this process or in another one."""

    def __init__(self, home: WorkflowHome, flow: Flow, *, duplicate: bool = False) -> None:
        self._home = home
        self._core = home.core
        self._flow = flow
        self.duplicate = duplicate
        """Whether the key was known: then this is the workflow that was there already."""

    @property
    def id(self) -> str:
        return self._flow.id

    @property
    def name(self) -> str:
        return self._flow.name

    @property
    def steps(self) -> dict[str, str]:
        """The ids of the steps' jobs, by the steps' names."""
        return {step.name: step.job_id for step in self._flow.steps}

    async def status(self) -> WorkflowStatus:
        """Read how the workflow stands, from its jobs."""
        jobs = await self._core.store.get([step.job_id for step in self._flow.steps])
        return rules.status_of(self._flow, {job.id: job for job in jobs})

    async def result(self, timeout: Seconds | None = None) -> dict[str, Any]:
        """Wait until all steps are done; return by name the results of the steps that no other step waits for.

        Raises JobDead when a step dies (redriven, it goes on), JobDiscarded when steps were discarded, TimeoutError.
        """
        status = await self._wait(read_seconds(timeout, "timeout") if timeout is not None else None)
        if status.state == "blocked":
            step = status.failed[0]
            raise JobDead(
                status.text, job_id=step.job_id, reason=step.because or "", recommendation=step.recommendation
            )
        if status.state == "discarded":
            step = next(step for step in status.steps if step.state == "DISCARDED")
            raise JobDiscarded(status.text, job_id=step.job_id)
        jobs = {job.id: job for job in await self._core.store.get([step.job_id for step in self._flow.final])}
        return {
            step.name: await JobHandle[Any](self._home.jobs, jobs[step.job_id]).result()
            for step in self._flow.final
            if step.job_id in jobs
        }

    async def _wait(self, limit: float | None) -> WorkflowStatus:
        last: WorkflowStatus | None = None

        async def look() -> WorkflowStatus | None:
            nonlocal last
            last = await self.status()
            return last if last.state != "running" else None

        try:
            return await wait_for_answer(self._core, set(self.steps.values()), look, limit)
        except TimeoutError:
            if limit is None or last is None:
                raise
            raise TimeoutError(f"not over after {limit:g} s, and goes on. {last.text}") from None

    async def cancel(self, reason: str | None = None, *, who: str = "api") -> WorkflowStatus:
        """Cancel the steps that have not ended, and discard dead ones; what is done stays done."""
        for step in self._flow.in_order:
            for job in await self._core.store.get([step.job_id]):
                try:
                    if job.state is State.dead:
                        await self._home.discard(job.id, who=who, why=reason)
                    elif not job.ended:
                        await self._home.jobs.cancel(job.id, who=who, why=reason)
                except IllegalMove:
                    continue  # it ended while we looked
        return await self.status()

    def __repr__(self) -> str:
        return f"WorkflowHandle({self.id}, {self.name!r}{', duplicate=True' if self.duplicate else ''})"


class Workflows:
    """Reads workflows as they are now, whichever process started them."""

    def __init__(self, home: WorkflowHome) -> None:
        self._home = home
        self._core = home.core

    async def get(self, id: str) -> WorkflowHandle:
        """Find a workflow by its id or that of one of its steps' jobs; a part that only one job has is enough."""
        flow = await self._home.flows.flow(check_id("id", id))
        if flow is None:
            job = await find_job(self._core.store, id)
            flow = await self._home.flows.flow(job.readable_options.workflow or job.id)
        if flow is None:
            raise JobNotFound(f"job {id!r} is no step of a workflow", job_id=id)
        return WorkflowHandle(self._home, flow)

    async def list(self, *, limit: int = 100, name: str | None = None) -> builtins.list[WorkflowStatus]:
        """List how the latest workflows stand, newest first."""
        check_limit(limit)
        flows = [kept.value for kept in await WORKFLOW.all(self._core.store)]
        named = [flow for flow in flows if name in (None, flow.name)]
        latest = sorted(named, key=lambda flow: -flow.created_at)[:limit]
        steps = [step.job_id for flow in latest for step in flow.steps]
        jobs = {job.id: job for job in await self._core.store.get(steps)}
        return [rules.status_of(flow, jobs) for flow in latest]
