"""A fleet over REST, with a server and a worker that run: what travels with a message, and triage by an agent."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import redrive
from tests.support import eventually
from tests.web.serving import Served, make_rd, serving


async def ended(served: Served, id: str, state: str) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    async def reached() -> bool:
        seen.append(await served.get(f"/v1/jobs/{id}"))
        return bool(seen[-1]["state"] == state)

    await eventually(reached, f"job {id} is {state}")
    return seen[-1]


@pytest.mark.behaviour("004-49", "004-4")
async def test_headers_key_kind_time_and_number_of_tries_travel_with_a_message(database: Path) -> None:
    """Six headers as a fleet sends them: in every attempt, after a restart, and for whoever reads the job."""
    created = datetime.now(UTC).isoformat()
    headers = {
        "X-Task-ID": "t7", "X-Idempotency-Key": "t7-1", "X-Task-Type": "technical_writing", "X-Created-At": created,
        "X-Max-Retries": "3", "X-Retry-Strategy": "categorized",
    }  # fmt: skip
    message = {
        "task": "technical_writing", "payload": {"title": "Q3"}, "agent": "marketing", "idempotency_key": "t7-1",
        "message_type": "technical_writing", "max_attempts": 3, "headers": headers,
    }  # fmt: skip
    seen: list[Any] = []

    def fleet(answers: bool) -> redrive.Redrive:
        rd = make_rd(database)

        @rd.task
        async def technical_writing(ctx: redrive.Context, title: str) -> str:
            seen.append((ctx.attempt, ctx.agent, ctx.idempotency_key, ctx.job.options.headers))
            if not answers:
                raise redrive.Retry("not yet", after=0.01)
            return f"wrote {title}"

        return rd

    async with fleet(answers=False) as rd, serving(rd) as served:
        id = (await served.post("/v1/jobs", message, status=201))["id"]
        await eventually(lambda: len(seen) >= 1, "a first attempt fails")
        again = await served.post("/v1/jobs", message)
        assert (again["id"], again["duplicate"]) == (id, True)
        dead = await ended(served, id, "dead")
        assert dead["attempts"] == 3, "as many tries as it asked for"
        assert dead["options"]["headers"] == headers
    async with fleet(answers=True) as rd, serving(rd) as served:
        await served.post(f"/v1/dead-letters/{id}/redrive", {"who": "ceo", "why": "the outage is over"})
        done = await ended(served, id, "done")
        listed = await served.get("/v1/jobs", agent="marketing", task="technical_writing")
    assert (done["key"], done["agent"], done["result"]) == ("t7-1", "marketing", "wrote Q3")
    assert done["options"]["headers"] == headers
    assert done["options"]["message_type"] == "technical_writing"
    assert done["created_at"].endswith("Z")
    assert [attempt for attempt, *_ in seen] == [1, 2, 3, 4]
    assert [said for _, *said in seen] == [["marketing", "t7-1", headers]] * 4
    assert [job["id"] for job in listed["items"]] == [id]


@pytest.mark.behaviour("004-59")
async def test_an_agent_triages_and_what_it_did_is_done_and_on_record(database: Path) -> None:
    """The four actions on four real failures: each has its consequence, and who did it and why can be asked for."""
    rd = make_rd(database)

    @rd.task
    async def technical_writing(ctx: redrive.Context, title: str) -> str:
        if ctx.agent != "cto" and title != "shorter":
            raise redrive.GiveUp("I cannot write this")
        return f"{title}, by {ctx.agent}"

    async with rd, serving(rd) as served:
        ids = {}
        for title in ("architecture", "too long a title", "the budget", "last year's plan", "architecture, again"):
            message = {"task": "technical_writing", "payload": {"title": title}, "agent": "marketing"}
            ids[title] = (await served.post("/v1/jobs", message, status=201))["id"]
        for id in ids.values():
            await ended(served, id, "dead")

        async def act(title: str, **body: Any) -> Any:
            return await served.post(f"/v1/dead-letters/{ids[title]}/triage", {"who": "ceo", **body})

        await act("architecture", action="reassign", agent="cto", why="cto does this")
        await act("too long a title", action="edit", payload={"title": "shorter"}, why="a title that fits")
        await act("the budget", action="defer", owner="ada", until=3600, why="a person decides on money")
        await act("last year's plan", action="discard", why="obsolete")
        await act("architecture, again", action="discard", why="a duplicate of the first")

        assert (await ended(served, ids["architecture"], "done"))["result"] == "architecture, by cto"
        assert (await ended(served, ids["too long a title"], "done"))["result"] == "shorter, by marketing"
        assert [job["id"] for job in (await served.get("/v1/jobs", owner="ada"))["items"]] == [ids["the budget"]]
        assert (await served.get("/v1/dead-letters"))["items"] == []
        acts = (await served.get("/v1/acts"))["items"]
        stories = {title: (await served.get(f"/v1/jobs/{id}/story"))["entries"] for title, id in ids.items()}
    assert {(act["verb"], act["who"], act["why"], act["moved"]) for act in acts} == {
        ("reassign", "owner (as ceo)", "cto does this", 1),
        ("edit", "owner (as ceo)", "a title that fits", 1),
        ("defer", "owner (as ceo)", "a person decides on money", 1),
        ("discard", "owner (as ceo)", "obsolete", 1),
        ("discard", "owner (as ceo)", "a duplicate of the first", 1),
    }
    assert {act["job_id"] for act in acts} == set(ids.values())
    for title, entries in stories.items():
        assert any(entry.get("who") == "owner (as ceo)" and entry.get("why") for entry in entries), (title, entries)
