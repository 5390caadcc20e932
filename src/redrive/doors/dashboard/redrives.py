"""Bulk redrives: how far each is, what its canary said, and stopping one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redrive.doors.dashboard import words
from redrive.doors.dashboard.rendering import Site, back, form_of, page, rd_of, who
from redrive.doors.web.problems import missing
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.core.redrives import RedriveRun

LISTED: Final = 50
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
    return await page(request, "redrives.html", section="redrives", runs=runs)


async def shown(request: Request) -> Response:
    rd, cursor = rd_of(request), request.query_params.get("cursor")
    with missing("redrive"):
        run = await rd.redrives.get(request.path_params["id"])
    return await page(
        request, "redrive.html", section="redrives", run=run, title=TITLES[run.state], standing=standing(run),
        canary=_sentence(run.canary.text) if run.canary else None, numbers=numbers(run), facts=facts(run),
        items=await rd.redrives.items(run.id, cursor), cursor=cursor, worst=worst(run),
    )  # fmt: skip


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
    """The trouble that most of its letters met again, where somebody should look before anything else moves."""
    judged = run.state == "paused" and run.canary is not None and run.canary.verdict == "failed"
    failed = [row for row in run.by_group if row.failed_again and row.fingerprint]
    return max(failed, key=lambda row: row.failed_again).fingerprint if failed and (judged or run.over) else None


def _sentence(text: str) -> str:
    said = text[:1].upper() + text[1:]
    return said if said.endswith((".", "!", "?")) else f"{said}."


def numbers(run: RedriveRun) -> list[tuple[str, int, str | None]]:
    """What every item is now: they add up to the whole."""
    found: list[tuple[str, int, str | None]] = [
        ("succeeded", run.succeeded, "done"),
        ("failed again", run.failed_again, "dead"),
        ("open", run.open, "running"),
        ("skipped", run.skipped, None),
        ("to go", run.left, None),
    ]
    return [*found, ("discarded", run.discarded, None)] if run.discarded else found


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
            raise InvalidInput(field="verb", problem=f"{verb!r} is nothing that can be done with a redrive")
