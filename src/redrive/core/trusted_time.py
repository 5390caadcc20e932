"""Decides which time may be used for destroying.

A wall clock can be wrong: set ahead by a person, by NTP, by a battery that died. Whatever is deleted, buried or
forgotten because of its age is gone for good, so a new time must have held before it counts for that. Retries, leases
and schedules follow the wall clock at once and do not ask here.
"""

from __future__ import annotations

from typing import Final

import msgspec

HOUR: Final = 3600.0
DAY: Final = 86400.0
JUMP: Final = 300.0
"""Seconds by which the wall clock may differ from the steady one before it counts as a jump."""
AWAY: Final = 36 * HOUR
"""The longest time without any process that is believed at once: scripts run each night on machines that are switched
off by day."""


class ClockReading(msgspec.Struct, frozen=True):
    """Both clocks of a machine, read at one moment by one process."""

    wall: float
    steady: float = 0.0
    """Seconds since the machine started, those of its sleep included."""
    process: str = ""
    boot: str | None = None
    """Names the start of the machine; None where it is not known, and the steady clock counts in its process only."""
    began: float = 0.0
    """The steady clock when the process began."""


class ClockHold(msgspec.Struct, frozen=True):
    """A new time that has not held long enough yet."""

    since: float
    """The wall clock when the new time was seen first."""
    seconds: float
    """By how much the wall clock differs from what was expected; negative where it went back."""
    jumped: bool
    """The clock was set. False where it may as well be that no process ran for so long."""
    origin: float
    """The steady clock when the new time was seen first, as the latest reading counts."""
    latest: ClockReading


class ClockRecord(msgspec.Struct, frozen=True):
    """What is known of the clock: the last reading that was trusted, and a new time that must hold first."""

    trusted: ClockReading
    hold: ClockHold | None = None


def advance(record: ClockRecord, now: ClockReading) -> ClockRecord:
    """Adds a reading to the record: the new time is trusted, goes on being held, or begins to be held."""
    hold = record.hold
    if hold is not None:
        if _fits(hold.latest, now):
            hold = _continue(hold, now)
            return ClockRecord(now) if _has_held(hold, now) else ClockRecord(record.trusted, hold)
        if _agree(hold.latest, now) and _has_held(_continue(hold, now), now):
            record = ClockRecord(hold.latest)  # the time of that reading has held; what came later has not
    if _fits(record.trusted, now):
        return ClockRecord(now)
    return _begin_hold(record.trusted, now)


def time_for_destroying(record: ClockRecord, now: ClockReading) -> float:
    """Gives the time by which something may be old enough to be destroyed. It is never ahead of the wall clock."""
    record = advance(record, now)
    if record.hold is None:
        return now.wall
    return min(now.wall, record.trusted.wall + _explained(record.trusted, now))


def describe(hold: ClockHold) -> str:
    """Says what was seen and what it means."""
    way = "ahead" if hold.seconds > 0 else "back"
    what = f"The clock jumped {way} by {_span(abs(hold.seconds))}"
    if not hold.jumped:
        what = f"The clock is {_span(hold.seconds)} later than when it was read last: no process ran, or it was set"
    return (
        f"{what}. Nothing is deleted, buried or forgotten for its age until this time has held for a day, "
        "or a process starts again an hour later; retries and schedules follow it. If it is wrong, set the clock."
    )


def _span(seconds: float) -> str:
    for size, unit in ((DAY, "days"), (HOUR, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _begin_hold(trusted: ClockReading, now: ClockReading) -> ClockRecord:
    """Starts to hold a new time. One behind the trusted time cannot destroy too much, so it replaces that at once."""
    difference = now.wall - trusted.wall - _explained(trusted, now)
    jumped = difference < 0 or (_comparable(trusted, now) and not _agree(trusted, now))
    hold = ClockHold(now.wall, difference, jumped, now.steady, now)
    return ClockRecord(now if difference < 0 else trusted, hold)


def _continue(hold: ClockHold, now: ClockReading) -> ClockHold:
    """The origin counts by the steady clock of the latest reading: after a restart of the machine that began anew."""
    origin = hold.origin
    if not _comparable(hold.latest, now):
        origin += now.steady - hold.latest.steady - _elapsed(hold.latest, now)
    return msgspec.structs.replace(hold, origin=origin, latest=now)


def _has_held(hold: ClockHold, now: ClockReading) -> bool:
    """A day of living processes, or a start that came an hour later by both clocks."""
    started_later = now.began - hold.origin >= HOUR and now.wall - hold.since >= HOUR
    return started_later or now.steady - hold.origin >= DAY


def _fits(before: ClockReading, now: ClockReading) -> bool:
    """Whether the wall clock has gone on as it should have."""
    difference = now.wall - before.wall - _explained(before, now)
    return -JUMP <= difference <= (JUMP if _comparable(before, now) else AWAY)


def _agree(before: ClockReading, now: ClockReading) -> bool:
    """Whether both clocks say the same about the time between two readings, as far as they can be compared."""
    difference = now.wall - before.wall - _elapsed(before, now)
    return difference >= -JUMP and (difference <= JUMP or not _comparable(before, now))


def _explained(before: ClockReading, now: ClockReading) -> float:
    """Seconds that the steady clock vouches for. Time in which no process ran counts up to a limit."""
    elapsed = _elapsed(before, now)
    return elapsed if before.process == now.process else min(elapsed, AWAY)


def _elapsed(before: ClockReading, now: ClockReading) -> float:
    """Seconds that have passed at least, by the steady clock alone."""
    if _comparable(before, now):
        return now.steady - before.steady
    return now.steady if before.boot and now.boot else 0.0


def _comparable(before: ClockReading, now: ClockReading) -> bool:
    return before.process == now.process or (now.boot is not None and before.boot == now.boot)
