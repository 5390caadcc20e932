"""The guard in front of every route: exact lists of Host and Origin, and a token even on localhost.

A web page in the user's browser can reach localhost, and a name that its owner points at 127.0.0.1 makes it look like
its own server. The token keeps out callers that were not given it; Host and Origin keep out pages of other sites.
Programs send the token as a Bearer; a browser gets a cookie from a link, once. The guard puts the caller into the
request's scope (`tokens.py`); each route decides whether the caller's role is enough.
"""

from __future__ import annotations

import base64
import hashlib
import html
import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from redrive.core.tokens import ANYONE, Caller, cookie_of
from redrive.doors.web.problems import MEDIA_TYPE, Problem, problem, problem_of
from redrive.doors.web.tokens import CALLER, LET_IN
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from redrive.doors.web.tokens import TokenChecker

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
SAFE: Final = frozenset({"GET", "HEAD"})
_SAME_SITE: Final = frozenset({"same-origin", "none"})
COOKIE_SECONDS: Final = 30 * 86400
PARAMETER: Final = "token"
"""The query parameter of the link that gives a browser its cookie."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",  # with no-referrer, browsers would hide the Origin of our own forms
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
}
"""Headers of every answer that does not set them itself."""
STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:1rem/1.6 system-ui,sans-serif;max-width:36rem;margin:14vh auto;padding:0 1rem}"
    "h1{font-size:1.5rem;line-height:1.2;letter-spacing:-.02em}code{font-family:ui-monospace,monospace;font-size:.9em}"
)
"""The style of the one page that a stranger sees, inline: strangers get no other file of ours."""
STYLE_POLICY: Final = (
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    + "'"
)


def is_loopback(host: str) -> bool:
    """Tells whether only this machine can reach an address. A name that must be looked up counts as outside."""
    return host == "localhost" or _is(host, "is_loopback")


def is_anywhere(host: str) -> bool:
    """Recognises 0.0.0.0 and ::, which never stand in a Host header."""
    return _is(host, "is_unspecified")


def _is(host: str, kind: str) -> bool:
    try:
        return bool(getattr(ipaddress.ip_address(host), kind))
    except ValueError:
        return False


def format_host(host: str) -> str:
    """Writes an address as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def allowed_hosts(host: str, port: int, also: Iterable[str] = ()) -> tuple[str, ...]:
    """Lists every Host header that is ours, exactly."""
    names = (*LOOPBACK, *(() if is_anywhere(host) else (format_host(host),)))
    hosts = [f"{name}:{port}" for name in names] + ([*names] if port in (80, 443) else [])
    return tuple(dict.fromkeys(name.lower() for name in (*hosts, *also)))


