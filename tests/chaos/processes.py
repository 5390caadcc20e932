"""Real processes, started quickly and ended in every way there is.

    zygote = Zygote()
    child = zygote.start("tests.chaos.app:worker", log=folder / "worker.log", database=..., ...)
    child.send(signal.SIGKILL)
    await child.exited()

The zygote has imported everything and forks on demand, so that a worker is there within some 20 ms rather than half a
second. It is the parent of what it forks and signals it itself, so a process id never means somebody else. A child ends
as any interpreter does: threads are joined, exit handlers run. When the test goes away, the zygote and all children go.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60.0
"""How long a test waits for what must happen, at most. Reaching it is a failure, never a result."""


async def until(what: str, condition: Callable[[], object | Awaitable[object]], seconds: float = DEADLINE) -> None:
    """Wait until the condition holds; fail at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain: {what}")
        await asyncio.sleep(0.01)


class Child:
    """One forked process."""

    def __init__(self, zygote: Zygote, pid: int, log: Path) -> None:
        self._zygote = zygote
        self._log = log
        self.pid = pid
        self.status: int | None = None
        """The exit code, or minus the signal that ended it; None while it runs."""

    def running(self) -> bool:
        if self.status is None:
            self.status = self._zygote.ask("poll", pid=self.pid)
        return self.status is None

    def send(self, number: int) -> None:
        """A signal, unless the process has ended already."""
        if self.running():
            self._zygote.ask("signal", pid=self.pid, number=int(number))

    async def exited(self, seconds: float = DEADLINE) -> int:
        await until(f"process {self.pid} ends\n{self.log()}", lambda: not self.running(), seconds)
        assert self.status is not None
        return self.status

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


class Zygote:
    """The parent of all children of a test run."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
            text=True,
        )

    def start(self, function: str, *, log: Path, **arguments: Any) -> Child:
        """Fork and call `module:function` there with these arguments (JSON; paths become strings)."""
        return Child(self, self.ask("start", function=function, log=str(log), arguments=arguments), log)

    def ask(self, what: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **arguments}, default=str) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the zygote is gone"
        return json.loads(answer)

    def end_all(self) -> None:
        """Kill whatever a test left behind."""
        self.ask("end")

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE)
        self._process.stdout.close()


# ---- inside the zygote ----


def serve() -> Callable[[], None] | None:
    """Answer until the test goes away; in a forked child, return what it is to do."""
    import_module("tests.chaos.app")  # once, here, rather than in every child
    gc.collect()
    gc.freeze()  # or the garbage collector of every child would go through all of it, and copy its pages
    alive: set[int] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        answer: int | None = None
        match asked.pop("what"):
            case "start":
                module, _, name = asked["function"].partition(":")
                function = getattr(import_module(module), name)
                answer = os.fork()
                if answer == 0:
                    _into_child(asked["log"])
                    return lambda: function(**asked["arguments"])
                alive.add(answer)
            case "signal":
                os.kill(asked["pid"], asked["number"])
            case "poll":
                answer = _poll(asked["pid"])
                if answer is not None:
                    alive.discard(asked["pid"])
            case "end":
                _end(alive)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    _end(alive)
    return None


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _end(alive: set[int]) -> None:
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    alive.clear()


def _into_child(log: str) -> None:
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")


def _end_well(status: int) -> NoReturn:
    """End as an interpreter does, but do not take all modules apart: that takes longer than most children run."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _become(work: Callable[[], None]) -> NoReturn:
    """Do a child's work. An exception ends the child as it ends any interpreter."""
    try:
        work()
    except SystemExit as asked:
        if asked.code is not None and not isinstance(asked.code, int):
            raise
        _end_well(asked.code or 0)
    _end_well(0)


if __name__ == "__main__":
    if (work := serve()) is not None:
        _become(work)
