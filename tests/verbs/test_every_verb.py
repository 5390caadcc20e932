"""Every verb of the table through every door, for one job and for many, and back again."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive.core.job import Job, State
from redrive.deadletters.verbs import TABLE, VERBS, Verb
from tests.support import process, soon
from tests.verbs.doors import DAY, Dashboard, Door, Model, Python, Rest, Terminal, said
from tests.web.serving import Served, serving

DOORS: dict[str, type[Any]] = {"python": Python, "rest": Rest, "terminal": Terminal, "dashboard": Dashboard}


MANY = [
    (verb.name, door)
    for verb in TABLE
    for door in DOORS
    if verb.many and (door != "dashboard" or verb.acts_on is State.dead)
]
"""The page of dead letters offers what can be done with dead letters."""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def served(database: Path) -> AsyncIterator[Served]:
    """A server without a worker: what was brought back waits, untouched."""
    async with redrive.Redrive(database, poll=3600.0) as rd:

        @rd.task("mill", max_attempts=1, comebacks=())
        async def mill(order: int = 0) -> None:
            raise RuntimeError("the mill is broken")

        async with serving(rd, worker=False, dashboard=True) as served:
            yield served


async def jobs_for(rd: redrive.Redrive, verb: Verb, number: int = 1) -> list[str]:
    """So many jobs in the state that the verb acts on."""
    ids = [(await rd.enqueue("mill", {"order": n})).id for n in range(number)]
    await soon(rd.drain())
    if verb.acts_on is State.discarded:
        await rd.dead.discard(ids=ids)
    if verb.acts_on is State.held:
        await rd.dead.defer(ids=ids, owner="bob", until=DAY)
    return ids


async def read(rd: redrive.Redrive, ids: Sequence[str]) -> list[dict[str, Any]]:
    """What taking an act back must bring back; what to do is told anew where many were taken back."""
    names = ("state", "because", "lane", "category", "detail", "fingerprint", "error_class", "error", "owner", "agent",
             "changes_json", "payload", "allowed", "grants", "attempts", "died_at")  # fmt: skip
    return [{name: getattr(job, name) for name in names} for job in await rd.store.get(ids)]


async def check_done(rd: redrive.Redrive, verb: Verb, ids: Sequence[str], before: list[dict[str, Any]]) -> None:
    """The jobs are where the verb leaves them, and the act stands on record."""
    jobs = await rd.store.get(ids)
    if verb.leaves is None:
        for job in jobs:
            assert [note.text for note in await rd.dead.notes(job.id)] == [said(verb)["text"]]
    else:
        assert {job.state for job in jobs} == {verb.leaves}
    act = (await rd.dead.acts())[0]
    assert (act.verb, act.number, act.moved, act.undoable) == (verb.name, len(ids), len(ids), True)
    if verb.name == "edit":
        assert [job.payload for job in jobs] == [one["payload"] for one in before], "what was enqueued stays"
        assert all('"order":9' in (job.changes_json or "") for job in jobs)
    check_words(verb, jobs)


def check_words(verb: Verb, jobs: Sequence[Job]) -> None:
    fields = {"agent": "agent", "owner": "owner", "lane": "lane"}
    for name, value in said(verb).items():
        if name in fields:
            assert {getattr(job, fields[name]) for job in jobs} == {value}


async def check_back(rd: redrive.Redrive, verb: Verb, ids: Sequence[str], before: list[dict[str, Any]]) -> None:
    assert await read(rd, ids) == before
    for id in ids:
        assert list(await rd.dead.notes(id)) == []
    act = next(act for act in await rd.dead.acts() if act.verb == verb.name)
    assert (act.undone, act.undoable) == (len(ids), False)


@pytest.mark.behaviour("V-1")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("verb", VERBS)
async def test_one_job_and_back(served: Served, verb: str, door: str) -> None:
    way: Door = DOORS[door](served)
    (id,) = await jobs_for(served.rd, VERBS[verb])
    before = await read(served.rd, [id])
    await way.one(VERBS[verb], id)
    await check_done(served.rd, VERBS[verb], [id], before)
    await way.undo(id)
    await check_back(served.rd, VERBS[verb], [id], before)


@pytest.mark.behaviour("V-1", "V-2")
@pytest.mark.parametrize(("verb", "door"), MANY)
async def test_many_jobs_and_back(served: Served, verb: str, door: str) -> None:
    way: Door = DOORS[door](served)
    ids = await jobs_for(served.rd, VERBS[verb], 3)
    before = await read(served.rd, ids)
    act = await way.many(VERBS[verb], ids)
    await served.rd.redrives.advance()
    await check_done(served.rd, VERBS[verb], ids, before)
    await way.undo(act)
    await check_back(served.rd, VERBS[verb], ids, before)


@pytest.mark.behaviour("V-1")
@pytest.mark.parametrize("verb", VERBS)
async def test_a_model_has_the_tools_that_the_table_gives_it(served: Served, verb: str) -> None:
    way, row = Model(served), VERBS[verb]
    if row.tool is None:
        assert not {name for name in await way.tools() if verb in name.split("_")}
        return
    (id,) = await jobs_for(served.rd, row)
    before = await read(served.rd, [id])
    await way.one(row, id)
    await check_done(served.rd, row, [id], before)
    await served.rd.dead.undo(id)
    await check_back(served.rd, row, [id], before)


ONE_PLACE = """
    import asyncio, sys
    from redrive.core import lifecycle
    from redrive.deadletters import verbs

    def shelve(job, now, *, who, why, shelf):
        return lifecycle.rerouted(job, now, lane="manual", who=who, why=why)

    row = verbs.Verb(
        "shelve", "shelved", "shelved", "Shelve", "Puts it on a shelf.", "On which shelf?", "On which shelf?",
        "On shelf {shelf}.", "on shelf {shelf}", "redrive dead show {id}", shelve,
        (verbs.Word("shelf", "name", "Which shelf", "--shelf", "NAME", "Which shelf."),), leaves=verbs.State.dead,
        back=verbs.VERBS["move_lane"].back, tool="shelve_failure", tool_says="Puts it on a shelf.",
    )
    verbs.TABLE += (row,)
    verbs.VERBS["shelve"] = verbs.ACTS["shelve"] = row

    from tests.verbs import test_every_verb
    asyncio.run(test_every_verb.through_every_door(sys.argv[1], "shelve"))
    print("every door", flush=True)
"""


async def through_every_door(path: str, name: str) -> None:
    verb = VERBS[name]
    async with redrive.Redrive(path, poll=3600.0) as rd:

        @rd.task("mill", max_attempts=1, comebacks=())
        async def mill(order: int = 0) -> None:
            raise RuntimeError("the mill is broken")

        async with serving(rd, worker=False, dashboard=True) as served:
            for door in (Rest, Terminal, Dashboard, Model):
                (id,) = await jobs_for(rd, verb)
                way: Any = door(served)
                await way.one(verb, id)
                assert (await rd.dead.acts())[0].said == {"shelf": "mira"}
                assert (await rd.dead.undo(id)).moved == 1
            ids = await jobs_for(rd, verb, 2)
            acted = await rd.dead.do(name, ids=ids, shelf="top")
            assert (await rd.dead.undo(acted.act_id)).moved == 2  # type: ignore[union-attr]


@pytest.mark.behaviour("V-1")
def test_a_new_verb_takes_one_row(database: Path) -> None:
    with process(ONE_PLACE, database) as child:
        out, err = child.communicate(timeout=120)
    assert "every door" in out, (out, err)
