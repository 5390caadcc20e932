"""One trouble in a real browser: what it is, trying a few before the rest, and saying that it is settled."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

import redrive
from tests.web.browser.conftest import Tabs
from tests.web.browser.ward import became, buried, dead_number, make_ward, press, world_of
from tests.web.serving import Served


@pytest.fixture
async def rd(database: Path) -> AsyncIterator[redrive.Redrive]:
    async with make_ward(database) as rd:
        yield rd


async def at(tabs: Tabs, served: Served) -> Page:
    """The page of the one group there is."""
    (view,) = await served.rd.groups.list()
    return await tabs.open(served, f"/groups/{view.fingerprint}")


async def test_a_trouble_in_one_sentence_with_trend_samples_and_advice(served: Served, tabs: Tabs) -> None:
    ids = await buried(served.rd, 7)
    page = await at(tabs, served)
    await expect(page.locator("h1")).to_have_text(re.compile(r"TypeError\s+stone 6 does not turn"))
    await expect(page.locator(".job-standing")).to_have_text(
        re.compile(r"^7 jobs of mill are dead for this reason, first .* ago, last .*\. It is new\.$")
    )
    await expect(page.locator(".job-advice")).to_contain_text("Fix the code, deploy, then redrive.")
    await expect(page.locator("#trend canvas")).to_be_visible()
    await expect(page.locator("table.letters tbody tr")).to_have_count(5)
    await expect(page.get_by_role("link", name="See all 7")).to_be_visible()
    await expect(page.locator(".said li")).to_contain_text("first seen")
    await page.locator(f"#letter-{ids[-1]} a").click()
    await expect(page.locator("h1")).to_have_text("mill")


async def test_one_click_tries_five_and_the_rest_follows(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 9)
    world_of(served.rd).broken.discard("mill")
    page = await at(tabs, served)
    await page.get_by_role("button", name="Try 5, then the rest").click()
    await expect(page).to_have_url(re.compile("/redrives/"))
    await expect(page.locator("h1")).to_have_text("Finished")
    await expect(page.locator(".job-standing")).to_have_text("9 succeeded, 0 failed again, 0 skipped.")
    assert await dead_number(served) == 0


async def test_a_canary_that_fails_keeps_the_rest_where_it_is(served: Served, tabs: Tabs) -> None:
    ids = await buried(served.rd, 9)
    page = await at(tabs, served)
    await page.get_by_role("button", name="Try 5, then the rest").click()
    await expect(page.locator("h1")).to_have_text("Paused")
    await expect(page.locator(".canary-failed")).to_contain_text("The canary failed: 0 of 5 succeeded")
    await expect(page.get_by_role("link", name="See why they failed")).to_have_attribute("href", re.compile("/groups/"))
    await expect(page.locator(".job-standing")).to_have_text("5 of 9 dead letters moved; the other 4 wait for you.")
    moved = [id for id in ids if any(move.move == "redriven" for move in await served.rd.jobs.story(id))]
    assert len(moved) == 5
    (view,) = await served.rd.groups.list()
    await page.goto(f"/groups/{view.fingerprint}")
    await expect(page.get_by_role("link", name="Follow its redrive")).to_be_visible()


async def test_what_one_agent_may_not_do_is_given_to_another_with_three_clicks(served: Served, tabs: Tabs) -> None:
    ids = await buried(served.rd, 3, "bind")
    page = await at(tabs, served)
    await page.get_by_role("button", name="Give it to printer…").click()
    await expect(page.locator("h1")).to_have_text("Reassign 3 dead letters?")
    await expect(page.locator("#new_agent")).to_have_value("printer")
    await page.get_by_role("button", name="Reassign").click()
    await expect(page.locator(".flash")).to_contain_text("Reassigned 3.")
    for id in ids:
        assert (await became(served.rd, id, "done")).agent == "printer"
    await expect(page.locator(".job-standing")).to_contain_text("none is dead now")
    await expect(page.locator(".lessons li")).to_contain_text("3 of 3 times")


async def test_what_worked_before_is_told_with_numbers(served: Served, tabs: Tabs) -> None:
    ids = await buried(served.rd, 3)
    world_of(served.rd).broken.discard("mill")
    await served.rd.dead.redrive(ids[0])
    await became(served.rd, ids[0], "done")
    page = await at(tabs, served)
    await expect(page.locator(".lessons li")).to_have_count(1)
    told = re.compile("Redriven as it is.*1 of 1 time", re.DOTALL)
    await expect(page.locator(".lessons li")).to_contain_text(told)
    await expect(page.locator(".job-advice")).to_contain_text("Redriving as it is worked 1 of 1 times.")


async def test_resolving_ignoring_reopening_and_noting_are_told_in_its_story(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 2)
    page = await at(tabs, served)
    await press(page, "Resolve")
    await page.fill("#resolve-version", "2.4.0")
    await page.fill("#do-resolve-why", "stones oiled")
    await page.locator("dialog[open]").get_by_role("button", name="Resolve").click()
    await expect(page.locator(".flash")).to_contain_text("The group is resolved. 2 dead letters of it left.")
    await expect(page.locator(".said li").first).to_contain_text("resolved in 2.4.0 by owner")
    await press(page, "Reopen")
    await page.locator("dialog[open]").get_by_role("button", name="Reopen").click()
    await expect(page.locator(".flash")).to_contain_text("The group is unresolved.")
    await press(page, "Ignore")
    await page.select_option("#ignore-days", "7")
    await page.fill("#ignore-rate", "3")
    await page.locator("dialog[open]").get_by_role("button", name="Ignore").click()
    await expect(page.locator(".facts")).to_contain_text("up to 3 an hour")
    await page.fill("#note-text", "ask the miller")
    await page.get_by_role("button", name="Note it").click()
    await expect(page.locator(".job-note")).to_contain_text("ask the miller")
    (view,) = await served.rd.groups.list()
    assert [said.what.split()[0] for said in view.state.story] == ["new", "resolved", "reopened", "ignored", "noted"]
    assert view.status == "ignored" and view.state.ignored_rate == 3 and view.state.ignored_until is not None


async def test_what_was_said_of_it_is_taken_back(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 1)
    page = await at(tabs, served)
    await press(page, "Resolve")
    await page.locator("dialog[open]").get_by_role("button", name="Resolve").click()
    await page.locator(".flash").get_by_role("button", name="Undo").click()
    await expect(page.locator(".facts")).to_contain_text("unresolved")
    await expect(page.locator(".flash")).to_contain_text("Taken back 1.")
    (view,) = await served.rd.groups.list()
    assert view.status == "unresolved"


async def test_new_burials_appear_by_themselves(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 1)
    page = await at(tabs, served)
    await expect(page.locator(".job-standing")).to_contain_text("1 job of mill is dead")
    await buried(served.rd, 2)
    await expect(page.locator(".job-standing")).to_contain_text("3 jobs of mill are dead")


async def test_a_phone_shows_all_of_it(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 6)
    (view,) = await served.rd.groups.list()
    page = await tabs.open(served, f"/groups/{view.fingerprint}", viewport={"width": 360, "height": 740})
    await expect(page.locator("#trend canvas")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_group_that_does_not_exist_is_said_so(served: Served, tabs: Tabs) -> None:
    tabs.forgiven.append("404")
    page = await tabs.open(served, "/groups/feedfeedfeedfeed")
    await expect(page.locator(".lead")).to_contain_text("there is no group")


@pytest.mark.behaviour("V-5")
async def test_three_buttons_and_a_menu_for_the_rest(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 7)
    page = await at(tabs, served)
    shown = page.locator(".job-verbs > a, .job-verbs > button, .job-verbs > form > button")
    await expect(shown).to_have_text(["Look at the latest", "Try 5, then the rest", "Redrive…"])
    await expect(shown.first).to_have_class(re.compile("button-primary"))
    menu = page.locator("#more-verbs .menu-list")
    await expect(menu).to_be_hidden()
    await page.locator("#more-verbs > summary").focus()
    await page.keyboard.press("Enter")
    await expect(menu.locator(".button")).to_have_text(
        ["Resolve", "Ignore", "Edit all…", "Reassign…", "Defer…", "Discard…", "Move lane…", "Note…"]
    )
    await page.keyboard.press("Tab")
    await expect(menu.get_by_role("button", name="Resolve")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(menu).to_be_hidden()
    await expect(page.locator("#more-verbs > summary")).to_be_focused()
    await page.locator("#more-verbs > summary").click()
    await page.locator("h1").click()
    await expect(menu).to_be_hidden()


@pytest.mark.behaviour("V-5")
async def test_the_menu_works_without_scripts(served: Served, tabs: Tabs) -> None:
    await buried(served.rd, 2)
    (view,) = await served.rd.groups.list()
    page = await tabs.open(served, f"/groups/{view.fingerprint}", java_script_enabled=False)
    await page.locator("#more-verbs > summary").click()
    await page.locator("#more-verbs").get_by_role("button", name="Discard…").click()
    await expect(page.locator("h1")).to_have_text("Discard 2 dead letters?")
    await page.get_by_role("button", name="Discard").click()
    await expect(page.locator(".flash")).to_contain_text("Discarded 2.")
    assert await dead_number(served) == 0


@pytest.mark.behaviour("V-4")
async def test_all_of_a_group_are_edited_in_the_same_way_after_a_look(served: Served, tabs: Tabs) -> None:
    ids = await buried(served.rd, 3)
    page = await at(tabs, served)
    await press(page, "Edit all…")
    await expect(page.locator("h1")).to_have_text("Edit 3 dead letters in the same way")
    await page.wait_for_load_state()  # only then what is written is judged
    await page.fill("#patch", '{"stone": "many"}')
    await expect(page.locator("#preview")).to_contain_text("0 of 3 would change; 3 would not.")
    await expect(page.locator("#preview")).to_contain_text("stone")
    await page.fill("#patch", '{"stone": 99}')
    await expect(page.locator("#preview")).to_contain_text("3 of 3 would change")
    await page.fill("#why", "another stone")
    world_of(served.rd).broken.discard("mill")
    await page.get_by_role("button", name="Edit and redrive them").click()
    await expect(page).to_have_url(re.compile("/redrives/"))
    for id in ids:
        job = await became(served.rd, id, "done")
        assert job.changes[0]["payload"]["stone"] == 99 and job.arguments["stone"] != 99
    await page.goto("/acts")
    await expect(page.locator(".act").first).to_contain_text("edited and redrove 3 jobs (stone)")
