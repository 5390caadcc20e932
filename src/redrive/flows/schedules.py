"""Reads cron lines and turns their slots into jobs: one job per slot, however many processes look.

A schedule's document says up to where its slots are dealt with. The process that moves the document on (compare and
set) has decided; a decided slot stands there as pending until it is a job, under a key that names the slot. So a
process may die at any point.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from redrive.core import schedule as rules
from redrive.core.commit import commit, try_commit
from redrive.core.documents import SCHEDULE
from redrive.core.job import At, Job, Json, State
from redrive.core.schedule import ON_TIME, SLOT_HEADER, Cron, Due, Mark, ScheduleState
from redrive.core.store import Document, Filter, Store
from redrive.core.times import zone_of
from redrive.core.view import Shown
from redrive.engine.bus import BusEvent
from redrive.engine.paging import read_jobs
from redrive.engine.registry import Registry
from redrive.errors import InvalidOption
from redrive.jobs.core import Core

log = logging.getLogger("redrive.scheduler")
BEYOND: Final = 1_000
"""How many slots beyond the cap are counted exactly when they are left out."""
OPEN: Final = (State.running, State.held, State.waiting)

# ---- cron lines

_NICKNAMES: Final[Mapping[str, str]] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@lru_cache(maxsize=1024)
def next_slot(line: str, tz: str, after: float) -> float:
    """Returns when a cron line (five fields or a nickname) fires next after an instant; it fires once when DST ends."""
    slot = next(_slots(line, tz, after), None)
    if slot is None:
        raise InvalidOption(field="schedule", problem=f"{line!r} is not a cron line: it never fires")
    return slot


def _slots(line: str, tz: str, after: float) -> Iterator[float]:
    """Yields every slot after an instant, in order."""
    from cronsim import CronSim, CronSimError

    expression = _NICKNAMES.get(line.strip(), line)
    zone = zone_of("schedule.tz", tz)
    try:
        if len(expression.split()) != 5:
            raise CronSimError("needs five fields")
        slots = CronSim(expression, datetime.fromtimestamp(after, zone))
    except CronSimError as error:
        raise InvalidOption(field="schedule", problem=f"{line!r} is not a cron line: {error}") from None
    for time in slots:
        slot = time.timestamp()
        if slot > after:  # in the hour that comes twice, cronsim begins with the first one
            yield slot


def slots_between(line: str, tz: str, after: float, until: float, most: int) -> list[float]:
    """Returns the newest slots in (after, until], in order, at most `most`; it looks at few more than those."""
    width = 3600.0
    while True:
        start = max(after, until - width)
        slots: list[float] = []
        for slot in _slots(line, tz, start):
            if slot > until:
                break
            slots.append(slot)
        if start == after or len(slots) >= most:
            return slots[-most:]
        width *= 2


# ---- the duty

Enqueue = Callable[[str, Mapping[str, Json], dict[str, Any]], Awaitable[str]]
"""(task, payload, options) → the id of the slot's job, new or known."""


class Schedules:
    """Makes jobs of the due slots of the schedules that this process knows."""

    def __init__(self, core: Core, enqueue: Enqueue) -> None:
        self._core = core
        self._enqueue = enqueue

    async def mind(self) -> int:
        """Make jobs of the slots that are due; return how many. A schedule that fails does not stop the others."""
        known = list(_list_registered(self._core.registry))
        if not known:
            return 0
        documents = {document.key: document for document in await self._core.store.docs(SCHEDULE.name)}
        made, failed = 0, None
        for name, task, cron in known:
            try:
                made += await _Schedule(self._core, self._enqueue, name, task, cron).look(documents.get(name))
            except Exception as error:  # noqa: BLE001 - logged here, and raised to the scheduler after all had a turn
                log.warning("schedule %s failed and will be tried again: %s", name, error)
                failed = error
        if failed is not None:
            raise failed
        return made


