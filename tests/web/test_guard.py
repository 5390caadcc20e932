"""The way in for browsers: a link, a cookie, and headers that keep other pages out. And the file the token lives in."""

import importlib.util
import stat
from pathlib import Path

import httpx2
import pytest

import redrive
from redrive.doors.web import asgi
from redrive.doors.web.guard import POLICY, cookie_of
from redrive.doors.web.tokens import TokenFile
from tests.support import soon
from tests.web.serving import TOKEN, Served, raw, serving


async def test_a_link_gives_a_cookie_and_leads_to_the_same_page_without_the_token(still: Served) -> None:
    async with httpx2.AsyncClient(base_url=still.url) as browser:
        answer = await soon(browser.get(f"/v1/jobs?token={TOKEN}&limit=5"))
        assert (answer.status_code, answer.headers["location"]) == (303, "/v1/jobs?limit=5")
        name, value = cookie_of(TOKEN)
        said = answer.headers["set-cookie"]
        assert said.startswith(f"{name}={value}; Path=/; ") and TOKEN not in said
        assert "; HttpOnly" in said and "; SameSite=Strict" in said
        assert (await soon(browser.get("/v1/jobs?limit=5"))).status_code == 200
        assert (await soon(browser.get("/v1/jobs", params={"token": "wrong"}))).status_code == 422, "the cookie counts"


async def test_a_wrong_link_gives_nothing(still: Served) -> None:
    async with httpx2.AsyncClient(base_url=still.url) as browser:
        for path in ("/?token=wrong", f"/?token={TOKEN}&token={TOKEN}x", "/?token=", f"/?Token={TOKEN}"):
            answer = await soon(browser.get(path))
            assert answer.status_code == 401 and "set-cookie" not in answer.headers, path
        # no state changes by a link, and no link leads elsewhere
        assert (await soon(browser.post(f"/v1/jobs?token={TOKEN}", json={"task": "greet"}))).status_code == 401
    status, headers, _ = await raw(still, "GET", f"//evil.example/x?token={TOKEN}", [("Host", still.host)])
    assert (status, headers["location"]) == (303, "/evil.example/x")


async def test_every_answer_has_the_headers_that_keep_others_out(still: Served) -> None:
    for path in ("/v1/health", "/nothing", "/metrics", "/healthz", "/openapi.json"):
        headers = (await soon(still.client.get(path))).headers
        assert headers["content-security-policy"] == POLICY, path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


async def test_a_person_without_the_link_is_told_what_to_do(still: Served) -> None:
    async with httpx2.AsyncClient(base_url=still.url, headers={"Accept": "text/html,*/*"}) as browser:
        answer = await soon(browser.get("/"))
        assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert "redrive token --link" in answer.text and "<script" not in answer.text
        evil = await soon(browser.get("/", headers={"Host": "<script>evil"}))
        assert evil.status_code in (400, 421) and "<script" not in evil.text
        program = await soon(browser.get("/v1/health"))
        assert program.headers["content-type"] == "application/problem+json"


async def test_a_form_that_is_sent_without_the_token_is_answered_with_a_page(still: Served) -> None:
    """A script of ours that asks for a part of a page reads problems; a person does not."""
    async with httpx2.AsyncClient(base_url=still.url, headers={"Accept": "text/html,*/*"}) as browser:
        answer = await soon(browser.post("/dead/act", data={"verb": "discard"}, headers={"Origin": still.url}))
        assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert "redrive token --link" in answer.text
        for method, path in (("GET", "/"), ("POST", "/dead/act")):
            part = await soon(browser.request(method, path, headers={"HX-Request": "true", "Origin": still.url}))
            assert (part.status_code, part.headers["content-type"]) == (401, "application/problem+json"), method


async def test_an_address_that_does_not_exist_is_a_page_for_people_and_a_problem_for_programs(
    rd: redrive.Redrive,
) -> None:
    async with serving(rd, worker=False, dashboard=True) as served:
        page = {"Accept": "text/html"}
        answer = await soon(served.client.get("/nothing", headers=page))
        assert answer.status_code == 404 and answer.headers["content-type"].startswith("text/html")
        for path, headers in (("/nothing", {}), ("/v1/nothing", page), ("/v1/jobs/nosuch", page)):
            answer = await soon(served.client.get(path, headers=headers))
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path


async def test_without_a_token_host_and_origin_still_count(rd: redrive.Redrive) -> None:
    async with serving(rd, worker=False, token=False) as served:
        anybody = served.client
        assert "authorization" not in anybody.headers
        assert (await soon(anybody.get("/v1/health"))).status_code == 200
        assert (await soon(anybody.get("/v1/health", headers={"Host": "evil.example"}))).status_code == 421
        headers = {"Origin": "http://evil.example"}
        assert (await soon(anybody.post("/v1/jobs", json={"task": "greet"}, headers=headers))).status_code == 403


