"""What a process remembers of its clocks."""

from redrive.engine.trusted_time import meet_clock
from tests.support import FakeClock


def test_a_clock_is_not_taken_for_one_that_is_gone() -> None:
    """Python gives the place of a lost object to the next: readings of the one said that the other had jumped."""
    for passed in (0.0, 5_000.0) * 20:
        clock = FakeClock()
        clock.advance(passed)
        assert meet_clock(clock).wall == clock.now()
        del clock
