"""Dead letters in a real browser: seeing what they have in common, choosing, acting, taking it back."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect

import redrive
from tests.support import soon
from tests.web.browser.conftest import Tabs
from tests.web.browser.ward import became, buried, dead_number, make_ward, world_of
from tests.web.serving import Served, serving


@pytest.fixture
async def rd(database: Path) -> AsyncIterator[redrive.Redrive]:
    async with make_ward(database) as rd:
        yield rd


@pytest.fixture(scope="module")
async def filed(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> AsyncIterator[Served]:
    """Five letters of two tasks, once, for tests that only look."""
    async with make_ward(tmp_path_factory.mktemp("filed") / "jobs.db") as rd, serving(rd, dashboard=True) as served:
        await buried(rd, 3)
        await buried(rd, 2, "press")
        yield served


@pytest.fixture(scope="module")
async def reading(filed: Served, browser: Browser) -> AsyncIterator[Page]:
    """One tab for all that only read what an address shows."""
    tabs = Tabs(browser)
    yield await tabs.open(filed)
    await tabs.close()


async def at(tabs: Tabs, served: Served, path: str = "/dead") -> Page:
    return await tabs.open(served, path)


async def choose(page: Page, *places: int) -> None:
    for place in places:
        await page.locator("input[name=ids]").nth(place).check()


async def press(page: Page, verb: str) -> None:
    await page.locator(f".bulk-verbs button[value={verb}]").click()


async def test_the_groups_stand_first_in_words_then_the_letters(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 3)
    await buried(served.rd, 2, "press")
    page = await at(tabs, served)
    await expect(page.locator(".lead")).to_have_text("5 dead letters in 2 groups. 5 wait for a person.")
    await expect(page.locator(".group")).to_have_count(2)
    mill = page.locator(".group", has_text="TypeError")
    await expect(mill.locator(".group-count")).to_contain_text("3")
    await expect(mill.locator(".group-todo")).to_have_text(
        "This is a programming error. Fix the code, deploy, then redrive. retry_on=(TypeError,) would retry it."
    )
    await expect(mill.locator(".trend")).to_contain_text("new")
    assert await mill.locator("svg.spark").get_attribute("aria-label") == "new: 3 in the last day, 0 in the day before"
    await expect(page.locator("table.letters tbody tr")).to_have_count(5)
    await mill.locator(".group-error").click()
    await expect(page.locator("h1")).to_contain_text("TypeError")


async def test_filters_stand_in_the_address_and_come_off_one_by_one(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 3)
    await buried(served.rd, 2, "press")
    page = await at(tabs, served)
    await page.select_option("#task", "press")
    await page.get_by_role("button", name="Apply").click()
    await expect(page).to_have_url(re.compile(r"/dead\?task=press"))
    await expect(page.locator(".lead")).to_have_text("2 dead letters match, in 1 group.")
    await expect(page.locator("table.letters tbody tr")).to_have_count(2)
    await page.get_by_text("More", exact=True).click()
    await page.select_option("#because", "permanent")
    await page.get_by_role("button", name="Apply").click()
    await expect(page.locator(".empty-title")).to_have_text("No dead letters match.")
    await page.get_by_role("link", name="Remove the filter because permanent").click()
    await expect(page.locator("table.letters tbody tr")).to_have_count(2)
    await page.get_by_role("link", name="Clear all").click()
    await expect(page.locator("table.letters tbody tr")).to_have_count(5)


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("queue=press", 2), ("agent=editor", 2), ("lane=manual", 5), ("lane=delayed", 0), ("category=permanent", 5),
        ("detail=bug", 3), ("error_class=TypeError", 3), ("because=terminated", 2), ("session=s1", 0), ("since=1h", 5),
        ("since=2099-01-01", 0), ("owner=nobody", 0),
    ],
)  # fmt: skip
async def test_every_filter_of_the_address_is_obeyed(reading: Page, query: str, number: int) -> None:
    await reading.goto(f"/dead?{query}")
    await expect(reading.locator("table.letters tbody tr")).to_have_count(number)


async def test_some_are_discarded_and_it_is_taken_back(served: Served, tabs: Tabs) -> None:
    ids = await buried(served.rd, 3)
    page = await at(tabs, served)
    await choose(page, 0, 1)
    await expect(page.locator("[data-selected]")).to_have_text("2 selected")
    await press(page, "discard")
    await expect(page.locator("h1")).to_have_text("Discard 2 dead letters?")
    await page.fill("#why", "not wanted any more")
    await page.get_by_role("button", name="Discard").click()
    await expect(page.locator(".flash")).to_contain_text("Discarded 2.")
    await expect(page.locator("table.letters tbody tr")).to_have_count(1)
    (move,) = [one for one in await served.rd.jobs.story(ids[2]) if one.move == "discarded"]
    assert (move.who, move.why) == ("owner", "not wanted any more")
    await page.locator(".flash").get_by_role("button", name="Undo").click()
    await expect(page.locator(".flash")).to_contain_text("Taken back 2.")
    await expect(page.locator("table.letters tbody tr")).to_have_count(3)


@pytest.mark.behaviour("004-59")
async def test_what_was_done_is_listed_with_who_and_why_and_taken_back_from_there(still: Served, tabs: Tabs) -> None:
    async with still.rd.worker():
        ids = await buried(still.rd, 3)
    await still.rd.dead.discard(ids=ids[:2], who="mira", why="twice the same")
    await still.rd.dead.reassign(ids[2], agent="printer", who="jonas")
    page = await at(tabs, still)
    await page.get_by_role("link", name="What was done").click()
    acts = page.locator(".act")
    await expect(acts).to_have_count(2)
    await expect(acts.nth(0)).to_contain_text(re.compile(rf"jonas reassigned\s+{ids[2][-8:]}\s+to printer"))
    await expect(acts.nth(1)).to_contain_text("mira discarded 2 jobs")
    await expect(acts.nth(1)).to_contain_text("twice the same")
    await acts.nth(1).get_by_role("button", name="Undo").click()
    await page.locator("dialog[open]").get_by_role("button", name="Undo").click()
    await expect(page.locator(".flash")).to_contain_text("Taken back 2.")
    await expect(acts.nth(1)).to_contain_text("taken back by owner")
    assert await dead_number(still) == 2


async def test_the_whole_filter_is_redriven_by_a_plan_and_succeeds(served: Served, tabs: Tabs) -> None:
    ids = await buried(served.rd, 12)
    await buried(served.rd, 2, "press")
    world_of(served.rd).broken.discard("mill")
    page = await at(tabs, served, "/dead?task=mill")
    await page.get_by_label("all 12 that match").check()
    await expect(page.locator("[data-selected]")).to_have_text("Acts on")
    await press(page, "redrive")
    await expect(page.locator("h1")).to_have_text("Redrive 12 dead letters?")
    await expect(page.locator("#canary")).to_have_value("5")
    await page.fill("#why", "the mill turns again")
    await page.get_by_role("button", name="Start").click()
    await expect(page).to_have_url(re.compile(r"/redrives/[0-9a-f]{32}$"))
    await expect(page.locator("h1")).to_have_text("Finished")
    await expect(page.locator(".job-standing")).to_have_text("12 succeeded, 0 failed again, 0 skipped.")
    await expect(page.locator(".canary")).to_contain_text("The canary passed")
    assert {(await served.rd.jobs.get(id)).state for id in ids} == {"done"}
    assert await dead_number(served, task="press") == 2


async def test_a_plan_tells_what_it_may_cost_and_what_would_not_move(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 2, "press")
    page = await at(tabs, served, "/dead/act?verb=redrive&task=press&all=1")
    await expect(page.locator(".plan-cost")).to_contain_text("about 1.00")
    await expect(page.locator(".plan-cost")).to_contain_text("220 tokens")
    await expect(page.locator("#canary")).to_have_value("0")


async def test_a_plan_that_is_no_longer_true_starts_nothing(still: Served, tabs: Tabs) -> None:
    async with still.rd.worker():
        ids = await buried(still.rd, 3)
    page = await at(tabs, still, "/dead/act?verb=redrive&task=mill&all=1")
    await still.rd.dead.discard(ids[0])
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator(".flash-bad")).to_contain_text("the plan was for other dead letters")
    assert await dead_number(still) == 2


async def test_a_plan_says_what_is_in_its_way_and_whether_that_waits_for_somebody(still: Served, tabs: Tabs) -> None:
    for number in range(2):
        await still.rd.dead.add(f"old-{number}", {"stone": number}, "trouble", task="mill")
    run = await still.rd.redrives.start(all=True, rate=0.001)
    page = await at(tabs, still, "/dead/act?verb=redrive&all=1")
    await expect(page.locator(".plan .warn")).to_contain_text("still moves some of these: wait for it, or cancel it.")
    await still.rd.redrives.pause(run.id)
    await page.reload()
    await expect(page.locator(".plan .warn")).to_contain_text("is paused and has some of these: resume or cancel it.")
    await page.locator(".plan .warn a").click()
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()


@pytest.mark.behaviour("004-6", "004-59", "001-30")
async def test_deferring_reassigning_and_moving_lanes(still: Served, tabs: Tabs) -> None:
    async with still.rd.worker():
        ids = await buried(still.rd, 3)
    page = await at(tabs, still)
    await choose(page, 0)
    await press(page, "defer")
    await page.fill("#new_owner", "mira")
    await page.select_option("#days", "3")
    await page.get_by_role("button", name="Defer").click()
    await expect(page.locator(".flash")).to_contain_text("Deferred 1.")
    job = await still.rd.jobs.get(ids[2])
    assert (job.state, job.because, job.owner) == ("held", "deferred", "mira")
    await choose(page, 0)
    await press(page, "reassign")
    await page.fill("#new_agent", "printer")
    await page.get_by_role("button", name="Reassign").click()
    await expect(page.locator(".flash")).to_contain_text("Reassigned 1.")
    job = await still.rd.jobs.get(ids[1])
    assert (job.state, job.agent) == ("waiting", "printer")
    await page.get_by_label("the one").check()
    await press(page, "move_lane")
    await page.select_option("#new_lane", "delayed")
    await page.get_by_role("button", name="Move").click()
    await expect(page.locator(".flash")).to_contain_text("other lane 1.")
    assert (await still.rd.jobs.get(ids[0])).lane == "delayed"


async def test_those_of_one_lane_move_to_the_other(still: Served, tabs: Tabs) -> None:
    """The filter and the verb say the same word; neither takes the other's place."""
    async with still.rd.worker():
        ids = await buried(still.rd, 2)
    await still.rd.dead.move_lane(ids[0], "delayed")
    page = await at(tabs, still, "/dead?lane=manual")
    await page.get_by_label("the one that matches").check()
    await press(page, "move_lane")
    await page.get_by_role("button", name="Move").click()
    await expect(page.locator(".flash")).to_contain_text("other lane 1.")
    assert {(await still.rd.jobs.get(id)).lane for id in ids} == {"delayed"}


