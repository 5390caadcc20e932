"""Error groups: status, alerts, suggestions and views of one kind of failure. Pure: state and time are arguments.

A group is unresolved, resolved (perhaps in a version) or ignored (until a time, a rate or a count is passed). Only
three things raise an alert: a failure that is new, one that came back after it was resolved, and one that exceeds the
limits of an ignored group. A failure that continues or grows was announced already.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, ClassVar, Final, Literal

import msgspec

from redrive.core.advice import ADVICE
from redrive.core.agents import AgentFleet
from redrive.core.job import At, Job, iso
from redrive.core.store import Group, Lesson
from redrive.core.view import Shown
from redrive.failures.classify import DETAILS

HOUR: Final = 3600.0
DAY: Final = 86400.0
HOURS_KEPT: Final = 48
STORY_KEPT: Final = 30
SHORT: Final = 8
"""Characters of a fingerprint that are shown; any unique prefix of the fingerprint names the group."""
SYSTEMIC: Final = 3
"""Number of dead letters of one group from which on the problem counts as systemic."""
REDRIVE: Final = "redrive"
"""Author of story entries that redrive writes by itself."""

Status = Literal["unresolved", "resolved", "ignored"]
Kind = Literal["new", "regressed", "unignored"]
Trend = Literal["new", "growing", "steady", "shrinking", "quiet", "cured"]
Action = Literal["redrive", "change", "fix", "look"]
STATUSES: Final[tuple[Status, ...]] = ("unresolved", "resolved", "ignored")


class GroupLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a group's history."""

    at: At
    what: str
    who: str
    why: str | None = None


class Alert(msgspec.Struct, frozen=True, omit_defaults=True):
    """One alert on a group. The error text stays in the group, where it can be erased."""

    kind: Kind
    fingerprint: str
    at: float
    queue: str
    task: str
    buried: int
    because: str
    error_class: str | None = None


class GroupState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Decisions of people and redrive about a group: the document of kind "group" under the group's fingerprint."""

    HIDDEN: ClassVar = ("seen_buried", "seen_at", "hours", "ignored_from")
    status: Status = "unresolved"
    resolved_at: At | None = None
    resolved_in: str | None = None
    ignored_at: At | None = None
    ignored_until: At | None = None
    ignored_rate: float | None = None
    """Number of deaths an hour that raise no alert."""
    ignored_count: int | None = None
    """Number of further deaths that raise no alert."""
    ignored_from: int = 0
    """Number of deaths when the group was ignored."""
    who: str | None = None
    why: str | None = None
    note: str | None = None
    seen_buried: int = 0
    """Number of deaths that were judged."""
    seen_at: float = 0.0
    hours: tuple[tuple[int, int], ...] = ()
    """Deaths by the hour, as noticed, for two days."""
    alerted_at: At | None = None
    """Time of the last alert."""
    story: tuple[GroupLine, ...] = ()


_CLEARED: Final[dict[str, Any]] = {
    field.name: field.default
    for field in msgspec.structs.fields(GroupState)
    if field.name.startswith(("resolved_", "ignored_"))
}
"""The fields that a change of the status clears."""


# ---- judging


def judge(
    group: Group, state: GroupState | None, now: float, recent: int, version: str | None = None
) -> tuple[GroupState, Alert | None]:
    """Judges the deaths since the last judgement: `recent` of them in the last hour, the latest one by `version`."""
    known = state if state is not None else GroupState()
    seen = _note_deaths(group, known, now)
    if group.buried <= known.seen_buried:
        return known, None
    breach = _breach(group, known, recent, version)
    if breach is None:
        return seen, None
    kind, because = breach
    alert = Alert(kind, group.fingerprint, now, group.queue, group.task, group.buried, because, group.error_class)
    return _change_status(seen, "unresolved", GroupLine(now, kind, REDRIVE, because), alerted_at=now), alert


def _breach(group: Group, state: GroupState, recent: int, version: str | None) -> tuple[Kind, str] | None:
    """Decides whether new deaths are news: the first ever, or deaths that contradict what a person decided."""
    if state.seen_buried == 0:
        return "new", "first seen"
    if state.status == "resolved" and _is_regression(group, state, version):
        return "regressed", f"resolved{f' in {state.resolved_in}' if state.resolved_in else ''}, and it happened again"
    if state.status == "ignored" and (because := _over(group, state, recent)):
        return "unignored", because
    return None


def _is_regression(group: Group, state: GroupState, version: str | None) -> bool:
    """Whether a job died after the group was resolved, and not by code older than the fix."""
    if state.resolved_at is not None and group.last_at <= state.resolved_at:
        return False
    return not (state.resolved_in and version) or not _older(version, state.resolved_in)


