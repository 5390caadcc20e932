"""Table of triage verbs: one row holds what the doors, the record of acts and undo need to know of a verb.

`rd.dead`, the commands of `redrive dead`, the bodies of REST, the forms of the dashboard, the tools of MCP and undo are
made from it. A new verb is a row here, with its arrow (what it does to a job) and its way back. Pure: time, people's
words and what only the app knows are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple

import msgspec

from redrive.core import change, lifecycle
from redrive.core.advice import advice_for
from redrive.core.change import SetAgent, decode, merge
from redrive.core.documents import Kind, OfJob
from redrive.core.job import At, Job, Json, Lane, State
from redrive.core.lifecycle import DEFERRED, Transition
from redrive.core.store import Put
from redrive.core.view import Shown
from redrive.deadletters.input_edits import apply_patch
from redrive.errors import IllegalMove, InvalidInput, JobNotFound, JobNotReady

Reading = Literal["name", "moment", "lane", "text", "input", "effects", "patch"]
"""Kind of a word; each door reads each kind in one way."""
NOTE_LIMIT: Final = 10_000
NOTE: Final = "note"
"""Name of the kind of documents that hold notes, and of the verb that writes notes."""
FOR_EYES: Final = {"lane": "manual"}
"""Fields of a recalled job: manual lane, so that the job does not come back automatically."""
WOULD_REPEAT: Final = "has an unknown outcome: verify by hand whether it landed, then resolve it, or name it by its id"


class Note(Shown, msgspec.Struct, frozen=True):
    """A text that a person or an agent wrote beside a job."""

    TITLE: ClassVar = "NoteBesideJob"
    at: At
    who: str
    text: str


JOB_NOTE: Final = Kind[Note]("note", Note, of_job=OfJob.contents)


class Word(msgspec.Struct, frozen=True):
    """One parameter of a verb besides the jobs, who and why."""

    name: str
    """Name of the word in Python, REST and MCP."""
    reading: Reading
    label: str
    """Name of the word in a form."""
    option: str | None = None
    """Option of the word on the command line; None for a positional argument."""
    metavar: str = ""
    help: str = ""
    hint: str = ""
    """Text beside the field of a form."""
    default: str | None = None
    """Default of a terminal or form; None if the value is required."""
    kept: bool = True
    """Whether the record of an act keeps the word. Contents of jobs are not kept apart from the jobs."""
    one: bool = True
    many: bool = True
    """`one`, `many`: whether the verb takes the word for one job, and for many."""


class Decided(NamedTuple):
    """What a verb does to one job: a move, documents beside it, or documents alone."""

    move: Transition | None
    puts: tuple[Put, ...] = ()


class Back(NamedTuple):
    """One job that an act moved, the values before the move, and who takes the act back."""

    job: Job
    before: Mapping[str, Json]
    at: float
    who: str
    why: str


Arrow = Callable[..., Transition | Decided]
"""`arrow(job, now, who=…, why=…)`, with the verb's words as further keywords; most are functions of the lifecycle."""
WriteInput = Callable[[Job, dict[str, Json]], Mapping[str, str]]
"""Makes the job fields that a new input writes; refuses an input that does not fit, or is the same."""
Change = Callable[[Mapping[str, Any], WriteInput, Job], Mapping[str, str]]
"""Makes the job fields that the next run has anew, by the verb's words."""
Spare = Callable[[Mapping[str, Any], Job], None]


