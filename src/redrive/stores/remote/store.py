"""RemoteStore: sends the verbs of core/store.py as requests to hubs, and keeps no file.

A request whose answer is lost is sent again: reads and heartbeats as they are, commands under a ticket that makes them
happen once, claims under a token that finds its jobs again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from redrive.core.commands import Apply, Command, Hello, Insert, Take, Ticket, slim
from redrive.core.job import Job
from redrive.core.store import (
    Applied,
    Claim,
    Commit,
    Filter,
    Info,
    Inserted,
    Lesson,
    Outcome,
    Put,
    Stale,
    Store,
    Unknown,
    Wanted,
)
from redrive.errors import CommitUnknown, SessionUnknown, StoreError, StoreUnavailable
from redrive.stores.remote import protocol
from redrive.stores.remote.backups import fetch
from redrive.stores.remote.protocol import Executed
from redrive.stores.remote.transport import HubUnavailable, Transport
from redrive.stores.sqlite import fork_guard
from redrive.stores.sqlite.commits import refuse_large
from redrive.stores.sqlite.wakeups import Gate, is_cancelled

log = logging.getLogger("redrive.store")
T = TypeVar("T")
P = ParamSpec("P")
ANSWER_SECONDS: Final = 10.0
"""How long one hub has for an answer; the time that it waits for work is added."""
GIVE_UP: Final = 20.0
"""Seconds for which a request is sent again to one hub after the other."""
HELLO_SECONDS: Final = 5.0
"""The same for the first request of a process: where no hub runs, a person should learn it soon."""
AGAIN: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
BACKUP_SECONDS: Final = 3_600.0
"""How long a hub may take to copy its store."""
STOP_SECONDS: Final = 10.0
"""How long a store that is closed waits for answers."""
HURRY_SECONDS: Final = 0.3
"""How long a process that ends waits for an answer. It sends results again until its grace period is over."""
LAST_SECONDS: Final = 0.1
"""The same where the last request was not answered either."""
WAIT_SECONDS: Final = 15.0
"""The longest time for which one request waits for work; then it is sent again."""

_abandoned: list[object] = []
"""Threads that a forked child inherited: closing them would cut connections that the parent uses."""


def _forward(
    verb: Callable[Concatenate[Store, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RemoteStore, P], Coroutine[Any, Any, T]]:
    """Make a verb that a hub answers as the protocol declares it."""
    name = verb.__name__

    async def ask(self: RemoteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        arguments = protocol.verbs()[name].arguments(*args, **kwargs)
        answer: T = await self._ask(name, *msgspec.structs.astuple(arguments))
        return answer

    return ask


class RemoteStore:
    """Asks hubs on other machines. `transport` makes the connection to the hubs, in this store's own thread."""

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
        """Wait for ever: this store does not stop itself. Requests to hubs fail, and may succeed later."""
        await asyncio.Event().wait()
        return ""

    # -- asking

    async def _ask(self, verb: str, *arguments: Any, seconds: float = ANSWER_SECONDS) -> Any:
        return await self._ask_by(self._transport(), verb, arguments, seconds)

    async def _ask_by(self, thread: _Thread, verb: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        """Ask a hub; ask another one where none answers, until the time is over."""
        request, tries = protocol.write_request(verb, arguments), 0
        until = time.monotonic() + (GIVE_UP if thread.was_answered else HELLO_SECONDS)
        while True:
            try:
                return protocol.read_answer(verb, await thread.ask(request, seconds))
            except HubUnavailable as error:
                if time.monotonic() >= until or thread.is_ending:
                    raise self._no_answer(error) from error
                await asyncio.sleep(AGAIN[min(tries, len(AGAIN) - 1)])
                tries += 1

    def _no_answer(self, error: HubUnavailable) -> StoreError:
        if error.sent:
            return CommitUnknown(f"{self.url}: no hub answered ({error}); repeat with the same key")
        return StoreUnavailable(
            f"{self.url}: no hub answers ({error}). Start `redrive serve` or `redrive hub` on this URL,"
            " or set replica=true here"
        )

    async def _execute(self, command: Command) -> Executed:
        """Have a hub execute a command once, however often it must be sent."""
        thread = self._transport()
        session = await self._begin_session(thread)
        try:
            return await self._execute_in(thread, session, command)
        except SessionUnknown:
            thread.forget(session)
        return await self._execute_in(thread, await self._begin_session(thread), command)

    async def _execute_in(self, thread: _Thread, session: _Session, command: Command) -> Executed:
        with session.ticket() as ticket:
            executed: Executed = await self._ask_by(thread, "execute", (command, ticket), ANSWER_SECONDS)
            return executed

    async def _begin_session(self, thread: _Thread) -> _Session:
        """Return the session of this client, begun. Several callers may begin it at once: a hello may be repeated."""
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
        pairs = zip(executed.inserted or [], jobs, strict=True)
        return [inserted if inserted.duplicate else Inserted(job) for inserted, job in pairs]

    async def apply(self, group: Sequence[Commit]) -> list[Outcome]:
        refuse_large(group)
        if not group:
            return []
        try:
            executed = await self._execute(Apply(tuple(slim(commit) for commit in group)))
        except CommitUnknown as error:
            return [Unknown(str(error))] * len(group)
        outcomes = executed.outcomes or ()
        return [Applied(tuple(fence)) if isinstance(fence, list) else Stale(fence or None) for fence in outcomes]

    heartbeat = _forward(Store.heartbeat)
    prune = _forward(Store.prune)
    erase = _forward(Store.erase)
    lingering = _forward(Store.lingering)
    repair = _forward(Store.repair)
    check = _forward(Store.check)

    async def backup(self, target: str) -> int:
        """Have a hub copy its store, and fetch the copy in pieces."""
        copied = await fetch(
            Path(target),
            lambda: self._ask("backup_begin", seconds=BACKUP_SECONDS),
            lambda id, offset: self._ask("backup_piece", id, offset),
        )
        await self._ask("backup_end", copied.id)
        return copied.size

    # -- claiming

    async def process(self) -> str:
        return self._name

    ended = _forward(Store.ended)

    def _take(self, wanted: Wanted, worker: str, now: float) -> Take:
        return Take(wanted, worker, self._name, secrets.token_hex(8), now)

    async def claim(self, wanted: Wanted, worker: str, now: float) -> Claim:
        return await self._send_claim("take", self._take(wanted, worker, now), ())

    async def _send_claim(self, verb: str, take: Take, rest: tuple[float, ...], seconds: float = 0.0) -> Claim:
        """Send a claim. Where its answer is lost, give back what it got, and claim again under another token.

        The hub that has the lost request may claim for it later, and gives those jobs back by the token of the request.
        So that token must not be the one of jobs that this worker has.
        """
        until, tries = time.monotonic() + GIVE_UP + seconds, 0
        try:
            while True:
                try:
                    request = protocol.write_request(verb, (take, *rest))
                    answer = await self._transport().ask(request, seconds + ANSWER_SECONDS)
                    claim: Claim = protocol.read_answer(verb, answer)
                    return claim
                except HubUnavailable as error:
                    if time.monotonic() >= until or self._transport().is_ending:
                        raise self._no_answer(error) from error
                    await asyncio.sleep(AGAIN[min(tries, len(AGAIN) - 1)])
                    tries += 1
                    if error.sent:
                        take = await self._renew(take)
        except (asyncio.CancelledError, CommitUnknown):
            self._give_back(take)
            raise

    async def _renew(self, take: Take) -> Take:
        """Make the same claim under a new token, once nothing is claimed under the old one."""
        await self._ask("give_back", take.token)
        self._give_back(take)  # a hub that did not answer may still have the request
        return msgspec.structs.replace(take, token=secrets.token_hex(8))

    def _give_back(self, take: Take) -> None:
        """Withdraw a claim whose worker stopped waiting, and give back at once what a hub claimed for it."""
        if (thread := self._thread) is not None:
            thread.drop(
                protocol.write_request("withdraw", (take.token,)), protocol.write_request("give_back", (take.token,))
            )

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
        """Have a hub keep the request until there is work. Where the worker is woken first, nothing is left claimed."""
        seconds = max(0.0, min(seconds, WAIT_SECONDS))
        take = self._take(wanted, worker, clock())
        done = await self._until_woken(self._send_claim("take_next", take, (seconds,), seconds), woken)
        return done.result() if done is not None else None

    async def wait(self, mark: int, seconds: float, woken: asyncio.Event | None = None) -> bool:
        event = woken or asyncio.Event()
        asking = self._ask("wait", mark, min(seconds, WAIT_SECONDS), seconds=seconds + ANSWER_SECONDS)
        done = await self._until_woken(asking, event, seconds)
        return event.is_set() or (done is not None and bool(done.result()))

    def follow(self, ids: Collection[str], changed: asyncio.Event) -> AbstractAsyncContextManager[None]:
        """Set nothing: callers look from time to time."""
        return nullcontext()

    async def _until_woken(
        self, asking: Coroutine[Any, Any, T], woken: asyncio.Event, seconds: float | None = None
    ) -> asyncio.Future[T] | None:
        """Return the request once it has ended; cancel it where the event is set or the time is over first."""
        asked, nudged = asyncio.ensure_future(asking), asyncio.ensure_future(woken.wait())
        try:
            await asyncio.wait({asked, nudged}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return asked if asked.done() else None
        finally:
            asked.cancel()
            nudged.cancel()
            await asyncio.gather(asked, nudged, return_exceptions=True)

    # -- reading

    get = _forward(Store.get)
    doc = _forward(Store.doc)
    docs = _forward(Store.docs)
    find = _forward(Store.find)
    first = _forward(Store.first)
    seal = _forward(Store.seal)
    overdue = _forward(Store.overdue)
    left_behind = _forward(Store.left_behind)
    returning = _forward(Store.returning)
    quiet = _forward(Store.quiet)
    durations = _forward(Store.durations)
    timings = _forward(Store.timings)
    events = _forward(Store.events)
    latest = _forward(Store.latest)
    moves = _forward(Store.moves)
    story = _forward(Store.story)
    tallies = _forward(Store.tallies)
    totals = _forward(Store.totals)
    outcomes = _forward(Store.outcomes)
    minutes = _forward(Store.minutes)
    groups = _forward(Store.groups)

    async def count(
        self, filter: Filter, by: Sequence[str] = (), *, current: bool = False
    ) -> dict[tuple[str | None, ...], int]:
        counted: list[protocol.CountLine] = await self._ask("count", filter, by, current)
        return {line.by: line.number for line in counted}

    async def lessons(self, *fingerprints: str) -> list[Lesson]:
        lessons: list[Lesson] = await self._ask("lessons", fingerprints)
        return lessons

    async def scan(self) -> AsyncIterator[Job]:
        last = 0
        while True:
            jobs, last = await self._ask("scan", last)
            if not jobs:
                return
            for job in jobs:
                yield job


class _Session:
    """Numbers the commands of this client, and knows below which number it sends none again."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.begun = False
        self._lock = threading.Lock()
        self._next = 1
        self._open: set[int] = set()

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """Number one command for as long as it is under way."""
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._open.add(number)
            ticket = Ticket(self.client, number, min(self._open))
        try:
            yield ticket
        finally:
            with self._lock:
                self._open.discard(number)


class _Thread:
    """Runs the event loop that owns the transport, because callers come from many loops."""

    def __init__(self, make: Callable[[], Transport]) -> None:
        self._make = make
        self._transport: Transport | None = None
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asking: set[asyncio.Future[bytes]] = set()
        self._waiting: set[asyncio.Future[bytes]] = set()
        """Requests that hubs keep until there is work."""
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
        asking = self._ask_transport(request, seconds)
        future = self._gate.enter(lambda: asyncio.run_coroutine_threadsafe(asking, self._loop))
        if future is None:
            asking.close()
            raise HubUnavailable("this store is closed", sent=False)
        return await asyncio.wrap_future(future)

    async def _ask_transport(self, request: bytes, seconds: float) -> bytes:
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
        """Whether a request that no hub answers is not sent again."""
        return self._stopping or self._hurried

    def hurry(self) -> None:
        """Send no request again, and wait only a moment for answers."""
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
        """Forget a session that the hubs do not know any more: the next command begins another one."""
        with self._lock:
            if self._session is session:
                self._session = None

    def drop(self, withdraw: bytes, give_back: bytes) -> None:
        """Withdraw a request that a hub may keep, without waiting for the answers."""
        self._gate.enter(lambda: self._loop.call_soon_threadsafe(self._spawn_drop, withdraw, give_back))

    def _spawn_drop(self, withdraw: bytes, give_back: bytes) -> None:
        task = self._loop.create_task(self._withdraw(withdraw, give_back))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _withdraw(self, withdraw: bytes, give_back: bytes) -> None:
        if self._transport is None:
            return
        try:
            await self._transport.tell(withdraw)
            await self._transport.ask(give_back, ANSWER_SECONDS)
        except HubUnavailable as error:
            log.warning("a claim could not be withdrawn, its jobs come back when their leases end: %s", error)

    def stop(self) -> None:
        """Wait for the answers under way, then end. Requests that wait for work are cancelled."""
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
