"""`redrive inbox SESSION`: what a session is told, read without the code."""

from __future__ import annotations

import asyncio

import redrive
from tests.cli.shell import Shell, refused
from tests.support import FakeClock


def work(shell: Shell, session: str = "s1") -> None:
    """One retry of the session ends well, one for good."""

    async def run() -> None:
        async with redrive.Redrive(shell.database, clock=FakeClock()) as rd:

            @rd.task
            async def publish(fail: bool) -> dict[str, str]:
                if fail:
                    raise redrive.GiveUp("the site is gone")
                return {"url": "https://site.example/1", "password": "hunter22"}

            for fail in (False, True):
                plan = rd._enqueuer.plan("publish", {"session_id": session}, "retry")
                await rd._enqueuer.insert_one(rd._enqueuer.prepare(plan, {"fail": fail}))
                await rd.drain()

    asyncio.run(run())


def test_a_list_for_people(shell: Shell) -> None:
    work(shell)
    head, *rows = shell.here("inbox", "s1").out.splitlines()
    assert head.split() == ["notice", "when", "kind", "status", "title", "said"]
    assert sorted("pending" if "pending" in row else "resolved" for row in rows) == ["pending", "resolved"]
    (bad,) = [row for row in rows if "retry_exhausted" in row]
    assert "publish failed for good" in bad and "the site is gone" in bad


def test_a_list_for_programs(shell: Shell) -> None:
    work(shell)
    found = {notice["kind"]: notice for notice in shell.here("inbox", "s1", "--json").json}
    good, bad = found["retry_success"], found["retry_exhausted"]
    assert (good["status"], good["level"], good["priority"]) == ("resolved", "acknowledgement", "normal")
    assert good["result"]["url"] == "https://site.example/1"
    assert "hunter22" not in str(good)
    assert (bad["status"], bad["level"], bad["priority"]) == ("pending", "actionable", "high")
    assert shell.state(bad["job_id"]) == "dead"


def test_saying_that_one_was_seen(shell: Shell) -> None:
    work(shell)
    name = next(line.split()[0] for line in shell.here("inbox", "s1").out.splitlines() if "exhausted" in line)
    assert "publish failed for good" in shell.here("inbox", "s1", "--ack", name).out
    assert [notice["kind"] for notice in shell.here("inbox", "s1", "--json").json] == ["retry_success"]
    every = shell.here("inbox", "s1", "--all", "--json").json
    assert {notice["kind"]: notice["read_at"] is not None for notice in every} == {
        "retry_success": False, "retry_exhausted": True,
    }  # fmt: skip
    said = shell.here("inbox", "s1", "--ack", "success", "--json").json
    assert said["read_at"] is not None
    assert shell.here("inbox", "s1").out == "Nothing for session s1.\n"


def test_nothing_and_nobody(shell: Shell) -> None:
    work(shell)
    assert "Nothing" in shell.here("inbox", "other").out
    assert shell.here("inbox", "other", "--json").json == []
    refused(shell.here("inbox", "s1", "--ack", "nosuch"), "nosuch")
    refused(shell.here("inbox", "s1", "--ack", "retry"), "several")


def test_inbox_without_a_session_lists_the_inboxes(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    assert "No session has a notice yet." in shell.here("inbox").out
    work(shell)
    text = shell.here("inbox").out
    assert "s1" in text and "waiting for you" in text
    (view,) = shell.here("inbox", "--json").json
    assert (view["session"], view["messages"], view["pending"]) == ("s1", 2, 1)


def test_an_owner_s_inbox_is_found_by_the_owner_s_name(shell: Shell) -> None:
    work(shell, "owner:editor")
    assert len(shell.here("inbox", "editor", "--json").json) == 2
    assert shell.here("inbox", "editor", "--json").json == shell.here("inbox", "owner:editor", "--json").json
