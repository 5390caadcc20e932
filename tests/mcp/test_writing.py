"""The tools that write: called, told honestly, asked about, and never more than one job or a person's yes."""

import asyncio
import re
from pathlib import Path

import mcp
import pytest

import redrive
from redrive.core.outcome import INLINE
from redrive.doors.mcp import make_server
from redrive.errors import StoreBusy
from tests.mcp.agents import Busy, World, ask, client_of, names, refused
from tests.receiver import answer, receiving
from tests.support import may_have_landed, opened, soon

WRITING = {"call", "submit", "retry", "redrive_failure", "acknowledge"}
FORBIDDEN = (
    "approve",
    "reject",
    "grant",
    "consent",
    "purge",
    "discard",
    "erase",
    "cancel",
    "resolve",
    "restore",
    "all",
)


@pytest.mark.behaviour("003-3", "003-6", "003-68")
async def test_what_failed_for_a_while_is_told_so_and_found_done_later(world: World) -> None:
    world.busy = 1
    async with client_of(world, allow_write=True) as client:
        first = await ask(client, "publish", slug="q3")
        assert first["queued_for_retry"] is True
        assert first["error_kind"] == "rate_limited"
        assert "Retries can fail, too: do not report success" in first["retry_hint"]
        assert "do not call it again" in first["next"]
        assert not {"status", "success", "ok", "result", "done"} & first.keys()
        assert world.posted == []
        still = await ask(client, "operation", operation_id=first["operation_id"])
        assert still["queued_for_retry"] is True and "status" not in still
        world.clock.advance(120)
        await soon(world.rd.drain())
        done = await ask(client, "operation", operation_id=first["operation_id"])
    assert done == {
        "operation_id": first["operation_id"],
        "status": "ok",
        "result": {"url": "/articles/q3", "words": 100},
    }
    assert world.posted == ["q3"]


@pytest.mark.behaviour("003-7")
async def test_a_call_that_takes_too_long_goes_on_and_is_retried_by_its_id_alone(world: World) -> None:
    go = asyncio.Event()
    tries: list[str] = []

    @world.rd.task(max_attempts=3)
    async def slow(name: str) -> str:
        tries.append(name)
        await go.wait()
        if len(tries) == 1:
            raise Busy("too many requests")
        return f"hello {name}"

    async with client_of(world, allow_write=True) as client:
        late = await ask(client, "call", task="slow", params={"name": "ada"}, timeout_seconds=0.01)
        assert (late["status"], "result" in late) == ("timeout", False)
        assert f"Ask `operation` {late['operation_id']}" in late["next"]
        go.set()
        stood = await soon(ask(client, "operation", operation_id=late["operation_id"], wait_seconds=0.2))
        assert stood.get("queued_for_retry") or stood["status"] == "timeout"
        again = await soon(ask(client, "retry", operation_id=late["operation_id"]))
        while again.get("status") == "timeout":
            again = await soon(ask(client, "retry", operation_id=late["operation_id"]))
        assert (again["status"], again["result"]) == ("ok", "hello ada")
        done = await ask(client, "retry", operation_id=late["operation_id"])
    assert done["result"] == "hello ada"
    assert tries == ["ada", "ada"]


@pytest.mark.behaviour("003-9", "003-51", "003-52", "003-71")
async def test_what_is_submitted_is_queued_with_an_id_and_a_hint(world: World) -> None:
    async with client_of(world, allow_write=True, session="s1") as client:
        said = await ask(client, "submit", task="publish", params={"slug": "q3"}, idempotency_key="pub_q3")
        assert (said["status"], said["queue_reason"]) == ("queued", "deferred_submit")
        assert said["operation_id"] in said["next"] and "not done" in said["hint"]
        twice = await ask(client, "submit", task="publish", params={"slug": "q3"}, idempotency_key="pub_q3")
        assert twice["operation_id"] == said["operation_id"]
        other = await refused(client, "submit", task="publish", params={"slug": "q4"}, idempotency_key="pub_q3")
        assert "idempotency_key" in other
        job = await world.rd.jobs.get(said["operation_id"])
        assert (job.session_id, job.allowed, job.reason) == ("s1", 1, "deferred_submit")
        await soon(world.rd.drain())
        assert (await ask(client, "operation", operation_id=job.id))["status"] == "ok"


