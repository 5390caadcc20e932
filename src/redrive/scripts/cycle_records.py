"""Reads and writes the records of cycles' runs."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from redrive.core.commit import commit
from redrive.core.documents import Kind
from redrive.core.store import Put, Store
from redrive.engine.clock import Clock
from redrive.scripts.cycle_history import CycleRun, CycleStanding, Finding, RunOutcome, as_seen, findings, standings
from redrive.scripts.cycle_rules import key_prefix, queue_of

CYCLE_RUN: Final = Kind[CycleRun]("cycle_run", CycleRun)
KEPT: Final = 60
"""Records of a cycle that are kept, the newest."""


# ---- writing: the script that runs


class RunRecord:
    """Keeps the record of the run that is under way in this process."""

    def __init__(self, store: Store, clock: Clock, run: CycleRun) -> None:
        self._store = store
        self._clock = clock
        self._run = run
        self._key = f"{_prefix(run.name)}{run.begun:017.3f}-{secrets.token_hex(3)}"

    async def begin(self) -> None:
        """Write that the run has begun; drop the oldest records of its cycle."""
        process = await self._store.process()
        self._run = msgspec.structs.replace(self._run, process=process)
        old = (await CYCLE_RUN.all(self._store, _prefix(self._run.name)))[: 1 - KEPT]
        await _write(self._store, self._put(), *(CYCLE_RUN.drop(kept.key) for kept in old))

    def progress(self, jobs: int) -> Put:
        """Return the record with the number of jobs so far, for the commit that ends one of them."""
        self._run = msgspec.structs.replace(self._run, jobs=max(jobs, self._run.jobs))
        return self._put()

    async def end(self, outcome: RunOutcome, jobs: int, error_class: str | None) -> None:
        """Write how the run ended."""
        self._run = msgspec.structs.replace(self._run, outcome=outcome, jobs=jobs, error_class=error_class)
        await _write(self._store, self._put())

    def _put(self) -> Put:
        self._run = msgspec.structs.replace(self._run, seen=self._clock.now())
        return CYCLE_RUN.put(self._key, self._run)


def _prefix(name: str) -> str:
    return key_prefix(queue_of(name))


async def _write(store: Store, *puts: Put) -> None:
    await commit(store, puts=puts, what="the record of a cycle was written")


# ---- reading, with or without the script


async def cycle_findings(store: Store, now: float) -> list[Finding]:
    """List the cycles that are missing, died or had fewer jobs than usual."""
    return findings(await _runs(store, now), now)


async def cycle_standings(store: Store, now: float) -> list[CycleStanding]:
    """List how every cycle stands that has a record."""
    return standings(await _runs(store, now), now)


async def forget_cycle(store: Store, name: str) -> bool:
    """Drop the records of a cycle that is no longer expected; False where there is none."""
    puts = [CYCLE_RUN.drop(kept.key) for kept in await CYCLE_RUN.all(store, _prefix(name))]
    if puts:
        await _write(store, *puts)
    return bool(puts)


async def _runs(store: Store, now: float) -> list[CycleRun]:
    runs = [kept.value for kept in await CYCLE_RUN.all(store)]
    ended = await store.ended({run.process for run in runs if run.outcome == "under_way"})
    return as_seen(runs, ended, now)
