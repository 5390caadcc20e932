"""The bus hears of every committed move, once: the store's wrapper publishes, and no caller does it by hand."""

import ast
import json
from collections import Counter
from pathlib import Path

import pytest

import redrive
from redrive import BusEvent, Context, Redrive
from redrive.core.lifecycle import cancelled
from redrive.core.store import Applied, Commit, Stale
from redrive.engine import bus as bus_module
from tests.support import FakeClock, soon

SOURCE = Path(redrive.__file__).parent


def _listen(rd: Redrive, pattern: str = "*") -> list[BusEvent]:
    heard: list[BusEvent] = []
    rd.subscribe(pattern, heard.append)
    return heard


def _record(job_id: str, attempt: int) -> str:
    said = {"job_id": job_id, "payload": {"n": 1}, "error_class": "TimeoutError", "attempt": attempt}
    return json.dumps({**said, "failed_at": f"2027-01-10T0{attempt}:00:00.000Z"})


@pytest.mark.behaviour("T-5a")
async def test_the_bus_hears_of_jobs_that_a_grant_unblocks(rd: Redrive) -> None:
    @rd.task("refund", consent=True)
    async def refund(ctx: Context, amount: int) -> int:
        return amount

    handles = [await refund.options(session_id="s1").enqueue(amount) for amount in (1, 2)]
    await soon(rd.drain())
    heard = _listen(rd, "unblocked")
    await rd.sessions.grant("s1", "refund", by="ann")
    assert sorted(str(event.job_id) for event in heard) == sorted(handle.id for handle in handles)
    assert {(event.type, event.queue, event.task) for event in heard} == {("unblocked", "refund", "refund")}
    assert all(event.data is not None and event.data["who"] == "ann" for event in heard)


@pytest.mark.behaviour("T-5b")
async def test_the_bus_hears_of_a_failure_that_an_import_adds(rd: Redrive) -> None:
    await rd.dead.import_([_record("a", 1)], queue="q")
    (known,) = (await rd.dead.list()).jobs
    heard = _listen(rd, "dead_letter")
    done = await rd.dead.import_([_record("a", 2)], queue="q")
    assert done.updated == 1
    assert [(event.job_id, event.queue, event.attempt) for event in heard] == [(known.id, "q", 2)]


@pytest.mark.behaviour("T-5c")
async def test_the_bus_tells_what_the_log_of_moves_tells(rd: Redrive, clock: FakeClock) -> None:
    """Whoever moves a job, by whatever verb: each move once, in the order of the commits."""
    heard = _listen(rd)

    @rd.task(max_attempts=2, base=1, queue="mail")
    async def work(ctx: Context, n: int = 0) -> None:
        if ctx.attempt < 3:
            raise ConnectionError

    first = await work.enqueue(1)
    await rd.enqueue_many("work", [{"n": 2}, {"n": 3}], queue="mail")
    flow = rd.workflow("two")
    flow.add(work, 5, after=flow.add(work, 4))
    await flow.start()
    for _ in range(3):
        await soon(rd.drain())
        clock.advance(100)
    await rd.dead.redrive(first.id, who="ann")
    await rd.dead.discard(queue="mail", who="ann", why="old")
    await rd.dead.import_([_record("a", 1), _record("b", 1)], queue="q")
    await soon(rd.drain())
    moves = await rd.store.events("")
    told = [(bus_module._TOLD_AS.get(move.move, move.move), move.job_id) for move in moves]
    published = [(event.type, str(event.job_id)) for event in heard if event.job_id and event.type != "notice"]
    assert Counter(published) == Counter(told)


@pytest.mark.behaviour("T-5d")
async def test_a_commit_that_is_refused_is_not_told(rd: Redrive, clock: FakeClock) -> None:
    handle = await rd.enqueue("work", {})
    job = await rd.jobs.get(handle.id)
    heard = _listen(rd)
    move = cancelled(job, clock.now(), who="ann", why="no longer wanted")
    assert [type(outcome) for outcome in await rd.store.apply([Commit((move,)), Commit((move,))])] == [Applied, Stale]
    assert [(event.type, event.job_id) for event in heard] == [("cancelled", job.id)]


@pytest.mark.behaviour("T-5e")
def test_only_the_wrapper_publishes_moves() -> None:
    """What moves jobs cannot forget to say so, and cannot say so twice."""
    callers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("publish_moves", "publish_new")
    }
    assert callers == {"jobs/publishing_store.py"}


@pytest.mark.behaviour("T-5e")
def test_only_three_places_apply_commits() -> None:
    """Applied, stale and unknown are told apart once: others commit through core/commit.py, or wrap a store."""
    callers = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "stores" not in path.relative_to(SOURCE).parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "apply"
    ]
    assert sorted(callers) == ["core/commit.py", "jobs/publishing_store.py", "testing.py"]
