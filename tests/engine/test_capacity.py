"""How much a worker may take on: pure counting."""

from redrive.core.bulkheads import Share
from redrive.core.job import Job, State
from redrive.core.policy import Policy, Rate
from redrive.core.store import Wanted
from redrive.engine.capacity import Slots
from redrive.http.policy import HTTP_TASK


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


def test_bulkheads_say_what_every_queue_holds() -> None:
    slots = Slots(10, frozenset({"work"}))
    slots.known_queues = frozenset({"mail", "web"})
    slots.taken(job(), 0.0)
    slots.taken(job("other"), 0.0)
    bulkheads = want(slots, web=Policy(concurrency=3), mail=Policy(rate=Rate(5))).bulkheads
    assert bulkheads is not None
    assert (bulkheads.free, bulkheads.kept, bulkheads.exempt) == (8, 2, {"web"})
    assert bulkheads.queues == Share(3, {"mail": 1, "other": 1})
    assert bulkheads.downstreams is None


def test_one_queue_or_one_slot_has_no_bulkheads() -> None:
    one = Slots(10, frozenset({"work"}), queues=frozenset({"mail"}))
    one.known_queues = frozenset({"mail", "web"})
    assert want(one).bulkheads is None
    single = Slots(1, frozenset({"work"}))
    single.known_queues = frozenset({"mail", "web"})
    assert want(single).bulkheads is None


def test_what_running_jobs_call_is_counted_while_they_run() -> None:
    slots = Slots(10, frozenset({"work", "post", HTTP_TASK}))
    slots.calls = {"work": "crm"}
    delivery = Job("2", "mail", HTTP_TASK, None, State.running, 2, 0.0, 1, 0.0, 0.0, '{"url": "https://a.example/x"}')
    for each in (job(), delivery):
        slots.taken(each, 0.0)
    bulkheads = want(slots).bulkheads
    assert bulkheads is not None and bulkheads.deliveries == {HTTP_TASK} and bulkheads.calls == {"work": "crm"}
    assert bulkheads.downstreams == Share(3, {"crm": 1, "host:a.example:443": 1}), "and the tasks that call who knows"
    for each in (job(), delivery):
        slots.freed(each)
    bulkheads = want(slots).bulkheads
    assert bulkheads is not None and bulkheads.downstreams == Share(5)


def test_a_worker_that_calls_one_downstream_keeps_nothing_from_it() -> None:
    slots = Slots(10, frozenset({"work", HTTP_TASK}))
    slots.calls = {"work": "crm"}
    slots.taken(job(), 0.0)
    assert want(slots).bulkheads is None
