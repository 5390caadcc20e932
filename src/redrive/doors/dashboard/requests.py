"""What a request says: which page, as whom, the fields of its form, and which dead letters it means.

Filters stand in the address, so that a view can be bookmarked and shared.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import ClientDisconnect, Request

from redrive.core import times
from redrive.core.job import DEAD_REASONS
from redrive.core.tokens import OWNER, Caller
from redrive.deadletters.bulk_run import PASS_RATE
from redrive.doors.web.tokens import caller_of
from redrive.errors import InvalidInput
from redrive.failures.classify import DETAILS
from redrive.reports.timeline import reason

if TYPE_CHECKING:
    from redrive.api.redrive import Redrive
    from redrive.core.store import Group
    from redrive.doors.dashboard.site import Site

SITE: Final = "redrive.site"
"""Where a request's scope carries the site."""
NAME_COOKIE: Final = "redrive_me"
"""The cookie that carries the name a person wants to be recorded with."""
NAMELESS: Final = "dashboard"
"""Who acts, for the record, where neither a token nor a person gives a name."""
LONGEST_NAME: Final = 60
LONGEST_FORM: Final = 4 * 1024 * 1024
"""A payload of the largest size that is accepted, as a form writes it."""
SHOWN: Final = 50
"""Characters of a wrong value that its refusal shows."""
T = TypeVar("T", bound=str)


class PageRequest(Request):
    """A request for a page or an action of the dashboard."""

    @property
    def site(self) -> Site:
        site: Site = self.scope[SITE]
        return site

    @property
    def rd(self) -> Redrive:
        return self.site.rd

    @property
    def root(self) -> str:
        """The prefix under which the dashboard is mounted; empty at the root."""
        return str(self.scope.get("root_path", "")).rstrip("/")

    @property
    def caller(self) -> Caller:
        return caller_of(self.scope)

    @property
    def given_name(self) -> str | None:
        """The name that a person wants to be recorded with, as this browser keeps it."""
        name = unpack(self.cookies.get(NAME_COOKIE, ""))
        return name if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable() else None

    @property
    def who(self) -> str:
        """Who acts, for the record: the name of the token, with the name that the person gave beside it."""
        return self.caller.sign(self.given_name, NAMELESS)

    @property
    def display_name(self) -> str:
        """What a person is called on the pages. The owner's token says nothing about the person."""
        name = self.caller.name
        return self.given_name or (name if name not in (None, OWNER) else None) or NAMELESS

    def sign(self, form: Form) -> dict[str, Any]:
        """Give who acts and why, as every verb takes it."""
        return {"who": self.who, "why": form.text("why")}

    # -- what the address says

    def text(self, name: str) -> str:
        """Read a parameter of the address, trimmed; empty where it is not given."""
        return self.query_params.get(name, "").strip()

    def choose(self, name: str, choices: Collection[T], otherwise: T) -> T:
        """Read a parameter of the address that must be one of these words."""
        text = self.text(name)
        for choice in choices:
            if choice == text:
                return choice
        if text:
            raise InvalidInput(field=name, problem=f"{text[:SHOWN]!r} is not one of {', '.join(choices)}")
        return otherwise

    def number(self, name: str) -> int | None:
        """Read a parameter of the address as a number from 0; None where it is none."""
        text = self.text(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None

    # -- addresses of pages

    def address(self, name: str, /, *, query: Mapping[str, Any] | None = None, **path: Any) -> str:
        """Make the address of a page, wherever the dashboard is mounted. Empty values of `query` are left out."""
        given = {key: value for key, value in (query or {}).items() if value not in (None, "")}
        encoded = urlencode(given, doseq=True)
        address = self.root + self.site.path(name, path)
        return f"{address}?{encoded}" if encoded else address

    @property
    def came_from(self) -> str:
        """The page that a form was on, if it is one of ours; else the first page."""
        url = self.headers.get("hx-current-url") or self.headers.get("referer", "")
        first = f"{self.root}/"
        try:
            parts = urlsplit(url)
        except ValueError:
            return first
        if parts.netloc == self.headers.get("host", "") and parts.path.startswith(first):
            path = "/" + parts.path.lstrip("/")  # one slash: two would name another host
            return f"{path}?{parts.query}" if parts.query else path
        return first

    # -- the form

    async def read_form(self) -> Form:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("application/x-www-form-urlencoded", ""):
            raise InvalidInput(field="content-type", problem=f"{kind!r} is not a form's")
        body = await self._receive_body()
        try:
            pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20_000)
        except ValueError as error:
            raise InvalidInput(field="form", problem=f"cannot be read: {error}") from None
        return Form(pairs)

    async def _receive_body(self) -> bytes:
        """Receive the body, and stop as soon as it is too large."""
        body = bytearray()
        try:
            async for chunk in self.stream():
                body += chunk
                if len(body) > LONGEST_FORM:
                    raise InvalidInput(field="form", problem=f"is larger than {LONGEST_FORM:,} bytes")
        except ClientDisconnect:
            raise InvalidInput(field="form", problem="is not complete: the connection was closed") from None
        return bytes(body)


