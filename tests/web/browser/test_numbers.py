"""Numbers that are clicked, and what is new, in a real browser."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, expect

import redrive
from tests.support import eventually, opened
from tests.web.browser.conftest import PACE, Tabs
from tests.web.populated import PAGES, fill, make_tasks, settle, stop_queue, triage
from tests.web.serving import Served, make_rd, serving

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
async def worked(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> AsyncIterator[Served]:
    """Successes, and two groups of dead letters, once, for tests that only look."""
    broken = ("wheel stuck", "wheel stuck", "stone cracked")
    async with make_rd(tmp_path_factory.mktemp("worked") / "jobs.db") as rd, serving(rd, dashboard=True) as served:
        await rd.enqueue_many("greet", [{"name": str(number)} for number in range(4)])
        await rd.enqueue_many("broken", [{"text": text} for text in broken])
        await eventually(lambda: _settled(rd), "every job to settle")
        yield served


async def _settled(rd: redrive.Redrive) -> bool:
    totals = (await rd.stats())["totals"]
    return (totals["done"], totals["dead"]) == (4, 3)


async def test_the_overview_leads_to_the_new_groups(worked: Served, tabs: Tabs) -> None:
    page = await tabs.open(worked, "/")
    line = page.locator(".needs-new li", has_text="in the last hour")
    await expect(line.locator(".count")).to_have_text("2")
    await expect(line.locator(".todo")).to_contain_text("broken: RuntimeError: stone cracked (1)")
    await line.locator(".what").get_by_role("link").click()
    await expect(page).to_have_url(re.compile(r"/dead\?new=hour$"))
    await expect(page.locator(".lead")).to_have_text("3 dead letters in 2 groups, new in the last hour.")
    await expect(page.locator("ul.groups > li")).to_have_count(2)
    await page.get_by_role("link", name="Remove the filter new in the last hour").click()
    await expect(page.locator("#letters-title")).to_be_visible()


@pytest.mark.parametrize(
    ("path", "name", "lead"),
    [
        ("/queues", "4 done in greet", "4 jobs match."),
        ("/tasks", "4 done in greet", "4 jobs match."),
        ("/", "3 dead letters of broken", "3 dead letters match, in 2 groups."),
    ],
)
async def test_a_number_leads_to_its_jobs(worked: Served, tabs: Tabs, path: str, name: str, lead: str) -> None:
    page = await tabs.open(worked, path)
    await page.get_by_role("link", name=name).click()
    await expect(page.locator(".lead")).to_have_text(lead)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_waits_and_runs_fit_a_phone(worked: Served, tabs: Tabs, scheme: str) -> None:
    page = await tabs.open(worked, viewport=PHONE, color_scheme=scheme)
    for path in ("/queues", "/tasks", "/dead?new=hour", "/jobs?state=done", "/"):
        await page.goto(path)
        if path in ("/queues", "/tasks"):
            await expect(page.get_by_text(re.compile("of 3 attempts")).first).to_be_visible()
            await expect(page.get_by_title(re.compile("half of the last 4 successes")).first).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


# -- every number of every page


class Number(NamedTuple):
    """A number that a page shows: what it says, its class, where it leads, and the list it stands in."""

    text: str
    kind: str
    href: str | None
    title: str

    @property
    def value(self) -> float:
        return float(self.text.replace(",", ""))


NUMBERS = """() => [...document.querySelectorAll(
        ".num, .figure, .count, .nav-count, .totals dd, .counts dd, td.n a, td.n")]
    .filter(one => /^[+]?[0-9][0-9.,]*$/.test(one.textContent.trim()))
    .map(one => [
        one.textContent.trim(),
        one.className,
        (one.closest("a") || one.querySelector("a"))?.getAttribute("href") ?? null,
        one.title || one.querySelector("[title]")?.title || one.closest("[title]")?.title || "",
    ])"""
LEADS_NOWHERE = {
    "A rate of the last two minutes": "a rate counts no jobs",
    "A difference between two times": "it counts failures, of which a job can have several, and less those before",
    "Judged for this plan, and not kept": "the reasons are judged while the page is made",
    "A setting of the worker": "a setting counts no jobs",
    "A place in the log": "a place in the log counts no jobs",
    "Messages of the log that this replica has not applied yet": "messages are no jobs",
}
"""Numbers without a list behind them, by what the page says of them, each with the reason."""
ONE_JOB = re.compile(r"/jobs/[0-9a-f]{32}")


@pytest.fixture
async def populated(tmp_path: Path, tabs: Tabs) -> AsyncIterator[Served]:
    async with opened(tmp_path / "jobs.db", version="2.1") as rd:
        make_tasks(rd)
        await fill(rd)
        async with serving(rd, pace=PACE, dashboard=True) as served:
            await settle(rd, dead=3, done=4, held=1, retrying=1)
            await triage(rd)
            await stop_queue(rd)
            yield served
            await tabs.close()


async def numbers_on(page: Page, path: str) -> list[Number]:
    await page.goto(path)
    return [Number(*found) for found in await page.evaluate(NUMBERS)]


LISTED = """async ([href, id]) => {
    const answer = await fetch(href);
    const list = new DOMParser().parseFromString(await answer.text(), "text/html");
    const all = where => [...list.querySelectorAll(where)];
    const rows = () => {
        const part = all("section[data-total] tr[data-row]"), letters = all("table.letters tr[data-row]");
        if (part.length) return part.length;
        if (letters.length) return letters.length;
        const groups = all(".group-count .num").map(one => Number(one.textContent.replaceAll(",", "")));
        return groups.length ? groups.reduce((one, other) => one + other) : all("main [data-row]").length;
    };
    return {
        status: answer.status,
        total: list.querySelector("[data-total]")?.dataset.total ?? null,
        rows: rows(),
        groups: all("ul.groups > li").length,
        places: id ? all(`[id="${CSS.escape(id)}"]`).length : 0,
    };
}"""
"""What a list says it has, and its rows; a page of groups alone has as many letters as its groups together."""


class Listed(NamedTuple):
    """The target of a link, as the server answers it: the list is whole before any script runs."""

    status: int
    total: int | None
    rows: int
    groups: int
    places: int
    """How many elements have the id that the link names after its `#`."""


async def listed(page: Page, href: str) -> Listed:
    found = await page.evaluate(LISTED, [href, urlsplit(href).fragment])
    total = int(found["total"]) if found["total"] is not None else None
    return Listed(**{**found, "total": total})


async def pages_of(served: Served) -> list[str]:
    """Every page, with those of one group, one job, one redrive, one session, and what is asked before acting."""
    rd = served.rd
    (run,) = await rd.redrives.list()
    discarded = next(act for act in await rd.dead.acts() if act.verb == "discard")
    job = (await rd.dead.list()).jobs[0]
    return [
        *PAGES, f"/redrives/{run.id}", f"/redrives/{discarded.id}", f"/groups/{job.fingerprint}", f"/jobs/{job.id}",
        "/inbox?session=s1", "/dead?status=ignored", "/dead/act?verb=discard&all=1", "/dead/edit?all=1",
    ]  # fmt: skip


@pytest.mark.behaviour("N-3")
async def test_every_number_of_every_page_leads_to_a_list_of_as_many(populated: Served, tabs: Tabs) -> None:
    page = await tabs.open(populated, "/")
    followed: dict[str, float] = {}
    for path in await pages_of(populated):
        for number in await numbers_on(page, path):
            if number.value == 0 or number.title in LEADS_NOWHERE:
                continue
            assert number.href is not None, f"{path}: {number}"
            address = number.href if not number.href.startswith("#") else f"{path}{number.href}"
            if followed.get(address) == number.value:
                continue
            target = await listed(page, address)
            assert target.status == 200, f"{path}: {number}"
            place = urlsplit(address)
            if place.fragment and place.fragment != "items-title":
                assert target.places == 1, f"{path}: {number}"
            elif place.query.startswith("new="):  # counts groups, not letters
                assert target.groups == number.value, f"{path}: {number}"
            elif not ONE_JOB.fullmatch(place.path):
                assert target.total == target.rows == number.value, f"{path}: {number}: {target}"
            followed[address] = number.value
    assert len(followed) > 60, len(followed)
