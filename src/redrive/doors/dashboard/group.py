"""One error group: what it is in one sentence, how it goes, what worked before, and trying a few before the rest."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.deadletters.acts import GROUP
from redrive.deadletters.group import HOUR, GroupView, tried
from redrive.doors.dashboard import words
from redrive.doors.dashboard.acting import CANARY, OFFERED
from redrive.doors.dashboard.letters import hours
from redrive.doors.dashboard.numbers import number_of, whole_of
from redrive.doors.dashboard.rendering import Site, address, back, form_of, page, rd_of, to, who
from redrive.doors.dashboard.verbs import days_of
from redrive.doors.web.problems import missing
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.api.redrive import Redrive
    from redrive.doors.dashboard.rendering import Form

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
"""What a person has said of it, instead of how it goes."""


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/groups/{fingerprint}", shown, "group"),
        site.route("/groups/{fingerprint}/{verb}", act, "group_act", post=True),
    ]


async def shown(request: Request) -> Response:
    rd = rd_of(request)
    with missing("fingerprint"):
        view = await rd.groups.show(request.path_params["fingerprint"])
    now = rd.clock.now()
    running = await rd.redrives.of_group(view.fingerprint)
    return await page(
        request, "group.html", section="letters", view=view, sentence=sentence(view, now),
        facts=facts(view, address(request, "letters", query={"group": view.fingerprint})),
        hours=hours(view, now), plot=plot(view, now), canary=CANARY, running=running,
        lessons=[(one.text, one.worked, one.failed) for one in tried(view.lessons)], another=view.other_agent,
        offers=offers(view, running=running is not None), table=OFFERED,
    )  # fmt: skip


def offers(view: GroupView, *, running: bool) -> list[str]:
    """What can be done with the group, the advised thing first: three of them are buttons, the rest a menu."""
    settle = [
        *(["resolve"] if view.status != "resolved" else []),
        *(["ignore"] if view.status != "ignored" else []),
        *(["reopen"] if view.status != "unresolved" else []),
    ]
    if not view.dead:
        return [*(["follow"] if running else []), *settle]
    others = [name for name in OFFERED if name not in ("redrive", "purge")]
    if running:
        return ["follow", *settle, *others]
    first = _advised(view)
    again = ["canary", "redrive"] if view.dead > CANARY else ["redrive"]
    ranked = [first, *(["edit"] if first == "edit_one" and view.dead > 1 else []), *again, *settle, *others]
    return list(dict.fromkeys(ranked))


def _advised(view: GroupView) -> str:
    """The main button: what the advice says, as far as a button can do it."""
    advice = view.suggestion
    if view.other_agent:
        return "give"
    if advice.strategy == "edit" and 2 * advice.worked >= advice.tried:
        return "edit_one" if view.samples else "redrive"
    if advice.action == "redrive" or not view.samples:
        return "canary" if view.dead > CANARY else "redrive"
    return "look"


def sentence(view: GroupView, now: float) -> str:
    """What it is, for somebody who has never seen it."""
    seen = view.group
    dead = f"{words.counted(view.dead, 'job')} of {seen.task} {'is' if view.dead == 1 else 'are'} dead for this reason"
    if not view.dead:
        dead = f"{words.counted(seen.buried, 'job')} of {seen.task} died for this reason, and none is dead now"
    last = f"last {words.ago(seen.last_at, now)}"
    since = last if seen.first_at == seen.last_at else f"first {words.ago(seen.first_at, now)}, {last}"
    return f"{dead}, {since}. {SETTLED.get(view.status) or COURSES[view.trend]}"


def facts(view: GroupView, listed: str) -> list[tuple[str, Any]]:
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
        ("Dead now", {"number": view.dead, "href": listed}),
        ("Ever buried", words.number(seen.buried)),
        ("First", words.exact(seen.first_at)),
        ("Last", words.exact(seen.last_at)),
        ("Alerted", words.exact(state.alerted_at) if state.alerted_at else None),
        ("Group", view.fingerprint),
    ]


def plot(view: GroupView, now: float) -> str:
    values = hours(view, now)
    first = (int(now // HOUR) - len(values) + 1) * HOUR
    series = [{"name": "buried", "kind": "dead", "values": values, "fill": True}]
    return msgspec.json.encode({"x": [first + HOUR * n for n in range(len(values))], "series": series}).decode()


# -- acting


async def act(request: Request) -> Response:
    rd, form, verb = rd_of(request), await form_of(request), request.path_params["verb"]
    fingerprint, name = request.path_params["fingerprint"], who(request)
    if verb == "canary":
        return await _canary(request, fingerprint, name)
    if verb == "note":
        await rd.groups.note(fingerprint, form.text("text") or "", who=name)
        return back(request, "Noted.")
    view = await _settled(rd, verb, fingerprint, form, {"who": name, "why": form.text("why")})
    left = f" {words.counted(view.dead, 'dead letter')} of it left." if view.dead and verb != "reopen" else ""
    undo = address(request, "undo", id=GROUP + view.fingerprint) if verb != "reopen" else None
    return back(request, f"The group is {view.status}.{left}", undo=undo)


async def _settled(rd: Redrive, verb: str, fingerprint: str, form: Form, said: dict[str, Any]) -> GroupView:
    match verb:
        case "resolve":
            return await rd.groups.resolve(fingerprint, in_version=form.text("in_version"), **said)
        case "ignore":
            until = timedelta(days=days_of(form)) if form.text("days") else None
            limits: dict[str, Any] = {"rate": number_of(form, "rate"), "count": whole_of(form, "count")}
            return await rd.groups.ignore(fingerprint, until=until, **limits, **said)
        case "reopen":
            return await rd.groups.reopen(fingerprint, **said)
        case _:
            raise InvalidInput(field="verb", problem=f"{verb!r} is not an action on a group")


async def _canary(request: Request, fingerprint: str, name: str) -> Response:
    """A few first; the rest follows by itself if they succeed, and waits for a person if they do not."""
    rd = rd_of(request)
    view = await rd.groups.show(fingerprint)
    run = await rd.redrives.start(canary=CANARY, who=name, why="a few first", fingerprint=view.fingerprint)
    text = f"{CANARY} go first. The rest follows if they succeed." if run.total > CANARY else "On their way."
    return to(request, address(request, "redrive", id=run.id), text)
