"""What wakes other processes outlives trouble, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from redrive.stores.sqlite import SqliteStore, liveness, process_wakeups, watcher, writer
from redrive.stores.sqlite.process_wakeups import WakeupSocket
from redrive.stores.sqlite.wakeups import Waiters
from redrive.stores.sqlite.watcher import JobFollowers, Watcher
from tests.support import eventually, soon

AS_NOBODY = """
import asyncio, os, sys
from redrive.stores.sqlite import SqliteStore, process_wakeups

async def main(path):
    os.chmod(os.path.dirname(path), 0o777)
    if os.getuid() == 0:
        os.setgid(65534); os.setuid(65534)
    process_wakeups.BIND_SECONDS = 0.1
    store = SqliteStore(path)
    await store.open()
    live = path + "-live"
    async def until(what):
        async with asyncio.timeout(20):
            while not what():
                await asyncio.sleep(0.01)
    store._watch()
    await until(lambda: store._wakeup_socket.is_bound)
    looks = []
    check = store._wakeup_socket.check
    store._wakeup_socket.check = lambda: (looks.append(1), check())[1]
    {trouble}
    print(store._watcher.is_alive())
    await store.close()

asyncio.run(main(sys.argv[1]))
"""
CLOSED = "seen = len(looks); os.chmod(live, 0o000); await until(lambda: len(looks) > seen + 1); os.chmod(live, 0o700)"
UNBOUND = """store._wakeup_socket._socket.close(); store._wakeup_socket.close(); os.chmod(live, 0o500)
    seen = len(looks); await until(lambda: len(looks) > seen + 3)
    os.chmod(live, 0o700); await until(lambda: store._wakeup_socket.is_bound)"""


@pytest.mark.parametrize("trouble", [CLOSED, UNBOUND], ids=["closed for a moment", "cannot be written for a while"])
def test_a_folder_that_does_not_let_the_watcher_in_ends_neither_it_nor_its_socket(
    trouble: str,
) -> None:

    with tempfile.TemporaryDirectory() as folder:
        code = AS_NOBODY.replace("{trouble}", trouble)
        ran = subprocess.run(
            [sys.executable, "-c", code, f"{folder}/jobs.db"], capture_output=True, text=True, timeout=60, check=False
        )
    assert (ran.stdout, ran.returncode) == ("True\n", 0), ran.stderr


@pytest.fixture
async def waiting(folder: Path) -> Any:
    """A store of this process that waits on the file: others have a socket to it open."""
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    store._watch()
    await eventually(lambda: store._wakeup_socket.is_bound, "others can wake it")
    yield store
    await store.close()


def open_parts() -> tuple[int, int]:
    return len(process_wakeups._open_sockets), len(liveness._held)


async def begin_to_write(store: SqliteStore) -> asyncio.Task[None]:
    """A write that is under way in the writer's thread, and takes a moment."""
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(_: Any) -> None:
        loop.call_soon_threadsafe(began.set)
        time.sleep(0.05)

    task = asyncio.create_task((await store._ready()).run(work, wakes=True))
    await soon(began.wait())
    return task


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_close_with_a_write_under_way_leaves_no_socket_and_no_lock(
    waiting: SqliteStore, folder: Path, cancels: bool
) -> None:
    before = open_parts()
    for _ in range(3):
        store = SqliteStore(folder / "jobs.db")
        await store.open()
        write = await begin_to_write(store)
        closing = asyncio.create_task(store.close())
        if cancels:
            await asyncio.sleep(0)
            closing.cancel()
        await soon(asyncio.gather(write, closing, return_exceptions=True))
        await eventually(lambda: open_parts() == before, "nothing is left")


async def test_an_open_that_is_cancelled_and_closed_leaves_no_lock(
    waiting: SqliteStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = open_parts(), writer.open_writer

    def slow(path: Path) -> Any:
        time.sleep(0.2)
        return real(path)

    monkeypatch.setattr(writer, "open_writer", slow)
    store = SqliteStore(folder / "jobs.db")
    opening = asyncio.create_task(store.open())
    await eventually(lambda: store._writer is not None, "it opens")
    opening.cancel()
    await soon(store.close())
    await eventually(lambda: open_parts() == before, "nothing is left")


def test_an_interrupt_that_cannot_be_sent_leaves_no_socket(folder: Path) -> None:
    (folder / "jobs.db").touch()
    heard = WakeupSocket(folder / ".wake-1-a", folder / "jobs.db")
    assert heard.bind()
    before = len(process_wakeups._open_sockets)
    for _ in range(1_000):  # more than its queue takes
        heard.interrupt()
    assert len(process_wakeups._open_sockets) == before
    heard.close()


DAMAGED = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("INSERT OR IGNORE INTO routes (queue, task) VALUES ('q', 't')")
connection.execute("INSERT INTO jobs (id, route, priority, run_at, created_at, updated_at, payload) VALUES"
                   " (CAST(randomblob(3) || x'ff41' AS TEXT), 1, 2, 1, 1, 1, '1')")
connection.execute("INSERT INTO moves (job, run, attempts, move, state, at) VALUES"
                   " ((SELECT max(seq) FROM jobs), 1, 0, 'succeeded', 'done', 1)")
"""


async def test_a_job_id_that_cannot_be_read_wakes_its_followers_all_the_same(folder: Path) -> None:
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    changed = asyncio.Event()
    async with store.follow({"x"}, changed):
        for _ in range(2):
            changed.clear()
            await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", DAMAGED, folder / "jobs.db"], check=True, timeout=60
            )
            await soon(changed.wait())
        assert store._watcher is not None and store._watcher.is_alive()
    await store.close()


def test_an_error_in_the_watcher_is_told_once_and_wakes_all_that_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "SLOW_POLL_SECONDS", 0.001)
    (folder / "jobs.db").touch()
    looks: list[int] = []
    woken: list[int] = []
    closed = threading.Event()

    class Broken:
        def came(self) -> bool:
            looks.append(1)
            if len(looks) < 4:
                raise LookupError("a defect")
            closed.set()
            return False

    heard = WakeupSocket(folder / ".wake-1-a", folder / "jobs.db")
    foreign: Any = Broken()
    Watcher(foreign, heard, Waiters(), JobFollowers(), lambda: woken.append(1), lambda: 0, closed).run()
    assert (len(looks), len(woken)) == (4, 3)
    assert caplog.text.count("please report this") == 1 and "a defect" in caplog.text
