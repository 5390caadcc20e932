"""What readers ask: records, stories, the view, counts, the feed."""

from __future__ import annotations

import hashlib
import math
import os
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from redrive.core.job import PRIORITIES, Attempt, Job, State
from redrive.core.store import Document, Event, Filter, MoveFilter, Page, Quiet, Returning, Seal
from redrive.errors import InvalidInput
from redrive.stores.sqlite.routes import Routes
from redrive.stores.sqlite.rows import (
    COLUMNS,
    IN_LIST,
    STATES,
    WATCHED,
    Route,
    Row,
    attempt_from,
    job_from,
    listed,
    select,
    select_at_once,
    select_leniently,
    where,
)

RUNNING: Final = (
    "SELECT id, token, beat, ifnull(lease, 90.0), process FROM jobs"
    " WHERE state = 'running' AND state IN ('running', 'held')"
)
SIGNS: Final = (
    "SELECT id, route, process, ifnull(lease, 90.0), max(started_at, ifnull(beat_at, 0)) FROM jobs"
    " WHERE state = 'running' AND state IN ('running', 'held') ORDER BY updated_at"
)
COUNTERS: Final = "SELECT id, " + ", ".join(State) + " FROM routes"


def schema_number(connection: apsw.Connection) -> int:
    return int(connection.pragma("user_version"))


_TOLD: Final = "id, attempt, run, at, started_at, worker"
_STORIES: Final = (
    "FROM (SELECT jobs.id, moves.attempt, moves.run, moves.at, jobs.started_at, jobs.worker FROM jobs"
    " JOIN moves ON moves.job = jobs.seq WHERE {}"
    " AND (moves.attempt IS NOT NULL OR moves.move = 'succeeded') ORDER BY moves.seq)"
)


UNREADABLE: Final = (ValueError, TypeError, LookupError, msgspec.MsgspecError, apsw.SQLError)
"""What reading a record raises that does not hold what it should, because its file is damaged."""


def get(connection: apsw.Connection, routes: Routes, ids: Sequence[str]) -> list[Job]:
    """Also such that no worker could run any more: somebody must be able to look at them, and to let go of them."""
    if not ids:
        return []
    try:
        found = records(connection, routes, IN_LIST, listed(ids))()
    except UNREADABLE:
        found = _damaged(connection, routes, IN_LIST, listed(ids))
    return [found[id] for id in ids if id in found]


def _damaged(connection: apsw.Connection, routes: Routes, chosen: str, value: str) -> dict[str, Job]:
    history = _by_job(select_leniently(connection, _TOLD, _STORIES.format(chosen), (value,)))
    names, rows = routes.names(connection), select_leniently(connection, COLUMNS, f"FROM jobs WHERE {chosen}", (value,))
    return {row[0]: job_from(row, names[row[1]], history.get(row[0], ())) for row in rows}


def records(connection: apsw.Connection, routes: Routes, chosen: str, value: str) -> Callable[[], dict[str, Job]]:
    """The jobs that a condition means, as they are now, by id; whoever wants them calls what comes back."""
    rows = select_at_once(connection, COLUMNS, f"FROM jobs WHERE {chosen}", (value,))
    told = select_at_once(connection, _TOLD, _STORIES.format(chosen), (value,))
    names = routes.names(connection)

    def read() -> dict[str, Job]:
        history = _by_job(told())
        return {row[0]: job_from(row, names[row[1]], history.get(row[0], ())) for row in rows()}

    return read


def stories(connection: apsw.Connection, ids: Sequence[str]) -> dict[str, tuple[Attempt, ...]]:
    """The attempts of these jobs, in order."""
    return _by_job(select_at_once(connection, _TOLD, _STORIES.format(IN_LIST), (listed(ids),))()) if ids else {}


def _by_job(told: Sequence[Sequence[Any]]) -> dict[str, tuple[Attempt, ...]]:
    attempts: dict[str, list[Attempt]] = {}
    for id, data, run, at, started_at, worker in told:
        attempts.setdefault(id, []).append(attempt_from(data, run, at, started_at, worker))
    return {id: tuple(made) for id, made in attempts.items()}


