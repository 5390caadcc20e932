"""Redrives: many dead letters back to their queues, as one durable run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta

from redrive.core.view import view
from redrive.deadletters.bulk_run import PASS_RATE, ItemPage, Plan, RedriveRun
from redrive.deadletters.input_edits import PatchPreview
from redrive.doors.rest.answers import cut, shape, some_of
from redrive.doors.rest.dead_letters import Patch, read_selection
from redrive.doors.rest.inputs import WHO, JobSelection, LimitQuery, Name, RequestFields, Saying, Text
from redrive.doors.rest.route import ApiRequest, Reply, Routes
from redrive.doors.web.problems import RequestRefused, missing, problem
from redrive.errors import InvalidInput

routes: Final = Routes()
ONE: Final = "/v1/redrives/{id}"
OUT: Final = shape(RedriveRun)
HOW: Final = ("canary", "pass_rate", "rate", "token", "who", "why")
DryRunToken = Annotated[str, Meta(min_length=1, max_length=200, description="Of the dry run: exactly these.")]


class NewRedrive(JobSelection, kw_only=True):
    """Which dead letters, how carefully, and how fast. With `dry_run` nothing moves and the plan is returned."""

    dry_run: bool = False
    canary: Annotated[int, Meta(ge=0, le=10_000, description="So many go first and are judged.")] = 0
    pass_rate: Annotated[float, Meta(gt=0, le=1, description="How much of the canary must succeed.")] = PASS_RATE
    rate: Annotated[float, Meta(gt=0, le=1e6, description="Moves a second, at most.")] | None = None
    token: DryRunToken | None = None
    who: Name = WHO
    why: Text | None = None


class NewEdit(NewRedrive, kw_only=True):
    """Which dead letters, their patch, how carefully, and how fast. With `dry_run` nothing moves."""

    patch: Patch


class Resuming(Saying):
    """After a canary that failed another goes first; 0 goes on without."""

    canary: Annotated[int, Meta(ge=0, le=10_000)] | None = None


class ItemQuery(RequestFields):
    cursor: Annotated[str, Meta(pattern="^[0-9]{1,6}$", description="The `cursor` of the page before.")] | None = None


@routes.post("/v1/redrives", OUT, NewRedrive, status=201, also={200: shape(Plan)}, errors=(404, 409))
async def start(request: ApiRequest) -> Any:
    """Brings many dead letters back: dry run (200 with the plan), canary, rate, scorecard."""
    ids, every, filters = await read_selection(request)
    redrives = request.rd.redrives
    plan, run = (partial(does, ids, all=every, **filters) for does in (redrives.plan, redrives.start))
    return await _plan_or_start(request.body, plan, run)


@routes.post("/v1/dead-letters/edit", OUT, NewEdit, status=201, also={200: shape(PatchPreview)}, errors=(404, 409))
async def edit_many(request: ApiRequest) -> Any:
    """Edits many dead letters in the same way and brings them back: dry run (200), canary, rate, scorecard."""
    ids, every, filters = await read_selection(request)
    which: dict[str, Any] = {"ids": ids, "all": every, "where": filters}
    dead = request.rd.dead
    plan, run = (partial(does, request.body.patch, **which) for does in (dead.preview_edit_many, dead.edit_many))
    return await _plan_or_start(request.body, plan, run)


async def _plan_or_start(new: NewRedrive, plan: Callable[..., Any], start: Callable[..., Any]) -> Reply:
    if new.dry_run:
        return Reply(view(await plan()), 200)
    with _refusing_conflicts():
        run = await start(**{name: getattr(new, name) for name in HOW})
    return Reply(view(run), 201, {"location": f"/v1/redrives/{run.id}"})


@routes.get("/v1/redrives", some_of(RedriveRun), LimitQuery)
async def list_redrives(request: ApiRequest) -> Any:
    """Lists redrives, the latest first."""
    limit = request.query.limit
    return cut(await request.rd.redrives.list(limit=limit + 1), limit)


@routes.get(ONE, OUT)
async def show(request: ApiRequest) -> Any:
    """Shows one redrive: how far it is, and its scorecard."""
    return view(await _find(request))


@routes.get(f"{ONE}/items", shape(ItemPage), ItemQuery)
async def list_items(request: ApiRequest) -> Any:
    """Lists what became of each dead letter of a redrive."""
    return view(await request.rd.redrives.items((await _find(request)).id, request.query.cursor))


STEPS: Final = {
    "pause": {"does": "Pauses a redrive: nothing more moves until it is resumed.", "body": Saying},
    "resume": {"does": "Resumes a redrive where it stopped.", "body": Resuming},
    "cancel": {"does": "Cancels a redrive for good; dead letters that were moved stay moved.", "body": Saying},
}


@routes.add_each("POST", ONE, STEPS, answer=OUT, errors=(409,))
async def steer(verb: str, request: ApiRequest) -> Any:
    """Pauses, resumes or cancels a redrive."""
    run = await _find(request)
    with _refusing_conflicts():
        return view(await getattr(request.rd.redrives, verb)(run.id, **request.fields))


async def _find(request: ApiRequest) -> RedriveRun:
    """Finds the redrive that the path names; 404 where there is none."""
    with missing("redrive"):
        return await request.rd.redrives.get(request.id)


@contextmanager
def _refusing_conflicts() -> Iterator[None]:
    """Makes a refusal that is about the state of a redrive, or about another one in the way, a 409."""
    try:
        yield
    except InvalidInput as error:
        if error.field != "redrive":
            raise
        raise RequestRefused(problem("illegal-move", str(error), field=error.field)) from None
