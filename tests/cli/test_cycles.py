"""`redrive cycles`: scripts' nights, seen without the scripts."""

from __future__ import annotations

import redrive
from tests.cli.shell import Shell, refused


def nights(shell: Shell, jobs: int = 2, *, die: bool = False) -> None:
    rd = redrive.Redrive(shell.database)
    try:
        with rd.cycle("nightly", "2031-05-17", quiet=True, every="1d") as night:
            for number in range(jobs):
                night.run(publish, name=number)
            if die:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert die


def publish(name: int) -> int:
    return name


def test_a_list_for_people(shell: Shell) -> None:
    nights(shell)
    head, row = shell.here("cycles").out.splitlines()
    assert head.split() == ["cycle", "last", "begun", "outcome", "jobs", "usual", "next", "runs"]
    for said in ("nightly", "2031-05-17", "ended", "in 24 h"):
        assert said in row


def test_what_is_wrong_stands_below_and_for_programs(shell: Shell) -> None:
    nights(shell)
    nights(shell, 1, die=True)
    said = "nightly 2031-05-17 died after 1 of its usual 2 jobs (ZeroDivisionError); start it again"
    assert said in shell.here("cycles").out
    (found,) = shell.here("cycles", "--json").json
    assert (found["name"], found["outcome"], found["jobs"], found["usual_jobs"]) == ("nightly", "died", 1, 2)
    (finding,) = found["findings"]
    assert (finding["kind"], finding["sentence"], finding["command"]) == ("cycle_died", said, "redrive cycles")


def test_none_yet(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    assert "rd.cycle" in shell.here("cycles").out
    assert shell.here("cycles", "--json").json == []


def test_forgetting_one_that_is_not_expected_any_more(shell: Shell) -> None:
    nights(shell)
    refused(shell.here("cycles", "forget", "other"), "other")
    assert "nightly" in shell.here("cycles", "forget", "nightly").out
    assert shell.here("cycles", "--json").json == []
