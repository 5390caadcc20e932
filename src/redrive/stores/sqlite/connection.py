"""Opens the file, refuses places and files that must not be used, and translates errors of SQLite."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Final, Literal

import apsw
import msgspec

from redrive.errors import CommitUnknown, StoreBusy, StoreError, StoreFailed, StoreFull, StoreRefused, StoreUnavailable
from redrive.stores.sqlite import schema
from redrive.stores.sqlite.records import PUT_DOCUMENT, doc

BUSY_MS = 30_000
CHECKPOINT_BUSY_MS = 100
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs"})


def find_filesystem(folder: Path) -> str:
    """Return the type of the filesystem a folder is on, or "" where the system does not say."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts:
        _, point, fstype, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = str(folder) == point or str(folder).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fstype
    return kind


def prepare(path: Path) -> None:
    """Create the file, private to its owner, on a disk that may hold it, with its name on disk too."""
    if not path.parent.is_dir():
        raise StoreUnavailable(f"cannot create {path}: the folder {path.parent} does not exist")
    kind = find_filesystem(path.parent.resolve())
    if kind in NETWORK:
        raise StoreRefused(f"{path} is on a network filesystem ({kind}), where SQLite can lose data: use a local disk")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreUnavailable(f"cannot create {path}: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the name of a new file in it is durable."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rewrite_log(path: Path) -> None:
    """Write the log again: after a failed sync parts of it may be in memory only, which no later sync would notice.

    Does nothing where another process has the file open: that process must notice the failure.
    """
    log = path.with_name(path.name + "-wal")
    if not log.exists() or log.stat().st_size == 0:
        return
    alone = apsw.Connection(str(path))
    try:
        alone.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        alone.pragma("locking_mode", "EXCLUSIVE")
        alone.execute("BEGIN IMMEDIATE")
        alone.execute("ROLLBACK")
        file = apsw.VFSFile("", str(log), [apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE, 0])
        size = file.xFileSize()
        for offset in range(0, size, _REWRITE):
            file.xWrite(file.xRead(min(_REWRITE, size - offset), offset), offset)
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
        file.xClose()
    except apsw.BusyError:
        return
    finally:
        alone.close()


_REWRITE = 1 << 16


def open_writer(path: Path) -> apsw.Connection:
    """Open the one writing connection: WAL and FULL, created under EXTRA, migrated to the newest schema."""
    try:
        prepare(path)
        rewrite_log(path)
        connection = apsw.Connection(str(path))
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)  # see schema.legal_before
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # without it SQLite compiles anew for other LIMITs
        connection.set_busy_timeout(BUSY_MS)
        number = schema.check_ours(connection, str(path))
        connection.pragma("mmap_size", 0)
        connection.pragma("synchronous", "EXTRA")
        _switch_to_wal(connection)
        if number < len(schema.read_steps()):
            schema.migrate(connection, str(path))
            sync_folder(path.parent.resolve())
        connection.pragma("synchronous", "FULL")
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma("journal_size_limit", 64 * 1024 * 1024)
        connection.pragma("cache_size", -16_000)
        connection.pragma("secure_delete", True)  # what is erased is overwritten, also where a row was only moved
        connection.pragma("temp_store", "MEMORY")
    except apsw.Error as error:
        raise translate(error, str(path)) from error
    except OSError as error:
        raise StoreUnavailable(f"cannot open {path}: {error.strerror}") from error
    return connection


def _switch_to_wal(connection: apsw.Connection) -> None:
    """Switch to WAL. Several processes may do so at once, and SQLite's busy handler does not cover it."""
    for _ in range(600):
        try:
            if connection.pragma("journal_mode", "wal") == "wal":
                return
        except apsw.BusyError:
            pass
        connection.execute("SELECT 1")
        time.sleep(0.05)
    raise StoreBusy("another process keeps the database from switching to WAL")


