"""Agents: what each has to do now, how it went lately, and in which ways it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.doors.dashboard import words
from redrive.doors.dashboard.activity import loads
from redrive.doors.dashboard.rendering import Site, page, rd_of, site_of
from redrive.reports.activity import HOUR, AgentLoad

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute


DAY: Final = 24 * HOUR
COLOURS: Final = {"transient": "running", "conditional": "held", "permanent": "dead", "control": "done"}
"""Of the categories of failures; what is unknown is grey."""


def hour_start(at: float) -> float:
    """When the hour of that time began: what happened is added up by whole hours."""
    return at // HOUR * HOUR


def routes(site: Site) -> list[BaseRoute]:
    return [site.route("/agents", listed, "agents")]


async def listed(request: Request) -> Response:
    fleet = rd_of(request).registry.fleet
    found = await loads(site_of(request))
    rows = [
        {"load": load, "name": load.agent or "no agent", "known": fleet.agents.get(load.agent or ""), "mix": mix(load)}
        for load in found
        if not _idle(load)
    ]
    idle = [(load.agent, fleet.agents.get(load.agent or "")) for load in found if _idle(load)]
    return await page(
        request, "agents.html", section="agents", rows=rows, idle=idle, escalation=fleet.escalation,
        since=hour_start(rd_of(request).clock.now() - DAY),
    )  # fmt: skip


def _idle(load: AgentLoad) -> bool:
    """Nothing to do, and nothing done lately."""
    return load == AgentLoad(load.agent)


def mix(load: AgentLoad) -> dict[str, object]:
    """How it fails, as a bar and in words."""
    whole = sum(load.mix.values())
    parts = [(COLOURS.get(name, "waiting"), number) for name, number in load.mix.items()]
    told = ", ".join(f"{words.percent(number, whole)} {words.plain(name)}" for name, number in load.mix.items())
    return {"parts": parts, "words": told, "whole": whole}
