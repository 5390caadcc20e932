"""Redrives dead letters whose cause may be gone, as scheduled by `comes_back_at`. A duty of the scheduler.

One dead letter of a group goes first. If that one succeeds, or anything else shows that the group's downstream answers
again, the others follow at a bounded rate. If that one fails for the same reason, the others wait for their next time.
Each return is an act of "redrive" and can be taken back. retries/comebacks.py decides who may return, and when.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from redrive.core import lifecycle
from redrive.core.budget import find_overspent
from redrive.core.change import Change, decode, fields_of_next_run, merge, read_names
from redrive.core.commit import commit_each, try_commit
from redrive.core.documents import Kept
from redrive.core.effects import EffectRecord
from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition
from redrive.core.policy import Policy
from redrive.core.store import Filter, Lesson, Put, Returning
from redrive.deadletters.acts import Acts
from redrive.deadletters.orders import SIZE_WITH_DOCUMENTS, Order
from redrive.deadletters.verbs import Decided
from redrive.engine.consents import Consents
from redrive.engine.duty_lease import take_duty
from redrive.engine.effects import read_effects
from redrive.engine.inputs import preflight
from redrive.engine.paging import read_pages
from redrive.engine.queue_pauses import read_paused_queues
from redrive.engine.registry import Handler
from redrive.errors import IllegalMove
from redrive.retries import comebacks
from redrive.retries.breaker import BREAKER, Breaker, name_of_key, verdict
from redrive.retries.comebacks import ANSWERS, BY_ITSELF, FIRST, Answers, First
from redrive.retries.decision import Abilities, Case
from redrive.retries.preflight import NotReady
from redrive.retries.remedies import OTHERWISE, WAYS, another_rung, change_name

if TYPE_CHECKING:
    from redrive.engine.breakers import Breakers
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.comebacks")
DUTY: Final = "comebacks"
"""Name of the duty that returns a task's dead letters."""
PAGE: Final = 200
LOOK_AGAIN: Final = 5.0
"""Seconds until the next check if nothing is due."""
FORGOTTEN_AFTER: Final = 600.0
"""Seconds after which followers that may not return yet, as in a paused queue, wait for their own time again."""
FAR: Final = 1e15
INSTANT: Final = 0.001
"""Precision of the store's times: a job that died in the moment of the success counts as dead before it."""
LATER: Final = "later"
"""Verdict: the dead letter waits, because its queue is paused or its downstream is known to be down."""


class Go(NamedTuple):
    """Verdict: the dead letter comes back now, with these changes."""

    changes: tuple[Change, ...] = ()


class ForPerson(NamedTuple):
    """Verdict: only a person may bring the dead letter back."""

    why: str


Verdict = Go | ForPerson | str


