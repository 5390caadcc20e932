"""`rd.groups`: a trouble is told once, by one process, for good; people say what they make of it."""

import asyncio
import logging
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive.testing
from redrive import Context, Redrive
from redrive.core import lifecycle
from redrive.core.job import State
from redrive.core.pain import Pain
from redrive.core.store import Commit, Filter, Wanted
from redrive.deadletters import group_alerts
from redrive.deadletters.group import GroupView
from redrive.engine.bus import BusEvent
from redrive.engine.worker_registry import list_living
from redrive.errors import InvalidInput
from redrive.notices.courier import TURN_SECONDS
from tests.support import FakeClock, eventually, line_of, look_and_tell, opened, process, soon


class Trouble(Exception):
    """What the tasks of these tests fail with."""


async def fail(error: str = "stuck", kind: str = "trouble") -> None:
    """Fails with the error it is told."""
    raise {"trouble": Trouble, "network": ConnectionError, "bug": AttributeError}[kind](error)


async def bury(rd: Redrive, number: int = 1, **how: Any) -> None:
    mill = rd.task("mill", max_attempts=1, comebacks=())(fail)
    for _ in range(number):
        await mill.enqueue(**how)
    await soon(rd.drain())


async def the_group(rd: Redrive) -> GroupView:
    (view,) = await rd.groups.list()
    await rd.notices.deliver()
    return view


def kinds(felt: list[Pain]) -> list[str]:
    return [pain.kind for pain in felt if pain.kind.startswith("group_")]


def deaf(pain: Pain) -> None:
    raise ConnectionError("the pager is down")


# ---- what a list shows


