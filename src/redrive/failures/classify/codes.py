"""Maps codes to details: codes of providers (as words), SQL states, JSON-RPC and gRPC codes, error numbers."""

from __future__ import annotations

import errno
import re
from functools import lru_cache
from typing import Final

_CODES_BY_DETAIL: Final[dict[str, str]] = {
    "rate_limited": """
        rate_limit rate_limited rate_limit_exceeded rate_limit_reached user_rate_limit_exceeded ratelimited throttling
        throttled throttled_exception request_throttled request_throttled_exception throttling_exception
        too_many_requests request_limit_exceeded bandwidth_limit_exceeded limit_exceeded slow_down
        provisioned_throughput_exceeded request_rate_too_large resource_exhausted ramp_limit_exceeded requests_limit
        tokens_limit secondary_rate_limit model_rate_limit ec2_throttled vendor_rate_limit""",
    "provider_overloaded": """
        overloaded server_overloaded server_is_overloaded model_overloaded model_is_overloaded engine_overloaded
        engine_is_overloaded service_overloaded system_overloaded capacity_exceeded over_capacity at_capacity""",
    "timeout": """
        timeout timed_out request_timeout gateway_timeout deadline_exceeded model_timeout vector_store_timeout
        execution_time_exceeded external_key_validation_timed_out request_timed_out""",
    "server_error": """
        server internal_server service_unavailable service_unavailable_exception internal_failure
        internal_service service_failure model_not_ready model_error model_stream internal_server_exception unavailable
        bad_gateway backend_error service_temporarily_unavailable temporarily_unavailable compaction_unavailable
        api_connection mp_agreement_being_created""",
    "contention": """
        conflict aborted transaction_conflict transaction_in_progress resource_in_use operation_aborted
        concurrent_modification conditional_check_failed optimistic_lock resource_conflict prior_request_not_complete
        memory_precondition_failed memory_path_conflict thread_continue_in_flight concurrent_membership_change
        slack_channel_set_up_settings_conflict scan_pending registration_pending wrong_last_sequence 10071 10164""",
    "context_overflow": """
        context_length_exceeded context_window_exceeded model_context_window_exceeded context_overflow request_too_large
        prompt_too_long input_too_long string_above_max_length max_context_length_exceeded
        request_body_too_large_after_decoding exceed_context_size model_max_prompt_tokens_exceeded""",
    "quota": """
        insufficient_quota billing billing_hard_limit_reached billing_not_active billing_disabled
        enforced_spend_limit_reached credit_balance_too_low insufficient_credits insufficient_balance
        insufficient_funds payment_required service_quota_exceeded storage_quota_exceeded quota_exceeded
        daily_limit_exceeded account_deactivated usage_limit_reached usage_limit_exceeded spend_limit_reached
        budget_exceeded access_terminated organization_on_hold out_of_credits credits_exhausted
        spend_limit_exceeded project_spend_limit_exceeded organization_spend_limit_exceeded
        organization_usage_limit_exceeded org_api_key_limit_exceeded org_member_limit_exceeded
        workspace_api_key_limit_exceeded workspace_member_limit_exceeded""",
    "token_budget": """
        max_turns max_budget_usd error_max_turns error_max_budget_usd graph_recursion_limit""",
    "invalid_output": """
        error_max_structured_output_retries output_parsing_failure malformed_function_call tool_use_failed
        json_validate_failed unexpected_tool_call too_many_tool_calls malformed_response""",
    "refusal": """
        content_filter content_filtered content_policy_violation responsible_ai_policy_violation refusal safety
        prohibited_content recitation blocklist spii image_safety bio_policy image_content_policy_violation
        guardrail_intervened content_management_policy moderation_blocked cyber_policy
        data_inspection_failed""",
    "credentials": """
        invalid_api_key api_key_invalid authentication unauthenticated unauthorized_client invalid_authentication
        invalid_client invalid_token invalid_grant invalid_subject_token invalid_credentials bad_credentials
        unrecognized_client invalid_client_token_id invalid_access_key_id invalid_signature signature_does_not_match
        auth_failure incomplete_signature missing_authentication_token missing_api_key not_authed invalid_auth
        account_inactive token_revoked access_token_type_unsupported credentials_missing invalid_identity_token
        noauth wrongpass cli_not_authenticated""",
    "credentials_expired": """
        expired_token token_expired expired_api_key api_key_expired access_token_expired credentials_expired
        request_expired token_refresh_required session_expired jwt_expired expired_signature""",
    "authority": """
        permission permission_denied access_denied unauthorized_operation not_authorized insufficient_permissions
        insufficient_scope missing_scope api_key_scope_missing access_not_configured service_disabled
        consumer_suspended api_key_service_blocked opt_in_required unsupported_country_region_territory
        sandbox_egress_restricted workspace_policy_violation organization_type_not_supported
        organization_not_enrolled_in_beta certificate_verify_failed noperm operation_not_permitted
        email_domain_not_allowed cmek_key_disabled cmek_key_network_blocked""",
    "data_integrity": """
        model_not_found deployment_not_found resource_not_found no_such_key no_such_bucket file_expired
        thread_not_found environment_not_found environment_archived user_profile_not_found unknown_object
        no_such_entity key_profile_mismatch""",
    "invalid_input": """
        validation param_validation invalid_parameter invalid_parameter_value malformed_query_string
        unsupported_parameter unsupported_value missing_required_parameter invalid_image
        image_too_large invalid_metadata unsupported_charset request_body_encoding_invalid tool_name_conflict
        request_body_encoding_unsupported wrongtype invalid_scope invalid_request_body""",
    "suspended": "approval_required input_required url_elicitation_required requires_action",
}

