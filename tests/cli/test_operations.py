"""Operations with a real outside, each command a process: a service that writes and does not answer, a busy one."""

from __future__ import annotations

import socket
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell, ended, wait_until

APP = """
    import os, urllib.request
    from pathlib import Path

    import redrive

    rd = redrive.Redrive()

    def noted(payload, witness):
        return payload["text"] in Path("notes").read_text().splitlines() if Path("notes").exists() else False

    def post(text):
        request = urllib.request.Request(os.environ["SERVICE"], data=text.encode(), method="POST")
        return urllib.request.urlopen(request, timeout=10).read().decode()

    @rd.task(effects=[redrive.Effect("note", noted)])
    def note(text: str) -> str:
        return post(text)

    @rd.task(effects=[redrive.Effect("note", noted)])
    def doubtful(text: str) -> str:
        try:
            return post(text)
        except OSError as error:
            raise redrive.OutcomeUnknown("sent, and then the line broke") from error

    class Busy(Exception):
        status_code = 429
        retry_after = 0.5

    def answer(how):
        if how == "busy":
            raise Busy("too many requests")
        if how == "refused":
            raise redrive.GiveUp("a person must decide")
        return {"text": how}

    @rd.task
    def plain(text: str) -> dict:
        return answer(text)

    @rd.task(effects=[redrive.Effect("note", lambda payload, witness: False)], idempotent=True)
    def watched(text: str) -> dict:
        return answer(text)

    @rd.task
    def busy_at_first(name: str) -> str:
        with open("tries", "a") as tries:
            tries.write(f"{name}\\n")
        if len(Path("tries").read_text().splitlines()) == 1:
            raise Busy("too many requests")
        return f"hello {name}"

    @rd.task
    def greet(name: str) -> str:
        return f"hello {name}"
"""


@pytest.fixture
def app(shell: Shell) -> Shell:
    (shell.folder / "app.py").write_text(textwrap.dedent(APP), encoding="utf-8")
    return shell


@contextmanager
def a_service_that_writes_and_hangs_up(folder: Path) -> Iterator[str]:
    """Whatever is posted is in the file `notes` when the connection breaks, without a byte of an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, connection.makefile("rb") as request:
                    length = 0
                    while (line := request.readline().strip().lower()) != b"":
                        length = int(line.partition(b":")[2]) if line.startswith(b"content-length") else length
                    with (folder / "notes").open("a") as notes:
                        notes.write(request.read(length).decode() + "\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def notes(shell: Shell) -> list[str]:
    return (shell.folder / "notes").read_text().splitlines()


@pytest.mark.behaviour("003-32", "003-69")
@pytest.mark.parametrize("task", ["doubtful", "note"])
def test_a_call_whose_write_is_found_on_disk_is_done_with_a_warning(
    app: Shell, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """`doubtful` says itself that it does not know; `note` only sees its connection break. Both are looked for."""
    with a_service_that_writes_and_hangs_up(app.folder) as url:
        monkeypatch.setenv("SERVICE", url)
        said = app.run("call", "app:rd", task, '{"text": "hello"}', "--json")
        assert said.status == 0, (said.out, said.err)
        assert (said.json["status"], said.json["post_write_recovery"], said.json["effects_verified"]) == ("ok", True, 1)
        assert "note verified" in said.json["warning"]
        assert (notes(app), app.run("operations", "--json").json["queued"]) == (["hello"], 0)
        job = app.job(said.json["operation_id"])
        assert (job["state"], job["history"][-1]["outcome"]) == ("done", "recovered")
        app.drain()
    assert notes(app) == ["hello"], "no retry was scheduled"
    assert app.job(said.json["operation_id"])["history"] == job["history"]


@pytest.mark.behaviour("003-32")
@pytest.mark.parametrize("task", ["doubtful", "note"])
def test_a_worker_finds_the_write_on_disk_and_does_not_repeat_it(
    app: Shell, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    with a_service_that_writes_and_hangs_up(app.folder) as url:
        monkeypatch.setenv("SERVICE", url)
        id = app.enqueue(task, {"text": "hello"})
        worker = app.start("worker", "app:rd")
        wait_until(lambda: app.state(id) == "done", "the write is found")
        worker.terminate()
        assert ended(worker).status == 0
    assert notes(app) == ["hello"]
    assert app.job(id)["history"][-1]["outcome"] == "recovered"


@pytest.mark.behaviour("003-38")
@pytest.mark.parametrize(("how", "status"), [("well", "ok"), ("busy", "queued_for_retry"), ("refused", "failed")])
def test_an_answer_has_the_same_fields_with_and_without_effects(app: Shell, how: str, status: str) -> None:
    """For whoever calls, a task whose effects are looked for answers as one without: here, later and by its id."""
    answers: dict[str, dict[str, Any]] = {}
    for task in ("plain", "watched"):
        said = app.run("call", "app:rd", task, f'{{"text": "{how}"}}', "--json")
        assert said.status == (0 if status == "ok" else 1), (said.out, said.err)
        answers[task] = said.json
    assert answers["plain"].keys() == answers["watched"].keys()
    assert answers["plain"].get("status", "queued_for_retry") == status
    assert not {"post_write_recovery", "effects_verified", "verified"} & answers["watched"].keys()
    same = {"status", "result", "error_kind", "error", "queued_for_retry"} & answers["plain"].keys()
    assert {name: answers["plain"][name] for name in same} == {name: answers["watched"][name] for name in same}


@pytest.mark.behaviour("003-72")
def test_retries_that_are_switched_off_wait_visibly_until_they_are_switched_on(app: Shell) -> None:
    """A worker runs all the while, and does the work of another queue; the retry is due and is not made."""
    said = app.run("call", "app:rd", "busy_at_first", '{"name": "ada"}', "--json")
    assert (said.status, said.json["queued_for_retry"]) == (1, True)
    id = said.json["operation_id"]
    assert app.run("queues", "pause", "busy_at_first", "--why", "their maintenance window").status == 0
    due = datetime.fromisoformat(app.job(id)["run_at"])
    wait_until(lambda: datetime.now(UTC) > due, "the retry is due")
    worker = app.start("worker", "app:rd")
    for name in ("bob", "eve", "kim"):
        other = app.enqueue("greet", {"name": name})
        wait_until(lambda other=other: app.state(other) == "done", "another queue goes on")  # type: ignore[misc]
    app.drain()
    assert (tries(app), app.state(id)) == (["ada"], "waiting")
    (shown,) = [queue for queue in app.run("queues", "--json").json if queue["name"] == "busy_at_first"]
    assert (shown["paused"], app.run("operations", "--json").json["queued"]) == (True, 1)
    assert app.run("queues", "resume", "busy_at_first").status == 0
    wait_until(lambda: app.state(id) == "done", "the retry is made by the worker that was running")
    assert tries(app) == ["ada", "ada"]
    worker.terminate()
    assert ended(worker).status == 0


def tries(shell: Shell) -> list[str]:
    return (shell.folder / "tries").read_text().splitlines()