async def test_one_trouble_has_one_advice_wherever_one_looks(rd: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    """What the letter says is what the list, the group, the morning and the alert say."""

    @rd.task
    async def freeze() -> None:
        raise redrive.GiveUp("production is frozen", recommendation="Redrive it after the change freeze.")

    @rd.task(max_attempts=1, comebacks=())
    async def connect() -> None:
        raise ConnectionError("refused")

    frozen, refused = await freeze.enqueue(), await connect.enqueue()
    await soon(rd.drain())
    for job in (await rd.jobs.get(frozen.id), await rd.jobs.get(refused.id)):
        assert job.recommendation and job.fingerprint
        assert [v.suggestion.text for v in await rd.groups.list(task=job.task)] == [job.recommendation]
        assert (await rd.groups.show(job.fingerprint)).suggestion.text == job.recommendation
        assert [need.action for need in (await rd.morning()).needs if need.task == job.task] == [job.recommendation]
        assert any(f"{job.recommendation} Look closer" in record.message for record in caplog.records)

    await rd.dead.discard(frozen.id, why="no longer wanted")
    (view,) = await rd.groups.list(task="freeze")
    assert view.suggestion.text == "Waiting does not heal it. Fix the cause, then redrive, or discard."


async def test_dead_letters_of_one_trouble_are_one_group(rd: Redrive) -> None:
    await bury(rd, 3, error="order 17 is stuck")
    await bury(rd, 2, error="order 18 is stuck")
    await bury(rd, 1, kind="network")
    first, second = await rd.dead.groups()
    assert {(view.group.error_class, view.dead, view.group.buried) for view in (first, second)} == {
        ("Trouble", 5, 5), ("ConnectionError", 1, 1),
    }  # fmt: skip
    assert (first.status, first.trend, second.status) == ("unresolved", "new", "unresolved")


async def test_what_is_dead_now_and_what_ever_was(rd: Redrive) -> None:
    await bury(rd, 3)
    page = await rd.dead.list()
    await rd.dead.discard(page.jobs[0].id)
    view = await the_group(rd)
    assert (view.dead, view.group.buried) == (2, 3)


async def test_filters(rd: Redrive) -> None:
    await bury(rd, 1)
    await bury(rd, 1, kind="network")
    (network,) = await rd.groups.list(error_class="ConnectionError")
    await rd.groups.resolve(network.fingerprint)
    for filters, expected in (
        ({}, ["Trouble", "ConnectionError"]),
        ({"status": "resolved"}, ["ConnectionError"]),
        ({"status": "unresolved"}, ["Trouble"]),
        ({"status": "ignored"}, []),
        ({"queue": "mill", "task": "mill"}, ["Trouble", "ConnectionError"]),
        ({"task": "other"}, []),
        ({"detail": "network"}, ["ConnectionError"]),
        ({"limit": 1}, ["Trouble"]),
        ({"queue": None}, ["Trouble", "ConnectionError"]),
    ):
        assert [view.group.error_class for view in await rd.groups.list(**filters)] == expected, filters


async def test_one_group_with_its_samples_lessons_and_suggestion(rd: Redrive) -> None:
    await bury(rd, 7, kind="network")
    view = await the_group(rd)
    waiting = await rd.dead.redrive(view.group.sample)
    claimed = (await rd.store.claim(Wanted(1, ids=(waiting.id,)), "w", rd.clock.now())).jobs
    move = lifecycle.succeeded(claimed[0], rd.clock.now(), None)
    await rd.store.apply([Commit((_teaching(move, view.fingerprint, "retry"),))])
    shown = await rd.groups.show(view.fingerprint[:5])
    assert (shown.dead, shown.group.buried, len(shown.samples)) == (6, 7, 5)
    assert all(job.state is State.dead and job.fingerprint == view.fingerprint for job in shown.samples)
    assert [(lesson.strategy, lesson.worked, lesson.failed) for lesson in shown.lessons] == [("retry", 1, 0)]
    assert shown.suggestion.text == "Redriving as it is worked 1 of 1 times."


async def test_one_begins_with_the_most_letters_that_nobody_has_dealt_with(rd: Redrive) -> None:
    assert await rd.groups.first() is None
    await bury(rd, 3)
    await bury(rd, 2, kind="network")
    await bury(rd, 1, kind="bug")
    found = await rd.groups.first()
    assert found is not None and (found.group.error_class, found.dead) == ("Trouble", 3)
    await rd.dead.move_lane(found.samples[0].id, lane="delayed")
    partly = await rd.groups.first()
    assert partly is not None and (partly.fingerprint, partly.dead, partly.manual) == (found.fingerprint, 3, 2)
    await rd.groups.ignore(found.fingerprint)
    second = await rd.groups.first()
    assert second is not None and second.group.error_class == "ConnectionError"
    await rd.dead.move_lane(lane="delayed", where={"fingerprint": second.fingerprint})
    third = await rd.groups.first()
    assert third is not None and third.group.error_class == "AttributeError", "the delayed lane waits for nobody"
    await rd.groups.resolve(third.fingerprint)
    assert await rd.groups.first() is None


def _teaching(move: Any, fingerprint: str, strategy: str) -> Any:
    return msgspec.structs.replace(move, lesson=(fingerprint, strategy, True))


# ---- what people say


async def test_a_resolved_group_that_comes_back_is_told(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    async with opened(database, clock=clock, signals=[felt.append]) as rd:
        await bury(rd, 2)
        view = await the_group(rd)
        assert kinds(felt) == ["group_new"]
        resolved = await rd.groups.resolve(view.short, who="ann", why="fixed the mill")
        assert (resolved.status, resolved.state.who, resolved.state.why) == ("resolved", "ann", "fixed the mill")
        clock.advance(10)
        await look_and_tell(rd)
        assert kinds(felt) == ["group_new"]
        await bury(rd, 1)
        await look_and_tell(rd)
        await look_and_tell(rd)
        assert kinds(felt) == ["group_new", "group_regressed"]
        assert (await the_group(rd)).status == "unresolved"


async def test_a_regression_counts_from_the_version_of_the_cure(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    async with opened(database, clock=clock, version="1.3", signals=[felt.append]) as rd:
        await bury(rd, 1)
        view = await the_group(rd)
        await rd.groups.resolve(view.fingerprint, in_version="1.4")
        clock.advance(10)
        await bury(rd, 2)
        await look_and_tell(rd)
        assert (await the_group(rd)).status == "resolved", "an old worker is no regression"
        assert kinds(felt) == ["group_new"]
    async with opened(database, clock=clock, version="1.4.1", signals=[felt.append]) as rd:
        clock.advance(10)
        await bury(rd, 1)
        await look_and_tell(rd)
    assert kinds(felt) == ["group_new", "group_regressed"]


@pytest.mark.parametrize(
    ("limit", "quiet", "loud"),
    [({"count": 3}, 3, 1), ({"rate": 3}, 3, 1), ({"until": timedelta(hours=2)}, 9, 0), ({}, 9, None)],
    ids=["count", "rate", "until", "for good"],
)
async def test_an_ignored_group_is_told_when_the_limit_is_passed(
    database: Path, clock: FakeClock, limit: dict[str, Any], quiet: int, loud: int | None
) -> None:
    felt: list[Pain] = []
    async with opened(database, clock=clock, signals=[felt.append]) as rd:
        await bury(rd, 1)
        view = await the_group(rd)
        clock.advance(4000)
        ignored = await rd.groups.ignore(view.fingerprint, who="ann", why="known", **limit)
        assert ignored.status == "ignored"
        await bury(rd, quiet)
        await look_and_tell(rd)
        assert kinds(felt) == ["group_new"]
        if loud == 0:
            clock.advance(7200)
        await bury(rd, max(1, loud or 0))
        await look_and_tell(rd)
        assert kinds(felt) == ["group_new", *(["group_unignored"] if loud is not None else [])]


async def test_burials_spread_over_hours_do_not_pass_a_rate(database: Path, clock: FakeClock) -> None:
    """Also where nobody looked in between."""
    felt: list[Pain] = []
    async with opened(database, clock=clock, signals=[felt.append]) as rd:
        await bury(rd, 1)
        await rd.groups.ignore((await the_group(rd)).fingerprint, rate=2)
        for _ in range(8):
            clock.advance(3700)
            await bury(rd, 2)
        await look_and_tell(rd)
        assert kinds(felt) == ["group_new"]


async def test_reopening_and_notes(rd: Redrive) -> None:
    await bury(rd, 1)
    view = await the_group(rd)
    await rd.groups.ignore(view.fingerprint, who="ann")
    await rd.groups.note(view.fingerprint, "see the wiki", who="bob")
    reopened = await rd.groups.reopen(view.fingerprint, who="cy", why="it matters")
    assert (reopened.status, reopened.state.note) == ("unresolved", "see the wiki")
    assert [(said.what, said.who) for said in reopened.state.story] == [
        ("new", "redrive"), ("ignored", "ann"), ("noted", "bob"), ("reopened", "cy"),
    ]  # fmt: skip


async def test_two_who_speak_at_once_are_both_heard(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock) as one, opened(database, clock=clock) as two:
        await bury(one, 1)
        view = await the_group(one)
        await asyncio.gather(
            *(rd.groups.resolve(view.fingerprint, who=f"{name}{number}")
              for number in range(2) for name, rd in (("a", one), ("b", two)))
        )  # fmt: skip
        story = (await two.groups.show(view.fingerprint)).state.story
        said = [line.who for line in story if line.what == "resolved"]
        assert sorted(said) == sorted(f"{name}{number}" for name in "ab" for number in range(2))


@pytest.mark.parametrize(
    ("verb", "how", "field"),
    [
        ("show", {"fingerprint": "ff"}, "fingerprint"),
        ("show", {"fingerprint": "no such group"}, "fingerprint"),
        ("show", {"fingerprint": ""}, "fingerprint"),
        ("list", {"status": "solved"}, "status"),
        ("list", {"colour": "red"}, "colour"),
        ("list", {"limit": 0}, "limit"),
        ("resolve", {"in_version": ""}, "in_version"),
        ("resolve", {"why": "x" * 1001}, "why"),
        ("ignore", {"until": datetime(2030, 1, 1)}, "until"),  # noqa: DTZ001 - naive on purpose
        ("ignore", {"until": datetime(2020, 1, 1, tzinfo=UTC)}, "until"),
        ("ignore", {"until": timedelta(seconds=-1)}, "until"),
        ("ignore", {"until": "tomorrow"}, "until"),
        ("ignore", {"rate": -1}, "rate"),
        ("ignore", {"rate": float("nan")}, "rate"),
        ("ignore", {"rate": "5"}, "rate"),
        ("ignore", {"count": 1.5}, "count"),
        ("ignore", {"count": True}, "count"),
    ],
)
async def test_bad_input_names_its_field_and_changes_nothing(
    rd: Redrive, verb: str, how: dict[str, Any], field: str
) -> None:
    await bury(rd, 1)
    before = await the_group(rd)
    given = how if verb in ("list", "show") else {"fingerprint": before.fingerprint, **how}
    with pytest.raises(InvalidInput) as refused:
        await getattr(rd.groups, verb)(**given)
    assert refused.value.field == field
    assert (await the_group(rd)).state == before.state


async def test_a_beginning_that_several_groups_have_is_refused(rd: Redrive) -> None:
    """Three hex digits begin several of some hundred groups."""
    await bury(rd, 1)
    (view,) = await rd.groups.list()
    twin = view.fingerprint[:6] + "0" * 10
    (job,) = (await rd.dead.list()).jobs
    dead = await rd.jobs.get(job.id)
    await rd.store.insert([msgspec.structs.replace(dead, id="e" * 32, fingerprint=twin, history=())])
    with pytest.raises(InvalidInput, match="several"):
        await rd.groups.show(view.fingerprint[:6])
    assert (await rd.groups.show(view.fingerprint[:7])).fingerprint == view.fingerprint


# ---- telling


async def test_a_trouble_is_told_once_on_the_bus_and_to_every_sink(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    later: list[Pain] = []
    heard: list[BusEvent] = []

    async def feel_later(pain: Pain) -> None:
        later.append(pain)

    async with opened(database, clock=clock, signals=[felt.append, feel_later]) as rd:
        rd.subscribe("group_alert", heard.append)
        await bury(rd, 4, kind="network")
        for _ in range(5):
            await look_and_tell(rd)
            clock.advance(400)
        await bury(rd, 40, kind="network")
        await look_and_tell(rd)
        fingerprint = (await the_group(rd)).fingerprint
    assert felt == later and kinds(felt) == ["group_new"]
    pain, (event,) = felt[0], heard
    assert (pain.kind, pain.queue, pain.severity >= 0.7) == ("group_new", "mill", True)
    assert fingerprint[:8] in pain.message and "ConnectionError: stuck" in pain.message
    assert (event.queue, event.task) == ("mill", "mill")
    assert event.data is not None
    said = {name: event.data[name] for name in ("kind", "fingerprint", "error_class", "count")}
    assert said == {"kind": "new", "fingerprint": fingerprint, "error_class": "ConnectionError", "count": 4}
    assert "receiver" in event.data["suggestion"]["text"]


async def test_nothing_is_told_again_after_a_restart(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    for _ in range(3):
        async with opened(database, clock=clock, signals=[felt.append]) as rd:
            await bury(rd, 2)
            await look_and_tell(rd)
            clock.advance(100)
    assert kinds(felt) == ["group_new"]


async def test_of_two_that_look_at_once_one_tells(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    async with (
        opened(database, clock=clock, signals=[felt.append]) as one,
        opened(database, clock=clock, signals=[felt.append]) as two,
    ):
        for error in ("stuck", "broken", "lost", "burnt"):
            await bury(one, 1, error=error)
            await asyncio.gather(*(look_and_tell(rd) for rd in (one, two, one, two)))
    assert kinds(felt) == ["group_new"] * 4


async def test_a_sink_that_fails_is_told_again_at_the_next_look(
    database: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[Pain] = []
    others: list[Pain] = []

    def sink(pain: Pain) -> None:
        tries.append(pain)
        if len(tries) < 3:
            raise ConnectionError("the pager is down")

    async with opened(database, clock=clock, signals=[sink, others.append]) as rd:
        heard: list[BusEvent] = []
        rd.subscribe("group_alert", heard.append)
        await bury(rd, 1)
        for expected in (1, 2, 3, 3, 3):
            await look_and_tell(rd)
            assert len(tries) == expected
            clock.advance(60)
        assert await rd.notices.waiting() == []
    assert (len(others), len(heard)) == (1, 1), "who has heard it is spared"
    assert any("pager" in record.getMessage() and record.levelno >= logging.WARNING for record in caplog.records)


async def test_what_one_process_could_not_deliver_another_does(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    async with opened(database, clock=clock, signals=[deaf]) as rd:
        await bury(rd, 1)
        await look_and_tell(rd)
        assert [notice.kind for notice in await rd.notices.waiting()] == ["group_new"]
    async with opened(database, clock=clock, signals=[felt.append]) as rd:
        await look_and_tell(rd)
        await look_and_tell(rd)
    assert kinds(felt) == ["group_new"]


async def test_who_has_nobody_to_tell_leaves_it_to_others(database: Path, clock: FakeClock) -> None:
    """A command line that lists the groups first does not swallow the alert."""
    felt: list[Pain] = []
    async with opened(database, clock=clock) as quiet, opened(database, clock=clock, signals=[felt.append]) as loud:
        await bury(quiet, 1)
        assert (await the_group(quiet)).state.alerted_at == clock.now()
        assert [notice.kind for notice in await quiet.notices.waiting()] == ["group_new"]
        await look_and_tell(loud)
        assert kinds(felt) == ["group_new"]
        assert await quiet.notices.waiting() == []


async def test_what_an_erased_job_said_is_not_kept_in_its_group(rd: Redrive, database: Path) -> None:
    await bury(rd, 1, error="the password is Xyzzy_99")
    view = await the_group(rd)
    assert "Xyzzy_99" in str(view.group.error)
    await rd.jobs.erase(view.group.sample)
    assert (await the_group(rd)).group.error is None
    assert all("Xyzzy_99" not in document.value.decode() for document in await rd.store.docs("group"))


async def test_a_listener_to_everything_hears_it_but_does_not_take_it_from_others(
    database: Path, clock: FakeClock
) -> None:
    felt: list[Pain] = []
    heard: list[BusEvent] = []
    async with opened(database, clock=clock) as quiet, opened(database, clock=clock, signals=[felt.append]) as loud:
        quiet.subscribe("*", heard.append)
        await bury(quiet, 1)
        for _ in range(3):
            await look_and_tell(quiet)
        assert [event.type for event in heard].count("group_alert") == 1
        await look_and_tell(loud)
    assert kinds(felt) == ["group_new"]


async def test_a_subscriber_takes_nothing_from_a_worker_that_pages_somebody(database: Path) -> None:
    """As a web page that shows alerts, beside the worker whose function wakes a person."""
    felt: list[Pain] = []
    heard: list[BusEvent] = []
    async with opened(database) as web, opened(database, signals=[felt.append]) as pager:
        web.subscribe("group_alert", heard.append)
        async with pager.worker():
            await eventually(lambda: _has_channels(web), "the worker says what channels it has")
            await bury(web, 1)
            await web.groups.list()
            await eventually(lambda: kinds(felt) == ["group_new"], "the alert")
        await bury(web, 1, error="the road is closed")
        await web.groups.list()
    assert [event.data["kind"] for event in heard][-1:] == ["new"], "and hears what nobody else is there for"
    assert kinds(felt) == ["group_new"]


async def _has_channels(rd: Redrive) -> bool:
    return any(worker.channels for worker in await list_living(rd.store, rd.clock.now()))


async def test_of_the_subscribers_of_two_processes_that_of_the_one_that_judges_hears_it(
    database: Path, clock: FakeClock
) -> None:
    heard: list[BusEvent] = []
    async with opened(database, clock=clock) as one, opened(database, clock=clock) as two:
        for rd in (one, two):
            rd.subscribe("group_alert.mill", heard.append)
        await bury(one, 1)
        await asyncio.gather(*(look_and_tell(rd) for rd in (one, two, one, two)))
    assert len(heard) == 1


async def test_whoever_resolves_a_group_needs_no_alert_about_it(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    async with opened(database, clock=clock) as quiet, opened(database, clock=clock, signals=[felt.append]) as loud:
        await bury(quiet, 1)
        await quiet.groups.resolve((await the_group(quiet)).fingerprint)
        await look_and_tell(loud)
    assert felt == []


async def test_who_dies_while_telling_is_followed_by_another(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []

    begun = asyncio.Event()

    async def hangs(pain: Pain) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with opened(database, clock=clock, signals=[hangs]) as rd:
        await bury(rd, 1)
        telling = asyncio.create_task(look_and_tell(rd))
        await soon(begun.wait())
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
    async with opened(database, clock=clock, signals=[felt.append]) as rd:
        await look_and_tell(rd)
        assert felt == [], "the other may still be at it"
        clock.advance(TURN_SECONDS)
        await look_and_tell(rd)
        await look_and_tell(rd)
    assert kinds(felt) == ["group_new"]


async def test_a_sink_that_hangs_is_waited_for_once_in_a_look(
    database: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.notices.courier.SEND_SECONDS", 0.5)
    felt: list[Pain] = []
    asked: list[Pain] = []

    async def hang(pain: Pain) -> None:
        asked.append(pain)
        await asyncio.Event().wait()

    async with opened(database, clock=clock, signals=[hang, felt.append]) as rd:
        for error in ("the mill", "the well", "the road"):
            await bury(rd, 1, error=error)
        for look in (1, 2):
            await soon(look_and_tell(rd))
            assert (len(asked), kinds(felt)) == (look, ["group_new"] * 3)
            clock.advance(60)
        rd.signals.remove(hang)
        await look_and_tell(rd)
        assert await rd.notices.waiting() == []


async def test_a_process_whose_clock_lags_does_not_tell_what_another_tells(database: Path, clock: FakeClock) -> None:
    """Nor one that has looked at its clock a moment before the other began."""
    told: list[str] = []
    may_go_on = asyncio.Event()

    async def slowly(pain: Pain) -> None:
        told.append("ahead")
        await may_go_on.wait()

    ahead = FakeClock(clock.now() + 1.0)
    async with opened(database, clock=ahead, signals=[slowly]) as one:
        await bury(one, 1)
        telling = asyncio.create_task(look_and_tell(one))
        await eventually(lambda: told == ["ahead"])
        async with opened(database, clock=clock, signals=[lambda pain: told.append("behind")]) as other:
            await look_and_tell(other)
        may_go_on.set()
        await soon(telling)
    assert told == ["ahead"]


async def test_an_import_of_old_failures_is_noticed(database: Path, clock: FakeClock) -> None:
    """Its burials are older than all that was judged; every minute all groups are looked at."""
    felt: list[Pain] = []
    async with opened(database, clock=clock, signals=[felt.append]) as rd:
        await bury(rd, 1)
        await look_and_tell(rd)
        (job,) = (await rd.dead.list()).jobs
        old = msgspec.structs.replace(job, id="e" * 32, fingerprint="0ld", updated_at=clock.now() - 30 * 86400)
        await rd.store.insert([old])
        clock.advance(group_alerts.SWEEP_SECONDS)
        await look_and_tell(rd)
    assert kinds(felt) == ["group_new", "group_new"]


async def test_a_look_at_nothing_new_reads_little_and_writes_nothing(rd: Redrive, clock: FakeClock) -> None:
    await bury(rd, 3)
    rd.signals.append(lambda pain: None)
    await rd.groups.look()
    await rd.groups.look()
    asked: list[str] = []
    store = rd.store
    for verb in ("groups", "docs", "doc", "apply", "count", "find", "get", "lessons"):
        _count_calls(store, verb, asked)
    clock.advance(5)
    await rd.groups.look()
    assert asked == ["groups"]


def _count_calls(store: Any, verb: str, asked: list[str]) -> None:
    original = getattr(store, verb)

    async def counted(*given: Any, **how: Any) -> Any:
        asked.append(verb)
        return await original(*given, **how)

    setattr(store, verb, counted)


async def test_a_new_store_is_a_new_world(database: Path, tmp_path: Path, clock: FakeClock) -> None:
    """What was judged in one store says nothing of another (redrive.testing changes stores)."""
    felt: list[Pain] = []
    async with opened(database, clock=clock, signals=[felt.append]) as rd:
        await bury(rd, 1)
        await look_and_tell(rd)
        async with redrive.testing.harness(rd):
            await bury(rd, 1)
            await look_and_tell(rd)
            assert [notice.kind for notice in await rd.notices.waiting()] == ["group_new"]
        await look_and_tell(rd)
    assert kinds(felt) == ["group_new"], "in the harness no channel is told anything"


# ---- workers and processes


async def test_a_running_worker_looks_by_itself(database: Path) -> None:
    felt: list[Pain] = []
    async with opened(database, signals=[felt.append]) as rd:
        await bury(rd)
        async with rd.worker():
            await eventually(lambda: kinds(felt) == ["group_new"], "the alert")


PROCESS = """
import asyncio, sys
import redrive

async def main():
    rd = redrive.Redrive(sys.argv[1], signals=[lambda pain: print(pain.kind, flush=True)])
    await rd.open()
    print("ready", flush=True)
    for _ in range(int(sys.argv[2])):
        await asyncio.to_thread(sys.stdin.readline)
        await rd.groups.look()
        await rd.notices.deliver()
        print("looked", flush=True)
    await rd.close()

asyncio.run(main())
"""


async def test_of_several_processes_one_tells(database: Path) -> None:
    rounds = 4
    told: list[str] = []
    async with opened(database) as rd:
        with process(PROCESS, database, rounds) as one, process(PROCESS, database, rounds) as two:
            children = (one, two)
            assert [await line_of(child) for child in children] == ["ready", "ready"]
            for number in range(rounds):
                await bury(rd, 3, error="stuck" + "!" * number)
                for child in children:
                    assert child.stdin
                    child.stdin.write("\n")
                    child.stdin.flush()
                for child in children:
                    while (line := await line_of(child)) != "looked":
                        assert line, "the process ended"
                        told.append(line)
        assert told == ["group_new"] * rounds
        assert (await rd.store.count(Filter(states=(State.dead,)))) == {(): 3 * rounds}


DIES = """
import asyncio, os, signal, sys
import redrive

def sink(pain):
    print(pain.kind, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    rd = redrive.Redrive(sys.argv[1], signals=[sink])
    await rd.groups.look()
    await rd.notices.deliver()

asyncio.run(main())
"""


async def test_a_process_killed_while_it_tells_silences_nothing(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    clock.advance(datetime.now(UTC).timestamp() - clock.now())
    async with opened(database, clock=clock, signals=[felt.append]) as rd:
        await bury(rd, 1)
        with process(DIES, database) as child:
            assert await line_of(child) == "group_new"
            assert await soon(asyncio.to_thread(child.wait)) == -signal.SIGKILL
        clock.advance(2 * TURN_SECONDS)
        await look_and_tell(rd)
        assert kinds(felt) == ["group_new"]


async def test_a_lesson_is_what_somebody_changed_not_that_it_was_given_up(database: Path) -> None:
    async with Redrive(database) as rd:

        @rd.task("brief")
        async def brief(ctx: Context, topic: str) -> str:
            if ctx.agent != "editor" and topic != "mended":
                raise PermissionError("may not write there")
            return topic

        for topic in ("one", "two", "three"):
            await brief.options(agent="intern").enqueue(topic)
        await rd.drain()
        one, two, three = (await rd.dead.list()).jobs
        await rd.dead.reassign(one.id, agent="editor")
        await rd.dead.edit(two.id, {"topic": "mended"})
        await rd.dead.redrive(three.id)
        await rd.drain()
        found = await rd.store.lessons(one.fingerprint or "")
    told = {lesson.strategy: (lesson.worked, lesson.failed) for lesson in found}
    assert told == {"set_agent": (1, 0), "edit": (1, 0), "redriven": (0, 1)}


async def test_what_was_let_go_before_it_died_has_its_group_when_it_is_brought_back(rd: Redrive) -> None:
    @rd.task(max_attempts=5, retry_on=(ValueError,), backoff="fixed_10s")
    async def fragile() -> None:
        raise ValueError("not yet")

    job = await rd.enqueue("fragile", {})
    await soon(rd.drain())
    await rd.jobs.cancel(job.id)
    back = await rd.dead.restore(job.id)
    view = await rd.groups.first()
    assert view is not None and view.fingerprint == back.fingerprint
    assert (view.dead, view.group.error, view.group.sample) == (1, "ValueError: not yet", job.id)
    assert (await rd.groups.show(str(back.fingerprint))).dead == 1
