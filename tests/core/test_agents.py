"""Who can do what, with which models."""

from __future__ import annotations

import msgspec
import pytest

from redrive.core.agents import CONTEXTS, USUAL_CONTEXT, Agent, AgentFleet, Model
from redrive.core.presets import PRESETS

SEVEN = AgentFleet(PRESETS["seven_agents"].agents, escalation=PRESETS["seven_agents"].escalation)
KNOWN = {
    "cto": {"code_review", "architecture", "technical_writing", "debugging"},
    "backend": {"code_review", "implementation", "api_design", "debugging"},
    "frontend": {"implementation", "ui_review", "technical_writing"},
    "marketing": {"content_creation", "technical_writing", "social_media"},
    "devops": {"deployment", "monitoring", "infrastructure", "debugging"},
    "cso": {"security_review", "vulnerability_scan", "compliance"},
}


@pytest.mark.behaviour("004-28")
def test_the_seven_agents_and_what_they_do() -> None:
    assert {name: set(agent.does) for name, agent in SEVEN.agents.items()} == KNOWN
    assert list(SEVEN.agents) == ["cto", "backend", "frontend", "marketing", "devops", "cso"]
    assert SEVEN.escalation == "ceo"


@pytest.mark.behaviour("R-0a")
def test_without_a_preset_there_are_no_agents_and_no_escalation() -> None:
    assert (AgentFleet().agents, AgentFleet().escalation) == ({}, None)
    assert AgentFleet().alternate("cto", "code_review") is None
    assert AgentFleet({"cto": Agent(("code_review",))}).alternate("cto", "code_review") is None


@pytest.mark.behaviour("004-28")
def test_a_fleet_keeps_its_order() -> None:
    declared = msgspec.convert({"b": {"does": ["x"]}, "a": {"does": ["x"], "models": ["m"]}}, dict[str, Agent])
    fleet = AgentFleet(declared, escalation="ceo")
    assert fleet.alternate("nobody", "x") == "b"
    assert fleet.alternate("b", "x") == "a"
    assert fleet.alternate("cto", "code_review") == "ceo"


@pytest.mark.behaviour("004-29")
@pytest.mark.parametrize(
    ("agent", "work", "expected"),
    [
        ("cso", "compliance", "ceo"), ("cso", "security_review", "ceo"), ("marketing", "technical_writing", "cto"),
        ("cto", "technical_writing", "frontend"), ("cto", "code_review", "backend"), ("backend", "code_review", "cto"),
        ("devops", "debugging", "cto"), ("cto", "debugging", "backend"), ("frontend", "implementation", "backend"),
        ("frontend", "ui_review", "ceo"), ("devops", "unheard of", "ceo"), (None, "debugging", "cto"),
        ("stranger", "debugging", "cto"),
    ],
)  # fmt: skip
def test_the_first_other_agent_that_can_else_the_escalation(agent: str | None, work: str, expected: str) -> None:
    assert SEVEN.alternate(agent, work) == expected


def test_whom_things_are_escalated_to_can_be_chosen() -> None:
    assert AgentFleet(escalation="chief").alternate("cso", "compliance") == "chief"


# ---- models


@pytest.mark.behaviour("004-43", "R-9e")
@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        (None, 150_000), ("", 150_000), ("unheard-of", 150_000), ("claude-opus-4-1", 180_000),
        ("anthropic/claude-sonnet-4-5", 150_000), ("claude-sonnet-4", 150_000), ("claude-opus-4", 180_000),
        ("claude-3-5-sonnet-latest", 150_000), ("claude-3-7-sonnet-20250219", 150_000),
        ("openrouter/anthropic/claude-3-haiku", 180_000), ("my-claude-", 150_000),
    ],
)  # fmt: skip
def test_how_much_a_model_may_read(model: str | None, tokens: int) -> None:
    assert AgentFleet().context(model) == tokens
    assert USUAL_CONTEXT == 150_000


@pytest.mark.behaviour("004-43")
def test_what_is_declared_of_a_model_goes_first() -> None:
    fleet = AgentFleet(
        models={"claude-opus-4-1": Model(context=900_000), "mine": Model(context=8_000), "other": Model()}
    )
    assert fleet.context("claude-opus-4-1") == 900_000
    assert fleet.context("mine") == 8_000
    assert fleet.context("other") == 150_000
    assert fleet.smallest == 8_000
    assert AgentFleet().smallest == min(USUAL_CONTEXT, *CONTEXTS.values())


def test_a_longer_beginning_is_never_shadowed_by_a_shorter_one() -> None:
    starts = list(CONTEXTS)
    shadowed = [(one, later) for i, one in enumerate(starts) for later in starts[i + 1 :] if later.startswith(one)]
    assert not shadowed


def test_larger_and_other_only_as_declared() -> None:
    fleet = AgentFleet(
        {"writer": Agent((), ("s", "m", "l"))},
        {"s": Model(larger="xl", other="q"), "z": Model(), "m": Model(other="q")},
    )
    assert [fleet.larger(model, "writer") for model in ("s", "m", "l", "z", None)] == ["xl", "l", None, None, None]
    assert [fleet.other(model, "writer") for model in ("s", "m", "l", "z")] == ["q", "q", "s", "s"]
    assert fleet.larger("m", None) is None
    assert fleet.other("l", None) is None
    assert AgentFleet().larger("gpt-4o", "cto") is None
    assert AgentFleet().other("gpt-4o", "cto") is None


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="dose"):
        msgspec.convert({"dose": []}, Agent)
    with pytest.raises(msgspec.ValidationError, match="contxt"):
        msgspec.convert({"contxt": 1}, Model)
