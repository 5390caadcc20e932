"""Processes on one file wake each other by sockets. Where these tests use one, no look by itself comes in time."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from redrive.core.job import Job
from redrive.core.store import Commit, Put, Wanted
from redrive.stores.sqlite import SqliteStore, process_wakeups, wakeups, watcher
from redrive.stores.sqlite import store as store_module
from redrive.stores.sqlite.process_wakeups import DUE, MOVED, PREFIX, WakeupSender, WakeupSocket
from redrive.stores.sqlite.watcher import JobFollowers, Watcher
from tests.stores.forks import child, ended
from tests.stores.jobs import T0, a_job, success
from tests.stores.openers import Openers
from tests.stores.waiter import NEVER, ListeningSocket, begun
from tests.support import eventually, line_of, process, soon


@pytest.fixture(autouse=True)
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "SLOW_POLL_SECONDS", NEVER)
    monkeypatch.setattr(store_module, "WakeupSocket", ListeningSocket)


@contextmanager
def a_waiter(database: Path) -> Iterator[Popen[str]]:
    with process("from tests.stores.waiter import main; main()", database) as waiter:
        yield waiter


async def waits(waiter: Popen[str]) -> None:
    assert await line_of(waiter) == "waits"


def sockets(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "jobs.db-live").iterdir() if path.name.startswith(PREFIX))


async def accept(store: Any) -> Job:
    job = a_job()
    await store.insert([job])
    return job


async def change_a_setting(store: Any) -> None:
    """Wakes whoever waits, and there is nothing to claim."""
    await store.apply([Commit(puts=(Put("queue", "a", b"resumed"),))])


async def waiting_in(store: Any) -> asyncio.Future[bool]:
    """A wait that has begun and that only another process's byte ends."""
    while True:
        claim = await store.claim(Wanted(1), "w1", T0)
        assert not claim.jobs
        waiting = asyncio.ensure_future(store.wait(claim.mark, NEVER))
        await begun(store, waiting)
        if not waiting.done():
            return waiting


# ---- waking


@pytest.mark.behaviour("C13")
async def test_another_process_is_woken_by_each_commit(sqlite: Openers) -> None:
    store = await sqlite.open()
    with a_waiter(sqlite.folder / "jobs.db") as waiter:
        for _ in range(5):
            await waits(waiter)
            job = await accept(store)
            assert [await line_of(waiter) for _ in range(2)] == ["woken", job.id]


async def test_every_process_that_waits_is_woken(sqlite: Openers) -> None:
    store = await sqlite.open()
    database = sqlite.folder / "jobs.db"
    with a_waiter(database) as one, a_waiter(database) as two:
        for _ in range(3):
            await waits(one)
            await waits(two)
            await change_a_setting(store)
            assert [await line_of(waiter) for waiter in (one, two)] == ["woken"] * 2


async def test_a_process_that_begins_to_wait_is_found_however_fast_others_commit(sqlite: Openers) -> None:
    """The list of those who wait may be a moment old, so that who begins to wait looks once more."""
    store = await sqlite.open()
    over = asyncio.Event()

    async def commit_all_the_time() -> None:
        while not over.is_set():
            await change_a_setting(store)

    busy = asyncio.ensure_future(commit_all_the_time())
    with a_waiter(sqlite.folder / "jobs.db") as waiter:
        await waits(waiter)
        job = await accept(store)
        over.set()
        await busy
        assert await next_job(waiter) == job.id


async def test_two_stores_of_one_process_wake_each_other(sqlite: Openers) -> None:
    one, two = await sqlite.open(), await sqlite.open()
    for waiter, other in ((one, two), (two, one)):
        waiting = await waiting_in(waiter)
        await change_a_setting(other)
        assert await soon(waiting)
    assert len(sockets(sqlite.folder)) == 2


async def test_what_this_process_has_freed_is_looked_at_by_its_own_workers_too(sqlite: Openers) -> None:
    """Such as a place under a limit that several workers share."""
    store = await sqlite.open()
    await accept(store)
    claim = await store.claim(Wanted(1), "w1", T0)
    waiting = await waiting_in(store)
    await eventually(lambda: store._wakeup_socket._takes_rouse)  # type: ignore[attr-defined]
    await store.apply([Commit((success(claim.jobs[0]),))])
    assert await soon(waiting)


