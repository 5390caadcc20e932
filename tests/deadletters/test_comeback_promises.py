"""Comebacks, from what users are promised: what can heal comes back by itself, and nothing else does.

Black box: tasks, the harness's clock, and what the public names say. Unless a test says otherwise, a task dies of its
first failure, so that a death takes no time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

import redrive
from redrive import Redrive
from redrive.core.job import Job, State
from redrive.testing import Harness, harness

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
TABLE = (10 * MINUTE, HOUR, 6 * HOUR, DAY)
LONGEST_BACKOFF = 300.0
SPREAD = 0.101
"""Comebacks are spread by a tenth."""


class Site:
    """What the tasks call. `error` is what calls come to; None: it answers."""

    def __init__(self, t: Harness) -> None:
        self._t = t
        self.error: Callable[[], BaseException] | None = lambda: ConnectionError("connection refused")
        self.calls: list[tuple[float, int]] = []
        """When, and which job."""
        self.start = t.clock.now()

    def call(self, number: int = 0) -> str:
        self.calls.append((self._t.clock.now() - self.start, number))
        if self.error is not None:
            raise self.error()
        return "ok"

    def since(self, at: float) -> list[int]:
        return [number for when, number in self.calls if when >= at]

    @property
    def times(self) -> list[float]:
        return [when for when, _ in self.calls]

    @property
    def now(self) -> float:
        return self._t.clock.now() - self.start


@pytest.fixture
async def t(database: Path) -> AsyncIterator[Harness]:
    async with harness(Redrive(database)) as t:
        yield t


@pytest.fixture
def rd(t: Harness) -> Redrive:
    return t._rd


@pytest.fixture
def site(t: Harness) -> Site:
    return Site(t)


def register(rd: Redrive, site: Site, name: str = "fetch", **policy: Any) -> Any:
    async def fetch(number: int = 0) -> str:
        return site.call(number)

    return rd.task(name, **{"max_attempts": 1, **policy})(fetch)


async def dead(rd: Redrive, t: Harness, task: str = "fetch", number: int = 0, **options: Any) -> Job:
    """A job that has just died."""
    handle = await rd.enqueue(task, {"number": number}, **options)
    await t.run()
    job = await handle.refresh()
    assert job.state is State.dead, (job.state, job.error)
    return job


async def advance_to_the_comeback(rd: Redrive, t: Harness, job_id: str) -> None:
    """To the moment of the next comeback and through its two tries."""
    job = await rd.jobs.get(job_id)
    assert job.comes_back_at is not None
    await t.advance(job.comes_back_at - t.clock.now() + LONGEST_BACKOFF + 30)


async def comebacks_of(rd: Redrive, job_id: str) -> int:
    return sum(event.move == "redriven" and event.who == "redrive" for event in await rd.jobs.story(job_id))


async def people_told(rd: Redrive) -> list[str]:
    """Kinds of messages that call a person, after one look of the scheduler."""
    await rd._duties.look()
    return [notice.kind for notice in await rd.notices.waiting()]


def about(seconds: float) -> Any:
    return pytest.approx(seconds, rel=SPREAD)


# ---- what heals by waiting comes back


def answered(status: int, **headers: str) -> BaseException:
    request = httpx.Request("GET", "https://api.example.com/items")
    response = httpx.Response(status, headers=headers, request=request)
    return httpx.HTTPStatusError(f"answered {status}", request=request, response=response)


def locked() -> BaseException:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY"
    return error


class Preempted(Exception):
    error_kind = "preempted"


@pytest.mark.behaviour("R-1a")
@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (lambda: ConnectionError("refused"), "network"),
        (lambda: TimeoutError("no answer"), "timeout"),
        (lambda: answered(500), "server_error"),
        (lambda: answered(429), "rate_limited"),
        (lambda: answered(529), "provider_overloaded"),
        (locked, "contention"),
        (lambda: Preempted("the node was reclaimed"), "preempted"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
async def test_a_dead_letter_that_heals_by_waiting_says_when_it_comes_back(
    rd: Redrive, t: Harness, site: Site, error: Callable[[], BaseException], detail: str
) -> None:
    register(rd, site)
    site.error = error
    job = await dead(rd, t)
    assert (job.detail, job.lane) == (detail, "delayed")
    assert job.comes_back_at is not None
    assert job.comes_back_at - t.clock.now() == about(600)
    (listed,) = (await rd.dead.list()).jobs
    assert listed.comes_back_at == job.comes_back_at, "it is a dead letter while it waits"
    site.error = None
    await t.advance(11 * MINUTE + 1)
    assert (await rd.jobs.get(job.id)).state is State.done


@pytest.mark.behaviour("R-1b")
async def test_it_comes_back_four_times_with_two_tries_each_and_then_needs_a_person(
    rd: Redrive, t: Harness, site: Site
) -> None:
    register(rd, site, base=2.0)
    job = await dead(rd, t)
    for number, after in enumerate(TABLE, 1):
        waiting = await rd.jobs.get(job.id)
        died = site.times[-1]
        assert (waiting.state, waiting.lane) == (State.dead, "delayed")
        assert (waiting.comes_back_at or 0) - site.start - died == about(after)
        await advance_to_the_comeback(rd, t, job.id)
        assert len(site.calls) == 1 + 2 * number, f"comeback {number} has two tries"
        assert site.times[-2] - died == about(after)
    last = await rd.jobs.get(job.id)
    assert (last.state, last.lane, last.comes_back_at) == (State.dead, "manual", None)
    assert (last.attempts, last.grants) == (9, 0), "attempts go on counting; grants stay a person's"
    await t.advance(7 * DAY)
    assert len(site.calls) == 9
    assert [need.kind for need in (await rd.health()).needs] == ["dead_manual"]


@pytest.mark.behaviour("R-1b")
async def test_a_comeback_has_two_tries_whatever_max_attempts_is(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, max_attempts=5, base=2.0)
    handle = await rd.enqueue("fetch", {})
    await t.advance(60)
    assert len(site.calls) == 5
    await advance_to_the_comeback(rd, t, handle.id)
    assert len(site.calls) == 7


@pytest.mark.behaviour("R-1c")
async def test_every_comeback_is_an_act_of_redrives_own(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site)
    job = await dead(rd, t)
    await advance_to_the_comeback(rd, t, job.id)
    (event,) = [event for event in await rd.jobs.story(job.id) if event.move == "redriven"]
    assert event.who == "redrive" and event.why
    acts = [act for act in await rd.dead.acts() if act.who == "redrive"]
    assert [(act.verb, act.number, act.moved) for act in acts] == [("redrive", 1, 1)]
    assert acts[0].why


@pytest.mark.behaviour("R-1d")
@pytest.mark.parametrize("where", ["task", "queue", "instance", "triage"])
async def test_a_task_a_queue_or_an_instance_turns_it_off(database: Path, where: str) -> None:
    app = {"instance": {"comebacks": ()}, "queue": {"queues": {"slow": {"comebacks": ()}}}, "triage": {"triage": False}}
    rd = Redrive(database, **app.get(where, {}))
    async with harness(rd) as t:
        site = Site(t)
        register(rd, site, queue="slow", **({"comebacks": ()} if where == "task" else {}))
        job = await dead(rd, t)
        assert (job.lane, job.comes_back_at) == ("manual", None)
        await t.advance(3 * DAY)
        assert len(site.calls) == 1
        assert (await rd.health()).exit_code == 1


@pytest.mark.behaviour("R-1d")
async def test_a_table_of_ones_own(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, comebacks=(60.0,), base=1.0)
    job = await dead(rd, t)
    assert (job.comes_back_at or 0) - t.clock.now() == about(60)
    await t.advance(DAY)
    assert len(site.calls) == 3
    assert (await rd.jobs.get(job.id)).lane == "manual"


@pytest.mark.behaviour("R-1d")
@pytest.mark.parametrize("table", [(-1.0,), (0.0,), (float("nan"),), (float("inf"),), "soon", (1.0,) * 1000])
async def test_an_impossible_table_is_refused(rd: Redrive, table: Any) -> None:
    with pytest.raises((redrive.InvalidOption, redrive.ConfigError), match="comebacks"):
        rd.task("odd", comebacks=table)(lambda: None)


# ---- what never comes back


def _needs_a_person(name: str, site: Site) -> tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]:
    """A task that ends so, its policy, and the options of its job."""

    async def fails(number: int = 0) -> str:
        return site.call(number)

    async def spends(ctx: redrive.Context, number: int = 0) -> str:
        ctx.usage(input_tokens=50)
        return site.call(number)

    budget = {"budget": redrive.Budget(tokens=10)}
    cases: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
        "too_old": (fails, {"max_attempts": 50, "max_age": 30.0}, {}),
        "budget_exhausted": (spends, {"max_attempts": 5}, budget),
        "terminated": (fails, {}, {}),
        "permanent": (fails, {}, {}),
        "preflight_rejected": (fails, {"credentials": ["env:NOT_SET_ANYWHERE"]}, {}),
        "outcome_unknown": (fails, {}, {}),
        "retry_policy": (fails, {"retry_policy": "manual"}, {}),
        "on_lost": (fails, {"on_lost": "dead_letter", "max_attempts": 1}, {}),
    }
    return cases[name]


@pytest.mark.behaviour("R-1e")
@pytest.mark.parametrize(
    "name",
    ["too_old", "budget_exhausted", "terminated", "permanent", "preflight_rejected", "outcome_unknown", "retry_policy",
     "on_lost"],
)  # fmt: skip
async def test_what_a_person_must_see_never_comes_back(
    rd: Redrive, t: Harness, site: Site, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    errors: dict[str, Callable[[], BaseException]] = {
        "terminated": lambda: redrive.GiveUp("frozen until Monday"),
        "permanent": lambda: PermissionError("not yours"),
        "outcome_unknown": lambda: redrive.OutcomeUnknown("sent, no answer"),
    }
    function, policy, options = _needs_a_person(name, site)
    rd.task("fetch", **policy)(function)
    site.error = errors.get(name, site.error)
    handle = await rd.enqueue("fetch", {}, **options)
    await t.advance(5 * MINUTE)
    job, made = await handle.refresh(), len(site.calls)
    assert job.state is (State.held if name == "outcome_unknown" else State.dead), (job.state, job.because)
    assert name in (job.because, "retry_policy", "on_lost")
    assert job.comes_back_at is None
    assert job.lane in ("manual", None)
    site.error = None
    await t.advance(3 * DAY)
    assert len(site.calls) == made, "nothing ran it again"
    assert await comebacks_of(rd, job.id) == 0
    assert (await rd.health()).exit_code == 1, "a person is told"


@pytest.mark.behaviour("R-1e")
async def test_work_that_an_agent_put_off_never_comes_back(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site)
    outcome = await rd.submit("fetch", {"number": 1})
    await t.run()
    job = await rd.jobs.get(outcome.operation_id)
    assert (job.reason, job.state, job.lane, job.comes_back_at) == ("deferred_submit", State.dead, "manual", None)
    await t.advance(3 * DAY)
    assert len(site.calls) == 1


@pytest.mark.behaviour("R-1f")
async def test_time_in_the_delayed_lane_is_not_part_of_max_age(rd: Redrive, t: Harness, site: Site) -> None:
    """Half an hour to live, and an outage of three hours."""
    register(rd, site, max_age=30 * MINUTE)
    job = await dead(rd, t)
    await t.advance(3 * HOUR)
    assert (await rd.jobs.get(job.id)).lane == "delayed"
    site.error = None
    await t.advance(DAY)
    assert (await rd.jobs.get(job.id)).state is State.done


@pytest.mark.behaviour("R-1g")
async def test_tokens_that_comebacks_spend_count_and_the_budget_ends_them(rd: Redrive, t: Harness, site: Site) -> None:
    @rd.task("fetch", max_attempts=1, base=1.0)
    async def fetch(ctx: redrive.Context, number: int = 0) -> str:
        ctx.usage(input_tokens=40)
        return site.call(number)

    job = await dead(rd, t, budget=redrive.Budget(tokens=100))
    assert job.lane == "delayed", "40 of 100"
    await t.advance(3 * DAY)
    last = await rd.jobs.get(job.id)
    assert (last.because, last.lane, last.comes_back_at) == ("budget_exhausted", "manual", None)
    assert len(site.calls) == 3, "40, 80, 120"


# ---- a person


@pytest.mark.behaviour("R-1h")
async def test_a_persons_redrive_starts_the_table_anew(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, base=1.0)
    job = await dead(rd, t)
    await advance_to_the_comeback(rd, t, job.id)
    await advance_to_the_comeback(rd, t, job.id)
    assert ((await rd.jobs.get(job.id)).comes_back_at or 0) - site.start - site.times[-1] == about(6 * HOUR)
    await rd.dead.redrive(job.id, who="ada", why="it should work now")
    await t.advance(30)
    again = await rd.jobs.get(job.id)
    assert (again.state, again.lane) == (State.dead, "delayed")
    assert (again.comes_back_at or 0) - site.start - site.times[-1] == about(10 * MINUTE)
    before = len(site.calls)
    await t.advance(3 * DAY)
    assert len(site.calls) - before == 8, "four comebacks again, two tries each"


@pytest.mark.behaviour("R-1i")
@pytest.mark.parametrize("verb", ["discard", "defer", "move_lane"])
async def test_what_a_person_decides_ends_a_comeback(rd: Redrive, t: Harness, site: Site, verb: str) -> None:
    register(rd, site)
    job = await dead(rd, t)
    match verb:
        case "discard":
            await rd.dead.discard(job.id, who="ada")
        case "defer":
            await rd.dead.defer(job.id, until=2 * DAY, owner="ada", who="ada")
        case _:
            await rd.dead.move_lane(job.id, "manual", who="ada")
    assert (await rd.jobs.get(job.id)).comes_back_at is None
    await t.advance(4 * DAY)
    assert len(site.calls) == 1
    assert await comebacks_of(rd, job.id) == 0


@pytest.mark.behaviour("R-1i")
async def test_an_edit_ends_a_comeback_and_begins_a_life(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site)
    job = await dead(rd, t)
    await rd.dead.edit(job.id, {"number": 7}, who="ada")
    assert (await rd.jobs.get(job.id)).comes_back_at is None
    site.error = None
    await t.run()
    await t.advance(3 * DAY)
    assert [number for _, number in site.calls] == [0, 7]


@pytest.mark.behaviour("R-1i")
async def test_a_letter_moved_to_the_delayed_lane_by_a_person_comes_back(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site)
    site.error = lambda: PermissionError("not yours yet")
    job = await dead(rd, t)
    moved = await rd.dead.move_lane(job.id, "delayed", who="ada", why="the API is back tonight")
    assert moved.comes_back_at is not None, "what waits in the delayed lane says when it comes back"
    site.error = None
    await t.advance(2 * DAY)
    assert (await rd.jobs.get(job.id)).state is State.done


@pytest.mark.behaviour("R-1j")
async def test_restored_and_imported_letters_have_none(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site)
    job = await dead(rd, t)
    await rd.dead.discard(job.id, who="ada")
    restored = await rd.dead.restore(job.id, who="ada")
    assert (restored.lane, restored.comes_back_at) == ("manual", None)
    await t.advance(3 * DAY)
    assert len(site.calls) == 1


# ---- time


@pytest.mark.behaviour("R-1k")
async def test_times_that_passed_while_nothing_ran_are_not_made_up_for(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, base=1.0)
    job = await dead(rd, t)
    t.clock.advance(12 * HOUR)  # no process lives; 10 min, 1 h and 6 h pass
    await t.advance(30)
    assert len(site.calls) == 3, "one comeback with its two tries"
    after = await rd.jobs.get(job.id)
    assert (after.state, after.lane) == (State.dead, "delayed")
    assert (after.comes_back_at or 0) >= t.clock.now() + HOUR * (1 - SPREAD) - 30


@pytest.mark.behaviour("R-1k")
async def test_a_paused_queue_holds_a_comeback(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, queue="slow")
    job = await dead(rd, t)
    await rd.queues.pause("slow", who="ada")
    site.error = None
    await t.advance(3 * HOUR)
    assert len(site.calls) == 1
    await rd.queues.resume("slow", who="ada")
    await t.advance(HOUR)
    assert (await rd.jobs.get(job.id)).state is State.done


@pytest.mark.behaviour("R-1k")
async def test_more_than_a_day_in_the_delayed_lane_is_a_need(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, queue="slow")
    await dead(rd, t)
    await rd.queues.pause("slow", who="ada")
    await t.advance(20 * HOUR)
    assert not [need for need in (await rd.health()).needs if need.kind != "unattended"]
    await t.advance(10 * HOUR)
    assert (await rd.health()).needs != []


# ---- groups


@pytest.mark.behaviour("R-1l")
async def test_one_of_a_group_goes_first_and_only_that_one_uses_its_comeback(
    rd: Redrive, t: Harness, site: Site
) -> None:
    register(rd, site, base=1.0, breaker_after=0)
    jobs = []
    for number in range(10):
        jobs.append(await dead(rd, t, number=number))
        await t.advance(1)
    before = site.now
    await t.advance(15 * MINUTE)
    assert site.since(before) == [0, 0], "the oldest, with its two tries; nobody else called"
    now = [await rd.jobs.get(job.id) for job in jobs]
    assert {(job.state, job.lane) for job in now} == {(State.dead, "delayed")}
    assert all(job.comes_back_at is not None and job.comes_back_at > t.clock.now() for job in now)
    assert [job.attempts for job in now] == [3] + [1] * 9
    await t.advance(3 * DAY)
    assert len(site.calls) <= 10 + 10 * 8, "no more than each alone"
    assert {(await rd.jobs.get(job.id)).lane for job in jobs} <= {"manual", "delayed"}


@pytest.mark.behaviour("R-1l")
async def test_one_asks_a_downstream_for_all_groups_that_wait_for_it(rd: Redrive, t: Harness, site: Site) -> None:
    tasks = ["fetch", "list", "search", "save"]
    jobs = []
    for number, task in enumerate(tasks):
        register(rd, site, task, downstream="shop", base=1.0, breaker_after=0)
        jobs.append(await dead(rd, t, task, number))
        await t.advance(1)
    assert len({job.fingerprint for job in jobs}) == 4, "each task's trouble is a group of its own"
    before = site.now
    await t.advance(15 * MINUTE)
    assert site.since(before) == [0, 0], "the oldest, with its two tries"
    now = [await rd.jobs.get(job.id) for job in jobs]
    assert [job.attempts for job in now] == [3, 1, 1, 1]
    assert {job.lane for job in now} == {"delayed"}
    moves = [event for event in await rd.jobs.story(jobs[1].id) if event.move == "rerouted"]
    assert "that calls shop, too, went first and failed again" in (moves[-1].why or "")
    site.error = None
    await t.advance(HOUR)
    assert {(await rd.jobs.get(job.id)).state for job in jobs} == {State.done}


@pytest.mark.behaviour("R-1l")
async def test_a_first_one_that_fails_speaks_only_for_what_failed_alike(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, downstream="shop", base=1.0, breaker_after=0)
    register(rd, site, "slow", downstream="shop", base=1.0, breaker_after=0)
    await dead(rd, t, number=1)
    await t.advance(1)
    site.error = lambda: TimeoutError("no answer")
    other = await dead(rd, t, "slow", 2)
    assert other.detail == "timeout"
    site.error = lambda: ConnectionError("connection refused")
    await t.advance(1)
    before = site.now
    await t.advance(15 * MINUTE)
    assert sorted(site.since(before)) == [1, 1, 2, 2], "another trouble has a first one of its own"


@pytest.mark.behaviour("R-1l")
async def test_no_group_ends_with_a_person_because_of_another_groups_tries(rd: Redrive, t: Harness, site: Site) -> None:
    """One endpoint of a host fails for ever, another is well again soon: each has its own try in the end."""
    register(rd, site, "broken", downstream="shop", base=1.0, breaker_after=0, comebacks=(10 * MINUTE,))
    register(rd, site, "well", downstream="shop", base=1.0, breaker_after=0, comebacks=(10 * MINUTE,))
    broken = await dead(rd, t, "broken", 1)
    await t.advance(1)
    well = await dead(rd, t, "well", 2)

    def call(number: int = 0) -> str:
        if number == 1:
            raise ConnectionError("connection refused")
        return "ok"

    site.call = call  # type: ignore[method-assign]
    await t.advance(HOUR)
    assert (await rd.jobs.get(broken.id)).lane == "manual"
    assert (await rd.jobs.get(well.id)).state is State.done


@pytest.mark.behaviour("R-1l")
async def test_a_first_one_that_cannot_run_holds_other_groups_up_for_a_while_only(
    rd: Redrive, t: Harness, site: Site
) -> None:
    register(rd, site, "fetch", downstream="shop", breaker_after=0, queue="halted")
    register(rd, site, "list", downstream="shop", breaker_after=0)
    first = await dead(rd, t, "fetch", 1)
    await t.advance(MINUTE)
    other = await dead(rd, t, "list", 2)
    await t.advance(8 * MINUTE)
    site.error = None
    first_due = (first.comes_back_at or 0.0) - t.clock.now()
    t.clock.advance(first_due)
    await rd.comebacks.work()  # it is on its way; then its queue is paused before it runs
    await rd.queues.pause("halted", who="ada", why="maintenance")
    await t.advance(10 * MINUTE)
    await t.advance(10 * MINUTE)
    assert (await rd.jobs.get(first.id)).state is State.waiting
    assert (await rd.jobs.get(other.id)).state is State.done


@pytest.mark.behaviour("R-1m")
async def test_the_rest_follow_a_success_at_a_bounded_rate(rd: Redrive, t: Harness, site: Site) -> None:
    rd.registry.configure("fetch", redrive.Policy(breaker_release=5.0))
    register(rd, site, breaker_after=0)
    ids = [(await dead(rd, t, number=number)).id for number in range(40)]
    site.error = None
    before = site.now
    await t.advance(12 * MINUTE)
    jobs = [await rd.jobs.get(id) for id in ids]
    assert {job.state for job in jobs} == {State.done}
    times = sorted(when for when, _ in site.calls if when > before)
    assert len(times) == 40
    assert site.since(times[0])[0] == 0, "the oldest goes first"
    first, *seconds = [sum(times[0] + at < when <= times[0] + at + 1 for when in times) for at in range(30)]
    assert 1 <= first <= 5, f"five in the first second: {times}"
    paces = zip([first, *seconds], seconds, strict=False)
    assert all(later <= 2 * before for before, later in paces), "as after a breaker: at most twice as many a second"


@pytest.mark.behaviour("R-1n")
async def test_where_the_first_one_fails_otherwise_the_next_oldest_goes(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, breaker_after=0)
    jobs = []
    for number in range(3):
        jobs.append(await dead(rd, t, number=number))
        await t.advance(1)

    def call(number: int = 0) -> str:
        site.calls.append((site.now, number))
        if number == 0:
            raise PermissionError("this one is not yours")
        return "ok"

    site.call = call  # type: ignore[method-assign]
    await t.advance(15 * MINUTE)
    first, *others = [await rd.jobs.get(job.id) for job in jobs]
    assert (first.state, first.lane, first.comes_back_at) == (State.dead, "manual", None)
    assert [job.state for job in others] == [State.done, State.done], "within the same quarter of an hour"


@pytest.mark.behaviour("R-1o")
@pytest.mark.parametrize("breakers", [{}, {"breaker_after": 0}], ids=["breakers on", "breakers off"])
async def test_another_jobs_success_on_the_same_downstream_brings_them_back_at_once(
    rd: Redrive, t: Harness, site: Site, breakers: dict[str, Any]
) -> None:
    register(rd, site, downstream="shop", **breakers)
    register(rd, site, "other", downstream="shop", **breakers)
    ids = [(await dead(rd, t, number=number)).id for number in range(5)]
    await t.advance(60)
    site.error = None
    await rd.enqueue("other", {"number": 99})
    await t.advance(60)
    assert {(await rd.jobs.get(id)).state for id in ids} == {State.done}, "two minutes, not ten"


@pytest.mark.behaviour("R-1o")
async def test_success_on_another_downstream_says_nothing(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, downstream="shop", breaker_after=0)

    @rd.task("other", downstream="bank")
    async def other() -> str:
        return "ok"

    await dead(rd, t)
    await t.advance(60)
    await rd.enqueue("other", {})
    await t.advance(5 * MINUTE)
    assert len(site.calls) == 1


@pytest.mark.behaviour("R-1p")
async def test_an_open_breaker_parks_a_comeback_and_uses_none(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, "first", downstream="shop")
    register(rd, site, "many", downstream="shop", max_attempts=50, breaker_after=5)
    early = await dead(rd, t, "first", number=1)
    await t.advance(9 * MINUTE)
    for number in range(100, 110):
        await rd.enqueue("many", {"number": number})
    await t.run()
    assert [breaker.key for breaker in await rd.breakers() if breaker.down] == ["shop"]
    await t.advance(3 * MINUTE)
    parked = await rd.jobs.get(early.id)
    assert parked.attempts == 1, "no try was used while the breaker was open"
    assert parked.lane != "manual"
    site.error = None
    await t.advance(20 * MINUTE)
    assert (await rd.jobs.get(early.id)).state is State.done


# ---- cycles


@pytest.mark.behaviour("R-1q")
async def test_jobs_of_a_cycle_take_no_part(rd: Redrive, t: Harness, site: Site) -> None:
    def publish(number: int = 0) -> str:
        return site.call(number)

    rd.task("publish")(publish)
    async with rd.cycle("nightly", wait=_at_once) as night:
        await night.run(publish, number=1)
    (job,) = await t.jobs("publish")
    assert (job.state, job.lane, job.comes_back_at) == (State.dead, "delayed", None)
    made = len(site.calls)
    await t.advance(3 * DAY)
    assert len(site.calls) == made, "its next cycle brings it back, and only that"


async def _at_once(seconds: float) -> None:
    return


# ---- effects


@pytest.mark.behaviour("R-1r")
async def test_where_an_effect_may_have_landed_a_person_decides(rd: Redrive, t: Harness, site: Site) -> None:
    @rd.task("pay", max_attempts=1)
    async def pay(ctx: redrive.Context, number: int = 0) -> str:
        return await ctx.once("charge", lambda key: site.call(number))

    handle = await rd.enqueue("pay", {})
    await t.advance(3 * DAY)
    job = await handle.refresh()
    assert len(site.calls) == 1, "the charge was sent and not answered: it is not sent again"
    assert job.state in (State.dead, State.held) and job.lane in ("manual", None) and job.comes_back_at is None
    assert (await rd.health()).exit_code == 1


@pytest.mark.behaviour("R-1r")
async def test_an_effect_that_landed_is_not_repeated_by_a_comeback(rd: Redrive, t: Harness, site: Site) -> None:
    charged: list[str] = []

    @rd.task("pay", max_attempts=1)
    async def pay(ctx: redrive.Context, number: int = 0) -> str:
        await ctx.once("charge", charged.append)
        return site.call(number)

    job = await dead(rd, t, "pay")
    assert job.lane == "delayed"
    await advance_to_the_comeback(rd, t, job.id)
    site.error = None
    await t.advance(DAY)
    assert (await rd.jobs.get(job.id)).state is State.done
    assert len(charged) == 1


# ---- unknown and conditional causes


class Odd(Exception):
    """What no rule knows."""


@pytest.mark.behaviour("R-1s")
async def test_an_unknown_cause_comes_back_once_after_an_hour_with_one_try(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, max_attempts=5, base=1.0)
    site.error = lambda: Odd("what now")
    handle = await rd.enqueue("fetch", {})
    await t.advance(60)
    job = await handle.refresh()
    tries = len(site.calls)
    assert (job.state, job.lane) == (State.dead, "delayed")
    assert (job.comes_back_at or 0) - site.start - site.times[-1] == about(HOUR)
    await t.advance(3 * DAY)
    assert len(site.calls) == tries + 1
    assert (await handle.refresh()).lane == "manual"


@pytest.mark.behaviour("R-1s")
async def test_an_unknown_cause_comes_back_when_one_of_its_group_has_succeeded(
    rd: Redrive, t: Harness, site: Site
) -> None:
    register(rd, site)
    site.error = lambda: Odd("what now")
    one, other = await dead(rd, t, number=1), await dead(rd, t, number=2)
    assert one.fingerprint == other.fingerprint
    site.error = None
    await rd.dead.redrive(one.id, who="ada")
    await t.advance(5 * MINUTE)
    assert (await rd.jobs.get(other.id)).state is State.done


@pytest.mark.behaviour("R-1s")
async def test_an_unknown_cause_of_a_task_with_effects_is_a_persons(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, effects=[redrive.Effect("charge", lambda payload, witness: None)])
    site.error = lambda: Odd("what now")
    job = await dead(rd, t)
    assert (job.lane, job.comes_back_at) == ("manual", None)
    await t.advance(3 * DAY)
    assert len(site.calls) == 1


@pytest.mark.behaviour("R-1t")
async def test_a_conditional_cause_comes_back_changed_and_at_most_twice(database: Path) -> None:
    rd = Redrive(database, models={"small": {"larger": "large", "other": "large"}})
    seen: list[tuple[str, int]] = []
    async with harness(rd) as t:

        @rd.task("answer")
        async def answer(messages: list[dict[str, str]], model: str) -> str:
            seen.append((model, sum(len(one["content"]) for one in messages)))
            raise ValueError("prompt is too long: 210000 tokens > 200000 maximum")

        talk = [{"role": "user", "content": "What is the answer?"}]
        talk += [{"role": role, "content": "tell me more. " * 700} for _ in range(18) for role in ("assistant", "user")]
        handle = await rd.enqueue("answer", {"messages": talk, "model": "small"})
        await t.advance(5 * DAY)
        job = await handle.refresh()
        assert (job.state, job.lane, job.comes_back_at) == (State.dead, "manual", None)
        assert 1 <= await comebacks_of(rd, job.id) <= 2
    assert len(set(seen)) == len(seen), f"no try repeats another: {seen}"
    sizes = [size for _, size in seen]
    assert sizes == sorted(sizes, reverse=True)


class CutOff(Exception):
    error_kind = "token_budget"


@pytest.mark.behaviour("R-1t")
async def test_a_comeback_of_a_conditional_cause_has_two_tries_too(rd: Redrive, t: Harness) -> None:
    """Tokens of output are cut off again and again: three changed tries, then two in each of two comebacks."""
    limits: list[int] = []

    @rd.task("answer")
    async def answer(prompt: str, max_tokens: int) -> str:
        limits.append(max_tokens)
        raise CutOff("the answer was cut off")

    handle = await rd.enqueue("answer", {"prompt": "a", "max_tokens": 10_000})
    await t.advance(5 * MINUTE)
    assert len(limits) == 4, "the first try and three changed ones"
    await t.advance(15 * MINUTE)
    assert len(limits) == 6, "the first comeback"
    await t.advance(DAY)
    assert len(limits) == 8
    assert sorted(set(limits), reverse=True) == limits, "each is shorter than the one before"
    job = await handle.refresh()
    assert (job.lane, job.comebacks, job.attempts) == ("manual", 2, 8)


@pytest.mark.behaviour("R-1t")
async def test_a_failure_of_the_same_group_brings_nothing_back(rd: Redrive, t: Harness) -> None:
    """A cut off answer shows that the model is up. It is no sign that the group's dead letters would do better."""
    tried: list[str] = []

    @rd.task("answer")
    async def answer(prompt: str, max_tokens: int) -> str:
        tried.append(prompt[0])
        raise CutOff("the answer was cut off")

    handle = await rd.enqueue("answer", {"prompt": "a", "max_tokens": 10_000})
    await t.advance(5 * MINUTE)
    assert (await handle.refresh()).lane == "delayed"
    other = await rd.enqueue("answer", {"prompt": "b", "max_tokens": 10_000})
    await t.advance(2 * MINUTE)
    assert (await other.refresh()).fingerprint == (await handle.refresh()).fingerprint
    assert tried.count("b") > 1 and tried.count("a") == 4, "it still waits for its own time"


