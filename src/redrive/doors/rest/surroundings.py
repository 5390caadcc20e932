"""What is around the jobs: breakers, schedules, workflows, agents."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from redrive.app.fleet_view import FleetStatus
from redrive.app.workflows import public as workflow_public
from redrive.core.job import State, iso
from redrive.core.store import Filter
from redrive.core.workflow import FlowState, StepState
from redrive.doors.rest import schemas
from redrive.doors.rest.showing import listed
from redrive.doors.rest.table import Asked, Route
from redrive.doors.web.problems import Refused, problem

# -- breakers


class BreakerOut(schemas.Given):
    """What is down: the breakers that are open."""

    key: str
    state: Literal["open", "half_open", "closed"]
    cause: str
    since: schemas.Instant
    pause: float
    until: schemas.Instant
    release: float
    probe: str | None
    probes: int
    job: str | None
    error: str
    asked: float
    callers: list[str]


class Breakers(schemas.Given):
    items: list[BreakerOut]


class Closed(schemas.Given):
    key: str
    closed: bool


async def breakers(asked: Asked) -> Any:
    found = await asked.rd.breakers()
    times = ("since", "until")
    return {
        "items": [
            msgspec.structs.asdict(one) | {name: iso(getattr(one, name)) for name in times} for one in found
        ]
    }  # fmt: skip


async def close_breaker(asked: Asked) -> Any:
    key = asked.path["key"]
    if not await asked.rd.close_breaker(key):
        raise Refused(problem("not-found", f"there is no open breaker {key[:200]!r}"))
    return {"key": key, "closed": True}


# -- schedules


class ScheduleOut(schemas.Given):
    """A schedule as it stands."""

    name: str
    task: str
    line: str
    tz: str
    last_slot: schemas.Instant | None
    next_slot: schemas.Instant | None
    due_since: schemas.Instant | None
    job: str | None
    state: State | None
    note: str | None


class Schedules(schemas.Given):
    items: list[ScheduleOut]


async def schedules(asked: Asked) -> Any:
    return {"items": [one.public() for one in await asked.rd.schedules()]}


# -- workflows


class StepOut(schemas.Given):
    name: str
    task: str
    job_id: str
    state: StepState
    after: list[str]
    waits_for: list[str]
    attempts: int
    because: str | None
    error: str | None
    recommendation: str | None


class WorkflowOut(schemas.Given):
    """A workflow as it is now, step by step."""

    id: str
    name: str
    state: FlowState
    steps: list[StepOut]
    created_at: schemas.Instant
    session_id: str | None
    text: str
    failed: list[str]
    blocked: list[str]


class WorkflowsOut(schemas.Listed):
    items: list[WorkflowOut]


class WorkflowQuery(schemas.Taken):
    limit: schemas.Limit = 100
    name: schemas.Words | None = None


async def workflows(asked: Asked) -> Any:
    limit = asked.query.limit
    return listed(await asked.rd.workflows.list(limit=limit + 1, name=asked.query.name), limit, workflow_public)


async def workflow(asked: Asked) -> Any:
    handle = await asked.rd.workflows.get(asked.path["id"])
    return workflow_public(await handle.status())


async def cancel_workflow(asked: Asked) -> Any:
    handle = await asked.rd.workflows.get(asked.path["id"])
    return workflow_public(await handle.cancel(asked.body.why, who=asked.body.who))


# -- agents


class AgentOut(schemas.Given):
    """One who does work: what it can, and what it has to do now."""

    name: str
    does: list[str]
    models: list[str]
    waiting: int
    running: int
    held: int
    dead: int
    done: int


class Agents(schemas.Given):
    items: list[AgentOut]


async def agents(asked: Asked) -> Any:
    fleet = asked.rd.registry.fleet.agents
    counted = await asked.rd.store.count(Filter(), by=("agent", "state"))
    names = [*fleet, *sorted({str(agent) for agent, _ in counted if agent is not None and agent not in fleet})]
    return {"items": [_agent(name, fleet.get(name), counted) for name in names]}


def _agent(name: str, known: Any, counted: dict[tuple[str | None, ...], int]) -> dict[str, Any]:
    states = ("waiting", "running", "held", "dead", "done")
    numbers = {state: counted.get((name, state), 0) for state in states}
    skills = {"does": list(known.does), "models": list(known.models)} if known else {"does": [], "models": []}
    return {"name": name, **skills, **numbers}


# -- the fleet


async def fleet(asked: Asked) -> Any:
    """Where the jobs are kept, which hosts keep and run them, how far each is behind, and how durable they are."""
    return await asked.rd.fleet.view()


ROUTES: Final = (
    Route("GET", "/v1/fleet", fleet, "Hosts, lag and durability.", FleetStatus),
    Route("GET", "/v1/breakers", breakers, "What is down: the breakers that are open.", Breakers),
    Route(
        "POST", "/v1/breakers/{key:path}/close", close_breaker, "A person knows that it answers again.", Closed,
        body=schemas.Saying,
    ),
    Route("GET", "/v1/schedules", schedules, "Every schedule: its line, last and next slot.", Schedules),
    Route("GET", "/v1/workflows", workflows, "The latest workflows.", WorkflowsOut, WorkflowQuery),
    Route("GET", "/v1/workflows/{id}", workflow, "One workflow, step by step.", WorkflowOut),
    Route(
        "POST", "/v1/workflows/{id}/cancel", cancel_workflow, "No longer wanted; what is done stays done.",
        WorkflowOut, body=schemas.Saying, errors=(409,),
    ),
    Route("GET", "/v1/agents", agents, "Who does work, and what each has to do.", Agents),
)  # fmt: skip
