"""Enqueues jobs inside a caller's own transaction, and relays them into the store.

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
from redrive.engine import tracing
from redrive.errors import ConfigError, InvalidInput, RedriveError, StoreError, StoreUnavailable
from redrive.jobs.enqueuer import Enqueuer
from redrive.jobs.job_options import Prepared
from redrive.jobs.spool import SpoolEntry
from redrive.jobs.tasks import Many

if TYPE_CHECKING:
    from redrive.jobs.core import Core
    from redrive.stores.inbox import InboxBatch, InboxTable

log = logging.getLogger("redrive.relay")
LIMIT: Final = 100
"""How many rows are moved together."""
Payload = Mapping[str, Any]


class Transactions:
    """Enqueues jobs through the table rd_inbox."""

    def __init__(self, core: Core, enqueuer: Enqueuer) -> None:
        self._core = core
        self._enqueuer = enqueuer
        self._relay: Relay | None = None

    async def enqueue(self, task: str, payload: Payload, options: Mapping[str, Any], within: Any) -> Prepared:
        """Write a job into the caller's transaction."""
        prepared = self._prepare(task, payload, options)
        await run(caller_of(within), lambda dialect: write_rows(dialect, self._make_rows([prepared])))
        return prepared

    def enqueue_now(self, task: str, payload: Payload, options: Mapping[str, Any], within: Any) -> Prepared:
        """Write a job into the caller's transaction in the caller's thread, to which its connection belongs."""
        prepared = self._prepare(task, payload, options)
        run_now(caller_of(within), lambda dialect: write_rows(dialect, self._make_rows([prepared])))
        return prepared

    async def enqueue_many(self, task: str, items: Sequence[Any], options: Mapping[str, Any], within: Any) -> Many:
        """Write the jobs of all items that are accepted into the caller's transaction."""
        _refuse_fallback(options)
        caller = caller_of(within)
        ready, refused = self._enqueuer.prepare_all(task, items, options)
        if ready:
            await run(caller, lambda dialect: write_rows(dialect, self._make_rows(list(ready.values()))))
        ids = [ready[index].job.id if index in ready else None for index in range(len(items))]
        return Many(ids, 0, refused)

    def _prepare(self, task: str, payload: Payload, options: Mapping[str, Any]) -> Prepared:
        _refuse_fallback(options)
        return self._enqueuer.prepare(
            self._enqueuer.plan(task, self._enqueuer.add_key(task, payload, options)), payload
        )

    def _make_rows(self, prepared: Sequence[Prepared]) -> list[InboxRow]:
        """Make rows with ids of their own: the same key twice in one transaction must not fail the second."""
        from redrive.stores.inbox import namespace_of

        tracer, jobs = tracing.get_tracer(), [ready.job for ready in prepared]
        if tracer is not None:
            with tracer.sending(jobs) as sent:
                jobs = list(sent.jobs)
        namespace, rows = namespace_of(self._core.settings.inbox), list[InboxRow]()
        for job, ready in zip(jobs, prepared, strict=True):
            entry = msgspec.json.encode(SpoolEntry(job, ready.documents, ready.on_duplicate)).decode()
            rows.append(InboxRow(self._enqueuer.new_id() if job.key else job.id, namespace, entry))
        return rows

    def relay(self, url: str | None = None) -> Relay:
        """Make a relay for this inbox, or for the one that the settings name."""
        from redrive.stores.inbox import open_inbox

        url = url or self._core.settings.inbox
        if not url:
            raise ConfigError('inbox: name the database of your application, e.g. inbox = "postgresql://host/app"')
        return Relay(open_inbox(url), self._enqueuer.take_entry)

    async def mind_inbox(self) -> int:
        """Move the jobs of the inbox that the settings name into the store; return how many."""
        if not self._core.settings.inbox:
            return 0
        if self._relay is None:
            self._relay = self.relay()
        return await self._relay.mind()

    async def close(self) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            await relay.close()


class Relay:
    """Moves committed rows of an inbox into the store."""

    def __init__(self, inbox: InboxTable, insert: Callable[[SpoolEntry], Awaitable[None]]) -> None:
        self._inbox = inbox
        self._insert = insert
        self._problem: str | None = None
        self._warned_of_marked = False

    async def mind(self) -> int:
        """Move the committed rows. An inbox that cannot be reached is logged once; the next call tries it again."""
        try:
            moved = await self.move()
        except StoreUnavailable as error:
            if self._problem is None:
                log.warning("%s; trying again", error)
            self._problem = str(error)
            return 0
        self._problem = None
        return moved

    async def move(self) -> int:
        """Move all rows that are committed; return how many."""
        await self._warn_of_marked()
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
        by_id = list(zip([row.id for row in batch.rows], outcomes, strict=True))
        moved = [id for id, outcome in by_id if outcome is None]
        await batch.settle(moved, {id: outcome for id, outcome in by_id if isinstance(outcome, str)})
        return len(moved), next((outcome for outcome in outcomes if isinstance(outcome, StoreError)), None)

    async def _take_in(self, row: InboxRow) -> str | StoreError | None:
        """Insert a row's job. Return what is wrong with the row, or the store's error; None where all is well."""
        try:
            await self._insert(msgspec.json.decode(row.payload, type=SpoolEntry))
        except StoreError as error:
            return error
        except (msgspec.MsgspecError, RedriveError, ValueError, TypeError, LookupError) as error:
            problem = f"{type(error).__name__}: {error}"
            log.warning("row %s of the inbox %s is kept and marked: %s", row.id, self._inbox.url, problem)
            return problem
        return None

    async def _warn_of_marked(self) -> None:
        if self._warned_of_marked:
            return
        marked = await self._inbox.marked()
        self._warned_of_marked = True
        if marked:
            then = "read their column problem, enqueue anew what they say, then delete them"
            log.warning("%d rows of the inbox %s cannot be moved: %s", marked, self._inbox.url, then)

    async def close(self) -> None:
        await self._inbox.close()


def _refuse_fallback(options: Mapping[str, Any]) -> None:
    if options.get("fallback"):
        problem = "does not go with within: the job must not exist without your data"
        raise InvalidInput(field="fallback", problem=problem)
