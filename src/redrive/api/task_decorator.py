"""Registers tasks with the options of `@rd.task`, and the built-in task that delivers HTTP requests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Literal,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_overloads,
    overload,
)

from redrive.core.change import outside_key
from redrive.core.checks import check_choice, check_name, check_names, optional_name
from redrive.core.effects import Effect
from redrive.core.job import Job, OnLost
from redrive.core.option_hints import hint_for_task
from redrive.core.payload import check_kept, encode
from redrive.core.policy import Backoff, Policy, Rate, Scope, is_endless
from redrive.core.schedule import Cron, cron
from redrive.engine import tracing
from redrive.engine.context import BlockingContext, Context, wants_context_first
from redrive.engine.loop import Loop
from redrive.engine.probes import Probe
from redrive.engine.registry import Handler, ResultPolicy, RetryPolicy
from redrive.errors import InvalidOption
from redrive.http.policy import HTTP_TASK
from redrive.jobs.tasks import (
    AsyncContextTask,
    AsyncTask,
    Classes,
    Fallback,
    PlainContextTask,
    PlainTask,
    Seconds,
    Task,
    TaskDecorator,
    read_seconds,
)
from redrive.retries.changes import Adapt

if TYPE_CHECKING:
    from redrive.api.workers import Workers
    from redrive.jobs.core import Core
    from redrive.jobs.tasks import TaskHome

P = ParamSpec("P")
R = TypeVar("R")
DIRECT_SECONDS: Final = 5.0
"""How long a direct request may take when neither store nor spool could accept its job."""


class TaskMethods:
    """The methods of Redrive that register tasks."""

    core: Core
    _workers: Workers

    @overload
    def task(  # type: ignore[overload-overlap]  # a coroutine function is a function, too: the first match wins
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[BlockingContext, P], R], /) -> PlainContextTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(
        self,
        name: str | None = None,
        /,
        *,
        queue: str | None = None,
        max_attempts: int | None = None,
        timeout: Seconds | None = None,
        idempotency_key: str | None = None,
        retry_on: Classes = (),
        give_up_on: Classes = (),
        idempotent: bool = False,
        backoff: Backoff | None = None,
        base: Seconds | None = None,
        cap: Seconds | None = None,
        max_wait: Seconds | None = None,
        lease: Seconds | None = None,
        max_age: Seconds | None = None,
        on_lost: OnLost | None = None,
        concurrency: int | None = None,
        rate: Rate | None = None,
        scope: Scope | None = None,
        stalled_after: Seconds | None = None,
        strategy: Literal["categorized", "plain"] | None = None,
        max_crashes: int | None = None,
        rungs: int | None = None,
        changed_after: Seconds | Mapping[str, Seconds] | None = None,
        comebacks: Sequence[Seconds] | None = None,
        quote_errors: bool | None = None,
        breaker_after: int | None = None,
        adapt: Adapt | None = None,
        downstream: str | Callable[..., str | None] | None = None,
        credentials: Sequence[str] = (),
        result_policy: ResultPolicy = True,
        schedule: str | Cron | Sequence[str | Cron] = (),
        effects: Sequence[Effect] = (),
        retry_policy: RetryPolicy = "replay",
        requires: Sequence[Probe] = (),
        consent: bool | str = False,
        read_only: bool = False,
        wraps: str | None = None,
        fallback: Fallback | None = None,
        fallback_after: Seconds | None = None,
    ) -> TaskDecorator: ...
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    def task(self, name: Any = None, /, **options: Any) -> Any:
        """Register a function. `@rd.task`, or `@rd.task("name", queue=…, max_attempts=…, …)`."""
        if callable(name):
            return self._register(name, None, options)
        return lambda function: self._register(function, name, options)

    def _register(self, function: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Task[Any, Any]:
        if unknown := options.keys() - _OPTIONS:
            hint = hint_for_task(min(unknown), _OPTIONS)
            raise InvalidOption(field=min(unknown), problem=f"is not an option of rd.task: {hint}")
        _refuse_method(function)
        if name is None:
            name = getattr(function, "__name__", None) or type(function).__name__
        check_name("task", name)
        queue = optional_name("queue", options.get("queue")) or name
        durations = ("timeout", "base", "cap", "max_wait", "lease", "max_age", "stalled_after", "fallback_after")
        given = [key for key in durations if options.get(key) is not None]
        options |= {key: read_seconds(options[key], key) for key in given if not is_endless(key, options[key])}
        if (changed_after := options.get("changed_after")) is not None:
            options["changed_after"] = _read_changed_after(changed_after)
        if (comebacks := options.get("comebacks")) is not None:
            options["comebacks"] = _read_comebacks(comebacks)
        _check_options(options)
        wants_context = wants_context_first(function)
        if wants_context and options.get("read_only"):
            raise InvalidOption(field="read_only", problem="its calls are not stored, so there is no context to give")
        handler = Handler(
            name,
            function,
            queue=queue,
            policy=Policy(**{key: options[key] for key in _POLICY_OPTIONS if options.get(key) is not None}),
            wants_context=wants_context,
            retry_on=_read_classes("retry_on", options.get("retry_on")),
            give_up_on=_read_classes("give_up_on", options.get("give_up_on")),
            credentials=check_names("credentials", options.get("credentials") or ()),
            schedules=_read_schedules(options.get("schedule")),
            key_template=options.get("idempotency_key"),
            **{key: options[key] for key in _TASK_OPTIONS & options.keys()},
        )
        self._check_schedules(handler)
        self.core.registry.add(handler)
        self._workers.tell(Loop.nudge)
        kinds = (AsyncTask, AsyncContextTask) if handler.is_async else (PlainTask, PlainContextTask)
        return kinds[wants_context](cast("TaskHome", self), handler)

    def _check_schedules(self, handler: Handler) -> None:
        """Refuse schedules that never fire, and payloads that the task cannot use."""
        from redrive.flows.schedules import next_slot

        for schedule in handler.schedules:
            next_slot(schedule.line, schedule.tz, 0.0)
            encoded = encode(schedule.payload, limit=self.core.settings.payload_limit)
            check_kept(schedule.payload, encoded, handler.signature)
            if not encoded.blobs:
                handler.signature.arguments(encoded.text)

    def _add_delivery(self) -> None:
        """Register the built-in task: one HTTP request, as durable as any job."""

        async def send(job: Job, request: Mapping[str, Any]) -> dict[str, Any]:
            from redrive.http import delivery

            key, traceparent = outside_key(job), tracing.get_traceparent() or job.options.traceparent
            policy = self.core.settings.delivery
            return await delivery.deliver(request, idempotency_key=key, traceparent=traceparent, policy=policy)

        async def deliver(ctx: Context, **request: Any) -> dict[str, Any]:
            return await send(ctx.job, request)

        handler = Handler(
            HTTP_TASK, deliver, queue="http", policy=Policy(), wants_context=True, idempotent=True, result_policy=False
        )
        handler.direct = lambda job, request: send(job, {"timeout": DIRECT_SECONDS, **request})
        self.core.registry.add(handler)


def _read_changed_after(value: Any) -> Any:
    """Reads seconds from a duration, or from durations by detail."""
    if isinstance(value, Mapping):
        return {detail: read_seconds(duration, f"changed_after.{detail}") for detail, duration in value.items()}
    return read_seconds(value, "changed_after")


def _read_comebacks(value: Any) -> tuple[float, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidOption(field="comebacks", problem=f"{value!r:.80} is not a list of times; () turns comebacks off")
    return tuple(read_seconds(duration, f"comebacks[{number}]") for number, duration in enumerate(value))


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuses at registration what would be refused, or ignored, when a job runs."""
    check_choice("retry_policy", options.get("retry_policy", "replay"), get_args(RetryPolicy))
    for field, kind in (("effects", Effect), ("requires", Probe)):
        if not _is_list(options.get(field, ()), kind):
            raise InvalidOption(field=field, problem=f"must be a list of redrive.{kind.__name__}")
    for field in ("effects", "consent", "wraps"):
        if options.get("read_only") and options.get(field):
            raise InvalidOption(field="read_only", problem=f"a task with {field} is not read-only")


