"""The tasks this process knows and the policies that hold for their jobs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import isinf
from typing import Any, Final, Literal

import msgspec

from redrive.core.agents import AgentFleet
from redrive.core.effects import Effect
from redrive.core.job import Cause, Failure, Job
from redrive.core.keys import check_template, key_for
from redrive.core.payload import Signature
from redrive.core.policy import Policy, check, effective, merge
from redrive.core.schedule import Cron
from redrive.engine.probes import Probe
from redrive.errors import ConfigError
from redrive.failures.capture import qualified
from redrive.failures.classify import Rule, by_class, classify, reads_data
from redrive.http.policy import HTTP_TASK
from redrive.retries.changes import Adapt, Counter, estimate
from redrive.retries.changes.shapes import locate
from redrive.retries.decision import Abilities
from redrive.retries.preflight import short_enough

log = logging.getLogger("redrive")
RetryPolicy = Literal["replay", "verify_first", "manual"]
"""What happens after a failure: run again; look first whether its effects landed; or leave it to a person."""
ResultPolicy = bool | Callable[[Any], Any]
"""Whether a returned value may be a failure: in known shapes (True), never (False), or as a function says."""
Summarise = Callable[[str, int], Awaitable[str] | str]
"""(text that would be left out, tokens it may take) → a summary of it."""
UNCERTAIN = "redrive.errors.OutcomeUnknown"
"""The built-in task: one HTTP request."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine. A generator does nothing until somebody iterates, and nobody would."""
    ways = function, None if inspect.isclass(function) else getattr(function, "__call__", None)  # noqa: B004
    if any(map(inspect.isgeneratorfunction, ways)) or any(map(inspect.isasyncgenfunction, ways)):
        raise ConfigError(f"{function!r} is a generator: its code would not run; let the task return a list")
    return any(map(inspect.iscoroutinefunction, ways))


class Handler:
    """A registered task: its function and everything a worker needs to run it."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        queue: str,
        policy: Policy,
        wants_context: bool,
        timeout: float | None = None,
        retry_on: Sequence[type[BaseException]] = (),
        give_up_on: Sequence[type[BaseException]] = (),
        idempotent: bool = False,
        adapt: Adapt | None = None,
        downstream: str | Callable[..., str | None] | None = None,
        credentials: Sequence[str] = (),
        result_policy: ResultPolicy = True,
        schedules: Sequence[Cron] = (),
        effects: Sequence[Effect] = (),
        retry_policy: RetryPolicy = "replay",
        requires: Sequence[Probe] = (),
        consent: bool | str = False,
        read_only: bool = False,
        wraps: str | None = None,
        key_template: str | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.queue = queue
        self.policy = check(policy, name)
        self.wants_context = wants_context
        self.timeout = timeout
        self.idempotent = idempotent
        self.ways: dict[str, Callable[..., Any]] = {}
        """The task's own answers to failures, by detail: `@task.on("context_overflow")`."""
        self.credentials = tuple(credentials)
        self.result_policy = result_policy
        self.schedules = tuple(schedules)
        """When it runs by itself. Workers see to that."""
        self.effects = tuple(effects)
        self.verifiable = bool(effects or wraps)
        """Whether there is anything outside to look at."""
        self.guarded = bool(consent or requires or effects or wraps)
        """Whether the task itself must be asked before one of its jobs runs."""
        self.retry_policy = retry_policy
        self.requires = tuple(requires)
        self.consent = consent
        """Whether the session must agree before it runs; a label covers all tasks that share it."""
        self.read_only = read_only
        self._abilities: Abilities | None = None
        self.wraps = wraps
        """The payload's field that names the operation which this task does again."""
        self._downstream = downstream
        self.names_downstream = downstream is not None
        self.direct: Callable[[Job, Mapping[str, Any]], Any] | None = None if wants_context or consent else self._call
        """Does the work here and now, where neither store nor spool could accept it; not what needs a yes first."""
        self.is_async = is_async(function)
        self.signature = Signature(function, skip_first=wants_context)
        self.key_template = check_template(key_template, self.signature) if key_template is not None else None
        """How a job's idempotency key is made of its payload."""
        self.adapt = _complete_adapt(adapt, self.signature)
        self.rules: tuple[tuple[str, Rule], ...] = tuple(
            (rule, _except_uncertain(by_class([qualified(kind) for kind in kinds], detail), kinds))
            for rule, kinds, detail in (("give_up_on", give_up_on, "gave_up"), ("retry_on", retry_on, "asked_to_retry"))
            if kinds
        )

    def key_for(self, payload: Mapping[str, Any]) -> str | None:
        """The key that the task makes of a payload; None where it makes none."""
        return key_for(self.key_template, self.signature, payload) if self.key_template is not None else None

    @property
    def default_model(self) -> str | None:
        """What the parameter for the model is where nobody gives one."""
        found = self.signature.default(self.adapt.model if self.adapt else None)
        return found if isinstance(found, str) else None

    def abilities(self, fleet: AgentFleet, count: Counter) -> Abilities:
        """What the task can take when it is tried again; worked out once."""
        if self._abilities is not None:
            return self._abilities
        limit = self.signature.default(self.adapt.max_output_tokens if self.adapt else None)
        whole = limit if isinstance(limit, int) and not isinstance(limit, bool) else None
        self._abilities = Abilities(fleet, self.adapt, count, self.default_model, whole)
        return self._abilities

    @property
    def downstream(self) -> str | None:
        """What every job of the task calls; None where that is not said, or depends on the payload."""
        return self._downstream if isinstance(self._downstream, str) else None

    def downstream_of(self, payload: Mapping[str, Any]) -> str | None:
        """What the task calls: the name it gave, or what its function makes of the payload."""
        if not callable(self._downstream):
            return self._downstream
        try:
            found = self._downstream(**payload)
        except Exception as error:  # noqa: BLE001 - the task's own code; without an answer the job has no breaker
            log.warning("downstream= of task %s failed: %r", self.name, error)
            return None
        return str(found) if found is not None else None

    def _call(self, job: Job, payload: Mapping[str, Any]) -> Any:
        return self.function(**payload)


