"""RemoteStore: the verbs of core/store.py as requests to hubs. It has no file and keeps nothing.

Every request may be sent again after a lost answer, to the same hub or another one: reads and heartbeats as they are,
commands under a ticket that makes them happen once, claims under a token that finds its jobs again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from redrive.core.commands import Apply, Command, Hello, Insert, Take, Ticket, slim
from redrive.core.job import Job
from redrive.core.store import (
    MAX_PARTS,
    Applied,
    Claim,
    Commit,
    Document,
    Event,
    Filter,
    Group,
    Info,
    Inserted,
    Lease,
    LeftBehind,
    Lesson,
    Minute,
    MoveFilter,
    MovePage,
    Outcome,
    OutcomeTally,
    Page,
    Pruned,
    Put,
    Quiet,
    Returning,
    Seal,
    Stale,
    Tally,
    Total,
    Unknown,
    Wanted,
)
from redrive.core.timings import TimedBy, Timing
from redrive.errors import CommitUnknown, SessionUnknown, StoreError, StoreUnavailable
from redrive.stores.remote import protocol
from redrive.stores.remote.backups import Copied, fetch
from redrive.stores.remote.protocol import Executed
from redrive.stores.remote.transport import HubUnavailable, Transport
from redrive.stores.sqlite import fork_guard
from redrive.stores.sqlite.wakeups import Gate, is_cancelled

log = logging.getLogger("redrive.store")
T = TypeVar("T")
ANSWER_SECONDS: Final = 10.0
"""How long one hub has for one answer; waiting for work comes on top."""
GIVE_UP: Final = 20.0
"""Seconds for which a request is sent again to one hub after the other."""
HELLO_SECONDS: Final = 5.0
"""The first question of a process is not asked for so long: where no hub runs, a person should learn it soon."""
AGAIN: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
BACKUP_SECONDS: Final = 3_600.0
"""How long a hub may take to copy its store."""
STOP_SECONDS: Final = 10.0
"""How long a store that is closed waits for answers."""
HURRY_SECONDS: Final = 0.3
"""How long a process that ends waits for an answer. Results are sent again as long as its grace lasts."""
LAST_SECONDS: Final = 0.1
"""The same where the last request was not answered either."""
WAIT_SECONDS: Final = 15.0
"""A request that waits for work waits so long at most, then it is sent anew."""

_abandoned: list[object] = []
"""What a forked child inherited: to close it there would end or deafen connections that its parent uses."""


class RemoteStore:
    """A store on other machines. `transport` makes the way to the hubs, in this store's own thread."""

    def __init__(self, transport: Callable[[], Transport], *, url: str) -> None:
        self._make_transport = transport
        self.url = url
        self._fresh()

    def _fresh(self) -> None:
        self._generation = fork_guard.generation
        self._opening = threading.Lock()
        self._thread: _Thread | None = None
        self._info: Info | None = None
        self._name = f"{socket.gethostname()}~remote{secrets.token_hex(3)}-{os.getpid()}-{secrets.token_hex(3)}"

    # -- opening and closing

    async def open(self) -> Info:
        if self._info is None or self._generation != fork_guard.generation:
            self._info = await self._ask("hello")
        return msgspec.structs.replace(self._info, url=self.url)

    def _transport(self) -> _Thread:
        if self._generation != fork_guard.generation:
            _abandoned.append(self._thread)
            self._fresh()
        with self._opening:
            if self._thread is None:
                self._thread = _Thread(self._make_transport)
            return self._thread

    async def close(self) -> None:
        thread = self._thread
        if thread is None or self._generation != fork_guard.generation:
            return
        self._fresh()
        await asyncio.get_running_loop().run_in_executor(None, thread.stop)

    @property
    def answers(self) -> bool:
        thread = self._thread
        return thread is None or thread.answers

    def hurry(self) -> None:
        self._transport().hurry()

    @property
    def failed(self) -> str | None:
        return None

    async def until_failed(self) -> str:
        """A store of other machines does not stop itself: requests to it fail, and may succeed later."""
        await asyncio.Event().wait()
        return ""

    # -- asking

    async def _ask(self, verb: str, *arguments: Any, seconds: float = ANSWER_SECONDS) -> Any:
        return await self._ask_by(self._transport(), verb, arguments, seconds)

    async def _ask_by(self, thread: _Thread, verb: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        """Ask a hub; ask another one where none answers, until the time is over."""
        request, tries = protocol.request(verb, arguments), 0
        until = time.monotonic() + (GIVE_UP if thread.was_answered else HELLO_SECONDS)
        while True:
            try:
                return protocol.read_answer(verb, await thread.ask(request, seconds))
            except HubUnavailable as error:
                if time.monotonic() >= until or thread.is_ending:
                    raise self._nobody(error) from error
                await asyncio.sleep(AGAIN[min(tries, len(AGAIN) - 1)])
                tries += 1

    def _nobody(self, error: HubUnavailable) -> StoreError:
        if error.sent:
            return CommitUnknown(f"{self.url}: no hub answered ({error}); repeat with the same key")
        return StoreUnavailable(
            f"{self.url}: no hub answers ({error}). Start `redrive serve` or `redrive hub` on this URL,"
            " or set replica=true here"
        )

    async def _execute(self, command: Command) -> Executed:
        """Have a command executed once, however often it must be sent."""
        thread = self._transport()
        session = await self._joined(thread)
        try:
            return await self._execute_in(thread, session, command)
        except SessionUnknown:
            thread.forget(session)
        return await self._execute_in(thread, await self._joined(thread), command)

    async def _execute_in(self, thread: _Thread, session: _Session, command: Command) -> Executed:
        with session.ticket() as ticket:
            executed: Executed = await self._ask_by(thread, "execute", (command, ticket), ANSWER_SECONDS)
            return executed

    async def _joined(self, thread: _Thread) -> _Session:
        """The session of this client. Several callers may begin it at once: a hello may be repeated."""
        session = thread.session()
        if not session.begun:
            await self._ask_by(
                thread, "execute", (Hello(session.client, time.time()), Ticket(session.client, 0)), ANSWER_SECONDS
            )
            session.begun = True
        return session

    # -- writing

    async def insert(self, jobs: Sequence[Job], documents: Sequence[Put] = ()) -> list[Inserted]:
        if not jobs:
            return []
        executed = await self._execute(Insert(tuple(jobs), tuple(documents)))
        found = executed.inserted or []
        return [one if one.duplicate else Inserted(job) for one, job in zip(found, jobs, strict=True)]

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        _refuse_large(group)
        if not group:
            return []
        try:
            executed = await self._execute(Apply(tuple(slim(commit) for commit in group)))
        except CommitUnknown as error:
            return [Unknown(str(error))] * len(group)
        return [Applied(tuple(one)) if isinstance(one, list) else Stale(one or None) for one in executed.outcomes or ()]

    async def heartbeat(self, leases: Sequence[Lease], now: float | None = None) -> list[Lease]:
        return await self._typed("heartbeat", list[Lease], tuple(leases), now)

    async def prune(
        self, now: float, retention: Mapping[str, float], default: float, keys: float | None = None
    ) -> Pruned:
        return await self._typed("prune", Pruned, now, retention, default, keys)

    async def erase(self, ids: Sequence[str]) -> int:
        return await self._typed("erase", int, tuple(ids))

    async def lingering(self) -> list[str]:
        return await self._typed("lingering", list[str])

    async def repair(self, now: float) -> list[str]:
        return await self._typed("repair", list[str], now)

    async def backup(self, target: str) -> int:
        """Has a hub copy its store, and fetches the copy in pieces."""
        copied = await fetch(Path(target), self._begin_backup, self._backup_piece)
        await self._ask("backup_end", copied.id)
        return copied.size

    async def _begin_backup(self) -> Copied:
        copied: Copied = await self._ask("backup_begin", seconds=BACKUP_SECONDS)
        return copied

    async def _backup_piece(self, id: str, offset: int) -> bytes | None:
        piece: bytes | None = await self._ask("backup_piece", id, offset)
        return piece

    async def check(self) -> None:
        await self._ask("check")

    # -- claiming

    async def process(self) -> str:
        return self._name

    async def ended(self, processes: Collection[str]) -> dict[str, bool]:
        return await self._typed("ended", dict[str, bool], tuple(processes))

    def _take(self, wanted: Wanted, worker: str, now: float) -> Take:
        return Take(wanted, worker, self._name, secrets.token_hex(8), now)

    async def claim(self, wanted: Wanted, worker: str, now: float) -> Claim:
        return await self._claimed("take", self._take(wanted, worker, now), ())

    async def _claimed(self, verb: str, take: Take, rest: tuple[float, ...], seconds: float = 0.0) -> Claim:
        """Send a claim. Where its answer is lost, give back what it got, and claim anew under another token.

        The hub that has the lost request may wake up later and claim for it. What it gets then it gives back itself,
        by its token, so that token must not be the one of jobs that this worker has.
        """
        until, tries = time.monotonic() + GIVE_UP + seconds, 0
        try:
            while True:
                try:
                    return await self._claimed_once(verb, take, rest, seconds)
                except HubUnavailable as error:
                    if time.monotonic() >= until or self._transport().is_ending:
                        raise self._nobody(error) from error
                    await asyncio.sleep(AGAIN[min(tries, len(AGAIN) - 1)])
                    tries += 1
                    if error.sent:
                        take = await self._anew(take)
        except (asyncio.CancelledError, CommitUnknown):
            self._give_back(take)
            raise

    async def _claimed_once(self, verb: str, take: Take, rest: tuple[float, ...], seconds: float) -> Claim:
        data = await self._transport().ask(protocol.request(verb, (take, *rest)), seconds + ANSWER_SECONDS)
        claim: Claim = protocol.read_answer(verb, data)
        return claim

    async def _anew(self, take: Take) -> Take:
        """The same claim under a new token, once nothing is claimed under the old one."""
        await self._ask("give_back", take.token)
        self._give_back(take)  # a hub that did not answer may keep the request still
        return msgspec.structs.replace(take, token=secrets.token_hex(8))

    def _give_back(self, take: Take) -> None:
        """The worker stopped waiting: a hub that keeps the request drops it, and what it claimed goes back at once."""
        if (thread := self._thread) is not None:
            thread.drop(protocol.request("withdraw", (take.token,)), protocol.request("give_back", (take.token,)))

    async def claim_next(
        self,
        wanted: Wanted,
        worker: str,
        clock: Callable[[], float],
        mark: int,
        seconds: float,
        woken: asyncio.Event,
        hears: Callable[[], bool] = lambda: True,
    ) -> Claim | None:
        """A hub keeps the request until there is work. Where the worker is woken first, nothing is left claimed."""
        seconds = max(0.0, min(seconds, WAIT_SECONDS))
        asking = asyncio.ensure_future(
            self._claimed("take_next", self._take(wanted, worker, clock()), (seconds,), seconds)
        )
        nudged = asyncio.ensure_future(woken.wait())
        try:
            await asyncio.wait({asking, nudged}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            for task in (asking, nudged):
                if not task.done():
                    task.cancel()
            await asyncio.gather(asking, nudged, return_exceptions=True)

    async def wait(self, mark: int, seconds: float, woken: asyncio.Event | None = None) -> bool:
        event = woken or asyncio.Event()
        asking = asyncio.ensure_future(
            self._ask("wait", mark, min(seconds, WAIT_SECONDS), seconds=seconds + ANSWER_SECONDS)
        )
        nudged = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({asking, nudged}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return event.is_set() or (asking.done() and bool(asking.result()))
        finally:
            asking.cancel()
            nudged.cancel()
            await asyncio.gather(asking, nudged, return_exceptions=True)

    # -- reading

    async def _typed(self, verb: str, kind: type[T], *arguments: Any) -> T:
        answer: T = await self._ask(verb, *arguments)
        return answer

    async def get(self, ids: Sequence[str]) -> list[Job]:
        return await self._typed("get", list[Job], tuple(ids))

    async def doc(self, kind: str, key: str) -> Document | None:
        found: Document | None = await self._ask("doc", kind, key)
        return found

    async def docs(self, kind: str, prefix: str = "") -> list[Document]:
        return await self._typed("docs", list[Document], kind, prefix)

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100, *, oldest: bool = False) -> Page:
        return await self._typed("find", Page, filter, cursor, limit, oldest)

    async def first(self, filters: Sequence[Filter], *, oldest: bool = False) -> list[Job | None]:
        return await self._typed("first", list[Job | None], tuple(filters), oldest)

    async def seal(self, filter: Filter) -> Seal:
        return await self._typed("seal", Seal, filter)

    async def overdue(
        self, now: float, queue: str | None = None, limit: int = 1, *, task: str | None = None
    ) -> list[Job]:
        return await self._typed("overdue", list[Job], now, queue, limit, task)

    async def count(
        self, filter: Filter, by: Sequence[str] = (), *, current: bool = False
    ) -> dict[tuple[str | None, ...], int]:
        counted: list[protocol.CountLine] = await self._ask("count", filter, tuple(by), current)
        return {line.by: line.number for line in counted}

    async def left_behind(self, now: float) -> list[LeftBehind]:
        return await self._typed("left_behind", list[LeftBehind], now)

    async def returning(self, now: float) -> list[Returning]:
        return await self._typed("returning", list[Returning], now)

    async def quiet(self, since: float, limit: int = 100) -> list[Quiet]:
        return await self._typed("quiet", list[Quiet], since, limit)

    async def durations(self, task: str, last: int = 100) -> list[float]:
        return await self._typed("durations", list[float], task, last)

    async def timings(self, by: TimedBy) -> list[Timing]:
        return await self._typed("timings", list[Timing], by)

    async def events(self, after: str | None, limit: int = 1000) -> list[Event]:
        return await self._typed("events", list[Event], after, limit)

    async def latest(self, limit: int = 50) -> list[Event]:
        return await self._typed("latest", list[Event], limit)

    async def moves(self, filter: MoveFilter, cursor: str | None = None, limit: int = 50) -> MovePage:
        return await self._typed("moves", MovePage, filter, cursor, limit)

    async def story(self, job_id: str) -> list[Event]:
        return await self._typed("story", list[Event], job_id)

    async def tallies(self, since: float, until: float, *, whole: bool = False) -> list[Tally]:
        return await self._typed("tallies", list[Tally], since, until, whole)

    async def totals(self, since: float, until: float) -> list[Total]:
        return await self._typed("totals", list[Total], since, until)

    async def outcomes(self, since: float, until: float, *, whole: bool = False) -> list[OutcomeTally]:
        return await self._typed("outcomes", list[OutcomeTally], since, until, whole)

    async def minutes(self, since: float, until: float) -> list[Minute]:
        return await self._typed("minutes", list[Minute], since, until)

    async def groups(self, since: float = 0.0, fingerprints: Sequence[str] | None = None) -> list[Group]:
        return await self._typed("groups", list[Group], since, None if fingerprints is None else tuple(fingerprints))

    async def lessons(self, *fingerprints: str) -> list[Lesson]:
        return await self._typed("lessons", list[Lesson], fingerprints)

    async def scan(self) -> AsyncIterator[Job]:
        last = 0
        while True:
            jobs, last = await self._ask("scan", last)
            if not jobs:
                return
            for job in jobs:
                yield job


def _refuse_large(group: Sequence[Commit]) -> None:
    for commit in group:
        parts = len(commit.transitions) + len(commit.puts) + len(commit.guards)
        if parts > MAX_PARTS:
            raise StoreError(f"a commit has {parts} parts, the limit is {MAX_PARTS}: split it")


class _Session:
    """Numbers the commands of this client, and knows below which it sends none again."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.begun = False
        self._lock = threading.Lock()
        self._next = 1
        self._open: set[int] = set()

    def ticket(self) -> _Ticketed:
        return _Ticketed(self)

    def begin(self) -> Ticket:
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._open.add(number)
            return Ticket(self.client, number, min(self._open))

    def end(self, number: int) -> None:
        with self._lock:
            self._open.discard(number)


class _Ticketed:
    """`with` it, a command is under way under a ticket of its own."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    def __enter__(self) -> Ticket:
        self._ticket = self._session.begin()
        return self._ticket

    def __exit__(self, *_: object) -> None:
        self._session.end(self._ticket.number)


class _Thread:
    """The event loop in which the transport lives: callers come from many loops."""

    def __init__(self, make: Callable[[], Transport]) -> None:
        self._make = make
        self._transport: Transport | None = None
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asking: set[asyncio.Future[bytes]] = set()
        self._waiting: set[asyncio.Future[bytes]] = set()
        """Requests that a hub keeps until there is work."""
        self._stopping = False
        self._hurried = False
        self.answers = True
        """Whether a hub answered the last request."""
        self._session: _Session | None = None
        self._lock = threading.Lock()
        self._gate = Gate()
        self.was_answered = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-remote", daemon=True)
        self._thread.start()

    async def ask(self, request: bytes, seconds: float) -> bytes:
        asking = self._asked(request, seconds)
        future = self._gate.enter(lambda: asyncio.run_coroutine_threadsafe(asking, self._loop))
        if future is None:
            asking.close()
            raise HubUnavailable("this store is closed", sent=False)
        return await asyncio.wrap_future(future)

    async def _asked(self, request: bytes, seconds: float) -> bytes:
        if self._stopping:
            raise HubUnavailable("this store is closed", sent=False)
        if self._transport is None:
            self._transport = self._make()
        asking = asyncio.ensure_future(self._transport.ask(request, seconds))
        under_way = self._asking if seconds <= ANSWER_SECONDS else self._waiting
        under_way.add(asking)
        if self._hurried:
            self._give_up_soon(asking)
        try:
            answer = await asking
            self.was_answered = self.answers = True
            return answer
        except HubUnavailable:
            self.answers = False
            raise
        except asyncio.CancelledError:
            if is_cancelled():
                asking.cancel()
                raise
            self.answers = False
            raise HubUnavailable("this store was closed", sent=True) from None
        finally:
            under_way.discard(asking)

    @property
    def is_ending(self) -> bool:
        """Whether a request that no hub answers is given up rather than sent again."""
        return self._stopping or self._hurried

    def hurry(self) -> None:
        """Send no request again, and wait for answers no longer than a moment."""
        self._hurried = True
        self._gate.enter(lambda: self._loop.call_soon_threadsafe(self._cut_short))

    def _cut_short(self) -> None:
        for asking in (*self._asking, *self._waiting):
            self._give_up_soon(asking)

    def _give_up_soon(self, asking: asyncio.Future[bytes]) -> None:
        self._loop.call_later(HURRY_SECONDS if self.answers else LAST_SECONDS, asking.cancel)

    def session(self) -> _Session:
        with self._lock:
            if self._session is None:
                self._session = _Session(secrets.token_hex(8))
            return self._session

    def forget(self, session: _Session) -> None:
        """The hubs do not know it any more: the next command begins another one."""
        with self._lock:
            if self._session is session:
                self._session = None

    def drop(self, withdraw: bytes, give_back: bytes) -> None:
        """Withdraw a request that a hub may keep; nobody waits for the answers."""
        self._gate.enter(lambda: self._loop.call_soon_threadsafe(self._spawn_drop, withdraw, give_back))

    def _spawn_drop(self, withdraw: bytes, give_back: bytes) -> None:
        self._spawn(self._dropped(withdraw, give_back))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dropped(self, withdraw: bytes, give_back: bytes) -> None:
        if self._transport is None:
            return
        try:
            await self._transport.tell(withdraw)
            await self._transport.ask(give_back, ANSWER_SECONDS)
        except HubUnavailable as error:
            log.warning("a claim could not be withdrawn, its jobs come back when their leases end: %s", error)

    def stop(self) -> None:
        """Let what was asked get its answer, then end. Requests that wait for work are not waited for."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(STOP_SECONDS + ANSWER_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._stopping = True
        seconds = STOP_SECONDS if self.answers or not self._hurried else LAST_SECONDS
        for under_way in (self._asking, self._tasks):
            if under_way:
                await asyncio.wait(under_way, timeout=seconds)
        left = [*self._asking, *self._waiting, *self._tasks]
        for asking in left:
            asking.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._gate.shut()
        if self._transport is not None:
            await self._transport.close()
