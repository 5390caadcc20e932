"""More of what went wrong elsewhere, and rules that no other suite shows by name. Real parts only."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from redrive import Context, InvalidInput, Redrive, State
from redrive.core.store import Wanted
from redrive.doors.cli.mcp import ADDRESS
from tests.receiver import Seen, answer, receiving
from tests.support import FakeClock, eventually, opened, soon

LOCAL: dict[str, Any] = {"allow": ["127.0.0.1"]}


# Letters and files ---------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("001-30")
async def test_what_went_into_the_wrong_lane_is_moved_and_the_move_is_kept(rd: Redrive) -> None:
    letter = await rd.dead.add("night-1", {"site": "blog"}, "SchemaError: unknown field", attempt=1)
    assert letter.lane == "manual"
    moved = await rd.dead.move_lane(letter.id, "delayed", who="ann", why="their schema is back")
    assert moved.lane == "delayed"
    last = (await rd.jobs.story(letter.id))[-1]
    assert (last.move, last.who, last.why) == ("rerouted", "ann", "their schema is back")
    with pytest.raises(InvalidInput, match="lane"):
        await rd.dead.move_lane(letter.id, "bin")


@pytest.mark.behaviour("B39")
async def test_b39_a_refused_delivery_is_no_success(clock: FakeClock, database: Path) -> None:
    async with receiving(answer("401 Unauthorized")) as receiver, opened(database, clock=clock, delivery=LOCAL) as rd:
        job = await rd.enqueue_http("POST", receiver.url(), json={"n": 1})
        await soon(rd.drain())
        told = await rd.jobs.get(job.id)
    assert (told.state, told.attempts, told.detail) == (State.dead, 1, "credentials")


@pytest.mark.behaviour("B39")
async def test_b39_the_last_try_is_made_and_none_after_it(rd: Redrive, clock: FakeClock) -> None:
    ran: list[float] = []

    @rd.task(max_attempts=3, comebacks=(600,))
    async def flaky() -> None:
        ran.append(clock.now())
        raise ConnectionError("down")

    job = await flaky.enqueue()
    for _ in range(3):
        await soon(rd.drain())
        clock.advance(60)
    told = await rd.jobs.get(job.id)
    assert (len(ran), told.attempts, told.state, told.lane) == (3, 3, State.dead, "delayed")
    for _ in range(6):
        clock.advance(400)
        await soon(rd.drain())
    told = await rd.jobs.get(job.id)
    assert (len(ran), told.attempts, told.state, told.lane) == (5, 5, State.dead, "manual"), "a comeback is two tries"


@pytest.mark.behaviour("B39")
async def test_b39_a_purge_takes_no_more_than_it_was_asked_for(rd: Redrive) -> None:
    for n in range(3):
        await rd.dead.add(f"j{n}", {"n": n}, "ValueError: no", queue=f"q{n}")
    with pytest.raises(InvalidInput, match="all=True"):
        await rd.dead.purge()
    assert len((await rd.dead.list()).jobs) == 3
    assert await rd.dead.purge(queue="q1") == 1
    assert sorted(job.queue for job in (await rd.dead.list()).jobs) == ["q0", "q2"]


@pytest.mark.behaviour("B42")
async def test_b42_a_file_is_read_from_its_first_line_and_a_torn_last_one_waits(rd: Redrive, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    lines = [json.dumps({"job_id": f"j{n}", "payload": {"n": n}, "error_class": "TimeoutError"}) for n in range(3)]
    file.write_text("\n".join(lines)[:-9], "utf-8")  # written while nobody looked; the writer died in the last line
    await rd.dead.import_(file)
    assert sorted(job.arguments["n"] for job in (await rd.dead.list()).jobs) == [0, 1]
    file.write_text("\n".join(lines) + "\n", "utf-8")
    await rd.dead.import_(file)
    assert sorted(job.arguments["n"] for job in (await rd.dead.list()).jobs) == [0, 1, 2]


# Deliveries ----------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("B43")
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
async def test_b43_what_heals_is_tried_again_when_the_server_says(
    clock: FakeClock, database: Path, status: int
) -> None:
    said = answer(f"{status} Later", retry_after="77")
    async with receiving(said) as receiver, opened(database, clock=clock, delivery=LOCAL) as rd:
        job = await rd.enqueue_http("POST", receiver.url(), json={})
        await soon(rd.drain())
        told = await rd.jobs.get(job.id)
    assert (told.state, told.attempts) == (State.waiting, 1)
    assert 77 <= told.run_at - clock.now() <= 77 * 1.1


@pytest.mark.behaviour("B43")
@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 415, 422])
async def test_b43_other_refusals_are_not_tried_again(clock: FakeClock, database: Path, status: int) -> None:
    async with receiving(answer(f"{status} No")) as receiver, opened(database, clock=clock, delivery=LOCAL) as rd:
        job = await rd.enqueue_http("POST", receiver.url(), json={})
        for _ in range(3):
            await soon(rd.drain())
            clock.advance(400)
        told = await rd.jobs.get(job.id)
        assert (told.state, len(receiver.requests)) == (State.dead, 1)


@pytest.mark.behaviour("B44")
def test_b44_addresses_by_default_are_numbers() -> None:
    host, _, port = ADDRESS.rpartition(":")
    assert (host, port.isdigit()) == ("127.0.0.1", True)


# Worker, store and task together -------------------------------------------------------------------------------------


@pytest.mark.behaviour("B40")
async def test_b40_what_is_accepted_is_drained_by_a_real_worker(live: Redrive) -> None:
    done: list[int] = []

    @live.task(base=0.001, cap=0.002)
    async def send(ctx: Context, n: int) -> int:
        if ctx.attempt == 1 and n % 2:
            raise ConnectionError("down")
        done.append(n)
        return n

    jobs = [await send.enqueue(n) for n in range(20)]
    async with live.worker():
        results = [await job.result(20) for job in jobs]
    assert results == sorted(done) == list(range(20))
    assert {job.state for job in (await live.jobs.list()).jobs} == {State.done}


@pytest.mark.behaviour("B51")
async def test_b51_looking_at_an_open_breaker_does_not_keep_it_open(clock: FakeClock, database: Path) -> None:
    """Looked at every ten minutes with a pause of fifteen: the probe goes at its time all the same."""
    up, calls = False, 0

    async def talk(_: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        writer.write(answer("200 OK" if up else "503 Down"))
        await writer.drain()

    policy = {"http": {"breaker_after": 1, "breaker_pause": 900, "max_attempts": 9}}
    async with receiving(talk) as receiver, opened(database, clock=clock, delivery=LOCAL, queues=policy) as rd:
        await rd.enqueue_http("POST", receiver.url(), json={})
        await soon(rd.drain())
        (breaker,) = await rd.breakers()
        assert (breaker.state, breaker.until - clock.now(), calls) == ("open", 900, 1)
        up = True
        for seconds in (600, 290):
            clock.advance(seconds)
            await rd.breakers()
            await soon(rd.drain())
            assert calls == 1, "not before its time"
        clock.advance(10)
        await soon(rd.drain())
        assert calls == 2


@pytest.mark.behaviour("B51")
@pytest.mark.parametrize("way", ["the breaker is closed", "the job is retried"])
async def test_b51_a_person_who_knows_better_does_not_wait_for_the_breaker(
    clock: FakeClock, database: Path, way: str
) -> None:
    up = False
    policy = {"fetch": {"breaker_after": 1, "breaker_pause": 900}}
    async with opened(database, clock=clock, queues=policy) as rd:

        @rd.task(downstream="crm")
        async def fetch() -> str:
            if not up:
                raise ConnectionError("down")
            return "here"

        jobs = [await fetch.enqueue() for _ in range(2)]
        await soon(rd.drain(concurrency=1))
        by_state = {(await rd.jobs.get(job.id)).state: job.id for job in jobs}
        assert by_state.keys() == {State.waiting, State.held}
        up = True
        if way == "the job is retried":
            assert (await rd.retry(by_state[State.held])).status == "ok"
        else:
            assert await rd.close_breaker("crm")
            clock.advance(1)
            await soon(rd.drain())
        assert (await rd.jobs.get(by_state[State.held])).state is State.done


@pytest.mark.behaviour("B53")
async def test_b53_an_agent_has_no_more_in_flight_than_it_may(database: Path) -> None:
    inside = most = 0
    done: list[str] = []

    async with opened(database, agent_concurrency=1) as rd:

        @rd.task
        async def work(ctx: Context) -> None:
            nonlocal inside, most
            if ctx.agent == "ann":
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1
            done.append(str(ctx.agent))

        for agent in ("ann", "bob") * 10:
            await work.options(agent=agent).enqueue()
        async with rd.worker(concurrency=10):
            await eventually(lambda: len(done) == 20, "all of them")
    assert most == 1


# Retried calls -------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-22")
async def test_an_operation_shows_its_whole_record(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(max_attempts=2)
    async def pay(amount: int) -> None:
        raise OSError("no route to host")

    job = await pay.options(session_id="s1").enqueue(900)
    await soon(rd.drain())
    waiting = await rd.jobs.get(job.id)
    assert (waiting.task, waiting.arguments, waiting.session_id) == ("pay", {"amount": 900}, "s1")
    assert (waiting.state, waiting.attempts, waiting.allowed) == (State.waiting, 1, 2)
    assert waiting.run_at > clock.now() >= waiting.created_at
    (first,) = waiting.history
    assert first.failure is not None and first.cause is not None
    assert (first.outcome, first.failure.error_class, first.cause.category) == ("failed", "OSError", "transient")
    clock.advance(60)
    await soon(rd.drain())
    dead = await rd.jobs.get(job.id)
    assert (dead.error_class, dead.because, len(dead.history)) == ("OSError", "attempts_exhausted", 2)
    assert dead.recommendation


@pytest.mark.behaviour("003-53")
async def test_a_look_that_fails_stops_nothing(
    rd: Redrive, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One duty of every tick raises; those after it have their turn all the same, at this tick and at the next."""
    looks = 0

    async def broken() -> None:
        nonlocal looks
        looks += 1
        raise RuntimeError("the pager is broken")

    monkeypatch.setattr(rd._pains, "look", broken)

    @rd.task
    async def greet(name: str) -> None: ...

    letter = await rd.dead.add("old", {"name": "ada"}, TimeoutError("late"), task="greet", lane="delayed")
    scheduler = rd.make_scheduler(rd.make_worker())
    await soon(scheduler.tick())
    clock.advance(3700)
    await soon(scheduler.tick())
    assert (looks, scheduler.errors) == (2, 2)
    assert "the pager is broken" in caplog.text
    assert (await rd.jobs.get(letter.id)).state is State.waiting, "the delayed lane came back"


