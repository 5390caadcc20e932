"""Sends the stores that tests make on files to a server instead: the same tests on JetStream and on PostgreSQL.

`--store` starts one server for the whole run. From then on a path is no file: it names a namespace of that server, and
every `Redrive` on it is a replica, in this process and in those that tests start. The one place where a path becomes a
store is `redrive.jobs.open_store._make_file_store`; what replaces it stands here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from redrive.config import Settings, default_path
from redrive.core.store import Store
from redrive.engine.clock import Clock
from redrive.errors import StoreUnavailable
from redrive.jobs import open_store

if TYPE_CHECKING:
    import apsw

SERVER: Final = "REDRIVE_TEST_SERVER"
"""The environment variable with the server's URL, which has a place for the namespace."""
SITE: Final = Path(__file__).parent / "site"
"""On the path of Python, the module in it sends the stores of that process elsewhere, too."""
BUSY_MS: Final = 10_000
LIMITS: Final = "max_bytes=64MB&snapshot_bytes=128MB"
_real: Final = open_store._make_file_store
_used: Final = set[Path]()
"""The paths that stood for namespaces since the last `forget`."""


def store(url: str, clock: Clock) -> Store:
    """The store that stands for a file: a replica of the namespace of this path."""
    path = Path(open_store.sqlite_path(url)).expanduser()
    if path.name == ":memory:" or (path.is_file() and path.stat().st_size):  # what a backup wrote is a file
        return _real(url, clock)
    _used.add(path.absolute())
    settings = Settings(url=url_of(path), replica=True, replica_folder=str(replicas(path)))
    made: Any = open_store.make_store(settings, clock)
    made._place = _beside(replicas(path))
    return cast("Store", made)


def _beside(folder: Path) -> Any:
    """Replicas beside where the file would be: they need the folder that it would need."""
    from redrive.stores.replica.folder import ReplicaFolder

    class Beside(ReplicaFolder):
        def take(self) -> Path:
            parent = folder.parent
            if not parent.is_dir() and parent != default_path(os.environ).parent:
                raise StoreUnavailable(f"cannot create {folder}: the folder {parent} does not exist")
            return super().take()

    return Beside(folder)


def made(path: Path, clock: Clock, changed: type | None = None) -> Any:
    """A store for tests that use one without a Redrive; `changed` is a class with verbs that behave otherwise."""
    store: Any = open_store.make_store(Settings(url=str(path)), clock)
    if changed is None:
        return store
    like = object.__new__(type(changed.__name__, (changed, type(store)), {}))
    like.__dict__ = store.__dict__
    return like


def kind() -> Any:
    """The class of the stores on paths, for tests that watch its verbs."""
    if SERVER in os.environ:
        from redrive.stores.replica import ReplicaStore

        return ReplicaStore
    from redrive.stores.sqlite import SqliteStore

    return SqliteStore


def url_of(path: Path) -> str:
    return os.environ[SERVER].format(namespace=namespace_of(path))


def namespace_of(path: Path) -> str:
    return "t" + hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]


def replicas(path: Path) -> Path:
    """The folder with the files of the replicas that stand for a file."""
    path = path.absolute()
    return path.with_name(f"{path.name}-replicas")


def replica_of(path: Path) -> Path:
    """The file that holds what was written on a path: the path itself, or the replica that came furthest."""
    if SERVER not in os.environ:
        return path
    from redrive.stores.replica import snapshots

    files = sorted(replicas(path).glob("replica-*.db"))
    for file in files:
        _wait_for_commit(file)
    found = [(snapshots.read_standing(file), file) for file in files]
    return max(((at.position, file) for at, file in found if at is not None), default=(0, path))[1]


def _wait_for_commit(file: Path) -> None:
    """A replica commits what it has executed a moment later; until then it keeps the lock of writers."""
    with contextlib.closing(_connected(file)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def connected(path: Path) -> apsw.Connection:
    """A connection to the file that holds what was written on a path."""
    return _connected(replica_of(path))


def _connected(file: Path) -> apsw.Connection:
    import apsw

    connection = apsw.Connection(str(file))
    connection.set_busy_timeout(BUSY_MS)
    return connection


# -- servers


@contextlib.contextmanager
def _nats() -> Iterator[str]:
    from tests.nats import need_server, own_server

    need_server()
    with _folder() as folder, own_server(folder) as server:
        yield f"{server.url}/{{namespace}}?{LIMITS}"


@contextlib.contextmanager
def _nats_r3() -> Iterator[str]:
    from tests.nats import cluster, need_server

    need_server()
    with _folder() as folder, cluster(folder) as servers:
        hosts = ",".join(server.url.removeprefix("nats://") for server in servers)
        yield f"nats://{hosts}/{{namespace}}?replicas=3&{LIMITS}"


@contextlib.contextmanager
def _postgres() -> Iterator[str]:
    from tests import postgres_server

    with postgres_server.started() as server:
        yield server.url(namespace="{namespace}")


SERVERS: Final[dict[str, Callable[[], contextlib.AbstractContextManager[str]]]] = {
    "nats": _nats,
    "nats-r3": _nats_r3,
    "postgres": _postgres,
}


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="redrive-app-", dir=place, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


# -- afterwards


def forget(folder: Path) -> None:
    """Remove the streams that this process used, or that others used below a folder: servers reserve room for each."""
    paths = _used | {Path(str(found).removesuffix("-replicas")) for found in folder.rglob("*-replicas")}
    _used.clear()
    if not os.environ[SERVER].startswith("nats"):
        return
    names = [f"RD_{namespace_of(path)}{suffix}" for path in paths for suffix in ("", "_SNAP")]
    if names:
        _delete(names)


def _delete(streams: list[str]) -> None:
    """Ask for each stream, and wait for as many answers."""
    host, port = os.environ[SERVER].removeprefix("nats://").split("/")[0].split(",")[0].split(":")
    with socket.create_connection((host, int(port)), 10) as one, one.makefile("rb") as answers:
        asked = "".join(f"PUB $JS.API.STREAM.DELETE.{name} gone 0\r\n\r\n" for name in streams)
        one.sendall(f'CONNECT {{"verbose":false}}\r\nSUB gone 1\r\n{asked}'.encode())
        left = len(streams)
        while left and (line := answers.readline()):
            left -= line.startswith(b"MSG")
