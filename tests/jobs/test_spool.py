"""The emergency spool: synced lines that are moved over, once, whoever drains and whatever is torn."""

import asyncio
import os
from pathlib import Path

import pytest

from redrive.core.store import Put
from redrive.jobs import jsonl
from redrive.jobs.spool import Spool, SpoolEntry
from redrive.stores.sqlite import SqliteStore
from tests.stored_jobs import a_job
from tests.support import FakeClock, eventually, line_of, process, soon


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


def names(spool: Spool) -> list[str]:
    return sorted(path.suffix for path in spool.folder.iterdir())


async def test_what_was_spooled_is_moved_with_its_documents(spool: Spool, store: SqliteStore, clock: FakeClock) -> None:
    assert spool.count() == 0
    jobs = [a_job(clock, payload=f'{{"n":{n}}}', key=f"k{n}", options_json='{"lease":5.0}') for n in range(3)]
    for job in jobs:
        spool.append(SpoolEntry(job, [Put("blob", f"{job.id}/0", b"\x00\xff bytes")]))
    assert spool.count() == 3

    async def insert(entry: SpoolEntry) -> None:
        await store.insert([entry.job], entry.documents)

    assert await spool.drain(insert) == 3
    assert await store.get([job.id for job in jobs]) == jobs
    assert {document.value for document in await store.docs("blob")} == {b"\x00\xff bytes"}
    assert (spool.count(), names(spool)) == (0, [])
    assert await spool.drain(insert) == 0


def test_it_is_private(spool: Spool, clock: FakeClock) -> None:
    spool.append(SpoolEntry(a_job(clock)))
    (path,) = spool.folder.iterdir()
    assert spool.folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.name == f"{os.getpid()}.jsonl"