@pytest.mark.behaviour("R-1t")
async def test_a_conditional_cause_takes_what_worked_for_its_group(rd: Redrive, t: Harness) -> None:
    """A smaller output helps as a rule. It did not help one job at first, which comes back with it."""
    limits: list[int] = []
    unlucky = True

    @rd.task("answer", rungs=1)
    async def answer(prompt: str, max_tokens: int) -> str:
        limits.append(max_tokens)
        if max_tokens == 1000 or ("x" in prompt and unlucky):
            raise CutOff("the answer was cut off")
        return "fine"

    for prompt in ("a", "b", "c"):
        handle = await rd.enqueue("answer", {"prompt": prompt, "max_tokens": 1000})
        await t.advance(5 * MINUTE)
        assert (await handle.refresh()).state is State.done
    handle = await rd.enqueue("answer", {"prompt": "x", "max_tokens": 1000})
    await t.advance(5 * MINUTE)
    job = await handle.refresh()
    assert (job.state, job.lane) == (State.dead, "delayed"), job.recommendation
    unlucky = False
    await t.advance(DAY)
    assert (await handle.refresh()).state is State.done
    assert await comebacks_of(rd, handle.id) == 1
    assert limits[-1] < 1000


# ---- people and books


@pytest.mark.behaviour("R-1u")
async def test_nobody_is_called_for_what_comes_back(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, breaker_after=0)
    for number in range(40):
        await dead(rd, t, number=number)
    told = await people_told(rd)
    assert "page" not in told and "dead_letters" not in told
    health = await rd.health()
    assert (health.needs, health.exit_code) == ([], 0)
    assert any("40 come back by themselves" in issue for issue in health.issues), health.issues
    morning = await rd.morning()
    assert [need for need in morning.needs if need.kind != "unattended"] == []
    site.error = None
    await t.advance(20 * MINUTE)
    told = await people_told(rd)
    assert "page" not in told and "dead_letters" not in told


