"""Every run of a cycle leaves a record, by which a night that did not happen is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import InvalidOption, Redrive
from redrive.scripts.cycle_history import Finding
from redrive.scripts.cycle_records import CYCLE_RUN, KEPT
from tests.support import DEADLINE, FakeClock, eventually, process

DAY = 86_400.0
HOUR = 3_600.0
NIGHT = 1_800_007_200.0  # 2027-01-15 10:00 UTC


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NIGHT)


@pytest.fixture
def nightly(database: Path, clock: FakeClock) -> Redrive:
    return Redrive(database, clock=clock)


def publish(name: int) -> int:
    return name


def night(rd: Redrive, clock: FakeClock, jobs: int = 4, *, leave: Callable[[], Any] | None = None, **how: Any) -> None:
    """One night of so many jobs; a day passes. `leave` ends the script inside its block."""
    try:
        with rd.cycle("nightly", quiet=True, **how) as cycle:
            for number in range(jobs):
                cycle.run(publish, name=number)
            if leave is not None:
                leave()
    finally:
        clock.advance(DAY)


def findings(rd: Redrive) -> list[Finding]:
    with rd.blocking() as q:
        return q.run(rd.cycle_findings())


def sentences(rd: Redrive) -> list[str]:
    return [finding.sentence for finding in findings(rd)]


def last(rd: Redrive) -> Any:
    with rd.blocking() as q:
        (standing,) = q.run(rd.cycles())
    return standing.last


@pytest.mark.behaviour("T-3b")
def test_a_script_that_dies_by_an_exception(nightly: Redrive, clock: FakeClock) -> None:
    for _ in range(3):
        night(nightly, clock)
    assert findings(nightly) == []
    with pytest.raises(ZeroDivisionError):
        night(nightly, clock, 1, leave=lambda: 1 / 0)
    assert sentences(nightly) == [
        "nightly 2027-01-18 died after 1 of its usual 4 jobs (ZeroDivisionError); start it again"
    ]
    night(nightly, clock)
    assert findings(nightly) == [], "the next one ran"


@pytest.mark.behaviour("T-3b")
def test_the_morning_of_one_queue_tells_of_its_own_cycle_alone(nightly: Redrive, clock: FakeClock) -> None:
    with pytest.raises(ZeroDivisionError):
        night(nightly, clock, 1, leave=lambda: 1 / 0)
    with nightly.cycle("hourly", quiet=True) as other:
        other.run(publish, name=1)
    with nightly.blocking() as q:
        mornings = [q.run(nightly.morning(queue=queue)) for queue in ("cycle:nightly", "cycle:hourly")]
    assert [[need.kind for need in morning.needs] for morning in mornings] == [["cycle_died"], []]


@pytest.mark.behaviour("T-3a")
def test_a_cron_that_no_longer_starts(nightly: Redrive, clock: FakeClock) -> None:
    for _ in range(12):
        night(nightly, clock)
    assert findings(nightly) == []
    clock.advance(5 * HOUR)
    assert sentences(nightly) == ["nightly ran about 10:00 on 12 days, not today"]
    with nightly.cycle("nightly", quiet=True):
        assert findings(nightly) == [], "it has begun"


@pytest.mark.behaviour("T-3a")
def test_what_the_script_says_of_its_rhythm(nightly: Redrive, clock: FakeClock) -> None:
    night(nightly, clock, every="1d")
    clock.advance(13 * HOUR)
    assert [finding.kind for finding in findings(nightly)] == ["cycle_missing"]
    night(nightly, clock, every=None)
    clock.advance(100 * DAY)
    assert findings(nightly) == [], "turned off"


@pytest.mark.behaviour("T-3c")
def test_fewer_jobs_than_usual(nightly: Redrive, clock: FakeClock) -> None:
    for _ in range(4):
        night(nightly, clock)
    night(nightly, clock, 1)
    assert sentences(nightly) == ["nightly 2027-01-19 had 1 job, usually 4"]


def test_what_was_done_before_counts_for_the_number_of_jobs(nightly: Redrive, clock: FakeClock) -> None:
    for _ in range(4):
        night(nightly, clock)
    clock.advance(-DAY)
    night(nightly, clock)
    assert (last(nightly).jobs, findings(nightly)) == (4, []), "started again: everything is done already"


@pytest.mark.behaviour("T-3b")
def test_a_script_that_was_killed_is_told_while_no_worker_lives(
    database: Path, clock: FakeClock, nightly: Redrive
) -> None:
    for _ in range(4):
        night(nightly, clock)
    script = """
        import sys, redrive
        from tests.support import FakeClock
        def publish(name): return name
        rd = redrive.Redrive(sys.argv[1], clock=FakeClock(float(sys.argv[2])))
        with rd.cycle("nightly", quiet=True) as cycle:
            cycle.run(publish, name=0)
            print("one is done", flush=True)
            sys.stdin.readline()
    """
    with process(script, database, clock.now()) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "one is done\n"
        assert (last(nightly).outcome, findings(nightly)) == ("under_way", []), "it lives"
        child.kill()
        assert child.wait(DEADLINE) == -9
    assert sentences(nightly) == ["nightly 2027-01-19 died after 1 of its usual 4 jobs; start it again"]
    clock.advance(9 * DAY)
    assert [finding.kind for finding in findings(nightly)] == ["cycle_missing", "cycle_died"]


def test_a_script_that_was_interrupted(nightly: Redrive, clock: FakeClock) -> None:
    def ctrl_c() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        night(nightly, clock, 2, leave=ctrl_c)
    assert sentences(nightly) == ["nightly 2027-01-15 was interrupted after 2 jobs (KeyboardInterrupt); start it again"]


def test_a_job_that_is_given_back_had_no_turn(nightly: Redrive, clock: FakeClock) -> None:
    def interrupt() -> None:
        """Another process sends the signal, as a terminal does: what a task sends to itself is its own failure."""
        with subprocess.Popen(["kill", "-INT", str(os.getpid())]):
            threading.Event().wait(DEADLINE)

    with pytest.raises(KeyboardInterrupt), nightly.cycle("nightly", quiet=True) as cycle:
        cycle.run(publish, name=1)
        cycle.run(interrupt)
    assert (last(nightly).outcome, last(nightly).jobs) == ("interrupted", 1)


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "ended"), (1, "ended"), (None, "ended"), (3, "died"), ("the config is missing", "died")]
)
def test_an_exit_inside_the_block(nightly: Redrive, clock: FakeClock, code: Any, outcome: str) -> None:
    with pytest.raises(SystemExit):
        night(nightly, clock, 1, leave=lambda: sys.exit(code))
    assert last(nightly).outcome == outcome


async def test_inside_an_event_loop(database: Path) -> None:
    async with Redrive(database) as rd:
        async with rd.cycle("nightly", quiet=True) as cycle:
            (standing,) = await rd.cycles()
            assert standing.last.outcome == "under_way"
            await cycle.run(publish, name=1)
        (standing,) = await rd.cycles()
    assert (standing.last.outcome, standing.last.jobs) == ("ended", 1)


async def test_a_record_counts_while_the_cycle_runs(database: Path) -> None:
    async with Redrive(database) as rd, rd.cycle("nightly", quiet=True) as cycle:
        for number in range(3):
            await cycle.run(publish, name=number)
            (standing,) = await rd.cycles()
            assert standing.last.jobs == number + 1


def test_a_record_has_no_words_of_jobs(nightly: Redrive, clock: FakeClock) -> None:
    def broken(name: str) -> None:
        raise ValueError(f"canary in {name}")

    def leave() -> None:
        raise RuntimeError("canary of the script")

    with pytest.raises(RuntimeError), nightly.cycle("nightly", quiet=True) as cycle:
        cycle.run(broken, name="canary", job_id="canary")
        leave()
    with nightly.blocking() as q:
        (document,) = q.run(nightly.store.docs(CYCLE_RUN.name))
    assert b"canary" not in document.value
    assert json.loads(document.value)["error_class"] == "RuntimeError"


def test_only_the_newest_records_are_kept(nightly: Redrive, clock: FakeClock) -> None:
    for _ in range(KEPT + 5):
        night(nightly, clock, 0)
    with nightly.blocking() as q:
        assert len(q.run(nightly.store.docs(CYCLE_RUN.name))) == KEPT
    assert last(nightly).begun == clock.now() - DAY


def test_cycles_with_names_that_begin_alike_are_apart(nightly: Redrive, clock: FakeClock) -> None:
    for name in ("site", "site/north"):
        with nightly.cycle(name, quiet=True):
            pass
    with nightly.blocking() as q:
        assert [standing.name for standing in q.run(nightly.cycles())] == ["site", "site/north"]
        assert q.run(nightly.forget_cycle("site"))
        assert [standing.name for standing in q.run(nightly.cycles())] == ["site/north"]
        assert not q.run(nightly.forget_cycle("site"))


def test_a_rhythm_that_cannot_be(nightly: Redrive) -> None:
    with pytest.raises(InvalidOption) as raised:
        nightly.cycle("nightly", every="daily")
    assert raised.value.field == "every"


async def test_a_store_that_takes_no_record_does_not_spoil_the_night(
    database: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def full(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr("redrive.scripts.cycle_records._write", full)
    async with Redrive(database) as rd, rd.cycle("nightly", quiet=True) as cycle:
        assert (await cycle.run(publish, name=1)).status == "done"
    await eventually(lambda: "no room" in caplog.text, "it is told")
