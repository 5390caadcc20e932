"""A bulk redrive under kill -9: whoever carries it on, each item moves once, and the scorecard says what happened."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive import Context, Redrive
from redrive.core.lifecycle import Transition
from redrive.core.store import Commit, Put
from redrive.deadletters.bulk_run import RedriveRun
from redrive.deadletters.redrives.steps import FREEZING_SECONDS, Documents
from redrive.engine.clock import Clock
from tests.chaos.app import LEDGER
from tests.chaos.ledger import Audit, Ledger, all_events, audit
from tests.chaos.processes import Child, Zygote, until
from tests.chaos.test_cancellation import cancelled_at
from tests.support import FakeClock

pytestmark = pytest.mark.chaos

KILLS = 3
MENDED = "mended"
HOPELESS = 10
"""Every tenth job fails, whatever anybody mends."""
LET_GO = 25
"""Every twenty-fifth dead letter is discarded after the list was frozen."""


def make_app(folder: Path, clock: Clock | None = None) -> tuple[Redrive, Ledger]:
    ledger = Ledger(folder / LEDGER)
    rd = Redrive(folder / "jobs.db", poll=0.2, clock=clock)

    @rd.task(max_attempts=1, breaker_after=0, comebacks=())  # only the redrive moves them
    async def grind(ctx: Context, n: int) -> int:
        if n % HOPELESS == 0 or not (folder / MENDED).exists():
            raise RuntimeError("the mill is broken")
        return n

    rd.subscribe("replayed", lambda event: ledger.effect(str(event.job_id)))
    return rd, ledger


def carrier(folder: str, id: str) -> None:
    """Takes one step after the other until everything has moved. Runs no jobs."""
    rd, _ = make_app(Path(folder))

    async def carry() -> None:
        async with rd:
            while (await rd.redrives.get(id)).state in ("canary", "moving"):
                if not await rd.redrives.advance():
                    await asyncio.sleep(0.002)

    asyncio.run(carry())


def worker(folder: str) -> None:
    rd, _ = make_app(Path(folder))
    asyncio.run(rd.run_worker(concurrency=50, grace=5.0))


class Carriers:
    """A redrive of many dead letters, and the processes that carry it on until they are killed."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self.zygote = zygote
        self.folder = folder
        self.rd, self.ledger = make_app(folder)
        self.kills = 0

    async def bury(self, number: int) -> list[str]:
        """So many dead letters, each of them accepted before."""
        ids: list[str] = []
        for start in range(0, number, 5000):
            many = await self.rd.enqueue_many("grind", [{"n": n} for n in range(start, min(number, start + 5000))])
            ids += [id for id in many.ids if id]
        self.ledger.accepted(ids)
        await self.rd.drain()
        return ids

    def begin(self, id: str, role: str = "carrier") -> Child:
        name = f"tests.chaos.test_redrives:{role}"
        return self.zygote.start(name, log=self.folder / "carriers.log", folder=self.folder, id=id)

    async def moved(self, id: str) -> int:
        return (await self.rd.redrives.get(id)).moved

    async def kill_midway(self, id: str, moved: int) -> None:
        """Let two processes carry it on together, and kill both at once as soon as so many have moved."""
        children = [self.begin(id), self.begin(id)]

        async def far_enough() -> bool:
            return await self.moved(id) >= moved

        await until(f"{moved} items move", far_enough)
        for child in children:
            child.send(signal.SIGKILL)
            assert await child.exited() == -signal.SIGKILL, child.log()
            self.ledger.killed(child.pid)
        self.kills += 1

    async def finish(self, id: str) -> RedriveRun:
        """Nobody is killed any more: the rest moves, then a worker runs the jobs."""
        assert await self.begin(id).exited(600.0) == 0
        (self.folder / MENDED).touch()
        self.zygote.start("tests.chaos.test_redrives:worker", log=self.folder / "worker.log", folder=self.folder)

        async def over() -> bool:
            return (await self.rd.redrives.get(id)).over

        await until("the redrive finishes", over, 600.0)
        return await self.rd.redrives.get(id)

    async def problems(self, run: RedriveRun) -> list[str]:
        """What the moves on record and the jobs themselves have against the scorecard."""
        found: Audit = await audit(self.rd, self.ledger)
        moves = Counter(event.job_id for event in await all_events(self.rd) if event.move == "redriven")
        ended = Counter(str(found.jobs[id].state) for id in moves)
        told = await self._items(run.id)
        problems = [*found.problems]
        problems += [f"job {id} was moved {number} times" for id, number in moves.items() if number > 1]
        for what, is_, says in (
            ("moved", len(moves), run.moved),
            ("succeeded", ended["done"], run.succeeded),
            ("failed again", ended["dead"], run.failed_again),
            ("discarded", ended["discarded"], run.discarded),
            ("taken", run.total, run.moved + run.skipped),
            ("accounted for", run.moved, run.succeeded + run.failed_again + run.discarded + run.open),
            ("in its groups", run.moved, sum(group.moved for group in run.by_group)),
            ("skipped among the items", run.skipped, sum(item.status == "skipped" for item in told)),
            ("succeeded among the items", run.succeeded, sum(item.status == "succeeded" for item in told)),
        ):
            if is_ != says:
                problems.append(f"{what}: {is_}, the scorecard says {says}")
        if {item.id for item in told if item.status != "skipped"} != set(moves):
            problems.append("the items do not name those that were moved")
        return problems

    async def _items(self, id: str) -> list[Any]:
        found, cursor = [], None
        while True:
            page = await self.rd.redrives.items(id, cursor)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found


