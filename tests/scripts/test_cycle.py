"""Scripts without a server: `with rd.cycle("nightly") as night: night.run(publish, site=site)`."""

import _thread
import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive
from redrive import Adapt, InvalidOption, InvalidPayload, Job, Pain, Policy, Redrive
from redrive.core.job import keyed_id
from redrive.core.store import Commit, Filter, Put, Wanted
from redrive.scripts.cycle_rules import CycleNote, Summary, cycle_at, key_of, names_of
from tests import elsewhere
from tests.support import DEADLINE, FakeClock, ctrl_c, eventually, process, soon

DAY = 86_400.0


class Answered(Exception):
    """An HTTP client's error, as most libraries make it."""

    def __init__(self, status: int, message: str = "", **headers: str) -> None:
        super().__init__(message or f"answered {status}")
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Unheard(Exception):
    """What no rule knows."""


class Poison(BaseException):
    """What `except Exception` does not see."""


class Site:
    """Something to publish to. Raises what it is told to, in order; then it works."""

    def __init__(self) -> None:
        self.troubles: dict[str, list[BaseException]] = {}
        self.calls: list[str] = []
        self.deeds: dict[str, Callable[[], object]] = {}

    def does(self, name: str, deed: Callable[[], object]) -> None:
        """Do that the first time."""
        self.deeds[name] = deed

    def fails(self, name: str, *errors: BaseException) -> None:
        self.troubles[name] = list(errors)

    def publish(self, name: str) -> str:
        self.calls.append(name)
        self.deeds.pop(name, lambda: None)()
        if self.troubles.get(name):
            raise self.troubles[name].pop(0)
        return f"/{name}"


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def nightly(database: Path, clock: FakeClock) -> Redrive:
    return Redrive(database, clock=clock)


Night = Callable[..., Any]
SetHandler = Callable[[signal.Signals, Callable[..., object]], None]


@pytest.fixture
def set_handler() -> Iterator[SetHandler]:
    before: dict[signal.Signals, Any] = {}

    def set_it(number: signal.Signals, handler: Callable[..., object]) -> None:
        before[number] = signal.signal(number, handler)

    yield set_it
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def night(nightly: Redrive, clock: FakeClock, waits: list[float]) -> Night:
    """A cycle whose waits take no time but pass on the clock."""

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(seconds)

    return lambda name="nightly", cycle_id=None, **how: nightly.cycle(name, cycle_id, **{"wait": wait, **how})


def all_jobs(rd: Redrive, **filters: Any) -> list[Job]:
    async def look() -> list[Job]:
        found = (await rd.store.find(Filter(**filters), limit=1000, oldest=True)).jobs
        return await rd.store.get([job.id for job in found])

    with rd.blocking() as q:
        return q.run(look())


def one_job(rd: Redrive, **filters: Any) -> Job:
    (job,) = all_jobs(rd, **filters)
    return job


# ---- the sum


@pytest.mark.behaviour("001-1", "001-42")
def test_a_night_without_trouble(
    night: Night, site: Site, nightly: Redrive, capsys: pytest.CaptureFixture[str]
) -> None:
    with night(cycle_id="2031-05-17") as cycle:
        results = [cycle.run(site.publish, name=name) for name in ("a", "b", "c")]
    assert [result.status for result in results] == ["done"] * 3
    assert [result.value for result in results] == ["/a", "/b", "/c"]
    assert all(results) and cycle.exit_code == 0
    assert capsys.readouterr().out == "nightly 2031-05-17: 3 jobs: 3 done\n"
    assert {(job.state, job.queue, job.task) for job in all_jobs(nightly)} == {("done", "cycle:nightly", "publish")}


@pytest.mark.behaviour("001-1", "001-3", "001-7")
def test_what_fails_is_counted_and_the_exit_status_says_so(
    night: Night, site: Site, nightly: Redrive, capsys: pytest.CaptureFixture[str]
) -> None:
    site.fails("b", *[Answered(503)] * 3)
    site.fails("c", PermissionError("no"))
    with night(cycle_id="n1") as cycle:
        statuses = [cycle.run(site.publish, name=name).status for name in ("a", "b", "c", "a")]
        assert cycle.exit_code == 1, "known before the end, too"
    assert statuses == ["done", "diverted", "needs_you", "skipped"]
    summary = cycle.summary
    assert (summary.accepted, summary.done, summary.skipped, summary.diverted, summary.needs_you) == (4, 1, 1, 1, 1)
    assert cycle.exit_code == 1
    assert capsys.readouterr().out == (
        "nightly n1: 4 jobs: 1 done, 1 already done, 1 comes back next cycle, 1 needs you → redrive morning\n"
    )
    assert sorted(job.state for job in all_jobs(nightly)) == ["dead", "dead", "done"]


def test_a_quiet_cycle_says_nothing(night: Night, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with night(quiet=True) as cycle:
        cycle.run(site.publish, name="a")
    assert capsys.readouterr().out == ""
    assert str(cycle.summary).endswith("1 job: 1 done")


def test_an_error_of_the_script_itself_goes_on_and_the_sum_is_told(
    night: Night, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ZeroDivisionError), night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a")
        1 / 0  # noqa: B018
    assert capsys.readouterr().out == "nightly n1: 1 job: 1 done\n"


def test_nothing_to_do_is_fine(night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    with night(cycle_id="n1") as cycle:
        pass
    assert cycle.exit_code == 0
    assert capsys.readouterr().out == "nightly n1: 0 jobs: nothing to do\n"


@pytest.mark.parametrize("status", ["done", "skipped", "diverted", "needs_you", "running_elsewhere", "discarded"])
def test_only_what_is_done_makes_a_good_night(status: str) -> None:
    summary = Summary("nightly", "n1", **{status: 2})  # type: ignore[arg-type]
    assert summary.exit_code == (0 if status in ("done", "skipped") else 1)
    assert summary.accepted == 2 and "2 jobs: 2 " in summary.line


# ---- on the spot


@pytest.mark.behaviour("001-20", "001-21", "001-22", "C25")
def test_what_heals_at_once_is_tried_three_times_on_the_spot_and_no_more(
    night: Night, site: Site, nightly: Redrive, waits: list[float]
) -> None:
    site.fails("a", *[Answered(503)] * 9)
    with night() as cycle:
        result = cycle.run(site.publish, name="a")
        assert cycle.run(site.publish, name="a").status == "diverted", "asked again, not tried again"
    assert (result.status, site.calls, waits) == ("diverted", ["a"] * 3, [0.5, 1.0])
    job = one_job(nightly)
    assert (job.attempts, job.run, job.lane, job.because) == (3, 3, "delayed", "diverted")
    assert [attempt.tier for attempt in job.history] == ["immediate", "immediate", None]
    assert cycle.summary.diverted == 1


@pytest.mark.behaviour("001-4", "001-20")
@pytest.mark.parametrize("error", [Answered(503), TimeoutError("slow"), ConnectionResetError("blip")])
def test_a_blip_is_over_at_the_second_try(
    night: Night, site: Site, nightly: Redrive, waits: list[float], error: Exception
) -> None:
    site.fails("a", error)
    with night() as cycle:
        result = cycle.run(site.publish, name="a")
    assert (result.status, result.value, waits) == ("done", "/a", [0.5])
    job = one_job(nightly)
    assert job.attempts == 2
    cause = job.history[0].cause
    assert cause is not None and cause.rule not in ("", "no_rule")


def test_waits_are_real_unless_said_otherwise(database: Path, site: Site) -> None:
    rd, due = Redrive(database), []
    rd.subscribe("retry", lambda event: due.append(event.data["run_at"]))
    site.fails("a", TimeoutError("slow"))
    with rd.cycle("nightly", quiet=True) as cycle:
        cycle.run(site.publish, name="a")
    started = one_job(rd).started_at
    assert started is not None and started > due[0] - 0.1, "not before it was due"


# ---- the lanes


@pytest.mark.behaviour("001-4", "001-5", "001-18", "001-23")
@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Answered(429, retry_after="30"), id="rate limit"),
        pytest.param(Answered(401, "token expired"), id="expired token"),
        pytest.param(Answered(529), id="overloaded"),
    ],
)
def test_what_heals_later_comes_back_in_the_next_cycle(
    night: Night, site: Site, nightly: Redrive, waits: list[float], error: Exception
) -> None:
    site.fails("a", error)
    with night(cycle_id="n1") as first:
        assert first.run(site.publish, name="a").status == "diverted"
        assert waits == [], "not on the spot"
    letter = one_job(nightly)
    assert (letter.state, letter.lane) == ("dead", "delayed")
    attempt = letter.history[-1]
    assert attempt.decision and attempt.cause is not None and attempt.cause.rule not in ("", "no_rule")
    with night(cycle_id="n2") as second:
        again = second.run(site.publish, name="a")
    assert (again.status, again.value) == ("skipped", "/a"), "it had its turn when it came back"
    assert site.calls == ["a", "a"]
    job = one_job(nightly)
    assert (job.id, job.state, job.attempts) == (letter.id, "done", 2)
    assert (second.summary.done, second.summary.skipped, second.summary.brought_back) == (1, 0, 1), (
        "one job counts once"
    )
    assert second.exit_code == 0


