"""Who runs jobs, which tasks there are, when they run by themselves, and what is down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.core.store import Filter
from redrive.doors.dashboard.rendering import Site, page, rd_of, site_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

TASKS_SECONDS: Final = 2.0
MOST: Final = 100
"""So many running jobs of one worker are listed."""
TABS: Final = (("workers", "Workers"), ("tasks", "Tasks"), ("schedules", "Schedules"), ("breakers", "Breakers"))


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/workers", workers, "workers"),
        site.route("/tasks", tasks, "tasks"),
        site.route("/schedules", schedules, "schedules"),
        site.route("/breakers", breakers, "breakers"),
    ]


async def workers(request: Request) -> Response:
    task = request.query_params.get("task", "")
    found = [view for view in await rd_of(request).workers() if not task or task in view.tasks]
    return await page(request, "workers.html", section="workers", tabs=TABS, views=found, task=task, most=MOST)


async def tasks(request: Request) -> Response:
    found = await site_of(request).fresh("tasks", rd_of(request).tasks, TASKS_SECONDS)
    return await page(request, "tasks.html", section="workers", tabs=TABS, views=found)


async def schedules(request: Request) -> Response:
    return await page(request, "schedules.html", section="workers", tabs=TABS, views=await rd_of(request).schedules())


async def breakers(request: Request) -> Response:
    rd = rd_of(request)
    counted = await rd.store.count(Filter(because="circuit_open"), by=("held_for",))
    parked = {str(key): number for (key,), number in counted.items()}
    return await page(request, "breakers.html", section="workers", tabs=TABS, views=await rd.breakers(), parked=parked)
