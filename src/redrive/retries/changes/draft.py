"""Takes a payload apart, so that the payload can be shortened piece by piece, and puts it together again.

The draft holds the cost of each piece and which pieces are dropped together; `compress` decides what to cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from redrive.core.job import Json
from redrive.retries.changes import reading
from redrive.retries.changes.reading import MESSAGE_TOKENS, TEXT_KEYS, Counter
from redrive.retries.changes.shapes import SYSTEM_ROLES, Path, Shape, get, put
from redrive.retries.changes.turns import calls, task_of, turns

MISSING_TURNS: Final = "[… earlier messages left out …]"
SUMMARY: Final = "[Summary of earlier content that was left out for length]\n{}\n[End of the summary]"
_GAP_ENDS: Final = " characters left out …]\n"


class DraftText(msgspec.Struct):
    """A piece of prose that may be cut."""

    at: Path
    whole: str
    cost: int
    asked: bool
    """Whether the user wrote the text; such texts are cut last."""
    keep: int
    """How many characters of the text stay."""

    @property
    def is_cut(self) -> bool:
        return cut_middle(self.whole, self.keep) is not self.whole


class DraftPart(msgspec.Struct):
    """A message, a context entry or the prompt."""

    home: Path
    index: int
    texts: list[DraftText]
    fixed: int


class DraftGroup(msgspec.Struct):
    """Parts that are kept or dropped together."""

    parts: list[DraftPart]
    pinned: bool
    dropped: bool = False

    @property
    def cost(self) -> int:
        return sum(part.fixed + sum(text.cost for text in part.texts) for part in self.parts)


class Draft(msgspec.Struct):
    """A payload that is being shortened; the draft fits when its total is under the limit."""

    payload: Mapping[str, Json]
    groups: list[DraftGroup]
    seat: Seat
    total: int
    under: int
    count: Counter

    @property
    def fits(self) -> bool:
        return self.total < self.under

    def drop(self, group: DraftGroup) -> None:
        group.dropped = True
        self.total -= group.cost

    def cut(self, text: DraftText, keep: int) -> None:
        """Cut a text to about `keep` characters, if that saves tokens."""
        saved = self.saving(text, keep)
        if saved:
            self.total -= saved
            text.cost, text.keep = text.cost - saved, keep

    def saving(self, text: DraftText, keep: int) -> int:
        """Return how many tokens cutting a text would save."""
        if keep >= text.keep:
            return 0
        return max(0, text.cost - self.count(cut_middle(text.whole, keep)))

    def grow(self, text: DraftText, keep: int) -> None:
        """Restore some of the middle of a text that was cut."""
        if keep > text.keep:
            price = self.price(text, keep)
            self.total += price
            text.cost, text.keep = text.cost + price, keep

    def price(self, text: DraftText, keep: int) -> int:
        """Return how many tokens growing a text would cost."""
        return self.count(cut_middle(text.whole, keep)) - text.cost if keep > text.keep else 0

    def texts(self, *, asked: bool, pinned: bool | None = None) -> list[DraftText]:
        """Return the remaining texts, the largest first, among equals the oldest."""
        groups = [one for one in self.groups if not one.dropped and pinned in (None, one.pinned)]
        found = [text for group in groups for part in group.parts for text in part.texts if text.asked is asked]
        return sorted(found, key=lambda text: -text.cost)


class Seat(msgspec.Struct, frozen=True):
    """The place for a summary, and whether a message must open the conversation once its first turns are dropped."""

    home: Path | None
    index: int | None = None
    opens: bool = False
    note: str = ""

    def tokens(self, count: Counter) -> int:
        words = self.note or (MISSING_TURNS if self.opens else "")
        return count(f"\n\n{words}") + MESSAGE_TOKENS if words else 0


def cut_middle(text: str, keep: int) -> str:
    """Cut the middle out of a text and say there how much is missing. The result is never longer than the text."""
    head, tail = _ends(text, keep)
    shorter = f"{text[:head]}\n[… {tail - head:,}{_GAP_ENDS}{text[tail:]}"
    return shorter if tail > head and len(shorter) < len(text) else text


def _ends(text: str, keep: int) -> tuple[int, int]:
    """Return where the kept beginning of a text ends and where its kept end begins."""
    head = (keep + 1) // 2
    return head, len(text) - (keep - head)


# ---- taking apart


def take_apart(payload: Mapping[str, Json], shape: Shape, under: int, count: Counter, summary: str | None) -> Draft:
    groups = [group for home in reading.parts_of(shape) for group in _groups(payload, shape, home, count)]
    seat = _seat(payload, shape, SUMMARY.format(summary) if summary else "")
    total = reading.standing_tokens(payload, shape, count) + seat.tokens(count) + sum(group.cost for group in groups)
    return Draft(payload, groups, seat, total, under, count)


def _groups(payload: Mapping[str, Json], shape: Shape, home: Path, count: Counter) -> list[DraftGroup]:
    """Group the turns of a conversation, the entries of a context (the newest is pinned), or the prompt."""
    parts = reading.entries(get(payload, home))
    if home == shape.messages:
        made = [
            DraftGroup([_part(parts[i], home, i, count) for i in turn.members], turn.pinned) for turn in turns(parts)
        ]
        spoken = [_standing(one, home, i, count) for i, one in enumerate(parts) if one["role"] in SYSTEM_ROLES]
        return [*made, DraftGroup(spoken, pinned=True)]
    last = len(parts) - 1
    return [
        DraftGroup([_part(one, home, i, count, asked=home == shape.prompt)], i == last) for i, one in enumerate(parts)
    ]


def _part(value: Json, home: Path, index: int, count: Counter, *, asked: bool = False) -> DraftPart:
    words = asked or (isinstance(value, Mapping) and value.get("role") == "user")
    prose = [
        DraftText(at, text, count(text), words and not _is_evidence(at), len(text)) for at, text in reading.texts(value)
    ]
    return DraftPart(home, index, prose, reading.fixed_tokens(value, count))


def _is_evidence(at: Path) -> bool:
    """Return whether a path is a tool's result in a message: ("content", 2, "content"), with or without more steps."""
    return len(at) > 2 and at[2] == "content"


