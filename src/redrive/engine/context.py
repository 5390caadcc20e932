"""What a running task sees: its job, steps that are remembered, effects that happen once.

`step` and `once` are written once, as steps (`engine/steps.py`); an async and a blocking driver answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, overload

import msgspec

from redrive.core.budget import check_usage, left
from redrive.core.checks import check_number
from redrive.core.commit import commit
from redrive.core.consent import Approval, asked_subject
from redrive.core.documents import PROGRESS, STEP
from redrive.core.effects import EffectRecord, is_seen, next_step
from redrive.core.job import Budget, Job, Json, Usage
from redrive.core.payload import encode_result, lost_numbers
from redrive.core.redact import redact, redact_text
from redrive.core.schedule import SLOT_HEADER
from redrive.core.store import Guard, Lease, Put, Store
from redrive.engine.approvals import Question, asked, key_of, question, waits_for
from redrive.engine.clock import Clock
from redrive.engine.effects import effect_of, judge, kept
from redrive.engine.steps import Ask, Call, Steps, drive, drive_blocking
from redrive.engine.threads import NOT_RUN, finished
from redrive.engine.trusted_time import time_for_destroying
from redrive.errors import OnceInProgress, RedriveError, Signal
from redrive.failures.capture import capture
from redrive.failures.safe_getattr import whole
from redrive.retries.changes import Change, outside_key
from redrive.retries.decision import Sitting

if TYPE_CHECKING:
    from redrive.engine.interrupts import Interrupts
    from redrive.engine.verify import Look

T = TypeVar("T")


class Held(Signal):
    """The attempt must stop and wait for a person."""

    def __init__(self, because: str, why: str, recommendation: str, held_for: str | None = None) -> None:
        super().__init__(why)
        self.because = because
        self.recommendation = recommendation
        self.held_for = held_for


class LeaseLost(Signal):
    """The job is somebody else's by now: whatever this attempt does further is refused."""


ABSENT: Final = object()
"""What a verifier did not find. Not None: what it found may be written as null."""
NOBODY: Final = ""
"""A task runs for no session: what it enqueues has none, whatever the process is called."""
session_of: ContextVar[str | None] = ContextVar("redrive_session", default=None)
"""The session on whose behalf this runs: the one that asked for the job, also in a replay long after."""
_current: ContextVar[Context | BlockingContext | None] = ContextVar("redrive_context", default=None)


def running() -> Context | BlockingContext | None:
    """The context of the task that is running here; None outside of tasks."""
    return _current.get()


def current() -> Context | BlockingContext:
    """The context of the task that is running here, however deep in the call stack."""
    context = _current.get()
    if context is None:
        raise RedriveError("redrive.current() is only there while a task runs")
    return context


