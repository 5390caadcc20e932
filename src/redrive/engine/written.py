"""What somebody said is written down, or they are told that nobody knows."""

from __future__ import annotations

from redrive.core.store import Commit, Put, Store, Unknown
from redrive.errors import CommitUnknown


async def written(store: Store, what: str, *puts: Put) -> None:
    """Write these documents together, whatever they were before. `what` happened then, in words."""
    (outcome,) = await store.apply([Commit(puts=puts)])
    if isinstance(outcome, Unknown):
        raise CommitUnknown(f"the store did not confirm that {what}; check, and repeat it if it did not happen")
