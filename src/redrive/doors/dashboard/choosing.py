"""Which dead letters: what an address or a form says, as the verbs take it. Filters stand in the address, so that a
view can be kept, sent to somebody, and come back to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core import times
from redrive.core.job import DEAD_REASONS
from redrive.deadletters.filters import make_filter
from redrive.errors import InvalidInput
from redrive.failures.classify import DETAILS
from redrive.reports.timeline import reason

if TYPE_CHECKING:
    from starlette.datastructures import ImmutableMultiDict

    from redrive.api.redrive import Redrive

PLAIN: Final = ("queue", "task", "agent", "lane", "category", "detail", "error_class", "because", "owner")
FIELDS: Final = (*PLAIN, "session", "group", "since", "no_agent")
LONGEST: Final = 500
YES: Final = "yes"
MOST_IDS: Final = 1000
SINCE: Final = (("1h", "the last hour"), ("24h", "the last day"), ("7d", "the last week"), ("30d", "the last month"))
_WORDS: Final = {"error_class": "error", "because": "because", "detail": "kind", "since": "since"}


class Choice(msgspec.Struct, frozen=True):
    """Filters as they were said, and ids where letters were picked one by one."""

    said: dict[str, str] = {}
    ids: tuple[str, ...] = ()
    all: bool = False
    """Everything that the filters match, rather than what was picked."""

    @property
    def query(self) -> dict[str, Any]:
        """The same choice as an address says it."""
        picked: dict[str, Any] = {"all": "1"} if self.all else {"ids": list(self.ids)} if self.ids else {}
        return {**self.said, **picked}

    @property
    def active(self) -> list[tuple[str, str]]:
        """Each filter with its words, to be taken off one by one."""
        return [(name, _in_words(name, value)) for name, value in self.said.items()]

    def of(self, name: str) -> str:
        """What a filter says; empty where nothing does."""
        return self.said.get(name, "")

    @property
    def nothing(self) -> bool:
        return not self.all and not self.ids


def _in_words(name: str, value: str) -> str:
    return "no agent" if name == "no_agent" else f"{_WORDS.get(name, name)} {_value(name, value)}"


def _value(name: str, value: str) -> str:
    if name == "group":
        return value[:8]
    return dict(SINCE).get(value, value.replace("_", " ") if name in ("detail", "because") else value)


def read(said: ImmutableMultiDict[str, str]) -> Choice:
    """What was said, refused by name where it cannot be meant."""
    found = {name: value for name in FIELDS if (value := said.get(name, "").strip())}
    for name, value in found.items():
        if len(value) > LONGEST:
            raise InvalidInput(field=name, problem=f"is longer than {LONGEST} characters")
    if found.get("no_agent", YES) != YES:
        raise InvalidInput(field="no_agent", problem=f"{found['no_agent'][:50]!r} is not {YES!r}")
    ids = tuple(dict.fromkeys(value for value in said.getlist("ids") if value))
    if len(ids) > MOST_IDS:
        raise InvalidInput(field="ids", problem=f"{len(ids)} are more than {MOST_IDS}; filter them instead")
    return Choice(found, ids, said.get("all") == "1")


async def filters(rd: Redrive, choice: Choice) -> dict[str, Any]:
    """As `rd.dead.list` and the other verbs take them."""
    found: dict[str, Any] = {name: value for name, value in choice.said.items() if name in PLAIN}
    if session := choice.said.get("session"):
        found["session_id"] = session
    if choice.said.get("no_agent"):
        found["no_agent"] = True
    if group := choice.said.get("group"):
        found["fingerprint"] = (await rd.groups.find(group, field="group")).fingerprint
    if since := choice.said.get("since"):
        found["since"] = instant(since, rd.clock.now())
    return found


async def by_group(rd: Redrive, chosen: Mapping[str, Any]) -> dict[str | None, int]:
    """How many dead letters match, by group."""
    found = await rd.store.count(make_filter({**chosen, "state": "dead"}), by=("fingerprint",))
    return {fingerprint: number for (fingerprint,), number in found.items()}


async def scope(rd: Redrive, choice: Choice) -> dict[str, Any]:
    """For a verb that acts on many: what was picked, else everything that matches."""
    if choice.nothing:
        raise InvalidInput(field="ids", problem="nothing is selected: pick some, or choose all that match")
    if not choice.all:
        return {"ids": list(choice.ids)}
    return await filters(rd, choice) or {"all": True}


def instant(text: str, now: float, field: str = "since") -> float:
    """`24h`, `7d`, or a time with its zone; one without a zone is UTC, which is what the pages show."""
    return times.earlier(field, times.read(field, text, zone=UTC), now)


def options(groups: list[Any]) -> Mapping[str, list[Any]]:
    """What the filters offer: the names that dead letters have had, and the words that there are."""

    def names(field: str) -> list[str]:
        return sorted({str(value) for group in groups if (value := getattr(group, field))})

    return {
        **{field: names(field) for field in ("queue", "task", "agent", "error_class")},
        "detail": [(name, name.replace("_", " ")) for name in names("detail")],
        "category": sorted({category for category, _, _ in DETAILS.values()}),
        "because": [(name, reason(name)) for name in DEAD_REASONS],
        "lane": [("manual", "waits for a person"), ("delayed", "comes back by itself")],
        "since": list(SINCE),
    }
