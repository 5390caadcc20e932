"""Runs the workers of this process, and sends them messages."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from redrive.config import check_work
from redrive.core.checks import check_names
from redrive.engine.interrupts import STOPPING
from redrive.engine.loop import Loop, carry_through, wait_for_first
from redrive.engine.scheduler import Scheduler
from redrive.engine.shutdown import ShutdownWatch
from redrive.errors import StoreFailed
from redrive.notices.courier import Courier
from redrive.retries.breaker import FailureCounts

if TYPE_CHECKING:
    from redrive.api.duties import Duties
    from redrive.engine.worker import Worker
    from redrive.jobs.core import Core
    from redrive.notices.service import Notices

DRAIN_ERRORS: Final = 3
SWITCH_SECONDS: Final = 0.0002
"""How soon the store's thread runs while a worker is busy; with Python's default of 5 ms they would take turns."""
SETTINGS: Final = ("concurrency", "poll", "grace", "agent_concurrency")
"""Options of a worker that the settings give where its caller does not."""


class Workers:
    """Starts, stops and reaches the workers of this process."""

    def __init__(self, core: Core, duties: Duties, notices: Notices, include: Sequence[str]) -> None:
        self._core = core
        self._duties = duties
        self._notices = notices
        self._include = tuple(include)
        self._running: list[tuple[asyncio.AbstractEventLoop, Worker]] = []
        self.counts = FailureCounts()
        """What the workers of this process have counted for breakers: it outlives each of them."""

    @property
    def running(self) -> list[Worker]:
        return [worker for _, worker in list(self._running)]

    def tell(self, message: Callable[[Worker], None]) -> None:
        """Reaches the workers of this process, whatever event loop they run on."""
        for loop, worker in list(self._running):
            if not loop.is_closed():
                loop.call_soon_threadsafe(message, worker)

    # -- making them

    def load(self) -> None:
        """Imports the modules of `include=`, so that their tasks are known here."""
        for module in self._include:
            importlib.import_module(module)

    def make(self, **options: Any) -> Worker:
        """Makes a worker, not started."""
        from redrive.engine.worker import Worker  # programs that only enqueue do without

        self.load()
        core = self._core
        given: dict[str, Any] = {name: getattr(core.settings, name) for name in SETTINGS}
        given |= {name: value for name, value in options.items() if value is not None}
        check_work(**{name: given[name] for name in SETTINGS})
        given |= {name: check_names(name, given[name]) for name in ("queues", "agents") if name in given}
        given["agent_scope"] = core.settings.agent_scope
        return Worker(core.store, core.registry, core.clock, bus=core.bus, **given)

    def make_scheduler(self, worker: Worker, roles: Collection[str] | None = None) -> Scheduler:
        """Makes the scheduler of a worker, which is not started where the process has only roles."""
        return self._duties.make_scheduler(worker, roles)

    def couriers(self) -> list[Courier]:
        """Makes what carries notices to the channels of this process, where it has any."""
        courier = self._notices.courier()
        return [courier] if courier is not None else []

    def make_ending(self, grace: float | None, status: int = 0) -> ShutdownWatch:
        """Makes what ends this process after the grace where it is told to end and a task blocks the event loop."""
        seconds = self._core.settings.grace if grace is None else grace
        return ShutdownWatch(lambda: self.running, seconds, status)

    # -- running them

    @asynccontextmanager
    async def employ(
        self, couriers: Sequence[Courier] = (), *, scheduler: bool = False, **options: Any
    ) -> AsyncIterator[Worker]:
        """Runs a worker with its scheduler and couriers while the block runs, and stops all of them at its end."""
        await self._core.holder.join()
        here, running = asyncio.get_running_loop(), list[Loop]()
        try:
            worker = self.make(**options)
            worker.breakers.counts = self.counts
            worker.channels = [name for courier in couriers for name in courier.names]
            running = [*([self.make_scheduler(worker)] if scheduler else []), *couriers, worker]
            self._running.append((here, worker))
            for loop in reversed(running):
                loop.start()
            yield worker
        finally:
            await carry_through(self._dismiss(running))

    async def _dismiss(self, running: Sequence[Loop]) -> None:
        """Stops the loops. The store stays open until they have stopped."""
        try:
            for loop in running:
                await loop.stop()
        finally:
            for entry in [entry for entry in list(self._running) if entry[1] in running]:
                self._running.remove(entry)
            await self._core.holder.leave(closes=False)

    @asynccontextmanager
    async def worker(self, *, scheduler: bool = True, **options: Any) -> AsyncIterator[Worker]:
        """Runs a worker and a scheduler while the block runs."""
        couriers = self.couriers() if scheduler else []
        async with self.employ(couriers, scheduler=scheduler, **options) as worker:
            yield worker

    async def run(self, **options: Any) -> None:
        """Runs a worker until SIGTERM or SIGINT, then stops it gracefully. Raises StoreFailed if the store failed."""
        with self._until_signalled(options.get("grace")) as stopping:
            async with self._core.holder.hold(closes=True), self.worker(**options):
                await wait_for_first(stopping.wait(), self._core.store.until_failed())
                self._core.store.hurry()
                failure = await self.failure()
            if failure is not None:
                raise failure

    @contextmanager
    def _until_signalled(self, grace: float | None) -> Iterator[asyncio.Event]:
        """Sets the event at SIGTERM or SIGINT while the block runs."""
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in STOPPING:
            loop.add_signal_handler(number, stopping.set)
        sys.setswitchinterval(SWITCH_SECONDS)
        ending = self.make_ending(grace)
        ending.hear(*STOPPING)
        try:
            yield stopping
        finally:
            ending.over()
            for number in STOPPING:
                loop.remove_signal_handler(number)

    def lifespan(self, *, worker: bool, **options: Any) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """Makes a lifespan for ASGI frameworks that keeps the store open, with a worker where one is wanted."""

        @asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            async with self._core.holder.hold(closes=True), self.worker(**options) if worker else nullcontext():
                yield

        return lifespan

    async def failure(self) -> StoreFailed | None:
        """Gives the error that a store which stopped itself raises from then on; None while the store works."""
        why = self._core.store.failed
        if why is None:
            return None
        try:
            await self._core.store.check()
        except StoreFailed as error:
            return error
        return StoreFailed(why)

    # -- running what is due, once

    async def drain(self, **options: Any) -> int:
        """Runs everything that is due now in this process; returns how many attempts were made."""
        async with self._core.holder.hold(closes=False):
            await self._duties.take_in()
            couriers = self.couriers()
            async with self.employ(**options) as worker:
                await self._duties.see_to_the_overdue(worker)
                await self._until_drained(worker)
            for courier in couriers:
                await courier.deliver()
            return worker.made

    async def _until_drained(self, worker: Worker) -> None:
        switch = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            while not await worker.drained() or await self._duties.more_is_due(worker):
                if worker.failing is not None and (worker.errors >= DRAIN_ERRORS or not worker.running):
                    raise worker.failing
        finally:
            sys.setswitchinterval(switch)


class WorkerMethods:
    """The methods of Redrive that run workers in this process."""

    _workers: Workers

    def load(self) -> None:
        """Import the modules of `include=`, so that their tasks are known here."""
        self._workers.load()

    def make_worker(self, **options: Any) -> Worker:
        """Make a worker that is not started; most programs want `worker()` or `run_worker()`."""
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
        """Run a worker and a scheduler while the block runs; leaving the block finishes or gives back what runs."""
        options = {"concurrency": concurrency, "queues": queues, "agents": agents, "grace": grace}
        return self._workers.worker(scheduler=scheduler, **options)

    def make_scheduler(self, worker: Worker, roles: Collection[str] | None = None) -> Scheduler:
        return self._workers.make_scheduler(worker, roles)

    async def run_worker(self, **options: Any) -> None:
        """Run a worker until SIGTERM or SIGINT, then stop gracefully. Raises StoreFailed if the store stops itself."""
        await self._workers.run(**options)

    async def failure(self) -> StoreFailed | None:
        """Return the error that a store which stopped itself raises from then on; None while the store works."""
        return await self._workers.failure()

    def make_ending(self, grace: float | None, status: int = 0) -> ShutdownWatch:
        return self._workers.make_ending(grace, status)

    def lifespan(self, *, worker: bool = False, **options: Any) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """Make a lifespan for `FastAPI(lifespan=rd.lifespan(worker=True))` and any other ASGI framework with those."""
        return self._workers.lifespan(worker=worker, **options)

    async def drain(self, **options: Any) -> int:
        """Run everything that is due now, here; return how many attempts were made. Later retries wait.

        Due slots of schedules run, too, and what has waited long enough moves on: a question, a deferral, a dead
        letter that comes back by itself. Takes the options of `worker()`. Raises when the store keeps failing.
        """
        return await self._workers.drain(**options)

    @property
    def local_workers(self) -> list[Worker]:
        """The workers that run in this process."""
        return self._workers.running
