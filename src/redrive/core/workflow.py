"""Workflows: steps that wait for each other, and what their jobs' states say about the whole.

A step is a job. The document of a workflow never changes: how its steps stand is said by the jobs alone, so that there
is nothing to keep in agreement. A step that waits for others is held; what makes it ready is decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

import msgspec

from redrive.core.job import At, Job, Json, State, keyed_id
from redrive.errors import InvalidInput, InvalidPayload

HELD_FOR: Final = "workflow:"
BLOCKED: Final = "blocked"
MAX_STEPS: Final = 10_000
OUTPUT: Final = "$output"
_REFERENCE: Final = {OUTPUT, "path"}


class FlowStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a workflow: the job that does it, and the steps that must be done before."""

    name: str
    job_id: str
    task: str
    after: tuple[str, ...] = ()


class Flow(msgspec.Struct, frozen=True, dict=True):
    """A workflow as it was started. It has the id of its first step's job."""

    id: str
    name: str
    steps: tuple[FlowStep, ...]
    shape: str
    """A digest of its steps and their inputs: what its key stands for."""
    created_at: float

    @cached_property
    def by_name(self) -> dict[str, FlowStep]:
        return {step.name: step for step in self.steps}

    @cached_property
    def by_job(self) -> dict[str, FlowStep]:
        return {step.job_id: step for step in self.steps}

    @cached_property
    def dependents(self) -> dict[str, tuple[FlowStep, ...]]:
        """The steps that wait for a step directly."""
        waiting: dict[str, list[FlowStep]] = {step.name: [] for step in self.steps}
        for step in self.steps:
            for name in step.after:
                waiting[name].append(step)
        return {name: tuple(steps) for name, steps in waiting.items()}

    @cached_property
    def in_order(self) -> tuple[FlowStep, ...]:
        """Every step after those that it waits for."""
        return tuple(self.by_name[name] for name in order_steps({step.name: step.after for step in self.steps}))

    @property
    def final(self) -> tuple[FlowStep, ...]:
        """The steps that no other step waits for: their results are the workflow's."""
        return tuple(step for step in self.steps if not self.dependents[step.name])

    @property
    def held_for(self) -> str:
        return f"{HELD_FOR}{self.id}"

    def before(self, step: FlowStep) -> tuple[FlowStep, ...]:
        """Everything upstream of a step, however far."""
        names = _closure(step.after, lambda name: self.by_name[name].after)
        return tuple(self.by_name[name] for name in names)

    def behind(self, step: FlowStep) -> tuple[FlowStep, ...]:
        """Everything downstream of a step, however far."""
        names = _closure(
            [later.name for later in self.dependents[step.name]],
            lambda name: [later.name for later in self.dependents[name]],
        )
        return tuple(self.by_name[name] for name in names)

    def holds(self, job: Job) -> bool:
        """Whether this job is a step that waits for other steps."""
        return job.state is State.held and job.because == BLOCKED and job.held_for == self.held_for


def _closure(first: Iterable[str], more: Any) -> list[str]:
    names: dict[str, None] = dict.fromkeys(first)
    waiting = list(names)
    while waiting:
        for name in more(waiting.pop()):
            if name not in names:
                names[name] = None
                waiting.append(name)
    return list(names)


def workflow_id(name: str, key: str) -> str:
    """The id of the workflow that owns this key, and of its first step's job."""
    return keyed_id(f"{HELD_FOR}{name}", key)


def step_id(workflow: str, step: str) -> str:
    return keyed_id(f"{HELD_FOR}{workflow}", step)


def shape_of(steps: Iterable[tuple[str, str, str, Sequence[str], str]]) -> str:
    """Of (name, task, queue, after, payload hash) of every step."""
    told = sorted((name, task, queue, sorted(after), payload) for name, task, queue, after, payload in steps)
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:32]


# -- what cannot be a workflow


