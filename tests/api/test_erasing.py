"""`erase` leaves no word of a job: whatever a user can fill in is gone from the file, its log and the spool.

A document keeps a job's id, never its words: those of cycles, breakers and messages are read from the job when they
are shown.
"""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive
from redrive import Blob, Context, Redrive
from redrive.core import lifecycle
from redrive.core.job import Job
from redrive.core.store import Commit, Filter, Put
from redrive.engine.paging import read_pages
from tests import elsewhere
from tests.support import FakeClock, opened, soon

CANARY = "canary-4711"
BYTES = b"a canary as bytes "
ENCODED = base64.b64encode(BYTES).decode()
"""As a blob keeps it: each repetition looks the same."""
LONG = 30_000
KEY = "key-8088"
"""Stays on purpose: what was done under a key is not done again."""

FOUND_IN = """
import pathlib, sys
word, folder = sys.argv[1].encode(), pathlib.Path(sys.argv[2])
for path in sorted(folder.rglob("*")):
    if path.is_file() and word in path.read_bytes():
        print(path.relative_to(folder))
"""


def found_in(word: str, folder: Path) -> list[str]:
    """Names the files that hold this word, read by a process of its own: ours must not open the database's files."""
    answer = subprocess.run([sys.executable, "-c", FOUND_IN, word, str(folder)], capture_output=True, check=True)
    return answer.stdout.decode().split()


async def every_job(rd: Redrive) -> list[Job]:
    return [job async for page in read_pages(rd.store, Filter(), 500) for job in page]


async def erase_all(rd: Redrive) -> None:
    for job in await every_job(rd):
        await rd.jobs.erase(job.id, who="ann")


async def documents_with(rd: Redrive, word: str) -> set[str]:
    """The kinds of the documents that hold this word."""
    return {kind for kind in KINDS for document in await rd.store.docs(kind) if word.encode() in document.value}


KINDS = (
    "step", "effect", "blob", "result", "alone", "progress", "witness", "absent", "approval", "note", "act",
    "act_items", "triaged", "cycle", "breaker", "notice", "inbox", "page", "courier", "group", "group_alert", "redrive",
    "redrive_items", "redrive_flights", "grant", "workflow", "schedule", "queue", "worker", "clock",
)  # fmt: skip


class Down(Exception):
    """Says what the receiver said, and what to do."""

    recommendation = f"ask for {CANARY}"
    status_code = 503


# ---- the three that kept what an error said


@pytest.mark.behaviour("T-17a")
def test_a_cycle_keeps_no_error_of_an_erased_job(database: Path, clock: FakeClock) -> None:
    rd = Redrive(database, clock=clock)

    def publish(site: str) -> None:
        raise PermissionError(f"refused for {CANARY}")

    for cycle_id in ("n1", "n2", "n3"):
        with rd.cycle("nightly", cycle_id, alert_after=2) as night:
            night.run(publish, site="a")
    assert CANARY in str(night.summary), "an alert says what keeps failing"
    with rd.blocking() as q:
        assert q.run(rd.store.docs("cycle"))
        q.run(erase_all(rd))
    assert found_in(CANARY, database.parent) == []


@pytest.mark.behaviour("T-17b")
async def test_a_breaker_keeps_no_error_of_an_erased_job(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock) as rd:

        @rd.task("send", downstream="mill", breaker_after=1, max_attempts=9, base=1)
        async def send() -> None:
            raise ConnectionError(f"no route to {CANARY}")

        jobs = [await send.enqueue() for _ in range(2)]
        await soon(rd.drain())
        (breaker,) = await rd.breakers()
        assert breaker.state == "open" and CANARY in breaker.error, "what is down is shown with what its job said"
        assert await rd.store.docs("breaker")
        for job in jobs:
            await rd.jobs.erase(job.id)
        (breaker,) = await rd.breakers()
        assert (breaker.state, breaker.error) == ("open", "")
    assert found_in(CANARY, database.parent) == []


@pytest.mark.behaviour("T-17b")
async def test_a_parked_job_does_not_repeat_what_another_one_said(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock) as rd:

        @rd.task("send", downstream="mill", breaker_after=1, max_attempts=9, base=1)
        async def send(say: str) -> None:
            raise ConnectionError(say)

        first = await send.enqueue(CANARY)
        await soon(rd.drain())
        second = await send.enqueue("")
        await soon(rd.drain())
        assert (await second.refresh()).because == "circuit_open"
        await rd.jobs.erase(first.id)
    assert found_in(CANARY, database.parent) == []


