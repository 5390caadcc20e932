"""Runs the thread of a replica, which appends to the log, reads the log, and executes what it reads.

The thread executes messages itself, so that a command costs its caller only two changes of thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import msgspec

from redrive.core.commands import Command, Ticket
from redrive.errors import CommitUnknown, StoreError, StoreFailed, StoreUnavailable
from redrive.stores.replica import sender, snapshots
from redrive.stores.replica.envelope import Own
from redrive.stores.replica.file import ReplicaFile, erases
from redrive.stores.replica.log import Log, LogChanged, LogEntry, LogInfo, LogUnavailable
from redrive.stores.replica.replay import ChainMismatch, FleetMoved, LogJumps, Replay, Replayed, ReplicaStopped
from redrive.stores.replica.sender import AGAIN, PendingCommand, Sender, tell
from redrive.stores.sqlite.wakeups import Gate, call_in_loop, is_cancelled

log = logging.getLogger("redrive.store")
T = TypeVar("T")
CATCH_UP: Final = 30.0
"""Seconds without a message after which a replica that opens gives up."""
LEADER_SECONDS: Final = 10.0
"""How long a read waits for a log without a leader, while a cluster that has lost a node elects another."""
COMMIT_SECONDS: Final = 0.002
"""How long executed messages may wait for their commit: the log makes them durable."""
COMMIT_AT_ONCE: Final = 16
"""So many commands are committed at once, so that no reader waits for a busy engine."""


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
    ) -> None:
        self.path = path
        self.log = log
        self.info = LogInfo(log.url, "unsynced", 0, "", 0, 0)
        self.replay = replay
        self.file = ReplicaFile(path, replay)
        self.sender = Sender(log, replay, monotonic=monotonic, spawn=self._spawn)
        self.snapshots = snapshots.Snapshots(log, path, self.commit)
        self.failed: StoreError | None = None
        self.trouble: str | None = None
        """Why the file does not follow the log at the moment."""
        self.opened: Future[LogInfo] = Future()
        self.is_open = False
        """Whether `opened` has a result: every call asks, and asking a future takes two locks."""
        self.chores: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Coroutines that run in this thread while the replica is open."""
        self.erased = asyncio.Event()
        self.erased_at = 0
        """The position of the last message executed here that erases."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="redrive-replica", daemon=True)
        self._alive = alive
        self._heard = heard
        self._handed: deque[PendingCommand] = deque()
        self._woken = False
        self._behind: list[tuple[int, asyncio.Future[None]]] = []
        self._ending: asyncio.Future[int] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = asyncio.Event()
        self._gate = Gate()
        self._calls: set[asyncio.Future[Any]] = set()
        self._pause = 0.0
        """Seconds before the log is read again after a failure."""
        self._committing: asyncio.TimerHandle | None = None
        self._careful = False
        """Whether each message is committed before its outcome is told, because executing or committing failed."""
        self._told = 0
        """The position up to which callers know their outcomes, so that no outcome is told twice."""
        self._feeding: asyncio.Task[None] | None = None

    # -- life

    @property
    def connection(self) -> apsw.Connection:
        return self.file.connection

    def stop(self) -> None:
        """Execute the accepted commands, then close. From any thread; `thread.join` waits for it."""
        if self.loop is not None:
            call_in_loop(self.loop, self._stopping.set)

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            await self._open()
            self._feeding = self._spawn(self._feed())
            await self._catch_up()
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            await self._leave()
            self.file.guard.release()
            self.opened.set_exception(StoreUnavailable(str(error)) if isinstance(error, LogUnavailable) else error)
            return
        advice = f". {self.info.advice}" if self.info.advice else ""
        log.info("what %s accepts is %s%s", self.info.url, self.info.durability, advice)
        self.is_open = True
        self.opened.set_result(self.info)
        for chore in self.chores:
            self._spawn(chore())
        await self._stopping.wait()
        self.sender.refusal = self.sender.refusal or self._closed_error()
        await self._finish()
        for call in list(self._calls):
            call.cancel()
        await self._gate.shut()
        self._take_over()
        await self._leave()

    async def _open(self) -> None:
        info = self.info = await self.log.open()
        self.sender.max_message = info.max_message
        self.file.guard.take()
        connection = self.file.open()
        if await self._patiently(lambda: snapshots.must_restore(self.log, info, self.replay.standing)):
            self.file.close()
            await snapshots.restore(self.log, info, self.path)
            connection = self.file.open()
        if self.replay.standing is None:
            self.replay.begin(connection, info.generation)
        self.replay.refuse_higher_level()
        self._alive()

    async def _catch_up(self) -> None:
        """Execute what the log held when it was opened, so that the first claim sees it."""
        while (before := self.file.position) < self.info.last and self.failed is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP):
                    await self.wait_for(self.info.last)
            if self.file.position == before:
                raise StoreUnavailable(f"{self.log.url} sent nothing of what it holds for {CATCH_UP:.0f} s")
        self._check()

    async def _finish(self) -> None:
        """Wait until every accepted command has its outcome, or the log does not answer for long."""
        until, settled = time.monotonic() + sender.GIVE_UP, self.sender.settled
        while not self.sender.is_idle and self.failed is None and time.monotonic() < until:
            settled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await settled.wait()

    async def _leave(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.log.close()
        except Exception as error:  # noqa: BLE001 - the process leaves anyway
            log.warning("the log %s could not be closed: %r", self.log.url, error)
        self._commit_last()
        self.file.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(StoreFailed(f"the replica {self.path} stopped: {error!r}"))

    def _fail(self, error: StoreError) -> None:
        """Take no more commands, and tell the callers that wait for outcomes or changes."""
        if self.failed is not None:
            return
        self.failed = error
        log.critical("replica stopped: %s", error)
        self._commit_last()
        unsure = CommitUnknown(f"{error}. Whether the log has the last commands is not known here")
        self.sender.fail(error, error if isinstance(error, FleetMoved) else unsure)
        for _, waiter in self._behind:
            if not waiter.done():
                waiter.set_exception(error)
        self._behind.clear()
        self._heard(True, True)

    def _closed_error(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.log.url} is closed")

    # -- for callers in any loop

    async def run(self, command: Command | Own, ticket: Ticket | None = None) -> Any:
        """Append a command, and return its outcome once this replica has executed it."""
        pending = PendingCommand(command, ticket)
        self._check()
        self._hand_over(self._running_loop(), pending)
        return await pending.outcome()

    def _hand_over(self, loop: asyncio.AbstractEventLoop, pending: PendingCommand) -> None:
        """Wake the engine's thread once for all commands that it has not taken yet."""
        self._handed.append(pending)
        if self._woken:
            return
        self._woken = True
        if not self._gate.enter(lambda: call_in_loop(loop, self._take_over)):
            self._woken = False
            raise self._closed_error()

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine in the engine's thread."""
        self._check()
        loop, calling = self._running_loop(), self._run_call(work)
        future = self._gate.enter(lambda: asyncio.run_coroutine_threadsafe(calling, loop))
        if future is None:
            calling.close()
            raise self._closed_error()
        return await asyncio.wrap_future(future)

    async def _run_call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a caller's work, which ends with an error where the store closes first."""
        task = asyncio.ensure_future(work())
        self._calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if is_cancelled():
                task.cancel()
                raise
            raise self._closed_error() from None
        finally:
            self._calls.discard(task)

    def _check(self) -> None:
        if self.failed is not None:
            raise type(self.failed)(*self.failed.args)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self.loop is None or self._stopping.is_set():
            raise self._closed_error()
        return self.loop

    # -- in the engine's thread

    def _take_over(self) -> None:
        self._woken = False  # before looking: a caller that hands over from now on wakes this thread again
        while self._handed:
            self.sender.accept(self._handed.popleft())
        self.sender.send()

    async def run_here(self, command: Command | Own, ticket: Ticket | None = None) -> Any:
        """`run`, from the engine's own thread."""
        pending = PendingCommand(command, ticket)
        self.sender.enqueue(pending)
        return await pending.outcome()

    async def wait_until_current(self) -> None:
        """Wait until this file holds all that the log holds now. Concurrent callers share one question to the log."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._look_at_end())
        await self.wait_for(await asyncio.shield(self._ending))

    async def wait_for(self, position: int) -> None:
        """Wait until this file holds all messages up to this one."""
        if self.file.position < position:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._behind.append((position, waiter))
            await waiter

    async def _look_at_end(self) -> int:
        """Ask for the end of the log. Callers that come later need the next question."""
        await asyncio.sleep(0)
        self._ending = None
        try:
            return await self._patiently(self.log.end)
        except LogUnavailable as error:
            raise StoreUnavailable(f"{self.log.url} does not answer: {error}") from error

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a question for a while where the log has no leader."""
        until, tries = time.monotonic() + LEADER_SECONDS, 0
        while True:
            try:
                return await ask()
            except LogUnavailable:
                if time.monotonic() >= until or self._stopping.is_set():
                    raise
            await asyncio.sleep(AGAIN[min(tries, len(AGAIN) - 1)])
            tries += 1

    # -- reading the log

    async def _feed(self) -> None:
        """Read the log until the thread ends, also while it stops: messages under way wait for their echo."""
        await asyncio.sleep(self._pause)
        while True:
            try:
                await self._follow()
                continue
            except _Rewound:
                continue
            except ReplicaStopped as error:
                if isinstance(error, ChainMismatch):
                    await self.sender.halt_fleet(str(error))
                self._fail(error)
                return
            except LogChanged as error:
                self._fail(ReplicaStopped(str(error)))
                return
            except LogUnavailable as error:
                self.sender.lose_touch()
                self._note_problem(f"{self.log.url} cannot be read: {error}")
            except apsw.Error as error:
                self._note_unwritable(error)
            self._slow_down()
            await asyncio.sleep(self._pause)

    async def _follow(self) -> None:
        """Execute what the log sends; begin at its newest snapshot where the next message was trimmed."""
        try:
            async with contextlib.aclosing(self.log.feed(self.file.position)) as feed:  # before another one is opened
                async for entries in feed:
                    self._execute(entries)
                    self._pause, self.trouble = 0.0, None
        except LogJumps as error:
            await self._restore(error)

    async def _restore(self, jump: LogJumps) -> None:
        """Go on from a snapshot, because the messages that this replica needs next were trimmed."""
        self.file.commit()
        info = msgspec.structs.replace(self.info, first=await self.log.first(), last=await self.log.end())
        before = self.file.position
        if before + 1 >= info.first:
            raise jump
        await snapshots.restore_open(self.log, info, self.path)
        self.file.reload()
        words = "%s no longer holds message %d: this replica goes on from a snapshot at message %d"
        log.warning(words, self.log.url, before + 1, self.file.position)
        self.sender.lose_touch()
        self.sender.forget_sent()
        self._release_waiters()
        self._heard(False, False)

    def _slow_down(self) -> None:
        self._pause = min(1.0, self._pause * 2 or 0.05)

    def _note_unwritable(self, error: apsw.Error) -> None:
        self._note_problem(f"the replica {self.path} cannot be written: {self.file.translate(error)}")

    def _note_problem(self, problem: str) -> None:
        if self.trouble is None:
            log.warning("%s; trying again", problem)
        self.trouble = problem

    def _execute(self, entries: Sequence[LogEntry]) -> None:
        """Execute messages in one transaction; where that fails read them again, and execute them one by one."""
        entries = [entry for entry in entries if entry.position > self.file.position]
        if not entries:
            return
        if self._careful:
            for entry in entries:
                replayed = self.file.execute([entry])
                self.file.commit()
                self._settle(replayed)
            self._careful = False
            return
        alone = len(entries) == 1 and not self.file.is_dirty
        try:
            replayed = self.file.execute(entries)
        except (apsw.Error, ReplicaStopped) as error:
            self._careful = True
            if alone:
                raise
            raise _Rewound from error
        self._settle(replayed)
        if self.file.has_erased or sum(len(message.outcomes) for message in replayed) >= COMMIT_AT_ONCE:
            self._commit_now()
        elif self._committing is None and self.file.is_dirty:  # together with what comes meanwhile
            self._committing = asyncio.get_running_loop().call_later(COMMIT_SECONDS, self._commit_or_rewind)

    # -- committing

    async def commit(self) -> None:
        """Let other connections see the executed messages; raise where they cannot be written."""
        error = self._commit_or_rewind()
        if error is not None:
            raise self.file.translate(error) from error

    def _commit_now(self) -> None:
        try:
            self.file.commit()
        except apsw.Error:
            self._careful = True
            raise

    def _commit_or_rewind(self) -> apsw.Error | None:
        """Commit; where that fails read the log again from the position of the file, and return the error."""
        if self._committing is not None:
            self._committing.cancel()
            self._committing = None
        try:
            self.file.commit()
        except apsw.Error as error:
            self._careful = True
            self._note_unwritable(error)
            self._slow_down()
            if self._feeding is not None:
                self._feeding.cancel()
            self._feeding = self._spawn(self._feed())
            return error
        return None

    def _commit_last(self) -> None:
        """Commit in a replica that stops. Its next start executes again what cannot be committed now."""
        try:
            self.file.commit()
        except apsw.Error as error:
            words = "the replica %s could not write the last messages (%s): the next start executes them again"
            log.warning(words, self.path, self.file.translate(error))

    # -- outcomes

    def _settle(self, replayed: Sequence[Replayed]) -> None:
        """Tell the callers their outcomes, then wake those that wait for changes."""
        done: list[PendingCommand] = []
        own = False
        for message in replayed:
            envelope = message.envelope
            if message.position <= self._told:
                continue
            self._told = message.position
            if envelope is not None and envelope.ticket.client in self.sender.clients:
                own = True
                self.sender.match(envelope, message.outcomes, done)
        erasing = [message.position for message in replayed if erases(message.envelope)]
        if erasing:
            self.erased_at = erasing[-1]
            self.erased.set()
        tell(done)
        if any(message.wakes for message in replayed):
            self._heard(own, False)
        self._release_waiters()
        if own:
            self.sender.send()
            self.sender.settled.set()

    def _release_waiters(self) -> None:
        position = self.file.position
        for end, waiter in self._behind:
            if end <= position and not waiter.done():
                waiter.set_result(None)
        self._behind = [(end, waiter) for end, waiter in self._behind if end > position]


class _Rewound(Exception):
    """Executed messages were rolled back before their commit: they must be read again."""
