"""A task that blocks the event loop: its lease is kept, and the log says who it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.app import make_app, worker
from tests.chaos.ledger import Audit, audit
from tests.chaos.processes import Child, Zygote, until

pytestmark = pytest.mark.chaos

LEASE = 3.0


def heartless(folder: str) -> None:
    """The guard removed: heartbeats from the event loop that the task blocks, which is to say none."""
    from redrive.engine.heartbeat import Heartbeats

    async def nothing(self: Heartbeats) -> None:
        return

    Heartbeats._round = nothing  # type: ignore[method-assign]
    worker(folder)


async def blocked(zygote: Zygote, folder: Path, role: str, over: Any) -> tuple[Audit, Child]:
    """A worker whose loop is blocked until `over`, while another one waits for the lease to end."""
    rd, ledger = make_app(folder)
    async with rd:
        handle = await rd.enqueue("blocking", {"gate": "gate"}, lease=LEASE)
        ledger.accepted([handle.id])
        child = zygote.start(role, log=folder / "log", folder=folder)
        await until("the job starts", lambda: ledger.read().starts)
        async with rd.worker(queues=["none of it"]):  # it settles the jobs of the dead, and takes none
            await until("the block is long enough", lambda: over(child, ledger.read().starts))
            (folder / "gate").touch()
            await until("the first run ends", lambda: ledger.read().ends)
        async with rd.worker():
            await handle.result(timeout=30)
        return await audit(rd, ledger, expiries=1), child


async def test_a_blocked_loop_keeps_its_lease_and_is_named(zygote: Zygote, folder: Path) -> None:
    """The report comes after more than one lease; nobody took the job away until then."""
    found, child = await blocked(
        zygote, folder, "tests.chaos.app:worker", lambda child, _: "event loop has been blocked" in child.log()
    )
    found.assert_sound()
    (job,) = found.jobs.values()
    assert (job.run, job.crashes, found.extra_starts) == (1, 0, 0)
    (line,) = (line for line in child.log().splitlines() if "event loop has been blocked" in line)
    assert "WARNING" in line and f"task blocking (job {job.short_id})" in line


async def test_control_without_a_heart_the_lease_is_lost(zygote: Zygote, folder: Path) -> None:
    rd, _ = make_app(folder)

    async def lost() -> bool:
        return bool((await rd.jobs.list(state="waiting")).jobs)

    async with rd:
        found, _ = await blocked(zygote, folder, "tests.chaos.test_heartbeat:heartless", lambda *_: lost())
    (job,) = found.jobs.values()
    assert job.crashes == 0 and job.run == 2, "a lease that lapsed is no crash of a process that lives"
