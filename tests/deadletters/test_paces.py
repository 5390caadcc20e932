"""How long the jobs of tasks and queues wait and take, how often they fail, and which groups are new."""

from datetime import timedelta
from pathlib import Path

import pytest

from redrive import Context, Redrive
from redrive.core.deploys import Deploy
from redrive.engine.deploys import read_last_deploy
from redrive.errors import InvalidInput
from tests.support import FakeClock, opened, soon

HOUR = 3600.0


async def worked(rd: Redrive, clock: FakeClock) -> None:
    """Two queues: in one a job waited a minute and took ten seconds, in the other one of two attempts failed."""

    @rd.task("grind", queue="mill")
    async def grind() -> None:
        clock.advance(10)

    @rd.task("bake", queue="oven", max_attempts=3)
    async def bake(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("the oven is cold")

    await grind.enqueue()
    clock.advance(60)
    await soon(rd.drain())
    await bake.enqueue()
    await soon(rd.drain())
    clock.advance(600)
    await soon(rd.drain())


@pytest.mark.behaviour("N-1")
async def test_queues_and_tasks_say_how_long_jobs_wait_and_take_and_how_often_they_fail(
    rd: Redrive, clock: FakeClock
) -> None:
    await worked(rd, clock)
    queues = {queue.name: queue for queue in await rd.queues.list()}
    tasks = {task.name: task for task in await rd.tasks()}
    for view in (queues["mill"], tasks["grind"]):
        assert view.waited is not None and view.took is not None
        assert (view.waited.number, view.waited.p50, view.took.p95) == (1, 60.0, 10.0)
        assert (view.succeeded, view.failed, view.failure_rate) == (1, 0, 0.0)
    for view in (queues["oven"], tasks["bake"]):
        assert (view.succeeded, view.failed, view.failure_rate) == (1, 1, 0.5)
        assert view.waited is not None and view.waited.number == 1, "of the success, after its retry was due"


async def test_a_queue_in_which_nothing_ended_says_nothing(rd: Redrive) -> None:
    await rd.enqueue("later", {}, delay=60)
    (queue,) = await rd.queues.list()
    assert (queue.waited, queue.took, queue.failure_rate) == (None, None, None)
    shown = queue.public()
    assert shown["waited"] is None and shown["failure_rate"] is None and shown["waiting"] == 1


# ---- what is new


async def fail(error: str) -> None:
    raise RuntimeError(error)


async def bury(rd: Redrive, error: str) -> None:
    await rd.task("mill", max_attempts=1, comebacks=())(fail).enqueue(error)
    await soon(rd.drain())


@pytest.mark.behaviour("N-2")
async def test_groups_are_new_since_the_first_worker_of_a_version(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock, version="1.0") as rd:
        await bury(rd, "wheel stuck")
    clock.advance(2 * HOUR)
    deployed = clock.now()
    async with opened(database, clock=clock, version="1.1") as rd:
        await bury(rd, "stone cracked")
    clock.advance(2 * HOUR)
    async with opened(database, clock=clock, version="1.1") as rd:
        await bury(rd, "sieve torn")
        new = await rd.groups.new()
        assert new.deploy == Deploy(deployed, "1.1"), "a restart is no deploy"
        said = [one.group.error for one in new.since_deploy]
        assert said == ["RuntimeError: sieve torn", "RuntimeError: stone cracked"], "the latest first"
        assert [one.group.error for one in new.last_hour] == ["RuntimeError: sieve torn"]
        assert {view.fingerprint for view in await rd.groups.list(new="hour")} == {
            one.group.fingerprint for one in new.last_hour
        }
        assert len(await rd.groups.list(new="deploy")) == 2 and len(await rd.groups.list()) == 3
        with pytest.raises(InvalidInput, match="deploy, hour"):
            await rd.groups.list(new="today")  # type: ignore[arg-type]


async def test_without_a_version_the_last_start_of_a_worker_counts(rd: Redrive, clock: FakeClock) -> None:
    assert (await rd.groups.new()).deploy is None
    await bury(rd, "wheel stuck")
    clock.advance(2 * HOUR)
    await bury(rd, "stone cracked")
    new = await rd.groups.new()
    assert new.deploy is not None and new.deploy.version is None and new.deploy.at == clock.now()
    assert len(new.since_deploy) == len(new.last_hour) == 1


async def test_what_a_person_has_settled_is_not_new(rd: Redrive, clock: FakeClock) -> None:
    for error in ("wheel stuck", "stone cracked", "sieve torn"):
        await bury(rd, error)
    ignored, redriven, left = (await rd.groups.new()).last_hour
    await rd.groups.ignore(ignored.group.fingerprint, until=timedelta(days=1))
    await rd.dead.discard(redriven.group.sample, why="not needed")
    assert [one.group.fingerprint for one in (await rd.groups.new()).last_hour] == [left.group.fingerprint]
    clock.advance(HOUR + 1)
    assert (await rd.groups.new()).last_hour == ()


async def test_a_version_is_written_down_once(database: Path, clock: FakeClock) -> None:
    async with opened(database, clock=clock, version="1.0") as rd:
        for _ in range(3):
            await soon(rd.drain())
            clock.advance(60)
        (kept,) = await rd.store.docs("deploys")
        assert kept.version == 1
        assert await read_last_deploy(rd.store) == Deploy(1_800_000_000.0, "1.0")
