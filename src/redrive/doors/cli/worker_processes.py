"""Runs several worker processes under one parent, which restarts them and passes signals on.

With --reload it also restarts them when a Python file of the folder changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from redrive.api.redrive import Redrive
from redrive.doors.cli import output
from redrive.doors.cli.invocation import invocation
from redrive.doors.cli.problems import BROKEN, TERMINATED, USER_ERROR

log = logging.getLogger("redrive.processes")
PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a worker is started again, longer each time it dies soon."""
SOON: Final = 10.0
LOOK_SECONDS: Final = 0.5
MOST_FILES: Final = 20_000
"""How many files are watched: the folder may be the root of a disk."""
SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
Stamps = dict[Path, tuple[int, int]]
"""The time and the size of each file."""


def run_processes(rd: Redrive, app: str, number: int, *, drain: bool, reload: bool, options: dict[str, Any]) -> int:
    """Keep `number` workers alive until a signal comes, or until they have drained; return the exit status."""
    parent = WorkerParent(_command(app, drain=drain, options=options), drain=drain, reload=reload)
    status = asyncio.run(parent.run(rd, number))
    if output.wants_json():
        output.print_json({"stopped": True, "processes": number, "restarts": parent.restarts})
    return status


def _command(app: str, *, drain: bool, options: dict[str, Any]) -> list[str]:
    """Return the command of a child. -P keeps modules of the caller's folder from hiding redrive itself."""
    words = [sys.executable, "-P", "-m", "redrive", "worker", app, "--parent", str(os.getpid())]
    for name, value in options.items():
        words += [f"--{name}", ",".join(value) if isinstance(value, tuple) else str(value)]
    if invocation().url:
        words += ["--url", str(invocation().url)]
    return [*words, *(["--drain"] if drain else []), *(["--json"] if invocation().json else [])]


class WorkerParent:
    """Starts worker processes, restarts those that die, and passes signals on."""

    def __init__(self, command: list[str], *, drain: bool, reload: bool = False) -> None:
        self._command = command
        self._drain = drain
        self._reload = reload
        self._change = asyncio.Event()
        """Set when a file changes; workers that start after the change watch a new event."""
        self._stopping = asyncio.Event()
        self._children: set[asyncio.subprocess.Process] = set()
        self._status = 0
        self.restarts = 0

    async def run(self, rd: Redrive, number: int) -> int:
        async with rd:
            pass  # a store that cannot be opened is reported once, here, and not by every child
        loop = asyncio.get_running_loop()
        for stopping in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(stopping, self.stop)
        watching = [self._watch(Path.cwd())] if self._reload else []
        await asyncio.gather(*watching, *(self._keep(place) for place in range(1, number + 1)))
        return self._status

    def stop(self) -> None:
        """Pass the signal on: every worker finishes or gives back what it runs."""
        self._stopping.set()
        self._change.set()
        self._terminate_children()

    def _terminate_children(self) -> None:
        for child in self._children:
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)

    async def _watch(self, folder: Path) -> None:
        """Stop the workers when a file changes, so that they are started again with the new code."""
        before = await asyncio.to_thread(stamp_sources, folder)
        log.info("workers are started again when one of %d Python files below %s changes", len(before), folder)
        while not self._stopping.is_set():
            await self._sleep(LOOK_SECONDS)
            after = await asyncio.to_thread(stamp_sources, folder)
            changes = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
            if changes:
                log.warning("%s changed: the workers are started again", changes[0].relative_to(folder))
                change, self._change = self._change, asyncio.Event()
                change.set()
                self._terminate_children()
            before = after

    async def _keep(self, place: int) -> None:
        quick = 0
        while not self._stopping.is_set():
            began, change = time.monotonic(), self._change
            status = await self._run_child(place)
            if self._reload and not self._stopping.is_set():
                await self._wait_for_change(place, status, change)
                continue
            if self._drain and status == 0:
                return
            if self._stopping.is_set():
                self._status = self._status or (TERMINATED if self._drain else 0)
                return
            if status in (USER_ERROR, BROKEN):
                # The child printed why. A restart would fail again or, after a failed sync, leave the others on a log
                # that the disk does not hold: only a process that is alone with the file can rewrite it.
                self._status = status
                self.stop()
                return
            quick = quick + 1 if time.monotonic() - began < SOON else 0
            pause = PAUSES[min(quick, len(PAUSES) - 1)]
            self.restarts += 1
            log.warning("worker %d ended by itself (%s); started again in %g s", place, _describe_end(status), pause)
            await self._sleep(pause)

    async def _run_child(self, place: int) -> int:
        child = await asyncio.create_subprocess_exec(*self._command, stdout=asyncio.subprocess.DEVNULL)
        self._children.add(child)
        if self._stopping.is_set():
            child.send_signal(signal.SIGTERM)
        log.info("worker %d started as process %d", place, child.pid)
        try:
            return await child.wait()
        finally:
            self._children.discard(child)

    async def _wait_for_change(self, place: int, status: int, change: asyncio.Event) -> None:
        """Restart a worker that was stopped for a change at once, one that ended by itself after the next change."""
        if not change.is_set():
            log.warning(
                "worker %d ended by itself (%s); started again after the next change", place, _describe_end(status)
            )
            await change.wait()
        self.restarts += 1

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


def _describe_end(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def stamp_sources(folder: Path) -> Stamps:
    """Read the time and size of every Python file below the folder, without hidden folders and installed code."""
    stamps: Stamps = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _is_skipped(root, name)]
        for name in files:
            if name.endswith(".py") and len(stamps) < MOST_FILES:
                path = Path(root, name)
                try:
                    stat = path.stat()
                except OSError:
                    continue  # it is being replaced; the next look sees it
                stamps[path] = stat.st_mtime_ns, stat.st_size
    return stamps


def _is_skipped(root: str, name: str) -> bool:
    return name.startswith(".") or name in SKIPPED_FOLDERS or os.path.exists(os.path.join(root, name, "pyvenv.cfg"))