_PLACES: Final = (
    ("model", ("model",)),
    ("max_output_tokens", ("max_output_tokens", "max_completion_tokens", "max_tokens")),
)


def _complete_adapt(adapt: Adapt | None, signature: Signature) -> Adapt | None:
    """A parameter that is named for it takes the change, also where the payload leaves it to its default."""
    said = msgspec.to_builtins(adapt) if adapt is not None else {}
    for place, names in _PLACES:
        found = next((name for name in names if name in signature.names), None)
        if place not in said and found is not None:
            said[place] = found
    return Adapt(**said) if said else adapt


def _asks_a_model(handler: Handler | None, job: Job | None) -> bool:
    """Tell whether a task says that it asks a model: by what it declares, or by what its job is given to read."""
    adapt = handler.adapt if handler is not None else None
    if adapt is not None or (handler is not None and handler.ways):
        return True
    if job is None:
        return False
    shape = locate(job.arguments, adapt)
    return bool(job.agent or job.model or shape.messages or shape.prompt)


def _except_uncertain(rule: Rule, kinds: Sequence[type[BaseException]]) -> Rule:
    """An uncertain write often is a timeout, too: only a rule that names its very class says what to do about it."""
    own = {qualified(kind) for kind in kinds}

    def judged(failure: Failure) -> str | None:
        uncertain = UNCERTAIN in failure.types and failure.types[0] not in own and UNCERTAIN not in own
        return None if uncertain else rule(failure)

    return judged


