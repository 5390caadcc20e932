"""What failures mean: tables, order of the rules, chains, groups; and nothing makes it raise."""

from __future__ import annotations

import errno
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.job import Cause, Failure
from redrive.errors import InvalidOption
from redrive.failures.classify import (
    ALIASES,
    CLASSES,
    DETAILS,
    RULE_NOTES,
    RULES,
    STATUS_CLASSES,
    STATUSES,
    DeclaredRule,
    by_class,
    classify,
    known_detail,
)
from redrive.failures.classify.classes import UNFIT, UNFIT_CLASSES, class_detail, status_class_detail
from redrive.failures.classify.codes import (
    CODES,
    ERRNOS,
    GRPC,
    JSON_RPC,
    SQLITE_NAMES,
    SQLSTATES,
    WEAK_CODES,
    code_detail,
)


def raised(*types: str, **fields: Any) -> Failure:
    return Failure("exception", types or ("shop.Strange",), **fields)


def detail(failure: Failure) -> str:
    return classify(failure).detail


# ---- statuses


@pytest.mark.behaviour("C21")
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


def test_another_4xx_is_final_and_another_5xx_is_not() -> None:
    assert classify(raised(status=418)).category == "permanent"
    assert classify(raised(status=511)).category == "transient"


@pytest.mark.parametrize("status", [100, 200, 204, 0, -1, 700])
def test_a_status_that_is_no_failure_says_nothing(status: int) -> None:
    assert classify(raised(status=status)).detail == "unknown"


def test_a_class_that_speaks_goes_before_the_status_and_one_of_python_after_it() -> None:
    assert detail(raised("litellm.exceptions.APIConnectionError", status=500)) == "network"
    assert detail(raised("builtins.ConnectionError", status=422)) == "invalid_input"
    assert detail(raised("builtins.ConnectionError", status=200)) == "network"


def test_413_is_an_overflow_only_where_models_answer() -> None:
    assert detail(raised("httpx.HTTPStatusError", status=413)) == "invalid_input"
    assert detail(raised("httpx.HTTPStatusError", status=413, model_call=True)) == "context_overflow"
    assert detail(raised("anthropic.APIStatusError", status=413)) == "context_overflow"


@pytest.mark.behaviour("004-14")
@pytest.mark.parametrize("headers", [{"retry-after": "3"}, {"x-ratelimit-remaining": "0"}])
def test_a_403_that_counts_is_a_rate_limit(headers: dict[str, str]) -> None:
    assert detail(raised(status=403, headers=headers)) == "rate_limited"
    assert detail(raised(status=403, message="You have exceeded a secondary rate limit")) == "rate_limited"
    assert detail(raised(status=403, message="You have triggered an abuse detection mechanism")) == "rate_limited"
    assert detail(raised(status=403, headers={"x-ratelimit-remaining": "7"})) == "authority"


def test_an_expired_token_heals_later() -> None:
    cause = classify(raised(status=401, message="Token EXPIRED at noon"))
    assert (cause.detail, cause.heals) == ("credentials_expired", "later")


# ---- classes and errno


@pytest.mark.parametrize(("name", "expected"), list(CLASSES.items()))
def test_classes(name: str, expected: str) -> None:
    cause = classify(raised(name, model_asked=True))
    early = {"suspended": "control", "released": "control", "outcome_unknown": "outcome_unknown"}
    early |= dict.fromkeys(("token_budget", "context_overflow", "quota"), "limit_class") | {"own_limits": "own_limits"}
    usual = "status_class" if name in STATUS_CLASSES else early.get(expected, "class_table")
    certificate = "certificate" if name == "ssl.SSLCertVerificationError" else usual
    assert (cause.detail, cause.rule) == (expected, certificate)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai._exceptions.APITimeoutError", "timeout"),
        ("anthropic._exceptions.RateLimitError", "rate_limited"),
        ("claude_agent_sdk._errors.CLINotFoundError", "dependency_gone"),
        ("pydantic_core._pydantic_core.ValidationError", UNFIT),
        ("httpx2.ConnectError", None),
        ("httpx2._exceptions.ReadTimeout", None),
        ("httpx2.TransportError", "network"),
        ("httpcore2.NetworkError", "network"),
        ("kubernetes.client.rest.ServiceException", "server_error"),
        ("redis.asyncio.somewhere.BusyLoadingError", "contention"),
        ("google.genai._somewhere.UnknownApiResponseError", "server_error"),
        ("shop.payments.UnknownApiResponseError", None),
    ],
)
def test_a_class_is_known_wherever_its_library_keeps_it(name: str, expected: str | None) -> None:
    found = class_detail((name,)) or status_class_detail((name,))
    assert found == expected


