"""Consent as values: what a grant covers, and what no grant covers any more.

A grant belongs to a session and names an operation: a task, or a label that several tasks share. It may be bound to an
agent and to exactly one input. What a person edits or hands to another agent is another subject, so a grant for the old
one says nothing about it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from redrive.core.change import Edit, decode
from redrive.core.job import At, Job

NO_SESSION: Final = "\n"
"""Where jobs without a session keep what was said about them: no session can be called so."""
ANY_AGENT: Final = None
NO_AGENT: Final = ""


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's consent."""

    id: str
    session_id: str
    scope: str
    """A task's name or its consent label; anything, for a blanket grant."""
    at: At
    by: str
    agent: str | None = ANY_AGENT
    """Only this agent; NO_AGENT for jobs without an agent."""
    subject: str | None = None
    """Exactly this input (`subject_of`); None: any."""
    job_id: str | None = None
    """Exactly this job; None: any."""
    expires_at: At | None = None
    revoked_at: At | None = None
    blanket: bool = False
    """Given once for everything a workflow does: it does not cover a later replay."""
    why: str | None = None


class Wish(msgspec.Struct, frozen=True):
    """What needs a yes: an operation under all its names, by whom, on what, and whether it was tried or changed."""

    scopes: frozenset[str]
    agent: str
    subject: str
    job_id: str
    replay: bool


def subject_of(job: Job) -> str:
    """The task and its input as enqueued or edited, in sixteen letters."""
    edits = [change for change in decode(job.changes_json) if isinstance(change, Edit)] if job.changes_json else []
    payload = edits[-1].payload if edits else job.arguments
    text = msgspec.json.encode([job.task, payload], order="sorted")
    return hashlib.sha256(text).hexdigest()[:16]


def wish_of(job: Job, label: str | None) -> Wish:
    scopes = {job.task} | ({label} if label else set())
    replay = bool(job.history or job.changes_json)  # what somebody changed is another matter, also before it ever ran
    return Wish(frozenset(scopes), job.agent or NO_AGENT, subject_of(job), job.id, replay)


def covers(grant: Grant, wish: Wish, now: float) -> bool:
    """Whether this yes is about that wish, and still counts."""
    if grant.revoked_at is not None or (grant.expires_at is not None and now >= grant.expires_at):
        return False
    if wish.replay if grant.blanket else grant.scope not in wish.scopes:
        return False
    bound = ((grant.agent, wish.agent), (grant.subject, wish.subject), (grant.job_id, wish.job_id))
    return all(said in (None, asked) for said, asked in bound)


def find_grant(grants: Iterable[Grant], wish: Wish, now: float) -> Grant | None:
    return next((grant for grant in grants if covers(grant, wish, now)), None)


class Approval(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question that a running task has asked, and the answer. True only when it was approved."""

    question: str
    asked_at: float
    subject: str
    details: dict[str, object] = {}
    expires_at: float | None = None
    answer: str = "open"
    """open, approved, rejected or expired."""
    by: str | None = None
    answered_at: float | None = None
    why: str | None = None

    def __bool__(self) -> bool:
        return self.answer == "approved"

    def expired(self, now: float) -> bool:
        """Tells whether the time for an answer is over."""
        return self.answer == "open" and self.expires_at is not None and now >= self.expires_at


def asked_subject(job: Job, details: Mapping[str, object]) -> str:
    """What a question is about: the job's input, who does it, and the details that were shown."""
    text = msgspec.json.encode([subject_of(job), job.agent, dict(details)], order="sorted")
    return hashlib.sha256(text).hexdigest()[:16]
