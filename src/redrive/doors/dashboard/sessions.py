"""The inboxes of sessions: how their work ended, and what waits for an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core.notice import Notice
from redrive.core.redact import redact
from redrive.doors.dashboard.rendering import Site, back, form_of, page, rd_of, site_of, who
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

MESSAGES: Final = 200
SESSIONS: Final = 200
WHICH: Final = ("no", "yes", "pending")
"""Unread messages, all of them, or those that wait for an answer."""
INBOXES_SECONDS: Final = 5.0
"""The list of all sessions reads every message: it may be so old."""


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/inbox", shown, "sessions"),
        site.route("/inbox/seen", seen, "seen", post=True),
        site.route("/inbox/answer", answer, "answer", post=True),
    ]


async def shown(request: Request) -> Response:
    session = request.query_params.get("session") or None
    which = request.query_params.get("all") or "no"
    if which not in WHICH:
        raise InvalidInput(field="all", problem=f"{which[:50]!r} is not one of {', '.join(WHICH)}")
    if session is None:
        found = await site_of(request).fresh("inboxes", rd_of(request).sessions.inboxes, INBOXES_SECONDS)
        return await page(request, "inboxes.html", section="sessions", rows=found[:SESSIONS], number=len(found))
    notices = await rd_of(request).sessions.inbox(session, unread=which == "no", limit=10_000)
    if which == "pending":
        notices = [notice for notice in notices if notice.status == "pending"]
    return await page(
        request, "inbox.html", section="sessions", session=session, which=which,
        rows=[_row(notice) for notice in notices[::-1][:MESSAGES]], number=len(notices),
        costs=await rd_of(request).sessions.costs(session),
    )  # fmt: skip


async def seen(request: Request) -> Response:
    form = await form_of(request)
    notice = await rd_of(request).sessions.acknowledge(form.text("session") or "", form.text("notice") or "")
    return back(request, f"Seen: {notice.title}")


async def answer(request: Request) -> Response:
    """Yes or no to what a job waits for."""
    form, jobs = await form_of(request), rd_of(request).jobs
    agreed = form.text("answer") == "approve"
    say = jobs.approve if agreed else jobs.reject
    job = await say(form.text("job") or "", who=who(request), why=form.text("why"))
    return back(request, f"{job.task} {job.short_id} is {'approved' if agreed else 'rejected'}.")


def _row(notice: Notice) -> dict[str, Any]:
    result = redact(notice.result)
    text = None if result is None else msgspec.json.format(msgspec.json.encode(result), indent=2).decode()
    return {"notice": notice, "result": text, "asks": notice.kind in ("needs_consent", "needs_approval")}