def order_steps(after: Mapping[str, Sequence[str]]) -> list[str]:
    """The steps' names, each behind those it waits for. Refuses none, too many, unknown ones and circles."""
    if not 1 <= len(after) <= MAX_STEPS:
        raise InvalidInput(field="steps", problem=f"there are {len(after)}; a workflow has 1 to {MAX_STEPS}")
    for step, names in after.items():
        if unknown := [name for name in names if name not in after]:
            raise InvalidInput(field=f"steps.{step}.after", problem=f"there is no step {unknown[0]!r}")
    from graphlib import CycleError, TopologicalSorter

    try:
        return list(TopologicalSorter(after).static_order())
    except CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise InvalidInput(field="steps", problem=f"wait for each other in a circle: {circle}") from None


# -- outputs of other steps


class Output:
    """What a step will have returned, or a part of it: `draft.output`, `draft.output["title"]`, `draft.output.title`.

    Stands in the arguments of a later step, which gets the value when it runs.
    """

    def __init__(self, step: str, path: tuple[str | int, ...] = (), home: object = None) -> None:
        self._step = step
        self._path = path
        self._home = home
        """The workflow whose step it is."""

    def __getitem__(self, part: str | int) -> Output:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise InvalidPayload(field=repr(self), problem=f"{part!r} is neither a name nor a number")
        return Output(self._step, (*self._path, part), self._home)

    def __getattr__(self, name: str) -> Output:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __reference__(self, used: list[str], home: object) -> dict[str, Json]:
        """Give what is stored in its place, and add its step to `used`. Plain names are parts of outputs."""
        if self._home is not home:
            raise InvalidPayload(field=repr(self), problem="belongs to another workflow")
        used.append(self._step)
        return {OUTPUT: self._step, "path": list(self._path)}

    def _not_yet(self, *_: object) -> Any:
        raise TypeError(f"{self!r} is not there yet: pass it on, and let the step look into it or make a text of it")

    __iter__ = __bool__ = __len__ = __str__ = __format__ = __eq__ = _not_yet
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<output of {self._step!r}{''.join(f'[{part!r}]' for part in self._path)}>"


