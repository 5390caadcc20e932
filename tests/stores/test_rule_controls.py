"""Without its guard each rule of the fleet is broken: the controls of the tests that prove it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.core.commands import Insert, Take
from redrive.core.store import Commit, Put, Wanted
from redrive.errors import StoreFull
from redrive.stores.remote import Hub, RemoteStore
from redrive.stores.replica import ReplicaStore, snapshots
from redrive.stores.replica import envelope as wire
from redrive.stores.replica.jetstream import JetStreamLog
from redrive.stores.replica.replay import Replay
from redrive.stores.replica.sender import Sender
from redrive.stores.sqlite import claims
from redrive.stores.sqlite.read_verbs import ReadVerbs
from tests.chaos.processes import until
from tests.nats import shared_server
from tests.stores.direct import DirectTransport
from tests.stores.fleet import total
from tests.stores.jobs import T0, a_job, success
from tests.stores.memory_log import MemoryLog
from tests.stores.paths import Replica
from tests.stores.test_replay import log_of
from tests.stores.test_replica_rules import Fleet, beat_of, count_takes, engine_of

HALTED = "replicas differ"


@pytest.fixture
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(folder)
    yield fleet
    await fleet.close()


# ---- rule 1


async def test_without_the_comparison_of_chains_a_differing_replica_goes_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replay, "_compare", lambda *_: None)
    sound, broken = await fleet.join("sound"), await fleet.join("broken")
    await sound.insert([a_job()])
    await broken.get(["x"])
    engine = engine_of(broken)

    async def spoil() -> None:
        engine.connection.execute("UPDATE replica_chain SET chain = x'00'")

    await engine.call(spoil)
    await sound.insert([a_job()])
    await broken.get(["x"])
    assert broken.failed is None and not engine_of(sound).replay.here.halted


# ---- rule 2


def test_without_the_check_of_positions_a_message_is_skipped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = Replay.message

    def careless(self: Replay, connection: Any, entry: Any) -> Any:
        before = entry.position - 1
        connection.execute("UPDATE replica SET position = ?", (before,))
        self.standing = self.here._replace(position=before)
        return message(self, connection, entry)

    monkeypatch.setattr(Replay, "message", careless)
    replica = Replica(folder / "r.db", "g")
    entries = log_of(Insert((a_job(),)), Insert((a_job(),)))
    for entry in (entries[0], entries[2]):
        replica.execute([entry])
    assert replica.connection.execute("SELECT count(*) FROM jobs").get == 1
    assert replica.replay.here.position == 3
    replica.close()


# ---- rule 8


@pytest.mark.behaviour("F-8")
@pytest.mark.parametrize("control", [False, True])
async def test_a_take_that_nobody_waits_for_is_given_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    """The control leaves the job to a lease that nobody renews."""
    if control:
        monkeypatch.setattr(Sender, "_return_take", lambda *_: None)
    store = await fleet.join("one")
    await store.insert([a_job()])
    fleet.kept.faults.hold = True
    before = len(fleet.kept.entries)
    claiming = asyncio.ensure_future(store.claim(Wanted(1), "w", T0 + 1))
    await until("the claim is in the log", lambda: len(fleet.kept.entries) > before)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    fleet.recover()
    await store.get(["x"])
    if not control:
        await until("it is given back", lambda: len(fleet.kept.entries) > before + 1)
        await store.get(["x"])
    (job,) = [job async for job in store.scan()]
    assert (job.state, job.run) == (("running", 1) if control else ("waiting", 0))


# ---- rule 9


async def test_without_the_barrier_a_read_misses_what_was_committed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = await fleet.join("writer"), await fleet.join("reader")
    await writer.insert([a_job()])
    await reader.get(["x"])
    monkeypatch.setattr(ReplicaStore, "_read_current", ReadVerbs._read)
    fleet.kept.faults.hold = True
    await MemoryLog(fleet.kept).append("x", beat_of(fleet))
    job = a_job()
    inserting = asyncio.ensure_future(writer.insert([job]))
    await until("it is in the log", lambda: len(fleet.kept.entries) >= 4)
    assert await reader.get([job.id]) == []
    fleet.recover()
    await inserting


# ---- rule 10


@pytest.mark.parametrize("how", ["made anew", "went back", "the log was changed"])
async def test_without_the_look_at_the_log_another_one_is_followed(
    fleet: Fleet, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    async def trusting(*_: Any) -> bool:
        return False

    monkeypatch.setattr(snapshots, "must_restore", trusting)
    await store.open()
    assert store.failed is None and await total(store) == 3


def test_without_the_halt_claims_go_on_while_replicas_differ(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replay, "_clamp", lambda self, command, at: command)
    replica = Replica(folder / "r.db", "g")
    for entry in log_of(Insert((a_job(),)), wire.Halt(HALTED), Take(Wanted(1), "w", "p", "t1", T0 + 1)):
        replica.execute([entry])
    ((_, taken),) = replica.answers
    assert len(taken) == 1
    replica.close()


# ---- rule 11


def test_without_the_clamp_a_clock_ahead_claims_early(folder: Path) -> None:
    replica = Replica(folder / "r.db", "g")
    replica.replay._clamps = False
    entries = log_of(Insert((a_job(run_at=T0 + 100),)), Take(Wanted(1), "w", "p", "t1", T0 + 10_000))
    for entry in entries:
        replica.execute([msgspec.structs.replace(entry, at=T0)])
    ((_, taken),) = replica.answers
    assert len(taken) == 1
    replica.close()


# ---- rule 12


class Small(MemoryLog):
    """Takes so many bytes, and not one more."""

    async def append(self, id: str, data: bytes) -> int:
        fill = await self.fill()
        self.kept.faults.full = fill.limit is not None and fill.bytes + len(data) > fill.limit
        return await super().append(id, data)


@pytest.mark.behaviour("F-12")
@pytest.mark.parametrize("control", [False, True])
async def test_there_is_room_to_settle_what_was_taken_in(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    """The control takes new jobs until the last byte, and cannot settle them."""
    monkeypatch.setattr("redrive.stores.replica.store.FILL_SECONDS", 0.0)
    if control:
        monkeypatch.setattr("redrive.stores.replica.store.INSERTS_UNTIL", 2.0)
    fleet.kept.limit = 40_000
    store = await fleet.join("one", log=Small)
    with pytest.raises(StoreFull):
        for _ in range(1_000):
            await store.insert([a_job()])
    if control:
        with pytest.raises(StoreFull):
            for _ in range(100):
                await store.apply([Commit(puts=(Put("note", "k", b"x" * 50),))])
        with pytest.raises(StoreFull):
            await store.claim(Wanted(1), "w", T0 + 1)
        return
    (job,) = (await store.claim(Wanted(1), "w", T0 + 1)).jobs
    await store.apply([Commit((success(job),))])
    assert [found.state for found in await store.get([job.id])] == ["done"]


# ---- rule 14


async def test_namespaces_on_one_server_see_nothing_of_each_other(folder: Path) -> None:
    """Isolation is the namespace: what is in one cannot be read, claimed, counted or heard in another."""
    stores = [
        ReplicaStore(folder / f"{name}.db", lambda url=url: JetStreamLog(url), live=folder / f"live-{name}")  # type: ignore[misc]
        for name in ("ann", "bob")
        for url in [f"{shared_server().url}/{name}{folder.name.replace('-', '')[-12:]}?max_bytes=4MB"]
    ]
    ann, bob = stores
    for store in stores:
        await store.open()
    job = a_job()
    await ann.insert([job])
    await ann.apply([Commit(puts=(Put("note", "k", b"ann's"),))])
    assert await bob.get([job.id]) == [] and await bob.doc("note", "k") is None
    assert (await bob.claim(Wanted(5), "w", T0 + 1)).jobs == [] and await total(bob) == 0
    assert [found.id for found in (await ann.claim(Wanted(5), "w", T0 + 1)).jobs] == [job.id]
    for store in stores:
        await store.close()


# ---- rule 17


class Slow(MemoryLog):
    """Holds claims back until three have arrived, so that idle workers look while the job is still there."""

    patience = 0.5
    """Seconds after which it stops waiting for further claims."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._takes: dict[str, int] = {}
        self._three = asyncio.Event()

    async def append(self, id: str, data: bytes) -> int:
        message = wire.unpack(data)
        items = message.items if isinstance(message, wire.Envelope) else ()
        if takes := sum(isinstance(item, wire.CommandItem) and isinstance(item.command, Take) for item in items):
            self._takes[id] = takes  # a message that is sent again counts once
            if sum(self._takes.values()) > 2:
                self._three.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.patience):
                    await self._three.wait()
        return await super().append(id, data)


@pytest.mark.behaviour("F-17")
@pytest.mark.parametrize("control", [False, True])
async def test_idle_workers_leave_a_lone_job_to_the_first_of_them(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    """The control has no line: every worker claims it."""
    if control:
        monkeypatch.setattr(claims, "has_more_due", lambda *_: True)
        monkeypatch.setattr(Slow, "patience", 15.0)
    store = await fleet.join("one", log=Slow)
    remote = RemoteStore(lambda: DirectTransport(lambda: Hub(store)), url="a hub")
    woken = asyncio.Event()
    waiting = [
        asyncio.ensure_future(remote.claim_next(Wanted(1), f"w{number}", lambda: T0 + 1, 0, 10.0, woken))
        for number in range(32)
    ]
    await until("all wait", lambda: len(store._waiters._waiters) >= 32)
    await store.insert([a_job()])
    done, _ = await asyncio.wait(waiting, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    woken.set()
    await asyncio.gather(*waiting)
    assert done and (count_takes(fleet.kept) > 2) == control
    await remote.close()