class Comebacks:
    """Runs the rounds of comebacks. Safe in several processes: for each task a lease document names one process."""

    def __init__(self, core: Core, acts: Acts) -> None:
        self._core = core
        self._acts = acts
        self._next_look = 0.0
        self._paused: frozenset[str] = frozenset()
        self._breakers: Mapping[str, Breaker] = {}
        self._asked: set[str | None] = set()
        """Downstreams that a first dead letter is testing, for all groups that wait for the same downstream."""

    async def work(self, breakers: Breakers | None = None, *, thorough: bool = True) -> int:
        """Brings back the dead letters that are due; returns their number. Workers call it automatically.

        `breakers` learns which downstreams are waited for. Unless `thorough`, skips the check if none was due lately.
        """
        now, store = self._core.clock.now(), self._core.store
        if not thorough and now < self._next_look <= now + LOOK_AGAIN:
            return 0
        groups, firsts, answers = await store.returning(now), await FIRST.all(store), await ANSWERS.all(store)
        if breakers is not None:
            breakers.watched = frozenset(group.held_for for group in groups if group.held_for)
        if not firsts and not answers and not any(group.due for group in groups):
            self._next_look = min([now + LOOK_AGAIN, *(group.next_at for group in groups)])
            return 0
        self._next_look = now
        return await self._round(groups, firsts)

    async def _round(self, groups: Sequence[Returning], firsts: Sequence[Kept[First]]) -> int:
        self._paused = frozenset(await read_paused_queues(self._core.store))
        self._breakers = {kept.key: kept.value for kept in await BREAKER.all(self._core.store)}
        under_way = {kept.key: kept.value for kept in firsts if await self._under_way(kept)}
        now = self._core.clock.now()
        self._asked = {comebacks.asks_for(first, now) for first in under_way.values()} - {None}
        moved = 0
        answers = await ANSWERS.all(self._core.store)
        for kept in answers:
            moved += await self._follow(kept)
        answering = {kept.key for kept in answers}
        ours = [group for group in groups if group.due and await self._ours(group)]
        for fingerprint, waits_for in dict.fromkeys((group.fingerprint, group.held_for) for group in ours):
            if fingerprint is None:
                moved += await self._each_alone()
            elif waits_for not in answering and comebacks.group_key(fingerprint, waits_for) not in under_way:
                moved += await self._send_first(fingerprint, waits_for)
        return moved

    async def _ours(self, group: Returning) -> bool:
        """Whether this process brings back the group's task: one process with the task's code at a time."""
        if group.task not in self._core.registry.handlers or group.queue in self._paused:
            return False
        return await take_duty(self._core.store, self._core.clock, f"{DUTY}/{group.task}")

    # -- the first of a group

    async def _send_first(self, fingerprint: str, waits_for: str | None) -> int:
        """Brings back the oldest dead letter that may go. Its document is in the same commit: at most one per group."""
        async for job in self._due(fingerprint, waits_for):
            asked = waits_for is not None and waits_for in self._asked and job.category == "transient"
            judged = LATER if asked else await self._verdict(job)
            if isinstance(judged, ForPerson):
                await self._leave_to_a_person(job, judged.why)
            elif isinstance(judged, Go):
                first = First(job.id, self._core.clock.now(), fingerprint, waits_for, job.category)
                self._asked.add(comebacks.asks_for(first, first.at))
                return await self._bring_back(
                    {job.id: judged}, (FIRST.put(comebacks.group_key(fingerprint, waits_for), first, 0),)
                )
        return 0

    async def _each_alone(self) -> int:
        """Brings back the dead letters that are due and have no group."""
        going = {}
        async for job in self._due(None, None):
            judged = await self._verdict(job) if job.fingerprint is None else LATER
            if isinstance(judged, ForPerson):
                await self._leave_to_a_person(job, judged.why)
            elif isinstance(judged, Go):
                going[job.id] = judged
        return await self._bring_back(going) if going else 0

    async def _under_way(self, kept: Kept[First]) -> bool:
        """Whether the first job of a group is still trying. If that job has ended, applies its result to the others."""
        first = kept.value
        jobs = await self._core.store.get([first.job_id])
        job = jobs[0] if jobs else None
        if job is not None and (job.state in (State.waiting, State.running) or job.because == "circuit_open"):
            return True
        puts = [FIRST.drop(kept.key, kept.version)]
        if job is not None and job.state is State.done and first.waits_for is not None:
            puts.append(self._answering(first.waits_for, job))
        elif job is not None and job.state is State.dead and comebacks.still_down(job, first):
            await self._pass_over(first, job)
        await try_commit(self._core.store, puts=puts, what=f"job {first.job_id} went first and ended")
        return False

    def _answering(self, key: str, job: Job) -> Put:
        now = self._core.clock.now()
        return ANSWERS.put(key, Answers(now, now, self._core.registry.policy_for(job).breaker_release or 1.0))

    async def _pass_over(self, first: First, failed: Job) -> None:
        """Moves the other dead letters that are due to their next time. After the last time, a person decides about the
        dead letters of the failed job's group; those of other groups, of which none was tried, try themselves."""
        why = f"job {failed.short_id} {{}} went first and failed again: {failed.error_class}"
        within = comebacks.window_of_alike(self._core.registry.policy_for(failed), failed)
        moves = [
            move
            async for job in self._due(None if first.waits_for else first.fingerprint, first.waits_for, within)
            if job.id != failed.id
            and job.state is State.dead
            and comebacks.fails_alike(job, failed, first)
            and (move := self._make_passing_over(job, why, first)) is not None
        ]
        for start in range(0, len(moves), PAGE):
            await self._apply(moves[start : start + PAGE])

    def _make_passing_over(self, job: Job, why: str, first: First) -> Transition | None:
        now, own = self._core.clock.now(), job.fingerprint == first.fingerprint
        why = why.format("of its group" if own else f"that calls {name_of_key(first.waits_for or '')}, too,")
        following = comebacks.next_time(job, self._core.registry.policy_for(job), now, self._core.clock.chance())
        if following is None and not own:
            return None
        if following is None:
            return lifecycle.rerouted(
                job, now, lane="manual", who=BY_ITSELF, why=f"{why}; no time is left in its table"
            )
        place, at = following
        return lifecycle.passed_over(job, now, comebacks=place, comes_back_at=at, who=BY_ITSELF, why=why)

    # -- followers

    async def _follow(self, kept: Kept[Answers]) -> int:
        """Brings back jobs that died before their downstream answered again, as many as the rate allows by now."""
        now, store = self._core.clock.now(), self._core.store
        number, after = comebacks.release_followers(kept.value, now)
        if number < 1:
            return 0
        chosen = Filter(states=(State.dead,), held_for=kept.key, returns_by=FAR, until=kept.value.at + INSTANT)
        page = await store.find(chosen, limit=PAGE, oldest=True)
        going, held_back = await self._choose_followers([job.id for job in page.jobs], number, sure=kept.value.sure)
        idle = now - kept.value.at > FORGOTTEN_AFTER or not kept.value.sure
        over = not going and (idle or not (held_back or page.cursor))
        put = ANSWERS.drop(kept.key, kept.version) if over else ANSWERS.put(kept.key, after, kept.version)
        noted = await try_commit(store, puts=[put], what=f"{len(going)} jobs follow that wait for {kept.key}")
        return await self._bring_back(going) if going and noted is not None else 0

    async def _choose_followers(self, ids: Sequence[str], number: int, *, sure: bool) -> tuple[dict[str, Go], bool]:
        """Selects up to `number` jobs that may return now, and says whether any other is held back for a while only.

        A job that must wait does not hold back the others.
        """
        going: dict[str, Go] = {}
        held_back = False
        for start in range(0, len(ids), number):
            for job in await self._core.store.get(ids[start : start + number]):
                policy, now = self._core.registry.policy_for(job), self._core.clock.now()
                if len(going) == number or not comebacks.may_follow(job, policy, now, sure=sure):
                    continue
                judged = await self._verdict(job)
                held_back |= judged == LATER
                if isinstance(judged, ForPerson):
                    await self._leave_to_a_person(job, judged.why)
                elif isinstance(judged, Go):
                    going[job.id] = judged
            if len(going) == number:
                break
        return going, held_back

    # -- one dead letter

    async def _due(self, fingerprint: str | None, waits_for: str | None, within: float = 0.0) -> AsyncIterator[Job]:
        """Yields the dead letters of a group that are due within that time, with histories, the oldest first."""
        by = self._core.clock.now() + within
        chosen = Filter(states=(State.dead,), fingerprint=fingerprint, held_for=waits_for, returns_by=by)
        async for page in read_pages(self._core.store, chosen, PAGE, oldest=True):
            for job in await self._core.store.get([job.id for job in page]):
                yield job

    async def _verdict(self, job: Job) -> Verdict:
        """Decides whether the job comes back now. A process without the task's code leaves the job to another."""
        handler = self._core.registry.handlers.get(job.task)
        if handler is None or job.state is not State.dead or job.queue in self._paused or self._is_parked(job):
            return LATER
        why = await self._find_obstacle(job, handler)
        if why is not None:
            return ForPerson(why)
        changes = await self._changes(job, handler) if job.category == "conditional" else ()
        if changes is None:
            return ForPerson("nothing is left that could be changed")
        now = self._core.clock.now()
        back = self._make_return(job, now, changes).after(job.version)
        ready = preflight(back, handler, self._core.registry, now)
        return ForPerson(f"it would die again: {ready.why}") if isinstance(ready, NotReady) else Go(changes)

    def _is_parked(self, job: Job) -> bool:
        breaker = self._breakers.get(job.held_for or "")
        return breaker is not None and verdict(breaker, job.id, self._core.clock.now()) == "park"

    async def _find_obstacle(self, job: Job, handler: Handler) -> str | None:
        """Explains why only a person may bring the job back; None if an automatic return is allowed."""
        core, now = self._core, self._core.clock.now()
        effects = [] if handler.idempotent else await read_effects(core.store, job.id)
        if (why := hands_off(job, effects)) is not None:
            return why
        if handler.consent and not await Consents(core.store, core.clock).covers(job, handler):
            return "the consent that it needs has run out"
        budget = job.readable_options.budget
        over = find_overspent(budget, job, None, now) if budget is not None else None
        return f"its budget is used up: {over}" if over is not None else None

    async def _changes(self, job: Job, handler: Handler) -> tuple[Change, ...] | None:
        """Chooses changes that helped the group before, else changes not tried yet; None if none is left."""
        registry = self._core.registry
        lessons = await self._core.store.lessons(job.fingerprint) if job.fingerprint else []
        abilities = handler.abilities(registry.fleet, registry.count)
        return next_changes(job, lessons, abilities, registry.policy_for(job), self._core.clock.now())

    # -- moves

    async def _bring_back(self, going: Mapping[str, Go], puts: tuple[Put, ...] = ()) -> int:
        """Redrives these jobs as acts, up to 80 jobs in one."""

        def arrow(job: Job, now: float) -> Decided:
            if job.comes_back_at is None:
                raise IllegalMove(f"job {job.short_id} does not come back by itself any more", job_id=job.id)
            return Decided(self._make_return(job, now, going[job.id].changes), puts)

        why = "its time has come" if puts else "what it calls answers again"
        order = Order("redrive", BY_ITSELF, why, arrow, size=SIZE_WITH_DOCUMENTS, recalls=False)
        return await self._acts.together(order, list(going))

    def _make_return(self, job: Job, now: float, changes: tuple[Change, ...]) -> Transition:
        policy = self._core.registry.policy_for(job)
        most = max(len(comebacks.times_for(policy, job.category)), job.comebacks + 1)
        why = f"It comes back by itself (comeback {job.comebacks + 1} of {most})"
        changed = fields_of_next_run(merge(decode(job.changes_json), changes), *read_names(changes)) if changes else {}
        tries = comebacks.tries_for(job.category)
        return lifecycle.came_back(job, now, tries=tries, who=BY_ITSELF, why=f"{why}.", changed=changed)

    async def _leave_to_a_person(self, job: Job, why: str) -> None:
        now = self._core.clock.now()
        why = comebacks.sentence(f"It does not come back by itself: {why}")
        await self._apply([lifecycle.rerouted(job, now, lane="manual", who=BY_ITSELF, why=why)])

    async def _apply(self, moves: Sequence[Transition]) -> None:
        for move in await commit_each(self._core.store, moves):
            log.warning("job %s (%s): %s", move.job.short_id, move.job.task, move.why)


