"""Results wait until the store has them."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from redrive.core.job import Failure, Job
from redrive.core.lifecycle import Transition, buried
from redrive.core.store import Commit, Outcome, Unknown
from redrive.engine import outbox as outboxes
from redrive.engine.outbox import Outbox
from redrive.errors import StoreError, StoreFailed, StoreFull
from redrive.failures.classify import classify
from redrive.stores.sqlite import SqliteStore
from tests.stored_jobs import claimed, done
from tests.support import FakeClock, eventually, soon


class Full(SqliteStore):
    """The real store with a disk that is full for a while."""

    problem: Exception | None = None
    unknown = 0
    tries = 0

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        self.tries += 1
        if self.problem is not None:
            raise self.problem
        outcomes = await super().apply(group)
        if self.unknown:
            self.unknown -= 1
            return [Unknown("the disk said nothing")] * len(group)
        return outcomes


@pytest.fixture
def full(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Full:
    monkeypatch.setattr(outboxes, "AGAIN", 0.005)
    store.__class__ = Full
    assert isinstance(store, Full)
    return store


def noting(settled: list[bool]) -> Callable[[Sequence[Commit], Sequence[Commit]], None]:
    """Notes True for every commit that was applied and False for every one that was refused."""
    return lambda applied, refused: settled.extend([True] * len(applied) + [False] * len(refused))


async def test_results_wait_while_the_store_is_full(
    full: Full, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    settled: list[bool] = []
    outbox = Outbox(full, noting(settled))
    jobs = [await claimed(full, clock) for _ in range(3)]
    full.problem = StoreFull("no space left")
    for job in jobs:
        outbox.add(done(job, clock.now(), '"kept"'))
    await eventually(lambda: full.tries >= 3)
    assert settled == []
    full.problem = None
    await soon(outbox.flushed())
    assert settled == [True] * 3
    assert [job.result_json for job in await full.get([job.id for job in jobs])] == ['"kept"'] * 3
    assert any("no space left" in r.getMessage() and r.levelno >= logging.WARNING for r in caplog.records)


async def test_a_result_under_a_lost_lease_is_refused_and_told(
    full: Full, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    settled: list[bool] = []
    outbox = Outbox(full, noting(settled))
    job = await claimed(full, clock)
    outbox.add(done(job, clock.now(), '"first"'))
    await soon(outbox.flushed())
    outbox.add(done(job, clock.now(), '"second"'))
    await soon(outbox.flushed())
    assert (settled, outbox.refused) == ([True, False], 1)
    assert (await full.get([job.id]))[0].result_json == '"first"'
    assert any("refused" in record.getMessage() for record in caplog.records)


async def test_an_unknown_commit_is_repeated_until_it_is_known(full: Full, clock: FakeClock) -> None:
    outbox = Outbox(full, noting([]))
    job = await claimed(full, clock)
    full.unknown = 2
    outbox.add(done(job, clock.now(), '"kept"'))
    await soon(outbox.flushed())
    (stored,) = await full.get([job.id])
    assert (stored.state, stored.result_json, stored.attempts) == ("done", '"kept"', 1)


async def test_a_store_that_stopped_for_good_stops_the_waiting(
    full: Full, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(full, noting([]))
    job = await claimed(full, clock)
    full.problem = StoreFailed("fsync failed")
    outbox.add(done(job, clock.now()))
    await soon(outbox.flushed())
    assert any("fsync failed" in r.getMessage() and r.levelno >= logging.WARNING for r in caplog.records)


def given_up(job: Job, error: Exception) -> Transition:
    failure = Failure("exception", ("builtins.UnicodeEncodeError",), type(error).__name__)
    return buried(
        job, job.updated_at, because="permanent", why="it cannot be written", recommendation="look", failure=failure,
        cause=classify(failure), fingerprint=None,
    )  # fmt: skip


async def test_a_result_that_cannot_be_written_is_a_dead_letter_and_does_not_run_again(
    full: Full, clock: FakeClock
) -> None:
    told: list[Commit] = []
    outbox = Outbox(full, lambda applied, refused: told.extend(applied), broken=given_up)
    bad, good = await claimed(full, clock), await claimed(full, clock)
    outbox.add(done(bad, clock.now(), '"\udcff"'))
    outbox.add(done(good, clock.now(), '"kept"'))
    await soon(outbox.flushed())
    assert [job.state for job in await full.get([bad.id, good.id])] == ["dead", "done"]
    assert sorted(commit.transitions[0].move for commit in told) == ["buried", "succeeded"]
    assert outbox.refused == 0


async def test_where_not_even_the_letter_can_be_written_it_is_told(
    full: Full, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    settled: list[bool] = []
    outbox = Outbox(full, noting(settled), broken=given_up)
    full.problem = ValueError("nothing can be written")
    outbox.add(done(await claimed(full, clock), clock.now()))
    await soon(outbox.flushed())
    assert settled == [False]
    assert any("run again" in r.getMessage() and r.levelno >= logging.CRITICAL for r in caplog.records)


async def test_what_the_store_refuses_for_its_own_reasons_buries_nothing(full: Full, clock: FakeClock) -> None:
    outbox = Outbox(full, noting([]), broken=given_up)
    job = await claimed(full, clock)
    full.problem = StoreError("refused by the database")
    outbox.add(done(job, clock.now()))
    await soon(outbox.flushed())
    assert [found.state for found in await full.get([job.id])] == ["running"]


async def test_what_comes_while_it_writes_is_written_too(full: Full, clock: FakeClock) -> None:
    outbox = Outbox(full, noting([]))
    jobs = [await claimed(full, clock) for _ in range(50)]

    async def add(job: object) -> None:
        await asyncio.sleep(0)
        outbox.add(done(job, clock.now()))  # type: ignore[arg-type]

    await asyncio.gather(*(add(job) for job in jobs))
    await soon(outbox.flushed())
    assert {job.state for job in await full.get([job.id for job in jobs])} == {"done"}


@pytest.mark.parametrize("begun", [False, True], ids=["before it has begun", "while it waits for the store"])
async def test_results_survive_who_was_cancelled_with_them(full: Full, clock: FakeClock, begun: bool) -> None:
    """As by an event loop that ends: it cancels everything, and whoever stops the worker waits for the results."""
    settled: list[bool] = []
    outbox = Outbox(full, noting(settled))
    job = await claimed(full, clock)
    full.problem = StoreFull("no space left") if begun else None
    outbox.add(done(job, clock.now(), '"kept"'))
    if begun:
        await eventually(lambda: full.tries >= 1)
    flushing = outbox.add()
    flushing.cancel()
    await asyncio.wait({flushing})
    full.problem = None
    await soon(outbox.flushed())
    assert settled == [True]
    (found,) = await full.get([job.id])
    assert found.result_json == '"kept"'
