"""Routes: what each takes and answers, and the way of a request from its bytes to the answer.

The table of all routes makes the router, the OpenAPI document and the matrix of the authorisation tests.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import inspect
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from redrive.core.job import Json
from redrive.core.json_keys import RepeatedKey, refuse_repeated_keys
from redrive.core.tokens import ROLES, Caller, Role
from redrive.core.words import clipped
from redrive.doors.rest.inputs import WHO, Filters, RequestFields, read_moment
from redrive.doors.web.problems import Problem, RequestRefused, problem, problem_for, problem_response
from redrive.doors.web.tokens import CALLER

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed

log = logging.getLogger("redrive.rest")
Method = Literal["GET", "POST", "PUT", "DELETE"]
JSON: Final = "application/json"
SIGNED: Final = ("who", "by")
"""Fields that name the actor: the token's name is used, ignoring the caller's value."""
encode = msgspec.json.Encoder(decimal_format="number").encode


class NoQuery(RequestFields):
    """Nothing is taken from the query."""


class ApiRequest(NamedTuple):
    """A request that was read and checked: it has what its route takes, and nothing else."""

    rd: Redrive
    feed: Feed
    path: Mapping[str, str]
    query: Any
    body: Any
    headers: Mapping[str, str]
    root: str = ""
    """The path under which the app is mounted."""

    @property
    def id(self) -> str:
        """The id in the path."""
        return self.path["id"]

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the body by name."""
        return msgspec.structs.asdict(self.body)

    async def filters(self, filters: Filters) -> dict[str, Any]:
        """Makes the app's filters of those in a request. A group may be named by the beginning of its fingerprint.

        A beginning that no group has stays as it is and finds no jobs; one that several groups have is refused.
        """
        given = {name: value for name in Filters.__struct_fields__ if (value := getattr(filters, name)) is not None}
        for name in given.keys() & {"since", "until"}:
            moment = read_moment(name, given[name])
            given[name] = moment and moment.timestamp()
        if "session" in given:
            given["session_id"] = given.pop("session")
        if (beginning := given.pop("group", None)) is not None:
            group = await self.rd.groups.beginning(beginning, field="group")
            given["fingerprint"] = group.fingerprint if group is not None else beginning
        return given


class Reply(NamedTuple):
    """An answer with its own status or headers."""

    value: Json
    status: int = 200
    headers: Mapping[str, str] = {}


Handler = Callable[[ApiRequest], Awaitable[Any]]
NamedHandler = Callable[[str, ApiRequest], Awaitable[Any]]
Adder = Callable[[Handler], Handler]
"""Adds a handler to the routes of its module, and gives it back."""


class Route(NamedTuple):
    """One line of the table."""

    method: Method
    path: str
    handle: Handler
    """Makes the answer: a value for JSON, a Reply, or an ASGI app that sends by itself."""
    answer: Any
    """The type of the answer's body."""
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    """The type of the request's body: a struct, or a choice of them."""
    status: int = 200
    errors: tuple[int, ...] = ()
    """Statuses of problems, besides those that every route has."""
    also: Mapping[int, Any] = {}
    """Other good statuses, and the types of their bodies."""
    headers: Mapping[str, str] = {}
    """Request headers that the route reads, and what they mean."""
    media: str = JSON
    block: Callable[[Any], dict[str, Any]] | None = None
    """Makes the schema of one block of a stream from the schema of `answer`."""
    is_open: bool = False
    """Whether the route needs no token."""
    role: Role | None = None
    """The role that a token needs, where it is not `look` for a GET and `act` for all else."""

    does: str = ""
    """What the route does, where the handler's docstring does not say it."""

    @property
    def says(self) -> str:
        """What the route does, in one line: the first paragraph of its handler's docstring."""
        return " ".join((self.does or self.handle.__doc__ or "").partition("\n\n")[0].split())

    @property
    def needs(self) -> Role:
        return self.role or ("look" if self.method == "GET" else "act")

    @property
    def name(self) -> str:
        """The document's operationId: unique."""
        words = [word for word in self.path.replace("{", "").replace("}", "").split("/") if word and word != "v1"]
        return "_".join([self.method.lower(), *(word.partition(":")[0].replace("-", "_") for word in words)])

    @property
    def tag(self) -> str:
        words = [word for word in self.path.split("/") if word not in ("", "v1")]
        return words[0] if self.path.startswith("/v1/") else "server"

    @property
    def statuses(self) -> list[int]:
        """Lists the statuses of its problems: those of its own rules, and those of every route."""
        always = {401, 403, 421, 422, 500, 503, 507} if not self.is_open else {421, 403, 422, 500, 503}
        with_body = {400, 408, 413, 415} if self.body is not None else set()
        with_name = {404} if "{" in self.path else set()
        return sorted({*always, *with_body, *with_name, *self.errors})