def doc(connection: apsw.Connection, kind: str, key: str) -> Document | None:
    row = connection.execute("SELECT key, value, version FROM docs WHERE kind = ? AND key = ?", (kind, key)).fetchone()
    return Document(*row) if row else None


def docs(connection: apsw.Connection, kind: str, prefix: str) -> list[Document]:
    rows = connection.execute(
        "SELECT key, value, version FROM docs WHERE kind = ? AND key >= ? AND key < ? ORDER BY key",
        (kind, prefix, prefix + "\U0010ffff"),
    )
    return [Document(*row) for row in rows]


def find(
    connection: apsw.Connection,
    routes: Routes,
    filter: Filter,
    cursor: str | None,
    limit: int,
    *,
    oldest: bool = False,
) -> Page:
    """By the last change where one partial index covers the state, else by arrival."""
    names = routes.names(connection)
    wanted = meant(names, filter)
    if wanted is not None and not _any(connection, filter, wanted):
        return Page([], None, time.time())
    clause, values = where(filter, wanted)
    by_change = len(filter.states) == 1 and filter.states[0] in WATCHED
    way, beyond = ("ASC", ">") if oldest else ("DESC", "<")
    order = f"jobs.updated_at {way}, jobs.seq {way}" if by_change else f"jobs.seq {way}"
    if cursor is not None:
        at, seq = _cursor(cursor)
        clause += f" AND (jobs.updated_at, jobs.seq) {beyond} (?, ?)" if by_change else f" AND jobs.seq {beyond} ?"
        values += [at, seq] if by_change else [seq]
    rows = _listed(
        connection, f"FROM jobs {_hint(connection, filter)} WHERE {clause} ORDER BY {order} LIMIT ?", (*values, limit)
    )
    jobs = [job_from(row[:-1], names[row[1]]) for row in rows]
    more = f"{jobs[-1].updated_at!r}:{rows[-1][-1]}" if rows and len(rows) == limit else None
    return Page(jobs, more, time.time())


def _listed(connection: apsw.Connection, rows: str, values: Sequence[Any]) -> list[Row]:
    """Records with their numbers; a damaged one is shown as far as it can be read."""
    columns = f"{COLUMNS}, jobs.seq"
    try:
        return select(connection, f"SELECT {columns} {rows}", values)
    except UnicodeDecodeError:
        return select_leniently(connection, columns, rows, values)


def first(connection: apsw.Connection, routes: Routes, filters: Sequence[Filter], *, oldest: bool) -> list[Job | None]:
    """One snapshot for all of them: to ask for each alone costs more than to find it."""
    pages = (find(connection, routes, filter, None, 1, oldest=oldest) for filter in filters)
    return [next(iter(page.jobs), None) for page in pages]


def meant(names: Mapping[int, Route], filter: Filter | MoveFilter) -> list[int] | None:
    """The routes that a filter's queue, task and agent name; None where it names none of them."""
    wanted = (filter.queue, filter.task, filter.agent)
    if wanted == (None, None, None) and not filter.no_agent:
        return None
    return [
        number
        for number, route in names.items()
        if all(want in (None, is_) for want, is_ in zip(wanted, route, strict=True))
        and not (filter.no_agent and route[2] is not None)
    ]


def _any(connection: apsw.Connection, filter: Filter, wanted: Sequence[int]) -> bool:
    """Whether the counters know of any such job at all."""
    states = " + ".join(filter.states or State)
    listed = ", ".join(map(str, wanted))
    return bool(connection.execute(f"SELECT sum({states}) FROM routes WHERE id IN ({listed})").get)


_FEW: Final = 20_000
_PICKY: Final = frozenset({"session_id", "key", "fingerprint", "ids", "id_part", "error_kind"})
"""What SQLite finds by better indexes than the one over all dead letters."""


