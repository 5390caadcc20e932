"""From an id that somebody pasted, or a part of it, to the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.doors.dashboard.rendering import Site, address, rd_of, to

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/find", find, "find")]


async def find(request: Request) -> Response:
    job = await rd_of(request).jobs.get(request.query_params.get("id", "").strip().lower())
    return to(request, address(request, "job", id=job.id))
