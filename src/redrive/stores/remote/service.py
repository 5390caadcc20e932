"""Hub: answers the requests of stores without a file from the store of this process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec

from redrive.core.commands import Apply, Command, GiveBack, Insert, Take, Ticket
from redrive.core.job import Job
from redrive.core.store import Applied, Claim, Outcome, Store
from redrive.errors import InvalidInput, RedriveError, StoreError
from redrive.stores.remote import protocol
from redrive.stores.remote.backups import Copies
from redrive.stores.remote.protocol import CountLine, Executed

log = logging.getLogger("redrive.hub")
NOTHING: Final = Claim([], [])
LONGEST_WAIT: Final = 20.0
"""Seconds for which a hub keeps a request that waits for work."""


class Answered(NamedTuple):
    """Holds an answer for a client, and the tokens of the jobs that it gives to the client."""

    data: bytes
    tokens: tuple[str, ...] = ()


class HubStore(Store, Protocol):
    """A store on a file or a replica, which can act for clients."""

    async def execute(self, command: Command, ticket: Ticket | None) -> Any: ...
    async def take(self, take: Take) -> Claim: ...
    async def stagger(self) -> None: ...
    async def scan_page(self, after: int) -> tuple[list[Job], int]: ...


class Hub:
    """Dispatches requests, which come as bytes over HTTPS or NATS."""

    def __init__(self, store: Store) -> None:
        self._store = cast("HubStore", store)
        self._kept: dict[str, asyncio.Task[Claim]] = {}
        """Requests that wait for work, by the token under which they claim it."""
        copies = Copies(store)
        self._own: dict[str, Callable[..., Awaitable[Any]]] = {
            "hello": self._store.open,
            "scan": self._store.scan_page,
            "count": self._count,
            "lessons": lambda fingerprints: self._store.lessons(*fingerprints),
            "execute": self._execute,
            "take": self._store.take,
            "take_next": self._take_next,
            "give_back": self._give_back,
            "withdraw": self._withdraw,
            "wait": self._wait,
            "backup_begin": copies.begin,
            "backup_piece": copies.piece,
            "backup_end": copies.end,
        }

    async def answer(self, data: bytes) -> bytes:
        """Return the answer to one request."""
        return (await self.perform(data)).data

    async def perform(self, data: bytes, guarded: Collection[str] = ()) -> Answered:
        """Perform one request; a refusal of the store is an answer, too.

        `guarded` are the kinds of documents that this client may not write.
        """
        try:
            value = await self._dispatch(data, guarded)
            tokens = {job.token for job in value.jobs} if isinstance(value, Claim) else ()
            return Answered(protocol.write_answer(value), tuple(token for token in tokens if token is not None))
        except RedriveError as error:
            return Answered(protocol.write_refusal(error))
        except Exception as error:
            log.exception("a request failed")
            return Answered(protocol.write_refusal(StoreError(f"the hub met a defect: {error!r}")))

    async def undo(self, answered: Answered) -> None:
        """Put back jobs that were claimed for a client that could not be told of them; no attempt is spent."""
        for token in answered.tokens:
            await self._give_back(token)

    async def _dispatch(self, data: bytes, guarded: Collection[str]) -> Any:
        try:
            request = protocol.read_request(data)
            name = request.verb
            if request.version > protocol.VERSION:
                raise StoreError("this hub is older than its client: upgrade redrive here first")
            verb = protocol.verbs().get(name)
            if verb is None:
                raise StoreError(f"this hub knows no verb {name!r}: upgrade redrive here")
            arguments = msgspec.structs.astuple(verb.read_arguments.decode(request.arguments))
        except msgspec.MsgspecError as error:
            raise StoreError(f"a request cannot be read by this hub: {error}") from error
        _check_kinds(arguments, guarded)
        own = self._own.get(name)
        if own is not None:
            return await own(*arguments)
        names = verb.arguments.__struct_fields__
        return await getattr(self._store, name)(**dict(zip(names, arguments, strict=True)))

    async def _count(self, filter: Any, by: Any, current: bool) -> list[CountLine]:
        counted = await self._store.count(filter, by, current=current)
        return [CountLine(key, number) for key, number in counted.items()]

    async def _execute(self, command: Command, ticket: Ticket) -> Executed:
        outcome = await self._store.execute(command, ticket)
        match command:
            case Insert():
                return Executed(inserted=outcome)
            case Apply():
                return Executed(outcomes=[_write_outcome(commit) for commit in outcome])
            case _:
                return Executed(number=outcome if isinstance(outcome, int) else None)

    async def _take_next(self, take: Take, seconds: float) -> Claim:
        """Keep a request until there is work for it, until its time is over, or until it is withdrawn."""
        task = self._kept[take.token] = asyncio.ensure_future(self._claim_when_due(take, seconds))
        try:
            return await task
        except asyncio.CancelledError:
            if not task.cancelled():
                task.cancel()
                raise
            await self._give_back(take.token)
            return NOTHING
        finally:
            self._kept.pop(take.token, None)

    async def _withdraw(self, token: str) -> None:
        """Claim nothing more for a client that does not wait any more."""
        if (task := self._kept.get(token)) is not None:
            task.cancel()

    async def _give_back(self, token: str) -> int:
        number: int = await self._store.execute(GiveBack(token), None)
        return number

    async def _claim_when_due(self, take: Take, seconds: float) -> Claim:
        began, until = time.monotonic(), time.monotonic() + min(seconds, LONGEST_WAIT)
        while True:
            now = take.now + time.monotonic() - began
            claim = await self._store.take(msgspec.structs.replace(take, now=now))
            left = until - time.monotonic()
            if claim.jobs or claim.lapsed or left <= 0:
                return claim
            due = left if claim.next_due is None else claim.next_due - now
            if await self._store.wait(claim.mark, max(0.0, min(left, due))):
                await self._store.stagger()

    async def _wait(self, mark: int, seconds: float) -> bool:
        return await self._store.wait(mark, min(seconds, LONGEST_WAIT))


def _check_kinds(arguments: tuple[Any, ...], guarded: Collection[str]) -> None:
    """Refuse a command that writes a document of a guarded kind."""
    for command in arguments:
        puts = command.puts if isinstance(command, Insert) else ()
        if isinstance(command, Apply):
            puts = tuple(put for commit in command.commits for put in commit.puts)
        if kinds := {put.kind for put in puts} & set(guarded):
            problem = f"this token may not write documents of the kind {', '.join(sorted(kinds))}: that needs purge"
            raise InvalidInput(field="role", problem=problem)


def _write_outcome(outcome: Outcome) -> list[int] | str:
    return list(outcome.fences) if isinstance(outcome, Applied) else getattr(outcome, "job_id", None) or ""
