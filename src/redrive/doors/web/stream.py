"""Server-sent events as an answer: block by block, for as long as the client is there and takes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

log = logging.getLogger("redrive.feed")
BEAT: Final = 15.0
"""Seconds of silence after which a comment tells that the stream still lives."""
SEND_SECONDS: Final = 30.0
"""Who takes nothing for so long is gone."""
MEDIA: Final = "text/event-stream"
LET_IN: Final = "redrive.let_in"
"""Where a request's scope carries the question whether who asked would still be let in."""
LetIn = Callable[[], Awaitable[bool]]
_HEADERS: Final = [(b"content-type", MEDIA.encode()), (b"x-accel-buffering", b"no"), (b"cache-control", b"no-store")]


class Stream:
    """An ASGI answer that ends when its source does, when the client goes, takes nothing any more, or is shut out."""

    def __init__(self, blocks: AsyncGenerator[bytes, None]) -> None:
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._blocks):
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            let_in: LetIn = scope.get(LET_IN, _always)
            if scope["method"] != "HEAD" and not await self._until_gone(receive, send, let_in):
                return  # the server closes the connection; one more byte would wait as the others do
        await send({"type": "http.response.body", "body": b""})

    async def _until_gone(self, receive: Receive, send: Send, let_in: LetIn) -> bool:
        """False where the client has stopped taking anything."""
        pumping, leaving = asyncio.create_task(self._pump(send, let_in)), asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pumping, leaving):
                task.cancel()
            await asyncio.gather(pumping, leaving, return_exceptions=True)
        error = None if pumping.cancelled() else pumping.exception()
        if error is not None and not isinstance(error, TimeoutError):
            raise error
        if error is not None:
            log.warning("a listener has taken nothing for %g s and is dropped", SEND_SECONDS)
        return error is None

    async def _pump(self, send: Send, let_in: LetIn) -> None:
        """Block by block, and a comment where nothing happens for long. A token may have been changed meanwhile."""
        following: asyncio.Task[bytes] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(anext(self._blocks))
                done, _ = await asyncio.wait({following}, timeout=BEAT)
                if not await let_in():
                    return
                if not done:
                    await _sent(send, b": still here\n\n")
                    continue
                await _sent(send, following.result())
                following = None
        except StopAsyncIteration:
            return
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


async def _always() -> bool:
    return True


async def _sent(send: Send, body: bytes) -> None:
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
