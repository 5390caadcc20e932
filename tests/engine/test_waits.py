"""Waits that a server asks for: kept, told as they are, and learned once for everybody. Real HTTP, a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive.core.job import Job
from redrive.testing import Harness, harness
from tests.receiver import Receiver, Seen, answer, receiving

LOCAL: dict[str, Any] = {"allow": ["127.0.0.1"]}
OK = answer("200 OK")


class Limited:
    """A server that gives its answers in order, then 200 for ever."""

    def __init__(self, answers: Iterator[bytes]) -> None:
        self._answers = answers
        self.receiver = Receiver()

    async def talk(self, _: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(next(self._answers, OK))
        await writer.drain()

    @property
    def calls(self) -> int:
        return len(self.receiver.requests)

    @property
    def key(self) -> str:
        return f"host:127.0.0.1:{self.receiver.port}"


@asynccontextmanager
async def a_limited_server(*answers: bytes) -> AsyncIterator[Limited]:
    server = Limited(iter(answers))
    async with receiving(server.talk) as server.receiver:
        yield server


def slow_down(seconds: float) -> bytes:
    return answer("429 Slow down", retry_after=f"{seconds:g}")


async def send(rd: redrive.Redrive, server: Limited, number: int, **options: Any) -> list[str]:
    """One delivery after the other."""
    url = server.receiver.url("/in")
    return [(await rd.enqueue_http("POST", url, json={"n": n}, **options)).id for n in range(number)]


@pytest.fixture
def rd(tmp_path: Path) -> redrive.Redrive:
    return redrive.Redrive(tmp_path / "never-made.db", delivery=LOCAL)


# ---- one job


@pytest.mark.behaviour("R-2a")
@pytest.mark.parametrize("asked", [1800.0, 3600.0])
async def test_half_an_hour_and_an_hour_are_kept_and_told(rd: redrive.Redrive, asked: float) -> None:
    """A queue whose own waits end at 300 s, and two calls in all: it comes once too early for nobody."""
    async with a_limited_server(slow_down(asked)) as server, harness(rd) as t:
        (id,) = await send(rd, server, 1, queue="feedback")
        begun = t.clock.now()
        await t.advance(86_400)
        job = await rd.jobs.get(id)
    assert (job.state, job.attempts, server.calls) == ("done", 2, 2)
    first = job.history[0]
    waited = (job.started_at or 0.0) - begun
    assert asked <= waited <= asked * 1.1
    assert first.decision == f"rate_limited: asked to wait {asked:g} s; again in {waited:.0f} s."


@pytest.mark.behaviour("R-2a", "R-2c")
@pytest.mark.parametrize(("breakers", "attempts"), [({}, 2), ({"breaker_after": 0}, 5)], ids=["with", "without"])
async def test_hourly_limits_make_no_caller_give_up(
    rd: redrive.Redrive, breakers: dict[str, int], attempts: int
) -> None:
    """A call's job may fail for half an hour. The hours that a server asked for are not its failing."""
    async with a_limited_server(*[slow_down(3600)] * 4) as server, harness(rd) as t:

        @rd.task("ask", **breakers)
        async def ask(url: str) -> str:
            import httpx2

            async with httpx2.AsyncClient() as client:
                (await client.get(url)).raise_for_status()
            return "answered"

        outcome = await rd.call("ask", {"url": server.receiver.url("/")})
        assert outcome.status == "queued_for_retry"
        await t.advance(86_400)
        job = await rd.jobs.get(outcome.operation_id or "")
    assert (job.state, job.attempts, server.calls) == ("done", attempts, 5)
    assert all("asked to wait 3600 s" in str(attempt.decision) for attempt in job.history if attempt.failure)


@pytest.mark.behaviour("R-2b")
async def test_twenty_hours_are_waited_for_in_the_delayed_lane(rd: redrive.Redrive) -> None:
    async with a_limited_server(slow_down(72_000)) as server, harness(rd) as t:
        (id,) = await send(rd, server, 1)
        await t.run()
        job = await rd.jobs.get(id)
    assert (job.state, job.because, job.lane) == ("dead", "asked_to_wait", "delayed")
    assert "asked to wait 72000 s, longer than max_wait 21600 s" in str(job.history[0].decision)
    assert "comes back by itself" in str(job.recommendation)


# ---- everybody


@pytest.mark.behaviour("R-2d", "R-2e")
async def test_one_job_learns_it_for_all_that_call_the_same_host(rd: redrive.Redrive) -> None:
    async with a_limited_server(slow_down(1800)) as server, a_limited_server() as other, harness(rd) as t:
        (first,) = await send(rd, server, 1)
        await t.run()
        others = await send(rd, server, 30)
        elsewhere = await send(rd, other, 1)
        await t.advance(1700)
        assert (server.calls, other.calls) == (1, 1), "nobody else asks to learn it"
        parked = [await rd.jobs.get(id) for id in others]
        assert {(job.state, job.because, job.attempts) for job in parked} == {("held", "circuit_open", 0)}
        (breaker,) = await rd.breakers()
        assert (breaker.key, breaker.cause, breaker.asked) == (server.key, "rate_limited", 1800.0)
        (issue,) = [issue for issue in (await rd.health()).issues if "left alone" in issue]
        assert "30 parked" in issue
        await t.advance(600)
        jobs = [await rd.jobs.get(id) for id in (first, *others, *elsewhere)]
        assert await rd.breakers() == []
    assert {job.state for job in jobs} == {"done"}
    assert [job.attempts for job in jobs] == [2, *[1] * 31]
    assert server.calls == 32, "one call of each, and the one that learned it"