def _hint(connection: apsw.Connection, filter: Filter) -> str:
    """Which index to use, where SQLite cannot know how the jobs are spread."""
    if filter.states == (State.dead,):
        return _dead_hint(filter)
    if filter.states == (State.waiting,):
        if filter.failed:
            return "INDEXED BY jobs_retrying"
        if filter.reason not in (None, "direct"):
            return "INDEXED BY jobs_asked"
        waiting = connection.execute("SELECT sum(waiting) FROM routes").get or 0
        return "INDEXED BY jobs_due" if waiting <= _FEW and filter.key is None and not filter.ids else ""
    return ""


def _dead_hint(filter: Filter) -> str:
    if filter.returns_by is not None:
        return "INDEXED BY jobs_returning"
    if filter.session_id is not None:
        return "INDEXED BY jobs_session"
    return "" if any(getattr(filter, name) for name in _PICKY) else "INDEXED BY jobs_dead"


_OVERDUE: Final = (
    "SELECT id, run_at FROM jobs INDEXED BY jobs_due"
    " WHERE route = ? AND state = 'waiting' AND priority = ? AND run_at <= ? ORDER BY run_at LIMIT ?"
)


def overdue(
    connection: apsw.Connection, routes: Routes, now: float, queue: str | None, task: str | None, limit: int
) -> list[Job]:
    """By one seek per route and priority."""
    found = [
        (run_at, id)
        for route, of_queue, of_task in select(connection, "SELECT id, queue, task FROM routes WHERE waiting > 0")
        if queue in (None, of_queue) and task in (None, of_task)
        for priority in range(len(PRIORITIES))
        for id, run_at in connection.execute(_OVERDUE, (route, priority, now, limit))
    ]
    return get(connection, routes, [id for _, id in sorted(found)[:limit]])


def _cursor(said: object) -> tuple[float, int]:
    at, _, seq = str(said).partition(":")
    try:
        found = float(at), int(seq)
    except ValueError:
        found = math.nan, 0
    if not math.isfinite(found[0]) or not 0 <= found[1] <= LARGEST:
        raise InvalidInput(field="cursor", problem="not a cursor that a listing gave")
    return found


LARGEST: Final = 2**63 - 1


def seal(connection: apsw.Connection, routes: Routes, filter: Filter) -> Seal:
    """By their numbers in this file, which the indexes know; sorting them in SQL would cost more than reading them."""
    wanted = meant(routes.names(connection), filter)
    rows: list[Row] = []
    if wanted is None or _any(connection, filter, wanted):
        clause, values = where(filter, wanted)
        rows = select(connection, f"SELECT seq FROM jobs {_count_hint(connection, filter, ())} WHERE {clause}", values)
    numbers = array("q", sorted(seq for (seq,) in rows))
    return Seal(len(numbers), hashlib.sha256(numbers.tobytes()).hexdigest())


_COUNTED: Final = frozenset({"queue", "task", "agent", "state"})
_GROUPABLE: Final = _COUNTED | {
    "lane", "because", "category", "detail", "subclass", "error_class", "fingerprint", "held_for", "owner", "reason",
    "session_id",
}  # fmt: skip


def count(
    connection: apsw.Connection, routes: Routes, filter: Filter, by: Sequence[str]
) -> dict[tuple[str | None, ...], int]:
    """From the counters where they can say it, else by the filter's index."""
    unknown = set(by) - _GROUPABLE
    if unknown:
        raise InvalidInput(field="by", problem=f"cannot count by {', '.join(sorted(unknown))}")
    if (
        filter.due_at is not None
        and filter == Filter((State.waiting,), due_at=filter.due_at)
        and set(by) <= set(_OF_ROUTE)
    ):
        return _due_by(connection, filter.due_at, by)
    plain = Filter(
        states=filter.states, queue=filter.queue, task=filter.task, agent=filter.agent, no_agent=filter.no_agent
    )
    if filter == plain and set(by) <= _COUNTED:
        return _from_counters(connection, filter, by)
    if filter.states == (State.dead,) and filter.lane is None and "lane" in by:
        return _by_lane(connection, routes, filter, by)
    return _counted(connection, routes, filter, by)


