"""The morning's page: what a person must look at, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import Site, address, numbers_of, page, rd_of, site_of
from redrive.errors import InvalidInput
from redrive.insight.morning import SHOWN, headline, in_words, lasting

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.insight.morning import Morning, Need

SPANS: Final = {"8h": ("the last 8 hours", 8), "24h": ("the last 24 hours", 24), "3d": ("the last 3 days", 72),
                "7d": ("the last 7 days", 168)}  # fmt: skip
KINDS: Final = {
    "dead": ("dead", "dead letters"),
    "held": ("held", "held for you"),
    "stuck": ("dead", "fetched by nobody"),
    "stale": ("dead", "does not heal"),
    "waiting": ("waiting", "run by nobody"),
    "spool": ("held", "beside the store"),
}


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/morning", shown, "morning")]


async def shown(request: Request) -> Response:
    since, queue = request.query_params.get("since") or "24h", request.query_params.get("queue") or None
    if since not in SPANS:
        raise InvalidInput(field="since", problem=f"{since!r} is not one of {', '.join(SPANS)}")
    found = await rd_of(request).morning(timedelta(hours=SPANS[since][1]), queue=queue)
    title, summary = told(found)
    return await page(
        request,
        "morning.html",
        section="morning",
        morning=found,
        headline=title,
        summary=summary,
        since=since,
        span=SPANS[since][0],
        spans=[(name, said) for name, (said, _) in SPANS.items()],
        queue=queue,
        queues=[each.name for each in await numbers_of(site_of(request))],
        needs=[(need, *KINDS[need.kind], lasting(need), _place(request, need)) for need in found.needs[:SHOWN]],
        rest=sum(need.number for need in found.needs[SHOWN:]),
        changes=[(delta, in_words(delta)) for delta in found.changes],
    )


def told(found: Morning) -> tuple[str, str]:
    """The large line, and the numbers behind it as the terminal says them."""
    number, kinds = found.waiting_for_you, len(found.changes)
    parts = []
    if number:
        parts.append(f"{words.counted(number, 'job')} {'needs' if number == 1 else 'need'} you")
    if kinds:
        parts.append(f"{words.counted(kinds, 'kind')} of error {'is' if kinds == 1 else 'are'} new or more frequent")
    return f"{', and '.join(parts) or 'A quiet morning'}.", headline(found)


def _place(request: Request, need: Need) -> str | None:
    """Where to go on: the group where there are several, else the job."""
    if need.kind == "dead" and need.number > 1 and need.fingerprint:
        return address(request, "group", fingerprint=need.fingerprint)
    return address(request, "job", id=need.job_id) if need.job_id else None
