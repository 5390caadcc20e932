"""A wait that a server asked for is kept: no call before, done after, and the story tells the wait that was made."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from redrive import Redrive
from redrive.core.job import Job, State
from redrive.testing import Harness, harness
from tools.voices import StandIns

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
LATER = 1.101
"""At most a tenth later than asked, never sooner."""


class Server:
    """Limits everybody until a time that it names."""

    def __init__(self, t: Harness, wait: float, **how: Any) -> None:
        self._t = t
        self.open_at = t.clock.now() + wait
        self.calls: list[float] = []
        self._how = how

    def ask(self, host: str = "api.example.com") -> str:
        now = self._t.clock.now()
        self.calls.append(now)
        with httpx.Client(transport=httpx.MockTransport(lambda request: self._answer(now))) as client:
            client.get(f"https://{host}/items").raise_for_status()
        return "ok"

    def _answer(self, now: float) -> httpx.Response:
        if now >= self.open_at:
            return httpx.Response(200)
        left = self.open_at - now
        match self._how.get("by", "seconds"):
            case "date":
                headers = {"Retry-After": formatdate(self.open_at, usegmt=True)}
            case "reset":
                headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(self.open_at))}
            case _:
                headers = {"Retry-After": str(int(left))}
        return httpx.Response(int(self._how.get("status", 429)), headers=headers, text="slow down")


@pytest.fixture
async def t(database: Path) -> AsyncIterator[Harness]:
    async with harness(Redrive(database)) as t:
        yield t


@pytest.fixture
def rd(t: Harness) -> Redrive:
    return t._rd


def durations(text: str) -> list[float]:
    """Every duration that a text names, in seconds."""
    units = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": MINUTE, "minute": MINUTE, "h": HOUR, "hour": HOUR, "d": DAY,
             "day": DAY}  # fmt: skip
    found = re.findall(r"(\d[\d,]*(?:\.\d+)?) ?(s|sec|seconds?|min|minutes?|h|hours?|d|days?)\b", text)
    return [float(number.replace(",", "")) * units[unit if unit == "s" else unit.rstrip("s")] for number, unit in found]


async def words_of(rd: Redrive, job: Job) -> str:
    """Everything that the story and the job say about what happens next."""
    story = " ".join(event.why or "" for event in await rd.jobs.story(job.id))
    told = " ".join([story, *(attempt.decision or "" for attempt in job.history), job.recommendation or ""])
    return re.sub(r"max_wait [\d,.]+ (s|min|h)\b", "max_wait", told)


@pytest.mark.behaviour("R-17")
@pytest.mark.parametrize(
    "policy", [{}, {"breaker_after": 0}, {"cap": 60.0}], ids=["default", "no breaker", "small cap"]
)
@pytest.mark.parametrize("agent", [None, "cto"])
@pytest.mark.parametrize("wait", [30 * MINUTE, HOUR, 20 * HOUR], ids=["30 min", "1 h", "20 h"])
async def test_a_wait_that_was_asked_for_is_kept_and_told(
    rd: Redrive, t: Harness, wait: float, agent: str | None, policy: dict[str, Any]
) -> None:
    server = Server(t, wait)

    @rd.task("fetch", **policy)
    async def fetch() -> str:
        return server.ask()

    start = t.clock.now()
    handle = await rd.enqueue("fetch", {}, **({"agent": agent} if agent else {}))
    await t.run()
    job = await handle.refresh()
    due = job.comes_back_at if job.state is State.dead else job.run_at
    assert due is not None
    assert server.open_at <= due <= start + wait * LATER
    if wait > 6 * HOUR:
        assert (job.state, job.lane) == (State.dead, "delayed"), "longer than max_wait: it is the time of its comeback"
    else:
        assert job.state in (State.waiting, State.held)
    told = durations(await words_of(rd, job))
    assert any(one == pytest.approx(due - start, rel=0.06) for one in told), (told, await words_of(rd, job))
    assert [one for one in told if one < wait * 0.95] == [], "it names no shorter wait than the one it makes"
    await t.advance(wait * LATER + HOUR)
    assert (await handle.refresh()).state is State.done
    assert [at for at in server.calls[1:] if at < server.open_at] == [], "no call before the time asked for"
    assert len(server.calls) == 2


@pytest.mark.behaviour("R-17")
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("by", ["date", "reset"])
async def test_a_time_that_was_named_is_kept_in_every_spelling(rd: Redrive, t: Harness, by: str, status: int) -> None:
    if (by, status) == ("reset", 503):
        return  # a reset is a rate limit's
    server = Server(t, 50 * MINUTE, by=by, status=status)

    @rd.task("fetch")
    async def fetch() -> str:
        return server.ask()

    handle = await rd.enqueue("fetch", {})
    await t.advance(2 * HOUR)
    assert (await handle.refresh()).state is State.done
    assert [at for at in server.calls[1:] if at < server.open_at - 1] == []
    assert len(server.calls) == 2


@pytest.mark.behaviour("R-17a")
async def test_max_wait_says_how_long_a_job_waits_and_longer_ones_come_back(rd: Redrive, t: Harness) -> None:
    server = Server(t, HOUR)

    @rd.task("fetch", max_wait=10 * MINUTE)
    async def fetch() -> str:
        return server.ask()

    handle = await rd.enqueue("fetch", {})
    await t.run()
    job = await handle.refresh()
    assert (job.state, job.lane) == (State.dead, "delayed")
    assert server.open_at <= (job.comes_back_at or 0) <= server.open_at + 0.11 * HOUR
    await t.advance(2 * HOUR)
    assert (await handle.refresh()).state is State.done
    assert len(server.calls) == 2


@pytest.mark.behaviour("R-17a")
@pytest.mark.parametrize("breakers", [{}, {"breaker_after": 0}], ids=["breakers on", "breakers off"])
async def test_a_long_wait_is_kept_while_others_are_answered(rd: Redrive, t: Harness, breakers: dict[str, Any]) -> None:
    """Two accounts on one host: that one is answered again says nothing of the limit of the other."""
    long, short = Server(t, 20 * HOUR), Server(t, 30 * MINUTE)

    @rd.task("fetch", max_wait=10 * MINUTE, **breakers)
    async def fetch(account: str) -> str:
        return (long if account == "long" else short).ask()

    slow = await rd.enqueue("fetch", {"account": "long"})
    await t.run()
    quick = [await rd.enqueue("fetch", {"account": "short"}) for _ in range(3)]
    for _ in range(12):
        await t.advance(HOUR)
        quick.append(await rd.enqueue("fetch", {"account": "short"}))
    assert {(await handle.refresh()).state for handle in quick[:-1]} == {State.done}
    assert len(long.calls) == 1, "no call before the time asked for"
    await t.advance(DAY)
    assert (await slow.refresh()).state is State.done
    assert (len(long.calls), (await slow.refresh()).comebacks) == (2, 1)


@pytest.mark.behaviour("R-17b")
async def test_a_limit_closes_its_downstream_for_all_and_burns_nobodys_attempt(rd: Redrive, t: Harness) -> None:
    """Thirty jobs for a host that said 30 minutes: one call learns it, the others wait at no cost."""
    server = Server(t, 30 * MINUTE)

    @rd.task("fetch", downstream="host:api.example.com:443")
    async def fetch(number: int) -> str:
        return server.ask()

    first = await rd.enqueue("fetch", {"number": 0})
    await t.run()
    handles = [await rd.enqueue("fetch", {"number": number}) for number in range(1, 30)]
    await t.advance(29 * MINUTE)
    assert len(server.calls) == 1, "nobody else asked"
    assert {(await handle.refresh()).attempts for handle in handles} == {0}
    needed = {need.kind for need in (await rd.health()).needs}
    assert needed <= {"unattended"}, "between two steps of the harness no worker lives; else nothing needs a person"
    await t.advance(20 * MINUTE)
    assert {(await handle.refresh()).state for handle in [first, *handles]} == {State.done}
    assert len(server.calls) == 31


@pytest.mark.behaviour("R-17b")
async def test_a_limit_of_one_host_leaves_the_others_alone(rd: Redrive, t: Harness) -> None:
    server = Server(t, 30 * MINUTE)

    @rd.task("fetch")
    async def fetch() -> str:
        return server.ask()

    @rd.task("other")
    async def other() -> str:
        return "ok"

    await rd.enqueue("fetch", {})
    await t.run()
    handle = await rd.enqueue("other", {})
    await t.run()
    assert (await handle.refresh()).state is State.done


@pytest.mark.behaviour("R-2d")
async def test_an_answer_from_elsewhere_opens_no_limit(rd: Redrive, t: Harness) -> None:
    """A task asks a model and calls GitHub. That GitHub answers does not mean that the model's limit has ended."""
    libraries, asked, up_at = StandIns(), list[int](), t.clock.now() + 20 * MINUTE

    @rd.task("review")
    async def review(number: int) -> str:
        if number % 2:
            raise libraries.refused("authority_exceeded", number)
        asked.append(number)
        if t.clock.now() < up_at:
            raise libraries.limited(600) if len(asked) == 1 else libraries.overloaded("overloaded")
        return "ok"

    await rd.enqueue("review", {"number": 0})
    await t.run()
    for number in range(1, 20):
        await rd.enqueue("review", {"number": number})
    await t.advance(602)
    assert len(asked) == 2, "one learned of the limit, one looked when it was over"
    assert [breaker.key for breaker in await rd.breakers() if breaker.down] == ["host:api.anthropic.com"]
    await t.advance(HOUR)
    assert len([job for job in await t.jobs() if job.state is State.done]) == 10
