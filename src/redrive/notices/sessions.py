"""`rd.sessions`: what a session agreed to, what it cost, its inbox, and answers to what jobs ask."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from msgspec.structs import replace

from redrive.core import lifecycle
from redrive.core.checks import check_id, check_limit, check_name, check_words, optional_name, the_only
from redrive.core.commit import commit, commit_each, commit_in_parts
from redrive.core.consent import NO_AGENT, NO_SESSION, Approval, Grant, subject_of
from redrive.core.documents import GRANT, INBOX, Kept
from redrive.core.job import Job, State, Usage, new_id
from redrive.core.lifecycle import Transition
from redrive.core.notice import DEFERRED, ESCALATED, OWNER, Notice, is_dealt_with
from redrive.core.outcome import shorten_result
from redrive.core.store import Filter, Put
from redrive.core.view import Shown
from redrive.engine.approvals import read_approvals_of, read_question_of
from redrive.engine.consents import Consents, make_consent_hold, make_grant_key
from redrive.engine.paging import read_pages
from redrive.engine.trusted_time import time_for_destroying
from redrive.errors import IllegalMove, InvalidInput
from redrive.jobs.tasks import Seconds, read_seconds
from redrive.jobs.wait_for_job import read_result

if TYPE_CHECKING:
    from redrive.jobs.core import Core

ANSWERABLE: Final = ("consent", "approval")
PAGE: Final = 500
Owned = dict[tuple[str, str, str | None], int]
"""Dead letters by inbox, kind of message and group."""
NOT_LEFT: Final = "The result is no longer kept."


class Sessions:
    """The consents, costs and messages of the sessions that asked for work."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def grants(self, session_id: str) -> list[Grant]:
        """List every grant of a session, expired and revoked ones too."""
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
        id = _make_id(self._core)
        grant = Grant(id, session_id, scope, now, by, agent, subject, None, until, blanket=blanket, why=why)
        await commit(self._core.store, puts=[_put(grant)], what=f"session {session_id} was granted {scope}")
        await self._ask_again(session_id, by)
        return grant

    async def _ask_again(self, session_id: str, who: str) -> None:
        """Unblock the jobs that are held for want of consent: each asks again whether it has it."""
        held = Filter(states=(State.held,), because="consent", held_for=make_consent_hold(session_id))
        async for jobs in read_pages(self._core.store, held, PAGE, oldest=True):
            now = self._core.clock.now()
            moves = [lifecycle.unblocked(job, now, who=who, why="consent was given") for job in jobs]
            await commit_each(self._core.store, moves)  # what is missed here, the scheduler sees

    async def revoke(self, session_id: str, grant_id: str) -> Grant:
        """Revoke a grant: from now on it covers nothing."""
        grant = next((grant for grant in await self.grants(session_id) if grant.id == grant_id), None)
        if grant is None:
            raise InvalidInput(field="grant_id", problem=f"session {session_id!r} has no grant {grant_id!r}")
        revoked = replace(grant, revoked_at=self._core.clock.now())
        await commit(self._core.store, puts=[_put(revoked)], what=f"grant {grant_id} was revoked")
        return revoked

    async def costs(self, session_id: str) -> Usage:
        """Sum up what all attempts of the session's jobs have spent."""
        total, session_id = Usage(), check_id("session_id", session_id)
        async for jobs in read_pages(self._core.store, Filter(session_id=session_id), PAGE):
            for job in await self._core.store.get([job.id for job in jobs]):
                for attempt in job.history:
                    total = total + attempt.usage if attempt.usage is not None else total
        return total

    # -- messages

    async def inbox(self, session_id: str, *, unread: bool = True, limit: int = 1000) -> list[Notice]:
        """List what a session is told, oldest first: how its work ended, and what waits for an answer.

        Only what is `pending` asks for anything; `unread=False` shows the rest, too. Results are whole up to 100,000
        characters, and read from the job: once its queue's retention has dropped them, the message says so.
        """
        check_id("session_id", session_id)
        check_limit(limit)
        notices, jobs = await self._read_inbox(session_id)
        if unread:
            notices = [notice for notice in notices if notice.unread]
        notices.sort(key=lambda notice: (notice.at, notice.id))
        return [await self._with_result(notice, jobs.get(notice.job_id or "")) for notice in notices[:limit]]

    async def unread(self, session_id: str) -> int:
        """Count what a session was told and has not seen."""
        notices, _ = await self._read_inbox(check_id("session_id", session_id))
        return sum(notice.unread for notice in notices)

    async def inboxes(self) -> list[InboxView]:
        """List every session that was told something, those that are asked something first."""
        notices = [kept.value for kept in await INBOX.all(self._core.store)]
        open = [notice for notice in notices if notice.status == "pending"]
        jobs = await self._jobs([notice for notice in open if not _stands_for_group(notice)])
        owned = await self._count_owned(open)
        for number, notice in enumerate(notices):
            if notice.status == "pending":
                notices[number] = _as_it_is_now(notice, jobs, owned)
        return inboxes(notices)

    async def named(self, name: str) -> str:
        """Find the inbox that a name means: a session's, else that of the owner of dead letters who is called so."""
        check_id("session_id", name)
        known = {view.session for view in await self.inboxes()}
        return f"{OWNER}{name}" if name not in known and f"{OWNER}{name}" in known else name

    async def acknowledge(self, session_id: str, notice_id: str) -> Notice:
        """Note that the session has seen a notice, named by its id or a unique part of it. Repeating it is safe."""
        inbox, part = await self._read_kept(check_id("session_id", session_id)), check_id("notice", notice_id)
        matching = {kept.value.id: kept for kept in inbox if part in kept.value.id}
        kept = matching.get(notice_id) or the_only(list(matching.values()), notice_id, "notice_id")
        now = self._core.clock.now()

        def mark_read(notice: Notice | None) -> Notice | None:
            return notice if notice is None or notice.read_at is not None else replace(notice, read_at=now)

        read = await INBOX.update(self._core.store, kept.key, mark_read) if kept is not None else None
        if read is None:
            raise InvalidInput(field="notice_id", problem=f"{notice_id!r} is not in the inbox")
        return read

    async def prune(self, before: float) -> int:
        """Drop old acknowledgements, read or not, and old actionable notices that are dealt with; return how many."""
        old = [kept for kept in await INBOX.all(self._core.store) if kept.value.at < before]
        jobs = await self._jobs([kept.value for kept in old if kept.value.actionable])
        owned = await self._count_owned([kept.value for kept in old])
        now = [(key, _as_it_is_now(notice, jobs, owned)) for key, notice, _ in old]
        drops = [
            INBOX.drop(key)
            for key, notice in now
            if notice.settled or not notice.actionable or notice.read_at is not None
        ]
        await commit_in_parts(self._core.store, drops, what="old notices were dropped")
        return len(drops)

    async def _read_inbox(self, session_id: str) -> tuple[list[Notice], dict[str, Job]]:
        """Read a session's notices as they stand now, and their jobs."""
        notices = [kept.value for kept in await self._read_kept(session_id)]
        jobs, owned = await self._jobs(notices), await self._count_owned(notices)
        return [_as_it_is_now(notice, jobs, owned) for notice in notices], jobs

    async def _read_kept(self, session_id: str) -> list[Kept[Notice]]:
        """Read a session's own notices: the prefix of session `a` finds those of `a/b`, too."""
        inbox = await INBOX.all(self._core.store, f"{session_id}/")
        return [kept for kept in inbox if kept.value.session_id == session_id]

    async def _jobs(self, notices: Sequence[Notice]) -> dict[str, Job]:
        ids = list(dict.fromkeys(notice.job_id for notice in notices if notice.job_id))
        return {job.id: job for job in await self._core.store.get(ids)}

    async def _count_owned(self, notices: Sequence[Notice]) -> Owned:
        """Count the dead letters of each group that its owners still have, once for each owner."""
        owned: Owned = {}
        for inbox, kind in {(n.session_id or "", n.kind) for n in notices if n.kind in (ESCALATED, DEFERRED)}:
            state, because = (State.held, DEFERRED) if kind == DEFERRED else (State.dead, None)
            chosen = Filter(states=(state,), because=because, owner=inbox.removeprefix(OWNER))
            for (fingerprint,), number in (await self._core.store.count(chosen, by=("fingerprint",))).items():
                owned[inbox, kind, fingerprint] = number
        return owned

    async def _with_result(self, notice: Notice, job: Job | None) -> Notice:
        """Add the result of a job that is done, read from the job itself: never a shortened copy of it."""
        if job is None or job.state is not State.done or notice.actionable:
            return notice
        text = await read_result(self._core.store, job)
        if text is None and job.payload is None:
            return replace(notice, text=f"{notice.text} {NOT_LEFT}")
        result, cut = shorten_result(msgspec.json.decode(text) if text else None, job.id)
        return replace(notice, result=result, truncated=cut)

    # -- answers

    async def make_approval(self, job: Job, who: str, why: str | None) -> list[Put]:
        """Make the documents of a yes to what a job asks: a grant for exactly this, or an answer to its question."""
        check_asks(job)
        if job.because == "approval":
            return await self._answer(job, "approved", who, why)
        session, now = job.session_id or NO_SESSION, self._core.clock.now()
        agent, subject = job.agent or NO_AGENT, subject_of(job)
        return [_put(Grant(_make_id(self._core), session, job.task, now, who, agent, subject, job.id, why=why))]

    async def make_rejection(self, job: Job, who: str, why: str | None) -> list[Put]:
        """Make the documents of a no to what a job asks."""
        check_asks(job)
        return await self._answer(job, "rejected", who, why) if job.because == "approval" else []

    async def _answer(self, job: Job, answer: str, who: str, why: str | None) -> list[Put]:
        """Answer the question that the job waits for, and no other."""
        if not job.held_for:
            return []  # a framework inside the task has asked, and keeps the answer itself
        asked, now = await read_question_of(self._core.store, job), self._core.clock.now()
        trusted_now = await time_for_destroying(self._core.store, self._core.clock)
        if asked is None or asked.approval.answer != "open" or asked.approval.expired(trusted_now):
            raise IllegalMove(f"the question of job {job.short_id} has expired: it goes on by itself", job_id=job.id)
        return [asked.answered(replace(asked.approval, answer=answer, by=who, answered_at=now, why=why))]

    async def questions(self, job: Job) -> Sequence[Approval]:
        """List what a job has asked, with the answers."""
        return await read_approvals_of(self._core.store, job.id)


