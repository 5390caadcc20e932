"""Four sites, night after night, by plain scripts: faults of every kind and kill -9. Nothing is lost or done twice.

Thirty nights take some 30 s: every script is a process of its own, in the first night with an interpreter of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from redrive import IllegalMove, Job, Redrive, State
from redrive.core.job import keyed_id
from redrive.reports.morning import Morning
from redrive.scripts.cycle_history import LEARNED_FROM
from redrive.scripts.cycle_rules import key_of
from tests.chaos.ledger import Ledger, all_events
from tests.chaos.processes import ROOT, Child, Zygote
from tests.chaos.sites import DAY, FIRST, PUBLISHED, SITES, SLOTS, STRUCTURAL, NightClock, trouble

pytestmark = pytest.mark.chaos

CALM = 6
"""Nights without trouble at the end, in which everything that was diverted must come to its end."""
STARTS = 4
"""How often a script is started for one night at most: a person tries again after the morning."""
MAY_DIE = SITES[:2]
"""Whose scripts are killed from outside in a structural night: its errors must be there to be told."""
ENDED = (State.done, State.discarded)


class Plain:
    """A script as cron starts it: an interpreter of its own."""

    def __init__(self, folder: Path, **how: Any) -> None:
        arguments = json.dumps({"folder": str(folder), **how})
        with (folder / "scripts.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "chaos" / "sites.py"), arguments],
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        self.pid = self._process.pid

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    async def exited(self) -> int:
        return await asyncio.to_thread(self._process.wait, 60)


class Nights:
    """The machine on which the scripts run, and the person who looks in the morning."""

    def __init__(self, zygote: Zygote, folder: Path, seed: int, nights: int) -> None:
        self.chance = random.Random(seed)
        self.zygote = zygote
        self.folder = folder
        self.seed = seed
        self.nights = nights
        self.ledger = Ledger(folder / "ledger")
        self.rd = Redrive(folder / "jobs.db", clock=NightClock(0))
        self.same = False
        """Whether the articles are the same every night."""
        self.statuses: dict[int, int] = {}
        self.by_cron: set[int] = set()
        """The processes that were started at night, and not by a person."""
        self.mornings: list[Morning] = []
        (folder / "marks").mkdir()

    def start(self, site: str, night: int, start: int, **how: Any) -> Child | Plain:
        said = {"site": site, "night": night, "start": start, "seed": self.seed, "nights": self.nights, **how}
        said["same"] = self.same
        if night == 0:
            return Plain(self.folder, **said)
        return self.zygote.start(
            "tests.chaos.sites:script", log=self.folder / "scripts.log", folder=self.folder, **said
        )

    async def night_of(self, site: str, night: int, start: int = 0, **how: Any) -> bool:
        """cron starts the script, something may kill it. Says whether it was killed: then it stays dead."""
        restless = night < self.nights and (night not in STRUCTURAL or site in MAY_DIE)
        child = self.start(site, night, start, **how)
        if start == 0:
            self.by_cron.add(child.pid)
        if restless and self.chance.random() < 0.25:
            await asyncio.sleep(self.chance.uniform(0.0, 0.25))
            child.send(signal.SIGKILL)
        status = self.statuses[child.pid] = await child.exited()
        if status < 0:
            self.ledger.killed(child.pid)
            return True
        assert status in (0, 1), (self.folder / "scripts.log").read_text()[-3000:]
        return False

    async def again(self, site: str, night: int) -> None:
        """After the morning a person starts a dead script again, or leaves it until the next night."""
        for start in range(1, STARTS):
            if night not in STRUCTURAL and self.chance.random() < 0.3:
                return
            if not await self.night_of(site, night, start, hour=9.0):
                return

    async def run(self, night: int) -> None:
        """A night, its morning with the dead scripts still dead, and what a person does then."""
        killed = await asyncio.gather(*(self.night_of(site, night) for site in SITES))
        dead = [site for site, was_killed in zip(SITES, killed, strict=True) if was_killed]
        self.rd.core.holder.clock = self.rd._enqueuer.clock = NightClock(night, hour=8.0)
        page = await self.rd.morning()
        self.mornings.append(page)
        await self.look(page)
        await self.look_at_cycles(dead, night)
        await asyncio.gather(*(self.again(site, night) for site in dead))

    async def look_at_cycles(self, dead: list[str], night: int) -> None:
        """Whatever was killed is told before anything is started again; what ran is not."""
        findings = [finding for finding in await self.rd.cycle_findings() if finding.kind != "cycle_short"]
        told = {finding.name.removeprefix("site-") for finding in findings}
        tonight = NightClock(night, hour=0.0).begin
        ended = {one.name.removeprefix("site-") for one in await self.rd.cycles()
                 if one.last.outcome == "ended" and one.last.begun > tonight}  # fmt: skip
        silent = set(dead) - told - ended  # what was killed after its last word has ended
        if night > LEARNED_FROM and silent:
            silent &= self.learned(night)
            assert not silent, f"night {night}: {silent} died, and only {findings} is told"
        assert told <= set(dead), f"night {night}: {told - set(dead)} ran, and {findings} is told"

    def learned(self, night: int) -> set[str]:
        """The sites that must have a rhythm by now: most scripts began, and began at night.

        Some were killed before they began, again and again; some began when a person started them after the morning.
        """
        begun: defaultdict[str, dict[int, bool]] = defaultdict(dict)
        for note in self.ledger.read().notes:
            what, *words = note.split(" ")
            if what == "asked" and int(words[2]) < night:
                begun[words[0]].setdefault(int(words[2]), int(words[3]) in self.by_cron)
        return {site for site, nights in begun.items() if _is_regular(nights)}

    async def look(self, page: Morning) -> None:
        """A person corrects what the manual lane asks for, and brings it back."""
        while letters := (await self.rd.dead.list(lane="manual")).jobs:
            assert page.needs, "letters need a person, and the page does not say so"
            for letter in letters:
                try:
                    await self.rd.dead.redrive(letter.id, who="person", why="corrected")
                except IllegalMove:
                    await self.rd.dead.discard(letter.id, who="person", why="brought back often enough")


def _is_regular(nights: dict[int, bool]) -> bool:
    """Whether the starts of a site, by night and whether cron was first, are enough to know its day and hour."""
    gaps = [later - earlier for earlier, later in pairwise(sorted(nights))]
    return len(nights) >= LEARNED_FROM and median(gaps) == 1 and sum(nights.values()) > len(nights) / 2


class Account:
    """What the store, the ledger and the outside say, compared."""

    def __init__(self, nights: Nights, jobs: dict[str, Job], succeeded: Counter[str]) -> None:
        self.jobs = jobs
        self.succeeded = succeeded
        self.same = nights.same
        self.books = nights.ledger.read()
        self.killed = {pid for pid, status in nights.statuses.items() if status < 0}
        self.statuses = nights.statuses
        files = {path.name: path.read_text().splitlines() for path in (nights.folder / PUBLISHED).iterdir()}
        self.published = {name: lines for name, lines in files.items() if lines}
        self.asked: defaultdict[tuple[str, ...], set[int]] = defaultdict(set)
        self.answers: defaultdict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
        self.sums: dict[int, list[int]] = {}
        for note in self.books.notes:
            what, *words = note.split(" ")
            if what == "asked":
                self.asked[tuple(words[:3])].add(int(words[3]))
            elif what == "answered":
                self.answers[tuple(words[:3])].append((words[3], words[4]))
            else:
                self.sums[int(words[0])] = [int(word) for word in words[1:]]

    @property
    def problems(self) -> list[str]:
        return [
            *self._unaccounted(),
            *(f"{job.key} is {job.state}, not ended" for job in self.jobs.values() if job.state not in ENDED),
            *(f"{id} was completed {times} times" for id, times in self.succeeded.items() if times > 1),
            *self._published_twice(),
            *self._wrong_sums(),
        ]

    def _unaccounted(self) -> list[str]:
        """Whatever a script asked for is a job, or had its turn as one, or its script died before it was accepted."""
        found = []
        for asked, pids in self.asked.items():
            site, slot, night = asked
            own = keyed_id(f"cycle:site-{site}", key_of(f"cycle:site-{site}", "publish", slot, date(int(night))))
            told = [id for _, id in self.answers[asked]] if self.same else []
            if own not in self.jobs and not any(id in self.jobs for id in told) and not pids <= self.killed:
                found.append(f"{' '.join(asked)} is unaccounted for")
            elif not self.same and own in self.jobs:
                found += self._unpublished(" ".join(asked), self.jobs[own])
        return found

    def _unpublished(self, article: str, job: Job) -> list[str]:
        """A night's article is out if its job is done, and never twice."""
        times = sum(line.startswith(f"{article} in ") for lines in self.published.values() for line in lines)
        wrong = times > 1 or (job.state is State.done and times != 1)
        return [f"{article} is {job.state} and was published {times} times"] if wrong else []

    def _published_twice(self) -> list[str]:
        found = [f"{lines} under one key" for lines in self.published.values() if len(lines) != 1]
        times = Counter(line for lines in self.published.values() for line in lines)
        found += [f"published {number} times in one night: {line}" for line, number in times.items() if number > 1]
        missing = len(self.succeeded) - len(self.published)
        return found + ([f"{missing} jobs succeeded and nothing was published"] if missing > 0 else [])

    def _wrong_sums(self) -> list[str]:
        found = []
        for pid, (accepted, *parts, back) in self.sums.items():
            _done, _skipped, *rest = parts
            if accepted != sum(parts):
                found.append(f"{accepted} jobs, but {parts}")
            if not self.same and accepted != len(SLOTS) + back:
                found.append(f"{accepted} jobs of {len(SLOTS)} slots and {back} left before: one counts twice")
            if pid not in self.killed and self.statuses[pid] != (1 if any(rest) else 0):
                found.append(f"exit status {self.statuses[pid]} for {parts}")
        return found

    def __str__(self) -> str:
        answers = Counter(status for told in self.answers.values() for status, _ in told)
        back, crashes = sum(parts[-1] for parts in self.sums.values()), sum(job.crashes for job in self.jobs.values())
        return (
            f"{len(self.jobs)} jobs, {len(self.published)} published, {dict(answers)}; {len(self.statuses)} scripts, "
            f"{len(self.killed)} killed; {crashes} jobs lost with their script, {back} brought back"
        )


