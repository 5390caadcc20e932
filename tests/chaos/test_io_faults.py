"""The Nth write or sync fails: nobody is told a lie, a failed sync stops the store, and opening it again works."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive.core.store import Wanted
from redrive.errors import StoreError, StoreFailed
from tests.chaos.vfs import (
    FaultVFS,
    Operation,
    RecordingVFS,
    inspect_files,
    installed,
    scratch_directory,
    survey_images,
)
from tests.chaos.workload import DATABASE, MOVES, Life, acknowledged, live_until_error

pytestmark = pytest.mark.chaos

ROUNDS = 6
SYNC = (Operation.SYNC,)


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the faults also hit checkpoints."""
    monkeypatch.setattr("redrive.stores.sqlite.writer.CHECKPOINT_PAGES", 12)
    monkeypatch.setattr("redrive.stores.sqlite.writer.LOG_PAGES", 14)


async def count_operations(seed: int, operations: tuple[Operation, ...]) -> int:
    with scratch_directory() as directory, installed(FaultVFS(operations=operations)) as fault:
        await Life(directory / DATABASE, seed, lambda _: None).live(ROUNDS)
        return fault.counted


class Broken:
    """A life on a disk whose nth operation fails, and what was acknowledged in it."""

    def __init__(self, directory: Path, fault: FaultVFS, seed: int, recorder: RecordingVFS | None = None) -> None:
        self.directory = directory
        self.fault = fault
        self.seed = seed
        self.recorder = recorder
        self.told: list[tuple[str, str]] = []
        self.error: StoreError | None = None
        self.life = Life(directory / DATABASE, seed, self.note)

    def note(self, what: tuple[str, str]) -> None:
        self.told.append(what)
        if self.recorder is not None:
            self.recorder.mark(what)

    async def live(self) -> None:
        self.error = await live_until_error(self.life, ROUNDS)

    def missing(self) -> list[tuple[str, str]]:
        """What was acknowledged and is not there, or why the file is not sound."""
        found = inspect_files(self.directory, DATABASE, MOVES)
        assert found.error is None, found.error
        return sorted(acknowledged(tuple(self.told)) - found.rows)

    async def close(self) -> None:
        try:
            await self.life.store.close()
        except StoreError as error:  # closing may say so, too; it must not say anything else
            self.error = self.error or error

    async def live_again(self) -> None:
        """A new store on the same file, on a disk that works again."""
        self.fault.disarm()
        again = Life(self.directory / DATABASE, self.seed + 1, self.note)
        await again.live(2)


