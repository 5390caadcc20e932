"""Tokens with a name and a role: what each may do, and under which name it is recorded.

A token is 256 random bits, shown once. Only digests of it are kept: of the token, and of the cookie that a browser gets
for it, so that neither can be made from what the database holds.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from redrive.core.checks import NAME_LIMIT, SHOWN, check_choice
from redrive.core.job import iso
from redrive.errors import InvalidInput

Role = Literal["look", "act", "purge", "worker"]
ROLES: Final[tuple[Role, ...]] = ("look", "act", "purge", "worker")
"""Each of the first three may do what the one before it may. `worker` is for the hub's door alone."""
OWNER: Final = "owner"
"""The name of the token in the file beside the database. Its role is purge."""
RESERVED: Final = frozenset(
    {OWNER, "redrive", "rest", "dashboard", "mcp", "api", "gateway", "enqueue", "scheduler", "breaker", "letters"}
)
"""Names under which redrive itself and its doors are recorded."""
LONGEST_NAME: Final = 40
USE_SECONDS: Final = 3600.0
"""The last use of a token is written down at most so often."""
MOST_COOKIES: Final = 16
"""Cookies of one request that are looked at: a browser may have some of other servers on this host."""
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{LONGEST_NAME - 1}}}")
_LEVEL: Final = {"look": 1, "act": 2, "purge": 3}
_DOES: Final = {
    "look": "may look",
    "act": "may look and act",
    "purge": "may look, act and purge",
    "worker": "may work through the hub's door",
}

Standing = Literal["good", "expired", "revoked"]


class Token(msgspec.Struct, frozen=True):
    """A named token as it is kept: everything but the token."""

    name: str
    role: Role
    digest: str
    """SHA-256 of the token."""
    cookie: str
    """SHA-256 of the value of its cookie."""
    at: float
    by: str
    expires_at: float | None = None
    revoked_at: float | None = None
    revoked_by: str | None = None
    used_at: float | None = None
    """The last use, to within an hour."""

    def standing(self, now: float) -> Standing:
        """Whether it opens anything now, and why not."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "good"

    def use_is_due(self, now: float) -> bool:
        """Whether a use at this time is to be written down."""
        return self.used_at is None or not 0 <= now - self.used_at < USE_SECONDS

    def public(self, now: float) -> dict[str, Any]:
        """What people and programs may see of it."""
        times = {name: iso(getattr(self, name)) for name in ("at", "expires_at", "revoked_at", "used_at")}
        said = {"name": self.name, "role": self.role, "standing": self.standing(now), "by": self.by}
        return {**said, "revoked_by": self.revoked_by, **times}


class NewToken(msgspec.Struct, frozen=True):
    """A token that was just made: the only time that its secret is known."""

    token: Token
    secret: str

    def __repr__(self) -> str:
        return f"<the new token {self.token.name!r} with the role {self.token.role}; its text is in .secret>"


# ---- what a role may do


class Caller(NamedTuple):
    """Names who asks, and the role of the token that was shown. The name is None where no token is asked for."""

    name: str | None
    role: Role

    def may(self, needs: Role) -> bool:
        """Tells whether this role is enough for what needs that one."""
        if needs == "worker":
            return self.role in ("worker", "purge")
        return _LEVEL.get(self.role, 0) >= _LEVEL[needs]

    def lacks(self, needs: Role) -> str | None:
        """Says in words why this caller may not do what needs that role; None where the role is enough."""
        if self.may(needs):
            return None
        whose = f"the token {self.name!r}" if self.name is not None else "this token"
        return f"this needs the role {needs}; {whose} has the role {self.role}, which {_DOES[self.role]}"

    def sign(self, claimed: str | None, otherwise: str) -> str:
        """Names who did it, for the record: the token's name, with what the caller claims to be beside it."""
        if claimed is None or claimed == otherwise:
            return self.name or otherwise
        return compose_signature(self.name, claimed)


ANYONE: Final = Caller(None, "purge")
"""The caller where no token is asked for."""


# ---- under which name it is recorded


def compose_signature(name: str | None, said: str) -> str:
    """Who did it: the token's name first, then what the caller says of itself. No name of a token has a space in it, so
    that nothing a caller says can be taken for one. Without a token's name the caller's word is all there is."""
    if name is None or said == name:
        return name or said
    room = NAME_LIMIT - len(name) - len(" (as )")
    return f"{name} (as {said if len(said) <= room else said[: room - 1] + '…'})"


def list_signers(who: str) -> tuple[str, ...]:
    """Every name in what `signed` has made."""
    name, _, said = who.partition(" (as ")
    return (who, name, said.removesuffix(")")) if said.endswith(")") and _NAME.fullmatch(name) else (who,)


def check_token_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problem = (
            f"{name!r:.{SHOWN}} must be 1 to {LONGEST_NAME} of A-Z, a-z, 0-9, '.', '_', '@' and '-', and begin with a "
            "letter or a digit"
        )
        raise InvalidInput(field="name", problem=problem)
    if name.lower() in RESERVED:
        raise InvalidInput(field="name", problem=f"{name!r} is a name of redrive's own; choose another")
    return name


def check_role(role: object) -> Role:
    check_choice("role", role, ROLES)
    return role  # type: ignore[return-value]


# ---- whose it is


def digest_of(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def cookie_of(secret: str) -> tuple[str, str]:
    """Name and value. Cookies know no ports, so each token has a name of its own; its value is not the token itself."""
    name = hashlib.sha256(b"name:" + secret.encode()).hexdigest()[:8]
    return f"redrive_{name}", hmac.new(secret.encode(), b"redrive cookie", hashlib.sha256).hexdigest()


def find_holder(tokens: Iterable[Token], secret: bytes, now: float, *, cookie: bool = False) -> Token | None:
    """Whose secret this is, in the same time however much of a digest is right; None where it opens nothing."""
    digest, found = digest_of(secret), None
    for token in tokens:
        if hmac.compare_digest(token.cookie if cookie else token.digest, digest):
            found = token
    return found if found is not None and found.standing(now) == "good" else None