def date(night: int) -> str:
    return datetime.fromtimestamp(FIRST + night * DAY, UTC).date().isoformat()


async def account(nights: Nights) -> Account:
    jobs = {job.id: job async for job in nights.rd.store.scan()}
    succeeded = Counter(event.job_id for event in await all_events(nights.rd) if event.move == "succeeded")
    return Account(nights, jobs, succeeded)


@pytest.mark.behaviour("001-43", "001-31", "001-36", "001-2", "001-39", "B38", "T-4a")
async def test_thirty_nights(zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]) -> None:
    nights = Nights(zygote, folder, seed, size(30, 150))
    async with nights.rd:
        for night in range(nights.nights + CALM):
            await nights.run(night)
        found = await account(nights)
        stats = await nights.rd.stats()
    print(found)
    assert found.problems == [], "\n".join(found.problems[:20])
    assert stats["accepted"] == len(found.jobs), "the books balance"
    assert len(found.killed) >= nights.nights / 2, "hardly anything was killed: this proved nothing"
    assert sum(job.crashes for job in found.jobs.values()) > 0, "no kill hit a running job"
    assert sum(parts[-1] for parts in found.sums.values()) > nights.nights / 2, "hardly anything came back"
    tell_of_structural_changes(nights.mornings)


def tell_of_structural_changes(mornings: list[Morning]) -> None:
    """Each on its first day, and not before."""
    for night, (_, name) in STRUCTURAL.items():
        assert name in {change.error_class for change in mornings[night].changes}, f"night {night}: {name} is not told"
        assert name not in {change.error_class for change in mornings[night - 1].changes}
    quiet = mornings[-1]
    assert quiet.ok and quiet.done == len(SITES) * len(SLOTS), "the last morning is a quiet one"