class Routes(list[Route]):
    """The routes of a module, in the order of their handlers."""

    def get(self, path: str, answer: Any, query: type[msgspec.Struct] = NoQuery, **more: Any) -> Adder:
        return self.add("GET", path, answer, query=query, **more)

    def post(self, path: str, answer: Any, body: Any, **more: Any) -> Adder:
        return self.add("POST", path, answer, body=body, **more)

    def add_each(
        self, method: Method, path: str, rows: Mapping[str, Mapping[str, Any]], **shared: Any
    ) -> Callable[[NamedHandler], None]:
        """Adds a route below the path for each name, with the fields that differ; the handler is given the name."""

        def add_handlers(handle: NamedHandler) -> None:
            for name, fields in rows.items():
                self.append(Route(method, f"{path}/{name}", partial(handle, name), **shared, **fields))

        return add_handlers

    def add(self, method: Method, path: str, answer: Any, **more: Any) -> Adder:
        def add_handler(handle: Handler) -> Handler:
            self.append(Route(method, path, handle, answer, **more))
            return handle

        return add_handler


def endpoints(table: Iterable[Route], rd: Redrive, feed: Feed) -> list[StarletteRoute]:
    """Makes one endpoint for each path, in the order of the table: the first that fits a path is asked."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for route in table:
        methods = (route.method, "HEAD") if route.method == "GET" else (route.method,)
        paths.setdefault(route.path, {}).update(dict.fromkeys(methods, Endpoint(route, rd, feed)))
    return [StarletteRoute(path, PathEndpoint(methods)) for path, methods in paths.items()]


class PathEndpoint:
    """Passes every request to one path on to the endpoint of its method."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp
        if (endpoint := self._endpoints.get(scope["method"])) is not None:
            answer = await endpoint.answer(Request(scope, receive))
        else:
            refusal = problem("method-not-allowed", f"{scope['method']} is not for this path")
            answer = problem_response(refusal, {"allow": ", ".join(sorted(self._endpoints))})
        await answer(scope, receive, send)


class Endpoint:
    """Answers the requests to one route: reads each, calls the handler, and answers with JSON or a problem."""

    def __init__(self, route: Route, rd: Redrive, feed: Feed) -> None:
        self._route = route
        self._rd = rd
        self._feed = feed
        self._roles = frozenset(role for role in ROLES if Caller(None, role).may(route.needs))

    async def answer(self, request: Request) -> ASGIApp:
        try:
            read = await self._read(request)
            return _make_response(self._route, await self._route.handle(read), read.root)
        except Exception as error:  # noqa: BLE001 - answered; a defect is logged with its traceback
            headers = error.headers if isinstance(error, RequestRefused) else None
            return problem_response(problem_for(error, request.url.path), headers)

    async def _read(self, request: Request) -> ApiRequest:
        route = self._route
        caller: Caller | None = None if route.is_open else request.scope[CALLER]
        if caller is not None and caller.role not in self._roles:
            raise RequestRefused(problem("forbidden-role", caller.lacks(route.needs)))
        query, body = read_query(request.query_params.multi_items(), route.query), None
        if route.body is not None:
            body = await read_body(request, route.body, self._rd.settings.payload_limit + ENVELOPE)
        if caller is not None:
            if getattr(query, "secrets", False) and (why := caller.lacks("act")) is not None:
                raise RequestRefused(problem("forbidden-role", f"secrets: {why}", field="secrets"))
            if route.method != "GET":  # looking is not recorded
                query, body = _sign(query, caller), _sign(body, caller)
        root = request.scope.get("root_path", "")
        return ApiRequest(self._rd, self._feed, request.path_params, query, body, request.headers, root)


def _sign(fields: Any, caller: Caller) -> Any:
    """Puts the caller's name into the fields that say who does it."""
    names = [name for name in SIGNED if name in getattr(fields, "__struct_fields__", ())]
    if not names:
        return fields
    return msgspec.structs.replace(fields, **{name: caller.sign(getattr(fields, name), WHO) for name in names})


def _make_response(route: Route, answer: Any, root: str) -> ASGIApp:
    if callable(answer):  # an ASGI app
        app: ASGIApp = answer
        return app
    reply = answer if isinstance(answer, Reply) else Reply(answer, route.status)
    content = reply.value.encode() if isinstance(reply.value, str) and route.media != JSON else encode(reply.value)
    headers = {name: f"{root}{value}" if name == "location" else value for name, value in reply.headers.items()}
    return Response(content, reply.status, headers, media_type=route.media)


# -- reading the query

LONGEST: Final = 300
"""Characters of a refusal, which repeats what was sent."""
_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]{0,15})")


def read_query(pairs: list[tuple[str, str]], kind: type[msgspec.Struct]) -> Any:
    """Reads the parameters as the route's struct. Unknown ones, and single ones that are given twice, are refused."""
    shapes, fields = _query_shapes(kind), dict[str, Any]()
    for name, text in pairs:
        shape = shapes.get(name)
        if shape is None:
            known = ", ".join(shapes) or "none"
            raise RequestRefused(problem("invalid", f"{name}: is not a parameter here; there are {known}", field=name))
        if shape == "many":
            fields.setdefault(name, []).append(text)
        elif name in fields:
            raise RequestRefused(problem("invalid", f"{name}: is given twice", field=name))
        else:
            fields[name] = text if shape == "text" else _read_value(name, text, shape)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise RequestRefused(_name_field(error)) from None


