"""Writes and reads dead letters as lines of JSON, one record per line. Nothing here reads a file or a clock.

Five fields are enough to run a job again: job_id, payload, error_class, attempt, failed_at. Our own lines say more.
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
    """The names of the fields in the lines of another program. Dots lead into objects: `meta.id`."""

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


def read_mapping(given: Mapping | AnyMapping[str, Any] | None) -> Mapping:
    """Read the mapping that a caller gives; refuses by name a field that does not exist."""
    if given is None or isinstance(given, Mapping):
        return given or OWN
    for name, path in given.items():
        if name not in Mapping.__struct_fields__:
            known = ", ".join(Mapping.__struct_fields__)
            raise InvalidOption(field=f"mapping.{name}", problem=f"is not a field of a record; there are {known}")
        if not isinstance(path, str) or not path:
            raise InvalidOption(field=f"mapping.{name}", problem=f"{path!r} is not the name of a field")
    return Mapping(**given)


class FailureRecord(msgspec.Struct, frozen=True):
    """What one line says. `failed_at` is None where the line does not say it."""

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
    """The line has no job_id: this one was made from the line."""


# -- out


def make_record(job: Job, *, secrets: bool = False) -> dict[str, Json]:
    """Make the record of a job, with the payload that it would run with, edits included, whole.

    Running the job again needs the secrets in its payload; other texts lose theirs unless `secrets`.
    """
    failure = _find_last_failure(job)
    clean = str if secrets else redact_text
    five: dict[str, Json] = {
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
    return five | {name: value for name, value in more.items() if value is not None}


def make_line(job: Job, *, secrets: bool = False) -> bytes:
    """Make the record of a job as one line, its end included."""
    return msgspec.json.encode(make_record(job, secrets=secrets)) + b"\n"


def _read_input(job: Job) -> Json:
    edited = edited_payload(job)
    return unwrap(legible(job.payload) if edited is None else edited) if job.payload else None


def find_failed_at(job: Job) -> float:
    """Find when a job last failed; when it last changed, where no attempt says so."""
    ends = [attempt.ended_at for attempt in job.history if attempt.failure is not None and attempt.ended_at is not None]
    return ends[-1] if ends else job.updated_at


def _find_last_failure(job: Job) -> Failure | None:
    return next((attempt.failure for attempt in reversed(job.history) if attempt.failure is not None), None)


def wrap(payload: Json) -> dict[str, Json]:
    """Wrap any input into the JSON object that a payload is."""
    return payload if isinstance(payload, dict) else {WRAPPED: payload}


def unwrap(payload: Json) -> Json:
    return payload[WRAPPED] if isinstance(payload, dict) and payload.keys() == {WRAPPED} else payload


# -- in


def parse(line: bytes | str, mapping: Mapping = OWN, *, limit: int = LIMIT) -> FailureRecord:
    """Parse a line; raises InvalidInput that says what is wrong with it."""
    raw = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
    fields = _decode_object(raw.removeprefix(b"\xef\xbb\xbf").strip())
    job_id, derived = _read_job_id(fields, mapping.job_id, raw)
    payload = _look_up(fields, mapping.payload)
    return FailureRecord(
        job_id=job_id,
        payload=encode(wrap(fields if payload is _NOTHING else payload), limit=limit).text,
        error_class=_read_name(fields, mapping.error_class, "error_class") or "unknown",
        attempt=_read_attempt(_look_up(fields, mapping.attempt)),
        failed_at=_read_time(_look_up(fields, mapping.failed_at), "failed_at"),
        error=_read_text(_look_up(fields, mapping.error)),
        task=_read_name(fields, mapping.task, "task"),
        queue=_read_name(fields, mapping.queue, "queue"),
        agent=_read_name(fields, mapping.agent, "agent"),
        session_id=_read_name(fields, mapping.session_id, "session_id"),
        created_at=_read_time(_look_up(fields, mapping.created_at), "created_at"),
        derived=derived,
        **_read_own_fields(fields),
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


def _look_up(fields: Json, path: str) -> Any:
    """Look up a field by its path; _NOTHING where it does not exist. A name with a dot in it goes before a path."""
    if isinstance(fields, dict) and path in fields:
        return fields[path]
    for part in path.split("."):
        if isinstance(fields, dict) and part in fields:
            fields = fields[part]
        elif isinstance(fields, list) and part.isdecimal() and int(part) < len(fields):
            fields = fields[int(part)]
        else:
            return _NOTHING
    return fields


def _is_missing(value: Any) -> bool:
    return value is _NOTHING or value is None or value == ""


def _read_job_id(fields: dict[str, Json], path: str, raw: bytes) -> tuple[str, bool]:
    """Read the id; where the line has none, make one of the line, so that the same line is the same job."""
    value = _look_up(fields, path)
    if _is_missing(value):
        return f"line-{hashlib.sha256(raw.strip()).hexdigest()[:16]}", True
    value = _as_id(value)
    if not isinstance(value, str) or len(value) > KEY_LIMIT or not value.isprintable():
        raise InvalidInput(field="job_id", problem=f"must be 1 to {KEY_LIMIT} printable characters or a number")
    return value, False


def _as_id(value: Any) -> Any:
    """Turn a number, which may be an id, too, into text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _read_name(fields: dict[str, Json], path: str, field: str) -> str | None:
    value = _look_up(fields, path)
    if _is_missing(value):
        return None
    if not isinstance(value, str) or len(value) > NAME_LIMIT or not value.isprintable():
        raise InvalidInput(field=field, problem=f"must be at most {NAME_LIMIT} printable characters")
    return value


