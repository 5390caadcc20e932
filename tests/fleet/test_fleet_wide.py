"""What holds for a whole fleet: limits, rates, breakers, restarts and duties, with two hubs on a real NATS server."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import Context, GiveUp, Policy, Redrive
from redrive.core.documents import DUTY, PAGE
from redrive.core.job import Job, State
from redrive.core.policy import Rate
from redrive.engine import scheduler
from redrive.engine.duty_lease import take_duty
from tests.chaos.processes import until
from tests.nats import shared_server

Define = Callable[[Redrive, str], Any]


class Inside:
    """Counts what is in flight, whichever process runs it."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.by: Counter[str] = Counter()

    async def visit(self, name: str, by: str) -> None:
        self.now[name] += 1
        self.by[by] += 1
        self.most[name] = max(self.most[name], self.now[name])
        await asyncio.sleep(0.03)
        self.now[name] -= 1


@asynccontextmanager
async def two_hubs(folder: Path, define: Define, **settings: Any) -> AsyncIterator[tuple[Redrive, Redrive]]:
    """Two replicas of one log, with the same tasks, as two hosts have them."""
    url = f"{shared_server().url}/w{secrets.token_hex(6)}?max_bytes=16MB&snapshot_bytes=32MB"
    async with AsyncExitStack() as stack:
        hubs = []
        for name in ("one", "two"):
            rd = Redrive(url, replica=True, replica_folder=str(folder / name), poll=0.1, **settings)
            define(rd, name)
            hubs.append(await stack.enter_async_context(rd))
            await stack.enter_async_context(rd.serving_hub())
        yield hubs[0], hubs[1]


async def all_done(rd: Redrive, number: int) -> bool:
    return len((await rd.jobs.list(state="done", limit=1000)).jobs) == number


async def run_all(one: Redrive, two: Redrive, number: int) -> None:
    async with one.worker(concurrency=8), two.worker(concurrency=8):
        await until("all are done", lambda: all_done(one, number))


def visiting(inside: Inside, **options: Any) -> Define:
    def define(rd: Redrive, name: str) -> None:
        @rd.task(**options)
        async def visit(ctx: Context) -> None:
            await inside.visit(str(ctx.agent or ctx.job.queue), name)

    return define


