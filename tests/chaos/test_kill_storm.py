"""kill -9, again and again: nothing accepted is lost, nothing is completed twice, every job ends."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Item, Redrive
from redrive.core.job import keyed_id
from tests.chaos.app import EFFECTS, Counter, make_app
from tests.chaos.ledger import Ledger, audit
from tests.chaos.processes import Child, Zygote, until

pytestmark = pytest.mark.chaos

WORKERS = 3
CONCURRENCY = 8
MIX = ("work", "work", "work", "work", "flaky", "hopeless", "post", "call", "work", "flaky")
"""What the jobs of a storm do, in turn."""


class Storm:
    """Workers that are killed at random and replaced at once, while jobs keep coming."""

    def __init__(self, zygote: Zygote, folder: Path, seed: int, port: int) -> None:
        self.rng = random.Random(seed)
        self.zygote = zygote
        self.folder = folder
        self.port = port
        self.rd, self.ledger = make_app(folder)
        self.children: list[Child] = []
        self.sent = 0

    def hire(self) -> None:
        while len(self.children) < WORKERS:
            log = self.folder / "workers.log"
            self.children.append(
                self.zygote.start("tests.chaos.app:worker", log=log, folder=self.folder, concurrency=CONCURRENCY)
            )

    async def strike(self) -> None:
        """One kill, 30 to 120 ms after the last."""
        await asyncio.sleep(self.rng.uniform(0.030, 0.120))
        victim = self.children.pop(self.rng.randrange(len(self.children)))
        assert victim.running(), victim.log()
        victim.send(signal.SIGKILL)
        self.ledger.killed(victim.pid)
        self.hire()

    async def hand_in(self, count: int) -> None:
        """Jobs of every kind; each is in the ledger as accepted as soon as somebody was told so."""
        for task in sorted(set(MIX)):
            numbers = [n for n in range(self.sent, self.sent + count) if MIX[n % len(MIX)] == task]
            more = {"port": self.port} if task == "call" else {}
            many = await self.rd.enqueue_many(task, [Item({"n": n, **more}) for n in numbers])
            assert not many.refused
            self.ledger.accepted([id for id in many.ids if id])
        self.sent += count

    async def calm(self) -> None:
        """No more kills: everything comes to its end."""

        async def ended() -> bool:
            totals = (await self.rd.stats())["totals"]
            return not totals["waiting"] and not totals["running"]

        await until("every job ends", ended, 120.0)


def count_effects(folder: Path, counter: Counter, ledger: Ledger) -> None:
    """Tell the ledger how often each outside effect really happened."""
    for path in sorted((folder / EFFECTS).iterdir()):
        for _ in range(path.stat().st_size):
            ledger.effect(path.name)
    for path, count in counter.counts.items():
        for _ in range(count):
            ledger.effect(path)


@pytest.mark.behaviour("000-4")
@pytest.mark.behaviour("000-64")
@pytest.mark.behaviour("000-99")
async def test_storm(zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]) -> None:
    kills, jobs = size(100, 5_000), size(5_000, 200_000)
    counter = Counter()
    with counter.serving() as port:
        storm = Storm(zygote, folder, seed, port)
        async with storm.rd:
            storm.hire()
            for _ in range(kills):
                await storm.hand_in(jobs // kills)
                await storm.strike()
            await storm.calm()
            count_effects(folder, counter, storm.ledger)
            found = (await audit(storm.rd, storm.ledger, concurrency=CONCURRENCY)).assert_sound()
    assert len(found.books.accepted) == jobs and found.books.kills == kills
    assert found.extra_starts > 0, "no kill hit a running job: this storm proved nothing"
    reasons = {job.because for job in found.jobs.values() if job.state == "dead"}
    assert reasons <= {"terminated", "crash_loop"}
    assert all(job.state == "dead" for job in found.jobs.values() if job.task == "hopeless")
    assert not any(job.state == "held" for job in found.jobs.values()), "every effect here can be verified"


# ---- an accepted job survives a kill in the next instant ----


def producer(folder: str, *, rounds: int, early: bool = False) -> None:
    """Hands in jobs one by one and dies by SIGKILL as soon as the last was accepted."""
    if early:
        _acknowledge_early()
    rd, ledger = make_app(Path(folder))

    async def hand_in() -> None:
        for n in range(rounds):
            key = f"{os.getpid()}-{n}"
            ledger.offered(keyed_id("work", key))
            handle = await rd.enqueue("work", {"n": n}, idempotency_key=key)
            ledger.accepted([handle.id])
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(hand_in())


def _acknowledge_early() -> None:
    """The guard removed: the caller is told while the write is still on its way."""
    from redrive.core.store import Inserted
    from redrive.stores.sqlite import SqliteStore

    real, writes = SqliteStore.insert, set()

    async def early(self: SqliteStore, jobs: Any, documents: Any = ()) -> list[Inserted]:
        writes.add(asyncio.create_task(real(self, jobs, documents)))
        return [Inserted(job) for job in jobs]

    SqliteStore.insert = early  # type: ignore[method-assign]


async def killed_producers(zygote: Zygote, folder: Path, count: int, **how: Any) -> list[str]:
    """What is wrong after so many producers were killed right after their last acceptance."""
    rd, ledger = make_app(folder)
    async with rd:
        for _ in range(count):
            child = zygote.start(
                "tests.chaos.test_kill_storm:producer", log=folder / "producers.log", folder=folder, rounds=3, **how
            )
            assert await child.exited() == -signal.SIGKILL, child.log()
        assert len(ledger.read().accepted) == 3 * count
        return (await audit(rd, ledger, ended=False)).problems


@pytest.mark.behaviour("000-62")
@pytest.mark.behaviour("000-16")
async def test_accepted_survives_a_kill_in_the_next_instant(
    zygote: Zygote, folder: Path, size: Callable[[int, int], int]
) -> None:
    assert await killed_producers(zygote, folder, size(10, 500)) == []


async def test_control_told_before_the_commit_jobs_are_lost(zygote: Zygote, folder: Path) -> None:
    problems = await killed_producers(zygote, folder, 3, early=True)
    assert any("accepted and is not stored" in problem for problem in problems)


# ---- work left by a dead process is delivered after a restart ----


@pytest.mark.behaviour("000-12")
@pytest.mark.behaviour("000-64")
async def test_what_a_killed_worker_left_is_done_after_a_restart(zygote: Zygote, folder: Path) -> None:
    rd, ledger = make_app(folder)
    async with rd:
        handle = await rd.enqueue("gated", {"gate": "open"})
        ledger.accepted([handle.id])
        child = zygote.start("tests.chaos.app:worker", log=folder / "log", folder=folder)
        await until("the job starts", lambda: ledger.read().starts)
        child.send(signal.SIGKILL)
        await child.exited()
        ledger.killed(child.pid)
        (folder / "open").touch()
        async with rd.worker():
            assert await handle.result(timeout=30) == "open"
        found = (await audit(rd, ledger, concurrency=8)).assert_sound()
    job = found.jobs[handle.id]
    assert (job.run, job.attempts, job.crashes) == (2, 1, 1)
    assert [attempt.outcome for attempt in job.history] == ["lost", "done"]


async def test_control_without_an_observer_jobs_of_the_dead_are_stuck(
    zygote: Zygote, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks for ended leases: the checker must notice the job that runs for ever."""
    monkeypatch.setattr("redrive.stores.sqlite.liveness.Observer.lapsed", lambda self, running, now: [])
    rd, ledger = make_app(folder)
    async with rd:
        handle = await rd.enqueue("gated", {"gate": "open"})
        ledger.accepted([handle.id])
        child = zygote.start("tests.chaos.app:worker", log=folder / "log", folder=folder)
        await until("the job starts", lambda: ledger.read().starts)
        child.send(signal.SIGKILL)
        await child.exited()
        (folder / "open").touch()
        await _quiet_rounds(rd)
        problems = (await audit(rd, ledger, concurrency=8)).problems
    assert any("is running, not ended" in problem for problem in problems)


async def _quiet_rounds(rd: Redrive) -> None:
    """A worker that looks around a few times: another job comes and goes meanwhile."""
    async with rd.worker():
        for n in range(3):
            handle = await rd.enqueue("work", {"n": n})
            await handle.result(timeout=30)
