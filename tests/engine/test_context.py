"""What a running task sees and remembers: steps, effects that happen once, progress, who it is."""

import asyncio
import threading
from typing import Any

import httpx2
import msgspec
import pytest

import redrive
from redrive import BlockingContext, Context, Redrive, RedriveError
from redrive.core.effects import EffectRecord
from tests.receiver import Seen, answer, receiving
from tests.support import FakeClock, soon


async def _effect(rd: Redrive, job_id: str, name: str = "post") -> EffectRecord:
    document = await rd.store.doc("effect", f"{job_id}/{name}")
    assert document is not None
    return msgspec.json.decode(document.value, type=EffectRecord)


async def test_the_context_says_what_is_running(rd: Redrive) -> None:
    seen: dict[str, Any] = {}

    @rd.task(backoff="none", retry_on=(ValueError,))
    async def work(ctx: Context) -> None:
        seen[f"attempt {ctx.attempt}"] = (
            ctx.job.id, ctx.session_id, ctx.agent, ctx.model, ctx.changes, ctx.results, ctx.idempotency_key,
            ctx.cancelled,
        )  # fmt: skip
        if ctx.attempt == 1:
            raise ValueError

    job = await work.options(session_id="s1", agent="writer", model="m", idempotency_key="k").enqueue()
    await soon(rd.drain())
    said = (job.id, "s1", "writer", "m", [], {}, "k", False)
    assert seen == {"attempt 1": said, "attempt 2": said}


async def test_without_a_key_the_id_is_the_key(rd: Redrive) -> None:
    @rd.task
    async def work(ctx: Context) -> str:
        return ctx.idempotency_key

    job = await work.enqueue()
    await soon(rd.drain())
    assert await job.result(5) == job.id


async def test_current_is_found_deep_in_the_stack(rd: Redrive) -> None:
    def deep() -> str:
        return redrive.current().job.id

    @rd.task
    async def work() -> list[str]:
        return [deep(), await asyncio.to_thread(deep), await asyncio.create_task(deeper())]

    async def deeper() -> str:
        return deep()

    @rd.task
    def blocking() -> str:
        return deep()

    jobs = [await work.enqueue(), await work.enqueue(), await blocking.enqueue()]
    await soon(rd.drain())
    assert await jobs[0].result(5) == [jobs[0].id] * 3
    assert await jobs[1].result(5) == [jobs[1].id] * 3
    assert await jobs[2].result(5) == jobs[2].id
    with pytest.raises(RedriveError, match="while a task runs"):
        redrive.current()


async def test_progress_is_kept_with_the_job(rd: Redrive) -> None:
    seen: list[Any] = []

    @rd.task
    async def work(ctx: Context) -> None:
        await ctx.progress(0.25, "a quarter")
        await ctx.progress(0.5)
        document = await rd.store.doc("progress", f"{ctx.job.id}/now")
        assert document is not None
        seen.append(msgspec.json.decode(document.value))

    @rd.task(max_attempts=1)
    async def wrong(ctx: Context) -> None:
        await ctx.progress(1.5)

    await work.enqueue()
    bad = await wrong.enqueue()
    await soon(rd.drain())
    assert (seen[0]["fraction"], seen[0]["note"]) == (0.5, None)
    assert "between 0 and 1" in str((await bad.refresh()).error)


# Steps ---------------------------------------------------------------------------------------------------------------


async def test_a_step_is_remembered_across_a_retry(rd: Redrive) -> None:
    calls: list[str] = []

    @rd.task(backoff="none", retry_on=(ValueError,))
    async def work(ctx: Context, topic: str) -> list[Any]:
        async def write(about: str, *, tone: str) -> dict[str, str]:
            calls.append(f"write {about} {tone}")
            return {"draft": about}

        def nothing() -> None:
            calls.append("nothing")

        found = [await ctx.step("draft", write, topic, tone="dry"), await ctx.step("none", nothing)]
        if ctx.attempt < 3:
            raise ValueError
        return found

    job = await work.enqueue("foxes")
    await soon(rd.drain())
    assert await job.result(5) == [{"draft": "foxes"}, None]
    assert calls == ["write foxes dry", "nothing"]


