"""The hub over HTTP: workers and producers on other machines use this process's store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from redrive.core.documents import TOKEN
from redrive.doors.web.feed import wait_until_left
from redrive.doors.web.problems import problem, problem_response
from redrive.doors.web.tokens import LET_IN, caller_of, find_lacking_role
from redrive.stores.remote.http import MEDIA, PATH

if TYPE_CHECKING:
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from redrive.api.redrive import Redrive
    from redrive.stores.remote.service import Answered, Hub

LIMIT: Final = 64 * 1024 * 1024
"""Bytes of one request: many jobs may come at once."""
GUARDED: Final = frozenset({TOKEN.name})
"""Kinds of documents that only a token with the role purge may write: else a worker could raise its own role."""


def routes(rd: Redrive) -> list[Route]:
    """Makes the hub's one route."""
    from starlette.routing import Route

    return [Route(PATH, HubEndpoint(rd))]


class HubEndpoint:
    """Reads a request, has the hub perform it, and gives back what was claimed for a client that has gone."""

    def __init__(self, rd: Redrive) -> None:
        self._rd = rd
        self._hub: Hub | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._answer(Request(scope, receive), receive)
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer(self, request: Request, receive: Receive) -> Response | None:
        if (lacks := find_lacking_role(request.scope, "worker")) is not None:
            return problem_response(lacks)
        if request.method != "POST" or request.headers.get("content-type") != MEDIA:
            return _refuse("method-not-allowed", f"only redrive's own clients ask here, by POST {MEDIA}")
        if (hub := self._hub or self._rd.make_hub()) is None:
            return _refuse("not-found", "this server is a client of other hubs: name one of those hubs instead")
        self._hub = hub
        try:
            data = await _read(request)
        except ClientDisconnect:
            return None
        if data is None:
            return _refuse("too-large", f"a request may have {LIMIT} bytes")
        return await self._perform(hub, data, request.scope, receive)

    async def _perform(self, hub: Hub, data: bytes, scope: Scope, receive: Receive) -> Response | None:
        guarded = frozenset[str]() if caller_of(scope).may("purge") else GUARDED
        performing = asyncio.ensure_future(hub.perform(data, guarded))
        leaving = asyncio.ensure_future(wait_until_left(receive))
        try:
            await asyncio.wait({performing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if performing.done() and not leaving.done():
                return await self._hand_out(hub, performing.result(), scope)
            performing.cancel()
            await asyncio.gather(performing, return_exceptions=True)
            if not performing.cancelled():
                await hub.undo(performing.result())
            return None
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    async def _hand_out(self, hub: Hub, answered: Answered, scope: Scope) -> Response:
        """Answers, or gives the jobs back where the token was revoked while its request waited for them."""
        if answered.tokens and not await scope[LET_IN]():
            await hub.undo(answered)
            return _refuse("unauthorized", "the token has been revoked, or has expired")
        return Response(answered.data, media_type=MEDIA)


async def _read(request: Request) -> bytes | None:
    """Reads the body; None where it is larger than the limit."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LIMIT:
            return None
        parts.append(part)
    return b"".join(parts)


def _refuse(kind: str, why: str) -> Response:
    return problem_response(problem(kind, why))
