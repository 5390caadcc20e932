"""The dashboard: plain pages over GET, changes by POST forms, one stream that tells when to look again.

`routes(rd, feed)` gives everything under one prefix; doors/web mounts it behind the guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from redrive.doors.dashboard import (
    agents,
    group,
    job,
    letters,
    live,
    morning,
    overview,
    queues,
    redrives,
    sessions,
    workflows,
)
from redrive.doors.dashboard.rendering import STATIC, Site

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.doors.web.feed import Feed

PAGES: Final = (overview, live, letters, group, job, redrives, queues, morning, agents, workflows, sessions)
"""Each has `routes(site)`."""


def routes(rd: Redrive, feed: Feed) -> list[BaseRoute]:
    """Every page, action and file, to be mounted at "/" or under a prefix."""
    site = Site(rd, feed)
    found: list[BaseRoute] = [Mount("/static", StaticFiles(directory=STATIC), name="static")]
    for part in PAGES:
        found += part.routes(site)
    site.router.routes.extend(found)
    return found
