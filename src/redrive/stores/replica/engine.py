"""The engine of a replica: one thread that appends to the log, hears the log, and executes what it hears.

The thread runs an event loop of its own, because callers come from many loops and the connection to the log belongs to
one. It also owns the writing connection to the file: a message is executed in the thread that hears it, so that a
command costs its caller two changes of thread and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import msgspec

from redrive.core.commands import Command, Erase, Forget, GiveBack, Hello, Take, Ticket
from redrive.errors import CommitUnknown, SessionUnknown, StoreError, StoreFailed, StoreFull, StoreUnavailable
from redrive.stores.replica import envelope as wire
from redrive.stores.replica import levels, snapshots
from redrive.stores.replica.envelope import Envelope, Halt, Item, Own
from redrive.stores.replica.log import Entry, Log, LogChanged, LogFull, LogInfo, LogUnavailable
from redrive.stores.replica.replay import (
    EXPIRED,
    FORGOTTEN,
    LATE,
    ChainMismatch,
    FleetMoved,
    LogJumps,
    Replay,
    Replayed,
    ReplicaStopped,
)
from redrive.stores.sqlite import upkeep
from redrive.stores.sqlite.connection import open_writer, translate
from redrive.stores.sqlite.file_guard import FileGuard
from redrive.stores.sqlite.fork_guard import use
from redrive.stores.sqlite.sessions import Refused
from redrive.stores.sqlite.wakeups import Gate, handed, is_cancelled

log = logging.getLogger("redrive.store")
T = TypeVar("T")
GIVE_UP: Final = 20.0
"""Seconds for which a message is sent again until the log acknowledges it; then its outcome is unknown."""
ACK_SECONDS: Final = 2.0
CATCH_UP: Final = 30.0
"""Seconds without a message after which a replica that opens gives up."""
IN_FLIGHT: Final = 4
"""How many messages may be under way; what comes meanwhile is packed together."""
LEADER_SECONDS: Final = 10.0
"""How long a read waits for a log without a leader: a cluster that has lost a node chooses another one meanwhile."""
CHECKPOINT_PAGES: Final = 4_000
"""A checkpoint syncs the file while callers wait; 16 MB of SQLite's own log between two of them are no burden."""
COMMIT_SECONDS: Final = 0.002
"""How long messages that were executed may wait for their commit: the log is what makes them durable."""
COMMIT_AT_ONCE: Final = 16
"""So many commands are committed at once: each of them pays little of it, and no reader waits for a busy engine."""
AGAIN: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
INSERTS_UNTIL: Final = 0.8
"""The log takes new jobs until it is so full. The rest is for settling those that it has."""


class Op:
    """One caller's command, encoded, and where its outcome goes."""

    __slots__ = ("command", "future", "loop", "raw", "value")

    def __init__(self, command: Command | Own, ticket: Ticket | None = None) -> None:
        self.command = command
        self.raw = wire.item(command, ticket)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.value: Any = None


class _Sent:
    """One message under way."""

    __slots__ = ("data", "name", "ops", "sent_at", "ticket", "until")

    def __init__(self, ops: list[Op], ticket: Ticket, data: bytes, sent_at: float) -> None:
        self.ops = ops
        self.ticket = ticket
        self.name = f"{ticket.client}-{ticket.number}"
        self.data = data
        self.sent_at = sent_at
        self.until: float | None = time.monotonic() + ACK_SECONDS
        """When it is appended again; None once the log has it, or `_deliver` sends it."""


