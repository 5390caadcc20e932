"""What only the SQLite store promises: the file, its guards, its plans, its group commit."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import stat
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from redrive.core import lifecycle
from redrive.core.job import Attempt, Job, State
from redrive.core.lifecycle import legal_pairs
from redrive.core.store import Applied, Commit, Filter, Lease, Put, Stale, Store, Wanted
from redrive.errors import StoreError, StoreFailed, StoreRefused, StoreUnavailable
from redrive.stores.sqlite import SqliteStore, connection, schema, search, upkeep, writer
from redrive.stores.sqlite.records import RouteCache
from redrive.stores.sqlite.rollups import Rollup, read_groups
from redrive.stores.sqlite.wakeups import ForeignCommits
from redrive.stores.sqlite.watcher import Watcher
from tests.chaos.vfs import RecordingVFS, Synced, installed
from tests.stores.jobs import T0, a_job, burial, retry, success
from tests.stores.openers import Openers
from tests.support import count_in_files, eventually

Trace = Callable[[str, Any], None]


@contextmanager
def traced(trace: Trace) -> Iterator[None]:
    """Tells every statement of every connection that is opened meanwhile, before it runs."""

    def listen(opened: apsw.Connection) -> None:
        def tell(_: apsw.Cursor, sql: str, bindings: Any) -> bool:
            trace(sql, bindings)
            return True

        opened.set_exec_trace(tell)

    apsw.connection_hooks.append(listen)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(listen)


def raw(path: Path) -> apsw.Connection:
    return apsw.Connection(str(path))


def path_of(openers: Openers) -> Path:
    return openers.folder / "jobs.db"


async def accept(store: Store, *jobs: Job) -> None:
    assert not any(one.duplicate for one in await store.insert(jobs))


async def take(store: Store, slots: int = 100, now: float = T0 + 1, **wanted: Any) -> list[Job]:
    return (await store.claim(Wanted(slots, **wanted), "w1", now)).jobs


# ---- the file


@pytest.mark.behaviour("000-22")
async def test_the_file_is_in_wal_mode(sqlite: Openers) -> None:
    await sqlite.open()
    with closing(raw(path_of(sqlite))) as look:
        assert look.pragma("journal_mode") == "wal"


@pytest.mark.behaviour("000-28")
async def test_a_new_file_has_its_tables_its_name_and_its_number(sqlite: Openers) -> None:
    info = await (await sqlite.open()).open()
    with closing(raw(path_of(sqlite))) as look:
        tables = {name for (name,) in look.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        assert {"jobs", "routes", "moves", "docs"} <= tables
        assert look.pragma("application_id") == schema.APPLICATION_ID
        assert look.pragma("user_version") == len(schema.read_steps()) == info.schema
        assert look.pragma("integrity_check") == "ok"
    assert info.durability == "synced"


@pytest.mark.behaviour("C15")
async def test_writing_is_synced_in_full(folder: Path) -> None:
    store = SqliteStore(folder / "jobs.db")
    seen = []
    await accept(store, a_job())
    for _ in range(2):
        seen.append(await store._write(lambda writer: writer.pragma("synchronous")))
        await take(store)
        await accept(store, a_job())
    await store.close()
    assert seen == [2, 2]


async def test_only_the_owner_may_read(folder: Path) -> None:
    before = os.umask(0)
    try:
        store = SqliteStore(folder / "jobs.db")
        await accept(store, a_job())
        await store.backup(str(folder / "copy.db"))
        files = [path for path in folder.rglob("*") if path.is_file()]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
        await store.close()
    finally:
        os.umask(before)
    assert {"jobs.db", "jobs.db-wal", "jobs.db-shm", "copy.db"} <= modes.keys()
    assert set(modes.values()) == {0o600}


async def test_memory_is_a_temporary_file() -> None:
    store = SqliteStore(":memory:")
    await accept(store, job := a_job())
    folder = store.path.parent
    assert store.path.is_file()
    assert [found.id for found in await store.get([job.id])] == [job.id]
    await store.close()
    assert not folder.exists()


async def test_two_memories_are_two_stores() -> None:
    one, two = SqliteStore(":memory:"), SqliteStore(":memory:")
    await accept(one, a_job())
    assert await two.count(Filter()) == {(): 0}
    await one.close()
    await two.close()


# ---- refusals


def _foreign(path: Path) -> None:
    with closing(raw(path)) as other:
        other.execute("CREATE TABLE people (name TEXT); INSERT INTO people VALUES ('ann')")


def _named_otherwise(path: Path) -> None:
    with closing(raw(path)) as other:
        other.pragma("application_id", 12345)


def _garbage(path: Path) -> None:
    path.write_bytes(b"this is not a database " * 400)


def _newer(path: Path) -> None:
    with closing(raw(path)) as ours:
        schema.migrate(ours, str(path))
        ours.pragma("user_version", 999)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_foreign, "something else"),
        (_named_otherwise, "something else"),
        (_garbage, "not a usable SQLite database"),
        (_newer, "upgrade redrive"),
    ],
)
async def test_a_file_that_is_not_ours_is_refused_and_untouched(
    folder: Path, make: Callable[[Path], None], says: str
) -> None:
    path = folder / "jobs.db"
    make(path)
    before = path.read_bytes()
    store = SqliteStore(path)
    with pytest.raises(StoreRefused, match=says):
        await store.open()
    with pytest.raises(StoreRefused, match=says):
        await store.insert([a_job()])
    await store.close()
    assert path.read_bytes() == before


async def test_an_empty_file_becomes_a_store(folder: Path) -> None:
    (folder / "jobs.db").touch()
    store = SqliteStore(folder / "jobs.db")
    await accept(store, a_job())
    await store.close()


@pytest.mark.parametrize("kind", sorted(connection.NETWORK))
async def test_a_network_filesystem_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(connection, "find_filesystem", lambda folder: kind)
    store = SqliteStore(folder / "jobs.db")
    with pytest.raises(StoreRefused, match="network filesystem"):
        await store.open()
    await store.close()
    assert list(folder.iterdir()) == []


async def test_a_local_filesystem_is_not_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "find_filesystem", lambda folder: "ext4")
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    await store.close()


def test_the_kind_of_filesystem_is_that_of_the_deepest_mount() -> None:
    assert connection.find_filesystem(Path("/proc")) == "proc"
    assert connection.find_filesystem(Path("/proc/self")) == "proc"
    assert connection.find_filesystem(Path("/")) != "proc"


async def test_a_missing_folder_is_named_and_a_later_try_does_better(folder: Path) -> None:
    store = SqliteStore(folder / "missing" / "jobs.db")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="missing"):
            await store.insert([a_job()])
    (folder / "missing").mkdir()
    await accept(store, a_job())
    await store.close()


async def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    closed = Path("/proc") if os.geteuid() == 0 else folder / "closed"
    closed.mkdir(mode=0o500, exist_ok=True)
    store = SqliteStore(closed / "jobs.db")
    with pytest.raises(StoreUnavailable, match=r"jobs\.db"):
        await store.open()
    await store.close()


async def test_a_folder_in_the_place_of_the_file_is_an_error(folder: Path) -> None:
    (folder / "jobs.db").mkdir()
    store = SqliteStore(folder / "jobs.db")
    with pytest.raises(StoreUnavailable):
        await store.open()
    await store.close()


# ---- what the schema refuses


@pytest.fixture
def bare() -> Iterator[apsw.Connection]:
    """The schema alone, without the store's code before it."""
    with closing(apsw.Connection(":memory:")) as database:
        schema.migrate(database, ":memory:")
        database.execute("INSERT INTO routes (id, queue, task) VALUES (1, 'q', 't')")
        yield database


