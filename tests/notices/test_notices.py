"""Notices: sessions hear how their work ended, people what they must know; nothing is lost, nothing storms."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive
from redrive import Context, Redrive
from redrive.core import lifecycle
from redrive.core.job import Job, State
from redrive.core.notice import BURST, FOLD_SECONDS, Message, Notice
from redrive.core.pain import Pain
from redrive.core.store import MAX_PARTS, Applied, Commit, Filter
from redrive.engine.bus import BusEvent
from redrive.engine.worker_registry import list_living
from redrive.errors import ConfigError, InvalidInput
from redrive.notices.courier import SEND_SECONDS, TURN_SECONDS, CourierState, name_of
from tests.support import FakeClock, eventually, opened, process, soon

DAY = 86_400.0


class Phone:
    """A channel that can be down. `rang` counts every try, also those that failed."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.down = False
        self.rang = 0

    async def __call__(self, message: Message) -> None:
        self.rang += 1
        if self.down:
            raise ConnectionError("the line is dead")
        self.got.append(message)

    @property
    def titles(self) -> list[str]:
        return [message.title for message in self.got]


@pytest.fixture
def phone() -> Phone:
    return Phone()


@pytest.fixture
async def rd(database: Path, clock: FakeClock, phone: Phone) -> Any:
    async with Redrive(database, clock=clock, channels=[phone]) as rd:
        register(rd)
        yield rd


def register(rd: Redrive) -> None:
    @rd.task
    async def publish(fail: bool = False, size: int = 0) -> Any:
        if fail:
            raise redrive.GiveUp("the site is gone", recommendation="Look at the site.")
        return {"posted": True, "body": "x" * size}


async def submit(
    rd: Redrive, task: str = "publish", reason: Any = "retry", session: str | None = "s1", **payload: Any
) -> Job:
    """A job as the gateway, a deferral or a schedule would leave it in the queue."""
    plan = rd._enqueuer.plan(task, {"session_id": session}, reason)
    job, _, _ = await rd._enqueuer.insert_one(rd._enqueuer.prepare(plan, payload))
    return job


async def fails_for_good(rd: Redrive, *tasks: str, reason: Any = "retry") -> None:
    """Each of these fails once, for good, a second after the other."""
    for task in tasks:
        if task not in rd.registry.handlers:

            @rd.task(task)
            async def gone() -> None:
                raise redrive.GiveUp("the site is gone", recommendation="Look at the site.")

        await submit(rd, task, reason)
        await soon(rd.drain())
        rd.clock.advance(1)  # type: ignore[attr-defined]


async def inbox(rd: Redrive, session: str = "s1", **how: Any) -> list[Notice]:
    return await rd.sessions.inbox(session, **how)


# ---- sessions


@pytest.mark.behaviour("003-4", "003-64", "B32")
async def test_a_retry_that_works_is_told_once_with_the_whole_result(rd: Redrive, phone: Phone) -> None:
    job = await submit(rd, size=50_000)
    await soon(rd.drain())
    await soon(rd.drain())
    (notice,) = await inbox(rd)
    assert (notice.kind, notice.job_id) == ("retry_success", job.id)
    assert notice.result == {"posted": True, "body": "x" * 50_000}
    assert not notice.truncated
    assert phone.got == [], "no person has to know"


@pytest.mark.behaviour("B15", "C27")
@pytest.mark.parametrize("size", [120_000, 400_000], ids=["beside the job", "stored apart"])
async def test_a_result_too_long_for_a_message_says_where_the_whole_is(rd: Redrive, size: int) -> None:
    job = await submit(rd, size=size)
    await soon(rd.drain())
    (notice,) = await inbox(rd)
    assert notice.truncated and isinstance(notice.result, str)
    assert len(notice.result) < 100_200
    assert job.id in notice.result[100_000:]
    handle = redrive.JobHandle(rd.jobs, job)
    assert len((await handle.result(5))["body"]) == size


@pytest.mark.behaviour("003-4", "003-62")
async def test_an_exhausted_retry_reaches_the_session_and_people(rd: Redrive, phone: Phone) -> None:
    job = await submit(rd, fail=True)
    await soon(rd.drain())
    await soon(rd.drain())
    (notice,) = await inbox(rd)
    assert (notice.kind, notice.status, notice.priority) == ("retry_exhausted", "pending", "high")
    (message,) = phone.got
    assert (message.title, message.level) == ("publish failed for good", "actionable")
    for said in (notice.text, message.text):
        assert "the site is gone" in said
        assert "Look at the site." in said
        assert job.short_id in said
    assert await rd.notices.waiting() == []


