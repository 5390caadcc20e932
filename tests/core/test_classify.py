"""What failures mean: tables, order of the rules, chains, groups; and nothing makes it raise."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.classify import ALIASES, CLASSES, DETAILS, STATUSES, by_class, classify
from redrive.core.job import Cause, Failure


def raised(*types: str, **fields: Any) -> Failure:
    return Failure("exception", types or ("shop.Strange",), **fields)


def detail(failure: Failure) -> str:
    return classify(failure).detail


# ---- statuses


@pytest.mark.parametrize(
    ("status", "expected", "category"),
    [
        (400, "invalid_input", "permanent"),
        (401, "credentials", "permanent"),
        (402, "quota", "permanent"),
        (403, "authority", "permanent"),
        (404, "data_integrity", "permanent"),
        (408, "timeout", "transient"),
        (409, "contention", "transient"),
        (410, "data_integrity", "permanent"),
        (413, "invalid_input", "permanent"),
        (422, "invalid_input", "permanent"),
        (425, "server_error", "transient"),
        (429, "rate_limited", "transient"),
        (500, "server_error", "transient"),
        (502, "server_error", "transient"),
        (503, "server_error", "transient"),
        (504, "timeout", "transient"),
        (529, "provider_overloaded", "transient"),
        (599, "server_error", "transient"),
    ],
)
def test_statuses(status: int, expected: str, category: str) -> None:
    cause = classify(raised(status=status))
    assert (cause.detail, cause.category, cause.rule) == (expected, category, "http_status")


def test_a_status_nobody_knows_says_nothing() -> None:
    assert classify(raised(status=418)).category == "unknown"


def test_a_status_goes_before_the_class() -> None:
    assert detail(raised("builtins.ConnectionError", status=422)) == "invalid_input"


@pytest.mark.parametrize("headers", [{"retry-after": "3"}, {"x-ratelimit-remaining": "0"}])
def test_a_403_that_counts_is_a_rate_limit(headers: dict[str, str]) -> None:
    assert detail(raised(status=403, headers=headers)) == "rate_limited"
    assert detail(raised(status=403, headers={"x-ratelimit-remaining": "7"})) == "authority"


def test_an_expired_token_heals_later() -> None:
    cause = classify(raised(status=401, message="Token EXPIRED at noon"))
    assert (cause.detail, cause.heals) == ("credentials_expired", "later")


# ---- classes and errno


@pytest.mark.parametrize(("name", "expected"), list(CLASSES.items()))
def test_classes(name: str, expected: str) -> None:
    cause = classify(raised(name))
    assert (cause.detail, cause.rule) == (expected, "class_table")


def test_a_subclass_is_what_its_parent_is_unless_it_is_known_itself() -> None:
    assert detail(raised("shop.MyTimeout", "builtins.TimeoutError", "builtins.OSError")) == "timeout"
    assert detail(raised("ssl.SSLCertVerificationError", "ssl.SSLError", "builtins.OSError")) == "authority"


@pytest.mark.parametrize("name", ["httpx.ConnectError", "httpx.ReadError"])
def test_transport_errors_are_the_network(name: str) -> None:
    assert detail(raised(name, "httpx.TransportError")) == "network"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, "contention"), (errno.EACCES, "authority"), (errno.ENOENT, "data_integrity"),
        (errno.ECONNREFUSED, "network"), (errno.ETIMEDOUT, "timeout"), (errno.EHOSTUNREACH, "network"),
    ],
)  # fmt: skip
def test_numbers_of_the_operating_system(number: int, expected: str) -> None:
    assert detail(raised("builtins.OSError", errno=number)) == expected


@pytest.mark.behaviour("000-11")
@pytest.mark.parametrize(
    "failure",
    [
        raised("sqlite3.OperationalError", message="database is locked"),
        raised("apsw.BusyError", sqlstate="SQLITE_BUSY"),
        raised("apsw.LockedError", sqlstate="SQLITE_LOCKED_SHAREDCACHE"),
    ],
)
def test_a_locked_database_is_tried_again(failure: Failure) -> None:
    cause = classify(failure)
    assert (cause.category, cause.detail) == ("transient", "contention")


# ---- what failures say of themselves


@pytest.mark.parametrize("kind", sorted(DETAILS))
def test_an_error_kind_goes_before_status_class_and_text(kind: str) -> None:
    failure = raised(
        "builtins.TypeError", error_kind=kind, status=503, message="prompt is too long", errno=errno.ENOENT
    )
    cause = classify(failure)
    assert (cause.detail, cause.rule) == (kind, "error_kind")
    assert (cause.category, cause.heals, cause.subclass) == DETAILS[kind]


@pytest.mark.parametrize(("alias", "meant"), list(ALIASES.items()))
def test_aliases(alias: str, meant: str) -> None:
    assert meant in DETAILS
    assert detail(raised(error_kind=alias)) == meant


def test_an_error_kind_nobody_knows_is_passed_over() -> None:
    assert detail(raised(error_kind="gremlins", status=503)) == "server_error"


@pytest.mark.parametrize("message", ["Prompt is too long: 9 tokens", "This model's maximum context length is 8192"])
def test_overflow_by_its_words(message: str) -> None:
    assert detail(raised(message=message)) == "context_overflow"
    assert detail(raised(message=message, status=400)) == "context_overflow"
    assert detail(raised(message=message, status=503)) == "server_error"


def test_an_unknown_outcome_is_for_a_person() -> None:
    cause = classify(raised("redrive.errors.OutcomeUnknown", status=503))
    assert (cause.detail, cause.heals) == ("outcome_unknown", "person")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Failure("lease_expired", ("redrive.LeaseExpired",)), "preempted"),
        (Failure("released"), "released"),
        (Failure("signal", ("redrive.errors.GiveUp",), error_kind="network"), "gave_up"),
        (Failure("signal", ("redrive.errors.Retry",)), "asked_to_retry"),
        (Failure("timeout", ("builtins.TimeoutError",)), "timeout"),
    ],
)
def test_what_redrive_itself_says(failure: Failure, expected: str) -> None:
    assert detail(failure) == expected


def test_retry_after_is_handed_on() -> None:
    assert classify(raised(status=429, retry_after=17.0)).retry_after == 17.0


# ---- chains, groups, the user's own rules


def test_a_chain_is_what_its_root_is_where_the_top_says_nothing() -> None:
    failure = raised(cause=raised(cause=raised("builtins.ConnectionError")))
    assert detail(failure) == "network"
    assert detail(raised("builtins.TypeError", cause=raised("builtins.ConnectionError"))) == "bug"


def test_a_chain_of_strangers_is_unknown() -> None:
    assert classify(raised(cause=raised())) == Cause("unknown", "unknown", "unknown", "no_rule", "Logic")


def test_a_group_is_as_bad_as_its_worst_member() -> None:
    network, bug, odd = raised("builtins.ConnectionError"), raised("builtins.TypeError"), raised()
    group = ("builtins.ExceptionGroup",)
    assert detail(raised(*group, members=(network, network))) == "network"
    assert detail(raised(*group, members=(network, bug))) == "bug"
    assert detail(raised(*group, members=(network, odd))) == "unknown"
    assert detail(raised(*group, members=(raised(*group, members=(bug,)), network))) == "bug"


def test_the_users_rules_go_first() -> None:
    mine = (("retry_on", by_class(["shop.Strange"], "asked_to_retry")),)
    cause = classify(raised("shop.Stranger", "shop.Strange", status=422), mine)
    assert (cause.detail, cause.rule) == ("asked_to_retry", "retry_on")
    assert classify(raised("shop.Other", status=422), mine).detail == "invalid_input"


def test_every_table_names_only_known_details() -> None:
    assert {*STATUSES.values(), *CLASSES.values(), *ALIASES.values()} <= DETAILS.keys()


# ---- whatever comes


TEXT = st.text(max_size=30)
NUMBER = st.integers(-(10**6), 10**6)


def _failures(inner: st.SearchStrategy[Failure]) -> st.SearchStrategy[Failure]:
    return st.builds(
        Failure,
        kind=st.sampled_from(["exception", "signal", "soft", "timeout", "lease_expired", "released"]),
        types=st.lists(st.one_of(st.sampled_from(sorted(CLASSES)), TEXT), max_size=3).map(tuple),
        message=TEXT,
        status=st.none() | NUMBER,
        code=st.none() | TEXT,
        error_kind=st.none() | TEXT | st.sampled_from(sorted(DETAILS)),
        errno=st.none() | NUMBER,
        sqlstate=st.none() | TEXT,
        headers=st.dictionaries(TEXT, TEXT, max_size=2),
        retry_after=st.none() | st.floats(0, 1e6),
        cause=st.none() | inner,
        members=st.lists(inner, max_size=2).map(tuple),
    )


failures = st.recursive(_failures(st.builds(Failure)), _failures, max_leaves=5)


@given(failures)
def test_every_failure_means_something(failure: Failure) -> None:
    cause = classify(failure)
    assert cause.detail in DETAILS
    assert (cause.category, cause.heals, cause.subclass) == DETAILS[cause.detail]
    assert cause.rule
    assert isinstance(failure.summary, str)
