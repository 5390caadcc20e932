"""What waits for somebody, how everything stands in one sentence, and what to begin with. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from redrive.core.breakers import Breaker
from redrive.core.job import CYCLE
from redrive.insight.groups import GroupView
from redrive.insight.health import QueueNumbers
from redrive.insight.morning import FOR_A_PERSON
from redrive.insight.wording import clipped, counted, number, plain

Kind = Literal["dead", "held", "down", "stalled", "backed_up", "spooled"]
ASKING: Final[frozenset[Kind]] = frozenset({"dead", "held"})
"""Nobody but a person ends these."""
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

    kind: Kind
    number: int
    what: str
    todo: str
    about: str = ""
    """The queue, the reason of the hold, or what is down."""
    alone: str = ""
    """As a sentence of its own."""

    @property
    def asks(self) -> bool:
        return self.kind in ASKING


def needs(
    queues: Sequence[QueueNumbers],
    *,
    manual: int = 0,
    holds: Mapping[str, int] | None = None,
    down: Sequence[Breaker] = (),
    spooled: int = 0,
) -> list[Need]:
    """The most urgent first. `manual` are the letters in that lane, `holds` the held jobs by reason."""
    return [
        *_dead(manual),
        *_asking(holds or {}),
        *(_down(breaker) for breaker in down),
        *(_stalled(queue) for queue in queues if queue.stalled),
        *_backed_up(queues),
        *_spooled(spooled),
    ]


def _dead(number: int) -> list[Need]:
    if not number:
        return []
    what = "dead letter waits for you" if number == 1 else "dead letters wait for you"
    return [Need("dead", number, what, "See what they have in common, fix it, redrive them.")]


def _asking(holds: Mapping[str, int]) -> list[Need]:
    found = []
    for because in FOR_A_PERSON:
        if number := holds.get(because, 0):
            one, many, todo = ASKED[because]
            what = f"job {one}" if number == 1 else f"jobs {many}"
            found.append(Need("held", number, what, todo, because))
    return found


def _down(breaker: Breaker) -> Need:
    todo = "Its jobs are parked, and come back by themselves once it answers."
    alone = f"{breaker.key} is down: {plain(breaker.cause)}."
    return Need("down", 1, f"{breaker.key} is down", todo, breaker.key, alone)


def _stalled(queue: QueueNumbers) -> Need:
    what, name = f"{queue.name} has stalled: {queue.stalled[0]}", queue.name
    todo = "See what it does, or cancel it."
    return Need("stalled", len(queue.stalled), what, todo, name, f"{name} has stalled.")


def _backed_up(queues: Sequence[QueueNumbers]) -> list[Need]:
    full = sorted((queue for queue in queues if queue.backed_up), key=lambda queue: -queue.due)
    return [
        Need(
            "backed_up", queue.due, f"jobs are due in {queue.name}",
            "It is paused: resume it." if queue.paused else "Is what they call slow, or are there too few workers?",
            queue.name, f"{queue.name} is backed up: {queue.due:,} jobs are due.",
        )
        for queue in full[:BACKED_UP]
    ]  # fmt: skip


def _spooled(number: int) -> list[Need]:
    if not number:
        return []
    what = f"{'job waits' if number == 1 else 'jobs wait'} beside the store, which could not take them"
    return [Need("spooled", number, what, "A running worker moves them over.", alone=f"{number:,} {what}.")]


# -- in one sentence


class Standing(msgspec.Struct, frozen=True):
    """Everything in one sentence, and what to do in a second one."""

    title: str
    lead: str
    well: bool = False
    begins: bool = False
    """The second names the trouble to begin with."""


def standing(
    queues: Sequence[QueueNumbers], needs: Sequence[Need], done: int, first: GroupView | None = None
) -> Standing:
    """The worst thing first: nobody works, somebody is needed, something is slow; else that all is well.

    `done` are the jobs of the last hour, `first` is the trouble to begin with.
    """
    if not queues:
        return Standing("Nothing has been enqueued yet.", "The first job of a task makes its queue.", well=True)
    due = sum(queue.due for queue in queues if not queue.name.startswith(CYCLE) and not queue.paused)
    if alone := sum(queue.unattended for queue in queues):
        return _nobody_runs(alone)
    waiting = [need for need in needs if need.asks]
    if waiting:
        lead = _begin_with(first) or waiting[0].todo
        return Standing(_wait_for_you(waiting), lead, begins=first is not None)
    running = sum(queue.running for queue in queues)
    lately = f"{counted(done, 'job')} done in the last hour, {running:,} running, {due:,} due."
    if needs:
        return Standing(needs[0].alone[:1].upper() + needs[0].alone[1:], f"{needs[0].todo} {lately}")
    return Standing("All is well.", f"{lately} Nothing needs you.", well=True)


def _nobody_runs(due: int) -> Standing:
    are, them, their = ("is", "it", "its") if due == 1 else ("are", "them", "their")
    return Standing(
        f"{counted(due, 'job')} {are} due, and nobody runs {them}.",
        f"No live worker takes {them}. Start one that knows {their} task: redrive worker APP, or redrive serve APP.",
    )


def _wait_for_you(needs: Sequence[Need]) -> str:
    """`103 dead letters and 7 held jobs wait for you.`"""
    dead = sum(need.number for need in needs if need.kind == "dead")
    held = sum(need.number for need in needs if need.kind == "held")
    parts = [counted(dead, "dead letter")] * bool(dead) + [counted(held, "held job")] * bool(held)
    return f"{' and '.join(parts)} {'waits' if dead + held == 1 else 'wait'} for you."


def _begin_with(first: GroupView | None) -> str:
    """The largest trouble, those of it that wait for a person, and what is suggested against it."""
    if first is None:
        return ""
    what = clipped(first.group.error or first.group.error_class or "no error was recorded", 120).rstrip(".")
    letters = first.dead if first.manual is None else first.manual
    return f"Begin with the {number(letters)} of {first.group.task}: {what}. {first.suggestion.text}"
