"""Dead letters over REST: looking, triage of one and many, undo, purge, groups, redrives, reports."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.doors.rest.answers import show_job, show_summary
from tests.stores.jobs import a_dead_job
from tests.support import eventually
from tests.web.serving import Served, make_rd, serving


async def letters(served: Served, number: int = 1, **payload: Any) -> list[str]:
    """So many jobs that failed for good."""
    new = [
        await served.post("/v1/jobs", {"task": "broken", "payload": {"number": n, **payload}}, status=201)
        for n in range(number)
    ]

    async def all_dead() -> bool:
        return len((await served.get("/v1/dead-letters"))["items"]) >= number

    await eventually(all_dead, "the jobs are dead")
    return [job["id"] for job in new]


def days(number: int) -> str:
    """The date so many days from now."""
    return (datetime.now(UTC) + timedelta(days=number)).date().isoformat()


async def state(served: Served, id: str) -> str:
    return str((await served.get(f"/v1/jobs/{id}"))["state"])


@pytest.mark.behaviour("000-81")
async def test_dead_letters_are_listed_and_filtered(served: Served) -> None:
    ids = await letters(served, 3)
    page = await served.get("/v1/dead-letters", queue="broken")
    assert {item["id"] for item in page["items"]} == set(ids)
    assert (await served.get("/v1/dead-letters", queue="other"))["items"] == []
    one = await served.get(f"/v1/dead-letters/{ids[0]}")
    assert (one["error_class"], one["lane"], one["because"]) == ("RuntimeError", "manual", one["because"])
    assert one["history"][0]["failure"]["message"] == "the mill is broken"
    for name in ("error_class", "category", "detail", "lane", "because"):
        assert len((await served.get("/v1/dead-letters", **{name: one[name]}))["items"]) == 3, name
    for name, other in (("error_class", "X"), ("category", "control"), ("lane", "delayed"), ("because", "imported")):
        assert (await served.get("/v1/dead-letters", **{name: other}))["items"] == []
    for name in ("category", "lane", "because", "reason"):
        await served.refused(422, "GET", f"/v1/dead-letters?{name}=nope")
    for group in (one["fingerprint"], one["fingerprint"][:6]):
        assert len((await served.get("/v1/dead-letters", group=group))["items"]) == 3
    assert (await served.get("/v1/dead-letters", group="ffffff"))["items"] == []


@pytest.mark.behaviour("000-82")
async def test_a_dead_letter_goes_back_to_its_queue(served: Served) -> None:
    told: list[str] = []
    served.rd.subscribe("replayed", lambda event: told.append(str(event.job_id)))
    await served.post("/v1/queues/broken/pause", {"why": "look first"})
    (id,) = [(await served.rd.dead.add("letter-1", {"text": "x"}, "Boom", task="broken")).id]
    back = await served.post(f"/v1/dead-letters/{id}/redrive", {"who": "ada", "why": "fixed"})
    assert (back["state"], back["error"]) == ("waiting", None)
    assert told == [id]
    found = await served.refused(409, "POST", f"/v1/dead-letters/{id}/redrive", json={})
    assert found["type"].endswith("illegal-move")
    assert ((await served.rd.jobs.story(id))[-1].who, (await served.rd.jobs.story(id))[-1].why) == (
        "owner (as ada)",
        "fixed",
    )


async def test_every_verb_of_triage_on_one(served: Served) -> None:
    await served.post("/v1/queues/broken/pause")
    id = (await served.post("/v1/dead-letters", {"job_id": "l", "payload": {}, "error": "Boom", "task": "broken"},
                            status=201))["id"]  # fmt: skip

    async def act(**body: Any) -> dict[str, Any]:
        found: dict[str, Any] = await served.post(f"/v1/dead-letters/{id}/triage", body)
        return found

    assert (await act(action="move_lane", lane="delayed", who="ada"))["lane"] == "delayed"
    assert (await act(action="note", text="seen", who="ada"))["state"] == "dead"
    assert [note["text"] for note in (await served.get(f"/v1/dead-letters/{id}/notes"))["items"]] == ["seen"]
    deferred = await act(action="defer", owner="ceo", until=3600, why="tomorrow")
    assert (deferred["state"], deferred["because"], deferred["owner"]) == ("held", "deferred", "ceo")
    assert (await act(action="recall"))["state"] == "dead"
    assert (await act(action="discard", why="not needed"))["state"] == "discarded"
    assert (await act(action="restore"))["state"] == "dead"
    preview = await served.post(f"/v1/dead-letters/{id}/preview-edit", {"payload": {"text": "other"}})
    assert preview["ok"] and preview["difference"]
    edited = await act(action="edit", payload={"text": "other"}, why="a better text")
    assert edited["state"] == "waiting"
    await served.post(f"/v1/jobs/{id}/cancel")
    await act(action="restore")
    assert (await act(action="reassign", agent="cto"))["agent"] == "cto"
    await served.post(f"/v1/jobs/{id}/cancel")
    await act(action="restore")
    assert (await act(action="redrive"))["state"] == "waiting"
    story = await served.get(f"/v1/jobs/{id}/story")
    assert any(entry["kind"] == "note" for entry in story["entries"])
    for body, field in (
        ({}, "action"),
        ({"action": "explode"}, "action"),
        ({"action": "defer", "owner": "ceo"}, "until"),
        ({"action": "note"}, "text"),
        ({"action": "move_lane", "lane": "fast"}, "lane"),
        ({"action": "discard", "lane": "manual"}, "lane"),
    ):
        found = await served.refused(422, "POST", f"/v1/dead-letters/{id}/triage", json=body)
        assert found["field"] == field, found
    await served.refused(404, "POST", "/v1/dead-letters/nosuch/triage", json={"action": "discard"})


async def test_many_at_once_and_back_again(served: Served) -> None:
    ids = await letters(served, 4)
    gone = await served.post("/v1/dead-letters/triage", {"action": "discard", "ids": ids[:2], "who": "ada"})
    assert (gone["moved"], gone["left"]) == (2, 0)
    assert await state(served, ids[0]) == "discarded"
    back = await served.post(f"/v1/acts/{gone['act_id']}/undo", {"why": "a mistake"})
    assert back["moved"] == 2
    moved = await served.post(
        "/v1/dead-letters/triage", {"action": "move_lane", "lane": "delayed", "filter": {"queue": "broken"}}
    )
    assert moved["moved"] == 4
    assert len((await served.get("/v1/dead-letters", lane="delayed"))["items"]) == 4
    again = {"action": "move_lane", "lane": "manual", "filter": {"lane": "delayed"}}
    assert (await served.post("/v1/dead-letters/triage", again))["moved"] == 4
    put_off = {"action": "defer", "owner": "bob", "until": f"{days(2)}T00:00:00Z", "all": True}
    assert (await served.post("/v1/dead-letters/triage", put_off))["moved"] == 4
    assert len((await served.get("/v1/jobs", owner="bob"))["items"]) == 4, "in whatever state, as in Python"
    assert (await served.get("/v1/jobs", owner="bob", state="dead"))["items"] == []
    acts = await served.get("/v1/acts")
    assert acts["items"][0]["verb"] == "defer"
    # nothing said is not everything
    await served.refused(422, "POST", "/v1/dead-letters/triage", json={"action": "discard"})
    await served.refused(422, "POST", "/v1/dead-letters/triage", json={"action": "discard", "filter": {}})
    await served.refused(404, "POST", "/v1/acts/nosuchact/undo", json={})


@pytest.mark.behaviour("000-83")
async def test_a_purge_needs_a_filter_a_count_and_its_token(served: Served) -> None:
    ids = await letters(served, 3)
    await served.refused(422, "DELETE", "/v1/dead-letters")
    await served.refused(422, "DELETE", "/v1/dead-letters?queue=broken")
    await served.refused(422, "GET", "/v1/dead-letters/purge-plan")
    plan = await served.get("/v1/dead-letters/purge-plan", queue="broken")
    assert (plan["number"], len(plan["sample"])) == (3, 3)
    wrong = "/v1/dead-letters?queue=broken&confirm=nonsense"
    await served.refused(422, "DELETE", wrong)
    await served.post(f"/v1/dead-letters/{ids[0]}/triage", {"action": "discard"})
    stale = f"/v1/dead-letters?queue=broken&confirm={plan['token']}"
    await served.refused(422, "DELETE", stale)
    plan = await served.get("/v1/dead-letters/purge-plan", queue="broken")
    answer = await served.client.delete(f"/v1/dead-letters?queue=broken&confirm={plan['token']}&who=ada")
    assert (answer.status_code, answer.json()) == (200, {"purged": 2})
    assert (await served.get("/v1/dead-letters"))["items"] == []
    assert await state(served, ids[1]) == "purged"


async def test_advice_is_masked_like_every_text(served: Served) -> None:
    said = {"job_id": "x", "payload": {}, "error": "E: no", "recommendation": "log in with password=hunter22 again"}
    added = await served.post("/v1/dead-letters", said, status=201)
    (job,) = await served.rd.store.get([added["id"]])
    assert job.recommendation == "log in with password=[redacted] again"
    as_it_was = msgspec.structs.replace(job, recommendation=said["recommendation"])  # by an earlier version
    for shown in (added, show_job(as_it_was), show_summary(as_it_was)):
        assert shown["recommendation"] == job.recommendation
    assert show_job(as_it_was, secrets=True)["recommendation"] == said["recommendation"]


async def test_letters_go_out_as_a_file_and_come_in_again(served: Served, tmp_path: Path) -> None:
    await letters(served, 3, password="hunter22")
    answer = await served.client.get("/v1/dead-letters/export?queue=broken")
    assert answer.status_code == 200 and answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert "hunter22" not in answer.text
    whole = await served.client.get("/v1/dead-letters/export?secrets=true")
    records = [json.loads(line) for line in whole.text.splitlines()]
    assert len(records) == 3 and "hunter22" in whole.text
    async with make_rd(tmp_path / "other.db") as elsewhere, serving(elsewhere, worker=False) as other:
        body = {"records": [*records, {"job_id": "x", "attempt": -1}]}
        tried = await other.post("/v1/dead-letters/import", {**body, "dry_run": True})
        assert (tried["imported"], tried["aside"], tried["problems"][0]["record"]) == (3, 1, 4)
        assert (await other.get("/v1/dead-letters"))["items"] == []
        assert (await other.post("/v1/dead-letters/import", body))["imported"] == 3
        assert (await other.post("/v1/dead-letters/import", body))["duplicates"] == 3
        assert len((await other.get("/v1/dead-letters", task="broken"))["items"]) == 3


async def test_groups(served: Served) -> None:
    await letters(served, 2)
    (group,) = (await served.get("/v1/dead-letters/groups"))["items"]
    assert (group["dead"], group["status"], group["error_class"]) == (2, "unresolved", "RuntimeError")
    assert (await served.get("/v1/groups", status="resolved"))["items"] == []
    path = f"/v1/groups/{group['fingerprint'][:8]}"
    assert len((await served.get(path))["samples"]) == 2
    cured = await served.post(f"{path}/resolve", {"who": "ada", "in_version": "1.2"})
    assert (cured["status"], cured["resolved_in"], cured["who"]) == ("resolved", "1.2", "owner (as ada)")
    known = await served.post(f"{path}/ignore", {"seconds": 3600, "rate": 5, "count": 9})
    assert (known["status"], known["ignored_rate"], known["ignored_count"]) == ("ignored", 5, 9)
    assert (await served.post(f"{path}/reopen"))["status"] == "unresolved"
    assert (await served.post(f"{path}/note", {"text": "see the wiki"}))["note"] == "see the wiki"
    await served.refused(404, "GET", "/v1/groups/nosuchgroup")
    await served.refused(404, "POST", "/v1/groups/nosuchgroup/resolve", json={})


async def test_a_redrive_of_many(served: Served) -> None:
    ids = await letters(served, 5)
    plan = await served.post("/v1/redrives", {"filter": {"queue": "broken"}, "dry_run": True})
    assert (plan["number"], plan["moving"], plan["queues"]) == (5, 5, {"broken": 5})
    assert all([await state(served, id) == "dead" for id in ids])
    await served.refused(422, "POST", "/v1/redrives", json={"filter": {"queue": "broken"}, "token": "other"})
    await served.refused(422, "POST", "/v1/redrives", json={})
    answer = await served.client.post(
        "/v1/redrives", json={"filter": {"queue": "broken"}, "token": plan["token"], "who": "ada", "why": "mended"}
    )
    run = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/redrives/{run['id']}")
    path = f"/v1/redrives/{run['id']}"

    async def over() -> bool:
        return bool((await served.get(path))["over"])

    await eventually(over, "the redrive is over")
    found = await served.get(path)
    assert (found["state"], found["moved"], found["failed_again"], found["who"]) == ("finished", 5, 5, "owner (as ada)")
    assert {item["id"] for item in (await served.get(f"{path}/items"))["items"]} == set(ids)
    assert [one["id"] for one in (await served.get("/v1/redrives"))["items"]] == [run["id"]]
    assert (await served.refused(409, "POST", f"{path}/pause", json={}))["type"].endswith("illegal-move")
    await served.refused(404, "GET", "/v1/redrives/nosuch")
    await served.refused(404, "POST", "/v1/redrives/nosuch/cancel", json={})


async def test_a_redrive_is_paused_resumed_and_cancelled(still: Served) -> None:
    for number in range(3):
        await still.rd.dead.add(f"l{number}", {}, "Boom", task="broken")
    run = await still.post("/v1/redrives", {"all": True, "canary": 1, "rate": 0.001}, status=201)
    path = f"/v1/redrives/{run['id']}"
    other = await still.refused(409, "POST", "/v1/redrives", json={"all": True})
    assert other["type"].endswith("illegal-move"), "one group is moved by one redrive at a time"
    assert (await still.post(f"{path}/pause", {"why": "wait"}))["state"] == "paused"
    assert (await still.post(f"{path}/resume", {"canary": 0}))["state"] in ("moving", "canary")
    assert (await still.post(f"{path}/cancel", {"who": "ada"}))["state"] == "cancelled"


@pytest.mark.behaviour("000-80", "000-84")
async def test_health_stats_and_queues(served: Served) -> None:
    assert (await served.get("/v1/health")) == {
        "status": "healthy", "total_pending": 0, "total_dead_letter": 0, "issues": [], "needs": [], "retrying": 0,
        "parked": 0, "comes_back": 0,
    }  # fmt: skip
    await letters(served, 2)
    health = await served.get("/v1/health")
    assert (health["status"], health["total_dead_letter"], health["issues"]) == (
        "degraded", 2, ["broken: 2 dead letters"],
    )  # fmt: skip
    stats = await served.get("/v1/stats")
    assert stats["totals"]["dead"] == 2 and stats["accepted"] == 2
    assert stats["runtime"]["broken"]["dead_letter"] == 2
    (queue,) = (await served.get("/v1/queues"))["items"]
    assert (queue["name"], queue["dead"], queue["paused"]) == ("broken", 2, False)
    assert "there is no queue 'a/b'" in (await served.refused(422, "POST", "/v1/queues/a%2Fb/pause", json={}))["detail"]
    assert await served.post("/v1/queues/a%2Fb/pause", {"new": True}) == {"queue": "a/b", "paused": True}
    assert {one["name"]: one["paused"] for one in (await served.get("/v1/queues"))["items"]}["a/b"] is True
    assert await served.post("/v1/queues/a%2Fb/resume", {"why": "go on"}) == {"queue": "a/b", "paused": False}


async def test_the_beginning_of_several_groups_is_not_taken_for_no_letters(still: Served) -> None:
    """Else a person would read that nothing is dead."""
    fingerprints = ["abcd" + "5" * 12, "abcd" + "7" * 12]
    await still.rd.store.insert([a_dead_job(fingerprint=name) for name in fingerprints])
    for path in ("/v1/dead-letters", "/v1/jobs", "/v1/dead-letters/export", "/v1/dead-letters/purge-plan"):
        assert (await still.refused(422, "GET", f"{path}?group=abcd"))["field"] == "group"
    body = {"filter": {"group": "abcd"}, "dry_run": True}
    assert (await still.refused(422, "POST", "/v1/redrives", json=body))["field"] == "group"
    assert len((await still.get("/v1/dead-letters", group="abcd5"))["items"]) == 1
    assert (await still.get("/v1/dead-letters", group="dead"))["items"] == []


async def test_reports(served: Served) -> None:
    await letters(served, 2)
    morning = await served.get("/v1/reports/morning", since=days(-2))
    assert morning["ok"] is False and morning["needs"][0]["count"] == 2
    assert (await served.get("/v1/reports/weekly", weeks=2))["rows"][-1]["dead_letters"] == 2
    assert (await served.get("/v1/reports/monthly", tz="Europe/Rome"))["total"]["dead_letters"] == 2
    log = await served.get("/v1/reports/failures", category="unknown")
    assert (log["buried"], len(log["letters"])) == (2, 2)
    assert sum((await served.get("/v1/reports/activity", minutes=5))["total"]["buried"]) == 2
    assert (await served.get("/v1/reports/load"))["items"]
    assert (await served.refused(422, "GET", "/v1/reports/monthly?tz=Mars/Olympus"))["field"] == "tz"
    assert (await served.refused(422, "GET", "/v1/reports/activity?minutes=5&hours=5"))["field"] == "minutes"


@pytest.mark.parametrize("report", ["morning?since", "failures?since", "failures?until"])
@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00"])
async def test_a_time_that_no_calendar_has_is_refused_by_name(still: Served, report: str, moment: str) -> None:
    refused = await still.refused(422, "GET", f"/v1/reports/{report}={moment}")
    assert refused["field"] == report.partition("?")[2]


@pytest.mark.preset("seven_agents")
async def test_what_is_around(served: Served) -> None:
    flow = served.rd.workflow("article")
    first = flow.add("greet", name="a")
    flow.add("greet", after=[first], name="b")
    handle = await flow.start()
    status = await served.get(f"/v1/workflows/{handle.id}")
    assert [step["task"] for step in status["steps"]] == ["greet", "greet"]
    assert len((await served.get("/v1/workflows", name="article"))["items"]) == 1
    await served.post(f"/v1/workflows/{handle.id}/cancel", {"why": "no"})
    await served.refused(404, "GET", "/v1/workflows/nosuchflow")
    assert (await served.get("/v1/breakers"))["items"] == []
    await served.refused(404, "POST", "/v1/breakers/host%3Ax/close", json={})
    assert (await served.get("/v1/schedules"))["items"] == []
    assert {agent["name"] for agent in (await served.get("/v1/agents"))["items"]} >= {"cto", "backend"}
    assert (await served.get("/v1/operations"))["queued"] == 0


async def test_sessions(served: Served) -> None:
    new = await served.post("/v1/jobs", {"task": "refund", "session_id": "s/1"}, status=201)

    async def asked() -> bool:
        return bool((await served.get("/v1/sessions/s%2F1/inbox"))["items"])

    await eventually(asked, "the session is asked for its consent")
    (notice,) = (await served.get("/v1/sessions/s%2F1/inbox"))["items"]
    assert (notice["job_id"], notice["status"]) == (new["id"], "pending")
    grant = await served.post("/v1/sessions/s%2F1/grants", {"scope": "refund", "by": "ada"}, status=201)

    async def done() -> bool:
        return await state(served, new["id"]) == "done"

    await eventually(done, "the refund is done")
    read = await served.post(f"/v1/sessions/s%2F1/inbox/{notice['id']}/acknowledge")
    assert read["read_at"]
    assert (await served.post(f"/v1/sessions/s%2F1/grants/{grant['id']}/revoke"))["revoked_at"]
    assert len((await served.get("/v1/sessions/s%2F1/grants"))["items"]) == 1
    assert await served.get("/v1/sessions/s%2F1/costs") == {"input_tokens": 0, "output_tokens": 0, "cost": 0.0}
    await served.refused(404, "POST", "/v1/sessions/s1/inbox/nosuch/acknowledge", json={})
    await served.refused(404, "POST", "/v1/sessions/s1/grants/nosuch/revoke", json={})


async def test_a_list_without_a_cursor_says_whether_there_is_more(served: Served) -> None:
    for name in ("a", "b"):
        job = await served.rd.dead.add(name, {}, KeyError("x"), task=name)
        await served.rd.dead.note(job.id, text="seen to")
        await served.rd.redrives.start([job.id], why="seen to")
        flow = served.rd.workflow(name)
        flow.add("greet", name="one")
        await flow.start()
        await served.rd.enqueue("refund", {}, session_id="s")

    async def told() -> bool:
        return len(await served.rd.sessions.inbox("s")) == 2

    await eventually(told, "the session is asked twice")
    for path in ("/v1/groups", "/v1/acts", "/v1/redrives", "/v1/workflows", "/v1/sessions/s/inbox"):
        first, every = await served.get(path, limit=1), await served.get(path)
        assert (len(first["items"]), first["more"]) == (1, True), path
        assert (len(every["items"]) > 1, every["more"]) == (True, False), path
