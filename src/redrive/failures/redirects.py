"""Whether a request failed only behind a redirect: whoever sent it there may have done what was asked before."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from redrive.failures.safe_getattr import attribute

_CHAIN: Final = 5
_DONE_THERE: Final = frozenset({301, 302, 303})
"""Answers after which the next request is a GET: look there. After 307 and 308 the same request is made again."""
_CLIENTS: Final = ("httpx", "requests.", "aiohttp.")


def behind_a_redirect(error: BaseException) -> bool:
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
            kept = frame.f_locals.get("history") or frame.f_locals.get("hist")
            yield from kept if isinstance(kept, list | tuple) else ()


def _answers(history: object) -> bool:
    return isinstance(history, Iterable) and any(_status(answer) in _DONE_THERE for answer in history)


def _status(answer: object) -> object:
    """`status_code` of httpx and requests, `status` of aiohttp."""
    return attribute(answer, "status_code") or attribute(answer, "status")
