"""HTTP deliveries end to end: a real receiver that goes down and comes back."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import JobDead, Redrive
from tests.receiver import Seen, answer, receiving
from tests.support import DEADLINE, eventually, soon

LOCAL = {"allow": ["127.0.0.1"], "credentials": ["HOOK_TOKEN"]}
QUICK = {"feedback": {"base": 0.02, "cap": 0.05, "max_attempts": 500, "breaker_after": 0}}


@pytest.fixture
async def sender(database: Path) -> AsyncIterator[Redrive]:
    async with Redrive(database, delivery=LOCAL, queues=QUICK) as rd:
        yield rd


async def _unused_port() -> int:
    async with receiving(b"") as receiver:
        return receiver.port


@pytest.mark.behaviour("000-59", "000-72")
async def test_a_delivery_needs_no_task_of_ones_own(sender: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_TOKEN", "Bearer s3cret-canary")
    async with receiving(answer("201 Created", b'{"id":7}', content_type="application/json")) as receiver:
        job = await sender.enqueue_http(
            "PUT", receiver.url("/notes/1"), json={"text": "é"}, headers={"X-Kind": "note"}, auth="env:HOOK_TOKEN",
            timeout=5, queue="feedback", idempotency_key="feedback_1", session_id="s1",
        )  # fmt: skip
        assert (await job.refresh()).queue == "feedback"
        async with sender.worker():
            result = await job.result(DEADLINE)
    (seen,) = receiver.requests
    assert (seen.method, seen.path, json.loads(seen.body)) == ("PUT", "/notes/1", {"text": "é"})
    assert (seen.headers["x-kind"], seen.headers["authorization"]) == ("note", "Bearer s3cret-canary")
    assert seen.headers["idempotency-key"] == "feedback_1"
    assert (result["status"], result["body"]) == (201, '{"id":7}')
    assert "s3cret" not in str(await job.refresh())


@pytest.mark.behaviour("R-9b")
@pytest.mark.parametrize("shape", ["positions", "names", "ours", "blocking"])
async def test_a_delivery_takes_the_shape_of_the_document(sender: Redrive, shape: str) -> None:
    """`enqueue_http("feedback", "POST", url, body=outcome)`, with names or without, sends what `json=` sends."""
    outcome = {"vote": "down", "é": [1, None]}
    async with receiving(answer("200 OK")) as receiver:
        url, key = receiver.url("/outcomes"), "feedback_7"
        if shape == "positions":
            job = await sender.enqueue_http("feedback", "POST", url, body=outcome, idempotency_key=key)
        elif shape == "names":
            job = await sender.enqueue_http(queue="feedback", method="POST", url=url, body=outcome, idempotency_key=key)
        elif shape == "ours":
            job = await sender.enqueue_http("POST", url, json=outcome, queue="feedback", idempotency_key=key)
        else:
            handle = await asyncio.to_thread(_blocking, sender, url, outcome, key)
            job = await sender.enqueue_http("POST", url, json=outcome, queue="feedback", idempotency_key=key)
            assert (job.id, job.duplicate) == (handle, True), "both shapes are one request"
        assert (job.job.queue, job.job.key) == ("feedback", key)
        async with sender.worker():
            await job.result(DEADLINE)
    (seen,) = receiver.requests
    assert (seen.method, seen.path, json.loads(seen.body)) == ("POST", "/outcomes", outcome)
    assert seen.headers["content-type"] == "application/json"


def _blocking(sender: Redrive, url: str, outcome: dict[str, Any], key: str) -> str:
    with sender.blocking() as q:
        return q.enqueue_http("feedback", "POST", url, body=outcome, idempotency_key=key).id


@pytest.mark.behaviour("R-9b")
async def test_text_stays_text_and_a_list_is_json(sender: Redrive) -> None:
    async with receiving(answer("200 OK")) as receiver:
        jobs = [await sender.enqueue_http("feedback", "POST", receiver.url(), body=body) for body in ("{}", [1, {}])]
        async with sender.worker(concurrency=1):
            for job in jobs:
                await job.result(DEADLINE)
    sent = {seen.body: seen.headers["content-type"] for seen in receiver.requests}
    assert sent == {b"{}": "text/plain; charset=utf-8", b"[1,{}]": "application/json"}


@pytest.mark.behaviour("R-9b")
@pytest.mark.parametrize(
    ("line", "said", "words"),
    [
        (("POST", "http://a.example/"), {"json": {}, "body": {"a": 1}}, "body: is given, and so is json; keep one"),
        (("POST", "http://a.example/"), {"json": {"a": 1}, "body": "x"}, "body: is given, and so is json; keep one"),
        (("feedback", "POST", "http://a.example/"), {"queue": "x"}, "queue: is given twice; keep one"),
        (("POST", "http://a.example/"), {"url": "http://b.example/"}, "url: is given twice; keep one"),
        (("POST",), {}, "url: is missing; give method and url"),
        ((), {"url": "http://a.example/"}, "method: is missing; give method and url"),
        (("q", "POST", "http://a/", "x"), {}, "enqueue_http: takes queue, method and url; name every other argument"),
        (("http://a.example/", "POST"), {}, "method: must be an HTTP method such as POST, of at most 32 characters"),
    ],
)  # fmt: skip
async def test_what_could_never_be_sent_is_refused_in_one_error(
    sender: Redrive, line: tuple[str, ...], said: dict[str, Any], words: str
) -> None:
    with pytest.raises(redrive.InvalidInput) as refused:
        await sender.enqueue_http(*line, **said)
    assert str(refused.value) == words
    assert (await sender.jobs.list()).jobs == []


@pytest.mark.behaviour("000-1", "000-4", "000-9")
async def test_after_an_outage_every_delivery_has_arrived(sender: Redrive) -> None:
    """Connection refused, then 503, then up: each arrives once as a success, under one key."""
    port = await _unused_port()
    jobs = [
        await sender.enqueue_http(
            "POST", f"http://127.0.0.1:{port}/", json={"n": n}, queue="feedback", idempotency_key=f"k{n}"
        )
        for n in range(5)
    ]
    moods = ["503 Down", "500 Broken", "200 OK"]
    answered: list[tuple[str, str]] = []

    async def moody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        key = head.partition("idempotency-key: ")[2].partition("\r\n")[0]
        await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        answered.append((key, moods[0][:3]))
        writer.write(answer(moods[0]))
        await writer.drain()
        writer.close()

    async with sender.worker():
        for job in jobs:
            await eventually(_failed_often(job, 2), "refused connections are counted as attempts")
        server = await asyncio.start_server(moody, "127.0.0.1", port)
        try:
            for _ in range(2):
                reached = len(answered) + 5
                await eventually(lambda: len(answered) >= reached)  # noqa: B023
                moods.pop(0)
            for job in jobs:
                assert (await job.result(DEADLINE))["status"] == 200
        finally:
            server.close()
    succeeded = sorted(key for key, status in answered if status == "200")
    assert succeeded == [f"k{n}" for n in range(5)]
    totals = (await sender.stats())["totals"]
    assert (totals["done"], totals["dead"], totals["waiting"], totals["running"]) == (5, 0, 0, 0)
    story = (await jobs[0].refresh()).history
    assert {attempt.cause.detail for attempt in story if attempt.cause} >= {"network", "server_error"}


def _failed_often(job: redrive.JobHandle[object], times: int) -> object:
    async def failed() -> bool:
        return (await job.refresh()).attempts >= times

    return failed


@pytest.mark.behaviour("000-9")
@pytest.mark.parametrize(
    ("status", "because"),
    [("404 Not Found", "permanent"), ("422 Unprocessable", "permanent"), ("302 Found", "permanent")],
)
async def test_an_answer_that_never_heals_is_kept_at_once(sender: Redrive, status: str, because: str) -> None:
    async with receiving(answer(status)) as receiver:
        job = await sender.enqueue_http("POST", receiver.url(), json={}, queue="feedback")
        async with sender.worker():
            with pytest.raises(JobDead) as died:
                await job.result(DEADLINE)
    assert died.value.reason == because
    assert len(receiver.requests) == 1
    dead = await job.refresh()
    assert dead.attempts == 1 and dead.history[0].failure is not None
    assert dead.history[0].failure.status == int(status[:3])


async def test_the_receiver_says_when_to_come_back(rd: Redrive, database: Path) -> None:
    from tests.support import FakeClock

    clock = FakeClock()
    clock.luck = 0.0
    sender = Redrive(database, delivery=LOCAL, clock=clock)
    async with sender, receiving(answer("429 Slow down", retry_after="120")) as receiver:
        job = await sender.enqueue_http("POST", receiver.url(), json={})
        await soon(sender.drain())
        waiting = await job.refresh()
    assert (waiting.state, waiting.detail, waiting.run_at) == ("waiting", "rate_limited", clock.now() + 120)


async def test_a_redriven_delivery_keeps_its_key_and_its_trace(sender: Redrive) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    mood = ["400 Bad Request"]

    async def talk(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(mood[0]))
        await writer.drain()

    async with receiving(talk) as receiver, sender.worker():
        payload = {"method": "POST", "url": receiver.url(), "json": {}}
        job = await sender.enqueue("redrive.http", payload, headers={"traceparent": trace})
        with pytest.raises(JobDead):
            await job.result(DEADLINE)
        mood[0] = "204 No Content"
        await sender.dead.redrive(job.id)
        await job.result(DEADLINE)
    assert {seen.headers["idempotency-key"] for seen in receiver.requests} == {job.id}
    assert {seen.headers["traceparent"] for seen in receiver.requests} == {trace}


@pytest.mark.behaviour("000-100")
async def test_a_slow_target_does_not_slow_enqueueing(sender: Redrive) -> None:
    """The receiver answers nobody; a thousand deliveries are accepted all the same while five hang."""
    hanging = asyncio.Event()

    async def never(seen: Seen, writer: asyncio.StreamWriter) -> None:
        hanging.set()
        await asyncio.Event().wait()

    async with receiving(never) as receiver:
        url = receiver.url()
        async with sender.worker(concurrency=5, grace=0.01):
            await sender.enqueue_http("POST", url, json={}, queue="feedback")
            await soon(hanging.wait())
            jobs = [await sender.enqueue_http("POST", url, json={"n": n}, queue="feedback") for n in range(50)]
            many = await sender.enqueue_many("redrive.http", [{"url": url}] * 950, queue="feedback")
        assert len(jobs) + many.accepted == 1_000
        assert receiver.connections <= 5
    assert (await sender.stats())["accepted"] == 1_001
