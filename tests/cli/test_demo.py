"""A person's first minute: real workers, a real outage, a real kill -9, and numbers that add up."""

import os
import re
import subprocess
import sys
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import redrive
from redrive.core.job import State
from redrive.doors.demo import BRIEFS, Demo, describe_parked
from redrive.doors.demo.receiver import Receiver
from redrive.doors.demo.view import View

DEADLINE = 150.0


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """It is shown once, to all of them."""
    database = tmp_path_factory.mktemp("demo") / "jobs.db"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    command = [sys.executable, "-m", "redrive", "demo", "--plain", "--jobs", "120", "--file", str(database)]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return database, done.stdout


def test_it_kills_a_worker_and_an_outage_comes_and_goes(shown: tuple[Path, str]) -> None:
    _, told = shown
    for words in (
        "120 jobs accepted",
        "kill -9",
        "goes down",
        "is back",
        "was killed by a poisonous job",
        "It adds up",
    ):
        assert words in told


@pytest.mark.behaviour("000-4", "000-99")
async def test_what_it_says_is_in_the_database(shown: tuple[Path, str]) -> None:
    database, told = shown
    (sums,) = re.findall(r"accepted = done \+ dead\s+(\d+) = (\d+) \+ (\d+)", told)
    async with redrive.Redrive(database) as rd:
        stats = await rd.stats()
        outcomes = [[attempt.outcome for attempt in job.history] async for job in rd.store.scan()]
        dead = (await rd.dead.list()).jobs
    assert [stats["accepted"], stats["totals"]["done"], stats["totals"]["dead"]] == [int(number) for number in sums]
    assert stats["accepted"] == stats["totals"]["done"] + stats["totals"]["dead"] == 120
    assert all(attempts.count("done") <= 1 for attempts in outcomes)
    assert Counter(job.because for job in dead) == {"crash_loop": 1, "permanent": 2 + BRIEFS, "terminated": 1}
    assert all(job.recommendation for job in dead)
    assert f"{BRIEFS}  brief: PermissionError: intern may not write to the press folder" in told


async def test_what_went_to_the_wrong_agent_is_done_by_the_right_one(shown: tuple[Path, str]) -> None:
    """The way that the walk in the documentation takes."""
    environ = os.environ | {"REDRIVE_URL": str(shown[0])}
    command = [
        "-m",
        "redrive",
        "dead",
        "reassign",
        "--to",
        "editor",
        "--queue",
        "briefs",
        "--yes",
        "--why",
        "the editor may",
    ]
    done = subprocess.run(
        [sys.executable, *command], env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    work = [sys.executable, "-m", "redrive", "worker", "redrive.doors.demo.tasks:rd", "--drain"]
    subprocess.run(work, env=environ, check=True, capture_output=True, timeout=DEADLINE)
    async with redrive.Redrive(shown[0]) as rd:
        briefs = (await rd.jobs.list(queue="briefs")).jobs
    assert Counter((str(job.state), job.agent) for job in briefs) == {("done", "editor"): BRIEFS}


def test_its_last_lines_can_be_copied_whole(shown: tuple[Path, str]) -> None:
    lines = [line.strip() for line in shown[1].partition("Try next")[2].splitlines() if line.startswith("  ")]
    commands = [line for line in lines if not line.startswith("#")]
    assert [command.split()[1] for command in commands[1:]] == ["serve", "morning", "dead"]
    typed = "\n".join(line for line in lines if " serve " not in line)
    done = subprocess.run(["bash"], input=typed, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "crash_loop" in done.stdout


def test_it_wants_a_new_file(shown: tuple[Path, str]) -> None:
    command = [sys.executable, "-m", "redrive", "demo", "--plain", "--file", str(shown[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 2
    assert "exists already" in done.stderr and "Traceback" not in done.stderr


def test_each_row_adds_up_while_deliveries_are_parked() -> None:
    """Sixty-five of three hundred had been in no column for ten seconds."""
    counts = {"articles": {"done": 90}, "deliveries": {"waiting": 2, "held": 65, "done": 37, "dead": 1}}
    queues = [{"name": name, **dict.fromkeys(State, 0), **numbers} for name, numbers in counts.items()]
    totals = {state: sum(queue[state] for queue in queues) for state in State}
    view = View(plain=True)
    view.show({"queues": queues, "totals": totals, "accepted": 195}, describe_parked(65))
    drawn = Console(file=StringIO(), width=60)
    drawn.print(view.picture())
    text = drawn.file.getvalue()
    rows = {
        name: [int(number) for number in numbers.split()] for name, numbers in re.findall(r"(\w+) +(\d[\d ]+)\n", text)
    }
    assert rows["all"] == [2, 0, 65, 127, 1, 195] and rows["deliveries"] == [2, 0, 65, 37, 1, 105]
    assert all(sum(rows[name][:-1]) == rows[name][-1] for name in ("articles", "deliveries", "all"))
    assert "65 deliveries are parked until a probe gets through" in text


def test_on_a_narrow_terminal_its_end_breaks_no_word_and_no_command() -> None:
    said = "       [dim]Look for what kills the process (memory, a native crash, sys.exit). Fix it, then redrive.[/]"
    command = "  redrive serve redrive.doors.demo.tasks:rd --open " + "x" * 40
    view = View(plain=False)
    view.console = Console(file=StringIO(), width=60, force_terminal=True, color_system=None)
    view.sum_up([("lost", "0", True)], [said], [command])
    drawn = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in view.console.file.getvalue().splitlines()]
    assert command in drawn
    told = [line for line in drawn[3:] if line != command]
    assert max(map(len, told)) <= 60 and "process" in told[0]
    assert " ".join(" ".join(told).split()) == said.strip().removeprefix("[dim]").removesuffix("[/]")


async def test_it_says_what_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a breaker is open, and when it is not any more."""
    monkeypatch.setenv("REDRIVE_URL", "")
    said, states = list[str](), iter(["half_open", "closed"])
    view = View(plain=True)
    monkeypatch.setattr(view, "say", lambda text, style="": said.append(text))
    demo = Demo(tmp_path / "jobs.db", 120, view)

    class Open:
        async def breakers(self) -> list[object]:
            return [type("One", (), {"state": next(states)})]

    monkeypatch.setattr(demo, "_rd", Open())
    for held in (0, 1, 64, 0, 0, 0):
        await demo._watch_breaker(held)
    assert said == [
        "its breaker opens: 1 delivery is parked until a probe gets through",
        "a probe got through, and the parked deliveries are back",
    ]


async def test_the_receiver_answers_the_first_that_ask_when_it_is_back() -> None:
    """A probe that found it busy had kept the others parked for twice as long."""
    receiver = Receiver()
    hook = "POST /hook HTTP/1.1\r\nIdempotency-Key: a\r\n\r\n"
    assert [receiver._answer(hook)[0] for _ in range(6)] == [200] * 5 + [503]
    assert [receiver._answer(hook)[0] for _ in range(5)] == [200] * 5
    await receiver.start()
    await receiver.stop()
    assert receiver._answer(hook)[0] == 200
