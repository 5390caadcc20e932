"""`redrive schedules`: what runs by itself, seen without the code."""

from __future__ import annotations

import asyncio

import redrive
from tests.cli.shell import Shell, refused
from tests.support import FakeClock


def fire(shell: Shell) -> None:
    """A worker sees a schedule, and an hour later its slot."""

    async def work() -> None:
        clock = FakeClock()
        async with redrive.Redrive(shell.database, clock=clock) as rd:

            @rd.task(schedule=redrive.cron("0 * * * *", tz="Europe/Rome"))
            async def nightly() -> None: ...

            for seconds in (3600.0, 0.0):
                await rd.make_scheduler(rd.make_worker()).tick()
                clock.advance(seconds)
            await rd.drain()

    asyncio.run(work())


def test_a_list_for_people(shell: Shell) -> None:
    fire(shell)
    head, row = shell.here("schedules").out.splitlines()
    assert head.split("  ")[0] == "schedule"
    for said in ("nightly#0", "0 * * * *", "Europe/Rome", "done"):
        assert said in row


def test_a_list_for_programs(shell: Shell) -> None:
    fire(shell)
    (found,) = shell.here("schedules", "--json").json
    assert (found["name"], found["task"], found["line"], found["tz"]) == (
        "nightly#0", "nightly", "0 * * * *", "Europe/Rome",
    )  # fmt: skip
    assert (found["last_slot"], found["state"]) == ("2027-01-15T09:00:00.000Z", "done")
    assert shell.job(found["job"])["reason"] == "scheduled_job"


def test_none_yet(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    assert "redrive.cron" in shell.here("schedules").out
    assert shell.here("schedules", "--json").json == []


def test_forgetting_one_that_is_gone(shell: Shell) -> None:
    fire(shell)
    refused(shell.here("schedules", "--forget", "other#0"), "other#0")
    assert "nightly#0" in shell.here("schedules", "--forget", "nightly#0").out
    assert shell.here("schedules", "--json").json == []
