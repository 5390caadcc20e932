"""Writes the log of long-running commands to stderr, as text or JSON lines, and counts lines that repeat.

A flood of one line must not fill a disk, so a repeated line is written once a minute with its count.
"""

from __future__ import annotations

import atexit
import copy
import json
import logging
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

from redrive.core.redact import redact_text
from redrive.doors.cli.invocation import invocation
from redrive.doors.cli.text import clean
from redrive.engine.failure_log import EXPECTED

SECONDS: Final = 60.0
"""How long a line that was written is not written again."""
MOST: Final = 1_000
"""How many different lines are remembered."""
OURS: Final = "redrive_repeats"
"""The attribute that marks records which report a count."""
Line = tuple[str, int, str, str]


class RepeatFilter(logging.Filter):
    """Passes a line once a minute; at the end of the minute it writes how often the line came meanwhile."""

    def __init__(self, handler: logging.Handler, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._handler = handler
        self._now = now
        self._lock = threading.Lock()
        self._seen: dict[Line, tuple[float, int, logging.LogRecord]] = {}
        """When a line was written, how often it came since, and the latest of those records."""
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if hasattr(record, OURS):
            return True
        try:
            line = _identify(record)
        except Exception:  # noqa: BLE001 - the handler meets the same error and reports it
            return True
        with self._lock:
            over = self._take_old(everything=len(self._seen) >= MOST and line not in self._seen)
            written, count, _ = self._seen.get(line, (self._now(), -1, record))
            self._seen[line] = (written, count + 1, record)
            if count >= 0:
                self._start_timer()
        self._write_counts(over)
        return count < 0

    def flush(self, *, everything: bool = True) -> None:
        """Write the counts that were not written yet: at the end of a minute, and when the process ends."""
        with self._lock:
            self._timer = None
            over = self._take_old(everything=everything)
            if any(count for _, count, _ in self._seen.values()):
                self._start_timer()
        self._write_counts(over)

    def _start_timer(self) -> None:
        """Start a timer that writes the counts, because a line may never come again."""
        if self._timer is None:
            self._timer = threading.Timer(SECONDS, self.flush, kwargs={"everything": False})
            self._timer.daemon = True
            self._timer.start()

    def _take_old(self, *, everything: bool) -> list[tuple[float, int, logging.LogRecord]]:
        """Forget the lines whose minute is over; return those that came again."""
        now = self._now()
        old = [line for line, (written, _, _) in self._seen.items() if everything or now - written >= SECONDS]
        entries = [self._seen.pop(line) for line in old]
        return [(now - written, count, record) for written, count, record in entries if count]

    def _write_counts(self, over: list[tuple[float, int, logging.LogRecord]]) -> None:
        for seconds, count, record in over:
            text = f"{record.getMessage()} … repeated {count:,} times in {seconds:.0f} s"
            report = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, None, None)
            setattr(report, OURS, True)
            self._handler.handle(report)


def _identify(record: logging.LogRecord) -> Line:
    """Return what identifies a line: its text and what was raised, but neither its time nor the traceback's lines."""
    error = record.exc_info[1] if record.exc_info else None
    raised = "" if error is None else "".join(traceback.format_exception_only(error))
    return record.name, record.levelno, record.getMessage(), raised


def count_repeats() -> None:
    """Count repeated lines in every handler of this process, and write the last counts when the process ends."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(known, RepeatFilter) for known in handler.filters):
            handler.addFilter(RepeatFilter(handler))
    atexit.register(write_repeats)


def write_repeats() -> None:
    for handler in logging.getLogger().handlers:
        for known in handler.filters:
            if isinstance(known, RepeatFilter):
                known.flush()


class TextLines(logging.Formatter):
    """Formats a record as one line, so that text of a job is neither a line of its own nor obeyed by a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return clean(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """Leave out the traceback of a failure that a retry handles."""
        if getattr(record, EXPECTED, False):
            record = copy.copy(record)
            record.exc_info = record.exc_text = None
        return super().format(record)

    def formatException(self, ei: Any) -> str:
        """Indent every line, so that text of an exception does not look like a record of its own."""
        return "\n".join(f"  {clean(line)}" for line in redact_text(super().formatException(ei)).split("\n"))


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"at": record.created, "process": record.process, "level": record.levelname, "logger": record.name}
        if record.exc_info:
            line["traceback"] = redact_text(self.formatException(record.exc_info))
        return json.dumps(line | {"message": record.getMessage()})


def log_to_stderr() -> None:
    """Log to stderr, unless the app has set up logging itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if invocation().json else TextLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("redrive").setLevel(logging.INFO)
    count_repeats()
