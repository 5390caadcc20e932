"""What went wrong elsewhere, one test for each: named after the incident, short, and able to fail here as it did there.

Where an incident needs real processes it is shown in tests/chaos as well (test_effects, test_zombies, test_busy_storm).
"""

import asyncio
import contextlib
import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import BlockingContext, Context, Effect, OutcomeUnknown, Probe, Redrive
from redrive.core.job import State
from redrive.core.policy import REASONS, schedule
from redrive.core.policy import effective as policy_of
from redrive.core.store import Applied, Commit, Stale, Wanted
from redrive.engine.context import session_of
from redrive.engine.inline_runs import InlineRunner
from redrive.errors import InvalidPayload
from tests.support import FakeClock, LoopTime, eventually, line_of, process, soon


@pytest.fixture(autouse=True)
def no_pauses(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(self: InlineRunner, seconds: float) -> None:
        clock.advance(seconds)

    monkeypatch.setattr(InlineRunner, "_pause", pause)


async def at_its_end(rd: Redrive, clock: FakeClock, job_id: str) -> Any:
    """The job once it waits no more."""
    for _ in range(20):
        await soon(rd.drain())
        job = await rd.jobs.get(job_id)
        if job.state != "waiting":
            return job
        clock.advance(max(0.0, job.run_at - clock.now()))
    raise AssertionError("it still waits")


# Fixed there, and to stay fixed here ---------------------------------------------------------------------------------


@pytest.mark.behaviour("B1")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"success": False, "message": "closed"}, "closed"),
        ({"error": "locked", "success": False, "message": "closed"}, "locked"),
        ({"error": "locked", "success": True}, "locked"),
        ({"success": False, "message": ""}, "without a message"),
        ({"success": False}, "without a message"),
    ],
    ids=str,
)
async def test_b1_soft_failure_taken_as_success(rd: Redrive, value: dict[str, Any], words: str) -> None:
    calls: list[int] = []

    @rd.task(max_attempts=1)
    async def work() -> dict[str, Any]:
        calls.append(1)
        return value if len(calls) == 1 else {"success": True}

    outcome = await soon(work.call())
    assert not outcome and words in str(outcome.error)
    again = await soon(rd.retry(outcome.operation_id or ""))
    assert again and len(calls) == 2, "a retry does not answer that it is done already"


@pytest.mark.behaviour("B2")
@pytest.mark.parametrize("retry_on", [(), (TimeoutError,), (Exception,)], ids=str)
async def test_b2_uncertain_write_swallowed_as_a_timeout(rd: Redrive, retry_on: Any) -> None:
    class WriteTimeout(OutcomeUnknown, TimeoutError):
        pass

    written: list[str] = []

    @rd.task(retry_on=retry_on, backoff="none")
    async def insert(text: str) -> None:
        written.append(text)
        raise WriteTimeout("no answer")

    outcome = await soon(insert.call("line"))
    await soon(rd.drain())
    assert (outcome.status, written) == ("held", ["line"])


@pytest.mark.behaviour("B3")
async def test_b3_late_commit_race(rd: Redrive, clock: FakeClock) -> None:
    """With real processes: tests/chaos/test_effects.py."""
    landed: set[str] = set()
    calls: list[str] = []

    @rd.task(effects=[Effect("line", lambda payload, witness: witness in landed)], idempotent=True)
    async def insert(text: str) -> None:
        calls.append(text)
        raise OutcomeUnknown("no answer", witness=text)

    handle = await insert.enqueue("line")
    await soon(rd.drain())
    landed.add("line")
    job = await at_its_end(rd, clock, handle.id)
    assert (job.state, calls) == ("done", ["line"])


@pytest.mark.behaviour("B4")
async def test_b4_delete_read_as_not_landed(rd: Redrive, tmp_path: Path) -> None:
    file = tmp_path / "note.md"
    file.write_text("x")
    calls: list[int] = []

    @rd.task(effects=[Effect("file", lambda payload, witness: file.exists(), mode="absent")])
    async def delete() -> None:
        calls.append(1)
        file.unlink()
        raise OutcomeUnknown("no answer")

    assert await soon(delete.call())
    assert len(calls) == 1, "a second one would have failed: the file is gone"