@pytest.mark.behaviour("T-17c")
async def test_a_page_that_waits_keeps_no_error_of_an_erased_job(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock, notify={"page_after": 1}) as rd:

        @rd.task("send", max_attempts=1)
        async def send() -> None:
            raise PermissionError(f"refused for {CANARY}")

        job = await send.enqueue()
        await soon(rd.drain())
        assert await rd.notices.look()
        (page,) = [notice for notice in await rd.notices.waiting() if notice.kind == "page"]
        assert CANARY in page.text, "a page says what failed"
        await rd.jobs.erase(job.id)
        (page,) = [notice for notice in await rd.notices.waiting() if notice.kind == "page"]
        assert "send" in page.text and CANARY not in page.text, "it still pages"
    assert found_in(CANARY, database.parent) == []


@pytest.mark.behaviour("T-17c")
async def test_a_page_is_sent_with_what_its_jobs_say_then(database: Path, clock: FakeClock) -> None:
    heard: list[str] = []
    async with opened(database, clock=clock, notify={"page_after": 1}) as rd:

        @rd.task("send", max_attempts=1, comebacks=())
        async def send(say: str) -> None:
            raise ValueError(say)

        @rd.task("fetch", max_attempts=1, comebacks=())
        async def fetch() -> None:
            raise KeyError("no such page")

        job = await send.enqueue(CANARY)
        await fetch.enqueue()
        await soon(rd.drain())
        assert await rd.notices.look()
        await rd.jobs.erase(job.id)
        rd.channels.append(lambda message: heard.append(message.text))
        assert await rd.notices.deliver() == 1
    (text,) = heard
    assert "1 × fetch: KeyError: 'no such page'" in text and "1 × send: ValueError" in text and CANARY not in text


@pytest.mark.behaviour("T-17e")
async def test_words_that_an_older_version_wrote_beside_jobs_leave_with_the_next_erase(rd: Redrive) -> None:
    note = {"task": "t", "job_id": "a", "job": "x", "failed": "n1", "failing": 1, "error": CANARY}
    breaker = {"key": "mill", "state": "open", "cause": "network", "since": 1.0, "pause": 5.0, "until": 6.0}
    old = {"cycle": note, "breaker": {**breaker, "release": 20.0, "error": CANARY}}
    puts = [Put(kind, "k", msgspec.json.encode(value)) for kind, value in old.items()]
    await rd.store.apply([Commit(puts=(*puts, Put("breaker", "damaged", b"{")))])
    handle = await rd.enqueue("work", {})
    await rd.jobs.erase(handle.id)
    for kind, value in old.items():
        document = await rd.store.doc(kind, "k")
        assert document is not None
        assert msgspec.json.decode(document.value) == {name: said for name, said in value.items() if name != "error"}


@pytest.mark.behaviour("T-17e")
async def test_a_waiting_message_of_an_older_version_says_less_after_an_erase(rd: Redrive) -> None:
    said = {"level": "actionable", "audience": "user", "title": "5 dead letters", "text": f"2 × {CANARY}", "at": 1.0}
    old = {kind: {"id": f"{kind}.1", "kind": kind, **said} for kind in ("page", "morning")}
    puts = [Put("notice", f"1.{kind}", msgspec.json.encode(value)) for kind, value in old.items()]
    await rd.store.apply([Commit(puts=tuple(puts))])
    handle = await rd.enqueue("work", {})
    await rd.jobs.erase(handle.id)
    assert [(notice.title, notice.text) for notice in await rd.notices.waiting()] == [
        ("5 dead letters", "See redrive morning.")
    ] * 2, "it is still told"


@pytest.mark.behaviour("T-17d")
async def test_neither_the_reason_of_a_purge_nor_an_owner_is_left(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock) as rd:

        @rd.task("breaks", max_attempts=1)
        async def breaks() -> None:
            raise ValueError("broken")

        purged, deferred = [await breaks.enqueue() for _ in range(2)]
        await soon(rd.drain())
        move = lifecycle.purged(await rd.jobs.get(purged.id), clock.now(), who="ann", why=CANARY)
        await rd.store.apply([Commit((move,))])
        await rd.dead.defer(deferred.id, owner=CANARY, until=60.0, why=CANARY)
        await erase_all(rd)
    assert found_in(CANARY, database.parent) == []


@pytest.mark.behaviour("T-17d")
@pytest.mark.parametrize("ended", [True, False])
async def test_an_investigation_of_a_pain_is_erased_with_the_jobs_that_it_quotes(
    database: Path, clock: FakeClock, ended: bool
) -> None:
    async with opened(database, clock=clock) as rd:
        from redrive.core.pain import SignalPolicy  # a new name: the other tests here also run on the source before it

        rd.core.holder.settings = msgspec.structs.replace(rd.settings, signals=SignalPolicy(enqueue="investigate"))

        @rd.task("send", max_attempts=1)
        async def send(say: str) -> None:
            raise PermissionError(f"refused for {say}")

        @rd.task("investigate")
        async def investigate(pain: Any, health: Any, group: Any, errors: Any) -> str:
            return str(errors)

        jobs = [await send.enqueue(CANARY) for _ in range(3)]
        other = await rd.enqueue("later", {}, delay=60)
        await soon(rd.drain())
        await rd._duties.look()
        await rd.notices.deliver()
        if ended:
            await soon(rd.drain())
        found = [job for job in await every_job(rd) if job.task == "investigate"]
        assert {job.state for job in found} == {"done" if ended else "waiting"} and CANARY in str(found[0].payload)
        for job in jobs:
            await rd.jobs.erase(job.id)
        assert (await other.refresh()).state == "waiting"
    assert found_in(CANARY, database.parent) == []


