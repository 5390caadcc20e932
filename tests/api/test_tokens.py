"""`rd.tokens`: tokens with a name and a role, kept as digests."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import redrive
from redrive.core.tokens import find_holder


@pytest.mark.behaviour("H-3a")
async def test_a_token_is_added_listed_and_revoked(rd: redrive.Redrive) -> None:
    made = await rd.tokens.add("ann", "act", expires=timedelta(days=30), who="ada")
    assert len(made.secret) >= 43
    (kept,) = await rd.tokens.list()
    assert kept == made.token
    assert (kept.name, kept.role, kept.by, kept.used_at) == ("ann", "act", "ada", None)
    assert kept.expires_at == pytest.approx(kept.at + 30 * 86400)
    revoked = await rd.tokens.revoke("ann", who="bob")
    assert (revoked.revoked_by, revoked.standing(rd.tokens.now())) == ("bob", "revoked")
    assert await rd.tokens.revoke("ann", who="carl") == revoked, "repeating it changes nothing"
    assert await rd.tokens.list() == [revoked]


async def test_a_name_is_free_again_when_its_token_opens_nothing(rd: redrive.Redrive) -> None:
    first = await rd.tokens.add("ann", "act")
    with pytest.raises(redrive.InvalidInput, match=r"name: 'ann' is taken; .*redrive token revoke ann"):
        await rd.tokens.add("ann", "look")
    assert await rd.tokens.list() == [first.token]
    await rd.tokens.revoke("ann")
    second = await rd.tokens.add("ann", "look")
    known, now = await rd.tokens.list(), rd.tokens.now()
    assert known == [second.token]
    assert find_holder(known, first.secret.encode(), now) is None
    assert find_holder(known, second.secret.encode(), now) == second.token


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"name": ""}, r"name: '' must be 1 to 40 of"),
        ({"name": "a b"}, "name: 'a b' must be"),
        ({"name": "ann (as bob)"}, "name: .* must be"),
        ({"name": "x" * 41}, "name: .* must be 1 to 40"),
        ({"name": 7}, "name: 7 must be"),
        ({"name": "ünal"}, "name: .* must be"),
        ({"name": "-x"}, "name: .* must be"),
        ({"name": "owner"}, "name: 'owner' is a name of redrive's own"),
        ({"name": "Owner"}, "name: 'Owner' is a name of redrive's own"),
        ({"name": "redrive"}, "name: 'redrive' is a name of redrive's own"),
        ({"role": "admin"}, "role: 'admin' is not one of look, act, purge, worker"),
        ({"role": None}, "role: None is not one of"),
        ({"expires": "soon"}, "expires: 'soon' is no datetime"),
        ({"expires": 0}, "expires: is over already"),
        ({"expires": timedelta(days=-1)}, "expires: "),
        ({"expires": datetime(2020, 1, 1, tzinfo=UTC)}, "expires: is over already"),
        ({"expires": datetime(2099, 1, 1)}, "expires: is naive"),  # noqa: DTZ001 - what is refused
        ({"who": ""}, "who: '' must be"),
    ],
)
async def test_bad_input_is_one_error_and_changes_nothing(
    rd: redrive.Redrive, said: dict[str, Any], problem: str
) -> None:
    with pytest.raises(redrive.InvalidInput, match=problem):
        await rd.tokens.add(**{"name": "ann", "role": "act", **said})
    assert await rd.tokens.list() == []


async def test_what_is_no_token_cannot_be_revoked(rd: redrive.Redrive) -> None:
    await rd.tokens.add("runner-7", "worker")
    with pytest.raises(redrive.InvalidInput, match=r"name: 'runer-7' is no token; did you mean runner-7"):
        await rd.tokens.revoke("runer-7")
    with pytest.raises(redrive.InvalidInput, match=r"name: the owner's token stands in a file .*--rotate"):
        await rd.tokens.revoke("owner")
    assert [token.revoked_at for token in await rd.tokens.list()] == [None]


async def test_the_last_use_is_written_once_an_hour(rd: redrive.Redrive) -> None:
    made = await rd.tokens.add("ann", "look")
    await rd.tokens.note_use(made.token)
    (used,) = await rd.tokens.list()
    assert used.used_at is not None and used.used_at >= used.at
    await rd.tokens.note_use(used)
    await rd.tokens.note_use(made.token)
    assert await rd.tokens.list() == [used], "neither by one who knows, nor by one who read it before"
