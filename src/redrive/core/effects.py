"""What a retry may repeat: an outside effect is intended, landed, absent or unknown."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from redrive.core.job import Failure, Json

Status = Literal["intended", "landed", "absent", "unknown"]


class Effect(msgspec.Struct, frozen=True, omit_defaults=True):
    """One `ctx.once`: written as an intent before the call, closed after it."""

    name: str
    key: str
    status: Status
    at: float
    run: int
    agent: str | None = None
    result: Json = None
    note: str | None = None


NextStep = Literal["perform", "return_recorded", "verify", "hold"]


def next_step(known: Effect | None, *, can_verify: bool, idempotent: bool) -> NextStep:
    """What a (re)play does about an effect, given what is recorded of it."""
    if known is None or known.status == "absent":
        return "perform"
    if known.status == "landed":
        return "return_recorded"
    if can_verify:
        return "verify"
    return "perform" if idempotent else "hold"


_NEVER_SENT: Final = frozenset(
    {
        "builtins.ConnectionRefusedError",
        "socket.gaierror",
        "httpx.ConnectError",
        "httpx.ConnectTimeout",
        "httpx.PoolTimeout",
        "httpx.UnsupportedProtocol",
        "httpx.InvalidURL",
        "httpcore.ConnectError",
        "httpcore.ConnectTimeout",
        "aiohttp.client_exceptions.ClientConnectorError",
    }
)
_MAY_HAVE_LANDED: Final = frozenset({408, 409, 425})


def proves_absent(failure: Failure) -> bool:
    """Whether the error proves that nothing happened outside: never sent, or refused by the receiver."""
    if _NEVER_SENT.intersection(failure.types):
        return True
    status = failure.status
    return status is not None and 400 <= status < 500 and status not in _MAY_HAVE_LANDED