def _by_lane(
    connection: apsw.Connection, routes: Routes, filter: Filter, by: Sequence[str]
) -> dict[tuple[str | None, ...], int]:
    """All of them less those of other lanes: most wait in the manual one, and to sort those by it takes longest."""
    place = list(by).index("lane")
    every = count(connection, routes, filter, [*by[:place], *by[place + 1 :]])
    found = _counted(connection, routes, filter, by, only="jobs.lane IS NOT 'manual'")
    for key, number in found.items():
        rest = key[:place] + key[place + 1 :]
        every[rest] = every.get(rest, 0) - number
    return found | {(*key[:place], "manual", *key[place:]): number for key, number in every.items() if number}


def _counted(
    connection: apsw.Connection, routes: Routes, filter: Filter, by: Sequence[str], *, only: str = "true"
) -> dict[tuple[str | None, ...], int]:
    """By columns of the job alone; what its route says is added afterwards."""
    names = routes.names(connection)
    wanted = meant(names, filter)
    if wanted is not None and not _any(connection, filter, wanted):
        return {} if by else {(): 0}
    clause, values = where(filter, wanted)
    columns = list(dict.fromkeys("route" if name in _OF_ROUTE else name for name in by))
    grouped = f" GROUP BY {', '.join(columns)}" if columns else ""
    rows = select(
        connection,
        f"SELECT {', '.join([*columns, 'count(*)'])} FROM jobs {_count_hint(connection, filter, columns)}"
        f" WHERE {clause} AND {only}{grouped}",
        values,
    )
    totals: dict[tuple[str | None, ...], int] = {}
    for row in rows:
        said = dict(zip(columns, row, strict=False))
        if "route" in said:
            said |= zip(_OF_ROUTE, names[said["route"]], strict=True)
        key = tuple(said[name] for name in by)
        totals[key] = totals.get(key, 0) + row[-1]
    return totals or ({} if by else {(): 0})


_OF_ROUTE: Final = ("queue", "task", "agent")


def _count_hint(connection: apsw.Connection, filter: Filter, columns: Sequence[str]) -> str:
    """By group in the order of the groups, unless those of the time are few: then sorting them costs less."""
    plain = Filter(states=(State.dead,), lane=filter.lane, since=filter.since, until=filter.until)
    if filter == plain and columns and set(columns) <= _OF_GROUP and not _few_died(connection, filter):
        return "INDEXED BY jobs_group"
    return _hint(connection, filter)


_OF_GROUP: Final = frozenset({"fingerprint", "lane"})


def _few_died(connection: apsw.Connection, filter: Filter) -> bool:
    """Whether at most so many dead letters changed last in the filter's time, found without counting on."""
    if filter.since is None and filter.until is None:
        return False
    clause, values = where(Filter(states=(State.dead,), since=filter.since, until=filter.until), None)
    some = f"SELECT 1 FROM jobs INDEXED BY jobs_dead WHERE {clause} LIMIT {_FEW + 1}"
    return int(connection.execute(f"SELECT count(*) FROM ({some})", values).get) <= _FEW


_SCHEDULED: Final = "SELECT count(*) FROM jobs WHERE route = ? AND state = 'waiting' AND priority = ? AND run_at > ?"


def _due_by(connection: apsw.Connection, at: float, by: Sequence[str]) -> dict[tuple[str | None, ...], int]:
    """The counters less what is scheduled for later: due jobs cost nothing to count, later ones an index scan."""
    totals: dict[tuple[str | None, ...], int] = {} if by else {(): 0}
    names = ", ".join(("id", "waiting", *by))
    for route, waiting, *key in select(connection, f"SELECT {names} FROM routes WHERE waiting > 0"):
        later = sum(connection.execute(_SCHEDULED, (route, priority, at)).get for priority in range(len(PRIORITIES)))
        if waiting > later:
            totals[*key,] = totals.get((*key,), 0) + waiting - later
    return totals


