"""Tasks that fail for as long as something is broken, and pages to look at them with."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Page

import redrive
from redrive.core.job import Job
from tests.support import eventually
from tests.web.serving import Served

SECRET = "sk-live-abcdefghijklmnop"


class World:
    """What is broken now, and what happened outside."""

    def __init__(self) -> None:
        self.broken = {"mill", "post", "ink"}
        self.posted: list[str] = []


WORLDS: dict[int, World] = {}


def world_of(rd: redrive.Redrive) -> World:
    return WORLDS[id(rd)]


@asynccontextmanager
async def make_ward(database: Path) -> AsyncIterator[redrive.Redrive]:
    agents = {name: redrive.Agent(("content_creation", "bind")) for name in ("editor", "printer")}
    rd = redrive.Redrive(database, poll=0.05, agents=agents, queues={"press": {"base": 0.01, "cap": 0.02}})
    world = WORLDS[id(rd)] = World()
    _work(rd, world)
    _waiting(rd)
    async with rd:
        yield rd
    del WORLDS[id(rd)]


def _work(rd: redrive.Redrive, world: World) -> None:
    """Tasks that fail while something is broken."""

    @rd.task
    async def mill(stone: int, flour: str = "rye", api_key: str = "") -> str:
        if "mill" in world.broken:
            raise TypeError(f"stone {stone} does not turn")
        return f"{flour} flour from stone {stone}"

    @rd.task(queue="press")
    async def press(ctx: redrive.Context, sheet: int, paper: str = "thin") -> str:
        """Fails whatever it is given, until there is ink."""
        ctx.usage(input_tokens=100, output_tokens=10, cost=0.5)
        if "ink" in world.broken:
            raise redrive.GiveUp("there is no ink", recommendation="Buy ink, then redrive.")
        return f"sheet {sheet} on {paper} paper"

    @rd.task
    async def publish(ctx: redrive.Context, slug: str) -> str:
        async def put(key: str) -> str:
            world.posted.append(slug)
            return f"posted {slug}"

        await ctx.once("post", put)
        if "post" in world.broken:
            raise redrive.GiveUp("the newsletter is down")
        return slug

    @rd.task
    async def bind(ctx: redrive.Context, volume: int) -> str:
        """Only the printer has the key to the bindery."""
        if ctx.agent != "printer":
            raise PermissionError(f"{ctx.agent} may not enter the bindery")
        return f"volume {volume}"


def _waiting(rd: redrive.Redrive) -> None:
    """Tasks that come to wait for a person, or for their time."""

    @rd.task
    async def ask(ctx: redrive.Context, what: str = "Refund 900 euros?", more: dict[str, str] | None = None) -> str:
        return "yes" if await ctx.approval(what, details={"amount": 900, **(more or {})}) else "no"

    @rd.task(max_attempts=1)
    async def pay(euros: int) -> None:
        raise redrive.OutcomeUnknown("sent, and then the line broke")

    @rd.task
    async def wait_for_it() -> None:
        """Never due in a test."""


async def buried(rd: redrive.Redrive, number: int, task: str = "mill", **payload: Any) -> list[str]:
    """So many dead letters, oldest first."""
    name = {"mill": "stone", "press": "sheet", "bind": "volume"}[task]
    before = {job.id for job in (await rd.dead.list(task=task, limit=1000)).jobs}
    for place in range(number):
        await rd.enqueue(task, {name: place, **payload}, agent=None if task == "mill" else "editor")

    async def dead() -> bool:
        return len((await rd.dead.list(task=task, limit=1000)).jobs) >= len(before) + number

    await eventually(dead, f"{number} dead letters of {task}")
    return [job.id for job in reversed((await rd.dead.list(task=task, limit=1000)).jobs) if job.id not in before]


async def became(rd: redrive.Redrive, id: str, state: str) -> Job:
    """The job, once it is so."""

    async def there() -> bool:
        return (await rd.jobs.get(id)).state == state

    await eventually(there, f"job {id[-8:]} to be {state}")
    return await rd.jobs.get(id)


async def dead_number(served: Served, **filters: Any) -> int:
    return len((await served.rd.dead.list(limit=1000, **filters)).jobs)


async def press(page: Page, label: str) -> None:
    """Presses what can be done here, in the menu where it stands there."""
    named = re.compile(f"^{re.escape(label)}$")
    button = page.locator(".job-verbs").locator("button, a").filter(has_text=named).first
    await button.wait_for(state="attached")
    if await button.evaluate("button => Boolean(button.closest('details:not([open])'))"):
        await page.locator("#more-verbs > summary").click()
    await button.click()
