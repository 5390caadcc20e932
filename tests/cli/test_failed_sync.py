"""After a failed sync the store has stopped itself: `worker` and `serve` end with 3, and the next process goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.shell import DEADLINE, Done, Shell, ended, wait_until

ROOT = Path(__file__).parents[2]
DISK = """
from tests.failing_disk import fail_when_told

fail_when_told({trigger!r})
"""


@pytest.fixture
def failing(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell whose app is on a disk that fails when `fail-sync` is there."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    app = shell.folder / "app.py"
    app.write_text(DISK.format(trigger=str(shell.folder / "fail-sync")) + app.read_text())
    return shell


def begin(shell: Shell, *words: str) -> tuple[subprocess.Popen[str], str]:
    """A process that runs a job which does not end by itself."""
    running = shell.enqueue("mark", {"folder": str(shell.folder), "until": str(shell.folder / "go")})
    child = shell.start(*words)
    wait_until(lambda: bool(list(shell.folder.glob("started-*"))), "the job runs")
    return child, running


def break_the_disk(shell: Shell) -> str:
    """The end of this job is what cannot be synced."""
    (shell.folder / "fail-sync").touch()
    return shell.enqueue("greet", {"name": "x"})


def exited(child: subprocess.Popen[str]) -> Done:
    wait_until(lambda: child.poll() is not None, "the process ends after the failed sync")
    return ended(child)


COMMANDS = {
    "worker": ("worker", "app:rd"),
    "worker with processes": ("worker", "app:rd", "--processes", "2", "--grace", "1"),
    "serve": ("serve", "app:rd", "--port", "0"),
}


@pytest.mark.behaviour("T-9")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_failed_sync_ends_the_process_with_3_and_the_next_goes_on(failing: Shell, command: tuple[str, ...]) -> None:
    child, running = begin(failing, *command)
    ran = break_the_disk(failing)
    done = exited(child)
    assert done.status == 3, (done.status, done.err)
    assert "failed to sync" in done.err and "Traceback" not in done.err, done.err
    (failing.folder / "go").touch()
    failing.drain()
    *before, last = [attempt["outcome"] for attempt in failing.job(running)["history"]]
    assert before and set(before) <= {"lost", "released"} and last == "done"
    for id in (running, ran):  # the end of the second may or may not have reached the disk
        job = failing.job(id)
        assert job["state"] == "done"
        assert job["attempts"] == 1, "the failed disk cost the job an attempt"


STUBBORN = {
    "a task": """
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
""",
    "a thread": """
    import time
    await asyncio.to_thread(time.sleep, 3600)
""",
}


@pytest.mark.parametrize("body", STUBBORN.values(), ids=STUBBORN)
def test_what_does_not_stop_keeps_no_process(failing: Shell, body: str) -> None:
    app = failing.folder / "app.py"
    begins = "\n@rd.task\nasync def stubborn(folder: str) -> None:\n    Path(folder, 'started-stubborn').touch()"
    app.write_text(app.read_text() + begins + body)
    failing.enqueue("stubborn", {"folder": str(failing.folder)})
    child = failing.start("worker", "app:rd")
    wait_until(lambda: bool(list(failing.folder.glob("started-*"))), "the job runs")
    break_the_disk(failing)
    assert exited(child).status == 3


def test_draining_ends_with_3_too(failing: Shell) -> None:
    break_the_disk(failing)
    done = failing.run("worker", "app:rd", "--drain")
    assert done.status == 3 and "failed to sync" in done.err, (done.status, done.err)


# ---- the probe


@pytest.mark.behaviour("T-9c")
def test_the_probe_says_whether_the_database_can_be_used(shell: Shell) -> None:
    shell.dead_letters()
    assert shell.here("health").status == 1
    good = shell.here("health", "--probe")
    assert (good.status, good.out) == (0, "ok\n"), good.err


def test_the_probe_fails_where_there_is_nothing_usable(shell: Shell) -> None:
    missing = shell.here("health", "--probe")
    assert (missing.status, missing.out) == (3, "") and "there is no database" in missing.err
    shell.database.write_text("this is not a database, and quite long enough to be looked at" * 100)
    broken = shell.here("health", "--probe", "--json")
    assert (broken.status, broken.out) == (3, "") and "not a usable SQLite database" in broken.err


def test_the_probe_does_not_wait_for_a_lock_that_never_comes(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    code = "from redrive.doors.cli import main, queues; queues.PROBE_SECONDS = 0.3; main()"
    with locked(shell.database):
        done: Any = subprocess.run(
            [sys.executable, "-c", code, "health", "--probe"],
            cwd=shell.folder, env=shell.environment, capture_output=True, text=True, timeout=DEADLINE, check=False,
        )  # fmt: skip
    assert done.returncode == 3 and "did not answer within 0.3 s" in done.stderr


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another process holds the write lock."""
    code = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""
    words = [sys.executable, "-c", code, str(database)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "locked\n"
        yield
        other.stdin.close()


def test_the_server_is_ready_until_its_store_stops(failing: Shell) -> None:
    """It ends then; while it does, `/readyz` may still say why."""
    child = failing.start("serve", "app:rd", "--port", "0", "--no-auth", "--json")
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(5)]
    url = next(line.split('"')[3] for line in lines if '"url"' in line)
    wait_until(lambda: httpx2.get(f"{url}readyz").status_code == 200, "the server is ready")
    break_the_disk(failing)
    assert exited(child).status == 3
