"""Builds the services of one instance and delegates to them; nothing is decided here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from msgspec.structs import replace

from redrive.api.blocking import Blocking
from redrive.api.database import Database
from redrive.api.dead import Dead
from redrive.api.duties import Duties
from redrive.api.explain import FailureMethods
from redrive.api.gateway import AgentMethods, Gateway
from redrive.api.jobs import Jobs
from redrive.api.make_registry import make_registry, policies_of
from redrive.api.queues import Queues
from redrive.api.task_decorator import TaskMethods
from redrive.api.tokens import Tokens
from redrive.api.transactions import Relay, Transactions
from redrive.api.workers import WorkerMethods, Workers
from redrive.config import Settings, load
from redrive.core.inbox_table import inbox_ddl
from redrive.core.job import Job, Json
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
from redrive.engine.registry import Summarise
from redrive.fleet.hub import become_hub, make_hub, serving_hub
from redrive.fleet.service import FleetService
from redrive.flows.schedules import Scheduled, forget_schedule, list_schedules
from redrive.flows.workflows import Workflow, WorkflowHome, Workflows
from redrive.http.policy import HTTP_TASK
from redrive.jobs.core import Core
from redrive.jobs.enqueuer import Enqueuer
from redrive.jobs.event_loop_thread import portal
from redrive.jobs.open_store import find_spool_folder, hide_credentials
from redrive.jobs.spool import Spool
from redrive.jobs.store_refcount import StoreHolder
from redrive.jobs.tasks import Item, JobHandle, Many, Task
from redrive.notices.courier import Receiver
from redrive.notices.repeats import RepeatedActions
from redrive.notices.service import Notices
from redrive.notices.sessions import Sessions
from redrive.reports import gather_workforce
from redrive.reports.health import Health
from redrive.reports.morning import Morning, Spike
from redrive.reports.needs import Need
from redrive.reports.pains import Pains
from redrive.reports.service import Reports
from redrive.reports.signal_actions import SignalActions
from redrive.reports.watch import Watch
from redrive.reports.workforce import TaskView, WorkerView
from redrive.retries.breaker import Breaker, FailureCounts
from redrive.retries.changes import Counter
from redrive.scripts.cycle import CycleHome, CycleMethods
from redrive.scripts.failure_records import FailureRecorder
from redrive.scripts.once import Effects, OnceMethods

if TYPE_CHECKING:
    from redrive.stores.remote import Hub

R = TypeVar("R")


class Redrive(TaskMethods, AgentMethods, WorkerMethods, CycleMethods, OnceMethods, FailureMethods):
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
        self.accept_now: Final = self._enqueuer.accept_now
        self.recorder = FailureRecorder(core, self._enqueuer)
        self._transactions = Transactions(core, self._enqueuer)
        self.effects = Effects(core)
        self.comebacks = Comebacks(core, acts)
        self._repeats = RepeatedActions(core)
        self._watch = Watch(core, self.spool, self.effects, self._repeats, self.redrives)
        self.numbers: Final = self._watch.numbers
        self._pains = Pains(core, self._watch)
        actions = SignalActions(core, self._watch, self._enqueuer)
        self.sessions = Sessions(core)
        self.notices = Notices(core, self.sessions, self._repeats, actions.channels, self.channels, self.signals)
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
        self.jobs = Jobs(core, self._workers, self._gateway, self.sessions, self._repeats, self.dead)
        self.queues = Queues(core, self._watch, self._workers)
        self._cycle_home = CycleHome(core, self._enqueuer, self._duties.look, self.notices.deliver)
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
        """The store, made at first use."""
        return self.core.store

    @property
    def clock(self) -> Clock:
        """The clock of this instance."""
        return self.core.clock

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.core.settings

    def use_store(self, store: Store | None, clock: Clock) -> None:
        """Use another store and clock from now on, as `redrive.testing` does."""
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
        """Make what performs the requests of other machines on this store; None in a client of hubs."""
        return make_hub(self.core)

    def serving_hub(self) -> AbstractAsyncContextManager[None]:
        """Answer the workers and producers of a NATS fleet while the block runs: `async with rd.serving_hub():`."""
        return serving_hub(self.core, self.recorder)

    async def check_store(self) -> None:
        """Raise the StoreError that keeps the store from being used now; return where it can be read and written."""
        await self.store.check()

    def limit_grace(self, seconds: float) -> None:
        """Give running jobs at most so many seconds when this process ends."""
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
        """Enqueue a task, or a name where the code is elsewhere. When this returns, the job is synced to disk.

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
        """Enqueue a durable HTTP request: any 2xx is success; other answers are retried or buried by what they mean.

        `enqueue_http("POST", url, json=…, queue=…)` or `enqueue_http(queue, "POST", url, body=…)`. A `body` of text is
        sent as it is; a dict or a list is sent as JSON, as `json` is.
        """
        from redrive.http.request import split_call

        payload, options = split_call(line, options)
        return await self.accept(HTTP_TASK, payload, options)

    def relay(self, url: str | None = None) -> Relay:
        """Move jobs enqueued with `within=` from an inbox into this store. Workers do so for the setting `inbox`."""
        return self._transactions.relay(url)

    @staticmethod
    def inbox_ddl(dialect: str) -> str:
        """Return the statement that makes the table of `within=`, for your migrations: "postgresql" or "sqlite"."""
        return inbox_ddl(dialect)

    def workflow(self, name: str) -> Workflow:
        """Begin a workflow of steps that wait for each other: `add` them, then `start` it."""
        return Workflow(self._workflow_home, name)

    # -- seeing

    def subscribe(self, pattern: str, callback: Subscriber) -> Subscription:
        """Call a function for the events of this process: `dead_letter`, `*.feedback`, `*`."""
        return self.bus.subscribe(pattern, callback)

    async def breakers(self) -> list[Breaker]:
        """List what is down, as far as calls have shown, and since when."""
        return await self._watch.breakers()

    async def schedules(self) -> list[Scheduled]:
        """List every schedule that the store or this process knows: its line, last and next slot, last job."""
        return await list_schedules(self.core)

    async def forget_schedule(self, name: str) -> bool:
        """Drop what is known of a schedule that the code no longer has, e.g. `nightly#0`. False where nothing was."""
        return await forget_schedule(self.store, name)

    async def close_breaker(self, key: str) -> bool:
        """Close a breaker by hand: its parked jobs come back. False where the breaker is not open."""
        return await Breakers(self.store, self.clock, self.bus).close(key)

    async def workers(self) -> list[WorkerView]:
        """List every live worker of the store: since when it runs, what it runs, what blocks it."""
        return await gather_workforce.workers(self.core)

    async def tasks(self) -> list[TaskView]:
        """List every task with its jobs by state, the time that it takes, and its failures of the last day."""
        return await gather_workforce.tasks(self.core)

    async def health(self) -> Health:
        """Say whether all is healthy, degraded or broken, why, and what needs a person."""
        return await self._watch.health()

    async def needs(self) -> list[Need]:
        """List what needs a person, the gravest first; empty where all is well, or heals by itself."""
        return (await self._watch.health()).needs

    async def stats(self) -> dict[str, Any]:
        """Return depths, totals, the spool, and runtime metrics of this process."""
        return await self._watch.stats()

    async def morning(
        self,
        since: timedelta | datetime | float | None = None,
        *,
        queue: str | None = None,
        spike: int | Spike | None = None,
    ) -> Morning:
        """Report what needs a person: the manual lane, structural changes against the day before, what nothing runs."""
        from redrive.reports.gather_morning import look

        return await look(self.core, self._watch, since, queue=queue, spike=spike)

    async def status(self, job_id: str) -> Job:
        """Read a job by its id or a unique part of it."""
        return await self.jobs.get(job_id)

    # -- without an event loop

    def run_blocking(self, work: Coroutine[Any, Any, R]) -> R:
        return portal.run(work)

    @contextmanager
    def blocking(self) -> Iterator[Blocking]:
        """Enqueue without an event loop: `with rd.blocking() as q: q.enqueue(...)`, also in Jupyter and Django.

        A store that a block opened is closed with the last block, unless something else still needs it.
        """
        closes = self.core.holder.enter()
        try:
            yield Blocking(self._enqueuer, self._workers, self.jobs, self._watch)
        finally:
            if not portal.over:  # a block that is left open ends with its process
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
