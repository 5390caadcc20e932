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
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import msgspec

from redrive.core.checks import check_range
from redrive.core.commit import try_commit
from redrive.core.documents import Kept
from redrive.core.notice import write_stale_notice
from redrive.core.payload import encode
from redrive.core.policy import Policy
from redrive.engine.bus import BusEvent
from redrive.engine.context import wants_context_first
from redrive.engine.inline_runs import Interrupted, Wait
from redrive.engine.registry import Handler
from redrive.engine.scheduler import prune
from redrive.engine.trusted_time import time_for_destroying
from redrive.errors import InvalidOption, RedriveError
from redrive.jobs.enqueuer import Enqueuer
from redrive.jobs.event_loop_thread import portal
from redrive.jobs.publishing_store import make_puts
from redrive.jobs.tasks import Task
from redrive.jobs.wait_for_job import read_result
from redrive.scripts import cycle_rules
from redrive.scripts.cycle_history import LEARNED, CycleRun, CycleStanding, Finding, RunOutcome, checked_every
from redrive.scripts.cycle_records import RunRecord, cycle_findings, cycle_standings, forget_cycle
from redrive.scripts.cycle_rules import ALERT_AFTER, Repeat, Status, Summary
from redrive.scripts.cycle_runs import Turn, Turns, run_in_calling_thread

if TYPE_CHECKING:
    from redrive.jobs.core import Core

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
log = logging.getLogger("redrive.cycle")


class Result(msgspec.Struct, Generic[R_co], frozen=True):
    """What became of one job in this cycle. True where the job is done, now or before."""

    status: Status
    task: str
    job_id: str
    """The job's name in the cycle."""
    id: str
    """The job's id in the store, for `redrive status` and `redrive dead show`."""
    value: R_co | None = None
    """What the function returned."""
    error: str | None = None
    recommendation: str | None = None

    def __bool__(self) -> bool:
        return self.status in ("done", "skipped")


