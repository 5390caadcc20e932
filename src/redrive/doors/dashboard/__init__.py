"""The dashboard: plain pages over GET, changes by POST forms, one stream that tells when to look again.

`routes(rd, feed)` gives everything under one prefix; doors/web mounts it behind the guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from redrive.doors.dashboard import (
    agents,
    finding,
    fleet,
    group,
    job,
    jobs,
    letters,
    live,
    morning,
    moves,
    overview,
    queues,
    redrives,
    sessions,
    workers,
    workflows,
)
from redrive.doors.dashboard.rendering import SITE, STATIC, Site, problem

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed

PAGES: Final = (
    overview, live, finding, jobs, moves, letters, group, job, redrives, queues, workers, morning, agents, workflows,
    fleet, sessions,
)  # fmt: skip
"""Each has `routes(site)`."""


_sites: WeakKeyDictionary[Feed, Site] = WeakKeyDictionary()


def routes(rd: Redrive, feed: Feed) -> list[BaseRoute]:
    """Every page, action and file, to be mounted at "/" or under a prefix."""
    site = Site(rd, feed)
    found: list[BaseRoute] = [Mount("/static", StaticFiles(directory=STATIC), name="static")]
    for part in PAGES:
        found += part.routes(site)
    site.router.routes.extend(found)
    _sites[feed] = site
    return found


async def missing(request: Request, feed: Feed) -> Response | None:
    """The page for an address that does not exist; None where somebody other than a person's browser asks."""
    site = _sites.get(feed)
    if site is None or request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return None
    request.scope[SITE] = site
    return await problem(request, 404, f"{request.url.path} is not a page of the dashboard.")
