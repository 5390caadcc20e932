"""Jobs as an answer shows them: decoded, ISO times, and what looks like a secret masked unless it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redrive.core.job import Job, iso, public
from redrive.core.redact import redact, redact_text
from redrive.core.store import Page
from redrive.core.view import view
from redrive.doors.rest.schemas import Summary

CONTENTS: Final = ("payload", "result", "changes", "options", "history")
"""Where a caller's own words may stand."""


def whole(job: Job, *, secrets: bool = False) -> dict[str, Any]:
    body = public(job)
    return body if secrets else body | {name: redact(body[name]) for name in CONTENTS} | _texts(job)


TIMES: Final = frozenset(name for name in Summary.__struct_fields__ if name.endswith("_at"))


def summary(job: Job) -> dict[str, Any]:
    """Its contents are not even decoded: there may be a thousand in a list."""
    body = {name: getattr(job, name) for name in Summary.__struct_fields__}
    body |= {name: iso(body[name]) for name in TIMES}
    return body | {"priority": job.priority_name} | _texts(job)


def _texts(job: Job) -> dict[str, Any]:
    """Errors and advice are masked when they are recorded; those that came from elsewhere may not be."""
    said = {"error": job.error, "recommendation": job.recommendation}
    return {name: redact_text(text) if text else text for name, text in said.items()}


def masked(value: Any) -> Any:
    """Texts without what looks like a secret; fields keep their values, whatever they are called."""
    if isinstance(value, dict):
        return {name: masked(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def cut(found: Sequence[Any], limit: int, *, secrets: bool = False) -> dict[str, Any]:
    """A list without a cursor: whoever asked for one more than is shown can say whether there are more."""
    return {"items": view(found[:limit], secrets=secrets), "more": len(found) > limit}


def page(found: Page) -> dict[str, Any]:
    return {"items": [summary(job) for job in found.jobs], "cursor": found.cursor, "as_of": iso(found.as_of)}
