"""Reads the clocks and stores the record by which core/trusted_time decides what may be destroyed."""

from __future__ import annotations

import logging
import os
import secrets
from typing import Final

from redrive.core.commit import try_commit
from redrive.core.documents import Kind
from redrive.core.store import Store
from redrive.core.trusted_time import ClockHold, ClockReading, ClockRecord, advance, describe
from redrive.core.trusted_time import time_for_destroying as decide
from redrive.engine.clock import Clock, SystemClock

log = logging.getLogger("redrive.clock")
TRUSTED_TIME: Final = Kind[ClockRecord]("trusted_time", ClockRecord)
KEY: Final = "record"
_PROCESS: Final = secrets.token_hex(8)
EARLIER: Final = 1000
"""Number of latest moves that are searched for one made before this process began."""
_first: dict[str, ClockReading] = {}
"""First reading of each clock of this process."""
_met: list[Clock] = []
"""Clocks other than the system's, kept alive: a new clock at the address of a lost one would be taken for it."""


def meet_clock(clock: Clock) -> ClockReading:
    """Keeps the first reading of a clock in this process: from then on its own steady clock vouches for it."""
    now = _read(clock, 0.0)
    reading = _first.get(now.process)
    if reading is None:
        reading = _first[now.process] = _read(clock, now.steady)
        if not isinstance(clock, SystemClock):
            _met.append(clock)
    return reading


def read_clock(clock: Clock) -> ClockReading:
    """Reads the wall clock and the steady clock."""
    return _read(clock, meet_clock(clock).began)


async def observe_clock(store: Store, clock: Clock, *, write: bool = True) -> ClockRecord:
    """Reads the clocks, adds the reading to the record and logs a jump. Returns the record as it was before."""
    kept = await TRUSTED_TIME.get(store, KEY)
    before = kept.value if kept else await _first_record(store, clock)
    after = advance(before, read_clock(clock))
    told = _log_hold_change(before if kept else ClockRecord(before.trusted), after)
    if write or told or kept is None:
        put = TRUSTED_TIME.put(KEY, after, kept.version if kept else None)
        await try_commit(store, puts=[put], what="the time was noted")  # another process's reading is as good
    return before


async def time_for_destroying(store: Store, clock: Clock) -> float:
    """Returns the time by which something may be old enough to be deleted, made a dead letter or forgotten."""
    return decide(await observe_clock(store, clock, write=False), read_clock(clock))


async def read_clock_jump(store: Store) -> ClockHold | None:
    """Returns the jump of the clock that is not trusted yet (since when, and by how much), or None."""
    kept = await TRUSTED_TIME.get(store, KEY)
    hold = kept.value.hold if kept else None
    return hold if hold is not None and hold.jumped else None


async def _first_record(store: Store, clock: Clock) -> ClockRecord:
    """Makes the record where no process has read the clock yet: the latest move of a job says what time it was."""
    first = meet_clock(clock)
    earlier = [event.at for event in await store.latest(EARLIER) if event.at < first.wall]
    return advance(ClockRecord(ClockReading(max(earlier))), first) if earlier else ClockRecord(first)


def _log_hold_change(before: ClockRecord, after: ClockRecord) -> bool:
    """Logs the beginning or the end of a hold on the clock's new time; returns whether there was something to log."""
    if after.hold is not None and (before.hold is None or before.hold.since != after.hold.since):
        log.warning("%s", describe(after.hold))
        return True
    if before.hold is not None and after.hold is None:
        log.warning("the clock is trusted again: what is old enough by it is deleted, buried and forgotten from now on")
        return True
    return False


def _read(clock: Clock, began: float) -> ClockReading:
    if isinstance(clock, SystemClock):
        return ClockReading(clock.now(), clock.uptime(), f"{_PROCESS}.{os.getpid()}", clock.boot(), began)
    return ClockReading(clock.now(), clock.monotonic(), f"{_PROCESS}.{os.getpid()}.{id(clock):x}", None, began)
