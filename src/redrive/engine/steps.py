"""Steps that are written once, as generators that ask for what they need; an async and a blocking driver answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

from redrive.engine.threads import finish


class Ask:
    """A step wants something awaited."""

    __slots__ = ("awaitable",)

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


class Call:
    """A step wants the user's function called."""

    __slots__ = ("args", "function", "kwargs")

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)


Steps = Generator[Ask | Call, Any, Any]


def drive_blocking(steps: Steps, answer: Callable[[Ask | Call], Any]) -> Any:
    """Runs steps to their end; `answer` waits for what they ask for."""
    try:
        want = next(steps)
        while True:
            try:
                found = answer(want)
            except BaseException as error:  # noqa: BLE001 - goes back into the steps
                want = steps.throw(error)
            else:
                want = steps.send(found)
    except StopIteration as end:
        return end.value


async def drive(steps: Steps) -> Any:
    """Runs steps to their end on this event loop."""
    try:
        want = next(steps)
        while True:
            try:
                found = await (want.awaitable if isinstance(want, Ask) else finish(want()))
            except BaseException as error:  # noqa: BLE001 - goes back into the steps
                want = steps.throw(error)
            else:
                want = steps.send(found)
    except StopIteration as end:
        return end.value
