"""Chooses the dead letters of a bulk run and describes them before anything moves."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.core.job import Job, Json, iso
from redrive.core.store import Filter, Seal
from redrive.deadletters import bulk_progress, orders
from redrive.deadletters.bulk_run import Chosen, Estimate, estimate_usage, largest, last_usage, token_for
from redrive.deadletters.filters import TIMES, filter_of_many, filters_of_many, make_filter
from redrive.deadletters.orders import Order
from redrive.deadletters.verbs import VERBS, Decided
from redrive.engine.paging import read_pages
from redrive.engine.queue_pauses import read_paused_queues
from redrive.errors import InvalidInput, JobError
from redrive.jobs.core import find_job

if TYPE_CHECKING:
    from redrive.jobs.core import Core

log = logging.getLogger("redrive.redrives")
PAGE: Final = 1000
MOST_ITEMS: Final = 500_000
SAMPLE: Final = 200
"""Jobs whose usage is read for an estimate."""
SHOWN_ERROR: Final = 200
Judge = Callable[[Job], None]


class Selection:
    """Chosen dead letters: ids in order, groups and counts, but not the jobs themselves."""

    def __init__(self, chosen: str, filter: dict[str, Json] | None = None) -> None:
        self.chosen = chosen
        self.filter = filter or {}
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
        return token_for(self.group_of)

    @property
    def fingerprints(self) -> list[str]:
        """Groups that a redrive of this selection reserves; dead letters without a group reserve none."""
        return [group.fingerprint for group in self.groups.values() if group.fingerprint]

    def rows(self) -> tuple[Chosen, ...]:
        return largest(self.groups.values())

    def places(self) -> list[tuple[str, int]]:
        """Lists each id with the index of its group in `rows()`."""
        rows = self.rows()
        known = {row.fingerprint or f"task {row.task}": place for place, row in enumerate(rows)}
        return [(id, known.get(name, len(rows) - 1)) for id, name in self.group_of.items()]


async def select(
    core: Core,
    ids: Sequence[str],
    filters: Mapping[str, Any],
    *,
    all: bool,
    verb: str = "redrive",
    judge: Judge = lambda job: None,
) -> Selection:
    """Selects dead letters page by page, without keeping the jobs. A job that is listed twice counts once."""
    named = filters_of_many(verb, ids, filters, all=all)
    if len(ids) > MOST_ITEMS:
        raise InvalidInput(field="ids", problem=f"{len(ids):,} are more than {MOST_ITEMS:,}")
    chosen = filter_of_many(verb, ids, filters, all=all) or Filter()
    selection = Selection(_in_words(ids, named), {} if ids else msgspec.to_builtins(chosen))
    oldest_first = read_pages(core.store, chosen, PAGE, oldest=True)  # in the order in which the jobs would have run
    async for jobs in _read_by_id(core, ids) if ids else oldest_first:
        for job in jobs:
            if job not in selection:
                selection.add(job)
                judge(job)
        if len(selection) > MOST_ITEMS:
            raise InvalidInput(field="filter", problem=f"matches more than {MOST_ITEMS:,}; narrow it")
    return selection


def filter_in_words(filters: Mapping[str, Any]) -> str:
    return _in_words((), {name: value for name, value in filters.items() if value is not None})


_SEALED: Final = "sealed-"


def token_of_seal(seal: Seal) -> str:
    """Makes a token for exactly these jobs, like the token of a plan, without reading the jobs."""
    return f"{_SEALED}{seal.number}-{seal.digest[:32]}"


async def fits(core: Core, selection: Selection, token: str) -> bool:
    """Whether the token of a plan or preview stands for exactly the present selection."""
    if not token.startswith(_SEALED):
        return token == selection.token
    return token == token_of_seal(await core.store.seal(Filter(ids=tuple(selection.group_of))))


async def _read_by_id(core: Core, ids: Sequence[str]) -> AsyncIterator[list[Job]]:
    """Reads jobs by id, before anything is written; a part that only one job's id contains is enough."""
    for start in range(0, len(ids), PAGE):
        asked = ids[start : start + PAGE]
        jobs = {job.id: job for job in await core.store.get(asked)}
        yield [jobs[id] if id in jobs else await find_job(core.store, id) for id in asked]


def judge_job(order: Order, job: Job, now: float, *, unknown_too: bool) -> Decided | str:
    """Decides what the order does to a job, or explains why nothing. One bad item does not stop the others.

    A job that may have landed is included only with `unknown_too`, because its effect could happen twice.
    """
    try:
        if not unknown_too and order.check_in_bulk is not None:
            order.check_in_bulk(job)
        decided = order.decide(job, now)
        return decided if isinstance(decided, Decided) else Decided(decided)
    except JobError as refused:
        return str(refused)
    except InvalidInput as refused:
        return str(refused)
    except Exception as error:
        log.warning("job %s (%s) cannot be judged for a %s", job.short_id, job.task, order.verb, exc_info=True)
        return f"{bulk_progress.UNJUDGED}: {type(error).__name__}"  # the message may be private, and this is kept


def without_id(reason: str, job: Job) -> str:
    """Removes the job's id from a reason, so that equal reasons of many jobs are counted together."""
    return reason.removeprefix(f"job {job.short_id} ")


def redriving(core: Core, who: str, why: str | None) -> Order:
    return orders.make_order(core, VERBS["redrive"], {}, who, why)


async def estimate(core: Core, ids: Sequence[str], number: int) -> Estimate | None:
    step = max(1, -(-len(ids) // SAMPLE))
    sample = await core.store.get(ids[::step])
    return estimate_usage([last_usage(job) for job in sample], number)


async def at_both_ends(core: Core, filters: Mapping[str, Any]) -> list[str]:
    """Lists ids of the newest and the oldest dead letters that match, if there are too many to read all."""
    chosen = make_filter({**filters, "state": "dead"})
    ends = [await core.store.find(chosen, limit=SAMPLE // 2, oldest=oldest) for oldest in (False, True)]
    return list(dict.fromkeys(job.id for page in ends for job in page.jobs))


async def warnings(core: Core, selection: Selection) -> tuple[str, ...]:
    paused = selection.queues.keys() & await read_paused_queues(core.store)
    return tuple(f"queue {name} is paused: what is moved waits there" for name in sorted(paused))


def _in_words(ids: Sequence[str], filters: Mapping[str, Any]) -> str:
    if ids:
        return f"{len(ids):,} by id"
    named = {name: iso(value) if name in TIMES else value for name, value in filters.items()}
    return ", ".join(f"{name} {value}" for name, value in named.items()) or "all dead letters"
