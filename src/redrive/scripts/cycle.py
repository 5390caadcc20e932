"""`rd.cycle("nightly")`: a script's jobs, run where the script runs. No worker, no server, no event loop needed.

    with rd.cycle("nightly") as night:
        for site in sites:
            night.run(publish, site=site)
    sys.exit(night.exit_code)

`run` never raises for a job: what fails is tried again on the spot, then diverted; the next cycle brings it back.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload

import msgspec

from redrive.core.commit import try_commit
from redrive.core.documents import Kept
from redrive.core.notice import write_stale_notice
from redrive.core.payload import encode
from redrive.core.policy import Policy
from redrive.engine.bus import BusEvent
from redrive.engine.context import wants_context_first
from redrive.engine.inline_runs import Interrupted, Wait
from redrive.engine.interrupts import Interrupts
from redrive.engine.registry import Handler, Registry
from redrive.engine.scheduler import prune
from redrive.engine.trusted_time import time_for_destroying
from redrive.errors import InvalidOption, RedriveError
from redrive.jobs.enqueuer import Enqueuer
from redrive.jobs.event_loop_thread import portal
from redrive.jobs.publishing_store import make_puts
from redrive.jobs.tasks import Task
from redrive.jobs.wait_for_job import read_result
from redrive.scripts.cycle_history import LEARNED, CycleRun, RunOutcome, checked_every
from redrive.scripts.cycle_records import RunRecord
from redrive.scripts.cycle_rules import (
    CYCLE_NOTE,
    CycleNote,
    Left,
    Repeat,
    Status,
    Summary,
    checked_id,
    checked_ignore,
    counted,
    cycle_at,
    id_from,
    in_words,
    keeps_failing,
    key_of,
    key_prefix,
    known_by,
    names_of,
    queue_of,
    severity,
    summary_of,
)
from redrive.scripts.cycle_runs import CallingThread, Turn, Turns, called_from

if TYPE_CHECKING:
    from redrive.jobs.core import Core

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
log = logging.getLogger("redrive.cycle")
GRACE: Final = 5.0
"""How long an interrupted script waits for its job to be given back."""


class Result(msgspec.Struct, Generic[R_co], frozen=True):
    """What became of one job in this cycle. True where it is done, now or before."""

    status: Status
    task: str
    job_id: str
    """Its name in the cycle."""
    id: str
    """Its id in the store, for `redrive status` and `redrive dead show`."""
    value: R_co | None = None
    """What the function returned."""
    error: str | None = None
    recommendation: str | None = None

    def __bool__(self) -> bool:
        return self.status in ("done", "skipped")


class CycleHome(NamedTuple):
    """What a cycle works with: how jobs are enqueued, and who looks around and tells people at its end."""

    core: Core
    enqueuer: Enqueuer
    look_around: Callable[[], Coroutine[Any, Any, object]]
    tell_people: Callable[[], Coroutine[Any, Any, object]]


class _CycleWork:
    """The work of one running cycle, behind what users see of it."""

    def __init__(self, plan: Cycle, home: CycleHome) -> None:
        self._home = home
        self._core = core = home.core
        self._plan = plan
        self.name = plan.name
        self.queue = plan.queue
        self.cycle_id = plan.cycle_id or cycle_at(self._core.clock.now(), plan.tz)
        self.results: list[Result[Any]] = []
        self._registry = _own(self._core.registry)
        self._over = False
        self._left: list[Left] = []
        self._alerts: list[str] = []
        self._enqueuer = Enqueuer(replace(core, registry=self._registry), home.enqueuer.spool)
        begun = self._core.clock.now()
        run = CycleRun(self.name, self.cycle_id, begun, "", zone=plan.tz, every=plan.every, watched=plan.watched)
        self._record = RunRecord(self._core.store, self._core.clock, run)
        self._turns = Turns(
            self._core.store,
            self._registry,
            self._core.clock,
            queue=self.queue,
            cycle_id=self.cycle_id,
            record=self._record,
            wait=plan.wait,
        )

    @property
    def summary(self) -> Summary:
        turns = self._turns
        return summary_of(
            self.name,
            self.cycle_id,
            [entry.status for entry in turns.entries.values()],
            skipped=turns.skipped,
            brought_back=turns.brought_back,
            left=self._left,
            alerts=self._alerts,
        )

    async def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], given: dict[str, Any]
    ) -> Result[Any]:
        if self._over:
            raise RedriveError(f"cycle {self.name} {self.cycle_id} is over: run jobs inside its block")
        handler = self._handler(function)
        own = handler.signature.names
        kwargs = kwargs | {name: value for name, value in given.items() if name in own and value is not None}
        payload = handler.signature.bind(args, kwargs)
        often = _repeat(None if "repeat" in own else given["repeat"], self._plan.repeat)
        ignore = self._ignored(handler, None if "ignore" in own else given["ignore"])
        named = self._named(payload, given["job_id"], function, ignore, strict="job_id" not in own)
        key = key_of(self.queue, handler.name, named, self.cycle_id if often == "cycle" else None)
        plan = self._enqueuer.plan(handler.name, {"queue": self.queue, "idempotency_key": key})
        prepared = self._enqueuer.prepare(plan, payload)
        entry = await self._turns.run(known_by(prepared.job, ignore), prepared.documents, handler, ignore)
        result = await self._result(entry, handler)
        self.results.append(result)
        return result

    def _ignored(self, handler: Handler, said: Any) -> tuple[str, ...]:
        """Return the arguments that do not count: those of this call, and those of the cycle."""
        names = checked_ignore(said) if said is not None else ()
        for name in names:
            if not handler.signature.takes(name):
                raise InvalidOption(field="ignore", problem=f"{name!r} is not an argument of {handler.name}")
        return (*names, *self._plan.ignore)

    def _handler(self, function: Any) -> Handler:
        """A task as it is; a plain function becomes one for this cycle, under its own name."""
        if isinstance(function, Task):
            handler = function.__handler__
        elif callable(function):
            handler = self._adopted(function)
        else:
            raise InvalidOption(field="function", problem=f"{function!r} is neither a function nor a task")
        if self._registry.handlers.get(handler.name) is not handler:
            self._registry.add(handler)
        return handler

    def _adopted(self, function: Callable[..., Any]) -> Handler:
        name = getattr(function, "__name__", None) or type(function).__name__
        known = self._registry.handlers.get(name)
        if known is not None and known.function == function:
            return known
        try:
            wants_context = wants_context_first(function)
            return Handler(name, function, queue=self.queue, policy=Policy(), wants_context=wants_context)
        except (TypeError, ValueError) as error:
            raise InvalidOption(field="function", problem=f"{name} cannot be a job: {error}") from None

    def _named(
        self, payload: dict[str, Any], job_id: Any, function: object, ignore: Sequence[str], *, strict: bool
    ) -> str:
        if job_id is not None and (strict or isinstance(job_id, str | int)):
            return checked_id("job_id", job_id)
        key = self._home.enqueuer.make_key(function.__handler__, payload) if isinstance(function, Task) else None
        if key is not None:
            return checked_id("job_id", key)
        return id_from(counted(encode(payload, limit=self._core.settings.payload_limit).text, ignore))

    async def _result(self, entry: Turn, handler: Handler) -> Result[Any]:
        job = entry.job
        skipped = entry.status == "skipped"
        value = handler.signature.result(await read_result(self._core.store, job)) if skipped else entry.value
        job_id, _ = names_of(job)
        return Result(entry.status, job.task, job_id, job.id, value, job.error, job.recommendation)

    # -- its record

    async def begin(self) -> None:
        await _spared("writing its record", self._record.begin())

    async def end(self, error: BaseException | None) -> None:
        """Write how it ended; a script that leaves no such line is told as dead."""
        name = type(error).__name__ if error is not None else None
        outcome = outcome_of(error)
        error_class = None if outcome == "ended" else name
        await _spared("writing its record", self._record.end(outcome, self._turns.ended, error_class))

    # -- the end

    async def finish(self) -> None:
        self._over = True
        await self._turns.end()
        for kept in await CYCLE_NOTE.all(self._core.store, key_prefix(self.queue)):
            if keeps_failing(kept.value, self._plan.alert_after):
                await self._alert(kept)
        self._left = await self._turns.left()
        await _spared("looking around", self._home.look_around())
        await _spared("telling people", self._home.tell_people())
        await _spared("pruning", self._prune())

    async def _alert(self, kept: Kept[CycleNote]) -> None:
        """Told once in a cycle, through the outbox: a channel that fails is told again, by whichever process has it."""
        note = kept.value
        words = in_words(note, next(iter(await self._core.store.get([note.job])), None))
        message, hurts = f"{self.name}: {words}", severity(note, self._plan.alert_after)
        self._alerts.append(words)
        log.warning("%s", message)
        data = {"kind": "stale_failure", "severity": hurts, "message": message, "cycles": note.failing}
        self._core.bus.publish(
            BusEvent("stale_failure", self.queue, self._core.clock.now(), note.job, note.task, data=data)
        )
        told = CYCLE_NOTE.put(kept.key, msgspec.structs.replace(note, told=note.failed), kept.version)
        notice = write_stale_notice(
            note.job, note.task, note.failed, self.queue, self._core.clock.now(), message, hurts
        )
        await try_commit(self._core.store, puts=[told, *make_puts(notice)], what=f"people will be told of {self.name}")

    async def _prune(self) -> None:
        """Where no worker ever runs, nobody else does."""
        core = self._core
        now = await time_for_destroying(core.store, core.clock)
        await prune(core.store, self._registry, now, core.settings.retention, core.settings.key_retention)


class _Going:
    """What both kinds of running cycle show."""

    def __init__(self, work: _CycleWork) -> None:
        self._work = work
        self.name = work.name
        self.queue = work.queue
        self.cycle_id = work.cycle_id
        self.results = work.results
        """What `run` has returned so far."""

    @property
    def summary(self) -> Summary:
        """The numbers so far; after the end also what was left, and what keeps failing."""
        return self._work.summary

    @property
    def exit_code(self) -> int:
        """0 only where every job of this cycle is done, now or before; else 1."""
        return self.summary.exit_code


class RunningCycle(_Going):
    """Inside `async with rd.cycle(...)`."""

    @overload
    async def run(
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        job_id: str | int | None = None,
        repeat: Repeat | None = None,
        ignore: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Result[R]: ...
    @overload
    async def run(
        self,
        function: Callable[..., R],
        /,
        *args: Any,
        job_id: str | int | None = None,
        repeat: Repeat | None = None,
        ignore: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Result[R]: ...
    async def run(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        job_id: Any = None,
        repeat: Any = None,
        ignore: Any = None,
        **kwargs: Any,
    ) -> Result[Any]:
        """Do it once in this cycle, or once for ever with `repeat="never"`. Never raises for what the job does.

        The job is (function, `job_id`), or (function, arguments) where no id is given. In one cycle a job_id stands for
        one input: another one is refused (`needs_you`) and kept as a dead letter; arguments named in `ignore` do not
        count. A function that has a parameter of the name `job_id`, `repeat` or `ignore` gets it, too.
        """
        try:
            return await self._work.run(function, args, kwargs, {"job_id": job_id, "repeat": repeat, "ignore": ignore})
        except Interrupted as interrupted:
            raise interrupted.error from None


class BlockingCycle(_Going):
    """Inside `with rd.cycle(...)`: the same without await. Plain functions run in the thread that calls `run`."""

    @overload
    def run(
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        job_id: str | int | None = None,
        repeat: Repeat | None = None,
        ignore: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Result[R]: ...
    @overload
    def run(
        self,
        function: Callable[..., R],
        /,
        *args: Any,
        job_id: str | int | None = None,
        repeat: Repeat | None = None,
        ignore: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Result[R]: ...
    def run(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        job_id: Any = None,
        repeat: Any = None,
        ignore: Any = None,
        **kwargs: Any,
    ) -> Result[Any]:
        """Do it once in this cycle, or once for ever with `repeat="never"`. Never raises for what the job does."""
        given = {"job_id": job_id, "repeat": repeat, "ignore": ignore}
        return _from_here(lambda: self._work.run(function, args, kwargs, given))


class Cycle:
    """What `rd.cycle(...)` returns: use it with `with`, or with `async with` where there is an event loop."""

    def __init__(
        self,
        home: CycleHome,
        name: str,
        cycle_id: str | int | None,
        *,
        tz: str,
        repeat: Repeat,
        ignore: Sequence[str],
        every: str | timedelta | float | None,
        alert_after: int,
        quiet: bool,
        wait: Wait | None,
    ) -> None:
        self._home = home
        self._holder = home.core.holder
        self.name = name
        self.queue = queue_of(name)
        self.cycle_id = checked_id("cycle_id", cycle_id) if cycle_id is not None else None
        self.tz = tz
        self.repeat = _repeat(repeat, "cycle")
        self.ignore = checked_ignore(ignore)
        self.watched = every is not None
        self.every = None if every is None or every == LEARNED else checked_every(every)
        self.alert_after = _whole("alert_after", alert_after)
        self.quiet = quiet
        self.wait = wait
        cycle_at(0.0, tz)
        self._work: _CycleWork | None = None
        self._closes = False

    def __enter__(self) -> BlockingCycle:
        return BlockingCycle(portal.run(self._open()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        portal.run(self.__aexit__(kind, error, traceback))

    async def __aenter__(self) -> RunningCycle:
        return RunningCycle(await self._open())

    async def _open(self) -> _CycleWork:
        if self._work is not None:
            raise RedriveError(f"cycle {self.name!r} is under way already")
        self._closes = await self._holder.join()
        try:
            self._work = _CycleWork(self, self._home)
            await self._work.begin()
            await _spared("emptying the spool", self._home.enqueuer.drain_spool())
        except BaseException:
            await self._holder.leave(closes=self._closes)
            raise
        return self._work

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The sum is told whatever happens; the script's own exception goes on."""
        work, self._work = self._work, None
        if work is None:
            return
        try:
            await work.finish()
            await work.end(error)
        except Exception as problem:
            await work.end(error or problem)
            if error is None:
                raise
            log.warning("cycle %s could not be summed up: %r", self.name, problem)
        finally:
            if not self.quiet:
                sys.stdout.write(f"{work.summary}{_interrupted(len(work.results), error)}\n")
                sys.stdout.flush()
            await self._holder.leave(closes=self._closes)


