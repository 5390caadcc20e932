"""A small write that nobody else waits beside is committed by its caller; everything else by the thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from redrive.core.job import Job
from redrive.core.store import Filter, Inserted, Put, Wanted
from redrive.errors import StoreUnavailable
from redrive.stores.sqlite import SqliteStore, writer
from tests.chaos.processes import until
from tests.chaos.vfs import RecordingVFS, Synced, installed
from tests.stores.jobs import T0, a_job

THREAD = "redrive-writer"


class Commits:
    """Which thread sent which statement, of every connection opened meanwhile."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, str]] = []

    def threads(self, statement: str = "BEGIN IMMEDIATE") -> list[str]:
        return [thread for sql, thread in self.statements if sql.startswith(statement)]

    @contextmanager
    def listening(self) -> Iterator[Commits]:
        def listen(opened: apsw.Connection) -> None:
            def tell(_: apsw.Cursor, sql: str, __: Any) -> bool:
                self.statements.append((sql, threading.current_thread().name))
                return True

            opened.set_exec_trace(tell)

        apsw.connection_hooks.append(listen)
        try:
            yield self
        finally:
            apsw.connection_hooks.remove(listen)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the disk under the tests is."""
    monkeypatch.setattr(writer, "QUICK", 3_600.0)


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[SqliteStore]:
    with Commits().listening() as commits:
        store = SqliteStore(folder / "jobs.db")
        store.commits = commits  # type: ignore[attr-defined]
        await alone(store, commits)
        commits.statements.clear()
        yield store
        await store.close()


async def alone(store: SqliteStore, commits: Commits) -> None:
    """Write one after the other, until they are seen to be alone."""
    for _ in range(200):
        await store.insert([a_job()])
        if commits.threads()[-1:] == [here()]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never committed here")


@pytest.fixture
def commits(store: SqliteStore) -> Commits:
    found: Commits = store.commits  # type: ignore[attr-defined]
    return found


def here() -> str:
    return threading.current_thread().name


async def test_alone_it_is_committed_here_and_synced(folder: Path) -> None:
    with installed(RecordingVFS(folder)) as recorder, Commits().listening() as commits:
        store = SqliteStore(folder / "jobs.db")
        await alone(store, commits)
        before, written = _syncs(recorder), len(commits.threads())
        job = a_job()
        (inserted,) = await store.insert([job])
        assert (inserted.job, inserted.duplicate) == (job, False)
        assert commits.threads()[written:] == [here()]
        assert _syncs(recorder) == before + 1
        assert [found.id for found in await store.get([job.id])] == [job.id]
        await store.close()


def _syncs(recorder: RecordingVFS) -> int:
    return sum(isinstance(entry, Synced) for entry in list(recorder.log.entries))


async def test_a_slow_disk_is_waited_for_by_the_thread(
    store: SqliteStore, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "QUICK", 0.0)
    await store.insert([a_job()])
    assert commits.threads() == [THREAD]


async def test_how_long_commits_take_is_learned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stalls once is left to the thread until it has been quick for a while."""
    monkeypatch.setattr(writer, "QUICK", 0.05)
    with Commits().listening() as commits:
        store = SqliteStore(folder / "jobs.db")
        await alone(store, commits)
        assert commits.threads()[0] == THREAD, "not before it was seen to be quick"

        def stall(connection: apsw.Connection, items: list[Any]) -> list[Any]:
            threading.Event().wait(0.4)
            return items

        await store._writer.run_batched(stall, None, small=True)  # type: ignore[union-attr]
        await store.insert([a_job()])
        assert commits.threads()[-2:] == [here(), THREAD]
        await store.close()


@pytest.mark.parametrize("what", ["many jobs", "a large payload", "documents", "a new route"])
async def test_what_takes_longer_is_done_by_the_thread(store: SqliteStore, commits: Commits, what: str) -> None:
    job, documents = a_job(), []
    jobs = [job]
    match what:
        case "many jobs":
            jobs = [a_job(), a_job()]
        case "a large payload":
            jobs = [a_job(payload='{"text":"' + "x" * 70_000 + '"}')]
        case "documents":
            documents = [Put("blob", f"{job.id}/0", b"x" * 100_000)]
        case "a new route":
            jobs = [a_job(queue="new")]
    assert len(await store.insert(jobs, documents)) == len(jobs)
    assert commits.threads()[-1:] == [THREAD]


