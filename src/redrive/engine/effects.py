"""Reads and writes the effects of `ctx.once`: a document each, under the job's id and the effect's name."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from redrive.core.documents import EFFECT
from redrive.core.effects import EffectRecord, Status, proves_absent
from redrive.core.store import Put, Store
from redrive.failures.capture import capture
from redrive.failures.safe_getattr import attribute


async def read_effects(store: Store, job_id: str | None = None) -> list[EffectRecord]:
    """Reads the effects of one job, or of all jobs."""
    return [document.value for document in await EFFECT.all(store, "" if job_id is None else _key(job_id))]


async def read_effect(store: Store, job_id: str, name: str) -> EffectRecord | None:
    """Reads the record of one effect; None where the effect was never begun."""
    known = await EFFECT.get(store, _key(job_id, name))
    return known.value if known is not None else None


def put_effect(job_id: str, effect: EffectRecord) -> Put:
    return EFFECT.put(_key(job_id, effect.name), effect)


def drop_effect(job_id: str, name: str) -> Put:
    """Makes the put that drops an effect's record, so that the next run performs the effect."""
    return EFFECT.drop(_key(job_id, name))


def _key(job_id: str, name: str = "") -> str:
    """Makes the key of an effect; without a name, the prefix of the keys of all effects of the job."""
    return f"{job_id}/{name}"


def judge(error: Exception) -> tuple[Status, str]:
    """Tells whether an error from an effect proves that nothing happened outside, with the summary of the error."""
    failure = capture(error)
    absent = proves_absent(failure) and not was_redirected(error)
    return "absent" if absent else "unknown", failure.summary[:500]


_CHAIN: Final = 5
_DONE_THERE: Final = frozenset({301, 302, 303})
"""Statuses that redirect to a GET, so the first request was done. After 307 and 308 the same request is repeated."""
_CLIENTS: Final = ("httpx", "requests.", "aiohttp.")


def was_redirected(error: BaseException) -> bool:
    """Tells whether a redirect to a GET preceded an error, by the response's history, else by the client's locals."""
    return any(_answers(_history(each)) or _answers(_at_hand(each)) for each in islice(_chain(error), _CHAIN))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _history(error: BaseException) -> object:
    """Returns the redirect history, which httpx and requests keep with the response, aiohttp with the error."""
    return attribute(attribute(error, "response"), "history") or attribute(error, "history")


def _at_hand(error: BaseException) -> Iterator[object]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).startswith(_CLIENTS):
            history = frame.f_locals.get("history") or frame.f_locals.get("hist")
            yield from history if isinstance(history, list | tuple) else ()


def _answers(history: object) -> bool:
    return isinstance(history, Iterable) and any(_status(answer) in _DONE_THERE for answer in history)


def _status(answer: object) -> object:
    """Returns the status of a response: `status_code` of httpx and requests, `status` of aiohttp."""
    return attribute(answer, "status_code") or attribute(answer, "status")
