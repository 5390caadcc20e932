"""Tasks in, dead letters and changed retries out: what a bare NATS client in any language sees of a fleet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from redrive import GiveUp, Redrive
from redrive.core.job import Job, State
from redrive.fleet.open_side import exporter
from redrive.stores.open_side.tasks import TaskMessage, Tasks
from redrive.stores.replica.log import LogUnavailable
from tests.nats import Server, cluster, shared_server
from tests.support import DEADLINE

HEADERS = {
    "X-Task-ID": "task-abc123",
    "X-Idempotency-Key": "task-abc123-v1",
    "X-Task-Type": "review",
    "X-Created-At": "2026-03-01T10:00:00Z",
    "X-Max-Retries": "3",
    "X-Retry-Strategy": "categorized",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


class Bare:
    """A program that knows nothing of redrive."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self.context = client.jetstream()
        self.namespace = namespace

    async def publish(self, agent: str, task: str, body: bytes | Any, headers: Mapping[str, str] | None = None) -> int:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        subject = f"{self.namespace}.agents.{agent}.tasks.{task}"
        return (await self.context.publish(subject, data, headers=dict(headers or {}))).seq

    async def messages(self, stream: str) -> int:
        return (await self.context.stream_info(f"RD_{self.namespace}_{stream}")).state.messages

    async def subjects(self, stream: str) -> set[str]:
        """What the stream holds; nothing where it does not exist."""
        with contextlib.suppress(NotFoundError):
            info = await self.context.stream_info(f"RD_{self.namespace}_{stream}", subjects_filter=">")
            return set(info.state.subjects or {})
        return set()

    async def read(self, stream: str, subject: str) -> tuple[Any, Mapping[str, str]]:
        found = await self.context.get_last_msg(f"RD_{self.namespace}_{stream}", subject)
        assert found.data is not None
        return json.loads(found.data), found.headers or {}

    async def letters(self, agent: str) -> set[str]:
        """The ids of the dead letters in an agent's stream."""
        return {subject.rpartition(".")[2] for subject in await self.subjects(f"DLQ_{agent}")}


class Side:
    """A namespace of its own, and apps on it as several processes would be."""

    def __init__(self, folder: Path, servers: Sequence[Server] = (), options: str = "") -> None:
        self.namespace = f"o{secrets.token_hex(6)}"
        self.servers = servers or [shared_server()]
        places = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        self.url = f"nats://{places}/{self.namespace}?max_bytes=16MB&snapshot_bytes=32MB{options}"
        self.folder = folder
        self._number = 0

    def app(self, folder: str | None = None) -> Redrive:
        self._number += 1
        folder = folder or f"replica-{self._number}"
        rd = Redrive(self.url, replica=True, replica_folder=str(self.folder / folder))

        @rd.task(max_attempts=1, comebacks=())
        async def review(document: str, broken: bool = True) -> str:
            if broken:
                raise GiveUp(f"{document} cannot be reviewed")
            return "fine"

        return rd

    @contextlib.asynccontextmanager
    async def bare(self) -> AsyncIterator[Bare]:
        client = await nats.connect(self.servers[0].url)
        try:
            yield Bare(client, self.namespace)
        finally:
            await client.close()


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for what takes no time here."""
    from redrive.fleet.open_side import intake, turns
    from redrive.stores.open_side import tasks

    for module in (turns, intake, exporter):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(tasks, "FETCH_SECONDS", 0.3)
    monkeypatch.setattr(exporter, "PAUSE", 0.02)


@pytest.fixture
async def side(tmp_path: Path) -> Side:
    side = Side(tmp_path)
    async with side.app() as rd:
        await rd.fleet.init()
    return side


async def until(check: Any) -> Any:
    """What the check gives, once it gives something. A stream that has no leader yet does not answer."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        with contextlib.suppress(nats.errors.TimeoutError):
            if found := await check():
                return found
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come")


async def jobs_in(rd: Redrive, *states: State) -> list[Job]:
    found = (await rd.jobs.list()).jobs
    return [job for job in found if not states or job.state in states]


# -- the whole way


@pytest.mark.behaviour("F-40", "004-33", "004-50")
async def test_a_task_of_a_bare_client_dies_is_told_redriven_with_a_change_and_done(side: Side) -> None:
    await _goes_the_whole_way(side)