@pytest.mark.behaviour("003-9", "003-63")
@pytest.mark.parametrize(
    ("reason", "good", "bad"),
    [("deferred_submit", ["deferred_done"], ["deferred_failed"]), ("scheduled_job", [], ["scheduled_failed"])],
)
async def test_other_reasons_are_the_sessions_business_alone(
    rd: Redrive, phone: Phone, reason: str, good: list[str], bad: list[str]
) -> None:
    await submit(rd, reason=reason, session="good")
    await submit(rd, reason=reason, session="bad", fail=True)
    await soon(rd.drain())
    assert [notice.kind for notice in await inbox(rd, "good")] == good
    assert [notice.kind for notice in await inbox(rd, "bad")] == bad
    assert (phone.rang, await rd.notices.waiting()) == (0, [])


async def test_a_plain_job_tells_nobody_also_with_a_session(rd: Redrive, phone: Phone) -> None:
    for fail in (True, False):
        await submit(rd, reason="direct", fail=fail)
    await soon(rd.drain())
    assert await inbox(rd, unread=False) == []
    assert phone.rang == 0
    assert await rd.store.docs("notice") == []


async def test_the_bus_hears_of_each_notice_at_once(rd: Redrive) -> None:
    heard: list[BusEvent] = []
    rd.subscribe("notice", heard.append)
    for fail in (False, True):
        await submit(rd, fail=fail)
        await soon(rd.drain())
    assert [(event.type, event.queue, (event.data or {})["kind"]) for event in heard] == [
        ("notice", "publish", "retry_success"), ("notice", "publish", "retry_exhausted"),
    ]  # fmt: skip


@pytest.mark.behaviour("B17", "B50")
async def test_success_never_keeps_a_session_from_ending_its_turn(rd: Redrive) -> None:
    for _ in range(3):
        await submit(rd)
    await soon(rd.drain())
    found = await inbox(rd)
    assert [(notice.status, notice.actionable, notice.priority) for notice in found] == [
        ("resolved", False, "normal"),
    ] * 3  # fmt: skip
    await submit(rd, fail=True)
    await soon(rd.drain())
    assert [notice.kind for notice in await inbox(rd) if notice.status == "pending"] == ["retry_exhausted"]


async def test_seen_is_seen(rd: Redrive) -> None:
    for _ in range(2):
        await submit(rd)
    await submit(rd, fail=True)
    await soon(rd.drain())
    one, two = [notice for notice in await inbox(rd) if notice.kind == "retry_success"]
    seen = await rd.sessions.acknowledge("s1", one.id)
    assert seen.read_at == rd.clock.now()
    assert await rd.sessions.acknowledge("s1", one.id) == seen, "safe to repeat"
    await rd.sessions.acknowledge("s1", "exhausted")
    assert [notice.id for notice in await inbox(rd)] == [two.id]
    assert len(await inbox(rd, unread=False)) == 3
    for wrong in ("", "nothing", "retry_success"):
        with pytest.raises(InvalidInput, match="notice_id"):
            await rd.sessions.acknowledge("s1", wrong)
    with pytest.raises(InvalidInput, match="notice_id"):
        await rd.sessions.acknowledge("other", two.id)


async def test_a_session_sees_its_own_only(rd: Redrive) -> None:
    for session in ("a", "a/b", "ab"):
        await submit(rd, session=session)
    await soon(rd.drain())
    for session in ("a", "a/b", "ab"):
        (notice,) = await inbox(rd, session)
        assert notice.session_id == session


async def test_a_redriven_job_settles_its_notice_and_is_told_anew(rd: Redrive, phone: Phone) -> None:
    broken = True

    @rd.task
    async def flaky() -> str:
        if broken:
            raise redrive.GiveUp("not yet")
        return "at last"

    job = await submit(rd, "flaky")
    await soon(rd.drain())
    assert [notice.status for notice in await inbox(rd)] == ["pending"]
    await rd.dead.redrive(job.id, who="ann")
    assert await inbox(rd) == [], "somebody has seen to it"
    await soon(rd.drain())
    assert [notice.kind for notice in await inbox(rd)] == ["retry_exhausted"]
    assert len(await inbox(rd, unread=False)) == 2, "a fresh start, a notice of its own"
    broken = False
    await rd.dead.redrive(job.id, who="ann")
    await soon(rd.drain())
    (notice,) = await inbox(rd)
    assert (notice.kind, notice.result) == ("retry_success", "at last")


@pytest.mark.behaviour("003-4", "003-9")
async def test_operations_of_the_gateway_end_in_one_notice(rd: Redrive, clock: FakeClock, phone: Phone) -> None:
    refused = 0

    @rd.task(idempotent=True)
    async def fetch(times: int) -> str:
        nonlocal refused
        if refused < times:
            refused += 1
            raise redrive.Retry("busy", after=30)
        return "here"

    done = await rd.call(fetch, {"times": 0}, session_id="s1")
    assert done and await inbox(rd) == [], "the caller has the answer"
    queued = await rd.call(fetch, {"times": 1}, session_id="s1")
    assert queued.status == "queued_for_retry" and await inbox(rd) == []
    deferred = await rd.submit(fetch, {"times": 0}, session_id="s1")
    for _ in range(5):
        clock.advance(60)
        await soon(rd.drain())
    assert {(notice.kind, notice.job_id, notice.result) for notice in await inbox(rd)} == {
        ("retry_success", queued.operation_id, "here"), ("deferred_done", deferred.operation_id, "here"),
    }  # fmt: skip
    assert len(await inbox(rd)) == 2
    assert phone.rang == 0


