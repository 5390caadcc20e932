"""to_dead_letter and diverting: no failure is dropped, wherever it happens and whatever is broken meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive
from redrive import GiveUp, InvalidOption, StoreUnavailable, diverting, to_dead_letter
from redrive.core import lifecycle
from redrive.core.advice import ADVICE
from redrive.core.job import Job, State
from redrive.core.store import Commit, Inserted, Outcome, Page, Unknown
from redrive.jobs.dead_letter import nth_id, settles
from redrive.scripts.failure_records import FailureDetails, FailureRecorder
from tests import elsewhere
from tests.support import FakeClock, opened, process, soon


@pytest.fixture(autouse=True)
def quiet_default() -> Any:
    """The process-wide instance belongs to the test's own folder."""
    redrive.reset_default()
    yield
    app = redrive.default()
    app.run_blocking(app.close())
    redrive.reset_default()


def all_letters(rd: redrive.Redrive | None = None) -> list[Job]:
    app = rd or redrive.default()

    async def read() -> list[Job]:
        return await app.store.get([job.id for job in (await app.dead.list(limit=10_000)).jobs])

    return app.run_blocking(read())


def fail(text: str = "the report is late") -> None:
    raise TimeoutError(text)


# -- one call


@pytest.mark.behaviour("001-17", "001-42", "001-12", "001-8")
def test_one_call_in_a_plain_script_is_enough() -> None:
    """No queue, worker or event loop: the default store, and everything there is to know about the failure."""
    try:
        fail()
    except TimeoutError as error:
        id = to_dead_letter("report-1", {"site": "one"}, error, task="fetch")
    (letter,) = all_letters()
    assert (letter.id, letter.key, letter.task, letter.queue) == (id, "report-1", "fetch", "fetch")
    assert (letter.error_class, letter.attempts, letter.arguments) == ("TimeoutError", 1, {"site": "one"})
    assert (letter.because, letter.lane, letter.detail) == ("diverted", "delayed", "timeout")
    failure = letter.history[-1].failure
    assert failure is not None and any("fail" in frame for frame in failure.frames)


@pytest.mark.behaviour("001-13", "001-10", "001-26", "T-7c")
def test_the_next_failure_of_the_same_job_is_counted_in_the_same_letter() -> None:
    ids = {to_dead_letter("report-1", {"site": "one"}, TimeoutError(f"night {n}")) for n in range(4)}
    (letter,) = all_letters()
    assert ids == {letter.id}
    assert (letter.attempts, letter.lane, letter.error) == (4, "delayed", "TimeoutError: night 3")
    assert [attempt.failure.message for attempt in letter.history if attempt.failure] == [
        f"night {n}" for n in range(4)
    ]
    to_dead_letter("report-1", {"site": "one"}, TimeoutError("night 4"))
    (letter,) = all_letters()
    assert (letter.attempts, letter.lane, letter.because) == (5, "manual", "attempts_exhausted")
    assert letter.grants == 0
    assert letter.recommendation == ADVICE["timeout"], "in the manual lane waiting does not heal it"
    assert letter.first_failed_at == letter.history[0].ended_at


@pytest.mark.behaviour("T-7c")
def test_what_a_caller_advises_stays_in_every_lane() -> None:
    for _ in range(5):
        to_dead_letter("a", {}, TimeoutError(), recommendation="Call the site.")
    (letter,) = all_letters()
    assert (letter.lane, letter.recommendation) == ("manual", "Call the site.")


def test_tries_that_the_caller_counted_count() -> None:
    to_dead_letter("a", {}, TimeoutError(), attempt=3)
    assert all_letters()[0].attempts == 3
    to_dead_letter("a", {}, TimeoutError(), attempt=3)
    assert all_letters()[0].attempts == 4
    to_dead_letter("a", {}, TimeoutError(), attempt=9)
    assert all_letters()[0].attempts == 9


