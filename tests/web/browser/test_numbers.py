"""Numbers that are clicked, and what is new, in a real browser."""

import re

import pytest
from playwright.async_api import expect

import redrive
from tests.support import eventually
from tests.web.browser.conftest import Tabs
from tests.web.serving import Served

PHONE = {"width": 390, "height": 844}


@pytest.fixture
async def worked(served: Served) -> Served:
    """Successes, and two groups of dead letters."""
    await served.rd.enqueue_many("greet", [{"name": str(number)} for number in range(4)])
    await served.rd.enqueue_many("broken", [{"text": text} for text in ("wheel stuck", "wheel stuck", "stone cracked")])
    await eventually(lambda: _settled(served.rd), "every job to settle")
    return served


async def _settled(rd: redrive.Redrive) -> bool:
    totals = (await rd.stats())["totals"]
    return (totals["done"], totals["dead"]) == (4, 3)


async def test_the_overview_leads_to_the_new_groups(worked: Served, tabs: Tabs) -> None:
    page = await tabs.open(worked, "/")
    line = page.locator(".needs-new li", has_text="in the last hour")
    await expect(line.locator(".count")).to_have_text("2")
    await expect(line.locator(".todo")).to_contain_text("broken: RuntimeError: stone cracked (1)")
    await line.get_by_role("link").click()
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
    for path in ("/queues", "/tasks", "/dead?new=hour", "/jobs?state=done", "/"):
        page = await tabs.open(worked, path, viewport=PHONE, color_scheme=scheme)
        if path in ("/queues", "/tasks"):
            await expect(page.get_by_text(re.compile("of 3 attempts")).first).to_be_visible()
            await expect(page.get_by_title(re.compile("half of the last 4 successes")).first).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