class Registry:
    """Handlers by name, policies by queue."""

    def __init__(
        self,
        queues: Mapping[str, Policy] | None = None,
        default: Policy | None = None,
        *,
        preset_queues: Mapping[str, Policy] | None = None,
        agent_policy: Policy | None = None,
        fleet: AgentFleet | None = None,
        rules: Sequence[tuple[str, Rule]] = (),
        count: Counter = estimate,
        summarise: Summarise | None = None,
        version: str | None = None,
    ) -> None:
        self.handlers: dict[str, Handler] = {}
        self.fleet = fleet or AgentFleet()
        self.rules: list[tuple[str, Rule]] = list(rules)
        """The user's own rules for failures, in front of ours and behind the task's."""
        self.count = count
        self.short = short_enough(self.fleet, count)
        """Payloads of no more characters than this fit every model."""
        self.summarise = summarise
        self.version = version
        """Of the application, kept with each attempt."""
        self._preset_queues = preset_queues or {}
        self.queues: dict[str, Policy] = dict(self._preset_queues)
        self._agent_policy = agent_policy
        self._default = default
        self._policies: dict[tuple[object, ...], Policy] = {}
        self._limited: dict[str, Policy] | None = None
        for name, policy in (queues or {}).items():
            self.configure(name, policy)

    def detach(self) -> None:
        """Let a copy have tasks and queues of its own."""
        self.handlers, self.queues = dict(self.handlers), dict(self.queues)
        self._policies, self._limited = {}, None

    def configure(self, queue: str, policy: Policy) -> None:
        """Say something about a queue; what was said before stays unless said anew."""
        self.queues[queue] = merge(check(policy, f"queues.{queue}"), self.queues.get(queue))
        self._policies.clear()
        self._limited = None

    def add(self, handler: Handler) -> None:
        if handler.name in self.handlers and self.handlers[handler.name].function is not handler.function:
            raise ConfigError(f"two tasks are named {handler.name!r}: give one of them another name")
        self.handlers[handler.name] = handler
        limits = Policy(concurrency=handler.policy.concurrency, rate=handler.policy.rate, scope=handler.policy.scope)
        if limits != Policy():
            self.configure(handler.queue, limits)
        self._policies.clear()

    def starts_once(self, handler: Handler, job: Job | None = None) -> bool:
        """Whether a start must be on disk before it counts, because nobody may take the job for one never begun."""
        policy = self.policy_for(job) if job is not None else handler.policy
        return policy.on_lost == "dead_letter" or handler.verifiable

    def rules_for(self, handler: Handler | None) -> Sequence[tuple[str, Rule]]:
        return (*(handler.rules if handler else ()), *self.rules)

    def cause_of(self, failure: Failure, handler: Handler | None, job: Job | None = None) -> Cause:
        """Classify a failure of a task: the task's own rules first, and its word that it asks a model counts."""
        if reads_data(failure) and not failure.model_asked and _asks_a_model(handler, job):
            failure = msgspec.structs.replace(failure, model_asked=True)
        return classify(failure, self.rules_for(handler))

    def limited(self) -> dict[str, Policy]:
        """Policies of the queues that have a concurrency or rate limit of their own."""
        if self._limited is None:
            self._limited = {
                queue: self.queue_policy(queue)
                for queue, policy in self.queues.items()
                if policy.concurrency is not None or policy.rate is not None
            }
        return self._limited

    def spoken_of(self) -> frozenset[str]:
        """The queues of tasks and those with a policy of their own; a preset's count once they are used."""
        own = {handler.queue for handler in list(self.handlers.values()) if handler.name != HTTP_TASK}
        preset = self._preset_queues
        return frozenset(own | {name for name, policy in self.queues.items() if preset.get(name) is not policy})

    def queue_of_task(self, task: str) -> str:
        """Names the queue that jobs of a task go to unless they say another; of an unknown task, its own name."""
        handler = self.handlers.get(task)
        return handler.queue if handler is not None else task

    def queue_policy(self, queue: str) -> Policy:
        return effective(None, None, merge(self.queues.get(queue), self._default), "direct")

    def stalled_after(self) -> dict[str, float | None]:
        """The limit of each task that sets one, for itself or by its queue; None where it is never stalled."""
        limits = {}
        for name, handler in list(self.handlers.items()):
            limit = merge(handler.policy, self.queue_policy(handler.queue)).stalled_after
            if limit is not None:
                limits[name] = None if isinf(limit) else limit
        return limits

    def policy(
        self, queue: str, task: str, reason: str, *, agent: bool, options: str | None, job: Job | None
    ) -> Policy:
        known = (queue, task, reason, agent, options)
        found = self._policies.get(known)
        if found is None:
            handler = self.handlers.get(task)
            asked = job.options if job is not None else None
            own = Policy(lease=asked.lease, max_age=asked.max_age, on_lost=asked.on_lost) if asked else None
            found = effective(
                own,
                handler.policy if handler else None,
                merge(self.queues.get(queue), self._default),
                reason,
                agent=self._agent_policy if agent else None,
            )
            if len(self._policies) > 10_000:
                self._policies.clear()
            self._policies[known] = found
        return found

    def policy_for(self, job: Job) -> Policy:
        """What holds for this job: job > task > queue > reason > default."""
        return self.policy(
            job.queue, job.task, job.reason, agent=job.agent is not None, options=job.options_json, job=job
        )
