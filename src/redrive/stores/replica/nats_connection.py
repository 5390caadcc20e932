"""Keeps one connection to NATS for ever, and asks questions on it.

nats-py reconnects by itself, except where a server ends the connection with an error, or where closing the old socket
never ends. There another client takes over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from redrive.errors import ConfigError, StoreRefused
from redrive.stores.replica.log import Answered, LogFull, LogUnavailable
from redrive.stores.replica.nats_address import Address, read_address

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from redrive.stores.replica.nats_client import Client, Heard

log = logging.getLogger("redrive.store")
MISSING: Final = 'nats:// needs the package nats-py: pip install "redrive[nats]"'
CONNECT_SECONDS: Final = 20.0
ASK_SECONDS: Final = 2.0
PING_SECONDS: Final = 2
"""A server that answers none of three pings is left for another."""
AGAIN_SECONDS: Final = 0.1
STUCK_SECONDS: Final = 15.0
"""After so many seconds without a connection another client takes over."""
CLOSE_SECONDS: Final = 2.0
WORDS_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.1
PORT: Final = ":4222"
"""The port that nats-py adds to a seed without one."""


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    """Keep a connection to the servers of a URL while the block runs."""
    connection = Connection(read_address(url))
    try:
        await connection.open(CONNECT_SECONDS)
        yield connection
    finally:
        await connection.close()


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Turn errors of nats-py into LogUnavailable."""
    from nats.errors import Error

    try:
        yield
    except Error as error:
        raise LogUnavailable(str(error)) from error


