"""Schedules as values: what `redrive.cron` says, where a schedule stands, and which of its due slots are run.

A slot is the instant at which a cron line fires, in seconds since the epoch. Reading cron lines is runtime's part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, get_args

import msgspec

from redrive.core.checks import check_choice, check_name, check_number, check_range
from redrive.core.job import Json
from redrive.errors import InvalidOption, InvalidPayload

CatchUp = Literal["latest", "skip", "all"]
CAP: Final = 100
MOST: Final = 1_000
"""No schedule catches up on more slots than this at once."""
ON_TIME: Final = 60.0
"""A slot that no worker took within so many seconds was missed."""
SLOT_HEADER: Final = "redrive-slot"
REMEMBERED: Final = 5
"""How many lines of one schedule are remembered: during a deploy, old and new code mind their own side by side."""


class Cron(msgspec.Struct, frozen=True):
    """One schedule of a task, as `redrive.cron` made it."""

    line: str
    tz: str = "UTC"
    payload: Mapping[str, Json] = {}
    catch_up: CatchUp = "latest"
    cap: int = CAP
    overlap: bool = False
    jitter: float = 0.0


def cron(
    line: str,
    *,
    tz: str = "UTC",
    payload: Mapping[str, Json] | None = None,
    catch_up: CatchUp = "latest",
    cap: int = CAP,
    overlap: bool = False,
    jitter: float | timedelta = 0.0,
) -> Cron:
    """When a task runs by itself: `@rd.task(schedule=redrive.cron("0 3 * * *", tz="Europe/Rome"))`.

    `line` has five fields or is a nickname such as `@daily`. Every slot becomes one job with this payload, whatever
    the number of workers; the job finds its slot in `ctx.slot`. Only workers fire schedules.

    Slots that passed while no worker ran: `catch_up="latest"` runs the last one, "skip" none, "all" each one, oldest
    first, but no more than the newest `cap`. With `overlap=False` a slot is skipped while an earlier job of this
    schedule waits, runs or is held; where all are to be caught up, it waits for its turn instead. `jitter` delays the
    jobs of a schedule by a part of so many seconds, always the same part.
    """
    check_name("schedule", line)
    check_name("schedule.tz", tz)
    if payload is not None and not isinstance(payload, Mapping):
        raise InvalidPayload(field="schedule.payload", problem=f"must be a JSON object, not {type(payload).__name__}")
    check_choice("schedule.catch_up", catch_up, get_args(CatchUp))
    check_range("schedule.cap", cap, 1, MOST)
    if not isinstance(overlap, bool):
        raise InvalidOption(field="schedule.overlap", problem=f"{overlap!r} is neither True nor False")
    seconds = jitter.total_seconds() if isinstance(jitter, timedelta) else jitter
    check_number("schedule.jitter", seconds, 0, 86_400)
    return Cron(line.strip(), tz, dict(payload or {}), catch_up, cap, overlap, float(seconds))


# ---- names and times


def schedule_name(task: str, number: int) -> str:
    """`nightly#0`: the task and which of its schedules."""
    return f"{task}#{number}"


def slot_text(slot: float) -> str:
    """A slot in ISO 8601, UTC."""
    return datetime.fromtimestamp(slot, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def slot_key(name: str, slot: float) -> str:
    """The idempotency key of a slot's job: the same in every process, so that one of them makes it."""
    return f"{name}@{slot_text(slot)}"


def run_at(name: str, cron: Cron, slot: float) -> float:
    """The slot plus this schedule's own part of the jitter: not by chance, so that repeats agree."""
    part = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
    return slot + cron.jitter * part


# ---- where a schedule stands


class Mark(msgspec.Struct, frozen=True):
    """Everything up to `last` is dealt with, as far as this line is concerned."""

    line: str
    tz: str
    last: float


class ScheduleState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the store keeps of a schedule."""

    marks: tuple[Mark, ...] = ()
    """Of its lines, the newest last."""
    pending: tuple[float, ...] = ()
    """Slots that are decided and perhaps not yet jobs; making a job twice is harmless."""
    slot: float | None = None
    """The last slot that became a job."""
    job: str | None = None
    note: str | None = None
    """What was left out last, in words."""

    def mark_of(self, cron: Cron) -> Mark | None:
        return next((mark for mark in self.marks if (mark.line, mark.tz) == (cron.line, cron.tz)), None)

    def is_newest(self, mark: Mark) -> bool:
        return mark is self.marks[-1]

    def begun(self, cron: Cron, now: float) -> ScheduleState:
        """A line that counts from now on: nothing of its past is run."""
        others = tuple(mark for mark in self.marks if mark is not self.mark_of(cron))
        marks = (*others, Mark(cron.line, cron.tz, now))[-REMEMBERED:]
        return msgspec.structs.replace(self, marks=marks)

    def decided(self, cron: Cron, due: Due, note: str | None) -> ScheduleState:
        """Dealt with up to there; what is to run is pending."""
        marks = tuple(Mark(mark.line, mark.tz, due.upto) if mark is self.mark_of(cron) else mark for mark in self.marks)
        return msgspec.structs.replace(self, marks=marks, pending=due.run, note=note or self.note)

    def handed_in(self, slot: float, job: str) -> ScheduleState:
        """Nothing is pending any more; this was the last."""
        return msgspec.structs.replace(self, pending=(), slot=slot, job=job)


# ---- which slots run


class Due(msgspec.Struct, frozen=True):
    """What becomes of the slots that are due."""

    run: tuple[float, ...]
    left_out: int
    upto: float
    """The last slot that is dealt with by this; later ones are looked at again."""


def due_slots(cron: Cron, slots: Sequence[float], now: float) -> Due:
    """`slots` are all that are due and not dealt with, in order, at least one."""
    if cron.catch_up == "all":
        return _catch_up(cron, slots)
    chosen = slots[-1:] if cron.catch_up == "latest" or now - slots[-1] <= ON_TIME else []
    return Due(tuple(chosen), len(slots) - len(chosen), slots[-1])


def _catch_up(cron: Cron, slots: Sequence[float]) -> Due:
    """The newest, oldest first; one at a time where they must not overlap."""
    chosen = slots[-cron.cap :]
    left_out = len(slots) - len(chosen)
    run = tuple(chosen if cron.overlap else chosen[:1])
    return Due(run, left_out, run[-1])


def skip_all(slots: Sequence[float]) -> Due:
    """None of them: an earlier job of the schedule is not over yet."""
    return Due((), len(slots), slots[-1])
