"""REST: every verb of the app under /v1, from one table of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.doors.rest import (
    effects,
    events,
    exchange,
    groups,
    jobs,
    letters,
    operations,
    probes,
    queues,
    redrives,
    reports,
    sessions,
    surroundings,
)
from redrive.doors.rest.answering import endpoints
from redrive.doors.rest.table import Route

if TYPE_CHECKING:
    from starlette.routing import Route as Endpoint

    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed

TABLE: Final[tuple[Route, ...]] = (
    *queues.ROUTES,
    *jobs.ROUTES,
    *effects.ROUTES,
    *groups.ROUTES,
    *exchange.ROUTES,
    *redrives.ROUTES,
    *letters.ROUTES,
    *reports.ROUTES,
    *operations.ROUTES,
    *surroundings.ROUTES,
    *sessions.ROUTES,
    *events.ROUTES,
    *probes.ROUTES,
)
"""The first line that fits a path is the one that is asked: names stand before what takes any id."""


def routes(rd: Redrive, feed: Feed) -> list[Endpoint]:
    return endpoints(TABLE, rd, feed)
