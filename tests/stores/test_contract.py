"""The contract of core/store.py, kept by every store. Another store joins in tests/stores/places.py."""

import pytest

from redrive.core.store import Store
from tests.stores import contract
from tests.stores.openers import Openers


@pytest.fixture
async def store(openers: Openers) -> Store:
    """The place's first store, open."""
    return await openers.open()


class TestOpening(contract.Opening):
    """open, close"""


class TestAccepting(contract.Accepting):
    """insert, get"""


class TestClaiming(contract.Claiming):
    """claim"""


class TestLeases(contract.Leases):
    """heartbeat, and what a claim says of ended leases"""


class TestCommitting(contract.Committing):
    """apply"""


class TestDocuments(contract.Documents):
    """doc, docs"""


class TestView(contract.View):
    """find, count"""


class TestAddingUp(contract.AddingUp):
    """tallies, groups, lessons"""


class TestFeed(contract.Feed):
    """events, scan"""


class TestKeeping(contract.Keeping):
    """prune, erase, repair, backup"""


class TestWaking(contract.Waking):
    """wait"""