@pytest.mark.behaviour("F-40", "004-33")
async def test_the_whole_way_on_a_cluster_of_three(tmp_path: Path) -> None:
    with cluster(tmp_path / "cluster") as servers:
        side = Side(tmp_path, servers, "&replicas=3")
        async with side.app() as rd:
            assert {stream.replicas for stream in await rd.fleet.init()} == {3}
        await _goes_the_whole_way(side)


async def _goes_the_whole_way(side: Side) -> None:
    async with side.app() as rd, rd.serving_hub(), rd.worker(), side.bare() as bare:
        await bare.publish("legal", "review", {"document": "contract"}, HEADERS)
        (subject,) = await until(lambda: bare.subjects("DLQ_legal"))
        (job,) = await jobs_in(rd)
        assert subject == f"{side.namespace}.dlq.legal.review.{job.category}.{job.id}"
        letter, headers = await bare.read("DLQ_legal", subject)
        assert letter["payload"] == {"document": "contract"}
        assert (letter["agent"], letter["task"], letter["redrive_id"]) == ("legal", "review", job.id)
        assert "cannot be reviewed" in letter["error"]
        assert headers["Redrive-Version"] == str(letter["version"]) == str(job.version)
        assert await bare.messages("TASKS") == 0

        await rd.dead.edit(job.id, {"document": "contract", "broken": False}, who="ada", why="it is fine")
        await until(lambda: jobs_in(rd, State.done))
        (told,) = await until(lambda: bare.subjects("RETRY"))
        assert told == f"{side.namespace}.retry.legal.{job.id}"
        retry, _ = await bare.read("RETRY", told)
        assert retry["changes"][0]["payload"] == {"document": "contract", "broken": False}
        assert (retry["move"], retry["who"]) == ("redriven", "ada")
        await until(lambda: _gone(bare, "legal", job.id))


SEVEN = ("ceo", "research", "frontend", "backend", "qa", "devops", "legal")


@pytest.mark.behaviour("F-40", "F-48", "004-32", "004-33", "004-49")
async def test_seven_agents_on_a_cluster_of_three_retry_reassign_defer_and_discard(tmp_path: Path) -> None:
    """Tasks of a bare client, a worker for each agent, and monitor, triage and retry in a process of their own."""
    with cluster(tmp_path / "cluster") as servers:
        side = Side(tmp_path, servers, "&replicas=3")
        async with contextlib.AsyncExitStack() as stack:
            hub = await stack.enter_async_context(side.app())
            await hub.fleet.init()
            await stack.enter_async_context(hub.serving_hub())
            ran: dict[str, set[str]] = {agent: set() for agent in SEVEN}
            for agent in SEVEN:
                worker = await stack.enter_async_context(_agent(side, agent, ran))
                await stack.enter_async_context(worker.worker(agents=[agent], scheduler=False))
            await stack.enter_async_context(side.app().fleet.roles("monitor", "triage", "retry"))
            bare = await stack.enter_async_context(side.bare())
            for agent in SEVEN:
                body = {"document": agent, "broken": agent in ("qa", "devops", "legal", "backend")}
                headers = HEADERS | {"X-Task-ID": agent, "X-Idempotency-Key": f"{agent}-v1"}
                await bare.publish(agent, "review", body, headers)
            await _sees_to_four_dead_letters(hub, bare)
            assert ran == {agent: {agent} for agent in SEVEN} | {"frontend": {"frontend", "legal"}}
            jobs = {job.key: job for job in await jobs_in(hub)}
            assert jobs.pop("qa-v1").state is State.discarded
            assert {job.state for job in jobs.values()} == {State.done}
            retries = await until(lambda: bare.subjects("RETRY"))
            assert {subject.rsplit(".", 2)[1] for subject in retries} >= {"backend", "frontend"}


