"""Acting on many dead letters: what would happen first, then the verb, and what was done so far, to be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from starlette.responses import RedirectResponse

from redrive.core.job import State
from redrive.deadletters import verbs as core_verbs
from redrive.deadletters.triage import Acted
from redrive.deadletters.verbs import Verb
from redrive.doors.dashboard import choosing, editing_many, words
from redrive.doors.dashboard.choosing import Choice, by_group
from redrive.doors.dashboard.numbers import number_of, pass_rate_of, whole_of
from redrive.doors.dashboard.rendering import Site, address, back, form_of, page, rd_of, to, who
from redrive.doors.dashboard.verbs import read_words
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.api.redrive import Redrive
    from redrive.deadletters.triage import Act
    from redrive.doors.dashboard.rendering import Form

ROWS: Final = 12
"""Groups that a plan tells one by one."""
ACTS: Final = 100
DID: Final = {
    **{name: verb.did for name, verb in core_verbs.ACTS.items()},
    "resolve_group": "resolved the group", "ignore_group": "ignored the group",
}  # fmt: skip
CANARY: Final = 5
MANY_CANARY: Final = 20
LOOKED_AT: Final = 2_000
"""Up to so many are judged one by one for a plan."""
OFFERED: Final = {name: verb for name, verb in core_verbs.ACTS.items() if verb.acts_on is State.dead and verb.many}
"""What can be done with many dead letters."""
UNDOABLE: Final = {name: verb for name, verb in OFFERED.items() if not verb.final}
"""What a token that may act can do with them. What is final has a form and a role of its own."""


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/dead/act", plan, "act"),
        site.route("/dead/act", act, "act", post=True),
        site.route("/dead/purge", purge, "purge", post=True, role="purge"),
        *editing_many.routes(site),
        site.route("/acts", acts, "acts"),
        site.route("/acts/{id}/undo", undo, "undo", post=True),
    ]


# -- before acting


async def plan(request: Request) -> Response:
    """What would happen, to how many, and the words that go with it. Changes nothing."""
    choice, verb = choosing.read(request.query_params), request.query_params.get("verb", "")
    if verb == "export":
        return RedirectResponse(address(request, "export", query=choice.query), 303)
    if verb == "edit":
        return RedirectResponse(address(request, "edit_many", query=choice.query), 303)
    offered = core_verbs.verb_named(verb, OFFERED)
    if choice.nothing:
        letters = address(request, "letters", query=choice.said)
        return to(request, letters, "Nothing is selected. Pick some letters, or tick all of them.", kind="bad")
    known = await (_redrive_plan(request, choice) if verb == "redrive" else _other_plan(request, choice, verb))
    number = known["number"]
    defaults: dict[str, Any] = {
        "token": None, "estimate": None, "skipped": {}, "warnings": (), "canary": 0, "startable": True,
        "in_the_way": (),
    }  # fmt: skip
    return await page(
        request, "act.html", section="letters", choice=choice, verb=verb, offered=offered, text=offered.questions,
        confirm="Start" if verb == "redrive" else offered.label.split()[0],
        title=offered.asks.format(words.counted(number, "dead letter")),
        agents=sorted(rd_of(request).registry.fleet.agents),
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
    said = f"More than {LOOKED_AT:,}: they are not checked one by one. The redrive's page shows what did not move."
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
    if verb == "edit":
        return await editing_many.start(request, form, choice, scope, said)
    acted = await _acted(rd, core_verbs.verb_named(verb, UNDOABLE), form, scope, said)
    group = choice.said.get("group") if choice.all and set(choice.said) == {"group"} else None
    letters = address(request, "letters", query=choice.said)
    if group:
        letters = address(request, "group", fingerprint=group)
    undo = address(request, "undo", id=acted.act_id) if acted.moved else None
    return to(request, letters, told(acted), kind="good" if acted.moved else "bad", undo=undo)


async def _start(request: Request, form: Form, said: dict[str, Any]) -> Response:
    run = await rd_of(request).redrives.start(
        canary=whole_of(form, "canary") or 0, pass_rate=pass_rate_of(form), rate=number_of(form, "rate"),
        token=form.text("token"), **said,
    )  # fmt: skip
    return to(
        request, address(request, "redrive", id=run.id), f"Started with {words.counted(run.total, 'dead letter')}."
    )


async def purge(request: Request) -> Response:
    """The number is typed, and the token stands for exactly these: two people cannot purge what only one has seen."""
    form, rd = await form_of(request), rd_of(request)
    scope = await choosing.scope(rd, choosing.read(form))
    planned = await rd.dead.purge_plan(**scope)
    typed = (form.text("confirm") or "").replace(",", "").replace(".", "")
    if typed != str(planned.number):
        what = words.counted(planned.number, "dead letter")
        raise InvalidInput(field="confirm", problem=f"type {planned.number} to purge {what}")
    said: dict[str, Any] = {"who": who(request), "why": form.text("why"), "confirm": form.text("token") or ""}
    purged = await rd.dead.purge(**said, **scope)
    return to(request, address(request, "letters"), f"Purged {words.counted(purged, 'dead letter')} for good.")


async def _acted(rd: Redrive, verb: Verb, form: Form, scope: dict[str, Any], said: dict[str, Any]) -> Acted:
    which = {name: scope.pop(name) for name in ("ids", "all") if name in scope}
    by = said if verb.why else {"who": said["who"]}
    return cast(Acted, await rd.dead.do(verb.name, **which, where=scope, **by, **read_words(verb, form, many=True)))


def told(acted: Acted) -> str:
    """What an act did, with the first reason where something did not move."""
    text = acted.text[:1].upper() + acted.text[1:]
    return f"{text}: {acted.refused[0].why}" if acted.refused else f"{text}."


async def acts(request: Request) -> Response:
    """What was done to dead letters and said of groups, by whom and why."""
    rd = rd_of(request)
    done, runs = await rd.dead.acts(limit=ACTS), {run.id for run in await rd.redrives.acts()}
    told = [(act, DID.get(act.verb, words.plain(act.verb)), further(act)) for act in done]
    return await page(request, "acts.html", section="letters", acts=told, runs=runs)


def further(act: Act) -> str:
    """To whom, and which were meant."""
    said = [f"to {act.said[name]}" for name in ("agent", "owner", "lane") if act.said.get(name)]
    said += [f"({', '.join(map(str, act.said['fields']))})"] if act.said.get("fields") else []
    chosen = ", ".join(f"{name} {value}" for name, value in act.filter.items() if name != "states")
    return " ".join((*said, f"({chosen})" if chosen else "")).strip()


async def undo(request: Request) -> Response:
    taken = await rd_of(request).dead.undo(request.path_params["id"], who=who(request))
    return back(request, told(taken), kind="good" if taken.moved else "bad")