@pytest.mark.behaviour("003-69", "003-70")
async def test_a_write_that_was_seen_outside_is_told_as_recovered(world: World) -> None:
    @world.rd.task(
        effects=[
            redrive.Effect("post", lambda params, witness: True),
            redrive.Effect("index", lambda params, witness: True),
        ],
        retry_policy="verify_first",
    )
    async def post(slug: str) -> str:
        raise redrive.OutcomeUnknown("the connection broke after the write", witness={"slug": slug})

    async with client_of(world, allow_write=True) as client:
        said = await ask(client, "post", slug="q3")
    assert (said["status"], said["post_write_recovery"], said["effects_verified"]) == ("ok", True, 2)
    assert said["warning"]


async def test_every_task_is_a_tool_with_its_real_parameters(world: World) -> None:
    async with client_of(world, allow_write=True) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) >= WRITING | {"publish", "shop_order", "refund", "look_up", "task_status"}
        assert tools["publish"].input_schema == {
            "type": "object",
            "properties": {"slug": {"type": "string"}, "words": {"type": "integer", "default": 100}},
            "required": ["slug"],
            "additionalProperties": False,
        }
        assert tools["publish"].description.startswith("Publish an article. Only `status: ok` means done")
        order = tools["shop_order"].input_schema
        assert order["properties"]["lines"]["items"] == {"$ref": "#/$defs/Line"}
        assert order["$defs"]["Line"]["required"] == ["sku"]
        assert tools["broken"].input_schema["additionalProperties"] is True
        hints = {name: tool.annotations for name, tool in tools.items()}
        assert hints["look_up"].read_only_hint and not hints["publish"].read_only_hint
        assert (await ask(client, "shop_order", lines=[{"sku": "a", "pieces": 2}, {"sku": "b"}]))["result"] == 3
        assert (await ask(client, "task_status", of="all"))["result"] == "all"
        assert "lines" in await refused(client, "shop_order", lines="two")
        assert "missing required field `slug`" in await refused(client, "publish")
        assert "`slag`" in await refused(client, "publish", slag="q3")
    assert (await world.rd.jobs.list(task="publish")).jobs == []


async def test_no_name_of_a_tool_is_one_that_providers_refuse(world: World) -> None:
    """They refuse the whole request for one of them."""

    async def work() -> None: ...

    long = "a_task_with_a_long_name_" * 6
    for name in (*(f"{long}{number}" for number in range(12)), "задача", "задание", "a/b", "a.b", "a_b", "__"):
        world.rd.task(name)(work)
    async with client_of(world, allow_write=True) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
    assert len(tools) == len(set(tools)) > 25
    assert [name for name in tools if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)] == []


async def test_a_task_of_pydantic_models_is_a_tool_too(world: World) -> None:
    from pydantic import BaseModel

    class Address(BaseModel):
        city: str

    class Customer(BaseModel):
        name: str
        address: Address

    @world.rd.task
    async def greet(customer: Customer, loudly: bool = False) -> str:
        return f"{customer.name} of {customer.address.city}"

    async with client_of(world, allow_write=True) as client:
        (tool,) = (tool for tool in (await client.list_tools()).tools if tool.name == "greet")
        assert tool.input_schema["properties"]["customer"]["properties"]["address"] == {"$ref": "#/$defs/Address"}
        assert tool.input_schema["$defs"]["Address"]["properties"]["city"]["type"] == "string"
        customer = {"name": "Ada", "address": {"city": "London"}}
        assert (await ask(client, "greet", customer=customer))["result"] == "Ada of London"


async def test_what_nobody_can_run_is_not_taken_in(world: World) -> None:
    async with client_of(world, allow_write=True) as client:
        for tool in ("call", "submit"):
            said = await refused(client, tool, task="publsh", params={"slug": "q3"})
            assert "'publsh' is not a task here; there are broken" in said and "publish" in said
    assert (await world.rd.jobs.list()).jobs == []


