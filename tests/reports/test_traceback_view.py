"""The traceback of a failed attempt, read from what the failure keeps."""

import pytest

from redrive.core.job import Failure, Job, State
from redrive.reports.traceback_view import TraceLine, trace_link, trace_of, where

LIBRARY = Failure(
    types=("json.decoder.JSONDecodeError",),
    message="no",
    frames=("json.decoder:decode:9", "shop.orders:read:41", "shop.tasks:send:7"),
    source=(None, "return json.loads(text)", "order = read(text)"),
)


def test_each_frame_says_whose_it_is_and_its_line() -> None:
    (raised,) = trace_of(LIBRARY)
    assert raised.lines == (
        TraceLine("json.decoder", "decode", 9),
        TraceLine("shop.orders", "read", 41, yours=True, source="return json.loads(text)"),
        TraceLine("shop.tasks", "send", 7, yours=True, source="order = read(text)"),
    )


def test_where_is_the_innermost_frame_of_the_application() -> None:
    assert where(LIBRARY) == "shop.orders:41 in read: return json.loads(text)"


def test_where_is_the_raising_frame_if_no_frame_is_the_application_s() -> None:
    assert where(Failure(frames=("asyncio.tasks:wait_for:3", "asyncio.base:run:2"))) == "asyncio.tasks:3 in wait_for"


def test_causes_follow_in_order() -> None:
    raised = trace_of(Failure(types=("a.Outer",), message="x", frames=("a:f:1",), source=("",), cause=LIBRARY))
    assert [(one.summary, one.is_cause) for one in raised] == [("Outer: x", False), ("JSONDecodeError: no", True)]
    assert where(Failure(types=("a.Outer",), cause=LIBRARY)) == "shop.orders:41 in read: return json.loads(text)"


@pytest.mark.parametrize("failure", [Failure(), Failure(types=("a.B",), cause=Failure())])
def test_a_failure_without_frames_has_no_traceback(failure: Failure) -> None:
    assert trace_of(failure) == () and where(failure) is None


def _job(options: str | None) -> Job:
    return Job("a" * 32, "q", "t", None, State.dead, 2, 0.0, 1, 0.0, 0.0, None, options_json=options)


def test_a_trace_has_a_link_where_there_is_a_template() -> None:
    traced = _job('{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}')
    template = "https://traces.example.org/{trace_id}?tab=1"
    assert trace_link(template, traced) == "https://traces.example.org/0af7651916cd43dd8448eb211c80319c?tab=1"
    assert trace_link(None, traced) is None
    assert trace_link(template, _job(None)) is None
    assert trace_link(template, _job('{"traceparent":"rubbish"}')) is None
