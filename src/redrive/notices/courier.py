"""Carries notices, which wait in the store until every channel has them, to the channels; one courier at a time.

A notice is written in the commit of the move it is about, so it cannot be lost, and leaves the store after its channels
took it. A message is sent twice where a process dies between sending it and noting that. A channel that fails is tried
again later and later; later messages wait behind it, and other channels do not wait.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from redrive.core import notice as rules
from redrive.core.commit import try_commit
from redrive.core.documents import WAITING, Kind
from redrive.core.job import Job
from redrive.core.notice import LONGEST_PAUSE, Message, Notice, SentMessage, Waiting
from redrive.core.redact import redact_text
from redrive.core.store import Put, Store
from redrive.engine.clock import Clock
from redrive.engine.loop import Loop
from redrive.engine.threads import CarriedError, ask
from redrive.engine.worker_registry import list_living
from redrive.errors import ConfigError

log = logging.getLogger("redrive.notify")
SIGNAL: Final = "signal:"
"""How the names of channels begin that are functions for signals."""
STATE: Final = "state"
SEND_SECONDS: Final = 10.0
TURN_SECONDS: Final = 120.0
"""A courier that writes nothing for so long is taken for dead, and another goes on."""
LOOK_SECONDS: Final = 1.0
LONG_LOOK_SECONDS: Final = 10.0
MANY: Final = 200
"""So many notices wait that looking at all of them every second would be a burden; also what one commit drops."""
MISSING: Final = 'notify.urls needs Apprise: pip install "redrive[notify]"'

Receiver = Callable[[Message], Awaitable[object] | object]
"""Takes a message, or raises or returns False where it cannot."""


class Undelivered(Exception):
    """The channel did not take a message."""


class Channel(NamedTuple):
    """A way to people, under a name that holds no secret and stays the same after a restart."""

    name: str
    send: Callable[[Message], Awaitable[None]]
    one_by_one: bool = False
    """The channel acts on pains instead of telling people, so none of them is folded into another or summed up."""


# ---- channels


def channels_of(
    urls: Sequence[str], receivers: Iterable[Receiver], environ: Mapping[str, str] | None = None
) -> list[Channel]:
    """Makes one channel of every URL and function, so that one that is down repeats nothing on the others."""
    environ = os.environ if environ is None else environ
    channels = [_by_apprise(number, url, environ) for number, url in enumerate(urls)]
    return name_apart([*channels, *(Channel(name_of(receiver), send_by(receiver)) for receiver in receivers)])


def name_apart(channels: Iterable[Channel]) -> list[Channel]:
    """Numbers channels of one name: a function that is given twice gets every message twice."""
    taken = Counter[str]()
    named = []
    for channel in channels:
        taken[channel.name] += 1
        number = taken[channel.name]
        named.append(channel if number == 1 else channel._replace(name=f"{channel.name}#{number}"))
    return named


def send_by(receiver: Callable[[Any], Any]) -> Callable[[Any], Awaitable[None]]:
    """Makes a send function of a user's function, which answers False where it does not take a message."""

    async def send(message: object) -> None:
        if await ask(receiver, message) is False:
            raise Undelivered("it answered False")

    return send


def name_of(receiver: Callable[..., Any]) -> str:
    while isinstance(receiver, partial):
        receiver = receiver.func
    named = receiver if hasattr(receiver, "__qualname__") else type(receiver)
    return f"{named.__module__}.{named.__qualname__}"


def _by_apprise(number: int, setting: str, environ: Mapping[str, str]) -> Channel:
    """Makes a channel of a URL, or of `env:NAME`. A URL holds a secret and appears in no error, log or document."""
    try:
        import apprise
    except ImportError:
        raise ConfigError(MISSING) from None
    url, variable = setting, setting.removeprefix("env:")
    if setting.startswith("env:"):
        url = environ.get(variable, "")
        if not url:
            raise ConfigError(f"notify.urls[{number}]: the environment variable {variable} is not set")
    client = apprise.Apprise(asset=_make_asset(apprise.AppriseAsset))
    with _silence("apprise"):  # it would log the URL
        known = client.add(url)
    if not known:
        raise ConfigError(f"notify.urls[{number}]: Apprise does not know this kind of URL")
    kinds = {True: apprise.NotifyType.FAILURE, False: apprise.NotifyType.INFO}

    async def send(message: Message) -> None:
        taken = await client.async_notify(
            body=message.text,
            title=message.title,
            notify_type=kinds[message.actionable],
            body_format=apprise.NotifyFormat.TEXT,  # an error's text may contain markup
        )
        if not taken:
            raise Undelivered("Apprise could not deliver it; its own log says why")

    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    return Channel(setting if setting.startswith("env:") else f"{url.partition('://')[0]}-{digest}", send)


