"""Bad input: one clear error that names the field and the limit, and a store that is as it was."""

import logging
import math
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import redrive
from redrive import InvalidInput, InvalidOption, InvalidPayload, KeyReused, Redrive
from redrive.errors import IllegalMove, JobNotFound, StoreRefused, StoreUnavailable
from redrive.runtime.schedules import next_slot
from redrive.runtime.spool import Entry
from tests.support import snapshot, soon


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return {"deep": value}


PAYLOADS: dict[str, tuple[Any, str, str]] = {
    "a list": ([1], "payload", "JSON object"),
    "a text": ("text", "payload", "JSON object"),
    "a number": (5, "payload", "JSON object"),
    "NaN": ({"x": {"y": [math.nan]}}, "payload.x.y[0]", "nan"),
    "infinity": ({"x": math.inf}, "payload.x", "inf"),
    "too deep": (_nested(64), "payload", "64"),
    "far too deep": (_nested(100_000), "payload", "64"),
    "too large": ({"x": "a" * 1_048_600}, "payload", "1048576"),
    "an object": ({"ok": 1, "x": object()}, "payload.x", "JSON"),
    "a circle": (None, "payload", "64"),
    "broken text": ({"x": "\ud800"}, "payload.x", "JSON"),
    "bad key": ({("a", "b"): 1}, "payload", "JSON"),
}
_circle: dict[str, Any] = {}
_circle["self"] = _circle
PAYLOADS["a circle"] = (_circle, "payload", "64")


@pytest.mark.parametrize("kind", PAYLOADS)
async def test_a_payload_that_is_not_a_proper_json_object(rd: Redrive, database: Path, kind: str) -> None:
    payload, field, limit = PAYLOADS[kind]
    await rd.enqueue("work", {"fine": 1})
    before = snapshot(database)
    with pytest.raises(InvalidPayload) as refused:
        await rd.enqueue("work", payload)
    assert refused.value.field == field
    assert limit in refused.value.problem
    assert snapshot(database) == before


async def test_a_large_payload_fits_under_a_larger_limit(database: Path) -> None:
    async with Redrive(database, payload_limit=100) as rd:
        await rd.enqueue("work", {"x": "a" * 80})
        with pytest.raises(InvalidPayload, match="100"):
            await rd.enqueue("work", {"x": "a" * 100})


OPTIONS: list[tuple[str, Any]] = [
    ("colour", "red"), ("queue", ""), ("queue", "x" * 201), ("queue", "a\nb"), ("queue", 5),
    ("run_at", datetime(2030, 1, 1)), ("run_at", 5.0), ("run_at", "tomorrow"),  # noqa: DTZ001
    ("delay", -1), ("delay", math.nan), ("delay", math.inf), ("delay", "soon"), ("delay", True),
    ("delay", timedelta(seconds=-1)), ("priority", "urgent"), ("priority", 1),
    ("idempotency_key", ""), ("idempotency_key", "x" * 501), ("idempotency_key", 5), ("idempotency_key", "a\0"),
    ("session_id", ""), ("session_id", 5), ("agent", ""), ("agent", "x" * 201), ("model", ""), ("model", 5),
    ("max_attempts", 0), ("max_attempts", -1), ("max_attempts", 1001), ("max_attempts", 2.5), ("max_attempts", True),
    ("lease", 0), ("lease", -1), ("lease", "long"), ("max_age", 0), ("max_age", -1), ("max_age", "old"),
    ("on_lost", "shrug"), ("on_duplicate", "ignore"), ("budget", 100), ("budget", {"tokens": 1}),
    ("budget", redrive.Budget(tokens=-1)),
    ("headers", ["a"]), ("headers", "x"), ("headers", {"a": 1}), ("headers", {1: "a"}), ("fallback", 3),
    ("headers", {"a": "\ud800"}), ("headers", {"\udfff": "a"}),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), OPTIONS, ids=lambda value: repr(value)[:24])
async def test_an_option_that_cannot_be(rd: Redrive, database: Path, field: str, value: Any) -> None:
    await rd.open()
    before = snapshot(database)
    with pytest.raises(InvalidOption) as refused:
        await rd.enqueue("work", {"a": 1}, **{field: value})
    assert refused.value.field.partition(".")[0] == field
    assert str(refused.value).startswith(field)
    assert snapshot(database) == before


async def test_two_ways_to_say_when(rd: Redrive) -> None:
    from datetime import UTC

    with pytest.raises(InvalidOption, match="not both"):
        await rd.enqueue("work", run_at=datetime.now(UTC), delay=5)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", 5, None, ["a"]], ids=repr)
async def test_a_task_name_that_cannot_be(rd: Redrive, database: Path, name: Any) -> None:
    await rd.open()
    before = snapshot(database)
    with pytest.raises(InvalidOption) as refused:
        await rd.enqueue(name, {})
    assert refused.value.field == "task"
    assert snapshot(database) == before


