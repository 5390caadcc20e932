"""What a token may do, in a real browser: pages of a low role have no buttons and say why; forms are refused."""

import pytest
from playwright.async_api import Page, expect

from redrive.core.tokens import Role
from tests.support import eventually
from tests.web.browser.conftest import Tabs
from tests.web.serving import Served

REFUSED = "Your token may not do this"
LOOKS_ONLY = "Your token may only look."


async def signed_in(tabs: Tabs, served: Served, role: Role) -> Page:
    secret = (await served.rd.tokens.add(f"{role}-er", role)).secret
    page = await tabs.visit(f"{served.url}/?token={secret}")
    await expect(page.locator(".side-who")).to_contain_text(f"{role}-er")
    return page


@pytest.fixture
async def dead(still: Served) -> Served:
    for number in range(3):
        await still.rd.dead.add(f"old-{number}", {"text": "wheel"}, "wheel stuck", task="broken")
    await still.rd.queues.pause("broken", who="eva", new=True)
    return still


async def paths(served: Served) -> tuple[str, str]:
    """The pages of a group and of one of its jobs."""
    job = (await served.rd.dead.list()).jobs[0]
    return f"/groups/{job.fingerprint}", f"/jobs/{job.id}"


async def post(page: Page, served: Served, path: str, **form: str) -> tuple[int, str]:
    """Sends a form as a script with the cookie would, and shows the answer."""
    answer = await page.context.request.post(
        f"{served.url}{path}", form=form, headers={"Origin": served.url, "Accept": "text/html"}, max_redirects=0
    )
    return answer.status, await answer.text()


async def test_who_may_look_sees_everything_and_no_working_button(dead: Served, tabs: Tabs) -> None:
    page = await signed_in(tabs, dead, "look")
    group, job = await paths(dead)
    for path in ("/dead", group, job, "/queues"):
        await page.goto(f"{dead.url}{path}")
        await expect(page.locator(".not-allowed").first).to_contain_text(LOOKS_ONLY)
        await expect(page.locator("main form[method=post]")).to_have_count(0)
        await expect(page.locator("main [commandfor]")).to_have_count(0)
    await page.goto(f"{dead.url}/dead/act?verb=redrive&all=1")
    await expect(page.locator("main .warn").last).to_contain_text("it needs the role act, and has look")
    await expect(page.locator("main form[method=post]")).to_have_count(0)


@pytest.mark.parametrize(
    ("role", "refused"),
    [
        ("look", {"redrive": True, "note": True, "pause": True, "purge": True}),
        ("act", {"redrive": False, "note": False, "pause": False, "purge": True}),
        ("purge", {"redrive": False, "note": False, "pause": False, "purge": False}),
    ],
)
async def test_a_form_sent_directly_is_refused_with_one_page(
    dead: Served, tabs: Tabs, role: Role, refused: dict[str, bool]
) -> None:
    page = await signed_in(tabs, dead, role)
    _, job = await paths(dead)
    forms = {
        "redrive": ("/dead/act", {"verb": "redrive", "all": "1"}),
        "note": (f"{job}/act/note", {"text": "seen"}),
        "pause": ("/queues/resume", {"queue": "broken"}),
        "purge": ("/dead/purge", {"verb": "purge", "all": "1", "confirm": "none"}),
    }
    for name, (path, form) in forms.items():
        status, text = await post(page, dead, path, **form)
        assert (status == 403) is refused[name], (name, status)
        if refused[name]:
            assert text.count("<h1>") == 1 and REFUSED in text
            assert f"role {'purge' if name == 'purge' else 'act'}" in text and f"has the role {role}" in text
        else:
            assert status == 303, text


async def test_who_may_act_redrives_and_does_not_purge(dead: Served, tabs: Tabs) -> None:
    page = await signed_in(tabs, dead, "act")
    await page.goto(f"{dead.url}/dead")
    await expect(page.locator(".not-allowed")).to_contain_text("needs the role purge")
    await expect(page.get_by_role("button", name="Purge…")).to_have_count(0)
    await page.locator("[data-all]").check()
    await page.get_by_role("button", name="Redrive…", exact=True).click()
    await page.get_by_role("button", name="Start").click()
    await expect(page.locator("h1.run-title")).to_be_visible()
    (run,) = await dead.rd.redrives.list()
    assert (run.total, run.who) == (3, "act-er")


async def test_who_may_purge_purges(dead: Served, tabs: Tabs) -> None:
    page = await signed_in(tabs, dead, "purge")
    await page.goto(f"{dead.url}/dead/act?verb=purge&all=1")
    await page.get_by_label("Type 3 to confirm").fill("3")
    await page.get_by_role("button", name="Purge", exact=True).click()
    await expect(page.locator("#flash")).to_contain_text("Purged 3 dead letters for good.")

    async def gone() -> bool:
        return not (await dead.rd.dead.list()).jobs

    await eventually(gone, "the dead letters to be gone")
