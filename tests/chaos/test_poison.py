"""A task that kills its process: it is isolated and buried, and everybody else gets their work done."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import Redrive
from tests.chaos.app import make_app, worker
from tests.chaos.ledger import Audit, Books, Ledger, audit
from tests.chaos.processes import Child, Zygote, until

pytestmark = pytest.mark.chaos

CONCURRENCY = 8
LEAVES = 0
"""`poison` with this leaves with os._exit."""


def together(folder: str, **settings: int) -> None:
    """The guard removed: nobody ever runs alone."""
    from redrive.engine import worker as running
    from redrive.retries import strategy

    strategy.CRASHES_BEFORE_ALONE = running.CRASHES_BEFORE_ALONE = 1_000_000  # type: ignore[misc]
    worker(folder, **settings)


class Ward:
    """One worker process after another, for as long as they die."""

    def __init__(self, zygote: Zygote, folder: Path, role: str) -> None:
        self.zygote = zygote
        self.folder = folder
        self.role = role
        self.deaths = 0

    def admit(self) -> Child:
        log = self.folder / "workers.log"
        return self.zygote.start(self.role, log=log, folder=self.folder, concurrency=CONCURRENCY)

    async def until_all_ended(self, rd: Redrive, ledger: Ledger, most: int) -> None:
        child = self.admit()

        async def ended() -> bool:
            nonlocal child
            if not child.running():
                self.deaths += 1
                ledger.killed(child.pid)
                assert self.deaths <= most, f"{self.deaths} worker processes died"
                child = self.admit()
            totals = (await rd.stats())["totals"]
            return not totals["waiting"] and not totals["running"]

        await until("every job ends", ended, 300.0)


async def epidemic(zygote: Zygote, folder: Path, poisons: list[int], bystanders: int, role: str) -> tuple[Audit, int]:
    rd, ledger = make_app(folder)
    ward = Ward(zygote, folder, role)
    async with rd:
        for how in poisons:
            ledger.accepted([(await rd.enqueue("poison", {"how": how})).id])
        many = await rd.enqueue_many("work", [{"n": n} for n in range(bystanders)])
        ledger.accepted([id for id in many.ids if id])
        await ward.until_all_ended(rd, ledger, most=5 * len(poisons))
        return await audit(rd, ledger, concurrency=CONCURRENCY), ward.deaths


def alone_at_the_end(books: Books, poison: str) -> bool:
    """At its last start, nothing else was running in that process."""
    runs = [(run, pid) for job, run, pid in books.starts if job == poison]
    last_run, pid = runs[-1]
    running: set[str] = set()
    for what, job, run, where in books.story:
        if where != pid:
            continue
        if (job, run) == (poison, last_run):
            return not running
        if what == "start":
            running.add(job)
        else:
            running.discard(job)
    return False


@pytest.mark.behaviour("000-64", "C14")
@pytest.mark.behaviour("000-4")
async def test_poison_ends_alone(zygote: Zygote, folder: Path, size: Callable[[int, int], int]) -> None:
    poisons = [LEAVES, signal.SIGKILL] * size(1, 10)
    found, deaths = await epidemic(zygote, folder, poisons, size(60, 2_000), "tests.chaos.app:worker")
    found.assert_sound()
    dead = [job for job in found.jobs.values() if job.state == "dead"]
    print(f"{deaths} worker processes died")
    assert sorted(job.task for job in dead) == ["poison"] * len(poisons)
    for job in dead:
        assert (job.because, job.lane, job.attempts) == ("crash_loop", "delayed", 0)
        assert job.crashes >= 5, "twice beside others, perhaps while it waited for its turn, and three times alone"
        assert "alone, for the third time" in (job.history[-1].decision or "") and job.recommendation
        assert alone_at_the_end(found.books, job.id)
    assert all(job.state == "done" and job.attempts == 1 for job in found.jobs.values() if job.task == "work")


async def test_control_without_isolation_poison_never_ends(zygote: Zygote, folder: Path) -> None:
    with pytest.raises(AssertionError, match="worker processes died"):
        await epidemic(zygote, folder, [LEAVES], 10, "tests.chaos.test_poison:together")
