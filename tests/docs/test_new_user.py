"""A new user's file holds the user's own names and no others: no agent, owner, queue or task that we made up."""

import contextlib
import re
import sqlite3
import subprocess
from pathlib import Path

import pytest

from redrive.core.presets import PRESETS
from tests.docs.pages import PYTHON, REDRIVE
from tests.docs.test_blocks import environment

SECONDS = 60
PROGRAM = """
import asyncio
import redrive

rd = redrive.Redrive("jobs.db")

@rd.task
async def greet(name: str) -> str:
    return f"Hello, {name}"

@rd.task(max_attempts=2, base=0.01)
async def fetch(url: str) -> None:
    raise ConnectionError("the receiver is down")

@rd.task
async def parse(text: str) -> None:
    raise TypeError("a bug")

async def main():
    async with rd.worker():
        jobs = [await greet.enqueue("Ada"), await fetch.enqueue("https://example.org"), await parse.enqueue("x")]
        for job in jobs:
            try:
                await job.result(timeout=30)
            except redrive.JobDead:
                pass

asyncio.run(main())
"""
OURS = {"greet", "fetch", "parse"}
"""What the user wrote: three tasks. A queue has the name of its task."""


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), timeout=SECONDS, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr  # 1: a person is needed
    return done.stdout


def made_up() -> set[str]:
    """Every name that redrive could bring along: the agents, owners and queues of its presets."""
    names = {name for preset in PRESETS.values() for name in (*preset.agents, *preset.queues)}
    return names | {"ceo", "redrive.http"}


def words(database: Path) -> set[str]:
    """Every word of every text in the file: in all tables, and in the documents."""
    found: set[str] = set()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                for value in row:
                    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
                    found.update(re.findall(r"[\w.\-]+", text))
    return found


@pytest.mark.behaviour("H-6e")
def test_a_new_users_file_holds_no_name_that_the_user_did_not_write(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM, "utf-8")
    run(tmp_path, PYTHON, "app.py")
    for command in ("morning", "health", "doctor"):
        run(tmp_path, REDRIVE, "--url", "jobs.db", command)
    database = tmp_path / "jobs.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        routes = connection.execute("SELECT queue, task, agent FROM routes").fetchall()
        people = connection.execute("SELECT owner, session_id, model, key FROM jobs").fetchall()
        movers = connection.execute("SELECT DISTINCT who FROM moves").fetchall()
    assert {(name, name, None) for name in OURS} == set(routes)
    assert set(people) == {(None, None, None, None)} and movers == [(None,)]
    assert words(database) & made_up() == set()


def test_the_words_of_a_file_are_read_at_all(tmp_path: Path) -> None:
    """With a preset, its names are there: the test above would see them."""
    chosen = PROGRAM.replace('Redrive("jobs.db")', 'Redrive("jobs.db", preset="seven_agents")')
    (tmp_path / "app.py").write_text(chosen.replace('parse.enqueue("x")', 'parse.options(agent="cto").enqueue("x")'))
    run(tmp_path, PYTHON, "app.py")
    found = words(tmp_path / "jobs.db")
    assert found >= OURS and found & made_up()
