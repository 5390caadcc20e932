"""Dead letters as lines of JSON: one record per line, for grep, jq and other programs' queues.

Five fields are enough to run a job again: job_id, payload, error_class, attempt, failed_at. Ours say more where they
can; whatever is missing in somebody else's gets an honest default. Nothing here reads a file or a clock.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping as AnyMapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from redrive.core.change import edited_payload
from redrive.core.checks import KEY_LIMIT, NAME_LIMIT
from redrive.core.job import Failure, Job, Json, Lane, iso, legible
from redrive.core.json_keys import RepeatedKey, refuse_repeated_keys
from redrive.core.payload import LIMIT, encode
from redrive.core.redact import redact, redact_text
from redrive.errors import InvalidInput, InvalidOption
from redrive.failures.classify import DETAILS

WRAPPED: Final = "$value"
"""Where an input that is not a JSON object stands in the payload, which always is one."""
MOST_ATTEMPTS: Final = 1_000_000
FIVE: Final = ("job_id", "payload", "error_class", "attempt", "failed_at")
LANES: Final = ("delayed", "manual")


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Under which name each field stands in somebody else's lines. Dots lead into objects: `meta.id`."""

    job_id: str = "job_id"
    payload: str = "payload"
    error_class: str = "error_class"
    attempt: str = "attempt"
    failed_at: str = "failed_at"
    error: str = "error"
    task: str = "task"
    queue: str = "queue"
    agent: str = "agent"
    session_id: str = "session_id"
    created_at: str = "created_at"


OWN: Final = Mapping()


def read_mapping(said: Mapping | AnyMapping[str, Any] | None) -> Mapping:
    """A mapping from what a caller said; a field that does not exist is refused by name."""
    if said is None:
        return OWN
    if isinstance(said, Mapping):
        return said
    for name, path in said.items():
        if name not in Mapping.__struct_fields__:
            listed = ", ".join(Mapping.__struct_fields__)
            raise InvalidOption(field=f"mapping.{name}", problem=f"is not a field of a record; there are {listed}")
        if not isinstance(path, str) or not path:
            raise InvalidOption(field=f"mapping.{name}", problem=f"{path!r} is not the name of a field")
    return Mapping(**said)


class FailureRecord(msgspec.Struct, frozen=True):
    """One line, understood. `failed_at` is None where the line does not say."""

    job_id: str
    payload: str
    error_class: str = "unknown"
    attempt: int | None = None
    failed_at: float | None = None
    error: str = ""
    task: str | None = None
    queue: str | None = None
    agent: str | None = None
    session_id: str | None = None
    model: str | None = None
    created_at: float | None = None
    lane: Lane | None = None
    detail: str | None = None
    status: int | None = None
    recommendation: str | None = None
    fingerprint: str | None = None
    id: str | None = None
    """Set by our own exports: the same job, wherever it is imported."""
    derived: bool = False
    """The line has no job_id: this one was made from what it says."""


# -- out


def make_record(job: Job, *, secrets: bool = False) -> dict[str, Json]:
    """A job as a record. The payload is whole, because running it again needs it; other texts lose their secrets.

    It is the payload that the job would run with: as somebody has edited it, where somebody has.
    """
    failure = _find_last_failure(job)
    clean = _unchanged if secrets else redact_text
    said: dict[str, Json] = {
        "job_id": job.key or job.id,
        "payload": _read_input(job),
        "error_class": job.error_class or "unknown",
        "attempt": job.attempts,
        "failed_at": iso(find_failed_at(job)),
    }
    more = {
        "task": job.task,
        "queue": job.queue,
        "agent": job.agent,
        "session_id": job.session_id,
        "model": job.model,
        "error": clean(job.error) if job.error else None,
        "status": failure.status if failure else None,
        "lane": job.lane,
        "category": job.category,
        "detail": job.detail,
        "reason": job.because,
        "recommendation": clean(job.recommendation) if job.recommendation else None,
        "key": job.key,
        "created_at": iso(job.created_at),
        "fingerprint": job.fingerprint,
        "redrive_id": job.id,
    }
    return said | {name: value for name, value in more.items() if value is not None}


def make_line(job: Job, *, secrets: bool = False) -> bytes:
    """The record on one line, its end included."""
    return msgspec.json.encode(make_record(job, secrets=secrets)) + b"\n"


