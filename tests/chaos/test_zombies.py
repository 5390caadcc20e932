"""A worker that was stopped past its lease and comes back: what it still says is refused."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive import JobHandle
from tests.chaos.app import make_app, worker
from tests.chaos.ledger import Audit, audit
from tests.chaos.processes import Child, Zygote, until

pytestmark = pytest.mark.chaos

LEASE = 1.0
AT_ONCE = 5


def unfenced(folder: str) -> None:
    """The guard removed: a worker whose writes pretend to be the newest."""
    from redrive.stores.sqlite import commits

    real = commits._transition

    def pretending(connection: Any, routes: Any, transition: Any) -> int | None:
        row = connection.execute("SELECT version, token FROM jobs WHERE id = ?", (transition.job.id,)).fetchone()
        job = msgspec.structs.replace(transition.job, version=row[0], token=row[1])
        return real(connection, routes, msgspec.structs.replace(transition, job=job))

    commits._transition = pretending
    worker(folder, concurrency=1)


class Resurrection:
    """Workers that are stopped in the middle of a job, outlived, and continued."""

    def __init__(self, zygote: Zygote, folder: Path, role: str) -> None:
        self.zygote = zygote
        self.folder = folder
        self.role = role
        self.rd, self.ledger = make_app(folder)

    async def stop_in_the_middle(self, number: int) -> tuple[Child, JobHandle[Any]]:
        """One worker for one job; the job blocks its event loop, so it ends before anybody can stop it."""
        handle = await self.rd.enqueue("blocking", {"gate": "gate"}, lease=LEASE)
        self.ledger.accepted([handle.id])
        child = self.zygote.start(self.role, log=self.folder / f"zombie{number}.log", folder=self.folder)
        await until("the job starts", lambda: self.ledger.read().started(handle.id))
        child.send(signal.SIGSTOP)
        return child, handle

    async def raise_the_dead(self, numbers: range) -> list[Child]:
        stopped = [await self.stop_in_the_middle(number) for number in numbers]
        (self.folder / "gate").touch()
        async with self.rd.worker(concurrency=AT_ONCE):
            for _, handle in stopped:
                assert await handle.result(timeout=60) == "gate"
        for child, _ in stopped:
            child.send(signal.SIGCONT)
            await until("the zombie has said its word", lambda child=child: self.said(child))  # type: ignore[misc]
            child.send(signal.SIGTERM)
            assert await child.exited() == 0, child.log()
        (self.folder / "gate").unlink()
        return [child for child, _ in stopped]

    def said(self, child: Child) -> bool:
        """It committed a completion, was refused, or gave up because its lease was gone."""
        completed = any(f" {child.pid}\n" in line for line in self._completions())
        return completed or "was refused" in child.log() or "taken away" in child.log()

    def _completions(self) -> Iterator[str]:
        return (line for line in self.ledger.path.read_text().splitlines(keepends=True) if line.startswith("completed"))


async def resurrected(zygote: Zygote, folder: Path, count: int, role: str) -> tuple[Audit, list[Child]]:
    run = Resurrection(zygote, folder, role)
    children: list[Child] = []
    async with run.rd:
        for first in range(0, count, AT_ONCE):
            children += await run.raise_the_dead(range(first, min(first + AT_ONCE, count)))
        return await audit(run.rd, run.ledger, expiries=count), children


@pytest.mark.behaviour("000-64")
async def test_a_late_completion_is_refused(zygote: Zygote, folder: Path, size: Callable[[int, int], int]) -> None:
    count = size(3, 100)
    found, children = await resurrected(zygote, folder, count, "tests.chaos.app:worker")
    found.assert_sound()
    assert found.extra_starts == count
    assert all(job.run == 2 and job.state == "done" for job in found.jobs.values())
    refused = [child for child in children if "was refused" in child.log()]
    assert refused, "no zombie got as far as to be refused: this run proved nothing"


async def test_control_without_a_fence_a_job_is_completed_twice(zygote: Zygote, folder: Path) -> None:
    found, _ = await resurrected(zygote, folder, 2, "tests.chaos.test_zombies:unfenced")
    assert any("completed 2 times" in problem for problem in found.problems)
