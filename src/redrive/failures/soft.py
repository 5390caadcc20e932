"""Finds failures that are not exceptions: the value that a task returned says that the task failed.

Known shapes only: `{"error": …}`, `{"success": False}`, `verified` with anything unproven, an `error_kind`, and the
answers of models that stopped for a bad reason. They come as dicts or as the objects of SDKs (pydantic, dataclasses,
msgspec), which are read by their fields; nothing is imported. Any other value is a success.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from redrive.core.job import Failure
from redrive.core.redact import redact_text
from redrive.failures.classify.codes import read_details
from redrive.failures.classify.retry_after import wait_of
from redrive.failures.http_answers import Codes, error_message, read_codes, rpc_code_of
from redrive.failures.safe_getattr import attribute, clean, http_status, item, text_of

SOFT_KEYS: Final = frozenset(
    {
        "error", "success", "error_kind", "verified", "is_error", "isError", "status", "choices", "candidates",
        "stop_reason", "stopReason", "incomplete_details", "prompt_feedback", "promptFeedback", "response_metadata",
        "output", "sequence_number", "done_reason",
    }
)  # fmt: skip
"""Keys of failures: a value with none of these keys is a success without a further look."""
_ALSO_READ: Final = (
    "message", "detail", "object", "role", "type", "subtype", "result", "content", "transient", "errors",
    "terminal_reason", "api_error_status", "code", "retry_after",
)  # fmt: skip
NO_FAILURE: Final = frozenset({type(None), str, int, float, bool, list, tuple, bytes, set})
"""Types whose values are never failures."""
_STOPS: Final = read_details("""
    token_budget=length,max_tokens,max_output_tokens context_overflow=model_context_window_exceeded
    refusal=content_filter,content_filtered,guardrail_intervened,refusal,safety,recitation,blocklist,prohibited_content
    refusal=spii,image_safety,image_prohibited_content,image_recitation,language
    invalid_output=malformed_function_call,malformed_tool_use,malformed_model_output,malformed_response
    invalid_output=unexpected_tool_call,too_many_tool_calls,missing_thought_signature,no_image
