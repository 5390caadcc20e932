"""What a failure means to redrive and why: `rd.explain`, `rd.classify_rule`, and the rules of redrive.toml."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from redrive.config import Settings
from redrive.core.agents import AgentFleet
from redrive.core.job import Cause, Failure, Job, Json, State
from redrive.core.payload import encode
from redrive.core.presets import Preset
from redrive.engine.clock import Clock
from redrive.engine.registry import Handler, Registry
from redrive.engine.settle import signal_in
from redrive.errors import Cancel, InvalidOption, Snooze
from redrive.failures.capture import capture, guard_rule, qualified
from redrive.failures.classify import DETAILS, RULE_NOTES, Rule, by_class
from redrive.retries.decision import Abilities, Bury, Case, Decision, HoldBack, RetryLater
from redrive.retries.remedies import OTHERWISE, WAYS, changed_wait
from redrive.retries.strategy import decide

log = logging.getLogger("redrive")


class Explanation(msgspec.Struct, frozen=True):
    """What would happen to a job whose first attempt failed so."""

    failure: Failure
    cause: Cause
    rule: str
    """How the rule that decided recognises it, in words."""
    decision: Decision

    def __str__(self) -> str:
        cause, decision = self.cause, self.decision
        lines = [
            f"{self.failure.summary}",
            f"is {cause.category}, {cause.detail} (rule {cause.rule}: {self.rule})",
            f"so it is {_verb(decision)}: {decision.why}",
        ]
        if not isinstance(decision, RetryLater):
            lines.append(decision.recommendation)
        return "\n".join(lines)


def _verb(decision: Decision) -> str:
    match decision:
        case RetryLater():
            return f"retried ({decision.strategy})"
        case Bury():
            return f"a dead letter in the {decision.lane} lane ({decision.because})"
        case HoldBack():
            return f"held ({decision.because})"


def explain(
    error: BaseException, registry: Registry, clock: Clock, task: str | None, payload: Mapping[str, Json] | None
) -> Explanation:
    handler = registry.handlers.get(task or "")
    if task is not None and handler is None:
        raise InvalidOption(field="task", problem=f"{task!r} is not a task of this Redrive")
    failure = capture(error)
    given = payload if payload is not None else _imagined(handler)
    job = _example(task or "example", handler, clock.now(), given)
    cause = registry.cause_of(failure, handler, job if handler is not None or payload is not None else None)
    case = Case(
        job,
        failure,
        cause,
        registry.policy_for(job),
        clock.now(),
        idempotent=handler.idempotent if handler else False,
        abilities=handler.abilities(registry.fleet, registry.count) if handler else Abilities(registry.fleet),
        effects=bool(handler and handler.effects),
        manual=handler is not None and handler.retry_policy == "manual",
    )
    return Explanation(failure, cause, why_rule(cause.rule), _decision(error, case, handler))


def _decision(error: BaseException, case: Case, handler: Handler | None) -> Decision:
    """What is decided; signals that are no failures, and the task's own ways, have their say first."""
    signal = signal_in(error)
    if isinstance(signal, Snooze):
        return RetryLater(signal.seconds, str(signal), "snoozed", costs_attempt=False)
    if isinstance(signal, Cancel):
        return Bury(
            "cancelled", f"Discarded, not dead: {signal.reason}", "Nothing: the task does not want it any more."
        )
    decision, detail = decide(case), case.cause.detail
    if handler is not None and detail in handler.ways and case.policy.rungs:
        wait = changed_wait(case, WAYS.get(detail, OTHERWISE))
        return RetryLater(
            wait, f"{detail}: tried again in {wait:g} s, with what {case.job.task}.on makes of it.", "edit"
        )
    return decision


def _imagined(handler: Handler | None) -> Mapping[str, Json]:
    """Where nobody gives a payload: a long conversation, as far as the task takes one."""
    if handler is None or handler.adapt is not None:
        return _TALK
    return {name: value for name, value in _TALK.items() if name in handler.signature.names}


def why_rule(rule: str) -> str:
    """How a rule recognises a failure, in words; a user's own rule has only its name."""
    return RULE_NOTES.get(rule, "a rule of your own")


_LONG: Final = "word " * 100_000
_TALK: Final[Mapping[str, Json]] = {
    "messages": [{"role": "user", "content": "Do it."}, {"role": "assistant", "content": _LONG}],
    "prompt": _LONG,
    "context": [_LONG],
}


def _example(task: str, handler: Handler | None, now: float, payload: Mapping[str, Json]) -> Job:
    queue = handler.queue if handler else task
    text = encode(dict(payload), limit=1 << 40).text
    return Job("0" * 32, queue, task, None, State.running, 2, now, 1, now, now, text, run=1, started_at=now)


def add_rule(registry: Registry, rule: Any, detail: str | None, name: str | None) -> Any:
    """A class with a detail, or a function; without either, a decorator."""
    if rule is None:
        return lambda function: add_rule(registry, function, detail, name)
    if isinstance(rule, type) and issubclass(rule, BaseException):
        if detail not in DETAILS:
            raise InvalidOption(field="detail", problem=f"{detail!r} is not one of {', '.join(DETAILS)}")
        _add(registry, name or qualified(rule), by_class([qualified(rule)], detail))
    elif callable(rule):
        _add(registry, name or str(getattr(rule, "__name__", "rule")), rule)
    else:
        raise InvalidOption(field="rule", problem=f"{rule!r} is neither an exception class nor a function")
    return rule


def _add(registry: Registry, name: str, rule: Callable[[Failure], str | None]) -> None:
    registry.rules.append((name, guard_rule(name, rule, _tell)))


def _tell(name: str, error: BaseException) -> None:
    log.warning("the rule %s failed and was passed over: %r", name, error)


def declared_rules(settings: Settings) -> list[tuple[str, Rule]]:
    return [(f"redrive.toml rules[{number}]", rule.as_rule()) for number, rule in enumerate(settings.rules)]


def fleet_of(settings: Settings, preset: Preset) -> AgentFleet:
    """Put the agents of the settings over those of the preset. An empty `escalation` turns the preset's off."""
    escalation = preset.escalation if settings.escalation is None else settings.escalation
    return AgentFleet({**preset.agents, **settings.agents}, settings.models, escalation or None)
