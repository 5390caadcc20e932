"""Replicas of one log agree, row by row, whatever way each of them has taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec
import pytest

from redrive.core.commands import Apply, Beat, Hello, Insert, Take, Ticket
from redrive.core.store import Wanted
from redrive.stores.replica import ReplicaStore, replay
from redrive.stores.replica import envelope as wire
from redrive.stores.replica.log import LogEntry
from redrive.stores.replica.replay import ChainMismatch, ReplicaStopped
from redrive.stores.sqlite import claims
from tests.stores.jobs import T0, a_job
from tests.stores.memory_log import MemoryLog, MemoryMessages
from tests.stores.paths import Replica, compare
from tests.stores.test_model import Jobs, play


class JobsOnALog(Jobs):
    """The model of all jobs on a replica. At its end the log is replayed by every way there is."""

    def __init__(self) -> None:
        self.kept = MemoryMessages()
        super().__init__()

    def make_store(self, path: Path, steady: Callable[[], float]) -> ReplicaStore:  # type: ignore[override]
        return ReplicaStore(path, lambda: MemoryLog(self.kept), live=path.parent / "live", monotonic=steady)

    def teardown(self) -> None:
        self.do(self.store.close())
        repeated = [*self.kept.entries, *self.kept.entries[::3]]
        entries = [msgspec.structs.replace(entry, position=place) for place, entry in enumerate(repeated, 1)]
        compare(self.folder, self.kept.generation, entries)
        super().teardown()


@pytest.mark.behaviour("F-1")
def test_every_way_over_the_same_log_leads_to_the_same_rows(size: Callable[[int, int], int]) -> None:
    play(JobsOnALog, max_examples=size(25, 1_000), stateful_step_count=size(40, 100))


# ---- the control: what the rule forbids is seen


def log_of(*commands: object) -> list[LogEntry]:
    hello = wire.pack(Ticket("c", 1), "g", 0, b"", [wire.encode_item(Hello("c", T0))])
    entries = [LogEntry(1, "c-1", hello)]
    for number, command in enumerate(commands, 2):
        data = wire.pack(Ticket("c", number), "g", 0, b"", [wire.encode_item(command)])  # type: ignore[arg-type]
        entries.append(LogEntry(number, f"c-{number}", data))
    return entries


@pytest.mark.behaviour("F-1a")
def test_a_claim_does_not_depend_on_numbers_of_routes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files that number their routes differently give the same jobs; ordered by those numbers they would not."""
    jobs = [a_job(queue) for queue in ("b", "a")]
    entries = log_of(Insert(tuple(jobs)), Take(Wanted(1), "w", "p", "t1", T0 + 1))

    def first_taken(name: str, order: list[str]) -> str:
        replica = Replica(folder / name, "g")
        for queue in order:
            replica.connection.execute("INSERT INTO routes (queue, task) VALUES (?, ?)", (queue, jobs[0].task))
        for entry in entries:
            replica.execute([entry])
        replica.close()
        ((_, ((id, _),)),) = replica.answers
        return id

    assert first_taken("one.db", ["a", "b"]) == first_taken("two.db", ["b", "a"])
    monkeypatch.setattr(claims, "_NEXT", claims._NEXT.replace(claims._BY_NAME, "ORDER BY id"))
    assert first_taken("three.db", ["a", "b"]) != first_taken("four.db", ["b", "a"])


# ---- rules of the replay


@pytest.mark.behaviour("F-2")
def test_a_message_that_is_missing_stops_the_replica(folder: Path) -> None:
    replica = Replica(folder / "r.db", "g")
    entries = log_of(Beat(()), Beat(()))
    replica.execute(entries[:1])
    with pytest.raises(ReplicaStopped, match="jumps from message 1 to 3"):
        replica.execute(entries[2:])
    replica.close()


@pytest.mark.behaviour("F-2")
def test_a_message_that_cannot_be_read_is_not_skipped(folder: Path) -> None:
    replica = Replica(folder / "r.db", "g")
    replica.execute(log_of()[:1])
    with pytest.raises(ReplicaStopped, match="upgrade redrive here"):
        replica.execute([LogEntry(2, "x", b"\x93rubbish")])
    replica.restart()
    assert replica.replay.here.position == 1
    replica.close()


@pytest.mark.behaviour("F-6")
def test_a_message_for_a_higher_level_stops_an_older_replica(folder: Path) -> None:
    replica = Replica(folder / "r.db", "g")
    replica.execute(log_of()[:1])
    data = wire.pack(Ticket("c", 2), "g", 0, b"", [wire.encode_item(wire.Level(wire.LEVEL + 1))])
    with pytest.raises(ReplicaStopped, match="level"):
        replica.execute([LogEntry(2, "x", data)])
    replica.close()


