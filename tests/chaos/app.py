"""The application that chaos runs against: tasks that write to the ledger, and the roles its processes play."""

from __future__ import annotations

import asyncio
import http.client
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from redrive import BlockingContext, BusEvent, Context, GiveUp, Redrive
from redrive.retries import strategy
from tests.chaos.ledger import Ledger

LEDGER = "ledger"
EFFECTS = "effects"


def make_app(folder: Path, **settings: Any) -> tuple[Redrive, Ledger]:
    """The application over `folder`: its store, its ledger beside it, and the tasks."""
    ledger = Ledger(folder / LEDGER)
    rd = Redrive(folder / "jobs.db", **{"poll": 0.2, **settings})
    add_tasks(rd, ledger, folder)

    def completed(event: BusEvent) -> None:
        ledger.completed(str(event.job_id))

    rd.subscribe("completed", completed)
    return rd, ledger


def add_tasks(rd: Redrive, ledger: Ledger, folder: Path) -> None:
    _add_quick(rd, ledger)
    _add_effects(rd, ledger, folder)
    _add_gated(rd, ledger, folder)
    _add_stubborn(rd, ledger, folder)
    _add_poison(rd, ledger)


def _add_quick(rd: Redrive, ledger: Ledger) -> None:
    """One that succeeds, one that needs three tries, one that never will."""

    @rd.task(backoff="none", breaker_after=0)
    async def work(ctx: Context, n: int) -> int:
        ledger.started(ctx.job.id, ctx.job.run)
        await asyncio.sleep(0.002 * (n % 5))
        ledger.ended(ctx.job.id, ctx.job.run)
        return n

    @rd.task(backoff="none", breaker_after=0)
    async def flaky(ctx: Context, n: int) -> int:
        """Fails twice, then succeeds."""
        ledger.started(ctx.job.id, ctx.job.run)
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return n

    @rd.task(backoff="none", breaker_after=0)
    async def hopeless(ctx: Context, n: int) -> None:
        ledger.started(ctx.job.id, ctx.job.run)
        raise GiveUp("there is no hope", recommendation="Let it go.")


def _add_effects(rd: Redrive, ledger: Ledger, folder: Path) -> None:
    """Outside effects that must happen once: in a file, and over HTTP."""

    @rd.task(backoff="none", breaker_after=0)
    async def post(ctx: Context, n: int) -> int:
        """An outside effect on a receiver without idempotency keys that can be asked."""
        ledger.started(ctx.job.id, ctx.job.run)
        return await ctx.once("post", lambda key: append(folder, key), verify=lambda key: appended(folder, key))

    @rd.task(backoff="none", breaker_after=0)
    def call(ctx: BlockingContext, n: int, port: int) -> int:
        """The same over HTTP, from a thread."""
        ledger.started(ctx.job.id, ctx.job.run)
        return ctx.once("call", lambda key: ask(port, "POST", key) or 0, verify=lambda key: ask(port, "GET", key))


def is_open(folder: Path, gate: str, run: int) -> bool:
    """The gate is open for everybody, or for this run of the job."""
    return (folder / gate).exists() or (folder / f"{gate}-{run}").exists()


def _add_gated(rd: Redrive, ledger: Ledger, folder: Path) -> None:
    @rd.task(backoff="none", breaker_after=0)
    async def gated(ctx: Context, gate: str, ignore: bool = False) -> str:
        """Runs until its gate is open, for 60 s at most; with `ignore`, whatever anybody says."""
        ledger.started(ctx.job.id, ctx.job.run)
        for _ in range(6_000):
            if is_open(folder, gate, ctx.job.run):
                break
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                if not ignore:
                    raise
        ledger.ended(ctx.job.id, ctx.job.run)
        return gate


def _add_stubborn(rd: Redrive, ledger: Ledger, folder: Path) -> None:
    """Tasks that nobody can stop, until their gate is open, for 60 s at most."""

    def stay(ctx: Context | BlockingContext, gate: str) -> str:
        ledger.started(ctx.job.id, ctx.job.run)
        for _ in range(6_000):
            if is_open(folder, gate, ctx.job.run):
                break
            time.sleep(0.01)
        ledger.ended(ctx.job.id, ctx.job.run)
        return gate

    @rd.task(backoff="none", breaker_after=0)
    def gated_thread(ctx: BlockingContext, gate: str) -> str:
        return stay(ctx, gate)

    @rd.task(backoff="none", breaker_after=0)
    async def blocking(ctx: Context, gate: str) -> str:
        """Nothing else runs in its event loop meanwhile: a mistake that happens."""
        return stay(ctx, gate)


def _add_poison(rd: Redrive, ledger: Ledger) -> None:
    @rd.task(backoff="none", breaker_after=0)
    async def poison(ctx: Context, how: int) -> None:
        """Takes the whole process with it: by a signal, or by leaving with code 3."""
        ledger.started(ctx.job.id, ctx.job.run)
        await asyncio.sleep(0)
        if how:
            os.kill(os.getpid(), how)
        os._exit(3)


# ---- outside effects ----


def append(folder: Path, key: str) -> int:
    """One byte per effect, so that a second one can be seen."""
    handle = os.open(_effect(folder, key), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.write(handle, b"x")
        os.fsync(handle)
    finally:
        os.close(handle)
    return 1


def appended(folder: Path, key: str) -> int | None:
    path = _effect(folder, key)
    return (path.stat().st_size or None) if path.exists() else None


def _effect(folder: Path, key: str) -> Path:
    return folder / EFFECTS / key.replace(":", "-")


def ask(port: int, method: str, key: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, f"/{key}")
        count = int(connection.getresponse().read())
    finally:
        connection.close()
    return count or None


class Counter:
    """An HTTP service that counts POSTs by path and tells the count on GET."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.lock = Lock()

    @contextmanager
    def serving(self) -> Iterator[int]:
        """The port, while the block runs."""
        counter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(0)

            def do_POST(self) -> None:
                self.answer(1)

            def answer(self, more: int) -> None:
                with counter.lock:
                    count = counter.counts.get(self.path, 0) + more
                    if more:
                        counter.counts[self.path] = count
                self.send_response(200)
                self.end_headers()
                try:
                    self.wfile.write(str(count).encode())
                except OSError:
                    return  # the caller was killed

            def log_message(self, format: str, *args: object) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


# ---- roles: what the children of the zygote do ----


def worker(folder: str, *, concurrency: int = 8, grace: float = 5.0, **settings: Any) -> None:
    """`redrive worker`, with a ledger. What waits for minutes after a crash waits for seconds here."""
    strategy.CRASH_WAITS = (1.0, 10.0, 60.0)  # type: ignore[misc]
    rd, _ = make_app(Path(folder), **settings)
    asyncio.run(rd.run_worker(concurrency=concurrency, grace=grace))
