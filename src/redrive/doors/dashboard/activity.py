"""What went in and out lately, asked once for all who look, and shaped for plots."""

from __future__ import annotations

from typing import Any

import msgspec

from redrive.doors.dashboard.rendering import Site
from redrive.reports.activity import Activity, AgentLoad


async def last_hour(site: Site) -> Activity:
    """By the minute."""
    found: Activity = await site.fresh("minutes", lambda: site.rd.reports.activity(minutes=60))
    return found


async def last_days(site: Site) -> Activity:
    """By the hour, up to the one that goes on: it alone still changes, so it may have been asked for a while ago."""
    found: Activity = await site.fresh("hours", lambda: site.rd.reports.activity(hours=48), 10.0)
    return found


def plot(starts: list[float], *series: dict[str, Any]) -> str:
    """What plots.js draws."""
    return msgspec.json.encode({"x": starts, "series": series}).decode()


def throughput(activity: Activity) -> str:
    """What came in and what was done."""
    flows = activity.total.flows
    return plot(
        activity.starts,
        {"name": "done", "kind": "done", "values": flows["succeeded"], "fill": True},
        {"name": "enqueued", "kind": "ink-3", "values": flows["enqueued"], "dash": True},
    )


def failures(activity: Activity) -> str:
    """What failed: tried again, or buried."""
    flows = activity.total.flows
    return plot(
        activity.starts,
        {"name": "retried", "kind": "held", "values": flows["retried"]},
        {"name": "buried", "kind": "dead", "values": flows["buried"], "fill": True},
    )


async def loads(site: Site) -> list[AgentLoad]:
    """Every agent that is known or has anything to do."""
    found: list[AgentLoad] = await site.fresh("loads", site.rd.reports.load)
    return found
