"""A session per client: real servers, real clients, on standard input and output and over HTTP."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_types
import pytest

from redrive.doors.mcp.sessions import session_name
from tests.cli.shell import Shell
from tests.mcp.agents import ask
from tests.mcp.processes import OTHER, PATIENCE, TOKEN, make_app, notices, on_stdio, over_http, serving, working
from tests.mcp.test_http import raw
from tests.support import eventually, opened, soon


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = make_app(tmp_path)
    yield made
    made.end_all()


async def read_and_acknowledge(client: Any, operation_id: str) -> None:
    """What an agent does that has lost its context: all it has is its session."""
    (notice,) = await notices(client)
    assert (notice["kind"], notice["operation_id"]) == ("retry_success", operation_id)
    assert notice["result"] == "/articles/q3"
    for _ in range(2):
        done = await soon(ask(client, "acknowledge", notice_ids=[notice["notice_id"]]))
        assert (done["acknowledged"], done["unread"]) == ([notice["notice_id"]], 0)
    assert (await soon(ask(client, "inbox")))["notices"] == []


@pytest.mark.behaviour("R-7b")
async def test_over_stdio_an_agent_that_lost_its_context_hears_the_end(shell: Shell) -> None:
    async with on_stdio(shell, "--session", "claude") as client:
        told = await soon(ask(client, "publish", slug="q3"))
        assert told["queued_for_retry"] is True
    (shell.folder / "up").touch()
    with working(shell):
        async with on_stdio(shell, "--session", "claude") as again:
            await read_and_acknowledge(again, told["operation_id"])


@pytest.mark.behaviour("R-7b")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_over_http_an_agent_that_lost_its_context_hears_the_end(shell: Shell, mode: str) -> None:
    """Also when the server was started anew meanwhile. Before 2026 the server chooses the id, since then the client."""
    chosen = None if mode == "legacy" else "agent-a"
    async with serving(shell) as port, over_http(port, session_id=chosen, mode=mode) as visitor:
        told = await soon(ask(visitor.client, "publish", slug="q3"))
        assert told["queued_for_retry"] is True
        kept = chosen or visitor.session_id
    (shell.folder / "up").touch()
    with working(shell):
        async with serving(shell) as port:
            async with over_http(port, session_id=kept, mode=mode) as again:
                await read_and_acknowledge(again.client, told["operation_id"])
            async with over_http(port, mode=mode) as stranger:
                found = await soon(ask(stranger.client, "inbox", include_read=True))
                assert found["notices"] == []


@pytest.mark.behaviour("R-7c")
@pytest.mark.parametrize("apart", ["offered ids", "chosen ids", "tokens"])
async def test_two_clients_have_two_sessions_and_what_one_was_granted_does_not_serve_the_other(
    shell: Shell, apart: str
) -> None:
    mode = "legacy" if apart == "offered ids" else "auto"
    ids = ("agent-a", "agent-b") if apart == "chosen ids" else (None, None)
    tokens = (TOKEN, OTHER if apart == "tokens" else TOKEN)
    async with (
        serving(shell, tokens=tuple(dict.fromkeys(tokens))) as port,
        over_http(port, token=tokens[0], session_id=ids[0], mode=mode) as a,
        over_http(port, token=tokens[1], session_id=ids[1], mode=mode) as b,
    ):
        first, second = [await soon(ask(one.client, "refund", euros=5)) for one in (a, b)]
        assert (first["status"], second["status"]) == ("needs_consent", "needs_consent")
        sessions = [(await soon(ask(one.client, "status")))["session"] for one in (a, b)]
        assert len(set(sessions)) == 2
        granted = await soon(_granted(shell, sessions[0]))
        assert granted == 0
        assert (await soon(ask(a.client, "refund", euros=6)))["result"] == "refunded 6"
        assert (await soon(ask(b.client, "refund", euros=6)))["status"] == "needs_consent"
        with working(shell):
            await eventually(lambda: has_success(a.client), "the refund that waited for consent", within=PATIENCE)
        kinds = {one["kind"] for one in await notices(b.client)}
        assert kinds == {"needs_consent"}, "nothing of a's is in b's inbox"
    async with opened(shell.database) as rd:
        owners = {job.session_id for job in (await rd.jobs.list()).jobs}
        assert owners == set(sessions)


async def has_success(client: Any) -> bool:
    found = (await ask(client, "inbox"))["notices"]
    return any((one["kind"], one.get("result")) == ("retry_success", "refunded 5") for one in found)


async def _granted(shell: Shell, session: str) -> int:
    done = await asyncio.to_thread(shell.run, "consent", "grant", session, "refund", "--why", "ada said so")
    return done.status


@pytest.mark.behaviour("R-7c")
async def test_two_programs_without_ids_under_one_token_are_told_apart(shell: Shell) -> None:
    """The protocol of 2026 has no ids, and the SDK's client sends none: what one was granted had served the other."""
    async with serving(shell) as port:

        async def session_of(name: str, version: str) -> str:
            program = mcp_types.Implementation(name=name, version=version)
            async with over_http(port, client_info=program) as visitor:
                return (await soon(ask(visitor.client, "status")))["session"]

        first, second = await session_of("claude-code", "1"), await session_of("vs-code", "1")
        assert first != second
        assert await session_of("claude-code", "2") == first, "kept over reconnects and updates"
        assert first != session_name(TOKEN, b"claude-code"), "no id can borrow it"


