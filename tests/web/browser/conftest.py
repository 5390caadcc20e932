"""A real browser in front of a real server with a real worker.

`page` is a tab that has the token's cookie. Whatever the browser complains about (errors of scripts, refused styles or
files) fails the test at its end, unless `tabs.forgiven` names a part of it.
"""

import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright, expect

import redrive
from tests.support import DEADLINE, closed
from tests.web.serving import TOKEN, Served, serving

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first of them is taken: without windows it takes half of the time."""
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--renderer-process-limit=1",  # a tab begins in the process in which it goes on
]
PACE = 0.1
"""Seconds between two looks of the feed: soon enough that no test waits for it."""


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests of this process."""
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        pytest.skip("chromium is not installed: the dashboard is not looked at")
    expect.set_options(timeout=DEADLINE * 1000)
    playwright = await async_playwright().start()
    try:
        browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        await closed("the browser", browser.close())
    finally:
        await closed("playwright", playwright.stop())


class Tabs:
    """Opens tabs with the cookie, and remembers what the browser complained about."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        self.forgiven: list[str] = []
        """Parts of complaints that the test expects."""

    async def open(self, served: Served, path: str = "/", **how: Any) -> Page:
        """A tab of its own browser profile, at this page of the dashboard: the link gave it the cookie before."""
        tab = await self._tab(base_url=served.url, **how)
        link = await tab.context.request.get(f"/?token={TOKEN}", max_redirects=0)
        assert link.status == 303, await link.text()
        await tab.goto(path)
        return tab

    async def visit(self, link: str, **how: Any) -> Page:
        """The same at any address, such as the one that `redrive serve` printed."""
        tab = await self._tab(**how)
        await tab.goto(link)
        return tab

    async def _tab(self, **how: Any) -> Page:
        how = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **how}
        context = await self._browser.new_context(**how)
        self._contexts.append(context)
        context.set_default_timeout(DEADLINE * 1000)
        tab = await context.new_page()
        tab.on("console", self._heard)
        tab.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        return tab

    def _heard(self, said: ConsoleMessage) -> None:
        if "AbortError" in said.text and "elt: div#live" in said.text:
            return  # a form was sent while a refresh was on its way: the page gives the refresh up, and htmx tells
        if said.type in ("error", "warning"):
            self.complaints.append(f"{said.type}: {said.text}")

    async def close(self) -> None:
        """Every tab; what is left of the complaints fails the test. Before the server ends, so that none misses it."""
        while self._contexts:
            await closed("a tab", self._contexts.pop().close())
        found = [text for text in self.complaints if not any(part in text for part in self.forgiven)]
        assert not found, found


@pytest.fixture
async def tabs(browser: Browser) -> AsyncIterator[Tabs]:
    tabs = Tabs(browser)
    yield tabs
    await tabs.close()


@pytest.fixture
async def served(rd: redrive.Redrive, tabs: Tabs) -> AsyncIterator[Served]:
    """The dashboard and REST with a worker behind them."""
    async with serving(rd, pace=PACE, dashboard=True) as served:
        yield served
        await tabs.close()


@pytest.fixture
async def still(rd: redrive.Redrive, tabs: Tabs) -> AsyncIterator[Served]:
    """The same without a worker: jobs stay where they are put."""
    async with serving(rd, worker=False, pace=PACE, dashboard=True) as served:
        yield served
        await tabs.close()


@pytest.fixture
async def page(tabs: Tabs, served: Served) -> Page:
    """A tab at the overview, with a worker behind it."""
    return await tabs.open(served)