def _make_asset(make: Callable[..., Any]) -> Any:
    """Makes Apprise's settings without redirects: a redirected post loses its body, and its answer says 200."""
    stays = {"http_redirects": False} if hasattr(make, "http_redirects") else {}  # older versions have no such option
    return make(app_id="redrive", app_desc="redrive", **stays)


@contextmanager
def _silence(name: str) -> Iterator[None]:
    """Silences a logger while the block runs."""
    logger = logging.getLogger(name)
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was


# ---- what is known of channels


class ChannelState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a channel took lately, and its failures in a row."""

    sent: tuple[SentMessage, ...] = ()
    failures: int = 0
    down_since: float | None = None
    not_before: float = 0.0
    error: str | None = None

    def pauses(self, now: float) -> bool:
        """Say whether the channel waits before its next try. A time beyond any pause is a clock's mistake."""
        return now < self.not_before <= now + LONGEST_PAUSE

    def after_success(self, message: Message, now: float) -> ChannelState:
        lately = [sent for sent in self.sent if rules.is_recent(sent, now)]
        return ChannelState(sent=(*lately, SentMessage(now, message.kind, message.alike)))

    def after_failure(self, error: str, now: float) -> ChannelState:
        failures = self.failures + 1
        since = now if self.down_since is None else self.down_since
        return ChannelState(self.sent, failures, since, now + rules.pause_after(failures), error)


class CourierState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which courier has its turn, and the state of every channel."""

    holder: str | None = None
    until: float = 0.0
    channels: dict[str, ChannelState] = {}

    def of(self, channel: str) -> ChannelState:
        return self.channels.get(channel, ChannelState())

    def taken_by_another(self, me: str, now: float) -> bool:
        """Say whether another courier has its turn. One that ends much later than any turn is a clock's mistake."""
        return self.holder not in (None, me) and now < self.until <= now + 2 * TURN_SECONDS


COURIER: Final = Kind[CourierState]("courier", CourierState)


async def read_courier_state(store: Store) -> tuple[CourierState, int]:
    kept = await COURIER.get(store, STATE)
    return (kept.value, kept.version) if kept is not None else (CourierState(), 0)


async def read_waiting(store: Store) -> list[Waiting]:
    """Reads the notices that some channel has not taken yet, in order."""
    return [(kept.key, kept.value) for kept in await WAITING.all(store)]


async def quoted_by(store: Store, notices: Iterable[Notice]) -> dict[str, Job]:
    """Reads the jobs whose words these notices quote."""
    ids = sorted({quote.job_id for notice in notices for quote in notice.quotes})
    return {job.id: job for job in await store.get(ids)} if ids else {}


# ---- the courier


class TurnLost(Exception):
    """Another courier took over, or a write was not confirmed: a later turn starts from what the store says."""


class Courier(Loop):
    """Sends waiting notices to the channels. Of all couriers of a store one works at a time, which keeps the order."""

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
        """Send what waits; return how many messages the channels took. A failure is written down, not raised."""
        waiting = dict(await read_waiting(self._store))
        self._backlog = len(waiting)
        if not waiting or not self._channels:
            return 0
        state, version = await read_courier_state(self._store)
        now = self._clock.now()
        if state.taken_by_another(self._me, now):
            return 0
        # a notice waits until the channels of all living workers have it, also those that only another process has
        names = self.names.union(*(worker.channels for worker in await list_living(self._store, now)))
        is_due = any(names <= set(notice.told) for notice in waiting.values()) or any(
            plan_messages(channel, state, waiting, now) for channel in self._channels
        )
        if not is_due:
            return 0
        turn = _CourierTurn(self._store, self._clock, self._me, self._channels, names, waiting, state, version)
        try:
            return await turn.run(self._stopping)
        except TurnLost as lost:
            log.warning("the courier's turn ended early, what is left is told later: %s", lost)
            return turn.sent


def plan_messages(channel: Channel, state: CourierState, waiting: Mapping[str, Notice], now: float) -> list[Message]:
    """Lists the messages that a channel is to be sent now."""
    known = state.of(channel.name)
    if known.pauses(now):
        return []
    untold = [(key, notice) for key, notice in waiting.items() if channel.name not in notice.told]
    return rules.plan(untold, known.sent, now, one_by_one=channel.one_by_one)


