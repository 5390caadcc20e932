"""A model provider on 127.0.0.1 that speaks as Anthropic and OpenAI do, plain and as a stream of events.

It reads what it is sent: it counts the words of the input, refuses what is longer than its window, refuses a call that
was parted from its result, and answers an instruction that it finds. So a retry succeeds only if it differs.
Every request is kept. `plays(...)` says what the next requests get, in order; `always(...)` what all of them get.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

Stop = Literal["end", "length", "refusal", "filter"]
Ending = Literal["whole", "reset_first", "reset_after_headers", "cut"]
Event = tuple[str | None, Any]
"""The name of an event of a stream, if it has one, and its data."""


class Request(NamedTuple):
    """What a client sent."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def wire(self) -> Wire:
        return WIRES[self.path]

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @property
    def messages(self) -> list[dict[str, Any]]:
        given = self.body["input"] if "input" in self.body else self.body["messages"]
        return [{"role": "user", "content": given}] if isinstance(given, str) else given

    @property
    def limit(self) -> int:
        """How long the answer may be."""
        names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
        return next((int(self.body[name]) for name in names if self.body.get(name)), 4096)

    @property
    def text(self) -> str:
        """Everything that the model reads."""
        return "\n".join(_strings([self.body.get("system"), self.body.get("instructions"), self.messages]))

    @property
    def tokens(self) -> int:
        """Our own way of counting: a token is a word."""
        return len(self.text.split())


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, one in value.items():
            if name in ("content", "text", "input", "arguments", "function", "tool_calls"):
                yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


