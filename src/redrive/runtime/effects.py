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
    return [_decode(document.value) for document in await store.docs(KIND, "" if job_id is None else _key(job_id))]


async def effect_of(store: Store, job_id: str, name: str) -> EffectRecord | None:
    """What is known of this one; None where it was never begun."""
    document = await store.doc(KIND, _key(job_id, name))
    return _decode(document.value) if document is not None else None


def kept(job_id: str, effect: EffectRecord) -> Put:
    return Put(KIND, _key(job_id, effect.name), msgspec.json.encode(effect))


def forgotten(job_id: str, name: str) -> Put:
    """As if it had never been begun: the next run does it."""
    return Put(KIND, _key(job_id, name), None)


def _key(job_id: str, name: str = "") -> str:
    """Without a name, what those of all its effects begin with."""
    return f"{job_id}/{name}"
