"""Workers: what they take, how much of it, in which order, and how they begin and end."""

import asyncio
import functools
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import fastapi
import pytest

import redrive
from redrive import Context, Effect, OutcomeUnknown, Rate, Redrive
from redrive.core.documents import ALONE
from redrive.core.job import public
from redrive.core.store import Claim, Commit, Filter, Outcome, Unknown, Wanted
from redrive.engine.breakers import Breakers
from redrive.engine.settle import Settlement
from redrive.engine.worker import Worker
from redrive.engine.worker_registry import list_living
from redrive.errors import StoreBusy
from tests import elsewhere
from tests.engine.gate import Gate, look
from tests.support import FakeClock, PassingTime, drain_until_over, eventually, line_of, opened, process, soon


async def _found_no_more(*workers: Worker, running: int = 0) -> None:
    """So many run, and each worker has looked since and found nothing more that it may take."""
    await eventually(lambda: sum(worker.slots.running for worker in workers) == running, f"{running} jobs run")
    for worker in workers:
        await look(worker)
    assert sum(worker.slots.running for worker in workers) == running


# What it takes -------------------------------------------------------------------------------------------------------


async def test_a_worker_takes_only_the_queues_it_is_for(live: Redrive) -> None:
    done: list[str] = []

    @live.task
    async def work(name: str) -> None:
        done.append(name)

    jobs = [await work.options(queue=name).enqueue(name) for name in ("mail", "web", "mail")]
    async with live.worker(queues=["mail"]) as worker:
        await jobs[0].result(10)
        await jobs[2].result(10)
        await _found_no_more(worker)
    assert done == ["mail", "mail"]
    assert (await jobs[1].refresh()).state == "waiting"


async def test_a_worker_takes_only_the_agents_it_is_for(live: Redrive) -> None:
    done: list[str | None] = []

    @live.task
    async def work(ctx: Context) -> None:
        done.append(ctx.agent)

    mine = await work.options(agent="writer").enqueue()
    others = [await work.options(agent="reviewer").enqueue(), await work.enqueue()]
    async with live.worker(agents=["writer"]) as worker:
        await mine.result(10)
        await _found_no_more(worker)
    assert done == ["writer"]
    assert [(await job.refresh()).state for job in others] == ["waiting", "waiting"]


async def test_a_worker_takes_only_tasks_it_knows(live: Redrive, database: Path) -> None:
    job = await live.enqueue("known_elsewhere", {"n": 1})
    async with live.worker() as worker:
        await _found_no_more(worker)
        assert (await job.refresh()).run == 0
        async with opened(database) as other:

            @other.task
            async def known_elsewhere(n: int) -> int:
                return n + 1

            async with other.worker():
                assert await job.result(10) == 2


async def test_more_urgent_jobs_go_first(live: Redrive) -> None:
    done: list[str] = []

    @live.task
    async def work(name: str) -> None:
        done.append(name)

    for name in ("low", "normal", "critical", "high", "normal"):
        await work.options(priority=name).enqueue(name)  # type: ignore[arg-type]
    async with live.worker(concurrency=1):
        await eventually(lambda: len(done) == 5)
    assert done == ["critical", "high", "normal", "normal", "low"]


@pytest.mark.behaviour("000-102")
@pytest.mark.preset("agent_os")
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_queue_that_hangs_leaves_room_for_another(live: Redrive, kind: str) -> None:
    """Default settings: more hanging jobs than slots come first. Only when they run, the other queue has a job."""
    release, released = threading.Event(), asyncio.Event()

    if kind == "async":

        @live.task(queue="analytics_ingest")
        async def hang() -> None:
            await released.wait()

    else:

        @live.task(queue="analytics_ingest")
        def hang() -> None:
            release.wait()

    @live.task(queue="identity_provision")
    async def provision(user: str) -> str:
        return f"an account for {user}"

    slots = live.settings.concurrency
    most = slots * 4 // 5

    async def hanging() -> bool:
        return bool((await live.stats())["totals"]["running"] >= most)

    await live.enqueue_many("hang", [{}] * (slots + 50))
    async with live.worker():
        try:
            await eventually(hanging, "the hanging queue has what it gets")
            for user in ("ada", "bob", "eve"):
                job = await provision.enqueue(user)
                await eventually(lambda job=job: _is_done(job), f"there is an account for {user}")  # type: ignore[misc]
            assert (await live.stats())["totals"]["running"] >= most, "and they still hang"
        finally:
            release.set()
            released.set()


async def _is_done(job: redrive.JobHandle[Any]) -> bool:
    return (await job.refresh()).state == "done"


async def test_a_full_queue_does_not_hold_up_another(live: Redrive) -> None:
    gate = Gate()

    @live.task(queue="slow", concurrency=2)
    async def slow() -> None:
        await gate("slow")

    @live.task(queue="failing", max_attempts=1)
    async def failing() -> None:
        raise ConnectionError

    @live.task(queue="quick")
    async def quick() -> str:
        return "quick"

    await live.enqueue_many("slow", [{}] * 300)
    await live.enqueue_many("failing", [{}] * 300)
    job = await quick.enqueue()
    async with live.worker(concurrency=5, grace=0.1):
        assert await job.result(15) == "quick"
        gate.opened.set()


