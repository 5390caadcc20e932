"""doctor and backup."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from redrive.stores.sqlite import doctor
from tests.cli.shell import Done, Shell, refused


def wrong(done: Done) -> dict[str, str]:
    """What the doctor found wrong, by name."""
    assert done.status == 1, (done.out, done.err)
    assert done.json["ok"] is False
    return {check["name"]: check["said"] for check in done.json["checks"] if not check["ok"]}


def execute(database: Path, *statements: str) -> None:
    connection = sqlite3.connect(database)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@contextmanager
def somebody_else(path: Path) -> Iterator[None]:
    """Whoever runs the tests may not read or write the file: root is nobody for a while."""
    path.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_file_that_may_not_be_read_is_told_as_such_with_what_to_do(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory() as folder, monkeypatch.context() as patched:
        patched.chdir(folder)
        path = Path(folder, "jobs.db")
        assert shell.here("--url", str(path), "enqueue", "greet").status == 0
        Path(folder).chmod(0o777)
        with somebody_else(path):
            told = shell.here("--url", str(path), "jobs")
            seen = shell.here("--url", str(path), "doctor", "--json")
    refused(told, f"permission denied: {path} (mode 0000, owner ", "may not be read and written: chmod 600")
    assert "backup" not in seen.out and f"permission denied: {path}" in wrong(seen)["database"]
    (hint,) = [check["hint"] for check in seen.json["checks"] if check["name"] == "database"]
    assert hint.startswith(f"chmod 600 {path} as ")


def test_a_directory_is_called_one(shell: Shell, tmp_path: Path) -> None:
    refused(shell.here("--url", str(tmp_path), "jobs"), f"{tmp_path} is a directory: name a file in it")
    assert wrong(shell.here("--url", str(tmp_path), "doctor", "--json")) == {"database": f"{tmp_path} is a directory"}


def test_the_doctor_finds_nothing_wrong_with_a_good_database(shell: Shell) -> None:
    shell.dead_letters()
    shell.enqueue("greet", {"name": "x"})
    done = shell.run("doctor")
    assert done.status == 0, done.out
    names = ["sqlite", "file mode", "filesystem", "log", "disk", "schema", "integrity", "counters", "sums", "spool",
             "processes"]  # fmt: skip
    assert [line[7:18].strip() for line in done.out.splitlines()] == names
    assert all(line.startswith("ok") for line in done.out.splitlines())
    full = shell.run("doctor", "--full", "--json")
    assert full.status == 0 and full.json["ok"] is True
    assert "integrity_check" in full.out


@pytest.mark.behaviour("C45")
def test_the_doctor_finds_a_damaged_page(shell: Shell) -> None:
    for n in range(3):
        shell.enqueue("greet", {"name": "x" * 200, "n": n})
    execute(shell.database, "PRAGMA wal_checkpoint(TRUNCATE)")
    size = shell.database.stat().st_size
    with shell.database.open("r+b") as file:
        for page in range(1, size // 4096):
            file.seek(page * 4096 + 8)
            file.write(b"\xff" * 200)
    done = shell.run("doctor", "--json")
    assert wrong(done).keys() & {"integrity", "database"}
    assert "Traceback" not in done.err


HALF_A_LETTER = "CAST(x'7b22c3227d' AS TEXT)"
NOT_JSON = """'{"name": "x'"""


def test_the_doctor_finds_records_that_no_worker_could_read(shell: Shell) -> None:
    ids = [shell.enqueue("greet", {"name": "x"}) for _ in range(3)]
    execute(shell.database, f"UPDATE jobs SET payload = {HALF_A_LETTER} WHERE id = '{ids[1]}'")
    assert shell.run("doctor", "--json").status == 0
    said = wrong(shell.run("doctor", "--full", "--json"))["records"]
    assert said.startswith(f"1 cannot be read: {ids[1]}: 'utf-8' codec can't decode byte 0xc3")
    assert shell.run("cancel", ids[1]).status == 0
    assert shell.run("doctor", "--full", "--json").json["ok"] is True


@pytest.mark.parametrize(("damage", "left"), [(HALF_A_LETTER, '{"\ufffd"}'), (NOT_JSON, '{"name": "x')])
def test_a_damaged_payload_is_shown_as_it_stands(shell: Shell, damage: str, left: str) -> None:
    ids = [shell.enqueue("greet", {"name": "x"}) for _ in range(2)]
    execute(shell.database, f"UPDATE jobs SET payload = {damage} WHERE id = '{ids[0]}'")
    assert {job["id"]: job["payload"] for job in shell.run("jobs", "--json").json["jobs"]}[ids[0]] == left
    assert shell.run("status", ids[0], "--json").json["payload"] == left
    assert "payload\n  " in shell.run("status", ids[0]).out
    assert shell.run("jobs").out.count("waiting") == 2


def test_the_doctor_finds_that_it_is_no_database_at_all(shell: Shell) -> None:
    shell.database.write_bytes(b"this is a text file, and quite a long one\n" * 100)
    shell.database.chmod(0o600)
    before = shell.database.read_bytes()
    assert "not a database" in wrong(shell.run("doctor", "--fix", "--json"))["database"]
    assert shell.database.read_bytes() == before


def test_the_doctor_finds_a_database_of_something_else(shell: Shell) -> None:
    execute(shell.database, "CREATE TABLE songs (title TEXT)")
    shell.database.chmod(0o600)
    before = shell.database.read_bytes()
    assert wrong(shell.run("doctor", "--fix", "--json")) == {"schema": "this is not a database of redrive"}
    assert shell.database.read_bytes() == before


def test_the_doctor_finds_a_newer_schema(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    execute(shell.database, "PRAGMA user_version = 999")
    assert "schema 999 is newer" in wrong(shell.run("doctor", "--fix", "--json"))["schema"]
    with closing(sqlite3.connect(shell.database)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (999,)


def test_the_doctor_counts_and_fixes_only_when_asked(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    execute(shell.database, "UPDATE routes SET waiting = 41")
    for _ in range(2):
        assert "counters of 1 of 1 routes" in wrong(shell.here("doctor", "--json"))["counters"]
    fixed = shell.here("doctor", "--fix")
    assert fixed.status == 0 and fixed.out.startswith("fixed  counters of 1 routes")
    assert shell.here("doctor").status == 0
    assert shell.here("stats", "--json").json["accepted"] == 1


def test_the_doctor_adds_up_the_days_only_when_asked(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    execute(shell.database, "INSERT INTO days (day, route, move, number) VALUES (1, 1, 'enqueued', 1)")
    for _ in range(2):
        assert wrong(shell.here("doctor", "--json")) == {"sums": "1 day with sums that differ from the hours"}
    fixed = shell.here("doctor", "--fix")
    assert fixed.status == 0 and fixed.out.startswith("fixed  sums of 1 day were wrong")
    assert shell.here("doctor").status == 0


def test_the_doctor_finds_a_file_others_can_read(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    shell.database.chmod(0o644)
    done = shell.here("doctor")
    assert done.status == 1 and f"chmod 600 {shell.database}" in done.out


def test_the_doctor_looks_into_the_spool(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    spool = shell.folder / "jobs.db-spool"
    spool.mkdir()
    (spool / "1.jsonl").write_text('{"job": {}}\n', encoding="utf-8")
    assert "1 job" in wrong(shell.here("doctor", "--json"))["spool"]
    (spool / "1.jsonl").unlink()
    (spool / "1.unreadable").write_text("torn\n", encoding="utf-8")
    assert "unreadable" in wrong(shell.here("doctor", "--json"))["spool"]


def test_the_doctor_looks_at_log_and_disk(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.enqueue("greet", {"name": "x"})
    monkeypatch.setattr(doctor, "LEAST_FREE", 1 << 62)
    monkeypatch.setattr(doctor, "WAL_LIMIT", -1)
    monkeypatch.setattr(doctor, "find_filesystem", lambda folder: "nfs4")
    assert wrong(shell.here("doctor", "--json")).keys() == {"log", "disk", "filesystem"}


@pytest.mark.parametrize(
    ("version", "ok"),
    [("3.51.3", True), ("3.54.1", True), ("4.0.0", True), ("3.51.2", False), ("3.50.7", True), ("3.50.6", False),
     ("3.44.6", True), ("3.44.5", False), ("3.45.9", False)],
)  # fmt: skip
def test_the_doctor_knows_which_sqlite_can_corrupt_a_log(version: str, ok: bool) -> None:
    assert doctor.check_library(version).ok is ok


@pytest.mark.behaviour("C45")
def test_a_backup_is_a_whole_database(shell: Shell) -> None:
    (dead,) = shell.dead_letters()
    waiting = shell.enqueue("greet", {"name": "x"})
    done = shell.fresh("backup", "copy.db", "--json")
    assert done.status == 0, done.err
    copy = shell.folder / "copy.db"
    assert done.json == {"target": "copy.db", "bytes": copy.stat().st_size}
    assert copy.stat().st_mode & 0o777 == 0o600
    copied = {job["id"]: job["state"] for job in shell.here("jobs", "--url", "copy.db", "--json").json["jobs"]}
    assert copied == {dead: "dead", waiting: "waiting"}
    assert shell.here("doctor", "--url", "copy.db").status == 0
    copy.replace(shell.database)
    for rest in shell.folder.glob("jobs.db-*"):
        if rest.is_file():
            rest.unlink()
    shell.drain()
    assert (shell.state(dead), shell.state(waiting)) == ("dead", "done")


@pytest.mark.parametrize("target", ["app.py", "no/such/folder/copy.db"])
def test_a_backup_never_overwrites(shell: Shell, target: str) -> None:
    shell.enqueue("greet", {"name": "x"})
    before: Any = (shell.folder / "app.py").read_bytes()
    refused(shell.here("backup", target), "target")
    assert (shell.folder / "app.py").read_bytes() == before
