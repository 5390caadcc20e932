"""Offers scripts without an instance of their own `to_dead_letter`, `diverting` and `once`.

These functions use the process-wide instance unless they are given another one; so they stand above `Redrive`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, overload

from redrive.api.redrive import Redrive, default
from redrive.config import default_path
from redrive.core.job import Json, Lane
from redrive.errors import ConfigError, RedriveError, Signal, StoreUnavailable
from redrive.jobs.event_loop_thread import portal
from redrive.jobs.spool import Spool
from redrive.scripts.failure_records import FailureDetails, check_details, make_dead_letter, spool_dead_letter
from redrive.scripts.once import Key, OnceDecorator, Within, decorator

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
log = logging.getLogger("redrive.letters")


def to_dead_letter(
    job_id: str,
    payload: Json,
    error: BaseException | type[BaseException] | str | None = None,
    *,
    attempt: int | None = None,
    task: str | None = None,
    queue: str | None = None,
    lane: Lane | None = None,
    agent: str | None = None,
    session_id: str | None = None,
    model: str | None = None,
    recommendation: str | None = None,
    rd: Redrive | None = None,
) -> str:
    """Record a failed job, so that it is seen and can be run again. Synced on return; returns the dead letter's id.

    Usable alone in any script: no queue, worker or event loop is needed. The next failure of the same job_id and input
    is counted in the same dead letter. Where the store cannot be used, the dead letter waits beside it, which is logged
    at WARNING; raises only where it could be written nowhere.
    """
    details = FailureDetails(attempt, task, queue, lane, agent, session_id, model, recommendation)
    app = rd or _default(job_id, payload, error, details)
    if isinstance(app, str):
        return app
    return _run(app.recorder.add(job_id, payload, error if error is not None else sys.exc_info()[1], details)).id


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Runs work on the portal; in a thread of its own where the portal's loop itself calls, and would wait for ever."""
    if not portal.runs_here():
        return portal.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="redrive-letter") as aside:
        return aside.submit(asyncio.run, work).result()


def _default(job_id: object, payload: object, error: object, details: FailureDetails) -> Redrive | str:
    """Returns the process-wide instance; where its settings cannot be used, spools beside the default store."""
    try:
        return default()
    except ConfigError as problem:
        from redrive.engine.clock import SystemClock

        new = make_dead_letter(job_id, payload, error, details, SystemClock().now(), None)
        database = default_path(os.environ)
        spool_dead_letter(Spool(database.with_name(database.name + "-spool")), new, problem)
        return new.job.id


class diverting:
    """Records what fails inside `with redrive.diverting(job_id, payload):` as a dead letter.

    The exception goes on to the caller unless `swallow=True`, which logs it at WARNING instead. A block that succeeds
    resolves the dead letters of earlier failures of the same job_id and input, except those whose outcome is unknown.
    Takes the options of `to_dead_letter`; works with `async with` as well.
    """

    def __init__(
        self, job_id: str, payload: Json, *, swallow: bool = False, rd: Redrive | None = None, **details: Any
    ) -> None:
        self._job_id, self._payload, self._swallow, self._rd = job_id, payload, swallow, rd
        self._details = check_details(details)
        self.letter: str | None = None
        """The id of the dead letter, where the block failed."""

    def __enter__(self) -> diverting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            self._resolve_earlier()
            return False
        if isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (0, None)):
            return False
        swallow = self._swallow and isinstance(error, Exception | Signal)
        try:
            self.letter = to_dead_letter(self._job_id, self._payload, error, rd=self._rd, **self._details._asdict())
        except StoreUnavailable:
            if swallow:
                raise  # a failure that is neither recorded nor raised would be lost
            return False  # logged at ERROR already; the caller gets the block's own exception
        if swallow:
            log.warning("job %s failed and goes on as dead letter %s: %r", self._job_id, self.letter[-8:], error)
        return swallow

    async def __aenter__(self) -> diverting:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return await asyncio.get_running_loop().run_in_executor(None, self.__exit__, kind, error, traceback)

    def _resolve_earlier(self) -> None:
        """Resolve the dead letters of earlier failures. Where that fails, it is only logged."""
        try:
            app = self._rd or default()
            why = "it succeeded when it was run again"
            _run(app.recorder.resolve_landed(self._job_id, self._payload, self._details, who="diverting", why=why))
        except (RedriveError, OSError) as error:
            log.warning("job %s succeeded; whether a dead letter of it stands is not known: %s", self._job_id, error)


@overload
def once(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def once(
    *, key: Key | None = None, verify: Callable[..., Any] | None = None, within: Within | None = None
) -> OnceDecorator: ...
def once(function: Any = None, /, **options: Any) -> Any:
    """Make a function's effect happen once for each key, also if the process dies: `@redrive.once(verify=find_mail)`.

    The intent is on disk before the call, the result after it; a second call returns the recorded result. `key` is a
    template such as `"mail-{to}"` or a function of the arguments; without it, the function's name and a hash of the
    arguments. `verify` gets the same arguments and says whether the effect is there: a value (landed, and this is the
    result), nothing (None, False, an empty list: absent), or an exception (cannot tell). `within="day"`, or the id of a
    run, is the scope of the key.

    Raises `OnceInProgress` while another process performs it, and `OutcomeUnknown` where an earlier call was begun, its
    end is not known and no verifier can tell. Inside a task it is `ctx.once`. Uses `redrive.default()`; `rd.once` uses
    an instance.
    """
    return decorator(lambda: default().core, function, options)
