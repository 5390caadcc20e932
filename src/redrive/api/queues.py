"""`rd.queues`: lists, pauses and resumes queues."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from redrive.core.checks import MOST_NAMED, check_name, check_words
from redrive.core.commit import commit
from redrive.core.store import Filter
from redrive.engine.queue_pauses import QueuePause, put_pause, read_paused_queues
from redrive.errors import InvalidInput
from redrive.jobs.core import DEFAULT_WHO
from redrive.reports.gather_workforce import paces
from redrive.reports.queue_numbers import QueueView, with_paces
from redrive.reports.workforce import Paces

if TYPE_CHECKING:
    from redrive.api.workers import Workers
    from redrive.jobs.core import Core
    from redrive.reports.watch import Watch


class Queues:
    """Lists, pauses and resumes queues."""

    def __init__(self, core: Core, watch: Watch, workers: Workers) -> None:
        self._core = core
        self._watch = watch
        self._workers = workers

    async def list(self) -> builtins.list[QueueView]:
        """List every queue as it is now, with how long its last successes waited and took, and the day's failures."""
        return with_paces(await self._watch.numbers(), await self.paces())

    async def paces(self) -> Paces:
        """Measure how fast every queue goes: it costs more than the numbers, which may be read more often."""
        return await paces(self._core, "queue")

    async def paused(self) -> dict[str, QueuePause]:
        """Return the paused queues by name, with who paused each, when and why."""
        return await read_paused_queues(self._core.store)

    async def doubt(self, name: str) -> str | None:
        """Say why there may be no such queue: it has no policy, and no job was ever in it; else None."""
        used = sorted({str(queue) for (queue,) in await self._core.store.count(Filter(), by=("queue",))})
        registry = self._core.registry
        known = registry.queues.keys() | {handler.queue for handler in registry.handlers.values()}
        if name in known or name in used:
            return None
        shown, more = ", ".join(used[:MOST_NAMED]), len(used) - MOST_NAMED
        others = f"the queues are {shown}{f' and {more} more' if more > 0 else ''}" if used else "there are none yet"
        return f"no job was ever in it; {others}"

    async def pause(self, name: str, *, who: str = DEFAULT_WHO, why: str | None = None, new: bool = False) -> None:
        """Pause a queue: workers take nothing from it until it is resumed; what runs goes on.

        A queue in which no job ever was is refused, because it is probably misspelt; `new=True` pauses it all the same.
        """
        if not new and (doubt := await self.doubt(check_name("queue", name))) is not None:
            raise InvalidInput(field="queue", problem=f"there is no queue {name!r}: {doubt}")
        await self._set(name, QueuePause(True, who, why, self._core.clock.now()))

    async def resume(self, name: str, *, who: str = DEFAULT_WHO, why: str | None = None) -> None:
        await self._set(name, QueuePause(False, who, why, self._core.clock.now()))

    async def _set(self, name: str, switch: QueuePause) -> None:
        check_name("queue", name)
        check_words(switch.who, switch.why)
        done = "paused" if switch.paused else "resumed"
        await commit(self._core.store, puts=[put_pause(name, switch)], what=f"queue {name} was {done}")
        self._workers.tell(lambda worker: worker.refresh())
