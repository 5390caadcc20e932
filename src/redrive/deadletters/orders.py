"""Carries out the verbs of deadletters/verbs.py: reads their words, and gives their arrows what only the app knows."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from redrive.core import lifecycle
from redrive.core.checks import check_name, check_names
from redrive.core.job import Job, Json, Lane, State, iso
from redrive.core.lifecycle import Transition
from redrive.core.times import later
from redrive.deadletters import edited_input, verbs
from redrive.deadletters.merge_patch import fields_of
from redrive.deadletters.verbs import NOTE_LIMIT, Decided, Verb, kept_words
from redrive.engine.inputs import preflight
from redrive.errors import InvalidInput, InvalidOption, JobNotReady
from redrive.retries.preflight import NotReady

if TYPE_CHECKING:
    from redrive.jobs.core import Core

LONGEST_DEFERRAL: Final = 366 * 86400.0
LOOK_FIRST: Final = (
    "job {id} has an unknown outcome: verify by hand whether it landed, then `redrive resolve {id}`, or"
    " `redrive dead redrive {id}` to run it again"
)
SIZE: Final = 200
"""Jobs that are moved in one commit."""
SIZE_WITH_DOCUMENTS: Final = 80
"""The same, where each brings up to two documents."""
NOTHING: Final[Mapping[str, Json]] = {}
Arrow = Callable[[Job, float], "Transition | Decided"]


class Order(NamedTuple):
    """What is to be done, by whom and why; `arrow` decides it for each job."""

    verb: str
    who: str
    why: str | None
    arrow: Arrow
    said: Mapping[str, Json] = NOTHING
    size: int = SIZE
    """Jobs in one commit: fewer where each brings documents of its own."""
    recalls: bool = True
    """Whether what is deferred is recalled for it: not for a note, nor by a machine, which leaves it put off."""
    unless: Callable[[Job], None] | None = None
    """Refuses what must be named: it does not go along with many others."""

    def decide(self, job: Job, now: float) -> Decided:
        found = self.arrow(job, now)
        return found if isinstance(found, Decided) else Decided(found)


class Bench:
    """What arrows are given of the app."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def again(self, job: Job, now: float, who: str, why: str | None, changed: Mapping[str, str]) -> Transition:
        return redriven(self._core, job, now, who, why, changed)

    def changed_input(self, job: Job, payload: dict[str, Json], who: str, why: str | None) -> Mapping[str, str]:
        return edited_input.changed_input(self._core, job, payload, who, why)

    def input_now(self, job: Job) -> dict[str, Json]:
        return edited_input.input_now(job)


def order(core: Core, verb: Verb, words: Mapping[str, Any], who: str, why: str | None) -> Order:
    """The verb with its words, ready for any job."""
    bench = Bench(core)

    def arrow(job: Job, now: float) -> Transition | Decided:
        return verb.arrow(verbs.Asked(job, now, who, why, words, bench, secrets.token_hex(4)))

    def unless(job: Job) -> None:
        if verb.spares is not None:
            verb.spares(job, words)

    size = SIZE if not verb.documents else SIZE_WITH_DOCUMENTS
    return Order(verb.name, who, why, arrow, recorded(verb, words), size, verb.recalls, unless)


def recorded(verb: Verb, words: Mapping[str, Any]) -> dict[str, Json]:
    """What the record of an act keeps of the words, as people read them."""
    moments = {word.name for word in verb.words if word.reading == "moment"}
    kept = {name: iso(said) if name in moments else said for name, said in kept_words(verb, words).items()}
    patches = [words[word.name] for word in verb.words if word.reading == "patch" and word.name in words]
    return {**kept, "fields": fields_of(patches[0])} if patches else kept


# ---- reading what was said


def read_words(core: Core, verb: Verb, given: Mapping[str, Any], *, many: bool = False) -> dict[str, Any]:
    """The verb's words, checked, as they can be written down; what does not belong to it is refused by name."""
    takes = {word.name: word for word in verb.takes(many=many)}
    if strange := given.keys() - takes.keys():
        raise InvalidInput(field=min(strange), problem=f"is not a parameter of {verb.name}")
    return {name: _READ[word.reading](core, name, given.get(name)) for name, word in takes.items()}


def _name(core: Core, field: str, said: object) -> str:
    return check_name(field, said)


def _moment(core: Core, field: str, said: object) -> float:
    now = core.clock.now()
    at = later(field, said, now)
    if at - now > LONGEST_DEFERRAL:
        raise InvalidOption(field=field, problem="must be a year from now at most")
    return at


def _lane(core: Core, field: str, said: object) -> str:
    if said not in get_args(Lane):
        raise InvalidInput(field=field, problem=f"{said!r} is not one of {', '.join(get_args(Lane))}")
    return str(said)


def _text(core: Core, field: str, said: object) -> str:
    if not isinstance(said, str) or not said.strip() or len(said) > NOTE_LIMIT:
        raise InvalidInput(field=field, problem=f"must be 1 to {NOTE_LIMIT} characters")
    return said


def _input(core: Core, field: str, said: Any) -> dict[str, Json]:
    edited_input.text_of(core, said)
    return dict(said)


def _effects(core: Core, field: str, said: object) -> list[str]:
    return list(check_names(field, said or ()))


def _patch(core: Core, field: str, said: object) -> dict[str, Json]:
    if not isinstance(said, dict) or not said:
        raise InvalidInput(field=field, problem='must be a JSON object with the fields to change: {"field": value}')
    try:
        edited_input.text_of(core, said)
    except InvalidInput as error:
        raise InvalidInput(field=field, problem=error.problem) from None
    return dict(said)


_READ: Final[dict[verbs.Reading, Callable[[Any, str, Any], Any]]] = {
    "name": _name, "moment": _moment, "lane": _lane, "text": _text, "input": _input, "effects": _effects,
    "patch": _patch,
}  # fmt: skip


# ---- back to the queue


def redriven(
    core: Core,
    job: Job,
    now: float,
    who: str,
    why: str | None,
    changed: Mapping[str, str] = lifecycle.NO_CHANGE,
    by: lifecycle.Revival | None = None,
) -> Transition:
    """The one way back to the queue. Refused where the job, as it would then be, could not start."""
    move = lifecycle.redriven(
        job, now, max_attempts=_grant(core, job), who=who, why=why, run_at=now, changed=changed, by=by
    )
    handler = core.registry.handlers.get(job.task)
    verdict = preflight(move.after(job.version), handler, core.registry, now)
    if isinstance(verdict, NotReady):
        raise JobNotReady(f"job {job.short_id} would die again: {verdict.why} {verdict.recommendation}", job_id=job.id)
    return move


def _grant(core: Core, job: Job) -> int:
    """As many attempts as its task gives; where the task is not known here, as many as it had at first."""
    if job.task not in core.registry.handlers and job.allowed is not None:
        return max(1, job.allowed // (job.grants + 1))
    return core.registry.policy_for(job).max_attempts or 1


def reviving(core: Core, who: str, why: str) -> Order:
    """A redrive that a program asks for, which has not looked at the job: what may have landed stays dead."""

    def arrow(job: Job, now: float) -> Transition:
        if job.state is State.dead and job.may_have_landed:
            raise JobNotReady(LOOK_FIRST.format(id=job.short_id), job_id=job.id)
        return redriven(core, job, now, who, why)

    return Order("redrive", who, why, arrow)
