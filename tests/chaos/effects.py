"""The application whose processes are killed between an effect and its record, and the places where that happens."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from redrive import Context, Effect, OutcomeUnknown, Redrive
from redrive.engine import context
from redrive.engine.settle import Settlement
from redrive.engine.verify import Verifier
from tests.chaos import receiver

AROUND_ONCE = (
    "before intended", "after intended", "before it is sent", "sent", "answered", "before landed", "after landed",
    "before the end",
)  # fmt: skip
"""Every place around one `ctx.once`, in the order in which it comes by."""
AROUND_A_MANIFEST = ("before it is sent", "sent", "answered", "before the end", "before it is settled")
UNCERTAIN = ("before the look", "after the look", "before it is settled", "while it waits")
"""Places after a call that got no answer."""


class Points:
    """Kills this process when it comes to a certain place."""

    def __init__(self, deadly: str | None = None) -> None:
        self.deadly = deadly

    def __call__(self, point: str) -> None:
        if point == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)


def make_app(folder: Path, port: int, at: Any = lambda point: None) -> Redrive:
    """Tasks for each kind of receiver. `at` hears how far an attempt came."""
    rd = Redrive(folder / "jobs.db", poll=0.1)

    def sent(kind: str) -> Any:
        return lambda key: asyncio.to_thread(receiver.post, port, kind, key, at)

    async def asked(key: str) -> str | None:
        return key if await asyncio.to_thread(receiver.done, port, "askable", key) else None

    @rd.task(backoff="none")
    async def askable(ctx: Context, n: int) -> None:
        await ctx.once("post", sent("askable"), verify=asked)
        at("before the end")

    @rd.task(backoff="none", idempotent=True)
    async def keyed(ctx: Context, n: int) -> None:
        await ctx.once("post", sent("keyed"))
        at("before the end")

    @rd.task(backoff="none")
    async def neither(ctx: Context, n: int) -> None:
        await ctx.once("post", sent("neither"))
        at("before the end")

    _add_manifest(rd, port, at)
    return rd


def _add_manifest(rd: Redrive, port: int, at: Any) -> None:
    async def there(payload: dict[str, Any], witness: Any) -> bool:
        key = witness["key"] if witness else f"note-{payload['n']}"
        return await asyncio.to_thread(receiver.done, port, "askable", key)

    @rd.task(backoff="fixed_10s", cap=0.2, effects=[Effect("note", there)])
    async def note(ctx: Context, n: int, kind: str = "askable", patience: float = 30.0) -> None:
        """Not idempotent: nothing but looking keeps it from writing twice."""
        key = f"note-{n}"
        try:
            await asyncio.to_thread(receiver.post, port, kind, key, at, patience)
        except TimeoutError as late:
            raise OutcomeUnknown("no answer in time", witness={"key": key}) from late
        at("before the end")


# ---- roles


def worker(folder: str, *, port: int, concurrency: int = 8, deadly: str | None = None, guarded: bool = True) -> None:
    """A worker, which dies at a place; without its guard, it repeats what it does not know."""
    points = Points(deadly)
    _listen(points)
    if not guarded:
        _remove_the_guards()
    rd = make_app(Path(folder), port, points)
    asyncio.run(rd.run_worker(concurrency=concurrency))


def caller(folder: str, *, port: int, key: str, deadly: str | None = None) -> None:
    """Somebody who calls a task and waits for the answer."""
    points = Points(deadly)
    _listen(points)
    rd = make_app(Path(folder), port, points)

    async def call() -> None:
        async with rd:
            await rd.call("askable", {"n": 1}, idempotency_key=key)

    asyncio.run(call())


def _listen(points: Points) -> None:
    """Hear when an attempt comes to the places inside redrive."""
    note, succeeded, failed, look = context.record_effect, Settlement.succeeded, Settlement.failed, Verifier.look

    async def noting(state: Any, name: str, key: str, status: str, *rest: Any, **more: Any) -> None:
        points(f"before {status}")
        await note(state, name, key, status, *rest, **more)  # type: ignore[arg-type]
        points(f"after {status}")

    async def settling(self: Any, *args: Any, **how: Any) -> Any:
        commit = await succeeded(self, *args, **how)
        points("before it is settled")
        return commit

    async def failing(self: Any, *args: Any, **how: Any) -> Any:
        points("before the look")
        commit = await failed(self, *args, **how)
        points("before it is settled")
        return commit

    async def looking(self: Any, *args: Any, **how: Any) -> Any:
        found = await look(self, *args, **how)
        points("after the look")
        return found

    context.record_effect = noting  # type: ignore[assignment]
    Settlement.succeeded, Settlement.failed = settling, failing  # type: ignore[method-assign]
    Verifier.look = looking  # type: ignore[method-assign]


def _remove_the_guards() -> None:
    """`ctx.once` is a plain call, and nobody looks before a replay."""

    async def plainly(self: Context, name: str, function: Any, verify: Any = None, *, key: str | None = None) -> Any:
        return await function(f"{self.idempotency_key}:{name}")

    async def unseen(self: Settlement, *args: Any) -> None:
        return None

    Context.once = plainly  # type: ignore[method-assign]
    Settlement.looked = unseen  # type: ignore[method-assign,assignment]
