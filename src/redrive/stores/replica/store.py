"""ReplicaStore: writes the verbs of core/store.py into a log of commands, and reads the file that replays the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from redrive.core.commands import AddUp, Apply, Beat, Command, Erase, Insert, Take, Ticket, Unstick, slim
from redrive.core.job import Job
from redrive.core.store import Claim, Commit, Info, Inserted, Lease, Outcome, Pruned, Put, Unknown, Wanted
from redrive.errors import CommitUnknown, StoreBusy, StoreError, StoreFull
from redrive.stores.replica import chores
from redrive.stores.replica.chores import ERASURE, LAST, Announcer, LastErasure, Presence, ReplicaStatus
from redrive.stores.replica.engine import Engine
from redrive.stores.replica.envelope import Halt, JobsMoved
from redrive.stores.replica.folder import FixedFile, ReplicaFolder
from redrive.stores.replica.log import Fill, Log, LogUnavailable, Manifest, ManifestMoved
from redrive.stores.replica.replay import Replay
from redrive.stores.sqlite import claims, commits, fork_guard, rollups, upkeep
from redrive.stores.sqlite.liveness import RUNNING, Observer, ProcessLock
from redrive.stores.sqlite.machine import Taken
from redrive.stores.sqlite.read_verbs import ReadVerbs
from redrive.stores.sqlite.records import select
from redrive.stores.sqlite.schema import read_schema_number
from redrive.stores.sqlite.sessions import Retaken
from redrive.stores.sqlite.standing_claim import NONE_LAPSED, Claimed, Lapsed, StandingClaim, claim_nothing

log = logging.getLogger("redrive.store")
T = TypeVar("T")
OBSERVE_SECONDS: Final = 1.0
"""Seconds between two looks of claims for ended leases."""
STAMP_SECONDS: Final = 3.0
STUCK_SECONDS: Final = 10.0
FOREIGN_SECONDS: Final = 0.01
"""How long workers here leave a job to the workers of the replica that inserted it."""
FILL_SECONDS: Final = 5.0
INSERTS_UNTIL: Final = 0.8
"""The log takes new jobs until this share of it is full. The rest is for settling jobs."""
LINGER_SECONDS: Final = 2.0
"""How long an erase waits for other replicas to read it."""
MAX_RECORD: Final = 64 * 1024 * 1024

_abandoned: list[object] = []


class ReplicaStore(ReadVerbs):
    """A store on a log. `place` gives this process its file; `log` makes the connection to the log."""

    def __init__(
        self,
        place: Path | ReplicaFolder,
        log: Callable[[], Log],
        *,
        live: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        clamps: bool = True,
        level: int | None = None,
        snapshot_every: int = chores.SNAPSHOT_MESSAGES,
        days: float | None = None,
    ) -> None:
        """`days`: announce this replica in the log, as one whose file is deleted when it is not opened for so long."""
        self._days = days
        self._place = FixedFile(place) if isinstance(place, Path) else place
        self._make_log = log
        self._live = live
        self._monotonic = monotonic
        self._clamps = clamps
        self._level = level
        self._snapshot_every = snapshot_every
        self._fresh()

    def _fresh(self) -> None:
        super()._fresh()
        self._engine: Engine | None = None
        self._announcer: Announcer | None = None
        self._own = True
        """Whether the last change came through this replica."""
        self._serving = False
        self._server: asyncio.Future[None] | None = None
        self._promised = 0
        """Slots of the claims under way, so that no other claim counts on the jobs that these will get."""
        self._answered = asyncio.Event()
        self._observed = -OBSERVE_SECONDS
        self._filled = (-FILL_SECONDS, 0.0)

    # -- opening and closing

    async def open(self) -> Info:
        engine = await self._ready()
        info = engine.info
        return Info(info.url, info.durability, MAX_RECORD, await self._read(read_schema_number))

    async def _ready(self) -> Engine:
        engine = self._engine
        if engine is not None and self._generation == fork_guard.generation and engine.is_open:
            return engine
        return await self._open()

    async def _open(self) -> Engine:
        if self._generation != fork_guard.generation:
            _abandoned.append((self._engine, self._readers, self._local))
            self._place.forked()
            self._fresh()
        with self._opening:
            engine = self._engine
            if engine is None or (engine.opened.done() and engine.opened.exception() is not None):
                engine = self._engine = self._start()
        await asyncio.shield(asyncio.wrap_future(engine.opened))
        return engine

    def _start(self) -> Engine:
        self.path = self._place.take()
        self._lock = ProcessLock(self.path, folder=self._live)
        self._observer = Observer(self._lock)
        self._start_readers()
        engine = Engine(
            self.path,
            self._make_log(),
            Replay(self._machine, clamps=self._clamps, level=self._level),
            alive=self._lock.take,
            heard=self._on_change,
            monotonic=self._monotonic,
        )
        engine.chores.append(lambda: chores.keep_snapshots(engine, self._snapshot_every))
        engine.chores.append(lambda: chores.keep_level(engine))
        if self._days is not None:
            self._announcer = Announcer(engine, f"{self._lock.place}/{self.path.name}", self._days)
            engine.chores.append(self._announcer.run)
        engine.thread.start()
        return engine

    async def close(self) -> None:
        engine, readers, generation = self._engine, self._readers, self._generation
        if engine is None or generation != fork_guard.generation:
            return
        lock, announcer = self._lock, self._announcer
        self._waiters.wake()
        if announcer is not None and engine.is_open:
            with contextlib.suppress(StoreError):
                await engine.call(announcer.announce_end)
        self._fresh()
        engine.stop()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, engine.thread.join)
        if readers is not None:
            await loop.run_in_executor(None, readers.shutdown)
        lock.release()
        engine.file.guard.release()
        self._place.release()

    async def serve_others(self) -> None:
        """Announce this replica as a hub for processes without a file."""
        engine = await self._ready()
        if (announcer := self._announcer) is not None:
            announcer.hub = True
            await engine.call(announcer.announce)

    # -- failing

    @property
    def failed(self) -> str | None:
        engine = self._engine
        return None if engine is None or engine.failed is None else str(engine.failed)

    async def check(self) -> None:
        engine = await self._ready()
        if engine.failed is not None:
            raise type(engine.failed)(*engine.failed.args)
        await self._read(read_schema_number)
        waited = engine.sender.waited()
        if waited > STUCK_SECONDS:
            why = f" ({engine.trouble})" if engine.trouble else ""
            raise StoreBusy(f"a command has waited for {waited:.0f} s for {engine.log.url}{why}")

    async def look(self) -> ReplicaStatus:
        """Describe this replica and its log, as the log's leader knows it."""
        engine = await self._ready()
        end, fill, manifest = await engine.call(lambda: _ask_log(engine.log))
        sessions = await self._read(lambda connection: select(connection, "SELECT seen_at, level FROM clients"))
        return ReplicaStatus(
            info=engine.info,
            standing=engine.replay.here,
            end=end,
            fill=fill,
            manifest=manifest,
            replicas=tuple(seen_at for seen_at, level in sessions if level is not None),
            clients=tuple(seen_at for seen_at, level in sessions if level is None),
        )

    async def presence(self) -> Presence:
        """Describe this replica, for a question to all hubs."""
        engine = await self._ready()
        standing = engine.replay.here
        return Presence(
            platform.node(),
            os.getpid(),
            standing.position,
            standing.generation,
            standing.level,
            time.time(),
            standing.halted,
            self.failed or engine.trouble,
        )

    async def resume(self) -> str | None:
        """Let a halted fleet claim again. Return why it was halted, or None where it was not."""
        engine = await self._ready()
        await engine.call(engine.wait_until_current)
        why = engine.replay.here.halted
        if why is not None:
            await engine.run(Halt(None))
        return why

    # -- reading

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Read as other stores do, after committing what callers were told."""
        engine = await self._ready()
        if engine.file.is_dirty:
            await engine.call(engine.commit)
        return await super()._read(work)

    async def _read_current(self, work: Callable[[apsw.Connection], T]) -> T:
        engine = await self._ready()
        await engine.call(engine.wait_until_current)
        return await self._read(work)

    # -- writing

    async def _run(self, command: Command) -> Any:
        engine = await self._ready()
        return await engine.run(command)

    async def execute(self, command: Command, ticket: Ticket | None) -> Any:
        """Execute a command once, although its client may send it again, even through another replica."""
        engine = await self._ready()
        if isinstance(command, Insert):
            await self._refuse_when_nearly_full(engine)
        return await engine.run(command, ticket)

    async def stagger(self) -> None:
        """Leave a job that came through another replica to the workers there for a moment."""
        if not self._own:
            await asyncio.sleep(FOREIGN_SECONDS)

    async def insert(self, jobs: Sequence[Job], documents: Sequence[Put] = ()) -> list[Inserted]:
        engine = await self._ready()
        await self._refuse_when_nearly_full(engine)
        inserted: list[Inserted] = await engine.run(Insert(tuple(jobs), tuple(documents), self._stamp(jobs)))
        pairs = zip(inserted, jobs, strict=True)
        return [outcome if outcome.duplicate else Inserted(job) for outcome, job in pairs]

    async def _refuse_when_nearly_full(self, engine: Engine) -> None:
        """Refuse new jobs where the log has too little room for settling them later."""
        at, share = self._filled
        now = time.monotonic()
        if now - at >= FILL_SECONDS:
            self._filled = (now, share)
            try:
                share = (await engine.call(engine.log.fill)).share
            except LogUnavailable as error:
                log.warning("%s does not say how full it is: %s", engine.log.url, error)
            self._filled = (now, share)
        if share >= INSERTS_UNTIL:
            raise StoreFull(
                f"{engine.log.url} is {share:.0%} full and takes no new jobs: raise its limit of bytes."
                " Jobs that it holds go on"
            )

    def _stamp(self, jobs: Sequence[Job]) -> float | None:
        latest = max([job.created_at for job in jobs], default=0.0)
        if latest <= self._stamped + STAMP_SECONDS:
            return None
        self._stamped = latest
        return latest

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        commits.refuse_large(group)
        if not group:
            return []
        try:
            outcomes: list[Outcome] = await self._run(Apply(tuple(slim(commit) for commit in group)))
        except CommitUnknown as error:
            return [Unknown(str(error))] * len(group)
        return outcomes

    async def heartbeat(self, leases: Sequence[Lease], now: float | None = None) -> list[Lease]:
        if not leases:
            return []
        lost: list[Lease] = await self._run(Beat(tuple(leases), now))
        return lost

    async def prune(
        self, now: float, retention: Mapping[str, float], default: float, keys: float | None = None
    ) -> Pruned:
        chosen = await self._read(lambda connection: upkeep.choose_old(connection, now, retention, default, keys))
        pruned: Pruned = await self._run(chosen)
        if not pruned.payloads and not pruned.keys:
            since = rollups.first_late_day(now)
            if await self._read(lambda connection: rollups.count_wrong_days(connection, since)):
                days = rollups.say_days(await self._run(AddUp(since)))
                log.warning("sums of %s were wrong and have been added up anew: does an older version run here?", days)
        return pruned

    async def erase(self, ids: Sequence[str]) -> int:
        """Erase in every replica. `lingering` says where the contents can still be read."""
        engine = await self._ready()
        erased: int = await engine.run(Erase(tuple(ids)))
        position = engine.erased_at
        await ERASURE.update(self, LAST, lambda known: _later(known, position))
        await engine.call(lambda: self._forget_log(engine, position))
        await self._wait_for_replicas()
        return erased

    async def _wait_for_replicas(self) -> None:
        """Give running replicas a moment to execute the erase."""
        until = time.monotonic() + LINGER_SECONDS
        while time.monotonic() < until and await self.lingering():
            await self.wait(self._waiters.mark, 0.1)

    async def _forget_log(self, engine: Engine, position: int) -> None:
        try:
            await engine.snapshots.pass_by(position)
        except (StoreError, ManifestMoved, LogUnavailable, OSError) as error:
            log.warning(
                "what was erased can still be read in %s until two snapshots newer than message %d are made: %r."
                " Replicas go on trying",
                engine.log.url,
                position,
                error,
            )

    async def lingering(self) -> list[str]:
        engine = await self._ready()
        return await engine.call(lambda: _lingering(engine))

    async def repair(self, now: float) -> list[str]:
        repairs = []
        if days := await self._run(AddUp(0)):
            repairs.append(f"sums of {rollups.say_days(days)} were wrong and have been added up anew")
        if shifted := await self._run(Unstick(now)):
            repairs.append(f"{shifted} waiting jobs were stamped in the future and have been moved to now")
        return repairs

    async def leave_for(self, to: str) -> None:
        """Close the log for good, because its jobs move elsewhere. Raises FleetMoved once the log is closed."""
        engine = await self._ready()
        await engine.run(JobsMoved(to))

    # -- claiming

    async def claim(self, wanted: Wanted, worker: str, now: float) -> Claim:
        await self._ready()
        return await self.take(self._new_take(wanted, worker, now))

    def _new_take(self, wanted: Wanted, worker: str, now: float) -> Take:
        return Take(wanted, worker, self._lock.name, secrets.token_hex(8), now)

    async def take(self, take: Take) -> Claim:
        """Claim as this Take says, for a worker of this process or of another one."""
        engine = await self._ready()
        return (await engine.call(lambda: self._claim(engine, take))).read()

    async def _claim(self, engine: Engine, take: Take) -> Claimed:
        """Append a Take to the log only if this file has a due job. Runs in the engine's thread."""
        lapsed = await self._look_for_lapsed(engine)
        mark = self._waiters.mark
        wanted, now = take.wanted, take.now
        if wanted.slots <= 0 and not wanted.ids:
            return claim_nothing(lapsed, mark)
        while not wanted.ids and not take.again:
            self._answered.clear()
            open = claims.list_open_routes(engine.connection, wanted, now)
            if not any(route.due for route in open):
                return claim_nothing(lapsed, mark, claims.find_next_due(engine.connection, open, now))
            if self._promised == 0 or claims.has_more_due(engine.connection, open, now, self._promised):
                break
            await self._answered.wait()
        taken = await self._send_take(engine, take)
        due = taken.next_due(engine.connection)
        return Claimed(
            taken.number,
            lambda: Claim(taken.jobs(), lapsed.jobs, mark, due, lapsed.endings),
            lambda connection: 0,
        )

    async def _send_take(self, engine: Engine, take: Take) -> Taken | Retaken:
        self._promised += take.wanted.slots
        try:
            taken: Taken | Retaken = await engine.run_here(take)
            return taken
        finally:
            self._promised -= take.wanted.slots
            self._answered.set()

    def _on_change(self, own: bool, failed: bool) -> None:
        """Wake waiting workers after a change by this replica or another. Runs in the engine's thread."""
        self._own = own
        self._waiters.wake()
        if failed:
            self._failure_waiters.wake()
            return
        if self._standing and not self._serving:
            self._serving = True
            self._server = asyncio.ensure_future(self._serve(own))

    async def _serve(self, own: bool) -> None:
        """Give due jobs to the idle workers that stand in line, one after the other."""
        engine = self._engine
        try:
            if not own:
                await asyncio.sleep(FOREIGN_SECONDS)
            for standing in list(self._standing):
                if engine is None or engine.failed is not None:
                    return
                now = standing.clock()
                open = claims.list_open_routes(engine.connection, standing.wanted, now)
                if any(route.due for route in open) and standing.begin():
                    standing.end(await self._claim_for(engine, standing, now))
        finally:
            self._serving = False

    async def _claim_for(self, engine: Engine, standing: StandingClaim, now: float) -> Claimed | None:
        try:
            take = self._new_take(standing.wanted, standing.worker, now)
            taken = await self._send_take(engine, take)
        except StoreError as error:
            log.warning("an idle worker could not be given its next job: %s", error)
            return None
        mark = self._waiters.mark
        if not taken.number:
            return None
        return Claimed(taken.number, lambda: Claim(taken.jobs(), [], mark, None, {}), lambda connection: 0)

    async def _look_for_lapsed(self, engine: Engine) -> Lapsed:
        """Find running jobs whose lease ended, at most once a second.

        Only time between messages of this replica that came back counts. The beat that is sent first comes back after
        all beats that others wrote before it.
        """
        now = self._monotonic()
        if now - self._observed < OBSERVE_SECONDS:
            return NONE_LAPSED
        self._observed = now
        if not engine.connection.execute(f"{RUNNING} LIMIT 1").fetchall():
            return NONE_LAPSED
        await engine.run_here(Beat(()))
        return self._find_lapsed(engine.connection, engine.sender.counted)


async def _lingering(engine: Engine) -> list[str]:
    await engine.wait_until_current()
    return chores.describe_lingering(engine, await engine.log.manifest(), time.time())


def _later(known: LastErasure | None, position: int) -> LastErasure:
    return known if known is not None and known.position >= position else LastErasure(position, time.time())


async def _ask_log(log: Log) -> tuple[int, Fill, Manifest | None]:
    return await log.end(), await log.fill(), await log.manifest()
