"""Performs an effect once without a job: an intent on disk before the call, its end after it.

Calls of one key in this process take turns (`_flights`). Between processes the intent is written only if the record is
still as it was read, and it names the process, whose lock file tells whether it lives.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from shlex import quote
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from redrive.core.commit import commit
from redrive.core.documents import EFFECT, OPEN_EFFECT, Kept
from redrive.core.effects import EffectRecord, Holder, Status, is_seen, once_step
from redrive.core.payload import encode_result
from redrive.core.store import Put, Store
from redrive.engine.clock import Clock
from redrive.engine.context import ABSENT
from redrive.engine.effects import judge
from redrive.engine.loop import carry_through
from redrive.engine.steps import Ask, Call, Steps
from redrive.errors import OnceInProgress, OutcomeUnknown, RedriveError, StoreError
from redrive.failures.capture import capture

log = logging.getLogger("redrive.effects")
PREFIX: Final = "once/"
"""The key prefix of effects without a job."""
AGAIN: Final = object()
"""A sign that the record changed meanwhile: read it again."""


class OnceCall(NamedTuple):
    """One call of a function whose effect must happen once."""

    name: str
    key: str
    function: Callable[[], Any]
    verify: Callable[[], Any] | None
    read: Callable[[str | None], Any]
    """Reads a recorded result as the type that the function returns."""
    blocking: bool
    """Whether the call blocks the thread of its caller."""


# ---- calls of one key in this process take turns


class OngoingCall(NamedTuple):
    """A call that runs in this process now."""

    over: Future[None]
    loop: asyncio.AbstractEventLoop | None


_flights: dict[tuple[str, str], OngoingCall] = {}
_lock = threading.Lock()
_performing: ContextVar[frozenset[str]] = ContextVar("redrive_once", default=frozenset())
"""The keys whose functions run at any depth of the current call stack."""


def _forget_parents_flights() -> None:
    """Clears the ongoing calls in a forked child, which performs none of them."""
    global _lock
    _flights.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_flights)


def _begin(process: str, key: str) -> OngoingCall | None:
    """Registers a call and returns None, or returns the ongoing call of the same key."""
    with _lock:
        if (other := _flights.get((process, key))) is not None:
            return other
        over: Future[None] = Future()
        over.set_running_or_notify_cancel()  # a waiting caller that is cancelled must not end it
        _flights[process, key] = OngoingCall(over, _running_loop())
        return None


def _end(process: str, key: str) -> None:
    with _lock:
        flight = _flights.pop((process, key), None)
    if flight is not None:
        flight.over.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _wait_for_call(flight: OngoingCall, call: OnceCall) -> Steps:
    """Waits for the ongoing call; raises if the wait would keep that call from finishing."""
    if call.key in _performing.get():
        raise RedriveError(f"{call.name} calls itself with the same key ({call.key}): it would wait for itself")
    if call.blocking and flight.loop is not None and flight.loop is _running_loop():
        raise OnceInProgress(
            f"effect:{call.key} is being performed on this event loop, which a plain function would block; await it",
            key=call.key,
        )
    yield Ask(_wait_until_over(flight.over))


async def _wait_until_over(over: Future[None]) -> None:
    await asyncio.wrap_future(over)


# ---- the steps


def once(store: Store, clock: Clock, call: OnceCall) -> Steps:
    """Performs the effect, or returns or raises its outcome if it was begun before."""
    process: str = yield Ask(store.process())
    while (other := _begin(process, call.key)) is not None:
        yield from _wait_for_call(other, call)
    try:
        turn = _Turn(store, clock, call, process)
        while (value := (yield from turn.steps())) is AGAIN:
            continue
        return value
    finally:
        _end(process, call.key)


class _Turn:
    """The only call of this key in this process."""

    def __init__(self, store: Store, clock: Clock, call: OnceCall, process: str) -> None:
        self._store = store
        self._clock = clock
        self._call = call
        self._process = process

    def steps(self) -> Steps:
        call = self._call
        kept: Kept[EffectRecord] | None = yield Ask(EFFECT.get(self._store, PREFIX + call.key))
        known, version = (kept.value, kept.version) if kept is not None else (None, 0)
        holder: Holder = yield Ask(self._holder(known))
        step = once_step(known, holder, can_verify=call.verify is not None)
        if step == "return_recorded" and known is not None:
            return self._recorded(known)
        if step == "wait" and known is not None:
            yield from self._wait(known)
            return AGAIN
        if step == "refuse" and known is not None:
            raise _make_in_progress(known, holder)
        if step == "hold" and known is not None:
            return (yield from self._unknown(version, known.note or "its process ended before it said more"))
        if step == "verify" and call.verify is not None:
            value = yield from self._ask_verifier(version, call.verify)
            if value is not ABSENT:
                return value
        return (yield from self._perform(version))

    async def _holder(self, known: EffectRecord | None) -> Holder:
        """Locates the process that has begun the effect. It is not this process: its calls of one key take turns."""
        if known is None or known.process is None or known.process == self._process:
            return "gone"
        if (known.process, known.key) in _flights:
            return "here"
        ended = await self._store.ended([known.process])
        if known.process not in ended:
            return "unseen"
        return "gone" if ended[known.process] else "alive"

    def _wait(self, known: EffectRecord) -> Steps:
        flight = _flights.get((known.process or "", known.key))
        if flight is not None:
            yield from _wait_for_call(flight, self._call)

    def _recorded(self, known: EffectRecord) -> Any:
        if _get_function_name(known.name) != _get_function_name(self._call.name):
            log.warning(
                "effect:%s was performed by %s: %s has the same key, and was not called",
                known.key,
                known.name,
                self._call.name,
            )
        if known.forgotten:
            log.warning("effect:%s has landed; its result was forgotten, so that None is returned", known.key)
            return None
        return self._call.read(None if known.result is None else msgspec.json.encode(known.result).decode())

    def _perform(self, version: int) -> Steps:
        """Writes the intent, calls the function, writes the end. The call starts only when the intent is on disk."""
        try:
            written = yield Ask(carry_through(self._write("intended", expect=version)))
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._note("absent", "it was not called")
            raise
        if not written:
            return AGAIN
        try:
            value = yield from self._call_function()
        except GeneratorExit:
            raise
        except Exception as error:  # noqa: BLE001 - raised again unless the effect has landed
            return (yield from self._failed(error))
        except BaseException as error:
            yield from self._note("unknown", f"interrupted: {type(error).__name__}")
            raise
        yield from self._record_landing(value)
        return value

    def _call_function(self) -> Steps:
        token = _performing.set(_performing.get() | {self._call.key})
        try:
            return (yield Call(self._call.function))
        finally:
            _performing.reset(token)

    def _failed(self, error: Exception) -> Steps:
        """Closes the intent where the error proves that nothing happened; otherwise asks the verifier."""
        status, note = judge(error)
        if status == "absent" or self._call.verify is None:
            yield from self._note(status, note)
            raise error
        try:
            answer = yield Call(self._call.verify)
            seen = is_seen(answer)
        except Exception as blind:  # noqa: BLE001 - recorded as unknown
            yield from self._note("unknown", f"{note}; its verifier failed: {capture(blind).summary}"[:500])
            raise error from None
        if not seen:
            yield from self._note("absent", note, doubtful=True)
            raise error
        log.warning("effect:%s was seen outside, although its call failed: %s", self._call.key, note)
        yield from self._record_landing(answer, note="verified")
        return answer

    def _ask_verifier(self, version: int, verify: Callable[[], Any]) -> Steps:
        """Asks the verifier about an open intent. A value means landed, nothing absent, an error unknown."""
        try:
            answer = yield Call(verify)
            seen = is_seen(answer)
        except Exception as error:  # noqa: BLE001 - recorded as unknown
            problem = f"its verifier failed: {capture(error).summary}"[:500]
            return (yield from self._unknown(version, problem, error))
        if not seen:
            return ABSENT
        yield from self._record_landing(answer, note="verified")
        return answer

    def _unknown(self, version: int, note: str, error: Exception | None = None) -> Steps:
        """Records the outcome as unknown, for a person to resolve, unless the record has changed meanwhile."""
        if not (yield Ask(carry_through(self._write("unknown", note=note, expect=version)))):
            return AGAIN
        _raise_unknown(self._call, note, error)

    def _record_landing(self, value: object, note: str | None = None) -> Steps:
        """Records the result. A failure to record is only logged: the effect has landed, so its value is returned."""
        text, problem = encode_result(value)
        result = msgspec.json.decode(text) if text and not problem else None
        if problem:
            note = f"its result, of type {type(value).__qualname__}, is not JSON: later calls return None"
            log.warning("effect:%s has landed; %s", self._call.key, note)
        try:
            yield Ask(carry_through(self._write("landed", result=result, note=note, forgotten=problem is not None)))
        except StoreError as error:
            log.error("effect:%s has landed, and this could not be recorded: %s", self._call.key, error)

    def _note(self, status: Status, note: str, *, doubtful: bool = False) -> Steps:
        """Records the status of the effect. A failure to record is only logged, so that the first error is raised."""
        try:
            yield Ask(carry_through(self._write(status, note=note, doubtful=doubtful)))
        except StoreError as error:
            log.error("effect:%s is %s, and this could not be recorded: %s", self._call.key, status, error)

    async def _write(self, status: Status, *, expect: int | None = None, **said: Any) -> bool:
        """Writes the record of the effect; False where the record has changed meanwhile."""
        now, process = self._clock.now(), self._process if status == "intended" else None
        effect = EffectRecord(self._call.name, self._call.key, status, now, 0, process=process, **said)
        what = f"effect:{effect.key} was noted as {status}"
        return await commit(self._store, puts=put_effect_alone(effect, expect), what=what) is not None


def put_effect_alone(effect: EffectRecord, expect: int | None = None) -> Sequence[Put]:
    """Makes the puts that write an effect without a job and note whether the effect is open."""
    mark = OPEN_EFFECT.put(effect.key, effect.at) if effect.open else OPEN_EFFECT.drop(effect.key)
    return EFFECT.put(PREFIX + effect.key, effect, expect), mark


def _get_function_name(name: str) -> str:
    """Returns a function's name without its module, which has another name when it runs as a script."""
    return name.rpartition(".")[2]


def _quote_effect(key: str) -> str:
    """Quotes an effect for a terminal, because a key may contain text from outside."""
    return quote(f"effect:{key}")


def _make_in_progress(known: EffectRecord, holder: Holder) -> OnceInProgress:
    """Makes the error for an effect that another process has begun; on another host it may be gone."""
    if holder == "alive":
        return OnceInProgress(f"effect:{known.key} is being performed by process {known.process}", key=known.key)
    problem = f"effect:{known.key} was begun by process {known.process}, which cannot be seen from here"
    return OnceInProgress(
        f"{problem}; if that process is gone, `redrive resolve {_quote_effect(known.key)}`", key=known.key
    )


def _raise_unknown(call: OnceCall, note: str, error: Exception | None) -> NoReturn:
    raise OutcomeUnknown(
        f"{call.name} was begun before and its outcome is unknown ({note}); it was not called again. Look at the "
        f"receiver, then `redrive resolve {_quote_effect(call.key)} --landed` or `--not-landed`"
    ) from error
