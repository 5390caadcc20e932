"""Sends dead letters as a file to keep, never as a page to show: other people wrote what is in it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import StreamingResponse

from redrive.core.redact import redact

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

MEDIA: Final = "application/x-ndjson"
IN_MEMORY: Final = 1024 * 1024
"""Bytes; a longer export waits in a temporary file until it is sent."""
PIECE: Final = 64 * 1024
HEADERS: Final = {
    "content-disposition": 'attachment; filename="dead-letters.jsonl"',
    "x-content-type-options": "nosniff",
}


async def answer_export(rd: Redrive, filters: Mapping[str, Any], *, secrets: bool) -> StreamingResponse:
    """Finds all dead letters before the first is sent, so that an error still gets its own status."""
    file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - closed when it is sent
    try:
        await rd.dead.export(file, secrets=secrets, **filters)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return StreamingResponse(_read_pieces(file, secrets=secrets), headers=HEADERS, media_type=MEDIA)


async def _read_pieces(file: IO[bytes], *, secrets: bool) -> AsyncIterator[bytes]:
    """Reads the file piece by piece, and masks the payloads unless secrets are asked for."""
    with file:
        while lines := await asyncio.to_thread(file.readlines, PIECE):
            yield b"".join(lines if secrets else map(_mask, lines))


def _mask(line: bytes) -> bytes:
    record = msgspec.json.decode(line)
    return msgspec.json.encode(record | {"payload": redact(record["payload"])}) + b"\n"
