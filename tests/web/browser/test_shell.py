"""The dashboard's frame and its first pages, in a real browser with a real worker behind."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest
from playwright.async_api import Browser, Page, Route, expect
from starlette.applications import Starlette
from starlette.routing import Mount

import redrive
from redrive.core.job import State
from redrive.core.store import Commit, Filter, Put
from tests.stores.jobs import a_dead_job
from tests.support import eventually, soon
from tests.web.browser.conftest import Tabs
from tests.web.serving import TOKEN, Served, make_rd, serving

PAGES = ("/", "/queues", "/morning", "/agents", "/workflows", "/inbox")


async def put_one_of_each(rd: redrive.Redrive) -> None:
    """Jobs in every state, a workflow that failed, an inbox with a question, a paused queue."""
    await rd.enqueue("greet", {"name": "ada"}, session_id="s1", agent="editor")
    await rd.enqueue_many("broken", [{"text": f"the mill is broken at stone {number}"} for number in range(3)])
    await rd.enqueue("ask", {"what": "Refund 900 euros?"}, session_id="s1")
    await rd.enqueue("refund", {"euros": 7}, session_id="s1")
    await rd.enqueue("unknown", {})
    flow = rd.workflow("article")
    first = flow.add("greet", "step", name="write")
    broken = flow.add("broken", "no ink", name="print", after=[first])
    flow.add("greet", "later", name="bind", after=[broken])
    await flow.start()
    await rd.submit("greet", {"name": "session"}, session_id="s1")
    await rd.queues.pause("quiet", who="eva", why="nobody reads it", new=True)


async def settled(rd: redrive.Redrive) -> None:
    """Nothing is due and nothing runs any more."""

    async def over() -> bool:
        numbers = await rd.numbers()
        return not any(queue.due or queue.running for queue in numbers)

    await eventually(over, "every job to settle")


@pytest.fixture
async def filled(served: Served) -> Served:
    await put_one_of_each(served.rd)
    await settled(served.rd)
    return served


@pytest.fixture(scope="module")
async def shown(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> AsyncIterator[Served]:
    """The same once, for tests that only look."""
    async with make_rd(tmp_path_factory.mktemp("shown") / "jobs.db") as rd, serving(rd, dashboard=True) as served:
        await put_one_of_each(rd)
        await settled(rd)
        yield served


async def live(page: Page) -> None:
    await expect(page.locator("#live-status")).to_have_attribute("data-state", "live")


LISTEN = """() => new Promise((listening) => {
  window.heard = new Promise((heard) => {
    const stream = new EventSource(document.body.dataset.liveUrl);
    stream.addEventListener("tick", (event) => {
      if (JSON.parse(event.data).events.length) { stream.close(); heard(true); } else listening(true);
    });
  });
})"""


async def ticked(page: Page, act: Callable[[], Awaitable[Any]]) -> None:
    """Do it, and wait until the stream has told this page of it."""
    await soon(page.evaluate(LISTEN))
    await act()
    assert await soon(page.evaluate("() => window.heard"))


# -- overview


async def test_the_overview_says_in_one_sentence_what_waits_for_a_person(page: Page, served: Served) -> None:
    await expect(page.locator("h1")).to_have_text("Nothing has been enqueued yet.")
    await expect(page.locator(".begin")).to_contain_text("redrive enqueue")  # what to do about it
    await served.rd.enqueue("greet", {})
    await expect(page.locator("h1")).to_have_text("All is well.")
    await expect(page.locator(".health .lead")).to_contain_text("Nothing needs you.")
    await served.rd.enqueue("broken", {})
    await expect(page.locator("h1")).to_have_text("1 dead letter waits for you.")
    await expect(page.locator(".health .lead")).to_contain_text("Begin with the 1 of broken: RuntimeError")
    await served.rd.enqueue("ask", {})
    await expect(page.locator("h1")).to_have_text("1 dead letter and 1 held job wait for you.")


async def test_what_needs_somebody_is_counted_and_leads_to_it(tabs: Tabs, shown: Served) -> None:
    page = await tabs.open(shown)
    needs = page.get_by_role("list", name="What needs you").get_by_role("listitem")
    found = await shown.rd.needs()
    await expect(needs).to_have_count(len(found))
    told = [" ".join(text.split()) for text in await needs.locator(".count, .what").all_inner_texts()]
    assert told[::2] == [str(need.count) for need in found]
    kinds = [need.kind for need in found]
    assert kinds[:3] == ["outcome_unknown", "approval", "consent"] and set(kinds[3:]) == {"dead_manual"}
    words = "job may or may not have happened", "job waits for an approval", "job waits for consent"
    assert all(text.startswith(word) for text, word in zip(told[1::2], words, strict=False))
    assert all("needs a person" in text or "need a person" in text for text in told[7::2])
    hrefs = [await link.get_attribute("href") for link in await needs.locator(".what a").all()]
    assert len(set(hrefs)) == len(found)
    for href in hrefs + [await link.get_attribute("href") for link in await needs.locator("a.count").all()]:
        answer = await page.goto(str(href))
        assert answer is not None and answer.status == 200


@pytest.mark.behaviour("000-88")
async def test_queues_are_listed_with_the_numbers_that_rest_gives(tabs: Tabs, shown: Served) -> None:
    page = await tabs.open(shown)
    queues = (await shown.get("/v1/stats"))["queues"]
    await expect(page.locator("[id^=row-]")).to_have_count(len(queues))
    for queue in queues:
        row = page.locator(f"#row-{queue['name']}")
        for label in ("Due", "Waiting", "Running", "Held", "Dead", "Done"):
            await expect(row.locator(f'[data-label="{label}"]')).to_have_text(str(queue[label.lower()]))
    await expect(page.locator("#row-quiet .chip-paused")).to_have_text("paused")
    await expect(page.locator("#row-broken .chip-paused")).to_have_count(0)
    await expect(page.get_by_text(re.compile(r"1 worker, \d of 8 slots busy"))).to_be_visible()


async def test_due_jobs_without_a_worker_are_the_first_thing_that_is_said(tabs: Tabs, still: Served) -> None:
    await still.rd.enqueue_many("greet", [{}, {}])
    page = await tabs.open(still)
    await expect(page.locator("h1")).to_have_text("2 jobs are due, and no worker runs them.")
    await expect(page.locator(".health .lead")).to_contain_text("redrive worker APP")
    await expect(page.get_by_role("region", name="Oldest waiting").locator("tr")).to_have_count(2)


async def test_the_button_under_the_sentence_opens_what_the_sentence_is_about(tabs: Tabs, still: Served) -> None:
    await still.rd.dead.add("old-1", {}, "trouble", task="greet")
    page = await tabs.open(still)
    await expect(page.locator(".health .lead")).to_contain_text("Begin with the 1 of greet")
    await page.get_by_role("link", name="Open it").click()
    await expect(page).to_have_url(re.compile("/groups/"))
    await still.rd.enqueue("greet", {})
    await page.goto("/")
    await expect(page.locator("h1")).to_have_text("1 job is due, and no worker runs it.")
    await expect(page.get_by_role("link", name="Open it")).to_have_count(0)
    await expect(page.get_by_role("list", name="What needs you")).to_contain_text("dead letter needs a person (greet)")


@pytest.mark.parametrize("width", [360, 1280])
async def test_thousands_stand_apart_from_their_words(still: Served, tabs: Tabs, width: int) -> None:
    page = await tabs.open(still, "/", viewport={"width": width, "height": 800})
    await still.rd.dead.add("old-1", {}, "trouble", task="greet")
    await expect(page.locator(".needs:not(.needs-new) .count")).to_have_text("1")
    gap = await page.evaluate(
        """() => {
          const count = document.querySelector(".needs:not(.needs-new) .count");
          count.textContent = "8,888";
          const said = document.createRange();
          said.selectNodeContents(count);
          const words = document.querySelector(".needs:not(.needs-new) .what").getBoundingClientRect();
          return words.left - said.getBoundingClientRect().right;
        }"""
    )
    assert gap >= 12


async def test_the_plots_are_drawn_from_what_happened(tabs: Tabs, shown: Served) -> None:
    page = await tabs.open(shown)
    await expect(page.locator(".plot canvas")).to_have_count(4)
    data = await page.locator("#failures-hour").evaluate("host => JSON.parse(host.dataset.plot)")
    died = next(series for series in data["series"] if series["name"] == "died")
    assert sum(died["values"]) == 4 and len(data["x"]) == 60


async def test_a_breaker_is_shown_and_closed_by_a_person(rd: redrive.Redrive, tabs: Tabs) -> None:
    wind = False

    @rd.task(downstream="mill", max_attempts=9)
    async def grind(number: int) -> None:
        if not wind:
            raise ConnectionError("no wind")

    async with serving(rd, dashboard=True) as served:
        await rd.enqueue_many("grind", [{"number": number} for number in range(12)])
        await eventually(lambda: _any_open(rd), "the breaker to open")
        page = await tabs.open(served)
        await expect(page.locator("h1")).to_have_text("Mill is down: network.")
        wind = True
        breakers = page.get_by_role("region", name="Open breakers")
        await breakers.get_by_role("button", name="Close").click()
        await page.get_by_role("dialog").get_by_role("button", name="Close", exact=True).click()
        await expect(page.locator(".flash")).to_contain_text("mill is closed")
        await expect(breakers.locator(".row-line")).to_have_count(0)
        assert not await _any_open(rd)
        await eventually(lambda: _all_done(rd, 12), "what was parked to come back")
        await tabs.close()


async def _any_open(rd: redrive.Redrive) -> bool:
    return any(breaker.state != "closed" for breaker in await rd.breakers())


async def _all_done(rd: redrive.Redrive, number: int) -> bool:
    return sum((await rd.store.count(Filter(states=(State.done,)))).values()) == number


# -- live


async def test_a_page_follows_what_happens_and_leaves_scroll_and_focus_alone(tabs: Tabs, filled: Served) -> None:
    page = await tabs.open(filled, viewport={"width": 1280, "height": 500})
    await live(page)
    link = page.locator("#row-broken [data-open]")
    await link.focus()
    await page.evaluate("() => { window.same = true; scrollTo(0, 120); }")
    before = await page.evaluate("scrollY")
    done = page.locator('#row-greet [data-label="Done"]')
    number = int(await done.inner_text())
    await filled.rd.enqueue("greet", {})
    await expect(done).to_have_text(str(number + 1))
    assert await page.evaluate("window.same") is True, "the page was loaded anew"
    assert await page.evaluate("scrollY") == before
    assert await link.evaluate("link => link === document.activeElement")
    await filled.rd.enqueue("broken", {})
    await expect(page.locator("nav")).to_contain_text("Dead letters5")


async def test_another_process_is_seen_too(tabs: Tabs, served: Served, database: Any) -> None:
    page = await tabs.open(served)
    await live(page)
    async with redrive.Redrive(database) as other:
        await other.enqueue("greet", {"name": "from outside"})
    await expect(page.locator('#row-greet [data-label="Done"]')).to_have_text("1")


async def test_nothing_moves_under_an_open_dialog(tabs: Tabs, filled: Served) -> None:
    page = await tabs.open(filled, "/queues")
    await live(page)
    queue = page.locator("#queue-greet")
    before = await queue.locator(".counts").inner_text()
    await queue.get_by_role("button", name="Pause").click()
    why = page.get_by_role("dialog").get_by_label("Why")
    await why.fill("the press is hot")
    await expect(page.locator(".live-word")).to_have_text("Held still: a dialog is open")
    await ticked(page, lambda: filled.rd.enqueue("greet", {}))
    await settled(filled.rd)
    assert await queue.locator(".counts").inner_text() == before
    await expect(why).to_have_value("the press is hot")
    await page.keyboard.press("Escape")
    await expect(queue.locator(".counts")).not_to_have_text(before)
    await live(page)


async def test_nothing_moves_under_selected_text(tabs: Tabs, filled: Served) -> None:
    page = await tabs.open(filled, "/queues")
    await live(page)
    queue = page.locator("#queue-greet")
    before = await queue.locator(".counts").inner_text()
    await queue.locator(".queue-head > h2").dblclick(position={"x": 8, "y": 8})
    await expect(page.locator(".live-word")).to_have_text("Held still: text is selected")
    await ticked(page, lambda: filled.rd.enqueue("greet", {}))
    assert await page.evaluate("() => getSelection().toString().trim()") == "greet"
    assert await queue.locator(".counts").inner_text() == before
    await page.locator("h1").click()
    await expect(queue.locator(".counts")).not_to_have_text(before)


async def test_times_are_told_where_the_reader_lives(tabs: Tabs, filled: Served) -> None:
    page = await tabs.open(filled, timezone_id="Asia/Kolkata", locale="en-GB")
    time = page.locator(".feed time").first
    at = datetime.fromisoformat(str(await time.get_attribute("datetime")))
    here = f"{at.astimezone(ZoneInfo('Asia/Kolkata')):%H:%M:%S}"
    await expect(time).to_have_text(here)
    await time.hover()
    await expect(time).to_have_attribute("title", re.compile(here))
    await page.locator(".feed a").first.click()
    fact = page.locator(".facts time").first
    at = datetime.fromisoformat(str(await fact.get_attribute("datetime")))
    await expect(fact).to_contain_text(f"{at.astimezone(ZoneInfo('Asia/Kolkata')):%H:%M:%S}")


async def test_a_person_can_stop_the_updates_and_go_on(page: Page, served: Served) -> None:
    await served.rd.enqueue("greet", {})
    done = page.locator('#row-greet [data-label="Done"]')
    await expect(done).to_have_text("1")
    await page.get_by_role("button", name="Hold still").first.click()
    await expect(page.locator(".live-word")).to_have_text("Held still")
    await ticked(page, lambda: served.rd.enqueue("greet", {}))
    await settled(served.rd)
    await expect(done).to_have_text("1")
    await page.get_by_role("button", name="Follow again").first.click()
    await expect(done).to_have_text("2")
    await live(page)


async def test_a_lost_stream_is_said_and_taken_up_again(page: Page, served: Served, tabs: Tabs) -> None:
    tabs.forgiven += ["ERR_", "503"]
    await live(page)
    await page.context.set_offline(True)
    served.feed.close()
    await expect(page.locator(".live-word")).to_have_text("Reconnecting…")
    await expect(page.locator("#live-status")).to_have_attribute("data-state", "reconnecting")
    served.feed._closed = False  # the same server is reached again
    await page.context.set_offline(False)
    await live(page)
    await served.rd.enqueue("greet", {})
    await expect(page.locator('#row-greet [data-label="Done"]')).to_have_text("1")


async def test_a_refresh_that_fails_keeps_the_page_and_says_so(page: Page, served: Served, tabs: Tabs) -> None:
    tabs.forgiven.append("503")
    await live(page)
    await page.route(
        lambda url: url.endswith("/"),
        lambda route: route.fulfill(status=503, content_type="text/html", body="<p>no store</p>"),
    )
    await served.rd.enqueue("greet", {})
    await expect(page.locator(".live-word")).to_have_text("Refresh failed, trying again")
    await expect(page.locator("h1")).to_have_text("Nothing has been enqueued yet.")
    await page.unroute_all()
    await expect(page.locator("h1")).to_have_text("All is well.")
    await live(page)


async def test_a_page_whose_token_is_gone_says_what_to_do(page: Page, served: Served, tabs: Tabs) -> None:
    tabs.forgiven.append("401")
    await live(page)
    cookies = await page.context.cookies()
    await page.context.clear_cookies()
    await served.rd.enqueue("greet", {})
    await expect(page.locator(".live-word")).to_have_text("Not let in: open the link that redrive serve shows")
    await page.context.add_cookies(cookies)  # as another tab does that opens the link
    await expect(page.locator("h1")).to_have_text("All is well.")
    await live(page)


async def test_the_feed_shows_what_happens_and_can_be_stopped(page: Page, served: Served) -> None:
    await served.rd.enqueue("greet", {})
    await expect(page.locator("h1")).to_have_text("All is well.")
    await page.reload()  # the first job made the page's parts
    lines = page.locator(".feed li")
    handle = await served.rd.enqueue("broken", {})
    await expect(lines.filter(has_text="buried")).to_have_count(1)
    await expect(lines.filter(has_text="buried").locator("a")).to_have_attribute("href", f"/jobs/{handle.id}")
    await page.locator("[data-feed-toggle]").click()
    await ticked(page, lambda: served.rd.enqueue("broken", {}))
    await expect(lines.filter(has_text="buried")).to_have_count(1)
    await page.locator("[data-feed-toggle]").click()
    await served.rd.enqueue("broken", {})
    await expect(lines.filter(has_text="buried")).not_to_have_count(1)


async def test_the_feed_is_bounded(page: Page, served: Served) -> None:
    await served.rd.enqueue("greet", {})
    await expect(page.locator("[data-feed]")).to_be_attached()
    await live(page)
    await served.rd.enqueue_many("greet", [{"name": str(number)} for number in range(300)])
    await settled(served.rd)
    await expect(page.locator(".feed li")).to_have_count(50)


# -- queues


async def test_a_queue_is_paused_with_who_and_why_and_resumed(tabs: Tabs, served: Served) -> None:
    page = await tabs.open(served, "/queues")
    await _introduce(page, "Ada Lovelace")
    await served.rd.enqueue("greet", {})
    queue = page.locator("#queue-greet")
    await queue.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Workers take nothing from it until it is resumed.")
    await dialog.get_by_label("Why").fill("the press is hot")
    await dialog.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.locator(".flash")).to_contain_text("greet is paused")
    await expect(queue.locator(".queue-stopped")).to_contain_text("by owner (as Ada Lovelace): the press is hot")
    await expect(page.locator("nav")).to_contain_text("1 paused")
    assert [queue.paused for queue in await served.rd.numbers()] == [True]
    handle = await served.rd.enqueue("greet", {"name": "waits"})
    await expect(queue.locator(".counts")).to_contain_text("1due")
    assert (await handle.refresh()).state is State.waiting
    await queue.get_by_role("button", name="Resume").click()
    await page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    assert await soon(handle.result()) == "hello waits"
    await expect(queue.locator(".queue-stopped")).to_have_count(0)


async def _introduce(page: Page, name: str) -> None:
    await page.get_by_role("button", name="Your name…").click()
    await page.get_by_role("dialog").get_by_label("Your name").fill(name)
    await page.get_by_role("dialog").get_by_role("button", name="Remember").click()
    await expect(page.locator(".flash")).to_contain_text(f"recorded as owner (as {name}")


async def test_a_dialog_that_is_left_changes_nothing(tabs: Tabs, shown: Served) -> None:
    page = await tabs.open(shown, "/queues")
    await page.locator("#queue-greet").get_by_role("button", name="Pause").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert {queue.name for queue in await shown.rd.numbers() if queue.paused} == {"quiet"}


async def test_a_form_that_is_refused_keeps_what_was_written(tabs: Tabs, filled: Served) -> None:
    tabs.forgiven += ["503", "ERR_", "htmx:error"]
    page = await tabs.open(filled, "/queues")
    await page.locator("#queue-greet").get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Why").fill("the press is hot")
    sure = dialog.get_by_role("button", name="Pause", exact=True)

    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, content_type="application/problem+json", body='{"detail": "the store is busy"}')

    await page.route("**/queues/pause", refuse)
    await sure.click()
    await expect(dialog.get_by_role("alert")).to_have_text("Not done: the server answered 503. the store is busy")
    await page.unroute_all()
    await page.context.set_offline(True)
    await sure.click()
    await expect(dialog.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    await page.context.set_offline(False)
    await expect(dialog.get_by_label("Why")).to_have_value("the press is hot")
    await sure.click()
    await expect(page.locator("#queue-greet .queue-stopped")).to_contain_text("the press is hot")
    await expect(dialog).to_have_count(0)
    await live(page)


async def test_a_queue_may_have_any_name(tabs: Tabs, still: Served) -> None:
    name = 'a/b?c#d %2F "e" <f>'
    await still.rd.enqueue("greet", {}, queue=name)
    page = await tabs.open(still)
    await page.get_by_role("link", name=name, exact=True).click()
    await expect(page).to_have_url(re.compile(r"/queues#queue-a"))
    queue = page.locator(".queue")
    await expect(queue.locator(".queue-head > h2")).to_have_text(name)
    await expect(page.locator(".queue:target")).to_have_count(1)
    await queue.get_by_role("button", name="Pause").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
    await expect(page.locator(".flash")).to_contain_text(f"{name} is paused")
    assert [queue.name for queue in await still.rd.numbers() if queue.paused] == [name]


async def test_a_policy_is_told_in_words(tabs: Tabs, filled: Served) -> None:
    page = await tabs.open(filled, "/queues")
    policy = page.locator("#queue-greet details")
    await expect(policy.locator("summary")).to_have_text("Policy: 5 attempts, after 2 s, 4 s, 8 s, 16 s")
    await policy.locator("summary").click()
    await expect(policy).to_contain_text("Lease")
    await expect(policy).to_contain_text("1.5 min")
    await filled.rd.enqueue("broken", {})
    await expect(page.locator("#queue-broken .counts")).to_contain_text("5dead")
    assert await policy.evaluate("details => details.open"), "a refresh closed what somebody had opened"


async def test_many_queues_are_found_by_a_part_of_their_name(tabs: Tabs, still: Served) -> None:
    for number in range(1, 121):
        await still.rd.enqueue("greet", {}, queue=f"site-{number:03}")
    page = await tabs.open(still)
    await expect(page.locator("[id^=row-]")).to_have_count(30)
    await page.get_by_role("link", name="90 more queues").click()
    await expect(page.locator(".queue")).to_have_count(100)
    await expect(page.get_by_text("100 of 120 are shown")).to_be_visible()
    await press(page, "/")
    await page.keyboard.type("E-11")
    await page.keyboard.press("Enter")
    await expect(page.locator(".queue-head > h2")).to_have_text([f"site-{number}" for number in range(110, 120)])
    await page.get_by_role("link", name="Remove the filter name has E-11").click()
    await expect(page.locator(".queue")).to_have_count(100)


# -- morning


async def test_the_morning_page_says_what_the_morning_says(tabs: Tabs, shown: Served) -> None:
    page = await tabs.open(shown, "/morning")
    found = await shown.rd.morning()
    await expect(page.locator("h1")).to_contain_text(f"{found.waiting_for_you} jobs need you")
    await expect(page.locator(".needs").first.locator("li")).to_have_count(len(found.needs))
    for number, need in enumerate(found.needs):
        line = page.locator(".needs").first.locator("li").nth(number)
        await expect(line.locator(".count")).to_have_text(str(need.count))
        await expect(line).to_contain_text(need.what[:60])
        await expect(line).to_contain_text(need.action)
    await page.get_by_label("Queue").select_option("ask")
    await page.get_by_role("button", name="Apply").click()
    await expect(page).to_have_url(re.compile(r"queue=ask"))
    await expect(page.locator("h1")).to_have_text("1 job needs you.")


async def test_a_quiet_morning_is_one_line(tabs: Tabs, served: Served) -> None:
    await served.rd.enqueue("greet", {})
    await settled(served.rd)
    page = await tabs.open(served, "/morning")
    await expect(page.locator("h1")).to_have_text("A quiet morning.")
    await expect(page.locator(".health .lead")).to_have_text("quiet: 1 done, nothing needs you")
    await expect(page.locator(".needs")).to_have_count(0)


async def test_a_span_that_nobody_knows_is_refused_by_name(tabs: Tabs, shown: Served) -> None:
    tabs.forgiven.append("422")
    page = await tabs.open(shown)
    answer = await page.goto("/morning?since=ages")
    assert answer is not None and answer.status == 422
    await expect(page.locator(".lead")).to_contain_text("Since: 'ages' is not one of 8h, 24h, 3d, 7d")


# -- agents, workflows, inbox


async def test_agents_show_load_and_how_they_fail(tabs: Tabs, served: Served) -> None:
    await served.rd.enqueue_many("broken", [{}, {}], agent="editor")
    await served.rd.enqueue("greet", {}, agent="editor")
    await settled(served.rd)
    page = await tabs.open(served, "/agents")
    row = page.locator("tr", has_text="editor")
    await expect(row.locator('[data-label="Dead"]')).to_have_text("2")
    await expect(row.locator('[data-label="Done, 24 h"]')).to_have_text("1")
    await expect(row.locator('[data-label="Share died"]')).to_have_text("67 %")
    await expect(row.locator(".mix")).to_contain_text("100 % unknown")
    await row.get_by_role("link", name="editor", exact=True).click()
    await expect(page).to_have_url(re.compile(r"/dead\?agent=editor"))


async def test_workflows_show_their_steps_and_can_be_cancelled(tabs: Tabs, filled: Served) -> None:
    page = await tabs.open(filled, "/workflows")
    flow = page.locator(".flow")
    await expect(flow.locator(".step")).to_have_count(3)
    assert [" ".join(text.split()) for text in await flow.locator(".step").all_inner_texts()] == [
        "done write done", "failed print failed", "blocked bind blocked",
    ]  # fmt: skip
    await expect(flow).to_contain_text("no ink")
    await flow.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Why").fill("the press is sold")
    await dialog.get_by_role("button", name="Cancel the workflow").click()
    await expect(page.locator(".flash")).to_contain_text("article is no longer wanted")
    await expect(flow.locator(".step-discarded")).to_have_count(2)
    (status,) = await filled.rd.workflows.list()
    assert status.state == "discarded"


async def test_a_question_is_answered_from_the_inbox(tabs: Tabs, filled: Served) -> None:
    page = await tabs.open(filled, "/inbox")
    await page.get_by_role("link", name="s1", exact=True).click()
    message = page.locator(".messages li", has_text="Refund 900 euros?")
    await expect(message).to_contain_text("pending")
    await message.get_by_role("button", name="Approve").click()
    await page.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
    await expect(page.locator(".flash")).to_contain_text("is approved")
    await expect(message).to_have_count(0)
    (job,) = (await filled.rd.jobs.list(task="ask")).jobs

    async def done() -> bool:
        return (await filled.rd.jobs.get(job.id)).state is State.done

    await eventually(done, "the answered job to go on")


async def test_an_inbox_without_messages_says_so(tabs: Tabs, shown: Served) -> None:
    page = await tabs.open(shown, "/inbox?session=nobody")
    await expect(page.locator(".empty-title")).to_have_text("Nothing unread.")
    await page.get_by_role("link", name="Also what was seen").click()
    await expect(page.locator(".empty-title")).to_have_text("No messages.")


async def test_a_message_is_marked_as_seen(tabs: Tabs, filled: Served) -> None:
    page = await tabs.open(filled, "/inbox?session=s1")
    message = page.locator(".messages li", has_text="deferred done")
    await expect(message).to_have_count(1)
    await message.get_by_text("Result").click()
    await expect(message.locator("pre")).to_have_text('"hello session"')
    await message.get_by_role("button", name="Seen").click()
    await expect(page.locator(".flash")).to_contain_text("Seen:")
    await expect(message).to_have_count(0)
    await page.get_by_role("link", name="Also what was seen").click()
    await expect(message).to_have_count(1)


# -- the frame


async def press(page: Page, *keys: str) -> None:
    """As somebody does who sees the page."""
    await page.wait_for_load_state()
    for key in keys:
        await page.keyboard.press(key)


async def test_keys_go_where_they_say(tabs: Tabs, shown: Served) -> None:
    page = await tabs.open(shown)
    cursor = page.locator("[data-cursor]")
    await press(page, "j")
    await expect(cursor).to_contain_text("groups are new since")
    await press(page, "j")
    await expect(cursor).to_contain_text("groups are new in the last hour")
    await press(page, "j")
    await expect(cursor).to_contain_text("job may or may not have happened")
    await press(page, "j")
    await expect(cursor).to_contain_text("job waits for an approval")
    await press(page, "k")
    await expect(cursor).to_contain_text("job may or may not have happened")
    await press(page, "Enter")
    await expect(page).to_have_url(re.compile(r"/jobs/"))
    await press(page, "g", "q")
    await expect(page).to_have_url(re.compile(r"/queues$"))
    await press(page, "?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    await press(page, "g", "o", "Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(page).to_have_url(re.compile(r"/queues$"))
    await press(page, "g", "m")
    await expect(page).to_have_url(re.compile(r"/morning$"))
    await press(page, "/")
    await expect(page.get_by_label("Since", exact=True)).to_be_focused()


async def test_a_job_is_found_by_a_part_of_its_id(page: Page, served: Served, tabs: Tabs) -> None:
    tabs.forgiven.append("404")
    handle = await served.rd.enqueue("greet", {})
    await press(page, "f")
    await page.keyboard.type(handle.id[-8:])
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(f"/jobs/{handle.id}$"))
    await press(page, "f")
    await page.keyboard.type("nobody")
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("This page does not exist")
    await expect(page.locator(".lead")).to_contain_text("nobody")


async def test_a_part_that_several_ids_have_leads_to_all_of_them(still: Served, tabs: Tabs) -> None:
    handles = [await still.rd.enqueue("greet", {"name": str(number)}) for number in range(2)]
    shared = handles[0].id[:4]  # ids begin with the time
    page = await tabs.open(still, f"/find?id={shared}")
    await expect(page.locator("h1")).to_have_text("Which one?")
    assert sorted(await page.locator("[data-open]").all_inner_texts()) == sorted(handle.id for handle in handles)
    await page.get_by_role("link", name=handles[0].id).click()
    await expect(page).to_have_url(re.compile(f"/jobs/{handles[0].id}$"))


async def test_the_theme_is_kept(page: Page) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(ground)
    await page.get_by_role("button", name="Theme: auto").click()
    await page.get_by_role("button", name="Theme: light").click()
    dark = await page.evaluate(ground)
    assert dark != light
    await page.reload()
    assert await page.evaluate(ground) == dark
    await expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()


async def test_paper_is_white_whatever_the_theme_and_nothing_on_it_is_cut_off(tabs: Tabs, still: Served) -> None:
    letter = await still.rd.dead.add("old-1", {f"line {n}": n for n in range(90)}, "no\n" * 60, task="greet")
    page = await tabs.open(still, f"/jobs/{letter.id}")
    await page.evaluate("document.documentElement.dataset.theme = 'dark'")
    await page.emulate_media(media="print")
    ink = await page.locator("h1").evaluate("title => getComputedStyle(title).color")
    assert ink == "rgb(29, 28, 26)"
    for part in (".job-error", ".tree"):
        await expect(page.locator(part)).to_have_count(1)
        assert await page.locator(part).evaluate("part => part.scrollHeight <= part.clientHeight + 1"), part


AGO = re.compile(r"[\d.]+ \w+ ago")
"""The two pages are loaded one after the other."""


async def test_pages_can_be_read_without_scripts(tabs: Tabs, shown: Served) -> None:
    with_scripts = await tabs.open(shown)
    without = await tabs.open(shown, java_script_enabled=False)
    entries = "h1, tbody th, .needs .what, .flow h2, .queue h2"
    for path in PAGES:
        await with_scripts.goto(path)
        await without.goto(path)
        found = [AGO.sub("ago", text) for text in await without.locator(entries).all_inner_texts()]
        seen = [AGO.sub("ago", text) for text in await with_scripts.locator(entries).all_inner_texts()]
        assert found and found == seen


async def test_a_dialog_opens_and_acts_without_scripts(tabs: Tabs, filled: Served) -> None:
    page = await tabs.open(filled, "/queues", java_script_enabled=False)
    await page.locator("#queue-greet").get_by_role("button", name="Pause").click()
    await page.locator("#queue-greet dialog").get_by_role("button", name="Pause", exact=True).click()
    await expect(page.locator(".flash")).to_contain_text("greet is paused")
    assert "greet" in {queue.name for queue in await filled.rd.numbers() if queue.paused}


WIDTH_WITH = """(word) => {
  document.querySelector(".live-word").firstChild.textContent = word;
  return document.documentElement.scrollWidth;
}"""
"""The width of the page while the mark of live updates says `word`: it says each of them in a bad hour."""


async def test_nothing_is_wider_than_the_screen(tabs: Tabs, shown: Served) -> None:
    page = await tabs.open(shown)
    for path in PAGES:
        await page.goto(path)
        for width in (360, 390, 820):
            await page.set_viewport_size({"width": width, "height": 800})
            for word in ("Live", "Held still", "Reconnecting…", "Refresh failed"):
                assert await page.evaluate(WIDTH_WITH, word) <= width, (path, width, word)


CONTRAST = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const solid = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const [r, g, b, a = 1] = parts(getComputedStyle(each).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.nodeValue.trim());
    if (!own || !element.checkVisibility() || element.closest(":disabled")) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(solid(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName}.${element.className}: ${element.textContent.trim()}: ${ratio}`);
  }
  return poor;
}"""