@dataclass(eq=False)
class _CourierTurn:
    """One turn of a courier, from taking it to giving it back."""

    store: Store
    clock: Clock
    me: str
    channels: Sequence[Channel]
    names: frozenset[str]
    """The channels of all processes."""
    waiting: dict[str, Notice]
    state: CourierState
    version: int
    sent: int = 0

    async def run(self, stopping: asyncio.Event) -> int:
        await self._write()  # takes the turn before any channel is called
        await self._drop([key for key, notice in self.waiting.items() if self.names <= set(notice.told)])
        for channel in self.channels:
            await self._serve(channel, stopping)
        self.state = replace(self.state, holder=None, until=0.0)
        await self._commit(())
        return self.sent

    async def _serve(self, channel: Channel, stopping: asyncio.Event) -> None:
        """Send a channel its messages in order, up to the first that is not taken."""
        for message in plan_messages(channel, self.state, self.waiting, self.clock.now()):
            if stopping.is_set():
                return
            error = await send_message(channel.send, await self._with_words(message))
            known, now = self.state.of(channel.name), self.clock.now()
            if error is not None:
                failed = known.after_failure(error, now)
                self._keep(channel.name, failed)
                await self._write()
                text = "channel %s did not take %r (%d in a row), tried again in %.0f s: %s"
                log.warning(
                    text, channel.name, message.title, failed.failures, rules.pause_after(failed.failures), error
                )
                return
            self.sent += 1
            self._keep(channel.name, known.after_success(message, now))
            await self._mark(channel.name, message.keys)

    async def _with_words(self, message: Message) -> Message:
        """Fill in the words of the jobs that a message quotes: what waits in the store has none."""
        if not message.notice.quotes:
            return message
        jobs = await quoted_by(self.store, [message.notice])
        text = rules.insert_words(message.text, message.notice.quotes, jobs)
        return replace(message, text=text, notice=rules.with_words(message.notice, jobs))

    def _keep(self, channel: str, state: ChannelState) -> None:
        """Set a channel's state, and drop those of channels that no process has any more."""
        known = {name: kept for name, kept in self.state.channels.items() if name in self.names}
        self.state = replace(self.state, channels={**known, channel: state})

    async def _mark(self, channel: str, keys: Sequence[str]) -> None:
        """Note that the channel has these notices, and drop those that all channels have."""
        for key in keys:
            self.waiting[key] = replace(self.waiting[key], told=(*self.waiting[key].told, channel))
        done = {key: self.names <= set(self.waiting[key].told) for key in keys}
        others = [WAITING.put(key, self.waiting[key]) for key in keys if not done[key]]
        await self._drop([key for key in keys if done[key]], others)

    async def _drop(self, keys: Sequence[str], others: Sequence[Put] = ()) -> None:
        """Drop notices from the store, with other writes before them, so many at a time."""
        puts = [*others, *(WAITING.drop(key) for key in keys)]
        for start in range(0, len(puts), MANY):
            await self._write(puts[start : start + MANY])
        for key in keys:
            del self.waiting[key]

    async def _write(self, puts: Sequence[Put] = ()) -> None:
        """Write the state, with the turn renewed; refused where another courier has taken over."""
        self.state = replace(self.state, holder=self.me, until=self.clock.now() + TURN_SECONDS)
        await self._commit(puts)
        written, self.version = await read_courier_state(self.store)
        if written.holder != self.me:
            raise TurnLost("another courier took over")

    async def _commit(self, puts: Sequence[Put]) -> None:
        state = COURIER.put(STATE, self.state, self.version)
        if await try_commit(self.store, puts=[state, *puts], what="the courier's state was written") is None:
            raise TurnLost("its state could not be written")


async def send_message(send: Callable[[Any], Awaitable[None]], message: object) -> str | None:
    """Sends one message; None when the channel took it, else its error without secrets."""
    limit = asyncio.timeout(SEND_SECONDS)
    try:
        async with limit:
            await send(message)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling() > 0:
            raise
        return _describe(error)  # what the channel awaited was cancelled, not the courier
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a channel raises, the message is sent again
        return f"no answer within {SEND_SECONDS:g} s" if limit.expired() else _describe(error)
    return None


def _describe(error: BaseException) -> str:
    error = error.error if isinstance(error, CarriedError) else error
    return redact_text(f"{type(error).__name__}: {error}")[:500]


async def channel_problems(store: Store) -> list[str]:
    """Names the channels that take nothing, in words."""
    courier, _ = await read_courier_state(store)
    waiting = len(await read_waiting(store)) if courier.channels else 0
    return [
        f"notify: channel {name} has failed {state.failures} times in a row, {waiting} notices wait: {state.error}"
        for name, state in sorted(courier.channels.items())
        if state.failures
    ]
