"""Queues: what is in them, what they allow, and stopping one for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.core.policy import schedule
from redrive.doors.dashboard import words
from redrive.doors.dashboard.activity import last_hour
from redrive.doors.dashboard.rendering import Site, back, form_of, numbers_of, page, rd_of, site_of, who
from redrive.engine.queue_pauses import paused_queues
from redrive.reports.queue_numbers import viewed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

    from redrive.core.policy import Policy
    from redrive.reports.queue_numbers import QueueNumbers, QueueView


PACES_SECONDS: Final = 5.0
SHOWN: Final = 100
FEW: Final = 8
"""Up to so many queues nobody needs a filter."""


def routes(site: Site) -> list[BaseRoute]:
    return [
        site.route("/queues", listed, "queues"),
        site.route("/queues/pause", pause, "pause", post=True),
        site.route("/queues/resume", resume, "resume", post=True),
    ]


async def listed(request: Request) -> Response:
    site = site_of(request)
    stopped = await paused_queues(rd_of(request).store)
    activity = await last_hour(site)
    name, queues = request.query_params.get("name", "").strip(), await _views(site)
    chosen = [queue for queue in queues if name.lower() in queue.name.lower()]
    rows = [
        {"queue": queue, "series": activity.of(queue.name), "rate": activity.rate(queue.name, "succeeded"),
         "stopped": stopped.get(queue.name), "rules": rules(queue), "waits": waits(queue.policy)}
        for queue in chosen[:SHOWN]
    ]  # fmt: skip
    return await page(
        request,
        "queues.html",
        section="queues",
        rows=rows,
        hour=activity,
        name=name,
        number=len(chosen),
        filtered=bool(name) or len(queues) > FEW,
    )


async def _views(site: Site) -> list[QueueView]:
    """The numbers of this moment; how fast the queues go may have been asked for a while ago."""
    return viewed(await numbers_of(site), await site.fresh("paces", site.rd.queues.paces, PACES_SECONDS))


async def pause(request: Request) -> Response:
    form = await form_of(request)
    name = form.get("queue", "")
    await rd_of(request).queues.pause(name, who=who(request), why=form.text("why"))
    return back(request, f"{name} is paused: workers take nothing from it. What runs goes on.")


async def resume(request: Request) -> Response:
    form = await form_of(request)
    name = form.get("queue", "")
    await rd_of(request).queues.resume(name, who=who(request), why=form.text("why"))
    return back(request, f"{name} goes on.")


def rules(queue: QueueNumbers) -> list[tuple[str, str | None]]:
    """A policy in words, the parts that somebody asks for first."""
    policy = queue.policy
    rate = policy.rate and f"{words.number(policy.rate.count)} in {words.span(policy.rate.per)}"
    concurrency = policy.concurrency and f"{policy.concurrency} at once"
    scope = " in the whole store" if policy.scope == "store" else " in each process"
    return [
        ("Attempts", words.number(policy.max_attempts)),
        ("Lease", words.span(policy.lease)),
        ("Concurrency", concurrency + scope if concurrency else "no limit of its own"),
        ("Rate", rate + scope if rate else "no limit"),
        ("Given up after", words.span(policy.max_age) or None),
        ("Lost in a crash", "retried" if policy.on_lost == "retry" else "a dead letter"),
        ("Called stalled after", words.span(policy.stalled_after) or None),
        ("Backed up over", f"{words.number(policy.health_depth)} due"),
        ("Criticality", policy.criticality),
        ("Done jobs kept", words.span(policy.retention)),
    ]


def waits(policy: Policy) -> list[str]:
    """The waits between attempts, as they would be without jitter."""
    found = [words.span(seconds) for seconds in schedule(policy)]
    return found if len(found) <= 8 else [*found[:7], "…", found[-1]]