@pytest.mark.behaviour("001-19", "001-25")
@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Answered(422, "malformed"), id="malformed input"),
        pytest.param(redrive.InvalidInput(field="price", problem="is no number"), id="schema"),
        pytest.param(PermissionError("read only"), id="permission"),
        pytest.param(Unheard("never seen"), id="unexpected"),
        pytest.param(AttributeError("no such name"), id="bug"),
        pytest.param(redrive.GiveUp("hopeless"), id="gave up"),
    ],
)
def test_what_does_not_heal_waits_for_a_person(
    night: Night, site: Site, nightly: Redrive, waits: list[float], error: BaseException
) -> None:
    site.fails("a", *[error] * 9)
    with night(cycle_id="n1") as first:
        result = first.run(site.publish, name="a")
    assert (result.status, site.calls, waits) == ("needs_you", ["a"], [])
    assert result.error and result.recommendation
    with night(cycle_id="n1") as again:
        assert again.run(site.publish, name="a").status == "needs_you", "not tried again in this cycle"
    with night(cycle_id="n2") as other:
        other.run(Site().publish, name="other")
    assert site.calls == ["a"], "nothing brought it back"
    assert one_job(nightly, lane="manual").attempts == 1


@pytest.mark.behaviour("001-13", "001-26", "001-29", "C20")
def test_tries_add_up_over_the_cycles_and_at_five_a_person_looks(night: Night, site: Site, nightly: Redrive) -> None:
    site.fails("a", *[Answered(429)] * 9)
    seen = []
    for number in range(1, 7):
        with night(cycle_id=f"n{number}") as cycle:
            cycle.run(site.publish, name="a", job_id="a")
        job = next(job for job in all_jobs(nightly) if job.key == key_of("cycle:nightly", "publish", "a", "n1"))
        seen.append((job.attempts, job.lane))
    assert seen == [(1, "delayed"), (2, "delayed"), (3, "delayed"), (4, "delayed"), (5, "manual"), (5, "manual")]


@pytest.mark.behaviour("001-29")
def test_the_cap_goes_before_what_heals_on_the_spot(night: Night, site: Site, nightly: Redrive) -> None:
    site.fails("a", *[TimeoutError("slow")] * 9)
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a")
    with night(cycle_id="n2") as cycle:
        assert cycle.run(site.publish, name="a").status == "needs_you"
    job = one_job(nightly)
    assert (job.attempts, job.lane, job.because) == (5, "manual", "attempts_exhausted")
    assert len(site.calls) == 5


def test_a_changed_try_is_made_when_it_comes_back(night: Night, nightly: Redrive) -> None:
    seen: list[int] = []

    @nightly.task(adapt=Adapt(messages="messages"))
    def answer(messages: list[dict[str, str]]) -> str:
        seen.append(sum(len(message["content"]) for message in messages))
        if len(seen) == 1:
            raise Answered(400, "prompt is too long: 210000 tokens > 200000 maximum")
        return "short"

    talk = [{"role": "user", "content": "word " * 20_000} for _ in range(5)]
    with night(cycle_id="n1") as cycle:
        assert cycle.run(answer, messages=talk).status == "diverted"
    with night(cycle_id="n2") as cycle:
        assert cycle.run(answer, messages=talk).status == "skipped"
    assert len(seen) == 2 and seen[1] < seen[0]
    job = one_job(nightly)
    assert job.state == "done" and job.changes and job.arguments == {"messages": talk}


def test_what_fails_with_every_change_in_the_same_way_is_for_a_person(night: Night, nightly: Redrive) -> None:
    @nightly.task(adapt=Adapt(messages="messages"))
    def answer(messages: list[dict[str, str]]) -> str:
        raise Answered(400, "prompt is too long: 210000 tokens > 200000 maximum")

    talk = [{"role": "user", "content": "word " * 20_000} for _ in range(5)]
    for cycle_id in ("n1", "n2", "n3", "n4", "n5"):
        with night(cycle_id=cycle_id) as cycle:
            cycle.run(answer, messages=talk, job_id="a")
    first = next(job for job in all_jobs(nightly) if job.key == key_of("cycle:nightly", "answer", "a", "n1"))
    assert (first.lane, first.attempts) == ("manual", 4)


# ---- once in a cycle


@pytest.mark.behaviour("C22")
def test_a_job_is_done_once_in_a_cycle_and_again_in_the_next(night: Night, site: Site, nightly: Redrive) -> None:
    for cycle_id in ("n1", "n1", "n2"):
        with night(cycle_id=cycle_id) as cycle:
            result = cycle.run(site.publish, name="a", job_id="front-page")
        assert result.value == "/a"
    assert site.calls == ["a", "a"]
    assert [job.key for job in all_jobs(nightly)] == ["nightly/publish:front-page@n1", "nightly/publish:front-page@n2"]


def test_the_second_start_counts_what_was_done_as_skipped(night: Night, site: Site) -> None:
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a")
    with night(cycle_id="n1") as cycle:
        assert cycle.run(site.publish, name="a").status == "skipped"
        assert cycle.run(site.publish, name="b").status == "done"
    assert (cycle.summary.accepted, cycle.summary.done, cycle.summary.skipped) == (2, 1, 1)
    assert cycle.exit_code == 0


@pytest.mark.behaviour("C22")
def test_once_for_ever(night: Night, site: Site) -> None:
    for cycle_id in ("n1", "n2"):
        with night(cycle_id=cycle_id) as cycle:
            cycle.run(site.publish, name="a", repeat="never")
    with night(cycle_id="n3", repeat="never") as cycle:
        assert cycle.run(site.publish, name="a").status == "skipped"
    assert site.calls == ["a"]


def test_once_for_ever_comes_back_after_a_failure(night: Night, site: Site) -> None:
    site.fails("a", Answered(429))
    statuses = []
    for cycle_id in ("n1", "n2", "n3"):
        with night(cycle_id=cycle_id) as cycle:
            statuses.append(cycle.run(site.publish, name="a", repeat="never").status)
    assert statuses == ["diverted", "skipped", "skipped"]
    assert site.calls == ["a", "a"]


def test_a_failure_of_what_came_back_is_this_cycles_failure(night: Night, site: Site, nightly: Redrive) -> None:
    site.fails("a", Answered(429), Answered(429))
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a")
    for _ in range(2):
        with night(cycle_id="n2") as cycle:
            assert cycle.run(site.publish, name="a").status == "diverted"
        assert (cycle.summary.accepted, cycle.summary.diverted, cycle.exit_code) == (1, 1, 1)
    assert site.calls == ["a", "a"], "one try in each cycle, however often the script is started"
    with night(cycle_id="n3") as cycle:
        cycle.run(site.publish, name="a")
    assert one_job(nightly).state == "done"


