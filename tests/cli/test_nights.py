"""Scripts as cron starts them, one process each, and `redrive` at a terminal the next morning."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Done, Shell

SCRIPT = """
    import json, os, signal, sys
    from pathlib import Path

    import redrive

    class RateLimited(Exception):
        status_code = 429

    def publish(site: str, article: str) -> str:
        with open("calls", "a") as calls:
            calls.write(f"{article}\\n")
        trouble = json.loads(Path("world.json").read_text()).get(article, [])
        tries = Path("calls").read_text().splitlines().count(article)
        kind = trouble[min(tries, len(trouble)) - 1] if trouble else "fine"
        if kind == "blip":
            raise ConnectionResetError("a blip")
        if kind == "limited":
            raise RateLimited("slow down")
        if kind == "malformed":
            raise TypeError("the template has no title")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        with open("published", "a") as published:
            published.write(f"{article}\\n")
        return article

    with redrive.Redrive().cycle("nightly", sys.argv[1]) as night:
        for site, article in json.loads(sys.argv[2]).items():
            print(site, night.run(publish, site, article, job_id=site).status)
    sys.exit(night.exit_code)
"""


class Nights:
    """A script, the world that it meets, and what came of it."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.folder = shell.folder
        (self.folder / "night.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
        self.world({})

    def world(self, troubles: dict[str, list[str]]) -> None:
        """By article, what each try meets; the last one goes on."""
        (self.folder / "world.json").write_text(json.dumps(troubles))

    def run(self, cycle_id: str, articles: dict[str, str]) -> Done:
        return self.shell.run("night.py", cycle_id, json.dumps(articles))

    def lines(self, name: str) -> list[str]:
        path = Path(self.folder, name)
        return path.read_text().splitlines() if path.exists() else []

    def records(self) -> dict[str, dict[str, Any]]:
        """What `redrive dead export` writes, by the article it is about."""
        done = self.shell.run("dead", "export", "-")
        assert done.status == 0, done.err
        found = [json.loads(line) for line in done.out.splitlines()]
        return {record["payload"]["article"]: record for record in found}

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Every job with its history, by its article."""
        listed = self.shell.run("jobs", "--json").json["jobs"]
        found = [self.shell.job(job["id"]) for job in listed]
        return {job["payload"]["article"]: job for job in found}


@pytest.fixture
def nights(shell: Shell) -> Nights:
    return Nights(shell)


@pytest.mark.behaviour("001-18")
def test_each_tier_is_reached_and_named_in_the_record(nights: Nights) -> None:
    """A blip is over on the spot, a rate limit comes back in the next cycle, a malformed input waits for a person."""
    nights.world({"a1": ["blip", "fine"], "b1": ["limited", "fine"], "c1": ["malformed"]})
    done = nights.run("n1", {"a": "a1", "b": "b1", "c": "c1"})
    assert (done.status, done.out.splitlines()[:3]) == (1, ["a done", "b diverted", "c needs_you"]), done.err
    assert nights.lines("calls") == ["a1", "a1", "b1", "c1"], "only the blip is tried again on the spot"
    jobs, records = nights.jobs(), nights.records()
    assert (jobs["a1"]["state"], jobs["a1"]["history"][0]["tier"]) == ("done", "immediate")
    assert {name: (jobs[name]["lane"], record["lane"]) for name, record in records.items()} == {
        "b1": ("delayed", "delayed"), "c1": ("manual", "manual"),
    }  # fmt: skip
    assert "comes back by itself" in records["b1"]["recommendation"]
    assert "comes back" not in records["c1"]["recommendation"]
    again = nights.run("n2", {"a": "a2"})
    assert (again.status, nights.lines("published")) == (0, ["a1", "b1", "a2"]), again.err
    assert nights.records().keys() == {"c1"}, "nothing but a person brings that one back"


@pytest.mark.behaviour("001-26", "001-18")
def test_the_fifth_failed_night_is_for_a_person_and_the_record_says_so(nights: Nights) -> None:
    """Each night has an article of its own. The first one is never published, and is tried in every night."""
    nights.world({"day 1": ["limited"]})
    seen = []
    for night in range(1, 7):
        done = nights.run(f"n{night}", {"front": f"day {night}"})
        assert done.status in (0, 1), done.err
        record = nights.records()["day 1"]
        seen.append((record["attempt"], record["lane"]))
    assert seen == [(1, "delayed"), (2, "delayed"), (3, "delayed"), (4, "delayed"), (5, "manual"), (5, "manual")]
    assert nights.lines("calls").count("day 1") == 5, "the sixth night does not try it"
    assert "by itself" not in record["recommendation"], record["recommendation"]
    assert nights.lines("published") == [f"day {night}" for night in range(2, 7)], "nothing was dropped beside it"


@pytest.mark.behaviour("001-26")
def test_the_fifth_recorded_failure_is_for_a_person_and_no_longer_advises_waiting(shell: Shell) -> None:
    """`to_dead_letter` in five runs of a script that has nothing else of redrive."""
    code = "import sys, redrive; redrive.to_dead_letter('report', {'article': 'q3'}, TimeoutError(sys.argv[1]))"
    seen = []
    for night in range(1, 6):
        assert shell.run("-c", code, f"night {night}").status == 0
        (record,) = [json.loads(line) for line in shell.run("dead", "export", "-").out.splitlines()]
        seen.append((record["attempt"], record["lane"], record["error"]))
    assert seen == [(n, "delayed" if n < 5 else "manual", f"TimeoutError: night {n}") for n in range(1, 6)]
    assert "heals by waiting" not in record["recommendation"], record["recommendation"]


@pytest.mark.behaviour("001-24")
def test_what_was_done_in_this_cycle_is_skipped_and_counted(nights: Nights) -> None:
    """The script is killed in its third job of four; its second start does what is left, and nothing twice."""
    articles = {"a": "a1", "b": "b1", "c": "c1", "d": "d1"}
    nights.world({"c1": ["kill", "fine"]})
    assert nights.run("n1", articles).status == -9
    assert nights.lines("published") == ["a1", "b1"]
    second = nights.run("n1", articles)
    assert second.status == 0, second.err
    assert second.out.splitlines()[:2] == ["a skipped", "b skipped"]
    assert "4 jobs" in second.out.splitlines()[-1], "each once, whoever brought it back"
    assert "2 already done" in second.out.splitlines()[-1]
    assert sorted(nights.lines("published")) == ["a1", "b1", "c1", "d1"]
    third = nights.run("n1", articles)
    assert (third.status, third.out.splitlines()[:-1]) == (0, [f"{site} skipped" for site in articles])
    assert len(nights.lines("published")) == 4


@pytest.mark.behaviour("001-24")
def test_another_input_under_an_id_that_is_done_is_never_skipped(nights: Nights) -> None:
    """In the same cycle it is refused and kept for a person; in another cycle it is another job."""
    assert nights.run("n1", {"front": "monday"}).status == 0
    same = nights.run("n1", {"front": "monday, corrected"})
    assert (same.status, same.out.splitlines()[0]) == (1, "front needs_you"), same.out
    record = nights.records()["monday, corrected"]
    assert (record["lane"], record["reason"]) == ("manual", "conflicting_input")
    other = nights.run("n2", {"front": "tuesday"})
    assert other.out.splitlines()[0] == "front done", other.out
    assert nights.lines("published") == ["monday", "tuesday"]
