"""Defines the context of a running task: its job, steps that are remembered, effects that happen once.

`step` and `once` are written once, as steps (`engine/steps.py`), which an async and a blocking driver answer. Both
work on the AttemptState, so that users see nothing of the engine in their context.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, overload

import msgspec

from redrive.core.budget import check_usage
from redrive.core.change import outside_key
from redrive.core.checks import check_number
from redrive.core.commit import commit
from redrive.core.consent import Approval, asked_subject
from redrive.core.documents import PROGRESS, STEP
from redrive.core.effects import EffectRecord, Status, is_seen, next_step
from redrive.core.job import Budget, Job, Json
from redrive.core.payload import encode_result, lost_numbers
from redrive.core.redact import redact, redact_text
from redrive.core.schedule import SLOT_HEADER
from redrive.core.store import Guard, Put
from redrive.engine.approvals import Question, make_approval_hold, make_approval_key, put_approval, read_question
from redrive.engine.attempt_state import AttemptState, running_attempt
from redrive.engine.effects import judge, put_effect, read_effect
from redrive.engine.steps import Ask, Call, Steps, drive, drive_blocking
from redrive.engine.threads import NOT_RUN, finish
from redrive.engine.trusted_time import time_for_destroying
from redrive.errors import OnceInProgress, RedriveError, Signal
from redrive.failures.capture import capture
from redrive.failures.safe_getattr import whole

T = TypeVar("T")


class Held(Signal):
    """Signal that the attempt must stop and wait for a person."""

    def __init__(self, because: str, why: str, recommendation: str, held_for: str | None = None) -> None:
        super().__init__(why)
        self.because = because
        self.recommendation = recommendation
        self.held_for = held_for


class LeaseLost(Signal):
    """Signal that the job no longer belongs to this worker, so the store refuses what this attempt still writes."""


ABSENT: Final = object()
"""Marks an effect that the verifier did not find. Not None, because a result that was found may be null."""
NOBODY: Final = ""
"""Marks a task that runs for no session: jobs that it enqueues have no session, not the one of the process."""
session_of: ContextVar[str | None] = ContextVar("redrive_session", default=None)
"""The session on whose behalf the task runs: the session that asked for the job, also in a replay long after."""


def current() -> Context | BlockingContext:
    """Returns the context of the task that is running here, at any depth of the call stack."""
    state = running_attempt.get()
    if state is None:
        raise RedriveError("redrive.current() is only there while a task runs")
    return context_of(state)


def context_of(state: AttemptState) -> Context | BlockingContext:
    """Returns the task's context, made at the first call because most tasks never ask for one."""
    context: Context | BlockingContext | None = state.context
    if context is None:
        context = state.context = Context(state) if state.handler.is_async else BlockingContext(state)
    return context


class _Shared:
    """The members that both kinds of context share."""

    def __init__(self, state: AttemptState) -> None:
        self.job: Final = state.stored or state.job
        self._state: Final = state

    @property
    def results(self) -> dict[str, Json]:
        """The outputs of earlier steps of the workflow, by step."""
        return self._state.results

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.attempts + 1

    @property
    def session_id(self) -> str | None:
        return self.job.session_id

    @property
    def agent(self) -> str | None:
        return self.job.agent

    @property
    def model(self) -> str | None:
        return self.job.model

    @property
    def slot(self) -> datetime | None:
        """The instant that a scheduled job is for, in UTC, even where the job runs late; None for other jobs."""
        slot = self.job.options.headers.get(SLOT_HEADER)
        return datetime.fromisoformat(slot) if slot and self.job.reason == "scheduled_job" else None

    @property
    def changes(self) -> list[dict[str, Json]]:
        """The changes with which this attempt departs from the payload as enqueued."""
        return [msgspec.to_builtins(change) for change in self._state.taken]

    @property
    def remaining(self) -> Budget | None:
        """The rest of the job's budget after the usage of this attempt so far; None without a budget."""
        return self._state.budget_left()

    @property
    def idempotency_key(self) -> str:
        """A key for receivers that detect repeats: the same for every attempt until a person edits the job."""
        return outside_key(self.job)

    @property
    def cancelled(self) -> bool:
        """True where the job was cancelled or its lease was lost: stop soon, as this attempt's result will not count.

        Also true where the task runs on after its timeout: a plain function cannot be stopped, a coroutine may refuse.
        """
        return self._state.cancelled or self._state.late

    def usage(self, *, input_tokens: int = 0, output_tokens: int = 0, cost: float = 0.0) -> None:
        """Reports what a call has spent; the attempt adds the reports up."""
        spent, before = check_usage(input_tokens, output_tokens, cost), self._state.usage
        self._state.usage = spent if before is None else before + spent


