"""Writes a filter as SQL: its conditions, and the indexes that hold what it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import apsw
from msgspec.structs import replace

from redrive.core.job import State
from redrive.core.store import Filter
from redrive.stores.sqlite.records import IN_LIST, to_json

_DISCARDED: Final = "jobs.state IN ('discarded', 'purged')"
WATCHED: Final = {
    State.running: "jobs.state IN ('running', 'held')",
    State.held: "jobs.state = 'held'",
    State.dead: "jobs.state = 'dead'",
    State.discarded: _DISCARDED,
    State.purged: _DISCARDED,
}
"""States that are listed by their last change, and the condition of the partial index that holds them."""
_EQUAL: Final = (
    *("session_id", "key", "lane", "because", "category", "detail"),
    *("error_class", "fingerprint", "held_for", "owner", "reason"),
)
COUNTED: Final = frozenset({"queue", "task", "agent", "state"})
GROUPABLE: Final = (COUNTED | {*_EQUAL, "subclass"}) - {"key"}


def write_where(filter: Filter, routes: Sequence[int] | None) -> tuple[str, list[object]]:
    """Write the filter as a WHERE clause over `jobs`; `routes` stand for its queue, task and agent, None for any."""
    clauses = _state_clauses(filter.states)
    if routes is not None:
        clauses.append(f"jobs.route IN ({', '.join(map(str, routes))})")
    if filter.states == (State.waiting,) and filter.reason not in (None, "direct"):
        clauses.append("jobs.reason <> 'direct'")
    values: list[object] = []
    for clause, value in (
        *((f"jobs.{name} = ?", getattr(filter, name)) for name in _EQUAL),
        ("jobs.seq IN (SELECT job FROM moves WHERE error_kind = ?)", filter.error_kind),
        (IN_LIST, to_json(filter.ids) if filter.ids else None),
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


def _state_clauses(states: Sequence[State]) -> list[str]:
    """Spell the states out as the partial indexes do, or SQLite does not see that an index fits."""
    if not states:
        return []
    if len(states) > 1:
        return ["jobs.state IN (" + ", ".join(f"'{state}'" for state in states) + ")"]
    watched = [WATCHED[states[0]]] if states[0] in WATCHED else []
    return [f"jobs.state = '{states[0]}'", *watched]


def has_any(connection: apsw.Connection, filter: Filter, routes: Sequence[int] | None) -> bool:
    """Whether the counters of these routes know of any such job at all."""
    if routes is None:
        return True
    states = " + ".join(filter.states or State)
    numbers = ", ".join(map(str, routes))
    return bool(connection.execute(f"SELECT sum({states}) FROM routes WHERE id IN ({numbers})").get)


# -- the index of one state

FEW: Final = 20_000
_FOUND: Final = frozenset({"session_id", "key", "ids", "error_kind"})
"""What has an index of its own over all states."""
_SELECTIVE: Final = frozenset({*_FOUND, "fingerprint", "id_part"})
"""What SQLite finds by better indexes than the one over all dead letters."""


def name_index(connection: apsw.Connection, filter: Filter) -> str:
    """Name the index to use, where SQLite cannot know how the jobs are spread."""
    if filter.key is not None:
        return "INDEXED BY jobs_key"
    match filter.states:
        case (State.dead,):
            return _name_dead_index(filter)
        case (State.held,) if filter.held_for is None and not _has(filter, _FOUND):
            return "INDEXED BY jobs_on_hold"
        case (State.discarded | State.purged,) if not _has(filter, _FOUND):
            return "INDEXED BY jobs_let_go"
        case (State.waiting,):
            return _name_waiting_index(connection, filter)
        case _:
            return ""


def _name_dead_index(filter: Filter) -> str:
    if filter.returns_by is not None:
        return "INDEXED BY jobs_returning"
    if filter.session_id is not None:
        return "INDEXED BY jobs_session"
    return "" if _has(filter, _SELECTIVE) else "INDEXED BY jobs_dead"


def _name_waiting_index(connection: apsw.Connection, filter: Filter) -> str:
    if filter.failed:
        return "INDEXED BY jobs_retrying"
    if filter.reason not in (None, "direct"):
        return "INDEXED BY jobs_asked"
    waiting = connection.execute("SELECT sum(waiting) FROM routes").get or 0
    return "INDEXED BY jobs_due" if waiting <= FEW and not filter.ids else ""


def _has(filter: Filter, names: frozenset[str]) -> bool:
    return any(getattr(filter, name) for name in names)


# -- one index for each state

_MARKS: Final = ("lane", "because", "category", "detail", "error_class", "fingerprint", "owner")
"""What a plain job has none of: in every state one index holds the jobs that have any, with all of it."""
_MARKED: Final = {
    State.waiting: "jobs_retrying",
    State.running: "jobs_watched",
    State.held: "jobs_on_hold",
    State.done: "jobs_done_marked",
    State.dead: "jobs_dead",
    State.discarded: "jobs_let_go",
    State.purged: "jobs_let_go",
}


def choose_states(filter: Filter) -> tuple[State, ...]:
    """Choose the states to look into one by one, each by its index; none where one look at `jobs` is better.

    That is so for what only some jobs have, and for several states in which a job is only now and then.
    """
    states = tuple(dict.fromkeys(filter.states)) or tuple(State)
    if _has(filter, _FOUND) or (len(states) == 1 and states[0] in WATCHED):
        return ()
    marked = filter.failed or any(getattr(filter, name) is not None for name in _MARKS)
    return states if marked or set(states) <= set(WATCHED) else ()


def write_union(
    filter: Filter,
    routes: Sequence[int] | None,
    columns: Sequence[str],
    further: str = "",
    values: Sequence[object] = (),
) -> tuple[str, list[object]]:
    """Write one query for each of the chosen states, by its index; `further` is one more condition, with its values."""
    queries, bound = [], list[object]()
    for state in choose_states(filter):
        clause, own = write_where(replace(filter, states=(state,)), routes)
        wanted = ", ".join(f"'{state}' AS state" if name == "state" else name for name in columns)
        queries.append(f"SELECT {wanted} FROM jobs INDEXED BY {_MARKED[state]} WHERE {clause}{further}")
        bound += [*own, *values]
    return " UNION ALL ".join(queries), bound