@pytest.mark.behaviour("R-1u")
async def test_what_needs_a_person_pages_beside_what_comes_back(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, breaker_after=0)
    for number in range(10):
        await dead(rd, t, number=number)
    site.error = lambda: PermissionError("not yours")
    for number in range(4):
        await dead(rd, t, number=number)
    assert "page" in await people_told(rd)
    health = await rd.health()
    assert [(need.kind, need.count) for need in health.needs] == [("dead_manual", 4)]
    assert any("10 come back by themselves" in issue for issue in health.issues), health.issues


async def _queued_for_a_session(rd: Redrive, t: Harness) -> str:
    """A call that an agent's session made, and that failed: redrive goes on trying."""
    outcome = await rd.call("fetch", {"number": 1}, session_id="s1")
    assert outcome.operation_id
    return outcome.operation_id


@pytest.mark.behaviour("R-1v")
async def test_a_session_hears_when_it_comes_back_and_the_end_exactly_once(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, max_attempts=4)
    job_id = await _queued_for_a_session(rd, t)
    await t.advance(5 * MINUTE)
    job = await rd.jobs.get(job_id)
    assert (job.state, job.lane) == (State.dead, "delayed"), (job.because, job.recommendation)
    (notice,) = await rd.sessions.inbox("s1", unread=False)
    assert (notice.kind, notice.job_id) == ("comes_back", job_id)
    first = notice.text
    await t.advance(30 * MINUTE)
    (notice,) = await rd.sessions.inbox("s1", unread=False)
    assert notice.kind == "comes_back" and notice.text != first, "the same notice, with the new time"
    await t.advance(4 * DAY)
    assert (await rd.jobs.get(job_id)).lane == "manual"
    kinds = [notice.kind for notice in await rd.sessions.inbox("s1", unread=False)]
    assert kinds == ["retry_exhausted"], "one final notice, in place of the others"