@pytest.mark.behaviour("B5")
async def test_b5_whole_file_witness_and_duplicate_lines(rd: Redrive, clock: FakeClock, tmp_path: Path) -> None:
    """A unique piece of what was written is enough, whoever writes beside it; and repeating it adds nothing."""
    log = tmp_path / "log.md"
    log.write_text("---\ntitle: log\n---\n")

    def there(payload: dict[str, Any], witness: Any) -> bool:
        return witness in log.read_text()

    @rd.task(effects=[Effect("line", there)], idempotent=True, backoff="none")
    async def append(ctx: Context, line: str) -> None:
        marked = f"{line} <!-- {ctx.idempotency_key} -->"
        if marked not in log.read_text():
            log.write_text(log.read_text() + marked + "\n")
        log.write_text(log.read_text().replace("title: log", "title: touched"))  # another writer
        raise OutcomeUnknown("no answer", witness=marked)

    handles = [await append.options(idempotency_key=f"k{n}").enqueue("same line") for n in range(3)]
    for handle in handles:
        assert (await at_its_end(rd, clock, handle.id)).state == "done"
    assert log.read_text().count("same line") == 3


@pytest.mark.behaviour("B6")
async def test_b6_first_effect_hides_the_missing_second(rd: Redrive) -> None:
    done: list[str] = []

    def look(name: str) -> Effect:
        return Effect(name, lambda payload, witness: name in done)

    @rd.task(effects=[look("file"), look("index")], idempotent=True)
    async def create() -> None:
        if "file" not in done:
            done.append("file")
            raise OutcomeUnknown("no answer")
        done.append("index")

    outcome = await soon(create.call())
    assert outcome and done == ["file", "index"]


@pytest.mark.behaviour("B7")
@pytest.mark.parametrize("disabled", [False, True])
async def test_b7_wrapper_without_a_manifest(rd: Redrive, clock: FakeClock, disabled: bool) -> None:
    """Verified by what it wraps, also while that is disabled."""
    done = {"file"}
    runs: list[int] = []

    def look(name: str) -> Effect:
        return Effect(name, lambda payload, witness: name in done)

    effects = [look("file"), look("index")]
    probe = Probe("bridge", lambda: not disabled)

    @rd.task("inner", effects=effects, idempotent=True, requires=[probe], max_attempts=1)
    async def inner() -> None: ...

    @rd.task(wraps="operation_id", idempotent=True, backoff="none")
    async def again(operation_id: str) -> None:
        runs.append(1)
        if len(runs) == 2:
            done.add("index")
        raise OutcomeUnknown("no answer")

    first = await inner.options(delay=9_999).enqueue()
    job = await at_its_end(rd, clock, (await again.enqueue(first.id)).id)
    assert (job.state, len(runs)) == ("done", 2)


@pytest.mark.behaviour("B8")
async def test_b8_success_with_an_unverified_part(rd: Redrive, clock: FakeClock) -> None:
    calls: list[int] = []

    @rd.task(idempotent=True)
    async def create() -> dict[str, Any]:
        calls.append(1)
        return {"success": True, "verified": {"x": len(calls) > 1}}

    outcome = await soon(create.call())
    assert outcome.status == "queued_for_retry" and "not verified: x" in str(outcome.error)
    job = await at_its_end(rd, clock, outcome.operation_id or "")
    assert (job.state, len(calls)) == ("done", 2)


@pytest.mark.behaviour("B9")
async def test_b9_disabled_reported_as_not_found(rd: Redrive, clock: FakeClock) -> None:
    asked: list[int] = []

    async def check() -> bool:
        asked.append(1)
        return len(asked) > 1

    @rd.task(requires=[Probe("bridge", check)])
    async def work() -> str:
        return "worked"

    outcome = await soon(work.call())
    assert outcome.status == "queued_for_retry" and "not found" not in str(outcome.public())
    job = await rd.jobs.get(outcome.operation_id or "")
    assert (job.attempts, len(asked)) == (1, 1), "a flaky probe burns no tries"
    clock.advance(29)
    assert not await soon(rd.retry(job.id))
    assert len(asked) == 1, "the cool-down"
    clock.advance(1)
    assert (await soon(rd.retry(job.id))).result == "worked"


