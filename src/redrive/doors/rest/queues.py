"""Queues and health: how things stand, and stopping or starting a queue."""

from __future__ import annotations

from typing import Any, Final

from redrive.core.view import view
from redrive.doors.rest import schemas
from redrive.doors.rest.shapes import listed, shape
from redrive.doors.rest.table import Asked, Route
from redrive.errors import StoreUnavailable
from redrive.reports.health import Health
from redrive.reports.queue_numbers import QueueNumbers, QueueView
from redrive.reports.workforce import TaskView, WorkerView


class Stats(schemas.Given):
    """Depths by queue and in total, and what happened in this process."""

    queues: list[shape(QueueNumbers)]  # type: ignore[valid-type]
    totals: dict[str, int]
    accepted: int
    runtime: dict[str, dict[str, int]]
    subscriber_failures: int


async def health(asked: Asked) -> Any:
    """A store that cannot be used is a 503, as everywhere."""
    found = await asked.rd.health()
    if found.status == "broken":
        raise StoreUnavailable(found.needs[0].what)
    return view(found)


async def stats(asked: Asked) -> Any:
    return await asked.rd.stats()


async def list_queues(asked: Asked) -> Any:
    return {"items": view(await asked.rd.queues.list())}


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
    Route("GET", "/v1/health", health, "How everything stands, and what needs a person.", shape(Health)),
    Route("GET", "/v1/stats", stats, "Depths, totals, and what happened in this process.", Stats),
    Route(
        "GET", "/v1/queues", list_queues, "Queues: their jobs, how long they wait and run, how often they fail.",
        listed(QueueView),
    ),
    Route(
        "GET", "/v1/workers", list_workers, "Living workers: since when, what they run, what blocks them.",
        listed(WorkerView),
    ),
    Route(
        "GET", "/v1/tasks", list_tasks, "Tasks: their jobs, how long they wait and run, how often they fail.",
        listed(TaskView),
    ),
    Route(
        "POST", "/v1/queues/{name:path}/pause", pause, "Take nothing from a queue until it is resumed.",
        schemas.Switched, body=Pausing,
    ),
    Route(
        "POST", "/v1/queues/{name:path}/resume", resume, "Go on with a queue.", schemas.Switched, body=schemas.Saying
    ),
)  # fmt: skip
