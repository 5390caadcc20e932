"""A fleet of real processes: hubs, workers without a file, producers and a NATS server are killed and frozen.

What was accepted ends exactly once, and a replica that is built anew from the log is the long-lived one, row by row.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import BusEvent, Policy, Redrive
from redrive.core.commands import Apply, Insert
from redrive.core.job import keyed_id
from redrive.errors import StoreError
from redrive.retries import strategy
from redrive.stores.remote import Hub, nats, protocol
from redrive.stores.remote.service import Answered
from redrive.stores.replica import ReplicaStore, chores, envelope, replay
from redrive.stores.replica.jetstream import JetStreamLog
from redrive.stores.sqlite import sessions
from redrive.stores.sqlite.connection import open_writer
from tests.chaos.app import add_tasks
from tests.chaos.history import assert_history
from tests.chaos.ledger import Ledger, audit
from tests.chaos.processes import Child, Zygote, until
from tests.nats import Server, free_ports, own_server
from tests.stores.paths import rows_of

pytestmark = pytest.mark.chaos

CONCURRENCY = 4
WORKERS = 2
LEASE = 6.0
"""Longer than a client takes to leave a hub that does not answer."""
HASTE = 2.5
"""Seconds after which a hasty client leaves a hub that says nothing."""
TASKS = ("work", "flaky", "hopeless", "gated")
MIX = ("work", "work", "flaky", "work", "hopeless", "work")
PATIENCE = 150.0


def make_app(folder: Path, url: str, **settings: Any) -> tuple[Redrive, Ledger]:
    """The chaos application, for a fleet at this URL."""
    ledger = Ledger(folder / "ledger")
    queues = {name: Policy(lease=LEASE) for name in TASKS}
    home = {"replica_folder": str(folder / "home")}
    rd = Redrive(url, **{"poll": 0.2, "queues": queues, **home, **settings})
    add_tasks(rd, ledger, folder)

    def completed(event: BusEvent) -> None:
        ledger.completed(str(event.job_id))

    rd.subscribe("completed", completed)
    return rd, ledger


# ---- what the children do


def hub(
    folder: str, url: str, name: str, *, blind: bool = False, silent: str = "", forgetful: bool = False, level: int = 0
) -> None:
    """`redrive hub`. Without its observer nobody notices the dead, without sessions nothing is remembered.

    A silent one does not give the first answer of this kind, and a newer one replays with a level of its own.
    """
    if blind:
        from redrive.stores.sqlite.liveness import Observer

        Observer.lapsed = lambda self, running, now: []  # type: ignore[method-assign]
    if silent:
        _be_silent(Path(folder), silent)
    if forgetful:
        sessions.execute_once = lambda *given: given[-1]()  # type: ignore[assignment]
    if level:
        chores.LEVEL_SECONDS, replay.LIVE_SECONDS = 0.3, 3.0  # type: ignore[misc]
        envelope.LEVEL = level  # type: ignore[misc]
    rd, _ = make_app(Path(folder), url, replica=True, replica_folder=str(Path(folder) / name))

    async def serve() -> None:
        async with rd, rd.serving_hub():
            (Path(folder) / f"{name}.{os.getpid()}").touch()
            raise SystemExit(await rd.store.until_failed())

    asyncio.run(serve())


def _be_silent(folder: Path, kind: str) -> None:
    """Perform the first request of this kind, and never say so: somebody is to kill this process meanwhile."""
    perform = Hub.perform

    async def performed(self: Hub, data: bytes) -> Answered:
        answered = await perform(self, data)
        if kind == _kind_of(data, answered) and not (folder / "silent").exists():
            (folder / "silent").touch()
            await asyncio.Event().wait()
        return answered

    Hub.perform = performed  # type: ignore[method-assign]


def _kind_of(data: bytes, answered: Answered) -> str:
    """What was asked for: "insert", "claim" where jobs are given, "settle" where a job moves."""
    if answered.tokens:
        return "claim"
    asked = protocol.read_request(data)
    if asked.verb != "execute":
        return ""
    command = protocol.verbs()["execute"].read_arguments.decode(asked.arguments).command
    if isinstance(command, Insert):
        return "insert"
    moves = isinstance(command, Apply) and any(commit.transitions for commit in command.commits)
    return "settle" if moves else ""


def worker(folder: str, url: str, *, hasty: bool = False) -> None:
    """`redrive worker` without a file of its own; a hasty one goes to another hub sooner."""
    if hasty:
        nats.SILENT_SECONDS = HASTE  # type: ignore[misc]
    strategy.CRASH_WAITS = (1.0, 2.0, 3.0)  # type: ignore[misc]
    rd, _ = make_app(Path(folder), url)
    asyncio.run(rd.run_worker(concurrency=CONCURRENCY, grace=5.0))


def producer(folder: str, url: str, *, name: str, number: int) -> None:
    """Hands in jobs one by one, each until somebody says that it is safe."""
    rd, ledger = make_app(Path(folder), url)

    async def hand_in() -> None:
        for n in range(number):
            task, key = MIX[n % len(MIX)], f"{name}-{n}"
            ledger.offered(keyed_id(task, key))
            ledger.accepted([await _accepted(rd, task, n, key)])
            await asyncio.sleep(0.01)

    asyncio.run(hand_in())


async def _accepted(rd: Redrive, task: str, n: int, key: str) -> str:
    for _ in range(20):
        try:
            return (await rd.enqueue(task, {"n": n}, idempotency_key=key)).id
        except StoreError:
            await asyncio.sleep(0.2)
    raise AssertionError("no hub took the job")


# ---- the fleet


class Fleet:
    """Two workers without a file and a producer, and what they are connected to."""

    def __init__(self, zygote: Zygote, folder: Path, url: str, seed: int) -> None:
        self.zygote = zygote
        self.folder = folder
        self.url = url
        self.rng = random.Random(seed)
        self.rd, self.ledger = make_app(folder, url)
        self.workers: list[Child] = []
        self.hubs: dict[str, Child] = {}
        self.frozen = 0
        self.strikes = 0

    def start(self, role: str, **arguments: Any) -> Child:
        """A process in this role; `url` where it goes another way than the others."""
        log = self.folder / f"{role}.log"
        given = {"folder": self.folder, "url": self.url, **arguments}
        return self.zygote.start(f"tests.chaos.test_fleet:{role}", log=log, **given)

    def hire(self) -> None:
        while len(self.workers) < WORKERS:
            self.workers.append(self.start("worker"))

    async def start_hub(self, name: str, **how: Any) -> None:
        child = self.hubs[name] = self.start("hub", name=name, **how)
        await until("the hub answers", lambda: self._serves(name, child))

    def _serves(self, name: str, child: Child) -> bool:
        assert child.running(), child.log()
        return (self.folder / f"{name}.{child.pid}").exists()

    # -- strikes

    async def kill_worker(self) -> None:
        victim = self.workers.pop(self.rng.randrange(len(self.workers)))
        victim.send(signal.SIGKILL)
        await victim.exited()
        self.ledger.killed(victim.pid)
        self.hire()

    async def freeze_worker(self) -> None:
        """For longer than its lease: its jobs are others' when it wakes."""
        victim = self.rng.choice(self.workers)
        await self._freeze(victim, LEASE + 3.0)

    async def kill_hub(self) -> None:
        name = self.rng.choice(sorted(self.hubs))
        self.hubs[name].send(signal.SIGKILL)
        await self.hubs[name].exited()
        self.strikes += 1
        await self.start_hub(name)

    async def freeze_hub(self) -> None:
        """For longer than its clients wait for it."""
        await self._freeze(self.hubs[self.rng.choice(sorted(self.hubs))], 7.0)

    async def _freeze(self, child: Child, seconds: float) -> None:
        child.send(signal.SIGSTOP)
        self.frozen += 1
        await asyncio.sleep(seconds)
        child.send(signal.SIGCONT)

    # -- the end

    async def calm(self, producers: list[Child]) -> None:
        for child in producers:
            assert await child.exited(PATIENCE) == 0, child.log()
        await until("every job ends", self._ended, PATIENCE)

    async def _ended(self) -> bool:
        totals = (await self.rd.stats())["totals"]
        return not totals["waiting"] and not totals["running"]

    async def books(self, number: int) -> None:
        """What was accepted has ended, once, and nobody completed what he had lost."""
        shaken = (self.frozen + self.strikes) * WORKERS * CONCURRENCY
        found = (await audit(self.rd, self.ledger, concurrency=CONCURRENCY, expiries=shaken)).assert_sound()
        await assert_history(self.rd, self.ledger)
        assert len(found.books.accepted) == number
        assert all(job.state == "done" for job in found.jobs.values() if job.task in ("work", "flaky"))
        assert all(job.state == "dead" for job in found.jobs.values() if job.task == "hopeless")

    async def leave(self) -> None:
        """The workers first: they have something to tell the hubs."""
        for children in (self.workers, list(self.hubs.values())):
            for child in children:
                child.send(signal.SIGTERM)
            for child in children:
                await child.exited()


