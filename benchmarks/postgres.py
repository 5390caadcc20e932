"""Starts the PostgreSQL servers of the contestants, each with new files."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests import postgres_server

_DISK = Path("/var/tmp")


@contextlib.contextmanager
def postgres(folder: Path, *, synced: bool) -> Iterator[str]:
    """Run one server; its URL. Its files are in memory, or on disk, where each commit is synced, as Debian sets it."""
    if synced:
        with _on_disk(folder) as url:
            yield url
    else:
        with postgres_server.started() as server:
            yield server.url()


@contextlib.contextmanager
def _on_disk(folder: Path) -> Iterator[str]:
    above = _reachable(folder)
    home = Path(tempfile.mkdtemp(prefix="postgres-", dir=above))
    server = postgres_server.Server(home)
    try:
        postgres_server._give(home)
        if above == folder:
            made = _made_once(folder.parent / "postgres-made")
            subprocess.run(["cp", "-a", f"{made}/.", str(home)], check=True)
        else:
            server.make()
        server.start()
        yield server.url()
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def _made_once(folder: Path) -> Path:
    """The files of a new server, which the contestants after this one copy."""
    if not folder.exists():
        folder.mkdir()
        postgres_server._give(folder)
        postgres_server.Server(folder).make()
    return folder


def _reachable(folder: Path) -> Path:
    """A folder that the server's own user may pass through: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return folder
    for ours in (folder, folder.parent):
        ours.chmod(0o711)
    open_to_all = all(above.stat().st_mode & 0o001 for above in folder.resolve().parents)
    return folder if open_to_all else _DISK
