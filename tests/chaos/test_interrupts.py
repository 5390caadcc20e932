"""Tasks that end their process in every way Python has: each is buried as its own failure, and every worker goes on."""

from __future__ import annotations

import _thread
import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import BlockingContext, Context, Redrive
from tests.chaos.app import make_app
from tests.chaos.ledger import Audit, Ledger, audit
from tests.chaos.processes import Child, Zygote, until

pytestmark = pytest.mark.chaos

CONCURRENCY = 8
GRACE = 0.2
HANGS = 60.0
"""Seconds for which a task stays that has told its process to end: far longer than the grace."""


class Poison(BaseException):
    """What `except Exception` does not see."""


class Unreadable(BaseException):
    """Interrupts whoever reads its message."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


ERRORS: dict[str, type[BaseException]] = {
    error.__name__: error
    for error in (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Poison, Unreadable)
}
SENDS: dict[str, Callable[[], object]] = {
    "SIGINT": lambda: os.kill(os.getpid(), signal.SIGINT),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "raise_signal": lambda: signal.raise_signal(signal.SIGTERM),
    "interrupt_main": lambda: _thread.interrupt_main(),  # noqa: PLW0108 - looked up when it is called
    "pthread_kill": lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT),
}


async def raised_in_thread(how: str) -> None:
    await asyncio.to_thread(lambda: _raise(how))


async def raised_below(how: str) -> None:
    await asyncio.create_task(_raises(how))


async def raised_in_group(how: str) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raises(how))


async def raises_below_unawaited(how: str) -> None:
    asyncio.create_task(_raises(how))  # noqa: RUF006
    await asyncio.sleep(0.1)
    raise ERRORS[how]


async def _raises(how: str) -> None:
    await asyncio.sleep(0)
    _raise(how)


def _raise(how: str) -> None:
    raise ERRORS[how]


async def cancel_all(how: str) -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(HANGS)


async def stop_loop(how: str) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.1)
    raise Poison


DEEDS: dict[str, Callable[[str], Awaitable[None]]] = {
    "below": raised_below, "in_group": raised_in_group, "unawaited": raises_below_unawaited,
    "to_thread": raised_in_thread, "cancel_all": cancel_all, "stop_loop": stop_loop,
}  # fmt: skip


def add_poisons(rd: Redrive, ledger: Ledger) -> None:
    @rd.task(backoff="none", breaker_after=0, max_attempts=2)
    async def on_loop(ctx: Context, how: str) -> None:
        ledger.started(ctx.job.id, ctx.job.run)
        await asyncio.sleep(0)
        if how in ERRORS:
            raise ERRORS[how]
        SENDS[how]()
        await asyncio.sleep(HANGS)

    @rd.task(backoff="none", breaker_after=0, max_attempts=2)
    def in_thread(ctx: BlockingContext, how: str) -> None:
        ledger.started(ctx.job.id, ctx.job.run)
        if how in ERRORS:
            raise ERRORS[how]
        SENDS[how]()
        time.sleep(HANGS)

    @rd.task(backoff="none", breaker_after=0, max_attempts=2)
    async def deed(ctx: Context, name: str, how: str) -> None:
        ledger.started(ctx.job.id, ctx.job.run)
        await DEEDS[name](how)


def poisons() -> list[tuple[str, dict[str, str]]]:
    """Every task and its payload."""
    everywhere = [(task, {"how": how}) for task in ("on_loop", "in_thread") for how in (*ERRORS, *SENDS)]
    below = [("deed", {"name": name, "how": how}) for name in list(DEEDS)[:4] for how in list(ERRORS)[:3]]
    return [
        *everywhere,
        *below,
        ("deed", {"name": "cancel_all", "how": ""}),
        ("deed", {"name": "stop_loop", "how": ""}),
    ]


def command(folder: str, *, unguarded: bool = False) -> None:
    """The `redrive worker` command. The guard removed: whatever a task raises is taken for the person's doing."""
    from redrive.doors.cli import cli

    if unguarded:
        from redrive.engine.attempt import AttemptRunner

        AttemptRunner._is_the_persons = lambda self, error, state: not isinstance(error, Exception)  # type: ignore[method-assign]
    sys.modules[__name__].rd, ledger = make_app(Path(folder), grace=GRACE)  # type: ignore[attr-defined]
    add_poisons(sys.modules[__name__].rd, ledger)
    cli.main(["worker", f"{__name__}:rd", f"--concurrency={CONCURRENCY}"])