async def assert_all_replicas_alike(folder: Path, url: str, known: list[Path]) -> None:
    """Those of the hubs, brought to the end of the log, and one that is built anew from it."""
    places = [*known, folder / "anew.db"]
    for place in places:
        store = ReplicaStore(place, lambda: JetStreamLog(url), live=folder / "live")
        await store.open()
        await store.close()
    rows = [_rows(place) for place in places]
    assert rows[0]["jobs"]
    for place, found in zip(places[1:], rows[1:], strict=True):
        for table, expected in rows[0].items():
            assert found[table] == expected, f"{place.name}: {table} differs"


def _rows(place: Path) -> dict[str, list[tuple[Any, ...]]]:
    connection = open_writer(place)
    try:
        return rows_of(connection)
    finally:
        connection.close()


@contextmanager
def synced_server(folder: Path) -> Iterator[Server]:
    """A server that syncs before it acknowledges."""
    line = f'jetstream {{ store_dir: "{folder / "store"}", sync_interval: always, max_file_store: 1GB }}'
    with own_server(folder, lines=[line]) as server:
        yield server


def address(server: Server) -> str:
    return f"{server.url}/chaos?max_bytes=64MB&snapshot_bytes=128MB"


@asynccontextmanager
async def a_fleet(zygote: Zygote, folder: Path, seed: int) -> AsyncIterator[tuple[Fleet, Server]]:
    with synced_server(folder / "nats") as server:
        fleet = Fleet(zygote, folder, address(server), seed)
        for name in ("hub-a", "hub-b"):
            await fleet.start_hub(name)
        fleet.hire()
        async with fleet.rd:
            yield fleet, server


