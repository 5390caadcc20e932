"""Dead letters: the troubles first, then the letters; acting on some of them or on all that match."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import RedirectResponse, StreamingResponse

from redrive.app.namespaces import make_filter
from redrive.core.consent import Approval
from redrive.core.job import Job, State
from redrive.core.store import Filter
from redrive.core.triage import PAST
from redrive.doors.dashboard import choosing, words
from redrive.doors.dashboard.choosing import Choice
from redrive.doors.dashboard.rendering import Site, address, back, form_of, page, rd_of, site_of, to, who
from redrive.errors import InvalidInput
from redrive.insight import story
from redrive.insight.groups import HOUR, GroupView

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.app import Redrive
    from redrive.core.triage import Act, Acted
    from redrive.doors.dashboard.rendering import Form

LETTERS: Final = 50
GROUPS: Final = 12
"""Groups that are shown before somebody asks for all of them."""
GROUPS_A_PAGE: Final = 50
MOST_GROUPS: Final = 10_000
ROWS: Final = 12
"""Groups that a plan tells one by one."""
ACTS: Final = 100
GROUP_ACTS: Final = {"resolve_group": "resolved a group", "ignore_group": "ignored a group"}
CANARY: Final = 5
MANY_CANARY: Final = 20
LOOKED_AT: Final = 2_000
"""Up to so many are judged one by one for a plan."""
MOST_IDS: Final = 100_000
OWN_WORD: Final = {"defer": "owner", "reassign": "agent", "move_lane": "lane"}
"""What a verb is told besides which jobs it is about: its own argument, and the name of a filter as well."""
GROUP_FILTERS: Final = ("queue", "task", "agent", "detail", "error_class")
HELD: Final = (
    ("approval", "a question is open"),
    ("consent", "consent is missing"),
    ("outcome_unknown", "nobody knows whether it landed"),
    ("deferred", "deferred"),
)
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
        site.route("/dead", listed, "letters"),
        site.route("/held", held, "held"),
        site.route("/dead/act", plan, "act"),
        site.route("/dead/act", act, "act", post=True),
        site.route("/dead/export", export, "export"),
        site.route("/acts", acts, "acts"),
        site.route("/acts/{id}/undo", undo, "undo", post=True),
    ]


# -- looking


async def listed(request: Request) -> Response:
    rd = rd_of(request)
    choice, cursor = choosing.read(request.query_params), request.query_params.get("cursor")
    chosen = await choosing.filters(rd, choice)
    counts, known = await _by_group(rd, chosen), await rd.store.groups()
    turn = _turn(request)
    skipped, most = (GROUPS_A_PAGE * (turn - 1), GROUPS_A_PAGE) if turn else (0, GROUPS)
    views = (await _views(rd, chosen, counts, len(known), skipped + most))[skipped:]
    return await page(
        request, "letters.html", section="letters", choice=choice, cursor=cursor, total=sum(counts.values()),
        group_number=len(counts), views=views, turn=turn, skipped=skipped, more_groups=len(counts) > skipped + most,
        listed=None if turn else await rd.dead.list(limit=LETTERS, cursor=cursor, **chosen),
        options=choosing.options(known), lanes="" if choice.said else await _lanes(site_of(request)),
        more_filters=any(name not in ("task", "queue", "detail", "since") for name in choice.said),
    )  # fmt: skip


def _turn(request: Request) -> int:
    """Which page of the groups alone somebody looks at; 0: a few of them, and the letters."""
    said = request.query_params.get("groups", "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 5 else 0


async def _by_group(rd: Redrive, chosen: Mapping[str, Any]) -> dict[str | None, int]:
    """How many match, by trouble."""
    found = await rd.store.count(make_filter({**chosen, "state": "dead"}), by=("fingerprint",))
    return {fingerprint: number for (fingerprint,), number in found.items()}


async def _views(
    rd: Redrive, chosen: Mapping[str, Any], counts: Mapping[str | None, int], known: int, most: int
) -> list[tuple[GroupView, int, list[int]]]:
    """The groups that have such letters, those that nobody has settled first."""
    narrowed = {name: value for name, value in chosen.items() if name in GROUP_FILTERS}
    without = max(0, known - len(counts))  # so many may stand before those that are sought
    found = await rd.groups.list(limit=min(MOST_GROUPS, most + without), **narrowed)
    now = rd.clock.now()
    there = [view for view in found if view.fingerprint in counts]
    return [(view, counts[view.fingerprint], hours(view, now)) for view in there[:most]]


def hours(view: GroupView, now: float, number: int = 48) -> list[int]:
    """Burials hour by hour, the last one now."""
    noted, last = dict(view.state.hours), int(now // HOUR)
    return [noted.get(hour, 0) for hour in range(last - number + 1, last + 1)]


async def _lanes(site: Site) -> str:
    """Who must do something, in a sentence."""
    found = await site.fresh("lanes", lambda: site.rd.store.count(Filter(states=(State.dead,)), by=("lane",)))
    manual, delayed = (found.get((lane,), 0) for lane in ("manual", "delayed"))
    said = [f"{manual:,} {'waits' if manual == 1 else 'wait'} for a person"] if manual else []
    said += [f"{delayed:,} {'comes' if delayed == 1 else 'come'} back by themselves"] if delayed else []
    return ", ".join(said) + "." if said else ""


async def held(request: Request) -> Response:
    """What nobody but a person can let go on."""
    rd, cursor = rd_of(request), request.query_params.get("cursor")
    found = await rd.store.count(Filter(states=(State.held,)), by=("because",))
    kinds = [(name, said, found.get((name,), 0)) for name, said in HELD]
    first = next((name for name, _, number in kinds if number), HELD[0][0])
    because = request.query_params.get("because") or first
    if because not in dict(HELD):
        raise InvalidInput(field="because", problem=f"{because!r} is not one of {', '.join(dict(HELD))}")
    jobs = await rd.jobs.list(state="held", because=because, limit=LETTERS, cursor=cursor)
    number = sum(number for _, _, number in kinds)
    lead = "Nothing waits for you." if not number else "Each says what it waits for. Nothing happens before you decide."
    return await page(
        request, "held.html", section="letters", because=because, kinds=kinds, listed=jobs, cursor=cursor, lead=lead,
        choices={job.id: story.tell(job, [], rd.clock.now()).choices for job in jobs.jobs},
        questions=await _questions(rd, jobs.jobs),
    )  # fmt: skip


async def _questions(rd: Redrive, jobs: Sequence[Job]) -> dict[str, Approval]:
    """What each of them asks."""
    found = {}
    for job in jobs:
        if job.because == "approval":
            for asked in await rd.sessions.questions(job):
                if asked.answer == "open":
                    found[job.id] = asked
    return found


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
        "too_many": False,
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
    if "ids" not in scope and sum((await _by_group(rd, await choosing.filters(rd, choice))).values()) > LOOKED_AT:
        return await _quick_plan(request, choice)
    found = await rd.redrives.plan(**scope)
    running = [f"Redrive {id[-8:]} still moves one of these groups: wait for it, or cancel it." for id in found.running]
    return {
        "number": found.number, "chosen": found.chosen, "rows": found.groups[:ROWS], "token": found.token,
        "more_rows": max(0, len(found.groups) - ROWS), "estimate": found.estimate, "skipped": found.skipped,
        "warnings": (*found.warnings, *running), "startable": bool(found.moving) and not found.running,
        "canary": CANARY if found.moving > 2 * CANARY else 0,
    }  # fmt: skip


async def _quick_plan(request: Request, choice: Choice) -> dict[str, Any]:
    """So many are not judged one by one while somebody waits for a page; the redrive itself judges each."""
    known = await _other_plan(request, choice, "redrive")
    said = f"More than {LOOKED_AT:,}: what would not move is not looked for now. The scorecard will tell it."
    return {**known, "warnings": (said,), "canary": MANY_CANARY, "too_many": True}


async def _other_plan(request: Request, choice: Choice, verb: str) -> dict[str, Any]:
    rd = rd_of(request)
    scope = await choosing.scope(rd, choice)
    chosen = {"ids": tuple(scope["ids"])} if "ids" in scope else await choosing.filters(rd, choice)
    counts = await _by_group(rd, chosen)
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
    acted = await _acted(rd, verb, form, await _without(rd, OWN_WORD.get(verb), scope) | said)
    group = choice.said.get("group") if choice.all and set(choice.said) == {"group"} else None
    letters = address(request, "letters", query=choice.said)
    if group:
        letters = address(request, "group", fingerprint=group)
    undo = address(request, "undo", id=acted.act_id) if acted.moved else None
    return to(request, letters, told(acted), kind="good" if acted.moved else "bad", undo=undo)


async def _without(rd: Redrive, word: str | None, scope: dict[str, Any]) -> dict[str, Any]:
    """A filter with the verb's own word (move those of one lane to the other) is told by the ids that it matches."""
    if word not in scope:
        return scope
    ids: list[str] = []
    cursor = None
    while True:
        found = await rd.dead.list(limit=1000, cursor=cursor, **scope)
        ids += [job.id for job in found.jobs]
        if len(ids) > MOST_IDS:
            raise InvalidInput(field=word, problem=f"matches more than {MOST_IDS:,}; narrow it")
        cursor = found.cursor
        if cursor is None:
            return {"ids": ids}


