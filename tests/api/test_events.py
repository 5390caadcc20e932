"""What is told: six events, each once; numbers, health and pain."""

import asyncio
import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

import redrive
from redrive import BusEvent, Context, Pain, Redrive
from redrive.core.pain import REPEAT_AFTER
from redrive.core.store import Filter, Page, Wanted
from redrive.engine.bus import EVENTS
from tests.support import FakeClock, eventually, look_and_tell, opened, soon


def _listen(rd: Redrive, pattern: str = "*") -> list[BusEvent]:
    heard: list[BusEvent] = []
    rd.subscribe(pattern, heard.append)
    return heard


# Events --------------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("000-25", "000-75")
async def test_six_events_each_once_at_its_move(rd: Redrive, clock: FakeClock) -> None:
    heard = _listen(rd)

    @rd.task(max_attempts=2, base=1, queue="mail")
    async def work(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ConnectionError

    job = await work.enqueue()
    await soon(rd.drain())
    clock.advance(10)
    await soon(rd.drain())
    await rd.dead.redrive(job.id, who="ann", why="it is up again")
    await soon(rd.drain())
    assert [(event.type, event.queue, event.job_id, event.attempt) for event in heard] == [
        ("enqueued", "mail", job.id, 0),
        ("retry", "mail", job.id, 1),
        ("dead_letter", "mail", job.id, 2),
        ("replayed", "mail", job.id, 2),
        ("completed", "mail", job.id, 3),
    ]
    heard.clear()
    await rd.enqueue_many("mailer", [{}] * 101, queue="mail")
    await look_and_tell(rd)
    await look_and_tell(rd)
    warnings = [event for event in heard if event.type not in ("enqueued", "group_alert")]
    assert [(event.type, event.queue) for event in warnings] == [("depth_warning", "mail")]
    assert warnings[0].data is not None and warnings[0].data["severity"] > 0
    assert set(EVENTS) == {"enqueued", "retry", "completed", "dead_letter", "depth_warning", "replayed"}


async def test_other_moves_are_told_too(rd: Redrive) -> None:
    heard = _listen(rd)

    @rd.task
    async def work(ctx: Context) -> None:
        if ctx.job.run == 1:
            raise redrive.Snooze(0)
        raise redrive.OutcomeUnknown("?")

    job = await work.enqueue()
    await soon(rd.drain())
    await rd.jobs.resolve(job.id, why="seen")
    other = await work.enqueue()
    await other.cancel()
    assert Counter(event.type for event in heard) == {
        "enqueued": 2, "snoozed": 1, "held": 1, "notice": 1, "resolved": 1, "cancelled": 1,
    }  # fmt: skip


@pytest.mark.behaviour("000-76")
async def test_patterns_choose(rd: Redrive) -> None:
    everything, mail, dead = _listen(rd), _listen(rd, "*.mail"), _listen(rd, "dead_letter")
    both, none = _listen(rd, "enqueued.m*"), _listen(rd, "completed.web")

    @rd.task(max_attempts=1)
    async def work() -> None:
        raise ConnectionError

    for queue in ("mail", "web"):
        await work.options(queue=queue).enqueue()
    await soon(rd.drain())
    assert len(everything) == 4
    assert [event.type for event in mail] == ["enqueued", "dead_letter"]
    assert {event.queue for event in dead} == {"mail", "web"}
    assert [event.queue for event in both] == ["mail"]
    assert none == []


@pytest.mark.behaviour("000-6", "000-76")
async def test_a_failing_subscriber_harms_nobody_and_is_counted(rd: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: BusEvent) -> None:
        raise RuntimeError("mine")

    async def broken_later(event: BusEvent) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("mine, later")

    subscriptions = [rd.subscribe("*", broken), rd.subscribe("*", broken_later)]
    heard = _listen(rd)

    @rd.task
    async def work() -> int:
        return 1

    job = await work.enqueue()
    await soon(rd.drain())
    assert await job.result(5) == 1
    assert [event.type for event in heard] == ["enqueued", "completed"]
    await eventually(lambda: [each.failures for each in subscriptions] == [2, 2])
    assert (await rd.stats())["subscriber_failures"] == 4
    assert sum("subscriber" in r.getMessage() and r.levelno >= logging.WARNING for r in caplog.records) == 4


@pytest.mark.behaviour("000-6")
async def test_the_ring_remembers_the_last_twenty(rd: Redrive) -> None:
    jobs = [await rd.enqueue("work") for _ in range(30)]
    assert [event.job_id for event in rd.bus.recent] == [job.id for job in jobs[-20:]]


async def test_a_closed_subscription_hears_no_more(rd: Redrive) -> None:
    heard: list[BusEvent] = []
    subscription = rd.subscribe("*", heard.append)
    await rd.enqueue("work")
    subscription.close()
    subscription.close()
    await rd.enqueue("work")
    assert len(heard) == 1


@pytest.mark.behaviour("000-20", "000-92")
async def test_events_are_not_written_to_disk(rd: Redrive, database: Path) -> None:
    await rd.enqueue("work")
    watcher = apsw.Connection(str(database))
    before = watcher.pragma("data_version"), _sizes(database)
    heard = _listen(rd)
    for number in range(1_000):
        rd.bus.publish(BusEvent("note", "work", 0.0, str(number)))
    assert len(heard) == 1_000
    assert (watcher.pragma("data_version"), _sizes(database)) == before
    watcher.close()


def _sizes(database: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in database.parent.iterdir() if path.is_file()}


# Numbers -------------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("000-99")
async def test_the_books_balance(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(max_attempts=1)
    async def work(how: str) -> None:
        if how == "dead":
            raise PermissionError("not yours")
        if how == "back":
            raise ConnectionError
        if how == "held":
            raise redrive.OutcomeUnknown("?")

    handles = [await work.enqueue(how) for how in ["done"] * 4 + ["dead"] * 5 + ["held"] * 2 + ["back"]]
    await rd.enqueue_many("work", [{"how": "done"}] * 3, delay=60)
    await soon(rd.drain())
    await rd.dead.discard(handles[4].id)
    await rd.dead.purge([handles[5].id], why="a test")
    await rd.dead.redrive(handles[6].id)
    stats = await rd.stats()
    assert stats["totals"] == {
        "waiting": 4, "running": 0, "held": 2, "done": 4, "dead": 3, "discarded": 1, "purged": 1, "forgotten": 0,
        "spooled": 0, "due": 1, "retrying": 0, "parked": 0, "comes_back": 1, "pending": 1,
    }  # fmt: skip
    assert stats["accepted"] == 15


@pytest.mark.behaviour("000-18")
@pytest.mark.preset("agent_os")
async def test_a_queue_says_how_critical_it_is(rd: Redrive) -> None:
    for queue in ("feedback", "mesh_keys", "mine"):
        await rd.enqueue("work", queue=queue)
    said = {queue["name"]: queue["criticality"] for queue in (await rd.stats())["queues"]}
    assert said == {"feedback": "critical", "mesh_keys": "high", "mine": "normal"}


@pytest.mark.behaviour("000-101")
async def test_counters_per_queue(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(max_attempts=2, base=1)
    async def work(ok: bool) -> None:
        if not ok:
            raise ConnectionError

    for ok in (True, True, False):
        await work.enqueue(ok)
    await rd.enqueue("other", {})
    await soon(rd.drain())
    clock.advance(10)
    await soon(rd.drain())
    assert (await rd.stats())["runtime"] == {
        "work": {"enqueued": 3, "completed": 2, "retry": 1, "dead_letter": 1},
        "other": {"enqueued": 1},
    }


async def test_a_stalled_job_shows_in_health(database: Path) -> None:
    clock = FakeClock()
    begun, release = asyncio.Event(), asyncio.Event()
    async with opened(database, clock=clock) as rd:

        @rd.task(stalled_after=60)
        async def work() -> None:
            begun.set()
            await release.wait()

        job = await work.enqueue()
        async with rd.worker(scheduler=False):
            await soon(begun.wait())
            clock.advance(59)
            assert (await rd.health()).status == "healthy"
            clock.advance(5)
            health = await rd.health()
            release.set()
        assert health.status == "degraded"
        assert health.issues == [
            f"work: job {job.job.short_id} (work) has been running for 64 s without progress (stalled)"
        ]


async def test_a_stalled_job_is_found_among_any_number(
    rd: Redrive, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rd.task(stalled_after=60)
    async def work() -> None: ...

    @rd.task(queue="work", stalled_after=6_000)
    async def patient() -> None: ...

    for name in ("patient", "work", "patient"):
        await rd.enqueue(name, {})
    await rd.store.claim(Wanted(slots=3), "w1", clock.now())
    clock.advance(64)
    find = rd.store.find

    async def one(filter: Filter, cursor: str | None = None, limit: int = 100, *, oldest: bool = False) -> Page:
        return await find(filter, cursor, 1, oldest=oldest)

    monkeypatch.setattr(rd.store, "find", one)
    (issue,) = (await rd.health()).issues
    assert issue.endswith("(work) has been running for 64 s without progress (stalled)")


# Pain ----------------------------------------------------------------------------------------------------------------


def _depths(felt: list[Pain]) -> list[Pain]:
    return [pain for pain in felt if pain.kind == "depth"]


@pytest.mark.behaviour("000-26")
async def test_pain_goes_to_every_sink_once(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    later: list[Pain] = []

    async def feel_later(pain: Pain) -> None:
        later.append(pain)

    async with opened(database, clock=clock, signals=[felt.append, feel_later]) as rd:
        await rd.enqueue_many("work", [{}] * 100)
        await look_and_tell(rd)
        assert felt == []
        await rd.enqueue_many("work", [{}] * 50)
        for _ in range(5):
            await look_and_tell(rd)
            clock.advance(5)
        assert felt == later
        assert [(pain.kind, pain.queue) for pain in felt] == [("depth", "work")]
        clock.advance(300)
        await look_and_tell(rd)
        assert len(_depths(felt)) == 2, "it still hurts after five minutes"


async def test_pain_counts_as_told_only_when_it_was_delivered(
    database: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[Pain] = []

    def sink(pain: Pain) -> None:
        tries.append(pain)
        if len(tries) < 3:
            raise ConnectionError("the pager is down")

    async with opened(database, clock=clock, signals=[sink]) as rd:
        await rd.enqueue_many("work", [{}] * 101)
        for _ in range(6):
            await look_and_tell(rd)
            clock.advance(20)
    assert len(tries) == 3
    assert any("pager" in r.getMessage() and r.levelno >= logging.WARNING for r in caplog.records)


async def test_a_sink_that_refuses_or_hangs_is_named_and_told_again(
    database: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.notices.courier.SEND_SECONDS", 0.5)
    felt: list[Pain] = []
    release = threading.Event()
    tries: Counter[str] = Counter()

    def refuse(pain: Pain) -> bool:
        tries["refuse"] += 1
        return tries["refuse"] > 1

    def hang(pain: Pain) -> None:
        tries["hang"] += 1
        if tries["hang"] == 1:
            release.wait(20)

    async with opened(database, clock=clock, signals=[refuse, hang, felt.append]) as rd:
        await rd.enqueue_many("work", [{}] * 101)
        for _ in range(3):
            await soon(look_and_tell(rd))
            clock.advance(20)
        release.set()
    assert (tries["refuse"], tries["hang"], len(felt)) == (2, 2, 1)
    said = [record.getMessage() for record in caplog.records if "did not take" in record.getMessage()]
    assert any("refuse did not take" in line and "answered False" in line for line in said)
    assert any("hang did not take" in line and "no answer within" in line for line in said)


async def test_a_sink_that_hangs_is_waited_for_once_in_a_look(
    database: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.notices.courier.SEND_SECONDS", 0.5)
    asked: list[Pain] = []
    felt: list[Pain] = []

    async def hang(pain: Pain) -> None:
        asked.append(pain)
        await asyncio.Event().wait()

    async with opened(database, clock=clock, signals=[hang, felt.append]) as rd:
        for queue in ("one", "two", "three"):
            await rd.enqueue_many("work", [{}] * 101, queue=queue)
        await soon(look_and_tell(rd))
        assert (len(asked), len(felt)) == (1, 3)
        clock.advance(20)
        await soon(look_and_tell(rd))
    assert (len(asked), len(felt)) == (2, 3)


async def test_what_stopped_hurting_is_told_at_once_when_it_comes_back(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    async with opened(database, clock=clock, signals=[felt.append]) as rd:

        @rd.task
        async def work() -> None: ...

        for expected in (1, 2):
            await rd.enqueue_many("work", [{}] * 101)
            await look_and_tell(rd)
            assert len(felt) == expected
            await soon(rd.drain())
            await look_and_tell(rd)
            clock.advance(1)


async def test_a_number_that_hovers_around_its_threshold_is_one_pain(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    async with opened(database, clock=clock, signals=[felt.append]) as rd:
        await rd.enqueue_many("work", [{}] * 100)
        for _ in range(10):
            late = await rd.enqueue("work")
            await look_and_tell(rd)
            clock.advance(5)
            await late.cancel("not wanted")
            await look_and_tell(rd)
            clock.advance(5)
        assert len(_depths(felt)) == 1
        clock.advance(REPEAT_AFTER)
        await rd.enqueue("work")
        await look_and_tell(rd)
    assert len(_depths(felt)) == 2


async def test_many_dead_letters_hurt(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    async with opened(database, clock=clock, signals=[felt.append]) as rd:

        @rd.task(max_attempts=1, breaker_after=0)
        async def work(heals: bool) -> None:
            raise ConnectionError if heals else PermissionError("not yours")

        await rd.enqueue_many("work", [{"heals": True}] * 11)
        await soon(rd.drain())
        await look_and_tell(rd)
        assert [pain.kind for pain in felt if pain.kind == "dead_letters"] == [], "what comes back hurts nobody"
        await rd.enqueue_many("work", [{"heals": False}] * 11)
        await soon(rd.drain())
        await look_and_tell(rd)
    (pain,) = [pain for pain in felt if pain.kind == "dead_letters"]
    assert pain.severity >= 0.7 and "11" in pain.message


async def test_a_running_worker_looks_by_itself(database: Path) -> None:
    felt: list[Any] = []
    async with opened(database, signals=[felt.append]) as rd:
        await rd.enqueue_many("unknown", [{}] * 101)
        async with rd.worker():
            await eventually(lambda: len(felt) == 1)
