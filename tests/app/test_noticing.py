"""Whatever keeps the jobs, what a move must tell is written with the move, or not at all."""

import copy
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive.app.noticing import with_notices
from redrive.core import lifecycle
from redrive.core.job import Job, State
from redrive.core.notices import Notice
from redrive.core.store import Applied, Commit, Guard, Lease, Put, Stale, Store
from redrive.runtime.notify import INBOX
from redrive.stores.sqlite import SqliteStore
from tests.stores.jobs import T0, a_job


class OnlyVerbs:
    """A store that is no SQLite store, as far as anybody can see."""

    def __init__(self, path: Path) -> None:
        self._real = SqliteStore(path)
        self.applied: list[Commit] = []

    def __getattr__(self, name: str) -> object:
        assert name in vars(Store), f"{name} is not a verb of the store"
        return getattr(self._real, name)

    async def apply(self, commits: list[Commit]) -> object:
        self.applied += commits
        return await self._real.apply(commits)


@pytest.fixture
async def inner(database: Path) -> AsyncIterator[OnlyVerbs]:
    store = OnlyVerbs(database)
    yield store
    await store._real.close()


def asked_for(session: str = "s1") -> Job:
    return a_job(state=State.held, because="approval", held_at=T0, reason="deferred_submit", session_id=session)


async def test_any_store_tells_in_the_moves_own_commit(inner: OnlyVerbs) -> None:
    told: list[Notice] = []
    store = with_notices(inner, told.append)  # type: ignore[arg-type]
    job = asked_for()
    await store.insert([job])
    (outcome,) = await store.apply([Commit((lifecycle.resolved(job, T0 + 1, who="ann", why="it landed"),))])
    assert isinstance(outcome, Applied)
    (notice,) = told
    assert (notice.job_id, notice.session_id) == (job.id, "s1")
    (commit,) = inner.applied
    assert len(commit.transitions) == 1 and INBOX in {put.kind for put in commit.puts}
    assert [document.key for document in await store.docs(INBOX, "s1/")] == [f"s1/{notice.id}"]


async def test_a_move_that_was_not_written_tells_nobody(inner: OnlyVerbs) -> None:
    told: list[Notice] = []
    store = with_notices(inner, told.append)  # type: ignore[arg-type]
    job = asked_for()
    await store.insert([job])
    move = lifecycle.resolved(job, T0 + 1, who="ann", why="it landed")
    (outcome,) = await store.apply([Commit((move,), guards=(Guard(Lease(job.id, "somebody else's")),))])
    assert isinstance(outcome, Stale)
    assert (told, await store.docs(INBOX)) == ([], [])


async def test_a_commit_that_concerns_nobody_is_handed_on_as_it_is(inner: OnlyVerbs) -> None:
    store = with_notices(inner, lambda notice: pytest.fail(f"{notice} concerns nobody"))  # type: ignore[arg-type]
    job = a_job(state=State.held, because="blocked", held_at=T0)
    await store.insert([job])
    commits = [Commit((lifecycle.unblocked(job, T0 + 1),)), Commit(puts=(Put("mark", "x", b"1"),))]
    await store.apply(commits)
    assert all(one is other for one, other in zip(inner.applied, commits, strict=True))


def test_a_copy_of_the_wrapper_is_one(tmp_path: Path) -> None:
    store = with_notices(SqliteStore(tmp_path / "jobs.db"), lambda notice: None)
    assert copy.copy(store).path == tmp_path / "jobs.db"  # type: ignore[attr-defined]
