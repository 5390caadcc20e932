"""Error groups on the command line: groups, group, resolve-group, ignore-group, reopen-group."""

import pytest

from tests.cli.shell import Shell, refused


def test_the_troubles_are_listed_and_lead_on(shell: Shell) -> None:
    shell.dead_letters(3)
    done = shell.run("dead", "groups")
    assert done.status == 0, done.err
    header, row, hint = done.out.splitlines()
    assert header.split() == [
        "group",
        "what",
        "task",
        "dead",
        "total",
        "first",
        "last",
        "status",
        "trend",
        "suggestion",
    ]
    (found,) = shell.here("dead", "groups", "--json").json
    fingerprint = found["fingerprint"]
    assert row.startswith(fingerprint[:8])
    for part in ("RuntimeError: the mill is broken", "broken", " 3 ", "unresolved", "new", "Find out what the error"):
        assert part in row
    assert hint == f"Look closer: redrive dead group {fingerprint[:8]}"


def test_one_trouble_tells_everything(shell: Shell) -> None:
    ids = shell.dead_letters(2)
    (found,) = shell.here("dead", "groups", "--json").json
    done = shell.here("dead", "group", found["fingerprint"][:8])
    assert done.status == 0
    for part in (
        f"group {found['fingerprint']}", "RuntimeError: the mill is broken", "2 of 2 deaths", "new: 2 in the last day",
        ids[0][-8:], ids[1][-8:], "attempts_exhausted", "what next", f"dead list --fingerprint {found['fingerprint']}",
        f"resolve-group {found['fingerprint'][:8]}", "first seen", "alerted",
    ):  # fmt: skip
        assert part in done.out, part
    body = shell.here("dead", "group", found["fingerprint"], "--json").json
    assert set(body["samples"]) == set(ids)
    assert body["dead"] == 2 and body["suggestion"]["action"] == "look"


def test_resolve_ignore_and_reopen_say_what_to_do_next(shell: Shell) -> None:
    shell.dead_letters(1)
    (found,) = shell.here("dead", "groups", "--json").json
    name = found["fingerprint"][:8]
    for words, said, next_one in (
        (
            ("resolve-group", name, "--in-version", "1.4", "--why", "fixed"),
            "is resolved in 1.4; 1 dead letter",
            "reopen",
        ),
        (("ignore-group", name, "--days", "7", "--rate", "5", "--count", "9"), "up to 5 an hour, for 9 more", "reopen"),
        (("ignore-group", name, "--until", "2231-05-17T03:00:00Z"), "ignored until 2231-05-17T03:00:00", "reopen"),
        (("ignore-group", name), "is ignored;", "reopen"),
        (("reopen-group", name), "is reopened", f"redrive dead group {name}"),
    ):
        done = shell.here("dead", *words)
        assert done.status == 0, done.err
        first, second, *_ = done.out.splitlines()
        assert said in first and next_one in second
    (after,) = shell.here("dead", "groups", "--json").json
    assert [(line["what"].split()[0], line["who"]) for line in after["story"]] == [
        ("new", "redrive"), ("resolved", "ada"), ("ignored", "ada"), ("ignored", "ada"), ("ignored", "ada"),
        ("reopened", "ada"),
    ]  # fmt: skip
    assert after["story"][1]["why"] == "fixed"


def test_a_real_process_resolves_and_the_status_stays(shell: Shell) -> None:
    shell.dead_letters(1)
    (found,) = shell.run("dead", "groups", "--json").json
    assert shell.run("dead", "resolve-group", found["fingerprint"][:8]).status == 0
    assert "resolved by ada" in shell.run("dead", "group", found["fingerprint"][:8]).out


