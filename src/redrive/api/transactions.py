"""Jobs that are handed in inside a caller's own transaction, and the relay that moves them into the store.

`within=` writes a row into the table rd_inbox of the caller's database. The row is committed with the caller's data or
not at all, and no store is needed. The relay inserts the job of every committed row under the id that the row holds,
and deletes the row afterwards: a row that is moved twice is one job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.api.caller_transaction import caller_of, run, run_now
from redrive.core.inbox_table import InboxRow, write_rows
from redrive.core.job import Job
from redrive.engine import tracing
from redrive.errors import ConfigError, InvalidInput, RedriveError, StoreError, StoreUnavailable
from redrive.jobs.enqueuer import Enqueuer, Prepared
from redrive.jobs.spool import SpoolEntry
from redrive.jobs.tasks import Many

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.stores.inbox import InboxBatch, InboxTable

log = logging.getLogger("redrive.relay")
LIMIT: Final = 100
"""Rows that are moved together."""
Payload = Mapping[str, Any]


class Transactions:
    """Hands jobs in through the table rd_inbox."""

    def __init__(self, core: Core, enqueuer: Enqueuer) -> None:
        self._core = core
        self._enqueuer = enqueuer
        self._relay: Relay | None = None

    async def enqueue(self, task: str, payload: Payload, options: Mapping[str, Any], within: Any) -> Prepared:
        """Write a job into the caller's transaction."""
        prepared = self._prepared(task, payload, options)
        await run(caller_of(within), lambda dialect: write_rows(dialect, self._rows([prepared])))
        return prepared

    def enqueue_now(self, task: str, payload: Payload, options: Mapping[str, Any], within: Any) -> Prepared:
        """The same in the caller's thread, for code without an event loop: connections belong to their threads."""
        prepared = self._prepared(task, payload, options)
        run_now(caller_of(within), lambda dialect: write_rows(dialect, self._rows([prepared])))
        return prepared

    async def enqueue_many(self, task: str, items: Sequence[Any], options: Mapping[str, Any], within: Any) -> Many:
        """Write the jobs of all items that are accepted into the caller's transaction."""
        _refuse_fallback(options)
        caller = caller_of(within)
        ready, refused = self._enqueuer.prepare_all(task, items, options)
        if ready:
            await run(caller, lambda dialect: write_rows(dialect, self._rows(list(ready.values()))))
        ids = [ready[index].job.id if index in ready else None for index in range(len(items))]
        return Many(ids, 0, refused)

    def _prepared(self, task: str, payload: Payload, options: Mapping[str, Any]) -> Prepared:
        _refuse_fallback(options)
        return self._enqueuer.prepare(
            self._enqueuer.plan(task, self._enqueuer.add_key(task, payload, options)), payload
        )

    def _rows(self, prepared: Sequence[Prepared]) -> list[InboxRow]:
        """Rows with ids of their own: the same key twice in one transaction must not fail the second."""
        from redrive.stores.inbox import namespace_of

        tracer, jobs = tracing.tracer(), [each.job for each in prepared]
        if tracer is not None:
            with tracer.sending(jobs) as sent:
                jobs = list(sent.jobs)
        namespace = namespace_of(self._core.settings.inbox)
        return [
            InboxRow(self._enqueuer.new_id() if job.key else job.id, namespace, _packed(job, each))
            for job, each in zip(jobs, prepared, strict=True)
        ]

    def relay(self, url: str | None = None) -> Relay:
        """Makes a relay for this inbox, or for the one that the settings name."""
        from redrive.stores.inbox import open_inbox

        url = url or self._core.settings.inbox
        if not url:
            raise ConfigError('inbox: name the database of your application, e.g. inbox = "postgresql://host/app"')
        return Relay(open_inbox(url), self._enqueuer.take_entry)

    async def mind_inbox(self) -> int:
        """Moves what was committed into the inbox that the settings name; how many jobs."""
        if not self._core.settings.inbox:
            return 0
        if self._relay is None:
            self._relay = self.relay()
        return await self._relay.mind()

    async def close(self) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            await relay.close()


def _packed(job: Job, prepared: Prepared) -> str:
    return msgspec.json.encode(SpoolEntry(job, prepared.documents, prepared.on_duplicate)).decode()


class Relay:
    """Moves committed rows of an inbox into the store."""

    def __init__(self, inbox: InboxTable, insert: Callable[[SpoolEntry], Awaitable[None]]) -> None:
        self._inbox = inbox
        self._insert = insert
        self._trouble: str | None = None
        self._told_marked = False

    async def mind(self) -> int:
        """Move what is there. An inbox that cannot be reached is told once, and tried again with the next call."""
        try:
            moved = await self.move()
        except StoreUnavailable as error:
            if self._trouble is None:
                log.warning("%s; trying again", error)
            self._trouble = str(error)
            return 0
        self._trouble = None
        return moved

    async def move(self) -> int:
        """Move all rows that are committed; how many they were."""
        await self._tell_marked()
        moved, more = 0, True
        while more:
            async with self._inbox.take(LIMIT) as batch:
                done, error = await self._move_batch(batch)
                more = len(batch.rows) == LIMIT
            moved += done
            if error is not None:
                raise error
        return moved

    async def _move_batch(self, batch: InboxBatch) -> tuple[int, StoreError | None]:
        """Insert the jobs of a batch, then settle its rows; also those of a batch that the store took in part."""
        outcomes = await asyncio.gather(*(self._take_in(row) for row in batch.rows))
        moved = [row.id for row, outcome in zip(batch.rows, outcomes, strict=True) if outcome is None]
        problems = {
            row.id: outcome for row, outcome in zip(batch.rows, outcomes, strict=True) if isinstance(outcome, str)
        }
        await batch.settle(moved, problems)
        return len(moved), next((outcome for outcome in outcomes if isinstance(outcome, StoreError)), None)

    async def _take_in(self, row: InboxRow) -> str | StoreError | None:
        """Insert a row's job. Says what is wrong with a row that never can be, and what with the store."""
        try:
            await self._insert(msgspec.json.decode(row.payload, type=SpoolEntry))
        except StoreError as error:
            return error
        except (msgspec.MsgspecError, RedriveError, ValueError, TypeError, LookupError) as error:
            problem = f"{type(error).__name__}: {error}"
            log.warning("row %s of the inbox %s is kept and marked: %s", row.id, self._inbox.url, problem)
            return problem
        return None

    async def _tell_marked(self) -> None:
        if self._told_marked:
            return
        marked = await self._inbox.marked()
        self._told_marked = True
        if marked:
            log.warning(
                "%d rows of the inbox %s cannot be moved: read their column problem, enqueue anew what they say, then"
                " delete them",
                marked,
                self._inbox.url,
            )

    async def close(self) -> None:
        await self._inbox.close()


def _refuse_fallback(options: Mapping[str, Any]) -> None:
    """A transaction is the only way for a job that must not exist without it."""
    if options.get("fallback"):
        raise InvalidInput(
            field="fallback", problem="does not go with within: the job must not exist without your data"
        )