def store_references(value: Any, used: list[str], home: object = None) -> Any:
    """A payload of `home` with references in the place of outputs, whose steps are added to `used`."""
    if isinstance(value, Output):
        return value.__reference__(used, home)
    if isinstance(value, Mapping):
        if OUTPUT in value:
            raise _refuse_reserved()
        return {name: store_references(item, used, home) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [store_references(item, used, home) for item in value]
    return value


def check_references(payload: Json, number: int) -> None:
    """Refuses data of the caller that looks like a reference to an output: it would be read as one."""
    if sum(1 for _ in _references(payload)) != number:
        raise _refuse_reserved()


def _refuse_reserved() -> InvalidPayload:
    return InvalidPayload(field="payload", problem=f"has a field named {OUTPUT!r}, which is kept for steps' outputs")


def _references(value: Json) -> Iterator[dict[str, Json]]:
    if isinstance(value, dict):
        if OUTPUT in value:
            yield value
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def fill_references(value: Json, results: Mapping[str, Json], lost: Collection[str] = ()) -> Json:
    """A payload with the outputs in the place of their references; what names no step before it is left as it is.

    `lost` are steps before it whose results are no longer kept: who needs one of those cannot run.
    """
    if isinstance(value, dict):
        if value.keys() == _REFERENCE and isinstance(value[OUTPUT], str):
            return _follow_reference(value, results, lost)
        return {name: fill_references(item, results, lost) for name, item in value.items()}
    if isinstance(value, list):
        return [fill_references(item, results, lost) for item in value]
    return value


def _follow_reference(reference: dict[str, Json], results: Mapping[str, Json], lost: Collection[str]) -> Json:
    step, path = reference[OUTPUT], reference["path"]
    if step in lost:
        raise _refuse_reference(
            step, path, "its result is no longer kept; start the workflow anew, or edit the job's payload"
        )
    if step not in results:
        return reference
    value = results[step]
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            raise _refuse_reference(step, path, f"the step returned nothing there (no {part!r})") from None
    return value


def _refuse_reference(step: str, path: Sequence[str | int], problem: str) -> InvalidPayload:
    error = InvalidPayload(field=repr(Output(step, tuple(path))), problem=problem)
    error.error_kind = "invalid_input"
    return error


# -- how it stands

StepState = Literal[
    "PENDING", "RUNNING", "RETRY_PENDING", "BLOCKED", "HELD", "FAILED", "DONE", "DISCARDED", "FORGOTTEN"
]
"""PENDING: its turn is now or will come. RETRY_PENDING: waits after a failure, and so do its dependents. BLOCKED: waits
for a step that failed. HELD: waits for a person or a circuit. FORGOTTEN: ended, longer ago than keys are kept."""
FlowState = Literal["running", "blocked", "complete", "discarded"]
_STATES: Final[Mapping[State, StepState]] = {
    State.waiting: "PENDING",
    State.running: "RUNNING",
    State.held: "HELD",
    State.done: "DONE",
    State.dead: "FAILED",
    State.discarded: "DISCARDED",
    State.purged: "DISCARDED",
}
_STUCK: Final = ("FAILED", "BLOCKED", "DISCARDED")
_OVER: Final = ("DONE", "FORGOTTEN")


class StepStatus(msgspec.Struct, frozen=True):
    """A step as it is now, in a workflow's words."""

    name: str
    task: str
    job_id: str
    state: StepState
    after: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    """The steps before it that are not done yet."""
    attempts: int = 0
    because: str | None = None
    error: str | None = None
    recommendation: str | None = None

    @property
    def available(self) -> bool:
        """Whether a worker may take it, now or when its time has come."""
        return self.state in ("PENDING", "RETRY_PENDING") and not self.waits_for


class WorkflowStatus(msgspec.Struct, frozen=True):
    """A workflow as it is now. Only `complete` means that all of it is done."""

    SHOWN: ClassVar = ("text", "_failed", "_blocked")
    RENAMED: ClassVar = {"_failed": "failed", "_blocked": "blocked"}
    id: str
    name: str
    state: FlowState
    steps: tuple[StepStatus, ...]
    created_at: At
    session_id: str | None = None

    @property
    def failed(self) -> tuple[StepStatus, ...]:
        return tuple(step for step in self.steps if step.state == "FAILED")

    @property
    def blocked(self) -> tuple[StepStatus, ...]:
        """The steps that cannot run before a failed one has."""
        return tuple(step for step in self.steps if step.state == "BLOCKED")

    @property
    def _failed(self) -> list[str]:
        return [step.name for step in self.failed]

    @property
    def _blocked(self) -> list[str]:
        return [step.name for step in self.blocked]

    @property
    def complete(self) -> bool:
        return self.state == "complete"

    def step(self, name: str) -> StepStatus:
        for step in self.steps:
            if step.name == name:
                return step
        raise InvalidInput(field="step", problem=f"workflow {self.name!r} has no step {name!r}")

    def count(self, *states: StepState) -> int:
        return sum(step.state in states for step in self.steps)

    @property
    def text(self) -> str:
        """How it stands, in words."""
        done = f"{self.count(*_OVER)} of {len(self.steps)} steps done"
        return f"Workflow {self.name} is {self.state}: " + "; ".join([done, *_describe_steps(self)]) + "."


def status_of(flow: Flow, jobs: Mapping[str, Job]) -> WorkflowStatus:
    """From the jobs as they are, by id; a job that is not there was forgotten."""
    statuses: dict[str, StepStatus] = {}
    for step in flow.in_order:
        statuses[step.name] = _step_status(flow, step, jobs.get(step.job_id), statuses)
    steps = tuple(statuses[step.name] for step in flow.steps)
    own = [jobs[step.job_id] for step in flow.steps if step.job_id in jobs]
    session = next((job.session_id for job in own if job.session_id is not None), None)
    return WorkflowStatus(flow.id, flow.name, _state([step.state for step in steps]), steps, flow.created_at, session)


def _step_status(flow: Flow, step: FlowStep, job: Job | None, known: Mapping[str, StepStatus]) -> StepStatus:
    if job is None:
        return StepStatus(step.name, step.task, step.job_id, "FORGOTTEN", step.after)
    waits_for = tuple(name for name in step.after if known[name].state not in _OVER)
    state = _step_state(flow, job, [known[name].state for name in waits_for])
    facts = (() if job.ended else waits_for, job.attempts, job.because, job.error, job.recommendation)
    return StepStatus(step.name, step.task, step.job_id, state, step.after, *facts)


def _step_state(flow: Flow, job: Job, before: Sequence[StepState]) -> StepState:
    if flow.holds(job):
        return "BLOCKED" if any(state in _STUCK for state in before) else "PENDING"
    if job.state is State.waiting and job.first_failed_at is not None:
        return "RETRY_PENDING"
    return _STATES[job.state]


def _state(states: Sequence[StepState]) -> FlowState:
    """Nothing to do is not the same as done: every step must be."""
    if all(state in _OVER for state in states):
        return "complete"
    if "FAILED" in states:
        return "blocked"
    if all(state in (*_OVER, "DISCARDED") for state in states):
        return "discarded"
    return "running"


def _describe_steps(status: WorkflowStatus) -> Iterator[str]:
    for step in status.failed:
        why = " ".join(": ".join(filter(None, (step.because, step.error))).split())[:300]
        yield f"step {step.name} failed ({why}), redrive it with `redrive dead redrive {step.job_id[-8:]}`"
    for words, states in _WORDS.items():
        if names := [step.name for step in status.steps if step.state in states]:
            yield f"{words}: {_join_names(names)}"
    let_go = ("cancelled", "discarded")  # what was purged has another reason, and does not come back
    if gone := [step for step in status.steps if step.state == "DISCARDED" and step.because in let_go]:
        id = gone[0].job_id[-8:]
        yield f"to go on with {gone[0].name}, `redrive dead restore {id}`, then `redrive dead redrive {id}`"


_WORDS: Final[Mapping[str, tuple[StepState, ...]]] = {
    "blocked by that": ("BLOCKED",),
    "running": ("RUNNING",),
    "waiting after a failure": ("RETRY_PENDING",),
    "held for a person or a circuit": ("HELD",),
    "to come": ("PENDING",),
    "discarded": ("DISCARDED",),
}
_LISTED: Final = 10


def _join_names(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


# -- what must move


class StepsToMove(msgspec.Struct, frozen=True):
    """Which of the waiting steps need wait no longer, and which wait for what will not come."""

    ready: tuple[Job, ...] = ()
    doomed: tuple[tuple[Job, str], ...] = ()
    """Each with the discarded step that it waits for."""


def judge(flow: Flow, waiting: Iterable[Job], states: Mapping[str, State]) -> StepsToMove:
    """Of jobs that wait for this workflow's steps, given the states of what they wait for (absent: forgotten, done)."""
    jobs = {job.id: job for job in waiting if flow.holds(job)}
    ready: list[Job] = []
    doomed: dict[str, tuple[Job, str]] = {}
    for step in flow.in_order:
        if step.job_id not in jobs:
            continue
        before = [flow.by_name[name] for name in step.after]
        gone = [each.name for each in before if states.get(each.job_id) in _GONE or each.job_id in doomed]
        if gone:
            doomed[step.job_id] = jobs[step.job_id], gone[0]
        elif all(states.get(each.job_id, State.done) is State.done for each in before):
            ready.append(jobs[step.job_id])
    return StepsToMove(tuple(ready), tuple(doomed.values()))


_GONE: Final = (State.discarded, State.purged)
