"""Dead letters: the troubles first, then the letters; what is held for a person; taking some along as a file."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import StreamingResponse

from redrive.core.consent import Approval
from redrive.core.job import Job, State
from redrive.core.store import Filter
from redrive.doors.dashboard import acting, choosing
from redrive.doors.dashboard.choosing import by_group
from redrive.doors.dashboard.rendering import Site, page, rd_of, site_of
from redrive.errors import InvalidInput
from redrive.insight import story
from redrive.insight.groups import HOUR, GroupView

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.app import Redrive

LETTERS: Final = 50
GROUPS: Final = 12
"""Groups that are shown before somebody asks for all of them."""
GROUPS_A_PAGE: Final = 50
MOST_GROUPS: Final = 10_000
HELD_LEADS: Final = {"deferred": "Put off to somebody; at their time they are dead letters again."}
GROUP_FILTERS: Final = ("queue", "task", "agent", "detail", "error_class")
HELD: Final = (
    ("approval", "a question is open"),
    ("consent", "consent is missing"),
    ("outcome_unknown", "nobody knows whether it landed"),
    ("deferred", "deferred"),
)


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/dead", listed, "letters"),
        site.route("/held", held, "held"),
        site.route("/dead/export", export, "export"),
        *acting.routes(site),
    ]


# -- looking


async def listed(request: Request) -> Response:
    rd = rd_of(request)
    choice, cursor = choosing.read(request.query_params), request.query_params.get("cursor")
    chosen = await choosing.filters(rd, choice)
    counts, known = await by_group(rd, chosen), await rd.store.groups()
    turn = _turn(request)
    skipped, most = (GROUPS_A_PAGE * (turn - 1), GROUPS_A_PAGE) if turn else (0, GROUPS)
    views = (await _views(rd, chosen, counts, len(known), skipped + most))[skipped:]
    return await page(
        request, "letters.html", section="letters", choice=choice, cursor=cursor, total=sum(counts.values()),
        group_number=len(counts), views=views, turn=turn, skipped=skipped, more_groups=len(counts) > skipped + most,
        listed=None if turn else await rd.dead.list(limit=LETTERS, cursor=cursor, **chosen),
        options=choosing.options(known), lanes="" if choice.said else await _lanes(site_of(request)),
        more_filters=any(name not in ("task", "queue", "detail", "since") for name in choice.said),
    )  # fmt: skip


def _turn(request: Request) -> int:
    """Which page of the groups alone somebody looks at; 0: a few of them, and the letters."""
    said = request.query_params.get("groups", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 5 else 0


async def _views(
    rd: Redrive, chosen: Mapping[str, Any], counts: Mapping[str | None, int], known: int, most: int
) -> list[tuple[GroupView, int, list[int]]]:
    """The groups that have such letters, those that nobody has settled first."""
    narrowed = {name: value for name, value in chosen.items() if name in GROUP_FILTERS}
    without = max(0, known - len(counts))  # so many may stand before those that are sought
    found = await rd.groups.list(limit=min(MOST_GROUPS, most + without), **narrowed)
    now = rd.clock.now()
    there = [view for view in found if view.fingerprint in counts]
    return [(view, counts[view.fingerprint], hours(view, now)) for view in there[:most]]


def hours(view: GroupView, now: float, number: int = 48) -> list[int]:
    """Burials hour by hour, the last one now."""
    noted, last = dict(view.state.hours), int(now // HOUR)
    return [noted.get(hour, 0) for hour in range(last - number + 1, last + 1)]


async def _lanes(site: Site) -> str:
    """Who must do something, in a sentence."""
    found = await site.fresh("lanes", lambda: site.rd.store.count(Filter(states=(State.dead,)), by=("lane",)))
    manual, delayed = (found.get((lane,), 0) for lane in ("manual", "delayed"))
    said = [f"{manual:,} {'waits' if manual == 1 else 'wait'} for a person"] if manual else []
    said += [f"{delayed:,} {'comes' if delayed == 1 else 'come'} back by themselves"] if delayed else []
    return ", ".join(said) + "." if said else ""


async def held(request: Request) -> Response:
    """What nobody but a person can let go on."""
    rd, cursor = rd_of(request), request.query_params.get("cursor")
    found = await rd.store.count(Filter(states=(State.held,)), by=("because",))
    kinds = [(name, said, found.get((name,), 0)) for name, said in HELD]
    first = next((name for name, _, number in kinds if number), HELD[0][0])
    because = request.query_params.get("because") or first
    if because not in dict(HELD):
        raise InvalidInput(field="because", problem=f"{because!r} is not one of {', '.join(dict(HELD))}")
    jobs = await rd.jobs.list(state="held", because=because, limit=LETTERS, cursor=cursor)
    number = sum(number for _, _, number in kinds)
    lead = "Nothing waits for you." if not number else HELD_LEADS.get(because, "Nothing happens before you decide.")
    return await page(
        request, "held.html", section="letters", because=because, kinds=kinds, listed=jobs, cursor=cursor, lead=lead,
        choices={job.id: story.tell(job, [], rd.clock.now()).choices for job in jobs.jobs},
        questions=await _questions(rd, jobs.jobs),
    )  # fmt: skip


async def _questions(rd: Redrive, jobs: Sequence[Job]) -> dict[str, Approval]:
    """What each of them asks."""
    found = {}
    for job in jobs:
        if job.because == "approval":
            for asked in await rd.sessions.questions(job):
                if asked.answer == "open":
                    found[job.id] = asked
    return found


# -- taking them along


async def export(request: Request) -> Response:
    """Lines of JSON, as `redrive dead export` writes them: a download, never a page."""
    rd, choice = rd_of(request), choosing.read(request.query_params)
    chosen = {"ids": choice.ids} if choice.ids and not choice.all else await choosing.filters(rd, choice)
    file = tempfile.SpooledTemporaryFile(max_size=4 * 1024 * 1024)  # noqa: SIM115 - closed once it is sent
    try:
        await rd.dead.export(file, **chosen)
    except BaseException:
        file.close()
        raise
    name = {"content-disposition": 'attachment; filename="dead-letters.jsonl"', "x-content-type-options": "nosniff"}
    return StreamingResponse(_sent(file), media_type="application/x-ndjson", headers=name)


async def _sent(file: Any) -> AsyncIterator[bytes]:
    with file:
        file.seek(0)
        while chunk := file.read(65536):
            yield chunk
