"""Ids, hashes and the outside view of a job."""

from __future__ import annotations

import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.job import (
    PRIORITIES,
    Failure,
    Job,
    Options,
    State,
    Usage,
    hash_payload,
    iso,
    keyed_id,
    new_id,
    public,
)
from redrive.errors import JobError
from tests.stores.jobs import T0, a_job, an_attempt

times = st.floats(0, 2**37, allow_nan=False)
chances = st.integers(0, 2**74 - 1)


@given(times, chances)
@pytest.mark.behaviour("000-29")
def test_an_id_is_a_uuid7(now: float, chance: int) -> None:
    made = new_id(now, chance)
    found = uuid.UUID(made)
    assert len(made) == 32
    assert (found.version, found.variant) == (7, uuid.RFC_4122)
    assert int.from_bytes(found.bytes[:6], "big") == int(now * 1000)


@given(st.tuples(times, times), chances, chances)
def test_ids_sort_by_time(moments: tuple[float, float], one: int, two: int) -> None:
    early, late = sorted(moments)
    if int(early * 1000) < int(late * 1000):
        assert new_id(early, one) < new_id(late, two)


@given(chances, chances)
def test_every_chance_is_another_id(one: int, two: int) -> None:
    assert (new_id(T0, one) == new_id(T0, two)) == (one == two)


def test_a_keyed_id_is_the_same_everywhere() -> None:
    assert keyed_id("feedback", "feedback_1") == "aa9b04899c3df5107560b5c9e41887c0"


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_queue_and_key_both_make_the_id(queue: str, key: str, other_queue: str, other_key: str) -> None:
    if "\0" in queue + other_queue:
        return
    same = (queue, key) == (other_queue, other_key)
    assert (keyed_id(queue, key) == keyed_id(other_queue, other_key)) == same


def test_a_hash_stands_for_the_payload_not_its_spelling() -> None:
    assert hash_payload('{"a":1,"b":[2]}', "t") == hash_payload('{ "b" : [2], "a" : 1 }', "t")
    assert hash_payload('{"a":1}', "t") != hash_payload('{"a":2}', "t")
    assert hash_payload('{"a":1}', "t") != hash_payload('{"a":1}', "u")


def test_usage_adds_up() -> None:
    assert Usage(1, 2, 0.5) + Usage(10, 20, 0.25) == Usage(11, 22, 0.75)


def test_a_failure_in_a_line() -> None:
    assert Failure("exception", ("shop.pay.OutOfStock",), "none left").summary == "OutOfStock: none left"
    assert Failure("exception", ("shop.pay.OutOfStock",)).summary == "OutOfStock"
    assert Failure("lease_expired").summary == "lease_expired"


def test_options_are_decoded_when_asked() -> None:
    options = Options(lease=7.0, headers={"x": "y"})
    job = a_job(options_json=msgspec.json.encode(options).decode())
    assert job.options == options
    assert a_job().options == Options()


@pytest.mark.parametrize(("number", "name"), list(enumerate(PRIORITIES)))
def test_priorities_have_names(number: int, name: str) -> None:
    assert a_job(priority=number).priority_name == name


@pytest.mark.parametrize("state", State)
def test_which_states_are_ended(state: State) -> None:
    assert a_job(state=state).ended == (state in ("done", "dead", "discarded", "purged"))


def test_the_outside_sees_no_tokens() -> None:
    job = a_job(
        state=State.running, token="sesame", worker="w1", run=1, started_at=T0, priority=0, result_json='{"x":1}'
    )
    job = msgspec.structs.replace(job, history=(an_attempt(job),))
    body = public(job)
    assert "sesame" not in msgspec.json.encode(body).decode()
    assert not {"token", "version", "options_json", "changes_json", "result_json"} & body.keys()
    assert (body["priority"], body["payload"], body["result"]) == ("critical", job.arguments, {"x": 1})
    assert body["created_at"] == "1970-01-12T13:46:40.000Z"
    assert body["history"][0]["ended_at"].endswith("Z")
    assert body["held_at"] is None


def test_times_are_written_in_utc() -> None:
    assert iso(0.0) == "1970-01-01T00:00:00.000Z"
    assert iso(None) is None


def test_a_job_whose_payload_is_gone_has_no_arguments() -> None:
    job: Job = a_job(payload=None)
    assert job.arguments == {}
    assert public(job)["payload"] is None


@pytest.mark.parametrize(
    ("stored", "decoded"), [('{"x":1}', {"x": 1}), ('"text"', "text"), ("null", None), ("12", 12), (None, None)]
)
def test_the_result_is_decoded_as_the_arguments_are(stored: str | None, decoded: object) -> None:
    job = a_job(state=State.done, result_json=stored)
    assert (job.result, public(job)["result"]) == (decoded, decoded)


def test_a_damaged_result_says_which_job_it_is_of() -> None:
    job = a_job(state=State.done, result_json='{"x"')
    with pytest.raises(JobError, match=job.short_id):
        _ = job.result
    assert public(job)["result"] == '{"x"', "lists show as much as can be read"


def test_a_result_is_stored_and_sent_under_its_old_name() -> None:
    """Files, logs of fleets and clients of an earlier version know the field so."""
    job = a_job(state=State.done, result_json='"r"')
    assert msgspec.to_builtins(job)["result"] == '"r"'
    assert msgspec.convert(msgspec.to_builtins(job), Job) == job
