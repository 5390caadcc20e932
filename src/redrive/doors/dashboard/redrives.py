"""Bulk redrives: how far each is, what its canary said, and stopping one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redrive.deadletters.bulk.run import GroupScore, ItemStatus, RedriveRun
from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import Site, address, back, form_of, page, rd_of, who
from redrive.doors.web.problems import missing
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

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
"""Which items may be asked for, by what the scorecard calls them, and the status that they have."""
TITLES: Final = {
    "canary": "A few go first",
    "moving": "On their way",
    "paused": "Paused",
    "settling": "All are moved",
    "finished": "Finished",
    "cancelled": "Cancelled",
}


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/redrives", listed, "redrives"),
        site.route("/redrives/{id}", shown, "redrive"),
        site.route("/redrives/{id}/{verb}", act, "redrive_act", post=True),
    ]


async def listed(request: Request) -> Response:
    runs = await rd_of(request).redrives.list(limit=LISTED)

    def items_at(run: RedriveRun, which: str) -> str:
        return f"{address(request, 'redrive', id=run.id, query={'which': which})}#items-title"

    return await page(request, "redrives.html", section="redrives", runs=runs, items_at=items_at)


async def shown(request: Request) -> Response:
    rd, cursor = rd_of(request), request.query_params.get("cursor")
    with missing("redrive"):
        run = await rd.redrives.get(request.path_params["id"])
    chosen = _chosen(request, run)
    items = await rd.redrives.items(run.id, cursor, statuses=WHICH[chosen.which], place=chosen.place, why=chosen.why)

    def items_at(which: str, place: int | None = None, why: str | None = None) -> str:
        query = {"which": which, "place": place, "why": why}
        return f"{address(request, 'redrive', id=run.id, query=query)}#items-title"

    return await page(
        request, "redrive.html", section="redrives", run=run, title=TITLES[run.state], standing=standing(run),
        chosen=chosen, items_at=items_at,
        canary=_sentence(run.canary.text) if run.canary else None, numbers=numbers(run), facts=facts(run),
        items=items, cursor=cursor, worst=worst(run),
    )  # fmt: skip


class Chosen(NamedTuple):
    """Which items of a redrive the address asks for, and how many its scorecard counts."""

    which: str
    place: int | None
    why: str | None
    total: int | None
    words: str

    @property
    def active(self) -> bool:
        return self.which != "all" or self.place is not None or self.why is not None


def _chosen(request: Request, run: RedriveRun) -> Chosen:
    which = request.query_params.get("which") or "all"
    if which not in WHICH:
        raise InvalidInput(field="which", problem=f"{which[:50]!r} is not one of {', '.join(WHICH)}")
    said, why = request.query_params.get("place", ""), request.query_params.get("why") or None
    if said and not (said.isascii() and said.isdigit() and len(said) < 9 and int(said) < len(run.by_group)):
        raise InvalidInput(field="place", problem=f"{said[:50]!r} is not a group of this redrive")
    place = int(said) if said else None
    scores = run if place is None else run.by_group[place]
    total = run.skipped_because.get(why) if why is not None else _score(scores, which)
    told = [words.plain(which)] if which != "all" else []
    told += [run.by_group[place].error_class or run.by_group[place].task] if place is not None else []
    told += [why] if why is not None else []
    return Chosen(
        which, place, why, total, f"only: {', '.join(told)}" if told else "in the order in which they are taken"
    )


def _score(scores: RedriveRun | GroupScore, which: str) -> int:
    """How many items the scorecard counts there."""
    if which == "all":
        return scores.total if isinstance(scores, RedriveRun) else scores.number
    if which == "pending":
        return scores.left if isinstance(scores, RedriveRun) else scores.number - scores.moved - scores.skipped
    number: int = getattr(scores, which)
    return number


def standing(run: RedriveRun) -> str:
    """How it stands, in one sentence."""
    moved = f"{run.moved:,} of {words.counted(run.total, 'dead letter')} moved"
    if run.state == "paused":
        rest = f"the other {run.left:,} wait for you"
        failed = run.canary is not None and run.canary.verdict == "failed"  # which is told beside it
        return f"{moved}; {rest}." if failed or not run.reason else f"{moved}; {rest}: {_sentence(run.reason)}"
    if run.state == "finished":
        still = f", {run.open:,} still open" if run.open else ""
        return f"{run.succeeded:,} succeeded, {run.failed_again:,} failed again, {run.skipped:,} skipped{still}."
    if run.state == "cancelled":
        return f"{moved}; {run.left:,} stayed where they were."
    if run.state == "settling":
        return f"{run.open:,} of {run.moved:,} have not ended yet."
    return f"{moved}, {run.left:,} to go."


def worst(run: RedriveRun) -> str | None:
    """The group that most of its letters met again, where somebody should look before anything else moves."""
    judged = run.state == "paused" and run.canary is not None and run.canary.verdict == "failed"
    failed = [row for row in run.by_group if row.failed_again and row.fingerprint]
    return max(failed, key=lambda row: row.failed_again).fingerprint if failed and (judged or run.over) else None


def _sentence(text: str) -> str:
    said = text[:1].upper() + text[1:]
    return said if said.endswith((".", "!", "?")) else f"{said}."


def numbers(run: RedriveRun) -> list[tuple[str, int, str | None, str]]:
    """What every item is now: they add up to the whole."""
    found: list[tuple[str, int, str | None, str]] = [
        ("succeeded", run.succeeded, "done", "succeeded"),
        ("failed again", run.failed_again, "dead", "failed_again"),
        ("open", run.open, "running", "open"),
        ("skipped", run.skipped, None, "skipped"),
        ("to go", run.left, None, "pending"),
    ]
    return [*found, ("discarded", run.discarded, None, "discarded")] if run.discarded else found


def facts(run: RedriveRun) -> list[tuple[str, str | None]]:
    canary = run.canary
    return [
        ("What", run.chosen),
        ("Letters", words.number(run.total)),
        ("By", run.who),
        ("Why", words.masked(run.why)),
        ("Started", words.exact(run.at)),
        ("Ended", words.exact(run.ended_at) if run.ended_at else None),
        ("Last move", words.exact(run.moved_at) if run.moved_at else None),
        ("Pace", f"at most {run.rate:g} a second" if run.rate is not None else "no limit"),
        ("Canary", f"{canary.size}, {canary.pass_rate:.0%} must succeed" if canary else "none"),
        ("Redrive", run.id),
    ]


async def act(request: Request) -> Response:
    rd, form, verb = rd_of(request), await form_of(request), request.path_params["verb"]
    said: dict[str, Any] = {"who": who(request), "why": form.text("why")}
    id = request.path_params["id"]
    match verb:
        case "pause":
            await rd.redrives.pause(id, **said)
            return back(request, "Paused: nothing more moves.")
        case "resume":
            await rd.redrives.resume(id, **said)
            return back(request, "It goes on.")
        case "cancel":
            run = await rd.redrives.cancel(id, **said)
            return back(request, f"Cancelled. {words.counted(run.left, 'dead letter')} stayed where they were.")
        case _:
            raise InvalidInput(field="verb", problem=f"{verb!r} is not an action on a redrive")
