"""What docs/howto/deploy.md says is so: where the file may live, and the app that is mounted into another one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from redrive.stores.sqlite.connection import NETWORK
from tests.support import DEADLINE, eventually

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "deploy.md").read_text("utf-8")
TOKEN = "a-token-for-this-test-alone"


def test_every_filesystem_that_is_refused_is_named() -> None:
    (refused,) = re.findall(r"refuses when it opens the file: (.*?)\. `redrive doctor`", PAGE, re.DOTALL)
    assert set(re.findall(r"`([\w.]+)`", refused)) == NETWORK


def test_the_lines_of_the_unit_are_those_of_the_file() -> None:
    unit = (ROOT / "deploy" / "redrive.service").read_text("utf-8").splitlines()
    (shown,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    assert [line for line in shown.splitlines() if line not in unit] == []


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[str]:
    """examples/mounted.py under a real uvicorn; gone when the test ends."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "mounted:app", "--port", "0"],
        env=kept | {"PYTHONPATH": str(ROOT / "examples"), "REDRIVE_TOKEN": TOKEN},
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stderr is not None
    address = next((found[1] for line in server.stderr if (found := re.search(r"running on (http://\S+)", line))), None)
    try:
        assert address is not None, "uvicorn ended before it ran"
        yield address
    finally:
        server.terminate()
        server.communicate(timeout=DEADLINE)


async def test_the_mounted_app_runs_jobs_and_shows_them(mounted: str) -> None:
    async with httpx2.AsyncClient(base_url=mounted, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        accepted = (await client.post("/greetings/ada")).json()

        async def done() -> bool:
            job = (await client.get(f"/queue/v1/jobs/{accepted['job']}")).json()
            return json.dumps(job).find('"done"') >= 0

        await eventually(done, "the job is done")
        page = await client.get(accepted["see"])
        assert page.status_code == 200 and "greet" in page.text
        own = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text))
        assert own and all(link.startswith("/queue/") for link in own)  # it knows its prefix


async def test_the_mounted_app_asks_for_the_token(mounted: str) -> None:
    async with httpx2.AsyncClient(base_url=mounted) as client:
        assert (await client.get("/queue/v1/jobs")).status_code == 401
        assert (await client.get("/queue/healthz")).status_code == 200
        assert (await client.post("/greetings/ada")).status_code == 202  # the application's own routes are its own
