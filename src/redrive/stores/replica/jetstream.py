"""JetStreamLog: keeps the log of a fleet on NATS JetStream.

Of two streams per namespace, `RD_<ns>` holds the messages, and `RD_<ns>_SNAP` the pieces of snapshots and their
manifest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from redrive.stores.replica.log import (
    Answered,
    Fill,
    LogChanged,
    LogEntry,
    LogFull,
    LogInfo,
    LogSnapshot,
    LogUnavailable,
    Manifest,
    ManifestMoved,
)
from redrive.stores.replica.nats_address import Address, read_address
from redrive.stores.replica.nats_api import (
    MOVED,
    NO_MESSAGE,
    Ack,
    JetStreamAnswer,
    JetStreamRefused,
    StateInfo,
    Stored,
    StoredAnswer,
    StreamInfo,
    StreamState,
    api,
    decode,
    encode,
    is_without_leader,
    read_header,
)
from redrive.stores.replica.nats_connection import ASK_SECONDS, Connection
from redrive.stores.replica.nats_consumer import Consumer
from redrive.stores.replica.nats_streams import (
    Names,
    check_version,
    ensure,
    generation_of,
    judge_durability,
    stream_info,
)

log = logging.getLogger("redrive.store")
OPEN_SECONDS: Final = 30.0
REMAKE_SECONDS: Final = 10.0
"""How long a consumer is made anew before the caller learns of the failure."""
HEADERS_BYTES: Final = 1_024
PIECE_BYTES: Final = 512 * 1024
TRIES: Final = 3
SLOW_SECONDS: Final = 10.0
"""For pieces and purges, which may take a server longer."""
_read_ack: Final = partial(decode, Ack)
DEAF_SECONDS: Final = 6.0
"""A server whose JetStream answers nothing for so long is left, where other servers are known."""


class JetStreamLog:
    """Holds one process's connection to a log on JetStream."""

    def __init__(self, url: str | Address) -> None:
        self.address = url if isinstance(url, Address) else read_address(url)
        self.url = self.address.public
        self._names = Names(self.address.namespace)
        self._connection = Connection(self.address)
        self._generation = ""
        self._max_message = 0
        self._last: LogEntry | None = None
        """The newest entry that a feed has handed on."""
        self._written = 0
        """The version of the manifest that this process wrote last."""
        self._consumers: set[Consumer] = set()
        self._deaf_since: float | None = None
        """When the oldest question was asked since which JetStream has answered nothing."""
        self._leaving: asyncio.Task[None] | None = None

    # -- life

    async def open(self) -> LogInfo:
        until = time.monotonic() + OPEN_SECONDS
        connection = self._connection
        await connection.open(OPEN_SECONDS)
        check_version(connection.version, self.url)
        info = await ensure(connection, self._names, until)
        self._generation = generation_of(info)
        self._max_message = connection.client.max_payload - HEADERS_BYTES
        level, advice = judge_durability(self.address, connection.version, int(info.config.get("num_replicas", 1)))
        first = max(1, info.state.first_seq)
        return LogInfo(self.url, level, self._max_message, self._generation, first, info.state.last_seq, advice)

    async def close(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            await asyncio.gather(self._leaving, return_exceptions=True)
        for consumer in list(self._consumers):
            await consumer.close()
        await self._connection.close()

    async def _ask(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, seconds: float | None = ASK_SECONDS
    ) -> bytes:
        """Ask JetStream. A server whose JetStream is silent for long is left: it alone may be cut off."""
        if self._deaf_since is None:
            self._deaf_since = time.monotonic()
        try:
            answer = await self._connection.ask(subject, data, headers, seconds)
        except (LogUnavailable, asyncio.CancelledError):
            self._leave_deaf()
            raise
        if is_without_leader(answer):
            self._leave_deaf()
        else:
            self._deaf_since = None
        return answer

    def _leave_deaf(self) -> None:
        since = self._deaf_since
        if since is not None and time.monotonic() - since > DEAF_SECONDS and self._leaving is None:
            self._deaf_since = None
            self._leaving = asyncio.ensure_future(self._connection.leave("its JetStream does not answer"))
            self._leaving.add_done_callback(self._left)

    def _left(self, leaving: asyncio.Task[None]) -> None:
        self._leaving = None
        if not leaving.cancelled() and (error := leaving.exception()) is not None:
            log.warning("a server of %s could not be left: %r", self.url, error)

    # -- messages

    def send(self, id: str, data: bytes, answered: Answered) -> bool:
        headers = f"NATS/1.0\r\nNats-Msg-Id: {id}\r\nNats-Expected-Stream: {self._names.log}\r\n\r\n"
        return self._connection.send(self._names.subject, data, headers.encode(), _read_ack, answered)

    async def append(self, id: str, data: bytes) -> int:
        return (await self._publish(self._names.subject, self._names.log, id, data, seconds=None)).seq

    async def _publish(
        self, subject: str, stream: str, id: str, data: bytes, *, expect: int | None = None, seconds: float | None
    ) -> Ack:
        headers = {"Nats-Msg-Id": id, "Nats-Expected-Stream": stream}
        if expect is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expect)
        return decode(Ack, await self._ask(subject, data, headers, seconds))

    async def feed(self, after: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        while True:
            consumer = await self._consumer(after)
            try:
                while (entries := await consumer.next()) is not None:
                    self._last = entries[-1]
                    after = self._last.position
                    yield entries
            finally:
                self._consumers.discard(consumer)
                await consumer.close()
            if consumer.broken != "the connection was lost":
                log.warning("the feed of %s is made anew: %s", self.url, consumer.broken)

    async def _consumer(self, after: int) -> Consumer:
        """Make a consumer, once it is sure that the log is still the one that was read so far."""
        until = time.monotonic() + REMAKE_SECONDS
        while True:
            consumer = Consumer(self._connection, self._names.log, after)
            self._consumers.add(consumer)
            try:
                await self._refuse_other_log(after)
                await consumer.open()
                return consumer
            except BaseException as error:
                self._consumers.discard(consumer)
                await consumer.close()
                if not isinstance(error, LogUnavailable) or time.monotonic() >= until:
                    raise
            await asyncio.sleep(0.1)

    async def _refuse_other_log(self, after: int) -> None:
        """Raise LogChanged where the log was made anew, went back, or has another message at this position."""
        info = await stream_info(self._connection, self._names.log)
        if generation_of(info) != self._generation:
            raise LogChanged.made_anew(self.url, generation_of(info), self._generation)
        if info.state.last_seq < after:
            raise LogChanged.went_back(self.url, f"it ends at message {info.state.last_seq}, {after} was executed here")
        last = self._last
        if last is None or last.position != after or after < info.state.first_seq:
            return
        entry = await self.entry(after)
        if entry is not None and entry.id != last.id:
            raise LogChanged.replaced(self.url, after)

    async def end(self) -> int:
        return (await self._state()).last_seq

    async def first(self) -> int:
        return max(1, (await self._state()).first_seq)

    async def _state(self) -> StreamState:
        return decode(StateInfo, await self._ask(api(f"STREAM.INFO.{self._names.log}"), b"")).state

    async def entry(self, position: int) -> LogEntry | None:
        stored = await self._stored(self._names.log, {"seq": position}) if position > 0 else None
        if stored is None:
            return None
        return LogEntry(stored.seq, read_header(stored.hdrs, "Nats-Msg-Id"), stored.data, read_time(stored.time))

    async def _stored(self, stream: str, which: dict[str, object], seconds: float = 2.0) -> Stored | None:
        """Read one message from the leader."""
        try:
            answer = await self._ask(api(f"STREAM.MSG.GET.{stream}"), encode(which), seconds=seconds)
            return decode(StoredAnswer, answer).message
        except JetStreamRefused as error:
            if error.number == NO_MESSAGE:
                return None
            raise

    async def fill(self) -> Fill:
        info = await stream_info(self._connection, self._names.log)
        limit = int(info.config.get("max_bytes", -1))
        return Fill(info.state.bytes, limit if limit > 0 else None)

    async def trim(self, before: int) -> None:
        last = await self.end()
        if min(before, last) > 1:
            await self._purge(self._names.log, {"seq": min(before, last)})

    async def _purge(self, stream: str, which: dict[str, object]) -> None:
        decode(JetStreamAnswer, await self._ask(api(f"STREAM.PURGE.{stream}"), encode(which), seconds=SLOW_SECONDS))

    # -- snapshots

    async def manifest(self) -> Manifest | None:
        stored = await self._stored(self._names.snapshots, {"last_by_subj": self._names.manifest})
        if stored is None:
            return None
        return msgspec.structs.replace(msgspec.json.decode(stored.data, type=Manifest), version=stored.seq)

    async def put_manifest(self, manifest: Manifest) -> None:
        """Write the manifest. Where the answer is lost, look whether the current manifest is this one."""
        data, id = msgspec.json.encode(manifest), f"manifest-{secrets.token_hex(8)}"
        try:
            ack = await self._keep(self._names.manifest, id, data, SLOW_SECONDS, manifest.version)
            self._written = ack.seq
        except LogUnavailable as error:
            current = await self.manifest()
            if current is not None and current.newest.name == manifest.newest.name:
                self._written = current.version
            elif isinstance(error, JetStreamRefused) and error.number in MOVED:
                raise ManifestMoved from error
            else:
                raise

    async def _keep(self, subject: str, id: str, data: bytes, seconds: float, expect: int | None = None) -> Ack:
        """Publish to the stream of snapshots."""
        stream = self._names.snapshots
        try:
            return await self._publish(subject, stream, id, data, expect=expect, seconds=seconds)
        except LogFull as error:
            raise LogUnavailable(f"the stream {stream} is full ({error}): raise snapshot_bytes in the URL") from error

    async def put_pieces(self, name: str, pieces: AsyncIterator[bytes]) -> int:
        await self._drop_abandoned()
        number = 0
        room = min(PIECE_BYTES, self._max_message)
        try:
            async for piece in pieces:
                for start in range(0, len(piece), room):
                    await self._put_piece(name, number, piece[start : start + room])
                    number += 1
        except BaseException:
            with contextlib.suppress(LogUnavailable):
                await self._purge(self._names.snapshots, {"filter": f"{self._names.pieces}.{name}.>"})
            raise
        return number

    async def _put_piece(self, name: str, number: int, data: bytes) -> None:
        subject = f"{self._names.pieces}.{name}.{number}"
        for left in reversed(range(TRIES)):
            try:
                await self._keep(subject, f"{name}.{number}", data, SLOW_SECONDS / TRIES)
                return
            except LogUnavailable:
                if not left:
                    raise

    async def pieces(self, snapshot: LogSnapshot) -> AsyncIterator[bytes]:
        for number in range(snapshot.pieces):
            subject = f"{self._names.pieces}.{snapshot.name}.{number}"
            stored = await self._stored(self._names.snapshots, {"last_by_subj": subject}, SLOW_SECONDS)
            if stored is None:
                raise LookupError(f"piece {number} of {snapshot.pieces} is missing")
            yield stored.data

    async def drop_pieces(self, keep: Sequence[str]) -> None:
        """Remove pieces older than the manifest that this process wrote: a newer one may be in the making."""
        await self._drop(set(keep), self._written)

    async def _drop_abandoned(self) -> None:
        """Remove the pieces of snapshots that were never finished, so that they do not fill the stream."""
        manifest = await self.manifest()
        if manifest is not None:
            await self._drop(set(manifest.names), manifest.version)

    async def _drop(self, keep: set[str], before: int) -> None:
        names = await self._snapshot_names() if before else set()
        for name in names - keep:
            await self._purge(self._names.snapshots, {"filter": f"{self._names.pieces}.{name}.>", "seq": before})

    async def _snapshot_names(self) -> set[str]:
        request = encode({"subjects_filter": f"{self._names.pieces}.*.>"})
        answer = await self._ask(api(f"STREAM.INFO.{self._names.snapshots}"), request, seconds=SLOW_SECONDS)
        subjects = decode(StreamInfo, answer).state.subjects or {}
        return {subject.split(".")[3] for subject in subjects}


def read_time(time: str) -> float:
    """Read a server's RFC 3339 time, which has nanoseconds."""
    whole, _, rest = time.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")
