"""An agent that does the same again and again without success is told, and then people are (checklist B52)."""

from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import Outcome, Redrive
from redrive.errors import ConfigError, InvalidPayload
from tests.support import FakeClock, opened, soon

TOLD = "You repeat yourself"


class Desk:
    """An agent's tasks: `works` is the switch."""

    def __init__(self, rd: Redrive) -> None:
        self.works = False

        @rd.task(max_attempts=1)
        async def publish(slug: str) -> str:
            if not self.works:
                raise redrive.GiveUp("the account is closed")
            return slug

        @rd.task(read_only=True)
        async def look(name: str) -> str:
            if not self.works:
                raise LookupError("not there")
            return name


async def publish(rd: Redrive, slug: str = "q3", session: str | None = "s1") -> Outcome:
    outcome: Outcome = await soon(rd.call("publish", {"slug": slug}, session_id=session))
    return outcome


async def people(rd: Redrive) -> list[str]:
    return [notice.title for notice in await rd.notices.waiting() if notice.kind == "repeats"]


@pytest.mark.behaviour("R-8b", "B52")
async def test_the_fifth_time_the_agent_is_told_and_the_sixth_time_people_are_once(rd: Redrive) -> None:
    Desk(rd)
    outcomes = [await publish(rd) for _ in range(8)]
    assert [TOLD in outcome.message for outcome in outcomes] == [False] * 4 + [True] * 4
    assert [outcome.repeats for outcome in outcomes] == [0, 0, 0, 0, 5, 6, 7, 8]
    assert outcomes[4].public()["repeats"] == 5 and "not retried" in outcomes[4].message
    assert await people(rd) == ["An agent repeats publish"]
    assert any("session s1 repeats publish" in fact for fact in (await rd.health()).issues)


@pytest.mark.behaviour("R-8b")
async def test_nobody_is_told_before_the_agent_had_the_chance_to_stop(rd: Redrive) -> None:
    Desk(rd)
    for _ in range(5):
        await publish(rd)
    assert await people(rd) == []


@pytest.mark.behaviour("R-8b")
async def test_what_succeeds_other_parameters_and_other_sessions_are_no_repeats(rd: Redrive) -> None:
    desk = Desk(rd)
    for number in range(6):
        assert not (await publish(rd, f"slug-{number}")).repeats
        assert not (await publish(rd, session=f"s{number + 2}")).repeats
        assert not (await publish(rd, session=None)).repeats
    desk.works = True
    assert not any([(await publish(rd)).repeats for _ in range(20)])
    assert not [issue for issue in (await rd.health()).issues if "repeats" in issue]


@pytest.mark.behaviour("R-8b")
async def test_a_success_ends_it_for_the_agent_and_for_health(rd: Redrive) -> None:
    desk = Desk(rd)
    for _ in range(6):
        await publish(rd)
    desk.works = True
    assert await publish(rd)
    assert not [issue for issue in (await rd.health()).issues if "repeats" in issue]
    desk.works = False
    assert not (await publish(rd)).repeats


@pytest.mark.behaviour("R-8b")
async def test_calls_retries_looks_and_refusals_are_actions(rd: Redrive) -> None:
    Desk(rd)
    first = await publish(rd)
    for _ in range(3):
        await soon(rd.retry(first.operation_id or ""))
    assert (await publish(rd)).repeats == 5
    looks = [await soon(rd.call("look", {"name": "ada"}, session_id="s2")) for _ in range(5)]
    assert [look.repeats for look in looks] == [0, 0, 0, 0, 5]
    notes: list[Any] = []
    for _ in range(5):
        with pytest.raises(InvalidPayload) as refused:
            await rd.call("publish", {"nonsense": 1}, session_id="s3")
        notes.append(getattr(refused.value, "__notes__", []))
    assert [len(one) for one in notes] == [0, 0, 0, 0, 1] and TOLD in notes[4][0]


@pytest.mark.behaviour("R-8b")
async def test_an_agent_that_starts_a_process_for_each_call_is_recognised(database: Path) -> None:
    repeats = []
    for _ in range(6):
        async with opened(database) as rd:
            Desk(rd)
            repeats.append((await publish(rd)).repeats)
    assert repeats == [0, 0, 0, 0, 5, 6]


@pytest.mark.behaviour("R-8b")
async def test_it_can_be_set_and_turned_off(database: Path) -> None:
    async with opened(database, repeats=2, repeats_window=3) as rd:
        Desk(rd)
        assert [(await publish(rd)).repeats for _ in range(2)] == [0, 2]
    async with opened(database, repeats=0) as rd:
        Desk(rd)
        assert not any([(await publish(rd)).repeats for _ in range(10)])
    with pytest.raises(ConfigError, match="repeats"):
        Redrive(database, repeats=16)


@pytest.mark.behaviour("R-8b")
async def test_what_is_only_accepted_has_not_failed(rd: Redrive) -> None:
    """A session that submits the same every hour learns of the success by notice, not in the answer."""
    Desk(rd)
    told = [await soon(rd.submit("publish", {"slug": "q3"}, session_id="s1")) for _ in range(10)]
    assert not any(outcome.repeats for outcome in told)


async def test_a_window_leaves_with_its_session_and_after_a_day(rd: Redrive, clock: FakeClock) -> None:
    Desk(rd)
    for _ in range(4):
        await publish(rd)
        await publish(rd, session="s2")
    await rd.jobs.erase(session_id="s1")
    assert not (await publish(rd)).repeats
    clock.advance(3 * 86400)
    await rd.notices.prune()
    assert not (await publish(rd, session="s2")).repeats


async def test_a_store_that_does_not_take_the_window_costs_no_answer(
    rd: Redrive, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Desk(rd)

    async def refuses(*_: object) -> None:
        raise redrive.errors.StoreBusy("not now")

    monkeypatch.setattr("redrive.notices.repeats.REPEATS.update", refuses)
    outcome = await publish(rd)
    assert outcome.status == "failed" and "was not added to its window" in caplog.text