def _read_input(job: Job) -> Json:
    edited = edited_payload(job)
    return unwrap(legible(job.payload) if edited is None else edited) if job.payload else None


def _unchanged(text: str) -> str:
    return text


def find_failed_at(job: Job) -> float:
    """When it last failed; when it last changed, where no attempt says so."""
    ends = [attempt.ended_at for attempt in job.history if attempt.failure is not None and attempt.ended_at is not None]
    return ends[-1] if ends else job.updated_at


def _find_last_failure(job: Job) -> Failure | None:
    return next((attempt.failure for attempt in reversed(job.history) if attempt.failure is not None), None)


def wrap(payload: Json) -> dict[str, Json]:
    """Any input as the JSON object that a payload is."""
    return payload if isinstance(payload, dict) else {WRAPPED: payload}


def unwrap(payload: Json) -> Json:
    return payload[WRAPPED] if isinstance(payload, dict) and payload.keys() == {WRAPPED} else payload


# -- in


def parse(line: bytes | str, mapping: Mapping = OWN, *, limit: int = LIMIT) -> FailureRecord:
    """A line as a record, or an InvalidInput that says what is wrong with it."""
    raw = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
    found = _decode_object(raw.removeprefix(b"\xef\xbb\xbf").strip())
    job_id, derived = _read_job_id(found, mapping.job_id, raw)
    payload = _look_up(found, mapping.payload)
    return FailureRecord(
        job_id=job_id,
        payload=encode(wrap(found if payload is _NOTHING else payload), limit=limit).text,
        error_class=_read_name(found, mapping.error_class, "error_class") or "unknown",
        attempt=_read_attempt(_look_up(found, mapping.attempt)),
        failed_at=_read_time(_look_up(found, mapping.failed_at), "failed_at"),
        error=_read_text(_look_up(found, mapping.error)),
        task=_read_name(found, mapping.task, "task"),
        queue=_read_name(found, mapping.queue, "queue"),
        agent=_read_name(found, mapping.agent, "agent"),
        session_id=_read_name(found, mapping.session_id, "session_id"),
        created_at=_read_time(_look_up(found, mapping.created_at), "created_at"),
        derived=derived,
        **_read_own_fields(found),
    )


