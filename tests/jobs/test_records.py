"""Records: dead letters as lines of JSON, ours and other programs', and what becomes of them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.job import Failure, Job, State, keyed_id
from redrive.errors import InvalidInput, InvalidOption
from redrive.jobs.dead_letter import (
    CAP,
    TRANSIENT,
    UNNAMED,
    BirthRules,
    choose_lane,
    find_cause,
    find_id,
    has_failures,
    make_job,
    nth_id,
    number_id,
    read_failure,
    same_work,
    write_advice,
)
from redrive.jobs.records import (
    FIVE,
    Mapping,
    make_line,
    make_record,
    parse,
    read_completed_id,
    read_mapping,
    unwrap,
    wrap,
)

NOW = 1_800_000_000.0
BORN = BirthRules(NOW)


def line(**said: Any) -> bytes:
    five = {"job_id": "a", "payload": {"site": "one"}, "error_class": "TimeoutError", "attempt": 2,
            "failed_at": "2027-01-10T03:00:00Z"}  # fmt: skip
    return json.dumps({name: value for name, value in (five | said).items() if value is not ...}).encode()


def five_of(job: Job) -> dict[str, Any]:
    record = make_record(job)
    return {name: record[name] for name in FIVE}


# -- the five fields


@pytest.mark.behaviour("001-8", "001-11", "001-12")
def test_the_five_fields_are_enough_to_make_the_job_again() -> None:
    job = make_job(parse(line()), BORN)
    assert (job.state, job.key, job.arguments, job.attempts) == (State.dead, "a", {"site": "one"}, 2)
    assert (job.error_class, job.because, job.lane) == ("TimeoutError", "imported", "delayed")
    assert job.recommendation and job.fingerprint and job.history[-1].failure is not None
    assert five_of(job) == json.loads(line(failed_at="2027-01-10T03:00:00.000Z"))


@pytest.mark.behaviour("001-9")
def test_a_record_is_one_line_that_any_tool_reads() -> None:
    job = make_job(parse(line(payload={"text": "two\nlines \u2028 and more"})), BORN)
    out = make_line(job)
    assert out.endswith(b"\n") and out.count(b"\n") == 1
    assert list(json.loads(out))[:5] == list(FIVE)
    assert json.loads(out)["payload"] == {"text": "two\nlines \u2028 and more"}


@pytest.mark.behaviour("001-14")
@pytest.mark.parametrize(
    ("said", "utc"),
    [
        ("2027-01-10T03:00:00Z", "2027-01-10T03:00:00.000Z"),
        ("2027-01-10T04:30:00+01:30", "2027-01-10T03:00:00.000Z"),
        ("2027-01-10T03:00:00", "2027-01-10T03:00:00.000Z"),
        ("2027-01-10T03:00:00.1234567Z"[:26] + "Z", "2027-01-10T03:00:00.123Z"),
        (1799550000, "2027-01-10T03:00:00.000Z"),
        (1799550000.5, "2027-01-10T03:00:00.500Z"),
        (1799550000500, "2027-01-10T03:00:00.500Z"),
    ],
)
def test_times_leave_as_utc_whatever_they_came_as(said: Any, utc: str) -> None:
    assert make_record(make_job(parse(line(failed_at=said)), BORN))["failed_at"] == utc
    assert datetime.fromisoformat(utc).utcoffset() is not None


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=60)


@pytest.mark.behaviour("001-11")
@given(job_id=NAMES, payload=JSON, error_class=NAMES, attempt=st.integers(0, 50), at=st.integers(0, 4_000_000_000))
def test_a_record_survives_being_imported_and_exported(
    job_id: str, payload: Any, error_class: str, attempt: int, at: int
) -> None:
    said = line(job_id=job_id, payload=payload, error_class=error_class, attempt=attempt, failed_at=at)
    once = make_job(parse(said), BORN)
    again = make_job(parse(make_line(once)), BirthRules(NOW + 100))
    assert five_of(again) == five_of(once)
    assert again.id == once.id
    assert (once.key, once.attempts, once.payload is not None) == (job_id, attempt, True)
    assert unwrap(once.arguments) == payload or unwrap(wrap(payload)) != payload


def taken_or_refused(raw: bytes) -> Job | InvalidInput:
    try:
        return make_job(parse(raw), BORN)
    except InvalidInput as error:
        return error


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_line_breaks_the_reader(raw: bytes) -> None:
    found = taken_or_refused(raw)
    assert found.lane if isinstance(found, Job) else found.problem


FIELDS = [*FIVE, "task", "queue", "error", "lane", "detail", "status", "redrive_id", "model"]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_no_object_breaks_the_reader(said: dict[str, Any]) -> None:
    """Whatever stands in the fields: a job that can be stored, or one clear refusal that names the field."""
    found = taken_or_refused(msgspec.json.encode(said))
    if isinstance(found, InvalidInput):
        assert found.field.partition(".")[0] in FIELDS
        return
    assert found.lane in ("delayed", "manual") and found.recommendation and found.attempts >= 0
    assert len(found.id) == 32 and found.error_class


# -- other programs' lines


def test_a_mapping_says_where_things_are() -> None:
    mapping = read_mapping(
        {"job_id": "meta.id", "payload": "event", "error_class": "error.type", "attempt": "tries.0", "error": "error"}
    )
    raw = b'{"meta": {"id": 7}, "event": {"k": 1}, "error": {"type": "KeyError", "message": "no k"}, "tries": [4]}'
    record = parse(raw, mapping)
    assert (record.job_id, record.error_class, record.attempt, record.error) == ("7", "KeyError", 4, "no k")
    assert json.loads(record.payload) == {"k": 1}
    assert parse(b'{"meta.id": "plain", "event": 1}', mapping).job_id == "plain"


def test_what_is_missing_gets_an_honest_default() -> None:
    raw = b'{"event": "login", "user": 7}'
    record = parse(raw)
    assert record.derived and json.loads(record.payload) == {"event": "login", "user": 7}
    job = make_job(record, BORN)
    assert (job.error_class, job.attempts, job.lane, job.task, job.queue) == ("unknown", 1, "manual", UNNAMED, UNNAMED)
    assert job.history[-1].ended_at == NOW
    assert parse(raw).job_id == record.job_id != parse(b'{"event": "login", "user": 8}').job_id
    assert number_id(record.job_id, 1) == record.job_id != number_id(record.job_id, 2)


@pytest.mark.parametrize("said", [{"nonsense": "x"}, {"job_id": 7}, {"job_id": ""}])
def test_a_mapping_of_nothing_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=r"mapping\."):
        read_mapping(said)
    assert read_mapping(Mapping(job_id="id")).job_id == "id"


def test_an_input_that_is_no_object_is_kept_whole() -> None:
    for payload in ([1, 2], "text", 7, None, {"$value": 1}):
        job = make_job(parse(line(payload=payload)), BORN)
        assert make_record(job)["payload"] == (1 if payload == {"$value": 1} else payload)


BAD: list[tuple[bytes, str]] = [
    (b'{"job_id": "a", "payl', "is not JSON"),
    (b"not json at all", "is not JSON"),
    (b"[1, 2]", "is not a JSON object but a list"),
    (b'"text"', "is not a JSON object but a string"),
    (b"null", "is not a JSON object but null"),
    (b"7", "is not a JSON object but a number"),
    (b'{"payload": {"x": NaN}}', "is not JSON"),
    (b'{"payload": {"x": 1e999}}', "is not JSON"),
    (b'{"job_id": "\xff\xfe"}', "is not JSON"),
    (b'{"payload": ' + b"[" * 70 + b"]" * 70 + b"}", "is nested deeper than 64 levels"),
    (b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    (b'{"payload": "' + b"x" * 2_000_000 + b'"}', "the limit is 1048576"),
    (line(job_id=["a"]), "job_id: must be 1 to 500"),
    (line(job_id="x" * 501), "job_id: must be 1 to 500"),
    (line(job_id="a\u0007b"), "job_id: must be 1 to 500"),
    (line(attempt=-1), "attempt: -1 is not a number of tries"),
    (line(attempt=1.5), "attempt: 1.5"),
    (line(attempt=True), "attempt: True"),
    (line(attempt="many"), "attempt: 'many'"),
    (line(attempt=10**40), "attempt: "),
    (line(failed_at="yesterday"), "failed_at: 'yesterday' is not a time"),
    (line(failed_at=-5), "failed_at: -5"),
    (line(failed_at=10**30), "failed_at: "),
    (line(failed_at=True), "failed_at: True"),
    (line(error_class={"no": 1}), "error_class: "),
    (line(task="t" * 201), "task: "),
]


@pytest.mark.parametrize(("raw", "problem"), BAD, ids=[problem for _, problem in BAD])
def test_a_line_that_cannot_be_taken_in_says_why(raw: bytes, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(raw)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 300


def test_what_windows_adds_to_a_file_does_no_harm() -> None:
    assert parse(b"\xef\xbb\xbf" + line() + b"\r").job_id == "a"


# -- sorting: heals by waiting, or a person must look


@pytest.mark.behaviour("001-16", "001-26", "001-28", "001-29")
@pytest.mark.parametrize(
    ("error_class", "attempt", "lane"),
    [
        ("TimeoutError", 1, "delayed"),
        ("ConnectionError", 4, "delayed"),
        ("RateLimitError", 4, "delayed"),
        ("openai.RateLimitError", 1, "delayed"),
        ("ConnectionResetError", 1, "delayed"),
        ("TimeoutError", 5, "manual"),
        ("ConnectionError", 6, "manual"),
        ("RateLimitError", 5, "manual"),
        ("ValidationError", 1, "manual"),
        ("PermissionError", 1, "manual"),
        ("SomethingNobodyKnows", 1, "manual"),
        ("unknown", 0, "manual"),
    ],
)
def test_cap_first_then_what_heals_then_a_person(error_class: str, attempt: int, lane: str) -> None:
    record = parse(line(error_class=error_class, attempt=attempt))
    assert make_job(record, BORN).lane == lane
    assert read_failure(record) == read_failure(parse(line(error_class=error_class, attempt=attempt)))


@pytest.mark.behaviour("001-23")
def test_rate_limits_and_expired_tokens_come_back_by_themselves() -> None:
    for said in ({"error_class": "HTTPStatusError", "status": 429}, {"error_class": "Unauthorized", "status": 401,
                 "error": "Unauthorized: the token has expired"}):  # fmt: skip
        assert make_job(parse(line(**said)), BORN).lane == "delayed"
    refused = make_job(parse(line(error_class="Unauthorized", status=401, error="Unauthorized: bad key")), BORN)
    assert refused.lane == "manual"


@pytest.mark.behaviour("001-18", "001-25")
def test_the_lane_is_named_in_the_record_with_its_reason() -> None:
    for error_class, lane in (("TimeoutError", "delayed"), ("SchemaError", "manual")):
        job = make_job(parse(line(error_class=error_class)), BORN)
        assert make_record(job)["lane"] == job.history[-1].tier == lane
        assert job.history[-1].decision
        assert job.recommendation == write_advice(
            find_cause(read_failure(parse(line(error_class=error_class)))), job.lane
        )  # type: ignore[arg-type]


def test_a_lane_that_was_said_counts_below_the_cap() -> None:
    assert make_job(parse(line(lane="manual")), BORN).lane == "manual"
    assert make_job(parse(line(lane="delayed", error_class="SchemaError")), BORN).lane == "delayed"
    assert make_job(parse(line(lane="delayed", attempt=CAP)), BORN).lane == "manual"
    assert make_job(parse(line(lane="somewhere")), BORN).lane == "delayed"
    assert make_job(parse(line(attempt=2)), BirthRules(NOW, cap=2)).lane == "manual"


def test_what_a_class_itself_says_goes_before_its_bare_name() -> None:
    exhausted = Failure("exception", ("openai.RateLimitError",), "You exceeded your current quota", status=429,
                        code="insufficient_quota", error_kind="quota")  # fmt: skip
    assert find_cause(exhausted).detail == "quota"
    assert choose_lane(find_cause(exhausted), 1) == "manual"
    for name, detail in TRANSIENT.items():
        assert find_cause(Failure("exception", (f"acme.{name}",))).detail == detail


# -- which job it is


@pytest.mark.behaviour("001-10")
def test_one_job_id_is_one_job_wherever_it_is_imported() -> None:
    record = parse(line())
    assert find_id(record, BORN) == keyed_id(UNNAMED, "a") == nth_id(UNNAMED, "a", 0)
    assert find_id(record, BirthRules(NOW, task="publish")) == keyed_id("publish", "a")
    assert find_id(record, BirthRules(NOW, queue="q", task="publish")) == keyed_id("q", "a")
    assert nth_id(UNNAMED, "a", 1) != nth_id(UNNAMED, "a", 0)


def test_our_own_export_is_the_same_job_even_without_a_key() -> None:
    made = msgspec.structs.replace(make_job(parse(line()), BORN), id="0" * 32, key=None)
    back = make_job(parse(make_line(made)), BirthRules(NOW))
    assert (back.id, back.key) == ("0" * 32, None)


def test_task_and_queue_by_precedence() -> None:
    record = parse(line(task="publish", queue="nightly"))
    for born, place in (
        (BORN, ("nightly", "publish")),
        (BirthRules(NOW, task="other"), ("nightly", "other")),
        (BirthRules(NOW, queue="mine"), ("mine", "publish")),
    ):
        job = make_job(record, born)
        assert (job.queue, job.task) == place


def test_a_failure_from_the_future_is_kept_and_harms_no_clock() -> None:
    job = make_job(parse(line(failed_at=NOW + 86400)), BORN)
    assert max(job.created_at, job.updated_at, job.run_at) <= NOW
    assert job.history[-1].ended_at == NOW + 86400
    assert make_record(job)["failed_at"] == "2027-01-16T08:00:00.000Z"


def test_to_be_run_instead_of_buried() -> None:
    job = make_job(parse(line()), BirthRules(NOW, state=State.waiting))
    assert (job.state, job.run_at, job.attempts, job.because, job.history) == (State.waiting, NOW, 2, None, ())
    assert make_job(parse(line(attempt=...)), BirthRules(NOW, state=State.waiting)).attempts == 0


def test_the_same_input_and_the_same_failure_are_recognised() -> None:
    one, other = make_job(parse(line()), BORN), make_job(parse(line(payload={"site": "two"})), BORN)
    assert same_work(one, one) and not same_work(one, other)
    bare = msgspec.structs.replace(one, payload_hash=None)
    assert same_work(bare, one) and not same_work(bare, msgspec.structs.replace(other, payload_hash=None))
    later = make_job(parse(line(failed_at="2027-01-11T03:00:00Z")), BORN)
    assert has_failures(one, one.history) and not has_failures(one, later.history)


# -- secrets


def test_secrets_leave_errors_and_stay_in_the_payload_that_needs_them() -> None:
    said = line(payload={"api_key": "sk-abcdefghijklmnop"}, error="KeyError: password=hunter22 refused")
    job = msgspec.structs.replace(make_job(parse(said), BORN), error="KeyError: password=hunter22 refused")
    assert "hunter22" not in json.dumps(make_record(job))
    assert make_record(job)["payload"] == {"api_key": "sk-abcdefghijklmnop"}
    assert "hunter22" in make_record(job, secrets=True)["error"]
    assert "hunter22" not in (make_job(parse(said), BORN).error or "")


# -- completed ids


@pytest.mark.behaviour("001-34")
@pytest.mark.parametrize(
    "raw", [b'{"job_id": "a"}', b"a", b' "a" ', b"a\r", b"\xef\xbb\xbfa", b'{"job_id": "a", "at": 1}']
)
def test_a_completed_id_in_every_form(raw: bytes) -> None:
    assert read_completed_id(raw) == "a"


@pytest.mark.behaviour("001-34")
@pytest.mark.parametrize("raw", [b'{"job_id": "a', b'{"other": 1}', b'"a', b"[1]", b"\xff", b'{"job_id": null}'])
def test_a_torn_completed_line_is_no_id(raw: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_completed_id(raw)


def test_completed_ids_may_be_numbers_and_stand_elsewhere() -> None:
    assert read_completed_id(b'{"meta": {"id": 7}}', "meta.id") == "7" == read_completed_id(b"7")
