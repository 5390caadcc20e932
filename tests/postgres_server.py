"""A PostgreSQL server that the tests start on a free loopback port, in a temporary folder, as an unprivileged user.

The server ends with the process that started it, also where that process is killed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

USER = "redrive_test"
PASSWORD = "kept-secret"
PATIENCE = 60.0
_DEBIAN = Path("/usr/lib/postgresql")
_MEMORY = Path("/dev/shm")


def binaries() -> Path | None:
    """The folder with initdb and postgres: the newest of Debian's, else what PATH has."""
    found = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    named = shutil.which("initdb")
    return Path(named).resolve().parent if named else None


class Server:
    """One running server. It can be stopped, killed and started again on the same port and data."""

    _running: ClassVar[Server | None] = None

    def __init__(self, folder: Path, *, options: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.port = _free_port()
        self.options = options or {}
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def running(cls) -> Server:
        assert cls._running is not None, "ask for the fixture postgres_server"
        return cls._running

    def url(self, *, namespace: str | None = None, database: str = "postgres", user: str = USER) -> str:
        suffix = f"?namespace={namespace}" if namespace else ""
        return f"postgresql://{user}:{PASSWORD}@127.0.0.1:{self.port}/{database}{suffix}"

    def make(self) -> None:
        """Make the folder of the data, with one user who needs a password."""
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        _give(secret)
        self._run(
            "initdb", "-D", str(self.folder / "data"), "-U", USER, "--auth=scram-sha-256", f"--pwfile={secret}",
            "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions",
        )  # fmt: skip

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*_unprivileged(), str(_bin() / program), *arguments], cwd=self.folder, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        options = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": str(self.folder),
                   "max_connections": "300", "shared_buffers": "32MB", "max_wal_size": "256MB"}  # fmt: skip
        given = [f"--{name}={value}" for name, value in (options | self.options).items()]
        output = (self.folder / "server.log").open("ab")
        with output:
            self._process = subprocess.Popen(
                [*_unprivileged("SIGINT"), str(_bin() / "postgres"), "-D", str(self.folder / "data"), *given],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            ready = [str(_bin() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER]
            if subprocess.run(ready, check=False, timeout=PATIENCE).returncode == 0:
                return
            time.sleep(0.02)
        raise AssertionError("PostgreSQL did not start\n" + (self.folder / "server.log").read_text())

    def stop(self) -> None:
        """Close all connections and stop."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Stop at once, without a checkpoint: the next start recovers from the log of the server."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)


@contextlib.contextmanager
def started(*, options: dict[str, str] | None = None) -> Iterator[Server]:
    """A server, stopped and removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="redrive-postgres-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
    server = Server(folder, options=options)
    before = Server._running
    try:
        _give(folder)
        server.make()
        server.start()
        Server._running = server
        yield server
    finally:
        Server._running = before
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _bin() -> Path:
    found = binaries()
    assert found is not None
    return found


def _unprivileged(at_death: str | None = None) -> list[str]:
    """The words before a command that run it as another user: PostgreSQL refuses root."""
    dies = ["--pdeathsig", at_death.removeprefix("SIG")] if at_death else []
    if os.getuid() == 0:
        user = _user()
        return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *dies, "--"]
    return ["setpriv", *dies, "--"] if dies and shutil.which("setpriv") else []


def _user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise AssertionError("neither postgres nor nobody is a user here")


def _give(path: Path) -> None:
    if os.getuid() == 0:
        os.chown(path, _user().pw_uid, _user().pw_gid)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
