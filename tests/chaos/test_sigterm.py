"""SIGTERM while tasks run: the process ends soon, no attempt is burnt, and every job runs again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Job, Redrive
from tests.chaos.app import make_app, worker
from tests.chaos.ledger import Audit, audit
from tests.chaos.processes import Zygote, until

pytestmark = pytest.mark.chaos

GRACE = 0.1
SOON = 15.0
"""The tasks here run for 60 s if nobody stops them; a process that is still there after this waited for them."""
AT_ONCE = 3


def burning(folder: str, **settings: Any) -> None:
    """The guard removed: what shutdown interrupts counts as a failure."""
    from redrive.engine.settle import Settlement
    from redrive.failures.capture import capture
    from redrive.failures.classify import classify
    from redrive.retries.decision import Case
    from redrive.retries.strategy import decide

    def failed(self: Settlement, job: Job) -> Any:
        failure = capture(ConnectionError("interrupted"))
        case = Case(job, failure, classify(failure), self._registry.policy_for(job), self._clock.now())
        return self._transition(case, decide(case), "interrupted", None)

    Settlement.released = failed  # type: ignore[method-assign]
    worker(folder, **settings)


def command(folder: str, *, grace: float, concurrency: int) -> None:
    """The `redrive worker` command: what must end even where asyncio would wait for a task for ever."""
    from redrive.doors.cli import cli
    from tests.chaos import app

    app.rd, _ = make_app(Path(folder))  # type: ignore[attr-defined]
    cli.main(["worker", "tests.chaos.app:rd", f"--grace={grace}", f"--concurrency={concurrency}"])


class Shutdowns:
    """Workers that are told to stop in the middle of their work."""

    def __init__(self, zygote: Zygote, folder: Path, role: str = "tests.chaos.app:worker") -> None:
        self.zygote = zygote
        self.folder = folder
        self.role = role
        self.rd, self.ledger = make_app(folder)

    async def hand_in(self, task: str, **payload: Any) -> str:
        handle = await self.rd.enqueue(task, {"gate": "gate", **payload})
        self.ledger.accepted([handle.id])
        return handle.id

    async def interrupt(self, jobs: list[str]) -> None:
        """Start a worker, wait until it runs these jobs, tell it to stop, and wait until it is gone."""
        before = {job: self.ledger.read().started(job) for job in jobs}
        slots = len(jobs) + 1  # one of few slots is kept for the other queues
        child = self.zygote.start(
            self.role, log=self.folder / "workers.log", folder=self.folder, grace=GRACE, concurrency=slots
        )

        def started() -> bool:
            books = self.ledger.read()
            return all(books.started(job) > before[job] for job in jobs)

        await until("the jobs start", started)
        child.send(signal.SIGTERM)
        assert await child.exited(SOON) == 0, child.log()

    async def finish(self) -> Audit:
        """Everything runs to its end under a worker that nobody stops."""
        (self.folder / "gate").touch()
        rd, ledger = self.rd, self.ledger
        async with rd.worker():
            await until("every job is done", lambda: _all_done(rd))
        return await audit(rd, ledger)


async def _all_done(rd: Redrive) -> bool:
    totals = (await rd.stats())["totals"]
    return not totals["waiting"] and not totals["running"]


async def interrupted(run: Shutdowns, times: int) -> Audit:
    async with run.rd:
        jobs = [await run.hand_in("gated") for _ in range(AT_ONCE)]
        for number in range(1, times + 1):
            await run.interrupt(jobs)
            for job in await run.rd.store.get(jobs):
                assert (job.state, job.attempts, job.crashes, job.run) == ("waiting", 0, 0, number), job
        return await run.finish()


@pytest.mark.behaviour("000-70")
async def test_nothing_is_burnt(zygote: Zygote, folder: Path, size: Callable[[int, int], int]) -> None:
    times = size(20, 500)
    found = (await interrupted(Shutdowns(zygote, folder), times)).assert_sound()
    for job in found.jobs.values():
        assert (job.state, job.attempts, job.run) == ("done", 1, times + 1)
        assert [attempt.outcome for attempt in job.history] == ["released"] * times + ["done"]
    assert len(found.books.ends) == AT_ONCE, "only the last run of each came to its end"


async def test_control_a_shutdown_that_counts_as_failure(zygote: Zygote, folder: Path) -> None:
    run = Shutdowns(zygote, folder, "tests.chaos.test_sigterm:burning")
    with pytest.raises(AssertionError, match="waiting"):
        await interrupted(run, 1)


@pytest.mark.behaviour("000-70")
@pytest.mark.parametrize(
    ("task", "payload"), [("gated", {"ignore": True}), ("gated_thread", {})], ids=["ignores cancellation", "thread"]
)
async def test_a_task_that_cannot_be_stopped_is_left_behind(
    zygote: Zygote, folder: Path, task: str, payload: dict[str, Any]
) -> None:
    """The process goes all the same; its job is given back and runs again."""
    run = Shutdowns(zygote, folder, "tests.chaos.test_sigterm:command")
    async with run.rd:
        job = await run.hand_in(task, **payload)
        await run.interrupt([job])
        assert not run.ledger.read().ends, "the process waited for the task"
        found = (await run.finish()).assert_sound()
    assert [attempt.outcome for attempt in found.jobs[job].history] == ["released", "done"]
    assert (found.jobs[job].attempts, found.jobs[job].crashes) == (1, 0)


async def test_a_job_that_runs_alone_is_given_back(zygote: Zygote, folder: Path) -> None:
    """It was there at two crashes, so it has the process to itself; that must not keep the process from stopping."""
    run = Shutdowns(zygote, folder)
    async with run.rd:
        job = await run.hand_in("gated")
        for number in range(2):
            await _crash(run, job, number + 1)
        await run.interrupt([job])
        (now,) = await run.rd.store.get([job])
        assert (now.state, now.attempts, now.crashes) == ("waiting", 0, 2)
        found = await run.finish()
    assert found.jobs[job].state == "done" and found.jobs[job].crashes == 2


async def _crash(run: Shutdowns, job: str, starts: int) -> None:
    child = run.zygote.start("tests.chaos.app:worker", log=run.folder / "workers.log", folder=run.folder)
    await until("the job starts", lambda: run.ledger.read().started(job) == starts)
    child.send(signal.SIGKILL)
    await child.exited()
    run.ledger.killed(child.pid)