@pytest.mark.behaviour("F-2")
def test_a_full_disk_leaves_no_replica_a_job_short(folder: Path) -> None:
    """What no command decides is no outcome: the position stays, and the same message is tried again."""
    replica = Replica(folder / "r.db", "g")
    entries = log_of(Insert((a_job(payload='{"pad": "%s"}' % ("x" * 200_000)),)))
    replica.execute(entries[:1])
    pages = replica.connection.pragma("page_count")
    replica.connection.pragma("max_page_count", pages + 2)
    with pytest.raises(apsw.FullError):
        replica.execute(entries[1:])
    replica.restart()
    assert replica.replay.here.position == 1
    replica.execute(entries[1:])
    assert replica.connection.execute("SELECT count(*) FROM jobs").get == 1
    replica.close()


@pytest.mark.behaviour("F-4")
def test_a_repeated_message_is_executed_once(folder: Path) -> None:
    """However late it comes: after the log's own window for duplicates, too."""
    replica = Replica(folder / "r.db", "g")
    job = a_job()
    entries = log_of(Insert((job,)), Take(Wanted(1), "w", "p", "t1", T0 + 1))
    for entry in [*entries, msgspec.structs.replace(entries[2], position=4)]:
        replica.execute([entry])
    assert len(replica.answers) == 1
    assert replica.connection.execute("SELECT run FROM jobs").get == 1
    replica.close()


def test_the_control_without_sessions_a_repeat_claims_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.sessions.find_outcome", lambda connection, ticket: None)
    monkeypatch.setattr("redrive.stores.sqlite.sessions.remember", lambda *_: None)
    replica = Replica(folder / "r.db", "g")
    entries = log_of(Insert((a_job(), a_job())), Take(Wanted(1), "w", "p", "t1", T0 + 1))
    for entry in [*entries, msgspec.structs.replace(entries[2], position=4)]:
        replica.execute([entry])
    assert len(replica.answers) == 2
    replica.close()


@pytest.mark.behaviour("F-1b")
def test_replicas_that_differ_are_told_apart_by_the_chain(folder: Path) -> None:
    replica = Replica(folder / "r.db", "g")
    entries = log_of(Insert((a_job(),)))
    for entry in entries:
        replica.execute([entry])
    said = wire.pack(Ticket("c", 3), "g", 2, b"another chain...", [wire.encode_item(Beat(()))])
    with pytest.raises(ChainMismatch, match="replicas differ"):
        replica.execute([LogEntry(3, "c-3", said)])
    replica.close()


@pytest.mark.behaviour("F-11")
def test_a_clock_ahead_claims_nothing_early(folder: Path) -> None:
    """A Take says its own time; the log's time bounds it."""
    replica = Replica(folder / "r.db", "g")
    job = a_job(run_at=T0 + 100)
    entries = log_of(Insert((job,)), Take(Wanted(1), "w", "p", "t1", T0 + 10_000))
    for entry in entries:
        replica.execute([msgspec.structs.replace(entry, at=T0)])
    assert replica.answers == [(3, [])]
    replica.close()


@pytest.mark.behaviour("F-10a")
def test_nothing_is_claimed_while_the_fleet_is_halted(folder: Path) -> None:
    replica = Replica(folder / "r.db", "g")
    entries = log_of(Insert((a_job(),)), wire.Halt("replicas differ"), Take(Wanted(1), "w", "p", "t1", T0 + 1))
    for entry in entries:
        replica.execute([entry])
    assert replica.answers == [(4, [])]
    go_on = log_of(Beat(()), Beat(()), Beat(()), wire.Halt(None), Take(Wanted(1), "w", "p", "t2", T0 + 1))
    for entry in go_on[4:]:
        replica.execute([entry])
    assert len(replica.answers[-1][1]) == 1
    replica.close()


@pytest.mark.behaviour("F-4a")
def test_the_session_of_a_silent_client_ends_and_its_late_message_is_refused(folder: Path) -> None:
    replica = Replica(folder / "r.db", "g")
    (hello, insert) = log_of(Insert((a_job(),)))
    other = wire.pack(Ticket("d", 1), "g", 0, b"", [wire.encode_item(Hello("d", T0))])
    later = LogEntry(2, "d-1", other, T0 + 2 * 86_400)
    for entry in (msgspec.structs.replace(hello, at=T0), later, msgspec.structs.replace(insert, position=3, at=T0)):
        replica.execute([entry])
    assert replica.connection.execute("SELECT count(*) FROM jobs").get == 0
    replica.close()


