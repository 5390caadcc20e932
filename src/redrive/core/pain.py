"""Pain signals as values: what hurts, since when, and when it is told again. Nothing here reads a clock or writes."""

from __future__ import annotations

import shlex
from typing import Final

import msgspec

from redrive.core.job import iso
from redrive.core.notice import Notice
from redrive.errors import InvalidInput

REPEAT_AFTER: Final = 300.0
"""A pain that lasts is told again after so long, then after twice as long, and so on."""
LONGEST_PAUSE: Final = 6 * 3600.0
WORSE: Final = 0.25
"""A pain whose severity has grown by so much is told again at once."""
PAIN: Final = "pain."
"""So the ids of notices about pains begin; the key of the pain follows."""


class Pain(msgspec.Struct, frozen=True):
    """A reliability signal: something hurts, in one queue or in all of them."""

    kind: str
    queue: str
    severity: float
    message: str
    about: str = ""
    """What hurts where it is no queue: a process, a cycle, what does not answer."""

    @property
    def key(self) -> str:
        """The same for the same pain, whatever its number is."""
        return f"{self.kind}/{self.about or self.queue}"


class SignalPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a pain does without code, beside what it tells people."""

    run: str = ""
    """A command, split as a shell would and started without one, with the pain as JSON on its standard input."""
    enqueue: str = ""
    """The name of a task that is enqueued with the pain, health, the group and the last errors as its payload."""


def check_signals(policy: SignalPolicy) -> None:
    """Refuses what could only fail when it hurts."""
    try:
        words = shlex.split(policy.run)
    except ValueError as error:
        raise InvalidInput(field="signals.run", problem=f"cannot be read as a command: {error}") from None
    if policy.run and not words:
        raise InvalidInput(field="signals.run", problem="names no command")
    if policy.enqueue and not policy.enqueue.strip():
        raise InvalidInput(field="signals.enqueue", problem="names no task")


class Hurting(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pain that was told and is not over: the store's document of kind "pain"."""

    since: float
    told_at: float
    times: int = 1
    severity: float = 0.0
    about: str = ""
    """What it names beside its queue, such as a breaker."""
    acted: tuple[str, ...] = ()
    """What `[signals]` has done about it: `run`, `enqueue`."""


def record_telling(pain: Pain, known: Hurting | None, now: float) -> Hurting | None:
    """The pain as it is remembered once it was told now; None where it is too early to tell it again."""
    if known is None:
        return Hurting(now, now, severity=pain.severity, about=pain.about or pain.queue)
    pause = min(REPEAT_AFTER * 2.0 ** (known.times - 1), LONGEST_PAUSE)
    worse = pain.severity >= known.severity + WORSE
    if not worse and abs(now - known.told_at) < pause:  # a clock that was ahead and was put right keeps nothing quiet
        return None
    return msgspec.structs.replace(known, told_at=now, times=known.times + 1, severity=pain.severity)


def notice_of(pain: Pain, hurting: Hurting) -> Notice:
    """What people are told. The same pain waits once, however often it is told anew before a channel takes it."""
    title = pain.message.partition(";")[0][:200]
    return Notice(
        f"{PAIN}{pain.key}",
        pain.kind,
        "actionable",
        "user",
        title,
        pain.message,
        hurting.since,
        pain.queue,
        turn=hurting.times,
        severity=pain.severity,
    )


def read_subject(notice: Notice) -> str:
    """What a notice of a pain is about beside its queue, such as a breaker or a process."""
    name = notice.id.removeprefix(PAIN).partition("/")[2] if notice.id.startswith(PAIN) else ""
    return name if name != notice.queue else ""


def write_end_notice(key: str, hurting: Hurting, message: str, now: float) -> Notice:
    """What people are told when a pain has ended."""
    kind = key.partition("/")[0]
    return Notice(
        f"over.{key}.{int(now * 1000):x}",
        f"{kind}_over",
        "acknowledgement",
        "user",
        message,
        f"{message}; it was down since {iso(hurting.since)}",
        now,
    )