# ---- steps, effects, approvals and progress of an attempt


async def _write(state: AttemptState, put: Put) -> None:
    """Write a document of the job, synced, and only while the lease holds."""
    guard, what = Guard(state.lease, state.clock.now()), f"a {put.kind} of job {state.job.short_id} was written"
    if await commit(state.store, puts=[put], guards=[guard], what=what) is None:
        state.cancelled = True
        raise LeaseLost(f"job {state.job.short_id} is no longer this worker's")


def _claim_name(state: AttemptState, kind: str, name: str) -> str:
    """Refuse a name that cannot be a key, or that this attempt has used."""
    if not name or "/" in name or len(name) > 200:
        raise ValueError(f"{kind} name {name!r}: needs 1 to 200 characters without '/'")
    if f"{kind}:{name}" in state.names:
        raise ValueError(f"{kind} {name!r} was used twice in one attempt: give each its own name or key=")
    state.names.add(f"{kind}:{name}")
    return name


def _remember_step(
    state: AttemptState, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Steps:
    key = f"{state.job.id}/{_claim_name(state, 'step', name)}"
    known = yield Ask(STEP.get(state.store, key))
    if known is not None:
        return msgspec.json.decode(known.value)
    value = yield Call(function, *args, **kwargs)
    text, problem = encode_result(value)
    problem = problem or lost_numbers(text, value)
    if problem:
        raise TypeError(f"step {name!r}: {problem}; a step's result must be JSON to be remembered")
    result = (text or "null").encode()
    yield Ask(_write(state, STEP.put(key, result)))
    return msgspec.json.decode(result)  # the same shape as on every replay


def _perform_once(
    state: AttemptState,
    name: str,
    function: Callable[[str], Any],
    verify: Callable[[str], Any] | None,
    key: str | None,
) -> Steps:
    name = _claim_name(state, "once", name if key is None else f"{name}:{key}")
    effect_key = f"{outside_key(state.stored or state.job)}:{name}"
    known: EffectRecord | None = yield Ask(read_effect(state.store, state.job.id, name))
    step = next_step(known, can_verify=verify is not None, idempotent=state.handler.idempotent)
    if step == "return_recorded" and known is not None:
        return known.result
    if step == "hold":
        raise _unverified(name)
    if step == "verify" and verify is not None:
        begun_under = known.key if known is not None else effect_key
        result = yield from _verify_effect(state, name, begun_under, verify)
        if result is not ABSENT:
            return result
    yield Ask(record_effect(state, name, effect_key, "intended"))
    try:
        value = yield from perform_effect(state, name, effect_key, function)
    except Exception as error:
        state.open_error = error if verify is not None else None
        raise
    return (yield from _record_landed(state, name, effect_key, value))


def perform_once_again(
    state: AttemptState, name: str, function: Callable[[str], Any], verify: Callable[[str], Any] | None, key: str
) -> Steps:
    """Make the steps of `redrive.once` in a job: `ctx.once`, which may be called again with a key after it ended."""
    if f"once:{name}:{key}" in state.names:
        raise OnceInProgress(f"{name} is being performed by this attempt with the same key", key=key)
    try:
        return (yield from _perform_once(state, name, function, verify, key))
    finally:
        state.names.discard(f"once:{name}:{key}")


def _verify_effect(state: AttemptState, name: str, key: str, verify: Callable[[str], Any]) -> Steps:
    """Asks the verifier about an open intent. A value means landed, None or False absent, an error still unknown."""
    try:
        result = yield Call(verify, key)
        seen = is_seen(result)
    except Exception as error:
        if state.handler.idempotent:
            return ABSENT
        raise _unverified(name, f"its verifier failed: {capture(error).summary}") from error
    if not seen:
        return ABSENT
    return (yield from _record_landed(state, name, key, result, note="verified"))


def perform_effect(state: AttemptState, name: str, key: str, function: Callable[[str], Any]) -> Steps:
    """Call the function of an effect; an error closes the intent only where it proves that nothing happened."""
    try:
        return (yield Call(function, key))
    except Exception as error:
        status, note = judge(error)
        yield Ask(record_effect(state, name, key, status, note=note))
        raise


def _record_landed(state: AttemptState, name: str, key: str, value: object, note: str | None = None) -> Steps:
    text, problem = encode_result(value)
    result = msgspec.json.decode(text) if text and not problem else None
    yield Ask(record_effect(state, name, key, "landed", result, problem or note))
    return value if problem else result


async def record_effect(
    state: AttemptState, name: str, key: str, status: Status, result: Json = None, note: str | None = None
) -> None:
    """Writes the status of an effect of the job."""
    job = state.job
    effect = EffectRecord(name, key, status, state.clock.now(), job.run, job.agent, result, note)
    await _write(state, put_effect(job.id, effect))


def _ask_approval(
    state: AttemptState, words: str, details: dict[str, Json] | None, expires: float | timedelta | None
) -> Steps:
    """Asks once per input: an edited job asks anew. All who may answer read the question, so secrets are redacted."""
    if not words.strip():
        raise ValueError("an approval needs a question")
    span = expires.total_seconds() if isinstance(expires, timedelta) else expires
    if span is not None:
        check_number("expires", span)
    words, job = whole(words), state.stored or state.job
    name = hashlib.sha256(words.encode()).hexdigest()[:12]
    key = make_approval_key(job.id, _claim_name(state, "approval", name))
    asked_before: Question | None = yield Ask(read_question(state.store, key))
    known = asked_before.approval if asked_before is not None else None
    now, subject = state.clock.now(), asked_subject(job, details or {})
    if known is not None and known.subject == subject:
        if known.expired(now) and known.expired((yield Ask(time_for_destroying(state.store, state.clock)))):
            known = msgspec.structs.replace(known, answer="expired")
            yield Ask(_write(state, put_approval(key, known)))
        if known.answer != "open":
            return known
    else:
        until = now + span if span is not None else None
        shown: dict[str, object] = redact(details or {})
        yield Ask(_write(state, put_approval(key, Approval(redact_text(words), now, subject, shown, until))))
    raise _waits_for_answer(job, redact_text(words), key)


async def _report_progress(state: AttemptState, fraction: float, note: str | None) -> None:
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"progress {fraction!r}: must be between 0 and 1")
    note = whole(note) if isinstance(note, str) else note
    await _write(
        state, PROGRESS.put(f"{state.job.id}/now", {"fraction": fraction, "note": note, "at": state.clock.now()})
    )


