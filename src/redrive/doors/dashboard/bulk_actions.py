"""Verbs on many dead letters: a plan first, then the verb; and the list of what was done, to be taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from redrive.core.job import State
from redrive.deadletters import verbs as core_verbs
from redrive.deadletters.bulk_run import Chosen
from redrive.deadletters.triage import Acted
from redrive.doors.dashboard import words
from redrive.doors.dashboard.edit import CANARY, NOTHING_SELECTED, patch_many
from redrive.doors.dashboard.job import read_words
from redrive.doors.dashboard.rendering import go_back, go_to
from redrive.doors.dashboard.requests import count_by_group, make_filters, make_scope, read_choice, split_scope
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.responses import Response

    from redrive.api.redrive import Redrive
    from redrive.deadletters.triage import Act
    from redrive.doors.dashboard.rendering import Values
    from redrive.doors.dashboard.requests import ChosenDeadLetters, Form, PageRequest

ROWS: Final = 12
"""Groups that a plan lists one by one."""
ACTS: Final = 100
DID: Final = {
    **{name: verb.did for name, verb in core_verbs.ACTS.items()},
    "resolve_group": "resolved the group",
    "ignore_group": "ignored the group",
}
"""What each verb did, in the list of acts."""
MANY_CANARY: Final = 20
LOOKED_AT: Final = 2_000
"""A plan checks up to this many dead letters one by one."""
OFFERED: Final = {name: verb for name, verb in core_verbs.ACTS.items() if verb.acts_on is State.dead and verb.many}
"""The verbs on many dead letters."""
UNDOABLE: Final = {name: verb for name, verb in OFFERED.items() if not verb.final}
"""The verbs of a token that may act. A final verb has a form and a role of its own."""


# -- before acting

UNPLANNED: Final[Mapping[str, Any]] = {
    "token": None,
    "estimate": None,
    "skipped": {},
    "warnings": (),
    "canary": 0,
    "startable": True,
    "in_the_way": (),
}
"""What the plan of a verb says where nothing else is known."""


async def plan_action(request: PageRequest) -> Values | Response:
    """Show what would happen to how many dead letters, and the words that go with the verb. Changes nothing."""
    choice, name = read_choice(request.query_params), request.text("verb")
    if name == "export":
        return go_to(request, request.address("export", query=choice.query))
    if name == "edit":
        return go_to(request, request.address("edit_many", query=choice.query))
    verb = core_verbs.find_verb(name, OFFERED)
    if choice.nothing:
        return go_to(request, request.address("dead_letters", query=choice.filters), NOTHING_SELECTED, kind="bad")
    plan = await (_plan_redrive(request.rd, choice) if name == "redrive" else _plan_verb(request.rd, choice, name))
    return {
        "choice": choice,
        "verb": name,
        "offered": verb,
        "text": verb.questions,
        "confirm": "Start" if name == "redrive" else verb.label.split()[0],
        "title": verb.asks.format(words.counted(plan["number"], "dead letter")),
        "agents": sorted(request.rd.registry.fleet.agents),
        "suggested": request.query_params.get("to", "")[:200],
        **plan,
    }


async def _plan_redrive(rd: Redrive, choice: ChosenDeadLetters) -> Values:
    scope = await make_scope(rd, choice)
    if "ids" not in scope and sum((await count_by_group(rd, await make_filters(rd, choice))).values()) > LOOKED_AT:
        return await _plan_large_redrive(rd, choice)
    plan = await rd.redrives.plan(**scope)
    return {
        "number": plan.number,
        "chosen": plan.chosen,
        "rows": plan.groups[:ROWS],
        "more_rows": max(0, len(plan.groups) - ROWS),
        "token": plan.token,
        "estimate": plan.estimate,
        "skipped": plan.skipped,
        "warnings": plan.warnings,
        "canary": CANARY if plan.moving > 2 * CANARY else 0,
        "startable": bool(plan.moving) and not plan.running,
        "in_the_way": await _list_runs_in_the_way(rd, plan.running) if plan.running else (),
    }


async def _list_runs_in_the_way(rd: Redrive, running: Sequence[str]) -> list[tuple[str, str]]:
    """List each redrive that has some of these dead letters, and what can be done about it."""
    paused = {run.id for run in await rd.redrives.live() if run.state == "paused"}
    waits = "is paused and has some of these: resume or cancel it"
    moves = "still moves some of these: wait for it, or cancel it"
    return [(id, waits if id in paused else moves) for id in running]


async def _plan_large_redrive(rd: Redrive, choice: ChosenDeadLetters) -> Values:
    """Plan a redrive of too many to check one by one for a page; the redrive itself checks each."""
    plan = await _plan_verb(rd, choice, "redrive")
    estimate = await rd.redrives.estimate(plan["number"], **await make_filters(rd, choice))
    warning = f"More than {LOOKED_AT:,}: they are not checked one by one. The redrive's page shows what did not move."
    return {**plan, "warnings": (warning,), "canary": MANY_CANARY, "estimate": estimate}


async def _plan_verb(rd: Redrive, choice: ChosenDeadLetters, name: str) -> Values:
    scope = await make_scope(rd, choice)
    filters = {"ids": tuple(scope["ids"])} if "ids" in scope else await make_filters(rd, choice)
    counts = await count_by_group(rd, filters)
    largest = sorted(counts, key=lambda fingerprint: -counts[fingerprint])
    groups = {group.fingerprint: group for group in await rd.groups.records([*filter(None, largest[:ROWS])])}
    rows = [
        Chosen(key, groups[key].task, groups[key].error_class, groups[key].error, counts[key])
        for key in largest[:ROWS]
        if key in groups
    ]
    described = ", ".join(text for _, text in choice.active) or "all dead letters"
    plan = {
        **UNPLANNED,
        "number": sum(counts.values()),
        "chosen": f"{len(choice.ids)} that you picked" if choice.picked else described,
        "rows": rows,
        "more_rows": max(0, len(largest) - len(rows)),
    }
    return {**plan, "token": (await rd.dead.purge_plan(**scope)).token} if name == "purge" else plan


# -- acting


async def act_on_many(request: PageRequest, form: Form) -> Response:
    """Do the verb on what was picked, or on everything that matches."""
    choice, name, rd = read_choice(form), form.text("verb") or "", request.rd
    if name == "edit":
        return await patch_many(request, form)
    scope, by = await make_scope(rd, choice), request.sign(form)
    if name == "redrive":
        run = await rd.redrives.start(**form.run_options(), **scope, **by)
        started = f"Started with {words.counted(run.total, 'dead letter')}."
        return go_to(request, request.address("redrive", id=run.id), started)
    verb = core_verbs.find_verb(name, UNDOABLE)
    given = {**(by if verb.why else {"who": by["who"]}), **read_words(verb, form, many=True)}
    acted = cast(Acted, await rd.dead.do(verb.name, **split_scope(scope), **given))
    if choice.all and set(choice.filters) == {"group"}:
        page = request.address("group", fingerprint=choice.of("group"))
    else:
        page = request.address("dead_letters", query=choice.filters)
    undo = request.address("undo", id=acted.act_id) if acted.moved else None
    return go_to(request, page, describe_act(acted), kind="good" if acted.moved else "bad", undo=undo)


async def purge(request: PageRequest, form: Form) -> Response:
    """Purge dead letters. A person types their number, and the token stands for exactly those that were shown."""
    scope = await make_scope(request.rd, read_choice(form))
    plan = await request.rd.dead.purge_plan(**scope)
    typed = (form.text("confirm") or "").replace(",", "").replace(".", "")
    if typed != str(plan.number):
        what = words.counted(plan.number, "dead letter")
        raise InvalidInput(field="confirm", problem=f"type {plan.number} to purge {what}")
    token = form.text("token") or ""
    purged = await request.rd.dead.purge(confirm=token, **request.sign(form), **scope)
    done = f"Purged {words.counted(purged, 'dead letter')} for good."
    return go_to(request, request.address("dead_letters"), done)


def describe_act(acted: Acted) -> str:
    """Say what an act did, with the first reason where something did not move."""
    text = words.capitalise(acted.text)
    return f"{text}: {acted.refused[0].why}" if acted.refused else f"{text}."


# -- what was done


async def list_acts(request: PageRequest) -> Values:
    """List what was done to dead letters and groups, by whom and why."""
    acts = await request.rd.dead.acts(limit=ACTS)
    return {
        "acts": [(act, DID.get(act.verb, words.plain(act.verb)), describe_target(act)) for act in acts],
        "runs": {run.id for run in await request.rd.redrives.acts()},
    }


def describe_target(act: Act) -> str:
    """Say to whom the jobs went, and which were meant."""
    parts = [f"to {act.said[name]}" for name in ("agent", "owner", "lane") if act.said.get(name)]
    parts += [f"({', '.join(map(str, act.said['fields']))})"] if act.said.get("fields") else []
    filters = ", ".join(f"{name} {value}" for name, value in act.filter.items() if name != "states")
    return " ".join((*parts, f"({filters})" if filters else "")).strip()


async def undo(request: PageRequest, form: Form) -> Response:
    acted = await request.rd.dead.undo(request.path_params["id"], who=request.who)
    return go_back(request, describe_act(acted), kind="good" if acted.moved else "bad")
