"""Series as values: what was left at each moment follows from what is left now and what went in and out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.store import Minute, Tally
from redrive.reports.activity import (
    BEGINS,
    ENDS,
    FLOWS,
    HOUR,
    MINUTE,
    MoveCount,
    activity,
    buckets,
    from_minutes,
    from_tallies,
    load,
)

NOW = 1_900_000_030.0
MOVES = st.sampled_from(
    sorted(BEGINS | ENDS | {"resolved", "retried", "claimed", "held_back", "unblocked", "rerouted"})
)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab"), MOVES, st.integers(1, 5)), max_size=40),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 100)),
)
def test_the_backlog_is_the_one_that_was(steps: list[tuple[int, str, str, int]], start: dict[str, int]) -> None:
    """Forwards in the test, backwards in the code. Jobs enough are there before, so that none is owed."""
    starts = buckets(NOW, 10, MINUTE)
    left = {queue: 1000 + start.get(queue, 0) for queue in "ab"}
    seen: dict[str, list[int]] = {"a": [], "b": []}
    for place in range(10):
        for at, queue, move, number in steps:
            if at == place:
                left[queue] += number * ((move in BEGINS) - (move in ENDS))
        for queue in "ab":
            seen[queue].append(left[queue])
    moved = [MoveCount(starts[place], queue, move, number) for place, queue, move, number in steps]
    found = activity(NOW, 10, MINUTE, moved, left)
    assert {series.queue: series.backlog for series in found.queues} == seen
    assert found.total.backlog == [one + other for one, other in zip(seen["a"], seen["b"], strict=True)]
    for flow in FLOWS:
        happened = sum(number for _, _, move, number in steps if move == flow)
        resolved = sum(number for _, _, move, number in steps if move == "resolved") if flow == "succeeded" else 0
        assert sum(found.total.flows[flow]) == happened + resolved


def test_finer_rows_share_a_bucket_and_what_is_outside_is_left_out() -> None:
    base = NOW // HOUR * HOUR
    minutes = [Minute(base - offset, "q", "succeeded", 1) for offset in (0.0, 60.0, 120.0, 7200.0)]
    found = activity(NOW, 2, HOUR, from_minutes(minutes), {})
    assert found.of("q").flows["succeeded"] == [2, 1]
    hourly = from_tallies([Tally(base, "q", "t", None, "buried", "E", "bug", 3)])
    assert activity(NOW, 1, HOUR, hourly, {"q": 2}).of("q").flows["buried"] == [3]


def test_a_backlog_never_goes_below_nothing() -> None:
    """Where the books are short (minutes forgotten, a clock that jumped), nothing is the least there is."""
    found = activity(NOW, 3, MINUTE, [MoveCount(NOW // MINUTE * MINUTE, "q", "enqueued", 5)], {"q": 2})
    assert found.of("q").backlog == [0, 0, 2]


def test_dead_letters_that_are_resolved_were_not_unfinished_before() -> None:
    found = activity(NOW, 3, MINUTE, [MoveCount(NOW // MINUTE * MINUTE, "q", "resolved", 300)], {"q": 2})
    assert (found.of("q").backlog, found.of("q").flows["succeeded"]) == ([2, 2, 2], [0, 0, 300])


def test_the_rate_is_that_of_the_last_two_buckets() -> None:
    start = NOW // MINUTE * MINUTE
    assert NOW - start == 10.0
    moved = [
        MoveCount(start, "q", "succeeded", 7),
        MoveCount(start - 60, "q", "succeeded", 28),
        MoveCount(start - 120, "q", "succeeded", 99),
    ]
    found = activity(NOW, 3, MINUTE, moved, {})
    assert found.rate("q", "succeeded") == pytest.approx(35 * 60 / 70)
    assert found.rate(None, "succeeded") == found.rate("q", "succeeded")
    assert found.rate("other", "succeeded") == 0.0
    assert activity(NOW, 1, MINUTE, [], {}).rate(None, "buried") == 0.0


def test_nothing_at_all_is_flat() -> None:
    found = activity(NOW, 4, MINUTE, [], {})
    assert (found.queues, found.total.backlog, found.total.quiet) == ([], [0] * 4, True)
    assert found.public()["total"]["enqueued"] == [0] * 4


def test_load_counts_what_is_there_and_what_happened() -> None:
    counted: dict[tuple[str | None, ...], int] = {("cto", "waiting"): 3, ("cto", "done"): 90, (None, "dead"): 1}
    tallies = [
        Tally(0.0, "q", "t", "cto", "retried", "E", "timeout", 4),
        Tally(0.0, "q", "t", "cto", "buried", "E", "no such detail", 1),
        Tally(0.0, "q", "t", "cto", "succeeded", "", "", 3),
        Tally(0.0, "q", "t", "cto", "resolved", "", "", 1),
    ]
    cso, cto, nobody = load(counted, tallies, ("cso",))
    assert (cto.waiting, cto.done, cto.retried, cto.buried) == (3, 4, 4, 1)
    assert (cto.mix, cto.failure_rate) == ({"transient": 4, "unknown": 1}, 0.2)
    assert (cso.agent, cso.waiting, cso.failure_rate) == ("cso", 0, None)
    assert (nobody.agent, nobody.dead) == (None, 1)
    assert cto.public()["failure_rate"] == 0.2
