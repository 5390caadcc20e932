"""Wakes other processes on the same file: a datagram socket for each process that waits, beside its lock file.

After a commit a process sends one byte to each of these sockets and never waits. Where a byte cannot be sent or
received, nothing is lost: a process that waits looks into the file from time to time as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger("redrive.store")
DUE: Final = b"d"
"""Sent after a commit that may have made jobs due."""
MOVED: Final = b"m"
"""Sent after any other commit that another process may wait for: jobs have ended, or moved otherwise."""
PREFIX: Final = ".wake-"
"""How the names of sockets begin. Names with a dot are no lock files, for older versions too."""
_DRAINED: Final = 64
"""How many bytes are read at once, at most, however fast others send."""
_LONGEST: Final = 107 if sys.platform == "linux" else 103
"""How many bytes the path of a socket may have."""
_SETTLED_SECONDS: Final = 0.1
"""A folder that changed so long ago shows every later change by another time: the clocks of file systems are coarse."""
LIST_SECONDS: Final = 0.002
"""How old the list of those who wait may be. It is shorter than the time after which a new one looks by itself."""
BIND_SECONDS: Final = 5.0
"""How often a process tries to make a socket that could not be made."""
_UNBOUND: Final = (
    "jobs that other processes enqueue into %s start up to 40 ms later, as the socket %s cannot be made: %s. Let this"
    " process write to that folder, or choose a shorter path; it is tried again every %g s"
)
_BY_NUMBER: Final = "/proc/self/fd"

_open_sockets: set[socket.socket] = set()
"""Every socket of this module that this process has open."""


def _close_parents_sockets() -> None:
    """Close them in a forked child: they would look alive after the parent's death."""
    while _open_sockets:
        _open_sockets.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_parents_sockets)


def _make_socket() -> socket.socket:
    """Make a socket that never blocks. Raises OSError where the system has no such sockets."""
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise OSError("this system has no Unix sockets")
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setblocking(False)
    _open_sockets.add(made)
    return made


def _close_socket(opened: socket.socket | None) -> None:
    if opened is not None:
        _open_sockets.discard(opened)
        opened.close()


@contextlib.contextmanager
def _shorten(path: Path) -> Iterator[str]:
    """Give a path for a socket: its own, or one by the number of its opened folder where its own is too long."""
    if len(os.fsencode(path)) <= _LONGEST or not os.path.isdir(_BY_NUMBER):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"{_BY_NUMBER}/{folder}/{path.name}"
    finally:
        os.close(folder)


def make_socket_name(process: str) -> str:
    """Make the name of the socket of the process whose lock file has this name."""
    return PREFIX + "-".join(process.rsplit("-", 2)[1:])


class WakeupSocket:
    """The socket by which other processes wake this one. Used by the one thread that waits on it."""

    def __init__(self, path: Path, database: Path) -> None:
        self.path = path
        self._database = database
        self._socket: socket.socket | None = None
        self._owner = os.getpid()
        self._takes_rouse = False
        self._not_before = 0.0
        self._failing = False

    @property
    def is_bound(self) -> bool:
        return self._socket is not None

    def bind(self) -> bool:
        """Make the socket; False where the system or the folder does not let us, which is logged once."""
        self.close()
        try:
            made = self._socket = _make_socket()
            with _shorten(self.path) as short:
                made.bind(short)
            os.chmod(self.path, self._database.stat().st_mode & 0o666)
        except OSError as error:
            if not self._failing and hasattr(socket, "AF_UNIX"):
                log.warning(_UNBOUND, self._database, self.path, error, BIND_SECONDS)
            self._failing = True
            self.close()
        else:
            self._failing = False
        return self.is_bound

    def check(self) -> bool:
        """Whether others can send: a socket whose file was removed, or could not be made, is made anew."""
        if self.is_bound and not self._is_gone():
            return True
        now = time.monotonic()
        if not self.is_bound and now < self._not_before:
            return False
        self._not_before = now + BIND_SECONDS
        return self.bind()

    def _is_gone(self) -> bool:
        """Whether its file was removed; a folder that cannot be looked into says nothing of it."""
        try:
            os.stat(self.path)
        except OSError as error:
            return isinstance(error, FileNotFoundError)
        return False

    def receive(self, seconds: float) -> bytes:
        """Wait so long for a byte; return all that have come, or nothing."""
        if self._socket is None:
            return b""
        heard = b""
        try:
            self._socket.settimeout(max(seconds, 0.001))
            heard = self._socket.recv(1)
            self._socket.settimeout(0)
            while len(heard) < _DRAINED:
                heard += self._socket.recv(1)
        except (TimeoutError, BlockingIOError):
            return heard
        except OSError as error:
            log.warning("the wake-up socket of %s failed, other processes are polled: %s", self._database, error)
            self.close()
        return heard

    def take_rouse(self, takes: bool) -> None:
        """Say whether `rouse` ends the next wait. Said before the last look, so that no commit after it is missed."""
        self._takes_rouse = takes

    def rouse(self) -> None:
        """End a long wait of the thread, after a commit of this very process. Called by the writer's thread."""
        if self._takes_rouse:
            self._takes_rouse = False
            self.interrupt()

    def interrupt(self) -> None:
        """End the wait of the thread, from another thread."""
        with contextlib.suppress(OSError):  # its wait has a limit anyway
            link = _WakeupLink(self.path)
            try:
                link.send(MOVED)
            finally:
                link.close()

    def close(self) -> None:
        """Remove the socket, unless it is that of a parent process."""
        opened, self._socket = self._socket, None
        _close_socket(opened)
        if opened is not None and self._owner == os.getpid():
            _unlink(self.path)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):  # it is gone, or the folder cannot be written to
        path.unlink(missing_ok=True)


