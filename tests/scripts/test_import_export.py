"""JSONL in and out: nothing is lost on the way, whatever the file looks like, and repeating it changes nothing."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import InvalidInput, InvalidOption
from redrive.core.store import Stale, Unknown
from redrive.jobs import jsonl, records
from redrive.jobs.jsonl import Line
from redrive.jobs.records import FIVE
from redrive.scripts import import_export
from redrive.scripts.import_export import Aside, Imported
from tests.chaos.processes import until
from tests.support import FakeClock, line_of, opened, process, snapshot, soon


def record(job_id: str = "a", **said: Any) -> str:
    five = {"job_id": job_id, "payload": {"site": job_id}, "error_class": "TimeoutError", "attempt": 1,
            "failed_at": "2027-01-10T03:00:00.000Z"}  # fmt: skip
    return json.dumps(five | said)


def written(path: Path, *lines: str, end: str = "\n") -> Path:
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return path


def adds_up(done: Imported) -> bool:
    return done.read == done.imported + done.updated + done.duplicates + done.completed + done.aside


async def letters(rd: redrive.Redrive, **filters: Any) -> list[Any]:
    found = (await rd.dead.list(limit=10_000, **filters)).jobs
    return await rd.store.get([job.id for job in found])


async def states(rd: redrive.Redrive) -> dict[str, str]:
    return {job.key or job.id: str(job.state) for job in (await rd.jobs.list(limit=10_000)).jobs}


# -- in


@pytest.mark.behaviour("000-7", "000-95")
async def test_every_line_of_a_file_becomes_a_letter(rd: redrive.Redrive, tmp_path: Path) -> None:
    file = written(tmp_path / "queue.jsonl", *(record(f"job-{n}") for n in range(2_500)))
    done = await rd.dead.import_(file, task="deliver")
    assert (done.read, done.imported, done.aside, done.ok, done.kept_in) == (2_500, 2_500, 0, True, None)
    assert adds_up(done)
    (one,) = await letters(rd, key="job-2499")
    assert (one.task, one.queue, one.arguments, one.because) == ("deliver", "deliver", {"site": "job-2499"}, "imported")
    assert (await rd.stats())["totals"]["dead"] == 2_500
    assert not (tmp_path / "queue.jsonl.aside.jsonl").exists()


@pytest.mark.behaviour("001-10", "000-7", "C23")
async def test_importing_again_changes_nothing(rd: redrive.Redrive, tmp_path: Path, database: Path) -> None:
    file = written(tmp_path / "queue.jsonl", record("a"), record("b"), '{"event": "same"}', '{"event": "same"}')
    first = await rd.dead.import_(file)
    before = snapshot(database)
    again = await rd.dead.import_(file)
    assert (first.imported, again.imported, again.duplicates) == (4, 0, 4)
    assert snapshot(database) == before


async def test_lines_without_ids_are_all_kept_even_when_they_say_the_same(rd: redrive.Redrive) -> None:
    """Two events that look alike are two events."""
    done = await rd.dead.import_(['{"event": "login"}'] * 3 + ['{"event": "logout"}'])
    assert (done.imported, done.duplicates) == (4, 0)


@pytest.mark.behaviour("000-7")
async def test_bad_lines_are_kept_aside_and_the_rest_is_imported(rd: redrive.Redrive, tmp_path: Path) -> None:
    bomb = '{"payload": ' + "[" * 200 + "]" * 200 + "}"
    huge = json.dumps({"job_id": "huge", "payload": "x" * 1_200_000})
    file = written(
        tmp_path / "queue.jsonl", record("a"), "", "garbage", "  ", "[1, 2]", bomb, huge, '{"payload": {"x": NaN}}',
        record("poison", attempt="many"), record("b"), '{"job_id": "torn", "payl', end="",
    )  # fmt: skip
    done = await rd.dead.import_(file)
    assert (done.read, done.imported, done.aside, done.ok) == (9, 2, 7, False)
    assert adds_up(done)
    assert [line for line, _ in done.problems] == [3, 5, 6, 7, 8, 9, 11]
    assert done.problems[-1][1].startswith("torn: ")
    assert "the limit is 1048576" in done.problems[3][1]
    aside = [json.loads(line) for line in Path(str(done.kept_in)).read_text("utf-8").splitlines()]
    assert [entry["line"] for entry in aside] == [3, 5, 6, 7, 8, 9, 11]
    assert (aside[0]["text"], aside[3]["text"], aside[-1]["text"]) == ("garbage", huge, '{"job_id": "torn", "payl')
    assert all(entry["why"] for entry in aside)
    assert stat.S_IMODE(Path(str(done.kept_in)).stat().st_mode) == 0o600
    await rd.dead.import_(file)
    assert len(Path(str(done.kept_in)).read_text("utf-8").splitlines()) == 7  # each of them once


@pytest.mark.behaviour("T-19d")
async def test_a_line_with_a_key_twice_is_kept_aside(rd: redrive.Redrive, tmp_path: Path) -> None:
    """Whichever of the two values were kept, the other would be lost."""
    twice = record("b").replace('"site": "b"', '"site": "b", "site": "c"')
    done = await rd.dead.import_(written(tmp_path / "failed.jsonl", record("a"), twice), task="post")
    assert (done.read, done.imported, done.aside) == (2, 1, 1)
    assert done.problems[0][0] == 2 and '"site" twice' in done.problems[0][1]
    kept = json.loads((tmp_path / "failed.jsonl.aside.jsonl").read_text("utf-8"))
    assert kept["text"] == twice


async def test_bytes_that_are_no_text_are_kept_aside_readably(rd: redrive.Redrive, tmp_path: Path) -> None:
    file = tmp_path / "queue.jsonl"
    file.write_bytes(b'{"job_id": "\xff\xfe"}\n' + record("a").encode() + b"\r\n\x00\n")
    done = await rd.dead.import_(file, aside=tmp_path / "elsewhere.jsonl")
    assert (done.imported, done.aside) == (1, 2)
    kept = [json.loads(line)["text"] for line in (tmp_path / "elsewhere.jsonl").read_text("utf-8").splitlines()]
    assert kept == ['{"job_id": "\\xff\\xfe"}', "\x00"]


async def test_a_line_that_never_ends_does_not_fill_the_memory(
    rd: redrive.Redrive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_export.jsonl, "LONGEST", 1000)
    monkeypatch.setattr(import_export, "_SPACE", 0)
    file = written(tmp_path / "queue.jsonl", record("a"), "x" * 5_000_000, record("b"))
    done = await rd.dead.import_(file)
    assert (done.imported, done.aside) == (2, 1)
    assert done.problems == [(2, "line: is longer than 1000 bytes")]
    (entry,) = [json.loads(line) for line in Path(str(done.kept_in)).read_text("utf-8").splitlines()]
    assert entry["cut"] and entry["text"] == "x" * 1000


@pytest.mark.behaviour("000-7")
async def test_a_file_that_still_grows_loses_no_line(rd: redrive.Redrive, tmp_path: Path) -> None:
    """Cut anywhere: whatever a first import has not taken in, the next one does."""
    whole = "\n".join(record(f"job-{n}") for n in range(5)) + "\n"
    file = tmp_path / "queue.jsonl"
    for end in range(0, len(whole), 37):
        file.write_text(whole[:end], encoding="utf-8")
        done = await rd.dead.import_(file)
        assert adds_up(done) and done.aside <= 1
    file.write_text(whole, encoding="utf-8")
    assert (await rd.dead.import_(file)).aside == 0
    assert sorted(await states(rd)) == [f"job-{n}" for n in range(5)]


async def test_a_missing_file_or_a_folder_is_refused_and_nothing_is_made(rd: redrive.Redrive, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await rd.dead.import_(tmp_path / "nowhere.jsonl")
    with pytest.raises(InvalidInput, match="is a folder"):
        await rd.dead.import_(tmp_path)
    for options in ({"as_": "running"}, {"queue": ""}, {"task": "x" * 201}, {"mapping": {"nonsense": "x"}}):
        with pytest.raises(InvalidOption):
            await rd.dead.import_([record()], **options)
    assert await states(rd) == {}


async def test_another_programs_queue_by_a_mapping(rd: redrive.Redrive, tmp_path: Path) -> None:
    file = written(
        tmp_path / "chronicle.jsonl",
        '{"id": 7, "event": {"kind": "reply"}, "exc": "ConnectionError", "tries": 2, "ts": 1799550000}',
        '{"id": 8, "event": [1, 2], "exc": "KeyError"}',
        '{"id": 9}',
    )
    mapping = {"job_id": "id", "payload": "event", "error_class": "exc", "attempt": "tries", "failed_at": "ts"}
    done = await rd.dead.import_(file, queue="chronicle", task="deliver", mapping=mapping)
    assert done.imported == 3
    found = {job.key: job for job in await letters(rd)}
    assert {key: (job.queue, job.task, job.lane) for key, job in found.items()} == {
        "7": ("chronicle", "deliver", "delayed"),
        "8": ("chronicle", "deliver", "manual"),
        "9": ("chronicle", "deliver", "manual"),
    }
    assert found["7"].updated_at == 1_799_550_000
    assert found["9"].arguments == {"id": 9}


@pytest.mark.behaviour("000-7")
async def test_an_offline_queue_is_run_rather_than_buried(rd: redrive.Redrive) -> None:
    ran: list[str] = []

    @rd.task
    async def deliver(site: str) -> None:
        ran.append(site)

    lines = [record(name) for name in ("a", "b", "a")]
    done = await rd.dead.import_(lines, task="deliver", as_="waiting")
    assert (done.imported, done.duplicates) == (2, 1)
    await soon(rd.drain())
    assert sorted(ran) == ["a", "b"]
    assert (await rd.dead.import_(lines, task="deliver", as_="waiting")).duplicates == 3
    await soon(rd.drain())
    assert sorted(ran) == ["a", "b"]


@pytest.mark.behaviour("C23")
async def test_more_tries_of_a_known_job_are_a_further_failure(rd: redrive.Redrive) -> None:
    lines = [record("a", attempt=n, failed_at=f"2027-01-1{n}T03:00:00Z") for n in (1, 2, 3)]
    done = await rd.dead.import_(lines)
    assert (done.imported, done.updated, done.duplicates) == (1, 2, 0)
    (letter,) = await letters(rd)
    assert (letter.attempts, len(letter.history), letter.lane) == (3, 3, "delayed")
    assert (await rd.dead.import_(lines)).duplicates == 3
    await rd.dead.import_([record("a", attempt=5, failed_at="2027-01-14T03:00:00Z")])
    (letter,) = await letters(rd)
    assert (letter.attempts, letter.lane, letter.because) == (5, "manual", "attempts_exhausted")


async def test_a_job_id_that_stands_for_something_else_is_told_and_kept(rd: redrive.Redrive, tmp_path: Path) -> None:
    file = written(tmp_path / "queue.jsonl", record("a"), record("a", payload={"site": "other"}))
    done = await rd.dead.import_(file)
    assert (done.imported, done.aside) == (1, 1) and adds_up(done)
    assert "'a' stands for another payload already" in done.problems[0][1]
    assert '\\"other\\"' in Path(str(done.kept_in)).read_text("utf-8")
    (letter,) = await letters(rd)
    assert letter.arguments == {"site": "a"}


@pytest.mark.behaviour("001-10")
async def test_what_was_settled_here_is_not_brought_back_by_an_old_file(rd: redrive.Redrive) -> None:
    await rd.dead.import_([record("a"), record("b"), record("c")])
    by_key = {job.key: job.id for job in await letters(rd)}
    await rd.dead.discard(by_key["a"])
    await rd.jobs.resolve(by_key["b"], why="it had landed")
    await rd.dead.purge([by_key["c"]])
    assert (await rd.dead.import_([record("a"), record("b"), record("c")])).duplicates == 3
    assert await states(rd) == {"a": "discarded", "b": "done", "c": "purged"}


async def test_a_rehearsal_counts_like_the_import_and_writes_nothing(
    rd: redrive.Redrive, tmp_path: Path, database: Path
) -> None:
    await rd.dead.import_([record("known"), record("conflict"), record("done")])
    completed = written(tmp_path / "completed.jsonl", '{"job_id": "done"}')
    file = written(
        tmp_path / "queue.jsonl", record("known"), record("new"), record("new"), "garbage", record("done"),
        record("conflict", payload={}), record("known", attempt=3, failed_at="2027-01-11T03:00:00Z"),
    )  # fmt: skip
    before = snapshot(database)
    rehearsed = await rd.dead.import_(file, completed=completed, dry_run=True)
    assert snapshot(database) == before and not Path(f"{file}.aside.jsonl").exists()
    real = await rd.dead.import_(file, completed=completed)
    names = ("read", "imported", "updated", "duplicates", "completed", "aside", "closed")
    assert [getattr(rehearsed, name) for name in names] == [getattr(real, name) for name in names]
    assert (rehearsed.dry_run, rehearsed.kept_in, adds_up(rehearsed)) == (True, None, True)


# -- what is done already


@pytest.mark.behaviour("001-32", "001-35", "001-36")
async def test_completed_ids_are_skipped_and_their_letters_closed(rd: redrive.Redrive, tmp_path: Path) -> None:
    """An article that is out already must not be pushed a second time."""
    await rd.dead.import_([record("pushed"), record("lost")])
    completed = written(
        tmp_path / "completed.jsonl", '{"job_id": "pushed"}', "", '{"job_id": "also"}', '{"job_id": "to'
    )
    lines = [record("pushed"), record("also"), record("fresh")]
    done = await rd.dead.import_(lines, completed=completed, who="ada")
    assert (done.read, done.imported, done.completed, done.closed) == (3, 1, 2, 1)
    assert await states(rd) == {"pushed": "done", "lost": "dead", "fresh": "dead"}
    (pushed,) = (await rd.jobs.list(key="pushed")).jobs
    moves = [(move.move, move.who) for move in await rd.jobs.story(pushed.id)]
    assert moves == [("imported", None), ("resolved", "ada")]
    assert done.problems == [(4, "completed: line: is not JSON: Input data was truncated")]
    assert (done.unread, done.aside, done.ok) == (1, 0, False)


async def test_completed_ids_that_are_numbers_are_read_as_records_are(rd: redrive.Redrive) -> None:
    numbers = ['{"job_id": 1.0, "payload": {}}', '{"job_id": 2, "payload": {}}']
    done = await rd.dead.import_(numbers, completed=['{"job_id": 1.0}', "2"])
    assert (done.completed, done.imported, done.ok) == (2, 0, True)


async def test_many_unreadable_completed_ids_are_counted_and_the_first_told(rd: redrive.Redrive) -> None:
    done = await rd.dead.import_([record("a")], completed=['{"job_id": "a'] * 1_500, dry_run=True)
    assert (done.unread, len(done.problems), done.imported, done.ok) == (1_500, 1_000, 1, False)


@pytest.mark.behaviour("001-33", "001-34")
async def test_the_completed_file_may_be_missing_or_at_home(
    rd: redrive.Redrive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (await rd.dead.import_([record("a")], completed="~/agent/completed.jsonl")).imported == 1
    assert f"no file of completed ids at {tmp_path}/agent/completed.jsonl" in caplog.text
    (tmp_path / "agent").mkdir()
    written(tmp_path / "agent" / "completed.jsonl", "a", "é", '{"job_id": "b"}')
    done = await rd.dead.import_(
        [record("a"), record("b"), record("é"), record("c")], completed="~/agent/completed.jsonl"
    )
    assert (done.completed, done.imported, done.closed) == (3, 1, 1)


async def test_completed_ids_close_every_letter_of_the_job(rd: redrive.Redrive) -> None:
    first = await rd.dead.add("a", {"n": 1}, "ValueError")
    second = await rd.dead.add("a", {"n": 2}, "ValueError")
    third = await rd.enqueue("work", {})
    assert first.id != second.id
    done = await rd.dead.import_([], completed=["a", third.id])
    assert done.closed == 2
    assert (await rd.jobs.get(third.id)).state == "waiting"


# -- out


@pytest.mark.behaviour("001-9", "001-11", "C12")
async def test_an_export_makes_the_same_letters_in_another_store(rd: redrive.Redrive, tmp_path: Path) -> None:
    @rd.task(max_attempts=1)
    async def work(**anything: Any) -> None:
        raise ValueError("no")

    await rd.enqueue("work", {"n": 1, "deep": {"list": [1, None, "ü"]}}, idempotency_key="keyed", session_id="s")
    await rd.enqueue("work", {"n": 2})
    await soon(rd.drain())
    await rd.dead.add("script", ["a", "list"], TimeoutError("slow"))
    file = tmp_path / "out.jsonl"
    done = await rd.dead.export(file)
    assert (done.count, done.path) == (3, str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    async with opened(tmp_path / "other.db") as other:
        assert (await other.dead.import_(file)).imported == 3
        back = [json.loads(line) for line in (await other.dead.export()).lines]
        five = [{name: line[name] for name in FIVE} for line in lines]
        assert sorted(map(str, five)) == sorted(str({name: line[name] for name in FIVE}) for line in back)
        ours, theirs = [
            {(job.id, job.queue, job.task, job.fingerprint, job.session_id) for job in await letters(app)}
            for app in (rd, other)
        ]
        assert ours == theirs
    assert (await rd.dead.import_(file)).duplicates == 3  # at home they are known


async def test_an_export_carries_what_somebody_has_edited(rd: redrive.Redrive, tmp_path: Path) -> None:
    @rd.task(max_attempts=1)
    async def pay(amount: int) -> None:
        raise ValueError(f"no {amount}")

    job = await pay.enqueue(amount=900)
    await soon(rd.drain())
    await rd.dead.edit(job.id, {"amount": 9}, who="me", why="9, not 900")
    await soon(rd.drain())
    lines = (await rd.dead.export()).lines
    assert json.loads(lines[0])["payload"] == {"amount": 9}
    async with opened(tmp_path / "other.db") as other:
        assert (await other.dead.import_(lines)).imported == 1
        assert [letter.arguments for letter in await letters(other)] == [{"amount": 9}]
    for dry_run in (True, False):
        at_home = await rd.dead.import_(lines, dry_run=dry_run)
        assert (at_home.duplicates, at_home.ok) == (1, True)
    assert [letter.arguments for letter in await letters(rd)] == [{"amount": 900}]  # still there, below the edit


async def test_an_export_of_a_part(rd: redrive.Redrive) -> None:
    await rd.dead.import_([record("a"), record("b", error_class="KeyError"), record("c", queue="other")])
    for filters, expected in (
        ({}, {"a", "b", "c"}),
        ({"lane": "manual"}, {"b"}),
        ({"error_class": "TimeoutError"}, {"a", "c"}),
        ({"queue": "other"}, {"c"}),
    ):
        assert {json.loads(line)["job_id"] for line in (await rd.dead.export(**filters)).lines} == expected
    with pytest.raises(InvalidInput, match="is not a filter"):
        await rd.dead.export(nonsense=1)


async def test_a_file_that_exists_is_not_overwritten_by_accident(rd: redrive.Redrive, tmp_path: Path) -> None:
    await rd.dead.import_([record("a")])
    file = written(tmp_path / "out.jsonl", "precious")
    with pytest.raises(InvalidInput, match="exists already"):
        await rd.dead.export(file)
    assert file.read_text() == "precious\n"
    await rd.dead.export(file, append=True)
    assert len(file.read_text().splitlines()) == 2
    await rd.dead.export(file, overwrite=True)
    assert [json.loads(line)["job_id"] for line in file.read_text().splitlines()] == ["a"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for nowhere in (tmp_path, tmp_path / "no" / "folder.jsonl"):
        with pytest.raises(InvalidInput, match="cannot be a file"):
            await rd.dead.export(nowhere)
    assert (
        sorted(path.name for path in tmp_path.glob("*.part")) == sorted(path.name for path in tmp_path.glob(".*")) == []
    )


async def test_an_export_that_fails_leaves_nothing_behind(
    rd: redrive.Redrive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rd.dead.import_([record("a")])
    monkeypatch.setattr(os, "fsync", _no_space)
    with pytest.raises(OSError, match="No space"):
        await rd.dead.export(tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


async def test_an_export_into_an_open_file(rd: redrive.Redrive) -> None:
    await rd.dead.import_([record(f"job-{n}") for n in range(2_100)])
    file = io.BytesIO()
    assert (await rd.dead.export(file)).count == 2_100
    assert len({json.loads(line)["job_id"] for line in file.getvalue().splitlines()}) == 2_100


async def test_secrets_in_errors_stay_at_home(rd: redrive.Redrive) -> None:
    job = await rd.dead.add("a", {"api_key": "sk-aaaaaaaaaaaaaaaa"}, ValueError("password=hunter22 is wrong"))
    assert "hunter22" not in (job.error or "")
    (line,) = (await rd.dead.export()).lines
    assert "hunter22" not in line and json.loads(line)["payload"] == {"api_key": "sk-aaaaaaaaaaaaaaaa"}


# -- many at once

APPEND = """
    import asyncio, sys
    import redrive

    async def main(database, file, name):
        async with redrive.Redrive(database) as rd:
            for _ in range(5):
                await rd.dead.export(file, append=True, queue=name)

    asyncio.run(main(*sys.argv[1:4]))
