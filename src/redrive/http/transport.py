"""Sends HTTP requests. This file imports httpx2 (180 ms), so it is itself imported when something is first sent.

Requests go through httpx2's bare transport, not through its client: the transport has no redirects, proxies, cookies,
.netrc and request logs, so none of them has to be switched off.
"""

import asyncio
import contextlib
import functools
import logging
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import httpcore2
import httpx2

from redrive.http.address import Address, AllowRule, resolve
from redrive.http.policy import DeliveryPolicy
from redrive.http.request import Outgoing

MAX_CONNECT = 10.0  # seconds for one address; a server that needs longer to accept a connection counts as down
MAX_TRIED = 4  # addresses of one name


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    phrase: str
    headers: Mapping[str, str]  # names in lower case
    content: bytes
    charset: str | None
    truncated: bool


async def exchange(
    outgoing: Outgoing, headers: Mapping[str, str], policy: DeliveryPolicy, rules: Sequence[AllowRule]
) -> Answer:
    """Sends one request and reads its answer, within `outgoing.timeout` seconds altogether.

    Raises ForbiddenAddress when the target may not be reached; httpx2's errors when it cannot.
    """
    deadline = asyncio.get_running_loop().time() + outgoing.timeout
    addresses = await _addresses(outgoing, rules, deadline)
    with _silence_logs():
        return await _exchange(outgoing, headers, addresses, policy, deadline)


async def _exchange(
    outgoing: Outgoing,
    headers: Mapping[str, str],
    addresses: Sequence[Address],
    policy: DeliveryPolicy,
    deadline: float,
) -> Answer:
    async with _transport(policy) as transport:
        response = await _send(transport, outgoing, headers, addresses, deadline)
        try:
            content, truncated = await _read(response, policy.max_response, deadline)
        finally:
            await response.aclose()
    status, fields = response.status_code, dict(response.headers)
    phrase = httpx2.codes.get_reason_phrase(status)
    return Answer(status, phrase, fields, content, response.charset_encoding, truncated)


async def _addresses(outgoing: Outgoing, rules: Sequence[AllowRule], deadline: float) -> tuple[Address, ...]:
    host = outgoing.target.host
    try:
        async with asyncio.timeout_at(deadline):
            addresses = await resolve(outgoing.target, rules)
    except TimeoutError:
        raise httpx2.ConnectTimeout(f"The name {host} was not resolved within {outgoing.timeout:g} s") from None
    except OSError as exc:
        raise httpx2.ConnectError(f"The name {host} could not be resolved: {exc.strerror or exc}") from exc
    if not addresses:
        raise httpx2.ConnectError(f"The name {host} has no address")
    return addresses[:MAX_TRIED]


class _Watch:
    """Follows the sending of one request, through httpcore2's trace events.

    The watch notices when the first byte is sent: only before that is it certain that the request had no effect. It
    also keeps the connection, which httpcore2 forgets to close when it is cancelled during the TLS handshake.
    """

    def __init__(self) -> None:
        self.sent = False
        self._stream: httpcore2.AsyncNetworkStream | None = None

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._stream = info["return_value"]
        elif event == "http11.send_request_headers.started":
            self.sent = True

    async def hang_up(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()


async def _send(
    transport: httpx2.AsyncHTTPTransport,
    outgoing: Outgoing,
    headers: Mapping[str, str],
    addresses: Sequence[Address],
    deadline: float,
) -> httpx2.Response:
    """Sends the request, returns the answer's head. ConnectError, ConnectTimeout: nothing was sent; else it may be."""
    watch = _Watch()
    try:
        async with asyncio.timeout_at(deadline):
            *others, last = addresses
            for tried, address in enumerate(others):
                share = (deadline - asyncio.get_running_loop().time()) / (len(addresses) - tried)
                with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                    return await transport.handle_async_request(_request(outgoing, headers, address, share, watch))
            return await transport.handle_async_request(_request(outgoing, headers, last, outgoing.timeout, watch))
    except TimeoutError:
        await watch.hang_up()
        kind = httpx2.ReadTimeout if watch.sent else httpx2.ConnectTimeout
        raise kind(f"{outgoing.target.origin} did not answer within {outgoing.timeout:g} s") from None
    except asyncio.CancelledError:
        await watch.hang_up()
        raise
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ReadTimeout) as exc:
        raise type(exc)(f"{outgoing.target.origin}: {str(exc) or 'timed out'}") from exc


