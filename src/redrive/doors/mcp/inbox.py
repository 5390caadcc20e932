"""Defines the tools for a session's inbox: how its work ended after the call was over, and what waits for an answer."""

from __future__ import annotations

from typing import Annotated, Any, Final

from mcp.server.mcpserver.tools import Tool
from pydantic import Field

from redrive.core.job import iso
from redrive.core.notice import Notice
from redrive.doors.mcp.answers import Desk, tool
from redrive.doors.mcp.sessions import ON_STDIO
from redrive.doors.mcp.wording import without_none
from redrive.errors import InvalidInput

ROWS: Final = 20
TEXT: Final = 600
RESULT: Final = 4_000
"""Characters of a result in the list; `operation` has the whole."""

NoticeId = Annotated[str, Field(min_length=3, max_length=300)]


class InboxTools:
    """Holds a method for each tool. A model reads the docstring of the method."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._wording = desk.wording

    def reading(self) -> list[Tool]:
        return [tool(self._desk, self.inbox, reads=True)]

    def writing(self) -> list[Tool]:
        return [tool(self._desk, self.acknowledge, repeats=True)]

    async def inbox(
        self,
        include_read: Annotated[bool, Field(description="Those that were acknowledged, too.")] = False,
        limit: Annotated[int, Field(ge=1, le=100, description="How many at most, the oldest first.")] = ROWS,
    ) -> dict[str, Any]:
        """What this session was told since: how queued operations ended, with results, what comes back by itself and
        when, and what waits for an answer. Read it when you begin, and after anything was queued."""
        session = self._desk.require_session()
        notices = await self._desk.rd.sessions.inbox(session, unread=not include_read, limit=limit + 1)
        rows = [self._row(notice) for notice in notices[:limit]]
        more = {"more": "There are more: acknowledge these, or raise `limit`."} if len(notices) > limit else {}
        return {"session": session, "notices": rows, **more, "next": self._next(notices)}

    def _row(self, notice: Notice) -> dict[str, Any]:
        """Return the fields that every kind of notice has."""
        return without_none(
            notice_id=notice.id,
            kind=self._wording.line(notice.kind, 100),
            status=notice.status,
            at=iso(notice.at),
            read_at=iso(notice.read_at),
            operation_id=notice.job_id,
            task=self._wording.line(notice.task) or None,
            title=self._wording.line(notice.title),
            untrusted_text=self._wording.line(notice.text, TEXT) or None,
            result=self._wording.excerpt(notice.result, RESULT),
        )

    def _next(self, notices: list[Notice]) -> str:
        if not notices and (self._desk.session or "").startswith(ON_STDIO):
            return (
                "Nothing is unread. This inbox has only notices of what this process began: a server started with "
                "--session NAME has its inbox again after a restart. `operation` answers by id."
            )
        if not notices:
            return "Nothing is unread. A notice comes when what is still queued ends."
        asks = next((notice for notice in notices if notice.status == "pending" and notice.job_id), None)
        first = f"`operation` {asks.job_id} says what {asks.kind} waits for. " if asks else ""
        how = "Use them, then `acknowledge` each." if self._desk.writes else ""
        return f"{first}{how}".strip() or "Only a server started with --allow-write can acknowledge."

    async def acknowledge(
        self, notice_ids: Annotated[list[NoticeId], Field(min_length=1, max_length=100)]
    ) -> dict[str, Any]:
        """Mark notices of this session's `inbox` as read, by their notice_id. Repeating it changes nothing. It answers
        no question: a job that waits for a person goes on waiting."""
        session, read, unknown = self._desk.require_session(), [], []
        for id in dict.fromkeys(notice_ids):
            try:
                read.append((await self._desk.rd.sessions.acknowledge(session, id)).id)
            except InvalidInput as error:
                if error.field != "notice_id":
                    raise
                unknown.append(self._wording.line(id, 100))
        left = await self._desk.rd.sessions.unread(session)
        body: dict[str, Any] = {"acknowledged": read, "unread": left}
        body |= {"not_in_this_inbox": unknown} if unknown else {}
        return body | {"next": "`inbox` has more." if left else "Nothing is unread."}
