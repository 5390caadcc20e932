"""The live feed: one reader for all, what other processes do, resuming, and nobody who buffers without bound."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest

import redrive
from redrive.core.store import Commit
from redrive.doors.rest import TABLE
from redrive.doors.rest.events import write_tick
from redrive.doors.rest.openapi import document
from redrive.doors.web import feed as feeding
from redrive.doors.web.feed import Feed, Tick
from redrive.retries import breaker
from tests.support import eventually, process, soon
from tests.web.serving import TOKEN, Served


class Heard:
    """What a client of the stream has been told."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.last: str | None = None
        self.skipped = 0
        self.comments = 0
        self.over = False

    def moves(self) -> list[str]:
        return [event["data"]["move"] for event in self.events]


async def hear(served: Served, heard: Heard, path: str = "/v1/events", **headers: str) -> None:
    """Read a stream as a browser does, until it ends."""
    name = ""
    async with served.client.stream("GET", path, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            field, _, value = line.partition(": ")
            if field == "id":
                heard.last = value
            elif field == "event":
                name = value
            elif field == "data" and name == "skipped":
                heard.skipped += 1
            elif field == "data":
                heard.events.append(json.loads(value))
            elif line.startswith(":"):
                heard.comments += 1
            elif not line:
                name = ""
    heard.over = True


@asynccontextmanager
async def listening(served: Served, path: str = "/v1/events", **headers: str) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(hear(served, heard, path, **headers))
    try:
        await eventually(lambda: heard.last is not None or task.done(), "the stream begins")
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.behaviour("000-76")
async def test_a_client_hears_what_happens_to_a_job(served: Served) -> None:
    async with listening(served) as heard:
        new = await served.post("/v1/jobs", {"task": "greet"}, status=201)
        await eventually(lambda: "succeeded" in heard.moves(), "the job's success is told")
    first = heard.events[0]
    assert (first["specversion"], first["type"], first["subject"]) == ("1.0", "dev.redrive.job.enqueued", new["id"])
    assert first["data"]["queue"] == "greet" and first["time"].endswith("Z")
    assert len({event["id"] for event in heard.events}) == len(heard.events)
    await eventually(lambda: served.feed.listeners == 0, "the listener is gone")


@pytest.mark.behaviour("T-19e")
async def test_the_document_fits_every_block_of_the_stream(served: Served) -> None:
    """Read by the fields of each block: moves, places without a move, moves that were skipped, and the first one."""
    found = document(TABLE)
    content = found["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    blocks: list[dict[str, str]] = []
    reading = asyncio.create_task(read_blocks(served, blocks, "/v1/events?queue=greet"))
    await eventually(lambda: bool(blocks) or reading.done(), "the stream begins")
    await served.rd.enqueue("greet", {}, queue="greet")
    await eventually(lambda: any("data" in block for block in blocks), "a move is told")
    await served.rd.enqueue("greet", {}, queue="other")
    await eventually(lambda: any("data" not in block and "id" in block for block in blocks), "a place is told")
    await served.rd.enqueue_many("greet", [{"name": str(n)} for n in range(feeding.TOGETHER * 3)])
    await eventually(lambda: any("event" in block for block in blocks), "moves are skipped")
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    checked = jsonschema.Draft202012Validator({**content["schema"], "components": found["components"]})
    assert [(block, error.message) for block in blocks for error in checked.iter_errors(block)] == []
    move = next(
        one for one in content["schema"]["oneOf"] if "event" not in one["properties"] and "data" in one["required"]
    )
    inner = jsonschema.Draft202012Validator(
        {**move["properties"]["data"]["contentSchema"], "components": found["components"]}
    )
    for block in blocks:
        if "data" in block and "event" not in block:
            inner.validate(json.loads(block["data"]))


@pytest.mark.behaviour("T-1c")
async def test_the_stream_tells_that_a_breaker_opens_and_closes_in_another_process(
    served: Served, database: Path
) -> None:
    found = document(TABLE)
    schema = found["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    blocks: list[dict[str, str]] = []
    reading = asyncio.create_task(read_blocks(served, blocks, "/v1/events"))
    await eventually(lambda: bool(blocks) or reading.done(), "the stream begins")

    def told() -> list[str]:
        return [json.loads(block["data"])["type"] for block in blocks if block.get("event") == "breaker"]

    async with redrive.Redrive(database) as other:
        await eventually(lambda: served.feed._down is not None, "the reader has looked once")
        from redrive.retries.breaker import BREAKER  # a new name: the other tests here also run on the source before it

        down = breaker.open_breaker("host:x:443", "network", "0" * 32, other.clock.now(), pause=900.0, release=20.0)
        await other.store.apply([Commit(puts=(BREAKER.put("host:x:443", down),))])
        await eventually(lambda: told() == ["dev.redrive.breaker.opened"], "the breaker that opened is told")
        assert await other.close_breaker("host:x:443")
        await eventually(lambda: told()[1:] == ["dev.redrive.breaker.closed"], "the breaker that closed is told")
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    checked = jsonschema.Draft202012Validator({**schema, "components": found["components"]})
    assert [(block, error.message) for block in blocks for error in checked.iter_errors(block)] == []
    opened = next(json.loads(block["data"]) for block in blocks if block.get("event") == "breaker")
    assert (opened["subject"], opened["data"]["message"]) == ("host:x:443", "host x:443 is down: its jobs are parked")


async def read_blocks(served: Served, blocks: list[dict[str, str]], path: str) -> None:
    """Every block of the stream as its fields; comments have none."""
    block: dict[str, str] = {}
    async with served.client.stream("GET", path, timeout=60) as answer:
        async for line in answer.aiter_lines():
            field, _, value = line.partition(": ")
            if field:
                block[field] = value
            elif block:
                blocks.append(block)
                block = {}


async def test_what_another_process_does_is_heard(served: Served, database: Path) -> None:
    code = """
        import asyncio, sys, redrive

        async def main():
            async with redrive.Redrive(sys.argv[1]) as rd:
                await rd.enqueue("elsewhere", {"n": 1}, queue="theirs")

        asyncio.run(main())
    """
    async with listening(served, "/v1/events?queue=theirs") as heard:
        await served.rd.enqueue("greet", {})
        with process(code, database) as child:
            await soon(asyncio.to_thread(child.wait))
        await eventually(lambda: heard.moves() == ["enqueued"], "the other process's job is told")


async def test_who_comes_back_goes_on_where_it_was(still: Served) -> None:
    async with listening(still) as heard:
        await still.rd.enqueue("greet", {})
        await eventually(lambda: len(heard.events) == 1)
    last = heard.last
    assert last is not None
    missed = [(await still.rd.enqueue("greet", {})).id for _ in range(3)]
    async with listening(still, **{"Last-Event-ID": last}) as again:
        await eventually(lambda: len(again.events) == 3)
        assert [event["subject"] for event in again.events] == missed
        await still.rd.enqueue("greet", {})
        await eventually(lambda: len(again.events) == 4)
    async with listening(still, f"/v1/events?after={last}") as again:
        await eventually(lambda: len(again.events) == 4)


async def test_an_empty_last_id_begins_now_and_not_with_all_there_ever_was(still: Served) -> None:
    await still.rd.enqueue("greet", {})
    async with listening(still, **{"Last-Event-ID": ""}) as heard:
        new = (await still.rd.enqueue("greet", {})).id
        await eventually(lambda: new in [event["subject"] for event in heard.events])
    assert len(heard.events) == 1


async def test_a_wrong_cursor_is_refused(still: Served) -> None:
    await still.refused(422, "GET", "/v1/events?after=nonsense")
    found = await still.refused(422, "GET", "/v1/events", headers={"Last-Event-ID": "nonsense"})
    assert found["field"] == "after"


async def test_a_store_that_cannot_be_read_is_a_status_not_a_broken_stream(
    still: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object, **__: object) -> Any:
        raise redrive.StoreUnavailable("the disk is away")

    monkeypatch.setattr(still.rd.store, "events", gone)
    assert (await still.refused(503, "GET", "/v1/events"))["detail"] == "the disk is away"


async def test_too_much_is_skipped_and_every_gets_all(still: Served) -> None:
    number = 450
    async with listening(still) as some, listening(still, "/v1/events?every=true") as all_:
        await still.rd.enqueue_many("greet", [{"name": str(n)} for n in range(number)])
        await eventually(lambda: len(all_.events) == number, "every job is told")
        await eventually(lambda: some.skipped > 0, "the glimpse says that there was more")
        assert 0 < len(some.events) < number
        told = len(some.events)
        await still.rd.enqueue("greet", {})
        await eventually(lambda: len(some.events) == told + 1, "it goes on at the present")


async def test_one_reader_for_all_and_none_for_nobody(still: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    store = still.rd.store
    plain = store.events

    async def counted(after: str | None, limit: int = 1000) -> Any:
        nonlocal asked
        asked += 1
        return await plain(after, limit)

    monkeypatch.setattr(store, "events", counted)
    async with listening(still), listening(still), listening(still):
        assert still.feed.listeners == 3
        reader = still.feed._reader
        assert reader is not None and not reader.done()
    await eventually(lambda: still.feed.listeners == 0)
    await eventually(reader.done, "the reader rests")
    before = asked
    async with listening(still):
        assert still.feed._reader is not reader
    await eventually(lambda: still.feed._reader is None or still.feed._reader.done())
    assert asked > before


async def test_a_quiet_stream_tells_that_it_lives(still: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.doors.web.feed.BEAT", 0.05)
    async with listening(still) as heard:
        await eventually(lambda: heard.comments >= 2, "comments come while nothing happens")
        await still.rd.enqueue("greet", {})
        await eventually(lambda: len(heard.events) == 1, "and nothing was lost meanwhile")


async def test_closing_ends_every_stream_at_once(still: Served) -> None:
    heard = [Heard() for _ in range(5)]
    tasks = [asyncio.create_task(hear(still, one)) for one in heard]
    await eventually(lambda: all(one.last is not None for one in heard))
    still.feed.close()
    await soon(asyncio.gather(*tasks))
    assert all(one.over for one in heard)
    late = Heard()
    await soon(hear(still, late))
    assert late.over and late.events == []


async def test_a_slow_listener_is_dropped_not_buffered(rd: redrive.Redrive) -> None:
    feed = Feed(rd, pace=0.001)
    async with aclosing(feed.listen()) as slow, aclosing(feed.listen()) as quick:
        await anext(slow)
        await anext(quick)
        (listener, other) = sorted(feed._listeners, key=id)
        for number in range(feeding.BEHIND * 3):
            await rd.enqueue("greet", {"name": str(number)})
            await soon(anext(quick))
        late = [one for one in (listener, other) if one.dropped]
        assert len(late) == 1 and late[0].ticks.qsize() <= feeding.BEHIND + 1
        left = [tick async for tick in slow]
        assert len(left) == feeding.BEHIND, "it ends, and what it saw last is where it comes back"
        heard = {event.job_id for tick in left for event in tick.events}
        missed = [event.job_id for event in await rd.store.events(left[-1].cursor)]
        assert heard.isdisjoint(missed) and len(heard) + len(missed) == feeding.BEHIND * 3
    feed.close()


async def test_who_begins_is_not_told_of_what_happened_before(rd: redrive.Redrive) -> None:
    """Though the reader, who is there for others already, has not come to it yet."""
    feed = Feed(rd, pace=0.001)
    async with aclosing(feed.listen()) as first, aclosing(feed.listen()) as second:
        start = (await anext(first)).cursor
        feed._pace = 0.3
        await rd.enqueue("greet", {})
        await soon(anext(first))  # from here on it rests for so long
        await rd.enqueue("greet", {})
        assert (await anext(second)).events == []
        new = (await rd.enqueue("greet", {})).id
        assert [event.job_id for event in (await soon(anext(second))).events] == [new]
        async with aclosing(feed.listen(start)) as third:
            assert len((await anext(third)).events) == 3
            newest = (await rd.enqueue("greet", {})).id
            assert [event.job_id for event in (await soon(anext(third))).events] == [newest]
    feed.close()


async def test_what_was_told_in_the_beginning_is_not_kept(rd: redrive.Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only until the reader has passed it."""
    compared: list[str] = []
    identity = feeding._identity
    monkeypatch.setattr(feeding, "_identity", lambda event: compared.append(event.job_id) or identity(event))
    await rd.enqueue_many("greet", [{}] * 2_100)
    feed = Feed(rd, pace=0.001)
    async with aclosing(feed.listen("", every=True)) as ticks:
        told = [len((await soon(anext(ticks))).events) for _ in range(3)]
        assert told == [1_000, 1_000, 100]
        assert len(compared) == 100, "whole pages are told before the reader can know of them"
        for _ in range(3):
            looked = feed._reads
            await eventually(lambda looked=looked: feed._reads > looked)
            job = await rd.enqueue("greet", {})
            assert [event.job_id for event in (await soon(anext(ticks))).events] == [job.id]
        assert job.id not in compared
    feed.close()


async def test_a_store_that_fails_is_told_once_and_read_again(
    rd: redrive.Redrive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    feed, plain, failing = Feed(rd, pace=0.001), rd.store.events, False

    async def moody(after: str | None, limit: int = 1000) -> Any:
        if failing:
            raise redrive.StoreUnavailable("gone for a moment")
        return await plain(after, limit)

    monkeypatch.setattr(rd.store, "events", moody)
    async with aclosing(feed.listen()) as ticks:
        await anext(ticks)
        failing = True
        await eventually(lambda: "gone for a moment" in caplog.text)
        await rd.enqueue("greet", {})
        failing = False
        assert len((await soon(anext(ticks))).events) == 1
    feed.close()
    assert caplog.text.count("gone for a moment") == 1


def test_the_last_id_is_that_of_the_tick() -> None:
    """Who comes back must not be told again what a filter left out."""
    assert write_tick(Tick("5.3", []), []) == b"id: 5.3\n\n"
    assert write_tick(Tick("5.3", [], skipped=True), []) == b"event: skipped\nid: 5.3\ndata: {}\n\n"


async def test_a_server_around_us_that_leaves_ends_the_streams(
    rd: redrive.Redrive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn waits for open streams before it tells anybody that it stops."""

    class Server:
        should_exit = False

        def handle_exit(self, *_: object) -> None: ...

    server, feed = Server(), Feed(rd, pace=0.001)
    monkeypatch.setattr("signal.getsignal", lambda number: server.handle_exit)
    async with aclosing(feed.listen()) as ticks:
        await anext(ticks)
        server.should_exit = True
        with pytest.raises(StopAsyncIteration):
            await soon(anext(ticks))


async def test_streams_need_the_token_too(still: Served) -> None:
    async with httpx2.AsyncClient(base_url=still.url) as nobody:
        assert (await soon(nobody.get("/v1/events"))).status_code == 401


async def test_a_client_that_takes_nothing_is_let_go(still: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real connection whose other end does not read: the server holds a bounded part, then gives up on it."""
    monkeypatch.setattr("redrive.doors.web.feed.SEND_SECONDS", 0.2)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", still.port))
        lines = ["GET /v1/events?every=true HTTP/1.1", f"Host: {still.host}", f"Authorization: Bearer {TOKEN}", "", ""]
        sock.sendall("\r\n".join(lines).encode())
        await eventually(lambda: still.feed.listeners == 1, "it listens")
        for _ in range(40):
            await still.rd.enqueue_many("x" * 200, [{} for _ in range(500)])
            if not still.feed.listeners:
                break
        await eventually(lambda: still.feed.listeners == 0, "it was let go")
    assert (await still.get("/v1/health"))["total_pending"] > 0