# ---- questions


async def test_a_question_says_how_to_answer_and_is_settled_by_the_answer(rd: Redrive, phone: Phone) -> None:
    @rd.task
    async def pay(ctx: Context) -> str:
        return "paid" if await ctx.approval("Pay 40 euros?") else "not paid"

    job = await submit(rd, "pay", reason="direct")
    await soon(rd.drain())
    (notice,) = await inbox(rd)
    assert (notice.kind, notice.status) == ("needs_approval", "pending")
    assert "Pay 40 euros?" in notice.text and f"redrive approve {job.short_id}" in notice.text
    assert [(one.session, one.pending) for one in await rd.sessions.inboxes()] == [("s1", 1)]
    await rd.jobs.approve(job.id, who="ann")
    assert await inbox(rd) == []
    (view,) = await rd.sessions.inboxes()
    assert (view.session, view.pending, view.unread) == ("s1", 0, 0), "nobody is asked now"
    assert phone.rang == 0


async def test_where_no_session_can_answer_people_are_asked(rd: Redrive, phone: Phone) -> None:
    @rd.task(consent=True)
    async def delete() -> None: ...

    await submit(rd, "delete", reason="direct", session=None)
    await soon(rd.drain())
    assert phone.titles == ["delete needs consent"]


async def test_an_unknown_outcome_is_for_a_person(rd: Redrive, phone: Phone) -> None:
    @rd.task
    async def transfer() -> None:
        raise redrive.OutcomeUnknown("the bank hung up")

    await submit(rd, "transfer", reason="direct")
    await soon(rd.drain())
    assert phone.titles == ["transfer: it may or may not have landed"]
    assert [notice.kind for notice in await inbox(rd)] == ["needs_check"]


# ---- in the same commit, on every path


async def test_what_the_scheduler_buries_is_told_too(rd: Redrive, clock: FakeClock, phone: Phone) -> None:
    @rd.task
    async def transfer() -> None:
        raise redrive.OutcomeUnknown("the bank hung up")

    job = await submit(rd, "transfer")
    await soon(rd.drain())
    clock.advance(8 * DAY)
    await rd.make_scheduler(rd.make_worker()).bury_unresolved()
    assert (await rd.jobs.get(job.id)).because == "outcome_unknown"
    assert "retry_exhausted" in [notice.kind for notice in await inbox(rd)]
    await rd.notices.deliver()
    assert phone.titles[-1] == "transfer failed for good"


async def test_what_a_person_ends_is_told_to_the_session(rd: Redrive) -> None:
    job = await submit(rd)
    await rd.jobs.cancel(job.id, who="ann", why="wrong site")
    (notice,) = await inbox(rd)
    assert (notice.kind, notice.status) == ("cancelled", "resolved")
    assert "wrong site" in notice.text


async def test_a_refused_move_tells_nothing(rd: Redrive) -> None:
    job = await submit(rd)
    await rd.jobs.cancel(job.id)
    stale = lifecycle.cancelled(job, rd.clock.now(), who="late", why="again")
    (outcome,) = await rd.store.apply([Commit((stale,))])
    assert not isinstance(outcome, Applied)
    (notice,) = await inbox(rd)
    assert "late" not in notice.text


async def test_a_commit_that_is_full_already_loses_no_notice(rd: Redrive) -> None:
    jobs = [await submit(rd, session=f"s{number % 7}") for number in range(MAX_PARTS)]
    moves = tuple(lifecycle.cancelled(job, rd.clock.now(), who="ann", why="all of it") for job in jobs)
    (outcome,) = await rd.store.apply([Commit(moves)])
    assert isinstance(outcome, Applied)
    found = [notice.job_id for n in range(7) for notice in await inbox(rd, f"s{n}")]
    assert sorted(map(str, found)) == sorted(job.id for job in jobs)