def test_what_came_back_and_worked_is_not_done_again_in_the_same_cycle(night: Night, site: Site) -> None:
    site.fails("a", Answered(429))
    statuses = []
    for cycle_id in ("n1", "n2", "n2", "n3"):
        with night(cycle_id=cycle_id) as cycle:
            statuses.append(cycle.run(site.publish, name="a").status)
    assert statuses == ["diverted", "skipped", "skipped", "done"]
    assert len(site.calls) == 3


def test_the_oldest_letters_come_first_and_before_new_work(night: Night, site: Site, clock: FakeClock) -> None:
    for name in ("c", "b"):
        site.fails(name, Answered(429))
        with night(cycle_id=f"made {name}") as cycle:
            cycle.run(site.publish, name=name)
        clock.advance(60)
        site.fails(name, Answered(429))
    site.fails("c")
    site.fails("b")
    site.calls.clear()
    with night(cycle_id="last") as cycle:
        cycle.run(site.publish, name="a")
    assert site.calls == ["c", "b", "a"]


def test_a_tasks_own_key_names_its_jobs(night: Night, nightly: Redrive) -> None:
    @nightly.task(idempotency_key="slot-{slot}")
    def fill(slot: int, at: float) -> None: ...

    with night(cycle_id="n1") as cycle:
        assert cycle.run(fill, 1, at=0.5).job_id == "slot-1"
        assert cycle.run(fill, 1, at=0.5).status == "skipped"
        assert cycle.run(fill, 1, at=0.7).status == "needs_you", "one key, another input: as for enqueue"


def test_a_function_with_a_parameter_named_job_id_gets_it(night: Night) -> None:
    seen = []

    def publish(job_id: str, repeat: int = 1) -> None:
        seen.append((job_id, repeat))

    with night() as cycle:
        assert cycle.run(publish, job_id="x", repeat=3).job_id == "x"
    assert seen == [("x", 3)]


# ---- another input for a known job_id


def kept(rd: Redrive) -> list[Job]:
    """Inputs that a cycle refused."""
    return [job for job in all_jobs(rd, states=("dead",), lane="manual") if job.because == "conflicting_input"]


@pytest.mark.behaviour("T-4a")
@pytest.mark.parametrize("starts", [1, 2])
def test_another_input_in_another_cycle_is_another_job_and_the_older_one_runs_first(
    night: Night, site: Site, nightly: Redrive, starts: int
) -> None:
    site.fails("monday", Answered(429))
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="monday", job_id="front")
    for start in range(starts):
        with night(cycle_id="n2") as cycle:
            result = cycle.run(site.publish, name="tuesday", job_id="front")
        assert (result.status, result.value) == ("skipped" if start else "done", "/tuesday")
    assert site.calls == ["monday", "monday", "tuesday"]
    assert {(job.state, job.arguments["name"]) for job in all_jobs(nightly)} == {
        ("done", "monday"),
        ("done", "tuesday"),
    }
    assert cycle.exit_code == 0


@pytest.mark.behaviour("T-4a")
def test_the_older_input_fails_again_and_the_new_one_is_done_all_the_same(night: Night, site: Site) -> None:
    site.fails("monday", *[Answered(429)] * 2)
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="monday", job_id="front")
    for _ in range(2):
        with night(cycle_id="n2") as cycle:
            assert cycle.run(site.publish, name="tuesday", job_id="front").value == "/tuesday"
        assert site.calls == ["monday", "monday", "tuesday"], (
            "each has one turn in a cycle, however often it is started"
        )
    with night(cycle_id="n3") as cycle:
        assert cycle.run(site.publish, name="wednesday", job_id="front").status == "done"
    assert site.calls[3:] == ["monday", "wednesday"]