async def test_an_unfinished_step_is_repeated(rd: Redrive) -> None:
    calls: list[int] = []

    @rd.task(backoff="none", retry_on=(ValueError,))
    async def work(ctx: Context) -> int:
        def shaky() -> int:
            calls.append(ctx.attempt)
            if len(calls) < 2:
                raise ValueError
            return 7

        return await ctx.step("shaky", shaky)

    job = await work.enqueue()
    await soon(rd.drain())
    assert await job.result(5) == 7
    assert calls == [1, 2]


async def test_a_step_looks_the_same_the_first_time_as_on_replay(rd: Redrive) -> None:
    seen: list[Any] = []

    @rd.task(backoff="none", retry_on=(ValueError,))
    async def work(ctx: Context) -> None:
        seen.append(await ctx.step("pair", lambda: (1, {2: "two"})))
        if ctx.attempt == 1:
            raise ValueError

    await work.enqueue()
    await soon(rd.drain())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", ["step", "once"])
async def test_a_name_is_used_once_in_an_attempt(rd: Redrive, kind: str) -> None:
    @rd.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        for _ in range(2):
            if kind == "step":
                await ctx.step("same", lambda: 1)
            else:
                await ctx.once("same", lambda key: 1)

    job = await work.enqueue()
    await soon(rd.drain())
    assert "used twice" in str((await job.refresh()).error)


async def test_a_step_must_be_json(rd: Redrive) -> None:
    @rd.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        await ctx.step("odd", object)

    job = await work.enqueue()
    await soon(rd.drain())
    assert "must be JSON" in str((await job.refresh()).error)


async def test_two_jobs_do_not_share_steps(rd: Redrive) -> None:
    @rd.task
    async def work(ctx: Context, n: int) -> int:
        return await ctx.step("same", lambda: n)

    jobs = [await work.enqueue(1), await work.enqueue(2)]
    await soon(rd.drain())
    assert [await job.result(5) for job in jobs] == [1, 2]


# Once ----------------------------------------------------------------------------------------------------------------


async def test_an_effect_that_landed_is_not_repeated(rd: Redrive) -> None:
    posted: list[str] = []

    @rd.task(backoff="none", retry_on=(ValueError,))
    async def work(ctx: Context) -> Any:
        async def post(key: str) -> dict[str, str]:
            posted.append(key)
            return {"id": "p1"}

        found = await ctx.once("post", post)
        if ctx.attempt < 3:
            raise ValueError
        return found

    job = await work.options(idempotency_key="article").enqueue()
    await soon(rd.drain())
    assert await job.result(5) == {"id": "p1"}
    assert posted == ["article:post"]
    assert (await _effect(rd, job.id)).status == "landed"


async def test_the_intent_is_on_disk_before_the_call(rd: Redrive) -> None:
    seen: list[str] = []

    @rd.task
    async def work(ctx: Context) -> None:
        async def post(key: str) -> None:
            seen.append((await _effect(rd, ctx.job.id)).status)

        await ctx.once("post", post)

    await work.enqueue()
    await soon(rd.drain())
    assert seen == ["intended"]


class Cms:
    """A receiver that takes the post and then loses the answer."""

    def __init__(self) -> None:
        self.posts: list[str] = []
        self.looks = 0

    async def post(self, key: str, *, answer: bool) -> str:
        self.posts.append(key)
        if not answer:
            raise TimeoutError("no answer")
        return "posted"

    async def find(self, key: str) -> str | None:
        self.looks += 1
        return "found" if key in self.posts else None


async def test_an_open_effect_is_verified_and_found_landed(rd: Redrive) -> None:
    cms = Cms()

    @rd.task(backoff="none")
    async def work(ctx: Context) -> str:
        return await ctx.once("post", lambda key: cms.post(key, answer=False), verify=cms.find)

    job = await work.enqueue()
    await soon(rd.drain())
    assert await job.result(5) == "found"
    assert (len(cms.posts), cms.looks) == (1, 1)


