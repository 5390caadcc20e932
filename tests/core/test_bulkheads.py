"""Bulkheads: which slots a queue or a downstream leaves to the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.bulkheads import Bulkheads, Filling, Share, count_reserve, make_share


@pytest.mark.parametrize(("total", "slots"), [(1, 0), (2, 1), (4, 1), (5, 1), (6, 2), (10, 2), (100, 20), (101, 21)])
def test_the_reserve_is_a_fifth_rounded_up(total: int, slots: int) -> None:
    assert count_reserve(total) == slots


@pytest.mark.parametrize(("total", "names", "fair"), [(100, "ab", 50), (100, "abc", 33), (2, "abc", 1), (5, "ab", 2)])
def test_the_fair_share_is_at_least_one(total: int, names: str, fair: int) -> None:
    assert make_share(total, set(names), {}) == Share(fair)


def test_one_name_has_no_share_because_it_may_have_all() -> None:
    assert make_share(100, {"a"}, {}) is None
    assert make_share(100, set(), {}) is None


@given(st.integers(2, 60), st.lists(st.sampled_from("abc"), max_size=80))
def test_a_name_above_its_share_never_takes_the_reserve(total: int, wishes: list[str]) -> None:
    """However the wishes of three queues are mixed, and slot by slot as in one claim."""
    fair = make_share(total, set("abc"), {})
    assert fair is not None
    filling, taken = Filling(Bulkheads(total, count_reserve(total), fair)), {"a": 0, "b": 0, "c": 0}
    for queue in wishes:
        free = total - sum(taken.values())
        may = free > 0 and (taken[queue] < fair.fair or free > count_reserve(total))
        assert (filling.room(queue, None) > 0) == may
        if may:
            filling.take(queue, None, 1)
            taken[queue] += 1


@given(st.integers(2, 60), st.integers(0, 60), st.integers(0, 60))
def test_taking_the_room_at_once_is_taking_it_one_by_one(total: int, own: int, others: int) -> None:
    own, others = min(own, total), max(0, min(others, total - own))
    said = Bulkheads(total - own - others, count_reserve(total), make_share(total, {"a", "b"}, {"a": own, "b": others}))
    one_by_one, number = Filling(said), 0
    while one_by_one.room("a", None) > 0:
        one_by_one.take("a", None, 1)
        number += 1
    assert Filling(said).room("a", None) == number


def test_the_tighter_of_queue_and_downstream_counts() -> None:
    said = Bulkheads(2, 2, Share(5, {"a": 3}), Share(5, {"crm": 4}))
    assert Filling(said).room("a", None) == 2
    assert Filling(said).room("a", "crm") == 1
    assert Filling(said).room("a", "cms") == 2
