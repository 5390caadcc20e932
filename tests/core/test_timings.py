"""Percentiles of waits and runs."""

import pytest

from redrive.core.timings import Span, Timing, span_of, timings_of


@pytest.mark.parametrize(
    ("seconds", "span"),
    [
        ([], None),
        ([3.0], Span(1, 3.0, 3.0)),
        ([1.0, 2.0, 3.0], Span(3, 2.0, 2.0)),
        ([float(n) for n in range(100, 0, -1)], Span(100, 51.0, 95.0)),
    ],
)
def test_the_median_and_the_95th_percentile(seconds: list[float], span: Span | None) -> None:
    assert span_of(seconds) == span


def test_waits_and_runs_are_summed_up_by_name() -> None:
    found = timings_of([("b", 1.0, 10.0), ("a", 2.0, 20.0), ("b", 3.0, 30.0)])
    assert found == [
        Timing("a", Span(1, 2.0, 2.0), Span(1, 20.0, 20.0)),
        Timing("b", Span(2, 3.0, 1.0), Span(2, 30.0, 10.0)),
    ]


def test_only_the_last_ones_count() -> None:
    (found,) = timings_of([("a", 1.0, 1.0), ("a", 2.0, 2.0), ("a", 99.0, 99.0)], last=2)
    assert found.waited == Span(2, 2.0, 1.0)


def test_what_began_before_it_was_due_has_not_waited() -> None:
    (found,) = timings_of([("a", -5.0, -1.0)])
    assert found == Timing("a", Span(1, 0.0, 0.0), Span(1, 0.0, 0.0))
