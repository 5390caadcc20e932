"""A person's first minute: real workers, a real outage, a real kill -9, and numbers that add up."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import redrive
from redrive.doors.demo import BRIEFS

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


def test_it_wants_a_new_file(shown: tuple[Path, str]) -> None:
    command = [sys.executable, "-m", "redrive", "demo", "--plain", "--file", str(shown[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 2
    assert "exists already" in done.stderr and "Traceback" not in done.stderr
