"""A service outside, over HTTP, that counts what it was made to do: some of it can be asked, some tells repeats."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Event, Thread
from typing import Any

KINDS = ("askable", "keyed", "neither")
"""askable: GET tells whether it was done. keyed: the same key twice is done once. neither: one just has to know."""


class Receiver:
    """Effects by key, as they really happened."""

    def __init__(self, slow: float = 0.0) -> None:
        self.slow = slow
        """Seconds that it takes before something is carried out, and once more before it answers."""
        self.effects: Counter[str] = Counter()
        """How often each key was really carried out."""
        self.posts: Counter[str] = Counter()
        """How often each key was asked for."""
        self.late = Event()
        """What was posted as `late` is carried out when this is set, and not before."""
        self._under_way: Counter[str] = Counter()
        self._changed = Condition()

    def posted(self, kind: str, key: str) -> None:
        with self._changed:
            self.posts[key] += 1
            self._under_way[key] += kind != "late"
        if kind == "late":
            assert self.late.wait(60)
        time.sleep(self.slow)
        with self._changed:
            if kind != "keyed" or not self.effects[key]:
                self.effects[key] += 1
            self._under_way[key] -= kind != "late"
            self._changed.notify_all()
        time.sleep(self.slow)

    def told(self, key: str) -> bool:
        """Whether it was done. What is being done this moment is waited for; of what comes late nothing is known."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._under_way[key], 60)
            return self.effects[key] > 0

    @contextmanager
    def serving(self) -> Iterator[int]:
        """The port, while the block runs."""
        server = _Server(("127.0.0.1", 0), _handler(self))
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            self.late.set()
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers are killed here: half a request is what there is to expect."""


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            _, kind, key = self.path.split("/", 2)
            receiver.posted(kind, key)
            self.answer(200)

        def do_GET(self) -> None:
            _, kind, key = self.path.split("/", 2)
            if kind in ("keyed", "neither"):
                self.answer(501)
            else:
                self.answer(200 if receiver.told(key) else 404)

        def answer(self, status: int) -> None:
            with contextlib.suppress(OSError):  # the caller was killed
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


# ---- the side of the caller


def post(port: int, kind: str, key: str, at: Any = lambda point: None, timeout: float = 30.0) -> str:
    """Have it done. `at` hears how far it came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        at("before it is sent")
        connection.request("POST", f"/{kind}/{key}")
        at("sent")
        connection.getresponse().read()
        at("answered")
    finally:
        connection.close()
    return key


def done(port: int, kind: str, key: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", f"/{kind}/{key}")
        status = connection.getresponse().status
    finally:
        connection.close()
    if status == 501:
        raise RuntimeError("this receiver cannot be asked")
    return status == 200
