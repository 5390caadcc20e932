"""`redrive morning`: one line on a quiet day, else what needs eyes, and an exit status that tells the truth."""

from __future__ import annotations

import json
import re
import time

import pytest

from tests.cli.shell import Shell, refused


def import_letters(shell: Shell, *records: dict[str, object]) -> None:
    (shell.folder / "q.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert shell.here("dead", "import", "q.jsonl").status == 0


@pytest.mark.behaviour("001-37", "001-38")
def test_a_quiet_day_is_one_line_and_exit_status_0(shell: Shell) -> None:
    for name in ("ada", "bob"):
        shell.enqueue("greet", {"name": name})
    shell.drain()
    done = shell.run("morning")
    assert (done.status, done.out, done.err) == (0, "quiet: 2 done, nothing needs you\n", "")


@pytest.mark.behaviour("001-27", "001-39")
def test_what_needs_eyes_is_told_with_what_to_do(shell: Shell) -> None:
    (id,) = shell.dead_letters()
    import_letters(
        shell,
        {"job_id": "a", "payload": {}, "error_class": "KeyError", "error": "KeyError: slug", "task": "publish"},
        {"job_id": "b", "payload": {}, "error_class": "TimeoutError", "task": "fetch"},
    )
    done = shell.run("morning")
    assert done.status == 1
    told = done.out.splitlines()
    back = r"1 comes back by itself, in \d+ (min|h)"
    assert re.fullmatch(rf"0 done · {back} · 2 need you · 3 structural changes", told[0]), told[0]
    assert any("broken: RuntimeError: the mill is broken" in line for line in told)
    assert any("publish: KeyError: slug" in line for line in told)
    assert any(line.endswith(f"redrive dead show {id[-8:]}") for line in told)
    assert not any("fetch" in line for line in told)  # it comes back by itself
    assert "changed since the time before" in told
    assert any("KeyError: 1, never seen before" in line for line in told)


def test_in_json_and_for_one_pipeline(shell: Shell) -> None:
    shell.dead_letters(2)
    done = shell.here("morning", "--json")
    assert (done.status, done.json["ok"], done.json["needs"][0]["count"]) == (1, False, 2)
    other = shell.here("morning", "--queue", "other", "--json")
    assert (other.status, other.json["ok"], other.json["queue"]) == (0, True, "other")


@pytest.mark.behaviour("001-40")
def test_the_threshold_of_a_spike(shell: Shell) -> None:
    now = time.time()
    records = [
        {"job_id": f"{ago}-{n}", "payload": {}, "error_class": "TimeoutError", "failed_at": now - float(ago) * 3600}
        for ago, number in {"80": 1, "30": 2, "2": 5}.items()
        for n in range(number)
    ]
    import_letters(shell, *records)
    assert "TimeoutError: 5 (+3 against 2 the time before)" in shell.here("morning").out
    assert shell.here("morning", "--spike", "4", "--json").json["deltas"][0]["structural"] is False


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--since", "yesterday"), "since"),
        (("--since", "2031-05-17T07:00:00"), "has no time zone"),
        (("--since", "2131-05-17T07:00:00Z"), "since"),
        (("--since", "0h"), "since"),
        (("--spike", "0"), "--spike"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(shell: Shell, words: tuple[str, ...], told: str) -> None:
    shell.enqueue("greet", {"name": "ada"})
    refused(shell.here("morning", *words), told)


@pytest.mark.parametrize("since", ["90min", "8h", "3 d", "2026-01-01T00:00:00Z"])
def test_since_in_every_form(shell: Shell, since: str) -> None:
    shell.dead_letters()
    assert shell.here("morning", "--since", since, "--json").json["failed"] == 1


def test_the_oldest_waiting_job_is_named_when_something_is_told(shell: Shell) -> None:
    shell.dead_letters()
    id = shell.enqueue("greet", {"name": "ada"})
    assert f"oldest waiting: greet {id[-8:]}, due" in shell.here("morning").out


def test_text_from_a_job_is_never_obeyed_by_the_terminal(shell: Shell) -> None:
    import_letters(shell, {"job_id": "a", "payload": {}, "error_class": "KeyError", "error": "KeyError: \u001b[2Jboo"})
    assert "\u001b" not in shell.here("morning").out


def test_a_dead_letter_shows_when_it_comes_back(shell: Shell) -> None:
    import_letters(shell, {"job_id": "b", "payload": {}, "error_class": "TimeoutError", "task": "fetch"})
    (id,) = re.findall(r"^([0-9a-f]{8})  fetch", shell.run("dead", "list").out, re.MULTILINE)
    lines = shell.run("dead", "show", id).out.splitlines()
    told = [line for line in lines if line.strip().startswith("back ")]
    assert len(told) == 1 and re.search(r"\(in \d+ (min|h)\), by itself$", told[0]), lines
