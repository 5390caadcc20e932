"""In the process of an open store nothing else opens its files: a close would drop the locks of the store."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import redrive
from redrive.stores.sqlite import SqliteStore
from tests.stores.jobs import a_job
from tests.stores.outside import outsider

Opening = Callable[[Path], object]


def _tar(path: Path) -> None:
    with tarfile.open(path.with_name("all.tar"), "w") as archive:
        archive.add(path)


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path.with_name("all.zip"), "w") as archive:
        archive.write(path)


def _relative(path: Path) -> None:
    os.chdir(path.parent)
    sqlite3.connect(path.name).close()


def _escaped(path: Path) -> None:
    sqlite3.connect(f"file:{path.parent}/job%73.db?mode=ro#part", uri=True).close()


def _linked(path: Path) -> None:
    link = path.with_name("link.db")
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    sqlite3.connect(link).close()


def _hard_linked(path: Path) -> None:
    link = path.with_name("other")
    link.unlink(missing_ok=True)
    link.hardlink_to(path)
    sqlite3.connect(f"file:{link}?immutable=1", uri=True).close()


def _link_made_before(path: Path) -> Path:
    """A link that lies beside the database before the store is opened."""
    return path.with_name("before.db")


def _open_linked(path: Path) -> None:
    link = path.with_name("linked.db")
    link.unlink(missing_ok=True)
    link.symlink_to(path.name)
    link.read_bytes()


def _open_hard_linked(path: Path) -> None:
    link = path.with_name("hard-linked")
    link.unlink(missing_ok=True)
    os.link(path, link)
    link.read_bytes()


def _open_renamed(path: Path) -> None:
    link, renamed = path.with_name("to-rename"), path.with_name("renamed")
    link.unlink(missing_ok=True)
    os.link(path, link)
    link.rename(renamed)
    renamed.read_bytes()


def _by_number(folder: str) -> Opening:
    """Opens the file by the number of a descriptor that this process has of it, or of another file."""

    def opening(path: Path) -> None:
        ours = [n for n in os.listdir(folder) if os.path.exists(f"{folder}/{n}") and path.samefile(f"{folder}/{n}")]
        for number in ours:
            os.close(os.open(f"{folder}/{number}", os.O_RDONLY))

    return opening


def _in_an_open_folder(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    os.chdir("/")
    try:
        os.close(os.open(path.name, os.O_RDONLY, dir_fd=folder))
    finally:
        os.close(folder)


OPENINGS: dict[str, Opening] = {
    "sqlite3": lambda path: sqlite3.connect(path).close(),
    "sqlite3 by a text": lambda path: sqlite3.connect(str(path)).close(),
    "sqlite3 by bytes": lambda path: sqlite3.connect(os.fsencode(path)).close(),
    "sqlite3 by a relative path": _relative,
    "sqlite3 read-only": lambda path: sqlite3.connect(f"file:{path}?mode=ro", uri=True).close(),
    "sqlite3 by a URI with a host": lambda path: sqlite3.connect(f"file://localhost{path}", uri=True).close(),
    "sqlite3 by an escaped URI": _escaped,
    "sqlite3 by a link": _linked,
    "sqlite3 by a hard link": _hard_linked,
    "open": lambda path: path.open("rb").close(),
    "open of the log": lambda path: Path(f"{path}-wal").read_bytes(),
    "open of the shared memory": lambda path: Path(f"{path}-shm").read_bytes(),
    "os.open": lambda path: os.close(os.open(path, os.O_RDONLY)),
    "os.open by bytes": lambda path: os.close(os.open(os.fsencode(path), os.O_RDONLY)),
    "open by a link": _open_linked,
    "open by a link made before": lambda path: _link_made_before(path).read_bytes(),
    "open by a hard link": _open_hard_linked,
    "open after a rename": _open_renamed,
    "open by a descriptor's number": _by_number("/proc/self/fd"),
    "open by a device's number": _by_number("/dev/fd"),
    "os.open in an open folder": _in_an_open_folder,
    "shutil.copy of a link": lambda path: shutil.copy(_link_made_before(path), path.with_name("copy.db")),
    "shutil.copy": lambda path: shutil.copy(path, path.with_name("copy.db")),
    "shutil.copytree": lambda path: shutil.copytree(path.parent, path.parent / "copy", dirs_exist_ok=True),
    "tarfile": _tar,
    "zipfile": _zip,
}


@pytest.mark.behaviour("T-15a")
@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
async def test_a_second_opening_in_the_process_of_a_store_is_refused(
    folder: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    store = SqliteStore(folder / "jobs.db")
    _link_made_before(store.path).symlink_to(store.path)
    await store.open()
    await store.insert([a_job(id="kept")])
    try:
        with pytest.raises(RuntimeError, match=r"redrive sql.*redrive backup"):
            opening(store.path)
        assert [job.id async for job in store.scan()] == ["kept"]
    finally:
        await store.close()
    opening(store.path)


async def test_a_store_keeps_its_locks(folder: Path) -> None:
    """The one thing that matters: another process still sees that the file is in use."""
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    await store.insert([a_job(id="kept")])
    for opening in (OPENINGS["sqlite3"], OPENINGS["open of the shared memory"]):
        with pytest.raises(redrive.DatabaseInUse):
            opening(store.path)
    assert _locks_seen_outside(store.path) == {"jobs.db", "jobs.db-shm"}
    await store.close()
    assert _locks_seen_outside(store.path) == set()


def _locks_seen_outside(path: Path) -> set[str]:
    """Which files another process finds locked."""
    code = """
