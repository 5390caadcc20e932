"""One job in a real browser: its story, what it was given, and everything that can be done with it."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

import redrive
from redrive.doors.dashboard import job as job_page
from redrive.reports import timeline
from tests.web.browser.conftest import Tabs
from tests.web.browser.ward import SECRET, became, buried, make_ward, press, world_of
from tests.web.serving import Served


@pytest.fixture
async def rd(database: Path) -> AsyncIterator[redrive.Redrive]:
    async with make_ward(database) as rd:
        yield rd


async def at(tabs: Tabs, served: Served, id: str) -> Page:
    return await tabs.open(served, f"/jobs/{id}")


async def act(page: Page, label: str, why: str | None = None, confirm: str | None = None) -> None:
    """Press the button, say why, and confirm."""
    await press(page, label)
    dialog = page.locator("dialog[open]")
    if why is not None:
        await dialog.locator("input[name=why]").fill(why)
    await dialog.get_by_role("button", name=confirm or label, exact=True).click()


@pytest.mark.behaviour("004-60")
async def test_the_story_tells_each_attempt_with_cause_rule_and_decision(served: Served, tabs: Tabs) -> None:
    (id,) = await buried(served.rd, 1, "press")
    page = await at(tabs, served, id)
    await expect(page.locator("h1")).to_have_text("press")
    await expect(page.locator(".job-standing")).to_have_text(re.compile("its task gave up. It waits for a person"))
    await expect(page.locator(".job-advice")).to_contain_text("Buy ink, then redrive.")
    await expect(page.locator(".moment-head strong")).to_have_text(["Enqueued", "Run 1 failed"])
    attempt = page.locator("#run-1")
    job = await served.rd.jobs.get(id)
    (tried,) = job.history
    assert tried.cause is not None and tried.decision is not None
    await expect(attempt.locator(".moment-failure")).to_have_text("GiveUp: there is no ink")
    await expect(attempt.locator(".moment-decision")).to_have_text(tried.decision)
    await expect(attempt.locator(".fact-cause dd")).to_have_text(f"{tried.cause.category}, {tried.cause.detail}")
    await expect(attempt.locator(".fact-rule dd")).to_contain_text(f"{tried.cause.rule}: ")
    await expect(attempt.locator(".fact-usage dd")).to_have_text("100 tokens read, 10 written, 0.5 spent")
    await expect(page.locator("aside")).to_contain_text("110 tokens, 0.5")


async def test_of_a_long_story_the_beginning_and_the_end_are_told_and_the_rest_on_request(
    served: Served, tabs: Tabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = await buried(served.rd, 1)
    for _ in range(4):
        await served.rd.dead.redrive(id)
        await became(served.rd, id, "dead")
    whole = timeline.tell(await served.rd.jobs.get(id), await served.rd.jobs.story(id), served.rd.clock.now()).entries
    page = await at(tabs, served, id)
    moments, left_out = page.locator(".moment:not(.moment-left-out)"), page.locator(".moment-left-out")
    await expect(moments).to_have_count(len(whole))
    await expect(left_out).to_have_count(0)
    monkeypatch.setattr(job_page, "STORY_BEGIN", 2)
    monkeypatch.setattr(job_page, "STORY_END", 3)
    await page.reload()
    await expect(moments).to_have_count(5)
    await expect(left_out).to_contain_text(f"{len(whole) - 5} moments are left out.")
    await expect(moments.locator("strong").nth(1)).to_have_text("Run 1 failed")
    await expect(moments.locator("strong").last).to_have_text("Run 5 failed")
    await page.get_by_role("link", name="Show all").click()
    await expect(moments).to_have_count(len(whole))
    await expect(left_out).to_have_count(0)


async def test_redriving_it_is_seen_as_it_happens(served: Served, tabs: Tabs) -> None:
    (id,) = await buried(served.rd, 1)
    page = await at(tabs, served, id)
    world_of(served.rd).broken.discard("mill")
    await page.keyboard.press("r")
    await expect(page.locator("#do-redrive-why")).to_be_focused()
    await expect(page.locator("#do-redrive-why")).to_have_value("")  # the key opens the dialog, and is no text of it
    await page.fill("#do-redrive-why", "oiled")
    await page.keyboard.press("Enter")
    await expect(page.locator(".chip-done")).to_be_visible()
    await expect(page.locator(".moment-head strong")).to_have_text(
        ["Enqueued", "Run 1 failed", "Redriven", "Run 2 succeeded"]
    )
    await expect(page.locator(".moment-person")).to_contain_text("oiled")
    await expect(page.locator("section", has=page.locator("#result-title"))).to_contain_text("rye flour from stone 0")
    await expect(page.locator(".job-verbs")).to_have_count(0)


@pytest.mark.parametrize(
    ("label", "after", "back"),
    [("Discard", "discarded", "dead"), ("Move to the delayed lane", "dead", "dead"), ("Redrive", "waiting", "dead")],
)
async def test_what_was_done_is_taken_back(still: Served, tabs: Tabs, label: str, after: str, back: str) -> None:
    async with still.rd.worker():
        (id,) = await buried(still.rd, 1)
    before = await still.rd.jobs.get(id)
    page = await at(tabs, still, id)
    await act(page, label, "for a test")
    await expect(page.locator(".flash")).to_be_visible()
    assert (await still.rd.jobs.get(id)).state == after
    await page.locator(".flash").get_by_role("button", name="Undo").click()
    await expect(page.locator(".flash")).to_contain_text("Taken back 1.")
    job = await still.rd.jobs.get(id)
    assert (job.state, job.lane, job.because) == (back, before.lane, before.because)


async def test_deferring_recalling_reassigning_and_restoring(still: Served, tabs: Tabs) -> None:
    async with still.rd.worker():
        (id,) = await buried(still.rd, 1)
    page = await at(tabs, still, id)
    await press(page, "Defer")
    await page.fill("#defer-owner", "mira")
    await page.locator("dialog[open]").get_by_role("button", name="Defer").click()
    await expect(page.locator(".job-standing")).to_contain_text("Deferred to mira")
    await act(page, "Recall", "now")
    await expect(page.locator(".chip-dead")).to_be_visible()
    await act(page, "Discard")
    await expect(page.locator(".chip-discarded")).to_be_visible()
    await act(page, "Restore")
    await expect(page.locator(".job-standing")).to_contain_text("a person brought it back")
    await press(page, "Reassign")
    await page.fill("#reassign-agent", "printer")
    await page.locator("dialog[open]").get_by_role("button", name="Reassign").click()
    await expect(page.locator(".chip-waiting")).to_be_visible()
    job = await still.rd.jobs.get(id)
    assert (job.state, job.agent) == ("waiting", "printer")
    said = [entry.move for entry in await still.rd.jobs.story(id) if entry.who == "owner"]
    assert said == ["deferred", "recalled", "discarded", "restored", "redriven"]


async def test_a_name_is_remembered_and_recorded(still: Served, tabs: Tabs) -> None:
    async with still.rd.worker():
        (id,) = await buried(still.rd, 1)
    page = await at(tabs, still, id)
    await page.get_by_role("button", name="Your name…").click()
    await page.fill("#me-name", "Mira")
    await page.get_by_role("button", name="Remember").click()
    await act(page, "Discard", "mine")
    await expect(page.locator(".chip-discarded")).to_be_visible()
    assert (await still.rd.jobs.story(id))[-1].who == "owner (as Mira)"


# ---- editing


async def write(page: Page, value: object) -> None:
    """As soon as the page listens: a key that is hit before it does is not heard, by anybody's browser."""
    await page.wait_for_load_state("load")
    await page.fill("#payload", value if isinstance(value, str) else json.dumps(value))


