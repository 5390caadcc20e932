"""Agents and their work: what each has to do and how it fails, the inboxes of sessions, and workflows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core.redact import redact
from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import go_back, render_page
from redrive.reports.activity import HOUR, AgentLoad

if TYPE_CHECKING:
    from starlette.responses import Response

    from redrive.core.notice import Notice
    from redrive.core.workflow import StepStatus, WorkflowStatus
    from redrive.doors.dashboard.rendering import Values
    from redrive.doors.dashboard.requests import Form, PageRequest

# -- agents

DAY: Final = 24 * HOUR
COLOURS: Final = {"transient": "running", "conditional": "held", "permanent": "dead", "control": "done"}
"""The colours of the categories of failures; an unknown category is grey."""


async def list_agents(request: PageRequest) -> Values:
    fleet, loads = request.rd.registry.fleet, await request.site.agent_loads()
    known = {load.agent: fleet.agents.get(load.agent or "") for load in loads}
    idle = {load.agent for load in loads if load == AgentLoad(load.agent)}
    return {
        "rows": [
            {"load": load, "name": load.agent or "no agent", "known": known[load.agent], "mix": make_mix(load)}
            for load in loads
            if load.agent not in idle
        ],
        "idle": [(load.agent, known[load.agent]) for load in loads if load.agent in idle],
        "escalation": fleet.escalation,
        "since": (request.rd.clock.now() - DAY) // HOUR * HOUR,  # moves are added up by whole hours
    }


def make_mix(load: AgentLoad) -> Values:
    """Make a bar of how an agent fails, and the same in words."""
    whole = sum(load.mix.values())
    parts = [(COLOURS.get(name, "waiting"), number) for name, number in load.mix.items()]
    text = ", ".join(f"{words.percent(number, whole)} {words.plain(name)}" for name, number in load.mix.items())
    return {"parts": parts, "words": text, "whole": whole}


# -- the inboxes of sessions

MESSAGES: Final = 200
SESSIONS: Final = 200
WHICH: Final = ("no", "yes", "pending")
"""Unread messages, all messages, or those that wait for an answer."""
INBOXES_SECONDS: Final = 5.0
"""How old the list of all sessions may be: it reads every message."""


async def show_inbox(request: PageRequest) -> Response:
    session, which = request.query_params.get("session") or None, request.choose("all", WHICH, "no")
    sessions = request.rd.sessions
    if session is None:
        inboxes = await request.site.read_cached("inboxes", sessions.inboxes, INBOXES_SECONDS)
        values: Values = {"rows": inboxes[:SESSIONS], "number": len(inboxes)}
        return await render_page(request, "inboxes.html", section="sessions", **values)
    notices = await sessions.inbox(session, unread=which == "no", limit=10_000)
    if which == "pending":
        notices = [notice for notice in notices if notice.status == "pending"]
    rows = [_make_message(notice) for notice in notices[::-1][:MESSAGES]]
    values = {"session": session, "which": which, "rows": rows, "number": len(notices)}
    costs = await sessions.costs(session)
    return await render_page(request, "inbox.html", section="sessions", **values, costs=costs)


def _make_message(notice: Notice) -> dict[str, Any]:
    result = redact(notice.result)
    text = None if result is None else msgspec.json.format(msgspec.json.encode(result), indent=2).decode()
    return {"notice": notice, "result": text, "asks": notice.kind in ("needs_consent", "needs_approval")}


async def mark_seen(request: PageRequest, form: Form) -> Response:
    notice = await request.rd.sessions.acknowledge(form.text("session") or "", form.text("notice") or "")
    return go_back(request, f"Seen: {notice.title}")


async def answer_job(request: PageRequest, form: Form) -> Response:
    """Answer yes or no to what a job waits for."""
    jobs, agreed = request.rd.jobs, form.text("answer") == "approve"
    answer = jobs.approve if agreed else jobs.reject
    job = await answer(form.text("job") or "", **request.sign(form))
    return go_back(request, f"{job.task} {job.short_id} is {'approved' if agreed else 'rejected'}.")


# -- workflows

WORKFLOWS: Final = 30
STEP_LOOKS: Final = {
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


async def list_workflows(request: PageRequest) -> Values:
    name = request.query_params.get("name") or None
    flows = await request.rd.workflows.list(limit=WORKFLOWS, name=name)
    rows = [
        {
            "flow": flow,
            "columns": make_columns(flow),
            "over": flow.count("DONE", "FORGOTTEN"),
            "can_cancel": flow.state in ("running", "blocked"),
        }
        for flow in flows
    ]
    names = sorted({flow.name for flow in flows})
    return {"rows": rows, "names": names, "name": name, "looks": STEP_LOOKS, "most": WORKFLOWS}


async def cancel_workflow(request: PageRequest, form: Form) -> Response:
    handle = await request.rd.workflows.get(request.path_params["id"])
    status = await handle.cancel(form.text("why"), who=request.who)
    return go_back(request, f"{status.name} is no longer wanted: {status.text}")


def make_columns(flow: WorkflowStatus) -> list[list[StepStatus]]:
    """Sort steps into columns: each column waits for the steps to its left."""
    depth: dict[str, int] = {}
    left = list(flow.steps)
    while left:
        ready = [step for step in left if all(name in depth for name in step.after)]
        if not ready:
            return [list(flow.steps)]  # steps that wait for each other have no order; they are shown all the same
        for step in ready:
            depth[step.name] = 1 + max((depth[name] for name in step.after), default=-1)
        left = [step for step in left if step.name not in depth]
    columns: list[list[StepStatus]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for step in flow.steps:
        columns[depth[step.name]].append(step)
    return columns
