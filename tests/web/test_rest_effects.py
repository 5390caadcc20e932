"""Effects over REST: those without a job, and what verifiers saw of a job's."""

import pytest

from redrive import Effect, OutcomeUnknown, Redrive
from tests.support import eventually
from tests.web.serving import Served, serving


@pytest.mark.behaviour("R-6f", "R-6h")
async def test_effects_without_a_job_are_listed_resolved_and_erased(still: Served) -> None:
    @still.rd.once(key="mail/{to}")
    async def send(to: str) -> dict[str, str]:
        if to == "bob":
            raise TimeoutError("no answer")
        return {"id": to, "password": "hunter2hunter2"}

    await send("ann")
    with pytest.raises(TimeoutError):
        await send("bob")
    page = await still.get("/v1/effects", status="unknown")
    assert [one["key"] for one in page["items"]] == ["mail/bob"] and page["more"] is False
    assert (await still.get("/v1/effects", limit=1))["more"] is True
    (need,) = (await still.get("/v1/health"))["needs"]
    assert (need["kind"], need["command"]) == ("outcome_unknown", "redrive status effect:mail/bob")
    said = await still.post("/v1/effects/mail/bob/resolve", {"landed": True, "result": {"id": 7}, "who": "ann"})
    assert (said["status"], said["result"]) == ("landed", {"id": 7})
    assert await send("bob") == {"id": 7}
    assert (await still.get("/v1/effects/mail/ann"))["result"]["password"] != "hunter2hunter2"
    assert (await still.get("/v1/effects/mail/ann", secrets=True))["result"]["password"] == "hunter2hunter2"
    erased = await still.post("/v1/effects/mail/ann/erase")
    assert (erased["result"], erased["forgotten"]) == (None, True)
    await still.post("/v1/effects/nope/resolve", {"landed": True}, status=404)
    await still.post("/v1/effects/mail/ann/resolve", {"landed": False}, status=422)


@pytest.mark.behaviour("R-6a", "R-6b")
async def test_what_verifiers_saw_is_told(rd: Redrive) -> None:
    async with serving(rd, dashboard=True) as served:
        await _told(served)


async def _told(served: Served) -> None:
    @served.rd.task(effects=[Effect("note", lambda p, w: True), Effect("mail", lambda p, w: False)])
    async def announce() -> None:
        raise OutcomeUnknown("no answer", witness={"path": "a.md"})

    job = await announce.enqueue()

    async def held() -> bool:
        return (await served.get(f"/v1/jobs/{job.id}"))["state"] == "held"

    await eventually(held)
    body = await served.get(f"/v1/jobs/{job.id}")
    last = body["history"][-1]
    assert last["effects"] == {"note": "verified", "mail": "absent"}
    assert (last["looked"], last["witness"]) == ("after", {"path": "a.md"})
    assert "note: there; mail: missing" in body["recommendation"]
    told = await served.get(f"/v1/jobs/{job.id}/story")
    facts = [fact["text"] for entry in told["entries"] for fact in entry.get("facts", ())]
    assert "note verified, mail absent" in facts
    page = await served.client.get(f"/jobs/{job.id}")
    assert "note verified, mail absent" in page.text and "note: there; mail: missing" in page.text
