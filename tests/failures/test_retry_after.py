"""How long a failure asks to wait, from every place where it may be written."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.failures.classify.retry_after import (
    LONGEST,
    delay_in_text,
    duration,
    header_wait,
    wait_in_words,
    wait_of,
)

NOW = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
AT = NOW.timestamp()


def stamp(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90.0),
        ({"retry-after": "Mon Jun  1 12:01:00 2026"}, 60.0),
        ({"retry-after": format_datetime(NOW - timedelta(days=1), usegmt=True)}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(AT) + 40)}, 40.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str((int(AT) + 40) * 1000)}, 40.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "40"}, 40.0),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": str(int(AT) + 40)}, None),
        ({"x-ratelimit-reset": str(int(AT) + 40)}, None),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "12"}, 12.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 360.0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20ms"}, 0.02),
        ({"retry-after": "5", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "40"}, 5.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "2.5"}, 2.5),
        ({"x-ratelimit-remaining": "1", "x-ratelimit-reset-after": "2.5"}, None),
        ({"x-ms-retry-after-ms": "400"}, 0.4),
        ({}, None),
        ({"x-request-id": "r"}, None),
    ],
)
def test_headers(headers: dict[str, str], expected: float | None) -> None:
    assert header_wait(headers, AT, limited=False) == expected


def test_anthropics_resets_count_only_for_a_rate_limit() -> None:
    headers = {
        "anthropic-ratelimit-requests-remaining": "5",
        "anthropic-ratelimit-requests-reset": stamp(2),
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": stamp(33),
    }
    assert header_wait(headers, AT, limited=False) is None
    assert header_wait(headers, AT, limited=True) == 33.0
    assert header_wait({**headers, "anthropic-ratelimit-tokens-remaining": "9"}, AT, limited=True) == 2.0


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (5, 5.0),
        (2.5, 2.5),
        (timedelta(minutes=2), 120.0),
        (timedelta(seconds=-2), 0.0),
        ("34s", 34.0),
        ("12", 12.0),
        (NOW + timedelta(seconds=8), 8.0),
        (True, None),
        ("soon", None),
        (None, None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
        (LONGEST * 2, None),
        (object(), None),
        ([1], None),
    ],
)
def test_attributes(said: Any, expected: float | None) -> None:
    assert wait_of(said, AT) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("34s", 34.0), ("34.074824224s", 34.074824224), ("1h2m3s", 3723.0), ("", None), ("s", None), ("34", None)],
)
def test_durations(text: str, expected: float | None) -> None:
    assert duration(text) == expected


def test_a_delay_in_the_text_alone() -> None:
    assert delay_in_text('{"error": {"details": [{"retryDelay": "34.5s"}]}}') == 34.5
    assert delay_in_text("{'retryDelay': '7s'}") == 7.0
    assert delay_in_text("retryDelay: soon") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rate limit reached. please try again in 6.4s. visit https://x", 6.4),
        ("try again in 1m30s", 90.0),
        ("please try again in 1h2m3.5s.", 3723.5),
        ("please try again in 90ms.", 0.09),
        ("please retry after 56 seconds. please go here", 56.0),
        ("please retry in 41.3s.", 41.3),
        ("too many requests: retry after 2 minutes, 5 seconds", 125.0),
        ("please wait 30 seconds", 30.0),
        ("please try again in about 2 hours", 7200.0),
        ("try again in 2 months", None),
        ("try again in 5", None),
        ("try again later", None),
        ("retry 3 times", None),
        ("wait 99999999 hours", None),
        ("", None),
    ],
)
def test_what_a_rate_limit_says_to_people(text: str, expected: float | None) -> None:
    assert wait_in_words(text) == expected


NAMES = st.sampled_from(
    ["retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-remaining",
     "anthropic-ratelimit-tokens-reset", "anthropic-ratelimit-tokens-remaining"]
)  # fmt: skip
VALUES = st.text(max_size=50) | st.floats().map(str) | st.integers().map(str) | st.datetimes().map(str)


@given(st.dictionaries(NAMES, VALUES), st.floats(0, 1e11), st.booleans())
def test_no_header_makes_an_endless_or_negative_wait(headers: dict[str, str], now: float, limited: bool) -> None:
    found = header_wait(headers, now, limited=limited)
    assert found is None or (math.isfinite(found) and 0 <= found <= LONGEST)


@given(st.one_of(st.floats(), st.integers(), st.text(), st.timedeltas(), st.datetimes(), st.binary()))
def test_no_attribute_does(said: object) -> None:
    found = wait_of(said, AT)
    assert found is None or (math.isfinite(found) and 0 <= found <= LONGEST)


@given(st.text(alphabet="try again in wait for retry after 0123456789.smhd", max_size=200))
def test_no_words_do(text: str) -> None:
    found = wait_in_words(text)
    assert found is None or (math.isfinite(found) and 0 <= found <= LONGEST)
