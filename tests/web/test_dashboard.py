"""What the dashboard says, without a browser: its words, its sentence, and that nothing it must name lacks a name."""

import asyncio
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import redrive
from redrive.core.job import State
from redrive.core.policy import DEFAULT, Policy, Rate
from redrive.core.store import Event
from redrive.core.workflow import FlowState, StepState, StepStatus, WorkflowStatus
from redrive.doors.dashboard import words
from redrive.doors.dashboard.agents import STEP_LOOKS, make_columns
from redrive.doors.dashboard.operations import list_rules, list_waits
from redrive.doors.dashboard.overview import KINDS, describe_kind, plot_failures, plot_throughput
from redrive.doors.dashboard.rendering import STATIC
from redrive.doors.dashboard.site import Site
from redrive.doors.web.feed import Feed, Tick
from redrive.engine.worker_registry import list_living
from redrive.errors import StoreBusy
from redrive.reports.activity import MoveCount, activity
from redrive.reports.health import QueueNumbers
from redrive.reports.needs import NeedKind
from tests.support import eventually, run_sql, soon
from tests.web.serving import serving


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (0.0042, "4 ms"), (0.25, "0.2 s"), (3, "3 s"), (42.4, "42 s"), (89, "89 s"), (90, "1.5 min"),
     (600, "10 min"), (5400, "1.5 h"), (86400, "24 h"), (130_000, "1.5 d"), (14 * 86400, "14 d"), (None, "")],
)  # fmt: skip
def test_a_span_is_one_number_that_can_be_compared(seconds: float | None, said: str) -> None:
    assert words.span(seconds) == said


@pytest.mark.parametrize(
    ("at", "said"), [(1000.0, "now"), (940.0, "60 s ago"), (1030.0, "in 30 s"), (None, ""), (1000.3, "now")]
)
def test_an_instant_is_told_as_people_do(at: float | None, said: str) -> None:
    assert words.ago(at, 1000.0) == said


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (999, "999"), (9_999, "9,999"), (12_345, "12k"), (1_250_000, "1.2M"), (None, "–")]
)
def test_a_large_number_is_brief(value: float | None, said: str) -> None:
    assert words.brief(value) == said


def test_parts_of_a_whole_are_as_wide_as_they_are_many_and_never_invisible() -> None:
    found = words.shares([("done", 9_999), ("dead", 1), ("held", 0)])
    assert [part["name"] for part in found] == ["done", "dead"]
    assert found[0]["width"] == pytest.approx(99.99) and found[1]["width"] == 0.6
    assert words.shares([]) == []


def test_a_line_runs_from_edge_to_edge_with_zero_at_the_bottom() -> None:
    assert words.spark_line([0, 10, 0], 100, 20) == "M0.0 19.0 L50.0 1.0 L100.0 19.0"
    assert words.spark_line([]) == ""


# -- nothing lacks a name


def test_every_kind_of_need_and_hold_and_step_has_words() -> None:
    assert set(get_args(NeedKind)) == KINDS.keys()
    assert set(get_args(StepState)) == STEP_LOOKS.keys()


def test_one_dead_letter_is_not_called_letters() -> None:
    assert [describe_kind("dead_manual", number) for number in (1, 2)] == [
        ("dead", "dead letter"),
        ("dead", "dead letters"),
    ]
    assert describe_kind("approval", 1) == describe_kind("approval", 2) == ("held", "held for you")


def test_every_state_has_a_colour() -> None:
    css = (STATIC / "app.css").read_text("utf-8")
    quiet = {"waiting", "discarded", "purged"}
    for state in {look for look, _ in STEP_LOOKS.values()} | set(get_args(FlowState)) | {"dead", "held", "retrying"}:
        assert state in quiet or f".chip-{state}" in css, state


# -- a policy, a workflow, a plot


def test_a_policy_is_told_describe_kind() -> None:
    policy = Policy(**{**_said(DEFAULT), "concurrency": 3, "rate": Rate(10, 60.0), "scope": "store", "max_age": 1800.0})
    told = dict(list_rules(QueueNumbers("mail", policy)))
    assert told["Concurrency"] == "3 at once in the whole store"
    assert told["Rate"] == "10 in 60 s in the whole store"
    assert told["Given up after"] == "30 min"
    assert dict(list_rules(QueueNumbers("mail", DEFAULT)))["Concurrency"] == "no limit of its own"
    assert list_waits(DEFAULT) == ["2 s", "4 s", "8 s", "16 s"]
    assert len(list_waits(Policy(**{**_said(DEFAULT), "max_attempts": 50}))) == 9


def _said(policy: Policy) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in Policy.__struct_fields__}


def step(name: str, *after: str) -> StepStatus:
    return StepStatus(name, "task", name, "PENDING", after)


def test_steps_stand_in_columns_by_what_they_wait_for() -> None:
    steps = (step("last", "right", "left"), step("first"), step("left", "first"), step("right", "left"), step("alone"))
    found = make_columns(WorkflowStatus("id", "flow", "running", steps, 0.0))
    assert [[each.name for each in column] for column in found] == [["first", "alone"], ["left"], ["right"], ["last"]]
    ring = WorkflowStatus("id", "flow", "running", (step("a", "b"), step("b", "a")), 0.0)
    assert [[each.name for each in column] for column in make_columns(ring)] == [["a", "b"]]