@pytest.mark.behaviour("C21")
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
        (errno.EADDRINUSE, "contention"), (errno.EPROTO, "network"), (errno.EBADF, "bug"),
        (errno.E2BIG, "invalid_input"),
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


@pytest.mark.behaviour("003-25", "003-26")
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
    assert detail(raised(error_kind="", status=503)) == "server_error"


@pytest.mark.behaviour("003-25")
def test_refused_is_final_what_a_person_must_do_fails_fast_and_a_startup_race_heals() -> None:
    meant = {kind: classify(raised(error_kind=kind, message="timed out")) for kind in
             ("refused", "plugin_missing", "app_closed", "Startup-Race", "transient")}  # fmt: skip
    assert {kind: (cause.category, cause.detail) for kind, cause in meant.items()} == {
        "refused": ("permanent", "authority"),
        "plugin_missing": ("permanent", "needs_human"),
        "app_closed": ("permanent", "needs_human"),
        "Startup-Race": ("transient", "contention"),
        "transient": ("transient", "server_error"),
    }


@pytest.mark.behaviour("003-27")
def test_words_count_only_where_nothing_typed_speaks() -> None:
    words = "the connection timed out, rate limit exceeded"
    assert detail(raised("shop.Odd", message=words)) == "timeout"
    assert detail(raised("shop.Odd", message=words, error_kind="refused")) == "authority"
    assert detail(raised("builtins.TypeError", message=words)) == "bug"
    assert detail(raised("shop.Odd", message=words, status=404)) == "data_integrity"
    assert detail(Failure("soft", ("redrive.SoftFailure",), "upstream: Connection refused")) == "network"


@pytest.mark.behaviour("001-4")
@pytest.mark.parametrize(
    ("message", "rule", "expected"),
    [
        ("the request timed out", "timeout", "timeout"),
        ("rate limit exceeded, slow down", "rate_limit", "rate_limited"),
        ("your access token has expired", "expired_words", "credentials_expired"),
        ("connection reset by peer", "network_blip", "network"),
    ],
)
def test_the_usual_causes_have_a_rule_of_their_own(message: str, rule: str, expected: str) -> None:
    cause = classify(raised("shop.Odd", message=message))
    assert (cause.rule, cause.detail) == (rule, expected)


@pytest.mark.behaviour("001-28")
@pytest.mark.parametrize("name", ["TimeoutError", "ConnectionError", "RateLimitError"])
@pytest.mark.parametrize("module", ["builtins", "shop.errors", "some_sdk._exceptions"])
def test_the_three_classic_classes_are_tried_again_whoever_defines_them(name: str, module: str) -> None:
    assert classify(raised(f"{module}.{name}")).category == "transient"


@pytest.mark.parametrize("message", ["Prompt is too long: 9 tokens", "This model's maximum context length is 8192"])
def test_overflow_by_its_words(message: str) -> None:
    assert detail(raised(message=message)) == "context_overflow"
    assert detail(raised(message=message, status=400)) == "context_overflow"
    assert detail(raised(message=message, status=503)) == "server_error"


@pytest.mark.parametrize(
    "message",
    [
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        "However, the model is loaded with context length of only 4096 tokens, which is not enough.",
        "`inputs` must have less than 1024 tokens. Given: 2000",
        "the input token count is 1500000 but model only supports up to 1048576",
        "invalid params, context window exceeds limit (2013)",
        "Your request exceeded model token limit: 262144 (requested: 300000)",
        "Prompt exceeds max length",
        "Range of input length should be [1, 30720]",
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length.",
    ],
)
def test_overflow_in_the_words_of_other_providers(message: str) -> None:
    assert detail(raised(message=message, status=400, codes=("invalid_request_error",))) == "context_overflow"
    assert detail(raised(message=message)) == "context_overflow"
    assert detail(raised(message=message, status=429)) == "rate_limited"


