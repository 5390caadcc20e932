"""Dead letters in a person's hands, and what is kept for how long: redrive, discard, restore, purge, erase, backup."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import redrive
from redrive import Blob, Context, IllegalMove, InvalidInput, Redrive
from redrive.core.consent import Grant
from redrive.core.lifecycle import MAX_GRANTS
from redrive.core.store import Commit, Outcome, Put, Unknown
from redrive.errors import CommitUnknown
from tests import elsewhere
from tests.support import FakeClock, opened, soon

DAY = 86400.0


async def _dies() -> None:
    raise ConnectionError("secret place")


async def _dead(rd: Redrive, **options: object) -> str:
    rd.task("dies", max_attempts=1)(_dies)
    job = await rd.enqueue("dies", **options)
    await soon(rd.drain())
    assert (await job.refresh()).state == "dead"
    return job.id


async def test_a_dead_letter_is_found_by_a_part_of_its_id(rd: Redrive) -> None:
    id = await _dead(rd)
    assert (await rd.dead.show(id[-8:])).id == id
    assert [job.id for job in (await rd.dead.list(queue="dies")).jobs] == [id]
    assert (await rd.dead.list(queue="other")).jobs == []
    assert [job.id for job in (await rd.dead.list(error_class="ConnectionError", lane="delayed")).jobs] == [id]
    assert (await rd.dead.list(error_class="ConnectionError", lane="manual")).jobs == []


async def test_listings_go_on_page_by_page(rd: Redrive, clock: FakeClock) -> None:
    @rd.task(max_attempts=1, breaker_after=0)
    async def dies() -> None:
        raise ConnectionError

    await rd.enqueue_many("dies", [{}] * 25)
    await soon(rd.drain())
    for ask in (rd.dead.list, rd.jobs.list):
        seen: list[str] = []
        cursor = None
        for _ in range(10):
            page = await ask(limit=10, cursor=cursor)
            seen += [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                break
        assert len(seen) == len(set(seen)) == 25


@pytest.mark.behaviour("C33")
async def test_redriving_keeps_id_key_and_history_and_grants_attempts(rd: Redrive) -> None:
    runs: list[int] = []

    @rd.task(max_attempts=2, backoff="none")
    async def work(ctx: Context) -> None:
        runs.append(ctx.attempt)
        raise ConnectionError

    job = await work.options(idempotency_key="k").enqueue()
    await soon(rd.drain())
    for grant in range(1, MAX_GRANTS + 1):
        back = await rd.dead.redrive(job.id, who="ann", why="try again")
        assert (back.id, back.key, back.state, back.grants) == (job.id, "k", "waiting", grant)
        await soon(rd.drain())
    assert runs == list(range(1, 9))
    with pytest.raises(IllegalMove, match="3 times"):
        await rd.dead.redrive(job.id)
    assert len((await job.refresh()).history) == 8


async def test_discard_and_restore(rd: Redrive) -> None:
    id = await _dead(rd)
    assert (await rd.dead.discard(id, who="ann", why="not needed")).state == "discarded"
    with pytest.raises(IllegalMove):
        await rd.dead.redrive(id)
    restored = await rd.dead.restore(id, who="bob", why="needed after all")
    assert (restored.state, restored.lane, restored.because) == ("dead", "manual", "restored")
    assert (await rd.dead.redrive(id)).state == "waiting"


@pytest.mark.behaviour("C8")
async def test_purge_removes_the_contents_and_keeps_the_count_and_the_key(rd: Redrive) -> None:
    ids = [await _dead(rd, idempotency_key=f"k{n}") for n in range(3)]
    with pytest.raises(InvalidInput, match="all=True"):
        await rd.dead.purge()
    assert await rd.dead.purge([ids[0]], who="ann", why="a test") == 1
    assert await rd.dead.purge(queue="nothing_here") == 0
    assert await rd.dead.purge(all=True) == 2
    job = await rd.jobs.get(ids[0])
    assert (job.state, job.payload, job.error) == ("purged", None, None)
    stats = await rd.stats()
    assert (stats["totals"]["purged"], stats["accepted"]) == (3, 3)
    assert (await rd.enqueue("dies", idempotency_key="k0")).duplicate


# Retention -----------------------------------------------------------------------------------------------------------


@pytest.mark.behaviour("C8")
async def test_done_jobs_lose_their_contents_after_two_weeks_and_dead_letters_never(
    rd: Redrive, clock: FakeClock
) -> None:
    @rd.task
    async def work(image: Blob) -> str:
        return "x" * 300_000

    done = await work.options(session_id="s").enqueue(Blob(b"data"))
    waiting = await rd.enqueue("unknown", {"a": 1})
    dead = await _dead(rd)
    prune = rd.make_scheduler(rd.make_worker()).prune
    clock.advance(13 * DAY)
    await soon(prune())
    assert (await done.refresh()).payload is not None
    clock.advance(2 * DAY)
    await soon(prune())
    job = await done.refresh()
    assert (job.state, job.payload, job.result) == ("done", None, None)
    assert await rd.store.docs("blob") == [] and await rd.store.docs("result") == []
    assert (await rd.jobs.get(dead)).history and (await rd.jobs.get(dead)).payload is not None
    assert (await waiting.refresh()).payload is not None
    assert (await rd.stats())["accepted"] == 3


async def test_pruning_ends_though_a_person_has_let_something_go(rd: Redrive, clock: FakeClock) -> None:
    id = await _dead(rd)
    await rd.dead.discard(id, who="ann", why="old")
    clock.advance(15 * DAY)
    prune = rd.make_scheduler(rd.make_worker()).prune
    await soon(prune())
    await soon(prune())
    assert (await rd.jobs.get(id)).payload is None


async def test_a_queue_has_its_own_retention(database: Path, clock: FakeClock) -> None:
    queues = {"short": {"retention": DAY}, "long": {"retention": 100 * DAY}}
    async with opened(database, clock=clock, queues=queues) as rd:

        @rd.task
        async def work() -> None: ...

        jobs = {name: await work.options(queue=name).enqueue() for name in ("short", "long", "other")}
        await soon(rd.drain())
        kept: list[list[str]] = []
        for days in (2, 20, 100):
            clock.advance(days * DAY)
            await soon(rd.make_scheduler(rd.make_worker()).prune())
            kept.append([name for name, job in jobs.items() if (await job.refresh()).payload is not None])
    assert kept == [["long", "other"], ["long"], []]


@pytest.mark.behaviour("C5")
async def test_keys_are_forgotten_only_when_asked(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock, key_retention=30 * DAY, retention=DAY) as rd:

        @rd.task
        async def work() -> None: ...

        first = await work.options(idempotency_key="k").enqueue()
        await work.enqueue()
        await soon(rd.drain())
        clock.advance(10 * DAY)
        await soon(rd.make_scheduler(rd.make_worker()).prune())
        assert (await work.options(idempotency_key="k").enqueue()).duplicate
        clock.advance(31 * DAY)
        await soon(rd.make_scheduler(rd.make_worker()).prune())
        again = await work.options(idempotency_key="k").enqueue()
        assert (again.id, again.duplicate) == (first.id, False)
        stats = await rd.stats()
        assert stats["totals"]["forgotten"] >= 1 and stats["accepted"] == 3


# Erasing and copying -------------------------------------------------------------------------------------------------


async def test_erasing_a_session_leaves_nothing_of_it_in_the_files(rd: Redrive, database: Path) -> None:
    canary = "canary-4f1d9a"

    @rd.task(max_attempts=1)
    async def work(ctx: Context, text: str, fail: bool) -> str:
        await ctx.step("echo", lambda: f"step {text}")
        if fail:
            raise ConnectionError(f"could not send {text}")
        return text

    session = work.options(session_id="ann")
    ended = [await session.enqueue(canary, False), await session.enqueue(canary, True)]
    await soon(rd.drain())
    later = await work.options(session_id="ann", delay=60).enqueue(canary, False)
    other = await work.options(session_id="bob").enqueue("bob's own", False)
    assert await rd.jobs.erase(session_id="ann") == 3
    states = [(await job.refresh()).state for job in (*ended, later, other)]
    assert states == ["done", "purged", "discarded", "waiting"]
    assert (await rd.stats())["accepted"] == 4
    await rd.close()
    for path in database.parent.iterdir():
        if path.is_file():
            assert canary.encode() not in path.read_bytes(), path.name


async def test_erasing_one_job(rd: Redrive) -> None:
    job = await rd.enqueue("work", {"name": "ann"})
    assert await rd.jobs.erase(job.id) == 1
    assert ((await job.refresh()).state, (await job.refresh()).payload) == ("discarded", None)
    with pytest.raises(InvalidInput):
        await rd.jobs.erase(job.id, session_id="both")


async def test_erasing_a_session_whose_jobs_end_together(rd: Redrive) -> None:
    """Cancelling a step lets go of those that wait for it: they are erased all the same."""

    @rd.task
    async def step(name: str) -> str:
        return name

    plan = rd.workflow("article")
    plan.add(step, "second", name="second", after=["first"])
    plan.add(step, "first", name="first")
    await plan.start(session_id="ann")
    ids = [job.id for job in (await rd.jobs.list(session_id="ann")).jobs]
    assert await rd.jobs.erase(session_id="ann") == len(ids) == 2
    assert [(job.state, job.payload) for job in await rd.store.get(ids)] == [("discarded", None)] * 2


async def test_a_backup_is_a_store_of_its_own(rd: Redrive, tmp_path: Path) -> None:
    await rd.enqueue_many("work", [{"n": n} for n in range(100)])
    target = tmp_path / "copy.db"
    size = await rd.store.backup(str(target))
    assert size == target.stat().st_size and target.stat().st_mode & 0o777 == 0o600
    await rd.enqueue("work", {"n": 100})
    async with opened(target) as copy:
        assert (await copy.stats())["accepted"] == 100
    connection = apsw.Connection(str(target))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    with pytest.raises(InvalidInput, match="exists"):
        await rd.store.backup(str(target))
    with pytest.raises(InvalidInput, match="does not exist"):
        await rd.store.backup(str(tmp_path / "no" / "copy.db"))


@pytest.mark.parametrize("how", ["erased", "forgotten"])
async def test_what_has_no_contents_any_more_cannot_be_brought_back(rd: Redrive, clock: FakeClock, how: str) -> None:
    """It would run with the defaults of its task."""
    ran: list[str] = []

    @rd.task
    async def clean(path: str = "/") -> None:
        ran.append(path)

    job = await clean.options(delay=1000).enqueue("/tmp/only this")
    await job.cancel()
    if how == "erased":
        assert await rd.jobs.erase(job.id) == 1
    else:
        clock.advance(15 * DAY)
        await soon(rd.make_scheduler(rd.make_worker()).prune())
    for act in (rd.dead.restore, rd.dead.redrive):
        with pytest.raises(IllegalMove, match=r"erased|only a dead"):
            await act(job.id)
    await soon(rd.drain())
    assert (ran, (await job.refresh()).state) == ([], "discarded")


async def test_erased_text_is_not_in_the_public_form(rd: Redrive) -> None:
    from redrive.core.job import public

    job = await rd.enqueue("work", {"a": 1}, idempotency_key="k")
    shown = public(await job.refresh())
    assert (shown["payload"], shown["state"], shown["priority"]) == ({"a": 1}, "waiting", "normal")
    assert "token" not in shown and str(shown["created_at"]).endswith("Z")
    assert isinstance(redrive.__version__, str)


async def test_days_that_an_older_process_did_not_write_are_added_up_anew(rd: Redrive, database: Path) -> None:
    @rd.task(max_attempts=1)
    async def fail(n: int) -> None:
        raise KeyError(str(n)) if n % 2 else ValueError(str(n))

    await rd.enqueue_many("fail", [{"n": number} for number in range(6)])
    await soon(rd.drain())
    await rd.dead.discard((await rd.dead.list()).jobs[0].id)
    store, today = rd.store, rd.clock.now() // 86_400 * 86_400
    span = (today - 86_400, today + 2 * 86_400)

    async def told() -> list[Any]:
        found = [await store.tallies(*span, whole=True), await store.outcomes(*span, whole=True)]
        return [sorted(map(repr, rows)) for rows in (*found, await store.totals(*span))]

    right = await told()
    assert await store.repair(rd.clock.now()) == []
    with closing(elsewhere.connected(database)) as older:
        older.execute("DELETE FROM failure_days")
        older.execute("UPDATE outcome_days SET number = number + 1")
        older.execute("INSERT INTO days SELECT day - 300, route, move, number FROM days")
    assert await told() != right
    assert await store.repair(rd.clock.now()) == ["sums of 2 days were wrong and have been added up anew"]
    assert await told() == right
    assert await store.repair(rd.clock.now()) == []


async def test_sums_of_late_that_an_older_process_did_not_write_are_put_right_by_themselves(
    rd: Redrive, clock: FakeClock, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a deployment: the new version has migrated the file, and the old one still works on it."""

    @rd.task(max_attempts=1)
    async def fail(n: int) -> None:
        raise ValueError(str(n))

    for _ in range(2):
        await rd.enqueue_many("fail", [{"n": number} for number in range(3)])
        await soon(rd.drain())
        clock.advance(86_400)
    store, duties = rd.store, rd.make_scheduler(rd.make_worker())
    span = (clock.now() // 86_400 * 86_400 - 3 * 86_400, clock.now() // 86_400 * 86_400 + 86_400)

    async def told() -> list[list[str]]:
        found = [await store.tallies(*span, whole=True), await store.outcomes(*span, whole=True)]
        return [sorted(map(repr, rows)) for rows in found]

    right = await told()
    await duties.prune()
    assert not caplog.text.count("added up anew")
    with closing(elsewhere.connected(database)) as older:
        older.execute("DELETE FROM failure_days")
        older.execute("DELETE FROM outcome_days")
        older.execute("INSERT INTO days SELECT day - 300, route, move, number FROM days")
    assert await told() != right
    await duties.prune()
    assert await told() == right
    assert "sums of 2 days were wrong and have been added up anew" in caplog.text
    assert await store.repair(clock.now()) == ["sums of 2 days were wrong and have been added up anew"], "long ago"


# ---- what nobody knows


SAID: dict[str, Callable[[Redrive, Grant], Awaitable[Any]]] = {
    "queue mail was paused": lambda rd, grant: rd.queues.pause("mail", new=True),
    "queue mail was resumed": lambda rd, grant: rd.queues.resume("mail"),
    "session s was granted send": lambda rd, grant: rd.sessions.grant("s", "send", by="ann"),
    "was revoked": lambda rd, grant: rd.sessions.revoke("s", grant.id),
    "schedule nightly#0 was forgotten": lambda rd, grant: rd.forget_schedule("nightly#0"),
}


@pytest.mark.parametrize("said", SAID)
async def test_a_write_that_nobody_knows_of_is_not_told_as_done(
    rd: Redrive, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = await rd.sessions.grant("s", "read", by="ann")
    await rd.store.apply([Commit(puts=(Put("schedule", "nightly#0", b"{}"),))])

    async def unknown(group: Sequence[Commit]) -> list[Outcome]:
        return [Unknown("the disk did not say")] * len(group)

    monkeypatch.setattr(rd.store, "apply", unknown)
    with pytest.raises(CommitUnknown, match=f"the store did not confirm that .*{said}"):
        await SAID[said](rd, grant)
