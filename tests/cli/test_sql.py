"""`redrive sql`: a read-only look by SQL, masked, and bounded in time and rows."""

import subprocess
import sys
from pathlib import Path

import pytest

from redrive.errors import InvalidInput
from tests.cli.shell import DEADLINE, Screen, Shell, refused, wait_until

SECRET = "hunter22"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.mark.behaviour("T-15c")
def test_sql_answers_while_a_worker_runs(shell: Shell) -> None:
    shell.enqueue("mark", {"folder": str(shell.folder), "until": str(shell.folder / "go")})
    worker = shell.start("worker", "app:rd")
    wait_until(lambda: bool(list(shell.folder.glob("started-*"))), "the job runs")
    done = shell.run("sql", "SELECT state, count(*) AS number FROM jobs GROUP BY state", "--json")
    assert done.status == 0, done.err
    assert done.json == {"columns": ["state", "number"], "rows": [["running", 1]], "more": False}
    (shell.folder / "go").touch()
    wait_until(lambda: "done" in shell.run("sql", "SELECT state FROM jobs").out, "the job is done")
    assert worker.poll() is None


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM jobs",
        "UPDATE jobs SET state = 'done'",
        "INSERT INTO docs (kind, key, value) VALUES ('a', 'b', 'c')",
        "WITH x AS (SELECT 1) DELETE FROM jobs",
        "DROP TABLE jobs",
        "PRAGMA query_only = 0",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA journal_mode = DELETE",
        "ATTACH 'other.db' AS other",
        "VACUUM INTO 'other.db'",
        "BEGIN IMMEDIATE",
        "SELECT 1; DELETE FROM jobs",
        "SELECT load_extension('x')",
        "SELECT * FROM nothing",
        "SELEC 1",
        "",
        "/* nothing */",
    ],
)
def test_sql_only_reads(shell: Shell, statement: str) -> None:
    id = shell.enqueue("greet", {"name": "x"})
    refused(shell.here("sql", statement), "sql")
    assert shell.state(id) == "waiting"
    assert not (shell.folder / "other.db").exists()


@pytest.mark.parametrize(
    "columns",
    ["payload", "payload ->> '$.password'", "payload ->> '$.password' AS password", "CAST(payload AS BLOB)", "*"],
)
def test_secrets_are_masked_as_in_lists(shell: Shell, columns: str) -> None:
    shell.enqueue("greet", {"name": "x", "password": SECRET, "header": f"Authorization: Bearer {SECRET}{SECRET}"})
    for form in ([], ["--json"]):
        done = shell.here("sql", f"SELECT {columns} FROM jobs", *form)
        assert done.status == 0 and SECRET not in done.out and "[redacted]" in done.out, done.out


def test_raw_shows_secrets_on_a_terminal_only(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x", "password": SECRET})
    refused(shell.here("sql", "SELECT payload FROM jobs", "--raw"), "--raw")
    screen = Screen()
    subprocess.run(
        [sys.executable, "-m", "redrive", "sql", "SELECT payload FROM jobs", "--raw"],
        cwd=shell.folder, env=shell.environment, stdout=screen.theirs, timeout=DEADLINE, check=True,
    )  # fmt: skip
    assert SECRET in screen.text()


def test_what_is_too_long_or_too_much_is_cut(shell: Shell) -> None:
    from redrive.stores.sqlite.doctor import query

    shell.enqueue("greet", {"name": "x"})
    with pytest.raises(InvalidInput, match="stopped after"):
        query(shell.database, ENDLESS, seconds=0.05)
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) SELECT i FROM n"
    whole = shell.here("sql", many.format(10_000), "--json").json
    cut = shell.here("sql", many.format(10_001), "--json").json
    assert (len(whole["rows"]), whole["more"], len(cut["rows"]), cut["more"]) == (10_000, False, 10_000, True)
    assert "there are more" in shell.here("sql", many.format(10_001)).err


def test_cells_are_shown_as_text_and_never_as_orders_to_a_terminal(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    done = shell.here("sql", "SELECT char(27) || '[2J' AS said, NULL AS empty, x'c3ff' AS bytes, 1.5 AS number")
    assert done.out.splitlines() == ["said     empty  bytes  number", "\\x1b[2J         c3ff   1.5"]
    assert shell.here("sql", "SELECT 1 WHERE 0").out == "No rows.\n"


def test_another_database_is_refused(shell: Shell) -> None:
    other = Path(shell.folder, "other.db")
    subprocess.run(
        [sys.executable, "-c", f"import sqlite3; sqlite3.connect({str(other)!r}).execute('CREATE TABLE a (b)')"],
        check=True, timeout=DEADLINE,
    )  # fmt: skip
    refused(shell.here("sql", "SELECT * FROM a", "--url", str(other)), "something else")
    refused(shell.here("sql", "SELECT 1", "--url", str(shell.folder / "none.db")), "there is no database")