async def test_text_can_be_told_from_its_ground(tabs: Tabs, shown: Served) -> None:
    for scheme in ("light", "dark"):
        page = await tabs.open(shown, color_scheme=scheme)
        for path in PAGES:
            await page.goto(path)
            assert await page.evaluate(CONTRAST) == [], (path, scheme)


NAMELESS = """() => [...document.querySelectorAll("a, button, input:not([type=hidden]), select, textarea, dialog, nav")]
  .filter((each) => !(each.getAttribute("aria-label") || each.getAttribute("aria-labelledby")
      || each.labels?.length || (!each.matches("input, select, textarea, dialog, nav") && each.textContent.trim())))
  .map((each) => each.outerHTML.slice(0, 120))"""


async def test_everything_has_a_name_and_a_place(tabs: Tabs, shown: Served) -> None:
    page = await tabs.open(shown)
    for path in PAGES:
        await page.goto(path)
        await _orderly(page)


async def _orderly(page: Page) -> None:
    for role in ("main", "banner", "navigation"):
        await expect(page.get_by_role(role)).to_have_count(1)  # type: ignore[arg-type]
    await expect(page.locator("h1")).to_have_count(1)
    await expect(page.locator('nav [aria-current="page"]')).to_have_count(1)
    assert await page.evaluate(NAMELESS) == []
    twice = await page.evaluate(
        "() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id); "
        "return ids.filter((id, at) => ids.indexOf(id) !== at); }"
    )
    assert twice == []
    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to content")).to_be_focused()


