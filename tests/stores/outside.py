"""Starts an outsider and talks to it. A reply that does not come within a minute is an error, never a hang."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class Outsider:
    """One other process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, command: str) -> list[str]:
        """Give a command, get the words of its answer."""
        self._send(command)
        return (await self._line()).split()[1:]

    def _send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    async def _line(self) -> str:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
        assert line, "the other process ended"
        return line.decode().strip()

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def leave(self) -> None:
        self._send("exit")
        assert await asyncio.wait_for(self.process.wait(), PATIENCE) == 0


@asynccontextmanager
async def outsider(place: str, folder: Path) -> AsyncIterator[Outsider]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.stores.outsider", place, str(folder), cwd=ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    other = Outsider(process)
    try:
        assert await other._line() == "open"
        yield other
    finally:
        await other.kill()