@pytest.mark.parametrize("says_so", [None, False, 0, "", []])
async def test_an_open_effect_that_is_absent_is_performed_again(rd: Redrive, says_so: Any) -> None:
    cms = Cms()

    async def find(key: str) -> Any:
        return await cms.find(key) or says_so

    @rd.task(backoff="none")
    async def work(ctx: Context) -> str:
        async def post(key: str) -> str:
            if ctx.attempt == 1:
                raise TimeoutError("never arrived")
            return await cms.post(key, answer=True)

        return await ctx.once("post", post, verify=find)

    job = await work.enqueue()
    await soon(rd.drain())
    assert await job.result(5) == "posted"
    assert (len(cms.posts), cms.looks) == (1, 1)


async def test_an_effect_that_was_found_is_not_repeated_whatever_was_found(rd: Redrive) -> None:
    calls: list[str] = []

    def post(key: str) -> None:
        calls.append(key)
        raise TimeoutError

    @rd.task(base=0.0, max_attempts=3)
    async def publish(ctx: Context) -> str:
        await ctx.once("post", post, verify=lambda key: float("nan"))
        return "published"

    job = await publish.enqueue()
    await soon(rd.drain())
    assert await job.result(1) == "published"
    assert len(calls) == 1


@pytest.mark.parametrize(("status", "orders"), [("303 See Other", 1), ("307 Temporary Redirect", 3)])
@pytest.mark.parametrize("then", ["404", "refused"])
async def test_what_failed_behind_a_redirect_may_have_landed_before_it(
    rd: Redrive, status: str, orders: int, then: str
) -> None:
    """See Other means that it was done; after 307 the same request is made again, which the next one did not take."""

    async def talk(seen: Seen, writer: asyncio.StreamWriter) -> None:
        where = "/made" if then == "404" else "http://127.0.0.1:1/made"
        said = answer("404 Not Found") if seen.path == "/made" else answer(status, location=where)
        writer.write(said)
        await writer.drain()

    async with receiving(talk) as receiver:

        @rd.task(base=0.0, max_attempts=3, retry_on=[httpx2.HTTPStatusError])
        async def order(ctx: Context) -> None:
            async def post(key: str) -> None:
                async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as client:
                    (await client.post(receiver.url("/orders"))).raise_for_status()

            await ctx.once("order", post)

        await order.enqueue()
        await soon(rd.drain())
        assert len([seen for seen in receiver.requests if seen.path == "/orders"]) == orders


