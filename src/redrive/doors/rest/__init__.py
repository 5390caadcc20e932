"""REST: every verb of the app under /v1, from one table of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.doors.rest import agents, dead_letters, events, groups, jobs, openapi, probes, queues, redrives, reports
from redrive.doors.rest.route import Route, endpoints

if TYPE_CHECKING:
    from starlette.routing import Route as StarletteRoute

    from redrive.api.redrive import Redrive
    from redrive.doors.web.feed import Feed

PARTS: Final = (queues, jobs, groups, redrives, dead_letters, reports, agents, events, probes)
TABLE: Final[list[Route]] = [route for part in PARTS for route in part.routes]
"""The first route that fits a path is asked: names stand before what takes any id."""
TABLE.append(openapi.make_route(TABLE))
OPEN_PATHS: Final = frozenset(route.path for route in TABLE if route.is_open)


def routes(rd: Redrive, feed: Feed) -> list[StarletteRoute]:
    return endpoints(TABLE, rd, feed)