def _unverified(name: str, problem: str = "it has no verifier") -> Held:
    return Held(
        "outcome_unknown",
        f"Effect {name!r} was begun, and it is not known whether it landed; {problem}.",
        f"Look at the receiver of {name!r}. Then `redrive resolve ID --landed` or `--not-landed`.",
    )


def _waits_for_answer(job: Job, words: str, key: str) -> Held:
    return Held(
        "approval",
        f"It asks: {words}",
        f"redrive approve {job.short_id} says yes, redrive reject {job.short_id} says no; then it goes on.",
        make_approval_hold(key),
    )


# ---- the contexts that tasks get


class Context(_Shared):
    """The first argument of an async task whose signature asks for a context."""

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Reports how far the task is, as a fraction from 0 to 1 that is shown with the job."""
        await _report_progress(self._state, fraction, note)

    async def approval(
        self, question: str, *, details: dict[str, Json] | None = None, expires: float | timedelta | None = None
    ) -> Approval:
        """Asks a person. The job is held, without using an attempt, and starts again with the answer.

        The returned approval is true only if a person approved; after `expires` seconds without an answer it is false.
        """
        approval: Approval = await drive(_ask_approval(self._state, question, details, expires))
        return approval

    @overload
    async def step(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T: ...
    @overload
    async def step(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T: ...
    async def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs harmless or idempotent work once and remembers the result; only unfinished work is run again."""
        return await drive(_remember_step(self._state, name, function, args, kwargs))

    @overload
    async def once(
        self,
        name: str,
        function: Callable[[str], Awaitable[T]],
        verify: Callable[[str], Any] | None = None,
        *,
        key: str | None = None,
    ) -> T: ...
    @overload
    async def once(
        self,
        name: str,
        function: Callable[[str], T],
        verify: Callable[[str], Any] | None = None,
        *,
        key: str | None = None,
    ) -> T: ...
    async def once(
        self,
        name: str,
        function: Callable[[str], Any],
        verify: Callable[[str], Any] | None = None,
        *,
        key: str | None = None,
    ) -> Any:
        """Performs an outside effect. Its intent is on disk before the call; replays return the record or verify."""
        return await drive(_perform_once(self._state, name, function, verify, key))


