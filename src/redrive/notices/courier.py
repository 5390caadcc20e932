"""Telling people: notices wait in the store until every channel has them, and one courier at a time carries them.

A notice is written in the commit of the move it is about, so it cannot be lost, and leaves the store after its channels
took it. A process that dies between sending and writing that down has the one message of that moment told again. A
channel that fails is tried again later and later; what came after waits behind it, and other channels do not wait.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from redrive.core.commit import try_commit
from redrive.core.documents import WAITING, Kind
from redrive.core.job import Job
from redrive.core.notice import (
    LONGEST_PAUSE,
    Message,
    Notice,
    SentMessage,
    Waiting,
    insert_words,
    is_recent,
    pause_after,
    plan,
    with_words,
)
from redrive.core.redact import redact_text
from redrive.core.store import Put, Store
from redrive.engine.clock import Clock
from redrive.engine.loop import Loop
from redrive.engine.threads import Raised, asked
from redrive.engine.worker_registry import living
from redrive.errors import ConfigError

log = logging.getLogger("redrive.notify")
SIGNAL: Final = "signal:"
"""So the names of those channels begin that are functions for signals."""
STATE: Final = "state"
SEND_SECONDS: Final = 10.0
TURN_SECONDS: Final = 120.0
"""A courier that says nothing for so long is taken for dead, and another goes on."""
LOOK_SECONDS: Final = 1.0
LONG_LOOK_SECONDS: Final = 10.0
MANY: Final = 200
"""So many notices wait that looking at all of them every second would be a burden; also what one commit drops."""
MISSING: Final = 'notify.urls needs Apprise: pip install "redrive[notify]"'

Receiver = Callable[[Message], Awaitable[object] | object]
"""Takes a message, or raises or returns False where it cannot."""


class Undelivered(Exception):
    """The channel did not take it."""


class Channel(NamedTuple):
    """A way to people, under a name that holds no secret and stays the same after a restart."""

    name: str
    send: Callable[[Message], Awaitable[None]]
    one_by_one: bool = False
    """It acts on pains instead of telling people, so none of them is folded into another or summed up."""


# ---- channels


def channels_of(
    urls: Sequence[str], receivers: Iterable[Receiver], environ: Mapping[str, str] | None = None
) -> list[Channel]:
    """Every URL and function as a channel of its own, so that one that is down repeats nothing on the others."""
    environ = os.environ if environ is None else environ
    found = [_by_apprise(number, url, environ) for number, url in enumerate(urls)]
    return distinct(found + [Channel(name_of(receiver), by_function(receiver)) for receiver in receivers])


def distinct(found: Iterable[Channel]) -> list[Channel]:
    """Under names of their own: a function that is given twice is told twice."""
    taken: dict[str, int] = {}
    named = []
    for channel in found:
        number = taken[channel.name] = taken.get(channel.name, 0) + 1
        named.append(channel if number == 1 else channel._replace(name=f"{channel.name}#{number}"))
    return named


def by_function(receiver: Callable[[Any], Any]) -> Callable[[Any], Awaitable[None]]:
    async def send(message: object) -> None:
        if await asked(receiver, message) is False:
            raise Undelivered("it answered False")

    return send


def name_of(receiver: Callable[..., Any]) -> str:
    while isinstance(receiver, partial):
        receiver = receiver.func
    said = receiver if hasattr(receiver, "__qualname__") else type(receiver)
    return f"{said.__module__}.{said.__qualname__}"


def _by_apprise(number: int, said: str, environ: Mapping[str, str]) -> Channel:
    """`env:NAME` is read now and kept nowhere else; what a URL says appears in no error, log or document."""
    try:
        import apprise
    except ImportError:
        raise ConfigError(MISSING) from None
    url, variable = said, said.removeprefix("env:")
    if said.startswith("env:"):
        url = environ.get(variable, "")
        if not url:
            raise ConfigError(f"notify.urls[{number}]: the environment variable {variable} is not set")
    client = apprise.Apprise(asset=_asset(apprise.AppriseAsset))
    with _unheard("apprise"):  # it would log the URL
        known = client.add(url)
    if not known:
        raise ConfigError(f"notify.urls[{number}]: Apprise does not know this kind of URL")
    kinds = {True: apprise.NotifyType.FAILURE, False: apprise.NotifyType.INFO}

    async def send(message: Message) -> None:
        taken = await client.async_notify(
            body=message.text,
            title=message.title,
            notify_type=kinds[message.actionable],
            body_format=apprise.NotifyFormat.TEXT,  # what failed may contain markup, which is not ours
        )
        if not taken:
            raise Undelivered("Apprise could not deliver it; its own log says why")

    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    return Channel(said if said.startswith("env:") else f"{url.partition('://')[0]}-{digest}", send)


def _asset(make: Callable[..., Any]) -> Any:
    """A redirect is not followed: what is posted arrives without its body there, and the page it leads to says 200."""
    stays = {"http_redirects": False} if hasattr(make, "http_redirects") else {}  # as older ones cannot be told
    return make(app_id="redrive", app_desc="redrive", **stays)


@contextmanager
def _unheard(name: str) -> Iterator[None]:
    """While a logger says nothing."""
    logger = logging.getLogger(name)
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


# ---- what is known of channels


class ChannelState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a channel took lately, and how it fares."""

    sent: tuple[SentMessage, ...] = ()
    failures: int = 0
    down_since: float | None = None
    not_before: float = 0.0
    error: str | None = None

    def pauses(self, now: float) -> bool:
        """A time further away than any pause is a clock's mistake and binds nobody."""
        return now < self.not_before <= now + LONGEST_PAUSE

    def took(self, message: Message, now: float) -> ChannelState:
        lately = [one for one in self.sent if is_recent(one, now)]
        return ChannelState(sent=(*lately, SentMessage(now, message.kind, message.alike)))

    def failed(self, error: str, now: float) -> ChannelState:
        failures = self.failures + 1
        since = now if self.down_since is None else self.down_since
        return ChannelState(self.sent, failures, since, now + pause_after(failures), error)


