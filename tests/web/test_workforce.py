"""Workers and tasks over REST, made of the domain structs by declaration."""

from typing import Any

import msgspec

import redrive
from redrive.core.job import At
from redrive.core.view import view
from redrive.doors.rest.answers import shape
from tests.chaos.processes import until
from tests.support import soon
from tests.web.serving import Served, serving


class Inner(msgspec.Struct, frozen=True):
    """A part."""

    at: At | None
    said: str


class Outer(msgspec.Struct, frozen=True):
    """A whole."""

    since: At
    parts: tuple[Inner, ...]
    names: frozenset[str] | None
    numbers: dict[str, float]


SECRET = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz012345"
VALUE = Outer(0.0, (Inner(1.5, "x"), Inner(None, f"key {SECRET}")), None, {"a": 1.5})


def test_a_view_writes_instants_and_masks_texts_and_keeps_numbers() -> None:
    shown = view(VALUE)
    assert shown["since"] == "1970-01-01T00:00:00.000Z" and shown["parts"][0] == {
        "at": "1970-01-01T00:00:01.500Z",
        "said": "x",
    }
    assert shown["parts"][1]["at"] is None and "AbCdEf" not in shown["parts"][1]["said"]
    assert shown["names"] is None and shown["numbers"] == {"a": 1.5}


def test_the_shape_fits_what_is_shown_and_nothing_else() -> None:
    msgspec.convert(view(VALUE), shape(Outer))
    schema = msgspec.json.schema(shape(Outer))["$defs"]
    assert set(schema) == {"Outer", "Inner"}
    assert schema["Outer"]["properties"]["since"]["format"] == "date-time"


async def workers(served: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await served.client.get("/v1/workers")).json()["items"]
    return found


async def test_workers_and_tasks_are_listed(rd: redrive.Redrive) -> None:
    @rd.task
    async def wave() -> str:
        return "hello"

    await wave.enqueue()
    async with rd.worker(concurrency=2), serving(rd, worker=False) as served:
        await until("the worker has written that it lives", lambda: workers(served))
        (worker,) = await workers(served)
        tasks = {task["name"]: task for task in (await soon(served.client.get("/v1/tasks"))).json()["items"]}
    assert worker["concurrency"] == 2 and "wave" in worker["tasks"]
    assert tasks["wave"]["workers"] == 1