class BlockingContext(_Shared):
    """The context of a sync task, which runs in a thread: the members of Context, without await."""

    def progress(self, fraction: float, note: str | None = None) -> None:
        self._wait(_report_progress(self._state, fraction, note))

    def approval(
        self, question: str, *, details: dict[str, Json] | None = None, expires: float | timedelta | None = None
    ) -> Approval:
        approval: Approval = self._drive(_ask_approval(self._state, question, details, expires))
        return approval

    def step(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        result: T = self._drive(_remember_step(self._state, name, function, args, kwargs))
        return result

    def once(
        self,
        name: str,
        function: Callable[[str], T],
        verify: Callable[[str], Any] | None = None,
        *,
        key: str | None = None,
    ) -> T:
        result: T = self._drive(_perform_once(self._state, name, function, verify, key))
        return result

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await awaitable

        loop = self._state.loop
        if loop is None or _runs_on(loop):
            asyncio.ensure_future(awaitable, loop=loop).cancel()
            raise RedriveError("it would wait for itself here: register the async function, which gets a Context")
        return asyncio.run_coroutine_threadsafe(run(), loop).result()

    def _drive(self, steps: Steps) -> Any:
        return drive_blocking(steps, self._answer)

    def _answer(self, want: Ask | Call[Any]) -> Any:
        """Answers a request of a step. A coroutine that a function returned runs on the event loop."""
        if isinstance(want, Ask):
            return self._wait(want.awaitable)
        value = want()
        return self._wait(finish(value)) if isinstance(value, NOT_RUN) or inspect.isawaitable(value) else value


def _runs_on(loop: asyncio.AbstractEventLoop) -> bool:
    """Tells whether the caller runs on that event loop: then waiting for the loop would block it forever."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def wants_context_first(function: Callable[..., Any]) -> bool:
    """Tells whether the first parameter is for the context: by its annotation, or by the name `ctx`."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return False
    said = parameters[0].annotation
    if isinstance(said, str):
        return said.rpartition(".")[2] in ("Context", "BlockingContext")
    if inspect.isclass(said) and issubclass(said, Context | BlockingContext):
        return True
    return parameters[0].name == "ctx" and said is inspect.Parameter.empty
