"""The first page: is everything well, and if not, what to do. In words first, in numbers after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core.job import Job, State
from redrive.core.store import Filter
from redrive.doors.dashboard.activity import failures, last_days, last_hour, throughput
from redrive.doors.dashboard.live import LOOKS, latest
from redrive.doors.dashboard.needs import Need, needs_of, standing
from redrive.doors.dashboard.rendering import Site, back, form_of, numbers_of, page, rd_of, site_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.insight.groups import GroupView
    from redrive.insight.health import QueueNumbers

LARGEST: Final = 5
"""So many of the largest troubles are looked at for one that nobody has dealt with."""
LARGEST_SECONDS: Final = 5.0
LISTED: Final = 6
QUEUES: Final = 30
"""So many are shown here, the busiest first; all of them have a page of their own."""
LOOKED_AT: Final = 200
"""So many of the running jobs that came first are asked which of them has run for longest."""
WORKER_GONE_AFTER: Final = 90.0


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/", overview, "overview"),
        site.route("/breakers/close", close_breaker, "close_breaker", post=True),
    ]


async def overview(request: Request) -> Response:
    site = site_of(request)
    queues = await numbers_of(site)
    breakers = [breaker for breaker in await site.rd.breakers() if breaker.state != "closed"]
    needs = await needs_of(request, queues, breakers)
    workers, first = await _workers(site), await _first(site, needs)
    hour, days = await last_hour(site), await last_days(site)
    feed, after = await latest(request)
    rows = [
        {"queue": queue, "series": hour.of(queue.name), "rate": hour.rate(queue.name, "succeeded")}
        for queue in sorted(queues, key=_busiest)[:QUEUES]
    ]
    return await page(
        request,
        "overview.html",
        section="overview",
        health=standing(queues, needs, len(workers), sum(hour.total.flows["succeeded"]), first),
        first=first,
        needs=needs,
        rows=rows,
        more=max(0, len(queues) - QUEUES),
        workers=workers,
        paused={queue.name for queue in queues if queue.paused},
        breakers=breakers,
        running=await _running(site),
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
    if not any(need.kind == "dead" for need in needs):
        return None
    found: GroupView | None = await site.fresh("largest", lambda: _largest(site), LARGEST_SECONDS)
    return found


async def _largest(site: Site) -> GroupView | None:
    """The trouble with the most letters in the manual lane that nobody has dealt with, of those that are largest."""
    store = site.rd.store
    counted = await store.count(Filter(states=(State.dead,)), by=("fingerprint",))
    names = sorted((name for (name,) in counted if name), key=lambda name: -counted[name,])[:LARGEST]
    manual = {
        name: sum((await store.count(Filter(states=(State.dead,), lane="manual", fingerprint=name))).values())
        for name in names
    }
    for name in sorted(names, key=lambda name: -manual[name]):
        view = await site.rd.groups.show(name)
        if manual[name] and view.status == "unresolved":
            return view
    return None


async def _workers(site: Site) -> list[dict[str, Any]]:
    """Who has announced itself lately."""
    now, documents = site.rd.clock.now(), await site.rd.store.docs("worker")
    said = [{"id": document.key, **msgspec.json.decode(document.value)} for document in documents]
    return [worker for worker in said if now - worker["at"] <= WORKER_GONE_AFTER]


async def _running(site: Site) -> list[Job]:
    """What runs, the longest first."""
    found = await site.rd.store.find(Filter(states=(State.running,)), limit=LOOKED_AT, oldest=True)
    return sorted(found.jobs, key=lambda job: job.started_at or 0.0)[:LISTED]