async def test_no_page_has_script_or_style_of_its_own(shown: Served) -> None:
    for path in PAGES:
        answer = await soon(shown.client.get(path))
        assert answer.status_code == 200
        assert "script-src 'self'; style-src 'self'" in answer.headers["content-security-policy"]
        assert set(re.findall(r"<script[^>]*>(.*?)</script>", answer.text, re.DOTALL)) == {""}
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?://", answer.text), path


async def test_a_refresh_gets_only_what_changes(shown: Served) -> None:
    asked = {"HX-Request": "true", "HX-Target": "div#live", "HX-Request-Type": "partial"}
    answer = await soon(shown.client.get("/queues", headers=asked))
    assert answer.status_code == 200
    assert "<h1>Queues</h1>" in answer.text
    assert "<html" not in answer.text and "<main" not in answer.text


# -- what others may send


async def test_what_is_said_after_an_action_is_said_once_and_is_text(filled: Served) -> None:
    sent = await soon(filled.client.post("/queues/pause", data={"queue": "greet", "why": "<b>hot</b>"}))
    assert sent.status_code == 303 and sent.headers["location"] == "/"
    assert "HttpOnly" in sent.headers["set-cookie"] and "SameSite=strict" in sent.headers["set-cookie"]
    first = await soon(filled.client.get("/queues"))
    assert "greet is paused" in first.text and "&lt;b&gt;hot&lt;/b&gt;" in first.text
    again = await soon(filled.client.get("/queues"))
    assert "greet is paused:" not in again.text


