"""Bulk redrives at a terminal: planned, asked about, moved, followed, steered."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

from tests.cli.shell import DEADLINE, Shell, ended, refused, wait_until


def cure(shell: Shell) -> None:
    """The task works from now on."""
    code = (shell.folder / "app.py").read_text("utf-8")
    assert 'raise RuntimeError("the mill is broken")' in code
    (shell.folder / "app.py").write_text(code.replace('raise RuntimeError("the mill is broken")', "return"), "utf-8")


def work(shell: Shell) -> subprocess.Popen[str]:
    """A worker that is there: it has just done a job."""
    worker = shell.start("worker", "app:rd")
    id = shell.enqueue("greet", {"name": "you"})
    wait_until(lambda: shell.state(id) == "done", "the worker's first job")
    return worker


def test_one_id_goes_at_once(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    done = shell.here("dead", "redrive", id[-8:])
    assert done.status == 0 and f"job {id[-8:]} (broken) redriven; it is waiting" in done.out
    assert shell.here("redrives", "list", "--json").json == []


def test_nothing_said_is_refused(shell: Shell) -> None:
    shell.enqueue("broken")
    refused(shell.here("dead", "redrive"), "say what to redrive")


def test_a_dry_run_shows_the_plan_and_changes_nothing(shell: Shell) -> None:
    ids = shell.dead_letters(3)
    shell.dead_letters(1, "--queue", "there")
    done = shell.here("dead", "redrive", "--queue", "broken", "--dry-run")
    assert done.status == 0
    assert "3 dead letters (queue broken): 3 would move" in done.out
    assert "RuntimeError: the mill is broken" in done.out and "queues: broken 3" in done.out
    assert "cost: unknown" in done.out
    plan = shell.here("dead", "redrive", *ids[:2], "--dry-run", "--json").json
    assert (plan["number"], plan["moving"], plan["queues"]) == (2, 2, {"broken": 2}) and len(plan["token"]) == 32
    assert {shell.state(id) for id in ids} == {"dead"}


def test_nothing_moves_unasked(shell: Shell) -> None:
    ids = shell.dead_letters(2)
    done = shell.here("dead", "redrive", "--all")
    assert done.status == 2 and "this would redrive 2 dead letters" in done.err and "--dry-run" in done.err
    assert {shell.state(id) for id in ids} == {"dead"}


def test_it_moves_without_a_worker_and_says_who_must_run_them(shell: Shell) -> None:
    ids = shell.dead_letters(3)
    done = shell.run("dead", "redrive", *ids, "--yes", "--why", "oiled it")
    assert done.status == 0, done.err
    assert "3 of 3, 0 skipped, 0 left" in done.out and "3 wait for a worker or still run" in done.out
    assert "No worker that knows these tasks runs now" in done.out
    assert {shell.state(id) for id in ids} == {"waiting"}
    (run,) = shell.here("redrives", "list", "--json").json
    assert (run["state"], run["who"], run["why"], run["moved"]) == ("settling", "ada", "oiled it", 3)


def test_the_score_is_told_when_workers_have_run_them(shell: Shell) -> None:
    ids = shell.dead_letters(4)
    worker = work(shell)
    try:
        again = shell.run("dead", "redrive", "--all", "--yes", "--json")
        assert again.status == 1, "some failed again"
        assert (again.json["state"], again.json["failed_again"]) == ("finished", 4)
    finally:
        worker.send_signal(signal.SIGTERM)
        ended(worker)
    cure(shell)
    worker = work(shell)
    try:
        done = shell.run("dead", "redrive", "--task", "broken", "--canary", "1", "--rate", "50", "--yes")
    finally:
        worker.send_signal(signal.SIGTERM)
        ended(worker)
    assert done.status == 0, (done.out, done.err)
    assert "4 succeeded, 0 failed again, 0 open" in done.out
    assert "the canary passed: 1 of 1 succeeded" in done.out and "at most 50 a second" in done.out
    assert {shell.state(id) for id in ids} == {"done"}


def test_a_canary_that_fails_is_told_and_resumed(shell: Shell) -> None:
    shell.dead_letters(4)
    started = shell.here("dead", "redrive", "--all", "--canary", "2", "--detach", "--yes", "--json")
    id = started.json["id"]
    shell.drain()
    shown = shell.here("redrives", "show", id[-8:])
    assert "paused (the canary failed: 0 of" in shown.out and f"redrive redrives resume {id[-8:]}" in shown.out
    assert shell.here("redrives", "follow", id).status == 1
    cure(shell)
    resumed = shell.here("redrives", "resume", id, "--why", "cured")
    assert resumed.status == 0 and f"redrive {id[-8:]} is canary: 2 of 4 moved" in resumed.out
    shell.drain()
    run = shell.here("redrives", "show", id, "--json").json
    assert (run["state"], run["succeeded"], run["failed_again"]) == ("finished", 2, 2)


def test_items_and_why(shell: Shell) -> None:
    first, second = shell.dead_letters(2)
    id = shell.here("dead", "redrive", first, second, "--detach", "--yes", "--json").json["id"]
    assert shell.here("dead", "discard", first).status == 0
    shell.drain()
    shown = shell.here("redrives", "show", id, "--items")
    assert "1 × is discarded; only a dead job can be redriven" in shown.out
    assert f"{second[-8:]}  broken  failed_again" in shown.out
    items = shell.here("redrives", "show", id, "--status", "skipped", "--json").json["items"]
    assert [(item["id"], item["status"]) for item in items] == [(first, "skipped")]
    assert "No items match" in shell.here("redrives", "show", id, "--status", "pending").out


def test_steering(shell: Shell) -> None:
    ids = shell.dead_letters(3)
    started = shell.here("dead", "redrive", "--all", "--detach", "--yes")
    assert "is started; the workers carry it on" in started.out
    id = started.out.split("follow it: redrive redrives follow ")[1].strip()
    assert shell.here("redrives", "pause", id, "--why", "lunch").status == 0
    assert "paused (paused by ada: lunch)" in shell.here("redrives", "show", id).out
    refused(shell.here("redrives", "pause", id), "cannot be paused")
    assert shell.here("redrives", "resume", id, "--json").json["state"] == "moving"
    assert shell.here("redrives", "cancel", id, "--json").json["over"] is True
    refused(shell.here("redrives", "cancel", id), "cannot be cancelled")
    refused(shell.here("redrives", "show", "nosuch"), "there is no redrive 'nosuch'")
    assert {shell.state(id) for id in ids} == {"dead"}
    listed = shell.here("redrives", "list")
    assert "cancelled" in listed.out and "0 of 3" in listed.out


def test_no_redrive_so_far(shell: Shell) -> None:
    shell.enqueue("broken")
    assert "No bulk redrive so far" in shell.here("redrives", "list").out


def test_nothing_like_that(shell: Shell) -> None:
    shell.enqueue("broken")
    done = shell.here("dead", "redrive", "--queue", "nowhere", "--yes")
    assert done.status == 0 and "nothing to redrive" in done.out
    assert shell.here("dead", "redrive", "--queue", "nowhere", "--yes", "--json").json["number"] == 0


def test_a_rate_that_makes_no_sense(shell: Shell) -> None:
    shell.dead_letters(2)
    for rate in ("0", "-1", "nan"):
        refused(shell.here("dead", "redrive", "--all", "--rate", rate, "--yes", "--json"), "rate:")
    refused(
        shell.here("dead", "redrive", "--all", "--canary", "1", "--pass-rate", "2", "--yes", "--json"), "pass_rate:"
    )


def test_a_group_is_named_by_its_beginning(shell: Shell) -> None:
    shell.dead_letters(2)
    (group,) = shell.here("dead", "groups", "--json").json
    done = shell.here("dead", "redrive", "--group", group["fingerprint"][:6], "--dry-run", "--json")
    assert done.json["number"] == 2 and group["fingerprint"] in done.json["chosen"]
    refused(shell.here("dead", "redrive", "--group", "zzzz", "--yes"), "there is no group 'zzzz'")


@pytest.mark.parametrize(("typed", "state"), [("y", "waiting"), ("n", "dead")])
def test_on_a_terminal_it_asks_and_draws(shell: Shell, typed: str, state: str) -> None:
    ids = shell.dead_letters(2)
    ours, theirs = pty.openpty()
    os.write(ours, f"{typed}\n".encode())
    done = subprocess.run(
        [sys.executable, "-m", "redrive", "dead", "redrive", "--all"],
        cwd=shell.folder, env=shell.environment, stdin=theirs, capture_output=True, text=True, timeout=DEADLINE,
        check=False,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert "Redrive 2 dead letters? [y/N]" in done.stderr
    assert {shell.state(id) for id in ids} == {state}


def test_ctrl_c_leaves_it_going_on_and_says_how_to_follow(shell: Shell) -> None:
    """At one in fifty seconds it would take minutes; stopped here, it is still there."""
    shell.dead_letters(3)
    child = shell.start("dead", "redrive", "--all", "--rate", "0.02", "--yes")

    def begun() -> bool:
        found = shell.here("redrives", "list", "--json").json
        return bool(found) and found[0]["moved"] == 1

    wait_until(begun, "the first move")
    child.send_signal(signal.SIGINT)
    done = ended(child)
    (run,) = shell.here("redrives", "list", "--json").json
    assert done.status == 130, (done.status, done.out, done.err)
    assert f"redrive {run['id'][-8:]} goes on where a worker runs" in done.err
    assert f"redrive redrives follow {run['id'][-8:]}" in done.err
    assert (run["state"], run["moved"], run["left"]) == ("moving", 1, 2)
