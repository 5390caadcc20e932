"""Defines queue policies: how often, how soon, how long, how many at once. One precedence, one set of defaults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from math import inf, isfinite
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from redrive.core.checks import MOST, check_choice, check_number, check_range
from redrive.core.details import DETAILS
from redrive.core.job import Reason
from redrive.core.times import span_seconds
from redrive.errors import InvalidOption

Backoff = str | Callable[[int], float]
"""A name from BACKOFFS, or a function from the number of failures so far (1, 2, …) to seconds."""

Scope = Literal["process", "store"]
MOST_ATTEMPTS: Final = 1000
"""Most attempts that a single job may ask for."""
HOUR: Final = 3600.0
MOST_COMEBACKS: Final = 20
JITTER: Final = 0.10
SAFE_DELAY: Final = 60.0
"""Seconds to wait if a backoff is unknown or fails: slow and safe, never a hot loop."""


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts in `per` seconds."""

    count: int
    per: float = 1.0


class Policy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a queue, a task, a reason or a job. None means: the next layer in the precedence decides."""

    max_attempts: int | None = None
    backoff: Any = None
    """A Backoff: a name or a function. (Its type is wider than files can say, so `check` looks at it.)"""
    base: float | None = None
    cap: float | None = None
    """The longest wait that redrive itself chooses. `max_wait` bounds the waits that servers ask for."""
    max_wait: float | None = None
    """The longest wait that a server may ask for with Retry-After or a reset. A longer wait sends the job to the
    delayed lane; the job comes back at the time that the server named."""
    jitter: float | None = None
    lease: float | None = None
    max_age: float | None = None
    on_lost: Literal["retry", "dead_letter"] | None = None
    max_crashes: int | None = None
    """Most processes that may die with a job alone in them; then the job waits once in the delayed lane, then for a
    person."""
    strategy: Literal["categorized", "plain"] | None = None
    rungs: int | None = None
    """Changed tries, for any cause, that a job may have on top of its attempts; 0 means none."""
    changed_after: float | dict[str, float] | None = None
    """Seconds before a changed try, or seconds by detail: `{"invalid_output": 5}`. `cap` bounds them."""
    quote_errors: bool | None = None
    """Whether a retry may show the failure's message to the model: shortened, fenced, marked as untrusted."""
    breaker_after: int | None = None
    """How many failures of one cause in a row open the breaker of a downstream; 0 means never."""
    breaker_window: float | None = None
    breaker_pause: float | None = None
    """Seconds before the first probe; doubles with every probe that fails, up to 300."""
    breaker_release: float | None = None
    """Parked jobs released per second once a probe has succeeded."""
    concurrency: int | None = None
    rate: Rate | None = None
    scope: Scope | None = None
    comebacks: tuple[float, ...] | None = None
    """Seconds after its death at which a dead letter whose cause may heal comes back by itself; () means never."""
    timeout: float | None = None
    """Seconds that an attempt may take, if its task sets no timeout."""
    stalled_after: float | None = None
    health_depth: int | None = None
    pain_depth: int | None = None
    pain_dead: int | None = None
    criticality: Literal["critical", "high", "normal", "low"] | None = None
    retention: float | None = None
    fallback: Any = None
    """Whether jobs that the store cannot take wait in the spool; or a function that does the job if that fails."""
    fallback_after: float | None = None
    """Seconds that the store has to accept a job that has a fallback."""


DEFAULT: Final = Policy(
    max_attempts=5,
    backoff="doubling",
    base=2.0,
    cap=300.0,
    max_wait=6 * 3600.0,
    jitter=JITTER,
    lease=90.0,
    on_lost="retry",
    max_crashes=3,
    strategy="categorized",
    rungs=3,
    quote_errors=False,
    breaker_after=10,
    breaker_window=60.0,
    breaker_pause=5.0,
    breaker_release=20.0,
    comebacks=(600.0, HOUR, 6 * HOUR, 24 * HOUR),
    scope="process",
    health_depth=25,
    pain_depth=100,
    pain_dead=10,
    criticality="normal",
    retention=14 * 86400.0,
    fallback=False,
    fallback_after=2.0,
)