class Form(ImmutableMultiDict[str, str]):
    """The fields of a form."""

    def text(self, name: str) -> str | None:
        """Read a field, trimmed; None where it is empty."""
        return self.get(name, "").strip() or None

    def all(self, name: str) -> list[str]:
        return [value for value in self.getlist(name) if value]

    def number(self, name: str) -> float | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InvalidInput(field=name, problem=f"{text[:SHOWN]!r} is not a number")
        return number

    def whole_number(self, name: str) -> int | None:
        number = self.number(name)
        if number is not None and not number.is_integer():
            raise InvalidInput(field=name, problem=f"{(self.text(name) or '')[:SHOWN]!r} is not a whole number")
        return None if number is None else int(number)

    def days(self) -> timedelta:
        """Read the field `days`; one day where it is empty."""
        days = self.text("days") or "1"
        if not (days.isascii() and days.isdigit() and len(days) < 4) or not 0 < int(days) <= 366:
            raise InvalidInput(field="days", problem=f"{days[:SHOWN]!r} is not from 1 to 366")
        return timedelta(days=int(days))

    def run_options(self) -> dict[str, Any]:
        """Read what a run over many dead letters takes: its canary, its pace, and the token of its plan."""
        percent = self.number("pass_rate")
        if percent is not None and not 0 < percent <= 100:
            raise InvalidInput(field="pass_rate", problem=f"{percent:g} % is not above 0 and at most 100 %")
        return {
            "canary": self.whole_number("canary") or 0,
            "pass_rate": PASS_RATE if percent is None else percent / 100,
            "rate": self.number("rate"),
            "token": self.text("token"),
        }


def pack(value: Any) -> str:
    """Write a value as the text of a cookie."""
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


