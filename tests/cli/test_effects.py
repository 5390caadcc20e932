"""Effects without a job on the command line: effects, status, resolve, erase."""

import asyncio
import json

import pytest

from redrive import Redrive
from tests.cli.shell import Shell, refused


def begin(shell: Shell) -> None:
    """One effect that has landed, and one whose outcome is unknown."""

    async def calls() -> None:
        async with Redrive(shell.database) as rd:

            @rd.once(key="mail-{to}")
            async def send(to: str) -> dict[str, str]:
                if to == "bob":
                    raise TimeoutError("no answer")
                return {"id": to, "password": "hunter2hunter2"}

            await send("ann")
            with pytest.raises(TimeoutError):
                await send("bob")

    asyncio.run(calls())


@pytest.mark.behaviour("R-6f")
def test_they_are_listed_told_and_resolved(shell: Shell) -> None:
    begin(shell)
    listed = shell.here("effects")
    assert "effect:mail-ann" in listed.out and "effect:mail-bob" in listed.out
    assert [one["key"] for one in shell.here("effects", "--open", "--json").json] == ["mail-bob"]
    assert [one["key"] for one in shell.here("effects", "--status", "landed", "--json").json] == ["mail-ann"]
    sick = shell.here("health")
    assert sick.status == 1 and "1 effect may or may not have happened (effect:mail-bob)" in sick.out
    told = shell.here("status", "effect:mail-bob")
    assert "is unknown" in told.out and "TimeoutError: no answer" in told.out
    assert "redrive resolve effect:mail-bob --landed or --not-landed" in told.out
    done = shell.run("resolve", "effect:mail-bob", "--landed", "--result", '{"id": 7}')
    assert done.status == 0 and "is landed; later calls return its result" in done.out
    assert shell.here("status", "effect:mail-bob", "--json").json["result"] == {"id": 7}
    assert shell.here("health").status == 0


@pytest.mark.behaviour("R-6f")
def test_what_did_not_land_is_performed_by_the_next_call(shell: Shell) -> None:
    begin(shell)
    done = shell.here("resolve", "effect:mail-bob", "--not-landed", "--why", "never arrived", "--json").json
    assert done["status"] == "absent" and done["note"].endswith(": never arrived")


@pytest.mark.behaviour("R-6h")
def test_a_result_is_masked_and_erased(shell: Shell) -> None:
    begin(shell)
    assert "hunter2" not in shell.here("status", "effect:mail-ann").out
    assert "hunter2" in shell.here("status", "effect:mail-ann", "--secrets", "--json").out
    erased = shell.here("erase", "effect:mail-ann", "--yes")
    assert erased.status == 0 and "its key stays" in erased.out
    body = shell.here("status", "effect:mail-ann", "--secrets", "--json").json
    assert (body["result"], body["forgotten"]) == (None, True)


@pytest.mark.behaviour("R-6f")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resolve", "effect:nope", "--landed"), "no effect 'nope'"),
        (("status", "effect:nope"), "no effect 'nope'"),
        (("resolve", "effect:mail-ann", "--not-landed"), "has landed"),
        (("resolve", "effect:mail-bob", "--landed", "--result", "{"), "--result is not JSON"),
        (("resolve", "effect:mail-bob", "--not-landed", "--result", "1"), "what did not land has no result"),
        (("resolve", "0123456789abcdef", "--landed", "--why", "x", "--result", "1"), "--result is for effects"),
    ],
)
def test_what_cannot_be_done_says_why(shell: Shell, words: tuple[str, ...], said: str) -> None:
    begin(shell)
    refused(shell.here(*words), said)


@pytest.mark.behaviour("R-6f")
def test_a_resolve_that_does_not_say_what_became_of_it_changes_nothing(shell: Shell) -> None:
    """It was taken for "not landed", so that the next call repeated what may have landed."""
    begin(shell)
    refused(shell.here("resolve", "effect:mail-bob", "--why", "looked"), "--landed")
    assert shell.here("status", "effect:mail-bob", "--json").json["status"] == "unknown"
    (id,) = shell.dead_letters()
    for words in (("resolve",), ("dead", "resolve")):
        refused(shell.here(*words, id[-8:], "--why", "looked"), "--landed")
    assert shell.state(id) == "dead"


def test_nothing_is_a_sentence(shell: Shell) -> None:
    shell.dead_letters(1)
    assert "@redrive.once" in shell.here("effects").out
    assert json.loads(shell.here("effects", "--json").out) == []
