"""When it is not the caller's fault: a store that is busy, full or gone, a slow body, a defect. Always a problem."""

import asyncio
from typing import Any

import pytest

import redrive
from redrive.errors import StoreBusy, StoreRefused
from tests.support import eventually, soon
from tests.web.serving import TOKEN, Served, problem_in, raw

TROUBLES = [
    (StoreBusy("somebody writes for very long"), 503, "busy"),
    (redrive.StoreFull("no space left on the device"), 507, "disk-full"),
    (redrive.StoreUnavailable("cannot be opened"), 503, "store-unavailable"),
    (StoreRefused("a newer schema"), 503, "store-refused"),
    (redrive.StoreFailed("a sync failed"), 503, "store-failed"),
    (redrive.CommitUnknown("the answer was lost"), 503, "commit-unknown"),
]


@pytest.mark.parametrize(("error", "status", "kind"), TROUBLES, ids=[kind for _, _, kind in TROUBLES])
async def test_what_the_store_cannot_do_is_told_with_its_status(
    still: Served, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, kind: str
) -> None:
    async def refuse(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(still.rd.store, "insert", refuse)
    answer = await soon(still.client.post("/v1/jobs", json={"task": "greet"}))
    assert answer.status_code == status
    found = problem_in(answer)
    assert found["type"] == f"urn:redrive:problem:{kind}" and found["detail"] == str(error) and found["hint"]
    assert ("retry-after" in answer.headers) is (status == 503)


@pytest.mark.behaviour("T-19d")
@pytest.mark.parametrize(
    ("body", "key"),
    [
        ('{"task": "greet", "payload": {"name": "a", "name": "b"}}', "name"),
        ('{"task": "greet", "task": "broken"}', "task"),
        ('{"task": "greet", "payload": {"deep": [{"n": 1, "n": 1}]}}', "n"),
    ],
)
async def test_a_body_with_a_key_twice_is_refused(still: Served, body: str, key: str) -> None:
    """One of the two values would be dropped without a word."""
    found = await still.refused(422, "POST", "/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert found["field"] == "body" and f'"{key}" twice' in found["detail"]
    assert (await still.get("/v1/jobs"))["items"] == []


async def test_a_defect_is_logged_and_told_without_its_words(
    still: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("a detail that is nobody's business")

    monkeypatch.setattr(still.rd.store, "insert", broken)
    answer = await soon(still.client.post("/v1/jobs", json={"task": "greet"}))
    assert answer.status_code == 500 and problem_in(answer)["type"].endswith("internal")
    assert "nobody's business" not in answer.text
    assert "nobody's business" in caplog.text and "Traceback" in caplog.text


async def test_a_body_that_does_not_come_is_given_up(still: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.doors.rest.route.BODY_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", still.port)
    lines = [
        "POST /v1/jobs HTTP/1.1", f"Host: {still.host}", f"Authorization: Bearer {TOKEN}",
        "Content-Type: application/json", "Content-Length: 100", "", '{"task":',
    ]  # fmt: skip
    writer.write("\r\n".join(lines).encode())
    said = await soon(reader.readline())
    assert b" 408 " in said
    writer.close()


async def test_a_caller_who_leaves_in_the_middle_of_a_body_is_no_defect(
    still: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "redrive.rest")
    await still.break_off("/v1/jobs", "application/json", '{"task":')
    await eventually(lambda: "left in the middle" in caplog.text)
    assert "Traceback" not in caplog.text and not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_bombs_are_refused_and_the_server_lives(still: Served) -> None:
    headers = [("Host", still.host), ("Authorization", f"Bearer {TOKEN}"), ("Content-Type", "application/json")]
    bombs = [
        b"[" * 100_000,
        b'{"task": "greet", "payload": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
        b'{"task": "greet", "payload": {"s": "' + b"[" * 1_000 + b'"}}',  # harmless: brackets in a text
        b'{"task": "' + b"\\u0000" * 1_000 + b'"}',
        b'{"task": "greet", "delay": 1e999}',
        b'{"task": "greet", "delay": NaN}',
        b'{"task": "greet", "payload": {"n": 1' + b"0" * 5_000 + b"}}",
        b'{"task": "greet", "payload": {"s": "\\ud800"}}',
        b"\x1f\x8b\x08\x00",
        b"",
        b"null",
    ]
    statuses = [(await raw(still, "POST", "/v1/jobs", headers, bomb))[0] for bomb in bombs]
    assert statuses[2] == 422, "greet has no parameter s; the brackets did not matter"
    assert set(statuses) <= {400, 413, 422}, statuses
    for path in ("/v1/jobs?queue=%00", "/v1/jobs?queue=%ff%fe", "/v1/jobs/%00%ff", "/v1/jobs?" + "queue=a&" * 2000):
        status, _, _ = await raw(still, "GET", path, headers)
        assert status in (200, 400, 404, 414, 422, 431), (path[:40], status)
    assert (await still.get("/v1/health"))["status"] == "healthy"


async def test_whole_numbers_may_have_a_point(still: Served) -> None:
    new = await still.post("/v1/jobs", {"task": "x", "max_attempts": 3.0, "payload": {"kept": 1.0}}, status=201)
    job = await still.rd.jobs.get(new["id"])
    assert job.allowed == 3 and job.payload == '{"kept":1.0}'
    assert (await still.refused(422, "POST", "/v1/jobs", json={"task": "x", "max_attempts": 3.5}))["field"]
