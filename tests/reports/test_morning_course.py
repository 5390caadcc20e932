"""How each trouble went since the day before: new, back, growing, shrinking, cured; and what was put off."""

from __future__ import annotations

from datetime import timedelta

import pytest

import redrive
from redrive.reports.morning import headline, in_lines
from redrive.reports.needs import Need, course
from tests.support import FakeClock, soon

DAY = 86400.0
PARTS = (
    "stone", "wheel", "belt", "shaft", "gear", "hopper", "chute", "sack", "rope", "beam", "door", "roof", "sail",
    "axle", "crane", "hoist", "sieve", "scale", "pulley", "lever", "spring", "bolt", "nut", "pin",
)  # fmt: skip


@pytest.fixture
def mill(rd: redrive.Redrive) -> redrive.Redrive:
    @rd.task(max_attempts=1, comebacks=())
    async def grind(stone: str) -> None:
        if stone != "whole":
            raise RuntimeError(f"the {stone} is broken")

    return rd


async def break_down(rd: redrive.Redrive, number: int, stone: str = "stone") -> None:
    for _ in range(number):
        await rd.enqueue("grind", {"stone": stone})
    await soon(rd.drain())


async def only_need(rd: redrive.Redrive) -> Need:
    (need,) = (await rd.morning()).needs
    return need


@pytest.mark.parametrize(
    ("yesterday", "today", "told"),
    [
        (0, 2, "new"),
        (1, 3, "growing: 3, 1 the time before"),
        (3, 1, "shrinking: 1, 3 the time before"),
        (2, 2, "steady: 2, 2 the time before"),
        (2, 0, "shrinking: 0, 2 the time before"),
    ],
)
async def test_how_a_trouble_went_since_the_day_before(
    mill: redrive.Redrive, clock: FakeClock, yesterday: int, today: int, told: str
) -> None:
    await break_down(mill, yesterday)
    clock.advance(DAY)
    await break_down(mill, today)
    clock.advance(3600)
    need = await only_need(mill)
    assert (course(need), need.count, need.fresh, need.before) == (told, yesterday + today, today, yesterday)
    assert need.oldest_at == clock.now() - 3600 - (DAY if yesterday else 0)


async def test_what_lies_there_unchanged_is_quiet(mill: redrive.Redrive, clock: FakeClock) -> None:
    await break_down(mill, 2)
    clock.advance(5 * DAY)
    assert (await only_need(mill)).course == "quiet"


async def test_a_trouble_that_somebody_called_cured_and_is_back_has_regressed(
    mill: redrive.Redrive, clock: FakeClock
) -> None:
    await break_down(mill, 1)
    need = await only_need(mill)
    assert need.fingerprint is not None
    await mill.groups.resolve(need.fingerprint, who="ada", why="another stone")
    clock.advance(2 * DAY)
    await break_down(mill, 1)
    assert (await only_need(mill)).course == "regressed"  # nobody watches, the numbers say it
    await mill.groups.look()
    assert (await only_need(mill)).course == "regressed"  # the watch has said it
    clock.advance(3 * DAY)
    assert (await only_need(mill)).course == "quiet"


async def test_a_trouble_of_yesterday_that_left_nothing_is_cured(mill: redrive.Redrive, clock: FakeClock) -> None:
    await break_down(mill, 2)
    letters = (await mill.dead.list()).jobs
    clock.advance(DAY + 60)
    assert (await mill.morning()).cured == []  # two still lie there
    for letter in letters:
        await mill.dead.edit(letter.id, {"stone": "whole"}, who="ada")
    await soon(mill.drain())
    page = await mill.morning()
    assert [(cured.task, cured.what) for cured in page.cured] == [("grind", "RuntimeError: the stone is broken")]
    assert page.ok
    assert headline(page) == "quiet: 2 done, 1 cured, nothing needs you"
    clock.advance(DAY)
    assert (await mill.morning()).cured == []  # told once


async def test_only_the_queue_that_is_asked_for_is_cured(mill: redrive.Redrive, clock: FakeClock) -> None:
    await break_down(mill, 1)
    await mill.dead.discard((await mill.dead.list()).jobs[0].id)
    clock.advance(DAY + 60)
    assert len((await mill.morning(queue="grind")).cured) == 1
    assert (await mill.morning(queue="other")).cured == []