@pytest.mark.behaviour("F-8")
async def test_a_take_that_nobody_waits_for_goes_back_at_no_cost(folder: Path) -> None:
    kept = MemoryMessages()
    store = ReplicaStore(folder / "r.db", lambda: MemoryLog(kept), live=folder / "live")
    await store.open()
    job = a_job()
    await store.insert([job])
    kept.faults.hold = True
    claiming = asyncio.ensure_future(store.claim(Wanted(1), "w", T0 + 1))
    for _ in range(3_000):
        if len(kept.entries) >= 3:
            break
        await asyncio.sleep(0.01)
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    kept.faults.hold = False
    MemoryLog(kept).kept.tell()
    for _ in range(500):
        (found,) = await store.get([job.id])
        if len(kept.entries) >= 4 and found.state == "waiting":
            break
        await asyncio.sleep(0.01)
    assert (found.state, found.run, found.attempts) == ("waiting", 0, 0)
    await store.close()


@pytest.mark.behaviour("F-4")
async def test_lost_acknowledgements_and_repeats_do_nothing_twice(folder: Path) -> None:
    kept = MemoryMessages()
    store = ReplicaStore(folder / "r.db", lambda: MemoryLog(kept), live=folder / "live")
    await store.open()
    kept.faults.repeat = True
    jobs = [a_job() for _ in range(20)]
    for job in jobs:
        kept.faults.lose_acks = 1
        (inserted,) = await store.insert([job])
        assert not inserted.duplicate
    claim = await store.claim(Wanted(100), "w", T0 + 1)
    assert sorted(job.id for job in claim.jobs) == sorted(job.id for job in jobs)
    assert {job.run for job in await store.get([job.id for job in jobs])} == {1}
    await store.close()


def test_commands_of_one_message_see_each_other(folder: Path) -> None:
    replica = Replica(folder / "r.db", "g")
    job = a_job()
    items = [
        wire.encode_item(Insert((job,))),
        wire.encode_item(Take(Wanted(1), "w", "p", "t", T0 + 1)),
        wire.encode_item(Apply(())),
    ]
    replica.execute(log_of()[:1])
    replica.execute([LogEntry(2, "c-2", wire.pack(Ticket("c", 2), "g", 0, b"", items))])
    assert replica.answers == [(2, [(job.id, 1)])]
    replica.close()


@pytest.mark.behaviour("F-1")
@pytest.mark.parametrize("spoilt", [False, True])
def test_inserts_that_are_executed_together_leave_the_rows_of_one_after_the_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spoilt: bool
) -> None:
    """With jobs of several queues and minutes, one handed in twice, and where one of them is refused."""
    jobs = [a_job(queue=f"q{n % 3}", task=f"t{n % 2}", created_at=T0 + 20 * n) for n in range(12)]
    if spoilt:
        jobs[5] = msgspec.structs.replace(jobs[5], priority=99)
    handed_in = [Insert((job,), stamp=job.created_at if n % 4 == 0 else None) for n, job in enumerate(jobs)]
    items = [wire.encode_item(command) for command in (*handed_in, Insert((jobs[3], jobs[4])), *handed_in[:1])]
    entries = [*log_of(), LogEntry(2, "c-2", wire.pack(Ticket("c", 2), "g", 0, b"", items))]
    together = Replica(folder / "together.db", "g")
    together.execute(entries)
    monkeypatch.setattr(replay, "_can_join", lambda item: False)
    apart = Replica(folder / "apart.db", "g")
    apart.execute(entries)
    assert together.rows() == apart.rows()
    assert together.connection.execute("SELECT count(*) FROM jobs").get == (11 if spoilt else 12)
    together.close()
    apart.close()


@pytest.mark.behaviour("F-4a")
async def test_a_replica_whose_session_was_forgotten_begins_another_and_loses_nothing(folder: Path) -> None:
    kept = MemoryMessages(clock=lambda: now[0])
    now = [T0]
    store = ReplicaStore(folder / "r.db", lambda: MemoryLog(kept), live=folder / "live", clamps=False)
    other = ReplicaStore(folder / "o.db", lambda: MemoryLog(kept), live=folder / "live", clamps=False)
    await store.insert([a_job()])
    now[0] += 2 * 86_400
    await other.insert([a_job()])  # its hello ends sessions that were silent for a day
    jobs = [a_job() for _ in range(30)]
    inserted = await asyncio.gather(*(store.insert([job]) for job in jobs))
    assert not any(one.duplicate for (one,) in inserted)
    assert len(await other.get([job.id for job in jobs])) == 30
    await store.close()
    await other.close()


def test_a_message_that_its_client_gave_up_is_refused(folder: Path) -> None:
    replica = Replica(folder / "r.db", "g")
    replica.execute(log_of()[:1])
    beat = wire.pack(Ticket("c", 5, 5), "g", 0, b"", [wire.encode_item(Beat(()))])
    late = wire.pack(Ticket("c", 4, 1), "g", 0, b"", [wire.encode_item(Insert((a_job(),)))])
    for number, data in enumerate((beat, late), 2):
        replica.execute([LogEntry(number, f"c-{number}", data)])
    assert replica.connection.execute("SELECT count(*) FROM jobs").get == 0
    replica.close()