async def test_a_model_cannot_send_requests_with_our_secrets(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in delivery reads `env:NAME`: in a model's hand it would carry any secret anywhere."""
    monkeypatch.setenv("SOME_API_KEY", "canary-of-the-environment")
    request = {"method": "POST", "url": "https://example.com", "auth": "env:SOME_API_KEY"}
    async with client_of(world, allow_write=True) as client:
        assert not {name for name in await names(client) if "http" in name}
        for tool in ("call", "submit"):
            assert "is not a task here" in await refused(client, tool, task="redrive.http", params=request)
    assert (await world.rd.jobs.list()).jobs == []


async def test_a_dead_letter_that_may_have_landed_is_left_to_a_person(world: World) -> None:
    id = await may_have_landed(world.rd, "publish", slug="q3")
    async with client_of(world, allow_write=True) as client:
        said = await refused(client, "redrive_failure", failure_id=id, why="mended")
        assert "not known whether it landed" in said and f"redrive resolve {id[-8:]}" in said
        assert "not known whether it landed" in await refused(client, "retry", operation_id=id)
    assert ((await world.rd.jobs.get(id)).state, world.posted) == ("dead", [])


async def test_one_dead_letter_is_brought_back_with_who_and_why(world: World) -> None:
    handle = await world.rd.enqueue("broken")
    other = await world.rd.enqueue("broken", {"text": "the mill is broken", "n": 2})
    await soon(world.rd.drain())
    async with client_of(world, allow_write=True, session="s1") as client:
        assert "why" in await refused(client, "redrive_failure", failure_id=handle.id)
        said = await ask(client, "redrive_failure", failure_id=handle.id, why="the mill is mended")
        assert said["status"] == "queued" and "not done" in said["hint"]
        again = await refused(client, "redrive_failure", failure_id=handle.id, why="the mill is mended")
        assert "waiting" in again and "Nothing was changed: ask `operation` how it stands." in again
    moves = await world.rd.jobs.story(handle.id)
    assert (moves[-1].move, moves[-1].who, moves[-1].why) == ("redriven", "mcp, session s1", "the mill is mended")
    assert (await world.rd.jobs.get(other.id)).state == "dead"


async def test_what_failed_for_good_is_an_error_with_the_next_step(world: World) -> None:
    async with client_of(world, allow_write=True) as client:
        result = await client.call_tool("broken", {})
        assert result.is_error
        body = result.structured_content or {}
        assert body["status"] == "failed"
        assert f"`explain_failure` {body['operation_id']}" in body["next"]
        assert (await ask(client, "explain_failure", failure_id=body["operation_id"]))["attempts"] == 1


async def test_a_read_only_task_leaves_nothing_behind(world: World) -> None:
    @world.rd.task(read_only=True)
    async def dump() -> str:
        return "z" * (INLINE + 5)

    async with client_of(world, allow_write=True) as client:
        assert await ask(client, "look_up", name="ada") == {"status": "ok", "result": "ada lives here"}
        failed = (await client.call_tool("look_up", {"name": "nobody"})).structured_content or {}
        assert failed["status"] == "failed" and "operation_id" not in failed
        cut = await ask(client, "dump")
        assert len(cut["result"]) == INLINE and "not kept" in cut["next"]
    assert (await world.rd.jobs.list()).jobs == []


# -- consent


async def test_without_consent_a_call_waits_for_a_person(world: World) -> None:
    async with client_of(world, allow_write=True, session="s1") as client:
        for asked in (
            await ask(client, "refund", euros=900),
            await ask(client, "call", task="refund", params={"euros": 901}),
        ):
            assert asked["status"] == "needs_consent" and "result" not in asked
            short = asked["operation_id"][-8:]
            assert f"`redrive approve {short}`" in asked["next"] and "No tool can" in asked["next"]
            assert (await ask(client, "retry", operation_id=asked["operation_id"]))["status"] == "needs_consent"
        assert "held" in await refused(client, "redrive_failure", failure_id=asked["operation_id"], why="I want it")
        assert world.refunded == []
        await world.rd.jobs.approve(asked["operation_id"], who="ada")
        await soon(world.rd.drain())
        assert (await ask(client, "operation", operation_id=asked["operation_id"]))["result"] == "refunded 901"
    assert world.refunded == [901]


async def test_a_grant_of_its_own_session_counts_and_no_other(world: World) -> None:
    await world.rd.sessions.grant("s1", "refund", by="ada")
    async with client_of(world, allow_write=True, session="s2") as client:
        assert (await ask(client, "refund", euros=1))["status"] == "needs_consent"
        borrowed = await refused(client, "call", task="refund", params={"euros": 2}, session_id="s1")
        assert "session_id" in borrowed
        assert "session_id" in await refused(client, "refund", euros=3, session_id="s1")
    async with client_of(world, allow_write=True, session="s1") as client:
        assert (await ask(client, "refund", euros=4))["status"] == "ok"
    assert world.refunded == [4]


async def test_no_tool_agrees_purges_or_moves_many(world: World) -> None:
    async with client_of(world, allow_write=True) as client:
        tools = (await client.list_tools()).tools
        ours = [tool for tool in tools if tool.name not in {"refund", "broken", "publish"}]
        assert not [tool.name for tool in ours for word in FORBIDDEN if word in tool.name.split("_")]
        moving = [tool for tool in tools if tool.name in ("retry", "redrive_failure")]
        assert all(set(tool.input_schema["properties"]) <= {"operation_id", "failure_id", "why", "timeout_seconds"}
                   for tool in moving)  # fmt: skip


# -- without the app's code


async def test_without_tasks_nothing_is_called_but_deliveries_are_retried(world: World, tmp_path: Path) -> None:
    handle = await world.rd.enqueue("broken")
    await soon(world.rd.drain())
    async with (
        receiving(answer("200 OK", b"thanks")) as receiver,
        opened(tmp_path / "jobs.db", clock=world.clock, delivery={"allow": ["127.0.0.1"]}) as bare,
        mcp.Client(make_server(bare, tasks=False, allow_write=True)) as client,
    ):
        delivery = await bare.enqueue_http("POST", receiver.url("/hook"), json={"n": 1})
        assert await names(client) & (WRITING | {"publish"}) == {"retry", "redrive_failure", "acknowledge"}
        assert "'broken' is not known here" in await refused(client, "retry", operation_id=handle.id)
        assert (await soon(ask(client, "retry", operation_id=delivery.id)))["result"]["body"] == "thanks"
        assert len(receiver.requests) == 1
        assert (await ask(client, "redrive_failure", failure_id=handle.id, why="mended"))["status"] == "queued"


async def test_a_store_that_others_hold_is_named_with_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*_: object) -> None:
        raise StoreBusy("the database is locked")

    async with client_of(world, allow_write=True) as client:
        monkeypatch.setattr(world.rd.store, "insert", busy, raising=False)
        for tool in ("call", "submit"):
            said = await refused(client, tool, task="publish", params={"slug": "q3"})
            assert "the database is locked. Nothing was changed: call again in a while." in said
    assert world.posted == []