async def test_killed_three_times_midway_each_item_moves_once(
    zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]
) -> None:
    number, rng = size(2_000, 50_000), random.Random(seed)
    carriers = Carriers(zygote, folder)
    async with carriers.rd as rd:
        ids = await carriers.bury(number)
        plan = await rd.redrives.plan(task="grind")
        run = await rd.redrives.start(
            task="grind", canary=0, rate=number / 2, token=plan.token, who="ada", why="oiled it"
        )
        for id in ids[::LET_GO]:
            await rd.dead.discard(id)
        for part in range(KILLS):
            await carriers.kill_midway(run.id, round(number * (part + rng.uniform(0.4, 0.9)) / (KILLS + 1)))
        left = (await rd.redrives.get(run.id)).left
        assert left > 0, "the last kill came too late to be midway"
        run = await carriers.finish(run.id)
        assert await carriers.problems(run) == []
    let_go = len(ids[::LET_GO])
    hopeless = len({*range(0, number, HOPELESS)} - {*range(0, number, LET_GO)})
    print(f"{run.text}; {carriers.kills} kills of two processes each, {left} items were left after the last")
    assert carriers.kills == KILLS
    assert (run.total, run.skipped, run.moved) == (number, let_go, number - let_go)
    assert (run.failed_again, run.succeeded) == (hopeless, number - let_go - hopeless)


# ---- killed at the worst moments, exactly


def dies_at(folder: str, id: str, *, commit: int, before: bool) -> None:
    """Takes steps and is killed right before, or right after, its so-manieth commit of moves."""
    rd, _ = make_app(Path(folder))
    real, seen = rd.redrives._documents.write_step, 0

    async def write_step(id: str, puts: Iterable[Put], moves: Iterable[Transition] = ()) -> bool:
        nonlocal seen
        seen += bool(moves)
        if before and seen == commit:
            os.kill(os.getpid(), signal.SIGKILL)
        written = await real(id, puts, moves)
        if seen == commit:
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    rd.redrives._documents.write_step = write_step  # type: ignore[method-assign]

    async def carry() -> None:
        while True:
            await rd.redrives.advance()

    asyncio.run(carry())


@pytest.mark.parametrize("before", [True, False], ids=["before the commit", "after the commit"])
async def test_killed_around_a_commit_it_goes_on_where_it_was(zygote: Zygote, folder: Path, before: bool) -> None:
    carriers = Carriers(zygote, folder)
    async with carriers.rd as rd:
        await carriers.bury(900)
        run = await rd.redrives.start(task="grind")
        for commit in (1, 2):
            child = zygote.start(
                "tests.chaos.test_redrives:dies_at", log=folder / "log", folder=folder, id=run.id, commit=commit,
                before=before,
            )  # fmt: skip
            assert await child.exited() == -signal.SIGKILL, child.log()
        assert await carriers.moved(run.id) == (200 if before else 600)
        run = await carriers.finish(run.id)
        assert await carriers.problems(run) == []


# ---- cancelled wherever it waits