async def test_an_edit_is_judged_while_it_is_written_and_then_runs(served: Served, tabs: Tabs) -> None:
    tabs.forgiven.append("422")  # what is sent although it was called wrong
    (id,) = await buried(served.rd, 1)
    page = await at(tabs, served, id)
    await page.get_by_role("link", name="Edit and redrive…").click()
    preview = page.locator("#preview")
    await expect(preview).to_contain_text("Change the input")
    await write(page, '{"stone": 1')
    await expect(preview).to_contain_text("is not JSON")
    await write(page, [1])
    await expect(preview).to_contain_text("must be a JSON object")
    await write(page, {"stone": "granite"})
    await expect(preview.locator(".preview-state.is-dead")).to_contain_text("stone Expected")
    async with page.expect_navigation():
        await page.get_by_role("button", name="Redrive with this input").click()
    await expect(page.locator("#payload")).to_have_value('{"stone": "granite"}')
    assert (await served.rd.jobs.get(id)).state == "dead"
    await write(page, {"stone": 4, "flour": "wheat"})
    await expect(preview).to_contain_text("stone: 0 → 4")
    await expect(preview.locator(".preview-state")).to_have_class(re.compile("is-done"))
    world_of(served.rd).broken.discard("mill")
    await page.fill("#why", "the other stone")
    await page.get_by_role("button", name="Redrive with this input").click()
    await expect(page.locator(".chip-done")).to_be_visible()
    assert (await became(served.rd, id, "done")).result == "wheat flour from stone 4"
    assert (await served.rd.jobs.get(id)).arguments == {"stone": 0}