async def test_callers_of_one_turn_share_a_commit(store: SqliteStore, commits: Commits) -> None:
    jobs = [a_job() for _ in range(100)]
    before = (await store.count(Filter()))[()]
    answers = await asyncio.gather(*(store.insert([job]) for job in jobs))
    assert [inserted.job.id for (inserted,) in answers] == [job.id for job in jobs]
    assert commits.threads() == [here(), THREAD], "one that could not know of the others, and those"
    commits.statements.clear()
    await asyncio.gather(*(store.insert([a_job()]) for _ in range(100)))
    assert commits.threads() == [THREAD]
    assert await store.count(Filter()) == {(): before + 200}


async def test_the_lock_of_another_process_does_not_stop_the_event_loop(store: SqliteStore, commits: Commits) -> None:
    with closing(apsw.Connection(str(store.path))) as other:
        other.execute("BEGIN IMMEDIATE")
        write = asyncio.ensure_future(store.insert([a_job()]))
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert not write.done()
        other.execute("COMMIT")
    async with asyncio.timeout(20):
        await write
    assert commits.threads()[-1:] == [THREAD]
    await alone(store, commits)


async def test_whoever_writes_one_after_the_other_lets_others_have_their_turn(store: SqliteStore) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    for _ in range(50):
        await store.insert([a_job()])
    task.cancel()
    assert turns >= 50


async def test_an_idle_worker_gets_what_was_written_here(store: SqliteStore, commits: Commits) -> None:
    wanted = Wanted(slots=1_000)
    await store.claim(wanted, "w1", T0)

    async def idle() -> list[Job]:
        while True:
            claim = await store.claim(wanted, "w1", T0)
            served = await store.claim_next(wanted, "w1", lambda: T0, claim.mark, 20, asyncio.Event())
            if served is not None:
                return served.jobs

    waiting = asyncio.ensure_future(idle())
    await asyncio.sleep(0.3)
    commits.statements.clear()
    job = a_job()
    await store.insert([job])
    async with asyncio.timeout(10):
        assert [found.id for found in await waiting] == [job.id]
    assert [thread for thread in commits.threads() if thread == here()] == [here()], "claimed in the same commit"
    assert commits.threads("UPDATE jobs SET state = 'running'") == [here()]


async def test_a_key_that_is_known_is_told_here(store: SqliteStore, commits: Commits) -> None:
    job = a_job()
    await store.insert([job])
    (again,) = await store.insert([job])
    assert (again.job.id, again.duplicate) == (job.id, True)
    assert commits.threads() == [here()] * 2


class _Interrupted(BaseException):
    """As Ctrl-C, which may come at any place."""


@pytest.mark.parametrize("error", [_Interrupted, KeyError])
async def test_what_fails_here_is_taken_back_and_told(
    store: SqliteStore, commits: Commits, error: type[BaseException]
) -> None:
    def write(connection: apsw.Connection, jobs: list[Job]) -> list[list[Inserted]]:
        connection.execute("UPDATE jobs SET priority = 0")
        raise error

    assert store._writer is not None
    with pytest.raises(error):
        await store._writer.run_batched(write, a_job(), small=True)
    assert commits.threads("UPDATE jobs SET priority = 0") == [here()]
    await store.insert([a_job()])
    assert {job.priority for job in (await store.find(Filter())).jobs} == {2}


async def test_the_log_is_moved_by_the_thread(
    store: SqliteStore, commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 20)
    for _ in range(20):
        await store.insert([a_job()])
    await until("the log is moved", lambda: commits.threads("PRAGMA wal_checkpoint"))
    assert set(commits.threads("PRAGMA wal_checkpoint")) == {THREAD}


async def test_a_closed_store_takes_nothing_here_either(store: SqliteStore, commits: Commits) -> None:
    assert store._writer is not None
    closed, write = store._writer, asyncio.ensure_future(store.insert([a_job()]))
    await store.close()
    await write
    with pytest.raises(StoreUnavailable, match="closed"):
        await closed.run_batched(lambda *_: [[]], None, small=True)


async def test_two_event_loops_write_in_turn(store: SqliteStore) -> None:
    def elsewhere() -> None:
        async def some() -> None:
            for _ in range(100):
                await store.insert([a_job()])

        asyncio.run(some())

    before = (await store.count(Filter()))[()]
    both = [asyncio.ensure_future(asyncio.to_thread(elsewhere)) for _ in range(2)]
    for _ in range(100):
        await store.insert([a_job()])
    await asyncio.gather(*both)
    assert await store.count(Filter()) == {(): before + 300}
