"""A real HTTP receiver on 127.0.0.1 that answers with the bytes it is told to, however wrong they are."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Seen:
    """One request, as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Talk = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Receiver:
    port: int = 0
    connections: int = 0
    requests: list[Seen] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a sender hung up before it had said everything

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


def answer(status: str = "200 OK", body: bytes = b"", **headers: str) -> bytes:
    """A whole answer: answer("503 Later", retry_after="7")."""
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "Connection: close", "", ""]).encode() + body


@asynccontextmanager
async def receiving(
    talk: Talk | bytes, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """Listen on a free port until the block ends. `talk` writes the answer, or is the answer."""
    receiver = Receiver()
    open_ones: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        receiver.connections += 1
        try:
            seen = await _read(reader)
            receiver.requests.append(seen)
            if isinstance(talk, bytes):
                writer.write(talk)
                await writer.drain()
            else:
                await talk(seen, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            receiver.left.set()
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        open_ones.add(task)
        task.add_done_callback(open_ones.discard)

    server = await asyncio.start_server(accept, host, 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in list(open_ones):
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        assert name.lower() not in headers, f"{name} was sent twice"
        headers[name.lower()] = value.strip()
    return Seen(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
