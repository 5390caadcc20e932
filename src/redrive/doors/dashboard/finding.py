"""From an id that somebody pasted, or a part of it, to the job; where several have that part, to all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.core.checks import is_part_of_id
from redrive.core.store import Filter
from redrive.doors.dashboard.rendering import Site, address, page, rd_of, to
from redrive.errors import JobNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.api.redrive import Redrive
    from redrive.core.job import Job

MOST: Final = 50


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/find", find, "find")]


async def find(request: Request) -> Response:
    rd, said = rd_of(request), request.query_params.get("id", "").strip().lower()
    try:
        job = await rd.jobs.get(said)
    except JobNotFound:
        several = await _several(rd, said)
        if not several:
            raise
        return await page(request, "found.html", part=said, jobs=several, most=MOST)
    return to(request, address(request, "job", id=job.id))


async def _several(rd: Redrive, said: str) -> Sequence[Job]:
    """The newest jobs whose ids have this part."""
    return (await rd.store.find(Filter(id_part=said), limit=MOST)).jobs if is_part_of_id(said) else ()
