"""From the table to a router: one endpoint for each path, which reads, asks the app, and answers or tells why not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from redrive.doors.rest.reading import ENVELOPE, read_body, read_query
from redrive.doors.rest.table import JSON, WHO, Asked, Reply, Route, is_app
from redrive.doors.web.callers import Caller, caller_of, lacking
from redrive.doors.web.problems import MEDIA_TYPE, Problem, Refused, problem, problem_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed

log = logging.getLogger("redrive.rest")
encode = msgspec.json.Encoder(decimal_format="number").encode


def endpoints(table: Iterable[Route], rd: Redrive, feed: Feed) -> list[Endpoint]:
    """One for each path, in the order of the table: the first that fits a path is the one that is asked."""
    paths: dict[str, dict[str, Route]] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method] = route
    return [Endpoint(path, Door(routes, rd, feed)) for path, routes in paths.items()]


class Door:
    """Everything that can be asked at one path."""

    def __init__(self, routes: Mapping[str, Route], rd: Redrive, feed: Feed) -> None:
        self._routes = routes
        self._rd = rd
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import Request

        answer = await self._answer(Request(scope, receive))
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> ASGIApp:
        method = "GET" if request.method == "HEAD" else request.method
        route = self._routes.get(method)
        if route is None:
            return told(problem("method-not-allowed", f"{request.method} is not for this path"), self._allow())
        if not route.is_open and (lacks := lacking(request.scope, route.needs)) is not None:
            return told(lacks)
        try:
            asked = await self._read(route, request)
            return _answered(route, await route.handle(asked), asked.root)
        except Refused as refused:
            return told(refused.problem, refused.headers)
        except Exception as error:  # noqa: BLE001 - told to the caller; a defect is logged with its traceback
            return told(problem_of(error) or defect(error, request.url.path))

    def _allow(self) -> dict[str, str]:
        head = ["HEAD"] if "GET" in self._routes else []
        return {"allow": ", ".join(sorted([*self._routes, *head]))}

    async def _read(self, route: Route, request: Request) -> Asked:
        query = read_query(request.query_params.multi_items(), route.query)
        body = None
        if route.body is not None:
            body = await read_body(request, route.body, self._rd.settings.payload_limit + ENVELOPE)
        if not route.is_open:
            caller = caller_of(request.scope)
            _check_secrets(caller, query)
            query, body = _signed(query, caller), _signed(body, caller)
        root = request.scope.get("root_path", "")
        return Asked(self._rd, self._feed, request.path_params, query, body, request.headers, root)


SIGNED: Final = ("who", "by")
"""Fields that name who does it: the token's name stands there, whatever the caller says."""


def _signed(said: Any, caller: Caller) -> Any:
    names = [name for name in SIGNED if name in getattr(said, "__struct_fields__", ())]
    if not names:
        return said
    return msgspec.structs.replace(said, **{name: caller.sign(getattr(said, name), WHO) for name in names})


def _check_secrets(caller: Caller, query: Any) -> None:
    """Secrets are masked for who may only look."""
    if getattr(query, "secrets", False) and (why := caller.lacks("act")) is not None:
        raise Refused(problem("forbidden-role", f"secrets: {why}", field="secrets"))


def _answered(route: Route, answer: Any, root: str) -> ASGIApp:
    if is_app(answer):
        app: ASGIApp = answer
        return app
    reply = answer if isinstance(answer, Reply) else Reply(answer, route.status)
    content = reply.value.encode() if isinstance(reply.value, str) and route.media != JSON else encode(reply.value)
    headers = {name: f"{root}{value}" if name == "location" else value for name, value in reply.headers.items()}
    return Response(content, reply.status, headers, media_type=route.media)


def told(found: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(found.encode(), found.status, {**found.headers, **(headers or {})}, MEDIA_TYPE)


def defect(error: Exception, path: str) -> Problem:
    """Ours to mend: the caller learns that it was not the request."""
    log.error("%s failed: %r", path, error, exc_info=error)
    return problem("internal", "this request met a defect; nothing more is known here")
