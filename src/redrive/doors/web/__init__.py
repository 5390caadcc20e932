"""Over HTTP: REST, the live feed, metrics and the dashboard, as one ASGI app behind one guard."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from redrive.errors import ConfigError
from redrive.jobs.open_store import is_file, local_files

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed
    from redrive.doors.web.keys import Keys
    from redrive.doors.web.tokens import TokenFile

PARTS: Final = ("starlette", "uvicorn", "jinja2")
"""What the extra `serve` brings."""


def asgi(
    rd: Redrive,
    *,
    token: str | Literal[False] | None = None,
    hosts: Sequence[str] = (),
    dashboard: bool = True,
) -> ASGIApp:
    """REST and the dashboard as an ASGI app: `app.mount("/queue", redrive.asgi(rd))` in FastAPI or Starlette.

    Callers give the token that `redrive token` shows, or the one named here, or one that `rd.tokens` made;
    `token=False` asks for none, for an app that lets in nobody else. This machine's own names are served; every other
    Host must stand in `hosts`, with its port where it has one. Needs the extra `serve`. It runs no jobs: that is what
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
    """The same with what a server knows: exactly which Host headers are its own, and the feed it will close."""
    from starlette.applications import Starlette

    from redrive.doors import rest
    from redrive.doors.rest.probes import OPEN_PATHS
    from redrive.doors.web import hub
    from redrive.doors.web.guard import Guard

    pages = _pages(rd, feed) if dashboard else []
    app = Starlette(routes=[*rest.routes(rd, feed), *hub.routes(rd), *pages], exception_handlers=_handlers())
    app.router.redirect_slashes = False
    app.state.rd, app.state.feed = rd, feed
    return Guard(app, hosts=hosts, also=also, keys=_keys(rd, token), cookie=True, open_paths=OPEN_PATHS)


def _keys(rd: Redrive, token: str | Literal[False] | None) -> Keys | None:
    """The owner's token and the named ones; none where the app lets in nobody else."""
    from redrive.doors.web.keys import Keys
    from redrive.doors.web.tokens import check_token

    if token is False:
        return None
    if token is None:
        file = token_file(rd)
        return Keys(lambda: [file()], named=rd.tokens)
    own = [check_token(token)]
    return Keys(lambda: own, named=rd.tokens)


def need_the_extra() -> None:
    """The line to install what is missing, before anything else is looked at."""
    for name in PARTS:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f'serving over HTTP needs the package {name}: pip install "redrive[serve]"')


def token_file(rd: Redrive) -> TokenFile:
    """Where this database's token lives."""
    from redrive.doors.web.tokens import TokenFile, beside

    if rd.settings.url.rpartition(":memory:")[1]:
        return TokenFile(None)
    place = local_files(rd.settings)
    if not is_file(rd.settings.url):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return TokenFile(beside(place))


def _pages(rd: Redrive, feed: Feed) -> list[Any]:
    """The dashboard's routes."""
    if importlib.util.find_spec("redrive.doors.dashboard") is None:
        return []
    from redrive.doors import dashboard

    made = getattr(dashboard, "routes", None)
    return list(made(rd, feed)) if made is not None else []


def _handlers() -> Any:
    """Whatever leaves without an answer of its own leaves as a problem."""
    from starlette.exceptions import HTTPException

    return {HTTPException: _refused, Exception: _failed}


async def _refused(request: Any, error: Any) -> Any:
    from redrive.doors.rest.answering import told
    from redrive.doors.web.problems import KINDS, Problem, problem

    if error.status_code == 404 and (page := await _missing(request)) is not None:
        return page
    kinds = {404: "not-found", 405: "method-not-allowed"}
    if error.status_code in kinds:
        found = problem(kinds[error.status_code], f"{request.method} {request.url.path}")
    else:
        found = Problem(f"{KINDS}refused", str(error.detail), error.status_code)
    return told(found, error.headers)


async def _missing(request: Any) -> Any:
    """The dashboard's page for an address that does not exist, where a person's browser asks and it is served."""
    from redrive.doors.web.callers import caller_of
    from redrive.doors.web.guard import path_of

    if path_of(request.scope).startswith("/v1") or importlib.util.find_spec("redrive.doors.dashboard") is None:
        return None
    if not caller_of(request.scope).may("look"):
        return None
    from redrive.doors import dashboard

    return await dashboard.missing(request, request.app.state.feed)


async def _failed(request: Any, error: Exception) -> Any:
    from redrive.doors.rest.answering import defect, told
    from redrive.doors.web.problems import problem_of

    return told(problem_of(error) or defect(error, request.url.path))
