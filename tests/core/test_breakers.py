"""Circuit breakers as values."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.breakers import (
    FASTEST_RELEASE,
    LONGEST_PAUSE,
    OPENING,
    PROBE_LASTS,
    Breaker,
    Window,
    closed,
    host_of,
    key_of,
    opened,
    probe_failed,
    probing,
    releasing,
    verdict,
)
from redrive.core.classify import DETAILS
from redrive.core.job import Failure
from tests.stores.jobs import T0, a_job


def an_open_one(pause: float = 5.0, release: float = 20.0) -> Breaker:
    return opened("host:a:80", "network", "refused", T0, pause=pause, release=release)


def test_only_causes_that_speak_of_what_was_called_open_one() -> None:
    assert sorted(OPENING) == ["network", "provider_overloaded", "rate_limited", "server_error", "timeout"]
    assert all(DETAILS[detail][0] == "transient" for detail in OPENING)


# ---- counting


def test_failures_of_one_cause_are_counted_inside_the_window() -> None:
    window = Window()
    assert [window.failed("network", T0 + at, 60.0) for at in (0, 1, 2)] == [1, 2, 3]
    assert window.failed("network", T0 + 61.5, 60.0) == 2, "those of second 2 and 61.5"
    assert window.failed("timeout", T0 + 61.6, 60.0) == 1, "another cause has its own count"


def test_an_outage_has_several_faces() -> None:
    window = Window()
    counts = [window.failed(("network", "timeout")[number % 2], T0 + number, 60.0) for number in range(20)]
    assert max(counts) == 10


def test_the_edge_of_the_window() -> None:
    window = Window()
    window.failed("network", T0, 60.0)
    assert window.failed("network", T0 + 60.0, 60.0) == 1
    window = Window()
    window.failed("network", T0, 60.0)
    assert window.failed("network", T0 + 59.999, 60.0) == 2


def test_a_storm_is_counted_in_bounded_space() -> None:
    window = Window()
    count = 0
    for number in range(5_000):
        count = window.failed("network", T0 + number / 1000, 60.0)
    assert 100 <= count <= 1_000, "more than anybody asks for, less than everything"


# ---- its life


def test_closed_runs_open_parks_and_after_the_pause_one_probes() -> None:
    breaker = an_open_one()
    assert verdict(breaker, "j1", T0) == "park"
    assert verdict(breaker, "j1", T0 + 4.999) == "park"
    assert verdict(breaker, "j1", T0 + 5.0) == "probe"
    trying = probing(breaker, "j1", T0 + 5.0)
    assert (trying.state, trying.probe, trying.probes) == ("half_open", "j1", 1)
    assert verdict(trying, "j2", T0 + 5.0) == "park"
    assert verdict(trying, "j1", T0 + 6.0) == "run", "the probe itself, should it be started again"
    assert verdict(closed(trying, T0 + 7.0), "j2", T0 + 7.0) == "run"


def test_a_probe_of_which_nothing_is_heard_stops_counting() -> None:
    trying = probing(an_open_one(), "j1", T0 + 5.0)
    assert verdict(trying, "j2", T0 + 5.0 + PROBE_LASTS - 0.001) == "park"
    assert verdict(trying, "j2", T0 + 5.0 + PROBE_LASTS) == "probe"


def test_the_pause_doubles_with_every_failed_probe_up_to_five_minutes() -> None:
    breaker, now, pauses = an_open_one(), T0 + 5.0, []
    for number in range(9):
        breaker = probe_failed(probing(breaker, f"j{number}", now), "still refused", now)
        assert (breaker.state, breaker.probe, breaker.error) == ("open", None, "still refused")
        assert breaker.until == now + breaker.pause
        pauses.append(breaker.pause)
        now = breaker.until
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0, 300.0]
    assert LONGEST_PAUSE == 300.0
    assert breaker.probes == 9


def test_a_long_error_is_shortened() -> None:
    assert len(opened("k", "network", "x" * 9_000, T0, pause=1, release=1).error) == 300
    assert len(probe_failed(an_open_one(), "x" * 9_000, T0).error) == 300


def test_release_is_bounded_and_gets_faster() -> None:
    breaker = closed(an_open_one(release=20.0), T0)
    assert releasing(breaker, T0)[0] == 0
    gone = []
    now = T0
    for _ in range(9):
        now += 1.0
        number, breaker = releasing(breaker, now)
        gone.append(number)
    assert gone == [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]
    assert breaker.release == FASTEST_RELEASE == 1000.0


def test_nobody_looking_for_an_hour_is_no_reason_for_a_flood() -> None:
    breaker = closed(an_open_one(release=20.0), T0)
    number, _ = releasing(breaker, T0 + 3600.0)
    assert number <= FASTEST_RELEASE


def test_a_slow_release_is_not_rounded_away() -> None:
    breaker = closed(an_open_one(release=0.5), T0)
    assert releasing(breaker, T0 + 1.0)[0] == 0
    assert releasing(breaker, T0 + 2.0)[0] == 1


@given(st.floats(0.01, 1000), st.lists(st.floats(0, 1000), max_size=20))
def test_any_release_stays_within_its_bounds(release: float, steps: list[float]) -> None:
    breaker, now = closed(an_open_one(release=release), T0), T0
    for step in steps:
        now += step
        number, after = releasing(breaker, now)
        assert 0 <= number <= FASTEST_RELEASE
        assert after.release <= FASTEST_RELEASE and after.since == now
        breaker = after


def test_a_clock_that_went_back_releases_nothing() -> None:
    assert releasing(closed(an_open_one(), T0), T0 - 100.0)[0] == 0


def test_a_time_that_a_wrong_clock_wrote_binds_nobody() -> None:
    wrong = an_open_one()
    assert verdict(wrong, "j", T0 - 86_400.0) == "probe", "the clock was a day ahead when it opened"
    assert verdict(probing(wrong, "other", T0), "j", T0 - 86_400.0) == "probe"
    assert verdict(wrong, "j", T0 - 1.0) == "park", "a second is no mistake"


def test_it_survives_the_store() -> None:
    trying = probing(an_open_one(), "j1", T0 + 5.0)
    assert msgspec.json.decode(msgspec.json.encode(trying), type=Breaker) == trying


# ---- whose it is


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://api.example/v1", "host:api.example:443"), ("http://api.example/v1", "host:api.example:80"),
        ("http://API.example:8080/", "host:api.example:8080"), ("http://[::1]:9/", "host:::1:9"),
        ("https://user:secret@api.example/", "host:api.example:443"), ("http://api.example:99999/", None),
        ("not a url", None), ("", None), ("http://[", None),
    ],
)  # fmt: skip
def test_the_key_of_a_request_is_its_host_and_port(url: str, key: str | None) -> None:
    assert host_of(url) == key


def test_what_a_job_depends_on() -> None:
    refused = Failure("exception", ("httpx.ConnectError",), host="api.example:443")
    silent = Failure("exception", ("x.Y",))
    assert key_of(a_job(model="m"), downstream="crm", failure=refused, fingerprint="f") == "crm"
    assert key_of(a_job(model="m"), downstream=None, failure=refused, fingerprint="f") == "model:m"
    assert key_of(a_job(), downstream=None, failure=refused, fingerprint="f") == "host:api.example:443"
    assert key_of(a_job(model="m"), downstream=None, failure=silent, fingerprint="f") == "model:m"
    assert key_of(a_job(), downstream=None, failure=silent, fingerprint="f") == "group:f"
    assert key_of(a_job(), downstream=None, failure=None, fingerprint=None) is None
