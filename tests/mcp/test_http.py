"""MCP over HTTP: a token even on localhost, exact Host and Origin, shown with requests written by hand."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client

from redrive.doors.web.guard import allowed_hosts, allowed_origins, is_loopback
from tests.cli.shell import Shell, make_shell
from tests.cli.zygote import start_zygote
from tests.mcp.agents import ask
from tests.support import soon

TOKEN = "a-token-that-nobody-guesses"
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "1"}},
}  # fmt: skip


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = make_shell(tmp_path, start_zygote())
    yield made
    made.end_all()


@asynccontextmanager
async def serving(shell: Shell, *words: str) -> AsyncIterator[tuple[int, list[str]]]:
    """A real process on a free port; its port and what it said."""
    child = shell.start("mcp", "app:rd", "--http", "127.0.0.1:0", *words)
    assert child.stderr is not None
    try:
        said = [await soon(asyncio.to_thread(child.stderr.readline))]
        if "--token" not in words:
            said.append(await soon(asyncio.to_thread(child.stderr.readline)))
        found = re.search(r"http://127\.0\.0\.1:(\d+)/mcp", said[0])
        assert found is not None, said
        yield int(found[1]), said
    finally:
        child.terminate()
        await soon(asyncio.to_thread(child.communicate))
        assert child.returncode == 0


async def raw(
    port: int, headers: list[tuple[str, str]], *, method: str = "POST", path: str = "/mcp", body: object = HELLO
) -> tuple[int, bytes]:
    """The status and the body of a request, header by header as given."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode() if method == "POST" else b""
    basics = [
        ("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream"),
        ("Content-Length", str(len(content))), ("Connection", "close"),
    ]  # fmt: skip
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in [*headers, *basics]), "", ""]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write("\r\n".join(lines).encode("latin-1") + content)
        await writer.drain()
        answer = await soon(reader.read())
    finally:
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest


def good(port: int, **instead: str | None) -> list[tuple[str, str]]:
    """What a client sends, but for what is said here."""
    headers: dict[str, str | None] = {"Host": f"127.0.0.1:{port}", "Authorization": f"Bearer {TOKEN}"}
    headers |= {name.replace("_", "-"): value for name, value in instead.items()}
    return [(name, value) for name, value in headers.items() if value is not None]


async def test_only_who_has_the_token_and_the_right_host_and_origin_gets_in(shell: Shell) -> None:
    async with serving(shell, "--token", TOKEN, "--allow-host", "queue.example:443") as (port, _):
        local = f"127.0.0.1:{port}"
        matrix: list[tuple[int, list[tuple[str, str]]]] = [
            (200, good(port)),
            (200, good(port, Host=f"localhost:{port}")),
            (200, good(port, Host=f"[::1]:{port}")),
            (200, good(port, Host="queue.example:443")),
            (200, good(port, Origin=f"http://{local}")),
            (200, good(port, Origin=f"http://localhost:{port}")),
            (200, good(port, Origin="https://queue.example:443")),
            (200, good(port, Authorization=f"bearer {TOKEN}")),
            # no token, or another
            (401, good(port, Authorization=None)),
            (401, good(port, Authorization="Bearer wrong")),
            (401, good(port, Authorization=f"Bearer {TOKEN}x")),
            (401, good(port, Authorization=f"Bearer {TOKEN[:-1]}")),
            (401, good(port, Authorization=f"Basic {TOKEN}")),
            (401, good(port, Authorization=TOKEN)),
            (401, good(port, Authorization="Bearer")),
            (401, [*good(port), ("Authorization", "Bearer other")]),
            # a name that somebody points at 127.0.0.1
            (421, good(port, Host=f"evil.example:{port}")),
            (421, good(port, Host="127.0.0.1")),
            (421, good(port, Host=f"127.0.0.1:{port + 1}")),
            (421, good(port, Host=f"{local}.evil.example")),
            (421, good(port, Host=f"localhost:{port}@evil.example")),
            (421, good(port, Host="queue.example")),
            (421, good(port, Host=f"evil.example:{port}", Authorization=None)),
            # a page of somebody else
            (403, good(port, Origin="http://evil.example")),
            (403, good(port, Origin="null")),
            (403, good(port, Origin="http://127.0.0.1")),
            (403, good(port, Origin=f"http://{local}.evil.example")),
            (403, good(port, Origin=f"http://localhost:{port + 1}")),
            (403, good(port, Origin="http://evil.example", Authorization=None)),
            (403, [*good(port, Origin=f"http://{local}"), ("Origin", "http://evil.example")]),
        ]  # fmt: skip
        for expected, headers in matrix:
            status, body = await raw(port, headers)
            assert status == expected, headers
            assert (b"serverInfo" in body) is (expected == 200), headers
        # every route and method, not only the one that serves
        for method, path in (
            ("GET", "/mcp"),
            ("DELETE", "/mcp"),
            ("GET", "/"),
            ("POST", "/elsewhere"),
            ("OPTIONS", "/mcp"),
        ):
            assert (await raw(port, good(port, Authorization=None), method=method, path=path))[0] == 401
            assert (await raw(port, good(port, Host="evil.example"), method=method, path=path))[0] == 421
            assert (await raw(port, good(port, Origin="http://evil"), method=method, path=path))[0] == 403
        assert (await raw(port, good(port)[1:]))[0] in (400, 421), "no Host at all"
        # no page may read an answer
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"OPTIONS /mcp HTTP/1.1\r\nHost: {local}\r\nOrigin: http://{local}\r\nConnection: close\r\n\r\n".encode()
        )
        assert b"access-control" not in (await soon(reader.read())).lower()
        writer.close()


