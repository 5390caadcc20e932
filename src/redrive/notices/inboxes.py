"""Who was told something, and whose answer is waited for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import msgspec

from redrive.core.notice import Notice
from redrive.core.view import Shown


class InboxView(Shown, msgspec.Struct, frozen=True):
    """One session's messages in numbers, and the latest of them."""

    HIDDEN: ClassVar = ("latest",)
    SHOWN: ClassVar = ("latest.at", "latest.title")
    RENAMED: ClassVar = {"latest.at": "latest_at", "latest.title": "latest"}
    session: str
    messages: int
    unread: int
    pending: int
    """Unread ones that ask for something."""
    latest: Notice


def inboxes(notices: Iterable[Notice]) -> list[InboxView]:
    """Every session that was told something: first those that are asked, then those with something unread."""
    by_session: dict[str, list[Notice]] = {}
    for notice in notices:
        by_session.setdefault(notice.session_id or "", []).append(notice)
    views = [_view(session, told) for session, told in by_session.items()]
    return sorted(views, key=lambda one: (not one.pending, not one.unread, -one.latest.at))


def _view(session: str, notices: Sequence[Notice]) -> InboxView:
    unread = sum(notice.unread for notice in notices)
    pending = sum(notice.status == "pending" for notice in notices)
    return InboxView(session, len(notices), unread, pending, max(notices, key=lambda notice: notice.at))
