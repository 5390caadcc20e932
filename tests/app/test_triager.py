"""Escalations and the triager: a message for the owner, one try of what has worked before, else a person."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import Redrive
from redrive.app.triager import Triaged
from redrive.core.job import State
from redrive.core.store import Commit
from redrive.errors import ConfigError
from redrive.stores.sqlite import SqliteStore
from tests.support import FakeClock, eventually, opened, soon

DAY = 86400.0
INBOX = "owner:ceo"


class Gone(Exception):
    """What the tasks of these tests fail with until somebody puts it right."""

    error_kind = "dependency_gone"


class World:
    """What is wrong outside."""

    def __init__(self, rd: Redrive) -> None:
        self.well = False
        self.models: list[str | None] = []

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


async def teach(rd: Redrive, world: World, clock: FakeClock) -> None:
    """A person redrives one, and that works: from then on it is known."""
    (id,) = await escalated(rd)
    world.well = True
    await rd.dead.redrive(id, who="ada", why="the site is back")
    clock.advance(1)
    await soon(rd.drain())
    assert (await rd.jobs.get(id)).state is State.done
    world.well = False


async def outcomes(rd: Redrive, clock: FakeClock) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in await rd.store.outcomes(0, clock.now() + 3600):
        if one.what in ("died", "auto", "person", "deferred"):
            found[one.what] = found.get(one.what, 0) + one.number
    return found


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
    writer = SqliteStore
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


async def test_what_has_no_tries_left_in_the_delayed_lane_is_its_owners(rd: Redrive, clock: FakeClock) -> None:
    World(rd)
    (id,) = await escalated(rd, max_attempts=1)
    (notice,) = await rd.sessions.inbox(INBOX)
    await rd.sessions.acknowledge(INBOX, notice.id)
    await rd.dead.move_lane(id, "delayed", who="ada", why="it may heal")
    clock.advance(2 * 3600)
    await rd.make_scheduler(rd.make_worker()).pull_delayed()
    (again,) = await rd.sessions.inbox(INBOX)
    assert "it has no tries left: redrive grants more" in again.text
    (need,) = (await rd.morning()).needs
    assert need.kind == "dead"


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
    assert (notice.kind, notice.title) == ("deferred", "fetch is put off for you")
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


# ---- the triager


@pytest.mark.behaviour("004-59")
async def test_what_has_worked_before_is_tried_once_and_counts_as_resolved_by_itself(
    rd: Redrive, clock: FakeClock
) -> None:
    world = World(rd)
    await teach(rd, world, clock)
    ids = await escalated(rd, 3)
    world.well = True
    clock.advance(1)
    assert await rd.triager.work() == Triaged(redriven=3)
    move = (await rd.jobs.story(ids[0]))[-1]
    assert (move.move, move.who) == ("redriven", "triager")
    assert move.why == "Redriving as it is worked 1 of 1 times against this trouble."
    await soon(rd.drain())
    assert {job.state for job in await rd.store.get(ids)} == {State.done}
    assert await outcomes(rd, clock) == {"died": 4, "person": 1, "auto": 3}


async def test_where_nothing_is_known_a_person_gets_it_and_that_is_counted_apart(rd: Redrive, clock: FakeClock) -> None:
    World(rd)
    (id,) = await escalated(rd)
    clock.advance(1)
    assert await rd.triager.work() == Triaged(deferred=1)
    job = await rd.jobs.get(id)
    assert (job.state, job.because, job.owner) == (State.held, "deferred", "person")
    assert job.run_at == clock.now() + DAY
    assert (await rd.jobs.story(id))[-1].why == "For a person: nothing is known to work against this trouble."
    assert await outcomes(rd, clock) == {"died": 1, "deferred": 1}


async def test_a_strategy_is_tried_only_once_per_job(rd: Redrive, clock: FakeClock) -> None:
    world = World(rd)
    await teach(rd, world, clock)
    (id,) = await escalated(rd)
    clock.advance(1)
    await rd.triager.work()
    await soon(rd.drain())
    assert (await rd.jobs.get(id)).state is State.dead
    clock.advance(1)
    assert await rd.triager.work() == Triaged(deferred=1)
    assert (await rd.jobs.get(id)).state is State.held
    assert "tried once" in str((await rd.jobs.story(id))[-1].why)


async def test_a_deferred_letter_that_comes_back_is_the_persons_and_not_put_off_again(
    rd: Redrive, clock: FakeClock
) -> None:
    World(rd)
    (id,) = await escalated(rd)
    await rd.triager.work()
    clock.advance(2 * DAY)
    await rd.dead.recall(id, who="scheduler")
    assert await rd.triager.work() == Triaged()
    assert (await rd.jobs.get(id)).owner == "person"


async def test_what_fails_more_often_than_not_is_not_tried(rd: Redrive, clock: FakeClock) -> None:
    world = World(rd)
    await teach(rd, world, clock)
    for id in await escalated(rd, 3):
        await rd.dead.redrive(id)
    await soon(rd.drain())
    (lesson,) = await rd.store.lessons((await rd.store.groups())[0].fingerprint)
    assert (lesson.worked, lesson.failed) == (1, 3)
    clock.advance(1)
    assert (await rd.triager.work()).redriven == 0


async def test_a_strategy_with_changes_is_applied_as_its_remedy_says(rd: Redrive, clock: FakeClock) -> None:
    models: list[str] = []
    rd.registry.fleet = redrive.core.agents.Fleet(
        rd.registry.fleet.agents, {"small": redrive.core.agents.Model(other="large")}
    )

    @rd.task("answer", max_attempts=3)
    async def answer(model: str, prompt: str = "x") -> str:
        models.append(model)
        if model == "small":
            error = RuntimeError("I cannot help with that")
            error.error_kind = "refusal"  # type: ignore[attr-defined]
            raise error
        return "yes"

    for _ in range(2):  # twice in the way of any worker: it is learned that another model helps
        await rd.enqueue("answer", {"model": "small"})
        await soon(rd.drain())
        clock.advance(200)
        await soon(rd.drain())
    (group,) = {one.fingerprint for one in await lessons(rd)}
    assert models == ["small", "large"] * 2
    job = await rd.enqueue("answer", {"model": "small"}, max_attempts=1)
    await soon(rd.drain())
    dead = await rd.jobs.get(job.id)
    assert (dead.state, dead.fingerprint) == (State.dead, group)
    (moved,) = await own(rd, job.id)
    assert moved == "redriven"
    await soon(rd.drain())
    assert models[-1] == "large"
    assert (await rd.jobs.get(job.id)).state is State.done

    clock.advance(1)
    other = await rd.enqueue("answer", {"model": "small"}, max_attempts=1)
    await soon(rd.drain())
    await own(rd, other.id)
    assert (await rd.jobs.get(other.id)).changes
    clock.advance(1)
    act = next(act for act in await rd.dead.acts() if act.verb == "redrive")
    assert (await rd.dead.undo(act.id)).moved == 1
    back = await rd.jobs.get(other.id)
    assert (back.state, back.model, back.changes_json) == (State.dead, None, None), "no change of the triager is left"


async def lessons(rd: Redrive) -> list[Any]:
    import apsw

    connection = apsw.Connection(str(rd.store.path))  # type: ignore[attr-defined]
    names = [row[0] for row in connection.execute("SELECT DISTINCT fingerprint FROM lessons")]
    connection.close()
    return [lesson for name in names for lesson in await rd.store.lessons(name)]


async def own(rd: Redrive, id: str) -> list[str]:
    """The escalation agent gets a letter that was nobody's; the triager's move of it."""
    await rd.dead.defer(id, owner="ceo", until=60, who="ada")
    await rd.dead.recall(id, who="ada")
    await rd.triager.work()
    return [event.move for event in (await rd.jobs.story(id))[-1:]]


HANDS_OFF = ("consent", "open effect", "manual", "outcome unknown", "unknown task", "nobody's", "delayed", "restored")


@pytest.mark.parametrize("what", HANDS_OFF)
async def test_what_no_machine_may_decide_is_not_touched(rd: Redrive, clock: FakeClock, what: str) -> None:
    options: dict[str, Any] = {"consent": {"consent": True}, "manual": {"retry_policy": "manual"}}.get(what, {})

    @rd.task("fetch", max_attempts=3, **options)
    async def fetch(ctx: redrive.Context) -> None:
        if what == "open effect":
            with contextlib.suppress(TimeoutError):
                await ctx.once("post", _uncertain)
        if what == "outcome unknown":
            raise redrive.OutcomeUnknown("no answer")
        raise Gone("the site is gone")

    job = await rd.enqueue("fetch", {}, session_id="s")
    await soon(rd.drain())
    if what == "consent":
        await rd.jobs.approve(job.id)
        await soon(rd.drain())
    await _arrange(rd, clock, job.id, what)
    before = await rd.jobs.get(job.id)
    clock.advance(1)
    done = await rd.triager.work()
    assert (done.redriven, done.deferred) == (0, 0)
    assert (await rd.jobs.get(job.id)).version == before.version


async def _uncertain(key: str) -> None:
    raise TimeoutError("no answer")


async def _arrange(rd: Redrive, clock: FakeClock, id: str, what: str) -> None:
    if what == "unknown task":
        del rd.registry.handlers["fetch"]
    elif what == "nobody's":
        await rd.dead.defer(id, owner="bob", until=60)
        await rd.dead.recall(id)
    elif what == "delayed":
        await rd.dead.move_lane(id, "delayed")
    elif what == "restored":
        await rd.dead.discard(id)
        await rd.dead.restore(id)
    elif what == "open effect":
        (effect,) = await rd.jobs.effects(id)
        assert effect.status == "unknown" and (await rd.jobs.get(id)).owner == "ceo"
    elif what == "outcome unknown":
        clock.advance(8 * DAY)
        await rd.make_scheduler(rd.make_worker()).bury_unresolved()
        await rd.dead.defer(id, owner="ceo", until=60)
        await rd.dead.recall(id)
        assert (await rd.jobs.get(id)).because == "outcome_unknown"


async def test_two_processes_that_triage_at_once_move_each_letter_once(
    rd: Redrive, database: Path, clock: FakeClock
) -> None:
    World(rd)
    ids = await escalated(rd, 30)
    async with opened(database, clock=clock) as other:
        World(other)
        one, two = await asyncio.gather(rd.triager.work(), other.triager.work())
    assert one.deferred + two.deferred == 30
    assert {job.deferrals for job in await rd.store.get(ids)} == {1}


async def test_a_round_is_one_act_that_can_be_taken_back(rd: Redrive, clock: FakeClock) -> None:
    World(rd)
    ids = await escalated(rd, 5)
    clock.advance(1)
    await rd.triager.work()
    act = (await rd.dead.acts())[0]
    assert (act.verb, act.who, act.moved) == ("defer", "triager", 5)
    clock.advance(1)
    assert (await rd.dead.undo(act.id)).moved == 5
    assert {(job.state, job.owner) for job in await rd.store.get(ids)} == {(State.dead, "ceo")}


@pytest.mark.parametrize(("on", "state"), [(False, State.dead), (True, State.held)])
async def test_it_is_off_unless_somebody_turns_it_on(database: Path, clock: FakeClock, on: bool, state: State) -> None:
    async with opened(database, clock=clock, triage=on, triage_owner="ada", triage_defer=3600.0) as rd:
        World(rd)
        (id,) = await escalated(rd)
        await rd.make_scheduler(rd.make_worker()).tick()
        job = await rd.jobs.get(id)
        assert job.state is state
        if on:
            assert (job.owner, job.run_at) == ("ada", clock.now() + 3600.0)


@pytest.mark.parametrize("setting", [{"triage_defer": 0}, {"triage_owner": ""}, {"triage_defer": 1e12}])
def test_impossible_settings_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="triage"):
        Redrive(":memory:", **setting)


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
    assert (await rd.health()).issues == ["fetch: 1 deferred for more than a week (does anybody see to them?)"]


async def test_morning_lists_what_was_put_off_until_now(rd: Redrive, clock: FakeClock) -> None:
    World(rd)
    (id,) = await escalated(rd)
    await rd.dead.defer(id, owner="bob", until=3600)
    assert (await rd.morning()).deferred == 1
    clock.advance(3601)
    (need,) = (await rd.morning()).needs
    assert (need.kind, need.owner, need.job_id) == ("deferred", "bob", id)
