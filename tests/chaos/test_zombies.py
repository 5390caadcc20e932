"""A worker that was stopped past its lease and comes back: what it still says is refused."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive import JobHandle
from redrive.core.store import Commit
from redrive.stores.sqlite import SqliteStore
from tests.chaos.app import make_app, worker
from tests.chaos.ledger import Audit, audit
from tests.chaos.processes import Child, Zygote, until

pytestmark = pytest.mark.chaos

LEASE = 1.0
AT_ONCE = 5


def unfenced(folder: str) -> None:
    """The guard removed: a worker whose writes pretend to know the newest fence."""
    real = SqliteStore.apply

    async def pretending(self: SqliteStore, group: Any) -> Any:
        return await real(self, [await _refenced(self, commit) for commit in group])

    SqliteStore.apply = pretending  # type: ignore[method-assign]
    worker(folder, concurrency=1)


async def _refenced(store: SqliteStore, commit: Commit) -> Commit:
    moves = []
    for move in commit.transitions:
        (now,) = await store.get([move.job.id])
        job = msgspec.structs.replace(move.job, version=now.version, token=now.token)
        moves.append(msgspec.structs.replace(move, job=job))
    return msgspec.structs.replace(commit, transitions=tuple(moves))


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
        completed = any(line.split()[2] == str(child.pid) for line in self._completions())
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


@pytest.mark.behaviour("000-64", "C14")
async def test_a_late_completion_is_refused(zygote: Zygote, folder: Path, size: Callable[[int, int], int]) -> None:
    count = size(3, 100)
    found, children = await resurrected(zygote, folder, count, "tests.chaos.app:worker")
    found.assert_sound()
    assert found.extra_starts == count
    assert all(job.run == 2 and job.state == "done" for job in found.jobs.values())
    refused = [child for child in children if "was refused" in child.log()]
    assert refused, "no zombie got as far as to be refused: this run proved nothing"


async def raised_too_early(zygote: Zygote, folder: Path, role: str) -> tuple[Audit, str]:
    """The zombie comes back while its successor is in the middle of the job; the audit, and the successor's log."""
    run = Resurrection(zygote, folder, role)
    async with run.rd:
        zombie, handle = await run.stop_in_the_middle(0)
        heir = zygote.start("tests.chaos.app:worker", log=folder / "heir.log", folder=folder, concurrency=1)
        await until("the heir starts the job", lambda: run.ledger.read().started(handle.id) == 2)
        (folder / "gate-1").touch()
        zombie.send(signal.SIGCONT)
        await until("the zombie has said its word", lambda: run.said(zombie))
        (folder / "gate-2").touch()
        await until("the heir has said its word", lambda: run.said(heir))
        return await audit(run.rd, run.ledger, expiries=1), heir.log()


@pytest.mark.behaviour("000-64")
async def test_a_zombie_cannot_end_what_its_successor_runs(zygote: Zygote, folder: Path) -> None:
    found, log = await raised_too_early(zygote, folder, "tests.chaos.app:worker")
    found.assert_sound()
    assert "was refused" not in log


async def test_control_without_a_fence_the_zombie_wins(zygote: Zygote, folder: Path) -> None:
    found, log = await raised_too_early(zygote, folder, "tests.chaos.test_zombies:unfenced")
    assert any("which had lost it" in problem for problem in found.problems)
    assert "was refused" in log
