"""What one message of the log holds: commands that waited together, who issued them, and what the issuer knew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from redrive.core.commands import Command, Ticket
from redrive.errors import StoreError

LEVEL: Final = 1
"""The level of the Machine that this code replays. Every change of what a command does raises it."""
PACKED_BYTES: Final = 256 * 1024
PACKED_COMMANDS: Final = 1_000
"""A message takes no more of what waits than this."""


class CommandItem(msgspec.Struct, frozen=True, array_like=True, tag="Item", gc=False):
    """One command, and the ticket of a client that may send it again by another way."""

    command: Command
    ticket: Ticket | None = None


class Level(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From here on commands are executed as this level says."""

    number: int


class Halt(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Nothing is claimed from here on, because replicas differ; `why=None` goes on."""

    why: str | None


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first message of a log into which the jobs of a file are moved. They come as a snapshot behind it."""

    token: str


class JobsMoved(msgspec.Struct, frozen=True, array_like=True, tag="Moved"):
    """The jobs of this log are elsewhere from here on. No replica passes it, unless a job ran at this place."""

    to: str


Own = Level | Halt | Arrived | JobsMoved
"""What is about the log itself, and no command of the Machine."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One message."""

    ticket: Ticket
    """Of the replica that issued it: its number here, and below which it sends none again."""
    level: int
    """The active level where the issuer was: not its own, which the others may not have yet."""
    generation: str
    position: int
    chain: bytes
    """Where the issuer was in the log, and its hash over all outcomes so far: other replicas must have the same."""
    items: tuple[CommandItem | Own, ...]


class EnvelopePart(msgspec.Struct, frozen=True, array_like=True, tag="Part"):
    """A piece of an envelope that is larger than the log takes at once. The last piece executes the whole."""

    ticket: Ticket
    number: int
    of: int
    data: bytes


Message = Envelope | EnvelopePart

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final[Callable[[bytes], Message]] = msgspec.msgpack.Decoder(Message).decode
_decode_item: Final = msgspec.msgpack.Decoder(CommandItem | Own).decode
_decode_envelope: Final = msgspec.msgpack.Decoder(Envelope).decode


class _Packed(msgspec.Struct, frozen=True, array_like=True, tag="Envelope"):
    """An Envelope whose items are encoded already, each by the caller that issued it."""

    ticket: Ticket
    level: int
    generation: str
    position: int
    chain: bytes
    items: list[msgspec.Raw]


def item(command: Command | Own, ticket: Ticket | None = None) -> bytes:
    """One item, encoded on its own: one that cannot be encoded must not spoil those of other callers.

    It is read back at once, because a message that no replica can read would stop all of them.
    """
    try:
        raw = _encode(command if isinstance(command, Own) else CommandItem(command, ticket))
        _decode_item(raw)
    except (msgspec.MsgspecError, TypeError, OverflowError) as error:
        raise StoreError(f"this cannot be written: {error}") from error
    return raw


def pack(
    ticket: Ticket, generation: str, position: int, chain: bytes, items: Sequence[bytes], level: int = LEVEL
) -> bytes:
    return _encode(_Packed(ticket, level, generation, position, chain, [msgspec.Raw(one) for one in items]))


def unpack(data: bytes) -> Message:
    """Raises msgspec.MsgspecError where this code cannot read it."""
    return _decode(data)


def unpack_whole(data: bytes) -> Envelope:
    return _decode_envelope(data)


def parts(ticket: Ticket, data: bytes, limit: int) -> Sequence[bytes]:
    """The data as it is, or as parts where it is larger than the log takes at once."""
    if len(data) <= limit:
        return [data]
    room = limit - 200
    pieces = [data[start : start + room] for start in range(0, len(data), room)]
    return [_encode(EnvelopePart(ticket, number, len(pieces), piece)) for number, piece in enumerate(pieces)]
