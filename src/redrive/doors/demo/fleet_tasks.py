"""Defines the tasks of the fleet demo: `redrive worker redrive.doors.demo.fleet_tasks:rd --agents cto`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import redrive

SKILLS: Final = {
    "cto": "architecture",
    "backend": "implementation",
    "frontend": "ui_review",
    "marketing": "content_creation",
    "devops": "deployment",
    "cso": "security_review",
    "ceo": "triage",
}
"""The seven agents, and the kind of work that each gets here."""
COMES_BACK: Final = 4.0
LEASE: Final = 6.0

# Short waits, so that a minute shows what otherwise takes hours. A worker that died is noticed by its lease.
rd = redrive.Redrive(
    os.environ.get("REDRIVE_URL", ":memory:"),
    preset="seven_agents",
    agent_policy={"max_attempts": 3, "base": 0.3, "cap": 1.0, "comebacks": (COMES_BACK, 2 * COMES_BACK)},
)


async def work(ctx: redrive.Context, number: int) -> str:
    """Do a piece of an agent's work; some providers answer late, and one task is given to the wrong agent."""
    await asyncio.sleep(0.05 + number % 5 / 50)
    if number % 10 == 3 and ctx.attempt == 1:
        raise TimeoutError("the model did not answer in time")
    if number == 5 and not _recovered(ctx.job.id):
        raise ConnectionError("the provider is down")
    if number == 7 and ctx.agent in ("frontend", "marketing"):
        raise PermissionError(f"{ctx.agent} may not push to this repository")
    _note(ctx.job.id)
    return f"{ctx.agent}: {number}"


def _ledger() -> Path:
    return Path(os.environ["REDRIVE_DEMO_LEDGER"])


def _recovered(job: str) -> bool:
    """Simulate a provider that is down for the first three tries of a job, on whatever machine they run."""
    tries = _ledger() / f"{job}.tries"
    with tries.open("a", encoding="ascii") as file:
        file.write("x")
    return tries.stat().st_size > 3


def _note(job: str) -> None:
    """Record a finished job in a ledger outside the store."""
    with (_ledger() / "finished").open("a", encoding="ascii") as file:
        file.write(f"{job}\n")


for _name in sorted(set(SKILLS.values())):
    rd.task(_name, lease=LEASE)(work)
