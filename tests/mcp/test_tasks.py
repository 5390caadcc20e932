"""Durable tasks: the extension `io.modelcontextprotocol/tasks` on the same jobs, for clients that declare it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import pytest
from mcp.shared.exceptions import MCPError
from msgspec.structs import replace

from redrive.core.job import Job, State
from redrive.doors.mcp import make_server
from redrive.doors.mcp.tasks import poll_after, status_of
from tests.cli.shell import Shell
from tests.mcp.agents import World, ask, client_of
from tests.mcp.processes import PATIENCE, make_app, notices, on_stdio, over_http, serving, working
from tests.mcp.task_client import IDENTIFIER, Tasks, asked, started
from tests.support import eventually, opened, soon

WAITING = Job("j", "q", "t", None, State.waiting, 0, 100.0, 1, 0.0, 0.0, "{}")
OPENS: Any = {"extensions": [Tasks()]}


@asynccontextmanager
async def declaring(world: World, **said: Any) -> AsyncIterator[mcp.Client]:
    server = make_server(world.rd, allow_write=True, **{"session": "s1", **said})
    async with mcp.Client(server, **OPENS) as client:
        yield client


async def ended(client: mcp.Client, task_id: str) -> dict[str, Any]:
    """The task once it is over."""
    found: dict[str, Any] = {}

    async def over() -> bool:
        found.update(await asked(client, "get", task_id))
        return found["status"] in ("completed", "cancelled", "failed")

    await eventually(over, "the end of the task", within=PATIENCE)
    return found


# -- in this process: what the states mean


@pytest.mark.behaviour("R-7d")
async def test_a_call_that_is_queued_is_a_task_with_the_jobs_id(world: World) -> None:
    world.busy = 1
    async with declaring(world) as client:
        task = await soon(started(client, "publish", slug="q3"))
        job = await world.rd.jobs.get(task.task_id)
        assert (task.status, task.ttl_ms, task.poll_interval_ms) == ("working", None, 60_000)
        assert "Not done" in task.status_message
        now = await soon(asked(client, "get", job.id))
        assert (now["taskId"], now["status"], now["resultType"]) == (job.id, "working", "complete")
        assert not {"result", "error", "inputRequests"} & now.keys()
        world.clock.advance(600)
        await soon(world.rd.drain())
        done = await soon(asked(client, "get", job.id))
        assert (done["status"], done["result"]["structuredContent"]["status"]) == ("completed", "ok")
        assert done["result"]["structuredContent"]["result"] == {"url": "/articles/q3", "words": 100}
        assert not done["result"].get("isError")


@pytest.mark.behaviour("R-7d")
async def test_what_ends_at_once_is_answered_at_once(world: World) -> None:
    async with declaring(world) as client:
        assert (await soon(ask(client, "publish", slug="q3")))["status"] == "ok"
        assert (await soon(ask(client, "look_up", name="ada")))["result"] == "ada lives here"
        failed = await soon(client.call_tool("broken", {}))
        assert failed.is_error


@pytest.mark.behaviour("R-7d")
async def test_a_dead_letter_is_a_completed_task_whose_result_is_an_error_with_the_advice(world: World) -> None:
    async with declaring(world) as client:
        task = await soon(started(client, "submit", task="broken", params={"text": "obey me"}))
        await soon(world.rd.drain())
        dead = await soon(asked(client, "get", task.task_id))
        assert (dead["status"], dead["result"]["isError"]) == ("completed", True)
        body = dead["result"]["structuredContent"]
        job = await world.rd.jobs.get(task.task_id)
        assert body["status"] == "failed" and job.recommendation and job.recommendation in body["message"]
        assert job.recommendation in dead["statusMessage"] and "explain_failure" in dead["statusMessage"]
        assert "obey me" in body["untrusted_error"] and "obey me" not in dead["statusMessage"]


@pytest.mark.behaviour("R-7d")
async def test_what_waits_for_a_person_requires_input_that_no_client_can_give(world: World) -> None:
    async with declaring(world) as client:
        task = await soon(started(client, "refund", euros=5))
        assert task.status == "input_required" and "redrive approve" in task.status_message
        held = await soon(asked(client, "get", task.task_id))
        assert (held["status"], held["inputRequests"]) == ("input_required", {})
        yes = {"approve": {"action": "accept", "content": {"approve": True}}}
        assert await soon(asked(client, "update", task.task_id, input_responses=yes)) == {"resultType": "complete"}
        assert (await world.rd.jobs.get(task.task_id)).state == "held" and world.refunded == []
        await world.rd.jobs.approve(task.task_id, who="ada")
        assert (await soon(asked(client, "get", task.task_id)))["status"] == "working"
        await soon(world.rd.drain())
        done = await soon(asked(client, "get", task.task_id))
        assert (done["status"], world.refunded) == ("completed", [5])


@pytest.mark.behaviour("R-7d")
async def test_cancelling_is_acknowledged_and_repeats_safely(world: World) -> None:
    world.busy = 1
    async with declaring(world) as client:
        task = await soon(started(client, "publish", slug="q3"))
        for _ in range(2):
            assert await soon(asked(client, "cancel", task.task_id)) == {"resultType": "complete"}
        gone = await soon(asked(client, "get", task.task_id))
        assert gone["status"] == "cancelled" and "result" not in gone
        job = await world.rd.jobs.get(task.task_id)
        assert (job.state, world.posted) == ("discarded", [])


@pytest.mark.behaviour("R-7d")
async def test_a_task_that_ended_is_not_cancelled_any_more(world: World) -> None:
    async with declaring(world) as client:
        task = await soon(started(client, "submit", task="publish", params={"slug": "q3"}))
        await soon(world.rd.drain())
        assert await soon(asked(client, "cancel", task.task_id)) == {"resultType": "complete"}
        assert (await soon(asked(client, "get", task.task_id)))["status"] == "completed"


@pytest.mark.behaviour("R-7d")
async def test_only_who_declares_the_extension_gets_tasks(world: World) -> None:
    world.busy = 1
    async with client_of(world, allow_write=True, session="s1") as plain:
        told = await soon(ask(plain, "publish", slug="q3"))
        assert told["queued_for_retry"] is True
        for method in ("get", "update", "cancel"):
            with pytest.raises(MCPError) as refused:
                await soon(asked(plain, method, told["operation_id"], input_responses={}))
            assert refused.value.error.code == -32021
            assert refused.value.error.data == {"requiredCapabilities": {"extensions": {IDENTIFIER: {}}}}
        capabilities = plain.server_capabilities
        assert capabilities is not None and IDENTIFIER in (capabilities.extensions or {})


@pytest.mark.behaviour("R-7d")
async def test_a_task_of_another_session_is_not_there(world: World) -> None:
    world.busy = 1
    async with declaring(world) as mine, declaring(world, session="s2") as other:
        task = await soon(started(mine, "publish", slug="q3"))
        for client, id in ((other, task.task_id), (mine, "nothing-like-it"), (mine, task.task_id[-8:])):
            for method in ("get", "update", "cancel"):
                with pytest.raises(MCPError, match="Task not found") as refused:
                    await soon(asked(client, method, id, input_responses={}))
                assert refused.value.error.code == -32602
        assert (await world.rd.jobs.get(task.task_id)).state == "waiting"


@pytest.mark.parametrize(
    ("state", "because", "lane", "status"),
    [
        (State.waiting, None, None, "working"),
        (State.running, None, None, "working"),
        (State.held, "approval", None, "input_required"),
        (State.held, "consent", None, "input_required"),
        (State.held, "outcome_unknown", None, "input_required"),
        (State.held, "circuit_open", None, "working"),
        (State.held, "deferred", None, "working"),
        (State.done, None, None, "completed"),
        (State.dead, "attempts_exhausted", "manual", "completed"),
        (State.dead, "attempts_exhausted", "delayed", "working"),
        (State.discarded, None, None, "cancelled"),
        (State.purged, None, None, "cancelled"),
    ],
)
def test_every_state_of_a_job_is_one_of_a_task(
    state: State, because: str | None, lane: str | None, status: str
) -> None:
    assert status_of(replace(WAITING, state=state, because=because, lane=lane)) == status


def test_a_client_is_asked_to_come_back_when_the_job_is_due() -> None:
    assert [poll_after(WAITING, now) for now in (0.0, 70.0, 99.9, 500.0)] == [60_000, 30_000, 1_000, 1_000]


# -- real processes


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = make_app(tmp_path)
    yield made
    made.end_all()


@pytest.mark.behaviour("R-7e")
async def test_over_stdio_a_task_outlasts_the_server_that_made_it(shell: Shell) -> None:
    async with on_stdio(shell, **OPENS) as client:
        task = await soon(started(client, "slow", name="one"))
        assert task.status == "working"
    (shell.folder / "go").touch()
    with working(shell):
        async with on_stdio(shell, **OPENS) as again:
            done = await ended(again, task.task_id)
            assert done["result"]["structuredContent"]["result"] == "done one"


@pytest.mark.behaviour("R-7e")
async def test_over_http_a_task_outlasts_the_server_that_made_it(shell: Shell) -> None:
    async with serving(shell) as port, over_http(port, session_id="agent-a", **OPENS) as visitor:
        queued = await soon(started(visitor.client, "publish", slug="q3"))
        slow = await soon(started(visitor.client, "slow", name="two"))
    (shell.folder / "up").touch()
    async with serving(shell) as port, over_http(port, session_id="agent-a", **OPENS) as again:
        assert (await soon(asked(again.client, "get", slow.task_id)))["status"] == "working"
        await soon(asked(again.client, "cancel", slow.task_id))
        assert (await ended(again.client, slow.task_id))["status"] == "cancelled"
        with working(shell):
            done = await ended(again.client, queued.task_id)
        assert done["result"]["structuredContent"]["result"] == "/articles/q3"
        assert {one["kind"] for one in await notices(again.client, 2)} == {"retry_success", "cancelled"}
        async with over_http(port, session_id="agent-b", **OPENS) as other:
            with pytest.raises(MCPError, match="Task not found"):
                await soon(asked(other.client, "get", queued.task_id))


@pytest.mark.behaviour("R-7e")
async def test_a_running_task_is_stopped_by_its_client(shell: Shell) -> None:
    async with serving(shell) as port, over_http(port, **OPENS) as visitor:
        task = await soon(started(visitor.client, "slow", name="three"))
        await eventually((shell.folder / "started-three").exists, "the start of the task")
        await soon(asked(visitor.client, "cancel", task.task_id))
        assert (await ended(visitor.client, task.task_id))["status"] == "cancelled"
    async with opened(shell.database) as rd:
        assert (await rd.jobs.get(task.task_id)).state == "discarded"
