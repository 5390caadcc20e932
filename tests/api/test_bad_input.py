"""Bad input: one clear error that names the field and the limit, and a store that is as it was."""

import logging
import math
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import apsw
import pytest

import redrive
from redrive import ConfigError, InvalidInput, InvalidOption, InvalidPayload, KeyReused, Policy, Redrive
from redrive.deadletters.filters import WORDS as FILTER_WORDS
from redrive.errors import IllegalMove, JobNotFound, StoreRefused, StoreUnavailable
from redrive.flows.schedules import next_slot
from redrive.jobs.spool import SpoolEntry
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
    *(("budget", redrive.Budget(tokens=many)) for many in (-1, 1.5, 1.0, math.nan, "5", True, 10**30)),
    *(("budget", redrive.Budget(output_tokens=many)) for many in (-1, 1.5, math.inf)),
    *(("budget", redrive.Budget(cost=cost)) for cost in (-0.5, math.nan, math.inf, "1", 10**400)),
    *(("budget", redrive.Budget(seconds=long)) for long in (-1, math.nan, math.inf, timedelta(seconds=5))),
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


POLICIES: list[dict[str, Any]] = [
    {"max_attempts": 1.5}, {"max_attempts": 10**30}, {"max_attempts": "5"}, {"concurrency": 1.5}, {"rate": 5},
    {"rate": redrive.Rate(1.5, 1)}, {"on_lost": "dead-letter"}, {"scope": "x"}, {"strategy": "x"},
    {"backoff": ["doubling"]}, {"quote_errors": "no"}, {"breaker_after": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_policy_that_cannot_be_is_refused_where_it_is_said(database: Path, policy: dict[str, Any]) -> None:
    (field,) = policy
    rd = Redrive(database)
    with pytest.raises(InvalidOption, match=f"^bad.{field}: "):
        rd.task("bad", **policy)(_first)
    with pytest.raises(InvalidOption, match=f"^queues.bad.{field}: "):
        rd.registry.configure("bad", Policy(**policy))
    for said in (Policy(**policy), policy):
        with pytest.raises(ConfigError, match=r"^(queues|setting refused)"):
            Redrive(database, queues={"bad": said})
    assert "bad" not in rd.registry.handlers and "bad" not in rd.registry.queues


@pytest.mark.parametrize("queues", [{"bad": 5}, {"bad": "fast"}, ["bad"], "bad", {5: Policy()}], ids=str)
def test_policies_are_said_by_queue(database: Path, queues: Any) -> None:
    with pytest.raises(ConfigError, match="queues"):
        Redrive(database, queues=queues)


WORK: list[tuple[str, Any]] = [
    ("queues", "mail"), ("queues", 5), ("queues", [5]), ("queues", b"mail"), ("agents", "x"), ("agents", [""]),
    ("concurrency", 1.5), ("concurrency", "3"), ("concurrency", 0), ("concurrency", True),
    ("agent_concurrency", 0), ("agent_concurrency", "2"), ("grace", "x"), ("grace", -1), ("grace", math.nan),
    ("poll", 0), ("poll", "often"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WORK, ids=repr)
async def test_a_worker_that_cannot_be(rd: Redrive, field: str, value: Any) -> None:
    ways: list[Callable[[], Awaitable[object]]] = [lambda: rd.drain(**{field: value})]
    if field not in ("agent_concurrency", "poll"):
        ways.append(lambda: rd.worker(**{field: value}).__aenter__())
    for way in ways:
        with pytest.raises(InvalidOption) as refused:
            await soon(way())
        assert refused.value.field == field
    with pytest.raises(InvalidOption, match=f"^{field}: "):
        rd.make_worker(**{field: value})


@pytest.mark.parametrize("said", [{"grace": math.nan}, {"grace": -1}, {"poll": 0}, {"agent_concurrency": 0}], ids=str)
def test_a_setting_of_all_workers_that_cannot_be(database: Path, said: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(said))}: "):
        Redrive(database, **said)


async def test_a_worker_takes_any_list_of_names(rd: Redrive) -> None:
    rd.task("mail")(_first)
    for names in (["mail"], ("mail",), {"mail"}, iter(["mail"])):
        await rd.enqueue("mail", {"text": "a"})
        assert await soon(rd.drain(queues=names)) == 1


def _first(text: str) -> str:
    return text


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


@pytest.mark.file("another file stands where the store should be")
async def test_a_file_that_is_no_database(database: Path) -> None:
    database.write_bytes(b"this is not a database at all" * 100)
    with pytest.raises(StoreRefused, match=r"jobs\.db"):
        await Redrive(database).open()
    assert database.read_bytes() == b"this is not a database at all" * 100


@pytest.mark.file("another file stands where the store should be")
async def test_a_database_of_something_else(database: Path) -> None:
    connection = apsw.Connection(str(database))
    connection.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    connection.close()
    with pytest.raises(StoreRefused, match="something else"):
        await Redrive(database).open()
    assert apsw.Connection(str(database)).execute("SELECT x FROM theirs").get == 1


@pytest.mark.file("a newer version has made the file")
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
    job = rd._enqueuer.prepare(rd._enqueuer.plan("work", {}), {"a": 1}).job
    rd.spool.append(SpoolEntry(job))
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
    "unknown lane": (lambda rd: rd.dead.list(lane="nope"), "lane"),
    "unknown category": (lambda rd: rd.dead.list(category="nope"), "category"),
    "unknown because": (lambda rd: rd.dead.list(because="nope"), "because"),
    "unknown reason": (lambda rd: rd.jobs.list(reason="nope"), "reason"),
    "unknown lane of many": (lambda rd: rd.dead.discard(lane="nope"), "lane"),
    "ids as a text": (lambda rd: rd.jobs.list(ids="abc"), "ids"),
    "limit of none": (lambda rd: rd.jobs.list(limit=0), "limit"),
    "limit too high": (lambda rd: rd.dead.list(limit=10_001), "limit"),
    "not a cursor": (lambda rd: rd.jobs.list(cursor="zzz"), "cursor"),
    "a number as a cursor": (lambda rd: rd.jobs.list(cursor=5), "cursor"),
    "a list as a cursor": (lambda rd: rd.dead.list(cursor=["a"]), "cursor"),
    "one id as ids": (lambda rd: rd.dead.discard(ids="abc"), "ids"),
    "a number as ids": (lambda rd: rd.dead.purge(5), "ids"),
    "a set of ids": (lambda rd: rd.dead.redrive(ids={"abc"}), "ids"),
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


@pytest.mark.parametrize("name", FILTER_WORDS)
async def test_every_word_that_a_job_can_carry_is_a_filter(rd: Redrive, name: str) -> None:
    for word in FILTER_WORDS[name]:
        assert (await rd.jobs.list(**{name: word})).jobs == []


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


BY_ID: dict[str, Callable[[Redrive, Any], Awaitable[object]]] = {
    "get": lambda rd, id: rd.jobs.get(id),
    "story": lambda rd, id: rd.jobs.story(id),
    "result": lambda rd, id: rd.jobs.result(id),
    "cancel": lambda rd, id: rd.jobs.cancel(id),
    "approve": lambda rd, id: rd.jobs.approve(id),
    "reject": lambda rd, id: rd.jobs.reject(id),
    "resolve": lambda rd, id: rd.jobs.resolve(id, why="seen"),
    "status": lambda rd, id: rd.status(id),
    "outcome": lambda rd, id: rd.outcome(id),
    "retry": lambda rd, id: rd.retry(id),
    "show": lambda rd, id: rd.dead.show(id),
    "edit": lambda rd, id: rd.dead.edit(id, {}),
    "preview edit": lambda rd, id: rd.dead.preview_edit(id, {}),
    "diff": lambda rd, id: rd.dead.diff(id, 1, 2),
    "inputs": lambda rd, id: rd.dead.inputs(id),
    "notes": lambda rd, id: rd.dead.notes(id),
    "undo": lambda rd, id: rd.dead.undo(id),
    "redrive many": lambda rd, id: rd.dead.redrive(ids=[id]),
    "discard many": lambda rd, id: rd.dead.discard(ids=[id]),
    "purge": lambda rd, id: rd.dead.purge([id]),
    "workflow": lambda rd, id: rd.workflows.get(id),
    "redrives": lambda rd, id: rd.redrives.get(id),
}


@pytest.mark.parametrize("id", [None, 5, ["abc"], b"abc", "\ud800"], ids=ascii)
@pytest.mark.parametrize("verb", BY_ID)
async def test_an_id_that_is_no_text(rd: Redrive, verb: str, id: Any) -> None:
    await rd.enqueue("work")
    with pytest.raises(InvalidInput, match=r"is not an id: ids are texts|is not UTF-8") as refused:
        await BY_ID[verb](rd, id)
    assert refused.value.field in ("id", "ids", "act", "redrive")


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


@pytest.mark.parametrize("field", ["retry_on", "give_up_on", "effects", "requires", "credentials"])
@pytest.mark.parametrize("said", [5, "ValueError", ["ValueError", 5], [5], int])
async def test_what_a_task_lists_is_checked_when_it_is_registered(rd: Redrive, field: str, said: Any) -> None:
    with pytest.raises(InvalidOption, match=f"^{field}: "):
        rd.task("work", **{field: said})(lambda: None)
    assert "work" not in rd.registry.handlers


async def test_what_is_unusual_and_right_is_taken(rd: Redrive) -> None:
    rd.task("set", retry_on={ValueError, KeyError}, give_up_on=frozenset({TypeError}), max_attempts=10**6)(_first)
    rd.registry.configure("kept", Policy(retention=inf, max_age=inf, cap=inf, stalled_after=inf, max_attempts=5000))
    assert rd.make_worker(grace=inf).grace == inf
    with pytest.raises(InvalidOption):
        rd.registry.configure("kept", Policy(lease=inf))


async def test_one_exception_class_is_a_list_of_one(rd: Redrive) -> None:
    @rd.task(retry_on=ValueError, max_attempts=2, base=0)
    async def work() -> None:
        raise ValueError("again")

    job = await work.enqueue()
    await soon(rd.drain())
    assert [str(attempt.cause and attempt.cause.detail) for attempt in (await job.refresh()).history] == [
        "asked_to_retry"
    ] * 2


ODD: dict[str, tuple[str, Callable[[Redrive, str], Any]]] = {
    "half a key": ("key", lambda rd, id: rd.jobs.list(key="\ud800")),
    "half a queue": ("queue", lambda rd, id: rd.dead.discard(queue="\ud800")),
    "no time": ("since", lambda rd, id: rd.redrives.plan(since=math.nan)),
    "no time to act on": ("since", lambda rd, id: rd.dead.discard(since=math.nan)),
    "a text to edit to": ("payload", lambda rd, id: rd.dead.edit(id, "x")),  # type: ignore[arg-type]
    "a number to repeat": ("repeat", lambda rd, id: rd.dead.edit(id, {}, repeat=5)),  # type: ignore[arg-type]
    "a run in words": ("run", lambda rd, id: rd.dead.diff(id, "1", 2)),  # type: ignore[arg-type]
    "nothing to call": ("task", lambda rd, id: rd.call(None, {})),  # type: ignore[arg-type]
    "nothing to submit": ("task", lambda rd, id: rd.submit(5, {})),  # type: ignore[arg-type]
    "no group": ("fingerprint", lambda rd, id: rd.groups.show(None)),  # type: ignore[arg-type]
    "a broken limit": ("limit", lambda rd, id: rd.sessions.inbox("s", limit=-1)),
    "no session": ("session_id", lambda rd, id: rd.sessions.grants(None)),  # type: ignore[arg-type]
    "a list of sessions": ("session_id", lambda rd, id: rd.sessions.costs([])),  # type: ignore[arg-type]
    "a notice by number": ("notice", lambda rd, id: rd.sessions.acknowledge("s", 5)),  # type: ignore[arg-type]
    "no category": ("category", lambda rd, id: rd.reports.failures(category="nope")),
    "a number of items": ("items", lambda rd, id: rd.enqueue_many("work", 5)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("kind", ODD)
async def test_odd_input_is_one_error_that_names_its_field(rd: Redrive, database: Path, kind: str) -> None:
    rd.task("work")(_first)
    letter = await rd.dead.add("1", {"n": 1}, ValueError("no"), task="work")
    field, ask = ODD[kind]
    await rd.groups.list()  # a trouble is noticed when somebody looks
    before = snapshot(database)
    with pytest.raises(InvalidInput) as refused:
        await ask(rd, letter.id)
    assert refused.value.field == field
    assert snapshot(database) == before


async def test_a_preview_of_what_is_no_payload_says_so(rd: Redrive) -> None:
    letter = await rd.dead.add("1", {"n": 1}, ValueError("no"), task="work")
    preview = await rd.dead.preview_edit(letter.id, "x")  # type: ignore[arg-type]
    assert (preview.ok, [error.field for error in preview.errors]) == (False, ["payload"])
