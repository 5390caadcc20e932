"""When the queue itself is down: store → spool → the direct call, each step told, nothing done twice."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import CommitUnknown, Context, Redrive, StoreUnavailable
from redrive.core.job import Job
from redrive.core.lifecycle import MAX_GRANTS
from redrive.core.store import Inserted, Put
from redrive.stores.sqlite import SqliteStore
from tests.support import FakeClock, eventually, soon


class Flaky(SqliteStore):
    """The real store, whose disk can be told to fail: before a write, or after it was made."""

    broken: Exception | None = None
    writes_first = False

    async def insert(self, jobs: Sequence[Job], documents: Sequence[Put] = ()) -> list[Inserted]:
        if self.broken is not None:
            if self.writes_first:
                await super().insert(jobs, documents)
            raise self.broken
        return await super().insert(jobs, documents)


@pytest.fixture
def store(database: Path, clock: FakeClock) -> Flaky:
    return Flaky(database, monotonic=clock.monotonic)


@pytest.fixture
async def flaky(store: Flaky, database: Path, clock: FakeClock) -> Any:
    rd = Redrive(database, clock=clock)
    rd._store = store
    async with rd:
        yield rd


def _no_spool(rd: Redrive) -> None:
    """A file stands where the folder should be."""
    rd.spool.folder.parent.mkdir(exist_ok=True)
    rd.spool.folder.write_text("in the way")


async def test_without_fallback_the_caller_is_told(flaky: Redrive, store: Flaky) -> None:
    store.broken = StoreUnavailable("down")
    for fallback in (None, False):
        with pytest.raises(StoreUnavailable, match="down"):
            await flaky.enqueue("work", fallback=fallback)
    assert flaky.spool.count() == 0


@pytest.mark.behaviour("000-89", "000-1")
async def test_a_broken_store_leads_to_the_spool_and_the_job_is_run_later(
    flaky: Redrive, store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []
    told: list[Any] = []
    flaky.subscribe("fallback", told.append)

    @flaky.task
    async def work(n: int) -> None:
        done.append(n)

    store.broken = StoreUnavailable("down")
    job = await work.options(fallback=True).enqueue(7)
    assert (job.spooled, job.direct, done, flaky.spool.count()) == (True, False, [], 1)
    assert [event.job_id for event in told] == [job.id]
    assert any("spool" in r.getMessage() and r.levelno >= logging.WARNING for r in caplog.records)
    assert (await flaky.health()).issues == ["spool: 1 jobs wait for the store"]
    assert (await flaky.stats())["accepted"] == 1
    store.broken = None
    await soon(flaky.drain())
    assert done == [7]
    assert (await job.refresh()).state == "done"
    assert flaky.spool.count() == 0 and (await flaky.stats())["accepted"] == 1
    await soon(flaky.drain())
    assert done == [7], "the spool is drained once"


async def test_a_running_worker_drains_the_spool_by_itself(database: Path) -> None:
    rd = Redrive(database)
    rd._store = store = Flaky(database)
    done: list[int] = []

    @rd.task
    async def work(n: int) -> None:
        done.append(n)

    async with rd:
        store.broken = StoreUnavailable("down")
        await work.options(fallback=True).enqueue(1)
        store.broken = None
        async with rd.worker():
            await eventually(lambda: done == [1])


@pytest.mark.behaviour("000-89")
@pytest.mark.parametrize("fallback", ["callable", True])
async def test_without_a_spool_it_is_called_directly(
    flaky: Redrive, store: Flaky, fallback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    @flaky.task
    async def work(n: int) -> None:
        done.append(f"task {n}")

    async def direct(n: int) -> None:
        done.append(f"direct {n}")

    store.broken = StoreUnavailable("down")
    _no_spool(flaky)
    job = await work.options(fallback=direct if fallback == "callable" else True).enqueue(7)
    assert (job.direct, job.spooled) == (True, False)
    assert done == ["direct 7" if fallback == "callable" else "task 7"]
    assert any("directly" in r.getMessage() and r.levelno >= logging.WARNING for r in caplog.records)


async def test_a_task_that_needs_a_context_is_not_called_without_one(flaky: Redrive, store: Flaky) -> None:
    done: list[int] = []

    @flaky.task
    async def work(ctx: Context, n: int) -> None:
        done.append(n)

    store.broken = StoreUnavailable("down")
    _no_spool(flaky)
    with pytest.raises(StoreUnavailable, match="down"):
        await work.options(fallback=True).enqueue(7)
    assert done == []


async def test_what_needs_consent_is_not_called_without_it(flaky: Redrive, store: Flaky) -> None:
    """Where the store is down nobody can be asked: that is no yes."""
    done: list[int] = []

    @flaky.task(consent=True)
    async def refund(n: int) -> None:
        done.append(n)

    store.broken = StoreUnavailable("down")
    _no_spool(flaky)
    with pytest.raises(StoreUnavailable, match="down"):
        await refund.options(fallback=True).enqueue(7)
    assert done == []


async def test_a_sync_fallback_is_called_too(flaky: Redrive, store: Flaky) -> None:
    done: list[int] = []

    def direct(n: int) -> None:
        done.append(n)

    store.broken = StoreUnavailable("down")
    _no_spool(flaky)
    job = await flaky.enqueue("work", {"n": 3}, fallback=direct)
    assert (job.direct, done) == (True, [3])


@pytest.mark.behaviour("000-90")
async def test_an_error_is_seen_only_when_every_way_failed(flaky: Redrive, store: Flaky) -> None:
    async def direct(n: int) -> None:
        raise ConnectionError("the target is down as well")

    store.broken = StoreUnavailable("down")
    assert (await flaky.enqueue("work", {"n": 1}, fallback=direct)).spooled
    for path in flaky.spool.folder.iterdir():
        path.unlink()
    flaky.spool.folder.rmdir()
    _no_spool(flaky)
    with pytest.raises(ConnectionError, match="as well"):
        await flaky.enqueue("work", {"n": 2}, fallback=direct)


@pytest.mark.behaviour("000-91")
async def test_the_direct_call_keeps_its_timeout(flaky: Redrive, store: Flaky) -> None:
    @flaky.task(timeout=0.05)
    async def work() -> None:
        await asyncio.Event().wait()

    store.broken = StoreUnavailable("down")
    _no_spool(flaky)
    calling = asyncio.create_task(work.options(fallback=True).enqueue())
    done, _ = await asyncio.wait({calling}, timeout=10)
    calling.cancel()
    assert done, "the direct call has no end"
    assert isinstance(calling.exception(), TimeoutError)


@pytest.mark.behaviour("000-91")
async def test_the_direct_delivery_keeps_its_timeout(store: Flaky, database: Path) -> None:
    from tests.runtime.receiver import Seen, receiving

    async def never(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    rd = Redrive(database, delivery={"allow": ["127.0.0.1"]})
    rd._store = store
    async with rd, receiving(never) as receiver:
        store.broken = StoreUnavailable("down")
        _no_spool(rd)
        with pytest.raises(Exception, match=r"within 0\.05 s"):
            await soon(rd.enqueue_http("POST", receiver.url(), json={}, timeout=0.05, fallback=True))


async def test_an_unknown_commit_goes_to_the_spool_under_the_same_id(flaky: Redrive, store: Flaky) -> None:
    done: list[int] = []

    @flaky.task
    async def work(n: int) -> None:
        done.append(n)

    store.broken, store.writes_first = CommitUnknown("the disk said nothing"), True
    job = await work.options(fallback=True).enqueue(1)
    assert job.spooled
    store.broken = None
    await soon(flaky.drain())
    assert done == [1]
    assert (await flaky.jobs.get(job.id)).state == "done"
    assert (await flaky.stats())["accepted"] == 1


async def test_an_unknown_commit_never_goes_to_the_direct_call(flaky: Redrive, store: Flaky) -> None:
    done: list[int] = []

    def direct(n: int) -> None:
        done.append(n)

    store.broken, store.writes_first = CommitUnknown("the disk said nothing"), True
    _no_spool(flaky)
    with pytest.raises(CommitUnknown):
        await flaky.enqueue("work", {"n": 1}, fallback=direct)
    assert done == []


async def test_many_may_fall_back_too(flaky: Redrive, store: Flaky) -> None:
    store.broken = StoreUnavailable("down")
    many = await flaky.enqueue_many("work", [{"n": n} for n in range(3)], fallback=True)
    assert flaky.spool.count() == 3
    store.broken = None
    await soon(flaky.drain())
    assert [(await flaky.jobs.get(str(id))).state for id in many.ids] == ["waiting"] * 3


async def test_many_that_neither_store_nor_spool_takes_are_refused_as_by_the_store(
    flaky: Redrive, store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    store.broken = StoreUnavailable("down")
    _no_spool(flaky)
    with pytest.raises(StoreUnavailable, match="down"):
        await flaky.enqueue_many("work", [{"n": n} for n in range(3)], fallback=True)
    assert "the spool cannot take them either" in caplog.text


async def test_a_spooled_job_whose_key_was_used_for_something_else_meanwhile_is_a_dead_letter(
    flaky: Redrive, store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    """Its caller was told that it is accepted: it may not vanish."""
    store.broken = StoreUnavailable("down")
    spooled = await flaky.enqueue(
        "work", {"n": 2, "file": redrive.Blob(b"two")}, idempotency_key="k", queue="q", fallback=True
    )
    line = flaky.spool._files()[0].read_bytes()
    store.broken = None
    first = await flaky.enqueue("work", {"n": 1}, idempotency_key="k", queue="q")
    for _ in range(2):  # a crash after the first, and again
        await flaky._desk.drain_spool()
        assert flaky.spool.count() == 0
        (flaky.spool.folder / "1.jsonl").write_bytes(line)
    assert spooled.id == first.id
    (letter,) = (await flaky.dead.list()).jobs
    letter = await flaky.dead.show(letter.id)
    assert (letter.queue, letter.task, letter.arguments["n"], letter.key, letter.lane) == (
        "q",
        "work",
        2,
        None,
        "manual",
    )
    assert first.id in (letter.error or "") and "Compare the two" in (letter.recommendation or "")
    assert "is a dead letter" in caplog.text
    assert [document.value for document in await flaky.store.docs("blob", f"{letter.id}/")] != []
    assert (await flaky.stats())["accepted"] == 3, "two, and the line that was put back"

    got: list[Any] = []

    @flaky.task(queue="q")
    async def work(n: int, file: redrive.Blob | None = None) -> None:
        got.append((n, file.data if file else b""))

    await flaky._desk.drain_spool()
    await flaky.dead.redrive(letter.id)
    await soon(flaky.drain())
    assert sorted(got) == [(1, b""), (2, b"two")]


async def test_on_duplicate_counts_for_what_was_spooled_as_well(flaky: Redrive, store: Flaky) -> None:
    @flaky.task(max_attempts=1)
    async def work() -> None:
        raise ValueError("no")

    job = await work.options(idempotency_key="k").enqueue()
    await soon(flaky.drain())
    store.broken = StoreUnavailable("down")
    again = await work.options(idempotency_key="k", on_duplicate="redrive", fallback=True).enqueue()
    assert (again.spooled, again.id) == (True, job.id)
    store.broken = None
    await flaky._desk.drain_spool()
    assert (await job.refresh()).state == "waiting"


async def test_a_redrive_that_is_refused_keeps_nobody_in_the_spool(
    flaky: Redrive, store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    @flaky.task(max_attempts=1)
    async def work(n: int) -> None:
        if n == 1:
            raise ValueError("no")

    job = await work.options(idempotency_key="k").enqueue(1)
    await soon(flaky.drain())
    for _ in range(MAX_GRANTS):
        await flaky.dead.redrive(job.id)
        await soon(flaky.drain())
    store.broken = StoreUnavailable("down")
    await work.options(idempotency_key="k", on_duplicate="redrive", fallback=True).enqueue(1)
    other = await work.options(fallback=True).enqueue(2)
    store.broken = None
    await soon(flaky.drain())
    assert ((await job.refresh()).state, (await other.refresh()).state, flaky.spool.count()) == ("dead", "done", 0)
    assert "was asked for again and stays dead" in caplog.text


async def test_a_real_broken_store_is_survived(tmp_path: Path) -> None:
    """No stand-in: the database's folder is not there."""
    rd = Redrive(tmp_path / "gone" / "jobs.db", spool=str(tmp_path / "spool"))
    job = await rd.enqueue("work", {"n": 1}, fallback=True)
    assert job.spooled
    (tmp_path / "gone").mkdir()
    async with rd:
        await soon(rd.drain())
        assert (await rd.jobs.get(job.id)).arguments == {"n": 1}


async def test_a_spooled_repeat_of_a_job_in_trouble_is_told_as_by_the_store(
    flaky: Redrive, store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    @flaky.task
    async def work() -> None: ...

    heard: list[str] = []
    job = await work.options(idempotency_key="k").enqueue()
    await job.cancel("not wanted")
    store.broken = StoreUnavailable("down")
    await work.options(idempotency_key="k", fallback=True).enqueue()
    store.broken = None
    flaky.subscribe("duplicate", lambda event: heard.append(event.job_id or ""))
    await flaky._desk.drain_spool()
    assert heard == [job.id]
    assert f"job {job.id[-8:]} with key 'k' is discarded" in caplog.text