def unpack(text: str) -> Any:
    """Read what `pack` wrote; None where the cookie holds something else."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error, msgspec.DecodeError):
        return None


# -- which dead letters

PLAIN: Final = ("queue", "task", "agent", "lane", "category", "detail", "error_class", "because", "owner")
FIELDS: Final = (*PLAIN, "session", "group", "since", "no_agent")
LONGEST: Final = 500
YES: Final = "yes"
MOST_IDS: Final = 1000
SINCE: Final = (("1h", "the last hour"), ("24h", "the last day"), ("7d", "the last week"), ("30d", "the last month"))
_WORDS: Final = {"error_class": "error", "detail": "kind"}


class ChosenDeadLetters(msgspec.Struct, frozen=True):
    """Which dead letters a request means: the filters, and ids where some were picked one by one."""

    filters: dict[str, str] = {}
    ids: tuple[str, ...] = ()
    all: bool = False
    """Everything that the filters match, rather than what was picked."""

    @property
    def query(self) -> dict[str, Any]:
        """The same choice as parameters of an address."""
        picked: dict[str, Any] = {"all": "1"} if self.all else {"ids": list(self.ids)} if self.ids else {}
        return {**self.filters, **picked}

    @property
    def active(self) -> list[tuple[str, str]]:
        """Each filter with its words, to be removed one by one."""
        return [(name, _describe_filter(name, value)) for name, value in self.filters.items()]

    def of(self, name: str) -> str:
        """Give the value of a filter; empty where it is not set."""
        return self.filters.get(name, "")

    @property
    def nothing(self) -> bool:
        return not self.all and not self.ids

    @property
    def picked(self) -> bool:
        """Whether dead letters were picked one by one."""
        return bool(self.ids) and not self.all


def _describe_filter(name: str, value: str) -> str:
    if name == "no_agent":
        return "no agent"
    if name == "group":
        value = value[:8]
    elif name in ("detail", "because"):
        value = value.replace("_", " ")
    return f"{_WORDS.get(name, name)} {dict(SINCE).get(value, value)}"


def read_choice(fields: ImmutableMultiDict[str, str]) -> ChosenDeadLetters:
    """Read which dead letters an address or a form means; an impossible value is refused by the name of its field."""
    filters = {name: value for name in FIELDS if (value := fields.get(name, "").strip())}
    for name, value in filters.items():
        check_length(name, value, LONGEST)
    if filters.get("no_agent", YES) != YES:
        raise InvalidInput(field="no_agent", problem=f"{filters['no_agent'][:SHOWN]!r} is not {YES!r}")
    ids = tuple(dict.fromkeys(value for value in fields.getlist("ids") if value))
    if len(ids) > MOST_IDS:
        raise InvalidInput(field="ids", problem=f"{len(ids)} are more than {MOST_IDS}; filter them instead")
    return ChosenDeadLetters(filters, ids, fields.get("all") == "1")


def check_length(name: str, text: str, longest: int) -> str:
    if len(text) > longest:
        raise InvalidInput(field=name, problem=f"is longer than {longest} characters")
    return text


async def make_filters(rd: Redrive, choice: ChosenDeadLetters) -> dict[str, Any]:
    """Make the filters that `rd.dead.list` and the verbs take."""
    filters: dict[str, Any] = {name: value for name, value in choice.filters.items() if name in PLAIN}
    if session := choice.of("session"):
        filters["session_id"] = session
    if choice.of("no_agent"):
        filters["no_agent"] = True
    if group := choice.of("group"):
        filters["fingerprint"] = (await rd.groups.find(group, field="group")).fingerprint
    if since := choice.of("since"):
        filters["since"] = read_instant(since, rd.clock.now())
    return filters


async def make_scope(rd: Redrive, choice: ChosenDeadLetters) -> dict[str, Any]:
    """Make the scope of a verb on many: the picked ids, else everything that matches the filters."""
    if choice.nothing:
        raise InvalidInput(field="ids", problem="nothing is selected: pick some, or choose all that match")
    if not choice.all:
        return {"ids": list(choice.ids)}
    return await make_filters(rd, choice) or {"all": True}


def split_scope(scope: Mapping[str, Any]) -> dict[str, Any]:
    """Divide a scope into `ids`, `all` and `where`, as the verbs of `rd.dead` take it."""
    which = {name: scope[name] for name in ("ids", "all") if name in scope}
    return {**which, "where": {name: value for name, value in scope.items() if name not in which}}


async def count_by_group(rd: Redrive, filters: Mapping[str, Any]) -> dict[str | None, int]:
    """Count the dead letters that match, by group."""
    counted = await rd.jobs.count(**filters, state="dead", by=("fingerprint",))
    return {fingerprint: number for (fingerprint,), number in counted.items()}


def read_instant(text: str, now: float, field: str = "since") -> float:
    """Read `24h`, `7d`, or a time with its zone; a time without a zone is UTC, which is what the pages show."""
    return times.earlier(field, times.read(field, text, zone=UTC), now)


def list_options(groups: Sequence[Group]) -> Mapping[str, list[Any]]:
    """List what the filters offer: the names that dead letters have had, and the fixed words."""

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
