"""Dead letters as a file to keep, never a page to show: what is in it is somebody else's."""

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
"""What is longer waits in a temporary file until it is sent."""
PIECE: Final = 64 * 1024
HEADERS: Final = {
    "content-disposition": 'attachment; filename="dead-letters.jsonl"',
    "x-content-type-options": "nosniff",
}


async def exported(rd: Redrive, filters: Mapping[str, Any], *, secrets: bool) -> StreamingResponse:
    """All of them are found before the first is sent, so that what is wrong can still be said."""
    file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - closed when it is sent
    try:
        await rd.dead.export(file, secrets=secrets, **filters)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return StreamingResponse(_pieces(file, secrets=secrets), headers=HEADERS, media_type=MEDIA)


async def _pieces(file: IO[bytes], *, secrets: bool) -> AsyncIterator[bytes]:
    """An export holds whole payloads, so that they can run again; who does not ask for secrets gets none of them."""
    with file:
        while lines := await asyncio.to_thread(file.readlines, PIECE):
            yield b"".join(lines if secrets else map(_masked, lines))


def _masked(line: bytes) -> bytes:
    record = msgspec.json.decode(line)
    return msgspec.json.encode(record | {"payload": redact(record["payload"])}) + b"\n"
