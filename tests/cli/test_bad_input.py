"""Bad input: exit status 2, one line that says what is wrong, one that says what to do, nothing changed."""

import json
import os
import sqlite3
from pathlib import Path

import pytest

import redrive
from tests.cli.shell import Shell, refused

READING = [
    ("jobs",), ("status", "abcdef"), ("cancel", "abcdef"), ("dead", "list"), ("dead", "show", "abcdef"),
    ("dead", "redrive", "abcdef"), ("dead", "discard", "abcdef"), ("dead", "restore", "abcdef"),
    ("dead", "purge", "--all", "--yes"), ("queues",), ("queues", "pause", "q"), ("queues", "resume", "q"), ("stats",),
    ("token",), ("token", "--rotate"),
    ("doctor",), ("doctor", "--fix"), ("backup", "copy.db"), ("erase", "abcdef", "--yes"),
]  # fmt: skip


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_database_that_does_not_exist_is_not_made(shell: Shell, words: tuple[str, ...]) -> None:
    before = sorted(shell.folder.rglob("*"))
    refused(shell.here(*words), "there is no database at", str(shell.database))
    assert sorted(shell.folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("redrives", "show", "xyz"), "redrive: there is no redrive 'xyz'", "`redrive redrives list` lists them"),
        (("dead", "undo", "xyz"), "redrive: there is no act 'xyz'", "`redrive dead acts` lists them"),
        (("dead", "show", "a"), "redrive: no job 'a': a part of an id needs at least 3 characters", None),
        (("dead", "note", "abcdef"), "redrive: TEXT is missing beside 'abcdef'", "redrive dead note ID TEXT"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_not_there_is_said_once_with_where_to_look(
    shell: Shell, words: tuple[str, ...], said: str, hint: str | None
) -> None:
    shell.enqueue("greet", {"name": "x"})
    done = shell.here(*words)
    refused(done)
    assert done.err.splitlines()[0] == said
    assert hint is None or done.err.splitlines()[1] == f"  hint: {hint}"


def test_only_what_would_change_something_says_that_nothing_was_changed(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    for words in (("jobs", "--limit", "0"), ("dead", "list", "--limit", "0"), ("dead", "acts", "--limit", "0")):
        assert "changed" not in shell.here(*words).err
    for words in (("enqueue", "greet", "{}", "--max-attempts", "-1"), ("queues", "pause", "")):
        assert "nothing was changed" in shell.here(*words).err


def test_a_part_that_several_ids_have_is_not_enough(shell: Shell) -> None:
    with redrive.Redrive(shell.database).blocking() as q:
        ids = q.enqueue_many("greet", [{"name": str(n)} for n in range(300)]).ids
    parts = [id[at : at + 3] for id in ids for at in range(len(id) - 2)]
    part = max(set(parts), key=parts.count)
    refused(shell.here("status", part), f"{part!r} is part of several ids; give more of it")


def test_the_default_database_is_not_made_either(shell: Shell) -> None:
    done = shell.run("jobs", REDRIVE_URL="")
    refused(done, "there is no database at")


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[1]", "a list"),
        ('"text"', "a string"),
        ("3", "a number"),
        ("null", "null"),
        ('{"a": NaN}', "NaN"),
        ('{"a": Infinity}', "Infinity"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "payload"),
        ('{"a":' * 70 + "1" + "}" * 70, "64"),
        (json.dumps({"a": "x" * (2 * 1024 * 1024)}), "payload"),
        ("@nosuch.json", "nosuch.json"),
        ("@.", "cannot read"),
        ("@latin.json", "not JSON"),
    ],
    ids=["torn", "empty", "list", "string", "number", "null", "nan", "infinity", "bomb", "deep", "large",
         "missing file", "folder", "not utf-8"],
)  # fmt: skip
def test_a_payload_that_cannot_be_taken(shell: Shell, payload: str, word: str) -> None:
    (shell.folder / "latin.json").write_bytes('{"a": "é"}'.encode("latin-1"))
    refused(shell.here("enqueue", "greet", payload), word)
    assert not shell.database.exists() or shell.here("jobs", "--json").json["jobs"] == []


