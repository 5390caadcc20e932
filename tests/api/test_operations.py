"""Work that used to be fired and forgotten, each kind as a queue."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import PRESETS, Context, Redrive
from tests.receiver import Seen, answer, receiving
from tests.support import FakeClock, drain_until_over, eventually, line_of, opened, process, soon

pytestmark = pytest.mark.preset("agent_os")
QUEUES = PRESETS["agent_os"].queues
LOCAL = {"allow": ["127.0.0.1"]}


class Target:
    """What the work calls: down until it is told otherwise."""

    def __init__(self) -> None:
        self.up = False
        self.got: list[Any] = []

    def take(self, what: Any) -> None:
        if not self.up:
            raise ConnectionRefusedError("the target is down")
        self.got.append(what)


def _plain(queue: str) -> Callable[[Redrive, Target], redrive.Task[..., Any]]:
    def make(rd: Redrive, target: Target) -> redrive.Task[..., Any]:
        @rd.task(f"{queue}.work", queue=queue)
        async def work(what: str) -> None:
            target.take(what)

        return work

    return make


OPERATIONS = [
    "analytics_ingest", "learning_capture", "identity_provision", "feedback", "mesh_keys", "security_notify",
    "artifact_delivery", "conversation_index", "graph_write", "knowledge_ingest", "session_promotion",
    "cleanup_flush", "condense", "http",
]  # fmt: skip


@pytest.mark.behaviour("000-1", "000-4", "000-17")
@pytest.mark.parametrize("queue", OPERATIONS)
async def test_an_outage_costs_nothing(rd: Redrive, clock: FakeClock, queue: str) -> None:
    """Down for the first tries, up before the last: done. Down to the end: a dead letter, and done when redriven."""
    target = Target()
    work = _plain(queue)(rd, target)
    lucky = await work.enqueue("first")
    await soon(rd.drain())
    assert (await lucky.refresh()).state == "waiting", "it is on disk, not lost"
    target.up = True
    await drain_until_over(rd, clock)
    assert target.got == ["first"]
    target.up = False
    unlucky = await work.enqueue("second")
    await drain_until_over(rd, clock)
    dead = await rd.dead.show(unlucky.id)
    assert (dead.attempts, dead.because) == (
        QUEUES.get(queue, redrive.Policy(max_attempts=5)).max_attempts,
        "attempts_exhausted",
    )
    target.up = True
    await rd.dead.redrive(unlucky.id)
    await drain_until_over(rd, clock)
    assert target.got == ["first", "second"]
    assert (await rd.stats())["accepted"] == 2


@pytest.mark.behaviour("000-9")
async def test_a_delivery_that_is_refused_is_judged_and_one_that_finds_nobody_is_tried_again(
    database: Path, clock: FakeClock
) -> None:
    async with opened(database, clock=clock, preset="agent_os", delivery=LOCAL) as rd:
        async with receiving(answer("400 Bad Request")) as receiver:
            refused = await rd.enqueue_http("POST", receiver.url(), json={}, queue="analytics_ingest")
            await soon(rd.drain())
            port = receiver.port
        missed = await rd.enqueue_http("POST", f"http://127.0.0.1:{port}/", json={}, queue="analytics_ingest")
        await soon(rd.drain())
        assert ((await refused.refresh()).state, (await missed.refresh()).state) == ("dead", "waiting")
        assert (await missed.refresh()).detail == "network"


@pytest.mark.behaviour("000-10")
async def test_lessons_get_few_and_quick_tries(rd: Redrive, clock: FakeClock) -> None:
    target = Target()
    job = await _plain("learning_capture")(rd, target).enqueue("lesson")
    waits = []
    for _ in range(2):
        await soon(rd.drain())
        waits.append((await job.refresh()).run_at - clock.now())
        clock.advance(60)
    await soon(rd.drain())
    assert waits == [1.0, 2.0]
    assert (await job.refresh()).state == "dead"


@pytest.mark.behaviour("000-11")
async def test_indexing_and_condensing_fail_apart_and_a_locked_database_is_tried_again(
    rd: Redrive, tmp_path: Path, clock: FakeClock
) -> None:
    index = tmp_path / "index.db"
    sqlite3.connect(index).execute("CREATE TABLE turns (text)").connection.close()

    @rd.task("index", queue="conversation_index")
    def write(text: str) -> None:
        connection = sqlite3.connect(index, timeout=0)
        try:
            with connection:
                connection.execute("INSERT INTO turns VALUES (?)", (text,))
        finally:
            connection.close()

    @rd.task(queue="graph_write")
    async def condense(text: str) -> str:
        return text[:3]

    writer = sqlite3.connect(index, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    indexing, condensing = await write.enqueue("hello"), await condense.enqueue("hello")
    await soon(rd.drain())
    waiting = await indexing.refresh()
    assert ((await condensing.refresh()).state, waiting.state, waiting.detail) == ("done", "waiting", "contention")
    writer.execute("ROLLBACK")
    writer.close()
    clock.advance(60)
    await soon(rd.drain())
    assert (await indexing.refresh()).state == "done"


DELIVERER = """
import asyncio, sys, urllib.request
import redrive

rd = redrive.Redrive(sys.argv[1])

