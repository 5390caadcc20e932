"""Computes how many jobs a worker may claim: in all, per queue, per agent, per second."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from redrive.core.bulkheads import Bulkheads, count_reserve, make_share
from redrive.core.job import Job
from redrive.core.policy import Policy, Rate
from redrive.core.store import Wanted
from redrive.engine.breakers import downstream_of
from redrive.http.policy import HTTP_TASK

SHARE = 100
"""The least number of jobs that a claim asks for, where so many slots are free."""
DELIVERIES = frozenset({HTTP_TASK})
OTHERS = ""
"""The name for the downstream of jobs whose downstream is not known."""


class Slots:
    """Counts the running jobs and computes what to claim next."""

    def __init__(
        self,
        total: int,
        tasks: frozenset[str],
        *,
        queues: frozenset[str] | None = None,
        agents: frozenset[str] | None = None,
        agent_limit: int | None = None,
        agents_in_store: bool = False,
    ) -> None:
        self.total = total
        self.tasks = tasks
        self.queues = queues
        self.agents = agents
        self._agent_limit = None if agents_in_store else agent_limit
        self._store_agent_limit = agent_limit if agents_in_store else None
        self._by_queue: Counter[str] = Counter()
        self._by_agent: Counter[str] = Counter()
        self._by_downstream: Counter[str] = Counter()
        self._hosts: dict[tuple[str, str | None], str | None] = {}
        """The host that each running delivery calls, by the job's id and token."""
        self.known_queues: frozenset[str] = frozenset()
        """Queues that this worker may claim besides those of its running jobs: of its tasks, of jobs in the store."""
        self.calls: Mapping[str, str] = {}
        """The `downstream=` of each task whose `downstream=` is a name."""
        self.known_hosts: frozenset[str] = frozenset()
        """The hosts that deliveries in the store call."""
        self._starts: dict[str, deque[float]] = {}
        self.running = 0
        self.share = max(SHARE, total // 2)
        """How many jobs to claim at once: a part of all, so that the store works on the next while these jobs run."""

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
        if self.calls or job.task in DELIVERIES:
            self._call(job, 1)

    def freed(self, job: Job) -> None:
        self.running -= 1
        self._by_queue[job.queue] -= 1
        if job.agent is not None:
            self._by_agent[job.agent] -= 1
        if self.calls or job.task in DELIVERIES:
            self._call(job, -1)

    def _call(self, job: Job, number: int) -> None:
        called = self._host_of(job, number) if job.task in DELIVERIES else self.calls.get(job.task)
        if called is None:
            return
        self._by_downstream[called] += number
        if not self._by_downstream[called]:
            del self._by_downstream[called]

    def _host_of(self, job: Job, number: int) -> str | None:
        """Returns the host of a delivery, read when the delivery starts and kept while it runs."""
        key = job.id, job.token
        if number < 0:
            return self._hosts.pop(key, None)
        self._hosts[key] = host = downstream_of(job, None)
        return host

    def wanted(
        self,
        policies: Mapping[str, Policy],
        paused: frozenset[str],
        leases: Mapping[str, float],
        now: float,
        *,
        synced: bool = False,
    ) -> Wanted:
        """Computes what a claim may take now: every limit of this process, and the limits that the store must count."""
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
            bulkheads=self._bulkheads(policies),
            store_agent_limit=self._store_agent_limit,
        )

    def _bulkheads(self, policies: Mapping[str, Policy]) -> Bulkheads | None:
        """Makes the slots that one queue or downstream may not take; None where no other could need them."""
        if self.total < 2:
            return None
        queues = make_share(self.total, self.claimable, dict(self._by_queue))
        downstreams = make_share(self.total, self._called(), dict(self._by_downstream))
        if queues is None and downstreams is None:
            return None
        deliveries = DELIVERIES & self.tasks if downstreams is not None else frozenset()
        own = frozenset(queue for queue, policy in policies.items() if policy.concurrency is not None)
        return Bulkheads(self.free, count_reserve(self.total), queues, downstreams, self.calls, deliveries, own)

    @property
    def claimable(self) -> frozenset[str]:
        """The queues that this worker may claim, as far as the worker knows."""
        return self.queues if self.queues is not None else self.known_queues.union(self._by_queue)

    def _called(self) -> set[str]:
        """Names the downstreams of the worker's jobs, as far as known before they start; OTHERS for unknown ones."""
        names = {*self.calls.values(), *self._by_downstream, *self.known_hosts}
        return names | {OTHERS} if names and self.tasks - self.calls.keys() - DELIVERIES else names

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
        """Computes the seconds until a rate-limited queue of this process may start another job."""
        waits = [
            starts[0] + rate.per - now
            for queue, starts in self._starts.items()
            if starts and (rate := policies[queue].rate) is not None and len(starts) >= rate.count
        ]
        return max(0.001, min(waits)) if waits else None
