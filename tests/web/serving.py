"""What the web tests share: a real server on 127.0.0.1 with a real worker behind it, and clients for it."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import msgspec

import redrive
from redrive.doors.rest import TABLE
from redrive.doors.rest.openapi import document
from redrive.doors.web import make_app
from redrive.doors.web.feed import Feed
from redrive.doors.web.guard import allowed_hosts
from redrive.doors.web.server import listen, make_web_server
from tests.support import soon

TOKEN = "a-token-that-nobody-guesses"
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of a server without TLS: each would read all that the machine trusts, which takes longer than a test."""


class Served:
    """A server that runs: its app, its address, and a client that has the token."""

    def __init__(self, rd: redrive.Redrive, feed: Feed, port: int, client: httpx2.AsyncClient) -> None:
        self.rd = rd
        self.feed = feed
        self.port = port
        self.client = client

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    async def get(self, path: str, **query: Any) -> Any:
        """The body of a good answer."""
        answer = await soon(self.client.get(path, params=query))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, *, status: int = 200, **headers: str) -> Any:
        answer = await soon(self.client.post(path, json={} if body is None else body, headers=headers))
        assert answer.status_code == status, answer.text
        return answer.json()

    async def break_off(self, path: str, media: str, body: str) -> None:
        """Say that more will come, and leave."""
        _, writer = await soon(asyncio.open_connection("127.0.0.1", self.port))
        lines = [
            f"POST {path} HTTP/1.1", f"Host: {self.host}", f"Authorization: Bearer {TOKEN}", f"Content-Type: {media}",
            "Content-Length: 100", "", body,
        ]  # fmt: skip
        writer.write("\r\n".join(lines).encode())
        writer.close()

    async def refused(self, status: int, method: str, path: str, **how: Any) -> dict[str, Any]:
        """The problem that it is answered with."""
        answer = await soon(self.client.request(method, path, **how))
        assert answer.status_code == status, (answer.status_code, answer.text)
        return problem_in(answer)


@cache
def promised() -> tuple[dict[str, Any], dict[str, Any]]:
    """The document, and by method and path pattern what each operation may answer."""
    found = document(TABLE)
    operations = {
        (method.upper(), re.compile(re.sub(r"\{\w+\}", "[^/?]+", path) + r"(\?.*)?$")): operation
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    }
    return found, operations


async def conforms(answer: httpx2.Response) -> None:
    """Whatever the server answers to anybody in these tests is what its document says."""
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        return
    found, operations = promised()
    method = "GET" if answer.request.method == "HEAD" else answer.request.method
    path = answer.request.url.raw_path.decode()
    fitting = [one for (verb, pattern), one in operations.items() if verb == method and pattern.match(path)]
    if not fitting or answer.status_code == 303:
        return
    said = fitting[0]["responses"].get(str(answer.status_code))
    assert said is not None, f"{method} {path}: {answer.status_code} is not in the document"
    ((media, content),) = said["content"].items()
    assert answer.headers["content-type"].partition(";")[0] == media
    if media in ("application/json", "application/problem+json") and answer.request.method != "HEAD":
        await answer.aread()
        checked = jsonschema.Draft202012Validator({**content["schema"], "components": found["components"]})
        wrong = [f"{error.json_path}: {error.message}" for error in checked.iter_errors(answer.json())]
        assert not wrong, f"{method} {path}: {wrong[:3]}"


def problem_in(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json", answer.headers
    body: dict[str, Any] = answer.json()
    assert body["status"] == answer.status_code
    assert body["type"].startswith("urn:redrive:problem:") and body["title"]
    return body


@asynccontextmanager
async def serving(
    rd: redrive.Redrive,
    *,
    worker: bool = True,
    token: Any = TOKEN,
    pace: float = 0.05,
    dashboard: bool = False,
    grace: float | None = None,
) -> AsyncIterator[Served]:
    """A real uvicorn on a free port; everything is gone when the block ends."""
    feed = Feed(rd, pace=pace)
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        app = make_app(rd, feed, token=token, hosts=allowed_hosts("127.0.0.1", port), dashboard=dashboard)
        server = make_web_server(app)
        running = asyncio.create_task(server.serve(sockets=[sock]))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with (
                httpx2.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}",
                    headers=headers,
                    event_hooks={"response": [conforms]},
                    verify=NO_CERTIFICATES,
                ) as client,
                rd.worker(concurrency=8, grace=grace) if worker else nullcontext(),
            ):
                yield Served(rd, feed, port, client)
        finally:
            feed.close()
            server.should_exit = True
            await soon(running)


async def raw(
    served: Served, method: str, path: str, headers: list[tuple[str, str]], body: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a request, header by header as given."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "Connection: close"]
    lines += [f"Content-Length: {len(body)}", "", ""]
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write("\r\n".join(lines).encode("latin-1") + body)
        await writer.drain()
        answer = await soon(reader.read())
    finally:
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *others = head.decode("latin-1").split("\r\n")
    found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in others)}
    return int(first.split()[1]), found, rest


class Busy(Exception):
    """What a provider answers when it has too much to do."""

    status_code = 429
    retry_after = 60.0


class Line(msgspec.Struct):
    sku: str
    pieces: int = 1


def make_rd(database: Path, **settings: Any) -> redrive.Redrive:
    """An app with tasks that end in every way."""
    rd = redrive.Redrive(database, poll=0.05, **settings)

    @rd.task
    async def greet(name: str = "ada") -> str:
        return f"hello {name}"

    @rd.task(max_attempts=1, comebacks=())
    async def broken(text: str = "the mill is broken", **anything: object) -> None:
        raise RuntimeError(text)

    @rd.task
    async def busy(**anything: object) -> None:
        raise Busy("too many requests")

    @rd.task(consent=True)
    async def refund(euros: int = 1) -> str:
        return f"refunded {euros}"

    @rd.task
    async def ask(ctx: redrive.Context, what: str = "really?") -> bool:
        return bool(await ctx.approval(what))

    @rd.task(max_attempts=1)
    async def unknown(**anything: object) -> None:
        raise redrive.OutcomeUnknown("sent, and then the line broke")

    return rd
