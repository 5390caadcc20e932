"""Schedules across processes that are killed: every slot becomes one job, and none is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

import redrive
from redrive import Redrive
from redrive.core.job import Job
from redrive.core.schedule import slot_text
from tests.chaos.processes import Child, Zygote, until

pytestmark = pytest.mark.chaos

PACE = 300.0
"""So many seconds of the schedules' time pass in a second: five slots."""
HERE = "tests.chaos.test_schedules"


class QuickClock:
    """The wall clock, faster, and the same in every process; leases keep the system's own pace."""

    def __init__(self, start: float) -> None:
        self._start = start

    def now(self) -> float:
        return self._start + (time.time() - self._start) * PACE

    def monotonic(self) -> float:
        return time.monotonic()

    def chance(self) -> float:
        return 0.5


def make_app(folder: Path, start: float) -> Redrive:
    rd = Redrive(folder / "jobs.db", clock=QuickClock(start), poll=0.2)

    @rd.task("minutely", backoff="none", schedule=redrive.cron("* * * * *", catch_up="all", overlap=True, cap=1_000))
    async def minutely() -> None:
        await asyncio.sleep(0)

    return rd


def work(folder: str, start: float) -> None:
    """A worker, as ever."""
    asyncio.run(make_app(Path(folder), start).run_worker())


def dies_before(folder: str, start: float) -> None:
    """A worker that is killed once it has decided, before the slot's job is made."""
    rd = make_app(Path(folder), start)

    async def die(*_: Any) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    rd._duties.enqueue_slot = die  # type: ignore[assignment, method-assign]
    asyncio.run(rd.run_worker())


def dies_after(folder: str, start: float) -> None:
    """A worker that is killed once the job is made, before it is noted."""
    rd = make_app(Path(folder), start)
    enqueue = rd._duties.enqueue_slot

    async def make_and_die(*job: Any) -> str:
        await enqueue(*job)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    rd._duties.enqueue_slot = make_and_die  # type: ignore[assignment, method-assign]
    asyncio.run(rd.run_worker())


def on_its_own(folder: str, start: float) -> None:
    """Half of the guard removed: each process keeps its own count of what is dealt with; the keys are left."""
    from redrive.flows import schedules

    schedules.SCHEDULE.name = f"schedule-{os.getpid()}"
    work(folder, start)


def without_keys(folder: str, start: float) -> None:
    """The whole guard removed: keys that differ between processes, too."""
    from redrive.core import schedule

    schedule.slot_key = lambda name, slot: f"{name}@{slot_text(slot)}/{os.getpid()}"
    on_its_own(folder, start)


class Run:
    """Worker processes over one folder."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self._zygote = zygote
        self._folder = folder
        self._start = time.time()
        self.rd = make_app(folder, self._start)

    def begin(self, role: str = "work") -> Child:
        log = self._folder / "workers.log"
        return self._zygote.start(f"{HERE}:{role}", log=log, folder=self._folder, start=self._start)

    async def jobs(self) -> list[Job]:
        return [job async for job in self.rd.store.scan()]

    async def until_slots(self, number: int) -> None:
        async def enough() -> bool:
            return len(await self.jobs()) >= number

        await until(f"{number} slots have their jobs", enough)

    async def until_both_count(self, pair: list[Child]) -> None:
        """Wait until each of the two processes that keep their own count of slots has written it."""

        async def both() -> bool:
            return all([await self.rd.store.docs(f"schedule-{child.pid}") for child in pair])

        await until("both processes count slots", both)
        await self.until_slots(len(await self.jobs()) + 12)

    async def until_all_ran(self) -> list[Job]:
        async def ran() -> bool:
            return all(job.state == "done" for job in await self.jobs())

        await until("every job has run", ran)
        return await self.jobs()


def slots(jobs: list[Job]) -> list[datetime]:
    return sorted(datetime.fromisoformat(job.options.headers["redrive-slot"]) for job in jobs)


def assert_one_each(jobs: list[Job]) -> None:
    """No slot between the first and the last is missing, and none is there twice."""
    found = slots(jobs)
    minutes = round((found[-1] - found[0]) / timedelta(minutes=1))
    assert found == [found[0] + timedelta(minutes=n) for n in range(minutes + 1)]
    assert all(job.reason == "scheduled_job" for job in jobs)


async def finish(run: Run, *children: Child) -> list[Job]:
    """No more slots, and what became jobs runs to its end."""
    for child in children:
        child.send(signal.SIGTERM)
    for child in children:
        await child.exited()
    await run.rd.drain()
    return await run.until_all_ran()


@pytest.mark.behaviour("B29")
async def test_two_processes_and_kills(
    zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]
) -> None:
    chance = Random(seed)
    run = Run(zygote, folder)
    async with run.rd:
        pair = [run.begin(), run.begin()]
        for _ in range(size(2, 30)):
            seen = len(await run.jobs())
            await run.until_slots(seen + chance.randint(3, 8))
            victim = chance.randrange(2)
            pair[victim].send(signal.SIGKILL)
            assert await pair[victim].exited() == -signal.SIGKILL
            pair[victim] = run.begin()
        await run.until_slots(len(await run.jobs()) + 5)
        assert_one_each(await finish(run, *pair))


@pytest.mark.parametrize("role", ["dies_before", "dies_after"])
async def test_killed_between_the_decision_and_the_job(zygote: Zygote, folder: Path, role: str) -> None:
    run = Run(zygote, folder)
    async with run.rd:
        first = run.begin(role)
        assert await first.exited() == -signal.SIGKILL
        assert len(await run.jobs()) == (role == "dies_after")
        (found,) = await run.rd.store.docs("schedule")
        assert b'"pending"' in found.value, "it was decided"
        second = run.begin()
        await run.until_slots(5)
        assert_one_each(await finish(run, second))


async def test_the_keys_alone_keep_a_slot_to_one_job(zygote: Zygote, folder: Path) -> None:
    run = Run(zygote, folder)
    async with run.rd:
        pair = [run.begin("on_its_own"), run.begin("on_its_own")]
        await run.until_both_count(pair)
        assert_one_each(await finish(run, *pair))


async def test_control_without_the_guards_slots_run_twice(zygote: Zygote, folder: Path) -> None:
    run = Run(zygote, folder)
    async with run.rd:
        pair = [run.begin("without_keys"), run.begin("without_keys")]
        await run.until_both_count(pair)
        jobs = await finish(run, *pair)
        assert len(set(slots(jobs))) < len(jobs)
        with pytest.raises(AssertionError):
            assert_one_each(jobs)
