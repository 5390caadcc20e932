"""Reads rows of the file: queries, the names of routes, and jobs with their histories, damaged ones included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import apsw
import msgspec

from redrive.core.job import ATTRIBUTES, Attempt, Job, State
from redrive.core.store import Document, Filter, MoveFilter

Row = tuple[Any, ...]
Route = tuple[str, str, str | None]
"""Queue, task, agent: where a job goes."""
Work = Callable[[apsw.Connection], None]

# -- queries


def select(connection: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Row]:
    """Return all rows of a query. The query knows the types of the columns; the type checker does not."""
    return connection.execute(sql, values).fetchall()


_decode_rows = msgspec.json.Decoder(list[list[Any]]).decode


def select_at_once(
    connection: apsw.Connection, columns: str, rows: str, values: Sequence[Any] = ()
) -> Callable[[], Sequence[Sequence[Any]]]:
    """Select all rows as one JSON value, which the returned function decodes in the thread of its caller.

    One sqlite3_step instead of many takes the GIL once. Row by row where the value is larger than SQLite allows.
    """
    try:
        value = connection.execute(f"SELECT json_group_array(json_array({columns})) {rows}", values).get
    except apsw.TooBigError:
        fetched = select(connection, f"SELECT {columns} {rows}", values)
        return lambda: fetched
    return lambda: _decode_rows(value)


def select_leniently(
    connection: apsw.Connection, columns: Sequence[str], rows: str, values: Sequence[Any] = ()
) -> list[Row]:
    """Select rows whose texts may be damaged: bytes that are no UTF-8 show as U+FFFD."""
    as_bytes = [f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in columns]
    damaged = select(connection, f"SELECT {', '.join(as_bytes)} {rows}", values)
    return [tuple(_as_text(item) for item in row) for row in damaged]


def _as_text(item: Any) -> Any:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else item


LARGEST: Final = 2**63 - 1
"""The largest number that a row can have."""
IN_LIST: Final = "jobs.id IN (SELECT value FROM json_each(?))"


def to_json(values: Sequence[str] | Sequence[int]) -> str:
    """Encode a list for json_each, as IN_LIST wants it."""
    return msgspec.json.encode(list(values)).decode()


# -- routes


class RouteCache:
    """A cache of the routes table. Other processes add routes; no process removes any."""

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

    def make(self, wanted: Iterable[Route]) -> Work | None:
        """Return the work that makes new routes, to run before the transaction and its rollback; None without any."""
        new = set(wanted).difference(self._numbers)
        return (lambda connection: self._number(connection, new)) if new else None

    def ensure(self, connection: apsw.Connection, wanted: Iterable[Route]) -> None:
        """Number these routes inside a transaction. Where the transaction is rolled back, `reset` must follow."""
        if make := self.make(wanted):
            make(connection)

    def reset(self) -> None:
        """Forget what a rolled back transaction may have removed."""
        self._names, self._numbers = {}, {}

    def _number(self, connection: apsw.Connection, new: Iterable[Route]) -> None:
        for route in sorted(new, key=_by_value):
            connection.execute("INSERT OR IGNORE INTO routes (queue, task, agent) VALUES (?, ?, ?)", route)
            number = connection.execute("SELECT id FROM routes WHERE queue = ? AND task = ? AND agent IS ?", route).get
            self._numbers[route] = number


def _by_value(route: Route) -> tuple[str, str, str]:
    queue, task, agent = route
    return queue, task, agent or ""


def match_routes(names: Mapping[int, Route], filter: Filter | MoveFilter) -> list[int] | None:
    """Number the routes that a filter's queue, task and agent name; None where the filter names none of them."""
    wanted = (filter.queue, filter.task, filter.agent)
    if wanted == (None, None, None) and not filter.no_agent:
        return None
    return [
        number
        for number, route in names.items()
        if all(want in (None, is_) for want, is_ in zip(wanted, route, strict=True))
        and not (filter.no_agent and route[2] is not None)
    ]


# -- jobs

STATES: Final = {str(state): state for state in State}
_AFTER_STATE: Final = tuple(
    name for name in ATTRIBUTES if name not in ("id", "queue", "task", "agent", "state", "history")
)
_COLUMNS: Final = tuple(f"jobs.{name}" for name in ("id", "route", "state", *_AFTER_STATE))
"""In the order of Job's fields, with the route in the place of queue, task and agent."""
UNREADABLE: Final = (ValueError, TypeError, LookupError, msgspec.MsgspecError, apsw.SQLError)
"""What reading a damaged record raises."""
_ATTEMPT_COLUMNS: Final = ("id", "attempt", "run", "at", "started_at", "worker")
_ATTEMPTS: Final = (
    "FROM (SELECT jobs.id, moves.attempt, moves.run, moves.at, jobs.started_at, jobs.worker FROM jobs"
    " JOIN moves ON moves.job = jobs.seq WHERE {}"
    " AND (moves.attempt IS NOT NULL OR moves.move = 'succeeded') ORDER BY moves.seq)"
)


