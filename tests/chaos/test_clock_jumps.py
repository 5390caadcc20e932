"""The system's clock jumps by an hour or ten years: no job early, none stuck, no lease lost because of it.

Early is what starts before its time as the clock shows it then; stuck is what has not started although its whole
delay has passed, counted from the jump at the latest, on a clock that does not jump.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import BusEvent, Context, JobHandle, OutcomeUnknown, Redrive
from redrive.core.store import Commit, Wanted
from redrive.engine.clock import Clock, SystemClock
from redrive.engine.scheduler import Scheduler
from redrive.stores.sqlite import SqliteStore
from tests.chaos.app import make_app
from tests.chaos.ledger import audit
from tests.chaos.processes import Zygote, until

pytestmark = pytest.mark.chaos

HOUR = 3_600.0
YEARS = 10 * 365 * 86_400.0
JUMPS = pytest.mark.parametrize("jump", [HOUR, -HOUR, YEARS, -YEARS], ids=["+1h", "-1h", "+10y", "-10y"])
DELAY = 100.0
BATCH = 4


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


@pytest.mark.behaviour("C47")
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


# ---- what a wrong clock must not destroy ----

DAYS = 20 * 86_400.0
SHORT = {"retention": 14 * 86_400.0, "key_retention": 15 * 86_400.0}


class Ahead(SystemClock):
    """The machine's own clocks; the wall clock is wrong by some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> float:
        return super().now() + self.seconds


def live(folder: str, ahead: float = 0.0, *, hand_in: bool = False, trusting: bool = False) -> None:
    """A process with a worker whose clock is wrong; it ends when its scheduler has been through its duties."""
    if trusting:
        _trust_the_wall_clock()
    rd, ledger = make_app(Path(folder), clock=Ahead(ahead), **SHORT)

    async def work() -> None:
        async with rd:
            if hand_in:
                for number in range(BATCH):
                    handle = await rd.enqueue("work", {"n": number}, idempotency_key=f"key {number}")
                    ledger.accepted([handle.id])
            await _one_round(rd)

    asyncio.run(work())


async def _one_round(rd: Redrive) -> None:
    """Runs all that is due, and every duty of a scheduler at least once."""
    pruned = asyncio.Event()
    real = rd.store.prune

    async def seen(*args: Any, **kwargs: Any) -> Any:
        found = await real(*args, **kwargs)
        if not found.payloads and not found.keys:
            pruned.set()
        return found

    rd.store.prune = seen  # type: ignore[method-assign]
    async with rd.worker():
        await until("a scheduler has pruned", pruned.is_set)
        await until("everything is done", lambda: _all_done(rd))


async def _all_done(rd: Redrive) -> bool:
    totals = (await rd.stats())["totals"]
    return not totals["waiting"] and not totals["running"]


def _trust_the_wall_clock() -> None:
    """The guard removed."""
    from redrive.engine import scheduler

    async def now(store: object, clock: Clock) -> float:
        return clock.now()

    vars(scheduler)["time_for_destroying"] = now


async def after_a_moment_ahead(zygote: Zygote, folder: Path, **how: Any) -> tuple[int, int, int]:
    """Work is done, a worker starts with a clock 20 days ahead and stops, one with the right clock follows: how many
    payloads and results are left, how many starts there were after all was handed in once more."""
    for arguments in ({"hand_in": True}, {"ahead": DAYS, **how}, {"hand_in": True}):
        child = zygote.start(
            "tests.chaos.test_clock_jumps:live", log=folder / "lives.log", folder=str(folder), **arguments
        )
        assert await child.exited() == 0, child.log()
    rd, ledger = make_app(folder)
    async with rd:
        jobs = [job async for job in rd.store.scan()]
        payloads = sum(job.payload is not None for job in jobs)
        results = sum(job.result_json is not None for job in jobs)
    return payloads, results, len(ledger.read().starts)


@pytest.mark.behaviour("T-16a")
async def test_a_worker_whose_clock_is_ahead_for_a_moment_destroys_nothing(zygote: Zygote, folder: Path) -> None:
    """Payloads and results are there, and no key was forgotten: the same work, handed in again, is not done twice."""
    assert await after_a_moment_ahead(zygote, folder) == (BATCH, BATCH, BATCH)


async def test_control_who_trusts_the_wall_clock_destroys_and_does_it_twice(zygote: Zygote, folder: Path) -> None:
    """All but the newest job, whose number is kept."""
    payloads, _, starts = await after_a_moment_ahead(zygote, folder, trusting=True)
    assert starts > BATCH
    assert payloads == starts - BATCH, "only what was done once more has its contents"


@pytest.mark.behaviour("T-16a")
async def test_a_first_worker_whose_clock_is_ahead_destroys_nothing(folder: Path) -> None:
    """No process has recorded the time before: the latest move says what it was."""
    rd, _ = make_app(folder, clock=Ahead(0.0), **SHORT)
    async with rd:
        done = await rd.call("work", {"n": 1})
        assert done.status == "ok"
    late, _ = make_app(folder, clock=Ahead(DAYS), **SHORT)
    async with late:
        await _one_round(late)
        (job,) = [job async for job in late.store.scan()]
        assert job.payload is not None


