"""Every connection must ask in time: the clock of a connection runs from its first second, whatever it dribbles."""

import asyncio
import json

import pytest

import redrive
from redrive.doors.web import server
from tests.support import eventually, process, soon
from tests.web.serving import TOKEN, Served, serving

SOON = 0.3
"""Seconds for a head here, instead of ten."""


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", SOON)


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What came until the server closed the connection."""
    try:
        return bytes(await soon(reader.read()))
    except ConnectionError:
        return b""


@pytest.mark.behaviour("T-13b")
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: HERE\r\nContent-Length: 100000\r\nContent-Type: application/json\r\n\r\n",
    ],
    ids=["nothing", "half a head", "a body without a token"],
)
async def test_what_does_not_ask_in_time_is_closed(rd: redrive.Redrive, hurried: None, begun: bytes) -> None:
    """Byte after byte does not prolong it."""
    async with serving(rd, worker=False) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(begun.replace(b"HERE", served.host.encode()))
        closing = asyncio.create_task(closed(reader))

        async def dribble() -> bool:
            if begun and not closing.done():
                writer.write(b"x")
            return closing.done()

        await eventually(dribble, "the connection is closed")
        writer.close()


@pytest.mark.behaviour("T-13b")
async def test_what_is_being_answered_and_what_asks_again_stays(still: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of events outlives the time for a head many times over, and so does an idle browser."""
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.05)
    head = f"HTTP/1.1\r\nHost: {still.host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", still.port)
    idle, asking = await asyncio.open_connection("127.0.0.1", still.port)
    writer.write(f"GET /v1/events {head}".encode())
    asking.write(f"GET /v1/health {head}".encode())
    assert b"200 OK" in await soon(idle.readuntil(b"\r\n\r\n"))
    for number in range(20):
        await still.rd.enqueue("greet", {"name": str(number)})
        await soon(reader.readuntil(b"dev.redrive.job.enqueued"))
    asking.write(f"GET /healthz {head}".encode())
    assert b"200 OK" in await soon(idle.readuntil(b"200 OK"))
    for one in (writer, asking):
        one.close()


@pytest.mark.behaviour("T-13b")
async def test_the_oldest_silent_connection_makes_room(rd: redrive.Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "count_allowed_connections", lambda: 3)
    async with serving(rd, worker=False) as served:
        streams = [await stream(served) for _ in range(2)]
        silent = await asyncio.open_connection("127.0.0.1", served.port)
        asks, asking = await asyncio.open_connection("127.0.0.1", served.port)
        asking.write(f"GET /healthz HTTP/1.1\r\nHost: {served.host}\r\n\r\n".encode())
        assert b"200 OK" in await soon(asks.readline())
        assert await closed(silent[0]) == b""
        streams.append(await stream(served))
        late = await asyncio.open_connection("127.0.0.1", served.port)
        assert (await closed(late[0])).startswith(b"HTTP/1.1 503 "), "all others are being answered"
        for _, writer in (silent, late, (asks, asking), *streams):
            writer.close()


async def stream(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that is being answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(f"GET /v1/events HTTP/1.1\r\nHost: {served.host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
    await soon(reader.readuntil(b"retry: "))
    return reader, writer


@pytest.mark.behaviour("T-13b")
@pytest.mark.parametrize(("soft", "most"), [(1024, 384), (20_000, 9_872), (100, 8), (1_000_000, 10_000), (-1, 10_000)])
def test_half_of_the_descriptors_are_for_connections(monkeypatch: pytest.MonkeyPatch, soft: int, most: int) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert server.count_allowed_connections() == most


@pytest.mark.behaviour("T-13b")
async def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    code = """
        import json, resource
        from redrive.doors.web.server import count_allowed_connections, raise_descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 900))
        raise_descriptors()
        print(json.dumps([*resource.getrlimit(resource.RLIMIT_NOFILE), count_allowed_connections()]))
    """
    with process(code) as child:
        out, _ = await soon(asyncio.to_thread(child.communicate))
    assert json.loads(out) == [900, 900, 322]
