"""What the open streams of a namespace and their subjects are called."""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from redrive.core.job import Job

NONE: Final = "none"
"""Stands for the agent of a job that has none."""
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")


class TaskRoute(NamedTuple):
    """What the subject of a task says."""

    agent: str
    task: str


class OpenNames:
    """The names of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.tasks = f"RD_{namespace}_TASKS"
        self.retries = f"RD_{namespace}_RETRY"
        self.letters = f"RD_{namespace}_DLQ_"
        """The beginning of the name of every stream of dead letters."""
        self.task_subjects = f"{namespace}.agents.*.tasks.>"
        self.retry_subjects = f"{namespace}.retry.>"

    def letters_of(self, agent: str | None) -> str:
        return self.letters + token(agent or NONE)

    def letter_subjects(self, agent: str | None) -> str:
        return f"{self.namespace}.dlq.{token(agent or NONE)}.>"

    def letter(self, job: Job) -> str:
        """The subject of one dead letter."""
        category = token(job.category or "unknown")
        return f"{self.namespace}.dlq.{token(job.agent or NONE)}.{token(job.queue)}.{category}.{job.id}"

    def retry(self, job: Job) -> str:
        return f"{self.namespace}.retry.{token(job.agent or NONE)}.{job.id}"

    def route(self, subject: str) -> TaskRoute:
        """Agent and task of `<ns>.agents.<agent>.tasks.<type>`; the type may have dots."""
        _, _, rest = subject.partition(".agents.")
        agent, _, task = rest.partition(".tasks.")
        return TaskRoute(agent, task)


def token(name: str) -> str:
    """A name as a part of subjects and stream names. One with other signs gets a mark that keeps it apart."""
    if name and not _UNFIT.search(name):
        return name
    return f"{_UNFIT.sub('-', name)[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def id_of(subject: str) -> str:
    """The job's id, which ends the subject of a dead letter."""
    return subject.rpartition(".")[2]
