"""Named tokens over HTTP: every route × every role, who is recorded, and what ends when a token does."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

import redrive
from redrive.core.tokens import ROLES, Role, cookie_of
from redrive.doors.dashboard import ACTIONS, PAGES
from redrive.doors.rest import TABLE
from redrive.doors.rest.route import Route
from redrive.engine.clock import SystemClock
from tests.chaos.processes import until
from tests.support import count_in_files, snapshot, soon
from tests.web.serving import TOKEN, Served, make_rd, raw, serving

PURGE = {
    ("DELETE", "/v1/dead-letters"), ("POST", "/v1/jobs/{id}/erase"), ("POST", "/v1/effects/{key:path}/erase"),
    ("POST", "/dead/purge"),
}  # fmt: skip
LOOK = {("POST", "/me")}
"""It changes nothing in the store. A preview of an edit would tell whether a guessed secret is the right one."""
STREAMS = {"/v1/events", "/live"}
RANK = {"worker": 0, "look": 1, "act": 2, "purge": 3}


def expected(method: str, path: str) -> Role:
    """The rule in other words than the tables."""
    if (method, path) in PURGE:
        return "purge"
    return "look" if method == "GET" or (method, path) in LOOK else "act"


class Ahead(SystemClock):
    """The system's clock, so many seconds ahead."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


@pytest.fixture
def clock() -> Ahead:
    return Ahead()


@pytest.fixture
async def pages(database: Path, clock: Ahead) -> AsyncIterator[Served]:
    async with make_rd(database, clock=clock) as rd, serving(rd, worker=False, dashboard=True) as served:
        yield served


async def a_secret(served: Served, name: str = "ann", role: Role = "act", **how: Any) -> str:
    return (await served.rd.tokens.add(name, role, **how)).secret


