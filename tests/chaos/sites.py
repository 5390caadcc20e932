"""Four sites that update themselves every night, each by a plain script of its own. No worker runs anywhere.

    python tests/chaos/sites.py '{"folder": ..., "site": "north", "night": 3, "start": 0, "seed": 1}'

The world is what the seed says: which site has which trouble in which night, and where a process dies by itself. What
is published is written outside the store, one file per key, one line per publication.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from redrive import BlockingContext, Redrive
from tests.chaos.ledger import Ledger

SITES = ("north", "east", "south", "west")
SLOTS = ("front", "feed", "mail", "index")
DAY = 86_400.0
FIRST = datetime(2031, 5, 1, tzinfo=UTC).timestamp()
PUBLISHED = "effects"


class NightClock:
    """The machine's clock, moved to 02:00 of a night; each site begins a little later, each restart later still."""

    def __init__(self, night: int, site: str | None = None, start: int = 0, hour: float = 2.0) -> None:
        late = SITES.index(site) * 600.0 if site else 0.0
        self.begin = FIRST + night * DAY + hour * 3600.0 + late + start * 60.0
        self._started = time.monotonic()

    def now(self) -> float:
        return self.begin + time.monotonic() - self._started

    def monotonic(self) -> float:
        return time.monotonic()

    def chance(self) -> float:
        return 0.5


# ---- what can go wrong


class Answered(Exception):
    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class RateLimited(Answered): ...


class TokenExpired(Answered): ...


class Malformed(Answered): ...


class ContractChanged(Answered): ...


class ModelRetired(Answered): ...


class SchemaMismatch(Exception):
    error_kind = "invalid_input"


class Odd(Exception):
    """What no rule knows."""


ERRORS = {
    "timeout": lambda: TimeoutError("the site is slow"),
    "unavailable": lambda: Answered(503, "back soon"),
    "limited": lambda: RateLimited(429, "slow down", retry_after="30"),
    "expired": lambda: TokenExpired(401, "token expired"),
    "malformed": lambda: Malformed(422, "the body is malformed"),
    "schema": lambda: SchemaMismatch("no such column"),
    "permission": lambda: PermissionError("read only"),
    "odd": lambda: Odd("what is this?"),
    "contract": lambda: ContractChanged(422, "field price is gone"),
    "retired": lambda: ModelRetired(410, "this model is gone"),
}
KILLS = ("kill before", "kill between", "kill after")
COMMON = (*(kind for kind in ERRORS if kind not in ("contract", "retired")), "blip", *KILLS)
STRUCTURAL = {6: ("contract", "ContractChanged"), 14: ("retired", "ModelRetired"), 22: ("limited", "RateLimited")}
"""In these nights the world is another: every job has this trouble. The first two are new, the third is a known one."""


def trouble(seed: int, site: str, slot: str, night: int, nights: int) -> str | None:
    """What goes wrong with this job in this night."""
    if night >= nights:
        return None
    if night in STRUCTURAL:
        return STRUCTURAL[night][0]
    chance = random.Random(f"{seed} {site} {slot} {night}")
    kind = chance.choice(COMMON) if chance.random() < 0.4 else None
    return None if kind == "limited" and night + 1 in STRUCTURAL else kind


class World:
    """The outside, as one process meets it."""

    def __init__(self, folder: Path, seed: int, site: str, night: int, nights: int) -> None:
        self._folder = folder
        self._of = (seed, site)
        self._when = (night, nights)

    def meet(self, slot: str) -> None:
        """What the job meets before it publishes."""
        kind = trouble(*self._of, slot, *self._when)
        if kind == "blip" and self._first(slot, kind):
            raise ConnectionResetError("a blip")
        if kind in ERRORS:
            raise ERRORS[kind]()
        self.die(slot, "kill before")

    def die(self, slot: str, where: str) -> None:
        """kill -9, once in a night, at a place that the seed chose."""
        if trouble(*self._of, slot, *self._when) == where and self._first(slot, where):
            os.kill(os.getpid(), signal.SIGKILL)

    def _first(self, slot: str, what: str) -> bool:
        mark = self._folder / "marks" / f"{self._of[1]} {slot} {self._when[0]} {what}"
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def publish(self, key: str, slot: str, article: str) -> str:
        with self._file(key).open("a") as file:
            file.write(f"{article} in night {self._when[0]}\n")
        self.die(slot, "kill between")
        return key

    def find(self, key: str) -> str | None:
        """A file is made before its line is written, and a kill may come between: only the line is a publication."""
        file = self._file(key)
        return key if file.exists() and file.stat().st_size else None

    def _file(self, key: str) -> Path:
        return published(self._folder, key)


def published(folder: Path, key: str) -> Path:
    return folder / PUBLISHED / hashlib.sha256(key.encode()).hexdigest()[:24]


# ---- the script


def article_of(site: str, slot: str, night: int) -> str:
    """What a slot shall show after this night: new every night, under the slot's own job_id."""
    return f"{site} {slot} {night}"


def script(
    folder: str,
    *,
    site: str,
    night: int,
    start: int,
    seed: int,
    nights: int,
    hour: float = 2.0,
    same: bool = False,
    without: str | None = None,
) -> None:
    """One site's script in one night: every slot once, with a new article, or with the same one every night.

    Its exit status is the cycle's.
    """
    if without is not None:
        _remove(without)
    here = Path(folder)
    ledger, world = Ledger(here / "ledger"), World(here, seed, site, night, nights)
    rd = Redrive(here / "jobs.db", clock=NightClock(night, site, start, hour))

    def publish(ctx: BlockingContext, slot: str, article: str) -> str:
        world.meet(slot)
        found: str = ctx.once("post", lambda key: world.publish(key, slot, article), verify=world.find)
        world.die(slot, "kill after")
        return found

    with rd.cycle(f"site-{site}", wait=lambda seconds: None) as cycle:
        for slot in SLOTS:
            ledger.note("asked", site, slot, night, os.getpid())
            article = article_of(site, slot, 0 if same else night)
            result = cycle.run(publish, slot=slot, article=article, job_id=slot)
            ledger.note("answered", site, slot, night, result.status, result.id)
    summary = cycle.summary
    parts = [summary.done, summary.skipped, summary.diverted, summary.needs_you, summary.running_elsewhere]
    ledger.note("summed", os.getpid(), summary.accepted, *parts, summary.discarded, summary.brought_back)
    sys.exit(cycle.exit_code)


def _remove(guard: str) -> None:
    """For the controls: what must not be missing."""
    if guard == "the note of a turn":
        from redrive.scripts import cycle_rules

        cycle_rules.turns_in = lambda *_: ()  # type: ignore[assignment]
    if guard == "the observer":
        from redrive.stores.sqlite.liveness import Observer

        Observer.lapsed = lambda self, running, now: []  # type: ignore[method-assign]


def main(arguments: dict[str, Any]) -> None:
    script(arguments.pop("folder"), **arguments)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
