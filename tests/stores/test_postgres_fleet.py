"""A queue on postgresql://…: two instances share their jobs."""

from __future__ import annotations

import secrets
from pathlib import Path

from redrive import Redrive
from tests.postgres_server import PASSWORD, Server


async def test_two_instances_on_one_database_share_their_jobs(postgres_server: Server, tmp_path: Path) -> None:
    url = postgres_server.url(namespace=f"app-{secrets.token_hex(6)}")
    producer = Redrive(url, replica_folder=str(tmp_path / "one"))
    consumer = Redrive(url, replica_folder=str(tmp_path / "two"))
    seen: list[int] = []

    @consumer.task("note")
    async def note(number: int) -> None:
        seen.append(number)

    async with producer, consumer:
        handle = await producer.enqueue("note", {"number": 7})
        assert (await consumer.status(handle.id)).state == "waiting"
        assert await consumer.drain() == 1
        assert (await handle.refresh()).state == "done"
        assert PASSWORD not in str((await producer.store.open()).url)
    assert seen == [7]
