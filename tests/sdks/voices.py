"""The exceptions of the real libraries, for the world of `tools.failure_mix`."""

from __future__ import annotations

import socket
from typing import Any

import anthropic
import httpx
import httpx2
import openai
from github.Requester import Requester
from openai.types.chat import ChatCompletion

from tools.voices import Shared


class RealVoices(Shared):
    """Each library makes its exception of an answer itself, by the method with which its client does."""

    def __init__(self) -> None:
        self._anthropic = anthropic.Anthropic(api_key="k")
        self._openai = openai.OpenAI(api_key="k")

    def anthropic(self, status: int, kind: str, message: str, headers: dict[str, str]) -> Exception:
        body = {"type": "error", "error": {"type": kind, "message": message}}
        request = httpx2.Request("POST", "https://api.anthropic.com/v1/messages")
        answer = httpx2.Response(status, json=body, headers=headers, request=request)
        return self._anthropic._make_status_error_from_response(answer)

    def openai(self, status: int, code: str, message: str) -> Exception:
        kind = "tokens" if status == 429 else "invalid_request_error"
        body = {"error": {"message": message, "type": kind, "param": "messages", "code": code}}
        request = httpx.Request("POST", "https://api.openai.com/v1/chat/completions")
        return self._openai._make_status_error_from_response(httpx.Response(status, json=body, request=request))

    def github(self, status: int, message: str, headers: dict[str, str]) -> Exception:
        data = {"message": message, "documentation_url": "https://docs.github.com/rest"}
        return Requester.createException(status, headers, data)

    def unreachable(self, host: str, kind: str) -> Exception:
        request = httpx.Request("GET", f"https://{host}/")
        if kind == "tls":
            return httpx.ConnectTimeout("_ssl.c:1011: The handshake operation timed out", request=request)
        error = httpx.ConnectError("[Errno -3] Temporary failure in name resolution", request=request)
        error.__cause__ = socket.gaierror(-3, "Temporary failure in name resolution")
        return error

    def cut_off(self, number: int) -> Exception:
        message = {"role": "assistant", "content": "and then"}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None, "message": message}
        said = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return openai.LengthFinishReasonError(completion=ChatCompletion.model_validate(said))
