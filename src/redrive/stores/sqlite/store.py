"""SqliteStore: the verbs of core/store.py on one SQLite file."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from redrive.core.commands import Command, Hello, Take, Ticket
from redrive.core.job import Job, State
from redrive.core.store import Claim, Commit, Info, Inserted, Lease, Outcome, Pruned, Put, Unknown, Wanted
from redrive.errors import CommitUnknown, SessionUnknown, StoreBusy, StoreError, StoreFailed
from redrive.stores.sqlite import claims, commits, fork_guard, records, rollups, sessions, upkeep
from redrive.stores.sqlite.batches import make_batches
from redrive.stores.sqlite.liveness import Observer, ProcessLock
from redrive.stores.sqlite.machine import Machine, Taken, list_routes
from redrive.stores.sqlite.process_wakeups import DUE, MOVED, WakeupSender, WakeupSocket, make_socket_name
from redrive.stores.sqlite.read_verbs import ReadVerbs
from redrive.stores.sqlite.schema import read_schema_number
from redrive.stores.sqlite.standing_claim import NONE_LAPSED, Claimed, Lapsed, StandingClaim, claim_nothing
from redrive.stores.sqlite.wakeups import ForeignCommits, Waiters
from redrive.stores.sqlite.watcher import JobFollowers, Watcher
from redrive.stores.sqlite.writer import Work, Writer

log = logging.getLogger("redrive.store")
T = TypeVar("T")
OBSERVE_SECONDS = 1.0
"""How often a claim looks for ended leases."""
STAMP_SECONDS = 3.0
"""How far the latest stamp may be ahead of the one on record."""
EMPTYING = 25
EMPTYING_PAUSE = 0.1
"""How often `erase` tries to empty the log, and the seconds between two tries."""
STUCK_SECONDS = 10.0
"""A write that has waited so long for its commit means that the store cannot be used now."""
MAX_RECORD = 512 * 1024 * 1024

_LINGERS = (
    "what was erased can still be read in %s or its log: a reader keeps the file open. Erase it once more when the"
    " reader has ended; closing the store empties the log, too"
)
_abandoned: list[object] = []
"""Connections that a forked child inherited and must neither use nor close."""


class SqliteStore(ReadVerbs):
    """The embedded store. `:memory:` means a temporary file."""

    def __init__(self, path: str | Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._temporary = _make_temporary_folder() if str(path) == ":memory:" else None
        self.path = self._temporary / "jobs.db" if self._temporary else Path(path).expanduser().absolute()
        self._monotonic = monotonic
        self._fresh()

    def _fresh(self) -> None:
        super()._fresh()
        self._machine = Machine(opens_minutes=True)
        self._writer: Writer | None = None
        self._lock = ProcessLock(self.path)
        self._observer = Observer(self._lock)
        self._observed = -OBSERVE_SECONDS
        self._lingers = False
        """What was erased last can still be read in the log of the file."""
        self._plenty = False
        """The last claim filled every slot, so skip the cheap "is anything due?" check."""
        self._insert = partial(self._insert_all, self._machine)
        """One function for all callers, so that the writer sees that their inserts go together."""
        socket = self._lock.folder / make_socket_name(self._lock.name)
        self._wakeup_socket = WakeupSocket(socket, self.path)
        self._sender = WakeupSender(socket)
        self._followers = JobFollowers()
        self._claimed = 0
        """How many jobs this process has claimed."""
        self._watcher: threading.Thread | None = None
        self._closed = threading.Event()

    # -- opening and closing

    async def open(self) -> Info:
        await self._ready()
        return Info(f"sqlite:{self.path}", "synced", MAX_RECORD, await self._read(read_schema_number))

    async def _ready(self) -> Writer:
        writer = self._writer
        if writer is not None and writer.opened and self._generation == fork_guard.generation:
            return writer
        return await self._open()

    async def _open(self) -> Writer:
        if self._generation != fork_guard.generation:
            _abandoned.append((self._writer, self._readers, self._local))
            self._fresh()
        with self._opening:
            writer = self._writer
            if writer is None or writer.refused:
                if self._temporary:
                    self._temporary.mkdir(mode=0o700, exist_ok=True)  # the store was closed and is used again
                writer = self._writer = self._make_writer()
                writer.start()
                self._start_readers()
        await writer.ready()
        return writer

    def _make_writer(self) -> Writer:
        """Make a writer that keeps the parts of this opening, also while `close` has made new ones."""
        lock, sender, socket, waiters = self._lock, self._sender, self._wakeup_socket, self._waiters
        return Writer(
            self.path,
            self._wake,
            partial(_enter, lock, sender),
            self._serve_standing,
            partial(_wake_others, sender, socket, waiters),
        )

    async def close(self) -> None:
        """Take the parts out first, so that a cancelled close leaves a store that can be used again.

        When it returns, this process has the file open nowhere: after a failed sync the next to open the file must be
        the only one (see `rewrite_log`).
        """
        writer, readers, watcher = self._writer, self._readers, self._watcher
        lock, closed, socket, sender = self._lock, self._closed, self._wakeup_socket, self._sender
        if writer is None or self._generation != fork_guard.generation:
            return
        self._wake()
        self._fresh()
        closed.set()

        async def leave() -> None:
            await writer.stop()
            loop = asyncio.get_running_loop()
            if readers is not None:
                await loop.run_in_executor(None, readers.shutdown)
            if watcher is not None:
                socket.interrupt()
                await loop.run_in_executor(None, watcher.join)
            sender.close()
            lock.release()
            writer.guard.release()
            if self._temporary and self._writer is None:  # else it is used again already
                _remove(self._temporary)

        await asyncio.shield(leave())  # where the caller is cancelled, sockets and lock must go all the same

    # -- failing

    @property
    def failed(self) -> str | None:
        writer = self._writer
        return None if writer is None or writer.failed is None else str(writer.failed)

    async def check(self) -> None:
        writer = await self._ready()
        if writer.failed is not None:
            raise StoreFailed(str(writer.failed))
        await self._read(read_schema_number)
        waited = writer.waited()
        if waited > STUCK_SECONDS:
            raise StoreBusy(f"a write to {self.path} has waited for {waited:.0f} s: another process may hold the file")

    # -- writing

    async def _write(self, work: Work[T], **how: Any) -> T:
        writer = await self._ready()
        return await writer.run(work, **how)

    async def insert(self, jobs: Sequence[Job], documents: Sequence[Put] = ()) -> list[Inserted]:
        writer = await self._ready()
        before = self._routes.make([(job.queue, job.task, job.agent) for job in jobs])
        inserted: list[Inserted] = await writer.run_batched(self._insert, (jobs, documents), before=before)
        return inserted

    def _insert_all(
        self, machine: Machine, connection: apsw.Connection, callers: list[commits.Accepted]
    ) -> list[list[Inserted]]:
        """Insert, and store the latest creation time now and then, so that a clock gone back is noticed."""
        latest = max([job.created_at for jobs, _ in callers for job in jobs], default=0.0)
        if latest <= self._stamped + STAMP_SECONDS:
            return machine.insert(connection, callers)
        self._stamped = latest
        return machine.insert(connection, callers, [latest])

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        moved = [transition for commit in group for transition in commit.transitions]
        wakes = any(move.to is State.waiting for move in moved) or any(commit.puts for commit in group)
        commits.refuse_large(group)
        machine, ready = self._machine, make_batches(group)
        try:
            return await self._write(
                lambda connection: machine.apply(connection, group, ready),
                before=machine.routes.make(commits.list_routes(moved)),
                wakes=wakes,
                tells=True,
            )
        except CommitUnknown as error:
            return [Unknown(str(error))] * len(group)

    async def claim(self, wanted: Wanted, worker: str, now: float) -> Claim:
        writer = await self._ready()
        take = Take(wanted, worker, self._lock.name, secrets.token_hex(8), now)
        return await self._write_claim(writer, take, synced=wanted.synced, sure=self._plenty and wanted.slots > 0)

    async def take(self, take: Take) -> Claim:
        """Claim as this Take says, for a worker of another process."""
        return await self._write_claim(await self._ready(), take, synced=True, sure=take.again)

    async def _write_claim(self, writer: Writer, take: Take, *, synced: bool, sure: bool) -> Claim:
        """Claim in the writer; unless `sure`, only where a look without the write lock finds due jobs."""
        self._watch()
        claimed: Claimed = await writer.run(
            lambda connection: self._claim(connection, take),
            synced=synced,
            peek=None if sure else lambda connection: self._peek(connection, take.wanted, take.now),
        )
        return await self._read_claim(claimed)

    async def _read_claim(self, claimed: Claimed) -> Claim:
        """Decode the jobs. Gives them back where that fails: no worker would run them until their leases end."""
        try:
            return claimed.read()
        except Exception as error:
            number = await self._write(claimed.give_back) or claimed.number
            raise StoreError(
                f"{number} of {claimed.number} due jobs of {self.path} cannot be read ({error}); they wait on."
                " `redrive doctor --full` tells which: the file may be damaged, or a newer version has written it"
            ) from error

    def _peek(self, connection: apsw.Connection, wanted: Wanted, now: float) -> Claimed | None:
        """Answer without the write lock where nothing is due; None where the claim must be made."""
        mark = self._waiters.mark
        if wanted.ids:
            return None
        if wanted.slots <= 0:
            return claim_nothing(self._lapsed(connection), mark)
        routes = claims.list_open_routes(connection, wanted, now)
        if any(route.due for route in routes):
            return None
        return claim_nothing(self._lapsed(connection), mark, claims.find_next_due(connection, routes, now))

    def _claim(self, connection: apsw.Connection, take: Take, *, look_ahead: bool = True) -> Claimed:
        """Claim. Where a record cannot be read, delay such jobs and claim the rest."""
        try:
            return self._take(connection, take, look_ahead=look_ahead)
        except records.UNREADABLE:
            if take.wanted.ids or not claims.delay_damaged(connection, self._routes, take.wanted, take.now):
                raise
            return self._take(connection, take, look_ahead=look_ahead)

    def _take(self, connection: apsw.Connection, take: Take, *, look_ahead: bool) -> Claimed:
        """Claim. Raises, and changes nothing, where a record cannot be read."""
        mark = self._waiters.mark
        taken = self._machine.take(connection, take)
        self._claimed += taken.number
        if isinstance(taken, Taken) and not take.wanted.ids:
            self._plenty = taken.room.slots <= 0
        due = taken.next_due(connection) if look_ahead else None
        lapsed = self._lapsed(connection)
        return Claimed(
            taken.number,
            lambda: Claim(taken.jobs(), lapsed.jobs, mark, due, lapsed.endings),
            lambda connection: self._give_back(connection, taken),
        )

    def _give_back(self, connection: apsw.Connection, taken: Taken | sessions.Retaken) -> int:
        if isinstance(taken, sessions.Retaken):
            return 0
        claims.give_back(connection, taken.picked, taken.claimant)
        wanted, now = taken.wanted, taken.claimant.now
        return 0 if wanted.ids else claims.delay_damaged(connection, self._routes, wanted, now)

    def _serve_standing(self, connection: apsw.Connection) -> Callable[[bool], None]:
        """Claim for idle workers what this transaction makes due. They are answered once it is committed."""
        served: list[tuple[StandingClaim, Claimed | None]] = []
        for standing in list(self._standing):
            if standing.begin():
                try:
                    token, now = secrets.token_hex(8), standing.clock()
                    take = Take(standing.wanted, standing.worker, self._lock.name, token, now)
                    claimed = self._claim(connection, take, look_ahead=False)
                except BaseException:
                    standing.end(None)
                    _answer_standing(served, committed=False)
                    raise
                served.append((standing, claimed if claimed.number else None))
        return lambda committed: _answer_standing(served, committed=committed)

    def _lapsed(self, connection: apsw.Connection) -> Lapsed:
        """Find running jobs whose lease ended, at most once a second."""
        now = self._monotonic()
        if now - self._observed < OBSERVE_SECONDS:
            return NONE_LAPSED
        self._observed = now
        return self._find_lapsed(connection, now)

    # -- for clients on other machines

    async def execute(self, command: Command, ticket: Ticket | None) -> Any:
        """Execute a command of a client once, however often the client sends it; its outcome stays the same."""
        machine = self._machine
        return await self._write(
            lambda connection: self._once(connection, machine, command, ticket),
            before=machine.routes.make(list_routes(command)),
            wakes=True,
        )

    def _once(self, connection: apsw.Connection, machine: Machine, command: Command, ticket: Ticket | None) -> Any:
        if ticket is None or isinstance(command, Hello):
            return machine.execute(connection, command)
        try:
            return sessions.execute_once(
                connection, machine.routes, command, ticket, time.time(), lambda: machine.execute(connection, command)
            )
        except (sessions.SessionExpired, sessions.TooLate):
            raise SessionUnknown(f"{self.path} does not know this client any more") from None

    async def stagger(self) -> None:
        """Do nothing: workers of one file do not wait for each other."""

    async def heartbeat(self, leases: Sequence[Lease], now: float | None = None) -> list[Lease]:
        return await self._write(lambda connection: commits.heartbeat(connection, leases, now), synced=False)

    async def prune(
        self, now: float, retention: Mapping[str, float], default: float, keys: float | None = None
    ) -> Pruned:
        pruned = await self._write(
            lambda connection: upkeep.forget(connection, upkeep.choose_old(connection, now, retention, default, keys))
        )
        if not pruned.payloads and not pruned.keys:
            await self._add_up(rollups.first_late_day(now))
        return pruned

    async def _add_up(self, since: int) -> None:
        """Repair sums that an older process wrote only in part. A reader compares them, so that no writer waits."""
        if await self._read(lambda connection: rollups.count_wrong_days(connection, since)):
            days = await self._write(lambda connection: rollups.add_up(connection, since))
            words = rollups.say_days(days)
            log.warning("sums of %s were wrong and have been added up anew: does an older version run here?", words)

    async def erase(self, ids: Sequence[str]) -> int:
        erased = await self._write(lambda connection: upkeep.erase(connection, ids))
        self._lingers = not await self._empty_log()
        if self._lingers:
            log.warning(_LINGERS, self.path)
        return erased

    async def lingering(self) -> list[str]:
        return [f"{self.path} or its log: a reader keeps the file open"] if self._lingers else []

    async def _empty_log(self) -> bool:
        """Try to empty the log, which still has the erased bytes. Between the tries others write, and readers end."""
        tried: list[bool] = []
        for _ in range(EMPTYING):
            await self._write(lambda _: None, before=lambda connection: tried.append(upkeep.empty_log(connection)))
            if tried[-1]:
                return True
            await asyncio.sleep(EMPTYING_PAUSE)
        return False

    async def repair(self, now: float) -> list[str]:
        return await self._write(lambda connection: upkeep.repair(connection, now), wakes=True)

    # -- waking up

    def _wake(self) -> None:
        """Wake every waiting worker of this process, from whatever thread."""
        self._waiters.wake()
        if self.failed is not None:
            self._failure_waiters.wake()

    @asynccontextmanager
    async def follow(self, ids: Collection[str], changed: asyncio.Event) -> AsyncIterator[None]:
        await self._ready()
        self._watch()
        with self._followers.added(ids, changed):
            yield

    def _watch(self) -> None:
        """Look for other processes' commits from now on, also those between this claim and the wait after it."""
        if self._watcher is None:
            foreign = ForeignCommits(self.path)
            watcher = Watcher(
                foreign,
                self._wakeup_socket,
                self._waiters,
                self._followers,
                self._wake,
                lambda: self._claimed,
                self._closed,
            )
            self._watcher = threading.Thread(
                target=self._look_around, args=(foreign, watcher), name="redrive-watcher", daemon=True
            )
            self._watcher.start()

    def _look_around(self, foreign: ForeignCommits, watcher: Watcher) -> None:
        try:
            watcher.run()
        finally:
            foreign.close()


def _enter(lock: ProcessLock, sender: WakeupSender) -> None:
    """Show that this process lives, and remove what killed processes have left."""
    lock.take()
    sender.refresh()


def _wake_others(sender: WakeupSender, socket: WakeupSocket, waiters: Waiters, due: bool) -> None:
    """Wake the other processes that wait, in the writer's thread, after a commit that concerns them.

    Where it made nothing due, workers of this process may wait for what it has freed: their watcher looks, too.
    """
    sender.send(DUE if due else MOVED)
    if waiters and not due:
        socket.rouse()


def _answer_standing(served: list[tuple[StandingClaim, Claimed | None]], *, committed: bool) -> None:
    for standing, claimed in served:
        standing.end(claimed if committed else None)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _make_temporary_folder() -> Path:
    """Make a folder that is removed when this process ends, not when a forked child of it does."""
    import tempfile  # slow to import: a tenth of the time in which a program starts

    folder = Path(tempfile.mkdtemp(prefix="redrive-"))

    def remove(maker: int = os.getpid()) -> None:
        if os.getpid() == maker:
            _remove(folder)

    atexit.register(remove)
    return folder
