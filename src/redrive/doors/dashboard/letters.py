"""Dead letters: the groups first, then the letters; what is held for a person; taking some along as a file."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redrive.core.consent import Approval
from redrive.core.job import Job, State
from redrive.core.store import Filter, Group
from redrive.deadletters.group import HOUR, STATUSES, GroupView
from redrive.deadletters.new_groups import New, when
from redrive.doors.dashboard import acting, choosing, verbs
from redrive.doors.dashboard.choosing import by_group
from redrive.doors.dashboard.rendering import Site, page, rd_of
from redrive.doors.web.callers import lacking
from redrive.doors.web.exporting import exported
from redrive.doors.web.problems import Refused
from redrive.errors import InvalidInput
from redrive.reports import timeline

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.api.redrive import Redrive

LETTERS: Final = 50
GROUPS: Final = 12
"""Groups that are shown before somebody asks for all of them."""
GROUPS_A_PAGE: Final = 50
WHICH: Final[Mapping[str, New]] = {"deploy": "deploy", "hour": "hour"}
"""What may be asked for as new."""
HELD_LEADS: Final = {"deferred": "Deferred to a person. At the given time they become dead letters again."}
HELD: Final = (
    ("approval", "a question is open"),
    ("consent", "consent is missing"),
    ("outcome_unknown", "the outcome is unknown"),
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
    counted = await _counted(rd, chosen)
    await rd.groups.look()
    known = await rd.store.groups()
    some = await _some(request, known)
    if some is not None:
        counted = counted.only(some.found)
    counts = counted.matching
    turn = max(_turn(request, len(counts)), int(some is not None))
    skipped, most = (GROUPS_A_PAGE * (turn - 1), GROUPS_A_PAGE) if turn else (0, GROUPS)
    views = (await _views(rd, known, counted, skipped + most))[skipped:]
    return await page(
        request, "letters.html", section="letters", choice=choice, some=some, cursor=cursor, total=sum(counts.values()),
        group_number=len(counts), views=views, turn=turn, skipped=skipped, more_groups=len(counts) > skipped + most,
        listed=None if turn else await rd.dead.list(limit=LETTERS, cursor=cursor, **chosen),
        offered=acting.OFFERED.values(), options=choosing.options(known), lanes=_in_words(counted.lanes),
        more_filters=any(name not in ("task", "queue", "detail", "since") for name in choice.said),
    )  # fmt: skip


def _turn(request: Request, groups: int) -> int:
    """Which page of the groups alone somebody looks at, the last one at most; 0: a few of them, and the letters."""
    said = request.query_params.get("groups", "")
    turn = int(said) if said.isascii() and said.isdigit() and len(said) < 5 else 0
    return min(turn, max(1, math.ceil(groups / GROUPS_A_PAGE)))


class Some(NamedTuple):
    """Which groups the address asks for: by which filter, their fingerprints, and the filter in words."""

    name: str
    value: str
    found: frozenset[str]
    words: str


async def _some(request: Request, known: Sequence[Group]) -> Some | None:
    """The new groups, or those of one status; None where the address asks for all of them."""
    if said := request.query_params.get("new"):
        which = WHICH.get(said)
        if which is None:
            raise InvalidInput(field="new", problem=f"{said[:50]!r} is not one of {', '.join(WHICH)}")
        new = await rd_of(request).groups.new()
        return Some("new", which, frozenset(one.group.fingerprint for one in new.of(which)), f"new {when(new, which)}")
    if said := request.query_params.get("status"):
        if said not in STATUSES:
            raise InvalidInput(field="status", problem=f"{said[:50]!r} is not one of {', '.join(STATUSES)}")
        found = await rd_of(request).groups.with_status(known, said)
        return Some("status", said, frozenset(found), said)
    return None


class Counted(NamedTuple):
    """The dead letters: all of them and those that match, by group; all of them by lane where nothing is chosen."""

    every: Mapping[str | None, int]
    matching: Mapping[str | None, int]
    lanes: Mapping[str | None, int]

    def only(self, groups: Collection[str]) -> Counted:
        """Those of these groups."""
        return Counted(self.every, {name: number for name, number in self.matching.items() if name in groups}, {})


async def _counted(rd: Redrive, chosen: Mapping[str, Any]) -> Counted:
    """One count, unless more than the lane is chosen."""
    if not chosen.keys() <= {"lane"}:
        return Counted(*await asyncio.gather(by_group(rd, {}), by_group(rd, chosen)), {})
    found = await rd.store.count(Filter(states=(State.dead,)), by=("fingerprint", "lane"))
    if not chosen:
        every = _sums(found, 0)
        return Counted(every, every, _sums(found, 1))
    matching = {key: number for key, number in found.items() if key[1] == chosen["lane"]}
    return Counted(_sums(found, 0), _sums(matching, 0), {})


def _sums(found: Mapping[tuple[str | None, ...], int], place: int) -> dict[str | None, int]:
    """By one of the things that they were counted by."""
    sums: dict[str | None, int] = {}
    for key, number in found.items():
        sums[key[place]] = sums.get(key[place], 0) + number
    return sums


async def _views(
    rd: Redrive, known: Sequence[Group], counted: Counted, most: int
) -> list[tuple[GroupView, int, list[int]]]:
    """The groups that have such letters, those that nobody has settled first."""
    there = [group for group in known if group.fingerprint in counted.matching]
    views, now = await rd.groups.ranked(there, counted.every, limit=most), rd.clock.now()
    return [(view, counted.matching[view.fingerprint], hours(view, now)) for view in views]


def hours(view: GroupView, now: float, number: int = 48) -> list[int]:
    """Burials hour by hour, the last one now."""
    noted, last = dict(view.state.hours), int(now // HOUR)
    return [noted.get(hour, 0) for hour in range(last - number + 1, last + 1)]


def _in_words(lanes: Mapping[str | None, int]) -> str:
    """Who must do something, in a sentence."""
    manual, delayed = lanes.get("manual", 0), lanes.get("delayed", 0)
    said = [f"{manual:,} {'waits' if manual == 1 else 'wait'} for a person"] if manual else []
    said += [f"{delayed:,} {'comes back by itself' if delayed == 1 else 'come back by themselves'}"] if delayed else []
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
        choices={job.id: timeline.tell(job, [], rd.clock.now()).choices for job in jobs.jobs},
        questions=await _questions(rd, jobs.jobs), verb_texts=verbs.QUESTIONS,
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
    """Lines of JSON: a download, never a page, and like every page without secrets unless the address asks for them."""
    rd, choice = rd_of(request), choosing.read(request.query_params)
    chosen = {"ids": choice.ids} if choice.ids and not choice.all else await choosing.filters(rd, choice)
    secrets = request.query_params.get("secrets") == "true"
    if secrets and (lacks := lacking(request.scope, "act")) is not None:
        raise Refused(lacks)
    return await exported(rd, chosen, secrets=secrets)
