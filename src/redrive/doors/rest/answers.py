"""The types of REST's answers, for the OpenAPI document, and the answers that show jobs.

Most answers are domain structs that `core.view` writes: `shape` makes their types. Tests check each answer against its
type.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from redrive.core.job import At, Job, Lane, Priority, iso, public
from redrive.core.redact import redact, redact_text
from redrive.core.store import Page
from redrive.core.view import Field, fields_of, view

Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class AnswerFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of an answer, and nothing else."""


def answer(name: str, says: str | None, /, **fields: Any) -> Any:
    """Makes the type of an answer that is no domain struct."""
    return _make_struct(name, says, [*fields.items()], __name__)


def _make_struct(name: str, says: str | None, fields: Sequence[Any], module: str) -> Any:
    namespace = {"__doc__": says}
    return msgspec.defstruct(name, fields, bases=(AnswerFields,), module=module, namespace=namespace, kw_only=True)


# -- types of domain structs


@lru_cache(maxsize=256)
def shape(kind: Any) -> Any:
    """Makes the type of the JSON that `view` writes for values of this type."""
    if kind is At:
        return Instant
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields")):
        return _shape_struct(kind)
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is Annotated:
        return arguments[0]
    if origin in (Union, UnionType):
        return Union[tuple(shape(one) for one in arguments)]  # noqa: UP007
    if origin in (list, tuple, frozenset, set):
        return list_of(shape(arguments[0]))
    if origin is dict:
        return dict[str, shape(arguments[1])]  # type: ignore[misc]
    return kind


def _shape_struct(kind: type) -> Any:
    fields = [_shape_field(name, field) for name, field in fields_of(kind).items()]
    return _make_struct(getattr(kind, "TITLE", None) or kind.__name__, kind.__doc__, fields, kind.__module__)


def _shape_field(name: str, field: Field) -> tuple[Any, ...]:
    """Gives a field that may be left out the default that it has then."""
    hint = shape(field.type)
    return (name, hint) if field.default is msgspec.NODEFAULT else (name, hint, field.default)


def list_of(kind: Any) -> Any:
    return list[kind]


def items_of(kind: type) -> Any:
    """Makes the type of an answer that has all of something."""
    return answer(f"{kind.__name__}s", None, items=list_of(shape(kind)))


def some_of(kind: type) -> Any:
    """Makes the type of an answer that has some of something, and says whether there are more."""
    says = "A list without a cursor says whether there is more than it shows: a larger `limit` shows it."
    return answer(f"Some{kind.__name__}s", says, items=list_of(shape(kind)), more=bool)


def cut(values: Sequence[Any], limit: int, *, secrets: bool = False) -> dict[str, Any]:
    """Writes a list without a cursor. Its reader asked for one more than is shown, to tell whether there are more."""
    return {"items": view(values[:limit], secrets=secrets), "more": len(values) > limit}


# -- jobs

SUMMARY: Final = (
    *("id", "queue", "task", "agent", "state", "priority", "reason", "run", "attempts", "allowed", "key", "session_id"),
    *("model", "because", "lane", "category", "detail", "error_class", "error", "fingerprint", "recommendation"),
    *("owner", "held_for", "created_at", "updated_at", "run_at", "started_at", "first_failed_at", "died_at"),
    "comes_back_at",
)
"""The fields of a job in a list: no contents and no attempts."""
CONTENTS: Final = ("payload", "result", "options", "changes", "history")
"""The fields of a job in which text of its caller may stand."""
_OTHERS: Final = (
    *("worker", "lease", "payload_hash", "crashes", "grants", "comebacks", "fresh_from", "subclass", "held_at"),
    *("held_seconds", "revived_by", "deferrals"),
)
_TIMES: Final = tuple(name for name in SUMMARY if name.endswith("_at"))
_TYPES: Final[dict[str, Any]] = {
    "priority": Priority,
    "lane": Union[Lane, None],  # noqa: UP007
    "payload": Any,
    "result": Any,
    "options": dict[str, Any],
    "changes": list[Any],
    "history": list[dict[str, Any]],
}
"""Fields whose type in answers is not the one that a job has."""


def _job_fields(names: Sequence[str]) -> dict[str, Any]:
    hints = get_type_hints(Job)
    kinds = {name: Instant if hints.get(name) is float else Union[Instant, None] for name in names}  # noqa: UP007
    return {name: kinds[name] if name.endswith("_at") else _TYPES.get(name, hints.get(name)) for name in names}


Summary: Any = answer(
    "Summary", "A job in a list: everything but its contents and its attempts.", **_job_fields(SUMMARY)
)
JobOut: Any = answer(
    "JobOut",
    "A job with its contents and its whole history. What looks like a secret is masked unless it was asked for.",
    **_job_fields((*SUMMARY, *CONTENTS, *_OTHERS)),
)
JobPage: Any = answer(
    "JobPage",
    "Newest first. `cursor` continues; null at the end. The list may lag a moment: `as_of`.",
    items=list_of(Summary),
    cursor=Union[str, None],  # noqa: UP007
    as_of=Instant,
)


def show_job(job: Job, *, secrets: bool = False) -> dict[str, Any]:
    """Writes a job with its contents, masked unless secrets are asked for."""
    body = public(job)
    return body if secrets else body | {name: redact(body[name]) for name in CONTENTS} | _mask_texts(job)


def show_summary(job: Job) -> dict[str, Any]:
    """Writes a job of a list. Its contents are not even decoded: a list may have a thousand jobs."""
    body = {name: getattr(job, name) for name in SUMMARY}
    body |= {name: iso(body[name]) for name in _TIMES}
    return body | {"priority": job.priority_name} | _mask_texts(job)


def _mask_texts(job: Job) -> dict[str, Any]:
    """Masks error and advice. Both are masked when they are recorded; those that were imported may not be."""
    texts = {"error": job.error, "recommendation": job.recommendation}
    return {name: redact_text(text) if text else text for name, text in texts.items()}


def show_page(page: Page) -> dict[str, Any]:
    return {"items": [show_summary(job) for job in page.jobs], "cursor": page.cursor, "as_of": iso(page.as_of)}