class Verb(msgspec.Struct, frozen=True):
    """One verb: a row of the table."""

    name: str
    past: str
    """Past participle, as in `deferred 3 of 4`."""
    did: str
    """Past tense, as in `ada deferred 3 jobs`."""
    label: str
    """Text of the button."""
    says: str
    """Description of the verb, for a command, a REST body and a tool."""
    question: str
    """Text of the form for one job."""
    questions: str
    """Text of the form for many jobs."""
    told: str
    """Text that a page shows afterwards."""
    done: str
    """Text that a terminal prints afterwards, after the job's id."""
    then: str
    """Command to run next."""
    arrow: Arrow | None
    """Decides what the verb does to a job; None if the job goes back to its queue."""
    words: tuple[Word, ...] = ()
    title: str = ""
    """Question about many jobs, with `{}` for their number; by default made of the label."""
    acts_on: State = State.dead
    """State of the jobs that a filter selects."""
    noun: str = "dead letter"
    leaves: State | None = None
    """State in which the verb leaves a job; None if the verb moves nothing."""
    back: Callable[[Back], Transition] | None = None
    """Makes the move that takes the verb back; None if the move cannot be taken back."""
    change: Change | None = None
    """Makes what a job that goes back to its queue has anew."""
    many: bool = True
    why: bool = True
    """Whether the verb takes a reason."""
    command: str = ""
    """Name of the verb on the command line, if different."""
    help: str = ""
    """Help text of the command, if longer than the description."""
    short_help: str | None = None
    tool: str | None = None
    """Name of the tool for models; None if models get no tool for the verb."""
    tool_says: str = ""
    recalls: bool = True
    """Whether a deferred job is recalled first."""
    documents: int = 0
    """Approximate number of documents that each job brings into a commit."""
    spares: Spare | None = None
    """Refuses a job that must be named by its id and may not move together with many others."""
    key: str | None = None
    """Keyboard key that opens the form."""
    danger: bool = False
    final: bool = False
    """Whether the verb can never be taken back."""

    @property
    def cli_name(self) -> str:
        return self.command or self.name

    @property
    def asks(self) -> str:
        return self.title or f"{self.label} {{}}?"

    @property
    def brings_back(self) -> bool:
        """Whether the verb sends jobs to their queue, so that the jobs' results are counted."""
        return self.leaves is State.waiting

    def takes(self, *, many: bool = False) -> tuple[Word, ...]:
        """Lists the words that the verb takes for one job, or for many."""
        return tuple(word for word in self.words if (word.many if many else word.one))

    def command_for(self, id: str) -> str:
        """Writes the full command for one job, with placeholders for required values."""
        needed = [word for word in self.takes() if word.default is None]
        named = " ".join(f"{word.option} {word.metavar}" if word.option else word.metavar for word in needed)
        why = " --why TEXT" if self.why else ""
        return f"redrive dead {self.cli_name} {id}{f' {named}' if named else ''}{why}"


# ---- what a verb does to one job, beside the moves of the lifecycle


def _reassign(words: Mapping[str, Any], write: WriteInput, job: Job) -> Mapping[str, str]:
    """Gives the job to another agent, who is another subject: no consent carries over."""
    agent = words["agent"]
    return change.fields_of_next_run(merge(decode(job.changes_json), [SetAgent(agent)]), agent, None)


def _edit(words: Mapping[str, Any], write: WriteInput, job: Job) -> Mapping[str, str]:
    """Gives the job a new input: a whole input for one job, the same patch for many."""
    payload = words.get("payload")
    if payload is None:
        payload = apply_patch(input_now(job), words["patch"])
        if not isinstance(payload, dict):
            raise JobNotReady("the patch does not leave an object", job_id=job.id)
    return write(job, payload)


def _recall(job: Job, now: float, *, who: str, why: str | None) -> Transition:
    """Makes a deferred job a dead letter again; a redriven job is taken back with `undo`."""
    if job.state is not State.held:
        raise IllegalMove(f"job {job.short_id} is {job.state}, not deferred; it has no recall", job_id=job.id)
    return lifecycle.recalled(job, now, who=who, why=why, failure_fields=FOR_EYES)


def _note(job: Job, now: float, *, who: str, why: str | None, text: str, key: str) -> Decided:
    if job.state is State.purged:
        raise JobNotFound(f"job {job.short_id} was purged: there is nothing left to note", job_id=job.id)
    return Decided(None, (JOB_NOTE.put(f"{job.id}/{int(now * 1000):013x}.{key}", Note(now, who, text)),))


def input_now(job: Job) -> dict[str, Json]:
    """Returns the input as enqueued, or as edited last; other changes apply on top of either."""
    edited = change.edited_payload(job)
    return edited if edited is not None else job.arguments