class CourierState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose turn it is, and every channel's state."""

    holder: str | None = None
    until: float = 0.0
    channels: dict[str, ChannelState] = {}

    def of(self, channel: str) -> ChannelState:
        return self.channels.get(channel, ChannelState())

    def taken_by_another(self, me: str, now: float) -> bool:
        """Clocks may differ a little; a turn that ends much later than any turn is a clock's mistake."""
        return self.holder not in (None, me) and now < self.until <= now + 2 * TURN_SECONDS


COURIER: Final = Kind[CourierState]("courier", CourierState)


async def read_courier_state(store: Store) -> tuple[CourierState, int]:
    kept = await COURIER.get(store, STATE)
    return (kept.value, kept.version) if kept is not None else (CourierState(), 0)


async def read_waiting(store: Store) -> list[Waiting]:
    """What people are still to be told, in order."""
    return [(kept.key, kept.value) for kept in await WAITING.all(store)]


async def quoted_by(store: Store, notices: Iterable[Notice]) -> dict[str, Job]:
    """Reads the jobs whose words these notices quote."""
    ids = sorted({quote.job_id for notice in notices for quote in notice.quotes})
    return {job.id: job for job in await store.get(ids)} if ids else {}


# ---- the courier


class TurnLost(Exception):
    """Another courier took over, or nobody knows what was written: a later turn starts from what the store says."""


class Courier(Loop):
    """Carries what waits to the channels. Of all couriers of a store one works at a time, which keeps the order."""

    def __init__(self, store: Store, clock: Clock, channels: Sequence[Channel]) -> None:
        super().__init__("courier")
        self._store = store
        self._clock = clock
        self._channels = channels
        self.names = frozenset(channel.name for channel in channels)
        self._me = secrets.token_hex(8)
        self._backlog = 0

    async def tick(self) -> float:
        await self.deliver()
        return LONG_LOOK_SECONDS if self._backlog > MANY else LOOK_SECONDS

    async def deliver(self) -> int:
        """How many messages the channels took. One that fails is written down, not raised."""
        waiting = dict(await read_waiting(self._store))
        self._backlog = len(waiting)
        if not waiting or not self._channels:
            return 0
        (standing, version), everybodys = await read_courier_state(self._store), await self._everybodys()
        taken = standing.taken_by_another(self._me, self._clock.now())
        if taken or not self._anything_to_do(standing, waiting, everybodys):
            return 0
        round = _Round(self._store, self._clock, self._me, standing, version, waiting, self._channels, everybodys)
        try:
            return await round.run(self._stopping)
        except TurnLost as lost:
            log.warning("the courier's turn ended early, what is left is told later: %s", lost)
            return round.sent

    async def _everybodys(self) -> frozenset[str]:
        """The channels of all workers that live: one that only another process has is not passed over."""
        return self.names.union(*(said.channels for said in await living(self._store, self._clock.now())))

    def _anything_to_do(self, state: CourierState, waiting: Mapping[str, Notice], everybodys: frozenset[str]) -> bool:
        now = self._clock.now()
        return any(everybodys <= set(notice.told) for notice in waiting.values()) or any(
            due(channel, state, waiting, now) for channel in self._channels
        )


def due(channel: Channel, standing: CourierState, waiting: Mapping[str, Notice], now: float) -> list[Message]:
    """What a channel is to be told now."""
    state = standing.of(channel.name)
    if state.pauses(now):
        return []
    untold = [(key, notice) for key, notice in waiting.items() if channel.name not in notice.told]
    return plan(untold, state.sent, now, one_by_one=channel.one_by_one)


