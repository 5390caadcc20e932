"""The hub's door over HTTP: workers and producers on other machines use this process's store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from redrive.core.documents import TOKEN
from redrive.doors.web.callers import caller_of, lacking
from redrive.doors.web.problems import MEDIA_TYPE, Problem, problem
from redrive.doors.web.stream import LET_IN
from redrive.stores.remote.http import MEDIA, PATH
from redrive.stores.remote.service import Answered, Hub

if TYPE_CHECKING:
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from redrive.api.redrive import Redrive

LIMIT: Final = 64 * 1024 * 1024
"""Bytes of one request: many jobs may come at once."""
GUARDED: Final = frozenset({TOKEN.name})
"""Kinds of documents that only a token with the role purge may write: a worker could raise itself otherwise."""


def routes(rd: Redrive) -> list[Route]:
    """The hub's one route; none where this process itself is a client of a hub."""
    from starlette.routing import Route

    return [Route(PATH, HubDoor(rd))]


class HubDoor:
    """Reads a request, has the hub perform it, and gives back what was claimed for a client that has gone."""

    def __init__(self, rd: Redrive) -> None:
        self._rd = rd
        self._hub: Hub | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(Request(scope, receive), receive)
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer(self, request: Request, receive: Receive) -> Response | None:
        if (lacks := lacking(request.scope, "worker")) is not None:
            return _told(lacks)
        if request.method != "POST" or request.headers.get("content-type") != MEDIA:
            return _refused("method-not-allowed", f"only redrive's own clients ask here: POST {MEDIA}")
        if not hasattr(self._rd.store, "execute"):
            return _refused("not-found", "this server is a client of other hubs, and no hub itself")
        try:
            data = await _read(request)
        except ClientDisconnect:
            return None
        if data is None:
            return _refused("too-large", f"a request may have {LIMIT} bytes")
        return await self._performed(data, request.scope, receive)

    async def _performed(self, data: bytes, scope: Scope, receive: Receive) -> Response | None:
        if self._hub is None:
            self._hub = Hub(self._rd.store)
        guarded = frozenset[str]() if caller_of(scope).may("purge") else GUARDED
        performing = asyncio.ensure_future(self._hub.perform(data, guarded))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({performing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if performing.done() and not leaving.done():
                return await self._handed_out(self._hub, performing.result(), scope)
            performing.cancel()
            await asyncio.gather(performing, return_exceptions=True)
            if not performing.cancelled():
                await self._hub.undo(performing.result())
            return None
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    async def _handed_out(self, hub: Hub, answered: Answered, scope: Scope) -> Response:
        """Jobs are not for a token that was revoked while its request waited for them: they wait again."""
        if answered.tokens and not await scope[LET_IN]():
            await hub.undo(answered)
            return _refused("unauthorized", "the token has been revoked, or has expired")
        return Response(answered.data, media_type=MEDIA)


async def _left(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(request: Request) -> bytes | None:
    """The body, or None where it is larger than we take."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LIMIT:
            return None
        parts.append(part)
    return b"".join(parts)


def _refused(kind: str, why: str) -> Response:
    return _told(problem(kind, why))


def _told(found: Problem) -> Response:
    return Response(found.encode(), found.status, found.headers, MEDIA_TYPE)