async def test_two_failures_in_one_instant_are_two(rd: redrive.Redrive) -> None:
    for _ in range(2):
        letter = await rd.dead.add("a", {}, TimeoutError())
    assert letter.attempts == 2


@pytest.mark.behaviour("001-19", "001-25")
@pytest.mark.parametrize(
    ("error", "error_class", "lane"),
    [
        (TimeoutError("slow"), "TimeoutError", "delayed"),
        (TimeoutError, "TimeoutError", "delayed"),
        ("TimeoutError", "TimeoutError", "delayed"),
        ("RateLimitError: 429 Too Many Requests", "RateLimitError", "delayed"),
        (ConnectionResetError(), "ConnectionResetError", "delayed"),
        (KeyError("schema"), "KeyError", "manual"),
        (PermissionError(13, "no"), "PermissionError", "manual"),
        (TypeError("malformed"), "TypeError", "manual"),
        (GiveUp("no such site", recommendation="Remove the site."), "GiveUp", "manual"),
        ("something went wrong", "unknown", "manual"),
        (None, "unknown", "manual"),
    ],
)
def test_an_error_in_every_form_goes_where_it_belongs(error: Any, error_class: str, lane: str) -> None:
    to_dead_letter("a", {}, error)
    (letter,) = all_letters()
    assert (letter.error_class, letter.lane) == (error_class, lane)
    assert letter.recommendation


def test_the_exception_that_is_being_handled_need_not_be_named() -> None:
    try:
        fail()
    except TimeoutError:
        to_dead_letter("a", {})
    assert all_letters()[0].error == "TimeoutError: the report is late"


