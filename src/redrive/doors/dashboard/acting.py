"""Acting on many dead letters: what would happen first, then the verb, and what was done so far, to be taken back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import RedirectResponse

from redrive.core.redrives import PASS_RATE
from redrive.doors.dashboard import choosing, words
from redrive.doors.dashboard.choosing import Choice, by_group
from redrive.doors.dashboard.rendering import Site, address, back, form_of, page, rd_of, to, who
from redrive.doors.dashboard.verbs import days_of
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.app import Redrive
    from redrive.core.triage import Act, Acted
    from redrive.doors.dashboard.rendering import Form

ROWS: Final = 12
"""Groups that a plan tells one by one."""
ACTS: Final = 100
DID: Final = {
    "redrive": "redrove", "edit": "edited and redrove", "reassign": "reassigned", "defer": "deferred",
    "recall": "recalled", "discard": "discarded", "restore": "restored", "move_lane": "moved", "note": "wrote about",
    "purge": "purged", "resolve_group": "resolved the group", "ignore_group": "ignored the group",
}  # fmt: skip
SHOWN: Final = 50
"""Characters of a number that is none, in its refusal."""
CANARY: Final = 5
MANY_CANARY: Final = 20
LOOKED_AT: Final = 2_000
"""Up to so many are judged one by one for a plan."""
OWN_WORD: Final = {"defer": "owner", "reassign": "agent", "move_lane": "lane"}
"""What a verb is told besides which jobs it is about; a filter of that name stands in `where`."""

VERBS: Final = {
    "redrive": ("Redrive {}?", "Back to their queues: same ids, keys and histories.", "Start"),
    "discard": ("Discard {}?", "They are let go. You can bring them back.", "Discard"),
    "defer": ("Defer {}?", "Out of the way until then; whoever is named sees to them.", "Defer"),
    "reassign": ("Reassign {}?", "Back to their queues, to be done by another agent.", "Reassign"),
    "move_lane": ("Move {} to another lane?", "Where they wait, and whether they come back by themselves.", "Move"),
    "purge": ("Purge {} for good?", "Their contents are removed.", "Purge"),
}


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/dead/act", plan, "act"),
        site.route("/dead/act", act, "act", post=True),
        site.route("/acts", acts, "acts"),
        site.route("/acts/{id}/undo", undo, "undo", post=True),
    ]


# -- before acting


async def plan(request: Request) -> Response:
    """What would happen, to how many, and the words that go with it. Changes nothing."""
    choice, verb = choosing.read(request.query_params), request.query_params.get("verb", "")
    if verb == "export":
        return RedirectResponse(address(request, "export", query=choice.query), 303)
    if verb not in VERBS:
        raise InvalidInput(field="verb", problem=f"{verb!r} is not one of {', '.join(VERBS)}")
    if choice.nothing:
        letters = address(request, "letters", query=choice.said)
        return to(request, letters, "Nothing is selected. Pick some letters, or tick all of them.", kind="bad")
    known = await (_redrive_plan(request, choice) if verb == "redrive" else _other_plan(request, choice, verb))
    number = known["number"]
    title, text, confirm = VERBS[verb]
    defaults: dict[str, Any] = {
        "token": None, "estimate": None, "skipped": {}, "warnings": (), "canary": 0, "startable": True,
        "in_the_way": (),
    }  # fmt: skip
    return await page(
        request, "act.html", section="letters", choice=choice, verb=verb, text=text, confirm=confirm,
        title=title.format(words.counted(number, "dead letter")), agents=sorted(rd_of(request).registry.fleet.agents),
        suggested=request.query_params.get("to", "")[:200],
        **{**defaults, **known},
    )  # fmt: skip


async def _redrive_plan(request: Request, choice: Choice) -> dict[str, Any]:
    rd = rd_of(request)
    scope = await choosing.scope(rd, choice)
    if "ids" not in scope and sum((await by_group(rd, await choosing.filters(rd, choice))).values()) > LOOKED_AT:
        return await _quick_plan(request, choice)
    found = await rd.redrives.plan(**scope)
    return {
        "number": found.number, "chosen": found.chosen, "rows": found.groups[:ROWS], "token": found.token,
        "more_rows": max(0, len(found.groups) - ROWS), "estimate": found.estimate, "skipped": found.skipped,
        "warnings": found.warnings, "startable": bool(found.moving) and not found.running,
        "in_the_way": await _in_the_way(rd, found.running) if found.running else (),
        "canary": CANARY if found.moving > 2 * CANARY else 0,
    }  # fmt: skip


async def _in_the_way(rd: Redrive, running: Sequence[str]) -> list[tuple[str, str]]:
    """Each redrive that has some of these, and what can be done about it."""
    paused = {run.id for run in await rd.redrives.live() if run.state == "paused"}
    waits, moves = (
        "is paused and has some of these: resume or cancel it",
        "still moves some of these: wait for it, or cancel it",
    )
    return [(id, waits if id in paused else moves) for id in running]


async def _quick_plan(request: Request, choice: Choice) -> dict[str, Any]:
    """So many are not judged one by one while somebody waits for a page; the redrive itself judges each."""
    known, rd = await _other_plan(request, choice, "redrive"), rd_of(request)
    estimate = await rd.redrives.estimate(known["number"], **await choosing.filters(rd, choice))
    said = f"More than {LOOKED_AT:,}: what would not move is not looked for now. The scorecard will tell it."
    return {**known, "warnings": (said,), "canary": MANY_CANARY, "estimate": estimate}


async def _other_plan(request: Request, choice: Choice, verb: str) -> dict[str, Any]:
    rd = rd_of(request)
    scope = await choosing.scope(rd, choice)
    chosen = {"ids": tuple(scope["ids"])} if "ids" in scope else await choosing.filters(rd, choice)
    counts = await by_group(rd, chosen)
    largest = sorted(counts, key=lambda fingerprint: -counts[fingerprint])
    groups = {group.fingerprint: group for group in await rd.store.groups(fingerprints=[*filter(None, largest[:ROWS])])}
    rows = [
        {"fingerprint": name, "task": groups[name].task, "error": groups[name].error,
         "error_class": groups[name].error_class, "number": counts[name]}
        for name in largest[:ROWS]
        if name in groups
    ]  # fmt: skip
    known = {"number": sum(counts.values()), "rows": rows, "more_rows": max(0, len(largest) - len(rows))}
    said = ", ".join(text for _, text in choice.active) or "all dead letters"
    known["chosen"] = f"{len(choice.ids)} that you picked" if choice.ids and not choice.all else said
    if verb == "purge":
        known["token"] = (await rd.dead.purge_plan(**scope)).token
    return known


# -- acting


async def act(request: Request) -> Response:
    """The verb, on what was picked or on all that match."""
    form = await form_of(request)
    choice, verb, rd = choosing.read(form), form.text("verb") or "", rd_of(request)
    scope, said = await choosing.scope(rd, choice), {"who": who(request), "why": form.text("why")}
    if verb == "redrive":
        return await _start(request, form, scope | said)
    if verb == "purge":
        return await _purge(request, form, choice, scope | said)
    where = {"where": scope} if OWN_WORD.get(verb) in scope else scope
    acted = await _acted(rd, verb, form, where | said)
    group = choice.said.get("group") if choice.all and set(choice.said) == {"group"} else None
    letters = address(request, "letters", query=choice.said)
    if group:
        letters = address(request, "group", fingerprint=group)
    undo = address(request, "undo", id=acted.act_id) if acted.moved else None
    return to(request, letters, told(acted), kind="good" if acted.moved else "bad", undo=undo)


async def _start(request: Request, form: Form, said: dict[str, Any]) -> Response:
    run = await rd_of(request).redrives.start(
        canary=whole_of(form, "canary") or 0, pass_rate=_pass_rate(form), rate=number_of(form, "rate"),
        token=form.text("token"), **said,
    )  # fmt: skip
    return to(
        request, address(request, "redrive", id=run.id), f"Started with {words.counted(run.total, 'dead letter')}."
    )


def _pass_rate(form: Form) -> float:
    """Written in percent."""
    percent = number_of(form, "pass_rate")
    if percent is not None and not 0 < percent <= 100:
        raise InvalidInput(field="pass_rate", problem=f"{percent:g} % is not above 0 and at most 100 %")
    return PASS_RATE if percent is None else percent / 100


async def _purge(request: Request, form: Form, choice: Choice, said: dict[str, Any]) -> Response:
    """The number is typed, and the token stands for exactly these: two people cannot purge what only one has seen."""
    planned = await rd_of(request).dead.purge_plan(**await choosing.scope(rd_of(request), choice))
    typed = (form.text("confirm") or "").replace(",", "").replace(".", "")
    if typed != str(planned.number):
        what = words.counted(planned.number, "dead letter")
        raise InvalidInput(field="confirm", problem=f"type {planned.number} to purge {what}")
    purged = await rd_of(request).dead.purge(confirm=form.text("token") or "", **said)
    return to(request, address(request, "letters"), f"Purged {words.counted(purged, 'dead letter')} for good.")


async def _acted(rd: Redrive, verb: str, form: Form, said: dict[str, Any]) -> Acted:
    acted: Acted
    match verb:
        case "discard":
            acted = await rd.dead.discard(**said)
        case "defer":
            until = timedelta(days=days_of(form))
            acted = await rd.dead.defer(owner=form.text("new_owner") or "", until=until, **said)
        case "reassign":
            acted = await rd.dead.reassign(agent=form.text("new_agent") or "", **said)
        case "move_lane":
            acted = await rd.dead.move_lane(lane=form.text("new_lane") or "", **said)
        case _:
            raise InvalidInput(field="verb", problem=f"{verb!r} is not one of {', '.join(VERBS)}")
    return acted


def told(acted: Acted) -> str:
    """What an act did, with the first reason where something did not move."""
    text = acted.text[:1].upper() + acted.text[1:]
    return f"{text}: {acted.refused[0].why}" if acted.refused else f"{text}."


def number_of(form: Form, name: str) -> float | None:
    text = form.text(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(field=name, problem=f"{text[:SHOWN]!r} is not a number")
    return number


def whole_of(form: Form, name: str) -> int | None:
    number = number_of(form, name)
    if number is not None and not number.is_integer():
        raise InvalidInput(field=name, problem=f"{(form.text(name) or '')[:SHOWN]!r} is not a whole number")
    return None if number is None else int(number)


async def acts(request: Request) -> Response:
    """What was done to dead letters and said of groups, by whom and why."""
    done = await rd_of(request).dead.acts(limit=ACTS)
    told = [(act, DID.get(act.verb, words.plain(act.verb)), further(act)) for act in done]
    return await page(request, "acts.html", section="letters", acts=told)


def further(act: Act) -> str:
    """To whom, and which were meant."""
    said = [f"to {act.said[name]}" for name in ("agent", "owner", "lane") if act.said.get(name)]
    chosen = ", ".join(f"{name} {value}" for name, value in act.filter.items())
    return " ".join((*said, f"({chosen})" if chosen else "")).strip()


async def undo(request: Request) -> Response:
    taken = await rd_of(request).dead.undo(request.path_params["id"], who=who(request))
    return back(request, told(taken), kind="good" if taken.moved else "bad")