def _request(
    outgoing: Outgoing, headers: Mapping[str, str], address: Address, connect: float, watch: _Watch
) -> httpx2.Request:
    """Makes a request to the judged address itself: the name stays in the Host header and in the TLS handshake."""
    target = outgoing.target
    host = f"[{address}]" if address.version == 6 else str(address)
    limits = dict.fromkeys(("read", "write", "pool"), outgoing.timeout)
    return httpx2.Request(
        outgoing.method,
        f"{target.scheme}://{host}:{target.port}{target.rest}",
        headers=headers,
        content=outgoing.body,
        extensions={
            "sni_hostname": target.host,
            "timeout": {"connect": max(min(connect, MAX_CONNECT), 0.001), **limits},
            "trace": watch,
        },
    )


async def _read(response: httpx2.Response, limit: int, deadline: float) -> tuple[bytes, bool]:
    """Reads at most `limit` bytes after decompression; returns them, and whether some are missing.

    The status has been received and decides the outcome: a body that breaks, is slow or too large changes only the
    excerpt. (To repeat a delivery that landed because its answer was garbled would be the worse failure.)
    """
    content = bytearray()
    try:
        async with asyncio.timeout_at(deadline), contextlib.aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                content += piece[: limit + 1 - len(content)]
                if len(content) > limit:
                    return bytes(content[:limit]), True
    except (TimeoutError, httpx2.HTTPError):
        return bytes(content), True
    return bytes(content), False


def _transport(policy: DeliveryPolicy) -> httpx2.AsyncHTTPTransport:
    """Makes a transport for one delivery: a reused connection would serve any name at its address, verified for one."""
    limits = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.AsyncHTTPTransport(verify=_make_ssl_context(policy), trust_env=False, limits=limits)


class CertificatesMissing(Exception):
    """Certificates named by the operator that cannot be read. The message says where, and what to do."""


def _make_ssl_context(policy: DeliveryPolicy) -> ssl.SSLContext:
    """Chooses the authorities to trust: `ca_file`, else SSL_CERT_FILE and SSL_CERT_DIR, else the system's.

    No other variable is read: the operator decides whom the worker trusts, but proxies would see what is sent.
    """
    if policy.ca_file is not None:
        return _load_certificates(policy.ca_file, None)
    return _load_certificates(os.environ.get("SSL_CERT_FILE") or None, os.environ.get("SSL_CERT_DIR") or None)


@functools.cache
def _load_certificates(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Loads certificates, once: loading takes longer than most deliveries."""
    if file is None and folder is None:
        return httpx2.create_ssl_context(trust_env=False)
    if folder is not None and not any(map(os.path.isdir, folder.split(os.pathsep))):
        raise CertificatesMissing(f"SSL_CERT_DIR names {folder}, which is no folder: correct it, start the worker anew")
    try:
        return ssl.create_default_context(cafile=file, capath=folder)
    except OSError as exc:
        problem = f"The certificates in {file} cannot be read ({exc.strerror or exc})"
        raise CertificatesMissing(
            f"{problem}: correct ca_file or SSL_CERT_FILE, start the worker anew, then redrive the job"
        ) from exc


# httpcore2 logs the headers of answers at DEBUG, and receivers do repeat credentials and set cookies in them.
_delivering: ContextVar[bool] = ContextVar("_delivering", default=False)


@contextlib.contextmanager
def _silence_logs() -> Iterator[None]:
    token = _delivering.set(True)
    try:
        yield
    finally:
        _delivering.reset(token)


def _is_not_ours(record: logging.LogRecord) -> bool:
    return not _delivering.get()


for _name in ("httpcore2.connection", "httpcore2.http11"):
    logging.getLogger(_name).addFilter(_is_not_ours)