@pytest.mark.behaviour("R-1v")
async def test_a_session_hears_that_a_comeback_succeeded(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, max_attempts=4)
    job_id = await _queued_for_a_session(rd, t)
    await t.advance(5 * MINUTE)
    site.error = None
    await t.advance(20 * MINUTE)
    assert (await rd.jobs.get(job_id)).state is State.done
    pending = [(notice.kind, notice.status) for notice in await rd.sessions.inbox("s1", unread=False)]
    assert [kind for kind, _ in pending if kind != "comes_back"] == ["retry_success"]
    assert all(status == "resolved" for kind, status in pending if kind == "comes_back")


@pytest.mark.behaviour("R-1w")
async def test_the_books_balance_and_time_is_counted_to_the_success(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, base=1.0, breaker_after=0)
    job = await dead(rd, t)
    died = site.times[-1]
    await advance_to_the_comeback(rd, t, job.id)
    row = (await rd.reports.monthly(2)).total
    assert (row.died, row.auto, row.person, row.open) == (1, 0, 0, 1), "died once, however often it comes back"
    site.error = None
    await advance_to_the_comeback(rd, t, job.id)
    row = (await rd.reports.monthly(2)).total
    assert (row.died, row.auto, row.person, row.open, row.human) == (1, 1, 0, 0, 0)
    assert row.auto_seconds == pytest.approx(site.times[-1] - died, abs=2)
    assert row.processed == 1


