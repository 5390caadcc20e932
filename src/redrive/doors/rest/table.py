"""The table of routes: what is asked where, what it takes, what it answers, and how it can fail.

The router, the OpenAPI document and the matrix of the authorisation tests are all made from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from redrive.core.job import Json
from redrive.core.tokens import Role

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed

Method = Literal["GET", "POST", "PUT", "DELETE"]
WHO: Final = "rest"
"""Who did it, where neither the token nor the caller says."""
JSON: Final = "application/json"


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing is taken from the query."""


class Asked(NamedTuple):
    """One request, read and checked: what its route says it takes is there, and nothing else."""

    rd: Redrive
    feed: Feed
    path: Mapping[str, str]
    query: Any
    body: Any
    headers: Mapping[str, str]
    root: str = ""
    """The path under which all of this is mounted."""


class Reply(NamedTuple):
    """An answer that is not simply the route's own status with a JSON body."""

    value: Json
    status: int = 200
    headers: Mapping[str, str] = {}


Answer = Callable[[Asked], Awaitable[Any]]


class Route(NamedTuple):
    """One line of the table."""

    method: Method
    path: str
    handle: Answer
    """Its answer: a value for JSON, a Reply, or an ASGI app that sends by itself."""
    says: str
    """What it does, in one line."""
    answer: Any
    """The type of the body."""
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    """The type of what is sent: a struct, or a choice of them."""
    status: int = 200
    errors: tuple[int, ...] = ()
    """Statuses of problems, besides those that every route has."""
    also: Mapping[int, Any] = {}
    """Other good statuses, and the types of their bodies."""
    headers: Mapping[str, str] = {}
    """Headers it takes, and what they mean."""
    media: str = JSON
    block: Callable[[Any], dict[str, Any]] | None = None
    """Of a stream: the schema of one of its blocks, made from the schema of `answer`."""
    is_open: bool = False
    """Without a token."""
    role: Role | None = None
    """What a token needs for it, where that is not `look` for a GET and `act` for all else."""

    @property
    def needs(self) -> Role:
        return self.role or ("look" if self.method == "GET" else "act")

    @property
    def name(self) -> str:
        """Unique: for the document's operationId."""
        words = [word for word in self.path.replace("{", "").replace("}", "").split("/") if word and word != "v1"]
        return "_".join([self.method.lower(), *(word.partition(":")[0].replace("-", "_") for word in words)])

    @property
    def tag(self) -> str:
        words = [word for word in self.path.split("/") if word not in ("", "v1")]
        return words[0] if self.path.startswith("/v1/") else "server"

    @property
    def statuses(self) -> list[int]:
        """How it can fail: by its own rules, and as every route can."""
        always = {401, 403, 421, 422, 500, 503, 507} if not self.is_open else {421, 403, 422, 500, 503}
        with_body = {400, 408, 413, 415} if self.body is not None else set()
        with_name = {404} if "{" in self.path else set()
        return sorted({*always, *with_body, *with_name, *self.errors})


def reason(status: int) -> str:
    return HTTPStatus(status).phrase


def is_app(answer: object) -> bool:
    """Whether it is an ASGI app, which sends its answer by itself."""
    return callable(answer)
