"""The page of dead letters, as a server answers it: what it counts is what there is, whatever is chosen."""

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest

import redrive
from tests.stores.jobs import a_dead_job
from tests.support import soon
from tests.web.serving import Served, serving

STUCK, LOST = "5" * 16, "7" * 16


@pytest.fixture
async def letters(rd: redrive.Redrive) -> AsyncIterator[Served]:
    """One trouble in two queues, the latest of it in `mail`, and another; one letter comes back by itself."""
    now = rd.clock.now() - 100
    jobs = [
        a_dead_job(queue=queue, lane=lane, fingerprint=trouble, owner=owner, updated_at=now + number, died_at=now)
        for number, (queue, lane, trouble, owner) in enumerate(
            [("press", "manual", STUCK, "ann"), ("press", "delayed", LOST, None), ("mail", "manual", STUCK, None),
             ("mail", "manual", STUCK, "ann")]
        )
    ]  # fmt: skip
    await rd.store.insert(jobs)
    async with serving(rd, worker=False, dashboard=True) as served:
        yield served


@pytest.mark.parametrize(
    ("choice", "lead", "groups"),
    [
        ("", "4 dead letters in 2 groups. 3 wait for a person, 1 comes back by itself.", {STUCK: 3, LOST: 1}),
        ("?lane=manual", "3 dead letters match, in 1 group.", {STUCK: 3}),
        ("?lane=delayed", "1 dead letter matches, in 1 group.", {LOST: 1}),
        ("?queue=press", "2 dead letters match, in 2 groups.", {STUCK: 1, LOST: 1}),
        ("?queue=press&lane=manual", "1 dead letter matches, in 1 group.", {STUCK: 1}),
        ("?owner=ann&since=1h", "2 dead letters match, in 1 group.", {STUCK: 2}),
        ("?groups=1&lane=manual", "3 dead letters match, in 1 group.", {STUCK: 3}),
        ("?queue=nowhere", "Nothing matches.", {}),
    ],
)
async def test_the_page_counts_what_is_chosen_by_group(
    letters: Served, choice: str, lead: str, groups: dict[str, int]
) -> None:
    """A group is shown wherever it has letters, not only where its latest one is."""
    answer = await soon(letters.client.get(f"/dead{choice}"))
    assert answer.status_code == 200, answer.text
    page = unescape(answer.text)
    assert lead in page
    row = r'id="group-(\w+)".*?<p class="group-count"><a [^>]*><strong class="num">(\d+)</strong>'
    shown = re.findall(row, page, re.DOTALL)
    assert {name: int(number) for name, number in shown} == {name[:8]: number for name, number in groups.items()}


async def test_a_letter_whose_time_has_come_does_not_say_that_it_comes_back_a_minute_ago(rd: redrive.Redrive) -> None:
    now = rd.clock.now()
    await rd.store.insert([
        a_dead_job(lane="delayed", updated_at=now - 600, died_at=now - 600, comes_back_at=now + away)
        for away in (-90.0, 3_600.0)
    ])  # fmt: skip
    async with serving(rd, worker=False, dashboard=True) as served:
        page = (await soon(served.client.get("/dead"))).text
    back = re.findall(r"<small>comes back (.*?)</small>", page)
    assert len(back) == 2 and "as soon as a worker takes it" in back and not any("ago" in said for said in back)
