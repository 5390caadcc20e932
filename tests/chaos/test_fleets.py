"""Fleets of workers that are killed or frozen about as often as a job lasts: no innocent job is buried for it."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import Context, Job, Policy, Redrive
from redrive.engine.clock import SystemClock
from tests.chaos.app import make_app
from tests.chaos.ledger import Audit, Ledger, audit
from tests.chaos.processes import Child, Zygote, until

pytestmark = pytest.mark.chaos

LASTS = 0.3
"""Seconds that a job of the preempted fleet takes; a worker is killed about as often."""
AT_ONCE = 4
WAITS = 700.0
"""Longer than any wait after a crash that one storm can lead to."""
LEASE = 1.0


class Ahead(SystemClock):
    """The system's clock, or one that is ahead of it once the storm is over."""

    def __init__(self, folder: Path) -> None:
        self._over = folder / "over"

    def now(self) -> float:
        return super().now() + (WAITS if self._over.exists() else 0.0)


def fleet(folder: Path, **settings: object) -> tuple[Redrive, Ledger]:
    rd, ledger = make_app(folder, clock=Ahead(folder), **settings)

    @rd.task(backoff="none", breaker_after=0)
    async def slow(ctx: Context, n: int) -> int:
        ledger.started(ctx.job.id, ctx.job.run)
        await asyncio.sleep(LASTS)
        ledger.ended(ctx.job.id, ctx.job.run)
        return n

    return rd, ledger


def worker(folder: str, *, hasty: bool = False, heedless: bool = False) -> None:
    """A worker of the fleet. Without its guards it buries at the first death alone, or takes a freeze for a death."""
    if heedless:
        from redrive.stores.sqlite.liveness import Observer

        Observer.ending = lambda self, process: "died"  # type: ignore[method-assign]
    rd, _ = fleet(Path(folder), **({"queues": {"slow": Policy(max_crashes=1)}} if hasty else {}))
    asyncio.run(rd.run_worker(concurrency=AT_ONCE + 1, grace=5.0))  # one slot is kept for other queues


async def at_rest(rd: Redrive) -> bool:
    totals = (await rd.stats())["totals"]
    return not totals["waiting"] and not totals["running"]


# ---- killed


class Preempted:
    """Two workers, each killed about as often as a job lasts, and replaced at once."""

    def __init__(self, zygote: Zygote, folder: Path, seed: int, *, hasty: bool = False) -> None:
        self.rng = random.Random(seed)
        self.zygote = zygote
        self.folder = folder
        self.hasty = hasty
        self.rd, self.ledger = fleet(folder)
        self.children: list[Child] = []

    def hire(self) -> None:
        while len(self.children) < 2:
            log = self.folder / "workers.log"
            self.children.append(self.zygote.start(f"{__name__}:worker", log=log, folder=self.folder, hasty=self.hasty))

    async def strike(self) -> None:
        victim = self.children.pop(0)
        await until("it runs a job, or none is left", lambda: self.busy(victim))
        await asyncio.sleep(self.rng.uniform(0.1, 1.2) * LASTS)
        victim.send(signal.SIGKILL)
        await victim.exited()
        self.ledger.killed(victim.pid)
        self.hire()

    async def busy(self, child: Child) -> bool:
        """Whether it has begun a job; where all that is left waits for a while, none can."""
        begun = any(pid == child.pid for _, _, pid in self.ledger.read().starts)
        return begun or not (await self.rd.stats())["totals"]["due"]

    async def last(self, jobs: int, kills: int) -> Audit:
        async with self.rd:
            many = await self.rd.enqueue_many("slow", [{"n": n} for n in range(jobs)])
            self.ledger.accepted([id for id in many.ids if id])
            self.hire()
            for _ in range(kills):
                await self.strike()
            (self.folder / "over").touch()
            await until("every job ends", lambda: at_rest(self.rd), 180.0)
            return await audit(self.rd, self.ledger, concurrency=AT_ONCE)


def died_alone(jobs: dict[str, Job]) -> int:
    return sum("alone, for the" in (attempt.decision or "") for job in jobs.values() for attempt in job.history)


