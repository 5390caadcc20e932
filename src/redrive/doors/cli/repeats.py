"""Counts log lines that repeat instead of writing them: a flood of one line must not fill a disk."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final

SECONDS: Final = 60.0
"""So long a line that was written is not written again."""
MOST: Final = 1_000
"""So many different lines are remembered."""
OURS: Final = "redrive_repeats"
Line = tuple[str, int, str, str]


class Repeats(logging.Filter):
    """Lets a line through once a minute; at the end of the minute it says how often the line came meanwhile."""

    def __init__(self, handler: logging.Handler, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._handler = handler
        self._now = now
        self._lock = threading.Lock()
        self._seen: dict[Line, tuple[float, int, logging.LogRecord]] = {}
        """When a line was written, how often it came since, and the latest of those."""
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if hasattr(record, OURS):
            return True
        try:
            line = _line(record)
        except Exception:  # noqa: BLE001 - the handler meets the same error and reports it
            return True
        with self._lock:
            over = self._over(everything=len(self._seen) >= MOST and line not in self._seen)
            written, count, _ = self._seen.get(line, (self._now(), -1, record))
            self._seen[line] = (written, count + 1, record)
            if count >= 0:
                self._wait()
        self._tell(over)
        return count < 0

    def flush(self, *, everything: bool = True) -> None:
        """Tells what was counted and not told yet: at the end of a minute, and when the process ends."""
        with self._lock:
            self._timer = None
            over = self._over(everything=everything)
            if any(count for _, count, _ in self._seen.values()):
                self._wait()
        self._tell(over)

    def _wait(self) -> None:
        """A line may never come again: its number is told all the same."""
        if self._timer is None:
            self._timer = threading.Timer(SECONDS, self.flush, kwargs={"everything": False})
            self._timer.daemon = True
            self._timer.start()

    def _over(self, *, everything: bool) -> list[tuple[float, int, logging.LogRecord]]:
        """Forgets the lines whose minute is over; returns those of them that came again."""
        now = self._now()
        old = [line for line, (written, _, _) in self._seen.items() if everything or now - written >= SECONDS]
        found = [self._seen.pop(line) for line in old]
        return [(now - written, count, record) for written, count, record in found if count]

    def _tell(self, over: list[tuple[float, int, logging.LogRecord]]) -> None:
        for seconds, count, record in over:
            text = f"{record.getMessage()} … repeated {count:,} times in {seconds:.0f} s"
            told = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, text, None, None)
            setattr(told, OURS, True)
            self._handler.handle(told)


def _line(record: logging.LogRecord) -> Line:
    """What makes two lines the same: not when they were written, nor the traceback's places, but what was raised."""
    error = record.exc_info[1] if record.exc_info else None
    raised = "" if error is None else "".join(traceback.format_exception_only(error))
    return record.name, record.levelno, record.getMessage(), raised


def count_repeats() -> None:
    """Counts repeated lines wherever this process writes its log; what is not told yet is told at its end."""
    import atexit

    for handler in logging.getLogger().handlers:
        if not any(isinstance(known, Repeats) for known in handler.filters):
            handler.addFilter(Repeats(handler))
    atexit.register(tell_repeats)


def tell_repeats() -> None:
    for handler in logging.getLogger().handlers:
        for known in handler.filters:
            if isinstance(known, Repeats):
                known.flush()
