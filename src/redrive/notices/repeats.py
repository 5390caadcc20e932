"""Watches what sessions do through `rd.call`, `rd.submit` and `rd.retry`, and reports those that repeat it in vain.

A session's window of actions is a document of the store, so that it also holds for an agent that starts a process for
each call. Successes are kept in memory and written with the next action that fails, so that they cost no write.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core import repeats as rules
from redrive.core.commit import commit, try_commit
from redrive.core.documents import Kind
from redrive.core.job import Json
from redrive.core.outcome import Outcome
from redrive.core.repeats import ActionLoop, SessionAction
from redrive.engine.context import session_of
from redrive.errors import InvalidInput, JobError, StoreError
from redrive.jobs.enqueuer import SESSION_VARIABLE
from redrive.jobs.publishing_store import make_puts, publish_notice
from redrive.jobs.tasks import Task

if TYPE_CHECKING:
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.gateway")
REPEATS: Final = Kind[rules.Watched]("repeats", rules.Watched)
"""Under the session's id: its last actions, as hashes."""
SESSIONS: Final = 1_000
"""The most sessions whose successes are in memory."""
TOLD_FOR: Final = 3600.0
"""How long a loop that does not go on is still reported as a fact of health."""
KEPT_FOR: Final = 86400.0


class RepeatedActions:
    """Observes every action of a session once it is answered."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._fine: OrderedDict[str, list[SessionAction]] = OrderedDict()
        """Successes that are in no document yet, by session."""
        self._looping: set[str] = set()

    @property
    def rule(self) -> rules.RepeatRule:
        return rules.RepeatRule(self._core.settings.repeats, self._core.settings.repeats_window)

    async def watch(
        self, made: Awaitable[Outcome], task: Task[Any, Any] | str, params: Mapping[str, Json], session: object
    ) -> Outcome:
        """Waits for the answer to an action, and adds a warning to it. A refused action counts, too."""
        name = task.name if isinstance(task, Task) else str(task)
        session = session or session_of.get() or os.environ.get(SESSION_VARIABLE)
        try:
            outcome = await made
        except InvalidInput as refused:
            if (loop := await self._observe(session, name, params, ok=False, job_id=None)) is not None:
                refused.add_note(rules.warn_agent(loop, self.rule))
            raise
        return await self._add_warning(outcome, session, name, params)

    async def watch_retry(self, made: Awaitable[Outcome]) -> Outcome:
        """Does the same as `watch` for an operation that is tried again by its id."""
        outcome = await made
        try:
            (job,) = await self._core.store.get([outcome.operation_id or ""])
            session, task, params = job.session_id, job.task, job.arguments
        except (StoreError, OSError, JobError) as error:
            log.warning("operation %s was not added to its session's window: %s", outcome.operation_id, error)
            return outcome
        return await self._add_warning(outcome, session, task, params)

    async def _add_warning(self, outcome: Outcome, session: object, task: str, params: Mapping[str, Json]) -> Outcome:
        if outcome.status == "queued":
            return outcome  # accepted and not tried yet: neither a success nor a failure
        loop = await self._observe(session, task, params, ok=bool(outcome), job_id=outcome.operation_id)
        if loop is None:
            return outcome
        message = f"{rules.warn_agent(loop, self.rule)} {outcome.message}"
        return msgspec.structs.replace(outcome, message=message, repeats=loop.times)

    async def _observe(
        self, session: object, task: str, params: Mapping[str, Json], *, ok: bool, job_id: str | None
    ) -> ActionLoop | None:
        """Adds an action to the session's window; returns the loop it belongs to. A store that fails is only logged."""
        if not self.rule.times or not isinstance(session, str):
            return None
        action = SessionAction(rules.identify_action(task, params), ok)
        if ok and session not in self._looping:
            self._remember(session, action)
            return None
        try:
            return await self._write(session, action, task, job_id)
        except (StoreError, OSError) as error:
            log.warning("session %s: its last action was not added to its window: %s", session, error)
            return None

    def _remember(self, session: str, action: SessionAction) -> None:
        """Keeps a success in memory until the next failure is written."""
        fine = self._fine.setdefault(session, [])
        self._fine.move_to_end(session)
        fine[:] = [*fine, action][-self.rule.window :]
        while len(self._fine) > SESSIONS:
            self._fine.popitem(last=False)

    async def _write(self, session: str, action: SessionAction, task: str, job_id: str | None) -> ActionLoop | None:
        actions, now = [*self._fine.pop(session, ()), action], self._core.clock.now()

        def change(known: rules.Watched | None) -> rules.Watched:
            return rules.observe(known or rules.Watched(), actions, task, self.rule, now)

        after = await REPEATS.update(self._core.store, session, change)
        loop = after.loop if after is not None else None
        (self._looping.discard if loop is None else self._looping.add)(session)
        if loop is None or loop.what != action.what:
            return None
        if loop.windows == 2:
            await self._tell(session, loop, job_id)
        return loop

    async def _tell(self, session: str, loop: ActionLoop, job_id: str | None) -> None:
        notice = rules.write_repeats_notice(session, loop, self.rule, job_id)
        log.warning("%s", notice.text)
        await commit(self._core.store, puts=make_puts(notice), what="people will be told that a session repeats itself")
        publish_notice(self._core.bus, notice)

    async def facts(self) -> list[str]:
        """Says which sessions repeat themselves now."""
        since = self._core.clock.now() - TOLD_FOR
        loops = [(kept.key, kept.value.loop) for kept in await REPEATS.all(self._core.store)]
        return [rules.describe_loop(session, loop, self.rule) for session, loop in loops if loop and loop.at >= since]

    async def forget(self, session: str) -> None:
        """Drops a session's window."""
        self._fine.pop(session, None)
        self._looping.discard(session)
        await commit(self._core.store, puts=[REPEATS.drop(session)], what=f"the window of session {session} was erased")

    async def prune(self, now: float) -> None:
        """Drops the windows of sessions that have done nothing for a day."""
        for kept in await REPEATS.all(self._core.store):
            if kept.value.at < now - KEPT_FOR:
                drop, what = REPEATS.drop(kept.key, kept.version), f"the window of session {kept.key} was dropped"
                await try_commit(self._core.store, puts=[drop], what=what)