@pytest.mark.behaviour("T-4b")
def test_another_input_in_the_same_cycle_is_refused_and_kept(
    night: Night, site: Site, nightly: Redrive, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with night(cycle_id="n1") as cycle:
            cycle.run(site.publish, name="a", job_id=7)
            result = cycle.run(site.publish, name="b", job_id="7")
        assert (result.status, cycle.exit_code) == ("needs_you", 1)
        assert "'7' stands for another input in cycle n1" in str(result.error) and result.recommendation
    assert site.calls == ["a"], "neither run nor skipped"
    (letter,) = kept(nightly)
    assert (letter.id, letter.arguments, letter.lane, letter.attempts) == (result.id, {"name": "b"}, "manual", 0)
    assert names_of(letter) == ("7", "n1")
    assert capsys.readouterr().out.splitlines()[0] == "nightly n1: 2 jobs: 1 done, 1 needs you → redrive morning"


@pytest.mark.behaviour("T-4b")
def test_every_refused_input_is_kept(night: Night, site: Site, nightly: Redrive) -> None:
    with night(cycle_id="n1") as cycle:
        for name in "abcb":
            cycle.run(site.publish, name=name, job_id="front")
    assert site.calls == ["a"] and cycle.summary.needs_you == 2
    assert sorted(job.arguments["name"] for job in kept(nightly)) == ["b", "c"]


@pytest.mark.behaviour("T-4b")
@pytest.mark.parametrize("restarted", [False, True])
def test_what_came_back_and_was_asked_for_is_this_cycles_input(
    night: Night, site: Site, nightly: Redrive, restarted: bool
) -> None:
    """A volatile argument after a restart must not do it twice, also where the first one came from an earlier night."""
    site.fails("a", Answered(429))
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a", job_id="front")
    with night(cycle_id="n2") as cycle:
        assert cycle.run(site.publish, name="a", job_id="front").status == "skipped"
        if not restarted:
            assert cycle.run(site.publish, name="b", job_id="front").status == "needs_you"
    with night(cycle_id="n2") as cycle:
        assert cycle.run(site.publish, name="b", job_id="front").status == "needs_you"
        assert cycle.run(site.publish, name="a", job_id="front").status == "skipped"
    assert site.calls == ["a", "a"]
    assert [job.arguments["name"] for job in kept(nightly)] == ["b"]


@pytest.mark.behaviour("T-4c")
def test_once_for_ever_another_input_is_refused_in_every_cycle(night: Night, site: Site, nightly: Redrive) -> None:
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a", job_id="front", repeat="never")
    for cycle_id in ("n2", "n3"):
        with night(cycle_id=cycle_id, repeat="never") as cycle:
            assert cycle.run(site.publish, name="b", job_id="front").status == "needs_you"
        assert cycle.exit_code == 1
    assert site.calls == ["a"]
    (letter,) = kept(nightly)
    assert letter.arguments == {"name": "b"} and names_of(letter) == ("front", None)


@pytest.mark.behaviour("T-4d")
@pytest.mark.parametrize("where", ["run", "cycle"])
def test_arguments_that_do_not_count(night: Night, nightly: Redrive, where: str) -> None:
    seen = []

    def publish(name: str, path: str = "/tmp/0") -> str:
        seen.append(path)
        return name

    of_cycle, of_run = ({"ignore": ("path",)}, {}) if where == "cycle" else ({}, {"ignore": ("path",)})
    for path in ("/tmp/1", "/tmp/2"):
        with night(cycle_id="n1", **of_cycle) as cycle:
            result = cycle.run(publish, name="a", path=path, job_id="front", **of_run)
            unnamed = cycle.run(publish, name="b", path=path, **of_run)
            other = cycle.run(publish, name="c", path=path, job_id="front", **of_run)
    assert (result.status, unnamed.status, other.status) == ("skipped", "skipped", "needs_you")
    assert seen == ["/tmp/1", "/tmp/1"]
    assert [job.arguments["name"] for job in kept(nightly)] == ["c"]


def test_a_default_that_is_spelled_out_is_the_same_input(night: Night, nightly: Redrive) -> None:
    def publish(name: str, draft: bool = False) -> str:
        return name

    with night(cycle_id="n1") as cycle:
        cycle.run(publish, name="a", job_id="front")
        assert cycle.run(publish, name="a", draft=False, job_id="front").status == "skipped"
    assert kept(nightly) == []


@pytest.mark.parametrize("next_cycle", ["n1", "n2"])
def test_a_person_lets_a_refused_input_run(night: Night, site: Site, nightly: Redrive, next_cycle: str) -> None:
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a", job_id="front")
        refused = cycle.run(site.publish, name="b", job_id="front")
    with nightly.blocking() as q:
        q.run(nightly.dead.redrive(refused.id))
    with night(cycle_id=next_cycle) as cycle:
        cycle.run(site.publish, name="c", job_id="other")
        assert cycle.run(site.publish, name="b", job_id="front").status == "skipped"
    assert site.calls == ["a", "b", "c"]
    assert {job.state for job in all_jobs(nightly)} == {"done"}


def test_a_refused_input_that_is_done_later_needs_nobody_any_more(night: Night, site: Site, nightly: Redrive) -> None:
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a", job_id="front")
        cycle.run(site.publish, name="b", job_id="front")
    with night(cycle_id="n2") as cycle:
        assert cycle.run(site.publish, name="b", job_id="front").status == "done"
    assert kept(nightly) == []


def test_each_success_closes_the_letters_of_its_own_input(night: Night, site: Site, nightly: Redrive) -> None:
    site.fails("a", Answered(429))
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a", job_id="front")
        cycle.run(site.publish, name="b", job_id="front")
    with night(cycle_id="n2") as cycle:
        cycle.run(site.publish, name="b", job_id="front")
    assert site.calls == ["a", "a", "b"]
    assert all_jobs(nightly, states=("dead",)) == []


@pytest.mark.behaviour("T-4e")
def test_a_killed_script_with_a_volatile_argument_does_it_once(tmp_path: Path, database: Path) -> None:
    script = """
        import os, signal, sys, redrive
        database, outside, die = sys.argv[1:]
        def publish(name, pid):
            with open(outside, "a") as file:
                file.write(name + "\\n")
        with redrive.Redrive(database).cycle("nightly", "n1", quiet=True) as night:
            result = night.run(publish, name="a", pid=os.getpid(), job_id="front")
            if die == "yes":
                os.kill(os.getpid(), signal.SIGKILL)
        print(result.status, flush=True)
        sys.exit(night.exit_code)
    """
    outside = tmp_path / "outside"
    with process(script, database, outside, "yes") as child:
        assert child.wait(DEADLINE) == -9
    with process(script, database, outside, "no") as child:
        assert child.stdout is not None
        assert (child.stdout.readline(), child.wait(DEADLINE)) == ("needs_you\n", 1)
    assert outside.read_text() == "a\n"
    assert len(kept(Redrive(database))) == 1


# ---- done elsewhere


@pytest.mark.behaviour("001-35", "001-36")
def test_a_letter_of_what_was_done_meanwhile_is_closed_and_not_run(night: Night, site: Site, nightly: Redrive) -> None:
    """The article is out; the letter of an earlier failure still stands. It must not be pushed again."""
    with night(cycle_id="n2") as cycle:
        cycle.run(site.publish, name="a", job_id="a")

    with nightly.blocking() as q:
        q.run(nightly.dead.add("a", {"name": "a"}, TimeoutError("slow"), task="publish", queue="cycle:nightly"))
    with night(cycle_id="n2") as cycle:
        assert cycle.run(site.publish, name="a", job_id="a").status == "skipped"
    assert site.calls == ["a"]
    assert {job.state for job in all_jobs(nightly)} == {"done"}
    assert cycle.exit_code == 0


@pytest.mark.behaviour("001-35")
def test_a_later_success_closes_the_letter_that_waited_for_a_person(night: Night, site: Site, nightly: Redrive) -> None:
    site.fails("a", PermissionError("no"))
    site.fails("b", PermissionError("no"))
    for cycle_id in ("n1", "n2"):
        with night(cycle_id=cycle_id) as cycle:
            cycle.run(site.publish, name="a", job_id="a")
            cycle.run(site.publish, name="b" if cycle_id == "n1" else "c", job_id="b")
    dead = one_job(nightly, states=("dead",))
    assert dead.arguments == {"name": "b"}, "other arguments are other work"
    closed = next(job for job in all_jobs(nightly) if job.key == key_of("cycle:nightly", "publish", "a", "n1"))
    assert closed.state == "done"


def test_what_others_put_among_the_letters_comes_back_in_a_cycle(night: Night, site: Site, nightly: Redrive) -> None:
    with nightly.blocking() as q:
        q.run(nightly.dead.add("a", {"name": "a"}, TimeoutError("slow"), task="publish", queue="cycle:nightly"))
    with night(cycle_id="n1") as cycle:
        assert cycle.run(site.publish, name="a", job_id="a").status == "skipped"
    assert site.calls == ["a"] and one_job(nightly).state == "done"


def test_what_a_person_redrives_runs_in_the_next_cycle(night: Night, site: Site, nightly: Redrive) -> None:
    site.fails("a", PermissionError("no"))
    with night(cycle_id="n1") as cycle:
        id = cycle.run(site.publish, name="a").id
    with nightly.blocking() as q:
        q.run(nightly.dead.redrive(id))
        assert q.drain() == 0, "no worker takes it"
    with night(cycle_id="n2") as cycle:
        assert cycle.run(site.publish, name="a").status == "skipped"
    assert site.calls == ["a", "a"] and one_job(nightly).state == "done"


# ---- crashes


def abandoned(database: Path, job_id: str) -> None:
    """A process claims the job and is gone."""

    async def claim_and_go() -> None:
        store = elsewhere.made(database, FakeClock())
        await store.open()
        assert (await store.claim(Wanted(slots=1, ids=(job_id,)), "gone", 1_800_000_000.0)).jobs
        await store.close()

    asyncio.run(claim_and_go())


def left_waiting(rd: Redrive, night: Night, cycle_id: str) -> str:
    """A job that was accepted and given back before it did anything."""

    def publish(name: str) -> None:
        ctrl_c()

    with pytest.raises(KeyboardInterrupt), night(cycle_id=cycle_id) as cycle:
        cycle.run(publish, name="a")
    return one_job(rd, states=("waiting",)).id


@pytest.mark.behaviour("T-7d")
@pytest.mark.parametrize("next_cycle", ["n1", "n2"])
def test_what_a_dead_process_left_is_taken_up(
    night: Night, site: Site, nightly: Redrive, database: Path, next_cycle: str
) -> None:
    abandoned(database, left_waiting(nightly, night, "n1"))
    with night(cycle_id=next_cycle) as cycle:
        assert cycle.run(site.publish, name="a").status == "skipped"
    assert site.calls == ["a"]
    job = one_job(nightly)
    assert (job.state, job.attempts, job.crashes) == ("done", 1, 1)
    assert cycle.summary.brought_back == (next_cycle == "n2")
    assert (cycle.summary.accepted, cycle.summary.done, cycle.summary.skipped) == (1, 1, 0), "one job counts once"


def test_a_job_that_ends_its_process_again_and_again_is_buried(database: Path, site: Site) -> None:
    script = """
        import os, sys, redrive
        def publish(name): os._exit(9)
        with redrive.Redrive(sys.argv[1]).cycle("nightly", sys.argv[2]) as cycle:
            cycle.run(publish, name="a")
    """
    rd = Redrive(database)
    nights = [("n1", 9)] * 5 + [("n1", 0), ("n2", 9)]  # two deaths as any job, three alone; the next night once more
    for night, status in nights:
        with process(script, database, night) as child:
            assert child.wait(DEADLINE) == status
    with rd.cycle("nightly", "n2") as cycle:
        assert cycle.run(site.publish, name="a").status == "needs_you"
    job = one_job(rd)
    assert (job.because, job.lane, job.crashes, site.calls) == ("crash_loop", "manual", 6, [])


async def test_a_job_that_was_there_at_two_crashes_runs_alone(database: Path, clock: FakeClock) -> None:
    order: list[str] = []
    gates = {name: (asyncio.Event(), asyncio.Event()) for name in ("before", "suspect", "after")}

    async def work(name: str) -> None:
        begun, go_on = gates[name]
        order.append(f"{name} begins")
        begun.set()
        await go_on.wait()
        order.append(f"{name} ends")

    async with Redrive(database, clock=clock) as rd:
        await crashed_twice(rd, database, work)
        order.clear()
        gates["suspect"][0].clear()
        async with rd.cycle("nightly", "n1", quiet=True) as cycle:
            cycle._work._turns._known.add("work")  # it has its turn when it is asked for
            running = []
            for name in gates:
                running.append(asyncio.create_task(cycle.run(work, name, job_id=name)))
                for _ in range(20):
                    await asyncio.sleep(0.002)
            for begun, go_on in gates.values():
                await soon(begun.wait())
                go_on.set()
            await soon(asyncio.gather(*running))
    assert order == [f"{name} {what}" for name in gates for what in ("begins", "ends")]


async def crashed_twice(rd: Redrive, database: Path, work: Callable[..., Any]) -> None:
    """The job `suspect`, as two processes have left it that died with it."""
    async with rd.cycle("nightly", "n1", quiet=True) as cycle:
        never_begun = asyncio.create_task(cycle.run(work, "suspect", job_id="suspect"))
        await eventually(lambda: bool(cycle._work._turns._spot._running), "it runs")
        never_begun.cancel()
        await asyncio.wait([never_begun])
    (job,) = (await rd.jobs.list()).jobs
    for _ in range(2):
        await asyncio.to_thread(abandoned, database, job.id)
        await rd.close()  # the next to open looks for the dead at once
        await rd.drain()
    assert (await rd.jobs.get(job.id)).crashes == 2


@pytest.mark.behaviour("001-31", "001-36", "001-42")
@pytest.mark.parametrize("next_cycle", ["n1", "n2"])
def test_killed_between_effect_and_record_it_is_posted_once(tmp_path: Path, database: Path, next_cycle: str) -> None:
    """A plain script, no worker: kill -9 right after the post, then the script is started again."""
    script = """
        import os, signal, sys, redrive
        database, outside, cycle_id, die = sys.argv[1:]
        def post(key):
            with open(outside, "a") as file:
                file.write(key + "\\n")
            if die == "yes":
                os.kill(os.getpid(), signal.SIGKILL)
            return "posted"
        def posted(key):
            return "posted" if os.path.exists(outside) and key in open(outside).read().split() else None
        def publish(ctx, name):
            return ctx.once("post", post, verify=posted)
        with redrive.Redrive(database).cycle("nightly", cycle_id) as night:
            print(night.run(publish, name="a").value)
        sys.exit(night.exit_code)
    """
    outside = tmp_path / "outside"
    with process(script, database, outside, "n1", "yes") as child:
        assert child.wait(DEADLINE) == -9
    with process(script, database, outside, next_cycle, "no") as child:
        assert child.wait(DEADLINE) == 0
        assert child.stdout is not None
        assert child.stdout.readline() == "posted\n"
    assert len(outside.read_text().split()) == 1
    assert one_job(Redrive(database)).state == "done"


@pytest.mark.behaviour("T-8c")
@pytest.mark.parametrize("how", ["Ctrl-C", "exit of a handler"])
def test_the_end_of_the_script_gives_the_job_back(
    night: Night, site: Site, nightly: Redrive, how: str, capsys: pytest.CaptureFixture[str], set_handler: SetHandler
) -> None:
    if how != "Ctrl-C":
        set_handler(signal.SIGINT, lambda *_: sys.exit(3))
    site.does("a", ctrl_c)
    with pytest.raises((KeyboardInterrupt, SystemExit)), night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a")
    job = one_job(nightly)
    assert (job.state, job.attempts, job.history[-1].outcome) == ("waiting", 0, "released")
    said = "interrupted after 0 jobs" if how == "Ctrl-C" else ""
    assert capsys.readouterr().out == f"nightly n1: 1 job: 1 comes back next cycle{said and f'; {said}'}\n"
    with night(cycle_id="n1") as cycle:
        assert cycle.run(site.publish, name="a").status == "skipped"
    assert site.calls == ["a", "a"]


@pytest.mark.behaviour("T-8a")
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), asyncio.CancelledError(), Poison()],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_what_a_job_raises_by_itself_is_its_failure_and_the_script_goes_on(
    night: Night, site: Site, nightly: Redrive, error: BaseException
) -> None:
    site.fails("a", error)
    with night(cycle_id="n1") as cycle:
        assert [cycle.run(site.publish, name=name).status for name in ("a", "b")] == ["needs_you", "done"]
    (dead,) = all_jobs(nightly, states=("dead",))
    assert (dead.detail, dead.attempts, dead.error_class) == ("interrupted_itself", 1, type(error).__name__)


