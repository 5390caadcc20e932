"""Makes orders of the verbs in deadletters/verbs.py, and carries out an order on one job. acts.py acts on many."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import msgspec

from redrive.core import change, lifecycle
from redrive.core.change import decode, merge
from redrive.core.checks import check_name, check_names, check_words
from redrive.core.commit import Proposal, commit_each, decide_and_commit
from redrive.core.documents import STEP
from redrive.core.job import Job, Json, Lane, State, iso
from redrive.core.lifecycle import Transition, is_deferred
from redrive.core.payload import check_kept, encode
from redrive.core.redact import redact
from redrive.core.store import MAX_PARTS, Put, Store
from redrive.core.times import later
from redrive.core.workflow import OUTPUT
from redrive.deadletters import verbs
from redrive.deadletters.input_edits import fields_of, find_quoted, outside_texts
from redrive.deadletters.triage import ACT, ACT_ITEMS, CHUNK_KEY, NOT_RESTORED, Act, ActChunk, ActItem
from redrive.deadletters.verbs import ACTS, NOTE_LIMIT, PAST, Decided, Verb
from redrive.engine.effects import drop_effect as forgotten_effect
from redrive.engine.effects import read_effects
from redrive.engine.inputs import make_effective_input, preflight
from redrive.engine.verify import put_nothing_landed
from redrive.engine.workflow_steps import companions_of, is_step
from redrive.errors import InvalidInput, InvalidOption, JobNotReady
from redrive.jobs.core import find_job
from redrive.retries.changes import diff
from redrive.retries.preflight import NotReady

if TYPE_CHECKING:
    from redrive.jobs.core import Core

LONGEST_DEFERRAL: Final = 366 * 86400.0
LOOK_FIRST: Final = (
    "job {id} has an unknown outcome: verify by hand whether it landed, then `redrive resolve {id}`, or"
    " `redrive dead redrive {id}` to run it again"
)
SIZE: Final = 200
"""Number of jobs that one commit moves."""
SIZE_WITH_DOCUMENTS: Final = 80
"""Number of jobs that one commit moves if each brings up to two documents."""
NOTHING: Final[Mapping[str, Json]] = {}
Decide = Callable[[Job, float], Transition | Decided]


class Order(NamedTuple):
    """A verb with its words, who orders it and why; `decide` says what the verb does to a job now, or refuses."""

    verb: str
    who: str
    why: str | None
    decide: Decide
    words: Mapping[str, Json] = NOTHING
    """The verb's words, as the record of the act keeps them."""
    size: int = SIZE
    """Jobs in one commit; fewer if each brings documents."""
    recalls: bool = True
    """Whether a deferred job is recalled first: not for a note, nor if a program gives the order."""
    check_in_bulk: Callable[[Job], None] | None = None
    """Refuses a job that must be named by its id and may not move together with many others."""


def make_order(core: Core, verb: Verb, words: Mapping[str, Any], who: str, why: str | None) -> Order:
    """Makes an order of a verb and its words, which can be carried out on any job."""
    decide: Decide
    if verb.arrow is not None:
        key = {"key": secrets.token_hex(4)} if verb.leaves is None else {}  # of the document that it writes instead
        decide = partial(verb.arrow, who=who, why=why, **words, **key)
    else:
        write = partial(write_input, core, who, why)
        change = None if verb.change is None else partial(verb.change, words, write)
        decide = partial(send_back, core, who=who, why=why, change=change)
    kept = words_to_keep(verb, words) if words else NOTHING
    size = SIZE_WITH_DOCUMENTS if verb.documents else SIZE
    spare = None if verb.spares is None else partial(verb.spares, words)
    return Order(verb.name, who, why, decide, kept, size, verb.recalls, spare)


def words_to_keep(verb: Verb, words: Mapping[str, Any]) -> dict[str, Json]:
    """Selects the words that the record of an act keeps, as people read them: times as text, a patch as its fields."""
    kept: dict[str, Json] = {}
    for word in verb.words:
        if word.name not in words:
            continue
        if word.reading == "patch":
            kept["fields"] = fields_of(words[word.name])
        elif word.kept:
            kept[word.name] = iso(words[word.name]) if word.reading == "moment" else words[word.name]
    return kept


# ---- carrying out an order on one job


async def carry_out(core: Core, order: Order, id: str, puts: Sequence[Put] = ()) -> Job:
    """Loads the job, decides, commits; decides again if another process was faster. Recalls a deferred job first.

    `puts` overwrite documents of the job; undo restores the old documents together with the job.
    """
    check_words(order.who, order.why)
    (job, move), fences = await decide_and_commit(core.store, partial(_propose, core, order, id, puts))
    return move.after(fences[0]) if move is not None else job