@pytest.mark.parametrize("given", [{1: 2}, {"tags": {1}}, {"a": {"b": {2: 1}}}, [{1: 2}]], ids=str)
def test_an_input_that_json_changes_is_kept_and_that_is_told(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert to_dead_letter("report-1", given, TimeoutError("slow"), task="fetch")
    assert caplog.text.count("a dead letter's payload is not kept as it was given: ") == 1
    caplog.clear()
    assert to_dead_letter("report-2", {"a": [1, (2, 3)], "b": None}, TimeoutError("slow"), task="fetch")
    assert "not kept as it was given" not in caplog.text


def test_a_lane_can_be_chosen_and_a_wrong_one_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    to_dead_letter("a", {}, TimeoutError(), lane="manual")
    to_dead_letter("b", {}, TimeoutError(), lane="nonsense")  # type: ignore[arg-type]
    assert {letter.key: letter.lane for letter in all_letters()} == {"a": "manual", "b": "delayed"}
    assert "'nonsense' is not a lane" in caplog.text


async def test_the_rules_of_the_task_count(rd: redrive.Redrive) -> None:
    @rd.task(retry_on=(KeyError,), max_attempts=2, queue="nightly")
    async def fetch(site: str) -> None: ...

    first = await rd.dead.add("a", {"site": "x"}, KeyError("site"), task="fetch")
    assert (first.queue, first.lane) == ("nightly", "delayed")
    second = await rd.dead.add("a", {"site": "x"}, KeyError("site"), task="fetch")
    assert (second.lane, second.because) == ("manual", "attempts_exhausted")


async def test_an_option_that_does_not_exist_is_refused(rd: redrive.Redrive) -> None:
    with pytest.raises(InvalidOption, match="nonsense: is not an option of a dead letter"):
        await rd.dead.add("a", {}, "KeyError", nonsense=1)


@pytest.mark.behaviour("001-8")
async def test_a_letter_runs_again_from_what_it_holds(rd: redrive.Redrive) -> None:
    ran: list[str] = []

    @rd.task
    async def fetch(site: str) -> None:
        ran.append(site)

    letter = await rd.dead.add("a", {"site": "one"}, TimeoutError(), task="fetch")
    await rd.dead.redrive(letter.id)
    await soon(rd.drain())
    assert ran == ["one"]
    assert (await rd.jobs.get(letter.id)).state is State.done


# -- one job_id, many lives


async def test_a_failure_after_the_last_was_settled_is_a_letter_of_its_own(rd: redrive.Redrive) -> None:
    first = await rd.dead.add("nightly", {}, TimeoutError())
    await rd.jobs.resolve(first.id, why="by hand")
    second = await rd.dead.add("nightly", {}, TimeoutError())
    assert second.id != first.id and second.attempts == 1 and second.key == "nightly"
    assert (await rd.dead.add("nightly", {}, TimeoutError())).id == second.id
    await rd.dead.discard(second.id)
    third = await rd.dead.add("nightly", {}, TimeoutError())
    assert len({first.id, second.id, third.id}) == 3
    assert [job.id for job in (await rd.dead.list()).jobs] == [third.id]


async def test_the_thousandth_letter_costs_no_more_than_the_hundredth(
    rd: redrive.Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one of another input that has stood from the beginning is still found."""
    reads: list[int] = []
    store = rd.store
    get, find = store.get, store.find

    async def counted_get(ids: Sequence[str]) -> list[Job]:
        reads.append(len(ids))
        return await get(ids)

    async def counted_find(*said: Any, **more: Any) -> Page:
        page = await find(*said, **more)
        reads.append(len(page.jobs))
        return page

    other = await rd.dead.add("sync", {"other": True}, TimeoutError())
    await settled_letters(rd, other, 1_000)
    monkeypatch.setattr(store, "get", counted_get)
    monkeypatch.setattr(store, "find", counted_find)
    for number in (1_001, 1_002):
        letter = await rd.dead.add("sync", {}, TimeoutError())
        assert letter.id == nth_id("unnamed", "sync", number)
        await rd.recorder.resolve_landed("sync", {}, FailureDetails(), who="test", why="done")
    assert len(reads) < 20 and max(reads) <= 40
    assert (await rd.dead.add("sync", {"other": True}, TimeoutError())).id == other.id


async def settled_letters(rd: redrive.Redrive, like: Job, number: int) -> None:
    """So many more letters of the same job_id, all of them done."""
    more = [
        msgspec.structs.replace(like, id=nth_id(like.queue, like.key or "", n), payload="{}", payload_hash="done")
        for n in range(1, number + 1)
    ]
    await rd.store.insert(more)
    now = rd.clock.now()
    await rd.store.apply([Commit((lifecycle.resolved(job, now, who="test", why="done"),)) for job in more])


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 31, 32, 33, 64, 65, 127, 128, 200])
async def test_the_next_letter_has_the_next_number(rd: redrive.Redrive, number: int) -> None:
    if number:
        first = await rd.dead.add("sync", {}, TimeoutError())
        await settled_letters(rd, first, number - 1)
        await rd.dead.discard(first.id, why="test")
    letter = await rd.dead.add("sync", {}, TimeoutError())
    assert letter.id == nth_id("unnamed", "sync", number)


async def test_another_input_under_the_same_job_id_is_not_lost(
    rd: redrive.Redrive, caplog: pytest.LogCaptureFixture
) -> None:
    one = await rd.dead.add("publish", {"slug": "a"}, TimeoutError())
    two = await rd.dead.add("publish", {"slug": "b"}, TimeoutError())
    assert one.id != two.id and "stands for another input" in caplog.text
    assert (await rd.dead.add("publish", {"slug": "a"}, TimeoutError())).id == one.id
    assert {job.payload: job.attempts for job in (await rd.dead.list()).jobs} == {'{"slug":"a"}': 2, '{"slug":"b"}': 1}


async def test_a_job_that_waits_to_be_run_again_is_buried_anew(rd: redrive.Redrive) -> None:
    letter = await rd.dead.add("a", {}, TimeoutError())
    await rd.dead.redrive(letter.id)
    again = await rd.dead.add("a", {}, TimeoutError())
    assert (again.id, again.attempts, again.state) == (letter.id, 2, State.dead)


async def test_a_job_that_runs_just_now_is_left_alone(rd: redrive.Redrive) -> None:
    added: list[Job] = []

    @rd.task
    async def fetch(ctx: redrive.Context) -> None:
        added.append(await rd.dead.add("a", {}, TimeoutError("elsewhere"), task="fetch"))

    letter = await rd.dead.add("a", {}, TimeoutError(), task="fetch")
    await rd.dead.redrive(letter.id)
    await soon(rd.drain())
    assert (await rd.jobs.get(letter.id)).state is State.done
    assert added[0].id != letter.id and added[0].state is State.dead


async def test_what_happens_is_told(rd: redrive.Redrive, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    rd.subscribe("dead_letter", told.append)
    for _ in range(2):
        letter = await rd.dead.add("a", {}, TimeoutError("slow"))
    assert [(event.job_id, event.attempt) for event in told] == [(letter.id, 1), (letter.id, 2)]
    assert [r.levelno for r in caplog.records if "TimeoutError: slow" in r.getMessage()] == [logging.WARNING] * 2


# -- whatever is said about it


@dataclass
class Site:
    name: str
    tries: int


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no repr either")


@pytest.mark.behaviour("001-11")
@pytest.mark.parametrize(
    ("payload", "kept"),
    [
        ({"a": [1, None, "ü"]}, {"a": [1, None, "ü"]}),
        ([1, 2], [1, 2]),
        ("text", "text"),
        (None, None),
        (Site("one", 2), {"name": "one", "tries": 2}),
        ({"site": Site("one", 2)}, {"site": {"name": "one", "tries": 2}}),
    ],
)
async def test_an_input_of_every_form_is_kept_whole(rd: redrive.Redrive, payload: Any, kept: Any) -> None:
    await rd.dead.add("a", payload, TimeoutError())
    (line,) = (await rd.dead.export()).lines
    assert json.loads(line)["payload"] == kept


@pytest.mark.parametrize("payload", [{"x": object()}, {"x": float("nan")}, {"x": Silent()}, Silent()])
async def test_an_input_that_json_cannot_say_is_kept_as_well_as_it_can_be(
    rd: redrive.Redrive, payload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    letter = await rd.dead.add("a", payload, TimeoutError())
    assert letter.arguments["$repr"] and letter.arguments["$problem"]
    assert "cannot be kept as it is" in caplog.text


async def test_a_large_input_is_kept_whole(rd: redrive.Redrive) -> None:
    letter = await rd.dead.add("a", {"text": "x" * 3_000_000}, TimeoutError())
    assert len((await rd.jobs.get(letter.id)).arguments["text"]) == 3_000_000


async def test_blobs_go_beside_it(rd: redrive.Redrive) -> None:
    seen: list[bytes] = []

    @rd.task
    async def upload(image: redrive.Blob) -> None:
        seen.append(image.data)

    first = await rd.dead.add("a", {"image": redrive.Blob(b"one")}, TimeoutError(), task="upload")
    await rd.dead.discard(first.id)
    second = await rd.dead.add("a", {"image": redrive.Blob(b"two")}, TimeoutError(), task="upload")
    await rd.dead.redrive(second.id)
    await soon(rd.drain())
    assert seen == [b"two"]


@pytest.mark.parametrize("job_id", ["", None, "x" * 2000, "bell\u0007", 7, ("a", 1), "\ud800"])
async def test_an_odd_job_id_loses_nothing_and_stays_the_same(rd: redrive.Redrive, job_id: Any) -> None:
    for _ in range(2):
        letter = await rd.dead.add(job_id, {"n": 1}, TimeoutError())
    assert letter.attempts == 2 and letter.key and len(letter.key) <= 500 and letter.key.isprintable()
    assert len((await rd.dead.list()).jobs) == 1


async def test_odd_names_are_cut_and_told(rd: redrive.Redrive, caplog: pytest.LogCaptureFixture) -> None:
    letter = await rd.dead.add("a", {}, TimeoutError(), task="t" * 300, queue="q\n", session_id="")
    assert (len(letter.task), letter.queue, letter.session_id) == (200, "q", None)
    assert "is cut to at most 200" in caplog.text


class Speechless:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("OSError: no file b\udcff.txt", "OSError: no file b?.txt"),
        ("what? \udcff", "what? ?"),
        (OSError("no file b\udcff.txt"), "OSError: no file b?.txt"),
        (Speechless(), "Speechless"),
    ],
    ids=["named", "unnamed", "exception", "speechless"],
)
async def test_half_a_character_in_an_error_loses_no_letter(rd: redrive.Redrive, error: Any, said: str) -> None:
    id = await asyncio.to_thread(to_dead_letter, "one", {"\udcff": 1}, error, recommendation="see \udcff", rd=rd)
    (letter,) = await rd.store.get([id])
    assert letter.error is not None and said in letter.error
    assert letter.recommendation == "see ?"


async def test_an_exception_that_cannot_speak_is_recorded(rd: redrive.Redrive) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("mute")

    letter = await rd.dead.add("a", {}, Mute())
    assert letter.error_class and "Mute" in letter.error_class


# -- when the store cannot be used


class Flaky:
    """The real store, whose disk can be told to fail: before a write, or after it was made."""

    broken: Exception | None = None
    unknown = False

    async def insert(self, jobs: Any, documents: Any = ()) -> list[Inserted]:
        if self.broken is not None:
            raise self.broken
        return await super().insert(jobs, documents)

    async def apply(self, group: Any) -> list[Outcome]:
        if self.broken is not None:
            raise self.broken
        outcomes = await super().apply(group)
        return [Unknown("lost the answer")] * len(outcomes) if self.unknown else outcomes


@pytest.fixture
def store(database: Path, clock: FakeClock) -> Flaky:
    return elsewhere.made(database, clock, Flaky)


@pytest.fixture
async def flaky(store: Flaky, database: Path, clock: FakeClock) -> Any:
    rd = redrive.Redrive(database, clock=clock)
    rd.core.holder.store = store
    async with rd:
        yield rd


@pytest.mark.behaviour("001-7")
async def test_a_broken_store_leaves_the_letter_beside_it_and_says_so(
    flaky: redrive.Redrive, store: Flaky, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    store.broken = StoreUnavailable("the disk is gone")
    first = await flaky.dead.add("a", {"n": 1}, TimeoutError("one"))
    clock.advance(60)
    await flaky.dead.add("a", {"n": 1}, TimeoutError("two"))
    assert flaky.spool.count() == 2
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert sum("the disk is gone" in text and "waits in" in text for text in warned) == 2
    store.broken = None
    clock.advance(60)
    third = await flaky.dead.add("a", {"n": 1}, TimeoutError("three"))
    assert flaky.spool.count() == 0  # the first call that reaches the store takes them along
    letter = await flaky.jobs.get(first.id)
    assert (letter.id, letter.attempts) == (third.id, 3)
    told = sorted(attempt.failure.message for attempt in letter.history if attempt.failure)
    assert told == ["one", "three", "two"]


@pytest.mark.behaviour("001-7")
async def test_draining_twice_counts_once(flaky: redrive.Redrive, store: Flaky, clock: FakeClock) -> None:
    await flaky.dead.add("a", {}, TimeoutError("one"))
    store.broken = StoreUnavailable("down")
    clock.advance(60)
    await flaky.dead.add("a", {}, TimeoutError("two"))
    (spooled,) = flaky.spool.folder.glob("*.jsonl")
    copy = spooled.read_bytes()
    store.broken = None
    await soon(flaky.drain())
    spooled.write_bytes(copy)  # a drain that was killed before it could remove the file
    await soon(flaky.drain())
    (letter,) = (await flaky.dead.list()).jobs
    assert letter.attempts == 2


async def test_a_spooled_failure_of_a_job_that_is_done_by_now_is_still_seen(
    flaky: redrive.Redrive, store: Flaky, clock: FakeClock
) -> None:
    first = await flaky.dead.add("a", {}, TimeoutError("one"))
    await flaky.jobs.resolve(first.id, why="by hand")
    store.broken = StoreUnavailable("down")
    clock.advance(60)
    await flaky.dead.add("a", {}, TimeoutError("two"))
    store.broken = None
    await soon(flaky.drain())
    (letter,) = (await flaky.dead.list()).jobs
    assert (letter.id != first.id, letter.error) == (True, "TimeoutError: two")


async def test_a_write_that_nobody_knows_of_is_counted_once(
    flaky: redrive.Redrive, store: Flaky, clock: FakeClock
) -> None:
    await flaky.dead.add("a", {}, TimeoutError("one"))
    store.unknown = True
    clock.advance(60)
    await flaky.dead.add("a", {}, TimeoutError("two"))
    store.unknown = False
    assert flaky.spool.count() == 1
    await soon(flaky.drain())
    (letter,) = (await flaky.dead.list()).jobs
    assert letter.attempts == 2 and flaky.spool.count() == 0


async def test_where_nothing_can_be_written_the_caller_hears_of_it(flaky: redrive.Redrive, store: Flaky) -> None:
    flaky.spool.folder.write_text("in the way")
    store.broken = StoreUnavailable("the disk is gone")
    with pytest.raises(StoreUnavailable, match=r"job 'a': store: the disk is gone; spool: .*exists"):
        await flaky.dead.add("a", {}, TimeoutError())


def test_settings_that_cannot_be_used_lose_no_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "redrive.toml").write_text("concurrency = 'many'")
    id = to_dead_letter("a", {}, TimeoutError())
    assert "waits in" in caplog.text
    (tmp_path / "redrive.toml").unlink()
    to_dead_letter("b", {}, TimeoutError())
    assert {letter.key for letter in all_letters()} == {"a", "b"}
    assert id in {letter.id for letter in all_letters()}


# -- with a block


@pytest.mark.behaviour("001-3", "001-7")
def test_whatever_fails_inside_leaves_a_letter_and_goes_on_to_the_caller() -> None:
    with pytest.raises(TimeoutError, match="late"), diverting("a", {"n": 1}, task="fetch") as block:
        fail()
    (letter,) = all_letters()
    assert (letter.id, letter.task, letter.error_class) == (block.letter, "fetch", "TimeoutError")


@pytest.mark.behaviour("001-3")
def test_a_loop_can_go_on_and_still_nothing_is_swallowed_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    for n in range(3):
        with diverting(f"job-{n}", {"n": n}, swallow=True):
            if n != 1:
                fail()
    assert {letter.key for letter in all_letters()} == {"job-0", "job-2"}
    assert sum("goes on as dead letter" in r.getMessage() for r in caplog.records) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), SystemExit("failed"), GiveUp("no")])
def test_leaving_by_another_door_is_recorded_too(error: BaseException) -> None:
    with pytest.raises(type(error)), diverting("a", {}):
        raise error
    assert len(all_letters()) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_the_end_of_the_program_is_not_swallowed(error: BaseException) -> None:
    with pytest.raises(type(error)), diverting("a", {}, swallow=True):
        raise error


@pytest.mark.parametrize("code", [0, None])
def test_a_clean_exit_is_no_failure(code: int | None) -> None:
    with pytest.raises(SystemExit), diverting("a", {}):
        raise SystemExit(code)
    assert all_letters() == []


@pytest.mark.behaviour("001-35")
def test_success_closes_the_letter_of_earlier_failures() -> None:
    for _ in range(2):
        with diverting("a", {"n": 1}, task="fetch", swallow=True):
            fail()
    other = to_dead_letter("b", {"n": 1}, TimeoutError(), task="fetch")
    with diverting("a", {"n": 1}, task="fetch"):
        pass
    assert [letter.id for letter in all_letters()] == [other]


def test_success_with_another_input_closes_nothing() -> None:
    for customer in ("A", "B"):
        with pytest.raises(TimeoutError), diverting("invoice", {"customer": customer}, task="bill"):
            fail()
    with diverting("invoice", {"customer": "C"}, task="bill"):
        pass
    assert sorted(letter.arguments["customer"] for letter in all_letters()) == ["A", "B"]
    with diverting("invoice", {"customer": "A"}, task="bill"):
        pass
    assert [letter.arguments["customer"] for letter in all_letters()] == ["B"]


def test_success_does_not_close_what_may_have_landed_before() -> None:
    """It may have been done twice by now: somebody must look."""
    with pytest.raises(TimeoutError), diverting("invoice", {"n": 1}):
        fail()
    (letter,) = all_letters()
    doubtful = msgspec.structs.replace(letter, because="outcome_unknown")
    assert (settles(letter, letter), settles(letter, doubtful)) == (True, False)


async def test_success_closes_an_edited_letter_for_what_it_was_edited_to(rd: redrive.Redrive) -> None:
    rd.task("pay")(lambda n: n)
    recorder, said = rd.recorder, FailureDetails(task="pay")
    letter = await recorder.add("invoice", {"n": 1}, ValueError("no such customer"), said)
    await rd.queues.pause("pay")
    await rd.dead.edit(letter.id, {"n": 2})
    await recorder.add("invoice", {"n": 2}, ValueError("no such customer"), said)
    assert await recorder.resolve_landed("invoice", {"n": 1}, said, who="test", why="another input") == 0
    assert await recorder.resolve_landed("invoice", {"n": 2}, said, who="test", why="it went through") == 1


async def test_success_closes_no_letter_whose_outcome_nobody_knows(rd: redrive.Redrive) -> None:
    recorder, said = rd.recorder, FailureDetails(task="pay")
    await recorder.add("invoice", {"n": 1}, redrive.OutcomeUnknown("charged, no answer"), said)
    assert await recorder.resolve_landed("invoice", {"n": 1}, said, who="test", why="it went through") == 0


@pytest.mark.parametrize("job_id", ["", None])
async def test_success_closes_letters_that_are_known_by_their_input(rd: redrive.Redrive, job_id: Any) -> None:
    recorder = rd.recorder
    await recorder.add(job_id, {"n": 1}, ValueError("no"), FailureDetails())
    assert await recorder.resolve_landed(job_id, {"n": 2}, FailureDetails(), who="test", why="another") == 0
    assert await recorder.resolve_landed(job_id, {"n": 1}, FailureDetails(), who="test", why="the same") == 1


def test_nothing_recorded_is_never_silence(tmp_path: Path) -> None:
    """Neither store nor spool: the caller gets the job's own error, or, where it would be swallowed, ours."""
    rd = redrive.Redrive(tmp_path / "no" / "such" / "folder" / "jobs.db", spool=str(tmp_path / "file" / "spool"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TimeoutError), diverting("a", {}, rd=rd):
        fail()
    with pytest.raises(StoreUnavailable), diverting("a", {}, rd=rd, swallow=True):
        fail()


async def test_in_async_code(rd: redrive.Redrive) -> None:
    with pytest.raises(TimeoutError):
        async with diverting("a", {}, rd=rd):
            await asyncio.sleep(0)
            fail()
    assert len((await rd.dead.list()).jobs) == 1
    async with diverting("a", {}, rd=rd):
        pass
    assert (await rd.dead.list()).jobs == []


def test_an_option_that_does_not_exist_is_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidOption, match="nonsense"):
        diverting("a", {}, nonsense=1)


@pytest.mark.parametrize("swallow", [True, False])
async def test_inside_a_task_that_blocking_code_drains(database: Path, swallow: bool) -> None:
    """The task runs on the loop that a blocking call would wait for."""
    rd = redrive.Redrive(database)

    @rd.task(max_attempts=1)
    async def work() -> None:
        to_dead_letter("inner", {}, TimeoutError(), rd=rd)
        with diverting("block", {}, rd=rd, swallow=swallow):
            fail()

    def drain() -> set[str | None]:
        with rd.blocking() as q:
            q.enqueue("work")
            q.drain()
            return {job.key for job in q.run(rd.dead.list()).jobs}

    assert {"inner", "block"} <= await soon(asyncio.to_thread(drain))


# -- from many processes at once

SCRIPT = """
    import sys
    import redrive

    database, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rd = redrive.Redrive(database)
    for n in range(number):
        redrive.to_dead_letter(f"{name}-{n}", {"text": "x" * 200_000}, TimeoutError(name), rd=rd)
        redrive.to_dead_letter("shared", {"text": "y"}, ConnectionError(f"{name}-{n}"), rd=rd)
    print("done", flush=True)
"""


@pytest.mark.behaviour("001-15", "001-13")
async def test_many_processes_record_at_once_and_nothing_is_lost(
    database: Path, size: Callable[[int, int], int]
) -> None:
    processes, number = size(3, 8), size(6, 40)
    children = [process(SCRIPT, database, f"p{n}", number) for n in range(processes)]
    running = [child.__enter__() for child in children]
    try:
        assert await soon(asyncio.to_thread(lambda: [child.wait() for child in running])) == [0] * processes
    finally:
        for child in children:
            child.__exit__(None, None, None)
    async with opened(database) as rd:
        lines = [json.loads(line) for line in (await rd.dead.export()).lines]
        assert len(lines) == processes * number + 1
        by_id = {line["job_id"]: line for line in lines}
        assert all(len(line["payload"]["text"]) == 200_000 for id, line in by_id.items() if id != "shared")
        assert by_id["shared"]["attempt"] == processes * number
        (shared,) = (await rd.dead.list(key="shared")).jobs
        told = {attempt.failure.message for attempt in (await rd.jobs.get(shared.id)).history if attempt.failure}
        assert told == {f"p{p}-{n}" for p in range(processes) for n in range(number)}
        assert rd.spool.count() == 0


EXITS = """
    import os, sys
    import redrive

    rd = redrive.Redrive(sys.argv[1])
    redrive.to_dead_letter("a", {}, TimeoutError(), rd=rd)
    print("returned", flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.behaviour("001-7")
async def test_what_was_recorded_is_there_after_a_kill(database: Path) -> None:
    with process(EXITS, database) as child:
        assert await soon(asyncio.to_thread(child.wait)) == -9
    async with opened(database) as rd:
        assert [job.key for job in (await rd.dead.list()).jobs] == ["a"]


FAR_AWAY = """
    import sys, time
    import redrive

    time.tzset()
    rd = redrive.Redrive(sys.argv[1])
    redrive.to_dead_letter("a", {}, TimeoutError(), rd=rd)
"""


@pytest.mark.behaviour("001-14", "C47")
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/Los_Angeles", "Asia/Kathmandu"])
async def test_times_are_utc_in_every_time_zone(database: Path, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    start = datetime.now(UTC)
    with process(FAR_AWAY, database) as child:
        assert await soon(asyncio.to_thread(child.wait)) == 0
    async with opened(database) as rd:
        said = json.loads((await rd.dead.export()).lines[0])["failed_at"]
    assert said.endswith("Z")
    assert start - timedelta(seconds=1) <= datetime.fromisoformat(said) <= datetime.now(UTC)


async def test_two_failures_recorded_at_one_moment_are_one_letter(
    rd: redrive.Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds no letter, and the first has made one before the second looks for a free number."""
    free, said = FailureRecorder._free, FailureDetails(task="pay")

    async def meanwhile(self: FailureRecorder, job: Job) -> int:
        monkeypatch.setattr(FailureRecorder, "_free", free)
        await rd.recorder.add("invoice", {"n": 1}, ValueError("first"), said)
        return await free(self, job)

    monkeypatch.setattr(FailureRecorder, "_free", meanwhile)
    await rd.recorder.add("invoice", {"n": 1}, ValueError("second"), said)
    (letter,) = (await rd.dead.list()).jobs
    assert letter.attempts == 2