async def _sees_to_four_dead_letters(hub: Redrive, bare: Bare) -> None:
    """What people do by what the streams tell them."""
    letters = {agent: await until(lambda: bare.letters(agent)) for agent in ("qa", "devops", "legal", "backend")}  # noqa: B023
    ids = {agent: id for agent, (id,) in letters.items()}
    for agent, id in ids.items():
        (subject,) = await until(lambda: bare.subjects(f"DLQ_{agent}"))  # noqa: B023
        _, headers = await bare.read(f"DLQ_{agent}", subject)
        assert (headers["X-Task-ID"], headers["X-Idempotency-Key"]) == (agent, f"{agent}-v1")
        assert {name: headers[name] for name in HEADERS.keys() - {"X-Task-ID", "X-Idempotency-Key"}} == {
            name: HEADERS[name] for name in HEADERS.keys() - {"X-Task-ID", "X-Idempotency-Key"}
        }
        assert headers["Redrive-Id"] == id
    fine = {"broken": False}
    await hub.dead.discard(ids["qa"], who="ada")
    await hub.dead.edit(ids["backend"], {"document": "backend", **fine}, who="ada")
    await hub.dead.reassign(ids["legal"], agent="frontend", who="ada")
    await hub.dead.defer(ids["devops"], owner="ada", until=0.5, who="ada")
    await until(lambda: _was_recalled(hub, ids["devops"]))
    assert await until(lambda: bare.letters("devops")) == {ids["devops"]}, "the triage brings back what was put off"
    await hub.dead.edit(ids["devops"], {"document": "devops", **fine}, who="ada")
    await until(lambda: _six_done(hub))
    for agent, id in ids.items():
        await until(lambda: _gone(bare, agent, id))  # noqa: B023


async def _was_recalled(rd: Redrive, id: str) -> bool:
    return "recalled" in {event.move for event in await rd.store.story(id)}


async def _six_done(rd: Redrive) -> bool:
    return len(await jobs_in(rd, State.done)) == 6


@contextlib.asynccontextmanager
async def _agent(side: Side, agent: str, ran: dict[str, set[str]]) -> AsyncIterator[Redrive]:
    """A worker without a file, as on a host of its own."""
    rd = Redrive(side.url, replica_folder=str(side.folder / f"agent-{agent}"), poll=0.2)

    @rd.task(max_attempts=1, comebacks=())
    async def review(document: str, broken: bool = True) -> str:
        ran[agent].add(document)
        if broken and agent != "frontend":
            raise GiveUp(f"{document} cannot be reviewed")
        return "fine"

    async with rd:
        yield rd


@pytest.mark.behaviour("B45")
async def test_how_often_and_how_soon_a_task_is_delivered_is_one_setting_and_holds(side: Side) -> None:
    """Somebody who changes the consumer by hand loses no task by it: what redrive says is put back."""
    from redrive.stores.open_side import streams

    stream = f"RD_{side.namespace}_TASKS"
    async with side.bare() as bare:
        config = (await bare.context.consumer_info(stream, "intake")).config
        assert (config.max_deliver, config.ack_wait) == (-1, streams.ACK_SECONDS)
        config.max_deliver, config.ack_wait = 2, 1.0
        await bare.context.add_consumer(stream, config)
        async with side.app() as rd, rd.serving_hub(), rd.worker():
            await bare.publish("legal", "review", {"document": "contract", "broken": False})
            await until(lambda: jobs_in(rd, State.done))
            config = (await bare.context.consumer_info(stream, "intake")).config
        assert (config.max_deliver, config.ack_wait, config.backoff) == (-1, streams.ACK_SECONDS, None)


@pytest.mark.behaviour("004-38")
async def test_a_retry_that_leaves_its_stream_before_its_job_has_ended_is_told(
    side: Side, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exporter, "SWEEP_SECONDS", 0.1)
    stream = f"RD_{side.namespace}_RETRY"
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        config = (await bare.context.stream_info(stream)).config
        assert (config.max_msgs, config.max_age) == (1_000, 86_400)
        handle = await rd.enqueue("review", {"document": "contract"}, agent="legal")
        await rd.drain()
        await rd.dead.edit(handle.id, {"document": "contract", "broken": False}, who="ada")
        await until(lambda: bare.subjects("RETRY"))
        kept = (await until(lambda: _follower_saw(rd, handle.id))) and handle.id[-8:]
        await bare.context.purge_stream(stream)

        async def told() -> bool:
            return f"the retry of job {kept}" in caplog.text

        await until(told)


async def _follower_saw(rd: Redrive, id: str) -> bool:
    """Both sides have been compared since the retry was told."""
    await asyncio.sleep(0.5)
    return True


async def _gone(bare: Bare, agent: str, id: str) -> bool:
    return id not in await bare.letters(agent)


@pytest.mark.behaviour("F-41")
async def test_the_headers_of_a_task_stay_with_its_job(side: Side) -> None:
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        await bare.publish("legal", "review", {"document": "contract"}, {**HEADERS, "Nats-Msg-Id": "task-abc123-v1"})
        (job,) = await until(lambda: jobs_in(rd))
        assert job.options.headers == HEADERS
        assert job.options.traceparent == HEADERS["traceparent"]
        assert (job.key, job.agent, job.task, job.allowed) == ("task-abc123-v1", "legal", "review", 4)


