"""What somebody would write who wants a browser to obey, in every field that anybody outside can fill."""

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import redrive
from tests.support import soon

CORPUS = (
    "<script>hacked()</script>",
    "<img src=x onerror=hacked()>",
    '"><svg onload=hacked()>',
    "' autofocus onfocus='hacked()",
    '" onmouseover="hacked()" x="',
    "</title><script>hacked()</script>",
    "</textarea><script>hacked()</script>",
    "</option></select><script>hacked()</script>",
    "</script><script>hacked()</script>",
    "javascript:hacked()",
    "<a href=javascript:hacked()>x</a>",
    '<iframe srcdoc="<script>parent.hacked()</script>">',
    "<object data=javascript:hacked()>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "<form action=//evil.example><button>go</button>",
    "<style>*{display:none}</style>",
    '<div hx-get="/evil" hx-trigger="load">',
    "<template><script>hacked()</script></template>",
    "<math><mtext><table><mglyph><style><img src=x onerror=hacked()>",
    "{{ 7 * 7 }}{% include '/etc/passwd' %}",
    "&lt;script&gt;hacked()&lt;/script&gt;",
    "`${hacked()}`",
    "--><script>hacked()</script><!--",
    "]]><script>hacked()</script>",
    "../../../etc/passwd?x=1#y",
)
ALL = " ".join(CORPUS)
"""Everything at once, for texts that may be long."""


def name_of(number: int) -> str:
    return CORPUS[number % len(CORPUS)]


async def plant(rd: redrive.Redrive) -> None:
    """The corpus in tasks, queues, agents, sessions, keys, models, errors, payloads, results, notes, who, why, …"""
    for number, name in enumerate(CORPUS):
        _task(rd, name, name_of(number + 1))
        await rd.enqueue(
            name, {name_of(number + 2): {ALL: [ALL, name]}, "then": "fail"}, agent=name_of(number + 3),
            session_id=name_of(number + 4), model=name_of(number + 5), idempotency_key=name_of(number + 6),
            headers={"x-note": ALL},
        )  # fmt: skip
    first = CORPUS[0]
    await rd.enqueue(first, {"then": "done"}, session_id=first)
    await rd.enqueue(first, {"then": "ask"}, session_id=first)
    await rd.enqueue(first, {"then": "unknown"}, session_id=first)
    await rd.submit(first, {"then": "done"}, session_id=first)
    await _flow(rd, first)
    await soon(rd.drain())
    await _said(rd)


def _task(rd: redrive.Redrive, name: str, queue: str) -> None:
    trouble = type(name, (Exception,), {"error_kind": name, "code": name})

    @rd.task(name, queue=queue, max_attempts=1)
    async def work(ctx: redrive.Context, **payload: Any) -> Any:
        await ctx.once(name, lambda key: {ALL: ALL})
        match payload["then"]:
            case "fail":
                raise trouble(ALL)
            case "ask":
                return bool(await ctx.approval(ALL, details={name: ALL}))
            case "unknown":
                raise redrive.OutcomeUnknown(ALL)
            case "give up":
                raise redrive.GiveUp(ALL, recommendation=ALL)
        return {ALL: [name, ALL]}


async def _flow(rd: redrive.Redrive, task: str) -> None:
    flow = rd.workflow(CORPUS[0])
    one = flow.add(task, name=CORPUS[1], then="done")
    two = flow.add(task, name=CORPUS[2], then="give up", after=[one])
    flow.add(task, name=CORPUS[3], then="done", after=[two])
    await flow.start()


async def _said(rd: redrive.Redrive) -> None:
    """What people say, and what their acts leave behind."""
    jobs = (await rd.dead.list(limit=100)).jobs
    who = CORPUS[1]
    for view in (await rd.groups.list(limit=100))[:3]:
        await rd.groups.note(view.fingerprint, ALL[:1000], who=who)
        await rd.groups.resolve(view.fingerprint, who=who, why=ALL[:1000], in_version=name_of(3))
        await rd.groups.ignore(view.fingerprint, who=who, why=ALL[:1000])
    await rd.dead.note(jobs[0].id, ALL, who=who)
    await rd.dead.discard(jobs[1].id, who=who, why=ALL)
    await rd.dead.defer(jobs[2].id, owner=CORPUS[2], until=3600.0, who=who, why=ALL)
    await rd.dead.edit(jobs[3].id, {ALL: ALL, "then": "fail"}, who=who, why=ALL)
    await soon(rd.drain())
    run = await rd.redrives.start([jobs[4].id, jobs[5].id], who=who, why=ALL[:1000])
    await rd.redrives.pause(run.id, who=who, why=ALL[:1000])
    await rd.queues.pause(jobs[0].queue, who=who, why=ALL)
    session = next(job.session_id for job in jobs if job.session_id)  # a step of the workflow has none
    await rd.sessions.grant(session, CORPUS[0], by=who, why=ALL)


async def pages(rd: redrive.Redrive) -> list[str]:
    """The address of every page that has something to show."""
    jobs = (await rd.jobs.list(limit=200)).jobs
    groups = await rd.groups.list(limit=200)
    runs = await rd.redrives.list()
    plain = ["/", "/dead", "/held", "/acts", "/redrives", "/queues", "/morning", "/agents", "/workflows", "/inbox"]
    plain += [f"/held?because={because}" for because in ("approval", "consent", "outcome_unknown", "deferred")]
    plain += [f"/dead/act?verb={verb}&all=1" for verb in ("redrive", "discard", "defer", "reassign", "purge")]
    return [
        *plain,
        *(f"/jobs/{job.id}" for job in jobs),
        *(f"/jobs/{job.id}/edit" for job in jobs if job.state == "dead"),
        *(f"/groups/{view.fingerprint}" for view in groups),
        *(f"/redrives/{run.id}" for run in runs),
    ]


# ---- what a page of ours may consist of


class Finder(HTMLParser):
    """Everything in a page that a browser would obey and that is not ours."""

    VOID = ("javascript:", "vbscript:", "data:text", "//evil")
    NEVER = frozenset({"iframe", "object", "embed", "base", "math", "style", "mglyph", "applet", "frame"})
    ADDRESSES = frozenset(
        {"href", "src", "action", "formaction", "hx-get", "hx-post", "xlink:href", "srcdoc", "poster"}
    )

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        known = dict(attributes)
        self.found += list(self._in_tag(tag, known))
        for name, value in attributes:
            self.found += list(self._in_attribute(tag, name, (value or "").strip().lower()))
        self._script = tag == "script"

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.found.append(f"inline script {data[:60]!r}")
        self._script = False

    def _in_tag(self, tag: str, known: dict[str, str | None]) -> Iterator[str]:
        if tag in self.NEVER:
            yield f"<{tag}>"
        if tag == "script" and not (known.get("src") or "").startswith("/static/"):
            yield f"a script that is not ours: {known}"
        if tag == "meta" and "http-equiv" in known:
            yield f"meta {known}"

    def _in_attribute(self, tag: str, name: str, value: str) -> Iterator[str]:
        if name.startswith("on") or name == "style":
            yield f"{tag} {name}={value[:60]}"
        if name in self.ADDRESSES and (value.startswith(self.VOID) or value == "/evil"):
            yield f"{tag} {name}={value[:60]}"


def obeyed(html: str) -> list[str]:
    """What of this page a browser would take for more than text."""
    finder = Finder()
    finder.feed(html)
    finder.close()
    return finder.found