class Ward:
    """A process manager that starts the worker again for as long as there is work."""

    def __init__(self, zygote: Zygote, folder: Path, **how: Any) -> None:
        self.zygote = zygote
        self.folder = folder
        self.how = how
        self.endings: list[int] = []

    def admit(self) -> Child:
        role, log = f"{__name__}:command", self.folder / "workers.log"
        return self.zygote.start(role, log=log, folder=self.folder, **self.how)

    async def until_all_ended(self, rd: Redrive, ledger: Ledger, most: int) -> None:
        child = self.admit()

        async def ended() -> bool:
            nonlocal child
            if not child.running():
                self.endings.append(child.status or 0)
                ledger.killed(child.pid)
                assert len(self.endings) <= most, f"the worker ended {len(self.endings)} times\n{child.log()[-2000:]}"
                child = self.admit()
            totals = (await rd.stats())["totals"]
            return not totals["waiting"] and not totals["running"]

        await until("every job ends", ended, 120.0)
        child.send(signal.SIGTERM)
        assert await child.exited() == 0, child.log()


async def epidemic(
    zygote: Zygote, folder: Path, poisons: list[tuple[str, dict[str, str]]], bystanders: int, **how: Any
) -> tuple[Audit, Ward]:
    rd, ledger = make_app(folder)
    add_poisons(rd, ledger)
    ward = Ward(zygote, folder, **how)
    async with rd:
        for task, payload in poisons:
            ledger.accepted([(await rd.enqueue(task, payload)).id])
        many = await rd.enqueue_many("work", [{"n": n} for n in range(bystanders)])
        ledger.accepted([id for id in many.ids if id])
        await ward.until_all_ended(rd, ledger, most=len(poisons))
        return await audit(rd, ledger, concurrency=CONCURRENCY), ward


@pytest.mark.behaviour("T-8")
async def test_no_task_ends_its_worker_for_ever(zygote: Zygote, folder: Path, size: Callable[[int, int], int]) -> None:
    all_of_them = poisons() * size(1, 5)
    found, ward = await epidemic(zygote, folder, all_of_them, size(60, 2_000))
    found.assert_sound()
    print(f"the worker ended {len(ward.endings)} times: {ward.endings}")
    assert 0 not in ward.endings, "a worker that a job ended must not look as if it had been told to stop"
    dead = [job for job in found.jobs.values() if job.state == "dead"]
    assert len(dead) == len(all_of_them)
    wrong = [(job.arguments, job.detail, job.attempts) for job in dead if job.detail != "interrupted_itself"]
    assert wrong == []
    assert all(job.attempts and job.recommendation for job in dead)
    assert all(job.state == "done" and job.attempts == 1 for job in found.jobs.values() if job.task == "work")


async def test_control_taken_for_a_person_the_task_is_never_buried(zygote: Zygote, folder: Path) -> None:
    """It runs again and again, or ends the runner below it and stays where it is: either way nothing is counted."""
    rd, ledger = make_app(folder)
    add_poisons(rd, ledger)
    async with rd:
        job = await rd.enqueue("on_loop", {"how": "KeyboardInterrupt"})
        ledger.accepted([job.id])
        child = Ward(zygote, folder, unguarded=True).admit()

        def held_up() -> bool:
            again = ledger.read().started(job.id) >= 20
            return again or not child.running() or "has ended the event loop" in child.log()

        await until("it holds up its worker", held_up)
        assert ((await job.refresh()).attempts, (await job.refresh()).ended) == (0, False)