class _Schedule:
    """One schedule, looked at once."""

    def __init__(self, core: Core, enqueue: Enqueue, name: str, task: str, cron: Cron) -> None:
        self._core = core
        self._store = core.store
        self._enqueue = enqueue
        self._now = core.clock.now()
        self._name = name
        self._task = task
        self._cron = cron

    async def look(self, document: Document | None) -> int:
        """Make jobs of the due slots; return how many."""
        standing = SCHEDULE.decode(document.value) if document is not None else ScheduleState()
        version = document.version if document is not None else 0
        if standing.pending:  # decided by a process that may be gone
            return await self._hand_in()
        begun = self._begin(standing)
        if begun is not None:
            await self._save(begun, version)
            return 0
        decision = await self._decide(standing)
        if decision is None:
            return 0
        due, note = decision
        if not await self._save(standing.decided(self._cron, due, note), version):
            return 0  # another process was faster: its decision counts
        if note is not None:
            self._report(due, note)
        return await self._hand_in() if due.run else 0

    def _begin(self, standing: ScheduleState) -> ScheduleState | None:
        """Begin anew where the line is new, was replaced for a while, or the clock has gone back; else None."""
        cron, now, mark = self._cron, self._now, standing.mark_of(self._cron)
        if mark is None:
            return standing.begun(cron, now)
        if mark.last > now + ON_TIME:
            log.warning("schedule %s: the clock went back %.0f s; it goes on from now", self._name, mark.last - now)
            return standing.begun(cron, now)
        replaced = not standing.is_newest(mark) and next_slot(cron.line, cron.tz, mark.last) < now - ON_TIME
        return standing.begun(cron, now) if replaced else None

    async def _decide(self, standing: ScheduleState) -> tuple[Due, str | None] | None:
        """Decide about the due slots, with a note for people; None where there is nothing to decide."""
        cron, mark = self._cron, standing.mark_of(self._cron)
        if mark is None or next_slot(cron.line, cron.tz, mark.last) > self._now:
            return None
        earlier = None if cron.overlap else await self._open_job(standing)
        if earlier is not None and cron.catch_up == "all":
            return None  # it waits for its turn
        slots = slots_between(cron.line, cron.tz, mark.last, self._now, cron.cap + BEYOND)
        if earlier is not None:
            return rules.skip_all(
                slots
            ), f"{_describe_slots(slots)} skipped: job {earlier.short_id} is still {earlier.state}"
        due = rules.due_slots(cron, slots, self._now)
        return due, _describe_left_out(cron, due, slots)

    async def _open_job(self, standing: ScheduleState) -> Job | None:
        """Find an earlier job of this schedule that is not over. A dead letter blocks nothing."""
        last = await self._store.get([standing.job]) if standing.job else []
        if last and last[0].state in OPEN:
            return last[0]
        for state in OPEN:
            slots = Filter(states=(state,), task=self._task, reason="scheduled_job")
            async for job in read_jobs(self._store, slots, 100):
                if (job.key or "").startswith(f"{self._name}@"):
                    return job
        return None

    async def _hand_in(self) -> int:
        """Make jobs of the pending slots, oldest first; those that exist already stay as they are."""
        kept = await SCHEDULE.get(self._store, self._name)
        if kept is None or not kept.value.pending:
            return 0  # another process did it
        standing = kept.value
        made = [await self._enqueue(self._task, self._cron.payload, self._options(slot)) for slot in standing.pending]
        await self._save(standing.handed_in(standing.pending[-1], made[-1]), kept.version)
        return len(made)

    def _options(self, slot: float) -> dict[str, Any]:
        return {
            "idempotency_key": rules.slot_key(self._name, slot),
            "run_at": datetime.fromtimestamp(rules.run_at(self._name, self._cron, slot), UTC),
            "headers": {SLOT_HEADER: rules.slot_text(slot)},
        }

    async def _save(self, standing: ScheduleState, version: int) -> bool:
        """Write the document; False where another process moved the schedule on meanwhile."""
        put = SCHEDULE.put(self._name, standing, version)
        return await try_commit(self._store, puts=[put], what=f"schedule {self._name} went on") is not None

    def _report(self, due: Due, note: str) -> None:
        log.warning("schedule %s: %s", self._name, note)
        queue = self._core.registry.handlers[self._task].queue
        data = {"schedule": self._name, "why": note, "left_out": due.left_out}
        self._core.bus.publish(BusEvent("schedule_skipped", queue, self._now, None, self._task, 0, data))