class Engine:
    """Owns the log, the file and the thread of one replica."""

    def __init__(
        self,
        path: Path,
        log: Log,
        replay: Replay,
        *,
        alive: Callable[[], None],
        heard: Callable[[bool, bool], None],
        monotonic: Callable[[], float],
        snapshot_every: int = snapshots.EVERY,
    ) -> None:
        self.path = path
        self.guard = FileGuard(path)
        self.log = log
        self.info = LogInfo(log.url, "unsynced", 0, "", 0, 0)
        """What the log said when it was opened."""
        self.replay = replay
        self.failed: StoreError | None = None
        self.opened: Future[LogInfo] = Future()
        self.is_open = False
        """Whether `opened` has a result: every call asks, and a future takes two locks to say it."""
        self.counted = 0.0
        """Seconds in which this replica was in touch with its log: what the age of a lease is measured by."""
        self._touched: float | None = None
        self._alive = alive
        self._heard = heard
        self._monotonic = monotonic
        self._snapshot_every = snapshot_every
        self._handed: deque[Op] = deque()
        self._woken = False
        self._waiting: deque[Op] = deque()
        self._sends_soon = False
        self._in_flight: dict[int, _Sent] = {}
        self._watching: asyncio.TimerHandle | None = None
        self._next = 1
        self._client = secrets.token_hex(8)
        self._clients = {self._client}
        """Every name that this replica has had: messages under an earlier one may still come."""
        self._greeted: bool | None = False
        """None while the hello is under way."""
        self._behind: list[tuple[int, asyncio.Future[None]]] = []
        self._ending: asyncio.Future[int] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()
        self._gate = Gate()
        self._calls: set[asyncio.Future[Any]] = set()
        self._oldest: float | None = None
        self._settled = asyncio.Event()
        self._trouble: str | None = None
        self._pause = 0.0
        """Seconds before the log is heard again after trouble."""
        self.is_dirty = False
        """Whether messages were executed that only this thread's connection sees: their commit comes soon."""
        self._committing: asyncio.TimerHandle | None = None
        self._careful = False
        """Whether each message is committed before its outcome is told, because executing or committing failed."""
        self._told = 0
        """The position up to which callers know their outcomes. Messages that are executed again are not told again."""
        self._feeding: asyncio.Task[None] | None = None
        self._full = False
        self._erased = False
        """Something was erased, and SQLite's own log holds its words still."""
        self.erased = asyncio.Event()
        """Set when a message that erases was executed."""
        self.erased_at = 0
        """The position of the last such message that this process has executed."""
        self.follow: Callable[[], Coroutine[Any, Any, None]] | None = None
        """What runs in this thread while the replica is open."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._connection: apsw.Connection | None = None
        self.thread = threading.Thread(target=self._main, name="redrive-replica", daemon=True)

    # -- life

    def start(self) -> None:
        self.thread.start()

    @property
    def client(self) -> str:
        """The name under which this replica sends its messages."""
        return self._client

    @property
    def was_refused(self) -> bool:
        """It could not be opened; a later try may do better."""
        return self.opened.done() and self.opened.exception() is not None

    def stop(self) -> None:
        """Finish what was accepted, then close. From any thread; `thread.join` waits for it."""
        if self.loop is not None:
            handed(self.loop, self._stopping.set)

    def _main(self) -> None:
        asyncio.run(self._life())

    async def _life(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            await self._open()
            self._feeding = self._spawn(self._feed())
            await self._catch_up()
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            await self._leave()
            self.guard.release()
            self.opened.set_exception(_in_words(error))
            return
        self._say_durability()
        self.is_open = True
        self.opened.set_result(self.info)
        self._spawn(self._snapshots())
        self._spawn(levels.keep(self))
        if self.follow is not None:
            self._spawn(self.follow())
        await self._stopping.wait()
        await self._finish()
        for call in list(self._calls):
            call.cancel()
        await self._gate.shut()
        self._take_over()
        await self._leave()

    def _say_durability(self) -> None:
        advice = f". {self.info.advice}" if self.info.advice else ""
        log.info("what %s accepts is %s%s", self.info.url, self.info.durability, advice)

    async def _catch_up(self) -> None:
        """Execute what the log held when it was opened, so that the first claim sees it."""
        while (before := self._position()) < self.info.last and self.failed is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP):
                    await self.reached(self.info.last)
            if self._position() == before:
                raise StoreUnavailable(f"{self.log.url} sent nothing of what it holds for {CATCH_UP:.0f} s")
        self._check()

    async def _leave(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close_log()
        self._commit_or_undo()
        if self._connection is not None:
            with use:
                if self._erased:
                    upkeep.empty_log(self._connection)
                self._connection.close()

    async def _close_log(self) -> None:
        try:
            await self.log.close()
        except Exception as error:  # noqa: BLE001 - the process leaves anyway
            log.warning("the log %s could not be closed: %r", self.log.url, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(StoreFailed(f"the replica {self.path} stopped: {error!r}"))

    async def _finish(self) -> None:
        """Every accepted command gets its outcome, as long as the log answers."""
        until = time.monotonic() + GIVE_UP
        while (self._waiting or self._in_flight) and self.failed is None and time.monotonic() < until:
            self._settled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await self._settled.wait()

    async def _open(self) -> None:
        info = self.info = await self.log.open()
        self.guard.take()
        connection = self._open_file()
        if await _patiently(lambda: snapshots.must_restore(self.log, info, self.replay.standing)):
            with use:
                connection.close()
            self._connection = None
            await snapshots.restore(self.log, info, self.path)
            connection = self._open_file()
        if self.replay.standing is None:
            self.replay.begin(connection, info.generation)
        self.replay.refuse_higher_level()
        self._alive()

    def _open_file(self) -> apsw.Connection:
        with use:
            connection = self._connection = open_writer(self.path)
            connection.pragma("synchronous", "NORMAL")  # the log is what makes it durable
            connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            self.replay.load(connection)
        return connection

    def _fail(self, error: StoreError) -> None:
        """Take no more commands, and tell those who wait and those who watch."""
        if self.failed is not None:
            return
        self.failed = error
        log.critical("replica stopped: %s", error)
        self._commit_or_undo()
        unsure = CommitUnknown(f"{error}. Whether the log has the last commands is not known here")
        _tell([op for sent in self._in_flight.values() for op in sent.ops], _sure(error) or unsure)
        _tell(list(self._waiting), error)
        self._waiting.clear()
        self._in_flight.clear()
        for _, waiter in self._behind:
            if not waiter.done():
                waiter.set_exception(error)
        self._behind.clear()
        self._heard(True, True)

    # -- for callers in any loop

    async def run(self, command: Command | Own, ticket: Ticket | None = None) -> Any:
        """Append a command and return its outcome once this replica has executed it."""
        op = Op(command, ticket)
        self._check()
        self._hand_over(self._loop(), op)
        return _value(await op.future)

    def _hand_over(self, loop: asyncio.AbstractEventLoop, op: Op) -> None:
        """Wake the engine's thread once for all commands that it has not looked at yet."""
        self._handed.append(op)
        if self._woken:
            return
        self._woken = True
        if not self._gate.enter(lambda: handed(loop, self._take_over)):
            self._woken = False
            raise StoreUnavailable(f"{self.log.url} is closed")

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine in the engine's thread."""
        self._check()
        loop, calling = self._loop(), self._called(work)
        future = self._gate.enter(lambda: asyncio.run_coroutine_threadsafe(calling, loop))
        if future is None:
            calling.close()
            raise StoreUnavailable(f"{self.log.url} is closed")
        return await asyncio.wrap_future(future)

    async def _called(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a caller's work; one that is under way when the store closes is told so."""
        task = asyncio.ensure_future(work())
        self._calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if is_cancelled():
                task.cancel()
                raise
            raise StoreUnavailable(f"{self.log.url} is closed") from None
        finally:
            self._calls.discard(task)

    def _check(self) -> None:
        if self.failed is not None:
            raise type(self.failed)(*self.failed.args)

    def _loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None or self._stopping.is_set():
            raise StoreUnavailable(f"{self.log.url} is closed")
        return self.loop

    def waited(self) -> float:
        """Seconds for which the oldest command has waited for its outcome."""
        oldest = self._oldest
        return 0.0 if oldest is None else time.monotonic() - oldest

    @property
    def trouble(self) -> str | None:
        """Why the file does not follow the log at the moment."""
        return self._trouble

    # -- in the engine's thread

    def _take_over(self) -> None:
        self._woken = False  # before looking: who hands over from now on wakes again
        while self._handed:
            self._accept(self._handed.popleft())
        self._send()

    def _accept(self, op: Op) -> None:
        if self.failed is not None or self._stopping.is_set():
            _tell([op], self.failed or StoreUnavailable(f"{self.log.url} is closed"))
            return
        self._waiting.append(op)

    def _enqueue(self, op: Op) -> None:
        """Send a command in the loop's next step, together with all others of this one."""
        self._accept(op)
        if not self._sends_soon:
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self._send)

    async def run_here(self, command: Command | Own, ticket: Ticket | None = None) -> Any:
        """`run`, from the engine's own thread."""
        op = Op(command, ticket)
        self._enqueue(op)
        return _value(await op.future)

    @property
    def connection(self) -> apsw.Connection:
        if self._connection is None:
            raise StoreUnavailable(f"{self.log.url} is not open")
        return self._connection

    async def current(self) -> None:
        """Wait until this file holds all that the log held when this was called. Callers share one look at the end."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._look_at_end())
        await self.reached(await asyncio.shield(self._ending))

    async def reached(self, end: int) -> None:
        """Wait until this file holds all messages up to this one."""
        if self._position() < end:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._behind.append((end, waiter))
            await waiter

    async def _look_at_end(self) -> int:
        """Those who ask while a look is under way may have missed it: theirs is the next one."""
        await asyncio.sleep(0)
        self._ending = None
        until, tries = time.monotonic() + LEADER_SECONDS, 0
        while True:
            try:
                return await self.log.end()
            except LogUnavailable as error:
                if time.monotonic() >= until or self._stopping.is_set():
                    raise StoreUnavailable(f"{self.log.url} does not answer: {error}") from error
            await asyncio.sleep(AGAIN[min(tries, len(AGAIN) - 1)])
            tries += 1

    def _position(self) -> int:
        standing = self.replay.standing
        return standing.position if standing is not None else 0

    # -- appending

    def _send(self) -> None:
        """Send what waits, as far as there is room, in this step of the loop: another step would cost the callers."""
        self._sends_soon = False
        if self._waiting and self._greeted is False:
            self._greeted = None
            self._spawn(self._greet())
        while self._waiting and self._greeted and len(self._in_flight) < IN_FLIGHT:
            self._dispatch(self._pack())
        self._note_oldest()

    async def _greet(self) -> None:
        """Begin this replica's session: before it no command of it is executed."""
        hello = Op(Hello(self._client, time.time(), self.replay.level))
        self._dispatch([hello])
        try:
            await hello.future
        except StoreError as error:
            self._greeted = False
            ops = list(self._waiting)
            self._waiting.clear()
            _tell(ops, error)
        else:
            self._greeted = True
            self._send()

    def _pack(self) -> list[Op]:
        """The commands that go into one message."""
        size, ops = 0, list[Op]()
        while self._waiting and len(ops) < wire.PACKED_COMMANDS:
            size += len(self._waiting[0].raw)
            if ops and size > wire.PACKED_BYTES:
                break
            ops.append(self._waiting.popleft())
        return ops

    def _dispatch(self, ops: list[Op]) -> None:
        number, self._next = self._next, self._next + 1
        ticket = Ticket(self._client, number, min(self._in_flight, default=number))
        standing = self.replay.here
        raw = [op.raw for op in ops]
        data = wire.pack(ticket, standing.generation, standing.position, standing.chain, raw, standing.level)
        sent = self._in_flight[number] = _Sent(ops, ticket, data, self._monotonic())
        if len(data) > self.info.max_message or not self.log.send(sent.name, data, partial(self._answered, sent)):
            self._send_again(sent)
        elif self._watching is None:
            self._watching = asyncio.get_running_loop().call_later(ACK_SECONDS, self._watch_sent)

    def _answered(self, sent: _Sent, failed: LogUnavailable | LogFull | None) -> None:
        if failed is None:
            sent.until = None
        else:
            self._send_again(sent, failed)

    def _watch_sent(self) -> None:
        """Append again what the log has not answered for long. One timer serves all messages under way."""
        now = time.monotonic()
        for sent in list(self._in_flight.values()):
            if sent.until is not None and sent.until <= now:
                self._send_again(sent, LogUnavailable(f"no answer within {ACK_SECONDS:.0f} s"))
        left = [sent.until for sent in self._in_flight.values() if sent.until is not None]
        loop = asyncio.get_running_loop()
        self._watching = loop.call_later(min(left) - now, self._watch_sent) if left else None

    def _send_again(self, sent: _Sent, failed: LogUnavailable | LogFull | None = None) -> None:
        """The echo settles a message that the log has; one that it may not have is appended again."""
        if sent.until is not None and self._in_flight.get(sent.ticket.number) is sent:
            sent.until = None
            self._spawn(self._deliver(sent, failed))

    async def _deliver(self, sent: _Sent, failed: LogUnavailable | LogFull | None) -> None:
        """Append a message until the log says that it has it, or until its own echo has come."""
        ticket = sent.ticket
        pieces = wire.parts(ticket, sent.data, self.info.max_message)
        try:
            for number, piece in enumerate(pieces):
                name = sent.name if len(pieces) == 1 else f"{sent.name}.{number}"
                await self._append(name, piece, ticket.number, failed)
        except LogFull as error:
            self._give_up(ticket.number, StoreFull(f"{self.log.url} is full: {error}; raise its limit"))
        except TimeoutError:
            self._give_up(
                ticket.number,
                CommitUnknown(f"{self.log.url} did not acknowledge within {GIVE_UP:.0f} s; repeat with the same key"),
            )

    async def _append(self, id: str, data: bytes, number: int, failed: LogUnavailable | LogFull | None) -> None:
        """Append one piece; `failed` says how the first try ended where one was made."""
        until, tries = time.monotonic() + GIVE_UP, 0
        while number in self._in_flight:
            try:
                if failed is not None:
                    raise failed
                async with asyncio.timeout(ACK_SECONDS):
                    await self.log.append(id, data)
                return
            except LogFull:
                if tries:
                    raise TimeoutError from None  # an earlier try may have been taken
                raise
            except (LogUnavailable, TimeoutError) as error:
                failed = None
                self._lose_touch()
                if time.monotonic() >= until:
                    raise TimeoutError from error
                await asyncio.sleep(AGAIN[min(tries, len(AGAIN) - 1)])
                tries += 1

    def _give_up(self, number: int, error: StoreError) -> None:
        sent = self._in_flight.pop(number, None)
        if sent is not None:
            _tell(sent.ops, error)
            self._send()
            self._settled.set()

    def _note_oldest(self) -> None:
        if not self._waiting and not self._in_flight:
            self._oldest = None
        elif self._oldest is None:
            self._oldest = time.monotonic()

    # -- hearing

    async def _feed(self) -> None:
        """Hear the log until the thread ends, also while it stops: what is under way waits for its echo."""
        await asyncio.sleep(self._pause)
        while True:
            try:
                await self._follow()
                continue
            except _Rewound:
                continue
            except ReplicaStopped as error:
                if isinstance(error, ChainMismatch):
                    await self._halt(str(error))
                self._fail(error)
                return
            except LogChanged as error:
                self._fail(ReplicaStopped(str(error)))
                return
            except LogUnavailable as error:
                self._lose_touch()
                self._say(f"{self.log.url} cannot be heard: {error}")
            except apsw.Error as error:
                self._say_unwritable(error)
            self._slow_down()
            await asyncio.sleep(self._pause)

    async def _follow(self) -> None:
        """Execute what the log sends, and begin at its newest snapshot where it no longer holds what comes next."""
        try:
            async with contextlib.aclosing(self.log.feed(self._position())) as feed:  # before another one is opened
                async for entries in feed:
                    await self._execute(entries)
                    self._pause, self._trouble = 0.0, None
        except LogJumps as error:
            await self._restore(error)

    async def _restore(self, jump: LogJumps) -> None:
        """Go on from a snapshot, because others have trimmed what this replica has not heard yet."""
        self.commit()
        info = msgspec.structs.replace(self.info, first=await self.log.first(), last=await self.log.end())
        before = self._position()
        if before + 1 >= info.first:
            raise jump
        await snapshots.restore_open(self.log, info, self.path)
        with use:
            self.replay.load(self.connection)
        log.warning(
            "%s no longer holds message %d: this replica goes on from a snapshot at message %d",
            self.log.url, before + 1, self._position(),
        )  # fmt: skip
        self._lose_touch()
        self._forget_sent()
        self._reach_waiters()
        self._heard(False, False)

    def _forget_sent(self) -> None:
        """Give up what was under way: a snapshot does not tell what became of it. What it took goes back."""
        ops = [op for sent in self._in_flight.values() for op in sent.ops]
        self._in_flight.clear()
        _tell(ops, CommitUnknown(f"{self.log.url} has trimmed what was sent: its outcome is not known here"))
        for op in ops:
            if isinstance(op.command, Take):
                self._enqueue(Op(GiveBack(op.command.token)))
        self._send()
        self._settled.set()

    def _slow_down(self) -> None:
        self._pause = min(1.0, self._pause * 2 or 0.05)

    def _say_unwritable(self, error: apsw.Error) -> None:
        self._say(f"the replica {self.path} cannot be written: {translate(error, str(self.path))}")

    def _say(self, trouble: str) -> None:
        if self._trouble is None:
            log.warning("%s; trying again", trouble)
        self._trouble = trouble

    async def _halt(self, why: str) -> None:
        """Tell the whole fleet that replicas differ, so that nothing is claimed on either of two truths."""
        ticket, standing = Ticket(self._client, self._next, 0), self.replay.here
        try:
            async with asyncio.timeout(ACK_SECONDS):
                items = [wire.item(Hello(self._client, time.time(), self.replay.level)), wire.item(Halt(why))]
                data = wire.pack(ticket, standing.generation, 0, b"", items, standing.level)
                await self.log.append(f"{self._client}-halt", data)
        except (LogUnavailable, LogFull, TimeoutError) as error:
            log.critical("the fleet could not be told to halt: %r", error)

    async def _execute(self, entries: Sequence[Entry]) -> None:
        """Execute all of them in one transaction. Where that fails they are heard again and executed one by one, so
        that the good ones pass."""
        entries = [entry for entry in entries if entry.position > self._position()]
        if not entries:
            return
        if self._careful:
            self._execute_carefully(entries)
            return
        alone = len(entries) == 1 and not self.is_dirty
        try:
            replayed = self._transaction(entries)
        except (apsw.Error, ReplicaStopped) as error:
            self._careful = True
            if alone:
                raise
            raise _Rewound from error
        self._settle(replayed)
        if self._erased or sum(len(message.outcomes) for message in replayed) >= COMMIT_AT_ONCE:
            self._commit_now()
        else:
            self._commit_soon()

    def _execute_carefully(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            replayed = self._transaction([entry])
            self.commit()
            self._settle(replayed)
        self._careful = False

    def _transaction(self, entries: Sequence[Entry]) -> list[Replayed]:
        """Execute messages in a transaction that later ones may join until it is committed."""
        connection = self.connection
        with use:
            try:
                if not self.is_dirty:
                    connection.execute("BEGIN IMMEDIATE")
                    self.is_dirty = True
                replayed = [self.replay.message(connection, entry) for entry in entries]
            except BaseException:
                self._undo()
                raise
        self._erased = self._erased or any(_erases(message.envelope) for message in replayed)
        return replayed

    # -- committing

    def _commit_now(self) -> None:
        try:
            self.commit()
        except apsw.Error:
            self._careful = True
            raise

    def _commit_soon(self) -> None:
        """Commit within a moment, together with what comes meanwhile."""
        if self._committing is None and self.is_dirty:
            self._committing = asyncio.get_running_loop().call_later(COMMIT_SECONDS, self._commit_or_rewind)

    async def committed(self) -> None:
        """Let other connections see what was executed; raises where that cannot be written."""
        error = self._commit_or_rewind()
        if error is not None:
            raise translate(error, str(self.path)) from error

    def commit(self) -> None:
        """Commit what was executed; where that fails the file stands where it stood before."""
        if not self.is_dirty:
            return
        connection = self.connection
        with use:
            try:
                connection.execute("COMMIT")
            except BaseException:
                self._undo()
                raise
            self._forget_commit()
            if self._erased and upkeep.empty_log(connection):  # where another connection reads, the next one tries
                self._erased = False

    def _undo(self) -> None:
        connection = self.connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self._forget_commit()
        self.replay.load(connection)

    def _forget_commit(self) -> None:
        self.is_dirty = False
        if self._committing is not None:
            self._committing.cancel()
            self._committing = None

    def _commit_or_rewind(self) -> apsw.Error | None:
        """Commit; where that fails hear the log again from where the file stands, and return the error."""
        self._committing = None
        try:
            self.commit()
        except apsw.Error as error:
            self._careful = True
            self._say_unwritable(error)
            self._slow_down()
            if self._feeding is not None:
                self._feeding.cancel()
            self._feeding = self._spawn(self._feed())
            return error
        return None

    def _commit_or_undo(self) -> None:
        """The same for a replica that hears no more: what is not committed now is executed at its next start."""
        try:
            self.commit()
        except apsw.Error as error:
            log.warning(
                "the replica %s could not write the last messages (%s): the next start executes them again",
                self.path, translate(error, str(self.path)),
            )  # fmt: skip

    def _settle(self, replayed: Sequence[Replayed]) -> None:
        """Tell the callers their outcomes, then those who wait for changes."""
        done: list[Op] = []
        own = False
        for message in replayed:
            envelope = message.envelope
            if message.position <= self._told:
                continue
            self._told = message.position
            if envelope is not None and envelope.ticket.client in self._clients:
                own = True
                self._mine(envelope, message.outcomes, done)
        erasing = [message.position for message in replayed if _erases(message.envelope)]
        if erasing:
            self.erased_at = erasing[-1]
            self.erased.set()
        _tell(done)
        if any(message.wakes for message in replayed):
            self._heard(own, False)
        self._reach_waiters()
        if own:
            self._send()
            self._settled.set()

    def _reach_waiters(self) -> None:
        """Let those go on who wait for a message that this file holds now."""
        position = self._position()
        for end, waiter in self._behind:
            if end <= position and not waiter.done():
                waiter.set_result(None)
        self._behind = [(end, waiter) for end, waiter in self._behind if end > position]

    def _mine(self, envelope: Envelope, outcomes: Sequence[Any], done: list[Op]) -> None:
        """Match the outcomes of an own message with the callers that wait for them."""
        sent = self._in_flight.pop(envelope.ticket.number, None)
        if not outcomes:
            if sent is not None:  # executed before, by a message whose echo this replica did not settle
                _tell(sent.ops, CommitUnknown(f"{self.log.url} has the commands; their outcomes are not known here"))
        elif outcomes[0] is LATE:
            return  # this replica had given it up, and said so
        elif outcomes[0] is EXPIRED:
            self._greet_anew(sent, envelope.ticket.client)
        elif sent is None:
            for item, outcome in zip(envelope.items, outcomes, strict=True):
                self._return_take(item.command if isinstance(item, Item) else item, outcome)
        else:
            self._touch(sent.sent_at)
            for op, outcome in zip(sent.ops, outcomes, strict=True):
                op.value = outcome
                done.append(op)
                if op.future.cancelled():
                    self._return_take(op.command, outcome)

    def _greet_anew(self, sent: _Sent | None, client: str) -> None:
        """The fleet has forgotten this replica's session. Nothing of the message was executed: it goes again."""
        if client == self._client:
            self._client, self._greeted = secrets.token_hex(8), False
            self._clients.add(self._client)
        if sent is not None:
            self._waiting.extendleft(reversed(sent.ops))

    def _return_take(self, command: object, outcome: Any) -> None:
        """Nobody waits for these jobs any more: they go back at once, and no attempt is spent."""
        if isinstance(command, Take) and not isinstance(outcome, Refused) and outcome.number:
            self._enqueue(Op(GiveBack(command.token)))

    def _touch(self, sent_at: float) -> None:
        """Count the time from the last message that came back until this one was sent: never a silence between."""
        if self._touched is not None:
            self.counted += max(0.0, sent_at - self._touched)
        self._touched = self._monotonic()

    def _lose_touch(self) -> None:
        """The log does not take messages now, of nobody: this silence must not make anybody's lease older."""
        self._touched = None

    # -- snapshots

    async def _snapshots(self) -> None:
        await snapshots.keep(self, self._snapshot_every)


class _Rewound(Exception):
    """What was executed and not yet committed was undone: it must be heard again."""


def _erases(envelope: Envelope | None) -> bool:
    items = envelope.items if envelope is not None else ()
    return any(isinstance(item, Item) and isinstance(item.command, Erase | Forget) for item in items)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again for a while where the log has no leader."""
    until, tries = time.monotonic() + LEADER_SECONDS, 0
    while True:
        try:
            return await ask()
        except LogUnavailable:
            if time.monotonic() >= until:
                raise
        await asyncio.sleep(AGAIN[min(tries, len(AGAIN) - 1)])
        tries += 1


def _sure(error: StoreError) -> StoreError | None:
    """The error itself where it says that nothing under way was executed."""
    return error if isinstance(error, FleetMoved) else None


def _value(outcome: Any) -> Any:
    if outcome is FORGOTTEN:
        raise SessionUnknown(outcome.problem)
    if isinstance(outcome, Refused):
        raise outcome.error()
    return outcome


def _in_words(error: BaseException) -> BaseException:
    if isinstance(error, LogUnavailable):
        return StoreUnavailable(str(error))
    return error


def _tell(ops: Sequence[Op], error: StoreError | None = None) -> None:
    """Hand the outcomes to their callers, one wake-up per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Op]] = {}
    for op in ops:
        loops.setdefault(op.loop, []).append(op)
    for loop, told in loops.items():
        if not handed(loop, _resolve, told, error):
            log.warning("%d commands were executed after their callers' event loop was closed", len(told))


def _resolve(ops: Sequence[Op], error: StoreError | None) -> None:
    for op in ops:
        if op.future.done():
            continue
        if error is not None:
            op.future.set_exception(type(error)(*error.args))
        else:
            op.future.set_result(op.value)
