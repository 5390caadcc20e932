"""Makes a function's effect happen once, without a job (`redrive.once`), and lists such effects (`rd.effects`)."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, overload

import msgspec

from redrive.core.checks import KEY_LIMIT, check_name, check_words
from redrive.core.commit import Proposal, apply_each, decide_and_commit
from redrive.core.documents import EFFECT, OPEN_EFFECT, Kept
from redrive.core.effects import EffectRecord, Status
from redrive.core.job import Json, hash_payload
from redrive.core.keys import check_template, key_for
from redrive.core.payload import canonical, encode_result, result_reader
from redrive.core.store import Commit, Put
from redrive.engine.attempt_state import running_attempt
from redrive.engine.context import perform_once_again
from redrive.engine.once_runs import PREFIX, OnceCall, put_effect_alone
from redrive.engine.once_runs import once as steps_of
from redrive.engine.steps import Ask, Call, Steps, drive, drive_blocking
from redrive.engine.threads import NOT_RUN, finish
from redrive.engine.trusted_time import time_for_destroying
from redrive.errors import EffectNotFound, InvalidOption, InvalidPayload, OnceInProgress
from redrive.jobs.core import DEFAULT_WHO
from redrive.jobs.event_loop_thread import portal

if TYPE_CHECKING:
    from redrive.jobs.core import Core

P = ParamSpec("P")
R = TypeVar("R")
Key = str | Callable[..., str]
Within = str | Callable[[], str]
NAME_IN_JOB: Final = 100
KEY_IN_JOB: Final = 90
"""Longer ones are hashed: name and key together are a name in the job."""
AT_ONCE: Final = 100
"""How many effects are written in one call."""


class OnceDecorator(Protocol):
    """Decorates a function: what `redrive.once(key=…)` returns."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


def decorator(core_of: Callable[[], Core], function: Any, options: Mapping[str, Any]) -> Any:
    """Makes the decorator; where a function is given, decorates it."""
    if unknown := options.keys() - {"key", "verify", "within"}:
        raise InvalidOption(field=min(unknown), problem="is not an option of once: there are key, verify and within")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        return _decorate(core_of, _OnceFunction(function, **options))

    return decorate if function is None else decorate(function)


