"""Keeps no file: sends the verbs of core/store.py as requests to hubs, over HTTPS or NATS."""

from redrive.stores.remote.service import Hub
from redrive.stores.remote.store import RemoteStore
from redrive.stores.remote.transport import HubUnavailable, Transport

__all__ = ["Hub", "HubUnavailable", "RemoteStore", "Transport"]
