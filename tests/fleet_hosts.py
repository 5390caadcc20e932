"""A fleet whose months can be lived through: jobs fail where they are told to, on a clock that is told the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import redrive
from tests.support import FakeClock, soon

HOUR: Final = 3600.0

YEAR: Final = {
    2: (1240, 8, 6),
    3: (2810, 9, 2),
    4: (3150, 10, 2),
    5: (2680, 8, 1),
    6: (2940, 9, 1),
    7: (3020, 10, 1),
    8: (2790, 9, 1),
    9: (2410, 8, 1),
    10: (2150, 9, 3),
    11: (1660, 9, 2),
    12: (1297, 7, 2),
}
"""Month: processed, dead letters that came back by themselves, dead letters that took a person."""
DEFERRED: Final = {10: 2, 11: 1, 12: 2}
"""Of those that took a person, put off first."""


class Expired(Exception):
    """Heals with time, in the delayed lane."""

    error_kind = "credentials_expired"


class Slow(Exception):
    """Heals at once: the next try works."""

    error_kind = "timeout"


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> float:
    return datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp()


class Fleet:
    """One task, `work`, whose jobs fail the first time as their `fate` says."""

    def __init__(self, rd: redrive.Redrive, clock: FakeClock) -> None:
        self.rd = rd
        self.clock = clock
        self._failed: set[str] = set()

        @rd.task
        async def work(ctx: redrive.Context, fate: str = "fine") -> None:
            if fate == "fine" or ctx.job.id in self._failed:
                return
            self._failed.add(ctx.job.id)
            if fate == "expires":
                raise Expired("the token has expired")
            if fate == "slow":
                raise Slow("no answer")
            raise redrive.GiveUp("a person must decide")

    def go_to(self, moment: float) -> None:
        self.clock.advance(moment - self.clock.now())

    async def enqueue(self, fates: dict[str, int], **options: Any) -> None:
        items = [{"fate": fate} for fate, number in fates.items() for _ in range(number)]
        done = await self.rd.enqueue_many("work", items, **options)
        assert done.accepted == len(items)

    async def run(self) -> None:
        await soon(self.rd.drain())

    async def live(self, **fates: int) -> None:
        """Accepted and run now; what fails for good is dead afterwards."""
        await self.enqueue(fates)
        await self.run()

    async def bring_back(self) -> None:
        """An hour has passed: one dead letter of the delayed lane goes first, and the others follow."""
        self.clock.advance(HOUR)
        await self.run()
        while (await self.rd.dead.list(lane="delayed")).jobs:
            self.clock.advance(1)
            await self.run()

    async def letters(self) -> list[str]:
        """What waits for a person."""
        return [job.id for job in (await self.rd.dead.list(lane="manual", limit=1000)).jobs]

    async def live_a_month(self, year: int, month: int) -> None:
        """Most are done, some come back by themselves after an hour, some wait 4.2 hours for a person."""
        processed, auto, human = YEAR[month]
        start = at(year, month, 14, 9)
        self.go_to(start)
        await self.live(fine=processed - auto - human, expires=auto, gives_up=human)
        await self.bring_back()
        letters = await self.letters()
        assert len(letters) == human
        for id in letters[: DEFERRED.get(month, 0)]:
            await self.rd.dead.defer(id, owner="ada", until=timedelta(hours=2), who="ada")
            await self.rd.dead.recall(id, who="ada")
        self.go_to(start + 4.2 * HOUR)
        for id in letters:
            await self.rd.dead.redrive(id, who="ada")
        await self.run()
