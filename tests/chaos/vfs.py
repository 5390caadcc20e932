"""Disks that lose power, fail and fill up, put beneath SQLite through apsw's VFS.

Production code needs no flag for it: inside `installed(vfs)`, every new connection of this process that names no VFS
uses that one. Three of them, which can be stacked with `base=`:

    RecordingVFS(directory)   logs what SQLite writes and syncs there; `images` rebuilds what a power loss could leave
    FaultVFS(nth, error)      fails the nth write, sync, truncate, open or delete, once or from then on
    QuotaVFS(quota)           refuses what would make database, WAL and journal together larger than the quota

Power loss, against redrive.stores.sqlite (`open_store` stands for whatever opens it):

    with scratch_directory() as directory, installed(RecordingVFS(directory)) as recorder:
        store = await open_store(directory / "jobs.db")
        for job in jobs:
            await store.insert([job])
            recorder.mark(job.id)                # acknowledged: from here on it must be in every image
        await store.close()
    assert recorder.unrecorded() == []           # the log explains every byte on disk
    survey = survey_images(recorder.log, "jobs.db", "SELECT id FROM jobs", seed=chosen_seed(), limit=2_000)
    assert survey.images == 2_000
    assert not survey.lossy and not survey.corrupt, survey

A mark may be anything and may come from any thread, but only after the caller was told; `acknowledged=` turns the marks
before the cut into the set of rows that must be there (by default each mark is one row). For completions, mark
`(id, "done")` and query `SELECT id, state ...`: rows of several columns are tuples. Leave out of the marks what may be
lost, such as claims committed with synchronous=NORMAL; they are written and recorded all the same.
About 1,000 images a second while WAL and database are small; checkpoint every 20 pages rather than every 1,000. One log
of a few hundred commits holds some 10,000 distinct images; for more, record more workloads, not longer ones.
A threaded store never writes the same log twice, so besides the seed, give `keep=` a directory for the first bad image.
To cut the power during recovery as well, write an image into a directory and record the store that opens it.

Failing I/O: `FaultVFS(nth=None)` only counts, so a first run tells how many N there are; then one run for each N:

    with scratch_directory() as directory, installed(FaultVFS(n, errno.EIO, sticky=True)) as fault:
        acknowledged = await insert_until_error(directory / "jobs.db")
    assert acknowledged <= inspect_files(directory, "jobs.db", "SELECT id FROM jobs").rows

`FaultVFS(..., base=recorder)` (recorder inside, faults outside, only the outer one installed) also models that a failed
fsync throws the unsynced writes away, as Linux may: a store that carries on after it loses rows in the images.
Disk full: `QuotaVFS(quota)`, fill until the error, set `vfs.quota` higher, go on.

The model of the disk:
- A sync makes all earlier changes of that file durable. Any other change may be kept, dropped or torn at 512-byte
  sectors, independently of its neighbours; a file may also have grown by zeros where its data did not arrive.
- Names are durable only when the directory is synced. Until then a created file may vanish as a whole and a deleted one
  come back. The directory is synced by xDelete(syncDir), by the first xSync of a journal or WAL handle (the unix VFS
  does that; test_vfs_controls.py watches it), by `os.fsync` of a descriptor of the directory within `installed`, and by
  `recorder.directory_synced()`.
- The -shm file is memory and in no image.

Limits:
- Only this process and what goes through SQLite is recorded, and files that `os.open` made (noticed at the next sync or
  open); not os.rename, os.unlink or later writes by os.write. `unrecorded()` tells when that matters.
- `from os import fsync` in production code would get around the patch of `os.fsync`.
- apsw raises an injected error from `execute` or `close` even where SQLite itself would swallow it (a checkpoint after
  the commit, or while closing). So an error does not prove the row absent; only success proves that it is there.
- An error that comes after the last row a program read is reported when the cursor is dropped, and pytest fails with an
  unraisable exception. Read statements to their end (`connection.pragma`, `.fetchall()`); that is a finding, not noise.
- Space for -shm is not counted by the quota; memory mapping is off beneath an apsw VFS.
"""

