"""Descriptor exhaustion: strangers who open connections and say nothing cannot stop a server or its jobs.

The child has few descriptors, so few sockets do; everything stays on loopback, and every loop is bounded.
"""

import asyncio
import contextlib
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.cli.shell import Shell
from tests.support import eventually, soon

DESCRIPTORS = 400
PATIENCE = 90.0
"""Seconds for a server that hundreds of strangers ask at once, on a machine that may be busy besides."""
"""Of the child: (400 - 256) / 2 = 72 connections."""
FILES = 40
"""That a job opens at once."""
APP = f"""
    import contextlib, os
    from pathlib import Path
    import redrive

    rd = redrive.Redrive()

    with contextlib.suppress(ImportError):
        from redrive.doors.web import server

        if os.environ.get("UNGUARDED"):
            server.count_allowed_connections = lambda: 1_000_000
            server.HEAD_SECONDS = 3600.0

    @rd.task(max_attempts=1)
    async def read(folder: str) -> int:
        files = []
        try:
            for _ in range({FILES}):
                files.append(open(Path(folder, "app.py")))
            return len(files)
        finally:
            for file in files:
                file.close()
"""


class Server:
    """`redrive serve` in a process of few descriptors."""

    def __init__(self, shell: Shell, **environment: str) -> None:
        self.shell = shell
        self.log = shell.folder / "log"
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "redrive", "serve", "app:rd", "--port", "0"],
                cwd=shell.folder, env=shell.environment | environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, text=True,
                preexec_fn=_few_descriptors,  # noqa: PLW1509 - it takes no locks
            )  # fmt: skip
        assert self.child.stdout is not None
        said = self.child.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
        assert found is not None, (said, self.log.read_text())
        self.port = int(found[1])

    def written(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self) -> None:
        self.child.kill()
        self.child.communicate()


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


class Flood:
    """So many connections that begin a request and never end it; those that the server closes are opened again."""

    def __init__(self, port: int, number: int) -> None:
        self._port, self._number = port, number
        self._sockets: list[socket.socket] = []
        self._over = threading.Event()
        self.closed = 0
        """How many the server has closed."""
        self.full = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Flood":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for one in self._sockets:
            one.close()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            self._drop_closed()
            for _ in range(self._number - len(self._sockets)):
                self._open()
            self.full.set()

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            one = socket.create_connection(("127.0.0.1", self._port), timeout=2)
            one.send(b"GET / HTTP/1.1\r\nHost: ")
            self._sockets.append(one)

    def _drop_closed(self) -> None:
        poll = select.poll()
        by_number = {one.fileno(): one for one in self._sockets}
        for number in by_number:
            poll.register(number, select.POLLIN | select.POLLHUP)
        for number, _ in poll.poll(0):
            self.closed += 1
            self._sockets.remove(by_number[number])
            by_number[number].close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    (tmp_path / "app.py").write_text(textwrap.dedent(APP), encoding="utf-8")
    started: list[Server] = []

    def make(**environment: str) -> Server:
        started.append(Server(Shell(tmp_path), **environment))
        return started[-1]

    yield make
    for server in started:
        server.end()


async def enqueued(server: Server) -> str:
    return await asyncio.to_thread(server.shell.enqueue, "read", {"folder": str(server.shell.folder)})


async def answers(server: Server, path: str = "/v1/health") -> int:
    """The status of a request with the token, 0 where there is no answer."""
    token = (server.shell.folder / "jobs.db-token").read_text().strip()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=3) as client:
        try:
            return (await client.get(path, headers={"Authorization": f"Bearer {token}"})).status_code
        except httpx2.HTTPError:
            return 0


@pytest.mark.chaos
@pytest.mark.behaviour("T-13a", "T-13b")
async def test_connections_that_say_nothing_stop_neither_the_server_nor_its_jobs(
    start: Callable[..., Server], size: Callable[[int, int], int]
) -> None:
    server = start()

    async def done(id: str) -> bool:
        return await asyncio.to_thread(server.shell.state, id) == "done"

    with Flood(server.port, size(600, 900)) as flood:
        await soon(asyncio.to_thread(flood.full.wait))
        for _ in range(size(3, 30)):
            id = await enqueued(server)
            await eventually(lambda id=id: done(id), "the job ran while strangers held connections")
            job = await asyncio.to_thread(server.shell.job, id)
            assert [attempt["outcome"] for attempt in job["history"]] == ["done"], "no attempt met a limit of ours"

            async def let_in() -> bool:
                return await answers(server) == 200

            await eventually(let_in, "the server answered whoever has the token", PATIENCE)
        await eventually(lambda: flood.closed > 100, "connections that asked for nothing were closed")
    assert len(server.written()) < 20_000, server.written()[:2000]
    server.child.send_signal(signal.SIGTERM)
    await soon(asyncio.to_thread(server.child.wait))
    assert server.child.returncode == 0
    assert re.search(r"one that asked for nothing was closed … repeated [\d,]+ times in \d+ s", server.written())


@pytest.mark.chaos
@pytest.mark.behaviour("T-13c")
async def test_control_without_the_limits_the_descriptors_are_gone_and_still_no_attempt_is_used(
    start: Callable[..., Server], size: Callable[[int, int], int]
) -> None:
    """Without a limit of connections the same flood takes every descriptor. What a job then meets costs it nothing."""
    server = start(UNGUARDED="1")
    with Flood(server.port, size(600, 900)) as flood:
        await soon(asyncio.to_thread(flood.full.wait))
        await eventually(lambda: len(os.listdir(f"/proc/{server.child.pid}/fd")) >= DESCRIPTORS - 5, "all are taken")
        assert await answers(server) == 0, "the server answers nobody"
        id = await enqueued(server)

        async def met_the_limit() -> bool:
            return bool((await asyncio.to_thread(server.shell.job, id))["history"])

        await eventually(met_the_limit, "the job met the limit")
        job = await asyncio.to_thread(server.shell.job, id)
        assert (job["state"], job["attempts"]) == ("waiting", 0), job
        assert job["history"][0]["cause"]["detail"] == "own_limits"
        await eventually(lambda: "Too many open files" in server.written(), "it is told")
        assert len(server.written()) < 20_000, "what repeats is counted"

    async def done() -> bool:
        return await asyncio.to_thread(server.shell.state, id) == "done"

    await eventually(done, "the job ran when there was room again")
