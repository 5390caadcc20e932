"""Fleets among forks, as under gunicorn --preload: what was opened before a fork is used on both sides after it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.stores.sqlite import SqliteStore
from tests.nats import shared_server
from tests.stores.hubs import HubThread, Serve, over_http, over_nats
from tests.stores.test_sqlite_processes import scene

SEEN = {
    "codes": [0, 0, 0],
    "held": "done",
    "counts": {"before": 1, "held": 1, "during": 1, "child0": 1, "child1": 1},
}


@pytest.mark.behaviour("F-23")
def test_a_replica_opened_before_a_fork_works_on_both_sides(folder: Path) -> None:
    (folder / "url").write_text(f"{shared_server().url}/t{secrets.token_hex(6)}?max_bytes=64MB")
    seen = scene("preloaded_replica", folder)
    files = seen.pop("files")
    assert seen == SEEN
    assert "replica-1.db" in files, "the children used the parent's file"


@pytest.fixture(params=[over_http, over_nats], ids=["http", "nats"])
def hub(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The URL of a hub on a file."""
    serve: Serve = request.param
    shared_server()
    hub = HubThread(SqliteStore(folder / "jobs.db"), serve)
    yield hub.start()
    hub.stop()


@pytest.mark.behaviour("F-23")
def test_a_store_of_hubs_opened_before_a_fork_works_on_both_sides(folder: Path, hub: str) -> None:
    (folder / "url").write_text(hub)
    assert scene("preloaded_remote", folder) == SEEN