def _put_row(database: apsw.Connection, state: str, **fields: Any) -> None:
    row = {
        "id": "a" * 32, "route": 1, "state": state, "priority": 2, "run_at": T0, "created_at": T0, "updated_at": T0,
        "payload": "{}", "token": "token" if state == "running" else None, **_reasons(state), **fields,
    }  # fmt: skip
    marks = ", ".join("?" * len(row))
    database.execute(f"INSERT INTO jobs ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _reasons(state: str) -> dict[str, Any]:
    return {"because": "x", "lane": "manual", "recommendation": "x"} if state in ("dead", "held") else {}


def _move_row(database: apsw.Connection, state: str, **fields: Any) -> None:
    row = {"state": state, "token": "token" if state == "running" else None, **_reasons(state), **fields}
    sets = ", ".join(f"{name} = ?" for name in row)
    database.execute(f"UPDATE jobs SET {sets}", tuple(row.values()))


PAIRS = [(source, to) for source, to in itertools.product(State, State) if source != to]


@pytest.mark.parametrize(("source", "to"), [pair for pair in PAIRS if pair in legal_pairs()])
def test_the_schema_accepts_every_move_of_the_table(bare: apsw.Connection, source: State, to: State) -> None:
    _put_row(bare, source)
    _move_row(bare, to)
    assert bare.execute("SELECT state FROM jobs").get == to


@pytest.mark.parametrize(("source", "to"), [pair for pair in PAIRS if pair not in legal_pairs()])
def test_the_schema_refuses_every_other_move(bare: apsw.Connection, source: State, to: State) -> None:
    _put_row(bare, source)
    with pytest.raises(apsw.ConstraintError, match="illegal move"):
        _move_row(bare, to)
    assert bare.execute("SELECT state FROM jobs").get == source


def test_there_are_both_legal_and_illegal_pairs() -> None:
    assert len(legal_pairs()) >= 12
    assert len(PAIRS) - len(legal_pairs()) >= 20


@pytest.mark.behaviour("000-32")
@pytest.mark.parametrize("state", ["pending", "WAITING", "", None, 1])
def test_a_state_that_does_not_exist_cannot_be_stored(bare: apsw.Connection, state: Any) -> None:
    with pytest.raises(apsw.ConstraintError):
        _put_row(bare, state)
    _put_row(bare, "waiting")
    with pytest.raises(apsw.ConstraintError):
        _move_row(bare, state)


@pytest.mark.behaviour("000-30")
@pytest.mark.parametrize("field", ["id", "route", "priority", "run_at", "created_at", "updated_at"])
def test_what_a_job_cannot_be_without(bare: apsw.Connection, field: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        _put_row(bare, "waiting", **{field: None})


@pytest.mark.behaviour("000-30")
@pytest.mark.parametrize("field", ["queue", "task"])
def test_a_route_has_a_queue_and_a_task(bare: apsw.Connection, field: str) -> None:
    row = {"queue": "q2", "task": "t2", field: None}
    with pytest.raises(apsw.ConstraintError):
        bare.execute("INSERT INTO routes (queue, task) VALUES (?, ?)", (row["queue"], row["task"]))


@pytest.mark.parametrize("priority", [-1, 4])
def test_there_are_four_priorities(bare: apsw.Connection, priority: int) -> None:
    with pytest.raises(apsw.ConstraintError):
        _put_row(bare, "waiting", priority=priority)


def test_an_id_is_there_once(bare: apsw.Connection) -> None:
    _put_row(bare, "waiting")
    with pytest.raises(apsw.ConstraintError):
        _put_row(bare, "waiting")


@pytest.mark.parametrize(
    ("source", "to", "fields"),
    [
        ("waiting", "running", {"token": None}),
        ("running", "waiting", {"token": "kept"}),
        ("running", "dead", {"because": None}),
        ("running", "dead", {"lane": None}),
        ("running", "dead", {"recommendation": None}),
        ("waiting", "held", {"because": None}),
    ],
)
def test_a_state_has_its_columns(bare: apsw.Connection, source: str, to: str, fields: dict[str, Any]) -> None:
    _put_row(bare, source)
    with pytest.raises(apsw.ConstraintError):
        _move_row(bare, to, **fields)


@pytest.mark.parametrize("state", ["waiting", "running", "held", "dead", "done"])
def test_a_job_with_contents_cannot_be_deleted(bare: apsw.Connection, state: str) -> None:
    _put_row(bare, state)
    with pytest.raises(apsw.ConstraintError):
        bare.execute("DELETE FROM jobs")


def test_a_dead_letter_cannot_be_deleted_even_without_contents(bare: apsw.Connection) -> None:
    _put_row(bare, "dead", payload=None)
    with pytest.raises(apsw.ConstraintError):
        bare.execute("DELETE FROM jobs")


def test_what_is_forgotten_is_counted(bare: apsw.Connection) -> None:
    _put_row(bare, "done", payload=None)
    bare.execute(schema.make_recount())
    bare.execute("DELETE FROM jobs")
    assert bare.execute("SELECT done, forgotten FROM routes").fetchall() == [(0, 1)]


@pytest.mark.parametrize("state", ["running", "done", "discarded", "purged"])
async def test_a_job_cannot_begin_in_the_middle_of_its_life(sqlite: Openers, state: str) -> None:
    store = await sqlite.open()
    with pytest.raises(StoreError):
        await store.insert([a_job(state=State(state), token="t" if state == "running" else None)])
    assert await store.count(Filter()) == {(): 0}


@pytest.mark.parametrize("missing", ["because", "lane", "recommendation"])
async def test_a_job_cannot_begin_dead_without_saying_why(sqlite: Openers, missing: str) -> None:
    store = await sqlite.open()
    reasons = {"because": "imported", "lane": "manual", "recommendation": "look", missing: None}
    with pytest.raises(StoreError):
        await store.insert([a_job(state=State.dead, **reasons)])
    assert await store.count(Filter()) == {(): 0}


# ---- more at once than SQLite takes in one value


async def test_many_large_jobs_go_through_one_by_one(sqlite: Openers) -> None:
    """The limit is a billion bytes; here it is smaller, so that thirty jobs together are too much for it."""

    def limited(opened: apsw.Connection) -> None:
        opened.limit(apsw.SQLITE_LIMIT_LENGTH, 200_000)

    large = msgspec.json.encode({"text": "x" * 20_000}).decode()
    apsw.connection_hooks.append(limited)
    try:
        store = await sqlite.open()
        jobs = [a_job(payload=large) for _ in range(30)]
        await accept(store, *jobs)
        taken = await take(store)
        assert [job.payload for job in taken] == [large] * 30
        moves = [lifecycle.succeeded(job, T0 + 2, large) for job in taken]
        outcomes = await store.apply([Commit((move,)) for move in moves])
        assert all(isinstance(outcome, Applied) for outcome in outcomes)
        found = await store.get([job.id for job in jobs])
        assert [(job.state, job.result_json) for job in found] == [(State.done, large)] * 30
        assert [len(job.history) for job in found] == [1] * 30
    finally:
        apsw.connection_hooks.remove(limited)


# ---- closing


class SlowToLookAway(SqliteStore):
    def _look_around(self, foreign: ForeignCommits, watcher: Watcher) -> None:
        self._closed.wait()
        time.sleep(0.3)
        super()._look_around(foreign, watcher)


async def test_when_a_store_is_closed_nobody_has_its_file_open(tmp_path: Path) -> None:
    """Whoever opens it after a failed sync must be the only one, to write the log again."""
    store = SlowToLookAway(tmp_path / "jobs.db")
    await store.open()
    await store.claim(Wanted(slots=1), "worker", T0)  # looks around from now on
    await store.count(Filter())
    await store.close()
    with closing(raw(tmp_path / "jobs.db")) as alone:
        alone.pragma("locking_mode", "EXCLUSIVE")
        alone.execute("BEGIN EXCLUSIVE; ROLLBACK")


# ---- other processes


async def test_whoever_looks_for_other_processes_survives_an_error_and_tells_it_once(
    sqlite: Openers, caplog: pytest.LogCaptureFixture
) -> None:
    store, other = await sqlite.open(), await sqlite.open()
    looks: list[str] = []

    def fail(sql: str, bindings: Any) -> None:
        if "data_version" in sql:
            looks.append(sql)
            if 1 < len(looks) < 5:
                raise apsw.IOError("disk I/O error")

    with traced(fail):
        claim = await store.claim(Wanted(slots=1), "worker", T0)
        waiting = asyncio.create_task(store.wait(claim.mark, 20.0))
        await eventually(lambda: len(looks) > 2, "a look after the one that failed")
        await accept(other, a_job())
        assert await waiting, "what came while it could not look is noticed, too"
    claim = await store.claim(Wanted(slots=0), "worker", T0)
    waiting = asyncio.create_task(store.wait(claim.mark, 20.0))
    await accept(other, a_job())
    assert await waiting
    assert caplog.text.count("noticed late") == 1


# ---- counters and repair


async def test_repair_recounts_what_somebody_else_miscounted(sqlite: Openers) -> None:
    store = await sqlite.open()
    await accept(store, *(a_job(f"q{number % 2}") for number in range(6)))
    with closing(raw(path_of(sqlite))) as other:
        other.execute("UPDATE routes SET waiting = 99 WHERE queue = 'q1'")
    assert await store.count(Filter()) == {(): 3 + 99}
    said = await store.repair(T0)
    assert len(said) == 1 and "recounted" in said[0]
    assert await store.count(Filter(), by=("queue", "state")) == {("q0", "waiting"): 3, ("q1", "waiting"): 3}


async def test_a_commit_that_was_taken_back_counts_nothing(sqlite: Openers) -> None:
    store = await sqlite.open()
    await accept(store, *(a_job() for _ in range(4)))
    first, second, third, gone = await take(store)
    assert isinstance((await store.apply([Commit((success(gone),))]))[0], Applied)
    group = [Commit((success(first),)), Commit((success(second), success(gone))), Commit((burial(third),))]
    outcomes = await store.apply(group)
    assert [type(outcome) for outcome in outcomes] == [Applied, Stale, Applied]
    assert await store.count(Filter(), by=("state",)) == {("done",): 2, ("running",): 1, ("dead",): 1}
    assert await store.repair(T0) == []


# ---- plans


class Heard:
    """Statements with their values, as they ran."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, Any]] = []

    def __call__(self, sql: str, bindings: Any) -> None:
        self.statements.append((sql, bindings))

    def plans(self, path: Path) -> dict[str, str]:
        """The plan of each of them that looks for something."""
        with closing(raw(path)) as look:
            return {
                sql: " | ".join(row[3] for row in look.execute(f"EXPLAIN QUERY PLAN {sql}", bindings))
                for sql, bindings in self.statements
                if sql.lstrip().upper().startswith(("SELECT", "UPDATE", "DELETE", "WITH"))
            }


async def test_no_statement_is_compiled_anew_for_other_values(folder: Path) -> None:
    """SQLite would look at the value of every `LIMIT ?` and compile again, which takes longer than many a claim."""
    compiled: list[str | None] = []

    def listen(opened: apsw.Connection) -> None:
        def asked(action: int, table: str | None, *_: str | None) -> int:
            """SQLite asks what a statement may do while it compiles it."""
            if action == apsw.SQLITE_READ:
                compiled.append(table)
            return apsw.SQLITE_OK

        opened.authorizer = asked

    apsw.connection_hooks.append(listen)
    try:
        store = SqliteStore(folder / "jobs.db")
        for round, slots in enumerate((1, 20, 2, 30)):
            if round == 2:
                assert "jobs" in compiled
                compiled.clear()
            await accept(store, *(a_job() for _ in range(slots)))
            taken = await take(store, slots)
            assert len(taken) == slots
            await store.apply([Commit((success(job),)) for job in taken])
        await store.close()
    finally:
        apsw.connection_hooks.remove(listen)
    assert compiled == []


@pytest.mark.behaviour("000-41")
async def test_the_claim_finds_due_work_by_its_index(folder: Path) -> None:
    heard = Heard()
    with traced(heard):
        store = SqliteStore(folder / "jobs.db")
        await accept(store, *(a_job(f"q{number % 3}", priority=number % 4) for number in range(40)))
        heard.statements.clear()
        assert len(await take(store, slots=5)) == 5
        plans = heard.plans(folder / "jobs.db")
    await store.close()
    seeks = [plan for sql, plan in plans.items() if "run_at" in sql and "FROM jobs" in sql and "priority" in sql]
    assert seeks
    assert all("USING INDEX jobs_due" in plan or "USING COVERING INDEX jobs_due" in plan for plan in seeks), plans
    assert not any(re.search(r"SCAN jobs(?! USING)|TEMP B-TREE", plan) for plan in plans.values()), plans


@pytest.mark.parametrize(
    "filter",
    [
        Filter(states=(State.dead,)),
        Filter(states=(State.held,)),
        Filter(states=(State.dead,), fingerprint="f" * 16),
        Filter(states=(State.dead,), queue="q1"),
        Filter(states=(State.dead,), lane="manual"),
    ],
    ids=["dead", "held", "group", "queue", "lane"],
)
async def test_listing_dead_letters_uses_an_index_and_sorts_nothing(folder: Path, filter: Filter) -> None:
    heard = Heard()
    with traced(heard):
        store = SqliteStore(folder / "jobs.db")
        await accept(store, a_job("q1"))
        await store.apply([Commit((burial(job),)) for job in await take(store)])
        heard.statements.clear()
        page = await store.find(filter, limit=1)
        await store.find(filter, page.cursor or f"{T0!r}:1", limit=1)
        plans = heard.plans(folder / "jobs.db")
    await store.close()
    listings = [plan for sql, plan in plans.items() if "FROM jobs" in sql]
    assert len(listings) == 2
    for plan in listings:
        assert "USING INDEX jobs_" in plan or "USING COVERING INDEX jobs_" in plan, plans
        assert "TEMP B-TREE" not in plan or filter.queue, plans
        assert "SCAN routes" not in plan, plans


@pytest.mark.parametrize("asked", ["groups", "manual", "open", "died"])
async def test_counting_many_dead_letters_reads_one_index_and_sorts_none_of_them(folder: Path, asked: str) -> None:
    """Sorting takes several times as long as reading; only what is not in the manual lane, a few, is sorted."""
    heard, dead = Heard(), Filter(states=(State.dead,))
    with traced(heard):
        store = SqliteStore(folder / "jobs.db")
        await accept(store, a_job("q1"))
        await store.apply([Commit((burial(job),)) for job in await take(store)])
        heard.statements.clear()
        match asked:
            case "groups":
                await store.count(dead, by=("fingerprint", "lane"))
            case "manual":
                await store.count(Filter(states=(State.dead,), lane="manual"), by=("fingerprint",))
            case "open":
                await store.outcomes(T0, T0 + 86_400 * 40, whole=True)
            case "died":
                await store.count(dead, by=("queue", "lane"))
        plans = heard.plans(folder / "jobs.db")
    await store.close()
    counts = {sql: plan for sql, plan in plans.items() if "FROM jobs" in sql or "JOIN jobs" in sql}
    assert counts
    assert all("USING COVERING INDEX jobs_" in plan for plan in counts.values()), counts
    sorted_ones = [sql for sql, plan in counts.items() if "TEMP B-TREE" in plan]
    assert all("'manual'" in sql and "NOT" in sql for sql in sorted_ones), counts


async def test_waits_and_runs_are_read_by_numbers_and_sort_nothing(folder: Path) -> None:
    """Moves and jobs by ranges of their row numbers, the newest first: no scan, no sort, no index to keep."""
    heard = Heard()
    with traced(heard):
        store = SqliteStore(folder / "jobs.db")
        await accept(store, a_job("q1"), a_job("q2"))
        await store.apply([Commit((success(job),)) for job in await take(store)])
        with closing(raw(folder / "jobs.db")) as other:
            other.execute("DELETE FROM moves WHERE job = 1")
        heard.statements.clear()
        assert {one.name for one in await store.timings("queue")} == {"q1", "q2"}
        plans = {sql: plan for sql, plan in heard.plans(folder / "jobs.db").items() if "started_at" in sql}
    await store.close()
    moves, jobs = plans.values()
    assert "SEARCH moves USING INTEGER PRIMARY KEY (rowid>?)" in moves
    assert "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)" in moves
    assert "SEARCH jobs USING INTEGER PRIMARY KEY (rowid>?)" in jobs
    assert not any("TEMP B-TREE" in plan for plan in plans.values()), plans


# ---- the cost of a backlog


class Steps:
    """Counts the steps of SQLite's virtual machine on every connection opened meanwhile."""

    def __init__(self) -> None:
        self.count = 0

    def _step(self) -> bool:
        self.count += 1
        return False

    def listen(self, opened: apsw.Connection) -> None:
        opened.set_progress_handler(self._step, 1)


@contextmanager
def counted_steps() -> Iterator[Steps]:
    steps = Steps()
    apsw.connection_hooks.append(steps.listen)
    try:
        yield steps
    finally:
        apsw.connection_hooks.remove(steps.listen)


FILL = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO jobs (id, route, priority, run_at, created_at, updated_at, payload)
SELECT printf('%032x', i), (SELECT id FROM routes WHERE queue = ?2), i % 4, ?3 + i % 100, ?4, ?4, '{}' FROM n
"""


async def _backlog(path: Path, number: int, queue: str, run_at: float) -> None:
    """Very many jobs, written by SQL because that is quick; the store then counts them."""
    store = SqliteStore(path)
    await accept(
        store, a_job("backlog", run_at=T0 + 1e9), *(a_job("live", priority=number % 4) for number in range(20))
    )
    with closing(raw(path)) as filling:
        filling.execute(FILL, (number, queue, run_at, T0))
    await store.repair(T0)
    await store.close()


async def _claim_steps(path: Path, **wanted: Any) -> int:
    """Steps of one claim of five, after one that warmed up."""
    with counted_steps() as steps:
        store = SqliteStore(path)
        assert len(await take(store, slots=5, now=T0 + 1000, **wanted)) == 5
        await accept(store, a_job("live"))
        before = steps.count
        assert len(await take(store, slots=5, now=T0 + 1000, **wanted)) == 5
        spent = steps.count - before
        await store.close()
    return spent


BACKLOGS: dict[str, tuple[float, dict[str, Any]]] = {
    "waiting": (T0, {}),
    "scheduled": (T0 + 1e8, {}),
    "paused": (T0, {"not_queues": frozenset({"backlog"})}),
}


@pytest.mark.parametrize("kind", BACKLOGS)
async def test_a_claim_costs_the_same_behind_a_large_backlog(folder: Path, kind: str) -> None:
    run_at, wanted = BACKLOGS[kind]
    spent = {}
    for number in (1_000, 100_000):
        path = folder / f"{number}.db"
        await _backlog(path, number, "backlog", run_at)
        spent[number] = await _claim_steps(path, **wanted)
    assert 0 < spent[100_000] <= 1.2 * spent[1_000], spent


@pytest.mark.parametrize("kind", ["scheduled", "paused"])
async def test_looking_in_vain_costs_the_same_behind_a_large_backlog(folder: Path, kind: str) -> None:
    run_at, wanted = BACKLOGS[kind]
    spent = {}
    for number in (1_000, 100_000):
        path = folder / f"{number}.db"
        await _backlog(path, number, "backlog", run_at)
        with counted_steps() as steps:
            store = SqliteStore(path)
            assert len(await take(store, **wanted)) == 20
            before = steps.count
            assert await take(store, **wanted) == []
            spent[number] = steps.count - before
            await store.close()
    assert 0 < spent[100_000] <= 1.2 * spent[1_000], spent


DONE = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO jobs (id, route, state, priority, run_at, created_at, updated_at, started_at, payload)
SELECT printf('d%031x', i), (SELECT id FROM routes WHERE queue = ?2), 'done', 2, ?3, ?3, ?3 + 2, ?3 + 1, '{}' FROM n
"""


@pytest.mark.parametrize("kind", ["done", "waiting"])
async def test_waits_and_runs_cost_the_same_behind_many_jobs(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The looks are bounded: at moves, then at jobs for a queue that has not ended anything lately."""
    monkeypatch.setattr(search, "MOVES", 50)
    monkeypatch.setattr(search, "JOBS", 500)
    spent = {}
    for number in (1_000, 100_000):
        path = folder / f"{number}.db"
        await _backlog(path, number if kind == "waiting" else 10, "backlog", T0)
        with closing(raw(path)) as filling:
            filling.execute(DONE, (number if kind == "done" else 10, "backlog", T0))
        with counted_steps() as steps:
            store = SqliteStore(path)
            await store.repair(T0)
            taken = await take(store, slots=20, now=T0 + 1, queues=frozenset({"live"}))
            await store.apply([Commit((success(job),)) for job in taken])
            before = steps.count
            found = {one.name: one.waited and one.waited.number for one in await store.timings("queue")}
            spent[number] = steps.count - before
            await store.close()
        assert found["live"] == 20, "what ended last is seen, however much came after it"
    assert 0 < spent[100_000] <= 1.2 * spent[1_000], spent


async def test_the_control_a_scan_would_be_seen(folder: Path) -> None:
    """The steps do grow where somebody counts by looking at every job."""
    spent = []
    for number in (1_000, 10_000):
        path = folder / f"{number}.db"
        await _backlog(path, number, "backlog", T0)
        with counted_steps() as steps:
            store = SqliteStore(path)
            await store.open()
            before = steps.count
            await store.count(Filter(session_id="nobody", until=T0 + 5))
            await store.count(Filter(until=T0 + 5))
            spent.append(steps.count - before)
            await store.close()
    assert spent[1] > 5 * spent[0]


# ---- group commit


@contextmanager
def held_up(store: SqliteStore) -> Iterator[threading.Event]:
    """Keeps the writer thread busy, so that everything asked meanwhile becomes one group.

    Gives the event that is set once the thread is busy: only then does what is asked stay in the queue.
    """
    go, busy = threading.Event(), threading.Event()

    def work(_: apsw.Connection) -> None:
        busy.set()
        assert go.wait(60)

    blocking = asyncio.ensure_future(store._write(work))
    try:
        yield busy
    finally:
        go.set()
        blocking.add_done_callback(lambda done: done.exception())


async def _started(store: SqliteStore) -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def _raise(error: Exception) -> Callable[[apsw.Connection], None]:
    def work(_: apsw.Connection) -> None:
        raise error

    return work


async def test_a_failing_operation_harms_none_of_its_group(folder: Path) -> None:
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    jobs, late = [a_job() for _ in range(10)], [a_job() for _ in range(10)]
    with held_up(store):
        await _started(store)
        writes: list[asyncio.Future[Any]] = [asyncio.ensure_future(store.insert([job])) for job in jobs]
        bug = asyncio.ensure_future(store._write(_raise(KeyError("a bug"))))
        constraint = asyncio.ensure_future(
            store._write(lambda writer: writer.execute("UPDATE jobs SET priority = 9").fetchall())
        )
        writes += [asyncio.ensure_future(store.insert([job])) for job in late]
        await _started(store)
    answers = await asyncio.gather(*writes)
    assert [answer.job.id for (answer,) in answers] == [job.id for job in (*jobs, *late)]
    with pytest.raises(KeyError, match="a bug"):
        await bug
    with pytest.raises(StoreError):
        await constraint
    assert await store.count(Filter(), by=("state",)) == {("waiting",): 20}
    await store.close()


async def test_a_group_is_one_transaction(folder: Path) -> None:
    with installed(RecordingVFS(folder)) as recorder:
        store = SqliteStore(folder / "jobs.db")
        await accept(store, a_job())
        before = _syncs(recorder)
        with held_up(store):
            await _started(store)
            writes = [asyncio.ensure_future(store.insert([a_job()])) for _ in range(50)]
            await _started(store)
        await asyncio.gather(*writes)
        assert _syncs(recorder) - before <= 3
        await store.close()


async def test_after_a_failed_sync_each_caller_has_an_error_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is raised again and again would carry the stacks of all who were told before."""
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    assert store._writer is not None

    def failed(connection: apsw.Connection, batch: list[Any]) -> None:
        raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)

    monkeypatch.setattr(store._writer, "_transaction", failed)
    told = await asyncio.gather(*(store.insert([a_job()]) for _ in range(3)), return_exceptions=True)
    for _ in range(3):
        told += await asyncio.gather(store.insert([a_job()]), return_exceptions=True)
    errors = [error for error in told if isinstance(error, StoreFailed)]
    assert len({id(error) for error in errors}) == len(told) == 6
    assert {str(error) for error in errors} == {str(errors[0])} and "failed to sync" in str(errors[0])
    assert all(isinstance(error.__cause__, apsw.IOError) for error in errors)
    depths = [len(traceback.extract_tb(error.__traceback__)) for error in errors]
    assert len(set(depths[3:])) == 1
    await store.close()


async def test_a_cancelled_await_is_not_a_cancelled_write(folder: Path) -> None:
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    with held_up(store):
        await _started(store)
        given_up, other = a_job(), a_job()
        write = asyncio.ensure_future(store.insert([given_up]))
        kept = asyncio.ensure_future(store.insert([other]))
        await _started(store)
        write.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await write
        assert write.cancelled()
    await kept
    assert [job.id for job in await store.get([given_up.id, other.id])] == [given_up.id, other.id]
    await store.close()


async def test_a_caller_whose_loop_is_gone_does_not_stop_the_writer(folder: Path) -> None:
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    lost = a_job()

    async def ask_and_leave() -> None:
        task = asyncio.ensure_future(store.insert([lost]))
        await _started(store)
        task.cancel()

    with held_up(store):
        await _started(store)
        await asyncio.to_thread(lambda: asyncio.run(ask_and_leave()))
    await accept(store, a_job())
    assert [job.id for job in await store.get([lost.id])] == [lost.id]
    await store.close()


async def test_callers_who_were_slowed_down_are_told_of_the_closing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be handed in behind the last one, where nobody would ever answer it."""
    store = SqliteStore(folder / "jobs.db")
    await accept(store, a_job())
    with held_up(store) as busy:
        await _started(store)
        assert await asyncio.to_thread(busy.wait, 60)
        taken = [asyncio.ensure_future(store.insert([a_job()])) for _ in range(3)]
        await _started(store)
        monkeypatch.setattr(writer, "WAITING", 0)
        slowed = [asyncio.ensure_future(work) for work in (store.insert([a_job()]), store.heartbeat([]))]
        await _started(store)
        closing = asyncio.ensure_future(store.close())
        await _started(store)
    async with asyncio.timeout(20):
        await closing
        assert [inserted.duplicate for (inserted,) in await asyncio.gather(*taken)] == [False] * 3
        for told in await asyncio.gather(*slowed, return_exceptions=True):
            assert isinstance(told, StoreUnavailable)


# ---- syncing


def _syncs(recorder: RecordingVFS) -> int:
    return sum(isinstance(entry, Synced) for entry in list(recorder.log.entries))


async def test_claims_and_heartbeats_are_not_synced_but_everything_else_is(folder: Path) -> None:
    with installed(RecordingVFS(folder)) as recorder:
        store = SqliteStore(folder / "jobs.db")
        await accept(store, *(a_job() for _ in range(9)))
        spent: dict[str, int] = {}

        async def during(name: str, work: Any) -> Any:
            before = _syncs(recorder)
            answer = await work
            spent[name] = _syncs(recorder) - before
            return answer

        jobs = await during("claim", take(store, slots=6))
        await during("heartbeat", store.heartbeat([Lease(job.id, job.token or "") for job in jobs]))
        await during("completion", store.apply([Commit((success(jobs[0]),))]))
        await during("completions", store.apply([Commit((success(job),)) for job in jobs[1:5]]))
        await during("burial", store.apply([Commit((burial(jobs[5]),))]))
        await during("document", store.apply([Commit(puts=(Put("effect", "x", b"intended"),))]))
        await during("second claim", take(store, slots=1))
        await during("synced claim", take(store, slots=1, synced=True))
        await during("insert", store.insert([a_job()]))
        await store.close()
    assert {name: bool(number) for name, number in spent.items()} == {
        "claim": False,
        "heartbeat": False,
        "completion": True,
        "completions": True,
        "burial": True,
        "document": True,
        "second claim": False,
        "synced claim": True,
        "insert": True,
    }
    assert spent["completions"] == spent["completion"]


@pytest.mark.parametrize("slots", [0, 10])
async def test_an_idle_claim_writes_nothing_and_waits_for_nobody(folder: Path, slots: int) -> None:
    with installed(RecordingVFS(folder)) as recorder:
        store = SqliteStore(folder / "jobs.db")
        await accept(store, a_job(), a_job(run_at=T0 + 100))
        assert len(await take(store, slots=1)) == 1
        if slots:
            assert await take(store, slots=slots) == []  # after one that got all it wanted, it does not look first
        with closing(raw(folder / "jobs.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            before = len(recorder.log.entries)
            for _ in range(5):
                assert await take(store, slots=slots) == []
            assert len(recorder.log.entries) == before
        await store.close()


class Readers(threading.Thread):
    """Somebody always reads, none of them for long: each begins before the one before it has ended."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self.over = threading.Event()

    def run(self) -> None:
        with closing(raw(self._path)) as one, closing(raw(self._path)) as other:
            for reader in itertools.cycle((one, other)):
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM routes").fetchall()
                waited = self.over.wait(0.02)
                last = other if reader is one else one
                if last.in_transaction:
                    last.execute("COMMIT")
                if waited:
                    return


@pytest.mark.parametrize(("limit", "stays_small"), [(100, True), (10**9, False)], ids=["guarded", "control"])
async def test_the_log_stays_small_while_somebody_always_reads(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: int, stays_small: bool
) -> None:
    """Who only writes back what nobody reads never comes to its end."""
    monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 25)
    monkeypatch.setattr(writer, "LOG_PAGES", limit)
    store, log = SqliteStore(folder / "jobs.db"), folder / "jobs.db-wal"
    await store.open()
    readers, largest = Readers(folder / "jobs.db"), 0
    readers.start()
    for _ in range(150):
        await accept(store, *(a_job(payload=f'"{"x" * 2_000}"') for _ in range(20)))
        largest = max(largest, log.stat().st_size // 4096)
    readers.over.set()
    readers.join(20)
    await store.close()
    assert (largest <= 500) is stays_small, f"{largest} pages"


@pytest.mark.parametrize("record", ['{"run":1,"outcome":7}', '{"run":1', "[]"])
async def test_an_attempt_that_cannot_be_read_costs_neither_its_job_nor_others(sqlite: Openers, record: str) -> None:
    """As after a newer version has written it."""
    store = await sqlite.open()
    await accept(store, *(a_job() for _ in range(3)))
    jobs = await take(store)
    await store.apply([Commit((retry(job),)) for job in jobs])
    with closing(raw(path_of(sqlite))) as other:
        other.execute(
            "UPDATE moves SET attempt = ? WHERE job = (SELECT seq FROM jobs WHERE id = ?)", (record, jobs[1].id)
        )
    again = await take(store, now=T0 + 1000)
    assert [job.id for job in again] == [job.id for job in jobs]
    assert [len(job.history) for job in again] == [1, 1, 1]
    (attempt,) = again[1].history
    assert (attempt.run, attempt.outcome) == (1, "failed")
    assert attempt.decision is not None and "cannot be read" in attempt.decision
    assert again[0].history[0].failure is not None
    await store.apply([Commit((burial(job),)) for job in again])
    assert [job.state for job in await store.get([job.id for job in jobs])] == [State.dead] * 3


@pytest.mark.parametrize("standing", [False, True])
async def test_what_was_claimed_and_cannot_be_read_is_given_back(
    sqlite: Openers, monkeypatch: pytest.MonkeyPatch, standing: bool
) -> None:
    """It would be running with nobody behind it, and buried where a lost worker means that."""
    store = await sqlite.open()
    assert isinstance(store, SqliteStore)

    def unreadable(*_: Any) -> list[Job]:
        raise ValueError("damaged")

    def wish() -> Any:
        return store.claim_next(Wanted(5), "w1", lambda: T0 + 1, store._waiters.mark, 30.0, asyncio.Event())

    jobs = [a_job(key="a", id="a" * 32), a_job()]
    with monkeypatch.context() as broken:
        broken.setattr("redrive.stores.sqlite.claims.make_jobs", unreadable)
        if standing:
            waiting = asyncio.create_task(wish())
            await eventually(lambda: bool(store._standing))
            await accept(store, *jobs)
            claiming = waiting
        else:
            await accept(store, *jobs)
            claiming = asyncio.create_task(take(store))
        with pytest.raises(StoreError, match=r"2 of 2 due jobs .* cannot be read \(damaged\).*redrive doctor"):
            await asyncio.wait_for(claiming, 30.0)
    left = await store.get([job.id for job in jobs])
    assert [(job.state, job.run, job.token, job.crashes) for job in left] == [(State.waiting, 0, None, 0)] * 2
    assert await store.count(Filter(), by=("state",)) == {("waiting",): 2}
    assert await store.repair(T0 + 1) == []
    assert {job.id for job in await take(store)} == {job.id for job in jobs}


DAMAGES = {
    "not text": "payload = x'00ff'",
    "half a letter": "payload = CAST(x'7b22c3227d' AS TEXT)",
    "a word for a number": "allowed = 'many'",
    "half a letter in its key": "key = CAST(x'c3' AS TEXT)",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
@pytest.mark.parametrize("standing", [False, True])
async def test_a_record_that_cannot_be_read_keeps_no_other_from_running(
    sqlite: Openers, caplog: pytest.LogCaptureFixture, damage: str, standing: bool
) -> None:
    store = await sqlite.open()
    assert isinstance(store, SqliteStore)
    jobs = [a_job(run_at=T0 + 1) for _ in range(3)]
    await accept(store, *jobs)
    with closing(raw(path_of(sqlite))) as other:
        other.execute(f"UPDATE jobs SET {damage} WHERE id = ?", (jobs[1].id,))
    if standing:
        wish = store.claim_next(Wanted(5), "w1", lambda: T0 + 1, store._waiters.mark, 30.0, asyncio.Event())
        waiting = asyncio.create_task(wish)
        await eventually(lambda: bool(store._standing))
        await accept(store, later := a_job())
        claimed = [later.id, *await _claimed(waiting)]
    else:
        claimed = await _claimed(take(store, now=T0 + 1))
    claimed += ids_of(await take(store, now=T0 + 2))
    assert {jobs[0].id, jobs[2].id} <= set(claimed)
    assert jobs[1].id not in claimed
    assert jobs[1].id in caplog.text and "cannot be read" in caplog.text and "redrive doctor --full" in caplog.text
    assert await store.count(Filter(states=(State.waiting,)), by=("state",)) == {("waiting",): 1}
    with closing(raw(path_of(sqlite))) as other:
        other.execute("UPDATE jobs SET payload = '{}', allowed = 3, key = NULL WHERE id = ?", (jobs[1].id,))
    assert ids_of(await take(store, now=T0 + 100)) == [jobs[1].id]


async def test_a_lost_job_that_cannot_be_read_keeps_no_other_from_being_found(sqlite: Openers) -> None:
    store, observer = await sqlite.open(), await sqlite.observer()
    await accept(store, *(a_job() for _ in range(3)))
    lost = await take(store)
    with closing(raw(path_of(sqlite))) as other:
        other.execute(f"UPDATE jobs SET {DAMAGES['half a letter']} WHERE id = ?", (lost[1].id,))
    await observer.look()
    assert ids_of(await observer.look(100.0)) == ids_of(lost)


async def _claimed(claiming: Any) -> list[str]:
    """Told where a part could be read in the writer's thread, refused where only whoever claims it could see."""
    try:
        found = await asyncio.wait_for(claiming, 30.0)
    except StoreError:
        return []
    return ids_of(found.jobs if hasattr(found, "jobs") else found)


def ids_of(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


# ---- privacy


async def test_erased_words_are_in_none_of_the_files(folder: Path) -> None:
    store = SqliteStore(folder / "jobs.db")
    jobs = [a_job(payload=f'{{"name":"canary-{number}"}}', session_id="canary-session") for number in range(30)]
    large = a_job(payload='{"pad":"%s canary-large"}' % ("x" * 20_000))
    await accept(store, *jobs, large)
    for _ in range(2):
        for job in await take(store, now=T0 + 10):
            attempt = lifecycle.released(job, T0 + 2, _canary_attempt(job))
            await store.apply([Commit((attempt,))])
    running = await take(store, now=T0 + 10)
    await store.apply([Commit((success(job, result='"canary-result"'),)) for job in running])
    assert any(count_in_files(folder, "canary").values())
    assert await store.erase([job.id for job in running]) == 31
    found = count_in_files(folder, "canary")
    await store.close()
    assert set(found.values()) == {0}, found
    assert b"canary" not in (folder / "jobs.db").read_bytes()


@contextmanager
def _somebody_reads(path: Path) -> Iterator[apsw.Connection]:
    with closing(raw(path)) as reader:
        reader.execute("BEGIN; SELECT count(*) FROM jobs").fetchall()
        yield reader


async def _ended(store: Store, secret: str) -> Job:
    await accept(store, a_job(payload=f'{{"name":"{secret}"}}'))
    (job,) = await take(store)
    await store.apply([Commit((success(job),))])
    return job


async def test_others_write_while_what_was_erased_waits_for_a_reader_to_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, loop, tried = SqliteStore(folder / "jobs.db"), asyncio.get_running_loop(), asyncio.Event()
    job = await _ended(store, "canary")
    really = upkeep.empty_log

    def empty_log(connection: apsw.Connection) -> Any:
        loop.call_soon_threadsafe(tried.set)
        return really(connection)

    monkeypatch.setattr(upkeep, "empty_log", empty_log)
    with _somebody_reads(folder / "jobs.db"):
        erasing = asyncio.create_task(store.erase([job.id]))
        await tried.wait()
        await accept(store, a_job())
        assert not erasing.done()
    assert await erasing == 1
    found = count_in_files(folder, "canary")
    await store.close()
    assert not any(found.values()), found
    assert "can still be read" not in caplog.text


async def test_erased_words_that_somebody_keeps_in_the_log_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.store.EMPTYING", 2, raising=False)
    store = SqliteStore(folder / "jobs.db")
    job = await _ended(store, "canary")
    with _somebody_reads(folder / "jobs.db"):
        assert await store.erase([job.id]) == 1
        (said,) = [record for record in caplog.records if "can still be read" in record.getMessage()]
        assert said.levelname == "WARNING"
        assert count_in_files(folder, "canary")["jobs.db-wal"]
    caplog.clear()
    assert await store.erase([job.id]) == 1
    assert not any(count_in_files(folder, "canary").values())
    await store.close()
    assert "can still be read" not in caplog.text


def _canary_attempt(job: Job) -> Attempt:
    return Attempt(job.run, "released", job.started_at, T0 + 2, job.worker, decision="canary-decision")


# ---- several readers and writers of one moment


@pytest.mark.parametrize("moment", ["FROM jobs WHERE", "FROM moves"])
async def test_the_feed_leaves_nothing_out_while_others_commit(sqlite: Openers, moment: str) -> None:
    writer = await sqlite.open()
    await accept(writer, a_job())
    (old,) = await take(writer)
    loop = asyncio.get_running_loop()
    pending = [True]
    new = a_job("another queue")

    async def commit_meanwhile() -> None:
        await accept(writer, new)
        (running,) = await take(writer, now=T0 + 5)
        await writer.apply([Commit((success(running),))])
        await writer.apply([Commit((success(old),))])

    def between(sql: str, _: Any) -> None:
        if pending and armed and moment in sql:
            pending.clear()
            asyncio.run_coroutine_threadsafe(commit_meanwhile(), loop).result(60)

    armed: list[bool] = []
    with traced(between):
        reader = await sqlite.open()
        cursor = (await reader.events(None))[0].cursor
        armed.append(True)
        told: list[tuple[str, str]] = []
        for _ in range(10):
            last = not pending
            events = await reader.events(cursor)
            if last and not events:
                break
            told += [(event.job_id, event.move) for event in events]
            cursor = events[-1].cursor if events else cursor
    assert not pending, "nothing was committed in between"
    assert {(new.id, "enqueued"), (new.id, "succeeded"), (old.id, "succeeded")} <= set(told)


def test_what_two_have_collected_is_added_up_without_touching_theirs() -> None:
    """Where one of several callers spoils a transaction for the others, theirs is written anew."""
    memory, routes = apsw.Connection(":memory:"), RouteCache()
    schema.migrate(memory, ":memory:")
    running = a_job(state=State.running, token="t", run=1)
    make = routes.make([(running.queue, running.task, running.agent)])
    assert make is not None
    make(memory)
    collected = [Rollup(), Rollup()]
    for number, rollup in enumerate(collected, start=1):
        for at in range(number):
            rollup.add_move(burial(running, T0 + at))
    for _ in range(2):
        together = Rollup()
        for rollup in collected:
            together.merge(rollup)
        together.write(memory, routes)
    (group,) = read_groups(memory, routes, 0.0, None)
    assert (group.buried, group.first_at, group.last_at) == (2 * (1 + 2), T0, T0 + 1)
