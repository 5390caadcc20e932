"""Plans changed retries: which changes a failure calls for, and which of these changes the task can take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from redrive.core.advice import ADVICE
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
    merge,
    read_names,
)
from redrive.retries.changes import apply, safe_quote, tokens
from redrive.retries.changes.shapes import Shape, find_model, get, is_count, locate
from redrive.retries.decision import LONGEST_WAIT, Bury, Case, Decision, RetryLater

COMPRESSED: Final = 80_000
SHORTER: Final = 0.6
NOWHERE: Final = Shape()
"""A payload that has no place for any change."""


class Way(msgspec.Struct, frozen=True):
    """How a failure that needs a change is retried: how soon, with which changes, and whether also unchanged."""

    delay: float
    plan: Callable[[Case, int], list[Change]]
    blind: bool = False
    needs: tuple[type, ...] = (msgspec.Struct,)
    """At least one of the changes that the task takes must be of one of these kinds."""
    most: int | None = None
    """Most tries, if more of the same change would not help; None: as many as there are rungs."""


def _smaller_context(case: Case, rung: int) -> list[Change]:
    size, now = COMPRESSED // 2 ** (rung - 1), tokens(case.input(), case.abilities.adapt, case.abilities.count)
    if now is not None and now <= size:
        size = now // 2  # too long even so: this model reads less than most models
    larger = case.abilities.fleet.larger(_model(case), case.job.agent)
    focus = AddInstruction("Focus on the core task. Leave out background that it does not need.")
    return [CompressContext(size), focus, *([SetModel(larger)] if larger else [])]


def _model(case: Case) -> str | None:
    """Return the job's own model, else the model that its input names, else the task's."""
    if case.job.model is not None:
        return case.job.model
    named = find_model(case.input(), case.abilities.adapt)
    return named if named is not None else case.abilities.model


def _leave_loop(case: Case, rung: int) -> list[Change]:
    agent = _alternate(case)
    new: list[Change] = [_name_mistake(case), AddConstraint("Validate the answer against the schema before giving it.")]
    new += [SetAgent(agent)] if agent else []
    return new + _another_model(case, rung)


def _alternate(case: Case) -> str | None:
    """Return another agent for the job's kind of work; None if the job has no agent, or the fleet no other one."""
    job = case.job
    return case.abilities.fleet.alternate(job.agent, job.options.message_type or job.task) if job.agent else None


def _no_alternate(case: Case) -> str:
    """Say that a loop stays with its agent because no other agent is configured."""
    stays = case.cause.detail == "hallucination_loop" and case.job.agent and _alternate(case) is None
    return "; no other agent is configured for it" if stays else ""


def _shorter_answer(case: Case, rung: int) -> list[Change]:
    budget = case.job.options.budget
    limit = (budget.output_tokens if budget else None) or _output_limit(case)
    concise = AddInstruction("Be concise: give the result without preamble or repetition.")
    return [SimplifyTask(int(limit * SHORTER**rung)), concise] if limit else [concise]


def _output_limit(case: Case) -> int | None:
    """Return the output limit that the input itself sets, without the lower limits of earlier changed tries."""
    changes, abilities = decode(case.job.changes_json), case.abilities
    others = [change for change in changes if not isinstance(change, SimplifyTask)]
    payload = apply(case.job.arguments, others, abilities.adapt, abilities.count, names=case.names).payload
    limits = [found for path in locate(payload, case.abilities.adapt).limits if is_count(found := get(payload, path))]
    return min(limits, default=case.abilities.output_tokens)


def _another_model(case: Case, rung: int) -> list[Change]:
    other = case.abilities.fleet.other(_model(case), case.job.agent)
    return [SetModel(other)] if other else []


def _name_mistake(case: Case) -> AddInstruction:
    """Return an instruction with redrive's own name for the failure, quoting the error only if the queue allows it."""
    text = f"Attempt {case.failures} failed with {case.cause.detail}; do not repeat its answer."
    if not case.policy.quote_errors:
        return AddInstruction(text)
    return AddInstruction(f"{text}\n{safe_quote(case.failure.message)}", tainted=True)


WAYS: Final[dict[str, Way]] = {
    "context_overflow": Way(10.0, _smaller_context, needs=(CompressContext, SetModel, Edit)),
    "hallucination_loop": Way(60.0, _leave_loop),
    "token_budget": Way(10.0, _shorter_answer),
    "invalid_output": Way(120.0, lambda case, rung: [_name_mistake(case)], blind=True),
    "model_confusion": Way(120.0, lambda case, rung: [], blind=True),
    "refusal": Way(120.0, _another_model, most=1),
}
"""The default table. Each changed try takes one rung, for any cause."""
OTHERWISE: Final = Way(120.0, lambda case, rung: [], blind=True)
FOR_A_CALLER: Final = 1.0
"""Seconds before a changed try while a caller waits."""