""")
"""Reasons for which a model stops without having done its work, as the providers spell them."""
_TYPE: Final = ("redrive.SoftFailure",)


def find_soft_failure(value: object) -> Failure | None:
    """Returns the failure that a returned value describes; None for a success."""
    kind: Any = type(value)
    try:
        if kind in NO_FAILURE:
            return None
        if isinstance(value, dict):
            return None if value.keys().isdisjoint(SOFT_KEYS) else _judge(value)
        told = attribute(value, "type")
        inner = attribute(value, "response") if isinstance(told, str) and told.startswith("response.") else None
        if inner is not None:
            return find_soft_failure(inner)  # the last event of a stream, with the whole answer in it
        names = _fields(kind)
        return _judge({name: _plain_part(attribute(value, name)) for name in names}) if names else None
    except Exception:  # noqa: BLE001 - a value that cannot be read has an unknown shape: not a failure
        return None


def _plain_part(part: object) -> object:
    """Turns an error object of an SDK back into a dict."""
    declared = attribute(type(part), "__pydantic_fields__")
    if not isinstance(declared, Mapping):
        return part
    return {str(name): attribute(part, str(name)) for name in list(declared)[:20]}


@lru_cache(maxsize=1024)
def _fields(kind: type) -> tuple[str, ...]:
    """Lists the fields to read of a class that declares its fields; none for any other class."""
    declared: set[str] = set()
    for marker in ("__pydantic_fields__", "__dataclass_fields__", "__struct_fields__"):
        names = attribute(kind, marker)
        if isinstance(names, dict | tuple):
            declared.update(name for name in names if isinstance(name, str))
    if declared.isdisjoint(SOFT_KEYS):
        return ()
    return tuple(sorted(declared.intersection(SOFT_KEYS.union(_ALSO_READ))))


def _judge(value: Mapping[str, Any]) -> Failure | None:
    for look in _LOOKS:
        failure = look(value)
        if failure is not None:
            return failure
    return None


def _failure(message: str, value: Mapping[str, Any], kind: str | None = None, code: object = None) -> Failure:
    codes = Codes()
    codes.add(code)
    read_codes(value, codes)
    kept = codes.kept()
    error = value.get("error")
    status = http_status(item(error, "code")) or http_status(value.get("api_error_status"))
    named = text_of(value.get("error_kind"), 100) or text_of(item(error, "error_kind"), 100)
    return Failure(
        "soft",
        _TYPE,
        redact_text(clean(message, 2_000)),
        status=status or http_status(item(error, "status")),
        code=kept[0] if kept else None,
        error_kind=named or kind or _read_transient(value),
        codes=kept,
        rpc_code=rpc_code_of(value),
        retry_after=_read_wait(value),
    )


def _read_wait(value: Mapping[str, Any]) -> float | None:
    """Reads `retry_after` of a result as a span; an instant would need a clock, and results have none."""
    wait = value.get("retry_after")
    return wait_of(item(value.get("error"), "retry_after") if wait is None else wait, 0.0)


def _read_transient(value: Mapping[str, Any]) -> str | None:
    """Reads whether a result says that it is worth another try."""
    transient = value.get("transient")
    if isinstance(transient, bool):
        return "transient" if transient else "permanent"
    return None


def _words(value: Mapping[str, Any], default: str) -> str:
    """Returns the message of a result; never empty. The error itself goes before a message beside the error."""
    error = value.get("error")
    candidates = (
        error,
        error_message(value),
        _show_error(error) if error else None,
        value.get("message"),
        value.get("result"),
    )
    return next((text.strip() for text in candidates if isinstance(text, str) and text.strip()), default)


def _show_error(error: object) -> str | None:
    try:
        return repr(error) if isinstance(error, dict | list) else str(error)
    except Exception:  # noqa: BLE001 - an error that cannot be shown gets the default text
        return None


# ---- the shapes, the most telling first


def _error_key(value: Mapping[str, Any]) -> Failure | None:
    return _failure(_words(value, "the task returned an error"), value) if value.get("error") else None


def _no_success(value: Mapping[str, Any]) -> Failure | None:
    if value.get("success") is not False:
        return None
    return _failure(_words(value, "the task returned success: false, without a message"), value)


def _flagged_error(value: Mapping[str, Any]) -> Failure | None:
    """Finds a result of a tool or an agent that is flagged as an error."""
    if value.get("is_error") is not True and value.get("isError") is not True:
        return None
    words = _words({**value, "message": value.get("message") or _content(value)}, "the result is marked as an error")
    return _failure(words, value, code=value.get("terminal_reason"))


def _content(value: Mapping[str, Any]) -> str | None:
    content = value.get("content")
    if isinstance(content, list) and content:
        return text_of(item(content[0], "text"), 500)
    return None


def _kind_alone(value: Mapping[str, Any]) -> Failure | None:
    kind = text_of(value.get("error_kind"), 100)
    return _failure(_words(value, f"the task returned error_kind {kind!r}"), value) if kind else None


def _unverified(value: Mapping[str, Any]) -> Failure | None:
    verified = value.get("verified")
    if not isinstance(verified, dict):
        return None
    open_ones = [clean(str(name), 60) for name, proof in verified.items() if proof is not True and proof != "verified"]
    if not open_ones:
        return None
    return _failure(f"not verified: {', '.join(open_ones[:10])}", value)


def _status_word(value: Mapping[str, Any]) -> Failure | None:
    """Finds `status: error`; in a response of OpenAI also `failed` and `incomplete`."""
    status = text_of(value.get("status"), 40)
    if status == "error":
        return _failure(_words(value, "the task returned status: error"), value)
    if status == "incomplete":
        reason = text_of(item(value.get("incomplete_details"), "reason"), 60)
        if reason is not None or value.get("object") == "response":
            return _judge_stop(reason or "length", value)
    if status == "failed" and value.get("object") == "response":
        return _failure(_words(value, "the model's response failed"), value)
    return None


def _error_event(value: Mapping[str, Any]) -> Failure | None:
    """Finds the event with which OpenAI's Responses break off a stream."""
    if value.get("type") != "error" or "sequence_number" not in value:
        return None
    return _failure(
        _words(value, "the stream ended with an error"), value, None if value.get("code") else "server_error"
    )


