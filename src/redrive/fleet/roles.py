"""Runs the roles of a fleet without running jobs: monitor, triage, retry and upkeep, each in one process at a time.

The schedulers of workers do the same duties under the same leases, so roles may run in `redrive serve`, in workers,
alone, or in all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from redrive.core.checks import check_choice
from redrive.engine.scheduler import ROLES
from redrive.errors import InvalidInput
from redrive.jobs.open_store import NATS, read_scheme

if TYPE_CHECKING:
    from redrive.engine.loop import Loop
    from redrive.engine.worker import Worker
    from redrive.jobs.core import Core


class WorkerMaker(Protocol):
    """Makes the worker, scheduler and couriers of a process with roles."""

    def load(self) -> None: ...
    def make(self) -> Worker: ...
    def make_scheduler(self, worker: Worker, roles: Collection[str] | None = None) -> Loop: ...
    def couriers(self) -> Sequence[Loop]: ...


@asynccontextmanager
async def running_roles(core: Core, workers: WorkerMaker, roles: Collection[str]) -> AsyncIterator[None]:
    """Do the duties of these roles while the block runs."""
    if not roles:
        raise InvalidInput(field="roles", problem=f"name at least one of {', '.join(ROLES)}")
    for role in roles:
        check_choice("roles", role, ROLES)
    workers.load()
    async with core.holder.hold(closes=True), AsyncExitStack() as stack:
        loops: list[Loop] = [workers.make_scheduler(workers.make(), roles), *workers.couriers()]
        if "monitor" in roles and read_scheme(core.settings.url) in NATS:
            from redrive.fleet.open_side import open_side

            await stack.enter_async_context(open_side(core))
        for loop in loops:
            loop.start()
            stack.push_async_callback(loop.stop)
        yield
