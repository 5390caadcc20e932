"""Redrive: wires the parts. Every command is load → lifecycle → commit; nothing is decided here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

from msgspec.structs import replace

from redrive.api.blocking import Blocking
from redrive.api.database import Database
from redrive.api.dead import Dead
from redrive.api.duties import Duties
from redrive.api.explain import Explanation, add_rule, explain
from redrive.api.gateway import Gateway, Operations
from redrive.api.jobs import Jobs
from redrive.api.make_registry import make_registry, policies_of
from redrive.api.queues import Queues
from redrive.api.task_decorator import Registering
from redrive.api.tokens import Tokens
from redrive.api.transactions import Relay, Transactions
from redrive.api.workers import Workers
from redrive.config import Settings, load
from redrive.core.inbox_table import inbox_ddl
from redrive.core.job import Job, Json
from redrive.core.outcome import Outcome
from redrive.core.pain import Pain
from redrive.core.policy import Policy
from redrive.core.presets import PresetName
from redrive.core.store import Store
from redrive.deadletters.acts import Acts
from redrive.deadletters.comebacks import Comebacks
from redrive.deadletters.groups import Groups
from redrive.deadletters.redrives import Redrives
from redrive.engine.breakers import Breakers
from redrive.engine.bus import Bus, Subscriber, Subscription
from redrive.engine.clock import Clock, SystemClock
from redrive.engine.inline_runs import Wait
from redrive.engine.registry import Summarise
from redrive.engine.scheduler import Scheduler
from redrive.engine.shutdown import Ending
from redrive.engine.worker import Worker
from redrive.errors import StoreFailed
from redrive.fleet.hub import become_hub, make_hub, serving_hub
from redrive.fleet.service import FleetService
from redrive.flows.schedules import Scheduled, forget, listed
from redrive.flows.workflows import Workflow, WorkflowHome, Workflows
from redrive.http.policy import HTTP_TASK
from redrive.http.request import split_call
from redrive.jobs.core import Core
from redrive.jobs.enqueuer import Enqueuer
from redrive.jobs.event_loop_thread import portal
from redrive.jobs.open_store import find_spool_folder, hide_credentials
from redrive.jobs.spool import Spool
from redrive.jobs.store_refcount import StoreHolder
from redrive.jobs.tasks import Item, JobHandle, Many, Seconds, Task
from redrive.notices.courier import Receiver
from redrive.notices.repeats import RepeatedActions
from redrive.notices.service import Notices
from redrive.notices.sessions import Sessions
from redrive.reports import gather_workforce
from redrive.reports.health import Health
from redrive.reports.morning import Morning, Spike
from redrive.reports.needs import Need
from redrive.reports.pains import Pains
from redrive.reports.queue_numbers import QueueNumbers
from redrive.reports.service import Reports
from redrive.reports.signal_actions import SignalActions
from redrive.reports.watch import Watch
from redrive.reports.workforce import TaskView, WorkerView
from redrive.retries.breaker import Breaker, FailureCounts
from redrive.retries.changes import Counter
from redrive.scripts.cycle import Cycle, CycleHome
from redrive.scripts.cycle_history import LEARNED, CycleStanding, Finding
from redrive.scripts.cycle_records import cycle_findings, cycle_standings, forget_cycle
from redrive.scripts.cycle_rules import ALERT_AFTER, Repeat
from redrive.scripts.failure_records import FailureRecorder
from redrive.scripts.once import Effects, Key, OnceDecorator, Within, decorator

if TYPE_CHECKING:
    from redrive.stores.remote import Hub

P = ParamSpec("P")
R = TypeVar("R")


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
        loaded = load({**settings, "url": url, "preset": preset, "queues": policies_of(queues)})
        self.bus = Bus(loaded.ring)
        self.registry = make_registry(loaded, count_tokens, summarise)
        self.core = core = Core(self.registry, self.bus, StoreHolder(loaded, clock or SystemClock(), self.bus))
        self.signals: Final = list(signals)
        self.channels: Final = list(channels)
        self.spool = Spool(find_spool_folder(loaded))
        self.database = Database(core, self.spool)
        self.redrives = Redrives(core)
        self.groups = Groups(core)
        acts = Acts(core, self.redrives)
        self.dead = Dead(core, acts, self.redrives, self.groups, lambda: self.recorder)
        self._enqueuer = Enqueuer(core, self.spool, self.dead)
        self.accept: Final = self._enqueuer.accept
        """Accept one job by its task's name, payload and options: what every way to enqueue one job comes to."""
        self.recorder = FailureRecorder(core, self._enqueuer)
        self._transactions = Transactions(core, self._enqueuer)
        self.effects = Effects(core)
        self.comebacks = Comebacks(core, acts)
        self._repeats = RepeatedActions(core)
        self._watch = Watch(core, self.spool, self.effects, self._repeats, self.redrives)
        self._pains = Pains(core, self._watch)
        actions = SignalActions(core, self._watch, self._enqueuer)
        self.notices = Notices(core, self._repeats, actions.channels, self.channels, self.signals)
        self.sessions = Sessions(core, self.notices)
        self._duties = Duties(
            core=core,
            enqueuer=self._enqueuer,
            transactions=self._transactions,
            notices=self.notices,
            pains=self._pains,
            groups=self.groups,
            redrives=self.redrives,
            comebacks=self.comebacks,
            dead=self.dead,
            effects=self.effects,
        )
        self._workers = Workers(core, self._duties, self.notices, include)
        self._gateway = Gateway(core, self._enqueuer)
        self._operations = Operations(core, self._gateway, self._repeats, self.load)
        self.jobs = Jobs(core, self._workers, self._gateway, self.sessions, self._repeats, self.dead)
        self.queues = Queues(core, self._watch, self._workers)
        self._workflow_home = WorkflowHome(core, self._enqueuer, self.jobs, self.dead.discard)
        self.workflows = Workflows(self._workflow_home)
        self.reports = Reports(core, self._watch, self.notices)
        self.fleet = FleetService(core, self._workers)
        self.tokens = Tokens(core)
        self._enqueuer.jobs, self._enqueuer.transactions = self.jobs, self._transactions
        core.holder.before_close += [self._gateway.close, self._transactions.close]
        core.holder.on_close.append(self._enqueuer.cancel_late)
        self._add_delivery()

    # -- the store

    @property
    def store(self) -> Store:
        """The store, made on first use."""
        return self.core.store

    @property
    def clock(self) -> Clock:
        """The clock that everything here reads."""
        return self.core.clock

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.core.settings

    def use_store(self, store: Store | None, clock: Clock) -> None:
        """Work with another store and clock from now on, as `redrive.testing` does."""
        self.core.holder.use(store, clock)
        self._workers.counts = FailureCounts()

    @property
    def shown_url(self) -> str:
        """The URL as people may see it: without credentials."""
        return hide_credentials(self.settings.url)

    def become_hub(self) -> None:
        """Keep a replica in this process where its URL would make it a client of hubs. Call it before the first use."""
        become_hub(self.core)

    def make_hub(self) -> Hub | None:
        """Makes what performs the requests of other machines' clients on this store; None in a client of hubs."""
        return make_hub(self.core)

    def serving_hub(self) -> AbstractAsyncContextManager[None]:
        """`async with rd.serving_hub():` answers the workers and producers of a NATS fleet from this process."""
        return serving_hub(self.core, self.recorder)

    async def check_store(self) -> None:
        """Raises the StoreError that keeps the store from being used now; returns where it can be read and written."""
        await self.store.check()

    def limit_grace(self, seconds: float) -> None:
        """Gives running jobs at most so many seconds to end when this process does."""
        self.core.holder.settings = replace(self.settings, grace=min(self.settings.grace, seconds))

    async def open(self) -> Redrive:
        await self.core.holder.open()
        return self

    async def close(self) -> None:
        """Finish accepted writes. A later use opens the store again."""
        await self.core.holder.close()

    async def __aenter__(self) -> Redrive:
        await self.core.holder.join()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.core.holder.leave(closes=True)

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
        return await self._enqueuer.enqueue_many(_name_of(task), items, options)

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
        payload, options = split_call(line, options)
        return await self.accept(HTTP_TASK, payload, options)

    def accept_now(self, task: str, payload: Mapping[str, Any], options: Mapping[str, Any]) -> JobHandle[Any] | None:
        """Enqueue with `within=` in the caller's thread, to which its connection belongs. None without `within=`."""
        return self._enqueuer.accept_now(task, payload, options)

    def relay(self, url: str | None = None) -> Relay:
        """Moves jobs that were enqueued with `within=` from an inbox into this store; workers do it by themselves
        where the setting `inbox` names one."""
        return self._transactions.relay(url)

    @staticmethod
    def inbox_ddl(dialect: str) -> str:
        """The statement that makes the table of `within=`, for your migrations: "postgresql" or "sqlite"."""
        return inbox_ddl(dialect)

    def workflow(self, name: str) -> Workflow:
        """Steps that wait for each other: `add` them, then `start` it. Nothing is written before."""
        return Workflow(self._workflow_home, name)

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
        return await self._operations.call(task, params, timeout, options)

    async def submit(
        self, task: Task[Any, Any] | str, params: Mapping[str, Json] | None = None, **options: Any
    ) -> Outcome:
        """Have a worker do it later, in one attempt. The answer is an operation to ask about."""
        return await self._operations.submit(task, params, options)

    async def retry(self, operation_id: str, *, timeout: Seconds | None = None, who: str = "gateway") -> Outcome:
        """Once more, by the operation's id alone: with what was given the first time. What is done stays done."""
        return await self._operations.retry(operation_id, timeout, who)

    async def outcome(self, operation_id: str) -> Outcome:
        """How an operation stands, as `call` would tell it, with its result."""
        return await self._operations.outcome(operation_id)

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
        return decorator(lambda: self.core, function, options)

    # -- running work

    def load(self) -> None:
        """Import the modules of `include=`, so that their tasks are known here."""
        self._workers.load()

    def make_worker(self, **options: Any) -> Worker:
        """A worker, not started; `worker()` and `run_worker()` are what most programs want."""
        return self._workers.make(**options)

    def worker(
        self,
        *,
        concurrency: int | None = None,
        queues: Iterable[str] | None = None,
        agents: Iterable[str] | None = None,
        grace: float | None = None,
        scheduler: bool = True,
    ) -> AbstractAsyncContextManager[Worker]:
        """A worker and a scheduler while the block runs; leaving it finishes or gives back what runs."""
        return self._workers.worker(
            concurrency=concurrency, queues=queues, agents=agents, grace=grace, scheduler=scheduler
        )

    def make_scheduler(self, worker: Worker, roles: Collection[str] | None = None) -> Scheduler:
        """The scheduler of a worker; of a worker that is not started, for a process that has only roles."""
        return self._workers.make_scheduler(worker, roles)

    async def run_worker(self, **options: Any) -> None:
        """Run a worker until SIGTERM or SIGINT, then stop gracefully. Raises StoreFailed if the store stops itself."""
        await self._workers.run(**options)

    async def failure(self) -> StoreFailed | None:
        """Why the store has stopped itself, as the error that it raises from then on; None while it goes on."""
        return await self._workers.failure()

    def make_ending(self, grace: float | None, status: int = 0) -> Ending:
        """What ends this process after the grace where it is told to end and a task blocks the event loop."""
        return self._workers.make_ending(grace, status)

    def lifespan(self, *, worker: bool = False, **options: Any) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """For `FastAPI(lifespan=rd.lifespan(worker=True))` and any other ASGI framework with lifespans."""
        return self._workers.lifespan(worker=worker, **options)

    async def drain(self, **options: Any) -> int:
        """Run everything that is due now, here; returns how many attempts were made. Later retries wait.

        Due slots of schedules run, too, and what has waited long enough moves on: a question, a deferral, a dead
        letter that comes back by itself. Takes the options of `worker()`. Raises when the store keeps failing.
        """
        return await self._workers.drain(**options)

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
        home = CycleHome(self.core, self._enqueuer, self._duties.look, self.notices.deliver)
        return Cycle(
            home,
            name,
            cycle_id,
            tz=tz,
            repeat=repeat,
            ignore=ignore,
            every=every,
            alert_after=alert_after,
            quiet=quiet,
            wait=wait,
        )

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
        self._workers.tell(message)

    @property
    def local_workers(self) -> list[Worker]:
        """The workers that run in this process."""
        return self._workers.running

    # -- seeing

    def subscribe(self, pattern: str, callback: Subscriber) -> Subscription:
        """Hear what happens in this process: `dead_letter`, `*.feedback`, `*`."""
        return self.bus.subscribe(pattern, callback)

    async def breakers(self) -> list[Breaker]:
        """What is down, as far as anybody noticed, and since when."""
        return await self._watch.breakers()

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
        return explain(error, self.registry, self.clock, None if task is None else _name_of(task), payload)

    def classify_rule(self, rule: Any = None, detail: str | None = None, *, name: str | None = None) -> Any:
        """A rule of your own, in front of ours: `rd.classify_rule(MyError, "rate_limited")`, or as a decorator.

        A decorated function gets a `redrive.Failure` and returns a detail, or None where it does not know.
        """
        return add_rule(self.registry, rule, detail, name)

    def queue_of_task(self, task: str) -> str:
        """Where the jobs of a task go unless something else is said: a task that is not known here has its own name."""
        return self.registry.queue_of_task(task)

    async def workers(self) -> list[WorkerView]:
        """Every living worker, wherever it runs: since when, what it runs, what blocks it."""
        return await gather_workforce.workers(self.core)

    async def tasks(self) -> list[TaskView]:
        """Every task with its jobs by state, the time that it takes, and its failures of the last day."""
        return await gather_workforce.tasks(self.core)

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
        from redrive.reports.gather_morning import look

        return await look(self.core, self._watch, since, queue=queue, spike=spike)

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
        closes = self.core.holder.come()
        try:
            yield Blocking(self._enqueuer, self._workers, self.jobs, self._watch)
        finally:
            if not portal.over:  # a block that was left open ends with its process
                portal.run(self.core.holder.leave(closes=closes))


def _name_of(task: str | Task[Any, Any]) -> str:
    return task.name if isinstance(task, Task) else task


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
