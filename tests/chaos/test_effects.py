"""Effects that happen once: processes killed at every place between an effect and its record, and by the storm."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Item, Redrive
from redrive.core.job import Job, keyed_id
from tests.chaos.effects import AROUND_A_MANIFEST, AROUND_ONCE, UNCERTAIN, make_app
from tests.chaos.processes import Child, Zygote, until
from tests.chaos.receiver import KINDS, Receiver

pytestmark = pytest.mark.chaos

IN_DOUBT = {"after intended", "before it is sent", "sent", "answered", "before landed"}
"""The intent is on disk, its end is not: whoever comes next cannot know."""
DONE_BY_THEN = {"sent", "answered", "before landed", "after landed", "before the end", "before it is settled"}


class Scene:
    """One store, one job, one process that dies at a place, and a worker that comes after it."""

    def __init__(self, zygote: Zygote, folder: Path, outside: Receiver, port: int) -> None:
        self.zygote = zygote
        self.folder = folder
        self.outside = outside
        self.port = port
        self.rd = make_app(folder, port)

    def start(self, role: str, **how: Any) -> Child:
        return self.zygote.start(
            f"tests.chaos.effects:{role}", log=self.folder / f"{role}.log", folder=self.folder, port=self.port, **how
        )

    async def die(self, role: str, **how: Any) -> None:
        child = self.start(role, **how)
        assert await child.exited() == -signal.SIGKILL, child.log()

    async def come_to_rest(self, job_id: str) -> Job:
        """A worker takes what the dead one left; the job as it is then."""
        child = self.start("worker")

        async def rests() -> bool:
            found = await self.rd.store.get([job_id])
            return bool(found) and found[0].state in ("done", "held", "dead")

        await until(f"the job rests\n{child.log()}", rests)
        child.send(signal.SIGTERM)
        await child.exited()
        return await self.rd.jobs.get(job_id)


async def staged(zygote: Zygote, folder: Path, scenes: dict[str, Callable[[Scene], Any]]) -> dict[str, Any]:
    """Play scenes side by side, each in a folder of its own, at most three at once."""
    outside, found, stage = Receiver(), {}, asyncio.Semaphore(3)
    with outside.serving() as port:

        async def play(name: str, scene: Callable[[Scene], Any]) -> None:
            async with stage:
                place = folder / name.replace(" ", "_").replace("/", "_")
                place.mkdir()
                one = Scene(zygote, place, outside, port)
                async with one.rd:
                    found[name] = await scene(one)

        await asyncio.gather(*(play(name, scene) for name, scene in scenes.items()))
    return found


def expected(kind: str, point: str) -> tuple[str, int]:
    """How a job rests, and how often its effect happened."""
    if kind == "neither" and point in IN_DOUBT:
        return "outcome_unknown", 1 if point in DONE_BY_THEN else 0
    return "done", 1


def rest(job: Job) -> str:
    return job.because or str(job.state) if job.state != "done" else "done"


# ---- at every place between the effect and the record


@pytest.mark.behaviour("C38", "B48", "004-48", "B24")
@pytest.mark.parametrize("kind", KINDS)
async def test_killed_at_every_place_around_once(zygote: Zygote, folder: Path, kind: str) -> None:
    def scene(point: str) -> Callable[[Scene], Any]:
        async def play(on: Scene) -> tuple[str, int]:
            key = f"{kind}-{point.replace(' ', '-')}"
            handle = await on.rd.enqueue(kind, {"n": 1}, idempotency_key=key)
            await on.die("worker", deadly=point)
            if point in DONE_BY_THEN:
                await until("the request arrives", lambda: on.outside.effects[f"{key}:post"])
            job = await on.come_to_rest(handle.id)
            return rest(job), on.outside.effects[f"{key}:post"]

        return play

    found = await staged(zygote, folder, {point: scene(point) for point in AROUND_ONCE})
    assert found == {point: expected(kind, point) for point in AROUND_ONCE}


@pytest.mark.behaviour("C38", "B48")
async def test_control_without_once_the_same_kills_double(zygote: Zygote, folder: Path) -> None:
    async def play(on: Scene) -> int:
        handle = await on.rd.enqueue("askable", {"n": 1}, idempotency_key="control")
        await on.die("worker", deadly="answered", guarded=False)
        child = on.start("worker", guarded=False)

        async def done() -> bool:
            return (await on.rd.store.get([handle.id]))[0].state == "done"

        await until("the job is done", done)
        child.send(signal.SIGTERM)
        await child.exited()
        return on.outside.effects["control:post"]

    assert await staged(zygote, folder, {"control": play}) == {"control": 2}


@pytest.mark.behaviour("C38", "B24")
async def test_a_caller_killed_at_every_place_leaves_the_job(zygote: Zygote, folder: Path) -> None:
    """The operation is on disk as running before the task begins: a worker takes it over, and repeats nothing."""

    def scene(point: str) -> Callable[[Scene], Any]:
        async def play(on: Scene) -> tuple[str, int, int]:
            key = f"called-{point.replace(' ', '-')}"
            await on.die("caller", key=key, deadly=point)
            (left,) = await on.rd.store.get([keyed_id("askable", key)])
            assert (left.state, left.run) == ("running", 1), point
            job = await on.come_to_rest(left.id)
            return rest(job), on.outside.effects[f"{key}:post"], job.crashes

        return play

    found = await staged(zygote, folder, {point: scene(point) for point in AROUND_ONCE})
    assert found == dict.fromkeys(AROUND_ONCE, ("done", 1, 1))


# ---- manifests: the same, seen from outside


@pytest.mark.behaviour("C38", "B3", "003-57")
async def test_killed_at_every_place_around_a_manifest(zygote: Zygote, folder: Path) -> None:
    def scene(number: int, point: str) -> Callable[[Scene], Any]:
        async def play(on: Scene) -> tuple[str, int, int]:
            handle = await on.rd.enqueue("note", {"n": number})
            await on.die("worker", deadly=point)
            if point in DONE_BY_THEN:
                await until("the request arrives", lambda: on.outside.effects[f"note-{number}"])
            job = await on.come_to_rest(handle.id)
            return rest(job), on.outside.effects[f"note-{number}"], on.outside.posts[f"note-{number}"]

        return play

    scenes = {point: scene(number, point) for number, point in enumerate(AROUND_A_MANIFEST)}
    assert await staged(zygote, folder, scenes) == dict.fromkeys(AROUND_A_MANIFEST, ("done", 1, 1))


async def late_commit(zygote: Zygote, folder: Path, point: str, *, guarded: bool = True) -> tuple[str, int, str]:
    """No answer, not there at first sight, killed at a place, lands, and is taken up again."""

    async def play(on: Scene) -> tuple[str, int, str]:
        handle = await on.rd.enqueue("note", {"n": 1, "kind": "late", "patience": 0.2})
        if point == "while it waits":
            child = on.start("worker", guarded=guarded)

            async def waits() -> bool:
                (job,) = await on.rd.store.get([handle.id])
                return job.state == "waiting" and job.attempts == 1

            await until("the first attempt has failed", waits)
            child.send(signal.SIGKILL)
            await child.exited()
        else:
            await on.die("worker", deadly=point, guarded=guarded)
        assert on.outside.posts["note-1"] >= 1 and not on.outside.effects["note-1"], "nothing has landed yet"
        posts = on.outside.posts["note-1"]
        on.outside.late.set()
        await until("it lands", lambda: on.outside.effects["note-1"] == posts)
        if guarded:
            job = await on.come_to_rest(handle.id)
            return rest(job), on.outside.effects["note-1"], job.history[-1].outcome
        child = on.start("worker", guarded=False)

        async def done() -> bool:
            return (await on.rd.store.get([handle.id]))[0].state == "done"

        await until("the job is done", done)
        child.send(signal.SIGTERM)
        await child.exited()
        return "done", on.outside.effects["note-1"], "done"

    (found,) = (await staged(zygote, folder, {point: play})).values()
    return found  # type: ignore[no-any-return]


@pytest.mark.behaviour("B3", "C38")
@pytest.mark.parametrize("point", UNCERTAIN)
async def test_b3_late_commit_race(zygote: Zygote, folder: Path, point: str) -> None:
    """Seen as absent (T1), landed (T2), taken up again (T3): found, and not done a second time."""
    assert await late_commit(zygote, folder, point) == ("done", 1, "recovered")


@pytest.mark.behaviour("B3")
async def test_control_without_the_second_look_the_late_commit_doubles(zygote: Zygote, folder: Path) -> None:
    assert await late_commit(zygote, folder, "before it is settled", guarded=False) == ("done", 2, "done")


# ---- the storm


class Storm:
    """Workers that are killed at random and replaced at once."""

    def __init__(self, zygote: Zygote, folder: Path, port: int, seed: int, *, guarded: bool = True) -> None:
        self.rng = random.Random(seed)
        self.zygote = zygote
        self.folder = folder
        self.port = port
        self.guarded = guarded
        self.rd: Redrive = make_app(folder, port)
        self.children: list[Child] = []

    def hire(self) -> None:
        while len(self.children) < 3:
            self.children.append(
                self.zygote.start(
                    "tests.chaos.effects:worker", log=self.folder / "workers.log", folder=self.folder, port=self.port,
                    concurrency=6, guarded=self.guarded,
                )
            )  # fmt: skip

    async def strike(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.030, 0.150))
        victim = self.children.pop(self.rng.randrange(len(self.children)))
        assert victim.running(), victim.log()
        victim.send(signal.SIGKILL)
        self.hire()

    async def at_rest(self) -> bool:
        totals = (await self.rd.stats())["totals"]
        return not totals["waiting"] and not totals["running"]

    async def calm(self) -> None:
        """No more kills; what died too often beside others is brought back."""
        for _ in range(4):
            await until("everything rests", self.at_rest, 120.0)
            dead = (await self.rd.dead.list(limit=10_000)).jobs
            if not dead:
                return
            assert {job.because for job in dead} == {"crash_loop"}
            for job in dead:
                await self.rd.dead.redrive(job.id, who="storm", why="bystander")
        raise AssertionError("jobs keep dying without kills")

    async def end(self) -> None:
        for child in self.children:
            child.send(signal.SIGKILL)
            await child.exited()

    async def jobs(self, ids: list[str]) -> list[Job]:
        return [job for start in range(0, len(ids), 500) for job in await self.rd.store.get(ids[start : start + 500])]


async def weathered(
    zygote: Zygote, folder: Path, seed: int, tasks: int, kills: int, *, guarded: bool = True
) -> tuple[dict[str, Job], Receiver]:
    """Jobs for all kinds of receivers, by key, after the storm."""
    outside = Receiver(slow=0.005)
    with outside.serving() as port:
        storm = Storm(zygote, folder, port, seed, guarded=guarded)
        async with storm.rd:
            keys: dict[str, str] = {}
            for kind in KINDS:
                wanted = [f"{kind}-{n}" for n in range(-(-tasks // len(KINDS)))]
                many = await storm.rd.enqueue_many(kind, [Item({"n": 1}, idempotency_key=key) for key in wanted])
                assert many.accepted == len(wanted)
                keys |= dict(zip(map(str, many.ids), wanted, strict=True))
            storm.hire()
            for _ in range(kills):
                await storm.strike()
            await storm.calm()
            jobs = {keys[job.id]: job for job in await storm.jobs(list(keys))}
            await storm.end()
    assert len(jobs) == len(keys), "what was accepted is stored"
    return jobs, outside


@pytest.mark.behaviour("C38", "B48")
async def test_effects_in_a_storm(zygote: Zygote, folder: Path, seed: int, size: Callable[[int, int], int]) -> None:
    jobs, outside = await weathered(zygote, folder, seed, size(1_000, 10_000), size(50, 600))
    happened = Counter({key: outside.effects[f"{key}:post"] for key in jobs})
    assert max(happened.values()) == 1, "nothing happened twice"
    for key, job in jobs.items():
        if key.startswith("neither") and job.state == "held":
            assert job.because == "outcome_unknown" and "receiver" in str(job.recommendation)
        else:
            assert (job.state, happened[key]) == ("done", 1), key
    assert sum(job.crashes for job in jobs.values()) > 0, "no kill hit a running job: this storm proved nothing"
    assert set(outside.effects) <= {f"{key}:post" for key in jobs}


@pytest.mark.behaviour("C38", "B48")
async def test_control_without_once_the_storm_doubles(zygote: Zygote, folder: Path, seed: int) -> None:
    for attempt in range(5):
        place = folder / str(attempt)
        place.mkdir()
        _, outside = await weathered(zygote, place, seed + attempt, 120, 10, guarded=False)
        if any(count > 1 for key, count in outside.effects.items() if not key.startswith("keyed")):
            return
    pytest.fail("five storms without a guard doubled nothing: the storm above proves nothing")