def test_the_token_lives_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "jobs.db-token")
    token = file()
    assert len(token) >= 40 and file() == token == TokenFile(file.path)()
    assert file.path is not None and stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.db-token"]
    other = TokenFile(file.path).rotate()
    assert other != token and file() == other, "a server that runs notices"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_token_file_that_others_can_read_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t"
    path.write_text("a-token-that-others-saw\n")
    path.chmod(0o644)
    assert TokenFile(path)() == "a-token-that-others-saw"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "could be read by others" in caplog.text and "that-others-saw" not in caplog.text


@pytest.mark.parametrize("text", ["", "short", "with spaces in between it", "ünïcode-is-not-for-headers"])
def test_a_token_that_cannot_be_one_is_refused_without_repeating_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(redrive.ConfigError, match="at least 16 plain characters") as refused:
        TokenFile(path)()
    assert not text or text not in str(refused.value)


def test_the_environment_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_TOKEN", "from-the-environment")
    file = TokenFile(tmp_path / "t")
    assert file() == "from-the-environment" and not (tmp_path / "t").exists()
    with pytest.raises(redrive.ConfigError, match="REDRIVE_TOKEN"):
        file.rotate()


async def test_rotating_shuts_out_at_once(rd: redrive.Redrive) -> None:
    async with serving(rd, worker=False, token=None) as served:
        file = TokenFile(Path(f"{rd.store.path}-token"))  # type: ignore[attr-defined]
        async with httpx2.AsyncClient(base_url=served.url, headers={"Authorization": f"Bearer {file()}"}) as client:
            assert (await soon(client.get("/v1/health"))).status_code == 200
            new = file.rotate()
            assert (await soon(client.get("/v1/health"))).status_code == 401
            headers = {"Authorization": f"Bearer {new}"}
            assert (await soon(client.get("/v1/health", headers=headers))).status_code == 200


@pytest.mark.parametrize("path", ["/v1/events", "/live"])
async def test_rotating_ends_the_streams_that_the_old_token_has_opened(rd: redrive.Redrive, path: str) -> None:
    async with serving(rd, worker=False, token=None, dashboard=True) as served:
        file = TokenFile(Path(f"{rd.store.path}-token"))  # type: ignore[attr-defined]
        headers = {"Authorization": f"Bearer {file()}"}
        async with served.client.stream("GET", path, headers=headers) as stream:
            lines = stream.aiter_lines()
            while not (await soon(anext(lines))).startswith("id:"):  # it listens from here on
                continue
            await rd.enqueue("greet", {})
            while "greet" not in await soon(anext(lines)):
                continue
            file.rotate()
            await rd.enqueue("refund", {})
            assert "refund" not in "".join([line async for line in lines])


def test_a_missing_extra_is_the_line_to_install_it(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "jinja2" else plain(name, *more)
    )
    with pytest.raises(redrive.ConfigError, match=r'jinja2: pip install "redrive\[serve\]"'):
        redrive.asgi(redrive.Redrive(database))


async def test_mounted_in_fastapi_under_a_prefix(rd: redrive.Redrive) -> None:
    """As its users would: their app, their routes, ours below a path."""
    from fastapi import FastAPI

    app = FastAPI()
    app.mount("/queue", asgi(rd, token=TOKEN, hosts=["queue.example"]))

    @app.get("/hello")
    async def hello() -> str:
        return "theirs"

    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        assert (await client.get("/hello")).json() == "theirs"
        assert (await client.get("/queue/v1/health")).status_code == 401
        assert (await client.get("/queue/healthz")).status_code == 200
        headers = {"Authorization": f"Bearer {TOKEN}"}
        new = await client.post("/queue/v1/jobs", json={"task": "greet"}, headers=headers)
        assert new.status_code == 201 and new.headers["location"] == f"/queue/v1/jobs/{new.json()['id']}"
        assert (await client.get(new.headers["location"], headers=headers)).json()["state"] == "waiting"
        told = (await client.get("/queue/openapi.json", headers=headers)).json()
        assert told["servers"] == [{"url": "/queue"}]
        missing = await client.get("/queue/nothing", headers=headers)
        assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
        link = await client.get(f"/queue/v1/health?token={TOKEN}")
        assert link.headers["location"] == "/queue/v1/health" and "Path=/queue;" in link.headers["set-cookie"]
        assert (await client.get("/queue/v1/health")).status_code == 200
        named = {**headers, "Host": "queue.example"}
        assert (await client.get("/queue/v1/health", headers=named)).status_code == 200
        assert (await client.get("/queue/v1/health", headers={**headers, "Host": "evil.example"})).status_code == 421
