"""Replicas on a log that fails: each rule of the fleet with an attack, and a control where the guard can be removed."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from redrive.core.commands import Beat, Take
from redrive.core.store import Commit, Lease, Wanted
from redrive.errors import StoreError, StoreFull, StoreUnavailable
from redrive.stores.remote import Hub, RemoteStore
from redrive.stores.replica import ReplicaStore, snapshots
from redrive.stores.replica import envelope as wire
from redrive.stores.replica.engine import Engine
from redrive.stores.replica.folder import ReplicaFolder
from redrive.stores.replica.log import Manifest, ManifestMoved
from redrive.stores.replica.replay import ReplicaStopped
from redrive.stores.replica.sender import Sender
from tests.chaos.processes import until
from tests.stores.direct import DirectTransport
from tests.stores.jobs import T0, a_job, success
from tests.stores.memory_log import MemoryLog, MemoryMessages


class Clock:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Fleet:
    """Replicas on one log in memory, each with a lock folder and a clock of its own, as on hosts of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept = MemoryMessages()
        self.stores: list[ReplicaStore] = []

    async def join(self, name: str, clock: Clock | None = None, **how: Any) -> ReplicaStore:
        log = how.pop("log", MemoryLog)
        store = ReplicaStore(
            self.folder / f"{name}.db", lambda: log(self.kept), live=self.folder / f"live-{name}",
            monotonic=clock or Clock(), **how,
        )  # fmt: skip
        self.stores.append(store)
        await store.open()
        return store

    def recover(self) -> None:
        self.kept.faults.down = self.kept.faults.hold = False
        self.kept.tell()

    async def close(self) -> None:
        self.recover()
        for store in self.stores:
            await store.close()


@pytest.fixture
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(folder)
    yield fleet
    await fleet.close()


def engine_of(store: ReplicaStore) -> Engine:
    assert store._engine is not None
    return store._engine


async def snapshot(store: ReplicaStore) -> None:
    engine = engine_of(store)
    await engine.call(engine.snapshots.make)


async def looks(store: ReplicaStore, clock: Clock) -> list[str]:
    """The jobs that this replica finds lost when it claims nothing but looks, some seconds later."""
    clock.now += 1.1
    return [job.id for job in (await store.claim(Wanted(1, queues=frozenset({"none"})), "observer", T0 + 1)).lapsed]


async def a_running_job(store: ReplicaStore, lease: float) -> Any:
    await store.insert([a_job()])
    (job,) = (await store.claim(Wanted(1, lease=lease), "holder", T0 + 1)).jobs
    return job


# ---- rule 7: leases


