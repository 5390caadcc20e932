"""The first page: is everything well, and if not, what to do. In words first, in numbers after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.deadletters.new_groups import New, named, nothing_new, when
from redrive.doors.dashboard.activity import failures, last_days, last_hour, throughput
from redrive.doors.dashboard.live import LOOKS, latest
from redrive.doors.dashboard.needs import needs_of, row
from redrive.doors.dashboard.rendering import Site, back, form_of, numbers_of, page, rd_of, site_of
from redrive.engine.worker_registry import living
from redrive.reports.headline import standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.deadletters.group import GroupView
    from redrive.reports.needs import Need
    from redrive.reports.queue_numbers import QueueNumbers

FIRST_SECONDS: Final = 5.0
LISTED: Final = 6
NEEDS: Final = 8
"""So many are shown here; the morning shows all of them."""
WHICH: Final[tuple[New, ...]] = ("deploy", "hour")
QUEUES: Final = 30
"""So many are shown here, the busiest first; all of them have a page of their own."""


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/", overview, "overview"),
        site.route("/breakers/close", close_breaker, "close_breaker", post=True),
    ]


async def overview(request: Request) -> Response:
    site = site_of(request)
    queues = await numbers_of(site)
    breakers = [breaker for breaker in await site.rd.breakers() if breaker.down]
    needs = await needs_of(request)
    workers, first = await living(site.rd.store, site.rd.clock.now()), await _first(site, needs)
    hour, days = await last_hour(site), await last_days(site)
    feed, after = await latest(request)
    new = await site.fresh("new", site.rd.groups.new)
    rows = [
        {"queue": queue, "series": hour.of(queue.name), "rate": hour.rate(queue.name, "succeeded")}
        for queue in sorted(queues, key=_busiest)[:QUEUES]
    ]
    return await page(
        request,
        "overview.html",
        section="overview",
        health=standing(queues, needs, sum(hour.total.flows["succeeded"]), first, breakers),
        first=first,
        new=[(which, found, when(new, which), named(found)) for which in WHICH if (found := new.of(which))],
        nothing_new=nothing_new(new),
        needs=[row(request, need) for need in needs[:NEEDS]],
        more_needs=max(0, len(needs) - NEEDS),
        rows=rows,
        hour=hour,
        more=max(0, len(queues) - QUEUES),
        workers=workers,
        paused={queue.name for queue in queues if queue.paused},
        breakers=breakers,
        running=await site.rd.reports.running(LISTED),
        oldest=await site.rd.store.overdue(site.rd.clock.now(), limit=LISTED),
        plots={"throughput": (throughput(hour), throughput(days)), "failures": (failures(hour), failures(days))},
        flows={"hour": hour.total.flows, "days": days.total.flows},
        feed=feed,
        live_after=after,
        looks=sorted({*LOOKS.values(), "waiting"}),
    )


def _busiest(queue: QueueNumbers) -> tuple[bool, int, str]:
    """What has something to do or needs somebody stands first."""
    alive = queue.due + queue.running + queue.held
    return not (alive or queue.dead or queue.paused), -alive, queue.name


async def close_breaker(request: Request) -> Response:
    """A person knows that it answers again."""
    key = (await form_of(request)).text("key") or ""
    if await rd_of(request).close_breaker(key):
        return back(request, f"{key} is closed: what was parked comes back.")
    return back(request, f"Nothing changed: {key} was not open any more.", kind="bad")


async def _first(site: Site, needs: Sequence[Need]) -> GroupView | None:
    """What to begin with, where dead letters wait."""
    if not any(need.kind == "dead_manual" for need in needs):
        return None
    found: GroupView | None = await site.fresh("first", site.rd.groups.first, FIRST_SECONDS)
    return found
