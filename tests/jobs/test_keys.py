"""Idempotency keys: the same key, queue and payload is the same job, whatever became of it."""

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive
from redrive import Blob, InvalidInput, InvalidOption, InvalidPayload, Item, JobNotReady, KeyReused, Redrive
from redrive.core.lifecycle import MAX_GRANTS
from redrive.core.store import Commit, Wanted
from redrive.engine.attempt import AttemptRunner
from redrive.engine.threads import Threads
from tests.support import FakeClock, soon


def _warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING and text in record.getMessage()]


@pytest.mark.behaviour("000-60")
async def test_the_caller_may_choose_the_key(rd: Redrive) -> None:
    first = await rd.enqueue("work", {"a": 1, "b": 2}, idempotency_key="k")
    again = await rd.enqueue("work", {"b": 2, "a": 1}, idempotency_key="k")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert first.id == again.id
    assert (await rd.jobs.get(first.id)).key == "k"
    assert (await rd.stats())["accepted"] == 1


async def test_the_same_payload_for_another_task_is_refused_as_that(rd: Redrive) -> None:
    await rd.enqueue("work", {"a": 1}, queue="shared", idempotency_key="k")
    with pytest.raises(KeyReused, match=r"'k' already stands for another task, 'work', in queue 'shared'"):
        await rd.enqueue("other", {"a": 1}, queue="shared", idempotency_key="k")


async def test_without_a_key_every_job_is_its_own(rd: Redrive) -> None:
    ids = {(await rd.enqueue("work", {"a": 1})).id for _ in range(20)}
    assert len(ids) == 20


async def test_another_payload_under_the_same_key_is_refused(rd: Redrive) -> None:
    job = await rd.enqueue("work", {"a": 1}, idempotency_key="k")
    with pytest.raises(KeyReused, match="'k'") as refused:
        await rd.enqueue("work", {"a": 2}, idempotency_key="k")
    assert refused.value.field == "idempotency_key"
    assert job.id in str(refused.value)
    assert (await rd.jobs.get(job.id)).arguments == {"a": 1}
    with pytest.raises(KeyReused):
        await rd.enqueue("other_task", {"a": 1}, queue="work", idempotency_key="k")


async def test_another_blob_is_another_payload(rd: Redrive) -> None:
    await rd.enqueue("work", {"image": Blob(b"abc")}, idempotency_key="k")
    assert (await rd.enqueue("work", {"image": Blob(b"abc")}, idempotency_key="k")).duplicate
    with pytest.raises(KeyReused):
        await rd.enqueue("work", {"image": Blob(b"xyz")}, idempotency_key="k")


async def test_a_key_belongs_to_its_queue(rd: Redrive) -> None:
    jobs = [await rd.enqueue("work", {"a": 1}, queue=queue, idempotency_key="k") for queue in ("x", "y")]
    assert jobs[0].id != jobs[1].id
    assert not jobs[1].duplicate


async def test_a_key_is_the_same_in_every_process(rd: Redrive, database: Path) -> None:
    first = await rd.enqueue("work", {"a": 1}, idempotency_key="k")
    async with Redrive(database) as other:
        assert (await other.enqueue("work", {"a": 1}, idempotency_key="k")).id == first.id


async def _bring_to(rd: Redrive, state: str) -> str:
    @rd.task("work", max_attempts=1)
    async def work(a: int) -> None:
        if state == "held":
            raise redrive.OutcomeUnknown("sent, no answer")
        if state in ("dead", "discarded"):
            raise ConnectionError

    job = await rd.enqueue("work", {"a": 1}, idempotency_key="k")
    if state != "waiting":
        await soon(rd.drain())
    if state == "discarded":
        await rd.dead.discard(job.id)
    assert (await job.refresh()).state == state
    return job.id