@pytest.mark.behaviour("R-1w")
async def test_the_books_balance_whatever_became_of_the_letters(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, base=1.0, breaker_after=0)
    auto, redriven, discarded, waits, manual = [await dead(rd, t, number=number) for number in range(5)]
    await rd.dead.move_lane(manual.id, "manual", who="ada")
    await rd.dead.discard(discarded.id, who="ada")
    await rd.queues.pause("fetch", who="ada")
    await t.advance(60)
    site.error = None
    await rd.queues.resume("fetch", who="ada")
    await rd.dead.redrive(redriven.id, who="ada")
    await t.advance(5)
    site.error = lambda: ConnectionError("connection refused")
    states = {name: (await rd.jobs.get(job.id)).state for name, job in {"redriven": redriven, "auto": auto}.items()}
    assert states["redriven"] is State.done
    row = (await rd.reports.monthly(2)).total
    assert row.died == 5
    assert row.died == row.auto + row.open + row.human
    assert row.person >= 2, "one redriven by ada, one discarded"
    del waits


@pytest.mark.behaviour("R-1w")
async def test_a_life_that_a_person_gave_counts_once_more(rd: Redrive, t: Harness, site: Site) -> None:
    register(rd, site, base=1.0)
    job = await dead(rd, t)
    await advance_to_the_comeback(rd, t, job.id)
    await rd.dead.redrive(job.id, who="ada")
    await t.advance(30)
    site.error = None
    await t.advance(DAY)
    assert (await rd.jobs.get(job.id)).state is State.done
    row = (await rd.reports.monthly(2)).total
    assert row.died == row.auto + row.open + row.human
    assert row.died in (1, 2), "at most once per life, and never once per comeback"


# ---- many processes


@pytest.mark.behaviour("R-1x")
async def test_two_processes_on_one_file_make_each_comeback_once(database: Path) -> None:
    from tests.support import FakeClock, PassingTime

    clock = FakeClock()
    calls: list[float] = []
    async with Redrive(database, clock=clock) as one, Redrive(database, clock=clock) as other:
        for rd in (one, other):

            @rd.task("fetch", max_attempts=1, base=1.0)
            async def fetch(number: int = 0) -> str:
                calls.append(clock.now())
                raise ConnectionError("connection refused")

        handle = await one.enqueue("fetch", {})

        async def came_back() -> bool:
            return len(calls) >= 3 and (await handle.refresh()).state is State.dead

        passing = PassingTime(clock)
        async with one.worker(), other.worker():
            await passing.until(came_back, "it has died, come back and died again")
        assert len(calls) == 3
        assert await comebacks_of(one, handle.id) == 1
