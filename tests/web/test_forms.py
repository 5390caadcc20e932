"""What a form of the dashboard may send: whatever it is, it is done or refused in words, and leads back to a page."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest

import redrive
from tests.stores.jobs import a_dead_job
from tests.support import eventually, soon
from tests.web.serving import Served, serving

GROUP = "5" * 16


@pytest.fixture
async def pages(rd: redrive.Redrive) -> AsyncIterator[Served]:
    await rd.store.insert([a_dead_job(fingerprint=GROUP, payload='{"n":1}')])
    async with serving(rd, worker=False, dashboard=True) as served:
        yield served


async def sent(pages: Served, path: str, *, referer: str | None = None, **form: str) -> tuple[httpx2.Response, str]:
    """The answer, and what the next page would say."""
    headers = {"referer": f"{pages.url}/dead" if referer is None else referer}
    answer = await soon(pages.client.post(path, data=form, headers=headers))
    said = answer.cookies.get("redrive_said")
    pages.client.cookies.clear()
    if said is None:
        return answer, ""
    return answer, msgspec.json.decode(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))["text"]


async def a_letter(pages: Served) -> str:
    return (await pages.rd.dead.list()).jobs[0].id


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e9", "9" * 400])
@pytest.mark.parametrize(
    ("path", "form", "field"),
    [
        ("/dead/act", {"verb": "defer", "new_owner": "ann", "all": "1"}, "days"),
        ("/dead/act", {"verb": "redrive", "all": "1"}, "canary"),
        (f"/groups/{GROUP}/ignore", {}, "count"),
    ],
)
async def test_a_number_that_is_none_is_refused_where_it_was_written(
    pages: Served, path: str, form: dict[str, Any], field: str, number: str
) -> None:
    if (field, number) == ("count", "1e9"):
        return  # so many more may die
    answer, said = await sent(pages, path, **form, **{field: number})
    assert (answer.status_code, answer.headers["location"]) == (303, "/dead")
    assert said.lower().startswith(f"not done. {field}:")


@pytest.mark.parametrize(
    ("path", "form", "said"),
    [
        ("/dead/act", {"verb": "redrive", "all": "1", "canary": "2.5"}, "Canary: '2.5' is not a whole number"),
        ("/dead/act", {"verb": "redrive", "all": "1", "pass_rate": "0"}, "Pass_rate: 0 % is not above 0"),
        ("/dead/act", {"verb": "redrive", "all": "1", "pass_rate": "150"}, "Pass_rate: 150 % is not above 0"),
        (f"/groups/{GROUP}/ignore", {"count": "2.5"}, "Count: '2.5' is not a whole number"),
    ],
)
async def test_no_other_number_is_taken_than_the_one_that_was_written(
    pages: Served, path: str, form: dict[str, Any], said: str
) -> None:
    _, told = await sent(pages, path, **form)
    assert told.startswith(f"Not done. {said}")
    assert not await pages.rd.redrives.list()
    assert not (await pages.rd.dead.acts())


@pytest.mark.parametrize("verb", ["landed", "not_landed"])
async def test_who_says_what_became_of_it_says_how_they_know(pages: Served, verb: str) -> None:
    id = await a_letter(pages)
    _, told = await sent(pages, f"/jobs/{id}/act/{verb}", why=" ")
    assert told == "Not done. Why: say how you know; it stays with the job"
    assert (await pages.rd.jobs.get(id)).state == "dead"


async def test_one_letter_is_purged_by_a_sentence_about_one(pages: Served) -> None:
    _, told = await sent(pages, "/dead/purge", all="1", confirm="2")
    assert told == "Not done. Confirm: type 1 to purge 1 dead letter"


@pytest.mark.parametrize(
    ("referer", "there"),
    [
        ("{url}/dead?queue=mail", "/dead?queue=mail"),
        ("{url}//evil.example/x", "/evil.example/x"),
        ("{url}/\\evil.example", "/%5Cevil.example"),
        ("http://evil.example/dead", "/"),
        ("http://[", "/"),
        ("http://[nonsense]/dead", "/"),
        ("", "/"),
    ],
)
async def test_a_form_leads_back_to_a_page_of_ours_and_never_elsewhere(pages: Served, referer: str, there: str) -> None:
    answer, said = await sent(pages, "/me", referer=referer.format(url=pages.url), name="ann")
    assert (answer.status_code, answer.headers["location"]) == (303, there)
    assert "recorded as owner (as ann)" in said


@pytest.mark.parametrize("token", [{}, {"token": ""}, {"token": "another"}])
async def test_a_purge_without_the_token_of_its_plan_purges_nothing(pages: Served, token: dict[str, str]) -> None:
    """The number alone may be that of other letters than somebody has seen."""
    id = await a_letter(pages)
    _, said = await sent(pages, "/dead/purge", ids=id, confirm="1", **token)
    assert said.startswith("Not done. Confirm:") and (await pages.rd.jobs.get(id)).state == "dead"
    plan = await pages.rd.dead.purge_plan([id])
    _, said = await sent(pages, "/dead/purge", ids=id, confirm="1", token=plan.token)
    assert said == "Purged 1 dead letter for good."


@pytest.mark.behaviour("T-19d")
async def test_an_input_with_a_key_twice_is_told_beside_it(pages: Served) -> None:
    id = await a_letter(pages)
    for path in (f"/jobs/{id}/preview", f"/jobs/{id}/edit"):
        answer, _ = await sent(pages, path, payload='{"n": 1, "n": 2}')
        assert "twice" in answer.text
    assert (await pages.rd.jobs.get(id)).state == "dead"


async def test_half_a_letter_in_an_input_is_told_beside_it(pages: Served) -> None:
    """What UTF-8 cannot write: JSON may spell one half of a pair, and nothing can keep it."""
    id = await a_letter(pages)
    for path in (f"/jobs/{id}/preview", f"/jobs/{id}/edit"):
        answer, _ = await sent(pages, path, payload=r'{"n": "\ud800"}')
        assert answer.status_code in (200, 422)
        assert "It cannot be edited so" in answer.text
    assert (await pages.rd.jobs.get(id)).state == "dead"


async def test_a_browser_that_leaves_in_the_middle_of_a_form_is_no_defect(
    pages: Served, caplog: pytest.LogCaptureFixture
) -> None:
    await pages.break_off("/me", "application/x-www-form-urlencoded", "name=a")
    await eventually(lambda: "is not complete" in caplog.text)
    assert "Traceback" not in caplog.text
