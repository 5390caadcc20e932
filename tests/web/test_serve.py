"""`redrive serve` and `redrive token`, as processes: one link, one port, one clean end."""

import asyncio
import json
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx2
import pytest

from redrive.doors.cli.serve import link_to
from tests.cli.shell import Done, Shell, make_shell, refused
from tests.cli.zygote import Forked, start_zygote
from tests.support import eventually, soon


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = make_shell(tmp_path, start_zygote())
    yield made
    made.end_all()


class Running:
    """A server process: what it said, and a client that followed its link."""

    def __init__(self, child: Popen[str] | Forked, said: str, client: httpx2.AsyncClient) -> None:
        self.child = child
        self.said = said
        self.client = client

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> Done:
        self.child.send_signal(how)
        out, err = await soon(asyncio.to_thread(self.child.communicate))
        return Done(self.child.returncode, out, err)


@asynccontextmanager
async def served(shell: Shell, *words: str) -> AsyncIterator[Running]:
    child = shell.start("serve", *words, "--port", "0")
    assert child.stdout is not None
    said = await soon(asyncio.to_thread(child.stdout.readline))
    found = re.search(r"(http://127\.0\.0\.1:\d+)(/\S*)", said)
    assert found is not None, (said, child.stderr and child.stderr.read())
    async with httpx2.AsyncClient(base_url=found[1]) as client:

        async def answers() -> bool:
            try:
                return (await client.get("/readyz")).status_code == 200
            except httpx2.TransportError:
                return False

        await eventually(answers, "the server answers")
        if "--no-auth" not in words:
            assert found[2] == "/", "no token in what may be a log"
            link = await soon(client.get("/", params={"token": await token_of(shell)}))
            assert link.status_code == 303, link.text
        yield Running(child, said, client)


async def token_of(shell: Shell) -> str:
    return (await asyncio.to_thread(shell.run, "token")).out.strip()


async def bearer(shell: Shell) -> dict[str, str]:
    return {"Authorization": f"Bearer {await token_of(shell)}"}


async def state(shell: Shell, id: str) -> str:
    return await asyncio.to_thread(shell.state, id)


async def enqueued(shell: Shell, task: str, payload: dict[str, Any]) -> str:
    return await asyncio.to_thread(shell.enqueue, task, payload)


@pytest.mark.behaviour("T-19b")
@pytest.mark.parametrize("form", [(), ("--json",)])
async def test_the_link_with_the_token_is_printed_to_a_terminal_only(shell: Shell, form: tuple[str, ...]) -> None:
    """What is no terminal may be a log, and others read logs."""
    assert "token=" in await first_words(shell, *form, terminal=True)
    said = await first_words(shell, *form, terminal=False)
    assert "http://127.0.0.1:" in said and (shell.folder / "jobs.db-token").read_text().strip() not in said


