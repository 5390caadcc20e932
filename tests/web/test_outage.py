"""Two downstreams are down and a third refuses: what `redrive serve`, REST and a terminal say of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell, make_shell
from tests.cli.zygote import start_zygote
from tests.receiver import answer, receiving
from tests.support import eventually, soon
from tests.web.test_serve import Running, bearer, served

DEGRADED = ["analytics_ingest: 12 dead letters", "identity_provision: 35 pending (backed up)"]
"""What must be said; more may be, such as which host is down."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = make_shell(tmp_path, start_zygote())
    yield made
    made.end_all()


async def a_closed_port() -> int:
    async with receiving(b"") as receiver:
        return receiver.port


@asynccontextmanager
async def an_outage(shell: Shell) -> AsyncIterator[Running]:
    """Identity and feedback cannot be reached, and analytics has changed what it accepts."""
    (shell.folder / "redrive.toml").write_text('preset = "agent_os"\n[delivery]\nallow = ["127.0.0.1/32"]\n')
    identity, feedback = await a_closed_port(), await a_closed_port()
    async with receiving(answer("422 Unprocessable Content")) as analytics, served(shell) as running:
        running.client.headers.update(await bearer(shell))
        for queue, port, number in (
            ("analytics_ingest", analytics.port, 12),
            ("identity_provision", identity, 35),
            ("feedback", feedback, 12),
        ):
            await deliver(running, queue, f"http://127.0.0.1:{port}/", number)
        yield running


async def deliver(running: Running, queue: str, url: str, number: int) -> None:
    for n in range(number):
        request = {"method": "POST", "url": url, "json": {"n": n}}
        new = await soon(
            running.client.post("/v1/jobs", json={"task": "redrive.http", "queue": queue, "payload": request})
        )
        assert new.status_code == 201, new.text


async def every_one_has_been_tried(running: Running) -> bool:
    """None is due or runs for the first time: each has failed, is parked by a breaker, or is dead."""
    totals = (await running.client.get("/v1/stats")).json()["totals"]
    return bool(totals["due"] == totals["running"] == 0 and totals["dead"] == 12)


@pytest.mark.behaviour("000-85", "000-86", "000-87")
async def test_the_health_of_an_outage_by_rest_and_at_a_terminal(shell: Shell) -> None:
    """No job is due: what is pending waits after a failure, or is parked."""
    seen: list[dict[str, Any]] = []

    async with an_outage(shell) as running:
        await eventually(lambda: every_one_has_been_tried(running), "each was tried")

        async def by_rest() -> bool:
            """A retry that is being made at this moment is running and not pending, so it may take another look."""
            seen.append((await running.client.get("/v1/health")).json())
            return bool(seen[-1]["total_pending"] == 47)

        async def at_a_terminal() -> bool:
            seen.append((await asyncio.to_thread(shell.run, "health", "--json")).json)
            return bool(seen[-1]["total_pending"] == 47)

        for door in (by_rest, at_a_terminal):
            await eventually(door, "47 are pending")
            health = seen[-1]
            assert health.keys() >= {"status", "total_pending", "total_dead_letter", "issues"}
            assert (health["status"], health["total_dead_letter"]) == ("degraded", 12)
            assert [issue for issue in health["issues"] if issue in DEGRADED] == DEGRADED
            assert not [issue for issue in health["issues"] if issue.startswith("feedback") and "backed up" in issue]
        said = await asyncio.to_thread(shell.run, "health")
        assert said.status == 1, "twelve dead letters need a person"
        assert all(issue in said.out for issue in DEGRADED)
        queues = {queue["name"]: queue for queue in (await running.client.get("/v1/stats")).json()["queues"]}
        assert queues["identity_provision"]["dead"] == 0
