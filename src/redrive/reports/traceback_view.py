"""Reads the traceback of a failure, for every door: exceptions, frames and source lines."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from redrive.core.job import TRACE_ID, Failure, Job


class TraceLine(msgspec.Struct, frozen=True):
    """One frame of a traceback."""

    module: str
    function: str
    line: int
    yours: bool = False
    """Whether the frame belongs to the application, not to a library."""
    source: str = ""
    """The source line; empty for libraries, and where it could not be read."""

    @property
    def place(self) -> str:
        return f"{self.module}:{self.line} in {self.function}"


class Raised(msgspec.Struct, frozen=True):
    """One exception of a chain: its message and its frames, innermost first."""

    summary: str
    lines: tuple[TraceLine, ...]
    is_cause: bool = False
    """Whether the exception before it was raised because of this one."""


def trace_of(failure: Failure) -> tuple[Raised, ...]:
    """Lists the exception that ended an attempt, then its causes. Empty if no frame of these exceptions is known."""
    raised = tuple(_chain(failure))
    return raised if any(one.lines for one in raised) else ()


def where(failure: Failure) -> str | None:
    """Returns the place to look at first: the application's innermost frame, else where the exception was raised."""
    lines = [line for raised in trace_of(failure) for line in raised.lines]
    chosen = next((line for line in lines if line.yours), None) or (lines[0] if lines else None)
    if chosen is None:
        return None
    return f"{chosen.place}: {chosen.source}" if chosen.source else chosen.place


def trace_link(template: str | None, job: Job) -> str | None:
    """Makes the address of a job's trace in the operator's trace viewer; None without a template or a trace."""
    parts = (job.readable_options.traceparent or "").split("-")
    if template is None or len(parts) != 4 or not parts[1].isalnum():
        return None
    return template.replace(TRACE_ID, parts[1])


def _chain(failure: Failure) -> Iterator[Raised]:
    link: Failure | None = failure
    while link is not None:
        yield Raised(link.summary, tuple(_lines(link)), is_cause=link is not failure)
        link = link.cause


def _lines(failure: Failure) -> Iterator[TraceLine]:
    source = failure.source or (None,) * len(failure.frames)
    for frame, text in zip(failure.frames, source, strict=False):
        rest, _, line = frame.rpartition(":")
        module, _, function = rest.rpartition(":")
        number = int(line) if line.isascii() and line.isdigit() and len(line) < 9 else 0
        yield TraceLine(module, function, number, yours=text is not None, source=text or "")