@pytest.mark.behaviour("R-7c")
async def test_another_token_with_the_same_id_is_in_another_session(shell: Shell) -> None:
    async with serving(shell, tokens=(TOKEN, OTHER)) as port:
        async with over_http(port, session_id="agent-a") as mine:
            await soon(ask(mine.client, "refund", euros=5))
            assert len(await notices(mine.client)) == 1
        async with over_http(port, token=OTHER, session_id="agent-a") as thief:
            assert (await soon(ask(thief.client, "inbox", include_read=True)))["notices"] == []
        async with over_http(port, session_id="agent-a") as mine:
            assert len(await notices(mine.client)) == 1


@pytest.mark.behaviour("R-7c")
async def test_two_processes_on_stdio_without_a_name_have_two_sessions(shell: Shell) -> None:
    async with on_stdio(shell) as a, on_stdio(shell) as b:
        sessions = [(await soon(ask(one, "status")))["session"] for one in (a, b)]
        assert len(set(sessions)) == 2
        assert (await soon(ask(a, "status")))["session"] == sessions[0], "one for the whole process"
        assert "--session NAME" in (await soon(ask(a, "inbox")))["next"], "so an agent learns it after a restart"


@pytest.mark.behaviour("R-7b")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_that_goes_away_in_the_middle_of_a_call_finds_the_end_in_its_inbox(
    shell: Shell, mode: str
) -> None:
    """The connection is cut while the task runs: the answer reaches nobody, so a notice tells the end."""
    async with serving(shell) as port:

        async def call() -> None:
            async with over_http(port, session_id="agent-a", mode=mode) as visitor:
                await visitor.client.call_tool("slow", {})

        cut = asyncio.create_task(call())
        await eventually((shell.folder / "started-one").exists, "the start of the task")
        cut.cancel()
        await soon(asyncio.wait([cut]))
        async with over_http(port, session_id="agent-a", mode=mode) as again:
            await soon(ask(again.client, "status"))  # answered after the end of the other connection was read
            (shell.folder / "go").touch()
            with working(shell):
                (notice,) = await notices(again.client)
                assert (notice["kind"], notice["result"]) == ("retry_success", "done one")


@pytest.mark.behaviour("R-7c")
async def test_ids_that_cannot_be_one_are_refused_and_nothing_else_is_served(shell: Shell) -> None:
    async with serving(shell) as port:
        good = [("Host", f"127.0.0.1:{port}"), ("Authorization", f"Bearer {TOKEN}")]
        for wrong in ([("Mcp-Session-Id", "")], [("Mcp-Session-Id", "a b")], [("Mcp-Session-Id", "x" * 129)],
                      [("Mcp-Session-Id", "a"), ("Mcp-Session-Id", "b")]):  # fmt: skip
            assert (await raw(port, [*good, *wrong]))[0] == 400, wrong
        for method in ("GET", "DELETE"):
            assert (await raw(port, [*good, ("Mcp-Session-Id", "a")], method=method))[0] == 405


def test_a_name_tells_neither_the_token_nor_the_id() -> None:
    assert session_name(TOKEN, b"a") == session_name(TOKEN, b"a") != session_name(OTHER, b"a")
    assert len({session_name(TOKEN), session_name(TOKEN, b"a"), session_name(TOKEN, b"b")}) == 3
    assert TOKEN not in session_name(TOKEN, b"agent-a") and "agent" not in session_name(TOKEN, b"agent-a")


def test_one_name_for_all_clients_over_http_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.folder)
    done = shell.here("mcp", "app:rd", "--http", "127.0.0.1:0", "--session", "all")
    assert done.status == 2 and "each client has its own session" in done.err and "--token" in done.err
