"""Writes and reads the messages of the log: commands that waited together, their issuer, and what the issuer knew."""

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
"""The most that one message takes of the commands that wait."""


class CommandItem(msgspec.Struct, frozen=True, array_like=True, tag="Item", gc=False):
    """One command, and the ticket of a client that may send the command again by another way."""

    command: Command
    ticket: Ticket | None = None


class Level(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From this message on replicas execute commands at this level."""

    number: int


class Halt(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From this message on nothing is claimed, because replicas differ; `why=None` ends that."""

    why: str | None


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first message of a log into which the jobs of a file move. The jobs come as a snapshot behind it."""

    token: str


class JobsMoved(msgspec.Struct, frozen=True, array_like=True, tag="Moved"):
    """From this message on the jobs of this log are elsewhere. No replica passes it, unless a job ran at this place."""

    to: str


Own = Level | Halt | Arrived | JobsMoved
"""Items about the log itself, which the Machine does not execute."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One message of the log."""

    ticket: Ticket
    """The number of the message at its issuer, and the number below which the issuer sends none again."""
    level: int
    """The active level at the issuer's position; not the level of the issuer's code, which others may not have yet."""
    generation: str
    position: int
    chain: bytes
    """The issuer's hash over all outcomes up to its position: other replicas must have the same."""
    items: tuple[CommandItem | Own, ...]


class EnvelopePart(msgspec.Struct, frozen=True, array_like=True, tag="Part"):
    """A piece of an envelope that is larger than the log takes at once. The last piece executes the envelope."""

    ticket: Ticket
    number: int
    of: int
    data: bytes


Message = Envelope | EnvelopePart

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_item: Final = msgspec.msgpack.Decoder(CommandItem | Own).decode
unpack: Final[Callable[[bytes], Message]] = msgspec.msgpack.Decoder(Message).decode
"""Reads a message. Raises msgspec.MsgspecError where this code cannot read it."""
unpack_whole: Final = msgspec.msgpack.Decoder(Envelope).decode


class _Packed(msgspec.Struct, frozen=True, array_like=True, tag="Envelope"):
    """An Envelope whose items are already encoded, each by the caller that issued it."""

    ticket: Ticket
    level: int
    generation: str
    position: int
    chain: bytes
    items: list[msgspec.Raw]


def encode_item(command: Command | Own, ticket: Ticket | None = None) -> bytes:
    """Encode one item by itself, so that a faulty item does not spoil those of other callers.

    The item is read back at once, because a message that no replica can read would stop all replicas.
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
    return _encode(_Packed(ticket, level, generation, position, chain, [msgspec.Raw(item) for item in items]))


def split(ticket: Ticket, data: bytes, limit: int) -> Sequence[bytes]:
    """Split a message that is larger than the log takes at once into parts."""
    if len(data) <= limit:
        return [data]
    room = limit - 200
    pieces = [data[start : start + room] for start in range(0, len(data), room)]
    return [_encode(EnvelopePart(ticket, number, len(pieces), piece)) for number, piece in enumerate(pieces)]
