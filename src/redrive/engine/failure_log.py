"""Logs a line for every failed attempt; of a flood of the same failure, only the first lines and a number."""

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
"""How many failures of one group are logged one by one."""
SECONDS: Final = 1.0
"""Seconds after which the other failures are logged as a number, and the next ones line by line again."""
EXPECTED: Final = "redrive_expected"
"""The mark of log records of transient failures: our own log prints these in one line, without the traceback."""
Kind = tuple[str, type[Decision]]
"""A group of failures, and the kind of decision on them."""


class FailureLogger:
    """The log of failed attempts in this process. The store keeps every failure as well."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._failures: dict[Kind, int] = {}
        self._unwritten: dict[Kind, Case] = {}
        """The latest failure beyond LINES of each kind, which represents the others."""

    def failed(self, case: Case, decision: Decision, group: str, error: BaseException | None = None) -> None:
        """Logs one failed attempt, with its exception for collectors of exceptions (Sentry, Logfire)."""
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
        """Logs the number of failures beyond LINES. Also called when the work in this process ends, so none is lost."""
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
    """Returns the exception where nothing in it looks like a secret; else a copy with the secrets masked."""
    if error is None:
        return None
    text = "".join(traceback.format_exception(error))  # this call survives exceptions whose own methods raise
    return error if redact_text(text) == text else _mask_error(error, failure)


def _mask_error(error: BaseException | None, failure: Failure) -> BaseException:
    """Makes an exception of the same name and traceback, with the message that the failure keeps."""
    module, _, name = (failure.types[0] if failure.types else failure.kind).rpartition(".")
    made: BaseException = type(name, (Exception,), {"__module__": module})(failure.message)
    if failure.cause is not None:
        cause = (error.__cause__ or error.__context__) if error is not None else None
        made.__cause__ = _mask_error(cause, failure.cause)
    return made.with_traceback(error.__traceback__ if error is not None else None)