@pytest.mark.parametrize(
    "message",
    [
        "image exceeds 5 MB maximum: 5316852 bytes > 5242880 bytes",
        "Request payload size exceeds the limit: 20971520 bytes.",
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
        "Invalid 'messages': array too long. Expected an array with maximum length 2048",
    ],
)
def test_what_else_can_be_too_large_is_no_overflow(message: str) -> None:
    assert detail(raised("openai.BadRequestError", message=message, status=400)) == "invalid_input"


def test_a_single_request_above_the_limit_of_a_minute_is_an_overflow_where_the_status_says_so() -> None:
    message = "Request too large for model `m` on tokens per minute (TPM): Limit 6000, please reduce your message size"
    limited = {"codes": ("rate_limit_exceeded", "tokens"), "message": message}
    assert detail(raised("openai.APIStatusError", status=413, **limited)) == "context_overflow"
    assert detail(raised("openai.RateLimitError", status=429, **limited)) == "context_overflow"


REQUEST_TOO_LARGE = (
    "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 31205. "
    "The input or output tokens must be reduced in order to run successfully."
)


@pytest.mark.behaviour("R-5b")
@pytest.mark.parametrize("status", [None, 200, 400, 413, 422, 429])
def test_a_request_that_must_be_reduced_itself_is_an_overflow_also_as_a_429(status: int | None) -> None:
    limited = {"codes": ("rate_limit_exceeded", "tokens"), "message": REQUEST_TOO_LARGE}
    assert detail(raised("openai.RateLimitError", status=status, **limited)) == "context_overflow"


@pytest.mark.behaviour("R-5b")
@pytest.mark.parametrize(
    "message",
    [
        "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try "
        "again in 2s.",
        "This request would exceed your organization's rate limit of 30,000 input tokens per minute. Please reduce the "
        "prompt length or the maximum tokens requested, or try again later.",
        "Too many tokens, please wait before trying again.",
        "prompt is too long",
    ],
)
def test_a_429_that_waiting_heals_is_no_overflow(message: str) -> None:
    assert detail(raised("openai.RateLimitError", status=429, message=message)) == "rate_limited"


@pytest.mark.behaviour("R-5b")
def test_the_phrase_counts_for_no_other_status() -> None:
    assert detail(raised(status=500, message=REQUEST_TOO_LARGE)) == "server_error"
    assert detail(raised(status=403, message=REQUEST_TOO_LARGE)) == "authority"


# ---- an overloaded provider, whatever status it sends


@pytest.mark.behaviour("R-5c")
@pytest.mark.parametrize("status", [400, 403, 408, 409, 422, 424, 499])
@pytest.mark.parametrize(
    "said",
    [
        {"codes": ("overloaded_error",)},
        {"codes": ("server_is_overloaded", "invalid_request_error")},
        {"codes": ("invalid_request_error",), "message": "The engine is currently overloaded, please try again later"},
        {"message": "Overloaded"},
        {"message": "m", "body": "This model is overloaded."},
    ],
)
def test_an_overload_that_comes_as_another_4xx_is_an_overload(status: int, said: dict[str, Any]) -> None:
    assert detail(raised("anthropic.APIStatusError", status=status, **said)) == "provider_overloaded"


@pytest.mark.behaviour("R-5c")
@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "the function add() has overloaded signatures", "invalid_input"),
        (404, "model is overloaded", "data_integrity"),
        (401, "server overloaded", "credentials"),
        (429, "server overloaded", "rate_limited"),
    ],
)
def test_other_words_and_statuses_mean_what_they_say(status: int, message: str, expected: str) -> None:
    assert detail(raised(status=status, message=message)) == expected


# ---- limits of this machine, busy sessions, connections without a status


