"""Queues and health: how things stand, and stopping or starting a queue."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from redrive.doors.rest import schemas
from redrive.doors.rest.table import Asked, Route


async def health(asked: Asked) -> Any:
    return msgspec.structs.asdict(await asked.rd.health())


async def stats(asked: Asked) -> Any:
    return await asked.rd.stats()


async def list_queues(asked: Asked) -> Any:
    return {"items": [queue.public() for queue in await asked.rd.queues.list()]}


async def pause(asked: Asked) -> Any:
    name = asked.path["name"]
    await asked.rd.queues.pause(name, who=asked.body.who, why=asked.body.why)
    return {"queue": name, "paused": True}


async def resume(asked: Asked) -> Any:
    name = asked.path["name"]
    await asked.rd.queues.resume(name, who=asked.body.who, why=asked.body.why)
    return {"queue": name, "paused": False}


ROUTES: Final = (
    Route("GET", "/v1/health", health, "healthy or degraded, and why in words.", schemas.HealthOut),
    Route("GET", "/v1/stats", stats, "Depths, totals, and what happened in this process.", schemas.Stats),
    Route("GET", "/v1/queues", list_queues, "Every queue as it is now.", schemas.Queues),
    Route(
        "POST", "/v1/queues/{name:path}/pause", pause, "Take nothing from a queue until it is resumed.",
        schemas.Switched, body=schemas.Saying,
    ),
    Route(
        "POST", "/v1/queues/{name:path}/resume", resume, "Go on with a queue.", schemas.Switched, body=schemas.Saying
    ),
)  # fmt: skip
