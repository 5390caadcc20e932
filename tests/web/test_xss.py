"""Everything from a job is text: the corpus in every field, and no page of which a browser would obey any of it."""

import html

import pytest

import redrive
from tests.support import soon
from tests.web.hostile import ALL, CORPUS, obeyed, pages, plant
from tests.web.serving import TOKEN, Served, serving


@pytest.fixture
async def planted(rd: redrive.Redrive) -> redrive.Redrive:
    await plant(rd)
    return rd


async def read(served: Served, path: str) -> str:
    answer = await soon(served.client.get(path, headers={"accept": "text/html"}))
    assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy
    return answer.text


async def test_no_page_holds_anything_that_a_browser_would_obey(planted: redrive.Redrive) -> None:
    async with serving(planted, worker=False, dashboard=True) as served:
        paths = await pages(planted)
        assert len(paths) > 60
        shown = {path: await read(served, path) for path in paths}
    found = {path: obeyed(text) for path, text in shown.items()}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}
    told = html.unescape("".join(shown.values()))
    assert [snippet for snippet in CORPUS if snippet not in told] == [], "what was never shown was not tried"


FIXED = ("category", "because")
"""Filters that have a fixed list of words: another is refused."""


async def test_what_an_address_says_is_text_too(planted: redrive.Redrive) -> None:
    async with serving(planted, worker=False, dashboard=True) as served:
        for name in ("task", "queue", "agent", "session", "owner", "error_class", "category", "because", "detail"):
            for snippet in CORPUS:
                answer = await soon(served.client.get("/dead", params={name: snippet}))
                assert answer.status_code == (422 if name in FIXED else 200), (name, snippet)
                assert obeyed(answer.text) == [], (name, snippet)
        for params in ({"cursor": ALL}, {"group": ALL[:64]}, {"since": ALL[:64]}, {"groups": ALL}):
            answer = await soon(served.client.get("/dead", params=params))
            assert answer.status_code in (200, 422) and obeyed(answer.text) == []
        for path in ("/jobs/", "/groups/", "/redrives/", "/nowhere/"):
            for snippet in CORPUS:
                answer = await soon(served.client.get(path + snippet.replace("/", "%2F").replace("?", "%3F")))
                assert answer.status_code in (404, 405, 422), (path, snippet)
                if answer.headers["content-type"].startswith("text/html"):
                    assert obeyed(answer.text) == []


async def test_what_a_form_says_comes_back_as_text(planted: redrive.Redrive) -> None:
    """The line that says what happened, the name somebody gives themselves, and an edit that is refused."""
    (job, *_) = (await planted.dead.list(limit=1)).jobs
    async with serving(planted, worker=False, dashboard=True) as served:
        headers = {"origin": served.url, "referer": f"{served.url}/jobs/{job.id}"}

        async def send(path: str, **fields: str) -> str:
            answer = await soon(served.client.post(path, data=fields, headers=headers, follow_redirects=True))
            return str(answer.text)

        for snippet in CORPUS:
            for path, fields in (
                ("/me", {"name": snippet[:60]}),
                (f"/jobs/{job.id}/act/reassign", {"agent": snippet, "why": snippet}),
                (f"/jobs/{job.id}/act/{snippet.replace('/', '')}", {"why": snippet}),
                (f"/jobs/{job.id}/preview", {"payload": snippet}),
                (f"/jobs/{job.id}/edit", {"payload": f'{{"a": {snippet}', "why": snippet}),
            ):
                assert obeyed(await send(path, **fields)) == [], (path, snippet)


@pytest.mark.parametrize("snippet", [snippet for snippet in CORPUS if "<" in snippet and "&lt;" not in snippet])
def test_the_control_finds_what_is_not_escaped(snippet: str) -> None:
    page = f"<html><body><p title='x'>{snippet}</p></body></html>"
    if obeyed(page) == []:
        assert snippet.startswith(("<form", "<div"))  # seen by the browser's own test, where htmx would act on it


def test_the_token_is_in_no_page_of_ours() -> None:
    assert TOKEN not in ALL