@pytest.mark.behaviour("000-21")
async def test_one_store_holds_queues_with_policies_of_their_own(database: Path, clock: FakeClock) -> None:
    queues = {"quick": {"max_attempts": 2, "base": 1.0}, "patient": redrive.Policy(max_attempts=4, base=60.0)}
    async with opened(database, clock=clock, queues=queues) as rd:

        @rd.task(comebacks=())
        async def work() -> None:
            raise ConnectionError

        jobs = {name: await work.options(queue=name).enqueue() for name in ("quick", "patient", "unnamed")}
        await soon(rd.drain())
        waits = {name: (await job.refresh()).run_at - clock.now() for name, job in jobs.items()}
        assert waits == {"quick": 1.0, "patient": 60.0, "unnamed": 2.0}
        await drain_until_over(rd, clock)
        assert [(await job.refresh()).attempts for job in jobs.values()] == [2, 4, 5]


# How much ------------------------------------------------------------------------------------------------------------


async def test_no_more_run_at_once_than_allowed(live: Redrive) -> None:
    gate = Gate()

    @live.task
    async def work() -> None:
        await gate("work")

    await live.enqueue_many("work", [{}] * 20)
    async with live.worker(concurrency=3, grace=0.1) as worker:
        await eventually(lambda: worker.slots.running == 3 and gate.inside["all"] == 3)
        assert await live.store.count(Filter(), by=("state",)) == {("running",): 3, ("waiting",): 17}
        gate.opened.set()
        await eventually(lambda: len(gate.started) == 20)
    assert gate.most["all"] == 3


