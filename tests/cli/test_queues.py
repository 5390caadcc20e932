"""queues, pause and resume, stats, health."""

import pytest

from tests.cli.shell import Shell


def test_a_paused_queue_waits_until_it_is_resumed(shell: Shell) -> None:
    id = shell.enqueue("greet", {"name": "x"})
    paused = shell.here("queues", "pause", "greet", "--why", "maintenance")
    assert paused.status == 0 and "redrive queues resume greet" in paused.out
    (row,) = [line for line in shell.here("queues").out.splitlines() if line.startswith("greet")]
    assert row.split()[1] == "yes"
    shell.drain()
    assert shell.state(id) == "waiting"
    assert shell.here("queues", "resume", "greet").status == 0
    shell.drain()
    assert shell.state(id) == "done"


def test_pausing_a_queue_that_never_had_a_job_changes_nothing_unless_it_is_said_to_be_new(shell: Shell) -> None:
    (shell.folder / "redrive.toml").write_text("[queues.feedback]\nmax_attempts = 8\n")
    shell.enqueue("greet", {"name": "x"})
    odd = shell.here("queues", "pause", "gret")
    assert odd.status == 2 and "there is no queue 'gret': no job was ever in it; the queues are greet" in odd.err
    assert {row["name"]: row["paused"] for row in shell.here("queues", "--json").json} == {"greet": False}
    again = shell.here("queues", "pause", "gret", "--new", "--json")
    assert again.json == {"queue": "gret", "paused": True} and again.err == ""
    for name in ("greet", "feedback"):  # one has a job, the other a policy
        assert shell.here("queues", "pause", name).err == ""


def test_stats_add_up(shell: Shell) -> None:
    shell.dead_letters(2)
    shell.enqueue("greet", {"name": "x"})
    out = shell.here("stats").out
    assert "accepted 3: 1 waiting + 2 dead (1 due now)" in out
    numbers = shell.here("stats", "--json").json
    assert numbers["accepted"] == 3
    assert {queue["name"]: queue["dead"] for queue in numbers["queues"]} == {"broken": 2, "greet": 0}


def test_health_by_exit_status(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "x"})
    shell.drain()
    healthy = shell.run("health")
    assert (healthy.status, healthy.out) == (0, "healthy: 0 pending, 0 dead letters\n")
    shell.dead_letters()
    degraded = shell.run("health")
    said = "degraded: 0 pending, 1 dead letter\n  broken: 1 dead letter\nWhat to do about each: redrive morning\n"
    assert (degraded.status, degraded.out) == (1, said)
    as_json = shell.run("health", "--json")
    assert as_json.status == 1
    answer = as_json.json
    needs = answer.pop("needs")
    assert [(need["kind"], need["count"], need["queue"]) for need in needs] == [("dead_manual", 1, "broken")]
    assert answer == {
        "status": "degraded", "total_pending": 0, "total_dead_letter": 1, "issues": ["broken: 1 dead letter"],
        "retrying": 0, "parked": 0, "comes_back": 0,
    }  # fmt: skip


@pytest.mark.parametrize("command", [("dead", "list"), ("jobs",), ("morning",)])
def test_that_nothing_is_in_a_queue_that_nobody_knows_is_no_good_news(shell: Shell, command: tuple[str, ...]) -> None:
    shell.enqueue("greet", {"name": "x"})
    told = shell.here(*command, "--queue", "gret")
    assert told.status == 0
    assert told.err.strip() == "warning: queue gret: no job was ever in it; the queues are greet"
    assert shell.here(*command, "--queue", "greet").err == ""
