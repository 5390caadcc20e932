"""Makes new SQLite stores from a template: a copy is ready in a fifth of the time that the schema's steps take.

What the steps do is for tests/stores; everything else needs only their result.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import tempfile
from pathlib import Path

import pytest

from redrive.stores.sqlite import connection

_real = connection.prepare


@functools.cache
def _template() -> bytes:
    """What a new store's file holds, made once for each process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "prepare", _real)
            made = connection.open_writer(path)
        made.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        made.close()
        return path.read_bytes()


def _prepare(path: Path) -> None:
    """Put a copy where there is no file, at once and complete, since several processes may open it."""
    if not path.exists() and os.access(path.parent, os.W_OK):
        copy = path.with_name(f"{path.name}-{secrets.token_hex(4)}-new")
        with contextlib.suppress(OSError):
            with open(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(_template())
            with contextlib.suppress(FileExistsError):
                os.link(copy, path)
        copy.unlink(missing_ok=True)
    _real(path)


def copy_template(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connection, "prepare", _prepare)
