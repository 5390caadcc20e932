"""What the CLI tests share: a folder with an app and a database, and three ways to run `redrive` in it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from redrive.doors.cli import cli
from tests.cli.zygote import Forked, Zygote

DEADLINE = 30.0
"""Seconds after which a test stops waiting and fails: far more than anything here takes."""

TASKS = """
    import asyncio, os
    from pathlib import Path

    import redrive

    rd = redrive.Redrive(triage=False)

    @rd.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    @rd.task(max_attempts=1)
    async def broken(**anything: object) -> None:
        raise RuntimeError("the mill is broken")

    @rd.task
    async def mark(folder: str, until: str | None = None) -> None:
        Path(folder, f"started-{os.getpid()}").touch()
        while until is not None and not Path(until).exists():
            await asyncio.sleep(0.01)
        Path(folder, f"finished-{os.getpid()}").touch()
"""


@dataclass
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Shell:
    """A folder, and `redrive` run in it."""

    folder: Path
    zygote: Zygote | None = None
    """Forks the processes; without it each is a fresh interpreter."""
    children: list[subprocess.Popen[str] | Forked] = field(default_factory=list)

    @property
    def database(self) -> Path:
        return self.folder / "jobs.db"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        home = {"HOME": str(self.folder), "XDG_STATE_HOME": str(self.folder / "state")}
        return kept | home | {"REDRIVE_URL": str(self.database), "LOGNAME": "ada", "COLUMNS": "200"}

    def run(self, *words: str, text: str | None = None, **environment: str) -> Done:
        """A real process of `redrive`."""
        if self.zygote is None:
            return self.fresh(*words, text=text, **environment)
        return Done(*self.zygote.run(words, self.folder, self.environment | environment, text, DEADLINE))

    def fresh(self, *words: str, text: str | None = None, **environment: str) -> Done:
        """The same by an interpreter of its own, `python -m redrive`, and through pipes."""
        said = subprocess.run(
            [sys.executable, "-m", "redrive", *words],
            cwd=self.folder,
            env=self.environment | environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        return Done(said.returncode, said.stdout, said.stderr)

    def here(self, *words: str, text: str | bytes | None = None) -> Done:
        """The same command without the cost of a process."""
        result = CliRunner().invoke(cli, words, input=text, env=self.environment, prog_name="redrive")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr)

    def start(self, *words: str, piped: bool = False) -> subprocess.Popen[str] | Forked:
        """A process that goes on; it is gone when the test ends."""
        if self.zygote is None:
            return self.start_fresh(*words, piped=piped)
        child = self.zygote.start(words, self.folder, self.environment, piped=piped)
        self.children.append(child)
        return child

    def start_fresh(self, *words: str, piped: bool = False) -> subprocess.Popen[str]:
        """The same by an interpreter of its own."""
        child = subprocess.Popen(
            [sys.executable, "-m", "redrive", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_hear_ctrl_c,  # noqa: PLW1509 - it takes no locks
        )
        self.children.append(child)
        return child

    def end_all(self) -> None:
        for child in self.children:
            with suppress(ProcessLookupError):
                child.kill()
            with suppress(BrokenPipeError):
                child.communicate()

    def enqueue(self, task: str, payload: dict[str, Any] | None = None, *options: str) -> str:
        done = self.here("enqueue", task, json.dumps(payload or {}), *options, "--json")
        assert done.status == 0, done.err
        id: str = done.json["id"]
        return id

    def drain(self) -> None:
        done = self.run("worker", "app:rd", "--drain")
        assert done.status == 0, done.err

    def dead_letters(self, number: int = 1, *options: str) -> list[str]:
        """So many jobs that failed for good."""
        ids = [self.enqueue("broken", {"number": n, "password": "hunter22"}, *options) for n in range(number)]
        self.drain()
        return ids

    def job(self, id: str) -> Any:
        done = self.here("status", id, "--json")
        assert done.status == 0, done.err
        return done.json

    def state(self, id: str) -> str:
        return str(self.job(id)["state"])


class Screen:
    """A terminal to write to. It holds few bytes, so it is read all the while, lest the writer waits for ever."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self._written = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # how a terminal says that nobody writes to it any more
            while chunk := os.read(self._ours, 65536):
                self._written += chunk

    def text(self) -> str:
        """All that was written; nobody may write any more."""
        os.close(self.theirs)
        self._reader.join(DEADLINE)
        os.close(self._ours)
        return self._written.decode()


def _hear_ctrl_c() -> None:
    """Test runners that spread their work ignore SIGINT, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def make_shell(folder: Path, zygote: Zygote | None = None) -> Shell:
    (folder / "app.py").write_text(textwrap.dedent(TASKS), encoding="utf-8")
    return Shell(folder, zygote)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look until it is true; fail, saying what was waited for, when it does not become so.

    The longer it takes, the more seldom it is looked for: most conditions ask the store.
    """
    end = time.monotonic() + DEADLINE
    pause = 0.01
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true"
        time.sleep(pause)
        pause = min(1.2 * pause, 0.2)


def ended(child: subprocess.Popen[str] | Forked) -> Done:
    out, err = child.communicate(timeout=DEADLINE)
    assert child.returncode is not None
    return Done(child.returncode, out, err)


def refused(done: Done, *words: str) -> None:
    """Exit status 2, one line that says what, one that says what to do, and no traceback."""
    assert done.status == 2, (done.status, done.out, done.err)
    assert done.out == ""
    what, hint = done.err.splitlines()
    assert what.startswith("redrive: ")
    assert hint.startswith("  hint: ")
    for word in words:
        assert word in what, what