def test_filters_of_the_list(shell: Shell) -> None:
    shell.dead_letters(1, "--queue", "here")
    (found,) = shell.here("dead", "groups", "--json").json
    shell.here("dead", "ignore-group", found["fingerprint"])
    for filters, number in (
        (("--queue", "here"), 1), (("--queue", "there"), 0), (("--task", "broken"), 1), (("--status", "ignored"), 1),
        (("--status", "unresolved"), 0),
    ):  # fmt: skip
        assert len(shell.here("dead", "groups", *filters, "--json").json) == number
    assert "No groups match" in shell.here("dead", "groups", "--queue", "there").out


def test_a_quiet_place(shell: Shell) -> None:
    shell.enqueue("greet", {"name": "ann"})
    done = shell.here("dead", "groups")
    assert done.status == 0 and "No error groups" in done.out
    assert shell.here("dead", "groups", "--json").json == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("group", "ffffffff"), "no group 'ffffffff'"),
        (("resolve-group", "no such thing"), "no group"),
        (("ignore-group", "GROUP", "--until", "soon"), "not a time"),
        (("ignore-group", "GROUP", "--until", "2020-01-01T00:00:00Z"), "until: is over"),
        (("ignore-group", "GROUP", "--until", "2231-01-01T00:00:00"), "has no time zone"),
        (("ignore-group", "GROUP", "--until", "2231-01-01T00:00:00Z", "--days", "3"), "not both"),
        (("ignore-group", "GROUP", "--rate", "-1"), "--rate"),
        (("ignore-group", "GROUP", "--count", "many"), "--count"),
        (("ignore-group", "GROUP", "--days", "0"), "--days"),
        (("ignore-group", "GROUP", "--days", "nan"), "--days"),
        (("ignore-group", "GROUP", "--days", "1e20"), "--days"),
        (("groups", "--status", "solved"), "status: 'solved'"),
        (("groups", "--limit", "0"), "limit: 0"),
        (("group",), "FINGERPRINT"),
    ],
)
def test_bad_input_gets_one_line_and_a_hint(shell: Shell, words: tuple[str, ...], said: str) -> None:
    shell.dead_letters(1)
    (found,) = shell.here("dead", "groups", "--json").json
    refused(shell.here("dead", *(found["fingerprint"] if word == "GROUP" else word for word in words)), said)
    (after,) = shell.here("dead", "groups", "--json").json
    assert after["status"] == "unresolved" and len(after["story"]) == 1


def test_what_an_error_says_cannot_command_the_terminal(shell: Shell) -> None:
    (shell.folder / "app.py").write_text(
        "import redrive\nrd = redrive.Redrive()\n@rd.task(max_attempts=1)\n"
        "async def broken() -> None:\n    raise RuntimeError('\\x1b]0;owned\\x07 twice\\nlines')\n"
    )
    shell.enqueue("broken")
    shell.drain()
    (found,) = shell.here("dead", "groups", "--json").json
    for words in (("groups",), ("group", found["fingerprint"])):
        out = shell.here("dead", *words).out
        assert "\x07" not in out and "\x1b" not in out and "owned" in out


def test_what_one_agent_may_not_do_is_offered_to_another(shell: Shell) -> None:
    (shell.folder / "redrive.toml").write_text('[redrive]\npreset = "seven_agents"\n')
    (shell.folder / "app.py").write_text(
        "import redrive\nrd = redrive.Redrive()\n@rd.task('code_review', max_attempts=1)\n"
        "async def review() -> None:\n    raise PermissionError('may not read the repository')\n"
    )
    id = shell.enqueue("code_review", {}, "--agent", "cto")
    shell.drain()
    (found,) = shell.here("dead", "groups", "--json").json
    assert found["detail"] == "authority"
    told = shell.here("dead", "group", found["fingerprint"]).out
    (offer,) = (line for line in told.splitlines() if "Give them" in line)
    said, command = offer.strip().split(": redrive ")
    assert said == "Give them to backend"
    done = shell.here(*(word if word != "TEXT" else "they may" for word in command.split()), "--yes")
    assert done.status == 0, done.err
    assert shell.here("status", id, "--json").json["agent"] == "backend"
    assert "Give them" not in shell.here("dead", "group", found["fingerprint"]).out, "none is dead any more"
