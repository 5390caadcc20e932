"""`rd.redrives`: redrives many dead letters as one durable run that survives the process that started the run.

Every verb on many is such a run (`acts.py` starts runs, too): the items are frozen when the run begins, each commit
moves some items and records the result, and any worker continues the run. `rd.redrives` lists the runs that bring jobs
back to their queues; such a run can have a canary and a rate, be paused, resumed and cancelled.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from redrive.core.checks import check_id, check_limit, check_range, check_texts, check_words, is_number, the_only
from redrive.core.commit import Proposal, decide_and_commit
from redrive.core.job import Job, new_id
from redrive.core.store import Put
from redrive.deadletters import bulk_progress, bulk_run, orders
from redrive.deadletters.bulk_run import PASS_RATE, Estimate, ItemPage, ItemStatus, Plan, RedriveRun, RunItem
from redrive.deadletters.filters import means_unknown
from redrive.deadletters.redrives import selection as choosing
from redrive.deadletters.redrives.steps import Documents, Loaded, Steps, flown
from redrive.deadletters.verbs import VERBS, Verb
from redrive.engine.trusted_time import time_for_destroying
from redrive.engine.worker_registry import list_living
from redrive.errors import CommitUnknown, InvalidInput, StoreBusy
from redrive.jobs.core import DEFAULT_WHO
from redrive.jobs.wait_for_job import FOLLOW_SECONDS

if TYPE_CHECKING:
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.redrives")
FLIGHTS: Final = "the list of acts that are under way"
MOST_CANARY: Final = 10_000
MOST_RATE: Final = 1_000_000.0
FORGOTTEN_AT_ONCE: Final = 10
ITEMS_A_PAGE: Final = 100
CHUNKS_A_PAGE: Final = 25
"""Most chunks of items that one page reads."""
IDLE_STEPS: Final = 100
"""Number of steps in a row without a change after which `carry` gives up: other processes keep changing the jobs."""


class How(NamedTuple):
    """Canary and rate of a run, and the token of the plan."""

    canary: int = 0
    pass_rate: float = PASS_RATE
    rate: float | None = None
    token: str | None = None


PLAIN: Final = How()
Beside = Callable[[], Awaitable[Sequence[Put]]]
"""Makes further puts for the commit that begins a run."""


async def _nothing_beside() -> Sequence[Put]:
    return ()


class Redrives:
    """Plans, starts, follows and stops bulk redrives."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._documents = Documents(core)
        self._steps = Steps(core, self._documents)

    # -- starting

    async def plan(self, ids: Sequence[str] = (), *, all: bool = False, **filters: Any) -> Plan:
        """Plans a redrive of these ids, or of the dead letters that match the filters. Changes nothing.

        Takes the filters of `rd.dead.list`. With the plan's `token`, `start` moves exactly these dead letters or none.
        """
        refused: Counter[str] = Counter()
        now, unknown_too = self._core.clock.now(), means_unknown(ids, filters)
        order = choosing.redriving(self._core, DEFAULT_WHO, None)

        def judge(job: Job) -> None:
            judged = choosing.judge_job(order, job, now, unknown_too=unknown_too)
            if isinstance(judged, str):
                refused[choosing.without_id(judged, job)] += 1

        selection = await choosing.select(self._core, ids, filters, all=all, judge=judge)
        flights, _ = await self._documents.flights()
        moving = len(selection) - refused.total()
        return Plan(
            len(selection),
            selection.chosen,
            selection.rows(),
            dict(selection.queues.most_common()),
            bulk_progress.reasons(refused.elements()),
            await choosing.estimate(self._core, builtins.list(selection.group_of), moving),
            selection.token,
            tuple(sorted(set(bulk_run.in_the_way(flights, selection.fingerprints).values()))),
            await choosing.warnings(self._core, selection),
        )

    async def in_the_way(self, fingerprints: Sequence[str]) -> builtins.list[str]:
        """Lists the runs that still move one of these groups."""
        flights, _ = await self._documents.flights()
        return sorted(set(bulk_run.in_the_way(flights, fingerprints).values()))

    async def estimate(self, number: int, **filters: Any) -> Estimate | None:
        """Estimates the cost of `number` attempts from the newest and oldest dead letters: quick at any number."""
        return await choosing.estimate(self._core, await choosing.at_both_ends(self._core, filters), number)

    async def start(
        self,
        ids: Sequence[str] = (),
        *,
        canary: int = 0,
        pass_rate: float = PASS_RATE,
        rate: float | None = None,
        who: str = DEFAULT_WHO,
        why: str | None = None,
        token: str | None = None,
        all: bool = False,
        **filters: Any,
    ) -> RedriveRun:
        """Freezes these dead letters and begins to redrive them. The scheduler of any worker continues the run.

        `canary` items go first, from every group in turn; the rest follows once a share of `pass_rate` has succeeded,
        and otherwise waits for a person. `rate` is the most moves per second. With the `token` of a plan, nothing
        starts unless exactly the planned dead letters still match. Dead letters with an unknown outcome are skipped,
        unless they are named by id or with `because="outcome_unknown"`.
        """
        how = How(canary, pass_rate, rate, token)
        return await self.begin(VERBS["redrive"], {}, ids, filters, all=all, who=who, why=why, how=how, some=True)

    async def begin(
        self,
        verb: Verb,
        words: Mapping[str, Any],
        ids: Sequence[str],
        filters: Mapping[str, Any],
        *,
        all: bool,
        who: str,
        why: str | None,
        how: How = PLAIN,
        some: bool = False,
    ) -> RedriveRun:
        """Freezes the jobs of a verb as a run, and leaves the moves to `carry` or to workers.

        `some`: refuses a filter that matches nothing, and lets no other such run move the same groups.
        """
        _check_how(how.canary, how.pass_rate, how.rate)
        check_words(who, why)
        check_texts(token=how.token)
        selection = await choosing.select(self._core, ids, filters, all=all, verb=verb.name)
        if some and not len(selection):
            raise InvalidInput(field="filter", problem=f"no dead letters match {selection.chosen}")
        if how.token is not None and not await choosing.fits(self._core, selection, how.token):
            raise InvalidInput(field="token", problem="the plan was for other dead letters than match now; plan again")
        now = self._core.clock.now()
        await self._forget_items(await time_for_destroying(self._core.store, self._core.clock))
        run = bulk_run.new_run(
            new_id(now, random.getrandbits(74)), now, who=who, why=why, chosen=selection.chosen,
            groups=selection.rows(), total=len(selection), canary=how.canary, pass_rate=how.pass_rate, rate=how.rate,
            unknown_too=means_unknown(ids, filters), verb=verb.name, said=orders.words_to_keep(verb, words),
            words=words, filter=selection.filter,
        )  # fmt: skip
        held = tuple(selection.fingerprints) if some else ()
        return await self.launch(run, bulk_run.split_into_chunks(bulk_run.spread(selection.places(), how.canary)), held)

    async def launch(
        self,
        run: RedriveRun,
        chunks: Sequence[tuple[RunItem, ...]],
        held: tuple[str, ...] = (),
        beside: Beside = _nothing_beside,
    ) -> RedriveRun:
        """Writes the items, then the run together with the puts of `beside`, which are made again for each try."""
        if not run.total:
            run = bulk_progress.advance(run, run.at)
            await self._keep(run, beside)
            return run
        flight = await self._take_flight(run.id, bulk_run.Flight(run.at, held))
        await self._documents.freeze(run.id, chunks)
        await self._launch(run, flight, beside)
        return run

    async def carry(self, id: str) -> RedriveRun:
        """Continues the run until every item is taken. Other processes may take steps at the same time."""
        idle = 0
        while True:
            run = (await self._load(id)).value
            if run.over or run.state == "paused" or (run.brings_back and not run.left):
                return run
            before = (run.position, run.state, run.open)
            try:
                await self._steps.take(id, thorough=True)
            except CommitUnknown:
                log.warning("act %s: a step may or may not have been written; it is looked at again", id)
            run = (await self._load(id)).value
            idle = 0 if before != (run.position, run.state, run.open) else idle + 1
            if idle > IDLE_STEPS:
                raise StoreBusy(f"the jobs of act {id} keep changing; a worker carries it on, or try again")

    async def _take_flight(self, id: str, flight: bulk_run.Flight) -> bulk_run.Flight:
        async def decide() -> Proposal[bulk_run.Flight]:
            flights, version = await self._documents.flights()
            if taken := bulk_run.in_the_way(flights, flight.groups):
                group, other = min(taken.items())
                raise InvalidInput(
                    field="redrive",
                    problem=f"redrive {other} is still moving group {group[:8]}; wait for it, or cancel it; "
                    "a paused one waits for you",
                )
            return Proposal(FLIGHTS, flight, puts=[flown(flights, version, id, flight)])

        await decide_and_commit(self._core.store, decide)
        return flight

    async def _keep(self, run: RedriveRun, beside: Beside) -> None:
        """Writes a run without items."""

        async def decide() -> Proposal[None]:
            puts = [bulk_run.REDRIVE.put(run.id, run, 0), *await beside()]
            return Proposal(f"act {run.id}", None, puts=puts, done="begun")

        await decide_and_commit(self._core.store, decide)

    async def _launch(self, run: RedriveRun, flight: bulk_run.Flight, beside: Beside) -> None:
        """Writes the run and marks its flight as frozen: from this commit on the run exists."""
        frozen = msgspec.structs.replace(flight, frozen=True)

        async def decide() -> Proposal[None]:
            flights, version = await self._documents.flights()
            if flights.get(run.id) != flight:
                raise StoreBusy("starting took so long that it was taken for dead; nothing was moved, try again")
            puts = [bulk_run.REDRIVE.put(run.id, run, 0), *await beside(), flown(flights, version, run.id, frozen)]
            return Proposal(f"act {run.id}", None, puts=puts, done="begun")

        await decide_and_commit(self._core.store, decide)

    async def _forget_items(self, now: float) -> None:
        """Drops the items of redrives that ended long ago, when a new one starts; the scorecards stay."""
        old = [
            run
            for run in await self._documents.latest()
            if run.brings_back
            and run.items_kept
            and run.ended_at is not None
            and run.ended_at < now - self._core.settings.retention
        ]
        for run in old[:FORGOTTEN_AT_ONCE]:
            await self.forget(run, whole=False)

    # -- reading

    async def get(self, id: str) -> RedriveRun:
        """Reads a redrive by its id, or by a unique part of the id. The numbers are those of the last step."""
        run = (await self._find(id)).value
        fingerprints = [group.fingerprint for group in run.by_group if group.fingerprint]
        known = await self._core.store.groups(fingerprints=fingerprints)
        return bulk_run.with_errors(run, {group.fingerprint: group.error for group in known})

    async def list(self, *, limit: int = 100) -> builtins.list[RedriveRun]:
        """Lists redrives, the latest first."""
        return [run for run in await self._documents.latest() if run.brings_back][: check_limit(limit)]

    async def live(self) -> builtins.list[RedriveRun]:
        """Lists redrives that are not over, the latest first, and paused runs of any verb, which wait for a person."""
        flights, _ = await self._documents.flights()
        loaded = [await self._documents.load(id) for id in sorted(flights, reverse=True)]
        runs = [kept.value for kept in loaded if kept is not None]
        return [run for run in runs if run.brings_back or run.state == "paused"]

    async def of_group(self, fingerprint: str) -> RedriveRun | None:
        """Finds the run that reserves this group, moving or paused; only one run may."""
        flights, _ = await self._documents.flights()
        id = bulk_run.in_the_way(flights, [fingerprint]).get(fingerprint)
        kept = await self._documents.load(id) if id is not None else None
        return kept.value if kept is not None else None

    async def items(
        self,
        id: str,
        cursor: str | None = None,
        *,
        statuses: Collection[ItemStatus] = (),
        place: int | None = None,
        why: str | None = None,
    ) -> ItemPage:
        """Lists items with their results, in the order in which the run takes them, in pages of some hundreds.

        Filters: one of these `statuses`, the group at this `place` of the scorecard, the reason `why`. One page then
        reads some thousands of items, and may be empty before the end.
        """
        run, first = (await self._find(id)).value, _chunk_number(cursor)
        if not run.items_kept:
            return ItemPage([], None, kept=False)
        views: builtins.list[bulk_run.ItemView] = []
        number = first
        for number in range(first, min(first + CHUNKS_A_PAGE, len(run.open_in))):
            chunk = await self._documents.chunk(run.id, number)
            views += [
                bulk_run.view_item(run, item)
                for item in (chunk.value if chunk is not None else ())
                if (not statuses or item.status in statuses) and place in (None, item.group) and why in (None, item.why)
            ]
            if len(views) >= ITEMS_A_PAGE:
                break
        return ItemPage(views, str(number + 1) if number + 1 < len(run.open_in) else None)

    async def follow(self, id: str) -> AsyncIterator[RedriveRun]:
        """Yields the run after each step, and takes the steps itself, so that the run moves without a worker, too.

        Ends when the run is over or paused, or when the rest depends on jobs that no living worker would run.
        """
        whole_id = (await self._find(id)).value.id
        while True:
            done = await self.advance()
            run = await self.get(whole_id)
            yield run
            if (
                run.over
                or run.state == "paused"
                or not (done or bulk_progress.waits_for_time(run) or await self._is_run(run))
            ):
                return
            if not done:
                await asyncio.sleep(FOLLOW_SECONDS)

    async def _is_run(self, run: RedriveRun) -> bool:
        """Whether a living worker knows any task of the run."""
        tasks = {group.task for group in run.by_group}
        return any(tasks & worker.tasks for worker in await list_living(self._core.store, self._core.clock.now()))

    async def _find(self, id: str) -> Loaded:
        loaded = await self._documents.load(check_id("redrive", id))
        if loaded is None:
            whole_id = the_only([known for known in await self._documents.ids() if id.lower() in known], id, "redrive")
            loaded = await self._documents.load(whole_id) if whole_id else None
        if loaded is None:
            raise InvalidInput(field="redrive", problem=f"there is no redrive {id!r}")
        return loaded

    async def _load(self, id: str) -> Loaded:
        """Reads a run of any verb, by its whole id."""
        loaded = await self._documents.load(id)
        if loaded is None:
            raise InvalidInput(field="act", problem=f"there is no act {id!r}")
        return loaded

    async def acts(self) -> builtins.list[RedriveRun]:
        """Lists every run that is an act, the latest first."""
        return [run for run in await self.every() if run.verb != bulk_run.UNDO]

    async def every(self) -> builtins.list[RedriveRun]:
        """Lists runs of every verb, undo runs included."""
        return await self._documents.latest()

    async def run_of(self, act_id: str) -> Loaded | None:
        """Reads the run of this act; None if the act is not a run."""
        loaded = await self._documents.load(act_id)
        return loaded if loaded is not None and loaded.value.verb != bulk_run.UNDO else None

    async def chunks(self, run: RedriveRun) -> AsyncIterator[tuple[RunItem, ...]]:
        """Yields the items of a run, chunk by chunk."""
        for number in range(len(run.open_in) if run.items_kept else 0):
            chunk = await self._documents.chunk(run.id, number)
            if chunk is not None:
                yield chunk.value

    async def stop_for_undo(self, id: str, who: str) -> Loaded:
        """Stops the run for an undo and returns it: a concurrent step finds the run changed, and moves nothing more."""

        async def decide() -> Proposal[None]:
            loaded = await self._load(id)
            stopped = bulk_progress.stopped_for_undo(loaded.value, self._core.clock.now(), who)
            puts = [] if stopped is loaded.value else await self._documents.puts_of(stopped, loaded.version)
            return Proposal(f"act {id}", None, puts=puts, done="stopped")

        await decide_and_commit(self._core.store, decide)
        return await self._load(id)

    async def tell_undone(self, undo: RedriveRun) -> None:
        """Records in the undone run how many of its jobs were taken back, unless another process did so."""
        await self._documents.tell_undone(undo, self._core.clock.now())

    async def forget(self, run: RedriveRun, *, whole: bool) -> None:
        """Drops the items of a run that can no longer be taken back, and with `whole` the run itself."""
        await self._documents.drop_items(run.id)
        loaded = await self._documents.load(run.id)
        if loaded is not None and whole:
            await self._documents.drop(run.id)
        elif loaded is not None:
            await self._documents.save(msgspec.structs.replace(loaded.value, items_kept=False), loaded.version)

    # -- pause, resume, cancel

    async def pause(self, id: str, *, who: str = DEFAULT_WHO, why: str | None = None) -> RedriveRun:
        """Pauses the redrive: no more jobs move until it is resumed. Moved jobs continue."""
        check_words(who, why)
        return await self._steer(id, "paused", lambda run, now: bulk_progress.paused(run, now, who, why))

    async def resume(
        self, id: str, *, canary: int | None = None, who: str = DEFAULT_WHO, why: str | None = None
    ) -> RedriveRun:
        """Resumes the redrive where it stopped. After a failed canary another one goes first; `canary=0` skips it."""
        check_words(who, why)
        if canary is not None:
            check_range("canary", canary, 0, MOST_CANARY)
        return await self._steer(id, "resumed", lambda run, now: bulk_progress.resumed(run, now, who, why, canary))

    async def cancel(self, id: str, *, who: str = DEFAULT_WHO, why: str | None = None) -> RedriveRun:
        """Cancels the redrive for good. Moved jobs stay moved and are counted when they end; the rest stays dead."""
        check_words(who, why)
        return await self._steer(id, "cancelled", lambda run, now: bulk_progress.cancelled(run, now, who, why))

    async def _steer(self, id: str, what: str, decide: Callable[[RedriveRun, float], RedriveRun | None]) -> RedriveRun:
        async def propose() -> Proposal[RedriveRun]:
            loaded = await self._find(id)
            decided = decide(loaded.value, self._core.clock.now())
            if decided is None:
                now = f"redrive {loaded.value.id} is {loaded.value.state}"
                raise InvalidInput(field="redrive", problem=f"{now}: it cannot be {what}")
            puts = await self._documents.puts_of(decided, loaded.version)
            return Proposal(f"redrive {id}", decided, puts=puts, done=what)

        run, _ = await decide_and_commit(self._core.store, propose)
        return run

    # -- steps

    async def advance(self, *, thorough: bool = False) -> int:
        """Takes one bounded step of every run that is not over; returns the number of changes, 0 if there were none.

        The scheduler of every worker calls `advance` each second. `thorough` checks all open items instead of some.
        """
        flights, _ = await self._documents.flights()
        done, failed = 0, None
        for id, flight in flights.items():
            try:
                if flight.frozen:
                    done += await self._steps.take(id, among=len(flights), thorough=thorough)
                else:
                    done += await self._steps.clear(id, flight)
            except Exception as error:  # noqa: BLE001 - logged, and raised after the steps of the others
                log.warning("redrive %s: this step failed and will be taken again: %s", id, error)
                failed = failed or error
        if failed is not None:
            raise failed
        return done


def _chunk_number(cursor: object) -> int:
    if cursor is None:
        return 0
    if not isinstance(cursor, str) or not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 6:
        raise InvalidInput(field="cursor", problem="not a cursor that a listing gave")
    return int(cursor)


def _check_how(canary: int, pass_rate: float, rate: float | None) -> None:
    check_range("canary", canary, 0, MOST_CANARY)
    if not is_number(pass_rate) or not 0 < pass_rate <= 1:
        raise InvalidInput(field="pass_rate", problem=f"{pass_rate!r} is not above 0 and at most 1")
    if rate is not None and (not is_number(rate) or not 0 < rate <= MOST_RATE):
        raise InvalidInput(field="rate", problem=f"{rate!r} is not above 0 and at most {MOST_RATE:,.0f} a second")
