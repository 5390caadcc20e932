"""What a retry may repeat: an outside effect is intended, landed, absent or unknown; a manifest says how to look."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal

import msgspec

from redrive.core.job import At, Failure
from redrive.core.view import Name, Outside

Status = Literal["intended", "landed", "absent", "unknown"]


class EffectRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One `ctx.once` or `redrive.once`: written as an intent before the call, closed after it."""

    name: Name
    key: Name
    status: Status
    at: At
    run: int
    agent: Name | None = None
    result: Outside = None
    note: str | None = None
    process: Name | None = None
    """Of an effect without a job: the process that has begun it, by its name in the store."""
    doubtful: bool = False
    """Absent because a verifier did not see it, which is no proof: it is looked for again before it is done."""
    forgotten: bool = False
    """The result is not JSON, was dropped by retention or erased; only the key is remembered."""

    @property
    def open(self) -> bool:
        """Whether it may have landed: it was begun, and nothing tells how it ended."""
        return self.status in ("intended", "unknown")


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


def is_seen(found: object) -> bool:
    """Whether a verifier of `once` saw the effect. None, False and what is empty (`[]`, `0`, `""`) say no."""
    return bool(found)


Holder = Literal["here", "alive", "unseen", "gone"]
"""What is known of the process that has begun an effect without a job: it performs the effect in this process or in
another one that lives, it cannot be seen from this host, or it does not perform it any more."""
OnceStep = Literal["perform", "return_recorded", "verify", "hold", "wait", "refuse"]


def once_step(known: EffectRecord | None, holder: Holder, *, can_verify: bool) -> OnceStep:
    """Decides what a call of an effect without a job does, given what is recorded and who has begun it."""
    if known is not None and known.status == "intended" and holder != "gone":
        return "wait" if holder == "here" else "refuse"
    if known is not None and known.status == "absent" and known.doubtful and can_verify:
        return "verify"
    return next_step(known, can_verify=can_verify, idempotent=False)


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


def read_verdict(found: object, mode: Mode) -> Verdict:
    """What a verifier's answer means. A count or a search result speaks for itself; other words say nothing."""
    if found is None or (isinstance(found, str) and found not in ("", "verified", "absent")):
        return "indeterminate"
    there = found == "verified" if isinstance(found, str) else bool(found)
    return "verified" if there == (mode == "present") else "absent"


def combine_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """All of a task's effects in one word. Nothing to look at is nothing known."""
    kinds = set(verdicts)
    if not kinds or kinds == {"indeterminate"}:
        return "indeterminate"
    if kinds == {"verified"}:
        return "verified"
    return "partial" if "verified" in kinds else "absent"


_WORDS: Final[dict[Mode, dict[Verdict, str]]] = {
    "present": {"verified": "there", "absent": "missing"},
    "absent": {"verified": "gone", "absent": "still there"},
}


def in_words(verdict: Verdict, mode: Mode) -> str:
    """One effect's verdict as a person says it."""
    return _WORDS[mode].get(verdict, "cannot be told")


MOST_OF_A_PATH: Final = 1000


def witness_path(witness: object) -> str | None:
    """The path that a witness names, where it names one: callers are told where to look."""
    path = witness.get("path") if isinstance(witness, dict) else None
    return path if isinstance(path, str) and len(path) <= MOST_OF_A_PATH else None


Replay = Literal["done", "run", "hold"]


def before_replay(verdicts: Collection[Verdict], *, idempotent: bool) -> Replay:
    """What a replay does, given what was seen of each effect. What surely is not there may be done by anybody."""
    if combine_verdicts(list(verdicts)) == "verified":
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
