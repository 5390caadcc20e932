"""The SQLite store among processes: killed while it begins, made by many, forked, crashed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.core.job import State
from redrive.core.store import Commit, Wanted
from redrive.stores.sqlite import SqliteStore, fork_guard
from tests.stores.jobs import T0, a_job, retry
from tests.stores.openers import Openers
from tests.stores.outside import ROOT, outsider

ROUNDS = 5
"""An observer looks once a second; a dead process is told of within a few of its rounds."""


def scene(name: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stores.forks", name, str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = msgspec.json.decode(done.stdout)
    return seen


def test_a_kill_at_any_moment_of_creation_leaves_a_usable_file(folder: Path) -> None:
    seen = scene("killed_while_creating", folder)
    assert seen["kills"] >= 10
    assert seen["completed"] == 1
    assert seen["usable"] == seen["kills"] + 1


def test_eight_processes_may_create_the_file_at_once(folder: Path) -> None:
    assert scene("made_at_once", folder) == {"codes": [0] * 8, "all": True}


@pytest.mark.behaviour("C46")
def test_a_store_opened_before_a_fork_works_on_both_sides(folder: Path) -> None:
    seen = scene("preloaded", folder)
    assert seen["codes"] == [0, 0, 0]
    assert seen["counts"] == {"before": 1, "held": 1, "during": 1, "child0": 1, "child1": 1, "child2": 1}
    assert seen["held"] == "done"
    assert seen["lapsed"] == ["child0", "child1", "child2"]


@pytest.mark.behaviour("T-15b")
def test_a_second_opening_is_refused_in_a_forked_child_too(folder: Path) -> None:
    """Also after the child opened the store itself, until it has closed it."""
    assert scene("second_opening", folder) == {
        "code": 0,
        "child": ["refused", "refused", "opened"],
        "parent": "refused",
    }


def test_a_fork_in_the_middle_of_a_transaction_harms_nobody(folder: Path) -> None:
    assert scene("in_the_middle", folder) == {"code": 0, "count": 2}


def test_a_fork_does_not_wait_for_ever_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fork_guard, "PATIENCE", 0.01)
    use = fork_guard.Use()
    with use:
        use.before_fork()
        use.after_in_parent()
    assert "may not be able to write" in caplog.text
    caplog.clear()
    use.before_fork()
    use.after_in_parent()
    with use:
        assert caplog.text == ""


def test_a_forked_child_leaves_the_temporary_file_to_its_parent(folder: Path) -> None:
    assert scene("temporary", folder) == {"code": 0, "there": True, "count": 2}


# ---- crashes


@pytest.mark.behaviour("000-62", "000-16", "000-13")
async def test_what_was_accepted_survives_a_kill_in_the_next_instant(sqlite: Openers) -> None:
    accepted = []
    for _ in range(3):
        async with outsider("sqlite", sqlite.folder) as other:
            accepted += await other.ask(f"insert {a_job().id}")
            await other.kill()
    store = await sqlite.open()
    assert [job.id for job in await store.get(accepted)] == accepted
    assert await store.repair(T0) == []


@pytest.mark.behaviour("000-64")
async def test_the_jobs_of_a_killed_process_are_told_long_before_their_lease_ends(sqlite: Openers) -> None:
    store, observer = await sqlite.open(), await sqlite.observer()
    await store.insert([a_job() for _ in range(3)])
    async with outsider("sqlite", sqlite.folder) as other:
        claimed = await other.ask("claim 3")
        assert len(claimed) == 3
        for _ in range(ROUNDS):
            assert await observer.look(1.0) == [], "it lives"
        await other.kill()
    lapsed = [job for _ in range(ROUNDS) for job in await observer.look(1.0)]
    assert {job.id for job in lapsed} == set(claimed)
    assert all(job.state is State.running and job.worker == "outsider" for job in lapsed)
    first = lapsed[0]
    await store.apply([Commit((retry(first),))])
    assert first.id not in {job.id for job in await observer.look(1.0)}


async def test_every_observer_learns_of_a_killed_process(sqlite: Openers) -> None:
    store = await sqlite.open()
    observers = [await sqlite.observer() for _ in range(3)]
    await store.insert([a_job()])
    async with outsider("sqlite", sqlite.folder) as other:
        (id,) = await other.ask("claim 1")
        await other.kill()
    for observer in observers:
        told = [job.id for _ in range(ROUNDS) for job in await observer.look(1.0)]
        assert id in told


async def test_a_stopped_process_is_not_dead_until_its_lease_ends(sqlite: Openers) -> None:
    store, observer = await sqlite.open(), await sqlite.observer()
    await store.insert([a_job()])
    async with outsider("sqlite", sqlite.folder) as other:
        (id,) = await other.ask("claim 1")
        other.process.send_signal(signal.SIGSTOP)
        try:
            for _ in range(ROUNDS):
                assert await observer.look(1.0) == []
            assert [job.id for job in await observer.look(100.0)] == [id]
        finally:
            other.process.send_signal(signal.SIGCONT)


async def test_a_process_that_left_its_jobs_behind_is_noticed_too(sqlite: Openers) -> None:
    store, observer = await sqlite.open(), await sqlite.observer()
    await store.insert([a_job()])
    async with outsider("sqlite", sqlite.folder) as other:
        (id,) = await other.ask("claim 1")
        await other.leave()
    told = [job.id for _ in range(ROUNDS) for job in await observer.look(1.0)]
    assert id in told


async def test_the_sign_of_life_goes_with_the_store(folder: Path) -> None:
    store, other = SqliteStore(folder / "jobs.db"), SqliteStore(folder / "jobs.db")
    await store.open()
    await other.open()
    live = folder / "jobs.db-live"
    assert len(list(live.iterdir())) == 2
    await store.close()
    assert len(list(live.iterdir())) == 1
    await other.close()
    assert not live.exists()


async def test_an_open_that_was_given_up_leaves_a_living_process(sqlite: Openers) -> None:
    """The first caller goes away while the file is being opened; the store is used all the same, so it lives."""
    observer = await sqlite.observer()
    store = SqliteStore(sqlite.folder / "jobs.db")
    first = asyncio.ensure_future(store.open())
    await asyncio.sleep(0)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    deadline = time.monotonic() + 30
    while store._writer is None or not store._writer.opened:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
    await store.insert([a_job()])
    assert len((await store.claim(Wanted(1), "w1", T0 + 1)).jobs) == 1
    for _ in range(ROUNDS):
        assert await observer.look(1.0) == []
    await store.close()


async def test_many_first_callers_are_one_process(folder: Path) -> None:
    store = SqliteStore(folder / "jobs.db")
    await asyncio.gather(*(store.insert([a_job()]) for _ in range(10)))
    live = folder / "jobs.db-live"
    held = [link for link in _descriptors() if link.startswith(str(live))]
    assert len(held) == len(list(live.iterdir())) == 1
    await store.close()
    assert not [link for link in _descriptors() if link.startswith(str(live))]


def _descriptors() -> list[str]:
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return links
