"""What people and programs get to see."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.shell import DEADLINE, Screen, Shell

SECRET = "hunter22"


def on_a_terminal(shell: Shell, *words: str, **environment: str) -> str:
    """What a command writes to a terminal."""
    assert shell.zygote is not None
    screen = Screen()
    variables = shell.environment | {"TERM": "xterm-256color", **environment}
    with open(os.devnull, "r+b") as nothing:
        files = [nothing.fileno(), screen.theirs, nothing.fileno()]
        status = shell.zygote.run_on(files, words, shell.folder, variables, DEADLINE)
    assert status == 0
    return screen.text()


def on_a_terminal_afresh(shell: Shell, *words: str) -> str:
    """The same by an interpreter of its own."""
    screen = Screen()
    subprocess.run(
        [sys.executable, "-m", "redrive", *words],
        cwd=shell.folder,
        env=shell.environment | {"TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL, stdout=screen.theirs, timeout=DEADLINE, check=True,
    )  # fmt: skip
    return screen.text()


def test_tables_are_drawn_on_a_terminal_and_plain_in_a_pipe(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    drawn = on_a_terminal_afresh(shell, "jobs")
    assert "\x1b[" in drawn and "─" in drawn and id[-8:] in drawn
    colourless = on_a_terminal(shell, "jobs", NO_COLOR="1")
    assert "\x1b[3" not in colourless and id[-8:] in colourless
    piped = shell.fresh("jobs").out
    header, row = piped.splitlines()
    assert header.split()[:3] == ["id", "state", "task"]
    assert row.split()[:3] == [id[-8:], "dead", "broken"]


def test_what_a_job_says_cannot_command_the_terminal(shell: Shell) -> None:
    id = shell.enqueue("greet", {"name": "\x1b]0;owned\x07[bold]"}, "--queue", "[red]q[/red]")
    for words in (("status", id), ("jobs",), ("queues",)):
        out = on_a_terminal(shell, *words, NO_COLOR="1")
        assert "\x07" not in out and "\x1b]0" not in out
        assert "[red]q[/red]" in out


CONTROLS = range(0x7F, 0xA0)
"""DEL and C1: U+009B begins a command as ESC [ does."""
REORDERING = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
OBEYED = [chr(code) for code in (*CONTROLS, *REORDERING)]


@pytest.mark.behaviour("T-19c")
def test_json_holds_nothing_that_a_terminal_obeys(shell: Shell) -> None:
    text = "".join(OBEYED) + "é 漢 👍"
    id = shell.enqueue("broken", {"text": text})
    shell.drain()
    (shell.folder / "app.py").write_text(ECHO, encoding="utf-8")
    words = [
        ("status", id, "--json"), ("jobs", "--json"), ("dead", "show", id, "--json"), ("dead", "list", "--json"),
        ("dead", "export"), ("status", id), ("call", "app:rd", "echo", json.dumps({"text": text})),
        ("call", "app:rd", "echo", json.dumps({"text": text}), "--json"),
    ]  # fmt: skip
    said = {one: shell.run(*one).out for one in words}
    wrong = [(one, f"U+{ord(sign):04X}") for one, out in said.items() for sign in OBEYED if sign in out]
    assert wrong == []
    assert json.loads(said[words[0]])["payload"]["text"] == text, "it means the same"
    assert json.loads(said[words[4]])["payload"]["text"] == text
    assert "é 漢 👍" in said[words[0]]


ECHO = """
import redrive
rd = redrive.Redrive()

@rd.task
async def echo(text: str) -> str:
    return text
"""


@pytest.mark.parametrize("words", [("status",), ("dead", "show")], ids=" ".join)
def test_secrets_in_payloads_are_masked_unless_asked_for(shell: Shell, words: tuple[str, ...]) -> None:
    (id,) = shell.dead_letters()
    for form in ((), ("--json",)):
        masked = shell.here(*words, id, *form).out
        assert SECRET not in masked and "[redacted]" in masked
        assert SECRET in shell.here(*words, id, "--secrets", *form).out
    assert SECRET not in shell.here("jobs", "--json").out


def test_empty_listings_say_what_to_do_next(shell: Shell) -> None:
    assert shell.here("enqueue", "greet", "[]").status == 2  # refused, but the database is there now
    shell.run("worker", "app:rd", "--drain")
    for words, hint in (
        (("jobs",), "redrive enqueue"),
        (("dead", "list"), "nothing needs you"),
        (("queues",), "redrive enqueue"),
        (("stats",), "redrive enqueue"),
    ):
        done = shell.here(*words)
        assert done.status == 0 and hint in done.out


def test_json_everywhere(shell: Shell) -> None:
    """Each answer parses, wherever --json stands."""
    first, second, third = shell.dead_letters(3)
    fresh = shell.here("--json", "enqueue", "greet", '{"name": "x"}').json["id"]
    shapes: list[tuple[tuple[str, ...], Any]] = [
        (("status", first), "id"),
        (("jobs",), "jobs"),
        (("dead", "list"), "jobs"),
        (("dead", "show", first), "history"),
        (("dead", "redrive", first), "state"),
        (("dead", "discard", second), "state"),
        (("dead", "restore", second), "state"),
        (("dead", "purge", third, "--yes"), "purged"),
        (("queues",), 0),
        (("queues", "pause", "greet"), "paused"),
        (("queues", "resume", "greet"), "paused"),
        (("stats",), "totals"),
        (("health",), "issues"),
        (("doctor",), "checks"),
        (("backup", "copy.db"), "bytes"),
        (("cancel", fresh), "state"),
        (("erase", fresh, "--yes"), "erased"),
    ]
    for words, key in shapes:
        assert shell.here(*words, "--json").json[key] is not None, words
    assert shell.here("--json", "stats").json["accepted"] == 4
    assert shell.run("worker", "app:rd", "--drain", "--json").json["drained"] is True


def test_a_closed_pipe_is_no_accident(shell: Shell) -> None:
    for n in range(3):
        shell.enqueue("greet", {"name": str(n)})
    script = f"{sys.executable} -m redrive jobs --json | head -c 1"
    done = subprocess.run(
        ["sh", "-c", script], cwd=shell.folder, env=shell.environment, capture_output=True, text=True,
        timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("{", "")


@pytest.mark.parametrize(
    ("words", "status"), [(("jobs",), 0), (("jobs", "--json"), 0), (("stats",), 0), (("health",), 1)], ids=str
)
def test_a_reader_that_is_gone_leaves_the_exit_status_as_it_is(
    shell: Shell, words: tuple[str, ...], status: int
) -> None:
    shell.dead_letters(3)
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "redrive", *words], cwd=shell.folder, env=shell.environment, stdout=theirs,
            stderr=subprocess.PIPE, text=True, timeout=DEADLINE, check=False,
        )  # fmt: skip
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (status, "")


def test_letters_the_terminal_lacks_are_written_otherwise(shell: Shell) -> None:
    shell.enqueue("Ωmega", {})
    done = shell.fresh("jobs", PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert done.status == 0 and "\\u03a9mega" in done.out


@pytest.mark.parametrize(
    ("line", "status"),
    [("jobs >&-", 0), ("jobs --json >&-", 0), ("queues 2>&-", 0), ("nonsense 2>&-", 2), ("enqueue greet - <&-", 2)],
)
def test_a_command_without_one_of_its_streams_does_what_it_can(shell: Shell, line: str, status: int) -> None:
    shell.enqueue("greet", {"name": "ada"})
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m redrive {line}"], cwd=shell.folder, env=shell.environment,
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == status and "Traceback" not in done.stderr
