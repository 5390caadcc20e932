"""What nobody watches is told all the same: a killed process, a store that is gone, by whichever door one asks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import mcp
import pytest

from redrive import Redrive
from redrive.doors.mcp import make_server
from tests.cli.shell import Shell, wait_until
from tests.mcp.agents import ask
from tests.support import FakeClock
from tests.web.serving import serving


def killed_worker(shell: Shell, folder: Path) -> str:
    """A worker that is killed while its only job runs; nobody starts another."""
    job = shell.enqueue("mark", {"folder": str(folder), "until": str(folder / "never")})
    worker = shell.start("worker", "app:rd")
    wait_until(lambda: any(folder.glob("started-*")), "the job has begun")
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    return job


@pytest.mark.behaviour("T-2")
def test_a_killed_worker_is_a_need_in_health_morning_and_doctor(shell: Shell, tmp_path: Path) -> None:
    job = killed_worker(shell, tmp_path)
    health = shell.run("health", "--json")
    assert health.status == 1, health.out
    (need,) = [need for need in health.json["needs"] if need["kind"] == "process_gone"]
    assert (need["count"], need["job_id"], need["task"]) == (1, job, "mark")
    assert "is gone" in need["sentence"] and "left 1 running job behind (mark)" in need["sentence"]
    words = shell.run("health")
    assert words.status == 1 and "left 1 running job behind" in words.out
    morning = shell.run("morning")
    assert morning.status == 1 and "nothing needs you" not in morning.out
    assert "is gone" in morning.out and "Start a worker" in morning.out
    doctor = shell.run("doctor")
    assert doctor.status == 1 and "left 1 running job behind" in doctor.out
    assert any("left 1 running job behind" in issue for issue in shell.run("top", "--json").json["issues"])


@pytest.mark.behaviour("T-2")
def test_the_morning_of_one_queue_tells_of_the_killed_worker_that_had_its_jobs(shell: Shell, tmp_path: Path) -> None:
    killed_worker(shell, tmp_path)
    shell.enqueue("greet", {"name": "ada"})
    ours = shell.run("morning", "--queue", "mark", "--json")
    assert (ours.status, [need["kind"] for need in ours.json["needs"]]) == (1, ["process_gone"]), ours.out
    others = shell.run("morning", "--queue", "greet", "--json")
    assert [need["kind"] for need in others.json["needs"]] == [], others.out


@pytest.mark.behaviour("T-2", "T-6")
def test_a_job_of_a_killed_worker_is_one_need_nine_days_later(shell: Shell, tmp_path: Path) -> None:
    """It does not run, so that it is not told as stalled as well."""
    killed_worker(shell, tmp_path)

    async def asked() -> list[tuple[str, int]]:
        async with Redrive(shell.database, clock=FakeClock(time.time() + 9 * 86_400)) as rd:
            return [(need.kind, need.count) for need in await rd.needs() if need.kind != "clock_jumped"]

    assert asyncio.run(asked()) == [("process_gone", 1)]


@pytest.mark.behaviour("T-2a")
def test_a_killed_worker_is_a_need_over_rest_and_on_the_overview(shell: Shell, tmp_path: Path) -> None:
    killed_worker(shell, tmp_path)

    async def asked() -> tuple[dict[str, object], str]:
        async with Redrive(shell.database) as rd, serving(rd, worker=False, dashboard=True) as served:
            page = await served.client.get("/")
            return await served.get("/v1/health"), page.text

    health, page = asyncio.run(asked())
    assert health["status"] == "degraded"
    assert "process_gone" in json.dumps(health["needs"])
    assert "is gone" in page and "left 1 running job behind" in page


@pytest.mark.behaviour("T-2a")
def test_an_agent_is_told_of_a_killed_worker(shell: Shell, tmp_path: Path) -> None:
    killed_worker(shell, tmp_path)

    async def asked() -> dict[str, Any]:
        async with Redrive(shell.database) as rd, mcp.Client(make_server(rd)) as client:
            return await ask(client, "status")

    status = asyncio.run(asked())
    assert status["health"] == "degraded" and status["needs_a_person"] >= 1
    assert any("left 1 running job behind" in issue for issue in status["issues"])


@pytest.mark.behaviour("T-2b")
def test_a_job_that_another_worker_took_over_is_no_need_any_more(shell: Shell, tmp_path: Path) -> None:
    job = killed_worker(shell, tmp_path)
    (tmp_path / "never").touch()
    second = shell.start("worker", "app:rd")
    wait_until(lambda: shell.state(job) == "done", "the second worker has done it")
    assert [need for need in shell.run("health", "--json").json["needs"] if need["kind"] == "process_gone"] == []
    second.terminate()
    second.wait()


@pytest.mark.behaviour("T-7")
def test_with_the_store_gone_health_is_broken_and_names_the_spooled_jobs(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "ada"})
    spool = Path(f"{shell.database}-spool")
    shell.database.rename(shell.folder / "aside.db")
    shell.database.mkdir()
    handle = asyncio.run(Redrive(shell.database).enqueue("greet", {"name": "bob"}, fallback=True))
    assert handle.spooled and any(spool.iterdir())
    health = shell.run("health", "--json")
    assert health.status == 3, health.out
    assert health.json["status"] == "broken"
    assert [need["kind"] for need in health.json["needs"]] == ["store_failed", "spooled"]
    assert "1 job waits beside the store" in shell.run("health").out
    morning = shell.run("morning")
    assert (morning.status, "1 job waits beside the store" in morning.err) == (3, True), morning.err
    shell.database.rmdir()
    morning = shell.run("morning")
    assert (morning.status, "1 job waits beside the store" in morning.err) == (3, True), morning.err


@pytest.mark.behaviour("T-7")
def test_without_a_database_health_and_morning_are_broken_not_misused(shell: Shell) -> None:
    for command in ("health", "morning"):
        done = shell.run(command)
        assert done.status == 3, (command, done.out, done.err)
        assert "there is no database" in done.out + done.err
    assert not shell.database.exists(), "looking makes none"
