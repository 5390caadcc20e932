"""One error group: what it is in one sentence, how it goes, what worked before, and trying a few before the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from redrive.deadletters.acts import GROUP
from redrive.deadletters.group import HOUR, GroupView, rank_strategies
from redrive.doors.dashboard import words
from redrive.doors.dashboard.bulk_actions import OFFERED
from redrive.doors.dashboard.dead_letters import list_hours
from redrive.doors.dashboard.edit import CANARY
from redrive.doors.dashboard.overview import encode_plot
from redrive.doors.dashboard.rendering import go_back, go_to
from redrive.doors.web.problems import missing
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.responses import Response

    from redrive.api.redrive import Redrive
    from redrive.doors.dashboard.rendering import Values
    from redrive.doors.dashboard.requests import Form, PageRequest

COURSES: Final = {
    "new": "It is new.",
    "growing": "It is growing.",
    "steady": "It goes on as before.",
    "shrinking": "It is shrinking.",
    "quiet": "Nothing of it died in the last day.",
    "cured": "Nothing of it is dead any more.",
}
SETTLED: Final = {
    "resolved": "It is marked as cured: you are told if it comes back.",
    "ignored": "It is ignored for now.",
}
"""What a person has decided about a group; shown instead of how the group goes."""


async def show_group(request: PageRequest) -> Values:
    rd = request.rd
    with missing("fingerprint"):
        view = await rd.groups.show(request.path_params["fingerprint"])
    now = rd.clock.now()
    running = await rd.redrives.of_group(view.fingerprint)
    hours = list_hours(view, now)
    return {
        "view": view,
        "sentence": describe_group(view, now),
        "facts": list_facts(view, request.address("dead_letters", query={"group": view.fingerprint})),
        "hours": hours,
        "plot": plot_hours(hours, now),
        "canary": CANARY,
        "running": running,
        "lessons": [(lesson.text, lesson.worked, lesson.failed) for lesson in rank_strategies(view.lessons)],
        "another": view.other_agent,
        "offers": rank_offers(view, running=running is not None),
        "table": OFFERED,
    }


def rank_offers(view: GroupView, *, running: bool) -> list[str]:
    """Rank what can be done with the group, the advised verb first: three of them are buttons, the rest a menu."""
    statuses = {"resolve": "resolved", "ignore": "ignored", "reopen": "unresolved"}
    settle = [verb for verb, status in statuses.items() if view.status != status]
    if not view.dead:
        return [*(["follow"] if running else []), *settle]
    others = [name for name in OFFERED if name not in ("redrive", "purge")]
    if running:
        return ["follow", *settle, *others]
    first = _find_advised(view)
    again = ["canary", "redrive"] if view.dead > CANARY else ["redrive"]
    ranked = [first, *(["edit"] if first == "edit_one" and view.dead > 1 else []), *again, *settle, *others]
    return list(dict.fromkeys(ranked))


def _find_advised(view: GroupView) -> str:
    """Find the main button: what the advice says, as far as a button can do it."""
    advice = view.suggestion
    if view.other_agent:
        return "give"
    if advice.strategy == "edit" and 2 * advice.worked >= advice.tried:
        return "edit_one" if view.samples else "redrive"
    if advice.action == "redrive" or not view.samples:
        return "canary" if view.dead > CANARY else "redrive"
    return "look"


def describe_group(view: GroupView, now: float) -> str:
    """Say what the group is, for a person who has never seen it."""
    seen = view.group
    dead = f"{words.counted(view.dead, 'job')} of {seen.task} {'is' if view.dead == 1 else 'are'} dead for this reason"
    if not view.dead:
        dead = f"{words.counted(seen.buried, 'job')} of {seen.task} died for this reason, and none is dead now"
    last = f"last {words.ago(seen.last_at, now)}"
    since = last if seen.first_at == seen.last_at else f"first {words.ago(seen.first_at, now)}, {last}"
    return f"{dead}, {since}. {SETTLED.get(view.status) or COURSES[view.trend]}"


def list_facts(view: GroupView, list_address: str) -> list[tuple[str, Any]]:
    seen, state = view.group, view.state
    limits = [
        f"until {words.exact(state.ignored_until)}" if state.ignored_until else "",
        f"up to {state.ignored_rate:g} an hour" if state.ignored_rate is not None else "",
        f"for {state.ignored_count} more" if state.ignored_count is not None else "",
    ]
    version = f" in {state.resolved_in}" if state.resolved_in else ""
    return [
        ("Status", f"{view.status}{version} {', '.join(filter(None, limits))}".strip()),
        ("Task", seen.task),
        ("Queue", seen.queue),
        ("Agent", seen.agent),
        ("Kind of failure", words.plain(seen.detail) if seen.detail else None),
        ("Dead now", {"number": view.dead, "href": list_address}),
        ("Died in all", words.number(seen.buried)),
        ("First", words.exact(seen.first_at)),
        ("Last", words.exact(seen.last_at)),
        ("Alerted", words.exact(state.alerted_at) if state.alerted_at else None),
        ("Group", view.fingerprint),
    ]


def plot_hours(hours: list[int], now: float) -> str:
    first = (int(now // HOUR) - len(hours) + 1) * HOUR
    deaths = {"name": "died", "kind": "dead", "values": hours, "fill": True}
    return encode_plot([first + HOUR * n for n in range(len(hours))], deaths)


# -- acting


async def act_on_group(request: PageRequest, form: Form) -> Response:
    rd, verb, fingerprint = request.rd, request.path_params["verb"], request.path_params["fingerprint"]
    if verb == "canary":
        return await _start_canary(request, fingerprint)
    if verb == "note":
        await rd.groups.note(fingerprint, form.text("text") or "", who=request.who)
        return go_back(request, "Noted.")
    view = await _settle_group(rd, verb, fingerprint, form, request.sign(form))
    left = f" {words.counted(view.dead, 'dead letter')} of it left." if view.dead and verb != "reopen" else ""
    undo = request.address("undo", id=GROUP + view.fingerprint) if verb != "reopen" else None
    return go_back(request, f"The group is {view.status}.{left}", undo=undo)


async def _settle_group(rd: Redrive, verb: str, fingerprint: str, form: Form, by: dict[str, Any]) -> GroupView:
    match verb:
        case "resolve":
            return await rd.groups.resolve(fingerprint, in_version=form.text("in_version"), **by)
        case "ignore":
            limits: dict[str, Any] = {"rate": form.number("rate"), "count": form.whole_number("count")}
            return await rd.groups.ignore(fingerprint, until=form.days() if form.text("days") else None, **limits, **by)
        case "reopen":
            return await rd.groups.reopen(fingerprint, **by)
        case _:
            raise InvalidInput(field="verb", problem=f"{verb!r} is not an action on a group")


async def _start_canary(request: PageRequest, fingerprint: str) -> Response:
    """Redrive a few first; the rest follows by itself if they succeed, and waits for a person if they do not."""
    view = await request.rd.groups.show(fingerprint)
    run = await request.rd.redrives.start(
        canary=CANARY, who=request.who, why="a few first", fingerprint=view.fingerprint
    )
    text = f"{CANARY} go first. The rest follows if they succeed." if run.total > CANARY else "On their way."
    return go_to(request, request.address("redrive", id=run.id), text)
