"""Counts the jobs of every queue and judges the health of the store."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from redrive.core.job import State
from redrive.core.lifecycle import DEFERRED
from redrive.core.store import Filter
from redrive.engine.breakers import Breakers
from redrive.engine.queue_pauses import read_paused_queues
from redrive.engine.worker_registry import count_unattended, list_living
from redrive.errors import StoreError
from redrive.jobs.open_store import is_file
from redrive.reports.gather_needs import look
from redrive.reports.health import Health, broken, health
from redrive.reports.needs import needs, spool_needs, store_failed
from redrive.reports.queue_numbers import OLD_DEFERRAL, QueueNumbers
from redrive.retries.breaker import Breaker, in_words

if TYPE_CHECKING:
    from redrive.deadletters.redrives import Redrives
    from redrive.jobs.core import Core
    from redrive.jobs.spool import Spool
    from redrive.notices.repeats import RepeatedActions
    from redrive.scripts.once import Effects

COUNTED = (*map(str, State), "forgotten")
"""Places where an accepted job can be: the states, and forgotten."""
HELD = {"parked": "circuit_open", "blocked": "blocked", "deferred": DEFERRED}
"""Numbers of held jobs, by why they are held."""
PARTS = ("due", "retrying", "parked", "comes_back", "pending")
"""Numbers that are parts of others, or sums of them."""


class Watch:
    """Numbers and health of all queues of the store."""

    def __init__(
        self, core: Core, spool: Spool, effects: Effects, repeats: RepeatedActions, redrives: Redrives
    ) -> None:
        self._core = core
        self._spool = spool
        self._repeats = repeats
        self._redrives = redrives
        self.snapshot: Final = partial(look, core, spool, effects)
        """Reads everything that may need a person, in the whole store or in one queue."""

    async def numbers(self) -> list[QueueNumbers]:
        """Counts the jobs of every queue that ever had a job or is paused."""
        store, registry, now = self._core.store, self._core.registry, self._core.clock.now()
        by_state = await store.count(Filter(), by=("queue", "state"))
        due = await self._by_queue(Filter(states=(State.waiting,), due_at=now))
        retrying = await self._by_queue(Filter(states=(State.waiting,), failed=True))
        retrying_due = (
            await self._by_queue(Filter(states=(State.waiting,), failed=True, due_at=now)) if retrying else {}
        )
        lanes = await store.count(Filter(states=(State.dead,)), by=("queue", "lane"))
        held = await store.count(Filter(states=(State.held,)), by=("queue", "because"))
        later = Filter(states=(State.held,), because=DEFERRED)
        deferred = any(because == DEFERRED for _, because in held)
        overdue = await self._by_queue(replace(later, due_at=now)) if deferred else {}
        put_off = await self._by_queue(replace(later, until=now - OLD_DEFERRAL)) if deferred else {}
        parts = {"due": due, "retrying": retrying, "overdue": overdue, "put_off": put_off}
        alone = Counter[str]()
        for (queue, _), number in (await count_unattended(store, now) if due else {}).items():
            alone[queue] += number
        back: dict[str, float] = {}
        for group in await store.returning(now):
            back[group.queue] = min(back.get(group.queue, math.inf), max(0.0, group.next_at - now))
        paused = await read_paused_queues(store)
        names = sorted({str(queue) for queue, _ in by_state} | paused.keys())
        return [
            QueueNumbers(
                name,
                registry.queue_policy(name),
                retrying_later=retrying.get(name, 0) - retrying_due.get(name, 0),
                comes_back=lanes.get((name, "delayed"), 0),
                next_back=back.get(name),
                paused=name in paused,
                unattended=alone[name],
                **{part: of_queue.get(name, 0) for part, of_queue in parts.items()},
                **{part: held.get((name, because), 0) for part, because in HELD.items()},
                **{kind: by_state.get((name, kind), 0) for kind in COUNTED},
            )
            for name in names
        ]

    async def _by_queue(self, chosen: Filter) -> dict[str, int]:
        return {
            str(queue): number for (queue,), number in (await self._core.store.count(chosen, by=("queue",))).items()
        }

    async def health(self) -> Health:
        """Judges the health of the store; also of a store that cannot be used, which is the first need."""
        try:
            if (stopped := self._core.store.failed) is None:
                queues = await self.numbers()
                return health(queues, needs(await self.snapshot(queues)), await self._facts())
            problem = f"it has stopped itself: {stopped}"
        except StoreError as error:
            problem = str(error)
        return broken(
            [
                store_failed(problem, fleet=not is_file(self._core.settings.url)),
                *spool_needs(self._spool.count()),
            ]
        )

    async def _facts(self) -> list[str]:
        """Lists what is wrong and needs no person: downstreams that are down, paused bulk redrives, busy single-slot
        workers, and sessions that repeat actions."""
        parked = await self._core.store.count(Filter(states=(State.held,), because="circuit_open"), by=("held_for",))
        down = [in_words(breaker, parked.get((breaker.key,), 0)) for breaker in await self.breakers() if breaker.down]
        live = await self._redrives.live()  # what a failed canary or a person stopped, only a person resumes
        paused = [f"redrive {run.short_id} is paused ({run.reason})" for run in live if run.state == "paused"]
        return down + paused + await self._one_at_a_time() + await self._repeats.facts()

    async def _one_at_a_time(self) -> list[str]:
        """Describes workers with a single slot that a job holds while other jobs are due."""
        now = self._core.clock.now()
        workers = [one for one in await list_living(self._core.store, now) if one.one_at_a_time and one.running]
        due = sum((await self._by_queue(Filter(states=(State.waiting,), due_at=now))).values()) if workers else 0
        return [f"a worker takes one job at a time (concurrency 1): {due} due jobs wait behind the one that runs"] * (
            due > 0
        )

    async def breakers(self) -> list[Breaker]:
        """Lists the breakers of all downstreams, as far as any process noticed: which are down, and since when."""
        return await Breakers(self._core.store, self._core.clock).all()

    async def stats(self) -> dict[str, Any]:
        """Counts jobs per queue and in total; `accepted` is the sum of all places where an accepted job can be."""
        queues = await self.numbers()
        totals = {kind: sum(getattr(queue, kind) for queue in queues) for kind in COUNTED}
        totals["spooled"] = self._spool.count()
        return {
            "queues": [queue.public() for queue in queues],
            "totals": {**totals, **{part: sum(getattr(queue, part) for queue in queues) for part in PARTS}},
            "accepted": sum(totals.values()),
            "runtime": self._core.bus.metrics(),
            "subscriber_failures": self._core.bus.subscriber_failures,
        }