async def _start(request: Request, form: Form, said: dict[str, Any]) -> Response:
    percent = number_of(form, "pass_rate") or 80.0
    run = await rd_of(request).redrives.start(
        canary=int(number_of(form, "canary") or 0), pass_rate=percent / 100, rate=number_of(form, "rate"),
        token=form.text("token"), **said,
    )  # fmt: skip
    return to(
        request, address(request, "redrive", id=run.id), f"Started with {words.counted(run.total, 'dead letter')}."
    )


async def _purge(request: Request, form: Form, choice: Choice, said: dict[str, Any]) -> Response:
    """The number is typed, and the token stands for exactly these: two people cannot purge what only one has seen."""
    planned = await rd_of(request).dead.purge_plan(**await choosing.scope(rd_of(request), choice))
    typed = (form.text("confirm") or "").replace(",", "").replace(".", "")
    if typed != str(planned.number):
        raise InvalidInput(field="confirm", problem=f"type {planned.number} to purge {planned.number} dead letters")
    purged = await rd_of(request).dead.purge(confirm=form.text("token"), **said)
    return to(request, address(request, "letters"), f"Purged {words.counted(purged, 'dead letter')} for good.")


async def _acted(rd: Redrive, verb: str, form: Form, said: dict[str, Any]) -> Acted:
    acted: Acted
    match verb:
        case "discard":
            acted = await rd.dead.discard(**said)
        case "defer":
            until = timedelta(days=number_of(form, "days") or 1.0)
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
        return float(text)
    except ValueError:
        raise InvalidInput(field=name, problem=f"{text!r} is not a number") from None


