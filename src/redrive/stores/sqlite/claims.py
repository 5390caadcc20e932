"""Claims: picks the due jobs that a worker gets. Atomic, because it runs inside the writer's transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import apsw
import msgspec

from redrive.core.bulkheads import Filling
from redrive.core.job import Job, State
from redrive.core.policy import Rate
from redrive.core.store import Wanted
from redrive.retries.breaker import host_of
from redrive.stores.sqlite.records import (
    PUT_DOCUMENT,
    UNREADABLE,
    Route,
    RouteCache,
    Row,
    read_later,
    select,
    select_at_once,
    select_leniently,
    to_json,
)
from redrive.stores.sqlite.schema import legal_before

log = logging.getLogger("redrive.store")
PRIORITIES = range(4)
_CHOSEN = "jobs.seq IN (SELECT value FROM json_each(?))"
_DUE = "FROM jobs WHERE route = ? AND state = 'waiting' AND priority = ? AND run_at <= ?"
_STORIED = (
    "(run > 0 OR key IS NOT NULL OR options_json IS NOT NULL OR session_id IS NOT NULL OR model IS NOT NULL"
    " OR reason <> 'direct' OR changes_json IS NOT NULL OR grants > 0 OR held_seconds > 0 OR died_at IS NOT NULL)"
)
"""Whether a waiting job is more than a payload: then its whole record is read."""
_FIELDS = "seq, id, priority, run_at, version, created_at, payload, allowed, "
_ROWS = f"SELECT {_FIELDS}{_STORIED} {_DUE} ORDER BY run_at, seq LIMIT ? OFFSET ?"
_AT_ONCE = (
    f"SELECT json_group_array(json_array({_FIELDS}storied)), json_group_array(seq),"
    " json_group_array(seq) FILTER (WHERE storied), count(*)"
    f" FROM (SELECT {_FIELDS}{_STORIED} AS storied {_DUE} ORDER BY run_at, seq LIMIT ? OFFSET ?)"
)
"""One row for all jobs: one sqlite3_step instead of many, so the GIL is taken once."""
_NEXT_DUE = (
    "SELECT run_at FROM jobs WHERE route = ? AND state = 'waiting' AND priority = ? AND run_at > ?"
    " ORDER BY run_at LIMIT 1"
)
_OPEN = "id, queue, task, agent" + "".join(
    ", EXISTS (SELECT 1 FROM jobs WHERE route = routes.id AND state = 'waiting'"
    f" AND priority = {priority} AND run_at <= ?1) AS due_{priority}"
    for priority in PRIORITIES
)
_COLUMNS = "id, queue, task, agent, " + ", ".join(f"due_{priority}" for priority in PRIORITIES)
_NORMAL = 2
"""The priority of most jobs; those before it are pressing."""
_COUNT = "UPDATE routes SET waiting = waiting - ?, running = running + ? WHERE id = ?"
_COUNT_MANY = (
    "UPDATE routes SET waiting = waiting - part.number, running = running + part.number"
    " FROM (SELECT value ->> 0 AS route, value ->> 1 AS number FROM jsonb_each(?)) AS part WHERE routes.id = part.route"
)
_CLAIM = (
    "UPDATE jobs SET state = 'running', token = ?, worker = ?, process = ?, started_at = ?, updated_at = ?,"
    " beat = 0, run = run + 1, version = version + 1,"
    " lease = coalesce(json_extract(options_json, '$.lease'), ?)"
    f" WHERE seq IN (SELECT value FROM json_each(?)) AND {legal_before(State.running)}"
)


class Candidate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A due job, as far as a claim must know it."""

    seq: int
    id: str
    priority: int
    run_at: float
    version: int
    created_at: float
    payload: str | None
    allowed: int | None
    storied: int


_candidates = msgspec.json.Decoder(list[Candidate]).decode


class OpenRoute(NamedTuple):
    """A route with waiting jobs that a worker may take."""

    id: int
    route: Route
    due: tuple[int, ...] = ()
    """The priorities at which some of the jobs are due."""


