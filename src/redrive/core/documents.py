"""Declares every kind of document: its name, what it holds, how it is written, and whether it belongs to a job.

A document keeps a job's id, never its words (an error text, a part of a payload). Where words are needed, they are read
from the job when they are shown or sent; or the kind belongs to the job (`of_job`), and `erase` takes it along because
the kind says so. A kind is declared beside its type, or here: `THING: Final = Kind[Thing]("thing", Thing)`. What a
store must know of a kind to erase a job stands in ERASURES as well, because a store does not import the types; a kind
that says anything else than ERASURES cannot be declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from redrive.core.commit import Proposal, decide_and_commit
from redrive.core.consent import Approval, Grant
from redrive.core.effects import EffectRecord
from redrive.core.job import Json
from redrive.core.notice import Notice, Paged
from redrive.core.schedule import ScheduleState
from redrive.core.store import Document, Put, Store
from redrive.core.tokens import Token
from redrive.core.workflow import Flow

T = TypeVar("T")


class DutyHolder(msgspec.Struct, frozen=True):
    """Which process does something that one process must do, and until when it has said so."""

    holder: str
    until: float


class OfJob(StrEnum):
    """Says how a document belongs to a job, and when it leaves with it."""

    contents = "contents"
    """Its key begins with the job's id. It is a part of the contents: it leaves when they age out or are erased."""
    key = "key"
    """Its key begins with the job's id. It leaves when the job is erased."""
    field = "job_id"
    """Its field `job_id` names the job. It leaves when the job is erased."""


class Erasure(NamedTuple):
    """What erasing a job does to the documents of a kind."""

    of_job: OfJob | None = None
    unwritten: tuple[str, ...] = ()
    """Fields that are filled in from the job when the value is shown. What an older version wrote there is removed by
    the next erase."""


_CONTENTS: Final = Erasure(OfJob.contents)
ERASURES: Final[Mapping[str, Erasure]] = {
    "step": _CONTENTS,
    "effect": _CONTENTS,
    "blob": _CONTENTS,
    "result": _CONTENTS,
    "progress": _CONTENTS,
    "alone": _CONTENTS,
    "witness": _CONTENTS,
    "absent": _CONTENTS,
    "approval": _CONTENTS,
    "note": _CONTENTS,
    "act_items": _CONTENTS,
    "act": Erasure(OfJob.key),
    "investigated": Erasure(OfJob.key),
    "grant": Erasure(OfJob.field),
    "notice": Erasure(OfJob.field, ("result", "truncated")),
    "inbox": Erasure(OfJob.field, ("result", "truncated")),
    "cycle": Erasure(unwritten=("error",)),
    "breaker": Erasure(unwritten=("error",)),
}
"""Every kind that erasing a job concerns."""


class Kept(NamedTuple, Generic[T]):
    """A document as it was read: its value, and the version that a change must still find there."""

    key: str
    value: T
    version: int