QUIET: Final = "ifnull(active_at, started_at)"
"""When a running job last showed progress. A claim leaves an older `active_at` behind: the later one counts."""
_QUIET: Final = (
    f", max(started_at, {QUIET}) FROM jobs WHERE state = 'running' AND state IN ('running', 'held')"
    f" AND updated_at < ?1 AND max(started_at, {QUIET}) < ?1 ORDER BY 1 + max(started_at, {QUIET}) LIMIT ?2"
)
_RECENT: Final = 100_000
_TOOK: Final = (
    "SELECT updated_at - started_at FROM jobs WHERE state = 'done' AND started_at IS NOT NULL AND route IN ({})"
    f" AND seq > (SELECT max(seq) FROM jobs) - {_RECENT} ORDER BY seq DESC LIMIT ?"
)


_RETURNING: Final = (
    "SELECT fingerprint, held_for, route, count(*), sum(comes_back_at <= ?), min(comes_back_at)"
    " FROM jobs INDEXED BY jobs_returning WHERE state = 'dead' AND comes_back_at IS NOT NULL GROUP BY 1, 2, 3"
)


def returning(connection: apsw.Connection, routes: Routes, now: float) -> list[Returning]:
    names = routes.names(connection)
    return [
        Returning(fingerprint, held_for, *names[route][:2], *numbers)
        for fingerprint, held_for, route, *numbers in select(connection, _RETURNING, (now,))
    ]


def quiet(connection: apsw.Connection, routes: Routes, since: float, limit: int) -> list[Quiet]:
    names = routes.names(connection)
    rows = select(connection, f"SELECT {COLUMNS}{_QUIET}", (since, limit))
    return [Quiet(job_from(row[:-1], names[row[1]]), row[-1]) for row in rows]


def durations(connection: apsw.Connection, routes: Routes, task: str, last: int) -> list[float]:
    """Bounded by the newest jobs: no index lists what is done."""
    meant = [number for number, route in routes.names(connection).items() if route[1] == task]
    return [seconds for (seconds,) in select(connection, _TOOK.format(", ".join(map(str, meant))), (last,))]


_NUMBERS: Final = (*State, "forgotten")
"""What a route counts: its jobs by state, and how many ended ones were forgotten altogether."""


def _from_counters(connection: apsw.Connection, filter: Filter, by: Sequence[str]) -> dict[tuple[str | None, ...], int]:
    wanted = filter.states or _NUMBERS
    totals: dict[tuple[str | None, ...], int] = {} if by else {(): 0}
    names = ("queue", "task", "agent")
    for row in connection.execute(f"SELECT queue, task, agent, {', '.join(_NUMBERS)} FROM routes"):
        route = dict(zip(names, row[:3], strict=True))
        if any(getattr(filter, name) not in (None, route[name]) for name in names):
            continue
        if filter.no_agent and route["agent"] is not None:
            continue
        for state, number in zip(_NUMBERS, row[3:], strict=True):
            if number and state in wanted:
                key = tuple(str(state) if name == "state" else route[name] for name in by)
                totals[key] = totals.get(key, 0) + number
    return totals


def events(connection: apsw.Connection, routes: Routes, after: str | None, limit: int) -> list[Event]:
    """New jobs, then moves: each job's own order is kept, and nothing committed is left out."""
    if after is None:
        return [Event(_end(connection), "now", time.time(), "", "", "", State.waiting, 0, 0)]
    jobs, moves = _feed_cursor(after)
    names = routes.names(connection)
    found: list[Event] = []
    for seq, id, route, at, imported, state in select(connection, _BORN, (jobs, limit)):
        jobs = seq
        queue, task, _ = names[route]
        if not imported:
            found.append(Event(f"{jobs}.{moves}", "enqueued", at, id, queue, task, STATES[state], 0, 0))
    for row in connection.execute(_FEED, (moves, limit - len(found), jobs)):
        moves = row[0]
        queue, task, _ = names[row[3]]
        found.append(event(f"{jobs}.{moves}", row, queue, task))
    return found


