"""Redrives: many dead letters back to their queues, as one durable object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from redrive.core.view import view
from redrive.deadletters.bulk.choice import Plan
from redrive.deadletters.bulk.run import PASS_RATE, ItemPage, RedriveRun
from redrive.deadletters.triage import PatchPreview
from redrive.doors.rest import schemas
from redrive.doors.rest.letters import Patch, chosen
from redrive.doors.rest.shapes import many, shape
from redrive.doors.rest.showing import cut
from redrive.doors.rest.table import WHO, Asked, Reply, Route
from redrive.doors.web.problems import Refused, missing, problem
from redrive.errors import InvalidInput


class NewRedrive(schemas.Chosen, kw_only=True):
    """Which dead letters, how carefully, and how fast. `dry_run` only says what would happen."""

    dry_run: bool = False
    canary: Annotated[int, Meta(ge=0, le=10_000, description="So many go first and are judged.")] = 0
    pass_rate: Annotated[float, Meta(gt=0, le=1, description="How much of the canary must succeed.")] = PASS_RATE
    rate: Annotated[float, Meta(gt=0, le=1e6, description="Moves a second, at most.")] | None = None
    token: Annotated[str, Meta(min_length=1, max_length=200, description="Of the dry run: exactly these.")] | None = (
        None
    )
    who: schemas.Name = WHO
    why: schemas.Text | None = None


class NewEdit(NewRedrive, kw_only=True):
    """Which dead letters, the same patch for each, how carefully, and how fast. `dry_run` only says what it means."""

    patch: Patch


class Resuming(schemas.Saying):
    """After a canary that failed another goes first; 0 goes on without."""

    canary: Annotated[int, Meta(ge=0, le=10_000)] | None = None


class RedriveQuery(schemas.Taken):
    limit: schemas.Limit = 100


class ItemQuery(schemas.Taken):
    cursor: Annotated[str, Meta(pattern="^[0-9]{1,6}$", description="What the page before gave.")] | None = None


@contextmanager
def _steering() -> Iterator[None]:
    """What a redrive is not in a state for, or another one is in the way of."""
    try:
        yield
    except InvalidInput as error:
        if error.field != "redrive":
            raise
        raise Refused(problem("illegal-move", str(error), field=error.field)) from None


async def _found(asked: Asked) -> str:
    with missing("redrive"):
        return (await asked.rd.redrives.get(asked.path["id"])).id


async def start(asked: Asked) -> Any:
    """201 with the redrive; 200 with the plan, where only that was asked for."""
    said: NewRedrive = asked.body
    ids, every, filters = await chosen(asked)
    if said.dry_run:
        return Reply(view(await asked.rd.redrives.plan(ids, all=every, **filters)), 200)
    how: dict[str, Any] = {name: getattr(said, name) for name in HOW}
    with _steering():
        run = await asked.rd.redrives.start(ids, all=every, **how, **filters)
    return Reply(view(run), 201, {"location": f"/v1/redrives/{run.id}"})


async def edit_many(asked: Asked) -> Any:
    """201 with the run; 200 with what it would mean, where only that was asked for."""
    said: NewEdit = asked.body
    ids, every, filters = await chosen(asked)
    which: dict[str, Any] = {"ids": ids, "all": every, "where": filters}
    if said.dry_run:
        return Reply(view(await asked.rd.dead.preview_edit_many(said.patch, **which)), 200)
    how: dict[str, Any] = {name: getattr(said, name) for name in HOW}
    with _steering():
        run = await asked.rd.dead.edit_many(said.patch, **which, **how)
    return Reply(view(run), 201, {"location": f"/v1/redrives/{run.id}"})


async def list_redrives(asked: Asked) -> Any:
    limit = asked.query.limit
    return cut(await asked.rd.redrives.list(limit=limit + 1), limit)


async def show(asked: Asked) -> Any:
    return view(await asked.rd.redrives.get(await _found(asked)))


async def items(asked: Asked) -> Any:
    return view(await asked.rd.redrives.items(await _found(asked), asked.query.cursor))


def _steers(verb: Literal["pause", "resume", "cancel"]) -> Any:
    async def steer(asked: Asked) -> Any:
        id, said = await _found(asked), msgspec.structs.asdict(asked.body)
        with _steering():
            return view(await getattr(asked.rd.redrives, verb)(id, **said))

    return steer


HOW: Final = ("canary", "pass_rate", "rate", "token", "who", "why")
ONE: Final = "/v1/redrives/{id}"
OUT: Final = shape(RedriveRun)
ROUTES: Final = (
    Route("POST", "/v1/redrives", start, "Bring many dead letters back: dry run, canary, rate, scorecard.", OUT,
          body=NewRedrive, status=201, also={200: shape(Plan)}, errors=(404, 409)),
    Route("POST", "/v1/dead-letters/edit", edit_many,
          "Edit many dead letters in the same way and bring them back: dry run, canary, rate, scorecard.", OUT,
          body=NewEdit, status=201, also={200: shape(PatchPreview)}, errors=(404, 409)),
    Route("GET", "/v1/redrives", list_redrives, "Redrives, the latest first.", many(RedriveRun), RedriveQuery),
    Route("GET", ONE, show, "One redrive: how far it is, and its scorecard.", OUT),
    Route("GET", f"{ONE}/items", items, "What became of each dead letter.", shape(ItemPage), ItemQuery),
    Route("POST", f"{ONE}/pause", _steers("pause"), "Nothing more moves until it is resumed.", OUT,
          body=schemas.Saying, errors=(409,)),
    Route("POST", f"{ONE}/resume", _steers("resume"), "On where it stopped.", OUT, body=Resuming, errors=(409,)),
    Route("POST", f"{ONE}/cancel", _steers("cancel"), "For good; what was moved stays moved.", OUT,
          body=schemas.Saying, errors=(409,)),
)  # fmt: skip
