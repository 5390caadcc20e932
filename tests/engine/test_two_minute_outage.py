"""An outage of two minutes at low traffic: everything is done by itself soon after, and nobody was called.

Fourteen sites fail in fourteen ways, each with the exceptions that clients raise for it. Settings are the defaults.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sqlite3
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from redrive import Redrive
from redrive.core.job import State
from redrive.testing import Harness, harness

MINUTE = 60.0
BEFORE, OUTAGE, AFTER = 30.0, 120.0, 60.0
"""Seconds in which jobs come: all is well; every site is down; all is well again."""
SOON = 15 * MINUTE
"""After the end of the outage everything is done by then."""
CALLS = frozenset({"page", "dead_letters", "retry_exhausted", "escalated"})
"""Messages that ask a person to do something."""


class Sites:
    """Fourteen sites. Their task raises what a client raises while they are down."""

    def __init__(self, t: Harness, folder: Path) -> None:
        self._t = t
        self._down_from = t.clock.now() + BEFORE
        self._up_from = self._down_from + OUTAGE
        self._database = folder / "theirs.db"
        sqlite3.connect(self._database).close()
        self.ledger: Counter[str] = Counter()
        self.called: list[float] = []
        self.kinds: dict[str, Callable[[str], None]] = {
            "refused": self._raises(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")),
            "dns": self._raises(_caused(httpx.ConnectError("name"), socket.gaierror(-3, "Temporary failure"))),
            "connect_timeout": self._raises(httpx.ConnectTimeout("timed out")),
            "read_timeout": self._raises(httpx.ReadTimeout("timed out")),
            "reset": self._raises(_caused(httpx.ReadError("reset"), ConnectionResetError(errno.ECONNRESET, "reset"))),
            "ssl_eof": self._raises(ssl.SSLEOFError(8, "EOF occurred in violation of protocol (_ssl.c:1006)")),
            "locked": self._locked,
            "grpc": self._raises(Unavailable()),
            "error_500": self._answers(500),
            "error_502": self._answers(502),
            "error_503": self._answers(503),
            "error_503_later": self._answers(503, "20"),
            "error_429": self._answers(429, "30"),
            "error_529": self._answers(529),
        }
        assert len(self.kinds) == 14

    @property
    def down(self) -> bool:
        return self._down_from <= self._t.clock.now() < self._up_from

    def call(self, kind: str, key: str) -> None:
        """One request: it fails, or its effect is seen."""
        self.called.append(self._t.clock.now())
        if self.down:
            self.kinds[kind](kind)
            raise AssertionError(f"{kind} did not fail")
        self.ledger[key] += 1

    def _raises(self, error: BaseException) -> Callable[[str], None]:
        def fail(kind: str) -> None:
            error.__traceback__ = None
            raise error

        return fail

    def _answers(self, status: int, after: str | None = None) -> Callable[[str], None]:
        """A real client and a real response; only the network between them is missing."""
        headers = {"Retry-After": after} if after else {}
        transport = httpx.MockTransport(lambda request: httpx.Response(status, headers=headers, text="not now"))

        def ask(kind: str) -> None:
            with httpx.Client(transport=transport) as client:
                client.get(f"https://{kind.replace('_', '-')}.example/").raise_for_status()

        return ask

    def _locked(self, kind: str) -> None:
        """SQLite itself says so: another connection holds the lock."""
        holder = sqlite3.connect(self._database, isolation_level=None)
        asker = sqlite3.connect(self._database, timeout=0.0, isolation_level=None)
        try:
            holder.execute("BEGIN EXCLUSIVE")
            asker.execute("BEGIN IMMEDIATE")
        finally:
            holder.close()
            asker.close()


def _caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


class _Code:
    name, value = "UNAVAILABLE", (14, "unavailable")


class Unavailable(Exception):
    """As grpc's AioRpcError and its relatives are read: by `code()`."""

    def code(self) -> _Code:
        return _Code()


Unavailable.__module__, Unavailable.__qualname__ = "grpc._channel", "_InactiveRpcError"


def arrivals(rate: float) -> Iterator[float]:
    """Evenly spread over the whole time."""
    for number in range(int((BEFORE + OUTAGE + AFTER) * rate)):
        yield number / rate


