"""Numbers, health and pain: what the store says, read by insight, told to whoever listens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from redrive.core.breakers import Breaker
from redrive.core.job import State, iso
from redrive.core.lifecycle import DEFERRED
from redrive.core.redrives import RedriveRun
from redrive.core.store import Filter
from redrive.insight.health import OLD_DEFERRAL, Health, Pain, QueueNumbers, Remembered, health, pains, sore
from redrive.runtime.bus import BusEvent
from redrive.runtime.living import GONE_AFTER, living, unattended
from redrive.runtime.notify import by_function, name_of, no_answer, sent
from redrive.runtime.paging import pages
from redrive.runtime.switches import paused_queues

if TYPE_CHECKING:
    from redrive.app import Redrive

log = logging.getLogger("redrive.health")
COUNTED = (*map(str, State), "forgotten")
"""Where an accepted job can be."""
ON_THE_BUS: Final = 0
"""Among those who have heard of something: the subscribers of this process. Sinks go by identity, which is never 0."""
PAGE: Final = 1_000
NOT_KNOWN = "no live worker knows it"
NOT_TAKEN = "live workers know it, but none of them takes it: see their queues and agents"


class Watch:
    """Looks at the queues of the whole store."""

    def __init__(self, app: Redrive) -> None:
        self._app = app
        self._remembered = Remembered()

    async def numbers(self) -> list[QueueNumbers]:
        """Every queue that ever had a job or is paused, as it is now."""
        store, registry, now = self._app.store, self._app.registry, self._app.clock.now()
        by_state = await store.count(Filter(), by=("queue", "state"))
        due = await store.count(Filter(states=(State.waiting,), due_at=now), by=("queue",))
        stalled = await self._stalled(now)
        blocked = await store.count(Filter(states=(State.held,), because="blocked"), by=("queue",))
        later = Filter(states=(State.held,), because=DEFERRED)
        deferred = await store.count(later, by=("queue",))
        overdue = await store.count(replace(later, due_at=now), by=("queue",)) if deferred else {}
        put_off = await store.count(replace(later, until=now - OLD_DEFERRAL), by=("queue",)) if deferred else {}
        alone = await unattended(store, now) if due else {}
        paused = await paused_queues(store)
        names = sorted({str(queue) for queue, _ in by_state} | paused.keys())
        return [
            QueueNumbers(
                name,
                registry.queue_policy(name),
                due=due.get((name,), 0),
                paused=name in paused,
                stalled=stalled.get(name, ()),
                blocked=blocked.get((name,), 0),
                deferred=deferred.get((name,), 0),
                overdue=overdue.get((name,), 0),
                put_off=put_off.get((name,), 0),
                unattended=sum(number for (queue, _), number in alone.items() if queue == name),
                **{kind: by_state.get((name, kind), 0) for kind in COUNTED},
            )
            for name in names
        ]

    async def _stalled(self, now: float) -> dict[str, list[str]]:
        """Running jobs that have been at it for longer than their queue thinks right."""
        found: dict[str, list[str]] = {}
        if not any(policy.stalled_after for policy in self._app.registry.queues.values()) and not any(
            handler.policy.stalled_after for handler in self._app.registry.handlers.values()
        ):
            return found
        async for page in pages(self._app.store, Filter(states=(State.running,)), PAGE):
            for job in page:
                limit = self._app.registry.policy_for(job).stalled_after
                if limit is not None and job.started_at is not None and now - job.started_at > limit:
                    time = f"{now - job.started_at:.0f} s"
                    text = f"job {job.short_id} ({job.task}) has been running for {time} (stalled)"
                    found.setdefault(job.queue, []).append(text)
        return found

    async def health(self) -> Health:
        spooled = self._app.spool.count()
        troubles = [f"spool: {spooled} jobs wait for the store"] if spooled else []
        troubles += [f"{b.key} is down since {iso(b.since)} ({b.cause})" for b in await self._down()]
        troubles += [f"redrive {run.short_id} is paused ({run.reason})" for run in await self._paused()]
        troubles += await self._app.notices.troubles()
        troubles += [f"event loop blocked by {name}" for name in self._blocked()]
        queues = await self.numbers()
        troubles += await self._unattended() if any(queue.unattended for queue in queues) else []
        return health(queues, troubles)

    async def _unattended(self) -> list[str]:
        """What nobody has run for so long that no worker is only being restarted."""
        store, now = self._app.store, self._app.clock.now()
        left = await unattended(store, now, GONE_AFTER)
        known = {task for worker in await living(store, now) for task in worker.tasks}
        return [
            f"{queue}: {number} due, and nobody runs {task} ({NOT_TAKEN if task in known else NOT_KNOWN})"
            for (queue, task), number in sorted(left.items())
        ]

    async def _paused(self) -> list[RedriveRun]:
        """Bulk redrives that go on when a person says so: a canary that failed, or somebody stopped them."""
        return [run for run in await self._app.redrives.live() if run.state == "paused"]

    async def _down(self) -> list[Breaker]:
        return [breaker for breaker in await self._app.breakers() if breaker.down]

    def _blocked(self) -> list[str]:
        return [worker.heart.blocked for _, worker in self._app._workers if worker.heart and worker.heart.blocked]

    async def stats(self) -> dict[str, Any]:
        """Per queue and in total; `accepted` is what must equal the sum of all the others."""
        queues = await self.numbers()
        totals = {kind: sum(getattr(queue, kind) for queue in queues) for kind in COUNTED}
        totals["spooled"] = self._app.spool.count()
        return {
            "queues": [queue.public() for queue in queues],
            "totals": {**totals, "due": sum(queue.due for queue in queues)},
            "accepted": sum(totals.values()),
            "runtime": self._app.bus.metrics(),
            "subscriber_failures": self._app.bus.subscriber_failures,
        }

    async def look(self) -> None:
        """One round of the watch: depth warnings on the bus, pain to the sinks."""
        now = self._app.clock.now()
        queues = await self.numbers()
        self._remembered.over(sore(queues))
        silent: set[int] = set()
        for pain in pains(queues):
            if self._remembered.fresh(pain, now) and await self._deliver(pain, now, silent):
                self._remembered.delivered(pain, now)

    async def _deliver(self, pain: Pain, now: float, silent: set[int]) -> bool:
        """Told to the bus and every sink; counts as delivered only if no sink failed."""
        heard = self._remembered.heard(pain)
        if ON_THE_BUS not in heard:
            heard.add(ON_THE_BUS)
            type = "depth_warning" if pain.kind == "depth" else "pain"
            data = {"kind": pain.kind, "severity": pain.severity, "message": pain.message}
            self._app.bus.publish(BusEvent(type, pain.queue, now, data=data))
            log.warning("%s (severity %.2f)", pain.message, pain.severity)
        return await tell_sinks(self._app, pain, heard, silent)


async def tell_sinks(app: Redrive, pain: Pain, heard: set[int], silent: set[int]) -> bool:
    """True once every sink has taken it. Those in `heard` (by identity) have, from an earlier try, and are spared.

    One that says nothing is put among the `silent`, who are asked no more in this look: whoever waits for each of a
    hundred alerts holds up the other sinks for a quarter of an hour.
    """
    for sink in [sink for sink in app.signals if id(sink) not in heard | silent]:
        trouble = await sent(by_function(sink), pain)
        if trouble is None:
            heard.add(id(sink))
            continue
        if trouble == no_answer():
            silent.add(id(sink))
        log.warning("%s did not take a signal and will be told again: %s", name_of(sink), trouble)
    return all(id(sink) in heard for sink in app.signals)