# ---- controls


async def small(zygote: Zygote, folder: Path, without: str | None, starts: list[tuple[int, int]]) -> list[str]:
    """One site in a world whose night 22 limits rates and whose next is calm; what is wrong in the end."""
    nights = Nights(zygote, folder, 1, 23)
    nights.same = True
    async with nights.rd:
        for night, start in starts:
            child = nights.start("north", night, start, without=without)
            nights.statuses[child.pid] = await child.exited()
        return (await account(nights)).problems


CARRIED = [(22, 0), (23, 0), (23, 1)]
"""Everything is diverted, comes back in the next night, and then the script is started once more."""


async def test_what_came_back_is_not_published_again_in_the_same_night(zygote: Zygote, folder: Path) -> None:
    assert await small(zygote, folder, None, CARRIED) == []


async def test_control_without_the_note_of_a_turn_it_is_published_twice(zygote: Zygote, folder: Path) -> None:
    problems = await small(zygote, folder, "the note of a turn", CARRIED)
    assert [problem for problem in problems if "published 2 times in one night" in problem]


async def killed_once(zygote: Zygote, folder: Path, without: str | None) -> list[str]:
    """A seed whose site dies between publishing and its record, then two calm nights."""
    nights = Nights(zygote, folder, _deadly_seed(), 2)
    async with nights.rd:
        for night, start in ((1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0), (3, 0)):
            child = nights.start("north", night, start, without=without)
            nights.statuses[child.pid] = await child.exited()
            for letter in (await nights.rd.dead.list(lane="manual")).jobs:
                await nights.rd.dead.redrive(letter.id)
        assert any(status == -signal.SIGKILL for status in nights.statuses.values())
        return (await account(nights)).problems


def _deadly_seed() -> int:
    wanted = "kill between"
    return next(seed for seed in range(10_000) if wanted in [trouble(seed, "north", slot, 1, 2) for slot in SLOTS[:2]])


async def test_killed_between_publishing_and_its_record(zygote: Zygote, folder: Path) -> None:
    assert await killed_once(zygote, folder, None) == []


async def test_control_nobody_looks_for_the_dead_and_a_job_runs_for_ever(zygote: Zygote, folder: Path) -> None:
    problems = await killed_once(zygote, folder, "the observer")
    assert [problem for problem in problems if "is running, not ended" in problem]
