"""A file of an earlier redrive opens, keeps all it had, and has what is new."""

from collections import Counter
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from redrive.core.job import State
from redrive.core.store import Filter, Wanted
from redrive.stores.sqlite import schema
from tests.stores.contract import do, taken
from tests.stores.jobs import T0, a_job, burial
from tests.stores.openers import Openers

JOB = (
    "INSERT INTO jobs (id, route, state, priority, run_at, created_at, updated_at, payload, because, lane,"
    " recommendation, fingerprint, error_class, detail, error, attempts)"
    " VALUES (?, ?, ?, 2, ?, ?, ?, '{}', ?, ?, ?, ?, ?, ?, ?, 1)"
)


def a_file_of_schema_one(path: Path) -> None:
    """Made by the first step alone: a waiting job, a held one, and dead letters of two troubles and of none."""
    with closing(apsw.Connection(str(path))) as database:
        database.execute(schema.read_steps()[0])
        database.execute(schema.make_triggers())
        database.pragma("application_id", schema.APPLICATION_ID)
        database.pragma("user_version", 1)
        database.execute(
            "INSERT INTO routes (id, queue, task, waiting, held, dead) VALUES (1, 'mail', 'send', 1, 1, 3)"
        )
        database.execute("INSERT INTO routes (id, queue, task, agent, dead) VALUES (2, 'mail', 'send', 'ann', 1)")
        asks, dead = ("approval", None, "Answer it."), ("permanent", "manual", "Look at it.")
        reset, refused = ("aa", "ConnectionError", "network", "reset"), ("bb", "ValueError", "unknown", "no" * 900)
        nothing = (None, None, None, None)
        for number, (route, state, said, trouble) in enumerate(
            [
                (1, "waiting", (None, None, None), nothing),
                (1, "held", asks, nothing),
                (1, "dead", dead, reset),
                (2, "dead", dead, reset),
                (1, "dead", dead, refused),
                (1, "dead", dead, nothing),
            ]
        ):
            at = T0 + number
            database.execute(JOB, (f"{number:032x}", route, state, T0, T0, at, *said, *trouble))
            if state == "dead":
                told = "INSERT INTO moves (job, move, at, run, attempts, state) VALUES (?, 'buried', ?, 1, 1, 'dead')"
                database.execute(told, (number + 1, at))


@pytest.fixture
async def migrated(sqlite: Openers, folder: Path) -> Openers:
    a_file_of_schema_one(folder / "jobs.db")
    return sqlite


async def test_everything_is_still_there(migrated: Openers) -> None:
    store = await migrated.open()
    assert (await store.open()).schema == len(schema.read_steps())
    assert await store.count(Filter(), by=("state",)) == {("waiting",): 1, ("held",): 1, ("dead",): 4}
    assert [job.fingerprint async for job in store.scan()] == [None, None, "aa", "aa", "bb", None]
    assert await store.repair(T0 + 9) == []
    claim = await store.claim(Wanted(9), "w1", T0 + 9)
    assert [(job.id, job.fresh_from, job.held_for) for job in claim.jobs] == [(f"{0:032x}", 0, None)]
    assert [event.move for event in await store.story(f"{2:032x}")] == ["enqueued", "buried"]
    assert (await store.find(Filter(states=(State.held,), held_for="x"))).jobs == []


async def test_dead_letters_of_before_are_in_their_groups(migrated: Openers) -> None:
    """Triage begins with the groups: a dead letter that is in none would not be seen."""
    store = await migrated.open()
    groups = {group.fingerprint: group for group in await store.groups()}
    assert {name: (g.first_at, g.last_at, g.buried) for name, g in groups.items()} == {
        "aa": (T0 + 2, T0 + 3, 2),
        "bb": (T0 + 4, T0 + 4, 1),
    }
    assert (groups["aa"].sample, groups["aa"].agent, groups["aa"].error_class) == (
        f"{3:032x}", "ann", "ConnectionError",
    )  # fmt: skip
    assert len(str(groups["bb"].error)) <= 500


