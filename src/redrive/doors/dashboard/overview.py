"""The overview (is everything well, and if not, what to do) and the morning page (what a person must look at)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from redrive.deadletters.new_groups import New, name_groups, nothing_new, when
from redrive.doors.dashboard import words
from redrive.doors.dashboard.live import LOOKS, read_latest_moves
from redrive.reports.headline import standing
from redrive.reports.morning import SHOWN, headline, window_start
from redrive.reports.morning import in_words as describe_delta
from redrive.reports.needs import FOR_A_PERSON, course, lasting

if TYPE_CHECKING:
    from redrive.deadletters.group import GroupView
    from redrive.doors.dashboard.rendering import Values
    from redrive.doors.dashboard.requests import PageRequest
    from redrive.doors.dashboard.site import Site
    from redrive.reports.activity import Activity
    from redrive.reports.morning import Delta, Morning
    from redrive.reports.needs import Need
    from redrive.reports.queue_numbers import QueueNumbers

FIRST_SECONDS: Final = 5.0
LISTED: Final = 6
NEEDS: Final = 8
"""Needs on the overview; the morning page shows all of them."""
NEW: Final[tuple[New, ...]] = ("deploy", "hour")
QUEUES: Final = 30
"""Queues on the overview, the busiest first; all of them have a page of their own."""


async def show_overview(request: PageRequest) -> Values:
    site, rd = request.site, request.rd
    queues, needs = await site.queue_numbers(), await site.needs()
    breakers = [breaker for breaker in await rd.breakers() if breaker.down]
    first = await _read_first_group(site, needs)
    hour, days = await site.last_hour(), await site.last_days()
    feed, after = await read_latest_moves(request)
    new = await site.read_cached("new", rd.groups.new)
    return {
        "health": standing(queues, needs, sum(hour.total.flows["succeeded"]), first, breakers),
        "first": first,
        "new": [(which, groups, when(new, which), name_groups(groups)) for which in NEW if (groups := new.of(which))],
        "nothing_new": nothing_new(new),
        "needs": [make_need_row(request, need) for need in needs[:NEEDS]],
        "more_needs": max(0, len(needs) - NEEDS),
        "rows": [make_queue_row(queue, hour) for queue in sorted(queues, key=_rank_queue)[:QUEUES]],
        "hour": hour,
        "more": max(0, len(queues) - QUEUES),
        "workers": await rd.reports.living_workers(),
        "paused": {queue.name for queue in queues if queue.paused},
        "breakers": breakers,
        "running": await rd.reports.running(LISTED),
        "oldest": await rd.reports.oldest_due(LISTED),
        "plots": {
            "throughput": (plot_throughput(hour), plot_throughput(days)),
            "failures": (plot_failures(hour), plot_failures(days)),
        },
        "flows": {"hour": hour.total.flows, "days": days.total.flows},
        "feed": feed,
        "live_after": after,
        "looks": sorted({*LOOKS.values(), "waiting"}),
    }


def make_queue_row(queue: QueueNumbers, hour: Activity) -> dict[str, Any]:
    return {"queue": queue, "series": hour.of(queue.name), "rate": hour.rate(queue.name, "succeeded")}


def _rank_queue(queue: QueueNumbers) -> tuple[bool, int, str]:
    """Rank queues that have jobs or need a person before the others."""
    alive = queue.due + queue.running + queue.held
    return not (alive or queue.dead or queue.paused), -alive, queue.name


async def _read_first_group(site: Site, needs: Sequence[Need]) -> GroupView | None:
    """Read the group to begin with, where dead letters wait for a person."""
    if not any(need.kind == "dead_manual" for need in needs):
        return None
    return await site.read_cached("first", site.rd.groups.first, FIRST_SECONDS)


# -- plots


def encode_plot(starts: Sequence[float], *series: dict[str, Any]) -> str:
    """Encode what plots.js draws."""
    return msgspec.json.encode({"x": starts, "series": series}).decode()


def plot_throughput(activity: Activity) -> str:
    """Plot what came in and what was done."""
    flows = activity.total.flows
    return encode_plot(
        activity.starts,
        {"name": "done", "kind": "done", "values": flows["succeeded"], "fill": True},
        {"name": "enqueued", "kind": "ink-3", "values": flows["enqueued"], "dash": True},
    )


def plot_failures(activity: Activity) -> str:
    """Plot the failures: jobs that were retried, and jobs that died."""
    flows = activity.total.flows
    return encode_plot(
        activity.starts,
        {"name": "retried", "kind": "held", "values": flows["retried"]},
        {"name": "died", "kind": "dead", "values": flows["buried"], "fill": True},
    )


# -- needs, each with the page where a person sees to it

ERROR: Final = 90
"""Characters of an error that a row shows."""
GRAVE: Final = frozenset({"dead_manual", "conflicting_input", "store_failed", "process_gone"})


def make_need_row(request: PageRequest, need: Need) -> dict[str, Any]:
    what = need.sentence
    if need.asks:  # its number stands in a column of its own
        what = f"{what.partition(f'{need.count:,} ')[2]}: {words.clipped(need.what, ERROR)}"
    return {
        "number": need.count,
        "what": what,
        "todo": need.action,
        "kind": "dead" if need.kind in GRAVE else "held",
        "href": find_page_of(request, need),
        "list": find_list_of(request, need),
    }


def find_list_of(request: PageRequest, need: Need, queue: str | None = None) -> str | None:
    """Find the list of exactly the jobs that a need counts; None where no filter can name them."""
    if need.kind == "dead_manual" and need.course is not None:  # one group, and not several small ones
        return request.address("dead_letters", query={"group": need.fingerprint, "lane": "manual", "queue": queue})
    if need.kind in FOR_A_PERSON and need.job_id:
        held = {"state": "held", "because": need.kind, "queue": need.queue, "task": need.task}
        return request.address("jobs", query=held)
    if need.kind == "backed_up":
        return request.address("jobs", query={"state": "due", "queue": need.queue})
    return request.address("job", id=need.job_id) if need.count == 1 and need.job_id else None


def find_page_of(request: PageRequest, need: Need) -> str:
    """Find where to continue: the group where there are several jobs, else the job, the queue or the morning page."""
    if need.kind in FOR_A_PERSON and need.count > 1:
        return request.address("held", query={"because": need.kind})
    if need.kind == "dead_manual" and need.count > 1 and need.fingerprint:
        return request.address("group", fingerprint=need.fingerprint)
    if need.kind in ("backed_up", "unattended"):
        return f"{request.address('queues')}#queue-{quote(need.queue)}"
    return request.address("job", id=need.job_id) if need.job_id else request.address("morning")


# -- the morning

MORNING_SECONDS: Final = 10.0
"""How old the morning may be: people look at it once a day."""
SPANS: Final = {
    "8h": ("the last 8 hours", 8),
    "24h": ("the last 24 hours", 24),
    "3d": ("the last 3 days", 72),
    "7d": ("the last 7 days", 168),
}
KINDS: Final = {
    "dead_manual": ("dead", "dead letter"),
    "conflicting_input": ("dead", "conflicting input"),
    "store_failed": ("dead", "store failed"),
    "process_gone": ("dead", "process gone"),
    "approval": ("held", "held for you"),
    "consent": ("held", "held for you"),
    "outcome_unknown": ("held", "outcome unknown"),
    "cycle_missing": ("dead", "cycle missing"),
    "cycle_died": ("dead", "cycle died"),
    "cycle_short": ("held", "cycle short"),
    "stalled": ("held", "stalled"),
    "loop_blocked": ("held", "event loop blocked"),
    "unattended": ("waiting", "without a worker"),
    "backed_up": ("waiting", "backed up"),
    "deferred_overdue": ("held", "should be back"),
    "spooled": ("held", "beside the store"),
    "disk_low": ("dead", "disk low"),
    "clock_jumped": ("held", "clock jumped"),
    "replica_lag": ("held", "replica behind"),
    "channel_failed": ("held", "channel failed"),
}
"""What each kind of need looks like, and its words, which stand behind a number."""
MOODS: Final = {"new": "is-dead", "regressed": "is-dead", "growing": "is-dead", "shrinking": "is-done"}


async def show_morning(request: PageRequest) -> Values:
    since, queue = request.choose("since", SPANS, "24h"), request.text("queue") or None
    title, hours = SPANS[since]
    morning = await request.site.read_cached(
        f"morning {since} {queue}", lambda: request.rd.morning(timedelta(hours=hours), queue=queue), MORNING_SECONDS
    )
    return {
        "morning": morning,
        "headline": make_title(morning),
        "summary": headline(morning),
        "since": since,
        "start": window_start(morning.until, morning.since),
        "span": title,
        "spans": [(name, text) for name, (text, _) in SPANS.items()],
        "queue": queue,
        "queues": [numbers.name for numbers in await request.site.queue_numbers()],
        "needs": [_make_morning_row(request, need, queue) for need in morning.needs[:SHOWN]],
        "rest": sum(need.count for need in morning.needs[SHOWN:]),
        "changes": [(delta, _compare_delta(delta)) for delta in morning.changes],
        "steady": morning.steady[:SHOWN],
        "cured_classes": [describe_delta(delta) for delta in morning.cured_classes],
    }


def make_title(morning: Morning) -> str:
    """Say in one large line what waits and what changed; the line below has the numbers as the terminal shows them."""
    number, kinds = morning.waiting_for_you, len(morning.changes)
    parts = []
    if number:
        parts.append(f"{words.counted(number, 'job')} {'needs' if number == 1 else 'need'} you")
    if kinds:
        parts.append(f"{words.counted(kinds, 'kind')} of error {'is' if kinds == 1 else 'are'} new or more frequent")
    return f"{', and '.join(parts) or 'A quiet morning'}."


def _compare_delta(delta: Delta) -> str:
    """Say how often an error class came, now and before; the name of the class stands before this text."""
    before = "never seen before" if delta.kind == "new" else f"{words.number(delta.before)} the time before"
    return f"{words.number(delta.now)}, {before}"


def describe_kind(kind: str, number: int) -> tuple[str, str]:
    """Give the look and the words of this many needs of a kind."""
    look, word = KINDS.get(kind, ("held", words.plain(kind)))
    return look, f"{word}s" if kind == "dead_manual" and number != 1 else word


def _make_morning_row(request: PageRequest, need: Need, queue: str | None) -> dict[str, Any]:
    look, word = describe_kind(need.kind, need.count)
    owner = f"for {need.owner}" if need.owner else ""
    return {
        "need": need,
        "look": look,
        "word": word,
        "place": find_page_of(request, need),
        "list": find_list_of(request, need, queue),
        "course": course(need),
        "mood": MOODS.get(need.course or "", "muted"),
        "tags": [tag for tag in (lasting(need), owner) if tag],
    }
