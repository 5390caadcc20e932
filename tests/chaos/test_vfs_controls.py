"""The disks of vfs.py, tried on bare SQLite: what must hold does, and what must break without its guard breaks.

The second half is the point. If synchronous=NORMAL lost nothing here, then "FULL lost nothing" would prove nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from random import Random

import apsw
import pytest

from tests.chaos.vfs import (
    PLAIN,
    SECTOR,
    VARIANTS,
    Created,
    DirectorySynced,
    Disk,
    Entry,
    FaultVFS,
    FileKind,
    LayeredVFS,
    Log,
    Marked,
    Operation,
    QuotaVFS,
    RecordingVFS,
    Survey,
    Synced,
    SyncFailed,
    Truncated,
    Written,
    chosen_seed,
    images,
    inspect_files,
    installed,
    scratch_directory,
    survey_images,
)

pytestmark = pytest.mark.chaos

DATABASE = "jobs.db"
IDS = "SELECT id FROM jobs"
BODY = bytes(700)
IMAGES = 300


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch_directory() as scratch:
        yield scratch


@pytest.fixture
def seed() -> int:
    return chosen_seed()


# ---- a store of one table ----


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def opened(directory: Path, synchronous: str) -> apsw.Connection:
    """Pragmas go through `pragma`, which reads all rows: an unread statement has not ended, nor told its error."""
    connection = apsw.Connection(str(directory / DATABASE))
    connection.set_busy_timeout(30_000)
    connection.pragma("synchronous", synchronous)
    connection.pragma("wal_autocheckpoint", 20)
    return connection


def created(directory: Path) -> apsw.Connection:
    """Created, or recovered if it was half created: EXTRA until it surely is in WAL mode."""
    connection = opened(directory, "EXTRA")
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS jobs(id INTEGER PRIMARY KEY, body BLOB)")
        assert connection.pragma("journal_mode", "WAL") == "wal"
        sync_directory(directory)
        connection.pragma("synchronous", "FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def insert(connection: apsw.Connection, job: int) -> None:
    connection.execute("INSERT INTO jobs VALUES(?, ?)", (job, BODY))


def acknowledge_rows(directory: Path, synchronous: str) -> RecordingVFS:
    """Three lives of a store: one creates it, two commit row after row and acknowledge each."""
    with installed(RecordingVFS(directory)) as recorder:
        created(directory).close()
        for jobs in (range(40), range(40, 60)):
            with closing(opened(directory, synchronous)) as connection:
                for job in jobs:
                    insert(connection, job)
                    recorder.mark(job)
    assert recorder.unrecorded() == []
    return recorder


def surveyed(recorder: RecordingVFS, seed: int, limit: int | None = IMAGES) -> Survey:
    survey = survey_images(recorder.log, DATABASE, IDS, seed=seed, limit=limit)
    print(survey)
    return survey


# ---- power loss ----


def test_full_loses_no_acknowledged_row(directory: Path, seed: int) -> None:
    survey = surveyed(acknowledge_rows(directory, "FULL"), seed)
    assert survey.images == IMAGES
    assert not survey.lossy and not survey.corrupt, survey


def test_control_normal_loses_acknowledged_rows_but_stays_sound(directory: Path, seed: int) -> None:
    survey = surveyed(acknowledge_rows(directory, "NORMAL"), seed)
    assert len(survey.lossy) > 0
    assert not survey.corrupt, survey


def test_control_off_corrupts_and_loses(directory: Path, seed: int) -> None:
    survey = surveyed(acknowledge_rows(directory, "OFF"), seed)
    assert len(survey.lossy) > 0
    assert len(survey.corrupt) > 0


def survey_creation(directory: Path, seed: int, synchronous: str, *, directory_synced: bool) -> Survey:
    with installed(RecordingVFS(directory)) as recorder, closing(opened(directory, synchronous)) as connection:
        connection.execute("CREATE TABLE jobs(id INTEGER PRIMARY KEY, body BLOB)")
        if directory_synced:
            sync_directory(directory)
        recorder.mark("jobs")
    return survey_images(recorder.log, DATABASE, "SELECT name FROM sqlite_schema", seed=seed)


@pytest.mark.parametrize(("synchronous", "directory_synced"), [("EXTRA", True), ("EXTRA", False), ("FULL", True)])
def test_a_created_database_stays(directory: Path, seed: int, synchronous: str, directory_synced: bool) -> None:
    survey = survey_creation(directory, seed, synchronous, directory_synced=directory_synced)
    assert not survey.lossy and not survey.corrupt, survey


def test_control_without_extra_and_a_directory_sync_creation_is_undone(directory: Path, seed: int) -> None:
    """The deleted journal comes back and rolls the table away."""
    survey = survey_creation(directory, seed, "FULL", directory_synced=False)
    assert len(survey.lossy) > 0


def test_a_synced_commit_covers_the_unsynced_ones_before_it(directory: Path, seed: int) -> None:
    """Claims are committed with NORMAL and may be lost, but not once a FULL commit followed them."""
    with installed(RecordingVFS(directory)) as recorder, closing(created(directory)) as connection:
        for job in range(0, 60, 3):
            connection.pragma("synchronous", "NORMAL")
            insert(connection, job)
            insert(connection, job + 1)
            connection.pragma("synchronous", "FULL")
            insert(connection, job + 2)
            for covered in (job, job + 1, job + 2):
                recorder.mark(covered)
    survey = surveyed(recorder, seed)
    assert not survey.lossy and not survey.corrupt, survey


def test_power_lost_again_during_recovery(directory: Path, seed: int) -> None:
    first = acknowledge_rows(directory, "FULL")
    for image in images(first.log, seed=seed, limit=8):
        with scratch_directory() as second_life:
            image.write(second_life)
            with installed(RecordingVFS(second_life)) as recorder:
                for job in image.marks:
                    recorder.mark(job)
                with closing(created(second_life)) as connection:
                    insert(connection, 1_000)
                    recorder.mark(1_000)
            survey = surveyed(recorder, seed, limit=30)
            assert not survey.lossy and not survey.corrupt, survey


def test_readers_and_a_writer_in_threads_are_recorded_in_order(directory: Path, seed: int) -> None:
    with installed(RecordingVFS(directory)) as recorder, closing(created(directory)) as writer:
        written = threading.Event()

        def read() -> None:
            for _ in range(1_000):
                with closing(opened(directory, "FULL")) as reader:
                    reader.execute(IDS).fetchall()
                if written.is_set():
                    return

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for job in range(100):
            insert(writer, job)
            recorder.mark(job)
        written.set()
        for reader in readers:
            reader.join(30)
    assert recorder.unrecorded() == []
    survey = surveyed(recorder, seed, limit=100)
    assert not survey.lossy and not survey.corrupt, survey


# ---- the images themselves ----


def log_of(*entries: Entry, found: dict[str, tuple[int, bytes]] | None = None) -> Log:
    return Log(found or {}, list(entries))


def outcomes(log: Log, name: str = "f") -> set[bytes | None]:
    """What the file can be after the whole log; None if it is gone."""
    disk = Disk(log)
    for entry in log.entries:
        disk.apply(entry)
    return {disk.files(variant(disk.changes, Random(seed))).get(name) for variant in VARIANTS for seed in range(20)}


def test_a_synced_write_is_in_every_image() -> None:
    log = log_of(Written(1, 0, b"new"), Synced(1, 0), found={"f": (1, b"old")})
    assert outcomes(log) == {b"new"}


def test_an_unsynced_write_is_torn_between_sectors_only() -> None:
    log = log_of(Written(1, 0, b"n" * 2 * SECTOR), found={"f": (1, b"o" * 2 * SECTOR)})
    halves = (b"o" * SECTOR, b"n" * SECTOR)
    assert outcomes(log) == {first + second for first in halves for second in halves}


def test_a_write_across_a_sector_boundary_is_torn_at_that_boundary() -> None:
    log = log_of(Written(1, SECTOR - 1, b"nn"), found={"f": (1, b"o" * (SECTOR + 1))})
    start = b"o" * (SECTOR - 1)
    assert outcomes(log) == {start + b"oo", start + b"on", start + b"no", start + b"nn"}


def test_a_file_may_have_grown_without_its_data() -> None:
    assert outcomes(log_of(Written(1, 0, b"n"), found={"f": (1, b"")})) == {b"", b"n", b"\0"}


def test_a_created_file_vanishes_unless_its_directory_was_synced() -> None:
    created = (Created(1, "f"), Written(1, 0, b"n"), Synced(1, 0))
    assert outcomes(log_of(*created)) == {None, b"n"}
    assert outcomes(log_of(*created, DirectorySynced())) == {b"n"}


def test_an_unsynced_truncation_may_not_have_happened() -> None:
    assert outcomes(log_of(Truncated(1, 1), found={"f": (1, b"old")})) == {b"old", b"o"}


def test_a_failed_sync_throws_the_unsynced_writes_away() -> None:
    log = log_of(Written(1, 0, b"1"), SyncFailed(1), Written(1, 1, b"2"), Synced(1, 0), found={"f": (1, b"..")})
    assert outcomes(log) == {b".2"}


def test_an_image_owes_the_marks_before_it_and_no_others() -> None:
    log = log_of(Written(1, 0, b"1"), Marked("a"), Written(1, 0, b"2"), Marked("b"), found={"f": (1, b"")})
    assert {(image.step, image.marks) for image in images(log, seed=0)} == {(0, ()), (2, ("a",)), (4, ("a", "b"))}


def test_the_same_seed_gives_the_same_images_and_none_twice(directory: Path, seed: int) -> None:
    log = acknowledge_rows(directory, "FULL").log
    made = list(images(log, seed=seed, limit=50))
    assert made == list(images(log, seed=seed, limit=50))
    assert len({(image.marks, tuple(image.files.items())) for image in made}) == len(made) == 50


# ---- the model of the directory, against the real unix VFS ----

OpenDirectory = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))


@contextmanager
def counting_directory_opens() -> Iterator[list[bytes]]:
    """The unix VFS opens a directory only to sync it."""
    plain = apsw.VFS("redrive-probe", base=PLAIN)
    address = plain.xGetSystemCall("openDirectory")
    assert address is not None
    original, opens = OpenDirectory(address), list[bytes]()

    def counted(path: bytes, descriptor: object) -> int:
        opens.append(path)
        return int(original(path, descriptor))

    replacement = OpenDirectory(counted)
    pointer = ctypes.cast(replacement, ctypes.c_void_p).value
    assert pointer is not None
    plain.xSetSystemCall("openDirectory", pointer)
    try:
        yield opens
    finally:
        plain.xSetSystemCall("openDirectory", address)
        plain.unregister()


@pytest.mark.parametrize(("synchronous", "expected"), [("EXTRA", 6), ("FULL", 4), ("OFF", 0)])
def test_the_directory_syncs_in_the_log_are_those_of_sqlite(directory: Path, synchronous: str, expected: int) -> None:
    with counting_directory_opens() as opens, installed(RecordingVFS(directory)) as recorder:
        with closing(opened(directory, synchronous)) as connection:
            connection.execute("CREATE TABLE jobs(id INTEGER PRIMARY KEY, body BLOB)")
            connection.pragma("journal_mode", "WAL")
            insert(connection, 1)
        with closing(opened(directory, synchronous)) as connection:
            insert(connection, 2)
    assert recorder.log.entries.count(DirectorySynced()) == len(opens) == expected


def test_a_directory_fsync_by_the_program_is_noticed(directory: Path) -> None:
    (directory / "elsewhere").mkdir()
    with installed(RecordingVFS(directory)) as recorder:
        os.close(os.open(directory / DATABASE, os.O_CREAT | os.O_EXCL, 0o600))
        sync_directory(directory / "elsewhere")
        assert recorder.log.entries == []
        sync_directory(directory)
        assert recorder.log.entries == [Created(1, DATABASE), DirectorySynced()]
        apsw.Connection(str(directory / DATABASE)).close()
    sync_directory(directory)
    assert recorder.log.entries == [Created(1, DATABASE), DirectorySynced()]


# ---- installing ----


@pytest.mark.parametrize("make", [RecordingVFS, lambda _: FaultVFS(), lambda _: QuotaVFS(1)])
def test_the_former_default_comes_back(directory: Path, make: Callable[[Path], LayeredVFS]) -> None:
    before, fsync = apsw.vfs_names()[0], os.fsync
    with pytest.raises(ZeroDivisionError), installed(make(directory)) as vfs:
        assert apsw.vfs_names()[0] == vfs.name
        raise ZeroDivisionError
    assert apsw.vfs_names()[0] == before
    assert os.fsync is fsync


# ---- the nth operation fails ----


def insert_until_error(directory: Path, jobs: int = 30) -> set[int]:
    """The ids that were acknowledged before the first error, which ends it."""
    acknowledged: set[int] = set()
    try:
        with closing(created(directory)) as connection:
            for job in range(jobs):
                insert(connection, job)
                acknowledged.add(job)
    except (apsw.Error, OSError):
        pass
    return acknowledged


@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_no_row_is_acknowledged_falsely_whichever_operation_fails(error: int, sticky: bool) -> None:
    for nth in range(1, 61):
        fault = FaultVFS(nth, error, operations=list(Operation), sticky=sticky, partial=bool(nth % 2))
        with scratch_directory() as directory:
            with installed(fault):
                acknowledged = insert_until_error(directory)
            found = inspect_files(directory, DATABASE, IDS)
            assert fault.struck, nth
            assert found.error is None and acknowledged <= found.rows, (nth, fault.struck, found.error)


@pytest.mark.parametrize(
    ("operation", "error", "code"),
    [
        (Operation.WRITE, errno.EIO, apsw.SQLITE_IOERR_WRITE),
        (Operation.WRITE, errno.ENOSPC, apsw.SQLITE_FULL),
        (Operation.SYNC, errno.EIO, apsw.SQLITE_IOERR_FSYNC),
        (Operation.SYNC, errno.ENOSPC, apsw.SQLITE_IOERR_FSYNC),
    ],
)
def test_the_error_is_the_one_of_the_unix_vfs(directory: Path, operation: Operation, error: int, code: int) -> None:
    fault = FaultVFS(error=error, operations={operation})
    with installed(fault), closing(created(directory)) as connection:
        fault.arm(1)
        with pytest.raises(apsw.Error) as raised:
            insert(connection, 1)
        assert vars(raised.value)["extendedresult"] == code
        insert(connection, 1)


def test_a_fault_counts_only_the_files_it_is_meant_for(directory: Path) -> None:
    meant = FaultVFS(1, kinds={FileKind.DIRECTORY})
    with installed(meant), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        created(directory).close()
    assert meant.struck == ["sync directory"]
    with installed(FaultVFS(1, kinds={FileKind.WAL})) as meant, closing(opened(directory, "FULL")) as connection:
        with pytest.raises(apsw.IOError):
            insert(connection, 1)
        insert(connection, 1)
    assert meant.struck == [f"write {DATABASE}-wal"]


def test_a_fault_strikes_once_among_many_threads(directory: Path) -> None:
    with installed(FaultVFS()) as fault, closing(created(directory)):
        fault.arm(100)
        errors: list[apsw.Error] = []

        def write(first: int) -> None:
            with closing(opened(directory, "FULL")) as connection:
                for job in range(first, first + 25):
                    try:
                        insert(connection, job)
                    except apsw.Error as error:
                        errors.append(error)

        threads = [threading.Thread(target=write, args=(first,)) for first in (0, 100, 200, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert fault.counted > 100
    assert len(fault.struck) == len(errors) == 1
    found = inspect_files(directory, DATABASE, IDS)
    assert found.error is None and len(found.rows) >= 99


# ---- a failed fsync has thrown data away ----


def survey_after_a_failed_sync(directory: Path, seed: int, *, carry_on: bool) -> Survey:
    """An unsynced commit, a synced one whose sync fails, and, if the store carries on, another one that succeeds."""
    recorder = RecordingVFS(directory)
    fault = FaultVFS(operations={Operation.SYNC}, base=recorder)
    with installed(fault), closing(created(directory)) as connection:
        insert(connection, 0)
        recorder.mark(0)
        connection.pragma("synchronous", "NORMAL")
        insert(connection, 1)
        connection.pragma("synchronous", "FULL")
        fault.arm(1)
        with pytest.raises(apsw.IOError):
            insert(connection, 2)
        if carry_on:
            insert(connection, 3)
            recorder.mark(3)
    return surveyed(recorder, seed, limit=None)


def test_stopping_at_a_failed_sync_loses_nothing_acknowledged(directory: Path, seed: int) -> None:
    survey = survey_after_a_failed_sync(directory, seed, carry_on=False)
    assert not survey.lossy and not survey.corrupt, survey


def test_control_carrying_on_after_a_failed_sync_loses_acknowledged_rows(directory: Path, seed: int) -> None:
    survey = survey_after_a_failed_sync(directory, seed, carry_on=True)
    assert len(survey.lossy) > 0


# ---- a full disk ----


def test_a_full_disk_refuses_clearly_and_resumes_with_more_room(directory: Path) -> None:
    with installed(QuotaVFS(64 * 1024)) as vfs, closing(created(directory)) as connection:
        jobs, acknowledged = count(), set()
        for room in (64, 96, 128):
            vfs.quota = room * 1024
            with pytest.raises(apsw.FullError):
                for job in (next(jobs) for _ in range(1_000)):
                    insert(connection, job)
                    acknowledged.add(job)
            assert vfs.used() <= vfs.quota
            assert acknowledged <= {row[0] for row in connection.execute(IDS)}
        vfs.quota = 1024 * 1024
        insert(connection, 1_000_000)
        acknowledged.add(1_000_000)
    assert vfs.refused >= 3
    found = inspect_files(directory, DATABASE, IDS)
    assert found.error is None and acknowledged <= found.rows
