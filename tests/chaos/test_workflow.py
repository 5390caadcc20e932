"""A workflow of twelve steps, two of them failing, over real worker processes that are killed on the way."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Context, Redrive
from redrive.core.store import Commit
from redrive.engine.workflow_steps import WorkflowSteps
from redrive.flows.workflows import WorkflowHandle
from tests.chaos.app import LEDGER
from tests.chaos.ledger import Audit, Ledger, all_events, audit
from tests.chaos.processes import Child, Zygote, until

pytestmark = pytest.mark.chaos

SOURCES = ("north", "east", "south", "west")
FLAKY, HOPELESS = "east", "south"
STEPS = 12
AT_ONCE = 3
MENDED = "mended"
BRIEF = 0.02
"""How long a step takes: long enough to be killed in its middle."""


def make_app(folder: Path) -> tuple[Redrive, Ledger]:
    ledger = Ledger(folder / LEDGER)
    rd = Redrive(folder / "jobs.db", poll=0.2)

    @rd.task(backoff="none", max_attempts=3)
    async def work(ctx: Context, name: str, given: Any = None) -> Any:
        """Says whose results it has seen. One source needs three tries, another never answers before it is mended."""
        ledger.started(ctx.job.id, ctx.job.run)
        await asyncio.sleep(BRIEF)
        if name == FLAKY and ctx.attempt < 3:
            raise ConnectionError("not yet")
        if name == HOPELESS and (folder / "hopeless").exists() and not (folder / MENDED).exists():
            raise ConnectionError("not before somebody mends it")
        ledger.ended(ctx.job.id, ctx.job.run)
        return {"name": name, "given": given, "seen": sorted(ctx.results)}

    rd.subscribe("completed", lambda event: ledger.completed(str(event.job_id)))
    return rd, ledger


async def start(rd: Redrive, ledger: Ledger) -> WorkflowHandle:
    """plan → four sources → four readings → merge → review → publish."""
    work = rd.registry.handlers["work"].name
    wf = rd.workflow("report")
    plan = wf.add(work, "plan", name="plan")
    sources = [wf.add(work, each, plan.output.name, name=each) for each in SOURCES]
    readings = [wf.add(work, f"read {each.name}", each.output["name"], name=f"read {each.name}") for each in sources]
    merged = wf.add(work, "merge", [each.output.given for each in readings], name="merge")
    wf.add(work, "publish", wf.add(work, "review", after=merged, name="review").output.seen, name="publish")
    handle = await wf.start(idempotency_key="report")
    assert len(handle.steps) == STEPS
    ledger.accepted(handle.steps.values())
    return handle


def worker(folder: str) -> None:
    rd, _ = make_app(Path(folder))
    asyncio.run(rd.run_worker(concurrency=AT_ONCE, grace=5.0))


def last_word(folder: str) -> None:
    """Dies each time between the commit that ends a step and everything that could follow from it."""

    async def nothing(*_: object) -> tuple[()]:
        return ()

    async def die(self: WorkflowSteps, commits: list[Commit]) -> list[Any]:
        if any(move.move == "succeeded" for commit in commits for move in commit.transitions):
            os.kill(os.getpid(), signal.SIGKILL)
        return []

    WorkflowSteps.companions = nothing  # type: ignore[assignment]
    WorkflowSteps.resume_after = die  # type: ignore[assignment]
    worker(folder)


class Run:
    """One workflow and the processes that work on it."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self.zygote = zygote
        self.folder = folder
        self.rd, self.ledger = make_app(folder)
        self.children: list[Child] = []

    def begin(self, role: str = "worker") -> Child:
        name = f"tests.chaos.test_workflow:{role}"
        child = self.zygote.start(name, log=self.folder / "workers.log", folder=self.folder)
        self.children.append(child)
        return child

    async def kill_after(self, starts: int) -> None:
        """Kill the process that has just begun the so-manieth attempt."""
        await until(f"{starts} attempts begin", lambda: len(self.ledger.read().starts) >= starts)
        pid = self.ledger.read().starts[starts - 1][2]
        (victim,) = [child for child in self.children if child.pid == pid]
        victim.send(signal.SIGKILL)
        assert await victim.exited() == -signal.SIGKILL
        self.ledger.killed(pid)

    async def audited(self) -> Audit:
        return await audit(self.rd, self.ledger, concurrency=AT_ONCE)


async def is_state(handle: WorkflowHandle, *states: str) -> bool:
    return (await handle.status()).state in states