async def test_a_key_reused_with_another_payload(rd: Redrive, database: Path) -> None:
    await rd.enqueue("work", {"a": 1}, idempotency_key="k")
    before = snapshot(database)
    with pytest.raises(KeyReused) as refused:
        await rd.enqueue("work", {"a": 2}, idempotency_key="k")
    assert refused.value.field == "idempotency_key"
    assert snapshot(database) == before


async def test_an_illegal_move_is_not_bad_input(rd: Redrive, database: Path) -> None:
    job = await rd.enqueue("work")
    await job.cancel()
    before = snapshot(database)
    with pytest.raises(IllegalMove, match="discarded") as refused:
        await job.cancel()
    assert not isinstance(refused.value, InvalidInput)
    assert snapshot(database) == before


@pytest.mark.parametrize(
    ("line", "tz", "field"),
    [
        ("* * * *", "UTC", "schedule"), ("61 * * * *", "UTC", "schedule"), ("nonsense", "UTC", "schedule"),
        ("* * * * * *", "UTC", "schedule"), ("0 3 31 2 *", "UTC", "schedule"),
        ("0 3 * * *", "Mars/Base", "schedule.tz"),
        ("0 3 * * *", "../../etc", "schedule.tz"), ("@sometimes", "UTC", "schedule"), ("", "UTC", "schedule"),
    ],
)  # fmt: skip
def test_a_bad_cron_line(line: str, tz: str, field: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        next_slot(line, tz, 0.0)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"url": "http://127.0.0.1:1/"}, "url"), ({"url": "http://[::1]/"}, "url"),
        ({"url": "ftp://example.com"}, "url"),
        ({"url": "http://169.254.169.254/latest"}, "url"), ({"url": "nonsense"}, "url"), ({}, "url"),
        ({"url": "https://example.com", "method": "BAD METHOD"}, "method"),
        ({"url": "https://example.com", "headers": {"Host": "x"}}, "headers.Host"),
        ({"url": "https://example.com", "headers": {"X-A": "a\r\nb"}}, "headers.X-A"),
        ({"url": "https://example.com", "timeout": -1}, "timeout"),
        ({"url": "https://example.com", "auth": "plain-secret"}, "auth"),
        ({"url": "https://example.com", "json": 1, "body": "x"}, "body"),
        ({"url": "https://example.com", "verify": False}, "verify"),
    ],
)  # fmt: skip
async def test_a_request_that_may_not_be_sent(
    rd: Redrive, database: Path, request_: dict[str, Any], field: str
) -> None:
    await rd.open()
    before = snapshot(database)
    with pytest.raises(InvalidPayload) as refused:
        await rd.enqueue("redrive.http", request_)
    assert refused.value.field == field
    assert snapshot(database) == before


async def test_a_request_that_is_no_object(rd: Redrive) -> None:
    with pytest.raises(InvalidPayload, match="JSON object"):
        await rd.enqueue("redrive.http", [1])  # type: ignore[arg-type]


async def test_a_file_that_is_no_database(database: Path) -> None:
    database.write_bytes(b"this is not a database at all" * 100)
    with pytest.raises(StoreRefused, match=r"jobs\.db"):
        await Redrive(database).open()
    assert database.read_bytes() == b"this is not a database at all" * 100


async def test_a_database_of_something_else(database: Path) -> None:
    connection = apsw.Connection(str(database))
    connection.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    connection.close()
    with pytest.raises(StoreRefused, match="something else"):
        await Redrive(database).open()
    assert apsw.Connection(str(database)).execute("SELECT x FROM theirs").get == 1


async def test_a_newer_database(database: Path) -> None:
    async with Redrive(database) as rd:
        await rd.enqueue("work")
    connection = apsw.Connection(str(database))
    connection.pragma("user_version", 999)
    connection.close()
    before = snapshot(database)
    with pytest.raises(StoreRefused, match=r"999.*upgrade"):
        await Redrive(database).open()
    assert snapshot(database) == before


async def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        await Redrive(tmp_path / "nowhere" / "jobs.db").open()
    assert not (tmp_path / "nowhere").exists()


