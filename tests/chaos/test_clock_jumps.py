"""The system's clock jumps by an hour or ten years: no job early, none stuck, no lease lost because of it.

Early is what starts before its time as the clock shows it then; stuck is what has not started although its whole
delay has passed, counted from the jump at the latest, on a clock that does not jump.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import BusEvent, JobHandle, Redrive
from redrive.core.store import Wanted
from redrive.runtime.scheduler import Scheduler
from redrive.stores.sqlite import SqliteStore
from tests.chaos.app import make_app
from tests.chaos.ledger import audit
from tests.chaos.processes import until

pytestmark = pytest.mark.chaos

HOUR = 3_600.0
YEARS = 10 * 365 * 86_400.0
JUMPS = pytest.mark.parametrize("jump", [HOUR, -HOUR, YEARS, -YEARS], ids=["+1h", "-1h", "+10y", "-10y"])
DELAY = 100.0


class Time:
    """The machine's two clocks: one that people and NTP set, one that only counts. Given to the app as its clock."""

    def __init__(self, wall: float = 1_800_000_000.0) -> None:
        self.wall = wall
        self.steady = 1_000.0

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def jump(self, seconds: float) -> None:
        self.wall += seconds

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def chance(self) -> float:
        return 0.5


class World:
    """One process that lives through whatever the clock does, driven step by step."""

    def __init__(self, folder: Path) -> None:
        self.time = Time()
        self.rd, self.ledger = make_app(folder, clock=self.time)
        self.scheduler: Scheduler | None = None
        self.early: list[str] = []
        self.due: dict[str, float] = {}
        """When each job may start, as it was when somebody looked last."""
        self.rd.subscribe("completed", self._judge)

    def _judge(self, event: BusEvent) -> None:
        if event.at < self.due[str(event.job_id)]:
            self.early.append(f"{event.job_id} ran {self.due[str(event.job_id)] - event.at:g} s early")

    async def hand_in(self, delay: float) -> str:
        handle = await self.rd.enqueue("work", {"n": 0}, delay=delay)
        self.ledger.accepted([handle.id])
        return handle.id

    async def look(self) -> None:
        """What a scheduler and a worker do from time to time."""
        if self.scheduler is None:
            self.scheduler = self.rd.make_scheduler(self.rd.make_worker())
        await self.scheduler.mind_the_clock()
        async for job in self.rd.store.scan():
            self.due[job.id] = job.run_at
        await self.rd.drain()

    def starts(self) -> int:
        return len(self.ledger.read().starts)


@JUMPS
async def test_a_delayed_job_is_neither_early_nor_stuck(folder: Path, jump: float) -> None:
    world = World(folder)
    async with world.rd:
        await world.hand_in(DELAY)
        world.time.pass_(DELAY / 4)
        await world.look()
        assert world.starts() == 0
        world.time.jump(jump)
        await world.look()
        world.time.pass_(DELAY - 1)
        await world.look()
        assert world.starts() == (1 if jump > 0 else 0), "after a jump back, the delay counts from there"
        world.time.pass_(2)
        await world.look()
        assert world.starts() == 1
        (await audit(world.rd, world.ledger)).assert_sound()
    assert world.early == []


async def test_control_nobody_minds_the_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Scheduler) -> None:
        return

    monkeypatch.setattr(Scheduler, "mind_the_clock", nothing)
    world = World(folder)
    async with world.rd:
        await world.hand_in(DELAY)
        world.time.jump(-HOUR)
        await world.look()
        world.time.pass_(2 * DELAY)
        await world.look()
        assert world.starts() == 0
        assert (await audit(world.rd, world.ledger)).problems


