"""The role worker: machines that run jobs through a hub over HTTP, and can do nothing else with their token."""

import asyncio

import httpx2
import pytest

import redrive
from redrive.core.commands import Apply, Take, Ticket
from redrive.core.documents import TOKEN as KIND
from redrive.core.store import Claim, Commit, Wanted
from redrive.core.tokens import Role
from redrive.stores.remote import protocol
from redrive.stores.remote.http import MEDIA, PATH
from redrive.stores.remote.service import Hub
from tests.support import soon
from tests.web.serving import TOKEN, Served, make_rd


async def a_secret(served: Served, role: Role, name: str = "runner") -> str:
    return (await served.rd.tokens.add(name, role)).secret


def client_of(served: Served, secret: str, monkeypatch: pytest.MonkeyPatch) -> redrive.Redrive:
    monkeypatch.setenv("REDRIVE_TOKEN", secret)
    made = make_rd(served.url)  # type: ignore[arg-type]
    _ = made.store  # it reads the variable
    monkeypatch.delenv("REDRIVE_TOKEN")
    return made


@pytest.mark.behaviour("H-3f")
async def test_a_worker_runs_jobs_through_the_hub_with_a_workers_token(
    still: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(still, await a_secret(still, "worker"), monkeypatch) as far, far.worker():
        handle = await far.enqueue("greet", {"name": "bea"})
        assert await soon(handle.result()) == "hello bea"
    assert (await still.rd.jobs.get(handle.id)).state == "done"


@pytest.mark.behaviour("H-3f")
@pytest.mark.parametrize("role", ["look", "act"])
async def test_the_hub_is_not_for_other_roles(still: Served, monkeypatch: pytest.MonkeyPatch, role: Role) -> None:
    far = client_of(still, await a_secret(still, role), monkeypatch)
    with pytest.raises(redrive.StoreUnavailable, match=r"refused the role of the token: .* need `worker`"):
        await soon(far.open())
    await far.close()


async def test_a_wrong_token_says_which_one_to_make(still: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    far = client_of(still, "a-token-that-is-not-theirs", monkeypatch)
    with pytest.raises(redrive.StoreUnavailable, match="redrive token add NAME --role worker"):
        await soon(far.open())
    await far.close()


@pytest.mark.behaviour("H-3f")
async def test_a_worker_cannot_raise_itself(still: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = await a_secret(still, "worker")
    before = [token.name for token in await still.rd.tokens.list()]
    async with client_of(still, secret, monkeypatch) as far:
        with pytest.raises(redrive.InvalidInput, match="role: this token may not write documents of the kind token"):
            await soon(far.tokens.add("mine", "purge"))
        with pytest.raises(redrive.InvalidInput, match="role: "):
            await soon(far.tokens.revoke("runner"))
    assert [token.name for token in await still.rd.tokens.list()] == before
    put = KIND.put("runner", (await still.rd.tokens.list())[0], None)
    asked = protocol.write_request("execute", (Apply((Commit(puts=(put,)),)), Ticket("c", 1)))
    answer = await _post(still, asked, secret)
    assert answer.status_code == 200 and b"InvalidInput" in answer.content


@pytest.mark.behaviour("H-3f")
async def test_the_owner_adds_tokens_through_the_hub(still: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client_of(still, TOKEN, monkeypatch) as far:
        made = await soon(far.tokens.add("ann", "look"))
    assert await still.rd.tokens.list() == [made.token]
    headers = {"Authorization": f"Bearer {made.secret}"}
    assert (await soon(still.client.get("/v1/health", headers=headers))).status_code == 200


async def _post(served: Served, data: bytes, secret: str) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": MEDIA}
    async with httpx2.AsyncClient(base_url=served.url, headers=headers) as client:
        answer: httpx2.Response = await soon(client.post(PATH, content=data))
        return answer


@pytest.mark.behaviour("H-3e")
async def test_a_request_that_waits_for_work_gets_none_after_its_token_is_revoked(
    still: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = await a_secret(still, "worker")
    taking, take = asyncio.Event(), Hub._claim_when_due

    async def watched(hub: Hub, said: Take, seconds: float) -> Claim:
        taking.set()
        return await take(hub, said, seconds)

    monkeypatch.setattr(Hub, "_claim_when_due", watched)
    asked = protocol.write_request("take_next", (Take(Wanted(8), "w", "p", "t1", still.rd.clock.now()), 20.0))
    waiting = asyncio.ensure_future(_post(still, asked, secret))
    await soon(taking.wait())
    await still.rd.tokens.revoke("runner")
    job = await still.rd.enqueue("greet", {})
    answer = await soon(waiting)
    assert answer.status_code == 401
    found = await still.rd.jobs.get(job.id)
    assert (found.state, found.attempts) == ("waiting", 0)
