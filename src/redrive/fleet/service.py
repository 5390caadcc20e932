"""Serves `rd.fleet`: makes the open streams of a NATS fleet, and describes a fleet as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from redrive.core.checks import check_choice
from redrive.core.commit import commit
from redrive.engine.scheduler import ROLES
from redrive.errors import ConfigError, InvalidInput, StoreUnavailable
from redrive.fleet.hub import become_hub
from redrive.jobs.open_store import NATS, POSTGRES, hide_credentials, read_scheme

if TYPE_CHECKING:
    from redrive.engine.loop import Loop
    from redrive.engine.worker import Worker
    from redrive.fleet.status import FleetStatus
    from redrive.jobs.core import Core
    from redrive.stores.open_side.streams import Ensured
    from redrive.stores.open_side.survey import Survey
    from redrive.stores.replica.nats_connection import Connection


class WorkerMaker(Protocol):
    """Makes the worker, scheduler and couriers of a process with roles."""

    def load(self) -> None: ...
    def make(self) -> Worker: ...
    def make_scheduler(self, worker: Worker, roles: Collection[str] | None = None) -> Loop: ...
    def couriers(self) -> Sequence[Loop]: ...


class FleetService:
    """Acts on the whole fleet from a replica in this process."""

    def __init__(self, core: Core, workers: WorkerMaker) -> None:
        self._core = core
        self._workers = workers

    async def init(self, *, agents: Mapping[str, int | None] | None = None, limit: int | None = None) -> list[Ensured]:
        """Make the streams that are open to other programs, or bring them up to date; return what became of each.

        `limit` is how many dead letters a stream keeps. `agents` names agents whose streams are made now, each with its
        limit or None; the stream of another agent is made with its first dead letter.
        """
        from redrive.stores.open_side import streams
        from redrive.stores.open_side.names import OpenNames
        from redrive.stores.replica.nats_streams import Names, find_stream, stream_info

        await self._join(NATS)
        async with self._connected() as connection:
            names = OpenNames(connection.address.namespace)
            log = await stream_info(connection, Names(connection.address.namespace).log)
            replicas = int(log.config.get("num_replicas", 1))
            done = [
                await streams.ensure(connection, streams.configure_tasks(names, replicas)),
                await streams.ensure(connection, streams.configure_retries(names, replicas)),
            ]
            await streams.ensure_intake(connection, names)
            for agent, own in [(None, None), *(agents or {}).items()]:
                config = streams.configure_dead_letters(names, agent, replicas, streams.DEAD_LETTERS)
                done.append(await streams.ensure(connection, config, limit=own or limit))
            made = {stream.name for stream in done}
            for name in await streams.list_dead_letter_streams(connection, names):
                info = await find_stream(connection, name)
                if name not in made and info is not None:
                    done.append(await streams.ensure(connection, info.config, limit=limit))
        return done

    async def view(self) -> FleetStatus:
        """Return hosts, lag and durability as the store knows them, on every kind of store, without asking hubs."""
        from redrive.fleet.status import describe_fleet

        return await describe_fleet(self._core)

    async def status(self) -> FleetStatus:
        """Return the view, with what every hub answers now and what the servers say of the streams."""
        from redrive.fleet.status import HubView
        from redrive.stores.remote.presence import gather

        await self._join((*NATS, *POSTGRES))
        status, survey = await self.view(), await self.survey()
        if survey is None:
            return status
        async with self._connected() as connection:
            answers = await gather(connection)
        hubs = tuple(
            HubView(**msgspec.structs.asdict(hub), lag=max(0, status.end - hub.position), clock_off=off)
            for hub, off in answers
        )
        return msgspec.structs.replace(status, hubs=hubs, streams=survey.streams)

    async def survey(self) -> Survey | None:
        """Return the streams as the servers describe them; None for a log that is not on NATS."""
        from redrive.stores.open_side.survey import survey

        if read_scheme(self._core.settings.url) not in NATS:
            return None
        async with self._connected() as connection:
            return await survey(connection)

    async def resume(self) -> str | None:
        """Let a halted fleet claim again. Return why it was halted, or None where it was not."""
        await self._join((*NATS, *POSTGRES))
        store: Any = self._core.store
        why: str | None = await store.resume()
        return why

    @asynccontextmanager
    async def roles(self, *names: str) -> AsyncIterator[None]:
        """Do duties while no other process does: `async with rd.fleet.roles("monitor", "triage", "retry"):`.

        The schedulers of workers do the same duties under the same leases, so roles may run in `redrive serve`, in
        workers, alone, or in all of them.
        """
        if not names:
            raise InvalidInput(field="roles", problem=f"name at least one of {', '.join(ROLES)}")
        for name in names:
            check_choice("roles", name, ROLES)
        self._workers.load()
        async with self._core.holder.hold(closes=True), AsyncExitStack() as stack:
            loops: list[Loop] = [self._workers.make_scheduler(self._workers.make(), names), *self._workers.couriers()]
            if "monitor" in names and read_scheme(self._core.settings.url) in NATS:
                from redrive.fleet.open_side import open_side

                await stack.enter_async_context(open_side(self._core))
            for loop in loops:
                loop.start()
                stack.push_async_callback(loop.stop)
            yield

    async def forget(self, name: str) -> bool:
        """Stop waiting for a replica whose file is deleted; return False where none has this name."""
        from redrive.stores.replica.chores import REPLICA

        await self._join((*NATS, *POSTGRES))
        if await REPLICA.get(self._core.store, name) is None:
            return False
        await commit(self._core.store, puts=[REPLICA.drop(name)], what=f"replica {name} was forgotten")
        return True

    async def _join(self, schemes: tuple[str, ...]) -> None:
        """Open a replica in this process. A file, or hubs over HTTP, are no log."""
        if read_scheme(self._core.settings.url) not in schemes:
            wanted = " or ".join(f"{scheme}://" for scheme in schemes if scheme in ("nats", "postgresql"))
            raise ConfigError(
                f"{hide_credentials(self._core.settings.url)} is not a {wanted} URL: name the fleet's log with --url"
            )
        become_hub(self._core)
        await self._core.holder.open()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        from redrive.stores.replica.log import LogUnavailable
        from redrive.stores.replica.nats_connection import connected

        try:
            async with connected(self._core.settings.url) as connection:
                yield connection
        except LogUnavailable as error:
            raise StoreUnavailable(str(error)) from error
