"""Queue policies: how often, how soon, how long, how many at once. One precedence, one set of defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from redrive.core.checks import MOST, check_choice, check_number, check_range
from redrive.core.job import Reason
from redrive.errors import InvalidOption

Backoff = str | Callable[[int], float]
"""A name from BACKOFFS, or a function from the number of failures so far (1, 2, …) to seconds."""

Scope = Literal["process", "store"]
MOST_ATTEMPTS: Final = 1000
"""Of what a single job may ask for."""
JITTER: Final = 0.10
SAFE_DELAY: Final = 60.0
"""Where a backoff name is unknown: slow and safe, never a hot loop."""


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts in `per` seconds."""

    count: int
    per: float = 1.0


class Policy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What may be said about a queue, a task, a reason or a job. None means: the next one in the precedence."""

    max_attempts: int | None = None
    backoff: Any = None
    """A Backoff: a name or a function. (Its type is wider than files can say, so `check` looks at it.)"""
    base: float | None = None
    cap: float | None = None
    jitter: float | None = None
    lease: float | None = None
    max_age: float | None = None
    on_lost: Literal["retry", "dead_letter"] | None = None
    strategy: Literal["categorized", "plain"] | None = None
    rungs: int | None = None
    """How often a failure that needs a change is tried again, each time changed further."""
    quote_errors: bool | None = None
    """Whether a retry may show the model what the failure said: shortened, fenced, marked as untrusted."""
    breaker_after: int | None = None
    """So many failures of one cause in a row open the breaker of what is called; 0 means never."""
    breaker_window: float | None = None
    breaker_pause: float | None = None
    """Seconds before the first probe; doubles with every probe that fails, up to 300."""
    breaker_release: float | None = None
    """Parked jobs let go per second once a probe has succeeded."""
    concurrency: int | None = None
    rate: Rate | None = None
    scope: Scope | None = None
    stalled_after: float | None = None
    health_depth: int | None = None
    pain_depth: int | None = None
    pain_dead: int | None = None
    criticality: Literal["critical", "high", "normal", "low"] | None = None
    retention: float | None = None


DEFAULT: Final = Policy(
    max_attempts=5,
    backoff="doubling",
    base=2.0,
    cap=300.0,
    jitter=JITTER,
    lease=90.0,
    on_lost="retry",
    strategy="categorized",
    rungs=1,
    quote_errors=False,
    breaker_after=10,
    breaker_window=60.0,
    breaker_pause=5.0,
    breaker_release=20.0,
    scope="process",
    health_depth=25,
    pain_depth=100,
    pain_dead=10,
    criticality="normal",
    retention=14 * 86400.0,
)

REASONS: Final[dict[str, Policy]] = {
    "direct": Policy(),
    "retry": Policy(backoff="adaptive", max_age=30 * 60.0),
    "deferred_submit": Policy(max_attempts=1, backoff="none", lease=600.0),
    "scheduled_job": Policy(),
}

AGENT: Final = Policy(max_attempts=3, base=30.0, cap=300.0)
"""Jobs with an agent: three tries, 30 s doubling to 300 s."""

PRESETS: Final[dict[str, Policy]] = {
    "analytics_ingest": Policy(max_attempts=5, base=2.0, criticality="critical"),
    "learning_capture": Policy(max_attempts=3, base=1.0, criticality="critical"),
    "identity_provision": Policy(max_attempts=10, base=5.0, cap=600.0, criticality="high"),
    "feedback": Policy(max_attempts=5, base=2.0, criticality="critical"),
    "mesh_keys": Policy(max_attempts=10, base=5.0, cap=600.0, criticality="high"),
    "security_notify": Policy(max_attempts=5, base=3.0, criticality="high"),
    "artifact_delivery": Policy(max_attempts=5, base=2.0, criticality="critical"),
    "conversation_index": Policy(max_attempts=5, base=2.0, criticality="critical"),
    "graph_write": Policy(max_attempts=5, base=2.0, criticality="critical"),
    "knowledge_ingest": Policy(max_attempts=5, base=2.0, criticality="high"),
    "session_promotion": Policy(max_attempts=5, base=2.0, criticality="high"),
}
"""Eleven queues that most agent systems turn out to need, ready by name."""


def merge(*layers: Policy | None) -> Policy:
    """The first layer that says something wins, field by field."""
    said: dict[str, object] = {}
    for layer in reversed(layers):
        if layer is not None:
            said |= {name: value for name in Policy.__struct_fields__ if (value := getattr(layer, name)) is not None}
    return Policy(**said)  # type: ignore[arg-type]


def effective(
    job: Policy | None, task: Policy | None, queue: Policy | None, reason: Reason | str, *, has_agent: bool = False
) -> Policy:
    """job > task > queue > reason > default."""
    return merge(job, task, queue, REASONS.get(reason), AGENT if has_agent else None, DEFAULT)


def _doubling(failures: int, base: float) -> float:
    return float(base * 2.0 ** min(failures - 1, 60))


def _adaptive(failures: int, base: float) -> float:
    return (10.0, 20.0, 45.0, 90.0, 120.0)[min(failures, 5) - 1]


BACKOFFS: Final[Mapping[str, Callable[[int, float], float]]] = {
    "doubling": _doubling,
    "adaptive": _adaptive,
    "fixed_10s": lambda failures, base: 10.0,
    "exponential": lambda failures, base: min(_doubling(failures, 10.0), 120.0),
    "none": lambda failures, base: 0.0,
}


def delay_after(policy: Policy, failures: int, chance: float = 0.5) -> float:
    """Seconds to wait after so many failures. `chance` in [0, 1) places the jitter; 0.5 is none.

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
        return _asked(backoff, failures)
    named = BACKOFFS.get(backoff or "doubling")
    return named(failures, base) if named else SAFE_DELAY


