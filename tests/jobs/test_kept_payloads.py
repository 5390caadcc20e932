"""What JSON would turn into something else is refused by its place, unless the task's annotation turns it back."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import redrive
from redrive import InvalidPayload, Redrive
from tests.support import soon

CHANGED = [
    ({1: 2}, "payload", "the key 1,"),
    ({"m": {1: 2}}, "payload.m", "the key 1,"),
    ({"m": {"deep": [{None: 2}]}}, "payload.m.deep[0]", "the key None,"),
    ({"m": {True: 2}}, "payload.m", "the key True,"),
    ({"m": {"a", "b"}}, "payload.m", "is a set"),
    ({"m": [frozenset({1})]}, "payload.m[0]", "is a frozenset"),
    ({"m": ({"x": set()},)}, "payload.m[0].x", "is a set"),
    ({"file": redrive.Blob(b"x"), "m": {1}}, "payload.m", "is a set"),
]
KEPT: list[Any] = [
    {},
    {"m": None},
    {"m": {"1": [1, 2.5, True, None, "x"]}},
    {"m": (1, (2,))},
    {"m": redrive.Blob(b"x")},
]


class Model(msgspec.Struct):
    tags: set[str]


@pytest.mark.behaviour("T-7f")
@pytest.mark.parametrize(("payload", "field", "problem"), CHANGED)
async def test_what_json_would_change_is_refused_by_its_place(
    database: Path, payload: Any, field: str, problem: str
) -> None:
    async with Redrive(database) as rd:
        with pytest.raises(InvalidPayload) as refused:
            await rd.enqueue("work", payload)
        assert refused.value.field == field
        assert problem in refused.value.problem
        many = await rd.enqueue_many("work", [payload, {"m": 1}])
        assert (many.accepted, list(many.refused)) == (1, [0]), "one bad item does not spoil the others"


@pytest.mark.parametrize("payload", KEPT)
async def test_what_json_keeps_is_accepted(database: Path, payload: Any) -> None:
    async with Redrive(database) as rd:
        await rd.enqueue("work", payload)


@pytest.mark.behaviour("T-7f")
async def test_an_annotation_that_turns_it_back_keeps_it(database: Path) -> None:
    got: list[Any] = []
    async with Redrive(database) as rd:

        @rd.task
        async def work(a: set[int], b: dict[int, str], c: list[frozenset[str]], d: set[int] | None, m: Model) -> None:
            got.extend([a, b, c, d, m.tags])

        await work.enqueue({1, 2}, {1: "x"}, [frozenset({"y"})], None, Model({"z"}))
        await soon(rd.drain())
    assert got == [{1, 2}, {1: "x"}, [frozenset({"y"})], None, {"z"}]


@pytest.mark.behaviour("T-7f")
async def test_another_annotation_does_not(database: Path) -> None:
    async with Redrive(database) as rd:

        @rd.task
        async def work(
            plain: Any = None, listed: list[int] | None = None, keyed: dict[str, int] | None = None
        ) -> None: ...

        for given in ({"plain": {1}}, {"listed": {1}}, {"keyed": {1: 1}}, {"plain": {1: 1}}):
            with pytest.raises(InvalidPayload) as refused:
                await work.enqueue(**given)
            assert refused.value.field == f"payload.{next(iter(given))}"
        assert (await rd.stats())["accepted"] == 0


@pytest.mark.behaviour("T-7f")
async def test_every_way_in_refuses_it(database: Path) -> None:
    async with Redrive(database) as rd:

        @rd.task
        async def work(m: Any) -> None: ...

        @rd.task(read_only=True)
        async def looking(m: Any) -> None: ...

        for task in ("work", "looking"):
            with pytest.raises(InvalidPayload, match="is a set"):
                await rd.call(task, {"m": {1}})
        with pytest.raises(InvalidPayload, match="is a set"):
            rd.task("nightly", schedule=redrive.cron("0 3 * * *", payload={"m": {1}}))(lambda m: None)
        with pytest.raises(InvalidPayload, match="the key 1,"):
            await rd.submit("work", {"m": {1: 1}})