def interrupt_main() -> None:
    _thread.interrupt_main()  # looked up when it is called, as tasks do


SIGNALS: dict[str, Callable[[], object]] = {
    "interrupt_main": interrupt_main,
    "raise_signal": lambda: signal.raise_signal(signal.SIGINT),
    "kill": lambda: os.kill(os.getpid(), signal.SIGINT),
}


@pytest.mark.behaviour("T-8a")
@pytest.mark.parametrize("how", SIGNALS.values(), ids=SIGNALS)
def test_a_job_that_interrupts_its_own_thread_has_failed_and_the_script_goes_on(
    night: Night, nightly: Redrive, how: Callable[[], object], set_handler: SetHandler
) -> None:
    def function() -> None:
        how()
        time.sleep(DEADLINE)  # interrupted

    before = signal.raise_signal, _thread.interrupt_main
    set_handler(signal.SIGINT, signal.default_int_handler)
    with night() as cycle:
        assert cycle.run(function).status == "needs_you"
        assert cycle.run(Site().publish, name="the script goes on").status == "done"
    (dead,) = all_jobs(nightly, states=("dead",))
    assert (dead.detail, dead.attempts) == ("interrupted_itself", 1)
    assert (signal.raise_signal, _thread.interrupt_main) == before, "the script's own functions are put back"


@pytest.mark.behaviour("T-8a")
@pytest.mark.parametrize("how", SIGNALS.values(), ids=SIGNALS)
def test_a_coroutine_that_interrupts_its_script_does_so_once(
    night: Night, nightly: Redrive, how: Callable[[], object], set_handler: SetHandler
) -> None:
    """It runs in another thread than the script, which the signal reaches. The next night does not run it again."""

    async def coroutine() -> None:
        how()
        await asyncio.sleep(DEADLINE)

    set_handler(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), night(cycle_id="n1") as cycle:
        cycle.run(coroutine)
    (dead,) = all_jobs(nightly, states=("dead",))
    assert (dead.detail, dead.attempts) == ("interrupted_itself", 1)
    with night(cycle_id="n2") as cycle:
        assert cycle.run(Site().publish, name="the next night").status == "done"


@pytest.mark.behaviour("T-8a")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, Poison])
def test_what_a_coroutine_raises_by_itself_is_its_failure_and_the_script_goes_on(
    night: Night, nightly: Redrive, error: type[BaseException]
) -> None:
    """It runs in a thread of redrive's, in which only a task can raise: a signal would reach the script's own."""

    async def coroutine() -> None:
        raise error

    with night() as cycle:
        assert cycle.run(coroutine).status == "needs_you"
        assert cycle.run(Site().publish, name="the portal still works").status == "done"
    (dead,) = all_jobs(nightly, states=("dead",))
    assert (dead.detail, dead.attempts, dead.error_class) == ("interrupted_itself", 1, error.__name__)


