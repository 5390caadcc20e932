"""A worker without a file that is told to end ends in time, also where no hub is left to take its word."""

from __future__ import annotations

import secrets
import signal
import time
from pathlib import Path

import pytest

from redrive import Redrive
from tests.chaos.processes import Zygote, until
from tests.nats import own_server, shared_server

pytestmark = pytest.mark.chaos
GRACE = 2.0
BUSY = 20.0
"""What a busy machine may add: it takes half a second on an idle one, and took more than a minute before."""


def worker(folder: str, url: str, *, grace: float) -> None:
    """`redrive worker` without a file of its own, with a job that outlasts every grace."""
    import asyncio

    rd = Redrive(url, replica_folder=f"{folder}/home", poll=0.2)

    @rd.task
    async def endless() -> None:
        (Path(folder) / "runs").touch()
        await asyncio.sleep(3600)

    asyncio.run(rd.run_worker(grace=grace))


def hub(folder: str, url: str) -> None:
    import asyncio

    rd = Redrive(url, replica=True, replica_folder=f"{folder}/hub")

    async def serve() -> None:
        async with rd, rd.serving_hub():
            await rd.enqueue("endless", {})
            (Path(folder) / "serves").touch()
            await asyncio.Event().wait()

    asyncio.run(serve())


@pytest.mark.behaviour("F-21")
@pytest.mark.parametrize("silent", ["hub", "server"])
@pytest.mark.parametrize("waits", [0.0, 1.5], ids=["at once", "after a while"])
async def test_a_thin_worker_ends_within_its_grace_where_no_hub_answers(
    zygote: Zygote, tmp_path: Path, silent: str, waits: float
) -> None:
    """The job that runs then is given back when its lease ends: nothing else can be done for it."""
    with own_server(tmp_path / "server") as server:
        start = {"folder": tmp_path, "url": f"{server.url}/e{secrets.token_hex(4)}"}
        serving = zygote.start("tests.chaos.test_thin_worker_end:hub", log=tmp_path / "hub.log", **start)
        await until("the hub serves", (tmp_path / "serves").exists)
        name = "tests.chaos.test_thin_worker_end:worker"
        working = zygote.start(name, log=tmp_path / "worker.log", grace=GRACE, **start)
        await until("the job runs", (tmp_path / "runs").exists)
        serving.send(signal.SIGKILL)
        await serving.exited()
        if silent == "server":
            server.kill()
        began = time.monotonic()
        await until("it has noticed", lambda: time.monotonic() - began >= waits)
        told = time.monotonic()
        working.send(signal.SIGTERM)
        assert await working.exited() == 0
        assert time.monotonic() - told < GRACE + BUSY, working.log()


@pytest.mark.behaviour("F-21")
async def test_a_thin_worker_without_grace_and_without_a_hub_ends_at_once(zygote: Zygote, tmp_path: Path) -> None:
    start = {"folder": tmp_path, "url": f"{shared_server().url}/e{secrets.token_hex(4)}"}
    serving = zygote.start("tests.chaos.test_thin_worker_end:hub", log=tmp_path / "hub.log", **start)
    await until("the hub serves", (tmp_path / "serves").exists)
    working = zygote.start("tests.chaos.test_thin_worker_end:worker", log=tmp_path / "worker.log", grace=0.0, **start)
    await until("the job runs", (tmp_path / "runs").exists)
    serving.send(signal.SIGKILL)
    await serving.exited()
    told = time.monotonic()
    working.send(signal.SIGTERM)
    assert await working.exited() == 0
    assert time.monotonic() - told < BUSY, working.log()
