"""Sends commands to the log: packs those that wait into messages, and appends each message until the log has it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from redrive.core.commands import Command, GiveBack, Hello, Take, Ticket
from redrive.errors import CommitUnknown, SessionUnknown, StoreError, StoreFull
from redrive.stores.replica import envelope as wire
from redrive.stores.replica.envelope import CommandItem, Envelope, Halt, Own
from redrive.stores.replica.log import Log, LogFull, LogUnavailable
from redrive.stores.replica.replay import EXPIRED, FORGOTTEN, LATE, Replay
from redrive.stores.sqlite.sessions import RefusedCommand
from redrive.stores.sqlite.wakeups import call_in_loop

log = logging.getLogger("redrive.store")
GIVE_UP: Final = 20.0
"""Seconds for which a message that the log does not acknowledge is sent again; then its outcome is unknown."""
ACK_SECONDS: Final = 2.0
IN_FLIGHT: Final = 4
"""How many messages may be under way. Commands that come meanwhile are packed together."""
AGAIN: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class PendingCommand:
    """Holds one caller's encoded command, and the future of its outcome."""

    __slots__ = ("command", "future", "loop", "raw", "value")

    def __init__(self, command: Command | Own, ticket: Ticket | None = None) -> None:
        self.command = command
        self.raw = wire.encode_item(command, ticket)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.value: Any = None

    async def outcome(self) -> Any:
        """Wait for the outcome. Raises where the replay refused the command."""
        outcome = await self.future
        if outcome is FORGOTTEN:
            raise SessionUnknown(outcome.problem)
        if isinstance(outcome, RefusedCommand):
            raise outcome.error()
        return outcome


class _SentMessage:
    """Holds one message under way."""

    __slots__ = ("data", "name", "pending", "sent_at", "ticket", "until")

    def __init__(self, pending: list[PendingCommand], ticket: Ticket, data: bytes, sent_at: float) -> None:
        self.pending = pending
        self.ticket = ticket
        self.name = f"{ticket.client}-{ticket.number}"
        self.data = data
        self.sent_at = sent_at
        self.until: float | None = time.monotonic() + ACK_SECONDS
        """When the message is appended again; None once the log has it, or `_deliver` sends it."""


