"""Dead letters as lines of JSON: out as a file, in as records."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from redrive.doors.rest import schemas
from redrive.doors.rest.filtering import filters_of
from redrive.doors.rest.showing import masked
from redrive.doors.rest.table import WHO, Asked, Route
from redrive.doors.web.exporting import MEDIA, exported


class ExportQuery(schemas.Filters):
    """Which dead letters."""

    secrets: schemas.Secrets = False


class Importing(schemas.Taken, kw_only=True):
    """Records of redrive's own form, as an export writes them. Repeating it changes nothing."""

    records: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=1000)]
    queue: schemas.Name | None = None
    task: schemas.Name | None = None
    as_: Literal["dead", "waiting"] = msgspec.field(default="dead", name="as")
    dry_run: bool = False
    who: schemas.Name = WHO
    why: schemas.Text | None = None


class AsideOut(schemas.Given):
    record: int
    why: str


class ImportedOut(schemas.Given):
    """What became of every record: `read` is the sum of imported, updated, duplicates, completed and aside."""

    read: int
    imported: int
    updated: int
    duplicates: int
    completed: int
    aside: int
    closed: int
    problems: list[AsideOut]
    dry_run: bool


async def export(asked: Asked) -> Any:
    query: ExportQuery = asked.query
    return await exported(asked.rd, await filters_of(asked.rd, query), secrets=query.secrets)


async def import_(asked: Asked) -> Any:
    said: Importing = asked.body
    lines = [msgspec.json.encode(record) for record in said.records]
    how: dict[str, Any] = {name: getattr(said, name) for name in ("queue", "task", "as_", "dry_run", "who", "why")}
    found = await asked.rd.dead.import_(lines, **how)
    body = {name: getattr(found, name) for name in ImportedOut.__struct_fields__ if name != "problems"}
    return masked(body | {"problems": [{"record": line, "why": why} for line, why in found.problems]})


ROUTES: Final = (
    Route("GET", "/v1/dead-letters/export", export, "Dead letters as lines of JSON.", str,
          ExportQuery, media=MEDIA),
    Route("POST", "/v1/dead-letters/import", import_, "Take in what failed elsewhere.", ImportedOut, body=Importing),
)  # fmt: skip
