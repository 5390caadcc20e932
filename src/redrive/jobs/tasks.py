"""The tasks that `@rd.task` makes: each can be called, enqueued, and given options. Fully typed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from redrive.core.job import Budget, Job, Json, OnDuplicate, OnLost, Priority, State
from redrive.core.option_hints import hint_for_job
from redrive.core.outcome import Outcome
from redrive.core.store import Event
from redrive.core.times import SPANS_SHOWN, span_seconds
from redrive.engine.context import BlockingContext, Context
from redrive.engine.registry import Handler
from redrive.errors import InvalidOption, InvalidPayload

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Seconds = float | timedelta | str
"""A duration: seconds, a timedelta, or a text such as "5m"."""
Fallback = bool | Callable[..., Any]
Way = TypeVar("Way", bound=Callable[[dict[str, Any]], Any])
F = TypeVar("F", bound=Callable[..., Any])


def _with_hints(options: F) -> F:
    """Refuse an unknown option with the name that was probably meant, instead of Python's TypeError."""
    known = _list_keywords(options)

    @wraps(options)
    def hinting(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs.keys() - known:
            raise InvalidOption(field=name, problem=f"is not an option of a job: {hint_for_job(name, known)}")
        return options(*args, **kwargs)

    return cast("F", hinting)


def _list_keywords(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(getattr(function, "__kwdefaults__", None) or {})


class JobAccess(Protocol):
    """What a handle needs to follow its job: `rd.jobs`."""

    async def get(self, id: str) -> Job: ...
    async def cancel(self, id: str, *, why: str | None = None) -> Job: ...
    async def result_of(self, handle: JobHandle[Any], timeout: Seconds | None) -> Any: ...
    def events_of(self, job_id: str) -> AsyncIterator[Event]: ...


class TaskHome(Protocol):
    """What a task needs to be enqueued and called: the instance that it is registered with."""

    @property
    def accept(self) -> Callable[[str, Mapping[str, Any], Mapping[str, Any]], Coroutine[Any, Any, JobHandle[Any]]]: ...
    def accept_now(
        self, task: str, payload: Mapping[str, Any], options: Mapping[str, Any]
    ) -> JobHandle[Any] | None: ...
    async def enqueue_many(
        self, task: str | Task[Any, Any], items: Iterable[Mapping[str, Json] | Item], **options: Any
    ) -> Many: ...
    async def call(
        self, task: Task[Any, Any] | str, params: Mapping[str, Json] | None = None, **options: Any
    ) -> Outcome: ...
    def run_blocking(self, work: Coroutine[Any, Any, T]) -> T: ...


class Item:
    """One job of `enqueue_many` that wants options of its own."""

    def __init__(self, payload: Mapping[str, Json], **options: Any) -> None:
        self.payload = payload
        self.options = options


class JobHandle(Generic[R_co]):
    """What enqueue returns: the job's id, and ways to follow it."""

    def __init__(
        self,
        jobs: JobAccess,
        job: Job,
        *,
        duplicate: bool = False,
        spooled: bool = False,
        direct: bool = False,
        pending: bool = False,
        warnings: Sequence[str] = (),
    ) -> None:
        self._jobs = jobs
        self.warnings = tuple(warnings)
        """Advice of preflight; the job is accepted all the same."""
        self._job = job
        self.duplicate = duplicate
        """The key was known: this is the job that was there already."""
        self.spooled = spooled
        """The store could not take the job: it waits, synced, in the spool and is moved over by a worker."""
        self.direct = direct
        """Neither store nor spool could take it: the fallback was called directly."""
        self.pending = pending
        """The job is written in your own transaction: it exists, and `duplicate` holds, once you have committed."""

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def state(self) -> State:
        """The state when it was last read; `refresh()` reads it again."""
        return self._job.state

    @property
    def job(self) -> Job:
        return self._job

    async def refresh(self) -> Job:
        self._job = await self._jobs.get(self.id)
        return self._job

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """Wait for the end. Raises JobDead, JobDiscarded or TimeoutError."""
        result: R_co = await self._jobs.result_of(self, timeout)
        return result

    async def cancel(self, reason: str | None = None) -> Job:
        self._job = await self._jobs.cancel(self.id, why=reason)
        return self._job

    async def events(self) -> AsyncIterator[Event]:
        """Yield what is committed about this job from now on, in any process, until it ends."""
        async for event in self._jobs.events_of(self.id):
            yield event

    def __repr__(self) -> str:
        names = ("duplicate", "spooled", "direct", "pending")
        flags = "".join(f", {name}=True" for name in names if getattr(self, name))
        return f"JobHandle({self.id}, {self.state}{flags})"


class RunBlocking(Protocol):
    """Runs a coroutine to its end from code without an event loop."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class BlockingHandle(Generic[R_co]):
    """A JobHandle for code without an event loop."""

    def __init__(self, handle: JobHandle[R_co], run: RunBlocking) -> None:
        self._handle = handle
        self._run = run
        self.id = handle.id
        self.duplicate = handle.duplicate
        self.spooled = handle.spooled
        self.pending = handle.pending

    @property
    def state(self) -> State:
        return self._handle.state

    def refresh(self) -> Job:
        return self._run(self._handle.refresh())

    def result(self, timeout: Seconds | None = None) -> R_co:
        return self._run(self._handle.result(timeout))

    def cancel(self, reason: str | None = None) -> Job:
        return self._run(self._handle.cancel(reason))


class Bound(Generic[P, R]):
    """A task with options for the jobs that follow."""

    def __init__(self, registered: _Registered, options: Mapping[str, Any]) -> None:
        self._registered = registered
        self._options = options

    @property
    def name(self) -> str:
        """The name of the task."""
        return self._registered.name

    @property
    def given(self) -> Mapping[str, Any]:
        """The options for its jobs."""
        return self._options

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Accept the work durably: when this returns, it is synced to disk."""
        payload, options = self._registered.split(args, kwargs, self._options)
        return await self._registered.home.accept(self._registered.name, payload, options)

    async def enqueue_many(self, items: Iterable[Mapping[str, Json] | Item]) -> Many:
        """Enqueue many payloads at once: dicts of arguments, or `redrive.Item` with options of their own.

        Accepted or refused item by item; repeat it safely where the items have keys.
        """
        return await self._registered.home.enqueue_many(self._registered.name, items, **self._options)

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        """Run the task now and return its outcome; see `rd.call`."""
        return await self._registered.call(args, kwargs, **self._options)

    @property
    def blocking(self) -> BlockingBound[P, R]:
        """`task.blocking.enqueue(...)` for code without an event loop."""
        return BlockingBound(self._registered, self._options)


class BlockingBound(Generic[P, R]):
    """The same without await, also inside Jupyter and Django."""

    def __init__(self, registered: _Registered, options: Mapping[str, Any]) -> None:
        self._registered = registered
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> BlockingHandle[R]:
        payload, options = self._registered.split(args, kwargs, self._options)
        name, home = self._registered.name, self._registered.home
        # a connection that `within` names belongs to this thread, so its job is written here
        handle: JobHandle[R] = home.accept_now(name, payload, options) or home.run_blocking(
            home.accept(name, payload, options)
        )
        return BlockingHandle(handle, home.run_blocking)


class _Registered:
    """A task in the instance that it is registered with: what `Task` and `Bound` work with."""

    def __init__(self, home: TaskHome, handler: Handler) -> None:
        self.home = home
        self.handler = handler
        self.name = handler.name
        self.function_name: str = getattr(handler.function, "__name__", handler.name)

    async def call(self, args: Any, kwargs: Any, **options: Any) -> Outcome:
        return await self.home.call(self.name, self.handler.signature.bind(args, kwargs), **options)

    def split(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Split a call into payload and options; `within` may be an argument where the task has no such parameter."""
        if "within" in kwargs and not self.handler.signature.takes("within"):
            kwargs = dict(kwargs)
            options = {**options, "within": kwargs.pop("within")}
        try:
            return self.handler.signature.bind(args, kwargs), options
        except InvalidPayload as error:
            raise self._meant_as_options(kwargs) or error from None

    def _meant_as_options(self, kwargs: Mapping[str, Any]) -> InvalidPayload | None:
        """Make the error that says how to write options of a job that were given as arguments of its task."""
        known = _list_keywords(Task.options.__wrapped__)  # type: ignore[attr-defined]
        meant = [name for name in kwargs if name in known and not self.handler.signature.takes(name)]
        if not meant:
            return None
        options = ", ".join(f"{name}={kwargs[name]!r:.40}" for name in meant)
        problem = f"{self.name} has no parameter {meant[0]!r}. Options of the job stand apart from its arguments"
        return InvalidPayload(
            field="arguments", problem=f"{problem}: {self.function_name}.options({options}).enqueue(…)"
        )


class Task(Bound[P, R]):
    """A named, registered function. `P` are the payload's parameters, `R` the result."""

    def __init__(self, home: TaskHome, handler: Handler) -> None:
        super().__init__(_Registered(home, handler), {})
        self.__doc__ = handler.function.__doc__
        self.__name__ = self._registered.function_name
        self.__wrapped__ = handler.function
        self.__handler__ = handler

    @property
    def queue(self) -> str:
        return self.__handler__.queue

    @_with_hints
    def options(
        self,
        *,
        queue: str | None = None,
        run_at: datetime | None = None,
        delay: Seconds | None = None,
        priority: Priority | None = None,
        idempotency_key: str | None = None,
        session_id: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        max_attempts: int | None = None,
        lease: Seconds | None = None,
        max_age: Seconds | None = None,
        on_lost: OnLost | None = None,
        on_duplicate: OnDuplicate | None = None,
        budget: Budget | None = None,
        headers: Mapping[str, str] | None = None,
        fallback: Fallback | None = None,
        fallback_after: Seconds | None = None,
        message_type: str | None = None,
        within: Any = None,
    ) -> Bound[P, R]:
        """Set options for the jobs that are enqueued through the returned task.

        `within` is a session or connection of yours: the job is committed with your data, or not at all.
        """
        given = {name: value for name, value in locals().items() if name != "self" and value is not None}
        return Bound(self._registered, given)

    def as_tool(
        self, *, timeout: Seconds | None = None, session_id: str | None = None
    ) -> Callable[P, Coroutine[Any, Any, dict[str, Any]]]:
        """Make an async function with the parameters and docstring of this task, for any agent framework.

        It answers with a dict that looks like success only where it is one.
        """
        session = {"session_id": session_id} if session_id is not None else {}

        async def tool(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
            return (await self._registered.call(args, kwargs, timeout=timeout, **session)).public()

        tool.__name__ = tool.__qualname__ = self.__name__
        tool.__doc__ = self.__doc__
        tool.__signature__ = self.__handler__.signature.public(dict[str, Any])  # type: ignore[attr-defined]
        tool.__annotations__ = {p.name: p.annotation for p in tool.__signature__.parameters.values()}  # type: ignore[attr-defined]
        tool.__annotations__["return"] = dict[str, Any]
        return tool

    def on(self, detail: str) -> Callable[[Way], Way]:
        """Register the way of this task out of a failure: a function from the payload to a new one, or to None."""
        from redrive.failures.classify import DETAILS

        if DETAILS.get(detail, ("",))[0] != "conditional":
            known = ", ".join(name for name, (category, *_) in DETAILS.items() if category == "conditional")
            raise InvalidOption(field="detail", problem=f"{detail!r} is not one of {known}")

        def keep(way: Way) -> Way:
            self.__handler__.ways[detail] = way
            return way

        return keep

    def __repr__(self) -> str:
        return f"<task {self.name!r} on queue {self.queue!r}>"


class AsyncTask(Task[P, R]):
    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here, as a plain call does."""
        result: R = await self.__handler__.function(*args, **kwargs)
        return result


class AsyncContextTask(Task[P, R]):
    async def __call__(self, ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here, as a plain call does."""
        result: R = await self.__handler__.function(ctx, *args, **kwargs)
        return result


class PlainTask(Task[P, R]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here, as a plain call does."""
        result: R = self.__handler__.function(*args, **kwargs)
        return result


class PlainContextTask(Task[P, R]):
    def __call__(self, ctx: BlockingContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here, as a plain call does."""
        result: R = self.__handler__.function(ctx, *args, **kwargs)
        return result


class TaskDecorator(Protocol):
    """What `rd.task("name", …)` returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine function is a function, too: the first match wins
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[BlockingContext, P], R], /) -> PlainContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class Many(msgspec.Struct, frozen=True):
    """The outcome of an `enqueue_many`, item by item and in order."""

    ids: list[str | None]
    """The job of each item; None where it was refused."""
    duplicates: int
    refused: dict[int, str]
    """The items that were refused, and why."""
    spooled: int = 0
    """How many wait in the spool because the store could not take them."""

    @property
    def accepted(self) -> int:
        return len(self.ids) - len(self.refused)

    def __bool__(self) -> bool:
        return not self.refused


def read_seconds(value: Seconds, field: str) -> float:
    """Read a duration as seconds."""
    number: object = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(value, str):
        number = span_seconds(value)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e11:
        problem = f"{value!r:.80} is no duration: give seconds, a timedelta, or a text such as {SPANS_SHOWN}"
        raise InvalidOption(field=field, problem=problem)
    return float(number)


Classes = type[BaseException] | Sequence[type[BaseException]]
