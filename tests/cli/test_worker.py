"""worker: one process, several processes, signals, drain."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from redrive.doors.cli import worker_processes
from tests.cli.shell import DEADLINE, Shell, ended, refused, wait_until


def started(folder: Path) -> list[int]:
    """The processes that have begun a `mark` job."""
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob("started-*"))


def finished(folder: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob("finished-*"))


def test_a_worker_runs_a_job_and_stops_at_sigterm(shell: Shell) -> None:
    worker = shell.start_fresh("worker", "app:rd")
    wait_until(shell.database.exists, "the worker made the database")
    id = shell.enqueue("greet", {"name": "x"})
    wait_until(lambda: shell.state(id) == "done", "the job was done")
    worker.send_signal(signal.SIGTERM)
    done = ended(worker)
    assert done.status == 0, done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_lets_running_jobs_finish(shell: Shell, told: signal.Signals) -> None:
    go = shell.folder / "go"
    id = shell.enqueue("mark", {"folder": str(shell.folder), "until": str(go)})
    worker = shell.start("worker", "app:rd")
    wait_until(lambda: started(shell.folder) == [worker.pid], "the job began")
    worker.send_signal(told)
    go.touch()
    assert ended(worker).status == 0
    assert shell.state(id) == "done"


def test_a_worker_gives_back_what_outlasts_the_grace(shell: Shell) -> None:
    id = shell.enqueue("mark", {"folder": str(shell.folder), "until": str(shell.folder / "never")})
    worker = shell.start("worker", "app:rd", "--grace", "0")
    wait_until(lambda: started(shell.folder) == [worker.pid], "the job began")
    worker.send_signal(signal.SIGTERM)
    assert ended(worker).status == 0
    job = shell.job(id)
    assert (job["state"], job["attempts"]) == ("waiting", 0)


def test_a_worker_takes_only_its_queues_and_agents(shell: Shell) -> None:
    ids = {
        (queue, agent): shell.enqueue("greet", {"name": "x"}, "--queue", queue, *(("--agent", agent) if agent else ()))
        for queue in ("a", "b", "c")
        for agent in ("", "ada", "bob")
    }
    done = shell.run("worker", "app:rd", "--drain", "--queues", "a, b", "--agents", "ada", "--concurrency", "1")
    assert done.status == 0, done.err
    assert {at for at, id in ids.items() if shell.state(id) == "done"} == {("a", "ada"), ("b", "ada")}


def test_drain_stops_at_sigterm_and_says_that_it_did(shell: Shell) -> None:
    shell.enqueue("mark", {"folder": str(shell.folder), "until": str(shell.folder / "never")})
    worker = shell.start("worker", "app:rd", "--drain", "--grace", "0")
    wait_until(lambda: started(shell.folder) == [worker.pid], "the job began")
    worker.send_signal(signal.SIGTERM)
    done = ended(worker)
    assert done.status == 143 and "stopped before" in done.out


def children(parent: subprocess.Popen[str]) -> list[int]:
    """The parent's child processes, as the system sees them."""
    return [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def test_a_killed_child_is_started_again_and_all_stop_when_told(shell: Shell) -> None:
    go = shell.folder / "go"
    payload = {"folder": str(shell.folder), "until": str(go)}
    for n in range(2):
        shell.enqueue("mark", payload | {"folder": str(_made(shell.folder / str(n)))})
    parent = shell.start("worker", "app:rd", "--processes", "2", "--concurrency", "1")
    wait_until(lambda: all(started(shell.folder / str(n)) for n in range(2)), "both jobs began")
    first, second = children(parent)
    assert {*started(shell.folder / "0"), *started(shell.folder / "1")} == {first, second}
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(set(children(parent)) - {first, second}) == 1, "another child was started")
    (third,) = set(children(parent)) - {first, second}
    wait_until(lambda: third in (*started(shell.folder / "0"), *started(shell.folder / "1")), "it took the lost job")
    go.touch()
    wait_until(lambda: finished(shell.folder / "0") + finished(shell.folder / "1") != [], "a job was finished")
    parent.send_signal(signal.SIGTERM)
    done = ended(parent)
    assert done.status == 0, done.err
    assert "worker 1 ended by itself (SIGKILL)" in done.err or "worker 2 ended by itself (SIGKILL)" in done.err
    assert not any(map(alive, (first, second, third)))
    assert [job["state"] for job in shell.here("jobs", "--json").json["jobs"]] == ["done", "done"]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_children_do_not_outlive_a_killed_parent(shell: Shell) -> None:
    shell.enqueue("mark", {"folder": str(shell.folder)})
    parent = shell.start("worker", "app:rd", "--processes", "2")
    wait_until(lambda: len(finished(shell.folder)) == 1 and len(children(parent)) == 2, "the children work")
    both = children(parent)
    parent.kill()
    wait_until(lambda: not any(map(alive, both)), "the children ended")


