"""The least that a request through another process costs: nats-py asks a process that publishes and answers.

No queue does less where one process accepts for another: the request, an acknowledged publish, and the answer.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import environment
from benchmarks.raw_nats import SUBJECT, message, stream

ASKED = "hop"
PATIENCE = 30.0


async def one_by_one(folder: Path, size: int) -> float:
    """`await client.request(...)`, each before the next."""
    from nats.errors import NoRespondersError

    async with stream(folder, synced=False, nodes=1) as js:
        client: Any = js._nc
        with responder(client.connected_url.netloc):
            until = time.monotonic() + PATIENCE
            for number in range(10):
                while True:
                    try:
                        await client.request(ASKED, message(number), timeout=PATIENCE)
                        break
                    except NoRespondersError:  # it is starting
                        if time.monotonic() > until:
                            raise
                        await asyncio.sleep(0.05)
            begun = time.perf_counter()
            for number in range(size):
                await client.request(ASKED, message(number), timeout=PATIENCE)
            seconds = time.perf_counter() - begun
        state = (await js.stream_info("RAW")).state
    assert state.messages == size + 10, f"{state.messages} of {size + 10} messages stored"
    return size / seconds


@contextmanager
def responder(host: str) -> Iterator[None]:
    """The process in the middle."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.raw_hop", host], env=environment())
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE)


async def respond(host: str) -> None:
    from nats.aio.client import Client

    client = Client()
    await client.connect(f"nats://{host}")
    js = client.jetstream()

    async def asked(request: Any) -> None:
        await js.publish(SUBJECT, request.data)
        await request.respond(b"ok")

    await client.subscribe(ASKED, "hops", asked)
    await client.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(respond(sys.argv[1]))
