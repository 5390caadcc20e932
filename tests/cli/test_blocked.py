"""A worker whose event loop a task blocks: others help, everybody can see it, and SIGTERM is obeyed."""

import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell, ended, wait_until

GRACE = 1
SLACK = 8
"""Seconds that a busy machine may take on top: the default grace alone would be longer."""

TASKS = """
    import asyncio, os, time
    from pathlib import Path

    import redrive

    rd = redrive.Redrive()

    @rd.task(queue="work", lease=3)
    async def work(kind: str) -> str:
        Path(f"{kind}-{os.getpid()}").touch()
        if kind == "feeds":
            await quick.enqueue()
        while kind in ("hogs", "feeds") and not Path("go").exists():
            time.sleep(0.01)
        while kind == "waits" and not Path("go").exists():
            await asyncio.sleep(0.01)
        return kind

    @rd.task(queue="work", lease=3)
    async def quick() -> None:
        Path(f"quick-{os.getpid()}").touch()
"""


@pytest.fixture
def blocking(shell: Shell) -> Shell:
    (shell.folder / "app.py").write_text(textwrap.dedent(TASKS), encoding="utf-8")
    return shell


def ran(shell: Shell, kind: str, worker: subprocess.Popen[str]) -> bool:
    """Whether a job of this kind has begun in that process."""
    return Path(shell.folder, f"{kind}-{worker.pid}").exists()


def claimed(shell: Shell, worker: subprocess.Popen[str]) -> None:
    wait_until(lambda: ran(shell, "hogs", worker), "the job that blocks began")


def outcomes(job: Any) -> list[str]:
    return [attempt["outcome"] for attempt in job["history"]]


@pytest.mark.behaviour("T-10a")
def test_an_idle_worker_gets_what_a_blocked_one_has_not_begun(blocking: Shell) -> None:
    hog = blocking.enqueue("work", {"kind": "hogs"})
    others = [blocking.enqueue("work", {"kind": "plain"}) for _ in range(5)]
    first = blocking.start("worker", "app:rd")
    claimed(blocking, first)
    second = blocking.start("worker", "app:rd")
    wait_until(lambda: all(blocking.state(id) == "done" for id in others), "the second worker ran the others")
    assert ran(blocking, "plain", second) and not ran(blocking, "plain", first)
    assert blocking.state(hog) == "running"
    assert [outcomes(blocking.job(id)) for id in others] == [["released", "done"]] * 5
    assert "blocked by task work" in blocking.job(others[0])["history"][0]["decision"]
    (blocking.folder / "go").touch()
    wait_until(lambda: blocking.state(hog) == "done", "the first worker kept the lease of what it ran")
    assert outcomes(blocking.job(hog)) == ["done"]
    again = blocking.enqueue("work", {"kind": "plain"})
    second.send_signal(signal.SIGTERM)
    ended(second)
    wait_until(lambda: blocking.state(again) == "done", "the first worker goes on")


@pytest.mark.behaviour("T-10b")
def test_a_claim_that_a_blocked_loop_has_not_heard_of_is_given_back(blocking: Shell) -> None:
    """The task enqueues a job, which its own idle worker claims at once, and blocks."""
    blocking.enqueue("work", {"kind": "feeds"})
    first = blocking.start("worker", "app:rd")
    wait_until(lambda: ran(blocking, "feeds", first), "the job that blocks began")
    second = blocking.start("worker", "app:rd")
    wait_until(lambda: ran(blocking, "quick", second), "the second worker ran the job")
    (job,) = blocking.here("jobs", "--task", "quick", "--json").json["jobs"]
    wait_until(lambda: blocking.state(job["id"]) == "done", "it is done")
    assert "lost" not in outcomes(blocking.job(job["id"])), "a job that never began was counted as a crash"
    assert not ran(blocking, "quick", first)
    (blocking.folder / "go").touch()


@pytest.mark.behaviour("T-10c")
def test_other_processes_see_what_blocks_a_worker(blocking: Shell) -> None:
    id = blocking.enqueue("work", {"kind": "hogs"})
    worker = blocking.start("worker", "app:rd")
    claimed(blocking, worker)

    def said() -> list[str]:
        return [issue for issue in blocking.here("health", "--json").json["issues"] if "event loop" in issue]

    wait_until(lambda: bool(said()), "health names the task")
    (issue,) = said()
    assert "blocked by task work" in issue and id[-8:] in issue
    (blocking.folder / "go").touch()
    wait_until(lambda: not said(), "health says that it is over")


@pytest.mark.behaviour("T-10d")
@pytest.mark.parametrize(
    ("words", "told", "status"),
    [
        (["worker", "app:rd"], signal.SIGTERM, 0),
        (["worker", "app:rd"], signal.SIGINT, 0),
        (["worker", "app:rd", "--drain"], signal.SIGTERM, 143),
        (["serve", "app:rd", "--port", "0"], signal.SIGTERM, 0),
    ],
    ids=["worker", "ctrl-c", "drain", "serve"],
)
def test_a_blocked_worker_ends_when_its_grace_is_over(
    blocking: Shell, words: list[str], told: signal.Signals, status: int
) -> None:
    """What it finished is kept, what it had begun or only claimed comes back, and the job that blocks does, too."""
    kinds = ("waits", "plain", "hogs", "late")
    waits, plain, hogs, late = (blocking.enqueue("work", {"kind": kind}) for kind in kinds)
    worker = blocking.start(*words, "--grace", str(GRACE))
    claimed(blocking, worker)
    worker.send_signal(told)
    since = time.monotonic()
    wait_until(lambda: worker.poll() is not None, "the process ends although a task blocks it")
    assert time.monotonic() - since < GRACE + 1 + SLACK
    assert ended(worker).status == status
    assert blocking.state(plain) == "done"
    for id in (waits, late):
        job = blocking.job(id)
        assert (job["state"], job["attempts"], outcomes(job)) == ("waiting", 0, ["released"])
    assert not ran(blocking, "late", worker)
    (blocking.folder / "go").touch()
    blocking.drain()
    assert [blocking.state(id) for id in (waits, late)] == ["done", "done"]
    assert blocking.state(hogs) in ("waiting", "done"), "it comes back when its process is seen to be gone"
