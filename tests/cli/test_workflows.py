"""Workflows on the command line."""

import asyncio
from pathlib import Path

import pytest

from redrive import Redrive
from tests.cli.shell import Shell, refused


def start(database: Path) -> dict[str, str]:
    """A workflow of three steps, the second of which fails for good; the job of every step."""

    async def started() -> dict[str, str]:
        async with Redrive(database) as rd:
            wf = rd.workflow("letter")
            first = wf.add("greet", {"name": "x"})
            second = wf.add("broken", {"text": first.output})
            wf.add("greet", {"name": second.output}, name="last")
            return (await wf.start()).steps

    return asyncio.run(started())


def test_none_at_all(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    assert shell.here("workflows").out == "No workflow was ever started here.\n"
    assert shell.here("workflows", "--json").json == []


@pytest.mark.behaviour("B18")
def test_they_are_listed_and_one_tells_why_it_does_not_go_on(shell: Shell) -> None:
    steps = start(shell.database)
    shell.drain()
    header, row = shell.here("workflows").out.splitlines()
    assert header.split() == ["id", "workflow", "state", "done", "failed", "blocked", "started"]
    assert row.split()[1:6] == ["letter", "blocked", "1/3", "broken", "last"]
    said = shell.run("workflows", row.split()[0])
    assert said.status == 0, said.err
    words, _, *rows = said.out.splitlines()
    assert "step broken failed" in words and f"redrive dead redrive {steps['broken'][-8:]}" in words
    assert [line.split()[:3] for line in rows] == [
        ["greet", "DONE", steps["greet"][-8:]],
        ["broken", "FAILED", steps["broken"][-8:]],
        ["last", "BLOCKED", steps["last"][-8:]],
    ]
    assert "the mill is broken" in rows[1]


def test_as_json_and_by_the_job_of_a_step(shell: Shell) -> None:
    steps = start(shell.database)
    shell.drain()
    found = shell.here("workflows", steps["last"], "--json").json
    assert (found["name"], found["state"], found["failed"], found["blocked"]) == (
        "letter", "blocked", ["broken"], ["last"],
    )  # fmt: skip
    assert [step["state"] for step in found["steps"]] == ["DONE", "FAILED", "BLOCKED"]
    assert found["created_at"].endswith("Z") and found["text"].startswith("Workflow letter is blocked")
    assert shell.here("workflows", "--limit", "1", "--json").json == [found]


def test_what_is_no_workflow_is_refused(shell: Shell) -> None:
    id = shell.enqueue("greet", {"name": "x"})
    for wrong in ("00000000", id):
        refused(shell.here("workflows", wrong))
