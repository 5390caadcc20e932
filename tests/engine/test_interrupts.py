"""Who wants the process to end: a person, by a signal, or a task that only looks like it."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive
from tests.support import DEADLINE, ctrl_c, opened, process, soon


class Poison(BaseException):
    """What `except Exception` does not see."""


ERRORS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Poison)


@pytest.mark.behaviour("T-8b")
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "function"])
@pytest.mark.parametrize("read_only", [False, True], ids=["writes", "reads"])
async def test_what_a_called_task_raises_is_told_as_its_failure(
    rd: Redrive, error: type[BaseException], plain: bool, read_only: bool
) -> None:
    def function() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    rd.task("work", read_only=read_only)(function if plain else coroutine)
    outcome = await soon(rd.call("work"))
    assert (outcome.status, outcome.error_kind) == ("failed", "interrupted_itself")
    if not read_only:
        (job,) = (await rd.jobs.list()).jobs
        assert (job.state, job.detail, job.attempts) == ("dead", "interrupted_itself", 1)


CALL = """
import asyncio, faulthandler, signal, sys, time
import redrive
faulthandler.dump_traceback_later(40, exit=True)  # one that hangs tells where, and ends
rd = redrive.Redrive(sys.argv[1])

@rd.task
async def work():
    print("begun", flush=True)
    for _ in range(2_000 if sys.argv[2] == "busy" else 0):
        time.sleep(0.01)  # in one long sleep, a signal that arrives a moment before it begins waits for its end
    await asyncio.sleep(20)

async def main():
    async with rd:
        try:
            await rd.call("work")
        except KeyboardInterrupt:
            print("reached the caller", flush=True)
            raise

signal.signal(signal.SIGINT, signal.default_int_handler)
loop = asyncio.new_event_loop()
try:
    loop.run_until_complete(main())
finally:
    print("put back", signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)
"""


@pytest.mark.behaviour("T-8c")
async def test_ctrl_c_reaches_whoever_called_and_the_job_is_given_back(database: Path) -> None:
    with process(CALL, database, "busy") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        child.send_signal(signal.SIGINT)
        said, _ = child.communicate(timeout=3 * DEADLINE)
    assert (said.splitlines(), child.returncode) == (["reached the caller", "put back True"], -signal.SIGINT)
    async with opened(database) as rd:
        (job,) = (await rd.jobs.list()).jobs
        job = await rd.jobs.get(job.id)
    assert (job.state, job.attempts, [attempt.outcome for attempt in job.history]) == ("waiting", 0, ["released"])


def test_an_interrupt_is_known_to_whatever_runs_and_to_nothing_later() -> None:
    from redrive.engine.interrupts import Interrupts

    with Interrupts() as outer:
        with Interrupts() as inner, pytest.raises(KeyboardInterrupt):
            ctrl_c()
        assert (outer.told, inner.told, Interrupts().told) == (True, True, False)


APP = """
import asyncio, os, signal, time
import redrive
rd = redrive.Redrive(grace=0.1)

@rd.task
def ends_its_process(how: str) -> None:
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)

@rd.task
async def ends_and_blocks() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

@rd.task
async def runs_a_command_that_ends_its_process() -> None:
    await asyncio.create_subprocess_shell(f"kill -TERM {os.getpid()}")
    await asyncio.sleep(60)

@rd.task
async def innocent() -> None: ...
"""


def _worker(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "redrive", "worker", "poison:rd", "--url", str(folder / "jobs.db")]
    command += options
    return subprocess.run(command, cwd=folder, env=environment, timeout=60, capture_output=True, text=True, check=False)


@pytest.mark.behaviour("T-8d")
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
async def test_a_worker_that_a_job_ended_does_not_look_as_if_it_was_told_to_stop(tmp_path: Path, how: str) -> None:
    (tmp_path / "poison.py").write_text(textwrap.dedent(APP))
    async with opened(tmp_path / "jobs.db") as rd:
        job = await rd.enqueue("ends_its_process", {"how": how})
        done = await asyncio.to_thread(_worker, tmp_path)
        assert done.returncode not in (0, 2), done.stderr
        assert f"sent {how} to its own process" in done.stderr
        found = await job.refresh()
    assert (found.state, found.detail, found.attempts) == ("dead", "interrupted_itself", 1)


@pytest.mark.behaviour("T-8d")
async def test_nor_does_one_whose_event_loop_that_job_blocks(tmp_path: Path) -> None:
    (tmp_path / "poison.py").write_text(textwrap.dedent(APP))
    async with opened(tmp_path / "jobs.db") as rd:
        await rd.enqueue("ends_and_blocks")
        done = await asyncio.to_thread(_worker, tmp_path)
    assert done.returncode not in (0, 2), done.stderr
    assert "sent SIGTERM to its own process" in done.stderr


@pytest.mark.behaviour("T-8f")
async def test_a_job_whose_command_ends_every_worker_lets_others_run_first(tmp_path: Path) -> None:
    """A signal does not say who sent it, so the job is given back each time; it rests when that repeats."""
    (tmp_path / "poison.py").write_text(textwrap.dedent(APP))
    async with opened(tmp_path / "jobs.db") as rd:
        hog = await rd.enqueue("runs_a_command_that_ends_its_process", priority="critical")
        innocent = await rd.enqueue("innocent")
        for _ in range(3):
            ended = await asyncio.to_thread(_worker, tmp_path, "--drain", "--concurrency", "1")
            assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
        assert (await innocent.refresh()).state == "waiting"
        assert "others run first" in ended.stderr
        found = await hog.refresh()
        assert (found.state, found.attempts, found.crashes) == ("waiting", 0, 0)
        assert found.run_at - found.updated_at == pytest.approx(10.0)
        calm = await asyncio.to_thread(_worker, tmp_path, "--drain", "--concurrency", "1", "--queues", "innocent")
        assert calm.returncode == 0, calm.stderr
        assert (await innocent.refresh()).state == "done"


class Mine(dict[str, Any]):
    """A result that ends whoever looks at it."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(error="x")
        self._error = error

    def get(self, *_: Any) -> Any:
        raise self._error

    __contains__ = items = keys = __iter__ = get


@pytest.mark.behaviour("T-8")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, Poison])
@pytest.mark.parametrize("by_policy", [True, False], ids=["policy", "value"])
async def test_a_result_that_ends_whoever_looks_at_it_is_the_tasks_failure(
    rd: Redrive, error: type[BaseException], by_policy: bool
) -> None:
    def refuse(value: object) -> None:
        raise error

    runs: list[int] = []

    @rd.task(result_policy=refuse if by_policy else True)
    async def work() -> Any:
        runs.append(1)
        return 1 if by_policy else Mine(error)

    job = await rd.enqueue("work")
    await soon(rd.drain())
    found = await job.refresh()
    assert (found.state, found.detail, found.attempts, len(runs)) == ("dead", "interrupted_itself", 1, 1)


async def test_a_cancellation_by_a_result_policy_is_no_reason_to_run_it_again(rd: Redrive) -> None:
    def refuse(value: object) -> None:
        raise asyncio.CancelledError

    @rd.task(result_policy=refuse)
    async def work() -> int:
        return 1

    job = await rd.enqueue("work")
    async with rd.worker():
        assert await soon(job.result()) == 1
    assert (await job.refresh()).attempts == 1