@pytest.mark.behaviour("F-41")
async def test_the_same_key_twice_is_one_job_and_no_key_is_one_job_each(side: Side) -> None:
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        for _ in range(2):
            await bare.publish("legal", "review", {"document": "a"}, {"X-Idempotency-Key": "a-1"})
            await bare.publish("legal", "review", {"document": "b"})
        await until(lambda: _empty(bare))
        assert len(await jobs_in(rd)) == 3


async def _empty(bare: Bare) -> bool:
    return await bare.messages("TASKS") == 0


@pytest.mark.behaviour("F-40", "004-31", "004-36")
async def test_the_streams_keep_what_the_document_says(side: Side) -> None:
    async with side.bare() as bare:
        info, name = bare.context.stream_info, f"RD_{side.namespace}"
        tasks = (await info(f"{name}_TASKS")).config
        letters = (await info(f"{name}_DLQ_none")).config
        retries = (await info(f"{name}_RETRY")).config
        intake = (await bare.context.consumer_info(f"{name}_TASKS", "intake")).config
    assert (tasks.retention, tasks.discard, tasks.duplicate_window) == ("workqueue", "new", 300)
    assert (letters.max_msgs, letters.max_age, letters.discard, letters.max_msgs_per_subject) == (10_000, 0, "new", 1)
    assert (retries.max_msgs, retries.max_age) == (1_000, 86_400)
    assert {tasks.storage, letters.storage, retries.storage} == {"file"}
    assert (intake.ack_policy, intake.max_deliver) == ("explicit", -1)


@pytest.mark.behaviour("F-44", "004-56", "B47")
async def test_a_dead_letter_that_dies_again_stands_there_once_and_newer(side: Side) -> None:
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        await rd.enqueue("review", {"document": "contract"}, agent="legal adviser/7")
        await rd.drain()
        stream = await until(lambda: _stream_of(bare, "legal-adviser-7-"))
        (subject,) = await bare.subjects(stream)
        first, _ = await bare.read(stream, subject)
        assert first["agent"] == "legal adviser/7"
        await rd.dead.redrive(first["redrive_id"], who="ada")
        await rd.drain()
        await until(lambda: _newer(bare, stream, subject, first["version"]))
        assert await bare.messages(stream) == 1


async def _stream_of(bare: Bare, begins: str) -> str | None:
    """The part of the name of a stream of dead letters, once it holds one."""
    prefix = f"RD_{bare.namespace}_"
    names = [info.config.name or "" for info in await bare.context.streams_info()]
    found = [name.removeprefix(prefix) for name in names if name.startswith(f"{prefix}DLQ_{begins}")]
    return found[0] if found and await bare.subjects(found[0]) else None


async def _newer(bare: Bare, stream: str, subject: str, version: int) -> bool:
    with contextlib.suppress(NotFoundError):
        letter, _ = await bare.read(stream, subject)
        return bool(letter["version"] > version)
    return False


# -- what cannot be a job


@pytest.mark.behaviour("F-42")
@pytest.mark.parametrize("body", [b'{"document": ', b"\xff\xfe", b"[1, 2]", b"7"])
async def test_what_cannot_be_read_is_a_dead_letter_and_leaves_the_work_queue(side: Side, body: bytes) -> None:
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        sequence = await bare.publish("legal", "review", body, HEADERS)
        (job,) = await until(lambda: jobs_in(rd, State.dead))
        assert job.error is not None
        assert "body: " in job.error
        assert (job.task, job.agent, job.lane) == ("review", "legal", "manual")
        assert job.key is not None
        assert job.key.endswith(f"/{sequence}")
        await until(lambda: _empty(bare))
        assert await until(lambda: bare.letters("legal")) == {job.id}
        letter, _ = await bare.read("DLQ_legal", next(iter(await bare.subjects("DLQ_legal"))))
        assert letter["payload"] in (body.decode("utf-8", "backslashreplace"), [1, 2], 7)


