"""What the MCP tests share: an app with tasks that fail as real ones do, and a client's look at an answer."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import msgspec
from mcp_types import CallToolResult, TextContent

import redrive
from redrive.doors.mcp import make_server
from tests.support import FakeClock


class Busy(Exception):
    """What a provider answers when it has too much to do."""

    status_code = 429
    retry_after = 60.0


class Line(msgspec.Struct):
    """A parameter with a shape."""

    sku: str
    pieces: int = 1


class World:
    """The app, its clock, and what its tasks did outside."""

    def __init__(self, database: Path) -> None:
        self.clock = FakeClock()
        self.rd = redrive.Redrive(database, clock=self.clock)
        self.busy = 0
        """So many calls of `publish` meet a busy provider."""
        self.posted: list[str] = []
        self.refunded: list[int] = []
        add_tasks(self)


def add_tasks(world: World) -> None:
    rd = world.rd

    @rd.task
    async def publish(slug: str, words: int = 100) -> dict[str, Any]:
        """Publish an article."""
        if world.busy > 0:
            world.busy -= 1
            raise Busy("too many requests")
        world.posted.append(slug)
        return {"url": f"/articles/{slug}", "words": words}

    @rd.task("shop/order")
    async def order(lines: list[Line], note: str | None = None) -> int:
        return sum(line.pieces for line in lines)

    @rd.task(consent=True)
    async def refund(euros: int) -> str:
        """Give money back."""
        world.refunded.append(euros)
        return f"refunded {euros}"

    @rd.task(read_only=True)
    async def look_up(name: str) -> str:
        """Look something up."""
        if name == "nobody":
            raise LookupError("nobody is not in the book")
        return f"{name} lives here"

    @rd.task(max_attempts=1, comebacks=())
    async def broken(text: str = "the mill is broken", **anything: object) -> None:
        raise RuntimeError(text)

    @rd.task
    async def novel(letters: int) -> str:
        return "x" * letters

    @rd.task
    async def status(of: str) -> str:
        """A task whose name is that of a tool."""
        return of


@asynccontextmanager
async def client_of(world: World, **said: Any) -> AsyncIterator[mcp.Client]:
    """The SDK's own client, in this process."""
    async with mcp.Client(make_server(world.rd, **said)) as client:
        yield client


async def ask(client: mcp.Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a tool that did not fail; what a model reads is what a program gets."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    assert result.structured_content == json.loads(text_of(result))
    return dict(result.structured_content)


async def refused(client: mcp.Client, tool: str, **arguments: Any) -> str:
    """What a model reads where a tool refuses."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, text_of(result)
    return text_of(result)


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def names(client: mcp.Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}