@pytest.mark.behaviour("T-19d")
@pytest.mark.parametrize(
    "payload", ['{"name": "a", "name": "b"}', '{"x": {"name": 1, "\\u006eame": 1}}', "@twice.json"]
)
def test_a_payload_with_a_key_twice_is_refused(shell: Shell, payload: str) -> None:
    """One of the two values would be dropped without a word."""
    (shell.folder / "twice.json").write_text('{"name": 1, "name": 2}', encoding="utf-8")
    done = shell.here("enqueue", "greet", payload)
    refused(done, "payload", "name", "twice")
    assert not shell.database.exists() or shell.here("jobs", "--json").json["jobs"] == []


def test_a_pipe_that_never_ends_is_cut_off(shell: Shell) -> None:
    refused(shell.here("enqueue", "greet", "-", text=b" " * (5 * 1024 * 1024)), "larger than")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--nosuch", "1"), "--nosuch"),
        (("--priority", "urgent"), "priority"),
        (("--delay", "-1"), "--delay"),
        (("--delay", "soon"), "--delay"),
        (("--delay", "nan"), "delay"),
        (("--run-at", "tomorrow"), "run_at"),
        (("--run-at", "2031-05-17T03:00:00"), "naive"),
        (("--run-at", "2031-05-17T03:00:00Z", "--delay", "1"), "not both"),
        (("--max-attempts", "0"), "max_attempts"),
        (("--max-attempts", "many"), "--max-attempts"),
        (("--queue", "x" * 300), "queue"),
        (("--key", "k\nk"), "idempotency_key"),
        (("--session", "\x1b[31m"), "session_id"),
    ],
    ids=" ".join,
)
def test_options_that_cannot_be_taken(shell: Shell, options: tuple[str, ...], word: str) -> None:
    done = shell.here("enqueue", "greet", "{}", *options)
    refused(done, word)
    assert "\x1b" not in done.err
    assert not shell.database.exists() or shell.here("jobs", "--json").json["jobs"] == []


def test_a_url_the_delivery_policy_forbids(shell: Shell) -> None:
    request = {"method": "POST", "url": "http://169.254.169.254/latest/meta-data"}
    refused(shell.here("enqueue", "redrive.http", json.dumps(request)), "url")


