"""Real processes of `redrive`, without the third of a second that an interpreter takes to import it each time.

The zygote has imported the command and forks for every run. The child has its own folder, environment and files for
input and output, and ends as any interpreter does: threads are joined, exit handlers run. What is about the start of an
interpreter, about pipes or about terminals needs a fresh one.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 100_000
"""Bytes of a request: an environment and the words of a command."""
NEEDED = ("redrive.doors.cli", "redrive.api.redrive", "redrive.stores.sqlite", "redrive.engine.worker", "rich.table")


class Zygote:
    """The parent of the commands of a test run."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.zygote", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def run(
        self, words: tuple[str, ...], folder: Path, environment: Mapping[str, str], text: str | None, deadline: float
    ) -> tuple[int, str, str]:
        """Exit status, or minus the signal that ended it; what it wrote; what it complained about."""
        asked = {"words": words, "folder": str(folder), "environment": dict(environment)}
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write((text or "").encode())
            given.seek(0)
            files = [given.fileno(), out.fileno(), err.fileno()]
            self._socket.settimeout(deadline)
            socket.send_fds(self._socket, [json.dumps(asked).encode()], files)
            pid = int(self._socket.recv(LARGEST))
            try:
                status = int(self._socket.recv(LARGEST))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._socket.recv(LARGEST)
                raise AssertionError(f"redrive {' '.join(words)} did not end in {deadline:g} s") from None
            out.seek(0)
            err.seek(0)
            return status, out.read().decode(), err.read().decode()

    def close(self) -> None:
        self._socket.close()
        self._process.wait(60)


# ---- inside the zygote ----


def serve(asking: socket.socket) -> Callable[[], object] | None:
    """Answer until the test goes away; in a forked child, return what it is to do."""
    for name in NEEDED:
        import_module(name)
    dict(import_module("redrive.doors.cli").cli.commands)  # imports the module of every command
    gc.freeze()  # a child need not look through what was imported, and does not copy it
    while True:
        request, files, _, _ = socket.recv_fds(asking, LARGEST, 3)
        if not request:
            return None
        pid = os.fork()
        if pid == 0:
            asking.close()
            return _into_child(files, **json.loads(request))
        for file in files:
            os.close(file)
        asking.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        asking.send(str(os.waitstatus_to_exitcode(status)).encode())


def _into_child(files: list[int], words: list[str], folder: str, environment: dict[str, str]) -> Callable[[], object]:
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # test runners that spread their work ignore it
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder  # as for `python -m`
    sys.argv = ["redrive", *words]
    return lambda: runpy.run_module("redrive", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        work = serve(asking)
    if work is not None:
        work()