async def test_numbers_that_json_cannot_write_are_told(rd: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    @rd.task(max_attempts=1)
    async def steps(ctx: Context) -> object:
        return await ctx.step("mean", lambda: [None, {"mean": float("nan")}])

    @rd.task(max_attempts=1)
    async def result(n: int) -> object:
        return [None, float("inf")] if n else [None]

    jobs = [await steps.enqueue(), await result.enqueue(1), await result.enqueue(0)]
    await soon(rd.drain())
    assert "result[1].mean: nan is not JSON" in str((await jobs[0].refresh()).error)
    assert [await job.result(1) for job in jobs[1:]] == [[None, None], [None]]
    told = [record.getMessage() for record in caplog.records if "stored as null" in record.getMessage()]
    assert len([line for line in told if "(result)" in line]) == 1


async def test_looking_for_such_numbers_fails_no_job(rd: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    deep: Any = "null"
    for _ in range(100):
        deep = [deep]

    @rd.task(max_attempts=1)
    async def raw() -> object:
        return msgspec.Raw(b'{"a":null}')

    @rd.task(max_attempts=1)
    async def nested(ctx: Context) -> object:
        return await ctx.step("deep", lambda: deep)

    jobs = [await raw.enqueue(), await nested.enqueue()]
    await soon(rd.drain())
    assert [await job.result(1) for job in jobs] == [{"a": None}, deep]
    assert "stored as null" not in caplog.text


async def test_a_coroutine_that_a_plain_function_returned_cannot_wait_for_its_own_loop(rd: Redrive) -> None:
    async def really(ctx: BlockingContext) -> None:
        ctx.progress(0.5)

    @rd.task(max_attempts=1)
    def work(ctx: BlockingContext) -> Any:
        return really(ctx)

    job = await work.enqueue()
    await soon(rd.drain())
    assert "register the async function" in str((await job.refresh()).error)


async def test_an_open_effect_without_a_verifier_is_held_for_a_person(rd: Redrive) -> None:
    cms = Cms()

    @rd.task(backoff="none")
    async def work(ctx: Context) -> str:
        return await ctx.once("post", lambda key: cms.post(key, answer=False))

    job = await work.enqueue()
    await soon(rd.drain())
    held = await job.refresh()
    assert (held.state, held.because, len(cms.posts)) == ("held", "outcome_unknown", 1)
    assert held.recommendation is not None and "'post'" in held.recommendation
    assert held.history[-1].outcome == "held"


async def test_a_verifier_that_fails_leaves_it_unknown(rd: Redrive) -> None:
    cms = Cms()

    async def look(key: str) -> str:
        raise ConnectionError("the search is down")

    @rd.task(backoff="none")
    async def work(ctx: Context) -> str:
        return await ctx.once("post", lambda key: cms.post(key, answer=False), verify=look)

    job = await work.enqueue()
    await soon(rd.drain())
    held = await job.refresh()
    assert (held.state, held.because, len(cms.posts)) == ("held", "outcome_unknown", 1)


async def test_an_idempotent_task_repeats_an_open_effect_with_the_same_key(rd: Redrive) -> None:
    cms = Cms()

    @rd.task(backoff="none", idempotent=True)
    async def work(ctx: Context) -> str:
        return await ctx.once("post", lambda key: cms.post(key, answer=ctx.attempt == 2))

    job = await work.enqueue()
    await soon(rd.drain())
    assert await job.result(5) == "posted"
    assert len(cms.posts) == 2 and len(set(cms.posts)) == 1


class Answered(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(f"answered {status_code}")
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConnectionRefusedError("refused"), "absent"), (Answered(429), "absent"), (Answered(404), "absent"),
        (Answered(408), "unknown"), (Answered(409), "unknown"), (Answered(425), "unknown"), (Answered(500), "unknown"),
        (TimeoutError("?"), "unknown"), (ConnectionResetError("cut"), "unknown"), (ValueError("?"), "unknown"),
    ],
    ids=str,
)  # fmt: skip
async def test_only_an_error_that_proves_absence_closes_the_effect(rd: Redrive, error: Exception, status: str) -> None:
    @rd.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        def post(key: str) -> None:
            raise error

        await ctx.once("post", post)

    job = await work.enqueue()
    await soon(rd.drain())
    assert (await _effect(rd, job.id)).status == status


async def test_a_refused_connection_is_simply_tried_again(rd: Redrive) -> None:
    @rd.task(backoff="none")
    async def work(ctx: Context) -> str:
        def post(key: str) -> str:
            if ctx.attempt < 3:
                raise ConnectionRefusedError
            return "posted"

        return await ctx.once("post", post)

    job = await work.enqueue()
    await soon(rd.drain())
    assert await job.result(5) == "posted"


async def test_a_key_makes_effects_of_one_name_distinct(rd: Redrive) -> None:
    keys: list[str] = []

    @rd.task
    async def work(ctx: Context) -> None:
        for user in ("ann", "bob"):
            await ctx.once("mail", keys.append, key=user)

    job = await work.enqueue()
    await soon(rd.drain())
    assert keys == [f"{job.id}:mail:ann", f"{job.id}:mail:bob"]


async def test_an_effect_whose_result_is_not_json_has_landed(rd: Redrive) -> None:
    calls: list[str] = []

    @rd.task(backoff="none", retry_on=(ValueError,))
    async def work(ctx: Context) -> None:
        def post(key: str) -> object:
            calls.append(key)
            return object()

        await ctx.once("post", post)
        if ctx.attempt == 1:
            raise ValueError

    job = await work.enqueue()
    await soon(rd.drain())
    assert (await job.refresh()).state == "done"
    assert len(calls) == 1


