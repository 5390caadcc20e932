"""What needs a person, each with the page where it is seen to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from redrive.core.words import clipped
from redrive.doors.dashboard.rendering import address, site_of
from redrive.reports.needs import FOR_A_PERSON, Need

if TYPE_CHECKING:
    from starlette.requests import Request

ERROR: Final = 90
"""So much of an error stands in a row."""
DEAD: Final = frozenset({"dead_manual", "conflicting_input", "store_failed", "process_gone"})
"""What is marked as grave."""


async def needs_of(request: Request) -> list[Need]:
    """The gravest first."""
    site = site_of(request)
    found: list[Need] = await site.fresh("needs", site.rd.needs)
    return found


def row(request: Request, need: Need) -> dict[str, Any]:
    """As the page shows it."""
    kind = "dead" if need.kind in DEAD else "held"
    what = need.sentence
    if need.asks:  # the number stands before it
        what = f"{what.partition(f'{need.count:,} ')[2]}: {clipped(need.what, ERROR)}"
    return {
        "number": need.count,
        "what": what,
        "todo": need.action,
        "kind": kind,
        "href": place(request, need),
        "list": list_of(request, need),
    }


def list_of(request: Request, need: Need, queue: str | None = None) -> str | None:
    """A list of just the jobs that a need counts; None where it counts something else, or what no filter can name."""
    if need.kind == "dead_manual" and need.course is not None:  # one group, and not several small ones
        return address(request, "letters", query={"group": need.fingerprint, "lane": "manual", "queue": queue})
    if need.kind in FOR_A_PERSON and need.job_id:
        held = {"state": "held", "because": need.kind, "queue": need.queue, "task": need.task}
        return address(request, "jobs", query=held)
    if need.kind == "backed_up":
        return address(request, "jobs", query={"state": "due", "queue": need.queue})
    return address(request, "job", id=need.job_id) if need.count == 1 and need.job_id else None


def place(request: Request, need: Need) -> str:
    """Where to go on: the group where there are several, else the job, the queue or the morning's page."""
    if need.kind in FOR_A_PERSON and need.count > 1:
        return address(request, "held", query={"because": need.kind})
    if need.kind == "dead_manual" and need.count > 1 and need.fingerprint:
        return address(request, "group", fingerprint=need.fingerprint)
    if need.kind in ("backed_up", "unattended"):
        return f"{address(request, 'queues')}#queue-{quote(need.queue)}"
    return address(request, "job", id=need.job_id) if need.job_id else address(request, "morning")