@pytest.mark.parametrize(
    "referer", ["https://evil.example/queues", "//evil.example/", "http://127.0.0.1:1/queues", "javascript:alert(1)"]
)
async def test_nobody_is_sent_to_a_foreign_place(referer: str, filled: Served) -> None:
    sent = await soon(filled.client.post("/queues/pause", data={"queue": "greet"}, headers={"Referer": referer}))
    assert sent.headers["location"] == "/"


@pytest.mark.parametrize("cookie", ["rubbish", "eyJ0ZXh0IjoxfQ", "bnVsbA", "eyJ0ZXh0IjoiYSIsInVuZG8iOiIvL2V2aWwifQ"])
async def test_a_cookie_that_somebody_else_wrote_harms_nothing(cookie: str, shown: Served) -> None:
    async with _client(shown, cookies={"redrive_said": cookie, "redrive_me": cookie}) as client:
        answer = await soon(client.get("/queues"))
    assert answer.status_code == 200
    assert "evil" not in answer.text


def _client(served: Served, **how: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=served.url, headers={"Authorization": f"Bearer {TOKEN}"}, **how)


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"queue=greet&why=%ff", "application/x-www-form-urlencoded", "cannot be read"),
        (b"queue=greet&why=" + b"a" * (4 * 1024 * 1024), "application/x-www-form-urlencoded", "is larger than"),
        (b"{}", "application/json", "is not a form"),
        ("queue=greet&why=ä".encode(), "application/x-www-form-urlencoded", "cannot be read"),
    ],
)
async def test_a_form_that_cannot_be_read_changes_nothing(body: bytes, kind: str, said: str, filled: Served) -> None:
    sent = await soon(filled.client.post("/queues/pause", content=body, headers={"Content-Type": kind}))
    assert sent.status_code == 303
    shown = await soon(filled.client.get("/queues"))
    assert "Not done." in shown.text and said in shown.text
    assert {queue.name for queue in await filled.rd.numbers() if queue.paused} == {"quiet"}


