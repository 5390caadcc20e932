"""Turns enqueue calls into jobs and gives their handles: through the store, or in a transaction of the caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from redrive.api.transactions import PENDING
from redrive.core.job import Json
from redrive.errors import InvalidInput
from redrive.http.policy import HTTP_TASK
from redrive.jobs.tasks import Item, JobHandle, Many, Task

if TYPE_CHECKING:
    from redrive.api.jobs import Jobs
    from redrive.api.transactions import Transactions
    from redrive.jobs.enqueuer import Desk, Prepared

Options = Mapping[str, Any]


class Enqueuer:
    """Answers enqueue calls."""

    def __init__(self, desk: Desk, transactions: Transactions, jobs: Jobs) -> None:
        self._desk = desk
        self._transactions = transactions
        self._jobs = jobs

    async def enqueue(
        self, task: str | Task[Any, Any], payload: Mapping[str, Json] | None, options: Options
    ) -> JobHandle[Any]:
        return await self.accept(_name_of(task), {} if payload is None else payload, options)

    async def enqueue_http(self, line: Sequence[str], options: Options) -> JobHandle[dict[str, Any]]:
        payload, options = http_request(line, options)
        return await self.accept(HTTP_TASK, payload, options)

    async def enqueue_many(
        self, task: str | Task[Any, Any], items: Iterable[Mapping[str, Json] | Item], options: Options
    ) -> Many:
        if not isinstance(items, Iterable):
            raise InvalidInput(field="items", problem=f"{items!r:.80} is not a list of payloads")
        options, within = _apart(options)
        if within is not None:
            return await self._transactions.enqueue_many(_name_of(task), list(items), options, within)
        return await self._desk.accept_many(_name_of(task), list(items), options)

    async def accept(self, task: str, payload: Mapping[str, Any], options: Options) -> JobHandle[Any]:
        """Accepts one job, in the transaction that `within` names where it names one."""
        if "within" in options:
            options, within = _apart(options)
            if within is not None:
                return self._pending(await self._transactions.enqueue(task, payload, options, within))
        job, duplicate, spooled, direct, warnings = await self._desk.hand_in(task, payload, options)
        return JobHandle(self._jobs, job, duplicate=duplicate, spooled=spooled, direct=direct, warnings=warnings)

    def accept_now(self, task: str, payload: Mapping[str, Any], options: Options) -> JobHandle[Any] | None:
        """Enqueues with `within=` in the caller's thread, to which its connection belongs. None without `within=`."""
        options, within = _apart(options)
        if within is None:
            return None
        return self._pending(self._transactions.enqueue_now(task, payload, options, within))

    def _pending(self, prepared: Prepared) -> JobHandle[Any]:
        return JobHandle(self._jobs, prepared.job, pending=True, warnings=(*prepared.warnings, PENDING))


def _apart(options: Options) -> tuple[dict[str, Any], Any]:
    """Splits the options of a job from the transaction that the job is handed in with."""
    return {name: value for name, value in options.items() if name != "within"}, options.get("within")


def _name_of(task: str | Task[Any, Any]) -> str:
    return task.name if isinstance(task, Task) else task


_FIELDS: Final = ("method", "url", "json", "body", "headers", "timeout", "auth", "sign")


def http_request(line: Sequence[str], said: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the arguments into payload and options. What the payload may say is checked where it is accepted."""
    given = {"queue": "http", **_named(line, said), **said}
    options = {name: value for name, value in given.items() if name not in _FIELDS}
    payload = {name: _plain(given[name]) for name in _FIELDS if given.get(name) is not None}
    if payload.get("headers") == {}:
        del payload["headers"]
    if "json" not in payload and isinstance(payload.get("body"), dict | list):
        payload["json"] = payload.pop("body")
    return payload, options


def _named(line: Sequence[str], said: Mapping[str, Any]) -> dict[str, str]:
    """Name the arguments without a name: method and url, or queue, method and url."""
    names = ("queue", "method", "url") if len(line) > 2 else ("method", "url")
    if len(line) > len(names):
        raise InvalidInput(field="enqueue_http", problem="takes queue, method and url; name every other argument")
    named = dict(zip(names, line, strict=False))
    for name in named.keys() & said.keys():
        raise InvalidInput(field=name, problem="is given twice; keep one")
    for name in {"method", "url"} - named.keys() - said.keys():
        raise InvalidInput(field=name, problem="is missing; give method and url")
    return named


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