@pytest.mark.behaviour("B9")
async def test_b9_no_alarm_for_a_write_that_has_landed(rd: Redrive, clock: FakeClock) -> None:
    """What it needs is away, but what it did can be seen all the same."""
    up, landed = True, False

    @rd.task(
        requires=[Probe("bridge", lambda: up)],
        effects=[Effect("line", lambda payload, witness: landed)],
        max_attempts=3,
    )
    async def insert() -> None:
        raise ConnectionResetError("cut off")

    handle = await insert.enqueue()
    await soon(rd.drain())
    up, landed = False, True
    job = await at_its_end(rd, clock, handle.id)
    assert (job.state, job.history[-1].outcome) == ("done", "recovered")


@pytest.mark.behaviour("B10", "C19")
@pytest.mark.parametrize(
    ("kind", "by_hand"), [("plugin_missing", True), ("app_closed", True), ("startup_race", False)], ids=str
)
@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_b10_what_a_user_must_do_is_not_retried(rd: Redrive, kind: str, by_hand: bool, how: str) -> None:
    """The same words of the application, raised or returned, by one table of rules."""

    class Bridge(Exception):
        error_kind = kind

    rd.classify_rule(
        lambda failure: {"plugin_missing": "needs_human", "app_closed": "needs_human", "startup_race": "network"}.get(
            failure.error_kind or ""
        ),
        name="bridge",
    )
    calls: list[int] = []

    @rd.task
    async def work() -> Any:
        calls.append(1)
        if how == "raised":
            raise Bridge("see above")
        return {"error": "see above", "error_kind": kind}

    outcome = await soon(work.call())
    assert (outcome.status == "failed") is by_hand
    assert len(calls) == (1 if by_hand else 3)


