"""Circuit breakers at work: counts failures here, keeps the state in the store, parks, probes and releases jobs.

Failures in a row are counted by each process; what that leads to is written to the store and holds for all of them.
Trouble with a breaker itself is told and costs no job anything: it runs, and its result is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Set
from typing import Final, TypeVar

import msgspec

from redrive.core import lifecycle
from redrive.core.change import Edit, decode
from redrive.core.commit import Proposal, commit_each, decide_and_commit, try_commit
from redrive.core.job import Cause, Failure, Job, Json, State
from redrive.core.lifecycle import Transition
from redrive.core.policy import DEFAULT, Policy
from redrive.core.store import Put, Store
from redrive.engine.bus import Bus, BusEvent
from redrive.engine.clock import Clock
from redrive.engine.registry import Handler
from redrive.engine.worker_registry import PARKED
from redrive.errors import StoreError
from redrive.http.policy import HTTP_TASK
from redrive.retries.breaker import (
    BREAKER,
    Breaker,
    FailureCounts,
    Window,
    begin_probe,
    caller_of,
    close_breaker,
    describe_state,
    fail_probe,
    from_elsewhere,
    host_of,
    key_of,
    leave_alone,
    limited_key,
    name_of_key,
    open_breaker,
    opens,
    release_parked,
    reopen,
    shows_answer,
    shows_recovery,
    verdict,
    wait_for_all,
    waits,
    with_error,
)
from redrive.retries.comebacks import ANSWERS, Answers

log = logging.getLogger("redrive.breakers")
T = TypeVar("T")
OPENED: Final = "breaker_opened"
CLOSED: Final = "breaker_closed"
REFRESH_SECONDS: Final = 3.0
"""How old a look may be that lets a job run. A scheduler looks every second, so that starting one waits for nothing."""
TELL_AGAIN: Final = 5.0
"""Seconds in which dead letters are told once that what they wait for has answered."""
GROUP: Final = "group:"
FORGOTTEN_AFTER: Final = 3600.0
"""A breaker that nobody waits for and nobody has tried for so long is dropped."""


class Breakers:
    """Every breaker of the store, as last seen."""

    def __init__(self, store: Store, clock: Clock, bus: Bus | None = None) -> None:
        self._store = store
        self._clock = clock
        self._bus = bus
        self.counts = FailureCounts()
        self._known: dict[str, tuple[Breaker, int]] = {}
        self._fresh_until = float("-inf")
        self._looking = asyncio.Lock()
        self._counting = asyncio.Lock()
        """Held while a breaker opens: whoever begins or ends meanwhile waits, and knows that it is open."""
        self.watched: frozenset[str] | None = None
        """What dead letters wait for that come back by themselves; None before the first look."""
        self._told_at: dict[str, float] = {}
        """When those were last told that it answers."""

    async def all(self) -> list[Breaker]:
        """Lists every breaker with what its last failure said."""
        await self._look()
        known = [breaker for breaker, _ in self._known.values()]
        failed = [breaker.job for breaker in known if breaker.job is not None]
        jobs = {job.id: job for job in await self._store.get(failed)} if failed else {}
        return [with_error(breaker, jobs.get(breaker.job or "")) for breaker in known]

    @property
    def calm(self) -> bool:
        """Nothing is down, and that was seen a moment ago: nobody needs to be asked."""
        return not self._known and not self._counting.locked() and self._clock.monotonic() < self._fresh_until

    def heeds(self, job: Job, handler: Handler) -> bool:
        """Tells whether a success of this job can mean anything for a breaker or for a dead letter that waits."""
        if self.counts.windows or self._known:
            return True
        names = job.history or job.model is not None or handler.names_downstream or job.task == HTTP_TASK
        return bool(names) and (self.watched is None or bool(self.watched))

    async def refresh(self) -> None:
        """Looks where the last look is old, so that the jobs of a claim begin one after the other and wait for none."""
        await _spared(self._refresh(), None)

    async def _refresh(self) -> None:
        """Everybody who finds it stale waits for the same look: a whole batch begins together."""
        if self._stale():
            async with self._looking:
                if self._stale():
                    await self._read()

    def _stale(self) -> bool:
        return self._clock.monotonic() >= self._fresh_until

    async def _look(self) -> None:
        async with self._looking:
            await self._read()

    async def _read(self) -> None:
        self._known = {kept.key: (kept.value, kept.version) for kept in await BREAKER.all(self._store)}
        self._fresh_until = self._clock.monotonic() + REFRESH_SECONDS

    # -- at a job's start and end

    async def gate(self, job: Job, handler: Handler) -> Transition | None:
        """Parks the job if what it calls is down; lets it through, perhaps as the one that probes."""
        return await _spared(self._gate(job, handler), None)

    async def _gate(self, job: Job, handler: Handler) -> Transition | None:
        async with self._counting:
            await self._refresh()
        for key in self._keys(job, handler):
            if verdict(self._known[key][0], job.id, self._clock.now()) != "run":
                return await self._admit(job, key)
        return None

    def _keys(self, job: Job, handler: Handler) -> list[str]:
        """The known breakers of what the job calls, as far as anybody can tell before it runs."""
        if not self._known:
            return []
        last = next((attempt for attempt in reversed(job.history) if attempt.failure is not None), None)
        failure, group = (last.failure, last.fingerprint) if last is not None else (None, None)
        downstream = downstream_of(job, handler)
        limited = limited_key(downstream, failure)
        keys = {key_of(job, downstream=downstream, failure=failure, fingerprint=group), limited}
        for key, (breaker, _) in self._known.items():
            if breaker.probe == job.id or (limited is None and caller_of(job) in breaker.callers):
                keys.add(key)
        return [key for key in self._known if key in keys]

    async def _admit(self, job: Job, key: str) -> Transition | None:
        """Nobody is parked, and nobody probes, on the word of an old look.

        Where it has closed since that look the job joins those that are parked: all of them go at one pace.
        """
        about = f"breaker {key}"

        async def decide() -> Proposal[Transition | None]:
            await self._look()
            now, (breaker, version) = self._clock.now(), self._known.get(key, (None, 0))
            judged = verdict(breaker, job.id, now) if breaker is not None else "run"
            if breaker is not None and (judged == "park" or breaker.state == "closed"):
                return Proposal(about, self._parked(job, breaker, now))
            if breaker is None or judged == "run":
                return Proposal(about, None)
            return Proposal(
                about, None, puts=[BREAKER.put(key, begin_probe(breaker, job.id, now), version)], done="probed"
            )

        parked, _ = await decide_and_commit(self._store, decide)
        if parked is None:
            await self._look()
        return parked

    def _parked(self, job: Job, breaker: Breaker, now: float) -> Transition:
        matter = describe_state(breaker) if breaker.down else "was down until just now"
        return lifecycle.held_back(
            job,
            now,
            because="circuit_open",
            why=f"{name_of_key(breaker.key)} {matter} ({breaker.cause}); parked without using an attempt.",
            recommendation=f"Nothing to do: it comes back by itself when {breaker.key} answers again.",
            held_for=breaker.key,
        )

    async def failed(
        self, job: Job, handler: Handler, failure: Failure, cause: Cause, fingerprint: str | None, policy: Policy
    ) -> tuple[str | None, bool]:
        """The key of the breaker that is open now, if this failure is about what was called; whether the job probed."""
        if not opens(failure, cause):
            if shows_answer(failure, cause):
                await self.succeeded(job, handler, failure)  # it answered: the trouble is this job's own
            elif self._known:
                await self.no_verdict(job)
            return None, False
        if not policy.breaker_after:
            return None, False
        downstream, asked = downstream_of(job, handler), wait_for_all(failure, cause, policy.max_wait)
        limited = limited_key(downstream, failure) if asked else None
        if limited is not None and asked:
            async with self._counting:
                return await _spared(self._leave_alone(limited, job, failure, asked, policy), (None, False))
        key = key_of(job, downstream=downstream, failure=failure, fingerprint=fingerprint)
        if key is None:
            return None, False
        async with self._counting:
            return await _spared(self._count(key, job, failure, cause, policy), (None, False))

    async def _leave_alone(
        self, key: str, job: Job, failure: Failure, asked: float, policy: Policy
    ) -> tuple[str | None, bool]:
        """A limit that says when it ends: nobody else calls before. True where the job was sent to look."""
        now, probed = self._clock.now(), [each for each in self._known.values() if each[0].probe == job.id]
        for breaker, version in probed:
            if breaker.key != key:
                await self._write(breaker.key, fail_probe(breaker, job.id, now), version)
        pause, release = policy.breaker_pause or 5.0, policy.breaker_release or 20.0
        before: Breaker | None = None

        def change(known: Breaker | None) -> Breaker:
            nonlocal before
            before = known
            after = leave_alone(key, job, failure, now, asked, pause=pause, release=release, before=before)
            return known if known is not None and after == known else after

        after = await BREAKER.update(self._store, key, change)
        await self._look()
        if after is not None:
            self._tell_of_limit(before, after, job, failure)
        return key, bool(probed)

    def _tell_of_limit(self, before: Breaker | None, after: Breaker, job: Job, failure: Failure) -> None:
        """Once for each closing, not for each time that its end is put off."""
        if before is None or not before.down:
            log.warning("%s %s (%s): its jobs are parked", after.key, describe_state(after), failure.summary)
            self._publish(OPENED, after, job)

    async def _count(
        self, key: str, job: Job, failure: Failure, cause: Cause, policy: Policy
    ) -> tuple[str | None, bool]:
        now, known = self._clock.now(), self._known.get(key)
        if known is not None and known[0].state != "closed":
            probed = known[0].probe == job.id
            if probed:
                await self._write(key, fail_probe(known[0], job.id, now), known[1])
            return key, probed
        if key.startswith("group:"):
            self.counts.troubles.setdefault(job.task, set()).add(key)
        window = self.counts.windows.setdefault(key, Window())
        if window.failed(cause.detail, now, policy.breaker_window or 60.0) < (policy.breaker_after or 0):
            return None, False
        self.counts.windows.pop(key, None)
        pause, release = policy.breaker_pause or 5.0, policy.breaker_release or 20.0
        breaker = open_breaker(key, cause.detail, job.id, now, pause=pause, release=release)
        if await self._write(key, breaker, known[1] if known else 0):
            log.warning("%s is down (%s): its jobs are parked, a probe follows in %g s", key, failure.summary, pause)
            self._publish(OPENED, breaker, job)
        return key, False

    async def succeeded(self, job: Job, handler: Handler, answer: Failure | None = None) -> None:
        """What was called answers: the row of failures ends, and so does an open breaker.

        An `answer` is a failure that proves it, for what it came from and for nothing else that the job calls.
        """
        if not self.heeds(job, handler):
            return
        for group in self.counts.troubles.pop(job.task, ()):
            self.counts.windows.pop(group, None)  # not every job of the task is in trouble
        key = _key(job, handler)
        if key is not None and answer is not None and from_elsewhere(key, answer):
            key = None
        if key is not None:
            self.counts.windows.pop(key, None)
        down = [breaker for known in self._keys(job, handler) if (breaker := self._known[known][0]).down]
        for breaker in down:
            if answer is not None and from_elsewhere(breaker.key, answer):
                await self.no_verdict(job)
            elif shows_recovery(breaker, job):
                await _spared(self.close(breaker.key), False)
        if key is not None and not down and key in await _spared(self._waited_for(), frozenset[str]()):
            await _spared(self._tell_waiting(key), None)

    async def _waited_for(self) -> frozenset[str]:
        """What dead letters wait for. A job may end before the first round of comebacks has looked."""
        if self.watched is None:
            groups = await self._store.returning(self._clock.now())
            self.watched = frozenset(group.held_for for group in groups if group.held_for)
        return self.watched

    async def _tell_waiting(self, key: str) -> None:
        """Tell the dead letters that wait for this that it answered a job, once in a while."""
        now = self._clock.monotonic()
        if now - self._told_at.get(key, float("-inf")) < TELL_AGAIN:
            return
        self._told_at[key] = now
        sure = key.startswith(GROUP)  # a job that had failed in the same way has succeeded
        answers = Answers(self._clock.now(), self._clock.now(), DEFAULT.breaker_release or 1.0, sure)
        what = f"those that wait for {key} were told"
        await try_commit(self._store, puts=[ANSWERS.put(key, answers, 0)], what=what)  # unless they are told already

    def _answering(self, key: str, release: float) -> Put:
        now = self._clock.now()
        return ANSWERS.put(key, Answers(now, now, release))

    async def send(self, job: Job) -> None:
        """Somebody asks for this parked job by hand: it is the next to probe, and does not wait for its time."""
        await self._look()
        found = self._known.get(job.held_for or "")
        if found is not None and found[0].state == "open":
            await self._write(found[0].key, begin_probe(found[0], job.id, self._clock.now()), found[1])

    async def no_verdict(self, job: Job) -> None:
        """A probe ended without having asked: the next one may."""
        for key, (breaker, version) in list(self._known.items()):
            if breaker.probe == job.id:
                await _spared(self._write(key, reopen(breaker, self._clock.now()), version), False)

    async def close(self, key: str) -> bool:
        """It answers again, or a person says so: its jobs come back. False where it is not open."""
        about = f"breaker {key}"

        async def decide() -> Proposal[Breaker | None]:
            await self._look()
            breaker, version = self._known.get(key, (None, 0))
            if breaker is None or breaker.state == "closed":
                return Proposal(about, None)
            after = BREAKER.put(key, close_breaker(breaker, self._clock.now()), version)
            return Proposal(about, breaker, puts=[after, self._answering(key, breaker.release)], done="closed")

        breaker, _ = await decide_and_commit(self._store, decide)
        if breaker is None:
            return False
        await self._look()
        log.warning("%s answers again: its parked jobs come back, %g a second", key, breaker.release)
        self._publish(CLOSED, breaker)
        return True

    def _publish(self, type: str, breaker: Breaker, job: Job | None = None) -> None:
        """Subscribers of this process hear at once that something is down, or answers again."""
        if self._bus is not None:
            data = {"breaker": breaker.key, "cause": breaker.cause, "since": breaker.since}
            queue, task = (job.queue, job.task) if job is not None else ("", None)
            self._bus.publish(BusEvent(type, queue, self._clock.now(), task=task, data=data))

    async def _write(self, key: str, breaker: Breaker | None, version: int) -> bool:
        """Only if nobody else changed it meanwhile; the cache then knows as much as the store."""
        put = BREAKER.put(key, breaker, version) if breaker else BREAKER.drop(key, version)
        applied = await try_commit(self._store, puts=[put], what=f"the breaker of {key} was changed")
        await self._look()
        return applied is not None

    # -- from time to time

    async def mind(self) -> list[Transition]:
        """Sends probes, lets parked jobs go at a bounded rate, forgets breakers that have no jobs left."""
        await self._look()
        known = list(self._known.items())
        counted = await self._store.count(PARKED, by=("held_for",), current=True)
        parked = {str(key): number for (key,), number in counted.items()}
        moved: list[Transition] = []
        for key in await self._orphaned(parked.keys()):
            moved += await self._lift(key, 1000, "its breaker is gone")  # parked while the last of it was released
        for key, (breaker, version) in known:
            if breaker.state == "closed":
                moved += await self._release(key, breaker, version, parked.get(key, 0))
            else:
                moved += await self._probe(key, breaker, version, parked.get(key, 0))
        return moved

    async def _orphaned(self, parked: Set[str]) -> list[str]:
        """What jobs wait for that has no breaker, by a look that is younger than the count of them."""
        if parked <= self._known.keys():
            return []
        await self._look()
        return sorted(parked - self._known.keys())

    async def _probe(self, key: str, breaker: Breaker, version: int, parked: int) -> list[Transition]:
        """The oldest parked job is sent to see, once it is time and nobody else is under way."""
        if breaker.probe is not None and await self._vanished(breaker.probe):
            breaker = reopen(breaker, self._clock.now())
            await self._write(key, breaker, version)
        if waits(breaker, self._clock.now()):
            return []  # not yet, or a probe is under way
        lifted = await self._lift(key, 1, f"probes whether {key} answers again")
        if not lifted and not parked and self._clock.now() - breaker.until > FORGOTTEN_AFTER:
            await self._write(key, None, version)
        return lifted

    async def _vanished(self, job_id: str) -> bool:
        """Whether the probing job is no longer at it."""
        found = await self._store.get([job_id])
        return not found or found[0].state not in (State.waiting, State.running)

    async def _release(self, key: str, breaker: Breaker, version: int, parked: int) -> list[Transition]:
        """Let some of its jobs go. It is forgotten only as it was before they were counted."""
        if not parked:
            await self._write(key, None, version)
            return []
        number, after = release_parked(breaker, self._clock.now())
        if number < 1 or not await self._write(key, after, version):
            return []
        return await self._lift(key, number, f"{key} answers again")

    async def _lift(self, key: str, number: int, why: str) -> list[Transition]:
        """The oldest of its parked jobs run again."""
        page = await self._store.find(msgspec.structs.replace(PARKED, held_for=key), limit=number, oldest=True)
        moves = [lifecycle.unblocked(job, self._clock.now(), who="breaker", why=why) for job in page.jobs]
        return await commit_each(self._store, moves)


async def _spared(work: Awaitable[T], otherwise: T) -> T:
    """Trouble with the store while a breaker is looked after is not the job's."""
    try:
        return await work
    except StoreError as error:
        log.warning("a breaker could not be looked after: %s", error)
        return otherwise


def downstream_of(job: Job, handler: Handler | None) -> str | None:
    """What the job calls, where anybody said so: the host of a delivery, or the task's `downstream=`."""
    if job.task == HTTP_TASK:
        url = _input(job).get("url")
        return host_of(url) if isinstance(url, str) else None
    return handler.downstream_of(_input(job)) if handler is not None and handler.names_downstream else None


def _input(job: Job) -> dict[str, Json]:
    """As enqueued, or as somebody edited it."""
    edits = [change for change in decode(job.changes_json) if isinstance(change, Edit)] if job.changes_json else []
    return edits[-1].payload if edits else job.arguments


def _key(job: Job, handler: Handler) -> str | None:
    """What a job depends on, as far as anybody can tell before it runs: what it names, else its last failure's."""
    last = next((attempt for attempt in reversed(job.history) if attempt.failure is not None), None)
    failure, group = (last.failure, last.fingerprint) if last is not None else (None, None)
    return key_of(job, downstream=downstream_of(job, handler), failure=failure, fingerprint=group)
