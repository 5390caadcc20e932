"""Operations from the command line: the exit status never calls queued a success."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell, refused


def test_a_call_that_is_done_gives_the_result(shell: Shell) -> None:
    done = shell.fresh("call", "app:rd", "greet", '{"name": "Ada"}')
    assert (done.status, done.out.strip()) == (0, '"hello Ada"')
    told = shell.run("call", "app:rd", "greet", '{"name": "Ada"}', "--json")
    assert (told.status, told.json["status"], told.json["result"]) == (0, "ok", "hello Ada")


@pytest.mark.behaviour("003-3", "003-6")
def test_a_call_that_failed_is_told_and_exits_with_one(shell: Shell) -> None:
    told = shell.run("call", "app:rd", "broken", "--json")
    assert told.status == 1
    assert told.json["status"] == "failed" and "the mill is broken" in told.json["error"]
    assert "success" not in told.json
    said = shell.run("call", "app:rd", "broken")
    assert said.status == 1 and "follow it: redrive status" in said.out


@pytest.mark.behaviour("003-52")
def test_a_submission_is_an_operation_to_ask_about(shell: Shell) -> None:
    told = shell.run("submit", "greet", '{"name": "Ada"}', "--session", "s1", "--json")
    assert told.status == 0
    assert (told.json["status"], told.json["queue_reason"]) == ("queued", "deferred_submit")
    waiting = shell.run("operations", "--json")
    assert (waiting.json["queued"], waiting.json["by_reason"]["deferred_submit"]) == (1, 1)
    assert "1 operation waiting" in shell.run("operations").out


@pytest.mark.behaviour("003-7")
def test_a_retry_needs_the_id_alone(shell: Shell) -> None:
    first = shell.run("submit", "greet", '{"name": "Ada"}', "--json").json
    again = shell.run("retry", "app:rd", first["operation_id"], "--json")
    assert (again.status, again.json["result"]) == (0, "hello Ada")
    assert "No operation waits" in shell.run("operations").out


def test_a_task_that_the_app_lacks_is_refused_and_nothing_is_queued(shell: Shell) -> None:
    refused(
        shell.run("call", "app:rd", "gret", '{"name": "Ada"}'), "'gret' is no task of app:rd", "did you mean greet?"
    )
    refused(shell.run("call", "app:rd", "qqqq"), "it has broken, greet, mark")
    shell.enqueue("qqqq")  # others may know it
    assert shell.here("stats", "--json").json["accepted"] == 1


def test_only_a_session_that_was_named_is_told(shell: Shell) -> None:
    assert "session" not in shell.run("submit", "greet", '{"name": "Ada"}').out
    assert "the session is told" in shell.run("submit", "greet", '{"name": "Bo"}', "--session", "s1").out


def test_bad_input_is_one_line(shell: Shell) -> None:
    for words in (("call", "nosuch:rd", "greet"), ("call", "app:rd", "greet", "[1]"), ("retry", "app:rd", "nosuch")):
        done = shell.run(*words)
        assert done.status == 2 and "Traceback" not in done.err
