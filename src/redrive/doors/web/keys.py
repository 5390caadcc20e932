"""Whose token a request shows: the ones that this process was given, and the named ones of the store."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from redrive.core.tokens import MOST_COOKIES, Token, cookie_of, holder
from redrive.doors.web.callers import THE_OWNER, Caller
from redrive.errors import RedriveError

if TYPE_CHECKING:
    from redrive.api.tokens import Tokens

log = logging.getLogger("redrive")
_OURS: Final = re.compile(r"redrive_[0-9a-f]{8}")
"""The name of a cookie that a token gives."""


class Keys:
    """Knows tokens. The store is asked only where the token is not one that the process was given."""

    def __init__(
        self, own: Callable[[], Sequence[str]], caller: Caller = THE_OWNER, named: Tokens | None = None
    ) -> None:
        self._own = own
        self._caller = caller
        self._named = _NamedKeys(named) if named is not None else None

    async def by_secret(self, secret: bytes) -> Caller | None:
        """Who shows this token."""
        if sum(hmac.compare_digest(secret, own.encode()) for own in self._own()):
            return self._caller
        return await self._named.find(secret) if self._named is not None and secret else None

    async def by_cookies(self, cookies: Mapping[str, str]) -> Caller | None:
        """Who was given one of these cookies. The last one counts: browsers send them in the order they got them."""
        for name, value in reversed(_ours(cookies)):
            if (caller := await self._by_cookie(name, value)) is not None:
                return caller
        return None

    async def cookies(self, cookies: Mapping[str, str]) -> list[str]:
        """The names of the cookies that open this server."""
        return [name for name, value in _ours(cookies) if await self._by_cookie(name, value) is not None]

    async def _by_cookie(self, name: str, value: str) -> Caller | None:
        shown = value.encode("latin-1")
        expected = [known.encode() for own in self._own() for its, known in [cookie_of(own)] if its == name]
        if any(hmac.compare_digest(shown, known) for known in expected):
            return self._caller
        return await self._named.find(shown, cookie=True) if self._named is not None else None


def _ours(cookies: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in cookies.items() if _OURS.fullmatch(name)][-MOST_COOKIES:]


class _NamedKeys:
    """Finds named tokens. Each request sees the store as it is, so that a revoked token is out at once."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._latest = _Latest(tokens.list)
        self._noting: dict[str, asyncio.Task[None]] = {}

    async def find(self, secret: bytes, *, cookie: bool = False) -> Caller | None:
        known, now = await self._latest.read(), self._tokens.now()
        token = holder(known, secret, now, cookie=cookie)
        if token is None:
            return None
        self._note(token, now)
        return Caller(token.name, token.role)

    def _note(self, token: Token, now: float) -> None:
        """Aside: no request waits for the disk because a token was used."""
        if token.use_is_due(now) and token.name not in self._noting:
            task = self._noting[token.name] = asyncio.ensure_future(self._noted(token))
            task.add_done_callback(lambda _: self._noting.pop(token.name, None))

    async def _noted(self, token: Token) -> None:
        try:
            await self._tokens.note_use(token)
        except (RedriveError, OSError) as error:
            log.warning("the last use of the token %s is not written down: %s", token.name, error)


class _Latest:
    """Reads anew for every request, one reading at a time: those who ask while it runs share the next one.

    So whatever was written before a request is seen by it, and a flood of wrong tokens costs one reading after another.
    """

    def __init__(self, read: Callable[[], Awaitable[list[Token]]]) -> None:
        self._read = read
        self._running: asyncio.Task[list[Token]] | None = None
        self._next: asyncio.Task[list[Token]] | None = None

    async def read(self) -> list[Token]:
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._running))
            self._next.add_done_callback(_retrieved)
        return await asyncio.shield(self._next)

    async def _after(self, running: asyncio.Task[list[Token]] | None) -> list[Token]:
        if running is not None and not running.done():
            await asyncio.wait({running})
        self._running, self._next = self._next, None  # who asks from here on needs another reading
        return await self._read()


def _retrieved(task: asyncio.Task[list[Token]]) -> None:
    """Its error is told to those who wait; there may be none left."""
    if not task.cancelled():
        task.exception()
