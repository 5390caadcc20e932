"""When the queue itself is down: store → spool → the direct call, each step told, nothing done twice."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import CommitUnknown, Context, Redrive, StoreUnavailable
from redrive.core.job import Job
from redrive.core.lifecycle import MAX_GRANTS
from redrive.core.store import Inserted, Put
from tests import elsewhere
from tests.support import FakeClock, eventually, locked, soon


class Flaky:
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
    return elsewhere.made(database, clock, Flaky)


@pytest.fixture
async def flaky(store: Flaky, database: Path, clock: FakeClock) -> Any:
    rd = Redrive(database, clock=clock)
    rd.core.holder.store = store
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


@pytest.mark.behaviour("000-89", "000-1", "C12", "C16")
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
    assert (await flaky.health()).issues == ["spool: 1 job waits beside the store, which could not take them"]
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
    rd.core.holder.store = store = elsewhere.made(database, rd.clock, Flaky)
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


@pytest.mark.behaviour("000-90", "C16")
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
    from tests.receiver import Seen, receiving

    async def never(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    rd = Redrive(database, delivery={"allow": ["127.0.0.1"]})
    rd.core.holder.store = store
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


@pytest.mark.behaviour("C16")
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
        await flaky._enqueuer.drain_spool()
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

    await flaky._enqueuer.drain_spool()
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
    await flaky._enqueuer.drain_spool()
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
    await flaky._enqueuer.drain_spool()
    assert heard == [job.id]
    assert f"job {job.id[-8:]} with key 'k' is discarded" in caplog.text


# ---- a locked file ----

BEFORE_THE_STORE_GIVES_UP = 15.0
"""Seconds: half of those after which the store itself says that the file is locked."""


async def handed_in(work: Awaitable[Any]) -> Any:
    """What the call gives, while another process still holds the lock."""
    calling = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({calling}, timeout=BEFORE_THE_STORE_GIVES_UP)
    assert done, "the caller waits for the lock of another process"
    return calling.result()


@pytest.mark.file("another process locks the file")
@pytest.mark.behaviour("T-14a")
async def test_a_locked_file_does_not_hold_the_caller(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The write lands late: it is the same job, which runs once."""
    rd, done, told = Redrive(database), list[int](), list[Any]()

    @rd.task
    async def work(n: int) -> None:
        done.append(n)

    accepted: list[Any] = []
    rd.subscribe("fallback", told.append)
    rd.subscribe("enqueued", accepted.append)
    async with rd:
        await work.enqueue(0)
        with locked(database) as release:
            job = await handed_in(work.options(fallback=True).enqueue(1))
            assert (job.spooled, job.direct, rd.spool.count()) == (True, False, 1)
            assert [(event.job_id, event.data["to"]) for event in told] == [(job.id, "spool")]
            assert "trying the spool" in caplog.text
            release()
        await eventually(lambda: _is_known(rd, job.id), "the late write")
        await soon(rd.drain())
        assert sorted(done) == [0, 1]
        assert ((await rd.stats())["accepted"], rd.spool.count()) == (2, 0)
        assert [event.job_id for event in accepted].count(job.id) == 1, "the bus tells it once"


async def _is_known(rd: Redrive, job_id: str) -> bool:
    return bool(await rd.store.get([job_id]))


@pytest.mark.file("another process locks the file")
@pytest.mark.behaviour("T-14a")
async def test_a_locked_file_is_no_reason_for_the_direct_call(database: Path) -> None:
    """The write may still land: a direct call could do it twice."""
    rd, done = Redrive(database), list[int]()

    @rd.task(fallback=done.append)
    async def work(n: int) -> None:
        done.append(n)

    async with rd:
        await rd.open()
        _no_spool(rd)
        with locked(database) as release:
            with pytest.raises(CommitUnknown, match=r"within 0\.1 s"):
                await handed_in(work.options(fallback_after=0.1).enqueue(1))
            release()
    assert done == []


@pytest.mark.parametrize("items", [[], [{"n": {1: 2}}, {"n": {3}}]], ids=["none", "refused"])
async def test_nothing_to_accept_is_no_trouble_of_the_store(
    database: Path, caplog: pytest.LogCaptureFixture, items: list[Any]
) -> None:
    async with Redrive(database) as rd:
        for fallback in (False, True):
            many = await rd.enqueue_many("work", items, fallback=fallback)
            assert (sorted(many.refused), many.spooled) == (list(range(len(items))), 0)
        assert rd.spool.count() == 0
    assert "spool" not in caplog.text