@pytest.mark.behaviour("F-7")
@pytest.mark.parametrize("control", [False, True])
async def test_a_log_that_is_down_for_longer_than_a_lease_ends_none(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    if control:
        monkeypatch.setattr(Sender, "lose_touch", lambda self: None)
    monkeypatch.setattr("redrive.stores.replica.sender.GIVE_UP", 0.2)
    clock = Clock()
    holder, observer = await fleet.join("holder"), await fleet.join("observer", clock)
    job = await a_running_job(holder, lease=30.0)
    await observer.get([job.id])
    for _ in range(3):
        assert await looks(observer, clock) == []
    fleet.kept.faults.down = True
    for _ in range(2):
        clock.now += 60.0
        with pytest.raises(StoreError):
            await looks(observer, clock)
    fleet.recover()
    assert await looks(observer, clock) == ([job.id] if control else []), "silent time was counted"


@pytest.mark.behaviour("F-7")
async def test_a_dead_holder_is_noticed_by_the_lease_also_on_a_flapping_link(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.replica.sender.GIVE_UP", 0.1)
    clock = Clock()
    holder, observer = await fleet.join("holder"), await fleet.join("observer", clock)
    job = await a_running_job(holder, lease=30.0)
    await observer.get([job.id])
    looked, lost = 0, list[str]()
    while not lost and looked < 90:
        looked += 1
        if looked % 10 == 0:
            fleet.kept.faults.down = True
            with pytest.raises(StoreError):
                await looks(observer, clock)
            fleet.recover()
        lost = await looks(observer, clock)
    assert lost == [job.id] and looked >= 27, looked


@pytest.mark.behaviour("F-7")
async def test_a_frozen_observer_declares_nobody_lost(fleet: Fleet) -> None:
    """Its feed stands still while the holder's beats go into the log; then it looks, minutes later."""
    clock = Clock()
    holder, observer = await fleet.join("holder"), await fleet.join("observer", clock)
    job = await a_running_job(holder, lease=30.0)
    await observer.get([job.id])
    assert await looks(observer, clock) == []
    clock.now += 300.0
    assert await holder.heartbeat([Lease(job.id, job.token)]) == []
    assert await looks(observer, clock) == []


# ---- rule 3: who can see whom


@pytest.mark.behaviour("F-3")
async def test_the_same_hostname_with_another_lock_folder_is_another_host(fleet: Fleet) -> None:
    clock = Clock()
    holder, observer = await fleet.join("holder"), await fleet.join("observer", clock)
    job = await a_running_job(holder, lease=30.0)
    await observer.get([job.id])
    for _ in range(3):
        assert await looks(observer, clock) == [], "it was judged by a folder that is not its own"


@pytest.mark.behaviour("F-3")
async def test_the_control_by_hostname_alone_a_living_process_is_taken_for_dead(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redrive.stores.sqlite.liveness import ProcessLock

    monkeypatch.setattr(ProcessLock, "can_see", lambda self, process: True)
    monkeypatch.setattr("redrive.stores.sqlite.liveness._held", {})
    clock = Clock()
    holder, observer = await fleet.join("holder"), await fleet.join("observer", clock)
    job = await a_running_job(holder, lease=30.0)
    await observer.get([job.id])
    assert await looks(observer, clock) == [job.id]


# ---- rule 4: sessions of replicas


@pytest.mark.behaviour("F-4")
async def test_a_late_repeat_of_an_old_message_disturbs_nothing_under_way(fleet: Fleet) -> None:
    """After the log's window for duplicates a message comes again; others are under way at that moment."""
    store = await fleet.join("one")
    for _ in range(3):
        await store.insert([a_job()])
    old = fleet.kept.entries[1]
    fleet.kept.faults.hold = True
    await MemoryLog(fleet.kept).append("a late repeat", old.data)
    inserting = [asyncio.ensure_future(store.insert([a_job()])) for _ in range(5)]
    await until("something is under way", lambda: len(fleet.kept.entries) > 5)
    fleet.recover()
    async with asyncio.timeout(20):
        await asyncio.gather(*inserting)
    assert (await store.claim(Wanted(100), "w", T0 + 1)).jobs.__len__() == 8


@pytest.mark.behaviour("F-4a")
async def test_a_replica_whose_session_was_forgotten_greets_anew_and_loses_nothing(fleet: Fleet) -> None:
    store = await fleet.join("one")
    await store.insert([a_job()])
    engine = engine_of(store)

    async def forget() -> None:
        engine.connection.execute("DELETE FROM clients")

    await engine.call(forget)
    async with asyncio.timeout(20):
        await asyncio.gather(*(store.insert([a_job()]) for _ in range(20)))
    assert len((await store.claim(Wanted(100), "w", T0 + 1)).jobs) == 21


# ---- rule 5: snapshots


class Steps(MemoryLog):
    """Stops at a chosen step of a snapshot until it is let go on."""

    paused: ClassVar[dict[str, tuple[asyncio.Event, asyncio.Event]]] = {}

    async def _step(self, name: str) -> None:
        if name in self.paused:
            came, go = self.paused.pop(name)
            came.set()
            await go.wait()

    async def put_pieces(self, name: str, pieces: AsyncIterator[bytes]) -> int:
        await self._step("put_pieces")
        return await super().put_pieces(name, pieces)

    async def put_manifest(self, manifest: Manifest) -> None:
        await self._step("put_manifest")
        await super().put_manifest(manifest)

    async def drop_pieces(self, keep: Any) -> None:
        await self._step("drop_pieces")
        await super().drop_pieces(keep)

    async def trim(self, before: int) -> None:
        await self._step("trim")
        await super().trim(before)


@asynccontextmanager
async def paused(store: ReplicaStore, step: str) -> AsyncIterator[None]:
    """A snapshot of this replica stops before this step while the block runs, then goes on."""
    engine = engine_of(store)
    events: list[asyncio.Event] = []

    async def make() -> None:
        events.extend([asyncio.Event(), asyncio.Event()])
        Steps.paused[step] = (events[0], events[1])
        await engine.snapshots.make()

    making = asyncio.ensure_future(engine.call(make))
    await until(f"the snapshot stops before {step}", lambda: events and events[0].is_set())
    try:
        yield
    finally:
        assert engine.loop is not None
        engine.loop.call_soon_threadsafe(events[1].set)
        await asyncio.gather(making, return_exceptions=True)


@pytest.mark.behaviour("F-5")
@pytest.mark.parametrize("step", ["put_pieces", "put_manifest", "drop_pieces", "trim"])
async def test_a_frozen_snapshotter_harms_no_newer_snapshot(fleet: Fleet, step: str) -> None:
    slow, fast = await fleet.join("slow", log=Steps), await fleet.join("fast")
    await fast.insert([a_job()])
    await snapshot(fast)
    await fast.insert([a_job()])
    async with paused(slow, step):
        for _ in range(3):
            await fast.insert([a_job()])
            await snapshot(fast)
        newest = fleet.kept.manifest
    manifest = fleet.kept.manifest
    assert newest is not None and manifest is not None and manifest.newest.position >= newest.newest.position
    named = {manifest.newest.name, manifest.before.name if manifest.before else ""}
    assert named <= set(fleet.kept.snapshots), "what the manifest names was removed"
    assert manifest.before is not None and fleet.kept.trimmed <= manifest.before.position
    newcomer = await fleet.join("newcomer")
    assert len((await newcomer.claim(Wanted(100), "w", T0 + 1)).jobs) == 5


@pytest.mark.behaviour("F-5")
async def test_a_damaged_snapshot_is_passed_over_for_the_older_one(fleet: Fleet) -> None:
    store = await fleet.join("one")
    for _ in range(3):
        await store.insert([a_job()])
        await snapshot(store)
    await store.insert([a_job()])
    manifest = fleet.kept.manifest
    assert manifest is not None and manifest.before is not None and fleet.kept.trimmed > 0
    assert fleet.kept.trimmed <= manifest.before.position
    pieces = fleet.kept.snapshots[manifest.newest.name]
    pieces[0] = pieces[0][:-10] + bytes(10)
    newcomer = await fleet.join("newcomer")
    assert len((await newcomer.claim(Wanted(100), "w", T0 + 1)).jobs) == 4
    fleet.kept.snapshots[manifest.before.name][:] = []
    with pytest.raises(ReplicaStopped, match="no sound snapshot"):
        await fleet.join("too late")
    fleet.stores.pop()


@pytest.mark.behaviour("F-5")
async def test_a_whole_log_needs_no_snapshot(fleet: Fleet) -> None:
    store = await fleet.join("one")
    await store.insert([a_job()])
    await snapshot(store)
    for pieces in fleet.kept.snapshots.values():
        pieces.clear()
    newcomer = await fleet.join("newcomer")
    assert len((await newcomer.claim(Wanted(100), "w", T0 + 1)).jobs) == 1


@pytest.mark.behaviour("F-5")
async def test_a_snapshot_that_cannot_be_read_back_moves_nothing(fleet: Fleet) -> None:
    class Losing(MemoryLog):
        async def put_pieces(self, name: str, pieces: AsyncIterator[bytes]) -> int:
            number = await super().put_pieces(name, pieces)
            self.kept.snapshots[name][0] = b"x" * 10
            return number

    store = await fleet.join("one", log=Losing)
    await store.insert([a_job()])
    with pytest.raises(snapshots.SnapshotDamaged):
        await snapshot(store)
    assert fleet.kept.manifest is None and fleet.kept.trimmed == 0


@pytest.mark.behaviour("F-5")
async def test_an_old_manifest_never_replaces_a_newer_one(fleet: Fleet) -> None:
    store = await fleet.join("one")
    await store.insert([a_job()])
    await snapshot(store)
    old = fleet.kept.manifest
    assert old is not None
    await snapshot(store)
    with pytest.raises(ManifestMoved):
        await MemoryLog(fleet.kept).put_manifest(old)


# ---- rules 9, 10: what a replica may believe


@pytest.mark.behaviour("F-9")
async def test_a_read_waits_for_what_was_committed_before(fleet: Fleet) -> None:
    writer = await fleet.join("writer")
    reader = await fleet.join("reader")
    job = a_job()
    await writer.insert([job])
    fleet.kept.faults.hold = True
    await MemoryLog(fleet.kept).append("x", beat_of(fleet))
    reading = asyncio.ensure_future(reader.get([job.id]))
    done, _ = await asyncio.wait({reading}, timeout=0.3)
    assert not done, "it did not wait for the end of the log"
    fleet.recover()
    assert [found.id for found in await reading] == [job.id]


def beat_of(fleet: Fleet) -> bytes:
    from redrive.core.commands import Hello, Ticket

    items = [wire.encode_item(Hello("somebody", T0, 1)), wire.encode_item(Beat(()))]
    return wire.pack(Ticket("somebody", 1), fleet.kept.generation, 0, b"", items)


@pytest.mark.behaviour("F-10")
@pytest.mark.parametrize("how", ["made anew", "went back", "the log was changed"])
async def test_another_log_is_not_followed(fleet: Fleet, how: str) -> None:
    store = await fleet.join("one")
    for _ in range(3):
        await store.insert([a_job()])
    await store.close()
    if how == "made anew":
        fleet.kept.generation = "another"
    elif how == "went back":
        fleet.kept.entries.pop()
    else:
        fleet.kept.entries[-1] = msgspec.structs.replace(fleet.kept.entries[-1], id="other")
    with pytest.raises(ReplicaStopped, match=how):
        await store.open()
    fleet.stores.clear()


@pytest.mark.behaviour("F-10")
async def test_a_snapshot_of_another_log_is_not_followed(fleet: Fleet) -> None:
    store = await fleet.join("one")
    for _ in range(3):
        await store.insert([a_job()])
    await snapshot(store)
    await store.close()
    fleet.stores.clear()
    fleet.kept.generation, fleet.kept.entries, fleet.kept.trimmed = "another", [], 0
    newcomer = await fleet.join("newcomer")
    assert (await newcomer.claim(Wanted(100), "w", T0 + 1)).jobs == []


@pytest.mark.behaviour("F-1b")
@pytest.mark.behaviour("F-10a")
async def test_a_replica_that_differs_stops_itself_and_halts_the_fleet(fleet: Fleet) -> None:
    """Also one that has sent nothing itself."""
    sound, broken = await fleet.join("sound"), await fleet.join("broken")
    await sound.insert([a_job()])
    await broken.get(["x"])
    engine = engine_of(broken)

    async def spoil() -> None:
        engine.connection.execute("UPDATE replica_chain SET chain = x'00'")

    await engine.call(spoil)
    await sound.insert([a_job()])
    async with asyncio.timeout(20):
        assert "replicas differ" in await broken.until_failed()
    await until("the fleet is halted", lambda: engine_of(sound).replay.here.halted)
    assert (await sound.claim(Wanted(1), "w", T0 + 1)).jobs == []


# ---- rules 12, 13, 17


@pytest.mark.behaviour("F-12")
async def test_a_log_that_is_nearly_full_settles_what_it_has(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.stores.replica.store.FILL_SECONDS", 0.0)
    store = await fleet.join("one")
    await store.insert([a_job()])
    used = sum(len(entry.data) for entry in fleet.kept.entries)
    fleet.kept.limit = int(used / 0.85)
    with pytest.raises(StoreFull, match="full"):
        await store.insert([a_job()])
    (job,) = (await store.claim(Wanted(1), "w", T0 + 1)).jobs
    assert await store.heartbeat([Lease(job.id, job.token or "")]) == []
    await store.apply([Commit((success(job),))])
    (found,) = await store.get([job.id])
    assert found.state == "done"


CANARY = "kestrel-4711-canary"


def words_in(fleet: Fleet) -> list[str]:
    """Where the canary can still be read: in messages and snapshots, and in files once all are closed."""
    found = [f"message {entry.position}" for entry in fleet.kept.entries if CANARY.encode() in entry.data]
    for name, pieces in fleet.kept.snapshots.items():
        if CANARY.encode() in zlib.decompress(b"".join(pieces)):
            found.append(f"snapshot {name}")
    files = [path for path in fleet.folder.iterdir() if path.is_file()] if not fleet.stores else []
    return found + [f"file {path.name}" for path in files if CANARY.encode() in path.read_bytes()]


@pytest.mark.behaviour("F-13")
async def test_what_was_erased_is_gone_from_log_snapshots_and_replicas(fleet: Fleet) -> None:
    one, two = await fleet.join("one"), await fleet.join("two")
    job = a_job(payload=f'{{"secret": "{CANARY}"}}')
    await one.insert([job, a_job()])
    claimed = (await one.claim(Wanted(2), "w", T0 + 1)).jobs
    await snapshot(one)
    await one.apply([Commit((success(each, result=f'"{CANARY}"' if each.id == job.id else None),)) for each in claimed])
    await snapshot(two)
    assert {where.split()[0] for where in words_in(fleet)} == {"message", "snapshot"}
    assert await one.erase([job.id]) == 1
    await two.get([job.id])
    await fleet.close()
    fleet.stores.clear()
    assert words_in(fleet) == []


@pytest.mark.behaviour("F-13", "F-13a")
async def test_erase_waits_for_every_announced_replica_and_says_so(fleet: Fleet) -> None:
    """A replica that is not running holds the words in its file, whatever the log and its snapshots say."""
    one, two = await fleet.join("one", days=30), await fleet.join("two", days=30)
    job = a_job(payload=f'{{"secret": "{CANARY}"}}')
    await one.insert([job])
    (claimed,) = (await one.claim(Wanted(1), "w", T0 + 1)).jobs
    await one.apply([Commit((success(claimed),))])
    await two.get([job.id])
    await two.close()
    assert await one.lingering() == [], "nothing was erased yet"
    assert await one.erase([job.id]) == 1
    (left,) = await one.lingering()
    assert "/two.db: it has read" in left
    assert "start a process there" in left
    assert CANARY.encode() in b"".join(path.read_bytes() for path in fleet.folder.glob("two.db*"))
    await two.open()
    await until("the replica has said that it passed", lambda: _is_empty(one.lingering()))
    assert await two.lingering() == []


@pytest.mark.behaviour("F-13")
async def test_an_erase_that_could_make_no_snapshots_says_so_until_they_are_made(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.replica.chores.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("redrive.stores.replica.store.LINGER_SECONDS", 0.0)
    make, broken = snapshots.Snapshots.make, True

    async def failing(maker: snapshots.Snapshots) -> Any:
        if broken:
            raise OSError("no space left on device")
        return await make(maker)

    monkeypatch.setattr(snapshots.Snapshots, "make", failing)
    one = await fleet.join("one", days=30)
    job = a_job()
    await one.insert([job])
    (claimed,) = (await one.claim(Wanted(1), "w", T0 + 1)).jobs
    await one.apply([Commit((success(claimed),))])
    assert await one.erase([job.id]) == 1
    (left,) = await one.lingering()
    assert left.startswith("the log: until both snapshots")
    broken = False
    await until("the snapshots are made", lambda: _is_empty(one.lingering()))


async def _is_empty(asked: Awaitable[list[str]]) -> bool:
    return not await asked


@pytest.mark.behaviour("F-13a")
def test_a_replica_that_was_not_opened_for_long_is_deleted_before_it_is_read(tmp_path: Path) -> None:
    folder = ReplicaFolder(tmp_path, days=30)
    other = ReplicaFolder(tmp_path, days=30)
    used, unused = folder.take(), other.take()
    for path in (used, unused):
        path.write_text(CANARY)
        path.with_name(path.name + "-wal").write_text(CANARY)
    other.release()
    month = time.time() - 31 * 86_400
    for path in tmp_path.iterdir():
        os.utime(path, (month, month))
    third = ReplicaFolder(tmp_path, days=30)
    assert third.take() == unused
    assert not unused.exists() and not unused.with_name(unused.name + "-wal").exists()
    assert used.exists(), "a process has it open"
    unused.write_text("new")
    third.release()
    assert ReplicaFolder(tmp_path, days=30).take().read_text() == "new"


@pytest.mark.behaviour("F-17")
async def test_a_lone_job_costs_two_claims_whatever_the_number_of_idle_workers(fleet: Fleet) -> None:
    hubs = [await fleet.join("one"), await fleet.join("two")]
    remotes = [
        RemoteStore(lambda store=store: DirectTransport(lambda: Hub(store)), url="a hub")  # type: ignore[misc]
        for store in hubs
    ]
    woken = asyncio.Event()
    waiting = [
        asyncio.ensure_future(remotes[number % 2].claim_next(Wanted(1), f"w{number}", lambda: T0 + 1, 0, 10.0, woken))
        for number in range(32)
    ]
    await until("all wait", lambda: sum(len(store._waiters._waiters) for store in hubs) >= 32)
    await hubs[0].insert([a_job()])
    done, _ = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    takes = count_takes(fleet.kept)
    woken.set()
    claims = await asyncio.gather(*waiting)
    assert sum(len(claim.jobs) for claim in claims if claim is not None) == 1
    assert takes <= 2
    for remote in remotes:
        await remote.close()


def count_takes(kept: MemoryMessages) -> int:
    messages = [wire.unpack(entry.data) for entry in kept.entries]
    items = [item for one in messages if isinstance(one, wire.Envelope) for item in one.items]
    return sum(isinstance(item, wire.CommandItem) and isinstance(item.command, Take) for item in items)


# ---- what must be as on a file


async def test_a_folder_that_cannot_be_made_is_an_unavailable_store(folder: Path) -> None:
    """Fallbacks are made for those, not for errors of the operating system."""
    (folder / "file").write_text("in the way")
    store = ReplicaStore(ReplicaFolder(folder / "file" / "replicas"), MemoryLog)
    with pytest.raises(StoreUnavailable, match=r"cannot keep a replica in .*replicas"):
        await store.open()
    (folder / "file").unlink()
    await store.open()
    await store.close()


async def test_sums_that_are_put_right_by_themselves_are_told(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    store = await fleet.join("one")
    await a_running_job(store, lease=30.0)
    engine = engine_of(store)

    async def spoil() -> None:
        engine.connection.execute("UPDATE days SET number = number + 1")

    await engine.call(spoil)
    for _ in range(2):
        await store.prune(T0 + 2, {}, 1e9)
    assert caplog.text.count("were wrong and have been added up anew") == 1
