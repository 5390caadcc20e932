"""Several workers under one parent that starts them, starts them again, and passes signals on."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redrive.core.redact import redact_text
from redrive.doors.cli import output
from redrive.doors.cli.asking import asked
from redrive.doors.cli.problems import BROKEN, TERMINATED, USER_ERROR
from redrive.doors.cli.reloading import LOOK_SECONDS, changed, sources
from redrive.doors.cli.text import clean
from redrive.engine.failure_log import EXPECTED

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

log = logging.getLogger("redrive.processes")
PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a worker is started again, longer each time it dies soon."""
SOON: Final = 10.0


class TextLines(logging.Formatter):
    """One line per record: what a job said is neither a line of its own nor something that a terminal would obey."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return clean(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Leave out the traceback of a failure that heals by itself."""
        if getattr(record, EXPECTED, False):
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        return super().format(record)

    def formatException(self, ei: Any) -> str:
        """Indent every line: what an exception says cannot be taken for a record of its own."""
        return "\n".join(f"  {clean(line)}" for line in redact_text(super().formatException(ei)).split("\n"))


class JsonLines(logging.Formatter):
    """One JSON object per log line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"at": record.created, "process": record.process, "level": record.levelname, "logger": record.name}
        if record.exc_info:
            line["traceback"] = redact_text(self.formatException(record.exc_info))
        return json.dumps(line | {"message": record.getMessage()})


def run(rd: Redrive, app: str, number: int, *, drain: bool, reload: bool, options: dict[str, Any]) -> int:
    """Keep so many workers alive until told to stop, or until they have drained."""
    family = Family(command(app, drain=drain, options=options), drain=drain, reload=reload)
    status = asyncio.run(family.live(rd, number))
    if output.as_json():
        output.say_json({"stopped": True, "processes": number, "restarts": family.restarts})
    return status


def command(app: str, *, drain: bool, options: dict[str, Any]) -> list[str]:
    """How a child is started: this command, for one process. -P: the caller's folder must not hide redrive itself."""
    words = [sys.executable, "-P", "-m", "redrive", "worker", app, "--parent", str(os.getpid())]
    for name, value in options.items():
        words += [f"--{name}", ",".join(value) if isinstance(value, tuple) else str(value)]
    if asked().url:
        words += ["--url", str(asked().url)]
    return [*words, *(["--drain"] if drain else []), *(["--json"] if asked().json else [])]


class Family:
    """The parent's view of its workers."""

    def __init__(self, command: list[str], *, drain: bool, reload: bool = False) -> None:
        self._command = command
        self._drain = drain
        self._reload = reload
        self._change = asyncio.Event()
        """The code is not any more what those were started with who saw this one."""
        self._stopping = asyncio.Event()
        self._children: set[asyncio.subprocess.Process] = set()
        self._status = 0
        self.restarts = 0

    async def live(self, rd: Redrive, number: int) -> int:
        async with rd:
            pass  # what cannot be opened is told once, here, and not by every child
        loop = asyncio.get_running_loop()
        for told in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(told, self.stop)
        watching = [self._watch(Path.cwd())] if self._reload else []
        await asyncio.gather(*watching, *(self._keep(place) for place in range(1, number + 1)))
        return self._status

    def stop(self) -> None:
        """Pass it on: every worker finishes or gives back what it runs."""
        self._stopping.set()
        self._change.set()
        self._tell_children()

    def _tell_children(self) -> None:
        for child in self._children:
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)

    async def _watch(self, folder: Path) -> None:
        """Stop the workers where a file was changed: they are started again with what it says now."""
        before = await asyncio.to_thread(sources, folder)
        log.info("workers are started again when one of %d Python files below %s changes", len(before), folder)
        while not self._stopping.is_set():
            await self._rest(LOOK_SECONDS)
            after = await asyncio.to_thread(sources, folder)
            if found := changed(before, after):
                log.warning("%s changed: the workers are started again", found[0].relative_to(folder))
                told, self._change = self._change, asyncio.Event()
                told.set()
                self._tell_children()
            before = after

    async def _keep(self, place: int) -> None:
        quick = 0
        while not self._stopping.is_set():
            began, change = time.monotonic(), self._change
            status = await self._one(place)
            if self._reload and not self._stopping.is_set():
                await self._changed(place, status, change)
                continue
            if self._drain and status == 0:
                return
            if self._stopping.is_set():
                self._status = self._status or (TERMINATED if self._drain else 0)
                return
            if status in (USER_ERROR, BROKEN):
                # It has said why. Starting it again would say the same, or, after a failed sync, leave the others on a
                # log that is no longer what the disk holds: only a process that is alone with the file writes it anew.
                self._status = status
                self.stop()
                return
            quick = quick + 1 if time.monotonic() - began < SOON else 0
            pause = PAUSES[min(quick, len(PAUSES) - 1)]
            self.restarts += 1
            log.warning("worker %d ended by itself (%s); started again in %g s", place, _ending(status), pause)
            await self._rest(pause)

    async def _one(self, place: int) -> int:
        child = await asyncio.create_subprocess_exec(*self._command, stdout=asyncio.subprocess.DEVNULL)
        self._children.add(child)
        if self._stopping.is_set():
            child.send_signal(signal.SIGTERM)
        log.info("worker %d started as process %d", place, child.pid)
        try:
            return await child.wait()
        finally:
            self._children.discard(child)

    async def _changed(self, place: int, status: int, change: asyncio.Event) -> None:
        """One that was stopped for a change is started at once; one that ended by itself when something changes."""
        if not change.is_set():
            log.warning("worker %d ended by itself (%s); started again after the next change", place, _ending(status))
            await change.wait()
        self.restarts += 1

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


def _ending(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
