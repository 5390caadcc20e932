"""Reads which groups are new since the last deploy and in the last hour. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from redrive.core.job import State
from redrive.core.store import Filter, Group, Store
from redrive.deadletters.group import GroupState
from redrive.deadletters.group_alerts import Known, read_states
from redrive.deadletters.new_groups import Newcomers, newcomers, oldest
from redrive.engine.deploys import latest

if TYPE_CHECKING:
    from redrive.jobs.core import Core

FEW: Final = 30
"""Up to so many groups are counted one by one, each by its index; more of them together."""


async def look(core: Core) -> Newcomers:
    """Groups that nobody has resolved or ignored, and that have dead letters."""
    store, now = core.store, core.clock.now()
    deploy = await latest(store)
    since = oldest(now, deploy)
    fresh = [group for group in await store.groups(since=since) if group.first_at >= since]
    known = await read_states(store, [group.fingerprint for group in fresh])
    unresolved = [group for group in fresh if _is_unresolved(known.get(group.fingerprint))]
    return newcomers(now, deploy, unresolved, await _dead(store, unresolved))


def _is_unresolved(known: Known | None) -> bool:
    state = known[0] if known is not None else None
    return (state or GroupState()).status == "unresolved"


async def _dead(store: Store, groups: Sequence[Group]) -> dict[str, int]:
    """How many dead letters each of these has."""
    if len(groups) > FEW:
        counted = await store.count(Filter(states=(State.dead,)), by=("fingerprint",))
        return {str(name): number for (name,), number in counted.items()}
    return {
        group.fingerprint: sum(
            (await store.count(Filter(states=(State.dead,), fingerprint=group.fingerprint))).values()
        )
        for group in groups
    }
