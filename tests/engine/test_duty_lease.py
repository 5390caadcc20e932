"""One process of a store does what only one should do."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive.core.documents import DUTY, DutyHolder
from redrive.core.store import Commit
from redrive.engine.duty_lease import LEASE, take_duty
from redrive.stores.sqlite import SqliteStore
from redrive.testing import FakeClock


@pytest.mark.behaviour("R-1")
async def test_a_duty_is_taken_kept_and_given_up_by_time(tmp_path: Path) -> None:
    store, clock = SqliteStore(tmp_path / "jobs.db"), FakeClock()
    await store.open()
    assert await take_duty(store, clock, "x")
    first = await DUTY.get(store, "x")
    assert await take_duty(store, clock, "x")
    assert await DUTY.get(store, "x") == first, "not written again at once"
    clock.advance(LEASE)
    assert await take_duty(store, clock, "x")
    assert await DUTY.get(store, "x") != first, "renewed"
    await store.close()


@pytest.mark.behaviour("R-1")
@pytest.mark.parametrize(
    ("ahead", "free"), [(LEASE / 2, False), (0.0, True), (-100.0, True), (86400.0, True)],
    ids=["held", "ended", "long ago", "by a wrong clock"],
)  # fmt: skip
async def test_another_process_has_it_while_its_lease_lasts(tmp_path: Path, ahead: float, free: bool) -> None:
    store, clock = SqliteStore(tmp_path / "jobs.db"), FakeClock()
    await store.open()
    other = DutyHolder("elsewhere:1:1", clock.now() + ahead)
    await store.apply([Commit(puts=(DUTY.put("x", other, 0),))])
    assert await take_duty(store, clock, "x") is free
    await store.close()


@pytest.mark.behaviour("R-1")
async def test_a_process_that_closed_the_store_gives_it_up_at_once(tmp_path: Path) -> None:
    one, two, clock = SqliteStore(tmp_path / "jobs.db"), SqliteStore(tmp_path / "jobs.db"), FakeClock()
    await one.open()
    await two.open()
    assert await take_duty(one, clock, "x")
    assert not await take_duty(two, clock, "x")
    await one.close()
    assert await take_duty(two, clock, "x")
    await two.close()
