"""Purges dead letters for good, after a count and a token that confirms exactly the counted ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from redrive.core import lifecycle
from redrive.core.job import At, Job
from redrive.core.store import Filter, Seal
from redrive.core.view import Shown
from redrive.deadletters.acts import Acts
from redrive.deadletters.filters import filter_of_many
from redrive.deadletters.orders import SIZE
from redrive.deadletters.verbs import PURGE
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from redrive.jobs.core import Core

SAMPLE: Final = 5


class PurgeSample(msgspec.Struct, frozen=True):
    """A dead letter that a purge would remove, without its contents."""

    id: str
    task: str
    queue: str
    error: str | None
    died_at: At | None


class PurgePlan(Shown, msgspec.Struct, frozen=True):
    """Dead letters that a purge would remove for good. `token` stands for exactly these and confirms the purge."""

    HIDDEN: ClassVar = ("sample",)
    SHOWN: ClassVar = ("_samples",)
    RENAMED: ClassVar = {"_samples": "sample"}
    number: int
    token: str
    sample: tuple[Job, ...] = ()

    @property
    def _samples(self) -> list[PurgeSample]:
        return [PurgeSample(job.id, job.task, job.queue, job.error, job.died_at) for job in self.sample]


class Purging:
    """Removes the contents of dead letters."""

    def __init__(self, core: Core, acts: Acts) -> None:
        self._core = core
        self._acts = acts

    async def plan(self, ids: Sequence[str], filters: Mapping[str, Any], *, all: bool) -> PurgePlan:
        """Counts the dead letters that a purge would remove, and makes their token. Changes nothing."""
        chosen = filter_of_many("purge", ids, filters, all=all)
        if chosen is None:
            chosen = Filter(ids=tuple(await self._acts.meant("purge", ids, {}, all=False)))
        seal = await self._core.store.seal(chosen)
        sample = (await self._core.store.find(chosen, limit=SAMPLE)).jobs
        return PurgePlan(seal.number, token_of(seal), tuple(sample))

    async def purge(self, ids: Sequence[str], who: str, why: str | None, confirm: str | None) -> int:
        """Purges these jobs if they are exactly the counted ones. All are judged before anything is removed."""
        if confirm is not None and confirm != token_of(await self._core.store.seal(Filter(ids=tuple(ids)))):
            problem = "does not stand for these dead letters: look again how many there are, then confirm that"
            raise InvalidInput(field="confirm", problem=problem)
        for start in range(0, len(ids), SIZE):
            for job in await self._core.store.get(ids[start : start + SIZE]):
                lifecycle.purged(job, self._core.clock.now(), who=who, why=why)
        if not ids:
            return 0
        return (await self._acts.many(PURGE, {}, ids, who=who, why=why)).moved


def token_of(seal: Seal) -> str:
    """Makes a token for exactly these jobs, valid only for purging them."""
    return hashlib.sha256(f"purge {seal.number} {seal.digest}".encode()).hexdigest()[:16]
