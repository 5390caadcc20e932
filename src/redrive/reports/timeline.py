"""Builds the timeline of a job as a value, for every door: its state, what was tried and why, what can be done now.

Pure: the job, its moves and the time are arguments. Attempts and moves are two records of one job; here they are put in
order, so that a door only has to print. Facts that repeat a text from outside redrive are marked `outside`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from redrive.core.change import (
    AddConstraint,
    AddInstruction,
    Change,
    CompressContext,
    Edit,
    SetAgent,
    SetModel,
    SimplifyTask,
    decode,
)
from redrive.core.job import CYCLE, Attempt, Cause, Failure, Job, State, Usage, iso
from redrive.core.lifecycle import MAX_GRANTS
from redrive.core.redact import redact_text
from redrive.core.store import Event
from redrive.core.words import clipped
from redrive.deadletters.verbs import VERBS, Note
from redrive.failures.classify import RULE_NOTES
from redrive.reports.traceback_view import Raised, trace_of, where

Tone = Literal["plain", "good", "bad", "wait", "person"]
Kind = Literal["born", "attempt", "move", "note"]
SHOWN: Final = 300
"""Characters of an instruction that a line repeats."""
SAME_MOMENT: Final = 0.001
"""Seconds by which the times of an attempt and of the move that ended it may differ: the store's precision."""


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A labelled value. `outside`: the text comes from outside redrive."""

    name: str
    text: str
    outside: bool = False


class TimelineEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt, move or note in the timeline of a job."""

    at: float | None
    kind: Kind
    title: str
    tone: Tone = "plain"
    who: str | None = None
    why: str | None = None
    facts: tuple[Fact, ...] = ()
    run: int | None = None
    """Number of the run of an attempt; diffs and effects refer to the number."""
    seconds: float | None = None
    worker: str | None = None
    trace: tuple[Raised, ...] = ()
    """Traceback of the exception that ended an attempt, and of its causes."""

    def fact(self, name: str) -> str | None:
        return next((fact.text for fact in self.facts if fact.name == name), None)


class NextStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action that is possible now: the verb, when to choose the verb, and the command for a terminal."""

    verb: str
    label: str
    when: str
    command: str | None = None
    final: bool = False
    """Whether the action cannot be undone."""


class Story(msgspec.Struct, frozen=True):
    """A job, its state in one sentence, what happened, and what can be done."""

    job: Job
    standing: str
    entries: tuple[TimelineEntry, ...]
    choices: tuple[NextStep, ...]
    spent: Usage | None
    """Usage of all attempts together; None if no attempt reported any."""

    @property
    def next(self) -> NextStep | None:
        """First choice for a held or dead job; None for other jobs."""
        return self.choices[0] if self.choices and self.job.state in (State.held, State.dead) else None

    def choice(self, verb: str) -> NextStep | None:
        return next((choice for choice in self.choices if choice.verb == verb), None)

    def public(self) -> dict[str, Any]:
        """Returns the story as JSON values, with ISO times."""
        entries = [msgspec.to_builtins(entry) | {"at": iso(entry.at)} for entry in self.entries]
        choices = [msgspec.to_builtins(choice) for choice in self.choices]
        spent = msgspec.to_builtins(self.spent) if self.spent else None
        body: dict[str, Any] = {"job_id": self.job.id, "standing": self.standing, "entries": entries}
        return body | {"choices": choices, "spent": spent, "recommendation": self.job.recommendation}


def tell(job: Job, moves: Sequence[Event], now: float, notes: Sequence[Note] = ()) -> Story:
    """Builds the story of a job. Moves that were dropped long ago are missing; attempts stay as long as the job."""
    attempts = [_attempt(attempt) for attempt in job.history]
    others = [_move(move) for move in moves if not _ends_an_attempt(move, job.history)]
    written = [TimelineEntry(note.at, "note", "noted", "person", note.who, redact_text(note.text)) for note in notes]
    entries = [*_birth(job, moves), *attempts, *others, *written, *_present(job)]
    ordered = tuple(sorted(entries, key=lambda entry: (entry.at or job.created_at, entry.kind != "born")))
    return Story(job, _standing(job, now), ordered, tuple(_choices(job)), _spent(job))


def _spent(job: Job) -> Usage | None:
    usages = [attempt.usage for attempt in job.history if attempt.usage is not None]
    return sum(usages, Usage()) if usages else None


# ---- what happened


def _birth(job: Job, moves: Sequence[Event]) -> Iterator[TimelineEntry]:
    """Yields the entry for the start of a job whose first move was dropped: the job still has the time."""
    if not any(move.move in _BIRTHS for move in moves):
        yield TimelineEntry(job.created_at, "born", "enqueued")


def _ends_an_attempt(move: Event, history: Sequence[Attempt]) -> bool:
    """Returns whether a move adds nothing to the entry of its attempt; a move by a person does add."""
    if move.who is not None:
        return False
    return any(
        attempt.run == move.run and attempt.ended_at is not None and abs(attempt.ended_at - move.at) < SAME_MOMENT
        for attempt in history
    )


def _present(job: Job) -> Iterator[TimelineEntry]:
    if job.state is State.running:
        facts = tuple(_by(job.agent, job.model))
        yield TimelineEntry(job.started_at, "attempt", "running", "wait", facts=facts, run=job.run, worker=job.worker)


_BIRTHS: Final = ("enqueued", "imported")
_TITLES: Final = {
    "held_back": "held back",
    "unblocked": "goes on",
    "rerouted": "moved to the other lane",
    "resolved": "closed: its effect landed",
    "recalled": "back among the dead letters",
}
_TONES: Final[dict[str, Tone]] = {
    "succeeded": "good",
    "resolved": "good",
    "buried": "bad",
    "imported": "bad",
    "held_back": "wait",
    "deferred": "wait",
    "snoozed": "wait",
    "released": "wait",
}


def _move(move: Event) -> TimelineEntry:
    kind: Kind = "born" if move.move in _BIRTHS else "move"
    tone: Tone = "person" if move.who and kind == "move" else _TONES.get(move.move, "plain")
    why = redact_text(move.why) if move.why else None
    return TimelineEntry(move.at, kind, _TITLES.get(move.move, move.move), tone, move.who, why)


_OUTCOMES: Final[dict[str, Tone]] = {"done": "good", "failed": "bad", "lost": "bad"}


def _attempt(attempt: Attempt) -> TimelineEntry:
    took = None
    if attempt.started_at is not None and attempt.ended_at is not None:
        took = attempt.ended_at - attempt.started_at
    return TimelineEntry(
        attempt.ended_at,
        "attempt",
        attempt.outcome,
        _OUTCOMES.get(attempt.outcome, "wait"),
        facts=tuple(_findings(attempt)),
        run=attempt.run,
        seconds=took,
        worker=attempt.worker,
        trace=trace_of(attempt.failure) if attempt.failure is not None else (),
    )


def _findings(attempt: Attempt) -> Iterator[Fact]:
    yield from _by(attempt.agent, attempt.model)
    if attempt.changes:
        yield Fact("changed", "; ".join(in_words(change) for change in decode(attempt.changes)))
    if attempt.failure is not None:
        yield from _failure_facts(attempt.failure)
    if attempt.cause is not None:
        yield Fact("cause", f"{attempt.cause.category}, {attempt.cause.detail}")
        yield Fact("rule", _rule(attempt.cause))
    if attempt.effects:
        verdicts = ", ".join(f"{name} {verdict}" for name, verdict in attempt.effects.items())
        yield Fact("effects", f"{verdicts} (seen before it ran)" if attempt.looked == "before" else verdicts)
    if attempt.witness is not None:
        yield Fact("witness", _short(msgspec.json.encode(attempt.witness).decode()), outside=True)
    if attempt.registry_auto_recovered:
        yield Fact("back", "something that it requires had been away and was back")
    if attempt.decision:
        yield Fact("decision", redact_text(attempt.decision))
    if attempt.usage is not None:
        yield Fact("usage", usage_in_words(attempt.usage))
    if attempt.version:
        yield Fact("version", attempt.version)


def _by(agent: str | None, model: str | None) -> Iterator[Fact]:
    if agent or model:
        yield Fact("by", ", ".join(filter(None, (agent, model))))


def _failure_facts(failure: Failure) -> Iterator[Fact]:
    yield Fact("failure", failure.summary, outside=True)
    if failure.body:
        yield Fact("answer", failure.body, outside=True)
    if failure.error_kind:
        yield Fact("kind", failure.error_kind, outside=True)
    if (place := where(failure)) is not None:
        yield Fact("where", place)


def _rule(cause: Cause) -> str:
    """Names the rule that decided, and how the rule recognises a failure."""
    note = RULE_NOTES.get(cause.rule)
    return f"{cause.rule or 'none'}: {note}" if note else cause.rule or "none"


def usage_in_words(usage: Usage) -> str:
    cost = f", {usage.cost:g} spent" if usage.cost else ""
    return f"{usage.input_tokens:,} tokens read, {usage.output_tokens:,} written{cost}"


def in_words(change: Change) -> str:
    """Describes a change in words; a whole edited input is left to the diff."""
    match change:
        case CompressContext():
            return f"context compressed to {change.max_tokens:,} tokens"
        case AddInstruction() | AddConstraint():
            kind = "told" if isinstance(change, AddInstruction) else "held to"
            return f"{kind}{' (some of it from a failure)' if change.tainted else ''}: “{_short(change.text)}”"
        case SimplifyTask():
            return f"asked for at most {change.max_output_tokens:,} tokens"
        case SetModel():
            return f"model {change.model}"
        case SetAgent():
            return f"agent {change.agent}"
        case Edit():
            whom = f" by {change.who}" if change.who else ""
            return f"input edited{whom}{f': {redact_text(change.why)}' if change.why else ''}"


def _short(text: str) -> str:
    return clipped(redact_text(text), SHOWN)


# ---- state of the job

REASONS: Final[dict[str, str]] = {
    "attempts_exhausted": "every attempt was used up",
    "terminated": "its task gave up",
    "unroutable": "no worker knows its task",
    "preflight_rejected": "it could not start",
    "context_overflow": "its input is too long for the model",
    "permanent": "trying the same again would not help",
    "too_old": "it took longer than it may",
    "crash_loop": "its worker's process kept ending while it ran alone",
    "budget_exhausted": "its budget is used up",
    "outcome_unknown": "it is not known whether its effect landed",
    "diverted": "a script set it aside",
    "imported": "it failed elsewhere and was brought here",
    "restored": "a person brought it back",
    "conflicting_input": "its cycle knows the job_id with another input",
    "asked_to_wait": "it was asked to wait for longer than a queue waits",
    "changes_used_up": "no change is left that would help",
    "not_known_to_heal": "its error is not known to heal",
    "cancelled": "it is no longer wanted",
    "discarded": "a person let it go",
}
"""Why a job is dead or gone, as the second half of a sentence."""
_HELD: Final[dict[str, str]] = {
    "approval": "It asked a question{} and waits for the answer.",
    "consent": "It waits{} for consent.",
    "outcome_unknown": "Its outcome is unknown{}: its effect may or may not have landed.",
    "circuit_open": "What it calls is down{}; it goes on by itself when that answers again.",
    "blocked": "It waits{} for the steps before it.",
}
"""Sentences on why a job is held, with a placeholder for the time."""


def reason(because: str | None) -> str:
    return REASONS.get(because or "", (because or "no reason was recorded").replace("_", " "))


def _when_back(job: Job, now: float) -> str:
    """Writes when a dead letter comes back, and which comeback it is: `in 9 min (comeback 2)`."""
    if job.comes_back_at is None:
        return " in the next cycle of its script" if job.queue.startswith(CYCLE) else ""
    wait = job.comes_back_at - now
    return f" {f'in {span(wait)}' if wait >= 1 else 'now'} (comeback {job.comebacks + 1})"


def _standing(job: Job, now: float) -> str:
    tries = f"{job.attempts} {'attempt' if job.attempts == 1 else 'attempts'}"
    match job.state:
        case State.waiting:
            return _waiting(job, now)
        case State.running:
            return f"Running{_since(job.started_at, now)}: run {job.run}{f' on {job.worker}' if job.worker else ''}."
        case State.held:
            return _explain_hold(job, now)
        case State.done:
            return f"Done{_past(job.updated_at, now)} after {tries}."
        case State.dead:
            lane = f"comes back by itself{_when_back(job, now)}" if job.lane == "delayed" else "waits for a person"
            owner = f", {job.owner}" if job.owner and job.lane != "delayed" else ""
            return f"Dead{_since(job.died_at or job.updated_at, now)}: {reason(job.because)}. It {lane}{owner}."
        case State.discarded:
            return f"Let go{_past(job.updated_at, now)}: {reason(job.because)}."
        case State.purged:
            return "Purged: its contents are gone for good; its key stays remembered."


def _waiting(job: Job, now: float) -> str:
    failed = f"Failed {'once' if job.attempts == 1 else f'{job.attempts} times'}; " if job.error_class else ""
    if job.run_at > now:
        begin = f"{failed}runs{' again' if failed else ''} in {span(job.run_at - now)}."
        return begin[0].upper() + begin[1:]
    return f"{failed}{'waits' if failed else 'Waits'} for a free worker that knows {job.task}."


def _explain_hold(job: Job, now: float) -> str:
    if job.because == "deferred":
        whom = f" to {job.owner}" if job.owner else ""
        return f"Deferred{whom}; it is back among the dead letters in {span(max(0.0, job.run_at - now))}."
    how_long = _past(job.held_at, now) if job.because == "approval" else _since(job.held_at, now)
    return _HELD.get(job.because or "", "It is held{}.").format(how_long)


def _since(at: float | None, now: float) -> str:
    return f" for {span(now - at)}" if at is not None and now - at >= 1 else ""


def _past(at: float | None, now: float) -> str:
    return f" {span(now - at)} ago" if at is not None and now - at >= 1 else ""


_UNITS: Final = ((84_600.0, 86_400.0, "d"), (3_570.0, 3_600.0, "h"), (59.5, 60.0, "min"))
"""Smallest number of seconds for which each unit is used, seconds per unit, and the unit."""


def span(seconds: float) -> str:
    """Writes a duration in the largest unit that fits."""
    fitting = (f"{seconds / size:.0f} {unit}" for least, size, unit in _UNITS if seconds >= least)
    return next(fitting, f"{seconds:.0f} s")


# ---- what can be done


def _choices(job: Job) -> Iterator[NextStep]:
    if job.state in (State.waiting, State.running):
        yield _cancel(job)
    elif job.state is State.held:
        yield from _for_held(job)
    elif job.state is State.dead:
        yield from _for_dead(job)
    elif job.state is State.discarded:
        yield _verb(job, "restore", "Bring it back among the dead letters")


def _cancel(job: Job) -> NextStep:
    return NextStep("cancel", "Cancel", "No longer wanted", f"redrive cancel {job.short_id}", final=True)


def _for_held(job: Job) -> Iterator[NextStep]:
    id = job.short_id
    if job.because == "deferred":
        yield _verb(job, "recall", "See to it now")
        yield from _again(job)
    elif job.because in ("consent", "approval"):
        yield NextStep("approve", "Approve", "Yes", f"redrive approve {id}")
        yield NextStep("reject", "Reject", "No", f"redrive reject {id} --why TEXT")
    elif job.because == "circuit_open":
        command = f"redrive breakers --close {job.held_for}"
        yield NextStep("close_breaker", "Close the breaker", "You know that it answers again", command)
    elif job.because != "blocked":
        yield from _outcome(job)
    yield _cancel(job)


def _outcome(job: Job) -> Iterator[NextStep]:
    command = f"redrive resolve {job.short_id} --not-landed --why TEXT"
    yield _landed(job, "You looked, and it landed")
    yield NextStep("not_landed", "It did not land", "It did not land, run it again", command)


def _landed(job: Job, when: str) -> NextStep:
    return NextStep("landed", "It landed", when, f"redrive resolve {job.short_id} --landed --why TEXT", final=True)


def _for_dead(job: Job) -> Iterator[NextStep]:
    if job.may_have_landed:
        yield from _outcome(job)
    else:
        yield from _again(job)
    other = "manual" if job.lane == "delayed" else "delayed"
    lanes = {"manual": "It must wait for a person", "delayed": "It may come back by itself"}
    yield _verb(job, "defer", "A person takes care of it later")
    lane = _verb(job, "move_lane", lanes[other])
    command = (lane.command or "").replace("LANE", other)
    yield msgspec.structs.replace(lane, label=f"Move to the {other} lane", command=command)
    if not job.may_have_landed:
        yield _landed(job, "You looked, and its effect landed after all")
    yield _verb(job, "discard", "Let it go")


def _again(job: Job) -> Iterator[NextStep]:
    """Lists the ways to run a job again: unchanged, with another input, by another agent; the most promising first."""
    if not may_run_again(job):
        return
    as_it_is = _verb(job, "redrive", "Try again once the cause is gone")
    edit = _verb(job, "edit", "Try again with another input")
    yield from (edit, as_it_is) if job.detail in _NEEDS_EDIT else (as_it_is, edit)
    yield _verb(job, "reassign", "Another agent should do it")


def _verb(job: Job, name: str, when: str) -> NextStep:
    """Makes the next step of a triage verb, with its label and its command from the table."""
    return NextStep(name, VERBS[name].label, when, VERBS[name].command_for(job.short_id))


_NEEDS_EDIT: Final = frozenset({"invalid_input", "impossible_task"})
"""Details of failures that the input alone causes, so that the same input fails again."""


def may_run_again(job: Job) -> bool:
    """Returns whether a job has attempts left, or may be given fresh ones."""
    return job.grants < MAX_GRANTS or job.allowed is None or job.attempts < job.allowed