class _WakeupLink:
    """A connection to one socket. It has a socket of its own: bytes that one process does not read fill no other's."""

    def __init__(self, path: Path) -> None:
        self._socket = _make_socket()
        try:
            with _shorten(path) as short:
                self._socket.connect(short)
        except BaseException:
            self.close()
            raise

    def send(self, kind: bytes) -> None:
        self._socket.send(kind)

    def close(self) -> None:
        _close_socket(self._socket)


class WakeupSender:
    """Sends to all other processes that wait. Used by the writer's thread; never waits, never raises."""

    def __init__(self, own: Path) -> None:
        self._own = own
        self._folder = str(own.parent)
        self._links: dict[str, _WakeupLink] = {}
        """By the name of the socket."""
        self._seen: object = None
        """What the folder looked like when it was listed; None where it must be listed again."""
        self._checked = -LIST_SECONDS

    def send(self, kind: bytes) -> None:
        """Send this byte to every process that waits now."""
        now = time.monotonic()
        if now - self._checked >= LIST_SECONDS:
            self._checked = now
            self.refresh()
        for name in list(self._links):
            self._send(name, kind)

    def refresh(self) -> None:
        """List who waits, if the folder has changed: usually one look at its time says that it has not."""
        try:
            found = os.stat(self._folder)
            seen = found.st_ino, found.st_mtime_ns, found.st_size
            if seen == self._seen:
                return
            names = {name for name in os.listdir(self._folder) if name.startswith(PREFIX)} - {self._own.name}
        except OSError:
            return  # no process waits without the folder; where it cannot be listed, processes look by themselves
        self._seen = seen if _is_settled(found.st_mtime) else None
        for name in self._links.keys() - names:
            self._drop(name)
        for name in names - self._links.keys():
            self._connect(name)

    def _connect(self, name: str) -> None:
        """Connect to a socket, and remove it where no process has it open any more."""
        try:
            self._links[name] = _WakeupLink(self._own.with_name(name))
        except ConnectionRefusedError:
            self._seen = None
            _remove_dead(self._own.with_name(name))
        except OSError:
            self._seen = None  # try again at the next commit; until then that process looks by itself

    def _send(self, name: str, kind: bytes) -> None:
        if not self._reaches(name, kind):  # its process has ended, or has made its socket anew
            self._drop(name)
            self._connect(name)
            if name in self._links:
                self._reaches(name, kind)

    def _reaches(self, name: str, kind: bytes) -> bool:
        """Send; False where no process has that socket open any more."""
        try:
            self._links[name].send(kind)
        except ConnectionRefusedError:
            return False
        except OSError:
            pass  # EAGAIN: it has bytes to read already. Otherwise that process looks by itself
        return True

    def _drop(self, name: str) -> None:
        self._links.pop(name).close()

    def close(self) -> None:
        for name in list(self._links):
            self._drop(name)


def _is_settled(changed_at: float) -> bool:
    """Whether a later change must show another time, however coarse the clock of the file system is."""
    return abs(time.time() - changed_at) > _SETTLED_SECONDS


def _remove_dead(path: Path) -> None:
    """Remove a socket that refuses, unless it is so new that its process may be making it right now."""
    with contextlib.suppress(OSError):  # another process has removed it
        if _is_settled(path.stat().st_mtime):
            path.unlink()
