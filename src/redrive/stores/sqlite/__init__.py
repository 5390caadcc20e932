"""The embedded store: one SQLite file, no server."""

from redrive.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
