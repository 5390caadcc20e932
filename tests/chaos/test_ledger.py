"""The checker itself: an honest ledger passes, and each kind of lie is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.app import make_app
from tests.chaos.ledger import Ledger, audit

pytestmark = pytest.mark.chaos

LIES: dict[str, tuple[Callable[[Ledger, str], None], str]] = {
    "lost": (lambda ledger, _: ledger.accepted(["nobody"]), "job nobody was accepted and is not stored"),
    "completed twice": (lambda ledger, job: ledger.completed(job), "told completed 2 times"),
    "a second effect": (lambda ledger, _: [ledger.effect("key") for _ in range(2)] and None, "outside effect 2 times"),
    "a second start of one run": (lambda ledger, job: ledger.started(job, 1), "1 extra starts"),
    "a start nobody settled": (lambda ledger, job: ledger.started(job, 2), "1 extra starts"),
    "a stranger": (lambda ledger, job: ledger.write("start", job, 2, 1), "which had lost it to 1"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_is_found(folder: Path, lie: str) -> None:
    rd, ledger = make_app(folder)
    async with rd:
        handle = await rd.enqueue("work", {"n": 0})
        ledger.accepted([handle.id])
        await rd.drain()
        assert (await audit(rd, ledger)).problems == []
        tell, expected = LIES[lie]
        tell(ledger, handle.id)
        problems = (await audit(rd, ledger)).problems
    assert any(expected in problem for problem in problems), problems


async def test_what_nobody_offered_or_ended_is_found(folder: Path) -> None:
    rd, ledger = make_app(folder)
    async with rd:
        job = await rd.enqueue("work", {"n": 0}, delay=60)
        found = await audit(rd, ledger)
    assert found.problems == [
        f"job {job.id} is stored, and nobody offered it",
        f"job {job.id} is waiting, not ended",
    ]


async def test_a_kill_explains_as_many_starts_as_ran_at_once(folder: Path) -> None:
    rd, ledger = make_app(folder)
    async with rd:
        job = await rd.enqueue("work", {"n": 0})
        ledger.accepted([job.id])
        await rd.drain()
        ledger.killed(1)
        for run in range(2, 5):
            ledger.started(job.id, run)
        assert (await audit(rd, ledger, concurrency=3)).extra_starts == 3
        assert (await audit(rd, ledger, concurrency=3)).problems == []
        assert (await audit(rd, ledger, concurrency=2)).problems == ["3 extra starts, at most 2 can be explained"]
