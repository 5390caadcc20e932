"""Whatever keeps the jobs, what a move must tell is written with the move, or not at all."""

import copy
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.core import lifecycle
from redrive.core.documents import INBOX
from redrive.core.job import Job, State
from redrive.core.store import MAX_PARTS, Applied, Commit, Guard, Lease, Put, Stale, Store
from redrive.engine.bus import Bus, BusEvent
from redrive.errors import StoreError
from redrive.jobs.publishing_store import wrap_store
from redrive.stores.sqlite import SqliteStore
from tests import elsewhere
from tests.stores.jobs import T0, a_dead_job, a_job
from tests.support import FakeClock


class OnlyVerbs:
    """A store that is no SQLite store, as far as anybody can see."""

    def __init__(self, path: Path) -> None:
        self._real = elsewhere.made(path, FakeClock())
        self.applied: list[Commit] = []
        self.fails_without_moves = False

    def __getattr__(self, name: str) -> object:
        assert name in vars(Store), f"{name} is not a verb of the store"
        return getattr(self._real, name)

    async def apply(self, commits: list[Commit]) -> object:
        if self.fails_without_moves and not any(commit.transitions for commit in commits):
            raise StoreError("the disk is full")
        self.applied += commits
        return await self._real.apply(commits)


@pytest.fixture
async def inner(database: Path) -> AsyncIterator[OnlyVerbs]:
    store = OnlyVerbs(database)
    yield store
    await store._real.close()


def told_by(inner: OnlyVerbs) -> tuple[Store, list[BusEvent]]:
    """The wrapped store, and the notices that its bus hears of."""
    bus, told = Bus(), list[BusEvent]()
    bus.subscribe("notice", told.append)
    return wrap_store(inner, bus), told  # type: ignore[arg-type]


def asked_for(session: str = "s1") -> Job:
    return a_job(state=State.held, because="approval", held_at=T0, reason="deferred_submit", session_id=session)


async def test_any_store_tells_in_the_moves_own_commit(inner: OnlyVerbs) -> None:
    store, told = told_by(inner)
    job = asked_for()
    await store.insert([job])
    (outcome,) = await store.apply([Commit((lifecycle.resolved(job, T0 + 1, who="ann", why="it landed"),))])
    assert isinstance(outcome, Applied)
    (notice,) = told
    assert notice.data is not None and (notice.job_id, notice.data["session_id"]) == (job.id, "s1")
    (commit,) = inner.applied
    assert len(commit.transitions) == 1 and INBOX.name in {put.kind for put in commit.puts}
    assert [document.key for document in await store.docs(INBOX.name, "s1/")] == [f"s1/{notice.data['id']}"]


async def test_a_move_that_was_not_written_tells_nobody(inner: OnlyVerbs) -> None:
    store, told = told_by(inner)
    job = asked_for()
    await store.insert([job])
    move = lifecycle.resolved(job, T0 + 1, who="ann", why="it landed")
    (outcome,) = await store.apply([Commit((move,), guards=(Guard(Lease(job.id, "somebody else's")),))])
    assert isinstance(outcome, Stale)
    assert (told, await store.docs(INBOX.name)) == ([], [])


async def test_a_commit_that_concerns_nobody_is_handed_on_as_it_is(inner: OnlyVerbs) -> None:
    store, told = told_by(inner)
    job = a_job(state=State.held, because="blocked", held_at=T0)
    await store.insert([job])
    commits = [Commit((lifecycle.unblocked(job, T0 + 1),)), Commit(puts=(Put("mark", "x", b"1"),))]
    await store.apply(commits)
    assert all(one is other for one, other in zip(inner.applied, commits, strict=True)) and not told


def test_a_copy_of_the_wrapper_is_one(tmp_path: Path) -> None:
    store = wrap_store(SqliteStore(tmp_path / "jobs.db"), Bus())
    assert copy.copy(store).path == tmp_path / "jobs.db"  # type: ignore[attr-defined]


# ---- more to tell than fits


async def test_what_many_moves_tell_in_the_same_words_is_written_once(inner: OnlyVerbs) -> None:
    """Whoever owns a trouble is told of it once, however many of its letters one commit defers."""
    store, told = told_by(inner)
    jobs = [a_dead_job(fingerprint="f" * 16) for _ in range(200)]
    await store.insert(jobs)
    moves = [lifecycle.deferred(job, T0 + 9, owner="bob", until=T0 + 99, who="ada", why=None) for job in jobs]
    await store.apply([Commit(tuple(moves))])
    (commit,) = inner.applied
    assert (len(commit.transitions), len(commit.puts), len(told)) == (200, 1, 1)
    assert len(await store.docs(INBOX.name)) == 1


async def many(store: Store) -> Commit:
    """Moves that each tell something of their own."""
    jobs = [asked_for() for _ in range(200)]
    await store.insert(jobs)
    return Commit(tuple(lifecycle.resolved(job, T0 + 1, who="ann", why="it landed") for job in jobs))


async def test_what_does_not_fit_beside_the_moves_follows_them(inner: OnlyVerbs) -> None:
    store, _ = told_by(inner)
    (outcome,) = await store.apply([await many(store)])
    assert isinstance(outcome, Applied)
    assert len(await store.docs(INBOX.name)) == 200
    assert all(len(commit.transitions) + len(commit.puts) <= MAX_PARTS for commit in inner.applied)


async def test_moves_stand_where_what_follows_them_cannot_be_written(
    inner: OnlyVerbs, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever made them must not try them again, and somebody must hear of what is lost."""
    store, _ = told_by(inner)
    inner.fails_without_moves = True
    (outcome,) = await store.apply([await many(store)])
    assert isinstance(outcome, Applied)
    assert len(await store.docs(INBOX.name)) == MAX_PARTS - 200
    assert "150 messages could not be written" in caplog.text and "disk is full" in caplog.text