_WEAK_CODES_BY_DETAIL: Final[dict[str, str]] = {
    "invalid_input": """
        invalid_request bad_request invalid_argument failed_precondition out_of_range unimplemented invalid
        unprocessable_entity entity_too_large""",
    "data_integrity": "not_found data_loss gone",
    "server_error": "api internal api_internal internal_error",
    "authority": "forbidden",
    "credentials": "unauthorized unauthorized_exception",
}
"""Codes that come with many statuses; the status says more, if there is one."""


@lru_cache(maxsize=4096)
def plain(code: str) -> str:
    """Strips from a code case, separators and the words that only say `error`."""
    word = re.sub(r"[^a-z0-9]", "", code.lower())
    return re.sub(r"(?:exception|error|fault)+$", "", word) or word


def _by_code(listed: dict[str, str]) -> dict[str, str]:
    return {plain(code): detail for detail, codes in listed.items() for code in codes.split()}


CODES: Final = _by_code(_CODES_BY_DETAIL)
"""Provider codes (see `plain`) → detail."""
WEAK_CODES: Final = _by_code(_WEAK_CODES_BY_DETAIL)
_CODE_STARTS: Final = (
    ("throttl", "rate_limited"),
    ("toomanyrequests", "rate_limited"),
    ("ratelimit", "rate_limited"),
    ("serviceunavailable", "server_error"),
    ("servicequotaexceeded", "quota"),
    ("accessdenied", "authority"),
    ("expiredtoken", "credentials_expired"),
    ("contextlengthexceeded", "context_overflow"),
    ("smtp4", "server_error"),
    ("smtp53", "credentials"),
    ("smtp5", "invalid_input"),
)
"""Beginnings of codes: services of botocore append words freely, and replies of mail servers go by their digits."""


@lru_cache(maxsize=4096)
def code_detail(code: str) -> str | None:
    """Returns the detail of one provider code, if the code has one meaning."""
    word = plain(code)
    found = CODES.get(word)
    if found is not None:
        return found
    if "overloaded" in word:
        return "provider_overloaded"
    return next((detail for start, detail in _CODE_STARTS if word.startswith(start)), None)


SQLSTATES: Final[dict[str, str]] = {
    "40003": "outcome_unknown",
    "08007": "outcome_unknown",
    "42501": "authority",
    "42601": "bug",
    "42P01": "bug",
    "57014": "timeout",
    "57P04": "dependency_gone",
    "25006": "contention",
    "XX001": "data_integrity",
    "XX002": "data_integrity",
    "08": "network",
    "40": "contention",
    "53": "contention",
    "55": "contention",
    "57": "server_error",
    "58": "server_error",
    "XX": "server_error",
    "HV": "server_error",
    "28": "credentials",
    "0L": "authority",
    "0P": "authority",
    "3D": "dependency_gone",
    "3F": "dependency_gone",
    "22": "invalid_input",
    "23": "invalid_input",
    "42": "invalid_input",
    "44": "invalid_input",
    "54": "invalid_input",
    "0A": "invalid_input",
    "P0": "invalid_input",
    "21": "bug",
    "24": "bug",
    "25": "bug",
    "26": "bug",
    "34": "bug",
}
"""Details of whole SQL states, then of their classes (the first two characters)."""