_BY_NAME = "ORDER BY queue, task, ifnull(agent, '')"
_CHUNK = 64
"""Routes that are looked at together. Where a store has fewer with waiting jobs, one statement tells all of them."""
_IN_QUEUES = " AND queue IN (SELECT value FROM json_each(?6))"
_NEXT = (
    f"FROM (SELECT {_OPEN} FROM routes WHERE waiting > 0 AND (queue, task, ifnull(agent, '')) > (?2, ?3, ?4){{}}"
    f" {_BY_NAME} LIMIT ?5)"
)
_PRESSING_JOBS = f"jobs INDEXED BY jobs_pressing WHERE state = 'waiting' AND priority < {_NORMAL}"
_PRESSING = (
    f"FROM (WITH RECURSIVE pressing (number) AS (SELECT min(route) FROM {_PRESSING_JOBS}"
    f" UNION ALL SELECT (SELECT min(route) FROM {_PRESSING_JOBS} AND route > number) FROM pressing"
    f" WHERE number IS NOT NULL) SELECT {_OPEN} FROM pressing CROSS JOIN routes ON routes.id = pressing.number"
    f" WHERE waiting > 0 {_BY_NAME})"
)
"""One seek per route with such jobs, however many they are."""


class OpenRoutes:
    """The routes with waiting jobs that a worker takes, by name, because their numbers differ between files.

    They are read in chunks, as far as a claim needs them: in a store of ten thousand queues it is full after a few.
    """

    def __init__(self, connection: apsw.Connection, wanted: Wanted, now: float) -> None:
        self._connection = connection
        self._wanted = wanted
        self._now = now
        self._read: list[OpenRoute] = []
        self._last: tuple[str, str, str] | None = None if wanted.ids else ("", "", "")
        """The name after which to go on; None where all are read."""
        self._chunk = _CHUNK
        self._pressing: list[OpenRoute] | None = None

    def __iter__(self) -> Iterator[OpenRoute]:
        place = 0
        while place < len(self._read) or self._read_more():
            if place < len(self._read):
                yield self._read[place]
                place += 1

    def due_at(self, priority: int) -> Iterator[OpenRoute]:
        """Yield the routes of which jobs of this priority are due."""
        return (route for route in self._may_be_due(priority) if priority in route.due)

    def _may_be_due(self, priority: int) -> Iterable[OpenRoute]:
        """Few routes have pressing jobs: they are found without reading all the others."""
        if not self._read:
            self._read_more()
        if self._last is None or priority >= _NORMAL:
            return self
        if self._pressing is None:
            self._pressing = self._take(select_at_once(self._connection, _COLUMNS, _PRESSING, (self._now,))())
        return self._pressing

    def _read_more(self) -> bool:
        """Read the next chunk; False where all are read."""
        if self._last is None:
            return False
        queues = self._wanted.queues
        values: list[object] = [self._now, *self._last, self._chunk]
        values += [] if queues is None else [to_json(sorted(queues))]
        rows = select_at_once(self._connection, _COLUMNS, _NEXT.format("" if queues is None else _IN_QUEUES), values)()
        self._read += self._take(rows)
        self._last = _name_of(rows[-1]) if len(rows) == self._chunk else None
        self._chunk *= 4
        return True

    def _take(self, rows: Sequence[Sequence[Any]]) -> list[OpenRoute]:
        return [
            OpenRoute(id, (queue, task, agent), tuple(priority for priority in PRIORITIES if due[priority]))
            for id, queue, task, agent, *due in rows
            if self._wanted.takes(queue, task, agent)
        ]


def list_open_routes(connection: apsw.Connection, wanted: Wanted, now: float) -> OpenRoutes:
    return OpenRoutes(connection, wanted, now)


def _name_of(row: Sequence[Any]) -> tuple[str, str, str]:
    return row[1], row[2], row[3] or ""


