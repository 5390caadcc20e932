"""Which workers live: one rule for whoever asks."""

import msgspec
import pytest

from redrive.core.policy import Policy
from redrive.core.store import Commit, Put
from redrive.engine.queue_pauses import QueuePause, put_pause
from redrive.engine.registry import Handler, Registry
from redrive.engine.worker import Worker
from redrive.engine.worker_registry import (
    ANNOUNCE_SECONDS,
    GONE_AFTER,
    Announcement,
    BlockedLoop,
    count_unattended,
    drop_announcement,
    forget_gone,
    list_blocked_loops,
    list_living,
    put_announcement,
)
from redrive.stores.sqlite import SqliteStore
from tests.stores.jobs import a_job
from tests.support import FakeClock, eventually


async def work() -> None: ...


async def say(store: SqliteStore, worker: str, at: float) -> Announcement:
    said = Announcement(frozenset({"work"}), at, concurrency=4, running=1)
    await store.apply([Commit(puts=(put_announcement(worker, said),))])
    return said


@pytest.mark.parametrize(("seconds", "lives"), [(0.0, True), (GONE_AFTER, True), (GONE_AFTER + 0.1, False)])
async def test_a_worker_lives_until_it_was_silent_for_too_long(
    store: SqliteStore, clock: FakeClock, seconds: float, lives: bool
) -> None:
    said = await say(store, "w1", clock.now())
    clock.advance(seconds)
    assert await list_living(store, clock.now()) == [said] * lives


def test_some_announcements_may_be_late_before_a_worker_counts_as_gone() -> None:
    assert GONE_AFTER >= 3 * ANNOUNCE_SECONDS


async def test_whoever_is_gone_is_taken_down_and_whoever_lives_is_not(store: SqliteStore, clock: FakeClock) -> None:
    await say(store, "gone", clock.now())
    clock.advance(GONE_AFTER + 1)
    await say(store, "here", clock.now())
    await forget_gone(store, clock.now())
    assert [document.key for document in await store.docs("worker")] == ["here"]


async def test_one_that_spoke_meanwhile_is_not_taken_down(store: SqliteStore, clock: FakeClock) -> None:
    await say(store, "w1", clock.now())
    (seen,) = await store.docs("worker")
    said = await say(store, "w1", clock.now() + 1)
    await store.apply([Commit(puts=(drop_announcement("w1", seen.version),))])
    assert await list_living(store, clock.now()) == [said]


async def test_what_another_version_says_more_or_less_of_itself_is_no_trouble(
    store: SqliteStore, clock: FakeClock
) -> None:
    other = msgspec.json.encode({"tasks": ["work"], "at": clock.now(), "mood": "good"})
    await store.apply([Commit(puts=(Put("worker", "w1", other),))])
    assert await list_living(store, clock.now()) == [Announcement(frozenset({"work"}), clock.now())]


async def test_a_worker_says_what_it_knows_and_leaves_with_a_word(store: SqliteStore, clock: FakeClock) -> None:
    registry = Registry()
    registry.add(Handler("work", work, queue="work", policy=Policy(), wants_context=False))
    worker = Worker(store, registry, clock, concurrency=7, heartbeats=False)
    worker.start()

    async def heard() -> bool:
        return bool(await list_living(store, clock.now()))

    await eventually(heard)
    (said,) = await list_living(store, clock.now())
    assert (said.tasks, said.concurrency, said.running) == ({"work"}, 7, 0)
    await worker.stop()
    assert await list_living(store, clock.now()) == []


@pytest.mark.parametrize(("concurrency", "one"), [(1, True), (2, False)])
def test_one_job_keeps_all_others_waiting_where_there_is_one_slot(concurrency: int, one: bool) -> None:
    assert Announcement(frozenset(), 0.0, concurrency).one_at_a_time is one


async def test_what_blocks_a_living_worker_is_read_by_its_id(store: SqliteStore, clock: FakeClock) -> None:
    blocked = BlockedLoop("crawl", "0" * 24 + "deadbeef", clock.now())
    told = Announcement(frozenset(), clock.now(), blocked=blocked)
    await store.apply([Commit(puts=(put_announcement("w1", told),))])
    await say(store, "w2", clock.now())
    assert await list_blocked_loops(store, clock.now()) == [("w1", blocked)]
    assert str(blocked) == "task crawl (job deadbeef)"
    assert await list_blocked_loops(store, clock.now() + GONE_AFTER + 1) == []


# ---- what nobody runs


async def put(
    store: SqliteStore, clock: FakeClock, queue: str, task: str, due_in: float = 0.0, agent: str | None = None
) -> None:
    await store.insert([a_job(queue, task, run_at=clock.now() + due_in, agent=agent)])


async def test_what_no_living_worker_knows_is_run_by_nobody(store: SqliteStore, clock: FakeClock) -> None:
    """A worker that knows other tasks, as a dashboard's knows only the delivery, changes nothing."""
    for task in ("work", "greet", "greet"):
        await put(store, clock, "mail", task)
    await put(store, clock, "mail", "greet", due_in=60.0)
    assert await count_unattended(store, clock.now()) == {("mail", "work"): 1, ("mail", "greet"): 2}
    await say(store, "w1", clock.now())
    assert await count_unattended(store, clock.now()) == {("mail", "greet"): 2}
    clock.advance(60.0)
    assert await count_unattended(store, clock.now()) == {("mail", "greet"): 3}
    assert await count_unattended(store, clock.now(), due_for=60.0) == {("mail", "greet"): 2}
    clock.advance(GONE_AFTER)
    assert (await count_unattended(store, clock.now()))["mail", "work"] == 1


async def test_a_worker_for_some_queues_or_agents_leaves_the_others_to_nobody(
    store: SqliteStore, clock: FakeClock
) -> None:
    for queue, agent in (("mail", None), ("web", None), ("mail", "writer"), ("mail", "reviewer")):
        await put(store, clock, queue, "work", agent=agent)
    registry = Registry()
    registry.add(Handler("work", work, queue="mail", policy=Policy(), wants_context=False))
    limited = Worker(store, registry, clock, queues=["mail"], agents=["writer"])
    await limited._announce()
    assert await count_unattended(store, clock.now()) == {("mail", "work"): 2, ("web", "work"): 1}
    await Worker(store, registry, clock, queues=["web"])._announce()
    assert await count_unattended(store, clock.now()) == {("mail", "work"): 2}
    await Worker(store, registry, clock)._announce()
    assert await count_unattended(store, clock.now()) == {}


async def test_a_script_or_whoever_paused_a_queue_sees_to_its_jobs(store: SqliteStore, clock: FakeClock) -> None:
    await put(store, clock, "cycle:nightly", "step")
    await put(store, clock, "mail", "greet")
    await store.apply([Commit(puts=(put_pause("mail", QueuePause(paused=True)),))])
    assert await count_unattended(store, clock.now()) == {}
