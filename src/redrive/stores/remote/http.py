"""Sends requests to hubs over HTTP(S): one POST each, to one server after the other until one answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

from redrive.errors import ConfigError, StoreError, StoreUnavailable
from redrive.stores.remote.transport import HubUnavailable

if TYPE_CHECKING:
    import ssl

    import httpx2

PATH: Final = "/v1/hub"
MEDIA: Final = "application/vnd.redrive"
VARIABLE: Final = "REDRIVE_TOKEN"


class HubServer:
    """Holds the address of one hub, and the token for it."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url: a hub is written as https://host:8420")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        place = f"{host}:{parts.port}" if parts.port else host
        self.shown = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
        self.address = self.shown + PATH
        self.token = parts.password or parts.username or token


def read_servers(url: str, token: str | None) -> list[HubServer]:
    """Read the hubs of a URL such as https://a:8420,https://b:8420."""
    return [HubServer(part.strip(), token) for part in url.split(",") if part.strip()]


def _trusted(known: list[HubServer]) -> ssl.SSLContext:
    """Trust the authorities of SSL_CERT_FILE or SSL_CERT_DIR, else the system's; nobody where no hub has https.

    Proxies are not read.
    """
    import ssl

    import httpx2

    if not any(server.shown.startswith("https:") for server in known):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # reading the authorities takes 20 ms
    try:
        return httpx2.create_ssl_context()
    except OSError as error:
        raise ConfigError(f"SSL_CERT_FILE or SSL_CERT_DIR: its certificates cannot be read: {error}") from error


class HttpTransport:
    """Asks the server that answered last, and the next one where that server does not answer."""

    def __init__(self, known: list[HubServer]) -> None:
        self._servers = known
        self._current = 0
        self._client: httpx2.AsyncClient | None = None
        self._making = asyncio.Lock()
        self.url = ",".join(server.shown for server in known)

    async def ask(self, request: bytes, seconds: float) -> bytes:
        last = HubUnavailable("no server is named", sent=False)
        sent = False
        for _ in self._servers:
            server = self._servers[self._current % len(self._servers)]
            try:
                return await self._post(server, request, seconds)
            except HubUnavailable as error:
                last, sent = error, sent or error.sent
                self._current += 1
        raise HubUnavailable(str(last), sent=sent) from last

    async def tell(self, request: bytes) -> None:
        """Send a request to the current server: a server that was left keeps no request of this client."""
        await self._post(self._servers[self._current % len(self._servers)], request, 5.0)

    async def _post(self, server: HubServer, request: bytes, seconds: float) -> bytes:
        import httpx2

        client = await self._connected()
        headers = {"content-type": MEDIA} | ({"authorization": f"Bearer {server.token}"} if server.token else {})
        try:
            answer = await client.post(server.address, content=request, headers=headers, timeout=seconds + 5.0)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise HubUnavailable(f"{server.shown}: {error}", sent=False) from error
        except httpx2.HTTPError as error:
            raise HubUnavailable(f"{server.shown}: {error!r}", sent=True) from error
        return self._read(server, answer)

    def _read(self, server: HubServer, answer: Any) -> bytes:
        status = answer.status_code
        if status == 200 and answer.headers.get("content-type") == MEDIA:
            content: bytes = answer.content
            return content
        if status == 401:
            raise StoreUnavailable(
                f"{server.shown} refused the token: set {VARIABLE} to one that `redrive token add NAME --role worker` "
                "makes there"
            )
        if status == 403:
            raise StoreUnavailable(f"{server.shown} refused the role of the token: workers and producers need `worker`")
        if status == 413:
            raise StoreError(f"{server.shown} takes no request of this size: raise payload_limit there")
        if status >= 500:
            raise HubUnavailable(f"{server.shown} answered {status}", sent=True)
        raise StoreUnavailable(f"{server.shown} is no hub of redrive (it answered {status}): check the address")

    async def _connected(self) -> httpx2.AsyncClient:
        async with self._making:
            if self._client is None:
                import httpx2

                limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
                self._client = httpx2.AsyncClient(
                    limits=limits, verify=_trusted(self._servers), trust_env=False, follow_redirects=False
                )
            return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None