def _decode_object(raw: bytes) -> dict[str, Json]:
    try:
        value = msgspec.json.decode(raw)
        refuse_repeated_keys(raw)
    except RepeatedKey as error:
        raise InvalidInput(field="line", problem=str(error)) from None
    except RecursionError:
        raise InvalidInput(field="line", problem="is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
        raise InvalidInput(field="line", problem=f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(field="line", problem=f"is not a JSON object but {_kind(value)}")
    return value


def _kind(value: Json) -> str:
    kinds = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


_NOTHING: Final = object()


def _look_up(found: Json, path: str) -> Any:
    """What stands there; _NOTHING where the line does not go so far. A name with a dot in it goes before a path."""
    if isinstance(found, dict) and path in found:
        return found[path]
    for part in path.split("."):
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return _NOTHING
    return found


def _is_missing(value: Any) -> bool:
    return value is _NOTHING or value is None or value == ""


def _read_job_id(found: dict[str, Json], path: str, raw: bytes) -> tuple[str, bool]:
    """As the line says it; where it says none, from the whole line, so that the same line is the same job."""
    said = _look_up(found, path)
    if _is_missing(said):
        return f"line-{hashlib.sha256(raw.strip()).hexdigest()[:16]}", True
    said = _as_id(said)
    if not isinstance(said, str) or len(said) > KEY_LIMIT or not said.isprintable():
        raise InvalidInput(field="job_id", problem=f"must be 1 to {KEY_LIMIT} printable characters or a number")
    return said, False


def _as_id(said: Any) -> Any:
    """A number is an id, too: written as Python writes it."""
    return str(said) if isinstance(said, int | float) and not isinstance(said, bool) else said


def _read_name(found: dict[str, Json], path: str, field: str) -> str | None:
    said = _look_up(found, path)
    if _is_missing(said):
        return None
    if not isinstance(said, str) or len(said) > NAME_LIMIT or not said.isprintable():
        raise InvalidInput(field=field, problem=f"must be at most {NAME_LIMIT} printable characters")
    return said


def _read_attempt(said: Any) -> int | None:
    if _is_missing(said):
        return None
    number = int(said) if isinstance(said, str) and said.isdecimal() and len(said) < 10 else said
    whole = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
    if isinstance(number, bool) or not whole or not 0 <= number <= MOST_ATTEMPTS:
        raise InvalidInput(field="attempt", problem=f"{_shorten(said)} is not a number of tries")
    return int(number)


_YEAR_9999: Final = 253_402_300_799.0
_MILLISECONDS: Final = 1e11
"""An epoch larger than this counts milliseconds: in seconds it would be the year 5138."""


def _read_time(said: Any, field: str) -> float | None:
    """ISO 8601 or an epoch. A time without a zone counts as UTC, which is what such files mean."""
    if _is_missing(said):
        return None
    at = _read_epoch(said) if isinstance(said, int | float) and not isinstance(said, bool) else _read_iso(said)
    if at is None or not math.isfinite(at) or not 0 <= at <= _YEAR_9999:
        raise InvalidInput(field=field, problem=f"{_shorten(said)} is not a time; write it like 2031-05-17T03:00:00Z")
    return at


def _read_epoch(said: float) -> float:
    number = float(said) if abs(said) < 1e15 else math.inf
    return number / 1000 if number >= _MILLISECONDS else number


def _read_iso(said: Any) -> float | None:
    try:
        found = datetime.fromisoformat(said)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _read_text(said: Any) -> str:
    """An error as people write it: a text, or an object with a message in it."""
    if _is_missing(said):
        return ""
    if isinstance(said, dict) and isinstance(said.get("message"), str):
        said = said["message"]
    return redact_text(said if isinstance(said, str) else msgspec.json.encode(redact(said)).decode())[:2000]


def _shorten(said: Any) -> str:
    return repr(said) if len(repr(said)) <= 60 else f"{repr(said)[:60]}…"


_ID: Final = re.compile(r"[0-9a-f]{32}")
_GROUP: Final = re.compile(r"[0-9a-f]{16}")


def _read_own_fields(found: dict[str, Json]) -> dict[str, Any]:
    """What only our own exports say; anything odd in it counts as not said."""
    lane, status, advice = found.get("lane"), found.get("status"), found.get("recommendation")
    return {
        "lane": lane if lane in LANES else None,
        "detail": detail if isinstance(detail := found.get("detail"), str) and detail in DETAILS else None,
        "status": status if type(status) is int and 100 <= status <= 599 else None,
        "model": _read_name(found, "model", "model") if isinstance(found.get("model"), str) else None,
        "recommendation": redact_text(advice)[:2000] if isinstance(advice, str) and advice else None,
        "fingerprint": _read_matching(_GROUP, found.get("fingerprint")),
        "id": _read_matching(_ID, found.get("redrive_id")),
    }


def _read_matching(pattern: re.Pattern[str], said: Any) -> str | None:
    return said if isinstance(said, str) and pattern.fullmatch(said) else None


# -- ids that are done


def read_completed_id(line: bytes, path: str = "job_id") -> str:
    """One line of a completed-ids file: a record, a JSON string or number, or the plain id."""
    raw = line.removeprefix(b"\xef\xbb\xbf").strip()
    if raw[:1] in (b"{", b'"', b"["):
        found = _decode_object(raw) if raw[:1] == b"{" else {path: _decode_string(raw)}
        return _check_id(_look_up(found, path), path)
    try:
        return _check_id(raw.decode(), path)
    except UnicodeError as error:
        raise InvalidInput(field="line", problem=f"is not UTF-8: {error}") from None


def make_id_line(job: Job) -> bytes:
    """The id under which other programs know a job, as a line that `completed_id` reads: plain where that is exact."""
    said = job.key or job.id
    plain = said.isprintable() and said == said.strip() and said[:1] not in ("{", '"', "[", "\ufeff")
    return (said.encode() if plain else msgspec.json.encode(said)) + b"\n"


def _decode_string(raw: bytes) -> Json:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidInput(field="line", problem=f"is not JSON: {error}") from None


def _check_id(said: Any, path: str) -> str:
    said = _as_id(said)
    if not isinstance(said, str) or not 0 < len(said) <= KEY_LIMIT:
        raise InvalidInput(field=path, problem="is missing or not an id")
    return said
