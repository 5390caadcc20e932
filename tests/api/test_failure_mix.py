"""The failures of a fleet's ten months, lived through: the table in docs/strategies.md is what happens, and is enough.

Each run is compared with its row, so that every run is made once; what the rows must show is asked of the table.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tools import failure_mix as mix
from tools.failure_mix import FIRST, PLANS, SECOND, Lived, assumptions, live, row_in, written
from tools.voices import StandIns
from tools.world import HARSH, MIX, USUAL, Rates, World

PAGE = mix.PAGE.read_text("utf-8")


def percent(rates: Rates, seed: int, arm: str, column: str) -> float:
    return float(cell(rates, seed, arm, column).rstrip("%"))


def cell(rates: Rates, seed: int, arm: str, column: str) -> str:
    row = row_in(PAGE, (rates, seed, arm))
    assert row, (
        f"docs/strategies.md has no row for {rates.name}, {seed}, {arm}: run python -m tools.failure_mix --write"
    )
    return row[mix.HEAD.index(column)]


# ---- the world


def test_the_mix_is_the_published_one() -> None:
    assert sum(number for _, number in MIX.values()) == 118
    by_category = Counter[str]()
    for category, number in MIX.values():
        by_category[category] += number
    assert by_category == {"transient": 72, "conditional": 29, "permanent": 17}


@pytest.mark.parametrize("rates", [USUAL, HARSH], ids=lambda rates: rates.name)
def test_a_world_is_the_same_every_time_and_another_with_another_seed(rates: Rates) -> None:
    one, same, other = (World(rates, seed, StandIns()) for seed in (FIRST, FIRST, SECOND))
    assert (one.errands, one.windows) == (same.errands, same.windows)
    assert one.errands != other.errands
    failing = Counter(errand.cause for errand in one.errands if errand.cause)
    assert failing == {cause: number for cause, (_, number) in MIX.items()}


def test_the_incidents_are_as_long_as_providers_are_down() -> None:
    """The median of a thousand is between 47 and 75 minutes, and hardly one is shorter than five."""
    lengths: list[float] = []
    for seed in range(250):
        windows = World(USUAL._replace(healthy=0), seed, StandIns()).windows
        lengths += [one.end - one.start for one in windows if one.kind in ("overloaded", "unavailable")]
    incidents = sorted(length for length in lengths if length > 120)
    assert 47 * 60 <= incidents[len(incidents) // 2] <= 75 * 60
    assert sum(length < 300 for length in incidents) / len(incidents) < 0.05


def test_the_page_says_what_the_worlds_assume() -> None:
    missing = [line for rates in (USUAL, HARSH) for line in assumptions(rates) if f"- {line}\n" not in written(PAGE)]
    assert not missing, "run python -m tools.failure_mix --write"


@pytest.mark.parametrize("stood", ["", "\n", "\n| an | older | table |\n"], ids=["nothing", "a line", "a table"])
def test_the_table_is_written_between_its_marks_and_nowhere_else(stood: str) -> None:
    page = f"before\n{mix.BEGIN}{stood}{mix.END}\nafter\n"
    new = mix.rewritten(page, [])
    assert (new.count("| world |"), new.startswith("before\n"), new.endswith(f"{mix.END}\nafter\n")) == (1, True, True)
    assert mix.rewritten(new, []) == new


# ---- what happens in it


ALWAYS = (
    (USUAL, FIRST, "redrive"),
    (USUAL, FIRST, "comebacks off"),
    (USUAL, FIRST, "plain backoff"),
    (HARSH, FIRST, "redrive"),
)
"""The rows that every run lives through; ./dev chaos lives through all."""
ROWS = [
    pytest.param(plan, id=f"{plan[0].name}, {plan[1]}, {plan[2]}", marks=() if plan in ALWAYS else pytest.mark.long)
    for plan in PLANS
]


@pytest.mark.behaviour("R-15")
@pytest.mark.parametrize("plan", ROWS)
async def test_a_row_of_the_table_is_what_happens(plan: tuple[Rates, int, str], database: Path) -> None:
    lived = await live(*plan, path=str(database))
    assert_sound(lived)
    assert mix.row(lived) == row_in(PAGE, plan), "run python -m tools.failure_mix --write, and look whether it is worse"


def assert_sound(lived: Lived) -> None:
    """What holds in every world, with every policy."""
    assert lived.doubled == 0
    assert lived.missing == 0, "done means done"
    assert lived.stuck == (), "what has not ended waits for a person"
    assert lived.resolved("permanent") == 0
    assert lived.healthy_done == USUAL.healthy


# ---- what the table must show


GOAL: list[Any] = [(USUAL, FIRST, "redrive"), (USUAL, FIRST, "redrive, breakers off")]


@pytest.mark.behaviour("R-15")
@pytest.mark.parametrize("plan", GOAL, ids=lambda plan: plan[2])
def test_four_of_five_end_without_a_person(plan: tuple[Rates, int, str]) -> None:
    assert percent(*plan, "without a person") >= 81.0
    assert percent(*plan, "transient") >= 98.0
    assert percent(*plan, "conditional") >= 87.0
    assert cell(*plan, "permanent repeated") == "0"
    assert cell(*plan, "effects doubled") == "0"
    assert cell(*plan, "pages for it") == "0"


@pytest.mark.behaviour("R-15a")
@pytest.mark.parametrize(("arm", "plain"), [("redrive", "plain backoff"),
                                            ("redrive, breakers off", "plain backoff, breakers off")])  # fmt: skip
def test_it_takes_fewer_calls_than_plain_backoff(arm: str, plain: str) -> None:
    assert int(cell(USUAL, FIRST, arm, "calls")) < int(cell(USUAL, FIRST, plain, "calls"))


@pytest.mark.behaviour("R-15b")
@pytest.mark.parametrize(("rates", "seed"), [(USUAL, FIRST), (USUAL, SECOND), (HARSH, FIRST)])
def test_it_is_fifteen_points_above_plain_backoff_in_every_world(rates: Rates, seed: int) -> None:
    ours = percent(rates, seed, "redrive", "without a person")
    assert ours - percent(rates, seed, "plain backoff", "without a person") >= 15.0
    assert cell(rates, seed, "redrive", "permanent repeated") == "0"
    assert cell(rates, seed, "redrive", "effects doubled") == "0"


@pytest.mark.behaviour("R-15b")
def test_what_comebacks_add_is_seen_where_they_are_off() -> None:
    """The control: without them the same world ends far below."""
    assert percent(USUAL, FIRST, "comebacks off", "without a person") <= 75.0
    assert cell(USUAL, FIRST, "comebacks off", "died, back by itself").startswith("0 of ")