async def _propose(
    core: Core, order: Order, id: str, puts: Sequence[Put]
) -> Proposal[tuple[Job, Transition | None]] | None:
    """Makes the one commit of an act: the move, the values that the move overwrites, and the act itself."""
    job, now = await find_job(core.store, id), core.clock.now()
    if order.recalls and job.state is State.held and is_deferred(job):
        await _recall(core, order, job, now)
        return None
    decided = order.decide(job, now)
    move, beside = (decided, ()) if isinstance(decided, Transition) else decided
    before = {verbs.NOTE: beside[0].key} if move is None else move.before(NOT_RESTORED)
    documents = tuple([await _read_document(core.store, put) for put in puts])
    words = dict(order.words)
    act = Act(job.id, order.verb, now, order.who, order.why, words, job_id=job.id, number=1, moved=1, chunks=1)
    items = ACT_ITEMS.put(CHUNK_KEY.format(job.id, 0), ActChunk(now, (ActItem(job.id, before, documents),)))
    whole = (*puts, *beside, ACT.put(act.id, act), items)
    moves = [] if move is None else [move]
    if move is not None and job.options_json is not None:
        others = await companions_of(core.store, core.clock, move)
        moves += others[: MAX_PARTS - 1 - len(whole)]
    return Proposal(job, (job, move), moves, whole, done=ACTS[order.verb].past)


async def _read_document(store: Store, put: Put) -> tuple[str, str, str | None]:
    """Reads the document that a put will overwrite."""
    document = await store.doc(put.kind, put.key)
    return put.kind, put.key, document.value.decode() if document is not None else None


async def _recall(core: Core, order: Order, job: Job, now: float) -> None:
    """Makes a deferred job a dead letter again, if the order can be carried out then."""
    order.decide(lifecycle.recalled(job, now, who=order.who, why=order.why).after(job.version), now)
    move = lifecycle.recalled(job, core.clock.now(), who=order.who, why=reason_to_recall(order))
    await commit_each(core.store, [move])


def reason_to_recall(order: Order) -> str:
    return f"to be {PAST[order.verb]}" + (f": {order.why}" if order.why else "")


async def check_order(core: Core, order: Order, id: str) -> Job:
    """Returns the job if the order can be carried out now, else raises the refusal. Changes nothing."""
    check_words(order.who, order.why)
    job, now = await find_job(core.store, id), core.clock.now()
    recalls = order.recalls and is_deferred(job)
    dead = lifecycle.recalled(job, now, who=order.who, why=order.why).after(job.version) if recalls else job
    order.decide(dead, now)
    return job


# ---- reading words


def read_words(core: Core, verb: Verb, given: Mapping[str, Any], *, many: bool = False) -> dict[str, Any]:
    """Reads and checks the verb's words, ready to be stored; refuses a word that the verb does not take."""
    takes = {word.name: word for word in verb.takes(many=many)}
    if strange := given.keys() - takes.keys():
        raise InvalidInput(field=min(strange), problem=f"is not a parameter of {verb.name}")
    return {name: _READ[word.reading](core, name, given.get(name)) for name, word in takes.items()}


def _moment(core: Core, field: str, given: object) -> float:
    now = core.clock.now()
    at = later(field, given, now)
    if at - now > LONGEST_DEFERRAL:
        raise InvalidOption(field=field, problem="must be a year from now at most")
    return at


def _lane(core: Core, field: str, given: object) -> str:
    if given not in get_args(Lane):
        raise InvalidInput(field=field, problem=f"{given!r} is not one of {', '.join(get_args(Lane))}")
    return str(given)


def _text(core: Core, field: str, given: object) -> str:
    if not isinstance(given, str) or not given.strip() or len(given) > NOTE_LIMIT:
        raise InvalidInput(field=field, problem=f"must be 1 to {NOTE_LIMIT} characters")
    return given


def _input(core: Core, field: str, given: Any) -> dict[str, Json]:
    text_of(core, given)
    return dict(given)


def _patch(core: Core, field: str, given: object) -> dict[str, Json]:
    if not isinstance(given, dict) or not given:
        raise InvalidInput(field=field, problem='must be a JSON object with the fields to change: {"field": value}')
    try:
        text_of(core, given)
    except InvalidInput as error:
        raise InvalidInput(field=field, problem=error.problem) from None
    return dict(given)


_READ: Final[dict[verbs.Reading, Callable[[Any, str, Any], Any]]] = {
    "name": lambda core, field, given: check_name(field, given),
    "moment": _moment,
    "lane": _lane,
    "text": _text,
    "input": _input,
    "effects": lambda core, field, given: list(check_names(field, given or ())),
    "patch": _patch,
}