async def test_purging_wants_the_number_typed(served: Served, tabs: Tabs) -> None:
    ids = await buried(served.rd, 3)
    page = await at(tabs, served)
    await page.get_by_label("all 3").check()
    await press(page, "purge")
    await expect(page.locator("h1")).to_have_text("Purge 3 dead letters for good?")
    await page.fill("#confirm", "2")
    await page.get_by_role("button", name="Purge").click()
    await expect(page.locator(".flash-bad")).to_contain_text("type 3")
    assert await dead_number(served) == 3
    await page.fill("#confirm", "3")
    await page.get_by_role("button", name="Purge").click()
    await expect(page.locator(".flash")).to_contain_text("Purged 3 dead letters for good.")
    assert {(await served.rd.jobs.get(id)).state for id in ids} == {"purged"}


async def test_an_export_is_a_file_with_exactly_what_was_chosen(served: Served, tabs: Tabs, tmp_path: Path) -> None:
    ids = await buried(served.rd, 3)
    page = await at(tabs, served)
    await choose(page, 1)
    async with page.expect_download() as started:
        await press(page, "export")
    download = await started.value
    assert download.suggested_filename == "dead-letters.jsonl"
    await download.save_as(tmp_path / "some.jsonl")
    (line,) = (tmp_path / "some.jsonl").read_text().splitlines()
    assert ids[1] in line


