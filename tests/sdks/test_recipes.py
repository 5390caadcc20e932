"""The recipes of docs/howto/recipes.md that need a library beyond redrive's own, run with that library."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "recipes.md"
SECONDS = 120
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def block(heading: str) -> str:
    """The first Python block below a heading; the page's own first block for `Recipes`."""
    return _PYTHON.findall(PAGE.read_text("utf-8").partition(f"# {heading}\n")[2])[0]


async def run(code: str, names: dict[str, Any]) -> None:
    compiled = compile(code, PAGE.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = eval(compiled, names)
    if inspect.isawaitable(found):
        await found


@pytest.fixture
def beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return block("Recipes")


async def test_pydantic_ai(beginning: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "recipe"}
    await run(beginning, names)
    await run(block("pydantic-ai"), names)
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["publish"]
    assert (told["status"], told["result"]) == ("ok", "/articles/a")
    await names["rd"].close()


async def test_openai_agents(beginning: str, capsys: pytest.CaptureFixture[str]) -> None:
    from agents.tool_context import ToolContext

    names: dict[str, Any] = {"__name__": "recipe"}
    await run(beginning, names)
    await run(block("OpenAI Agents SDK"), names)
    assert capsys.readouterr().out.splitlines()[-1] == "[('publish', ['draft', 'slug'])]"
    (tool,) = names["editor"].tools
    said = json.dumps({"slug": "q3", "draft": "We grew."})
    context: Any = ToolContext(context=None, tool_name="publish", tool_call_id="1", tool_arguments=said)
    told = await tool.on_invoke_tool(context, said)
    assert (told["status"], told["result"]) == ("ok", "/articles/q3")
    assert "The last part of its address" in json.dumps(tool.params_json_schema)
    await names["rd"].close()


def test_uvloop(beginning: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    tasks = beginning.partition("tool = ")[0]
    file.write_text(tasks + block("uvloop"), "utf-8")
    ran = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert ran.stdout == "/articles/q4\n"


def test_ipython(tmp_path: Path) -> None:
    session = re.findall(r"^(?:In \[\d+\]: |   \.\.\.: )(.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    said = "\n".join(line if not line.startswith("    return") else line + "\n\n" for line in session)
    variables = os.environ | {"HOME": str(tmp_path), "TERM": "dumb", "IPYTHONDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"],
        input=f"{said}\nawait rd.close()\nexit\n", cwd=tmp_path, env=variables, capture_output=True, text=True,
        timeout=SECONDS, check=True,
    )  # fmt: skip
    assert "Hello, Ada" in ran.stdout and "Error" not in ran.stdout, ran.stdout


async def test_sentry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sentry_sdk
    from sentry_sdk.transport import Transport

    import redrive

    events: list[dict[str, Any]] = []

    class Kept(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            events.extend(item.payload.json for item in envelope.items if item.headers["type"] == "event")

    started = sentry_sdk.init
    monkeypatch.setattr(sentry_sdk, "init", lambda **said: started(**said, transport=Kept))
    names: dict[str, Any] = {"__name__": "recipe"}
    await run(block("Sentry"), names)
    rd = redrive.Redrive(tmp_path / "jobs.db")

    @rd.task
    async def broken() -> None:
        raise TypeError("a bug")

    @rd.task(max_attempts=1)
    async def slow() -> None:
        raise TimeoutError("it heals")

    try:
        await broken.enqueue()
        await slow.enqueue()
        await rd.drain()
        sentry_sdk.flush()
    finally:
        await rd.close()
        logging.getLogger("redrive").removeHandler(names["handler"])
        started()
    (event,) = events
    (error,) = event["exception"]["values"]
    assert (event["level"], event["logger"], error["type"], error["value"]) == (
        "warning", "redrive.attempt", "TypeError", "a bug",
    )  # fmt: skip