@rd.task(queue="artifact_delivery")
def deliver(chat: str, image: redrive.Blob) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[2]}/{chat}", data=image.data, method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return f"shown: {answer.status}"

async def main():
    async with rd.worker():
        if sys.argv[3:]:
            job = await deliver.enqueue("chat-7", redrive.Blob(bytes(range(256)) * 400))
            print(job.id, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.behaviour("000-12")
async def test_an_artifact_that_could_not_be_delivered_is_delivered_after_a_crash_and_a_restart(database: Path) -> None:
    """An image, its receiver down: the first process tries it in vain and is killed, the next one delivers it once."""
    async with receiving(b"") as receiver:
        port = receiver.port
    async with opened(database) as rd:
        with process(DELIVERER, database, port, "produce") as child:
            id = await line_of(child)

            async def has_failed() -> bool:
                return (await rd.jobs.get(id)).attempts >= 1

            await eventually(has_failed, "it is tried while the receiver is down")
            child.kill()
            await soon(asyncio.to_thread(child.wait))
        assert (await rd.jobs.get(id)).state != "done"
        shown: list[bytes] = []

        async def show(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            shown.append(await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0])))
            writer.write(answer("201 Created"))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(show, "127.0.0.1", port)
        try:
            with process(DELIVERER, database, port):

                async def is_done() -> bool:
                    return (await rd.jobs.get(id)).state == "done"

                await eventually(is_done, "the next process delivers it")
        finally:
            server.close()
        job = await rd.jobs.get(id)
    assert shown == [bytes(range(256)) * 400]
    assert job.history[0].cause is not None and job.history[0].cause.detail == "network"
    assert (job.history[-1].outcome, job.history[0].worker != job.history[-1].worker) == ("done", True)


@pytest.mark.behaviour("000-13", "000-16")
async def test_what_exists_only_once_is_on_disk_when_enqueue_returns(database: Path) -> None:
    """The process says that it goes on, and is killed before anything else can be written."""
    code = """
import os, signal, sys
import redrive

rd = redrive.Redrive(sys.argv[1])
with rd.blocking() as q:
    for kind, what in (("graph_write", "the whole buffer"), ("mesh_keys", "the only copy of a key")):
        print(q.enqueue("keep", {"what": what}, queue=kind).id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with process(code, database) as child:
        ids = [await line_of(child) for _ in range(2)]
        await soon(asyncio.to_thread(child.wait))
    async with opened(database) as rd:
        stored = [await rd.jobs.get(id) for id in ids]
    assert [job.arguments["what"] for job in stored] == ["the whole buffer", "the only copy of a key"]


@pytest.mark.behaviour("000-14")
async def test_provisioning_outlasts_a_long_outage(rd: Redrive, clock: FakeClock) -> None:
    target = Target()
    job = await _plain("identity_provision")(rd, target).enqueue("account")
    begun = clock.now()
    for _ in range(9):
        await soon(rd.drain())
        clock.advance((await job.refresh()).run_at - clock.now())
    assert clock.now() - begun > 600, "down for more than ten minutes"
    target.up = True
    await soon(rd.drain())
    assert target.got == ["account"]
    assert (await job.refresh()).attempts == 10


@pytest.mark.behaviour("000-15")
async def test_each_notice_may_set_its_own_timeout(database: Path) -> None:
    async def never(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with opened(database, preset="agent_os", delivery=LOCAL) as rd, receiving(never) as receiver:
        job = await rd.enqueue_http(
            "POST", receiver.url(), json={"alert": 1}, timeout=0.05, queue="security_notify", max_attempts=1
        )
        assert rd.registry.queue_policy("security_notify").base == 3.0
        await soon(rd.drain())
        dead = await job.refresh()
    assert (dead.state, dead.detail) == ("dead", "timeout")


@pytest.mark.behaviour("000-17")
async def test_the_end_of_a_session_has_queues_ready(rd: Redrive) -> None:
    done: list[str] = []

    @rd.task
    async def finish(ctx: Context, what: str) -> None:
        done.append(f"{ctx.job.queue} {ctx.session_id} {what}")

    for queue, what in (("knowledge_ingest", "ingest"), ("session_promotion", "promote"), ("graph_write", "flush")):
        job = await finish.options(queue=queue, session_id="s1").enqueue(what)
        assert job.job.allowed == QUEUES[queue].max_attempts == 5
    await soon(rd.drain())
    assert sorted(done) == ["graph_write s1 flush", "knowledge_ingest s1 ingest", "session_promotion s1 promote"]


@pytest.mark.file("the guard of the open file")
@pytest.mark.behaviour("T-15")
async def test_a_task_that_opens_the_database_itself_is_refused_and_harms_nothing(rd: Redrive, database: Path) -> None:
    """Closing a second connection would drop the locks of the store: see stores/sqlite/file_guard.py."""

    @rd.task(queue="reports")
    def count_jobs() -> int:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])

    others = [await rd.enqueue("other", {"number": number}) for number in range(5)]
    job = await count_jobs.enqueue()
    await soon(rd.drain())
    died = await job.refresh()
    assert (died.state, died.attempts, died.category, died.detail) == ("dead", 1, "permanent", "bug")
    assert "redrive sql" in (died.error or "") and "redrive backup" in (died.error or "")
    assert [(await other.refresh()).state for other in others] == ["waiting"] * 5
