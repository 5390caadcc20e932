"""A line for every failed attempt, but not ten thousand of the same: a flood is its first lines and a number."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from typing import Final

from redrive.core.job import Failure
from redrive.core.redact import redact_text
from redrive.retries.decision import Case, Decision

log = logging.getLogger("redrive.attempt")
LINES: Final = 20
"""So many failures of one group are written one by one."""
SECONDS: Final = 1.0
"""After so long the others are told as a number, and the next are written again."""
EXPECTED: Final = "redrive_expected"
"""On records of failures that heal by themselves: our own log prints them in one line, without the traceback."""
Kind = tuple[str, type[Decision]]
"""A group of failures, and what is done about them."""


class FailureLogger:
    """What the attempts of this process say when they fail. Each of them is in the store besides."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._failures: dict[Kind, int] = {}
        self._unwritten: dict[Kind, Case] = {}
        """The latest of those that are beyond the lines; it stands for them all."""

    def failed(self, case: Case, decision: Decision, group: str, error: BaseException | None = None) -> None:
        """Log one failed attempt, with its exception for those who collect them (Sentry, Logfire)."""
        self._turn_over()
        kind = (group, type(decision))
        seen = self._failures.get(kind, 0)
        self._failures[kind] = seen + 1
        if seen >= LINES:
            self._unwritten[kind] = case
            return
        job, failure = case.job, case.failure
        log.warning(
            "job %s (%s, attempt %d): %s | %s",
            job.short_id,
            job.task,
            case.failures,
            failure.summary,
            decision.why,
            exc_info=make_loggable(error, failure),
            extra={EXPECTED: case.cause.category == "transient"},
        )

    def _turn_over(self) -> None:
        now = time.monotonic()
        if now >= self._until:
            self.sum_up()
            self._until = now + SECONDS
            asyncio.get_running_loop().call_later(SECONDS, self.sum_up)

    def sum_up(self) -> None:
        """How many there were beyond the lines. Also said when the work here ends: nothing is left untold."""
        for (group, decided), case in self._unwritten.items():
            number = self._failures[group, decided] - LINES
            log.warning(
                "%d more attempts of %s failed like that (group %s), the latest as job %s: %s",
                number,
                case.job.task,
                group,
                case.job.short_id,
                case.failure.summary,
            )
        self._failures.clear()
        self._unwritten.clear()


def make_loggable(error: BaseException | None, failure: Failure) -> BaseException | None:
    """The exception itself where nothing in it looks like a secret; else one that says the same with secrets masked."""
    if error is None:
        return None
    text = "".join(traceback.format_exception(error))  # it survives exceptions whose own methods raise
    return error if redact_text(text) == text else _mask_error(error, failure)


def _mask_error(error: BaseException | None, failure: Failure) -> BaseException:
    """An exception of the same name, with the message that the failure keeps and the same traceback."""
    module, _, name = (failure.types[0] if failure.types else failure.kind).rpartition(".")
    made: BaseException = type(name, (Exception,), {"__module__": module})(failure.message)
    if failure.cause is not None:
        cause = (error.__cause__ or error.__context__) if error is not None else None
        made.__cause__ = _mask_error(cause, failure.cause)
    return made.with_traceback(error.__traceback__ if error is not None else None)