def test_ctrl_c_while_a_coroutine_runs_gives_it_back(database: Path) -> None:
    script = """
        import asyncio, sys, redrive
        async def publish():
            print("running", flush=True)
            await asyncio.Event().wait()
        with redrive.Redrive(sys.argv[1]).cycle("nightly", "n1", quiet=True) as night:
            night.run(publish)
    """
    with process(script, database) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        child.send_signal(2)
        assert child.wait(DEADLINE) in (1, -2, 130)
    job = one_job(Redrive(database))
    assert (job.state, job.attempts, job.history[-1].outcome) == ("waiting", 0, "released")


# ---- several at once


def test_of_two_scripts_at_once_each_job_runs_in_one(database: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    calls = []

    def publish(name: str) -> str:
        calls.append(name)
        if name == "slow":
            begun.set()
            assert go_on.wait(DEADLINE)
        return name

    def first() -> None:
        with Redrive(database).cycle("nightly", "n1", quiet=True) as cycle:
            cycle.run(publish, name="slow")

    other = threading.Thread(target=first)
    other.start()
    assert begun.wait(DEADLINE)
    with Redrive(database).cycle("nightly", "n1", quiet=True) as cycle:
        assert cycle.run(publish, name="slow").status == "running_elsewhere"
        assert cycle.run(publish, name="quick").status == "done"
        assert (cycle.exit_code, cycle.summary.running_elsewhere) == (1, 1)
        go_on.set()
        other.join(DEADLINE)
    assert sorted(calls) == ["quick", "slow"]
    assert (cycle.summary.done, cycle.summary.skipped, cycle.exit_code) == (1, 1, 0), "it was done by the end"


def test_what_comes_back_in_another_process_has_this_cycles_turn_there(database: Path, site: Site) -> None:
    site.fails("a", Answered(429))
    with Redrive(database).cycle("nightly", "n1", quiet=True) as cycle:
        cycle.run(site.publish, name="a")
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Site):
        def publish(self, name: str) -> str:
            begun.set()
            assert go_on.wait(DEADLINE)
            return super().publish(name)

    slow = Slow()

    def first() -> None:
        with Redrive(database).cycle("nightly", "n2", quiet=True) as cycle:
            cycle.run(slow.publish, name="a")

    other = threading.Thread(target=first)
    other.start()
    assert begun.wait(DEADLINE)
    with Redrive(database).cycle("nightly", "n2", quiet=True) as cycle:
        assert cycle.run(site.publish, name="a").status == "running_elsewhere"
        go_on.set()
        other.join(DEADLINE)
        assert cycle.run(site.publish, name="a").status == "skipped"
    assert (site.calls, slow.calls) == (["a"], ["a"])
    assert (cycle.summary.accepted, cycle.summary.skipped) == (1, 1), "one job counts once"


@pytest.mark.behaviour("001-2")
def test_several_pipelines_share_a_store(nightly: Redrive, night: Night, site: Site) -> None:
    for name in ("north", "south"):
        site.fails(name, Answered(429))
        with night(name, cycle_id="n1") as cycle:
            assert cycle.run(site.publish, name=name).status == "diverted"
    with night("north", cycle_id="n2") as cycle:
        cycle.run(site.publish, name="north")
    assert site.calls == ["north", "south", "north"], "a cycle brings back its own"
    with nightly.blocking() as q:
        assert [job.arguments["name"] for job in q.run(nightly.dead.list(queue="cycle:south")).jobs] == ["south"]
        assert not q.run(nightly.dead.list(queue="cycle:north")).jobs


# ---- what is left


def test_what_had_no_turn_is_reported(
    night: Night, site: Site, nightly: Redrive, capsys: pytest.CaptureFixture[str]
) -> None:
    def report() -> None:
        raise Answered(429)

    site.fails("a", PermissionError("no"))
    with night(cycle_id="n1", quiet=True) as cycle:
        cycle.run(report)
        cycle.run(site.publish, name="a")
    with night(cycle_id="n2") as cycle:
        cycle.run(site.publish, name="b")
    assert cycle.exit_code == 0, "this cycle's own jobs are done"
    assert [(left.task, left.status, left.number) for left in cycle.summary.left] == [
        ("publish", "needs_you", 1),
        ("report", "diverted", 1),
    ]
    assert capsys.readouterr().out.splitlines()[1] == (
        "  left from before: 1 publish (needs you), 1 report (comes back when a cycle runs report)"
    )


def test_what_is_parked_or_asked_to_wait_comes_back(night: Night, nightly: Redrive, clock: FakeClock) -> None:
    seen = []

    def poll(name: str) -> None:
        seen.append(name)
        if len(seen) == 1:
            raise redrive.Snooze(DAY)

    with night(cycle_id="n1") as cycle:
        assert cycle.run(poll, name="a").status == "diverted"
    with night(cycle_id="n1") as cycle:
        assert cycle.run(poll, name="a").status == "diverted", "not due yet"
    clock.advance(DAY)
    with night(cycle_id="n2") as cycle:
        assert cycle.run(poll, name="a").status == "skipped"
    assert seen == ["a", "a"] and one_job(nightly).attempts == 1


def test_a_job_that_cancels_itself_is_discarded(night: Night, site: Site, nightly: Redrive) -> None:
    site.fails("a", redrive.Cancel("no longer wanted"))
    with night() as cycle:
        assert cycle.run(site.publish, name="a").status == "discarded"
    assert (cycle.summary.discarded, cycle.exit_code, one_job(nightly).state) == (1, 1, "discarded")


def test_an_outcome_nobody_knows_waits_for_a_person_and_the_next_cycle_goes_on(
    night: Night, site: Site, nightly: Redrive
) -> None:
    site.fails("a", redrive.OutcomeUnknown("timed out after sending"))
    with night(cycle_id="n1") as cycle:
        assert cycle.run(site.publish, name="a").status == "needs_you"
    with night(cycle_id="n1") as cycle:
        assert cycle.run(site.publish, name="a").status == "needs_you"
    assert one_job(nightly).state == "held"
    with night(cycle_id="n2") as cycle:
        assert cycle.run(site.publish, name="a").status == "done"
    assert [(left.status, left.number) for left in cycle.summary.left] == [("needs_you", 1)]


def test_an_open_breaker_parks_jobs_until_the_next_cycle(database: Path, clock: FakeClock, night: Night) -> None:
    rd = Redrive(database, clock=clock, queues={"cycle:nightly": Policy(breaker_after=2)})
    up = False

    @rd.task(downstream="cms")
    def publish(name: str) -> str:
        if not up:
            raise Answered(503)
        return name

    def wait(seconds: float) -> None:
        clock.advance(seconds)

    with rd.cycle("nightly", "n1", wait=wait, quiet=True) as cycle:
        statuses = [cycle.run(publish, name=name).status for name in "abc"]
    assert statuses == ["diverted"] * 3
    assert [job.because for job in all_jobs(rd, states=("held",))][-1] == "circuit_open"
    up = True
    for cycle_id in ("n2", "n3"):
        clock.advance(DAY)
        with rd.cycle("nightly", cycle_id, wait=wait, quiet=True) as cycle:
            for name in "abc":
                cycle.run(publish, name=name)
    assert cycle.exit_code == 0
    assert {job.state for job in all_jobs(rd)} == {"done"}


# ---- alerts


