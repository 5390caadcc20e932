"""The page of all jobs and the pages around it: filters and search in the address, every number a link."""

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest

import redrive
from tests.stores.jobs import a_dead_job, a_job
from tests.support import eventually, soon
from tests.web.serving import Served, serving


@pytest.fixture
async def shop(rd: redrive.Redrive) -> AsyncIterator[Served]:
    """A waiting job with a name in its input, a dead one with an error, and one of another queue."""
    now = rd.clock.now()
    await rd.store.insert(
        [
            a_job(queue="press", task="print", payload='{"title":"Über Bäume"}', created_at=now, run_at=now),
            a_job(queue="mail", task="send", payload="{}", agent="editor", session_id="s1", run_at=now),
            a_dead_job(queue="mail", task="send", error="TimeoutError: the relay is slow", error_class="TimeoutError"),
        ]
    )
    async with serving(rd, worker=False, dashboard=True) as served:
        yield served


async def rows(served: Served, address: str) -> list[str]:
    answer = await soon(served.client.get(address))
    assert answer.status_code == 200, answer.text
    return re.findall(r'<tr data-row id="job-(\w+)">', unescape(answer.text))


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("", 3),
        ("?state=waiting", 2),
        ("?state=waiting,dead", 3),
        ("?queue=mail", 2),
        ("?queue=mail&state=dead", 1),
        ("?agent=editor", 1),
        ("?session=s1", 1),
        ("?text=the relay", 1),
        ("?text=über bäume", 1),
        ("?text=nowhere", 0),
    ],
)
async def test_the_address_chooses_the_jobs(shop: Served, query: str, number: int) -> None:
    assert len(await rows(shop, f"/jobs{query}")) == number


async def test_an_unknown_state_and_a_long_text_are_refused(shop: Served) -> None:
    for query in ("state=asleep", f"text={'x' * 201}"):
        answer = await soon(shop.client.get(f"/jobs?{query}"))
        assert answer.status_code == 422, answer.text


async def test_a_search_says_how_far_it_looked(shop: Served) -> None:
    page = (await soon(shop.client.get("/jobs?text=relay"))).text
    assert "3 jobs looked at, newest first." in page


async def test_every_number_of_a_queue_leads_to_its_jobs(shop: Served) -> None:
    page = unescape((await soon(shop.client.get("/queues"))).text)
    address = re.search(r'href="([^"]*/jobs\?[^"]*queue=press[^"]*)"', page)
    assert address is not None
    assert len(await rows(shop, address[1])) == 1


async def test_the_search_is_the_same_over_rest(shop: Served) -> None:
    found = (await soon(shop.client.get("/v1/jobs", params={"text": "RELAY"}))).json()["items"]
    assert [job["queue"] for job in found] == ["mail"]


async def test_workers_tasks_schedules_and_breakers_have_pages(rd: redrive.Redrive) -> None:
    @rd.task("tidy", schedule="0 3 * * *")
    async def tidy() -> None: ...

    await tidy.enqueue()
    async with rd.worker(concurrency=4), serving(rd, worker=False, dashboard=True) as served:

        async def announced() -> bool:
            return bool(await rd.workers())

        await eventually(announced, "the worker has announced itself")
        pages = {
            name: unescape((await soon(served.client.get(f"/{name}"))).text)
            for name in ("workers", "tasks", "schedules", "breakers")
        }
    assert "of 4 slots busy" in pages["workers"] and "tidy" in pages["workers"]
    assert 'id="task-tidy"' in pages["tasks"] and "/jobs?task=tidy" in pages["tasks"]
    assert "0 3 * * *" in pages["schedules"] and "tidy#0" in pages["schedules"]
    assert "Nothing is down." in pages["breakers"]


async def test_a_downstream_that_is_down_shows_how_many_jobs_are_parked(rd: redrive.Redrive) -> None:
    @rd.task(downstream="press", breaker_after=1)
    async def printed() -> None:
        raise ConnectionRefusedError("nobody listens")

    for _ in range(3):
        await printed.enqueue()
    await rd.drain()
    async with serving(rd, worker=False, dashboard=True) as served:
        page = unescape((await soon(served.client.get("/breakers"))).text)
    (row,) = re.findall(r'<tr id="breaker-press".*?</tr>', page, re.DOTALL)
    parked = (await rd.store.count(redrive.core.store.Filter(because="circuit_open"))).get((), 0)
    assert f">{parked}</span>" in row and parked > 0
