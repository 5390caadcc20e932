"""Maps codes to details: codes of providers (as words), SQL states, JSON-RPC and gRPC codes, error numbers."""

from __future__ import annotations

import errno
import re
from functools import lru_cache
from typing import Final


def read_details(text: str) -> dict[str, str]:
    """Reads a table, written as `detail=NAME,NAME detail=NAME`, into the detail of each name."""
    groups = [group.split("=") for group in text.split()]
    return {name: detail for detail, names in groups for name in names.split(",")}


def read_numbers(text: str) -> dict[int, str]:
    """Reads a table of numbers, written as for `read_details`."""
    return {int(number): detail for number, detail in read_details(text).items()}


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
_CODE_STARTS: Final = tuple(
    read_details("""
    rate_limited=throttl,toomanyrequests,ratelimit server_error=serviceunavailable,smtp4 quota=servicequotaexceeded
    authority=accessdenied credentials_expired=expiredtoken context_overflow=contextlengthexceeded
    credentials=smtp53 invalid_input=smtp5
    """).items()
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


SQLSTATES: Final = read_details("""
    outcome_unknown=40003,08007 authority=42501,0L,0P bug=42601,42P01,21,24,25,26,34 timeout=57014
    dependency_gone=57P04,3D,3F contention=25006,40,53,55 data_integrity=XX001,XX002 network=08
    server_error=57,58,XX,HV credentials=28 invalid_input=22,23,42,44,54,0A,P0
""")
"""Details of whole SQL states, then of their classes (the first two characters)."""

SQLITE_NAMES: Final = read_details("""
    contention=SQLITE_BUSY,SQLITE_LOCKED,SQLITE_PROTOCOL,SQLITE_SCHEMA,SQLITE_FULL,SQLITE_NOMEM
    server_error=SQLITE_IOERR timeout=SQLITE_INTERRUPT invalid_input=SQLITE_CONSTRAINT,SQLITE_TOOBIG,SQLITE_MISMATCH
    bug=SQLITE_RANGE,SQLITE_MISUSE data_integrity=SQLITE_CORRUPT,SQLITE_NOTADB dependency_gone=SQLITE_CANTOPEN
    authority=SQLITE_READONLY,SQLITE_PERM,SQLITE_AUTH
""")
"""Details of SQLite's error names; extended names begin with these."""


def sql_detail(state: str) -> str | None:
    if state.startswith("SQLITE_"):
        return SQLITE_NAMES.get("_".join(state.split("_")[:2]))
    return SQLSTATES.get(state) or SQLSTATES.get(state[:2])


JSON_RPC: Final = read_numbers("""
    network=-32000 timeout=-32001 data_integrity=-32002
    invalid_input=-32020,-32021,-32022,-32600,-32601,-32602,-32700 suspended=-32042 server_error=-32603
""")

GRPC: Final = read_details("""
    server_error=UNAVAILABLE,INTERNAL timeout=DEADLINE_EXCEEDED rate_limited=RESOURCE_EXHAUSTED contention=ABORTED
    invalid_input=INVALID_ARGUMENT,FAILED_PRECONDITION,OUT_OF_RANGE,UNIMPLEMENTED
    data_integrity=NOT_FOUND,ALREADY_EXISTS,DATA_LOSS authority=PERMISSION_DENIED credentials=UNAUTHENTICATED
""")


def rpc_detail(code: int | None, status: str | None) -> str | None:
    if status is not None:
        return GRPC.get(status)
    if code is None:
        return None
    return JSON_RPC.get(code) or ("server_error" if -32099 <= code <= -32000 else None)


ERRNOS: Final[dict[int, str]] = {
    getattr(errno, name): detail
    for name, detail in read_details("""
        own_limits=EMFILE,ENFILE
        contention=ENOSPC,EDQUOT,EAGAIN,EBUSY,ENOMEM,ETXTBSY,EDEADLK,ENOBUFS,EADDRINUSE,EINTR,ENOLCK,EUSERS
        network=ECONNREFUSED,ECONNRESET,ECONNABORTED,EHOSTUNREACH,EHOSTDOWN,ENETUNREACH,ENETDOWN,ENETRESET
        network=EPIPE,ENOTCONN,ESHUTDOWN,EADDRNOTAVAIL,EPROTO,ENOLINK,ECOMM
        timeout=ETIMEDOUT,ETIME server_error=EIO,ESTALE,EREMOTEIO authority=EACCES,EPERM,EROFS
        data_integrity=ENOENT,EEXIST,EISDIR,ENOTDIR,ENOTEMPTY,ELOOP
        invalid_input=ENAMETOOLONG,EINVAL,EFBIG,E2BIG,EXDEV,EMSGSIZE,EDESTADDRREQ
        invalid_input=EAFNOSUPPORT,EPROTONOSUPPORT,ENOTSUP,EOPNOTSUPP,EOVERFLOW,EILSEQ,ERANGE,EDOM
        dependency_gone=ENOEXEC,ENODEV,ENXIO,ENOSYS credentials=ENOKEY,EKEYREJECTED,EKEYREVOKED
        credentials_expired=EKEYEXPIRED bug=EBADF,ENOTSOCK,EISCONN,ESPIPE,ENOTTY,EFAULT
    """).items()
    if hasattr(errno, name)
}
"""Details of the operating system's error numbers. `No space left` heals when space is freed: contention."""
