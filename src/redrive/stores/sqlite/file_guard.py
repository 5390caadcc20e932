"""Refuses, by an audit hook, to open the files of an open store a second time in the same process.

Closing any descriptor of a file drops every POSIX lock that the process holds on it: after sqlite3 or `open()` closes
the file that apsw has open, other processes write where this one writes, and the file is ruined. The hook does not see
C extensions that open files, nor an `ATTACH` in a connection to another database. It looks at names first, because a
look at the inode of every opened file would be slow; it learns the names of links.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import apsw

from redrive.errors import DatabaseInUse

log = logging.getLogger("redrive.store")
SUFFIXES = ("", "-wal", "-shm")
_DESCRIPTORS = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
_NEVER_OPENS = os.O_CREAT | os.O_EXCL
"""With both flags an existing file is not opened: the system answers that it exists."""

_lock = threading.Lock()
_stores: dict[str, int] = {}
"""How often each database is open here. 0 in a forked child whose parent had it open."""
_links: set[str] = set()
"""Base names of links to guarded files, as far as they are known."""
_names: tuple[str, ...] = ()
"""Base names of all guarded files, so that opening another file costs one look at how its path ends."""
_BY_NUMBER = ("/proc/", "/dev/fd/")
"""Where files have other names than their own."""
_installed = False


class FileGuard:
    """Guards one database, its -wal and its -shm from `take` to `release`."""

    def __init__(self, path: Path) -> None:
        self._paths = {str(path), os.path.realpath(path)}
        """SQLite names -wal and -shm after the file that a link leads to."""
        self._taken = False

    def take(self) -> None:
        """Start guarding, before SQLite opens the file. Raises where the file is open in this process already."""
        with _lock:
            known = self._paths & _stores.keys()
            for path in self._paths:
                _stores[path] = _stores.get(path, 0) + 1
            self._taken = True
            _links.update(_find_links(self._paths))
            _learn_names()
        _install()
        if not known:
            _refuse_opened_before(self._paths)

    def release(self) -> None:
        """End guarding, unless another store of this process has the same database open."""
        with _lock:
            if self._taken:
                self._taken = False
                for path in self._paths:
                    _stores[path] -= 1
                    if _stores[path] <= 0:
                        del _stores[path]
                _learn_names()


def _learn_names() -> None:
    """Note what guarded files are called; the caller holds the lock."""
    global _names
    if not _stores:
        _links.clear()
    _names = tuple({os.path.basename(path) + suffix for path in _stores for suffix in SUFFIXES} | _links)


def _find_links(paths: set[str]) -> set[str]:
    """Find the names of links beside these databases that lead to them, also before there is a file."""
    files = {path + suffix for path in paths for suffix in SUFFIXES}
    inodes = {seen[1] for file in files if (seen := _identify(file)) is not None}
    names: set[str] = set()
    for folder in {os.path.dirname(path) or "." for path in paths}:
        try:
            with os.scandir(folder) as entries:
                names |= {
                    entry.name
                    for entry in entries
                    if (os.path.realpath(entry.path) in files if entry.is_symlink() else entry.inode() in inodes)
                }
        except FileNotFoundError:
            continue  # SQLite says so when it opens the file
        except OSError as error:
            log.warning("links beside the database are not known to its guard: %s", error)
    return names


def _install() -> None:
    """Add the audit hook at the first open of a store. Python has no way to take a hook out again."""
    global _installed
    with _lock:
        if _installed:
            return
        _installed = True
        sys.addaudithook(_refuse)
        heard: list[bool] = []
        sys.audit("redrive.file_guard", heard)
        if not heard:  # Python says nothing where another hook of the process forbids new ones
            log.warning(
                "nothing protects the database from a second opening in this process: another audit hook forbids ours."
                " Do not open the database here by sqlite3 or open()"
            )


def _refuse_opened_before(paths: set[str]) -> None:
    """Refuse a file that sqlite3 or `open()` opened before the store did. Connections of apsw share its library."""
    guarded = {_identify(path + suffix) for path in paths for suffix in SUFFIXES} - {None}
    if guarded & _list_open_files() and not guarded & {_identify_file(connection) for connection in apsw.connections()}:
        raise DatabaseInUse(
            f"{min(paths)} is open in this process already, by sqlite3 or open(): when that is closed, the store would"
            " lose its locks and the file would be ruined. Close it before the store is opened, then read through rd"
        )


def _identify_file(connection: apsw.Connection) -> tuple[int, int] | None:
    try:
        return _identify(connection.filename)
    except apsw.ThreadingViolationError:
        return None  # another thread uses it this moment: a connection to another file, as no store has this one open


def _list_open_files() -> set[tuple[int, int] | None]:
    """List the identities of the files that this process has open, where the system tells them."""
    try:
        return {_identify(int(name)) for name in os.listdir(_DESCRIPTORS)}
    except OSError:
        return set()


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    """Refuse second openings. Python calls this hook for every audited event, so the first lines must be cheap."""
    if not _names:
        return  # no store is open, or the interpreter ends and has emptied this module
    if event == "open":
        path = args[0]
        if path.__class__ is not str or path.endswith(_names) or path.startswith(_BY_NUMBER):
            _refuse_open(*args)
    elif event == "sqlite3.connect":
        _refuse_connect(args[0])
    elif event in _LINKING:
        _learn_link(event, args[0], args[1])
    elif event == "redrive.file_guard":
        args[0].append(True)


def _refuse_open(given: Any, mode: Any = None, flags: Any = 0, *_: Any) -> None:
    """Refuse to open a guarded file. Takes any arguments, because other code may announce openings, too."""
    path = _read_path(given)
    if path is None or not (path.startswith(_BY_NUMBER) or os.path.basename(path) in _names):
        return
    if isinstance(flags, int) and flags & _NEVER_OPENS == _NEVER_OPENS:
        return
    if _is_guarded(path) or (mode is None and not os.path.isabs(path) and _is_guarded_in_a_folder(path)):
        raise _in_use(path)


_LINKING = frozenset({"os.link", "os.symlink", "os.rename"})


def _learn_link(event: str, given: Any, made: Any) -> None:
    """Learn the name of a link to a guarded file, or its new name, before it is made."""
    source, target = _read_path(given), _read_path(made)
    if source is None or target is None:
        return
    if event == "os.symlink":
        source = os.path.join(os.path.dirname(target), source)
    if _is_guarded(source) or os.path.basename(source) in _names:
        with _lock:
            _links.add(os.path.basename(target))
            _learn_names()


def _is_guarded_in_a_folder(path: str) -> bool:
    """Whether a relative path is a guarded file in a folder that is open here: `os.open` does not tell its dir_fd."""
    try:
        descriptors = [int(name) for name in os.listdir(_DESCRIPTORS)]
    except OSError:
        return False
    return any(_is_guarded(f"{_DESCRIPTORS}/{number}/{path}") for number in descriptors)


def _refuse_connect(given: Any) -> None:
    """Refuse a connection to a guarded file, whatever a link or a URI calls it."""
    path = _read_path(given)
    if path is None:
        return
    for candidate in {path, _read_uri(path)} - {None}:
        if _is_guarded(candidate):
            raise _in_use(path)


def _read_path(given: Any) -> str | None:
    """Read a path; None for a descriptor, and for what is no path, which the call itself will refuse."""
    try:
        return os.fsdecode(given)
    except (TypeError, ValueError):
        return None


def _read_uri(text: str) -> str | None:
    """Read the path in a `file:` URI as SQLite does; None where the text is no such URI."""
    if text[:5].lower() != "file:":
        return None
    rest = text[5:].partition("#")[0].partition("?")[0]
    if rest.startswith("//"):
        rest = rest[2 + rest[2:].find("/") :] if "/" in rest[2:] else ""
    return os.fsdecode(unquote_to_bytes(rest).partition(b"\0")[0])


def _is_guarded(path: str | None) -> bool:
    file = _identify(path)
    if file is None:
        return False
    return any(file == _identify(store + suffix) for store in list(_stores) for suffix in SUFFIXES)


def _identify(path: str | int | None) -> tuple[int, int] | None:
    """Return device and inode of a path or a descriptor; None where there is no such file."""
    try:
        seen = os.stat(path) if path is not None else None
    except (OSError, ValueError):
        return None
    return (seen.st_dev, seen.st_ino) if seen else None


def _in_use(path: str) -> DatabaseInUse:
    return DatabaseInUse(
        f"{path} is open as a redrive store in this process: opening it a second time, even to read, would drop the"
        " store's locks and ruin the file. Read through rd (rd.jobs, rd.dead, rd.reports), or in another process with"
        ' `redrive sql "SELECT ..."`; copy it with `redrive backup TARGET`'
    )


def _forget_parents_stores() -> None:
    """Guard in a forked child what its parent had open, until the child has opened and closed the store itself."""
    global _lock
    _lock = threading.Lock()
    for path in _stores:
        _stores[path] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_stores)
