"""`redrive token add`, `list` and `revoke`: named tokens on the command line."""

import re
import subprocess
import sys

import pytest

from redrive.core.tokens import digest_of
from tests.cli.shell import DEADLINE, Screen, Shell


@pytest.fixture(autouse=True)
def database(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "ada"})


@pytest.mark.behaviour("H-3g")
def test_a_token_is_printed_to_a_terminal_only_unless_it_is_asked_for(shell: Shell) -> None:
    for form in ((), ("--json",), ("--link",)):
        done = shell.run("token", "add", "ann", "--role", "act", *form)
        assert (done.status, done.out) == (2, "")
        assert "is not a terminal" in done.err and "--show" in done.err
    assert shell.run("token", "list", "--json").json == [], "nothing was made"
    screen = Screen()
    words = [sys.executable, "-m", "redrive", "token", "add", "ann", "--role", "act"]
    made = subprocess.run(
        words, cwd=shell.folder, env=shell.environment, stdout=screen.theirs, stderr=subprocess.PIPE,
        timeout=DEADLINE, check=True,
    )  # fmt: skip
    assert b"ann has the role act. This is shown once:" in made.stderr
    assert re.fullmatch(r"[\w-]{43}", screen.text().strip())


@pytest.mark.behaviour("H-3a")
def test_tokens_are_added_listed_and_revoked(shell: Shell) -> None:
    done = shell.run("token", "add", "ann", "--role", "act", "--expires", "30d", "--show")
    assert done.status == 0 and "ann has the role act until 20" in done.err
    assert re.fullmatch(r"[\w-]{43}\n", done.out)
    (listed,) = shell.run("token", "list", "--json").json
    assert (listed["name"], listed["role"], listed["standing"], listed["by"]) == ("ann", "act", "good", "ada")
    assert done.out.strip() not in str(listed) and digest_of(done.out.strip().encode()) not in str(listed)
    table = shell.run("token", "list").out
    assert re.search(r"^ann +act +good +20\S+ +never +", table, re.MULTILINE), table
    revoked = shell.run("token", "revoke", "ann")
    assert revoked.status == 0 and revoked.out.startswith("ann is revoked since 20")
    (listed,) = shell.run("token", "list", "--json").json
    assert (listed["standing"], listed["revoked_by"]) == ("revoked", "ada")


def test_json_and_links_for_programs(shell: Shell) -> None:
    made = shell.run("token", "add", "wall", "--role", "look", "--show", "--json").json
    assert (made["name"], made["role"]) == ("wall", "look")
    assert made["link"] == f"http://127.0.0.1:8420/?token={made['token']}"
    link = shell.run("token", "add", "other", "--role", "look", "--show", "--link", "--port", "9000").out
    assert re.fullmatch(r"http://127\.0\.0\.1:9000/\?token=[\w-]{43}\n", link)
    assert "link" not in shell.run("token", "add", "runner", "--role", "worker", "--show", "--json").json


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "ann"), "--role"),
        (("add", "ann", "--role", "admin", "--show"), "'admin' is not one of"),
        (("add", "a b", "--role", "act", "--show"), "name: 'a b' must be 1 to 40"),
        (("add", "owner", "--role", "act", "--show"), "is a name of redrive's own"),
        (
            ("add", "ann", "--role", "act", "--expires", "soon", "--show"),
            "expires: 'soon' is neither a span nor a time",
        ),
        (("add", "ann", "--role", "act", "--expires", "2020-01-01", "--show"), "expires: is over already"),
        (("add", "runner", "--role", "worker", "--link", "--show"), "opens no dashboard"),
        (("revoke", "nobody"), "name: 'nobody' is no token"),
        (("revoke", "owner"), "--rotate"),
        (("--rotate", "list"), "--rotate and --link are for the owner's token"),
    ],
)
def test_bad_input_is_one_error_and_changes_nothing(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell.here("token", *words)
    assert done.status == 2 and said in done.err, (done.out, done.err)
    assert done.out == ""
    assert shell.here("token", "list", "--json").json == []


def test_a_database_that_does_not_exist_is_not_made(shell: Shell) -> None:
    for words in (("add", "ann", "--role", "act", "--show"), ("list",), ("revoke", "ann")):
        done = shell.here("token", *words, "--url", "nothing.db")
        assert done.status == 2 and "there is no database" in done.err
    assert not (shell.folder / "nothing.db").exists()


def test_the_owners_token_is_shown_as_before(shell: Shell) -> None:
    token = shell.here("token").out.strip()
    assert token == (shell.folder / "jobs.db-token").read_text().strip()
    assert shell.here("token", "--link", "--port", "9000").out == f"http://127.0.0.1:9000/?token={token}\n"
    other = shell.here("token", "--rotate").out.strip()
    assert other != token and shell.here("token", "--json").json["token"] == other
    assert shell.here("token", "list").out.startswith("There are no named tokens.")
