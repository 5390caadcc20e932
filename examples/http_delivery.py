"""A durable webhook: the receiver is down at first, and it sees the same Idempotency-Key at every try."""

import asyncio
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import redrive

os.environ["HOOK_TOKEN"] = "Bearer not-a-real-token"
seen: list[tuple[int, str]] = []


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = 503 if len(seen) < 2 else 200
        seen.append((status, self.headers["idempotency-key"]))
        self.send_response(status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep the example's output to itself."""


async def main(port: int) -> None:
    rd = redrive.Redrive(
        "hooks.db",
        queues={"hooks": redrive.Policy(base=0.05)},
        delivery={"allow": [f"127.0.0.1:{port}"], "credentials": ["HOOK_*"]},
    )
    async with rd, rd.worker():
        job = await rd.enqueue_http(
            "POST",
            f"http://127.0.0.1:{port}/events",
            json={"event": "article.published"},
            queue="hooks",
            idempotency_key="article-1",
            auth="env:HOOK_TOKEN",
        )
        answer = await job.result(timeout=30)
        print(f"answered {answer['status']} after {len(seen)} tries, keys {sorted({key for _, key in seen})}")


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        asyncio.run(main(server.server_port))
    finally:
        server.shutdown()
        server.server_close()
