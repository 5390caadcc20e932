"""What only some jobs have is found in the index of their state, and costs a plain job nothing."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from redrive.core import lifecycle
from redrive.core.job import Job, State
from redrive.core.store import Commit, Filter, Store
from redrive.stores.sqlite import SqliteStore
from tests.stores.jobs import T0, a_job, burial, hold, retry, success
from tests.stores.openers import Openers
from tests.stores.test_sqlite import Heard, accept, path_of, raw, take, traced

MARKS: list[dict[str, Any]] = [
    {"owner": "ceo"},
    {"because": "approval"},
    {"category": "transient"},
    {"detail": "nothing has this"},
    {"error_class": "ConnectionError"},
    {"fingerprint": "f" * 16},
    {"lane": "manual"},
    {"failed": True},
    {"category": "transient", "queue": "q1", "reason": "direct", "since": T0},
]
SEVERAL = [(), (State.waiting,), (State.done,), (State.dead, State.done), (State.waiting, State.running, State.held)]


async def _one_of_each(store: Store) -> None:
    """Jobs of two queues: waiting, running, held, done, dead and discarded ones, each plain and after a failure."""
    await accept(store, *(a_job(f"q{number % 2}") for number in range(12)))
    await _apply(store, *(retry(job) for job in (await take(store))[:6]))
    again = await take(store, now=T0 + 3)
    await _apply(store, hold(again[0], T0 + 4), burial(again[1], T0 + 5, owner="ceo"), success(again[2], T0 + 6))
    await _apply(
        store, lifecycle.cancelled(again[3], T0 + 7, who="ann", why=None), retry(again[4], T0 + 8, run_at=T0 + 99)
    )
    await accept(store, a_job("q1", run_at=T0 + 1e6))


async def _apply(store: Store, *moves: lifecycle.Transition) -> None:
    await store.apply([Commit((move,)) for move in moves])


def _fits(job: Job, states: tuple[State, ...], marks: dict[str, Any]) -> bool:
    wanted = {name: value for name, value in marks.items() if name not in ("failed", "since")}
    return (
        (not states or job.state in states)
        and all(getattr(job, name) == value for name, value in wanted.items())
        and not (marks.get("failed") and job.error_class is None)
        and job.updated_at >= marks.get("since", 0.0)
    )


@pytest.mark.parametrize("states", SEVERAL, ids=lambda states: "+".join(states) or "any state")
@pytest.mark.parametrize("marks", MARKS, ids="+".join)
@pytest.mark.parametrize("oldest", [False, True], ids=["newest", "oldest"])
async def test_the_jobs_are_those_that_match(
    sqlite: Openers, states: tuple[State, ...], marks: dict[str, Any], oldest: bool
) -> None:
    store = await sqlite.open()
    await _one_of_each(store)
    with closing(raw(path_of(sqlite))) as other:  # no success of ours leaves this behind
        other.execute("UPDATE jobs SET category = 'transient', error_class = 'ConnectionError' WHERE state = 'done'")
    every = [job async for job in store.scan()]
    assert {job.state for job in every} == set(State) - {State.purged}
    expected = [job.id for job in every if _fits(job, states, marks)]
    filter, found, cursor = Filter(states=states, **marks), list[str](), None
    while True:
        page = await store.find(filter, cursor, limit=2, oldest=oldest)
        found += [job.id for job in page.jobs]
        if (cursor := page.cursor) is None:
            break
    assert found == (expected if oldest else expected[::-1])
    assert await store.count(filter) == {(): len(expected)}
    by_state = {
        (str(state),): sum(job.state is state and _fits(job, states, marks) for job in every) for state in State
    }
    assert await store.count(filter, by=("state",)) == {key: number for key, number in by_state.items() if number}
    assert (await store.seal(filter)).number == len(expected)


@pytest.mark.parametrize("states", SEVERAL, ids=lambda states: "+".join(states) or "any state")
@pytest.mark.parametrize("marks", MARKS, ids="+".join)
async def test_no_other_job_is_looked_at(folder: Path, states: tuple[State, ...], marks: dict[str, Any]) -> None:
    """A page reads one index of each state, then the rows of the page by their numbers."""
    heard, filter = Heard(), Filter(states=states, **marks)
    with traced(heard):
        store = SqliteStore(folder / "jobs.db")
        await accept(store, a_job("q1"))
        with closing(raw(folder / "jobs.db")) as other:
            other.execute("UPDATE routes SET held = 1, done = 1, dead = 1")  # or the counters say that there is nothing
        heard.statements.clear()
        await store.find(filter, limit=1)
        await store.find(filter, f"{T0!r}:1", limit=1)
        await store.count(filter)
        plans = heard.plans(folder / "jobs.db")
    await store.close()
    looks = {sql: plan for sql, plan in plans.items() if "FROM jobs" in sql}
    assert len(looks) == 3
    by_index = re.compile(
        r"(SCAN|SEARCH) jobs USING (COVERING )?INDEX jobs_|SEARCH jobs USING INTEGER PRIMARY KEY \(rowid="
    )
    for plan in looks.values():
        steps = [step for step in plan.split(" | ") if " jobs" in step]
        assert steps and all(by_index.match(step) for step in steps), looks


@pytest.mark.parametrize("state", [State.held, State.dead, State.discarded], ids=str)
async def test_one_state_is_listed_from_its_index_without_reading_other_rows(folder: Path, state: State) -> None:
    heard = Heard()
    with traced(heard):
        store = SqliteStore(folder / "jobs.db")
        await accept(store, a_job("q1"))
        heard.statements.clear()
        await store.count(Filter(states=(state,), because="approval", queue="q1"), by=("queue", "because"))
        await store.count(Filter(states=(state,), owner="ceo", since=T0))
        await store.find(Filter(states=(state,), owner="ceo"), limit=1)
        plans = heard.plans(folder / "jobs.db")
    await store.close()
    counts = [plan for sql, plan in plans.items() if "count(*) FROM jobs" in sql]
    assert all("USING COVERING INDEX jobs_" in plan for plan in counts), plans
    (listing,) = [plan for sql, plan in plans.items() if "ORDER BY jobs.updated_at" in sql]
    assert "USING INDEX jobs_" in listing and "TEMP B-TREE" not in listing, plans


# ---- what it costs


def _entries(connection: apsw.Connection) -> dict[str, set[str]]:
    """The indexes in which each job stands, beside the one over all ids, by the job's state."""
    made = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'jobs' AND sql IS NOT NULL"
    ).fetchall()
    return {
        state: {name for name, sql in made if connection.execute(_STANDS.format(_condition(sql)), (id,)).get}
        for id, state in connection.execute("SELECT id, state FROM jobs").fetchall()
    }


