"""`redrive.once` without a job: processes killed at every place around the effect, and several at the same time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive
from tests.chaos.once import AROUND
from tests.chaos.processes import Child, Zygote, until
from tests.chaos.receiver import Receiver

pytestmark = pytest.mark.chaos

IN_DOUBT = {"after intended", "before it is sent", "sent", "answered", "before landed"}
"""The intent is on disk, its end is not."""
DONE_BY_THEN = {"sent", "answered", "before landed", "after landed"}
TOOLS = ("askable", "neither", "askable_async", "neither_async")


class Scene:
    """One store, one effect, and the processes that call for it."""

    def __init__(self, zygote: Zygote, folder: Path, outside: Receiver, port: int, key: str) -> None:
        self.zygote = zygote
        self.folder = folder
        self.outside = outside
        self.port = port
        self.key = key
        self.said = folder / "said.txt"

    def start(self, tool: str, **how: Any) -> Child:
        return self.zygote.start(
            "tests.chaos.once:caller", log=self.folder / "caller.log", folder=self.folder, port=self.port, tool=tool,
            key=self.key, **how,
        )  # fmt: skip

    async def die(self, tool: str, point: str, **how: Any) -> None:
        child = self.start(tool, deadly=point, **how)
        assert await child.exited() == -signal.SIGKILL, child.log()
        if point in DONE_BY_THEN:
            await until("the request arrives", lambda: self.happened)

    async def call(self, tool: str, **how: Any) -> str:
        """What a process was told that calls once and ends by itself."""
        child = self.start(tool, **how)
        assert await child.exited() == 0, child.log()
        return self.said.read_text().splitlines()[-1]

    async def needs(self) -> list[str]:
        """The ids of what needs a person, as a process sees it that comes afterwards."""
        async with Redrive(self.folder / "effects.db") as rd:
            return [need.id for need in await rd.needs()]

    async def resolve(self, *, landed: bool) -> None:
        async with Redrive(self.folder / "effects.db") as rd:
            await rd.effects.resolve(self.key, landed=landed, result=self.key if landed else None, who="ann")

    @property
    def happened(self) -> int:
        return self.outside.effects[self.key]


async def staged(zygote: Zygote, folder: Path, scenes: dict[str, Callable[[Scene], Awaitable[Any]]]) -> dict[str, Any]:
    """Play scenes side by side, each in a folder of its own, at most three at once."""
    outside, found, stage = Receiver(), {}, asyncio.Semaphore(3)
    with outside.serving() as port:

        async def play(name: str, scene: Callable[[Scene], Awaitable[Any]]) -> None:
            async with stage:
                key = name.replace(" ", "-")
                place = folder / key
                place.mkdir()
                found[name] = await scene(Scene(zygote, place, outside, port, key))

        await asyncio.gather(*(play(name, scene) for name, scene in scenes.items()))
    return found


@pytest.mark.behaviour("R-6e", "R-6f")
@pytest.mark.parametrize("tool", TOOLS)
async def test_killed_at_every_place_around_once_without_a_job(zygote: Zygote, folder: Path, tool: str) -> None:
    """With a verifier it happens once. Without, never twice, and what nobody knows waits for a person."""

    def scene(point: str) -> Callable[[Scene], Awaitable[Any]]:
        async def play(on: Scene) -> Any:
            await on.die(tool, point)
            needed = await on.needs()
            said = await on.call(tool)
            first = on.happened
            still = await on.needs()
            if said == "OutcomeUnknown":
                await on.resolve(landed=point in DONE_BY_THEN)
            told = await on.call(tool)
            return needed, said, first, still, told, on.happened, await on.needs()

        return play

    def expected(point: str) -> Any:
        key = point.replace(" ", "-")
        need, returned = [f"outcome_unknown:effect:{key}"], f"returned {key}"
        needed = need if point in IN_DOUBT else []
        if tool.startswith("neither") and point in IN_DOUBT:
            return needed, "OutcomeUnknown", 1 if point in DONE_BY_THEN else 0, need, returned, 1, []
        return needed, returned, 1, [], returned, 1, []

    found = await staged(zygote, folder, {point: scene(point) for point in AROUND})
    assert found == {point: expected(point) for point in AROUND}


@pytest.mark.behaviour("R-6e")
async def test_control_without_the_decorator_the_same_kill_doubles(zygote: Zygote, folder: Path) -> None:
    async def play(on: Scene) -> int:
        await on.die("neither", "answered", guarded=False)
        await on.call("neither", guarded=False)
        return on.happened

    assert await staged(zygote, folder, {"control": play}) == {"control": 2}


@pytest.mark.behaviour("R-6g")
async def test_while_one_process_performs_it_another_is_refused(zygote: Zygote, folder: Path) -> None:
    async def play(on: Scene) -> Any:
        first = on.start("late")
        await until("the first one has sent it", lambda: on.outside.posts[on.key])
        refused, needed = await on.call("late"), await on.needs()
        on.outside.late.set()
        assert await first.exited() == 0, first.log()
        again = await on.call("late")
        return refused, needed, on.said.read_text().splitlines(), again, on.outside.posts[on.key]

    found = (await staged(zygote, folder, {"two": play}))["two"]
    assert found == ("OnceInProgress", [], ["OnceInProgress", "returned two", "returned two"], "returned two", 1)


@pytest.mark.behaviour("R-6g")
@pytest.mark.parametrize("tool", ["askable", "neither_async"])
async def test_many_processes_at_the_same_time_make_one_effect(zygote: Zygote, folder: Path, tool: str) -> None:
    async def play(on: Scene) -> Any:
        children = [on.start(tool) for _ in range(6)]
        codes = [await child.exited() for child in children]
        said = on.said.read_text().splitlines()
        return codes, len(said), set(said) - {"OnceInProgress"}, on.happened, await on.needs()

    found = await staged(zygote, folder, {f"crowd-{n}": play for n in range(4)})
    assert found == {f"crowd-{n}": ([0] * 6, 6, {f"returned crowd-{n}"}, 1, []) for n in range(4)}
