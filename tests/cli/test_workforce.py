"""`redrive workers` and `redrive tasks`, and the help that groups the commands."""

from redrive.doors.cli import SECTIONS, cli
from tests.cli.shell import Shell, wait_until


def test_every_command_stands_in_one_section_of_the_help(shell: Shell) -> None:
    listed = [name for rows in SECTIONS.values() for name, *_ in rows]
    assert sorted(listed) == sorted(cli.commands) and len(listed) == len(set(listed))
    text = shell.here("--help").out
    for title in SECTIONS:
        assert f"{title}:\n" in text
    assert "redrive morning" in text.partition("Options:")[0], "the examples come first"


def test_workers_shows_who_lives_and_what_runs(shell: Shell) -> None:
    shell.enqueue("mark", {"folder": str(shell.folder), "until": str(shell.folder / "go")})
    assert "No worker is running. Start one: redrive worker APP" in shell.here("workers").out
    child = shell.start("worker", "app:rd", "--concurrency", "3")
    wait_until(lambda: any(shell.folder.glob("started-*")), "the job runs")
    wait_until(lambda: bool(shell.here("workers", "--json").json), "the worker has announced itself")
    (view,) = shell.here("workers", "--json").json
    assert view["concurrency"] == 3 and view["queues"] is None and view["since"].endswith("Z")
    assert [job["task"] for job in view["running"]] == ["mark"]
    assert "mark" in view["tasks"] and f"-{child.pid}-" in view["id"]
    assert "1 of 3" in shell.here("workers").out
    (shell.folder / "go").touch()


def test_tasks_shows_jobs_times_and_failures(shell: Shell) -> None:
    shell.dead_letters(2)
    shell.enqueue("greet", {"name": "ada"})
    shell.drain()
    shell.enqueue("nobody_knows")
    views = {view["name"]: view for view in shell.here("tasks", "--json").json}
    assert (views["broken"]["dead"], views["broken"]["failed"], views["broken"]["failure_rate"]) == (2, 2, 1.0)
    assert (views["greet"]["done"], views["greet"]["failure_rate"]) == (1, 0.0)
    assert views["greet"]["took"]["number"] == 1 and views["greet"]["took"]["p50"] >= 0
    assert (views["nobody_knows"]["waiting"], views["nobody_knows"]["workers"]) == (1, 0)
    assert views["greet"]["waited"]["p95"] >= 0 and views["broken"]["waited"] is None
    assert "100%" in shell.here("tasks").out
    queues = {queue["name"]: queue for queue in shell.here("queues", "--json").json}
    assert (queues["broken"]["failure_rate"], queues["greet"]["took"]["number"]) == (1.0, 1)
    assert "wait p95" in shell.here("queues").out and "100%" in shell.here("queues").out


def test_new_groups_are_listed_alone(shell: Shell) -> None:
    shell.dead_letters(2)
    (group,) = shell.here("dead", "groups", "--new", "hour", "--json").json
    assert group["dead"] == 2
    assert len(shell.here("dead", "groups", "--new", "deploy", "--json").json) == 1
    refused = shell.here("dead", "groups", "--new", "week")
    assert refused.status == 2 and "deploy, hour" in refused.err


def test_several_states_may_be_asked_for_at_once(shell: Shell) -> None:
    (dead,) = shell.dead_letters()
    waiting = shell.enqueue("greet", {"name": "x"})
    both = {job["id"] for job in shell.here("jobs", "--state", "dead,waiting", "--json").json["jobs"]}
    assert both == {dead, waiting}
    assert shell.here("jobs", "--state", "dead,wating").status == 2