def every_nth(last: int, most: int) -> Iterator[int]:
    """Each of them, or so many of them, from the making of the file to the end."""
    yield from range(1, last + 1, -(-last // most))


async def live_until_struck(directory: Path, fault: FaultVFS, nth: int, seed: int, *, sticky: bool) -> Broken:
    """Now and then a life takes fewer steps than the one that was counted, and ends before its fault: once more."""
    for life in range(5):
        folder = directory / str(life)
        folder.mkdir()
        fault.arm(nth, sticky=sticky)
        broken = Broken(folder, fault, seed)
        await broken.live()
        if fault.struck:
            return broken
        fault.disarm()
        await broken.close()
    raise AssertionError(f"{nth} never came")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
async def test_no_false_acknowledgement(seed: int, error: int, sticky: bool, size: Callable[[int, int], int]) -> None:
    last = await count_operations(seed, (Operation.WRITE, Operation.SYNC))
    told = 0
    for nth in every_nth(last, size(60, 10_000)):
        with scratch_directory() as directory, installed(FaultVFS(nth, error, sticky=sticky)) as fault:
            broken = await live_until_struck(directory, fault, nth, seed, sticky=sticky)
            await broken.close()
            assert broken.missing() == [], f"{nth}: {fault.struck}, {broken.error!r}"
            await broken.live_again()
            assert broken.missing() == [], f"{nth}: {fault.struck}, {broken.error!r}, after opening again"
        told += broken.error is not None
    print(f"{last} operations, {told} errors told")
    assert told > 0, "no fault reached anybody: this run proved nothing"


async def test_a_failed_sync_stops_the_store_until_it_is_opened_again(
    seed: int, size: Callable[[int, int], int]
) -> None:
    """Even though the disk works again at once: what the failed sync threw away stays thrown away."""
    last, stopped = await count_operations(seed, SYNC), 0
    for nth in every_nth(last, size(60, 10_000)):
        with scratch_directory() as directory, installed(FaultVFS(nth, operations=SYNC)) as fault:
            broken = Broken(directory, fault, seed)
            await broken.live()
            if isinstance(broken.error, StoreFailed):
                stopped += await refuses_everything(broken)
            await broken.close()
            await broken.live_again()
            assert broken.missing() == []
    print(f"{last} syncs, {stopped} times stopped")
    assert stopped > 5, "hardly any failed sync was one of a commit: this run proved little"


async def refuses_everything(broken: Broken) -> bool:
    """A store that opened and then failed takes nothing any more, says why, and still answers questions."""
    if not broken.told:
        return False
    for _ in range(3):
        with pytest.raises(StoreFailed, match="failed to sync"):
            await broken.life.enqueue(1, "queue0")
    ((job_id, _), *_) = broken.told
    assert len(await broken.life.store.get([job_id.partition("/")[0]])) == 1
    return True


async def after_a_failed_sync(seed: int, *, reopened: bool = False) -> tuple[bool, int]:
    """One failed sync, and what comes after it: whether the store took more, and how many images are damaged.

    The pages that the sync should have written are still in the page cache, so that everybody reads them, but they are
    not on the disk: neither a checkpoint nor a later commit may rest on them.
    """
    with scratch_directory() as directory:
        recorder = RecordingVFS(directory)
        with installed(FaultVFS(None, operations=SYNC, base=recorder)) as fault:
            life = Life(directory / DATABASE, seed, recorder.mark)
            await life.store.open()
            await life.enqueue(2, "queue0")
            claim = await life.store.claim(Wanted(slots=1), "worker", life.now)  # not synced by itself
            fault.arm(1)
            assert claim.jobs and await _enqueue(life) is not None
            fault.disarm()
            went_on = await _enqueue(life) is None and await _enqueue(life) is None
            await _close_quietly(life)
            if reopened:
                await Life(directory / DATABASE, seed + 1, recorder.mark).live(3)
        survey = survey_images(recorder.log, DATABASE, MOVES, seed=seed, limit=300, acknowledged=acknowledged)
        print(survey)
        return went_on, len(survey.lossy) + len(survey.corrupt)


async def _enqueue(life: Life) -> StoreError | None:
    try:
        await life.enqueue(1, "queue0")
    except StoreError as error:
        return error
    return None


async def _close_quietly(life: Life) -> None:
    try:
        await life.store.close()
    except StoreError as error:
        print(f"closing said: {error}")


async def test_after_a_failed_sync_nothing_more_is_promised(seed: int) -> None:
    assert await after_a_failed_sync(seed) == (False, 0)


async def test_opened_again_after_a_failed_sync_the_store_keeps_its_word(seed: int) -> None:
    assert await after_a_failed_sync(seed, reopened=True) == (False, 0)


async def test_control_a_store_that_carries_on_loses_what_it_acknowledges(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In some lives what was acknowledged reached the disk all the same: several are lived."""
    monkeypatch.setattr("redrive.stores.sqlite.writer.is_failed_sync", lambda error: False)
    lives = [await after_a_failed_sync(seed + number) for number in range(5)]
    assert all(went_on for went_on, _ in lives)
    assert sum(damaged for _, damaged in lives) > 0


async def test_control_an_early_acknowledgement_is_found_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The callers are told before the commit: some fault makes that a lie, and the check above must see it."""
    from redrive.stores.sqlite import writer

    last = await count_operations(seed, (Operation.WRITE, Operation.SYNC))
    real = writer.Writer._transaction

    def swallowed(self: writer.Writer, connection: Any, batch: list[Any]) -> bool:
        try:
            return real(self, connection, batch)
        except Exception as error:
            print(f"swallowed: {error!r}")
            writer._roll_back(connection)
            return True

    monkeypatch.setattr(writer.Writer, "_transaction", swallowed)
    missing = []
    for nth in range(last // 2, last, -(-last // 60)):  # the file is made, jobs come in
        with scratch_directory() as directory, installed(FaultVFS(nth, errno.ENOSPC)) as fault:
            broken = Broken(directory, fault, seed)
            try:
                await broken.live()
            except Exception as error:
                print(f"{nth}: {error!r}")
            await broken.close()
            missing += broken.missing()
    assert missing