KILLED_AT_ITS_END = """
    import asyncio, os, signal, sys
    import redrive

    async def main(database):
        rd = redrive.Redrive(database)

        @rd.task
        async def publish(fail: bool = False):
            if fail:
                raise redrive.GiveUp("the site is gone")
            return "posted"

        # the moment after the commit, before anybody could be told anything
        rd.subscribe("completed", lambda event: os.kill(os.getpid(), signal.SIGKILL))
        rd.subscribe("dead_letter", lambda event: os.kill(os.getpid(), signal.SIGKILL))
        async with rd.worker(scheduler=False):
            await asyncio.sleep(60)

    asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize(("fail", "kind", "people"), [(False, "retry_success", 0), (True, "retry_exhausted", 1)])
async def test_a_process_killed_right_after_the_commit_has_told_it(
    database: Path, fail: bool, kind: str, people: int
) -> None:
    async with opened(database) as rd:
        register(rd)
        await submit(rd, fail=fail)
        with process(KILLED_AT_ITS_END, database) as child:
            await soon(asyncio.to_thread(child.wait))
            assert child.returncode == -9
        assert [notice.kind for notice in await inbox(rd)] == [kind]
        assert len(await rd.notices.waiting()) == people


# ---- a channel that is down


@pytest.mark.behaviour("B36")
async def test_a_channel_down_for_an_hour_loses_nothing_and_keeps_the_order(
    rd: Redrive, clock: FakeClock, phone: Phone
) -> None:
    phone.down = True
    names = ["first", "second", "third", "fourth", "fifth"]
    for tenth in range(360):
        if tenth % 72 == 0:
            await fails_for_good(rd, names[tenth // 72])
            clock.advance(-1)
        await rd.notices.deliver()
        clock.advance(10)
    assert phone.got == []
    assert phone.rang <= 20, "tried later and later, at most every five minutes"
    assert [notice.task for notice in await rd.notices.waiting()] == names
    phone.down = False
    clock.advance(300)
    assert await rd.notices.deliver() == 5
    assert phone.titles == [f"{name} failed for good" for name in names]
    assert [message.count for message in phone.got] == [1] * 5
    clock.advance(3600)
    assert await rd.notices.deliver() == 0
    assert await rd.notices.waiting() == []


async def test_no_storm_after_an_outage_with_many_failures(rd: Redrive, clock: FakeClock, phone: Phone) -> None:
    phone.down = True
    await fails_for_good(rd, *(f"task-{number:02}" for number in range(40)), *["task-07"] * 20)
    jobs = [job.id for job in (await rd.dead.list(limit=100)).jobs]
    phone.down = False
    clock.advance(300)
    for _ in range(29):
        await rd.notices.deliver()
        clock.advance(10)
    assert len(phone.got) == BURST
    assert phone.titles[:5] == [f"task-{number:02} failed for good" for number in range(5)]
    assert phone.got[5].title == "55 more: retry exhausted"
    assert "21 × task-07 failed for good" in phone.got[5].text
    assert sum(message.count for message in phone.got) == len(jobs) == 60
    assert await rd.notices.waiting() == []
    assert len(await inbox(rd)) == 60, "the session has each of them in full"


async def test_a_flood_while_the_channel_works_is_no_storm_either(rd: Redrive, clock: FakeClock, phone: Phone) -> None:
    for number in range(60):
        await fails_for_good(rd, f"task-{number:02}")
        clock.advance(4)
    lasted = 60 * 5
    assert len(phone.got) <= BURST * (lasted // FOLD_SECONDS + 1)
    clock.advance(FOLD_SECONDS)
    await rd.notices.deliver()
    assert sum(message.count for message in phone.got) == 60
    assert await rd.notices.waiting() == []


@pytest.mark.behaviour("B41", "C48")
async def test_the_same_thing_is_kept_back_only_once_it_was_delivered(
    rd: Redrive, clock: FakeClock, phone: Phone
) -> None:
    phone.down = True
    await fails_for_good(rd, "mill")
    clock.advance(60)
    phone.down = False
    await fails_for_good(rd, "mill")
    (message,) = phone.got
    assert message.count == 2, "a try that failed keeps nothing quiet"
    await fails_for_good(rd, *["mill"] * 4)
    assert len(phone.got) == 1
    clock.advance(FOLD_SECONDS)
    await rd.notices.deliver()
    assert [message.count for message in phone.got] == [2, 4], "kept back, counted, told"


async def test_other_channels_neither_wait_nor_hear_it_twice(database: Path, clock: FakeClock) -> None:
    class Pager(Phone):
        pass

    pager, phone = Pager(), Phone()
    pager.down = True
    async with opened(database, clock=clock, channels=[pager, phone]) as rd:
        await fails_for_good(rd, "first", "second")
        for _ in range(20):
            clock.advance(100)
            await rd.notices.deliver()
        assert phone.titles == ["first failed for good", "second failed for good"]
        assert (pager.got, len(await rd.notices.waiting())) == ([], 2)
        assert "the line is dead" in " ".join(await rd.notices.troubles())
        pager.down = False
        clock.advance(300)
        await rd.notices.deliver()
        assert pager.titles == ["first failed for good", "second failed for good"]
        assert (len(phone.got), await rd.notices.waiting(), await rd.notices.troubles()) == (2, [], [])


async def test_a_channel_that_was_taken_away_holds_nothing_up(database: Path, clock: FakeClock, phone: Phone) -> None:
    class Pager(Phone):
        pass

    pager = Pager()
    pager.down = True
    async with opened(database, clock=clock, channels=[pager, phone]) as rd:
        await fails_for_good(rd, "mill")
    async with opened(database, clock=clock, channels=[phone]) as rd:
        await rd.notices.deliver()
        assert (await rd.notices.waiting(), phone.rang) == ([], 1)


async def test_a_channel_that_only_another_process_has_is_not_passed_over(
    rd: Redrive, database: Path, clock: FakeClock, phone: Phone
) -> None:
    """Two programs on one file, or old and new code during a deployment: whoever is first does not tell for all."""

    class Pager(Phone):
        pass

    pager = Pager()
    pager.down = True
    async with opened(database, clock=clock, channels=[pager]) as other, other.worker():
        await eventually(lambda: _announced(rd), "the other worker is known")
        await fails_for_good(rd, "mill")
        await eventually(lambda: pager.rang > 0, "the other one tried")
        await rd.notices.deliver()
        kinds = [notice.kind for notice in await rd.notices.waiting()]
        assert kinds.count("retry_exhausted") == 1 and "mill failed for good" in phone.titles
        pager.down = False
        clock.advance(100)
        await eventually(lambda: "mill failed for good" in pager.titles, "the other one was told")
        clock.advance(1_000)
        await eventually(lambda: _nothing_waits(rd), "all of it was told")
    assert (phone.titles.count("mill failed for good"), pager.titles.count("mill failed for good")) == (1, 1)


async def _nothing_waits(rd: Redrive) -> bool:
    await rd.notices.deliver()
    return await rd.notices.waiting() == []


def test_a_channel_is_known_by_the_function_that_is_called() -> None:
    """Two programs whose channels had one name would be told of a thing by one of them alone."""

    def chat(room: str, message: Message) -> None: ...

    def mail(to: str, message: Message) -> None: ...

    one, other = name_of(partial(chat, "ops")), name_of(partial(partial(mail, "ada")))
    assert (one.rpartition(".")[2], other.rpartition(".")[2]) == ("chat", "mail")
    assert name_of(Phone()) == f"{__name__}.Phone"


async def _announced(rd: Redrive) -> bool:
    return bool(await list_living(rd.store, rd.clock.now()))


async def test_saying_false_is_not_taking_it(database: Path, clock: FakeClock) -> None:
    answers = [False, None]
    async with opened(database, clock=clock, channels=[lambda message: answers.pop(0)]) as rd:
        await fails_for_good(rd, "mill")
        assert len(await rd.notices.waiting()) == 1
        clock.advance(5)
        assert await rd.notices.deliver() == 1
        assert await rd.notices.waiting() == []


@pytest.mark.parametrize("plain", [False, True])
async def test_a_channel_that_hangs_is_left(rd: Redrive, monkeypatch: pytest.MonkeyPatch, plain: bool) -> None:
    """A plain function hangs in a thread of its own: everything else goes on."""
    monkeypatch.setattr("redrive.notices.courier.SEND_SECONDS", 0.5)
    stop = threading.Event()

    async def hang(message: Message) -> None:
        await asyncio.Event().wait()

    rd.channels[:] = [lambda message: stop.wait(60)] if plain else [hang]
    await fails_for_good(rd, "mill")
    stop.set()
    (trouble,) = await rd.notices.troubles()
    assert "no answer within" in trouble
    assert SEND_SECONDS < TURN_SECONDS, "a slow channel does not lose the courier its turn"


@pytest.mark.parametrize("plain", [False, True])
async def test_a_channel_that_ends_itself_ends_nobody_else(rd: Redrive, clock: FakeClock, plain: bool) -> None:
    """By what it awaits, or by sys.exit(): the courier goes on, and with it the worker."""
    got: list[Message] = []
    broken = [True]

    async def awaits_what_is_cancelled(message: Message) -> None:
        if broken[0]:
            other = asyncio.ensure_future(asyncio.Event().wait())
            other.cancel()
            await other
        got.append(message)

    def exits(message: Message) -> None:
        if broken[0]:
            sys.exit("no network")
        got.append(message)

    rd.channels[:] = [exits if plain else awaits_what_is_cancelled]
    await fails_for_good(rd, "mill")
    (trouble,) = await rd.notices.troubles()
    assert ("SystemExit: no network" if plain else "CancelledError") in trouble
    broken[0] = False
    clock.advance(5)
    assert await rd.notices.deliver() == 1
    assert [message.title for message in got] == ["mill failed for good"]


async def test_who_is_cancelled_while_it_tells_something_ends(rd: Redrive) -> None:
    begun = asyncio.Event()

    async def slow(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    rd.channels[:] = []
    await fails_for_good(rd, "mill")
    rd.channels[:] = [slow]
    telling = asyncio.create_task(rd.notices.deliver())
    await soon(begun.wait())
    telling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(telling)
    assert len(await rd.notices.waiting()) == 1


async def test_secrets_in_what_a_channel_says_are_not_logged(rd: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    def leaky(message: Message) -> None:
        raise ConnectionError("POST https://bot:hunter22@chat.example/send?token=sk-abcdefghijklmnopqrstuvwx failed")

    rd.channels[:] = [leaky]
    await fails_for_good(rd, "mill")
    said = caplog.text + str(await rd.notices.troubles()) + str(await rd.store.doc("courier", "state"))
    assert "did not take" in said
    assert "hunter22" not in said and "sk-abcdef" not in said


async def test_without_any_channel_they_wait_for_a_process_that_has_one(
    database: Path, clock: FakeClock, phone: Phone
) -> None:
    async with opened(database, clock=clock) as rd:
        await fails_for_good(rd, "mill")
        assert await rd.notices.deliver() == 0
    async with opened(database, clock=clock, channels=[phone]) as rd:
        assert await rd.notices.deliver() == 1
    assert phone.titles == ["mill failed for good"]


async def test_signal_sinks_are_a_channel_and_a_failing_one_is_told_again(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    deaf = [True]

    def sink(pain: Pain) -> None:
        if deaf[0]:
            raise ConnectionError("down")
        felt.append(pain)

    heard: list[Pain] = []
    async with opened(database, clock=clock, signals=[heard.append, sink]) as rd:
        await fails_for_good(rd, "mill")
        deaf[0] = False
        clock.advance(10)
        await rd.notices.deliver()
    assert [pain.kind for pain in felt] == ["retry_exhausted"]
    assert "the site is gone" in felt[0].message


async def test_a_signal_sink_that_hangs_keeps_nothing_from_another(
    database: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.notices.courier.SEND_SECONDS", 0.5)
    felt: list[Pain] = []

    async def hang(pain: Pain) -> None:
        await asyncio.Event().wait()

    async with opened(database, clock=clock, signals=[hang, felt.append, felt.append]) as rd:
        await fails_for_good(rd, "mill")
        await rd.notices.deliver()
        (trouble,) = await rd.notices.troubles()
    assert [pain.kind for pain in felt] == ["retry_exhausted"] * 2, "each of them once"
    assert "hang has failed 1 times in a row" in trouble


async def test_two_couriers_tell_everything_once(database: Path, clock: FakeClock) -> None:
    got: list[str] = []

    async def slow(message: Message) -> None:
        await asyncio.sleep(0)
        got.append(message.title)

    async with opened(database, clock=clock) as producer:
        await fails_for_good(producer, "a", "b", "c", "d")
    async with (
        opened(database, clock=clock, channels=[slow]) as one,
        opened(database, clock=clock, channels=[slow]) as two,
    ):
        for _ in range(5):
            await asyncio.gather(*(rd.notices.deliver() for rd in (one, two) for _ in range(2)))
    assert got == [f"{name} failed for good" for name in "abcd"]


@pytest.mark.parametrize(("ends_in", "waits"), [(1.0, True), (TURN_SECONDS + 30, True), (0.0, False), (1e6, False)])
def test_a_courier_whose_clock_lags_waits_for_the_others_turn(ends_in: float, waits: bool) -> None:
    """Not for one that ends in a year: some clock was wrong."""
    now = 1_800_000_000.0
    assert CourierState("another", now + ends_in).taken_by_another("me", now) is waits
    assert not CourierState("me", now + ends_in).taken_by_another("me", now)


KILLED_AFTER_SENDING = """
    import asyncio, os, signal, sys
    from pathlib import Path
    import redrive

    def ring(message):
        with open(sys.argv[2], "a") as book:
            book.write(message.title + "\\n")
        if "second" in message.title:
            os.kill(os.getpid(), signal.SIGKILL)

    async def main():
        async with redrive.Redrive(sys.argv[1], channels=[ring]) as rd:
            await rd.notices.deliver()

    asyncio.run(main())