def try_changed(case: Case) -> Decision | None:
    """Retry with changes a failure that only a change heals, on top of the attempts, until the rungs are used up."""
    cause = case.cause
    if cause.category != "conditional":
        return None
    way, rung = WAYS.get(cause.detail, OTHERWISE), case.seen(cause.detail) + 1
    if case.changed_tries >= (case.policy.rungs or 0) or (way.most is not None and rung > way.most):
        more = another_rung(case, rung) if _comeback_goes_on(case) else None
        return _no_more_rungs(case) if more is None else _retry_changed(case, way, more, on_top=0)
    new = _takeable(case, case.abilities.offer)
    if not new and (case.names or locate(case.input(), case.abilities.adapt) != NOWHERE):
        new = _takeable(case, way.plan(case, rung))
    if not way.blind and not any(isinstance(change, way.needs) for change in new):
        return _cannot_change(case)
    return _retry_changed(case, way, new, on_top=1)


def _comeback_goes_on(case: Case) -> bool:
    """Return whether the job came back by itself and has a try of that comeback left. Comebacks ignore rungs."""
    return case.job.comebacks > 0 and case.failures < case.allowed


def _retry_changed(case: Case, way: Way, new: Sequence[Change], *, on_top: int) -> RetryLater:
    cause = case.cause
    asked = min(cause.retry_after or 0.0, LONGEST_WAIT)
    wait = max(changed_wait(case, way), asked)
    strategy = "+".join(change_name(change) for change in new) or "once_more"
    how = ", ".join(_IN_WORDS[type(change)].format(change) for change in new) or "unchanged"
    return RetryLater(
        wait,
        f"{cause.detail}: tried again in {wait:g} s, {how}{_no_alternate(case)}.",
        strategy,
        merge(decode(case.job.changes_json), new) if new else None,
        *read_names(new),
        on_top=on_top,
        asked=asked,
    )


def another_rung(case: Case, rung: int) -> list[Change] | None:
    """Return the changes for one more try; empty if an unchanged try is worth it, None if no change would help."""
    way, new = WAYS.get(case.cause.detail, OTHERWISE), _takeable(case, case.abilities.offer)
    if way.most is not None and rung > way.most:
        return None
    if not new and (case.names or locate(case.input(), case.abilities.adapt) != NOWHERE):
        new = _takeable(case, [change for change in way.plan(case, rung) if not _has_tried_model(case, change)])
    return new if way.blind or any(isinstance(change, way.needs) for change in new) else None


def _has_tried_model(case: Case, change: Change) -> bool:
    models = {case.job.model, *(attempt.model for attempt in case.recent)}
    return isinstance(change, SetModel) and change.model in models


def changed_wait(case: Case, way: Way) -> float:
    """Return the seconds before a changed try: `changed_after`, else the way's delay, shorter while a caller waits."""
    wait = case.policy.changed_after
    if isinstance(wait, dict):
        wait = wait.get(case.cause.detail)
    if wait is None:
        wait = min(way.delay, FOR_A_CALLER) if case.called else way.delay
    return min(wait, case.cap)


def _takeable(case: Case, wanted: Iterable[Change]) -> list[Change]:
    """Return the wanted changes that the task can take when all are applied together."""
    abilities, asked = case.abilities, tuple(wanted)
    if not asked:
        return []
    taken = apply(case.input(), asked, abilities.adapt, abilities.count, names=case.names).taken
    return [change for change in asked if change in taken]


def change_name(change: Change) -> str:
    """Return the name of a change: `compress_context`, `set_model`, …"""
    return str(type(change).__struct_config__.tag)


_IN_WORDS: Final[dict[type[Change], str]] = {
    CompressContext: "with its context compressed to {0.max_tokens:,} tokens",
    SimplifyTask: "with at most {0.max_output_tokens:,} tokens of output",
    SetModel: "with the model {0.model}",
    SetAgent: "by {0.agent}",
    AddInstruction: "with an instruction",
    AddConstraint: "with a constraint",
    Edit: "with the input that the task made of it",
}


def _no_more_rungs(case: Case) -> Decision:
    detail = case.cause.detail
    way, rungs = WAYS.get(detail, OTHERWISE), case.policy.rungs or 0
    tries = {0: "no changed try", 1: "one changed try"}.get(case.changed_tries, f"{case.changed_tries} changed tries")
    more = " rungs= allows more changed tries." if case.changed_tries >= rungs and way.most is None else ""
    return Bury(
        _no_change(detail),
        f"Not retried further: {detail}, after {tries}.",
        f"{ADVICE.get(detail, 'Look at what the model answered.')}{more}",
    )


def _no_change(detail: str) -> str:
    """Return the reason of a dead letter for which no helpful change is left."""
    return "context_overflow" if detail == "context_overflow" else "changes_used_up"


def _cannot_change(case: Case) -> Decision:
    detail = case.cause.detail
    return Bury(
        _no_change(detail),
        f"Not retried: {detail} heals only if something changes, and the task takes no change that would help.",
        f"{ADVICE.get(detail, '')} adapt=redrive.Adapt(...), @task.on({detail!r}) or [models] in redrive.toml say what "
        "may change.",
    )