@pytest.mark.behaviour("F-20c")
@pytest.mark.behaviour("F-1")
async def test_workers_hubs_and_the_server_are_killed_and_frozen(
    zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]
) -> None:
    rounds, number = size(1, 40), size(150, 4_000)
    async with a_fleet(zygote, folder, seed) as (fleet, server):

        async def restart_server() -> None:
            server.kill()
            fleet.strikes += 1
            server.start()

        producers = [fleet.start("producer", name=f"p{n}", number=number // 2) for n in range(2)]
        await until("work has begun", lambda: fleet.ledger.read().starts)
        kinds = [
            fleet.kill_worker, fleet.kill_hub, restart_server, fleet.kill_worker, fleet.freeze_hub, fleet.kill_hub,
            fleet.freeze_worker, restart_server,
        ]  # fmt: skip
        for _ in range(rounds):
            fleet.rng.shuffle(kinds)
            for strike in kinds:
                await strike()
                await asyncio.sleep(fleet.rng.uniform(0.05, 0.3))
        await fleet.calm(producers)
        await fleet.books(number // 2 * 2)
        await fleet.leave()
        known = [folder / name / "replica-0.db" for name in fleet.hubs]
        await assert_all_replicas_alike(folder, fleet.url, known)


@pytest.mark.behaviour("F-7")
@pytest.mark.parametrize("blind", [False, True])
async def test_the_job_of_a_dead_worker_is_done_by_another(
    zygote: Zygote, folder: Path, seed: int, blind: bool
) -> None:
    """By its lease alone, since no hub can see the worker. The control: hubs without an observer leave it for ever."""
    with synced_server(folder / "nats") as server:
        fleet = Fleet(zygote, folder, address(server), seed)
        await fleet.start_hub("hub-a", blind=blind)
        async with fleet.rd:
            fleet.hire()
            handle = await fleet.rd.enqueue("gated", {"gate": "open"})
            fleet.ledger.accepted([handle.id])
            await until("the job starts", lambda: fleet.ledger.read().starts)
            ((_, _, pid),) = fleet.ledger.read().starts
            (victim,) = [child for child in fleet.workers if child.pid == pid]
            victim.send(signal.SIGKILL)
            await victim.exited()
            fleet.workers.remove(victim)
            fleet.ledger.killed(pid)
            (folder / "open").touch()
            if blind:
                with pytest.raises(TimeoutError):
                    await handle.result(timeout=LEASE + 6.0)
            else:
                assert await handle.result(timeout=60) == "open"
                (await audit(fleet.rd, fleet.ledger, concurrency=CONCURRENCY)).assert_sound()
                await assert_history(fleet.rd, fleet.ledger)
            await fleet.leave()
        await assert_all_replicas_alike(folder, fleet.url, [folder / "hub-a" / "replica-0.db"])


# ---- over HTTP, on a plain file


def server(folder: str, url: str, *, port: int) -> None:
    """`redrive serve --no-worker --no-auth` on a plain file."""
    from redrive.doors.cli import cli

    os.environ["REDRIVE_URL"] = str(Path(folder) / "jobs.db")
    cli.main(["serve", "--no-worker", "--no-auth", "--port", str(port)], prog_name="redrive")


def _answers(child: Child, port: int) -> bool:
    assert child.running(), child.log()
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


@pytest.mark.behaviour("F-20c")
async def test_a_server_on_a_plain_file_is_killed_while_others_work_on(
    zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]
) -> None:
    kills, number = size(4, 100), size(100, 2_000)
    (port,) = free_ports(1)
    fleet = Fleet(zygote, folder, f"http://127.0.0.1:{port}", seed)

    async def serve() -> Child:
        child = fleet.start("server", port=port)
        await until("the server answers", lambda: _answers(child, port))
        return child

    serving = await serve()
    async with fleet.rd:
        fleet.hire()
        producers = [fleet.start("producer", name=f"p{n}", number=number // 2) for n in range(2)]
        await until("work has begun", lambda: fleet.ledger.read().starts)
        for _ in range(kills):
            await asyncio.sleep(fleet.rng.uniform(0.1, 0.5))
            serving.send(signal.SIGKILL)
            await serving.exited()
            fleet.strikes += 1
            serving = await serve()
        await fleet.kill_worker()
        await fleet.calm(producers)
        await fleet.books(number // 2 * 2)
        await fleet.leave()
    serving.send(signal.SIGTERM)
    await serving.exited()
