"""What is around the jobs: breakers, schedules, workflows, agents."""

from __future__ import annotations

from typing import Any, Final

from redrive.core.store import Filter
from redrive.core.view import view
from redrive.core.workflow import WorkflowStatus
from redrive.doors.rest import schemas
from redrive.doors.rest.shapes import listed, many, shape
from redrive.doors.rest.showing import cut
from redrive.doors.rest.table import Asked, Route
from redrive.doors.web.problems import Refused, problem
from redrive.fleet.status import FleetStatus
from redrive.flows.schedules import Scheduled
from redrive.retries.breaker import Breaker

# -- breakers


class Closed(schemas.Given):
    key: str
    closed: bool


async def breakers(asked: Asked) -> Any:
    return {"items": view(await asked.rd.breakers(), secrets=True)}


async def close_breaker(asked: Asked) -> Any:
    key = asked.path["key"]
    if not await asked.rd.close_breaker(key):
        raise Refused(problem("not-found", f"there is no open breaker {key[:200]!r}"))
    return {"key": key, "closed": True}


# -- schedules


async def schedules(asked: Asked) -> Any:
    return {"items": view(await asked.rd.schedules(), secrets=True)}


# -- workflows


class WorkflowQuery(schemas.Taken):
    limit: schemas.Limit = 100
    name: schemas.Words | None = None


async def workflows(asked: Asked) -> Any:
    limit = asked.query.limit
    return cut(await asked.rd.workflows.list(limit=limit + 1, name=asked.query.name), limit, secrets=True)


async def workflow(asked: Asked) -> Any:
    handle = await asked.rd.workflows.get(asked.path["id"])
    return view(await handle.status(), secrets=True)


async def cancel_workflow(asked: Asked) -> Any:
    handle = await asked.rd.workflows.get(asked.path["id"])
    return view(await handle.cancel(asked.body.why, who=asked.body.who), secrets=True)


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
    Route("GET", "/v1/breakers", breakers, "What is down: the breakers that are open.", listed(Breaker)),
    Route(
        "POST", "/v1/breakers/{key:path}/close", close_breaker, "A person knows that it answers again.", Closed,
        body=schemas.Saying,
    ),
    Route("GET", "/v1/schedules", schedules, "Every schedule: its line, last and next slot.", listed(Scheduled)),
    Route("GET", "/v1/workflows", workflows, "The latest workflows.", many(WorkflowStatus), WorkflowQuery),
    Route("GET", "/v1/workflows/{id}", workflow, "One workflow, step by step.", shape(WorkflowStatus)),
    Route(
        "POST", "/v1/workflows/{id}/cancel", cancel_workflow, "No longer wanted; what is done stays done.",
        shape(WorkflowStatus), body=schemas.Saying, errors=(409,),
    ),
    Route("GET", "/v1/agents", agents, "Who does work, and what each has to do.", Agents),
)  # fmt: skip
