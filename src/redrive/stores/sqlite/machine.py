"""Machine: executes commands on a connection, inside the transaction of the caller.

It is deterministic: what a command does depends on the rows and the command alone, never on a clock, a random number, a
host, or the size of a transaction. So all replicas, which run it for every message of their log, agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import apsw

from redrive.core.commands import AddUp, Apply, Beat, Command, Erase, Forget, GiveBack, Hello, Insert, Take, Unstick
from redrive.core.job import Job
from redrive.core.store import Commit, Inserted, Outcome, Wanted
from redrive.stores.sqlite import claims, commits, rollups, sessions, upkeep
from redrive.stores.sqlite.batches import Batch, make_batches
from redrive.stores.sqlite.records import UNREADABLE, Route, RouteCache, get
from redrive.stores.sqlite.sessions import Retaken


class Taken(NamedTuple):
    """The jobs that a Take got, as rows, which the caller decodes in its own thread."""

    picked: list[claims.Picked]
    wanted: Wanted
    claimant: claims.Claimant
    storied: Callable[[], Mapping[str, Job]]
    open: claims.OpenRoutes
    room: claims.Room

    @property
    def number(self) -> int:
        return sum(part.number for part in self.picked)

    def jobs(self) -> list[Job]:
        return claims.make_jobs(self.picked, self.wanted, self.claimant, self.storied())

    def fences(self) -> list[tuple[str, int]]:
        """The ids and versions of the jobs, as they were before."""
        return [(job.id, job.version) for part in self.picked for job in part.candidates()]

    def next_due(self, connection: apsw.Connection) -> float | None:
        """When more will be due; None where the worker has no slot left for it."""
        if self.room.slots <= 0:
            return None
        return claims.find_next_due(connection, self.open, self.claimant.now, self.room.opens(self.open))


class Machine:
    """The commands of core/commands.py on the tables of this folder. It knows the routes, and nothing else.

    `opens_minutes`: new jobs are added to the sums when their minute is over, which makes a lone insert cheaper.
    Replicas, which must agree with those of other versions, add them at once.
    """

    def __init__(self, *, opens_minutes: bool = False) -> None:
        self.routes = RouteCache()
        self._opens_minutes = opens_minutes

    def prepare(self, connection: apsw.Connection, command: Command) -> None:
        """Number the routes that a command names, in the command's place, also where it is refused afterwards."""
        self.routes.ensure(connection, list_routes(command))

    def execute(self, connection: apsw.Connection, command: Command) -> Any:
        """Execute the command and return its outcome. `prepare` comes before."""
        match command:
            case Hello():
                return sessions.begin(connection, command)
            case Insert():
                return self.insert_all(connection, [command])[0]
            case Apply():
                return self.apply(connection, command.commits, make_batches(command.commits))
            case Take():
                return self.take(connection, command)
            case GiveBack():
                return claims.give_back_all(connection, command.token)
            case Beat():
                return commits.heartbeat(connection, command.leases, command.now)
            case Forget():
                return upkeep.forget(connection, command)
            case Erase():
                return upkeep.erase(connection, command.ids)
            case Unstick():
                return upkeep.unstick(connection, command.now)
            case AddUp():
                return rollups.add_up(connection, command.since)

    def insert(
        self, connection: apsw.Connection, callers: Sequence[commits.Accepted], stamps: Iterable[float | None] = ()
    ) -> list[list[Inserted]]:
        """Add the jobs of several callers in one go."""
        for stamp in stamps:
            if stamp is not None:
                connection.execute(commits.STAMP, (str(stamp).encode(),))
        return commits.insert(connection, self.routes, callers, opens_minutes=self._opens_minutes)

    def insert_all(self, connection: apsw.Connection, commands: Sequence[Insert]) -> list[list[Inserted]]:
        """Execute several inserts in one go, as if one came after the other."""
        stamps = [command.stamp for command in commands]
        return self.insert(connection, [(command.jobs, command.puts) for command in commands], stamps)

    def apply(self, connection: apsw.Connection, group: Sequence[Commit], ready: Sequence[Batch]) -> list[Outcome]:
        """Write commits; `ready` are those of them that can be written together."""
        return commits.apply(connection, self.routes, group, ready)

    def take(self, connection: apsw.Connection, command: Take) -> Taken | Retaken:
        """Claim due jobs. Raises, and changes nothing, where a record cannot be read."""
        wanted, now = command.wanted, command.now
        if command.again and (ids := claims.list_running(connection, command.token)):
            return Retaken(get(connection, self.routes, ids))
        open = claims.list_open_routes(connection, wanted, now)
        room = claims.Room(connection, wanted, now)
        if wanted.ids:
            picked = claims.pick_ids(connection, wanted.ids, self.routes.names(connection))
        else:
            picked = claims.pick(connection, open, room, now)
        claimant = claims.Claimant(command.worker, command.process, command.token, now)
        claims.take(connection, picked, wanted, claimant)
        try:
            storied = claims.read_storied(connection, self.routes, picked)
        except UNREADABLE:
            claims.give_back(connection, picked, claimant)
            raise
        claims.note_starts(connection, picked, wanted, now)
        return Taken(picked, wanted, claimant, storied, open, room)


def list_routes(command: Command) -> Iterable[Route]:
    """Return the routes that executing a command may have to number."""
    match command:
        case Insert():
            return {(job.queue, job.task, job.agent) for job in command.jobs}
        case Apply():
            return commits.list_routes([move for commit in command.commits for move in commit.transitions])
        case _:
            return ()
