"""Makes, lists and revokes named tokens, and checks them for the doors."""

from __future__ import annotations

import builtins
import secrets
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from redrive.core.checks import SHOWN, check_name, suggestion
from redrive.core.documents import TOKEN
from redrive.core.times import later
from redrive.core.tokens import OWNER, NewToken, Role, Token, check_role, check_token_name, cookie_of, digest_of
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from redrive.jobs.core import Core

BYTES: Final = 32
"""Random bytes in a token."""


class Tokens:
    """Tokens with a name and a role, kept in the store as digests: every server and hub of the store knows them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def add(
        self, name: str, role: Role, *, expires: datetime | timedelta | float | str | None = None, who: str = "api"
    ) -> NewToken:
        """Make a token. Its text is in `.secret`, and is kept nowhere else.

        `role` is "look", "act", "purge" (each may do what the one before may) or "worker", for machines that work
        through a hub over HTTPS. A name is free again when its token is revoked or has expired.
        """
        check_token_name(name)
        check_role(role)
        check_name("who", who)
        now = self._core.clock.now()
        ends = None if expires is None else later("expires", expires, now)
        secret = secrets.token_urlsafe(BYTES)
        cookie = digest_of(cookie_of(secret)[1].encode())
        made = Token(name, role, digest_of(secret.encode()), cookie, now, who, ends)
        await TOKEN.update(self._core.store, name, lambda before: _add(before, made))
        return NewToken(made, secret)

    async def list(self) -> builtins.list[Token]:
        """List every token by its name, revoked and expired ones too."""
        return [kept.value for kept in await TOKEN.all(self._core.store)]

    async def revoke(self, name: str, *, who: str = "api") -> Token:
        """Revoke a token: it opens nothing from now on, and its open streams end. Repeating changes nothing."""
        check_name("who", who)
        if name == OWNER:
            problem = "the owner's token stands in a file beside the database; `redrive token --rotate` makes another"
            raise InvalidInput(field="name", problem=problem)
        now = self._core.clock.now()
        check_name("name", name)
        revoked = await TOKEN.update(self._core.store, name, lambda before: _revoke(before, now, who))
        if revoked is None:
            meant = suggestion(name, [token.name for token in await self.list()])
            problem = f"{name!r:.{SHOWN}} is no token; {meant or '`redrive token list` shows those that there are'}"
            raise InvalidInput(field="name", problem=problem)
        return revoked

    async def note_use(self, token: Token) -> None:
        """Note that a token was used, unless that was noted within the hour."""
        now = self._core.clock.now()
        if token.use_is_due(now):
            await TOKEN.update(self._core.store, token.name, lambda before: _note_use(before, token, now))

    def now(self) -> float:
        """The time by which tokens expire."""
        return self._core.clock.now()


def _add(before: Token | None, made: Token) -> Token:
    if before is not None and before.standing(made.at) == "good":
        problem = f"{before.name!r} is taken; choose another, or `redrive token revoke {before.name}` first"
        raise InvalidInput(field="name", problem=problem)
    return made


def _revoke(before: Token | None, now: float, who: str) -> Token | None:
    if before is None or before.revoked_at is not None:
        return before
    return msgspec.structs.replace(before, revoked_at=now, revoked_by=who)


def _note_use(before: Token | None, token: Token, now: float) -> Token | None:
    """Leaves a token as it is where another one has its name by now, or another process was faster."""
    if before is None or before.digest != token.digest or not before.use_is_due(now):
        return before
    return msgspec.structs.replace(before, used_at=now)