def _judge_stop(reason: str, value: Mapping[str, Any]) -> Failure | None:
    kind = _STOPS.get(reason.lower())
    if kind is None:
        return None
    return _failure(f"the model stopped early: {reason}", value, kind, reason)


def _first_stop(value: Mapping[str, Any]) -> Failure | None:
    """Finds a bad stop reason of Anthropic, Bedrock, or in the metadata that LangChain keeps."""
    metadata = value.get("response_metadata")
    for owner in (value, metadata if isinstance(metadata, dict) else {}):
        for name in ("stop_reason", "stopReason", "finish_reason", "done_reason"):
            reason = text_of(owner.get(name), 60)
            if reason is not None:
                return _judge_stop(reason, value)
    return None


def _choices(value: Mapping[str, Any]) -> Failure | None:
    """Finds chat completions or candidates of Gemini of which none ended well."""
    answers = value.get("choices") or value.get("candidates")
    if not isinstance(answers, list) or not answers:
        return _judge_block(value)
    failures = [_judge_answer(answer, value) for answer in answers[:10]]
    return failures[0] if all(failure is not None for failure in failures) else None


def _judge_answer(answer: object, value: Mapping[str, Any]) -> Failure | None:
    reason = text_of(item(answer, "finish_reason") or item(answer, "finishReason"), 60)
    failure = _judge_stop(reason, value) if reason else None
    if failure is not None:
        return failure
    refusal = item(item(answer, "message"), "refusal")
    return _failure(f"the model refused: {refusal}", value, "refusal") if isinstance(refusal, str) and refusal else None


def _refused_output(value: Mapping[str, Any]) -> Failure | None:
    """Finds messages in OpenAI's Responses whose parts are refusals and no text."""
    output = value.get("output")
    if not isinstance(output, list):
        return None
    parts = [
        part
        for message in output[:10]
        if item(message, "type") == "message"
        for part in (item(message, "content") or ())
    ]
    kinds = {item(part, "type") for part in parts}
    if "refusal" not in kinds or "output_text" in kinds:
        return None
    refusal = next(item(part, "refusal") for part in parts if item(part, "type") == "refusal")
    return _failure(f"the model refused: {refusal}", value, "refusal")


def _judge_block(value: Mapping[str, Any]) -> Failure | None:
    feedback = value.get("prompt_feedback") or value.get("promptFeedback")
    reason = text_of(item(feedback, "block_reason") or item(feedback, "blockReason"), 60)
    return _failure(f"the prompt was blocked: {reason}", value, "refusal", reason) if reason else None


def _endless(value: Mapping[str, Any]) -> Failure | None:
    """Finds an answer without an end: its stream was closed in the middle without an error."""
    if value.get("type") == "message" and value.get("role") == "assistant" and "stop_reason" in value:
        ended = value["stop_reason"] is not None
    elif value.get("object") == "chat.completion" and isinstance(value.get("choices"), list) and value["choices"]:
        ended = any(item(choice, "finish_reason") is not None for choice in value["choices"][:10])
    else:
        return None
    return None if ended else _failure("the answer has no end: its stream broke off", value, "network")


_LOOKS: Final[tuple[Callable[[Mapping[str, Any]], Failure | None], ...]] = (
    _error_key,
    _error_event,
    _no_success,
    _flagged_error,
    _kind_alone,
    _unverified,
    _status_word,
    _first_stop,
    _choices,
    _refused_output,
    _endless,
)
