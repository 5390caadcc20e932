"""Escalations: a message for the owner of a dead letter, and what was put off until later."""

from typing import Any

import pytest

from redrive import Redrive
from redrive.core.job import State
from redrive.core.store import Commit
from tests import elsewhere
from tests.support import FakeClock, eventually, soon

pytestmark = pytest.mark.preset("seven_agents")  # whose escalations are for its ceo
DAY = 86400.0
INBOX = "owner:ceo"


class Gone(Exception):
    """What the tasks of these tests fail with until somebody puts it right."""

    error_kind = "dependency_gone"


class World:
    """What is wrong outside."""

    def __init__(self, rd: Redrive) -> None:
        self.well = False

        @rd.task("fetch", max_attempts=3)
        async def fetch(page: int = 0) -> str:
            if not self.well:
                raise Gone("the site is gone")
            return "fetched"


async def escalated(rd: Redrive, number: int = 1, **options: Any) -> list[str]:
    """Dead letters that the escalation agent owns."""
    ids = [(await rd.enqueue("fetch", {"page": n}, **options)).id for n in range(number)]
    await soon(rd.drain())
    jobs = await rd.store.get(ids)
    assert {(job.state, job.lane, job.owner) for job in jobs} == {(State.dead, "manual", "ceo")}
    return ids


# ---- escalations


async def test_an_escalation_is_a_message_for_its_owner(rd: Redrive) -> None:
    World(rd)
    (id,) = await escalated(rd)
    (notice,) = await rd.sessions.inbox(INBOX)
    assert (notice.kind, notice.status, notice.job_id) == ("escalated", "pending", id)
    assert notice.title == "fetch needs ceo"
    assert "the site is gone" in notice.text and f"redrive dead show {id[-8:]}" in notice.text


async def test_ten_burials_of_one_trouble_are_one_message_that_counts_them(rd: Redrive) -> None:
    World(rd)
    ids = await escalated(rd, 10)
    (notice,) = await rd.sessions.inbox(INBOX)
    assert "10 of this kind" in notice.text
    await rd.dead.discard(ids=ids[1:])
    assert "of this kind" not in (await rd.sessions.inbox(INBOX))[0].text
    await rd.dead.discard(ids[0])
    assert await rd.sessions.inbox(INBOX) == []
    (settled,) = await rd.sessions.inbox(INBOX, unread=False)
    assert settled.status == "resolved"


async def test_the_message_is_in_the_commit_of_the_burial(rd: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    World(rd)
    seen: list[Commit] = []
    writer = elsewhere.kind()
    apply = writer.apply

    async def watched(self: Any, group: Any) -> Any:
        seen.extend(commit for commit in group if any(move.move == "buried" for move in commit.transitions))
        return await apply(self, group)

    monkeypatch.setattr(writer, "apply", watched)
    await escalated(rd)
    (commit,) = seen
    assert [put.kind for put in commit.puts if put.key.startswith(INBOX)] == ["inbox"]


async def test_what_comes_back_by_itself_is_nobodys_to_see_to(rd: Redrive) -> None:
    @rd.task("call", max_attempts=1)
    async def call() -> None:
        raise ConnectionError("down")

    await rd.enqueue("call", {})
    await soon(rd.drain())
    assert await rd.sessions.inbox(INBOX, unread=False) == []


async def test_what_failed_again_after_a_person_moved_it_to_the_delayed_lane_is_its_owners(
    rd: Redrive, clock: FakeClock
) -> None:
    World(rd)
    (id,) = await escalated(rd, max_attempts=1)
    (notice,) = await rd.sessions.inbox(INBOX)
    await rd.sessions.acknowledge(INBOX, notice.id)
    moved = await rd.dead.move_lane(id, "delayed", who="ada", why="it may heal")
    assert moved.comes_back_at == clock.now() + 3600
    assert await rd.sessions.inbox(INBOX) == []
    clock.advance(3600)
    await soon(rd.drain())
    job = await rd.jobs.get(id)
    assert (job.state, job.lane, job.owner, job.attempts) == (State.dead, "manual", "ceo", 2)
    (again,) = await rd.sessions.inbox(INBOX)
    assert "the site is gone" in again.text
    (need,) = (await rd.morning()).needs
    assert need.kind == "dead_manual"


async def test_an_acknowledged_message_is_quiet_until_there_is_more(rd: Redrive) -> None:
    World(rd)
    await escalated(rd)
    (notice,) = await rd.sessions.inbox(INBOX)
    await rd.sessions.acknowledge(INBOX, notice.id)
    assert await rd.sessions.inbox(INBOX) == []
    await escalated(rd)
    assert len(await rd.sessions.inbox(INBOX)) == 1


async def test_whoever_gets_a_deferred_letter_is_told_and_told_again_when_its_time_comes(live: Redrive) -> None:
    World(live)
    (id,) = await escalated(live)
    deferred = await live.dead.defer(id, owner="bob", until=0.05, who="ada", why="bob knows the site")
    (notice,) = await live.sessions.inbox("owner:bob")
    assert (notice.kind, notice.title) == ("deferred", "fetch is postponed for you")
    await eventually(lambda: live.clock.now() > deferred.run_at, "its time")
    async with live.worker():
        await eventually(lambda: _has(live, "owner:bob", "escalated"), "the second message")
    kinds = {notice.kind: notice.status for notice in await live.sessions.inbox("owner:bob", unread=False)}
    assert kinds == {"deferred": "resolved", "escalated": "pending"}


async def _has(rd: Redrive, inbox: str, kind: str) -> bool:
    return kind in {notice.kind for notice in await rd.sessions.inbox(inbox)}


async def test_erasing_a_job_forgets_what_its_owner_was_told(rd: Redrive) -> None:
    World(rd)
    (id,) = await escalated(rd)
    await rd.jobs.erase(id)
    assert await rd.sessions.inbox(INBOX, unread=False) == []


async def test_settled_messages_age_out_and_open_ones_stay(rd: Redrive, clock: FakeClock) -> None:
    World(rd)
    (id,) = await escalated(rd)
    clock.advance(8 * DAY)
    await rd.notices.prune()
    assert len(await rd.sessions.inbox(INBOX)) == 1
    await rd.dead.discard(id)
    await rd.notices.prune()
    assert await rd.sessions.inbox(INBOX, unread=False) == []


# ---- the age alarm


@pytest.mark.behaviour("C32")
async def test_health_tells_what_was_put_off_and_is_overdue_or_old(rd: Redrive, clock: FakeClock) -> None:
    World(rd)
    soon_, late = await escalated(rd, 2)
    await rd.dead.defer(soon_, owner="bob", until=3600)
    await rd.dead.defer(late, owner="bob", until=30 * DAY)
    assert (await rd.health()).issues == []
    clock.advance(3601)
    assert (await rd.health()).issues == ["fetch: 1 deferred and overdue (their time has come)"]
    await rd.dead.discard(soon_)
    clock.advance(8 * DAY)
    assert (await rd.health()).issues == ["fetch: 1 deferred for more than a week (are they still wanted?)"]


async def test_morning_lists_what_was_put_off_until_now(rd: Redrive, clock: FakeClock) -> None:
    World(rd)
    (id,) = await escalated(rd)
    await rd.dead.defer(id, owner="bob", until=3600)
    assert (await rd.morning()).deferred == 1
    clock.advance(3601)
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.owner, need.job_id) == ("deferred_overdue", "bob", id)
