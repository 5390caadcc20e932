"""The effects of `ctx.once` as the store keeps them: a document each, under the job's id and the effect's name."""

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
    """Of one job, or of all."""
    return [document.value for document in await EFFECT.all(store, "" if job_id is None else _key(job_id))]


async def read_effect(store: Store, job_id: str, name: str) -> EffectRecord | None:
    """What is known of this one; None where it was never begun."""
    known = await EFFECT.get(store, _key(job_id, name))
    return known.value if known is not None else None


def put_effect(job_id: str, effect: EffectRecord) -> Put:
    return EFFECT.put(_key(job_id, effect.name), effect)


def drop_effect(job_id: str, name: str) -> Put:
    """As if it had never been begun: the next run does it."""
    return EFFECT.drop(_key(job_id, name))


def _key(job_id: str, name: str = "") -> str:
    """Without a name, what those of all its effects begin with."""
    return f"{job_id}/{name}"


def judge(error: Exception) -> tuple[Status, str]:
    """Says whether an error out of an effect proves that nothing happened outside, and what it said."""
    failure = capture(error)
    absent = proves_absent(failure) and not was_redirected(error)
    return "absent" if absent else "unknown", failure.summary[:500]


_CHAIN: Final = 5
_DONE_THERE: Final = frozenset({301, 302, 303})
"""Answers after which the next request is a GET: look there. After 307 and 308 the same request is made again."""
_CLIENTS: Final = ("httpx", "requests.", "aiohttp.")


def was_redirected(error: BaseException) -> bool:
    """By the history of the answer; where there was no answer, by what the client library had at hand as it failed."""
    return any(_answers(_history(each)) or _answers(_at_hand(each)) for each in islice(_chain(error), _CHAIN))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _history(error: BaseException) -> object:
    """httpx and requests keep it with the response, aiohttp with the error."""
    return attribute(attribute(error, "response"), "history") or attribute(error, "history")


def _at_hand(error: BaseException) -> Iterator[object]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).startswith(_CLIENTS):
            history = frame.f_locals.get("history") or frame.f_locals.get("hist")
            yield from history if isinstance(history, list | tuple) else ()


def _answers(history: object) -> bool:
    return isinstance(history, Iterable) and any(_status(answer) in _DONE_THERE for answer in history)


def _status(answer: object) -> object:
    """`status_code` of httpx and requests, `status` of aiohttp."""
    return attribute(answer, "status_code") or attribute(answer, "status")
