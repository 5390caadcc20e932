"""The tasks that this process knows and the policies of their jobs."""

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
"""The reaction to a failure: run again; check first whether the effects landed; or leave the job to a person."""
ResultPolicy = bool | Callable[[Any], Any]
"""Whether a returned value may be a failure: in known shapes (True), never (False), or as a function decides."""
Summarise = Callable[[str, int], Awaitable[str] | str]
"""(text that would be left out, tokens it may take) → a summary of it."""
UNCERTAIN = "redrive.errors.OutcomeUnknown"
"""The full name of the error for an uncertain outcome."""


def is_async(function: Callable[..., Any]) -> bool:
    """Tells whether a function is async. Refuses a generator, whose code would not run because it is not iterated."""
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
        """The task's own handlers of failures, by detail: `@task.on("context_overflow")`."""
        self.credentials = tuple(credentials)
        self.result_policy = result_policy
        self.schedules = tuple(schedules)
        """The times at which workers enqueue the task."""
        self.effects = tuple(effects)
        self.verifiable = bool(effects or wraps)
        """Whether the task has effects that a verifier can check."""
        self.guarded = bool(consent or requires or effects or wraps)
        """Whether checks of the task precede each run: consent, probes or effects."""
        self.retry_policy = retry_policy
        self.requires = tuple(requires)
        self.consent = consent
        """Whether the session must consent before the task runs; a label covers all tasks that share it."""
        self.read_only = read_only
        self._abilities: Abilities | None = None
        self.wraps = wraps
        """The field of the payload that names the operation which this task repeats."""
        self._downstream = downstream
        self.names_downstream = downstream is not None
        self.direct: Callable[[Job, Mapping[str, Any]], Any] | None = None if wants_context or consent else self._call
        """Runs a job directly where neither store nor spool could accept it; unset with context or consent."""
        self.is_async = is_async(function)
        self.signature = Signature(function, skip_first=wants_context)
        self.key_template = check_template(key_template, self.signature) if key_template is not None else None
        """The template by which a job's idempotency key is made from its payload."""
        self.adapt = _complete_adapt(adapt, self.signature)
        self.rules: tuple[tuple[str, Rule], ...] = tuple(
            (rule, _except_uncertain(by_class([qualified(kind) for kind in kinds], detail), kinds))
            for rule, kinds, detail in (("give_up_on", give_up_on, "gave_up"), ("retry_on", retry_on, "asked_to_retry"))
            if kinds
        )

    def key_for(self, payload: Mapping[str, Any]) -> str | None:
        """Makes the idempotency key of a payload; None where the task has no template."""
        return key_for(self.key_template, self.signature, payload) if self.key_template is not None else None

    @property
    def default_model(self) -> str | None:
        """The default of the parameter for the model."""
        model = self.signature.default(self.adapt.model if self.adapt else None)
        return model if isinstance(model, str) else None

    def abilities(self, fleet: AgentFleet, count: Counter) -> Abilities:
        """Returns the changes that the task can take on a retry; computed once."""
        if self._abilities is not None:
            return self._abilities
        limit = self.signature.default(self.adapt.max_output_tokens if self.adapt else None)
        whole = limit if isinstance(limit, int) and not isinstance(limit, bool) else None
        self._abilities = Abilities(fleet, self.adapt, count, self.default_model, whole)
        return self._abilities

    @property
    def downstream(self) -> str | None:
        """The downstream of every job of the task; None where it is not given or depends on the payload."""
        return self._downstream if isinstance(self._downstream, str) else None

    def downstream_of(self, payload: Mapping[str, Any]) -> str | None:
        """Returns the downstream of a payload: the name given by the task, or the result of its function."""
        if not callable(self._downstream):
            return self._downstream
        try:
            name = self._downstream(**payload)
        except Exception as error:  # noqa: BLE001 - the task's own code; without an answer the job has no breaker
            log.warning("downstream= of task %s failed: %r", self.name, error)
            return None
        return str(name) if name is not None else None

    def _call(self, job: Job, payload: Mapping[str, Any]) -> Any:
        return self.function(**payload)


_PLACES: Final = (
    ("model", ("model",)),
    ("max_output_tokens", ("max_output_tokens", "max_completion_tokens", "max_tokens")),
)


def _complete_adapt(adapt: Adapt | None, signature: Signature) -> Adapt | None:
    """Maps changes to the parameters named for them, also where the payload leaves those to their defaults."""
    parameters = msgspec.to_builtins(adapt) if adapt is not None else {}
    for place, names in _PLACES:
        own = next((name for name in names if name in signature.names), None)
        if place not in parameters and own is not None:
            parameters[place] = own
    return Adapt(**parameters) if parameters else adapt


