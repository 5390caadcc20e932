"""An outage is told: what is down, how much waits for it, to every door and channel, and when it is over."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import BusEvent, Message, Pain, Redrive
from redrive.core.store import Commit
from redrive.errors import ConfigError
from redrive.notices.courier import COURIER, STATE
from tests.support import FakeClock, eventually, look_and_tell, opened, soon

JOBS = 150


class Downstream:
    """What the jobs call; down until it is told otherwise."""

    def __init__(self) -> None:
        self.up = False

    async def call(self) -> str:
        if not self.up:
            raise ConnectionError("connection refused")
        return "ok"


def register(rd: Redrive, downstream: Downstream, **policy: Any) -> Any:
    async def deliver(number: int) -> str:
        return await downstream.call()

    return rd.task("deliver", downstream="host:api.example.com:443", **policy)(deliver)


async def outage(rd: Redrive, downstream: Downstream, **policy: Any) -> None:
    deliver = register(rd, downstream, **policy)
    await rd.enqueue_many("deliver", [{"number": number} for number in range(JOBS)])
    assert deliver.name == "deliver"
    await soon(rd.drain())


@pytest.mark.behaviour("T-1")
async def test_jobs_parked_by_a_breaker_are_pending_and_health_names_what_is_down(rd: Redrive) -> None:
    await outage(rd, Downstream())
    health = await rd.health()
    stats = (await rd.stats())["totals"]
    assert health.total_pending == JOBS, "none of them is done, dead or planned for later"
    assert health.status == "degraded"
    assert stats["parked"] + stats["retrying"] == JOBS and stats["parked"] > 10
    down = [issue for issue in health.issues if "is down" in issue]
    assert down == [issue for issue in down if f"host api.example.com:443 is down, {stats['parked']} parked" in issue]
    assert len(down) == 1
    assert f"deliver: {JOBS} pending (backed up)" in health.issues
    assert (health.needs, health.exit_code) == ([], 0), "it heals by itself"


async def test_parked_jobs_without_a_worker_do_not_heal_by_themselves(rd: Redrive, clock: FakeClock) -> None:
    await outage(rd, Downstream())
    for _ in range(3):
        clock.advance(30)
        await soon(rd.drain())
    clock.advance(86400)
    health, morning = await rd.health(), await rd.morning()
    assert [need.kind for need in health.needs] == ["unattended"] and health.exit_code == 1
    (parked,) = health.needs
    assert parked.count == health.parked == JOBS and parked.sentence in health.issues
    assert f"{JOBS} parked jobs (deliver) wait for host api.example.com:443, and no live worker" in parked.what
    assert parked.id in [need.id for need in morning.needs]
    async with rd.worker(scheduler=False):
        assert "parked" not in " ".join(need.sentence for need in (await rd.health()).needs), "a worker probes"


@pytest.mark.behaviour("T-1a")
async def test_jobs_that_wait_for_a_retry_are_pending_also_without_breakers(rd: Redrive, clock: FakeClock) -> None:
    await outage(rd, Downstream(), breaker_after=0)
    health = await rd.health()
    assert (health.total_pending, health.status) == (JOBS, "degraded")
    assert f"deliver: {JOBS} retrying after failures" in health.issues
    (queue,) = await rd.queues.list()
    shown = queue.public()
    assert (shown["pending"], shown["retrying"], shown["parked"], shown["due"]) == (JOBS, JOBS, 0, 0)
    clock.advance(60)
    (queue,) = await rd.queues.list()
    assert (queue.pending, queue.due, queue.retrying) == (JOBS, JOBS, JOBS), "each of them once"


@pytest.mark.behaviour("T-1b")
async def test_an_outage_hurts_every_sink_and_channel_and_its_end_is_told(database: Path, clock: FakeClock) -> None:
    felt: list[Pain] = []
    phone: list[Message] = []
    downstream = Downstream()
    async with opened(database, clock=clock, signals=[felt.append], channels=[phone.append]) as rd:
        await outage(rd, downstream)
        await look_and_tell(rd)
        down = [pain for pain in felt if pain.kind == "downstream_down"]
        assert [pain.kind for pain in felt if pain.kind == "depth"] == ["depth"], "150 are pending"
        assert len(down) == 1 and "host api.example.com:443 is down" in down[0].message and down[0].severity >= 0.7
        assert {"downstream_down", "depth"} <= {message.kind for message in phone}
        downstream.up = True
        for _ in range(30):
            clock.advance(10)
            await soon(rd.drain())
        assert (await rd.health()).total_pending == 0
        await look_and_tell(rd)
    assert [message.title for message in phone if message.kind == "downstream_down_over"] == [
        "host api.example.com:443 answers again: its parked jobs come back"
    ]


@pytest.mark.behaviour("T-1c")
async def test_subscribers_hear_that_a_breaker_opens_and_closes(rd: Redrive, clock: FakeClock) -> None:
    heard: list[BusEvent] = []
    rd.subscribe("breaker_*", heard.append)
    downstream = Downstream()
    await outage(rd, downstream)
    assert [(event.type, event.data and event.data["breaker"]) for event in heard] == [
        ("breaker_opened", "host:api.example.com:443")
    ]
    downstream.up = True
    clock.advance(10)
    await soon(rd.drain())
    assert [event.type for event in heard] == ["breaker_opened", "breaker_closed"]


# ---- acting without code


@pytest.mark.behaviour("T-1d")
async def test_a_pain_enqueues_a_task_once_with_what_it_needs_to_investigate(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock) as rd:
        rd.core.holder.settings = _with_signals(rd, enqueue="investigate")
        seen: list[dict[str, Any]] = []

        @rd.task
        async def investigate(pain: dict[str, Any], health: dict[str, Any], group: Any, errors: list[Any]) -> None:
            seen.append({"pain": pain, "health": health, "group": group, "errors": errors})

        await outage(rd, Downstream())
        for _ in range(3):
            await look_and_tell(rd)
            clock.advance(400)
        await soon(rd.drain())
    by_kind = {one["pain"]["kind"]: one for one in seen if one["pain"]["queue"] in ("", "deliver")}
    assert len(seen) == len(by_kind) and {"downstream_down", "depth"} <= by_kind.keys()
    assert "connection refused" in str(by_kind["downstream_down"]["errors"]), "the job that opened the breaker"
    told = by_kind["depth"]
    assert told["health"]["total_pending"] >= JOBS and told["pain"]["queue"] == "deliver"
    assert told["errors"] and all("connection refused" in error["error"] for error in told["errors"])


async def test_downstreams_that_go_down_together_are_investigated_one_by_one(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock) as rd:
        rd.core.holder.settings = _with_signals(rd, enqueue="investigate")
        seen = await _investigated_outage(rd, 3)
        await look_and_tell(rd)
        await soon(rd.drain())
        assert (await rd.notices.waiting(), await rd.notices.troubles()) == ([], [])
    assert sorted(message.partition(" is down")[0] for message in seen) == [f"host h{each}" for each in range(3)]


async def test_more_pains_than_people_are_told_at_once_act_each(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock) as rd:
        rd.core.holder.settings = _with_signals(rd, enqueue="investigate")
        seen = await _investigated_outage(rd, 9)
        await look_and_tell(rd)
        await soon(rd.drain())
    hosts = {message.partition(" is down")[0] for message in seen if " is down" in message}
    assert hosts == {f"host h{each}" for each in range(9)}


async def test_a_pain_that_is_told_twice_keeps_its_one_job(database: Path, clock: FakeClock) -> None:
    """As after a kill between the action and the note that it was taken: by then health says something else."""
    async with opened(database, clock=clock) as rd:
        rd.core.holder.settings = _with_signals(rd, enqueue="investigate")
        seen = await _investigated_outage(rd, 1)
        await rd._pains.look()
        from redrive.core.documents import WAITING  # a new name: the other tests here also run on the source before it

        (kept,) = await WAITING.all(rd.store)
        await rd.notices.deliver()
        await rd.store.apply([Commit(puts=(WAITING.put(kept.key, kept.value), COURIER.drop(STATE)))])
        await rd.enqueue_many("other", [{}] * 30)
        await rd.notices.deliver()
        assert (await rd.notices.waiting(), await rd.notices.troubles()) == ([], [])
        await soon(rd.drain())
    assert len(seen) == 1


async def test_a_pain_names_what_is_down_to_functions_and_to_the_task(database: Path, clock: FakeClock) -> None:
    pains: list[Pain] = []
    async with opened(database, clock=clock, signals=[pains.append]) as rd:
        await _goes_down(rd, "h0")
        await look_and_tell(rd)
        (waiting,) = [pain for pain in pains if pain.kind == "downstream_down"]
        await rd.enqueue_many("work", [{}] * 101)
        await look_and_tell(rd)
    assert (waiting.about, waiting.key) == ("host:h0", "downstream_down/host:h0")
    assert [(pain.queue, pain.about) for pain in pains if pain.kind == "depth"] == [("work", "")]


async def _investigated_outage(rd: Redrive, hosts: int) -> list[str]:
    """So many downstreams are down; what `investigate` is given is returned as it comes."""
    seen: list[str] = []

    @rd.task
    async def investigate(pain: dict[str, Any], health: dict[str, Any], group: Any, errors: list[Any]) -> None:
        seen.append(pain["message"])

    for each in range(hosts):
        await _goes_down(rd, f"h{each}")
    return seen


async def _goes_down(rd: Redrive, host: str) -> None:
    async def calls(number: int) -> None:
        raise ConnectionError("connection refused")

    rd.task(f"calls_{host}", downstream=f"host:{host}")(calls)
    await rd.enqueue_many(f"calls_{host}", [{"number": number} for number in range(12)])
    await soon(rd.drain())


@pytest.mark.behaviour("T-1e")
async def test_a_pain_runs_a_command_once_and_one_that_fails_is_run_again(database: Path, clock: FakeClock) -> None:
    script, ledger = database.with_name("heal.py"), database.with_name("ledger.jsonl")
    script.write_text(
        "import json, os, pathlib, sys\n"
        "pain = json.load(sys.stdin)['pain']\n"
        "ledger = pathlib.Path(sys.argv[1])\n"
        "first = not ledger.exists()\n"
        "with ledger.open('a') as file:\n"
        "    file.write(json.dumps([os.environ['REDRIVE_PAIN_KIND'], pain['queue']]) + '\\n')\n"
        "sys.exit(3 if first else 0)\n"
    )
    async with opened(database, clock=clock) as rd:
        rd.core.holder.settings = _with_signals(rd, run=f"{sys.executable} {script} {ledger}")
        await rd.enqueue_many("work", [{}] * 101)
        for _ in range(4):
            await look_and_tell(rd)
            clock.advance(20)
    ran = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert ran == [["depth", "work"]] * 2, "once more because the first time failed, and then no more"


async def test_a_command_that_works_only_after_a_while_is_run_once_then(database: Path, clock: FakeClock) -> None:
    script, works, ledger = (database.with_name(name) for name in ("heal.sh", "works", "ledger"))
    script.write_text(f'#!/bin/sh\n[ -e {works} ] && echo "$REDRIVE_PAIN_KIND" >> {ledger}\n')
    script.chmod(0o700)
    async with opened(database, clock=clock) as rd:
        rd.core.holder.settings = _with_signals(rd, run=str(script))
        await rd.enqueue_many("work", [{}] * 101)
        for _ in range(5):
            await look_and_tell(rd)
            clock.advance(400)  # by now the pain is told again
        works.touch()
        for _ in range(5):
            await look_and_tell(rd)
            clock.advance(4000)
    assert sorted(ledger.read_text().split()) == ["depth", "unattended"], "they last, and nothing was done before"


def test_a_command_that_cannot_be_read_is_refused_when_it_is_set(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "redrive.toml").write_text('[signals]\nrun = "heal \'unfinished"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"signals\.run"):
        Redrive("jobs.db")


def _with_signals(rd: Redrive, **said: str) -> Any:
    import msgspec

    from redrive.core.pain import SignalPolicy

    return msgspec.structs.replace(rd.settings, signals=SignalPolicy(**said))


# ---- a handler that hangs


@pytest.mark.behaviour("T-6")
async def test_a_handler_that_hangs_is_a_need_without_any_setting(database: Path, clock: FakeClock) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    async with opened(database, clock=clock) as rd, opened(database, clock=clock) as other:

        @rd.task
        async def hangs(ctx: redrive.Context) -> None:
            begun.set()
            await release.wait()

        job = await hangs.enqueue()
        async with rd.worker(scheduler=False):
            await soon(begun.wait())
            clock.advance(14 * 60)
            assert (await rd.health()).status == "healthy"
            clock.advance(2 * 60)
            health, morning, elsewhere = await rd.health(), await rd.morning(), await other.health()
            release.set()
            await soon(job.result(10))
    assert health.status == "degraded", "it has hung for 16 minutes"
    assert [need.kind for need in health.needs] == ["stalled"]
    assert health.needs[0].job_id == job.id and "without progress" in health.issues[0]
    assert [need.kind for need in morning.needs] == ["stalled"]
    assert "stalled" in [need.kind for need in elsewhere.needs], "also where the task is not known"


@pytest.mark.behaviour("T-6a")
async def test_progress_resets_the_time_and_inf_turns_it_off(rd: Redrive, clock: FakeClock) -> None:
    release, begun = asyncio.Event(), asyncio.Queue[str]()
    go_on = asyncio.Event()

    @rd.task
    async def reports(ctx: redrive.Context) -> None:
        begun.put_nowait("reports")
        await go_on.wait()
        await ctx.progress(0.5)
        begun.put_nowait("progressed")
        await release.wait()

    @rd.task(stalled_after=float("inf"))
    async def patient() -> None:
        begun.put_nowait("patient")
        await release.wait()

    await reports.enqueue()
    await patient.enqueue()
    async with rd.worker(scheduler=False):
        await soon(begun.get())
        await soon(begun.get())
        clock.advance(800)
        go_on.set()
        assert await soon(begun.get()) == "progressed"
        clock.advance(800)
        assert (await rd.health()).needs == [], "one has shown progress, the other may take for ever"
        clock.advance(200)
        assert [(need.kind, need.task) for need in (await rd.health()).needs] == [("stalled", "reports")]
        release.set()
        await eventually(lambda: _all_done(rd))


async def _all_done(rd: Redrive) -> bool:
    return (await rd.stats())["totals"]["running"] == 0


@pytest.mark.behaviour("T-6b")
async def test_a_task_that_usually_takes_long_may_take_ten_times_as_long(rd: Redrive, clock: FakeClock) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @rd.task
    async def long() -> None:
        if len(done) < 20:
            clock.advance(300)
            done.append(1)
            return
        begun.set()
        await release.wait()

    done: list[int] = []
    for _ in range(20):
        await long.enqueue()
        await soon(rd.drain())
    await long.enqueue()
    async with rd.worker(scheduler=False):
        await soon(begun.wait())
        clock.advance(2_900)
        assert (await rd.health()).needs == []
        clock.advance(200)
        assert [need.kind for need in (await rd.health()).needs] == ["stalled"]
        release.set()
        await eventually(lambda: _all_done(rd))