@pytest.mark.behaviour("R-5d")
def test_memory_that_is_gone_is_a_limit_of_this_machine_and_no_bug() -> None:
    cause = classify(raised("builtins.MemoryError"))
    assert (cause.category, cause.detail, cause.subclass) == ("transient", "own_limits", "Resource")
    wrapped = raised("builtins.RuntimeError", message="worker failed", cause=raised("builtins.MemoryError"))
    assert detail(wrapped) == "own_limits"
    assert detail(raised("numpy._core._exceptions._ArrayMemoryError", "builtins.MemoryError")) == "own_limits"


@pytest.mark.behaviour("R-5e")
@pytest.mark.parametrize(
    "message",
    [
        "Claude Code returned an error result: Session 6f1c-9a is currently running",
        "Error: Session ID 0f9e is already in use. (exit code: 1)",
        "Command failed (exit code: 1)\nError output: session is currently running as a background agent",
    ],
)
def test_an_agents_session_that_is_running_elsewhere_is_contention(message: str) -> None:
    assert detail(raised("claude_agent_sdk._errors.ResultError", message=message)) == "contention"
    assert detail(raised("shop.Error", message=message)) == "unknown", "only where an agent SDK says so"


@pytest.mark.behaviour("R-5f")
@pytest.mark.parametrize("package", ["kubernetes.client.exceptions", "kubernetes.aio.client.exceptions",
                                     "kubernetes_asyncio.client.exceptions"])  # fmt: skip
def test_a_kubernetes_error_without_a_status_is_a_connection_that_failed(package: str) -> None:
    name = f"{package}.ApiException"
    assert detail(raised(name, message="(0)\nReason: SSLError")) == "network"
    assert detail(raised(name, message="(0)", cause=raised("urllib3.exceptions.SSLError", message="EOF"))) == "network"
    expired = raised("urllib3.exceptions.SSLError", message="[SSL: CERTIFICATE_VERIFY_FAILED] expired")
    assert detail(raised(name, message="(0)", cause=expired)) == "authority"
    refused = raised("websocket._exceptions.WebSocketBadStatusException", status=403)
    assert detail(raised(name, message="(0)\nReason: Handshake status 403", cause=refused)) == "authority"
    assert detail(raised(name, status=409)) == "contention"


# ---- data that does not fit


@pytest.mark.behaviour("R-5g")
@pytest.mark.parametrize("name", UNFIT_CLASSES)
def test_data_that_does_not_fit_is_the_models_fault_only_where_a_model_was_asked(name: str) -> None:
    plain, asked = classify(raised(name)), classify(raised(name, model_asked=True))
    assert (plain.category, plain.detail, plain.rule) == ("unknown", "unknown", "unfit_data")
    assert (asked.category, asked.detail, asked.rule) == ("conditional", "invalid_output", "class_table")


@pytest.mark.behaviour("R-5g")
def test_what_is_known_of_a_failure_holds_for_what_it_wraps() -> None:
    inner = raised("json.decoder.JSONDecodeError")
    wrapped, grouped = raised("builtins.ValueError", cause=inner), raised("builtins.ExceptionGroup", members=(inner,))
    assert [classify(each).rule for each in (wrapped, grouped)] == ["unfit_data", "unfit_data"]
    asked = [msgspec.structs.replace(each, model_asked=True) for each in (wrapped, grouped)]
    assert [detail(each) for each in asked] == ["invalid_output", "invalid_output"]


@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        ("Your account is not active, please check your billing details on our website.", 429, "quota"),
        ("Your request was rejected as a result of our safety system.", 400, "refusal"),
        ("This prompt contains sensitive words that violate Google's Responsible AI practices.", 400, "refusal"),
        ("Input data may contain inappropriate content.", 400, "refusal"),
        ("API Key not found. Please pass a valid API key.", 400, "credentials"),
        ('connection failed: FATAL:  password authentication failed for user "x"', None, "credentials"),
        ("(1045, \"Access denied for user 'x'@'y' (using password: YES)\")", None, "credentials"),
    ],
)
def test_what_providers_and_databases_say_only_in_words(message: str, status: int | None, expected: str) -> None:
    assert detail(raised("psycopg.OperationalError", message=message, status=status)) == expected


