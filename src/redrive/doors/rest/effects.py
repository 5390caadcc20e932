"""Effects without a job: what `redrive.once` has recorded, and what a person says about one."""

from __future__ import annotations

from typing import Any, Final

from redrive.core.effects import EffectRecord
from redrive.core.view import view
from redrive.doors.rest import schemas
from redrive.doors.rest.shapes import many, shape
from redrive.doors.rest.showing import cut
from redrive.doors.rest.table import Asked, Route


async def list_effects(asked: Asked) -> Any:
    query: schemas.EffectQuery = asked.query
    found = await asked.rd.effects.list(status=query.status)
    return cut(found, query.limit, secrets=query.secrets)


async def resolve(asked: Asked) -> Any:
    said: schemas.ResolvingEffect = asked.body
    effect = await asked.rd.effects.resolve(
        asked.path["key"], landed=said.landed, result=said.result, who=said.who, why=said.why
    )
    return view(effect)


async def erase(asked: Asked) -> Any:
    return view(await asked.rd.effects.erase(asked.path["key"]))


async def show(asked: Asked) -> Any:
    return view(await asked.rd.effects.get(asked.path["key"]), secrets=asked.query.secrets)


OF: Final = "/v1/effects/{key:path}"
ONE: Final = shape(EffectRecord)
ROUTES: Final = (
    Route(
        "GET", "/v1/effects", list_effects, "Effects without a job, newest first.", many(EffectRecord),
        schemas.EffectQuery,
    ),
    Route(
        "POST", f"{OF}/resolve", resolve, "A person's word about an effect whose outcome is unknown.", ONE,
        body=schemas.ResolvingEffect, errors=(409,),
    ),
    Route(
        "POST", f"{OF}/erase", erase, "Forget the result of an effect, for privacy; its key stays.", ONE,
        body=schemas.Saying, role="purge",
    ),
    Route("GET", OF, show, "One effect without a job.", ONE, schemas.OneJob),
)  # fmt: skip
