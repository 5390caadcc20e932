"""The server as a real process on standard input and output, with the SDK's own client at the other end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import mcp
import pytest

from tests.cli.shell import Done, Shell
from tests.mcp.agents import ask, names
from tests.support import eventually, opened, soon

APP = """
    import asyncio, os
    from pathlib import Path

    import redrive

    print("an app that prints while it is imported")
    os.system("echo and so does its child")
    rd = redrive.Redrive("jobs.db")

    class Busy(Exception):
        status_code = 429
        retry_after = 0.05

    @rd.task
    async def publish(slug: str) -> str:
        print("a task that prints")
        if not Path("up").exists():
            raise Busy("too many requests")
        return f"/articles/{slug}"

    @rd.task(max_attempts=5)
    async def slow() -> str:
        Path("started").touch()
        while not Path("go").exists():
            await asyncio.sleep(0.01)
        return "done"
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "app.py").write_text(textwrap.dedent(APP), encoding="utf-8")
    made = Shell(tmp_path)
    yield made
    made.end_all()


@asynccontextmanager
async def connected(shell: Shell, *words: str) -> AsyncIterator[mcp.Client]:
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "redrive", "mcp", *words], cwd=shell.folder, env=shell.environment
    )
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        async with mcp.Client(mcp.stdio_client(server, errlog=nowhere)) as client:
            yield client


@pytest.mark.behaviour("003-3", "003-6", "003-9")
async def test_an_agent_is_told_asks_and_gets_the_result_after_a_worker_ran_it(shell: Shell) -> None:
    async with connected(shell, "app:rd", "--allow-write", "--session", "s1") as client:
        told = await soon(ask(client, "publish", slug="q3"))
        assert told["queued_for_retry"] is True and not {"status", "result"} & told.keys()
        still = await soon(ask(client, "operation", operation_id=told["operation_id"]))
        assert still["queued_for_retry"] is True
        (shell.folder / "up").touch()
        with shell.start("worker", "app:rd") as worker:
            done = await soon(ask(client, "operation", operation_id=told["operation_id"], wait_seconds=60))
            worker.send_signal(signal.SIGTERM)
            worker.communicate()
        assert (done["status"], done["result"]) == ("ok", "/articles/q3")
    async with opened(shell.database) as rd:
        job = await rd.jobs.get(told["operation_id"])
        assert (job.session_id, job.state) == ("s1", "done")


async def test_without_the_flag_a_process_only_reads(shell: Shell) -> None:
    async with connected(shell, "app:rd") as client:
        assert await names(client) == {
            "status", "operation", "failures", "explain_failure", "failure_groups", "morning", "inbox",
        }  # fmt: skip
        assert (await soon(ask(client, "status")))["tools_can_write"] is False


async def test_without_an_app_it_reads_the_database(shell: Shell) -> None:
    async with opened(shell.database) as rd:
        handle = await rd.enqueue("elsewhere", {"n": 1})
    async with connected(shell) as client:
        assert (await soon(ask(client, "operation", operation_id=handle.id)))["status"] == "queued"


async def test_standard_output_carries_nothing_but_the_protocol(shell: Shell) -> None:
    """By hand: every line of the process is a JSON-RPC message, whatever the app prints."""
    child = shell.start("mcp", "app:rd", "--allow-write", piped=True)
    assert child.stdin is not None and child.stdout is not None
    hello = {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "1"},
    }  # fmt: skip
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
         "params": {"name": "publish", "arguments": {"slug": "q3"}}},
    ]  # fmt: skip
    lines = []
    for message in messages:
        child.stdin.write(json.dumps(message) + "\n")
        child.stdin.flush()
        if "id" in message:
            lines.append(await soon(asyncio.to_thread(child.stdout.readline)))
    out, err = await soon(asyncio.to_thread(child.communicate))
    lines += out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [1, 2]
    assert "queued_for_retry" in lines[1]
    assert "an app that prints" in err and "so does its child" in err and "a task that prints" in err
    assert child.returncode == 0


