"""Every public coroutine, cancelled at every point where it waits: the app goes on, and the books balance.

A cancelled await is an unknown outcome, not a cancelled write: the write may have happened, but never half of it.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import Item, JobHandle, Redrive
from redrive.stores.sqlite import SqliteStore
from redrive.stores.sqlite.writer import Writer
from tests.chaos.app import make_app
from tests.chaos.ledger import Ledger, audit
from tests.chaos.processes import Zygote, until

pytestmark = pytest.mark.chaos

MOST = 60
"""Points at which one coroutine is cancelled; those that wait in a loop have no end of them."""


# ---- cancelling exactly there ----


class Walk:
    """One run of a coroutine, cancelled when it waits for the nth time."""

    def __init__(self, nth: int) -> None:
        self.nth = nth
        self.waits = 0

    @types.coroutine
    def along(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = lambda: work.send(None)  # noqa: E731
        while True:
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value
            if self.waits == self.nth:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()  # asyncio cancels what it waits for as soon as it is handed over below
            self.waits += 1
            try:
                value = yield waits_for
            except BaseException as error:
                step = lambda error=error: work.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                step = lambda value=value: work.send(value)  # type: ignore[misc]  # noqa: E731


async def cancelled_at(nth: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Run it and cancel it at its nth wait; False if it ended before."""
    walk = Walk(nth)

    async def run() -> Any:
        return await walk.along(work)

    task = asyncio.create_task(run())
    try:
        await asyncio.wait_for(asyncio.wait({task}), 60)
        if not task.cancelled() and (error := task.exception()) is not None and walk.waits <= nth:
            raise error
    finally:
        task.cancel()
    return walk.waits > nth


# ---- the app under test ----


class Bench:
    """An open app with jobs in every state, and what was offered to it."""

    def __init__(self, rd: Redrive, ledger: Ledger, folder: Path) -> None:
        self.rd = rd
        self.ledger = ledger
        self.folder = folder
        self.dead: list[str] = []
        self.numbers = iter(range(1_000_000))

    async def stock_up(self, count: int = 150) -> None:
        many = await self.rd.enqueue_many("hopeless", [{"n": n} for n in range(count)])
        self.dead = [id for id in many.ids if id]
        await self.rd.drain()

    def payload(self) -> dict[str, int]:
        return {"n": next(self.numbers)}

    async def waiting(self, **options: Any) -> JobHandle[Any]:
        """A job that will not run by itself."""
        return await self.rd.enqueue("work", self.payload(), delay=3_600, **options)

    async def done(self) -> JobHandle[Any]:
        handle = await self.rd.enqueue("work", self.payload())
        await self.rd.drain()
        return handle

    async def discarded(self) -> str:
        id = self.dead.pop()
        await self.rd.dead.discard(id)
        return id

    async def works(self) -> None:
        """A job handed in now is done, and the numbers add up."""
        handle = await self.rd.enqueue("work", self.payload())
        await asyncio.wait_for(self.rd.drain(), 60)
        assert (await handle.refresh()).state == "done"


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    rd, ledger = make_app(folder)
    async with rd:
        yield Bench(rd, ledger, folder)


Operation = Callable[[Bench], Awaitable[Coroutine[Any, Any, Any]]]
"""Prepares what it needs, and returns the coroutine to be cancelled."""


async def _events(handle: JobHandle[Any]) -> None:
    async for _ in handle.events():
        pass


async def _worker(b: Bench) -> None:
    async with b.rd.worker(concurrency=4) as worker:
        await worker.idle()


async def _closed_and_open(rd: Redrive) -> None:
    await rd.close()
    await rd.open()


def _now(make: Callable[[Bench], Coroutine[Any, Any, Any]]) -> Operation:
    async def operation(b: Bench) -> Coroutine[Any, Any, Any]:
        return make(b)

    return operation


async def _handle_refresh(b: Bench) -> Coroutine[Any, Any, Any]:
    return (await b.waiting()).refresh()


async def _handle_cancel(b: Bench) -> Coroutine[Any, Any, Any]:
    return (await b.waiting()).cancel("no longer")


async def _handle_result(b: Bench) -> Coroutine[Any, Any, Any]:
    return (await b.done()).result(timeout=30)


async def _handle_events(b: Bench) -> Coroutine[Any, Any, Any]:
    return _events(await b.done())


async def _jobs_get(b: Bench) -> Coroutine[Any, Any, Any]:
    return b.rd.jobs.get((await b.waiting()).id[5:25])