import fcntl, os, struct, sys
for path in sys.argv[1:]:
    if os.path.exists(path):
        with open(path, "r+b") as file:
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            if struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK:
                print(os.path.basename(path))
"""
    words = [sys.executable, "-c", code, str(path), f"{path}-shm"]
    return set(subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.split())


async def test_the_guard_lasts_as_long_as_any_store_of_the_file(folder: Path) -> None:
    first, second = SqliteStore(folder / "jobs.db"), SqliteStore(folder / "jobs.db")
    await first.open()
    await second.open()
    await first.close()
    with pytest.raises(redrive.DatabaseInUse):
        sqlite3.connect(second.path)
    await second.close()
    sqlite3.connect(second.path).close()


async def test_a_store_opened_by_a_link_is_guarded_under_both_names(folder: Path) -> None:
    real = folder / "real.db"
    link = folder / "link.db"
    store = SqliteStore(real)
    await store.open()
    await store.close()
    link.symlink_to(real)
    store = SqliteStore(link)
    await store.open()
    await store.insert([a_job()])
    for name in ("real.db", "real.db-shm", "link.db"):
        with pytest.raises(redrive.DatabaseInUse):
            (folder / name).read_bytes()
    await store.close()


async def test_other_files_are_opened_as_ever(folder: Path) -> None:
    """Also one that has the name of the database, in another folder."""
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    other = folder / "other" / "jobs.db"
    other.parent.mkdir()
    other.write_text("mine")
    assert other.read_text() == "mine"
    with closing(sqlite3.connect(":memory:")) as memory, closing(sqlite3.connect(folder / "theirs.db")) as theirs:
        assert memory.execute("SELECT 1").fetchone() == theirs.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(FileExistsError):
        store.path.open("x")
    with pytest.raises(FileNotFoundError):
        (folder / "none" / "jobs.db").read_text()
    await store.close()


async def test_another_process_may_use_sqlite_on_the_file(folder: Path) -> None:
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    await store.insert([a_job(id="kept")])
    code = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM jobs').fetchone()[0])"
    words = [sys.executable, "-c", code, str(store.path)]
    assert subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.strip() == "1"
    async with outsider("sqlite", folder) as other:
        assert await other.ask("claim 1") == ["kept"]
    await store.close()


async def test_a_store_does_not_open_a_file_that_sqlite3_has_open_here(folder: Path) -> None:
    """The close would come later, and no hook sees a close."""
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    await store.close()
    with closing(sqlite3.connect(store.path)) as before:
        before.execute("SELECT count(*) FROM jobs").fetchall()
        with pytest.raises(redrive.DatabaseInUse, match="Close it before"):
            await store.open()
    await store.open()
    assert await store.insert([a_job()])
    await store.close()


async def test_apsw_may_have_it_open_as_it_is_the_same_library(folder: Path) -> None:
    store = SqliteStore(folder / "jobs.db")
    await store.open()
    await store.close()
    with closing(apsw.Connection(str(store.path))) as ours:
        assert ours.execute("SELECT count(*) FROM jobs").get == 0
        await store.open()
        await store.close()


async def test_a_file_that_was_refused_may_be_looked_at(folder: Path) -> None:
    path = folder / "jobs.db"
    path.write_text("not a database, and long enough for SQLite to notice" * 100)
    store = SqliteStore(path)
    with pytest.raises(redrive.StoreUnavailable):
        await store.open()
    assert path.read_text().startswith("not a database")


def test_the_hook_comes_with_the_first_store_and_not_with_the_import() -> None:
    code = """
import sys
added = []
sys.addaudithook(lambda event, args: added.append(event) if event == "sys.addaudithook" else None)
import asyncio, redrive, redrive.stores.sqlite
rd = redrive.Redrive(":memory:")
print(len(added))
async def main():
    async with rd:
        print(len(added))
    async with redrive.Redrive(":memory:"):
        print(len(added))
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["0", "1", "1"]


def test_a_hook_that_forbids_ours_is_told() -> None:
    code = """
import sys
def forbid(event, args):
    if event == "sys.addaudithook":
        raise RuntimeError("no more hooks")
sys.addaudithook(forbid)
import asyncio, redrive
async def main():
    async with redrive.Redrive(":memory:"):
        pass
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "another audit hook forbids ours" in done.stderr


def test_files_can_be_opened_while_the_interpreter_ends() -> None:
    """By then the module of the hook has lost its names."""
    code = """
import asyncio, io, os, sys, redrive
rd = redrive.Redrive(":memory:")
asyncio.run(rd.open())
class Last:
    def __del__(self, FileIO=io.FileIO, null=os.devnull, write=os.write):
        FileIO(null).close()
        write(1, b"opened")
redrive.last = Last()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("opened", "")
