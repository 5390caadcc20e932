"""Takes in published tasks as jobs. A task is acknowledged after its job is committed, never before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core.job import Job, Json, State
from redrive.core.store import Filter
from redrive.engine.loop import Loop
from redrive.engine.worker_registry import list_living
from redrive.errors import InvalidInput, InvalidOption, InvalidPayload, JobError, StoreError, StoreFailed
from redrive.fleet.open_side.turns import LOOK_SECONDS, DutyTurn
from redrive.scripts.failure_records import FailureDetails, FailureRecorder, make_dead_letter
from redrive.stores.open_side.names import OpenNames
from redrive.stores.open_side.tasks import TaskMessage, Tasks
from redrive.stores.replica.log import LogUnavailable
from redrive.stores.replica.nats_connection import Connection

if TYPE_CHECKING:
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.open_side")
AGAIN_SECONDS: Final = 5.0
"""Seconds after which a task that the store could not take is delivered again."""
WENT_IN: Final = (State.waiting, State.running, State.held, State.done)


KEPT: Final = (
    "X-Task-ID",
    "X-Idempotency-Key",
    "X-Task-Type",
    "X-Created-At",
    "X-Max-Retries",
    "X-Retry-Strategy",
    "traceparent",
    "tracestate",
)
"""Headers that the job keeps."""
_NAMES: Final = {name.lower(): name for name in KEPT}


class Published(msgspec.Struct, frozen=True):
    """A published task, as it was read."""

    task: str
    agent: str
    key: str
    headers: dict[str, str]
    payload: Json
    """The JSON of the body; its text where that is not JSON."""
    problem: InvalidInput | None = None
    """Why it cannot become a job."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the job. Raises InvalidInput where a header cannot be used."""
        options: dict[str, Any] = {
            "agent": self.agent,
            "idempotency_key": self.key,
            "headers": self.headers,
            "fallback": False,  # acknowledged means in the store
        }
        if (retries := self.headers.get("X-Max-Retries")) is not None:
            options["max_attempts"] = _retries(retries) + 1
        return options


def read(message: TaskMessage, names: OpenNames) -> Published:
    """Read a published task. Its `problem` says why it cannot become a job."""
    route = names.route(message.subject)
    headers = _headers(message.headers)
    key = headers.get("X-Idempotency-Key") or message.place
    payload, problem = _payload(message.data)
    return Published(route.task, route.agent, key, headers, payload, problem)


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    named = {_NAMES.get(name.lower()): value.strip() for name, value in headers.items()}
    return {name: value for name, value in named.items() if name is not None and value}


def _payload(data: bytes) -> tuple[Json, InvalidInput | None]:
    if not data.strip():
        return {}, None
    try:
        payload = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return data.decode("utf-8", "backslashreplace"), InvalidPayload(field="body", problem=f"is not JSON: {error}")
    if not isinstance(payload, dict):
        return payload, InvalidPayload(field="body", problem="must be a JSON object, whose fields are the arguments")
    return payload, None


def _retries(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 6:
        raise InvalidOption(field="X-Max-Retries", problem=f"{text[:40]!r} is not a whole number")
    return int(text)


class UnroutableTask(Exception):
    """No worker knows the task, and no job of it was ever accepted."""


class Intake(Loop):
    """Follows the work queue while this process has the duty."""

    def __init__(self, core: Core, recorder: FailureRecorder, connection: Connection, names: OpenNames) -> None:
        super().__init__("intake")
        self._core = core
        self._recorder = recorder
        self._names = names
        self._turn = DutyTurn(core, connection, names, "intake")
        self._tasks = Tasks(connection, names)
        self._handled: set[str] = set()
        """Tasks that are known to have a handler."""

    async def stop(self) -> None:
        await super().stop()
        await self._tasks.close()

    async def tick(self) -> float:
        try:
            if not await self._turn.is_mine():
                return LOOK_SECONDS
            messages = await self._tasks.fetch()
            await asyncio.gather(*(self._take_in(message) for message in messages))
        except (LogUnavailable, StoreError) as error:
            if isinstance(error, StoreFailed):
                raise
            self._turn.look_again()
            log.warning("no tasks are taken in: %s; trying again", error)
            return AGAIN_SECONDS
        return 0.0

    async def _take_in(self, message: TaskMessage) -> None:
        """Make one task a job or a dead letter, or leave it in the work queue for a later try."""
        published = read(message, self._names)
        try:
            problem = published.problem or await self._refusal(published)
            if problem is None:
                await self._tasks.acknowledge(message)
                return
            await self._record_dead_letter(published, problem, message)
            await self._tasks.terminate(message, str(problem))
        except (StoreError, JobError) as error:
            if isinstance(error, StoreFailed):
                raise
            log.warning("task %s stays in the work queue, the store cannot take it: %s", message.place, error)
            await self._tasks.delay(message, AGAIN_SECONDS)
        except LogUnavailable as error:
            log.warning("task %s was taken in and not acknowledged, so it is delivered again: %s", message.place, error)

    async def _refusal(self, published: Published) -> Exception | None:
        """Commit the job of a task; return the reason where it cannot be a job."""
        if not await self._is_known(published.task):
            return UnroutableTask(f"no worker knows the task {published.task!r}, and no job of it was ever accepted")
        try:
            await self._recorder.enqueuer.accept(published.task, published.payload, published.options)
        except (StoreError, JobError):
            raise  # a later try may do better
        except Exception as error:  # noqa: BLE001 - the dead letter names the error
            return error
        return None

    async def _is_known(self, task: str) -> bool:
        """Whether a worker handles the task or did before: a restart must not make dead letters.

        Where no worker lives at all, the job waits for one.
        """
        if task in self._handled or task in self._core.registry.handlers:
            return True
        workers = await list_living(self._core.store, self._core.clock.now())
        announced = frozenset[str]().union(*(worker.tasks for worker in workers)) - self._core.registry.handlers.keys()
        self._handled |= announced
        if task in announced or not announced:
            return True
        return bool((await self._core.store.find(Filter(WENT_IN, task=task), limit=1)).jobs)

    async def _record_dead_letter(self, published: Published, problem: Exception, message: TaskMessage) -> Job:
        """Make a task that cannot be a job a dead letter; the same task makes the same dead letter."""
        details = FailureDetails(
            attempt=1, task=published.task, agent=published.agent, lane="manual", recommendation=_advice(problem)
        )
        registry = self._core.registry
        dead_letter = make_dead_letter(message.place, published.payload, problem, details, message.at, registry)
        job = await self._recorder.take_in(dead_letter)
        log.warning("task %s on %s is a dead letter (%s): %s", message.place, message.subject, job.short_id, problem)
        return job


def _advice(problem: Exception) -> str:
    if isinstance(problem, UnroutableTask):
        return "Start a worker whose code has this task, or correct the subject; then redrive it."
    return "See what was published and correct its sender; edit this one and redrive it, or discard it."