@pytest.mark.behaviour("F-42")
async def test_a_task_that_no_worker_knows_is_a_dead_letter_with_its_input(side: Side) -> None:
    async with side.app() as worker, side.app() as hub, worker.worker(), side.bare() as bare:
        hub.registry.handlers.pop("review")
        await until(lambda: _announced(worker))
        async with hub.serving_hub():
            await bare.publish("legal", "typo", {"document": "contract"})
            (job,) = await until(lambda: jobs_in(hub, State.dead))
            assert (job.task, job.arguments) == ("typo", {"document": "contract"})
            assert job.error is not None
            assert "no worker knows the task 'typo'" in job.error
            await until(lambda: _empty(bare))


async def _announced(rd: Redrive) -> bool:
    from redrive.engine.worker_registry import list_living

    return any("review" in worker.tasks for worker in await list_living(rd.store, rd.clock.now()))


@pytest.mark.behaviour("F-42")
async def test_a_task_waits_for_its_worker_where_none_lives_or_its_worker_is_restarted(side: Side) -> None:
    async with side.app() as hub, hub.serving_hub(), side.bare() as bare:
        await bare.publish("legal", "later", {"document": "contract"})
        (job,) = await until(lambda: jobs_in(hub))
        assert job.state is State.waiting
        async with side.app() as worker, worker.worker():
            hub.registry.handlers.pop("review")
            await until(lambda: _announced(worker))
            await bare.publish("legal", "later", {"document": "other"})
            assert len(await until(lambda: _several(hub, 2))) == 2
            assert not await jobs_in(hub, State.dead)


async def _several(rd: Redrive, number: int) -> list[Job]:
    found = await jobs_in(rd)
    return found if len(found) >= number else []


@pytest.mark.behaviour("F-42")
@pytest.mark.parametrize(
    ("headers", "field"),
    [({"X-Max-Retries": "many"}, "X-Max-Retries"), ({"X-Idempotency-Key": "k" * 3_000}, "idempotency_key")],
)
async def test_a_header_that_cannot_be_used_is_named_in_the_dead_letter(
    side: Side, headers: dict[str, str], field: str
) -> None:
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        await bare.publish("legal", "review", {"document": "contract"}, headers)
        (job,) = await until(lambda: jobs_in(rd, State.dead))
        assert job.error is not None
        assert field in job.error
        await until(lambda: _empty(bare))


@pytest.mark.behaviour("F-42")
async def test_a_key_that_stands_for_something_else_makes_a_dead_letter_beside_the_job(side: Side) -> None:
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        await bare.publish("legal", "review", {"document": "a"}, {"X-Idempotency-Key": "same"})
        await until(lambda: jobs_in(rd, State.waiting))
        await bare.publish("legal", "review", {"document": "b"}, {"X-Idempotency-Key": "same"})
        (letter,) = await until(lambda: jobs_in(rd, State.dead))
        assert letter.arguments == {"document": "b"}
        assert len(await jobs_in(rd)) == 2


# -- crashes and overlaps


