"""Dead letters: the groups first, then each dead letter; jobs that are held for a person; an export as a file."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redrive.core.consent import Approval
from redrive.core.job import Job
from redrive.deadletters.group import HOUR, STATUSES, GroupView
from redrive.deadletters.new_groups import New, when
from redrive.doors.dashboard.bulk_actions import OFFERED
from redrive.doors.dashboard.job import QUESTIONS
from redrive.doors.dashboard.requests import count_by_group, list_options, make_filters, read_choice
from redrive.doors.web.export import answer_export
from redrive.doors.web.problems import RequestRefused
from redrive.doors.web.tokens import find_lacking_role
from redrive.reports import timeline

if TYPE_CHECKING:
    from starlette.responses import Response

    from redrive.api.redrive import Redrive
    from redrive.core.store import Group
    from redrive.doors.dashboard.rendering import Values
    from redrive.doors.dashboard.requests import PageRequest

DEAD_LETTERS: Final = 50
GROUPS: Final = 12
"""Groups that are shown above the dead letters."""
GROUPS_A_PAGE: Final = 50
"""Groups that the pages of groups alone show; the page 0 is that of the dead letters."""
NEW: Final[tuple[New, ...]] = ("deploy", "hour")


async def list_dead_letters(request: PageRequest) -> Values:
    rd, choice, cursor = request.rd, read_choice(request.query_params), request.query_params.get("cursor")
    filters = await make_filters(rd, choice)
    counts = await _count_dead_letters(rd, filters)
    await rd.groups.look()
    groups = await rd.groups.records()
    group_filter = await _read_group_filter(request, groups)
    if group_filter is not None:
        matching = {name: number for name, number in counts.matching.items() if name in group_filter.fingerprints}
        counts = counts._replace(matching=Counter(matching), lanes=Counter())
    number = len(counts.matching)
    last_page = max(1, math.ceil(number / GROUPS_A_PAGE))
    group_page = max(min(request.number("groups") or 0, last_page), int(group_filter is not None))
    skipped, most = (GROUPS_A_PAGE * (group_page - 1), GROUPS_A_PAGE) if group_page else (0, GROUPS)
    return {
        "choice": choice,
        "group_filter": group_filter,
        "cursor": cursor,
        "total": sum(counts.matching.values()),
        "group_number": number,
        "views": (await _rank_groups(rd, groups, counts, skipped + most))[skipped:],
        "group_page": group_page,
        "skipped": skipped,
        "more_groups": number > skipped + most,
        "listed": None if group_page else await rd.dead.list(limit=DEAD_LETTERS, cursor=cursor, **filters),
        "offered": OFFERED.values(),
        "options": list_options(groups),
        "lanes": _describe_lanes(counts.lanes),
        "more_filters": any(name not in ("task", "queue", "detail", "since") for name in choice.filters),
    }


class GroupFilter(NamedTuple):
    """Which groups the address asks for: the filter, its value, the fingerprints of its groups, and its words."""

    name: str
    value: str
    fingerprints: frozenset[str]
    words: str


async def _read_group_filter(request: PageRequest, groups: Sequence[Group]) -> GroupFilter | None:
    """Read whether the new groups or those of one status are asked for; None for all groups."""
    if request.text("new"):
        which, new = request.choose("new", NEW, NEW[0]), await request.rd.groups.new()
        fingerprints = frozenset(view.group.fingerprint for view in new.of(which))
        return GroupFilter("new", which, fingerprints, f"new {when(new, which)}")
    if request.text("status"):
        status = request.choose("status", STATUSES, STATUSES[0])
        return GroupFilter("status", status, frozenset(await request.rd.groups.with_status(groups, status)), status)
    return None


class DeadLetterCounts(NamedTuple):
    """How many dead letters there are: all and the matching ones by group; all by lane where no filter is set."""

    every: Counter[str | None]
    matching: Counter[str | None]
    lanes: Counter[str | None]


async def _count_dead_letters(rd: Redrive, filters: Mapping[str, Any]) -> DeadLetterCounts:
    """Count the dead letters, with one query unless more than the lane is filtered."""
    counts = DeadLetterCounts(Counter(), Counter(), Counter())
    if not filters.keys() <= {"lane"}:
        every, matching = await asyncio.gather(count_by_group(rd, {}), count_by_group(rd, filters))
        return counts._replace(every=Counter(every), matching=Counter(matching))
    for (fingerprint, lane), number in (await rd.jobs.count(state="dead", by=("fingerprint", "lane"))).items():
        counts.every[fingerprint] += number
        if filters.get("lane", lane) == lane:
            counts.matching[fingerprint] += number
        if not filters:
            counts.lanes[lane] += number
    return counts


async def _rank_groups(
    rd: Redrive, groups: Sequence[Group], counts: DeadLetterCounts, most: int
) -> list[tuple[GroupView, int, list[int]]]:
    """Rank the groups that have matching dead letters, the unresolved ones first."""
    matching = [group for group in groups if group.fingerprint in counts.matching]
    views, now = await rd.groups.rank(matching, counts.every, limit=most), rd.clock.now()
    return [(view, counts.matching[view.fingerprint], list_hours(view, now)) for view in views]


def list_hours(view: GroupView, now: float, number: int = 48) -> list[int]:
    """List how many jobs of a group died, hour by hour, the last hour now."""
    noted, last = dict(view.state.hours), int(now // HOUR)
    return [noted.get(hour, 0) for hour in range(last - number + 1, last + 1)]


def _describe_lanes(lanes: Counter[str | None]) -> str:
    """Say how many wait for a person, and how many come back by themselves."""
    manual, delayed = lanes["manual"], lanes["delayed"]
    parts = [f"{manual:,} {'waits' if manual == 1 else 'wait'} for a person"] if manual else []
    parts += [f"{delayed:,} {'comes back by itself' if delayed == 1 else 'come back by themselves'}"] if delayed else []
    return ", ".join(parts) + "." if parts else ""


# -- held for a person

HELD: Final = {
    "approval": "a question is open",
    "consent": "consent is missing",
    "outcome_unknown": "the outcome is unknown",
    "deferred": "deferred",
}
HELD_LEADS: Final = {"deferred": "Deferred to a person. At the given time they become dead letters again."}


async def list_held(request: PageRequest) -> Values:
    """List the jobs that only a person can release."""
    rd, cursor = request.rd, request.query_params.get("cursor")
    counted = await rd.jobs.count(state="held", by=("because",))
    kinds = [(name, text, counted.get((name,), 0)) for name, text in HELD.items()]
    because = request.choose("because", HELD, next((name for name, _, number in kinds if number), "approval"))
    page = await rd.jobs.list(state="held", because=because, limit=DEAD_LETTERS, cursor=cursor)
    lead = HELD_LEADS.get(because, "Nothing happens before you decide.")
    return {
        "because": because,
        "kinds": kinds,
        "listed": page,
        "cursor": cursor,
        "lead": lead if any(number for _, _, number in kinds) else "Nothing waits for you.",
        "choices": {job.id: timeline.tell(job, [], rd.clock.now()).choices for job in page.jobs},
        "questions": await _read_questions(rd, page.jobs),
        "verb_texts": QUESTIONS,
    }


async def _read_questions(rd: Redrive, jobs: Sequence[Job]) -> dict[str, Approval]:
    """Read the open question of each job."""
    asking = [job for job in jobs if job.because == "approval"]
    questions = [(job.id, question) for job in asking for question in await rd.sessions.questions(job)]
    return {id: question for id, question in questions if question.answer == "open"}


# -- export


async def export_dead_letters(request: PageRequest) -> Response:
    """Send dead letters as lines of JSON: a download without secrets, unless the address asks for them."""
    choice = read_choice(request.query_params)
    chosen = {"ids": choice.ids} if choice.picked else await make_filters(request.rd, choice)
    secrets = request.text("secrets") == "true"
    if secrets and (lacks := find_lacking_role(request.scope, "act")) is not None:
        raise RequestRefused(lacks)
    return await answer_export(request.rd, chosen, secrets=secrets)
