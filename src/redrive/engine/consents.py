"""Looks up the grants of a session before a job runs; a job without a grant is held, and people are asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

import msgspec

from redrive.core import lifecycle
from redrive.core.commit import commit_in_parts
from redrive.core.consent import NO_SESSION, Grant, Wish, find_grant, wish_of
from redrive.core.documents import GRANT
from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition
from redrive.core.store import Filter, Store
from redrive.engine.clock import Clock
from redrive.engine.paging import read_pages
from redrive.engine.registry import Handler, Registry

HELD_FOR: Final = "consent:"
PAGE: Final = 500


def make_consent_hold(session: str) -> str:
    """Makes the `held_for` of a job that needs a session's consent."""
    return f"{HELD_FOR}{session}"


def quote_session(session: str) -> str:
    """Quotes a session as the first part of a document's key, so that no session's keys begin with those of another."""
    return quote(session, safe="")


def make_grant_key(grant: Grant) -> str:
    return f"{quote_session(grant.session_id)}/{grant.id}"


class Consents:
    """Reads the grants of sessions."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def of(self, session_id: str) -> list[Grant]:
        grants = await GRANT.all(self._store, f"{quote_session(session_id)}/")
        return [kept.value for kept in grants if kept.value.session_id == session_id]

    async def forget(self, session_id: str) -> None:
        """Drops all grants of an erased session."""
        puts = [GRANT.drop(make_grant_key(grant)) for grant in await self.of(session_id)]
        await commit_in_parts(self._store, puts, what="the session's grants were erased")

    async def gate(self, job: Job, handler: Handler) -> Transition | None:
        """Holds a job unless the session that asked for the job has granted the job as it now is."""
        if not handler.consent or await self.covers(job, handler):
            return None
        session, now, id = job.session_id or NO_SESSION, self._clock.now(), job.short_id
        whose = f"session {job.session_id}" if job.session_id else "anybody"
        return lifecycle.held_back(
            job,
            now,
            because="consent",
            why=f"{job.task} needs the consent of {whose}: nothing that was granted covers it as it is now.",
            recommendation=f"redrive approve {id} lets exactly this run; redrive reject {id} ends it.",
            held_for=make_consent_hold(session),
        )

    async def covers(self, job: Job, handler: Handler) -> bool:
        """Tells whether a grant of the job's session covers the job as it is now."""
        grants = await self.of(job.session_id or NO_SESSION)
        return find_grant(grants, _wish(job, handler), self._clock.now()) is not None

    async def overlooked(self, registry: Registry) -> AsyncIterator[Job]:
        """Finds jobs held for a consent that exists, granted during the hold or by a process that died right after."""
        held = Filter(states=(State.held,), because="consent")
        for (whose,) in await self._store.count(held, by=("held_for",)):
            grants = await self.of((whose or "").removeprefix(HELD_FOR))
            if not grants:
                continue
            async for page in read_pages(self._store, msgspec.structs.replace(held, held_for=whose), PAGE, oldest=True):
                for job in await self._store.get([job.id for job in page]):
                    if find_grant(grants, _wish(job, registry.handlers.get(job.task)), self._clock.now()) is not None:
                        yield job


def _wish(job: Job, handler: Handler | None) -> Wish:
    label = handler.consent if handler is not None else None
    return wish_of(job, label if isinstance(label, str) else None)