@pytest.mark.behaviour("F-50")
async def test_an_agent_has_one_job_in_flight_over_all_hosts_where_that_is_asked(tmp_path: Path) -> None:
    inside = Inside()
    how = {"agent_concurrency": 1, "agent_scope": "store"}
    async with two_hubs(tmp_path, visiting(inside), **how) as (one, two):
        for number in range(24):
            await (one, two)[number % 2].enqueue("visit", {}, agent=("legal", "qa")[number % 4 // 2])
        await run_all(one, two, 24)
    assert inside.most == {"legal": 1, "qa": 1}


async def test_the_control_a_limit_of_each_process_is_two_over_two_hosts(tmp_path: Path) -> None:
    met, seen = asyncio.Event(), set[str]()

    def define(rd: Redrive, name: str) -> None:
        @rd.task
        async def visit() -> None:
            seen.add(name)
            if len(seen) == 2:
                met.set()
            async with asyncio.timeout(30):
                await met.wait()

    async with two_hubs(tmp_path, define, agent_concurrency=1) as (one, two):
        for _ in range(2):
            await one.enqueue("visit", {}, agent="legal")
        await run_all(one, two, 2)
    assert seen == {"one", "two"}


@pytest.mark.behaviour("F-50")
async def test_limits_and_rates_of_a_queue_are_exact_over_all_hosts(tmp_path: Path) -> None:
    inside = Inside()
    queues = {
        "narrow": Policy(concurrency=2, scope="store"),
        "slow": Policy(rate=Rate(4, 1.0), scope="store"),
    }
    async with two_hubs(tmp_path, visiting(inside), queues=queues) as (one, two):
        for number in range(16):
            await (one, two)[number % 2].enqueue("visit", {}, queue="narrow")
        for number in range(10):
            await (one, two)[number % 2].enqueue("visit", {}, queue="slow")
        await run_all(one, two, 26)
        slow = (await one.jobs.list(queue="slow", limit=100)).jobs
    assert inside.most["narrow"] <= 2
    starts = sorted(float(job.started_at or 0.0) for job in slow)
    assert all(later - earlier >= 1.0 for earlier, later in zip(starts, starts[4:], strict=False)), starts


@pytest.mark.behaviour("F-51")
async def test_one_host_learns_that_a_provider_is_down_all_park_and_one_probes(tmp_path: Path) -> None:
    down, calls, active, most = True, Counter[str](), 0, 0

    def define(rd: Redrive, name: str) -> None:
        @rd.task(downstream="provider", max_attempts=5)
        async def call() -> None:
            nonlocal active, most
            calls[name] += 1
            active += 1
            most = max(most, active)
            try:
                await asyncio.sleep(0.02)
                if down:
                    raise ConnectionRefusedError("provider refused the connection")
            finally:
                active -= 1

    async with two_hubs(tmp_path, define) as (one, two):
        for _ in range(10):
            await one.enqueue("call", {})
        await one.drain()
        (breaker,) = await two.breakers()
        assert breaker.state == "open", "what one host has learned the other knows"
        made = calls["one"]
        for _ in range(10):
            await two.enqueue("call", {})
        await two.drain()
        assert calls["two"] == 0, "the other host asks nothing"
        assert {job.state for job in (await two.jobs.list(limit=100)).jobs} <= {State.held, State.waiting}
        active = most = 0
        async with one.worker(concurrency=8), two.worker(concurrency=8):
            await until("it is probed", lambda: calls.total() > made)
            assert most == 1, "one probe at a time, whoever sends it"
            down = False
            await until("all come back by themselves", lambda: all_done(one, 20))


@pytest.mark.behaviour("F-52")
async def test_a_rolling_restart_burns_no_attempt(tmp_path: Path) -> None:
    begun: list[str] = []
    go = asyncio.Event()

    def define(rd: Redrive, name: str) -> None:
        @rd.task(max_attempts=1)
        async def work() -> str:
            begun.append(name)
            await go.wait()
            return name

    async with two_hubs(tmp_path, define) as (one, two):
        handles = [await one.enqueue("work", {}) for _ in range(4)]
        async with one.worker(grace=0.05):
            await until("all run on the first host", lambda: begun.count("one") == 4)
        jobs = [await two.jobs.get(handle.id) for handle in handles]
        assert {(job.state, job.attempts) for job in jobs} == {(State.waiting, 0)}, "given back, at no cost"
        go.set()
        async with two.worker():
            await until("the second host does them", lambda: all_done(two, 4))
        assert Counter(begun) == {"one": 4, "two": 4}


@pytest.mark.behaviour("F-53")
async def test_a_page_goes_out_once_and_one_scheduler_has_each_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LOOK_SECONDS", 0.1)

    def define(rd: Redrive, name: str) -> None:
        @rd.task(max_attempts=1, comebacks=())
        async def fail() -> None:
            raise GiveUp("a person must decide")

    async with two_hubs(tmp_path, define) as (one, two):
        done: Counter[tuple[str, str]] = Counter()
        async with one.worker(), two.worker():
            await until("every role is taken", lambda: _roles(one))
            for _ in range(3):
                await one.enqueue("fail", {})
            await until("a person is paged", lambda: _paged(two))
            holders = {role: await _holder(one, role) for role in scheduler.ROLES}
            for name, rd in (("one", one), ("two", two)):
                for role in scheduler.ROLES:
                    done[role, name] += await take_duty(rd.store, rd.clock, f"role/{role}")
        assert all(holders.values())
        assert sorted(Counter(role for (role, _), has in done.items() for _ in range(has)).values()) == [1, 1, 1, 1]
        assert len(await PAGE.all(one.store)) == 1
        assert await _roles(one) == 0, "a scheduler that stops leaves its roles to the others at once"


@pytest.mark.behaviour("004-33", "004-32")
async def test_roles_run_alone_and_take_over_from_a_host_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was put off comes back by the triage of a process that runs no jobs."""
    monkeypatch.setattr(scheduler, "LOOK_SECONDS", 0.1)

    def define(rd: Redrive, name: str) -> None:
        @rd.task(max_attempts=1, comebacks=())
        async def fail() -> None:
            raise GiveUp("a person must decide")

    async with two_hubs(tmp_path, define) as (one, two):
        handle = await one.enqueue("fail", {})
        await one.drain()
        async with one.fleet.roles("monitor", "triage", "retry"):
            await until("the first has them", lambda: _has(one, "triage"))
            async with two.fleet.roles("triage"):
                assert not await take_duty(two.store, two.clock, "role/triage"), "one at a time"
        async with two.fleet.roles("triage"):
            await two.dead.defer(handle.id, owner="ada", until=0.2, who="ada")
            await until("it is a dead letter again", lambda: _is(two, handle.id, State.dead))
        assert (await one.jobs.get(handle.id)).attempts == 1


async def _roles(rd: Redrive) -> int:
    found = await DUTY.all(rd.store, "role/")
    return len(found) if len(found) in (0, len(scheduler.ROLES)) else 0


async def _has(rd: Redrive, role: str) -> bool:
    return await _holder(rd, role) == await rd.store.process()


async def _holder(rd: Redrive, role: str) -> str | None:
    kept = await DUTY.get(rd.store, f"role/{role}")
    return kept.value.holder if kept is not None else None


async def _paged(rd: Redrive) -> bool:
    return bool(await PAGE.all(rd.store))


async def _is(rd: Redrive, id: str, state: State) -> bool:
    job: Job = await rd.jobs.get(id)
    return job.state is state
