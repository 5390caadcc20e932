"""Other processes' commits, as `data_version` tells of them: it changes with each and costs no I/O worth mentioning."""

from __future__ import annotations

import logging
from pathlib import Path

import apsw

from redrive.stores.sqlite.connection import open_reader
from redrive.stores.sqlite.forks import use

log = logging.getLogger("redrive.store")


class Foreign:
    """Knows what was there when it was made. An error is told once, until it works again on a new connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: apsw.Connection | None = None
        self._seen: object = None
        self._failing = False
        self.came()

    def came(self) -> bool:
        """Whether somebody has committed since it was asked last; also where somebody may have, unseen."""
        try:
            with use:
                now = self._version()
        except apsw.Error as error:
            self._tell(error)
            self.close()
            return False
        self._failing = False
        seen, self._seen = self._seen, now
        return seen != now

    def _version(self) -> object:
        if self._connection is None:
            self._connection = open_reader(self._path)
        return self._connection.pragma("data_version")

    def _tell(self, error: apsw.Error) -> None:
        if not self._failing:
            log.warning("other processes' commits to %s are noticed late, by polling: %s", self._path, error)
        self._failing = True

    def close(self) -> None:
        """The next look opens it anew, and takes it that something came meanwhile."""
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None:
            with use:
                connection.close(True)
