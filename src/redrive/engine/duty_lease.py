"""Decides by a lease document which process of a store does a duty that only one process should do."""

from __future__ import annotations

from typing import Final

from redrive.core.commit import try_commit
from redrive.core.documents import DUTY, DutyHolder
from redrive.core.store import Store
from redrive.engine.clock import Clock

LEASE: Final = 30.0
"""Seconds for which a process has a duty. The process renews the lease when a third of the seconds is left."""


async def take_duty(store: Store, clock: Clock, name: str) -> bool:
    """Tells whether this process has the duty now; takes a duty whose holder ended or did not renew the lease."""
    me, now = await store.process(), clock.now()
    kept = await DUTY.get(store, name)
    duty = kept.value if kept is not None else None
    if duty is not None and duty.holder == me and duty.until - now > LEASE / 3:
        return True
    if duty is not None and duty.holder != me and not await _is_free(store, duty, now):
        return False
    put = DUTY.put(name, DutyHolder(me, now + LEASE), kept.version if kept is not None else 0)
    return await try_commit(store, puts=[put], what=f"duty {name} was taken") is not None


async def release_duty(store: Store, name: str) -> None:
    """Gives up a duty of this process, so that another process can take the duty at once."""
    kept = await DUTY.get(store, name)
    if kept is not None and kept.value.holder == await store.process():
        await try_commit(store, puts=[DUTY.drop(name, kept.version)], what=f"duty {name} was left to others")


async def _is_free(store: Store, duty: DutyHolder, now: float) -> bool:
    """Tells whether a duty can be taken. An end further ahead than any lease came from a wrong clock and is ignored."""
    if not 0 < duty.until - now <= LEASE:
        return True
    return (await store.ended([duty.holder])).get(duty.holder, False)