@pytest.mark.behaviour("003-54")
async def test_only_what_is_due_is_taken(rd: Redrive, clock: FakeClock) -> None:
    ran: list[str] = []

    @rd.task
    async def greet(name: str) -> None:
        ran.append(name)

    await greet.options(delay=60).enqueue("later")
    await greet.enqueue("now")
    await soon(rd.drain())
    assert ran == ["now"]
    clock.advance(59)
    await soon(rd.drain())
    assert ran == ["now"]
    clock.advance(1)
    await soon(rd.drain())
    assert ran == ["now", "later"]


@pytest.mark.behaviour("003-55")
async def test_what_is_taken_is_taken_once_for_its_own_lease(rd: Redrive, clock: FakeClock) -> None:
    @rd.task
    async def think() -> None: ...

    slow = await think.options(lease=600).enqueue()
    quick = await think.enqueue()
    first = await rd.store.claim(Wanted(10), "one", clock.now())
    second = await rd.store.claim(Wanted(10), "two", clock.now())
    assert {job.id: job.lease for job in first.jobs} == {slow.id: 600, quick.id: 90}
    assert second.jobs == []


@pytest.mark.behaviour("003-72")
async def test_retries_wait_while_their_queue_is_paused(rd: Redrive, clock: FakeClock) -> None:
    ran = 0

    @rd.task
    async def fetch() -> None:
        nonlocal ran
        ran += 1
        if ran == 1:
            raise ConnectionError("down")

    job = await fetch.enqueue()
    await soon(rd.drain())
    await rd.queues.pause("fetch", who="ann", why="maintenance")
    clock.advance(600)
    await soon(rd.drain())
    waiting = await rd.jobs.get(job.id)
    assert (ran, waiting.state, waiting.attempts) == (1, State.waiting, 1)
    await rd.queues.resume("fetch")
    await soon(rd.drain())
    assert (ran, (await rd.jobs.get(job.id)).state) == (2, State.done)


@pytest.mark.behaviour("003-73", "003-74")
@pytest.mark.parametrize(
    ("said", "attempts", "waits"),
    [({}, 5, [10, 20, 45, 90]), ({"max_attempts": 3, "backoff": "fixed_10s"}, 3, [10, 10])],
    ids=["by default", "as the settings say"],
)
async def test_a_retried_call_has_so_many_attempts_and_waits_so_long(
    clock: FakeClock, database: Path, said: dict[str, Any], attempts: int, waits: list[float]
) -> None:
    """The failure is one that is not tried on the spot: all of the attempts are the queue's."""
    async with opened(database, clock=clock, queues={"fetch": said}) as rd:

        @rd.task
        async def fetch() -> None:
            raise BlockingIOError(11, "busy")

        answered = await rd.call(fetch)
        assert (answered.status, answered.queue_reason) == ("queued_for_retry", "retry")
        waited: list[float] = []
        while (job := await rd.jobs.get(answered.operation_id or "")).state is State.waiting:
            waited.append(job.run_at - clock.now())
            clock.advance(waited[-1])
            await soon(rd.drain())
    assert (job.state, job.attempts, waited) == (State.dead, attempts, waits)