# ---- ways back


def _discard_again(back: Back) -> Transition:
    move = lifecycle.discarded(back.job, back.at, who=back.who, why=back.why)
    return _with(move, {"because": back.before.get("because")})


def _back_to_lane(back: Back) -> Transition:
    lane: Lane = "delayed" if back.before.get("lane") == "delayed" else "manual"
    move = lifecycle.rerouted(back.job, back.at, lane=lane, who=back.who, why=back.why)
    return _with(move, {**move.set, **back.before, "lane": lane})


def _end_deferral(back: Back) -> Transition:
    move = lifecycle.recalled(back.job, back.at, who=back.who, why=back.why)
    return _with(move, {**move.set, **back.before})


def _defer_again(back: Back) -> Transition:
    job = back.job
    return lifecycle.deferred(job, back.at, owner=job.owner or back.who, until=job.run_at, who=back.who, why=back.why)


def _restore_discarded(back: Back) -> Transition:
    return _with(lifecycle.restored(back.job, back.at, who=back.who, why=back.why), back.before)


def _make_dead_again(back: Back) -> Transition:
    """Makes the job a dead letter as before, without counting another death, because the job has not run since."""
    trouble = {**_last_error(back.job), **back.before}
    return lifecycle.recalled(back.job, back.at, who=back.who, why=back.why, failure_fields=trouble)


def _with(move: Transition, before: Mapping[str, object]) -> Transition:
    """Replaces the fields that a move sets by the old values."""
    return msgspec.structs.replace(move, set=dict(before))


def _last_error(job: Job) -> dict[str, Json]:
    """Reads error and recommendation from the last failure, for acts that did not keep them."""
    last = next((one for one in reversed(job.history) if one.failure is not None), None)
    failure, cause = last.failure if last else None, last.cause if last else None
    general = "Find out what the error means, fix it, then redrive or discard it."
    advice = advice_for(cause, general) if cause else general
    own = failure.recommendation if failure else None
    return {"error": failure.summary if failure else None, "recommendation": own or advice}


def take_back(verb: Verb, back: Back) -> Transition:
    """Makes the move that puts a job where it was before the act.

    A job whose time to come back has passed goes to the manual lane, or it would come back at once.
    """
    if verb.back is None:
        raise IllegalMove(f"{verb.name} cannot be taken back", job_id=back.job.id)
    move = verb.back(back)
    returns = move.set.get("comes_back_at")
    passed = isinstance(returns, float) and returns <= back.at
    return _with(move, {**move.set, "lane": "manual", "comes_back_at": None}) if passed else move


# ---- jobs that do not move together with many


def _check_not_landed(words: Mapping[str, Any], job: Job) -> None:
    """Refuses a dead letter that may have landed, because its effect could happen twice."""
    if job.state is State.dead and job.may_have_landed:
        raise JobNotReady(f"job {job.short_id} {WOULD_REPEAT}", job_id=job.id)


def _check_delayed(words: Mapping[str, Any], job: Job) -> None:
    if words.get("lane") == "delayed":
        _check_not_landed(words, job)


# ---- the table

_AGENT: Final = Word(
    "agent", "name", "To which agent", "--to", "NAME", "Who is to do it.",
    "A consent or an approval that was given for another agent does not carry over.",
)  # fmt: skip
_OWNER: Final = Word("owner", "name", "Who sees to it", "--to", "NAME", "Who sees to it.")
_UNTIL: Final = Word("until", "moment", "When it comes back", "--for", "TIME", "e.g. 8h, 3d, or a time.", default="1d")
_LANE: Final = Word("lane", "lane", "Lane", None, "LANE")
_TEXT: Final = Word("text", "text", "Note", None, "TEXT", kept=False)
_PAYLOAD: Final = Word("payload", "input", "Input, as JSON", None, "JSON", kept=False, many=False)
_REPEAT: Final = Word(
    "repeat", "effects", "Effects to do again", "--repeat", "EFFECT", "Do this effect again, although it has landed.",
    default="", many=False,
)  # fmt: skip
_PATCH: Final = Word(
    "patch", "patch", "Patch, as JSON", "--patch", "JSON", "A merge patch: the fields to change; null removes one.",
    kept=False, one=False,
)  # fmt: skip