async def test_the_keyboard_is_enough(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 3)
    page = await at(tabs, served)
    for key in ("j", "j", "j", "x"):  # past the one group, onto the second letter
        await page.keyboard.press(key)
    await expect(page.locator("[data-selected]")).to_have_text("1 selected")
    await expect(page.locator("input[name=ids]").nth(1)).to_be_checked()
    await page.keyboard.press("r")
    await expect(page.locator("h1")).to_have_text("Redrive 1 dead letter?")


async def test_a_range_is_selected_and_all_that_match_is_something_else(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 6)
    page = await at(tabs, served)
    boxes = page.locator("input[name=ids]")
    await expect(page.locator(".bulk-verbs button[value=discard]")).to_be_disabled()
    await boxes.nth(1).click()
    await boxes.nth(4).click(modifiers=["Shift"])
    await expect(page.locator("[data-selected]")).to_have_text("4 selected")
    await page.get_by_label("all 6").check()
    await expect(boxes.nth(1)).not_to_be_checked()
    await expect(page.locator(".bulk-verbs button[value=discard]")).to_be_enabled()
    await page.get_by_label("Select all on this page").check()
    await expect(page.get_by_label("all 6")).not_to_be_checked()
    await expect(page.locator("[data-selected]")).to_have_text("6 selected")


