"""`redrive fleet`: what it makes, what it shows, what it finds wrong, and how a halted fleet goes on."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from redrive import Redrive
from redrive.doors.cli import cli
from redrive.errors import StoreError
from redrive.stores.replica.envelope import Halt
from tests.chaos.processes import until
from tests.nats import own_server, shared_server
from tests.postgres_server import Server as Postgres
from tests.support import DEADLINE

Run = Callable[..., Result]


@pytest.fixture
def url() -> str:
    return f"{shared_server().url}/f{secrets.token_hex(6)}?max_bytes=16MB&snapshot_bytes=32MB"


@pytest.fixture
def run(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("REDRIVE_URL", url)
    monkeypatch.setenv("REDRIVE_REPLICA_FOLDER", str(tmp_path / "cli"))
    monkeypatch.setattr("redrive.stores.remote.presence.ANSWER_SECONDS", 0.3)
    return lambda *said: CliRunner().invoke(cli, ["fleet", *said])


def lines(result: Result) -> dict[str, str]:
    """Stream by stream, what was done."""
    return {line.split()[1]: line.split()[0] for line in result.output.splitlines()}


@pytest.mark.behaviour("F-46")
def test_init_makes_every_stream_once_and_says_what_it_did(run: Run, url: str) -> None:
    name = "RD_" + url.rpartition("/")[2].partition("?")[0]
    streams = {f"{name}_TASKS", f"{name}_RETRY", f"{name}_DLQ_none", f"{name}_DLQ_legal"}
    assert lines(run("init", "--agent", "legal=50")) == dict.fromkeys(streams, "made")
    assert lines(run("init")) == dict.fromkeys(streams, "unchanged")
    changed = lines(run("init", "--dlq-limit", "70"))
    assert changed == dict.fromkeys(streams, "unchanged") | {
        f"{name}_DLQ_none": "updated",
        f"{name}_DLQ_legal": "updated",
    }


@pytest.mark.behaviour("F-46")
def test_init_refuses_a_stream_of_somebody_else(run: Run, url: str) -> None:
    import nats

    namespace = url.rpartition("/")[2].partition("?")[0]

    async def take() -> None:
        client = await nats.connect(shared_server().url)
        await client.jetstream().add_stream(name=f"RD_{namespace}_TASKS", subjects=[f"{namespace}.mine"])
        await client.close()

    asyncio.run(take())
    result = run("init")
    assert "redrive has not made it" in result.output


@pytest.mark.parametrize("said", ["=5", "legal=", "legal=none", "legal=0"])
def test_init_names_a_limit_that_cannot_be_used(run: Run, said: str) -> None:
    result = run("init", "--agent", said)
    assert result.exit_code != 0
    assert f"--agent {said}" in result.output


@pytest.mark.parametrize("verb", ["init", "status", "doctor", "resume"])
def test_a_file_is_no_fleet(verb: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["fleet", verb, "--url", str(tmp_path / "jobs.db")])
    assert result.exit_code != 0
    assert "nats://" in f"{result.output} {result.exception}"


async def _with_hub(url: str, folder: Path, look: Callable[[], Any]) -> Any:
    """What somebody sees from another thread while a hub runs here."""
    async with Redrive(url, replica=True, replica_folder=str(folder)) as rd, rd.serving_hub():
        await rd.enqueue("later", {"x": 1})
        async with asyncio.timeout(DEADLINE):
            return await asyncio.to_thread(look)


@pytest.mark.behaviour("F-46")
def test_status_shows_hubs_lag_log_and_streams(run: Run, url: str, tmp_path: Path) -> None:
    run("init")
    found = json.loads(asyncio.run(_with_hub(url, tmp_path / "hub", lambda: run("status", "--json"))).output)
    (hub,) = found["hubs"]
    assert hub["lag"] <= 2
    assert hub["generation"] == found["generation"]
    assert abs(hub["clock_off"]) < 2
    assert (found["durability"], found["halted"], found["snapshot"]) == ("unsynced", None, None)
    assert found["log_bytes"] > 0
    assert found["replicas"] >= 1
    assert {stream["holds"] for stream in found["streams"]} >= {"tasks", "dead letters", "retries", "log"}
    shown = run("status").output
    assert "no hub answers" in shown
    assert "add synced=true" in shown


@pytest.mark.behaviour("F-46")
def test_doctor_names_what_is_wrong_and_what_to_do(run: Run, url: str, tmp_path: Path) -> None:
    alone = json.loads(run("doctor", "--json").output)
    wrong = {check["name"]: check for check in alone["checks"] if not check["ok"]}
    assert wrong.keys() == {"hubs"}
    assert "redrive hub" in wrong["hubs"]["hint"]


@pytest.mark.behaviour("F-46")
def test_a_fleet_that_works_as_configured_is_not_wrong_for_being_unsynced(run: Run, url: str, tmp_path: Path) -> None:
    told = asyncio.run(_with_hub(url, tmp_path / "hub", lambda: run("doctor")))
    assert told.exit_code == 0, told.output
    assert "WRONG" not in told.output
    (line,) = [line for line in told.output.splitlines() if line.startswith("WARN")]
    assert line.split() == ["WARN", "durability", "unsynced"]
    assert "synced=true" in told.output
    found = json.loads(asyncio.run(_with_hub(url, tmp_path / "hub2", lambda: run("doctor", "--json"))).output)
    assert found["ok"]
    assert [check["name"] for check in found["checks"] if check["warning"]] == ["durability"]


async def _has_hub(rd: Redrive) -> bool:
    return bool((await rd.fleet.status()).hubs)


@pytest.mark.behaviour("F-31")
@pytest.mark.parametrize("runs", [False, True], ids=["started late", "that runs"])
def test_a_hub_of_a_fleet_that_moved_says_where_the_jobs_are(url: str, tmp_path: Path, runs: bool) -> None:
    def hub() -> subprocess.Popen[str]:
        settings = {"REDRIVE_URL": url, "REDRIVE_REPLICA_FOLDER": str(tmp_path / "hub")}
        return subprocess.Popen(
            [sys.executable, "-m", "redrive", "hub"], env=os.environ | settings, text=True, stderr=subprocess.PIPE
        )

    async def move() -> None:
        async with Redrive(url, replica=True, replica_folder=str(tmp_path / "mover")) as rd:
            await rd.enqueue("later", {"x": 1})
            store: Any = rd.store
            if runs:
                await until("the hub answers", lambda: _has_hub(rd))
            with pytest.raises(StoreError, match=r"moved to jobs\.db"):
                await store.leave_for("jobs.db")

    process = hub() if runs else None
    asyncio.run(move())
    _, said = (process or hub()).communicate(timeout=60)
    assert "the jobs of this fleet were moved to jobs.db: set REDRIVE_URL to it" in said
    assert "start it where the jobs are now" in said
    assert "disk" not in said


@pytest.mark.behaviour("F-46")
def test_doctor_is_content_with_a_synced_server_and_says_when_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_REPLICA_FOLDER", str(tmp_path / "cli"))
    monkeypatch.setattr("redrive.stores.replica.jetstream.OPEN_SECONDS", 2.0)
    store = f'jetstream {{ store_dir: "{tmp_path / "store"}", sync_interval: always }}'
    with own_server(tmp_path / "server", lines=[store]) as server:
        url = f"{server.url}/synced?synced=true&max_bytes=16MB&snapshot_bytes=32MB"
        look = lambda: CliRunner().invoke(cli, ["fleet", "doctor", "--json", "--url", url])  # noqa: E731
        found = json.loads(asyncio.run(_with_hub(url, tmp_path / "hub", look)).output)
        assert found["ok"], found
    gone = json.loads(look().output)
    assert not gone["ok"]
    assert "no server of" in gone["checks"][0]["said"]


@pytest.mark.behaviour("F-46")
def test_a_halted_fleet_is_shown_and_resumed(run: Run, url: str, tmp_path: Path) -> None:
    async def halt() -> None:
        async with Redrive(url, replica=True, replica_folder=str(tmp_path / "other")) as rd:
            await rd.enqueue("later", {"x": 1})
            store: Any = rd.store
            await (await store._ready()).run(Halt("replicas differ"))

    asyncio.run(halt())
    assert "HALTED, nothing is claimed: replicas differ" in run("status").output
    (wrong,) = [check for check in json.loads(run("doctor", "--json").output)["checks"] if check["name"] == "halted"]
    assert not wrong["ok"]
    assert "redrive fleet resume" in wrong["hint"]
    assert "replicas differ" in run("resume").output
    assert json.loads(run("status", "--json").output)["halted"] is None
    assert "was not halted" in run("resume").output


@pytest.mark.behaviour("F-46")
def test_a_log_in_postgresql_is_shown_and_judged_without_streams(
    postgres_server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_URL", postgres_server.url(namespace=f"fleet-{secrets.token_hex(6)}"))
    monkeypatch.setenv("REDRIVE_REPLICA_FOLDER", str(tmp_path / "cli"))
    found = json.loads(CliRunner().invoke(cli, ["fleet", "status", "--json"]).output)
    assert (found["halted"], found["streams"], found["hubs"]) == (None, [], [])
    checks = json.loads(CliRunner().invoke(cli, ["fleet", "doctor", "--json"]).output)["checks"]
    assert {"durability", "halted", "generation", "snapshot"} <= {check["name"] for check in checks}
    assert "nats://" in CliRunner().invoke(cli, ["fleet", "init"]).output