def test_the_hour_that_goes_on_is_plotted() -> None:
    """Who began a minute ago saw 300 a minute beside two days of nothing."""
    now = 1_800_000_000.0 // 3600 * 3600 + 60
    moved = [MoveCount(now - 3660, "mail", "succeeded", 5), MoveCount(now - 60, "mail", "succeeded", 300)]
    moved.append(MoveCount(now - 60, "mail", "buried", 2))
    shown = activity(now, 3, 3600.0, moved, {})
    for plotted, last in ((plot_throughput(shown), [0, 5, 300]), (plot_failures(shown), [0, 0, 0])):
        hours = msgspec.json.decode(plotted)
        assert hours["series"][0]["values"] == last and hours["x"] == shown.starts and len(shown.starts) == 3
    assert msgspec.json.decode(plot_failures(shown))["series"][1]["values"] == [0, 0, 2]


# -- many open pages cost as much as one


async def test_many_who_ask_at_once_are_answered_once(rd: redrive.Redrive) -> None:
    site, asked, go = Site(rd, Feed(rd)), [], asyncio.Event()

    async def ask() -> int:
        asked.append(1)
        await go.wait()
        return len(asked)

    waiting = [asyncio.create_task(site.read_cached("numbers", ask)) for _ in range(20)]
    await eventually(lambda: bool(asked), "the first to ask")
    waiting[0].cancel()  # who leaves early takes the answer from nobody
    go.set()
    assert await soon(asyncio.gather(*waiting[1:])) == [1] * 19
    assert await site.read_cached("numbers", ask) == 1 and len(asked) == 1


@pytest.mark.parametrize("acted", [True, False])
async def test_nobody_sees_what_is_older_than_what_they_were_told(acted: bool, rd: redrive.Redrive) -> None:
    site, state, began, go = Site(rd, Feed(rd)), ["before"], asyncio.Event(), asyncio.Event()

    async def ask() -> str:
        seen = state[-1]
        began.set()
        await go.wait()
        return seen

    old = asyncio.create_task(site.read_cached("numbers", ask))
    await soon(began.wait())
    state.append("after")
    event = Event("1.1", "enqueued", 0.0, "job", "mail", "send", State.waiting, 0, 0)
    site.drop_all() if acted else site.drop_stale(Tick("1.1", [event]))
    new = asyncio.create_task(site.read_cached("numbers", ask))
    go.set()
    assert await soon(new) == "after"
    assert await soon(old) == "before"
    assert await soon(site.read_cached("numbers", ask)) == "after"


async def test_a_question_that_fails_is_asked_again(rd: redrive.Redrive) -> None:
    site, tries = Site(rd, Feed(rd)), []

    async def ask() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise StoreBusy("another process holds it")
        return 7

    with pytest.raises(StoreBusy):
        await site.read_cached("numbers", ask)
    assert await site.read_cached("numbers", ask) == 7


async def test_a_worker_that_knows_no_task_of_theirs_does_not_make_due_jobs_well(database: Path) -> None:
    """`redrive serve` without an app has such a worker: it knows only the built-in delivery."""
    async with redrive.Redrive(database) as rd, serving(rd, dashboard=True) as served:
        await rd.enqueue_many("greet", [{}, {}])

        async def announced() -> bool:
            return bool(await list_living(rd.store, rd.clock.now()))

        await eventually(announced)
        first = await soon(served.client.get("/"))
        assert "2 jobs are due, and no worker runs them." in first.text and "All is well" not in first.text
        assert "No live worker takes them." in first.text
        assert (await served.get("/v1/queues"))["items"][0]["unattended"] == 2


@pytest.mark.parametrize("address", ["/redrives/nosuch", f"/redrives/{'0' * 32}", "/groups/0123456789abcdef"])
async def test_what_an_address_names_and_nobody_knows_is_not_there(database: Path, address: str) -> None:
    async with redrive.Redrive(database) as rd, serving(rd, dashboard=True) as served:
        answer = await soon(served.client.get(address))
        assert answer.status_code == 404 and "there is no" in answer.text.lower()
        assert (await soon(served.client.get("/dead", params={"group": "0123456789abcdef"}))).status_code == 422


async def test_a_damaged_payload_keeps_no_page_from_opening(database: Path) -> None:
    async with redrive.Redrive(database) as rd, serving(rd, worker=False, dashboard=True) as served:
        ids = [(await rd.enqueue("greet", {"name": "x"})).id for _ in range(2)]
        run_sql(
            database,
            f"UPDATE jobs SET payload = '{{\"na' WHERE id = '{ids[0]}'",
            f"UPDATE jobs SET payload = CAST(x'7b22c3227d' AS TEXT) WHERE id = '{ids[1]}'",
        )
        for id, left in zip(ids, ("{&#34;na", "{&#34;\ufffd&#34;}"), strict=True):
            answer = await soon(served.client.get(f"/jobs/{id}"))
            assert answer.status_code == 200 and left in answer.text, answer.text
            assert (await soon(served.client.get(f"/jobs/{id}/download/payload"))).status_code == 200
        assert len((await served.get("/v1/jobs"))["items"]) == 2