def _older(version: str, than: str) -> bool:
    """Whether a version is older, compared by leading numbers; versions that cannot be compared are not older."""
    ours, theirs = _numbers(version), _numbers(than)
    if not ours or not theirs:
        return False
    pairs = zip_longest(ours, theirs, fillvalue=0)
    return next((one < other for one, other in pairs if one != other), False)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"v?(\d{1,18}(?:\.\d{1,18})*)", version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _over(group: Group, state: GroupState, recent: int) -> str | None:
    """Names the passed limit of an ignored group. A group without limits stays ignored until it is reopened."""
    if state.ignored_until is not None and group.last_at >= state.ignored_until:
        return "the time it was ignored for is over, and it still happens"
    if state.ignored_rate is not None and recent > state.ignored_rate:
        return f"{recent} in the last hour, more than the {state.ignored_rate:g} that are ignored"
    more = group.buried - state.ignored_from
    if state.ignored_count is not None and more > state.ignored_count:
        return f"{more} since it was ignored, more than the {state.ignored_count} that are ignored"
    return None


def _note_deaths(group: Group, state: GroupState, now: float) -> GroupState:
    """Adds the deaths since the last judgement to the hour of the latest death."""
    fresh, hour = group.buried - state.seen_buried, int(group.last_at // HOUR)
    if fresh <= 0:
        return state
    hours = dict(state.hours)
    hours[hour] = hours.get(hour, 0) + fresh
    kept = tuple(sorted((at, number) for at, number in hours.items() if at > hour - HOURS_KEPT))
    return msgspec.structs.replace(state, seen_buried=group.buried, seen_at=now, hours=kept)


def _change_status(state: GroupState, status: Status, said: GroupLine, **fields: Any) -> GroupState:
    """Changes the status: clears the fields of the old status and adds a line to the history."""
    story = (*state.story, said)[-STORY_KEPT:]
    now = {**_CLEARED, "status": status, "who": said.who, "why": said.why, "story": story}
    return msgspec.structs.replace(state, **{**now, **fields})


# ---- decisions of a person


def resolve(
    group: Group, state: GroupState | None, now: float, *, who: str, why: str | None, in_version: str | None = None
) -> GroupState:
    """Marks the group as resolved, in this version or later if one is named; an alert follows if it comes back."""
    seen = _note_deaths(group, state or GroupState(), now)
    what = f"resolved in {in_version}" if in_version else "resolved"
    return _change_status(seen, "resolved", GroupLine(now, what, who, why), resolved_at=now, resolved_in=in_version)


def ignore(
    group: Group,
    state: GroupState | None,
    now: float,
    *,
    who: str,
    why: str | None,
    until: float | None = None,
    rate: float | None = None,
    count: int | None = None,
) -> GroupState:
    """Ignores the group until a time, up to an hourly rate, or for some deaths; without limits until reopened."""
    seen = _note_deaths(group, state or GroupState(), now)
    limits = {"ignored_until": until, "ignored_rate": rate, "ignored_count": count, "ignored_from": group.buried}
    what = f"ignored {_limits(until, rate, count)}".rstrip()
    return _change_status(seen, "ignored", GroupLine(now, what, who, why), ignored_at=now, **limits)


def _limits(until: float | None, rate: float | None, count: int | None) -> str:
    limits = [
        f"until {iso(until)}" if until is not None else "",
        f"up to {rate:g} an hour" if rate is not None else "",
        f"for {count} more" if count is not None else "",
    ]
    return ", ".join(filter(None, limits))


def reopen(group: Group, state: GroupState | None, now: float, *, who: str, why: str | None) -> GroupState:
    """Reopens the group at a person's request."""
    seen = _note_deaths(group, state or GroupState(), now)
    return _change_status(seen, "unresolved", GroupLine(now, "reopened", who, why))


def add_note(state: GroupState | None, now: float, *, who: str, text: str) -> GroupState:
    """Adds a note for the next person; changes nothing else."""
    known = state if state is not None else GroupState()
    story = (*known.story, GroupLine(now, "noted", who, text))[-STORY_KEPT:]
    return msgspec.structs.replace(known, note=text, story=story)


# ---- alerts


_LEAST: Final[dict[Kind, float]] = {"new": 0.4, "unignored": 0.5, "regressed": 0.6}


def severity(kind: Kind, dead: int) -> float:
    """Scores an alert: a regression above a new group, three dead letters of one group at least 0.7."""
    least = max(_LEAST[kind], 0.7 if dead >= SYSTEMIC else 0.0)
    return round(least + (1.0 - least) * (1.0 - 1.0 / (1.0 + max(dead - 1, 0) / 30.0)), 6)


_TOLD: Final[dict[Kind, str]] = {
    "new": "new kind of failure",
    "regressed": "a failure is back",
    "unignored": "no longer ignored",
}


def message(alert: Alert, group: Group, suggestion: Suggestion) -> str:
    """Writes an alert in words: the error, the task, the number, what to do, where to look."""
    error = (group.error or alert.error_class or "an error that was not recorded")[:200]
    letters = "1 dead letter" if alert.buried == 1 else f"{alert.buried} dead letters"
    return (
        f"{_TOLD[alert.kind]} in {alert.task} (queue {alert.queue}): {error}; {letters} in all, {alert.because}. "
        f"{suggestion.text} Look closer: redrive dead group {alert.fingerprint[:SHORT]}"
    )


# ---- suggestions


class Suggestion(Shown, msgspec.Struct, frozen=True, omit_defaults=True):
    """Suggested action for a group, and how often that action has worked."""

    SHOWN: ClassVar = ("rate",)
    RENAMED: ClassVar = {"rate": "success_rate"}
    text: str
    action: Action
    strategy: str | None = None
    worked: int = 0
    tried: int = 0

    @property
    def rate(self) -> float | None:
        """Share of the tries that worked; None if nothing was tried."""
        return self.worked / self.tried if self.tried else None


def lessons_by_group(lessons: Sequence[Lesson]) -> dict[str, list[Lesson]]:
    by_group: dict[str, list[Lesson]] = {}
    for lesson in lessons:
        by_group.setdefault(lesson.fingerprint, []).append(lesson)
    return by_group


UNCHANGED: Final = frozenset({
    "redriven", "retry", "run_again", "retry_after", "once_more", "on_the_spot", "bury", "hold", "undecided",
    "released", "interrupted", "waited_for_room", "breaker", "verify",
})  # fmt: skip
"""Strategies that change nothing but the time."""
_IN_WORDS: Final = {
    "compress_context": "less context",
    "add_instruction": "another instruction",
    "add_constraint": "a constraint",
    "simplify_task": "a shorter answer",
    "set_model": "another model",
    "set_agent": "another agent",
    "edit": "an edited input",
}


def in_words(strategy: str) -> str:
    """Describes how a strategy runs a job again: `as it is`, or `with less context and another model`."""
    if strategy in UNCHANGED:
        return "as it is"
    return "with " + " and ".join(_IN_WORDS.get(part, part) for part in strategy.split("+"))


BROUGHT_BACK: Final = frozenset({"redriven", "bury", "hold", "edit"})
"""Strategies by which a person redrove a job; redrive itself tried all others."""


class Tried(msgspec.Struct, frozen=True):
    """Strategy in words, how often that strategy worked and how often not."""

    text: str
    worked: int
    failed: int

    @property
    def times(self) -> int:
        return self.worked + self.failed


def rank_strategies(lessons: Sequence[Lesson]) -> list[Tried]:
    """Sorts strategies by success, the best first. Strategies that read alike to people count as one."""
    sums: dict[str, tuple[int, int]] = {}
    for lesson in lessons:
        text = f"{'Redriven' if lesson.strategy in BROUGHT_BACK else 'Retried'} {in_words(lesson.strategy)}"
        worked, failed = sums.get(text, (0, 0))
        sums[text] = (worked + lesson.worked, failed + lesson.failed)
    ranked = [Tried(text, worked, failed) for text, (worked, failed) in sums.items()]
    return sorted(ranked, key=lambda one: (-one.worked, one.failed))


_BY_HEALING: Final[dict[str, tuple[Action, str]]] = {
    "at_once": ("redrive", "See whether what it calls is well again, then redrive."),
    "later": ("redrive", "It heals with time. Redrive later."),
    "changed": ("change", "The same again fails again. Redrive it changed: less context, another model or agent."),
    "person": ("fix", "Waiting does not heal it. Fix the cause, then redrive, or discard."),
    "unknown": ("look", "Find out what the error means, fix it, then redrive."),
}


def suggest(
    group: Group, lessons: Sequence[Lesson], detail: str | None = None, letter: Job | None = None
) -> Suggestion:
    """Suggests what worked before; else the recommendation of the latest dead letter; else the cause's advice."""
    action, advice = _advice(detail or group.detail or "unknown")
    if letter is not None and letter.recommendation:
        advice = " ".join(letter.recommendation.split())
    tried = [lesson for lesson in lessons if lesson.worked + lesson.failed]
    if not tried:
        return Suggestion(advice, action)
    best = max(tried, key=_promise)
    times = f"{best.worked} of {best.worked + best.failed} times"
    how = in_words(best.strategy)
    if 2 * best.worked >= best.worked + best.failed:
        return _suggest_learned(f"Redriving {how} worked {times}.", "redrive", best)
    if best.worked:
        return _suggest_learned(f"Redriving {how} worked only {times}. {advice}", action, best)
    return _suggest_learned(f"Nothing tried so far helps: redriving {how} worked {times}. {advice}", action, best)


def _promise(lesson: Lesson) -> float:
    """Estimates how likely a strategy works next time: one lucky try does not beat eight of nine."""
    return (lesson.worked + 1) / (lesson.worked + lesson.failed + 2)


def _suggest_learned(text: str, action: Action, best: Lesson) -> Suggestion:
    return Suggestion(text, action, best.strategy, best.worked, best.worked + best.failed)


def _advice(detail: str) -> tuple[Action, str]:
    heals = DETAILS[detail][1] if detail in DETAILS else "unknown"
    action, general = _BY_HEALING[heals]
    return action, ADVICE.get(detail, general)


ANOTHERS: Final = frozenset({"authority", "refusal", "model_confusion", "hallucination_loop", "context_overflow"})
"""Failures that another agent may not have."""


def other_agent(group: Group, fleet: AgentFleet) -> str | None:
    """Finds another agent for the group's task, if the failure depends on the agent."""
    if not group.agent or group.detail not in ANOTHERS:
        return None
    agent = fleet.alternate(group.agent, group.task)
    return agent if agent in fleet.agents else None


# ---- views


class GroupView(Shown, msgspec.Struct, frozen=True):
    """A group as every door shows it."""

    FLAT: ClassVar = ("group", "state")
    HIDDEN: ClassVar = ("samples", "other_agent", "manual", "letter")
    SHOWN: ClassVar = ("_samples",)
    RENAMED: ClassVar = {"_samples": "samples"}
    group: Group
    state: GroupState
    dead: int
    """Number of the group's jobs that are dead now."""
    trend: Trend
    last_day: int
    """Deaths noticed in the last 24 hours; `day_before` counts the 24 hours before."""
    day_before: int
    suggestion: Suggestion
    lessons: tuple[Lesson, ...] = ()
    samples: tuple[Job, ...] = ()
    other_agent: str | None = None
    """Another agent that may do better, if the failure depends on the agent; set only by `Groups.show`."""
    manual: int | None = None
    """Number of dead letters that wait for a person; set only by `Groups.first`."""
    letter: Job | None = None
    """The latest dead letter of the group, which may supply the suggestion's text."""

    @property
    def fingerprint(self) -> str:
        return self.group.fingerprint

    @property
    def short(self) -> str:
        return self.group.fingerprint[:SHORT]

    @property
    def status(self) -> Status:
        return self.state.status

    @property
    def _samples(self) -> list[str]:
        return [job.id for job in self.samples]


def view(
    group: Group,
    state: GroupState | None,
    dead: int,
    now: float,
    lessons: Sequence[Lesson] = (),
    letter: Job | None = None,
) -> GroupView:
    known = state or _note_deaths(group, GroupState(), now)
    tried, days = suggest(group, lessons, letter=letter), _last_days(known, now)
    return GroupView(group, known, dead, trend(group, known, dead, now), *days, tried, tuple(lessons), letter=letter)


def largest(counted: Mapping[tuple[str | None, ...], int], number: int) -> list[str]:
    """Lists the fingerprints with the most dead letters first; jobs without a fingerprint are left out."""
    named = [(name, letters) for (name,), letters in counted.items() if name and letters]
    return [name for name, _ in sorted(named, key=lambda one: -one[1])[:number]]


def trend(group: Group, state: GroupState, dead: int, now: float) -> Trend:
    """Compares the deaths of the last day with those of the day before."""
    if now - group.last_at >= DAY:
        return "quiet" if dead else "cured"
    if now - group.first_at < DAY:
        return "new"
    today, before = _last_days(state, now)
    return "growing" if today > before else "shrinking" if today < before else "steady"


def _last_days(state: GroupState, now: float) -> tuple[int, int]:
    """Counts the deaths noticed in the last 24 hours, up to the present one, and in the 24 hours before."""
    ages = [(int(now // HOUR) - hour, number) for hour, number in state.hours]
    today, before = (sum(number for age, number in ages if first <= age < first + 24) for first in (0, 24))
    return today, before
