"""Circuit breakers at work: counts failures here, keeps the state in the store, parks, probes and releases jobs.

Failures in a row are counted by each process; what that leads to is written to the store and holds for all of them.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from redrive.core import lifecycle
from redrive.core.breakers import (
    OPENING,
    Breaker,
    Window,
    closed,
    host_of,
    key_of,
    opened,
    probe_failed,
    probing,
    releasing,
    verdict,
)
from redrive.core.job import Cause, Failure, Job, State
from redrive.core.lifecycle import Transition
from redrive.core.policy import Policy
from redrive.core.store import Applied, Commit, Document, Filter, Put, Store
from redrive.runtime.clock import Clock
from redrive.runtime.registry import HTTP_TASK, Handler

log = logging.getLogger("redrive.breakers")
KIND: Final = "breaker"
REFRESH_SECONDS: Final = 1.0


class Breakers:
    """Every breaker of the store, looked up at most once a second."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._windows: dict[str, Window] = {}
        self._known: dict[str, tuple[Breaker, int]] = {}
        self._looked = float("-inf")

    async def all(self) -> list[Breaker]:
        await self._look()
        return [breaker for breaker, _ in self._known.values()]

    async def _refresh(self) -> None:
        if self._clock.monotonic() - self._looked >= REFRESH_SECONDS:
            await self._look()

    async def _look(self) -> None:
        self._looked = self._clock.monotonic()
        self._known = {d.key: (_decode(d), d.version) for d in await self._store.docs(KIND)}

    # -- at a job's start and end

    async def gate(self, job: Job, handler: Handler) -> Transition | None:
        """Parks the job if what it calls is down; lets it through, perhaps as the one that probes."""
        await self._refresh()
        if not self._known:
            return None
        key = key_of(job, downstream=downstream_of(job, handler), fingerprint=job.fingerprint)
        found = self._known.get(key or "")
        if key is None or found is None:
            return None
        now = self._clock.now()
        judged = verdict(found[0], job.id, now)
        if judged == "probe" and not await self._write(key, probing(found[0], job.id, now), found[1]):
            judged = "park"
        return self._parked(job, found[0], now) if judged == "park" else None

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
        if cause.detail not in OPENING or not policy.breaker_after:
            if self._known or self._windows:
                await self.succeeded(job, handler)  # it answered: the trouble is this job's own
            return None, False
        key = key_of(job, downstream=downstream_of(job, handler), fingerprint=fingerprint)
        if key is None:
            return None, False
        now, known = self._clock.now(), self._known.get(key)
        if known is not None and known[0].state != "closed":
            probed = known[0].probe == job.id
            if probed:
                await self._write(key, probe_failed(known[0], failure.summary, now), known[1])
            return key, probed
        window = self._windows.setdefault(key, Window())
        if window.failed(cause.detail, now, policy.breaker_window or 60.0) < policy.breaker_after:
            return None, False
        await self._open(key, failure, cause, policy, now)
        return key, False

    async def _open(self, key: str, failure: Failure, cause: Cause, policy: Policy, now: float) -> None:
        pause, release = policy.breaker_pause or 5.0, policy.breaker_release or 20.0
        breaker = opened(key, cause.detail, failure.summary, now, pause=pause, release=release)
        del self._windows[key]
        known = self._known.get(key)
        if await self._write(key, breaker, known[1] if known else 0):
            log.warning("%s is down (%s): its jobs are parked, a probe follows in %g s", key, failure.summary, pause)

    async def succeeded(self, job: Job, handler: Handler) -> None:
        """What was called answers: the row of failures ends, and so does an open breaker."""
        if not self._windows and not self._known:
            return
        key = key_of(job, downstream=downstream_of(job, handler), fingerprint=_last_group(job))
        if key is None:
            return
        self._windows.pop(key, None)
        known = self._known.get(key)
        if known is not None and known[0].state != "closed":
            await self.close(key)

    async def close(self, key: str) -> bool:
        """It answers again, or a person says so: its jobs come back."""
        await self._look()
        known = self._known.get(key)
        if known is None or known[0].state == "closed":
            return False
        done = await self._write(key, closed(known[0], self._clock.now()), known[1])
        if done:
            log.warning("%s answers again: its parked jobs come back, %g a second", key, known[0].release)
        return done

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
        moved: list[Transition] = []
        for key, (breaker, version) in list(self._known.items()):
            if breaker.state == "closed":
                moved += await self._release(key, breaker, version)
            elif self._clock.now() >= breaker.until:
                moved += await self._lift(key, 1, f"probes whether {key} answers again")
        return moved

    async def _release(self, key: str, breaker: Breaker, version: int) -> list[Transition]:
        number, after = releasing(breaker, self._clock.now())
        if number < 1 or not await self._write(key, after, version):
            return []
        moved = await self._lift(key, number, f"{key} answers again")
        if not moved and (known := self._known.get(key)):
            await self._write(key, None, known[1])
        return moved

    async def _lift(self, key: str, number: int, why: str) -> list[Transition]:
        """The oldest of its parked jobs run again."""
        parked = Filter(states=(State.held,), held_for=key)
        page = await self._store.find(parked, limit=number, oldest=True)
        moves = [lifecycle.unblocked(job, self._clock.now(), who="breaker", why=why) for job in page.jobs]
        outcomes = await self._store.apply([Commit((move,)) for move in moves])
        return [move for move, outcome in zip(moves, outcomes, strict=True) if isinstance(outcome, Applied)]


def downstream_of(job: Job, handler: Handler | None) -> str | None:
    """What the job calls, where anybody said so: the host of a delivery, or the task's `downstream=`."""
    if job.task == HTTP_TASK:
        url = job.arguments.get("url")
        return host_of(url) if isinstance(url, str) else None
    return handler.downstream_of(job) if handler is not None else None


def _last_group(job: Job) -> str | None:
    return job.history[-1].fingerprint if job.history else job.fingerprint


def _decode(document: Document) -> Breaker:
    return msgspec.json.decode(document.value, type=Breaker)