async def _jobs_cancel(b: Bench) -> Coroutine[Any, Any, Any]:
    return b.rd.jobs.cancel((await b.waiting()).id)


async def _jobs_erase(b: Bench) -> Coroutine[Any, Any, Any]:
    session = f"session {next(b.numbers)}"
    await b.waiting(session_id=session)
    await b.waiting(session_id=session)
    return b.rd.jobs.erase(session_id=session)


async def _status(b: Bench) -> Coroutine[Any, Any, Any]:
    return b.rd.status((await b.waiting()).id)


async def _dead_restore(b: Bench) -> Coroutine[Any, Any, Any]:
    return b.rd.dead.restore(await b.discarded())


async def _dead_recall(b: Bench) -> Coroutine[Any, Any, Any]:
    job = await b.rd.dead.defer(b.dead.pop(), owner="ada", until=3_600)
    return b.rd.dead.recall(job.id)


async def _dead_undo(b: Bench) -> Coroutine[Any, Any, Any]:
    acted = await b.rd.dead.discard(ids=[b.dead.pop(), b.dead.pop()])
    return b.rd.dead.undo(acted.act_id)


async def _drain(b: Bench) -> Coroutine[Any, Any, Any]:
    await b.rd.enqueue_many("flaky", [b.payload() for _ in range(3)])
    return b.rd.drain()


async def _run(b: Bench) -> Coroutine[Any, Any, Any]:
    await b.rd.enqueue_many("work", [b.payload() for _ in range(3)])
    return _worker(b)


OPERATIONS: dict[str, Operation] = {
    "enqueue": _now(lambda b: b.rd.enqueue("work", b.payload(), delay=3_600)),
    "enqueue with a key": _now(lambda b: b.rd.enqueue("work", {"n": 1}, delay=3_600, idempotency_key="the same")),
    "enqueue in a new queue": _now(
        lambda b: b.rd.enqueue("work", b.payload(), delay=3_600, queue=f"q{next(b.numbers)}")
    ),
    "enqueue_many": _now(lambda b: b.rd.enqueue_many("work", [Item(b.payload(), delay=3_600) for _ in range(1_500)])),
    "enqueue_http": _now(
        lambda b: b.rd.enqueue_http("POST", "https://example.com/", json={}, delay=3_600, queue="http")
    ),
    "handle.refresh": _handle_refresh,
    "handle.cancel": _handle_cancel,
    "handle.result": _handle_result,
    "handle.events": _handle_events,
    "jobs.get": _jobs_get,
    "jobs.list": _now(lambda b: b.rd.jobs.list(state="dead")),
    "jobs.cancel": _jobs_cancel,
    "jobs.resolve": _now(lambda b: b.rd.jobs.resolve(b.dead.pop(), why="it landed")),
    "jobs.erase": _jobs_erase,
    "dead.list": _now(lambda b: b.rd.dead.list()),
    "dead.show": _now(lambda b: b.rd.dead.show(b.dead[-1])),
    "dead.redrive": _now(lambda b: b.rd.dead.redrive(b.dead.pop())),
    "dead.discard": _now(lambda b: b.rd.dead.discard(b.dead.pop())),
    "dead.restore": _dead_restore,
    "dead.purge": _now(lambda b: b.rd.dead.purge([b.dead.pop(), b.dead.pop()])),
    "dead.purge_plan": _now(lambda b: b.rd.dead.purge_plan(b.dead[:2])),
    "dead.reassign": _now(lambda b: b.rd.dead.reassign(b.dead.pop(), agent="cto")),
    "dead.defer": _now(lambda b: b.rd.dead.defer(b.dead.pop(), owner="ada", until=3_600)),
    "dead.recall": _dead_recall,
    "dead.move_lane": _now(lambda b: b.rd.dead.move_lane(ids=[b.dead.pop(), b.dead.pop()], lane="delayed")),
    "dead.note": _now(lambda b: b.rd.dead.note(b.dead[-1], "seen")),
    "dead.edit": _now(lambda b: b.rd.dead.edit(b.dead.pop(), b.payload())),
    "dead.preview_edit": _now(lambda b: b.rd.dead.preview_edit(b.dead[-1], b.payload())),
    "dead.undo": _dead_undo,
    "dead.acts": _now(lambda b: b.rd.dead.acts()),
    "queues.list": _now(lambda b: b.rd.queues.list()),
    "queues.pause": _now(lambda b: b.rd.queues.pause("paused", new=True)),
    "queues.resume": _now(lambda b: b.rd.queues.resume("paused")),
    "numbers": _now(lambda b: b.rd.numbers()),
    "stats": _now(lambda b: b.rd.stats()),
    "health": _now(lambda b: b.rd.health()),
    "status": _status,
    "open": _now(lambda b: b.rd.open()),
    "close and open": _now(lambda b: _closed_and_open(b.rd)),
    "drain": _drain,
    "worker": _run,
}


