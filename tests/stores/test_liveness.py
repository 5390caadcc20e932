"""A sign of life is one from the moment on at which others can see it."""

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.stores.sqlite import liveness
from redrive.stores.sqlite.liveness import ProcessLock

LOOKS = """
import sys
from pathlib import Path
from redrive.stores.sqlite.liveness import ProcessLock
lock = ProcessLock(Path(sys.argv[1]))
print(*(path.name for path in lock.folder.iterdir() if lock.is_dead(path.name)))
"""


def dead_by_another(database: Path) -> list[str]:
    """Whom another process takes for dead; it takes their signs down."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LOOKS, str(database)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout.split()


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[ProcessLock]:
    lock = ProcessLock(tmp_path / "jobs.db")
    yield lock
    lock.release()


def test_who_lives_is_not_taken_for_dead(tmp_path: Path, lock: ProcessLock) -> None:
    lock.take()
    assert dead_by_another(tmp_path / "jobs.db") == []
    assert (lock.folder / lock.name).exists()


def test_a_look_between_the_file_and_its_lock_kills_nobody(
    tmp_path: Path, lock: ProcessLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process sees a file that nobody has locked yet, and removes it."""
    database, taken_for_dead = tmp_path / "jobs.db", list[str]()
    really = fcntl.lockf

    def late(handle: int, how: int) -> Any:
        if not taken_for_dead:
            taken_for_dead.extend(dead_by_another(database))
        return really(handle, how)

    monkeypatch.setattr(fcntl, "lockf", late)
    lock.take()
    assert taken_for_dead == [lock.name], "the look fell into the gap"
    assert dead_by_another(database) == []
    assert (lock.folder / lock.name).exists()


def test_a_look_at_the_very_moment_is_waited_for(lock: ProcessLock, monkeypatch: pytest.MonkeyPatch) -> None:
    really, refused = fcntl.lockf, list[int]()

    def busy(handle: int, how: int) -> Any:
        if len(refused) < 3:
            refused.append(handle)
            raise BlockingIOError
        return really(handle, how)

    monkeypatch.setattr(fcntl, "lockf", busy)
    lock.take()
    assert len(refused) == 3 and not lock.is_dead(lock.name)


def test_who_is_gone_is_dead(tmp_path: Path, lock: ProcessLock) -> None:
    lock.take()
    gone = f"{socket.gethostname()}-1-abcdef"
    (lock.folder / gone).touch()
    assert dead_by_another(tmp_path / "jobs.db") == [gone]
    assert lock.is_dead(gone)
    assert liveness._held.keys() == {lock.folder / lock.name}