class _Shared:
    """What both kinds of context know and do."""

    _usage: Usage | None = None
    _taken: tuple[Change, ...] = ()
    """The changes that this attempt really runs with."""
    _sitting: Sitting = None
    """Somebody waits for this attempt: a caller, or a script in its cycle."""
    _left = False
    """Nobody waits for it any more, although somebody did."""
    _tries = 1
    """Which try in that sitting it is."""
    _value: Any = None
    """What the task returned."""
    _error: BaseException | None = None
    """The exception that ended this attempt, for the log."""
    _open_error: Exception | None = None
    """The error by which an effect of `once` was left open whose verifier the next attempt asks."""
    _recovered = False
    """Something the task needs was away and is back."""
    _cancelled = False
    """The job is no longer ours."""
    _late = False
    """Its time is over, and it goes on."""
    _overran: float | None = None
    """The timeout after which it went on to its end, where it did."""
    _look: Look | None = None
    """What the verifiers saw last in this attempt."""
    _looked: Literal["before", "after"] | None = None
    """Whether that was before the task ran, or after it had failed."""
    _witness: tuple[Put, ...] = ()
    """What an uncertain failure left to look for, while it is being settled."""
    _releasing = False
    _sole = False
    """The worker is stopping this attempt to give the job back."""
    _interrupts: Interrupts | None = None
    """Knows whether an exception that ends a process comes from a signal."""
    _signalled: str | None = None
    """The signal that this attempt sent to its own process."""
    _awaited_by: asyncio.Task[Any] | None = None
    """The task of whoever waits for this attempt."""

    def __init__(self, job: Job, store: Store, clock: Clock, *, idempotent: bool) -> None:
        self.job: Final = job
        self.results: dict[str, Json] = {}
        self._store = store
        self._clock = clock
        self._idempotent = idempotent
        self._names: set[str] = set()

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
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
        """The instant a scheduled job is for, in UTC, however late it runs; None for other jobs."""
        said = self.job.options.headers.get(SLOT_HEADER)
        return datetime.fromisoformat(said) if said and self.job.reason == "scheduled_job" else None

    @property
    def changes(self) -> list[dict[str, Json]]:
        """What this attempt does differently from the payload as it was enqueued."""
        return [msgspec.to_builtins(change) for change in self._taken]

    @property
    def remaining(self) -> Budget | None:
        """What is left of the job's budget, this attempt's usage so far taken off; None without a budget."""
        budget = self.job.options.budget
        return left(budget, self.job, self._usage, self._clock.now()) if budget is not None else None

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this job, until a person edits it: give it to receivers that tell repeats."""
        return outside_key(self.job)

    @property
    def cancelled(self) -> bool:
        """Somebody cancelled the job, or its lease was lost: stop soon, nothing it says will count.

        Also where it runs on after its timeout: a plain function cannot be stopped, a coroutine may not let itself be.
        """
        return self._cancelled or self._late

    def usage(self, *, input_tokens: int = 0, output_tokens: int = 0, cost: float = 0.0) -> None:
        """Report what a call has spent; adds up over the attempt."""
        spent = check_usage(input_tokens, output_tokens, cost)
        self._usage = spent if self._usage is None else self._usage + spent

    # -- the parts of step, once and progress

    @property
    def _lease(self) -> Lease:
        return Lease(self.job.id, self.job.token or "")

    async def _write(self, put: Put) -> None:
        """A document of this job, synced, and only while the lease holds."""
        guard, what = Guard(self._lease, self._clock.now()), f"a {put.kind} of job {self.job.short_id} was written"
        if await commit(self._store, puts=[put], guards=[guard], what=what) is None:
            self._cancelled = True
            raise LeaseLost(f"job {self.job.short_id} is no longer this worker's")

    def _named(self, kind: str, name: str) -> str:
        if not name or "/" in name or len(name) > 200:
            raise ValueError(f"{kind} name {name!r}: needs 1 to 200 characters without '/'")
        if f"{kind}:{name}" in self._names:
            raise ValueError(f"{kind} {name!r} was used twice in one attempt: give each its own name or key=")
        self._names.add(f"{kind}:{name}")
        return name

    def _used(self, kind: str) -> bool:
        """Whether this attempt came to a step, or to an effect (`once`)."""
        return any(name.startswith(f"{kind}:") for name in self._names)

    def _step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
        self._named("step", name)
        known = yield Ask(STEP.get(self._store, f"{self.job.id}/{name}"))
        if known is not None:
            return msgspec.json.decode(known.value)
        value = yield Call(function, *args, **kwargs)
        text, problem = encode_result(value)
        problem = problem or lost_numbers(text, value)
        if problem:
            raise TypeError(f"step {name!r}: {problem}; a step's result must be JSON to be remembered")
        kept = (text or "null").encode()
        yield Ask(self._write(STEP.put(f"{self.job.id}/{name}", kept)))
        return msgspec.json.decode(kept)  # the same shape as on every replay

    def _once(
        self, name: str, function: Callable[[str], Any], verify: Callable[[str], Any] | None, key: str | None
    ) -> Steps:
        name = self._named("once", name if key is None else f"{name}:{key}")
        outside_key = f"{self.idempotency_key}:{name}"
        known: EffectRecord | None = yield Ask(effect_of(self._store, self.job.id, name))
        step = next_step(known, can_verify=verify is not None, idempotent=self._idempotent)
        if step == "return_recorded" and known is not None:
            return known.result
        if step == "hold":
            raise _unverified(name)
        if step == "verify" and verify is not None:
            begun_under = known.key if known is not None else outside_key
            found = yield from self._verified(name, begun_under, verify)
            if found is not ABSENT:
                return found
        yield Ask(self._note(EffectRecord(name, outside_key, "intended", self._clock.now(), self.job.run, self.agent)))
        try:
            value = yield from self._performed(name, outside_key, function)
        except Exception as error:
            self._open_error = error if verify is not None else None
            raise
        return (yield from self._landed(name, outside_key, value))

    def once_again(
        self, name: str, function: Callable[[str], Any], verify: Callable[[str], Any] | None, key: str
    ) -> Steps:
        """The steps of `redrive.once` in this job: `once`, which a task may ask for again when it has ended."""
        if f"once:{name}:{key}" in self._names:
            raise OnceInProgress(f"{name} is being performed by this attempt with the same key", key=key)
        try:
            return (yield from self._once(name, function, verify, key))
        finally:
            self._names.discard(f"once:{name}:{key}")

    def _verified(self, name: str, key: str, verify: Callable[[str], Any]) -> Steps:
        """An open intent: ask the outside. A value means landed, None or False absent, an error still unknown."""
        try:
            found = yield Call(verify, key)
            seen = is_seen(found)
        except Exception as error:
            if self._idempotent:
                return ABSENT
            raise _unverified(name, f"its verifier failed: {capture(error).summary}") from error
        if not seen:
            return ABSENT
        return (yield from self._landed(name, key, found, note="verified"))

    def _performed(self, name: str, key: str, function: Callable[[str], Any]) -> Steps:
        """Call it; an error closes the intent only where it proves that nothing happened."""
        try:
            return (yield Call(function, key))
        except Exception as error:
            status, note = judge(error)
            yield Ask(
                self._note(EffectRecord(name, key, status, self._clock.now(), self.job.run, self.agent, note=note))
            )
            raise

    def _landed(self, name: str, key: str, value: object, note: str | None = None) -> Steps:
        text, problem = encode_result(value)
        result = msgspec.json.decode(text) if text and not problem else None
        effect = EffectRecord(name, key, "landed", self._clock.now(), self.job.run, self.agent, result, problem or note)
        yield Ask(self._note(effect))
        return value if problem else result

    async def _note(self, effect: EffectRecord) -> None:
        await self._write(kept(self.job.id, effect))

    def _approval(self, words: str, details: dict[str, Json] | None, expires: float | timedelta | None) -> Steps:
        """Asked once per input: an edited job asks anew. Everybody who may answer reads it, so it holds no secrets."""
        if not words.strip():
            raise ValueError("an approval needs a question")
        span = expires.total_seconds() if isinstance(expires, timedelta) else expires
        if span is not None:
            check_number("expires", span)
        words = whole(words)
        name = f"{hashlib.sha256(words.encode()).hexdigest()[:12]}"
        self._named("approval", name)
        key = key_of(self.job.id, name)
        asked_before: Question | None = yield Ask(question(self._store, key))
        known = asked_before.approval if asked_before is not None else None
        now, subject = self._clock.now(), asked_subject(self.job, details or {})
        if known is not None and known.subject == subject:
            if known.expired(now) and known.expired((yield Ask(time_for_destroying(self._store, self._clock)))):
                known = msgspec.structs.replace(known, answer="expired")
                yield Ask(self._write(asked(key, known)))
            if known.answer != "open":
                return known
        else:
            until = now + span if span is not None else None
            shown: dict[str, object] = redact(details or {})
            known = Approval(redact_text(words), now, subject, shown, until)
            yield Ask(self._write(asked(key, known)))
        raise _asked(self.job, redact_text(words), key)

    async def _progress(self, fraction: float, note: str | None) -> None:
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"progress {fraction!r}: must be between 0 and 1")
        note = whole(note) if isinstance(note, str) else note
        value = {"fraction": fraction, "note": note, "at": self._clock.now()}
        await self._write(PROGRESS.put(f"{self.job.id}/now", value))


def _unverified(name: str, problem: str = "it has no verifier") -> Held:
    return Held(
        "outcome_unknown",
        f"Effect {name!r} was begun, and it is not known whether it landed; {problem}.",
        f"Look at the receiver of {name!r}. Then `redrive resolve ID --landed` or `--not-landed`.",
    )


def _asked(job: Job, words: str, key: str) -> Held:
    return Held(
        "approval",
        f"It asks: {words}",
        f"redrive approve {job.short_id} says yes, redrive reject {job.short_id} says no; then it goes on.",
        waits_for(key),
    )


class Context(_Shared):
    """What an async task gets as its first argument, if it asks for it."""

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Say how far it is; shown with the job."""
        await self._progress(fraction, note)

    async def approval(
        self, question: str, *, details: dict[str, Json] | None = None, expires: float | timedelta | None = None
    ) -> Approval:
        """Ask a person. The job is held, without using an attempt, and starts again with the answer.

        What comes back is true only if somebody said yes; after `expires` seconds without an answer it is not.
        """
        found: Approval = await drive(self._approval(question, details, expires))
        return found

    @overload
    async def step(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T: ...
    @overload
    async def step(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T: ...
    async def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run it once and remember the result; repeated only if it did not finish. For harmless or idempotent work."""
        return await drive(self._step(name, function, args, kwargs))

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
        """An outside effect. Its intent is on disk before the call; a replay returns what was recorded, or verifies."""
        return await drive(self._once(name, function, verify, key))


class BlockingContext(_Shared):
    """What a sync task gets: the same, without await. It runs in a thread."""

    _loop: asyncio.AbstractEventLoop

    def progress(self, fraction: float, note: str | None = None) -> None:
        self._wait(self._progress(fraction, note))

    def approval(
        self, question: str, *, details: dict[str, Json] | None = None, expires: float | timedelta | None = None
    ) -> Approval:
        found: Approval = self._drive(self._approval(question, details, expires))
        return found

    def step(self, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        found: T = self._drive(self._step(name, function, args, kwargs))
        return found

    def once(
        self,
        name: str,
        function: Callable[[str], T],
        verify: Callable[[str], Any] | None = None,
        *,
        key: str | None = None,
    ) -> T:
        found: T = self._drive(self._once(name, function, verify, key))
        return found

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await awaitable

        if _on(self._loop):
            asyncio.ensure_future(awaitable, loop=self._loop).cancel()
            raise RedriveError("it would wait for itself here: register the async function, which gets a Context")
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _drive(self, steps: Steps) -> Any:
        return drive_blocking(steps, self._found)

    def _found(self, want: Ask | Call) -> Any:
        """What a step wants. A function that gave back a coroutine has not run yet: it does, on the event loop."""
        if isinstance(want, Ask):
            return self._wait(want.awaitable)
        value = want()
        return self._wait(finished(value)) if isinstance(value, NOT_RUN) or inspect.isawaitable(value) else value


def _on(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this runs on that event loop, which then cannot be waited for."""
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
