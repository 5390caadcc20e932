"""`rd.fleet`: makes the open streams of a NATS fleet, and looks at a fleet as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core.commit import commit
from redrive.errors import ConfigError, StoreUnavailable
from redrive.fleet.hub import become_hub
from redrive.jobs.open_store import NATS, POSTGRES, scheme_of, shown

if TYPE_CHECKING:
    from redrive.fleet.roles import WorkerMaker
    from redrive.fleet.status import FleetStatus, HubView
    from redrive.jobs.core import Core
    from redrive.stores.open_side.streams import Ensured
    from redrive.stores.open_side.survey import Survey
    from redrive.stores.replica.nats_connection import Connection

CONNECT_SECONDS: Final = 20.0


class FleetService:
    """Verbs for the whole fleet. They keep a replica in this process."""

    def __init__(self, core: Core, workers: WorkerMaker) -> None:
        self._core = core
        self._workers = workers

    async def init(self, *, agents: Mapping[str, int | None] | None = None, limit: int | None = None) -> list[Ensured]:
        """Make the streams that are open to other programs, or bring them up to date; what became of each.

        `limit` is how many dead letters a stream keeps; `agents` names agents whose streams are made now, each with a
        limit of its own or None. The others get theirs with their first dead letter.
        """
        from redrive.stores.open_side import streams
        from redrive.stores.open_side.names import OpenNames

        self._join(NATS)
        await self._core.holder.open()
        async with self._connected() as connection:
            names = OpenNames(connection.address.namespace)
            replicas = await _replicas(connection)
            done = [
                await streams.ensure(connection, streams.tasks_config(names, replicas)),
                await streams.ensure(connection, streams.retries_config(names, replicas)),
            ]
            await streams.ensure_intake(connection, names)
            for agent, own in [(None, None), *(agents or {}).items()]:
                config = streams.letters_config(names, agent, replicas, streams.LETTERS)
                done.append(await streams.ensure(connection, config, limit=own or limit))
            made = {one.name for one in done}
            for name in await streams.streams_of_letters(connection, names):
                info = await streams.find(connection, name)
                if name not in made and info is not None:
                    done.append(await streams.ensure(connection, info.config, limit=limit))
        return done

    async def view(self) -> FleetStatus:
        """Hosts, lag and durability as the store knows them, on every kind of store, without asking other hubs."""
        from redrive.fleet.status import fleet_view

        return await fleet_view(self._core)

    async def status(self) -> FleetStatus:
        """The view, with what every hub answers now and what the servers say of the streams."""
        from redrive.fleet.status import OpenStream

        self._join((*NATS, *POSTGRES))
        await self._core.holder.open()
        found, survey = await self.view(), await self.survey()
        streams = tuple(
            OpenStream(one.name, one.holds, one.messages, one.limit, one.full)
            for one in (survey.streams if survey is not None else ())
        )
        return msgspec.structs.replace(found, hubs=await self._hubs(found.end), streams=streams)

    async def survey(self) -> Survey | None:
        """The streams, as the servers say; None for a log that is not on NATS."""
        from redrive.stores.open_side.survey import survey

        if scheme_of(self._core.settings.url) not in NATS:
            return None
        async with self._connected() as connection:
            return await survey(connection)

    async def _hubs(self, end: int) -> tuple[HubView, ...]:
        from redrive.fleet.status import HubView
        from redrive.stores.remote.presence import gather

        if scheme_of(self._core.settings.url) not in NATS:
            return ()
        async with self._connected() as connection:
            heard = await gather(connection)
        return tuple(
            HubView(
                said.host,
                said.pid,
                said.position,
                max(0, end - said.position),
                said.generation,
                off,
                said.halted,
                said.trouble,
            )
            for said, off in heard
        )

    async def resume(self) -> str | None:
        """Let a halted fleet claim again; why it was halted, or None where it was not."""
        self._join((*NATS, *POSTGRES))
        await self._core.holder.open()
        store: Any = self._core.store
        why: str | None = await store.resume()
        return why

    def roles(self, *names: str) -> AbstractAsyncContextManager[None]:
        """`async with rd.fleet.roles("monitor", "triage", "retry"):` does these duties while no other process does."""
        from redrive.fleet.roles import running_roles

        return running_roles(self._core, self._workers, names)

    async def forget(self, name: str) -> bool:
        """Wait no longer for a replica whose file is deleted; False where none has this name."""
        from redrive.stores.replica.chores import REPLICA

        self._join((*NATS, *POSTGRES))
        await self._core.holder.open()
        if await REPLICA.get(self._core.store, name) is None:
            return False
        await commit(self._core.store, puts=[REPLICA.drop(name)], what=f"replica {name} was forgotten")
        return True

    def _join(self, schemes: tuple[str, ...]) -> None:
        """Keep a replica in this process. A file, or hubs over HTTP, are no log."""
        if scheme_of(self._core.settings.url) not in schemes:
            wanted = " or ".join(f"{scheme}://" for scheme in schemes if scheme in ("nats", "postgresql"))
            raise ConfigError(
                f"{shown(self._core.settings.url)} is not a {wanted} URL: name the fleet's log with --url"
            )
        become_hub(self._core)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        from redrive.stores.replica.log import LogUnavailable
        from redrive.stores.replica.nats_address import read_address
        from redrive.stores.replica.nats_connection import Connection

        connection = Connection(read_address(self._core.settings.url))
        try:
            await connection.open(CONNECT_SECONDS)
            yield connection
        except LogUnavailable as error:
            raise StoreUnavailable(str(error)) from error
        finally:
            await connection.close()


async def _replicas(connection: Connection) -> int:
    """As many as the log has."""
    from redrive.stores.replica.nats_streams import Names, stream_info

    info = await stream_info(connection, Names(connection.address.namespace).log)
    return int(info.config.get("num_replicas", 1))
