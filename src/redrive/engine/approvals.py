"""Reads and writes the questions that tasks ask people (`ctx.approval`): a document each, under the job's id."""

from __future__ import annotations

from typing import Final, NamedTuple

from redrive.core.consent import Approval
from redrive.core.documents import APPROVAL
from redrive.core.job import Job
from redrive.core.store import Put, Store

_HELD_FOR: Final = "approval:"


class Question(NamedTuple):
    """A stored approval, with its key and the version that an answer must find in the store."""

    key: str
    approval: Approval
    version: int

    def answered(self, approval: Approval) -> Put:
        """Makes the put of an answer. The store refuses a second answer, because the first changed the version."""
        return APPROVAL.put(self.key, approval, self.version)


def make_approval_key(job_id: str, name: str = "") -> str:
    """Makes the key of a question; without a name, the prefix of the keys of all questions of the job."""
    return f"{job_id}/{name}"


def make_approval_hold(key: str) -> str:
    """Makes the `held_for` of a job that waits for an answer."""
    return f"{_HELD_FOR}{key}"


def put_approval(key: str, approval: Approval) -> Put:
    return APPROVAL.put(key, approval)


async def read_question(store: Store, key: str) -> Question | None:
    kept = await APPROVAL.get(store, key)
    return Question(*kept) if kept is not None else None


async def read_question_of(store: Store, job: Job) -> Question | None:
    """Reads the question that a held job waits for; None where a framework inside the task asked and keeps it."""
    return await read_question(store, job.held_for.removeprefix(_HELD_FOR)) if job.held_for else None


async def read_approvals_of(store: Store, job_id: str) -> list[Approval]:
    """Reads all questions that a job ever asked, with the answers."""
    return [kept.value for kept in await APPROVAL.all(store, make_approval_key(job_id))]
