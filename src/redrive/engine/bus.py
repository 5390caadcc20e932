"""Publishes the events of this process to subscribers at once, in memory only."""

from __future__ import annotations

import asyncio
import fnmatch
import inspect
import logging
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition

log = logging.getLogger("redrive.bus")

EVENTS: Final = ("enqueued", "retry", "completed", "dead_letter", "depth_warning", "replayed")
"""The six event types that every dashboard needs. Others (held, cancelled, pain, …) are published in the same way."""
RING: Final = 20


class BusEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a queue."""

    type: str
    queue: str
    at: float
    job_id: str | None = None
    task: str | None = None
    attempt: int = 0
    data: dict[str, Any] | None = None


_TOLD_AS: Final = {
    "succeeded": "completed",
    "retried": "retry",
    "buried": "dead_letter",
    "imported": "dead_letter",
    "redriven": "replayed",
    "held_back": "held",
}


def make_move_event(transition: Transition) -> BusEvent:
    """Makes the event of a committed move."""
    job, move = transition.job, transition.move
    data: dict[str, Any] | None = None
    if move not in ("succeeded", "enqueued"):
        data = {"why": transition.why, "who": transition.who, "because": transition.set.get("because")}
        if move == "retried":
            data["run_at"] = transition.set["run_at"]
    attempts = transition.set.get("attempts", job.attempts)
    return BusEvent(_TOLD_AS.get(move, move), job.queue, transition.at, job.id, job.task, attempts, data)  # type: ignore[arg-type]


def make_new_event(job: Job) -> BusEvent:
    """Makes the event of an inserted job. A job that failed elsewhere begins as a dead letter."""
    if job.state is not State.dead:
        return BusEvent("enqueued", job.queue, job.created_at, job.id, job.task)
    why = job.history[-1].decision if job.history else None
    data = {"why": why, "who": None, "because": job.because}
    return BusEvent("dead_letter", job.queue, job.updated_at, job.id, job.task, job.attempts, data)


Subscriber = Callable[[BusEvent], Awaitable[None] | None]


class Subscription:
    """A pattern and the callback for its events. `close()` ends the subscription."""

    def __init__(self, bus: Bus, pattern: str, callback: Subscriber) -> None:
        self.pattern = pattern
        self.callback = callback
        self.failures = 0
        whole = pattern if "." in pattern else f"{pattern}.*"
        self._matches = re.compile(fnmatch.translate(whole)).match
        self._bus = bus

    def wants(self, event: BusEvent) -> bool:
        return self._matches(f"{event.type}.{event.queue}") is not None

    def close(self) -> None:
        self._bus.drop(self)


class Bus:
    """Publish and subscribe with wildcards (`dead_letter`, `*.feedback`, `*`). A failing subscriber stops no other."""

    def __init__(self, ring: int = RING) -> None:
        self.recent: deque[BusEvent] = deque(maxlen=ring)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.subscriber_failures = 0
        self._subscriptions: list[Subscription] = []
        self._pending: set[asyncio.Future[Any]] = set()

    def subscribe(self, pattern: str, callback: Subscriber) -> Subscription:
        subscription = Subscription(self, pattern, callback)
        self._subscriptions.append(subscription)
        return subscription

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of all subscriptions in this process."""
        return tuple(subscription.pattern for subscription in self._subscriptions)

    def drop(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def publish_moves(self, moves: Sequence[Transition]) -> None:
        """Publishes the events of committed moves; makes only those that a subscriber or the ring will see."""
        if self._subscriptions:
            for move in moves:
                self.publish(make_move_event(move))
            return
        for move in moves:
            self.counts[move.job.queue, _TOLD_AS.get(move.move, move.move)] += 1
        self.recent.extend(make_move_event(move) for move in moves[-(self.recent.maxlen or 0) :])

    def publish_new(self, jobs: Sequence[Job]) -> None:
        """Publishes the events of inserted jobs; makes only those that a subscriber or the ring will see."""
        if self._subscriptions:
            for job in jobs:
                self.publish(make_new_event(job))
            return
        for job in jobs:
            self.counts[job.queue, "dead_letter" if job.state is State.dead else "enqueued"] += 1
        self.recent.extend(
            [
                make_new_event(job)
                if job.state is State.dead
                else BusEvent("enqueued", job.queue, job.created_at, job.id, job.task)
                for job in jobs[-(self.recent.maxlen or 0) :]
            ]
        )

    def publish(self, event: BusEvent) -> None:
        self.recent.append(event)
        self.counts[event.queue, event.type] += 1
        for subscription in tuple(self._subscriptions):
            if subscription.wants(event):
                self._tell(subscription, event)

    def _tell(self, subscription: Subscription, event: BusEvent) -> None:
        try:
            result = subscription.callback(event)
            if inspect.isawaitable(result):
                self._await(subscription, result)
        except Exception as error:  # noqa: BLE001 - isolated and counted
            self._count_failure(subscription, error)

    def _await(self, subscription: Subscription, result: Awaitable[None]) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            if inspect.iscoroutine(result):
                result.close()
            raise  # counted as the subscriber's failure: an async subscriber needs an event loop
        future = asyncio.ensure_future(result, loop=loop)
        self._pending.add(future)

        def finish(future: asyncio.Future[Any]) -> None:
            self._pending.discard(future)
            if not future.cancelled() and (error := future.exception()) is not None:
                self._count_failure(subscription, error)

        future.add_done_callback(finish)

    def _count_failure(self, subscription: Subscription, error: BaseException) -> None:
        subscription.failures += 1
        self.subscriber_failures += 1
        log.warning("subscriber to %r failed (%d times so far): %r", subscription.pattern, subscription.failures, error)

    def metrics(self) -> dict[str, dict[str, int]]:
        """Counts the events of this process since its start, by queue and type."""
        by_queue: dict[str, dict[str, int]] = {}
        for (queue, type), number in self.counts.items():
            by_queue.setdefault(queue, {})[type] = number
        return by_queue
