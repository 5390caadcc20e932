"""What runs jobs: queues, workers, tasks, schedules, circuit breakers, and the hosts of a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redrive.core.policy import schedule
from redrive.doors.dashboard import words
from redrive.doors.dashboard.overview import make_queue_row
from redrive.doors.dashboard.rendering import go_back
from redrive.reports.queue_numbers import with_paces

if TYPE_CHECKING:
    from starlette.responses import Response

    from redrive.core.policy import Policy
    from redrive.doors.dashboard.rendering import Values
    from redrive.doors.dashboard.requests import Form, PageRequest
    from redrive.fleet.status import FleetStatus
    from redrive.reports.queue_numbers import QueueNumbers

# -- queues

PACES_SECONDS: Final = 5.0
"""How old the pace of a queue may be; its numbers are those of this moment."""
QUEUES: Final = 100
FEW: Final = 8
"""Up to this many queues the page shows no filter."""


async def list_queues(request: PageRequest) -> Values:
    site, name = request.site, request.text("name")
    paused, activity = await request.rd.queues.paused(), await site.last_hour()
    paces = await site.read_cached("paces", request.rd.queues.paces, PACES_SECONDS)
    queues = with_paces(await site.queue_numbers(), paces)
    chosen = [queue for queue in queues if name.lower() in queue.name.lower()]
    rows = [
        {
            **make_queue_row(queue, activity),
            "stopped": paused.get(queue.name),
            "rules": list_rules(queue),
            "waits": list_waits(queue.policy),
        }
        for queue in chosen[:QUEUES]
    ]
    return {
        "rows": rows,
        "hour": activity,
        "name": name,
        "number": len(chosen),
        "filtered": bool(name) or len(queues) > FEW,
    }


async def pause_queue(request: PageRequest, form: Form) -> Response:
    name = form.get("queue", "")
    await request.rd.queues.pause(name, **request.sign(form))
    return go_back(request, f"{name} is paused: workers take nothing from it. What runs goes on.")


async def resume_queue(request: PageRequest, form: Form) -> Response:
    name = form.get("queue", "")
    await request.rd.queues.resume(name, **request.sign(form))
    return go_back(request, f"{name} goes on.")


def list_rules(queue: QueueNumbers) -> list[tuple[str, str | None]]:
    """List a policy in words, the parts that people ask for first."""
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


def list_waits(policy: Policy) -> list[str]:
    """List the waits between attempts, as they would be without jitter."""
    waits = [words.span(seconds) for seconds in schedule(policy)]
    return waits if len(waits) <= 8 else [*waits[:7], "…", waits[-1]]


# -- workers and what they know

TASKS_SECONDS: Final = 2.0
MOST_RUNNING: Final = 100
"""Running jobs of one worker that are listed."""
TABS: Final = (("workers", "Workers"), ("tasks", "Tasks"), ("schedules", "Schedules"), ("breakers", "Breakers"))


async def list_workers(request: PageRequest) -> Values:
    task = request.query_params.get("task", "")
    views = [view for view in await request.rd.workers() if not task or task in view.tasks]
    return {"tabs": TABS, "views": views, "task": task, "most": MOST_RUNNING}


async def list_tasks(request: PageRequest) -> Values:
    return {"tabs": TABS, "views": await request.site.read_cached("tasks", request.rd.tasks, TASKS_SECONDS)}


async def list_schedules(request: PageRequest) -> Values:
    return {"tabs": TABS, "views": await request.rd.schedules()}


async def list_breakers(request: PageRequest) -> Values:
    counted = await request.rd.jobs.count(because="circuit_open", by=("held_for",))
    parked = {str(key): number for (key,), number in counted.items()}
    return {"tabs": TABS, "views": await request.rd.breakers(), "parked": parked}


async def close_breaker(request: PageRequest, form: Form) -> Response:
    """Close a breaker: the person knows that the service answers again."""
    key = form.text("key") or ""
    if await request.rd.close_breaker(key):
        return go_back(request, f"{key} is closed: what was parked comes back.")
    return go_back(request, f"Nothing changed: {key} was not open any more.", kind="bad")


# -- the fleet

DURABILITY: Final = {
    "synced": "An accepted job is on disk.",
    "replicated": "An accepted job is on several servers, each of which may sync it later.",
    "unsynced": "An accepted job may be lost when the server loses power.",
}
CHIPS: Final = {"running": "running", "silent": "dead", "closed": "waiting"}


async def show_fleet(request: PageRequest) -> Values:
    fleet = await request.rd.fleet.view()
    return {"fleet": fleet, "facts": list_store_facts(fleet), "means": DURABILITY[fleet.durability], "chips": CHIPS}


def list_store_facts(fleet: FleetStatus) -> list[tuple[str, str | None]]:
    """List the facts of the store; those of a log are left out for a file."""
    snapshot = fleet.snapshot
    age = f"{words.span(snapshot.age)} ago, {words.number(snapshot.behind)} messages" if snapshot else None
    return [
        ("Store", fleet.url),
        ("Log ends at", words.number(fleet.end) if fleet.generation else None),
        ("Log holds", f"{words.number(fleet.log_bytes)} bytes" if fleet.generation else None),
        ("Its limit", f"{words.number(fleet.log_limit)} bytes" if fleet.log_limit else None),
        ("Last snapshot", age),
    ]