class Sender:
    """Owns the commands that wait, the messages under way, and this replica's session in the log."""

    def __init__(
        self,
        log: Log,
        replay: Replay,
        *,
        monotonic: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._log = log
        self._replay = replay
        self._monotonic = monotonic
        self._spawn = spawn
        self.max_message = 0
        """How large a message the log takes at once; known once the log is open."""
        self.refusal: StoreError | None = None
        """The error for new commands, where no more are taken."""
        self.client = secrets.token_hex(8)
        """The client name of this replica's messages."""
        self.clients = {self.client}
        """Every client name that this replica has had: messages under an earlier name may still come."""
        self.settled = asyncio.Event()
        self.counted = 0.0
        """Seconds in which this replica was in touch with its log, which measure the age of leases."""
        self._touched: float | None = None
        self._waiting: deque[PendingCommand] = deque()
        self._in_flight: dict[int, _SentMessage] = {}
        self._next = 1
        self._greeted: bool | None = False
        """Whether this replica has a session; None while its hello is under way."""
        self._sends_soon = False
        self._watching: asyncio.TimerHandle | None = None
        self._oldest: float | None = None

    # -- taking commands

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._in_flight

    def waited(self) -> float:
        """Seconds for which the oldest command has waited for its outcome."""
        oldest = self._oldest
        return 0.0 if oldest is None else time.monotonic() - oldest

    def accept(self, pending: PendingCommand) -> None:
        if self.refusal is not None:
            tell([pending], self.refusal)
        else:
            self._waiting.append(pending)

    def enqueue(self, pending: PendingCommand) -> None:
        """Send a command in the loop's next step, together with all others of this one."""
        self.accept(pending)
        if not self._sends_soon:
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self.send)

    def fail(self, error: StoreError, unsure: StoreError) -> None:
        """Take no more commands. Messages under way get the error `unsure`, commands that wait get `error`."""
        self.refusal = error
        tell([command for sent in self._in_flight.values() for command in sent.pending], unsure)
        tell(list(self._waiting), error)
        self._waiting.clear()
        self._in_flight.clear()

    # -- sending

    def send(self) -> None:
        """Send waiting commands, as far as there is room, in this step of the loop: another step would cost callers."""
        self._sends_soon = False
        if self._waiting and self._greeted is False:
            self._greeted = None
            self._spawn(self._greet())
        while self._waiting and self._greeted and len(self._in_flight) < IN_FLIGHT:
            self._dispatch(self._pack())
        if not self._waiting and not self._in_flight:
            self._oldest = None
        elif self._oldest is None:
            self._oldest = time.monotonic()

    async def _greet(self) -> None:
        """Begin this replica's session: before the hello no command of this replica is executed."""
        hello = PendingCommand(Hello(self.client, time.time(), self._replay.level))
        self._dispatch([hello])
        try:
            await hello.future
        except StoreError as error:
            self._greeted = False
            waiting = list(self._waiting)
            self._waiting.clear()
            tell(waiting, error)
        else:
            self._greeted = True
            self.send()

    def _pack(self) -> list[PendingCommand]:
        """Take the commands that go into one message."""
        size, packed = 0, list[PendingCommand]()
        while self._waiting and len(packed) < wire.PACKED_COMMANDS:
            size += len(self._waiting[0].raw)
            if packed and size > wire.PACKED_BYTES:
                break
            packed.append(self._waiting.popleft())
        return packed

    def _dispatch(self, pending: list[PendingCommand]) -> None:
        number, self._next = self._next, self._next + 1
        ticket = Ticket(self.client, number, min(self._in_flight, default=number))
        standing = self._replay.here
        raw = [command.raw for command in pending]
        data = wire.pack(ticket, standing.generation, standing.position, standing.chain, raw, standing.level)
        sent = self._in_flight[number] = _SentMessage(pending, ticket, data, self._monotonic())
        if len(data) > self.max_message or not self._log.send(sent.name, data, partial(self._on_answer, sent)):
            self._send_again(sent)
        elif self._watching is None:
            self._watching = asyncio.get_running_loop().call_later(ACK_SECONDS, self._watch)

    def _on_answer(self, sent: _SentMessage, failed: LogUnavailable | LogFull | None) -> None:
        if failed is None:
            sent.until = None
        else:
            self._send_again(sent, failed)

    def _watch(self) -> None:
        """Append messages again that the log does not answer. One timer serves all messages under way."""
        now = time.monotonic()
        for sent in list(self._in_flight.values()):
            if sent.until is not None and sent.until <= now:
                self._send_again(sent, LogUnavailable(f"no answer within {ACK_SECONDS:.0f} s"))
        left = [sent.until for sent in self._in_flight.values() if sent.until is not None]
        loop = asyncio.get_running_loop()
        self._watching = loop.call_later(min(left) - now, self._watch) if left else None

    def _send_again(self, sent: _SentMessage, failed: LogUnavailable | LogFull | None = None) -> None:
        """Append a message that the log may not have. The echo settles a message that the log has."""
        if sent.until is not None and self._in_flight.get(sent.ticket.number) is sent:
            sent.until = None
            self._spawn(self._deliver(sent, failed))

    async def _deliver(self, sent: _SentMessage, failed: LogUnavailable | LogFull | None) -> None:
        """Append a message until the log acknowledges it, or until its echo has come."""
        ticket = sent.ticket
        pieces = wire.split(ticket, sent.data, self.max_message)
        try:
            for number, piece in enumerate(pieces):
                name = sent.name if len(pieces) == 1 else f"{sent.name}.{number}"
                await self._append(name, piece, ticket.number, failed)
        except LogFull as error:
            self._give_up(ticket.number, StoreFull(f"{self._log.url} is full: {error}; raise its limit"))
        except TimeoutError:
            unknown = f"{self._log.url} did not acknowledge within {GIVE_UP:.0f} s; repeat with the same key"
            self._give_up(ticket.number, CommitUnknown(unknown))

    async def _append(self, id: str, data: bytes, number: int, failed: LogUnavailable | LogFull | None) -> None:
        """Append one piece; `failed` says how the first try ended where one was made."""
        until, tries = time.monotonic() + GIVE_UP, 0
        while number in self._in_flight:
            try:
                if failed is not None:
                    raise failed
                async with asyncio.timeout(ACK_SECONDS):
                    await self._log.append(id, data)
                return
            except LogFull:
                if tries:
                    raise TimeoutError from None  # an earlier try may have been taken
                raise
            except (LogUnavailable, TimeoutError) as error:
                failed = None
                self.lose_touch()
                if time.monotonic() >= until:
                    raise TimeoutError from error
                await asyncio.sleep(AGAIN[min(tries, len(AGAIN) - 1)])
                tries += 1

    def _give_up(self, number: int, error: StoreError) -> None:
        sent = self._in_flight.pop(number, None)
        if sent is not None:
            tell(sent.pending, error)
            self.send()
            self.settled.set()

    async def halt_fleet(self, why: str) -> None:
        """Tell the whole fleet that replicas differ, so that nothing is claimed on either of two truths."""
        ticket, standing = Ticket(self.client, self._next, 0), self._replay.here
        try:
            async with asyncio.timeout(ACK_SECONDS):
                items = [
                    wire.encode_item(Hello(self.client, time.time(), self._replay.level)),
                    wire.encode_item(Halt(why)),
                ]
                data = wire.pack(ticket, standing.generation, 0, b"", items, standing.level)
                await self._log.append(f"{self.client}-halt", data)
        except (LogUnavailable, LogFull, TimeoutError) as error:
            log.critical("the fleet could not be told to halt: %r", error)

    # -- outcomes

    def match(self, envelope: Envelope, outcomes: Sequence[Any], done: list[PendingCommand]) -> None:
        """Match the outcomes of a message of this replica with the callers that wait for them."""
        sent = self._in_flight.pop(envelope.ticket.number, None)
        if not outcomes:
            if sent is not None:  # executed before, by a message whose echo this replica did not settle
                unknown = f"{self._log.url} has the commands; their outcomes are not known here"
                tell(sent.pending, CommitUnknown(unknown))
        elif outcomes[0] is LATE:
            return  # this replica had given the message up, and said so
        elif outcomes[0] is EXPIRED:
            self._greet_anew(sent, envelope.ticket.client)
        elif sent is None:
            for item, outcome in zip(envelope.items, outcomes, strict=True):
                self._return_take(item.command if isinstance(item, CommandItem) else item, outcome)
        else:
            self._touch(sent.sent_at)
            for pending, outcome in zip(sent.pending, outcomes, strict=True):
                pending.value = outcome
                done.append(pending)
                if pending.future.cancelled():
                    self._return_take(pending.command, outcome)

    def _greet_anew(self, sent: _SentMessage | None, client: str) -> None:
        """Begin another session, because the log forgot this one, and send its refused message again."""
        if client == self.client:
            self.client, self._greeted = secrets.token_hex(8), False
            self.clients.add(self.client)
        if sent is not None:
            self._waiting.extendleft(reversed(sent.pending))

    def _return_take(self, command: object, outcome: Any) -> None:
        """Give back at once the jobs of a claim whose caller stopped waiting; no attempt is spent."""
        if isinstance(command, Take) and not isinstance(outcome, RefusedCommand) and outcome.number:
            self.enqueue(PendingCommand(GiveBack(command.token)))

    def forget_sent(self) -> None:
        """Give up the messages under way, whose outcomes a snapshot does not hold. Claimed jobs go back."""
        pending = [command for sent in self._in_flight.values() for command in sent.pending]
        self._in_flight.clear()
        tell(pending, CommitUnknown(f"{self._log.url} has trimmed what was sent: its outcome is not known here"))
        for given_up in pending:
            if isinstance(given_up.command, Take):
                self.enqueue(PendingCommand(GiveBack(given_up.command.token)))
        self.send()
        self.settled.set()

    # -- touch

    def _touch(self, sent_at: float) -> None:
        """Count the time from the last message that came back until this one was sent, never a silence between."""
        if self._touched is not None:
            self.counted += max(0.0, sent_at - self._touched)
        self._touched = self._monotonic()

    def lose_touch(self) -> None:
        """Stop counting, so that leases do not age while the log takes no messages."""
        self._touched = None


def tell(pending: Sequence[PendingCommand], error: StoreError | None = None) -> None:
    """Hand the outcomes to their callers, one wake-up per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[PendingCommand]] = {}
    for command in pending:
        loops.setdefault(command.loop, []).append(command)
    for loop, ready in loops.items():
        if not call_in_loop(loop, _resolve, ready, error):
            log.warning("%d commands were executed after their callers' event loop was closed", len(ready))


def _resolve(pending: Sequence[PendingCommand], error: StoreError | None) -> None:
    for command in pending:
        if command.future.done():
            continue
        if error is not None:
            command.future.set_exception(type(error)(*error.args))
        else:
            command.future.set_result(command.value)
