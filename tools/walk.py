"""The walk of docs/walk.md, with the mouse alone: `python -m tools.walk LINK [FOLDER]` takes its pictures.

LINK is what `redrive serve redrive.doors.demo.tasks:rd` printed, on the database that `redrive demo` left behind.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from playwright.async_api import Page, async_playwright, expect

from tools.screenshots import CHROMIUM, FLAGS, LOOKS

Take = Callable[[str], Awaitable[object]]
DONE = "none is dead now"


async def walk(page: Page, take: Take) -> None:
    """From the overview to a trouble that is cured; `take` is told where a picture belongs."""
    await expect(page.get_by_role("heading", level=1)).to_contain_text("wait for you")
    await take("overview")
    await page.get_by_role("link", name="Open it").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("may not write to the press folder")
    await take("group")
    await page.get_by_role("button", name="Give it to editor…").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Reassign 12 dead letters?")
    await take("reassign")
    await page.get_by_role("button", name="Reassign", exact=True).click()
    await expect(page.locator("main")).to_contain_text(DONE)
    await expect(page.locator("main")).to_contain_text("another agent worked 12 of 12 times")
    await take("done")
    await page.get_by_role("button", name="Resolve").first.click()
    await page.get_by_role("dialog").get_by_role("button", name="Resolve").click()
    await expect(page.locator("main")).to_contain_text("The group is resolved.")


async def main(link: str, folder: Path) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = await browser.new_page(**LOOKS["picture"])
        await page.goto(link)

        async def take(name: str) -> None:
            await page.wait_for_timeout(700)  # plots are drawn
            await page.screenshot(path=folder / f"walk-{name}.png")

        await walk(page, take)
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images")))