def _asked(backoff: Callable[[int], float], failures: int) -> float:
    """A function of the user's own: what it gets wrong falls to the slow and safe, never to a hot loop."""
    try:
        seconds = float(backoff(failures))
    except Exception:  # noqa: BLE001 - its answer would be told with the decision; there is none
        return SAFE_DELAY
    return seconds if isfinite(seconds) and seconds >= 0 else SAFE_DELAY


def schedule(policy: Policy) -> list[float]:
    """The whole table of waits of a policy, without jitter: one fewer than the attempts."""
    return [delay_after(policy, failures) for failures in range(1, policy.max_attempts or 1)]


_WHOLE: Final = {
    "max_attempts": (1, MOST), "concurrency": (1, MOST), "rungs": (0, MOST), "breaker_after": (0, MOST),
    "health_depth": (0, MOST), "pain_depth": (0, MOST), "pain_dead": (0, MOST),
}  # fmt: skip
_FROM_0: Final = {"base": MOST, "cap": MOST, "jitter": 1, "retention": MOST}
_ABOVE_0: Final = ("lease", "max_age", "stalled_after", "breaker_window", "breaker_pause", "breaker_release")
_ENDLESS: Final = frozenset({"cap", "retention", "max_age", "stalled_after"})
"""What may also never come."""
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    field.name: get_args(kind)
    for field in msgspec.structs.fields(Policy)
    for kind in get_args(field.type)
    if get_origin(kind) is Literal
}


def check(policy: Policy, where: str) -> Policy:
    """Refuse impossible values when they are said, not when they bite."""
    for name in Policy.__struct_fields__:
        if (value := getattr(policy, name)) is not None:
            _check_field(name, value, f"{where}.{name}")
    return policy


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


def _check_rate(field: str, rate: object) -> None:
    if not isinstance(rate, Rate):
        raise InvalidOption(field=field, problem=f"{rate!r} is not a redrive.Rate(count, per)")
    try:
        check_range("count", rate.count, 1, MOST)
        check_number("per", rate.per, above=True)
    except InvalidOption as error:
        raise InvalidOption(field=field, problem=str(error)) from None
