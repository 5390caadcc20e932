"""Operations over REST, and many jobs at once: what is not done never looks done."""

import pytest

from tests.support import eventually
from tests.web.serving import Served


async def test_a_call_is_answered_with_its_result(still: Served) -> None:
    done = await still.post("/v1/operations/call", {"task": "greet", "params": {"name": "bob"}})
    assert (done["status"], done["result"]) == ("ok", "hello bob")
    shown = await still.get(f"/v1/operations/{done['operation_id']}")
    assert shown["result"] == "hello bob"
    again = await still.post(f"/v1/operations/{done['operation_id']}/retry")
    assert again["status"] == "ok"


async def test_what_is_queued_for_a_retry_is_202_and_has_nothing_of_success(still: Served) -> None:
    said = await still.post("/v1/operations/call", {"task": "busy"}, status=202)
    assert said["queued_for_retry"] is True and "status" not in said and "result" not in said
    assert (await still.client.get(f"/v1/operations/{said['operation_id']}")).status_code == 202
    listed = await still.get("/v1/operations")
    assert listed["queued"] == 1 and listed["recent"][0]["operation_id"] == said["operation_id"]


@pytest.mark.behaviour("R-7g")
async def test_what_failed_is_told_by_the_status_and_in_words(still: Served) -> None:
    call = {"task": "broken", "params": {"text": "token=hunter22hunter"}}
    said = await still.refused(424, "POST", "/v1/operations/call", json=call)
    assert said["type"].endswith(":operation-failed") and said["error_kind"] and said["hint"]
    again = await still.refused(424, "POST", f"/v1/operations/{said['job_id']}/retry", json={})
    assert again["job_id"] == said["job_id"]
    shown = await still.get(f"/v1/operations/{said['job_id']}")
    assert shown["status"] == "failed", "who asks how it stands is answered: 200"
    assert shown["message"] == said["detail"] and "hunter22" not in str([said, shown])


@pytest.mark.behaviour("R-7g")
async def test_a_key_that_stands_for_what_failed_is_no_success(still: Served) -> None:
    body, key = {"task": "broken"}, {"Idempotency-Key": "b-1"}
    first = await still.refused(424, "POST", "/v1/operations/call", json=body, headers=key)
    for route in ("call", "submit"):
        again = await still.refused(424, "POST", f"/v1/operations/{route}", json=body, headers=key)
        assert again["job_id"] == first["job_id"]


async def test_what_is_not_known_is_refused(still: Served) -> None:
    await still.refused(404, "GET", "/v1/operations/nosuch")
    await still.refused(422, "POST", "/v1/operations/call", json={"task": "greet", "params": {"nome": 1}})


async def test_a_submitted_operation_is_run_by_a_worker(served: Served) -> None:
    body = {"task": "greet", "session_id": "s1"}
    said = await served.post("/v1/operations/submit", body, status=202, **{"Idempotency-Key": "s-1"})
    assert said["status"] == "queued"
    path = f"/v1/operations/{said['operation_id']}"

    async def done() -> bool:
        return (await served.client.get(path)).status_code == 200

    await eventually(done, "a worker did it")
    assert (await served.get(path))["result"] == "hello ada"
    again = await served.post("/v1/operations/submit", body, **{"Idempotency-Key": "s-1"})
    assert again["operation_id"] == said["operation_id"]


async def test_a_call_that_takes_long_goes_on(still: Served) -> None:
    held = await still.post("/v1/operations/call", {"task": "refund", "timeout": 5}, status=202)
    assert held["status"] == "needs_consent"


async def test_many_are_accepted_or_refused_one_by_one(still: Served) -> None:
    items = [
        {"payload": {"name": "a"}, "idempotency_key": "k1"},
        {"payload": {"nome": "b"}},
        {"payload": {"name": "c"}, "priority": "high", "queue": "fast"},
        {"payload": {"name": "a"}, "idempotency_key": "k1"},
    ]
    many = await still.post("/v1/jobs/batch", {"task": "greet", "items": items})
    assert (many["accepted"], many["duplicates"]) == (3, 1)
    assert many["ids"][1] is None and many["refused"][0]["item"] == 1 and many["ids"][0] == many["ids"][3]
    assert (await still.get(f"/v1/jobs/{many['ids'][2]}"))["queue"] == "fast"
    again = await still.post("/v1/jobs/batch", {"task": "greet", "items": items[:1]})
    assert again["ids"] == many["ids"][:1] and again["duplicates"] == 1
    await still.refused(422, "POST", "/v1/jobs/batch", json={"task": "greet", "items": []})
    wrong = await still.refused(422, "POST", "/v1/jobs/batch", json={"task": "greet", "items": [{"nonsense": 1}]})
    assert wrong["field"] == "items[0].nonsense"
