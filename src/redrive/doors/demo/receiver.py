"""Receives the demo's requests: refuses some, goes down for a while, and counts what it received."""

from __future__ import annotations

import asyncio
from collections import Counter
from urllib.parse import parse_qs, urlsplit


class Receiver:
    """Serves HTTP on 127.0.0.1 and counts requests by key; one receiver takes deliveries, another takes articles."""

    def __init__(self) -> None:
        self.deliveries: Counter[str] = Counter()
        self.posts: Counter[str] = Counter()
        self.refused = 0
        self.port = 0
        self._requests = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Start the server, also again. It accepts the first five requests, so that a probe gets through."""
        self._requests = 0
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next((int(x[15:]) for x in head.lower().split("\r\n") if x.startswith("content-length:")), 0)
            await reader.readexactly(length)
            status, body = self._answer(head)
            reply = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
            writer.write(reply.encode() + body.encode())
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, ValueError):
            return  # a killed worker's connection
        finally:
            writer.close()

    def _answer(self, head: str) -> tuple[int, str]:
        method, target, _ = head.split("\r\n", 1)[0].split(" ")
        url = urlsplit(target)
        self._requests += 1
        if url.path == "/posts":
            return self._post(method, parse_qs(url.query)["key"][0])
        if url.path != "/hook":
            return 404, "no such hook"
        if self._requests % 6 == 0:
            self.refused += 1
            return 503, "busy"
        key = next((x[16:].strip() for x in head.split("\r\n") if x.lower().startswith("idempotency-key:")), "")
        self.deliveries[key] += 1
        return 200, "ok"

    def _post(self, method: str, key: str) -> tuple[int, str]:
        if method == "GET":
            return (200, "posted") if key in self.posts else (404, "")
        self.posts[key] += 1
        return 200, "posted"
