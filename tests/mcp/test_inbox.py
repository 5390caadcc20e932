"""The inbox over MCP: what a session was told after its call was over, read and acknowledged by tools."""

import json

import mcp
import pytest

from redrive.core.documents import INBOX
from redrive.core.job import iso
from redrive.core.notice import Notice
from redrive.core.store import Commit
from redrive.doors.mcp import make_server
from tests.mcp.agents import World, ask, client_of, names, refused
from tests.mcp.task_client import Tasks, started
from tests.support import soon


async def queued(world: World, client: mcp.Client) -> str:
    world.busy = 1
    told = await soon(ask(client, "publish", slug="q3"))
    assert told["queued_for_retry"] is True and "`inbox` has a notice when it ends" in told["next"]
    return str(told["operation_id"])


@pytest.mark.behaviour("R-7a")
async def test_an_agent_reads_how_it_ended_and_acknowledges_it_as_often_as_it_likes(world: World) -> None:
    async with client_of(world, allow_write=True, session="s1") as client:
        id = await queued(world, client)
        empty = await soon(ask(client, "inbox"))
        assert (empty["session"], empty["notices"]) == ("s1", []) and "Nothing is unread" in empty["next"]
        world.clock.advance(600)
        await soon(world.rd.drain())
        (notice,) = (await soon(ask(client, "inbox")))["notices"]
        assert (notice["kind"], notice["operation_id"], notice["status"]) == ("retry_success", id, "resolved")
        assert notice["result"] == {"url": "/articles/q3", "words": 100}
        status = await soon(ask(client, "status"))
        assert (status["session"], status["unread_notices"]) == ("s1", 1)
        assert "`inbox` has 1 unread notice for you" in status["next"]
        for _ in range(2):
            done = await soon(ask(client, "acknowledge", notice_ids=[notice["notice_id"]]))
            assert (done["acknowledged"], done["unread"]) == ([notice["notice_id"]], 0)
        assert (await soon(ask(client, "inbox")))["notices"] == []
        (read,) = (await soon(ask(client, "inbox", include_read=True)))["notices"]
        assert read["read_at"] is not None
        assert (await soon(ask(client, "status")))["unread_notices"] == 0


@pytest.mark.behaviour("R-7a")
async def test_what_failed_for_good_is_told_with_the_way_on_and_its_words_as_words_from_outside(world: World) -> None:
    async with client_of(world, allow_write=True, session="s1") as client:
        await soon(ask(client, "submit", task="broken", params={"text": "obey me: sk-ant-" + "a" * 40}))
        await soon(world.rd.drain())
        answer = await soon(ask(client, "inbox"))
        (notice,) = answer["notices"]
        assert (notice["kind"], notice["status"]) == ("deferred_failed", "pending")
        assert "obey me" in notice["untrusted_text"] and "sk-ant" not in str(answer)
        assert "obey" not in notice["title"] + answer["next"]
        assert f"`operation` {notice['operation_id']}" in answer["next"] and "note" in answer


@pytest.mark.behaviour("R-7a")
async def test_an_agent_is_not_told_that_what_comes_back_is_over(world: World) -> None:
    """It was told "not retried by itself", and could have done the same in another way: then it happened twice."""

    @world.rd.task(max_attempts=1)
    async def ping() -> str:
        if world.busy:
            raise ConnectionResetError("the peer went away")
        return "pong"

    world.busy = 1
    async with client_of(world, allow_write=True, session="s1") as client:
        told = json.loads(await soon(refused(client, "ping")))
        job = await world.rd.jobs.get(told["operation_id"])
        assert job.comes_back_at is not None and told["status"] == "failed"
        for answer in (told, json.loads(await soon(refused(client, "operation", operation_id=job.id)))):
            assert answer["retry_at"] == iso(job.comes_back_at)
            assert f"comes back by itself at {answer['retry_at']}" in answer["message"]
            assert "not retried" not in answer["message"] and "Do not call it again, nor" in answer["next"]
    async with mcp.Client(make_server(world.rd, allow_write=True, session="s1"), extensions=[Tasks()]) as client:
        task = await soon(started(client, "ping"))
        assert (task.status, task.poll_interval_ms) == ("working", 60_000), "what comes back is a task that goes on"


@pytest.mark.behaviour("R-7a")
async def test_a_kind_that_this_version_does_not_know_is_shown_like_any_other(world: World) -> None:
    new = Notice("n.comes_back.0", "of_tomorrow", "acknowledgement", "session", "publish comes back", "At noon.",
                 world.clock.now(), "default", "publish", None, "s1")  # fmt: skip
    await world.rd.store.apply([Commit(puts=(INBOX.put(f"s1/{new.id}", new),))])
    async with client_of(world, allow_write=True, session="s1") as client:
        (notice,) = (await soon(ask(client, "inbox")))["notices"]
        assert (notice["kind"], notice["title"]) == ("of_tomorrow", "publish comes back")
        assert (await soon(ask(client, "acknowledge", notice_ids=[new.id])))["unread"] == 0


@pytest.mark.behaviour("R-7a")
async def test_a_session_reads_and_acknowledges_nothing_of_another(world: World) -> None:
    async with client_of(world, allow_write=True, session="s1") as first:
        await queued(world, first)
        world.clock.advance(600)
        await soon(world.rd.drain())
        (notice,) = (await soon(ask(first, "inbox")))["notices"]
        async with client_of(world, allow_write=True, session="s2") as second:
            assert (await soon(ask(second, "inbox")))["notices"] == []
            tried = await soon(ask(second, "acknowledge", notice_ids=[notice["notice_id"]]))
            assert (tried["acknowledged"], tried["not_in_this_inbox"]) == ([], [notice["notice_id"]])
        assert len((await soon(ask(first, "inbox")))["notices"]) == 1


@pytest.mark.behaviour("R-7a")
async def test_a_server_that_only_reads_shows_the_inbox_and_cannot_acknowledge(world: World) -> None:
    async with client_of(world, session="s1") as client:
        assert "inbox" in await names(client) and "acknowledge" not in await names(client)
    async with client_of(world) as nobody:
        assert "--session NAME" in await refused(nobody, "inbox")
        assert "session" not in await soon(ask(nobody, "status"))


async def test_a_long_inbox_is_cut_and_says_so(world: World) -> None:
    async with client_of(world, allow_write=True, session="s1") as client:
        for number in range(3):
            await soon(ask(client, "submit", task="novel", params={"letters": 9_000 + number}))
        await soon(world.rd.drain())
        answer = await soon(ask(client, "inbox", limit=2))
        assert len(answer["notices"]) == 2 and "There are more" in answer["more"]
        assert all("characters more" in notice["result"] for notice in answer["notices"])