@pytest.mark.behaviour("T-16d")
async def test_a_jump_is_told_and_can_be_asked_for(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    rd, _ = make_app(folder, clock=time)
    async with rd:
        duties = rd.make_scheduler(rd.make_worker())
        await duties.mind_the_clock()
        time.jump(DAYS)
        for _ in range(2):
            await duties.mind_the_clock()
        told = [record for record in caplog.records if "jumped ahead by 20 days" in record.getMessage()]
        assert [record.levelname for record in told] == ["WARNING"], "told once"
        await _asked_for_a_jump(rd, time, duties)


@pytest.mark.behaviour("T-16d")
async def test_a_clock_ahead_at_the_first_start_on_an_older_file_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rd, _ = make_app(folder, clock=Time())
    async with rd:
        job = await rd.enqueue("later", {})
        await rd.jobs.cancel(job.id)
        from redrive.engine.trusted_time import KEY, TRUSTED_TIME  # new names: others run on the source before

        await rd.store.apply([Commit(puts=(TRUSTED_TIME.drop(KEY),))])  # as an older version leaves it
    rd, _ = make_app(folder, clock=Time(Time().wall + DAYS))
    async with rd:
        duties = rd.make_scheduler(rd.make_worker())
        for _ in range(2):
            await duties.mind_the_clock()
    told = [record for record in caplog.records if "no process ran, or it was set" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"], "told once"


async def _asked_for_a_jump(rd: Redrive, time: Time, duties: Scheduler) -> None:
    from redrive.engine.trusted_time import read_clock_jump

    jump = await read_clock_jump(rd.store)
    assert jump is not None and (jump.since, jump.seconds) == (time.wall, DAYS)
    time.jump(-DAYS)
    await duties.mind_the_clock()
    assert await read_clock_jump(rd.store) is None


@pytest.mark.behaviour("T-16a", "T-16c")
@pytest.mark.parametrize("jump", [DAYS, YEARS], ids=["20d", "10y"])
async def test_what_is_old_enough_goes_once_the_new_time_has_held_a_day(folder: Path, jump: float) -> None:
    time = Time()
    rd, _ = make_app(folder, clock=time, **SHORT)
    async with rd:
        handle = await rd.enqueue("work", {"n": 1})
        await rd.drain()
        duties = rd.make_scheduler(rd.make_worker())
        time.jump(jump)
        for passed, kept in ((0.0, True), (86_000.0, True), (500.0, False)):
            time.pass_(passed)
            await duties.mind_the_clock()
            await duties.prune()
            assert ((await rd.jobs.get(handle.id)).payload is not None) is kept, passed


@pytest.mark.behaviour("T-16e")
async def test_nothing_is_buried_or_expires_across_a_jump(folder: Path) -> None:
    """A job that keeps failing, a question, an unknown outcome, and what a session was told."""
    time = Time()
    rd, _ = make_app(folder, clock=time)
    _add_waiting(rd)
    async with rd:
        ids = [(await rd.enqueue(task, session_id="s")).id for task in ("failing", "asking", "unsure")]
        await rd.enqueue("work", {"n": 1}, session_id="s")
        await rd.drain()
        before = await _standing(rd, ids)
        assert before == (["waiting", "held approval", "held outcome_unknown"], 2)
        time.pass_(60.0)
        await rd.make_scheduler(rd.make_worker()).mind_the_clock()
        time.jump(DAYS)
        await rd.drain()
        await rd.notices.prune()
        assert await _standing(rd, ids) == before
        await rd.jobs.approve(ids[1], who="ada")
        await rd.drain()
        assert (await rd.jobs.get(ids[1])).result == "approved", "its person was not too late"


def _add_waiting(rd: Redrive) -> None:
    """Tasks whose jobs wait for something that has an end."""

    @rd.task(max_age=1800.0, max_attempts=50, backoff="fixed_10s", breaker_after=0)
    async def failing() -> None:
        raise ConnectionError("not now")

    @rd.task
    async def asking(ctx: Context) -> str:
        return (await ctx.approval("May I?", expires=3600.0)).answer

    @rd.task
    async def unsure() -> None:
        raise OutcomeUnknown("no answer")


async def _standing(rd: Redrive, ids: list[str]) -> tuple[list[str], int]:
    """How the jobs stand, and how many notices their session has."""
    jobs = [await rd.jobs.get(id) for id in ids]
    told = await rd.sessions.inbox("s", unread=False)
    return [f"{job.state} {job.because}" if job.because else str(job.state) for job in jobs], len(told)


@pytest.mark.behaviour("T-16e")
async def test_a_jump_makes_no_job_unroutable(folder: Path) -> None:
    """No worker has known its task for an hour; the job itself is due for some minutes only."""
    time = Time()
    rd, _ = make_app(folder, clock=time)
    async with rd:
        stray = await rd.enqueue("stray", {}, delay=50 * 60.0)
        worker = rd.make_worker()
        duties = rd.make_scheduler(worker)

        async def looks(minutes: int) -> None:
            """Live so long, and look once a minute as a scheduler does: only such time counts."""
            for _ in range(minutes):
                time.pass_(60.0)
                await worker._announce()
                await duties.mind_the_clock()
                await duties.bury_unroutable()

        for jump, minutes in ((0.0, 1), (0.0, 61), (DAYS, 1)):
            time.jump(jump)
            await looks(minutes)
            assert (await stray.refresh()).state == "waiting"
        time.jump(-DAYS)
        await looks(60)
        assert (await stray.refresh()).because == "unroutable"
