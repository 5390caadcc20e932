"""Keeps a log of commands: each replica replays it into its own SQLite file."""

from redrive.stores.replica.log import Log, LogEntry, LogInfo
from redrive.stores.replica.store import ReplicaStore

__all__ = ["Log", "LogEntry", "LogInfo", "ReplicaStore"]
