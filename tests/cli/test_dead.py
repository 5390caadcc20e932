"""Dead letters: list, show, redrive, discard, restore, purge."""

import os
import pty
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from tests.cli.shell import DEADLINE, Shell, refused


def test_a_dead_letter_goes_round_in_real_processes(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    listed = shell.fresh("dead", "list")
    assert listed.status == 0
    assert id[-8:] in listed.out and "RuntimeError: the mill is broken" in listed.out
    assert "the mill is broken" in shell.run("dead", "show", id[-8:]).out
    for verb, told in (("discard", "discarded\n"), ("restore", "it is dead\n"), ("redrive", "it is waiting\n")):
        done = shell.run("dead", verb, id[-8:], "--why", f"{verb} it")
        assert done.status == 0 and told in done.out
    with closing(sqlite3.connect(shell.database)) as connection:
        rows = connection.execute("SELECT move, who, why FROM moves WHERE who IS NOT NULL").fetchall()
    assert rows == [("discarded", "ada", "discard it"), ("restored", "ada", "restore it"),
                    ("redriven", "ada", "redrive it")]  # fmt: skip
    shell.drain()
    assert len(shell.job(id)["history"]) == 2


def test_filters_of_the_list(shell: Shell) -> None:
    (here,) = shell.dead_letters(1, "--queue", "here", "--session", "s")
    (there,) = shell.dead_letters(1, "--queue", "there")
    for filters, expected in (
        ((), [there, here]),
        (("--queue", "here"), [here]),
        (("--session", "s"), [here]),
        (("--because", "attempts_exhausted"), [there, here]),
        (("--lane", "delayed"), []),
    ):
        assert [job["id"] for job in shell.here("dead", "list", *filters, "--json").json["jobs"]] == expected


def test_purge_by_id(shell: Shell) -> None:
    kept, gone = shell.dead_letters(2)
    refused(shell.here("dead", "purge", gone[-8:]), "purge 1 dead letter")
    done = shell.here("dead", "purge", gone[-8:], gone, "--yes")
    assert done.status == 0 and "purged 1 dead letter" in done.out
    assert (shell.state(gone), shell.state(kept)) == ("purged", "dead")


def test_purge_finds_every_id_before_it_removes_one(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    refused(shell.here("dead", "purge", id, "nosuchjob", "--yes"), "nosuchjob")
    assert shell.state(id) == "dead"


def test_purge_by_queue_and_all(shell: Shell) -> None:
    shell.dead_letters(2, "--queue", "here")
    shell.dead_letters(1, "--queue", "there")
    refused(shell.here("dead", "purge", "--all"), "purge 3 dead letters")
    assert shell.here("dead", "purge", "--queue", "here", "--yes", "--json").json == {"purged": 2}
    assert shell.here("dead", "purge", "--all", "--yes", "--json").json == {"purged": 1}
    nothing = shell.here("dead", "purge", "--all")
    assert nothing.status == 0 and "nothing to purge" in nothing.out


@pytest.mark.parametrize(("typed", "state"), [("yes", "purged"), ("y", "dead")])
def test_purge_on_a_terminal_wants_yes_typed(shell: Shell, typed: str, state: str) -> None:
    (id,) = shell.dead_letters()
    ours, theirs = pty.openpty()
    os.write(ours, f"{typed}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "redrive", "dead", "purge", id],
        cwd=shell.folder, env=shell.environment, stdin=theirs, capture_output=True, text=True, timeout=DEADLINE,
        check=False,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert "This will purge 1 dead letter, for good." in done.stderr
    assert done.returncode == (0 if state == "purged" else 2)
    assert shell.state(id) == state


def test_show_of_a_job_that_is_not_dead_shows_it_and_says_so(shell: Shell) -> None:
    id = shell.enqueue("greet", {"name": "ada"})
    shown = shell.here("dead", "show", id)
    assert shown.status == 0 and '"ada"' in shown.out
    assert shown.err == f"job {id[-8:]} is not a dead letter: it is waiting\n"
    assert shell.here("dead", "show", id, "--json").json["state"] == "waiting"
