"""Counts the functions and files that everyday calls pass through: `python -m tools.walks [NAME] [--list]`.

A walk is one call on a small store, made twice and traced the second time, so that lazy imports and caches do not
count. Functions of redrive are counted once each, those of the stores are left out. A comprehension is not a function.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import redrive
from redrive import Redrive

SOURCE: Final = Path(redrive.__file__).parent
STORES: Final = SOURCE / "stores"
SYNTAX: Final = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<module>"})


class Limit(NamedTuple):
    """The most functions and files that a walk may have."""

    functions: int
    files: int


LIMITS: Final = {
    "enqueue": Limit(15, 7),
    "attempt ok": Limit(20, 10),
    "discard one": Limit(20, 8),
    "redrive one": Limit(40, 14),
    "morning": Limit(60, 8),
    "GET /v1/dead-letters": Limit(25, 10),
}


class Trace:
    """Collects the functions that run below an anchor: one of `anchors` is among their callers.

    The garbage collector rests meanwhile: what it ends of other work would run below the anchor, too.
    """

    def __init__(self, *anchors: CodeType) -> None:
        self._anchors = frozenset(anchors)
        self.seen: dict[tuple[str, str], None] = {}

    def __enter__(self) -> Trace:
        gc.collect()
        gc.disable()
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call" or not self._counts(frame.f_code):
            return
        caller: FrameType | None = frame
        while caller is not None and caller.f_code not in self._anchors:
            caller = caller.f_back
        if caller is not None:
            file = str(Path(frame.f_code.co_filename).relative_to(SOURCE))
            self.seen[file, frame.f_code.co_qualname] = None

    def _counts(self, code: CodeType) -> bool:
        path = Path(code.co_filename)
        return path.is_relative_to(SOURCE) and not path.is_relative_to(STORES) and code.co_name not in SYNTAX

    @property
    def size(self) -> Limit:
        return Limit(len(self.seen), len({file for file, _ in self.seen}))


async def trace(call: Callable[[], Awaitable[Any]]) -> Trace:
    """Traces one call."""

    async def anchor() -> Any:
        return await call()

    with Trace(anchor.__code__) as found:
        await anchor()
    return found


async def succeed(number: int) -> int:
    """Runs as the task whose attempt is traced."""
    return number


async def fail(number: int) -> None:
    """Runs as the task whose dead letters are traced."""
    raise ValueError(f"number {number}")


async def walk_all(folder: Path) -> dict[str, Trace]:
    """Makes a small store and traces every walk on it."""
    rd = Redrive(folder / "walks.db")
    task = rd.task("succeed")(succeed)
    rd.task("fail", max_attempts=1, comebacks=())(fail)
    async with rd:
        walks: dict[str, Trace] = {}
        for number in range(8):
            await rd.enqueue("fail", {"number": number})
        await rd.drain()
        dead = [job.id for job in (await rd.dead.list()).jobs]
        await task.enqueue(1)
        walks["enqueue"] = await trace(lambda: task.enqueue(2))
        walks["attempt ok"] = await trace_attempt(rd)
        await rd.dead.discard(dead.pop())
        walks["discard one"] = await trace(lambda: rd.dead.discard(dead.pop()))
        await rd.dead.redrive(dead.pop())
        walks["redrive one"] = await trace(lambda: rd.dead.redrive(dead.pop()))
        await rd.morning()
        walks["morning"] = await trace(rd.morning)
        walks["GET /v1/dead-letters"] = await trace_request(rd, "/v1/dead-letters")
    return walks


async def trace_attempt(rd: Redrive) -> Trace:
    """Traces the attempts of a drain, each from the claimed job to the commit that the worker's outbox is given."""
    from redrive.engine.worker import Worker

    with Trace(Worker._begin.__code__, Worker._one.__code__) as found:
        await rd.drain()
    return found


async def trace_request(rd: Redrive, path: str) -> Trace:
    """Traces one request through the whole ASGI application."""
    app = redrive.asgi(rd, token=False)
    headers = [(b"host", b"127.0.0.1:8420")]
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "root_path": "",
        "scheme": "http",
        "server": ("127.0.0.1", 8420),
        "client": ("127.0.0.1", 1),
        "http_version": "1.1",
    }
    answers: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        answers.append(message)

    await app(dict(scope), receive, send)
    found = await trace(lambda: app(dict(scope), receive, send))
    if answers[0]["status"] != 200:
        raise RuntimeError(f"GET {path} was answered with {answers}")
    return found


def report(walks: dict[str, Trace], *, listing: bool) -> bool:
    """Prints a line per walk, and says whether all of them keep their limits."""
    kept = True
    for name, found in walks.items():
        size, limit = found.size, LIMITS[name]
        well = size.functions <= limit.functions and size.files <= limit.files
        kept = kept and well
        says = "ok" if well else "too long"
        print(f"{name:<22} {size.functions:>3}/{size.files:<3} at most {limit.functions}/{limit.files:<3} {says}")
        for file, function in found.seen if listing else ():
            print(f"    {file:<36} {function}")
    return kept


def main() -> None:
    logging.disable(logging.ERROR)  # the failures that are walked through are meant
    with tempfile.TemporaryDirectory() as folder:
        walks = asyncio.run(walk_all(Path(folder)))
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    walks = {name: found for name, found in walks.items() if not names or name in names}
    sys.exit(not report(walks, listing="--list" in sys.argv))


if __name__ == "__main__":
    main()
