"""Redrive: wires the parts. Every command is load → lifecycle → commit; nothing is decided here."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, overload

import msgspec

from redrive.app.accept import Desk, SpoolUnusable
from redrive.app.blocking import Blocking
from redrive.app.namespaces import Dead, Jobs, Queues
from redrive.app.portal import portal
from redrive.app.watch import Watch
from redrive.config import Settings, default_path, load
from redrive.core.job import Job, Json, OnLost, State
from redrive.core.policy import Backoff, Policy, Rate, Scope
from redrive.core.store import Event, Store
from redrive.errors import ConfigError, InvalidOption, JobDead, JobDiscarded
from redrive.insight.health import Health, Pain, QueueNumbers
from redrive.runtime.attempt import RESULT_APART
from redrive.runtime.bus import Bus, BusEvent, Subscriber, Subscription
from redrive.runtime.clock import Clock, SystemClock
from redrive.runtime.context import BlockingContext, Context
from redrive.runtime.registry import HTTP_TASK, Handler, Registry
from redrive.runtime.scheduler import Scheduler
from redrive.runtime.spool import Spool
from redrive.runtime.worker import Worker
from redrive.tasks import (
    AsyncContextTask,
    AsyncTask,
    Classes,
    Item,
    JobHandle,
    Many,
    PlainContextTask,
    PlainTask,
    Seconds,
    Task,
    TaskDecorator,
    seconds,
)

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("redrive")
FOLLOW_SECONDS: Final = 0.25
DRAIN_ERRORS: Final = 3
SWITCH_SECONDS: Final = 0.0002
"""How soon the store's thread gets its turn while a worker is busy. Python's default of 5 ms makes them take turns."""
ENQUEUED_AGAIN: Final = "enqueued again with the same key"
DIRECT_SECONDS: Final = 5.0
"""How long a direct request may take when neither store nor spool could accept it."""


class Redrive:
    """A durable queue on one SQLite file.

    No argument: REDRIVE_URL, redrive.toml, else the XDG state folder. Making one does no I/O; the store is opened on
    first use, or by `async with rd:`, which also closes it.
    """

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        include: Sequence[str] = (),
        queues: Mapping[str, Policy | Mapping[str, Any]] | None = None,
        signals: Sequence[Callable[[Pain], Awaitable[None] | None]] = (),
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        said = {**settings, "url": str(url) if url is not None else None, "queues": _policies(queues)}
        self.settings: Settings = load(said)
        self.clock: Clock = clock or SystemClock()
        self.bus = Bus(self.settings.ring)
        self.registry = Registry(self.settings.queues)
        self.signals = list(signals)
        self._include = tuple(include)
        self._store: Store | None = None
        self._workers: list[tuple[asyncio.AbstractEventLoop, Worker]] = []
        self.spool = Spool(self._spool_folder())
        self._desk = Desk(lambda: self.store, self.registry, self.bus, self.clock, self.settings, self.spool)
        self._watch = Watch(self)
        self.jobs = Jobs(self)
        self.dead = Dead(self)
        self.queues = Queues(self)
        self._blocks = threading.Lock()
        self._blocks_open = 0
        self._add_delivery()

    # -- the store

    @property
    def store(self) -> Store:
        """The store, made on first use."""
        if self._store is None:
            self._store = make_store(self.settings.url, self.clock)
        return self._store

    def _use(self, store: Store | None, clock: Clock) -> None:
        """Another store and clock from now on (redrive.testing)."""
        self._store, self.clock = store, clock
        self._desk.clock = clock

    async def open(self) -> Redrive:
        await self.store.open()
        return self

    async def close(self) -> None:
        """Finish accepted writes. A later use opens the store again."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def __aenter__(self) -> Redrive:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _spool_folder(self) -> Path:
        if self.settings.spool:
            return Path(self.settings.spool).expanduser().absolute()
        path = _sqlite_path(self.settings.url)
        if path == ":memory:":
            import tempfile

            return Path(tempfile.gettempdir()) / f"redrive-spool-{os.getpid()}-{id(self):x}"
        database = Path(path).expanduser().absolute()
        return database.with_name(database.name + "-spool")

    # -- tasks

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
        lease: Seconds | None = None,
        max_age: Seconds | None = None,
        on_lost: OnLost | None = None,
        concurrency: int | None = None,
        rate: Rate | None = None,
        scope: Scope | None = None,
        stalled_after: Seconds | None = None,
    ) -> TaskDecorator: ...
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    def task(self, name: Any = None, /, **options: Any) -> Any:
        """Register a function. `@rd.task`, or `@rd.task("name", queue=…, max_attempts=…, …)`."""
        if callable(name):
            return self._register(name, None, {})
        return lambda function: self._register(function, name, options)

    def _register(self, function: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Task[Any, Any]:
        unknown = options.keys() - _TASK_OPTIONS - _POLICY_OPTIONS
        if unknown:
            raise InvalidOption(field=min(unknown), problem="is not an option of rd.task")
        name = name or getattr(function, "__name__", None) or type(function).__name__
        durations = ("timeout", "base", "cap", "lease", "max_age", "stalled_after")
        options |= {key: seconds(options[key], key) for key in durations if options.get(key) is not None}
        wants_context = _wants_context(function)
        handler = Handler(
            name,
            function,
            queue=options.get("queue") or name,
            policy=Policy(**{key: options[key] for key in _POLICY_OPTIONS if options.get(key) is not None}),
            wants_context=wants_context,
            timeout=options.get("timeout"),
            retry_on=options.get("retry_on", ()),
            give_up_on=options.get("give_up_on", ()),
            idempotent=bool(options.get("idempotent", False)),
        )
        self.registry.add(handler)
        kinds = {
            (True, True): AsyncContextTask,
            (True, False): AsyncTask,
            (False, True): PlainContextTask,
            (False, False): PlainTask,
        }
        return kinds[handler.is_async, wants_context](self, handler, options.get("idempotency_key"))

    def _add_delivery(self) -> None:
        """The built-in task: one HTTP request, as durable as any job."""

        async def send(job: Job, request: Mapping[str, Any]) -> dict[str, Any]:
            from redrive.runtime import delivery

            key, traceparent = job.key or job.id, job.options.traceparent
            policy = self.settings.delivery
            return await delivery.deliver(request, idempotency_key=key, traceparent=traceparent, policy=policy)

        async def deliver(ctx: Context, **request: Any) -> dict[str, Any]:
            return await send(ctx.job, request)

        handler = Handler(HTTP_TASK, deliver, queue="http", policy=Policy(), wants_context=True, idempotent=True)
        handler.direct = lambda job, request: send(job, {"timeout": DIRECT_SECONDS, **request})
        self.registry.add(handler)

    # -- accepting work

    async def enqueue(self, task: str, payload: Mapping[str, Json] | None = None, **options: Any) -> JobHandle[Any]:
        """By name, for producers without the code. When this returns, the job is synced to disk."""
        return await self.accept(task, {} if payload is None else payload, options)

    async def enqueue_many(self, task: str, items: Iterable[Mapping[str, Json] | Item], **options: Any) -> Many:
        """Many at once, accepted or refused item by item; repeat it safely where the items have keys."""
        many, dead = await self._desk.accept_many(task, list(items), options)
        for job_id in dead:
            await self.dead.redrive(job_id, who="enqueue", why=ENQUEUED_AGAIN)
        return many

    async def enqueue_http(
        self,
        method: str,
        url: str,
        *,
        json: Json = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        auth: str | None = None,
        sign: str | None = None,
        queue: str = "http",
        **options: Any,
    ) -> JobHandle[dict[str, Any]]:
        """A durable HTTP request: any 2xx is success, the rest is retried or buried by what it means."""
        request = {"method": method, "url": url, "json": json, "body": body, "headers": dict(headers or {}) or None,
                   "timeout": timeout, "auth": auth, "sign": sign}  # fmt: skip
        payload = {name: value for name, value in request.items() if value is not None}
        return await self.accept(HTTP_TASK, payload, {**options, "queue": queue})

    async def accept(self, task: str, payload: Mapping[str, Any], options: Mapping[str, Any]) -> JobHandle[Any]:
        prepared = self._desk.prepare(self._desk.plan(task, options), payload)
        try:
            job, duplicate, spooled = await self._desk.accept(prepared)
        except SpoolUnusable as unusable:
            await self._desk.call_directly(prepared, payload, unusable)
            return JobHandle(self, prepared.job, direct=True)
        if duplicate and prepared.on_duplicate == "redrive" and job.state is State.dead:
            job = await self.dead.redrive(job.id, who="enqueue", why=ENQUEUED_AGAIN)
        return JobHandle(self, job, duplicate=duplicate, spooled=spooled)

    async def result_of(self, handle: JobHandle[Any], timeout: Seconds | None) -> Any:
        limit = seconds(timeout, "timeout") if timeout is not None else None
        async with asyncio.timeout(limit):
            job = await self._ended(handle)
        if job.state is State.dead:
            raise JobDead(
                f"job {job.short_id} is dead ({job.because}): {job.error}. {job.recommendation}",
                job_id=job.id, reason=job.because or "", recommendation=job.recommendation,
            )  # fmt: skip
        if job.state in (State.discarded, State.purged):
            raise JobDiscarded(f"job {job.short_id} was {job.state}", job_id=job.id)
        text = job.result
        if text == RESULT_APART and (document := await self.store.doc("result", f"{job.id}/")):
            text = document.value.decode()
        handler = self.registry.handlers.get(job.task)
        return handler.signature.result(text) if handler else (msgspec.json.decode(text) if text else None)

    async def _ended(self, handle: JobHandle[Any]) -> Job:
        """Follow a job to its end: told at once by this process's bus, noticed soon in other processes'."""
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def told(event: BusEvent) -> None:
            if event.job_id == handle.id:
                loop.call_soon_threadsafe(changed.set)

        subscription = self.bus.subscribe("*", told)
        try:
            while not (job := await handle.refresh()).ended:
                try:
                    async with asyncio.timeout(FOLLOW_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    continue
                changed.clear()
            return job
        finally:
            subscription.close()

    async def events_of(self, job_id: str) -> AsyncIterator[Event]:
        """What is committed about a job from now on, in any process, until it ends."""
        (here,) = await self.store.events(None)
        cursor = here.cursor
        while True:
            ended = (await self.jobs.get(job_id)).ended
            for event in await self.store.events(cursor):
                cursor = event.cursor
                if event.job_id == job_id:
                    yield event
            if ended:
                return
            await asyncio.sleep(FOLLOW_SECONDS)

    # -- running work

    def make_worker(self, **options: Any) -> Worker:
        """A worker, not started; `worker()` and `run_worker()` are what most programs want."""
        for module in self._include:
            importlib.import_module(module)
        settings = ("concurrency", "poll", "grace", "agent_concurrency")
        said: dict[str, Any] = {name: getattr(self.settings, name) for name in settings}
        said |= {name: value for name, value in options.items() if value is not None}
        if said["concurrency"] < 1:
            raise ConfigError("concurrency: must be at least 1")
        return Worker(self.store, self.registry, self.bus, self.clock, **said)

    @asynccontextmanager
    async def worker(
        self,
        *,
        concurrency: int | None = None,
        queues: Iterable[str] | None = None,
        agents: Iterable[str] | None = None,
        grace: float | None = None,
        scheduler: bool = True,
    ) -> AsyncIterator[Worker]:
        """A worker and a scheduler while the block runs; leaving it finishes or gives back what runs."""
        await self.open()
        worker = self.make_worker(concurrency=concurrency, queues=queues, agents=agents, grace=grace)
        duties = self.make_scheduler(worker)
        entry = (asyncio.get_running_loop(), worker)
        self._workers.append(entry)
        worker.start()
        if scheduler:
            duties.start()
        try:
            yield worker
        finally:
            stopping = asyncio.create_task(self._stop_worker(duties, worker, entry))
            await asyncio.shield(stopping)  # carried through, whatever happens to the caller meanwhile

    async def _stop_worker(
        self, duties: Scheduler, worker: Worker, entry: tuple[asyncio.AbstractEventLoop, Worker]
    ) -> None:
        await duties.stop()
        await worker.stop()
        self._workers.remove(entry)

    def make_scheduler(self, worker: Worker) -> Scheduler:
        return Scheduler(
            self.store, self.registry, self.bus, self.clock, worker.settle_lapsed,
            retention=self.settings.retention, key_retention=self.settings.key_retention,
            watch=self._watch.look, drain_spool=self._desk.drain_spool,
        )  # fmt: skip

    async def run_worker(self, **options: Any) -> None:
        """Run a worker until SIGTERM or SIGINT, then stop gracefully."""
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            async with self.worker(**options):
                await stopping.wait()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            await self.close()

    def lifespan(self, *, worker: bool = False, **options: Any) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """For `FastAPI(lifespan=rd.lifespan(worker=True))` and any other ASGI framework with lifespans."""

        @asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            async with self:
                if worker:
                    async with self.worker(**options):
                        yield
                else:
                    yield

        return lifespan

    async def drain(self, **options: Any) -> int:
        """Run everything that is due now, here; returns how many attempts were made. Later retries wait.

        Takes the options of `worker()`. Raises when the store keeps failing.
        """
        await self.open()
        await self._desk.drain_spool()
        worker = self.make_worker(**options)
        worker.start()
        switch = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            while not await worker.drained():
                if worker.failing is not None and worker.errors >= DRAIN_ERRORS:
                    raise worker.failing
        finally:
            sys.setswitchinterval(switch)
            await worker.stop()
        return worker.made

    def tell_workers(self, message: Callable[[Worker], None]) -> None:
        """Reach the workers of this process, whatever event loop they run on."""
        for loop, worker in list(self._workers):
            loop.call_soon_threadsafe(message, worker)

    # -- seeing

    def subscribe(self, pattern: str, callback: Subscriber) -> Subscription:
        """Hear what happens in this process: `dead_letter`, `*.feedback`, `*`."""
        return self.bus.subscribe(pattern, callback)

    async def numbers(self) -> list[QueueNumbers]:
        return await self._watch.numbers()

    async def health(self) -> Health:
        """healthy or degraded, and why in words."""
        return await self._watch.health()

    async def stats(self) -> dict[str, Any]:
        """Depths, totals, spool, runtime metrics of this process."""
        return await self._watch.stats()

    async def status(self, job_id: str) -> Job:
        """One job, by its id or a unique part of it."""
        return await self.jobs.get(job_id)

    # -- without an event loop

    def run_blocking(self, work: Coroutine[Any, Any, R]) -> R:
        return portal.run(work)

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        """`with rd.blocking() as q: q.enqueue(...)`, also inside Jupyter and Django, in as many threads as you like."""
        with self._blocks:
            self._blocks_open += 1
        try:
            yield Blocking(self)
        finally:
            with self._blocks:
                self._blocks_open -= 1
                if not self._blocks_open:
                    portal.run(self.close())


def make_store(url: str, clock: Clock) -> Store:
    """The store behind a URL. `jobs.db`, `sqlite:jobs.db`, `:memory:` (a temporary file)."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in ("", "sqlite"):
        raise ConfigError(f"{url!r}: redrive knows SQLite files only; give a path such as jobs.db")
    from redrive.stores.sqlite import SqliteStore

    path = Path(_sqlite_path(url)).expanduser()
    if path == default_path(os.environ):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return SqliteStore(path, monotonic=clock.monotonic)


def _sqlite_path(url: str) -> str:
    for prefix in ("sqlite:///", "sqlite://", "sqlite:"):
        if url.startswith(prefix):
            return ("/" if prefix == "sqlite:///" and not url[len(prefix) :].startswith("/") else "") + url[
                len(prefix) :
            ]
    return url


def _policies(queues: Mapping[str, Policy | Mapping[str, Any]] | None) -> dict[str, Policy] | None:
    if queues is None:
        return None
    try:
        return {
            name: said if isinstance(said, Policy) else msgspec.convert(dict(said), Policy)
            for name, said in queues.items()
        }
    except msgspec.ValidationError as error:
        raise ConfigError(f"queues: {error}") from None


def _wants_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is for the context: by its annotation, or by the name `ctx`."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        return False
    said = parameters[0].annotation
    if isinstance(said, str):
        return said.rpartition(".")[2] in ("Context", "BlockingContext")
    if inspect.isclass(said) and issubclass(said, Context | BlockingContext):
        return True
    return parameters[0].name == "ctx" and said is inspect.Parameter.empty


_TASK_OPTIONS: Final = frozenset({"queue", "timeout", "idempotency_key", "retry_on", "give_up_on", "idempotent"})
_POLICY_OPTIONS: Final = frozenset(
    {
        "max_attempts", "backoff", "base", "cap", "lease", "max_age", "on_lost", "concurrency", "rate", "scope",
        "stalled_after",
    }
)  # fmt: skip

_default: Redrive | None = None


def default() -> Redrive:
    """The process-wide instance, made on first use."""
    global _default
    if _default is None:
        _default = Redrive()
    return _default


def reset_default() -> None:
    """Forget the process-wide instance; the next `default()` makes a fresh one."""
    global _default
    _default = None


get_queue = default
