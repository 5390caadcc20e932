"""Tokens over HTTP: the owner's in a file, the named ones of the store, and the caller that a token stands for."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redrive.core.tokens import MOST_COOKIES, OWNER, Caller, Role, Token, cookie_of, find_holder
from redrive.doors.web.problems import Problem, problem
from redrive.errors import ConfigError, RedriveError

if TYPE_CHECKING:
    from starlette.types import Scope

    from redrive.api.tokens import Tokens

log = logging.getLogger("redrive")

# -- the caller of a request

CALLER: Final = "redrive.caller"
"""The key of a request's scope under which the guard puts the caller. A request without it is let in nowhere."""
LET_IN: Final = "redrive.let_in"
"""The key of a request's scope under which the guard puts a function: would this caller still be let in now?"""
THE_OWNER: Final = Caller(OWNER, "purge")


def caller_of(scope: Scope) -> Caller:
    caller: Caller = scope[CALLER]
    return caller


def find_lacking_role(scope: Scope, needs: Role) -> Problem | None:
    """Makes the refusal of a caller whose role is not enough; None where the role is."""
    why = caller_of(scope).lacks(needs)
    return None if why is None else problem("forbidden-role", why)


# -- the owner's token

VARIABLE: Final = "REDRIVE_TOKEN"
SHORTEST: Final = 16
"""Characters that a token needs, so that it cannot be guessed."""


def check_token(token: str) -> str:
    """Refuses a token that a header cannot carry or that can be guessed. The refusal does not repeat the token."""
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"token: must be at least {SHORTEST} plain characters without spaces")
    return token


class TokenFile:
    """Keeps the owner's token in a file beside the database, which only its owner can read.

    The file is made when the token is first asked for. A server reads the file anew when it changes, so that rotating
    the token shuts others out at once. `path=None` is for a store without a file: its token lives as long as the
    process. REDRIVE_TOKEN goes before both.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._read_state: tuple[int, int, int] | None = None
        """Time, inode and size of the file when it was last read."""
        self._token: str | None = None

    def __call__(self) -> str:
        """Gives the token in force."""
        if from_environment := os.environ.get(VARIABLE):
            return check_token(from_environment)
        if self.path is None:
            self._token = self._token or _make_token()
            return self._token
        return self._read(self.path)

    def rotate(self) -> str:
        """Makes another token; the old one opens nothing any more."""
        if os.environ.get(VARIABLE):
            raise ConfigError(f"{VARIABLE} says which token counts: change it there")
        token = _make_token()
        if self.path is None:
            self._token = token
        else:
            os.replace(_write_aside(self.path, token), self.path)
        return token

    def _read(self, path: Path) -> str:
        try:
            status = path.stat()
        except FileNotFoundError:
            _make_file(path)
            status = path.stat()
        state = (status.st_mtime_ns, status.st_ino, status.st_size)
        if self._token is None or state != self._read_state:
            _close_to_others(path, status.st_mode)
            self._token, self._read_state = check_token(path.read_text("utf-8").strip()), state
        return self._token


def _make_token() -> str:
    return secrets.token_urlsafe(32)


def _write_aside(path: Path, token: str) -> Path:
    """Writes the token into a new file beside the path, which at no moment others can read."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{token}\n")
    return aside


def _make_file(path: Path) -> None:
    """Makes the file whole or not at all; where another process was faster, its token counts."""
    aside = _write_aside(path, _make_token())
    try:
        os.link(aside, path)
    except FileExistsError:
        log.info("another process has made %s", path)
    except OSError:  # a filesystem without hard links
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _close_to_others(path: Path, mode: int) -> None:
    if stat.S_IMODE(mode) & 0o077:
        log.warning("%s could be read by others; it is closed now, make a new one: redrive token --rotate", path)
        path.chmod(0o600)


# -- whose token a request shows

_COOKIE_NAME: Final = re.compile(r"redrive_[0-9a-f]{8}")
"""The name of a cookie that a token gives."""


class TokenChecker:
    """Finds the caller behind a token or a cookie.

    The store is asked only where the token is none of those that the process was given.
    """

    def __init__(
        self, own: Callable[[], Sequence[str]], caller: Caller = THE_OWNER, named: Tokens | None = None
    ) -> None:
        self._own = own
        self._caller = caller
        self._named = _NamedTokens(named) if named is not None else None

    async def find_by_secret(self, secret: bytes) -> Caller | None:
        if sum(hmac.compare_digest(secret, own.encode()) for own in self._own()):
            return self._caller
        return await self._named.find(secret) if self._named is not None and secret else None

    async def find_by_cookies(self, cookies: Mapping[str, str]) -> Caller | None:
        """Finds who was given one of these cookies. The last one counts: browsers send the newest at the end."""
        for name, value in reversed(_select_ours(cookies)):
            if (caller := await self._find_by_cookie(name, value)) is not None:
                return caller
        return None

    async def list_valid_cookies(self, cookies: Mapping[str, str]) -> list[str]:
        """Lists the names of the cookies that open this server."""
        return [name for name, value in _select_ours(cookies) if await self._find_by_cookie(name, value) is not None]

    async def _find_by_cookie(self, name: str, value: str) -> Caller | None:
        shown = value.encode("latin-1")
        expected = [known.encode() for own in self._own() for its, known in [cookie_of(own)] if its == name]
        if any(hmac.compare_digest(shown, known) for known in expected):
            return self._caller
        return await self._named.find(shown, cookie=True) if self._named is not None else None


def _select_ours(cookies: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in cookies.items() if _COOKIE_NAME.fullmatch(name)][-MOST_COOKIES:]


class _NamedTokens:
    """Finds named tokens. Each request sees the store as it is, so that a revoked token is out at once."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._list = _SharedRead(tokens.list)
        self._noting: dict[str, asyncio.Task[None]] = {}

    async def find(self, secret: bytes, *, cookie: bool = False) -> Caller | None:
        known, now = await self._list.read(), self._tokens.now()
        token = find_holder(known, secret, now, cookie=cookie)
        if token is None:
            return None
        self._note_use(token, now)
        return Caller(token.name, token.role)

    def _note_use(self, token: Token, now: float) -> None:
        """Writes down in the background that the token was used: no request waits for the disk because of that."""
        if token.use_is_due(now) and token.name not in self._noting:
            task = self._noting[token.name] = asyncio.ensure_future(self._write_use(token))
            task.add_done_callback(lambda _: self._noting.pop(token.name, None))

    async def _write_use(self, token: Token) -> None:
        try:
            await self._tokens.note_use(token)
        except (RedriveError, OSError) as error:
            log.warning("the last use of the token %s is not written down: %s", token.name, error)


class _SharedRead:
    """Reads anew for every request, one reading at a time: requests that arrive while it runs share the next one.

    So whatever was written before a request is seen by it, and a flood of wrong tokens costs one reading after another.
    """

    def __init__(self, read: Callable[[], Awaitable[list[Token]]]) -> None:
        self._read = read
        self._running: asyncio.Task[list[Token]] | None = None
        self._next: asyncio.Task[list[Token]] | None = None

    async def read(self) -> list[Token]:
        if self._next is None:
            self._next = asyncio.ensure_future(self._read_after(self._running))
            self._next.add_done_callback(lambda task: task.cancelled() or task.exception())  # requests may have left
        return await asyncio.shield(self._next)

    async def _read_after(self, running: asyncio.Task[list[Token]] | None) -> list[Token]:
        if running is not None and not running.done():
            await asyncio.wait({running})
        self._running, self._next = self._next, None  # a request that comes from here on needs another reading
        return await self._read()
