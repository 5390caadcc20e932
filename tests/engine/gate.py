"""A task body that hangs until it is told, and how a worker is made to look for more work."""

import asyncio
from collections import Counter

from redrive.engine.worker import Worker
from tests.support import eventually


class Gate:
    """A task body that counts who is inside, and lets nobody out before it is opened."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.started: list[str] = []
        self.opened = asyncio.Event()

    async def __call__(self, name: str) -> None:
        self.started.append(name)
        self.inside[name] += 1
        self.inside["all"] += 1
        for each in (name, "all"):
            self.most[each] = max(self.most[each], self.inside[each])
        try:
            await self.opened.wait()
        finally:
            self.inside[name] -= 1
            self.inside["all"] -= 1


async def look(worker: Worker) -> None:
    """Another claim, and the beginning of the next: by then it has taken what it found."""
    seen = worker._claims
    worker.nudge()
    await eventually(lambda: worker._claims > seen, "a look")
    worker.nudge()
    await eventually(lambda: worker._claims > seen + 1, "the next look")