def _standing(value: Json, home: Path, index: int, count: Counter) -> DraftPart:
    """Make the part of a system message, which is counted and never cut."""
    return DraftPart(home, index, [], reading.part_tokens(value, count))


def _seat(payload: Mapping[str, Json], shape: Shape, note: str) -> Seat:
    """Choose the task's message for a summary, else the first that stays; without a user message one must be added."""
    if shape.messages is None:
        return Seat(shape.context or shape.prompt, note=note)
    messages = get(payload, shape.messages)
    first = min((turn.members[0] for turn in turns(messages) if turn.pinned), default=None)
    if first is None or messages[first]["role"] != "user":
        return Seat(shape.messages, opens=True, note=note)
    task = task_of(messages)
    return Seat(shape.messages, first if task is None else task, note=note)


# ---- putting together

Kept = list[tuple[int, Json]]
"""The entries of a list that stay, each with its former index."""


def put_together(draft: Draft) -> dict[str, Json]:
    result: dict[str, Json] = dict(draft.payload)
    for home in dict.fromkeys(part.home for group in draft.groups for part in group.parts):
        before = get(draft.payload, home)
        kept = _list_kept(reading.entries(before), home, draft)
        if draft.seat.home == home:
            kept = _place_summary(kept, draft.seat, lost=len(kept) < len(reading.entries(before)))
        result = put(result, home, [one for _, one in kept] if isinstance(before, list) else kept[0][1])
    return result


def _list_kept(found: list[Json], home: Path, draft: Draft) -> Kept:
    values = dict(enumerate(found))
    for group in draft.groups:
        for part in group.parts:
            if part.home == home and group.dropped:
                del values[part.index]
            elif part.home == home:
                values[part.index] = _cut_texts(values[part.index], part.texts)
    return list(values.items())


def _cut_texts(value: Json, found: list[DraftText]) -> Json:
    for text in found:
        if text.is_cut:
            value = put(value, text.at, cut_middle(text.whole, text.keep))
    return value


def _place_summary(kept: Kept, seat: Seat, *, lost: bool) -> Kept:
    """Insert the summary into the entries that stay."""
    if seat.opens:
        return _open_conversation(kept, seat.note or MISSING_TURNS) if seat.note or lost else kept
    if not seat.note:
        return kept
    if seat.index is not None:
        return [(index, _append_note(value, seat.note) if index == seat.index else value) for index, value in kept]
    if len(kept) == 1 and isinstance(kept[0][1], str) and not lost:
        return [(0, _in_the_gap(kept[0][1], seat.note))]
    return [(-1, _entry(kept, seat.note)), *kept]


def _in_the_gap(text: str, note: str) -> str:
    """Insert the summary where the middle of a text was cut out, because the end is often the question itself."""
    head, gap, tail = text.partition(_GAP_ENDS)
    return f"{head}{gap}{note}\n{tail}" if gap else f"{text}\n\n{note}"


def _open_conversation(kept: Kept, words: str) -> Kept:
    """Add a user message that says what is missing: a conversation must not begin with the assistant or a tool."""
    at = next((at for at, (_, one) in enumerate(kept) if one["role"] not in SYSTEM_ROLES), len(kept))
    return [*kept[:at], (-1, {"role": "user", "content": words}), *kept[at:]]


def _append_note(message: Mapping[str, Json], note: str) -> Json:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": note}]}
    return {**message, "content": f"{content}\n\n{note}" if content else note}


def _entry(kept: Kept, note: str) -> Json:
    """Return a summary in the form that the context entries have."""
    like = kept[0][1] if kept else ""
    if isinstance(like, str):
        return note
    return {next((key for key in TEXT_KEYS if key in like), "text"): note}


# ---- what was left out


def list_left_out(draft: Draft) -> Iterator[str]:
    """Yield the text of every part that was dropped or cut."""
    for group in draft.groups:
        for part in group.parts:
            if group.dropped:
                yield _describe_part(reading.entries(get(draft.payload, part.home))[part.index])
            else:
                yield from (_gap(text) for text in part.texts if text.is_cut)


def _describe_part(value: Json) -> str:
    """Write a message or context entry as text."""
    words = [text for _, text in reading.texts(value)]
    if isinstance(value, Mapping) and "role" in value:
        if calls(value):
            words.append(reading.json_text(value.get("tool_calls") or value.get("content")))
        return f"{value['role']}: " + "\n".join(words)
    return "\n".join(words) or reading.json_text(value)


def _gap(text: DraftText) -> str:
    head, tail = _ends(text.whole, text.keep)
    return text.whole[head:tail]