# ---- back to the queue


def send_back(
    core: Core,
    job: Job,
    now: float,
    who: str,
    why: str | None,
    change: Callable[[Job], Mapping[str, str]] | None = None,
) -> Transition:
    """Makes the move back to the queue, the only one. Refuses a job that could not start after the move."""
    changed = change(job) if change is not None else lifecycle.NO_CHANGE
    grant = _grant(core, job)
    move = lifecycle.redriven(job, now, max_attempts=grant, who=who, why=why, run_at=now, changed=changed)
    handler = core.registry.handlers.get(job.task)
    verdict = preflight(move.after(job.version), handler, core.registry, now)
    if isinstance(verdict, NotReady):
        raise JobNotReady(f"job {job.short_id} would die again: {verdict.why} {verdict.recommendation}", job_id=job.id)
    return move


def _grant(core: Core, job: Job) -> int:
    """Returns the attempts that the job's task grants; if the task is unknown here, those that the job had at first."""
    if job.task not in core.registry.handlers and job.allowed is not None:
        return max(1, job.allowed // (job.grants + 1))
    return core.registry.policy_for(job).max_attempts or 1


def make_revival(core: Core, who: str, why: str) -> Order:
    """Makes the order of a program's redrive, which has not checked the job: one that may have landed stays dead."""

    def decide(job: Job, now: float) -> Transition:
        if job.state is State.dead and job.may_have_landed:
            raise JobNotReady(LOOK_FIRST.format(id=job.short_id), job_id=job.id)
        return send_back(core, job, now, who, why)

    return Order("redrive", who, why, decide)


def text_of(core: Core, payload: Mapping[str, Json]) -> str:
    """Encodes an input as the store keeps it; refuses an invalid input."""
    encoded = encode(payload, limit=core.settings.payload_limit)
    if encoded.blobs:
        raise InvalidInput(field="payload", problem="a Blob cannot be edited in; enqueue a new job for it")
    check_kept(payload, encoded)
    return encoded.text


def check_fits(core: Core, job: Job, text: str) -> None:
    """Refuses an input that does not fit the task, except for a workflow step that takes other steps' output."""
    handler = core.registry.handlers.get(job.task)
    if handler is not None and not (is_step(job) and OUTPUT in text):
        handler.signature.arguments(text)


def difference(core: Core, job: Job, payload: Mapping[str, Json]) -> list[str]:
    """Lists the differences from the next run's input. Masks likely secrets."""
    handler = core.registry.handlers.get(job.task)
    adapt, count = handler.adapt if handler else None, core.registry.count
    now = make_effective_input(job, handler, core.registry).payload
    lines = diff(redact(now), redact(dict(payload)), adapt=adapt, count=count)
    return lines or (["a value that is not shown was changed"] if diff(now, dict(payload)) else [])


def write_input(core: Core, who: str, why: str | None, job: Job, payload: Mapping[str, Json]) -> Mapping[str, str]:
    """Makes the job fields that a new input writes. Text quoted from a failure stays marked as coming from outside."""
    text = text_of(core, payload)
    check_fits(core, job, text)
    given = msgspec.json.decode(text)
    if not difference(core, job, given):
        raise InvalidInput(field="payload", problem="is the same as before: redrive it as it is")
    edit = change.make_edit(given, who, why)
    if find_quoted(given, outside_texts(job)):
        edit = msgspec.structs.replace(edit, tainted=True)
    return change.fields_of_next_run(merge(decode(job.changes_json), [edit]), None, None)


KEPT: Final = 200
"""Number of documents that the commit of an edit drops, and that undo of the edit restores."""


class Forgotten(NamedTuple):
    """Documents that an edit drops: `puts` in the edit's commit, which undo restores; `gone` before it, for good."""

    puts: list[Put]
    gone: list[Put]


async def list_forgotten(store: Store, job: Job, repeat: Sequence[str] = ()) -> Forgotten:
    """Collects what an edit drops: remembered steps, what to verify outside, and the effects to repeat."""
    if repeat:
        effects = [effect.name for effect in await read_effects(store, job.id)]
        if unknown := set(repeat) - set(effects):
            known = ", ".join(effects) or "none"
            raise InvalidInput(field="repeat", problem=f"{min(unknown)!r} is no effect of this job; there are {known}")
    steps = [STEP.drop(kept.key) for kept in await STEP.all(store, f"{job.id}/")]
    puts = [*put_nothing_landed(job), *(forgotten_effect(job.id, name) for name in repeat)]
    room = max(0, KEPT - len(puts))
    return Forgotten([*puts, *steps[:room]], steps[room:])