def _asks_a_model(handler: Handler | None, job: Job | None) -> bool:
    """Tells whether a task asks a model: by what it declares, or by the payload of its job."""
    adapt = handler.adapt if handler is not None else None
    if adapt is not None or (handler is not None and handler.ways):
        return True
    if job is None:
        return False
    shape = locate(job.arguments, adapt)
    return bool(job.agent or job.model or shape.messages or shape.prompt)


def _except_uncertain(rule: Rule, kinds: Sequence[type[BaseException]]) -> Rule:
    """Makes a rule skip uncertain writes, which often are timeouts, too, unless the rule names their very class."""
    own = {qualified(kind) for kind in kinds}

    def judge(failure: Failure) -> str | None:
        uncertain = UNCERTAIN in failure.types and failure.types[0] not in own and UNCERTAIN not in own
        return None if uncertain else rule(failure)

    return judge


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
        """The user's rules for failures, applied after the task's rules and before redrive's."""
        self.count = count
        self.short = short_enough(self.fleet, count)
        """Payloads of no more characters than this fit every model."""
        self.summarise = summarise
        self.version = version
        """The version of the application, kept with each attempt."""
        self._preset_queues = preset_queues or {}
        self.queues: dict[str, Policy] = dict(self._preset_queues)
        self._agent_policy = agent_policy
        self._default = default
        self._policies: dict[tuple[object, ...], Policy] = {}
        self._limited: dict[str, Policy] | None = None
        for name, policy in (queues or {}).items():
            self.configure(name, policy)

    def detach(self) -> None:
        """Separates the tasks and queues of a copy from the original."""
        self.handlers, self.queues = dict(self.handlers), dict(self.queues)
        self._policies, self._limited = {}, None

    def configure(self, queue: str, policy: Policy) -> None:
        """Sets a policy for a queue; settings that it leaves out keep their earlier values."""
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
        """Tells whether a start must be on disk first, because the job must not be taken for one that never began."""
        policy = self.policy_for(job) if job is not None else handler.policy
        return policy.on_lost == "dead_letter" or handler.verifiable

    def cause_of(self, failure: Failure, handler: Handler | None, job: Job | None = None) -> Cause:
        """Classifies a failure of a task: by the task's own rules first, and knowing whether the task asks a model."""
        if reads_data(failure) and not failure.model_asked and _asks_a_model(handler, job):
            failure = msgspec.structs.replace(failure, model_asked=True)
        return classify(failure, (*(handler.rules if handler else ()), *self.rules))

    def limited(self) -> dict[str, Policy]:
        """Returns the policies of the queues that have a concurrency or rate limit of their own."""
        if self._limited is None:
            self._limited = {
                queue: self.queue_policy(queue)
                for queue, policy in self.queues.items()
                if policy.concurrency is not None or policy.rate is not None
            }
        return self._limited

    def spoken_of(self) -> frozenset[str]:
        """Names the queues of tasks and those with a policy of their own; preset queues only once they are used."""
        own = {handler.queue for handler in list(self.handlers.values()) if handler.name != HTTP_TASK}
        preset = self._preset_queues
        return frozenset(own | {name for name, policy in self.queues.items() if preset.get(name) is not policy})

    def queue_of_task(self, task: str) -> str:
        """Names the default queue for jobs of a task; for an unknown task, the name of the task."""
        handler = self.handlers.get(task)
        return handler.queue if handler is not None else task

    def queue_policy(self, queue: str) -> Policy:
        return effective(None, None, merge(self.queues.get(queue), self._default), "direct")

    def stalled_after(self) -> dict[str, float | None]:
        """Returns the stall limit of each task that has one, itself or by its queue; None where it never stalls."""
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
        policy = self._policies.get(known)
        if policy is None:
            handler = self.handlers.get(task)
            asked = job.options if job is not None else None
            own = Policy(lease=asked.lease, max_age=asked.max_age, on_lost=asked.on_lost) if asked else None
            policy = effective(
                own,
                handler.policy if handler else None,
                merge(self.queues.get(queue), self._default),
                reason,
                agent=self._agent_policy if agent else None,
            )
            if len(self._policies) > 10_000:
                self._policies.clear()
            self._policies[known] = policy
        return policy

    def policy_for(self, job: Job) -> Policy:
        """Returns the policy of a job, by precedence: job > task > queue > reason > default."""
        return self.policy(
            job.queue, job.task, job.reason, agent=job.agent is not None, options=job.options_json, job=job
        )