class CycleHome(NamedTuple):
    """What a cycle works with: how jobs are enqueued, and what looks around and tells people at the cycle's end."""

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
        begun = core.clock.now()
        self.cycle_id = plan.cycle_id or cycle_rules.cycle_at(begun, plan.tz)
        self.results: list[Result[Any]] = []
        self._registry = copy.copy(core.registry)
        self._registry.detach()  # the name of a plain function is taken only while the cycle lasts
        self._over = False
        self._left: list[cycle_rules.Left] = []
        self._alerts: list[str] = []
        own = replace(core, registry=self._registry)
        self._enqueuer = Enqueuer(own, home.enqueuer.spool)
        run = CycleRun(self.name, self.cycle_id, begun, "", zone=plan.tz, every=plan.every, watched=plan.watched)
        self._record = RunRecord(core.store, core.clock, run)
        self._turns = Turns(own, self.queue, self.cycle_id, self._record, plan.wait)

    @property
    def summary(self) -> Summary:
        turns = self._turns
        counts = Counter[str](turn.status for turn in turns.turns.values())
        counts["skipped"] += turns.skipped
        return Summary(
            self.name,
            self.cycle_id,
            brought_back=turns.brought_back,
            left=tuple(self._left),
            alerts=tuple(self._alerts),
            **{status: counts[status] for status in cycle_rules.WORDS},
        )

    async def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result[Any]:
        if self._over:
            raise RedriveError(f"cycle {self.name} {self.cycle_id} is over: run jobs inside its block")
        handler = self._handler(function)
        own = handler.signature.names
        given = {name: kwargs.pop(name, None) for name in ("job_id", "repeat", "ignore")}
        kwargs |= {name: value for name, value in given.items() if name in own and value is not None}
        payload = handler.signature.bind(args, kwargs)
        repeat = cycle_rules.checked_repeat(None if "repeat" in own else given["repeat"], self._plan.repeat)
        ignore = self._names_to_ignore(handler, None if "ignore" in own else given["ignore"])
        named = self._name_job(payload, given["job_id"], function, ignore, strict="job_id" not in own)
        key = cycle_rules.key_of(self.queue, handler.name, named, self.cycle_id if repeat == "cycle" else None)
        plan = self._enqueuer.plan(handler.name, {"queue": self.queue, "idempotency_key": key})
        prepared = self._enqueuer.prepare(plan, payload)
        turn = await self._turns.run(cycle_rules.known_by(prepared.job, ignore), prepared.documents, handler, ignore)
        result = await self._result(turn, handler)
        self.results.append(result)
        return result

    def _names_to_ignore(self, handler: Handler, given: Any) -> tuple[str, ...]:
        """Return the arguments that do not count: those of this call, and those of the cycle."""
        names = cycle_rules.checked_ignore(given) if given is not None else ()
        for name in names:
            if not handler.signature.takes(name):
                raise InvalidOption(field="ignore", problem=f"{name!r} is not an argument of {handler.name}")
        return (*names, *self._plan.ignore)

    def _handler(self, function: Any) -> Handler:
        """Return a task's handler; a plain function gets one for this cycle, under its own name."""
        if isinstance(function, Task):
            handler = function.__handler__
        elif callable(function):
            handler = self._make_handler(function)
        else:
            raise InvalidOption(field="function", problem=f"{function!r} is neither a function nor a task")
        if self._registry.handlers.get(handler.name) is not handler:
            self._registry.add(handler)
        return handler

    def _make_handler(self, function: Callable[..., Any]) -> Handler:
        name = getattr(function, "__name__", None) or type(function).__name__
        known = self._registry.handlers.get(name)
        if known is not None and known.function == function:
            return known
        try:
            wants_context = wants_context_first(function)
            return Handler(name, function, queue=self.queue, policy=Policy(), wants_context=wants_context)
        except (TypeError, ValueError) as error:
            raise InvalidOption(field="function", problem=f"{name} cannot be a job: {error}") from None

    def _name_job(
        self, payload: dict[str, Any], job_id: Any, function: object, ignore: Sequence[str], *, strict: bool
    ) -> str:
        if job_id is not None and (strict or isinstance(job_id, str | int)):
            return cycle_rules.checked_id("job_id", job_id)
        key = self._home.enqueuer.make_key(function.__handler__, payload) if isinstance(function, Task) else None
        if key is not None:
            return cycle_rules.checked_id("job_id", key)
        text = encode(payload, limit=self._core.settings.payload_limit).text
        return cycle_rules.id_from(cycle_rules.strip_ignored(text, ignore))

    async def _result(self, turn: Turn, handler: Handler) -> Result[Any]:
        job, value = turn.job, turn.value
        if turn.status == "skipped":
            value = handler.signature.result(await read_result(self._core.store, job))
        return Result(turn.status, job.task, cycle_rules.names_of(job)[0], job.id, value, job.error, job.recommendation)

    async def begin(self) -> None:
        await _log_failure("writing its record", self._record.begin())

    async def end(self, error: BaseException | None) -> None:
        """Write how the cycle ended; one without this record is reported as dead."""
        outcome = outcome_of(error)
        error_class = type(error).__name__ if outcome != "ended" else None
        await _log_failure("writing its record", self._record.end(outcome, self._turns.ended, error_class))

    async def finish(self) -> None:
        self._over = True
        await self._turns.end()
        for kept in await cycle_rules.CYCLE_NOTE.all(self._core.store, cycle_rules.key_prefix(self.queue)):
            if cycle_rules.keeps_failing(kept.value, self._plan.alert_after):
                await self._alert(kept)
        self._left = await self._turns.left()
        await _log_failure("looking around", self._home.look_around())
        await _log_failure("telling people", self._home.tell_people())
        await _log_failure("pruning", self._prune())

    async def _alert(self, kept: Kept[cycle_rules.CycleNote]) -> None:
        """Write one notice per cycle about a job that keeps failing; the courier delivers it."""
        note, now = kept.value, self._core.clock.now()
        words = cycle_rules.in_words(note, next(iter(await self._core.store.get([note.job])), None))
        message, hurts = f"{self.name}: {words}", cycle_rules.severity(note, self._plan.alert_after)
        self._alerts.append(words)
        log.warning("%s", message)
        data = {"kind": "stale_failure", "severity": hurts, "message": message, "cycles": note.failing}
        self._core.bus.publish(BusEvent("stale_failure", self.queue, now, note.job, note.task, data=data))
        told = cycle_rules.CYCLE_NOTE.put(kept.key, msgspec.structs.replace(note, told=note.failed), kept.version)
        notice = write_stale_notice(note.job, note.task, note.failed, self.queue, now, message, hurts)
        await try_commit(self._core.store, puts=[told, *make_puts(notice)], what=f"people will be told of {self.name}")

    async def _prune(self) -> None:
        """Prune as a scheduler would: where only scripts run there is none."""
        core = self._core
        now = await time_for_destroying(core.store, core.clock)
        await prune(core.store, self._registry, now, core.settings.retention, core.settings.key_retention)


