"""Makes and checks the schema: numbered steps that survive a kill, and triggers generated from the lifecycle."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import apsw

from redrive.core.job import State
from redrive.core.lifecycle import legal_pairs, sources
from redrive.errors import StoreRefused

APPLICATION_ID = 0x72647276  # "rdrv"
_SCRIPTS: Final = Path(__file__).with_name("sql")
"""Read by path: importlib.resources would import zipfile, tempfile and every compression library at the first open."""


@cache
def read_steps() -> tuple[str, ...]:
    """Read the SQL scripts, one per schema number, in order."""
    return tuple(script.read_text(encoding="utf-8") for script in sorted(_SCRIPTS.glob("*.sql")))


def read_schema_number(connection: apsw.Connection) -> int:
    return int(connection.pragma("user_version"))


def legal_before(to: State) -> str:
    """Write the lifecycle as a condition: the job is in a state from which it may move there.

    Our own writer puts it into every statement that moves a job and runs without triggers, which would cost as much as
    the rest of the statement. The triggers are for other programs that open the file.
    """
    return "jobs.state IN (" + ", ".join(f"'{source}'" for source in sources(to)) + ")"


def make_triggers() -> str:
    """Write the triggers that refuse illegal moves by other programs. They are made anew at every migration."""
    legal = "\n".join(f"WHEN '{source}' THEN NEW.state IN ({_targets(source)})" for source in State if _targets(source))
    gone = ", ".join(f"{s} = {s} - (OLD.state = '{s}')" for s in State)
    return f"""
    DROP TRIGGER IF EXISTS jobs_legal;
    CREATE TRIGGER jobs_legal AFTER UPDATE OF state ON jobs
    WHEN OLD.state <> NEW.state AND NOT (CASE OLD.state {legal} ELSE false END)
    OR (NEW.state = 'running') <> (NEW.token IS NOT NULL)
    OR NEW.state IN ('dead', 'held') AND NEW.because IS NULL
    OR NEW.state = 'dead' AND (NEW.lane IS NULL OR NEW.recommendation IS NULL)
    BEGIN SELECT RAISE(ABORT, 'illegal move'); END;
    DROP TRIGGER IF EXISTS jobs_kept;
    CREATE TRIGGER jobs_kept BEFORE DELETE ON jobs
    WHEN OLD.payload IS NOT NULL OR OLD.state NOT IN ('done', 'discarded', 'purged')
    BEGIN SELECT RAISE(ABORT, 'only what ended and was emptied may be forgotten'); END;
    DROP TRIGGER IF EXISTS jobs_forgotten;
    CREATE TRIGGER jobs_forgotten AFTER DELETE ON jobs
    BEGIN
        UPDATE routes SET {gone}, forgotten = forgotten + 1 WHERE id = OLD.route;
        DELETE FROM moves WHERE job = OLD.seq;
    END;
    """


def _targets(source: State) -> str:
    return ", ".join(f"'{to}'" for start, to in legal_pairs() if start == source)


def make_recount() -> str:
    """Write the statement that makes the counters anew from the records, by one look at all of them."""
    sums = ", ".join(f"sum(state = '{s}') AS {s}" for s in State)
    sets = ", ".join(f"{s} = ifnull(counted.{s}, 0)" for s in State)
    return (
        f"UPDATE routes SET {sets} FROM routes AS every LEFT JOIN (SELECT route, {sums} FROM jobs GROUP BY route)"
        " AS counted ON counted.route = every.id WHERE routes.id = every.id"
    )


def check_ours(connection: apsw.Connection, path: str) -> int:
    """Return the file's schema number; refuses files of other programs or newer versions."""
    connection.execute("BEGIN")  # one snapshot: another process may be creating the file this moment
    try:
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
        application = connection.pragma("application_id")
        number = read_schema_number(connection)
    finally:
        connection.execute("COMMIT")
    if application != APPLICATION_ID and (application or number or tables):
        raise StoreRefused(f"{path} is a SQLite database of something else; choose another file for redrive")
    newest = len(read_steps())
    if number > newest:
        raise StoreRefused(
            f"{path} has schema {number}, this redrive knows {newest}: upgrade redrive, the way it was installed"
        )
    return number


def migrate(connection: apsw.Connection, path: str) -> int:
    """Bring the file to the newest schema: a new one at once, an older one step by step.

    Each step is one transaction, so a kill leaves what was before it.
    """
    scripts = list(enumerate(read_steps(), start=1))
    for stage in [scripts] if check_ours(connection, path) == 0 else [[script] for script in scripts]:
        _take(connection, path, stage)
    return check_ours(connection, path)


def _take(connection: apsw.Connection, path: str, stage: list[tuple[int, str]]) -> None:
    """Take these steps, as far as no other process has taken them."""
    last, _ = stage[-1]
    if check_ours(connection, path) >= last:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        known = read_schema_number(connection)
        for script in [script for number, script in stage if number > known]:
            connection.execute(script)
        if known < last:
            connection.execute(make_triggers())
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", last)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
