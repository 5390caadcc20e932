"""The effects of `ctx.once` as the store keeps them: a document each, under the job's id and the effect's name."""

from __future__ import annotations

from typing import Final

import msgspec

from redrive.core.effects import EffectRecord
from redrive.core.store import Put, Store

KIND: Final = "effect"
_decode = msgspec.json.Decoder(EffectRecord).decode


async def effects_of(store: Store, job_id: str | None = None) -> list[EffectRecord]:
    """Of one job, or of all."""
    return [_decode(document.value) for document in await store.docs(KIND, "" if job_id is None else f"{job_id}/")]


def kept(job_id: str, effect: EffectRecord) -> Put:
    return Put(KIND, f"{job_id}/{effect.name}", msgspec.json.encode(effect))


def forgotten(job_id: str, name: str) -> Put:
    """As if it had never been begun: the next run does it."""
    return Put(KIND, f"{job_id}/{name}", None)
