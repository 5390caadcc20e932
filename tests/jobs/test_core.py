"""Core: what every service stands on, whatever becomes of the store."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from redrive import JobHandle, Redrive
from redrive.engine.registry import Registry
from redrive.testing import FakeClock


async def test_a_service_sees_the_store_that_is_open_now(rd: Redrive) -> None:
    """Services are built once; the store is closed and made anew under them."""
    first: JobHandle[Any] = await rd.enqueue("work", {"n": 1})
    before = rd.core.store
    await rd.close()
    assert rd.core.holder.store is None
    assert (await rd.jobs.get(first.id)).id == first.id
    assert rd.core.store is not before
    assert rd.core.store is rd.core.holder.store


async def test_a_service_sees_the_clock_that_counts_now(rd: Redrive) -> None:
    store, clock = rd.core.holder.store, FakeClock(2_000_000_000.0)
    rd.core.holder.use(store, clock)
    handle: JobHandle[Any] = await rd.enqueue("work", {})
    assert handle.job.created_at == clock.now()


async def test_what_uses_the_store_ends_before_the_store_does(rd: Redrive) -> None:
    await rd.open()
    seen = list[bool]()

    async def end() -> None:
        seen.append(rd.core.holder.store is not None)

    rd.core.holder.before_close.append(end)
    await rd.close()
    assert seen == [True]


async def test_a_core_never_changes_but_another_can_be_made_of_it(rd: Redrive) -> None:
    with pytest.raises(FrozenInstanceError):
        rd.core.registry = Registry({})  # type: ignore[misc]
    other = replace(rd.core, registry=Registry({}))
    assert other.registry is not rd.core.registry
    assert other.holder is rd.core.holder
