"""Two snapshotters, each paused at every step: newcomers always open, and the manifest only moves forward."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive.core.store import Wanted
from redrive.stores.replica import ReplicaStore, snapshots
from redrive.stores.replica.jetstream import JetStreamLog
from redrive.stores.replica.log import Log, LogSnapshot, Manifest, ManifestMoved
from tests.chaos.processes import until
from tests.nats import shared_server
from tests.stores.fleet import total
from tests.stores.jobs import T0, a_job
from tests.stores.memory_log import MemoryLog, MemoryMessages

STEPS = ("manifest", "put_pieces", "pieces", "put_manifest", "drop_pieces", "trim")
"""What `Snapshots.make` does, in order: read the manifest, write the pieces, read them back, name them, tidy."""


class Pause:
    """Where a log stops once, until it may go on."""

    def __init__(self) -> None:
        self.before = ""
        self.came = threading.Event()
        self._go = threading.Event()

    def at(self, step: str) -> None:
        self.before = step
        self.came.clear()
        self._go.clear()

    def go_on(self) -> None:
        self._go.set()

    async def step(self, name: str) -> None:
        if name == self.before:
            self.before = ""
            self.came.set()
            await asyncio.to_thread(self._go.wait, 60)


def pausing(log: Any, pause: Pause) -> Any:
    """The log, with every step of a snapshot announced to the pause."""

    def announced(name: str) -> Callable[..., Any]:
        act = getattr(log, name)

        async def call(*arguments: Any) -> Any:
            await pause.step(name)
            return await act(*arguments)

        return call

    async def pieces(snapshot: LogSnapshot) -> AsyncIterator[bytes]:
        await pause.step("pieces")
        async for piece in read(snapshot):
            yield piece

    read, log.pieces = log.pieces, pieces
    for name in STEPS:
        if name != "pieces":
            setattr(log, name, announced(name))
    return log


class Fleet:
    """Replicas on one log of either kind."""

    def __init__(self, folder: Path, make: Callable[[], Log]) -> None:
        self.folder = folder
        self.make = make
        self.stores: list[ReplicaStore] = []
        self.inserted = 0

    async def join(self, name: str, pause: Pause | None = None) -> ReplicaStore:
        make = self.make if pause is None else lambda: pausing(self.make(), pause)
        store = ReplicaStore(self.folder / f"{name}.db", make, live=self.folder / "live")
        self.stores.append(store)
        await store.open()
        return store

    async def insert(self, store: ReplicaStore) -> None:
        """One more job, heard by all: a replica that is behind the beginning of its log is another matter."""
        await store.insert([a_job()])
        self.inserted += 1
        for each in self.stores:
            await each.get(["all that the log has"])

    async def manifest(self) -> Manifest | None:
        log = self.make()
        await log.open()
        try:
            return await log.manifest()
        finally:
            await log.close()

    async def newcomer_opens(self, name: str) -> None:
        """With every job that there is."""
        store = await self.join(name)
        await store.get(["all that the log has"])
        assert await total(store) == self.inserted
        self.stores.remove(store)
        await store.close()


@asynccontextmanager
async def a_fleet(folder: Path, kind: str) -> AsyncIterator[Fleet]:
    folder.mkdir()
    kept = MemoryMessages()
    namespace = f"snap{abs(hash(folder)):x}"
    url = f"{shared_server().url}/{namespace}?max_bytes=8MB&snapshot_bytes=64MB" if kind == "jetstream" else ""
    fleet = Fleet(folder, (lambda: JetStreamLog(url)) if url else (lambda: MemoryLog(kept)))
    try:
        yield fleet
    finally:
        for store in fleet.stores:
            await store.close()


async def make(store: ReplicaStore) -> None:
    engine = store._engine
    assert engine is not None
    await engine.call(engine.snapshots.make)


async def begin(fleet: Fleet, store: ReplicaStore, pause: Pause, step: str) -> asyncio.Future[None]:
    """A snapshot of this replica that stops before a step."""
    await fleet.insert(store)
    pause.at(step)
    making = asyncio.ensure_future(make(store))
    await until(f"it stops before {step}", lambda: pause.came.is_set() or making.done())
    assert not making.done(), "it did not come to this step"
    return making


async def finish(pause: Pause, making: asyncio.Future[None]) -> None:
    """Whoever comes too late is told so; nothing else may go wrong."""
    pause.go_on()
    async with asyncio.timeout(60):
        (error,) = await asyncio.gather(making, return_exceptions=True)
    assert error is None or isinstance(error, ManifestMoved | snapshots.SnapshotDamaged), error


def position(manifest: Manifest | None) -> int:
    return manifest.newest.position if manifest is not None else 0


async def both_paused(fleet: Fleet, first: str, second: str, order: Sequence[int]) -> None:
    pauses = Pause(), Pause()
    makings: list[asyncio.Future[None]] = []
    try:
        await _both_paused(fleet, pauses, (first, second), order, makings)
    finally:
        for pause in pauses:
            pause.go_on()
        async with asyncio.timeout(60):  # where an assertion failed, what was begun ends here and not in another test
            await asyncio.gather(*makings, return_exceptions=True)


async def _both_paused(
    fleet: Fleet,
    pauses: tuple[Pause, Pause],
    steps: tuple[str, str],
    order: Sequence[int],
    makings: list[asyncio.Future[None]],
) -> None:
    stores = [await fleet.join(f"slow{number}", pause) for number, pause in enumerate(pauses)]
    fast = await fleet.join("fast")
    for _ in range(2):
        await fleet.insert(fast)
        await make(fast)
    makings.append(await begin(fleet, stores[0], pauses[0], steps[0]))
    makings.append(await begin(fleet, stores[1], pauses[1], steps[1]))
    for _ in range(2):  # so that neither of the two that are kept is theirs
        await fleet.insert(fast)
        await make(fast)
    reached = position(await fleet.manifest())
    await fleet.newcomer_opens("newcomer")
    for turn, number in enumerate(order):
        await finish(pauses[number], makings[number])
        now = position(await fleet.manifest())
        assert now >= reached, "the manifest went back"
        reached = now
        await fleet.newcomer_opens(f"newcomer{turn}")
    await fleet.insert(fast)
    await make(fast)
    assert position(await fleet.manifest()) > reached
    await fleet.newcomer_opens("last")
    assert len((await fast.claim(Wanted(100), "w", T0 + 1)).jobs) == fleet.inserted


@pytest.mark.behaviour("F-5")
@pytest.mark.parametrize("first", STEPS)
async def test_two_snapshotters_are_paused_at_any_two_steps(
    folder: Path, first: str, size: Callable[[int, int], int]
) -> None:
    """In memory every pair and both orders in the long run; in the test command one order of each."""
    for second in STEPS:
        for turn in range(size(1, 2)):
            order = [0, 1] if (turn + STEPS.index(first) + STEPS.index(second)) % 2 else [1, 0]
            async with a_fleet(folder / f"{second}{turn}", "memory") as fleet:
                await both_paused(fleet, first, second, order)


@pytest.mark.behaviour("F-5")
@pytest.mark.parametrize("first", STEPS)
async def test_two_snapshotters_are_paused_on_jetstream(
    folder: Path, first: str, size: Callable[[tuple[str, ...], tuple[str, ...]], tuple[str, ...]]
) -> None:
    for second in size((first,), STEPS):
        async with a_fleet(folder / second, "jetstream") as fleet:
            await both_paused(fleet, first, second, [1, 0])


async def test_the_control_without_compare_and_set_the_manifest_goes_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def overwrite(self: MemoryLog, manifest: Manifest) -> None:
        self.kept.manifest = manifest

    monkeypatch.setattr(MemoryLog, "put_manifest", overwrite)
    async with a_fleet(folder / "control", "memory") as fleet:
        with pytest.raises(AssertionError, match="the manifest went back"):
            await both_paused(fleet, "put_manifest", "trim", [0, 1])


async def test_the_control_without_care_what_the_manifest_names_is_dropped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def drop(self: MemoryLog, keep: Sequence[str]) -> None:
        for name in set(self.kept.snapshots) - set(keep):
            del self.kept.snapshots[name]

    monkeypatch.setattr(MemoryLog, "drop_pieces", drop)
    async with a_fleet(folder / "control", "memory") as fleet:
        with pytest.raises(Exception, match="no sound snapshot"):
            await both_paused(fleet, "drop_pieces", "put_pieces", [0, 1])