from __future__ import annotations

import enum
import errno
import itertools
import os
import random
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import apsw

if TYPE_CHECKING:
    from typing_extensions import Buffer

PLAIN = "unix"
SECTOR = 512
SEED_VARIABLE = "REDRIVE_CHAOS_SEED"


# ---- layers over the unix VFS ----


class FileKind(enum.Enum):
    DATABASE = "database"
    WAL = "wal"
    JOURNAL = "journal"
    DIRECTORY = "directory"
    OTHER = "other"


ON_DISK = frozenset({FileKind.DATABASE, FileKind.WAL, FileKind.JOURNAL})
JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL

FileName = str | apsw.URIFilename | None


def kind_of(flags: int) -> FileKind:
    if flags & apsw.SQLITE_OPEN_MAIN_DB:
        return FileKind.DATABASE
    if flags & apsw.SQLITE_OPEN_WAL:
        return FileKind.WAL
    if flags & JOURNALS:
        return FileKind.JOURNAL
    return FileKind.OTHER


def path_of(name: FileName) -> str:
    if isinstance(name, apsw.URIFilename):
        return name.filename()
    return name or ""


class LayeredVFS(apsw.VFS):
    """A VFS over the plain unix one or over another layer."""

    _numbers = itertools.count(1)

    def __init__(self, base: LayeredVFS | None = None) -> None:
        self.base = base
        self.base_name: str = base.name if base else PLAIN
        self.name: str = f"redrive-{type(self).__name__}-{next(self._numbers)}"
        self.lock = threading.RLock()
        super().__init__(self.name, base=self.base_name)

    def layers(self) -> Iterator[LayeredVFS]:
        """This layer and those beneath it, the outermost first."""
        layer: LayeredVFS | None = self
        while layer is not None:
            yield layer
            layer = layer.base

    def before_os_sync(self, descriptor: int) -> None:
        """Production code is about to call os.fsync or os.fdatasync; raise to make it fail."""

    def after_os_sync(self, descriptor: int) -> None:
        """Production code has called os.fsync or os.fdatasync."""


class LayeredFile(apsw.VFSFile):
    def __init__(self, vfs: LayeredVFS, name: FileName, flags: list[int]) -> None:
        super().__init__(vfs.base_name, name, flags)
        self.path = path_of(name)
        self.kind = kind_of(flags[0])


V = TypeVar("V", bound=LayeredVFS)


@contextmanager
def installed(vfs: V) -> Iterator[V]:
    """Make `vfs` the one that new connections use, and let it see os.fsync, for the length of the block."""
    previous = apsw.vfs_names()[0]
    apsw.set_default_vfs(vfs.name)
    try:
        with _watching("fsync", vfs), _watching("fdatasync", vfs):
            yield vfs
    finally:
        apsw.set_default_vfs(previous)