OVER = """() => { window.over = new Promise((over) =>
  document.addEventListener("htmx:finally:request", () => over(true), { once: true })); }"""


async def test_a_late_answer_moves_nothing_under_the_hands(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 2)
    page = await at(tabs, served)
    asked, released = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        answer = await route.fetch()
        asked.set()
        await released.wait()
        await route.fulfill(response=answer)

    await expect(page.locator("#live-status")).to_have_attribute("data-state", "live")
    await page.route("**/dead", late)
    await buried(served.rd, 1)
    await soon(asked.wait())
    await page.evaluate(OVER)
    await choose(page, 1)
    await expect(page.locator(".live-word")).to_have_text("Held still: rows are selected")
    released.set()
    assert await page.evaluate("() => window.over")
    await expect(page.locator("[data-selected]")).to_have_text("1 selected")
    assert await page.locator("input[name=ids]").count() == 2
    await page.locator("input[name=ids]").nth(1).uncheck()
    await expect(page.locator("input[name=ids]")).to_have_count(3)


async def test_the_page_works_without_scripts(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 2)
    page = await tabs.open(served, "/dead", java_script_enabled=False)
    await press(page, "discard")
    await expect(page.locator(".flash-bad")).to_contain_text("Nothing is selected.")
    await page.locator("input[name=ids]").nth(0).check()
    await press(page, "discard")
    await page.get_by_role("button", name="Discard").click()
    await expect(page.locator(".flash")).to_contain_text("Discarded 1.")
    assert await dead_number(served) == 1


async def test_older_letters_are_one_page_further(served: Served, tabs: Tabs) -> None:
    ids = await buried(served.rd, 61)
    page = await at(tabs, served)
    await expect(page.locator("table.letters tbody tr")).to_have_count(50)
    await page.get_by_role("link", name="Older").click()
    await expect(page.locator("table.letters tbody tr")).to_have_count(11)
    await expect(page.locator(f"#letter-{ids[0]}")).to_be_visible()
    await page.get_by_role("link", name="Newest").click()
    await expect(page.locator(f"#letter-{ids[-1]}")).to_be_visible()


async def test_new_letters_appear_but_never_under_somebodys_hands(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 1)
    page = await at(tabs, served)
    await expect(page.locator("#live-status")).to_have_attribute("data-state", "live")
    await buried(served.rd, 1)
    await expect(page.locator("table.letters tbody tr")).to_have_count(2)
    await choose(page, 0)
    await buried(served.rd, 1)
    await expect(page.locator("#live-status")).to_have_attribute("data-state", "paused")
    await expect(page.locator("table.letters tbody tr")).to_have_count(2)
    await page.locator("input[name=ids]").nth(0).uncheck()
    await expect(page.locator("table.letters tbody tr")).to_have_count(3)


async def test_what_is_held_for_a_person_is_answered_from_its_list(served: Served, tabs: Tabs) -> None:
    handle = await served.rd.enqueue("ask", {})
    await became(served.rd, handle.id, "held")
    page = await at(tabs, served, "/held")
    await expect(page.locator(".hold-title")).to_have_text("Refund 900 euros?")
    await expect(page.locator(".hold")).to_contain_text("amount 900")
    await page.locator(".hold").get_by_role("button", name="Approve").click()
    await expect(page.locator("dialog[open]")).to_contain_text("“Refund 900 euros?” Yes to exactly this.")
    await page.locator("dialog[open]").get_by_role("button", name="Approve").click()
    await expect(page.locator(".flash")).to_have_text(re.compile("Approved: it goes on."))
    assert (await became(served.rd, handle.id, "done")).result == "yes"
    await expect(page.locator(".hold")).to_have_count(0)


