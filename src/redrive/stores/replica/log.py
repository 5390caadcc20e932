"""Declares the log of a fleet's commands: one totally ordered, durable log per namespace.

A log knows nothing of jobs. It appends messages, feeds them in order, and keeps snapshots.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Literal, Protocol

import msgspec

Durability = Literal["synced", "replicated", "unsynced"]


class LogInfo(msgspec.Struct, frozen=True):
    """Says what an opened log promises, and where it begins and ends."""

    url: str
    """For people: without credentials."""
    durability: Durability
    max_message: int
    generation: str
    """Made once with the log. Another generation means that the log was made anew."""
    first: int
    last: int
    advice: str = ""
    """How to get a better durability; empty where there is none."""


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One message of the log."""

    position: int
    id: str
    data: bytes
    at: float | None = None
    """When the log took it, by the log's own clock; None where it has none."""


class Fill(msgspec.Struct, frozen=True):
    """How full the log is."""

    bytes: int
    limit: int | None = None

    @property
    def share(self) -> float:
        return self.bytes / self.limit if self.limit else 0.0


class LogSnapshot(msgspec.Struct, frozen=True):
    """A stored copy of a replica, as its manifest names it."""

    name: str
    position: int
    chain: bytes
    generation: str
    level: int
    sha256: str
    size: int
    pieces: int
    made_at: float


class Manifest(msgspec.Struct, frozen=True):
    """The newest snapshot and the one before it. Only these two may be used, and only older messages are trimmed."""

    newest: LogSnapshot
    before: LogSnapshot | None = None
    version: int = 0
    """The log's own number of this manifest, for the compare-and-set."""

    @property
    def names(self) -> list[str]:
        """The names of the snapshots that must be kept."""
        return [snapshot.name for snapshot in (self.newest, self.before) if snapshot is not None]


class LogFull(Exception):
    """The log takes no more: nothing was appended."""


class LogUnavailable(Exception):
    """The log cannot be reached now, or has no leader."""


Answered = Callable[[LogUnavailable | LogFull | None], None]
"""Is called with None once the log has a message, or with the reason why the log may not have it."""


class LogChanged(Exception):
    """The log is not the one that was opened. The message says what to do."""

    @classmethod
    def made_anew(cls, url: str, generation: str, was: str) -> LogChanged:
        return cls(
            f"{url} was made anew while it was in use (generation {generation}, was {was}): move this replica's file"
            " away to join the new log, or restore the old one"
        )

    @classmethod
    def went_back(cls, url: str, why: str) -> LogChanged:
        advice = "Restore the log, or move this replica's file away to accept what is lost"
        return cls(f"{url} went back: {why}. {advice}")

    @classmethod
    def replaced(cls, url: str, position: int) -> LogChanged:
        return cls(
            f"message {position} of {url} is not the one that was executed here: the log was changed."
            " Move this replica's file away to accept the log as it is now"
        )


class ManifestMoved(Exception):
    """Another process has written a newer manifest."""


class Log(Protocol):
    """Keeps the messages of one namespace. All methods are called from the event loop that called `open`."""

    url: str

    async def open(self) -> LogInfo:
        """Connect, wait for a leader, make the log where it does not exist, refuse a server that lacks what we need."""

    async def close(self) -> None:
        """Close every connection."""

    def send(self, id: str, data: bytes, answered: Answered) -> bool:
        """Begin an append in this step; False where the log cannot do that now.

        `answered` is called with None once the log has the message, with an error where it refuses it or the answer is
        lost. An answer that does not come is not noticed here.
        """

    async def append(self, id: str, data: bytes) -> int:
        """Return the position of a message once it is durable. The same id soon again means the same message."""

    def feed(self, after: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        """Yield all messages after a position, in order, for ever, several at a time. The caller closes the feed."""

    async def end(self) -> int:
        """Return the last position, as the leader knows it."""

    async def entry(self, position: int) -> LogEntry | None:
        """Return one message, or None where it was trimmed or never existed."""

    async def first(self) -> int:
        """Return the first position that is still kept."""

    async def fill(self) -> Fill:
        """Return how many bytes of how many are used."""

    async def manifest(self) -> Manifest | None:
        """Return the current manifest, if there is one."""

    async def put_pieces(self, name: str, pieces: AsyncIterator[bytes]) -> int:
        """Store the pieces of a snapshot under its name, and return their number."""

    def pieces(self, snapshot: LogSnapshot) -> AsyncIterator[bytes]:
        """Yield the pieces of a snapshot, in order."""

    async def put_manifest(self, manifest: Manifest) -> None:
        """Write a manifest if the current one still has the version that it names; raise ManifestMoved otherwise."""

    async def drop_pieces(self, keep: Sequence[str]) -> None:
        """Remove the pieces of all snapshots but these."""

    async def trim(self, before: int) -> None:
        """Remove the messages before a position, never the newest one."""
