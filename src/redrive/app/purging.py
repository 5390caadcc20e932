"""Purging: counted first, confirmed by a token that stands for exactly what was counted, then for good."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from redrive.app.acts import SIZE, Acts, Order
from redrive.core import lifecycle
from redrive.core.job import Job, Json, iso
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from redrive.app import Redrive

SAMPLE: Final = 5


class PurgePlan(msgspec.Struct, frozen=True):
    """What a purge would remove for good. `token` stands for exactly these, and confirms it."""

    number: int
    token: str
    sample: tuple[Job, ...] = ()

    def public(self) -> dict[str, Json]:
        sample = [
            {"id": job.id, "task": job.task, "queue": job.queue, "error": job.error, "died_at": iso(job.died_at)}
            for job in self.sample
        ]
        return {"number": self.number, "token": self.token, "sample": sample}


class Purging:
    """Removes the contents of dead letters."""

    def __init__(self, app: Redrive, acts: Acts) -> None:
        self._app = app
        self._acts = acts

    async def plan(self, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> PurgePlan:
        """Counts, and names exactly what would go. Changes nothing."""
        found = await self._acts.meant("purge", ids, filters, all=all)
        sample = await self._app.store.get(found[:SAMPLE])
        return PurgePlan(len(found), token_of(found), tuple(sample))

    async def purge(self, ids: Sequence[str], who: str, why: str | None, confirm: str | None) -> int:
        """Exactly these, and only if they are those that were counted. All are judged before anything is removed."""
        if confirm is not None and confirm != token_of(ids):
            problem = "does not stand for these dead letters: look again how many there are, then confirm that"
            raise InvalidInput(field="confirm", problem=problem)
        for start in range(0, len(ids), SIZE):
            for job in await self._app.store.get(ids[start : start + SIZE]):
                lifecycle.purged(job, self._app.clock.now(), who=who, why=why)
        if not ids:
            return 0
        order = Order("purge", who, why, lambda job, now: lifecycle.purged(job, now, who=who, why=why))
        acted = await self._acts.many(order, ids)
        for start in range(0, len(ids), SIZE):
            await self._app.store.erase(ids[start : start + SIZE])
        return acted.moved


def token_of(ids: Iterable[str]) -> str:
    """Stands for exactly these jobs, in any order, and for nothing but purging them."""
    digest = hashlib.sha256(b"purge")
    for id in sorted(ids):
        digest.update(id.encode())
    return digest.hexdigest()[:16]