def test_an_overload_inside_a_stream_is_known_by_its_words() -> None:
    assert detail(raised(codes=("api_error",), status=200, message="Overloaded")) == "provider_overloaded"
    assert detail(raised(codes=("api_error",), status=200, message="Internal server error")) == "server_error"


@pytest.mark.parametrize(
    "types",
    [
        ("redrive.errors.OutcomeUnknown",),
        ("shop.PostWriteUncertain", "builtins.TimeoutError"),
        ("shop.TimeoutAfterWrite", "redrive.errors.OutcomeUnknown", "builtins.TimeoutError"),
        ("asyncpg.exceptions.StatementCompletionUnknownError",),
    ],
)
def test_an_unknown_outcome_is_for_a_person_even_if_it_is_a_timeout(types: tuple[str, ...]) -> None:
    cause = classify(raised(*types, status=503, message="timed out"))
    assert (cause.detail, cause.heals, cause.rule) == ("outcome_unknown", "person", "outcome_unknown")


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


def test_a_rate_limit_may_say_in_words_how_long_to_wait() -> None:
    words = "Rate limit reached for m. Please try again in 1m30s."
    assert classify(raised(message=words)).retry_after == 90.0
    assert classify(raised(status=429, message=words)).retry_after == 90.0
    assert classify(raised(status=429, body=words)).retry_after == 90.0
    assert classify(raised(status=429, message=words, retry_after=5.0)).retry_after == 5.0
    assert classify(raised(status=400, message=words)).retry_after is None


# ---- chains, groups, the user's own rules


def test_a_chain_is_what_its_root_is_where_the_top_says_nothing() -> None:
    failure = raised(cause=raised(cause=raised("builtins.ConnectionError")))
    assert detail(failure) == "network"
    assert detail(raised("builtins.TypeError", cause=raised("builtins.ConnectionError"))) == "bug"


def test_a_chain_of_strangers_is_unknown() -> None:
    assert classify(raised(cause=raised())) == Cause("unknown", "unknown", "unknown", "no_rule", "Logic")


def test_a_chain_hands_on_how_long_to_wait() -> None:
    failure = raised("anthropic.APIConnectionError", cause=raised(cause=raised(retry_after=9.0)))
    assert classify(failure).retry_after == 9.0


def test_paper_around_another_failure_takes_its_meaning() -> None:
    refused = raised("ssl.SSLError")
    assert (
        detail(raised("urllib3.exceptions.MaxRetryError", cause=raised("urllib3.exceptions.SSLError"))) == "authority"
    )
    assert detail(raised("urllib.error.URLError", cause=refused)) == "network"
    assert detail(raised("urllib3.exceptions.MaxRetryError", cause=raised("shop.Odd"))) == "network"


def test_a_group_waits_for_the_slowest_and_an_unknown_outcome_outweighs_all() -> None:
    group = ("builtins.ExceptionGroup",)
    fast, slow = raised("builtins.ConnectionError"), raised(status=429, retry_after=30.0)
    assert classify(raised(*group, members=(fast, slow))).retry_after == 30.0
    unknown = raised("redrive.errors.OutcomeUnknown")
    assert detail(raised(*group, members=(unknown, raised("builtins.TypeError")))) == "outcome_unknown"
    assert detail(raised(*group, message="timed out", members=(raised("builtins.TypeError"),))) == "bug"


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
    tables: list[dict[Any, str]] = [
        STATUSES, CLASSES, ALIASES, CODES, WEAK_CODES, SQLSTATES, SQLITE_NAMES, JSON_RPC, GRPC, ERRNOS,
    ]  # fmt: skip
    assert {detail for table in tables for detail in table.values()} <= DETAILS.keys()


def test_no_code_has_two_meanings() -> None:
    assert not CODES.keys() & WEAK_CODES.keys()


def test_the_rules_stand_in_their_order_and_each_has_its_sentence() -> None:
    names = [name for name, _ in RULES]
    order = [
        "control", "error_kind", "outcome_unknown", "overflow_phrase", "quota", "limit_class", "provider_code",
        "sqlstate", "rpc_code", "x_should_retry", "github_rate_limit", "class_table", "http_status", "errno",
    ]  # fmt: skip
    assert [name for name in names if name in order] == order
    assert len(set(names)) == len(names)
    assert {*names, "no_rule"} == RULE_NOTES.keys()
    assert all(note.endswith(".") for note in RULE_NOTES.values())


