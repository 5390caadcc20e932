"""Jobs over REST: handing in, looking, and a person's word, with a real server and a real worker."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import eventually, locked
from tests.web.serving import Served, make_rd, serving


async def state_of(served: Served, id: str) -> str:
    return str((await served.get(f"/v1/jobs/{id}"))["state"])


async def until(served: Served, id: str, state: str) -> dict[str, Any]:
    async def reached() -> bool:
        return await state_of(served, id) == state

    await eventually(reached, f"{id} is {state}")
    found: dict[str, Any] = await served.get(f"/v1/jobs/{id}")
    return found


async def test_a_job_is_handed_in_run_and_its_result_read(served: Served) -> None:
    answer = await served.client.post("/v1/jobs", json={"task": "greet", "payload": {"name": "bob"}})
    assert answer.status_code == 201
    new = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{new['id']}"
    assert (new["duplicate"], new["queue"]) == (False, "greet")
    await until(served, new["id"], "done")
    assert (await served.get(f"/v1/jobs/{new['id']}/result"))["result"] == "hello bob"
    story = await served.get(f"/v1/jobs/{new['id']}/story")
    assert story["standing"].startswith("Done")
    assert [entry["title"] for entry in story["entries"]][:1] == ["enqueued"]


async def test_the_same_key_is_one_job_and_another_payload_is_refused(still: Served) -> None:
    job = {"task": "greet", "payload": {"name": "bob"}}
    first = await still.post("/v1/jobs", job, status=201, **{"Idempotency-Key": "k1"})
    again = await still.post("/v1/jobs", job, status=200, **{"Idempotency-Key": "k1"})
    same = await still.post("/v1/jobs", {**job, "idempotency_key": "k1"}, status=200)
    assert (again["id"], again["duplicate"], same["id"]) == (first["id"], True, first["id"])
    other = {"task": "greet", "payload": {"name": "eve"}}
    found = await still.refused(422, "POST", "/v1/jobs", json=other, headers={"Idempotency-Key": "k1"})
    assert found["type"] == "urn:redrive:problem:key-reused"
    both = {**job, "idempotency_key": "k2"}
    found = await still.refused(422, "POST", "/v1/jobs", json=both, headers={"Idempotency-Key": "k1"})
    assert found["field"] == "idempotency_key"
    assert len((await still.get("/v1/jobs"))["items"]) == 1


async def test_bad_input_is_refused_by_name_and_changes_nothing(still: Served) -> None:
    deep: Any = {}
    for _ in range(70):
        deep = {"deeper": deep}
    wrong: list[tuple[int, str | None, Any]] = [
        (422, "task", {}),
        (422, "task", {"task": ""}),
        (422, "nonsense", {"task": "greet", "nonsense": 1}),
        (422, "payload", {"task": "greet", "payload": []}),
        (422, "priority", {"task": "greet", "priority": "urgent"}),
        (422, "priority", {"task": "greet", "priority": "urgent" * 10_000}),
        (422, "run_at", {"task": "greet", "run_at": "2026-11-16T04:20:00"}),
        (422, "delay", {"task": "greet", "delay": -1}),
        (422, "delay", {"task": "greet", "delay": 1, "run_at": "2026-11-16T04:20:00Z"}),
        (422, "budget.tokens", {"task": "greet", "budget": {"tokens": -1}}),
        (422, "payload", {"task": "greet", "payload": {"name": 7}}),
        (422, "body", {"task": "greet", "payload": deep}),
        (422, None, []),
    ]
    for status, field, body in wrong:
        found = await still.refused(status, "POST", "/v1/jobs", json=body)
        assert found.get("field") == field, found
        assert len(str(found)) < 1000, "what was sent is not sent back whole"
    await still.refused(400, "POST", "/v1/jobs", content=b"{", headers={"Content-Type": "application/json"})
    await still.refused(
        400, "POST", "/v1/jobs", content=b'{"task": "\xff"}', headers={"Content-Type": "application/json"}
    )
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        headers = {"Content-Type": media}
        await still.refused(415, "POST", "/v1/jobs", content=b'{"task": "greet"}', headers=headers)
    for path, field in (
        ("/v1/jobs?nonsense=1", "nonsense"),
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=1001", "limit"),
        ("/v1/jobs?limit=ten", "limit"),
        ("/v1/jobs?limit=1&limit=2", "limit"),
        ("/v1/jobs?state=gone", "state[0]"),
        ("/v1/jobs?cursor=nonsense", "cursor"),
        ("/v1/jobs?since=yesterday", "since"),
        ("/v1/jobs?since=2026-11-16T10:00:00", "since"),
        ("/v1/health?queue=a", "queue"),
    ):
        assert (await still.refused(422, "GET", path))["field"] == field, path
    assert (await still.get("/v1/jobs"))["items"] == []


@pytest.mark.parametrize("end", [b"", b"\\"])
async def test_a_text_that_never_ends_is_read_once(still: Served, end: bytes) -> None:
    """Read again from every quote in it, these would take minutes, and all others would wait."""
    endless = b'{"task": "greet", "payload": {"name": [' + b"[1]," * 66 + b'"' + b'\\"' * 60_000 + end
    await still.refused(400, "POST", "/v1/jobs", content=endless, headers={"Content-Type": "application/json"})
    hidden = {"task": "greet", "payload": {"name": '"' + "[" * 70 + "\\"}}
    await still.post("/v1/jobs", hidden, status=201)


async def test_a_body_is_counted_while_it_arrives(still: Served) -> None:
    limit = still.rd.settings.payload_limit
    large = {"task": "greet", "payload": {"name": "x" * (limit + 1)}}
    assert (await still.refused(413, "POST", "/v1/jobs", json=large))["type"].endswith("too-large")
    sent = 0

    async def chunks(number: int) -> Any:
        nonlocal sent
        yield b'{"task": "'
        for _ in range(number):
            sent += 65_536
            yield b"x" * 65_536

    headers = {"Content-Type": "application/json"}  # and no Content-Length
    await still.refused(413, "POST", "/v1/jobs", content=chunks(64), headers=headers)
    assert sent == 64 * 65_536
    with suppress(httpx2.TransportError):  # cut off long before the end
        await still.refused(413, "POST", "/v1/jobs", content=chunks(100_000), headers=headers)
    assert sent < 100 * 1024 * 1024
    assert (await still.get("/v1/jobs"))["items"] == []


async def test_every_error_is_a_problem(still: Served) -> None:
    await still.refused(404, "GET", "/v1/jobs/nosuchjob")
    await still.refused(404, "GET", "/v1/nothing")
    await still.refused(404, "GET", "/nothing/at/all")
    answer = await still.client.request("DELETE", "/v1/jobs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert (await still.refused(405, "PATCH", "/v1/health"))["type"].endswith("method-not-allowed")
    assert (await still.client.head("/v1/health")).status_code == 200


async def test_an_illegal_move_is_a_conflict(served: Served) -> None:
    new = await served.post("/v1/jobs", {"task": "greet"}, status=201)
    await until(served, new["id"], "done")
    found = await served.refused(409, "POST", f"/v1/jobs/{new['id']}/cancel", json={})
    assert (found["type"], found["job_id"]) == ("urn:redrive:problem:illegal-move", new["id"])


async def test_cancel_approve_reject_and_resolve(served: Served) -> None:
    later = await served.post("/v1/jobs", {"task": "greet", "delay": 3600}, status=201)
    gone = await served.post(f"/v1/jobs/{later['id']}/cancel", {"who": "ada", "why": "not needed"})
    assert (gone["state"], gone["because"]) == ("discarded", "cancelled")
    moves = await served.rd.jobs.story(later["id"])
    assert (moves[-1].who, moves[-1].why) == ("owner (as ada)", "not needed")

    yes, no = [await served.post("/v1/jobs", {"task": "refund", "payload": {"euros": n}}, status=201) for n in (1, 2)]
    await until(served, yes["id"], "held")
    await until(served, no["id"], "held")
    assert (await served.client.get(f"/v1/jobs/{yes['id']}/result")).status_code == 202
    await served.post(f"/v1/jobs/{yes['id']}/approve", {"who": "ada"})
    await served.post(f"/v1/jobs/{no['id']}/reject", {"who": "ada", "why": "too much"})
    await until(served, yes["id"], "done")
    assert await state_of(served, no["id"]) == "discarded"
    found = await served.refused(409, "GET", f"/v1/jobs/{no['id']}/result")
    assert found["type"].endswith("job-discarded")

    sent = await served.post("/v1/jobs", {"task": "unknown"}, status=201)
    await until(served, sent["id"], "held")
    assert (await served.refused(422, "POST", f"/v1/jobs/{sent['id']}/resolve", json={}))["field"] == "why"
    done = await served.post(f"/v1/jobs/{sent['id']}/resolve", {"why": "it is in their log"})
    assert done["state"] == "done"


async def test_filters_and_pages(still: Served) -> None:
    for number in range(7):
        options = {"queue": "a" if number % 2 else "b", "session_id": f"s{number % 3}", "agent": "cto"}
        await still.rd.enqueue("greet", {}, **options)

    async def ids(**query: Any) -> list[str]:
        return [job["id"] for job in (await still.get("/v1/jobs", **query))["items"]]

    assert len(await ids()) == 7
    assert len(await ids(queue="a")) == 3
    assert len(await ids(session="s0")) == 3
    assert len(await ids(agent="cto", queue="b")) == 4
    assert len(await ids(state=["waiting", "done"])) == 7
    assert await ids(state="dead") == []
    assert len(await ids(since="2020-01-01", until="2999-01-01T00:00:00+02:00")) == 7
    assert await ids(until="2020-01-01") == []
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(10):
        page = await still.get("/v1/jobs", limit=3, **({"cursor": cursor} if cursor else {}))
        seen += [job["id"] for job in page["items"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 7


async def test_a_filter_finds_jobs_in_every_state_as_python_does(served: Served) -> None:
    asks = await served.post("/v1/jobs", {"task": "ask"}, status=201)
    await until(served, asks["id"], "held")
    found = (await served.get("/v1/jobs", because="approval"))["items"]
    assert [job["id"] for job in found] == [job.id for job in (await served.rd.jobs.list(because="approval")).jobs]
    assert [job["id"] for job in found] == [asks["id"]]


async def test_secrets_are_masked_unless_asked_for(still: Served) -> None:
    payload = {"password": "hunter22", "note": "Bearer abcdefgh12345678"}
    body = {"task": "anything", "payload": payload, "headers": {"authorization": "Bearer abcdefgh12345678"}}
    new = await still.post("/v1/jobs", body, status=201)
    masked = await still.client.get(f"/v1/jobs/{new['id']}")
    assert "hunter22" not in masked.text and "abcdefgh12345678" not in masked.text
    open_ = await still.get(f"/v1/jobs/{new['id']}", secrets="true")
    assert open_["payload"] == payload
    assert "hunter22" not in (await still.client.get("/v1/jobs")).text


async def test_an_http_delivery_is_handed_in_by_anybody(still: Served) -> None:
    request = {"method": "POST", "url": "https://example.com/hook", "json": {"n": 1}}
    new = await still.post("/v1/jobs", {"task": "redrive.http", "payload": request}, status=201)
    assert new["queue"] == "http"
    bad = {"method": "POST", "url": "http://169.254.169.254/latest"}
    found = await still.refused(422, "POST", "/v1/jobs", json={"task": "redrive.http", "payload": bad})
    assert found["field"]


async def test_erasing_forgets_the_contents(still: Served) -> None:
    new = await still.post("/v1/jobs", {"task": "greet", "payload": {"name": "private"}}, status=201)
    assert await still.post(f"/v1/jobs/{new['id']}/erase") == {"erased": 1, "gone": True, "waits_for": []}
    assert "private" not in (await still.client.get(f"/v1/jobs/{new['id']}?secrets=true")).text


@pytest.mark.parametrize("number", [20])
async def test_many_callers_at_once(served: Served, number: int) -> None:
    answers = await asyncio.gather(
        *(served.post("/v1/jobs", {"task": "greet", "payload": {"name": str(n)}}, status=201) for n in range(number))
    )
    assert len({answer["id"] for answer in answers}) == number

    async def all_done() -> bool:
        return len((await served.get("/v1/jobs", state="done"))["items"]) == number

    await eventually(all_done)


@pytest.mark.behaviour("T-7e")
async def test_work_that_no_worker_takes_is_accepted_with_that_word(still: Served) -> None:
    new = await still.post("/v1/jobs", {"task": "greett"}, status=201)
    (warning,) = new["warnings"]
    assert warning == "no live worker announces the task 'greett': the job waits until one does; did you mean greet?"


@pytest.mark.behaviour("T-14b")
async def test_a_job_that_only_the_spool_took_is_answered_with_202(database: Path) -> None:
    async with make_rd(database, fallback=True, fallback_after=0.1) as rd, serving(rd, worker=False) as served:
        with locked(database):
            one = await served.post("/v1/jobs", {"task": "greet"}, status=202)
            many = await served.post("/v1/jobs/batch", {"task": "greet", "items": [{}, {}]})
        assert (one["spooled"], one["direct"], many["spooled"], rd.spool.count()) == (True, False, 2, 3)
