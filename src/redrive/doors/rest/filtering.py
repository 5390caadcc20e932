"""What a caller says about which jobs, in the words of the app's filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redrive.doors.rest.schemas import Filters, instant

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive

SAME: Final = (
    "queue", "task", "agent", "key", "lane", "because", "category", "detail", "error_class", "error_kind", "owner",
    "reason",
)  # fmt: skip


async def filters_of(rd: Redrive, said: Filters) -> dict[str, Any]:
    """As keyword filters; a group may be named by the beginning of its fingerprint."""
    found: dict[str, Any] = {name: getattr(said, name) for name in SAME}
    found |= {"session_id": said.session, "since": instant("since", said.since), "until": instant("until", said.until)}
    if said.group is not None:
        found["fingerprint"] = await _fingerprint(rd, said.group)
    return {name: value for name, value in found.items() if value is not None}


async def _fingerprint(rd: Redrive, beginning: str) -> str:
    """Of the group that begins so; what begins none finds none, and so do the jobs. What begins several is refused."""
    found = await rd.groups.beginning(beginning, field="group")
    return found.fingerprint if found is not None else beginning