# ---- codes


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("smtp_421", "server_error"),
        ("smtp_450", "server_error"),
        ("smtp_535", "credentials"),
        ("smtp_550", "invalid_input"),
    ],
)
def test_the_replies_of_a_mail_server(code: str, expected: str) -> None:
    assert detail(raised("smtplib.SMTPDataError", "builtins.OSError", codes=(code,))) == expected


@pytest.mark.parametrize(
    "code", ["rate_limit_exceeded", "RateLimitExceeded", "rateLimitExceeded", "RATE_LIMIT_EXCEEDED", "rate-limit-error"]
)
def test_a_code_is_known_however_it_is_spelled(code: str) -> None:
    assert code_detail(code) == "rate_limited"


def test_a_general_code_gives_way_to_the_status() -> None:
    assert detail(raised(codes=("invalid_request_error",), status=404)) == "data_integrity"
    assert detail(raised(codes=("invalid_request_error",), status=200)) == "invalid_input"
    assert detail(raised(codes=("invalid_request_error",))) == "invalid_input"
    assert detail(raised(codes=("invalid_request_error", "invalid_api_key"), status=400)) == "credentials"


def test_a_quota_that_fills_again_is_a_rate_limit() -> None:
    message = "You exceeded your current quota, please check your plan and billing details."
    assert detail(raised(message=message, status=429)) == "quota"
    assert detail(raised(message=message, status=429, codes=("RESOURCE_EXHAUSTED",))) == "rate_limited"
    assert detail(raised(message=message, status=503)) == "server_error"


@pytest.mark.parametrize(
    ("said", "status", "retry_after", "expected"),
    [
        ("true", 400, None, "asked_to_retry"),
        ("true", 503, None, "server_error"),
        ("true", 429, None, "rate_limited"),
        ("True", None, None, "asked_to_retry"),
        ("false", 400, None, "invalid_input"),
        ("false", 503, None, "dependency_gone"),
        ("false", 429, None, "quota"),
        ("false", 429, 60.0, "rate_limited"),
        ("perhaps", 503, None, "server_error"),
    ],
)
def test_the_sender_may_say_whether_to_retry(
    said: str, status: int | None, retry_after: float | None, expected: str
) -> None:
    failure = raised("shop.Odd", status=status, headers={"x-should-retry": said}, retry_after=retry_after)
    assert detail(failure) == expected


def test_a_failure_may_say_of_itself_whether_it_heals() -> None:
    assert classify(raised("builtins.TypeError", retryable=True)).category == "transient"
    assert classify(raised("builtins.TimeoutError", retryable=False)).category == "permanent"


def test_a_certificate_is_no_blip_wherever_in_the_chain_it_is() -> None:
    inner = raised("ssl.SSLCertVerificationError", "ssl.SSLError")
    assert detail(raised("httpx.ConnectError", "httpx.TransportError", cause=inner)) == "authority"
    assert detail(raised("httpx.ConnectError", "httpx.TransportError", cause=raised("ssl.SSLError"))) == "network"


def test_an_answer_that_is_no_http_has_no_status() -> None:
    garbage = raised("aiohttp.http_exceptions.BadStatusLine", "aiohttp.http_exceptions.HttpProcessingError", status=400)
    cause = classify(raised("aiohttp.client_exceptions.ClientResponseError", status=400, cause=garbage))
    assert (cause.detail, cause.rule) == ("network", "garbled")
    assert detail(raised("aiohttp.client_exceptions.ClientResponseError", status=400)) == "invalid_input"


@pytest.mark.parametrize(
    "message",
    ["MISCONF Redis is configured to save RDB snapshots", "BUSY Redis is busy running a script.",
     "NOREPLICAS Not enough good replicas to write."],
)  # fmt: skip
def test_a_busy_redis_is_no_wrong_command(message: str) -> None:
    assert detail(raised("redis.exceptions.ResponseError", message=message)) == "contention"
    assert detail(raised("redis.exceptions.ResponseError", message="ERR unknown command")) == "invalid_input"