@pytest.mark.behaviour("B11")
async def test_b11_classes_that_were_loaded_twice(rd: Redrive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bridge_errors.py").write_text("class BridgeRefused(Exception):\n    error_kind = 'needs_human'\n")
    (tmp_path / "bridge_busy.py").write_text("class Busy(Exception):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    typed, plain = importlib.import_module("bridge_errors"), importlib.import_module("bridge_busy")
    calls: list[int] = []

    @rd.task(retry_on=(plain.Busy,), backoff="none")
    async def work(name: str) -> None:
        calls.append(1)
        raise (typed.BridgeRefused if name == "typed" else plain.Busy)("now")

    try:
        importlib.reload(typed), importlib.reload(plain)
        assert (await soon(work.call("typed"))).status == "failed" and len(calls) == 1
        assert (await soon(work.call("plain"))).status == "queued_for_retry"
    finally:
        del sys.modules["bridge_errors"], sys.modules["bridge_busy"]


@pytest.mark.behaviour("B12")
async def test_b12_consent_of_the_wrong_session_and_swallowed_prompts(
    rd: Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of the session that wanted it, under the task's label, and nobody can swallow the question."""
    monkeypatch.setenv("REDRIVE_SESSION_ID", "sidecar")
    ran: list[str] = []

    @rd.task(consent="vault")
    async def write(text: str) -> dict[str, Any]:
        try:
            ran.append(text)
        except Exception as error:
            return {"error": str(error)}
        return {"success": True}

    await rd.sessions.grant("sidecar", "vault", by="ann")
    mine = await write.options(session_id="s1").enqueue("one")
    await soon(rd.drain())
    assert ((await mine.refresh()).because, ran) == ("consent", [])
    await rd.sessions.grant("s1", "vault", by="ann")
    await soon(rd.drain())
    assert ran == ["one"]


@pytest.mark.behaviour("B13")
async def test_b13_the_server_s_session_instead_of_the_caller_s(rd: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_SESSION_ID", "server")
    token = session_of.set("caller")
    try:
        outcome = await soon(rd.submit("think", {}))
    finally:
        session_of.reset(token)
    assert (await rd.jobs.get(outcome.operation_id or "")).session_id == "caller"


@pytest.mark.behaviour("B14")
async def test_b14_identity_forgotten_before_the_chain_ended(rd: Redrive, clock: FakeClock) -> None:
    made: list[str] = []

    @rd.task(consent=True, backoff="none")
    async def create(ctx: Context, title: str) -> str:
        def note(key: str) -> str:
            made.append(key)
            return key

        return await ctx.once("note", note)

    first = await create.options(session_id="s1", idempotency_key="note-1").enqueue("a")
    await soon(rd.drain())
    clock.advance(30 * 86_400)
    await rd.make_scheduler(rd.make_worker()).prune()
    again = await create.options(session_id="s1", idempotency_key="note-1").enqueue("a")
    assert again.duplicate and again.id == first.id
    await rd.jobs.approve(first.id)
    await soon(rd.drain())
    assert made == ["note-1:note"]
    clock.advance(365 * 86_400)
    await rd.make_scheduler(rd.make_worker()).prune()
    assert (await create.options(session_id="s1", idempotency_key="note-1").enqueue("a")).duplicate


@pytest.mark.behaviour("B15")
async def test_b15_a_result_too_large_for_the_client(rd: Redrive) -> None:
    @rd.task
    async def read() -> str:
        return "x" * 500_000

    shown = (await soon(read.call())).public()
    assert len(shown["result"]) < 100_200 and shown["truncated"] is True
    assert shown["operation_id"] in shown["result"]


@pytest.mark.behaviour("B16")
async def test_b16_a_long_job_does_not_look_like_a_dead_worker(live: Redrive) -> None:
    """A thread that is busy for long: leases are renewed, others run, the scheduler makes its rounds."""
    go, begun = threading.Event(), threading.Event()

    @live.task(lease=0.3)
    def long(ctx: BlockingContext) -> int:
        begun.set()
        assert go.wait(20)
        return ctx.job.run

    @live.task
    async def short(n: int) -> int:
        return n

    async with live.worker():
        handle = await long.enqueue()
        await soon(asyncio.to_thread(begun.wait, 20))
        for n in range(10):
            assert await (await short.enqueue(n)).result(20) == n
            await asyncio.sleep(0.05)
        assert (await handle.refresh()).state == "running"
        go.set()
        assert await handle.result(20) == 1, "taken from nobody"


@pytest.mark.behaviour("B16")
async def test_b16_a_job_that_stands_still_is_named(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(stalled_after=600)
    async def think() -> None: ...

    await think.enqueue()
    await rd.store.claim(Wanted(slots=1), "somebody", clock.now())
    clock.advance(599)
    assert not any("stalled" in issue for issue in (await rd.health()).issues)
    clock.advance(2)
    (issue,) = [issue for issue in (await rd.health()).issues if "stalled" in issue]
    assert "think" in issue and "10 min" in issue


@pytest.mark.behaviour("B17")
async def test_b17_success_notices_that_kept_a_session_waiting(rd: Redrive, clock: FakeClock) -> None:
    fails = 3

    @rd.task
    async def work() -> str:
        nonlocal fails
        if fails:
            fails -= 1
            raise ConnectionError("cut")
        return "worked"

    outcome = await soon(rd.call(work, session_id="s1"))
    await at_its_end(rd, clock, outcome.operation_id or "")
    (notice,) = await rd.sessions.inbox("s1", unread=False)
    assert (notice.kind, notice.status, notice.level, notice.priority) == (
        "retry_success", "resolved", "acknowledgement", "normal",
    )  # fmt: skip


@pytest.mark.behaviour("B18")
async def test_b18_a_workflow_with_a_failed_step_is_not_complete(rd: Redrive) -> None:
    @rd.task
    async def one() -> None:
        raise redrive.GiveUp("no")

    @rd.task
    async def two() -> None: ...

    flow = rd.workflow("article")
    first = flow.add(one)
    flow.add(two, after=[first])
    handle = await flow.start()
    await soon(rd.drain())
    status = await handle.status()
    assert status.state == "blocked" and not status.complete


@pytest.mark.behaviour("B19")
async def test_b19_a_retry_that_needs_the_resource_to_be_asked_for(rd: Redrive, clock: FakeClock) -> None:
    up = False

    @rd.task(requires=[Probe("bridge", lambda: up)])
    async def work(text: str) -> str:
        return text

    outcome = await soon(work.call("as given"))
    while_down = await soon(rd.retry(outcome.operation_id or ""))
    assert not while_down and "bridge" in while_down.message, "it answers, and says what is missing"
    up = True
    clock.advance(30)
    with pytest.raises(TypeError):
        await rd.retry(outcome.operation_id, text="another")  # type: ignore[call-arg]
    assert (await soon(rd.retry(outcome.operation_id or ""))).result == "as given"


@pytest.mark.behaviour("B20")
@pytest.mark.parametrize("door", ["worker", "call"])
async def test_b20_a_flat_timeout_for_everything(rd: Redrive, door: str) -> None:
    """A task that says nothing may take as long as it likes; one that asks for a limit has it.

    Both run when a day passes for every timer of the event loop: the second one ends by it, so a limit would be seen.
    """
    begun, go = asyncio.Semaphore(0), asyncio.Event()

    @rd.task
    async def long() -> str:
        begun.release()
        await go.wait()
        return "deliberately long"

    @rd.task(timeout=1800, max_attempts=1)
    async def limited() -> None:
        begun.release()
        await asyncio.Event().wait()

    async with rd.worker() if door == "worker" else contextlib.nullcontext():
        calls = [asyncio.create_task(task.call()) for task in (long, limited) if door == "call"]
        for task in (long, limited) if door == "worker" else ():
            await task.enqueue()
        for _ in range(2):
            await soon(begun.acquire())
        ids = [job.id for name in ("long", "limited") for job in (await rd.jobs.list(task=name)).jobs]
        LoopTime().leap(86_400)

        async def limited_ended() -> bool:
            return (await rd.jobs.get(ids[1])).state is State.dead

        await eventually(limited_ended, "the one with a limit ends")
        assert (await rd.jobs.get(ids[0])).state is State.running, "the other one goes on"
        go.set()

        async def long_ended() -> bool:
            return (await rd.jobs.get(ids[0])).state is State.done

        await eventually(long_ended, "it ends by itself")
        answers = await soon(asyncio.gather(*calls))
    done, dead = [await rd.jobs.get(id) for id in ids]
    assert (done.attempts, done.crashes, done.result) == (1, 0, "deliberately long")
    assert (dead.detail, "1800" in str(dead.error)) == ("timeout", True)
    assert [bool(answer) for answer in answers] == ([True, False] if door == "call" else [])


@pytest.mark.behaviour("B21")
async def test_b21_two_pollers_on_one_queue(database: Path) -> None:
    """As many workers as you like: each job goes to one of them, and what is pending is on disk."""
    ran: list[tuple[str, int]] = []
    apps = [Redrive(database) for _ in range(2)]
    for number, app in enumerate(apps):

        @app.task("work")
        async def work(ctx: Context, n: int, number: int = number) -> None:
            ran.append((ctx.job.id, ctx.job.run))
            await asyncio.sleep(0)

    async with apps[0], apps[1]:
        await apps[0].enqueue_many("work", [{"n": n} for n in range(100)])
        async with apps[0].worker(), apps[1].worker():

            async def over() -> bool:
                return bool((await apps[0].stats())["totals"]["done"] == 100)

            await eventually(over, "all are done")
    assert len(set(ran)) == len(ran) == 100


@pytest.mark.file("another process locks the file")
@pytest.mark.behaviour("B22", "C46")
async def test_b22_database_is_locked(database: Path) -> None:
    """Another process keeps the file locked for a while: writers wait, and nothing is lost."""
    holder = """
        import sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        print("locked", flush=True)
        sys.stdin.readline()
        connection.execute("COMMIT")
    """
    async with Redrive(database) as rd:
        await rd.enqueue("work", {})
        with process(holder, database) as child:
            assert await line_of(child) == "locked"
            writes = [asyncio.create_task(rd.enqueue("work", {"n": n})) for n in range(10)]
            done, _ = await asyncio.wait(writes, timeout=0.2)
            assert not done
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            await soon(asyncio.gather(*writes))
        assert len((await rd.jobs.list()).jobs) == 11


@pytest.mark.behaviour("B23")
async def test_b23_none_instead_of_a_failure(rd: Redrive, clock: FakeClock) -> None:
    """A function that answers None where it failed can be told so; None alone says nothing."""
    calls: list[int] = []

    @rd.task(result_policy=lambda value: "the bridge gave nothing" if value is None else None, idempotent=True)
    async def fetch() -> str | None:
        calls.append(1)
        return None if len(calls) == 1 else "text"

    outcome = await soon(fetch.call())
    assert outcome.status == "queued_for_retry" and "the bridge gave nothing" in str(outcome.error)
    job = await at_its_end(rd, clock, outcome.operation_id or "")
    assert (job.state, job.result, len(calls)) == ("done", "text", 2)


# Still wrong there ---------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("B24")
async def test_b24_running_for_ever_after_a_crash(rd: Redrive, clock: FakeClock, database: Path) -> None:
    """With real processes: tests/chaos/test_kill_storm.py."""

    @rd.task
    async def work() -> str:
        return "worked"

    handle = await work.enqueue()
    dead = """
        import asyncio, os, sys, redrive
        from redrive.core.store import Wanted
        from tests.support import FakeClock
        async def main():
            rd = redrive.Redrive(sys.argv[1], clock=FakeClock(float(sys.argv[2])))
            await rd.open()
            claim = await rd.store.claim(Wanted(slots=1), "doomed", float(sys.argv[2]))
            print(claim.jobs[0].id, flush=True)
            os._exit(9)
        asyncio.run(main())
    """
    with process(dead, database, clock.now()) as child:
        assert await line_of(child) == handle.id
        await asyncio.to_thread(child.wait, 20)
    assert (await handle.refresh()).state == "running"

    async def taken() -> bool:
        await rd.drain()
        return (await handle.refresh()).state == "done"

    await eventually(taken, "somebody takes it over")


@pytest.mark.behaviour("B25")
async def test_b25_verified_but_not_written_down(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(effects=[Effect("line", lambda payload, witness: True)])
    async def insert() -> None:
        raise OutcomeUnknown("no answer")

    outcome = await soon(rd.call(insert, session_id="s1"))
    job = await rd.jobs.get(outcome.operation_id or "")
    assert outcome and (job.state, job.token) == ("done", None)
    clock.advance(9_999)
    assert await soon(rd.drain()) == 0


@pytest.mark.behaviour("B26", "C28", "003-75")
async def test_b26_too_old_and_silent(rd: Redrive, clock: FakeClock) -> None:
    calls: list[int] = []
    told: list[str] = []
    rd.subscribe("dead_letter", lambda event: told.append(str(event.job_id)))

    @rd.task
    async def work() -> None:
        calls.append(1)
        raise ConnectionError("cut")

    outcome = await soon(rd.call(work, session_id="s1"))
    clock.advance(31 * 60)
    job = await at_its_end(rd, clock, outcome.operation_id or "")
    assert (job.state, job.because, len(calls)) == ("dead", "too_old", 3)
    assert "max_age" in str(job.recommendation)
    await eventually(lambda: told == [job.id], "it is told")
    assert any(notice.kind == "retry_exhausted" for notice in await rd.sessions.inbox("s1"))


@pytest.mark.behaviour("B26", "C28")
async def test_b26_waiting_for_a_first_run_is_no_age(rd: Redrive, clock: FakeClock) -> None:
    """A machine asleep, or nobody to run it: what never failed is not old."""

    @rd.task
    async def think() -> str:
        return "thought"

    outcome = await soon(rd.submit(think))
    clock.advance(30 * 86_400)
    await soon(rd.drain())
    assert (await rd.outcome(outcome.operation_id or "")).result == "thought"


@pytest.mark.behaviour("B27")
async def test_b27_a_result_that_says_it_is_permanent(rd: Redrive, clock: FakeClock) -> None:
    calls: list[int] = []

    @rd.task
    async def work() -> dict[str, Any]:
        calls.append(1)
        return {"success": False, "message": "timed out", "transient": False}

    handle = await work.enqueue()
    job = await at_its_end(rd, clock, handle.id)
    assert (job.state, len(calls)) == ("dead", 1)


@pytest.mark.behaviour("B28", "003-34")
@pytest.mark.parametrize("path", ["first call", "manual retry", "worker"])
async def test_b28_only_one_effect_verified_on_some_paths(rd: Redrive, clock: FakeClock, path: str) -> None:
    asked: list[str] = []
    calls: list[int] = []

    def look(name: str, there: bool) -> Effect:
        def verify(payload: dict[str, Any], witness: Any) -> bool:
            asked.append(name)
            return there

        return Effect(name, verify)

    @rd.task(effects=[look("file", True), look("index", False)], idempotent=True, max_attempts=1)
    async def create() -> None:
        calls.append(1)
        raise OutcomeUnknown("no answer")

    handle = await create.options(delay=60).enqueue() if path != "first call" else None
    if handle is None:
        outcome = await soon(create.call())
    elif path == "manual retry":
        outcome = await soon(rd.retry(handle.id))
    else:
        await at_its_end(rd, clock, handle.id)
        outcome = await rd.outcome(handle.id)
    assert outcome.status == "failed", "half of it is no success"
    assert asked == ["file", "index"] and len(calls) == 1


@pytest.mark.behaviour("B29")
async def test_b29_parts_that_nobody_called(rd: Redrive, clock: FakeClock) -> None:
    """A schedule makes a job by itself; a workflow step that waits for its retry is continued by whoever runs it."""
    ran: list[str] = []

    @rd.task(schedule=redrive.cron("0 * * * *"))
    async def hourly() -> None:
        ran.append("hourly")

    @rd.task(backoff="none")
    async def one(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise ConnectionError("cut")
        return "one"

    @rd.task
    async def two(text: str) -> str:
        return f"{text} two"

    flow = rd.workflow("article")
    step = flow.add(one)
    flow.add(two, text=step.output)
    handle = await flow.start()
    await soon(rd.drain())
    clock.advance(3_600)
    await soon(rd.drain())
    assert ran == ["hourly"]
    assert (await handle.status()).complete


@pytest.mark.behaviour("B30", "C3")
async def test_b30_the_last_delay_never_used(rd: Redrive, clock: FakeClock) -> None:
    """Five attempts are four waits, and the table says so; with six, the fifth is there."""
    assert schedule(policy_of(None, None, None, "retry")) == [10.0, 20.0, 45.0, 90.0]
    assert schedule(policy_of(redrive.Policy(max_attempts=6), None, None, "retry"))[-1] == 120.0
    assert schedule(policy_of(None, None, None, "deferred_submit")) == []
    assert REASONS["deferred_submit"].max_attempts == 1


@pytest.mark.behaviour("B31")
async def test_b31_a_retry_of_what_is_exhausted_waits_for_ever(rd: Redrive, clock: FakeClock) -> None:
    calls: list[int] = []

    @rd.task(max_attempts=2)
    async def work() -> None:
        calls.append(1)
        raise ConnectionError("cut")

    outcome = await soon(work.call())
    for grants in (1, 2, 3, 4):
        await soon(rd.retry(outcome.operation_id or ""))
        job = await at_its_end(rd, clock, outcome.operation_id or "")
        assert (job.state, job.grants) == ("dead", min(grants, 3))
    assert len(calls) == 8


@pytest.mark.behaviour("B32", "003-64")
async def test_b32_a_preview_instead_of_the_result(rd: Redrive, clock: FakeClock) -> None:
    fails = 3

    @rd.task
    async def work() -> dict[str, Any]:
        nonlocal fails
        if fails:
            fails -= 1
            raise ConnectionError("cut")
        return {"text": "x" * 5_000, "verified": {"file": True}}

    outcome = await soon(rd.call(work, session_id="s1"))
    await at_its_end(rd, clock, outcome.operation_id or "")
    (notice,) = await rd.sessions.inbox("s1", unread=False)
    assert notice.result == {"text": "x" * 5_000, "verified": {"file": True}}


@pytest.mark.behaviour("B33", "003-30")
async def test_b33_history_without_kinds(rd: Redrive, clock: FakeClock) -> None:
    class Busy(Exception):
        error_kind = "server_error"

    @rd.task(max_attempts=4)
    async def work() -> None:
        raise Busy("now")

    outcome = await soon(work.call())
    job = await at_its_end(rd, clock, outcome.operation_id or "")
    kinds = [(one.failure.error_kind, one.failure.error_class) for one in job.history if one.failure]
    assert kinds == [("server_error", "Busy")] * 4


@pytest.mark.behaviour("B34")
async def test_b34_records_gone_after_an_hour(rd: Redrive, clock: FakeClock) -> None:
    @rd.task
    async def works() -> str:
        return "worked"

    @rd.task
    async def dies() -> None:
        raise redrive.GiveUp("no")

    done, dead = await soon(rd.submit(works)), await soon(rd.submit(dies))
    await soon(rd.drain())
    clock.advance(13 * 86_400)
    await rd.make_scheduler(rd.make_worker()).prune()
    assert (await rd.outcome(done.operation_id or "")).result == "worked"
    clock.advance(3_650 * 86_400)
    await rd.make_scheduler(rd.make_worker()).prune()
    letter = await rd.dead.show(dead.operation_id or "")
    assert letter.history[-1].failure is not None and letter.payload is not None


@pytest.mark.behaviour("B35")
async def test_b35_lost_updates_and_stringified_params(rd: Redrive, clock: FakeClock) -> None:
    """Of two writers one is refused; a lease that ended writes nothing; what is not JSON is refused by name."""

    class Thing:
        pass

    with pytest.raises(InvalidPayload, match="thing"):
        await rd.enqueue("work", {"thing": Thing()})
    handle = await rd.enqueue("work", {})
    job = await handle.refresh()
    from redrive.core import lifecycle

    moves = [lifecycle.cancelled(job, clock.now(), who=who, why=None) for who in ("ann", "bob")]
    first, second = [(await rd.store.apply([Commit((move,))]))[0] for move in moves]
    assert isinstance(first, Applied) and isinstance(second, Stale)
    assert len(handle.id) == 32, "128 bits"


@pytest.mark.behaviour("B36")
async def test_b36_notices_lost_while_the_channel_is_down(database: Path, clock: FakeClock) -> None:
    heard: list[str] = []
    up = False

    async def phone(message: Any) -> None:
        if not up:
            raise ConnectionError("no line")
        heard.append(message.title)

    async with Redrive(database, clock=clock, channels=[phone], comebacks=()) as rd:

        @rd.task(max_attempts=1)
        async def work() -> None:
            raise ConnectionError("cut")

        outcome = await soon(rd.call(work, session_id="s1", timeout=0))
        await eventually(lambda: _is_dead(rd, outcome.operation_id or ""), "it dies")
        await soon(rd.drain())
        assert heard == [] and len(await rd.notices.waiting()) == 1
        up = True
        for _ in range(20):
            clock.advance(400)
            await soon(rd.drain())
        assert len(heard) == 1 and await rd.notices.waiting() == []


async def _is_dead(rd: Redrive, job_id: str) -> bool:
    return (await rd.jobs.get(job_id)).state == "dead"


@pytest.mark.behaviour("B37")
async def test_b37_one_long_job_delays_all_retries(live: Redrive) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @live.task
    async def long() -> None:
        begun.set()
        await go.wait()

    @live.task(backoff="none")
    async def retried(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError("cut")
        return ctx.attempt

    async with live.worker(concurrency=4):
        blocker = await long.enqueue()
        await soon(begun.wait())
        handles = [await retried.enqueue() for _ in range(5)]
        assert [await handle.result(20) for handle in handles] == [3] * 5
        assert (await blocker.refresh()).state == "running"
        go.set()
        await blocker.result(20)


@pytest.mark.behaviour("B48")
async def test_b48_done_but_not_acknowledged(rd: Redrive, clock: FakeClock) -> None:
    """The post went out, the process died before saying so; the second run writes something else. One post.

    With real processes killed at every place: tests/chaos/test_effects.py.
    """
    posts: list[str] = []
    drafts = iter(["first draft", "another draft"])

    @rd.task(backoff="none")
    async def publish(ctx: Context) -> str:
        text = next(drafts)

        def post(key: str) -> dict[str, str]:
            posts.append(text)
            return {"text": text}

        found = await ctx.once("post", post)
        if ctx.attempt == 1:
            raise ConnectionError("the acknowledgement is lost")
        return found["text"]

    handle = await publish.enqueue()
    clock.advance(72 * 3_600)
    job = await at_its_end(rd, clock, handle.id)
    assert (job.state, posts) == ("done", ["first draft"])
    assert await handle.result(5) == "first draft", "the answer is what really stands there"