@pytest.mark.behaviour("R-2e")
async def test_a_limit_that_lasts_is_learned_by_one_probe_at_no_cost(rd: redrive.Redrive) -> None:
    async with a_limited_server(slow_down(1800), slow_down(600)) as server, harness(rd) as t:
        await send(rd, server, 1)
        await t.run()
        await send(rd, server, 10)
        await t.advance(2300)
        assert server.calls == 2, "the first, and one that looked after half an hour"
        await t.advance(600)
        jobs = await t.jobs()
    assert {job.state for job in jobs} == {"done"}
    assert sorted(job.attempts for job in jobs) == [*[1] * 10, 2], "who looked has used no attempt"


@pytest.mark.behaviour("R-2d")
async def test_the_last_attempt_of_a_limited_job_is_parked_and_not_buried(rd: redrive.Redrive) -> None:
    async with a_limited_server(slow_down(1800)) as server, harness(rd) as t:
        (id,) = await send(rd, server, 1, max_attempts=1)
        await t.run()
        assert (await rd.jobs.get(id)).because == "circuit_open"
        await t.advance(1900)
        assert (await rd.jobs.get(id)).state == "done"


class RateLimitError(Exception):
    """As the anthropic package makes them; without a request there is no host to be seen."""

    def __init__(self, seconds: float = 1800.0) -> None:
        super().__init__("rate_limit_error")
        self.status_code, self.retry_after = 429, seconds


async def asked(rd: redrive.Redrive, t: Harness, error: Exception, **options: Any) -> tuple[list[Job], int]:
    """One job fails so, then ten more of the same task are there; after a while, how they stand and what was called."""
    calls = []

    @rd.task("ask", **options)
    async def ask(bot: int = 1) -> None:
        calls.append(bot)
        if len(calls) == 1:
            raise error

    await ask.enqueue()
    await t.run()
    for _ in range(10):
        await ask.enqueue()
    await t.advance(60)
    return await t.jobs(ask), len(calls)


@pytest.mark.behaviour("R-2d")
async def test_a_providers_limit_holds_for_jobs_that_never_ran(rd: redrive.Redrive) -> None:
    """Nothing is declared. The class says whose limit it is, and a task that asks a provider asks no other."""
    RateLimitError.__module__ = "anthropic"
    async with harness(rd) as t:
        jobs, calls = await asked(rd, t, RateLimitError())
        assert calls == 1
        assert [job.held_for for job in jobs[1:]] == ["provider:anthropic"] * 10
        await t.advance(3600)
        assert {job.state for job in await t.jobs()} == {"done"}


@pytest.mark.behaviour("R-2f")
@pytest.mark.parametrize(
    ("error", "options"),
    [
        (RateLimitError(), {"breaker_after": 0, "downstream": "anthropic"}),
        (type("Slow", (Exception,), {"status_code": 429, "retry_after": 1800.0})("slow down"), {}),
        (type("Slow", (Exception,), {"status_code": 429})("slow down"), {"downstream": "crm"}),
    ],
    ids=["no breakers", "no name for it", "no time"],
)
async def test_nothing_is_closed_without_breakers_a_name_or_a_time(
    rd: redrive.Redrive, error: Exception, options: dict[str, Any]
) -> None:
    async with harness(rd) as t:
        jobs, calls = await asked(rd, t, error, **options)
        assert calls >= 11
        assert {job.state for job in jobs[1:]} == {"done"}
        assert await rd.breakers() == []


@pytest.mark.behaviour("R-2d", "R-2f")
async def test_another_credential_has_a_limit_of_its_own(rd: redrive.Redrive) -> None:
    called: list[int] = []

    @rd.task(downstream=lambda bot: f"github:bot-{bot}")
    async def sync(bot: int) -> None:
        called.append(bot)
        if called == [1]:
            raise RateLimitError(3600.0)

    async with harness(rd) as t:
        await sync.enqueue(1)
        await t.run()
        for bot in (1, 2):
            await sync.enqueue(bot)
        await t.advance(60)
        assert called == [1, 2]
        (breaker,) = await rd.breakers()
        assert breaker.key == "github:bot-1"
        await t.advance(7200)
        assert sorted(called) == [1, 1, 1, 2]


@pytest.mark.behaviour("R-2e")
async def test_a_person_may_know_that_a_limit_is_over(rd: redrive.Redrive) -> None:
    async with a_limited_server(slow_down(1800)) as server, harness(rd) as t:
        await send(rd, server, 1)
        await t.run()
        others = await send(rd, server, 3)
        await t.run()
        assert await rd.close_breaker(server.key)
        await t.advance(60)
        assert {(await rd.jobs.get(id)).state for id in others} == {"done"}