def open_reader(path: Path) -> apsw.Connection:
    """Open a query-only connection; every read is a short snapshot."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # only the writer checkpoints, and only while sound
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # as for the writer
    connection.set_busy_timeout(BUSY_MS)
    connection.pragma("mmap_size", 0)
    connection.pragma("cache_size", -16_000)
    connection.pragma("query_only", True)
    return connection


def translate(error: apsw.Error, path: str) -> StoreError:
    """Translate an error of SQLite: what happened, what was written, what to do."""
    code = getattr(error, "extendedresult", 0)
    if isinstance(error, apsw.FullError):
        return StoreFull(f"no space left for {path}: nothing was written; free some space")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreBusy(f"{path} was locked by another process for {BUSY_MS / 1000:.0f} s: nothing was written")
    if is_failed_sync(error):
        return StoreFailed(f"the disk under {path} failed to sync ({code}): restart after checking the disk")
    if isinstance(error, apsw.IOError):
        return CommitUnknown(f"the disk under {path} reported an error ({code}); repeat with the same key")
    if isinstance(error, apsw.ConstraintError):
        return StoreError(f"{path} refused the write: {error}")
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return StoreRefused(f"{path} is not a usable SQLite database ({error}): restore a backup or choose another")
    if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError | apsw.AuthError):
        why = explain_refusal(Path(path))
        return StoreUnavailable(": ".join(why) if why else f"cannot open {path} for writing ({error})")
    return StoreUnavailable(f"{path}: {error}")


def explain_refusal(path: Path) -> tuple[str, str] | None:
    """Explain why the system refuses a file, and what to do; None where it does not. Never opens the file."""
    if path.is_dir():
        return f"{path} is a directory", "name a file in it"
    for place, wanted, needed, bits in (
        (path, "read and written", os.R_OK | os.W_OK, "600"),
        (path.parent, "written to", os.W_OK | os.X_OK, "u+wx"),
    ):
        if place.exists() and not _read_only(place) and not os.access(place, needed, effective_ids=_EFFECTIVE):
            owner, mode = _find_owner(place), stat.S_IMODE(place.stat().st_mode)
            problem = f"permission denied: {place} (mode {mode:04o}, owner {owner}) may not be {wanted}"
            return problem, f"chmod {bits} {place} as {owner}, or work as {owner}"
    return None


def _read_only(place: Path) -> bool:
    """Whether the disk of a file is mounted read-only."""
    return os.name == "posix" and bool(os.statvfs(place).f_flag & os.ST_RDONLY)


_EFFECTIVE = os.access in os.supports_effective_ids


def _find_owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, NotImplementedError):  # a number without a name; a system without either
        return f"uid {path.stat().st_uid}"


def is_failed_sync(error: BaseException) -> bool:
    """Whether a sync failed: the kernel may have dropped dirty pages, so no later commit can be promised."""
    return getattr(error, "extendedresult", 0) in (
        apsw.SQLITE_IOERR_FSYNC,
        apsw.SQLITE_IOERR_DIR_FSYNC,
        apsw.SQLITE_IOERR_CLOSE,
    )


# -- the mark of a file whose jobs are moved to a fleet, so that no process works on them in both places

KIND: Final = "moved"
KEY: Final = "store"


class MoveMark(msgspec.Struct, frozen=True):
    """Where the jobs of a file go, and how far they are."""

    token: str
    """Names this move in the log of its target."""
    to: str
    """For people: without credentials."""
    stage: Literal["moving", "moved", "undone"]
    at: float


def read_mark(connection: apsw.Connection) -> MoveMark | None:
    document = doc(connection, KIND, KEY)
    return msgspec.json.decode(document.value, type=MoveMark) if document else None


def write_mark(connection: apsw.Connection, mark: MoveMark) -> None:
    connection.execute(PUT_DOCUMENT, (KIND, KEY, msgspec.json.encode(mark)))


def drop_mark(connection: apsw.Connection) -> None:
    connection.execute("DELETE FROM docs WHERE kind = ? AND key = ?", (KIND, KEY))


def refuse_moved(connection: apsw.Connection, path: Path) -> None:
    """Refuse a file whose jobs are elsewhere, and say where."""
    mark = read_mark(connection)
    if mark is None or mark.stage == "undone":
        return
    if mark.stage == "moved":
        raise StoreRefused(f"{path} was moved to {mark.to}: set REDRIVE_URL to it")
    raise StoreRefused(
        f"{path} is being moved to {mark.to}: run `redrive move --from {path} --to …` again to finish it, or with"
        " --undo to open the file again"
    )
