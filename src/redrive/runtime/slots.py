"""How much a worker may take on: in all, per queue, per agent, per second."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from redrive.core.job import Job
from redrive.core.policy import Policy, Rate
from redrive.core.store import Wanted

SHARE = 100
"""The least a claim asks for, where so much is free."""


class Slots:
    """Counts what runs and says what is wanted next."""

    def __init__(
        self,
        total: int,
        tasks: frozenset[str],
        *,
        queues: frozenset[str] | None = None,
        agents: frozenset[str] | None = None,
        agent_limit: int | None = None,
    ) -> None:
        self.total = total
        self.tasks = tasks
        self.queues = queues
        self.agents = agents
        self._agent_limit = agent_limit
        self._by_queue: Counter[str] = Counter()
        self._by_agent: Counter[str] = Counter()
        self._starts: dict[str, deque[float]] = {}
        self.running = 0
        self.share = max(SHARE, total // 2)
        """How many to claim at once: a part of all, so that the store works on the next while these run."""

    @property
    def free(self) -> int:
        return self.total - self.running

    def taken(self, job: Job, now: float) -> None:
        self.running += 1
        self._by_queue[job.queue] += 1
        if job.agent is not None:
            self._by_agent[job.agent] += 1
        if job.queue in self._starts:
            self._starts[job.queue].append(now)

    def freed(self, job: Job) -> None:
        self.running -= 1
        self._by_queue[job.queue] -= 1
        if job.agent is not None:
            self._by_agent[job.agent] -= 1

    def wanted(
        self,
        policies: Mapping[str, Policy],
        paused: frozenset[str],
        leases: Mapping[str, float],
        now: float,
        *,
        synced: bool = False,
    ) -> Wanted:
        """What can be taken now, within every limit of this process and what the store must count itself."""
        room: dict[str, int] = {}
        limits: dict[str, int] = {}
        rates: dict[str, Rate] = {}
        for queue, policy in policies.items():
            whole_store = policy.scope == "store"
            if policy.concurrency is not None:
                if whole_store:
                    limits[queue] = policy.concurrency
                else:
                    room[queue] = policy.concurrency - self._by_queue[queue]
            if policy.rate is not None:
                if whole_store:
                    rates[queue] = policy.rate
                else:
                    left = self._rate_left(queue, policy.rate, now)
                    room[queue] = min(left, room.get(queue, left))
        return Wanted(
            min(self.free, self.share),
            self.tasks,
            self.queues,
            self.agents,
            paused,
            room,
            self._agents_left(),
            self._agent_limit,
            limits,
            rates,
            leases=leases,
            synced=synced,
        )

    def _agents_left(self) -> dict[str, int]:
        if self._agent_limit is None:
            return {}
        return {agent: self._agent_limit - running for agent, running in self._by_agent.items()}

    def _rate_left(self, queue: str, rate: Rate, now: float) -> int:
        starts = self._starts.setdefault(queue, deque())
        while starts and starts[0] <= now - rate.per:
            starts.popleft()
        return rate.count - len(starts)

    def rate_pause(self, policies: Mapping[str, Policy], now: float) -> float | None:
        """Seconds until a rate-limited queue of this process may start another job."""
        waits = [
            starts[0] + rate.per - now
            for queue, starts in self._starts.items()
            if starts and (rate := policies[queue].rate) is not None and len(starts) >= rate.count
        ]
        return max(0.001, min(waits)) if waits else None
