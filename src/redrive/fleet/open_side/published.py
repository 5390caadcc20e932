"""Reads a published task: its agent, its task, its payload, and the options in its headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from redrive.core.job import Json
from redrive.errors import InvalidInput, InvalidOption, InvalidPayload
from redrive.stores.open_side.names import OpenNames
from redrive.stores.open_side.tasks import TaskMessage

KEPT: Final = (
    "X-Task-ID",
    "X-Idempotency-Key",
    "X-Task-Type",
    "X-Created-At",
    "X-Max-Retries",
    "X-Retry-Strategy",
    "traceparent",
    "tracestate",
)
"""Headers that the job keeps."""
_NAMES: Final = {name.lower(): name for name in KEPT}


class Published(msgspec.Struct, frozen=True):
    """A published task, as it was read."""

    task: str
    agent: str
    key: str
    headers: dict[str, str]
    payload: Json
    """The JSON of the body; its text where that is not JSON."""
    problem: InvalidInput | None = None
    """Why it cannot become a job."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the job. Raises InvalidInput where a header cannot be used."""
        options: dict[str, Any] = {
            "agent": self.agent,
            "idempotency_key": self.key,
            "headers": self.headers,
            "fallback": False,  # acknowledged means in the store
        }
        if (retries := self.headers.get("X-Max-Retries")) is not None:
            options["max_attempts"] = _retries(retries) + 1
        return options


def read(message: TaskMessage, names: OpenNames) -> Published:
    """Read a published task. Its `problem` says why it cannot become a job."""
    route = names.route(message.subject)
    headers = _headers(message.headers)
    key = headers.get("X-Idempotency-Key") or message.place
    payload, problem = _payload(message.data)
    return Published(route.task, route.agent, key, headers, payload, problem)


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    named = {_NAMES.get(name.lower()): value.strip() for name, value in headers.items()}
    return {name: value for name, value in named.items() if name is not None and value}


def _payload(data: bytes) -> tuple[Json, InvalidInput | None]:
    if not data.strip():
        return {}, None
    try:
        payload = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return data.decode("utf-8", "backslashreplace"), InvalidPayload(field="body", problem=f"is not JSON: {error}")
    if not isinstance(payload, dict):
        return payload, InvalidPayload(field="body", problem="must be a JSON object, whose fields are the arguments")
    return payload, None


def _retries(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 6:
        raise InvalidOption(field="X-Max-Retries", problem=f"{text[:40]!r} is not a whole number")
    return int(text)