@cache
def _query_shapes(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Says how each parameter is written: as text, a whole number, a switch, or several times."""
    described = inspect.type_info(kind)
    fields = described.fields if isinstance(described, inspect.StructType) else ()
    return {field.encode_name: _query_shape(field.type) for field in fields}


def _query_shape(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.UnionType):
        return next(_query_shape(one) for one in kind.types if not isinstance(one, inspect.NoneType))
    if isinstance(kind, inspect.Metadata):
        return _query_shape(kind.type)
    shapes = {inspect.IntType: "whole", inspect.BoolType: "switch", inspect.VarTupleType: "many"}
    return shapes.get(type(kind), "text")


def _read_value(name: str, text: str, shape: str) -> Any:
    if shape == "whole":
        if not _WHOLE.fullmatch(text):
            raise RequestRefused(problem("invalid", f"{name}: {text[:50]!r} is not a whole number", field=name))
        return int(text)
    if text not in ("true", "false"):
        raise RequestRefused(problem("invalid", f"{name}: {text[:50]!r} is neither true nor false", field=name))
    return text == "true"


_PLACE: Final = re.compile(r" - at `\$\.?(?:key in )?([^`]*)`$")
_FIELD: Final = re.compile(r"(?:unknown|required) field `([^`]*)`")


def _name_field(error: msgspec.ValidationError) -> Problem:
    """Makes a refusal that begins with its field, as every refusal of redrive does."""
    text = str(error)
    place = _PLACE.search(text)
    what = clipped(_PLACE.sub("", text), LONGEST)
    named = _FIELD.search(what)
    parts = [part for part in (place[1] if place else "", named[1] if named else "") if part]
    field = ".".join(parts) or None
    return problem("invalid", f"{field}: {what}" if field else what, field=field)


# -- reading the body

DEPTH: Final = 64
ENVELOPE: Final = 64 * 1024
"""Bytes that a body may have besides the payload itself."""
BODY_SECONDS: Final = 30.0
DISCARDED: Final = 16 * 1024 * 1024
"""Bytes of a body that is too large that are read and dropped, so that its sender gets the answer."""
OWN: Final = frozenset({"payload", "params"})
"""Fields that belong to the caller and are passed on as they are."""
_BRACKETS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
"""A text that never ends goes to the end of the body: no byte is read twice."""


async def read_body(request: Request, kind: Any, limit: int) -> Any:
    """Reads the body as the route's struct. Its size is counted while it arrives; no body is an empty object."""
    data = await _receive(request, limit)
    if data:
        _check_media(request)
        _check_depth(data)
    try:
        fields = _decode(data or b"{}", kind)
        refuse_repeated_keys(data or b"{}")
        return fields
    except RepeatedKey as error:
        raise RequestRefused(problem("invalid", f"body: {error}", field="body")) from None
    except msgspec.ValidationError as error:
        raise RequestRefused(_name_field(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefused(problem("bad-request", f"the body is not JSON: {error}")) from None


def _decode(data: bytes, kind: Any) -> Any:
    """Decodes in one step; where that fails, once more with 5.0 as 5, as some languages write whole numbers."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        return msgspec.convert(_whole_numbers(msgspec.json.decode(data)), kind)


def _whole_numbers(value: Any) -> Any:
    """Makes whole floats ints, except in what belongs to the caller."""
    if isinstance(value, dict):
        return {name: item if name in OWN else _whole_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def _receive(request: Request, limit: int) -> bytes:
    """Receives the body. One that is too large is read on for a while: many clients listen only after sending all."""
    too_large = problem("too-large", f"the body has more than {limit} bytes", field="body")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > DISCARDED:
        raise RequestRefused(too_large, {"connection": "close"})
    body, number = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                number += len(chunk)
                if number <= limit:
                    body += chunk
                elif number > DISCARDED:
                    break
    except TimeoutError:
        raise RequestRefused(problem("too-slow", f"the body did not arrive in {BODY_SECONDS:g} s")) from None
    except ClientDisconnect:
        log.info("%s: the caller left in the middle of the body; nothing was done", request.url.path)
        raise RequestRefused(problem("bad-request", "the body broke off")) from None
    if number > limit:
        raise RequestRefused(too_large, {"connection": "close"})
    return bytes(body)


def _check_media(request: Request) -> None:
    """Takes only JSON: what a plain form of another site can send is refused."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON:
        raise RequestRefused(
            problem("unsupported-media-type", f"the body is {media[:100] or 'of no type'}", field="body")
        )


def _check_depth(data: bytes) -> None:
    if data.count(b"[") + data.count(b"{") <= DEPTH:
        return
    depth = 0
    for match in _BRACKETS.finditer(data):
        sign = match[0]
        depth += 1 if sign in b"[{" else -1 if sign in b"]}" else 0
        if depth > DEPTH:
            raise RequestRefused(problem("invalid", f"body: is nested deeper than {DEPTH}", field="body"))
