"""Verifies whether the effects of an earlier attempt landed. Every path that may replay uses one function."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from redrive.core.documents import ABSENT, WITNESS
from redrive.core.effects import Effect, Verdict, combine_verdicts, read_verdict, witness_path
from redrive.core.job import Job, Json
from redrive.core.payload import encode_result, repr_of
from redrive.core.redact import redact, redact_text
from redrive.core.store import Put, Store
from redrive.engine.attempt_state import Look
from redrive.engine.inputs import make_effective_input
from redrive.engine.registry import Handler, Registry
from redrive.engine.threads import ask_within
from redrive.errors import StoreError

log = logging.getLogger("redrive.effects")
LOOK_SECONDS: Final = 60.0
"""Longest time for a verifier or another function that belongs to a task, unless the task has its own timeout."""
WITNESS_LIMIT: Final = 64 * 1024
SHOWN_WITNESS: Final = 2_000
"""Characters of a witness that an attempt keeps and shows; the whole is kept beside the job, for the verifiers."""


class Verifier:
    """Verifies the effects of a task's manifest; for a task that replays an operation, of that one's manifest."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry

    async def look(self, job: Job, handler: Handler, witness: Json = None) -> Look:
        """Verifies every effect with the given witness, else with the stored one. If the store fails: indeterminate."""
        try:
            inner, manifest = await self._inner(job, handler)
            witness = await self.witness(inner) if witness is None else witness
        except StoreError as error:
            log.warning("job %s (%s): its effects cannot be looked for: %s", job.short_id, job.task, error)
            return Look("indeterminate", dict.fromkeys((effect.name for effect in handler.effects), "indeterminate"))
        payload = make_effective_input(inner, manifest, self._registry).payload
        limit = manifest.timeout or LOOK_SECONDS
        verdicts = {
            effect.name: await _verify_effect(effect, payload, witness, inner, limit) for effect in manifest.effects
        }
        removing = frozenset(effect.name for effect in manifest.effects if effect.mode == "absent")
        return Look(combine_verdicts(list(verdicts.values())), verdicts, removing, _shorten_witness(witness))

    async def _inner(self, job: Job, handler: Handler) -> tuple[Job, Handler]:
        """Returns the operation whose effects count: the wrapped one, or the job itself where that cannot be loaded."""
        wrapped = job.arguments.get(handler.wraps) if handler.wraps else None
        jobs = await self._store.get([str(wrapped)]) if wrapped else []
        inner = self._registry.handlers.get(jobs[0].task) if jobs else None
        return (jobs[0], inner) if jobs and inner is not None and inner.effects else (job, handler)

    async def witness(self, job: Job) -> Json:
        """Returns the stored witness of the last uncertain attempt."""
        kept = await WITNESS.get(self._store, f"{job.id}/")
        return msgspec.json.decode(kept.value) if kept is not None else None

    async def absent_until(self, job: Job) -> int:
        """Returns the last run of which a person said that nothing landed."""
        kept = await ABSENT.get(self._store, f"{job.id}/")
        return kept.value if kept is not None else 0


def _shorten_witness(witness: object) -> Json:
    """Shortens a witness for the attempt's record: a short one is kept whole, else only its path where it has one."""
    text, problem = encode_result(witness)
    if problem is None and text is not None and len(text) <= SHOWN_WITNESS:
        return redact(msgspec.json.decode(text))
    path = witness_path(witness)
    return {"path": redact_text(path)} if path is not None else None


def put_witness(job: Job, witness: object) -> Put:
    """Makes the put of the witness of the latest uncertain attempt; an older witness no longer counts."""
    text, problem = encode_result(witness)
    if problem or text is None or len(text) > WITNESS_LIMIT:
        log.warning("job %s (%s): its witness cannot be kept: %s", job.short_id, job.task, problem or "too long")
        text = msgspec.json.encode(repr_of(witness)[:1000]).decode()
    return WITNESS.put(f"{job.id}/", text.encode())


def put_nothing_landed(job: Job) -> list[Put]:
    """Makes the puts which say that no attempt so far left anything outside, so that none is verified any more."""
    return [WITNESS.drop(f"{job.id}/"), ABSENT.put(f"{job.id}/", job.run)]


async def _verify_effect(effect: Effect, payload: dict[str, Any], witness: Json, job: Job, limit: float) -> Verdict:
    try:
        return read_verdict(await ask_within(limit, effect.verify, dict(payload), witness), effect.mode)
    except Exception as error:  # noqa: BLE001 - a verifier that fails answers "indeterminate"
        log.warning("job %s (%s): effect %s cannot be verified: %r", job.short_id, job.task, effect.name, error)
        return "indeterminate"
