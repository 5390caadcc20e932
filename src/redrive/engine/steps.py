"""Runs steps that are written once, as generators that yield what they need, by an async or a blocking driver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from redrive.engine.threads import finish


class Ask(NamedTuple):
    """A step's request to await something."""

    awaitable: Awaitable[Any]


Call = partial
"""A step's request to call the user's function."""
Steps = Generator[Ask | Call[Any], Any, Any]


def drive_blocking(steps: Steps, answer: Callable[[Ask | Call[Any]], Any]) -> Any:
    """Runs steps to their end; `answer` carries out each request and returns its result."""
    try:
        want = next(steps)
        while True:
            try:
                result = answer(want)
            except BaseException as error:  # noqa: BLE001 - goes back into the steps
                want = steps.throw(error)
            else:
                want = steps.send(result)
    except StopIteration as end:
        return end.value


async def drive(steps: Steps) -> Any:
    """Runs steps to their end on this event loop."""
    try:
        want = next(steps)
        while True:
            try:
                answer = await (want.awaitable if isinstance(want, Ask) else finish(want()))
            except BaseException as error:  # noqa: BLE001 - goes back into the steps
                want = steps.throw(error)
            else:
                want = steps.send(answer)
    except StopIteration as end:
        return end.value
