"""Real processes of `redrive`, without the third of a second that an interpreter takes to import it each time.

The zygote has imported the command and forks for every run. The child has its own folder, environment and files for
input and output, and ends as any interpreter does: threads are joined, exit handlers run. What is about the start of an
interpreter needs a fresh one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import TextIO

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 100_000
"""Bytes of a request: an environment and the words of a command."""
NUMBER = 4
"""Bytes of the process id, and of the exit status, as they are told."""
NEEDED = ("redrive.doors.cli", "redrive.api.redrive", "redrive.stores.sqlite", "redrive.engine.worker", "rich.table")
SERVING = ("redrive.doors.web.server", "redrive.doors.dashboard")
MORE = {"serve": SERVING, "mcp": (*SERVING, "redrive.doors.mcp.serving", "mcp.server.stdio")}
"""What a command needs besides: imported when it is run for the first time."""


class Ending:
    """The end of a forked process, which its keeper tells: exit status, or minus the signal that ended it."""

    def __init__(self, told: int) -> None:
        self.status: int | None = None
        self._over = threading.Event()
        threading.Thread(target=self._hear, args=(told,), daemon=True).start()

    def _hear(self, told: int) -> None:
        try:
            self.status = _number_from(told)
        finally:
            os.close(told)
            self._over.set()

    def within(self, seconds: float | None) -> int | None:
        """The status once it is known, None when it is not within this time."""
        self._over.wait(seconds)
        return self.status


class Forked:
    """A process that goes on, with as much of `subprocess.Popen` as the tests use."""

    def __init__(
        self, words: Sequence[str], pid: int, ending: Ending, stdin: TextIO | None, stdout: TextIO, stderr: TextIO
    ) -> None:
        self.args = words
        self.pid = pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._ending = ending
        self._read: dict[str, str] = {}
        self._readers: list[threading.Thread] = []

    @property
    def returncode(self) -> int | None:
        return self._ending.status

    def poll(self) -> int | None:
        return self._ending.within(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._ending.within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it writes until it ends."""
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        if not self._readers:
            files = {"out": self.stdout, "err": self.stderr}.items()
            self._readers = [threading.Thread(target=self._read_all, args=one, daemon=True) for one in files]
            for reader in self._readers:
                reader.start()
        self.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        return self._read["out"], self._read["err"]

    def _read_all(self, name: str, file: TextIO) -> None:
        with file:
            self._read[name] = file.read()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()


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
        """Exit status, or minus the signal that ended it; what it wrote; what it complained about.

        With `-c CODE` or a file of Python for its words it is a program of the user's.
        """
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write((text or "").encode())
            given.seek(0)
            files = [file.fileno() for file in (given, out, err)]
            status = self.run_on(files, words, folder, environment, deadline)
            out.seek(0)
            err.seek(0)
            return status, out.read().decode(), err.read().decode()

    def run_on(
        self, files: list[int], words: Sequence[str], folder: Path, environment: Mapping[str, str], deadline: float
    ) -> int:
        """The same on these files for input, output and complaints; the exit status."""
        pid, ending = self._fork(words, folder, environment, files)
        status = ending.within(deadline)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            ending.within(deadline)
            raise AssertionError(f"redrive {' '.join(words)} did not end in {deadline:g} s")
        return status

    def start(self, words: tuple[str, ...], folder: Path, environment: Mapping[str, str], *, piped: bool) -> Forked:
        """A process that goes on, behind pipes. Without `piped` it has nothing to read."""
        theirs_in, ours_in = os.pipe() if piped else (os.open(os.devnull, os.O_RDONLY), None)
        (ours_out, theirs_out), (ours_err, theirs_err) = os.pipe(), os.pipe()
        try:
            pid, ending = self._fork(words, folder, environment, [theirs_in, theirs_out, theirs_err])
        finally:
            for file in (theirs_in, theirs_out, theirs_err):
                os.close(file)
        stdin = None if ours_in is None else os.fdopen(ours_in, "w", encoding="utf-8")
        stdout, stderr = (os.fdopen(file, encoding="utf-8") for file in (ours_out, ours_err))
        return Forked(words, pid, ending, stdin, stdout, stderr)

    def _fork(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], files: list[int]
    ) -> tuple[int, Ending]:
        asked = {"words": words, "folder": str(folder), "environment": dict(environment)}
        told, tells = os.pipe()
        try:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], [*files, tells])
        finally:
            os.close(tells)
        return _number_from(told), Ending(told)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(60)


def _number_from(told: int) -> int:
    said = os.read(told, NUMBER)
    assert said, "the zygote is gone"
    return int.from_bytes(said, signed=True)


@functools.cache
def start_zygote() -> Zygote:
    """One for all tests of this process; it ends with it."""
    made = Zygote()
    atexit.register(made.close)
    return made


# ---- inside the zygote ----


def serve(asking: socket.socket) -> Callable[[], object] | None:
    """Answer until the test goes away; in a forked child, return what it is to do."""
    _import(NEEDED)
    dict(import_module("redrive.doors.cli").cli.commands)  # imports the module of every command
    keepers: set[int] = set()
    while True:
        request, files, _, _ = socket.recv_fds(asking, LARGEST, 4)
        if not request:
            return None
        asked = json.loads(request)
        _import(MORE.get(next(iter(asked["words"]), ""), ()))
        keepers -= {pid for pid in keepers if os.waitpid(pid, os.WNOHANG)[0]}
        pid = os.fork()
        if pid == 0:
            asking.close()
            if _keep(files.pop(), files):
                return _into_child(files, **asked)
            os._exit(0)
        keepers.add(pid)
        for file in files:
            os.close(file)


def _import(names: Sequence[str]) -> None:
    if not set(names) <= sys.modules.keys():
        for name in names:
            import_module(name)
    gc.freeze()  # a child need not look through what was imported, and does not copy it


def _keep(tells: int, files: list[int]) -> bool:
    """Fork the child, where this is true, and tell its id and its end. Whoever waits for one keeps no other waiting."""
    pid = os.fork()
    if pid == 0:
        os.close(tells)
        return True
    for file in files:
        os.close(file)
    os.write(tells, pid.to_bytes(NUMBER, signed=True))
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # the test is gone
        os.write(tells, os.waitstatus_to_exitcode(status).to_bytes(NUMBER, signed=True))
    return False


def _into_child(files: list[int], words: list[str], folder: str, environment: dict[str, str]) -> Callable[[], object]:
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    _open_streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # test runners that spread their work ignore it
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder  # as for `python -m`
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    match words:
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            return lambda: _run_code(code)
        case [script, *_] if script.endswith(".py"):
            sys.argv = words
            sys.path[0] = str(Path(script).resolve().parent)
            return lambda: runpy.run_path(script, run_name="__main__")
    sys.argv = ["redrive", *words]
    return lambda: runpy.run_module("redrive", run_name="__main__", alter_sys=True)


def _run_code(code: str) -> None:
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    exec(code, vars(main))


def _open_streams() -> None:
    """As an interpreter does when it begins: what can be told of a stream depends on what is behind it."""
    for place, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        stream = open(place, old.mode, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        stream.reconfigure(line_buffering=old.line_buffering or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        work = serve(asking)
    if work is not None:
        work()