@contextmanager
def _watching(function: str, vfs: LayeredVFS) -> Iterator[None]:
    real = getattr(os, function, None)
    if real is None:  # macOS has no fdatasync
        yield
        return

    def watched(file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        for layer in vfs.layers():
            layer.before_os_sync(descriptor)
        real(descriptor)
        for layer in vfs.layers():
            layer.after_os_sync(descriptor)

    with mock.patch.object(os, function, watched):
        yield


# ---- the log ----


@dataclass(frozen=True, slots=True)
class Created:
    file: int
    name: str


@dataclass(frozen=True, slots=True)
class Deleted:
    name: str


@dataclass(frozen=True, slots=True)
class Written:
    file: int
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    @property
    def sectors(self) -> int:
        return (self.end - 1) // SECTOR - self.offset // SECTOR + 1


@dataclass(frozen=True, slots=True)
class Truncated:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    file: int
    flags: int


@dataclass(frozen=True, slots=True)
class SyncFailed:
    file: int


@dataclass(frozen=True, slots=True)
class DirectorySynced:
    pass


@dataclass(frozen=True, slots=True)
class Marked:
    value: Any


DataChange = Written | Truncated
NameChange = Created | Deleted
Change = DataChange | NameChange
Entry = Change | Synced | SyncFailed | DirectorySynced | Marked


@dataclass(frozen=True, slots=True)
class Log:
    """Everything that happened to one directory, in order. A file keeps its number for life, its name may be reused."""

    found: dict[str, tuple[int, bytes]]
    """The files that were there before, with their numbers; they count as durable."""
    entries: list[Entry] = field(default_factory=list)

    def steps(self) -> list[int]:
        """The points where cutting the power tells something: just before a mark, the same disk owes less."""
        last = len(self.entries)
        return [step for step in range(last + 1) if step == last or not isinstance(self.entries[step], Marked)]


# ---- recording ----


class RecordingVFS(LayeredVFS):
    """Logs what becomes of the database, WAL and journal files in one directory."""

    def __init__(self, directory: str | os.PathLike[str], base: LayeredVFS | None = None) -> None:
        super().__init__(base)
        self.directory = os.path.realpath(directory)
        self._file_numbers = itertools.count(1)
        self._files: dict[str, int] = {}
        self._opened: set[str] = set()
        self.log = Log({name: (self._number(name), self._content(name)) for name in self._names_on_disk()})

    def mark(self, value: Any) -> None:
        """Note that a caller was told `value` is safe."""
        self._append(Marked(value))

    def directory_synced(self) -> None:
        """Note that the directory was synced outside SQLite; `installed` sees os.fsync by itself."""
        with self.lock:
            for name in self._names_on_disk():
                self._adopt(name)
            self._append(DirectorySynced())

    def sync_failed(self, path: str) -> None:
        """Note that a layer above let a sync fail: whatever it should have covered is gone."""
        with self.lock:
            file = self._files.get(os.path.basename(path))
            if file is not None and self._is_recorded(path):
                self._append(SyncFailed(file))

    def unrecorded(self) -> list[str]:
        """The names of SQLite's files that are not as the log says, so were changed behind our back."""
        with self.lock:
            disk = Disk(self.log)
            for entry in self.log.entries:
                disk.apply(entry)
            expected = disk.files(everything(disk.changes, random.Random()))
            actual = {name: self._content(name) for name in self._names_on_disk()}
            return sorted(name for name in self._opened if expected.get(name) != actual.get(name))

    def xOpen(self, name: FileName, flags: list[int]) -> apsw.VFSFile:
        path = path_of(name)
        if kind_of(flags[0]) not in ON_DISK or not self._is_recorded(path):
            return apsw.VFSFile(self.base_name, name, flags)
        with self.lock:
            opened = RecordedFile(self, name, flags)
            self._opened.add(os.path.basename(path))
            return opened

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self.lock:
            super().xDelete(filename, syncdir)
            if not self._is_recorded(filename):
                return
            name = os.path.basename(filename)
            if self._files.pop(name, None) is not None:
                self._append(Deleted(name))
            if syncdir:
                self._append(DirectorySynced())

    def after_os_sync(self, descriptor: int) -> None:
        synced = os.fstat(descriptor)
        if stat.S_ISDIR(synced.st_mode) and os.path.samestat(synced, os.stat(self.directory)):
            self.directory_synced()
        elif stat.S_ISREG(synced.st_mode):
            self._regular_file_synced(synced)

    def _regular_file_synced(self, synced: os.stat_result) -> None:
        with self.lock:
            for name in self._names_on_disk():
                if os.path.samestat(synced, os.stat(os.path.join(self.directory, name))):
                    self._append(Synced(self._adopt(name), 0))

    def _adopt(self, name: str) -> int:
        """The number of the file that bears this name now; a new name is logged, with what the file holds already."""
        if name in self._files:
            return self._files[name]
        number = self._number(name)
        self._append(Created(number, name))
        if content := self._content(name):
            self._append(Written(number, 0, content))
        return number

    def _number(self, name: str) -> int:
        self._files[name] = next(self._file_numbers)
        return self._files[name]

    def _names_on_disk(self) -> list[str]:
        with os.scandir(self.directory) as found:
            return sorted(f.name for f in found if f.is_file(follow_symlinks=False) and not f.name.endswith("-shm"))

    def _content(self, name: str) -> bytes:
        """Reads through SQLite, which keeps its locks when the handle is closed; `open()` would drop them."""
        path = os.path.join(self.directory, name)
        file = apsw.VFSFile(PLAIN, path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
        try:
            size = file.xFileSize()
            return file.xRead(size, 0) if size else b""
        finally:
            file.xClose()

    def _is_recorded(self, path: str) -> bool:
        return os.path.dirname(path) == self.directory

    def _append(self, entry: Entry) -> None:
        with self.lock:
            self.log.entries.append(entry)


class RecordedFile(LayeredFile):
    """Holds the recorder's lock across each operation, so that the log has the order in which things happened."""

    def __init__(self, vfs: RecordingVFS, name: FileName, flags: list[int]) -> None:
        super().__init__(vfs, name, flags)
        self._vfs = vfs
        self._file = vfs._adopt(os.path.basename(self.path))
        self._owes_directory_sync = self.kind is not FileKind.DATABASE and bool(flags[0] & apsw.SQLITE_OPEN_CREATE)

    def xWrite(self, data: Buffer, offset: int) -> None:
        with self._vfs.lock:
            super().xWrite(data, offset)
            self._vfs._append(Written(self._file, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        with self._vfs.lock:
            super().xTruncate(newsize)
            self._vfs._append(Truncated(self._file, newsize))

    def xSync(self, flags: int) -> None:
        with self._vfs.lock:
            super().xSync(flags)
            self._vfs._append(Synced(self._file, flags))
            if self._owes_directory_sync:
                self._owes_directory_sync = False
                self._vfs._append(DirectorySynced())


# ---- what a power loss can leave ----

# How much of one change survived: a bit for each sector of a write, one bit for any other change, or only its length.
Survival = int
DROPPED: Survival = 0
LENGTH_ONLY: Survival = -1


def whole(change: Change) -> Survival:
    return (1 << change.sectors) - 1 if isinstance(change, Written) else 1


def some_sectors(change: Change, rng: random.Random) -> Survival:
    return rng.randrange(whole(change) + 1)


Variant = Callable[[Sequence[Change], random.Random], list[Survival]]


def nothing(changes: Sequence[Change], _: random.Random) -> list[Survival]:
    return [DROPPED for _ in changes]


def everything(changes: Sequence[Change], _: random.Random) -> list[Survival]:
    return [whole(change) for change in changes]


def only_the_last(changes: Sequence[Change], _: random.Random) -> list[Survival]:
    return [DROPPED] * (len(changes) - 1) + [whole(change) for change in changes[-1:]]


def all_but_one(changes: Sequence[Change], rng: random.Random) -> list[Survival]:
    survivals = [whole(change) for change in changes]
    if survivals:
        survivals[rng.randrange(len(survivals))] = DROPPED
    return survivals


def prefix(changes: Sequence[Change], rng: random.Random) -> list[Survival]:
    """What was written first, in order, up to the middle of some change."""
    cut = rng.randrange(len(changes)) if changes else 0
    kept = [whole(change) for change in changes[:cut]]
    torn_one = [some_sectors(change, rng) for change in changes[cut : cut + 1]]
    return kept + torn_one + [DROPPED] * (len(changes) - cut - 1)


def random_subset(changes: Sequence[Change], rng: random.Random) -> list[Survival]:
    return [rng.choice((DROPPED, whole(change))) for change in changes]


def torn(changes: Sequence[Change], rng: random.Random) -> list[Survival]:
    return [some_sectors(change, rng) for change in changes]


def names_only(changes: Sequence[Change], _: random.Random) -> list[Survival]:
    return [whole(change) if isinstance(change, NameChange) else DROPPED for change in changes]


def data_only(changes: Sequence[Change], _: random.Random) -> list[Survival]:
    return [whole(change) if isinstance(change, DataChange) else DROPPED for change in changes]


def lengths_only(changes: Sequence[Change], _: random.Random) -> list[Survival]:
    """The files have grown, but only zeros have arrived."""
    return [LENGTH_ONLY if isinstance(change, Written) else whole(change) for change in changes]


VARIANTS: tuple[Variant, ...] = (
    nothing,
    everything,
    only_the_last,
    all_but_one,
    prefix,
    random_subset,
    torn,
    names_only,
    data_only,
    lengths_only,
)


class Disk:
    """What is surely on disk, and the changes that no sync has covered yet."""

    def __init__(self, log: Log) -> None:
        self.changes: list[Change] = []
        self.marks: list[Any] = []
        self._names = {name: number for name, (number, _) in log.found.items()}
        self._contents = {number: bytearray(content) for number, content in log.found.values()}

    def apply(self, entry: Entry) -> None:
        match entry:
            case Created() | Deleted() | Written() | Truncated():
                self.changes.append(entry)
            case Synced(file):
                self._settle(lambda change: isinstance(change, DataChange) and change.file == file, durable=True)
            case SyncFailed(file):
                self._settle(lambda change: isinstance(change, DataChange) and change.file == file, durable=False)
            case DirectorySynced():
                self._settle(lambda change: isinstance(change, NameChange), durable=True)
            case Marked(value):
                self.marks.append(value)

    def files(self, survivals: Sequence[Survival]) -> dict[str, bytes]:
        """The files of this disk if that much of each unsynced change survived."""
        names = dict(self._names)
        contents: dict[int, bytearray] = {}
        for change, survival in zip(self.changes, survivals, strict=True):
            if survival == DROPPED:
                continue
            if isinstance(change, DataChange):
                if change.file not in contents:
                    contents[change.file] = bytearray(self._contents.get(change.file, b""))
                _change_content(contents[change.file], change, survival)
            else:
                _change_name(names, change)
        return {
            name: bytes(contents[file] if file in contents else self._contents.get(file, b""))
            for name, file in names.items()
        }

    def _settle(self, concerns: Callable[[Change], bool], *, durable: bool) -> None:
        settled = [change for change in self.changes if concerns(change)]
        self.changes = [change for change in self.changes if not concerns(change)]
        if durable:
            for change in settled:
                self._make_durable(change)

    def _make_durable(self, change: Change) -> None:
        if isinstance(change, DataChange):
            _change_content(self._contents.setdefault(change.file, bytearray()), change, whole(change))
        else:
            _change_name(self._names, change)


def _change_name(names: dict[str, int], change: NameChange) -> None:
    if isinstance(change, Created):
        names[change.name] = change.file
    else:
        names.pop(change.name, None)


def _change_content(content: bytearray, change: DataChange, survival: Survival) -> None:
    if isinstance(change, Truncated):
        _grow(content, change.size)
        del content[change.size :]
    elif survival == LENGTH_ONLY:
        _grow(content, change.end)
    elif survival == whole(change):
        _overwrite(content, change.offset, change.data)
    else:
        for offset, data in _surviving_sectors(change, survival):
            _overwrite(content, offset, data)


def _surviving_sectors(change: Written, survival: Survival) -> Iterator[tuple[int, bytes]]:
    first = change.offset // SECTOR
    for index in range(change.sectors):
        if survival >> index & 1:
            start = max(change.offset, (first + index) * SECTOR)
            end = min(change.end, (first + index + 1) * SECTOR)
            yield start, change.data[start - change.offset : end - change.offset]


def _overwrite(content: bytearray, offset: int, data: bytes) -> None:
    _grow(content, offset)
    content[offset : offset + len(data)] = data


def _grow(content: bytearray, size: int) -> None:
    if size > len(content):
        content.extend(bytes(size - len(content)))


@dataclass(frozen=True, slots=True)
class Image:
    """The files a power loss after `step` entries of the log could leave, and the marks made until then."""

    step: int
    variant: str
    seed: str
    files: dict[str, bytes]
    marks: tuple[Any, ...]

    def write(self, directory: Path) -> None:
        for name, content in self.files.items():
            (directory / name).write_bytes(content)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {len(content)}" for name, content in sorted(self.files.items())) or "no file"
        return f"step {self.step}, {self.variant}, seed {self.seed}: {sizes}; {len(self.marks)} marks"


MOST_ROUNDS = 64


def images(log: Log, *, seed: int, limit: int | None = None) -> Iterator[Image]:
    """Distinct images of the log: every variant at every step, or `limit` of them from steps spread over the log.

    The same log and seed give the same images. Fewer than `limit` come when the log does not hold so many.
    """
    steps = log.steps()
    seen: set[int] = set()
    for round_number in range(MOST_ROUNDS):
        round_seed = f"{seed}/{round_number}"
        wanted = steps
        if limit is not None:
            missing = -(-(limit - len(seen)) // len(VARIANTS))
            wanted = random.Random(round_seed).sample(steps, min(missing, len(steps)))
        for image in _images_at(log, frozenset(wanted), round_seed, seen):
            yield image
            if len(seen) == limit:
                return
        if limit is None:
            return


def _images_at(log: Log, steps: Collection[int], seed: str, seen: set[int]) -> Iterator[Image]:
    disk = Disk(log)
    for step in range(len(log.entries) + 1):
        if step in steps:
            yield from _variants_of(disk, step, seed, seen)
        if step < len(log.entries):
            disk.apply(log.entries[step])


def _variants_of(disk: Disk, step: int, seed: str, seen: set[int]) -> Iterator[Image]:
    marks = tuple(disk.marks)
    for variant in VARIANTS:
        name = variant.__name__
        survivals = variant(disk.changes, random.Random(f"{seed}/{step}/{name}"))
        files = disk.files(survivals)
        fingerprint = hash((len(marks), frozenset(files.items())))
        if fingerprint not in seen:
            seen.add(fingerprint)
            yield Image(step, name, seed, files, marks)


# ---- looking at what is left ----


@dataclass(frozen=True, slots=True)
class Finding:
    rows: frozenset[Any]
    error: str | None
    """Why the database is not sound; None if it is. A database that is not there is sound and empty."""


def inspect_files(directory: Path, database: str, query: str) -> Finding:
    """Recover the database with the plain unix VFS, as a restarted process would, and read it."""
    path = directory / database
    if not path.exists():
        return Finding(frozenset(), None)
    try:
        with closing(apsw.Connection(str(path), vfs=PLAIN)) as connection:
            rows = _rows(connection, query)
            verdict = "; ".join(str(row[0]) for row in connection.execute("PRAGMA integrity_check")).replace("\n", "; ")
            return Finding(rows, None if verdict == "ok" else verdict)
    except apsw.Error as error:
        return Finding(frozenset(), f"{type(error).__name__}: {error}")


def _rows(connection: apsw.Connection, query: str) -> frozenset[Any]:
    try:
        return frozenset(row[0] if len(row) == 1 else row for row in connection.execute(query))
    except apsw.SQLError as error:
        if "no such table" not in str(error):
            raise
        return frozenset()


def inspect_image(image: Image, database: str, query: str, scratch: Path) -> Finding:
    """Write the image into the scratch directory, in place of whatever is there, and inspect it."""
    for old in scratch.iterdir():
        old.unlink()
    image.write(scratch)
    return inspect_files(scratch, database, query)


@dataclass(slots=True)
class Survey:
    """What was found in many images; each failure in words, and the first one kept as files if asked for."""

    seed: int
    images: int = 0
    lossy: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"{self.images} images, {len(self.lossy)} with losses, {len(self.corrupt)} corrupt "
            f"(replay: {SEED_VARIABLE}={self.seed})"
        ]
        return "\n  ".join(lines + self.lossy[:5] + self.corrupt[:5])


def survey_images(
    log: Log,
    database: str,
    query: str,
    *,
    seed: int,
    limit: int | None = None,
    acknowledged: Callable[[tuple[Any, ...]], Iterable[Any]] = frozenset,
    keep: Path | None = None,
) -> Survey:
    """Inspect every image: no row acknowledged before the cut may be missing, and the database must be sound."""
    survey = Survey(seed)
    with scratch_directory() as scratch:
        for image in images(log, seed=seed, limit=limit):
            survey.images += 1
            found = inspect_image(image, database, query, scratch)
            missing = frozenset(acknowledged(image.marks)) - found.rows
            if keep and (missing or found.error) and not (survey.lossy or survey.corrupt):
                image.write(keep)
            if missing:
                survey.lossy.append(f"{image}; lost {len(missing)}, such as {min(missing, key=repr)!r}")
            if found.error:
                survey.corrupt.append(f"{image}; {found.error}")
    return survey


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A new directory in memory where there is one, else among the temporary files; removed afterwards."""
    memory = Path("/dev/shm")
    parent = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="redrive-chaos-", dir=parent)).resolve()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def chosen_seed() -> int:
    """The seed in REDRIVE_CHAOS_SEED, else a new one; printed, so that a failing run can be repeated."""
    seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbits(32))
    print(f"chaos seed {seed} (replay: {SEED_VARIABLE}={seed})")
    return seed


# ---- failing ----


class Operation(enum.Enum):
    WRITE = "write"
    SYNC = "sync"
    TRUNCATE = "truncate"
    OPEN = "open"
    DELETE = "delete"


# As the unix VFS reports them. Only a write says that the disk is full.
CODES = {
    Operation.WRITE: apsw.SQLITE_IOERR_WRITE,
    Operation.SYNC: apsw.SQLITE_IOERR_FSYNC,
    Operation.TRUNCATE: apsw.SQLITE_IOERR_TRUNCATE,
    Operation.OPEN: apsw.SQLITE_CANTOPEN,
    Operation.DELETE: apsw.SQLITE_IOERR_DELETE,
}


def sqlite_error(operation: Operation, error: int) -> Exception:
    full = operation is Operation.WRITE and error == errno.ENOSPC
    return apsw.exception_for(apsw.SQLITE_FULL if full else CODES[operation])


class FaultVFS(LayeredVFS):
    """Fails the nth of the chosen operations on the chosen kinds of files; a sticky fault fails all later ones too.

    With `partial`, a failing write has written its first half. FileKind.DIRECTORY stands for the os.fsync calls on
    directories within `installed`, which then raise OSError.
    """

    def __init__(
        self,
        nth: int | None = None,
        error: int = errno.EIO,
        *,
        operations: Collection[Operation] = (Operation.WRITE, Operation.SYNC),
        kinds: Collection[FileKind] = ON_DISK,
        sticky: bool = False,
        partial: bool = False,
        base: LayeredVFS | None = None,
    ) -> None:
        super().__init__(base)
        self.error = error
        self.partial = partial
        self.struck: list[str] = []
        """What was made to fail, in order."""
        self._operations = frozenset(operations)
        self._kinds = frozenset(kinds)
        self.arm(nth, sticky=sticky)

    def arm(self, nth: int | None, *, sticky: bool = False) -> None:
        """Count from one again and fail the nth operation from now; None only counts."""
        with self.lock:
            self.counted = 0
            self._nth = nth
            self._sticky = sticky

    def disarm(self) -> None:
        self.arm(None)

    def strikes(self, operation: Operation, kind: FileKind, path: str) -> bool:
        """Count this operation, and say whether it is to fail."""
        if operation not in self._operations or kind not in self._kinds:
            return False
        with self.lock:
            self.counted += 1
            if self._nth is None or self.counted < self._nth or (self.counted > self._nth and not self._sticky):
                return False
            self.struck.append(f"{operation.value} {os.path.basename(path)}")
            return True

    def forget_unsynced(self, path: str) -> None:
        """A failed fsync may have thrown away what it should have written: tell the recorders beneath."""
        for layer in self.layers():
            if isinstance(layer, RecordingVFS):
                layer.sync_failed(path)

    def xOpen(self, name: FileName, flags: list[int]) -> apsw.VFSFile:
        if self.strikes(Operation.OPEN, kind_of(flags[0]), path_of(name)):
            raise sqlite_error(Operation.OPEN, self.error)
        return FaultFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self.strikes(Operation.DELETE, _kind_by_name(filename), filename):
            raise sqlite_error(Operation.DELETE, self.error)
        super().xDelete(filename, syncdir)

    def before_os_sync(self, descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) and self.strikes(Operation.SYNC, FileKind.DIRECTORY, "directory"):
            raise OSError(self.error, os.strerror(self.error))


class FaultFile(LayeredFile):
    def __init__(self, vfs: FaultVFS, name: FileName, flags: list[int]) -> None:
        super().__init__(vfs, name, flags)
        self._vfs = vfs

    def xWrite(self, data: Buffer, offset: int) -> None:
        if self._strikes(Operation.WRITE):
            if self._vfs.partial:
                written = bytes(data)
                super().xWrite(written[: len(written) // 2], offset)
            raise sqlite_error(Operation.WRITE, self._vfs.error)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        if self._strikes(Operation.TRUNCATE):
            raise sqlite_error(Operation.TRUNCATE, self._vfs.error)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        if self._strikes(Operation.SYNC):
            self._vfs.forget_unsynced(self.path)
            raise sqlite_error(Operation.SYNC, self._vfs.error)
        super().xSync(flags)

    def _strikes(self, operation: Operation) -> bool:
        return self._vfs.strikes(operation, self.kind, self.path)


def _kind_by_name(path: str) -> FileKind:
    if path.endswith("-wal"):
        return FileKind.WAL
    return FileKind.JOURNAL if path.endswith("-journal") else FileKind.OTHER


# ---- full ----


class QuotaVFS(LayeredVFS):
    """Refuses writes that would make the files opened through it larger than `quota` bytes together.

    Raise `quota` at any time to make room.
    """

    def __init__(self, quota: int, base: LayeredVFS | None = None) -> None:
        super().__init__(base)
        self.quota = quota
        self.refused = 0
        self._paths: set[str] = set()

    def used(self) -> int:
        with self.lock:
            return sum(_size(path) for path in self._paths)

    def claim(self, path: str, size: int) -> None:
        """Raise FullError if there is no room for the file to have that size."""
        growth = size - _size(path)
        if growth > 0 and self.used() + growth > self.quota:
            self.refused += 1
            raise sqlite_error(Operation.WRITE, errno.ENOSPC)

    def xOpen(self, name: FileName, flags: list[int]) -> apsw.VFSFile:
        if kind_of(flags[0]) not in ON_DISK:
            return apsw.VFSFile(self.base_name, name, flags)
        with self.lock:
            self._paths.add(path_of(name))
        return QuotaFile(self, name, flags)


class QuotaFile(LayeredFile):
    def __init__(self, vfs: QuotaVFS, name: FileName, flags: list[int]) -> None:
        super().__init__(vfs, name, flags)
        self._vfs = vfs

    def xWrite(self, data: Buffer, offset: int) -> None:
        with self._vfs.lock:
            self._vfs.claim(self.path, offset + len(bytes(data)))
            super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        with self._vfs.lock:
            self._vfs.claim(self.path, newsize)
            super().xTruncate(newsize)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0
