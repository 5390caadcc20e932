"""enqueue → drain → status, listings, cancel, erase."""

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from redrive import Redrive
from redrive.core.store import Commit
from redrive.engine.worker_registry import Announcement, put_announcement
from tests.cli.shell import Shell
from tests.support import locked


def test_a_job_from_enqueue_to_its_end_in_real_processes(shell: Shell) -> None:
    accepted = shell.fresh("enqueue", "greet", '{"name": "Ada"}')
    assert accepted.status == 0 and accepted.err == ""
    id = accepted.out.split()[1]
    assert "waiting" in shell.run("status", id).out
    drained = shell.fresh("worker", "app:rd", "--drain")
    assert drained.status == 0 and "drained: 1 attempt" in drained.out
    told = shell.run("status", id)
    assert told.status == 0
    assert "state     done" in told.out and "hello Ada" in told.out and "run 1: done" in told.out


def test_status_tells_attempts_causes_decisions_and_what_next(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    out = shell.here("status", id[-8:]).out
    job = shell.job(id)
    assert id in out
    assert "state     dead: attempts_exhausted, manual lane" in out
    assert "failure   RuntimeError: the mill is broken" in out
    attempt = job["history"][0]
    assert f"cause     {attempt['cause']['category']}, {attempt['cause']['detail']}" in out
    assert f"decision  {attempt['decision']}" in out
    assert job["recommendation"] in out
    assert f"redrive dead redrive {id[-8:]}" in out


@pytest.mark.parametrize("way", ["@file", "-", "argument"])
def test_the_payload_comes_from_a_file_a_pipe_or_the_command_line(shell: Shell, way: str) -> None:
    text = json.dumps({"name": "Zoë", "big": 2**70}, indent=2)
    (shell.folder / "payload.json").write_text(text, encoding="utf-8")
    said = {"@file": "@payload.json", "-": "-", "argument": text}[way]
    done = shell.here("enqueue", "greet", said, "--json", text=text)
    assert done.status == 0, done.err
    assert done.json["payload"] == {"name": "Zoë", "big": 2**70}


def test_options_of_enqueue_reach_the_job(shell: Shell) -> None:
    id = shell.enqueue(
        "greet", {}, "--queue", "q", "--run-at", "2099-01-02T03:04:05+01:00", "--priority", "high", "--key", "k",
        "--session", "s", "--agent", "a", "--model", "m", "--max-attempts", "7",
    )  # fmt: skip
    job = shell.job(id)
    expected = {"queue": "q", "priority": "high", "key": "k", "session_id": "s", "agent": "a", "model": "m"}
    assert {name: job[name] for name in expected} == expected
    assert job["allowed"] == 7
    assert job["run_at"] == "2099-01-02T02:04:05.000Z"


def test_delay_puts_a_job_off(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "later"}, "--delay", "3600")
    assert "runs in 60 min" in shell.here("jobs").out
    drained = shell.run("worker", "app:rd", "--drain")
    assert drained.status == 0 and "nothing was due" in drained.out


def test_the_same_key_again_gives_the_job_that_exists(shell: Shell) -> None:
    id = shell.enqueue("greet", {"name": "x"}, "--key", "k")
    again = shell.here("enqueue", "greet", '{"name": "x"}', "--key", "k")
    assert again.status == 0 and f"job {id[-8:]} exists already with this key; it is waiting" in again.out
    assert shell.here("enqueue", "greet", '{"name": "x"}', "--key", "k", "--json").json["duplicate"] is True


def test_jobs_lists_filters_and_goes_on(shell: Shell) -> None:
    ids = [shell.enqueue("greet", {"n": n}, "--session", f"s{n % 2}", "--agent", f"a{n}") for n in range(3)]
    other = shell.enqueue("mark", {}, "--queue", "elsewhere")
    listed = shell.here("jobs", "--json").json["jobs"]
    assert [job["id"] for job in listed] == [other, *reversed(ids)]
    for filters, expected in (
        (("--queue", "elsewhere"), [other]),
        (("--task", "mark"), [other]),
        (("--session", "s0"), [ids[2], ids[0]]),
        (("--agent", "a1"), [ids[1]]),
        (("--state", "done"), []),
        (("--state", "done", "--state", "waiting", "--task", "mark"), [other]),
    ):
        assert [job["id"] for job in shell.here("jobs", *filters, "--json").json["jobs"]] == expected
    first = shell.here("jobs", "--limit", "3")
    cursor = first.out.rpartition("--cursor ")[2].strip()
    rest = shell.here("jobs", "--cursor", cursor)
    assert ids[0][-8:] in rest.out and ids[0][-8:] not in first.out


def test_cancel_says_who_and_why(shell: Shell) -> None:
    id = shell.enqueue("greet", {"name": "x"})
    done = shell.here("cancel", id[-8:], "--why", "no longer wanted")
    assert done.status == 0 and "it is discarded" in done.out
    assert shell.state(id) == "discarded"
    with closing(sqlite3.connect(shell.database)) as connection:
        rows = connection.execute("SELECT move, who, why FROM moves").fetchall()
    assert ("cancelled", "ada", "no longer wanted") in rows


