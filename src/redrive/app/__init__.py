"""Redrive: wires the parts. Every command is load → lifecycle → commit; nothing is decided here."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, overload

import msgspec

from redrive.app import following, workforce
from redrive.app.accept import Desk, Prepared, SpoolUnusable, wants_back
from redrive.app.blocking import Blocking
from redrive.app.comebacks import Comebacks
from redrive.app.cycles import Cycle
from redrive.app.dead import Dead
from redrive.app.explaining import Explanation, add_rule, declared_rules, explain, fleet_of
from redrive.app.fleet import Fleet
from redrive.app.gateway import Gateway
from redrive.app.groups import Groups
from redrive.app.holders import Holders
from redrive.app.http_requests import http_request
from redrive.app.hubs import become_hub, serving_hub
from redrive.app.jobs import Jobs
from redrive.app.notices import Notices
from redrive.app.noticing import with_notices
from redrive.app.once import Effects, Key, OnceDecorator, Within, decorator
from redrive.app.opening import is_file, local_files, make_store, shown, sqlite_path
from redrive.app.pains import Pains
from redrive.app.portal import portal
from redrive.app.queues import Queues
from redrive.app.redrives import Redrives
from redrive.app.registering import Registering
from redrive.app.repeats import Repeats
from redrive.app.reports import Reports
from redrive.app.sessions import Sessions
from redrive.app.transactions import PENDING, Relay, Transactions
from redrive.app.watch import Watch
from redrive.app.workflows import Workflow, Workflows
from redrive.config import Settings, check_work, load
from redrive.core.breakers import Breaker, Counts
from redrive.core.changes import Counter, estimate
from redrive.core.checks import check_names
from redrive.core.cycle import ALERT_AFTER, Repeat
from redrive.core.cycle_history import LEARNED, CycleStanding, Finding
from redrive.core.inbox_table import inbox_ddl
from redrive.core.job import Job, Json, State, keyed_id
from redrive.core.outcome import Outcome
from redrive.core.pain import Pain
from redrive.core.policy import Policy, merge, with_seconds
from redrive.core.presets import PresetName, combine
from redrive.core.store import Event, Store
from redrive.errors import ConfigError, IllegalMove, InvalidInput, KeyReused, StoreFailed
from redrive.insight.health import Health
from redrive.insight.morning import Morning, Spike
from redrive.insight.needs import Need
from redrive.insight.queue_numbers import QueueNumbers
from redrive.insight.workforce import TaskView, WorkerView
from redrive.runtime.breakers import Breakers
from redrive.runtime.bus import Bus, Subscriber, Subscription
from redrive.runtime.clock import Clock, SystemClock
from redrive.runtime.cycle_records import cycle_findings, cycle_standings, forget_cycle
from redrive.runtime.ending import Ending
from redrive.runtime.interrupts import STOPPING
from redrive.runtime.loop import Loop, carried_through, first_of
from redrive.runtime.notify import Courier, Receiver
from redrive.runtime.on_the_spot import Wait
from redrive.runtime.publishing_store import publishing
from redrive.runtime.registry import HTTP_TASK, Registry, Summarise
from redrive.runtime.scheduler import Scheduler
from redrive.runtime.schedules import Scheduled, Schedules, forget, listed
from redrive.runtime.spool import Spool
from redrive.runtime.trusted_time import meet
from redrive.runtime.worker import Worker
from redrive.tasks import Item, JobHandle, Many, Seconds, Task

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("redrive")
DRAIN_ERRORS: Final = 3
SWITCH_SECONDS: Final = 0.0002
"""How soon the store's thread gets its turn while a worker is busy. Python's default of 5 ms makes them take turns."""
ENQUEUED_AGAIN: Final = "enqueued again with the same key"


class Redrive(Registering):
    """A durable queue on one SQLite file.

    No argument: REDRIVE_URL, redrive.toml, else the XDG state folder. Making one does no I/O; the store is opened on
    first use, or by `async with rd:`, which also closes it. `preset` names ready-made queues and agents: "agent_os",
    "seven_agents", or a list of both. Without one there are none.
    """

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        preset: PresetName | Sequence[PresetName] | None = None,
        include: Sequence[str] = (),
        queues: Mapping[str, Policy | Mapping[str, Any]] | None = None,
        signals: Sequence[Callable[[Pain], Awaitable[None] | None]] = (),
        channels: Sequence[Receiver] = (),
        clock: Clock | None = None,
        count_tokens: Counter | None = None,
        summarise: Summarise | None = None,
        **settings: Any,
    ) -> None:
        url = str(url) if url is not None else None
        self.settings: Settings = load({**settings, "url": url, "preset": preset, "queues": _policies(queues)})
        ready_made = combine(self.settings.preset)
        self.clock: Clock = clock or SystemClock()
        self.bus = Bus(self.settings.ring)
        self.registry = Registry(
            self.settings.queues,
            Policy(
                fallback=self.settings.fallback,
                fallback_after=self.settings.fallback_after,
                comebacks=self.settings.comebacks if self.settings.triage else (),
            ),
            preset_queues=ready_made.queues,
            agent_policy=merge(self.settings.agent_policy, ready_made.agent_policy),
            fleet=fleet_of(self.settings, ready_made),
            rules=declared_rules(self.settings),
            count=count_tokens or estimate,
            summarise=summarise,
            version=self.settings.version,
        )
        self.signals = list(signals)
        self.channels = list(channels)
        self._include = tuple(include)
        self._store: Store | None = None
        self._workers: list[tuple[asyncio.AbstractEventLoop, Worker]] = []
        meet(self.clock)
        self.spool = Spool(self._spool_folder())
        self._desk = Desk(lambda: self.store, self.registry, self.bus, self.clock, self.settings, self.spool)
        self._transactions = Transactions(self._desk, self._inbox_namespace)
        self._relay: Relay | None = None
        self._watch = Watch(self)
        self._pains = Pains(self)
        self.jobs = Jobs(self)
        self.effects = Effects(self)
        self.dead = Dead(self)
        self._desk.take_in, self._desk.redrive = self.dead.take_in, self._enqueued_again
        self.queues = Queues(self)
        self.notices = Notices(self)
        self.sessions = Sessions(self)
        self._gateway = Gateway(self)
        self._repeats = Repeats(self)
        self.workflows = Workflows(self)
        self.groups = Groups(self)
        self.reports = Reports(self)
        self.redrives = Redrives(self)
        self.comebacks = Comebacks(self)
        self.fleet = Fleet(self)
        self._counts = Counts()
        self._holders = Holders(self)
        self._add_delivery()

    # -- the store

    @property
    def store(self) -> Store:
        """The store, made on first use."""
        found = self._store
        return found if found is not None else self._holders.make()

    def _make_store(self, url: str, clock: Clock) -> Store:
        settings = self.settings if url == self.settings.url else msgspec.structs.replace(self.settings, url=url)
        return publishing(with_notices(make_store(settings, clock), self.notices.heard), self.bus)

    def _use(self, store: Store | None, clock: Clock) -> None:
        """Another store and clock from now on (redrive.testing)."""
        self._store, self.clock = store, clock
        self._counts = Counts()
        meet(clock)
        self._desk.clock = clock

    @property
    def shown_url(self) -> str:
        """The URL as people may see it: without credentials."""
        return shown(self.settings.url)

    def become_hub(self) -> None:
        """Keep a replica in this process where its URL would make it a client of hubs. Call it before the first use."""
        become_hub(self)

    def serving_hub(self) -> AbstractAsyncContextManager[None]:
        """`async with rd.serving_hub():` answers the workers and producers of a NATS fleet from this process."""
        return serving_hub(self)

    async def open(self) -> Redrive:
        await self.store.open()
        return self

    async def close(self) -> None:
        """Finish accepted writes. A later use opens the store again."""
        await carried_through(self._close())

    async def _close(self) -> None:
        await self._close_services()
        if (store := self._put_away()) is not None:
            await store.close()

    async def _close_services(self) -> None:
        """What must end before the store does."""
        await self._gateway.close()
        relay, self._relay = self._relay, None
        if relay is not None:
            await relay.close()

    def _put_away(self) -> Store | None:
        """The store, which the next use will make anew."""
        self._desk.give_up_late()
        store, self._store = self._store, None
        return store

    async def __aenter__(self) -> Redrive:
        await self._holders.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._holders.leave(closes=True)

    def _spool_folder(self) -> Path:
        if self.settings.spool:
            return Path(self.settings.spool).expanduser().absolute()
        if sqlite_path(self.settings.url) == ":memory:":
            import tempfile

            return Path(tempfile.gettempdir()) / f"redrive-spool-{os.getpid()}-{id(self):x}"
        beside = local_files(self.settings)
        return beside.with_name(beside.name + "-spool")

    # -- accepting work

    async def enqueue(
        self, task: str | Task[Any, Any], payload: Mapping[str, Json] | None = None, **options: Any
    ) -> JobHandle[Any]:
        """Enqueue by name, for producers without the code, or a task. When this returns, the job is synced to disk.

        `within=` takes a session or connection of yours: the job is committed with your data, or not at all.
        """
        return await self.accept(_name_of(task), {} if payload is None else payload, options)

    async def enqueue_many(
        self, task: str | Task[Any, Any], items: Iterable[Mapping[str, Json] | Item], **options: Any
    ) -> Many:
        """Enqueue many at once, accepted or refused item by item; repeat it safely where the items have keys."""
        task = _name_of(task)
        if not isinstance(items, Iterable):
            raise InvalidInput(field="items", problem=f"{items!r:.80} is not a list of payloads")
        if options.get("within") is not None:
            return await self._transactions.enqueue_many(task, list(items), *_apart(options))
        options.pop("within", None)
        return await self._desk.accept_many(task, list(items), options)

    @overload
    async def enqueue_http(
        self,
        method: str,
        url: str,
        *,
        json: Json = None,
        body: str | Mapping[str, Json] | list[Json] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        auth: str | None = None,
        sign: str | None = None,
        queue: str = "http",
        **options: Any,
    ) -> JobHandle[dict[str, Any]]: ...
    @overload
    async def enqueue_http(
        self,
        queue: str,
        method: str,
        url: str,
        *,
        json: Json = None,
        body: str | Mapping[str, Json] | list[Json] | None = None,
        **options: Any,
    ) -> JobHandle[dict[str, Any]]: ...
    async def enqueue_http(self, *line: str, **options: Any) -> JobHandle[dict[str, Any]]:
        """A durable HTTP request: any 2xx is success, the rest is retried or buried by what it means.

        `enqueue_http("POST", url, json=…, queue=…)` or `enqueue_http(queue, "POST", url, body=…)`. A `body` of text is
        sent as it is; a dict or a list is sent as JSON, as `json` is.
        """
        payload, said = http_request(line, options)
        return await self.accept(HTTP_TASK, payload, said)

    async def accept(self, task: str, payload: Mapping[str, Any], options: Mapping[str, Any]) -> JobHandle[Any]:
        if "within" in options:
            options, within = _apart(options)
            if within is not None:
                return self._pending(await self._transactions.enqueue(task, payload, options, within))
        options = self._desk.keyed(task, payload, options)
        prepared = self._desk.prepare(self._desk.plan(task, options), payload)
        try:
            job, duplicate, spooled = await self._desk.accept(prepared)
        except SpoolUnusable as unusable:
            await self._desk.call_directly(prepared, payload, unusable)
            return JobHandle(self, prepared.job, direct=True)
        if duplicate and wants_back(prepared, job):
            job = await self._enqueued_again(job.id)
        return JobHandle(self, job, duplicate=duplicate, spooled=spooled, warnings=prepared.warnings)

    def accept_now(self, task: str, payload: Mapping[str, Any], options: Mapping[str, Any]) -> JobHandle[Any] | None:
        """Enqueue with `within=` in the caller's thread, to which its connection belongs. None without `within=`."""
        options, within = _apart(options)
        if within is None:
            return None
        return self._pending(self._transactions.enqueue_now(task, payload, options, within))

    def _pending(self, prepared: Prepared) -> JobHandle[Any]:
        return JobHandle(self, prepared.job, pending=True, warnings=(*prepared.warnings, PENDING))

    def _inbox_namespace(self) -> str:
        from redrive.stores.inbox import namespace_of

        return namespace_of(self.settings.inbox)

    def relay(self, url: str | None = None) -> Relay:
        """Moves jobs that were enqueued with `within=` from an inbox into this store; workers do it by themselves
        where the setting `inbox` names one."""
        from redrive.stores.inbox import open_inbox

        url = url or self.settings.inbox
        if not url:
            raise ConfigError('inbox: name the database of your application, e.g. inbox = "postgresql://host/app"')
        return Relay(open_inbox(url), self._desk.take_entry)

    @staticmethod
    def inbox_ddl(dialect: str) -> str:
        """The statement that makes the table of `within=`, for your migrations: "postgresql" or "sqlite"."""
        return inbox_ddl(dialect)

    async def _mind_inbox(self) -> int:
        """Moves what was committed into the inbox that the settings name; how many jobs."""
        if not self.settings.inbox:
            return 0
        if self._relay is None:
            self._relay = self.relay()
        return await self._relay.mind()

    async def _enqueued_again(self, job_id: str, who: str = "enqueue", why: str = ENQUEUED_AGAIN) -> Job:
        """Back to its queue, unless it may have landed: whoever hands in work has not looked."""
        try:
            return await self.dead._revive(job_id, who=who, why=why)
        except IllegalMove:
            job = await self.jobs.get(job_id)
            if job.state is State.dead:
                raise
            return job  # somebody else was faster

    def workflow(self, name: str) -> Workflow:
        """Steps that wait for each other: `add` them, then `start` it. Nothing is written before."""
        return Workflow(self, name)

    async def result_of(self, handle: JobHandle[Any], timeout: Seconds | None) -> Any:
        return await following.result_of(self, handle, timeout)

    def events_of(self, job_id: str) -> AsyncIterator[Event]:
        return following.events_of(self, job_id)

    # -- for agents

    async def call(
        self,
        task: Task[Any, Any] | str,
        params: Mapping[str, Json] | None = None,
        *,
        timeout: Seconds | None = None,
        **options: Any,
    ) -> Outcome:
        """Run a task now and here, and be told honestly: done, queued for retry (which is not done), or why not.

        The operation is on disk before the task starts, unless the task is `read_only=True`. After `timeout` seconds
        the answer is the operation's id; the task goes on.
        """
        self.load()
        given = {} if params is None else params
        made = self._gateway.call(task, given, timeout=timeout, **options)
        return await self._repeats.watched(made, task, given, options.get("session_id"))

    async def submit(
        self, task: Task[Any, Any] | str, params: Mapping[str, Json] | None = None, **options: Any
    ) -> Outcome:
        """Have a worker do it later, in one attempt. The answer is an operation to ask about."""
        self.load()
        given = {} if params is None else params
        made = self._gateway.submit(task, given, **options)
        return await self._repeats.watched(made, task, given, options.get("session_id"))

    async def retry(self, operation_id: str, *, timeout: Seconds | None = None, who: str = "gateway") -> Outcome:
        """Once more, by the operation's id alone: with what was given the first time. What is done stays done."""
        self.load()
        return await self._repeats.watched_retry(self._gateway.retry(operation_id, timeout=timeout, who=who))

    async def outcome(self, operation_id: str) -> Outcome:
        """How an operation stands, as `call` would tell it, with its result."""
        return await self._gateway.outcome(await self.jobs.get(operation_id))

    async def operations(self) -> dict[str, Json]:
        """How many operations wait for a retry or their turn, when the next is due, and the latest of them."""
        return await self._gateway.summary()

    # -- without a job

    @overload
    def once(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def once(
        self, /, *, key: Key | None = None, verify: Callable[..., Any] | None = None, within: Within | None = None
    ) -> OnceDecorator: ...
    def once(self, function: Any = None, /, **options: Any) -> Any:
        """`redrive.once` with this instance's store: a function's effect happens once for each key, without a job."""
        return decorator(lambda: self, function, options)

    # -- running work

    def load(self) -> None:
        """Import the modules of `include=`, so that their tasks are known here."""
        for module in self._include:
            importlib.import_module(module)

    def make_worker(self, **options: Any) -> Worker:
        """A worker, not started; `worker()` and `run_worker()` are what most programs want."""
        self.load()
        settings = ("concurrency", "poll", "grace", "agent_concurrency")
        said: dict[str, Any] = {name: getattr(self.settings, name) for name in settings}
        said |= {name: value for name, value in options.items() if value is not None}
        check_work(**{name: said[name] for name in settings})
        said |= {name: check_names(name, said[name]) for name in ("queues", "agents") if name in said}
        said["agent_scope"] = self.settings.agent_scope
        return Worker(self.store, self.registry, self.clock, bus=self.bus, **said)

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
        couriers = self._couriers() if scheduler else []
        options = {"concurrency": concurrency, "queues": queues, "agents": agents, "grace": grace}
        async with self._employed(couriers, scheduler=scheduler, **options) as worker:
            yield worker

    @asynccontextmanager
    async def _employed(
        self, couriers: Sequence[Courier] = (), *, scheduler: bool = False, **options: Any
    ) -> AsyncIterator[Worker]:
        """A started worker and what goes with it; leaving stops them, whatever happens to the caller meanwhile."""
        await self._holders.join()
        here, running = asyncio.get_running_loop(), list[Loop]()
        try:
            worker = self.make_worker(**options)
            worker.breakers.counts = self._counts
            worker.channels = [name for courier in couriers for name in courier.names]
            running = [*([self.make_scheduler(worker)] if scheduler else []), *couriers, worker]
            self._workers.append((here, worker))
            for loop in reversed(running):
                loop.start()
            yield worker
        finally:
            await carried_through(self._dismiss(running))

    async def _dismiss(self, running: Sequence[Loop]) -> None:
        """The store stays open until they have stopped."""
        try:
            for loop in running:
                await loop.stop()
        finally:
            for entry in [entry for entry in list(self._workers) if entry[1] in running]:
                self._workers.remove(entry)
            await self._holders.leave(closes=False)

    def _couriers(self) -> list[Courier]:
        """Whoever carries notices to the channels of this process, where it has any."""
        courier = self.notices.courier()
        return [courier] if courier is not None else []

    def make_scheduler(self, worker: Worker, roles: Collection[str] | None = None) -> Scheduler:
        """The scheduler of a worker; of a worker that is not started, for a process that has only roles."""
        return Scheduler(
            self.store, self.registry, self.clock, worker.settle_lapsed,
            retention=self.settings.retention, key_retention=self.settings.key_retention,
            watch=self._look, drain_spool=self._desk.drain_spool, mind_breakers=worker.mind_breakers,
            mind_schedules=self._mind_schedules, resume_workflows=worker.resume_workflows,
            prune_notices=self.notices.prune, advance_redrives=self.redrives.advance,
            comebacks=lambda: self.comebacks.work(worker.breakers, thorough=False), prune_acts=self.dead.prune_acts,
            prune_effects=self.effects.prune, mind_inbox=self._mind_inbox,
            shared=not is_file(self.settings.url), roles=roles,
        )  # fmt: skip

    async def _mind_schedules(self) -> int:
        """How many jobs the due slots of schedules became."""
        return await Schedules(self.store, self.registry, self.bus, self.clock, self._enqueue_slot).mind()

    async def _enqueue_slot(self, task: str, payload: Mapping[str, Json], options: dict[str, Any]) -> str:
        """A slot's job by the way of any job; one that a process with another payload made first stays."""
        plan = self._desk.plan(task, options, "scheduled_job")
        try:
            job, _, _ = await self._desk.accept(self._desk.prepare(plan, payload))
        except KeyReused as known:
            log.warning("the slot has its job already, with another payload: %s", known)
            return keyed_id(plan.queue, options["idempotency_key"])
        return job.id

    async def _look(self) -> None:
        """The scheduler's look around: one that fails does not blind the other. Pages go first: they ask nobody."""
        try:
            await self.notices.look()
        finally:
            try:
                await self._pains.look()
            finally:
                await self.groups.look()

    async def run_worker(self, **options: Any) -> None:
        """Run a worker until SIGTERM or SIGINT, then stop gracefully. Raises StoreFailed if the store stops itself."""
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in STOPPING:
            loop.add_signal_handler(number, stopping.set)
        sys.setswitchinterval(SWITCH_SECONDS)
        ending = self.make_ending(options.get("grace"))
        ending.hear(*STOPPING)
        try:
            async with self, self.worker(**options):
                await first_of(stopping.wait(), self.store.until_failed())
                self.store.hurry()
                failure = await self.failure()
            if failure is not None:
                raise failure
        finally:
            ending.over()
            for number in STOPPING:
                loop.remove_signal_handler(number)

    async def failure(self) -> StoreFailed | None:
        """Why the store has stopped itself, as the error that it raises from then on; None while it goes on."""
        why = self.store.failed
        if why is None:
            return None
        try:
            await self.store.check()
        except StoreFailed as error:
            return error
        return StoreFailed(why)

    def make_ending(self, grace: float | None, status: int = 0) -> Ending:
        """What ends this process after the grace where it is told to end and a task blocks the event loop."""
        seconds = self.settings.grace if grace is None else grace
        return Ending(lambda: [worker for _, worker in list(self._workers)], seconds, status)

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

        Due slots of schedules run, too, and what has waited long enough moves on: a question, a deferral, a dead
        letter that comes back by itself. Takes the options of `worker()`. Raises when the store keeps failing.
        """
        async with self._holders.staying():
            await self._desk.drain_spool()
            await self._mind_inbox()
            couriers = self._couriers()
            async with self._employed(**options) as worker:
                await self.make_scheduler(worker).see_to_the_overdue()
                await self.comebacks.work(worker.breakers)
                await self._until_drained(worker)
            for courier in couriers:
                await courier.deliver()
            return worker.made

    async def _until_drained(self, worker: Worker) -> None:
        switch = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            while not await worker.drained() or await self._more_is_due(worker):
                if worker.failing is not None and (worker.errors >= DRAIN_ERRORS or not worker.running):
                    raise worker.failing
        finally:
            sys.setswitchinterval(switch)

    async def _more_is_due(self, worker: Worker) -> bool:
        """What a scheduler sees to, where none runs."""
        minded = await worker.mind_breakers() or await worker.resume_workflows(None) or await self._mind_schedules()
        return bool(minded or await self.redrives.advance(thorough=True))

    def cycle(
        self,
        name: str,
        cycle_id: str | int | None = None,
        *,
        tz: str = "UTC",
        repeat: Repeat = "cycle",
        ignore: Sequence[str] = (),
        every: str | timedelta | float | None = LEARNED,
        alert_after: int = ALERT_AFTER,
        quiet: bool = False,
        wait: Wait | None = None,
    ) -> Cycle:
        """For scripts: `with rd.cycle("nightly") as night: night.run(publish, site=site)`. No worker is needed.

        Each job is done once in a cycle, whose id is the date it started (in `tz`) unless you give one. What fails is
        tried again on the spot, then diverted, and comes back in the next cycle. `wait` spends the seconds in between.
        A job_id with another input is another job in another cycle; in the same cycle it is refused and kept as a dead
        letter. `ignore` names arguments that do not count for that.

        A cycle that does not start as usual is told: `every="1d"` says how often it starts, else that is learned from
        at least four starts; None turns it off.
        """
        return Cycle(
            self, name, cycle_id, tz=tz, repeat=repeat, ignore=ignore, every=every, alert_after=alert_after,
            quiet=quiet, wait=wait,
        )  # fmt: skip

    async def cycles(self) -> list[CycleStanding]:
        """How the cycles of scripts stand: last run, usual jobs, next start, and what is wrong."""
        return await cycle_standings(self.store, self.clock.now())

    async def cycle_findings(self) -> list[Finding]:
        """Cycles that are missing, died or had fewer jobs than usual, each with a sentence and a command."""
        return await cycle_findings(self.store, self.clock.now())

    async def forget_cycle(self, name: str) -> bool:
        """Drop the records of a cycle that is not expected any more. False where there are none."""
        return await forget_cycle(self.store, name)

    def tell_workers(self, message: Callable[[Worker], None]) -> None:
        """Reach the workers of this process, whatever event loop they run on."""
        for loop, worker in list(self._workers):
            if not loop.is_closed():
                loop.call_soon_threadsafe(message, worker)

    # -- seeing

    def subscribe(self, pattern: str, callback: Subscriber) -> Subscription:
        """Hear what happens in this process: `dead_letter`, `*.feedback`, `*`."""
        return self.bus.subscribe(pattern, callback)

    async def breakers(self) -> list[Breaker]:
        """What is down, as far as anybody noticed, and since when."""
        return await Breakers(self.store, self.clock).all()

    async def schedules(self) -> list[Scheduled]:
        """Every schedule that the store or this process knows: its line, last and next slot, last job."""
        return await listed(self.store, self.registry, self.clock.now())

    async def forget_schedule(self, name: str) -> bool:
        """Drop what is known of a schedule that the code no longer has, e.g. `nightly#0`. False where nothing was."""
        return await forget(self.store, name)

    async def close_breaker(self, key: str) -> bool:
        """A person knows that it answers again: its parked jobs come back. False where it is not open."""
        return await Breakers(self.store, self.clock, self.bus).close(key)

    def explain(
        self,
        error: BaseException,
        task: Task[Any, Any] | str | None = None,
        payload: Mapping[str, Json] | None = None,
    ) -> Explanation:
        """What would happen if a first attempt failed so: the cause, the rule that says so, and what is decided.

        Whether a retry can be changed depends on the payload; without one, a long conversation stands for it.
        """
        name = task if isinstance(task, str) or task is None else task.name
        return explain(error, self.registry, self.clock, name, payload)

    def classify_rule(self, rule: Any = None, detail: str | None = None, *, name: str | None = None) -> Any:
        """A rule of your own, in front of ours: `rd.classify_rule(MyError, "rate_limited")`, or as a decorator.

        A decorated function gets a `redrive.Failure` and returns a detail, or None where it does not know.
        """
        return add_rule(self.registry, rule, detail, name)

    def queue_of_task(self, task: str) -> str:
        """Where the jobs of a task go unless something else is said: a task that is not known here has its own name."""
        handler = self.registry.handlers.get(task)
        return handler.queue if handler is not None else task

    async def workers(self) -> list[WorkerView]:
        """Every living worker, wherever it runs: since when, what it runs, what blocks it."""
        return await workforce.workers(self)

    async def tasks(self) -> list[TaskView]:
        """Every task with its jobs by state, the time that it takes, and its failures of the last day."""
        return await workforce.tasks(self)

    async def numbers(self) -> list[QueueNumbers]:
        return await self._watch.numbers()

    async def health(self) -> Health:
        """healthy, degraded or broken, why in words, and what needs a person."""
        return await self._watch.health()

    async def needs(self) -> list[Need]:
        """Everything that needs a person, the gravest first. Empty where all is well, or heals by itself."""
        return (await self._watch.health()).needs

    async def stats(self) -> dict[str, Any]:
        """Depths, totals, spool, runtime metrics of this process."""
        return await self._watch.stats()

    async def morning(
        self,
        since: timedelta | datetime | float | None = None,
        *,
        queue: str | None = None,
        spike: int | Spike | None = None,
    ) -> Morning:
        """What needs a person: the manual lane, structural changes against the day before, what nobody runs."""
        from redrive.app.morning import look

        return await look(self, since, queue=queue, spike=spike)

    async def status(self, job_id: str) -> Job:
        """One job, by its id or a unique part of it."""
        return await self.jobs.get(job_id)

    # -- without an event loop

    def run_blocking(self, work: Coroutine[Any, Any, R]) -> R:
        return portal.run(work)

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        """`with rd.blocking() as q: q.enqueue(...)`, also inside Jupyter and Django, in as many threads as you like.

        The store that it opened is closed with the last block, unless a worker or anybody else still needs it.
        """
        closes = self._holders.come()
        try:
            yield Blocking(self)
        finally:
            if not portal.over:  # a block that was left open ends with its process
                portal.run(self._holders.leave(closes=closes))


def _apart(options: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """The options of a job, and the transaction that it is handed in with."""
    return {name: value for name, value in options.items() if name != "within"}, options.get("within")


def _name_of(task: str | Task[Any, Any]) -> str:
    """The name of a task, where the task itself was given."""
    return task.name if isinstance(task, Task) else task


def _policies(queues: object) -> dict[str, Policy] | None:
    if queues is None:
        return None
    if not isinstance(queues, Mapping) or not all(isinstance(said, Policy | Mapping) for said in queues.values()):
        raise ConfigError("queues: must map names of queues to a redrive.Policy, or to a dict of its fields")
    try:
        return {
            name: said if isinstance(said, Policy) else msgspec.convert(with_seconds(said), Policy)
            for name, said in queues.items()
        }
    except msgspec.ValidationError as error:
        raise ConfigError(f"queues: {error}") from None


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
