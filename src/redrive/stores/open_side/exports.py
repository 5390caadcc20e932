"""Writes dead letters and retries into streams for other programs, one message per dead letter.

A message is replaced or removed only by its sequence, so that a process that stood still spoils nothing newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from redrive.core.job import Job
from redrive.stores.open_side import streams
from redrive.stores.open_side.names import OpenNames, read_job_id
from redrive.stores.replica.log import LogUnavailable
from redrive.stores.replica.nats_api import (
    MOVED,
    NO_MESSAGE,
    NO_STREAM,
    Ack,
    JetStreamAnswer,
    JetStreamRefused,
    Stored,
    StoredAnswer,
    StreamInfo,
    api,
    decode,
    encode,
    read_header,
)
from redrive.stores.replica.nats_connection import Connection
from redrive.stores.replica.nats_streams import find_stream

VERSION: Final = "Redrive-Version"
ROOM: Final = 8 * 1024
"""Bytes of a message that are left to its headers."""
TRIES: Final = 5
SLOW_SECONDS: Final = 10.0


class Exports:
    """Writes into the streams of dead letters and of retries."""

    def __init__(self, connection: Connection, names: OpenNames) -> None:
        self._connection = connection
        self._names = names
        self._known: set[str] = set()

    @property
    def room(self) -> int:
        """How large the body of a message may be."""
        return self._connection.client.max_payload - ROOM

    # -- dead letters

    async def list_subjects(self) -> dict[str, set[str]]:
        """List the subjects of all dead letters in the streams, by the ids of their jobs."""
        subjects: dict[str, set[str]] = {}
        self._known.clear()
        for stream in await streams.list_dead_letter_streams(self._connection, self._names):
            self._known.add(stream)
            for subject in await self._subjects(stream):
                subjects.setdefault(read_job_id(subject), set()).add(subject)
        return subjects

    async def _subjects(self, stream: str) -> list[str]:
        subjects: list[str] = []
        while True:
            request = encode({"subjects_filter": ">", "offset": len(subjects)})
            answer = await self._connection.ask(api(f"STREAM.INFO.{stream}"), request, seconds=SLOW_SECONDS)
            page = decode(StreamInfo, answer).state.subjects or {}
            subjects += page
            if not page or len(subjects) % 100_000:
                return subjects

    async def put(self, job: Job, body: bytes, headers: Mapping[str, str]) -> None:
        """Write a dead letter, unless the stream has a newer version of it. Raises LogFull where the stream is full."""
        stream, subject = self._names.dead_letter_stream(job.agent), self._names.dead_letter_subject(job)
        await self._ensure_stream(stream, job.agent)
        for left in reversed(range(TRIES)):
            stored = await self._stored(stream, subject)
            if stored is not None and read_version(stored) >= job.version:
                return
            expect = stored.seq if stored is not None else 0
            try:
                await self._publish(stream, subject, body, {**headers, VERSION: str(job.version)}, expect)
                return
            except JetStreamRefused as error:
                if error.number not in MOVED or not left:
                    raise

    async def _ensure_stream(self, stream: str, agent: str | None) -> None:
        """Make the stream of an agent's first dead letter, limited as the stream of no agent is."""
        if stream in self._known:
            return
        like = await find_stream(self._connection, self._names.dead_letter_stream(None))
        tasks = await find_stream(self._connection, self._names.tasks)
        limit = max(like.config.get("max_msgs", 0), 0) if like is not None else 0
        replicas = tasks.config.get("num_replicas", 1) if tasks is not None else 1
        config = streams.configure_dead_letters(
            self._names, agent, replicas, limit if limit > 0 else streams.DEAD_LETTERS
        )
        await streams.ensure(self._connection, config)
        self._known.add(stream)

    async def drop(self, subject: str, version: int | None) -> None:
        """Remove a dead letter that shows this version of its job or an older one; None means any version."""
        stream = self._stream_of(subject)
        stored = await self._stored(stream, subject)
        if stored is None or (version is not None and read_version(stored) > version):
            return
        try:
            request = encode({"seq": stored.seq})
            decode(JetStreamAnswer, await self._connection.ask(api(f"STREAM.MSG.DELETE.{stream}"), request))
        except JetStreamRefused:
            if await self._stored(stream, subject) is not None:
                raise

    def _stream_of(self, subject: str) -> str:
        return self._names.dead_letter_prefix + subject.split(".")[2]

    # -- retries

    async def publish_retry(self, job: Job, id: str, body: bytes, headers: Mapping[str, str]) -> None:
        own = {VERSION: str(job.version), "Nats-Msg-Id": id}
        await self._publish(self._names.retries, self._names.retry_subject(job), body, {**headers, **own})

    async def list_retried(self) -> set[str]:
        """Return the ids of the jobs whose retries are in the stream."""
        return {read_job_id(subject) for subject in await self._subjects(self._names.retries)}

    async def forget_retries(self, id: str) -> None:
        """Remove the retries of a job whose contents are gone."""
        request = encode({"filter": f"{self._names.namespace}.retry.*.{id}"})
        answer = await self._connection.ask(api(f"STREAM.PURGE.{self._names.retries}"), request, seconds=SLOW_SECONDS)
        decode(JetStreamAnswer, answer)

    # -- messages

    async def _publish(
        self, stream: str, subject: str, body: bytes, headers: Mapping[str, str], expect: int | None = None
    ) -> None:
        sent = {name: " ".join(value.split()) for name, value in headers.items()} | {"Nats-Expected-Stream": stream}
        if expect is not None:
            sent["Nats-Expected-Last-Subject-Sequence"] = str(expect)
        decode(Ack, await self._connection.ask(subject, body, sent, SLOW_SECONDS))

    async def _stored(self, stream: str, subject: str) -> Stored | None:
        request = encode({"last_by_subj": subject})
        try:
            return decode(StoredAnswer, await self._connection.ask(api(f"STREAM.MSG.GET.{stream}"), request)).message
        except JetStreamRefused as error:
            if error.number == NO_MESSAGE:
                return None
            if error.number == NO_STREAM:
                self._known.discard(stream)
                raise LogUnavailable(f"the stream {stream} is gone; redrive makes it again") from error
            raise


def read_version(stored: Stored) -> int:
    version = read_header(stored.hdrs, VERSION)
    return int(version) if version.isdigit() else 0
