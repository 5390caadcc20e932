"""Decides whether a retry repeats an outside effect: intended, landed, absent or unknown; manifests verify it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal

import msgspec

from redrive.core.job import At, Failure
from redrive.core.view import Name, Outside

Status = Literal["intended", "landed", "absent", "unknown"]


class EffectRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of one `ctx.once` or `redrive.once`: written as an intent before the call, closed after the call."""

    name: Name
    key: Name
    status: Status
    at: At
    run: int
    agent: Name | None = None
    result: Outside = None
    note: str | None = None
    process: Name | None = None
    """The process that began an effect without a job, by its name in the store."""
    doubtful: bool = False
    """Absent only because a verifier did not see the effect, which is no proof: verify again before performing."""
    forgotten: bool = False
    """Whether only the key is kept: the result is not JSON, was dropped by retention or was erased."""

    @property
    def open(self) -> bool:
        """Whether the effect may have landed: it was begun, and its end is not recorded."""
        return self.status in ("intended", "unknown")


NextStep = Literal["perform", "return_recorded", "verify", "hold"]


def next_step(known: EffectRecord | None, *, can_verify: bool, idempotent: bool) -> NextStep:
    """Decide what a run or replay does about an effect, given the effect's record."""
    if known is None or known.status == "absent":
        return "perform"
    if known.status == "landed":
        return "return_recorded"
    if can_verify:
        return "verify"
    return "perform" if idempotent else "hold"


def is_seen(found: object) -> bool:
    """Return whether a verifier of `once` saw the effect. None, False and empty values (`[]`, `0`, `""`) mean no."""
    return bool(found)


Holder = Literal["here", "alive", "unseen", "gone"]
"""What is known of the process that began an effect without a job: this process or another live one performs the
effect, the process cannot be seen from this host, or the process no longer performs the effect."""
OnceStep = Literal["perform", "return_recorded", "verify", "hold", "wait", "refuse"]


def once_step(known: EffectRecord | None, holder: Holder, *, can_verify: bool) -> OnceStep:
    """Decide what a call of an effect without a job does, given its record and the process that began the effect."""
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
    """One outside effect of a task, and how to verify it: `effects=[Effect("note", verify=find_note)]`.

    `verify(payload, witness)` returns True (or "verified") if it sees a trace of the effect, False (or "absent") if it
    does not, None (or "indeterminate") if it cannot tell; an exception means the same as None. `verify` may be async.
    `witness` is what the failed attempt left to look for (`OutcomeUnknown(witness=…)`), else None. Use `mode="absent"`
    for an effect that removes something: the effect has landed when the thing is gone.
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
    """Translate a verifier's answer into a verdict. Counts and search results count by truth; unknown words do not."""
    if found is None or (isinstance(found, str) and found not in ("", "verified", "absent")):
        return "indeterminate"
    there = found == "verified" if isinstance(found, str) else bool(found)
    return "verified" if there == (mode == "present") else "absent"


def combine_verdicts(verdicts: Sequence[Verdict]) -> Verdict:
    """Combine the verdicts on all effects of a task. No verdicts are indeterminate."""
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
    """Write one effect's verdict for a person."""
    return _WORDS[mode].get(verdict, "cannot be told")


MOST_OF_A_PATH: Final = 1000


def witness_path(witness: object) -> str | None:
    """Return the path that a witness names, or None; the path tells callers where to look."""
    path = witness.get("path") if isinstance(witness, dict) else None
    return path if isinstance(path, str) and len(path) <= MOST_OF_A_PATH else None


Replay = Literal["done", "run", "hold"]


def before_replay(verdicts: Collection[Verdict], *, idempotent: bool) -> Replay:
    """Decide what a replay does, given the verdict on each effect. If all are surely absent, any task may run again."""
    if combine_verdicts(list(verdicts)) == "verified":
        return "done"
    return "run" if idempotent or set(verdicts) == {"absent"} else "hold"


# ---- what an error proves

_UNSENT: Final = {
    "builtins": "ConnectionRefusedError",
    "socket": "gaierror",
    "httpx": "ConnectError ConnectTimeout PoolTimeout UnsupportedProtocol InvalidURL",
    "httpcore": "ConnectError ConnectTimeout PoolTimeout UnsupportedProtocol",
    "aiohttp.client_exceptions": "ClientConnectorError ConnectionTimeoutError InvalidURL",
    "requests.exceptions": "ConnectTimeout MissingSchema InvalidSchema InvalidURL",
    "urllib3.exceptions": "NewConnectionError",
    "botocore.exceptions": "NoCredentialsError ParamValidationError",
    "nats.errors": "NoServersError NoRespondersError",
}
_NEVER_SENT: Final = frozenset(f"{path}.{name}" for path, names in _UNSENT.items() for name in names.split())
_MAY_HAVE_LANDED: Final = frozenset({408, 409, 425, 499})


def proves_absent(failure: Failure) -> bool:
    """Return whether the error proves that nothing happened outside: never sent, or refused by the receiver."""
    if _NEVER_SENT.intersection(failure.types):
        return True
    status = failure.status
    return status is not None and 400 <= status < 500 and status not in _MAY_HAVE_LANDED
