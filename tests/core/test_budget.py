"""Budgets: what may be said of one, and of what was spent."""

from __future__ import annotations

import math
from typing import Any

import pytest

from redrive.core.budget import check_budget, check_usage
from redrive.core.job import Budget, Usage
from redrive.errors import InvalidOption


@pytest.mark.parametrize("budget", [Budget(), Budget(0, 0, 0.0, 0.0), Budget(2**53, cost=1), Budget(seconds=0.5)])
def test_a_budget_is_given_back(budget: Budget) -> None:
    assert check_budget(budget) is budget


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, 10**400, "5", True, [1]])
@pytest.mark.parametrize("name", Budget.__struct_fields__)
def test_an_amount_that_cannot_be_is_named(name: str, amount: Any) -> None:
    with pytest.raises(InvalidOption, match=f"^budget.{name}: "):
        check_budget(Budget(**{name: amount}))


@pytest.mark.parametrize("name", ["tokens", "output_tokens"])
def test_half_a_token_is_none(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"^budget.{name}: 1.5 is not a whole number from 0"):
        check_budget(Budget(**{name: 1.5}))


@pytest.mark.parametrize("said", [100, {"tokens": 1}, Budget])
def test_what_is_no_budget_is_refused(said: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^budget: must be a redrive\.Budget$"):
        check_budget(said)


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, "5", None, True])
@pytest.mark.parametrize("name", Usage.__struct_fields__)
def test_what_was_spent_is_an_amount(name: str, amount: Any) -> None:
    assert check_usage(3, 2, 0.5) == Usage(3, 2, 0.5)
    said: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0, "cost": 0.0, name: amount}
    with pytest.raises(InvalidOption, match=f"^usage.{name}: "):
        check_usage(**said)