TABLE: Final = (
    Verb(
        "redrive", "redriven", "redrove", "Redrive", "Back to the queue: same id, key and history.",
        "Back to its queue: same id, key and history; fresh attempts where they were used up.",
        "Back to their queues: same ids, keys and histories.", "Redriven: it waits for a worker.", "redriven",
        "redrive status {id}", None, leaves=State.waiting, back=_make_dead_again, key="r", tool="redrive_failure",
        tool_says="Bring ONE dead letter back to its queue: same id, key and history, fresh attempts. A worker runs it."
        " Do so only after its cause is gone (`explain_failure`). One that may have landed is refused: a person must"
        " look.", spares=_check_not_landed,
    ),
    Verb(
        "edit", "edited and redriven", "edited and redrove", "Edit and redrive",
        "Back to the queue with another input. Effects that landed are kept, except those to repeat.",
        "Back to its queue with another input. What was enqueued stays on record.",
        "The same fields change in each input, and they go back to their queues. What was enqueued stays on record.",
        "Edited and redriven: it waits for a worker.", "edited and redriven", "redrive status {id}", None,
        (_PAYLOAD, _REPEAT, _PATCH), "Edit {}?", change=_edit, leaves=State.waiting, back=_make_dead_again,
        spares=_check_not_landed, documents=2,
    ),
    Verb(
        "reassign", "reassigned", "reassigned", "Reassign",
        "Back to the queue for another agent; consents for the one before do not count for it.",
        "Back to its queue, to be done by another agent.", "Back to their queues, to be done by another agent.",
        "Reassigned: it waits for {agent}.", "is {agent}'s now", "redrive status {id}", None, (_AGENT,),
        change=_reassign, leaves=State.waiting, back=_make_dead_again, spares=_check_not_landed, documents=1,
        help="Send it back to the queue for another agent. Consents given for the one before do not count for it.",
    ),
    Verb(
        "defer", "deferred", "deferred", "Defer", "Out of the way until then; the owner sees to it.",
        "It is set aside until then, for the named owner.",
        "They are set aside until then, for the named owner.", "Deferred to {owner}: it is back {until}.",
        "deferred to {owner}", "redrive dead recall {id}", lifecycle.deferred, (_OWNER, _UNTIL), leaves=State.held,
        back=_end_deferral,
        help="Set it aside until then, for an owner. It comes back by itself.",
    ),
    Verb(
        "recall", "recalled", "recalled", "Recall", "Make a deferred job a dead letter again before its time.",
        "A dead letter again, to be seen to now.", "Dead letters again, to be seen to now.", "A dead letter again.",
        "recalled", "redrive dead show {id}", _recall, acts_on=State.held, noun="deferred job", leaves=State.dead,
        back=_defer_again, recalls=False,
    ),
    Verb(
        "discard", "discarded", "discarded", "Discard", "Discard it. It can be restored.",
        "It ends without running. You can restore it.", "They end without running. You can restore them.", "Discarded.",
        "discarded", "redrive dead restore {id}", lifecycle.discarded, leaves=State.discarded, back=_restore_discarded,
        danger=True,
    ),
    Verb(
        "restore", "restored", "restored", "Restore", "Make a discarded job a dead letter again.",
        "A dead letter again, waiting for a person.", "Dead letters again, waiting for a person.",
        "A dead letter again.", "restored", "redrive dead redrive {id}", lifecycle.restored, acts_on=State.discarded,
        noun="discarded job", leaves=State.dead, back=_discard_again,
    ),
    Verb(
        "move_lane", "moved to the other lane", "moved", "Move lane",
        "`delayed`: it comes back by itself. `manual`: it waits for eyes.",
        "Where it waits, and whether it comes back by itself.",
        "Where they wait, and whether they come back by themselves.", "In the {lane} lane.", "in the {lane} lane",
        "redrive dead show {id}", lifecycle.rerouted, (_LANE,), "Move {} to another lane?", leaves=State.dead,
        back=_back_to_lane, command="lane", short_help="Move it to the other LANE, delayed or manual.",
        spares=_check_delayed,
        help="Move it to the other LANE: delayed comes back by itself, manual waits for you.",
    ),
    Verb(
        "note", "noted", "wrote about", "Note", "A note for the next reader. The job stays where it is.",
        "A note for the next reader. The job stays where it is.",
        "The same note beside each. The jobs stay where they are.",
        "Noted.", "noted", "redrive dead show {id}", _note, (_TEXT,), why=False, recalls=False, documents=1,
        help="Write TEXT beside it for the next reader. The job stays where it is.", tool="note_failure",
        tool_says="Write a note beside ONE dead letter for the person or agent who looks next: what you found out, or"
        " what you tried. It moves nothing.",
    ),
)  # fmt: skip
PURGE: Final = Verb(
    "purge", "purged", "purged", "Purge", "Remove the contents for good.", "Its contents are removed.",
    "Their contents are removed.", "Purged.", "purged", "redrive dead list", lifecycle.purged,
    title="Purge {} for good?", leaves=State.purged, danger=True, final=True, recalls=True,
)  # fmt: skip
"""The purge, which is no verb of triage: it is counted and confirmed first, and cannot be taken back."""
VERBS: Final[dict[str, Verb]] = {verb.name: verb for verb in TABLE}
ACTS: Final[dict[str, Verb]] = {**VERBS, PURGE.name: PURGE}
"""Every verb that is recorded as an act, by name."""
PAST: Final[dict[str, str]] = {**{name: verb.past for name, verb in ACTS.items()}, "undo": "taken back"}