def _list_registered(registry: Registry) -> Iterator[tuple[str, str, Cron]]:
    for handler in list(registry.handlers.values()):
        for number, cron in enumerate(handler.schedules):
            yield rules.schedule_name(handler.name, number), handler.name, cron


def _describe_slots(slots: Sequence[float]) -> str:
    last = rules.slot_text(slots[-1])
    return f"slot {last}" if len(slots) == 1 else f"{len(slots)} slots up to {last}"


def _describe_left_out(cron: Cron, due: Due, slots: Sequence[float]) -> str | None:
    if not due.left_out:
        return None
    number = f"{due.left_out} or more" if len(slots) == cron.cap + BEYOND else str(due.left_out)
    reached = "none of them is run" if cron.catch_up == "skip" else "only the last is run"
    done = f"no more than {cron.cap} are caught up on" if cron.catch_up == "all" else reached
    return f"{number} slots from {rules.slot_text(slots[0])} were missed and left out: {done}"


# ---- looking


class Scheduled(Shown, msgspec.Struct, frozen=True):
    """A schedule as it stands."""

    name: str
    task: str
    line: str
    tz: str
    last_slot: At | None
    """The last slot that became a job."""
    next_slot: At | None
    due_since: At | None
    """A slot that should have been taken by now: no worker has this schedule, or an earlier job is not over."""
    job: str | None
    state: State | None
    """Of that job."""
    note: str | None
    """What was left out last, in words."""


async def list_schedules(core: Core) -> list[Scheduled]:
    """Lists by name the schedules that the store knows or this process has registered."""
    now = core.clock.now()
    standings = {name: standing for name, standing, _ in await SCHEDULE.all(core.store)}
    for name, _, cron in _list_registered(core.registry):
        standings[name] = _with_line(standings.get(name, ScheduleState()), cron, now)
    return await _describe(core.store, standings, now)


async def missed_schedules(store: Store, before: float, now: float) -> list[Scheduled]:
    """Lists the schedules with a slot from before then that no worker took, unless an earlier job is not over."""
    standings: dict[str, ScheduleState] = {}
    for document in await store.docs(SCHEDULE.name):
        try:
            standings[document.key] = SCHEDULE.decode(document.value)
        except msgspec.MsgspecError as error:
            log.warning("schedule %s cannot be read: %s", document.key, error)
    schedules = await _describe(store, standings, now)
    late = [schedule for schedule in schedules if schedule.due_since is not None and schedule.due_since < before]
    return [schedule for schedule in late if schedule.state not in OPEN]


async def _describe(store: Store, standings: Mapping[str, ScheduleState], now: float) -> list[Scheduled]:
    jobs = {job.id: job for job in await store.get([kept.job for kept in standings.values() if kept.job])}
    return [_describe_one(name, standings[name], jobs, now) for name in sorted(standings)]


def _with_line(standing: ScheduleState, cron: Cron, now: float) -> ScheduleState:
    """Puts the line that this process has registered last, also before a worker has seen it."""
    mark = standing.mark_of(cron)
    if mark is None:
        return standing.begun(cron, now)
    others = tuple(other for other in standing.marks if other is not mark)
    return msgspec.structs.replace(standing, marks=(*others, mark))


def _describe_one(name: str, standing: ScheduleState, jobs: Mapping[str, Job], now: float) -> Scheduled:
    mark = standing.marks[-1]
    job, task = jobs.get(standing.job or ""), name.rpartition("#")[0]
    state = job.state if job else None
    waits, following = _known_slot(mark, mark.last), _known_slot(mark, now)
    late = waits if waits is not None and waits < now - ON_TIME else None
    slots = (standing.slot, following, late)
    return Scheduled(name, task, mark.line, mark.tz, *slots, standing.job, state, standing.note)


def _known_slot(mark: Mark, after: float) -> float | None:
    """Returns the next slot; None where this machine cannot read the line: it may lack the time zone."""
    try:
        return next_slot(mark.line, mark.tz, after)
    except InvalidOption:
        return None


async def forget_schedule(store: Store, name: str) -> bool:
    """Drops what is known of a schedule that no code has any more; False where nothing was."""
    if await SCHEDULE.get(store, name) is None:
        return False
    await commit(store, puts=[SCHEDULE.drop(name)], what=f"schedule {name} was forgotten")
    return True
