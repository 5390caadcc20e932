"""The log of every level leads to the same chain for ever, whatever has been changed since."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from redrive.core.commands import Command
from redrive.stores.replica import envelope as wire
from redrive.stores.replica.replay import ChainMismatch
from redrive.stores.sqlite import claims
from tests.stores.paths import Replica, compare, one_by_one
from tools.golden_log import Golden

GOLDEN = sorted((Path(__file__).parent / "golden").glob("level-*.log"))


def read(path: Path) -> Golden:
    return msgspec.msgpack.decode(path.read_bytes(), type=Golden)


def test_every_level_has_a_log() -> None:
    assert [read(path).level for path in GOLDEN] == list(range(1, wire.LEVEL + 1))


@pytest.mark.behaviour("F-6a")
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_log_leads_to_its_chain_by_every_way(folder: Path, path: Path) -> None:
    golden = read(path)
    replica = one_by_one(Replica(folder / "r.db", golden.generation), golden.entries)
    assert replica.replay.here.chain.hex() == golden.chain
    replica.close()
    compare(folder, golden.generation, golden.entries)


@pytest.mark.behaviour("F-6a")
def test_a_golden_log_has_every_command() -> None:
    messages = [wire.unpack(entry.data) for path in GOLDEN for entry in read(path).entries]
    items = [item for one in messages if isinstance(one, wire.Envelope) for item in one.items]
    kinds = {type(item.command if isinstance(item, wire.CommandItem) else item) for item in items}
    assert kinds >= {*get_args(Command), wire.Level, wire.Halt}
    assert any(isinstance(one, wire.EnvelopePart) for one in messages)


def test_the_control_another_order_of_claims_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = read(GOLDEN[0])
    monkeypatch.setattr(claims, "_NEXT", claims._NEXT.replace(claims._BY_NAME, "ORDER BY id DESC"))
    with pytest.raises(ChainMismatch):
        one_by_one(Replica(folder / "r.db", golden.generation), golden.entries)
