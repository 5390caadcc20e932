"""Routes by name and by number, remembered, because they hardly ever change."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from redrive.stores.sqlite.rows import Route, select
from redrive.stores.sqlite.writer import Work


class Routes:
    """A cache of the routes table. Other processes add routes; nobody removes any."""

    def __init__(self) -> None:
        self._names: dict[int, Route] = {}
        self._numbers: dict[Route, int] = {}

    def names(self, connection: apsw.Connection) -> dict[int, Route]:
        newest = connection.execute("SELECT max(id) FROM routes").get or 0
        if newest not in self._names and newest:
            rows = select(connection, "SELECT id, queue, task, agent FROM routes")
            self._names = {id: (queue, task, agent) for id, queue, task, agent in rows}
        return self._names

    def number(self, route: Route) -> int:
        return self._numbers[route]

    def make(self, wanted: Iterable[Route]) -> Work[None] | None:
        """What must happen before a transaction may use these routes: nothing, if all are known.

        New ones are made outside the transaction, so that its rollback cannot take away what the cache remembers.
        """
        new = {route for route in wanted if route not in self._numbers}
        if not new:
            return None

        return lambda connection: self._number(connection, new)

    def ensure(self, connection: apsw.Connection, wanted: Iterable[Route]) -> None:
        """Number these routes inside a transaction. Where it is rolled back, `reset` must follow."""
        new = {route for route in wanted if route not in self._numbers}
        if new:
            self._number(connection, new)

    def reset(self) -> None:
        """Forget what a rolled back transaction may have taken away."""
        self._names, self._numbers = {}, {}

    def _number(self, connection: apsw.Connection, new: Iterable[Route]) -> None:
        for route in sorted(new, key=_by_value):
            connection.execute("INSERT OR IGNORE INTO routes (queue, task, agent) VALUES (?, ?, ?)", route)
            number = connection.execute("SELECT id FROM routes WHERE queue = ? AND task = ? AND agent IS ?", route).get
            self._numbers[route] = number


def _by_value(route: Route) -> tuple[str, str, str]:
    queue, task, agent = route
    return queue, task, agent or ""
