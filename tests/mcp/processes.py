"""Real processes for the MCP tests: a server on standard input and output or over HTTP, a worker, the SDK's client."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client

from tests.cli.shell import Shell
from tests.cli.zygote import Forked, start_zygote
from tests.mcp.agents import ask
from tests.support import eventually, soon

PATIENCE = 90.0
"""Seconds for what needs another process to start first: a busy machine takes its time."""
TOKEN = "a-token-that-nobody-guesses"
OTHER = "another-token-for-another-agent"
APP = """
    import asyncio
    from pathlib import Path

    import redrive

    rd = redrive.Redrive("jobs.db", grace=0.2)

    class Busy(Exception):
        status_code = 429
        retry_after = 0.05

    @rd.task
    async def publish(slug: str) -> str:
        if not Path("up").exists():
            raise Busy("too many requests")
        return f"/articles/{slug}"

    @rd.task(consent=True)
    async def refund(euros: int) -> str:
        return f"refunded {euros}"

    @rd.task
    async def slow(name: str = "one") -> str:
        Path(f"started-{name}").touch()
        while not Path("go").exists():
            await asyncio.sleep(0.01)
        return f"done {name}"

    @rd.task(max_attempts=1)
    async def broken() -> None:
        raise redrive.GiveUp("the account is closed", recommendation="Open the account again.")
"""


def make_app(folder: Path) -> Shell:
    (folder / "app.py").write_text(textwrap.dedent(APP), encoding="utf-8")
    return Shell(folder, start_zygote())


@asynccontextmanager
async def on_stdio(shell: Shell, *words: str, **said: Any) -> AsyncIterator[mcp.Client]:
    """A process of its own with the SDK's client at the other end."""
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "redrive", "mcp", "app:rd", "--allow-write", *words],
        cwd=shell.folder, env=shell.environment,
    )  # fmt: skip
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        async with mcp.Client(mcp.stdio_client(server, errlog=nowhere), **said) as client:
            yield client


@asynccontextmanager
async def serving(shell: Shell, *words: str, tokens: tuple[str, ...] = (TOKEN,)) -> AsyncIterator[int]:
    """A real server over HTTP on a free port."""
    given = [word for token in tokens for word in ("--token", token)]
    child = shell.start("mcp", "app:rd", "--allow-write", "--http", "127.0.0.1:0", *given, *words)
    async with asyncio.timeout(PATIENCE):
        port = await asyncio.to_thread(_port_of, child)
    try:
        yield port
    finally:
        child.terminate()
        _, err = await soon(asyncio.to_thread(child.communicate))
    assert child.returncode == 0, err


def _port_of(child: subprocess.Popen[str] | Forked) -> int:
    """Reads what the server says until it says where it is."""
    assert child.stderr is not None
    said = []
    for line in child.stderr:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)/mcp", line):
            return int(found[1])
        said.append(line)
    raise AssertionError(f"the server ended before it served: {said}")


class Visitor:
    """A client over HTTP, with the session id that it was given or brings."""

    def __init__(self, client: mcp.Client, offered: list[str]) -> None:
        self.client = client
        self._offered = offered

    @property
    def session_id(self) -> str:
        """As the server offered it in the answer to `initialize`."""
        return self._offered[-1]


@asynccontextmanager
async def over_http(
    port: int, *, token: str = TOKEN, session_id: str | None = None, **said: Any
) -> AsyncIterator[Visitor]:
    offered: list[str] = []

    async def hear(response: httpx2.Response) -> None:
        offered.extend(response.headers.get_list("mcp-session-id"))

    headers = {"Authorization": f"Bearer {token}"} | ({"Mcp-Session-Id": session_id} if session_id else {})
    async with (
        httpx2.AsyncClient(headers=headers, event_hooks={"response": [hear]}, timeout=30) as http,
        mcp.Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http), **said) as client,
    ):
        yield Visitor(client, offered)


@contextmanager
def working(shell: Shell) -> Iterator[None]:
    """A worker that runs what is due."""
    with shell.start("worker", "app:rd") as worker:
        try:
            yield
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.communicate()


async def notices(client: mcp.Client, number: int = 1) -> list[dict[str, Any]]:
    """What the inbox has once it has so many."""
    found: list[dict[str, Any]] = []

    async def told() -> bool:
        found[:] = (await ask(client, "inbox"))["notices"]
        return len(found) >= number

    await eventually(told, f"{number} notices in the inbox", within=PATIENCE)
    return found