async def test_of_many_that_may_have_landed_it_is_said_which_one_is_meant(served: Served, tabs: Tabs) -> None:
    ids = [(await served.rd.enqueue("pay", {"euros": euros})).id for euros in range(2)]
    for id in ids:
        await became(served.rd, id, "held")
    page = await at(tabs, served, "/held")
    for id in ids:
        row = page.locator(".hold", has=page.locator(f'a[href="/jobs/{id}"]'))
        await row.get_by_role("button", name="It did not land").click()
        dialog = page.locator("dialog[open]")
        await expect(dialog).to_contain_text(f"pay {id[-8:]}: You looked outside, and nothing is there.")
        await expect(dialog.get_by_label("How do you know")).to_have_attribute("required", "")
        await page.keyboard.press("Escape")


@pytest.mark.parametrize("width", [360, 1280])
async def test_a_question_without_end_makes_no_page_wider_or_longer(served: Served, tabs: Tabs, width: int) -> None:
    handle = await served.rd.enqueue("ask", {"what": "W" * 10_000, "more": {"text": "V" * 1000}})
    await became(served.rd, handle.id, "held")
    page = await tabs.open(served, "/held", viewport={"width": width, "height": 800})
    await expect(page.locator(".hold")).to_contain_text("VVV")
    wide, high = await page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    assert wide <= width and high < 1600
    await page.locator(".hold").get_by_role("button", name="Reject").click()
    assert await page.locator("dialog[open]").evaluate("dialog => dialog.scrollWidth <= dialog.clientWidth")


@pytest.mark.parametrize("path", ["/dead", "/dead/act?verb=redrive&all=1", "/dead/act?verb=purge&all=1", "/held"])
async def test_a_phone_shows_all_of_it(served: Served, tabs: Tabs, path: str) -> None:
    await served.rd.enqueue("ask", {"what": "Refund " + "x" * 300})
    await buried(served.rd, 2, flour="y" * 500)
    page = await tabs.open(served, path, viewport={"width": 360, "height": 740})
    await expect(page.locator("h1")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_an_address_that_says_nonsense_gets_an_answer(served: Served, tabs: Tabs) -> None:
    tabs.forgiven += ["422", "404"]
    await buried(served.rd, 1)
    page = await at(tabs, served)
    for path in (
        "/dead?since=yesterday", "/dead?group=zzzz", "/dead?cursor=nonsense", "/dead/act?verb=burn&all=1",
        "/held?because=boredom", f"/dead?queue={'q' * 501}",
    ):  # fmt: skip
        answer = await page.goto(path)
        assert answer is not None and answer.status == 422, path
        await expect(page.locator("h1")).to_have_text("That cannot be shown")


async def test_many_groups_are_pages_of_their_own(served: Served, tabs: Tabs) -> None:
    for number in range(53):
        await served.rd.dead.add(f"old-{number}", {}, "trouble", task=f"task{number}")
    page = await at(tabs, served)
    await expect(page.locator(".lead")).to_contain_text("53 groups")
    await expect(page.locator(".group")).to_have_count(12)
    await page.get_by_role("link", name="All 53").click()
    await expect(page.locator(".group")).to_have_count(50)
    first = await page.locator(".group").first.get_attribute("id")
    await page.get_by_role("link", name="Further").click()
    await expect(page.locator(".group")).to_have_count(3)
    await expect(page.locator(".pager")).to_contain_text("51 to 53 of 53")
    await page.goto("/dead?groups=9")  # of a time when there were more
    await expect(page.locator(".pager")).to_contain_text("51 to 53 of 53")
    assert await page.locator(f"#{first}").count() == 0
    await page.get_by_role("link", name="Back to the dead letters").click()
    await expect(page.locator("table.letters tbody tr")).to_have_count(50)


async def test_a_redrive_may_be_slower_than_one_a_second(tabs: Tabs, served: Served) -> None:
    await buried(served.rd, 3)
    page = await at(tabs, served, "/dead/act?verb=redrive&all=1")
    await page.get_by_label("Most a second").fill("0.5")
    await page.get_by_label("% must succeed").fill("99.5")
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator("main")).to_contain_text("at most 0.5 a second")
