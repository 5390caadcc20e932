"""The claim: which waiting jobs a worker gets. Atomic, because it runs inside the writer's transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import apsw
import msgspec

from redrive.core.policy import Rate
from redrive.core.store import Wanted
from redrive.stores.sqlite.rows import RETURNED, Route, Row, select

PRIORITIES = range(4)
_CANDIDATES = (
    f"SELECT seq, {RETURNED} FROM jobs WHERE route = ? AND state = 'waiting' AND priority = ? AND run_at <= ?"
    " ORDER BY run_at LIMIT ? OFFSET ?"
)
_NEXT_DUE = (
    "SELECT run_at FROM jobs WHERE route = ? AND state = 'waiting' AND priority = ? AND run_at > ?"
    " ORDER BY run_at LIMIT 1"
)
_CLAIM = (
    "UPDATE jobs SET state = 'running', token = ?, worker = ?, process = ?, started_at = ?, updated_at = ?,"
    " beat = 0, run = run + 1, version = version + 1,"
    " lease = coalesce(json_extract(options_json, '$.lease'), ?)"
    " WHERE seq IN (SELECT value FROM json_each(?))"
)
_COUNT = "UPDATE routes SET waiting = waiting - ?, running = running + ? WHERE id = ?"
_DUE = _CANDIDATES.replace(f"seq, {RETURNED}", "1")


class Open(NamedTuple):
    """A route with waiting jobs that this worker may take from."""

    id: int
    route: Route


def open_routes(connection: apsw.Connection, wanted: Wanted) -> list[Open]:
    """Routes with waiting jobs, without those the worker does not know or does not want."""
    found = []
    for id, queue, task, agent in connection.execute("SELECT id, queue, task, agent FROM routes WHERE waiting > 0"):
        if (
            (wanted.tasks is None or task in wanted.tasks)
            and (wanted.queues is None or queue in wanted.queues)
            and (wanted.agents is None or agent in wanted.agents)
            and queue not in wanted.not_queues
        ):
            found.append(Open(id, (queue, task, agent)))
    return found


def any_due(connection: apsw.Connection, routes: Iterable[Open], now: float) -> bool:
    return any(
        connection.execute(_DUE, (route.id, priority, now, 1, 0)).fetchone()
        for route in routes
        for priority in PRIORITIES
    )


def next_due(connection: apsw.Connection, routes: Iterable[Open], now: float) -> float | None:
    """When the next job of these routes falls due."""
    found = [
        row[0]
        for route in routes
        for priority in PRIORITIES
        if (row := connection.execute(_NEXT_DUE, (route.id, priority, now)).fetchone())
    ]
    return min(found, default=None)


class Room:
    """How many jobs may still be taken, in all, by queue and by agent, while a claim fills up."""

    def __init__(self, connection: apsw.Connection, wanted: Wanted, now: float) -> None:
        self.slots = wanted.slots
        self._queues = dict(wanted.queue_slots)
        self._agents = dict(wanted.agent_slots)
        self._agent_limit = wanted.agent_limit
        for queue, limit in wanted.store_limits.items():
            running = connection.execute("SELECT sum(running) FROM routes WHERE queue = ?", (queue,)).get or 0
            self._limit(queue, limit - running)
        for queue, rate in wanted.store_rates.items():
            self._limit(queue, rate.count - len(_starts(connection, queue, rate, now)))

    def _limit(self, queue: str, left: int) -> None:
        self._queues[queue] = max(0, min(left, self._queues.get(queue, left)))

    def left(self, open: Open) -> int:
        queue, _, agent = open.route
        room = min(self.slots, self._queues.get(queue, self.slots))
        if agent is None:
            return room
        if self._agent_limit is not None:
            self._agents.setdefault(agent, self._agent_limit)
        return min(room, self._agents.get(agent, room))

    def take(self, open: Open, count: int) -> None:
        queue, _, agent = open.route
        self.slots -= count
        if queue in self._queues:
            self._queues[queue] -= count
        if agent is not None and agent in self._agents:
            self._agents[agent] -= count


def pick(connection: apsw.Connection, routes: list[Open], room: Room, now: float) -> dict[Open, list[Row]]:
    """The most urgent due jobs, shared evenly between routes of one priority, oldest first in each."""
    picked: dict[Open, list[Row]] = {}
    for priority in PRIORITIES:
        alive = [(route, 0) for route in routes]
        while alive and room.slots > 0:
            share = -(-room.slots // len(alive))
            again = []
            for route, offset in alive:
                limit = min(share, room.left(route))
                rows = select(connection, _CANDIDATES, (route.id, priority, now, limit, offset)) if limit else []
                picked.setdefault(route, []).extend(rows)
                room.take(route, len(rows))
                if limit and len(rows) == limit:
                    again.append((route, offset + limit))
            alive = again
    return {route: rows for route, rows in picked.items() if rows}


class Claimant(NamedTuple):
    """Who claims, under which token, when."""

    worker: str
    process: str
    token: str
    now: float


def take(
    connection: apsw.Connection, picked: dict[Open, list[Row]], wanted: Wanted, claimant: Claimant
) -> list[tuple[Open, Row, float]]:
    """Make the picked jobs running, one statement per lease length. They were read in the same transaction."""
    by_lease: dict[float, list[int]] = {}
    taken: list[tuple[Open, Row, float]] = []
    for open, rows in picked.items():
        lease = wanted.leases.get(open.route[1], wanted.lease)
        by_lease.setdefault(lease, []).extend(row[0] for row in rows)
        taken.extend((open, row[1:], lease) for row in rows)
    worker, process, token, now = claimant
    for open, rows in picked.items():
        connection.execute(_COUNT, (len(rows), len(rows), open.id))
    for lease, seqs in by_lease.items():
        connection.execute(_CLAIM, (token, worker, process, now, now, lease, msgspec.json.encode(seqs).decode()))
    return taken


def _starts(connection: apsw.Connection, queue: str, rate: Rate, now: float) -> list[float]:
    """The starts of a queue inside the running window of a store-wide rate."""
    row = connection.execute("SELECT value FROM docs WHERE kind = 'rate' AND key = ?", (queue,)).fetchone()
    return [at for at in msgspec.json.decode(row[0]) if at > now - rate.per] if row else []


def note_starts(connection: apsw.Connection, picked: dict[Open, list[Row]], wanted: Wanted, now: float) -> None:
    """Remember the starts that a store-wide rate must count."""
    for queue, rate in wanted.store_rates.items():
        count = sum(len(rows) for open, rows in picked.items() if open.route[0] == queue)
        if count:
            connection.execute(
                "INSERT INTO docs (kind, key, value) VALUES ('rate', ?, ?)"
                " ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, version = version + 1",
                (queue, msgspec.json.encode(_starts(connection, queue, rate, now) + [now] * count)),
            )
