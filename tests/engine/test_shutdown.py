"""A process that is told to end hears it, however often and wherever it is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from redrive.engine.shutdown import ShutdownWatch


@pytest.mark.behaviour("T-10d")
async def test_a_signal_may_interrupt_the_handler_of_another_signal() -> None:
    """Every line of the handler is interrupted by a second signal. One that takes a lock would wait for itself."""
    ending = ShutdownWatch(lambda: (), 60.0)
    interrupted = 0

    def handle_twice() -> None:
        sys.settrace(interrupt)
        try:
            ending.tell()
        finally:
            sys.settrace(None)

    def interrupt(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal interrupted
        if event == "line":
            sys.settrace(None)
            interrupted += 1
            ending.tell()
            sys.settrace(interrupt)
        return interrupt

    handling = threading.Thread(target=handle_twice, daemon=True)
    handling.start()
    await asyncio.to_thread(handling.join, 20.0)
    assert not handling.is_alive() and interrupted > 0


LATE = """
from redrive.engine import interrupts

interrupts.watch_own_signals()

class Late:
    def __init__(self):
        self.open = open

    def __del__(self):
        self.open("/dev/null").close()

interrupts.__dict__["zz_late"] = Late()
"""


def test_a_process_that_watched_its_signals_ends_without_complaints() -> None:
    """What is opened while the interpreter ends is an audit event, too, and by then modules are cleared."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