# ---- everything at once


@pytest.mark.behaviour("T-17d")
async def test_no_word_of_an_erased_job_is_left_anywhere(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock, notify={"page_after": 1}) as rd:
        await _fill(rd, clock)
        assert await documents_with(rd, CANARY) >= {
            "step", "effect", "result", "progress", "witness", "approval", "note", "inbox", "notice", "act",
            "act_items", "grant",
        }  # fmt: skip
        assert "blob" in await documents_with(rd, ENCODED)
        assert {kind for kind in KINDS if await rd.store.docs(kind)} >= {"breaker", "page", "group", "redrive"}
        await erase_all(rd)
        await rd.jobs.erase(session_id=CANARY)
        assert await documents_with(rd, CANARY) == set()
    assert found_in(CANARY, database.parent) == found_in(ENCODED, database.parent) == []
    kept = elsewhere.replica_of(database).relative_to(database.parent)
    assert found_in(KEY, database.parent) == [str(kept)], "the key stays: its work is not done again"


async def _fill(rd: Redrive, clock: FakeClock) -> None:
    """Makes jobs that end in every way, with the word wherever a user can write one, and what is said about them."""
    declared = _tasks(rd)
    given: dict[str, Any] = {"session_id": CANARY, "headers": {"note": CANARY}}
    for name, task in declared.items():
        key = f"{KEY}-{name}"
        await task.options(idempotency_key=key, **given).enqueue(say=CANARY, data=Blob(BYTES * 100, "text/plain"))
    await rd.submit("works", {"say": CANARY, "data": ""}, session_id=CANARY)
    for _ in range(3):
        await soon(rd.drain())
        clock.advance(30)
    for job in await every_job(rd):
        if job.state == "dead":
            await rd.dead.note(job.id, CANARY)
            await rd.dead.reassign(job.id, agent="cto", why=CANARY)
        if job.because == "approval":
            await rd.jobs.approve(job.id, who="ann", why=CANARY)
        if job.because == "outcome_unknown":
            await rd.jobs.resolve(job.id, landed=False, who="ann", why=CANARY)
    await rd.sessions.grant(CANARY, "works", by="ann", why=CANARY)
    await soon(rd.drain())
    await rd.dead.discard(task="refuses", who="ann", why="they are old")
    await rd.redrives.start(task="breaks", who="ann", why="it is mended")
    await rd.redrives.advance()
    await soon(rd.drain())
    await rd._duties.look()
    await rd.reports.notify(await rd.morning())


def _tasks(rd: Redrive) -> dict[str, Any]:
    @rd.task("works")
    async def works(ctx: Context, say: str, data: Any) -> str:
        await ctx.progress(0.5, note=say)
        await ctx.step("first", lambda: say)
        await ctx.once("second", lambda key: say)
        return say * LONG

    @rd.task("refuses", max_attempts=1)
    async def refuses(ctx: Context, say: str, data: Any) -> None:
        raise PermissionError(f"refused for {say}")

    @rd.task("breaks", max_attempts=1, comebacks=())
    async def breaks(ctx: Context, say: str, data: Any) -> None:
        raise ValueError(f"broken by {say}")

    @rd.task("returns", max_attempts=1)
    async def returns(ctx: Context, say: str, data: Any) -> None:
        raise ValueError(f"not yet for {say}")

    @rd.task("falls", max_attempts=2, base=1, breaker_after=1, downstream="mill")
    async def falls(ctx: Context, say: str, data: Any) -> None:
        raise Down(f"down for {say}")

    @rd.task("asks")
    async def asks(ctx: Context, say: str, data: Any) -> str:
        return say if await ctx.approval(f"may {say}?", details={"say": say}) else ""

    @rd.task("agrees", consent=True)
    async def agrees(ctx: Context, say: str, data: Any) -> str:
        return say

    @rd.task("wonders")
    async def wonders(ctx: Context, say: str, data: Any) -> None:
        raise redrive.OutcomeUnknown(f"no answer for {say}", witness={"say": say})

    return {task.name: task for task in (works, refuses, breaks, returns, falls, asks, agrees, wonders)}
