"""What waits for somebody, each with the page where it is seen to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from redrive.core.job import State
from redrive.core.store import Filter
from redrive.doors.dashboard.rendering import address, site_of
from redrive.insight.standing import Need, needs

if TYPE_CHECKING:
    from starlette.requests import Request

    from redrive.core.breakers import Breaker
    from redrive.insight.health import QueueNumbers


async def needs_of(request: Request, queues: Sequence[QueueNumbers], down: Sequence[Breaker]) -> list[Need]:
    """The most urgent first."""
    site = site_of(request)
    count = site.rd.store.count
    lanes = await site.fresh("lanes", lambda: count(Filter(states=(State.dead,)), by=("lane",)))
    holds = await site.fresh("holds", lambda: count(Filter(states=(State.held,)), by=("because",)))
    return needs(
        queues,
        manual=lanes.get(("manual",), 0),
        holds={str(because): number for (because,), number in holds.items()},
        down=down,
        spooled=site.rd.spool.count(),
    )


def row(request: Request, need: Need) -> dict[str, Any]:
    """As the page shows it."""
    kind = "dead" if need.kind == "dead" else "held"
    return {"number": need.number, "what": need.what, "todo": need.todo, "kind": kind, "href": _place(request, need)}


def _place(request: Request, need: Need) -> str:
    match need.kind:
        case "dead":
            return address(request, "letters", query={"lane": "manual"})
        case "held":
            return address(request, "held", query={"because": need.about})
        case "down":
            return "#breakers"
        case "spooled":
            return address(request, "queues")
        case "stalled" | "backed_up":
            return f"{address(request, 'queues')}#queue-{quote(need.about)}"