def outcome_of(error: BaseException | None) -> RunOutcome:
    """Say how a script left its cycle. `sys.exit(night.exit_code)` inside the block, 0 or 1, is an end like any other;
    with another status the script says that it could not go on."""
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return "interrupted"
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0, 1)):
        return "ended"
    return "died"


def _interrupted(number: int, error: BaseException | None) -> str:
    """Say that a person ended the script, and how many jobs had had their turn."""
    return f"; interrupted after {number} job{'s' * (number != 1)}" if isinstance(error, KeyboardInterrupt) else ""


def _own(registry: Registry) -> Registry:
    """A registry for this cycle alone: a plain function's name is taken only while the cycle lasts."""
    own = copy.copy(registry)
    own.detach()
    return own


def _repeat(said: Any, otherwise: Repeat) -> Repeat:
    if said is None:
        return otherwise
    if said not in ("cycle", "never"):
        raise InvalidOption(field="repeat", problem=f"{said!r} is not one of cycle, never")
    found: Repeat = said
    return found


def _whole(field: str, said: object) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or said < 1:
        raise InvalidOption(field=field, problem=f"{said!r} is not a number from 1")
    return said


async def _spared(what: str, work: Coroutine[Any, Any, object]) -> None:
    """Told, and no reason to call the night a failure."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - told
        log.warning("%s failed at the edge of a cycle: %r", what, error)


def _from_here(work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Carry it out on the portal's event loop; functions that are no coroutines run in this very thread."""
    caller, over = CallingThread(), threading.Event()

    async def there() -> R:
        called_from(caller)
        try:
            return await work()
        finally:
            over.set()

    future = asyncio.run_coroutine_threadsafe(there(), portal.start())
    future.add_done_callback(lambda _: caller.finish())
    try:
        with Interrupts():
            caller.serve()
    except BaseException:
        future.cancel()
        if not over.wait(GRACE):
            log.warning("the script was interrupted; its job is taken up when this process has ended")
        raise
    try:
        return future.result()
    except Interrupted as interrupted:
        raise interrupted.error from None