async def test_tidying_up_an_input_changes_no_number(served: Served, tabs: Tabs) -> None:
    (id,) = await buried(served.rd, 1)
    page = await tabs.open(served, f"/jobs/{id}/edit")
    await write(page, '{"stone":9007199254740993,"grams":1.0,"much":12345678901234567890123,"in":[-0.0,1e400]}')
    await page.get_by_role("button", name="Tidy up").click()
    await expect(page.locator("#payload")).to_have_value(
        '{\n  "stone": 9007199254740993,\n  "grams": 1.0,\n  "much": 12345678901234567890123,\n'
        '  "in": [\n    -0.0,\n    1e400\n  ]\n}'
    )


async def test_inputs_of_two_runs_stand_side_by_side_word_by_word(served: Served, tabs: Tabs) -> None:
    (id,) = await buried(served.rd, 1, flour="coarse rye from the hill")
    await served.rd.dead.edit(id, {"stone": 3, "flour": "fine rye from the hill"})
    await became(served.rd, id, "dead")
    page = await at(tabs, served, id)
    rows = page.locator(".diff-row:not(.diff-head)")
    await expect(rows.locator(".diff-path")).to_have_text([re.compile("^stone changed"), re.compile("^flour changed")])
    flour = rows.nth(1)
    await expect(flour.locator("del")).to_have_text("coarse")
    await expect(flour.locator("ins")).to_have_text("fine")
    await page.select_option("#one", "2")
    await page.get_by_role("button", name="Compare").click()
    await expect(page.locator("#inputs")).to_contain_text("Runs 2 and 2 were given the same.")


@pytest.mark.parametrize("again", [False, True])
async def test_an_effect_that_landed_is_kept_unless_it_is_to_be_repeated(
    served: Served, tabs: Tabs, again: bool
) -> None:
    handle = await served.rd.enqueue("publish", {"slug": "tides"})
    await became(served.rd, handle.id, "dead")
    world_of(served.rd).broken.discard("post")
    page = await at(tabs, served, handle.id)
    effects = page.locator("section", has=page.locator("#effects-title"))
    await expect(effects.locator("tbody tr")).to_contain_text(re.compile("post.*landed.*kept", re.DOTALL))
    await page.get_by_role("link", name="Edit and redrive…").click()
    await write(page, {"slug": "ebb"})
    await expect(page.locator("#preview")).to_contain_text("although it has landed")
    if again:
        await page.get_by_label(re.compile("do post again")).check()
    await page.get_by_role("button", name="Redrive with this input").click()
    await became(served.rd, handle.id, "done")
    assert world_of(served.rd).posted == (["tides", "ebb"] if again else ["tides"])


# ---- secrets