async def test_a_call_whose_end_cannot_be_read_names_its_operation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that hears only of a busy store calls again, and the article is published twice."""

    async def busy(*_: object) -> None:
        raise StoreBusy("the database is locked")

    async with client_of(world, allow_write=True) as client:
        with monkeypatch.context() as locked:
            locked.setattr(world.rd.store, "get", busy, raising=False)
            told = await ask(client, "publish", slug="q3")
        assert told["status"] == "timeout" and "do not call it again" in told["next"]
        done = await ask(client, "operation", operation_id=told["operation_id"])
    assert done["status"] == "ok" and world.posted == ["q3"]


@pytest.mark.behaviour("R-8c")
async def test_an_agent_that_repeats_itself_reads_so_in_its_answer_and_in_its_refusals(world: World) -> None:
    async with client_of(world, allow_write=True, session="s1") as client:
        answers = [(await soon(client.call_tool("broken", {"text": "the mill"}))).structured_content for _ in range(5)]
        assert [answer.get("repeats") for answer in answers] == [None] * 4 + [5]
        assert answers[4]["message"].startswith("You repeat yourself: 5 of your last 15 actions")
        refusals = [await soon(refused(client, "publish", nonsense=1)) for _ in range(5)]
        assert ["You repeat yourself" in one for one in refusals] == [False] * 4 + [True]
    async with client_of(world, allow_write=True, session="s2") as other:
        fresh = (await soon(other.call_tool("broken", {"text": "the mill"}))).structured_content
        assert "repeats" not in fresh