@pytest.mark.parametrize("spelled", ["link", "relative"])
async def test_however_the_database_is_spelled(sqlite: Openers, spelled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await sqlite.open()
    monkeypatch.chdir(sqlite.folder)
    (sqlite.folder / "elsewhere").mkdir()
    link = sqlite.folder / "elsewhere" / "link.db"
    link.symlink_to(sqlite.folder / "jobs.db")
    with a_waiter(link if spelled == "link" else Path("jobs.db")) as waiter:
        await waits(waiter)
        job = await accept(store)
        assert [await line_of(waiter) for _ in range(2)] == ["woken", job.id]


async def test_a_path_that_is_too_long_for_a_socket_is_shortened(folder: Path) -> None:
    deep = folder / ("a" * 100) / ("b" * 100)
    deep.mkdir(parents=True)
    store = SqliteStore(deep / "jobs.db")
    await store.open()
    with a_waiter(deep / "jobs.db") as waiter:
        await waits(waiter)
        job = await accept(store)
        assert [await line_of(waiter) for _ in range(2)] == ["woken", job.id]
        assert len(sockets(deep)) == 1
    await store.close()


# ---- who hears of what


class Ear:
    """A socket as another process has it, read by the test."""

    def __init__(self, folder: Path) -> None:
        self.socket = WakeupSocket(folder / "jobs.db-live" / f"{PREFIX}ear", folder / "jobs.db")
        assert self.socket.bind()

    def heard(self) -> bytes:
        return self.socket.receive(0.0)


@pytest.fixture
async def store(sqlite: Openers) -> Any:
    return await sqlite.open()


@pytest.fixture
async def ear(sqlite: Openers, store: SqliteStore) -> Any:
    ear = Ear(sqlite.folder)
    yield ear
    ear.socket.close()


async def test_claims_and_heartbeats_wake_nobody_elsewhere(store: SqliteStore, ear: Ear) -> None:
    await accept(store)
    assert ear.heard() == DUE
    claim = await store.claim(Wanted(1), "w1", T0)
    await store.heartbeat([], T0)
    assert ear.heard() == b""
    await store.apply([Commit((success(claim.jobs[0]),))])
    assert ear.heard() == MOVED
    await store.apply([Commit(puts=(Put("queue", "a", b"resumed"),))])
    assert ear.heard() == DUE


async def test_a_group_commit_sends_one_byte(store: SqliteStore, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[bool] = []
    tell = store._writer._tell_others  # type: ignore[union-attr]
    monkeypatch.setattr(store._writer, "_tell_others", lambda due: (commits.append(due), tell(due)))
    await asyncio.gather(*(accept(store) for _ in range(50)))
    assert len(ear.heard()) == len(commits) < 10


# ---- the sockets themselves


async def test_the_socket_of_a_killed_process_is_removed(sqlite: Openers, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await sqlite.open()
    with a_waiter(sqlite.folder / "jobs.db") as waiter:
        await waits(waiter)
        assert len(sockets(sqlite.folder)) == 1
        waiter.kill()
        waiter.wait()

    async def is_removed() -> bool:
        await accept(store)
        return sockets(sqlite.folder) == []

    await eventually(is_removed)
    assert not store._sender._links


async def test_a_store_that_is_opened_removes_what_killed_processes_left(folder: Path) -> None:
    with a_waiter(folder / "jobs.db") as waiter:
        await waits(waiter)
        waiter.kill()
        waiter.wait()
    (left,) = sockets(folder)
    os.utime(left, (T0, T0))
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    assert sockets(folder) == []
    await store.close()
    assert not (folder / "jobs.db-live").exists()


async def test_a_socket_is_removed_when_its_store_is_closed(folder: Path) -> None:
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    waiting = await waiting_in(store)
    (own,) = sockets(folder)
    assert stat.S_IMODE(own.stat().st_mode) == stat.S_IMODE((folder / "jobs.db").stat().st_mode)
    await store.close()
    assert await soon(waiting)
    assert not (folder / "jobs.db-live").exists()
    assert not process_wakeups._open_sockets


async def test_a_socket_whose_file_was_removed_is_made_anew(sqlite: Openers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "SLOW_POLL_SECONDS", 0.01)
    store, other = await sqlite.open(), await sqlite.open()
    waiting = await waiting_in(store)
    (own,) = sockets(sqlite.folder)
    await change_a_setting(other)
    assert await soon(waiting)
    own.unlink()
    await eventually(own.exists)
    monkeypatch.setattr(watcher, "SLOW_POLL_SECONDS", NEVER)
    waiting = await waiting_in(store)
    await change_a_setting(other)
    assert await soon(waiting)


def test_a_socket_that_is_being_made_is_not_taken_for_a_dead_one(folder: Path) -> None:
    dead = folder / f"{PREFIX}dead"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(dead))
    sender = WakeupSender(folder / f"{PREFIX}own")
    sender.refresh()
    assert dead.exists(), "it is as new as one that is bound a moment later"
    os.utime(dead, (T0, T0))
    sender.refresh()
    assert not dead.exists()


async def test_a_stopped_process_keeps_nobody_waiting_and_hears_of_it_later(sqlite: Openers) -> None:
    store = await sqlite.open()
    database = sqlite.folder / "jobs.db"
    with a_waiter(database) as stopped, a_waiter(database) as other:
        await waits(stopped)
        await waits(other)
        stopped.send_signal(signal.SIGSTOP)
        for _ in range(1000):
            await soon(change_a_setting(store))
        job = await accept(store)
        assert await next_job(other) == job.id
        stopped.send_signal(signal.SIGCONT)
        assert await line_of(stopped) == "woken"


async def next_job(waiter: Popen[str]) -> str:
    while (line := await line_of(waiter)) in ("waits", "woken"):
        pass
    return line


def test_bytes_that_one_process_does_not_read_keep_none_from_another(folder: Path) -> None:
    """All bytes that are not read count against the socket that sent them: it has one for each receiver."""
    (folder / "jobs.db").touch()
    deaf, *others = [WakeupSocket(folder / f"{PREFIX}{n}", folder / "jobs.db") for n in range(3)]
    assert deaf.bind() and all(other.bind() for other in others)
    sender = WakeupSender(folder / f"{PREFIX}own")
    for _ in range(2000):
        sender.send(DUE)
        assert [other.receive(0.0) for other in others] == [DUE, DUE]
    assert set(deaf.receive(0.0)) == set(DUE)
    for each in (deaf, *others):
        each.close()
    sender.close()


def test_senders_survive_whatever_the_system_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "jobs.db").touch()
    ear = WakeupSocket(folder / f"{PREFIX}ear", folder / "jobs.db")
    assert ear.bind()
    sender = WakeupSender(folder / f"{PREFIX}own")

    def refuse(*_: object) -> None:
        raise OSError("too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(process_wakeups, "_make_socket", refuse)
        sender.refresh()
        sender.send(DUE)
    sender.refresh()
    sender.send(DUE)
    assert ear.receive(0.0) == DUE
    with monkeypatch.context() as broken:
        broken.setattr(os, "stat", refuse)
        sender.refresh()
        sender.send(DUE)
    assert ear.receive(0.0) == DUE, "the list that is known is used"
    ear.close()
    sender.close()
    WakeupSender(folder / "nowhere" / f"{PREFIX}own").send(DUE)


# ---- forks


def test_a_forked_child_neither_holds_nor_removes_the_sockets_of_its_parent(folder: Path) -> None:
    (folder / "jobs.db").touch()
    ear = WakeupSocket(folder / f"{PREFIX}ear", folder / "jobs.db")
    assert ear.bind()
    sender = WakeupSender(folder / f"{PREFIX}own")
    sender.send(DUE)

    def look() -> None:
        assert not process_wakeups._open_sockets
        assert ear.receive(0.0) == b""
        ear.close()
        sender.send(DUE)

    assert ended(child(look)) == 0
    assert ear.path.exists()
    assert set(ear.receive(0.0)) == set(DUE)
    ear.close()
    sender.close()


def test_a_child_that_outlives_its_parent_does_not_look_like_it(folder: Path) -> None:
    """It would read no byte, and the dead parent's socket would never be removed."""
    (folder / "jobs.db").touch()
    ear = WakeupSocket(folder / f"{PREFIX}ear", folder / "jobs.db")
    wait, go = os.pipe()
    begins, began = os.pipe()

    def bind_and_leave_a_child() -> None:
        assert ear.bind()
        child(lambda: (os.write(began, b"x"), os.read(wait, 1)))
        assert os.read(begins, 1), "it runs before its parent ends"
        os._exit(0)

    assert ended(child(bind_and_leave_a_child)) == 0
    try:
        os.utime(ear.path, (T0, T0))
        sender = WakeupSender(folder / f"{PREFIX}own")
        sender.refresh()
        assert not ear.path.exists()
    finally:
        os.write(go, b"x")
        for pipe in (wait, go, begins, began):
            os.close(pipe)


# ---- without a socket


@pytest.mark.parametrize("why", ["no sockets", "no place", "too long"])
async def test_without_a_socket_the_file_is_looked_at_often(
    sqlite: Openers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    if why == "no sockets":
        monkeypatch.delattr(socket, "AF_UNIX")
    elif why == "no place":
        monkeypatch.setattr(os, "chmod", refuse)
    else:
        monkeypatch.setattr(process_wakeups, "_BY_NUMBER", "/nowhere")
        monkeypatch.setattr(process_wakeups, "PREFIX", PREFIX + "x" * 100)
    store, other = await sqlite.open(), await sqlite.open()
    claim = await store.claim(Wanted(1), "w1", T0)
    for _ in range(2):
        waiting = asyncio.ensure_future(store.wait(claim.mark, NEVER))
        await eventually(lambda: bool(store._waiters))  # type: ignore[attr-defined]
        await accept(other)
        assert await soon(waiting)
        assert not store._wakeup_socket.is_bound  # type: ignore[attr-defined]
        claim = await store.claim(Wanted(0), "w1", T0)
    assert sockets(sqlite.folder) == []
    assert caplog.text.count("start up to 40 ms later") == (why != "no sockets"), "it is told once, with what to do"


async def test_a_process_that_does_not_send_is_noticed_by_a_look(
    sqlite: Openers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of an older version."""
    monkeypatch.setattr(watcher, "SLOW_POLL_SECONDS", 0.02)
    monkeypatch.setattr(WakeupSender, "send", lambda *_: None)
    store, other = await sqlite.open(), await sqlite.open()
    waiting = await waiting_in(store)
    await accept(other)
    assert await soon(waiting)


# ---- how often the thread looks


class Scene:
    """A watcher whose bytes and commits the test makes. It counts looks and wake-ups, and ends after the last byte."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        bytes_heard: list[bytes],
        *,
        bound: bool = True,
        commits: list[bool] | None = None,
    ) -> None:
        self.now = 100.0
        self.heard = list(bytes_heard)
        self.timeouts: list[float] = []
        self.pauses: list[float] = []
        self.wakes = 0
        self.claimed = 0
        self.bound = bound
        self.commits = commits
        monkeypatch.setattr(watcher.time, "monotonic", lambda: self.now)
        waiters: Any = [True]
        self.watcher = Watcher(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            waiters,
            JobFollowers(),
            self.wake,
            lambda: self.claimed,
            self,  # type: ignore[arg-type]
        )
        self.watcher.run()

    def came(self) -> bool:
        """Whether a look finds a commit: after those that are listed none does, without a list every one."""
        return self.commits is None or bool(self.commits and self.commits.pop(0))

    def skip_moved(self) -> None: ...

    def take_rouse(self, takes: bool) -> None: ...

    def bind(self) -> bool:
        return self.bound

    def check(self) -> bool:
        return self.bound

    def close(self) -> None: ...

    def wake(self) -> None:
        self.wakes += 1

    def receive(self, seconds: float) -> bytes:
        self.timeouts.append(seconds)
        heard = self.heard.pop(0)
        self.now += seconds if not heard else 0.0
        return heard

    def is_set(self) -> bool:
        return not self.heard

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        if not self.bound:
            self.heard.pop(0)
        return False


def test_while_nothing_happens_the_file_is_looked_at_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "SLOW_POLL_SECONDS", 0.5)
    scene = Scene(monkeypatch, [b""] * 20, commits=[])
    assert scene.timeouts == [0.04] + [0.5] * 19


def test_after_a_commit_the_file_is_looked_at_often_until_a_look_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "SLOW_POLL_SECONDS", 0.5)
    scene = Scene(monkeypatch, [b""] * 7, commits=[False, True, True, True, False])
    assert scene.timeouts == [0.04, 0.5, 0.04, 0.04, 0.04, 0.5, 0.5]


def test_without_a_socket_it_is_looked_at_25_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [b""] * 20, bound=False)
    assert scene.timeouts == [] and set(scene.pauses) == {0.04}