class OnceMethods:
    """The method of Redrive that makes effects happen once."""

    core: Core

    @overload
    def once(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def once(
        self, /, *, key: Key | None = None, verify: Callable[..., Any] | None = None, within: Within | None = None
    ) -> OnceDecorator: ...
    def once(self, function: Any = None, /, **options: Any) -> Any:
        """Make a function's effect happen once for each key, without a job, as `redrive.once` does, in this store."""
        return decorator(lambda: self.core, function, options)


def _decorate(core_of: Callable[[], Core], once: _OnceFunction) -> Callable[..., Any]:
    if once.is_async:

        @wraps(once.function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            if (steps := once.steps_in_job(args, kwargs)) is not None:
                return once.convert(await drive(steps))
            core = core_of()
            async with core.holder.hold(closes=False):
                return await drive(once.steps(core, args, kwargs, blocking=False))

        return call_async

    @wraps(once.function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if (steps := once.steps_in_job(args, kwargs)) is not None:
            return once.convert(drive_blocking(steps, _answer))
        core = core_of()
        portal.run(core.holder.join())
        try:
            return drive_blocking(once.steps(core, args, kwargs, blocking=True), _answer)
        finally:
            portal.run(core.holder.leave(closes=False))

    return call


def _answer(want: Ask | Call[Any]) -> Any:
    """Waits for what a step wants, in redrive's own event loop; the user's function runs in the caller's thread."""
    if isinstance(want, Ask):
        return portal.run(_await(want))
    value = want()
    return portal.run(finish(value)) if isinstance(value, NOT_RUN) or inspect.isawaitable(value) else value


async def _await(want: Ask) -> Any:
    return await want.awaitable


class _OnceFunction:
    """Makes the effect of one function happen once for each key of its calls."""

    def __init__(
        self,
        function: Callable[..., Any],
        key: Key | None = None,
        verify: Callable[..., Any] | None = None,
        within: Within | None = None,
    ) -> None:
        for field, given in (("function", function), ("verify", verify)):
            if given is not None and not callable(given):
                raise InvalidOption(field=field, problem=f"{given!r:.80} cannot be called")
        if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
            raise InvalidOption(field="function", problem="is a generator, whose code runs later: return a list")
        self.function = function
        self.is_async = _is(inspect.iscoroutinefunction, function)
        self.own_name, self.name = _names(function, key)
        self._signature = inspect.signature(function)
        self._key = check_template(key, self, "key", self.name) if key is not None and not callable(key) else key
        self._verify = verify
        self._looks = _signature(verify)
        self._within = check_name("within", within) if within is not None and not callable(within) else within
        self._read = result_reader(function)

    # -- what a template must know

    def takes(self, name: str) -> bool:
        kinds = {parameter.kind for parameter in self._signature.parameters.values()}
        return name in self._signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds

    @property
    def defaults(self) -> Mapping[str, object]:
        return {}

    # -- one call

    def steps(self, core: Core, args: Sequence[Any], kwargs: Mapping[str, Any], *, blocking: bool) -> Steps:
        """Return the steps of a call outside of tasks."""
        key = check_name("key", self._add_scope(self._key_of(args, kwargs), core), KEY_LIMIT)
        perform, verify = self._calls(args, kwargs)
        return steps_of(core.store, core.clock, OnceCall(self.name, key, perform, verify, self._read, blocking))

    def steps_in_job(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Steps | None:
        """Return the steps of a call inside a task, whose job is the scope; None outside of tasks."""
        state = running_attempt.get()
        if state is None:
            return None
        perform, verify = self._calls(args, kwargs)
        return perform_once_again(
            state,
            self.own_name[:NAME_IN_JOB],
            lambda key: perform(),
            (lambda key: verify()) if verify is not None else None,
            _short(self._key_of(args, kwargs)),
        )

    def convert(self, value: Any) -> Any:
        """Convert a result to the type that the function returns, as a recorded one is."""
        text, problem = encode_result(value)
        return value if problem else self._read(text)

    def _calls(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
        """Bind the arguments. Refuse those that the verifier does not take: else it would be noticed after a crash."""
        try:
            if self._looks is not None:
                self._looks.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidOption(field="verify", problem=f"does not take the arguments of this call: {error}") from None
        verify = self._verify
        return lambda: self.function(*args, **kwargs), None if verify is None else lambda: verify(*args, **kwargs)

    def _key_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        if self._key is not None and callable(self._key):
            return check_name("key", self._key(*args, **kwargs), KEY_LIMIT)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if self._key is not None:
            return check_name("key", key_for(self._key, self, _flat(bound), "key"), KEY_LIMIT)
        return f"{self.name}:{self._hash(bound)}"

    def _hash(self, bound: inspect.BoundArguments) -> str:
        """Hash the arguments for the default key. They must be JSON, so that a later process finds the key again."""
        try:
            return hash_payload(canonical(bound.arguments), self.name)
        except InvalidPayload as error:
            name = error.field.removeprefix("payload.")
            problem = f"{self.name} needs one: its argument {name} is not JSON ({error.problem})"
            raise InvalidOption(field="key", problem=f'{problem}; e.g. key="mail-{{to}}"') from None

    def _add_scope(self, key: str, core: Core) -> str:
        within = check_name("within", self._within()) if callable(self._within) else self._within
        if within is None:
            return key
        day = datetime.fromtimestamp(core.clock.now(), UTC).date().isoformat()
        return f"{key}@{day if within == 'day' else within}"


def _signature(function: Callable[..., Any] | None) -> inspect.Signature | None:
    """Returns what a function takes; None where it does not say, as some built-in ones."""
    try:
        return inspect.signature(function) if function is not None else None
    except ValueError:
        return None


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that can be called, is of this kind."""
    return kind(function) or kind(getattr(type(function), "__call__", None))  # noqa: B004 - its code, not whether


def _names(function: Callable[..., Any], key: Key | None) -> tuple[str, str]:
    """Returns a function's short and full name. An object's function needs a key: its arguments lack the object."""
    named = function if hasattr(function, "__qualname__") else type(function)
    of_object = named is not function or (inspect.ismethod(function) and not isinstance(function.__self__, type))
    if of_object and key is None:
        problem = f"{named.__qualname__} needs one: its arguments do not tell which object it belongs to"
        raise InvalidOption(field="key", problem=f'{problem}; e.g. key="mail-{{to}}"')
    return named.__name__, f"{named.__module__}.{named.__qualname__}"


def _flat(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Returns the arguments by name, with those that the function takes as **kwargs."""
    arguments = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name, {})
    return arguments


def _short(key: str) -> str:
    """Shortens a key to a part of the name of an effect in a job."""
    if len(key) <= KEY_IN_JOB and "/" not in key:
        return key
    return hashlib.sha256(key.encode()).hexdigest()[:32]


# ---- seeing and closing them


class Effects:
    """Lists and resolves the effects without a job that `redrive.once` has recorded."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self, *, status: Status | None = None) -> Sequence[EffectRecord]:
        """List all effects, newest first; or those that are intended, landed, absent or unknown."""
        effects = [kept.value for kept in await EFFECT.all(self._core.store, PREFIX)]
        chosen = [effect for effect in effects if status in (None, effect.status)]
        return sorted(chosen, key=lambda effect: -effect.at)

    async def open(self) -> Sequence[EffectRecord]:
        """List the effects whose outcome a person must find out: begun, and performed by no live process."""
        store = self._core.store
        keys = [kept.key for kept in await OPEN_EFFECT.all(store)]
        effects = [kept.value for key in keys if (kept := await EFFECT.get(store, PREFIX + key)) is not None]
        ended = await store.ended({effect.process for effect in effects if effect.process})
        return [effect for effect in effects if effect.open and ended.get(effect.process or "", True)]

    async def get(self, key: str) -> EffectRecord:
        return (await self._read(key)).value

    async def resolve(
        self, key: str, *, landed: bool, result: Json = None, who: str = DEFAULT_WHO, why: str | None = None
    ) -> EffectRecord:
        """Resolve an effect by hand. Landed: later calls return `result`. Not landed: the next call performs it."""
        check_words(who, why)
        if result is not None and not landed:
            raise InvalidOption(field="result", problem="what did not land has no result")
        note = f"{who}: {why}" if why else f"{who} said so"

        async def resolve(effect: EffectRecord) -> EffectRecord:
            if effect.status == "landed" and landed:
                return effect
            if effect.status == "landed":
                raise InvalidOption(field="landed", problem=f"effect:{key} has landed: its result is recorded")
            await self._check_at_rest(effect)
            status: Status = "landed" if landed else "absent"
            return EffectRecord(effect.name, key, status, self._core.clock.now(), 0, result=result, note=note)

        return await self._change(key, resolve)

    async def erase(self, key: str) -> EffectRecord:
        """Forget the result and the error text of an effect, for privacy; its key and how it stands stay."""

        async def forget(effect: EffectRecord) -> EffectRecord:
            return _forget(effect)

        return await self._change(key, forget)

    async def prune(self) -> int:
        """Forget results that are older than `retention`, and keys that are older than `key_retention`."""
        settings, now = self._core.settings, await time_for_destroying(self._core.store, self._core.clock)
        effects = await EFFECT.all(self._core.store, PREFIX)
        aged = [_age(kept, now, settings.retention, settings.key_retention) for kept in effects]
        puts = [put for put in aged if put is not None]
        for start in range(0, len(puts), AT_ONCE):
            await apply_each(self._core.store, [Commit(puts=(put,)) for put in puts[start : start + AT_ONCE]])
        return len(puts)

    async def _check_at_rest(self, effect: EffectRecord) -> None:
        """Refuse an effect that a living process performs now: that process will close it."""
        if effect.status == "intended" and effect.process is not None:
            ended = await self._core.store.ended([effect.process])
            if ended.get(effect.process) is False:
                problem = f"effect:{effect.key} is being performed by process {effect.process}, which lives"
                raise OnceInProgress(f"{problem}; wait for it, or end that process", key=effect.key)

    async def _read(self, key: str) -> Kept[EffectRecord]:
        kept = await EFFECT.get(self._core.store, PREFIX + check_name("key", key, KEY_LIMIT))
        if kept is None:
            raise EffectNotFound(f"no effect {key!r}", key=key)
        return kept

    async def _change(self, key: str, change: Callable[[EffectRecord], Awaitable[EffectRecord]]) -> EffectRecord:
        async def decide() -> Proposal[EffectRecord]:
            kept = await self._read(key)
            after = await change(kept.value)
            return Proposal(f"effect:{key}", after, puts=put_effect_alone(after, kept.version))

        after, _ = await decide_and_commit(self._core.store, decide)
        return after


def _forget(effect: EffectRecord) -> EffectRecord:
    return msgspec.structs.replace(effect, result=None, note=None, forgotten=True)


def _age(kept: Kept[EffectRecord], now: float, retention: float, keys: float | None) -> Put | None:
    """Makes the write for an effect that has become too old; None for others, and for what is open."""
    effect, age = kept.value, now - kept.value.at
    if effect.open:
        return None
    if keys is not None and age > keys:
        return EFFECT.drop(kept.key, kept.version)
    if effect.forgotten or age <= retention:
        return None
    return EFFECT.put(kept.key, _forget(effect), kept.version)