async def acts(request: Request) -> Response:
    """What was done to dead letters and said of groups, by whom and why."""
    done = await rd_of(request).dead.acts(limit=ACTS)
    return await page(request, "acts.html", section="letters", acts=[(act, what_was_done(act)) for act in done])


def what_was_done(act: Act) -> str:
    """An act in words, after the name of whoever did it."""
    told = GROUP_ACTS.get(act.verb) or f"{PAST.get(act.verb, words.plain(act.verb))} {words.counted(act.moved, 'job')}"
    more = [f"to {act.said[name]}" for name in ("agent", "owner") if act.said.get(name)]
    more += [f"({', '.join(f'{name} {value}' for name, value in act.filter.items())})"] if act.filter else []
    return " ".join((told, *more))


async def undo(request: Request) -> Response:
    taken = await rd_of(request).dead.undo(request.path_params["id"], who=who(request))
    return back(request, told(taken), kind="good" if taken.moved else "bad")


# -- taking them along


async def export(request: Request) -> Response:
    """Lines of JSON, as `redrive dead export` writes them: a download, never a page."""
    rd, choice = rd_of(request), choosing.read(request.query_params)
    chosen = {"ids": choice.ids} if choice.ids and not choice.all else await choosing.filters(rd, choice)
    file = tempfile.SpooledTemporaryFile(max_size=4 * 1024 * 1024)  # noqa: SIM115 - closed once it is sent
    try:
        await rd.dead.export(file, **chosen)
    except BaseException:
        file.close()
        raise
    name = {"content-disposition": 'attachment; filename="dead-letters.jsonl"', "x-content-type-options": "nosniff"}
    return StreamingResponse(_sent(file), media_type="application/x-ndjson", headers=name)


async def _sent(file: Any) -> AsyncIterator[bytes]:
    with file:
        file.seek(0)
        while chunk := file.read(65536):
            yield chunk
