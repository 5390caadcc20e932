"""A downstream that is really down and a worker with the settings it has by itself: what everybody sees of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import BusEvent, Pain, Redrive
from tests.receiver import answer
from tests.support import FakeClock, eventually, opened

LOCAL = {"allow": ["127.0.0.1"]}
"""The one setting that a test needs: deliveries to this machine are refused by default."""
LONG = 90.0
"""Seconds that a real recovery may take: a breaker's pause, a probe, the release of what is parked."""


class Downstream:
    """A server on a port of its own that goes down and comes back there."""

    def __init__(self) -> None:
        self.port = 0
        self.delivered: Counter[str] = Counter()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
        self.delivered[head.partition("idempotency-key: ")[2].partition("\r\n")[0]] += 1
        writer.write(answer("200 OK"))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def a_downstream_that_is_down() -> AsyncIterator[Downstream]:
    found = Downstream()
    await found.up()
    await found.down()
    try:
        yield found
    finally:
        await found.down()


async def send(rd: Redrive, downstream: Downstream, number: int, queue: str) -> list[str]:
    """One delivery after the other, as calls come in: each is tried, and fails, before many more are due."""
    ids = []
    for n in range(number):
        job = await rd.enqueue_http("POST", downstream.url, json={"n": n}, queue=queue, idempotency_key=f"{queue}-{n}")
        ids.append(job.id)
    return ids


async def numbers_of(rd: Redrive, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in (await rd.stats())["queues"] if each["name"] == queue)
    return found


async def has_tried(rd: Redrive, ids: list[str]) -> bool:
    """Every one has failed once or is parked: nothing is due and nothing runs."""
    totals = (await rd.stats())["totals"]
    return totals["due"] == totals["running"] == 0 and totals["waiting"] + totals["held"] == len(ids)


# ---- seen


@pytest.mark.behaviour("000-5")
async def test_a_failure_that_is_retried_shows_in_statistics_events_and_health(
    database: Path, clock: FakeClock
) -> None:
    heard: list[BusEvent] = []
    async with a_downstream_that_is_down() as downstream, opened(database, clock=clock, delivery=LOCAL) as rd:
        rd.subscribe("*", heard.append)
        assert ((await rd.health()).status, (await rd.health()).total_pending) == ("healthy", 0)
        async with rd.worker():
            ids = await send(rd, downstream, 2, "feedback")
            await eventually(lambda: [event.type for event in heard].count("retry") == 2, "the retries are told")
            jobs = [await rd.jobs.get(id) for id in ids]
            assert {(job.state, job.attempts, job.detail) for job in jobs} == {("waiting", 1, "network")}, "not dead"
            told = [(event.queue, event.job_id, event.attempt) for event in heard if event.type == "retry"]
            assert sorted(told) == sorted(("feedback", id, 1) for id in ids)
            assert (await rd.stats())["runtime"]["feedback"] == {"enqueued": 2, "retry": 2}
            health = await rd.health()
            assert (health.status, health.total_pending, health.total_dead_letter) == ("degraded", 2, 0)
            assert [issue for issue in health.issues if "2 retrying after failures" in issue], health.issues
            numbers = await numbers_of(rd, "feedback")
            assert (numbers["waiting"], numbers["retrying"], numbers["pending"], numbers["dead"]) == (2, 2, 2, 0)


@pytest.mark.behaviour("000-5")
async def test_a_failure_that_ends_as_a_dead_letter_shows_in_statistics_events_and_health(
    database: Path, clock: FakeClock
) -> None:
    """The preset queue's own five attempts, made by a worker as their times come."""
    heard: list[str] = []
    async with a_downstream_that_is_down() as downstream, opened(database, clock=clock, delivery=LOCAL) as rd:
        rd.subscribe("*", lambda event: heard.append(event.type))
        async with rd.worker() as worker:
            (id,) = await send(rd, downstream, 1, "feedback")
            for attempt in range(1, 6):

                async def tried(attempt: int = attempt) -> bool:
                    return (await rd.jobs.get(id)).attempts == attempt

                await eventually(tried, f"attempt {attempt}")
                clock.advance(max(0.0, (await rd.jobs.get(id)).run_at - clock.now()))
                worker.nudge()
            health = await rd.health()
            numbers = await numbers_of(rd, "feedback")
    moves = [type for type in heard if type not in ("group_alert", "pain")]  # a look around may come in between
    assert moves == ["enqueued", *["retry"] * 4, "dead_letter"]
    assert (health.status, health.total_pending, health.total_dead_letter) == ("degraded", 0, 1)
    assert "feedback: 1 comes back by itself, in 10 min" in health.issues
    assert (numbers["dead"], numbers["comes_back"], numbers["waiting"]) == (1, 1, 0)


async def test_jobs_for_later_are_pending_only_after_a_failure(database: Path, clock: FakeClock) -> None:
    """What is planned for later is no backlog. What failed and waits for its next try is one, and so is what is due."""
    async with opened(database, clock=clock) as rd:

        @rd.task
        async def post(text: str) -> None:
            raise ConnectionError("the receiver is down")

        for day in range(30):
            await post.options(delay=(day + 1) * 86_400).enqueue("planned")
        health = await rd.health()
        assert (health.status, health.total_pending, health.issues) == ("healthy", 0, [])
        await rd.enqueue_many("post", [{"text": "now"}] * 3)
        assert (await rd.health()).total_pending == 3, "due"
        async with rd.worker():
            await eventually(lambda: _all_failed_once(rd, 3), "each has failed once")
            health = await rd.health()
    assert (health.status, health.total_pending) == ("degraded", 3), "failed, and none of the planned ones"