@pytest.mark.behaviour("001-6")
def test_the_same_job_failing_cycle_after_cycle_is_told(
    database: Path, clock: FakeClock, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    pains: list[Pain] = []
    rd = Redrive(database, clock=clock, signals=[pains.append])
    events: list[Any] = []
    rd.subscribe("stale_failure", events.append)
    site.fails("a", *[PermissionError("no")] * 4)
    told = []
    for number in range(1, 7):
        for _ in range(2):  # started twice: told once
            with rd.cycle("nightly", f"n{number}", quiet=True) as cycle:
                cycle.run(site.publish, name="a", job_id="front")
                cycle.run(site.publish, name="b", job_id="other")
        told.append(len([pain for pain in pains if pain.kind == "stale_failure"]))
        clock.advance(DAY)
    assert told == [0, 0, 1, 2, 2, 2], "in the third and fourth cycle; then it worked"
    stale = [pain for pain in pains if pain.kind == "stale_failure"]
    assert stale[0].queue == "cycle:nightly" and stale[1].severity > stale[0].severity
    assert "publish front has failed in 3 cycles in a row: PermissionError: no" in stale[0].message
    assert [event.data["cycles"] for event in events] == [3, 4]
    warnings = [record for record in caplog.records if "in a row" in record.message]
    assert warnings and all(record.levelno >= logging.WARNING for record in warnings)


def test_when_to_alert_can_be_set_and_the_sum_says_it(night: Night, site: Site) -> None:
    site.fails("a", PermissionError("no"))
    with night(alert_after=1) as cycle:
        cycle.run(site.publish, name="a", job_id="front")
    (alert,) = cycle.summary.alerts
    assert alert.startswith("publish front has failed in 1 cycles in a row")


def test_a_sink_that_fails_is_told_again(database: Path, site: Site, clock: FakeClock) -> None:
    pains: list[Pain] = []
    broken = True

    def sink(pain: Pain) -> None:
        if broken:
            raise ConnectionError("the pager is down")
        pains.append(pain)

    site.fails("a", PermissionError("no"))
    rd = Redrive(database, signals=[sink], clock=clock)
    for _ in range(3):
        with rd.cycle("nightly", "n1", alert_after=1, quiet=True) as cycle:
            cycle.run(site.publish, name="a")
        broken = False
        clock.advance(60)
    assert len([pain for pain in pains if pain.kind == "stale_failure"]) == 1


async def _one_failure(rd: Redrive, site: Site) -> None:
    site.fails("a", PermissionError("no"))
    async with rd.cycle("nightly", "n1", alert_after=1, quiet=True) as cycle:
        await cycle.run(site.publish, name="a")


@pytest.mark.parametrize("taken", [True, False])
async def test_an_alert_that_no_sink_took_waits_in_the_store(database: Path, site: Site, taken: bool) -> None:
    """It was written with the note that it is told: a script that dies in between silences nothing."""
    heard: list[Pain] = []

    async def sink(pain: Pain) -> None:
        heard.append(pain)
        if not taken:
            raise ConnectionError("the pager is down")

    async with Redrive(database, signals=[sink]) as rd:
        await _one_failure(rd, site)
        assert await _told(rd) == ["n1"]
        waiting = [notice.kind for notice in await rd.notices.waiting()]
    assert "stale_failure" in [pain.kind for pain in heard]
    assert ("stale_failure" in waiting) is not taken


@pytest.mark.parametrize("taken", [True, False])
async def test_what_another_script_wrote_while_an_alert_was_told_stays(database: Path, site: Site, taken: bool) -> None:
    later = b'{"task":"publish","job_id":"a","job":"j","failed":"n2","failing":2}'

    async def sink(pain: Pain) -> None:
        if pain.kind == "stale_failure":
            (document,) = await rd.store.docs("cycle")
            await rd.store.apply([Commit(puts=(Put("cycle", document.key, later),))])
            if not taken:
                raise ConnectionError("the pager is down")

    async with Redrive(database, signals=[sink]) as rd:
        await _one_failure(rd, site)
        (document,) = await rd.store.docs("cycle")
        assert document.value == later


async def _told(rd: Redrive) -> list[str | None]:
    return [msgspec.json.decode(document.value, type=CycleNote).told for document in await rd.store.docs("cycle")]


# ---- functions of every kind


def test_functions_run_in_the_callers_thread(night: Night) -> None:
    with night() as cycle:
        where = cycle.run(lambda: threading.current_thread().name)
    assert where.value == threading.current_thread().name


@pytest.mark.parametrize("kind", ["plain", "coroutine", "task", "coroutine task"])
def test_every_kind_of_function(night: Night, nightly: Redrive, kind: str) -> None:
    def plain(ctx: redrive.BlockingContext, n: int) -> int:
        return ctx.once("double", lambda key: 2 * n) + ctx.attempt

    async def coroutine(ctx: redrive.Context, n: int) -> int:
        return await ctx.once("double", lambda key: 2 * n) + ctx.attempt

    functions: dict[str, Any] = {"plain": plain, "coroutine": coroutine}
    functions["task"] = nightly.task("doubled", queue="elsewhere")(plain)
    functions["coroutine task"] = nightly.task("doubled later")(coroutine)
    with night() as cycle:
        result = cycle.run(functions[kind], 20)
    assert (result.status, result.value) == ("done", 41)
    assert one_job(nightly).queue == "cycle:nightly"


def test_a_value_comes_back_as_it_is_and_later_as_json(night: Night) -> None:
    def where() -> Path:
        return Path("/srv")

    with night(cycle_id="n1") as cycle:
        assert cycle.run(where).value == Path("/srv")
        assert cycle.run(where).value is not None
        large = cycle.run(lambda: "x" * 300_000)
    with night(cycle_id="n1") as cycle:
        assert cycle.run(lambda: "x" * 300_000).value == large.value


def test_a_soft_failure_counts_as_one(night: Night) -> None:
    with night() as cycle:
        assert cycle.run(lambda: {"success": False, "error": "nothing was posted"}).status != "done"


def test_a_run_inside_a_run(night: Night, site: Site) -> None:
    with night() as cycle:

        def both() -> list[str]:
            return [cycle.run(site.publish, name=name).value for name in ("a", "b")]

        assert cycle.run(both).value == ["/a", "/b"]
    assert cycle.summary.done == 3


def test_from_many_threads_of_one_script(night: Night, nightly: Redrive) -> None:
    seen: dict[int, str] = {}

    def work(n: int) -> None:
        seen[n] = threading.current_thread().name

    with night() as cycle:
        threads = [threading.Thread(target=cycle.run, args=(work, n), name=f"mine-{n}") for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
    assert seen == {n: f"mine-{n}" for n in range(8)}
    assert cycle.summary.done == 8


# ---- with an event loop


async def test_inside_an_event_loop(rd: Redrive, site: Site) -> None:
    async def fetch(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async with rd.cycle("nightly", "n1", quiet=True) as cycle:
        results = await asyncio.gather(*(cycle.run(fetch, n) for n in range(5)), cycle.run(site.publish, name="a"))
        again = await cycle.run(fetch, 3)
    assert [result.value for result in results] == [0, 1, 2, 3, 4, "/a"]
    assert again.status == "skipped" and cycle.exit_code == 0
    assert len((await rd.jobs.list(queue="cycle:nightly")).jobs) == 6, "the store is still open"


async def test_a_block_without_await_in_a_running_loop_as_in_a_notebook(database: Path, site: Site) -> None:
    async def fetch() -> int:
        return 1

    with Redrive(database).cycle("nightly", quiet=True) as cycle:
        assert (cycle.run(site.publish, name="a").value, cycle.run(fetch).value) == ("/a", 1)


async def test_the_same_job_asked_for_twice_at_once_runs_once(rd: Redrive) -> None:
    calls = []

    async def fetch() -> None:
        calls.append(1)
        await asyncio.sleep(0.01)

    async with rd.cycle("nightly", quiet=True) as cycle:
        results = await asyncio.gather(cycle.run(fetch), cycle.run(fetch))
    assert sorted(result.status for result in results) == ["done", "skipped"] and calls == [1]


async def test_a_cancelled_run_gives_its_job_back(rd: Redrive) -> None:
    begun = asyncio.Event()

    async def fetch() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with rd.cycle("nightly", "n1", quiet=True) as cycle:
        running = asyncio.create_task(cycle.run(fetch))
        await soon(begun.wait())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    (job,) = (await rd.jobs.list()).jobs
    assert (job.state, job.attempts) == ("waiting", 0)


async def test_a_cancelled_run_waits_for_its_thread(rd: Redrive) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def publish() -> str:
        begun.set()
        assert go_on.wait(DEADLINE)
        return "out"

    async with rd.cycle("nightly", "n1", quiet=True) as cycle:
        running = asyncio.create_task(cycle.run(publish))
        await soon(asyncio.to_thread(begun.wait))
        running.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    (job,) = (await rd.jobs.list()).jobs
    assert (job.state, job.result) == ("done", "out"), "what a thread did cannot be taken back"


async def test_a_job_somebody_cancels_is_stopped(live: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.engine.heartbeat.BEAT_SECONDS", 0.01)
    begun = asyncio.Event()

    async def fetch() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with live.cycle("nightly", "n1", quiet=True) as cycle:
        running = asyncio.create_task(cycle.run(fetch))
        await soon(begun.wait())
        (job,) = (await live.jobs.list()).jobs
        await live.jobs.cancel(job.id)
        assert (await soon(running)).status == "discarded"


# ---- the cycle's id


def test_a_cycle_keeps_its_date_past_midnight(night: Night, site: Site, clock: FakeClock, nightly: Redrive) -> None:
    clock.advance(DAY - clock.now() % DAY - 1.0)
    start = cycle_at(clock.now(), "UTC")
    with night() as cycle:
        cycle.run(site.publish, name="a")
        clock.advance(2.0)
        cycle.run(site.publish, name="b")
    assert cycle.cycle_id == start != cycle_at(clock.now(), "UTC")
    assert {names_of(job)[1] for job in all_jobs(nightly)} == {start}


def test_the_date_is_that_of_the_zone() -> None:
    at = 1_800_000_000.0 - 1_800_000_000.0 % DAY + DAY - 1.0
    assert cycle_at(at, "Pacific/Auckland") != cycle_at(at, "UTC") == cycle_at(at, "America/New_York")


# ---- bad input


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 151}, "name"),
        ({"name": 3}, "name"),
        ({"cycle_id": "\t"}, "cycle_id"),
        ({"tz": "Mars/Olympus"}, "tz"),
        ({"repeat": "daily"}, "repeat"),
        ({"ignore": 3}, "ignore"),
        ({"ignore": ("a b",)}, "ignore"),
        ({"alert_after": 0}, "alert_after"),
        ({"alert_after": True}, "alert_after"),
    ],
)
def test_a_cycle_that_cannot_be(nightly: Redrive, how: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        nightly.cycle(**{"name": "nightly", **how})
    assert raised.value.field == field


def test_an_option_that_does_not_exist(nightly: Redrive) -> None:
    with pytest.raises(TypeError, match="retries"):
        nightly.cycle("nightly", retries=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("function", "arguments", "error"),
    [
        pytest.param(lambda x: None, {"x": object()}, InvalidPayload, id="not JSON"),
        pytest.param(lambda x: None, {"y": 1}, InvalidPayload, id="no such argument"),
        pytest.param(lambda x: None, {"x": 1, "job_id": ""}, InvalidOption, id="an empty id"),
        pytest.param(lambda x: None, {"x": 1, "job_id": "a\0"}, InvalidOption, id="an unprintable id"),
        pytest.param(lambda x: None, {"x": 1, "repeat": "daily"}, InvalidOption, id="an unknown repeat"),
        pytest.param(lambda x: None, {"x": 1, "ignore": ("y",)}, InvalidOption, id="no such argument to ignore"),
        pytest.param(lambda *x: None, {}, InvalidOption, id="arguments without names"),
        pytest.param("publish", {}, InvalidOption, id="no function"),
    ],
)
def test_a_call_that_cannot_be(
    night: Night, nightly: Redrive, function: Any, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with night() as cycle:
        with pytest.raises(error):
            cycle.run(function, **arguments)
        assert cycle.summary.accepted == 0
    assert all_jobs(nightly) == []


def test_two_functions_with_one_name(night: Night, site: Site) -> None:
    def publish(name: str) -> None: ...

    with night() as cycle:
        cycle.run(site.publish, name="a")
        with pytest.raises(redrive.ConfigError, match="two tasks are named 'publish'"):
            cycle.run(publish, name="b")
    with night() as cycle:
        assert cycle.run(publish, name="b").status == "done", "the name was taken only while the cycle lasted"


def test_a_cycle_under_way_cannot_be_entered_twice(nightly: Redrive) -> None:
    cycle = nightly.cycle("nightly", quiet=True)
    with cycle, pytest.raises(redrive.RedriveError, match="under way"), cycle:
        pass
    with cycle as again:
        assert again.exit_code == 0


def test_a_job_after_the_end_of_its_cycle(night: Night, site: Site) -> None:
    with night() as cycle:
        pass
    with pytest.raises(redrive.RedriveError, match="is over"):
        cycle.run(site.publish, name="a")
    assert site.calls == []


def test_a_cycle_whose_name_begins_like_another_is_another(night: Night, site: Site) -> None:
    site.fails("a", PermissionError("no"))
    with night("sites/north", alert_after=1) as cycle:
        cycle.run(site.publish, name="a")
    assert cycle.summary.alerts
    site.fails("a", PermissionError("no"))
    with night("sites/north", cycle_id="n2", alert_after=9) as cycle:
        cycle.run(site.publish, name="a")
    with night("sites", alert_after=1) as cycle:
        cycle.run(site.publish, name="b")
    assert not cycle.summary.alerts and not cycle.summary.left


@pytest.mark.parametrize("job_id", ["a:b@c", "%3A", "a%40b", "@", "a/b", "ü"])
@pytest.mark.parametrize("cycle_id", ["2031-05-17", "x@y:z", None])
def test_names_of_jobs_are_read_back(job_id: str, cycle_id: str | None) -> None:
    queue, task = "cycle:my/site:1", "my:task@home"
    key = key_of(queue, task, job_id, cycle_id)
    job = Job(keyed_id(queue, key), queue, task, None, redrive.State.waiting, 2, 0.0, 1, 0.0, 0.0, "{}", key=key)
    assert names_of(job) == (job_id, cycle_id)


def test_receivers_can_tell_two_scripts_apart(night: Night) -> None:
    """The same function, the same names, the same night: other work all the same."""

    def post(ctx: redrive.BlockingContext) -> str:
        return ctx.idempotency_key

    keys = []
    for name in ("north", "south"):
        with night(name, cycle_id="n1") as cycle:
            keys.append(cycle.run(post, job_id="front").value)
    assert keys == ["north/post:front@n1", "south/post:front@n1"]


# ---- beside the rest of redrive


def test_workers_leave_the_jobs_of_cycles_alone(night: Night, nightly: Redrive, site: Site) -> None:
    task = nightly.task("publish")(site.publish)
    site.does("a", ctrl_c)
    with pytest.raises(KeyboardInterrupt), night() as cycle:
        cycle.run(task, name="a")
    with nightly.blocking() as q:
        assert q.drain() == 0
    assert one_job(nightly).state == "waiting"


def test_what_waits_in_the_spool_is_taken_in(night: Night, nightly: Redrive, site: Site) -> None:
    from redrive.jobs.spool import SpoolEntry

    site.fails("a", Answered(429))
    with night(cycle_id="n1") as cycle:
        cycle.run(site.publish, name="a")
    spooled = Job("0" * 32, "work", "work", None, redrive.State.waiting, 2, 0.0, 1, 0.0, 0.0, "{}")
    nightly.spool.append(SpoolEntry(spooled, []))
    with night(cycle_id="n2") as cycle:
        cycle.run(site.publish, name="a")
    assert nightly.spool.count() == 0
    assert one_job(nightly, queue="work").id == spooled.id
