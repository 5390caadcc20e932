"""A server on 127.0.0.1 that answers what it was told, so that the libraries build their exceptions themselves."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

HANG_UP = 0
"""A status that stands for a connection closed without an answer."""


class Answer(NamedTuple):
    status: int
    body: Any = None
    headers: dict[str, str] | None = None
    content_type: str = "application/json"

    @property
    def content(self) -> bytes:
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: ClassVar[Answer] = Answer(200)

    def _respond(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        answer = type(self).answer
        self.close_connection = True
        if answer.status == HANG_UP:
            return
        self.send_response(answer.status)
        headers = {"Content-Type": answer.content_type, "Connection": "close", **(answer.headers or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _respond

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class Server:
    """`says(answer)` tells what the next requests get."""

    def __init__(self) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def says(self, answer: Answer) -> str:
        _Handler.answer = answer
        return self.url

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