async def test_a_token_is_made_and_told_once(shell: Shell) -> None:
    async with serving(shell, "--allow-write") as (port, said):
        found = re.fullmatch(r"token \(shown once\): (\S{40,})\n", said[1])
        assert found is not None
        assert (await raw(port, good(port)))[0] == 401
        authorized = httpx2.AsyncClient(headers={"Authorization": f"Bearer {found[1]}"})
        async with authorized, mcp.Client(
            streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=authorized)
        ) as client:  # fmt: skip
            done = await soon(ask(client, "greet", name="ada"))
            assert (done["status"], done["result"]) == ("ok", "hello ada")
            assert found[1] not in json.dumps(await soon(ask(client, "status")))


def test_the_lists_are_exact() -> None:
    assert allowed_hosts("127.0.0.1", 8421) == ("127.0.0.1:8421", "localhost:8421", "[::1]:8421")
    assert allowed_hosts("0.0.0.0", 8421) == allowed_hosts("127.0.0.1", 8421)
    assert allowed_hosts("::", 8421, ["Q.example:1"])[-1] == "q.example:1"
    assert "[fe80::1]:8421" in allowed_hosts("fe80::1", 8421)
    assert "localhost" in allowed_hosts("127.0.0.1", 80)
    assert allowed_origins(["a:1"]) == ("http://a:1", "https://a:1")
    assert [is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil", "example")] == [False] * 5


@pytest.mark.behaviour("T-19d")
async def test_a_request_with_a_key_twice_is_refused_by_its_id(shell: Shell) -> None:
    twice = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"status","arguments":{"a":1,"a":2}}}'
    async with serving(shell, "--token", TOKEN) as (port, _):
        status, answer = await raw(port, good(port), body=twice)
        told = json.loads(answer)
        assert (status, told["id"], told["error"]["code"]) == (400, 7, -32600)
        assert 'has the key "a" twice' in told["error"]["message"]
        assert (await raw(port, good(port)))[0] == 200


def a_named_token(shell: Shell, name: str, role: str) -> str:
    done = shell.run("token", "add", name, "--role", role, "--show")
    assert done.status == 0, done.err
    return done.out.strip()


@asynccontextmanager
async def connected(port: int, secret: str) -> AsyncIterator[mcp.Client]:
    authorized = httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"})
    address = f"http://127.0.0.1:{port}/mcp"
    async with authorized, mcp.Client(streamable_http_client(address, http_client=authorized)) as client:
        yield client


@pytest.mark.behaviour("H-3b")
@pytest.mark.behaviour("H-3d")
async def test_a_named_token_has_the_tools_of_its_role_and_signs_what_it_does(shell: Shell) -> None:
    (id,) = await asyncio.to_thread(shell.dead_letters)
    look, act = (a_named_token(shell, name, role) for name, role in (("eyes", "look"), ("ann", "act")))
    worker = a_named_token(shell, "runner", "worker")
    async with serving(shell, "--token", TOKEN, "--allow-write") as (port, _):
        async with connected(port, look) as client:
            names = {tool.name for tool in (await soon(client.list_tools())).tools}
            assert "failures" in names and not names & {"call", "submit", "retry", "redrive_failure", "greet"}
            assert (await soon(ask(client, "status")))["tools_can_write"] is False
            for tool, said in (("redrive_failure", {"failure_id": id, "why": "put right"}), ("greet", {"name": "a"})):
                refused = await soon(client.call_tool(tool, said))
                assert refused.is_error
                told = json.dumps(refused.structured_content)
                assert "This needs the role act; the token 'eyes' has the role look" in told
        status, body = await raw(port, good(port, Authorization=f"Bearer {worker}"))
        assert status == 403 and b"this needs the role look" in body
        async with connected(port, act) as client:
            assert "redrive_failure" in {tool.name for tool in (await soon(client.list_tools())).tools}
            done = await soon(ask(client, "redrive_failure", failure_id=id, why="put right"))
            assert done["status"] == "queued"
        assert shell.run("token", "revoke", "ann").status == 0
        assert (await raw(port, good(port, Authorization=f"Bearer {act}")))[0] == 401
        assert (await raw(port, good(port)))[0] == 200
    (who,) = [act["who"] for act in shell.run("dead", "acts", "--json").json]
    assert re.fullmatch(r"ann \(as mcp, session mcp-[0-9a-f]{24}\)", who)
    assert "ann (as mcp" in shell.run("dead", "acts").out