def _refuse_method(function: Callable[..., Any]) -> None:
    """Refuses a function that is defined in a class: a worker has no object to call it on."""
    owner, _, name = getattr(function, "__qualname__", "").split("<locals>.")[-1].rpartition(".")
    if not owner or list(inspect.signature(function).parameters)[:1] not in (["self"], ["cls"]):
        return
    problem = (
        f"{owner}.{name} is a method, and a worker has no {owner} to call it on. Register the method of one object:"
        f' rd.task("{name}")(that_object.{name}), or write a function that makes the object it needs'
    )
    raise InvalidOption(field="task", problem=problem)


def _is_list(value: object, kind: type[Any] | UnionType) -> bool:
    return isinstance(value, Collection) and all(isinstance(item, kind) for item in value)


def _read_schedules(value: object) -> tuple[Cron, ...]:
    """Reads one schedule or several; a cron line alone is a schedule in UTC."""
    schedules: Any = (value,) if isinstance(value, Cron | str) else value or ()
    if not isinstance(schedules, Sequence) or not _is_list(schedules, Cron | str):
        problem = f'{value!r:.80} is no schedule: give a line such as "0 3 * * *", a redrive.cron(…), or a list of them'
        raise InvalidOption(field="schedule", problem=problem)
    return tuple(cron(schedule) if isinstance(schedule, str) else schedule for schedule in schedules)


def _read_classes(field: str, value: object) -> tuple[type[BaseException], ...]:
    """Reads one exception class, or several."""
    classes: Any = (value,) if isinstance(value, type) else value or ()
    if not _is_list(classes, type) or not all(issubclass(kind, BaseException) for kind in classes):
        raise InvalidOption(field=field, problem=f"{value!r:.80} is not an exception class or a list of them")
    return tuple(classes)


_OPTIONS: Final = frozenset(name for form in get_overloads(TaskMethods.task) for name in form.__kwdefaults__ or ())
"""The options of `@rd.task`, as its signatures name them."""
_OWN_OPTIONS: Final = {"queue", "retry_on", "give_up_on", "credentials", "schedule", "idempotency_key"}
_TASK_OPTIONS: Final = _OPTIONS - _OWN_OPTIONS - set(Policy.__struct_fields__) | {"timeout"}
"""The options that a handler takes as they are given."""
_POLICY_OPTIONS: Final = (_OPTIONS & set(Policy.__struct_fields__)) - {"timeout"}
