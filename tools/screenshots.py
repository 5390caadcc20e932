"""Pictures of every page, in light, dark and phone width: `python -m tools.screenshots FOLDER [--db jobs.db]`.

`--look picture` takes one screen alone, sharp enough for the documentation.

`python -m tools.screenshots --serve` serves a seeded store at http://127.0.0.1:8421 to look around, without a token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from redrive import Redrive
from redrive.doors.web import make_app
from redrive.doors.web.feed import Feed
from redrive.doors.web.guard import allowed_hosts
from redrive.doors.web.server import listen, make_web_server
from tools import seed_demo

CHROMIUM = shutil.which("chromium-headless-shell") or "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PAGES = {
    "overview": "/", "jobs": "/jobs", "workers": "/workers", "tasks": "/tasks", "schedules": "/schedules",
    "breakers": "/breakers", "queues": "/queues", "morning": "/morning", "agents": "/agents", "workflows": "/workflows",
    "fleet": "/fleet", "inbox": "/inbox", "session": "/inbox?session=desk-1", "letters": "/dead",
    "redrives": "/redrives",
}  # fmt: skip
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1320, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1320, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
    "night": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "device_scale_factor": 2},
    "tablet": {"viewport": {"width": 820, "height": 1180}, "color_scheme": "light"},
    "wide": {"viewport": {"width": 1920, "height": 1080}, "color_scheme": "light"},
    "picture": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light", "device_scale_factor": 2},
}


@contextlib.asynccontextmanager
async def served(rd: Redrive, port: int = 0) -> AsyncIterator[str]:
    """The dashboard behind its guard on 127.0.0.1, without a token, while the block runs."""
    feed = Feed(rd)
    with listen("127.0.0.1", port) as sock:
        port = sock.getsockname()[1]
        server = make_web_server(make_app(rd, feed, token=False, hosts=allowed_hosts("127.0.0.1", port)))
        running = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            feed.close()
            server.should_exit = True
            await running


async def take(address: str, folder: Path, pages: dict[str, str], looks: list[str]) -> list[Path]:
    """One picture of each page in each look; whatever the browser complains about is printed."""
    from playwright.async_api import async_playwright

    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for look in looks:
            context = await browser.new_context(**LOOKS[look], reduced_motion="reduce")
            for name, path in pages.items():
                taken.append(await _picture(context, address + path, folder / f"{name}-{look}.png"))
            await context.close()
        await browser.close()
    return taken


async def _picture(context: Any, url: str, target: Path) -> Path:
    page = await context.new_page()
    page.on("console", lambda said: print(f"{target.stem}: {said.text}") if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: print(f"{target.stem}: {error}"))
    answer = await page.goto(url)
    if answer is not None and answer.status >= 400:
        print(f"{target.stem}: {answer.status}")
    await page.wait_for_timeout(2500)  # the plots are drawn, the stream is open, a few things have happened
    await page.screenshot(path=target, full_page=not target.stem.endswith("-picture"))
    await page.close()
    return target


async def furnish(rd: Redrive) -> None:
    """What makes a working day: messages, a question, a paused queue, something down, something that runs."""

    @rd.task("transcribe_call", queue="support", concurrency=2)
    async def transcribe(call: int) -> str:
        await asyncio.sleep(3600)
        return f"call {call}"

    @rd.task("fetch_weather", queue="research", downstream="api.weather.example", max_attempts=9)
    async def weather(city: str) -> None:
        raise ConnectionError(f"api.weather.example refused the connection for {city}")

    for n in range(6):
        await rd.submit("write_draft", {"topic": f"Harbour news {n}"}, session_id=f"desk-{n % 3}")
    await rd.submit("answer_ticket", {"ticket": 4101, "amount": 640.0}, session_id="desk-1")
    await rd.enqueue_many("transcribe_call", [{"call": n} for n in range(7)], agent="writer")
    await rd.enqueue_many("fetch_weather", [{"city": city} for city in ("Bari", "Genova", "Trieste", "Ancona") * 4])
    await rd.queues.pause("mail", who="Ada", why="the relay is being moved, back at 18:00")
    await rd.enqueue_many("send_digest", [{"to": f"reader{n}@example.org", "stories": ["a"]} for n in range(40)])


async def bustle(rd: Redrive) -> None:
    """A little of everything, as long as somebody looks."""
    for n in itertools.count():
        await rd.enqueue("write_draft", {"topic": f"Tide table {n}"}, agent="editor")
        await rd.enqueue("index_document", {"path": f"archive/{n}.md"})
        await asyncio.sleep(random.uniform(0.05, 0.6))


async def main(said: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Path(said.db) if said.db else Path(folder) / "jobs.db"
        if not said.db:
            await seed_demo.seed(database)
        async with contextlib.AsyncExitStack() as stack:
            rd = await stack.enter_async_context(seed_demo.make_app(database))
            await furnish(rd)
            await stack.enter_async_context(rd.worker(concurrency=8, grace=0))
            busy = asyncio.create_task(bustle(rd))
            stack.callback(busy.cancel)
            address = await stack.enter_async_context(served(rd, said.port if said.serve else 0))
            if said.serve:
                print(address)
                await asyncio.Event().wait()
            pages = {name: path for name, path in PAGES.items() if not said.only or name in said.only}
            pages |= dict(each.split("=", 1) for each in said.page)
            for path in await take(address, Path(said.folder), pages, said.look or ["light", "dark", "phone"]):
                print(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="screenshots")
    parser.add_argument("--db", help="a store to show, instead of a seeded one")
    parser.add_argument("--serve", action="store_true", help="serve it to look around")
    parser.add_argument("--port", type=int, default=8421)
    parser.add_argument("--only", action="append", choices=PAGES, help="this page only (may be repeated)")
    parser.add_argument("--page", action="append", default=[], metavar="NAME=/PATH", help="one more page")
    parser.add_argument("--look", action="append", choices=LOOKS)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(_arguments()))
