"""Scenes with forks and kills, each in a process of its own: python -m tests.stores.forks SCENE FOLDER.

A scene prints what it saw as JSON. Nothing here needs pytest, and no process outlives the scene.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from redrive.core.job import Job
from redrive.core.store import Commit, Filter, Wanted
from redrive.stores.sqlite import SqliteStore
from tests.chaos.vfs import FileName, LayeredFile, LayeredVFS, installed
from tests.stores.jobs import T0, a_job, success
from tests.stores.openers import Observer, Steady

if TYPE_CHECKING:
    from typing_extensions import Buffer


def child(work: Callable[[], Any]) -> int:
    """Do it in a fork; its exit code there is 0 when it went well."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended(pid: int) -> int:
    """The exit code of a child, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def use(store: SqliteStore, job: Job) -> None:
    """A whole little life: accept, claim, complete, count, check."""
    await store.insert([job])
    claim = await store.claim(Wanted(1000), "w", T0 + 1)
    assert job.id in {claimed.id for claimed in claim.jobs}
    await store.apply([Commit((success(claimed),)) for claimed in claim.jobs])
    (found,) = await store.get([job.id])
    assert found.state == "done", found
    assert await store.repair(T0 + 2) == []
    await store.close()


# ---- killed while the file is made


class KillingVFS(LayeredVFS):
    """SIGKILL in the place of the nth write, sync or truncation."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def xOpen(self, name: FileName, flags: list[int]) -> apsw.VFSFile:
        return KillingFile(self, name, flags)

    def strike(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class KillingFile(LayeredFile):
    def __init__(self, vfs: KillingVFS, name: FileName, flags: list[int]) -> None:
        super().__init__(vfs, name, flags)
        self._killing = vfs

    def xWrite(self, data: Buffer, offset: int) -> None:
        self._killing.strike()
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._killing.strike()
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._killing.strike()
        super().xSync(flags)


def killed_while_creating(folder: Path) -> dict[str, int]:
    """Kill at every write in turn until one creation gets through; what is left must do as a store each time."""
    seen = {"kills": 0, "usable": 0, "completed": 0}
    for nth in range(1, 500):
        path = folder / f"{nth}.db"

        def create(path: Path = path, nth: int = nth) -> None:
            with installed(KillingVFS(nth)):
                run(SqliteStore(path).open())

        code = ended(child(create))
        assert code in (0, -signal.SIGKILL), code
        seen["kills" if code else "completed"] += 1
        seen["usable"] += ended(child(lambda path=path: run(use(SqliteStore(path), a_job())))) == 0
        if not code:
            return seen
    raise SystemExit("creating a file takes more than 500 writes")


# ---- made by many at once


def made_at_once(folder: Path) -> dict[str, Any]:
    """Eight processes begin at the same moment; everyone's job is accepted."""
    wait, go = os.pipe()
    jobs = [a_job() for _ in range(8)]

    def begin(job: Job) -> None:
        os.close(go)
        os.read(wait, 1)  # until the other end is closed
        run(insert_and_close(SqliteStore(folder / "jobs.db"), job))

    children = [child(lambda job=job: begin(job)) for job in jobs]
    os.close(go)
    codes = [ended(pid) for pid in children]
    found = run(ids_of(SqliteStore(folder / "jobs.db")))
    return {"codes": codes, "all": sorted(found) == sorted(job.id for job in jobs)}


async def insert_and_close(store: SqliteStore, job: Job) -> None:
    (inserted,) = await store.insert([job])
    assert not inserted.duplicate
    await store.close()


async def ids_of(store: SqliteStore) -> list[str]:
    found = [job.id async for job in store.scan()]
    await store.close()
    return found


# ---- opened before the fork


def preloaded(folder: Path) -> dict[str, Any]:
    """As under gunicorn --preload: the store is open and used before the fork, and used on both sides after it."""
    steady = Steady()
    store = SqliteStore(folder / "jobs.db", monotonic=steady)
    before, held = a_job("before"), a_job("held")
    mine = run(_before_the_fork(store, before, held))
    pids = [child(lambda number=number: run(_in_child(Observer(store, steady), before, number))) for number in range(3)]
    run(store.insert([a_job("during")]))
    codes = [ended(pid) for pid in pids]
    return {"codes": codes, **run(_after_the_fork(Observer(store, steady), mine))}


async def _before_the_fork(store: SqliteStore, *jobs: Job) -> Job:
    await store.insert(jobs)
    (mine,) = (await store.claim(Wanted(1, queues=frozenset({"held"})), "parent", T0 + 1)).jobs
    return mine


async def _after_the_fork(parent: Observer, mine: Job) -> dict[str, Any]:
    store = parent.store
    counts = await store.count(Filter(), by=("queue",))
    await store.apply([Commit((success(mine),))])
    (done,) = await store.get([mine.id])
    lapsed = await parent.look()
    await store.close()
    return {
        "counts": {queue: number for (queue,), number in counts.items()},
        "held": done.state,
        "lapsed": sorted(job.queue for job in lapsed),
    }


async def _in_child(observer: Observer, before: Job, number: int) -> None:
    """What the parent accepted is seen, new work is accepted and claimed, the parent's running job is left alone."""
    store = observer.store
    assert [job.id for job in await store.get([before.id])] == [before.id]
    queue = f"child{number}"
    await store.insert([a_job(queue, id=f"{number + 1:032x}")])
    claim = await store.claim(Wanted(1, queues=frozenset({queue})), queue, T0 + 1)
    assert [job.queue for job in claim.jobs] == [queue]
    for _ in range(3):
        assert "held" not in {job.queue for job in await observer.look()}


def preloaded_replica(folder: Path) -> dict[str, Any]:
    """The same with a replica: a child takes a file of its own in the folder, and a connection of its own."""
    from redrive.stores.replica import ReplicaStore
    from redrive.stores.replica.folder import ReplicaFolder
    from redrive.stores.replica.jetstream import JetStreamLog

    url, place = (folder / "url").read_text(), ReplicaFolder(folder / "replicas")
    seen = _on_both_sides(ReplicaStore(place, lambda: JetStreamLog(url), live=place.live))
    return seen | {"files": sorted(path.name for path in place.folder.glob("*.db"))}


def preloaded_remote(folder: Path) -> dict[str, Any]:
    """The same with a store that asks hubs, over HTTP or over NATS."""
    from redrive.stores.remote import RemoteStore
    from redrive.stores.remote.http import HttpTransport, read_servers
    from redrive.stores.remote.nats import NatsTransport

    url = (folder / "url").read_text()
    by_nats = url.startswith("nats")
    way: Callable[[], Any] = lambda: NatsTransport(url) if by_nats else HttpTransport(read_servers(url, None))  # noqa: E731
    return _on_both_sides(RemoteStore(way, url=url))


def _on_both_sides(store: Any) -> dict[str, Any]:
    """Two children work with what they inherited, and one that does nothing ends in the ordinary way."""
    before = a_job("before")
    mine = run(_before_the_fork(store, before, a_job("held")))
    pids = [child(lambda number=number: run(_as_worker(store, before, number))) for number in range(2)]
    idle = os.fork()
    if not idle:
        sys.exit(0)
    run(store.insert([a_job("during")]))
    codes = [ended(pid) for pid in (*pids, idle)]
    return {"codes": codes, **run(_in_parent(store, mine))}


async def _as_worker(store: Any, before: Job, number: int) -> None:
    """See what the parent accepted; accept, claim and complete a job; close."""
    queue = f"child{number}"
    async with asyncio.timeout(60):
        assert [job.id for job in await store.get([before.id])] == [before.id]
        await store.insert([a_job(queue, id=f"{number + 1:032x}")])
        (job,) = (await store.claim(Wanted(1, queues=frozenset({queue})), queue, T0 + 1)).jobs
        await store.apply([Commit((success(job),))])
        await store.close()


async def _in_parent(store: Any, mine: Job) -> dict[str, Any]:
    """The parent's job is still its own, its store hears what the children did."""
    async with asyncio.timeout(60):
        await store.apply([Commit((success(mine),))])
        (done,) = await store.get([mine.id])
        counts = await store.count(Filter(), by=("queue",))
        await store.close()
    return {"held": done.state, "counts": {queue: number for (queue,), number in counts.items()}}


def in_the_middle(folder: Path) -> dict[str, Any]:
    """Forked while another thread of the parent is in a transaction: its locks must not live on in the child."""
    store = SqliteStore(folder / "jobs.db")
    run(store.insert([a_job("before")]))
    begun, go = threading.Event(), threading.Event()

    def slow(connection: apsw.Connection) -> None:
        connection.execute("UPDATE jobs SET priority = 1")
        begun.set()
        assert go.wait(60)

    thread = threading.Thread(target=lambda: run(store._write(slow)))
    thread.start()
    assert begun.wait(60)
    threading.Timer(0.5, go.set).start()
    code = ended(child(lambda: run(_write_in_child(store))))
    thread.join()
    return {"code": code, "count": run(_counted(store))}


async def _write_in_child(store: SqliteStore) -> None:
    async with asyncio.timeout(20):
        await store.insert([a_job("child")])


async def _counted(store: SqliteStore) -> int:
    count = await store.count(Filter())
    await store.close()
    return count[()]


def temporary(folder: Path) -> dict[str, Any]:
    """A child that ends in the ordinary way does not take the parent's temporary file with it."""
    store = SqliteStore(":memory:")
    run(store.insert([a_job()]))
    pid = os.fork()
    if not pid:
        sys.exit(0)
    code = ended(pid)
    return {"code": code, "there": store.path.exists(), **run(_use_temporary(store))}


async def _use_temporary(store: SqliteStore) -> dict[str, Any]:
    if not store.path.exists():
        return {"count": 0}
    await store.insert([a_job()])
    return {"count": await _counted(store)}


def second_opening(folder: Path) -> dict[str, Any]:
    """sqlite3 on the file of a store: in a child that inherited it, that uses it, and that has closed it."""
    store, told = SqliteStore(folder / "jobs.db"), folder / "told"

    async def there() -> None:
        said = [_opened(store)]
        await store.insert([a_job()])
        said.append(_opened(store))
        await store.close()
        told.write_text(" ".join([*said, _opened(store)]))

    async def here() -> dict[str, Any]:
        await store.insert([a_job()])
        code = await asyncio.to_thread(ended, child(lambda: asyncio.Runner().run(there())))
        return {"code": code, "child": told.read_text().split(), "parent": _opened(store)}

    return dict(run(here()))


def _opened(store: SqliteStore) -> str:
    try:
        sqlite3.connect(store.path).close()
    except RuntimeError:
        return "refused"
    return "opened"


SCENES: dict[str, Callable[[Path], dict[str, Any]]] = {
    scene.__name__: scene
    for scene in (
        killed_while_creating,
        made_at_once,
        preloaded,
        preloaded_replica,
        preloaded_remote,
        in_the_middle,
        temporary,
        second_opening,
    )
}


if __name__ == "__main__":
    print(msgspec.json.encode(SCENES[sys.argv[1]](Path(sys.argv[2]))).decode())