async def test_a_torn_line_in_the_spool_is_kept_aside(
    rd: Redrive, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = rd._desk.prepare(rd._desk.plan("work", {}), {"a": 1}).job
    rd.spool.append(Entry(job))
    (spooled,) = rd.spool.folder.iterdir()
    spooled.write_bytes(b'{"job": {"id": "tor\n' + spooled.read_bytes())
    await soon(rd.drain())
    assert (await rd.jobs.get(job.id)).arguments == {"a": 1}
    (aside,) = rd.spool.folder.iterdir()
    assert aside.suffix == ".unreadable" and aside.read_bytes() == b'{"job": {"id": "tor\n'
    assert any("unreadable" in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


Ask = Callable[[Redrive], Awaitable[Any]]
LISTINGS: dict[str, tuple[Ask, str]] = {
    "unknown filter": (lambda rd: rd.jobs.list(colour="red"), "colour"),
    "unknown state": (lambda rd: rd.jobs.list(state="lost"), "state"),
    "state of a number": (lambda rd: rd.jobs.list(state=5), "state"),
    "states, one unknown": (lambda rd: rd.jobs.list(states=["dead", "lost"]), "state"),
    "ids as a text": (lambda rd: rd.jobs.list(ids="abc"), "ids"),
    "limit of none": (lambda rd: rd.jobs.list(limit=0), "limit"),
    "limit too high": (lambda rd: rd.dead.list(limit=10_001), "limit"),
    "not a cursor": (lambda rd: rd.jobs.list(cursor="zzz"), "cursor"),
    "purge without filter": (lambda rd: rd.dead.purge(), "filter"),
    "erase what": (lambda rd: rd.jobs.erase(), "erase"),
    "pause nothing": (lambda rd: rd.queues.pause(""), "queue"),
    "pause too long": (lambda rd: rd.queues.pause("x" * 201), "queue"),
    "timeout": (lambda rd: _result(rd, -1), "timeout"),
}


async def _result(rd: Redrive, timeout: float) -> None:
    await (await rd.enqueue("work")).result(timeout)


@pytest.mark.parametrize("kind", LISTINGS)
async def test_a_question_that_cannot_be_answered(rd: Redrive, kind: str) -> None:
    ask, field = LISTINGS[kind]
    with pytest.raises(InvalidInput) as refused:
        await ask(rd)
    assert refused.value.field == field


@pytest.mark.parametrize("said", [{"state": "waiting"}, {"states": "waiting"}, {"states": ["waiting", "dead"]}])
async def test_states_are_one_or_several(rd: Redrive, said: dict[str, Any]) -> None:
    job = await rd.enqueue("work")
    assert [found.id for found in (await rd.jobs.list(**said)).jobs] == [job.id]
    assert (await rd.jobs.list(**said, ids=[job.id])).jobs and not (await rd.jobs.list(state=["dead"])).jobs


@pytest.mark.parametrize("id", ["", "zz", "no-such-job", "0" * 32, "f" * 40, "%", "'; DROP TABLE jobs; --"])
async def test_a_job_that_does_not_exist(rd: Redrive, id: str) -> None:
    await rd.enqueue("work")
    for ask in (rd.jobs.get, rd.jobs.cancel, rd.dead.show, rd.dead.redrive):
        with pytest.raises(JobNotFound) as missing:
            await ask(id)
        assert missing.value.job_id == id
    assert (await rd.stats())["totals"]["waiting"] == 1


async def test_a_part_of_an_id_must_be_unique(rd: Redrive) -> None:
    jobs = [await rd.enqueue("work") for _ in range(2)]
    with pytest.raises(JobNotFound, match="several"):
        await rd.jobs.get(jobs[0].id[:8])
    assert (await rd.jobs.get(jobs[0].id[-10:])).id == jobs[0].id


ANSWERED: dict[str, Callable[[Redrive, str, dict[str, Any]], Awaitable[object]]] = {
    "cancel": lambda rd, id, said: rd.jobs.cancel(id, **said),
    "approve": lambda rd, id, said: rd.jobs.approve(id, **said),
    "reject": lambda rd, id, said: rd.jobs.reject(id, **said),
    "resolve": lambda rd, id, said: rd.jobs.resolve(id, **{"why": "seen", **said}),
    "resolve, not landed": lambda rd, id, said: rd.jobs.resolve(id, **{"why": "seen", **said}, landed=False),
    "pause": lambda rd, id, said: rd.queues.pause("work", **said),
    "resume": lambda rd, id, said: rd.queues.resume("work", **said),
}
WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "nobody": ({"who": ""}, "who"),
    "a number": ({"who": 7}, "who"),
    "a book of a name": ({"who": "x" * 201}, "who"),
    "lines in a name": ({"who": "me\nand you"}, "who"),
    "a book of a reason": ({"why": "x" * 1001}, "why"),
    "no reason but a list": ({"why": ["because"]}, "why"),
    "half a character": ({"why": "because \ud800"}, "why"),
}


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("verb", ANSWERED)
async def test_who_and_why_are_words_in_every_verb(rd: Redrive, database: Path, verb: str, words: str) -> None:
    said, field = WORDS[words]
    job = await rd.enqueue("work", {})
    before = snapshot(database)
    with pytest.raises(InvalidInput) as refused:
        await ANSWERED[verb](rd, job.id, said)
    assert refused.value.field == field
    assert snapshot(database) == before