REASONS: Final[dict[str, Policy]] = {
    "direct": Policy(),
    "retry": Policy(backoff="adaptive", max_age=30 * 60.0),
    "deferred_submit": Policy(max_attempts=1, backoff="none", lease=600.0),
    "scheduled_job": Policy(),
}


DURATIONS: Final = frozenset(
    {
        "base", "cap", "max_wait", "lease", "max_age", "breaker_window", "breaker_pause", "timeout", "stalled_after",
        "retention", "fallback_after", "changed_after", "comebacks",
    }
)  # fmt: skip
"""The fields that are seconds, or hold seconds."""


def with_seconds(said: Mapping[str, Any], names: Collection[str] = DURATIONS) -> dict[str, Any]:
    """Convert durations such as "5m" and timedeltas to seconds. Other values are not changed."""
    return {name: _in_seconds(value) if name in names else value for name, value in said.items()}


def _in_seconds(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {name: _in_seconds(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_in_seconds(one) for one in value]
    seconds = span_seconds(value) if isinstance(value, str) else None
    return value if seconds is None else seconds


def merge(*layers: Policy | None) -> Policy:
    """Merge policies field by field; the first layer that sets a field wins."""
    fields: dict[str, object] = {}
    for layer in reversed(layers):
        if layer is not None:
            fields |= {name: value for name in Policy.__struct_fields__ if (value := getattr(layer, name)) is not None}
    return Policy(**fields)  # type: ignore[arg-type]


def effective(
    job: Policy | None, task: Policy | None, queue: Policy | None, reason: Reason | str, *, agent: Policy | None = None
) -> Policy:
    """Merge the layers: job > task > queue > reason > agent > default. `agent` applies to jobs with an agent."""
    return merge(job, task, queue, REASONS.get(reason), agent, DEFAULT)


def _doubling(failures: int, base: float) -> float:
    return float(base * 2.0 ** min(failures - 1, 60))


BACKOFFS: Final[Mapping[str, Callable[[int, float], float]]] = {
    "doubling": _doubling,
    "adaptive": lambda failures, base: (10.0, 20.0, 45.0, 90.0, 120.0)[min(failures, 5) - 1],
    "fixed_10s": lambda failures, base: 10.0,
    "exponential": lambda failures, base: min(_doubling(failures, 10.0), 120.0),
    "none": lambda failures, base: 0.0,
}


def delay_after(policy: Policy, failures: int, chance: float = 0.5) -> float:
    """Return the seconds to wait after this many failures. `chance` in [0, 1) places the jitter; 0.5 is none.

    Jitter first, then the clamp: the cap is never exceeded and the delay never negative.
    """
    failures = max(1, failures)
    base = policy.base if policy.base is not None else 2.0
    cap = policy.cap if policy.cap is not None else 300.0
    seconds = _raw_delay(policy.backoff, failures, base)
    jitter = policy.jitter if policy.jitter is not None else 0.0
    return min(max(seconds * (1.0 + jitter * (2.0 * chance - 1.0)), 0.0), cap)


def _raw_delay(backoff: Backoff | None, failures: int, base: float) -> float:
    if callable(backoff):
        return _ask_backoff(backoff, failures)
    named = BACKOFFS.get(backoff or "doubling")
    return named(failures, base) if named else SAFE_DELAY


def _ask_backoff(backoff: Callable[[int], float], failures: int) -> float:
    """Call the user's function. If that function fails, the wait is slow and safe, never a hot loop."""
    try:
        seconds = float(backoff(failures))
    except Exception:  # noqa: BLE001 - a user's function may raise any exception
        return SAFE_DELAY
    return seconds if isfinite(seconds) and seconds >= 0 else SAFE_DELAY


def schedule(policy: Policy) -> list[float]:
    """Return all waits of a policy, without jitter: one fewer than the attempts."""
    return [delay_after(policy, failures) for failures in range(1, policy.max_attempts or 1)]


_WHOLE: Final = {
    **dict.fromkeys(("max_attempts", "max_crashes", "concurrency"), (1, MOST)),
    **dict.fromkeys(("rungs", "breaker_after", "health_depth", "pain_depth", "pain_dead"), (0, MOST)),
}
_FROM_0: Final = {"base": MOST, "cap": MOST, "max_wait": MOST, "jitter": 1, "retention": MOST}
_ABOVE_0: Final = (
    "timeout",
    "lease",
    "max_age",
    "stalled_after",
    "breaker_window",
    "breaker_pause",
    "breaker_release",
    "fallback_after",
)
_ENDLESS: Final = frozenset({"cap", "max_wait", "retention", "max_age", "stalled_after"})
"""The limits that may be infinite."""


def is_endless(name: str, value: object) -> bool:
    """Return whether a value sets the limit of this name to infinity, as `stalled_after=inf` does."""
    return name in _ENDLESS and value == inf


_WORDS: Final[dict[str, tuple[str, ...]]] = {
    field.name: get_args(kind)
    for field in msgspec.structs.fields(Policy)
    for kind in get_args(field.type)
    if get_origin(kind) is Literal
}


def check(policy: Policy, where: str) -> Policy:
    """Refuse impossible values when a policy is set, not when the policy is used."""
    for name in Policy.__struct_fields__:
        if (value := getattr(policy, name)) is not None:
            _check_field(name, value, f"{where}.{name}")
    _check_base(policy, where)
    return policy


def _check_base(policy: Policy, where: str) -> None:
    """Refuse a base that the same layer's backoff ignores. A backoff of another layer may ignore an inherited base."""
    backoff = policy.backoff
    if policy.base is None or backoff is None or backoff == "doubling":
        return
    named = "that is a function" if callable(backoff) else repr(backoff)
    problem = f"has no effect with backoff {named}; leave base out, or use backoff 'doubling'"
    raise InvalidOption(field=f"{where}.base", problem=problem)


def _check_field(name: str, value: object, field: str) -> None:
    if name in _WHOLE:
        check_range(field, value, *_WHOLE[name])
    elif name in _FROM_0:
        check_number(field, value, 0, _FROM_0[name], endless=name in _ENDLESS)
    elif name in _ABOVE_0:
        check_number(field, value, above=True, endless=name in _ENDLESS)
    elif name in _WORDS:
        check_choice(field, value, _WORDS[name])
    elif name == "backoff" and not callable(value):
        check_choice(field, value, BACKOFFS)
    elif name == "quote_errors" and not isinstance(value, bool):
        raise InvalidOption(field=field, problem=f"{value!r} is neither True nor False")
    elif name == "rate":
        _check_rate(field, value)
    elif name == "changed_after":
        _check_changed_after(field, value)
    elif name == "fallback":
        check_fallback(field, value)
    elif name == "comebacks":
        check_comebacks(field, value)


def check_fallback(field: str, value: object) -> None:
    """Refuse a fallback that is neither a boolean nor a function."""
    if not isinstance(value, bool) and not callable(value):
        raise InvalidOption(field=field, problem=f"{value!r} is neither True nor False nor a function")


def check_comebacks(field: str, value: object) -> None:
    """Refuse a table of comebacks that is not a few times in seconds, each later than the one before."""
    if not isinstance(value, tuple | list) or len(value) > MOST_COMEBACKS:
        problem = f"{value!r:.80} is not a list of at most {MOST_COMEBACKS} times in seconds; () turns comebacks off"
        raise InvalidOption(field=field, problem=problem)
    for number, seconds in enumerate(value):
        check_number(f"{field}[{number}]", seconds, above=True)
    if list(value) != sorted(set(value)):
        raise InvalidOption(field=field, problem=f"{value!r:.80}: each time must be later than the one before")


_CHANGEABLE: Final = tuple(name for name, (category, *_) in DETAILS.items() if category == "conditional")


def _check_changed_after(field: str, said: object) -> None:
    """Refuse a `changed_after` that is neither seconds nor seconds by the detail of a conditional failure."""
    if not isinstance(said, Mapping):
        check_number(field, said)
        return
    for detail, seconds in said.items():
        check_choice(field, detail, _CHANGEABLE)
        check_number(f"{field}.{detail}", seconds)


def _check_rate(field: str, rate: object) -> None:
    if not isinstance(rate, Rate):
        raise InvalidOption(field=field, problem=f"{rate!r} is not a redrive.Rate(count, per)")
    try:
        check_range("count", rate.count, 1, MOST)
        check_number("per", rate.per, above=True)
    except InvalidOption as error:
        raise InvalidOption(field=field, problem=str(error)) from None
