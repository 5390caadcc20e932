"""What a task needs: asked when it is needed, not too often, by one at a time; never a reason to say "not found"."""

import asyncio
import threading
from typing import Any

import pytest

import redrive
from redrive import Probe, Redrive
from redrive.engine.inline_runs import InlineRunner
from redrive.engine.probes import COOL_DOWN, find_missing
from redrive.errors import InvalidOption
from tests.support import FakeClock, soon


class Resource:
    """Something outside that is there or not, and counts how often it was asked."""

    def __init__(self, name: str = "vault", *, up: bool = True) -> None:
        self.up: bool | BaseException = up
        self.asked = 0
        self.probe = Probe(name, self.check)

    async def check(self) -> bool:
        self.asked += 1
        if isinstance(self.up, BaseException):
            raise self.up
        return self.up


@pytest.fixture(autouse=True)
def no_pauses(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(self: InlineRunner, seconds: float) -> None:
        clock.advance(seconds)

    monkeypatch.setattr(InlineRunner, "_pause", pause)


# The probe alone -----------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("B9")
async def test_after_a_no_it_is_left_alone_for_thirty_seconds(clock: FakeClock) -> None:
    vault = Resource(up=False)
    assert COOL_DOWN == 30
    answers = [await vault.probe.ready(clock) for _ in range(5)]
    assert (answers, vault.asked, vault.probe.down) == ([False] * 5, 1, True)
    vault.up = True
    clock.advance(29.9)
    assert not await vault.probe.ready(clock)
    assert vault.asked == 1
    clock.advance(0.1)
    assert await vault.probe.ready(clock)
    assert (vault.asked, vault.probe.down) == (2, False)


async def test_a_yes_starts_no_cool_down(clock: FakeClock) -> None:
    vault = Resource()
    assert await vault.probe.ready(clock)
    vault.up = False
    assert not await vault.probe.ready(clock)
    assert vault.asked == 2


async def test_a_second_no_starts_the_cool_down_anew(clock: FakeClock) -> None:
    vault = Resource(up=False)
    await vault.probe.ready(clock)
    clock.advance(30)
    await vault.probe.ready(clock)
    clock.advance(29)
    await vault.probe.ready(clock)
    assert vault.asked == 2


async def test_the_cool_down_can_be_chosen(clock: FakeClock) -> None:
    vault = Resource(up=False)
    probe = Probe("x", vault.check, cool_down=5)
    for passed in (0.0, 4.9, 0.1):
        clock.advance(passed)
        await probe.ready(clock)
    assert vault.asked == 2


@pytest.mark.behaviour("B9")
async def test_a_probe_that_raises_says_no_and_starts_no_cool_down(clock: FakeClock) -> None:
    vault = Resource()
    vault.up = OSError("the probe itself is broken")
    assert not await vault.probe.ready(clock)
    assert vault.probe.down and "the probe itself is broken" in vault.probe.problem
    vault.up = True
    assert await vault.probe.ready(clock)
    assert (vault.asked, vault.probe.problem) == (2, "")


@pytest.mark.behaviour("B9")
@pytest.mark.parametrize("up", [True, False])
async def test_those_who_come_together_ask_once(clock: FakeClock, up: bool) -> None:
    asked: list[int] = []
    go = asyncio.Event()

    async def check() -> bool:
        asked.append(1)
        await go.wait()
        return up

    probe = Probe("vault", check)
    waiting = [asyncio.create_task(probe.ready(clock)) for _ in range(10)]
    await asyncio.sleep(0)
    go.set()
    assert await soon(asyncio.gather(*waiting)) == [up] * 10
    assert len(asked) == 1


async def test_who_stops_waiting_takes_nobody_s_answer_away(clock: FakeClock) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def check() -> bool:
        begun.set()
        await go.wait()
        return True

    probe = Probe("vault", check)
    first = asyncio.create_task(probe.ready(clock))
    await soon(begun.wait())
    second = asyncio.create_task(probe.ready(clock))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go.set()
    assert await soon(second)


async def test_loops_of_two_threads_share_a_probe(clock: FakeClock) -> None:
    async def check() -> bool:
        await asyncio.sleep(0.02)
        return True

    probe = Probe("vault", check)

    async def some() -> list[bool]:
        return list(await asyncio.gather(*(probe.ready(clock) for _ in range(5))))

    def elsewhere() -> list[bool]:
        return asyncio.run(some())

    answers = await soon(asyncio.gather(asyncio.to_thread(elsewhere), asyncio.to_thread(elsewhere), some()))
    assert answers == [[True] * 5] * 3


async def test_a_probe_that_hangs_says_no(clock: FakeClock) -> None:
    async def check() -> bool:
        await asyncio.Event().wait()
        return True

    probe = Probe("vault", check, timeout=0.02)
    assert not await soon(probe.ready(clock))
    assert "Timeout" in probe.problem


async def test_a_plain_check_runs_in_a_thread(clock: FakeClock) -> None:
    here = threading.get_ident()
    probe = Probe("vault", lambda: threading.get_ident() != here)
    assert await soon(probe.ready(clock))


@pytest.mark.behaviour("003-43")
async def test_only_what_is_missing_is_named(clock: FakeClock) -> None:
    vault, mail = Resource("vault"), Resource("mail", up=False)
    missing, recovered = await find_missing([vault.probe, mail.probe], clock)
    assert ([probe.name for probe in missing], recovered) == (["mail"], False)
    mail.up = True
    clock.advance(30)
    assert await find_missing([vault.probe, mail.probe], clock) == ([], True)
    assert await find_missing([vault.probe, mail.probe], clock) == ([], False)


# Tasks that need something -------------------------------------------------------------------------------------------


@pytest.mark.behaviour("003-45", "B9")
async def test_without_what_it_needs_a_task_is_not_called_and_tried_again_later(rd: Redrive, clock: FakeClock) -> None:
    vault, calls = Resource(up=False), []

    @rd.task(requires=[vault.probe])
    async def note() -> str:
        calls.append(1)
        return "noted"

    outcome = await soon(note.call())
    assert outcome.status == "queued_for_retry" and calls == []
    assert "vault" in str(outcome.error) and "not found" not in outcome.message
    job = await rd.jobs.get(outcome.operation_id or "")
    assert (job.state, job.category, job.attempts) == ("waiting", "transient", 1)
    assert job.history[-1].failure is not None and job.history[-1].failure.error_class == "ResourceDown"
    assert job.run_at >= clock.now() + COOL_DOWN, "not before it may be asked again"
    vault.up = True
    clock.advance(job.run_at - clock.now())
    await soon(rd.drain())
    assert (await rd.outcome(job.id)).result == "noted"


@pytest.mark.behaviour("003-44", "003-46")
async def test_what_is_back_is_used_at_once_and_the_answer_says_so(rd: Redrive, clock: FakeClock) -> None:
    vault = Resource(up=False)

    @rd.task(requires=[vault.probe])
    async def note() -> str:
        return "noted"

    assert not await soon(note.call())
    vault.up = True
    clock.advance(COOL_DOWN)
    outcome = await soon(note.call())
    assert outcome and outcome.registry_auto_recovered
    assert outcome.public()["registry_auto_recovered"] is True
    assert not (await soon(note.call())).registry_auto_recovered, "told once"


@pytest.mark.behaviour("003-46")
@pytest.mark.parametrize("times", [1, 99], ids=["then it works", "then it fails"])
async def test_the_answer_says_so_also_when_the_task_fails_afterwards(
    rd: Redrive, clock: FakeClock, times: int
) -> None:
    vault, calls = Resource(up=False), []

    @rd.task(requires=[vault.probe])
    async def note() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise ConnectionError("cut")
        return "noted"

    assert not await soon(note.call())
    vault.up = True
    clock.advance(COOL_DOWN)
    outcome = await soon(note.call())
    assert bool(outcome) is (times == 1)
    assert outcome.public()["registry_auto_recovered"] is True


@pytest.mark.behaviour("003-43")
async def test_only_the_task_s_own_needs_are_asked(rd: Redrive, clock: FakeClock) -> None:
    vault, mail = Resource("vault", up=False), Resource("mail", up=False)

    @rd.task(requires=[vault.probe])
    async def note() -> None: ...

    @rd.task(requires=[mail.probe])
    async def send() -> None: ...

    @rd.task
    async def free() -> None: ...

    assert not await soon(note.call())
    assert await soon(free.call())
    assert (vault.asked, mail.asked) == (1, 0)


@pytest.mark.behaviour("003-44", "003-45")
async def test_a_worker_finds_out_by_itself_that_it_is_back(rd: Redrive, clock: FakeClock) -> None:
    vault, calls = Resource(up=False), []

    @rd.task(requires=[vault.probe], idempotent=True)
    async def note() -> None:
        calls.append(1)

    jobs = [await note.enqueue() for _ in range(10)]
    await soon(rd.drain())
    assert (calls, vault.asked) == ([], 1)
    states = [await job.refresh() for job in jobs]
    assert {(job.state, job.attempts) for job in states} == {("waiting", 1)}
    vault.up = True
    clock.advance(60)
    await soon(rd.drain())
    assert len(calls) == 1, "ten failures opened its breaker: one goes first"
    clock.advance(1)
    await soon(rd.drain())
    assert len(calls) == 10
    assert {(job.state, job.attempts) for job in [await job.refresh() for job in jobs]} == {("done", 2)}


@pytest.mark.behaviour("B9", "003-45")
async def test_what_never_comes_back_ends_as_a_dead_letter_that_names_it(rd: Redrive, clock: FakeClock) -> None:
    vault = Resource(up=False)

    @rd.task(requires=[vault.probe], max_attempts=3)
    async def note() -> None: ...

    job = await note.enqueue()
    for _ in range(100):
        await soon(rd.drain())
        clock.advance(1800)
    dead = await job.refresh()
    assert (dead.state, dead.lane, dead.attempts) == ("dead", "manual", 3 + 4 * 2), "three tries and four comebacks"
    assert "vault" in str(dead.error)


async def test_a_look_needs_it_too(rd: Redrive, clock: FakeClock) -> None:
    vault = Resource(up=False)

    @rd.task(read_only=True, requires=[vault.probe])
    async def look() -> str:
        return "seen"

    outcome = await soon(look.call())
    assert outcome.status == "failed" and "vault" in str(outcome.error)
    vault.up = True
    clock.advance(COOL_DOWN)
    again = await soon(look.call())
    assert again.result == "seen" and again.registry_auto_recovered


@pytest.mark.parametrize("needs", [["vault"], [object()], [lambda: True]])
async def test_needs_are_probes(rd: Redrive, needs: Any) -> None:
    with pytest.raises(InvalidOption, match=r"requires: must be a list of redrive\.Probe"):

        @rd.task(requires=needs)
        async def note() -> None: ...


def test_a_probe_has_a_public_name() -> None:
    assert redrive.Probe is Probe