def get(connection: apsw.Connection, routes: RouteCache, ids: Sequence[str]) -> list[Job]:
    """Return these jobs with their histories, in this order. Damaged ones too: a person must be able to drop them."""
    if not ids:
        return []
    try:
        jobs = read_later(connection, routes, IN_LIST, to_json(ids))()
    except UNREADABLE:
        rows = list_jobs(connection, routes, f"FROM jobs WHERE {IN_LIST}", (to_json(ids),), history=True)
        jobs = {job.id: job for job, _ in rows}
    return [jobs[id] for id in ids if id in jobs]


def read_later(
    connection: apsw.Connection, routes: RouteCache, chosen: str, value: str
) -> Callable[[], dict[str, Job]]:
    """Select the jobs that a condition means; the function that comes back decodes them, by id.

    It is the only reader that raises one of UNREADABLE where a record is damaged: a worker must not run such a job.
    """
    rows = select_at_once(connection, ", ".join(_COLUMNS), f"FROM jobs WHERE {chosen}", (value,))
    attempts = select_at_once(connection, ", ".join(_ATTEMPT_COLUMNS), _ATTEMPTS.format(chosen), (value,))
    names = routes.names(connection)

    def decode() -> dict[str, Job]:
        histories = _by_job(attempts())
        return {row[0]: _to_job(row, names[row[1]], histories.get(row[0], ())) for row in rows()}

    return decode


def list_jobs(
    connection: apsw.Connection,
    routes: RouteCache,
    rows: str,
    values: Sequence[Any],
    beside: str = "jobs.seq",
    *,
    history: bool = False,
) -> list[tuple[Job, Any]]:
    """Return jobs in the order of the query, each with one more column. Damaged texts show as U+FFFD."""
    names, columns = routes.names(connection), (*_COLUMNS, beside)
    try:
        read = select(connection, f"SELECT {', '.join(columns)} {rows}", values)
    except UnicodeDecodeError:
        read = select_leniently(connection, columns, rows, values)
    histories = _histories(connection, [row[0] for row in read]) if history and read else {}
    return [(_to_job(row[:-1], names[row[1]], histories.get(row[0], ())), row[-1]) for row in read]


def _histories(connection: apsw.Connection, ids: Sequence[str]) -> dict[str, tuple[Attempt, ...]]:
    rows, values = _ATTEMPTS.format(IN_LIST), (to_json(ids),)
    try:
        return _by_job(select_at_once(connection, ", ".join(_ATTEMPT_COLUMNS), rows, values)())
    except UNREADABLE:
        return _by_job(select_leniently(connection, _ATTEMPT_COLUMNS, rows, values))


def _by_job(rows: Sequence[Sequence[Any]]) -> dict[str, tuple[Attempt, ...]]:
    attempts: dict[str, list[Attempt]] = {}
    for id, data, run, at, started_at, worker in rows:
        attempts.setdefault(id, []).append(_to_attempt(data, run, at, started_at, worker))
    return {id: tuple(made) for id, made in attempts.items()}


def _to_job(row: Sequence[Any], route: Route, history: tuple[Attempt, ...]) -> Job:
    queue, task, agent = route
    return Job(row[0], queue, task, agent, STATES[row[2]], *row[3:], history)  # type: ignore[call-arg]


_decode_attempt = msgspec.json.Decoder(Attempt).decode


def _to_attempt(data: str | None, run: int, at: float, started_at: float | None, worker: str | None) -> Attempt:
    """Make the attempt of a move: of the job's row for a plain success; a failed one where it cannot be decoded."""
    if not data:
        return Attempt(run, "done", started_at, at, worker)
    try:
        return _decode_attempt(data)
    except msgspec.MsgspecError as error:
        return Attempt(run, "failed", ended_at=at, decision=f"The record of this attempt cannot be read here: {error}")


_SCAN: Final = 500


def scan(connection: apsw.Connection, routes: RouteCache, after: int) -> tuple[list[Job], int]:
    """Return some jobs after a number, in order, and the number after which to go on."""
    rows = "FROM jobs WHERE jobs.seq > ? ORDER BY jobs.seq LIMIT ?"
    page = list_jobs(connection, routes, rows, (after, _SCAN), history=True)
    return [job for job, _ in page], page[-1][1] if page else after


# -- documents

PUT_DOCUMENT: Final = (
    "INSERT INTO docs (kind, key, value) VALUES (?1, ?2, ?3)"
    " ON CONFLICT (kind, key) DO UPDATE SET value = ?3, version = version + 1"
)


def doc(connection: apsw.Connection, kind: str, key: str) -> Document | None:
    row = connection.execute("SELECT key, value, version FROM docs WHERE kind = ? AND key = ?", (kind, key)).fetchone()
    return Document(*row) if row else None


def docs(connection: apsw.Connection, kind: str, prefix: str = "") -> list[Document]:
    rows = connection.execute(
        "SELECT key, value, version FROM docs WHERE kind = ? AND key >= ? AND key < ? ORDER BY key",
        (kind, prefix, prefix + "\U0010ffff"),
    )
    return [Document(*row) for row in rows]