def test_a_key_that_stands_for_another_payload(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"}, "--key", "k")
    refused(shell.here("enqueue", "greet", '{"name": "y"}', "--key", "k"), "idempotency_key", "'k'")


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("nosuch",), "nosuch"),
        (("dead", "nosuch"), "nosuch"),
        (("enqueue",), "TASK"),
        (("status",), "ID"),
        (("jobs", "--limit", "0"), "limit"),
        (("jobs", "--limit", "many"), "--limit"),
        (("jobs", "--state", "asleep"), "state"),
        (("dead", "list", "--lane", "nope"), "lane: 'nope' is not one of delayed, manual"),
        (("dead", "list", "--category", "nope"), "is not one of transient,"),
        (("dead", "list", "--because", "nope"), "is not one of attempts_exhausted,"),
        (("jobs", "--reason", "nope"), "is not one of direct,"),
        (("jobs", "--cursor", "elsewhere"), "cursor"),
        (("status", "nosuchjob"), "nosuchjob"),
        (("status", "a"), "'a'"),
        (("status", "'; DROP TABLE jobs"), "DROP TABLE"),
        (("dead", "purge"), "--all"),
        (("dead", "purge", "abc", "--all"), "one of them"),
        (("erase",), "--session"),
        (("erase", "abc", "--session", "s"), "one of them"),
        (("queues", "pause", "x" * 300), "queue"),
        (("worker",), "APP"),
        (("worker", "app:rd", "--processes", "0"), "--processes"),
        (("worker", "app:rd", "--concurrency", "0"), "--concurrency"),
        (("worker", "app:rd", "--grace", "-1"), "--grace"),
        (("worker", "app:rd", "--queues", ","), "--queues"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_commands_that_make_no_sense(shell: Shell, words: tuple[str, ...], word: str) -> None:
    shell.enqueue("greet", {"name": "x"})
    refused(shell.here(*words), word)


def test_a_part_of_several_ids(shell: Shell) -> None:
    ids = [shell.enqueue("greet", {"name": str(n)}) for n in range(2)]
    common = ids[0][:6]  # ids begin with the time
    assert ids[1].startswith(common)
    refused(shell.here("status", common), "several")


def test_a_move_the_lifecycle_does_not_have(shell: Shell) -> None:
    id = shell.enqueue("greet", {"name": "x"})
    for verb in ("redrive", "discard", "restore"):
        refused(shell.here("dead", verb, id), id[-8:], "waiting")
    refused(shell.here("dead", "purge", id, "--yes"), id[-8:], "waiting")
    assert shell.state(id) == "waiting"


@pytest.mark.parametrize(
    ("app", "word"),
    [
        ("app", "module:attribute"),
        ("app.py:rd", "module:attribute"),
        (":rd", "module:attribute"),
        ("nosuch:rd", "nosuch"),
        ("app:nosuch", "not a Redrive"),
        ("app:Path", "not a Redrive"),
        ("wrong:rd", "NameError"),
        ("torn:rd", "SyntaxError"),
        ("needy:rd", "no_such_library"),
    ],
)
def test_an_app_that_cannot_be_loaded(shell: Shell, app: str, word: str) -> None:
    (shell.folder / "wrong.py").write_text("rd = undefined\n", encoding="utf-8")
    (shell.folder / "torn.py").write_text("rd = (\n", encoding="utf-8")
    (shell.folder / "needy.py").write_text("import no_such_library\n", encoding="utf-8")
    refused(shell.run("worker", app), word)
    assert not shell.database.exists()


def test_a_url_against_an_app_that_names_its_own(shell: Shell) -> None:
    (shell.folder / "own.py").write_text('import redrive\nrd = redrive.Redrive("own.db")\n', encoding="utf-8")
    refused(shell.run("worker", "own:rd", "--url", "other.db"), "own.db")


def _foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.commit()
    connection.close()


def _newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.execute(f"PRAGMA application_id = {0x72647276}")
    connection.execute("CREATE TABLE jobs (x)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (_foreign, "something else"),
        (_newer, "schema 999"),
        (lambda path: path.write_text("not a database at all\n" * 100), "not a usable SQLite database"),
        (lambda path: path.mkdir(), "is a directory"),
    ],
    ids=["foreign", "newer", "text", "folder"],
)
@pytest.mark.parametrize("words", [("jobs",), ("enqueue", "greet"), ("worker", "app:rd", "--drain")], ids=" ".join)
def test_a_database_that_cannot_be_used(shell: Shell, make: object, word: str, words: tuple[str, ...]) -> None:
    assert callable(make)
    make(shell.database)
    refused(shell.run(*words), word)


def test_settings_that_cannot_be_used(shell: Shell) -> None:
    refused(shell.run("jobs", REDRIVE_CONCURRENCY="many"), "concurrency")
    refused(shell.run("jobs", "--url", "postgres://localhost/jobs"), "postgres")
    (shell.folder / "redrive.toml").write_text("colour = 'green'\n", encoding="utf-8")
    refused(shell.run("jobs"), "colour")
    (shell.folder / "redrive.toml").write_text("= torn", encoding="utf-8")
    refused(shell.run("jobs"), "redrive.toml")


@pytest.mark.parametrize(
    "words", [("status",), ("dead", "group"), ("dead", "list", "--group"), ("workflows",), ("inbox",), ("backup",)]
)
def test_bytes_that_are_no_text(shell: Shell, words: tuple[str, ...]) -> None:
    shell.enqueue("greet", {"name": "ada"})
    run = shell.fresh if words == ("status",) else shell.run
    refused(run(*words, os.fsdecode(b"\xff\xfe")), "not UTF-8")
