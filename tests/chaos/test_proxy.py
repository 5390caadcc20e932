"""The proxy of the partition tests: what is cut does not come through, and nothing is lost of what was held back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.chaos.processes import until
from tests.chaos.proxy import Proxy

pytestmark = pytest.mark.chaos


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """The port of a server that says everything back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1000):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("way", ["both", "up", "down"])
async def test_what_is_cut_does_not_come_through_until_it_is_healed(echo: int, way: str) -> None:
    with Proxy(echo) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        proxy.cut(up=way != "down", down=way != "up")
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.readexactly(3)
        assert (proxy.up, proxy.down) == ((6, 3) if way == "down" else (3, 3))
        proxy.heal()
        assert await reader.readexactly(3) == b"two"
        writer.close()


async def test_a_reset_ends_every_connection_with_an_error(echo: int) -> None:
    with Proxy(echo) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        await until("it is connected", lambda: proxy.connections == 1)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)


async def test_one_of_several_is_cut_alone(echo: int) -> None:
    with Proxy(echo, names=["alice", "bob"]) as proxy:
        both = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(2)]
        for (reader, writer), name in zip(both, ('"alice"', '"bob" and "alice"'), strict=True):
            writer.write(name.encode())
            await reader.readexactly(len(name))
        proxy.cut("alice")
        both[0][1].write(b"x")
        both[1][1].write(b"y")
        assert await both[1][0].readexactly(1) == b"y"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await both[0][0].readexactly(1)
        for _, writer in both:
            writer.close()