_STANDS = "SELECT count(*) FROM jobs WHERE id = ? AND ({})"


def _condition(index: str) -> str:
    _, *condition = re.split(r"\sWHERE\s", index, maxsplit=1)
    return condition[0] if condition else "true"


async def test_a_plain_job_stands_in_no_more_indexes_than_its_claim_needs(sqlite: Openers) -> None:
    store = await sqlite.open()
    await accept(store, a_job(), a_job(), a_job(run_at=T0 + 1e6))
    first, _ = await take(store)
    await _apply(store, success(first))
    with closing(raw(path_of(sqlite))) as look:
        assert _entries(look) == {"waiting": {"jobs_due"}, "running": {"jobs_watched"}, "done": set()}


async def test_a_job_after_a_failure_stands_in_no_more_indexes_than_before(sqlite: Openers) -> None:
    """The indexes that hold what is said of a job took the places of narrower ones."""
    store = await sqlite.open()
    await accept(store, *(a_job() for _ in range(4)))
    jobs = await take(store)
    await _apply(
        store, retry(jobs[0]), hold(jobs[1]), burial(jobs[2]), lifecycle.cancelled(jobs[3], T0 + 5, who=None, why=None)
    )
    with closing(raw(path_of(sqlite))) as look:
        assert _entries(look) == {
            "waiting": {"jobs_due", "jobs_retrying"},
            "held": {"jobs_on_hold"},
            "dead": {"jobs_dead", "jobs_group", "jobs_died"},
            "discarded": {"jobs_let_go"},
        }
