"""The page of a group: its main button does what its advice says, and what a person has settled is said."""

import re
from html import unescape

import pytest

import redrive
from tests.support import soon
from tests.web.serving import Served, serving


async def primary(served: Served, fingerprint: str) -> str:
    """The words on the main button."""
    page = unescape((await soon(served.client.get(f"/groups/{fingerprint}"))).text)
    verbs = re.search(r'<div class="job-verbs".*?</header>', page, re.DOTALL)
    assert verbs is not None
    found = re.findall(r'<(?:a|button)[^>]*class="button[^"]*button-primary[^"]*"[^>]*>([^<]*)<', verbs[0])
    return str(found[0]) if found else ""


async def buried(rd: redrive.Redrive, number: int, error: type[Exception]) -> str:
    @rd.task("print", max_attempts=1, comebacks=())
    async def printed(n: int) -> None:
        raise error("the mill is broken")

    for n in range(number):
        await printed.enqueue(n)
    await rd.drain()
    (view,) = await rd.groups.list()
    return view.fingerprint


@pytest.mark.parametrize(
    ("error", "button"), [(TypeError, "Look at the latest"), (ConnectionResetError, "Try 5, then the rest")]
)
async def test_the_main_button_follows_the_advice(rd: redrive.Redrive, error: type[Exception], button: str) -> None:
    fingerprint = await buried(rd, 7, error)
    async with serving(rd, worker=False, dashboard=True) as served:
        assert await primary(served, fingerprint) == button


async def test_what_worked_by_an_edit_is_edited_first(rd: redrive.Redrive) -> None:
    fingerprint = await buried(rd, 7, ValueError)
    rd.registry.handlers["print"].function = _prints
    (letter, *_) = (await rd.dead.list()).jobs
    await rd.dead.edit(letter.id, {"n": 100}, who="ada")
    await rd.drain()
    async with serving(rd, worker=False, dashboard=True) as served:
        assert await primary(served, fingerprint) == "Edit the latest…"


async def _prints(n: int) -> None:
    """The task, mended."""


async def test_a_group_that_was_resolved_does_not_say_that_it_grows(rd: redrive.Redrive) -> None:
    fingerprint = await buried(rd, 2, TypeError)
    await rd.groups.resolve(fingerprint, who="ada")
    async with serving(rd, worker=False, dashboard=True) as served:
        page = unescape((await soon(served.client.get(f"/groups/{fingerprint}"))).text)
    assert "It is marked as cured: you are told if it comes back." in page
    assert not re.search(r'class="job-standing">[^<]*(growing|It is new)', page)
