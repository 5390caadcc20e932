"""A partition without any rule of the kernel: TCP connections through a proxy that stops forwarding.

    with Proxy(server.port) as proxy:
        ...  # connect to proxy.port
        proxy.cut()  # connections stay open, and nothing comes through in either direction
        proxy.heal()  # what was held back comes through now
        proxy.reset()  # every connection ends with an error

A proxy runs in a thread of its own, so that a test may block. Connections can be told apart by a word that the
connecting side says first (`names`), and one of them be cut alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from types import TracebackType

CHUNK = 64 * 1024
PATIENCE = 10.0


class Proxy:
    """Forwards connections to one port on loopback, until it is told not to."""

    def __init__(self, target: int, *, port: int = 0, names: Sequence[str] = ()) -> None:
        self.target = target
        self.names = names
        self.up = 0
        """Bytes that came through to the target, and back from it."""
        self.down = 0
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listening.getsockname()[1])
        self._links: set[_Link] = set()
        self._closed: set[tuple[str, str]] = set()
        """What is cut: (a name or "" for all, "up" or "down")."""
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    # -- for tests, in any thread

    def cut(self, name: str = "", *, up: bool = True, down: bool = True) -> None:
        """Stop forwarding, for all connections or for those of one name. Returns once nothing comes through."""
        ways = [way for way, wanted in (("up", up), ("down", down)) if wanted]
        self._do(lambda: self._closed.update((name, way) for way in ways))

    def heal(self) -> None:
        """Forward again, what was held back first."""
        self._do(self._closed.clear)

    def reset(self) -> None:
        """End every connection with an error at both sides."""
        self._do(lambda: [link.abort() for link in list(self._links)])

    @property
    def connections(self) -> int:
        return len(self._links)

    @property
    def connected(self) -> list[str]:
        """Who is connected, each by its name; "" for one that has not said it."""
        return sorted(link.name for link in list(self._links))

    def _do(self, act: object) -> None:
        done = threading.Event()

        def run() -> None:
            act()  # type: ignore[operator]
            self._changed.set()
            self._changed.clear()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(PATIENCE), "the proxy does not answer"

    # -- in its own thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.create_task(asyncio.start_server(self._connected, sock=self._listening))
        self._loop.run_forever()
        server = serving.result()
        server.close()
        for task in (tasks := asyncio.all_tasks(self._loop)):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        for link in list(self._links):
            link.abort()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # this proxy goes
                await link.live()
        finally:
            self._links.discard(link)
            link.close()

    def is_cut(self, name: str, way: str) -> bool:
        return ("", way) in self._closed or (bool(name) and (name, way) in self._closed)

    async def until_open(self, link: _Link, way: str) -> None:
        while self.is_cut(link.name, way):
            await self._changed.wait()


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.name = ""
        self._near = (reader, writer)
        self._far: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._said = b""

    async def live(self) -> None:
        await self.proxy.until_open(self, "up")
        try:
            self._far = await asyncio.open_connection("127.0.0.1", self.proxy.target)
        except OSError:
            return  # nobody listens there now
        pumps = [
            asyncio.ensure_future(self._pump(self._near[0], self._far[1], "up")),
            asyncio.ensure_future(self._pump(self._far[0], self._near[1], "down")),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if way == "up":
                    self._listen(data)
                await self.proxy.until_open(self, way)
                writer.write(data)
                await writer.drain()
                setattr(self.proxy, way, getattr(self.proxy, way) + len(data))
            await self.proxy.until_open(self, way)  # not even the end of a connection is heard

    def _listen(self, data: bytes) -> None:
        """Learn who connects, from the first words that it says."""
        if not self.name and len(self._said) < CHUNK:
            self._said += data
            found = {name: self._said.find(f'"{name}"'.encode()) for name in self.proxy.names}
            said = [name for name, place in found.items() if place >= 0]
            self.name = min(said, key=found.__getitem__, default="")  # it speaks of itself before it speaks of others

    def close(self) -> None:
        for _, writer in filter(None, (self._near, self._far)):
            writer.close()

    def abort(self) -> None:
        for _, writer in filter(None, (self._near, self._far)):
            with contextlib.suppress(OSError, AttributeError):
                handle = writer.get_extra_info("socket")
                handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
