"""Queues and health: how things stand, and stopping or starting a queue."""

from __future__ import annotations

from typing import Any, Final

from redrive.doors.rest import schemas
from redrive.doors.rest.shapes import shape
from redrive.doors.rest.showing import masked
from redrive.doors.rest.table import Asked, Route
from redrive.errors import StoreUnavailable
from redrive.insight.view import view
from redrive.insight.workforce import TaskView, WorkerView


async def health(asked: Asked) -> Any:
    """A store that cannot be used is a 503, as everywhere."""
    found = await asked.rd.health()
    if found.status == "broken":
        raise StoreUnavailable(found.needs[0].what)
    return masked(found.public())


async def stats(asked: Asked) -> Any:
    return await asked.rd.stats()


async def list_queues(asked: Asked) -> Any:
    return {"items": [queue.public() for queue in await asked.rd.queues.list()]}


class Workers(schemas.Given):
    items: list[shape(WorkerView)]  # type: ignore[valid-type]


class Tasks(schemas.Given):
    items: list[shape(TaskView)]  # type: ignore[valid-type]


async def list_workers(asked: Asked) -> Any:
    return {"items": view(await asked.rd.workers())}


async def list_tasks(asked: Asked) -> Any:
    return {"items": view(await asked.rd.tasks())}


class Pausing(schemas.Saying):
    """Who pauses a queue and why. `new`: also one in which no job ever was."""

    new: bool = False


async def pause(asked: Asked) -> Any:
    name = asked.path["name"]
    await asked.rd.queues.pause(name, who=asked.body.who, why=asked.body.why, new=asked.body.new)
    return {"queue": name, "paused": True}


async def resume(asked: Asked) -> Any:
    name = asked.path["name"]
    await asked.rd.queues.resume(name, who=asked.body.who, why=asked.body.why)
    return {"queue": name, "paused": False}


ROUTES: Final = (
    Route("GET", "/v1/health", health, "How everything stands, and what needs a person.", schemas.HealthOut),
    Route("GET", "/v1/stats", stats, "Depths, totals, and what happened in this process.", schemas.Stats),
    Route(
        "GET", "/v1/queues", list_queues, "Queues: their jobs, how long they wait and run, how often they fail.",
        schemas.Queues,
    ),
    Route("GET", "/v1/workers", list_workers, "Living workers: since when, what they run, what blocks them.", Workers),
    Route("GET", "/v1/tasks", list_tasks, "Tasks: their jobs, how long they wait and run, how often they fail.", Tasks),
    Route(
        "POST", "/v1/queues/{name:path}/pause", pause, "Take nothing from a queue until it is resumed.",
        schemas.Switched, body=Pausing,
    ),
    Route(
        "POST", "/v1/queues/{name:path}/resume", resume, "Go on with a queue.", schemas.Switched, body=schemas.Saying
    ),
)  # fmt: skip
