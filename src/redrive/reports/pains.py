"""Finds pains in the whole store, and writes notices about them into the outbox.

A pain that was sent stays in the store as a document until the pain is over, so that of any number of processes one
sends it, and a restart sends nothing twice. Only the courier calls the channels and the functions of `signals=`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from redrive.core.commit import try_commit
from redrive.core.documents import WAITING, Kept, Kind
from redrive.core.job import State
from redrive.core.notice import Notice, waiting_key
from redrive.core.pain import Hurting, Pain, notice_of, record_telling, write_end_notice
from redrive.core.store import Filter, Put
from redrive.engine.bus import BusEvent
from redrive.reports.health import aching, downstreams, pains, sore
from redrive.retries.breaker import Breaker, name_of_key

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.reports.watch import Watch

log = logging.getLogger("redrive.health")
HURTING: Final = Kind[Hurting]("pain", Hurting)
NEEDS_SECONDS: Final = 60.0
"""Seconds between two searches of the whole list of needs for pains."""


class Pains:
    """Finds pains in the whole store and sends notices about them."""

    def __init__(self, core: Core, watch: Watch) -> None:
        self._core = core
        self._watch = watch
        self._needs_at = float("-inf")
        self._aching: list[Pain] = []

    async def look(self) -> None:
        """Runs one round: sends notices of new pains, and ends the pains that are over."""
        now, queues, down = self._core.clock.now(), await self._watch.numbers(), await self._down()
        current = {pain.key: pain for pain in [*pains(queues), *downstreams(down), *await self._needs()]}
        known = {kept.key: kept for kept in await HURTING.all(self._core.store)}
        still = current.keys() | {f"{kind}/{queue}" for kind, queue in sore(queues)}
        for key, kept in known.items():
            if key not in still:
                await self._end(kept, now)
        for key, pain in current.items():
            await self.tell(pain, known.get(key), now)

    async def _down(self) -> list[tuple[Breaker, int]]:
        """Reads downstreams that do not answer, each with the number of its parked jobs.

        Downstreams that asked for a pause are left out: they say until when.
        """
        down = [breaker for breaker in await self._watch.breakers() if breaker.down and not breaker.asked]
        parked = Filter(states=(State.held,), because="circuit_open")
        counted = await self._core.store.count(parked, by=("held_for",)) if down else {}
        return [(breaker, counted.get((breaker.key,), 0)) for breaker in down]

    async def _needs(self) -> list[Pain]:
        """Reads the pains among the needs once a minute: none of them is a matter of seconds."""
        steady = self._core.clock.monotonic()
        if steady - self._needs_at >= NEEDS_SECONDS:
            self._needs_at = steady
            self._aching = aching((await self._watch.health()).needs)
        return self._aching

    async def tell(self, pain: Pain, known: Kept[Hurting] | None, now: float) -> bool:
        """Writes the pain into the outbox unless it was sent a moment ago. False if another process was faster."""
        hurting = record_telling(pain, known.value if known else None, now)
        if hurting is None:
            return False
        notice = notice_of(pain, hurting)
        state = HURTING.put(pain.key, hurting, known.version if known else 0)
        if not await self._write(state, notice):
            return False
        type = "depth_warning" if pain.kind == "depth" else "pain"
        data = {"kind": pain.kind, "severity": pain.severity, "message": pain.message, "about": pain.about}
        self._publish(type, pain.queue, now, data)
        log.warning("%s (severity %.2f)", pain.message, pain.severity)
        return True

    async def _end(self, kept: Kept[Hurting], now: float) -> None:
        """Forgets a pain that is over, so that the pain is sent at once when it comes back.

        A notice tells that a downstream answers again, too: people who were woken for the outage want to know.
        """
        kind, _, about = kept.key.partition("/")
        put = HURTING.drop(kept.key, kept.version)
        if kind != "downstream_down":
            await try_commit(self._core.store, puts=[put], what=f"{kept.key} was forgotten")
            return
        message = f"{name_of_key(about)} answers again: its parked jobs come back"
        if await self._write(put, write_end_notice(kept.key, kept.value, message, now)):
            self._publish("pain_over", "", now, {"kind": kind, "about": about, "message": message})
            log.warning("%s", message)

    async def _write(self, state: Put, notice: Notice) -> bool:
        """Writes the state and the notice in one commit: both or neither, and only one process succeeds."""
        puts = [state, WAITING.put(waiting_key(notice), notice)]
        return await try_commit(self._core.store, puts=puts, what=f"people will be told: {notice.title}") is not None

    def _publish(self, type: str, queue: str, now: float, data: Mapping[str, Any]) -> None:
        self._core.bus.publish(BusEvent(type, queue, now, data=dict(data)))
