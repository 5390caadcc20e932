"""Masks the cells of a SQL answer as lists mask the fields of a job."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from redrive.core.job import Json
from redrive.core.redact import MASK, redact

Cell = str | bytes | int | float | None
_NAMES = re.compile(r"[\w-]+")


def mask_row(columns: Sequence[str], row: Sequence[Cell]) -> list[Json]:
    """Masks the secrets in a row: secrets are known by the column's name, by fields of JSON and by their looks."""
    return [_mask_cell(name, readable(cell)) for name, cell in zip(columns, row, strict=True)]


def readable(cell: Cell) -> Json:
    """Returns a cell as text or number; bytes that are no text as their hexadecimal digits."""
    if not isinstance(cell, bytes):
        return cell
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return cell.hex()


def _mask_cell(column: str, cell: Json) -> Json:
    """Masks one cell. A column name such as `payload->>'$.password'` tells that its cells are secret."""
    if any(redact({name: cell})[name] == MASK for name in _NAMES.findall(column)):
        return MASK
    if isinstance(cell, str) and cell.lstrip()[:1] in ("{", "["):
        return _mask_json(cell)
    return redact(cell)


def _mask_json(text: str) -> Json:
    """Masks a JSON text by its fields; text without secrets is returned unchanged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return redact(text)
    shown = redact(value)
    return text if shown == value else json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
