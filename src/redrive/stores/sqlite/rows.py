"""Between rows and records: column lists, Job from a row, SQL from a Filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import apsw
import msgspec

from redrive.core.job import ATTRIBUTES, Attempt, Job, State
from redrive.core.store import Filter

Row = tuple[Any, ...]
Route = tuple[str, str, str | None]
"""Queue, task, agent: where a job goes."""

STATES: Final = {str(state): state for state in State}
WATCHED: Final = {
    State.running: "jobs.state IN ('running', 'held')",
    State.held: "jobs.state IN ('running', 'held')",
    State.dead: "jobs.state = 'dead'",
    State.discarded: "jobs.state IN ('discarded', 'purged')",
    State.purged: "jobs.state IN ('discarded', 'purged')",
}
"""States that are listed by their last change, and the condition of the partial index that holds them."""
_AFTER_STATE: Final = tuple(
    name for name in ATTRIBUTES if name not in ("id", "queue", "task", "agent", "state", "history")
)
COLUMNS: Final = "jobs.id, jobs.route, jobs.state, " + ", ".join(f"jobs.{name}" for name in _AFTER_STATE)
"""In the order of Job's fields, with the route in the place of queue, task and agent."""

_INSERTED: Final = (
    "id", "route", "state", "priority", "run_at", "created_at", "updated_at", "payload", "allowed", "lease", "key",
    "payload_hash", "session_id", "model", "reason", "options_json", "because", "lane", "category", "detail",
    "subclass", "fingerprint", "error_class", "error", "recommendation", "attempts", "held_at", "first_failed_at",
    "held_for", "died_at", "owner", "comes_back_at",
)  # fmt: skip
INSERT: Final = (
    f"INSERT INTO jobs ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))}) ON CONFLICT (id) DO NOTHING"
)
_PLAIN: Final = ("id", "route", "priority", "run_at", "created_at", "updated_at", "payload", "allowed")
INSERT_PLAIN: Final = (
    f"INSERT INTO jobs ({', '.join(_PLAIN)}) VALUES ({', '.join('?' * len(_PLAIN))}) ON CONFLICT (id) DO NOTHING"
)
"""For the common job that asks for nothing special: eight values instead of twenty-eight."""
INSERT_MANY: Final = (
    f"INSERT INTO jobs ({', '.join(_PLAIN)}) SELECT {', '.join(f'value ->> {n}' for n in range(len(_PLAIN)))}"
    " FROM jsonb_each(?) WHERE true ON CONFLICT (id) DO NOTHING"
)
"""The same for many in one step, so that the interpreter is free to prepare the next ones meanwhile."""


def select(connection: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Row]:
    """All rows of a query; what is in them is known by the query, not by the type checker."""
    return connection.execute(sql, values).fetchall()


_decode_rows = msgspec.json.Decoder(list[list[Any]]).decode


def select_at_once(
    connection: apsw.Connection, columns: str, rows: str, values: Sequence[Any] = ()
) -> Callable[[], Sequence[Sequence[Any]]]:
    """The same in one step, as one value: each step would ask for the interpreter again, which others are using.

    What comes back reads that value, in the thread of whoever wants it. `rows` begins with FROM. Row by row where the
    value would be larger than SQLite allows.
    """
    try:
        found = connection.execute(f"SELECT json_group_array(json_array({columns})) {rows}", values).get
    except apsw.TooBigError:
        fetched = select(connection, f"SELECT {columns} {rows}", values)
        return lambda: fetched
    return lambda: _decode_rows(found)


def select_leniently(connection: apsw.Connection, columns: str, rows: str, values: Sequence[Any] = ()) -> list[Row]:
    """The same where a text is damaged: what is none shows as U+FFFD. `columns` are plain names."""
    names = columns.split(", ")
    as_bytes = [f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in names]
    found = select(connection, f"SELECT {', '.join(as_bytes)} {rows}", values)
    return [tuple(_as_text(item) for item in row) for row in found]


def _as_text(item: Any) -> Any:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else item


def job_from(row: Sequence[Any], route: Route, history: tuple[Attempt, ...] = ()) -> Job:
    queue, task, agent = route
    return Job(row[0], queue, task, agent, STATES[row[2]], *row[3:], history)  # type: ignore[call-arg]


def is_plain(job: Job) -> bool:
    return (
        job.key is None
        and job.options_json is None
        and job.session_id is None
        and job.model is None
        and job.lease is None
        and job.state is State.waiting
        and job.reason == "direct"
    )


def plain_values(job: Job, route: int) -> tuple[Any, ...]:
    at = job.created_at
    return (job.id, route, job.priority, job.run_at, at, at, job.payload, job.allowed)


def insert_values(job: Job, route: int) -> tuple[Any, ...]:
    return tuple(
        route if name == "route" else str(job.state) if name == "state" else getattr(job, name) for name in _INSERTED
    )


_FIELDS: Final = (
    "session_id", "key", "lane", "because", "category", "detail", "error_class", "fingerprint", "held_for", "owner",
    "reason",
)  # fmt: skip


def where(filter: Filter, routes: Sequence[int] | None) -> tuple[str, list[object]]:
    """The filter as a WHERE clause over `jobs`. Its queue, task and agent are these routes; None: it names none."""
    clauses = _state_clauses(filter.states)
    if routes is not None:
        clauses.append(f"jobs.route IN ({', '.join(map(str, routes))})")
    if filter.states == (State.waiting,) and filter.reason not in (None, "direct"):
        clauses.append("jobs.reason <> 'direct'")
    values: list[object] = []
    for clause, value in (
        *((f"jobs.{name} = ?", getattr(filter, name)) for name in _FIELDS),
        ("jobs.seq IN (SELECT job FROM moves WHERE error_kind = ?)", filter.error_kind),
        (IN_LIST, listed(filter.ids) if filter.ids else None),
        ("instr(jobs.id, ?) > 0", filter.id_part),
        ("jobs.updated_at >= ?", filter.since),
        ("jobs.updated_at < ?", filter.until),
        ("jobs.run_at <= ?", filter.due_at),
        ("jobs.comes_back_at <= ?", filter.returns_by),
    ):
        if value is not None:
            clauses.append(clause)
            values.append(value)
    if filter.failed:
        clauses.append("jobs.error_class IS NOT NULL")
    return " AND ".join(clauses) or "true", values


IN_LIST: Final = "jobs.id IN (SELECT value FROM json_each(?))"


def listed(values: Sequence[str] | Sequence[int]) -> str:
    """What json_each makes rows of, as IN_LIST wants it."""
    return msgspec.json.encode(list(values)).decode()


def _state_clauses(states: Sequence[State]) -> list[str]:
    """Spelled out and as the partial indexes say it, or SQLite does not see that they fit."""
    if not states:
        return []
    if len(states) > 1:
        return ["jobs.state IN (" + ", ".join(f"'{state}'" for state in states) + ")"]
    watched = [WATCHED[states[0]]] if states[0] in WATCHED else []
    return [f"jobs.state = '{states[0]}'", *watched]


_decode_attempt = msgspec.json.Decoder(Attempt).decode


def attempt_from(data: str | None, run: int, at: float, started_at: float | None, worker: str | None) -> Attempt:
    """An attempt of the story. A plain success stores nothing of its own: the job's row says it all.

    One that cannot be read, as another version may have written it, counts as failed: the job itself is not lost.
    """
    if not data:
        return Attempt(run, "done", started_at, at, worker)
    try:
        return _decode_attempt(data)
    except msgspec.MsgspecError as error:
        return Attempt(run, "failed", ended_at=at, decision=f"The record of this attempt cannot be read here: {error}")
