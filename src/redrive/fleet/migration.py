"""Moves all jobs from one place to another: from a file into a fleet, and from a fleet into a new file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from redrive.errors import ConfigError
from redrive.jobs.open_store import hide_credentials, is_file, make_log, sqlite_path

if TYPE_CHECKING:
    from redrive.stores.replica.moving import Count, Report


async def move(source: str, target: str, report: Report) -> Count:
    """Move every job with its whole record. After a kill, the same call goes on where it was."""
    from redrive.stores.replica.moving import move_in, move_out

    if is_file(source) and not is_file(target):
        return await move_in(find_source(source), make_log(target), report)
    if is_file(target) and not is_file(source):
        make_log(source)
        return await move_out(lambda: make_log(source), check_target(target), report)
    if is_file(source):
        raise ConfigError("to: both are files: stop all processes of the file, then move it and its folders with mv")
    raise ConfigError(f"to: {hide_credentials(target)} is no file: move the fleet into a file first, and from there on")


async def undo_move(source: str, target: str) -> None:
    """Open a file again whose move into a fleet began and has not arrived."""
    from redrive.stores.replica.moving import undo

    if not is_file(source) or is_file(target):
        raise ConfigError("undo: only the move of a file into a fleet can be undone; name both as before")
    await undo(find_source(source), make_log(target))


def find_source(url: str) -> Path:
    """Return the file of a URL, which must exist and must have no jobs waiting in its spool."""
    path = Path(sqlite_path(url)).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"from: there is no database at {path}")
    spool = path.with_name(path.name + "-spool")
    if spool.is_dir() and any(spool.iterdir()):
        raise ConfigError(f"from: jobs wait in {spool}: start a worker on {path} until they are taken in, then stop it")
    return path


def check_target(url: str) -> Path:
    path = Path(sqlite_path(url)).expanduser().absolute()
    if not path.parent.is_dir():
        raise ConfigError(f"to: the folder {path.parent} does not exist")
    return path
