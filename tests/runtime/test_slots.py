"""How much a worker may take on: pure counting."""

from redrive.core.job import Job, State
from redrive.core.policy import Policy, Rate
from redrive.core.store import Wanted
from redrive.runtime.slots import Slots


def job(queue: str = "mail", agent: str | None = None, id: str = "1") -> Job:
    return Job(id, queue, "work", agent, State.running, 2, 0.0, 1, 0.0, 0.0, "{}")


def want(slots: Slots, now: float = 0.0, **policies: Policy) -> Wanted:
    return slots.wanted(policies, frozenset(), {}, now)


def test_free_slots_are_what_is_not_taken() -> None:
    slots = Slots(3, frozenset({"work"}))
    assert (slots.free, want(slots).slots) == (3, 3)
    slots.taken(job(), 0.0)
    slots.taken(job(), 0.0)
    assert (slots.free, slots.running, want(slots).slots) == (1, 2, 1)
    slots.freed(job())
    assert slots.free == 2


def test_filters_pauses_and_leases_are_passed_on() -> None:
    slots = Slots(1, frozenset({"work"}), queues=frozenset({"mail"}), agents=frozenset({"a"}))
    wanted = slots.wanted({}, frozenset({"web"}), {"work": 5.0}, 0.0, synced=True)
    assert (wanted.tasks, wanted.queues, wanted.agents) == ({"work"}, {"mail"}, {"a"})
    assert (wanted.not_queues, wanted.leases, wanted.synced) == ({"web"}, {"work": 5.0}, True)


def test_a_queues_limit_of_this_process() -> None:
    slots = Slots(10, frozenset())
    policy = Policy(concurrency=2, scope="process")
    slots.taken(job(), 0.0)
    assert want(slots, mail=policy).queue_slots == {"mail": 1}
    slots.taken(job(), 0.0)
    slots.taken(job("web"), 0.0)
    assert want(slots, mail=policy).queue_slots == {"mail": 0}
    assert want(slots, mail=policy).store_limits == {}


def test_a_limit_of_the_store_is_left_to_the_store() -> None:
    slots = Slots(10, frozenset())
    slots.taken(job(), 0.0)
    wanted = want(slots, mail=Policy(concurrency=2, rate=Rate(5), scope="store"))
    assert (wanted.store_limits, wanted.store_rates, wanted.queue_slots) == ({"mail": 2}, {"mail": Rate(5)}, {})


def test_a_rate_counts_starts_in_its_window() -> None:
    slots = Slots(10, frozenset())
    policy = Policy(rate=Rate(2, per=10.0), scope="process")
    assert want(slots, 0.0, mail=policy).queue_slots == {"mail": 2}
    slots.taken(job(), 1.0)
    slots.taken(job(), 4.0)
    slots.freed(job())
    slots.freed(job())
    assert want(slots, 5.0, mail=policy).queue_slots == {"mail": 0}
    assert slots.rate_pause({"mail": policy}, 5.0) == 6.0
    assert want(slots, 11.0, mail=policy).queue_slots == {"mail": 1}
    assert slots.rate_pause({"mail": policy}, 11.0) is None


def test_the_tighter_of_rate_and_limit_counts() -> None:
    slots = Slots(10, frozenset())
    policy = Policy(concurrency=1, rate=Rate(5), scope="process")
    assert want(slots, mail=policy).queue_slots == {"mail": 1}
    slots.taken(job(), 0.0)
    assert want(slots, mail=policy).queue_slots == {"mail": 0}


def test_agents_have_a_limit_each() -> None:
    slots = Slots(10, frozenset(), agent_limit=2)
    slots.taken(job(agent="a"), 0.0)
    slots.taken(job(agent="a"), 0.0)
    slots.taken(job(agent="b"), 0.0)
    slots.taken(job(), 0.0)
    wanted = want(slots)
    assert (wanted.agent_slots, wanted.agent_limit) == ({"a": 0, "b": 1}, 2)
    slots.freed(job(agent="a"))
    assert want(slots).agent_slots["a"] == 1
