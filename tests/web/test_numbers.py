"""Every number of the dashboard that counts jobs leads to a list of just as many."""

from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.support import eventually, opened, soon
from tests.web.populated import PAGES, fill, make_tasks, settle, stop_queue
from tests.web.serving import Served, serving


class Number(NamedTuple):
    """A number on a page, and where it leads."""

    text: str
    href: str | None

    @property
    def value(self) -> int:
        return int(self.text.replace(",", ""))


class Reader(HTMLParser):
    """Reads the numbers of a page, its ids, its classes, and the total that a list says it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.numbers: list[Number] = []
        self.ids: set[str] = set()
        self.groups = 0
        self.total: int | None = None
        self._links: list[str | None] = []
        self._counting = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said: dict[str, Any] = dict(attrs)
        self.ids.add(said.get("id", ""))
        self.groups += "group" in said.get("class", "").split() and tag == "li"
        if "data-total" in said:
            self.total = int(said["data-total"])
        if tag == "a":
            self._links.append(said.get("href"))
        self._counting = tag == "span" and "num" in said.get("class", "").split()

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self._links.pop()

    def handle_data(self, data: str) -> None:
        if self._counting and data.strip():
            self.numbers.append(Number(data.strip(), self._links[-1] if self._links else None))
            self._counting = False


async def read(served: Served, path: str) -> Reader:
    answer = await soon(served.client.get(path))
    assert answer.status_code == 200, (path, answer.text)
    return Reader(answer.text)


@pytest.fixture
async def seeded(tmp_path: Path) -> AsyncIterator[Served]:
    async with opened(tmp_path / "jobs.db", version="2.1") as rd:
        make_tasks(rd)
        await fill(rd)
        async with serving(rd, dashboard=True) as served:
            await settle(rd, dead=3, done=4, held=1, retrying=1)
            await stop_queue(rd)
            yield served


@pytest.mark.behaviour("N-3")
async def test_every_number_leads_to_a_list_of_as_many(seeded: Served) -> None:
    followed = 0
    for path in PAGES:
        for number in (await read(seeded, path)).numbers:
            if number.value == 0:
                continue
            assert number.href, f"{path}: {number.text} leads nowhere"
            place = urlsplit(number.href)
            target = await read(seeded, number.href if place.path else path)
            if place.fragment:
                assert place.fragment in target.ids, f"{path}: {number.text} leads to {number.href}"
            else:
                assert target.total == number.value, f"{path}: {number.text} leads to {number.href}: {target.total}"
            followed += 1
    assert followed > 30


async def test_due_jobs_and_those_for_later_are_told_apart(seeded: Served) -> None:
    assert (await read(seeded, "/jobs?state=due")).total == 2
    assert (await read(seeded, "/jobs?state=due&queue=greet")).total == 0
    assert (await read(seeded, "/jobs?state=waiting")).total == 4
    assert (await read(seeded, "/jobs?state=retrying")).total == 1
    assert (await read(seeded, "/jobs?text=wheel")).total is None, "what is searched is not counted"
    assert (await read(seeded, "/jobs?since=1h")).total is None


@pytest.mark.behaviour("N-2")
async def test_the_overview_begins_with_what_is_new(seeded: Served) -> None:
    text = (await soon(seeded.client.get("/"))).text
    assert "groups are new since version 2.1 was deployed" in text and "groups are new in the last hour" in text
    assert text.index("new since version") < text.index("What needs you")
    assert "broken: RuntimeError: stone cracked (1)" in text
    for which in ("deploy", "hour"):
        listed = await read(seeded, f"/dead?new={which}")
        assert (listed.total, listed.groups) == (3, 2)
    assert (await soon(seeded.client.get("/dead?new=week"))).status_code == 422


async def test_that_nothing_is_new_is_said_in_one_line(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as rd:
        make_tasks(rd)
        async with serving(rd, dashboard=True) as served:
            assert "No new group" not in (await soon(served.client.get("/"))).text, "before anything was enqueued"
            await soon((await rd.enqueue("greet", {"name": "ada"})).result())

            async def told() -> bool:
                return "No new group since a worker last started" in (await soon(served.client.get("/"))).text

            await eventually(told, "the overview to say that nothing is new")
            listed = await soon(served.client.get("/dead?new=hour"))
            assert "No group is new in the last hour" in listed.text


async def test_queues_and_tasks_show_waits_runs_and_failures(seeded: Served) -> None:
    for path in ("/queues", "/tasks"):
        text = (await soon(seeded.client.get(path))).text
        assert "Wait p50, p95" in text and "Run p50, p95" in text
        assert "half of the last 4 successes" in text and "of 3 attempts" in text
    queues = {queue["name"]: queue for queue in (await seeded.get("/v1/queues"))["items"]}
    assert queues["greet"]["waited"]["number"] == queues["greet"]["took"]["number"] == 4
    assert (queues["broken"]["failed"], queues["broken"]["failure_rate"]) == (3, 1.0)
    tasks = {task["name"]: task for task in (await seeded.get("/v1/tasks"))["items"]}
    assert tasks["greet"]["waited"]["p95"] >= 0.0 and tasks["broken"]["waited"] is None
    assert len((await seeded.get("/v1/groups", new="hour"))["items"]) == 2


async def test_workers_and_schedules_show_what_people_ask_for(seeded: Served) -> None:
    workers = (await soon(seeded.client.get("/workers"))).text
    assert all(name in workers for name in ("Started", "Heard of", "Version", "2.1", "slots busy", "nightly"))
    schedules = (await soon(seeded.client.get("/schedules"))).text
    assert all(name in schedules for name in ("Next", "Last", "Missed", "nightly", "0 3 * * *"))