@pytest.mark.behaviour("F-43")
async def test_an_intake_that_ends_between_commit_and_ack_makes_one_job(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _jobs_of_a_task_that_is_not_acknowledged(side, monkeypatch) == 1


@pytest.mark.behaviour("F-43")
async def test_control_without_the_place_of_a_task_it_would_be_several_jobs(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskMessage, "place", property(lambda _: secrets.token_hex(8)))
    assert await _jobs_of_a_task_that_is_not_acknowledged(side, monkeypatch) > 1


async def _jobs_of_a_task_that_is_not_acknowledged(side: Side, monkeypatch: pytest.MonkeyPatch) -> int:
    """Published once, without a key; the intake commits its job and is gone, twice at least."""
    acked, unacked = Tasks.acknowledge, 0

    async def lost(self: Tasks, message: Any) -> None:
        nonlocal unacked
        unacked += 1
        raise LogUnavailable("the process ended here")

    monkeypatch.setattr(Tasks, "acknowledge", lost)
    short_ack_wait(monkeypatch)
    async with side.app() as rd, side.bare() as bare:
        async with rd.serving_hub():
            await bare.publish("legal", "review", {"document": "contract"})
            await until(lambda: _all_true(unacked >= 2))
            assert await bare.messages("TASKS") == 1
        monkeypatch.setattr(Tasks, "acknowledge", acked)
        async with rd.serving_hub():
            await until(lambda: _empty(bare))
        return len(await jobs_in(rd))


async def _all_true(value: bool) -> bool:
    return value


def short_ack_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are handed out again after half a second instead of thirty; the intake brings its consumer up to date."""
    monkeypatch.setattr("redrive.stores.open_side.streams.ACK_SECONDS", 0.5)


DYING_HUB = """
    import asyncio, os, signal, sys
    import redrive
    from redrive.stores.open_side import streams
    from redrive.stores.open_side.tasks import Tasks

    streams.ACK_SECONDS = 0.5

    async def die(self, message):
        os.kill(os.getpid(), signal.SIGKILL)

    Tasks.acknowledge = die

    async def main():
        rd = redrive.Redrive(sys.argv[1], replica=True, replica_folder=sys.argv[2])
        async with rd, rd.serving_hub():
            await asyncio.sleep(60)

    asyncio.run(main())
"""


@pytest.mark.behaviour("F-43")
async def test_a_hub_that_is_killed_between_commit_and_ack_leaves_one_job(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_ack_wait(monkeypatch)
    async with side.bare() as bare:
        await bare.publish("legal", "review", {"document": "contract"})
        script, folder = textwrap.dedent(DYING_HUB), str(side.folder / "shared")
        dying = await asyncio.create_subprocess_exec(sys.executable, "-c", script, side.url, folder)
        try:
            async with asyncio.timeout(DEADLINE):
                assert await dying.wait() == -signal.SIGKILL
        finally:
            if dying.returncode is None:
                dying.kill()
                await dying.wait()
        async with side.app("shared") as rd:
            assert len(await jobs_in(rd)) == 1
            assert await bare.messages("TASKS") == 1
            async with rd.serving_hub():
                await until(lambda: _empty(bare))
            assert len(await jobs_in(rd)) == 1


@pytest.mark.behaviour("F-43")
async def test_two_hubs_take_each_task_in_once(side: Side) -> None:
    async with side.app() as one, side.app() as other, one.serving_hub(), other.serving_hub(), side.bare() as bare:
        for number in range(50):
            await bare.publish("legal", "review", {"document": str(number)})
        await until(lambda: _empty(bare))
        assert len(await jobs_in(one)) == 50


@pytest.mark.behaviour("F-44", "B46")
async def test_dead_letters_of_the_time_without_a_monitor_are_told_when_one_starts(side: Side) -> None:
    async with side.app() as rd, side.bare() as bare:
        async with rd.serving_hub():
            await rd.enqueue("review", {"document": "0"}, agent="legal")
            await rd.drain()
            first = await until(lambda: bare.letters("legal"))
        for number in range(1, 25):
            await rd.enqueue("review", {"document": str(number)}, agent="legal" if number % 2 else None)
        await rd.drain()
        (gone,) = first
        await rd.dead.discard(gone, who="ada")
        assert await bare.letters("legal") == first
        dead = {job.id for job in await jobs_in(rd, State.dead)}
        async with rd.serving_hub():
            await until(lambda: _holds(bare, dead))
    assert len(dead) == 24


async def _holds(bare: Bare, ids: set[str]) -> bool:
    return await bare.letters("legal") | await bare.letters("none") == ids


@pytest.mark.behaviour("F-44")
@pytest.mark.parametrize("change", ["discard", "reassign", "redrive", "defer", "purge"])
async def test_whatever_is_done_to_a_dead_letter_removes_it_from_its_stream(side: Side, change: str) -> None:
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        await rd.enqueue("review", {"document": "contract"}, agent="legal")
        await rd.drain()
        (id,) = await until(lambda: bare.letters("legal"))
        match change:
            case "reassign":
                await rd.dead.reassign(id, agent="other", who="ada")
            case "defer":
                await rd.dead.defer(id, owner="ada", until=3600.0, who="ada")
            case "purge":
                await rd.dead.purge([id], who="ada")
            case "discard":
                await rd.dead.discard(id, who="ada")
            case _:
                await rd.dead.redrive(id, who="ada")
        await until(lambda: _gone(bare, "legal", id))
        if change == "reassign":
            (told,) = await until(lambda: bare.subjects("RETRY"))
            assert told.endswith(f".retry.other.{id}")
        if change == "discard":
            await rd.dead.restore(id, who="ada")
            assert await until(lambda: bare.letters("legal")) == {id}


@pytest.mark.behaviour("F-44")
async def test_what_is_erased_is_gone_from_the_streams(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "SWEEP_SECONDS", 0.2)
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        for document in ("dead", "done"):
            await rd.enqueue("review", {"document": document}, agent="legal")
        await rd.drain()
        await until(lambda: _all_letters(bare, 2))
        done, dead = [job.id for job in await jobs_in(rd, State.dead)]
        await rd.dead.edit(done, {"document": "done", "broken": False}, who="ada")
        await rd.drain()
        await until(lambda: bare.subjects("RETRY"))
        await rd.jobs.erase(done)
        await rd.jobs.erase(dead)
        await until(lambda: _nothing_left(bare))


async def _all_letters(bare: Bare, number: int) -> bool:
    return len(await bare.letters("legal")) == number


async def _nothing_left(bare: Bare) -> bool:
    return not await bare.letters("legal") and not await bare.subjects("RETRY")


@pytest.mark.behaviour("F-40")
async def test_the_example_of_the_page_publishes_a_task(side: Side) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/nats-clients.md").read_text("utf-8")
    block = page.split("```python\n")[1].split("```")[0]
    text = block.replace("nats://127.0.0.1:4222", shared_server().url).replace("acme.", f"{side.namespace}.")
    async with side.app() as rd, rd.serving_hub():
        ran = await asyncio.create_subprocess_exec(sys.executable, "-c", text)
        async with asyncio.timeout(DEADLINE):
            assert await ran.wait() == 0
        (job,) = await until(lambda: jobs_in(rd))
        assert (job.key, job.agent, job.arguments) == ("task-7-v1", "legal", {"document": "contract"})


@pytest.mark.behaviour("F-44")
async def test_a_retry_that_changes_nothing_is_not_told(side: Side) -> None:
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        await rd.enqueue("review", {"document": "contract"}, agent="legal")
        await rd.drain()
        (id,) = await until(lambda: bare.letters("legal"))
        await rd.dead.redrive(id, who="ada")
        await until(lambda: _gone(bare, "legal", id))
        assert await bare.subjects("RETRY") == set()


@pytest.mark.behaviour("F-45", "004-36", "004-56")
async def test_a_full_stream_is_told_and_the_rest_follows_once_there_is_room(
    side: Side, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "FULL_SECONDS", 0.2)
    async with side.app() as rd, rd.serving_hub(), side.bare() as bare:
        await rd.fleet.init(agents={"legal": 2})
        with caplog.at_level(logging.WARNING, "redrive.open_side"):
            for number in range(5):
                await rd.enqueue("review", {"document": str(number)}, agent="legal")
            await rd.drain()
            await until(lambda: _all_true(f"RD_{side.namespace}_DLQ_legal is full" in caplog.text))
        kept = await bare.letters("legal")
        assert len(kept) == 2
        assert len(await jobs_in(rd, State.dead)) == 5
        assert caplog.text.count("is full") == 1
        full = [stream.name for stream in (await rd.fleet.status()).streams if stream.full]
        assert full == [f"RD_{side.namespace}_DLQ_legal"]
        for id in kept:
            await rd.dead.discard(id, who="ada")
        await until(lambda: _all_new(bare, kept))


async def _all_new(bare: Bare, before: set[str]) -> bool:
    found = await bare.letters("legal")
    return len(found) == 2 and not found & before


@pytest.mark.behaviour("F-45", "B47")
async def test_a_monitor_that_stood_still_does_not_overwrite_or_remove_what_is_newer(side: Side) -> None:
    from redrive.jobs.records import make_line
    from redrive.stores.open_side.exports import Exports
    from redrive.stores.open_side.names import OpenNames
    from redrive.stores.replica.nats_address import read_address
    from redrive.stores.replica.nats_connection import Connection

    async with side.app() as rd, side.bare() as bare:
        await rd.enqueue("review", {"document": "contract"}, agent="legal")
        await rd.drain()
        (job,) = await jobs_in(rd, State.dead)
        connection = Connection(read_address(side.url))
        await connection.open(10)
        try:
            exports, names = Exports(connection, OpenNames(side.namespace)), OpenNames(side.namespace)
            newer = _of_version(job, job.version + 1)
            await exports.put(newer, b'{"newer": true}', {})
            await exports.put(job, make_line(job), {})
            await exports.drop(names.dead_letter_subject(job), job.version)
            assert (await bare.read("DLQ_legal", names.dead_letter_subject(job)))[0] == {"newer": True}
            await exports.drop(names.dead_letter_subject(job), newer.version)
            assert await bare.letters("legal") == set()
        finally:
            await connection.close()


def _of_version(job: Job, version: int) -> Job:
    return msgspec.structs.replace(job, version=version)
