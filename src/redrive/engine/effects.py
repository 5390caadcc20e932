"""The effects of `ctx.once` as the store keeps them: a document each, under the job's id and the effect's name."""

from __future__ import annotations

from redrive.core.documents import EFFECT
from redrive.core.effects import EffectRecord, Status, proves_absent
from redrive.core.store import Put, Store
from redrive.failures.capture import capture
from redrive.failures.redirects import behind_a_redirect


async def effects_of(store: Store, job_id: str | None = None) -> list[EffectRecord]:
    """Of one job, or of all."""
    return [kept.value for kept in await EFFECT.all(store, "" if job_id is None else _key(job_id))]


async def effect_of(store: Store, job_id: str, name: str) -> EffectRecord | None:
    """What is known of this one; None where it was never begun."""
    known = await EFFECT.get(store, _key(job_id, name))
    return known.value if known is not None else None


def kept(job_id: str, effect: EffectRecord) -> Put:
    return EFFECT.put(_key(job_id, effect.name), effect)


def forgotten(job_id: str, name: str) -> Put:
    """As if it had never been begun: the next run does it."""
    return EFFECT.drop(_key(job_id, name))


def _key(job_id: str, name: str = "") -> str:
    """Without a name, what those of all its effects begin with."""
    return f"{job_id}/{name}"


def judge(error: Exception) -> tuple[Status, str]:
    """Says whether an error out of an effect proves that nothing happened outside, and what it said."""
    failure = capture(error)
    absent = proves_absent(failure) and not behind_a_redirect(error)
    return "absent" if absent else "unknown", failure.summary[:500]
