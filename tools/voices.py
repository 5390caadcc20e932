"""What client libraries raise, for a world that has to fail in their words.

`StandIns` builds classes with the names and fields of the libraries' own, for environments without them. The tests with
the real libraries bring a `Voices` of their own, and both must come to the same numbers.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import httpx2 as httpx

import redrive


class Voices(Protocol):
    """One exception for each way to fail; times are seconds from now, read by a server as one would send them."""

    now: float
    """The wall clock, for servers that name an instant."""

    def overloaded(self, kind: str) -> BaseException: ...
    def limited(self, after: float | None) -> BaseException: ...
    def github_limited(self, left: float) -> BaseException: ...
    def unreachable(self, host: str, kind: str) -> BaseException: ...
    def too_long(self, tokens: int, window: int, number: int) -> BaseException: ...
    def wrong_output(self, text: str) -> BaseException: ...
    def cut_off(self, number: int) -> BaseException: ...
    def confused(self, how: str) -> BaseException: ...
    def refused(self, cause: str, number: int) -> BaseException: ...


class Refused(Exception):
    """What an application raises when it knows in its own words why it cannot go on."""

    def __init__(self, error_kind: str, message: str) -> None:
        super().__init__(message)
        self.error_kind = error_kind


OVERLOADED: dict[str, tuple[int, str, str]] = {
    "overloaded": (529, "overloaded_error", "Overloaded"),
    "unavailable": (503, "api_error", "Service Unavailable"),
}


class Shared:
    """What needs no library: the words of the answers, Python's own errors, and those of the application."""

    now = 0.0

    def wrong_output(self, text: str) -> Exception:
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            return error
        raise ValueError(f"{text!r} is right")

    def confused(self, how: str) -> Exception:
        return Refused("model_confusion", how)

    def refused(self, cause: str, number: int) -> BaseException:
        match cause:
            case "authority_exceeded":
                return self.github(403, "Resource not accessible by integration", {})
            case "data_integrity":
                return self.github(404, "Not Found", {})
            case "impossible_task":
                return redrive.GiveUp("production deploys are frozen until Monday")
            case _:
                return Refused("dependency_unavailable", "the archive was shut down for good in May")

    def github_limited(self, left: float) -> Exception:
        headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(self.now + left) + 1)}
        return self.github(403, "API rate limit exceeded for installation ID 12.", headers)

    def overloaded(self, kind: str) -> Exception:
        status, code, message = OVERLOADED[kind]
        return self.anthropic(status, code, message, {})

    def limited(self, after: float | None) -> Exception:
        headers = {} if after is None else {"retry-after": str(int(after) + 1)}
        return self.anthropic(429, "rate_limit_error", "This request would exceed your rate limit.", headers)

    def too_long(self, tokens: int, window: int, number: int) -> Exception:
        if number % 6 == 5:  # OpenAI says the same in two ways
            wanted = f"Limit {window}, Requested {tokens}. The input or output tokens must be reduced in order to run."
            return self.openai(429, "rate_limit_exceeded", f"Request too large for gpt-4o: {wanted}")
        if number % 3 == 2:
            words = f"This model's maximum context length is {window} tokens; your messages are {tokens} tokens."
            return self.openai(400, "context_length_exceeded", words)
        words = f"prompt is too long: {tokens} tokens > {window} maximum"
        return self.anthropic(400, "invalid_request_error", words, {})

    def anthropic(self, status: int, kind: str, message: str, headers: dict[str, str]) -> Exception:
        raise NotImplementedError

    def openai(self, status: int, code: str, message: str) -> Exception:
        raise NotImplementedError

    def github(self, status: int, message: str, headers: dict[str, str]) -> Exception:
        raise NotImplementedError


def library_class(name: str, *bases: type) -> type[Any]:
    """A class that is called as the library's own is."""
    module, _, bare = name.rpartition(".")
    return type(bare, bases or (Exception,), {"__module__": module})


_ANTHROPIC = library_class("anthropic.APIStatusError", library_class("anthropic.APIError"))
_OPENAI = library_class("openai.APIStatusError", library_class("openai.APIError"))
_GITHUB = library_class("github.GithubException.GithubException")
ANTHROPIC = {
    400: library_class("anthropic.BadRequestError", _ANTHROPIC),
    429: library_class("anthropic.RateLimitError", _ANTHROPIC),
    503: library_class("anthropic.ServiceUnavailableError", _ANTHROPIC),
    529: library_class("anthropic.OverloadedError", _ANTHROPIC),
}
OPENAI = {400: library_class("openai.BadRequestError", _OPENAI), 429: library_class("openai.RateLimitError", _OPENAI)}
GITHUB = {
    403: _GITHUB,
    404: library_class("github.GithubException.UnknownObjectException", _GITHUB),
}
GITHUB_LIMITED = library_class("github.GithubException.RateLimitExceededException", _GITHUB)
CUT_OFF = library_class("openai.LengthFinishReasonError")


def http_answer(url: str, status: int, body: Any, headers: dict[str, str]) -> httpx.Response:
    return httpx.Response(status, json=body, headers=headers, request=httpx.Request("POST", url))


class StandIns(Shared):
    """Classes built like the libraries' own."""

    def anthropic(self, status: int, kind: str, message: str, headers: dict[str, str]) -> Exception:
        body = {"type": "error", "error": {"type": kind, "message": message}}
        error: Exception = ANTHROPIC[status](f"Error code: {status} - {body}")
        vars(error).update(
            status_code=status, body=body, type=kind, request_id=None,
            response=http_answer("https://api.anthropic.com/v1/messages", status, body, headers),
        )  # fmt: skip
        return error

    def openai(self, status: int, code: str, message: str) -> Exception:
        kind = "tokens" if status == 429 else "invalid_request_error"
        body = {"message": message, "type": kind, "param": "messages", "code": code}
        error: Exception = OPENAI[status](f"Error code: {status} - {{'error': {body}}}")
        vars(error).update(
            status_code=status, body=body, code=code, type=kind, param="messages",
            response=http_answer("https://api.openai.com/v1/chat/completions", status, {"error": body}, {}),
        )  # fmt: skip
        return error

    def github(self, status: int, message: str, headers: dict[str, str]) -> Exception:
        kind = GITHUB_LIMITED if headers else GITHUB[status]
        data = {"message": message, "documentation_url": "https://docs.github.com/rest"}
        error: Exception = kind(f"{message}: {status} {json.dumps(data)}")
        vars(error).update(status=status, data=data, headers=headers)
        return error

    def unreachable(self, host: str, kind: str) -> Exception:
        if kind == "dns":
            return httpx.ConnectError("[Errno -3] Temporary failure in name resolution", request=_get(host))
        return httpx.ConnectTimeout("_ssl.c:1011: The handshake operation timed out", request=_get(host))

    def cut_off(self, number: int) -> Exception:
        error: Exception = CUT_OFF("Could not parse response content as the length limit was reached")
        return error


def _get(host: str) -> httpx.Request:
    return httpx.Request("GET", f"https://{host}/")