@pytest.mark.behaviour("T-12a")
async def test_a_preempted_fleet_buries_nobody(
    zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]
) -> None:
    found = await Preempted(zygote, folder, seed).last(size(30, 200), size(40, 400))
    found.assert_sound()
    print(f"{died_alone(found.jobs)} processes were killed with a job alone in them")
    assert found.states == {"done": len(found.books.accepted)}
    assert died_alone(found.jobs), "no kill hit a job that ran alone: this storm proved nothing"


async def test_control_hasty_burials_hit_the_innocent(zygote: Zygote, folder: Path, seed: int) -> None:
    found = await Preempted(zygote, folder, seed, hasty=True).last(30, 40)
    assert any(job.because == "crash_loop" for job in found.jobs.values())


# ---- frozen


async def frozen(zygote: Zygote, folder: Path, rounds: int, *, heedless: bool = False) -> Audit:
    """Each worker takes over what the one before has left, and is stopped in the middle of it."""
    rd, ledger = fleet(folder)
    async with rd:
        jobs = [(await rd.enqueue("gated", {"gate": "gate"}, lease=LEASE)).id for _ in range(AT_ONCE)]
        ledger.accepted(jobs)
        for number in range(1, rounds + 1):
            child = zygote.start(
                f"{__name__}:worker", log=folder / f"worker{number}.log", folder=folder, heedless=heedless
            )

            async def all_begun(number: int = number) -> bool:
                books, dead = ledger.read(), (await rd.stats())["totals"]["dead"]
                return bool(dead) or all(books.started(job) == number for job in jobs)

            await until(f"the jobs start for the {number}. time", all_begun, 30.0)
            child.send(signal.SIGSTOP)
        (folder / "gate").touch()
        async with rd.worker():
            await until("every job ends", lambda: at_rest(rd), 60.0)
        return await audit(rd, ledger, expiries=rounds * AT_ONCE)


@pytest.mark.behaviour("T-12b")
async def test_a_frozen_fleet_buries_nobody(zygote: Zygote, folder: Path, size: Callable[[int, int], int]) -> None:
    rounds = size(5, 50)
    found = (await frozen(zygote, folder, rounds)).assert_sound()
    for job in found.jobs.values():
        assert (job.state, job.attempts, job.crashes, job.run) == ("done", 1, 0, rounds + 1)
        said = {attempt.decision for attempt in job.history if attempt.outcome == "lost"}
        assert said == {"Its worker stood still for longer than its lease while it ran: no fault of the job."}


async def test_control_a_freeze_taken_for_a_death_counts_against_the_innocent(zygote: Zygote, folder: Path) -> None:
    found = await frozen(zygote, folder, 2, heedless=True)
    assert {job.crashes for job in found.jobs.values()} == {1}, "the last round is settled by a worker with its guards"


# ---- told to stop, and killed before it could


async def reclaimed(zygote: Zygote, folder: Path, *told: signal.Signals) -> Job:
    """The platform takes a node back: it tells its worker to stop, and kills it within its grace."""
    rd, ledger = fleet(folder)
    async with rd:
        handle = await rd.enqueue("gated", {"gate": "gate"})
        ledger.accepted([handle.id])
        child = zygote.start(f"{__name__}:worker", log=folder / "worker.log", folder=folder)
        await until("the job starts", lambda: ledger.read().starts)
        for number in told:
            child.send(number)
            await until("the worker says that it stops", lambda: _says_stopping(rd))
        child.send(signal.SIGKILL)
        await child.exited()
        (folder / "gate").touch()
        async with rd.worker():
            await handle.result(timeout=30)
        return await handle.refresh()


async def _says_stopping(rd: Redrive) -> bool:
    return any(b'"stopping":true' in document.value for document in await rd.store.docs("worker"))


@pytest.mark.behaviour("T-12d")
async def test_a_node_that_is_taken_back_is_no_crash_of_its_jobs(zygote: Zygote, folder: Path) -> None:
    job = await reclaimed(zygote, folder, signal.SIGTERM)
    assert (job.run, job.crashes, [attempt.outcome for attempt in job.history]) == (2, 0, ["lost", "done"])
    assert job.history[0].decision == "Its worker was told to stop while it ran: no fault of the job."


async def test_control_a_kill_without_a_word_is_counted(zygote: Zygote, folder: Path) -> None:
    assert (await reclaimed(zygote, folder)).crashes == 1
