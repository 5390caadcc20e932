"""What a retry may repeat: an outside effect is intended, landed, absent or unknown; a manifest says how to look."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal

import msgspec

from redrive.core.job import Failure, Json

Status = Literal["intended", "landed", "absent", "unknown"]


class EffectRecord(msgspec.Struct, frozen=True, omit_defaults=True):
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


def next_step(known: EffectRecord | None, *, can_verify: bool, idempotent: bool) -> NextStep:
    """What a (re)play does about an effect, given what is recorded of it."""
    if known is None or known.status == "absent":
        return "perform"
    if known.status == "landed":
        return "return_recorded"
    if can_verify:
        return "verify"
    return "perform" if idempotent else "hold"


# ---- manifests


Verdict = Literal["verified", "absent", "indeterminate", "partial"]
Mode = Literal["present", "absent"]
Verify = Callable[[dict[str, Any], Any], Any]


class Effect:
    """One outside effect of a task, and how to see whether it landed: `effects=[Effect("note", verify=find_note)]`.

    `verify(payload, witness)` says True (or "verified") where it sees what the effect leaves behind, False (or
    "absent") where it does not, None (or "indeterminate") where it cannot tell; an exception cannot tell either. It may
    be async. `witness` is what the failed attempt left to look for (`OutcomeUnknown(witness=…)`), else None. For an
    effect that removes something, `mode="absent"`: what is gone has landed.
    """

    def __init__(self, name: str, verify: Verify, *, mode: Mode = "present") -> None:
        if mode not in ("present", "absent"):
            raise ValueError(f"mode {mode!r} of effect {name!r}: there are present and absent")
        self.name = name
        self.verify = verify
        self.mode = mode

    def __repr__(self) -> str:
        return f"Effect({self.name!r}, mode={self.mode!r})"


def seen(found: object, mode: Mode) -> Verdict:
    """What a verifier's answer means. A count or a search result speaks for itself; other words say nothing."""
    if found is None or (isinstance(found, str) and found not in ("", "verified", "absent")):
        return "indeterminate"
    there = found == "verified" if isinstance(found, str) else bool(found)
    return "verified" if there == (mode == "present") else "absent"


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """All of a task's effects in one word. Nothing to look at is nothing known."""
    kinds = set(verdicts)
    if not kinds or kinds == {"indeterminate"}:
        return "indeterminate"
    if kinds == {"verified"}:
        return "verified"
    return "partial" if "verified" in kinds else "absent"


Replay = Literal["done", "run", "hold"]


def before_replay(verdicts: Collection[Verdict], *, idempotent: bool) -> Replay:
    """What a replay does, given what was seen of each effect. What surely is not there may be done by anybody."""
    if together(list(verdicts)) == "verified":
        return "done"
    return "run" if idempotent or set(verdicts) == {"absent"} else "hold"


# ---- what an error proves

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
        "httpcore.PoolTimeout",
        "httpcore.UnsupportedProtocol",
        "aiohttp.client_exceptions.ClientConnectorError",
        "aiohttp.client_exceptions.ConnectionTimeoutError",
        "aiohttp.client_exceptions.InvalidURL",
        "requests.exceptions.ConnectTimeout",
        "requests.exceptions.MissingSchema",
        "requests.exceptions.InvalidSchema",
        "requests.exceptions.InvalidURL",
        "urllib3.exceptions.NewConnectionError",
        "botocore.exceptions.NoCredentialsError",
        "botocore.exceptions.ParamValidationError",
        "nats.errors.NoServersError",
        "nats.errors.NoRespondersError",
    }
)
_MAY_HAVE_LANDED: Final = frozenset({408, 409, 425, 499})


def proves_absent(failure: Failure) -> bool:
    """Whether the error proves that nothing happened outside: never sent, or refused by the receiver."""
    if _NEVER_SENT.intersection(failure.types):
        return True
    status = failure.status
    return status is not None and 400 <= status < 500 and status not in _MAY_HAVE_LANDED