class Reply(NamedTuple):
    """What goes over the wire, and how it ends."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] | None = None
    events: tuple[Event, ...] | None = None
    ending: Ending = "whole"


Answer = Callable[[Request], Reply]


# ---- the formats


class Fault(NamedTuple):
    """One error as a provider sends it."""

    status: int
    kind: str
    message: str
    code: str | None = None


class Wire:
    """A format: how an answer, a stream and an error look in it."""

    stops: ClassVar[dict[Stop, str]]
    faults: ClassVar[dict[str, Fault]]

    def whole(self, request: Request, text: str, stop: Stop) -> dict[str, Any]:
        raise NotImplementedError

    def events(self, request: Request, text: str, stop: Stop) -> list[Event]:
        raise NotImplementedError

    def failing(self, fault: Fault) -> Event:
        """The error as an event inside a stream."""
        raise NotImplementedError

    def error(self, fault: Fault) -> dict[str, Any]:
        raise NotImplementedError

    def parted(self, request: Request) -> str | None:
        """What is wrong with the calls and results in the input, if something is."""
        return None


class Messages(Wire):
    """Anthropic: POST /v1/messages."""

    stops: ClassVar[dict[Stop, str]] = {
        "end": "end_turn",
        "length": "max_tokens",
        "refusal": "refusal",
        "filter": "refusal",
    }
    faults: ClassVar[dict[str, Fault]] = {
        "overflow": Fault(400, "invalid_request_error", "prompt is too long: {tokens} tokens > {window} maximum"),
        "limited": Fault(429, "rate_limit_error", "This request would exceed your organization's rate limit."),
        "overloaded": Fault(529, "overloaded_error", "Overloaded"),
        "broken": Fault(500, "api_error", "Internal server error"),
        "quota": Fault(400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        "key": Fault(401, "authentication_error", "invalid x-api-key"),
    }

    def whole(self, request: Request, text: str, stop: Stop) -> dict[str, Any]:
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": [{"type": "text", "text": text}] if text else [],
            "stop_reason": self.stops[stop],
            "stop_sequence": None,
            "usage": {"input_tokens": request.tokens, "output_tokens": len(text.split())},
        }

    def events(self, request: Request, text: str, stop: Stop) -> list[Event]:
        whole = self.whole(request, text, stop)
        began = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
        pieces: list[Any] = [
            {"type": "message_start", "message": began},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
                for word in _words(text)
            ),
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": self.stops[stop], "stop_sequence": None},
                "usage": {"output_tokens": len(text.split())},
            },
            {"type": "message_stop"},
        ]
        return [(piece["type"], piece) for piece in pieces]

    def failing(self, fault: Fault) -> Event:
        return "error", self.error(fault)

    def error(self, fault: Fault) -> dict[str, Any]:
        return {
            "type": "error",
            "error": {"type": fault.kind, "message": fault.message},
            "request_id": "req_1",
        }

    def parted(self, request: Request) -> str | None:
        called: set[str] = set()
        for number, message in enumerate(request.messages):
            blocks = message["content"] if isinstance(message["content"], list) else []
            results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
            if results != called:
                return f"messages.{number}: `tool_use` and `tool_result` blocks do not match"
            called = {block["id"] for block in blocks if block["type"] == "tool_use"}
        return None


class OpenAI(Wire):
    """What both formats of OpenAI share."""

    faults: ClassVar[dict[str, Fault]] = {
        "overflow": Fault(
            400,
            "invalid_request_error",
            "This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} "
            "tokens. Please reduce the length of the messages.",
            "context_length_exceeded",
        ),
        "limited": Fault(429, "tokens", "Rate limit reached for the model", "rate_limit_exceeded"),
        "overloaded": Fault(503, "server_error", "The engine is currently overloaded, please try again later"),
        "broken": Fault(500, "server_error", "The server had an error while processing your request."),
        "quota": Fault(
            429,
            "insufficient_quota",
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
        ),
        "key": Fault(401, "invalid_request_error", "Incorrect API key provided: k.", "invalid_api_key"),
    }

    def error(self, fault: Fault) -> dict[str, Any]:
        return {"error": {"message": fault.message, "type": fault.kind, "param": None, "code": fault.code}}


class Chat(OpenAI):
    """OpenAI: POST /v1/chat/completions."""

    stops: ClassVar[dict[Stop, str]] = {
        "end": "stop",
        "length": "length",
        "refusal": "stop",
        "filter": "content_filter",
    }

    def whole(self, request: Request, text: str, stop: Stop) -> dict[str, Any]:
        said = {"content": None, "refusal": text} if stop == "refusal" else {"content": text, "refusal": None}
        answered, asked = len(text.split()), request.tokens
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_800_000_000,
            "model": request.model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", **said},
                    "logprobs": None,
                    "finish_reason": self.stops[stop],
                }
            ],
            "usage": {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered},
        }

    def events(self, request: Request, text: str, stop: Stop) -> list[Event]:
        whole = self.whole(request, text, stop)
        name = "refusal" if stop == "refusal" else "content"
        deltas: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": ""}, None)]
        deltas += [({name: word}, None) for word in _words(text)] + [({}, self.stops[stop])]
        events: list[Event] = [(None, self._chunk(whole, delta, reason)) for delta, reason in deltas]
        if (request.body.get("stream_options") or {}).get("include_usage"):
            events.append((None, {**self._chunk(whole, {}, None), "choices": [], "usage": whole["usage"]}))
        return [*events, (None, "[DONE]")]

    def _chunk(self, whole: dict[str, Any], delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        kept = {name: whole[name] for name in ("id", "created", "model")}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**kept, "object": "chat.completion.chunk", "choices": [choice]}

    def failing(self, fault: Fault) -> Event:
        return None, self.error(fault)

    def parted(self, request: Request) -> str | None:
        called: set[str] = set()
        for number, message in enumerate(request.messages):
            if message["role"] != "tool" and called:
                return f"messages.[{number}]: tool_call_ids did not have response messages: {sorted(called)}"
            if message["role"] == "tool":
                if message["tool_call_id"] not in called:
                    return f"messages.[{number}]: 'tool' must be a response to a preceding message with 'tool_calls'"
                called.remove(message["tool_call_id"])
            called |= {call["id"] for call in message.get("tool_calls") or ()}
        return None


class Responses(OpenAI):
    """OpenAI: POST /v1/responses."""

    stops: ClassVar[dict[Stop, str]] = {
        "end": "completed",
        "length": "incomplete",
        "refusal": "completed",
        "filter": "incomplete",
    }

    def whole(self, request: Request, text: str, stop: Stop) -> dict[str, Any]:
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
        part = {"type": "refusal", "refusal": text} if stop == "refusal" else part
        reason = {"length": "max_output_tokens", "filter": "content_filter"}.get(stop)
        answered, asked = len(text.split()), request.tokens
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_800_000_000,
            "model": request.model,
            "status": self.stops[stop],
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "instructions": request.body.get("instructions"),
            "metadata": {},
            "output": [
                {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
            ],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": asked,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": answered,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": asked + answered,
            },
        }

    def events(self, request: Request, text: str, stop: Stop) -> list[Event]:
        whole = self.whole(request, text, stop)
        began = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        pieces: list[dict[str, Any]] = [
            {"type": "response.created", "response": began},
            *({"type": "response.output_text.delta", **place, "delta": word, "logprobs": []} for word in _words(text)),
            {"type": f"response.{whole['status']}", "response": whole},
        ]
        return [(piece["type"], {**piece, "sequence_number": number}) for number, piece in enumerate(pieces)]

    def failing(self, fault: Fault) -> Event:
        error = {"code": fault.code or fault.kind, "message": fault.message}
        failed = {"id": "resp_1", "object": "response", "created_at": 1, "status": "failed", "error": error}
        more = {"output": [], "model": "m", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return "response.failed", {"type": "response.failed", "sequence_number": 9, "response": {**failed, **more}}


def _words(text: str) -> list[str]:
    return [f"{word} " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]


WIRES: dict[str, Wire] = {
    "/v1/messages": Messages(),
    "/v1/chat/completions": Chat(),
    "/v1/responses": Responses(),
}


# ---- the answers


def says(text: str = "42", stop: Stop = "end") -> Answer:
    """This text; cut where the request allows less."""

    def answer(request: Request) -> Reply:
        problem = request.wire.parted(request)
        if problem is not None:
            return Reply(400, request.wire.error(Fault(400, "invalid_request_error", problem)))
        words = text.split(" ")
        cut = " ".join(words[: request.limit])
        end: Stop = "length" if len(words) > request.limit else stop
        if request.body.get("stream"):
            return Reply(events=tuple(request.wire.events(request, cut, end)))
        return Reply(body=request.wire.whole(request, cut, end))

    return answer


OK = says()


def fails(name: str, status: int | None = None, headers: dict[str, str] | None = None) -> Answer:
    """One of the faults above, as the format in use spells it."""

    def answer(request: Request) -> Reply:
        fault = request.wire.faults[name]
        return Reply(status or fault.status, request.wire.error(fault), headers)

    return answer


def window(size: int, then: Answer = OK) -> Answer:
    """Reads so many tokens and no more."""

    def answer(request: Request) -> Reply:
        if request.tokens <= size:
            return then(request)
        fault = request.wire.faults["overflow"]
        fault = fault._replace(message=fault.message.format(tokens=request.tokens, window=size))
        return Reply(fault.status, request.wire.error(fault))

    return answer


def breaks_off(name: str) -> Answer:
    """Begins to stream with status 200, then sends an error inside the stream."""

    def answer(request: Request) -> Reply:
        begun = request.wire.events(request, "It is", "end")[:3]
        return Reply(events=(*begun, request.wire.failing(request.wire.faults[name])))

    return answer


def when(asked: Callable[[Request], bool], then: Answer, otherwise: Answer) -> Answer:
    """What it answers depends on what it reads."""
    return lambda request: (then if asked(request) else otherwise)(request)


def ends(ending: Ending) -> Answer:
    """The right answer, of which the connection does not carry everything."""
    return lambda request: OK(request)._replace(ending=ending)


def trails_off(request: Request) -> Reply:
    """Ends the stream in the middle, politely: as far as HTTP can tell it is whole."""
    events = says("one two three four")(request).events or ()
    return Reply(events=events[:4])


def _unscripted(request: Request) -> Reply:
    return Reply(418, {"error": {"type": "unscripted", "message": f"nobody expected request to {request.path}"}})


# ---- the server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path.partition("?")[0], headers, json.loads(raw))
        self.close_connection = True
        reply = cast("_Server", self.server).provider.answer(request)
        if reply.ending == "reset_first":
            self._reset()
        else:
            self._send(reply)

    def _send(self, reply: Reply) -> None:
        pieces = self._pieces(reply)
        self.send_response(reply.status)
        kind = "text/event-stream" if reply.events is not None else "application/json"
        for name, value in {"Content-Type": kind, "Connection": "close", **(reply.headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if reply.ending != "reset_after_headers":
            kept = pieces[: len(pieces) // 2] if reply.ending == "cut" else [*pieces, b""]
            for piece in kept:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.flush()
        if reply.ending == "reset_after_headers":
            self._reset()

    def _pieces(self, reply: Reply) -> list[bytes]:
        if reply.events is not None:
            return [_event(name, data) for name, data in reply.events]
        body = json.dumps(reply.body).encode()
        return [body[: len(body) // 2], body[len(body) // 2 :]]

    def _reset(self) -> None:
        """The connection is thrown away, not closed: the client's system says ECONNRESET."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def finish(self) -> None:
        if self.connection.fileno() >= 0:
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def _event(name: str | None, data: Any) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    provider: Provider

    def shutdown_request(self, request: Any) -> None:
        if request.fileno() >= 0:
            super().shutdown_request(request)


class Provider:
    """The server: `requests` are all that it got since the last `plays` or `always`."""

    def __init__(self) -> None:
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.provider = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._lock = threading.Lock()
        self._script: deque[Answer] = deque()
        self._after: Answer = _unscripted
        self.requests: list[Request] = []
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def plays(self, *answers: Answer) -> None:
        """The next requests get these, in order; one more than that is answered with 418 and told by its body."""
        with self._lock:
            self._script, self._after, self.requests = deque(answers), _unscripted, []

    def always(self, answer: Answer) -> None:
        with self._lock:
            self._script, self._after, self.requests = deque(), answer, []

    def answer(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            answer = self._script.popleft() if self._script else self._after
        return answer(request)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