def find_next_due(
    connection: apsw.Connection, routes: Iterable[OpenRoute], now: float, opens: Iterable[float] = ()
) -> float | None:
    """Return when the next job of these routes falls due, or when a rate lets one start."""
    times = [
        row[0]
        for route in routes
        for priority in PRIORITIES
        if (row := connection.execute(_NEXT_DUE, (route.id, priority, now)).fetchone())
    ]
    return min((*times, *opens), default=None)


_AT_LEAST = f"SELECT count(*) FROM (SELECT 1 {_DUE} LIMIT ?)"


def has_more_due(connection: apsw.Connection, routes: Iterable[OpenRoute], now: float, than: int) -> bool:
    """Whether more than so many jobs of these routes are due."""
    left = than + 1
    for route in routes:
        for priority in route.due:
            left -= connection.execute(_AT_LEAST, (route.id, priority, now, left)).get
            if left <= 0:
                return True
    return False


class Room:
    """Counts how many jobs a claim may still take, in all, by queue and by agent."""

    def __init__(self, connection: apsw.Connection, wanted: Wanted, now: float) -> None:
        self.slots = wanted.slots
        self._queues = dict(wanted.queue_slots)
        self._agents = dict(wanted.agent_slots)
        self._agent_limit = wanted.agent_limit
        self._whole_store = wanted.store_agent_limit
        self._counted: set[str] = set()
        """Agents whose running jobs in the whole store are counted."""
        self._connection = connection
        bulkheads = wanted.bulkheads
        self._filling = Filling(bulkheads) if bulkheads is not None else None
        self._calls = bulkheads.calls if bulkheads is not None else {}
        self._deliveries = bulkheads.deliveries if bulkheads is not None else frozenset()
        self._delivered = False
        """This claim has taken deliveries without a look at their hosts; the next claim counts them."""
        for queue, limit in wanted.store_limits.items():
            running = connection.execute("SELECT sum(running) FROM routes WHERE queue = ?", (queue,)).get or 0
            self._limit(queue, limit - running)
        self._opens: dict[str, float] = {}
        """When a queue that has a rate may start its next job, once it has no room left."""
        for queue, rate in wanted.store_rates.items():
            starts = _read_starts(connection, queue, rate, now)
            self._limit(queue, rate.count - len(starts))
            self._opens[queue] = min(starts, default=now) + rate.per

    def _limit(self, queue: str, left: int) -> None:
        self._queues[queue] = max(0, min(left, self._queues.get(queue, left)))

    def left(self, open: OpenRoute) -> int:
        queue, task, agent = open.route
        room = min(self.slots, self._queues.get(queue, self.slots))
        if self._filling is not None:
            room = min(room, self._filled(queue, task, self._filling))
        if agent is None:
            return room
        if self._agent_limit is not None:
            self._agents.setdefault(agent, self._agent_limit)
        if self._whole_store is not None and agent not in self._counted:
            self._limit_agent(agent, self._whole_store)
        return min(room, self._agents.get(agent, room))

    def _limit_agent(self, agent: str, limit: int) -> None:
        self._counted.add(agent)
        running = self._connection.execute("SELECT sum(running) FROM routes WHERE agent = ?", (agent,)).get or 0
        left = max(0, limit - running)
        self._agents[agent] = min(left, self._agents.get(agent, left))

    def _filled(self, queue: str, task: str, filling: Filling) -> int:
        room = filling.room(queue, self._calls.get(task))
        if task not in self._deliveries:
            return room
        return min(room, filling.open_room(queue) or (0 if self._delivered else room))

    def by_host(self, open: OpenRoute) -> bool:
        """Whether the jobs of this route are deliveries that need the reserve: they are taken one by one, by host."""
        queue, task, _ = open.route
        return task in self._deliveries and self._filling is not None and not self._filling.open_room(queue)

    def take_by_host(self, open: OpenRoute, urls: Iterable[Row], limit: int) -> list[int]:
        """Take deliveries whose hosts hold less than their share, at most so many, in this order."""
        queue, taken = open.route[0], list[int]()
        for seq, url in urls:
            host = host_of(url) if isinstance(url, str) else None
            if self._filling is not None and len(taken) < limit and self._filling.room(queue, host) > 0:
                self._filling.take(queue, host, 1)
                taken.append(seq)
        self._spend(open, len(taken))
        return taken

    def opens(self, routes: Iterable[OpenRoute]) -> list[float]:
        """List when due jobs that a rate holds back may start."""
        held_back = {open.route[0] for open in routes if open.due}
        return [at for queue, at in self._opens.items() if queue in held_back and self._queues[queue] <= 0]

    def take(self, open: OpenRoute, count: int) -> None:
        queue, task, _ = open.route
        if self._filling is not None:
            self._filling.take(queue, self._calls.get(task), count)
            self._delivered |= task in self._deliveries
        self._spend(open, count)

    def _spend(self, open: OpenRoute, count: int) -> None:
        queue, _, agent = open.route
        self.slots -= count
        if queue in self._queues:
            self._queues[queue] -= count
        if agent is not None and agent in self._agents:
            self._agents[agent] -= count


