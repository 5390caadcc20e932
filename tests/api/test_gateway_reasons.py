"""Why a job is in the queue: said when it is accepted, and the same whenever it is asked for."""

import pytest

import redrive
from redrive import Redrive
from tests.support import FakeClock, soon


class Busy(Exception):
    status_code = 429
    retry_after = 60.0


@pytest.mark.behaviour("R-7f")
async def test_a_caller_who_was_told_the_reason_finds_it_unchanged_at_the_end(rd: Redrive) -> None:
    busy = True

    @rd.task
    async def publish() -> str:
        if busy:
            raise Busy("too many requests")
        return "well"

    queued = await soon(rd.call(publish, session_id="s1"))
    assert (queued.status, queued.queue_reason) == ("queued_for_retry", "retry")
    busy = False
    done = await soon(rd.retry(queued.operation_id or ""))
    assert (done.status, done.queue_reason) == ("ok", "retry")
    assert (await rd.jobs.get(queued.operation_id or "")).reason == "retry"
    assert await rd.sessions.inbox("s1", unread=False) == [], "the answer told it"


@pytest.mark.behaviour("R-7f")
async def test_a_submitted_operation_that_is_called_by_hand_stays_a_submitted_one(rd: Redrive) -> None:
    @rd.task
    async def work() -> str:
        return "well"

    queued = await soon(rd.submit(work, session_id="s1"))
    done = await soon(rd.retry(queued.operation_id or ""))
    assert (queued.queue_reason, done.queue_reason, done.status) == ("deferred_submit", "deferred_submit", "ok")


@pytest.mark.behaviour("R-7f")
@pytest.mark.parametrize("works", [True, False])
async def test_a_call_that_failed_for_good_and_is_brought_back_tells_its_session_the_end(
    rd: Redrive, clock: FakeClock, works: bool
) -> None:
    """The caller was answered with the first end only. A reason rewritten to `direct` told nobody of the second."""
    healed = False

    @rd.task
    async def work() -> str:
        if not (healed and works):
            raise redrive.GiveUp("the account is closed")
        return "well"

    failed = await soon(rd.call(work, session_id="s1"))
    assert failed.status == "failed" and await rd.sessions.inbox("s1", unread=False) == []
    healed = True
    await rd.dead.redrive(failed.operation_id or "", who="ada", why="opened again")
    clock.advance(3600)
    await soon(rd.drain())
    (notice,) = await rd.sessions.inbox("s1", unread=False)
    assert notice.kind == ("retry_success" if works else "retry_exhausted")
