"""The contract of core/store.py, kept by every store. Another store joins in tests/stores/places.py."""

import pytest

from redrive.core.store import Store
from tests.stores import contract
from tests.stores.openers import Openers
from tests.stores.places import PLACES, REMOTE


@pytest.fixture
async def store(openers: Openers) -> Store:
    """The place's first store, open."""
    return await openers.open()


@pytest.mark.behaviour("F-20")
class TestOpening(contract.Opening):
    """open, close"""


class TestAccepting(contract.Accepting):
    """insert, get"""


@pytest.mark.behaviour("F-20")
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


class TestComingBack(contract.ComingBack):
    """returning"""


class TestAddingUp(contract.AddingUp):
    """tallies, groups, lessons"""


class TestFeed(contract.Feed):
    """events, scan"""


class TestKeeping(contract.Keeping):
    """prune, erase, repair, backup"""


class TestWaking(contract.Waking):
    """wait"""


@pytest.mark.parametrize("openers", sorted(PLACES.keys() - {"memory"}), indirect=True)
class TestWakingOthers(contract.WakingOthers):
    """wait, for what another process does"""


@pytest.mark.behaviour("F-22")
class TestBackingUp(contract.BackingUp):
    """backup"""


@pytest.mark.parametrize("openers", sorted(PLACES.keys() - REMOTE), indirect=True)
class TestOwningTheFile(contract.OwningTheFile):
    """which processes have the store open"""
