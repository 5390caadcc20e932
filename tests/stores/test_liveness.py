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
    assert [path for path in liveness._held if path.parent == lock.folder] == [lock.folder / lock.name]


def test_the_folder_may_go_the_moment_it_was_found(lock: ProcessLock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one tidies up while the next one comes."""
    really, went = os.mkdir, list[Path]()

    def found_and_gone(path: Path, mode: int) -> None:
        try:
            really(path, mode)
        except FileExistsError:
            path.rmdir()
            went.append(path)
            raise

    lock.folder.mkdir()
    monkeypatch.setattr(os, "mkdir", found_and_gone)
    lock.take()
    assert went == [lock.folder]
    assert (lock.folder / lock.name).exists()


def test_a_look_of_the_own_process_as_the_lock_is_had_kills_nobody(
    tmp_path: Path, lock: ProcessLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores of one process open at once: locks belong to the process, so the kernel refuses it none of them."""
    other, really = ProcessLock(tmp_path / "jobs.db"), lock._lock

    def then_another_opens(handle: int) -> bool:
        locked = really(handle)
        other.take()
        return locked

    monkeypatch.setattr(lock, "_lock", then_another_opens)
    lock.take()
    assert {path.name for path in lock.folder.iterdir()} == {lock.name, other.name}
    assert dead_by_another(tmp_path / "jobs.db") == []
    other.release()


@pytest.mark.parametrize("linked", ["folder", "file"])
def test_another_spelling_of_the_same_database_kills_nobody(tmp_path: Path, linked: str) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    spelled = link / "jobs.db" if linked == "folder" else link
    link.symlink_to(real if linked == "folder" else real / "jobs.db")
    first, second = ProcessLock(real / "jobs.db"), ProcessLock(spelled)
    first.take()
    second.take()
    assert first.folder == second.folder == real / "jobs.db-live"
    assert not second.is_dead(first.name)
    assert dead_by_another(spelled) == []
    second.release()
    assert dead_by_another(real / "jobs.db") == []
    first.release()


def test_a_sign_that_could_not_be_put_up_is_nobodys(tmp_path: Path) -> None:
    """The name is given up, so that whatever stands there may be taken down."""
    lock = ProcessLock(tmp_path / "missing" / "jobs.db")
    with pytest.raises(FileNotFoundError):
        lock.take()
    assert lock.is_dead(lock.name)
    assert lock.folder / lock.name not in liveness._held
