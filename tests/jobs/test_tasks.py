"""Tasks in all their forms, what goes in and what comes out."""

import asyncio
import enum
import functools
import math
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pydantic
import pytest

import redrive
from redrive import Blob, Context, InvalidOption, InvalidPayload, Redrive
from redrive.core.job import keyed_id
from redrive.core.store import Event
from redrive.errors import ConfigError, JobDead, JobDiscarded
from tests.support import FakeClock, only_job, soon


class Colour(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    name: str
    at: datetime


@dataclass
class Point:
    x: int
    y: int = 0


class Struct(msgspec.Struct):
    tags: list[str]


# The four kinds, bare and with options ------------------------------------------------------------------------------


@pytest.mark.behaviour("000-66", "000-73")
async def test_every_form_of_task_runs_with_its_payload(rd: Redrive) -> None:
    @rd.task
    async def plain(a: int, b: int = 2) -> int:
        return a + b

    @rd.task
    async def with_context(ctx: Context, a: int) -> tuple[str, int]:
        return ctx.job.task, a

    @rd.task
    def blocking(a: int) -> str:
        return threading.current_thread().name

    @rd.task
    def blocking_with_context(ctx: redrive.BlockingContext, a: int) -> str:
        return type(ctx).__name__

    @rd.task()
    async def with_brackets() -> str:
        return "brackets"

    @rd.task("another.name", queue="elsewhere", max_attempts=7)
    async def named() -> str:
        return "named"

    handles = [
        await plain.enqueue(1),
        await with_context.enqueue(5),
        await blocking.enqueue(1),
        await blocking_with_context.enqueue(a=1),
        await with_brackets.enqueue(),
        await named.enqueue(),
    ]
    assert await soon(rd.drain()) == 6
    found = [await handle.result(5) for handle in handles]
    assert found[:2] == [3, ("with_context", 5)]
    assert found[2].startswith("redrive-task")
    assert found[3:] == ["BlockingContext", "brackets", "named"]
    assert (named.name, named.queue, plain.queue) == ("another.name", "elsewhere", "plain")
    assert handles[-1].job.allowed == 7


async def test_a_plain_call_runs_here_as_ever(rd: Redrive) -> None:
    @rd.task
    async def double(n: int) -> int:
        """Twice."""
        return 2 * n

    @rd.task
    def triple(n: int) -> int:
        return 3 * n

    assert (await double(2), triple(2)) == (4, 6)
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert (await rd.stats())["accepted"] == 0


async def test_the_context_is_known_by_annotation_or_by_name(rd: Redrive) -> None:
    @rd.task
    async def by_text(it: "redrive.Context", n: int) -> int:
        return it.attempt + n

    @rd.task
    async def by_name(ctx, n):  # type: ignore[no-untyped-def]
        return ctx.attempt + n

    @rd.task
    async def payload_called_ctx(ctx: str) -> str:
        return ctx

    handles = [await by_text.enqueue(1), await by_name.enqueue(n=1), await payload_called_ctx.enqueue("mine")]
    await soon(rd.drain())
    assert [await handle.result(5) for handle in handles] == [2, 2, "mine"]


async def test_two_tasks_cannot_have_one_name(rd: Redrive) -> None:
    rd.task("same")(_first)
    rd.task("same")(_first)
    with pytest.raises(ConfigError, match="'same'"):
        rd.task("same")(_second)


async def _first() -> None: ...
async def _second() -> None: ...


async def test_a_task_needs_names_for_its_payload(rd: Redrive) -> None:
    with pytest.raises((TypeError, redrive.RedriveError), match="args"):

        @rd.task
        async def anything(*args: int) -> None: ...


async def test_a_parameter_that_has_only_a_place_is_refused(rd: Redrive) -> None:
    with pytest.raises((TypeError, redrive.RedriveError), match="leave out the / that follows b"):

        @rd.task
        async def placed(a: int, b: int, /, c: int) -> None: ...

    assert "placed" not in rd.registry.handlers

    @rd.task
    async def fine(ctx: Context, /, a: int) -> int:
        return a

    job = await fine.enqueue(a=1)
    await soon(rd.drain())
    assert await job.result(5) == 1


@pytest.mark.parametrize("name", ["", 5, b"x", "\ud800", "a\nb", "x" * 201], ids=ascii)
async def test_a_name_that_no_job_could_have_is_refused(rd: Redrive, name: Any) -> None:
    known = dict(rd.registry.handlers)
    with pytest.raises(InvalidOption) as refused:
        rd.task(name)(_first)
    assert refused.value.field == "task"
    with pytest.raises(InvalidOption) as refused:
        rd.task("fine", queue=name)(_first)
    assert refused.value.field == "queue"
    assert rd.registry.handlers == known


@pytest.mark.parametrize("template", ["k_{text", "{who}", "{}", "", 5])
async def test_a_key_that_no_payload_could_fill_in_is_refused(rd: Redrive, template: Any) -> None:
    with pytest.raises(InvalidOption) as refused:
        rd.task("keyed", idempotency_key=template)(_first)
    assert refused.value.field == "idempotency_key"
    assert "keyed" not in rd.registry.handlers


async def test_a_key_takes_the_default_of_what_is_left_out(rd: Redrive) -> None:
    @rd.task(idempotency_key="{a}_{b}")
    async def keyed(a: int, b: str = "x") -> None: ...

    enqueued = await keyed.enqueue(1)
    assert enqueued.job.key == "1_x"
    assert enqueued.job.arguments == {"a": 1} and (await keyed.enqueue(1)).duplicate
    called = await rd.call(keyed, {"a": 2})
    assert called.operation_id is not None and (await rd.jobs.get(called.operation_id)).key == "2_x"
    with pytest.raises(InvalidPayload, match="JSON object"):
        await rd.call(keyed, [1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"colour": 1}, "colour"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"backoff": "sideways"}, "backoff"),
        ({"lease": 0}, "lease"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"concurrency": 0}, "concurrency"),
        ({"rate": redrive.Rate(0)}, "rate"),
        ({"max_age": 0}, "max_age"),
    ],
)
async def test_a_bad_option_of_a_task_is_named(rd: Redrive, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        rd.task("work", **options)(_first)
    assert refused.value.field.rpartition(".")[2] == field


async def test_an_async_function_in_a_partial_is_awaited(rd: Redrive) -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    work = rd.task("add_two")(functools.partial(add, b=2))
    job = await work.enqueue(a=1)
    await soon(rd.drain())
    assert await job.result(5) == 3


# By name -------------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("000-57", "000-19")
async def test_by_name_the_answer_is_a_job_on_disk(rd: Redrive, database: Any) -> None:
    job = await rd.enqueue("deliver", {"turns": [], "session": "s1"})
    async with Redrive(database) as other:
        stored = await other.jobs.get(job.id)
    assert (stored.task, stored.queue, stored.state, stored.arguments) == (
        "deliver", "deliver", "waiting", {"turns": [], "session": "s1"},
    )  # fmt: skip
    assert (job.state, job.duplicate, job.spooled) == ("waiting", False, False)


async def test_an_unknown_task_is_accepted_with_one_warning(rd: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    await rd.enqueue("elsewhere", {})
    await rd.enqueue("elsewhere", {})
    warnings = [record for record in caplog.records if "elsewhere" in record.getMessage()]
    assert [record.levelname for record in warnings] == ["WARNING"]


@pytest.mark.behaviour("000-58")
async def test_a_nested_payload_arrives_as_it_was_sent(rd: Redrive) -> None:
    seen: list[Any] = []

    @rd.task
    async def keep(**payload: Any) -> None:
        seen.append(payload)

    sent = {
        "text": 'é "quoted" \\ \n 🦊', "none": None, "numbers": [0, -1, 2**53 + 1, 1.5], "yes": True,
        "deep": {"er": [{"still": {}}, []]},
    }  # fmt: skip
    await rd.enqueue("keep", sent)
    await soon(rd.drain())
    assert seen == [sent]


@pytest.mark.parametrize(
    "sent", [{"$blob": 0}, {"a": {"$blob": 1}}, {"$result": "stored apart"}, {"$repr": "x"}], ids=str
)
async def test_nothing_in_a_payload_or_result_is_mistaken_for_our_own_marks(rd: Redrive, sent: dict[str, Any]) -> None:
    @rd.task
    async def echo(**payload: Any) -> Any:
        return payload

    job = await rd.enqueue("echo", sent)
    await soon(rd.drain())
    assert await job.result(5) == sent


# Options -------------------------------------------------------------------------------------------------------------


async def test_each_option_is_kept_with_the_job(rd: Redrive, clock: FakeClock) -> None:
    @rd.task
    async def work(n: int) -> None: ...

    handle = await work.options(
        queue="mail", delay=timedelta(seconds=30), priority="critical", idempotency_key="a_1", session_id="s1",
        agent="writer", model="m-1", max_attempts=9, lease=45, max_age=timedelta(hours=1), on_lost="dead_letter",
        budget=redrive.Budget(tokens=100), headers={"traceparent": "00-1"},
    ).enqueue(1)  # fmt: skip
    job = await rd.jobs.get(handle.id)
    assert (job.queue, job.run_at, job.priority_name, job.key) == ("mail", clock.now() + 30, "critical", "a_1")
    assert (job.session_id, job.agent, job.model, job.allowed) == ("s1", "writer", "m-1", 9)
    options = job.options
    assert (options.lease, options.max_age, options.on_lost) == (45, 3600, "dead_letter")
    assert (options.budget, options.traceparent) == (redrive.Budget(tokens=100), "00-1")
    assert handle.id == keyed_id("mail", "a_1")


async def test_run_at_is_an_instant(rd: Redrive, clock: FakeClock) -> None:
    at = datetime.fromtimestamp(clock.now() + 60, UTC)
    job = await rd.enqueue("work", run_at=at)
    assert job.job.run_at == at.timestamp()


async def test_options_may_be_used_again(rd: Redrive) -> None:
    @rd.task
    async def work(n: int) -> None: ...

    urgent = work.options(priority="high")
    jobs = [await urgent.enqueue(1), await urgent.enqueue(2), await work.enqueue(3)]
    assert [job.job.priority_name for job in jobs] == ["high", "high", "normal"]


async def test_the_lease_and_the_attempts_of_a_job_go_before_those_of_its_task(rd: Redrive) -> None:
    leases: list[float | None] = []

    @rd.task(lease=33, max_attempts=1, backoff="none", retry_on=(ValueError,))
    async def work(ctx: Context) -> None:
        leases.append(ctx.job.lease)
        raise ValueError

    job = await work.options(lease=44, max_attempts=2).enqueue()
    await soon(rd.drain())
    assert leases == [44, 44]
    assert (await job.refresh()).attempts == 2


# What payloads may carry ---------------------------------------------------------------------------------------------


async def test_rich_arguments_are_decoded_by_annotation(rd: Redrive) -> None:
    seen: list[Any] = []

    @rd.task
    async def rich(
        model: Model, point: Point, struct: Struct, at: datetime, id: uuid.UUID, colour: Colour, many: list[Point]
    ) -> None:
        seen.append((model, point, struct, at, id, colour, many))

    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    sent = (Model(name="n", at=at), Point(1, 2), Struct(["a"]), at, uuid.uuid4(), Colour.RED, [Point(3)])
    await rich.enqueue(*sent)
    await soon(rd.drain())
    assert seen == [sent]


async def test_the_payload_is_checked_when_it_is_enqueued(rd: Redrive) -> None:
    @rd.task
    async def work(n: int, points: list[Point]) -> None: ...

    for bad in ({"n": "x", "points": []}, {"n": 1}, {"n": 1, "points": [{"x": "?"}]}, {"n": 1, "points": [], "m": 1}):
        with pytest.raises(InvalidPayload) as refused:
            await rd.enqueue("work", bad)
        assert refused.value.field.startswith("payload")
    with pytest.raises(InvalidPayload, match="arguments"):
        await work.enqueue(1)  # type: ignore[call-arg]
    assert (await rd.stats())["accepted"] == 0


async def test_a_payload_the_worker_cannot_use_is_a_dead_letter_at_once(rd: Redrive, database: Any) -> None:
    """Enqueued by a producer that did not know the signature."""
    async with Redrive(database) as producer:
        job = await producer.enqueue("work", {"n": "not a number"})

    @rd.task
    async def work(n: int) -> None: ...

    await soon(rd.drain())
    dead = await rd.dead.show(job.id)
    assert (dead.state, dead.because, dead.detail, dead.attempts) == ("dead", "permanent", "invalid_input", 1)


async def test_blobs_are_stored_beside_the_job_and_come_back(rd: Redrive) -> None:
    seen: list[Any] = []

    @rd.task
    async def look(image: Blob, more: list[Blob], n: int = 1) -> None:
        seen.append((image, more, n))

    image, page = Blob(bytes(range(256)) * 20_000, "image/png"), Blob(b"")
    job = await look.enqueue(image, [page, image], n=3)
    assert job.job.payload is not None and len(job.job.payload) < 1000
    await soon(rd.drain())
    assert seen == [(image, [page, image], 3)]


# Results -------------------------------------------------------------------------------------------------------------


async def test_the_result_has_the_type_the_task_says(rd: Redrive) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)

    @rd.task
    async def model() -> Model:
        return Model(name="n", at=at)

    @rd.task
    async def points() -> list[Point]:
        return [Point(1), Point(2)]

    @rd.task
    async def nothing() -> None: ...

    handles = [await model.enqueue(), await points.enqueue(), await nothing.enqueue()]
    await soon(rd.drain())
    assert [await handle.result(5) for handle in handles] == [Model(name="n", at=at), [Point(1), Point(2)], None]


async def test_an_oversized_result_is_stored_apart(rd: Redrive) -> None:
    text = "é" * 1_500_000

    @rd.task
    async def large() -> str:
        return text

    job = await large.enqueue()
    await soon(rd.drain())
    stored = await job.refresh()
    assert stored.state == "done" and stored.result_json is not None and len(stored.result_json) < 200
    assert await job.result(5) == text


async def test_a_result_that_is_not_json_does_not_fail_the_job(rd: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    @rd.task
    async def odd() -> Any:
        return object()

    job = await odd.enqueue()
    await soon(rd.drain())
    assert (await job.refresh()).state == "done"
    assert "<object object" in (await job.result(5))["$repr"]
    assert any("not JSON" in record.getMessage() and record.levelname == "WARNING" for record in caplog.records)


async def test_a_dead_or_discarded_job_raises(rd: Redrive) -> None:
    @rd.task(max_attempts=1)
    async def work() -> None:
        raise ConnectionError("nobody home")

    dead, gone = await work.enqueue(), await work.options(delay=60).enqueue()
    await soon(rd.drain())
    with pytest.raises(JobDead, match="nobody home") as died:
        await dead.result(5)
    assert (died.value.job_id, died.value.reason) == (dead.id, "attempts_exhausted")
    assert died.value.recommendation
    assert (await gone.cancel("not wanted")).state == "discarded"
    with pytest.raises(JobDiscarded):
        await gone.result(5)


async def test_waiting_for_a_result_may_time_out(rd: Redrive) -> None:
    job = await rd.enqueue("nobody_runs_this")
    for timeout in (0.01, timedelta(milliseconds=5), 0):
        with pytest.raises(TimeoutError):
            await job.result(timeout)
    assert (await job.refresh()).state == "waiting"


async def test_a_wait_that_ends_says_how_the_job_stands(rd: Redrive) -> None:
    @rd.task(base=60)
    async def fail() -> None:
        raise ConnectionError

    @rd.task
    async def ask(ctx: redrive.Context) -> None:
        await ctx.approval("Really?")

    failed, asks = await fail.enqueue(), await ask.enqueue()
    await soon(rd.drain())
    expected = {
        await rd.enqueue("nobody_runs_this"): "waiting after 0.01 s: no worker has taken it",
        failed: f"goes on; see `redrive status {failed.id[-8:]}`",
        asks: f"held after 0.01 s .approval.. redrive approve {asks.id[-8:]}",
    }
    for job, words in expected.items():
        with pytest.raises(TimeoutError, match=words):
            await job.result(0.01)


async def test_a_job_that_has_ended_answers_whatever_the_timeout(rd: Redrive) -> None:
    @rd.task(max_attempts=1)
    async def work(fails: bool) -> str:
        if fails:
            raise ConnectionError("nobody home")
        return "done"

    done, dead = await work.enqueue(fails=False), await work.enqueue(fails=True)
    await soon(rd.drain())
    for timeout in (0, 1e-6, timedelta(0)):
        assert await done.result(timeout) == "done"
        with pytest.raises(JobDead, match="nobody home"):
            await dead.result(timeout)


async def test_a_result_arrives_while_somebody_waits(live: Redrive) -> None:
    go = asyncio.Event()

    @live.task
    async def work() -> str:
        await go.wait()
        return "done"

    async with live.worker():
        job = await work.enqueue()
        waiting = asyncio.create_task(job.result())
        go.set()
        assert await soon(waiting) == "done"


async def test_the_events_of_a_job_end_with_it(live: Redrive) -> None:
    release, begun = asyncio.Event(), asyncio.Event()

    @live.task(backoff="none", retry_on=(ValueError,))
    async def work(ctx: Context) -> None:
        begun.set()
        await release.wait()
        if ctx.attempt == 1:
            raise ValueError

    job = await work.enqueue()
    other = await live.enqueue("somebody_else")
    seen: list[str] = []

    async def follow() -> None:
        async for event in job.events():
            assert event.job_id == job.id != other.id
            seen.append(event.move)

    following = asyncio.create_task(follow())
    async with live.worker():
        await soon(begun.wait())
        release.set()
        await soon(following)
    assert [move for move in seen if move != "enqueued"] == ["retried", "succeeded"]


async def test_the_events_of_a_job_are_told_however_much_happens_beside_it(
    rd: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rd.task
    async def work() -> None: ...

    job = await work.enqueue()
    events, asked = rd.store.events, asyncio.Event()

    async def listed(after: str | None, limit: int = 1000) -> list[Event]:
        found = await events(after, limit)
        asked.set()
        return found

    async def follow() -> list[str]:
        return [event.move async for event in job.events()]

    monkeypatch.setattr(rd.store, "events", listed)
    following = asyncio.create_task(follow())
    await soon(asked.wait())
    await rd.enqueue_many("somebody_else", [{}] * 2_500)
    await soon(rd.drain())
    assert await soon(following) == ["succeeded"]


@pytest.mark.behaviour("000-67")
async def test_a_finished_job_leaves_the_queue_and_is_remembered(rd: Redrive) -> None:
    @rd.task
    async def work() -> int:
        return 1

    first = await work.options(idempotency_key="once").enqueue()
    await soon(rd.drain())
    (numbers,) = await rd.queues.list()
    assert (numbers.due, numbers.waiting, numbers.running, numbers.done) == (0, 0, 0, 1)
    again = await work.options(idempotency_key="once").enqueue()
    assert (again.id, again.duplicate, again.state) == (first.id, True, "done")
    assert await soon(rd.drain()) == 0


@pytest.mark.parametrize("spent", [{"cost": -1}, {"input_tokens": 1.5}, {"output_tokens": "5"}, {"cost": math.nan}])
async def test_spending_that_is_no_amount_is_said_and_not_dropped(rd: Redrive, spent: dict[str, Any]) -> None:
    @rd.task
    async def work(ctx: Context) -> None:
        ctx.usage(**spent)

    await work.enqueue()
    await soon(rd.drain())
    job = await only_job(rd)
    assert (job.state, job.detail) == ("dead", "invalid_input")
    assert job.error is not None and f"usage.{next(iter(spent))}: " in job.error


async def test_the_history_tells_each_attempt(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(retry_on=(ValueError,), base=10)
    async def work(ctx: Context) -> str:
        ctx.usage(input_tokens=10, output_tokens=1, cost=0.5)
        ctx.usage(input_tokens=5)
        if ctx.attempt == 1:
            raise ValueError("first")
        return "ok"

    await work.enqueue()
    await soon(rd.drain())
    clock.advance(20)
    await soon(rd.drain())
    job = await only_job(rd)
    failed, done = job.history
    assert (failed.outcome, done.outcome) == ("failed", "done")
    assert (failed.run, done.run, job.attempts) == (1, 2, 2)
    assert failed.failure is not None and failed.failure.message == "first"
    assert failed.cause is not None and failed.decision
    assert (
        failed.usage
        == done.usage
        == msgspec.convert({"input_tokens": 15, "output_tokens": 1, "cost": 0.5}, type(failed.usage))
    )
    assert done.started_at == clock.now() and done.worker


async def test_a_task_may_be_named_by_a_member_of_an_enumeration(rd: Redrive) -> None:
    class Names(enum.StrEnum):
        deliver = "deliver"

    @rd.task("deliver", queue="mail")
    async def deliver(x: int) -> None: ...

    assert (await rd.enqueue(Names.deliver, {"x": 1})).job.queue == "mail"
    with pytest.raises(InvalidPayload):
        await rd.enqueue(Names.deliver, {"y": 1})
