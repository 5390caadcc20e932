"""Dead letters as files: import and export on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.cli.shell import DEADLINE, Screen, Shell, ended, refused, wait_until


def lines(*ids: str) -> str:
    return "".join(
        json.dumps({"job_id": id, "payload": {"id": id}, "error_class": "TimeoutError", "attempt": 1,
                    "failed_at": "2027-01-10T03:00:00.000Z"}) + "\n"
        for id in ids
    )  # fmt: skip


@pytest.mark.behaviour("000-95", "000-7")
def test_moving_from_a_file_and_back_in_real_processes(shell: Shell) -> None:
    (shell.folder / "queue.jsonl").write_text(lines("a", "b") + "garbage\n" + '{"job_id": "torn"')
    done = shell.fresh("dead", "import", "queue.jsonl", "--task", "greet")
    assert done.status == 1 and done.err == ""
    told = done.out.splitlines()
    assert told[0] == "4 lines: 2 imported + 2 kept aside"
    assert told[1].startswith("  line 3: line: is not JSON") and told[2].startswith("  line 4: torn: ")
    assert told[3].startswith("  they stand in queue.jsonl.aside.jsonl")
    again = shell.run("dead", "import", "queue.jsonl", "--task", "greet", "--json")
    assert (again.status, again.json["duplicates"], again.json["aside"]) == (1, 2, 2)
    out = shell.fresh("dead", "export")
    assert out.status == 0 and sorted(json.loads(line)["job_id"] for line in out.out.splitlines()) == ["a", "b"]
    made = shell.run("dead", "export", "out.jsonl", "--lane", "delayed")
    assert made.out.splitlines()[0] == "out.jsonl: 2 dead letters, one per line"
    elsewhere = shell.run("dead", "import", "out.jsonl", "--url", "other.db")
    assert (elsewhere.status, elsewhere.out) == (0, "2 lines: 2 imported\n")


def test_another_programs_lines(shell: Shell) -> None:
    (shell.folder / "q.jsonl").write_text('{"id": 7, "event": {"name": "ada"}}\n{"id": 8, "event": {"name": "bob"}}\n')
    (shell.folder / "completed.txt").write_text("8\n")
    mapped = ("--map", "job_id=id", "--map", "payload=event", "--completed", "completed.txt")
    rehearsed = shell.here("dead", "import", "q.jsonl", *mapped, "--task", "greet", "--waiting", "--dry-run")
    assert (rehearsed.status, rehearsed.out) == (0, "2 lines: 1 would be imported + 1 completed\n")
    assert not shell.database.exists()
    done = shell.here("dead", "import", "q.jsonl", *mapped, "--task", "greet", "--waiting")
    assert done.out == "2 lines: 1 imported + 1 completed\n"
    shell.drain()
    (job,) = shell.here("jobs", "--json").json["jobs"]
    assert (job["state"], job["key"], job["result"]) == ("done", "7", "hello ada")


def test_a_completed_id_that_cannot_be_read_is_told_and_fails(shell: Shell) -> None:
    (shell.folder / "q.jsonl").write_text('{"job_id": "a", "payload": {}}\n')
    (shell.folder / "completed.jsonl").write_text('{"job_id": "a", "x": 1\n')
    done = shell.here("dead", "import", "q.jsonl", "--completed", "completed.jsonl")
    assert done.status == 1
    assert done.out.splitlines()[:2] == [
        "1 line: 1 imported",
        "  1 line of the completed ids cannot be read: such lines exclude nothing",
    ]
    assert "line 1: completed: line: is not JSON" in done.out


@pytest.mark.behaviour("T-7b")
@pytest.mark.parametrize("rehearsal", [(), ("--dry-run",)])
def test_a_path_without_completed_ids_is_refused_and_nothing_is_taken_in(
    shell: Shell, rehearsal: tuple[str, ...]
) -> None:
    (shell.folder / "q.jsonl").write_text(lines("a"))
    (shell.folder / "completed.jsonl").write_text('{"job_id": "a"}\n')
    for path in ("complete.jsonl", "."):
        done = shell.here("dead", "import", "q.jsonl", "--completed", path, *rehearsal)
        refused(done, f"no file of completed ids at {path}")
        assert "leave --completed out" in done.err
    assert not shell.database.exists()


def test_a_completed_id_closes_the_letter_that_stands(shell: Shell) -> None:
    (shell.folder / "q.jsonl").write_text(lines("a", "b"))
    shell.here("dead", "import", "q.jsonl")
    (shell.folder / "completed.jsonl").write_text('{"job_id": "a"}\n')
    done = shell.here("dead", "import", "q.jsonl", "--completed", "completed.jsonl", "--why", "it is out")
    assert done.out.splitlines() == [
        "2 lines: 0 imported + 1 known + 1 completed",
        "  1 dead letter was closed as completed",
    ]
    (closed,) = shell.here("jobs", "--state", "done", "--json").json["jobs"]
    assert shell.job(closed["id"])["moves"][-1]["why"] == "it is out"
    assert shell.job(closed["id"])["moves"][-1]["who"] == "ada"


def test_from_a_pipe(shell: Shell) -> None:
    refused(shell.here("dead", "import", "-", text=lines("a")), "pipe")
    done = shell.here("dead", "import", "-", "--aside", "aside.jsonl", text=lines("a") + "garbage\n")
    assert (done.status, done.out.splitlines()[0]) == (1, "2 lines: 1 imported + 1 kept aside")
    assert json.loads((shell.folder / "aside.jsonl").read_text())["text"] == "garbage"


def test_into_a_pipe_that_closes(shell: Shell) -> None:
    (shell.folder / "q.jsonl").write_text(lines(*(f"job-{n}" for n in range(3000))))
    assert shell.here("dead", "import", "q.jsonl").status == 0
    piped = f"{sys.executable} -m redrive dead export | head -n 1"
    said = subprocess.run(
        ["sh", "-c", piped], cwd=shell.folder, env=shell.environment, capture_output=True, text=True, timeout=DEADLINE,
        check=False,
    )  # fmt: skip
    assert json.loads(said.stdout)["error_class"] == "TimeoutError"
    assert "Traceback" not in said.stderr


def test_more_problems_than_one_wants_to_read(shell: Shell) -> None:
    (shell.folder / "q.jsonl").write_text("garbage\n" * 25)
    out = shell.here("dead", "import", "q.jsonl").out.splitlines()
    assert out[0] == "25 lines: 0 imported + 25 kept aside"
    assert len(out) == 13 and out[11] == "  and 15 more"


def test_a_bar_on_a_terminal_and_none_in_a_pipe(shell: Shell) -> None:
    (shell.folder / "q.jsonl").write_text(lines(*(f"job-{n}" for n in range(3000))))
    screen = Screen()
    said = subprocess.run(
        [sys.executable, "-m", "redrive", "dead", "import", "q.jsonl"], cwd=shell.folder,
        env=shell.environment | {"TERM": "xterm"}, stdout=subprocess.PIPE, stderr=screen.theirs, timeout=DEADLINE,
        check=False,
    )  # fmt: skip
    assert said.stdout == b"3000 lines: 3000 imported\n"
    assert "━" in screen.text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("dead", "import", "nowhere.jsonl"), "nowhere.jsonl"),
        (("dead", "import", "."), "is a folder"),
        (("dead", "import", "q.jsonl", "--map", "nonsense"), "is not FIELD=NAME"),
        (("dead", "import", "q.jsonl", "--map", "nonsense=id"), "mapping.nonsense"),
        (("dead", "import", "q.jsonl", "--queue", "q" * 201), "queue"),
        (("dead", "export", "no/folder/out.jsonl"), "cannot be a file"),
        (("dead", "export", "q.jsonl"), "exists already"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(shell: Shell, words: tuple[str, ...], told: str) -> None:
    (shell.folder / "q.jsonl").write_text(lines("a"))
    shell.enqueue("greet", {"name": "ada"})
    refused(shell.here(*words), told)
    assert shell.here("dead", "list", "--json").json["jobs"] == []


def test_an_export_says_where_and_how_many(shell: Shell) -> None:
    (shell.folder / "q.jsonl").write_text(lines("a", "b"))
    shell.here("dead", "import", "q.jsonl")
    assert shell.here("dead", "export", "out.jsonl", "--json").json == {"count": 2, "path": "out.jsonl"}
    assert shell.here("dead", "export", "out.jsonl", "--append").status == 0
    assert len((shell.folder / "out.jsonl").read_text().splitlines()) == 4
    assert shell.here("dead", "export", "out.jsonl", "--overwrite", "--queue", "none").out.startswith(
        "out.jsonl: 0 dead"
    )


@pytest.mark.behaviour("H-6b")
@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_at_a_signal_and_says_what_it_did(shell: Shell, signal_: signal.Signals) -> None:
    file = shell.folder / "q.jsonl"
    child = shell.start("dead", "import", "q.jsonl", "--task", "greet", "--follow")

    def dead() -> int:
        return len(shell.here("dead", "list", "--json").json["jobs"]) if shell.database.exists() else 0

    file.write_text(lines("a") + "garbage\n")
    wait_until(lambda: dead() == 1, "the first line is taken in")
    file.rename(shell.folder / "q.jsonl.1")
    file.write_text(lines("b"))
    wait_until(lambda: dead() == 2, "the line of the next file is taken in")
    child.send_signal(signal_)
    done = ended(child)
    assert done.out.splitlines()[0] == "3 lines: 2 imported + 1 kept aside"
    assert done.status == 1, done.err
    assert "line 2 of q.jsonl was not imported: line: is not JSON" in done.err


def test_what_cannot_be_followed_is_refused(shell: Shell) -> None:
    refused(shell.here("dead", "import", "-", "--follow", "--aside", "aside.jsonl"), "--follow needs a file")
    refused(shell.here("dead", "import", "q.jsonl", "--follow", "--dry-run"), "--dry-run changes nothing")


@pytest.mark.behaviour("H-6c")
def test_the_ids_of_done_jobs_for_another_program(shell: Shell) -> None:
    for name in ("ada", "bob"):
        shell.enqueue("greet", {"name": name}, "--key", f"greet-{name}")
    shell.drain()
    shell.enqueue("greet", {"name": "eve"}, "--key", "greet-eve")
    assert shell.run("completed").out == "greet-ada\ngreet-bob\n"
    made = shell.here("completed", "done.txt", "--task", "greet")
    assert made.out == "done.txt: 2 completed ids, one per line\n"
    again = shell.here("completed", "done.txt", "--append", "--json").json
    assert again == {"count": 2, "path": "done.txt"}
    (shell.folder / "q.jsonl").write_text(lines("greet-ada", "greet-eve"))
    taken = shell.here("dead", "import", "q.jsonl", "--url", "other.db", "--completed", "done.txt")
    assert taken.out == "2 lines: 1 imported + 1 completed\n"
