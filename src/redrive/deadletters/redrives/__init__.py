"""`rd.redrives`: many dead letters back to their queues, as one durable run that survives the process that started it.

Every verb on many is such a run (`acts.py` starts them, too): its items are frozen when it begins, each commit moves
some of them and says so, and any worker carries it on. This is the view on the runs that bring jobs back to their
queues, which can have a canary and a rate, be paused, resumed and cancelled.
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
from redrive.deadletters import bulk_progress, orders
from redrive.deadletters.bulk_run import (
    PASS_RATE,
    REDRIVE,
    UNDO,
    Estimate,
    Flight,
    ItemPage,
    ItemStatus,
    ItemView,
    Plan,
    RedriveRun,
    RunItem,
    in_the_way,
    new_run,
    split_into_chunks,
    spread,
    view_item,
    with_errors,
)
from redrive.deadletters.filters import means_unknown
from redrive.deadletters.redrives import selection as choosing
from redrive.deadletters.redrives.steps import Documents, Loaded, Steps, flown
from redrive.deadletters.verbs import VERBS, Verb
from redrive.engine.trusted_time import time_for_destroying
from redrive.engine.worker_registry import list_living
from redrive.errors import CommitUnknown, InvalidInput, StoreBusy
from redrive.jobs.lookup import DEFAULT_WHO
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
"""How many chunks of items one page reads at most."""
IDLE_STEPS: Final = 100
"""So many steps in a row that change nothing: other processes hold these jobs."""


class How(NamedTuple):
    """How carefully and how fast a run goes, and the plan that it was started from."""

    canary: int = 0
    pass_rate: float = PASS_RATE
    rate: float | None = None
    token: str | None = None


PLAIN: Final = How()
Beside = Callable[[], Awaitable[Sequence[Put]]]
"""Reads what is written in the commit that begins a run."""


async def _nothing_beside() -> Sequence[Put]:
    return ()


class Redrives:
    """Bulk redrives: plan one, start it, follow it, stop it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._documents = Documents(core)
        self._steps = Steps(core, self._documents)

    # -- beginning

    async def plan(self, ids: Sequence[str] = (), *, all: bool = False, **filters: Any) -> Plan:
        """A dry run: what a redrive of these ids, or of what the filters say, would do. Changes nothing.

        Takes the filters of `rd.dead.list`. `token`, given to `start`, refuses to move anything but exactly these.
        """
        refused: Counter[str] = Counter()
        now, unknown_too = self._core.clock.now(), means_unknown(ids, filters)
        order = choosing.redriving(self._core, DEFAULT_WHO, None)

        def judge(job: Job) -> None:
            found = choosing.judge_job(order, job, now, unknown_too=unknown_too)
            if isinstance(found, str):
                refused[choosing.without_id(found, job)] += 1

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
            tuple(sorted(set(in_the_way(flights, selection.fingerprints).values()))),
            await choosing.warnings(self._core, selection),
        )

    async def in_the_way(self, fingerprints: Sequence[str]) -> builtins.list[str]:
        """The runs that still move one of these groups."""
        flights, _ = await self._documents.flights()
        return sorted(set(in_the_way(flights, fingerprints).values()))

    async def estimate(self, number: int, **filters: Any) -> Estimate | None:
        """What one more attempt of so many might cost, by the newest and the oldest of them: quick at any number."""
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
        """Freeze these dead letters and begin to move them back. Workers (their scheduler) carry it on.

        `canary` items go first, from every group in turn; the rest follows once `pass_rate` of them have succeeded,
        and waits for a person where they have not. `rate` is how many may move in a second. With the `token` of a plan,
        nothing is started unless exactly the planned dead letters are still the ones that match. Dead letters of which
        nobody knows whether they landed are skipped, unless they are named by id or with `because="outcome_unknown"`.
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
        """Freeze what a verb is about as a run, and leave the moving to `carry` or to workers.

        `some`: a filter that matches nothing is refused, and no other such run may move the same groups.
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
        run = new_run(
            new_id(now, random.getrandbits(74)), now, who=who, why=why, chosen=selection.chosen,
            groups=selection.rows(), total=len(selection), canary=how.canary, pass_rate=how.pass_rate, rate=how.rate,
            unknown_too=means_unknown(ids, filters), verb=verb.name, said=orders.words_to_keep(verb, words),
            words=words, filter=selection.filter,
        )  # fmt: skip
        held = tuple(selection.fingerprints) if some else ()
        return await self.launch(run, split_into_chunks(spread(selection.places(), how.canary)), held)

    async def launch(
        self,
        run: RedriveRun,
        chunks: Sequence[tuple[RunItem, ...]],
        held: tuple[str, ...] = (),
        beside: Beside = _nothing_beside,
    ) -> RedriveRun:
        """Write the items, then the run itself with what else begins with it, which is read anew for each try."""
        if not run.total:
            run = bulk_progress.advance(run, run.at)
            await self._keep(run, beside)
            return run
        flight = await self._take_flight(run.id, Flight(run.at, held))
        await self._documents.freeze(run.id, chunks)
        await self._launch(run, flight, beside)
        return run

    async def carry(self, id: str) -> RedriveRun:
        """Carries the run on until every item is taken. Other processes may take steps at the same time."""
        idle = 0
        while True:
            run = (await self._load(id)).run
            if run.over or run.state == "paused" or (run.brings_back and not run.left):
                return run
            before = (run.position, run.state, run.open)
            try:
                await self._steps.take(id, thorough=True)
            except CommitUnknown:
                log.warning("act %s: a step may or may not have been written; it is looked at again", id)
            run = (await self._load(id)).run
            idle = 0 if before != (run.position, run.state, run.open) else idle + 1
            if idle > IDLE_STEPS:
                raise StoreBusy(f"the jobs of act {id} keep changing; a worker carries it on, or try again")

    async def _take_flight(self, id: str, flight: Flight) -> Flight:
        async def decide() -> Proposal[Flight]:
            flights, version = await self._documents.flights()
            if taken := in_the_way(flights, flight.groups):
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
        """Write a run without items."""

        async def decide() -> Proposal[None]:
            return Proposal(f"act {run.id}", None, puts=[REDRIVE.put(run.id, run, 0), *await beside()], done="begun")

        await decide_and_commit(self._core.store, decide)

    async def _launch(self, run: RedriveRun, flight: Flight, beside: Beside) -> None:
        """From here on it exists."""
        frozen = msgspec.structs.replace(flight, frozen=True)

        async def decide() -> Proposal[None]:
            flights, version = await self._documents.flights()
            if flights.get(run.id) != flight:
                raise StoreBusy("starting took so long that it was taken for dead; nothing was moved, try again")
            puts = [REDRIVE.put(run.id, run, 0), *await beside(), flown(flights, version, run.id, frozen)]
            return Proposal(f"act {run.id}", None, puts=puts, done="begun")

        await decide_and_commit(self._core.store, decide)

    async def _forget_items(self, now: float) -> None:
        """Items of redrives that were over long ago go when a new one comes; the scorecards stay."""
        old = [
            run
            for run in await self._documents.latest(None)
            if run.brings_back
            and run.items_kept
            and run.ended_at is not None
            and run.ended_at < now - self._core.settings.retention
        ]
        for run in old[:FORGOTTEN_AT_ONCE]:
            await self.forget(run, whole=False)

    # -- looking

    async def get(self, id: str) -> RedriveRun:
        """By its id, or by a part of it that only one redrive has. Its numbers are those of the last step."""
        run = (await self._find(id)).run
        fingerprints = [group.fingerprint for group in run.by_group if group.fingerprint]
        known = await self._core.store.groups(fingerprints=fingerprints)
        return with_errors(run, {group.fingerprint: group.error for group in known})

    async def list(self, *, limit: int = 100) -> builtins.list[RedriveRun]:
        """The latest first."""
        return [run for run in await self._documents.latest(None) if run.brings_back][: check_limit(limit)]

    async def live(self) -> builtins.list[RedriveRun]:
        """Those that are not over, the latest first. A paused one waits for a person."""
        flights, _ = await self._documents.flights()
        loaded = [await self._documents.load(id) for id in sorted(flights, reverse=True)]
        runs = [found.run for found in loaded if found is not None]
        return [run for run in runs if run.brings_back or run.state == "paused"]

    async def of_group(self, fingerprint: str) -> RedriveRun | None:
        """The one that moves this group now, or stopped in the middle of it; only one may."""
        flights, _ = await self._documents.flights()
        id = in_the_way(flights, [fingerprint]).get(fingerprint)
        found = await self._documents.load(id) if id is not None else None
        return found.run if found is not None else None

    async def items(
        self,
        id: str,
        cursor: str | None = None,
        *,
        statuses: Collection[ItemStatus] = (),
        place: int | None = None,
        why: str | None = None,
    ) -> ItemPage:
        """What became of each, in the order in which they are taken, some hundreds at a time.

        Only those with one of these `statuses`, of the group at this `place` of the scorecard, for this reason, where
        that is given. One page then looks at some thousands of items, and may be empty before the end.
        """
        run, first = (await self._find(id)).run, _chunk_number(cursor)
        if not run.items_kept:
            return ItemPage([], None, kept=False)
        views: builtins.list[ItemView] = []
        number = first
        for number in range(first, min(first + CHUNKS_A_PAGE, len(run.open_in))):
            chunk = await self._documents.chunk(run.id, number)
            views += [
                view_item(run, item)
                for item in (chunk.items if chunk is not None else ())
                if (not statuses or item.status in statuses) and place in (None, item.group) and why in (None, item.why)
            ]
            if len(views) >= ITEMS_A_PAGE:
                break
        return ItemPage(views, str(number + 1) if number + 1 < len(run.open_in) else None)

    async def follow(self, id: str) -> AsyncIterator[RedriveRun]:
        """How it stands, again and again, carrying it on meanwhile, so that it moves without a worker, too.

        Ends when it is over or paused, and where the rest depends on jobs that no living worker would run.
        """
        found = (await self._find(id)).run.id
        while True:
            done = await self.advance()
            run = await self.get(found)
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
        """Whether a living worker knows any of its tasks."""
        tasks = {group.task for group in run.by_group}
        return any(tasks & worker.tasks for worker in await list_living(self._core.store, self._core.clock.now()))

    async def _find(self, id: str) -> Loaded:
        loaded = await self._documents.load(check_id("redrive", id))
        if loaded is None:
            found = the_only([known for known in await self._documents.ids() if id.lower() in known], id, "redrive")
            loaded = await self._documents.load(found) if found else None
        if loaded is None:
            raise InvalidInput(field="redrive", problem=f"there is no redrive {id!r}")
        return loaded

    async def _load(self, id: str) -> Loaded:
        """A run of any verb, by its whole id."""
        loaded = await self._documents.load(id)
        if loaded is None:
            raise InvalidInput(field="act", problem=f"there is no act {id!r}")
        return loaded

    async def acts(self) -> builtins.list[RedriveRun]:
        """Lists every run that is an act, the latest first."""
        return [run for run in await self.every() if run.verb != UNDO]

    async def every(self) -> builtins.list[RedriveRun]:
        """Runs of every verb, those that take others back, too."""
        return await self._documents.latest(None)

    async def run_of(self, act_id: str) -> Loaded | None:
        """The run of this act, if the act is one."""
        loaded = await self._documents.load(act_id)
        return loaded if loaded is not None and loaded.run.verb != UNDO else None

    async def chunks(self, run: RedriveRun) -> AsyncIterator[tuple[RunItem, ...]]:
        """The items of a run, some at a time."""
        for number in range(len(run.open_in) if run.items_kept else 0):
            chunk = await self._documents.chunk(run.id, number)
            if chunk is not None:
                yield chunk.items

    async def stop_for_undo(self, id: str, who: str) -> Loaded:
        """The run as it stays: a step that goes on finds it changed, and moves nothing more."""

        async def decide() -> Proposal[None]:
            loaded = await self._load(id)
            stopped = bulk_progress.stopped_for_undo(loaded.run, self._core.clock.now(), who)
            puts = [] if stopped is loaded.run else await self._documents.puts_of(stopped, loaded.version)
            return Proposal(f"act {id}", None, puts=puts, done="stopped")

        await decide_and_commit(self._core.store, decide)
        return await self._load(id)

    async def tell_undone(self, undo: RedriveRun) -> None:
        """Records in the undone run how many of its jobs were taken back, unless another process did so."""
        await self._documents.tell_undone(undo, self._core.clock.now())

    async def forget(self, run: RedriveRun, *, whole: bool) -> None:
        """Drop the items of a run that can no longer be taken back, and the run itself where that is old, too."""
        await self._documents.drop_items(run.id)
        loaded = await self._documents.load(run.id)
        if loaded is not None and whole:
            await self._documents.drop(run.id)
        elif loaded is not None:
            await self._documents.save(msgspec.structs.replace(loaded.run, items_kept=False), loaded.version)

    # -- steering

    async def pause(self, id: str, *, who: str = DEFAULT_WHO, why: str | None = None) -> RedriveRun:
        """Nothing more moves until it is resumed. What was moved goes on."""
        check_words(who, why)
        return await self._steer(id, "paused", lambda run, now: bulk_progress.paused(run, now, who, why))

    async def resume(
        self, id: str, *, canary: int | None = None, who: str = DEFAULT_WHO, why: str | None = None
    ) -> RedriveRun:
        """On where it stopped. After a canary that failed another one goes first; `canary=0` goes on without."""
        check_words(who, why)
        if canary is not None:
            check_range("canary", canary, 0, MOST_CANARY)
        return await self._steer(id, "resumed", lambda run, now: bulk_progress.resumed(run, now, who, why, canary))

    async def cancel(self, id: str, *, who: str = DEFAULT_WHO, why: str | None = None) -> RedriveRun:
        """For good. What was moved stays moved and is still counted as it ends; the rest stays dead."""
        check_words(who, why)
        return await self._steer(id, "cancelled", lambda run, now: bulk_progress.cancelled(run, now, who, why))

    async def _steer(self, id: str, what: str, decide: Callable[[RedriveRun, float], RedriveRun | None]) -> RedriveRun:
        async def propose() -> Proposal[RedriveRun]:
            loaded = await self._find(id)
            decided = decide(loaded.run, self._core.clock.now())
            if decided is None:
                now = f"redrive {loaded.run.id} is {loaded.run.state}"
                raise InvalidInput(field="redrive", problem=f"{now}: it cannot be {what}")
            puts = await self._documents.puts_of(decided, loaded.version)
            return Proposal(f"redrive {id}", decided, puts=puts, done=what)

        run, _ = await decide_and_commit(self._core.store, propose)
        return run

    # -- going on

    async def advance(self, *, thorough: bool = False) -> int:
        """One bounded step of every redrive that is not over; how much changed, 0 when there is nothing to do now.

        The scheduler of every worker calls it each second. `thorough` looks at all open items instead of some.
        """
        flights, _ = await self._documents.flights()
        done, failed = 0, None
        for id, flight in flights.items():
            try:
                if flight.frozen:
                    done += await self._steps.take(id, among=len(flights), thorough=thorough)
                else:
                    done += await self._steps.clear(id, flight)
            except Exception as error:  # noqa: BLE001 - told, and raised once the others had their turn
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
