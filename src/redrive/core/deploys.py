"""Says when the application last changed: the first time that a new version of it ran. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

KEPT: Final = 20
"""So many versions are remembered, the newest ones. One that comes back after that counts as new."""


class Deploy(msgspec.Struct, frozen=True):
    """A version of the application and the first time that a worker ran it; without a version, a worker's start."""

    at: float
    version: str | None = None


def with_version(known: tuple[Deploy, ...], version: str, at: float) -> tuple[Deploy, ...]:
    """Adds a version that a worker runs; what was given comes back unchanged where it is known."""
    if any(deploy.version == version for deploy in known):
        return known
    return tuple(sorted((*known, Deploy(at, version)), key=lambda deploy: deploy.at)[-KEPT:])


def last_deploy(known: Iterable[Deploy], starts: Iterable[float]) -> Deploy | None:
    """The newest version; where no worker ever named one, the last start of a worker; None where there was none."""
    latest = max(known, key=lambda deploy: deploy.at, default=None)
    started = max(starts, default=None)
    return latest or (None if started is None else Deploy(started))