class Picked(NamedTuple):
    """Due jobs of one route as SQLite gave them; the claiming thread decodes them, not the writer's."""

    open: OpenRoute
    rows: str | list[Row]
    number: int
    seqs: str
    storied: str
    """The numbers of those whose whole records are read; both are JSON lists."""

    def candidates(self) -> list[Candidate]:
        if isinstance(self.rows, str):
            return _candidates(self.rows)
        return [Candidate(*row) for row in self.rows]


def pick(connection: apsw.Connection, routes: OpenRoutes, room: Room, now: float) -> list[Picked]:
    """Pick the most urgent due jobs, shared evenly between routes of one priority, oldest first in each."""
    picked = [part for priority in PRIORITIES for part in _pick_at(connection, routes, room, (priority, now))]
    return [part for part in picked if part.number]


def _pick_at(connection: apsw.Connection, routes: OpenRoutes, room: Room, when: tuple[int, float]) -> Iterator[Picked]:
    """Share the slots between the routes. Where there are as many as slots, each gives one job: no more are read."""
    due = routes.due_at(when[0]) if room.slots > 0 else iter(())
    first = list(islice(due, room.slots))
    alive: Iterable[tuple[OpenRoute, int]] = ((route, 0) for route in chain(first, due))
    number = len(first)
    while number and room.slots > 0:
        share = -(-room.slots // number)
        again = []
        for route, offset in alive:
            limit = min(share, room.left(route))
            if limit <= 0:
                if room.slots <= 0:
                    break
                continue
            if room.by_host(route):
                yield _pick_deliveries(connection, route, room, limit, (route.id, *when))
                continue
            part = _pick_due(connection, route, (route.id, *when, limit, offset))
            yield part
            room.take(route, part.number)
            if part.number == limit:
                again.append((route, offset + limit))
        alive, number = again, len(again)


_BY_ID = f"SELECT route, {_FIELDS}{_STORIED} FROM jobs WHERE id = ? AND state = 'waiting'"


def pick_ids(connection: apsw.Connection, ids: Iterable[str], names: Mapping[int, Route]) -> list[Picked]:
    """Pick just these jobs, as far as they wait; the caller has a slot for each."""
    rows = [row for id in dict.fromkeys(ids) for row in select(connection, _BY_ID, (id,))]
    return [_by_row(OpenRoute(route, names[route]), [tuple(fields)]) for route, *fields in rows]


def _pick_due(connection: apsw.Connection, open: OpenRoute, bound: tuple[object, ...]) -> Picked:
    try:
        ((rows, seqs, storied, number),) = select(connection, _AT_ONCE, bound)
    except apsw.TooBigError:
        return _by_row(open, select(connection, _ROWS, bound))
    return Picked(open, rows, number, seqs, storied)


_URLS = f"SELECT seq, iif(json_valid(payload), payload ->> '$.url', NULL) {_DUE} ORDER BY run_at, seq LIMIT 500"
"""Only so many are read, because every write waits meanwhile."""


def _pick_deliveries(
    connection: apsw.Connection, open: OpenRoute, room: Room, limit: int, bound: tuple[object, ...]
) -> Picked:
    """Pick due deliveries, oldest first, without those to hosts that hold their share of the slots."""
    chosen = room.take_by_host(open, select(connection, _URLS, bound), limit)
    rows = f"SELECT {_FIELDS}{_STORIED} FROM jobs WHERE {_CHOSEN} ORDER BY run_at, seq"
    return _by_row(open, select(connection, rows, (to_json(chosen),)) if chosen else [])


def _by_row(open: OpenRoute, rows: list[Row]) -> Picked:
    storied = [row[0] for row in rows if row[-1]]
    return Picked(open, rows, len(rows), to_json([row[0] for row in rows]), to_json(storied))


def _join(lists: Iterable[str]) -> str:
    """Join JSON lists into one."""
    return "[" + ",".join(inside for text in lists if (inside := text[1:-1])) + "]"


class Claimant(NamedTuple):
    """The worker and process that claim, under which token, when."""

    worker: str
    process: str
    token: str
    now: float


def _count(connection: apsw.Connection, numbers: Mapping[int, int]) -> None:
    """Count the jobs of each route as running instead of waiting."""
    if len(numbers) > 1:
        connection.execute(_COUNT_MANY, (msgspec.json.encode(list(numbers.items())).decode(),))
    for route, number in numbers.items() if len(numbers) == 1 else ():
        connection.execute(_COUNT, (number, number, route))


def take(connection: apsw.Connection, picked: list[Picked], wanted: Wanted, claimant: Claimant) -> None:
    """Make the picked jobs running, one statement per lease length. They were read in the same transaction."""
    worker, process, token, now = claimant
    by_lease: dict[float, list[str]] = {}
    numbers: dict[int, int] = {}
    for open, _, number, seqs, _ in picked:
        by_lease.setdefault(_lease(open, wanted), []).append(seqs)
        numbers[open.id] = numbers.get(open.id, 0) + number
    _count(connection, numbers)
    for lease, lists in by_lease.items():
        connection.execute(_CLAIM, (token, worker, process, now, now, lease, _join(lists)))


_GIVE_BACK = (
    "UPDATE jobs SET state = 'waiting', token = NULL, run = run - 1, version = version + 1"
    f" WHERE seq IN (SELECT value FROM json_each(?)) AND token = ? AND {legal_before(State.waiting)}"
)


def give_back(connection: apsw.Connection, picked: list[Picked], claimant: Claimant) -> None:
    """Undo a claim whose jobs its caller could not decode, as if they had not been claimed."""
    for part in picked:
        connection.execute(_GIVE_BACK, (part.seqs, claimant.token))
        number = connection.changes()
        connection.execute(_COUNT, (-number, -number, part.open.id))


_CLAIMED = " FROM jobs WHERE state = 'running' AND state IN ('running', 'held') AND token = ?"


def list_running(connection: apsw.Connection, token: str) -> list[str]:
    """List the ids of the jobs that run under this token."""
    return [id for (id,) in select(connection, f"SELECT id{_CLAIMED} ORDER BY seq", (token,))]


def give_back_all(connection: apsw.Connection, token: str) -> int:
    """Give back what was claimed under this token and is still running, as if it had not been claimed."""
    rows = select(connection, f"SELECT route, json_group_array(seq), count(*){_CLAIMED} GROUP BY route", (token,))
    for route, seqs, number in rows:
        connection.execute(_GIVE_BACK, (seqs, token))
        connection.execute(_COUNT, (-number, -number, route))
    return sum(number for *_, number in rows)


def _lease(open: OpenRoute, wanted: Wanted) -> float:
    return wanted.leases.get(open.route[1], wanted.lease)


def read_storied(
    connection: apsw.Connection, routes: RouteCache, picked: list[Picked]
) -> Callable[[], Mapping[str, Job]]:
    """Select the whole records of those jobs that are more than a payload."""
    seqs = _join(part.storied for part in picked)
    return read_later(connection, routes, _CHOSEN, seqs) if seqs != "[]" else dict


def make_jobs(picked: list[Picked], wanted: Wanted, claimant: Claimant, records: Mapping[str, Job]) -> list[Job]:
    """Make the claimed jobs, most urgent first."""
    worker, _, token, now = claimant
    taken = []
    for part in picked:
        (queue, task, agent), lease = part.open.route, _lease(part.open, wanted)
        taken += [
            records[due.id]
            if due.storied
            else Job(
                due.id,
                queue,
                task,
                agent,
                State.running,
                due.priority,
                due.run_at,
                due.version + 1,
                due.created_at,
                now,
                due.payload,
                1,
                0,
                due.allowed,
                token,
                worker,
                now,
                lease,
            )
            for due in part.candidates()
        ]
    return taken


def _read_starts(connection: apsw.Connection, queue: str, rate: Rate, now: float) -> list[float]:
    """List the starts of a queue inside the running window of a store-wide rate."""
    row = connection.execute("SELECT value FROM docs WHERE kind = 'rate' AND key = ?", (queue,)).fetchone()
    return [at for at in msgspec.json.decode(row[0]) if at > now - rate.per] if row else []


def note_starts(connection: apsw.Connection, picked: list[Picked], wanted: Wanted, now: float) -> None:
    """Remember the starts that a store-wide rate must count."""
    for queue, rate in wanted.store_rates.items():
        count = sum(part.number for part in picked if part.open.route[0] == queue)
        if count:
            starts = msgspec.json.encode(_read_starts(connection, queue, rate, now) + [now] * count)
            connection.execute(PUT_DOCUMENT, ("rate", queue, starts))


# -- damaged records: none of them may keep the others from running

LOOK_AGAIN = 60.0
"""Seconds until a damaged job is tried again."""
_THESE = f"SELECT json_group_array(json_array({_FIELDS}{_STORIED})) FROM jobs WHERE {_CHOSEN}"
_LATER = "UPDATE jobs SET run_at = ?, version = version + 1 WHERE seq = ? AND state = 'waiting'"
_DAMAGED = (
    "job %s is due and cannot be read (%s): it is tried again in %d s. `redrive doctor --full` tells of all such jobs;"
    " cancel it, or restore a backup"
)


def delay_damaged(connection: apsw.Connection, routes: RouteCache, wanted: Wanted, now: float) -> int:
    """Delay the due jobs that a claim cannot read by a minute, and log each; returns how many there are."""
    seqs = [
        seq
        for route in OpenRoutes(connection, wanted, now)
        for priority in route.due
        for (seq,) in select(
            connection, f"SELECT seq {_DUE} ORDER BY run_at, seq LIMIT ?", (route.id, priority, now, wanted.slots)
        )
    ]
    damaged = find_damaged(connection, routes, seqs)
    for seq, (id, problem) in damaged.items():
        connection.execute(_LATER, (now + LOOK_AGAIN, seq))
        log.critical(_DAMAGED, id, problem, LOOK_AGAIN)
    return len(damaged)


def find_damaged(
    connection: apsw.Connection, routes: RouteCache, seqs: Sequence[int]
) -> dict[int, tuple[str, Exception]]:
    """Find the jobs among these that a claim cannot read: by number, their ids and why."""
    if _problem_of(connection, routes, seqs) is None:
        return {}
    problems = {seq: problem for seq in seqs if (problem := _problem_of(connection, routes, [seq])) is not None}
    return {seq: (_id_of(connection, seq), problem) for seq, problem in problems.items()}


def _problem_of(connection: apsw.Connection, routes: RouteCache, seqs: Sequence[int]) -> Exception | None:
    """Read these jobs in every way in which a claim reads them; returns what that raises, if anything."""
    try:
        _candidates(connection.execute(_THESE, (to_json(seqs),)).get)
        read_later(connection, routes, _CHOSEN, to_json(seqs))()
    except UNREADABLE as error:
        return error
    return None


def _id_of(connection: apsw.Connection, seq: int) -> str:
    ((id,),) = select_leniently(connection, ["id"], "FROM jobs WHERE seq = ?", (seq,))
    return str(id)