async def first_words(shell: Shell, *form: str, terminal: bool) -> str:
    """What `redrive serve` prints until it serves."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "redrive", "serve", "--port", "0", *form],
        cwd=shell.folder, env=shell.environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    try:
        said = ""
        while "worker" not in said if form else "\n" not in said:
            said += (await soon(asyncio.to_thread(os.read, ours, 65536))).decode()
        return said
    finally:
        child.kill()
        child.wait()
        os.close(ours)


async def test_the_link_lets_a_browser_in_and_jobs_run(shell: Shell) -> None:
    async with served(shell, "app:rd") as running:
        assert running.said.count("\n") == 1
        origin = {"Origin": str(running.client.base_url).rstrip("/")}
        new = await soon(
            running.client.post("/v1/jobs", json={"task": "greet", "payload": {"name": "x"}}, headers=origin)
        )
        assert new.status_code == 201, new.text

        async def done() -> bool:
            return bool((await running.client.get(f"/v1/jobs/{new.json()['id']}")).json()["state"] == "done")

        await eventually(done, "the job was run by the same process")
        end = await running.stop()
        assert (end.status, end.out) == (0, "") and "Traceback" not in end.err


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
async def test_open_streams_do_not_keep_it_and_running_jobs_finish(shell: Shell, told: signal.Signals) -> None:
    go = shell.folder / "go"
    id = await enqueued(shell, "mark", {"folder": str(shell.folder), "until": str(go)})
    async with served(shell, "app:rd") as running:
        await eventually(lambda: any(shell.folder.glob("started-*")), "the job began")
        begun, over = asyncio.Event(), asyncio.Event()

        async def watch() -> None:
            async with running.client.stream("GET", "/v1/events", timeout=60) as answer:
                async for _ in answer.aiter_raw():
                    begun.set()
            over.set()

        watching = asyncio.create_task(watch())
        await soon(begun.wait())
        running.child.send_signal(told)
        await soon(over.wait())  # while the job still runs
        await watching
        assert await state(shell, id) == "running"
        go.touch()
        _, err = await soon(asyncio.to_thread(running.child.communicate))
        assert running.child.returncode == 0, err
    assert await state(shell, id) == "done"


async def test_without_an_app_it_delivers_for_anybody_and_leaves_other_tasks_alone(shell: Shell) -> None:
    from tests.receiver import answer, receiving

    (shell.folder / "redrive.toml").write_text('[delivery]\nallow = ["127.0.0.1/32"]\n')
    other = await enqueued(shell, "greet", {"name": "x"})
    async with receiving(answer("200 OK", b"{}")) as receiver, served(shell) as running:
        request = {"method": "POST", "url": receiver.url("/hook"), "json": {"n": 1}}
        new = await soon(
            running.client.post(
                "/v1/jobs",
                json={"task": "redrive.http", "payload": request},
                headers={**await bearer(shell), "Idempotency-Key": "hook-1"},
            )
        )
        assert new.status_code == 201, new.text
        await eventually(lambda: len(receiver.requests) == 1, "it was delivered")
        assert receiver.requests[0].headers["idempotency-key"]
        assert await state(shell, other) == "waiting"
        assert (await running.stop()).status == 0


async def test_without_a_worker_nothing_runs_here(shell: Shell) -> None:
    id = await enqueued(shell, "greet", {"name": "x"})
    async with served(shell, "app:rd", "--no-worker") as running:
        stats = (await soon(running.client.get("/metrics", headers=await bearer(shell)))).text
        assert "redrive_workers 0\n" in stats
        assert await state(shell, id) == "waiting"
        assert (await running.stop()).status == 0


async def test_no_auth_is_loud_and_only_for_this_machine(shell: Shell) -> None:
    async with served(shell, "--no-auth") as running:
        assert "token=" not in running.said
        assert (await soon(running.client.get("/v1/health"))).status_code == 200
        end = await running.stop()
        assert "WARNING: no token is asked for" in end.err
    refused(shell.run("serve", "--no-auth", "--host", "0.0.0.0", "--port", "0"), "can be reached from outside")
    assert not list(shell.folder.glob("*-token"))


@pytest.mark.parametrize("name", ["https://queue.example.com", "queue.example.com/", " "])
def test_an_address_is_not_taken_for_a_host(shell: Shell, name: str) -> None:
    """It would be served to nobody."""
    refused(shell.run("serve", "--port", "0", "--allow-host", name), "--allow-host")


def test_a_busy_port_is_one_clear_line(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused(shell.run("serve", "--port", port), f"cannot listen on 127.0.0.1:{port}")


@pytest.mark.parametrize("nowhere", ["", " "])
def test_no_address_is_not_every_address(shell: Shell, nowhere: str) -> None:
    refused(shell.run("serve", "--port", "0", "--host", nowhere), "the address to listen on is empty")


def test_an_app_that_is_none_is_one_clear_line(shell: Shell) -> None:
    refused(shell.here("serve", "nonsense"), "is not module:attribute")


def test_a_missing_extra_is_the_line_to_install_it(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    plain = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "uvicorn" else plain(name, *rest)
    )
    done = shell.here("serve")
    refused(done, "needs the package uvicorn")
    assert 'pip install "redrive[serve]"' in done.err


async def test_json_says_the_same_for_programs(shell: Shell) -> None:
    child = shell.start("serve", "--port", "0", "--json")
    assert child.stdout is not None
    lines = [await soon(asyncio.to_thread(child.stdout.readline)) for _ in range(5)]
    said: dict[str, Any] = json.loads("".join(lines))
    assert said["url"].startswith("http://127.0.0.1:") and said["worker"] is True
    async with httpx2.AsyncClient() as client:
        assert (await soon(client.get(said["url"].partition("?")[0] + "healthz"))).status_code == 200
    child.terminate()
    await soon(asyncio.to_thread(child.communicate))
    assert child.returncode == 0


def test_the_token_is_shown_rotated_and_given_as_a_link(shell: Shell) -> None:
    refused(shell.here("token"), "there is no database at")
    assert not list(shell.folder.glob("jobs.db*")), "asking for the token makes neither a database nor a token"
    shell.enqueue("greet")
    first = shell.here("token")
    assert (first.status, len(first.out.strip()) > 40) == (0, True)
    assert shell.here("token").out == first.out
    file = shell.folder / "jobs.db-token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    second = shell.here("token", "--rotate").out
    assert second != first.out and shell.here("token").out == second
    link = shell.here("token", "--link", "--port", "9000").out.strip()
    assert link == f"http://127.0.0.1:9000/?token={second.strip()}"
    said = shell.here("token", "--json").json
    assert (said["token"], said["file"]) == (second.strip(), str(file))


def test_where_there_is_no_file_there_is_no_token(shell: Shell) -> None:
    refused(shell.here("--url", ":memory:", "token"), "in memory")


def test_a_link_leads_to_an_address_that_a_browser_can_open() -> None:
    assert link_to("0.0.0.0", 8420, None) == "http://127.0.0.1:8420/"
    assert link_to("::1", 8420, "t") == "http://[::1]:8420/?token=t"