async def test_what_was_put_off_is_a_number_until_its_time_comes(mill: redrive.Redrive, clock: FakeClock) -> None:
    await break_down(mill, 2)
    first, _ = (await mill.dead.list()).jobs
    await mill.dead.defer(first.id, owner="ada", until=timedelta(days=3), who="ada", why="after the holidays")
    page = await mill.morning()
    assert ([need.kind for need in page.needs], page.deferred) == (["dead_manual"], 1)
    assert "1 deferred" in headline(page)
    clock.advance(3 * DAY + 1)
    page = await mill.morning()
    (overdue,) = [need for need in page.needs if need.kind == "deferred_overdue"]
    assert (page.deferred, overdue.owner, overdue.job_id) == (0, "ada", first.id)
    assert "has come" in overdue.action
    assert overdue.command == f"redrive status {first.short_id}"


async def test_a_message_for_people_says_all_of_it(mill: redrive.Redrive, clock: FakeClock) -> None:
    await break_down(mill, 2, "wheel")
    await mill.dead.discard((await mill.dead.list()).jobs[0].id)
    await mill.dead.discard((await mill.dead.list()).jobs[0].id)
    clock.advance(DAY + 60)
    await break_down(mill, 4)
    lines = in_lines(await mill.morning())
    assert lines[0].startswith("4 dead grind: RuntimeError: the stone is broken [new] → ")
    assert lines[-1] == "cured: grind: RuntimeError: the wheel is broken"


async def test_many_troubles_are_twenty_and_the_rest_by_class(mill: redrive.Redrive) -> None:
    """And whatever is in the manual lane is counted once."""
    for number, word in enumerate(PARTS):
        await break_down(mill, 1 + (number == 0), word)
    page = await mill.morning()
    assert [need.count for need in page.needs] == [2, *[1] * 19, 4]
    assert page.needs[0].what == "RuntimeError: the stone is broken"
    assert page.waiting_for_you == len(PARTS) + 1
    rest = page.needs[-1]
    assert rest.what.startswith("4 smaller groups, such as RuntimeError: the ")
    assert rest.command == "redrive dead list --lane manual --error-class RuntimeError"
    assert (rest.course, page.needs[0].course) == (None, "new")
    told = {need.fingerprint for need in page.needs[:-1]}
    untold = [view for view in await mill.groups.list() if view.fingerprint not in told]
    await mill.groups.ignore(untold[0].fingerprint, who="ada")
    assert (await mill.morning()).needs[-1].count == 3


async def test_a_small_trouble_is_not_hidden_behind_a_large_one_of_its_class(
    mill: redrive.Redrive, clock: FakeClock
) -> None:
    """What stands for the rest is of the rest, though the latest letter of the class is of a trouble that is shown."""
    await break_down(mill, 1, "pin")
    clock.advance(DAY)
    await break_down(mill, 1, "pin")
    for word in PARTS[1:20]:
        await break_down(mill, 3, word)
    await break_down(mill, 5)
    clock.advance(3600)
    page = await mill.morning()
    rest = page.needs[-1]
    assert (len(page.needs), rest.count, rest.what) == (21, 2, "RuntimeError: the pin is broken")
    assert rest.command == f"redrive dead list --fingerprint {rest.fingerprint}"
    assert course(rest) == "steady: 1, 1 the time before"
    await mill.groups.ignore(str(page.needs[0].fingerprint), who="ada")
    page = await mill.morning()
    last = page.needs[-1]
    assert (page.ignored, last.fingerprint, last.count, course(last)) == (5, rest.fingerprint, 2, course(rest))


async def test_a_letter_of_no_group_needs_a_person_too(mill: redrive.Redrive) -> None:
    await break_down(mill, 2)
    job = await mill.enqueue("grind", {"stone": "whole"}, delay=60)
    await mill.jobs.cancel(job.id)
    await mill.dead.restore(job.id, who="ada")
    needs = (await mill.morning()).needs
    assert [(need.count, need.job_id == job.id, need.fingerprint is None) for need in needs] == [
        (2, False, False),
        (1, True, True),
    ]


async def test_all_of_it_goes_through_json(mill: redrive.Redrive) -> None:
    await break_down(mill, 1)
    body = (await mill.morning()).public()
    assert body["needs"][0]["course"] == "new"
    assert body["needs"][0]["oldest_at"].startswith("2027-01-15T08:00:00")
    assert (body["cured"], body["deferred"]) == ([], 0)