async def test_secrets_are_masked_on_the_page_and_in_the_download_and_survive_an_edit(
    served: Served, tabs: Tabs, tmp_path: Path
) -> None:
    (id,) = await buried(served.rd, 1, api_key=SECRET)
    page = await at(tabs, served, id)
    assert SECRET not in await page.content()
    await expect(page.locator("section", has=page.locator("#payload-title"))).to_contain_text("[redacted]")
    async with page.expect_download() as started:
        await page.get_by_role("link", name="Download").click()
    download = await started.value
    await download.save_as(tmp_path / "payload.json")
    assert json.loads((tmp_path / "payload.json").read_text()) == {"stone": 0, "api_key": "[redacted]"}
    await page.goto(f"/jobs/{id}/edit")
    assert SECRET not in await page.content()
    await write(page, {"stone": 9, "api_key": "[redacted]"})
    await expect(page.locator("#preview")).to_contain_text("stone: 0 → 9")
    await page.get_by_role("button", name="Redrive with this input").click()
    await expect(page.locator(".flash")).to_contain_text("Edited and redriven")
    (edit,) = (await served.rd.jobs.get(id)).changes
    assert edit["payload"] == {"stone": 9, "api_key": SECRET}


# ---- held


@pytest.mark.parametrize(("label", "answer"), [("Approve", "yes"), ("Reject", "no")])
async def test_a_question_is_answered(served: Served, tabs: Tabs, label: str, answer: str) -> None:
    handle = await served.rd.enqueue("ask", {})
    await became(served.rd, handle.id, "held")
    page = await at(tabs, served, handle.id)
    await expect(page.locator(".question")).to_have_text("Refund 900 euros?")
    await expect(page.locator(".job-question")).to_contain_text("900")
    await act(page, label, "as agreed")
    await expect(page.locator(".chip-done")).to_be_visible()
    assert (await became(served.rd, handle.id, "done")).result == answer
    await expect(page.locator("aside")).to_contain_text("by owner")


async def test_an_outcome_nobody_knew_is_closed_by_a_person_who_says_how_they_know(served: Served, tabs: Tabs) -> None:
    handle = await served.rd.enqueue("pay", {"euros": 5})
    await became(served.rd, handle.id, "held")
    page = await at(tabs, served, handle.id)
    await act(page, "It landed")
    said = page.locator("dialog[open]").get_by_label("How do you know")
    assert await said.evaluate("field => field.matches(':focus:invalid')"), "it is asked for before anything is sent"
    await said.fill("seen in the books")
    await said.press("Enter")
    await expect(page.locator(".chip-done")).to_be_visible()
    assert (await served.rd.jobs.story(handle.id))[-1].why == "seen in the books"


async def test_what_did_not_land_runs_again(served: Served, tabs: Tabs) -> None:
    handle = await served.rd.enqueue("pay", {"euros": 5})
    await became(served.rd, handle.id, "held")
    page = await at(tabs, served, handle.id)
    await act(page, "It did not land", "not in the books")
    await expect(page.locator("#run-2")).to_be_visible()


# ---- the rest


async def test_notes_and_cancelling_what_waits(still: Served, tabs: Tabs) -> None:
    handle = await still.rd.enqueue("wait_for_it", {}, delay=3600)
    page = await at(tabs, still, handle.id)
    await expect(page.locator(".job-standing")).to_have_text("Runs in 1 h.")
    await page.fill("#note-text", "not before noon")
    await page.get_by_role("button", name="Note it").click()
    await expect(page.locator(".kind-note")).to_contain_text("not before noon")
    await act(page, "Cancel", "no longer wanted", "Cancel the job")
    await expect(page.locator(".chip-discarded")).to_be_visible()
    assert (await still.rd.jobs.get(handle.id)).because == "cancelled"


