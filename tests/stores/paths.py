"""Different ways over the same log: every replica must come to the same rows and the same answers by each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw

from redrive.stores.replica.log import LogEntry
from redrive.stores.replica.replay import Replay
from redrive.stores.sqlite import upkeep
from redrive.stores.sqlite.connection import open_writer
from redrive.stores.sqlite.machine import Machine, Taken

GENERATION = "a log of this test"


class Replica:
    """A file that replays entries, in transactions of any size."""

    def __init__(self, path: Path, generation: str, machine: Callable[[], Machine] = Machine) -> None:
        self.path = path
        self._make = machine
        self.answers: list[tuple[int, list[tuple[str, int]]]] = []
        """What every Take got: the ids and versions of its jobs, by position."""
        self.open()
        if self.replay.standing is None:
            self.replay.begin(self.connection, generation)

    def open(self) -> None:
        self.connection = open_writer(self.path)
        self.replay = Replay(self._make())
        self.replay.load(self.connection)

    def restart(self) -> None:
        """As another process would: nothing is remembered but the file."""
        self.connection.close()
        self.open()

    def execute(self, entries: Sequence[LogEntry]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        replayed = [self.replay.message(self.connection, entry) for entry in entries]
        self.connection.execute("COMMIT")
        for message in replayed:
            for outcome in message.outcomes:
                if isinstance(outcome, Taken):
                    got = outcome.fences()
                    self.answers.append((message.position, got))

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table."""
        return rows_of(self.connection)

    def close(self) -> None:
        self.connection.close()


def rows_of(connection: apsw.Connection) -> dict[str, list[tuple[Any, ...]]]:
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1")]
    return {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}


def one_by_one(replica: Replica, entries: Sequence[LogEntry]) -> Replica:
    for entry in entries:
        replica.execute([entry])
    return replica


def two_by_two(replica: Replica, entries: Sequence[LogEntry]) -> Replica:
    for start in range(0, len(entries), 2):
        replica.execute(entries[start : start + 2])
    return replica


def all_at_once(replica: Replica, entries: Sequence[LogEntry]) -> Replica:
    if entries:
        replica.execute(entries)
    return replica


def with_restarts(replica: Replica, entries: Sequence[LogEntry]) -> Replica:
    """A new process after every message."""
    for entry in entries:
        replica.execute([entry])
        replica.restart()
    return replica


def after_a_rollback(replica: Replica, entries: Sequence[LogEntry]) -> Replica:
    """Every message is executed twice, because the first transaction is rolled back."""
    for entry in entries:
        replica.connection.execute("BEGIN IMMEDIATE")
        replica.replay.message(replica.connection, entry)
        replica.connection.execute("ROLLBACK")
        replica.replay.load(replica.connection)
        replica.execute([entry])
    return replica


def by_a_snapshot(replica: Replica, entries: Sequence[LogEntry]) -> Replica:
    """The first half elsewhere; a copy of that file replays the rest."""
    half = len(entries) // 2
    if half:
        replica.execute(entries[:half])
    copy = replica.path.with_name(replica.path.name + ".copy")
    upkeep.backup(replica.connection, copy)
    replica.close()
    second = Replica(copy, "", replica._make)
    second.answers = replica.answers
    return one_by_one(second, entries[half:])


PATHS: dict[str, Callable[[Replica, Sequence[LogEntry]], Replica]] = {
    "one by one": one_by_one,
    "two by two": two_by_two,
    "all at once": all_at_once,
    "with restarts": with_restarts,
    "after a rollback": after_a_rollback,
    "by a snapshot": by_a_snapshot,
}


def compare(
    folder: Path, generation: str, entries: Sequence[LogEntry], machine: Callable[[], Machine] = Machine
) -> None:
    """Take every way, and compare every row and every answer with those of the first."""
    first: Replica | None = None
    for number, (name, go) in enumerate(PATHS.items()):
        replica = go(Replica(folder / f"path-{number}.db", generation, machine), entries)
        if first is None:
            first = replica
            continue
        assert replica.answers == first.answers, f"{name}: other jobs were claimed"
        for table, rows in replica.rows().items():
            assert rows == first.rows()[table], f"{name}: {table} differs"
        replica.close()
    if first is not None:
        first.close()