def test_what_should_have_run_is_due_and_a_move_is_told_once(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began)
    id = shell.enqueue("greet", {"name": "x"}, "--delay", "60")
    assert "runs in " in shell.here("jobs").out and "Runs in " in shell.here("status", id).out
    monkeypatch.setattr(time, "time", lambda: began + 85)
    assert "due 25 s ago" in shell.here("jobs").out
    assert "Was due 25 s ago; runs as soon as" in shell.here("status", id).out
    monkeypatch.undo()
    (letter,) = shell.dead_letters()
    assert shell.here("dead", "discard", letter).out.splitlines()[0] == f"job {letter[-8:]} (broken) discarded"
    assert "restored; it is dead" in shell.here("dead", "restore", letter).out


def test_erase_forgets_a_job_or_a_session_after_yes(shell: Shell) -> None:
    ids = [shell.enqueue("greet", {"name": f"canary-{n}"}, "--session", "s") for n in range(2)]
    alone = shell.enqueue("greet", {"name": "canary-alone"})
    asked = shell.here("erase", "--session", "s")
    assert asked.status == 2 and "erase the contents of 2 jobs" in asked.err and "--yes" in asked.err
    assert shell.job(ids[0])["payload"] == {"name": "canary-0"}
    assert shell.here("erase", "--session", "s", "--yes", "--json").json == {"erased": 2, "gone": True, "waits_for": []}
    assert [shell.job(id)["payload"] for id in (*ids, alone)] == [None, None, {"name": "canary-alone"}]
    assert "of 1 job; its id and key stay" in shell.here("erase", alone[-8:], "--yes").out
    nobody = shell.here("erase", "--session", "nobody")
    assert nobody.status == 0 and "0 jobs" in nobody.out
    assert b"canary" not in b"".join(_bytes(shell.folder))


def test_erase_says_where_somebody_who_reads_keeps_the_old_bytes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.store.EMPTYING", 2)
    id = shell.enqueue("greet", {"name": "canary"})
    with closing(apsw.Connection(str(shell.database))) as reader:  # locks are between those who share a library
        reader.execute("BEGIN; SELECT count(*) FROM jobs").fetchall()
        kept = shell.here("erase", id, "--yes", "--json")
    said = kept.json
    (holder,) = said.pop("waits_for")
    assert (kept.status, said) == (0, {"erased": 1, "gone": False})
    assert "a reader keeps the file open" in holder
    assert "can still be read" in kept.err and "Erase it once more" in kept.err
    again = shell.here("erase", id, "--yes")
    assert (again.err, b"canary" in b"".join(_bytes(shell.folder))) == ("", False)


def _bytes(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.glob("jobs.db*") if path.is_file()]


@pytest.mark.behaviour("003-11", "003-79")
def test_a_kind_is_found_over_the_whole_history(shell: Shell) -> None:
    (shell.folder / "kinds.py").write_text(
        "import redrive\n"
        "rd = redrive.Redrive()\n"
        "class Closed(Exception):\n    error_kind = 'needs_human'\n"
        "@rd.task\nasync def work(n: int) -> int:\n    raise Closed('the app is closed')\n"
        "@rd.task\nasync def fine(n: int) -> int:\n    return n\n"
    )
    for task in ("work", "fine"):
        shell.run("enqueue", task, '{"n": 1}')
    assert shell.run("worker", "kinds:rd", "--drain").status == 0
    found = shell.run("jobs", "--error-kind", "needs_human", "--json").json["jobs"]
    assert [job["task"] for job in found] == ["work"]
    assert [job["task"] for job in shell.run("dead", "list", "--error-kind", "needs_human", "--json").json["jobs"]] == [
        "work"
    ]
    assert shell.run("jobs", "--error-kind", "refused", "--json").json["jobs"] == []


@pytest.mark.behaviour("T-7e")
def test_work_that_no_worker_takes_is_accepted_with_that_word(shell: Shell) -> None:
    """A mistyped name is a job that waits for ever: whoever hands it in hears it now."""
    told = shell.here("enqueue", "greett", "{}")
    assert told.status == 0, told.err
    assert "no live worker announces the task 'greett': the job waits until one does" in told.out
    assert "runs now" not in told.out
    shell.here("enqueue", "greet", '{"name": "x"}')
    assert shell.run("worker", "app:rd", "--drain").status == 0
    again = shell.here("enqueue", "greett", "{}")
    assert "did you mean greet?" in again.out
    (warning,) = shell.here("enqueue", "greett", "{}", "--json").json["warnings"]
    assert "no live worker announces" in warning


@pytest.mark.behaviour("T-7e")
def test_work_that_a_worker_takes_runs(shell: Shell) -> None:
    announcement = Announcement(frozenset({"greet"}), time.time(), queues=frozenset({"greet"}))
    with (rd := Redrive(shell.database)).blocking() as q:
        q.run(rd.store.apply([Commit(puts=(put_announcement("w", announcement),))]))
    assert "runs now" in shell.here("enqueue", "greet", "{}").out
    elsewhere = shell.here("enqueue", "greet", "{}", "--queue", "other").out
    assert "no live worker takes the task 'greet' in queue 'other'" in elsewhere


@pytest.mark.behaviour("T-14b")
def test_a_job_that_only_the_spool_took_is_said_to_wait_there(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    with locked(shell.database):
        told = [
            shell.run("enqueue", "greet", "{}", *words, REDRIVE_FALLBACK="1", REDRIVE_FALLBACK_AFTER="0.2")
            for words in ((), ("--json",))
        ]
    assert [each.status for each in told] == [0, 0], told
    assert "waits in the spool" in told[0].out and told[1].json["spooled"] is True
    assert len(list(shell.folder.glob("jobs.db-spool/*.jsonl"))) == 2