def _read_attempt(value: Any) -> int | None:
    if _is_missing(value):
        return None
    number = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value
    whole = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
    if isinstance(number, bool) or not whole or not 0 <= number <= MOST_ATTEMPTS:
        raise InvalidInput(field="attempt", problem=f"{_shorten(value)} is not a number of tries")
    return int(number)


_YEAR_9999: Final = 253_402_300_799.0
_MILLISECONDS: Final = 1e11
"""An epoch larger than this counts milliseconds: in seconds it would be the year 5138."""


def _read_time(value: Any, field: str) -> float | None:
    """Read ISO 8601 or an epoch. A time without a zone counts as UTC, which is what such files mean."""
    if _is_missing(value):
        return None
    at = _read_epoch(value) if isinstance(value, int | float) and not isinstance(value, bool) else _read_iso(value)
    if at is None or not math.isfinite(at) or not 0 <= at <= _YEAR_9999:
        raise InvalidInput(field=field, problem=f"{_shorten(value)} is not a time; write it like 2031-05-17T03:00:00Z")
    return at


def _read_epoch(value: float) -> float:
    number = float(value) if abs(value) < 1e15 else math.inf
    return number / 1000 if number >= _MILLISECONDS else number


def _read_iso(value: Any) -> float | None:
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _read_text(value: Any) -> str:
    """Read an error, which is a text or an object with a message in it."""
    if _is_missing(value):
        return ""
    if isinstance(value, dict) and isinstance(value.get("message"), str):
        value = value["message"]
    return redact_text(value if isinstance(value, str) else msgspec.json.encode(redact(value)).decode())[:2000]


def _shorten(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}…"


_ID: Final = re.compile(r"[0-9a-f]{32}")
_GROUP: Final = re.compile(r"[0-9a-f]{16}")


def _read_own_fields(fields: dict[str, Json]) -> dict[str, Any]:
    """Read what only our own exports say; leaves out values that they cannot have."""
    lane, status, advice = fields.get("lane"), fields.get("status"), fields.get("recommendation")
    return {
        "lane": lane if lane in LANES else None,
        "detail": detail if isinstance(detail := fields.get("detail"), str) and detail in DETAILS else None,
        "status": status if type(status) is int and 100 <= status <= 599 else None,
        "model": _read_name(fields, "model", "model") if isinstance(fields.get("model"), str) else None,
        "recommendation": redact_text(advice)[:2000] if isinstance(advice, str) and advice else None,
        "fingerprint": _read_matching(_GROUP, fields.get("fingerprint")),
        "id": _read_matching(_ID, fields.get("redrive_id")),
    }


def _read_matching(pattern: re.Pattern[str], value: Any) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None


# -- ids that are done


def read_completed_id(line: bytes, path: str = "job_id") -> str:
    """Read one line of a completed-ids file: a record, a JSON string or number, or the plain id."""
    raw = line.removeprefix(b"\xef\xbb\xbf").strip()
    if raw[:1] in (b"{", b'"', b"["):
        fields = _decode_object(raw) if raw[:1] == b"{" else {path: _decode_string(raw)}
        return _check_id(_look_up(fields, path), path)
    try:
        return _check_id(raw.decode(), path)
    except UnicodeError as error:
        raise InvalidInput(field="line", problem=f"is not UTF-8: {error}") from None


def make_id_line(job: Job) -> bytes:
    """Make the line of a job that `read_completed_id` reads: its id in other programs, plain where that is exact."""
    value = job.key or job.id
    plain = value.isprintable() and value == value.strip() and value[:1] not in ("{", '"', "[", "\ufeff")
    return (value.encode() if plain else msgspec.json.encode(value)) + b"\n"


def _decode_string(raw: bytes) -> Json:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidInput(field="line", problem=f"is not JSON: {error}") from None


def _check_id(value: Any, path: str) -> str:
    value = _as_id(value)
    if not isinstance(value, str) or not 0 < len(value) <= KEY_LIMIT:
        raise InvalidInput(field=path, problem="is missing or not an id")
    return value
