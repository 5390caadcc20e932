"""Names the open streams of a namespace and their subjects."""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from redrive.core.job import Job

NONE: Final = "none"
"""The agent of a job that has none."""
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")


class TaskRoute(NamedTuple):
    """Agent and task, as the subject of a task names them."""

    agent: str
    task: str


class OpenNames:
    """Makes the names of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.tasks = f"RD_{namespace}_TASKS"
        self.retries = f"RD_{namespace}_RETRY"
        self.dead_letter_prefix = f"RD_{namespace}_DLQ_"
        """How the name of every stream of dead letters begins."""
        self.task_subjects = f"{namespace}.agents.*.tasks.>"
        self.retry_subjects = f"{namespace}.retry.>"

    def dead_letter_stream(self, agent: str | None) -> str:
        return self.dead_letter_prefix + make_token(agent or NONE)

    def dead_letter_subjects(self, agent: str | None) -> str:
        return f"{self.namespace}.dlq.{make_token(agent or NONE)}.>"

    def dead_letter_subject(self, job: Job) -> str:
        category = make_token(job.category or "unknown")
        return f"{self.namespace}.dlq.{make_token(job.agent or NONE)}.{make_token(job.queue)}.{category}.{job.id}"

    def retry_subject(self, job: Job) -> str:
        return f"{self.namespace}.retry.{make_token(job.agent or NONE)}.{job.id}"

    def route(self, subject: str) -> TaskRoute:
        """Read agent and task of `<ns>.agents.<agent>.tasks.<type>`; the type may have dots."""
        _, _, rest = subject.partition(".agents.")
        agent, _, task = rest.partition(".tasks.")
        return TaskRoute(agent, task)


def make_token(name: str) -> str:
    """Write a name as a part of subjects and stream names. A name with other characters gets a digest of its own."""
    if name and not _UNFIT.search(name):
        return name
    return f"{_UNFIT.sub('-', name)[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def read_job_id(subject: str) -> str:
    """Read the job's id, which ends the subject of a dead letter."""
    return subject.rpartition(".")[2]