async def test_the_days_of_before_are_those_of_its_hours(sqlite: Openers, folder: Path) -> None:
    """A file that has only hours of failures and outcomes; new ones are added to the same days."""
    with closing(apsw.Connection(str(folder / "jobs.db"))) as database:
        for script in schema.read_steps()[:3]:
            database.execute(script)
        database.execute(schema.make_triggers())
        database.pragma("application_id", schema.APPLICATION_ID)
        database.pragma("user_version", 3)
        database.execute("INSERT INTO routes (id, queue, task) VALUES (1, 'feedback', 'post'), (2, 'mail', 'send')")
        for hour in range(int(T0 // 3600), int(T0 // 3600) + 100, 7):
            for route, (error_class, detail) in ((1, ("E", "bug")), (1, ("", "unknown")), (2, ("", ""))):
                moved = (hour, route, "buried", error_class, detail, hour % 5 + 1)
                database.execute("INSERT INTO tallies VALUES (?, ?, ?, ?, ?, ?)", moved)
            database.execute("INSERT INTO outcomes VALUES (?, 1, 'person', '', 2, 0.5)", (hour,))
        database.execute("INSERT INTO days SELECT hour / 24, route, move, sum(number) FROM tallies GROUP BY 1, 2, 3")
    store = await sqlite.open()
    (job,) = await taken(store, a_job())
    await do(store, burial(job, T0 + 86_400))
    tallies, outcomes = await store.tallies(0, 1e10), await store.outcomes(0, 1e10)
    counted = Counter({(tally.task, tally.error_class, tally.detail, tally.move): 0 for tally in tallies})
    for tally in tallies:
        counted[tally.task, tally.error_class, tally.detail, tally.move] += tally.number
    assert len(counted) == 5
    whole = await store.tallies(0, 1e10, whole=True)
    assert {(tally.task, tally.error_class, tally.detail, tally.move): tally.number for tally in whole} == counted
    became = {(one.what, one.name): (one.number, one.seconds) for one in await store.outcomes(0, 1e10, whole=True)}
    assert became == {("person", ""): (30, 7.5), ("died", ""): (1, 0.0), ("open", "manual"): (1, 0.0)}
    assert sum(one.number for one in outcomes) == 32


async def test_a_migrated_file_adds_up_from_then_on(migrated: Openers) -> None:
    store = await migrated.open()
    assert (await store.tallies(0, 1e10), await store.lessons("aa")) == ([], [])
    await store.close()
    again = await migrated.open()
    assert await again.count(Filter(states=(State.dead,)), by=("fingerprint",)) == {("aa",): 2, ("bb",): 1, (None,): 1}


async def test_what_an_older_file_holds_is_found_by_what_is_said_of_it(sqlite: Openers, folder: Path) -> None:
    """Steps that were taken long ago have made narrower indexes; the newest replaces them, whatever is in the file."""
    with closing(apsw.Connection(str(folder / "jobs.db"))) as database:
        for script in schema.read_steps()[:7]:
            database.execute(script)
        database.execute(schema.make_triggers())
        database.pragma("application_id", schema.APPLICATION_ID)
        database.pragma("user_version", 7)
        database.execute("INSERT INTO routes (id, queue, task) VALUES (1, 'mail', 'send')")
        for number, state in enumerate(("waiting", "held", "done", "dead", "discarded", "purged")):
            said, trouble = ("permanent", "manual", "Look."), ("aa", "KeyError", "bug", "no")
            database.execute(JOB, (f"{number:032x}", 1, state, T0, T0, T0 + number, *said, *trouble))
        database.execute(schema.make_recount())
    store = await sqlite.open()
    for filter in (Filter(error_class="KeyError"), Filter(detail="bug", because="permanent"), Filter(fingerprint="aa")):
        assert [job.id for job in (await store.find(filter)).jobs] == [f"{number:032x}" for number in range(6)][::-1]
    states = [state for state in State if state is not State.running]
    assert await store.count(Filter(lane="manual"), by=("state",)) == {(str(state),): 1 for state in states}
    assert (await store.find(Filter(states=(State.held,)))).jobs[0].error_class == "KeyError"
