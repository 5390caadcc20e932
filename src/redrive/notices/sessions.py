"""`rd.sessions`: who agreed to what, what it cost, and answering what jobs ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from redrive.core import lifecycle
from redrive.core.checks import check_id, check_name, check_words, optional_name
from redrive.core.commit import commit, commit_each
from redrive.core.consent import NO_AGENT, NO_SESSION, Approval, Grant, subject_of
from redrive.core.documents import GRANT
from redrive.core.job import Job, State, Usage, new_id
from redrive.core.lifecycle import Transition
from redrive.core.notice import OWNER, Notice
from redrive.core.store import Filter, Put
from redrive.engine.approvals import question_of, questions_of
from redrive.engine.consents import Consents, key_of, waits_for
from redrive.engine.paging import pages
from redrive.engine.trusted_time import time_for_destroying
from redrive.errors import IllegalMove, InvalidInput
from redrive.jobs.tasks import Seconds, read_seconds
from redrive.notices.service import InboxView

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.notices.service import Notices

ANSWERABLE = ("consent", "approval")
PAGE = 500


class Sessions:
    """What belongs to the session that asked for work."""

    def __init__(self, core: Core, notices: Notices) -> None:
        self._core = core
        self._notices = notices

    async def grants(self, session_id: str) -> list[Grant]:
        """Everything that was ever agreed to, also what expired or was revoked."""
        return await Consents(self._core.store, self._core.clock).of(check_id("session_id", session_id))

    async def grant(
        self,
        session_id: str,
        scope: str,
        *,
        by: str,
        agent: str | None = None,
        subject: str | None = None,
        expires: Seconds | None = None,
        blanket: bool = False,
        why: str | None = None,
    ) -> Grant:
        """Agree to a task, or to all tasks with a label. A blanket grant covers first runs only, never replays."""
        for field, value in (("session_id", session_id), ("scope", scope), ("by", by)):
            check_name(field, value)
        check_words(by, why)
        optional_name("agent", agent or None)
        optional_name("subject", subject)
        now = self._core.clock.now()
        until = now + read_seconds(expires, "expires") if expires is not None else None
        grant = Grant(
            _id(self._core), session_id, scope, now, by, agent, subject, None, until, blanket=blanket, why=why
        )
        await commit(self._core.store, puts=[_put(grant)], what=f"session {session_id} was granted {scope}")
        await self._ask_again(session_id, by)
        return grant

    async def _ask_again(self, session_id: str, who: str) -> None:
        """Jobs that were held for want of consent see whether they have it now."""
        held = Filter(states=(State.held,), because="consent", held_for=waits_for(session_id))
        async for jobs in pages(self._core.store, held, PAGE, oldest=True):
            now = self._core.clock.now()
            moves = [lifecycle.unblocked(job, now, who=who, why="consent was given") for job in jobs]
            await commit_each(self._core.store, moves)  # what is missed here, the scheduler sees

    async def revoke(self, session_id: str, grant_id: str) -> Grant:
        """It counts no more, from now on."""
        found = next((grant for grant in await self.grants(session_id) if grant.id == grant_id), None)
        if found is None:
            raise InvalidInput(field="grant_id", problem=f"session {session_id!r} has no grant {grant_id!r}")
        revoked = msgspec.structs.replace(found, revoked_at=self._core.clock.now())
        await commit(self._core.store, puts=[_put(revoked)], what=f"grant {grant_id} was revoked")
        return revoked

    async def costs(self, session_id: str) -> Usage:
        """What all attempts of the session's jobs have spent, whoever ran them and whenever."""
        total, session_id = Usage(), check_id("session_id", session_id)
        async for jobs in pages(self._core.store, Filter(session_id=session_id), PAGE):
            for job in await self._core.store.get([job.id for job in jobs]):
                for attempt in job.history:
                    total = total + attempt.usage if attempt.usage is not None else total
        return total

    # -- messages

    async def inbox(self, session_id: str, *, unread: bool = True, limit: int = 1000) -> list[Notice]:
        """What the session is told, oldest first: how its work ended, and what waits for an answer.

        Only what is `pending` asks for anything; `unread=False` shows the rest, too. Results are whole up to 100,000
        characters, and read from the job: once its queue's retention has dropped them, the message says so.
        """
        check_id("session_id", session_id)
        return await self._notices.inbox(session_id, unread=unread, limit=limit)

    async def unread(self, session_id: str) -> int:
        """Counts what the session was told and has not seen."""
        return await self._notices.unread(check_id("session_id", session_id))

    async def inboxes(self) -> list[InboxView]:
        """Every session that was told something, those that are asked something first."""
        return await self._notices.inboxes()

    async def named(self, name: str) -> str:
        """The inbox that a name means: a session of that name, else the owner of dead letters that is called so."""
        check_id("session_id", name)
        known = {view.session for view in await self.inboxes()}
        return f"{OWNER}{name}" if name not in known and f"{OWNER}{name}" in known else name

    async def acknowledge(self, session_id: str, notice_id: str) -> Notice:
        """The session has seen it. A part of the id is enough where it is unique; repeating it is safe."""
        check_id("session_id", session_id)
        return await self._notices.acknowledge(session_id, check_id("notice", notice_id))

    # -- answers

    async def approved(self, job: Job, who: str, why: str | None) -> list[Put]:
        """A yes to what the job waits for: a grant for exactly this, or an answer to its question."""
        check_asks(job)
        if job.because == "approval":
            return await self._answers(job, "approved", who, why)
        session, now = job.session_id or NO_SESSION, self._core.clock.now()
        agent, subject = job.agent or NO_AGENT, subject_of(job)
        return [_put(Grant(_id(self._core), session, job.task, now, who, agent, subject, job.id, why=why))]

    async def rejected(self, job: Job, who: str, why: str | None) -> list[Put]:
        check_asks(job)
        return await self._answers(job, "rejected", who, why) if job.because == "approval" else []

    async def _answers(self, job: Job, answer: str, who: str, why: str | None) -> list[Put]:
        """To the question that the job waits for, and no other."""
        if not job.held_for:
            return []  # a framework inside the task has asked, and keeps the answer itself
        asked, now = await question_of(self._core.store, job), self._core.clock.now()
        trusted_now = await time_for_destroying(self._core.store, self._core.clock)
        if asked is None or asked.approval.answer != "open" or asked.approval.expired(trusted_now):
            raise IllegalMove(f"the question of job {job.short_id} has expired: it goes on by itself", job_id=job.id)
        said = msgspec.structs.replace(asked.approval, answer=answer, by=who, answered_at=now, why=why)
        return [asked.answered(said)]

    async def questions(self, job: Job) -> Sequence[Approval]:
        """What a job has asked, with the answers."""
        return await questions_of(self._core.store, job.id)


def refused(job: Job, now: float, who: str, why: str | None) -> Transition:
    """No consent: the job is not wanted. No to a question: the task goes on, and knows."""
    check_asks(job)
    if job.because == "approval":
        return lifecycle.unblocked(job, now, who=who, why=why or "rejected")
    return lifecycle.cancelled(job, now, who=who, why=why or "consent was refused")


def check_asks(job: Job) -> None:
    if job.state is not State.held or job.because not in ANSWERABLE:
        said = f"{job.state} ({job.because})" if job.because else str(job.state)
        raise IllegalMove(f"job {job.short_id} asks for nothing: it is {said}", job_id=job.id)


def _put(grant: Grant) -> Put:
    return GRANT.put(key_of(grant), grant)


def _id(core: Core) -> str:
    import secrets

    return new_id(core.clock.now(), secrets.randbits(74))