class Connection:
    """Asks a NATS server, and listens to it. All methods belong to one event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.listeners: set[Callable[[], None]] = set()
        """Called when the connection is lost."""
        self._client: Client | None = None
        self._kept: list[tuple[str, str, Callable[[Msg], Awaitable[None]]]] = []
        self._inbox = ""
        self._next = 0
        self._answers: dict[str, Callable[[bytes | LogUnavailable], None]] = {}
        """What to call with the answer to each question, or with the reason why none will come."""
        self._connected = asyncio.Event()
        self._lost = asyncio.Event()
        self._turned = asyncio.Event()
        self._closing = False
        self._watcher: asyncio.Task[None] | None = None
        self._problem: str | None = None
        self._repeated = 0

    # -- life

    async def open(self, seconds: float) -> None:
        """Connect to one of the seeds; log every few seconds what is missing."""
        connecting = asyncio.ensure_future(self._connect())
        try:
            await self._wait_for(connecting, seconds)
        except BaseException:
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            raise
        self._watcher = asyncio.ensure_future(self._watch())

    async def _wait_for(self, connecting: asyncio.Future[None], seconds: float) -> None:
        url, began = self.address.public, time.monotonic()
        logged = began
        while not connecting.done():
            await asyncio.wait([connecting], timeout=LOOK_SECONDS)
            now = time.monotonic()
            if self._problem is not None and "authorization" in self._problem.lower():
                raise StoreRefused(f"{url} refuses these credentials ({self._problem}): check the URL and its creds")
            if now - began >= seconds and not connecting.done():
                raise LogUnavailable(
                    f"no server of {url} answers within {seconds:.0f} s ({self._problem}):"
                    " check that it runs, its address, and that this host may reach it"
                )
            if now - logged >= WORDS_SECONDS:
                logged = now
                log.warning("waiting for a server of %s: %s", url, self._problem)
        await connecting

    async def _connect(self, avoid: str = "") -> None:
        client = self._client = make_client(self.address)
        await client.connect(
            _in_any_order(self.address.seeds, avoid),
            dont_randomize=True,
            name="redrive",
            error_cb=self._on_error,
            disconnected_cb=self._bound(client, self._on_lost),
            reconnected_cb=self._bound(client, self._on_reconnected),
            closed_cb=self._bound(client, self._on_closed),
            reconnect_time_wait=AGAIN_SECONDS,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            ping_interval=PING_SECONDS,
            user=self.address.user if self.address.password is not None else None,
            password=self.address.password,
            token=self.address.user if self.address.password is None else None,
            user_credentials=self.address.creds,
            tls=self.address.context(),
        )
        self._inbox = client.new_inbox()
        await client.hear(f"{self._inbox}.*", self._on_answer)
        for subject, queue, hear in self._kept:
            await client.subscribe(subject, queue, hear, pending_bytes_limit=0)
        await self._on_reconnected()

    async def close(self) -> None:
        self._closing = True
        self._forget("the log is closed")
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._drop_client()

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await client.close()
        except TimeoutError:
            log.warning("the connection to %s does not close; it is left to its end", self.address.public)

    async def _watch(self) -> None:
        """Replace a client that does not come back by itself."""
        while True:
            await self._lost.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STUCK_SECONDS):
                    await self._turned.wait()
            self._turned.clear()
            if not self._connected.is_set():
                await self._replace()

    async def _replace(self, avoid: str = "") -> None:
        await self._drop_client()
        try:
            async with asyncio.timeout(STUCK_SECONDS):
                await self._connect(avoid)
        except Exception as error:  # noqa: BLE001 - the next try follows
            self._report(f"no connection: {error!r}")
            await asyncio.sleep(AGAIN_SECONDS)

    async def leave(self, why: str) -> None:
        """Change to another server of the cluster, where one is known: this one is cut off from the others."""
        if len(self.address.seeds) < 2 or not self._connected.is_set() or self._closing:
            return
        url = self.client.connected_url
        log.warning("leaving a server of %s for another one: %s", self.address.public, why)
        await self._on_lost()
        await self._replace(url.netloc.rpartition("@")[2] if url is not None else "")

    # -- events of the client

    def _bound(self, client: Client, act: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Listen to a client only as long as it is the one in use."""

        async def heard() -> None:
            if self._client is client:
                await act()

        return heard

    async def _on_error(self, error: Exception) -> None:
        self._report(f"{error}" or repr(error))

    async def _on_lost(self) -> None:
        if not self._closing:
            self._report("the connection is lost")
        self._connected.clear()
        self._turned.clear()
        self._lost.set()
        self._forget("the connection was lost")
        for listener in list(self.listeners):
            listener()

    async def _on_reconnected(self) -> None:
        if self._problem is not None:
            log.warning("%s answers again, after %d more errors", self.address.public, self._repeated)
        self._problem, self._repeated = None, 0
        self._lost.clear()
        self._connected.set()
        self._turned.set()

    async def _on_closed(self) -> None:
        self._connected.clear()
        self._lost.set()
        self._turned.set()

    def _report(self, problem: str) -> None:
        """Log the first error, and count the others until the server answers."""
        if self._problem is None:
            log.warning("%s: %s; connecting until it answers", self.address.public, problem)
        else:
            self._repeated += 1
        self._problem = problem

    def _forget(self, why: str) -> None:
        waiting, self._answers = self._answers, {}
        for hear in waiting.values():
            hear(LogUnavailable(why))

    # -- asking

    @property
    def client(self) -> Client:
        if self._client is None:
            raise LogUnavailable(f"{self.address.public} is not connected")
        return self._client

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    @property
    def version(self) -> str:
        """The version of the server."""
        version = self.client.connected_server_version
        try:
            return f"{version.major}.{version.minor}.{version.patch}"
        except ValueError:
            raise StoreRefused(f"{self.address.public} does not say which version of nats-server it is") from None

    async def ready(self) -> None:
        """Wait a moment for the connection."""
        if not self._connected.is_set():
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    await self._connected.wait()
            except TimeoutError:
                raise LogUnavailable(f"{self.address.public} is not connected ({self._problem})") from None

    async def ask(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, seconds: float | None = ASK_SECONDS
    ) -> bytes:
        """Send a request and return its answer. Raises LogUnavailable without one."""
        from nats.errors import Error, MaxPayloadError

        if not self._connected.is_set():
            await self.ready()
        self._next += 1
        number = str(self._next)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[number] = partial(_answer, future)
        try:
            await self.client.publish(subject, data, f"{self._inbox}.{number}", headers)  # type: ignore[arg-type]
            async with asyncio.timeout(seconds):
                return await future
        except MaxPayloadError:
            raise ValueError("larger than the server takes") from None
        except TimeoutError:
            raise LogUnavailable(f"no answer within {seconds:.0f} s") from None
        except Error as error:
            raise LogUnavailable(str(error)) from error
        finally:
            self._answers.pop(number, None)

    def send(
        self, subject: str, data: bytes, headers: bytes, check: Callable[[bytes], object], answered: Answered
    ) -> bool:
        """Write a request in this step; return False where there is no connection now.

        `answered` is called with what `check` raises on the answer, or with None; also where the connection is lost.
        """
        if not self._connected.is_set():
            return False
        self._next += 1
        number = str(self._next)
        if not self.client.send(subject, data, f"{self._inbox}.{number}", headers):
            return False
        self._answers[number] = partial(_check, check, answered)
        return True

    def _on_answer(self, message: Heard) -> None:
        hear = self._answers.pop(message.subject.rpartition(".")[2], None)
        if hear is None:
            return
        if message.headers and message.headers.get("Status") == "503":
            hear(LogUnavailable("no server answers: there is no leader, or JetStream is off"))
        else:
            hear(message.data)

    async def hear(self, hear: Callable[[Heard], None]) -> tuple[str, Subscription]:
        """Make an inbox `NAME.*` whose messages go to a plain function, until this connection is lost for good."""
        await self.ready()
        inbox = self.client.new_inbox()
        with translate_errors():
            return inbox, await self.client.hear(f"{inbox}.*", hear)

    async def listen(self, hear: Callable[[Msg], Awaitable[None]]) -> str:
        """Make an inbox `NAME.*` for ever."""
        await self.ready()
        inbox = self.client.new_inbox()
        await self.subscribe(f"{inbox}.*", hear)
        return inbox

    async def subscribe(self, subject: str, hear: Callable[[Msg], Awaitable[None]], queue: str = "") -> None:
        """Subscribe for ever, also on a client that takes over."""
        with translate_errors():
            await self.client.subscribe(subject, queue, hear, pending_bytes_limit=0)
        self._kept.append((subject, queue, hear))

    async def tell(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send a message whose answers go to an inbox."""
        with translate_errors():
            await self.client.publish(subject, data, reply)


def _answer(future: asyncio.Future[bytes], answer: bytes | LogUnavailable) -> None:
    if future.done():
        return
    if isinstance(answer, LogUnavailable):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _check(check: Callable[[bytes], object], answered: Answered, answer: bytes | LogUnavailable) -> None:
    if isinstance(answer, LogUnavailable):
        answered(answer)
        return
    try:
        check(answer)
    except (LogFull, LogUnavailable) as error:
        answered(error)
    else:
        answered(None)


def _in_any_order(seeds: Sequence[str], avoid: str) -> list[str]:
    """Shuffle the seeds, with the one to avoid last."""
    shuffled = random.sample(list(seeds), len(seeds))
    return sorted(shuffled, key=lambda seed: seed.partition("://")[2] in (avoid, avoid.removesuffix(PORT)))


def make_client(address: Address) -> Client:
    try:
        from redrive.stores.replica.nats_client import Client
    except ImportError:
        raise ConfigError(MISSING) from None
    return Client(wants_tls=address.tls)
