"""What a type checker must accept and refuse in the public API. Read by mypy and pyright, never run.

Each wrong line carries an ignore that both heed; each reports an ignore it does not need, so a mistake that one of them
no longer notices fails the build.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import redrive
from redrive import BlockingContext, BusEvent, Context, Item, Job, JobHandle, Many, Pain, Redrive, State
from redrive.api.blocking import Blocking
from redrive.core.effects import EffectRecord
from redrive.core.job import Usage
from redrive.core.store import Page
from redrive.core.tokens import NewToken, Token
from redrive.core.workflow import WorkflowStatus
from redrive.deadletters.bulk_run import RedriveRun
from redrive.deadletters.group import GroupView
from redrive.deadletters.input_edits import PatchPreview
from redrive.deadletters.new_groups import Newcomers
from redrive.deadletters.triage import Acted
from redrive.flows.schedules import Scheduled
from redrive.flows.workflows import Step, Workflow, WorkflowHandle
from redrive.jobs.tasks import AsyncContextTask, AsyncTask, BlockingHandle, Bound, PlainContextTask, PlainTask
from redrive.reports.health import Health
from redrive.reports.queue_numbers import QueueView
from redrive.scripts.cycle import Result
from redrive.scripts.import_export import Exported, Imported

rd = Redrive("jobs.db", include=["app.tasks"], queues={"mail": {"max_attempts": 3}, "web": redrive.Policy(base=1.0)})


# -- the four kinds, bare


@rd.task
async def plain(a: int, b: str = "") -> list[int]:
    return [a, len(b)]


@rd.task
async def with_context(ctx: Context, a: int, b: str = "") -> list[int]:
    assert_type(ctx.attempt, int)
    return [a, len(b)]


@rd.task
def blocking(a: int, b: str = "") -> list[int]:
    return [a, len(b)]


@rd.task
def blocking_with_context(ctx: BlockingContext, a: int, b: str = "") -> list[int]:
    return [a, len(b)]


@rd.task
async def nothing() -> None: ...


@rd.task
def nothing_blocking() -> None: ...


# -- the four kinds, with options


@rd.task("named", queue="mail", max_attempts=3, timeout=timedelta(seconds=5), idempotency_key="k_{a}")
async def named(a: int) -> str:
    return str(a)


@rd.task(
    retry_on=(ValueError,), give_up_on=(KeyError,), idempotent=True, backoff="doubling", base=1, cap=2.5, lease=30,
    max_age=timedelta(hours=1), on_lost="dead_letter", concurrency=5, rate=redrive.Rate(5, per=60), scope="store",
    stalled_after=60,
)  # fmt: skip
async def named_with_context(ctx: Context, a: int) -> str:
    return str(a)


@rd.task(backoff=lambda failures: 2.0 * failures)
def named_blocking(a: int) -> str:
    return str(a)


@rd.task()
def named_blocking_with_context(ctx: BlockingContext, a: int) -> str:
    return str(a)


async def tasks() -> None:
    assert_type(await plain(1, b="x"), list[int])
    assert_type(blocking(1, "x"), list[int])
    assert_type(await nothing(), None)
    assert_type(nothing_blocking(), None)
    assert_type(plain.name, str)
    assert_type(plain.queue, str)
    kinds: tuple[
        AsyncTask[..., list[int]],
        AsyncContextTask[..., list[int]],
        PlainTask[..., list[int]],
        PlainContextTask[..., list[int]],
    ] = (plain, with_context, blocking, blocking_with_context)
    named_kinds: tuple[
        AsyncTask[..., str], AsyncContextTask[..., str], PlainTask[..., str], PlainContextTask[..., str]
    ] = (named, named_with_context, named_blocking, named_blocking_with_context)
    base: tuple[redrive.Task[..., Any], ...] = (*kinds, *named_kinds)
    del base
    plain("x")  # type: ignore[arg-type, unused-coroutine]
    blocking()  # type: ignore[call-arg]
    rd.task(max_attempts="3")  # type: ignore[call-overload]
    rd.task(colour="red")  # type: ignore[call-overload]
    rd.task(on_lost="shrug")  # type: ignore[call-overload]
    rd.task(scope="world")  # type: ignore[call-overload]


async def called_with_a_context(ctx: Context, blocking_ctx: BlockingContext) -> None:
    assert_type(await with_context(ctx, 1), list[int])
    assert_type(blocking_with_context(blocking_ctx, 1), list[int])
    await with_context(1)  # type: ignore[call-arg, arg-type]
    blocking_with_context(ctx, 1)  # type: ignore[arg-type]


# -- enqueueing: the payload only, never the context


async def enqueueing() -> None:
    assert_type(await plain.enqueue(1), JobHandle[list[int]])
    assert_type(await plain.enqueue(1, b="x"), JobHandle[list[int]])
    assert_type(await with_context.enqueue(1, "x"), JobHandle[list[int]])
    assert_type(await blocking.enqueue(a=1), JobHandle[list[int]])
    assert_type(await blocking_with_context.enqueue(1), JobHandle[list[int]])
    assert_type(await nothing.enqueue(), JobHandle[None])
    assert_type(await named.enqueue(1), JobHandle[str])
    assert_type(await named_with_context.enqueue(1), JobHandle[str])
    assert_type(await named_blocking.enqueue(1), JobHandle[str])
    assert_type(await named_blocking_with_context.enqueue(1), JobHandle[str])
    await plain.enqueue()  # type: ignore[call-arg]
    await plain.enqueue("x")  # type: ignore[arg-type]
    await plain.enqueue(1, c=2)  # type: ignore[call-arg]
    await plain.enqueue(1, delay=30)  # type: ignore[call-arg]
    await with_context.enqueue("x")  # type: ignore[arg-type]
    await blocking.enqueue(1, 2)  # type: ignore[arg-type]
    await blocking_with_context.enqueue()  # type: ignore[call-arg]
    await nothing.enqueue(1)  # type: ignore[call-arg]
    await named.enqueue("x")  # type: ignore[arg-type]
    await named_with_context.enqueue()  # type: ignore[call-arg]


async def with_options() -> None:
    bound = with_context.options(
        queue="mail", run_at=datetime.now(UTC), delay=timedelta(seconds=1), priority="critical", idempotency_key="k",
        session_id="s", agent="a", model="m", max_attempts=3, lease=30, max_age=60.5, on_lost="retry",
        on_duplicate="redrive", budget=redrive.Budget(tokens=1, cost=0.5), headers={"a": "b"}, fallback=True,
    )  # fmt: skip
    assert_type(await bound.enqueue(1, b="x"), JobHandle[list[int]])
    assert_type(await plain.options(fallback=print).enqueue(1), JobHandle[list[int]])
    assert_type(await plain.options(within=object()).enqueue(1), JobHandle[list[int]])
    kept: Bound[..., list[int]] = bound
    del kept
    await bound.enqueue("x")  # type: ignore[arg-type]
    plain.options(priority="urgent")  # type: ignore[arg-type]
    plain.options(delay="5m")
    plain.options(delay=b"soon")  # type: ignore[arg-type]
    assert_type(await plain.enqueue_many([{"a": 1}]), Many)
    plain.options(run_at=5)  # type: ignore[arg-type]
    plain.options(on_duplicate="ignore")  # type: ignore[arg-type]
    plain.options(on_lost="shrug")  # type: ignore[arg-type]
    plain.options(max_attempts="3")  # type: ignore[arg-type]
    plain.options(budget=5)  # type: ignore[arg-type]
    plain.options(headers={"a": 1})  # type: ignore[dict-item]
    plain.options(colour="red")  # type: ignore[call-arg]


# -- what a handle gives


async def handles() -> None:
    handle = await plain.enqueue(1)
    assert_type(handle.id, str)
    assert_type(handle.state, State)
    assert_type(handle.duplicate, bool)
    assert_type(handle.spooled, bool)
    assert_type(handle.pending, bool)
    assert_type(await handle.result(), list[int])
    assert_type(await handle.result(timeout=timedelta(seconds=5)), list[int])
    assert_type(await (await named.enqueue(1)).result(5), str)
    assert_type(await (await nothing.enqueue()).result(), None)
    assert_type(await handle.refresh(), Job)
    assert_type(await handle.cancel("no"), Job)
    async for event in handle.events():
        assert_type(event.move, str)
    wider: JobHandle[object] = handle
    del wider
    await handle.result(b"5")  # type: ignore[arg-type]


def without_a_loop() -> None:
    assert_type(plain.blocking.enqueue(1), BlockingHandle[list[int]])
    assert_type(named.options(priority="low").blocking.enqueue(1).result(5), str)
    assert_type(blocking_with_context.blocking.enqueue(1).refresh(), Job)
    plain.blocking.enqueue("x")  # type: ignore[arg-type]
    with rd.blocking() as q:
        assert_type(q, Blocking)
        assert_type(q.enqueue_many("plain", [{"a": 1}]), Many)
        assert_type(q.drain(), int)


# -- steps and effects


async def write(topic: str, *, words: int) -> dict[str, int]:
    return {topic: words}


def count(topic: str) -> int:
    return len(topic)


async def post(key: str) -> float:
    return float(key)


def post_blocking(key: str) -> float:
    return float(key)


async def find(key: str) -> float | None:
    return None


async def inside(ctx: Context) -> None:
    assert_type(await ctx.step("write", write, "foxes", words=3), dict[str, int])
    assert_type(await ctx.step("count", count, "foxes"), int)
    assert_type(await ctx.once("post", post), float)
    assert_type(await ctx.once("post", post, verify=find, key="k"), float)
    assert_type(await ctx.once("post", post_blocking), float)
    landed: float = await ctx.once("post", lambda key: post(key + "1"), verify=lambda key: find(key + "1"))
    del landed
    assert_type(await ctx.progress(0.5, "half"), None)
    assert_type(ctx.usage(input_tokens=1, cost=0.5), None)
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.session_id, str | None)
    assert_type(ctx.cancelled, bool)
    assert_type(redrive.current(), Context | BlockingContext)
    await ctx.once("post", write)  # type: ignore[arg-type]
    await ctx.step(5, count, "x")  # type: ignore[call-overload]
    await ctx.progress("half")  # type: ignore[arg-type]


def inside_a_thread(ctx: BlockingContext) -> None:
    assert_type(ctx.step("count", count, "foxes"), int)
    assert_type(ctx.once("post", post_blocking), float)
    assert_type(ctx.progress(0.5), None)
    ctx.once("post", count, key=5)  # type: ignore[arg-type]


# -- by name, many, HTTP, workers, listings


async def the_rest(sink: Callable[[Pain], Awaitable[None]]) -> None:
    assert_type(await rd.enqueue("plain", {"a": 1}, idempotency_key="k"), JobHandle[Any])
    many = await rd.enqueue_many("plain", [{"a": 1}, Item({"a": 2}, priority="high")], session_id="s")
    assert_type(many, Many)
    assert_type(many.ids, list[str | None])
    assert_type(await rd.enqueue_http("POST", "https://example.com", json={}), JobHandle[dict[str, Any]])
    assert_type(await rd.enqueue_http("POST", "https://example.com", body="text", queue="q"), JobHandle[dict[str, Any]])
    assert_type(await rd.enqueue_http("q", "POST", "https://example.com", body={"a": 1}), JobHandle[dict[str, Any]])
    named = await rd.enqueue_http(queue="q", method="POST", url="https://example.com", body={"a": 1}, delay=5)
    assert_type(named, JobHandle[dict[str, Any]])
    await rd.enqueue_http("POST")  # type: ignore[call-overload]
    await rd.enqueue_http("POST", "https://example.com", body=5)  # type: ignore[call-overload]
    assert_type(await rd.drain(), int)
    assert_type(await rd.health(), Health)
    assert_type(await rd.status("id"), Job)
    assert_type((await rd.status("id")).result, Any)
    assert_type((await rd.status("id")).result_json, str | None)
    assert_type(await rd.queues.list(), list[QueueView])
    assert_type(await rd.groups.new(), Newcomers)
    assert_type(await rd.groups.list(new="deploy"), list[GroupView])
    await rd.groups.list(new="yesterday")  # type: ignore[arg-type]
    assert_type(await rd.jobs.list(state="waiting"), Page)
    assert_type(await rd.dead.redrive("id", why="again"), Job)
    assert_type(await rd.dead.discard("id"), Job)
    assert_type(await rd.dead.discard(ids=["id"]), Acted)
    assert_type(await rd.dead.defer(queue="q", owner="ada", until=timedelta(days=1)), Acted)
    assert_type(await rd.dead.reassign("id", agent="cto"), Job)
    assert_type(await rd.dead.move_lane(lane="manual", where={"lane": "delayed"}), Acted)
    assert_type(await rd.dead.redrive(queue="q"), RedriveRun)
    assert_type(await rd.dead.undo("id"), Acted)
    assert_type(await rd.dead.import_("failures.jsonl", task="publish", follow=asyncio.Event()), Imported)
    assert_type(await rd.dead.import_(["{}"], completed=["a"]), Imported)
    await rd.dead.import_("failures.jsonl", follow=True)  # type: ignore[arg-type]
    assert_type(await rd.jobs.export_completed("completed.txt", task="publish", append=True), Exported)
    assert_type(await rd.dead.do("discard", "id", why="old"), Job)
    assert_type(await rd.dead.do("defer", ids=["id"], owner="ada", until=60.0), Acted | RedriveRun)
    assert_type(await rd.dead.edit_many({"a": None}, queue="q", canary=5), RedriveRun)
    assert_type(await rd.dead.preview_edit_many({"a": 1}, all=True), PatchPreview)
    async with rd.worker(concurrency=10, queues=["mail"], agents=None):
        pass
    async with rd as same:
        assert_type(same, Redrive)

    def told(event: BusEvent) -> None:
        assert_type(event.type, str)

    rd.subscribe("*", told).close()
    Redrive(signals=[sink])
    Redrive(preset="agent_os")
    Redrive(preset=["agent_os", "seven_agents"])
    Redrive(preset=("seven_agents",), escalation="ada")
    Redrive(preset="agents")  # type: ignore[arg-type]
    Redrive(preset=["agents"])  # type: ignore[list-item]
    assert_type(redrive.PRESETS["agent_os"], redrive.Preset)
    assert_type(redrive.PRESETS["agent_os"].queues["feedback"], redrive.Policy)
    assert_type(redrive.PRESETS["seven_agents"].escalation, str | None)
    assert_type(redrive.default(), Redrive)
    assert_type(redrive.get_queue(), Redrive)
    await rd.enqueue(5)  # type: ignore[arg-type]
    await rd.enqueue("plain", [1])  # type: ignore[arg-type]
    rd.subscribe("*", 5)  # type: ignore[arg-type]


# -- agents, effects, consent


def is_there(payload: dict[str, Any], witness: Any) -> bool | None:
    return bool(payload)


async def is_open() -> bool:
    return True


@rd.task(
    effects=[redrive.Effect("note", is_there), redrive.Effect("old note", is_there, mode="absent")],
    requires=[redrive.Probe("vault", is_open, cool_down=5)], retry_policy="verify_first", consent="money",
    idempotent=True, result_policy=False, wraps="a",
)  # fmt: skip
async def careful(ctx: Context, a: str) -> str:
    answer = await ctx.approval("Sure?", details={"a": a}, expires=60)
    assert_type(answer, redrive.Approval)
    assert_type(bool(answer), bool)
    raise redrive.OutcomeUnknown("no answer", witness={"line": a})


@redrive.once
def mailed(to: str, copies: int = 1) -> str:
    return to


@rd.once(key="mail-{to}", verify=mailed, within="day")
async def mailed_async(to: str) -> int:
    return 1


def key_of(to: str) -> str:
    return to


@redrive.once(key=key_of, within=lambda: "run-1")
def keyed(to: str) -> None: ...


async def without_a_job() -> None:
    assert_type(mailed("a", copies=2), str)
    assert_type(await mailed_async("a"), int)
    mailed(1)  # type: ignore[arg-type]
    await mailed_async()  # type: ignore[call-arg]
    keyed("a")
    rd.once(5)  # type: ignore[call-overload]
    rd.once(key=5)  # type: ignore[call-overload]
    assert_type(await rd.effects.list(status="unknown"), Sequence[EffectRecord])
    assert_type(await rd.effects.resolve("k", landed=True, result="x", who="ann", why="seen"), EffectRecord)


@rd.task(read_only=True)
def looked_up(a: int) -> int:
    return a


async def agents() -> None:
    assert_type(await rd.call("plain", {"a": 1}, timeout=5, session_id="s"), redrive.Outcome)
    assert_type(await rd.call(plain, {"a": 1}, timeout=timedelta(seconds=5)), redrive.Outcome)
    assert_type(await rd.submit(plain, {"a": 1}, session_id="s"), redrive.Outcome)
    assert_type(await rd.retry("id", timeout=5), redrive.Outcome)
    told = await plain.call(1, b="x")
    assert_type(told, redrive.Outcome)
    assert_type(told.operation_id, str | None)
    assert_type(told.public(), dict[str, Any])
    assert_type(await careful.options(session_id="s").call("a"), redrive.Outcome)
    assert_type(await looked_up.call(1), redrive.Outcome)
    tool = plain.as_tool(timeout=5, session_id="s")
    assert_type(await tool(1, b="x"), dict[str, Any])
    assert_type(await rd.outcome("id"), redrive.Outcome)
    assert_type(await rd.operations(), dict[str, Any])
    await plain.call("x")  # type: ignore[arg-type]
    await plain.call(1, session_id="s")  # type: ignore[call-arg]
    await tool("x")  # type: ignore[arg-type]
    await rd.call(5)  # type: ignore[arg-type]
    rd.task(retry_policy="sometimes")  # type: ignore[call-overload]
    rd.task(effects=["note"])  # type: ignore[list-item]
    redrive.Effect("note", is_there, mode="maybe")  # type: ignore[arg-type]
    redrive.Probe("vault", is_there)  # type: ignore[arg-type]


async def sessions() -> None:
    grant = await rd.sessions.grant("s", "money", by="ann", expires=timedelta(hours=1), blanket=True)
    assert_type(grant, redrive.Grant)
    assert_type(await rd.sessions.grants("s"), list[redrive.Grant])
    assert_type(await rd.sessions.revoke("s", grant.id), redrive.Grant)
    assert_type(await rd.sessions.costs("s"), Usage)
    assert_type(await rd.sessions.inbox("s", unread=False), list[redrive.Notice])
    assert_type(await rd.jobs.approve("id", who="ann"), Job)
    assert_type(await rd.jobs.reject("id", why="no"), Job)
    assert_type(await rd.jobs.effects("id"), Sequence[EffectRecord])
    assert_type(await rd.dead.edit("id", {"a": 1}, repeat=["post"]), Job)
    await rd.sessions.grant("s", "money")  # type: ignore[call-arg]

    def tell(message: redrive.Message) -> bool:
        return message.actionable

    Redrive(channels=[tell])


# -- scripts, schedules, workflows


def scripts() -> None:
    with rd.cycle("nightly", tz="Europe/Rome", quiet=True) as night:
        assert_type(night.run(plain, 1, repeat="never"), Result[list[int]])
        assert_type(night.run(count, "x", job_id="a"), Result[int])
    assert_type(night.exit_code, int)


async def scripts_in_a_loop() -> None:
    async with rd.cycle("nightly") as night:
        assert_type(await night.run(plain, 1), Result[list[int]])


@rd.task(schedule=redrive.cron("0 3 * * *", tz="Europe/Rome", catch_up="all", jitter=timedelta(minutes=1)))
async def nightly(ctx: Context) -> None:
    assert_type(ctx.slot, datetime | None)


@rd.task(schedule=[redrive.cron("@daily"), redrive.cron("@weekly", payload={"a": 1})])
async def twice(a: int = 0) -> None: ...


async def schedules_and_workflows() -> None:
    redrive.cron("@daily", catch_up="some")  # type: ignore[arg-type]
    rd.task(schedule="@daily")
    rd.task(schedule=5)  # type: ignore[call-overload]
    assert_type(await rd.schedules(), list[Scheduled])
    new = await rd.tokens.add("ann", "act", expires="30d")
    assert_type(new, NewToken)
    assert_type(new.secret, str)
    await rd.tokens.add("ann", "look", expires=timedelta(days=1), who="ada")
    await rd.tokens.add("ann", "admin")  # type: ignore[arg-type]
    assert_type(await rd.tokens.list(), list[Token])
    assert_type(await rd.tokens.revoke("ann"), Token)
    flow = rd.workflow("article")
    assert_type(flow, Workflow)
    first = flow.add(plain, 1)
    assert_type(first, Step)
    flow.add(named.options(priority="high"), a=first.output[0], after=[first, "plain"], name="second")
    started = await flow.start(idempotency_key="k", session_id="s")
    assert_type(started, WorkflowHandle)
    assert_type(await started.status(), WorkflowStatus)
    assert_type(await started.result(timeout=5), dict[str, Any])
    assert_type(await rd.workflows.get("id"), WorkflowHandle)
    flow.add(5)  # type: ignore[arg-type]


def signals() -> None:
    raise redrive.Retry(after=timedelta(seconds=5))


def snooze() -> None:
    raise redrive.Snooze(5)


def give_up() -> None:
    raise redrive.GiveUp("no", recommendation="ask")


def cancel() -> None:
    raise redrive.Cancel("no")
