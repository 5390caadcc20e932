"""For machines around the server: is it up, is it ready, its numbers, and the document of everything here."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal

from redrive.doors.rest import schemas
from redrive.doors.rest.table import Asked, Route
from redrive.doors.web import metrics


class Up(schemas.Given):
    """The process answers."""

    status: Literal["ok"]


class Document(schemas.Given, forbid_unknown_fields=False):
    """An OpenAPI 3.1 document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


async def healthz(asked: Asked) -> Any:
    return {"status": "ok"}


async def readyz(asked: Asked) -> Any:
    """Ready while the store can be read and written: what keeps it from that is told as a problem, with 503."""
    await asked.rd.store.check()
    return {"status": "ok"}


async def prometheus(asked: Asked) -> Any:
    return await metrics.metrics(asked.rd, asked.feed)


async def openapi(asked: Asked) -> Any:
    return {**_document(), "servers": [{"url": asked.root or "/"}]}


@cache
def _document() -> dict[str, Any]:
    """Made once: the table does not change."""
    from redrive.doors.rest import TABLE
    from redrive.doors.rest.openapi import document

    return document(TABLE)


ROUTES: Final = (
    Route("GET", "/healthz", healthz, "Whether the process answers.", Up, is_open=True),
    Route("GET", "/readyz", readyz, "Whether the store can be read and written.", Up, is_open=True),
    Route("GET", "/metrics", prometheus, "Numbers for Prometheus.", str, media=metrics.MEDIA_TYPE),
    Route("GET", "/openapi.json", openapi, "This document.", Document),
)
OPEN_PATHS: Final = frozenset(route.path for route in ROUTES if route.is_open)