# ---- what a comeback changes

_CHANGES: Final = frozenset(
    {"compress_context", "add_instruction", "add_constraint", "simplify_task", "set_model", "set_agent", "edit"}
)
WORKED_HALF: Final = 2


def best_known(lessons: Iterable[Lesson]) -> list[Lesson]:
    """Lists strategies that worked at least half of the time, best first: one lucky try does not beat eight of nine."""
    good = [one for one in lessons if one.worked and WORKED_HALF * one.worked >= one.worked + one.failed]
    return sorted(good, key=lambda one: -(one.worked + 1) / (one.worked + one.failed + 2))


def next_changes(
    job: Job, lessons: Sequence[Lesson], abilities: Abilities, policy: Policy, now: float
) -> tuple[Change, ...] | None:
    """Chooses the changes for the next run of a job that failed for lack of a change; None if none is left.

    First the changes that worked for the same group, then the next rung that was not tried.
    """
    last = next((attempt for attempt in reversed(job.history) if attempt.failure and attempt.cause), None)
    if last is None or last.failure is None or last.cause is None:
        return None
    case = Case(job, last.failure, last.cause, policy, now, abilities=abilities)
    for lesson in best_known(lessons):
        if (learned := _as_learned(case, lesson)) is not None:
            return learned
    rung = another_rung(case, max(1, case.seen(last.cause.detail)))
    return tuple(rung) if rung is not None else None


def _as_learned(case: Case, lesson: Lesson) -> tuple[Change, ...] | None:
    """Makes the changes of a strategy for this job; None if one of the changes cannot be made."""
    wanted = [name for name in lesson.strategy.split("+") if name in _CHANGES]
    plan = WAYS.get(case.cause.detail, OTHERWISE).plan(case, 1) if wanted else []
    changes = {change_name(change): change for change in plan}
    return tuple(changes[name] for name in wanted) if set(wanted) <= changes.keys() else None


def hands_off(job: Job, effects: Iterable[EffectRecord]) -> str | None:
    """Explains why only a person may decide about this job; None if redrive may."""
    if "outcome_unknown" in (job.because, job.detail):
        return "it is not known whether it landed"
    if any(effect.open for effect in effects):
        return "an effect of it may have landed"
    if job.because == "restored":
        return "a person brought it back"
    return None
