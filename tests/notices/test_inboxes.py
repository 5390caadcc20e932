"""Who was told something, and whose answer is waited for."""

from __future__ import annotations

from typing import Any

from redrive.core.notice import Notice
from redrive.notices.sessions import inboxes


def a_notice(session: str, at: float, **fields: Any) -> Notice:
    given: dict[str, Any] = {
        "id": f"{session}-{at}", "kind": "done", "level": "acknowledgement", "audience": "session",
        "session_id": session, "at": at, "queue": "mail", "title": "done", "text": "It is done.",
    }  # fmt: skip
    return Notice(**{**given, **fields})


def test_whoever_is_asked_comes_first_then_whoever_has_something_unread() -> None:
    found = inboxes([
        a_notice("seen", 9.0, read_at=10.0),
        a_notice("unread", 1.0),
        a_notice("unread", 8.0, read_at=9.0),
        a_notice("asked", 2.0, level="actionable"),
        a_notice("asked", 3.0),
        a_notice("settled", 4.0, level="actionable", settled=True),
    ])  # fmt: skip
    assert [(one.session, one.messages, one.unread, one.pending, one.latest.at) for one in found] == [
        ("asked", 2, 2, 1, 3.0),
        ("unread", 2, 1, 0, 8.0),
        ("seen", 1, 0, 0, 9.0),
        ("settled", 1, 0, 0, 4.0),
    ]


def test_where_nobody_was_told_anything_there_is_no_inbox() -> None:
    assert inboxes([]) == []
