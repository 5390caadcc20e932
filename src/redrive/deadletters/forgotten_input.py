"""What an edit forgets of a job: what was remembered for the old input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from redrive.core.documents import STEP
from redrive.core.job import Job
from redrive.core.store import Put, Store
from redrive.engine.effects import effects_of
from redrive.engine.effects import forgotten as forgotten_effect
from redrive.engine.verify import nothing_landed
from redrive.errors import InvalidInput

KEPT: Final = 200
"""So many documents are forgotten in the commit of an edit, and come back if it is taken back."""


class Forgotten(NamedTuple):
    """What an edit forgets: in its own commit, so that taking it back brings it back, and what is too much for that."""

    puts: list[Put]
    gone: list[Put]


async def forgotten(store: Store, job: Job, repeat: Sequence[str] = ()) -> Forgotten:
    """Steps, what to look for outside, and the effects to be done again."""
    if repeat:
        effects = [effect.name for effect in await effects_of(store, job.id)]
        if unknown := set(repeat) - set(effects):
            known = ", ".join(effects) or "none"
            raise InvalidInput(field="repeat", problem=f"{min(unknown)!r} is no effect of this job; there are {known}")
    steps = [STEP.drop(kept.key) for kept in await STEP.all(store, f"{job.id}/")]
    puts = [*nothing_landed(job), *(forgotten_effect(job.id, name) for name in repeat)]
    room = max(0, KEPT - len(puts))
    return Forgotten([*puts, *steps[:room]], steps[room:])