"""


async def test_a_courier_killed_between_sending_and_writing_repeats_that_one(tmp_path: Path, database: Path) -> None:
    book = tmp_path / "book"
    clock = FakeClock(time.time())
    async with opened(database, clock=clock) as rd:
        await fails_for_good(rd, "first", "second", "third")
        with process(KILLED_AFTER_SENDING, database, book) as child:
            await soon(asyncio.to_thread(child.wait))
            assert child.returncode == -9
        rd.channels.append(ring_into(book))
        assert await rd.notices.deliver() == 0, "the dead one still has its turn"
        clock.advance(TURN_SECONDS + 60)
        assert await rd.notices.deliver() == 2
    told = [line.split()[0] for line in book.read_text().splitlines()]
    assert told == ["first", "second", "second", "third"]


def ring_into(book: Path) -> Any:
    """The other process's channel."""

    def ring(message: Message) -> None:
        with book.open("a") as pages:
            pages.write(message.title + "\n")

    ring.__module__, ring.__qualname__ = "__main__", "ring"
    return ring


async def test_a_worker_tells_by_itself(database: Path, phone: Phone) -> None:
    async with opened(database, channels=[phone]) as rd:
        register(rd)
        async with rd.worker():
            await submit(rd, fail=True)
            await eventually(lambda: "publish failed for good" in phone.titles, "the message")
            await eventually(lambda: _nothing_waits(rd), "all of it was told")
        assert phone.titles.count("publish failed for good") == 1