def find_verb(name: str, known: Mapping[str, Verb] = VERBS) -> Verb:
    """Returns the row of a verb; refuses an unknown verb by name."""
    if name not in known:
        raise InvalidInput(field="verb", problem=f"{name!r:.80} is not one of {', '.join(known)}")
    return known[name]


def undoable(name: str) -> bool:
    """Whether an act of this verb can be taken back: a note can be removed, a move needs its way back."""
    return name in VERBS and (VERBS[name].back is not None or VERBS[name].leaves is None)


def meant_filter(verb: Verb, filters: Mapping[str, Any]) -> dict[str, Any]:
    """Adds to the filter of a verb on many the state of jobs that the verb acts on."""
    if verb.acts_on is not State.held:
        return {**filters, "state": str(verb.acts_on)}
    if filters.get("because") not in (None, DEFERRED):
        raise InvalidInput(field="because", problem=f"only what is deferred can be {verb.past}")
    return {**filters, "state": "held", "because": DEFERRED}


class JobVerb(NamedTuple):
    """Action on one job beside triage: a method of `rd.jobs`, and the texts of its form."""

    name: str
    method: str
    question: str
    told: str
    fixed: Mapping[str, Any] = {}
    known: bool = False
    """Whether the person must say how they know."""


JOB_VERBS: Final[dict[str, JobVerb]] = {
    verb.name: verb
    for verb in (
        JobVerb("approve", "approve", "Yes to exactly this. It goes on.", "Approved: it goes on."),
        JobVerb("reject", "reject", "No. It does not do what it asked for.", "Rejected."),
        JobVerb(
            "cancel",
            "cancel",
            "It is no longer wanted. A running task is told; what it still says does not count.",
            "Cancelled.",
        ),
        JobVerb(
            "landed",
            "resolve",
            "You looked outside, and its effect is there. The job is done; nothing runs again.",
            "Done: its effect landed.",
            {"landed": True},
            known=True,
        ),
        JobVerb(
            "not_landed",
            "resolve",
            "You looked outside, and nothing is there. Its open effects count as absent, and it runs again.",
            "It runs again; its open effects count as absent.",
            {"landed": False},
            known=True,
        ),
    )
}


def names(verbs: Sequence[Verb] = TABLE) -> list[str]:
    return [verb.name for verb in verbs]
