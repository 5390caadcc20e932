"""Workflows: steps that wait for each other, and how each stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redrive.doors.dashboard.rendering import Site, back, form_of, page, rd_of, who

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.core.workflow import StepStatus, WorkflowStatus

SHOWN: Final = 30
LOOKS: Final = {
    "PENDING": ("waiting", "pending"),
    "RUNNING": ("running", "running"),
    "RETRY_PENDING": ("retrying", "retry pending"),
    "BLOCKED": ("blocked", "blocked"),
    "HELD": ("held", "held"),
    "FAILED": ("failed", "failed"),
    "DONE": ("done", "done"),
    "DISCARDED": ("discarded", "discarded"),
    "FORGOTTEN": ("purged", "forgotten"),
}


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/workflows", listed, "workflows"),
        site.route("/workflows/{id}/cancel", cancel, "cancel_workflow", post=True),
    ]


async def listed(request: Request) -> Response:
    name = request.query_params.get("name") or None
    found = await rd_of(request).workflows.list(limit=SHOWN, name=name)
    rows = [{"flow": flow, "columns": columns(flow), "told": told(flow)} for flow in found]
    names = sorted({flow.name for flow in found})
    return await page(
        request, "workflows.html", section="workflows", rows=rows, names=names, name=name, looks=LOOKS, most=SHOWN
    )


async def cancel(request: Request) -> Response:
    form = await form_of(request)
    handle = await rd_of(request).workflows.get(request.path_params["id"])
    status = await handle.cancel(form.text("why"), who=who(request))
    return back(request, f"{status.name} is no longer wanted: {status.text}")


def columns(flow: WorkflowStatus) -> list[list[StepStatus]]:
    """Steps by how many stand before them: each column waits for those to its left."""
    depth: dict[str, int] = {}
    left = list(flow.steps)
    while left:
        ready = [step for step in left if all(name in depth for name in step.after)]
        if not ready:
            return [list(flow.steps)]  # cannot be drawn in order; shown all the same
        for step in ready:
            depth[step.name] = 1 + max((depth[name] for name in step.after), default=-1)
        left = [step for step in left if step.name not in depth]
    found: list[list[StepStatus]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for step in flow.steps:
        found[depth[step.name]].append(step)
    return found


def told(flow: WorkflowStatus) -> dict[str, Any]:
    over = flow.count("DONE", "FORGOTTEN")
    return {"over": over, "all": len(flow.steps), "can_cancel": flow.state in ("running", "blocked")}