# ---- Apprise


class Chat:
    """A real HTTP server that takes messages, or does not."""

    def __init__(self) -> None:
        self.status = 200
        self.asked = 0
        self.got: list[dict[str, Any]] = []

    def take(self, body: bytes) -> int:
        self.asked += 1
        if self.status == 200:
            self.got.append(json.loads(body))
        return self.status


@contextmanager
def serving(chat: Chat) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = chat.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/login")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_apprise_delivers_and_what_it_could_not_deliver_waits(
    database: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chat = Chat()
    caplog.set_level(logging.DEBUG)
    with serving(chat) as port:
        monkeypatch.setenv("CHAT_URL", f"json://bot:hunter22@127.0.0.1:{port}/hook")
        async with opened(database, clock=clock, notify={"urls": ["env:CHAT_URL"]}) as rd:
            chat.status = 503
            await fails_for_good(rd, "first", "second")
            assert (chat.asked, chat.got) == (1, []), "the second waits behind the first"
            chat.status = 200
            clock.advance(5)
            await rd.notices.deliver()
            assert [got["title"] for got in chat.got] == ["first failed for good", "second failed for good"]
            assert chat.got[0]["type"] == "failure"
            assert "the site is gone" in chat.got[0]["message"]
            assert await rd.notices.waiting() == []
            kept = await rd.store.doc("courier", "state")
            assert kept is not None and b"hunter22" not in kept.value and b"env:CHAT_URL" in kept.value
    assert "hunter22" not in caplog.text


