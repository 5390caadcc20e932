"""The morning's page: what a person must look at, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from redrive.doors.dashboard import words
from redrive.doors.dashboard.needs import list_of, place
from redrive.doors.dashboard.rendering import Site, numbers_of, page, rd_of, site_of
from redrive.errors import InvalidInput
from redrive.reports.morning import SHOWN, headline, window_start
from redrive.reports.morning import in_words as delta_in_words
from redrive.reports.needs import course, lasting

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.reports.morning import Delta, Morning
    from redrive.reports.needs import Need

MORNING_SECONDS: Final = 10.0
"""It is looked at once a day: nobody minds that it was put together a moment ago."""
SPANS: Final = {"8h": ("the last 8 hours", 8), "24h": ("the last 24 hours", 24), "3d": ("the last 3 days", 72),
                "7d": ("the last 7 days", 168)}  # fmt: skip
KINDS: Final = {
    "dead_manual": ("dead", "dead letter"),
    "conflicting_input": ("dead", "conflicting input"),
    "store_failed": ("dead", "store failed"),
    "process_gone": ("dead", "process gone"),
    "approval": ("held", "held for you"),
    "consent": ("held", "held for you"),
    "outcome_unknown": ("held", "outcome unknown"),
    "cycle_missing": ("dead", "cycle missing"),
    "cycle_died": ("dead", "cycle died"),
    "cycle_short": ("held", "cycle short"),
    "stalled": ("held", "stalled"),
    "loop_blocked": ("held", "event loop blocked"),
    "unattended": ("waiting", "without a worker"),
    "backed_up": ("waiting", "backed up"),
    "deferred_overdue": ("held", "should be back"),
    "spooled": ("held", "beside the store"),
    "disk_low": ("dead", "disk low"),
    "clock_jumped": ("held", "clock jumped"),
    "replica_lag": ("held", "replica behind"),
    "channel_failed": ("held", "channel failed"),
}
"""What each kind of need looks like, and its words. They stand behind a number."""
MOODS: Final = {"new": "is-dead", "regressed": "is-dead", "growing": "is-dead", "shrinking": "is-done"}


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/morning", shown, "morning")]


async def shown(request: Request) -> Response:
    since, queue = request.query_params.get("since") or "24h", request.query_params.get("queue") or None
    if since not in SPANS:
        raise InvalidInput(field="since", problem=f"{since!r} is not one of {', '.join(SPANS)}")
    span, ask = timedelta(hours=SPANS[since][1]), rd_of(request).morning
    found = await site_of(request).fresh(f"morning {since} {queue}", lambda: ask(span, queue=queue), MORNING_SECONDS)
    title, summary = told(found)
    return await page(
        request,
        "morning.html",
        section="morning",
        morning=found,
        headline=title,
        summary=summary,
        since=since,
        start=window_start(found.until, found.since),
        span=SPANS[since][0],
        spans=[(name, said) for name, (said, _) in SPANS.items()],
        queue=queue,
        queues=[each.name for each in await numbers_of(site_of(request))],
        needs=[_need(request, need, queue) for need in found.needs[:SHOWN]],
        rest=sum(need.count for need in found.needs[SHOWN:]),
        changes=[(delta, _against(delta)) for delta in found.changes],
        steady=found.steady[:SHOWN],
        cured_classes=[delta_in_words(delta) for delta in found.cured_classes],
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


def _against(delta: Delta) -> str:
    """Its class stands before it, and what all of them may mean above."""
    before = "never seen before" if delta.kind == "new" else f"{words.number(delta.before)} the time before"
    return f"{words.number(delta.now)}, {before}"


def in_words(kind: str, number: int) -> tuple[str, str]:
    """What so many needs of a kind look like, and their words."""
    look, word = KINDS.get(kind, ("held", words.plain(kind)))
    return look, f"{word}s" if kind == "dead_manual" and number != 1 else word


def _need(request: Request, need: Need, queue: str | None) -> dict[str, Any]:
    look, word = in_words(need.kind, need.count)
    owner = f"for {need.owner}" if need.owner else ""
    return {
        "need": need,
        "look": look,
        "word": word,
        "place": place(request, need),
        "list": list_of(request, need, queue),
        "course": course(need),
        "mood": MOODS.get(need.course or "", "muted"),
        "tags": [said for said in (lasting(need), owner) if said],
    }