def decide_no(job: Job, now: float, who: str, why: str | None) -> Transition:
    """Decides a no: without consent the job is cancelled; after a no to its question the task goes on, and knows."""
    check_asks(job)
    if job.because == "approval":
        return lifecycle.unblocked(job, now, who=who, why=why or "rejected")
    return lifecycle.cancelled(job, now, who=who, why=why or "consent was refused")


def check_asks(job: Job) -> None:
    """Refuses a job that asks for nothing."""
    if job.state is not State.held or job.because not in ANSWERABLE:
        state = f"{job.state} ({job.because})" if job.because else str(job.state)
        raise IllegalMove(f"job {job.short_id} asks for nothing: it is {state}", job_id=job.id)


def _put(grant: Grant) -> Put:
    return GRANT.put(make_grant_key(grant), grant)


def _make_id(core: Core) -> str:
    return new_id(core.clock.now(), secrets.randbits(74))


def _stands_for_group(notice: Notice) -> bool:
    """Whether a notice stands for all dead letters of a group that its owner has."""
    return notice.kind in (ESCALATED, DEFERRED) and notice.fingerprint is not None


def _as_it_is_now(notice: Notice, jobs: dict[str, Job], owned: Owned) -> Notice:
    """Adds whether a notice is dealt with, and how many dead letters it stands for."""
    if not _stands_for_group(notice):
        return replace(notice, settled=is_dealt_with(notice, jobs.get(notice.job_id or "")))
    number = owned.get((notice.session_id or "", notice.kind, notice.fingerprint), 0)
    text = f"{notice.text} {number} of this kind." if number > 1 else notice.text
    return replace(notice, settled=not number or notice.read_at is not None, text=text)


class InboxView(Shown, msgspec.Struct, frozen=True):
    """One session's messages in numbers, and the latest of them."""

    HIDDEN: ClassVar = ("latest",)
    SHOWN: ClassVar = ("latest.at", "latest.title")
    RENAMED: ClassVar = {"latest.at": "latest_at", "latest.title": "latest"}
    session: str
    messages: int
    unread: int
    pending: int
    """Unread messages that ask for something."""
    latest: Notice


def inboxes(notices: Iterable[Notice]) -> list[InboxView]:
    """Sums up the notices of every session: first those that are asked, then those with something unread."""
    by_session: dict[str, list[Notice]] = {}
    for notice in notices:
        by_session.setdefault(notice.session_id or "", []).append(notice)
    views = [_view(session, own) for session, own in by_session.items()]
    return sorted(views, key=lambda view: (not view.pending, not view.unread, -view.latest.at))


def _view(session: str, notices: Sequence[Notice]) -> InboxView:
    unread = sum(notice.unread for notice in notices)
    pending = sum(notice.status == "pending" for notice in notices)
    return InboxView(session, len(notices), unread, pending, max(notices, key=lambda notice: notice.at))
