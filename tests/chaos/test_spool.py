"""The store cannot be used: accepted work waits in the spool, survives kill -9, and is done exactly once later."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive import Redrive, StoreUnavailable
from redrive.core.job import new_id
from redrive.jobs import enqueuer, jsonl
from redrive.jobs.spool import SpoolEntry
from tests.chaos.app import add_tasks
from tests.chaos.app import make_app as chaos_app
from tests.chaos.ledger import Audit, Ledger, audit
from tests.chaos.processes import Zygote, until
from tests.chaos.vfs import LayeredVFS, installed
from tests.support import locked

pytestmark = pytest.mark.chaos

BATCH = 5


def make_app(folder: Path) -> tuple[Redrive, Ledger]:
    """Its database is in a folder that is not there yet, its spool in one that can be made."""
    rd = Redrive(folder / "missing" / "jobs.db", spool=str(folder / "spool"), poll=0.2)
    ledger = Ledger(folder / "ledger")
    add_tasks(rd, ledger, folder)
    return rd, ledger


def producer(folder: str, *, buffered: bool = False) -> None:
    """Hands in while there is no store, and dies by SIGKILL in the next instant."""
    if buffered:
        jsonl.append_lines = _append_buffered
    rd, ledger = make_app(Path(folder))

    async def hand_in() -> None:
        for n in range(BATCH):
            handle = await rd.enqueue("post", {"n": n}, fallback=True)
            assert handle.spooled
            ledger.accepted([handle.id])
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(hand_in())


_open_files: list[Any] = []


def _append_buffered(path: Path, lines: Iterable[bytes]) -> None:
    """The guard removed: written some time, not now."""
    file = path.open("ab")
    file.writelines(lines)
    _open_files.append(file)


def drainer(folder: str) -> None:
    """Moves the spool into the store, until it is killed."""
    rd, _ = make_app(Path(folder))

    async def drain() -> None:
        async with rd:
            await rd._enqueuer.drain_spool()

    asyncio.run(drain())


async def spooled(zygote: Zygote, folder: Path, producers: int, **how: Any) -> Audit:
    rd, ledger = make_app(folder)
    for _ in range(producers):
        child = zygote.start("tests.chaos.test_spool:producer", log=folder / "producers.log", folder=folder, **how)
        assert await child.exited() == -signal.SIGKILL, child.log()
    (folder / "missing").mkdir()
    await _kill_drainers(zygote, folder, producers)
    async with rd:
        async with rd.worker():
            await until("everything is done", lambda: _all_done(rd))
        for path in (folder / "effects").iterdir():
            for _ in range(path.stat().st_size):
                ledger.effect(path.name)
        return await audit(rd, ledger)


async def _kill_drainers(zygote: Zygote, folder: Path, count: int) -> None:
    """Some are killed at once, some somewhere in the middle, some finish."""
    for number in range(count):
        child = zygote.start("tests.chaos.test_spool:drainer", log=folder / "drainers.log", folder=folder)
        await asyncio.sleep(0.005 * number)
        child.send(signal.SIGKILL)
        await child.exited()


async def _all_done(rd: Redrive) -> bool:
    totals = (await rd.stats())["totals"]
    return not totals["waiting"] and not totals["running"] and not totals["spooled"]


@pytest.mark.behaviour("000-89")
@pytest.mark.behaviour("000-62")
async def test_spooled_survives_kills_and_is_done_once(
    zygote: Zygote, folder: Path, size: Callable[[int, int], int]
) -> None:
    producers = size(8, 200)
    found = (await spooled(zygote, folder, producers)).assert_sound()
    assert len(found.books.accepted) == producers * BATCH == len(found.jobs) == found.books.effects.total()
    assert all(job.state == "done" for job in found.jobs.values())


async def test_control_a_spool_that_buffers_loses_jobs(zygote: Zygote, folder: Path) -> None:
    found = await spooled(zygote, folder, 2, buffered=True)
    assert any("accepted and is not stored" in problem for problem in found.problems)


class Watching(LayeredVFS):
    """Sees what production code syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.files = 0
        self.folders: set[tuple[int, int]] = set()

    def after_os_sync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self.folders.add((found.st_dev, found.st_ino))
        else:
            self.files += 1

    def has_synced(self, folder: Path) -> bool:
        found = folder.stat()
        return (found.st_dev, found.st_ino) in self.folders


@pytest.mark.behaviour("000-89")
async def test_spooled_is_synced_down_to_the_name_of_its_folder(folder: Path) -> None:
    """Line, file name and the name of the new folder: a power loss right after the answer takes none of them."""
    rd, _ = make_app(folder)
    with installed(Watching()) as watching:
        for n in range(3):
            handle = await rd.enqueue("work", {"n": n}, fallback=True)
            assert handle.spooled
            assert watching.files == n + 1
            assert watching.has_synced(folder / "spool")
            assert watching.has_synced(folder)
    assert rd.spool.count() == 3


@pytest.mark.behaviour("000-90")
async def test_without_fallback_the_caller_is_told(folder: Path) -> None:
    rd, _ = make_app(folder)
    with pytest.raises(StoreUnavailable, match="does not exist"):
        await rd.enqueue("work", {"n": 0})
    assert rd.spool.count() == 0


# ---- a file that another process locks ----


def hasty(folder: str, *, anew: bool = False) -> None:
    """Hands in while the file is locked, waits until the late writes have landed, and dies by SIGKILL."""
    if anew:
        enqueuer._make_entry = _entry_anew
    rd, ledger = chaos_app(Path(folder), fallback=True, fallback_after=0.05)

    async def hand_in() -> None:
        await rd.open()
        handles = [await rd.enqueue("post", {"n": n}) for n in range(BATCH)]
        assert all(handle.spooled for handle in handles)
        ledger.accepted([handle.id for handle in handles])
        (Path(folder) / "handed-in").touch()
        await until("a late write lands", lambda: rd.store.get([handles[0].id]))
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(hand_in())


def _entry_anew(prepared: Any) -> Any:
    """The guard removed: what goes to the spool is another job."""
    job = msgspec.structs.replace(prepared.job, id=new_id(time.time(), random.getrandbits(74)))
    return SpoolEntry(job, prepared.documents, prepared.on_duplicate)


async def locked_out(zygote: Zygote, folder: Path, **how: Any) -> Audit:
    """What became of jobs that were spooled because of a lock, and then landed late as well."""
    rd, ledger = chaos_app(folder)
    async with rd:
        await rd.open()
    with locked(folder / "jobs.db") as release:
        child = zygote.start("tests.chaos.test_spool:hasty", log=folder / "hasty.log", folder=str(folder), **how)
        await until("everything is handed in", (folder / "handed-in").exists)
        release()
    assert await child.exited() == -signal.SIGKILL, child.log()
    async with rd:
        async with rd.worker():
            await until("everything is done", lambda: _all_done(rd))
        for path in (folder / "effects").iterdir():
            for _ in range(path.stat().st_size):
                ledger.effect(path.name)
        return await audit(rd, ledger)


@pytest.mark.behaviour("T-14a")
async def test_a_late_write_and_its_spooled_copy_are_one_job(zygote: Zygote, folder: Path) -> None:
    found = (await locked_out(zygote, folder)).assert_sound()
    assert len(found.books.accepted) == BATCH == len(found.jobs) == found.books.effects.total()


async def test_control_a_spooled_copy_with_an_id_of_its_own_is_done_twice(zygote: Zygote, folder: Path) -> None:
    found = await locked_out(zygote, folder, anew=True)
    assert len(found.jobs) > BATCH
