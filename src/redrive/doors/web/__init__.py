"""The ASGI app: REST, the live feed, metrics, the hub and the dashboard, behind one guard."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from redrive.errors import ConfigError
from redrive.jobs.open_store import find_local_files, is_file

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed
    from redrive.doors.web.tokens import TokenChecker, TokenFile

PARTS: Final = ("starlette", "uvicorn", "jinja2")
"""The packages of the extra `serve`."""


def asgi(
    rd: Redrive,
    *,
    token: str | Literal[False] | None = None,
    hosts: Sequence[str] = (),
    dashboard: bool = True,
) -> ASGIApp:
    """Makes REST and the dashboard an ASGI app: `app.mount("/queue", redrive.asgi(rd))` in FastAPI or Starlette.

    Callers give the token that `redrive token` shows, or the one named here, or one that `rd.tokens` made;
    `token=False` asks for none, for an app that guards itself. This machine's own names are served; every other Host
    must stand in `hosts`, with its port where it has one. Needs the extra `serve`. The app runs no jobs: that is what
    `rd.lifespan(worker=True)` is for.
    """
    need_the_extra()
    from redrive.doors.web.feed import Feed

    return make_app(rd, Feed(rd), token=token, hosts=None, also=hosts, dashboard=dashboard)


def make_app(
    rd: Redrive,
    feed: Feed,
    *,
    token: str | Literal[False] | None,
    hosts: Sequence[str] | None,
    also: Sequence[str] = (),
    dashboard: bool = True,
) -> ASGIApp:
    """Makes the same app for a server, which knows exactly its own Host headers, and closes the feed itself."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException

    from redrive.doors import dashboard as pages
    from redrive.doors import rest
    from redrive.doors.web import hub
    from redrive.doors.web.guard import HttpGuard

    shown = pages.routes(rd, feed) if dashboard else []
    handlers: Any = {HTTPException: _answer_refused, Exception: _answer_failed}
    app = Starlette(routes=[*rest.routes(rd, feed), *hub.routes(rd), *shown], exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.rd, app.state.feed = rd, feed
    tokens = _token_checker(rd, token)
    return HttpGuard(app, hosts=hosts, also=also, tokens=tokens, cookie=True, open_paths=rest.OPEN_PATHS)


def _token_checker(rd: Redrive, token: str | Literal[False] | None) -> TokenChecker | None:
    """Makes the checker of the owner's token and the named ones; None where another app guards this one."""
    from redrive.doors.web.tokens import TokenChecker, check_token

    if token is False:
        return None
    if token is None:
        file = token_file(rd)
        return TokenChecker(lambda: [file()], named=rd.tokens)
    own = [check_token(token)]
    return TokenChecker(lambda: own, named=rd.tokens)


def need_the_extra() -> None:
    """Refuses with the line that installs a missing package, before anything else is looked at."""
    for name in PARTS:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f'serving over HTTP needs the package {name}: pip install "redrive[serve]"')


def token_file(rd: Redrive) -> TokenFile:
    """Finds the file of the owner's token: beside the database, or beside what a client of hubs keeps locally."""
    from redrive.doors.web.tokens import TokenFile

    if rd.settings.url.rpartition(":memory:")[1]:
        return TokenFile(None)
    place = find_local_files(rd.settings)
    if not is_file(rd.settings.url):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return TokenFile(place.with_name(f"{place.name}-token"))


async def _answer_refused(request: Any, error: Any) -> Response:
    """Answers what starlette refuses: the dashboard's page for a person's browser, a problem for all others."""
    from redrive.doors.dashboard import show_missing_page
    from redrive.doors.web.guard import path_of
    from redrive.doors.web.problems import KINDS, Problem, problem, problem_response
    from redrive.doors.web.tokens import caller_of

    if error.status_code == 404 and not path_of(request.scope).startswith("/v1"):
        page = (
            await show_missing_page(request, request.app.state.feed) if caller_of(request.scope).may("look") else None
        )
        if page is not None:
            return page
    kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code)
    if kind is None:
        return problem_response(Problem(f"{KINDS}refused", str(error.detail), error.status_code), error.headers)
    return problem_response(problem(kind, f"{request.method} {request.url.path}"), error.headers)


async def _answer_failed(request: Any, error: Exception) -> Response:
    from redrive.doors.web.problems import problem_for, problem_response

    return problem_response(problem_for(error, request.url.path))
