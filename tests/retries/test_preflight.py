"""What cannot succeed is refused before it costs anything."""

from __future__ import annotations

from math import ceil
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.agents import AgentFleet, Model
from redrive.core.policy import DEFAULT, Policy, merge
from redrive.retries.changes import Adapt, tokens
from redrive.retries.preflight import (
    Conditions,
    NotReady,
    Ready,
    credentials,
    fits,
    short_enough,
    still_wanted,
    surely_fits,
)
from tests.stores.jobs import T0, a_job

POLICY = merge(Policy(), DEFAULT)


def words(text: str) -> int:
    """A counter that tests can steer: one token a character."""
    return len(text)


def judged(needed: int, budget: int = 150_000, **how: Any) -> Ready | NotReady | None:
    fleet = AgentFleet(models={"m": Model(context=budget)})
    conditions = Conditions(fleet, count=words, **how)
    payload = {"prompt": "x" * needed}
    assert tokens(payload, None, words) == needed
    return fits(payload, "m", conditions)


@pytest.mark.behaviour("004-45", "004-46")
@pytest.mark.parametrize("budget", [150_000, 180_000, 1_000])
def test_the_edges(budget: int) -> None:
    assert judged(budget * 8 // 10, budget) is None
    above = judged(budget * 8 // 10 + 1, budget)
    assert isinstance(above, Ready) and len(above.warnings) == 1 and "80 %" in above.warnings[0]
    equal = judged(budget, budget)
    assert isinstance(equal, Ready) and "100 %" in equal.warnings[0]
    over = judged(budget + 1, budget)
    assert isinstance(over, NotReady)
    assert (over.because, over.detail) == ("preflight_rejected", "context_overflow")
    assert f"{budget + 1:,}" in over.why and f"{budget:,}" in over.why


def test_the_window_of_a_model_that_nobody_declared_is_not_asserted() -> None:
    """What such a model may read is a guess: it is said, and the job starts."""
    found = fits({"prompt": "x" * 900_000}, "house-model-7", Conditions(AgentFleet(), count=words))
    assert isinstance(found, Ready) and "how many house-model-7 may read is not known here" in found.warnings[0]
    declared = AgentFleet(models={"house-model-7": Model(context=1_000_000)})
    assert fits({"prompt": "x" * 700_000}, "house-model-7", Conditions(declared, count=words)) is None
    family = fits({"prompt": "x" * 900_000}, "claude-sonnet-4-5", Conditions(AgentFleet(), count=words))
    assert isinstance(family, NotReady), "the families of known models are no guess"


@pytest.mark.behaviour("004-44")
@pytest.mark.parametrize(
    ("needed", "budget", "parts"),
    [
        (200_001, 150_000, 2), (150_001, 150_000, 2), (210_000, 150_000, 2), (210_001, 150_000, 3),
        (1_000_000, 150_000, 10), (252_000, 180_000, 2), (252_001, 180_000, 3), (378_000, 180_000, 3),
    ],
)  # fmt: skip
def test_how_many_subtasks_are_recommended(needed: int, budget: int, parts: int) -> None:
    over = judged(needed, budget)
    assert isinstance(over, NotReady)
    assert f"{parts} subtasks" in over.recommendation
    assert "compress" in over.recommendation


@given(st.integers(1, 1_000_000), st.floats(1.01, 30))
def test_subtasks_are_counted_without_a_float_in_the_way(budget: int, times: float) -> None:
    needed = ceil(budget * times)
    over = fits(
        {"prompt": "x"}, "m", Conditions(AgentFleet(models={"m": Model(context=budget)}), count=lambda _: needed)
    )
    assert isinstance(over, NotReady)
    assert f"into {-(-10 * needed // (7 * budget))} subtasks" in over.recommendation


@pytest.mark.behaviour("004-43")
def test_the_model_is_the_jobs_else_the_payloads_else_the_usual() -> None:
    conditions = Conditions(AgentFleet(models={"tiny": Model(context=10)}), count=words)
    assert isinstance(fits({"prompt": "x" * 11}, "tiny", conditions), NotReady)
    assert isinstance(fits({"prompt": "x" * 11, "model": "tiny"}, None, conditions), NotReady)
    assert fits({"prompt": "x" * 11, "model": "tiny"}, "claude-opus-4-1", conditions) is None
    assert fits({"prompt": "x" * 11}, None, conditions) is None
    declared = msgspec.structs.replace(conditions, adapt=Adapt(prompt="p", model="which.one"))
    assert isinstance(fits({"p": "x" * 11, "which": {"one": "tiny"}}, None, declared), NotReady)


def test_a_payload_that_no_model_reads_is_not_measured() -> None:
    conditions = Conditions(AgentFleet(models={"m": Model(context=1)}), count=words)
    assert fits({"url": "x" * 10_000}, "m", conditions) is None


def test_missing_credentials_are_named() -> None:
    assert credentials(()) is None
    verdict = credentials(("API_KEY", "TOKEN"))
    assert isinstance(verdict, NotReady)
    assert verdict.detail == "credentials" and "API_KEY, TOKEN" in verdict.why and "API_KEY" in verdict.recommendation


def test_what_failed_for_too_long_is_not_started_again() -> None:
    policy = merge(Policy(max_age=100.0), DEFAULT)
    assert still_wanted(a_job(), policy, T0 + 1e6) is None, "waiting for its first run is not age"
    failed = a_job(first_failed_at=T0)
    assert still_wanted(failed, policy, T0 + 100.0) is None
    verdict = still_wanted(failed, policy, T0 + 100.1)
    assert isinstance(verdict, NotReady) and verdict.because == "too_old"
    assert still_wanted(a_job(first_failed_at=T0, held_seconds=50.0), policy, T0 + 150.0) is None
    assert still_wanted(failed, POLICY, T0 + 1e9) is None


# ---- the short way must never overlook anything


def overlooks(payload: dict[str, Any], fleet: AgentFleet = AgentFleet()) -> bool:  # noqa: B008 - a value
    """Passed unseen although it is not plainly ready."""
    text = msgspec.json.encode(payload).decode()
    unseen = surely_fits(text, short_enough(fleet, Conditions().count))
    return unseen and fits(payload, None, Conditions(fleet)) is not None


def an_image(number: int) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": f"https://a.example/{number}.png"}}


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": "x" * 600_000},
        {"prompt": "\U0001f600" * 150_000},
        {"messages": [{"role": "user", "content": ""}] * 40_000},
        {"messages": [{"role": "user", "content": [an_image(n) for n in range(200)]}]},
        {"messages": [{"role": "user", "content": [{"type": "document", "$blob": 0, "size": 10_000_000}]}]},
        {"context": [""] * 100_000, "prompt": "x"},
    ],
    ids=["text", "wide characters", "many messages", "images", "a file beside the job", "empty entries"],
)
def test_nothing_large_passes_unseen(payload: dict[str, Any]) -> None:
    assert not overlooks(payload)


@given(
    st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=40)}),
        min_size=1, max_size=20,
    ),
    st.integers(1, 400),
)  # fmt: skip
def test_nothing_passes_unseen_that_would_warn(messages: list[dict[str, Any]], context: int) -> None:
    assert not overlooks({"messages": messages}, AgentFleet(models={"m": Model(context=context)}))


def test_a_short_payload_costs_no_look() -> None:
    assert surely_fits('{"prompt":"Write."}', short_enough(AgentFleet(), Conditions().count))
    assert not surely_fits("x" * 10_000_000, short_enough(AgentFleet(), Conditions().count))
    assert not surely_fits("x" * 100, short_enough(AgentFleet(models={"m": Model(context=10)}), words))