class _Going:
    """The attributes of both kinds of running cycle."""

    def __init__(self, work: _CycleWork) -> None:
        self._work = work
        self.name = work.name
        self.queue = work.queue
        self.cycle_id = work.cycle_id
        self.results = work.results
        """What `run` has returned so far."""

    @property
    def summary(self) -> Summary:
        """The numbers so far; after the end also the jobs that were left, and those that keep failing."""
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
    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Result[Any]:
        """Run a job once in this cycle, or once for ever with `repeat="never"`. Never raises for what the job does.

        The job is (function, `job_id`), or (function, arguments) where no id is given. In one cycle a job_id stands for
        one input: another one is refused (`needs_you`) and kept as a dead letter; arguments named in `ignore` do not
        count. A function that has a parameter of the name `job_id`, `repeat` or `ignore` gets it, too.
        """
        try:
            return await self._work.run(function, args, kwargs)
        except Interrupted as interrupted:
            raise interrupted.error from None


class BlockingCycle(_Going):
    """Inside `with rd.cycle(...)`, without await. Plain functions run in the thread that calls `run`."""

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
    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Result[Any]:
        """Run a job once in this cycle, or once for ever with `repeat="never"`. Never raises for what the job does."""
        return run_in_calling_thread(lambda: self._work.run(function, args, kwargs))


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
        self.queue = cycle_rules.queue_of(name)
        self.cycle_id = cycle_rules.checked_id("cycle_id", cycle_id) if cycle_id is not None else None
        self.tz = tz
        self.repeat = cycle_rules.checked_repeat(repeat, "cycle")
        self.ignore = cycle_rules.checked_ignore(ignore)
        self.watched = every is not None
        self.every = None if every is None or every == LEARNED else checked_every(every)
        self.alert_after = check_range("alert_after", alert_after, 1, sys.maxsize)
        self.quiet = quiet
        self.wait = wait
        cycle_rules.cycle_at(0.0, tz)
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
            await _log_failure("emptying the spool", self._home.enqueuer.drain_spool())
        except BaseException:
            await self._holder.leave(closes=self._closes)
            raise
        return self._work

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the cycle and print its sum, whatever happens; the script's own exception goes on."""
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
                sys.stdout.write(f"{work.summary}{_describe_interrupt(len(work.results), error)}\n")
                sys.stdout.flush()
            await self._holder.leave(closes=self._closes)


class CycleMethods:
    """The methods of Redrive for scripts."""

    core: Core
    _cycle_home: CycleHome

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
        """Make a cycle: `with rd.cycle("nightly") as night: night.run(publish, site=site)`. It needs no worker.

        Each job is done once in a cycle, whose id is the date it started (in `tz`) unless you give one. What fails is
        tried again on the spot, then diverted, and comes back in the next cycle. `wait` spends the seconds in between.
        A job_id with another input is another job in another cycle; in the same cycle it is refused and kept as a dead
        letter. `ignore` names arguments that do not count for that.

        People are told of a cycle that does not start as usual: `every="1d"` says how often it starts, else that is
        learned from at least four starts; None turns it off.
        """
        return Cycle(
            self._cycle_home,
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
        """List the cycles of scripts: last run, usual jobs, next start, and what is wrong."""
        return await cycle_standings(self.core.store, self.core.clock.now())

    async def cycle_findings(self) -> list[Finding]:
        """List the cycles that are missing, died or had fewer jobs than usual, each with a sentence and a command."""
        return await cycle_findings(self.core.store, self.core.clock.now())

    async def forget_cycle(self, name: str) -> bool:
        """Drop the records of a cycle that is no longer expected. False where there are none."""
        return await forget_cycle(self.core.store, name)


def outcome_of(error: BaseException | None) -> RunOutcome:
    """Say how a script left its cycle. `sys.exit(night.exit_code)` inside the block, 0 or 1, is an end like any other;
    with another status the script says that it could not go on."""
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return "interrupted"
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0, 1)):
        return "ended"
    return "died"


def _describe_interrupt(number: int, error: BaseException | None) -> str:
    """Say that a person ended the script, and how many jobs had had their turn."""
    return f"; interrupted after {number} job{'s' * (number != 1)}" if isinstance(error, KeyboardInterrupt) else ""


async def _log_failure(what: str, work: Coroutine[Any, Any, object]) -> None:
    """Log a failure instead of raising it: what goes on around a cycle's jobs does not make the cycle fail."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - logged
        log.warning("%s failed at the edge of a cycle: %r", what, error)
