"""The page about MCP: its table is the server's, and its configuration files start servers that answer."""

import json
import os
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import httpx2
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client

import redrive
from redrive.doors.mcp import make_server
from tests.cli.shell import Shell, make_shell
from tests.docs.pages import ROOT, blocks
from tests.mcp.agents import ask, names
from tests.mcp.test_http import serving
from tests.support import soon

PAGE = ROOT / "docs" / "mcp.md"
FILES = [json.loads(block.text) for block in blocks(PAGE) if block.language == "json"]
SERVERS = [server for file in FILES for server in (file.get("mcpServers") or file["servers"]).values()]


async def table(rd: redrive.Redrive) -> str:
    """The tools as the server tells them, for the page."""
    async with mcp.Client(make_server(rd)) as reader, mcp.Client(make_server(rd, allow_write=True)) as writer:
        reading = await names(reader)
        rows = [
            f"| `{tool.name}` | {'no' if tool.name in reading else 'yes'} | {tool.description} |"
            for tool in (await writer.list_tools()).tools
        ]
    return "\n".join(["| tool | writes | what it does |", "|---|---|---|", *rows])


async def test_the_table_is_the_server_s_own(tmp_path: Path) -> None:
    async with redrive.Redrive(tmp_path / "jobs.db") as rd:
        made = await table(rd)
    assert made in PAGE.read_text("utf-8"), f"the table of docs/mcp.md should be:\n{made}"


def test_there_are_files_for_two_clients_both_ways() -> None:
    kinds = [next(iter(file.keys() - {"inputs"})) for file in FILES]
    assert sorted((kind, "url" in server) for kind, server in zip(kinds, SERVERS, strict=True)) == [
        ("mcpServers", False), ("mcpServers", True), ("servers", False), ("servers", True),
    ]  # fmt: skip


@pytest.mark.parametrize("server", [one for one in SERVERS if "command" in one], ids=["claude", "vscode"])
async def test_a_configuration_starts_a_server(server: dict[str, Any], tmp_path: Path) -> None:
    app = """
        import redrive
        rd = redrive.Redrive()

        @rd.task
        async def greet(name: str) -> str:
            return f"hello {name}"
    """
    (tmp_path / "tasks.py").write_text(textwrap.dedent(app), encoding="utf-8")
    assert server["command"] == "redrive"
    started = mcp.StdioServerParameters(
        command=str(Path(sys.executable).with_name("redrive")), args=server["args"], env=server["env"], cwd=tmp_path
    )
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        async with mcp.Client(mcp.stdio_client(started, errlog=nowhere)) as client:
            assert (await soon(ask(client, "status")))["health"] == "healthy"
            assert ("greet" in await names(client)) is ("--allow-write" in server["args"])
    assert (tmp_path / "jobs.db").exists()


async def test_the_http_configurations_get_in(tmp_path: Path) -> None:
    token = "a-token-of-ones-own-1"
    shell: Shell = make_shell(tmp_path)
    try:
        async with serving(shell, "--token", token) as (port, _):
            for server in (one for one in SERVERS if "url" in one):
                url = server["url"].replace(":8421/", f":{port}/")
                headers = {name: re.sub(r"\$\{[\w:-]+\}", token, value) for name, value in server["headers"].items()}
                async with (
                    httpx2.AsyncClient(headers=headers) as http,
                    mcp.Client(streamable_http_client(url, http_client=http)) as client,
                ):
                    assert (await soon(ask(client, "status")))["tools_can_write"] is False
    finally:
        shell.end_all()