class Kind(Generic[T]):
    """One kind of document: reads and writes values of its type. A value that is bytes is kept as it is."""

    def __init__(
        self,
        name: str,
        type: Any,
        *,
        of_job: OfJob | None = None,
        unwritten: tuple[str, ...] = (),
        order: Literal["deterministic"] | None = None,
    ) -> None:
        self.name = name
        self.type = type
        self.of_job = of_job
        self.unwritten = unwritten
        if ERASURES.get(name, Erasure()) != Erasure(of_job, unwritten):
            raise TypeError(f"kind {name!r}: say the same in core/documents.py, ERASURES, so that stores know it")
        self._encode = msgspec.json.Encoder(order=order).encode
        self.encode: Callable[[Any], bytes] = (
            bytes if type is bytes else self._encode_written if unwritten else self._encode
        )
        self._decoder: msgspec.json.Decoder[Any] | None = None
        KINDS.append(self)

    def __repr__(self) -> str:
        return f"<documents of kind {self.name!r}>"

    def _encode_written(self, value: msgspec.Struct) -> bytes:
        """Writes a value without what may only be shown."""
        fields = msgspec.structs.fields(self.type)
        defaults = {field.name: field.default for field in fields if field.name in self.unwritten}
        return self._encode(msgspec.structs.replace(value, **defaults))

    def decode(self, value: bytes) -> T:
        if self.type is bytes:
            return value  # type: ignore[return-value]
        if self._decoder is None:
            self._decoder = msgspec.json.Decoder(self.type)
        decoded: T = self._decoder.decode(value)
        return decoded

    def put(self, key: str, value: T, expect: int | None = None) -> Put:
        """Makes the part of a commit that writes this document."""
        return Put(self.name, key, self.encode(value), expect)

    def drop(self, key: str, expect: int | None = None) -> Put:
        """Makes the part of a commit that removes this document."""
        return Put(self.name, key, None, expect)

    def read(self, document: Document) -> Kept[T]:
        return Kept(document.key, self.decode(document.value), document.version)

    async def get(self, store: Store, key: str) -> Kept[T] | None:
        document = await store.doc(self.name, key)
        return self.read(document) if document is not None else None

    async def all(self, store: Store, prefix: str = "") -> list[Kept[T]]:
        """Reads the documents whose key starts so, in the order of their keys."""
        return [self.read(document) for document in await store.docs(self.name, prefix)]

    async def update(self, store: Store, key: str, change: Callable[[T | None], T | None]) -> T | None:
        """Writes what `change` makes of the document, decided anew where another process was faster.

        `change` is given None where there is no document, and returns None to remove it; the value it was given
        where nothing is to be written.
        """

        async def decide() -> Proposal[T | None]:
            known = await self.get(store, key)
            before = known.value if known is not None else None
            after = change(before)
            if after is before:
                return Proposal(f"{self.name} {key}", after)
            expect = known.version if known is not None else 0
            put = self.drop(key, expect) if after is None else self.put(key, after, expect)
            return Proposal(f"{self.name} {key}", after, puts=(put,), done="written")

        after, _ = await decide_and_commit(store, decide)
        return after


KINDS: Final[list[Kind[Any]]] = []
"""Every kind that was declared so far."""


def of_job(*how: OfJob) -> list[str]:
    """Lists the names of the kinds that belong to a job in one of these ways."""
    return [name for name, erasure in ERASURES.items() if erasure.of_job in how]


# ---- a job's own

STEP: Final = Kind[bytes]("step", bytes, of_job=OfJob.contents)
EFFECT: Final = Kind[EffectRecord]("effect", EffectRecord, of_job=OfJob.contents)
"""Under the job's id and the effect's name; an effect without a job under `once/` and its key, which no job's id begins
with."""
BLOB: Final = Kind[bytes]("blob", bytes, of_job=OfJob.contents)
RESULT: Final = Kind[bytes]("result", bytes, of_job=OfJob.contents)
PROGRESS: Final = Kind[dict[str, Json]]("progress", dict[str, Json], of_job=OfJob.contents)
ALONE: Final = Kind[int]("alone", int, of_job=OfJob.contents)
WITNESS: Final = Kind[bytes]("witness", bytes, of_job=OfJob.contents)
ABSENT: Final = Kind[int]("absent", int, of_job=OfJob.contents)
APPROVAL: Final = Kind[Approval]("approval", Approval, of_job=OfJob.contents)
INVESTIGATED: Final = Kind[str]("investigated", str, of_job=OfJob.key)
"""Under the job's id and the investigation's: a job that was given the words of this one, and is erased with it."""

# ---- what people and sessions are told and asked

WAITING: Final = Kind[Notice]("notice", Notice, of_job=OfJob.field, unwritten=("result", "truncated"))
"""What people are still to be told, under a key that sorts by time."""
INBOX: Final = Kind[Notice]("inbox", Notice, of_job=OfJob.field, unwritten=("result", "truncated"))
"""What sessions are told, under the session's id and the notice's."""
PAGE: Final = Kind[Paged]("page", Paged)
GRANT: Final = Kind[Grant]("grant", Grant, of_job=OfJob.field)
"""Under the session's id and the grant's. One that was given for a single job names it."""

# ---- what is known beside jobs

OPEN_EFFECT: Final = Kind[float]("open_effect", float)
"""Under the key of each effect without a job that was begun and not closed: since when. The effect itself is in EFFECT;
these are few, however many effects have landed."""

DUTY: Final = Kind[DutyHolder]("duty", DutyHolder)
"""Under a duty's name: the process that sees to it, so that a fleet does it once."""
WORKFLOW: Final = Kind[Flow]("workflow", Flow)
SCHEDULE: Final = Kind[ScheduleState]("schedule", ScheduleState)
CLOCK: Final = Kind[float]("clock", float)
TOKEN: Final = Kind[Token]("token", Token)
"""Under a token's name: its role and digests, never the token. A hub lets no worker write these."""