async def test_a_redirect_is_not_taken_for_a_delivery(database: Path, clock: FakeClock) -> None:
    """What is posted there arrives without its body, and the page it leads to says 200."""
    chat = Chat()
    with serving(chat) as port:
        async with opened(database, clock=clock, notify={"urls": [f"json://127.0.0.1:{port}/hook"]}) as rd:
            chat.status = 302
            await fails_for_good(rd, "mill")
            assert (chat.asked, len(await rd.notices.waiting())) == (1, 1)
            assert "has failed 1 times in a row" in " ".join(await rd.notices.troubles())
            chat.status = 200
            clock.advance(5)
            await rd.notices.deliver()
            assert [got["title"] for got in chat.got] == ["mill failed for good"]


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        (["env:NOT_SET_AT_ALL"], r"notify.urls\[0\].*NOT_SET_AT_ALL is not set"),
        (["nosuchthing://hunter22@host"], r"notify.urls\[0\].*does not know"),
    ],
)
async def test_a_channel_that_cannot_be_used_stops_the_worker_at_once(
    database: Path, urls: list[str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(database, notify={"urls": urls}) as rd:
        with pytest.raises(ConfigError, match=words) as refused:
            async with rd.worker():
                raise AssertionError("it started")
        assert "hunter22" not in str(refused.value) + caplog.text


async def test_without_apprise_one_line_says_what_to_install(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    async with opened(database, notify={"urls": ["json://127.0.0.1"]}) as rd:
        with pytest.raises(ConfigError, match=r'pip install "redrive\[notify\]"'):
            await rd.notices.deliver()


def test_settings_come_from_the_file_and_bad_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text('[notify]\nurls = ["env:CHAT"]\npage_after = 5\npage_window = 600\n')
    settings = Redrive(tmp_path / "jobs.db").settings.notify
    assert (settings.urls, settings.page_after, settings.page_window) == (("env:CHAT",), 5, 600.0)
    for said, field in (({"page_after": 0}, "notify.page_after"), ({"url": "x"}, "url"), ({"urls": ["x"]}, "urls")):
        with pytest.raises(ConfigError, match=field):
            Redrive(tmp_path / "jobs.db", notify=said)


def test_apprise_is_not_imported_before_it_is_needed() -> None:
    code = "import redrive, sys; redrive.Redrive; import redrive.jobs.publishing_store; print('apprise' in sys.modules)"
    with process(code) as child:
        out, _ = child.communicate(timeout=30)
    assert out.strip() == "False"


# ---- pages


async def buried(rd: Redrive, number: int, task: str = "mill") -> None:
    """Plain jobs that die, of which only a page tells."""
    await fails_for_good(rd, *[task] * number, reason="direct")


@pytest.mark.behaviour("B49")
async def test_three_dead_letters_in_an_hour_page_once(rd: Redrive, clock: FakeClock, phone: Phone) -> None:
    await buried(rd, 2)
    assert not await rd.notices.look()
    await buried(rd, 1)
    assert await rd.notices.look()
    await rd.notices.deliver()
    (message,) = phone.got
    assert (message.kind, message.title, message.level) == ("page", "3 dead letters in the last hour", "actionable")
    assert "3 × mill" in message.text
    for _ in range(5):
        clock.advance(600)
        await buried(rd, 1)
        assert not await rd.notices.look(), "the same trouble, and somebody was told"
    clock.advance(600)
    assert await rd.notices.look(), "an hour later it is still not over"
    clock.advance(4000)
    assert not await rd.notices.look(), "old letters do not page"


async def test_a_new_trouble_pages_within_the_hour(rd: Redrive, clock: FakeClock, phone: Phone) -> None:
    await buried(rd, 3)
    assert await rd.notices.look()
    await buried(rd, 1, "other")
    assert not await rd.notices.look(), "not in the same breath"
    clock.advance(300)
    assert await rd.notices.look()
    await rd.notices.deliver()
    assert phone.titles == ["3 dead letters in the last hour", "4 dead letters in the last hour"]


async def test_only_jobs_that_died_now_page(rd: Redrive, clock: FakeClock, tmp_path: Path) -> None:
    await buried(rd, 5)
    clock.advance(7300)
    for job in (await rd.dead.list()).jobs:
        await rd.dead.discard(job.id)
        await rd.dead.restore(job.id)
    (tmp_path / "old.jsonl").write_text("".join(f'{{"job_id": "j{n}", "payload": {{}}}}\n' for n in range(5)))
    await rd.dead.import_(tmp_path / "old.jsonl", task="mill")
    assert (await rd.store.count(Filter(states=(State.dead,))))[()] == 10
    assert not await rd.notices.look()
    await buried(rd, 2)
    assert not await rd.notices.look()
    await buried(rd, 1)
    assert await rd.notices.look()


async def test_one_process_pages(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock) as one, opened(database, clock=clock) as two:
        await buried(one, 3)
        assert sorted(await asyncio.gather(one.notices.look(), two.notices.look())) == [False, True]
        assert len(await one.notices.waiting()) == 1


async def test_the_scheduler_looks_and_thresholds_can_be_set(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    settings = {"page_after": 2, "page_window": 600.0}
    async with opened(database, clock=clock, signals=[felt.append], notify=settings) as rd:
        await buried(rd, 2)
        await rd.make_scheduler(rd.make_worker()).tick()
        await rd.notices.deliver()
    assert [pain.message.partition(":")[0] for pain in felt if pain.kind == "page"] == [
        "2 dead letters in the last 10 minutes"
    ]


# ---- what is kept for how long


@pytest.mark.behaviour("B17")
async def test_acknowledgements_age_out_unread_and_actionable_notices_stay(rd: Redrive, clock: FakeClock) -> None:
    await submit(rd)
    failed = await submit(rd, fail=True)
    await soon(rd.drain())
    clock.advance(6 * DAY)
    await rd.notices.prune()
    assert len(await inbox(rd)) == 2
    clock.advance(2 * DAY)
    await rd.make_scheduler(rd.make_worker()).tick()
    assert [notice.kind for notice in await inbox(rd)] == ["retry_exhausted"]
    clock.advance(90 * DAY)
    await rd.notices.prune()
    assert [notice.status for notice in await inbox(rd)] == ["pending"]
    await rd.dead.discard(failed.id)
    await rd.notices.prune()
    assert await inbox(rd, unread=False) == []


async def test_what_no_channel_ever_took_is_dropped_after_a_week_and_said(
    database: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(database, clock=clock) as rd:
        await fails_for_good(rd, "mill", "fan")
        clock.advance(8 * DAY)
        assert await rd.notices.prune() == 2
        assert await rd.notices.waiting() == []
        assert len(await inbox(rd)) == 2
    assert "2 notices found no channel" in caplog.text


async def test_a_result_that_retention_dropped_is_said_to_be_gone(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock, retention=60.0) as rd:
        register(rd)
        await submit(rd)
        await soon(rd.drain())
        clock.advance(3600)
        await rd.make_scheduler(rd.make_worker()).prune()
        (notice,) = await inbox(rd)
        assert notice.result is None
        assert "no longer kept" in notice.text


async def test_an_erased_job_leaves_nothing_in_inbox_or_outbox(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock) as rd:
        register(rd)
        job, other = await submit(rd, fail=True), await submit(rd, fail=True)
        await soon(rd.drain())
        await rd.jobs.erase(job.id)
        assert [notice.job_id for notice in await inbox(rd)] == [other.id]
        assert [notice.job_id for notice in await rd.notices.waiting()] == [other.id]


def test_a_notice_as_json_says_how_it_stands() -> None:
    notice = Notice("i", "retry_exhausted", "actionable", "both", "t", "x", 1_800_000_000.0, told=("phone",))
    said = msgspec.json.decode(msgspec.json.encode(notice.public()))
    assert (said["status"], said["priority"], said["at"]) == ("pending", "high", "2027-01-15T08:00:00.000Z")
    assert "told" not in said


async def test_a_quiet_app_tells_nobody_outside(rd: Redrive, phone: Phone) -> None:
    rd.notices.quiet = True
    await fails_for_good(rd, "mill")
    assert phone.rang == 0
    assert [notice.task for notice in await rd.notices.waiting()] == ["mill"]