async def test_a_torn_line_is_kept_aside_and_swallows_nothing(
    spool: Spool, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A crash left half a line at the end; the next append comes after it."""
    first, second = a_job(clock), a_job(clock)
    spool.append(SpoolEntry(first))
    (path,) = spool.folder.iterdir()
    with path.open("ab") as file:
        file.write(b'{"job": {"id": "hal')
    spool.append(SpoolEntry(second))
    moved: list[str] = []

    async def insert(entry: SpoolEntry) -> None:
        moved.append(entry.job.id)

    assert await spool.drain(insert) == 2
    assert moved == [first.id, second.id]
    (aside,) = spool.folder.iterdir()
    assert (aside.suffix, aside.read_bytes()) == (".unreadable", b'{"job": {"id": "hal\n')
    assert any("unreadable" in record.getMessage() for record in caplog.records)


async def test_a_drain_that_fails_midway_is_continued(spool: Spool, clock: FakeClock) -> None:
    jobs = [a_job(clock) for _ in range(4)]
    for job in jobs:
        spool.append(SpoolEntry(job))
    moved: list[str] = []

    async def insert(entry: SpoolEntry) -> None:
        if len(moved) == 2:
            raise OSError("the store is gone again")
        moved.append(entry.job.id)

    with pytest.raises(OSError, match="gone again"):
        await spool.drain(insert)
    assert spool.count() == 4, "nothing is removed before all of its file is in the store"
    moved.clear()
    spool.append(SpoolEntry(a_job(clock)))

    async def insert_all(entry: SpoolEntry) -> None:
        moved.append(entry.job.id)

    assert await spool.drain(insert_all) == 5
    assert set(moved) >= {job.id for job in jobs}
    assert spool.count() == 0


async def test_an_unreadable_line_is_kept_aside_once_however_often_the_drain_fails(
    spool: Spool, clock: FakeClock
) -> None:
    spool.append(SpoolEntry(a_job(clock)))
    (path,) = spool.folder.iterdir()
    path.write_bytes(b'{"rubbish\n' + path.read_bytes())
    busy = [OSError("the store is busy")] * 3

    async def insert(entry: SpoolEntry) -> None:
        if busy:
            raise busy.pop()

    for _ in range(3):
        with pytest.raises(OSError, match="busy"):
            await spool.drain(insert)
    assert await spool.drain(insert) == 1
    (aside,) = spool.folder.iterdir()
    assert (aside.suffix, aside.read_bytes()) == (".unreadable", b'{"rubbish\n')


def test_many_are_spooled_together_or_not_at_all(
    spool: Spool, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.append(SpoolEntry(a_job(clock)), SpoolEntry(a_job(clock)))
    assert spool.count() == 2
    write, written = jsonl._write, list[bytes]()

    def full(handle: int, data: bytes) -> None:
        if written:
            raise OSError("no space left on device")
        written.append(data)
        write(handle, data)

    monkeypatch.setattr(jsonl, "_write", full)
    with pytest.raises(OSError, match="no space"):
        spool.append(*(SpoolEntry(a_job(clock)) for _ in range(3)))
    assert spool.count() == 2


async def test_an_append_during_a_drain_is_not_lost(spool: Spool, clock: FakeClock) -> None:
    first, second = a_job(clock), a_job(clock)
    spool.append(SpoolEntry(first))
    moved: list[str] = []

    async def insert(entry: SpoolEntry) -> None:
        if not moved:
            spool.append(SpoolEntry(second))
        moved.append(entry.job.id)

    await spool.drain(insert)
    await spool.drain(insert)
    assert moved == [first.id, second.id]


async def test_two_drainers_share_the_work_and_move_nothing_twice(spool: Spool, clock: FakeClock) -> None:
    """The second comes while the first holds the file."""
    job = a_job(clock)
    spool.append(SpoolEntry(job))
    inside, release = asyncio.Event(), asyncio.Event()
    moved: list[str] = []

    async def slowly(entry: SpoolEntry) -> None:
        inside.set()
        await release.wait()
        moved.append(f"first {entry.job.id}")

    async def quickly(entry: SpoolEntry) -> None:
        moved.append(f"second {entry.job.id}")

    first = asyncio.create_task(spool.drain(slowly))
    await soon(inside.wait())
    assert await Spool(spool.folder).drain(quickly) == 0
    release.set()
    assert await soon(first) == 1
    assert moved == [f"first {job.id}"]


async def test_a_file_that_another_drainer_took_meanwhile_is_no_error(
    spool: Spool, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.append(SpoolEntry(a_job(clock)))
    (path,) = spool.folder.iterdir()
    seen = list(spool.folder.glob("*.jsonl"))
    path.rename(path.with_suffix(".draining"))
    glob = Path.glob

    def late(self: Path, pattern: str) -> object:
        return iter(seen) if pattern == "*.jsonl" else glob(self, pattern)

    monkeypatch.setattr(Path, "glob", late)
    moved: list[str] = []

    async def insert(entry: SpoolEntry) -> None:
        moved.append(entry.job.id)

    assert await spool.drain(insert) == 1
    assert len(moved) == 1


DRAINER = """
import asyncio, sys
from pathlib import Path
from redrive.jobs.spool import Spool

moved = []

async def insert(entry):
    moved.append(entry.job.id)

async def main():
    spool = Spool(Path(sys.argv[1]))
    print("ready", flush=True)
    while not Path(sys.argv[2]).exists():
        await spool.drain(insert)
    await spool.drain(insert)
    print(" ".join(moved), flush=True)

asyncio.run(main())
"""


async def test_two_processes_drain_while_a_third_appends(spool: Spool, tmp_path: Path, clock: FakeClock) -> None:
    spool.folder.mkdir()
    with (
        process(DRAINER, spool.folder, tmp_path / "end") as one,
        process(DRAINER, spool.folder, tmp_path / "end") as two,
    ):
        for child in (one, two):
            assert await line_of(child) == "ready"
        jobs = [a_job(clock) for _ in range(150)]
        for job in jobs:
            spool.append(SpoolEntry(job))
        await eventually(lambda: spool.count() == 0)
        (tmp_path / "end").touch()
        moved = [id for child in (one, two) for id in (await line_of(child)).split()]
    assert sorted(moved) == sorted(job.id for job in jobs)


SMALL_DISK = """
import resource, signal, sys
from pathlib import Path
from redrive.core.job import Job, State
from redrive.jobs import jsonl
from redrive.jobs.spool import SpoolEntry, Spool

def job(id: str, size: int) -> SpoolEntry:
    return SpoolEntry(Job(id, "q", "t", None, State.waiting, 2, 0.0, 1, 0.0, 0.0, "x" * size))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = Spool(Path(sys.argv[1]))
spool.append(job("first", 10))
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
try:
    spool.append(job("second", 5000))
except OSError as error:
    print("refused", spool.count(), flush=True)
else:
    print("accepted", spool.count(), flush=True)
"""


async def test_a_disk_that_takes_only_half_a_line_has_accepted_nothing(spool: Spool) -> None:
    with process(SMALL_DISK, spool.folder) as child:
        assert await line_of(child) == "refused 1"
    moved: list[str] = []

    async def insert(entry: SpoolEntry) -> None:
        moved.append(entry.job.id)

    assert await spool.drain(insert) == 1
    assert moved == ["first"]


async def test_counting_while_somebody_drains_is_no_error(
    spool: Spool, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.append(SpoolEntry(a_job(clock)))
    gone = spool.folder / "gone.jsonl"
    files = [gone, *spool.folder.iterdir()]
    monkeypatch.setattr(spool, "_files", lambda: files)
    assert spool.count() == 1
