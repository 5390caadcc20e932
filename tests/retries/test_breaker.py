"""Circuit breakers as values."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.job import Attempt, Failure
from redrive.failures.classify import DETAILS, cause_of, classify
from redrive.retries.breaker import (
    FASTEST_RELEASE,
    LONGEST_PAUSE,
    OPENING,
    PROBE_LASTS,
    Breaker,
    Window,
    begin_probe,
    close_breaker,
    fail_probe,
    host_of,
    in_words,
    key_of,
    leave_alone,
    limited_key,
    open_breaker,
    opens,
    release_parked,
    reopen,
    shows_recovery,
    verdict,
    wait_for_all,
    with_error,
)
from tests.stores.jobs import T0, a_job


def an_open_one(pause: float = 5.0, release: float = 20.0) -> Breaker:
    return open_breaker("host:a:80", "network", "j0", T0, pause=pause, release=release)


def test_only_causes_that_speak_of_what_was_called_open_one() -> None:
    opening = ["contention", "network", "provider_overloaded", "rate_limited", "server_error", "timeout"]
    assert sorted(OPENING) == opening
    assert all(DETAILS[detail][0] == "transient" for detail in OPENING)


@pytest.mark.behaviour("R-9a")
def test_a_conflict_counts_unless_a_service_answered_with_it() -> None:
    locked, conflict = Failure("exception", ("sqlite3.OperationalError",), "locked"), Failure(status=409)
    assert [opens(failure, cause_of("contention", "x", failure)) for failure in (locked, conflict)] == [True, False]
    assert opens(conflict, cause_of("server_error", "x", conflict)) and not opens(locked, cause_of("bug", "x", locked))


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
    trying = begin_probe(breaker, "j1", T0 + 5.0)
    assert (trying.state, trying.probe, trying.probes) == ("half_open", "j1", 1)
    assert verdict(trying, "j2", T0 + 5.0) == "park"
    assert verdict(trying, "j1", T0 + 6.0) == "run", "the probe itself, should it be started again"
    assert verdict(close_breaker(trying, T0 + 7.0), "j2", T0 + 7.0) == "run"


def test_a_probe_of_which_nothing_is_heard_stops_counting() -> None:
    trying = begin_probe(an_open_one(), "j1", T0 + 5.0)
    assert verdict(trying, "j2", T0 + 5.0 + PROBE_LASTS - 0.001) == "park"
    assert verdict(trying, "j2", T0 + 5.0 + PROBE_LASTS) == "probe"


def test_the_pause_doubles_with_every_failed_probe_up_to_five_minutes() -> None:
    breaker, now, pauses = an_open_one(), T0 + 5.0, []
    for number in range(9):
        breaker = fail_probe(begin_probe(breaker, f"j{number}", now), f"j{number}", now)
        assert (breaker.state, breaker.probe, breaker.job) == ("open", None, f"j{number}")
        assert breaker.until == now + breaker.pause
        pauses.append(breaker.pause)
        now = breaker.until
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0, 300.0]
    assert LONGEST_PAUSE == 300.0
    assert breaker.probes == 9


def test_what_the_last_failure_said_is_read_from_its_job_and_shortened() -> None:
    failures = [Failure("exception", ("a.B",), message) for message in ("x", "y" * 9_000)]
    history = [*(Attempt(1, "failed", failure=failure) for failure in failures), Attempt(3, "released")]
    shown = with_error(an_open_one(), a_job(history=history))
    assert shown.error.startswith("B: yyy") and len(shown.error) == 300
    assert with_error(shown, a_job()).error == with_error(shown, None).error == "", "nothing is left to say"


def test_release_is_bounded_and_gets_faster() -> None:
    breaker = close_breaker(an_open_one(release=20.0), T0)
    assert release_parked(breaker, T0)[0] == 0
    gone = []
    now = T0
    for _ in range(9):
        now += 1.0
        number, breaker = release_parked(breaker, now)
        gone.append(number)
    assert gone == [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]
    assert breaker.release == FASTEST_RELEASE == 1000.0


def test_nobody_looking_for_an_hour_is_no_reason_for_a_flood() -> None:
    breaker = close_breaker(an_open_one(release=20.0), T0)
    number, _ = release_parked(breaker, T0 + 3600.0)
    assert number <= FASTEST_RELEASE


def test_a_slow_release_is_not_rounded_away() -> None:
    breaker = close_breaker(an_open_one(release=0.5), T0)
    assert release_parked(breaker, T0 + 1.0)[0] == 0
    assert release_parked(breaker, T0 + 2.0)[0] == 1


@given(st.floats(0.01, 1000), st.lists(st.floats(0, 1000), max_size=20))
def test_any_release_stays_within_its_bounds(release: float, steps: list[float]) -> None:
    breaker, now = close_breaker(an_open_one(release=release), T0), T0
    for step in steps:
        now += step
        number, after = release_parked(breaker, now)
        assert 0 <= number <= FASTEST_RELEASE
        assert after.release <= FASTEST_RELEASE and after.since == now
        breaker = after


def test_a_clock_that_went_back_releases_nothing() -> None:
    assert release_parked(close_breaker(an_open_one(), T0), T0 - 100.0)[0] == 0


def test_a_time_that_a_wrong_clock_wrote_binds_nobody() -> None:
    wrong = an_open_one()
    assert verdict(wrong, "j", T0 - 86_400.0) == "probe", "the clock was a day ahead when it opened"
    assert verdict(begin_probe(wrong, "other", T0), "j", T0 - 86_400.0) == "probe"
    assert verdict(wrong, "j", T0 - 1.0) == "park", "a second is no mistake"


def test_it_survives_the_store() -> None:
    trying = begin_probe(an_open_one(), "j1", T0 + 5.0)
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


# ---- limits that say when they end


LIMITED = Failure("exception", ("x.Y",), "slow down", status=429, retry_after=1800.0)


def limited(failure: Failure = LIMITED, max_wait: float | None = 21_600.0) -> float | None:
    return wait_for_all(failure, classify(failure), max_wait)


@pytest.mark.behaviour("R-2d")
@pytest.mark.parametrize(
    ("failure", "asked"),
    [
        (LIMITED, 1800.0),
        (msgspec.structs.replace(LIMITED, retry_after=72_000.0), 21_600.0),
        (msgspec.structs.replace(LIMITED, retry_after=None), None),
        (msgspec.structs.replace(LIMITED, retry_after=0.0), None),
        (msgspec.structs.replace(LIMITED, status=503), None),
        (Failure("exception", ("x.Y",), "no", status=500, retry_after=60.0), None),
        (Failure("exception", ("x.Y",), "no", error_kind="rate_limited", retry_after=60.0), 60.0),
        (Failure("exception", ("x.Y",), "no", status=200, error_kind="rate_limited", retry_after=60.0), None),
        (Failure("exception", ("x.Y",), "no", status=200, error_kind="rate_limited", retry_after=60.0,
                 headers={"x-ratelimit-remaining": "0"}), 60.0),
        (Failure("exception", ("x.Y",), "no", status=200, error_kind="rate_limited", retry_after=60.0,
                 headers={"x-ratelimit-remaining": "7"}), None),
        (Failure("exception", ("w.W",), "no", error_kind="rate_limited", cause=LIMITED), 1800.0),
    ],
)  # fmt: skip
def test_only_a_rate_limit_that_says_when_it_ends_closes_a_downstream(failure: Failure, asked: float | None) -> None:
    assert limited(failure) == asked


@pytest.mark.behaviour("R-2f")
@pytest.mark.parametrize(
    ("downstream", "failure", "key"),
    [
        ("github:bot-2", LIMITED, "github:bot-2"),
        ("github:bot-2", None, "github:bot-2"),
        (None, msgspec.structs.replace(LIMITED, host="api.example.com"), "host:api.example.com"),
        (None, Failure("exception", ("w.W",), cause=msgspec.structs.replace(LIMITED, host="a")), "host:a"),
        (None, msgspec.structs.replace(LIMITED, types=("anthropic.RateLimitError",)), "provider:anthropic"),
        (None, msgspec.structs.replace(LIMITED, types=("google.genai.errors.ClientError",)), "provider:google.genai"),
        (None, msgspec.structs.replace(LIMITED, types=("github.GithubException.RateLimitExceededException",)),
         "provider:github"),
        (None, msgspec.structs.replace(LIMITED, types=("botocore.exceptions.ClientError",)), None),
        (None, LIMITED, None),
        (None, None, None),
    ],
)  # fmt: skip
def test_what_a_rate_limit_closes(downstream: str | None, failure: Failure | None, key: str | None) -> None:
    assert limited_key(downstream, failure) == key


def closing(now: float = T0, asked: float = 1800.0, before: Breaker | None = None, job_id: str = "j0") -> Breaker:
    job = a_job(id=job_id)
    return leave_alone("host:a", job, LIMITED, now, asked, pause=5.0, release=20.0, before=before)


@pytest.mark.behaviour("R-2d", "R-2e")
def test_it_is_left_alone_until_its_time_however_long_and_then_one_probes() -> None:
    breaker = closing(asked=21_600.0)
    assert (breaker.cause, breaker.until) == ("rate_limited", T0 + 21_600.0)
    assert [verdict(breaker, "j1", T0 + after) for after in (0, 900, 7200, 21_599)] == ["park"] * 4
    assert verdict(breaker, "j1", T0 + 21_600) == "probe"
    assert verdict(begin_probe(breaker, "j1", T0 + 21_600), "j2", T0 + 21_600) == "park"
    assert verdict(breaker, "j1", T0 - 86_400.0) == "probe", "the clock was a day ahead when it asked"


def test_a_later_end_counts_and_an_earlier_one_does_not() -> None:
    breaker = closing()
    assert closing(T0 + 0.5, before=breaker) == breaker, "whoever was under way learns the same"
    assert closing(T0 + 10.0, asked=60.0, before=breaker) == breaker
    longer = closing(T0 + 10.0, asked=3600.0, before=breaker)
    assert (longer.until, longer.asked, longer.since) == (T0 + 3610.0, 3600.0, T0 + 10.0)
    assert verdict(longer, "j1", T0 + 3600.0) == "park"


def test_only_the_job_that_probes_says_how_long_it_still_takes() -> None:
    trying = begin_probe(closing(), "j1", T0 + 1800.0)
    assert closing(T0 + 1801.0, before=trying, job_id="j2") == trying
    again = closing(T0 + 1801.0, asked=60.0, before=trying, job_id="j1")
    assert (again.state, again.probe, again.until) == ("open", None, T0 + 1861.0)


def test_a_probe_that_told_nothing_does_not_end_the_time_that_was_asked_for() -> None:
    early = begin_probe(closing(), "j1", T0 + 10.0)
    assert reopen(early, T0 + 20.0).until == T0 + 1800.0
    late = begin_probe(closing(), "j1", T0 + 1800.0)
    assert reopen(late, T0 + 1810.0).until == T0 + 1810.0
    down = fail_probe(late, "j1", T0 + 1810.0)
    assert (down.asked, down.until) == (0.0, T0 + 1820.0), "it failed in another way: now it is down"


@pytest.mark.behaviour("R-2e")
def test_only_what_began_after_the_closing_shows_that_it_is_over() -> None:
    breaker = closing()
    assert not shows_recovery(breaker, a_job(id="j5", started_at=T0 - 1.0))
    assert not shows_recovery(breaker, a_job(id="j5", started_at=T0))
    assert shows_recovery(breaker, a_job(id="j5", started_at=T0 + 1.0))
    assert shows_recovery(begin_probe(breaker, "j5", T0 + 9.0), a_job(id="j5", started_at=T0))
    assert shows_recovery(an_open_one(), a_job(started_at=T0 - 100.0)), "what is down has no time"


def test_a_closing_says_until_when() -> None:
    assert in_words(closing(), 7).startswith("host a asked to be left alone until ")
    assert in_words(an_open_one(), 7).startswith("host a:80 is down, 7 parked (network")


def test_jobs_of_a_task_that_calls_one_provider_are_its_callers() -> None:
    job = a_job(task="ask", model="big")
    anthropic = msgspec.structs.replace(LIMITED, types=("anthropic.RateLimitError",))
    known = leave_alone("provider:anthropic", job, anthropic, T0, 60.0, pause=5.0, release=20.0)
    assert known.callers == ("ask big",)
    crawler = msgspec.structs.replace(LIMITED, types=("httpx.HTTPStatusError",), host="a.example")
    assert leave_alone("host:a.example", job, crawler, T0, 60.0, pause=5.0, release=20.0).callers == ()
