"""Defines the tasks of the demo: `redrive worker redrive.doors.demo.tasks:rd`."""

from __future__ import annotations

import asyncio
import os
from urllib.parse import quote

import redrive

FAST = {"base": 0.4, "cap": 1.5, "max_attempts": 60, "breaker_pause": 0.5}
QUEUES = ("deliveries", "articles", "research", "briefs", "poison")
# Two agents more than the preset has. What no agent can do belongs to the preset's ceo.
AGENTS = {"intern": {"does": ["brief"]}, "editor": {"does": ["brief", "publish"]}}


# Quick retries, so that a minute shows what otherwise takes an hour.
rd = redrive.Redrive(
    os.environ.get("REDRIVE_URL", ":memory:"),
    preset="seven_agents",
    queues={name: dict(FAST) for name in QUEUES},
    agents=AGENTS,
    delivery={"allow": ["127.0.0.1/32"]},
)


async def _ask(method: str, path: str) -> str | None:
    """Send a small HTTP/1.1 request to the receiver of articles; return None for 404."""
    port = int(os.environ["REDRIVE_DEMO_PORT"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: demo\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status = int(head.split()[1]) if head else 0
    if status == 404:
        return None
    if status != 200:
        raise ConnectionError(f"the press answered {status or 'nothing'}")
    return body.decode()


@rd.task("publish", queue="articles")
async def publish(ctx: redrive.Context, slug: str) -> str | None:
    """Draft an article once and post it once, whatever is killed in between."""
    draft = await ctx.step("draft", write, slug)
    await asyncio.sleep(0.02)
    return await ctx.once(
        "post",
        lambda key: _ask("POST", f"/posts?key={quote(key)}&words={len(draft.split())}"),
        verify=lambda key: _ask("GET", f"/posts?key={quote(key)}"),
    )


async def write(slug: str) -> str:
    await asyncio.sleep(0.05)
    return f"All there is to say about {slug}."


@rd.task("research", queue="research")
async def research(ctx: redrive.Context, topic: int) -> int:
    """Do a step of an agent that a provider interrupts now and then."""
    await asyncio.sleep(0.03 + topic % 7 / 100)
    if ctx.attempt == 1 and topic % 5 == 0:
        raise TimeoutError("the model did not answer in time")
    return topic * topic


@rd.task("brief", queue="briefs")
async def brief(ctx: redrive.Context, topic: str) -> str:
    """Fail for every agent but the editor: after a reassignment it is done."""
    if ctx.agent != "editor":
        raise PermissionError(f"{ctx.agent} may not write to the press folder")
    return f"{topic}: filed by the {ctx.agent}"


@rd.task("poison", queue="poison", max_crashes=1)
async def poison(kind: str) -> None:
    """Fail in ways that no retry heals: each job ends as a dead letter that says why."""
    if kind == "kills its worker":
        os._exit(1)
    if kind == "a bug":
        raise TypeError("'NoneType' object is not subscriptable")
    raise redrive.GiveUp("production is frozen until Monday", recommendation="Redrive it after the change freeze.")
