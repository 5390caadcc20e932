"""The token that opens the doors: a file beside the database that only its owner can read."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from redrive.errors import ConfigError

log = logging.getLogger("redrive")
VARIABLE: Final = "REDRIVE_TOKEN"
SHORTEST: Final = 16
"""Characters of a token that nobody guesses."""


def check_token(token: str) -> str:
    """A token that a header can carry and nobody guesses, or a refusal that does not repeat it."""
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"token: must be at least {SHORTEST} plain characters without spaces")
    return token


def make_token() -> str:
    return secrets.token_urlsafe(32)


class TokenFile:
    """Made when first asked for. A server reads it anew when it changes, so that rotating it shuts others out at once.

    `path=None` is for a store without a file: its token lives as long as the process. REDRIVE_TOKEN goes before both.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._token: str | None = None

    def __call__(self) -> str:
        """The token in force."""
        if said := os.environ.get(VARIABLE):
            return check_token(said)
        if self.path is None:
            self._token = self._token or make_token()
            return self._token
        return self._read(self.path)

    def rotate(self) -> str:
        """Another one; the old one opens nothing any more."""
        if os.environ.get(VARIABLE):
            raise ConfigError(f"{VARIABLE} says which token counts: change it there")
        token = make_token()
        if self.path is None:
            self._token = token
        else:
            os.replace(_written(self.path, token), self.path)
        return token

    def _read(self, path: Path) -> str:
        try:
            found = path.stat()
        except FileNotFoundError:
            _make(path)
            found = path.stat()
        mark = (found.st_mtime_ns, found.st_ino, found.st_size)
        if self._token is None or mark != self._seen:
            _close_to_others(path, found.st_mode)
            self._token, self._seen = check_token(path.read_text("utf-8").strip()), mark
        return self._token


def beside(database: Path | None) -> Path | None:
    """Where a database's token lives."""
    return None if database is None else database.with_name(database.name + "-token")


def _written(path: Path, token: str) -> Path:
    """The token in a new file of its own, which nobody else can read at any moment."""
    aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{token}\n")
    return aside


def _make(path: Path) -> None:
    """Whole or not at all; where another process was faster, its token counts."""
    aside = _written(path, make_token())
    try:
        os.link(aside, path)
    except FileExistsError:
        log.info("another process has made %s", path)
    except OSError:  # a filesystem without hard links
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _close_to_others(path: Path, mode: int) -> None:
    if stat.S_IMODE(mode) & 0o077:
        log.warning("%s could be read by others; it is closed now, make a new one: redrive token --rotate", path)
        path.chmod(0o600)
