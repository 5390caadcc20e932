"""The system's clock, and chance."""

import time

import pytest

from redrive.engine.clock import SystemClock


def test_now_is_the_wall_clock() -> None:
    before = time.time()
    assert before <= SystemClock().now() <= time.time()
    assert SystemClock().now is time.time


def test_the_steady_clock_does_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.monotonic()
    monkeypatch.setattr("redrive.engine.clock.time.time", lambda: time.monotonic() + 10 * 365 * 86400)
    assert before <= clock.monotonic() < before + 3600


def test_chance_is_chance() -> None:
    clock = SystemClock()
    drawn = [clock.chance() for _ in range(100)]
    assert len(set(drawn)) > 50
    assert all(0 <= number < 1 for number in drawn)
