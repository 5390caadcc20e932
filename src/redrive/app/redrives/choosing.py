"""Which dead letters a bulk redrive is about, and what there is to say of them before anything moves."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.app.namespaces import make_filter
from redrive.core import redrives as core
from redrive.core.job import Job, iso
from redrive.core.lifecycle import Transition
from redrive.core.redrives import Chosen, Estimate
from redrive.core.store import Filter
from redrive.errors import InvalidInput, JobError

if TYPE_CHECKING:
    from redrive.app import Redrive

log = logging.getLogger("redrive.redrives")
PAGE: Final = 1000
MOST_ITEMS: Final = 500_000
SAMPLE: Final = 200
"""Jobs whose usage is read for an estimate."""
SHOWN_ERROR: Final = 200
TIMES: Final = ("since", "until", "due_at")
Judge = Callable[[Job], None]


class Selection:
    """The dead letters that were chosen: their ids in order, and what there is to say of them, never the jobs."""

    def __init__(self, chosen: str) -> None:
        self.chosen = chosen
        self.group_of: dict[str, str] = {}
        self.groups: dict[str, Chosen] = {}
        self.queues: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.group_of)

    def __contains__(self, job: Job) -> bool:
        return job.id in self.group_of

    def add(self, job: Job) -> None:
        name = job.fingerprint or f"task {job.task}"
        group = self.groups.get(name)
        if group is None:
            error = job.error[:SHOWN_ERROR] if job.error else None
            group = self.groups[name] = Chosen(job.fingerprint, job.task, job.error_class, error)
        group.number += 1
        self.group_of[job.id] = name
        self.queues[job.queue] += 1

    @property
    def token(self) -> str:
        return core.token_for(self.group_of)

    @property
    def fingerprints(self) -> list[str]:
        """Only one redrive at a time moves a group; what has no group is nobody else's business."""
        return [group.fingerprint for group in self.groups.values() if group.fingerprint]

    def rows(self) -> tuple[Chosen, ...]:
        return core.largest(self.groups.values())

    def places(self) -> list[tuple[str, int]]:
        """Each id with the place of its group among the rows."""
        rows = self.rows()
        known = {row.fingerprint or f"task {row.task}": place for place, row in enumerate(rows)}
        return [(id, known.get(name, len(rows) - 1)) for id, name in self.group_of.items()]


async def select(
    app: Redrive, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool, judge: Judge = lambda job: None
) -> Selection:
    """Page by page; of the jobs themselves nothing is kept. One that a changing listing shows twice counts once."""
    filters = {name: value for name, value in filters.items() if value is not None}
    _check(ids, filters, all=all)
    chosen = make_filter({**filters, "state": "dead"})
    selection = Selection(_in_words(ids, filters))
    async for jobs in _named(app, ids) if ids else _dead(app, chosen):
        for job in jobs:
            if job not in selection:
                selection.add(job)
                judge(job)
        if len(selection) > MOST_ITEMS:
            raise InvalidInput(field="filter", problem=f"matches more than {MOST_ITEMS:,}; narrow it")
    return selection


async def _named(app: Redrive, ids: Sequence[str]) -> AsyncIterator[list[Job]]:
    """Every id is found before anything is written; a part of one is enough where only one job has it."""
    for start in range(0, len(ids), PAGE):
        asked = ids[start : start + PAGE]
        found = {job.id: job for job in await app.store.get(asked)}
        yield [found[id] if id in found else await app.jobs.get(id) for id in asked]


async def _dead(app: Redrive, chosen: Filter) -> AsyncIterator[list[Job]]:
    """The oldest first, as they would have run."""
    cursor = None
    while True:
        page = await app.store.find(chosen, cursor, PAGE, oldest=True)
        yield page.jobs
        cursor = page.cursor
        if cursor is None:
            return


def decided(app: Redrive, job: Job, now: float, who: str, why: str | None) -> Transition | str:
    """The move that a single redrive would make, or why there is none. One bad item does not stop the others."""
    try:
        return app.dead._redriven(job, now, who, why)
    except JobError as refused:
        return str(refused).removeprefix(f"job {job.short_id} ")
    except Exception as error:
        log.warning("job %s (%s) cannot be judged for a redrive", job.short_id, job.task, exc_info=True)
        return f"{core.UNJUDGED}: {type(error).__name__}"  # what it says may be private, and this is kept


async def estimate(app: Redrive, ids: Sequence[str], number: int) -> Estimate | None:
    step = max(1, -(-len(ids) // SAMPLE))
    sample = await app.store.get(ids[::step])
    return core.estimated([core.last_usage(job) for job in sample], number)


async def warnings(app: Redrive, selection: Selection) -> tuple[str, ...]:
    documents = await app.store.docs("queue")
    paused = {document.key for document in documents if msgspec.json.decode(document.value).get("paused")}
    return tuple(f"queue {name} is paused: what is moved waits there" for name in sorted(paused & {*selection.queues}))


def _in_words(ids: Sequence[str], filters: Mapping[str, Any]) -> str:
    if ids:
        return f"{len(ids):,} by id"
    said = {name: iso(value) if name in TIMES else value for name, value in filters.items()}
    return ", ".join(f"{name} {value}" for name, value in said.items()) or "all dead letters"


def _check(ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> None:
    if isinstance(ids, str):
        raise InvalidInput(field="ids", problem="give a list of ids, not one text")
    if "state" in filters or "states" in filters:
        raise InvalidInput(field="state", problem="only dead letters are redriven")
    if ids and (filters or all):
        raise InvalidInput(field="ids", problem="give ids or filters, not both")
    if len(ids) > MOST_ITEMS:
        raise InvalidInput(field="ids", problem=f"{len(ids):,} are more than {MOST_ITEMS:,}")
    if not ids and not filters and not all:
        raise InvalidInput(field="filter", problem="redriving everything needs all=True")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