SQLITE_NAMES: Final[dict[str, str]] = {
    "SQLITE_BUSY": "contention",
    "SQLITE_LOCKED": "contention",
    "SQLITE_PROTOCOL": "contention",
    "SQLITE_SCHEMA": "contention",
    "SQLITE_FULL": "contention",
    "SQLITE_NOMEM": "contention",
    "SQLITE_IOERR": "server_error",
    "SQLITE_INTERRUPT": "timeout",
    "SQLITE_CONSTRAINT": "invalid_input",
    "SQLITE_TOOBIG": "invalid_input",
    "SQLITE_MISMATCH": "invalid_input",
    "SQLITE_RANGE": "bug",
    "SQLITE_MISUSE": "bug",
    "SQLITE_CORRUPT": "data_integrity",
    "SQLITE_NOTADB": "data_integrity",
    "SQLITE_CANTOPEN": "dependency_gone",
    "SQLITE_READONLY": "authority",
    "SQLITE_PERM": "authority",
    "SQLITE_AUTH": "authority",
}
"""Details of SQLite's error names; extended names begin with these."""


def sql_detail(state: str) -> str | None:
    if state.startswith("SQLITE_"):
        return SQLITE_NAMES.get("_".join(state.split("_")[:2]))
    return SQLSTATES.get(state) or SQLSTATES.get(state[:2])


JSON_RPC: Final[dict[int, str]] = {
    -32000: "network",
    -32001: "timeout",
    -32002: "data_integrity",
    -32020: "invalid_input",
    -32021: "invalid_input",
    -32022: "invalid_input",
    -32042: "suspended",
    -32600: "invalid_input",
    -32601: "invalid_input",
    -32602: "invalid_input",
    -32603: "server_error",
    -32700: "invalid_input",
}

GRPC: Final[dict[str, str]] = {
    "UNAVAILABLE": "server_error",
    "INTERNAL": "server_error",
    "DEADLINE_EXCEEDED": "timeout",
    "RESOURCE_EXHAUSTED": "rate_limited",
    "ABORTED": "contention",
    "INVALID_ARGUMENT": "invalid_input",
    "FAILED_PRECONDITION": "invalid_input",
    "OUT_OF_RANGE": "invalid_input",
    "UNIMPLEMENTED": "invalid_input",
    "NOT_FOUND": "data_integrity",
    "ALREADY_EXISTS": "data_integrity",
    "DATA_LOSS": "data_integrity",
    "PERMISSION_DENIED": "authority",
    "UNAUTHENTICATED": "credentials",
}


def rpc_detail(code: int | None, status: str | None) -> str | None:
    if status is not None:
        return GRPC.get(status)
    if code is None:
        return None
    return JSON_RPC.get(code) or ("server_error" if -32099 <= code <= -32000 else None)


ERRNOS: Final[dict[int, str]] = {
    getattr(errno, name): detail
    for detail, names in {
        "own_limits": "EMFILE ENFILE",
        "contention": "ENOSPC EDQUOT EAGAIN EBUSY ENOMEM ETXTBSY EDEADLK ENOBUFS EADDRINUSE EINTR ENOLCK EUSERS",
        "network": "ECONNREFUSED ECONNRESET ECONNABORTED EHOSTUNREACH EHOSTDOWN ENETUNREACH ENETDOWN ENETRESET EPIPE "
        "ENOTCONN ESHUTDOWN EADDRNOTAVAIL EPROTO ENOLINK ECOMM",
        "timeout": "ETIMEDOUT ETIME",
        "server_error": "EIO ESTALE EREMOTEIO",
        "authority": "EACCES EPERM EROFS",
        "data_integrity": "ENOENT EEXIST EISDIR ENOTDIR ENOTEMPTY ELOOP",
        "invalid_input": "ENAMETOOLONG EINVAL EFBIG E2BIG EXDEV EMSGSIZE EDESTADDRREQ EAFNOSUPPORT EPROTONOSUPPORT "
        "ENOTSUP EOPNOTSUPP EOVERFLOW EILSEQ ERANGE EDOM",
        "dependency_gone": "ENOEXEC ENODEV ENXIO ENOSYS",
        "credentials": "ENOKEY EKEYREJECTED EKEYREVOKED",
        "credentials_expired": "EKEYEXPIRED",
        "bug": "EBADF ENOTSOCK EISCONN ESPIPE ENOTTY EFAULT",
    }.items()
    for name in names.split()
    if hasattr(errno, name)
}
"""Details of the operating system's error numbers. `No space left` heals when space is freed: contention."""