@pytest.mark.behaviour("T-19d")
async def test_a_message_with_a_key_twice_is_refused_and_the_next_one_answered(shell: Shell) -> None:
    child = shell.start("mcp", "app:rd", "--allow-write", piped=True)
    assert child.stdin is not None and child.stdout is not None
    hello = (
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
        '"clientInfo":{"name":"by hand","version":"1"}}}'
    )
    twice = (
        '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"publish","arguments":{"slug":"a","slug":"b"}}}'
    )
    answers = []
    for line in (
        hello,
        '{"jsonrpc":"2.0","method":"notifications/initialized"}',
        twice,
        twice.replace(',"slug":"b"', ""),
    ):
        child.stdin.write(line + "\n")
        child.stdin.flush()
        if '"id"' in line:
            answers.append(json.loads(await soon(asyncio.to_thread(child.stdout.readline))))
    await soon(asyncio.to_thread(child.communicate))
    assert 'has the key "slug" twice' in answers[1]["error"]["message"] and answers[1]["id"] == 2
    assert "queued_for_retry" in json.dumps(answers[2]["result"])
    async with opened(shell.database) as rd:
        (job,) = (await rd.jobs.list()).jobs
        assert job.arguments == {"slug": "a"}


async def test_a_client_that_leaves_midway_loses_nothing(shell: Shell) -> None:
    """Its call is given back to the queue: no attempt is burnt, and a worker finishes it."""
    async with connected(shell, "app:rd", "--allow-write") as client:
        late = await soon(ask(client, "call", task="slow", params={}, timeout_seconds=0.01))
        assert late["status"] == "timeout"
        await eventually((shell.folder / "started").exists, "the start of the task")
    async with opened(shell.database) as rd:
        job = await rd.jobs.get(late["operation_id"])
        assert (job.state, job.attempts, job.crashes) == ("waiting", 0, 0)
        (shell.folder / "go").touch()
    done = await asyncio.to_thread(shell.run, "worker", "app:rd", "--drain")
    assert done.status == 0, done.err
    async with opened(shell.database) as rd:
        assert (await rd.jobs.get(late["operation_id"])).state == "done"


async def test_a_signal_ends_it_and_gives_back_what_ran(shell: Shell) -> None:
    child = shell.start("mcp", "app:rd", "--allow-write", piped=True)
    assert child.stdin is not None and child.stdout is not None
    try:
        hello = {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "1"},
        }  # fmt: skip
        call = {"name": "slow", "arguments": {}}
        for message in (
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
        ):
            child.stdin.write(json.dumps(message) + "\n")
        child.stdin.flush()
        await eventually((shell.folder / "started").exists, "the start of the task")
        child.send_signal(signal.SIGTERM)
        assert await soon(asyncio.to_thread(child.wait)) == 0
    finally:
        child.kill()
    async with opened(shell.database) as rd:
        (job,) = (await rd.jobs.list()).jobs
        assert (job.state, job.attempts) == ("waiting", 0)


# -- the command


def said(done: Done) -> str:
    """What a command that refuses says: one line, a hint, and nothing where the protocol would be."""
    assert (done.status, done.out) == (2, ""), done
    assert len(done.err.splitlines()) == 2
    return done.err


def refused(shell: Shell, *words: str) -> str:
    return said(shell.here("mcp", *words))


def test_what_cannot_be_served_is_told_in_a_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.folder)
    assert "no database" in refused(shell)
    assert "is not module:attribute" in refused(shell, "app.py")
    assert "cannot import nowhere" in refused(shell, "nowhere:rd")
    assert "session" in refused(shell, "app:rd", "--session", "a\nb")
    assert "is not HOST:PORT" in refused(shell, "--http", "app:rd")
    assert "can be reached from outside" in refused(shell, "app:rd", "--http", "0.0.0.0:0")
    assert "can be reached from outside" in refused(shell, "app:rd", "--http", "[::]:0")
    for token in ("short", "with a space in it, long"):
        told = refused(shell, "app:rd", "--http", "127.0.0.1:0", "--token", token)
        assert "at least 16" in told and "secrets.token_urlsafe" in told and token not in told
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        shell.enqueue("greet")  # now there is a database
        assert f"cannot listen on {place}" in refused(shell, "--http", place)
    monkeypatch.setattr(Shell, "environment", {**shell.environment, "REDRIVE_MCP_TOKEN": "short"})
    assert "at least 16" in refused(shell, "app:rd", "--http", "127.0.0.1:0")


def test_without_the_extra_it_says_what_to_install(shell: Shell) -> None:
    hidden = shell.folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['mcp'] = None\n", encoding="utf-8")
    told = said(shell.run("mcp", "app:rd", text="", PYTHONPATH=str(hidden)))
    assert told.splitlines()[-1] == '  hint: pip install "redrive[mcp]"'


def test_the_other_commands_do_not_need_it(shell: Shell) -> None:
    code = "import sys, redrive.doors.cli; sys.exit(any(name.split('.')[0] == 'mcp' for name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=shell.folder, check=False)
    assert ran.returncode == 0