async def test_steps_cancelled_at_every_wait_move_each_item_once(zygote: Zygote, folder: Path) -> None:
    carriers = Carriers(zygote, folder)
    async with carriers.rd as rd:
        await carriers.bury(2_000)
        run = await rd.redrives.start(task="grind")
        cut = [await cancelled_at(nth, rd.redrives.advance()) for nth in range(60)]
        assert sum(cut) > 20, "hardly any step was interrupted: this proved nothing"
        run = await carriers.finish(run.id)
        assert await carriers.problems(run) == []


async def test_a_start_cancelled_at_every_wait_leaves_nothing_behind(folder: Path) -> None:
    """It exists whole, or it is cleared away: in either case the next one can start, and nothing has moved."""
    clock = FakeClock()
    rd, ledger = make_app(folder, clock)
    async with rd:
        many = await rd.enqueue_many("grind", [{"n": n} for n in range(450)])
        await rd.drain()
        for nth in range(200):
            cut = await cancelled_at(nth, rd.redrives.start(task="grind"))
            await rd.store.apply([Commit(puts=(Put("after", "that", b"1"),))])  # a cancelled write may still be written
            clock.advance(FREEZING_SECONDS)
            for run in await rd.redrives.live():
                assert len((await rd.redrives.items(run.id)).items) == 200
                await rd.redrives.cancel(run.id)
            await rd.redrives.advance()
            assert await rd.redrives.live() == []
            if not cut:
                break
        assert nth > 5, "a start that waits so rarely was not really cut"
        known = {run.id for run in await rd.redrives.list()}
        assert {document.key.partition("/")[0] for document in await rd.store.docs("redrive_items")} <= known
        states = {str(job.state) for job in await rd.store.get([id for id in many.ids if id])}
        assert states == {"dead"} and not ledger.read().effects


# ---- controls: the guards removed


def splits_commits(folder: str, id: str) -> None:
    """The guard removed: moves first, what became of the items in a commit of its own; killed between the two."""
    rd, _ = make_app(Path(folder))
    real, seen = rd.redrives._documents.write_step, 0

    async def write_step(id: str, puts: Iterable[Put], moves: Iterable[Transition] = ()) -> bool:
        nonlocal seen
        if not moves:
            return await real(id, puts)
        seen += 1
        written = await real(id, (), moves)
        if seen == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return written and await real(id, puts)

    rd.redrives._documents.write_step = write_step  # type: ignore[method-assign]

    async def carry() -> None:
        while True:
            await rd.redrives.advance()

    asyncio.run(carry())


async def test_control_moves_and_items_in_two_commits_the_scorecard_lies(zygote: Zygote, folder: Path) -> None:
    carriers = Carriers(zygote, folder)
    async with carriers.rd as rd:
        await carriers.bury(600)
        run = await rd.redrives.start(task="grind")
        child = carriers.begin(run.id, "splits_commits")
        assert await child.exited() == -signal.SIGKILL, child.log()
        run = await carriers.finish(run.id)
        problems = await carriers.problems(run)
    assert "moved: 600, the scorecard says 400" in problems


async def stale_step(folder: Path) -> list[int]:
    """One process decides on what it read; another moves the same items first, and they die again meanwhile."""
    slow, _ = make_app(folder)
    fast, _ = make_app(folder)
    async with slow, fast:
        many = await slow.enqueue_many("grind", [{"n": n} for n in range(20)])
        await slow.drain()
        run = await slow.redrives.start(task="grind")
        loaded = await slow.redrives._documents.load(run.id)
        assert loaded is not None
        await fast.drain()
        assert (await fast.redrives.get(run.id)).failed_again == 20
        await slow.redrives._steps.move_chunk(loaded, 20)
        stories = [await slow.store.story(id) for id in many.ids if id]
    return [sum(event.move == "redriven" for event in story) for story in stories]


async def test_a_step_decided_on_old_news_is_refused(folder: Path) -> None:
    assert set(await stale_step(folder)) == {1}


async def test_control_without_expected_versions_items_move_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Documents.write_step

    async def blindly(self: Documents, id: str, puts: Iterable[Put], moves: Iterable[Transition] = ()) -> bool:
        return await real(self, id, [msgspec.structs.replace(put, expect=None) for put in puts], moves)

    monkeypatch.setattr(Documents, "write_step", blindly)
    assert set(await stale_step(folder)) == {2}