class _Round:
    """One turn of a courier, from taking it to giving it back."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        me: str,
        standing: CourierState,
        version: int,
        waiting: dict[str, Notice],
        channels: Sequence[Channel],
        names: frozenset[str],
    ) -> None:
        self._store = store
        self._clock = clock
        self._me = me
        self._standing = standing
        self._version = version
        self._waiting = waiting
        self._channels = channels
        self._names = names
        """Of these, and of the channels that only others serve: a notice waits until all have it."""
        self.sent = 0

    async def run(self, stopping: asyncio.Event) -> int:
        await self._write()  # the turn is ours before anybody is told anything
        await self._drop([key for key, notice in self._waiting.items() if self._names <= set(notice.told)])
        for channel in self._channels:
            await self._serve(channel, stopping)
        self._standing = msgspec.structs.replace(self._standing, holder=None, until=0.0)
        await self._commit(())
        return self.sent

    async def _serve(self, channel: Channel, stopping: asyncio.Event) -> None:
        """In order, up to the first message that is not taken."""
        for message in due(channel, self._standing, self._waiting, self._clock.now()):
            if stopping.is_set():
                return
            error = await sent(channel.send, await self._spoken(message))
            state, now = self._standing.of(channel.name), self._clock.now()
            if error is not None:
                self._keep(channel.name, state.failed(error, now))
                await self._write()
                log.warning(
                    "channel %s did not take %r (%d in a row), tried again in %.0f s: %s",
                    channel.name,
                    message.title,
                    state.failures + 1,
                    pause_after(state.failures + 1),
                    error,
                )
                return
            self.sent += 1
            self._keep(channel.name, state.took(message, now))
            await self._mark(channel.name, message.keys)

    async def _spoken(self, message: Message) -> Message:
        """The message with the words of the jobs that it quotes; what waits in the store has none."""
        if not message.notice.quotes:
            return message
        jobs = await quoted_by(self._store, [message.notice])
        text = insert_words(message.text, message.notice.quotes, jobs)
        return msgspec.structs.replace(message, text=text, notice=with_words(message.notice, jobs))

    def _keep(self, channel: str, state: ChannelState) -> None:
        """Of channels that nobody has any more nothing is kept."""
        known = {name: kept for name, kept in self._standing.channels.items() if name in self._names}
        self._standing = msgspec.structs.replace(self._standing, channels={**known, channel: state})

    async def _mark(self, channel: str, keys: Sequence[str]) -> None:
        """The channel has these; what all of them have needs to wait no longer."""
        finished: list[str] = []
        others: list[str] = []
        for key in keys:
            notice = self._waiting[key]
            self._waiting[key] = msgspec.structs.replace(notice, told=(*notice.told, channel))
            (finished if self._names <= {*notice.told, channel} else others).append(key)
        puts = [WAITING.put(key, self._waiting[key]) for key in others]
        await self._write_all(puts + [WAITING.drop(key) for key in finished])
        for key in finished:
            del self._waiting[key]

    async def _drop(self, keys: Sequence[str]) -> None:
        if keys:
            await self._write_all([WAITING.drop(key) for key in keys])
        for key in keys:
            del self._waiting[key]

    async def _write_all(self, puts: Sequence[Put]) -> None:
        for start in range(0, len(puts), MANY):
            await self._write(puts[start : start + MANY])

    async def _write(self, puts: Sequence[Put] = ()) -> None:
        """What is known now, with the turn renewed; refused where another courier has taken over."""
        until = self._clock.now() + TURN_SECONDS
        self._standing = msgspec.structs.replace(self._standing, holder=self._me, until=until)
        await self._commit(puts)
        written, self._version = await read_courier_state(self._store)
        if written.holder != self._me:
            raise TurnLost("another courier took over")

    async def _commit(self, puts: Sequence[Put]) -> None:
        state = COURIER.put(STATE, self._standing, self._version)
        if await try_commit(self._store, puts=[state, *puts], what="the courier's state was written") is None:
            raise TurnLost("its state could not be written")


async def sent(send: Callable[[Any], Awaitable[None]], message: object) -> str | None:
    """None when it was taken, else what was said instead, without secrets."""
    limit = asyncio.timeout(SEND_SECONDS)
    try:
        async with limit:
            await send(message)
    except asyncio.CancelledError as error:
        if _leaving():
            raise
        return _failed(error)  # something that the channel awaited was: that is no reason for us to end
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a channel raises, it is told again
        return no_answer() if limit.expired() else _failed(error)
    return None


def _leaving() -> bool:
    """Whether it is us who are cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _failed(error: BaseException) -> str:
    error = error.error if isinstance(error, Raised) else error
    return redact_text(f"{type(error).__name__}: {error}")[:500]


def no_answer() -> str:
    return f"no answer within {SEND_SECONDS:g} s"


async def channel_problems(store: Store) -> list[str]:
    """Names the channels that take nothing, in words."""
    standing, _ = await read_courier_state(store)
    return troubles(standing, len(await read_waiting(store))) if standing.channels else []


def troubles(standing: CourierState, waiting: int) -> list[str]:
    """Channels that do not work, in words, for the health report."""
    return [
        f"notify: channel {name} has failed {state.failures} times in a row, {waiting} notices wait: {state.error}"
        for name, state in sorted(standing.channels.items())
        if state.failures
    ]
