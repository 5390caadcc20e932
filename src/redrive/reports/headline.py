"""Writes the state of the whole store in one sentence, and what to begin with. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from redrive.core.job import CYCLE
from redrive.core.words import clipped, counted, number, plain
from redrive.deadletters.group import GroupView
from redrive.reports.needs import Need
from redrive.reports.queue_numbers import QueueNumbers, returning
from redrive.retries.breaker import Breaker, name_of_key


class Standing(msgspec.Struct, frozen=True):
    """State of the whole store in one sentence, and what to do in a second one."""

    title: str
    lead: str
    well: bool = False
    begins: bool = False
    """Whether the second sentence names the group to begin with."""


def standing(
    queues: Sequence[QueueNumbers],
    needs: Sequence[Need],
    done: int,
    first: GroupView | None = None,
    down: Sequence[Breaker] = (),
) -> Standing:
    """Names the worst thing: no worker, a person is needed, something heals by itself; else that all is well.

    `done` are the jobs of the last hour, `first` is the group to begin with, `down` the downstreams that do not answer.
    """
    if not queues:
        return Standing("Nothing has been enqueued yet.", "The first job of a task makes its queue.", well=True)
    due = sum(queue.due for queue in queues if not queue.name.startswith(CYCLE) and not queue.paused)
    if broken := next((need for need in needs if need.kind in ("store_failed", "process_gone")), None):
        return Standing(_capitalise(broken.sentence), broken.action)
    if alone := sum(queue.unattended for queue in queues):
        return _nobody_runs(alone)
    waiting = [need for need in needs if need.asks]
    if waiting:
        lead = f"{_begin_with(first) or waiting[0].action} {_returning(queues)}".rstrip()
        return Standing(_wait_for_you(waiting), lead, begins=first is not None)
    running = sum(queue.running for queue in queues)
    lately = f"{counted(done, 'job')} done in the last hour, {running:,} running, {due:,} due."
    if needs:
        lead = " ".join(filter(None, (needs[0].action, _returning(queues), lately)))
        return Standing(_capitalise(needs[0].sentence), lead)
    healing_text, back = _healing(queues), _returning(queues)
    if down:
        title = _capitalise(f"{name_of_key(down[0].key)} is down: {plain(down[0].cause)}")
        parts = (healing_text, "They come back by themselves once it answers.", back, lately)
        return Standing(title, " ".join(filter(None, parts)))
    if healing := " ".join(filter(None, (healing_text, back))):
        return Standing(healing, f"It heals by itself: nothing needs you. {lately}")
    return Standing("All is well.", f"{lately} Nothing needs you.", well=True)


def _capitalise(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}."


def _healing(queues: Sequence[QueueNumbers]) -> str:
    """Writes `35 jobs are retrying after failures, 150 are parked.`"""
    retrying, parked = sum(queue.retrying for queue in queues), sum(queue.parked for queue in queues)
    if not retrying and not parked:
        return ""
    if not retrying:
        return f"{counted(parked, 'job')} {'is' if parked == 1 else 'are'} parked: what they call is down."
    more = f", {number(parked)} {'is' if parked == 1 else 'are'} parked" if parked else ""
    return f"{counted(retrying, 'job')} {'is' if retrying == 1 else 'are'} retrying after failures{more}."


def _returning(queues: Sequence[QueueNumbers]) -> str:
    """Writes `12 dead letters come back by themselves, the next in 8 min.`"""
    number_back = sum(queue.comes_back for queue in queues)
    times = [queue.next_back for queue in queues if queue.next_back is not None]
    what = "dead letter" if number_back == 1 else "dead letters"
    text = returning(number_back, min(times, default=None))
    return f"{text.replace(' ', f' {what} ', 1)}." if number_back else ""


def _nobody_runs(due: int) -> Standing:
    are, them, their = ("is", "it", "its") if due == 1 else ("are", "them", "their")
    return Standing(
        f"{counted(due, 'job')} {are} due, and no worker runs {them}.",
        f"No live worker takes {them}. Start one that knows {their} task: redrive worker APP, or redrive serve APP.",
    )


def _wait_for_you(needs: Sequence[Need]) -> str:
    """Writes `103 dead letters and 7 held jobs wait for you.`"""
    dead = sum(need.count for need in needs if need.kind in ("dead_manual", "conflicting_input"))
    held = sum(need.count for need in needs) - dead
    parts = [counted(dead, "dead letter")] * bool(dead) + [counted(held, "held job")] * bool(held)
    return f"{' and '.join(parts)} {'waits' if dead + held == 1 else 'wait'} for you."


def _begin_with(first: GroupView | None) -> str:
    """Names the group to begin with, how many of its dead letters wait for a person, and what is suggested."""
    if first is None:
        return ""
    what = clipped(first.group.error or first.group.error_class or "no error was recorded", 120).rstrip(".")
    letters = first.dead if first.manual is None else first.manual
    return f"Begin with the {number(letters)} of {first.group.task}: {what}. {first.suggestion.text}"
