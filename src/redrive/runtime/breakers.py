"""Circuit breakers at work: counts failures here, keeps the state in the store, parks, probes and releases jobs.

Failures in a row are counted by each process; what that leads to is written to the store and holds for all of them.
Trouble with a breaker itself is told and costs no job anything: it runs, and its result is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, TypeVar

import msgspec

from redrive.core import lifecycle
from redrive.core.breakers import (
    OPENING,
    Breaker,
    Window,
    answered,
    closed,
    host_of,
    key_of,
    opened,
    probe_failed,
    probing,
    releasing,
    reopened,
    verdict,
    waits,
)
from redrive.core.changes.change import Edit, decode
from redrive.core.job import Cause, Failure, Job, Json, State
from redrive.core.lifecycle import Transition
from redrive.core.policy import Policy
from redrive.core.store import Applied, Commit, Document, Filter, Put, Store
from redrive.errors import StoreError
from redrive.runtime.clock import Clock
from redrive.runtime.registry import HTTP_TASK, Handler

log = logging.getLogger("redrive.breakers")
T = TypeVar("T")
KIND: Final = "breaker"
REFRESH_SECONDS: Final = 3.0
"""How old a look may be that lets a job run. A scheduler looks every second, so that starting one waits for nothing."""
TRIES: Final = 5
FORGOTTEN_AFTER: Final = 3600.0
"""A breaker that nobody waits for and nobody has tried for so long is dropped."""
PARKED: Final = Filter(states=(State.held,), because="circuit_open")


class Breakers:
    """Every breaker of the store, as last seen."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._windows: dict[str, Window] = {}
        self._troubles: dict[str, set[str]] = {}
        """The groups that are counted for each task."""
        self._known: dict[str, tuple[Breaker, int]] = {}
        self._looked = float("-inf")
        self._looking = asyncio.Lock()
        self._counting = asyncio.Lock()
        """Held while a breaker opens: whoever begins or ends meanwhile waits, and knows that it is open."""

    async def all(self) -> list[Breaker]:
        await self._look()
        return [breaker for breaker, _ in self._known.values()]

    @property
    def calm(self) -> bool:
        """Nothing is down, and that was seen a moment ago: nobody needs to be asked."""
        return not self._known and not self._counting.locked() and not self._stale()

    @property
    def counting(self) -> bool:
        return bool(self._windows or self._known)

    async def _refresh(self) -> None:
        """Everybody who finds it stale waits for the same look: a whole batch begins together."""
        if self._stale():
            async with self._looking:
                if self._stale():
                    await self._read()

    def _stale(self) -> bool:
        return self._clock.monotonic() - self._looked >= REFRESH_SECONDS

    async def _look(self) -> None:
        async with self._looking:
            await self._read()

    async def _read(self) -> None:
        self._known = {d.key: (_decode(d), d.version) for d in await self._store.docs(KIND)}
        self._looked = self._clock.monotonic()

    # -- at a job's start and end

    async def gate(self, job: Job, handler: Handler) -> Transition | None:
        """Parks the job if what it calls is down; lets it through, perhaps as the one that probes."""
        return await _spared(self._gate(job, handler), None)

    async def _gate(self, job: Job, handler: Handler) -> Transition | None:
        async with self._counting:
            await self._refresh()
        if not self._known:
            return None
        key = _key(job, handler)
        found = self._known.get(key or "")
        if key is None or found is None:
            return None
        if verdict(found[0], job.id, self._clock.now()) == "run":
            return None
        return await self._admit(job, key)

    async def _admit(self, job: Job, key: str) -> Transition | None:
        """Nobody is parked, and nobody probes, on the word of an old look."""
        for _ in range(TRIES):
            await self._look()
            found = self._known.get(key)
            if found is None:
                return None
            breaker, version = found
            now = self._clock.now()
            judged = verdict(breaker, job.id, now)
            if judged == "park":
                return self._parked(job, breaker, now)
            if judged == "run" or await self._write(key, probing(breaker, job.id, now), version):
                return None
        return None

    def _parked(self, job: Job, breaker: Breaker, now: float) -> Transition:
        return lifecycle.held_back(
            job,
            now,
            because="circuit_open",
            why=f"{breaker.key} is down ({breaker.cause}: {breaker.error}); parked without using an attempt.",
            recommendation=f"Nothing to do: it comes back by itself when {breaker.key} answers again.",
            held_for=breaker.key,
        )

    async def failed(
        self, job: Job, handler: Handler, failure: Failure, cause: Cause, fingerprint: str | None, policy: Policy
    ) -> tuple[str | None, bool]:
        """The key of the breaker that is open now, if this failure is about what was called; whether the job probed."""
        if cause.detail not in OPENING:
            if answered(failure, cause):
                await self.succeeded(job, handler)  # it answered: the trouble is this job's own
            elif self._known:
                await self.no_verdict(job)
            return None, False
        if not policy.breaker_after:
            return None, False
        key = key_of(job, downstream=downstream_of(job, handler), failure=failure, fingerprint=fingerprint)
        if key is None:
            return None, False
        async with self._counting:
            return await _spared(self._count(key, job, failure, cause, policy), (None, False))

    async def _count(
        self, key: str, job: Job, failure: Failure, cause: Cause, policy: Policy
    ) -> tuple[str | None, bool]:
        now, known = self._clock.now(), self._known.get(key)
        if known is not None and known[0].state != "closed":
            probed = known[0].probe == job.id
            if probed:
                await self._write(key, probe_failed(known[0], failure.summary, now), known[1])
            return key, probed
        if key.startswith("group:"):
            self._troubles.setdefault(job.task, set()).add(key)
        window = self._windows.setdefault(key, Window())
        if window.failed(cause.detail, now, policy.breaker_window or 60.0) < (policy.breaker_after or 0):
            return None, False
        self._windows.pop(key, None)
        pause, release = policy.breaker_pause or 5.0, policy.breaker_release or 20.0
        breaker = opened(key, cause.detail, failure.summary, now, pause=pause, release=release)
        if await self._write(key, breaker, known[1] if known else 0):
            log.warning("%s is down (%s): its jobs are parked, a probe follows in %g s", key, failure.summary, pause)
        return key, False

    async def succeeded(self, job: Job, handler: Handler) -> None:
        """What was called answers: the row of failures ends, and so does an open breaker."""
        if not self._windows and not self._known:
            return
        for trouble in self._troubles.pop(job.task, ()):
            self._windows.pop(trouble, None)  # not every job of the task is in trouble
        key = _key(job, handler)
        if key is None:
            return
        self._windows.pop(key, None)
        known = self._known.get(key)
        if known is not None and known[0].state != "closed":
            await _spared(self.close(key), False)

    async def send(self, job: Job) -> None:
        """Somebody asks for this parked job by hand: it is the next to probe, and does not wait for its time."""
        await self._look()
        found = self._known.get(job.held_for or "")
        if found is not None and found[0].state == "open":
            await self._write(found[0].key, probing(found[0], job.id, self._clock.now()), found[1])

    async def no_verdict(self, job: Job) -> None:
        """A probe ended without having asked: the next one may."""
        for key, (breaker, version) in list(self._known.items()):
            if breaker.probe == job.id:
                await _spared(self._write(key, reopened(breaker, self._clock.now()), version), False)

    async def close(self, key: str) -> bool:
        """It answers again, or a person says so: its jobs come back. False where it is not open."""
        for _ in range(TRIES):
            await self._look()
            known = self._known.get(key)
            if known is None or known[0].state == "closed":
                return False
            if await self._write(key, closed(known[0], self._clock.now()), known[1]):
                log.warning("%s answers again: its parked jobs come back, %g a second", key, known[0].release)
                return True
        return False

    async def _write(self, key: str, breaker: Breaker | None, version: int) -> bool:
        """Only if nobody else changed it meanwhile; the cache then knows as much as the store."""
        value = msgspec.json.encode(breaker) if breaker else None
        (outcome,) = await self._store.apply([Commit(puts=(Put(KIND, key, value, version),))])
        await self._look()
        return isinstance(outcome, Applied)

    # -- from time to time

    async def mind(self) -> list[Transition]:
        """Sends probes, lets parked jobs go at a bounded rate, forgets breakers that have no jobs left."""
        await self._look()
        parked = {str(key): number for (key,), number in (await self._store.count(PARKED, by=("held_for",))).items()}
        moved: list[Transition] = []
        for key in parked.keys() - self._known.keys():
            moved += await self._lift(key, 1000, "its breaker is gone")  # parked while the last of it was released
        for key, (breaker, version) in list(self._known.items()):
            if breaker.state == "closed":
                moved += await self._release(key, breaker, version, parked.get(key, 0))
            else:
                moved += await self._probe(key, breaker, version)
        return moved

    async def _probe(self, key: str, breaker: Breaker, version: int) -> list[Transition]:
        """The oldest parked job is sent to see, once it is time and nobody else is under way."""
        if breaker.probe is not None and await self._vanished(breaker.probe):
            breaker = reopened(breaker, self._clock.now())
            await self._write(key, breaker, version)
        if waits(breaker, self._clock.now()):
            return []  # not yet, or a probe is under way
        lifted = await self._lift(key, 1, f"probes whether {key} answers again")
        if not lifted and self._clock.now() - breaker.until > FORGOTTEN_AFTER:
            await self._write(key, None, version)
        return lifted

    async def _vanished(self, job_id: str) -> bool:
        """Whether the probing job is no longer at it."""
        found = await self._store.get([job_id])
        return not found or found[0].state not in (State.waiting, State.running)

    async def _release(self, key: str, breaker: Breaker, version: int, parked: int) -> list[Transition]:
        if not parked:
            await self._write(key, None, version)
            return []
        number, after = releasing(breaker, self._clock.now())
        if number < 1 or not await self._write(key, after, version):
            return []
        return await self._lift(key, number, f"{key} answers again")

    async def _lift(self, key: str, number: int, why: str) -> list[Transition]:
        """The oldest of its parked jobs run again."""
        page = await self._store.find(msgspec.structs.replace(PARKED, held_for=key), limit=number, oldest=True)
        moves = [lifecycle.unblocked(job, self._clock.now(), who="breaker", why=why) for job in page.jobs]
        outcomes = await self._store.apply([Commit((move,)) for move in moves])
        return [move for move, outcome in zip(moves, outcomes, strict=True) if isinstance(outcome, Applied)]


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


def _decode(document: Document) -> Breaker:
    return msgspec.json.decode(document.value, type=Breaker)
