"""Makes the arguments of an attempt from payload and changes, and checks them before a token is spent."""

from __future__ import annotations

import logging
import os
from typing import Any

import msgspec

from redrive.core.change import EffectiveInput, decode, own_names
from redrive.core.documents import BLOB
from redrive.core.job import Job
from redrive.core.payload import Blob, blob_from
from redrive.core.store import Store
from redrive.engine.attempt_state import AttemptState
from redrive.engine.clock import Clock
from redrive.engine.registry import Handler, Registry
from redrive.engine.trusted_time import time_for_destroying
from redrive.errors import InvalidPayload
from redrive.http.policy import HTTP_TASK
from redrive.retries.changes import apply
from redrive.retries.preflight import Conditions, NotReady, credentials, fits, still_wanted, surely_fits

log = logging.getLogger("redrive.attempt")
ENV = "env:"


class Rejected(Exception):
    """The refusal of a preflight check; the task is not called."""

    def __init__(self, verdict: NotReady) -> None:
        super().__init__(verdict.why)
        self.verdict = verdict


class Inputs:
    """Prepares the input of attempts."""

    def __init__(self, store: Store, registry: Registry, clock: Clock) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock

    async def prepare(self, state: AttemptState) -> dict[str, Any]:
        """Makes the arguments from the effective input; raises Rejected where the attempt cannot succeed."""
        job, handler = state.job, state.handler
        text = job.payload or "{}"
        if job.changes_json is not None:
            text = self._apply_changes(state)
        await self._preflight(job, handler, text)
        blobs = await self._blobs(job) if '"$blob"' in text else None
        try:
            return handler.signature.arguments(text, blobs)
        except InvalidPayload as error:
            error.error_kind = "invalid_input"
            raise

    def _apply_changes(self, state: AttemptState) -> str:
        """Apply the job's changes that fit the task; the others are logged and not recorded as applied."""
        job = state.job
        applied = make_effective_input(job, state.handler, self._registry)
        for change, why in applied.refused:
            log.warning("job %s (%s) runs without %r: %s", job.short_id, job.task, change, why)
        state.taken = applied.taken
        return msgspec.json.encode(applied.payload).decode()

    async def _preflight(self, job: Job, handler: Handler, text: str) -> None:
        verdict = credentials(find_missing_credentials(job, handler))
        if job.first_failed_at is not None and verdict is None:
            policy = self._registry.policy_for(job)
            if policy.max_age is not None:
                verdict = still_wanted(job, policy, await time_for_destroying(self._store, self._clock))
        if verdict is None and not surely_fits(text, self._registry.short):
            conditions = _conditions(handler, self._registry)
            answer = fits(msgspec.json.decode(text), job.model, conditions)
            if isinstance(answer, NotReady):
                verdict = answer
            elif answer is not None:
                log.warning("job %s (%s): %s", job.short_id, job.task, "; ".join(answer.warnings))
        if verdict is not None:
            raise Rejected(verdict)

    async def _blobs(self, job: Job) -> dict[int, Blob]:
        kept = await BLOB.all(self._store, f"{job.id}/")
        return {int(key.rpartition("/")[2]): blob_from(value) for key, value, _ in kept}


def make_effective_input(job: Job, handler: Handler | None, registry: Registry) -> EffectiveInput:
    """Applies the changes of a job to its payload."""
    names = own_names(job)
    adapt = handler.adapt if handler else None
    return apply(job.arguments, decode(job.changes_json), adapt, registry.count, names=names)


def _conditions(handler: Handler | None, registry: Registry) -> Conditions:
    if handler is None:
        return Conditions(registry.fleet, None, registry.count)
    return Conditions(registry.fleet, handler.adapt, registry.count, handler.default_model)


def find_missing_credentials(job: Job, handler: Handler | None) -> tuple[str, ...]:
    """Lists the credentials that a job needs and this process does not have."""
    wanted = list(handler.credentials) if handler is not None else []
    if job.task == HTTP_TASK and isinstance(auth := job.arguments.get("auth"), str):
        wanted.append(auth)
    names = [name.removeprefix(ENV) for name in wanted]
    return tuple(name for name in names if not os.environ.get(name))


def preflight(job: Job, handler: Handler | None, registry: Registry, now: float) -> NotReady | tuple[str, ...]:
    """Checks a job that is accepted or redriven; returns a refusal or warnings.

    Credentials are left out, because this process may not be the one that will run the job.
    """
    if (too_old := still_wanted(job, registry.policy_for(job), now)) is not None:
        return too_old
    if job.changes_json is None and surely_fits(job.payload or "", registry.short):
        return ()
    verdict = fits(make_effective_input(job, handler, registry).payload, job.model, _conditions(handler, registry))
    return verdict if isinstance(verdict, NotReady) else verdict.warnings if verdict is not None else ()
