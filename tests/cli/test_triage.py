"""Triage at a terminal: one, many or a filter, counted and asked about; what was done, and taking it back."""

import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.shell import DEADLINE, Done, Shell, refused


def act_of(done: Done) -> str:
    """The id that a command names for taking it back."""
    (line,) = [line for line in done.out.splitlines() if "redrive dead undo " in line]
    return line.rpartition(" ")[2]


@pytest.mark.behaviour("004-59")
@pytest.mark.parametrize(
    ("words", "state", "told"),
    [
        (("reassign", "--to", "cto"), "waiting", "is cto's now"),
        (("defer", "--to", "bob", "--for", "3d"), "held", "deferred to bob"),
        (("discard",), "discarded", "discarded"),
        (("lane",), "dead", "in the delayed lane"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_one_letter_moves_and_is_taken_back(shell: Shell, words: tuple[str, ...], state: str, told: str) -> None:
    (id,) = shell.dead_letters()
    before = shell.job(id)
    verb, *options = words
    done = shell.here("dead", verb, *options, id[-8:], *(["delayed"] if verb == "lane" else []), "--why", "testing")
    assert done.status == 0 and told in done.out and (told == state or f"it is {state}" in done.out)
    after = shell.job(id)
    assert (after["moves"][-1]["who"], after["moves"][-1]["why"]) == ("ada", "testing")
    undone = shell.here("dead", "undo", id[-8:])
    assert undone.status == 0 and "taken back 1" in undone.out
    changed = {name for name in before if before[name] != shell.job(id)[name]}
    assert changed <= {"updated_at", "moves", "deferrals", "held_seconds"}


@pytest.mark.parametrize(("way", "state"), [("--landed", "done"), ("--not-landed", "waiting")])
def test_a_letter_is_resolved_by_what_became_of_it(shell: Shell, way: str, state: str) -> None:
    (id,) = shell.dead_letters()
    done = shell.here("dead", "resolve", id[-8:], way, "--why", "seen at the receiver", "--json")
    assert done.status == 0 and done.json["state"] == state
    last = shell.job(id)["moves"][-1]
    assert (last["who"], last["why"]) == ("ada", "seen at the receiver")
    refused(shell.here("dead", "resolve", id[-8:], way, "--why", "again"), f"is {state}; only a held or dead job")


def test_a_deferred_letter_is_recalled(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    end = (datetime.now(UTC) + timedelta(days=30)).replace(microsecond=0)
    assert shell.here("dead", "defer", id, "--to", "bob", "--for", end.isoformat()).status == 0
    job = shell.job(id)
    assert (job["owner"], datetime.fromisoformat(job["run_at"])) == ("bob", end)
    assert shell.here("dead", "recall", id[-8:]).status == 0
    assert shell.state(id) == "dead"


def test_a_filter_is_counted_and_needs_a_yes(shell: Shell) -> None:
    here = shell.dead_letters(2, "--queue", "here")
    (there,) = shell.dead_letters(1, "--queue", "there")
    asked = shell.here("dead", "discard", "--queue", "here")
    refused(asked, "this would discard 2 dead letters (queue here)")
    assert [shell.state(id) for id in here] == ["dead", "dead"]
    done = shell.here("dead", "discard", "--queue", "here", "--yes", "--why", "old")
    assert done.status == 0 and "discarded 2" in done.out
    assert [shell.state(id) for id in (*here, there)] == ["discarded", "discarded", "dead"]
    undone = shell.here("dead", "undo", act_of(done), "--json")
    assert (undone.json["moved"], undone.json["refused"]) == (2, [])
    assert [shell.state(id) for id in here] == ["dead", "dead"]


@pytest.mark.parametrize(("typed", "state"), [("y", "discarded"), ("n", "dead")])
def test_on_a_terminal_it_asks(shell: Shell, typed: str, state: str) -> None:
    ids = shell.dead_letters(2)
    ours, theirs = pty.openpty()
    os.write(ours, f"{typed}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "redrive", "dead", "discard", "--task", "broken"],
        cwd=shell.folder, env=shell.environment, stdin=theirs, capture_output=True, text=True, timeout=DEADLINE,
        check=False,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert "Discard 2 dead letters (task broken)?" in done.stderr
    assert done.returncode == (0 if state == "discarded" else 2)
    assert {shell.state(id) for id in ids} == {state}


def test_a_group_may_be_named_by_its_beginning(shell: Shell) -> None:
    ids = shell.dead_letters(2)
    group = shell.job(ids[0])["fingerprint"]
    listed = shell.here("dead", "list", "--group", group[:6], "--json")
    assert {job["id"] for job in listed.json["jobs"]} == set(ids)
    refused(shell.here("dead", "list", "--group", "zzzz"), "there is no group 'zzzz'")
    done = shell.here("dead", "lane", "--group", group[:6], "delayed", "--yes", "--json")
    assert (done.json["verb"], done.json["moved"]) == ("move_lane", 2)


def test_filters_whose_names_the_verb_has_taken(shell: Shell) -> None:
    (mine,) = shell.dead_letters(1, "--agent", "cto")
    (other,) = shell.dead_letters(1, "--agent", "backend")
    shell.here("dead", "reassign", "--to", "devops", "--agent", "cto", "--yes")
    assert [shell.job(id)["agent"] for id in (mine, other)] == ["devops", "backend"]


def test_those_that_do_not_move_are_told_and_the_exit_status_says_so(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    waiting = shell.enqueue("greet", {"name": "x"}, "--delay", "600")
    done = shell.here("dead", "discard", id, waiting, "--yes")
    assert done.status == 1
    assert "discarded 1 of 2; 1 did not move" in done.out
    assert f"{waiting[-8:]}: job {waiting[-8:]} is waiting" in done.out


def test_nothing_matches(shell: Shell) -> None:
    shell.dead_letters()
    done = shell.here("dead", "discard", "--queue", "nosuch")
    assert done.status == 0 and "nothing was changed" in done.out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("discard",), "say which"),
        (("discard", "--since", "yesterday"), "neither a span nor a time"),
        (("discard", "--since", "2031-05-17"), "time zone"),
        (("defer", "x", "--to", "bob", "--for", "soon"), "neither a span nor a time"),
        (("undo", "nosuchact"), "there is no act"),
        (("note", "nosuchjob", "text"), "nosuchjob"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(shell: Shell, words: tuple[str, ...], problem: str) -> None:
    shell.dead_letters()
    refused(shell.here("dead", *words), problem)


def test_notes(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    done = shell.here("dead", "note", id, "asked the miller")
    assert done.status == 0 and "noted" in done.out
    assert shell.state(id) == "dead"
    assert "asked the miller" in shell.here("dead", "show", id).out
    (note,) = shell.job(id)["notes"]
    assert (note["who"], note["text"]) == ("ada", "asked the miller")


def test_what_was_done_is_listed(shell: Shell) -> None:
    assert "No action on dead letters is recorded yet." in shell.here("dead", "acts", "--url", _empty(shell)).out
    (id, other) = shell.dead_letters(2)
    shell.here("dead", "defer", id, "--to", "bob", "--why", "he knows")
    shell.here("dead", "discard", "--task", "broken", "--yes", "--why", "old")
    listed = shell.here("dead", "acts").out
    assert "defer bob" in listed and "he knows" in listed
    assert "discard" in listed and "task broken" in listed
    acts = shell.here("dead", "acts", "--json").json
    assert [(act["verb"], act["who"], act["moved"], act["undoable"]) for act in acts] == [
        ("discard", "ada", 1, True),
        ("defer", "ada", 1, True),
    ]
    shell.here("dead", "undo", acts[0]["id"])
    assert "taken back by ada" in shell.here("dead", "acts").out
    assert shell.state(other) == "dead"


def _empty(shell: Shell) -> str:
    path = str(shell.folder / "empty.db")
    assert shell.here("enqueue", "greet", "{}", "--url", path).status == 0
    return path


def test_groups_are_resolved_and_that_is_taken_back_like_any_act(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    group = shell.job(id)["fingerprint"]
    shell.here("dead", "resolve-group", group, "--why", "mended")
    (act,) = shell.here("dead", "acts", "--json").json
    assert act["verb"] == "resolve_group"
    assert shell.here("dead", "undo", act["id"]).status == 0
    assert shell.here("dead", "group", group, "--json").json["status"] == "unresolved"


def test_an_edit_can_be_looked_at_first(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    done = shell.here("dead", "edit", id, '{"number": 5}', "--dry-run")
    assert done.status == 0 and "number: 0 → 5" in done.out
    assert "hunter22" not in done.out
    assert shell.state(id) == "dead"
    same = shell.here("dead", "edit", id, '{"number": 0, "password": "hunter22"}', "--dry-run", "--json")
    assert same.status == 1 and same.json["errors"][0]["problem"] == "is the same as before: redrive it as it is"


def test_a_purge_by_filter(shell: Shell) -> None:
    (gone,) = shell.dead_letters(1, "--session", "s")
    (kept,) = shell.dead_letters(1)
    refused(shell.here("dead", "purge", "--session", "s"), "purge 1 dead letter")
    assert shell.here("dead", "purge", "--session", "s", "--yes", "--json").json == {"purged": 1}
    assert (shell.state(gone), shell.state(kept)) == ("purged", "dead")
    (act,) = shell.here("dead", "acts", "--json").json
    refused(shell.here("dead", "undo", act["id"]), "gone for good")


def test_every_filter_reaches_the_list(shell: Shell) -> None:
    (id,) = shell.dead_letters(1, "--queue", "q", "--agent", "a", "--session", "s")
    job = shell.job(id)
    for option, value in {
        "--queue": "q", "--task": "broken", "--agent": "a", "--session": "s", "--lane": "manual",
        "--category": job["category"], "--detail": job["detail"], "--error-class": "RuntimeError",
        "--fingerprint": job["fingerprint"], "--because": job["because"], "--reason": "direct", "--since": "1h",
        "--until": "2031-05-17T03:00:00Z",
    }.items():  # fmt: skip
        for command in (("dead", "list"), ("jobs",)):
            found = shell.here(*command, option, value, "--json")
            assert [one["id"] for one in found.json["jobs"]] == [id], option
    for option, value in {
        "--owner": "bob", "--category": "permanent", "--detail": "quota", "--error-kind": "x",
        "--since": "2031-05-17T03:00Z", "--until": "1h", "--reason": "retry",
    }.items():  # fmt: skip
        for command in (("dead", "list"), ("jobs",)):
            assert shell.here(*command, option, value, "--json").json["jobs"] == [], option


def choices(shell: Shell, id: str) -> list[str]:
    """The commands that a letter's story names."""
    lines = shell.here("dead", "show", id).out.partition("what next")[2].splitlines()
    return [line.partition(": redrive ")[2] for line in lines if ": redrive " in line]


def test_every_command_that_a_letter_names_does_what_it_says(shell: Shell) -> None:
    ids = shell.dead_letters(12)
    named = choices(shell, ids[0])
    assert {"defer", "reassign", "discard", "lane", "redrive", "edit"} <= {line.split()[1] for line in named}
    for id, line in zip(ids, named, strict=False):
        line = line.replace(ids[0][-8:], id[-8:]).replace("JSON", '{"number":99}')
        done = shell.here(*line.replace("NAME", "ada").replace("TEXT", "because").split())
        assert done.status == 0, (line, done.err)
        assert len(shell.job(id)["moves"]) > len(shell.job(ids[-1])["moves"]), line