# ---- the user's own rules


@pytest.mark.parametrize("rule", [lambda _: 1 / 0, lambda _: 7, lambda _: "nonsense", lambda _: None, lambda _: ""])
def test_a_rule_that_raises_or_speaks_nonsense_does_not_know(rule: Any) -> None:
    assert classify(raised(status=404), (("mine", rule),)) == classify(raised(status=404))


def test_a_rule_may_use_an_alias() -> None:
    assert classify(raised(status=404), (("mine", lambda _: "github_api_rate_limit"),)).detail == "rate_limited"
    assert known_detail("No Such Thing") is None


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"class": "shop.Strange"}, True),
        ({"class": "Strange"}, True),
        ({"class": "shop.Other"}, False),
        ({"status": 404}, True),
        ({"status": 500}, False),
        ({"code": "No-Such-Order"}, True),
        ({"code": "no"}, False),
        ({"message": "ORDER 17"}, True),
        ({"message": "order 18"}, False),
        ({"error_kind": "gone"}, True),
        ({"class": "Strange", "status": 404, "message": "order"}, True),
        ({"class": "Strange", "status": 405}, False),
    ],
)
def test_declared_rules(given: dict[str, Any], fits: bool) -> None:
    rule = msgspec.convert({"detail": "needs_human", **given}, DeclaredRule).as_rule()
    failure = raised("shop.Strange", status=404, codes=("no_such_order",), message="no order 17", error_kind="gone")
    assert rule(failure) == ("needs_human" if fits else None)


@pytest.mark.parametrize(
    ("given", "field"),
    [({"detail": "nonsense", "status": 1}, "rules[3].detail"), ({"detail": "quota"}, "rules[3]")],
)
def test_a_declared_rule_that_makes_no_sense_is_refused(given: dict[str, Any], field: str) -> None:
    declared = msgspec.convert(given, DeclaredRule)
    with pytest.raises(InvalidOption) as refused:
        declared.as_rule("rules[3]")
    assert refused.value.field == field
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**given, "clas": "x"}, DeclaredRule)


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
        codes=st.lists(st.one_of(st.sampled_from(sorted(CODES)), TEXT), max_size=3).map(tuple),
        rpc_code=st.none() | st.integers(-33_000, -31_000),
        rpc_status=st.none() | st.sampled_from(sorted(GRPC)),
        retryable=st.none() | st.booleans(),
        body=st.none() | TEXT,
        model_call=st.booleans(),
        error_kind=st.none() | TEXT | st.sampled_from(sorted(DETAILS)),
        errno=st.none() | NUMBER,
        sqlstate=st.none() | TEXT,
        headers=st.dictionaries(TEXT, TEXT, max_size=2),
        retry_after=st.none() | st.floats(0, 1e6),
        cause=st.none() | inner,
        members=st.lists(inner, max_size=2).map(tuple),
    )


failures = st.recursive(_failures(st.builds(Failure)), _failures, max_leaves=5)


@pytest.mark.behaviour("001-16")
@given(failures)
def test_every_failure_means_something_and_always_the_same(failure: Failure) -> None:
    before = msgspec.json.encode(failure)
    cause = classify(failure)
    assert cause.detail in DETAILS
    assert (cause.category, cause.heals, cause.subclass) == DETAILS[cause.detail]
    assert cause.rule in RULE_NOTES
    assert isinstance(failure.summary, str)
    assert msgspec.json.encode(failure) == before
    assert classify(msgspec.json.decode(before, type=Failure)) == cause


@pytest.mark.behaviour("003-23", "004-16")
@given(st.sampled_from(sorted(DETAILS)))
def test_permanent_means_that_a_person_or_time_must_act(name: str) -> None:
    category, heals, subclass = DETAILS[name]
    assert subclass in ("Transient", "Logic", "Resource", "Authority")
    assert (
        heals
        in {
            "transient": ("at_once", "later"),
            "conditional": ("changed",),
            "permanent": ("person", "later"),
            "control": ("person", "at_once"),
            "unknown": ("unknown", "person"),
        }[category]
    )
