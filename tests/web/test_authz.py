"""Every route of the document × every way of not being allowed. What is refused reaches nothing behind the guard."""

import json
from typing import Any

import pytest

from redrive.doors.web.guard import cookie_of
from tests.support import snapshot
from tests.web.serving import TOKEN, Served, raw

OPEN = {"/healthz", "/readyz"}


async def operations(served: Served) -> list[tuple[str, str]]:
    """Every method and path that the served document names, with something in the place of each parameter."""
    found = await served.get("/openapi.json")
    return [
        (method.upper(), "/".join("x1y2" if part.startswith("{") else part for part in path.split("/")))
        for path, methods in found["paths"].items()
        for method in methods
    ]


def allowed(served: Served, **instead: str | None) -> list[tuple[str, str]]:
    """What a good program sends, but for what is said here."""
    headers: dict[str, str | None] = {
        "Host": served.host, "Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json",
    }  # fmt: skip
    headers |= {name.replace("_", "-"): value for name, value in instead.items()}
    return [(name, value) for name, value in headers.items() if value is not None]


def cookie(served: Served, **instead: str | None) -> list[tuple[str, str]]:
    name, value = cookie_of(TOKEN)
    return allowed(served, Authorization=None, Cookie=f"a=b; {name}={value}", **instead)


def problem(status: int, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert not [name for name in headers if name.startswith("access-control")]
    found: dict[str, Any] = json.loads(body)
    assert found["status"] == status
    return found


async def test_every_route_refuses_whoever_is_not_allowed(still: Served) -> None:
    await still.rd.dead.add("l1", {}, "Boom", task="broken")
    await still.rd.enqueue("greet", {})
    before = snapshot(still.rd.store.path)  # type: ignore[attr-defined]
    routes = await operations(still)
    assert len(routes) > 60 and ("GET", "/v1/events") in routes and ("GET", "/metrics") in routes
    evil, own = "http://evil.example", f"http://{still.host}"
    wrong: list[tuple[int, list[tuple[str, str]]]] = [
        (421, allowed(still, Host="evil.example")),
        (421, allowed(still, Host=f"evil.example:{still.port}")),
        (421, allowed(still, Host=f"127.0.0.1:{still.port + 1}")),
        (421, [*allowed(still), ("Host", "evil.example")]),
        (403, allowed(still, Origin=evil)),
        (403, allowed(still, Origin="null")),
        (403, allowed(still, Origin=f"{own}.evil.example")),
        (403, cookie(still, Origin=evil)),
        (401, allowed(still, Authorization=None)),
        (401, allowed(still, Authorization="Bearer wrong")),
        (401, allowed(still, Authorization=f"Bearer {TOKEN}x")),
        (401, allowed(still, Authorization=f"Basic {TOKEN}")),
        (401, allowed(still, Authorization=None, Cookie=f"{cookie_of(TOKEN)[0]}=wrong")),
        (401, allowed(still, Authorization=None, Cookie=f"{cookie_of(TOKEN)[0]}={TOKEN}")),
        (401, [*allowed(still), ("Authorization", "Bearer other")]),
    ]  # fmt: skip
    bodies = {"POST": b"{}", "DELETE": b""}
    for method, path in routes:
        for status, headers in wrong:
            if status == 401 and path in OPEN:
                continue
            found, answered, body = await raw(still, method, path, headers, bodies.get(method, b""))
            if found == 400 and headers.count(("Host", "evil.example")):
                continue  # two Host headers: refused before we see them
            assert found == status, (method, path, headers, found)
            problem(status, answered, body)
            assert (answered.get("www-authenticate") == 'Bearer realm="redrive"') is (status == 401)
    assert snapshot(still.rd.store.path) == before  # type: ignore[attr-defined]


async def test_a_cookie_alone_changes_nothing(still: Served) -> None:
    """A page on another port of this machine is the same site: its requests carry our cookie."""
    new = b'{"task": "greet"}'
    own = f"http://{still.host}"
    assert (await raw(still, "GET", "/v1/health", cookie(still)))[0] == 200
    assert (await raw(still, "POST", "/v1/jobs", cookie(still), new))[0] == 403
    assert (await raw(still, "POST", "/v1/jobs", cookie(still, Origin="http://127.0.0.1:1"), new))[0] == 403
    foreign = cookie(still, Origin=own, Sec_Fetch_Site="same-site")
    assert (await raw(still, "POST", "/v1/jobs", foreign, new))[0] == 403
    assert (await still.get("/v1/jobs"))["items"] == []
    assert (await raw(still, "POST", "/v1/jobs", cookie(still, Origin=own), new))[0] == 201
    ours = cookie(still, Origin=own, Sec_Fetch_Site="same-origin")
    assert (await raw(still, "POST", "/v1/jobs", ours, new))[0] == 201


async def test_no_page_of_another_site_may_read_an_answer(still: Served) -> None:
    own = f"http://{still.host}"
    for method in ("OPTIONS", "GET"):
        _, headers, _ = await raw(still, method, "/v1/jobs", allowed(still, Origin=own))
        assert not [name for name in headers if name.startswith("access-control")]
    status, _, _ = await raw(still, "OPTIONS", "/v1/jobs", allowed(still, Origin=own))
    assert status == 405


async def test_nothing_changes_by_get(still: Served) -> None:
    """Every GET of the document, as somebody who is allowed: the store is as it was."""
    await still.rd.dead.add("l1", {}, "Boom", task="broken")
    await still.rd.groups.look()
    before = snapshot(still.rd.store.path)  # type: ignore[attr-defined]
    for method, path in await operations(still):
        if method == "GET" and path != "/v1/events":
            status, _, _ = await raw(still, "GET", path, allowed(still))
            assert status in (200, 404, 422), (path, status)
    assert snapshot(still.rd.store.path) == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(OPEN))
async def test_probes_need_no_token_but_the_right_host(still: Served, path: str) -> None:
    assert (await raw(still, "GET", path, allowed(still, Authorization=None)))[0] == 200
    assert (await raw(still, "GET", path, allowed(still, Authorization=None, Host="evil.example")))[0] == 421
