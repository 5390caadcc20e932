"""The bus alone: patterns, isolation, the ring, the counts."""

import asyncio

import pytest

from redrive.core.job import Job, State
from redrive.core.lifecycle import Transition
from redrive.engine.bus import Bus, BusEvent, make_move_event
from tests.support import eventually


def event(type: str = "enqueued", queue: str = "mail", id: str = "1") -> BusEvent:
    return BusEvent(type, queue, 0.0, id)


@pytest.mark.parametrize(
    ("pattern", "type", "queue", "heard"),
    [
        ("*", "enqueued", "mail", True),
        ("enqueued", "enqueued", "mail", True),
        ("enqueued", "retry", "mail", False),
        ("*.mail", "retry", "mail", True),
        ("*.mail", "retry", "mails", False),
        ("dead_*", "dead_letter", "mail", True),
        ("dead_letter.m*l", "dead_letter", "mail", True),
        ("[er]*.mail", "retry", "mail", True),
        ("retry.a.b", "retry", "a.b", True),
        ("retry", "retry", "a.b", True),
        ("Enqueued", "enqueued", "mail", False),
    ],
)
@pytest.mark.behaviour("000-76")
def test_patterns(pattern: str, type: str, queue: str, heard: bool) -> None:
    bus, got = Bus(), []
    bus.subscribe(pattern, got.append)
    bus.publish(event(type, queue))
    assert bool(got) is heard


def test_the_ring_and_the_counts() -> None:
    bus = Bus(ring=3)
    for number in range(5):
        bus.publish(event(id=str(number)))
    bus.publish(event("retry", "web"))
    assert [each.job_id for each in bus.recent] == ["3", "4", "1"]
    assert bus.metrics() == {"mail": {"enqueued": 5}, "web": {"retry": 1}}


def test_a_subscriber_may_leave_while_it_is_told() -> None:
    bus, got = Bus(), []

    def once(event: BusEvent) -> None:
        got.append("once")
        subscription.close()

    subscription = bus.subscribe("*", once)
    bus.subscribe("*", lambda event: got.append("always"))
    bus.publish(event())
    bus.publish(event())
    assert got == ["once", "always", "always"]


def test_without_a_loop_an_async_subscriber_fails_alone() -> None:
    """Told from a thread that runs no loop: counted, and the others hear it."""
    bus, got = Bus(), []

    class Later:
        def __await__(self):  # type: ignore[no-untyped-def]
            yield

    bus.subscribe("*", lambda event: Later())
    bus.subscribe("*", got.append)
    bus.publish(event())
    assert (len(got), bus.subscriber_failures) == (1, 1)


async def test_async_subscribers_run_and_their_errors_are_counted() -> None:
    bus, got = Bus(), []

    async def slow(event: BusEvent) -> None:
        await asyncio.sleep(0)
        got.append(event.job_id)
        raise ValueError

    subscription = bus.subscribe("*", slow)
    bus.publish(event(id="7"))
    await eventually(lambda: subscription.failures == 1)
    assert got == ["7"]


@pytest.mark.parametrize(
    ("move", "type"),
    [
        ("succeeded", "completed"), ("buried", "dead_letter"), ("imported", "dead_letter"), ("redriven", "replayed"),
        ("held_back", "held"), ("cancelled", "cancelled"), ("discarded", "discarded"),
    ],
)  # fmt: skip
def test_each_move_has_its_event(move: str, type: str) -> None:
    job = Job("id", "mail", "work", None, State.running, 2, 0.0, 1, 0.0, 0.0, "{}", attempts=2)
    heard = make_move_event(Transition(move, job, State.done, 5.0, {"attempts": 3}))
    assert (heard.type, heard.queue, heard.job_id, heard.attempt, heard.at) == (type, "mail", "id", 3, 5.0)
