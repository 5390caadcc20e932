"""docs/walk.md with the mouse alone, from what the demo leaves behind to a trouble that is cured."""

import os
import re
import subprocess
import sys
from pathlib import Path

import redrive
from redrive.doors.demo import BRIEFS
from redrive.doors.web.guard import PARAMETER
from tests.support import eventually
from tests.web.browser.conftest import Tabs
from tools.walk import walk

DOCS = Path(__file__).parents[3] / "docs"


async def test_the_walk(tmp_path: Path, tabs: Tabs) -> None:
    database = tmp_path / "jobs.db"
    async with redrive.Redrive(database) as rd:
        topics = [{"topic": f"quarter {number}"} for number in range(BRIEFS)]
        await rd.enqueue_many("brief", topics, queue="briefs", agent="intern")
        serve = [sys.executable, "-m", "redrive", "serve", "redrive.doors.demo.tasks:rd", "--port", "0"]
        log = (tmp_path / "log").open("wb")
        child = subprocess.Popen(serve, env=os.environ | {"REDRIVE_URL": str(database)}, stdout=log, stderr=log)
        try:

            async def dead() -> bool:
                return len((await rd.dead.list()).jobs) == BRIEFS

            await eventually(dead)
            link = re.search(r"http://\S+", (tmp_path / "log").read_text("utf-8"))
            assert link is not None
            token = database.with_name("jobs.db-token").read_text("utf-8").strip()
            page = await tabs.visit(f"{link[0]}?{PARAMETER}={token}")
            seen: list[str] = []

            async def take(name: str) -> None:
                seen.append(f"images/walk-{name}.png")

            await walk(page, take)
            await tabs.close()
        finally:
            child.terminate()
            child.wait(20)
            log.close()
        assert {job.agent for job in (await rd.jobs.list(state="done")).jobs} == {"editor"}
        (group,) = await rd.dead.groups()
        assert group.status == "resolved"
    text = (DOCS / "walk.md").read_text("utf-8")
    assert [name for name in seen if name not in text or not (DOCS / name).exists()] == []
