"""Which dead letters an address means; a JSON value as lines; plans that are too large to look at each letter."""

import math
from typing import Any

import pytest
from starlette.datastructures import ImmutableMultiDict

import redrive
from redrive.doors.dashboard.bulk_actions import LOOKED_AT
from redrive.doors.dashboard.job import CHARACTERS, ENTRIES, LONG, LONGEST, MOST_NODES, Node, make_tree
from redrive.doors.dashboard.requests import ChosenDeadLetters, make_scope, read_choice, read_instant
from redrive.errors import InvalidInput
from tests.support import soon
from tests.web.serving import serving

NOW = 1_800_000_000.0


def said(*pairs: tuple[str, str]) -> ChosenDeadLetters:
    return read_choice(ImmutableMultiDict(pairs))


def test_an_address_says_filters_ids_or_all() -> None:
    found = said(("queue", " mail "), ("detail", ""), ("ids", "a"), ("ids", "b"), ("ids", "a"), ("other", "x"))
    assert found == ChosenDeadLetters({"queue": "mail"}, ("a", "b"))
    assert found.query == {"queue": "mail", "ids": ["a", "b"]}
    assert found.active == [("queue", "queue mail")]
    whole = said(("because", "too_old"), ("all", "1"))
    assert whole.query == {"because": "too_old", "all": "1"} and not whole.nothing
    assert whole.active == [("because", "because too old")]
    assert said().nothing and said(("queue", "x")).nothing


@pytest.mark.parametrize(
    ("pairs", "field"),
    [([("queue", "q" * 501)], "queue"), ([("ids", str(n)) for n in range(1001)], "ids")],
)
def test_what_cannot_be_meant_is_refused_by_name(pairs: list[tuple[str, str]], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        said(*pairs)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90min", NOW - 5400), ("24h", NOW - 86400), ("7d", NOW - 604800), ("2w", NOW - 1209600),
        ("2027-01-15T08:00:00Z", NOW), ("2027-01-15T09:00:00+01:00", NOW), ("2027-01-15T08:00", NOW),
    ],
)  # fmt: skip
def test_a_time_is_a_span_or_an_instant(text: str, at: float) -> None:
    assert math.isclose(read_instant(text, NOW), at)


@pytest.mark.parametrize("text", ["yesterday", "h", "-1h", "9999999h", "2027-13-01", "24 hours", "٣h"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_instant(text, NOW)


async def test_acting_on_nothing_is_refused_and_on_everything_is_said(rd: redrive.Redrive) -> None:
    with pytest.raises(InvalidInput):
        await make_scope(rd, ChosenDeadLetters())
    assert await make_scope(rd, ChosenDeadLetters(all=True)) == {"all": True}
    assert await make_scope(rd, ChosenDeadLetters({"session": "s"}, all=True)) == {"session_id": "s"}
    assert await make_scope(rd, ChosenDeadLetters({"session": "s"}, ("a",))) == {"ids": ["a"]}


# ---- a value as lines


def lines(node: Node) -> int:
    return 1 + sum(map(lines, node.inner))


def characters(node: Node) -> int:
    return len(node.text) + sum(map(characters, node.inner))


def test_a_value_is_lines_that_open_and_close() -> None:
    found = make_tree({"name": "ada", "n": 1, "yes": True, "none": None, "list": [1, {"a": "b"}], "long": "x\ny"})
    assert [(node.name, node.kind, node.text) for node in found.inner] == [
        ("name", "text", "ada"), ("n", "number", "1"), ("yes", "word", "true"), ("none", "word", "null"),
        ("list", "list", "2 entries"), ("long", "text", "x\ny"),
    ]  # fmt: skip
    assert found.open and found.inner[4].open and found.inner[5].long


@pytest.mark.parametrize(
    "value",
    [
        list(range(100_000)),
        {str(n): n for n in range(5000)},
        [[[n] * 20 for n in range(200)]] * 50,
        ["x" * 9_000] * 100,
        "x" * 1_000_000,
    ],
)
def test_however_large_it_is_the_lines_are_bounded_and_the_rest_is_counted(value: Any) -> None:
    found = make_tree(value)
    assert lines(found) <= MOST_NODES + ENTRIES
    assert characters(found) <= CHARACTERS + LONGEST + LONG * lines(found)
    if isinstance(value, str):
        assert len(found.text) == LONGEST and found.more == len(value) - LONGEST
    else:
        assert len(found.inner) + found.more == len(value)


# ---- plans


async def test_a_plan_for_very_many_looks_at_none_of_them_and_still_starts(rd: redrive.Redrive) -> None:
    number = LOOKED_AT + 1
    lines = [f'{{"job_id": "{n}", "payload": {{"n": {n}}}, "error_class": "Trouble"}}' for n in range(number)]
    await rd.dead.import_(lines, task="broken")
    async with serving(rd, worker=False, dashboard=True) as served:
        shown = (await soon(served.client.get("/dead/act?verb=redrive&all=1"))).text
        assert f"Redrive {number:,} dead letters?" in shown
        assert "not checked one by one" in shown and 'name="token"' not in shown
        answer = await soon(
            served.client.post(
                "/dead/act", data={"verb": "redrive", "all": "1", "canary": "20"}, headers={"origin": served.url}
            )
        )
    assert answer.status_code == 303
    (run,) = await rd.redrives.list()
    assert answer.headers["location"] == f"/redrives/{run.id}"
    assert (run.total, run.canary and run.canary.size) == (number, 20)
