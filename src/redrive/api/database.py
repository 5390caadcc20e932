"""`rd.database`: checks, backs up and repairs the store as a whole, and waits for its failure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from redrive.core.words import counted
from redrive.errors import InvalidInput
from redrive.reports.needs import Snapshot, needs

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.jobs.spool import Spool
    from redrive.stores.sqlite.doctor import FileCheck

INNER: Final = ("database", "schema", "integrity")
"""Checks that must pass before anything may be written."""


class Database:
    """Checks, backs up and repairs the store as a whole."""

    def __init__(self, core: Core, spool: Spool) -> None:
        self._core = core
        self._spool = spool

    @property
    def path(self) -> Path | None:
        """The file behind the store; None if the store is not one file."""
        path: Path | None = getattr(self._core.store, "path", None)
        return path

    async def probe(self) -> None:
        """Read once and take the write lock once, without writing. Raises what keeps the store from being used."""
        await self._core.store.check()
        await self._core.store.heartbeat([])

    async def backup(self, target: str) -> int:
        """Copy everything into a new file while work goes on; returns its size in bytes."""
        return await self._core.store.backup(target)

    async def repair(self) -> list[str]:
        """Restore counters, sums and wake-ups from the records; returns what was wrong."""
        return await self._core.store.repair(self._core.clock.now())

    async def examine(self, *, full: bool = False) -> list[FileCheck]:
        """Check the file and the spool; if the file can be read, also look for jobs that ended processes left running.

        `full` reads every page, index and record. For databases that are one file.
        """
        from redrive.stores.sqlite.doctor import FileCheck, examine

        if self.path is None:
            raise InvalidInput(field="url", problem="names no SQLite file, and only such a file can be examined")
        checks = [*examine(self.path, full=full), self._check_spool()]
        if any(not check.ok and check.name in INNER for check in checks):
            return checks
        now = self._core.clock.now()
        left = needs(Snapshot(now, now, left_behind=await self._core.store.left_behind(now)))
        if not left:
            return [*checks, FileCheck("processes", True, "none left running jobs behind")]
        hints = [(need.sentence, f"{need.action} {need.command}") for need in left]
        return checks + [FileCheck("processes", False, sentence, hint) for sentence, hint in hints]

    def _check_spool(self) -> FileCheck:
        from redrive.stores.sqlite.doctor import FileCheck

        if unreadable := len(list(self._spool.folder.glob("*.unreadable"))):
            problem = f"{counted(unreadable, 'file')} with unreadable lines in {self._spool.folder}"
            hint = "read these files, enqueue anew the jobs that they describe, then remove the files"
            return FileCheck("spool", False, problem, hint)
        if spooled := self._spool.count():
            return FileCheck("spool", False, f"{counted(spooled, 'job')} wait here", "a running worker moves them over")
        return FileCheck("spool", True, "empty")

    async def fix(self, *, full: bool = False) -> tuple[list[FileCheck], list[str]]:
        """Repair what can be repaired unless the file is broken; return the checks then, and what was wrong."""
        checks = await self.examine(full=full)
        if any(not check.ok and not check.fixable and check.name in INNER for check in checks):
            return checks, []
        fixed = await self.repair()
        return await self.examine(full=full), fixed

    async def until_failed(self) -> str:
        """Wait until the store stops itself; returns why."""
        return await self._core.store.until_failed()

    def hurry(self) -> None:
        """Stop waiting for a store that does not answer: this process is about to end."""
        self._core.store.hurry()