async def test_control_a_worker_ahead_of_the_clock_is_early(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge must see it: claims made for an hour from now."""
    real = SqliteStore.claim

    async def ahead(self: SqliteStore, wanted: Wanted, worker: str, now: float) -> Any:
        return await real(self, wanted, worker, now + HOUR)

    monkeypatch.setattr(SqliteStore, "claim", ahead)
    world = World(folder)
    async with world.rd:
        await world.hand_in(DELAY)
        await world.look()
    assert len(world.early) == 1


async def test_a_clock_that_is_set_again_and_again(folder: Path, seed: int, size: Callable[[int, int], int]) -> None:
    rng, world = random.Random(seed), World(folder)
    async with world.rd:
        for _ in range(size(15, 1_000)):
            await world.hand_in(rng.uniform(0, DELAY))
            world.time.jump(rng.choice((-YEARS, -HOUR, -60.0, 60.0, HOUR, YEARS)) * rng.random())
            world.time.pass_(rng.uniform(0, DELAY))
            await world.look()
        world.time.pass_(DELAY + 1)
        await world.look()
        found = (await audit(world.rd, world.ledger)).assert_sound()
    assert world.early == []
    assert found.extra_starts == 0


# ---- a clock that was wrong, in another process ----


async def from_elsewhere(folder: Path, ahead: float) -> str:
    """A job from a producer whose clock was ahead by so much."""
    time = Time()
    time.jump(ahead)
    rd, ledger = make_app(folder, clock=time)
    async with rd:
        handle = await rd.enqueue("work", {"n": 0})
        ledger.accepted([handle.id])
    return handle.id


async def is_done(rd: Redrive, job_id: str) -> None:
    async def ended() -> bool:
        return (await rd.jobs.get(job_id)).ended

    await until(f"job {job_id} ends", ended, 10.0)
    assert (await rd.jobs.get(job_id)).state == "done"


@pytest.mark.parametrize("ahead", [HOUR, YEARS], ids=["1h", "10y"])
async def test_a_producer_from_the_future_leaves_nothing_stuck(folder: Path, ahead: float) -> None:
    """It never ran a scheduler, so nobody noted what time it thought it was."""
    job = await from_elsewhere(folder, ahead)
    rd, _ = make_app(folder, clock=Time())
    async with rd, rd.worker():
        await is_done(rd, job)


async def test_one_producer_from_the_future_among_others(folder: Path) -> None:
    """Others handed in after it, by the right clock, before anybody looked."""
    job = await from_elsewhere(folder, YEARS)
    for _ in range(3):
        await from_elsewhere(folder, 0.0)
    rd, _ = make_app(folder, clock=Time())
    async with rd, rd.worker():
        await is_done(rd, job)


async def test_a_restart_after_the_clock_was_set_right(folder: Path) -> None:
    """Worker and scheduler ran by the wrong clock, retried by it, and stopped; the next ones have the right one."""
    time = Time()
    time.jump(YEARS)
    rd, ledger = make_app(folder, clock=time)
    async with rd, rd.worker():
        handle: JobHandle[Any] = await rd.enqueue("work", {"n": 0}, delay=1)
        ledger.accepted([handle.id])
        done = await rd.enqueue("work", {"n": 1})
        ledger.accepted([done.id])
        await done.result(timeout=30)
    rd, ledger = make_app(folder, clock=(right := Time()))
    async with rd, rd.worker() as worker:
        await until("somebody minded the clock", lambda: _waits_for(rd, handle.id, right.wall + 1))
        right.pass_(2.0)
        worker.nudge()
        await is_done(rd, handle.id)
        (await audit(rd, ledger)).assert_sound()


async def _waits_for(rd: Redrive, job_id: str, at: float) -> bool:
    return (await rd.jobs.get(job_id)).run_at <= at


# ---- leases ----


async def lapsed_after(jump: float, folder: Path, clock_of: Callable[[Time], Callable[[], float]]) -> int:
    """A live process runs a job; another one, which observes it, lives through the jump: leases it thinks ended."""
    time = Time()
    rd, ledger = make_app(folder)
    async with rd:
        handle = await rd.enqueue("gated", {"gate": "gate"}, lease=90)
        ledger.accepted([handle.id])
        async with rd.worker():
            await until("the job starts", lambda: ledger.read().starts)
            observer = SqliteStore(folder / "jobs.db", monotonic=clock_of(time))
            lapsed = 0
            for _ in range(3):
                claim = await observer.claim(Wanted(slots=0), "observer", time.wall)
                lapsed += len(claim.lapsed)
                time.jump(jump)
                time.pass_(2.0)
            await observer.close()
            (folder / "gate").touch()
            await handle.result(timeout=30)
    return lapsed


@JUMPS
async def test_a_jump_ends_no_lease(folder: Path, jump: float) -> None:
    assert await lapsed_after(jump, folder, lambda time: time.monotonic) == 0


async def test_control_leases_by_the_wall_clock_end(folder: Path) -> None:
    assert await lapsed_after(HOUR, folder, lambda time: time.now) > 0


async def test_the_app_measures_leases_on_the_clock_that_does_not_jump(folder: Path) -> None:
    """Through the public way in: the app's own clock jumps while its worker runs a job."""
    time = Time()
    rd, ledger = make_app(folder, clock=time)
    async with rd, rd.worker() as worker:
        handle = await rd.enqueue("gated", {"gate": "gate"}, lease=90)
        ledger.accepted([handle.id])
        await until("the job starts", lambda: ledger.read().starts)
        observer, _ = make_app(folder, clock=time)
        async with observer:
            for jump in (YEARS, -2 * YEARS, YEARS):
                time.jump(jump)
                time.pass_(2.0)
                claim = await observer.store.claim(Wanted(slots=0), "observer", time.wall)
                await worker.settle_lapsed(claim.lapsed)
                assert claim.lapsed == []
        (folder / "gate").touch()
        await handle.result(timeout=30)
        (await audit(rd, ledger)).assert_sound()