"""


@pytest.mark.behaviour("001-15", "C24")
async def test_many_processes_append_large_records_and_every_line_is_whole(
    database: Path, tmp_path: Path, size: Callable[[int, int], int]
) -> None:
    processes, number = size(3, 8), 4
    file = tmp_path / "shared.jsonl"
    async with opened(database) as rd:
        for name in range(processes):
            big = [record(f"{name}-{n}", payload={"text": "x" * 300_000}) for n in range(number)]
            assert (await rd.dead.import_(big, queue=f"q{name}")).imported == number
    children = [process(APPEND, database, file, f"q{name}") for name in range(processes)]
    running = [child.__enter__() for child in children]
    try:
        assert await soon(asyncio.to_thread(lambda: [child.wait() for child in running])) == [0] * processes
    finally:
        for child in children:
            child.__exit__(None, None, None)
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert len(lines) == processes * number * 5
    assert {len(line["payload"]["text"]) for line in lines} == {300_000}
    async with opened(tmp_path / "other.db") as other:
        done = await other.dead.import_(file)
        assert (done.imported, done.duplicates) == (processes * number, processes * number * 4)


@pytest.mark.behaviour("C24")
async def test_a_torn_line_of_a_crash_does_not_swallow_the_next(rd: redrive.Redrive, tmp_path: Path) -> None:
    file = written(tmp_path / "shared.jsonl", '{"job_id": "to', end="")
    await rd.dead.import_([record("a")])
    await rd.dead.export(file, append=True)
    async with opened(tmp_path / "other.db") as other:
        done = await other.dead.import_(file)
        assert (done.imported, done.aside) == (1, 1)


async def test_an_import_is_told_once(rd: redrive.Redrive, clock: FakeClock) -> None:
    told: list[Any] = []
    rd.subscribe("imported", told.append)
    await rd.dead.import_([record(f"job-{n}") for n in range(50)], queue="q")
    assert [(event.queue, event.at, event.data["imported"]) for event in told] == [("q", clock.now(), 50)]


async def test_progress_is_told_in_bytes(rd: redrive.Redrive, tmp_path: Path) -> None:
    file = written(tmp_path / "queue.jsonl", *(record(f"job-{n}") for n in range(1_500)))
    seen: list[int] = []
    await rd.dead.import_(file, progress=seen.append)
    assert len(seen) == 2 and sum(seen) == file.stat().st_size


async def test_a_file_is_read_as_it_is_taken_in(rd: redrive.Redrive) -> None:
    """A thousand lines at a time, however many there are."""
    consumed = 0
    ahead: list[int] = []

    def many() -> Any:
        nonlocal consumed
        for consumed in range(1, 5_001):
            yield record(f"job-{consumed}")

    await rd.dead.import_(many(), progress=lambda _: ahead.append(consumed))
    assert ahead == [1_000, 2_000, 3_000, 4_000, 5_000]


IMPORT = """
    import asyncio, sys
    import redrive

    async def main(database, file):
        async with redrive.Redrive(database) as rd:
            await rd.dead.import_(file, progress=lambda _: print("some", flush=True))

    asyncio.run(main(*sys.argv[1:3]))
