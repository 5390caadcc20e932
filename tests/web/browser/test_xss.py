"""The corpus in a real browser: nothing of it runs, loads or changes the page."""

import pytest
from playwright.async_api import Page

import redrive
from tests.web.browser.conftest import Tabs
from tests.web.hostile import CORPUS, pages, plant
from tests.web.serving import Served

WATCH = """
window.hacks = [];
window.hacked = () => window.hacks.push(location.pathname);
for (const name of ["alert", "prompt", "confirm"]) window[name] = window.hacked;
"""
FOREIGN = """() => [
  ...document.querySelectorAll("iframe, object, embed, base, math, style, img, [hx-get='/evil'], form[action*='evil']"),
  ...document.querySelectorAll("script:not([src^='/static/']), a[href^='javascript:']"),
  ...[...document.querySelectorAll("*")].filter((each) => each.getAttributeNames().some((name) => /^on/.test(name))),
].map((each) => each.outerHTML.slice(0, 120))"""


@pytest.fixture
async def planted(still: Served) -> Served:
    await plant(still.rd)
    return still


async def watched(tabs: Tabs, served: Served) -> tuple[Page, list[str]]:
    """A tab that tells what ran and what it asked for elsewhere."""
    page = await tabs.open(served)
    elsewhere: list[str] = []
    page.on("request", lambda asked: elsewhere.append(asked.url) if not asked.url.startswith(served.url) else None)
    await page.add_init_script(WATCH)
    return page, elsewhere


async def chosen(rd: redrive.Redrive) -> list[str]:
    """One of each kind of page: each kind shows every field, and another test reads all of them."""
    found = await pages(rd)
    jobs = [path for path in found if path.startswith("/jobs/")]
    groups = [path for path in found if path.startswith("/groups/")]
    edits = [path for path in jobs if path.endswith("/edit")]
    plain = [path for path in found if path not in jobs and path not in groups]
    return [*plain, *[path for path in jobs if path not in edits][:8], *edits[:3], *groups[:4]]


async def test_nothing_of_the_corpus_runs_on_any_page(planted: Served, tabs: Tabs) -> None:
    page, elsewhere = await watched(tabs, planted)
    for path in await chosen(planted.rd):
        await page.goto(path)
        assert await page.evaluate("window.hacks") == [], path
        assert await page.evaluate(FOREIGN) == [], path
        await page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert await page.evaluate("window.hacks") == [], path
    assert elsewhere == []


async def test_what_comes_by_the_stream_is_text(planted: Served, tabs: Tabs) -> None:
    page, elsewhere = await watched(tabs, planted)
    await page.goto("/")
    await page.wait_for_selector("#live-status[data-state=live]")
    for name in CORPUS[:6]:
        await planted.rd.enqueue(name, {"then": "fail"})
    await page.wait_for_function("document.querySelectorAll('[data-feed] li').length >= 6")
    assert await page.evaluate("window.hacks") == []
    assert await page.evaluate(FOREIGN) == []
    assert elsewhere == []


async def test_a_raw_payload_is_a_file_and_never_a_page(planted: Served, tabs: Tabs) -> None:
    page, _ = await watched(tabs, planted)
    (job, *_) = (await planted.rd.dead.list(limit=1)).jobs
    for path in (f"/jobs/{job.id}/download/payload", "/dead/export?all=1"):
        async with page.expect_download() as started:
            await page.evaluate("(path) => { location.href = path; }", path)
        assert (await started.value).suggested_filename.endswith((".json", ".jsonl"))


@pytest.mark.parametrize("snippet", ["<script>hacked()</script>", "<img src=x onerror=hacked()>"])
async def test_the_control_would_be_seen(planted: Served, tabs: Tabs, snippet: str) -> None:
    """The same watch in a page without our escaping and policy does find it."""
    tabs.forgiven.append("")
    page = await tabs.open(planted)
    await page.goto("about:blank")
    await page.add_init_script(WATCH)
    await page.goto("about:blank")
    await page.set_content(f"<p>{snippet}</p>")
    await page.wait_for_function("window.hacks.length > 0")
    assert await page.evaluate(FOREIGN)