async def test_one_claim_fills_the_slots_that_will_be_free_in_a_moment(
    live: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slots are left while eight jobs are about to begin: a claim for two would be a transaction for nothing."""
    asked: list[int] = []
    real = live.store.claim

    async def claim(wanted: Wanted, *rest: Any) -> Claim:
        asked.append(wanted.slots)
        return await real(wanted, *rest)

    monkeypatch.setattr(live.store, "claim", claim)
    monkeypatch.setattr("redrive.engine.breakers.REFRESH_SECONDS", 3600.0)  # a look at them would make all jobs wait

    @live.task
    async def work() -> None:
        """Ends at once."""

    async with live.worker(concurrency=10) as worker:
        await (await work.enqueue()).result(10)
        await live.queues.pause("work", new=True)
        await look(worker)
        jobs = [await work.enqueue() for _ in range(8)]
        asked.clear()
        await live.queues.resume("work")
        for job in jobs:
            await job.result(10)
    assert asked[0] == 10
    assert 2 not in asked


async def test_slots_beside_long_jobs_are_filled_at_once(live: Redrive) -> None:
    gate = Gate()

    @live.task
    async def work(name: str) -> None:
        await gate(name)

    await live.enqueue_many("work", [{"name": "early"}] * 8)
    async with live.worker(concurrency=10) as worker:
        worker._poll = 3600.0
        await eventually(lambda: gate.inside["early"] == 8)
        await live.enqueue_many("work", [{"name": "late"}] * 3)
        await eventually(lambda: gate.inside["late"] == 2)
        assert worker.slots.free == 0
        gate.opened.set()


async def test_a_queue_has_a_limit_of_its_own(live: Redrive) -> None:
    gate = Gate()

    @live.task(concurrency=2)
    async def narrow() -> None:
        await gate("narrow")

    @live.task
    async def wide() -> None:
        await gate("wide")

    await live.enqueue_many("narrow", [{}] * 6)
    await live.enqueue_many("wide", [{}] * 6)
    async with live.worker(concurrency=20, grace=0.1) as worker:
        await _found_no_more(worker, running=8)
        assert (gate.inside["narrow"], gate.inside["wide"]) == (2, 6)
        gate.opened.set()
        await eventually(lambda: len(gate.started) == 12)
    assert gate.most["narrow"] == 2


@pytest.mark.parametrize(("scope", "together"), [("process", 4), ("store", 2)])
async def test_a_limit_holds_per_process_or_for_the_whole_store(
    live: Redrive, database: Path, scope: Any, together: int
) -> None:
    gate = Gate()

    async def narrow() -> None:
        await gate("narrow")

    live.task("narrow", concurrency=2, scope=scope)(narrow)
    await live.enqueue_many("narrow", [{}] * 8)
    async with opened(database) as other:
        other.task("narrow", concurrency=2, scope=scope)(narrow)
        async with live.worker(grace=0.1) as one, other.worker(grace=0.1) as two:
            await _found_no_more(one, two, running=together)
            gate.opened.set()
            await eventually(lambda: len(gate.started) == 8)
    assert gate.most["narrow"] == together


@pytest.mark.parametrize("scope", ["process", "store"])
async def test_a_rate_limits_the_starts(database: Path, scope: Any) -> None:
    clock = FakeClock()
    async with opened(database, clock=clock) as rd:
        started: list[float] = []

        @rd.task(rate=Rate(3, per=60.0), scope=scope)
        async def work() -> None:
            started.append(clock.now())

        await rd.enqueue_many("work", [{}] * 7)
        async with rd.worker(scheduler=False) as worker:
            for expected in (3, 6, 7):
                await eventually(lambda: len(started) == expected, f"{expected} starts")  # noqa: B023
                await _found_no_more(worker)
                clock.advance(61)
                worker.nudge()
    assert len(started) == 7
    assert Counter(started).most_common() == [(started[0], 3), (started[3], 3), (started[6], 1)]


async def test_an_agent_has_a_limit_of_its_own(database: Path) -> None:
    gate = Gate()
    async with opened(database, agent_concurrency=2) as rd:

        @rd.task
        async def work(ctx: Context) -> None:
            await gate(str(ctx.agent))

        for agent in ("a", "a", "a", "b", "b", "b", None, None, None):
            await work.options(agent=agent).enqueue()
        async with rd.worker(grace=0.1) as worker:
            await _found_no_more(worker, running=7)
            assert gate.inside == {"a": 2, "b": 2, "None": 3, "all": 7}
            gate.opened.set()
            await eventually(lambda: len(gate.started) == 9)


@pytest.mark.behaviour("000-63")
async def test_an_idle_worker_looks_again_and_again(live: Redrive) -> None:
    looks = 0

    class Counted(Worker):
        async def tick(self) -> float:
            nonlocal looks
            looks += 1
            return await super().tick()

    assert live.settings.poll == 5.0 and live.make_worker()._poll == 5.0
    worker = Counted(live.store, live.registry, live.clock, poll=0.01)
    worker.start()
    try:
        await eventually(lambda: looks >= 5, "five looks at an empty queue")
    finally:
        await worker.stop()


# Pausing -------------------------------------------------------------------------------------------------------------


async def test_a_paused_queue_waits_and_the_others_go_on(live: Redrive, database: Path) -> None:
    done: list[str] = []

    @live.task
    async def work(name: str) -> None:
        done.append(name)

    async with live.worker() as worker:
        await live.queues.pause("mail", who="ann", why="maintenance", new=True)
        held = await work.options(queue="mail").enqueue("mail")
        await (await work.options(queue="web").enqueue("web")).result(10)
        await _found_no_more(worker)
        assert (await held.refresh()).state == "waiting"
        assert {queue.name: queue.paused for queue in await live.queues.list()} == {"mail": True, "web": False}
        await live.queues.resume("mail")
        await held.result(10)
    assert done == ["web", "mail"]


async def test_somebody_else_may_pause_and_resume(live: Redrive, database: Path) -> None:
    @live.task
    async def work() -> None: ...

    async with opened(database) as other:
        await other.queues.pause("work", new=True)
        async with live.worker() as worker:
            job = await work.enqueue()
            await _found_no_more(worker)
            assert (await job.refresh()).state == "waiting"
            await other.queues.resume("work")
            await job.result(10)


async def test_a_pause_outlives_the_process(rd: Redrive, database: Path, clock: FakeClock) -> None:
    await rd.queues.pause("work", new=True)
    await rd.close()
    async with opened(database, clock=clock) as again:

        @again.task
        async def work() -> None: ...

        job = await work.enqueue()
        assert await soon(again.drain()) == 0
        assert (await job.refresh()).state == "waiting"


# Beginning and ending ------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("000-70")
async def test_what_runs_at_shutdown_is_finished(live: Redrive) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @live.task
    async def work() -> str:
        begun.set()
        await release.wait()
        return "finished"

    job = await work.enqueue()
    async with live.worker():
        await soon(begun.wait())
        asyncio.get_running_loop().call_later(0.05, release.set)
    assert (await job.refresh()).state == "done"
    assert await job.result(1) == "finished"


@pytest.mark.behaviour("000-70")
async def test_what_does_not_finish_is_given_back_and_burns_no_attempt(live: Redrive) -> None:
    begun = asyncio.Event()
    cleaned: list[bool] = []

    @live.task
    async def work(ctx: Context) -> int:
        begun.set()
        if ctx.job.run == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append(True)
        return ctx.attempt

    job = await work.enqueue()
    async with live.worker(grace=0.01):
        await soon(begun.wait())
    waiting = await job.refresh()
    assert (waiting.state, waiting.attempts, waiting.history[0].outcome) == ("waiting", 0, "released")
    assert cleaned == [True]
    async with live.worker():
        assert await job.result(10) == 1


@pytest.mark.behaviour("000-70")
async def test_what_is_being_settled_when_the_worker_stops_is_given_back_too(
    live: Redrive, caplog: pytest.LogCaptureFixture
) -> None:
    looking, looks = asyncio.Event(), list[str]()

    async def look(payload: dict[str, Any], witness: Any) -> bool:
        looks.append("look")
        looking.set()
        if len(looks) == 1:
            await asyncio.Event().wait()
        return True

    @live.task(effects=[Effect("note", look)])
    async def work() -> None:
        raise OutcomeUnknown("no answer")

    job = await work.enqueue()
    async with live.worker(grace=0.01):
        await soon(looking.wait())
    waiting = await job.refresh()
    assert (waiting.state, waiting.attempts) == ("waiting", 0)
    assert [attempt.outcome for attempt in waiting.history] == ["released"]
    assert "is given back: the worker stopped while its end was being settled" in caplog.text
    async with live.worker():
        await job.result(10)
    assert [attempt.outcome for attempt in (await job.refresh()).history] == ["released", "recovered"]


async def test_a_result_is_kept_although_the_worker_stops_while_a_breaker_is_told(
    live: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    telling = asyncio.Event()

    async def slowly(*_: Any) -> None:
        telling.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Breakers, "heeds", lambda *_: True)
    monkeypatch.setattr(Breakers, "succeeded", slowly)

    @live.task
    async def work() -> str:
        return "finished"

    job = await work.enqueue()
    async with live.worker(grace=0.01):
        await soon(telling.wait())
    assert await job.result(1) == "finished"


async def test_a_job_that_comes_back_while_its_cancelled_attempt_cleans_up_costs_no_slot(live: Redrive) -> None:
    begun, clean, last = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()

    @live.task
    async def work(ctx: Context) -> int:
        begun.release()
        try:
            await last.wait()
        except asyncio.CancelledError:
            await clean.wait()
            raise
        return ctx.job.run

    async with live.worker(concurrency=2) as worker:
        job = await work.enqueue()
        await soon(begun.acquire())
        await live.jobs.cancel(job.id)
        await live.dead.restore(job.id)
        await live.dead.redrive(job.id)
        await soon(begun.acquire())
        clean.set()
        await eventually(lambda: worker.slots.running == 1)
        assert [leased.run for leased in worker._running()] == [2], "the heart beats for the second"
        last.set()
        assert await job.result(10) == 2
        await eventually(lambda: worker.slots.running == 0)


async def test_what_redrive_itself_fails_to_end_is_a_dead_letter(
    live: Redrive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(Settlement, "succeeded", broken)

    @live.task
    async def work() -> None: ...

    job = await work.enqueue()
    await soon(live.drain())
    letter = await job.refresh()
    assert (letter.state, letter.because, letter.error) == ("dead", "permanent", "KeyError: 'a mistake of ours'")
    assert "report it" in (letter.recommendation or "")
    assert f"{letter.short_id} (work): redrive could not end it" in caplog.text and "Traceback" in caplog.text


@pytest.mark.file("a replica with a damaged row is made anew from its log instead")
@pytest.mark.parametrize("dies", [False, True], ids=["runs", "is lost"])
async def test_a_record_that_cannot_be_read_is_a_dead_letter_and_costs_no_other_job(
    live: Redrive, database: Path, dies: bool
) -> None:
    """As another version may have written it. Its process may be gone, too: then it may not hide others like that."""
    done: list[int] = []

    @live.task(base=0.01)
    async def work(n: int) -> None:
        done.append(n)

    jobs = [await work.options(max_age=600, lease=0.1 if dies else None).enqueue(n) for n in range(3)]
    if dies:
        await live.store.claim(Wanted(3, frozenset({"work"})), "somebody", live.clock.now())
    with closing(apsw.Connection(str(database))) as connection:
        connection.set_busy_timeout(5000)
        connection.execute("UPDATE jobs SET options_json = ? WHERE id = ?", ('{"max_age":"long"}', jobs[0].id))
    async with live.worker():
        await eventually(lambda: sorted(done) == [1, 2])
        await eventually(lambda: _is(jobs[0], "dead"))
    letter = await jobs[0].refresh()
    assert "cannot be read here" in (letter.error or "")
    with pytest.raises(redrive.JobError, match="cannot be read here"):
        await live.dead.redrive(letter.id)
    assert public(await live.dead.show(letter.id))["options"] == {}
    assert (await live.dead.discard(letter.id)).state == "discarded"


async def _is(job: redrive.JobHandle[Any], state: str) -> bool:
    return (await job.refresh()).state == state


EXITS = """
import argparse, asyncio, functools, os, signal, sys, time
import redrive
rd = redrive.Redrive(sys.argv[1], grace=5)
begun = asyncio.Event()

@rd.task(max_attempts=2, base=0.01)
def in_thread():
    argparse.ArgumentParser().parse_args(["--unknown"])

@rd.task(max_attempts=2, base=0.01)
async def on_loop():
    sys.exit("enough")

@rd.task(max_attempts=1)
async def bystander():
    begun.set()
    await asyncio.sleep(float(sys.argv[2]))

@rd.task(max_attempts=1)
async def busy():
    print("busy", flush=True)
    time.sleep(20)

def leave(status, *_):
    sys.exit(status)

class Leaver:
    def __call__(self, *_):
        sys.exit(7)

handler = {"signal": lambda *_: sys.exit(7),
           "partial": functools.partial(leave, 7), "object": Leaver()}.get(sys.argv[3])

async def main():
    async with rd, rd.worker(grace=0.1):
        jobs = [await task.enqueue() for task in (bystander, in_thread, on_loop)]
        await begun.wait()
        if handler is not None:
            for job in jobs[1:]:  # their own exits must not come after the one of the process
                try:
                    await job.result(15)
                except redrive.JobDead:
                    pass
            signal.signal(signal.SIGUSR1, handler)
            await busy.enqueue()
            await asyncio.sleep(20)
        for job in jobs:
            try:
                await job.result(15)
            except redrive.JobDead as dead:
                print(dead)
    print("went on")

asyncio.run(main())
"""


async def test_a_job_that_calls_exit_fails_alone(database: Path) -> None:
    with process(EXITS, database, 1.0, "exit") as child:
        said, _ = child.communicate(timeout=40)
    assert child.returncode == 0 and "went on" in said
    async with opened(database) as rd:
        found = {job.task: job for job in (await rd.jobs.list()).jobs}
    assert {task: str(job.state) for task, job in found.items()} == {
        "bystander": "done", "in_thread": "dead", "on_loop": "dead",
    }  # fmt: skip
    assert (found["in_thread"].error, found["on_loop"].error) == ("SystemExit: 2", "SystemExit: enough")
    assert {(job.detail, job.attempts) for job in found.values() if job.state == "dead"} == {("interrupted_itself", 1)}


@pytest.mark.parametrize("handler", ["signal", "partial", "object"])
async def test_an_exit_of_the_process_costs_no_running_job_an_attempt(database: Path, handler: str) -> None:
    """A handler of a signal that exits means the process, whoever runs at that moment."""
    with process(EXITS, database, 20.0, handler) as child:
        assert await line_of(child) == "busy"
        child.send_signal(signal.SIGUSR1)
        child.communicate(timeout=40)
    assert child.returncode == 7
    async with opened(database) as rd:
        (job,) = [job for job in (await rd.jobs.list()).jobs if job.task == "bystander"]
        job = await rd.jobs.get(job.id)
    assert (job.state, job.attempts, [attempt.outcome for attempt in job.history]) == ("waiting", 0, ["released"])


async def test_a_callable_that_returns_a_coroutine_is_run_to_its_end(live: Redrive) -> None:
    ran: list[str] = []

    async def really(name: str) -> str:
        ran.append(name)
        return name

    class Service:
        async def __call__(self, name: str) -> str:
            return await really(name)

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(function)(lambda name: function(name))  # noqa: PLW0108

    async def forgot(name: str) -> Any:
        return really(name)

    for name, function in (
        ("lambda", lambda name: really(name)),  # noqa: PLW0108
        ("object", Service()),
        ("decorated", decorated(really)),
        ("forgot", forgot),
        ("partial", functools.partial(really)),
    ):
        live.task(name, timeout=5 if name == "forgot" else None)(function)
        job = await live.enqueue(name, {"name": name})
        await soon(live.drain())
        assert await job.result(5) == name
        assert (await live.call(name, {"name": name})).result == name
    assert Counter(ran) == dict.fromkeys(("lambda", "object", "decorated", "forgot", "partial"), 2)


async def test_a_class_is_called_and_what_it_makes_is_not(live: Redrive) -> None:
    made: list[int] = []

    class Report:
        def __init__(self, n: int) -> None:
            made.append(n)

        async def __call__(self) -> None:
            made.append(-1)

    live.task("report")(Report)
    job = await live.enqueue("report", {"n": 1})
    await soon(live.drain())
    assert ((await job.refresh()).state, made) == ("done", [1])


def test_a_task_may_be_registered_after_the_loop_of_a_worker_was_closed(database: Path) -> None:
    """As a notebook or a test leaves it behind."""
    rd, loop = Redrive(database), asyncio.new_event_loop()
    loop.run_until_complete(rd.worker().__aenter__())
    loop.close()
    rd.task("late")(lambda: None)
    assert "late" in rd.registry.handlers


async def test_a_generator_is_no_task(live: Redrive) -> None:
    def one() -> Any:
        yield 1

    async def two() -> Any:
        yield 1

    for name, function in (("one", one), ("two", two)):
        with pytest.raises(redrive.ConfigError, match="is a generator"):
            live.task(name)(function)
        live.task(f"{name} hidden", max_attempts=1)(lambda function=function: function())
        job = await live.enqueue(f"{name} hidden")
        await soon(live.drain())
        assert (await job.refresh()).error == (
            "TypeError: it returned a generator, whose code has not run: return what it yields as a list"
        )


async def test_a_task_that_is_registered_while_a_worker_runs_is_run_by_it(live: Redrive) -> None:
    """In a notebook, or by a late import."""
    async with live.worker() as worker:
        await eventually(lambda: worker._claims > 0)

        @live.task
        async def late() -> int:
            return 1

        assert await (await late.enqueue()).result(3) == 1
        (said,) = await list_living(live.store, live.clock.now())
        assert "late" in said.tasks


@pytest.mark.behaviour("000-70")
async def test_start_and_stop_may_be_repeated(live: Redrive) -> None:
    @live.task(max_attempts=1)
    def in_thread() -> int:
        return 1

    @live.task(max_attempts=1)
    async def on_loop() -> int:
        return 2

    worker = live.make_worker()
    await worker.stop()
    for _ in range(2):
        worker.start()
        worker.start()
        jobs = [await in_thread.enqueue(), await on_loop.enqueue()]
        assert [await job.result(10) for job in jobs] == [1, 2]
        await worker.stop()
        await worker.stop()
    assert not worker.running


async def test_a_cancelled_job_is_told_at_once(live: Redrive) -> None:
    begun, told = asyncio.Event(), asyncio.Event()

    @live.task
    async def work(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            if ctx.cancelled:
                told.set()

    async with live.worker() as worker:
        job = await work.enqueue()
        await soon(begun.wait())
        await live.jobs.cancel(job.id, why="no longer wanted")
        await soon(told.wait())
        await eventually(lambda: worker.slots.running == 0)
    gone = await job.refresh()
    assert (gone.state, gone.attempts) == ("discarded", 0)


async def test_a_sync_task_sees_that_it_was_cancelled(live: Redrive) -> None:
    begun, told = threading.Event(), threading.Event()

    @live.task
    def work(ctx: redrive.BlockingContext) -> None:
        begun.set()
        for _ in range(2000):
            if ctx.cancelled:
                told.set()
                return
            threading.Event().wait(0.01)

    async with live.worker():
        job = await work.enqueue()
        assert await asyncio.to_thread(begun.wait, 20)
        await job.cancel()
        assert await asyncio.to_thread(told.wait, 20)
    assert (await job.refresh()).state == "discarded"


async def test_the_worker_says_what_it_knows_and_takes_it_back(live: Redrive) -> None:
    @live.task
    async def work() -> None: ...

    async with live.worker() as worker:

        async def announced() -> bool:
            return any(document.key == worker.id for document in await live.store.docs("worker"))

        await eventually(announced)
    assert await live.store.docs("worker") == []


# Unknown tasks -------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("000-71")
async def test_a_job_that_no_worker_knows_is_told_then_a_dead_letter_and_still_runs_in_the_end(
    rd: Redrive, database: Path, clock: FakeClock
) -> None:
    """A worker lives through the hour by itself. Health names the job long before, and no attempt is used up."""
    buried: list[str] = []
    rd.subscribe("dead_letter", lambda event: buried.append(str(event.job_id)))

    @rd.task
    async def known() -> str:
        return "done"

    job, later = await rd.enqueue("unknown", {"n": 1}), await rd.enqueue("unknown", {"n": 2}, delay=30 * 60)
    passing = PassingTime(clock)

    async def is_told() -> bool:
        return any("unknown" in issue for issue in (await rd.health()).issues)

    async def is_dead() -> bool:
        return (await job.refresh()).state == "dead"

    async with rd.worker():
        assert await (await known.enqueue()).result(15) == "done"
        early = await passing.until(is_told, "health names it")
        seen = await job.refresh()
        assert (seen.state, seen.attempts, seen.run, buried) == ("waiting", 0, 0, [])
        late = await passing.until(is_dead, "it is a dead letter")
        assert early < 600 and early + late >= 3600
        assert (await later.refresh()).state == "waiting", "it was not due for an hour"
    dead = await job.refresh()
    assert (dead.because, dead.attempts, dead.lane) == ("unroutable", 0, "manual")
    assert dead.recommendation is not None and "'unknown'" in dead.recommendation
    assert "no worker knows the task 'unknown'" in str(dead.error)
    assert [letter.id for letter in (await rd.dead.list()).jobs] == buried == [job.id]
    async with opened(database, clock=clock) as deployed:

        @deployed.task
        async def unknown(n: int) -> int:
            return n * 10

        await deployed.dead.redrive(job.id, why="its code is deployed now")
        async with deployed.worker():
            assert await job.result(15) == 10


async def test_a_job_nobody_knows_is_buried_after_an_hour(rd: Redrive, clock: FakeClock) -> None:
    @rd.task
    async def known() -> None: ...

    job, later = await rd.enqueue("unknown"), await rd.enqueue("unknown", delay=30 * 60)
    worker = rd.make_worker()
    duties = rd.make_scheduler(worker)
    for _ in range(61):
        await worker._announce()
        await duties.bury_unroutable()
        assert (await job.refresh()).state == "waiting"
        clock.advance(59.5)
    await worker._announce()
    await duties.bury_unroutable()
    dead = await job.refresh()
    assert (dead.state, dead.because, dead.attempts) == ("dead", "unroutable", 0)
    assert dead.recommendation is not None and "'unknown'" in dead.recommendation
    assert (await later.refresh()).state == "waiting", "it was not due for an hour"
    left = "unknown: 1 job is due, and no live worker runs unknown"
    assert (await rd.health()).issues == ["unknown: 1 dead letter", left]


@pytest.mark.behaviour("000-71")
async def test_without_any_worker_nothing_is_buried(rd: Redrive, clock: FakeClock) -> None:
    job = await rd.enqueue("unknown")
    duties = rd.make_scheduler(rd.make_worker())
    for _ in range(100):
        await duties.bury_unroutable()
        clock.advance(60)
    assert (await job.refresh()).state == "waiting"


async def test_a_dashboard_that_only_delivers_buries_nobody_elses_jobs(rd: Redrive, clock: FakeClock) -> None:
    """Their worker may be down for longer than an hour; `redrive serve` without an app knows nothing of their tasks."""
    job = await rd.enqueue("unknown")
    worker = rd.make_worker()
    duties = rd.make_scheduler(worker)
    for _ in range(100):
        await worker._announce()
        await duties.bury_unroutable()
        clock.advance(60)
    assert (await job.refresh()).state == "waiting"


async def test_an_announcement_starts_the_hour_anew(rd: Redrive, database: Path, clock: FakeClock) -> None:
    """A rolling deploy: the new code was seen for a moment."""

    @rd.task
    async def known() -> None: ...

    worker = rd.make_worker()
    duties = rd.make_scheduler(worker)
    job = await rd.enqueue("coming_soon")
    async with opened(database, clock=clock) as other:

        @other.task
        async def coming_soon() -> None: ...

        for minute in range(100):
            await worker._announce()
            if minute == 50:
                await other.make_worker()._announce()
            await duties.bury_unroutable()
            clock.advance(60)
    assert (await job.refresh()).state == "waiting"


# Around a web application --------------------------------------------------------------------------------------------


async def test_a_web_application_runs_a_worker_by_its_lifespan(database: Path) -> None:
    import httpx2

    rd = Redrive(database)
    done: list[str] = []

    @rd.task
    async def publish(slug: str) -> str:
        done.append(slug)
        return slug

    app = fastapi.FastAPI(lifespan=rd.lifespan(worker=True))

    @app.post("/articles/{slug}")
    async def create(slug: str) -> dict[str, str]:
        return {"job": (await publish.enqueue(slug)).id}

    async with app.router.lifespan_context(app):
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://app") as client:
            answer = await client.post("/articles/foxes")
        assert (await rd.jobs.get(answer.json()["job"])).task == "publish"
        await eventually(lambda: done == ["foxes"])
    assert rd.core.holder.store is None, "the lifespan closes what it opened"


async def test_a_lifespan_without_a_worker_only_takes_work(database: Path) -> None:
    rd = Redrive(database)

    @rd.task
    async def work() -> None: ...

    app = fastapi.FastAPI(lifespan=rd.lifespan())
    async with app.router.lifespan_context(app):
        job = await work.enqueue()
        assert rd.local_workers == []
    async with rd:
        assert (await job.refresh()).state == "waiting"


async def test_a_drain_that_is_cancelled_twice_gives_back_what_runs(live: Redrive) -> None:
    """As by two SIGTERMs."""
    begun = asyncio.Event()

    @live.task
    async def work() -> None:
        begun.set()
        await asyncio.sleep(60)

    job = await work.enqueue()
    draining = asyncio.create_task(live.drain(grace=0.3))
    await soon(begun.wait())
    for _ in range(2):
        draining.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await soon(draining)
    found = await live.jobs.get(job.id)
    assert (found.state, found.attempts, [attempt.outcome for attempt in found.history]) == ("waiting", 0, ["released"])


# Alone ---------------------------------------------------------------------------------------------------------------


def _crashed_twice(database: Path, job: redrive.JobHandle[Any]) -> None:
    """As if two processes had died with it."""
    connection = elsewhere.connected(database)
    connection.set_busy_timeout(5000)
    connection.execute("UPDATE jobs SET crashes = 2, run = 2 WHERE id = ?", (job.id,))
    connection.close()


def _spoil_first_mark(live: Redrive, monkeypatch: pytest.MonkeyPatch, spoiled: Callable[..., Any]) -> list[str]:
    """What happens to the first commit that says that a job is about to run alone."""
    really, marks = live.store.apply, list[str]()

    async def apply(group: Sequence[Commit]) -> list[Outcome]:
        found = [put.key for commit in group for put in commit.puts if put.kind == ALONE.name]
        marks.extend(found)
        return await (spoiled(really, group) if found and len(marks) == 1 else really(group))

    monkeypatch.setattr(live.store, "apply", apply)
    return marks


async def test_a_job_about_to_run_alone_waits_for_a_store_that_fails(
    live: Redrive, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @live.task
    async def work(n: int) -> int:
        return n

    async def busy(really: Any, group: Sequence[Commit]) -> list[Outcome]:
        raise StoreBusy("locked for 30 s: nothing was written")

    job = await work.enqueue(1)
    _crashed_twice(database, job)
    marks = _spoil_first_mark(live, monkeypatch, busy)
    async with live.worker(concurrency=1) as worker:
        assert await job.result(10) == 1
        assert await (await work.enqueue(2)).result(10) == 2, "its slot is free again"
        await _found_no_more(worker)
    found = await job.refresh()
    assert len(marks) == 2
    assert (found.state, found.run, found.attempts, found.crashes) == ("done", 3, 1, 2)


async def test_a_job_that_was_perhaps_marked_is_given_back_not_buried(
    live: Redrive, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark of a run that never began would make of the next death of its process a crash of its own."""

    @live.task
    async def work(n: int) -> int:
        return n

    async def landed_unknown(really: Any, group: Sequence[Commit]) -> list[Outcome]:
        await really(group)
        return [Unknown("the disk did not say")] * len(group)

    job = await work.enqueue(1)
    _crashed_twice(database, job)
    marks = _spoil_first_mark(live, monkeypatch, landed_unknown)
    async with live.worker(concurrency=1) as worker:
        assert await job.result(10) == 1
        await _found_no_more(worker)
    found = await job.refresh()
    assert len(marks) == 2
    assert [attempt.outcome for attempt in found.history] == ["released", "done"]
    assert (found.run, found.attempts, found.crashes) == (4, 1, 2)


# Draining ------------------------------------------------------------------------------------------------------------


async def test_drain_runs_what_is_due_and_leaves_the_rest(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(base=10)
    async def work(fail: bool = False) -> None:
        if fail:
            raise ConnectionError

    await rd.enqueue_many("work", [{}] * 30)
    await work.enqueue(fail=True)
    await work.options(delay=60).enqueue()
    assert await soon(rd.drain(concurrency=4)) == 31
    assert await soon(rd.drain()) == 0
    (numbers,) = await rd.queues.list()
    assert (numbers.done, numbers.waiting, numbers.due) == (30, 2, 0)


async def test_drain_counts_attempts_and_runs_what_they_bring_about(rd: Redrive) -> None:
    done: list[int] = []

    @rd.task
    async def chain(n: int) -> None:
        done.append(n)
        if n:
            await chain.enqueue(n - 1)

    await chain.enqueue(9)
    assert await soon(rd.drain()) == 10
    assert done == list(range(9, -1, -1))


async def test_drain_runs_retries_that_are_due_at_once(rd: Redrive) -> None:
    @rd.task(backoff="none", max_attempts=30, retry_on=(ValueError,))
    async def work() -> None:
        raise ValueError

    job = await work.enqueue()
    assert await soon(rd.drain()) == 30
    assert (await job.refresh()).state == "dead"


@pytest.mark.behaviour("000-23")
async def test_a_worker_retries_without_the_callers_help(live: Redrive) -> None:
    @live.task(base=0.01, max_attempts=4, retry_on=(ValueError,))
    async def work(ctx: Context) -> int:
        if ctx.attempt < 4:
            raise ValueError
        return ctx.attempt

    async with live.worker():
        job = await work.enqueue()
        assert await job.result(15) == 4


POISON = """
import asyncio, sys
import redrive

rd = redrive.Redrive(sys.argv[1])

@rd.task(max_attempts=2)
async def poison():
    async def below():
        sys.exit(3)
    asyncio.create_task(below())
    await asyncio.sleep(20)

@rd.task
async def bystander():
    await asyncio.sleep(2)

async def main():
    async with rd, rd.worker(grace=0.1):
        if sys.argv[2] == "first":
            await bystander.enqueue()
            await poison.enqueue()
        await asyncio.sleep(6)

asyncio.run(main())
"""


async def test_a_task_of_a_job_that_calls_exit_is_poison_and_isolated(database: Path) -> None:
    """It ends the event loop, and everything with it: a crash of the worker. Alone, it is known to have done that."""
    ended = []
    for life in ("first", "second", "third", "fourth"):
        with process(POISON, database, life) as child:
            child.communicate(timeout=40)
        ended.append(child.returncode)
    assert ended == [3, 3, 3, 0]
    async with opened(database) as rd:
        found = {job.task: job for job in (await rd.jobs.list()).jobs}
    poison = found["poison"]
    assert (poison.state, poison.detail, poison.attempts) == ("dead", "interrupted_itself", 1)
    assert (found["bystander"].state, found["bystander"].attempts) == ("done", 1)


async def test_a_plain_function_past_its_timeout_is_given_back_when_the_worker_stops(live: Redrive) -> None:
    release = threading.Event()

    @live.task(timeout=0.05)
    def slow(ctx: redrive.BlockingContext) -> None:
        while not ctx.cancelled:
            release.wait(0.01)
        told.set()
        release.wait(20)

    told = threading.Event()
    async with live.worker(grace=0.1):
        job = await slow.enqueue()
        await eventually(told.is_set)
    release.set()
    found = await live.jobs.get(job.id)
    assert (found.state, found.attempts, found.crashes) == ("waiting", 0, 0)
    assert [attempt.outcome for attempt in found.history] == ["released"]


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 10**12])
async def test_a_snooze_that_never_ends_is_a_mistake_of_the_task(rd: Redrive, seconds: float) -> None:
    @rd.task(max_attempts=1)
    async def later() -> None:
        raise redrive.Snooze(seconds)

    job = await later.enqueue()
    await soon(rd.drain())
    found = await job.refresh()
    assert (found.state, found.error_class) == ("dead", "InvalidOption")
    assert "ten years" in (found.error or "")


@pytest.mark.parametrize("plain", [False, True])
async def test_what_must_never_start_twice_is_a_dead_letter_where_a_stop_interrupts_it(
    live: Redrive, plain: bool
) -> None:
    begun, release = threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        await asyncio.sleep(20)

    def blocks() -> None:
        begun.set()
        release.wait(20)

    task = live.task("charge", on_lost="dead_letter")(blocks if plain else waits)
    async with live.worker(concurrency=1, grace=0.1):
        job, unbegun = await task.enqueue(), await task.enqueue()
        await eventually(begun.is_set)
    release.set()
    found, other = await live.jobs.get(job.id), await live.jobs.get(unbegun.id)
    assert (found.state, found.because, other.state) == ("dead", "outcome_unknown", "waiting")
