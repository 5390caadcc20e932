"""Hosts, lag and durability: the page, REST and the command line show one struct."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import redrive
from redrive.doors.cli import cli
from tests.chaos.processes import until
from tests.nats import shared_server
from tests.support import eventually
from tests.web.serving import Served, serving


@pytest.mark.behaviour("F-47")
async def test_a_file_shows_its_durability_and_its_workers(rd: redrive.Redrive) -> None:
    async with serving(rd, dashboard=True) as served:
        await _shows_the_worker(served)


async def _shows_the_worker(served: Served) -> None:
    found: dict[str, Any] = {}

    async def has_worker() -> bool:
        found.update(await served.get("/v1/fleet"))
        return bool(found["workers"])

    await until("the worker is announced", has_worker)
    assert (found["durability"], found["files"], found["hubs"], found["generation"]) == ("synced", [], [], "")
    (worker,) = found["workers"]
    assert worker["id"].startswith(worker["host"])
    page = (await served.client.get("/fleet", headers={"accept": "text/html"})).text
    assert "synced" in page
    assert worker["id"] in page


@pytest.mark.behaviour("F-47")
async def test_every_door_shows_the_hosts_of_a_fleet_their_lag_and_its_durability(tmp_path: Path) -> None:
    url = f"{shared_server().url}/p{secrets.token_hex(6)}?max_bytes=16MB&snapshot_bytes=32MB"
    other = redrive.Redrive(url, replica=True, replica_folder=str(tmp_path / "other"))
    rd = redrive.Redrive(url, replica=True, replica_folder=str(tmp_path / "hub"))
    async with other, rd, rd.serving_hub():
        await other.enqueue("later", {"x": 1})
        async with serving(rd, dashboard=True) as served:

            async def both() -> bool:
                return len((await served.get("/v1/fleet"))["files"]) == 2

            await eventually(both, "both replicas have announced themselves")
            found = await served.get("/v1/fleet")
            page = (await served.client.get("/fleet", headers={"accept": "text/html"})).text
        told = await asyncio.to_thread(_status, url, tmp_path / "cli")
    assert (found["durability"], found["halted"]) == ("unsynced", None)
    assert "synced=true" in found["advice"]
    assert sorted((file["hub"], file["state"]) for file in found["files"]) == [(False, "running"), (True, "running")]
    assert all(file["lag"] <= found["end"] for file in found["files"])
    for file in found["files"]:
        assert file["name"] in page
    assert "unsynced" in page
    names = {file["name"]: file["hub"] for file in told["files"]}
    assert names.items() >= {file["name"]: file["hub"] for file in found["files"]}.items()
    assert told["generation"] == found["generation"]
    assert told.keys() == found.keys()


def _status(url: str, folder: Path) -> Any:
    result = CliRunner().invoke(
        cli, ["fleet", "status", "--json", "--url", url], env={"REDRIVE_REPLICA_FOLDER": str(folder)}
    )
    return json.loads(result.output)
