"""A script with `redrive.once` and no job, whose process is killed at a place around the effect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from redrive import OnceInProgress, OutcomeUnknown, Redrive
from redrive.engine import once_runs as steps
from tests.chaos import receiver
from tests.chaos.effects import Points

AROUND = (
    "before intended", "after intended", "before it is sent", "sent", "answered", "before landed", "after landed",
)  # fmt: skip
"""Every place around one call, in the order in which it comes by."""


def make_tools(folder: Path, port: int, at: Any = lambda point: None) -> dict[str, Any]:
    """One tool for each kind of receiver, plain and async. `at` hears how far a call came."""
    rd = Redrive(folder / "effects.db")

    def found(key: str) -> str | None:
        return key if receiver.done(port, "askable", key) else None

    @rd.once(key="{key}", verify=found)
    def askable(key: str) -> str:
        return receiver.post(port, "askable", key, at)

    @rd.once(key="{key}")
    def neither(key: str) -> str:
        return receiver.post(port, "neither", key, at)

    @rd.once(key="{key}", verify=found)
    async def askable_async(key: str) -> str:
        return await asyncio.to_thread(receiver.post, port, "askable", key, at)

    @rd.once(key="{key}")
    async def neither_async(key: str) -> str:
        return await asyncio.to_thread(receiver.post, port, "neither", key, at)

    @rd.once(key="{key}")
    def late(key: str) -> str:
        return receiver.post(port, "late", key, at)

    tools = (askable, neither, askable_async, neither_async, late)
    return {tool.__name__: tool for tool in tools}


def caller(folder: str, *, port: int, tool: str, key: str, deadly: str | None = None, guarded: bool = True) -> None:
    """Calls a tool once and writes down what it was told; dies at a place."""
    points = Points(deadly)
    _listen(points)
    call = make_tools(Path(folder), port, points)[tool]
    function = call if guarded else call.__wrapped__
    try:
        value = asyncio.run(function(key)) if tool.endswith("_async") else function(key)
        said = f"returned {value}"
    except (OutcomeUnknown, OnceInProgress) as error:
        said = type(error).__name__
    with (Path(folder) / "said.txt").open("a") as told:
        told.write(said + "\n")


def _listen(points: Points) -> None:
    """Hear when a call comes to the places inside redrive."""
    write = steps._Turn._write

    async def writing(self: Any, status: Any, **said: Any) -> bool:
        points(f"before {status}")
        written = await write(self, status, **said)
        points(f"after {status}")
        return written

    steps._Turn._write = writing  # type: ignore[method-assign]
