"""How everything stands: health, queues, workers, tasks, the fleet, breakers, schedules and workflows."""

from __future__ import annotations

from typing import Any, Final

from redrive.core.view import view
from redrive.core.workflow import WorkflowStatus
from redrive.doors.rest.answers import answer, cut, items_of, list_of, shape, some_of
from redrive.doors.rest.inputs import LimitQuery, Saying, Words
from redrive.doors.rest.route import ApiRequest, Routes
from redrive.doors.web.problems import RequestRefused, problem
from redrive.errors import StoreUnavailable
from redrive.fleet.status import FleetStatus
from redrive.flows.schedules import Scheduled
from redrive.reports.health import Health
from redrive.reports.queue_numbers import QueueNumbers, QueueView
from redrive.reports.workforce import TaskView, WorkerView
from redrive.retries.breaker import Breaker

routes: Final = Routes()
Stats: Any = answer(
    "Stats",
    "Depths by queue and in total, and what happened in this process.",
    queues=list_of(shape(QueueNumbers)),
    totals=dict[str, int],
    accepted=int,
    runtime=dict[str, dict[str, int]],
    subscriber_failures=int,
)


@routes.get("/v1/health", shape(Health))
async def health(request: ApiRequest) -> Any:
    """Tells how everything stands, and what needs a person."""
    state = await request.rd.health()
    if state.status == "broken":
        raise StoreUnavailable(state.needs[0].what)  # 503, as on every other route
    return view(state)


@routes.get("/v1/stats", Stats)
async def stats(request: ApiRequest) -> Any:
    """Gives depths, totals, and what happened in this process."""
    return await request.rd.stats()


# -- queues, workers, tasks

Switched: Any = answer("Switched", "A queue's switch as it stands now.", queue=str, paused=bool)


class Pausing(Saying):
    """Who pauses a queue and why. `new`: also a queue in which there never was a job."""

    new: bool = False


@routes.get("/v1/queues", items_of(QueueView))
async def list_queues(request: ApiRequest) -> Any:
    """Lists the queues: their jobs, how long they wait and run, how often they fail."""
    return {"items": view(await request.rd.queues.list())}


@routes.get("/v1/workers", items_of(WorkerView))
async def list_workers(request: ApiRequest) -> Any:
    """Lists the living workers: since when, what they run, what blocks them."""
    return {"items": view(await request.rd.workers())}


@routes.get("/v1/tasks", items_of(TaskView))
async def list_tasks(request: ApiRequest) -> Any:
    """Lists the tasks: their jobs, how long they wait and run, how often they fail."""
    return {"items": view(await request.rd.tasks())}


@routes.post("/v1/queues/{name:path}/pause", Switched, Pausing)
async def pause(request: ApiRequest) -> Any:
    """Pauses a queue: workers take nothing from it until it is resumed."""
    await request.rd.queues.pause(request.path["name"], **request.fields)
    return {"queue": request.path["name"], "paused": True}


@routes.post("/v1/queues/{name:path}/resume", Switched, Saying)
async def resume(request: ApiRequest) -> Any:
    """Resumes a queue."""
    await request.rd.queues.resume(request.path["name"], **request.fields)
    return {"queue": request.path["name"], "paused": False}


# -- the fleet, breakers, schedules


@routes.get("/v1/fleet", FleetStatus)
async def fleet(request: ApiRequest) -> Any:
    """Tells where the jobs are kept: hosts, how far each is behind, and how durable a write is."""
    return await request.rd.fleet.view()


@routes.get("/v1/breakers", items_of(Breaker))
async def list_breakers(request: ApiRequest) -> Any:
    """Lists the open breakers: what is down."""
    return {"items": view(await request.rd.breakers(), secrets=True)}


@routes.post("/v1/breakers/{key:path}/close", answer("Closed", None, key=str, closed=bool), Saying)
async def close_breaker(request: ApiRequest) -> Any:
    """Closes a breaker, for a person who knows that what is behind it answers again."""
    key = request.path["key"]
    if not await request.rd.close_breaker(key):
        raise RequestRefused(problem("not-found", f"there is no open breaker {key[:200]!r}; see GET /v1/breakers"))
    return {"key": key, "closed": True}


@routes.get("/v1/schedules", items_of(Scheduled))
async def list_schedules(request: ApiRequest) -> Any:
    """Lists the schedules: the line, the last and the next slot of each."""
    return {"items": view(await request.rd.schedules(), secrets=True)}


# -- workflows


class WorkflowQuery(LimitQuery):
    name: Words | None = None


@routes.get("/v1/workflows", some_of(WorkflowStatus), WorkflowQuery)
async def list_workflows(request: ApiRequest) -> Any:
    """Lists the latest workflows."""
    limit = request.query.limit
    return cut(await request.rd.workflows.list(limit=limit + 1, name=request.query.name), limit, secrets=True)


@routes.get("/v1/workflows/{id}", shape(WorkflowStatus))
async def show_workflow(request: ApiRequest) -> Any:
    """Shows one workflow, step by step."""
    handle = await request.rd.workflows.get(request.id)
    return view(await handle.status(), secrets=True)


@routes.post("/v1/workflows/{id}/cancel", shape(WorkflowStatus), Saying, errors=(409,))
async def cancel_workflow(request: ApiRequest) -> Any:
    """Cancels a workflow; steps that are done stay done."""
    handle = await request.rd.workflows.get(request.id)
    return view(await handle.cancel(request.body.why, who=request.body.who), secrets=True)