async def test_a_page_that_fails_says_so_and_the_log_says_why(filled: Served, caplog: Any) -> None:
    await filled.rd.store.apply([Commit(puts=(Put("queue", "torn", b"{"),))])
    answer = await soon(filled.client.get("/queues"))
    assert answer.status_code == 500
    assert "<h1>Something went wrong</h1>" in answer.text and "Traceback" not in answer.text
    assert any("GET /queues failed" in record.message and record.exc_info for record in caplog.records)


async def test_reading_changes_nothing(shown: Served) -> None:
    for path in (
        "/queues/greet/pause",
        "/queues/quiet/resume",
        "/breakers/close",
        "/inbox/seen",
        "/inbox/answer",
        "/me",
    ):
        answer = await soon(shown.client.get(path))
        assert answer.status_code in (404, 405), path
    held = await shown.rd.store.count(Filter(states=(State.held,), because="approval"))
    assert sum(held.values()) == 1


async def test_the_dashboard_can_be_mounted_anywhere(rd: redrive.Redrive, filled: Served) -> None:
    app = Starlette(routes=[Mount("/ops/queue", redrive.asgi(rd, token=TOKEN, hosts=["board.example"]))])
    transport = httpx2.ASGITransport(app)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://board.example", headers=headers) as client:
        page = await soon(client.get("/ops/queue/queues"))
        assert page.status_code == 200
        inside = re.findall(r'(?:href|src|action|hx-get|hx-post|data-live-url)="([^"#][^"]*)"', page.text)
        assert inside and all(link.startswith("/ops/queue/") for link in inside), inside
        for link in {link for link in inside if "static" in link}:
            assert (await soon(client.get(link))).status_code == 200
        sent = await soon(client.post("/ops/queue/queues/pause", data={"queue": "greet"}))
        assert sent.headers["location"] == "/ops/queue/"
        assert "Path=/ops/queue;" in sent.headers["set-cookie"]


async def test_a_name_as_long_as_names_may_be_makes_no_page_wider(still: Served, tabs: Tabs) -> None:
    """Nothing in it where a line could be broken."""
    name, now = "W" * 200, still.rd.clock.now()
    job = a_dead_job(
        queue=name, task=name, agent=name, session_id=name, owner=name, key="K" * 500, fingerprint="f" * 16,
        error="Z" * 3000, error_class="Y" * 200, payload='{"a":1}', updated_at=now, died_at=now,
    )  # fmt: skip
    await still.rd.store.insert([job])
    page = await tabs.open(still, "/")
    for path in ("/dead", f"/dead?queue={name}", f"/jobs/{job.id}", f"/groups/{'f' * 16}", "/morning", "/queues"):
        await page.goto(f"{still.url}{path}")
        for width in (390, 1280):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
    await page.goto(f"{still.url}/dead?queue={name}")
    await page.get_by_role("link", name="Remove the filter").click()
    await expect(page).to_have_url(f"{still.url}/dead")
