"""Handlers by name and policies by precedence: job > task > queue > reason > default."""

from typing import Any

import msgspec
import pytest

from redrive.core.job import Job, Options, State
from redrive.core.policy import DEFAULT, Policy, Rate
from redrive.core.presets import PRESETS
from redrive.engine.registry import Handler, Registry
from redrive.errors import ConfigError, InvalidOption


async def work() -> None: ...
async def other() -> None: ...


def handler(name: str = "work", queue: str = "mail", function: Any = work, **policy: Any) -> Handler:
    return Handler(name, function, queue=queue, policy=Policy(**policy), wants_context=False)


def job(reason: str = "direct", agent: str | None = None, **options: Any) -> Job:
    text = msgspec.json.encode(Options(**options)).decode() if options else None
    return Job("id", "mail", "work", agent, State.waiting, 2, 0.0, 1, 0.0, 0.0, "{}", reason=reason, options_json=text)


def test_each_layer_goes_before_the_next() -> None:
    registry = Registry()
    assert registry.policy_for(job()).lease == DEFAULT.lease
    assert registry.policy_for(job("deferred_submit")).lease == 600.0
    registry.configure("mail", Policy(lease=10.0))
    assert registry.policy_for(job("deferred_submit")).lease == 10.0
    registry.add(handler(lease=20.0))
    assert registry.policy_for(job("deferred_submit")).lease == 20.0
    assert registry.policy_for(job("deferred_submit", lease=30.0)).lease == 30.0


def test_layers_are_merged_field_by_field() -> None:
    registry = Registry({"mail": Policy(max_attempts=7, base=1.0)})
    registry.add(handler(base=4.0))
    policy = registry.policy_for(job(max_age=9.0))
    assert (policy.max_attempts, policy.base, policy.max_age, policy.cap) == (7, 4.0, 9.0, DEFAULT.cap)


def test_reasons_and_agents_have_their_own_defaults() -> None:
    registry = Registry(agent_policy=PRESETS["seven_agents"].agent_policy)
    retry = registry.policy_for(job("retry"))
    assert (retry.backoff, retry.max_age) == ("adaptive", 1800.0)
    agent = registry.policy_for(job(agent="writer"))
    assert (agent.max_attempts, agent.base, agent.cap) == (3, 30.0, 300.0)
    registry.configure("mail", Policy(max_attempts=8))
    assert registry.policy_for(job(agent="writer")).max_attempts == 8
    assert Registry().policy_for(job(agent="writer")) == DEFAULT, "without a preset an agent's job is like any other"


def test_a_presets_queues_are_there_and_can_be_changed() -> None:
    queues = PRESETS["agent_os"].queues
    registry = Registry({"feedback": Policy(base=9.0), "mesh_keys": Policy(backoff="adaptive")}, preset_queues=queues)
    policy = registry.queue_policy("feedback")
    assert (policy.base, policy.criticality) == (9.0, queues["feedback"].criticality)
    assert registry.queue_policy("mesh_keys").max_attempts == 10, "its base is inherited, not said again"
    assert registry.spoken_of() == {"feedback", "mesh_keys"}
    assert Registry().queues == {}


def test_what_is_said_later_counts_at_once() -> None:
    registry = Registry()
    assert registry.policy_for(job()).max_attempts == 5
    registry.configure("mail", Policy(max_attempts=2))
    assert registry.policy_for(job()).max_attempts == 2


def test_the_limits_of_a_task_hold_for_its_queue() -> None:
    registry = Registry({"web": Policy(rate=Rate(5))})
    assert list(registry.limited()) == ["web"]
    registry.add(handler(concurrency=3, scope="store"))
    limited = registry.limited()
    assert sorted(limited) == ["mail", "web"]
    assert (limited["mail"].concurrency, limited["mail"].scope) == (3, "store")


def test_a_name_belongs_to_one_function() -> None:
    registry = Registry()
    registry.add(handler())
    registry.add(handler(max_attempts=2))
    with pytest.raises(ConfigError, match="'work'"):
        registry.add(handler(function=other))


@pytest.mark.behaviour("R-9c")
def test_a_base_without_effect_is_refused_only_where_one_layer_says_both() -> None:
    with pytest.raises(InvalidOption, match=r"^work\.base: has no effect with backoff 'adaptive'"):
        handler(backoff="adaptive", base=5.0)
    with pytest.raises(InvalidOption, match=r"^queues\.mail\.base: has no effect with backoff 'none'"):
        Registry({"mail": Policy(backoff="none", base=5.0)})
    registry = Registry({"mail": Policy(base=5.0)})
    registry.configure("mail", Policy(backoff="adaptive"))
    registry.add(handler(backoff="fixed_10s"))
    assert registry.policy_for(job()).backoff == "fixed_10s"


@pytest.mark.parametrize("policy", [{"max_attempts": 0}, {"backoff": "odd"}, {"lease": 0}, {"jitter": 2.0}], ids=str)
def test_impossible_policies_are_refused_when_they_are_said(policy: dict[str, Any]) -> None:
    (field,) = policy
    with pytest.raises(InvalidOption, match=f"work.{field}"):
        handler(**policy)
    with pytest.raises(InvalidOption, match=f"queues.mail.{field}"):
        Registry({"mail": Policy(**policy)})


def test_a_handler_knows_what_it_runs() -> None:
    def blocking() -> None: ...

    assert handler().is_async
    assert not handler(function=blocking).is_async