async def live_through(
    rd: Redrive, t: Harness, sites: Sites, rate: float, *, each: bool, **policy: object
) -> Counter[str]:
    """Jobs come at this rate, to each site or to one after the other; then time passes. What people were told."""
    for kind in sites.kinds:
        rd.task(kind, **policy)(_task(sites, kind))
    told: Counter[str] = Counter()
    start = t.clock.now()
    for number, at in enumerate(arrivals(rate)):
        await t.advance(max(0.0, start + at - t.clock.now()))
        for kind in list(sites.kinds) if each else [list(sites.kinds)[number % 14]]:
            await rd.enqueue(kind, {"key": f"{kind}-{number}"})
        await t.run()
        if number % 10 == 0:
            await look(rd, told)
    while t.clock.now() < start + BEFORE + OUTAGE + SOON:
        await t.advance(MINUTE)
        await look(rd, told)
    return told


def _task(sites: Sites, kind: str) -> Callable[..., object]:
    async def call(key: str) -> None:
        sites.call(kind, key)

    return call


async def look(rd: Redrive, told: Counter[str]) -> None:
    """As a scheduler does every few seconds."""
    await rd._duties.look()
    told.update(dict.fromkeys((notice.kind for notice in await rd.notices.waiting()), 1))
    told.update(f"need: {need.kind}" for need in (await rd.health()).needs if need.kind != "unattended")


@pytest.mark.behaviour("R-16")
@pytest.mark.parametrize("breakers", [True, False], ids=["breakers on", "breakers off"])
@pytest.mark.parametrize(
    "each",
    [
        pytest.param(False, id="0.3 a second in all"),
        pytest.param(True, id="0.3 a second to each site", marks=pytest.mark.long),
    ],
)
async def test_a_two_minute_outage_is_over_by_itself_and_nobody_was_called(
    database: Path, tmp_path: Path, breakers: bool, each: bool
) -> None:
    rd = Redrive(database)
    policy = {} if breakers else {"breaker_after": 0}
    async with harness(rd) as t:
        sites = Sites(t, tmp_path)
        told = await live_through(rd, t, sites, 0.3, each=each, **policy)
        jobs = await t.jobs()
        states = Counter((job.task, job.state, job.lane, job.detail) for job in jobs if job.state is not State.done)
        assert not states, f"of {len(jobs)} jobs these are not done: {states}"
        assert len(jobs) == int(210 * 0.3) * (14 if each else 1)
        assert [key for key, number in sites.ledger.items() if number != 1] == []
        assert len(sites.ledger) == len(jobs), "each effect was seen once"
        called_for = {kind for kind in told if kind in CALLS or kind.startswith("need")}
        assert not called_for, f"people were told: {told}"
        assert (await rd.health()).status == "healthy"
        row = (await rd.reports.monthly(2)).total
        assert (row.human, row.open, row.died) == (0, 0, row.auto)


@pytest.mark.behaviour("R-16")
async def test_the_outage_does_kill_jobs_where_comebacks_are_off(database: Path, tmp_path: Path) -> None:
    """The control: what the test above sees done is brought back, not merely late."""
    rd = Redrive(database)
    async with harness(rd) as t:
        sites = Sites(t, tmp_path)
        told = await live_through(rd, t, sites, 0.3, each=False, breaker_after=0, comebacks=())
        dead = [job for job in await t.jobs() if job.state is State.dead]
        assert len({job.task for job in dead}) >= 5
        assert {job.lane for job in dead} == {"manual"}
        assert "page" in told


@pytest.mark.behaviour("R-16")
async def test_a_worker_of_its_own_lives_through_the_outage(database: Path) -> None:
    """With a real worker, scheduler and courier; only the time is moved."""
    from tests.support import FakeClock, PassingTime

    clock, told = FakeClock(), list[str]()
    down_until = clock.now() + OUTAGE
    async with Redrive(database, clock=clock, channels=[lambda message: told.append(message.kind)]) as rd:

        @rd.task("fetch", breaker_after=0)
        async def fetch(number: int) -> None:
            if clock.now() < down_until:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

        handles = [await rd.enqueue("fetch", {"number": number}) for number in range(12)]

        async def all_done() -> bool:
            await asyncio.sleep(0)
            return {(await handle.refresh()).state for handle in handles} == {State.done}

        async with rd.worker():
            await PassingTime(clock).until(all_done, "all are done")
        assert clock.now() <= down_until + SOON
    assert not CALLS & set(told), told