async def test_a_task_that_lost_its_job_can_begin_no_effect(live: Redrive) -> None:
    """Cancelled while it runs: the intent is refused by the fence, so the call is never made."""
    begun, posted = asyncio.Event(), []

    @live.task
    async def work(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert ctx.cancelled
            await ctx.once("post", posted.append)

    async with live.worker():
        job = await work.enqueue()
        await soon(begun.wait())
        await job.cancel("stop")
    assert posted == []
    assert (await job.refresh()).state == "discarded"


# Without await -------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("000-74")
async def test_a_sync_task_has_it_all_without_await(rd: Redrive, clock: FakeClock) -> None:
    calls: list[str] = []
    loop_thread = threading.current_thread()

    @rd.task(base=1, retry_on=(ValueError,))
    def work(ctx: BlockingContext, n: int) -> list[Any]:
        assert threading.current_thread() is not loop_thread
        ctx.progress(0.5, "half")
        ctx.usage(input_tokens=3)

        def add(more: int) -> int:
            calls.append("step")
            return n + more

        def post(key: str) -> str:
            calls.append(key)
            return "posted"

        found = [ctx.step("add", add, 2), ctx.once("post", post)]
        if ctx.attempt == 1:
            raise ValueError
        return found

    job = await work.enqueue(1)
    await soon(rd.drain())
    clock.advance(5)
    await soon(rd.drain())
    assert await job.result(5) == [3, "posted"]
    assert calls == ["step", f"{job.id}:post"]


@pytest.mark.parametrize("landed", [True, False])
async def test_a_sync_task_runs_an_async_effect_and_asks_an_async_verifier(rd: Redrive, landed: bool) -> None:
    """Neither is known to have happened before it has run: a coroutine alone says nothing."""
    cms = Cms()

    @rd.task(backoff="none")
    def work(ctx: BlockingContext) -> Any:
        if ctx.attempt == 1 and not landed:
            return ctx.once("post", _lost, verify=cms.find)
        return ctx.once("post", lambda key: cms.post(key, answer=not landed), verify=cms.find)

    job = await work.enqueue()
    await soon(rd.drain())
    assert await job.result(5) == ("found" if landed else "posted")
    assert (len(cms.posts), cms.looks) == (1, 1)


async def _lost(key: str) -> str:
    raise TimeoutError("never arrived")


@pytest.mark.parametrize("kind", ["plainly", "awaited"])
async def test_an_effect_whose_code_has_not_run_has_not_landed(rd: Redrive, kind: str) -> None:
    def post(key: str) -> Any:
        yield key

    @rd.task
    def plainly(ctx: BlockingContext) -> None:
        ctx.once("post", post)

    @rd.task
    async def awaited(ctx: Context) -> None:
        await ctx.once("post", post)

    job = await rd.enqueue(kind)
    await soon(rd.drain())
    dead = await job.refresh()
    assert dead.state == "dead" and "whose code has not run" in str(dead.error)
    assert (await _effect(rd, job.id)).status == "unknown"


@pytest.mark.behaviour("000-74")
async def test_sync_tasks_run_beside_async_ones(live: Redrive) -> None:
    """The thread waits for the async job, and that for two threads at once: nobody blocks anybody."""
    arrived = threading.Barrier(3)
    release = threading.Event()

    @live.task
    def in_thread() -> None:
        arrived.wait(20)
        assert release.wait(20)

    @live.task
    async def on_loop() -> None:
        release.set()

    async with live.worker():
        threads = [await in_thread.enqueue(), await in_thread.enqueue()]
        await asyncio.to_thread(arrived.wait, 20)
        await on_loop.enqueue()
        for job in threads:
            await job.result(20)


async def test_a_thread_past_its_timeout_is_told_and_its_result_counts(
    rd: Redrive, caplog: pytest.LogCaptureFixture
) -> None:
    @rd.task(timeout=0.02)
    def work(ctx: BlockingContext) -> str:
        for _ in range(2000):
            if ctx.cancelled:
                return "told"
            threading.Event().wait(0.01)
        return "never told"

    job = await work.enqueue()
    await soon(rd.drain())
    assert await job.result(5) == "told"
    assert any("after its timeout" in record.getMessage() for record in caplog.records)


async def test_half_a_character_in_a_note_or_a_question_harms_nobody(rd: Redrive) -> None:
    @rd.task
    async def work(ctx: Context) -> None:
        await ctx.progress(0.5, "reads b\udcff.txt")
        await ctx.approval("delete b\udcff.txt?")

    job = await work.enqueue()
    await soon(rd.drain())
    held = await job.refresh()
    assert (held.state, held.because, held.history[-1].decision) == ("held", "approval", "It asks: delete b?.txt?")
    note = await rd.store.doc("progress", f"{job.id}/now")
    assert note is not None and msgspec.json.decode(note.value)["note"] == "reads b?.txt"
