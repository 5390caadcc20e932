"""What a task can say about its own future, and how failures that are no exceptions are kept all the same."""

import asyncio
import logging
from datetime import timedelta

import pytest

import redrive
from redrive import Cancel, Context, GiveUp, JobDead, Redrive, Retry, Snooze
from redrive.engine import outbox, settle
from tests.support import FakeClock, only_job, soon


async def test_retry_comes_back_when_it_says(rd: Redrive, clock: FakeClock) -> None:
    clock.luck = 0.0

    @rd.task
    async def work(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise Retry("not yet", after=timedelta(seconds=77))
        return "ok"

    job = await work.enqueue()
    await soon(rd.drain())
    waiting = await job.refresh()
    assert (waiting.state, waiting.attempts, waiting.run_at) == ("waiting", 1, clock.now() + 77)
    assert waiting.error is not None and "not yet" in waiting.error
    clock.advance(78)
    await soon(rd.drain())
    assert await job.result(5) == "ok"


async def test_retry_without_a_time_follows_the_backoff_and_ends(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(max_attempts=2, base=5)
    async def work() -> None:
        raise Retry

    job = await work.enqueue()
    await soon(rd.drain())
    assert (await job.refresh()).run_at == clock.now() + 5
    clock.advance(5)
    await soon(rd.drain())
    dead = await job.refresh()
    assert (dead.state, dead.because, dead.attempts) == ("dead", "attempts_exhausted", 2)


async def test_snooze_costs_no_attempt(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(max_attempts=1)
    async def work(ctx: Context) -> int:
        if ctx.job.run < 4:
            raise Snooze(timedelta(minutes=1), "too early")
        return ctx.attempt

    job = await work.enqueue()
    for _ in range(3):
        await soon(rd.drain())
        assert (await job.refresh()).run_at == clock.now() + 60
        clock.advance(60)
    await soon(rd.drain())
    assert await job.result(5) == 1
    assert [attempt.outcome for attempt in (await job.refresh()).history] == ["snoozed"] * 3 + ["done"]


async def test_giving_up_buries_at_once(rd: Redrive) -> None:
    @rd.task
    async def work() -> None:
        raise GiveUp("the account is closed", recommendation="Ask the customer.")

    job = await work.enqueue()
    await soon(rd.drain())
    dead = await rd.dead.show(job.id)
    assert (dead.because, dead.lane, dead.attempts, dead.recommendation) == (
        "terminated", "manual", 1, "Ask the customer.",
    )  # fmt: skip
    assert dead.error is not None and "the account is closed" in dead.error


async def test_cancelling_from_inside_discards(rd: Redrive) -> None:
    @rd.task
    async def work() -> None:
        raise Cancel("nobody wants it")

    job = await work.enqueue()
    await soon(rd.drain())
    gone = await job.refresh()
    assert gone.state == "discarded"
    assert gone.history[-1].decision == "nobody wants it"


@pytest.mark.parametrize("signal", [Retry(), Snooze(5), GiveUp("no"), Cancel()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
async def test_except_exception_cannot_swallow_a_signal(rd: Redrive, signal: BaseException, blocking: bool) -> None:
    def body() -> str:
        try:
            raise signal
        except Exception:
            return "swallowed"

    @rd.task
    async def work() -> str:
        return body()

    rd.task("in_thread")(body)
    job = await rd.enqueue("in_thread" if blocking else "work")
    await soon(rd.drain())
    assert (await job.refresh()).state != "done"


async def test_an_unknown_outcome_is_an_ordinary_exception_and_held(
    rd: Redrive, caplog: pytest.LogCaptureFixture
) -> None:
    assert issubclass(redrive.OutcomeUnknown, Exception)

    @rd.task
    async def work() -> None:
        raise redrive.OutcomeUnknown("sent; the line went dead")

    job = await work.enqueue()
    await soon(rd.drain())
    held = await job.refresh()
    assert (held.state, held.because) == ("held", "outcome_unknown")
    assert held.recommendation and "resolve" in held.recommendation
    done = await rd.jobs.resolve(job.id, why="seen at the receiver", who="ann")
    assert done.state == "done"


async def test_an_idempotent_task_repeats_an_unknown_outcome(rd: Redrive) -> None:
    @rd.task(idempotent=True, backoff="none")
    async def work(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise redrive.OutcomeUnknown("?")
        return "ok"

    job = await work.enqueue()
    await soon(rd.drain())
    assert await job.result(5) == "ok"


# Failures in unusual clothes -----------------------------------------------------------------------------------------


async def test_a_signal_out_of_a_task_group_is_still_that_signal(rd: Redrive) -> None:
    """asyncio.TaskGroup wraps what its children raise."""

    @rd.task
    async def work() -> None:
        async def child() -> None:
            raise GiveUp("inside", recommendation="Look inside.")

        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    job = await work.enqueue()
    await soon(rd.drain())
    dead = await job.refresh()
    assert (dead.state, dead.because, dead.recommendation) == ("dead", "terminated", "Look inside.")


@pytest.mark.parametrize(
    ("signal", "state"),
    [
        (GiveUp("no", recommendation="see file b\udcff.txt"), "dead"),
        (GiveUp("no file b\udcff.txt"), "dead"),
        (Cancel("b\udcff"), "discarded"),
        (Snooze(60, "b\udcff"), "waiting"),
        (Retry("b\udcff", after=60), "waiting"),
    ],
    ids=ascii,
)
async def test_half_a_character_in_what_a_signal_says_ends_the_attempt_all_the_same(
    rd: Redrive, signal: BaseException, state: str
) -> None:
    @rd.task
    async def work() -> None:
        raise signal

    job = await work.enqueue()
    await soon(rd.drain())
    ended = await job.refresh()
    assert (ended.state, ended.run) == (state, 1)
    assert "?" in f"{ended.recommendation} {ended.error} {ended.history[-1].decision}"


async def test_an_end_that_cannot_be_written_is_a_dead_letter(rd: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever text of somebody's code is forgotten to be cleaned."""
    monkeypatch.setattr(settle, "words_of", str)
    monkeypatch.setattr(outbox, "AGAIN", 0.005)

    @rd.task
    async def work() -> None:
        raise Cancel("b\udcff")

    job = await work.enqueue()
    await soon(rd.drain())
    dead = await job.refresh()
    assert (dead.state, dead.because, dead.run) == ("dead", "permanent", 1)
    assert dead.error is not None and "UnicodeEncodeError" in dead.error


async def test_what_is_no_text_in_a_signal_is_said_all_the_same(rd: Redrive) -> None:
    @rd.task
    async def work() -> None:
        raise GiveUp("no", recommendation=7)  # type: ignore[arg-type]

    job = await work.enqueue()
    await soon(rd.drain())
    dead = await job.refresh()
    assert (dead.state, dead.recommendation) == ("dead", "7")


async def test_an_exception_that_is_no_exception_is_a_failure(rd: Redrive) -> None:
    class Odd(BaseException):
        pass

    @rd.task(max_attempts=1)
    async def work() -> None:
        raise Odd("strange")

    job = await work.enqueue()
    await soon(rd.drain())
    dead = await job.refresh()
    assert (dead.state, dead.error_class) == ("dead", "Odd")


async def test_a_task_that_is_cancelled_by_its_own_doing_has_failed(rd: Redrive) -> None:
    """Nobody stopped the worker, so this is no shutdown: it costs an attempt and does not spin."""
    runs = 0

    @rd.task(max_attempts=1)
    async def work() -> None:
        nonlocal runs
        runs += 1
        assert runs < 10, "it spins"
        inner = asyncio.create_task(asyncio.Event().wait())
        inner.cancel()
        await inner

    job = await work.enqueue()
    await soon(rd.drain())
    dead = await job.refresh()
    assert (runs, dead.state, dead.attempts) == (1, "dead", 1)


async def test_a_thread_may_raise_stop_iteration(live: Redrive) -> None:
    @live.task(max_attempts=1)
    def work() -> None:
        next(iter([]))

    async with live.worker():
        job = await work.enqueue()
        try:
            with pytest.raises(JobDead):
                await job.result(5)
        finally:
            if not (await job.refresh()).ended:
                await job.cancel()


async def test_a_group_of_errors_is_kept_whole(rd: Redrive) -> None:
    @rd.task(max_attempts=1)
    async def work() -> None:
        raise ExceptionGroup("two", [ConnectionError("one"), KeyError("two")])

    await work.enqueue()
    await soon(rd.drain())
    failure = (await only_job(rd)).history[-1].failure
    assert failure is not None
    assert [member.error_class for member in failure.members] == ["ConnectionError", "KeyError"]


# What failures do ----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("000-2", "000-8", "000-68")
async def test_a_failure_is_stored_logged_and_told(
    rd: Redrive, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[redrive.BusEvent] = []
    rd.subscribe("*", events.append)

    @rd.task(base=7)
    async def work() -> None:
        raise ConnectionError("the receiver is down")

    job = await work.enqueue()
    with caplog.at_level(logging.DEBUG):
        await soon(rd.drain())
    waiting = await job.refresh()
    assert (waiting.attempts, waiting.run_at) == (1, clock.now() + 7)
    assert waiting.history[0].failure is not None
    assert waiting.history[0].failure.message == "the receiver is down"
    told = [record for record in caplog.records if "the receiver is down" in record.getMessage()]
    assert told and all(record.levelno >= logging.WARNING for record in told)
    assert [(event.type, event.job_id, event.attempt) for event in events] == [
        ("enqueued", job.id, 0), ("retry", job.id, 1),
    ]  # fmt: skip


@pytest.mark.behaviour("000-24", "C10")
async def test_out_of_tries_it_is_a_dead_letter_and_nowhere_else(rd: Redrive, clock: FakeClock) -> None:
    events: list[str] = []
    rd.subscribe("dead_letter", lambda event: events.append(str(event.job_id)))

    @rd.task(max_attempts=3, base=1)
    async def work() -> None:
        raise ConnectionError

    job = await work.enqueue()
    for _ in range(3):
        assert events == []
        await soon(rd.drain())
        clock.advance(100)
    assert await soon(rd.drain()) == 0
    assert events == [job.id]
    (numbers,) = await rd.queues.list()
    assert (numbers.waiting, numbers.running, numbers.dead) == (0, 0, 1)
    assert [dead.id for dead in (await rd.dead.list()).jobs] == [job.id]
    assert (await rd.jobs.list(state="waiting")).jobs == []


async def test_retry_on_and_give_up_on_decide(rd: Redrive) -> None:
    class Mine(Exception):
        pass

    @rd.task(retry_on=(Mine,), give_up_on=(ConnectionError,), backoff="none", max_attempts=5)
    async def work(kind: str) -> None:
        raise Mine if kind == "mine" else ConnectionRefusedError

    mine, other = await work.enqueue("mine"), await work.enqueue("other")
    await soon(rd.drain())
    assert ((await mine.refresh()).attempts, (await other.refresh()).attempts) == (5, 1)
    assert (await other.refresh()).because == "terminated"


@pytest.mark.behaviour("C18")
async def test_an_unknown_error_is_tried_twice_more_and_says_what_to_do(rd: Redrive) -> None:
    class Mine(Exception):
        pass

    @rd.task(backoff="none", max_attempts=10)
    async def work() -> None:
        raise Mine

    job = await work.enqueue()
    await soon(rd.drain())
    dead = await job.refresh()
    assert dead.attempts == 3
    assert dead.recommendation is not None and "retry_on=(Mine,)" in dead.recommendation


async def test_a_timeout_is_a_failure_and_says_so(rd: Redrive) -> None:
    @rd.task(timeout=0.02, max_attempts=1)
    async def work() -> None:
        await asyncio.Event().wait()

    job = await work.enqueue()
    await soon(rd.drain())
    dead = await job.refresh()
    assert (dead.detail, dead.error is not None and "0.02" in dead.error) == ("timeout", True)


async def test_a_timeout_of_the_tasks_own_is_its_own(rd: Redrive) -> None:
    @rd.task(timeout=60, max_attempts=1)
    async def work() -> None:
        raise TimeoutError("theirs")

    job = await work.enqueue()
    await soon(rd.drain())
    failure = (await job.refresh()).history[0].failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("exception", "theirs")


async def test_too_old_is_the_end(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(max_age=100, base=60, max_attempts=50)
    async def work() -> None:
        raise ConnectionError

    job = await work.enqueue()
    for _ in range(4):
        await soon(rd.drain())
        clock.advance(120)
    dead = await job.refresh()
    assert (dead.state, dead.because) == ("dead", "too_old")
