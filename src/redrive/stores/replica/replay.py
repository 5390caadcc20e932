"""Replays messages of the log into the file: in order, none skipped, each once, and the same in every replica.

A message is executed in the transaction that moves the position to it. Only refusals by the Machine are outcomes; any
other failure (a full disk, a message that cannot be read) raises, is rolled back, and the same message is tried again.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from redrive.core.commands import Apply, Command, GiveBack, Hello, Insert, Take, Ticket, Unstick
from redrive.errors import StoreError, StoreFailed
from redrive.stores.replica import envelope as wire
from redrive.stores.replica.envelope import Arrived, CommandItem, Envelope, EnvelopePart, Halt, JobsMoved, Level, Own
from redrive.stores.replica.log import LogEntry
from redrive.stores.sqlite import sessions
from redrive.stores.sqlite.commits import is_plain
from redrive.stores.sqlite.machine import Machine
from redrive.stores.sqlite.records import select
from redrive.stores.sqlite.sessions import RefusedCommand, encode, simplify_outcome

SKEW: Final = 2.0
"""Seconds by which a claim's clock may be ahead of the log's."""
CHAIN_KEPT: Final = 5_000
"""For how many positions back a replica keeps its chain, to compare it with those of issuers."""
NO_CHAIN: Final = b""
LIVE_SECONDS: Final = 300.0
"""A level is activated without the replicas that were silent for so long. They stop where they meet the higher level.
Another number would make replicas differ."""


class ReplicaStopped(StoreFailed):
    """This replica cannot go on; the message says why and what to do."""


class LogJumps(ReplicaStopped):
    """Later messages came without the message that this replica needs next."""


class ChainMismatch(ReplicaStopped):
    """Two replicas executed the same messages with different outcomes."""


class FleetMoved(ReplicaStopped):
    """The jobs of this log were moved away."""

    def __init__(self, to: str) -> None:
        super().__init__(to)
        self.to = to

    def __str__(self) -> str:
        return f"the jobs of this fleet were moved to {self.to}: set REDRIVE_URL to it"


class LogStanding(NamedTuple):
    """The position of a replica in its log, and its state there."""

    generation: str
    position: int
    message: str
    chain: bytes
    at: float
    level: int
    halted: str | None


class Replayed(NamedTuple):
    """Says what became of one message."""

    position: int
    envelope: Envelope | None
    """What was executed; None for a part of an incomplete envelope."""
    outcomes: Sequence[Any]
    """The outcome of each item; empty where the message had been executed before."""
    wakes: bool
    """Whether waiting workers should look again."""


EXPIRED: Final = RefusedCommand("the session of this replica has expired")
LATE: Final = RefusedCommand("this replica had given the command up")
FORGOTTEN: Final = RefusedCommand("the fleet does not know this client any more")
_WAKING: Final = (Insert, Apply, GiveBack, Unstick)


class Replay:
    """Executes messages with a Machine, and knows its position. A rollback must be followed by `load`."""

    def __init__(self, machine: Machine, *, clamps: bool = True, level: int | None = None) -> None:
        self.machine = machine
        self.level = wire.LEVEL if level is None else level
        """The highest level that this code can replay."""
        self._clamps = clamps
        self.standing: LogStanding | None = None

    def load(self, connection: apsw.Connection) -> LogStanding | None:
        """Read the position of the file; return None where it is not a replica yet."""
        self.machine.routes.reset()
        row = connection.execute(
            "SELECT generation, position, message, chain, at, level, halted FROM replica"
        ).fetchone()
        self.standing = LogStanding(*row) if row else None
        return self.standing

    def begin(self, connection: apsw.Connection, generation: str) -> LogStanding:
        """Make an empty file a replica at the beginning of a log."""
        connection.execute(
            "INSERT INTO replica (one, generation, position, message, chain, at, level) VALUES (1, ?, 0, '', ?, 0, 1)",
            (generation, NO_CHAIN),
        )
        self.load(connection)
        return self.here

    def message(self, connection: apsw.Connection, entry: LogEntry) -> Replayed:
        """Execute one message inside the caller's transaction."""
        standing = self.here
        if entry.position != standing.position + 1:
            raise LogJumps(
                f"the log jumps from message {standing.position} to {entry.position}: messages are missing."
                " Run `redrive fleet doctor`"
            )
        try:
            message = wire.unpack(entry.data)
        except msgspec.MsgspecError as error:
            raise ReplicaStopped(
                f"message {entry.position} of the log cannot be read by this version ({error}): upgrade redrive here"
            ) from error
        at = standing.at if entry.at is None else max(standing.at, entry.at)
        outcomes: Sequence[Any]
        if isinstance(message, EnvelopePart):
            envelope = self._join(connection, message)
            if envelope is None:
                self._advance(connection, entry, at, ["part"])
                return Replayed(entry.position, None, (), wakes=False)
            message = envelope
        self._compare(connection, message, entry.position)
        outcomes, simplified = self._execute_envelope(connection, message, at if entry.at is not None else None)
        self._advance(connection, entry, at, simplified)
        wakes = any(isinstance(item, CommandItem) and isinstance(item.command, _WAKING) for item in message.items)
        return Replayed(entry.position, message, outcomes, wakes)

    @property
    def here(self) -> LogStanding:
        """The position of this file, which `load` or `begin` has read."""
        if self.standing is None:
            raise ReplicaStopped("this file is no replica")
        return self.standing

    # -- parts

    def _join(self, connection: apsw.Connection, part: EnvelopePart) -> Envelope | None:
        """Keep a part; return the envelope once all its parts have come."""
        ticket = part.ticket
        name = f"{ticket.client}-{ticket.number}"
        connection.execute(
            "INSERT OR IGNORE INTO replica_parts (message, part, data) VALUES (?, ?, ?)", (name, part.number, part.data)
        )
        rows = select(connection, "SELECT data FROM replica_parts WHERE message = ? ORDER BY part", (name,))
        if len(rows) < part.of:
            return None
        connection.execute("DELETE FROM replica_parts WHERE message = ?", (name,))
        return wire.unpack_whole(b"".join(data for (data,) in rows))

    # -- comparing with the issuer

    def _compare(self, connection: apsw.Connection, envelope: Envelope, position: int) -> None:
        standing = self.here
        if envelope.generation != standing.generation:
            raise ReplicaStopped(f"message {position} belongs to another log, which was made anew: set this file aside")
        if envelope.level > self.level:
            raise ReplicaStopped(
                f"message {position} needs level {envelope.level} of redrive's replay, this version has {self.level}:"
                " upgrade redrive here"
            )
        row = connection.execute("SELECT chain FROM replica_chain WHERE position = ?", (envelope.position,)).fetchone()
        if row is not None and row[0] != envelope.chain:
            raise ChainMismatch(
                f"replicas differ: the issuer of message {position} had other outcomes up to {envelope.position} than"
                " this file. Nothing is claimed until a person looks at it: run `redrive fleet doctor`"
            )

    # -- executing

    def _execute_envelope(
        self, connection: apsw.Connection, envelope: Envelope, at: float | None
    ) -> tuple[Sequence[Any], Any]:
        """Execute the items; return their outcomes for the issuer, and those for the chain."""
        first = envelope.items[0] if envelope.items else None
        if isinstance(first, Arrived) and self.here.position == 0:
            raise ReplicaStopped(
                "jobs were moved into this log, and this replica began without them: start this process again once"
                " `redrive move` has finished"
            )
        if isinstance(first, CommandItem) and isinstance(first.command, Hello):
            sessions.begin(connection, self._clamp_hello(first.command, at))
        try:
            earlier = sessions.find_outcome(connection, envelope.ticket)
        except sessions.SessionExpired:
            return [EXPIRED] * len(envelope.items), ["expired"]
        except sessions.TooLate:
            return [LATE] * len(envelope.items), ["late"]
        if earlier is not None:
            return (), ["repeated"]
        outcomes: list[Any] = []
        for can_join, group in itertools.groupby(envelope.items, _can_join):
            items = list(group)
            if can_join:
                outcomes += self._execute_joined(connection, items)
            else:
                outcomes += [self._execute_item(connection, item, at) for item in items]
        simplified = [
            simplify_outcome(item.command if isinstance(item, CommandItem) else item, outcome)
            for item, outcome in zip(envelope.items, outcomes, strict=True)
        ]
        sessions.remember(connection, envelope.ticket, b"", at or 0.0)
        return outcomes, simplified

    def _execute_joined(self, connection: apsw.Connection, items: Sequence[CommandItem | Own]) -> list[Any]:
        """Execute neighbouring inserts in one statement, or one by one where that fails; the rows are the same."""
        commands = [
            item.command for item in items if isinstance(item, CommandItem) and isinstance(item.command, Insert)
        ]
        outcomes = self._execute_inserts(connection, commands) if len(commands) > 1 else None
        return outcomes if outcomes is not None else [self._execute(connection, command) for command in commands]

    def _execute_inserts(self, connection: apsw.Connection, commands: Sequence[Insert]) -> list[Any] | None:
        """Execute all inserts, or none where one is refused."""
        for command in commands:  # routes stay numbered where the inserts are rolled back
            self.machine.prepare(connection, command)
        connection.execute("SAVEPOINT inserts")
        outcomes: list[Any] | None
        try:
            outcomes = self.machine.insert_all(connection, commands)
        except (StoreError, apsw.ConstraintError):
            connection.execute("ROLLBACK TO inserts")
            outcomes = None
        connection.execute("RELEASE inserts")
        return outcomes

    def _execute_item(self, connection: apsw.Connection, item: CommandItem | Own, at: float | None) -> Any:
        match item:
            case Level():
                return self._activate(connection, item.number, at)
            case Halt():
                connection.execute("UPDATE replica SET halted = ?", (item.why,))
                self.standing = self.here._replace(halted=item.why)
                return None
            case Arrived():
                return None  # a late repeat of the first message
            case JobsMoved():
                return self._leave(connection, item.to)
            case CommandItem():
                command = self._clamp(item.command, at)
                return self._once(connection, command, item.ticket, at or 0.0)

    def _activate(self, connection: apsw.Connection, number: int, at: float | None) -> int | RefusedCommand:
        """Activate a level, unless a live replica cannot replay it. A lower level is never activated again."""
        if number <= self.here.level:
            return self.here.level
        if late := count_behind(connection, number, at):
            return RefusedCommand(f"{late} live replicas have announced a lower level than {number}")
        self.standing = self.here._replace(level=number)
        self.refuse_higher_level()
        connection.execute("UPDATE replica SET level = ?", (number,))
        return number

    def refuse_higher_level(self) -> None:
        """Raise where the fleet replays at a level that this code does not have."""
        if self.here.level > self.level:
            raise ReplicaStopped(
                f"the fleet has moved to level {self.here.level} of redrive's replay, this version has {self.level}:"
                " upgrade redrive here"
            )

    def _leave(self, connection: apsw.Connection, to: str) -> RefusedCommand:
        """Stop every replica before this message for good; refuse where a job runs."""
        running: int = connection.execute("SELECT count(*) FROM jobs WHERE state = 'running'").get
        if running:
            return RefusedCommand(f"{running} jobs run in this fleet: stop its workers in good order, then move it")
        raise FleetMoved(to)

    def _clamp(self, command: Command, at: float | None) -> Command:
        """Limit how far a claim's clock is ahead of the log's, and let a halted fleet claim nothing."""
        if isinstance(command, Hello):
            return self._clamp_hello(command, at)
        if isinstance(command, Take) and self.here.halted is not None:
            wanted = msgspec.structs.replace(command.wanted, slots=0, ids=())
            return msgspec.structs.replace(command, wanted=wanted)
        if not self._clamps or at is None or not isinstance(command, Take | Unstick) or command.now <= at + SKEW:
            return command
        return msgspec.structs.replace(command, now=at + SKEW)

    def _clamp_hello(self, hello: Hello, at: float | None) -> Hello:
        """Let sessions age by the log's time, so that a replica with a clock ahead does not end those of others."""
        return hello if at is None else msgspec.structs.replace(hello, now=at)

    def _once(self, connection: apsw.Connection, command: Command, ticket: Ticket | None, at: float) -> Any:
        """Execute a command, unless its ticket says that it was executed before."""
        if ticket is None or isinstance(command, Hello):
            return self._execute(connection, command)
        try:
            return sessions.execute_once(
                connection, self.machine.routes, command, ticket, at, lambda: self._execute(connection, command)
            )
        except (sessions.SessionExpired, sessions.TooLate):
            return FORGOTTEN

    def _execute(self, connection: apsw.Connection, command: Command) -> Any:
        self.machine.prepare(connection, command)
        connection.execute("SAVEPOINT command")
        try:
            outcome = self.machine.execute(connection, command)
        except (StoreError, apsw.ConstraintError) as error:
            connection.execute("ROLLBACK TO command")
            outcome = RefusedCommand(
                str(error) if isinstance(error, StoreError) else f"refused by the database: {error}"
            )
        connection.execute("RELEASE command")
        return outcome

    # -- the position

    def _advance(self, connection: apsw.Connection, entry: LogEntry, at: float, outcomes: Any) -> None:
        standing = self.here
        chain = hashlib.blake2b(standing.chain + encode([entry.position, outcomes]), digest_size=16).digest()
        connection.execute(
            "UPDATE replica SET position = ?1, message = ?2, chain = ?3, at = ?4 WHERE position = ?1 - 1",
            (entry.position, entry.id, chain, at),
        )
        if connection.changes() != 1:
            raise ReplicaStopped("another process replays into this file: give every process its own file")
        connection.execute("INSERT INTO replica_chain (position, chain) VALUES (?, ?)", (entry.position, chain))
        if entry.position % 1_000 == 0:
            connection.execute("DELETE FROM replica_chain WHERE position < ?", (entry.position - CHAIN_KEPT,))
        self.standing = standing._replace(position=entry.position, message=entry.id, chain=chain, at=at)


def _can_join(item: CommandItem | Own) -> bool:
    """Whether this is an insert of ordinary jobs, which may be executed together with its neighbours."""
    if not isinstance(item, CommandItem) or item.ticket is not None or not isinstance(item.command, Insert):
        return False
    return not item.command.puts and all(is_plain(job) for job in item.command.jobs)


def count_behind(connection: apsw.Connection, number: int, at: float | None) -> int:
    """Count the live replicas that have announced a lower level. By the log's time every replica counts the same."""
    rows = select(connection, "SELECT seen_at, level FROM clients WHERE level IS NOT NULL")
    now = at if at is not None else max((seen for seen, _ in rows), default=0.0)
    return sum(level < number and now - seen <= LIVE_SECONDS for seen, level in rows)
