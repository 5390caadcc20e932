"""A backup through hubs: any of them may be asked, each piece comes from the one that made the copy."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from redrive.core.store import Filter
from redrive.errors import StoreUnavailable
from redrive.stores.remote import Hub, RemoteStore, backups
from redrive.stores.remote.nats import NatsHub, NatsTransport
from redrive.stores.replica import ReplicaStore
from redrive.stores.sqlite import SqliteStore
from tests.nats import shared_server
from tests.stores.jobs import a_job
from tests.stores.memory_log import MemoryLog, MemoryMessages


@pytest.mark.behaviour("F-22")
async def test_a_backup_of_a_fleet_with_several_hubs_is_whole_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "PIECE", 16 * 1024)
    kept, url = MemoryMessages(), f"{shared_server().url}/b{secrets.token_hex(6)}"
    stores = [ReplicaStore(folder / f"{n}.db", lambda: MemoryLog(kept), live=folder / f"live{n}") for n in range(3)]
    hubs = [NatsHub(url, Hub(store)) for store in stores]
    remote = RemoteStore(lambda: NatsTransport(url), url=url)
    asked: list[Any] = []
    ask = remote._ask

    async def ask_and_note(verb: str, *arguments: Any, **options: Any) -> Any:
        answer = await ask(verb, *arguments, **options)
        if verb == "backup_piece":
            asked.append(answer)
        return answer

    monkeypatch.setattr(remote, "_ask", ask_and_note)
    for hub, store in zip(hubs, stores, strict=True):
        await store.open()
        await hub.open()
    await remote.insert([a_job() for _ in range(200)])
    size = await remote.backup(str(folder / "copy.db"))
    assert None in asked, "hubs that have no copy were asked, too"
    assert max(len(one) for one in asked if one) <= 16 * 1024
    assert size == (folder / "copy.db").stat().st_size
    copy = SqliteStore(folder / "copy.db")
    assert sum((await copy.count(Filter())).values()) == 200
    await copy.close()
    with pytest.raises(StoreUnavailable, match="does not answer any more"):
        await backups.fetch(folder / "other.db", lambda: remote._ask("backup_begin"), _nothing)
    assert not [path.name for path in folder.iterdir() if "other" in path.name]
    await remote.close()
    for hub, store in zip(hubs, stores, strict=True):
        await hub.close()
        await store.close()


async def _nothing(id: str, offset: int) -> bytes | None:
    return None


@pytest.mark.behaviour("F-22")
async def test_a_copy_that_no_client_asks_for_is_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.chaos.processes import until

    monkeypatch.setattr(backups, "KEPT_SECONDS", 0.05)
    store = SqliteStore(folder / "jobs.db")
    copies = backups.Copies(store)
    copied = await copies.begin()
    await until("the copy is gone", lambda: not list(folder.glob("redrive-backup-*")))
    assert await copies.piece(copied.id, 0) is None
    await store.close()