async def test_a_note_that_is_sent_by_a_double_click_is_written_once(still: Served, tabs: Tabs) -> None:
    letter = await still.rd.dead.add("old-1", {"stone": 1}, "trouble", task="mill")
    page = await at(tabs, still, letter.id)
    await page.wait_for_load_state("load")
    await page.fill("#note-text", "asked the miller")
    await page.get_by_role("button", name="Note it").dblclick()
    await expect(page.locator(".flash")).to_contain_text("Noted.")
    await page.locator("a.crumb-group").click()
    await expect(page).to_have_url(re.compile("/groups/"))
    await page.wait_for_load_state("load")
    await page.fill("#note-text", "it is the stone")
    await page.get_by_role("button", name="Note it").dblclick()
    await expect(page.locator(".flash")).to_contain_text("Noted.")
    await page.reload()
    assert [note.text for note in await still.rd.dead.notes(letter.id)] == ["asked the miller"]
    (view,) = await still.rd.groups.list()
    assert [said.why for said in view.state.story if said.what == "noted"] == ["it is the stone"]


async def test_a_verb_that_came_too_late_says_why_and_changes_nothing(still: Served, tabs: Tabs) -> None:
    async with still.rd.worker():
        (id,) = await buried(still.rd, 1)
    page = await at(tabs, still, id)
    await press(page, "Discard")
    await still.rd.dead.redrive(id)
    await page.locator("dialog[open]").get_by_role("button", name="Discard").click()
    await expect(page.locator(".flash-bad")).to_contain_text("only a dead job can be discarded")
    assert (await still.rd.jobs.get(id)).state == "waiting"


async def test_a_large_payload_is_shown_in_bounds(served: Served, tabs: Tabs) -> None:
    payload = {"stone": 1, "flour": "x" * 100_000, "deep": [[[{"n": n}] for n in range(500)]]}
    job = await served.rd.dead.add("big", payload, "too much", task="elsewhere")
    page = await at(tabs, served, job.id)
    assert len(await page.content()) < 200_000
    await expect(page.locator(".tree")).to_contain_text("download it to see them")


async def test_a_job_that_does_not_exist_is_said_so(served: Served, tabs: Tabs) -> None:
    tabs.forgiven.append("404")
    page = await tabs.open(served, "/jobs/feedfeedfeedfeedfeedfeedfeedfeed")
    await expect(page.locator("h1")).to_have_text("This page does not exist")


async def test_a_phone_shows_all_of_it(served: Served, tabs: Tabs) -> None:
    (id,) = await buried(served.rd, 1, flour="f" * 3000)
    for path in (f"/jobs/{id}", f"/jobs/{id}/edit"):
        page = await tabs.open(served, path, viewport={"width": 360, "height": 740})
        await expect(page.locator("h1")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.behaviour("V-5")
async def test_a_job_shows_three_buttons_and_a_menu(served: Served, tabs: Tabs) -> None:
    (id,) = await buried(served.rd, 1)
    page = await at(tabs, served, id)
    shown = page.locator(".job-verbs > a, .job-verbs > button")
    await expect(shown).to_have_count(3)
    await expect(shown.first).to_have_class(re.compile("button-primary"))
    await page.locator("#more-verbs > summary").press("Enter")
    await expect(page.locator("#more-verbs .button")).to_contain_text(["Defer", "Discard"])


@pytest.mark.behaviour("V-4")
async def test_what_was_changed_in_one_is_done_to_all_like_it(still: Served, tabs: Tabs) -> None:
    async with still.rd.worker():
        ids = await buried(still.rd, 3)
    page = await tabs.open(still, f"/jobs/{ids[0]}/edit")
    before = json.loads(await page.input_value("#payload"))
    await page.fill("#payload", json.dumps({**before, "stone": 99}))
    await page.get_by_role("button", name="Edit all 3 like this one…").click()
    await expect(page.locator("#patch")).to_have_value('{\n  "stone": 99\n}')
    await expect(page.locator("#preview")).to_contain_text("3 of 3 would change")
    await page.get_by_role("button", name="Edit and redrive them").click()
    await expect(page).to_have_url(re.compile("/redrives/"))
    await still.rd.redrives.advance()
    await page.goto("/acts")
    await page.locator(".act").first.get_by_role("button", name="Undo").click()
    await page.locator("dialog[open]").get_by_role("button", name="Undo").click()
    await expect(page.locator(".flash")).to_contain_text("Taken back 3.")
    assert [str((await still.rd.jobs.get(id)).state) for id in ids] == ["dead"] * 3