@pytest.mark.behaviour("000-61", "C6")
@pytest.mark.parametrize("state", ["waiting", "held", "done", "dead", "discarded"])
async def test_whatever_its_state_a_repeat_gives_the_same_job(
    rd: Redrive, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    id = await _bring_to(rd, state)
    caplog.clear()
    again = await rd.enqueue("work", {"a": 1}, idempotency_key="k")
    assert (again.id, again.duplicate, again.state) == (id, True, state)
    assert bool(_warnings(caplog, "does not run it again")) == (state in ("dead", "held", "discarded"))
    assert await soon(rd.drain()) == (1 if state == "waiting" else 0)


async def test_a_repeat_may_bring_back_the_dead(rd: Redrive) -> None:
    id = await _bring_to(rd, "dead")
    again = await rd.enqueue("work", {"a": 1}, idempotency_key="k", on_duplicate="redrive")
    assert (again.id, again.duplicate, again.state) == (id, True, "waiting")
    assert (await rd.jobs.get(id)).grants == 1


async def test_two_who_bring_back_the_same_are_both_told_that_it_is_back(rd: Redrive) -> None:
    id = await _bring_to(rd, "dead")
    options = {"idempotency_key": "k", "on_duplicate": "redrive"}
    both = await asyncio.gather(*[rd.enqueue("work", {"a": 1}, **options) for _ in range(2)])
    assert [(one.id, one.state) for one in both] == [(id, "waiting")] * 2
    assert (await rd.jobs.get(id)).grants == 1


async def test_one_of_many_that_must_stay_dead_is_refused_alone(rd: Redrive) -> None:
    @rd.task(max_attempts=1)
    async def fail(n: int) -> None:
        raise ValueError

    items = [Item({"n": n}, idempotency_key=str(n)) for n in (1, 2, 2)]
    await rd.enqueue_many("fail", items)
    await soon(rd.drain())
    for _ in range(MAX_GRANTS):
        await rd.enqueue_many("fail", items[:1], on_duplicate="redrive")
        await soon(rd.drain())
    new = Item({"n": 3}, idempotency_key="3")
    many = await rd.enqueue_many("fail", [*items, new], on_duplicate="redrive")
    assert (many.accepted, many.duplicates, list(many.refused), many.ids[0]) == (3, 2, [0], None)
    assert "fix the cause" in many.refused[0]
    assert [(await rd.jobs.get(str(id))).state for id in many.ids[1:]] == ["waiting"] * 3


@pytest.mark.parametrize("how", ["enqueue", "enqueue_many", "submit", "call", "retry"])
async def test_no_program_brings_back_what_may_have_landed(rd: Redrive, how: str) -> None:
    """A worker died while it ran: whether it was paid, only a person can see."""
    paid: list[int] = []

    @rd.task(max_attempts=1)
    async def pay(order: int) -> None:
        paid.append(order)

    options = {"idempotency_key": "k", "on_duplicate": "redrive"}
    job = await pay.options(idempotency_key="k", on_lost="dead_letter").enqueue(7)
    attempts = AttemptRunner(rd.store, rd.registry, rd.clock, Threads())
    (claimed,) = (await rd.store.claim(Wanted(slots=1), "killed", rd.clock.now())).jobs
    await rd.store.apply([Commit((attempts.settle_lost(claimed, alone=False),))])
    assert (await job.refresh()).because == "outcome_unknown"
    if how == "enqueue":
        with pytest.raises(JobNotReady, match=f"redrive resolve {job.id[-8:]}"):
            await rd.enqueue("pay", {"order": 7}, **options)
    elif how == "enqueue_many":
        assert "redrive resolve" in (await rd.enqueue_many("pay", [{"order": 7}], **options)).refused[0]
    elif how == "submit":
        with pytest.raises(JobNotReady):
            await rd.submit("pay", {"order": 7}, **options)
    else:
        again = rd.retry(job.id) if how == "retry" else rd.call("pay", {"order": 7}, **options)
        told = await soon(again)
        assert told.status == "failed" and "redrive resolve" in str(told.message)
    await soon(rd.drain())
    assert ((await job.refresh()).state, paid) == ("dead", [])
    await rd.dead.redrive(job.id, who="ann", why="the bank never saw it")
    await soon(rd.drain())
    assert paid == [7]


async def test_a_repeat_may_be_refused(rd: Redrive) -> None:
    id = await _bring_to(rd, "done")
    with pytest.raises(KeyReused, match="done") as refused:
        await rd.enqueue("work", {"a": 1}, idempotency_key="k", on_duplicate="raise")
    assert id in str(refused.value)


async def test_a_task_may_make_its_keys_from_the_payload(rd: Redrive) -> None:
    @rd.task(idempotency_key="feedback_{feedback_id}")
    async def feedback(feedback_id: int, text: str = "") -> None: ...

    first = await feedback.enqueue(7, text="good")
    assert first.job.key == "feedback_7"
    assert (await feedback.enqueue(feedback_id=7, text="good")).duplicate
    assert not (await feedback.enqueue(8)).duplicate
    own = await feedback.options(idempotency_key="mine").enqueue(7)
    assert own.job.key == "mine"


async def test_a_task_makes_its_key_by_whatever_way_it_is_handed_in(rd: Redrive) -> None:
    @rd.task(idempotency_key="feedback_{n}")
    async def give(n: int, text: str = "") -> None: ...

    first = await give.enqueue(1)
    assert (await rd.enqueue("give", {"n": 1})).id == first.id
    assert (await rd.enqueue("give", {"n": 1}, idempotency_key="another")).id != first.id
    assert (await rd.submit("give", {"n": 1})).operation_id == first.id
    many = await rd.enqueue_many("give", [{"n": 1}, {"n": 2}, {"n": 2}, Item({"n": 2}, priority="high"), "rubbish"])
    assert many.ids[0] == first.id and many.ids[1] == many.ids[2] == many.ids[3] != first.id
    assert many.duplicates == 3
    assert list(many.refused) == [4]
    with pytest.raises(InvalidInput):
        await rd.enqueue("give", {"text": "no n"})


async def test_a_key_is_made_of_what_the_task_will_see(rd: Redrive) -> None:
    class Order(msgspec.Struct):
        id: int

    @rd.task(idempotency_key="order_{order.id}_{at:%d}")
    async def ship(order: Order, at: datetime) -> None: ...

    first = await ship.enqueue(Order(7), datetime(2026, 1, 31, tzinfo=UTC))
    by_name = {"order": {"id": 7}, "at": "2026-01-31T00:00:00Z"}
    assert (first.job.key, (await rd.enqueue("ship", by_name)).id) == ("order_7_31", first.id)
    assert (await rd.enqueue_many("ship", [by_name])).ids == [first.id]
    with pytest.raises(InvalidPayload, match="unknown field `orders`"):
        await rd.enqueue("ship", {"orders": {"id": 7}, "at": "2026-01-31T00:00:00Z"})


async def test_a_default_that_is_spelled_out_is_the_same_call(rd: Redrive) -> None:
    calls: list[tuple[int, bool, float | None]] = []

    @rd.task(idempotency_key="invoice_{number}")
    async def invoice(number: int, copy: bool = False, share: float | None = None) -> None:
        calls.append((number, copy, share))

    first = await invoice.enqueue(7)
    for again in (
        invoice.enqueue(7, False),
        invoice.enqueue(7, share=None),
        rd.enqueue("invoice", {"number": 7, "copy": False}),
    ):
        repeated = await again
        assert (repeated.id, repeated.duplicate) == (first.id, True)
    for other in ((7, True), (7, 0), (7, False, 1.0)):
        with pytest.raises(InvalidInput):
            await invoice.enqueue(*other)
    await soon(rd.drain())
    assert calls == [(7, False, None)]


async def test_a_key_of_a_parameter_without_an_annotation(rd: Redrive) -> None:
    class Order:
        id = 7

        def __init__(self) -> None:
            self.kept = 1

        def model_dump(self, **_: object) -> dict[str, int]:
            return {"kept": 1}

    @rd.task(idempotency_key="order_{order.id}")
    async def ship(order: Any) -> None: ...

    assert (await ship.enqueue(Order())).job.key == "order_7"


async def test_a_template_that_does_not_fit_is_refused(rd: Redrive) -> None:
    with pytest.raises(InvalidOption, match="missing") as refused:

        @rd.task(idempotency_key="x_{missing}")
        async def never(a: int) -> None: ...

    assert refused.value.field == "idempotency_key"

    @rd.task(idempotency_key="x_{missing}")
    async def work(a: int, **more: int) -> None: ...

    assert (await work.enqueue(1, missing=2)).job.key == "x_2"
    with pytest.raises(InvalidOption, match="missing") as refused:
        await work.enqueue(1)
    assert refused.value.field == "idempotency_key"


async def test_a_key_outlives_retention(rd: Redrive, clock: FakeClock) -> None:
    id = await _bring_to(rd, "done")
    clock.advance(15 * 86400)
    await soon(rd.make_scheduler(rd.make_worker()).prune())
    assert (await rd.jobs.get(id)).payload is None
    again = await rd.enqueue("work", {"a": 1}, idempotency_key="k")
    assert (again.id, again.duplicate) == (id, True)


# Many at once --------------------------------------------------------------------------------------------------------


async def test_many_are_accepted_in_order(rd: Redrive) -> None:
    many = await rd.enqueue_many("work", ({"n": n} for n in range(2_500)))
    assert many and many.accepted == 2_500 and many.duplicates == 0
    stored = [await rd.jobs.get(str(id)) for id in (many.ids[0], many.ids[1_200], many.ids[-1])]
    assert [job.arguments for job in stored] == [{"n": 0}, {"n": 1_200}, {"n": 2_499}]
    assert (await rd.stats())["accepted"] == 2_500


async def test_each_of_many_is_accepted_or_refused_by_itself(rd: Redrive) -> None:
    @rd.task
    async def work(n: int) -> None: ...

    items: list[Any] = [
        {"n": 1}, {"n": "x"}, Item({"n": 2}, priority="urgent"), Item({"n": 3}, priority="high"), 5,
        {"n": float("nan")}, {"n": 4},
    ]  # fmt: skip
    many = await rd.enqueue_many("work", items)
    assert not many
    assert sorted(many.refused) == [1, 2, 4, 5]
    assert [id is None for id in many.ids] == [False, True, True, False, True, True, False]
    assert many.accepted == 3
    assert "priority" in many.refused[2] and "payload" in many.refused[4]
    assert (await rd.jobs.get(str(many.ids[3]))).priority_name == "high"
    assert (await rd.stats())["accepted"] == 3


async def test_many_with_keys_are_safe_to_repeat(rd: Redrive) -> None:
    items = [Item({"n": n}, idempotency_key=f"k{n}") for n in range(50)]
    first = await rd.enqueue_many("work", items[:30], session_id="s")
    second = await rd.enqueue_many("work", items, session_id="s")
    assert (first.duplicates, second.duplicates) == (0, 30)
    assert second.ids[:30] == first.ids
    assert (await rd.stats())["accepted"] == 50
    changed = await rd.enqueue_many("work", [Item({"n": 99}, idempotency_key="k1"), {"n": 5}])
    assert list(changed.refused) == [0] and "k1" in changed.refused[0]


async def test_one_key_twice_in_one_call_is_one_job(rd: Redrive) -> None:
    events: list[redrive.BusEvent] = []
    rd.subscribe("enqueued", events.append)
    many = await rd.enqueue_many(
        "work",
        [
            Item({"n": 1}, idempotency_key="k"),
            Item({"n": 1}, idempotency_key="k"),
            Item({"n": 2}, idempotency_key="k"),
        ],
    )
    assert many.duplicates == 1
    assert list(many.refused) == [2]
    assert len(events) == 1
    assert (await rd.stats())["accepted"] == 1


async def test_of_one_key_twice_in_one_call_the_first_blob_stays(rd: Redrive) -> None:
    seen: list[bytes] = []

    @rd.task
    async def look(image: Blob) -> None:
        seen.append(image.data)

    items = [Item({"image": Blob(data)}, idempotency_key="k") for data in (b"first", b"other")]
    await rd.enqueue_many("look", items)
    await soon(rd.drain())
    assert seen == [b"first"]


async def test_none_at_all_is_fine(rd: Redrive) -> None:
    many = await rd.enqueue_many("work", [])
    assert many and many.ids == []
