"""What waits for a person, and how everything stands in one sentence: what the first page opens with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

import msgspec

from redrive.core.job import CYCLE, State
from redrive.core.store import Filter
from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import address, site_of
from redrive.insight.morning import FOR_A_PERSON

if TYPE_CHECKING:
    from starlette.requests import Request

    from redrive.core.breakers import Breaker
    from redrive.insight.groups import GroupView
    from redrive.insight.health import QueueNumbers

BACKED_UP: Final = 3
"""So many queues that are backed up are named."""
ASKED: Final = {
    "approval": (
        "waits for an approval",
        "wait for an approval",
        "Approve or reject: the question stands with the job.",
    ),
    "consent": ("waits for consent", "wait for consent", "Approve or reject: nothing has been done yet."),
    "outcome_unknown": ("may or may not have happened",) * 2 + ("Look outside whether it landed, then say so.",),
}
"""What a held job wants of a person: of one, of many, and what to do."""


class Need(msgspec.Struct, frozen=True):
    """One thing that waits for somebody."""

    number: int
    what: str
    todo: str
    href: str
    kind: Literal["dead", "held"] = "held"
    asks: bool = False
    """Nobody but a person ends it."""
    alone: str = ""
    """As a sentence of its own."""


async def needs_of(request: Request, queues: Sequence[QueueNumbers], breakers: Sequence[Breaker]) -> list[Need]:
    """The most urgent first."""
    site = site_of(request)
    count = site.rd.store.count
    lanes = await site.fresh("lanes", lambda: count(Filter(states=(State.dead,)), by=("lane",)))
    holds = await site.fresh("holds", lambda: count(Filter(states=(State.held,)), by=("because",)))
    return [
        *_dead(request, lanes.get(("manual",), 0)),
        *_asking(request, holds),
        *_down(breakers),
        *_stalled(request, queues),
        *_backed_up(request, queues),
        *_spooled(request, site.rd.spool.count()),
    ]


def _queue(request: Request, name: str) -> str:
    return f"{address(request, 'queues')}#queue-{quote(name)}"


def _dead(request: Request, number: int) -> list[Need]:
    if not number:
        return []
    what = "dead letter waits for you" if number == 1 else "dead letters wait for you"
    todo = "See what they have in common, fix it, redrive them."
    return [Need(number, what, todo, address(request, "letters", query={"lane": "manual"}), "dead", asks=True)]


def _asking(request: Request, holds: Mapping[tuple[str | None, ...], int]) -> list[Need]:
    needs = []
    for because in FOR_A_PERSON:
        if number := holds.get((because,), 0):
            one, many, todo = ASKED[because]
            what = f"job {one}" if number == 1 else f"jobs {many}"
            href = address(request, "held", query={"because": because})
            needs.append(Need(number, what, todo, href, asks=True))
    return needs


def _down(breakers: Sequence[Breaker]) -> list[Need]:
    todo = "Its jobs are parked, and come back by themselves once it answers."
    return [
        Need(
            1,
            f"{breaker.key} is down",
            todo,
            "#breakers",
            alone=f"{breaker.key} is down: {words.plain(breaker.cause)}.",
        )
        for breaker in breakers
    ]


def _stalled(request: Request, queues: Sequence[QueueNumbers]) -> list[Need]:
    return [
        Need(
            len(queue.stalled), f"{queue.name} has stalled: {queue.stalled[0]}", "See what it does, or cancel it.",
            _queue(request, queue.name), alone=f"{queue.name} has stalled.",
        )
        for queue in queues
        if queue.stalled
    ]  # fmt: skip


def _backed_up(request: Request, queues: Sequence[QueueNumbers]) -> list[Need]:
    full = sorted((queue for queue in queues if queue.due > (queue.policy.health_depth or 0)), key=lambda one: -one.due)
    return [
        Need(
            queue.due, f"jobs are due in {queue.name}",
            "It is paused: resume it." if queue.paused else "Is what they call slow, or are there too few workers?",
            _queue(request, queue.name), alone=f"{queue.name} is backed up: {queue.due:,} jobs are due.",
        )
        for queue in full[:BACKED_UP]
    ]  # fmt: skip


def _spooled(request: Request, number: int) -> list[Need]:
    if not number:
        return []
    what = f"{'job waits' if number == 1 else 'jobs wait'} beside the store, which could not take them"
    todo = "A running worker moves them over."
    return [Need(number, what, todo, address(request, "queues"), alone=f"{number:,} {what}.")]


# -- in one sentence


class Standing(msgspec.Struct, frozen=True):
    """Everything in one sentence, and what to do in a second one."""

    title: str
    lead: str
    well: bool = False


def standing(
    queues: Sequence[QueueNumbers], needs: Sequence[Need], workers: int, done: int, first: GroupView | None = None
) -> Standing:
    """The worst thing first: nobody works, somebody is needed, something is slow; else that all is well."""
    if not queues:
        return Standing("Nothing has been enqueued yet.", "The first job of a task makes its queue.", well=True)
    due = sum(queue.due for queue in queues if not queue.name.startswith(CYCLE) and not queue.paused)
    if due and not workers:
        title = f"{words.counted(due, 'job')} {'is' if due == 1 else 'are'} due, and nobody runs"
        return Standing(
            f"{title} {'it' if due == 1 else 'them'}.",
            "No worker is alive. Start one: redrive worker APP, or redrive serve APP.",
        )
    waiting = [need for need in needs if need.asks]
    if waiting:
        return Standing(_wait_for_you(waiting), _begin_with(first) or waiting[0].todo)
    running = sum(queue.running for queue in queues)
    lately = f"{words.counted(done, 'job')} done in the last hour, {running:,} running, {due:,} due."
    if needs:
        return Standing(needs[0].alone[:1].upper() + needs[0].alone[1:], f"{needs[0].todo} {lately}")
    return Standing("All is well.", f"{lately} Nothing needs you.", well=True)


def _wait_for_you(needs: Sequence[Need]) -> str:
    """`103 dead letters and 7 held jobs wait for you.`"""
    dead = sum(need.number for need in needs if need.kind == "dead")
    held = sum(need.number for need in needs if need.kind == "held")
    parts = [words.counted(dead, "dead letter")] * bool(dead) + [words.counted(held, "held job")] * bool(held)
    return f"{' and '.join(parts)} {'waits' if dead + held == 1 else 'wait'} for you."


def _begin_with(first: GroupView | None) -> str:
    """The largest trouble, and what is suggested against it."""
    if first is None:
        return ""
    what = words.clipped(first.group.error or first.group.error_class or "no error was recorded", 120).rstrip(".")
    return f"Begin with the {words.number(first.dead)} of {first.group.task}: {what}. {first.suggestion.text}"