MOVES: Final = (
    "SELECT moves.seq, moves.move, moves.at, jobs.route, jobs.id, moves.state, moves.run, moves.attempts,"
    " moves.who, moves.why FROM moves JOIN jobs ON jobs.seq = moves.job"
)
_BIRTH: Final = (
    "SELECT seq, id, route, created_at,"
    " EXISTS (SELECT 1 FROM moves WHERE job = jobs.seq AND move = 'imported'),"
    " CASE version WHEN 1 THEN state ELSE 'waiting' END FROM jobs"
)
_BORN: Final = f"{_BIRTH} WHERE seq > ? ORDER BY seq LIMIT ?"
_NEWEST: Final = f"{_BIRTH} ORDER BY seq DESC LIMIT ?"
_FEED: Final = f"{MOVES} WHERE moves.seq > ?1 AND moves.job <= ?3 ORDER BY moves.seq LIMIT ?2"
_STORY: Final = f"{MOVES} WHERE moves.job = ? ORDER BY moves.seq"


def _end(connection: apsw.Connection) -> str:
    """The cursor after everything that has happened."""
    ends = "SELECT (SELECT ifnull(max(seq), 0) FROM jobs), (SELECT ifnull(max(seq), 0) FROM moves)"
    ((jobs, moves),) = select(connection, ends)
    return f"{jobs}.{moves}"


def latest(connection: apsw.Connection, routes: Routes, limit: int) -> list[Event]:
    """New jobs and moves, by when they happened. Whoever goes on after the cursor of any misses nothing."""
    names, end = routes.names(connection), _end(connection)
    found = []
    for _, id, route, at, imported, state in select(connection, _NEWEST, (limit,)):
        queue, task, _ = names[route]
        if not imported:
            found.append(Event(end, "enqueued", at, id, queue, task, STATES[state], 0, 0))
    for row in select(connection, f"{MOVES} ORDER BY moves.seq DESC LIMIT ?", (limit,)):
        queue, task, _ = names[row[3]]
        found.append(event(end, row, queue, task))
    return sorted(found, key=lambda event: -event.at)[:limit]


def story(connection: apsw.Connection, routes: Routes, job_id: str) -> list[Event]:
    names = routes.names(connection)
    found = []
    for seq, id, route, at in select(connection, "SELECT seq, id, route, created_at FROM jobs WHERE id = ?", (job_id,)):
        queue, task, _ = names[route]
        moves = select(connection, _STORY, (seq,))
        if not moves or moves[0][1] != "imported":
            found.append(Event(f"{seq}.0", "enqueued", at, id, queue, task, State.waiting, 0, 0))
        found.extend(event(f"{seq}.{row[0]}", row, queue, task) for row in moves)
    return found


def event(cursor: str, row: tuple[Any, ...], queue: str, task: str) -> Event:
    _, move, at, _, id, state, run, attempts, who, why = row
    return Event(cursor, move, at, id, queue, task, STATES[state], run, attempts, who, why)


def _feed_cursor(text: str) -> tuple[int, int]:
    jobs, _, moves = (text or "0.0").partition(".")
    try:
        found = int(jobs), int(moves)
    except ValueError:
        found = -1, -1
    if not all(0 <= number <= LARGEST for number in found):
        raise InvalidInput(field="after", problem="not a cursor that the feed gave")
    return found


_SCAN: Final = 500


def scan(connection: apsw.Connection, routes: Routes, after: int) -> tuple[list[Job], int]:
    rows = _listed(connection, "FROM jobs WHERE jobs.seq > ? ORDER BY jobs.seq LIMIT ?", (after, _SCAN))
    names, told = routes.names(connection), stories(connection, [row[0] for row in rows])
    jobs = [job_from(row[:-1], names[row[1]], told.get(row[0], ())) for row in rows]
    return jobs, rows[-1][-1] if rows else after


def backup(connection: apsw.Connection, target: Path) -> int:
    """SQLite's online backup into a new file, private to its owner, from one snapshot: writers do not restart it."""
    if target.exists():
        raise InvalidInput(field="target", problem=f"{target} exists already; choose a new file")
    if not target.parent.is_dir():
        raise InvalidInput(field="target", problem=f"the folder {target.parent} does not exist")
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    copy = apsw.Connection(str(target))
    connection.execute("SELECT 1 FROM sqlite_schema").fetchall()  # the snapshot begins here
    with copy.backup("main", connection, "main") as running:
        while not running.done:
            running.step(1_000)
    copy.close()
    return target.stat().st_size
