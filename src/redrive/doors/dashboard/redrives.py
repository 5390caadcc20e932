"""Bulk redrives: how far each is, what its canary showed, and stopping one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redrive.deadletters.bulk_run import GroupScore, ItemStatus, RedriveRun
from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import go_back
from redrive.doors.web.problems import missing
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.responses import Response

    from redrive.doors.dashboard.rendering import Values
    from redrive.doors.dashboard.requests import Form, PageRequest

LISTED: Final = 50
WHICH: Final[Mapping[str, tuple[ItemStatus, ...]]] = {
    "all": (),
    "pending": ("pending",),
    "moved": ("moved", "succeeded", "failed_again", "discarded"),
    "open": ("moved",),
    "succeeded": ("succeeded",),
    "failed_again": ("failed_again",),
    "skipped": ("skipped",),
    "discarded": ("discarded",),
}
"""Which items may be asked for, by the name in the scorecard, and the statuses that they have."""
TITLES: Final = {
    "canary": "A few go first",
    "moving": "On their way",
    "paused": "Paused",
    "settling": "All are moved",
    "finished": "Finished",
    "cancelled": "Cancelled",
}


async def list_redrives(request: PageRequest) -> Values:
    def items_at(run: RedriveRun, which: str) -> str:
        return _make_address(request, run, which=which)

    return {"runs": await request.rd.redrives.list(limit=LISTED), "items_at": items_at}


def _make_address(request: PageRequest, run: RedriveRun, **query: Any) -> str:
    """Make the address of a list of a redrive's items."""
    return f"{request.address('redrive', id=run.id, query=query)}#items-title"


async def show_redrive(request: PageRequest) -> Values:
    redrives, cursor = request.rd.redrives, request.query_params.get("cursor")
    with missing("redrive"):
        run = await redrives.get(request.path_params["id"])
    chosen = _choose_items(request, run)
    statuses = WHICH[chosen.which]

    def items_at(which: str, place: int | None = None, why: str | None = None) -> str:
        return _make_address(request, run, which=which, place=place, why=why)

    return {
        "run": run,
        "title": TITLES[run.state],
        "standing": describe_run(run),
        "chosen": chosen,
        "items_at": items_at,
        "canary": words.sentence(run.canary.text) if run.canary else None,
        "numbers": list_numbers(run),
        "facts": list_facts(run),
        "items": await redrives.items(run.id, cursor, statuses=statuses, place=chosen.place, why=chosen.why),
        "cursor": cursor,
        "worst": find_worst_group(run),
    }


class ChosenItems(NamedTuple):
    """Which items of a redrive the address asks for, and how many its scorecard counts."""

    which: str
    place: int | None
    why: str | None
    total: int | None
    words: str

    @property
    def active(self) -> bool:
        return self.which != "all" or self.place is not None or self.why is not None


def _choose_items(request: PageRequest, run: RedriveRun) -> ChosenItems:
    which, place = request.choose("which", WHICH, "all"), request.number("place")
    text, why = request.text("place"), request.query_params.get("why") or None
    if text and (place is None or place >= len(run.by_group)):
        raise InvalidInput(field="place", problem=f"{text[:50]!r} is not a group of this redrive")
    group = run.by_group[place] if place is not None else None
    total = run.skipped_because.get(why) if why is not None else _read_score(group or run, which)
    parts = [words.plain(which)] if which != "all" else []
    parts += [group.error_class or group.task] if group is not None else []
    parts += [why] if why is not None else []
    description = f"only: {', '.join(parts)}" if parts else "in the order in which they are taken"
    return ChosenItems(which, place, why, total, description)


def _read_score(scores: RedriveRun | GroupScore, which: str) -> int:
    """Read how many items the scorecard counts."""
    if which == "all":
        return scores.total if isinstance(scores, RedriveRun) else scores.number
    if which == "pending":
        return scores.left if isinstance(scores, RedriveRun) else scores.number - scores.moved - scores.skipped
    number: int = getattr(scores, which)
    return number


def describe_run(run: RedriveRun) -> str:
    """Say in one sentence how far a redrive is."""
    moved = f"{run.moved:,} of {words.counted(run.total, 'dead letter')} moved"
    if run.state == "paused":
        rest = f"the other {run.left:,} wait for you"
        failed = run.canary is not None and run.canary.verdict == "failed"  # its reason stands beside this sentence
        return f"{moved}; {rest}." if failed or not run.reason else f"{moved}; {rest}: {words.sentence(run.reason)}"
    if run.state == "finished":
        still = f", {run.open:,} still open" if run.open else ""
        return f"{run.succeeded:,} succeeded, {run.failed_again:,} failed again, {run.skipped:,} skipped{still}."
    if run.state == "cancelled":
        return f"{moved}; {run.left:,} stayed where they were."
    if run.state == "settling":
        return f"{run.open:,} of {run.moved:,} have not ended yet."
    return f"{moved}, {run.left:,} to go."


def find_worst_group(run: RedriveRun) -> str | None:
    """Find the group that most dead letters fell into again: a person should look at it before anything else moves."""
    judged = run.state == "paused" and run.canary is not None and run.canary.verdict == "failed"
    failed = [row for row in run.by_group if row.failed_again and row.fingerprint]
    return max(failed, key=lambda row: row.failed_again).fingerprint if failed and (judged or run.over) else None


def list_numbers(run: RedriveRun) -> list[tuple[str, int, str | None, str]]:
    """List how many items are in each status; the numbers add up to the whole."""
    numbers = [
        ("succeeded", run.succeeded, "done", "succeeded"),
        ("failed again", run.failed_again, "dead", "failed_again"),
        ("open", run.open, "running", "open"),
        ("skipped", run.skipped, None, "skipped"),
        ("to go", run.left, None, "pending"),
        ("discarded", run.discarded, None, "discarded"),
    ]
    return numbers if run.discarded else numbers[:-1]


def list_facts(run: RedriveRun) -> list[tuple[str, str | None]]:
    canary = run.canary
    return [
        ("What", run.chosen),
        ("Dead letters", words.number(run.total)),
        ("By", run.who),
        ("Why", words.masked(run.why)),
        ("Started", words.exact(run.at)),
        ("Ended", words.exact(run.ended_at) if run.ended_at else None),
        ("Last move", words.exact(run.moved_at) if run.moved_at else None),
        ("Pace", f"at most {run.rate:g} a second" if run.rate is not None else "no limit"),
        ("Canary", f"{canary.size}, {canary.pass_rate:.0%} must succeed" if canary else "none"),
        ("Redrive", run.id),
    ]


VERBS: Final = {
    "pause": "Paused: nothing more moves.",
    "resume": "It goes on.",
    "cancel": "Cancelled. {} stayed where they were.",
}
"""What can be done with a redrive, and what the next page says then."""


async def act_on_redrive(request: PageRequest, form: Form) -> Response:
    verb = request.path_params["verb"]
    if verb not in VERBS:
        raise InvalidInput(field="verb", problem=f"{verb!r} is not an action on a redrive")
    run: RedriveRun = await getattr(request.rd.redrives, verb)(request.path_params["id"], **request.sign(form))
    return go_back(request, VERBS[verb].format(words.counted(run.left, "dead letter")))
