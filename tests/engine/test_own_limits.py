"""A job that meets a limit of its own machine waits for room: the limit is not the job's, and costs it no attempt."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

import redrive
from tests.support import FakeClock, drain_until_over, only_job, opened, soon

ROOM_WAITS = 50
"""So often a job may meet such a limit at no cost."""
pytestmark = pytest.mark.behaviour("T-13c")


def wrapped(inner: Exception) -> Exception:
    """As clients raise it: their own class, and in it a group of what happened for each address."""
    outer = redrive_client_error()
    outer.__cause__ = OSError("All connection attempts failed")
    outer.__cause__.__cause__ = ExceptionGroup("multiple connection attempts failed", [inner])
    return outer


def redrive_client_error() -> Exception:
    import httpx2

    return httpx2.ConnectError("All connection attempts failed")


OURS = {
    "descriptors": lambda: OSError(errno.EMFILE, "Too many open files"),
    "descriptors of the machine": lambda: OSError(errno.ENFILE, "Too many open files in system"),
    "in a client's error": lambda: wrapped(OSError(errno.EMFILE, "Too many open files")),
    "the store": lambda: redrive.StoreFull("no space left on the device"),
}


@pytest.mark.parametrize("ours", OURS.values(), ids=OURS)
async def test_no_attempt_is_used(
    database: Path, ours: Callable[[], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with opened(database, clock=clock) as rd:
        met: list[int] = []

        @rd.task(max_attempts=1)
        async def read() -> str:
            met.append(1)
            if len(met) <= 5:
                raise ours()
            return "read"

        handle = await rd.enqueue("read", {})
        await soon(rd.drain())
        job = await only_job(rd)
        assert (job.state, job.attempts) == ("waiting", 0)
        assert job.run_at > clock.now(), "it waits"
        assert "A limit of this machine, not of the job" in caplog.text
        await drain_until_over(rd, clock, step=100.0)
        assert (await rd.jobs.get(handle.id)).state == "done"
        assert await handle.result(0) == "read" and len(met) == 6


async def test_a_job_that_uses_up_the_descriptors_itself_ends_as_a_dead_letter(database: Path) -> None:
    clock = FakeClock()
    async with opened(database, clock=clock, queues={"leak": {"max_age": None}}) as rd:

        @rd.task(max_attempts=2)
        async def leak() -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        await rd.enqueue("leak", {}, max_age=None)
        await drain_until_over(rd, clock, rounds=ROOM_WAITS + 20, step=100.0)
        job = await only_job(rd)
        assert (job.state, job.because, job.attempts) == ("dead", "attempts_exhausted", 2)
        assert "file descriptors" in (job.recommendation or "")


async def test_the_limit_of_another_system_is_not_ours(database: Path) -> None:
    class Answer(Exception):
        status_code = 500

    async with opened(database, clock=FakeClock()) as rd:

        @rd.task
        async def ask() -> None:
            raise Answer("EMFILE: too many open files") from OSError(errno.EMFILE, "Too many open files")

        await rd.enqueue("ask", {})
        await soon(rd.drain())
        job = await only_job(rd)
        assert (job.attempts, job.detail) == (1, "server_error")
