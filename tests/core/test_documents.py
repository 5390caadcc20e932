"""Kinds of documents: each is declared once, and everything that is written goes through its kind."""

import ast
import importlib
import pkgutil
from pathlib import Path

import msgspec
import pytest

import redrive
from redrive.core.documents import ERASURES, KINDS, RESULT, Erasure, Kept, Kind, OfJob
from redrive.core.store import Applied, Commit, Document, Outcome, Put, Stale, Unknown
from redrive.errors import CommitUnknown, StoreBusy
from redrive.retries.breaker import BREAKER, Breaker

SOURCE = Path(redrive.__file__).parent
A_BREAKER = Breaker("mill", "open", "network", 1.0, 5.0, 6.0, 20.0, job="j", error="private words")


class Counted(msgspec.Struct, frozen=True):
    number: int = 0


class Store:
    """Documents of one kind; others may write between a look and the write that follows it."""

    def __init__(self, *faster: Counted, outcome: Outcome | None = None) -> None:
        self.kept: dict[str, Document] = {}
        self._faster = list(faster)
        self._outcome = outcome

    async def doc(self, kind: str, key: str) -> Document | None:
        return self.kept.get(key)

    async def apply(self, commits: list[Commit]) -> list[Outcome]:
        (put,) = commits[0].puts
        if self._faster:
            self._write(put.key, msgspec.json.encode(self._faster.pop(0)))
        if self._outcome is not None:
            return [self._outcome]
        known = self.kept.get(put.key)
        if put.expect != (known.version if known is not None else 0):
            return [Stale()]
        self._write(put.key, put.value)
        return [Applied()]

    def _write(self, key: str, value: bytes | None) -> None:
        known = self.kept.pop(key, None)
        if value is not None:
            self.kept[key] = Document(key, value, known.version + 1 if known is not None else 1)


@pytest.fixture
def kind() -> Kind[Counted]:
    made = Kind[Counted]("counted", Counted)
    KINDS.remove(made)
    return made


def one_more(known: Counted | None) -> Counted:
    return Counted(known.number + 1 if known is not None else 1)


# ---- one kind


def test_a_value_is_read_as_it_was_written() -> None:
    put = RESULT.put("j/", b'{"a": 1}', expect=3)
    assert put == Put("result", "j/", b'{"a": 1}', 3)
    assert RESULT.read(Document("j/", b"1", 7)) == Kept("j/", b"1", 7)
    assert RESULT.drop("j/") == Put("result", "j/", None)


@pytest.mark.behaviour("T-17f")
def test_what_may_only_be_shown_is_not_written() -> None:
    written = BREAKER.encode(A_BREAKER)
    assert b"private words" not in written
    assert BREAKER.decode(written) == msgspec.structs.replace(A_BREAKER, error="")


async def test_an_update_is_decided_anew_where_another_was_faster(kind: Kind[Counted]) -> None:
    store = Store(Counted(10), Counted(20))
    assert await kind.update(store, "k", one_more) == Counted(21)  # type: ignore[arg-type]
    assert await kind.get(store, "k") == Kept("k", Counted(21), 3)  # type: ignore[arg-type]


async def test_an_update_that_changes_nothing_writes_nothing(kind: Kind[Counted]) -> None:
    store = Store(outcome=Unknown("it would be told"))
    assert await kind.update(store, "k", lambda known: known) is None  # type: ignore[arg-type]


async def test_an_update_can_remove(kind: Kind[Counted]) -> None:
    store = Store()
    await kind.update(store, "k", one_more)  # type: ignore[arg-type]
    assert await kind.update(store, "k", lambda _: None) is None  # type: ignore[arg-type]
    assert store.kept == {}


async def test_an_update_that_cannot_be_confirmed_or_never_comes_to_its_turn_is_told(kind: Kind[Counted]) -> None:
    with pytest.raises(CommitUnknown, match="counted k"):
        await kind.update(Store(outcome=Unknown("?")), "k", one_more)  # type: ignore[arg-type]
    with pytest.raises(StoreBusy, match="keeps changing"):
        await kind.update(Store(outcome=Stale()), "k", one_more)  # type: ignore[arg-type]


# ---- all of them


def _import_everything() -> None:
    for module in pkgutil.walk_packages([str(SOURCE)], "redrive."):
        if not module.name.startswith(("redrive.doors", "redrive.__main__")):
            importlib.import_module(module.name)


@pytest.mark.behaviour("T-17f")
def test_what_belongs_to_a_job_is_known_to_every_store() -> None:
    """A store imports no types: what it must erase stands in ERASURES, and no kind says anything else."""
    _import_everything()
    assert all(ERASURES.get(kind.name, Erasure()) == Erasure(kind.of_job, kind.unwritten) for kind in KINDS)
    assert ERASURES.keys() <= {kind.name for kind in KINDS}


@pytest.mark.behaviour("T-17f")
def test_a_kind_that_belongs_to_a_job_cannot_be_declared_without_the_stores_knowing() -> None:
    with pytest.raises(TypeError, match="ERASURES"):
        Kind[bytes]("new_words", bytes, of_job=OfJob.contents)
    with pytest.raises(TypeError, match="ERASURES"):
        Kind[bytes]("step", bytes)


@pytest.mark.behaviour("T-17f")
def test_one_name_is_one_kind() -> None:
    """Two types may share a name, but not two rules of what is erased."""
    _import_everything()
    assert all(len({kind.of_job for kind in KINDS if kind.name == name}) == 1 for name in {kind.name for kind in KINDS})
    fields = [kind for kind in KINDS if kind.of_job is OfJob.field]
    assert all("job_id" in kind.type.__struct_fields__ for kind in fields)


@pytest.mark.behaviour("T-17f")
def test_documents_are_written_through_their_kinds() -> None:
    """Only taking an act back writes what it finds: kind, key and bytes as they were."""
    makers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Put"
    }
    assert makers == {"core/documents.py", "deadletters/redrives/moves.py"}
