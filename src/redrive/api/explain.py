"""Explains what a failure means to redrive and why: `rd.explain` and `rd.classify_rule`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core.job import Cause, Failure, Job, Json, State
from redrive.core.payload import encode
from redrive.engine.registry import Handler
from redrive.engine.settle import find_signal
from redrive.errors import Cancel, InvalidOption, Snooze
from redrive.failures.capture import capture, guard_rule, qualified
from redrive.failures.classify import DETAILS, RULE_NOTES, by_class
from redrive.jobs.tasks import Task
from redrive.retries.decision import Abilities, Bury, Case, Decision, HoldBack, RetryLater
from redrive.retries.remedies import OTHERWISE, WAYS, changed_wait
from redrive.retries.strategy import decide

if TYPE_CHECKING:
    from redrive.jobs.core import Core

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


class FailureMethods:
    """The methods of Redrive that say, and let users say, what a failure means."""

    core: Core

    def explain(
        self,
        error: BaseException,
        task: Task[Any, Any] | str | None = None,
        payload: Mapping[str, Json] | None = None,
    ) -> Explanation:
        """Say what would happen if a first attempt failed so: the cause, the rule that recognises it, the decision.

        Whether a retry can be changed depends on the payload; without one, a long conversation stands for it.
        """
        registry, now = self.core.registry, self.core.clock.now()
        name = task.name if isinstance(task, Task) else task
        handler = registry.handlers.get(name or "")
        if name is not None and handler is None:
            raise InvalidOption(field="task", problem=f"{name!r} is not a task of this Redrive")
        failure = capture(error)
        job = _example(name or "example", handler, now, payload if payload is not None else _imagine_payload(handler))
        cause = registry.cause_of(failure, handler, job if handler is not None or payload is not None else None)
        case = Case(
            job,
            failure,
            cause,
            registry.policy_for(job),
            now,
            idempotent=handler.idempotent if handler else False,
            abilities=handler.abilities(registry.fleet, registry.count) if handler else Abilities(registry.fleet),
            effects=bool(handler and handler.effects),
            manual=handler is not None and handler.retry_policy == "manual",
        )
        return Explanation(failure, cause, why_rule(cause.rule), _decide(error, case, handler))

    def classify_rule(self, rule: Any = None, detail: str | None = None, *, name: str | None = None) -> Any:
        """Add a rule in front of redrive's: `rd.classify_rule(MyError, "rate_limited")`, or as a decorator.

        A decorated function gets a `redrive.Failure` and returns a detail, or None where it does not know.
        """
        if rule is None:
            return lambda function: self.classify_rule(function, detail, name=name)
        if isinstance(rule, type) and issubclass(rule, BaseException):
            if detail not in DETAILS:
                raise InvalidOption(field="detail", problem=f"{detail!r} is not one of {', '.join(DETAILS)}")
            self._add_rule(name or qualified(rule), by_class([qualified(rule)], detail))
        elif callable(rule):
            self._add_rule(name or str(getattr(rule, "__name__", "rule")), rule)
        else:
            raise InvalidOption(field="rule", problem=f"{rule!r} is neither an exception class nor a function")
        return rule

    def _add_rule(self, name: str, rule: Callable[[Failure], str | None]) -> None:
        self.core.registry.rules.append((name, guard_rule(name, rule, _warn_of_rule)))

    def queue_of_task(self, task: str) -> str:
        """Return the queue that the jobs of a task go to by default: the task's own name where it is not known here."""
        return self.core.registry.queue_of_task(task)


def _warn_of_rule(name: str, error: BaseException) -> None:
    log.warning("the rule %s failed and was passed over: %r", name, error)


def _decide(error: BaseException, case: Case, handler: Handler | None) -> Decision:
    """Decides about a failure. Signals that are no failures, and the task's own ways, come first."""
    signal = find_signal(error)
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


def _imagine_payload(handler: Handler | None) -> Mapping[str, Json]:
    """Makes the payload where the caller gives none: a long conversation, as far as the task takes one."""
    if handler is None or handler.adapt is not None:
        return _TALK
    return {name: value for name, value in _TALK.items() if name in handler.signature.names}


def why_rule(rule: str) -> str:
    """Says how a rule recognises a failure; a user's own rule has only its name."""
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
