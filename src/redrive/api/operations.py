"""Runs the operations of agents, and warns a session that repeats itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from redrive.core.job import Json
from redrive.core.outcome import Outcome
from redrive.jobs.lookup import find_job
from redrive.jobs.tasks import Seconds, Task

if TYPE_CHECKING:
    from redrive.api.gateway import Gateway
    from redrive.jobs.core import Core
    from redrive.notices.repeats import Repeats

Params = Mapping[str, Json]


class Operations:
    """Answers `rd.call`, `rd.submit` and `rd.retry`; every answer is observed."""

    def __init__(self, core: Core, gateway: Gateway, repeats: Repeats, load: Callable[[], None]) -> None:
        self._core = core
        self._gateway = gateway
        self._repeats = repeats
        self._load = load

    async def call(
        self, task: Task[Any, Any] | str, params: Params | None, timeout: Seconds | None, options: Mapping[str, Any]
    ) -> Outcome:
        self._load()
        given = {} if params is None else params
        made = self._gateway.call(task, given, timeout=timeout, **options)
        return await self._repeats.watched(made, task, given, options.get("session_id"))

    async def submit(self, task: Task[Any, Any] | str, params: Params | None, options: Mapping[str, Any]) -> Outcome:
        self._load()
        given = {} if params is None else params
        made = self._gateway.submit(task, given, **options)
        return await self._repeats.watched(made, task, given, options.get("session_id"))

    async def retry(self, operation_id: str, timeout: Seconds | None, who: str) -> Outcome:
        self._load()
        return await self._repeats.watched_retry(self._gateway.retry(operation_id, timeout=timeout, who=who))

    async def outcome(self, operation_id: str) -> Outcome:
        return await self._gateway.outcome(await find_job(self._core.store, operation_id))
