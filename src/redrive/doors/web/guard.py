"""Who may ask: exact lists of Host and Origin, and a token even on localhost. In front of every route.

A web page in the user's browser can reach localhost, and a name that its owner points at 127.0.0.1 makes it look like
its own server. The token keeps out whoever was not given it; Host and Origin keep out pages that were tricked or trick.
Programs send the token as a Bearer; a browser gets a cookie from a link, once. Whose token it is goes along with the
request (`callers.py`); whether the role is enough is for the route to say.
"""

from __future__ import annotations

import base64
import hashlib
import html
import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, urlencode

from redrive.core.tokens import cookie_of
from redrive.doors.web.callers import ANYONE, CALLER, Caller
from redrive.doors.web.problems import MEDIA_TYPE, Problem, problem, problem_of
from redrive.doors.web.stream import LET_IN
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from redrive.doors.web.keys import Keys

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
SAFE: Final = frozenset({"GET", "HEAD"})
COOKIE_SECONDS: Final = 30 * 86400
PARAMETER: Final = "token"
"""Of the link that gives a browser its cookie."""

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
"""On every answer that does not say otherwise."""
STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:1rem/1.6 system-ui,sans-serif;max-width:36rem;margin:14vh auto;padding:0 1rem}"
    "h1{font-size:1.5rem;line-height:1.2;letter-spacing:-.02em}code{font-family:ui-monospace,monospace;font-size:.9em}"
)
"""Of the one page that a stranger sees: nothing else of ours is shown to him, style sheets included."""
STYLE_POLICY: Final = (
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    + "'"
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it. A name that must be looked up is taken for the outside."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_anywhere(host: str) -> bool:
    """0.0.0.0 and ::, which nobody writes into a Host header."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def written(host: str) -> str:
    """An address as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def allowed_hosts(host: str, port: int, also: Iterable[str] = ()) -> tuple[str, ...]:
    """Every Host header that is ours, exactly."""
    names = (*LOOPBACK, *(() if is_anywhere(host) else (written(host),)))
    found = [f"{name}:{port}" for name in names] + ([*names] if port in (80, 443) else [])
    return tuple(dict.fromkeys(name.lower() for name in (*found, *also)))


def allowed_origins(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{scheme}://{host}" for host in hosts for scheme in ("http", "https"))


class Guard:
    """In front of every route: Host, then Origin, then the token. What it refuses reaches nothing behind it.

    `hosts=None` allows this machine's own names at the port that was asked, for apps that do not know their port yet.
    `keys=None` asks for no token: only where the app is guarded otherwise. `open_paths` need none either.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Sequence[str] | None,
        keys: Keys | None,
        also: Sequence[str] = (),
        cookie: bool = False,
        open_paths: frozenset[str] = frozenset(),
    ) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(hosts)
        self._also = frozenset(name.lower() for name in also)
        self._keys = keys
        self._cookie = cookie
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, _hardened(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        found: Caller | Problem | None = self._misplaced(scope)
        if found is None and path_of(scope) not in self._open_paths:
            if (cookies := await self._bearing_link(scope)) is not None:
                await _send_on(scope, send, cookies)
                return
            found = await self._caller(scope)
        if isinstance(found, Problem):
            await self._refuse(scope, send, found)
            return
        if found is not None:
            scope[CALLER] = found
        scope[LET_IN] = partial(self._lets_in, scope)
        await self._app(scope, receive, send)

    async def _refuse(self, scope: Scope, send: Send, found: Problem) -> None:
        if self._cookie and _is_browsing(scope):
            await _refuse_page(send, found)
        else:
            await refuse(send, found)

    async def _lets_in(self, scope: Scope) -> bool:
        """Whether who was let in still would be: an answer may take long, and the token be another one."""
        return isinstance(await self._caller(scope), Caller)

    def _misplaced(self, scope: Scope) -> Problem | None:
        """A wrong Host or Origin. Each header counts once: two that differ are a trick."""
        hosts = self._allowed(scope)
        host, origin = (_headers(scope, name) for name in (b"host", b"origin"))
        if len(host) != 1 or _text(host[0]) not in hosts:
            return problem("misdirected", "this Host is not served here")
        if len(origin) > 1 or (origin and _text(origin[0]) not in allowed_origins(hosts)):
            return problem("forbidden-origin", "this Origin may not ask here")
        fetched = _headers(scope, b"sec-fetch-site")
        if scope["method"] not in SAFE and any(_text(one) not in ("same-origin", "none") for one in fetched):
            return problem("forbidden-origin", "another site may not change anything here")
        return None

    def _allowed(self, scope: Scope) -> frozenset[str]:
        if self._hosts is not None:
            return self._hosts | self._also
        _, port = scope.get("server") or ("", 0)
        return frozenset(allowed_hosts("localhost", port or 0)) | self._also

    async def _caller(self, scope: Scope) -> Caller | Problem:
        """Whose token it is. Where that is not known because the store does not answer, that is what is told."""
        if self._keys is None:
            return ANYONE
        try:
            return await self._known(scope, self._keys)
        except RedriveError as error:
            return problem_of(error) or problem("internal", str(error))

    async def _known(self, scope: Scope, keys: Keys) -> Caller | Problem:
        """The right token, as a Bearer or, from one of our own pages, as a cookie."""
        if _headers(scope, b"authorization") or not self._cookie:
            secret = bearer_of(scope)
            caller = await keys.by_secret(secret) if secret is not None else None
            return caller or problem("unauthorized", "give the token: Authorization: Bearer TOKEN")
        caller = await keys.by_cookies(_cookies(scope))
        if caller is None:
            return problem("unauthorized", "give the token, or open the link that `redrive serve` has printed")
        if scope["method"] not in SAFE and not _headers(scope, b"origin"):
            return problem("forbidden-origin", "a cookie alone changes nothing: the Origin is missing")
        return caller

    async def _bearing_link(self, scope: Scope) -> list[str] | None:
        """The cookies for a link that lets a browser in; None where this is no such link. The cookies of other tokens
        of this server end: who opens a link wants to be who it says."""
        secret = _token_in_link(scope) if self._cookie else None
        if secret is None or self._keys is None:
            return None
        try:
            if await self._keys.by_secret(secret.encode()) is None:
                return None
            name, value = cookie_of(secret)
            others = [other for other in await self._keys.cookies(_cookies(scope)) if other != name]
        except RedriveError:
            return None  # it is not let in, and told why
        return [_cookie(scope, name, value, COOKIE_SECONDS), *(_cookie(scope, other, "", 0) for other in others)]


def path_of(scope: Scope) -> str:
    """Within this app, wherever it is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _text(value: bytes) -> str:
    return value.decode("latin-1").lower()


def _headers(scope: Scope, name: bytes) -> list[bytes]:
    return [value for found, value in scope["headers"] if found.lower() == name]


def bearer_of(scope: Scope) -> bytes | None:
    """The token that a request shows as a Bearer, and nothing else beside it."""
    if scope["type"] != "http" or len(found := _headers(scope, b"authorization")) != 1:
        return None
    scheme, _, given = found[0].partition(b" ")
    return given.strip() if scheme.lower() == b"bearer" else None


# -- a browser's way in


def _cookies(scope: Scope) -> dict[str, str]:
    """By name. One that is sent twice counts for nothing: the second is a trick."""
    pairs = [
        (name.strip(), value.strip())
        for header in _headers(scope, b"cookie")
        for name, _, value in (part.partition("=") for part in header.decode("latin-1").split(";"))
    ]
    sent = Counter(name for name, _ in pairs)
    return {name: value for name, value in pairs if sent[name] == 1}


def _token_in_link(scope: Scope) -> str | None:
    """What the address of a page gives as a token, where it gives one."""
    if scope["method"] not in SAFE or b"token=" not in scope["query_string"]:
        return None
    given = [value for name, value in _query(scope) if name == PARAMETER]
    return given[0] if len(given) == 1 else None


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _without_token(scope: Scope) -> str:
    """The same address without the token."""
    rest = urlencode([(name, value) for name, value in _query(scope) if name != PARAMETER])
    path = "/" + quote(scope["path"].lstrip("/"))  # one slash: two would name another host
    return f"{path}?{rest}" if rest else path


def _cookie(scope: Scope, name: str, value: str, seconds: int) -> str:
    path = quote(scope.get("root_path", "")) or "/"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


async def _send_on(scope: Scope, send: Send, cookies: Iterable[str]) -> None:
    """To the same page without the token, with the cookies."""
    headers = [(b"location", _without_token(scope).encode()), (b"content-length", b"0")]
    headers += [(b"set-cookie", cookie.encode()) for cookie in cookies]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


# -- answers


async def refuse(send: Send, found: Problem) -> None:
    await _send(send, found, MEDIA_TYPE, found.encode())


def _is_browsing(scope: Scope) -> bool:
    """Whether a person looks: a browser opened an address or sent a form, and no program and no script of ours asks."""
    if path_of(scope).startswith("/v1/") or _headers(scope, b"hx-request"):
        return False
    return any(b"text/html" in accepted for accepted in _headers(scope, b"accept"))


async def _refuse_page(send: Send, found: Problem) -> None:
    """The same for a person."""
    title, detail, hint = (_sentence(text or "") for text in (found.title, found.detail, found.hint))
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style>'
        f"<title>{title}</title><h1>{title}</h1><p>{detail}</p><p>{hint}</p></html>"
    )
    policy = (b"content-security-policy", STYLE_POLICY.encode())
    await _send(send, found, "text/html; charset=utf-8", page.encode(), policy)


def _sentence(text: str) -> str:
    """Escaped; what stands in backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text[:1].upper() + text[1:]))


async def _send(send: Send, found: Problem, media: str, body: bytes, *more: tuple[bytes, bytes]) -> None:
    own = [(name.encode(), value.encode()) for name, value in found.headers.items()]
    basics = [(b"content-type", media.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": found.status, "headers": [*basics, *own, *more]})
    await send({"type": "http.response.body", "body": body})


def _hardened(send: Send) -> Send:
    """What every answer tells a browser, where it does not say something else by itself."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            said = {name.lower() for name, _ in message.get("headers", ())}
            more = [(name, value) for name, value in HEADERS.items() if name not in said]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return sending
