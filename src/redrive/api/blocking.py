"""`with rd.blocking() as q`: enqueues and looks from code without an event loop."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.core.job import Job, Json
from redrive.http.policy import HTTP_TASK
from redrive.jobs.event_loop_thread import portal
from redrive.jobs.tasks import BlockingHandle, Item, Many
from redrive.reports.health import Health

if TYPE_CHECKING:
    from redrive.api.jobs import Jobs
    from redrive.api.workers import Workers
    from redrive.jobs.enqueuer import Enqueuer
    from redrive.reports.watch import Watch

T = TypeVar("T")


class Blocking:
    """Enqueues and looks. Every method returns when its work is done and durable."""

    def __init__(self, enqueuer: Enqueuer, workers: Workers, jobs: Jobs, watch: Watch) -> None:
        self._enqueuer = enqueuer
        self._workers = workers
        self._jobs = jobs
        self._watch = watch

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of redrive's: `q.run(rd.dead.list())`."""
        return portal.run(work)

    def enqueue(self, task: str, payload: Mapping[str, Json] | None = None, **options: Any) -> BlockingHandle[Any]:
        given = {} if payload is None else payload
        handle = self._enqueuer.accept_now(task, given, options)
        return BlockingHandle(handle or self.run(self._enqueuer.accept(task, given, options)), self.run)

    def enqueue_many(self, task: str, items: Iterable[Mapping[str, Json] | Item], **options: Any) -> Many:
        return self.run(self._enqueuer.enqueue_many(task, items, options))

    def enqueue_http(self, *line: str, **options: Any) -> BlockingHandle[dict[str, Any]]:
        """Takes what `rd.enqueue_http` takes: `("POST", url, …)` or `(queue, "POST", url, …)`."""
        from redrive.http.request import split_call

        payload, options = split_call(line, options)
        return BlockingHandle(self.run(self._enqueuer.accept(HTTP_TASK, payload, options)), self.run)

    def drain(self) -> int:
        return self.run(self._workers.drain())

    def status(self, job_id: str) -> Job:
        return self.run(self._jobs.get(job_id))

    def health(self) -> Health:
        return self.run(self._watch.health())