def bearing(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@asynccontextmanager
async def a_browser(served: Served, secret: str) -> AsyncIterator[httpx2.AsyncClient]:
    """One that has opened the link with this token."""
    headers = {"Accept": "text/html", "Origin": served.url}
    async with httpx2.AsyncClient(base_url=served.url, headers=headers) as browser:
        assert (await soon(browser.get(f"/?token={secret}"))).status_code == 303
        yield browser


# -- what a role may do


def lines() -> dict[tuple[str, str], Role]:
    """The tables of REST and of the dashboard."""
    dashboard = {(line.method, line.path): line.role for line in (*PAGES, *ACTIONS)}
    rest = {(route.method, route.path): route.needs for route in TABLE if not route.is_open}
    assert not set(rest) & set(dashboard)
    return rest | dashboard


def test_every_line_of_both_tables_says_the_role_that_it_needs() -> None:
    found = lines()
    assert len(found) > 100 and found.keys() >= PURGE | LOOK
    assert found == {(method, path): expected(method, path) for method, path in found}


def address(path: str) -> str:
    return "/".join("x1y2" if part.startswith("{") else part for part in path.split("/"))


@pytest.mark.behaviour("H-3b")
@pytest.mark.parametrize("role", ROLES)
async def test_every_route_refuses_a_role_below_the_one_it_needs(pages: Served, role: Role) -> None:
    secret = await a_secret(pages, role=role)
    await pages.rd.dead.add("l1", {}, "Boom", task="broken")
    await pages.rd.tokens.note_use((await pages.rd.tokens.list())[0])
    before = snapshot(pages.rd.store.path)  # type: ignore[attr-defined]
    allowed, head = [], [("Host", pages.host), ("Authorization", f"Bearer {secret}")]
    for (method, path), needs in lines().items():
        if RANK[role] >= RANK[needs]:
            allowed.append((method, path))
            continue
        status, headers, body = await raw(pages, method, address(path), head)
        assert status == 403, (method, path, status)
        assert f"needs the role {needs}" in body.decode(), (method, path)
        assert path.startswith("/v1") is False or json.loads(body)["type"] == "urn:redrive:problem:forbidden-role"
        assert headers["cache-control"] == "no-store"
    assert snapshot(pages.rd.store.path) == before  # type: ignore[attr-defined]
    for method, path in allowed:
        if path not in STREAMS:
            status, _, _ = await raw(pages, method, address(path), head)
            assert status not in (401, 403, 405), (method, path, status)


async def test_the_document_tells_the_role_of_every_operation(still: Served) -> None:
    found = (await still.get("/openapi.json"))["paths"]
    assert found["/v1/jobs"]["get"]["x-redrive-role"] == "look"
    assert found["/v1/jobs"]["post"]["x-redrive-role"] == "act"
    assert found["/v1/dead-letters"]["delete"]["x-redrive-role"] == "purge"
    assert "x-redrive-role" not in found["/healthz"]["get"]


def test_a_new_route_needs_act_unless_it_reads() -> None:
    async def handle(_: Any) -> None: ...

    needs = {method: Route(method, "/v1/new", handle, "New.", str).needs for method in ("GET", "POST", "PUT", "DELETE")}
    assert needs == {"GET": "look", "POST": "act", "PUT": "act", "DELETE": "act"}


async def test_secrets_are_not_for_who_may_only_look(still: Served) -> None:
    id = (await still.rd.enqueue("broken", {"password": "hunter22"})).id
    look, act = await a_secret(still, "wall", "look"), await a_secret(still)
    masked = await soon(still.client.get(f"/v1/jobs/{id}", headers=bearing(look)))
    assert masked.status_code == 200 and "hunter22" not in masked.text
    for path in (f"/v1/jobs/{id}", "/v1/dead-letters/export", "/v1/effects"):
        refused = await soon(still.client.get(f"{path}?secrets=true", headers=bearing(look)))
        assert refused.status_code == 403 and refused.json()["field"] == "secrets"
    assert "hunter22" in (await soon(still.client.get(f"/v1/jobs/{id}?secrets=true", headers=bearing(act)))).text


async def test_an_export_from_the_dashboard_keeps_secrets_from_who_may_only_look(pages: Served) -> None:
    await pages.rd.dead.add("l1", {"password": "hunter22"}, "Boom", task="broken")
    look, act = await a_secret(pages, "wall", "look"), await a_secret(pages)
    masked = await soon(pages.client.get("/dead/export", headers=bearing(look)))
    assert masked.status_code == 200 and "Boom" in masked.text and "hunter22" not in masked.text
    refused = await soon(pages.client.get("/dead/export?secrets=true", headers=bearing(look)))
    assert refused.status_code == 403 and "hunter22" not in refused.text
    assert "hunter22" in (await soon(pages.client.get("/dead/export?secrets=true", headers=bearing(act)))).text


async def test_a_search_does_not_tell_secrets_letter_by_letter(pages: Served) -> None:
    id = (await pages.rd.enqueue("broken", {"password": "hunter22", "city": "Bern"})).id
    look = bearing(await a_secret(pages, "wall", "look"))
    for path in ("/jobs?text=", "/v1/jobs?text="):
        assert id in (await soon(pages.client.get(f"{path}bern", headers=look))).text
        for guess in ("hunter22", "hunt", '"password":"h'):
            assert id not in (await soon(pages.client.get(f"{path}{guess}", headers=look))).text, (path, guess)
    assert [job.id for job in (await pages.rd.jobs.search("hunt")).page.jobs] == [id]


async def test_words_of_people_are_masked_for_who_may_only_look(pages: Served) -> None:
    rd, words = pages.rd, "login with password=hunter22"
    kept, held, gone = [(await rd.dead.add(f"l{n}", {}, "Boom", task="broken")).id for n in range(3)]
    fingerprint = str((await rd.jobs.get(kept)).fingerprint)
    await rd.groups.ignore(fingerprint, why=words)
    await rd.groups.note(fingerprint, words)
    await rd.dead.discard(gone, why=words)
    await rd.dead.defer(held, owner="eve", until=3600, why=words)
    run = await rd.redrives.start([kept], why=words)
    await rd.queues.pause("broken", why=words)
    look = await a_secret(pages, "wall", "look")
    paths = ["/acts", "/dead", f"/groups/{fingerprint}", "/redrives", f"/redrives/{run.id}", "/queues", f"/jobs/{gone}"]
    paths += ["/inbox?session=owner:eve", "/v1/groups", f"/v1/groups/{fingerprint}", "/v1/acts", "/v1/queues"]
    for path in paths:
        shown = await soon(pages.client.get(path, headers=bearing(look)))
        assert shown.status_code == 200 and "hunter22" not in shown.text, path


# -- who did it


@pytest.mark.behaviour("H-3d")
async def test_an_act_over_rest_is_recorded_under_the_tokens_name(still: Served) -> None:
    secret = await a_secret(still)
    for n, (said, who) in enumerate(
        [({}, "ann"), ({"who": "editor"}, "ann (as editor)"), ({"who": "owner"}, "ann (as owner)")]
    ):
        job = await still.rd.dead.add(f"l{n}", {}, "Boom", task="broken")
        body = {"action": "discard", **said}
        answer = await soon(still.client.post(f"/v1/dead-letters/{job.id}/triage", json=body, headers=bearing(secret)))
        assert answer.status_code == 200, answer.text
        acts = (await still.get("/v1/acts"))["items"]
        assert [act["who"] for act in acts if act["job_id"] == job.id] == [who]
        story = await still.get(f"/v1/jobs/{job.id}/story")
        assert who in [entry.get("who") for entry in story["entries"]]
    session = "/v1/sessions/s1/grants"
    granted = await soon(still.client.post(session, json={"scope": "refund", "by": "bob"}, headers=bearing(secret)))
    assert granted.json()["by"] == "ann (as bob)"


async def test_the_owners_token_is_called_owner(still: Served) -> None:
    job = await still.rd.dead.add("l1", {}, "Boom", task="broken")
    await still.post(f"/v1/dead-letters/{job.id}/triage", {"action": "discard"})
    await still.post(f"/v1/dead-letters/{job.id}/triage", {"action": "restore", "who": "ann"})
    assert [act["who"] for act in (await still.get("/v1/acts"))["items"]] == ["owner (as ann)"]
    moves = [entry.who for entry in await still.rd.jobs.story(job.id)]
    assert moves[-2:] == ["owner", "owner (as ann)"]


async def test_where_no_token_is_asked_for_the_callers_word_stands(rd: redrive.Redrive) -> None:
    async with serving(rd, worker=False, token=False) as served:
        job = await rd.dead.add("l1", {}, "Boom", task="broken")
        await served.post(f"/v1/dead-letters/{job.id}/triage", {"action": "discard", "who": "ann"})
        await served.post(f"/v1/dead-letters/{job.id}/triage", {"action": "restore"})
        assert [entry.who for entry in await rd.jobs.story(job.id)][-2:] == ["ann", "rest"]


@pytest.mark.behaviour("H-3d")
async def test_an_act_on_the_dashboard_is_recorded_and_shown_under_the_tokens_name(pages: Served) -> None:
    job = await pages.rd.dead.add("l1", {}, "Boom", task="broken")
    async with a_browser(pages, await a_secret(pages)) as browser:
        assert (await soon(browser.post(f"/jobs/{job.id}/act/discard", data={}))).status_code == 303
        page = (await soon(browser.get("/acts"))).text
        assert "<strong>ann</strong> discarded" in page
        assert "Signed in as <strong>ann</strong>" in page and "may act" in page
        await soon(browser.post("/me", data={"name": "owner"}))
        await soon(browser.post(f"/jobs/{job.id}/act/restore", data={}))
    assert [entry.who for entry in await pages.rd.jobs.story(job.id)][-2:] == ["ann", "ann (as owner)"]


# -- a browser


@pytest.mark.behaviour("H-3b")
async def test_who_may_look_cannot_act_by_a_form(pages: Served) -> None:
    job = await pages.rd.dead.add("l1", {}, "Boom", task="broken")
    group = (await pages.rd.groups.list())[0].fingerprint
    secret = await a_secret(pages, "wall", "look")
    await pages.rd.tokens.note_use((await pages.rd.tokens.list())[0])
    before = snapshot(pages.rd.store.path)  # type: ignore[attr-defined]
    async with a_browser(pages, secret) as browser:
        for path, form in (
            (f"/jobs/{job.id}/act/discard", {}), ("/dead/act", {"verb": "discard", "all": "1"}),
            ("/dead/purge", {"all": "1", "confirm": "1"}), (f"/groups/{group}/resolve", {}), ("/queues/pause", {}),
            (f"/jobs/{job.id}/edit", {"payload": "{}"}),
        ):  # fmt: skip
            answer = await soon(browser.post(path, data=form))
            assert answer.status_code == 403 and "This needs the role " in answer.text, path
            assert "has the role look" in answer.text and "redrive token add NAME --role ROLE" in answer.text
        for path in (f"/jobs/{job.id}", f"/groups/{group}", "/dead", "/queues", "/acts", "/"):
            page = (await soon(browser.get(path))).text
            assert 'method="post"' not in page.replace('<form method="post" action="/me">', ""), path
            assert "Signed in as <strong>wall</strong>" in page
        assert 'value="purge"' not in (await soon(browser.get("/dead"))).text
        plan = await soon(browser.get("/dead/act?verb=discard&all=1"))
        assert "it needs the role act" in plan.text
    assert snapshot(pages.rd.store.path) == before  # type: ignore[attr-defined]


async def test_who_may_act_is_not_offered_a_purge(pages: Served) -> None:
    await pages.rd.dead.add("l1", {}, "Boom", task="broken")
    async with a_browser(pages, await a_secret(pages)) as browser:
        letters = (await soon(browser.get("/dead"))).text
        assert 'value="discard"' in letters and 'value="purge"' not in letters
        assert "it needs the role purge" in (await soon(browser.get("/dead/act?verb=purge&all=1"))).text
        assert (await soon(browser.post("/dead/act", data={"verb": "purge", "all": "1"}))).status_code == 303
        assert (await soon(browser.post("/dead/purge", data={"all": "1", "confirm": "1"}))).status_code == 403
    assert len((await pages.rd.dead.list()).jobs) == 1


async def test_a_workers_token_opens_no_page(pages: Served) -> None:
    secret = await a_secret(pages, "runner", "worker")
    for path in ("/", "/nothing", "/v1/nothing", "/v1/health"):
        answer = await soon(pages.client.get(path, headers={**bearing(secret), "Accept": "text/html"}))
        assert answer.headers["content-type"] == "application/problem+json", path
        assert answer.status_code in (403, 404)


@pytest.mark.behaviour("H-3c")
async def test_the_cookie_of_a_named_token_is_kept_from_scripts_and_other_sites(pages: Served) -> None:
    secret = await a_secret(pages)
    async with httpx2.AsyncClient(base_url=pages.url) as browser:
        said = (await soon(browser.get(f"/?token={secret}"))).headers["set-cookie"]
    name, value = cookie_of(secret)
    assert said.startswith(f"{name}={value}; Path=/; ") and secret not in said
    assert "; HttpOnly" in said and "; SameSite=Strict" in said


@pytest.mark.behaviour("H-3c")
async def test_a_cookie_of_a_named_token_changes_nothing_without_the_right_origin(still: Served) -> None:
    secret, new = await a_secret(still), b'{"task": "greet"}'
    name, value = cookie_of(secret)
    head = [("Host", still.host), ("Cookie", f"{name}={value}"), ("Content-Type", "application/json")]
    own = ("Origin", still.url)
    assert (await raw(still, "GET", "/v1/health", head))[0] == 200
    assert (await raw(still, "POST", "/v1/jobs", head, new))[0] == 403
    assert (await raw(still, "POST", "/v1/jobs", [*head, ("Origin", "http://evil.example")], new))[0] == 403
    assert (await raw(still, "POST", "/v1/jobs", [*head, own, ("Sec-Fetch-Site", "same-site")], new))[0] == 403
    twice = [("Host", still.host), ("Cookie", f"{name}={value}; {name}={value}")]
    assert (await raw(still, "GET", "/v1/health", twice))[0] == 401
    assert (await raw(still, "POST", "/v1/jobs", [*head, own], new))[0] == 201


async def test_the_link_that_was_opened_last_counts(pages: Served) -> None:
    secret = await a_secret(pages, "wall", "look")
    async with a_browser(pages, TOKEN) as browser:
        assert "Signed in as <strong>owner</strong>" in (await soon(browser.get("/"))).text
        await soon(browser.get(f"/?token={secret}"))
        assert "Signed in as <strong>wall</strong>" in (await soon(browser.get("/"))).text
        assert cookie_of(TOKEN)[0] not in browser.cookies
        await soon(browser.get(f"/?token={TOKEN}"))
        assert "Signed in as <strong>owner</strong>" in (await soon(browser.get("/"))).text
    both = "; ".join(f"{name}={value}" for name, value in (cookie_of(TOKEN), cookie_of(secret)))
    page = await soon(pages.client.get("/", headers={"Cookie": both, "Authorization": ""}))
    assert page.status_code == 401, "an empty header is no cookie's friend"
    _, _, body = await raw(pages, "GET", "/", [("Host", pages.host), ("Cookie", both)])
    assert b"Signed in as <strong>wall</strong>" in body, "a browser sends the one it got last at the end"


# -- the end of a token


@pytest.mark.behaviour("H-3e")
@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_token_that_ended_opens_nothing_from_that_moment_on(pages: Served, clock: Ahead, how: str) -> None:
    secret = await a_secret(pages, expires=timedelta(hours=1))
    assert (await soon(pages.client.get("/v1/health", headers=bearing(secret)))).status_code == 200
    async with a_browser(pages, secret) as browser:
        await ended(pages, clock, how)
        assert (await soon(pages.client.get("/v1/health", headers=bearing(secret)))).status_code == 401
        assert (await soon(browser.get("/"))).status_code == 401
        assert (await soon(browser.get(f"/?token={secret}"))).status_code == 401


async def ended(served: Served, clock: Ahead, how: str) -> None:
    if how == "revoked":
        await served.rd.tokens.revoke("ann")
    else:
        clock.ahead = 3601.0


@pytest.mark.behaviour("H-3e")
@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.parametrize("path", ["/v1/events", "/live"])
async def test_the_streams_of_a_token_end_with_it(pages: Served, clock: Ahead, path: str, how: str) -> None:
    secret = await a_secret(pages, expires=timedelta(hours=1))
    async with pages.client.stream("GET", path, headers=bearing(secret)) as stream:
        lines = stream.aiter_lines()
        while not (await soon(anext(lines))).startswith("id:"):  # it listens from here on
            continue
        await pages.rd.enqueue("greet", {})
        while "greet" not in await soon(anext(lines)):
            continue
        await ended(pages, clock, how)
        await pages.rd.enqueue("refund", {})
        assert "refund" not in "".join([line async for line in lines])


# -- what is kept


@pytest.mark.behaviour("H-3c")
async def test_only_hashes_are_in_the_file(pages: Served) -> None:
    secret = await a_secret(pages)
    await soon(pages.client.get("/v1/health", headers=bearing(secret)))
    async with a_browser(pages, secret) as browser:
        await soon(browser.get("/acts"))
    await until("the use is noted", lambda: _used(pages.rd))
    (token,) = await pages.rd.tokens.list()
    folder = Path(pages.rd.store.path).parent  # type: ignore[attr-defined]
    assert sum(count_in_files(folder, token.digest).values()) > 0, "the place is the right one"
    assert sum(count_in_files(folder, secret, cookie_of(secret)[1]).values()) == 0


async def _used(rd: redrive.Redrive) -> bool:
    return (await rd.tokens.list())[0].used_at is not None


async def test_the_last_use_is_not_written_at_every_request(still: Served) -> None:
    secret = await a_secret(still)
    for _ in range(3):
        await soon(still.client.get("/v1/health", headers=bearing(secret)))
    await until("the use is noted", lambda: _used(still.rd))
    before = snapshot(still.rd.store.path)  # type: ignore[attr-defined]
    for _ in range(3):
        await soon(still.client.get("/v1/health", headers=bearing(secret)))
    assert snapshot(still.rd.store.path) == before  # type: ignore[attr-defined]


async def test_a_guessed_secret_is_not_confirmed_to_a_token_that_may_look(pages: Served) -> None:
    """A preview compares the new input with the stored one, secrets and all: it takes the role that may edit."""
    await pages.rd.dead.add("old-1", {"name": "ada", "api_key": "sk-live-1234567890abcdef"}, "boom", task="greet")
    (letter,) = (await pages.rd.dead.list()).jobs
    guess = {"name": "ada", "api_key": "sk-live-1234567890abcdef"}
    looks, acts = await a_secret(pages, "lou", "look"), await a_secret(pages, "ann", "act")
    place = f"/v1/dead-letters/{letter.id}/preview-edit"
    refused = await soon(pages.client.post(place, json={"payload": guess}, headers=bearing(looks)))
    assert refused.status_code == 403 and "role act" in refused.text
    allowed = await soon(pages.client.post(place, json={"payload": guess}, headers=bearing(acts)))
    assert allowed.status_code == 200, allowed.text
    forms = {
        f"/jobs/{letter.id}/preview": {"payload": json.dumps(guess)},
        "/dead/edit/preview": {"patch": json.dumps(guess), "all": "1"},
    }
    async with a_browser(pages, looks) as browser:
        for path, form in forms.items():
            answer = await soon(browser.post(path, data=form))
            assert answer.status_code == 403 and "Your token may not do this" in answer.text, path
        shown = (await soon(browser.get(f"/jobs/{letter.id}/edit"))).text
        assert "readonly" in shown and "sk-live" not in shown