async def _all_failed_once(rd: Redrive, number: int) -> bool:
    waiting = (await rd.jobs.list(state="waiting", limit=100)).jobs
    return sum(job.attempts == 1 for job in waiting) == number


# ---- felt


@pytest.mark.behaviour("000-77")
async def test_more_than_a_hundred_pending_hurt_the_more_the_more_they_are(database: Path, clock: FakeClock) -> None:
    """100 deliveries that wait for a downstream are quiet, 101 are a signal, 300 a stronger one, each once.

    Every one of them has been tried, or parked by the breaker, before anything looks: none is due.
    """
    felt: list[Pain] = []
    expected = {"feedback": 100, "analytics_ingest": 101, "learning_capture": 300}
    async with (
        a_downstream_that_is_down() as downstream,
        opened(database, clock=clock, preset="agent_os", delivery=LOCAL, signals=[felt.append]) as rd,
    ):
        ids = [id for queue, number in expected.items() for id in await send(rd, downstream, number, queue)]
        async with rd.worker(scheduler=False):
            await eventually(lambda: has_tried(rd, ids), "each has failed or is parked")
        for _ in range(2):
            async with rd.worker():
                await eventually(lambda: len(_depths(felt)) >= 2, "two queues hurt")
        pending = {queue["name"]: queue["pending"] for queue in (await rd.stats())["queues"]}
    assert pending == expected
    assert sorted(pain.queue for pain in _depths(felt)) == ["analytics_ingest", "learning_capture"]
    by_queue = {pain.queue: pain for pain in _depths(felt)}
    assert 0 < by_queue["analytics_ingest"].severity < by_queue["learning_capture"].severity <= 1
    assert "300" in by_queue["learning_capture"].message


def _depths(felt: list[Pain]) -> list[Pain]:
    return [pain for pain in felt if pain.kind == "depth"]


@pytest.mark.behaviour("000-79")
async def test_a_signal_has_the_downstream_restarted_and_the_queue_empties_by_itself(database: Path) -> None:
    """The sink is what heals: nobody else does anything, and every delivery arrives once."""
    async with a_downstream_that_is_down() as downstream:
        restarted: list[Pain] = []

        async def heal(pain: Pain) -> None:
            if pain.kind == "depth" and not restarted:
                restarted.append(pain)
                await downstream.up()

        async with opened(database, preset="agent_os", delivery=LOCAL, signals=[heal]) as rd:
            async with rd.worker(scheduler=False):
                ids = await send(rd, downstream, 101, "analytics_ingest")
                await eventually(lambda: has_tried(rd, ids), "each has failed or is parked")

            async def empty() -> bool:
                totals = (await rd.stats())["totals"]
                return bool(totals["done"] == 101)

            async with rd.worker():
                await eventually(lambda: bool(restarted), "the depth is felt")
                await eventually(empty, "all are delivered", LONG)
            totals = (await rd.stats())["totals"]
            health = await rd.health()
    assert restarted[0].queue == "analytics_ingest"
    assert (totals["waiting"], totals["running"], totals["held"], totals["dead"]) == (0, 0, 0, 0)
    assert (health.status, health.total_pending) == ("healthy", 0)
    assert downstream.delivered == {f"analytics_ingest-{n}": 1 for n in range(101)}


@pytest.mark.behaviour("000-69")
async def test_running_out_of_tries_is_one_move_one_event_each_and_one_signal(database: Path, clock: FakeClock) -> None:
    """Eleven jobs fail their five attempts under a worker. Whoever looks meanwhile sees each of them in one place."""
    felt: list[Pain] = []
    events: list[str] = []
    seen: set[tuple[int, int]] = set()
    async with opened(database, clock=clock, signals=[felt.append]) as rd, opened(database, clock=clock) as other:
        rd.subscribe("dead_letter", lambda event: events.append(str(event.job_id)))

        @rd.task(comebacks=())
        async def charge(card: str) -> None:
            raise TimeoutError(f"no answer for {card}")  # a cause of its own for each: no breaker takes part

        ids = [(await charge.enqueue("card " + chr(97 + n) * 5)).id for n in range(11)]

        async def look() -> bool:
            """What another connection sees at one moment, in one answer."""
            totals = (await other.stats())["totals"]
            live = totals["waiting"] + totals["running"] + totals["held"]
            seen.add((live, totals["dead"]))
            return bool(totals["dead"] == 11)

        def hurt() -> bool:
            """Time goes on: the scheduler may have looked for pains at the very moment of the last death."""
            clock.advance(0.1)
            return "dead_letters" in {pain.kind for pain in felt}

        async with rd.worker() as worker:
            while not await look():
                due = [job.run_at for job in (await rd.jobs.list(state="waiting")).jobs]
                clock.advance(max(0.0, min(due, default=0.0) - clock.now()))
                worker.nudge()
            await eventually(hurt, "the dead letters hurt")
        assert all(live + dead == 11 for live, dead in seen), sorted(seen)
        assert len(seen) > 1
        jobs = [await rd.jobs.get(id) for id in ids]
        listed = [job.id for job in (await rd.dead.list(limit=100)).jobs]
        moves = [[move.move for move in await rd.jobs.story(id)] for id in ids]
    assert {(job.state, job.because, job.attempts) for job in jobs} == {("dead", "attempts_exhausted", 5)}
    assert sorted(events) == sorted(ids) == sorted(listed)
    assert all(told.count("buried") == 1 and told[-1] == "buried" for told in moves)
    (pain,) = [pain for pain in felt if pain.kind == "dead_letters"]
    assert (pain.queue, pain.severity >= 0.7, "11" in pain.message) == ("charge", True, True)
