"""Fleet: which hosts keep the jobs and run them, how far each is behind, and how durable an accepted job is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import Site, page, rd_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.fleet.status import FleetStatus

MEANS: Final = {
    "synced": "An accepted job is on disk.",
    "replicated": "An accepted job is on several servers, each of which may sync it later.",
    "unsynced": "An accepted job may be lost when the server loses power.",
}
CHIPS: Final = {"running": "running", "silent": "dead", "closed": "waiting"}


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/fleet", shown, "fleet")]


async def shown(request: Request) -> Response:
    found = await rd_of(request).fleet.view()
    return await page(
        request, "fleet.html", section="fleet", fleet=found, facts=facts(found), means=MEANS[found.durability],
        chips=CHIPS,
    )  # fmt: skip


def facts(found: FleetStatus) -> list[tuple[str, str | None]]:
    """The store in a few lines; those of a log are left out for a file."""
    snapshot = found.snapshot
    return [
        ("Store", found.url),
        ("Log ends at", words.number(found.end) if found.generation else None),
        ("Log holds", f"{words.number(found.log_bytes)} bytes" if found.generation else None),
        ("Its limit", f"{words.number(found.log_limit)} bytes" if found.log_limit else None),
        (
            "Last snapshot",
            f"{words.span(snapshot.age)} ago, {words.number(snapshot.behind)} messages" if snapshot else None,
        ),
    ]
