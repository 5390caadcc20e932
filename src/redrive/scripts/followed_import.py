"""Imports the lines of a file as another program appends them, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from redrive.errors import InvalidOption
from redrive.scripts.file_tail import Tail
from redrive.scripts.import_export import CHUNK, CHUNK_BYTES, Import, Imported, ids_in, log, path_of

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at a file to which nothing was appended."""


class FollowedImport(Import):
    """One import that goes on. What it keeps aside is told at once, in a warning."""

    async def run_until(self, stop: asyncio.Event) -> Imported:
        """Take in every line once it has ended; return what was done when `stop` is set."""
        if self._dry_run:
            raise InvalidOption(field="follow", problem="changes the database, and dry_run does not; keep one")
        if not self._path.exists():
            log.warning("there is no file at %s yet: waiting for it", self._source)
        if not isinstance(self._completed_source, str | Path):
            await self._close_completed()
        with self._tails() as (ids, lines):
            while not stop.is_set():
                if not await self._take_appended(ids, lines):
                    await _wait(stop)
        return self._conclude()

    @property
    def _path(self) -> Path:
        if not isinstance(self._source, str | Path):
            raise InvalidOption(field="follow", problem="needs the path of a file")
        return path_of(self._source)

    @contextlib.contextmanager
    def _tails(self) -> Iterator[tuple[Tail | None, Tail]]:
        """The completed ids, where they stand in a file, and the lines."""
        with contextlib.ExitStack() as files:
            ids = self._completed_source
            yield self._tail(ids, files) if isinstance(ids, str | Path) else None, self._tail(self._path, files)

    def _tail(self, source: str | Path, files: contextlib.ExitStack) -> Tail:
        tail = Tail(path_of(source), self._line_limit)
        files.callback(tail.close)
        return tail

    async def _take_appended(self, ids: Tail | None, lines: Tail) -> bool:
        """Take in what was appended, completed ids first; False where nothing was."""
        self._born = msgspec.structs.replace(self._born, now=self._core.clock.now())
        while ids is not None and (done := await asyncio.to_thread(ids.take, CHUNK, CHUNK_BYTES)):
            await self._note_completed(list(ids_in(done, self._mapping.job_id)))
        chunk = await asyncio.to_thread(lines.take, CHUNK, CHUNK_BYTES)
        await self._take(chunk)
        return bool(chunk)

    def _note(self, count: str, problems: list[tuple[int, str]]) -> None:
        super()._note(count, problems)
        file = self._completed_source if count == "unread" else self._source
        for number, why in problems:
            log.warning("line %d of %s was not taken in: %s", number, file, why)


async def _wait(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), LOOK_EVERY)
