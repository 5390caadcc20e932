"""What happened in some time: every move that a number of a page has counted, newest first."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Final

from redrive.core import times
from redrive.core.store import MoveFilter
from redrive.doors.dashboard import choosing, words
from redrive.doors.dashboard.live import LOOKS
from redrive.doors.dashboard.rendering import Site, page, rd_of
from redrive.errors import InvalidInput
from redrive.reports.morning import DONE, FAILED

if TYPE_CHECKING:
    from starlette.datastructures import QueryParams
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

MOVES: Final = 50
DAY: Final = "24h"
KINDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "done": ("done", DONE),
    "retried": ("failed, and tried again", ("retried",)),
    "died": ("died", FAILED),
    "buried": ("died in a worker", ("buried",)),
}
"""What may be asked for: its words, and the moves that it stands for."""
ROUTE: Final = ("queue", "task", "agent")


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/moves", listed, "moves")]


async def listed(request: Request) -> Response:
    rd, asked = rd_of(request), request.query_params
    what, now = asked.get("what") or "done", rd.clock.now()
    if what not in KINDS:
        raise InvalidInput(field="what", problem=f"{what[:50]!r} is not one of {', '.join(KINDS)}")
    choice = choosing.read(asked)
    since = choosing.instant(choice.of("since") or DAY, now)
    until = _until(asked, now)
    route = {name: choice.of(name) or None for name in ROUTE}
    chosen = MoveFilter(KINDS[what][1], since, until, **route, no_agent=bool(choice.of("no_agent")))
    cursor = asked.get("cursor")
    found = await rd.store.moves(chosen, cursor, MOVES)
    return await page(
        request, "moves.html", section="jobs", found=found, what=what,
        kinds=[(name, said) for name, (said, _) in KINDS.items()],
        words=KINDS[what][0], since=since, until=until, cursor=cursor, looks=LOOKS,
        active=[(name, said) for name, said in choice.active if name in (*ROUTE, "no_agent")],
    )  # fmt: skip


def _until(asked: QueryParams, now: float) -> float:
    """Up to now unless the address says otherwise; what happens at this very moment belongs to it."""
    text = asked.get("until", "").strip()
    if not text:
        return now + words.MOMENT
    return times.moment("until", times.read_time("until", text, zone=UTC))
