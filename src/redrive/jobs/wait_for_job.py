"""Follows a job to its end, in this process or another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from redrive.core.documents import RESULT
from redrive.core.job import Job, State
from redrive.core.outcome import describe_death
from redrive.core.store import Event, Store
from redrive.engine.bus import BusEvent
from redrive.engine.settle import RESULT_APART
from redrive.errors import JobDead, JobDiscarded, JobNotFound
from redrive.jobs.core import find_job
from redrive.jobs.tasks import JobHandle, Seconds, read_seconds

if TYPE_CHECKING:
    from redrive.jobs.core import Core

T = TypeVar("T")
FOLLOW_SECONDS: Final = 0.25
PAGE: Final = 1_000


async def wait_for_result(core: Core, handle: JobHandle[Any], timeout: Seconds | None) -> Any:
    limit, seen = read_seconds(timeout, "timeout") if timeout is not None else None, list[Job]()

    async def ended() -> Job | None:
        try:
            seen[:] = [await handle.refresh()]
        except JobNotFound:
            if not handle.pending:
                raise
            return None  # its transaction is not committed yet, or its row was not moved yet
        return seen[0] if seen[0].ended else None

    try:
        job = await wait_for_answer(core, {handle.id}, ended, limit)
    except TimeoutError:
        if limit is None or not seen:
            raise
        raise TimeoutError(_explain_timeout(seen[0], limit)) from None
    if job.state is State.dead:
        raise JobDead(
            f"{describe_death(job)}. {job.recommendation}",
            job_id=job.id,
            reason=job.because or "",
            recommendation=job.recommendation,
        )
    if job.state in (State.discarded, State.purged):
        raise JobDiscarded(f"job {job.short_id} was {job.state}", job_id=job.id)
    text = await read_result(core.store, job)
    handler = core.registry.handlers.get(job.task)
    return handler.signature.result(text) if handler else (msgspec.json.decode(text) if text else None)


def _explain_timeout(job: Job, limit: float) -> str:
    """Say in which state a job is after the time of its caller, and what to do."""
    stands = f"job {job.short_id} ({job.task}) is {job.state} after {limit:g} s"
    if job.state is State.held:
        return f"{stands} ({job.because}). {job.recommendation}"
    if job.state is State.waiting and not job.run:
        return f"{stands}: no worker has taken it yet. It stays accepted; see that a worker runs"
    return f"{stands} and goes on; see `redrive status {job.short_id}`"


async def read_result(store: Store, job: Job) -> str | None:
    """Read the whole result as JSON, also where it is stored apart."""
    if job.result_json != RESULT_APART:
        return job.result_json
    document = await RESULT.get(store, f"{job.id}/")
    return document.value.decode() if document is not None else job.result_json


async def wait_for_answer(
    core: Core, ids: Collection[str], look: Callable[[], Awaitable[T | None]], limit: float | None = None
) -> T:
    """Look until there is an answer: at once when this or another process tells of a change, else from time to time.

    The first look has no limit of time: an answer that is there already counts.
    """
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def notice(event: BusEvent) -> None:
        if event.job_id in ids:
            loop.call_soon_threadsafe(changed.set)

    subscription = core.bus.subscribe("*", notice)
    try:
        async with core.store.follow(ids, changed):
            return await _look_until_answered(look, changed, limit)
    finally:
        subscription.close()


async def _look_until_answered(
    look: Callable[[], Awaitable[T | None]], changed: asyncio.Event, limit: float | None
) -> T:
    answer = await look()
    async with asyncio.timeout(limit):
        while answer is None:
            await _wait_for_change(changed)
            answer = await look()
    return answer


async def _wait_for_change(changed: asyncio.Event) -> None:
    """Wait until there is word of a change, or it is time to look again."""
    try:
        async with asyncio.timeout(FOLLOW_SECONDS):
            await changed.wait()
    except TimeoutError:
        return
    changed.clear()


async def follow_events(core: Core, job_id: str) -> AsyncIterator[Event]:
    """Yield all that is committed about a job from now on, in any process, until it ends."""
    (here,) = await core.store.events(None)
    cursor = here.cursor
    while True:
        ended = (await find_job(core.store, job_id)).ended
        more = True
        while more:
            events = await core.store.events(cursor, PAGE)
            more = len(events) >= PAGE
            for event in events:
                cursor = event.cursor
                if event.job_id == job_id:
                    yield event
        if ended:
            return
        await asyncio.sleep(FOLLOW_SECONDS)