async def cancel_everywhere(b: Bench, operation: Operation) -> int:
    """Cancel it at its first wait, its second, and so on; how many there were."""
    for nth in range(MOST):
        if not await cancelled_at(nth, await operation(b)):
            await b.works()
            return nth
        if nth % 10 == 0:
            await b.works()
    await b.works()
    return MOST


async def unsound(b: Bench) -> list[str]:
    """What the checker finds wrong. Nobody noted what was offered here: a cancelled enqueue may count or not."""
    problems = (await audit(b.rd, b.ledger, ended=False)).problems
    return [problem for problem in problems if "nobody offered it" not in problem]


@pytest.mark.behaviour("000-99")
@pytest.mark.parametrize("name", OPERATIONS)
async def test_cancelled_everywhere(folder: Path, name: str) -> None:
    async with bench(folder) as b:
        await b.stock_up()
        waits = await cancel_everywhere(b, OPERATIONS[name])
        print(f"{name}: cancelled at {waits} waits")
        assert waits > 0
        await until("no loop of redrive's is left behind", lambda: not loops_left(), 10.0)
        await until("nothing is left running", lambda: _nothing_runs(b.rd))
        assert await unsound(b) == []


def loops_left() -> list[str]:
    """Workers and schedulers that still run although whoever started them has gone."""
    return [
        task.get_name() for task in asyncio.all_tasks() if task.get_name() in ("redrive-worker", "redrive-scheduler")
    ]


async def _nothing_runs(rd: Redrive) -> bool:
    await rd.drain()
    return not (await rd.stats())["totals"]["running"]


async def test_control_a_write_in_two_halves_is_found_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What belongs in one transaction done in three: cancelled between them, the books are wrong."""
    whole = SqliteStore.insert

    async def halves(self: SqliteStore, jobs: Any, documents: Any = ()) -> Any:
        await self._write(lambda connection: connection.execute("UPDATE routes SET waiting = waiting - 1"))
        found = await whole(self, jobs, documents)
        await self._write(lambda connection: connection.execute("UPDATE routes SET waiting = waiting + 1"))
        return found

    async with bench(folder) as b:
        await b.stock_up(1)
        monkeypatch.setattr(SqliteStore, "insert", halves)
        await cancel_everywhere(b, OPERATIONS["enqueue"])
        assert any("the counters say" in problem for problem in await unsound(b))


# ---- a store whose opening was cancelled is as alive as any ----


def observer(folder: str) -> None:
    """Another process that looks for jobs of dead workers, and notes what it finds."""
    from redrive.core.store import Wanted

    async def look() -> None:
        store = SqliteStore(Path(folder) / "jobs.db")
        claim = await store.claim(Wanted(slots=0), "observer", 0.0)
        await store.close()
        Ledger(Path(folder) / "ledger").note("lapsed", len(claim.lapsed))

    asyncio.run(look())


def _is_open(rd: Redrive) -> bool:
    """Opening goes on in its thread after nobody waits for it any more."""
    writer: Writer | None = rd.store._writer  # type: ignore[attr-defined]
    return writer is not None and writer.opened


async def test_a_cancelled_opening_leaves_a_sign_of_life(zygote: Zygote, folder: Path) -> None:
    """Cancelled at any wait and then used: other processes must see that its worker lives."""
    for nth in range(MOST):
        place = folder / str(nth)
        place.mkdir()
        rd, ledger = make_app(place)
        went_through = not await cancelled_at(nth, rd.open())
        await until("the file is open", lambda: _is_open(rd))  # noqa: B023
        async with rd, rd.worker():
            handle = await rd.enqueue("gated", {"gate": "gate"})
            await until("the job starts", lambda: ledger.read().starts)  # noqa: B023
            child = zygote.start("tests.chaos.test_cancellation:observer", log=place / "log", folder=place)
            assert await child.exited() == 0, child.log()
            (place / "gate").touch()
            await handle.result(timeout=30)
        assert ledger.read().notes == ["lapsed 0"], f"cancelled at wait {nth}"
        if went_through:
            return
    raise AssertionError("opening never ended")