async def assert_done_once(run: Run, handle: WorkflowHandle) -> None:
    found = (await run.audited()).assert_sound()
    assert found.states == {"done": STEPS}
    assert (await handle.status()).complete
    assert await successes(run, handle) == dict.fromkeys(handle.steps, 1)
    before_review = sorted(handle.steps.keys() - {"review", "publish"})
    before_publish = sorted(handle.steps.keys() - {"publish"})
    result = {"name": "publish", "given": before_review, "seen": before_publish}
    assert await handle.result(5) == {"publish": result}


@pytest.mark.behaviour("B24", "B29", "003-66")
async def test_it_completes_although_one_of_two_workers_is_killed_midway(
    zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]
) -> None:
    chance = random.Random(seed)
    most = STEPS + 2
    for number, starts in enumerate(chance.sample(range(1, most), size(3, most - 1))):
        place = folder / str(number)
        place.mkdir()
        run = Run(zygote, place)
        async with run.rd:
            handle = await start(run.rd, run.ledger)
            run.begin(), run.begin()
            await run.kill_after(starts)
            await until("the workflow completes", lambda h=handle: is_state(h, "complete"))  # type: ignore[misc]
            flaky = await run.rd.jobs.get(handle.steps[FLAKY])
            assert [each.outcome for each in flaky.history if each.outcome != "lost"] == ["failed", "failed", "done"]
            await assert_done_once(run, handle)


@pytest.mark.behaviour("003-67", "B18")
async def test_an_exhausted_step_blocks_it_and_redriving_that_completes_it(zygote: Zygote, folder: Path) -> None:
    run = Run(zygote, folder)
    (folder / "hopeless").touch()
    behind = {f"read {HOPELESS}", "merge", "review", "publish"}
    async with run.rd:
        handle = await start(run.rd, run.ledger)
        run.begin(), run.begin()
        await run.kill_after(4)
        others = [step for step in handle.steps if step not in {HOPELESS, *behind}]
        await until("everything else is done", lambda: _done(handle, others))
        await until("the workflow is blocked", lambda: is_state(handle, "blocked"))
        status = await handle.status()
        assert [step.name for step in status.failed] == [HOPELESS]
        assert {step.name for step in status.blocked} == behind
        assert f"step {HOPELESS} failed (attempts_exhausted: ConnectionError: not before" in status.text
        dead = await run.rd.jobs.get(handle.steps[HOPELESS])
        assert (dead.state, dead.attempts) == ("dead", 3)
        run.begin()
        (folder / MENDED).touch()
        await run.rd.dead.redrive(dead.id, who="ada", why="mended")
        await until("the workflow completes", lambda: is_state(handle, "complete"))
        await assert_done_once(run, handle)


async def successes(run: Run, handle: WorkflowHandle) -> dict[str, int]:
    """How often each step succeeded, as the store's own feed tells it."""
    ends = [event.job_id for event in await all_events(run.rd) if event.move == "succeeded"]
    return {step: ends.count(job) for step, job in handle.steps.items()}


async def _done(handle: WorkflowHandle, steps: list[str]) -> bool:
    status = await handle.status()
    return all(status.step(name).state == "DONE" for name in steps)


@pytest.mark.behaviour("B24", "B29")
async def test_a_process_that_dies_after_every_success_strands_nothing(zygote: Zygote, folder: Path) -> None:
    run = Run(zygote, folder)
    async with run.rd:
        handle = await start(run.rd, run.ledger)
        for _ in range(3 * STEPS):
            child = run.begin("last_word")
            await until("it dies or all is done", lambda c=child: _over(c, handle))  # type: ignore[misc]
            if await is_state(handle, "complete"):
                break
            run.ledger.killed(child.pid)
        found = await run.audited()
        assert found.states == {"done": STEPS}, found
        assert await successes(run, handle) == dict.fromkeys(handle.steps, 1)
        assert found.books.kills >= 6, "one for every layer at least"


async def _over(child: Child, handle: WorkflowHandle) -> bool:
    return not child.running() or await is_state(handle, "complete")


async def test_control_without_the_look_at_waiting_workflows_it_is_stranded(
    zygote: Zygote, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(zygote, folder)
    async with run.rd:
        handle = await start(run.rd, run.ledger)
        await run.begin("last_word").exited()

        async def blind(*_: object) -> list[Any]:
            return []

        with monkeypatch.context() as patched:
            patched.setattr(WorkflowSteps, "mind", blind)
            await run.rd.drain()
            assert await is_state(handle, "running") and (await handle.status()).count("DONE") == 1
        await run.rd.drain()
        assert await is_state(handle, "complete"), "with the look it goes on"