"""


@pytest.mark.behaviour("000-7", "001-7")
async def test_an_import_that_is_killed_is_simply_repeated(database: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "queue.jsonl", *(record(f"job-{n}") for n in range(5_000)))
    with process(IMPORT, database, file) as child:
        assert await line_of(child) == "some"
    async with opened(database) as rd:
        before = (await rd.stats())["totals"]["dead"]
        done = await rd.dead.import_(file)
        assert (done.read, done.imported, done.duplicates) == (5_000, 5_000 - before, before)
        assert before >= 1_000 and (await rd.stats())["totals"]["dead"] == 5_000


@pytest.mark.parametrize("how", ["somebody was faster", "nobody knows, it was not", "nobody knows, it was"])
async def test_a_further_failure_is_not_told_as_known_when_its_letter_moved_meanwhile(
    rd: redrive.Redrive, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    await rd.dead.import_([record("a", attempt=1)])
    write, refused = rd.store.apply, [how]

    async def apply(commits: Any) -> Any:
        if not refused:
            return await write(commits)
        said = refused.pop()
        if said == "nobody knows, it was":
            await write(commits)
        return [Stale() if said == "somebody was faster" else Unknown("cut off") for _ in commits]

    monkeypatch.setattr(rd.store, "apply", apply)
    done = await soon(rd.dead.import_([record("a", attempt=2, failed_at="2027-01-11T03:00:00.000Z")]))
    assert (done.updated, done.duplicates) == (1, 0)
    (letter,) = await letters(rd)
    assert letter.attempts == 2


# -- following


async def following(rd: redrive.Redrive, source: Path, stop: asyncio.Event, **said: Any) -> asyncio.Task[Imported]:
    return asyncio.create_task(rd.dead.import_(source, follow=stop, **said))


def append(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + end)


async def until_states(rd: redrive.Redrive, expected: dict[str, str]) -> None:
    async def looked() -> bool:
        return await states(rd) == expected

    await until(f"the states are {expected}", looked)


@pytest.mark.behaviour("H-6b")
async def test_lines_are_taken_in_as_they_are_appended(rd: redrive.Redrive, tmp_path: Path) -> None:
    file, stop = tmp_path / "failures.jsonl", asyncio.Event()
    work = await following(rd, file, stop, task="deliver")
    append(file, record("a"), record("b"), '{"job_id": "to', end="")
    await until_states(rd, {"a": "dead", "b": "dead"})
    append(file, 'rn", "payload": {}}', "garbage")
    await until_states(rd, {"a": "dead", "b": "dead", "torn": "dead"})
    file.rename(tmp_path / "failures.jsonl.1")
    append(file, record("c"))
    await until_states(rd, {"a": "dead", "b": "dead", "torn": "dead", "c": "dead"})
    os.truncate(file, 0)
    append(file, record("d"), '{"job_id": "not done', end="")
    await until_states(rd, {"a": "dead", "b": "dead", "torn": "dead", "c": "dead", "d": "dead"})
    stop.set()
    done = await work
    assert (done.read, done.imported, done.aside, done.duplicates) == (6, 5, 1, 0)
    assert adds_up(done) and not done.ok
    (kept,) = [json.loads(line) for line in Path(str(done.kept_in)).read_text().splitlines()]
    assert (kept["line"], kept["text"]) == (4, "garbage")
    again = await rd.dead.import_(file, task="deliver")
    assert (again.duplicates, again.imported, again.aside) == (1, 0, 1)


@pytest.mark.behaviour("H-6b")
async def test_completed_ids_that_are_appended_close_the_letters_that_stand(
    rd: redrive.Redrive, tmp_path: Path
) -> None:
    file, ids, stop = written(tmp_path / "q.jsonl", record("a"), record("b")), tmp_path / "done.txt", asyncio.Event()
    ids.write_text("b\n")
    work = await following(rd, file, stop, completed=ids)
    await until_states(rd, {"a": "dead"})
    append(ids, "a", "c")
    await until_states(rd, {"a": "done"})
    append(file, record("c"), record("d"))
    await until_states(rd, {"a": "done", "d": "dead"})
    stop.set()
    done = await work
    assert (done.read, done.imported, done.completed, done.closed) == (4, 2, 2, 1)


@pytest.mark.behaviour("H-6b")
async def test_what_a_followed_file_keeps_aside_is_told_at_once(
    rd: redrive.Redrive, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, stop = tmp_path / "q.jsonl", asyncio.Event()
    work = await following(rd, file, stop)
    await until("it is told", lambda: "there is no file at" in caplog.text)
    written(file, "garbage")
    await until("it is told", lambda: "line 1 of" in caplog.text and "is not JSON" in caplog.text)
    stop.set()
    assert (await work).aside == 1


@pytest.mark.behaviour("H-6b")
async def test_equal_lines_without_an_id_are_counted_by_the_file(rd: redrive.Redrive, tmp_path: Path) -> None:
    file, stop = written(tmp_path / "q.jsonl", '{"payload": {"n": 1}}', '{"payload": {"n": 1}}'), asyncio.Event()
    work = await following(rd, file, stop)

    async def letters_are(number: int) -> bool:
        return len(await letters(rd)) == number

    await until("2 letters", lambda: letters_are(2))
    rewritten = written(tmp_path / "new.jsonl", '{"payload": {"n": 1}}', '{"payload": {"n": 1}}', record("z"))
    rewritten.replace(file)  # the same lines in a new file are the same jobs
    await until("3 letters", lambda: letters_are(3))
    stop.set()
    assert (await work).duplicates == 2


@pytest.mark.parametrize("said", [{"dry_run": True}, {"source": io.BytesIO(b"")}])
async def test_what_cannot_be_followed_is_refused(rd: redrive.Redrive, tmp_path: Path, said: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="follow"):
        await rd.dead.import_(said.pop("source", tmp_path / "q.jsonl"), follow=asyncio.Event(), **said)


# -- completed ids out


@pytest.mark.behaviour("H-6c")
async def test_ids_of_done_jobs_are_read_again_as_completed(rd: redrive.Redrive, tmp_path: Path) -> None:
    @rd.task
    async def deliver(site: str) -> None: ...

    odd = ['{"brace"}', '"quoted"', "[list]", " spaces ", "ünïcode", "plain"]
    for key in odd:
        await deliver.options(idempotency_key=key).enqueue(key)
    bare = await deliver.enqueue("no key")
    waiting = await deliver.options(delay=3600, idempotency_key="later").enqueue("later")
    await rd.drain()
    done = await rd.jobs.export_completed(tmp_path / "done.txt", task="deliver")
    assert done.count == len(odd) + 1
    text = (tmp_path / "done.txt").read_bytes()
    read = [records.read_completed_id(line) for line in text.splitlines()]
    assert sorted(read) == sorted([*odd, bare.id]) and waiting.id not in read
    assert b"plain" in text.splitlines() and "ünïcode".encode() in text.splitlines()
    assert (await rd.jobs.export_completed(task="other")).lines == []
    with pytest.raises(InvalidInput, match="exists already"):
        await rd.jobs.export_completed(tmp_path / "done.txt")
    await rd.jobs.export_completed(tmp_path / "done.txt", append=True)
    assert (tmp_path / "done.txt").read_bytes() == text * 2


def test_a_line_that_is_longer_once_it_is_spelled_out_is_kept_aside_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl.read_lines, "__defaults__", (100,))  # what is 64 MB otherwise
    path = tmp_path / "aside.jsonl"
    for _ in range(2):
        Aside(path).keep([(Line(1, b"\xff" * 50), "is not JSON")], None)
    assert path.read_bytes().count(b"is not JSON") == 1
