"""Bulk redrives in a real browser: how far, what the canary said, stopping and going on."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

import redrive
from tests.web.browser.conftest import Tabs
from tests.web.browser.ward import buried, dead_number, make_ward, world_of
from tests.web.serving import Served


@pytest.fixture
async def rd(database: Path) -> AsyncIterator[redrive.Redrive]:
    async with make_ward(database) as rd:
        yield rd


async def number(page: Page, name: str) -> str:
    """What stands above this word."""
    return await page.locator(".totals div", has=page.get_by_text(name, exact=True)).locator("dd").inner_text()


async def test_nothing_yet_says_where_to_begin(served: Served, tabs: Tabs) -> None:
    page = await tabs.open(served, "/redrives")
    await expect(page.locator(".empty-title")).to_have_text("Nothing has been redriven in bulk yet.")


async def test_progress_scorecard_and_items_while_it_goes_on(still: Served, tabs: Tabs) -> None:
    rd = still.rd
    async with rd.worker():
        await buried(rd, 3)
        await buried(rd, 2, "press")
    world_of(rd).broken.discard("mill")
    run = await rd.redrives.start(all=True, who="mira", why="the mill turns")
    page = await tabs.open(still, "/redrives")
    await expect(page.locator(".run")).to_contain_text("all dead letters")
    await expect(page.locator(".run")).to_contain_text("0 of 5 moved")
    await page.locator(".run [data-open]").click()
    await expect(page.locator("h1")).to_have_text("On their way")
    assert await number(page, "to go") == "5"
    async with rd.worker():
        await expect(page.locator("h1")).to_have_text("Finished")
    await expect(page.locator(".job-standing")).to_have_text("3 succeeded, 2 failed again, 0 skipped.")
    assert [await number(page, name) for name in ("succeeded", "failed again", "open", "skipped", "to go")] == list(
        "32000"
    )
    score = page.locator("section", has=page.locator("#score-title")).locator("tbody tr")
    await expect(score).to_have_count(2)
    await expect(score.filter(has_text="TypeError")).to_contain_text(re.compile(r"mill\s*3\s*3\s*3\s*0"))
    await expect(page.locator("section", has=page.locator("#items-title")).locator("tbody tr")).to_have_count(5)
    await expect(page.locator(".facts")).to_contain_text("the mill turns")
    assert (await rd.redrives.get(run.id)).state == "finished"


async def test_pausing_resuming_and_cancelling(still: Served, tabs: Tabs) -> None:
    rd = still.rd
    async with rd.worker():
        await buried(rd, 4)
    run = await rd.redrives.start(all=True, canary=1)
    page = await tabs.open(still, f"/redrives/{run.id}")
    await expect(page.locator("h1")).to_have_text("A few go first")
    await page.locator(".job-verbs").get_by_role("button", name="Pause").first.click()
    await page.fill("#do-pause-why", "let us look first")
    await page.locator("dialog[open]").get_by_role("button", name="Pause").click()
    await expect(page.locator("h1")).to_have_text("Paused")
    await expect(page.locator(".said")).to_contain_text("let us look first")
    await page.locator(".job-verbs").get_by_role("button", name="Resume").click()
    await page.locator("dialog[open]").get_by_role("button", name="Resume").click()
    await expect(page.locator("h1")).to_have_text("A few go first")
    await page.locator(".job-verbs").get_by_role("button", name="Cancel").first.click()
    await page.locator("dialog[open]").get_by_role("button", name="Cancel the redrive").click()
    await expect(page.locator(".flash")).to_contain_text("Cancelled. 4 dead letters stayed where they were.")
    await expect(page.locator("h1")).to_have_text("Cancelled")
    assert await dead_number(still) == 4
    assert [said.what for said in (await rd.redrives.get(run.id)).story] == [
        "started", "paused", "resumed", "cancelled",
    ]  # fmt: skip


async def test_what_was_skipped_says_why(still: Served, tabs: Tabs) -> None:
    rd = still.rd
    async with rd.worker():
        ids = await buried(rd, 3)
    run = await rd.redrives.start(all=True)
    await rd.dead.discard(ids[0])
    async with rd.worker():
        page = await tabs.open(still, f"/redrives/{run.id}")
        await expect(page.locator("h1")).to_have_text("Finished")
    await expect(page.locator(".reasons")).to_contain_text("discarded")
    assert await number(page, "skipped") == "1"


async def test_a_phone_shows_all_of_it(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 6)
    run = await served.rd.redrives.start(all=True, canary=2)
    for path in ("/redrives", f"/redrives/{run.id}"):
        page = await tabs.open(served, path, viewport={"width": 360, "height": 740})
        await expect(page.locator("h1")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_redrive_that_does_not_exist_is_said_so(served: Served, tabs: Tabs) -> None:
    tabs.forgiven.append("404")
    page = await tabs.open(served, "/redrives/feedfeedfeed")
    await expect(page.locator(".lead")).to_contain_text("there is no redrive")
