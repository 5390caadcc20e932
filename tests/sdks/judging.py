"""What redrive makes of an exception that a library raised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from redrive.core.job import Cause, Failure
from redrive.failures.capture import capture
from redrive.failures.classify import DETAILS, classify


def failure_of(error: BaseException) -> Failure:
    """The failure, read in full: what cannot be read falls back to the bare name, and that would hide a defect."""
    failure = capture(error)
    assert "unreadable" not in (failure.body or "") and "unreadable" not in failure.message
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure
    return failure


def cause_of(error: BaseException) -> Cause:
    cause = classify(failure_of(error))
    assert cause.detail in DETAILS
    return cause


def detail_of(error: BaseException) -> str:
    return cause_of(error).detail


def raised_by(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


async def raised_in(work: Awaitable[Any]) -> BaseException:
    try:
        await work
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")
