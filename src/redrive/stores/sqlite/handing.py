"""From the store's threads to whoever waits in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def handed(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> bool:
    """Let the loop make this call; False where it was closed, so that nobody waits there any more."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False
    return True
