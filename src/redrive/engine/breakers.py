"""Runs the circuit breakers: counts failures here, keeps the state in the store, parks, probes and releases jobs.

Each process counts its failures in a row; a breaker that opens is written to the store and holds for all processes.
An error of the store in a breaker's own work is logged and harms no job: the job runs, and its result is kept.
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
from redrive.core.store import Store
from redrive.engine.bus import Bus, BusEvent
from redrive.engine.clock import Clock
from redrive.engine.registry import Handler
from redrive.engine.worker_registry import PARKED
from redrive.errors import StoreError
from redrive.http.policy import HTTP_TASK
from redrive.retries import breaker as rules
from redrive.retries.breaker import BREAKER, Breaker, FailureCounts, Window
from redrive.retries.comebacks import ANSWERS, Answers

log = logging.getLogger("redrive.breakers")
T = TypeVar("T")
OPENED: Final = "breaker_opened"
CLOSED: Final = "breaker_closed"
REFRESH_SECONDS: Final = 3.0
"""Seconds for which a read of the breakers lets jobs run. A scheduler reads every second, so no start waits for one."""
TELL_AGAIN: Final = 5.0
"""Seconds between two notes to the same dead letters that what they wait for has answered."""
GROUP: Final = "group:"
FORGOTTEN_AFTER: Final = 3600.0
"""Seconds past its `until` after which an open breaker without parked jobs is dropped."""


class Breakers:
    """Every breaker of the store, as last read."""

    def __init__(self, store: Store, clock: Clock, bus: Bus | None = None) -> None:
        self._store = store
        self._clock = clock
        self._bus = bus
        self.counts = FailureCounts()
        self._known: dict[str, tuple[Breaker, int]] = {}
        self._fresh_until = float("-inf")
        self._looking = asyncio.Lock()
        self._counting = asyncio.Lock()
        """Held while a failure is counted, so that jobs that begin or fail meanwhile wait and see an opened breaker."""
        self.watched: frozenset[str] | None = None
        """The keys that self-returning dead letters wait for; None before the first look."""
        self._told_at: dict[str, float] = {}
        """The monotonic time of the last note that a key answers, by key."""

    async def all(self) -> list[Breaker]:
        """Lists every breaker with the error of its last failure."""
        await self._look()
        known = [breaker for breaker, _ in self._known.values()]
        failed = [breaker.job for breaker in known if breaker.job is not None]
        jobs = {job.id: job for job in await self._store.get(failed)} if failed else {}
        return [rules.with_error(breaker, jobs.get(breaker.job or "")) for breaker in known]

    @property
    def calm(self) -> bool:
        """True where a recent read found no breaker, so that jobs need no check."""
        return not self._known and not self._counting.locked() and self._clock.monotonic() < self._fresh_until

    def heeds(self, job: Job, handler: Handler) -> bool:
        """Tells whether a success of this job can matter to a breaker or to a waiting dead letter."""
        if self.counts.windows or self._known:
            return True
        names = job.history or job.model is not None or handler.names_downstream or job.task == HTTP_TASK
        return bool(names) and (self.watched is None or bool(self.watched))

    async def refresh(self) -> None:
        """Reads the breakers if the last read is old, so that no job of a claim waits for a read when it begins."""
        await _spare(self._refresh(), None)

    async def _refresh(self) -> None:
        """Reads stale breakers once for all callers: a whole batch of jobs waits for the same read."""
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
        """Parks the job if what the job calls is down; else lets the job run, possibly as the probe."""
        return await _spare(self._gate(job, handler), None)

    async def _gate(self, job: Job, handler: Handler) -> Transition | None:
        async with self._counting:
            await self._refresh()
        for key in self._keys(job, handler):
            if rules.verdict(self._known[key][0], job.id, self._clock.now()) != "run":
                return await self._admit(job, key)
        return None

    def _keys(self, job: Job, handler: Handler) -> list[str]:
        """Lists the known breakers of what the job calls, as far as this is known before the job runs."""
        if not self._known:
            return []
        failure, group = _last_failure(job)
        downstream = downstream_of(job, handler)
        limited = rules.limited_key(downstream, failure)
        keys = {rules.key_of(job, downstream=downstream, failure=failure, fingerprint=group), limited}
        for key, (breaker, _) in self._known.items():
            if breaker.probe == job.id or (limited is None and rules.caller_of(job) in breaker.callers):
                keys.add(key)
        return [key for key in self._known if key in keys]

    async def _admit(self, job: Job, key: str) -> Transition | None:
        """Parks the job, makes it the probe or lets it run, after a new read: an old one does not decide that.

        Where the breaker has closed since the old read, the job joins the parked jobs: all are released at one pace.
        """
        about = f"breaker {key}"

        async def decide() -> Proposal[Transition | None]:
            await self._look()
            now, (breaker, version) = self._clock.now(), self._known.get(key, (None, 0))
            judged = rules.verdict(breaker, job.id, now) if breaker is not None else "run"
            if breaker is not None and (judged == "park" or breaker.state == "closed"):
                return Proposal(about, self._make_parking(job, breaker, now))
            if breaker is None or judged == "run":
                return Proposal(about, None)
            return Proposal(
                about, None, puts=[BREAKER.put(key, rules.begin_probe(breaker, job.id, now), version)], done="probed"
            )

        parked, _ = await decide_and_commit(self._store, decide)
        if parked is None:
            await self._look()
        return parked

    def _make_parking(self, job: Job, breaker: Breaker, now: float) -> Transition:
        matter = rules.describe_state(breaker) if breaker.down else "was down until just now"
        return lifecycle.held_back(
            job,
            now,
            because="circuit_open",
            why=f"{rules.name_of_key(breaker.key)} {matter} ({breaker.cause}); parked without using an attempt.",
            recommendation=f"Nothing to do: it comes back by itself when {breaker.key} answers again.",
            held_for=breaker.key,
        )

    async def failed(
        self, job: Job, handler: Handler, failure: Failure, cause: Cause, fingerprint: str | None, policy: Policy
    ) -> tuple[str | None, bool]:
        """Counts a failure of what was called; returns the key of its open breaker, and whether the job probed."""
        if not rules.opens(failure, cause):
            if rules.shows_answer(failure, cause):
                await self.succeeded(job, handler, failure)  # the called service answered: the failure is the job's own
            elif self._known:
                await self.no_verdict(job)
            return None, False
        if not policy.breaker_after:
            return None, False
        downstream, asked = downstream_of(job, handler), rules.wait_for_all(failure, cause, policy.max_wait)
        limited = rules.limited_key(downstream, failure) if asked else None
        if limited is not None and asked:
            async with self._counting:
                return await _spare(self._leave_alone(limited, job, failure, asked, policy), (None, False))
        key = rules.key_of(job, downstream=downstream, failure=failure, fingerprint=fingerprint)
        if key is None:
            return None, False
        async with self._counting:
            return await _spare(self._count(key, job, failure, cause, policy), (None, False))

    async def _leave_alone(
        self, key: str, job: Job, failure: Failure, asked: float, policy: Policy
    ) -> tuple[str | None, bool]:
        """Opens a breaker until a rate limit ends, so that no job calls before; returns whether this job probed."""
        now, probed = self._clock.now(), [each for each in self._known.values() if each[0].probe == job.id]
        for breaker, version in probed:
            if breaker.key != key:
                await self._write(breaker.key, rules.fail_probe(breaker, job.id, now), version)
        pause, release = policy.breaker_pause or 5.0, policy.breaker_release or 20.0
        before: Breaker | None = None

        def change(known: Breaker | None) -> Breaker:
            nonlocal before
            before = known
            after = rules.leave_alone(key, job, failure, now, asked, pause=pause, release=release, before=before)
            return known if known is not None and after == known else after

        after = await BREAKER.update(self._store, key, change)
        await self._look()
        if after is not None:
            self._tell_of_limit(before, after, job, failure)
        return key, bool(probed)

    def _tell_of_limit(self, before: Breaker | None, after: Breaker, job: Job, failure: Failure) -> None:
        """Logs and publishes that a rate limit began; a later end of a known limit is not reported again."""
        if before is None or not before.down:
            log.warning("%s %s (%s): its jobs are parked", after.key, rules.describe_state(after), failure.summary)
            self._publish(OPENED, after, job)

    async def _count(
        self, key: str, job: Job, failure: Failure, cause: Cause, policy: Policy
    ) -> tuple[str | None, bool]:
        now, known = self._clock.now(), self._known.get(key)
        if known is not None and known[0].state != "closed":
            probed = known[0].probe == job.id
            if probed:
                await self._write(key, rules.fail_probe(known[0], job.id, now), known[1])
            return key, probed
        if key.startswith("group:"):
            self.counts.troubles.setdefault(job.task, set()).add(key)
        window = self.counts.windows.setdefault(key, Window())
        if window.failed(cause.detail, now, policy.breaker_window or 60.0) < (policy.breaker_after or 0):
            return None, False
        self.counts.windows.pop(key, None)
        pause, release = policy.breaker_pause or 5.0, policy.breaker_release or 20.0
        breaker = rules.open_breaker(key, cause.detail, job.id, now, pause=pause, release=release)
        if await self._write(key, breaker, known[1] if known else 0):
            log.warning("%s is down (%s): its jobs are parked, a probe follows in %g s", key, failure.summary, pause)
            self._publish(OPENED, breaker, job)
        return key, False

    async def succeeded(self, job: Job, handler: Handler, answer: Failure | None = None) -> None:
        """Ends the row of failures of what the job called, and closes its open breaker, because the call was answered.

        An `answer` is a failure that proves this for the service that sent it, and for no other that the job calls.
        """
        if not self.heeds(job, handler):
            return
        for group in self.counts.troubles.pop(job.task, ()):
            self.counts.windows.pop(group, None)  # not every job of the task fails
        key = _key(job, handler)
        if key is not None and answer is not None and rules.from_elsewhere(key, answer):
            key = None
        if key is not None:
            self.counts.windows.pop(key, None)
        down = [breaker for known in self._keys(job, handler) if (breaker := self._known[known][0]).down]
        for breaker in down:
            if answer is not None and rules.from_elsewhere(breaker.key, answer):
                await self.no_verdict(job)
            elif rules.shows_recovery(breaker, job):
                await _spare(self.close(breaker.key), False)
        if key is None or down or (answer is not None and key.startswith(GROUP)):
            return  # a job that fails as its group does is no sign that the group recovers
        if key in await _spare(self._read_waited_for(), frozenset[str]()):
            await _spare(self._tell_waiting(key), None)

    async def _read_waited_for(self) -> frozenset[str]:
        """Returns the keys that dead letters wait for; reads them if a job ends before the first round of comebacks."""
        if self.watched is None:
            groups = await self._store.returning(self._clock.now())
            self.watched = frozenset(group.held_for for group in groups if group.held_for)
        return self.watched

    async def _tell_waiting(self, key: str) -> None:
        """Notes for the dead letters that wait for a key that the key answered a job, at most once per TELL_AGAIN."""
        now = self._clock.monotonic()
        if now - self._told_at.get(key, float("-inf")) < TELL_AGAIN:
            return
        self._told_at[key] = now
        sure = key.startswith(GROUP)  # a job that had failed in the same way has succeeded
        answers = Answers(self._clock.now(), self._clock.now(), DEFAULT.breaker_release or 1.0, sure)
        what = f"those that wait for {key} were told"
        await try_commit(self._store, puts=[ANSWERS.put(key, answers, 0)], what=what)  # refused if already noted

    async def send(self, job: Job) -> None:
        """Makes a parked job that a person runs by hand the probe of its open breaker, before the pause is over."""
        await self._look()
        known = self._known.get(job.held_for or "")
        if known is not None and known[0].state == "open":
            await self._write(known[0].key, rules.begin_probe(known[0], job.id, self._clock.now()), known[1])

    async def no_verdict(self, job: Job) -> None:
        """Frees the breakers that this job probed: the probe ended without a result, so the next probe may run."""
        for key, (breaker, version) in list(self._known.items()):
            if breaker.probe == job.id:
                await _spare(self._write(key, rules.reopen(breaker, self._clock.now()), version), False)

    async def close(self, key: str) -> bool:
        """Closes a breaker, and its parked jobs come back; returns False where the breaker is not open."""
        about = f"breaker {key}"

        async def decide() -> Proposal[Breaker | None]:
            await self._look()
            breaker, version = self._known.get(key, (None, 0))
            if breaker is None or breaker.state == "closed":
                return Proposal(about, None)
            now = self._clock.now()
            after = BREAKER.put(key, rules.close_breaker(breaker, now), version)
            answers = ANSWERS.put(key, Answers(now, now, breaker.release))
            return Proposal(about, breaker, puts=[after, answers], done="closed")

        breaker, _ = await decide_and_commit(self._store, decide)
        if breaker is None:
            return False
        await self._look()
        log.warning("%s answers again: its parked jobs come back, %g a second", key, breaker.release)
        self._publish(CLOSED, breaker)
        return True

    def _publish(self, type: str, breaker: Breaker, job: Job | None = None) -> None:
        """Publishes to subscribers of this process that a breaker opened or closed."""
        if self._bus is not None:
            data = {"breaker": breaker.key, "cause": breaker.cause, "since": breaker.since}
            queue, task = (job.queue, job.task) if job is not None else ("", None)
            self._bus.publish(BusEvent(type, queue, self._clock.now(), task=task, data=data))

    async def _write(self, key: str, breaker: Breaker | None, version: int) -> bool:
        """Writes or drops a breaker unless another process changed the breaker meanwhile; then reads all of them."""
        put = BREAKER.put(key, breaker, version) if breaker else BREAKER.drop(key, version)
        applied = await try_commit(self._store, puts=[put], what=f"the breaker of {key} was changed")
        await self._look()
        return applied is not None

    # -- from time to time

    async def mind(self) -> list[Transition]:
        """Sends probes, releases parked jobs at a bounded rate, drops breakers that have no jobs left."""
        await self._look()
        known = list(self._known.items())
        counted = await self._store.count(PARKED, by=("held_for",), current=True)
        parked = {str(key): number for (key,), number in counted.items()}
        moved: list[Transition] = []
        for key in await self._list_orphaned(parked.keys()):
            moved += await self._lift(key, 1000, "its breaker is gone")  # parked while the last job was released
        for key, (breaker, version) in known:
            if breaker.state == "closed":
                moved += await self._release(key, breaker, version, parked.get(key, 0))
            else:
                moved += await self._probe(key, breaker, version, parked.get(key, 0))
        return moved

    async def _list_orphaned(self, parked: Set[str]) -> list[str]:
        """Lists the keys that jobs are parked for and that have no breaker, by a read made after jobs were counted."""
        if parked <= self._known.keys():
            return []
        await self._look()
        return sorted(parked - self._known.keys())

    async def _probe(self, key: str, breaker: Breaker, version: int, parked: int) -> list[Transition]:
        """Sends the oldest parked job as the probe, once the pause is over and no other probe is under way."""
        if breaker.probe is not None and await self._has_vanished(breaker.probe):
            breaker = rules.reopen(breaker, self._clock.now())
            await self._write(key, breaker, version)
        if rules.waits(breaker, self._clock.now()):
            return []  # not yet, or a probe is under way
        lifted = await self._lift(key, 1, f"probes whether {key} answers again")
        if not lifted and not parked and self._clock.now() - breaker.until > FORGOTTEN_AFTER:
            await self._write(key, None, version)
        return lifted

    async def _has_vanished(self, job_id: str) -> bool:
        """Tells whether the probing job is gone, or neither waits nor runs."""
        jobs = await self._store.get([job_id])
        return not jobs or jobs[0].state not in (State.waiting, State.running)

    async def _release(self, key: str, breaker: Breaker, version: int, parked: int) -> list[Transition]:
        """Releases some parked jobs of a closed breaker; drops one without any, unless it changed since the count."""
        if not parked:
            await self._write(key, None, version)
            return []
        number, after = rules.release_parked(breaker, self._clock.now())
        if number < 1 or not await self._write(key, after, version):
            return []
        return await self._lift(key, number, f"{key} answers again")

    async def _lift(self, key: str, number: int, why: str) -> list[Transition]:
        """Unblocks the oldest jobs that are parked for a key."""
        page = await self._store.find(msgspec.structs.replace(PARKED, held_for=key), limit=number, oldest=True)
        moves = [lifecycle.unblocked(job, self._clock.now(), who="breaker", why=why) for job in page.jobs]
        return await commit_each(self._store, moves)


async def _spare(work: Awaitable[T], otherwise: T) -> T:
    """Awaits work on a breaker; logs an error of the store and returns `otherwise`, so that no job fails by it."""
    try:
        return await work
    except StoreError as error:
        log.warning("a breaker could not be looked after: %s", error)
        return otherwise


def downstream_of(job: Job, handler: Handler | None) -> str | None:
    """Names what the job calls, where that is declared: the host of a delivery, or the task's `downstream=`."""
    if job.task == HTTP_TASK:
        url = _input(job).get("url")
        return rules.host_of(url) if isinstance(url, str) else None
    return handler.downstream_of(_input(job)) if handler is not None and handler.names_downstream else None


def _input(job: Job) -> dict[str, Json]:
    """Returns the arguments of a job as enqueued, or as last edited."""
    edits = [change for change in decode(job.changes_json) if isinstance(change, Edit)] if job.changes_json else []
    return edits[-1].payload if edits else job.arguments


def _key(job: Job, handler: Handler) -> str | None:
    """Makes the key of the breaker that a job depends on, by its downstream, else by its last failure."""
    failure, group = _last_failure(job)
    return rules.key_of(job, downstream=downstream_of(job, handler), failure=failure, fingerprint=group)


def _last_failure(job: Job) -> tuple[Failure | None, str | None]:
    """Returns the last failure of a job, and its error group."""
    last = next((attempt for attempt in reversed(job.history) if attempt.failure is not None), None)
    return (last.failure, last.fingerprint) if last is not None else (None, None)