def test_several_processes_drain_and_exit(shell: Shell) -> None:
    ids = [shell.enqueue("greet", {"name": str(n)}) for n in range(5)]
    done = shell.run("worker", "app:rd", "--processes", "2", "--drain", "--json")
    assert done.status == 0, done.err
    assert done.json == {"stopped": True, "processes": 2, "restarts": 0}
    assert {shell.state(id) for id in ids} == {"done"}
    assert all(json.loads(line)["message"] for line in done.err.splitlines())


APP = "import redrive\nrd = redrive.Redrive()\n\n@rd.task('tell')\ndef tell() -> str:\n    return {!r}\n"


def test_reload_runs_what_the_file_says_now(shell: Shell) -> None:
    """Also after it was broken for a moment. A virtual environment in the folder is nobody's source."""

    def told() -> str:
        id = shell.enqueue("tell")
        wait_until(lambda: shell.state(id) == "done", "the job was done")
        found: str = shell.job(id)["result"]
        return found

    app = shell.folder / "lately.py"
    app.write_text(APP.format("first"))
    installed = _made(shell.folder / "env") / "pyvenv.cfg"
    installed.touch()
    parent = shell.start("worker", "lately:rd", "--reload", "--processes", "2")
    assert told() == "first"
    (shell.folder / "env" / "module.py").touch()
    app.write_text("this is not Python")
    wait_until(lambda: children(parent) == [], "both have ended, and none is started again")
    app.write_text(APP.format("second time"))
    assert told() == "second time"
    parent.send_signal(signal.SIGTERM)
    done = ended(parent)
    assert done.status == 0, done.err
    assert "lately.py changed: the workers are started again" in done.err
    assert "started again after the next change" in done.err
    assert "module.py" not in done.err and "Traceback" not in done.err


def test_a_mistake_in_the_app_is_shown_where_it_was_made(shell: Shell) -> None:
    app = shell.folder / "wrong.py"
    app.write_text("import redrive\nrd = redrive.Redrive()\n@rd.task(colour='red')\ndef a() -> None: ...\n")
    done = shell.run("worker", "wrong:rd")
    refused(done, "colour")
    assert f"{app}, line 3" in done.err


def test_reload_does_not_go_with_drain(shell: Shell) -> None:
    refused(shell.here("worker", "app:rd", "--reload", "--drain"), "--drain")


def test_what_a_job_says_cannot_command_the_terminal_of_its_worker(shell: Shell) -> None:
    """Nor write a line of its own into the log."""
    app = (shell.folder / "app.py").read_text()
    says = 'raise RuntimeError("\\x1b]0;owned\\x07\\n2031-05-17 07:00:00,000 1 INFO all is well")'
    (shell.folder / "app.py").write_text(app.replace('raise RuntimeError("the mill is broken")', says))
    shell.enqueue("broken")
    done = shell.run("worker", "app:rd", "--drain")
    assert "\x1b" not in done.err and "\x07" not in done.err and "\\x1b]0;owned\\x07" in done.err
    assert not [line for line in done.err.splitlines() if line.startswith("2031-05-17")]


def test_a_store_that_cannot_be_opened_is_told_once(shell: Shell) -> None:
    refused(shell.run("worker", "app:rd", "--processes", "3", "--url", "no/such/folder/jobs.db"), "no/such/folder")


def test_url_goes_to_an_app_that_leaves_it_open(shell: Shell) -> None:
    id = shell.enqueue("greet", {"name": "x"}, "--url", "other.db")
    assert shell.run("worker", "app:rd", "--drain", "--url", "other.db").status == 0
    assert shell.here("status", id, "--url", "other.db", "--json").json["state"] == "done"
    assert not shell.database.exists()


def _interrupt(child: subprocess.Popen[str]) -> int:
    """Ctrl-C, then the end of its input: a signal that comes just before a blocking read is seen after it."""
    child.send_signal(signal.SIGINT)
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.close()
    child.stdin = None
    return child.wait(DEADLINE)


def test_ctrl_c_exits_130_quietly(shell: Shell) -> None:
    """A command that reads its payload from a pipe is interrupted."""
    child = shell.start("enqueue", "greet", "-", piped=True)
    assert child.stdin is not None
    child.stdin.write(" " * 300_000)  # more than a pipe holds: when this returns, the command is reading
    status = _interrupt(child)
    assert child.stdout is not None and child.stderr is not None
    assert (status, child.stdout.read(), child.stderr.read().strip()) == (130, "", "")


def test_a_folder_that_may_not_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database's folder of another user beside the code had ended the watch in silence."""
    (tmp_path / "pgdata").mkdir()
    (tmp_path / "tasks.py").write_text("rd = 1\n")
    stat = os.stat

    def barred(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(str(tmp_path / "pgdata") + os.sep):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", barred)
    assert list(worker_processes.stamp_sources(tmp_path)) == [tmp_path / "tasks.py"]