def test_commits_that_bring_nothing_are_looked_at_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [DUE] * 100)
    assert scene.pauses[:5] == [0.005, 0.01, 0.02, 0.04, 0.04]
    assert set(scene.pauses[5:]) == {0.04}


def test_commits_that_bring_jobs_are_looked_at_promptly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Claiming(Scene):
        def wake(self) -> None:
            super().wake()
            self.claimed += 1

    scene = Claiming(monkeypatch, [DUE] * 50)
    assert set(scene.pauses) == {0.005}
    assert scene.wakes == 50


def test_commits_that_make_nothing_due_wake_workers_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, [MOVED] * 100)
    took = scene.now - 100.0
    assert scene.wakes <= took / 0.04 + 2


def test_what_workers_were_not_told_at_once_they_are_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The byte that comes meanwhile is of a commit that was seen already, and no other comes."""
    monkeypatch.setattr(watcher, "QUIET_SECONDS", 0.0)
    heard = [MOVED, MOVED, MOVED, b""]
    scene = Scene(monkeypatch, heard, commits=[True, True])
    assert scene.wakes == 2 and 0 < scene.timeouts[-1] < 0.04


# ---- followers


async def test_only_the_followers_of_jobs_that_moved_are_told(sqlite: Openers) -> None:
    store, other = await sqlite.open(), await sqlite.open()
    mine, yours, first = await accept(other), await accept(other), await accept(other)
    (claim,) = [await other.claim(Wanted(3), "w1", T0)]
    jobs = {job.id: job for job in claim.jobs}
    heard = {id: asyncio.Event() for id in jobs}
    async with (
        store.follow({mine.id}, heard[mine.id]),
        store.follow({yours.id}, heard[yours.id]),
        store.follow({first.id}, heard[first.id]),
    ):
        await other.apply([Commit((success(jobs[first.id]),))])
        await soon(heard[first.id].wait())
        await asyncio.sleep(0.02)
        heard[mine.id].clear()  # who begins to follow may be told for nothing once
        heard[yours.id].clear()
        await other.apply([Commit((success(jobs[mine.id]),))])
        await soon(heard[mine.id].wait())
        assert not heard[yours.id].is_set()
    assert not store._followers  # type: ignore[attr-defined]


async def test_after_very_many_moves_every_follower_is_told(sqlite: Openers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "MOVED", 2)
    store, other = await sqlite.open(), await sqlite.open()
    for _ in range(10):
        await accept(other)
    claim = await other.claim(Wanted(10), "w1", T0)
    heard = asyncio.Event()
    async with store.follow({"a job that never moves"}, heard):
        await other.apply([Commit((success(claim.jobs[0]),))])
        await soon(heard.wait())
        await asyncio.sleep(0.02)
        heard.clear()
        await other.apply([Commit((success(job),)) for job in claim.jobs[1:]])
        await soon(heard.wait())
