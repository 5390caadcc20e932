"""The gateway: an agent calls a task and is told honestly how it stands. An operation is a job."""

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pydantic
import pytest
from msgspec.structs import replace

import redrive
from redrive import Context, Outcome, Probe, Redrive
from redrive.core.documents import ALONE
from redrive.core.job import Job, iso, public
from redrive.core.outcome import INLINE
from redrive.core.store import Commit, Unknown, Wanted
from redrive.engine.context import session_of
from redrive.engine.inline_runs import InlineRunner
from redrive.engine.scheduler import PeriodicDuty
from redrive.errors import InvalidInput, InvalidOption, InvalidPayload, JobNotFound, StoreBusy
from tests import elsewhere
from tests.support import FakeClock, LoopTime, eventually, snapshot, soon


@pytest.fixture(autouse=True)
def pauses(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds between tries on the spot: told to the fake clock instead of being slept."""
    spent: list[float] = []

    async def pause(self: InlineRunner, seconds: float) -> None:
        spent.append(round(seconds, 3))
        clock.advance(seconds)

    monkeypatch.setattr(InlineRunner, "_pause", pause)
    return spent


class Flaky:
    """Fails in a given way so many times, then works; counts."""

    def __init__(self, times: int, error: Callable[[], BaseException] = lambda: ConnectionError("no answer")) -> None:
        self.left = times
        self.error = error
        self.calls: list[Any] = []

    async def __call__(self, value: Any = None) -> Any:
        self.calls.append(value)
        if self.left:
            self.left -= 1
            raise self.error()
        return value


class BridgeBusy(Exception):
    """Typed: whoever raises it says what it means."""

    error_kind = "server_error"


async def every_job(rd: Redrive) -> list[Any]:
    return (await rd.jobs.list()).jobs


# Call ----------------------------------------------------------------------------------------------------------------


async def test_a_call_answers_with_the_result(rd: Redrive) -> None:
    @rd.task
    async def add(a: int, b: int = 2) -> int:
        return a + b

    outcome = await soon(rd.call(add, {"a": 1}))
    assert outcome and (outcome.status, outcome.result) == ("ok", 3)
    job = await rd.jobs.get(outcome.operation_id or "")
    assert (job.state, job.attempts, job.reason) == ("done", 1, "retry")
    by_name = await soon(rd.call("add", {"a": 2, "b": 3}))
    assert by_name.result == 5


async def test_a_sync_task_is_called_in_a_thread(rd: Redrive) -> None:
    here = threading.get_ident()

    @rd.task
    def blocking(n: int) -> bool:
        return threading.get_ident() != here

    assert (await soon(blocking.call(1))).result is True


async def test_the_operation_is_on_disk_as_running_before_the_task_begins(rd: Redrive, database: Path) -> None:
    """Read by another connection, as another process would see it."""
    seen: list[Any] = []

    @rd.task
    async def look(ctx: Context) -> None:
        (row,) = snapshot(database)[0]
        seen.extend([ctx.job.id in row, "running" in row])

    assert await soon(look.call())
    assert seen == [True, True]


async def test_a_call_waits_for_a_task_that_calls_another(rd: Redrive) -> None:
    @rd.task
    async def inner(n: int) -> int:
        return n * 2

    @rd.task
    async def outer(n: int) -> int:
        return int((await inner.call(n)).result) + 1

    assert (await soon(outer.call(20))).result == 41


@pytest.mark.parametrize("times", [1, 2])
async def test_what_heals_at_once_is_tried_again_on_the_spot(rd: Redrive, times: int, pauses: list[float]) -> None:
    flaky = Flaky(times)

    @rd.task
    async def work(n: int) -> int:
        return int(await flaky(n))

    outcome = await soon(work.call(7))
    assert outcome.result == 7
    assert pauses == [0.5, 1.0][:times]
    job = await rd.jobs.get(outcome.operation_id or "")
    assert job.attempts == times + 1
    assert [attempt.tier for attempt in job.history if attempt.outcome == "failed"] == ["immediate"] * times


@pytest.mark.behaviour("003-3", "003-4", "003-6", "003-29", "003-68", "003-16")
async def test_what_keeps_failing_is_queued_and_the_answer_is_no_success(rd: Redrive, clock: FakeClock) -> None:
    flaky = Flaky(3)
    ends: list[str] = []
    rd.subscribe("*", lambda event: ends.append(event.type) if event.type in ("completed", "dead_letter") else None)

    @rd.task
    async def work(n: int) -> int:
        return int(await flaky(n))

    outcome = await soon(work.call(7))
    assert not outcome and outcome.status == "queued_for_retry"
    shown = outcome.public()
    assert shown["queued_for_retry"] is True and "success" not in shown and "result" not in shown
    assert "Retries can fail" in shown["retry_hint"]
    job = await rd.jobs.get(outcome.operation_id or "")
    assert (job.state, job.reason, job.attempts, job.run_at) == ("waiting", "retry", 3, clock.now() + 45)
    assert outcome.retry_at == job.run_at
    await soon(rd.drain())
    assert len(flaky.calls) == 3, "it is not due yet"
    clock.advance(45)
    await soon(rd.drain())
    after = await rd.outcome(job.id)
    assert after and after.result == 7
    assert flaky.calls == [7, 7, 7, 7]
    await eventually(lambda: ends == ["completed"], "one end is told")


@pytest.mark.behaviour("003-4")
async def test_an_exhausted_operation_ends_as_one_dead_letter(rd: Redrive, clock: FakeClock) -> None:
    ends: list[str] = []
    rd.subscribe("*", lambda event: ends.append(event.type) if event.type in ("completed", "dead_letter") else None)
    flaky = Flaky(99)

    @rd.task
    async def work() -> None:
        await flaky()

    outcome = await soon(work.call())
    for _ in range(6):
        clock.advance(130)
        await soon(rd.drain())
    after = await rd.outcome(outcome.operation_id or "")
    assert (after.status, len(flaky.calls)) == ("failed", 5)
    assert "attempts_exhausted" in after.message
    await eventually(lambda: ends == ["dead_letter"], "one end is told")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (lambda: ConnectionError("cut"), "queued_for_retry"),
        (lambda: RuntimeError("who knows"), "queued_for_retry"),
        (lambda: PermissionError("no"), "failed"),
        (lambda: AttributeError("a bug"), "failed"),
        (lambda: redrive.GiveUp("hopeless"), "failed"),
        (lambda: redrive.Retry(after=60), "queued_for_retry"),
    ],
    ids=["transient", "unknown", "permanent", "bug", "given up", "asked to retry"],
)
async def test_how_a_failure_is_told(rd: Redrive, error: Callable[[], BaseException], status: str) -> None:
    @rd.task
    async def work() -> None:
        raise error()

    outcome = await soon(work.call())
    assert (outcome.status, bool(outcome)) == (status, False)
    assert outcome.error and outcome.operation_id


async def test_who_asks_to_wait_is_not_asked_again_on_the_spot(rd: Redrive, clock: FakeClock) -> None:
    class Limited(Exception):
        status_code = 429
        retry_after = 30.0

    flaky = Flaky(1, Limited)

    @rd.task
    async def work() -> str:
        return str(await flaky("done"))

    outcome = await soon(work.call())
    assert outcome.status == "queued_for_retry" and len(flaky.calls) == 1
    assert outcome.retry_at is not None and outcome.retry_at >= clock.now() + 30


@pytest.mark.behaviour("003-28")
@pytest.mark.parametrize(("policy", "queued"), [("replay", True), ("verify_first", True), ("manual", False)])
async def test_a_task_may_leave_its_failures_to_people(rd: Redrive, policy: Any, queued: bool) -> None:
    flaky = Flaky(99)

    @rd.task(retry_policy=policy)
    async def work() -> None:
        await flaky()

    outcome = await soon(work.call())
    job = await rd.jobs.get(outcome.operation_id or "")
    assert (outcome.status == "queued_for_retry") is queued
    assert (job.state == "waiting") is queued
    if not queued:
        assert (job.state, job.lane, len(flaky.calls)) == ("dead", "manual", 1)
        assert "manual" in str(job.history[-1].decision)


@pytest.mark.behaviour("003-28")
async def test_a_permanent_failure_is_never_queued(rd: Redrive) -> None:
    flaky = Flaky(99, lambda: PermissionError("no"))

    @rd.task
    async def work() -> None:
        await flaky()

    assert (await soon(work.call())).status == "failed"
    assert len(flaky.calls) == 1


@pytest.mark.behaviour("003-10", "003-30", "003-18")
async def test_a_typed_error_is_kept_with_every_attempt(rd: Redrive, clock: FakeClock) -> None:
    flaky = Flaky(4, BridgeBusy)

    @rd.task
    async def work() -> None:
        await flaky()

    outcome = await soon(work.call())
    assert outcome.public()["error_kind"] == "server_error"
    clock.advance(50)
    await soon(rd.drain())
    job = await rd.jobs.get(outcome.operation_id or "")
    assert [attempt.failure.error_kind for attempt in job.history if attempt.failure] == ["server_error"] * 4


@pytest.mark.behaviour("003-11", "003-79")
async def test_error_kinds_are_found_over_the_whole_history(rd: Redrive, clock: FakeClock) -> None:
    class PluginGone(Exception):
        error_kind = "needs_human"

    flaky = Flaky(1, BridgeBusy)

    @rd.task
    async def heals() -> str:
        return str(await flaky("well"))

    @rd.task
    async def breaks() -> None:
        raise PluginGone("install it")

    healed, broken = await soon(heals.call()), await soon(breaks.call())
    assert healed and not broken

    async def found(kind: str) -> list[str]:
        return [job.id for job in (await rd.jobs.list(error_kind=kind)).jobs]

    assert await found("server_error") == [healed.operation_id], "also what has healed since"
    assert await found("needs_human") == [broken.operation_id]
    assert await found("server") == []


async def test_a_value_that_says_it_failed_is_no_success(rd: Redrive) -> None:
    @rd.task
    async def work() -> dict[str, Any]:
        return {"success": False, "message": "the vault is closed"}

    outcome = await soon(work.call())
    assert not outcome and "the vault is closed" in str(outcome.error)


@pytest.mark.parametrize("signal", [redrive.Snooze(60), redrive.Cancel("not wanted")], ids=["snooze", "cancel"])
async def test_signals_are_told_as_what_they_are(rd: Redrive, signal: BaseException) -> None:
    @rd.task
    async def work() -> None:
        raise signal

    outcome = await soon(work.call())
    assert not outcome
    assert "failed (None)" not in outcome.message
    assert outcome.status == ("failed" if isinstance(signal, redrive.Cancel) else "queued")


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "options", "field"),
    [
        ({"n": "x"}, {}, "n"), ({}, {}, "n"), ({"n": 1, "m": 2}, {}, "m"), ({"n": float("nan")}, {}, "nan"),
        ({"n": 1}, {"sesion_id": "s"}, "sesion_id"), ({"n": 1}, {"timeout": "soon"}, "timeout"),
        ({"n": 1}, {"timeout": -1}, "timeout"), ({"n": 1}, {"delay": 60}, "delay"),
        ({"n": 1}, {"max_attempts": 0}, "max_attempts"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("read_only", [False, True])
async def test_bad_input_is_refused_by_name_and_changes_nothing(
    rd: Redrive, database: Path, params: Any, options: Any, field: str, read_only: bool
) -> None:
    @rd.task(read_only=read_only)
    async def work(n: int) -> int:
        return n

    with pytest.raises(InvalidInput, match=field):
        await soon(rd.call(work, params, **options))
    assert await every_job(rd) == []


async def test_a_call_of_a_task_that_others_know_waits_for_them(rd: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    outcome = await soon(rd.call("elsewhere", {"n": 1}))
    assert (outcome.status, outcome.queue_reason) == ("queued", "retry")
    assert "not known in this process" in caplog.text
    job = await rd.jobs.get(outcome.operation_id or "")
    assert (job.state, job.run_at) == ("waiting", rd.clock.now())


# Keys ----------------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("B14")
async def test_a_key_runs_once_however_often_it_is_called(rd: Redrive, clock: FakeClock) -> None:
    flaky = Flaky(0)

    @rd.task
    async def work(n: int) -> int:
        return int(await flaky(n))

    first = await soon(rd.call(work, {"n": 1}, idempotency_key="k"))
    clock.advance(400 * 86400)
    second = await soon(rd.call(work, {"n": 1}, idempotency_key="k"))
    assert (first.operation_id, first.result) == (second.operation_id, second.result)
    assert flaky.calls == [1]
    with pytest.raises(redrive.KeyReused):
        await rd.call(work, {"n": 2}, idempotency_key="k")


async def test_two_calls_at_once_with_one_key_run_it_once(rd: Redrive) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @rd.task
    async def work(n: int) -> int:
        runs.append(n)
        begun.set()
        await go.wait()
        return n

    first = asyncio.create_task(rd.call(work, {"n": 5}, idempotency_key="k"))
    await soon(begun.wait())
    second = await soon(rd.call(work, {"n": 5}, idempotency_key="k"))
    assert (second.status, bool(second)) == ("timeout", False)
    assert "still runs" in second.message
    go.set()
    assert (await soon(first)).result == 5
    assert (await rd.outcome(second.operation_id or "")).result == 5
    assert runs == [5]


async def test_many_calls_at_once_with_one_key_run_it_once(rd: Redrive) -> None:
    runs: list[int] = []

    @rd.task
    async def work(n: int) -> int:
        runs.append(n)
        await asyncio.sleep(0)
        return n

    outcomes = await soon(asyncio.gather(*(rd.call(work, {"n": 1}, idempotency_key="k") for _ in range(20))))
    assert runs == [1]
    assert len({outcome.operation_id for outcome in outcomes}) == 1
    assert sum(bool(outcome) for outcome in outcomes) >= 1
    assert all(outcome.result == 1 for outcome in outcomes if outcome)


@pytest.mark.parametrize("how", ["call", "rd.call", "as_tool", "by name"])
async def test_the_key_of_the_task_holds_for_calls_too(rd: Redrive, how: str) -> None:
    runs: list[int] = []

    @rd.task("note", idempotency_key="note_{n}")
    async def note(n: int) -> int:
        runs.append(n)
        return n

    ways: dict[str, Callable[[], Any]] = {
        "call": lambda: note.call(1), "rd.call": lambda: rd.call(note, {"n": 1}), "as_tool": lambda: note.as_tool()(1),
        "by name": lambda: rd.call("note", {"n": 1}),
    }  # fmt: skip
    await soon(note.call(1))
    await soon(ways[how]())
    assert runs == [1]


async def test_a_key_that_is_done_elsewhere_answers_with_its_result(rd: Redrive) -> None:
    """Also where this process does not know the task."""

    @rd.task
    async def work(n: int) -> int:
        return n + 1

    done = await soon(rd.call(work, {"n": 1}, idempotency_key="k"))
    del rd.registry.handlers["work"]
    again = await soon(rd.call("work", {"n": 1}, idempotency_key="k", queue="work"))
    assert (again.operation_id, again.result) == (done.operation_id, 2)


async def test_a_dead_key_can_be_called_back(rd: Redrive) -> None:
    flaky = Flaky(1, lambda: redrive.GiveUp("not yet"))

    @rd.task
    async def work() -> str:
        return str(await flaky("well"))

    first = await soon(rd.call(work, idempotency_key="k"))
    same = await soon(rd.call(work, idempotency_key="k"))
    assert (first.status, same.status, len(flaky.calls)) == ("failed", "failed", 1)
    back = await soon(rd.call(work, idempotency_key="k", on_duplicate="redrive"))
    assert back.result == "well"


# Who does not wait ---------------------------------------------------------------------------------------------------


class Gate:
    """A task that waits until it is let through."""

    def __init__(self, rd: Redrive) -> None:
        self.begun, self.go, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.runs: list[Any] = []

        @rd.task("gated")
        async def gated(n: int = 0) -> int:
            self.runs.append(n)
            self.begun.set()
            try:
                await self.go.wait()
            finally:
                self.ended.set()
            return n

        self.task = gated


@pytest.mark.behaviour("003-7")
async def test_after_the_timeout_there_is_an_operation_and_the_task_goes_on(rd: Redrive) -> None:
    gate = Gate(rd)
    outcome = await soon(rd.call(gate.task, {"n": 3}, timeout=0.01))
    assert (outcome.status, bool(outcome)) == ("timeout", False)
    shown = outcome.public()
    assert shown["status"] == "timeout" and shown["operation_id"] == outcome.operation_id
    again = await soon(rd.retry(shown["operation_id"]))
    assert again.status == "timeout", "what runs is not run twice"
    gate.go.set()

    async def done() -> bool:
        return bool(await rd.outcome(shown["operation_id"]))

    await eventually(done, "the operation ends by itself")
    assert (await rd.outcome(shown["operation_id"])).result == 3
    assert gate.runs == [3]


async def test_no_time_at_all_is_a_way_to_start_it(rd: Redrive) -> None:
    gate = Gate(rd)
    outcome = await soon(rd.call(gate.task, {"n": 3}, timeout=0))
    assert outcome.status == "timeout"
    await soon(gate.begun.wait())
    gate.go.set()
    await soon(gate.ended.wait())


async def test_a_caller_who_is_cancelled_takes_nothing_away(rd: Redrive) -> None:
    gate = Gate(rd)
    caller = asyncio.create_task(rd.call(gate.task, {"n": 3}))
    await soon(gate.begun.wait())
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.go.set()

    async def done() -> bool:
        return bool((await every_job(rd))[0].state == "done")

    await eventually(done, "the operation goes on")
    assert gate.runs == [3]


@pytest.mark.behaviour("003-4", "003-9")
@pytest.mark.parametrize("how", ["at once", "while it runs", "between two tries", "cancelled"])
@pytest.mark.parametrize("works", [True, False])
async def test_whoever_stops_waiting_is_told_by_notice(
    rd: Redrive, monkeypatch: pytest.MonkeyPatch, how: str, works: bool
) -> None:
    """Nobody waits for the answer any more: the session hears how it ended, once.

    Who waits an hour at most stops because the event loop's time leaps over that hour, when the job has come to the
    place that is meant: no real time decides what is shown.
    """
    reached, go, tries, leaping = asyncio.Event(), asyncio.Event(), [], LoopTime()

    async def pause(self: InlineRunner, seconds: float) -> None:
        if how == "between two tries":
            reached.set()
            await go.wait()

    monkeypatch.setattr(InlineRunner, "_pause", pause)

    @rd.task
    async def work() -> str:
        tries.append(1)
        if how == "between two tries" and len(tries) == 1:
            raise ConnectionError("cut")
        if how != "between two tries":
            reached.set()
            await go.wait()
        if not works:
            raise redrive.GiveUp("hopeless")
        return "well"

    limit = 0 if how == "at once" else None if how == "cancelled" else 3600
    caller = asyncio.create_task(rd.call(work, session_id="s1", timeout=limit))
    await soon(reached.wait())
    if how == "cancelled":
        caller.cancel()
    leaping.leap(7200)
    await soon(asyncio.wait([caller]))
    assert not go.is_set() and caller.done(), "it stopped waiting before the job went on"
    go.set()

    async def over() -> bool:
        (job,) = await every_job(rd)
        return bool(job.ended)

    await eventually(over, "it ends")
    (notice,) = await rd.sessions.inbox("s1", unread=False)
    assert notice.kind == ("retry_success" if works else "retry_exhausted")


@pytest.mark.behaviour("003-4")
async def test_a_timeout_while_the_end_is_written_is_no_silence(rd: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer, or a notice: one of them."""

    @rd.task
    async def work() -> str:
        return "well"

    write, deciding, go = rd.store.apply, asyncio.Event(), asyncio.Event()

    async def slowly(commits: Any) -> Any:
        if commits[0].transitions and commits[0].transitions[0].move == "succeeded":
            deciding.set()
            await go.wait()
        return await write(commits)

    monkeypatch.setattr(rd.store, "apply", slowly)
    caller = asyncio.create_task(rd.call(work, session_id="s1", timeout=0.05))
    await soon(deciding.wait())
    await asyncio.wait([caller], timeout=0.1)
    go.set()
    outcome = await soon(caller)

    async def done() -> bool:
        return bool(await rd.outcome(outcome.operation_id or ""))

    await eventually(done, "it ends")
    told = [notice.kind for notice in await rd.sessions.inbox("s1", unread=False)]
    assert (outcome.status, told) in (("ok", []), ("timeout", ["retry_success"]))


@pytest.mark.behaviour("003-4")
async def test_a_task_that_blocks_the_event_loop_past_the_timeout_is_no_silence(live: Redrive) -> None:
    """Its end and the timeout come in the same breath."""
    over = threading.Event()

    @live.task
    async def work() -> str:
        over.wait(0.2)
        return "well"

    outcome = await soon(live.call(work, session_id="s1", timeout=0.01))

    async def done() -> bool:
        return bool(await live.outcome(outcome.operation_id or ""))

    await eventually(done, "it ends")
    told = [notice.kind for notice in await live.sessions.inbox("s1", unread=False)]
    assert (outcome.status, told) in (("ok", []), ("timeout", ["retry_success"]))


@pytest.mark.behaviour("003-4")
@pytest.mark.parametrize("works", [True, False])
async def test_a_caller_who_is_cancelled_while_the_end_is_written_is_told_by_notice(
    rd: Redrive, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    """As `asyncio.wait_for` does it. Without the answer he does not even know which operation it was."""

    @rd.task
    async def work() -> str:
        if not works:
            raise redrive.GiveUp("hopeless")
        return "well"

    write, ending, go = rd.store.apply, asyncio.Event(), asyncio.Event()

    async def slowly(commits: Any) -> Any:
        if commits[0].transitions:
            ending.set()
            await go.wait()
        return await write(commits)

    monkeypatch.setattr(rd.store, "apply", slowly)
    caller = asyncio.create_task(rd.call(work, session_id="s1"))
    await soon(ending.wait())
    caller.cancel()
    await soon(asyncio.wait([caller]))
    go.set()

    async def told() -> list[str]:
        return [notice.kind for notice in await rd.sessions.inbox("s1", unread=False)]

    await eventually(told, "the session is told")
    assert caller.cancelled() and await told() == ["retry_success" if works else "retry_exhausted"]


async def test_whoever_waits_is_not_told_twice(rd: Redrive) -> None:
    @rd.task
    async def work(fails: bool) -> None:
        if fails:
            raise redrive.GiveUp("hopeless")

    await soon(rd.call(work, {"fails": False}, session_id="s1"))
    await soon(rd.call(work, {"fails": True}, session_id="s1"))
    assert await rd.sessions.inbox("s1", unread=False) == []


async def test_closing_finishes_the_calls_nobody_waits_for(database: Path) -> None:
    async with Redrive(database) as rd:
        gate = Gate(rd)
        outcome = await soon(rd.call(gate.task, {"n": 3}, timeout=0.01))
        asyncio.get_running_loop().call_later(0.05, gate.go.set)
    async with Redrive(database) as again:
        assert (await again.outcome(outcome.operation_id or "")).result == 3


@pytest.mark.behaviour("003-4")
async def test_what_was_given_back_at_closing_is_told_when_a_worker_ends_it(database: Path) -> None:
    hangs = True
    async with Redrive(database, grace=0.05) as rd:

        @rd.task
        async def work() -> str:
            if hangs:
                await asyncio.Event().wait()
            return "well"

        await soon(rd.call(work, session_id="s1", timeout=0.02))
        await soon(rd.close())
        hangs = False
        await soon(rd.drain())
        (notice,) = await rd.sessions.inbox("s1", unread=False)
        assert (notice.kind, notice.result) == ("retry_success", "well")


async def test_a_running_call_is_cancelled_at_once(live: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker's job is: nobody waits for the next heartbeat."""
    monkeypatch.setattr("redrive.engine.heartbeat.BEAT_SECONDS", 3_600.0)
    gate = Gate(live)
    caller = asyncio.create_task(live.call(gate.task))
    await soon(gate.begun.wait())
    (job,) = await every_job(live)
    await live.jobs.cancel(job.id, why="not wanted")
    outcome = await soon(caller)
    assert outcome.status == "failed" and "discarded" in outcome.message
    assert gate.ended.is_set()


async def test_closing_gives_back_what_does_not_end(database: Path) -> None:
    async with Redrive(database, grace=0.1) as rd:
        gate = Gate(rd)
        outcome = await soon(rd.call(gate.task, timeout=0.01))
        await soon(rd.close())
        assert gate.ended.is_set()
    async with Redrive(database) as again:
        job = await again.jobs.get(outcome.operation_id or "")
        assert (job.state, job.attempts) == ("waiting", 0)
        assert job.history[-1].outcome == "released"


async def test_a_redrive_is_used_again_after_it_was_closed(database: Path) -> None:
    rd = Redrive(database)

    @rd.task
    async def work(n: int) -> int:
        return n

    for n in range(2):
        assert (await soon(work.call(n))).result == n
        await rd.close()


def in_a_loop_of_its_own(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(work())))
    thread.start()
    thread.join(20)
    return found[0] if found else None


async def test_calls_come_from_many_loops(live: Redrive) -> None:
    @live.task
    async def work(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    async def calls() -> list[Outcome]:
        return list(await asyncio.gather(*(live.call(work, {"n": n}) for n in range(5))))

    elsewhere = [asyncio.to_thread(in_a_loop_of_its_own, calls) for _ in range(3)]
    *others, here = await soon(asyncio.gather(*elsewhere, calls()))
    for outcomes in (*others, here):
        assert [outcome.result for outcome in outcomes] == [0, 1, 2, 3, 4]
    await soon(live.close())


async def test_closing_here_while_another_loop_still_works(database: Path) -> None:
    rd = Redrive(database, grace=0.2)
    begun, told, timed_out = threading.Event(), threading.Event(), threading.Event()

    @rd.task
    async def work() -> str:
        begun.set()
        await asyncio.to_thread(told.wait, 10)
        return "worked"

    async def elsewhere() -> Outcome:
        late = await rd.call(work, timeout=0.01)
        timed_out.set()
        await asyncio.to_thread(told.wait, 10)
        return late

    other = asyncio.create_task(asyncio.to_thread(in_a_loop_of_its_own, elsewhere))
    await soon(asyncio.to_thread(begun.wait, 10))
    await soon(asyncio.to_thread(timed_out.wait, 10))
    asyncio.get_running_loop().call_later(0.05, told.set)
    await soon(rd.close())
    told.set()
    late = await soon(other)
    assert late is not None and late.status == "timeout"
    async with Redrive(database) as again:
        job = await again.jobs.get(late.operation_id)
        assert job.state in ("done", "waiting", "running")


async def test_a_harness_has_its_own_store_for_calls_too(rd: Redrive) -> None:
    @rd.task
    async def work(n: int) -> int:
        return n

    assert await soon(work.call(1))
    async with redrive.testing.harness(rd) as harness:
        assert (await soon(work.call(2))).result == 2
        await harness.assert_done(work, {"n": 2})
    assert (await soon(work.call(3))).result == 3
    assert len(await every_job(rd)) == 2


# Retry ---------------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-7", "003-56", "B19")
async def test_a_retry_needs_the_id_alone(rd: Redrive) -> None:
    flaky = Flaky(3)

    @rd.task
    async def work(a: int, b: list[str]) -> Any:
        return await flaky([a, b])

    outcome = await soon(work.call(1, ["x"]))
    assert outcome.status == "queued_for_retry"
    again = await soon(rd.retry(outcome.operation_id or ""))
    assert again and again.result == [1, ["x"]]
    assert flaky.calls == [[1, ["x"]]] * 4
    assert list(inspect.signature(rd.retry).parameters) == ["operation_id", "timeout", "who"]


async def test_a_part_of_the_id_is_enough(rd: Redrive) -> None:
    flaky = Flaky(3)

    @rd.task
    async def work() -> str:
        return str(await flaky("well"))

    outcome = await soon(work.call())
    assert (await soon(rd.retry((outcome.operation_id or "")[-8:]))).result == "well"


@pytest.mark.behaviour("B1")
async def test_what_is_done_stays_done(rd: Redrive) -> None:
    flaky = Flaky(0)

    @rd.task
    async def work() -> str:
        return str(await flaky("well"))

    outcome = await soon(work.call())
    again = await soon(rd.retry(outcome.operation_id or ""))
    assert again and again.result == "well" and len(flaky.calls) == 1


@pytest.mark.behaviour("B31")
async def test_a_retry_of_what_is_exhausted_is_granted_and_really_runs(rd: Redrive, clock: FakeClock) -> None:
    flaky = Flaky(6)

    @rd.task(max_attempts=3)
    async def work() -> str:
        return str(await flaky("well"))

    outcome = await soon(work.call())
    assert outcome.status == "failed" and len(flaky.calls) == 3
    again = await soon(rd.retry(outcome.operation_id or ""))
    assert again.status == "failed" and len(flaky.calls) == 6
    job = await rd.jobs.get(outcome.operation_id or "")
    assert (job.attempts, job.allowed, job.grants) == (6, 6, 1)
    assert (await soon(rd.retry(job.id))).result == "well"


@pytest.mark.behaviour("B31")
async def test_a_granted_retry_that_is_queued_is_taken_by_a_worker(rd: Redrive, clock: FakeClock) -> None:
    """Nothing waits for ever with its attempts used up."""
    flaky = Flaky(8)

    @rd.task(max_attempts=5)
    async def work() -> str:
        return str(await flaky("well"))

    outcome = await soon(work.call())
    for _ in range(4):
        clock.advance(130)
        await soon(rd.drain())
    assert (await rd.outcome(outcome.operation_id or "")).status == "failed"
    again = await soon(rd.retry(outcome.operation_id or ""))
    assert again.status == "queued_for_retry" and len(flaky.calls) == 8
    clock.advance(130)
    await soon(rd.drain())
    assert (await rd.outcome(outcome.operation_id or "")).result == "well"


@pytest.mark.behaviour("B31")
async def test_grants_end_and_the_answer_says_so(rd: Redrive) -> None:
    flaky = Flaky(99, lambda: redrive.GiveUp("hopeless"))

    @rd.task(max_attempts=1)
    async def work() -> None:
        await flaky()

    outcome = await soon(work.call())
    for _ in range(5):
        outcome = await soon(rd.retry(outcome.operation_id or ""))
        assert outcome.status == "failed"
    assert len(flaky.calls) == 4, "once, and three grants"
    assert "3 times already" in outcome.message


async def test_a_retry_may_run_late_too(rd: Redrive) -> None:
    gate = Gate(rd)
    job = await gate.task.options(delay=3600).enqueue(4)
    outcome = await soon(rd.retry(job.id, timeout=0.01))
    assert outcome.status == "timeout"
    gate.go.set()

    async def done() -> bool:
        return bool(await rd.outcome(job.id))

    await eventually(done, "it ends")
    assert gate.runs == [4]


async def test_a_retry_of_nothing_and_of_a_stranger(rd: Redrive) -> None:
    with pytest.raises(JobNotFound):
        await rd.retry("0123456789abcdef0123456789abcdef")
    job = await rd.enqueue("elsewhere", {})
    with pytest.raises(InvalidOption, match="elsewhere"):
        await rd.retry(job.id)
    assert (await job.refresh()).state == "waiting"


@pytest.mark.parametrize("end", ["discarded", "outcome_unknown"])
async def test_what_was_let_go_or_is_unknown_is_not_run_by_a_retry(rd: Redrive, end: str) -> None:
    runs: list[int] = []

    @rd.task
    async def work() -> None:
        runs.append(1)
        raise redrive.OutcomeUnknown("no answer")

    if end == "discarded":
        job = await work.options(delay=60).enqueue()
        await job.cancel("not wanted")
    else:
        outcome = await soon(work.call())
        assert outcome.status == "held"
    (job_id,) = [job.id for job in await every_job(rd)]
    before = len(runs)
    again = await soon(rd.retry(job_id))
    assert again.status == ("failed" if end == "discarded" else "held")
    assert len(runs) == before


@pytest.mark.behaviour("003-8", "B19")
async def test_a_retry_asks_for_what_the_task_needs_before_it_tries(rd: Redrive, clock: FakeClock) -> None:
    up = True
    probe = Probe("vault", lambda: up)
    flaky = Flaky(3)

    @rd.task(requires=[probe])
    async def work() -> str:
        return str(await flaky("well"))

    outcome = await soon(work.call())
    assert outcome.status == "queued_for_retry"
    before = await rd.jobs.get(outcome.operation_id or "")
    up = False
    gated = await soon(rd.retry(outcome.operation_id or ""))
    assert not gated and "vault" in gated.message and "Not tried" in gated.message
    after = await rd.jobs.get(outcome.operation_id or "")
    assert (after.attempts, after.state, len(flaky.calls)) == (before.attempts, before.state, 3)
    up = True
    clock.advance(30)
    again = await soon(rd.retry(outcome.operation_id or ""))
    assert again.result == "well" and again.registry_auto_recovered


@pytest.mark.behaviour("003-34", "B28")
async def test_call_retry_and_worker_take_one_path(rd: Redrive, clock: FakeClock) -> None:
    """The same failure, met by a first call, a manual retry and a worker, leads to the same decision."""
    landed: set[str] = set()
    effect = redrive.Effect("note", lambda payload, witness: witness in landed)
    witness = ""

    @rd.task(effects=[effect], idempotent=True, backoff="none")
    async def note() -> None:
        landed.add(witness)
        raise redrive.OutcomeUnknown("no answer", witness=witness)

    witness = "called"
    called = await soon(note.call())
    witness = "swept"
    swept = await note.enqueue()
    await soon(rd.drain())
    witness = "retried"
    retried = await soon(rd.retry((await note.options(delay=60).enqueue()).id))
    outcomes = [called, await rd.outcome(swept.id), retried]
    assert [(one.status, one.recovered) for one in outcomes] == [("ok", 1)] * 3


# Submit --------------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-9", "003-51", "003-52", "003-71", "C26", "003-17", "003-21")
async def test_a_submission_is_kept_for_one_long_attempt(rd: Redrive, clock: FakeClock) -> None:
    leases: list[float | None] = []

    @rd.task
    async def think(ctx: Context, n: int) -> int:
        leases.append(ctx.job.lease)
        return n

    outcome = await soon(rd.submit(think, {"n": 4}, session_id="s1"))
    shown = outcome.public()
    assert shown.keys() == {"operation_id", "status", "hint", "queue_reason"}
    assert (shown["status"], shown["queue_reason"]) == ("queued", "deferred_submit")
    job = await rd.jobs.get(shown["operation_id"])
    assert (job.state, job.reason, job.allowed, job.run_at, job.session_id) == (
        "waiting", "deferred_submit", 1, clock.now(), "s1",
    )  # fmt: skip
    await soon(rd.drain())
    assert leases == [600.0]
    assert (await rd.outcome(job.id)).result == 4


async def test_a_submission_that_fails_is_not_tried_again(rd: Redrive, clock: FakeClock) -> None:
    flaky = Flaky(1)

    @rd.task
    async def think() -> None:
        await flaky()

    outcome = await soon(rd.submit(think))
    await soon(rd.drain())
    clock.advance(3600)
    await soon(rd.drain())
    after = await rd.outcome(outcome.operation_id or "")
    assert (after.status, len(flaky.calls)) == ("failed", 1)


async def test_a_submission_with_a_known_key_is_that_operation(rd: Redrive) -> None:
    @rd.task
    async def think(n: int) -> int:
        return n

    first = await soon(rd.submit(think, {"n": 1}, idempotency_key="k"))
    await soon(rd.drain())
    second = await soon(rd.submit(think, {"n": 1}, idempotency_key="k"))
    assert second.operation_id == first.operation_id and second.result == 1


# Read-only -----------------------------------------------------------------------------------------------------------


async def test_what_changes_nothing_leaves_nothing(rd: Redrive) -> None:
    @rd.task(read_only=True)
    async def look(n: int, deep: bool = False) -> dict[str, Any]:
        return {"n": n, "deep": deep}

    outcome = await soon(look.call(1))
    assert outcome and outcome.result == {"n": 1, "deep": False} and outcome.operation_id is None
    assert await every_job(rd) == []


@pytest.mark.parametrize(
    "error", [ConnectionError("cut"), redrive.GiveUp("hopeless"), redrive.Retry(after=1), redrive.Snooze(5)], ids=repr
)
async def test_a_failed_look_is_told_and_not_queued(rd: Redrive, error: BaseException) -> None:
    @rd.task(read_only=True)
    async def look() -> None:
        raise error

    outcome = await soon(look.call())
    assert (outcome.status, bool(outcome)) == ("failed", False)
    assert type(error).__name__ in str(outcome.error)
    assert await every_job(rd) == []


async def test_a_look_that_says_it_failed(rd: Redrive) -> None:
    @rd.task(read_only=True)
    async def look() -> dict[str, str]:
        return {"error": "not there", "error_kind": "data_integrity"}

    outcome = await soon(look.call())
    assert not outcome and "not there" in str(outcome.error) and outcome.error_kind == "data_integrity"


async def test_a_look_without_await_does_not_stop_everybody(rd: Redrive) -> None:
    here = threading.get_ident()

    @rd.task(read_only=True)
    def look() -> list[Any]:
        return [threading.get_ident() != here, session_of.get()]

    assert (await soon(rd.call(look, session_id="s1"))).result == [True, "s1"]
    assert session_of.get() is None


async def test_a_slow_look_ends_at_its_timeout(rd: Redrive) -> None:
    @rd.task(read_only=True)
    async def look() -> None:
        await asyncio.Event().wait()

    outcome = await soon(rd.call(look, timeout=0.01))
    assert not outcome and outcome.status in ("failed", "timeout")
    assert await every_job(rd) == []


async def test_read_only_is_taken_at_its_word(rd: Redrive) -> None:
    """It has no effects, and needs nobody's consent."""
    effect = redrive.Effect("note", lambda payload, witness: True)
    for options in ({"effects": [effect]}, {"consent": True}, {"consent": "notes"}):
        with pytest.raises(InvalidOption, match="read_only"):

            @rd.task("look", read_only=True, **options)
            async def look() -> None: ...


# Results -------------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("B15", "C27", "B32")
@pytest.mark.parametrize("length", [INLINE + 1, 300_000], ids=["inline", "stored apart"])
async def test_a_long_result_is_cut_in_the_answer_and_whole_in_the_store(rd: Redrive, length: int) -> None:
    @rd.task
    async def write(length: int) -> str:
        return "x" * length

    outcome = await soon(write.call(length))
    assert outcome and outcome.truncated
    assert isinstance(outcome.result, str) and len(outcome.result) < INLINE + 200
    assert (outcome.operation_id or "") in outcome.result
    whole = await soon(rd.jobs.result(outcome.operation_id or ""))
    assert whole == "x" * length


@pytest.mark.behaviour("B23")
async def test_nothing_is_a_result_like_any_other(rd: Redrive) -> None:
    @rd.task
    async def work() -> None: ...

    outcome = await soon(work.call())
    assert outcome and outcome.public()["result"] is None


# Tools ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tool(rd: Redrive) -> Any:
    @rd.task
    async def publish(
        ctx: Context, slug: str, tags: "list[str] | None" = None, *, draft: bool = False
    ) -> dict[str, Any]:
        """Publish a page under its slug."""
        return {"slug": slug, "tags": tags, "draft": draft}

    return publish.as_tool()


async def test_a_tool_looks_like_a_plain_function(tool: Any) -> None:
    assert tool.__name__ == "publish" and inspect.iscoroutinefunction(tool)
    assert tool.__doc__ == "Publish a page under its slug."
    parameters = inspect.signature(tool).parameters
    assert list(parameters) == ["slug", "tags", "draft"], "the context is not the agent's to give"
    assert parameters["draft"].kind is inspect.Parameter.KEYWORD_ONLY and parameters["draft"].default is False
    assert inspect.get_annotations(tool) == {
        "slug": str, "tags": list[str] | None, "draft": bool, "return": dict[str, Any],
    }  # fmt: skip


async def test_a_tool_can_be_read_by_pydantic(tool: Any) -> None:
    """What agent frameworks do: a schema from the function, and a call with what the model gave."""
    schema = pydantic.TypeAdapter(tool).json_schema()
    assert schema["required"] == ["slug"]
    assert schema["properties"]["slug"]["type"] == "string"
    validated = pydantic.validate_call(tool)
    answer = await soon(validated(slug="a", tags=["b"]))
    assert answer["status"] == "ok" and answer["result"] == {"slug": "a", "tags": ["b"], "draft": False}


async def test_a_tool_never_looks_like_success_unless_it_is(rd: Redrive) -> None:
    flaky = Flaky(99)

    @rd.task
    async def work() -> None:
        """Work."""
        await flaky()

    answer = await soon(work.as_tool()())
    assert answer["queued_for_retry"] is True and "result" not in answer and "status" not in answer


async def test_a_tool_refuses_what_the_task_could_not_use(tool: Any, rd: Redrive) -> None:
    with pytest.raises(InvalidPayload, match="slug"):
        await tool(slug=3)
    assert await every_job(rd) == []


async def test_options_and_a_limit_for_calls_and_tools(rd: Redrive) -> None:
    gate = Gate(rd)
    called = asyncio.create_task(gate.task.options(session_id="s1", idempotency_key="k").call(1))
    await soon(gate.begun.wait())
    (job,) = await every_job(rd)
    assert (job.session_id, job.key) == ("s1", "k")
    answer = await soon(gate.task.as_tool(timeout=0.01, session_id="s2")(2))
    assert answer["status"] == "timeout"
    assert (await rd.jobs.get(answer["operation_id"])).session_id == "s2"
    gate.go.set()
    assert await soon(called)


# The store is closed elsewhere ---------------------------------------------------------------------------------------


def _hearts() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "redrive-heart"}


async def test_calls_between_which_another_thread_closes_the_store_leave_no_heart_behind(rd: Redrive) -> None:
    @rd.task
    async def work() -> None: ...

    before = _hearts()
    for _ in range(3):
        assert (await soon(work.call())).status == "ok"
        await asyncio.to_thread(asyncio.run, rd.close())
    assert (await soon(work.call())).status == "ok"
    await eventually(lambda: len(_hearts() - before) == 1, "only the present one beats")


async def test_a_call_that_goes_on_keeps_its_lease_though_the_store_is_made_anew(rd: Redrive) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @rd.task
    async def slow() -> None:
        begun.set()
        await go.wait()

    @rd.task
    async def quick() -> None: ...

    calling = asyncio.create_task(slow.call())
    await soon(begun.wait())
    (spot,) = rd._gateway._spots.values()
    store, rd.core.holder.store = rd.core.holder.store, None
    assert (await soon(quick.call())).status == "ok"
    assert spot._heart is not None
    go.set()
    assert (await soon(calling)).status == "ok"
    await eventually(lambda: spot._heart is None, "it has stopped")
    assert store is not None
    await store.close()


# After crashes -------------------------------------------------------------------------------------------------------


class Suspect:
    """An operation that was there when two processes died, and what becomes of the mark that it runs alone."""

    def __init__(self, rd: Redrive, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rd = rd
        self.calls = 0
        self._database = database
        self._monkeypatch = monkeypatch

        @rd.task
        async def work() -> None:
            self.calls += 1

        self._task = work

    async def accepted(self) -> Job:
        job = await self._task.enqueue()
        with contextlib.closing(elsewhere.connected(self._database)) as connection:
            connection.execute("UPDATE jobs SET crashes = 2, run = 2 WHERE id = ?", (job.id,))
        return await self.rd.jobs.get(job.id)

    def spoil(self, how: Callable[..., Any]) -> None:
        """The first mark."""
        really, marks = self.rd.store.apply, list[str]()

        async def apply(group: Sequence[Commit]) -> Any:
            found = [put.key for commit in group for put in commit.puts if put.kind == ALONE.name]
            marks.extend(found)
            return await (how(really, group) if found and len(marks) == 1 else really(group))

        self._monkeypatch.setattr(self.rd.store, "apply", apply)


@pytest.fixture
def suspect(rd: Redrive, database: Path, monkeypatch: pytest.MonkeyPatch) -> Suspect:
    return Suspect(rd, database, monkeypatch)


async def _landed_unknown(really: Any, group: Sequence[Commit]) -> Any:
    await really(group)
    return [Unknown("the disk did not say")]


async def _refused(really: Any, group: Sequence[Commit]) -> Any:
    raise StoreBusy("locked for 30 s: nothing was written")


@pytest.mark.parametrize("spoiled", [_landed_unknown, _refused])
async def test_a_suspect_that_was_perhaps_marked_is_given_back_not_run(
    suspect: Suspect, rd: Redrive, spoiled: Callable[..., Any]
) -> None:
    job = await suspect.accepted()
    suspect.spoil(spoiled)
    assert (await soon(rd.retry(job.id))).status == "queued"
    found = await rd.jobs.get(job.id)
    assert (found.state, found.attempts, suspect.calls) == ("waiting", 0, 0)
    assert [attempt.outcome for attempt in found.history] == ["released"]
    assert (await soon(rd.retry(job.id))).status == "ok"
    assert suspect.calls == 1


async def test_a_suspect_that_was_taken_away_meanwhile_does_not_run(suspect: Suspect, rd: Redrive) -> None:
    job = await suspect.accepted()

    async def taken(really: Any, group: Sequence[Commit]) -> Any:
        await rd.jobs.cancel(job.id, who="ann")
        return await really(group)

    suspect.spoil(taken)
    assert (await soon(rd.retry(job.id))).status == "failed"
    assert ((await rd.jobs.get(job.id)).state, suspect.calls) == ("discarded", 0)


async def test_whoever_is_stopped_before_a_suspect_begins_gives_it_back(suspect: Suspect, rd: Redrive) -> None:
    job, marking = await suspect.accepted(), asyncio.Event()

    async def forever(really: Any, group: Sequence[Commit]) -> Any:
        marking.set()
        await asyncio.Event().wait()

    suspect.spoil(forever)
    spot = InlineRunner(rd.store, rd.registry, rd.clock, "call")
    running = asyncio.create_task(spot.run(job))
    await soon(marking.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)
    await spot.stop()
    assert ((await rd.jobs.get(job.id)).state, suspect.calls) == ("waiting", 0)


# All operations ------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-1", "003-77", "003-78")
async def test_the_retry_queue_in_one_look(rd: Redrive, clock: FakeClock) -> None:
    flaky = Flaky(99)

    @rd.task
    async def fails() -> None:
        await flaky()

    @rd.task
    async def later(n: int) -> None: ...

    @rd.task(schedule=redrive.cron("0 0 * * *"))
    async def nightly() -> None: ...

    assert await rd.operations() == {
        "queued": 0, "by_reason": {"retry": 0, "deferred_submit": 0, "scheduled_job": 0}, "next_retry_at": None,
        "recent": [],
    }  # fmt: skip
    retried = await soon(fails.call())
    for n in range(25):
        await rd.submit(later, {"n": n}, delay=5 + n)
    await rd.enqueue("later", {"n": 99})
    found = await rd.operations()
    assert found["by_reason"] == {"retry": 1, "deferred_submit": 25, "scheduled_job": 0}
    assert found["queued"] == 26
    assert found["next_retry_at"] == iso(clock.now() + 5), "the soonest of all, also of those not shown"
    shown = {one["operation_id"]: one for one in found["recent"]}
    one = shown[retried.operation_id]
    assert (one["status"], one["retry_at"], one["max_retries"], one["task"]) == (
        "queued_retry", iso(clock.now() + 45), 5, "fails",
    )  # fmt: skip
    assert {one["status"] for one in found["recent"]} == {"queued_retry", "queued_deferred_submit"}
    assert len(found["recent"]) == 21


@pytest.mark.parametrize("soonest", [0, 600, 1_199])
async def test_the_next_retry_is_found_among_any_number_in_any_order(
    rd: Redrive, clock: FakeClock, soonest: int
) -> None:
    now = clock.now()
    plan = rd._enqueuer.plan("later", {}, reason="deferred_submit")
    prepared = [rd._enqueuer.prepare(plan, {"n": n}) for n in range(1_200)]
    late = [replace(made.job, run_at=now + 10 + abs(n - soonest)) for n, made in enumerate(prepared)]
    await rd.store.insert(late)
    found = await rd.operations()
    assert (found["queued"], len(found["recent"])) == (1_200, 20)
    assert found["next_retry_at"] == iso(now + 10)
    clock.advance(5_000)
    assert (await rd.operations())["next_retry_at"] == iso(now + 10), "also where it is overdue"


@pytest.mark.behaviour("003-78")
async def test_a_scheduled_operation_is_listed_as_such(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(schedule=redrive.cron("0 * * * *"))
    async def hourly() -> None: ...

    @rd.task
    async def fails() -> None: ...

    await soon(rd.drain())
    clock.advance(3600)
    await rd.queues.pause("hourly")
    await soon(rd.drain())
    found = await rd.operations()
    assert [one["status"] for one in found["recent"]] == ["queued_scheduled_job"]


@pytest.mark.behaviour("003-5")
async def test_what_an_operation_did_outside_can_be_asked_for(rd: Redrive) -> None:
    @rd.task
    async def post(ctx: Context) -> None:
        await ctx.once("post", lambda key: {"id": "p1"})

    outcome = await soon(post.call())
    (effect,) = await rd.jobs.effects(outcome.operation_id or "")
    assert (effect.name, effect.status, effect.result) == ("post", "landed", {"id": "p1"})


# The sweep and its policy --------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-22", "003-29")
async def test_an_operation_says_all_there_is_to_say(rd: Redrive, clock: FakeClock) -> None:
    flaky = Flaky(99, BridgeBusy)

    @rd.task
    async def work(text: str) -> None:
        await flaky(text)

    outcome = await soon(rd.call(work, {"text": "x"}, session_id="s1", idempotency_key="k"))
    shown = public(await rd.jobs.get(outcome.operation_id or ""))
    assert shown | {"history": None, "id": None} == shown | {
        "history": None, "id": None, "task": "work", "queue": "work", "payload": {"text": "x"}, "state": "waiting",
        "attempts": 3, "allowed": 5, "session_id": "s1", "reason": "retry", "key": "k", "error_class": "BridgeBusy",
        "error": "BridgeBusy", "result": None, "run_at": iso(clock.now() + 45),
    }  # fmt: skip
    assert {"created_at", "updated_at", "started_at", "first_failed_at", "lease", "worker", "category"} <= shown.keys()
    assert [attempt["failure"]["error_kind"] for attempt in shown["history"]] == ["server_error"] * 3
    assert all(attempt["decision"] for attempt in shown["history"])


@pytest.mark.behaviour("003-21")
async def test_an_operation_may_have_a_longer_lease(rd: Redrive) -> None:
    leases: list[float | None] = []

    @rd.task
    async def work(ctx: Context) -> None:
        leases.append(ctx.job.lease)

    await soon(work.call())
    await soon(rd.call(work, lease=600))
    await work.enqueue()
    await work.options(lease=600).enqueue()
    await soon(rd.drain())
    assert sorted(map(str, leases)) == ["600.0", "600.0", "90.0", "90.0"]


@pytest.mark.behaviour("003-53")
async def test_a_sweep_that_fails_does_not_end_the_sweeping(
    rd: Redrive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = rd.make_scheduler(rd.make_worker())
    rounds: list[int] = []

    async def recover() -> None:
        rounds.append(1)
        raise OSError("the disk is away")

    monkeypatch.setattr(scheduler, "_duties", [PeriodicDuty(1.0, recover)])
    for _ in range(3):
        await scheduler.tick()
        rd.clock.advance(1)  # type: ignore[attr-defined]
    assert len(rounds) == 3
    assert "the disk is away" in caplog.text


@pytest.mark.behaviour("003-54", "003-55", "003-56")
async def test_what_is_due_is_taken_by_one_with_what_was_stored(rd: Redrive, clock: FakeClock, database: Path) -> None:
    given: list[Any] = []

    @rd.task
    async def work(**kwargs: Any) -> None:
        given.append(kwargs)

    due, later = await work.enqueue(a=1, b=["x"]), await work.options(delay=60).enqueue(a=2)
    async with Redrive(database, clock=clock) as other:
        first = await rd.store.claim(Wanted(slots=5), "one", clock.now())
        second = await other.store.claim(Wanted(slots=5), "two", clock.now())
    assert [job.id for job in first.jobs] == [due.id] and second.jobs == []
    clock.advance(60)
    await soon(rd.drain())
    assert given == [{"a": 2}] and (await later.refresh()).state == "done"


async def test_a_queue_that_is_switched_off_is_left_alone(rd: Redrive, clock: FakeClock) -> None:
    flaky = Flaky(3)

    @rd.task
    async def work() -> str:
        return str(await flaky("well"))

    outcome = await soon(work.call())
    await rd.queues.pause("work")
    clock.advance(60)
    assert await soon(rd.drain()) == 0
    assert (await rd.outcome(outcome.operation_id or "")).status == "queued_for_retry"
    await rd.queues.resume("work")
    await soon(rd.drain())
    assert (await rd.outcome(outcome.operation_id or "")).result == "well"


async def test_a_call_into_a_paused_queue_waits_there_and_says_why(rd: Redrive) -> None:
    ran: list[str] = []

    @rd.task
    async def work() -> str:
        ran.append("well")
        return "well"

    await rd.queues.pause("work", why="their maintenance window")
    outcome = await soon(work.call())
    assert (outcome.status, ran) == ("queued", [])
    assert "the queue work is paused (their maintenance window)" in outcome.message
    again = await soon(rd.retry(outcome.operation_id or ""))
    assert (again.status, ran) == ("queued", []) and again.message.startswith("Not tried: the queue work is paused")
    await rd.queues.resume("work")
    await soon(rd.drain())
    assert (await rd.outcome(outcome.operation_id or "")).result == "well"


async def test_a_dead_operation_is_not_retried_in_a_paused_queue(rd: Redrive) -> None:
    flaky = Flaky(1)

    @rd.task(max_attempts=1)
    async def work() -> str:
        return str(await flaky("well"))

    outcome = await soon(work.call())
    await rd.queues.pause("work")
    again = await soon(rd.retry(outcome.operation_id or ""))
    assert again.status == "failed" and "Not tried: the queue work is paused" in again.message
    assert (await rd.jobs.get(outcome.operation_id or "")).state == "dead"
    await rd.queues.resume("work")
    assert (await soon(rd.retry(outcome.operation_id or ""))).result == "well"


@pytest.mark.behaviour("003-73", "003-74", "003-75", "003-2")
@pytest.mark.parametrize(
    ("said", "waits", "end"),
    [
        ({}, [45.0, 90.0], "attempts_exhausted"),
        ({"max_attempts": 4}, [45.0], "attempts_exhausted"),
        ({"backoff": "fixed_10s"}, [10.0, 10.0], "attempts_exhausted"),
        ({"max_age": 40}, [45.0], "too_old"),
        ({"max_attempts": 99}, [45.0, 90.0, 120.0], "too_old"),
    ],
    ids=str,
)
async def test_how_operations_are_retried_and_how_that_is_changed(
    rd: Redrive, clock: FakeClock, said: Any, waits: list[float], end: str
) -> None:
    """Five tries, the adaptive table, half an hour; each can be said otherwise, and has its effect."""
    flaky = Flaky(99)

    @rd.task(**said)
    async def work() -> None:
        await flaky()

    outcome = await soon(work.call())
    seen: list[float] = []
    job = await rd.jobs.get(outcome.operation_id or "")
    while job.state == "waiting" and len(seen) < 30:
        seen.append(round(job.run_at - clock.now(), 3))
        clock.advance(job.run_at - clock.now())
        await soon(rd.drain())
        job = await rd.jobs.get(job.id)
    assert (job.state, job.because) == ("dead", end)
    assert seen[: len(waits)] == waits


@pytest.mark.behaviour("C35", "004-51", "004-52")
async def test_a_repeat_is_told_and_not_dropped_in_silence(rd: Redrive, clock: FakeClock) -> None:
    told: list[str] = []
    rd.subscribe("duplicate", lambda event: told.append(str(event.job_id)))

    @rd.task
    async def work(n: int) -> int:
        return n

    first = await work.options(idempotency_key="task-7").enqueue(1)
    live = await work.options(idempotency_key="task-7").enqueue(1)
    await soon(rd.drain())
    clock.advance(6 * 60)
    done = await work.options(idempotency_key="task-7").enqueue(1)
    assert [first.duplicate, live.duplicate, done.duplicate] == [False, True, True]
    assert {first.id, live.id, done.id} == {first.id}
    await eventually(lambda: told == [first.id] * 2, "each repeat is told")
    assert len(await every_job(rd)) == 1, "one live copy"


async def test_headers_travel_with_the_job(rd: Redrive) -> None:
    headers = {"X-Task-ID": "t7", "X-Task-Type": "publish", "X-Retry-Strategy": "categorized"}
    seen: list[Any] = []

    @rd.task
    async def work(ctx: Context) -> None:
        seen.append((ctx.job.options.headers, ctx.idempotency_key, ctx.job.created_at, ctx.job.allowed))

    await work.options(headers=headers, idempotency_key="t7-1", max_attempts=3).enqueue()
    await soon(rd.drain())
    assert seen == [(headers, "t7-1", rd.clock.now(), 3)]


# ---- the caller who waits is told once


async def test_a_call_refused_before_it_starts_is_no_notice(rd: Redrive) -> None:
    @rd.task(credentials=["env:NO_SUCH_TOKEN_HERE"])
    async def post(n: int) -> int:
        return n

    outcome = await soon(rd.call(post, {"n": 1}, session_id="s1"))
    assert (outcome.status, outcome.error_kind) == ("failed", "credentials")
    assert await rd.sessions.inbox("s1", unread=False) == []


async def test_a_call_whose_effect_was_seen_is_no_notice(rd: Redrive) -> None:
    @rd.task(effects=[redrive.Effect("note", lambda payload, witness: True)])
    async def note(n: int) -> int:
        raise redrive.OutcomeUnknown("the line went dead")

    outcome = await soon(rd.call(note, {"n": 1}, session_id="s1"))
    assert outcome.public()["post_write_recovery"] is True
    assert await rd.sessions.inbox("s1", unread=False) == []


async def test_a_retry_knows_the_tasks_of_included_modules(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doubling_tasks.py").write_text(
        "import redrive\n\n\n@redrive.default().task\nasync def double(n: int) -> int:\n    return 2 * n\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rd = Redrive(database, include=["doubling_tasks"])
    monkeypatch.setattr("redrive.api.redrive._default", rd)
    handle = await rd.enqueue("double", {"n": 21})
    outcome = await soon(rd.retry(handle.id))
    await rd.close()
    assert (outcome.status, outcome.result) == ("ok", 42)


# The store fails under a call -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["claim", "apply", "get"])
async def test_a_call_that_was_accepted_names_its_operation_whatever_the_store_does(
    rd: Redrive, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Told of nothing but a busy store, an agent would call again: what it asked for would be done twice."""

    @rd.task
    async def pay(euros: int) -> int:
        return euros

    async def busy(*_: object, **__: object) -> None:
        raise StoreBusy("the database is locked")

    monkeypatch.setattr("redrive.engine.inline_runs.AGAIN", 0.0)
    with monkeypatch.context() as locked:
        locked.setattr(rd.store, verb, busy, raising=False)
        outcome = await soon(rd.call(pay, {"euros": 9}))
    (job,) = await every_job(rd)
    assert not outcome and (outcome.status, outcome.operation_id) == ("timeout", job.id)
    assert "the database is locked" in outcome.message and "do not call it again" in outcome.message


# Bad words and odd results --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"timeout": -1}, {"timeout": "soon"}, {"who": ""}], ids=str)
async def test_a_retry_with_bad_words_changes_nothing(rd: Redrive, database: Path, wrong: dict[str, Any]) -> None:
    @rd.task
    async def work() -> None:
        raise redrive.GiveUp("hopeless")

    dead = await soon(rd.call(work))
    before = snapshot(database)
    with pytest.raises(InvalidInput):
        await rd.retry(dead.operation_id or "", **wrong)
    assert snapshot(database) == before


async def test_a_read_only_task_may_return_what_is_not_json(rd: Redrive) -> None:
    class Thing:
        def __repr__(self) -> str:
            return "a thing"

    class Page(pydantic.BaseModel):
        title: str

    @rd.task(read_only=True)
    async def look(page: bool) -> object:
        return Page(title="q3") if page else Thing()

    assert (await soon(rd.call(look, {"page": True}))).result == {"title": "q3"}
    assert (await soon(rd.call(look, {"page": False}))).result == {"$repr": "a thing"}


async def test_what_is_submitted_again_is_redriven_where_that_was_asked_for(rd: Redrive) -> None:
    flaky = Flaky(1, lambda: redrive.GiveUp("not yet"))

    @rd.task
    async def work() -> str:
        return str(await flaky("well"))

    first = await rd.submit(work, idempotency_key="k")
    await soon(rd.drain())
    assert (await rd.submit(work, idempotency_key="k")).status == "failed"
    assert (await rd.submit(work, idempotency_key="k", on_duplicate="redrive")).status == "queued"
    await soon(rd.drain())
    assert (await rd.outcome(first.operation_id or "")).result == "well"


async def test_the_next_retry_is_told_also_where_its_time_is_from_another_century(
    rd: Redrive, clock: FakeClock
) -> None:
    @rd.task
    async def work() -> None: ...

    await rd.submit("work", run_at=datetime(1969, 7, 20, tzinfo=UTC))
    assert str((await soon(rd.operations()))["next_retry_at"]).startswith("1969-07-20")