@pytest.mark.file("another process locks the file")
@pytest.mark.behaviour("T-14a")
async def test_many_wait_for_a_locked_file_once(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each part in which they are written."""
    monkeypatch.setattr("redrive.jobs.enqueuer.CHUNK", 2)
    waits: list[float | None] = []
    real = asyncio.wait

    async def wait(awaited: Any, *, timeout: float | None = None, **how: Any) -> Any:
        waits.append(timeout)
        return await real(awaited, timeout=timeout, **how)

    async with Redrive(database) as rd:
        with locked(database) as release:
            monkeypatch.setattr("redrive.jobs.enqueuer.asyncio.wait", wait)
            many = await rd.enqueue_many("work", [{"n": n} for n in range(6)], fallback=True, fallback_after=0.5)
            monkeypatch.undo()
            assert (many.spooled, waits) == (6, [0.5])
            release()
        await soon(rd.drain())
        assert [(await rd.jobs.get(str(id))).state for id in many.ids] == ["waiting"] * 6
        assert (await rd.stats())["accepted"] == 6


@pytest.mark.behaviour("T-14b")
@pytest.mark.parametrize("where", ["call", "task", "queue", "instance", "file", "environment"])
async def test_a_fallback_can_be_said_everywhere(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time, too. No stand-in: the database's folder is not there."""
    monkeypatch.chdir(tmp_path)
    said: dict[str, Any] = {"fallback": True, "fallback_after": 7.0}
    if where == "file":
        Path("redrive.toml").write_text("fallback = true\nfallback_after = 7\n")
    if where == "environment":
        monkeypatch.setenv("REDRIVE_FALLBACK", "true")
        monkeypatch.setenv("REDRIVE_FALLBACK_AFTER", "7")
    rd = Redrive(
        tmp_path / "gone" / "jobs.db", spool=str(tmp_path / "spool"),
        queues={"work": said} if where == "queue" else None, **(said if where == "instance" else {}),
    )  # fmt: skip

    @rd.task(**(said if where == "task" else {}))
    async def work(n: int) -> None: ...

    assert (await work.options(**(said if where == "call" else {})).enqueue(1)).spooled
    assert rd._enqueuer.plan("work", said if where == "call" else {}).fallback.after == 7.0


@pytest.mark.behaviour("T-14b")
async def test_the_most_specific_word_about_a_fallback_counts(tmp_path: Path) -> None:
    rd = Redrive(
        tmp_path / "gone" / "jobs.db", spool=str(tmp_path / "spool"), fallback=True,
        queues={"careful": {"fallback": False}, "other": {"fallback": False}},
    )  # fmt: skip

    @rd.task(queue="careful", fallback=True)
    async def own() -> None: ...

    @rd.task(queue="careful")
    async def inherited() -> None: ...

    assert (await rd.enqueue("anything", {})).spooled
    assert (await own.enqueue()).spooled
    assert (await rd.enqueue("unknown", {}, queue="other", fallback=True)).spooled
    for refused in (inherited.enqueue(), own.options(fallback=False).enqueue(), rd.enqueue("x", {}, queue="other")):
        with pytest.raises(StoreUnavailable):
            await refused


@pytest.mark.parametrize("value", ["yes", 1, 0.5])
def test_a_fallback_is_yes_no_or_a_function(database: Path, value: Any) -> None:
    rd = Redrive(database)
    with pytest.raises(redrive.InvalidOption, match="fallback"):
        rd.task(fallback=value)(lambda: None)
    with pytest.raises(redrive.ConfigError, match="fallback"):
        Redrive(database, queues={"q": {"fallback": value}})


@pytest.mark.parametrize("value", [0, -1, float("nan")])
async def test_the_time_of_a_fallback_is_longer_than_nothing(database: Path, value: float) -> None:
    with pytest.raises(redrive.ConfigError, match="fallback_after"):
        Redrive(database, fallback_after=value)
    with pytest.raises(redrive.InvalidOption, match="fallback_after"):
        await Redrive(database).enqueue("work", {}, fallback=True, fallback_after=value)


@pytest.mark.file("another process locks the file")
@pytest.mark.behaviour("T-14a")
async def test_a_store_that_was_too_slow_can_be_closed(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A script that ends does not wait for the lock either; the job is in the spool."""
    rd = Redrive(database, fallback=True, fallback_after=0.1)
    await rd.open()
    with locked(database):
        job = await rd.enqueue("work", {"n": 1})
        await handed_in(rd.close())
    assert "was given up when the store was closed" in caplog.text
    async with rd:
        await soon(rd.drain())
        assert (await rd.jobs.get(job.id)).arguments == {"n": 1}


@pytest.mark.file("another process locks the file")
async def test_closing_gives_up_no_write_whose_caller_waits(database: Path) -> None:
    rd = Redrive(database, fallback=True, fallback_after=60.0)
    await rd.open()
    with locked(database) as release:
        handing = asyncio.create_task(rd.enqueue("work", {"n": 1}))
        await asyncio.sleep(0)
        closing = asyncio.create_task(rd.close())
        await asyncio.sleep(0)
        release()
        assert not (await soon(handing)).spooled
        await soon(closing)
