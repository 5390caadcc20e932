"""What every store must do, verb by verb, told against the Store protocol alone.

Each class is collected by test_contract.py, once for every place in places.py. `store` is open; `openers` opens more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from redrive.core import lifecycle
from redrive.core.bulkheads import Bulkheads, Share
from redrive.core.documents import KINDS, OfJob
from redrive.core.job import Job, Options, State, Usage
from redrive.core.lifecycle import Transition
from redrive.core.policy import Rate
from redrive.core.store import (
    MAX_PARTS,
    Applied,
    Commit,
    Event,
    Filter,
    Group,
    Guard,
    Inserted,
    Lease,
    Lesson,
    MoveFilter,
    Outcome,
    OutcomeTally,
    Put,
    Stale,
    Store,
    Tally,
    Wanted,
)
from redrive.errors import InvalidInput, StoreError, StoreUnavailable
from tests.stores.jobs import (
    A_FAILURE,
    T0,
    a_dead_job,
    a_job,
    an_attempt,
    burial,
    hold,
    keyed,
    redrive,
    retry,
    success,
)
from tests.stores.openers import Openers
from tests.stores.outside import outsider

PATIENCE = 30.0
"""A bound for things that come by themselves; nothing is measured by it."""
DAY = 86_400.0


# ---- a few words for long stories


async def accept(store: Store, *jobs: Job) -> None:
    inserted = await store.insert(jobs)
    assert not any(one.duplicate for one in inserted)


async def take(store: Store, slots: int = 100, now: float = T0 + 1, **wanted: Any) -> list[Job]:
    """Claims, once the store has heard of all that other openers committed: a claim itself does not wait for that."""
    await store.get([])
    return (await store.claim(Wanted(slots, **wanted), "w1", now)).jobs


async def taken(store: Store, *jobs: Job) -> list[Job]:
    """Accepts these jobs and claims them, in this order."""
    await accept(store, *jobs)
    claimed = {job.id: job for job in await take(store, slots=len(jobs))}
    return [claimed[job.id] for job in jobs]


async def do(store: Store, *transitions: Transition) -> list[Job]:
    """Commits each on its own; the jobs as they are then."""
    outcomes = await store.apply([Commit((transition,)) for transition in transitions])
    assert all(isinstance(outcome, Applied) for outcome in outcomes), outcomes
    return await store.get([transition.job.id for transition in transitions])


async def one(store: Store, job: Job | str) -> Job:
    (found,) = await store.get([job if isinstance(job, str) else job.id])
    return found


async def recount(store: Store, *by: str) -> Counter[tuple[str | None, ...]]:
    """The truth, from the records themselves."""
    return Counter([tuple(_text(getattr(job, name)) for name in by) async for job in store.scan()])


def _text(value: object) -> str | None:
    return None if value is None else str(value)


async def all_events(store: Store, after: str = "", limit: int = 1000) -> list[Event]:
    """The feed from a cursor to its end."""
    found: list[Event] = []
    for _ in range(10_000):
        events = await store.events(after, limit)
        if not events:
            return found
        found += events
        after = events[-1].cursor
    raise AssertionError("the feed has no end")


async def all_pages(store: Store, filter: Filter, limit: int) -> list[list[Job]]:
    pages, cursor = [], None
    for _ in range(1_000):
        page = await store.find(filter, cursor, limit)
        pages.append(page.jobs)
        cursor = page.cursor
        if cursor is None:
            return pages
    raise AssertionError("the listing has no end")


def ids(jobs: Sequence[Job]) -> list[str]:
    return [job.id for job in jobs]


def told(events: Sequence[Event]) -> list[tuple[str, str]]:
    return [(event.job_id, event.move) for event in events]


async def a_mixed_population(store: Store) -> dict[str, Job]:
    """A job in every state, in several queues and tasks and of several agents."""
    names = ("waiting", "running", "held", "done", "dead", "discarded", "purged", "retried")
    made = {
        name: a_job(f"queue{index % 3}", f"task{index % 2}", agent=(None, "ann", "bob")[index % 3], session_id=name)
        for index, name in enumerate(names)
    }
    claimed = {job.id: job for job in await taken(store, *(job for name, job in made.items() if name != "waiting"))}
    await accept(store, made["waiting"])
    run = {name: claimed[job.id] for name, job in made.items() if name != "waiting"}
    await do(
        store,
        hold(run["held"]),
        success(run["done"]),
        burial(run["dead"]),
        lifecycle.cancelled(run["discarded"], T0 + 2, who="ann", why="no longer wanted"),
        burial(run["purged"]),
        retry(run["retried"], run_at=T0 + 500),
    )
    buried = await one(store, run["purged"])
    await do(store, lifecycle.purged(buried, T0 + 3, who="ann", why="cleaning"))
    return {name: await one(store, job) for name, job in made.items()}


# ---- open, close


class Opening:
    async def test_says_what_it_promises(self, store: Store) -> None:
        info = await store.open()
        assert info.durability in ("synced", "replicated", "unsynced")
        assert info.max_record >= 1024 * 1024
        assert info.schema >= 1
        assert info.url

    async def test_close_finishes_what_was_accepted(self, openers: Openers) -> None:
        store, other = await openers.open(), await openers.open()
        jobs = [a_job() for _ in range(50)]
        writes = [asyncio.ensure_future(store.insert([job])) for job in jobs]
        await asyncio.sleep(0)
        await store.close()
        answers = await asyncio.gather(*writes, return_exceptions=True)
        accepted = [job.id for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, list)]
        refused = [answer for answer in answers if not isinstance(answer, list)]
        assert all(isinstance(answer, StoreUnavailable) for answer in refused)
        assert {job.id async for job in other.scan()} >= set(accepted)

    async def test_close_releases_no_leases(self, openers: Openers) -> None:
        store, other = await openers.open(), await openers.open()
        (running,) = await taken(store, a_job())
        await store.close()
        found = await one(other, running)
        assert (found.state, found.token, found.version) == (State.running, running.token, running.version)
        await do(other, success(running))

    async def test_close_twice_is_close(self, store: Store) -> None:
        await store.close()
        await store.close()

    @pytest.mark.behaviour("000-12")
    async def test_what_was_accepted_is_there_after_reopening(self, openers: Openers) -> None:
        store = await openers.open()
        await accept(store, job := a_job())
        await store.close()
        assert ids(await take(await openers.open())) == [job.id]

    async def test_a_closed_store_opens_again(self, store: Store) -> None:
        await accept(store, job := a_job())
        await store.close()
        await store.open()
        assert (await one(store, job)).state is State.waiting

    async def test_verbs_may_be_awaited_from_any_event_loop(self, store: Store) -> None:
        await accept(store, mine := a_job())
        elsewhere = a_job()

        async def in_another_loop() -> list[str]:
            await accept(store, elsewhere)
            return ids(await store.get([mine.id, elsewhere.id]))

        found = await asyncio.to_thread(lambda: asyncio.run(in_another_loop()))
        assert found == [mine.id, elsewhere.id]
        assert (await one(store, elsewhere)).id == elsewhere.id


# ---- insert, get


class Accepting:
    @pytest.mark.behaviour("000-29", "000-33")
    async def test_a_new_job_comes_back_as_it_was_given(self, store: Store) -> None:
        job = a_job(agent="ann", session_id="s1", priority=1, allowed=7, model="m", run_at=T0 + 5)
        assert await store.insert([job]) == [Inserted(job)]
        found = await one(store, job)
        assert found == job
        assert (found.state, found.run, found.attempts, found.history) == (State.waiting, 0, 0, ())

    async def test_a_plain_job_comes_back_as_it_was_given(self, store: Store) -> None:
        job = a_job()
        await accept(store, job)
        assert await one(store, job) == job

    @pytest.mark.behaviour("000-58")
    async def test_the_payload_is_kept_to_the_byte(self, store: Store) -> None:
        payload = (
            '{"turns":[{"role":"user","text":"Caff\u00e8 \u2603 \\u0000 \\"q\\""}],"deep":{"a":[1,2.5,null,true]}}'
        )
        await accept(store, job := a_job(payload=payload))
        assert (await one(store, job)).payload == payload

    @pytest.mark.behaviour("000-38", "000-60")
    async def test_an_existing_key_gives_the_job_that_owns_it(self, store: Store) -> None:
        first, second = keyed("feedback_1", payload='{"n":1}'), keyed("feedback_1", payload='{"n":2}')
        await accept(store, first)
        (again,) = await store.insert([second])
        assert again.duplicate
        assert again.job == first
        assert await one(store, second) == first

    async def test_a_key_belongs_to_its_queue(self, store: Store) -> None:
        here, there = keyed("k", "feedback"), keyed("k", "mesh_keys")
        await accept(store, here, there)
        assert here.id != there.id

    @pytest.mark.behaviour("000-61", "C5")
    async def test_a_key_is_remembered_after_completion(self, store: Store) -> None:
        (running,) = await taken(store, keyed("k"))
        (done,) = await do(store, success(running))
        (again,) = await store.insert([keyed("k")])
        assert again.duplicate
        assert again.job == done
        assert await take(store) == []

    @pytest.mark.behaviour("C6")
    @pytest.mark.parametrize("state", ["held", "dead", "discarded", "purged"])
    async def test_a_key_is_remembered_in_every_state(self, store: Store, state: str) -> None:
        (running,) = await taken(store, keyed("k"))
        if state == "held":
            await do(store, hold(running))
        else:
            (job,) = await do(store, burial(running))
            if state != "dead":
                arrow = lifecycle.discarded if state == "discarded" else lifecycle.purged
                await do(store, arrow(job, T0 + 3, who="ann", why=None))
        (again,) = await store.insert([keyed("k")])
        assert again.duplicate
        assert again.job.state == state

    async def test_the_same_key_twice_in_one_list_is_one_job(self, store: Store) -> None:
        first, second = keyed("k", payload='{"n":1}'), keyed("k", payload='{"n":2}')
        answers = await store.insert([first, second])
        assert [answer.duplicate for answer in answers] == [False, True]
        assert [answer.job.payload for answer in answers] == ['{"n":1}', '{"n":1}']
        assert await store.count(Filter()) == {(): 1}

    async def test_the_same_plain_id_twice_in_one_list_is_one_job(self, store: Store) -> None:
        job = a_job()
        answers = await store.insert([job, job])
        assert [answer.duplicate for answer in answers] == [False, True]
        assert await store.count(Filter()) == {(): 1}

    async def test_repeating_is_safe(self, store: Store) -> None:
        jobs = [a_job(), keyed("k"), a_job(session_id="s")]
        await accept(store, *jobs)
        again = await store.insert(jobs)
        assert all(answer.duplicate for answer in again)
        assert [answer.job for answer in again] == jobs
        assert await store.count(Filter()) == {(): 3}

    async def test_a_list_may_be_half_known(self, store: Store) -> None:
        old, new = [a_job() for _ in range(3)], [a_job() for _ in range(3)]
        await accept(store, *old)
        mixed = [job for pair in zip(old, new, strict=True) for job in pair]
        answers = await store.insert(mixed)
        assert [answer.job.id for answer in answers] == ids(mixed)
        assert [answer.duplicate for answer in answers] == [True, False] * 3
        assert await store.count(Filter()) == {(): 6}

    async def test_an_empty_list_is_nothing(self, store: Store) -> None:
        assert await store.insert([]) == []

    async def test_documents_arrive_beside_their_job(self, store: Store) -> None:
        job = a_job()
        await store.insert([job], [Put("blob", f"{job.id}/0", b"picture")])
        document = await store.doc("blob", f"{job.id}/0")
        assert document is not None and document.value == b"picture"

    async def test_documents_of_a_duplicate_change_nothing(self, store: Store) -> None:
        job, other = keyed("k"), a_job()
        await store.insert([job], [Put("blob", f"{job.id}/0", b"first")])
        puts = [Put("blob", f"{job.id}/0", b"second"), Put("blob", f"{other.id}/0", b"new")]
        await store.insert([job, other], puts)
        found = {document.key: document.value for document in await store.docs("blob")}
        assert found == {f"{job.id}/0": b"first", f"{other.id}/0": b"new"}

    async def test_a_job_may_begin_held(self, store: Store) -> None:
        await accept(store, job := a_job(state=State.held, because="blocked", held_at=T0))
        assert await one(store, job) == job
        assert await take(store) == []
        assert await store.count(Filter(), by=("state",)) == {("held",): 1}

    @pytest.mark.behaviour("000-39")
    async def test_a_job_may_begin_dead(self, store: Store) -> None:
        await accept(store, job := a_dead_job())
        assert await one(store, job) == job
        assert await take(store) == []
        assert await store.count(Filter(), by=("state",)) == {("dead",): 1}

    @pytest.mark.behaviour("000-30")
    async def test_a_job_without_a_queue_cannot_be_stored(self, store: Store) -> None:
        nowhere: Any = None
        with pytest.raises(StoreError):
            await store.insert([a_job(queue=nowhere)])
        assert await store.count(Filter()) == {(): 0}
        await accept(store, a_job())

    async def test_many_callers_at_once_each_get_their_own_answer(self, store: Store) -> None:
        jobs = [a_job(queue=f"q{number % 7}") for number in range(200)]
        answers = await asyncio.gather(*(store.insert([job]) for job in jobs))
        assert [answer for (answer,) in answers] == [Inserted(job) for job in jobs]
        assert await store.count(Filter()) == {(): 200}

    async def test_get_keeps_the_order_and_leaves_out_the_unknown(self, store: Store) -> None:
        jobs = [a_job() for _ in range(4)]
        await accept(store, *jobs)
        asked = [jobs[2].id, "f" * 32, jobs[0].id, jobs[3].id]
        assert ids(await store.get(asked)) == [jobs[2].id, jobs[0].id, jobs[3].id]
        assert await store.get([]) == []

    async def test_get_tells_the_whole_history_in_order(self, store: Store) -> None:
        (first,) = await taken(store, a_job())
        await do(store, retry(first))
        (second,) = await take(store, now=T0 + 3)
        await do(store, lifecycle.snoozed(second, T0 + 4, run_at=T0 + 5, attempt=an_attempt(second, "snoozed")))
        (third,) = await take(store, now=T0 + 6)
        (done,) = await do(store, success(third, T0 + 7))
        assert [(attempt.run, attempt.outcome) for attempt in done.history] == [
            (1, "failed"),
            (2, "snoozed"),
            (3, "done"),
        ]
        assert done.history[0].failure == A_FAILURE
        assert done.history[0].cause is not None and done.history[0].cause.detail == "network"
        assert done.history[0].decision == "again"
        last = done.history[2]
        assert (last.started_at, last.ended_at, last.worker) == (T0 + 6, T0 + 7, "w1")
        assert (done.run, done.attempts) == (3, 2)

    @pytest.mark.parametrize("together", [False, True])
    async def test_a_move_that_ends_no_attempt_is_none(self, store: Store, together: bool) -> None:
        """Also where many moves are written as one."""
        running = await taken(store, *(a_job() for _ in range(3)))
        dead = await do(store, *map(burial, running))
        moves = [Commit((redrive(job),)) for job in dead]
        for part in [moves] if together else [[move] for move in moves]:
            await store.apply(part)
        again = await store.get(ids(dead))
        assert [[attempt.outcome for attempt in job.history] for job in again] == [["failed"]] * 3
        assert [job.history[0] for job in again] == [job.history[0] for job in dead]

    @pytest.mark.behaviour("000-36", "000-37")
    async def test_creation_stands_still_and_the_last_change_moves(self, store: Store) -> None:
        await accept(store, job := a_job())
        seen = [await one(store, job)]
        (running,) = await take(store, now=T0 + 1)
        seen.append(await one(store, job))
        seen += await do(store, retry(running, T0 + 2))
        (running,) = await take(store, now=T0 + 3)
        seen += await do(store, burial(running, T0 + 4))
        seen += await do(store, redrive(seen[-1], T0 + 5))
        assert {found.created_at for found in seen} == {T0}
        assert [found.updated_at for found in seen] == [T0, T0 + 1, T0 + 2, T0 + 4, T0 + 5]


# ---- claim


class Claiming:
    async def test_a_claimed_job_runs_under_a_lease(self, store: Store) -> None:
        await accept(store, job := a_job())
        (running,) = await take(store, now=T0 + 1, lease=60.0)
        assert (running.state, running.run, running.attempts) == (State.running, 1, 0)
        assert (running.worker, running.started_at, running.lease) == ("w1", T0 + 1, 60.0)
        assert running.token
        assert running.version != job.version
        assert await one(store, job) == running

    @pytest.mark.behaviour("000-35", "000-65")
    async def test_only_due_jobs_are_claimed(self, store: Store) -> None:
        due, later = a_job(run_at=T0), a_job(run_at=T0 + 100)
        await accept(store, later, due)
        claim = await store.claim(Wanted(10), "w1", T0)
        assert ids(claim.jobs) == [due.id]
        assert claim.next_due == T0 + 100
        assert await take(store, now=T0 + 99.9) == []
        assert ids(await take(store, now=T0 + 100)) == [later.id]

    async def test_next_due_is_that_of_claimable_jobs_only(self, store: Store) -> None:
        await accept(store, a_job("paused", run_at=T0 + 5), a_job("feedback", run_at=T0 + 50))
        claim = await store.claim(Wanted(10, not_queues=frozenset({"paused"})), "w1", T0)
        assert (claim.jobs, claim.next_due) == ([], T0 + 50)

    async def test_the_most_urgent_first(self, store: Store) -> None:
        jobs = [a_job(priority=priority) for priority in (3, 2, 0, 1, 2, 0)]
        await accept(store, *jobs)
        order = [one.id for _ in jobs for one in await take(store, slots=1)]
        assert order == [jobs[index].id for index in (2, 5, 3, 1, 4, 0)]

    async def test_a_batch_comes_in_the_same_order(self, store: Store) -> None:
        jobs = [a_job(priority=priority) for priority in (3, 2, 0, 1, 2, 0)]
        await accept(store, *jobs)
        assert ids(await take(store)) == [jobs[index].id for index in (2, 5, 3, 1, 4, 0)]

    async def test_first_in_first_out_within_a_priority(self, store: Store) -> None:
        jobs = [a_job() for _ in range(20)]
        for job in jobs:
            await accept(store, job)
        order = [job.id for _ in range(5) for job in await take(store, slots=4)]
        assert order == ids(jobs)

    async def test_what_was_due_first_goes_first(self, store: Store) -> None:
        jobs = [a_job(run_at=T0 - delay) for delay in (1, 5, 3)]
        await accept(store, *jobs)
        assert ids(await take(store)) == [jobs[1].id, jobs[2].id, jobs[0].id]

    async def test_urgency_goes_across_queues_tasks_and_agents(self, store: Store) -> None:
        plain = [a_job("a", priority=2) for _ in range(5)]
        urgent = [a_job("b", "other", priority=0), a_job("c", agent="ann", priority=1)]
        await accept(store, *plain, *urgent)
        assert set(ids(await take(store, slots=2))) == set(ids(urgent))

    @pytest.mark.behaviour("000-102")
    async def test_a_full_queue_does_not_starve_another(self, store: Store) -> None:
        await accept(store, *(a_job("big") for _ in range(50)), small := a_job("small"))
        assert small.id in ids(await take(store, slots=10))

    @pytest.mark.parametrize("slots", [0, 1, 3, 10])
    async def test_no_more_than_the_slots(self, store: Store, slots: int) -> None:
        jobs = [a_job(f"q{number % 3}") for number in range(5)]
        await accept(store, *jobs)
        assert len(await take(store, slots=slots)) == min(slots, 5)

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            ({"tasks": frozenset({"t1"})}, {"q1 t1 None", "q2 t1 ann"}),
            ({"queues": frozenset({"q1"})}, {"q1 t1 None", "q1 t2 bob"}),
            ({"agents": frozenset({"ann"})}, {"q2 t1 ann"}),
            ({"agents": frozenset({"ann", "bob"})}, {"q2 t1 ann", "q1 t2 bob"}),
            ({"not_queues": frozenset({"q1"})}, {"q2 t1 ann", "q2 t2 None"}),
            ({"queues": frozenset({"q1"}), "tasks": frozenset({"t2"})}, {"q1 t2 bob"}),
            ({"queues": frozenset({"q1"}), "not_queues": frozenset({"q1"})}, set()),
            ({"tasks": frozenset()}, set()),
            ({}, {"q1 t1 None", "q1 t2 bob", "q2 t1 ann", "q2 t2 None"}),
        ],
    )
    async def test_filters(self, store: Store, wanted: dict[str, Any], expected: set[str]) -> None:
        await accept(
            store, a_job("q1", "t1"), a_job("q1", "t2", agent="bob"), a_job("q2", "t1", agent="ann"), a_job("q2", "t2")
        )
        assert {f"{job.queue} {job.task} {job.agent}" for job in await take(store, **wanted)} == expected

    async def test_a_queue_gets_no_more_than_its_slots(self, store: Store) -> None:
        await accept(store, *(a_job(queue, task) for queue in ("a", "b") for task in ("t1", "t2") for _ in range(5)))
        jobs = await take(store, slots=15, queue_slots={"a": 3})
        assert Counter(job.queue for job in jobs) == {"a": 3, "b": 10}
        assert await take(store, queue_slots={"a": 0}) == []

    async def test_an_agent_gets_no_more_than_its_slots(self, store: Store) -> None:
        agents = ("ann", "bob", "cy", None)
        await accept(store, *(a_job(queue, agent=agent) for agent in agents for queue in ("a", "b") for _ in range(3)))
        jobs = await take(store, agent_slots={"ann": 1, "bob": 5}, agent_limit=2)
        assert Counter(job.agent for job in jobs) == {"ann": 1, "bob": 5, "cy": 2, None: 6}

    @pytest.mark.parametrize(
        ("free", "held", "expected"),
        [
            (10, {}, {"a": 8}),
            (4, {"a": 6}, {"a": 2}),
            (2, {"a": 8}, {}),
            (2, {"b": 8}, {"a": 2}),
            (4, {"a": 3, "b": 3}, {"a": 2}),
            (2, {"a": 4, "b": 4}, {"a": 1}),
        ],
    )
    async def test_a_queue_with_its_share_leaves_the_reserve(
        self, store: Store, free: int, held: dict[str, int], expected: dict[str, int]
    ) -> None:
        await accept(store, *(a_job("a", task) for task in ("t1", "t2") for _ in range(10)))
        bulkheads = Bulkheads(free, kept=2, queues=Share(5, held))
        assert Counter(job.queue for job in await take(store, slots=free, bulkheads=bulkheads)) == expected

    async def test_the_reserve_goes_to_queues_below_their_share(self, store: Store) -> None:
        await accept(store, *(a_job("a") for _ in range(20)), *(a_job("b") for _ in range(3)))
        bulkheads = Bulkheads(10, kept=2, queues=Share(5))
        assert Counter(job.queue for job in await take(store, slots=10, bulkheads=bulkheads)) == {"a": 5, "b": 3}

    async def test_an_exempt_queue_takes_the_reserve(self, store: Store) -> None:
        await accept(store, *(a_job("a") for _ in range(20)))
        bulkheads = Bulkheads(10, kept=2, queues=Share(5), exempt=frozenset({"a"}))
        assert len(await take(store, slots=10, bulkheads=bulkheads)) == 10

    async def test_a_downstream_with_its_share_leaves_the_reserve(self, store: Store) -> None:
        await accept(store, *(a_job("a", task) for task in ("t1", "t2") for _ in range(9)), a_job("a", "t3"))
        calls = {"t1": "crm", "t2": "crm", "t3": "cms"}
        bulkheads = Bulkheads(4, kept=2, downstreams=Share(5, {"crm": 6}), calls=calls)
        taken = await take(store, slots=4, bulkheads=bulkheads)
        assert Counter(calls[job.task] for job in taken) == {"crm": 2, "cms": 1}

    async def test_a_host_with_its_share_leaves_the_reserve(self, store: Store) -> None:
        """Oldest first; what has no host is not held back."""
        slow, quick = '{"url": "https://slow.example/"}', '{"url": "https://quick.example/"}'
        await accept(store, *(a_job("a", "http", payload=slow) for _ in range(5)))
        others = [a_job("a", "http", payload=payload) for payload in (quick, "{}", "not JSON", quick)]
        await accept(store, *others)
        held = {"host:slow.example:443": 8}
        bulkheads = Bulkheads(2, kept=2, downstreams=Share(5, held), deliveries=frozenset({"http"}))
        assert await take(store, slots=0, bulkheads=bulkheads) == []
        first = await take(store, slots=2, bulkheads=bulkheads)
        assert ids(first) == ids(others[:2])
        assert await store.get(ids(first)) == first
        assert ids(await take(store, slots=2, bulkheads=bulkheads)) == ids(others[2:])
        assert await take(store, slots=2, bulkheads=bulkheads) == []
        assert await store.count(Filter(), by=("state",)) == await recount(store, "state")

    async def test_a_store_limit_counts_every_worker(self, openers: Openers) -> None:
        store, other = await openers.open(), await openers.open()
        await accept(store, *(a_job("a") for _ in range(5)), *(a_job("b") for _ in range(2)))
        first = await take(other, slots=2, store_limits={"a": 3}, queues=frozenset({"a"}))
        second = await take(store, store_limits={"a": 3})
        assert len(first) == 2
        assert Counter(job.queue for job in second) == {"a": 1, "b": 2}
        assert await take(other, store_limits={"a": 3}) == []
        await do(store, success(first[0]))
        assert len(await take(other, store_limits={"a": 3})) == 1

    async def test_a_store_rate_counts_every_worker(self, openers: Openers) -> None:
        store, other = await openers.open(), await openers.open()
        await accept(store, *(a_job("a") for _ in range(9)))
        rates = {"a": Rate(3, per=10.0)}
        assert len(await take(store, slots=2, now=T0, store_rates=rates)) == 2
        assert len(await take(other, now=T0 + 1, store_rates=rates)) == 1
        late = await store.claim(Wanted(10, store_rates=rates), "w1", T0 + 9)
        assert (late.jobs, late.next_due) == ([], T0 + 10), "when the first of them no longer counts"
        assert len(await take(store, now=T0 + 10.5, store_rates=rates)) == 2
        assert len(await take(other, now=T0 + 12, store_rates=rates)) == 1

    async def test_the_lease_is_the_jobs_then_the_tasks_then_the_workers(self, store: Store) -> None:
        own = msgspec.json.encode(Options(lease=7.0)).decode()
        await accept(store, a_job(task="plain"), a_job(task="long"), a_job(task="long", options_json=own))
        jobs = await take(store, lease=90.0, leases={"long": 600.0})
        assert Counter(job.lease for job in jobs) == {90.0: 1, 600.0: 1, 7.0: 1}

    async def test_every_run_has_its_own_number_and_token(self, store: Store) -> None:
        (first,) = await taken(store, a_job())
        await do(store, retry(first))
        (second,) = await take(store, now=T0 + 3)
        assert (first.run, second.run) == (1, 2)
        assert second.token not in (None, first.token)
        assert [attempt.run for attempt in second.history] == [1]

    async def test_no_job_goes_to_two_workers(self, openers: Openers) -> None:
        stores = [await openers.open() for _ in range(3)]
        jobs = [a_job(f"q{number % 4}", priority=number % 4) for number in range(120)]
        await accept(stores[0], *jobs)
        claims = await asyncio.gather(*(take(store, slots=7) for _ in range(8) for store in stores))
        got = [job.id for claim in claims for job in claim]
        assert len(got) == len(set(got))
        assert set(got) == set(ids(jobs))

    async def test_an_ended_or_held_job_is_not_claimed(self, store: Store) -> None:
        await a_mixed_population(store)
        assert {job.session_id for job in await take(store, now=T0 + 400)} == {"waiting"}

    async def test_by_id_whatever_their_time_queue_and_task(self, store: Store) -> None:
        later, other = a_job(run_at=T0 + 9_000), a_job("elsewhere", "unknown", agent="ann", priority=3)
        bystander = a_job()
        await accept(store, bystander, later, other)
        claim = await store.claim(Wanted(9, tasks=frozenset({"post"}), ids=(other.id, later.id)), "w1", T0 + 1)
        assert {job.id for job in claim.jobs} == {later.id, other.id}
        assert all((job.state, job.run, job.worker) == (State.running, 1, "w1") and job.token for job in claim.jobs)
        assert await store.get(ids(claim.jobs)) == claim.jobs
        assert (await one(store, bystander)).state is State.waiting
        assert await store.count(Filter(), by=("state",)) == await recount(store, "state")

    async def test_by_id_only_what_waits(self, store: Store) -> None:
        made = await a_mixed_population(store)
        asked = tuple(job.id for job in made.values())
        claim = await store.claim(Wanted(99, ids=(*asked, "f" * 32)), "w2", T0 + 1)
        assert set(ids(claim.jobs)) == {made["waiting"].id, made["retried"].id}
        assert await store.count(Filter(), by=("state",)) == await recount(store, "state")

    async def test_by_id_an_id_said_twice_is_one_job(self, store: Store) -> None:
        await accept(store, job := a_job())
        assert ids(await take(store, ids=(job.id, job.id))) == [job.id]
        assert await store.count(Filter(), by=("state",)) == {("running",): 1}

    async def test_by_id_one_of_two_wins(self, openers: Openers) -> None:
        one_store, other_store = await openers.open(), await openers.open()
        await accept(one_store, job := a_job("cycle:nightly"))
        wanted = Wanted(1, ids=(job.id,))
        claims = await asyncio.gather(one_store.claim(wanted, "a", T0), other_store.claim(wanted, "b", T0))
        assert sorted(len(claim.jobs) for claim in claims) == [0, 1]

    async def test_jobs_of_scripts_are_claimed_by_id_only(self, store: Store) -> None:
        await accept(store, job := a_job("cycle:nightly"))
        for wanted in ({}, {"queues": frozenset({"cycle:nightly"})}, {"tasks": frozenset({job.task})}):
            claim = await store.claim(Wanted(9, **wanted), "w1", T0 + 1)  # type: ignore[arg-type]
            assert (claim.jobs, claim.next_due) == ([], None)
        assert ids(await take(store, ids=(job.id,))) == [job.id]

    async def test_a_synced_claim_is_the_same_claim(self, store: Store) -> None:
        await accept(store, job := a_job())
        assert ids(await take(store, synced=True)) == [job.id]


# ---- heartbeat, lapsed


class Leases:
    async def test_heartbeats_keep_a_lease(self, openers: Openers) -> None:
        store, observer = await openers.open(), await openers.observer()
        (job,) = await taken(store, a_job())
        for _ in range(5):
            assert await observer.look(60.0) == []
            assert await store.heartbeat([_lease(job)]) == []
        assert await one(store, job) == job

    @pytest.mark.behaviour("000-64")
    async def test_without_heartbeats_the_lease_ends_and_the_job_is_told_unchanged(self, openers: Openers) -> None:
        store, observer = await openers.open(), await openers.observer()
        (job,) = await taken(store, a_job())
        assert await observer.look() == []
        assert await observer.look(89.0) == []
        assert await observer.look(2.0) == [job]
        assert await one(store, job) == job

    async def test_a_lapsed_job_is_told_again_and_to_every_observer(self, openers: Openers) -> None:
        store, first, second = await openers.open(), await openers.observer(), await openers.observer()
        (job,) = await taken(store, a_job())
        for observer in (first, second):
            await observer.look()
        for observer in (first, second, first):
            assert ids(await observer.look(100.0)) == [job.id]

    async def test_the_first_to_settle_a_lapsed_job_wins(self, openers: Openers) -> None:
        store, first, second = await openers.open(), await openers.observer(), await openers.observer()
        await taken(store, a_job())
        for observer in (first, second):
            await observer.look()
        seen = [(await observer.look(100.0))[0] for observer in (first, second)]
        outcomes = [(await store.apply([Commit((retry(job),))]))[0] for job in seen]
        assert [type(outcome) for outcome in outcomes] == [Applied, Stale]

    async def test_a_worker_that_only_was_slow_may_still_complete(self, openers: Openers) -> None:
        store, observer = await openers.open(), await openers.observer()
        (job,) = await taken(store, a_job())
        await observer.look()
        assert len(await observer.look(100.0)) == 1
        assert await store.heartbeat([_lease(job)]) == []
        assert await observer.look() == []
        await do(store, success(job))

    async def test_a_jump_of_the_wall_clock_ends_no_lease(self, openers: Openers) -> None:
        store, observer = await openers.open(), await openers.observer()
        await taken(store, a_job())
        for jump in (0.0, 3600.0, 10 * 365 * DAY, -10 * 365 * DAY):
            assert await observer.look(now=T0 + jump) == []

    async def test_each_job_has_its_own_lease(self, openers: Openers) -> None:
        store, observer = await openers.open(), await openers.observer()
        await accept(store, short := a_job(task="short"), long := a_job(task="long"))
        await take(store, leases={"short": 30.0, "long": 300.0})
        await observer.look()
        assert ids(await observer.look(40.0)) == [short.id]
        assert set(ids(await observer.look(270.0))) == {short.id, long.id}

    async def test_a_job_run_anew_is_not_lapsed_by_its_earlier_run(self, openers: Openers) -> None:
        store, observer = await openers.open(), await openers.observer()
        (job,) = await taken(store, a_job())
        await observer.look()
        await do(store, retry(job))
        await take(store, now=T0 + 3)
        assert await observer.look(100.0) == []
        assert len(await observer.look(100.0)) == 1

    async def test_a_lease_is_lost_when_the_job_was_cancelled(self, store: Store) -> None:
        mine, cancelled = await taken(store, a_job(), a_job())
        await do(store, lifecycle.cancelled(cancelled, T0 + 2, who="ann", why=None))
        assert await store.heartbeat([_lease(mine), _lease(cancelled)]) == [_lease(cancelled)]

    async def test_a_lease_is_lost_when_another_run_has_begun(self, store: Store) -> None:
        (first,) = await taken(store, a_job())
        await do(store, retry(first))
        (second,) = await take(store, now=T0 + 3)
        assert await store.heartbeat([_lease(first), _lease(second)]) == [_lease(first)]

    async def test_an_unknown_lease_is_lost(self, store: Store) -> None:
        nobody = Lease("f" * 32, "token")
        assert await store.heartbeat([nobody]) == [nobody]
        assert await store.heartbeat([]) == []


def _lease(job: Job) -> Lease:
    assert job.token is not None
    return Lease(job.id, job.token)


# ---- apply


class Committing:
    async def test_an_applied_move_gives_the_new_fence(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        move = retry(job)
        (outcome,) = await store.apply([Commit((move,))])
        assert isinstance(outcome, Applied)
        assert await one(store, job) == move.after(outcome.fences[0])

    async def test_a_commit_has_a_largest_size_and_a_larger_one_writes_nothing(self, store: Store) -> None:
        def puts(number: int) -> Commit:
            return Commit(puts=tuple(Put("note", f"{number}/{n}", b"1") for n in range(number)))

        (fits,) = await store.apply([puts(MAX_PARTS)])
        assert isinstance(fits, Applied)
        with pytest.raises(StoreError, match=str(MAX_PARTS)):
            await store.apply([puts(MAX_PARTS + 1)])
        assert len(await store.docs("note")) == MAX_PARTS

    @pytest.mark.behaviour("000-67")
    async def test_a_success_keeps_its_result(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        (done,) = await do(store, success(job, result='{"sum":3}'))
        assert (done.state, done.result_json, done.attempts, done.token) == (State.done, '{"sum":3}', 1, None)
        assert await store.count(Filter(states=(State.waiting, State.running))) == {(): 0}

    async def test_a_success_with_usage_keeps_it(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        usage = Usage(10, 20, 0.5)
        (done,) = await do(store, lifecycle.succeeded(job, T0 + 2, None, an_attempt(job, usage=usage)))
        assert done.history[0].usage == usage

    @pytest.mark.behaviour("000-40", "C11")
    async def test_a_dead_letter_keeps_everything(self, store: Store) -> None:
        (job,) = await taken(store, a_job("mesh_keys", key="only-copy"))
        (dead,) = await do(store, burial(job, T0 + 9))
        assert (dead.key, dead.allowed, dead.id) == ("only-copy", 5, job.id)
        assert (dead.queue, dead.payload, dead.attempts) == ("mesh_keys", job.payload, 1)
        assert (dead.created_at, dead.updated_at) == (T0, T0 + 9)
        assert dead.error == "ConnectionError: connection reset"
        assert (dead.because, dead.lane, dead.recommendation) == ("attempts_exhausted", "manual", "Look at it.")
        assert (dead.category, dead.detail, dead.error_class) == ("transient", "network", "ConnectionError")
        assert dead.fingerprint
        assert dead.history[0].failure == A_FAILURE

    async def test_an_old_fence_is_stale_and_writes_nothing(self, store: Store) -> None:
        await accept(store, job := a_job())
        seen = await one(store, job)
        (held,) = await do(store, hold(seen))
        (outcome,) = await store.apply([Commit((lifecycle.cancelled(seen, T0 + 3, who="ann", why=None),))])
        assert outcome == Stale(job.id)
        assert await one(store, job) == held

    async def test_an_unknown_job_is_stale(self, store: Store) -> None:
        ghost = a_job()
        assert await store.apply([Commit((hold(ghost),))]) == [Stale(ghost.id)]

    async def test_only_one_completion_is_recorded(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        await do(store, success(job, result='"first"'))
        assert await store.apply([Commit((success(job, result='"second"'),))]) == [Stale(job.id)]
        found = await one(store, job)
        assert (found.result_json, found.attempts, len(found.history)) == ('"first"', 1, 1)

    async def test_the_same_completion_twice_in_one_list_counts_once(self, store: Store) -> None:
        job, other = await taken(store, a_job(), a_job())
        commits = [Commit((success(job),)), Commit((success(other),)), Commit((success(job),))]
        outcomes = await store.apply(commits)
        assert [type(outcome) for outcome in outcomes] == [Applied, Applied, Stale]
        assert (await one(store, job)).attempts == 1

    async def test_a_worker_that_lost_its_lease_cannot_complete(self, store: Store) -> None:
        (zombie,) = await taken(store, a_job())
        await do(store, retry(zombie))
        (current,) = await take(store, now=T0 + 3)
        assert await store.apply([Commit((success(zombie),))]) == [Stale(zombie.id)]
        assert await one(store, zombie) == current

    async def test_many_moves_are_written_whole_or_not_at_all(self, store: Store) -> None:
        first, second, gone = await taken(store, a_job(), a_job(), a_job())
        (outcome,) = await store.apply([Commit((success(first), retry(second)))])
        assert isinstance(outcome, Applied) and len(outcome.fences) == 2
        found = await store.get([first.id, second.id])
        assert [job.version for job in found] == list(outcome.fences)
        fresh = await taken(store, a_job())
        await do(store, success(gone))
        (outcome,) = await store.apply([Commit((success(fresh[0]), retry(gone)))])
        assert outcome == Stale(gone.id)
        assert await one(store, fresh[0]) == fresh[0]

    async def test_a_document_that_is_not_as_expected_stops_the_whole_commit(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        puts = (Put("note", "a", b"1"), Put("note", "b", b"2", expect=7))
        (outcome,) = await store.apply([Commit((success(job),), puts)])
        assert isinstance(outcome, Stale)
        assert await one(store, job) == job
        assert await store.docs("note") == []

    async def test_a_stale_move_stops_its_documents(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        await do(store, success(job))
        (outcome,) = await store.apply([Commit((success(job),), (Put("note", "a", b"1"),))])
        assert isinstance(outcome, Stale)
        assert await store.doc("note", "a") is None

    async def test_a_guard_lets_documents_through_while_the_lease_holds(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        commit = Commit(puts=(Put("effect", f"{job.id}/pay", b"intended"),), guards=(Guard(_lease(job)),))
        assert isinstance((await store.apply([commit]))[0], Applied)
        assert await one(store, job) == job
        await do(store, success(job))
        late = Commit(puts=(Put("effect", f"{job.id}/late", b"intended"),), guards=(Guard(_lease(job)),))
        assert await store.apply([late]) == [Stale(job.id)]
        assert [document.key for document in await store.docs("effect")] == [f"{job.id}/pay"]

    async def test_a_guard_of_an_earlier_run_does_not_hold(self, store: Store) -> None:
        (first,) = await taken(store, a_job())
        await do(store, retry(first))
        await take(store, now=T0 + 3)
        commit = Commit(puts=(Put("effect", "x", b"1"),), guards=(Guard(_lease(first)),))
        assert await store.apply([commit]) == [Stale(first.id)]

    async def test_a_list_is_not_atomic(self, store: Store) -> None:
        good, bad, also = await taken(store, a_job(), a_job(), a_job())
        await do(store, hold(bad))
        outcomes = await store.apply([Commit((retry(good),)), Commit((retry(bad),)), Commit((burial(also),))])
        assert [type(outcome) for outcome in outcomes] == [Applied, Stale, Applied]
        assert [job.state for job in await store.get(ids([good, bad, also]))] == ["waiting", "held", "dead"]

    @pytest.mark.parametrize("plain", [True, False])
    async def test_many_successes_at_once_with_stale_ones_between(self, store: Store, plain: bool) -> None:
        jobs = await taken(store, *(a_job(f"q{number % 3}") for number in range(60)))
        gone = jobs[::7]
        await do(store, *(lifecycle.cancelled(job, T0 + 2, who="ann", why=None) for job in gone))
        moves = [success(job, T0 + 3, f'"{number}"') for number, job in enumerate(jobs)]
        commits = [Commit((msgspec.structs.replace(move, attempt=None) if plain else move,)) for move in moves]
        outcomes = await store.apply(commits)
        expected: list[Outcome] = [Stale(job.id) if job in gone else Applied((job.version + 1,)) for job in jobs]
        assert [type(outcome) for outcome in outcomes] == [type(outcome) for outcome in expected]
        found = await store.get(ids(jobs))
        for number, (job, outcome) in enumerate(zip(found, outcomes, strict=True)):
            ended = ("discarded", None) if jobs[number] in gone else ("done", f'"{number}"')
            assert (job.state, job.result_json) == ended
            if isinstance(outcome, Applied):
                assert outcome.fences == (job.version,)
                assert (job.attempts, job.updated_at, job.token) == (1, T0 + 3, None)
                assert [(attempt.run, attempt.outcome) for attempt in job.history] == [(1, "done")]
        assert await store.count(Filter(), by=("state",)) == {("done",): 60 - len(gone), ("discarded",): len(gone)}

    @pytest.mark.parametrize("result", [None, "null", "0", '""', '"\\u0000"', '{"a":[1,{"b":null}]}', "1.5e300", "[]"])
    async def test_results_are_kept_to_the_byte_alone_and_among_many(self, store: Store, result: str | None) -> None:
        alone, first, second = await taken(store, a_job(), a_job(), a_job())
        await do(store, success(alone, result=result))
        await do(store, success(first, result=result), success(second, result=result))
        assert [job.result_json for job in await store.get(ids([alone, first, second]))] == [result] * 3

    async def test_as_many_parts_as_promised(self, store: Store) -> None:
        jobs = await taken(store, *(a_job() for _ in range(MAX_PARTS // 2)))
        puts = tuple(Put("note", f"{number}", b"x") for number in range(MAX_PARTS - len(jobs)))
        (outcome,) = await store.apply([Commit(tuple(success(job) for job in jobs), puts)])
        assert isinstance(outcome, Applied) and len(outcome.fences) == len(jobs)
        assert len(await store.docs("note")) == len(puts)

    async def test_an_illegal_move_is_refused_and_changes_nothing(self, store: Store) -> None:
        await accept(store, job := a_job())
        with pytest.raises(StoreError):
            await store.apply([Commit((_illegal(job),))])
        assert await one(store, job) == job

    async def test_an_illegal_move_harms_none_of_its_neighbours(self, store: Store) -> None:
        await accept(store, job := a_job())
        neighbours = [a_job() for _ in range(20)]
        writes: list[Any] = [store.insert([neighbour]) for neighbour in neighbours]
        writes.insert(10, store.apply([Commit((_illegal(job),))]))
        answers = await asyncio.gather(*writes, return_exceptions=True)
        assert isinstance(answers.pop(10), StoreError)
        assert [answer for (answer,) in answers] == [Inserted(neighbour) for neighbour in neighbours]
        assert await one(store, job) == job

    async def test_a_job_may_change_its_agent_on_the_way(self, store: Store) -> None:
        (running,) = await taken(store, a_job(agent="ann"))
        (dead,) = await do(store, burial(running))
        move = redrive(dead)
        (moved,) = await do(store, msgspec.structs.replace(move, set={**move.set, "agent": "bob"}))
        assert moved.agent == "bob"
        assert await store.count(Filter(), by=("agent", "state")) == {("bob", "waiting"): 1}
        assert ids(await take(store, now=T0 + 9, agents=frozenset({"bob"}))) == [moved.id]

    @pytest.mark.behaviour("000-99")
    async def test_the_books_balance(self, store: Store) -> None:
        await a_mixed_population(store)
        by_state = await store.count(Filter(), by=("state",))
        assert by_state == await recount(store, "state")
        assert sum(by_state.values()) == 8


def _illegal(job: Job) -> Transition:
    """A waiting job cannot be done without ever having run."""
    return Transition("succeeded", job, State.done, T0 + 2, {})


# ---- doc, docs


class Documents:
    async def test_a_document_is_written_read_changed_and_removed(self, store: Store) -> None:
        assert await store.doc("queue", "a") is None
        await self._put(store, Put("queue", "a", b"one"))
        first = await store.doc("queue", "a")
        await self._put(store, Put("queue", "a", b"two"))
        second = await store.doc("queue", "a")
        assert first is not None and second is not None
        assert (first.value, second.value) == (b"one", b"two")
        assert first.version != second.version
        await self._put(store, Put("queue", "a", None))
        assert await store.doc("queue", "a") is None

    async def test_expect_is_the_version_or_zero_for_absent(self, store: Store) -> None:
        await self._put(store, Put("queue", "a", b"one", expect=0))
        assert await store.apply([Commit(puts=(Put("queue", "a", b"no", expect=0),))]) == [Stale()]
        document = await store.doc("queue", "a")
        assert document is not None
        await self._put(store, Put("queue", "a", b"two", expect=document.version))
        stale = Put("queue", "a", None, expect=document.version)
        assert await store.apply([Commit(puts=(stale,))]) == [Stale()]
        found = await store.doc("queue", "a")
        assert found is not None and found.value == b"two"

    async def test_two_writers_with_one_expectation(self, openers: Openers) -> None:
        store, other = await openers.open(), await openers.open()
        outcomes = await asyncio.gather(
            *(each.apply([Commit(puts=(Put("slot", "a", b"mine", expect=0),))]) for each in (store, other) * 5)
        )
        assert Counter(type(outcome) for (outcome,) in outcomes) == {Applied: 1, Stale: 9}

    async def test_docs_lists_a_kind_by_key_and_prefix(self, store: Store) -> None:
        for kind, key in (("step", "b/2"), ("step", "a/1"), ("step", "a/2"), ("effect", "a/1"), ("step", "aa")):
            await self._put(store, Put(kind, key, key.encode()))
        assert [document.key for document in await store.docs("step")] == ["a/1", "a/2", "aa", "b/2"]
        assert [document.key for document in await store.docs("step", "a/")] == ["a/1", "a/2"]
        assert await store.docs("nothing") == []

    async def _put(self, store: Store, put: Put) -> None:
        (outcome,) = await store.apply([Commit(puts=(put,))])
        assert isinstance(outcome, Applied)


# ---- find, count


FILTERS: list[tuple[Filter, set[str]]] = [
    (Filter(), {"waiting", "running", "held", "done", "dead", "discarded", "purged", "retried"}),
    (Filter(states=(State.waiting,)), {"waiting", "retried"}),
    (Filter(states=(State.running,)), {"running"}),
    (Filter(states=(State.held,)), {"held"}),
    (Filter(states=(State.done, State.discarded)), {"done", "discarded"}),
    (Filter(states=(State.dead,)), {"dead"}),
    (Filter(queue="queue0"), {"waiting", "done", "purged"}),
    (Filter(task="task1"), {"running", "done", "discarded", "retried"}),
    (Filter(agent="ann"), {"running", "dead", "retried"}),
    (Filter(queue="queue0", task="task1"), {"done"}),
    (Filter(states=(State.dead,), queue="queue1"), {"dead"}),
    (Filter(states=(State.dead,), queue="queue0"), set()),
    (Filter(session_id="held"), {"held"}),
    (Filter(lane="manual", states=(State.dead,)), {"dead"}),
    (Filter(because="approval"), {"held"}),
    (Filter(because="cancelled"), {"discarded"}),
    (Filter(category="transient", states=(State.waiting,)), {"retried"}),
    (Filter(detail="network", states=(State.dead, State.waiting)), {"dead", "retried"}),
    (Filter(error_class="ConnectionError", states=(State.dead,)), {"dead"}),
    (Filter(error_class="Other"), set()),
    (Filter(reason="direct", states=(State.done,)), {"done"}),
    (Filter(reason="retry"), set()),
    (Filter(states=(State.waiting,), due_at=T0 + 10), {"waiting"}),
    (Filter(states=(State.waiting,), due_at=T0 + 1000), {"waiting", "retried"}),
    (Filter(since=T0 + 2), {"held", "done", "dead", "discarded", "purged", "retried"}),
    (Filter(until=T0 + 2), {"waiting", "running"}),
    (Filter(since=T0 + 1, until=T0 + 2), {"running"}),
]


CHOICES: list[dict[str, Any]] = [
    {}, {"queue": "b"}, {"since": T0 + 3}, {"until": T0 + 3}, {"error_class": "TimeoutError"},
]  # fmt: skip


class View:
    async def test_filters(self, store: Store) -> None:
        made = await a_mixed_population(store)
        names = {job.id: name for name, job in made.items()}
        for filter, expected in FILTERS:
            page = await store.find(filter)
            assert {names[job.id] for job in page.jobs} == expected, filter
            assert page.cursor is None, filter
            assert await store.count(filter) == {(): len(expected)}, filter

    async def test_by_key_id_part_and_fingerprint(self, store: Store) -> None:
        made = await a_mixed_population(store)
        await accept(store, job := keyed("feedback_9"))
        assert ids((await store.find(Filter(key="feedback_9"))).jobs) == [job.id]
        assert ids((await store.find(Filter(id_part=job.id[-8:]))).jobs) == [job.id]
        same = Filter(states=(State.dead,), fingerprint=made["dead"].fingerprint)
        assert ids((await store.find(same)).jobs) == [made["dead"].id]

    async def test_by_what_a_job_is_held_for(self, store: Store) -> None:
        begun = a_job(state=State.held, because="circuit_open", held_for="breaker:mail", held_at=T0)
        other = a_job(state=State.held, because="circuit_open", held_for="breaker:llm", held_at=T0)
        await accept(store, begun, other)
        (running,) = await taken(store, a_job())
        parked = hold(running, because="circuit_open")
        (moved,) = await do(store, msgspec.structs.replace(parked, set={**parked.set, "held_for": "breaker:mail"}))
        assert (moved.held_for, (await one(store, begun)).held_for) == ("breaker:mail", "breaker:mail")
        same = Filter(states=(State.held,), held_for="breaker:mail")
        assert {job.id for job in (await store.find(same)).jobs} == {begun.id, moved.id}
        assert await store.count(same) == {(): 2}
        assert await store.count(Filter(states=(State.held,)), by=("held_for",)) == {
            ("breaker:mail",): 2, ("breaker:llm",): 1,
        }  # fmt: skip

    @pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
    async def test_by_the_kind_of_error_of_any_attempt(self, store: Store, together: bool) -> None:
        typed = msgspec.structs.replace(A_FAILURE, error_kind="llm_provider_timeout")
        first, second, other = await taken(store, a_job(), a_job(), a_job())
        moves = [retry(first, failure=typed), retry(second, failure=typed), retry(other)]
        for group in [moves] if together else [[move] for move in moves]:
            await do(store, *group)
        (again,) = [job for job in await take(store, now=T0 + 9) if job.id == first.id]
        await do(store, success(again, T0 + 10))
        kind = Filter(error_kind="llm_provider_timeout")
        assert {job.id for job in (await store.find(kind)).jobs} == {first.id, second.id}
        assert await store.count(kind) == {(): 2}
        done = Filter(states=(State.done,), error_kind="llm_provider_timeout")
        assert ids((await store.find(done)).jobs) == [first.id]
        assert (await store.find(Filter(error_kind="other"))).jobs == []

    async def test_the_found_are_the_records(self, store: Store) -> None:
        made = await a_mixed_population(store)
        for job in (await store.find(Filter())).jobs:
            (record,) = (found for found in made.values() if found.id == job.id)
            assert msgspec.structs.replace(job, history=()) == msgspec.structs.replace(record, history=())

    @pytest.mark.parametrize("states", [(), (State.waiting,), (State.dead,), (State.held,), (State.running,)])
    async def test_pages_have_no_gaps_and_no_repeats(self, store: Store, states: tuple[State, ...]) -> None:
        await self._twenty(store, states)
        whole = await store.find(Filter(states=states), limit=1000)
        for limit in (1, 3, 10, 100):
            pages = await all_pages(store, Filter(states=states), limit)
            found = [id for page in pages for id in ids(page)]
            assert len(found) == len(set(found)) == 20, limit
            assert all(len(page) == limit for page in pages[:-1]), limit
            assert found == ids(whole.jobs), limit

    async def _twenty(self, store: Store, states: tuple[State, ...]) -> None:
        """Twenty jobs in that state, several of which changed at the same instant."""
        jobs = [a_job(f"q{number % 3}") for number in range(20)]
        if states in ((), (State.waiting,)):
            await accept(store, *jobs)
            return
        running = await taken(store, *jobs)
        if states == (State.running,):
            return
        arrow = burial if states == (State.dead,) else hold
        await do(store, *(arrow(job, T0 + 10 + number // 6) for number, job in enumerate(running)))

    @pytest.mark.parametrize("states", [(State.waiting,), (State.dead,)])
    async def test_what_arrives_meanwhile_disturbs_no_listing(self, store: Store, states: tuple[State, ...]) -> None:
        await self._twenty(store, states)
        before = set(ids((await store.find(Filter(states=states), limit=100)).jobs))
        found, cursor = [], None
        for number in range(100):
            page = await store.find(Filter(states=states), cursor, 3)
            found += ids(page.jobs)
            cursor = page.cursor
            if cursor is None:
                break
            await accept(store, a_job() if states == (State.waiting,) else a_dead_job(updated_at=T0 + 100 + number))
        assert len(found) == len(set(found))
        assert before <= set(found)

    async def test_newest_first(self, store: Store) -> None:
        jobs = [a_job() for _ in range(5)]
        for job in jobs:
            await accept(store, job)
        assert ids((await store.find(Filter())).jobs) == ids(jobs)[::-1]
        running = {job.id: job for job in await take(store)}
        order = [3, 0, 4, 1, 2]
        for step, index in enumerate(order):
            await do(store, burial(running[jobs[index].id], T0 + 10 + step))
        dead = await store.find(Filter(states=(State.dead,)))
        assert ids(dead.jobs) == [jobs[index].id for index in reversed(order)]

    async def test_a_cursor_that_nobody_gave_is_refused(self, store: Store) -> None:
        for cursor in ("", "x", "1:x", "nonsense:", ":", "nan:1", "inf:1", "1:99999999999999999999", "1:-1"):
            with pytest.raises(InvalidInput, match="cursor"):
                await store.find(Filter(), cursor)

    async def test_counts_equal_a_recount(self, store: Store) -> None:
        await a_mixed_population(store)
        for by in (
            (), ("state",), ("queue",), ("task",), ("agent",), ("queue", "state"), ("queue", "task", "agent", "state"),
            ("state", "queue"), ("session_id",), ("because", "lane"), ("error_class", "queue"), ("fingerprint",),
        ):  # fmt: skip
            assert await store.count(Filter(), by=by) == await recount(store, *by), by

    async def test_due_jobs_equal_a_recount(self, store: Store) -> None:
        agents = (None, "ann", "bob")
        jobs = [
            a_job("ab"[n % 2], ("post", "mail")[n % 3 == 0], agent=agents[n % 3], run_at=T0 + n, priority=n % 4)
            for n in range(20)
        ]
        await accept(store, *jobs)
        due = [job for job in jobs if job.run_at <= T0 + 12]
        for by in ((), ("queue",), ("queue", "task"), ("task", "agent", "queue"), ("agent",)):
            expected = Counter(tuple(getattr(job, name) for name in by) for job in due)
            assert await store.count(Filter((State.waiting,), due_at=T0 + 12), by=by) == expected, by

    async def test_dead_letters_by_lane_equal_a_recount(self, store: Store) -> None:
        sessions = (None, "s1", None, "s2")
        jobs = await taken(
            store, *(a_job("ab"[number % 2], agent="ann", session_id=sessions[number % 4]) for number in range(9))
        )
        await accept(store, a_dead_job(), a_dead_job(lane="delayed"), a_dead_job(fingerprint="f", updated_at=T0 + 4))
        await do(store, *(
            burial(job, T0 + 2 + number % 3, failure=ANOTHER_FAILURE if number % 4 else A_FAILURE,
                   lane="delayed" if number % 5 == 0 else "manual")
            for number, job in enumerate(jobs)
        ))  # fmt: skip
        for said in CHOICES:
            chosen = Filter(states=(State.dead,), **said)
            found = (await store.find(chosen, limit=100)).jobs
            assert {job.lane for job in found} == {"manual", "delayed"}, said
            for by in (
                ("lane",), ("fingerprint", "lane"), ("lane", "queue"), ("queue", "lane", "detail"),
                ("session_id", "lane"), ("session_id",),
            ):  # fmt: skip
                recounted = Counter(tuple(getattr(job, name) for name in by) for job in found)
                assert await store.count(chosen, by=by) == recounted, (said, by)
            manual = Filter(states=(State.dead,), lane="manual", **said)
            counted = Counter((job.fingerprint,) for job in found if job.lane == "manual")
            assert await store.count(manual, by=("fingerprint",)) == counted, said

    @pytest.mark.parametrize("oldest", [False, True])
    async def test_the_first_of_each_choice(self, store: Store, oldest: bool) -> None:
        await a_mixed_population(store)
        choices = [Filter(states=(state,)) for state in State] + [
            Filter(),
            Filter(queue="nobody"),
            Filter(lane="manual"),
        ]
        listed = [(await store.find(choice, limit=1, oldest=oldest)).jobs for choice in choices]
        assert await store.first(choices, oldest=oldest) == [next(iter(jobs), None) for jobs in listed]
        assert sum(bool(jobs) for jobs in listed) >= 6
        assert await store.first([]) == []

    async def test_an_empty_store_counts_nothing(self, store: Store) -> None:
        assert await store.count(Filter()) == {(): 0}
        assert await store.count(Filter(), by=("queue",)) == {}
        assert await store.count(Filter(session_id="s")) == {(): 0}
        assert (await store.find(Filter())).jobs == []

    async def test_counting_by_something_else_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidInput, match="payload"):
            await store.count(Filter(), by=("payload",))


# ---- tallies, groups, lessons


HOUR = 3_600.0
ANOTHER_FAILURE = msgspec.structs.replace(A_FAILURE, types=("builtins.TimeoutError",), message="too slow")


async def moved(store: Store, since: float = 0.0, until: float = 1e10) -> list[Tally]:
    """What happened after the arrivals."""
    return [tally for tally in await store.tallies(since, until) if tally.move != "enqueued"]


async def tallied(store: Store, *by: str) -> Counter[tuple[object, ...]]:
    """Everything that ever happened, by these fields of a tally."""
    found: Counter[tuple[object, ...]] = Counter()
    for tally in await store.tallies(0.0, 1e10):
        found[tuple(getattr(tally, name) for name in by)] += tally.number
    return found


async def fed(store: Store) -> Counter[tuple[object, ...]]:
    """The same from the feed: by hour, queue, task and move."""
    return Counter((event.at // HOUR * HOUR, event.queue, event.task, event.move) for event in await all_events(store))


async def became(store: Store) -> dict[tuple[float, str], tuple[int, float]]:
    """What became of what died; `opened` says what is still open."""
    found = [tally for tally in await store.outcomes(0, 1e10) if tally.what not in ("open", "back")]
    return {(tally.hour, tally.what): (tally.number, tally.seconds) for tally in found}


async def rest(store: Store, what: str) -> dict[str, int]:
    """What is open, or what came back, by name."""
    return {tally.name: tally.number for tally in await store.outcomes(0, 1e10) if tally.what == what}


def teach(move: Transition, strategy: str, *, worked: bool, trouble: str = "trouble") -> Transition:
    return msgspec.structs.replace(move, lesson=(trouble, strategy, worked))


async def the_group(store: Store, fingerprint: str | None) -> Group:
    (found,) = await store.groups(fingerprints=[str(fingerprint)])
    return found


NOBODYS: list[dict[str, Any]] = [
    {"queue": "nobody"}, {"task": "none"}, {"agent": "x"}, {"lane": "manual"}, {"session_id": "s"}, {"reason": "retry"},
    {"key": "k"}, {"fingerprint": "f"}, {"ids": ("0" * 32,)}, {"error_kind": "k"}, {"id_part": "zz"},
]  # fmt: skip


DAYS_FROM = (T0 // DAY + 1) * DAY
MOMENTS = [DAYS_FROM + day * DAY + hour * HOUR for day in range(9) for hour in (0.0, 23.5)]
SPANS = [(0.0, 9.0), (1.0, 8.5), (0.3, 3.9), (5.5, 6.5), (0.0, 3.0), (3.0, 3.2), (2.0, 3.0), (9.5, 99.0), (-9.0, 99.0)]
"""In days: whole ones, and such that begin or end within one."""


class ComingBack:
    """Dead letters that come back by themselves, as the view shows them."""

    @pytest.mark.behaviour("R-1")
    async def test_by_group_by_what_they_call_and_by_route(self, store: Store) -> None:
        jobs = await taken(store, *(a_job(queue="a", task="t") for _ in range(3)), a_job(queue="b", task="t"))
        calls = ("host:x:443", "host:x:443", "host:y:443", "host:x:443")
        for job, called, at in zip(jobs, calls, (T0 + 10, T0 + 20, T0 + 30, T0 + 40), strict=True):
            await do(store, burial(job, lane="delayed", comes_back_at=at, waits_for=called))
        (later,) = await taken(store, a_job(queue="a", task="t"))
        await do(store, burial(later))
        found = {
            (one.held_for, one.queue): (one.number, one.due, one.next_at) for one in await store.returning(T0 + 15)
        }
        assert found == {
            ("host:x:443", "a"): (2, 1, T0 + 10),
            ("host:y:443", "a"): (1, 0, T0 + 30),
            ("host:x:443", "b"): (1, 0, T0 + 40),
        }

    @pytest.mark.behaviour("R-1")
    async def test_those_that_are_due_are_found_the_oldest_first(self, store: Store) -> None:
        jobs = await taken(store, *(a_job() for _ in range(3)))
        for second, job in enumerate(reversed(jobs)):
            await do(store, burial(job, T0 + second, lane="delayed", comes_back_at=T0 + 50 - second, waits_for="k"))
        due = Filter(states=(State.dead,), held_for="k", returns_by=T0 + 49)
        assert ids((await store.find(due, oldest=True)).jobs) == [jobs[1].id, jobs[0].id]
        assert (await store.count(due)) == {(): 2}

    @pytest.mark.behaviour("R-1")
    async def test_whatever_else_happens_to_one_ends_its_comeback(self, store: Store) -> None:
        jobs = await taken(store, *(a_job() for _ in range(4)))
        dead = [
            moved
            for job in jobs
            for moved in await do(store, burial(job, lane="delayed", comes_back_at=T0 + 60, waits_for="k"))
        ]
        assert [job.comes_back_at for job in dead] == [T0 + 60] * 4
        moves = (
            lifecycle.discarded(dead[0], T0 + 5, who="ada", why=None),
            lifecycle.deferred(dead[1], T0 + 5, owner="ada", until=T0 + 9, who="ada", why=None),
            lifecycle.rerouted(dead[2], T0 + 5, lane="manual", who="ada", why=None),
            lifecycle.came_back(dead[3], T0 + 5, tries=2, who="redrive", why="its time has come"),
        )
        after = [moved for move in moves for moved in await do(store, move)]
        assert [job.comes_back_at for job in await store.get([job.id for job in after])] == [None] * 4
        assert await store.returning(T0 + 99) == []
        (back,) = await store.get([dead[3].id])
        assert (back.state, back.comebacks, back.allowed, back.grants) == (State.waiting, 1, back.attempts + 2, 0)


class AddingUp:
    async def test_the_tallies_are_what_the_feed_tells(self, store: Store) -> None:
        await a_mixed_population(store)
        assert await tallied(store, "hour", "queue", "task", "move") == await fed(store)

    @pytest.mark.parametrize("kind", ["plain success", "success", "retry", "burial"])
    @pytest.mark.parametrize("offsets", [(0.0, HOUR), (HOUR, 0.0), (0.0, 1.0, 2 * HOUR, 2.0)])
    async def test_moves_of_several_hours_in_one_list(
        self, store: Store, kind: str, offsets: tuple[float, ...]
    ) -> None:
        make = {
            "plain success": lambda job, at: lifecycle.succeeded(job, at, None),
            "success": success,
            "retry": retry,
            "burial": burial,
        }[kind]
        jobs = await taken(store, *(a_job() for _ in offsets))
        await do(store, *(make(job, T0 + 2 + offset) for job, offset in zip(jobs, offsets, strict=True)))
        assert await tallied(store, "hour", "queue", "task", "move") == await fed(store)

    @pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
    async def test_a_failure_is_tallied_by_its_class_and_detail(self, store: Store, together: bool) -> None:
        jobs = await taken(store, *(a_job(agent="ann") for _ in range(5)))
        moves = [
            success(jobs[0]), success(jobs[1]), retry(jobs[2]), burial(jobs[3]),
            burial(jobs[4], failure=ANOTHER_FAILURE),
        ]  # fmt: skip
        for group in [moves] if together else [[move] for move in moves]:
            await do(store, *group)
        hour = T0 // HOUR * HOUR
        assert sorted(await moved(store, T0, T0 + 9), key=repr) == sorted(
            [
                Tally(hour, "feedback", "post", "ann", "succeeded", "", "", 2),
                Tally(hour, "feedback", "post", "ann", "retried", "ConnectionError", "network", 1),
                Tally(hour, "feedback", "post", "ann", "buried", "ConnectionError", "network", 1),
                Tally(hour, "feedback", "post", "ann", "buried", "TimeoutError", "timeout", 1),
            ],
            key=repr,
        )

    @pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
    async def test_what_became_of_what_died_stands_in_the_hour_of_its_death(self, store: Store, together: bool) -> None:
        jobs = await taken(store, *(a_job() for _ in range(6)))
        buried = await do(store, *(burial(job) for job in jobs))
        later = T0 + 2 + 5 * HOUR

        def back(job: Job, by: Literal["auto", "person"]) -> Transition:
            return lifecycle.redriven(job, later, max_attempts=3, who="x", why=None, run_at=later, by=by)

        waiting = await do(store, back(buried[0], "auto"), back(buried[1], "person"))
        running = (await store.claim(Wanted(2), "w", later)).jobs
        assert {job.id for job in running} == {job.id for job in waiting}
        ends = [
            *(success(job, later) for job in running),
            lifecycle.resolved(buried[2], later, who="x", why="y"),
            lifecycle.discarded(buried[3], later, who="x", why=None),
            lifecycle.deferred(buried[4], later, owner="ann", until=later + 9, who="x", why=None),
        ]
        ended = []
        for group in [ends] if together else [[move] for move in ends]:
            ended += await do(store, *group)
        hour, took = T0 // HOUR * HOUR, 5 * HOUR
        assert await became(store) == {
            (hour, "died"): (6, 0.0), (hour, "auto"): (1, took), (hour, "person"): (3, 3 * took),
            (hour, "deferred"): (1, 0.0),
        }  # fmt: skip
        assert await rest(store, "open") == {"manual": 1, "held": 1}
        assert await rest(store, "back") == {"auto": 1, "person": 2}
        (recalled,) = await do(store, lifecycle.recalled(ended[4], later, who="x", why=None))
        assert (recalled.state, recalled.because, recalled.held_for) == (State.dead, buried[4].because, None)
        await do(store, lifecycle.deferred(recalled, later, owner="ann", until=later + 9, who="x", why=None))
        await do(store, lifecycle.restored(ended[3], later + 7, who="x", why=None))
        again = await became(store)
        assert (again[hour, "person"], again[hour, "deferred"], again[hour, "died"]) == (
            (2, 2 * took),
            (1, 0.0),
            (6, 0.0),
        )
        assert {tally.what for tally in await store.outcomes(hour + HOUR, hour + 9 * HOUR)} == {"back"}
        whole = {
            (tally.what, tally.name): tally.number for tally in await store.outcomes(hour, hour + HOUR, whole=True)
        }
        parts = {(tally.what, tally.name): tally.number for tally in await store.outcomes(hour, hour + HOUR)}
        assert whole == parts and whole["died", ""] == 6

    async def test_a_seal_stands_for_exactly_these_jobs(self, store: Store) -> None:
        jobs = await taken(store, *(a_job() for _ in range(3)))
        dead = Filter(states=(State.dead,))
        await do(store, *(burial(job) for job in jobs[:2]))
        seal = await store.seal(dead)
        assert seal.number == 2
        assert await store.seal(Filter(ids=(jobs[1].id, jobs[0].id))) == seal
        assert (await store.seal(Filter(ids=(jobs[0].id, jobs[2].id)))).digest != seal.digest
        await do(store, burial(jobs[2]))
        assert (await store.seal(dead)).digest != seal.digest
        assert (await store.seal(Filter(states=(State.dead,), queue="nobody"))).number == 0

    async def test_the_latest_moves_come_first(self, store: Store) -> None:
        await a_mixed_population(store)
        told = sorted((event.at for event in await all_events(store)), reverse=True)
        found = await store.latest(5)
        assert [event.at for event in found] == told[:5]
        assert all(event.job_id and event.queue for event in found)
        await accept(store, new := a_job())
        assert [event.job_id for event in await store.events(found[-1].cursor)] == [new.id]

    async def test_the_moves_of_a_time_are_listed_and_counted(self, store: Store) -> None:
        jobs = await taken(store, *(a_job(queue="a", agent="editor") for _ in range(3)), a_job(queue="b"))
        late, *rest = jobs
        await do(store, *(success(job, T0 + 5) for job in rest))
        await do(store, burial(late, T0 + 50))
        done = MoveFilter(("succeeded", "resolved"), T0, T0 + 60)
        page = await store.moves(done)
        assert ({event.job_id for event in page.events}, page.total) == ({job.id for job in rest}, 3)
        assert {(event.move, event.at) for event in page.events} == {("succeeded", T0 + 5)}
        assert page.cursor is None
        for said, number in (
            ({"queue": "a"}, 2), ({"queue": "b"}, 1), ({"agent": "editor"}, 2), ({"no_agent": True}, 1),
            ({"queue": "nowhere"}, 0), ({"since": T0 + 5}, 3), ({"since": T0 + 6}, 0), ({"until": T0 + 5}, 0),
            ({"moves": ("buried",)}, 1), ({"moves": ("buried", "succeeded"), "until": T0 + 50}, 3),
        ):  # fmt: skip
            found = await store.moves(msgspec.structs.replace(done, **said))
            assert (found.total, len(found.events)) == (number, number), said

    async def test_the_moves_of_a_time_come_page_by_page(self, store: Store) -> None:
        jobs = await taken(store, *(a_job() for _ in range(7)))
        for place, job in enumerate(jobs):
            await do(store, success(job, T0 + 3 + place))
        done, seen, cursor = MoveFilter(("succeeded",), T0, T0 + 60), list[str](), None
        while True:
            page = await store.moves(done, cursor, 3)
            assert page.total == 7
            seen += [event.job_id for event in page.events]
            if (cursor := page.cursor) is None:
                break
        assert seen == [job.id for job in reversed(jobs)]
        with pytest.raises(InvalidInput, match="cursor"):
            await store.moves(done, "x", 3)

    async def test_jobs_without_an_agent_are_found_and_counted(self, store: Store) -> None:
        await accept(store, a_job(agent="editor"), plain := a_job(), a_job(queue="other", agent="clerk"))
        nobody = Filter(states=(State.waiting,), no_agent=True)
        assert [job.id for job in (await store.find(nobody)).jobs] == [plain.id]
        assert await store.count(nobody) == {(): 1}
        assert await store.count(nobody, by=("agent",)) == {(None,): 1}
        assert await store.count(msgspec.structs.replace(nobody, due_at=T0 + 9)) == {(): 1}
        assert await store.count(msgspec.structs.replace(nobody, queue="other")) == {(): 0}

    async def test_a_job_that_dies_again_died_once(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        (dead,) = await do(store, burial(job))
        await do(store, lifecycle.redriven(dead, T0 + 9, max_attempts=3, who="x", why=None, run_at=T0 + 9))
        (again,) = (await store.claim(Wanted(1), "w", T0 + 9)).jobs
        (dead,) = await do(store, burial(again, T0 + 10))
        assert dead.died_at == T0 + 2
        assert await became(store) == {(T0 // HOUR * HOUR, "died"): (1, 0.0)}

    async def test_a_plain_success_never_died(self, store: Store) -> None:
        await do(store, *(lifecycle.succeeded(job, T0 + 2, None) for job in await taken(store, a_job(), a_job())))
        assert await became(store) == {}

    async def test_what_was_tried_is_told_by_the_hour_and_by_strategy(self, store: Store) -> None:
        one, other = await taken(store, a_job(), a_job())
        await do(store, teach(success(one), "smaller", worked=True), teach(retry(other), "smaller", worked=False))
        found = {(tally.what, tally.name, tally.number) for tally in await store.outcomes(0, 1e10)}
        assert found == {("worked", "smaller", 1), ("failed", "smaller", 1)}

    async def test_totals_are_the_tallies_summed_up(self, store: Store) -> None:
        """In days, from a day's beginning on: whole ones, and what is left of them at both ends."""
        start = (T0 // 86_400 + 1) * 86_400
        for day in range(9):
            (job,) = await taken(store, a_job(agent="ann" if day % 2 else None))
            await do(store, success(job, start + day * 86_400 + 3 * HOUR))
        for since, until in ((0.0, 9.0), (1.0, 8.5), (5.5, 6.5), (0.0, 3.0), (3.0, 3.2), (9.0, 99.0)):
            begin, end = start + since * 86_400, start + until * 86_400
            summed: Counter[tuple[object, ...]] = Counter()
            for tally in await store.tallies(begin, end):
                summed[tally.queue, tally.task, tally.agent, tally.move] += tally.number
            found = {(one.queue, one.task, one.agent, one.move): one.number for one in await store.totals(begin, end)}
            assert found == summed, (since, until)
            whole: Counter[tuple[object, ...]] = Counter()
            for tally in await store.tallies(begin, end, whole=True):
                whole[tally.queue, tally.task, tally.agent, tally.move] += tally.number
            assert whole == summed, (since, until)

    async def test_waits_and_runs_of_the_last_successes_by_task_and_by_queue(self, store: Store) -> None:
        """The wait is from the time a job was due, after a failure from the time of its retry."""
        for job, start, end in ((a_job("mill", "grind"), 5, 25), (a_job("mill", "sieve"), 1, 2)):
            await accept(store, job)
            await do(store, *(success(one, T0 + end) for one in await take(store, now=T0 + start)))
        await accept(store, a_job("oven", "bake"))
        (failed,) = await take(store, now=T0 + 50)
        await do(store, retry(failed, T0 + 60, run_at=T0 + 100))
        assert [one.name for one in await store.timings("queue")] == ["mill"], "a failure is no success"
        await do(store, *(success(one, T0 + 104) for one in await take(store, now=T0 + 103)))
        tasks, queues = await store.timings("task"), await store.timings("queue")
        assert {one.name: (one.waited and one.waited.p50, one.took and one.took.p50) for one in tasks} == {
            "grind": (5.0, 20.0), "sieve": (1.0, 1.0), "bake": (3.0, 1.0),
        }  # fmt: skip
        assert {one.name: (one.waited and one.waited.number) for one in queues} == {"mill": 2, "oven": 1}

    async def test_the_tallies_of_a_time_are_those_of_its_hours(self, store: Store) -> None:
        """With failures of several kinds beside successes, on whole days and at both ends."""
        for number, at in enumerate(MOMENTS):
            jobs = await taken(store, *(a_job(agent="ann" if number % 2 else None) for _ in range(4)))
            other = burial(jobs[2], at, failure=ANOTHER_FAILURE)
            await do(store, success(jobs[0], at), retry(jobs[1], at), other, burial(jobs[3], at + HOUR))
        await accept(store, a_dead_job(updated_at=MOMENTS[3]), a_dead_job(updated_at=MOMENTS[3], error_class=None))

        def added_up(tallies: Sequence[Tally]) -> Counter[tuple[object, ...]]:
            sums: Counter[tuple[object, ...]] = Counter()
            for one in tallies:
                sums[one.queue, one.task, one.agent, one.move, one.error_class, one.detail] += one.number
            return sums

        for since, until in SPANS:
            begin, end = DAYS_FROM + since * DAY, DAYS_FROM + until * DAY
            whole = await store.tallies(begin, end, whole=True)
            assert added_up(whole) == added_up(await store.tallies(begin, end)), (since, until)
            assert len(added_up(whole)) == len(whole), (since, until)
            assert {one.hour for one in whole} <= {begin // HOUR * HOUR}, (since, until)

    async def test_the_outcomes_of_a_time_are_those_of_its_hours(self, store: Store) -> None:
        """What died on several days, on two routes, and is now wherever a dead letter can be."""
        for number, at in enumerate(MOMENTS):
            jobs = await taken(store, *(a_job(agent="ann" if number % 2 else None) for _ in range(7)))
            dead = await do(store, *(burial(job, at, lane="delayed" if job is jobs[1] else "manual") for job in jobs))
            later = at + 5 * HOUR
            await do(store, teach(redrive(dead[2], later), "smaller", worked=False))
            await do(store, lifecycle.deferred(dead[3], later, owner="x", until=9e9, who="x", why=None))
            await do(store, lifecycle.resolved(dead[4], later, who="x", why="y"))
            gone = await do(store, lifecycle.discarded(dead[5], later, who="x", why=None))
            gone += await do(store, lifecycle.discarded(dead[6], later, who="x", why=None))
            await do(store, lifecycle.restored(gone[0], later + 30 * HOUR, who="x", why=None))
            if number % 3 == 0:
                assert await take(store, now=later)

        def added_up(outcomes: Sequence[OutcomeTally]) -> dict[tuple[object, ...], tuple[int, float]]:
            sums: dict[tuple[object, ...], tuple[int, float]] = {}
            for one in outcomes:
                key = (one.queue, one.task, one.agent, one.what, one.name)
                number, seconds = sums.get(key, (0, 0.0))
                sums[key] = (number + one.number, seconds + one.seconds)
            return sums

        for since, until in SPANS:
            begin, end = DAYS_FROM + since * DAY, DAYS_FROM + until * DAY
            whole = await store.outcomes(begin, end, whole=True)
            assert added_up(whole) == added_up(await store.outcomes(begin, end)), (since, until)
            assert len(added_up(whole)) == len(whole), (since, until)
            if since < 1 and until > 8:
                assert {one.name for one in whole if one.what == "open"} == {"manual", "delayed", "held", "moving"}

    async def test_nothing_is_found_where_nothing_is(self, store: Store) -> None:
        await a_mixed_population(store)
        for state, said in product(State, NOBODYS):
            chosen = Filter(states=(state,), **said, until=T0 - 99)
            assert (await store.find(chosen)).jobs == [], (state, said)
            assert sum((await store.count(chosen)).values()) == 0, (state, said)
            assert await store.count(chosen, by=("queue", "lane")) == {}, (state, said)

    async def test_the_jobs_that_are_overdue(self, store: Store) -> None:
        jobs = [a_job(queue, run_at=T0 + at, priority=priority) for queue, at, priority in (
            ("a", 3, 0), ("a", 1, 3), ("b", 2, 2), ("b", 50, 1),
        )]  # fmt: skip
        await accept(store, *jobs)
        assert [job.id for job in await store.overdue(T0 + 9, limit=9)] == [jobs[n].id for n in (1, 2, 0)]
        assert [job.id for job in await store.overdue(T0 + 99, "b", 9)] == [jobs[n].id for n in (2, 3)]
        assert [job.id for job in await store.overdue(T0 + 99)] == [jobs[1].id]
        assert await store.overdue(T0 + 99, "b", 9, task="another") == []
        assert [job.id for job in await store.overdue(T0 + 99, "b", 9, task=jobs[2].task)] == [
            jobs[n].id for n in (2, 3)
        ]
        assert await store.overdue(T0 - 1) == []

    async def test_the_minutes_of_a_day(self, store: Store) -> None:
        jobs = await taken(store, *(a_job() for _ in range(3)))
        await do(store, *(lifecycle.succeeded(job, T0 + 60, None) for job in jobs[:2]), retry(jobs[2], T0 + 60))
        start = T0 // 60 * 60
        found = {(minute.at, minute.queue, minute.move): minute.number for minute in await store.minutes(0, 1e10)}
        assert found == {
            (start, "feedback", "enqueued"): 3, (start + 60, "feedback", "succeeded"): 2,
            (start + 60, "feedback", "retried"): 1,
        }  # fmt: skip
        assert [minute.move for minute in await store.minutes(start, start + 60)] == ["enqueued"]
        await store.prune(T0 + 86_400 + 60, {}, 9e9)
        assert {minute.at for minute in await store.minutes(0, 1e10)} == {start + 60}

    async def test_tallies_are_asked_for_by_the_hour(self, store: Store) -> None:
        start = (T0 // HOUR + 1) * HOUR
        for number in range(3):
            (job,) = await taken(store, a_job())
            await do(store, success(job, start + number * HOUR))
        for since, until, hours in (
            (start, start + 3 * HOUR, [0, 1, 2]),
            (start + HOUR, start + 2 * HOUR, [1]),
            (start + 1.5 * HOUR, start + 1.6 * HOUR, [1]),
            (start + HOUR, start + 2 * HOUR + 1, [1, 2]),
            (start + 3 * HOUR, start + 9 * HOUR, []),
        ):
            found = [int((tally.hour - start) // HOUR) for tally in await moved(store, since, until)]
            assert found == hours, (since, until)

    @pytest.mark.parametrize("beside", [0, 3])
    async def test_what_was_not_written_is_not_added(self, store: Store, beside: int) -> None:
        """Alone, or among others that are written."""
        job, *others = await taken(store, *(a_job() for _ in range(1 + beside)))
        await do(store, burial(job))
        stale = teach(burial(job, T0 + 5), "same", worked=False)
        outcomes = await store.apply([Commit((move,)) for move in (stale, *(burial(other) for other in others))])
        assert [type(outcome) for outcome in outcomes] == [Stale, *[Applied] * beside]
        assert await tallied(store, "move") == {("enqueued",): 1 + beside, ("buried",): 1 + beside}
        assert [(group.buried, group.last_at) for group in await store.groups()] == [(1 + beside, T0 + 2)]
        assert await store.lessons("trouble") == []

    async def test_a_commit_whose_document_is_stale_adds_nothing(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        move = teach(burial(job), "same", worked=False)
        (outcome,) = await store.apply([Commit((move,), (Put("step", "x", b"1", expect=7),))])
        assert isinstance(outcome, Stale)
        assert (await moved(store), await store.groups(), await store.lessons("trouble")) == ([], [], [])

    async def test_an_imported_dead_letter_is_counted(self, store: Store) -> None:
        dead = [a_dead_job(fingerprint="abc"), a_dead_job(fingerprint="abc"), a_dead_job()]
        await accept(store, *dead)
        await store.insert(dead)
        assert await tallied(store, "move", "error_class", "detail") == {("imported", "ValueError", "unknown"): 3}
        (group,) = await store.groups()
        assert (group.fingerprint, group.buried, group.error_class) == ("abc", 2, "ValueError")
        assert group.sample in ids(dead[:2])

    async def test_a_group_knows_its_first_and_last_burial_and_its_latest_job(self, store: Store) -> None:
        jobs = await taken(store, *(a_job(agent="ann") for _ in range(3)))
        for job, at in zip(jobs, (T0 + 10, T0 + 20, T0 + 30), strict=True):
            await do(store, burial(job, at))
        fingerprint = (await one(store, jobs[0])).fingerprint
        error = "ConnectionError: connection reset"
        assert await store.groups() == [
            Group(
                str(fingerprint), T0 + 10, T0 + 30, 3, "feedback", "post", "ann", "ConnectionError", "network", error,
                jobs[2].id,
            )
        ]  # fmt: skip

    @pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
    @pytest.mark.parametrize("order", [(10, 20, 30), (30, 10, 20), (20, 30, 10)], ids=str)
    async def test_burials_may_arrive_in_any_order(self, store: Store, order: tuple[int, ...], together: bool) -> None:
        jobs = await taken(store, *(a_job() for _ in order))
        moves = [burial(job, T0 + at) for job, at in zip(jobs, order, strict=True)]
        for group in [moves] if together else [[move] for move in moves]:
            await do(store, *group)
        (found,) = await store.groups()
        assert (found.first_at, found.last_at, found.buried) == (T0 + 10, T0 + 30, 3)
        assert found.sample == jobs[order.index(30)].id

    async def test_a_job_buried_twice_is_two_burials(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        (dead,) = await do(store, burial(job))
        (waiting,) = await do(store, redrive(dead))
        assert (await the_group(store, dead.fingerprint)).buried == 1
        (again,) = await take(store, now=T0 + 9)
        await do(store, burial(again, T0 + 10))
        assert (await the_group(store, dead.fingerprint)).buried == 2
        assert waiting.fingerprint is None

    async def test_a_retry_and_a_burial_without_a_fingerprint_make_no_group(self, store: Store) -> None:
        first, second = await taken(store, a_job(), a_job())
        await do(store, retry(first), burial(second, fingerprint=None))
        assert await store.groups() == []

    async def test_groups_since_an_instant_latest_first_or_by_name(self, store: Store) -> None:
        first, second = await taken(store, a_job(), a_job())
        (old,) = await do(store, burial(first, T0 + 10))
        (new,) = await do(store, burial(second, T0 + 20, failure=ANOTHER_FAILURE))
        assert old.fingerprint != new.fingerprint
        assert [group.fingerprint for group in await store.groups()] == [new.fingerprint, old.fingerprint]
        assert [group.fingerprint for group in await store.groups(T0 + 20)] == [new.fingerprint]
        assert await store.groups(T0 + 20.5) == []
        named = await store.groups(fingerprints=[str(old.fingerprint), "nothing"])
        assert [group.fingerprint for group in named] == [old.fingerprint]
        assert await store.groups(fingerprints=[]) == []

    async def test_a_group_outlives_its_jobs_and_forgets_what_was_erased(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        (dead,) = await do(store, burial(job))
        await do(store, lifecycle.purged(dead, T0 + 3, who="ann", why=None))
        await store.erase([dead.id])
        group = await the_group(store, dead.fingerprint)
        assert (group.buried, group.error, group.error_class) == (1, None, "ConnectionError")

    async def test_every_process_adds_to_the_same_sums(self, openers: Openers) -> None:
        stores = [await openers.open() for _ in range(3)]
        for store in stores:
            jobs = await taken(store, *(a_job() for _ in range(2)))
            await do(store, *(teach(burial(job), "same", worked=False) for job in jobs))
        for store in stores:
            await store.get([])  # views may be behind what others committed
            assert await tallied(store, "move") == {("enqueued",): 6, ("buried",): 6}
            assert [group.buried for group in await store.groups()] == [6]
            assert await store.lessons("trouble") == [Lesson("trouble", "same", 0, 6)]

    @pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
    async def test_lessons_by_trouble_and_strategy(self, store: Store, together: bool) -> None:
        jobs = await taken(store, *(a_job() for _ in range(6)))
        moves = [
            teach(success(jobs[0]), "compress_context", worked=True),
            teach(lifecycle.succeeded(jobs[1], T0 + 2, None), "compress_context", worked=True),
            teach(lifecycle.succeeded(jobs[2], T0 + 2, None), "compress_context", worked=True),
            teach(retry(jobs[3]), "compress_context", worked=False),
            teach(burial(jobs[4]), "set_model", worked=False),
            teach(success(jobs[5]), "same", worked=True, trouble="other"),
        ]
        for group in [moves] if together else [[move] for move in moves]:
            await do(store, *group)
        assert await store.lessons("trouble") == [
            Lesson("trouble", "compress_context", 3, 1),
            Lesson("trouble", "set_model", 0, 1),
        ]
        assert await store.lessons("other") == [Lesson("other", "same", 1, 0)]
        assert await store.lessons("nothing") == []

    async def test_an_empty_store_has_nothing_to_tell(self, store: Store) -> None:
        assert (await store.tallies(0, 1e10), await store.groups(), await store.lessons("x")) == ([], [], [])


# ---- events, scan


class Feed:
    async def test_every_move_in_its_order(self, store: Store) -> None:
        (running,) = await taken(store, job := a_job("mesh_keys", "enrol"))
        (waiting,) = await do(store, retry(running))
        (running,) = await take(store, now=T0 + 3)
        (dead,) = await do(store, burial(running, T0 + 4))
        (waiting,) = await do(store, redrive(dead, T0 + 5))
        await do(store, lifecycle.cancelled(waiting, T0 + 6, who="ann", why="not needed"))
        events = await all_events(store)
        moves = [event for event in events if event.move != "claimed"]
        assert told(moves) == [(job.id, move) for move in ("enqueued", "retried", "buried", "redriven", "cancelled")]
        assert [event.state for event in moves] == ["waiting", "waiting", "dead", "waiting", "discarded"]
        assert [event.at for event in moves] == [T0, T0 + 2, T0 + 4, T0 + 5, T0 + 6]
        assert {(event.queue, event.task) for event in moves} == {("mesh_keys", "enrol")}
        assert [(event.run, event.attempts) for event in moves] == [(0, 0), (1, 1), (2, 2), (2, 2), (2, 2)]
        assert [(event.who, event.why) for event in moves[3:]] == [("ann", "fixed"), ("ann", "not needed")]

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 1000])
    async def test_nothing_is_left_out_at_any_pace(self, store: Store, limit: int) -> None:
        await a_mixed_population(store)
        whole = Counter(told(await all_events(store)))
        assert sum(whole.values()) >= 8 + 7
        assert set(told(await all_events(store, limit=limit))) == set(whole)

    async def test_every_cursor_continues_where_it_was_given(self, store: Store) -> None:
        await a_mixed_population(store)
        events = await all_events(store)
        for index, event in enumerate(events):
            assert told(await all_events(store, event.cursor)) == told(events[index + 1 :])

    async def test_none_is_the_end(self, store: Store) -> None:
        await a_mixed_population(store)
        (now,) = await store.events(None)
        assert await store.events(now.cursor) == []
        await accept(store, job := a_job())
        assert told(await store.events(now.cursor)) == [(job.id, "enqueued")]

    async def test_a_reader_that_keeps_up_sees_each_jobs_moves_in_order(self, openers: Openers) -> None:
        store, reader = await openers.open(), await openers.open()
        seen: list[tuple[str, str]] = []
        cursor = (await reader.events(None))[0].cursor
        expected: dict[str, list[str]] = {}
        for _ in range(10):
            jobs = await taken(store, *(a_job() for _ in range(3)))
            await do(store, success(jobs[0]), burial(jobs[1]), retry(jobs[2], run_at=T0 + 99))
            for job, move in zip(jobs, ("succeeded", "buried", "retried"), strict=True):
                expected[job.id] = ["enqueued", move]
            await reader.get([])  # the feed may be behind what others committed
            events = await reader.events(cursor, limit=4)
            seen, cursor = seen + told(events), events[-1].cursor
        seen += told(await all_events(reader, cursor))
        for id, moves in expected.items():
            found = [move for job_id, move in seen if job_id == id and move != "claimed"]
            assert list(dict.fromkeys(found)) == moves

    async def test_an_imported_job_was_not_enqueued(self, store: Store) -> None:
        await accept(store, a_dead_job())
        assert [(event.move, event.state) for event in await all_events(store)] == [("imported", State.dead)]

    async def test_a_job_that_begins_held_says_so(self, store: Store) -> None:
        await accept(store, a_job(state=State.held, because="blocked", held_at=T0))
        assert [(event.move, event.state) for event in await all_events(store)] == [("enqueued", State.held)]

    async def test_a_stale_commit_is_no_event(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        await do(store, success(job))
        before = await all_events(store)
        await store.apply([Commit((success(job),)), Commit((retry(job),))])
        assert await all_events(store) == before

    async def test_a_job_accepted_after_others_were_forgotten_is_told(self, store: Store) -> None:
        (running,) = await taken(store, a_job())
        await do(store, lifecycle.cancelled(running, T0 + 2, who="ann", why=None))
        await accept(store, *(a_job() for _ in range(3)))
        for job in await take(store):
            await do(store, lifecycle.cancelled(job, T0 + 2, who="ann", why=None))
        (now,) = await store.events(None)
        assert (await store.prune(T0 + 100 * DAY, {}, DAY, keys=DAY)).keys >= 3
        await accept(store, job := a_job())
        assert told(await all_events(store, now.cursor)) == [(job.id, "enqueued")]
        assert [move for id, move in told(await all_events(store)) if id == job.id] == ["enqueued"]

    async def test_a_move_made_after_others_were_forgotten_is_told(self, store: Store) -> None:
        (first,) = await taken(store, a_job())
        await do(store, success(first))
        await accept(store, waiting := a_job())
        (now,) = await store.events(None)
        assert (await store.prune(T0 + 100 * DAY, {}, DAY, keys=DAY)).keys == 1
        (running,) = await take(store)
        await do(store, success(running, at=T0 + 100 * DAY))
        assert told(await all_events(store, now.cursor)) == [(waiting.id, "succeeded")]

    async def test_a_cursor_that_nobody_gave_is_refused(self, store: Store) -> None:
        for cursor in ("x", "1.x", ".", "1.99999999999999999999", "-1.0"):
            with pytest.raises(InvalidInput, match="cursor"):
                await store.events(cursor)

    async def test_scan_gives_every_record_once(self, store: Store) -> None:
        made = await a_mixed_population(store)
        await accept(store, *(a_job() for _ in range(1200)))
        found = [job async for job in store.scan()]
        assert len(found) == len({job.id for job in found}) == 1208
        by_id = {job.id: job for job in found}
        assert [by_id[job.id] for job in made.values()] == list(made.values())


# ---- prune, erase, repair, backup


class Keeping:
    async def test_prune_drops_the_contents_of_ended_jobs(self, store: Store) -> None:
        done, cancelled = await taken(store, keyed("a"), keyed("b"))
        await store.apply([Commit(puts=(Put("step", f"{done.id}/draft", b"x"),))])
        await do(store, success(done), lifecycle.cancelled(cancelled, T0 + 2, who=None, why=None))
        pruned = await store.prune(T0 + 15 * DAY, {}, 14 * DAY)
        assert pruned.payloads == 2
        for job in await store.get([done.id, cancelled.id]):
            assert (job.payload, job.result_json, job.key) == (None, None, "a" if job.id == done.id else "b")
        assert await store.docs("step") == []
        assert all(answer.duplicate for answer in await store.insert([keyed("a"), keyed("b")]))

    async def test_prune_waits_for_the_retention(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        (done,) = await do(store, success(job))
        assert (await store.prune(T0 + 14 * DAY, {}, 14 * DAY)).payloads == 0
        assert await one(store, job) == done

    async def test_each_queue_has_its_own_retention(self, store: Store) -> None:
        jobs = await taken(store, a_job("short"), a_job("long"), a_job("other"))
        await do(store, *(success(job) for job in jobs))
        await store.prune(T0 + 5 * DAY, {"short": DAY, "long": 30 * DAY}, 3 * DAY)
        assert [job.payload is None for job in await store.get(ids(jobs))] == [True, False, True]

    async def test_a_long_retention_does_not_hide_a_short_one(self, store: Store) -> None:
        patient = await taken(store, *(a_job("long") for _ in range(2_100)))
        await store.apply([Commit((success(job),)) for job in patient])
        (job,) = await taken(store, a_job("short"))
        await do(store, success(job))
        for _ in range(3):
            await store.prune(T0 + 5 * DAY, {"long": 30 * DAY}, DAY)
        assert (await one(store, job)).payload is None

    @pytest.mark.behaviour("000-42")
    async def test_dead_letters_and_live_jobs_are_never_pruned(self, store: Store) -> None:
        made = await a_mixed_population(store)
        kept = [made[name] for name in ("waiting", "running", "held", "dead", "retried")]
        await store.prune(T0 + 3650 * DAY, {}, 0.0, keys=0.0)
        assert await store.get(ids(kept)) == kept

    @pytest.mark.parametrize("who", [None, "ann"])
    async def test_prune_comes_to_an_end(self, store: Store, who: str | None) -> None:
        jobs = await taken(store, *(a_job() for _ in range(3)))
        await do(store, *(lifecycle.cancelled(job, T0 + 2, who=who, why=None) for job in jobs))
        (dead,) = await do(store, burial((await taken(store, a_job()))[0]))
        await do(store, lifecycle.purged(dead, T0 + 3, who="ann", why=None))
        assert (await store.prune(T0 + 15 * DAY, {}, DAY)).payloads >= 3
        assert (await store.prune(T0 + 15 * DAY, {}, DAY)).payloads == 0

    async def test_who_did_it_is_remembered_after_pruning(self, store: Store) -> None:
        (job,) = await taken(store, a_job())
        await do(store, lifecycle.cancelled(job, T0 + 2, who="ann", why="wrong address"))
        await store.prune(T0 + 15 * DAY, {}, DAY)
        (event,) = (event for event in await all_events(store) if event.move == "cancelled")
        assert (event.who, event.why) == ("ann", "wrong address")

    async def test_keys_are_forgotten_only_when_asked_and_are_counted(self, store: Store) -> None:
        (job,) = await taken(store, keyed("k"))
        await do(store, success(job))
        await accept(store, a_job())  # a store may keep its newest job, to remember its number
        await store.prune(T0 + 100 * DAY, {}, DAY)
        assert (await store.insert([keyed("k")]))[0].duplicate
        assert (await store.prune(T0 + 100 * DAY, {}, DAY, keys=200 * DAY)).keys == 0
        assert (await store.prune(T0 + 100 * DAY, {}, DAY, keys=50 * DAY)).keys == 1
        assert await store.get([job.id]) == []
        assert await store.count(Filter(), by=("state",)) == {("forgotten",): 1, ("waiting",): 1}
        assert not (await store.insert([keyed("k")]))[0].duplicate

    async def test_erase_forgets_the_contents_and_keeps_the_record(self, store: Store) -> None:
        failure = msgspec.structs.replace(A_FAILURE, message="no such user: private words")
        (running,) = await taken(store, keyed("k", payload='{"name":"private words"}', session_id="s1"))
        puts = tuple(Put(kind, f"{running.id}/x", b"private words") for kind in ("step", "effect", "blob", "result"))
        await store.apply([Commit(puts=puts)])
        await do(store, burial(running, failure=failure, why=f"the last: {failure.summary}"))
        assert await store.erase([running.id]) == 1
        erased = await one(store, running)
        assert (erased.state, erased.key, erased.payload) == (State.dead, "k", None)
        assert "private" not in msgspec.json.encode(erased).decode()
        assert all("private" not in msgspec.json.encode(event).decode() for event in await all_events(store))
        assert [await store.docs(kind) for kind in ("step", "effect", "blob", "result")] == [[]] * 4
        assert (await store.insert([keyed("k")]))[0].duplicate

    async def test_erase_takes_along_the_documents_whose_kind_says_so(self, store: Store) -> None:
        (job, other) = await taken(store, a_job(), a_job())
        kinds = {kind.name: kind for kind in KINDS if kind.of_job is not None}
        puts = [
            Put(name, f"s/{each.id}", msgspec.json.encode({"job_id": each.id}))
            if kind.of_job is OfJob.field
            else Put(name, f"{each.id}/x", b"1")
            for name, kind in kinds.items()
            for each in (job, other)
        ]
        damaged = [Put(name, "damaged", b"{") for name in kinds]
        await store.apply([Commit(puts=tuple(puts)), Commit(puts=tuple(damaged))])
        await do(store, burial(job))
        assert await store.erase([job.id]) == 1
        left = {name: [document.key for document in await store.docs(name)] for name in kinds}
        assert all(other.id in str(keys) and job.id not in str(keys) and len(keys) == 2 for keys in left.values()), left

    async def test_erase_keeps_who_moved_a_job_and_forgets_why(self, store: Store) -> None:
        (dead,) = await do(store, burial((await taken(store, a_job()))[0]))
        (waiting,) = await do(
            store, lifecycle.redriven(dead, T0 + 1, who="ann", why="private words", max_attempts=5, run_at=T0 + 1)
        )
        await do(store, lifecycle.cancelled(waiting, T0 + 2, who="bob", why="private words"))
        assert await store.erase([dead.id]) == 1
        told = [(event.move, event.who, event.why) for event in await store.story(dead.id)]
        assert told[-2:] == [("redriven", "ann", None), ("cancelled", "bob", None)]

    async def test_nothing_is_left_of_what_was_purged_but_its_record(self, store: Store) -> None:
        failure = msgspec.structs.replace(A_FAILURE, message="private words")
        (running,) = await taken(store, keyed("k"))
        await store.apply([Commit(puts=(Put("blob", f"{running.id}/0", b"private words"),))])
        (dead,) = await do(store, burial(running, failure=failure, why=f"the last: {failure.summary}"))
        await do(store, lifecycle.purged(dead, T0 + 3, who="ann", why=None))
        await accept(store, a_job())
        await store.prune(T0 + 100 * DAY, {}, DAY)
        purged = await one(store, running)
        assert (purged.state, purged.key) == (State.purged, "k")
        assert "private" not in msgspec.json.encode(purged).decode()
        assert await store.docs("blob") == []

    async def test_erase_leaves_live_jobs_and_others_alone(self, store: Store) -> None:
        made = await a_mixed_population(store)
        live = [made[name] for name in ("waiting", "running", "held", "retried")]
        assert await store.erase([*ids(live), "f" * 32]) == 0
        assert await store.erase([made["done"].id]) == 1
        assert await store.get(ids([*live, made["dead"]])) == [*live, made["dead"]]

    async def test_repair_has_nothing_to_say_when_all_is_well(self, store: Store) -> None:
        await a_mixed_population(store)
        before = await store.count(Filter(), by=("queue", "task", "agent", "state"))
        assert await store.repair(T0 + 10) == []
        assert await store.count(Filter(), by=("queue", "task", "agent", "state")) == before

    async def test_repair_brings_back_what_a_wrong_clock_put_into_the_future(self, store: Store) -> None:
        ahead = T0 + 10 * 365 * DAY
        due = a_job(created_at=ahead, updated_at=ahead, run_at=ahead)
        later = a_job(created_at=ahead, updated_at=ahead, run_at=ahead + 60)
        meant = a_job(run_at=T0 + 7 * DAY)
        await accept(store, due, later, meant)
        assert len(await store.repair(T0)) == 1
        assert [job.run_at for job in await store.get(ids([due, later, meant]))] == [T0, T0 + 60, T0 + 7 * DAY]
        assert ids(await take(store)) == [due.id]

    async def test_a_backup_overwrites_nothing(self, store: Store, folder: Path) -> None:
        (folder / "precious").write_bytes(b"do not touch")
        with pytest.raises(InvalidInput, match="target"):
            await store.backup(str(folder / "precious"))
        with pytest.raises(InvalidInput, match="target"):
            await store.backup(str(folder / "nowhere" / "copy.db"))
        assert (folder / "precious").read_bytes() == b"do not touch"


# ---- wait


class Waking:
    @pytest.mark.behaviour("C13")
    async def test_work_accepted_here_wakes_at_once(self, store: Store) -> None:
        claim = await store.claim(Wanted(1), "w1", T0)
        waiting = asyncio.ensure_future(store.wait(claim.mark, PATIENCE))
        await asyncio.sleep(0)
        await accept(store, a_job())
        assert await waiting is True

    async def test_what_came_since_the_claim_is_not_slept_over(self, store: Store) -> None:
        claim = await store.claim(Wanted(1), "w1", T0)
        await accept(store, a_job())
        assert await store.wait(claim.mark, PATIENCE) is True

    async def test_nothing_new_is_false(self, store: Store) -> None:
        await accept(store, a_job(run_at=T0 + 100))
        claim = await store.claim(Wanted(1), "w1", T0)
        assert await store.wait(claim.mark, 0.0) is False
        assert await store.wait(claim.mark, 0.01) is False

    async def test_a_job_put_back_wakes(self, store: Store) -> None:
        (running,) = await taken(store, a_job())
        claim = await store.claim(Wanted(1), "w1", T0)
        await do(store, retry(running))
        assert await store.wait(claim.mark, PATIENCE) is True

    async def test_a_changed_setting_wakes(self, store: Store) -> None:
        claim = await store.claim(Wanted(1), "w1", T0)
        await store.apply([Commit(puts=(Put("queue", "a", b"resumed"),))])
        assert await store.wait(claim.mark, PATIENCE) is True

    async def test_everybody_who_waits_is_woken(self, store: Store) -> None:
        claim = await store.claim(Wanted(1), "w1", T0)
        waiting = [asyncio.ensure_future(store.wait(claim.mark, PATIENCE)) for _ in range(5)]
        await asyncio.sleep(0)
        await accept(store, a_job())
        assert await asyncio.gather(*waiting) == [True] * 5

    async def test_a_cancelled_wait_leaves_nothing_behind(self, store: Store) -> None:
        claim = await store.claim(Wanted(1), "w1", T0)
        waiting = asyncio.ensure_future(store.wait(claim.mark, PATIENCE))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await accept(store, job := a_job())
        assert ids(await take(store)) == [job.id]


class WakingOthers:
    """For places that other processes can open: a log in memory belongs to one process."""

    async def test_another_processs_commit_wakes(self, openers: Openers) -> None:
        store = await openers.open()
        async with outsider(openers.kind, openers.folder) as other:
            claim = await store.claim(Wanted(1), "w1", T0)
            waiting = asyncio.ensure_future(store.wait(claim.mark, PATIENCE))
            await asyncio.sleep(0)
            (id,) = await other.ask(f"insert {a_job().id}")
            assert await waiting is True
            assert ids(await take(store)) == [id]
            await other.leave()

    async def test_another_processs_commit_between_claim_and_wait_is_not_slept_over(self, openers: Openers) -> None:
        store = await openers.open()
        async with outsider(openers.kind, openers.folder) as other:
            claim = await store.claim(Wanted(1), "w1", T0)
            await other.ask(f"insert {a_job().id}")
            assert await store.wait(claim.mark, 3.0) is True
            await other.leave()


class BackingUp:
    """A backup is an ordinary store, made by the process that has the file or fetched from it."""

    async def test_a_backup_opens_as_a_store_with_the_same_content(self, openers: Openers, folder: Path) -> None:
        store = await openers.open()
        made = await a_mixed_population(store)
        await store.apply([Commit(puts=(Put("queue", "a", b"paused"),))])
        size = await store.backup(str(folder / "copy.db"))
        assert size == (folder / "copy.db").stat().st_size > 0
        copy = await openers.open_backup(folder / "copy.db")
        assert [job async for job in copy.scan()] == [job async for job in store.scan()]
        assert told(await all_events(copy)) == told(await all_events(store))
        assert await copy.docs("queue") == await store.docs("queue")
        assert await copy.count(Filter(), by=("state",)) == await store.count(Filter(), by=("state",))
        assert ids(await take(copy)) == [made["waiting"].id]
        assert (await one(store, made["waiting"])).state is State.waiting

    async def test_a_backup_ends_while_work_goes_on(self, openers: Openers, folder: Path) -> None:
        store, other = await openers.open(), await openers.open()
        for _ in range(30):
            await accept(store, *(a_job(payload='{"pad":"%s"}' % ("x" * 8_000)) for _ in range(100)))
        backup = asyncio.ensure_future(store.backup(str(folder / "copy.db")))
        arrived = 0
        while not backup.done() and arrived < 20_000:
            await accept(other, a_job("meanwhile"))
            arrived += 1
        assert backup.done(), "the backup begins again with every commit"
        copy = await openers.open_backup(folder / "copy.db")
        counts = await copy.count(Filter(), by=("queue",))
        assert counts[("feedback",)] == 3_000
        assert counts.get(("meanwhile",), 0) <= arrived
        assert counts == await recount(copy, "queue")


class OwningTheFile:
    """For stores that have the file themselves: a client of a hub has none."""

    async def test_others_see_whether_a_process_has_the_store_open(self, openers: Openers) -> None:
        store, other = await openers.open(), await openers.open()
        name = await store.process()
        assert await store.process() == name != await other.process()
        assert await other.ended([name, await other.process()]) == {name: False, await other.process(): False}
        await store.close()
        assert await other.ended([name]) == {name: True}
        assert await other.ended(["another-host-1-abc"]) == {}, "nothing is known of other hosts"
