"""Write a golden log: every command in a few hundred messages, with fixed ids and times, and the chain it leads to.

    python -m tools.golden_log tests/stores/golden/level-1.log

A level's log is written once, by the release that brings the level, and never again: whatever changes later must come
to the same chain. It refuses to replace a file.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from redrive.core.commands import (
    AddUp,
    Apply,
    Beat,
    Command,
    Erase,
    Forget,
    GiveBack,
    Hello,
    Insert,
    Take,
    Ticket,
    Unstick,
)
from redrive.core.job import Job, new_id
from redrive.core.policy import Rate
from redrive.core.store import Commit, Guard, Lease, Put, Wanted
from redrive.stores.replica import envelope as wire
from redrive.stores.replica.log import LogEntry
from redrive.stores.replica.replay import Replay
from redrive.stores.sqlite.connection import open_writer
from redrive.stores.sqlite.machine import Machine, Taken
from tests.stores.jobs import T0, a_job, burial, hold, keyed, redrive, retry, success

GENERATION = "golden"
ROUNDS = 40


class Golden(msgspec.Struct, frozen=True):
    """What the file holds."""

    level: int
    generation: str
    entries: list[LogEntry]
    chain: str
    """Of the last message, in hex."""


class Writer:
    """Writes messages and executes them at once, because later ones depend on what earlier ones did."""

    def __init__(self, path: Path) -> None:
        self.entries: list[LogEntry] = []
        self.rng = random.Random(1)
        self.connection = open_writer(path)
        self.replay = Replay(Machine())
        self.replay.load(self.connection)
        self.replay.begin(self.connection, GENERATION)
        self.number = 0
        self.jobs = 0
        self.now = T0

    def append(self, data: bytes) -> list[object]:
        position = len(self.entries) + 1
        entry = LogEntry(position, f"m{position}", data, self.now)
        self.entries.append(entry)
        self.connection.execute("BEGIN IMMEDIATE")
        replayed = self.replay.message(self.connection, entry)
        self.connection.execute("COMMIT")
        return list(replayed.outcomes)

    def say(self, *commands: Command | wire.Level | wire.Halt, limit: int = 1 << 20) -> list[object]:
        """One message of the replica `r`, in parts where it is larger than the limit."""
        self.now += 1.0
        self.number += 1
        ticket = Ticket("r", self.number, max(0, self.number - 3))
        here = self.replay.here
        items = [wire.encode_item(command) for command in commands]
        data = wire.pack(ticket, GENERATION, here.position, here.chain, items)
        outcomes: list[object] = []
        for piece in wire.split(ticket, data, limit):
            outcomes = self.append(piece)
        return outcomes

    def once(self, number: int, command: Command) -> list[object]:
        """One message with a command under the ticket of a client."""
        self.now += 1.0
        self.number += 1
        here = self.replay.here
        items = [wire.encode_item(command, Ticket("thin", number, max(0, number - 2)))]
        return self.append(wire.pack(Ticket("r", self.number), GENERATION, here.position, here.chain, items))

    def job(self, queue: str, **fields: Any) -> Job:
        self.jobs += 1
        id = new_id(T0 + self.jobs, self.jobs)
        return a_job(queue, id=id, payload=f'{{"n":{self.jobs}}}', run_at=self.now, **fields)

    def take(self, wanted: Wanted, token: str) -> list[Job]:
        (taken,) = self.say(Take(wanted, "w", "host-1-a", token, self.now))
        return taken.jobs() if isinstance(taken, Taken) else []


def write(writer: Writer) -> None:
    writer.say(Hello("r", T0, 1))
    writer.say(wire.Level(1))
    writer.say(Hello("thin", T0))
    dead: list[Job] = []
    done: list[Job] = []
    for turn in range(ROUNDS):
        _hand_in(writer, turn)
        _work(writer, turn, dead, done)
    _odd_ones(writer, dead, done)


def _hand_in(writer: Writer, turn: int) -> None:
    rng = writer.rng
    jobs = [
        writer.job(rng.choice("abc"), agent=rng.choice((None, "x", "y")), priority=rng.randrange(4))
        for _ in range(rng.randint(1, 4))
    ]
    writer.say(Insert(tuple(jobs), (Put("note", f"n{turn}", b"1"),), writer.now))
    writer.once(turn * 2 + 1, Insert((keyed(f"k{turn % 30}", "a"),)))
    if turn % 10 == 0:
        big = [writer.job("b", state=jobs[0].state) for _ in range(20)]
        writer.say(Insert(tuple(big)), limit=1_000)


def _work(writer: Writer, turn: int, dead: list[Job], done: list[Job]) -> None:
    limits = Wanted(
        3, queue_slots={"a": 2}, agent_limit=2, store_limits={"b": 3}, store_rates={"c": Rate(5, 10.0)}, lease=30.0
    )
    wanted = limits if turn % 2 else Wanted(2)
    got = writer.take(wanted, f"t{turn}")
    leases = tuple(Lease(job.id, job.token or "") for job in got)
    writer.say(Beat((*leases, Lease("nobody", "x")), writer.now))
    for number, job in enumerate(got):
        kind = (turn + number) % 5
        if kind == 0:
            writer.say(Apply((Commit((retry(job, writer.now, run_at=writer.now + 5),)),)))
        elif kind == 1:
            dead.append(job)
            writer.say(Apply((Commit((burial(job, writer.now),)),)))
        elif kind == 2:
            writer.say(GiveBack(f"t{turn}"), Apply((Commit((success(job, writer.now),)),)))
        else:
            done.append(job)
            put = Put("effect", job.id, b"{}", 0)
            guarded = Commit(puts=(put,), guards=(Guard(Lease(job.id, job.token or ""), writer.now),))
            writer.say(Apply((guarded, guarded)))
            writer.once(turn * 2 + 2, Apply((Commit((success(job, writer.now),)),)))
            writer.once(turn * 2 + 2, Apply((Commit((success(job, writer.now),)),)))


def _odd_ones(writer: Writer, dead: list[Job], done: list[Job]) -> None:
    """What happens seldom: people, repeats, strangers, a halted fleet, pruning, erasing."""
    from redrive.stores.sqlite import records

    ids = [job.id for job in dead]
    for job in records.get(writer.connection, writer.replay.machine.routes, ids)[:5]:
        writer.say(Apply((Commit((redrive(job, writer.now),)), Commit((redrive(job, writer.now),)))))
    for waiting in writer.take(Wanted(1), "held"):
        writer.say(GiveBack("held"))
        (found,) = records.get(writer.connection, writer.replay.machine.routes, [waiting.id])
        writer.say(Apply((Commit((hold(found, writer.now),)),)))
    writer.append(writer.entries[20].data)
    writer.append(wire.pack(Ticket("stranger", 1), GENERATION, 0, b"", [wire.encode_item(Insert((writer.job("a"),)))]))
    writer.say(wire.Halt("replicas differ"))
    writer.take(Wanted(5), "halted")
    writer.say(wire.Halt(None))
    (job, *_) = [*writer.take(Wanted(1), "again"), writer.job("a")]
    writer.say(Take(Wanted(1), "w", "host-1-a", "again", writer.now, again=True))
    writer.say(Take(Wanted(1, ids=(job.id,)), "w", "host-1-a", "by id", writer.now))
    writer.say(Forget(tuple(one.id for one in done[:5]), ("a",), int(T0 // 60)))
    writer.say(Erase(tuple(one.id for one in done[5:10])))
    writer.say(Insert((writer.job("c", created_at=T0 + 1e6),)), Unstick(writer.now), AddUp(0))


def main(target: Path) -> None:
    if target.exists():
        raise SystemExit(f"{target} exists: the log of a level is written once")
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder) / "golden.db")
        write(writer)
        chain = writer.replay.here.chain.hex()
        writer.connection.close()
    target.write_bytes(msgspec.msgpack.encode(Golden(wire.LEVEL, GENERATION, writer.entries, chain)))
    print(f"{len(writer.entries)} messages, chain {chain}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