def allowed_origins(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{scheme}://{host}" for host in hosts for scheme in ("http", "https"))


class _Ours(NamedTuple):
    """The Host and Origin headers that are ours, in small letters."""

    hosts: frozenset[str]
    origins: frozenset[str]


class HttpGuard:
    """Checks Host, then Origin, then the token, before any route sees a request.

    `hosts=None` allows this machine's own names at the port that was asked, for apps that do not know their port yet.
    `tokens=None` asks for no token: only where the app is guarded otherwise. `open_paths` need none either.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Sequence[str] | None,
        tokens: TokenChecker | None,
        also: Sequence[str] = (),
        cookie: bool = False,
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._also = also
        self._ours = cache(self._list_ours)
        self._tokens = tokens
        self._cookie = cookie
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, partial(_send_hardened, send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._check_place(scope) or (ANYONE if self._tokens is None else None)
        if caller is None and path_of(scope) not in self._open_paths:
            if (cookies := await self._make_cookies(scope)) is not None:
                await _redirect(scope, send, cookies)
                return
            caller = await self._find_caller(scope)
        if isinstance(caller, Problem):
            await self._refuse(scope, send, caller)
            return
        if caller is not None:
            scope[CALLER] = caller
        scope[LET_IN] = partial(self._lets_in, scope)
        await self._app(scope, receive, send)

    async def _refuse(self, scope: Scope, send: Send, why: Problem) -> None:
        if self._cookie and _is_browsing(scope):
            await _refuse_page(send, why)
        else:
            await refuse(send, why)

    async def _lets_in(self, scope: Scope) -> bool:
        """Tells whether this caller would still be let in: an answer may take long, and the token be revoked."""
        return isinstance(await self._find_caller(scope), Caller)

    def _check_place(self, scope: Scope) -> Problem | None:
        """Refuses a wrong Host or Origin. A header that is sent twice is refused: it is a trick."""
        _, port = scope.get("server") or ("", None)
        ours = self._ours(port or 0)
        host, origin, site = (
            [value.decode("latin-1").lower() for value in _headers(scope, name)]
            for name in (b"host", b"origin", b"sec-fetch-site")
        )
        if len(host) != 1 or host[0] not in ours.hosts:
            return problem("misdirected", "the Host header names no host of this server")
        if len(origin) > 1 or not ours.origins.issuperset(origin):
            return problem("forbidden-origin", "this Origin may not ask here")
        if scope["method"] not in SAFE and not _SAME_SITE.issuperset(site):
            return problem("forbidden-origin", "another site may not change anything here")
        return None

    def _list_ours(self, port: int) -> _Ours:
        names = allowed_hosts("localhost", port) if self._hosts is None else self._hosts
        hosts = frozenset((*names, *(name.lower() for name in self._also)))
        return _Ours(hosts, frozenset(allowed_origins(hosts)))

    async def _find_caller(self, scope: Scope) -> Caller | Problem:
        """Finds whose token a request shows. A store that does not answer is the problem, not the token."""
        if self._tokens is None:
            return ANYONE
        try:
            return await self._match_token(scope, self._tokens)
        except RedriveError as error:
            return problem_of(error) or problem("internal", str(error))

    async def _match_token(self, scope: Scope, tokens: TokenChecker) -> Caller | Problem:
        """Finds the caller by a Bearer token or, on one of our own pages, by a cookie."""
        if _headers(scope, b"authorization") or not self._cookie:
            secret = bearer_of(scope)
            caller = await tokens.find_by_secret(secret) if secret is not None else None
            return caller or problem("unauthorized", "give the token: Authorization: Bearer TOKEN")
        caller = await tokens.find_by_cookies(_cookies(scope))
        if caller is None:
            return problem("unauthorized", "give the token, or open the link that `redrive serve` has printed")
        if scope["method"] not in SAFE and not _headers(scope, b"origin"):
            return problem("forbidden-origin", "a cookie alone changes nothing: the Origin is missing")
        return caller

    async def _make_cookies(self, scope: Scope) -> list[str] | None:
        """Makes the cookies for a link that lets a browser in; None where this is no such link.

        The cookies of other tokens of this server end: a person who opens a link wants to be its caller.
        """
        secret = _token_in_link(scope) if self._cookie else None
        if secret is None or self._tokens is None:
            return None
        try:
            if await self._tokens.find_by_secret(secret.encode()) is None:
                return None
            name, value = cookie_of(secret)
            others = [other for other in await self._tokens.list_valid_cookies(_cookies(scope)) if other != name]
        except RedriveError:
            return None  # the request is refused, and the refusal says why
        return [
            _write_cookie(scope, name, value, COOKIE_SECONDS),
            *(_write_cookie(scope, other, "", 0) for other in others),
        ]


def path_of(scope: Scope) -> str:
    """Gives the path within this app, wherever the app is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _headers(scope: Scope, name: bytes) -> list[bytes]:
    return [value for header, value in scope["headers"] if header.lower() == name]


def bearer_of(scope: Scope) -> bytes | None:
    """Reads the Bearer token of a request; None where there is none, or more than one."""
    if scope["type"] != "http" or len(shown := _headers(scope, b"authorization")) != 1:
        return None
    scheme, _, given = shown[0].partition(b" ")
    return given.strip() if scheme.lower() == b"bearer" else None


# -- a browser's way in


def _cookies(scope: Scope) -> dict[str, str]:
    """Reads the cookies by name. A cookie that is sent twice does not count: the second is a trick."""
    pairs = [
        (name.strip(), value.strip())
        for header in _headers(scope, b"cookie")
        for name, _, value in (part.partition("=") for part in header.decode("latin-1").split(";"))
    ]
    sent = Counter(name for name, _ in pairs)
    return {name: value for name, value in pairs if sent[name] == 1}


def _token_in_link(scope: Scope) -> str | None:
    """Reads the token in the address of a page, where there is one."""
    if scope["method"] not in SAFE or b"token=" not in scope["query_string"]:
        return None
    given = [value for name, value in _query(scope) if name == PARAMETER]
    return given[0] if len(given) == 1 else None


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _without_token(scope: Scope) -> str:
    """Writes the address of a request without its token."""
    rest = urlencode([(name, value) for name, value in _query(scope) if name != PARAMETER])
    path = "/" + quote(scope["path"].lstrip("/"))  # one slash: two would name another host
    return f"{path}?{rest}" if rest else path


def _write_cookie(scope: Scope, name: str, value: str, seconds: int) -> str:
    path = quote(scope.get("root_path", "")) or "/"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


async def _redirect(scope: Scope, send: Send, cookies: Iterable[str]) -> None:
    """Sends the browser to the same page without the token, with the cookies."""
    headers = [(b"location", _without_token(scope).encode()), (b"content-length", b"0")]
    headers += [(b"set-cookie", cookie.encode()) for cookie in cookies]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


# -- answers


async def refuse(send: Send, why: Problem) -> None:
    await _send(send, why, MEDIA_TYPE, why.encode())


def _is_browsing(scope: Scope) -> bool:
    """Tells whether a person looks: a browser opened an address or sent a form, not a program or script of ours."""
    if path_of(scope).startswith("/v1/") or _headers(scope, b"hx-request"):
        return False
    return any(b"text/html" in accepted for accepted in _headers(scope, b"accept"))


async def _refuse_page(send: Send, why: Problem) -> None:
    """Sends a problem as a page for a person."""
    title, detail, hint = (_sentence(text or "") for text in (why.title, why.detail, why.hint))
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style>'
        f"<title>{title}</title><h1>{title}</h1><p>{detail}</p><p>{hint}</p></html>"
    )
    policy = (b"content-security-policy", STYLE_POLICY.encode())
    await _send(send, why, "text/html; charset=utf-8", page.encode(), policy)


def _sentence(text: str) -> str:
    """Escapes a text, and marks what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text[:1].upper() + text[1:]))


async def _send(send: Send, why: Problem, media: str, body: bytes, *more: tuple[bytes, bytes]) -> None:
    own = [(name.encode(), value.encode()) for name, value in why.headers.items()]
    basics = [(b"content-type", media.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": why.status, "headers": [*basics, *own, *more]})
    await send({"type": "http.response.body", "body": body})


async def _send_hardened(send: Send, message: Message) -> None:
    """Sends a message with the headers that every answer has, where the answer does not set them itself."""
    if message["type"] == "http.response.start":
        own = {name.lower() for name, _ in message.get("headers", ())}
        more = [(name, value) for name, value in HEADERS.items() if name not in own]
        message = {**message, "headers": [*message.get("headers", ()), *more]}
    await send(message)
