"""What is in deploy/ does what it says, as far as that can be told without a daemon: units, images, healthchecks."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from redrive.config import Settings
from redrive.doors.cli import cli

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
REDRIVE = Path(sys.executable).with_name("redrive")
SAFE_ENOUGH = 2.5
"""systemd's measure of what a service could do, from 0 (nothing) to 10 (anything)."""


class Unit(configparser.RawConfigParser):
    """systemd's dialect, as far as our unit uses it: names count as they are written."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit() -> Unit:
    found = Unit(strict=True, interpolation=None, comment_prefixes=("#",), delimiters=("=",))
    found.read_string((DEPLOY / "redrive.service").read_text("utf-8"))
    return found


def seconds(text: str) -> float:
    number, suffix = re.fullmatch(r"([\d.]+)(s?)", text).groups()  # type: ignore[union-attr]
    assert suffix in ("", "s")
    return float(number)


# -- the unit


def test_the_unit_starts_a_command_that_exists() -> None:
    service = unit()["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "redrive"
    assert words[0] in cli.commands
    assert service["Type"] == "exec"


def test_the_unit_waits_for_longer_than_a_worker_takes_to_stop() -> None:
    service = unit()["Service"]
    assert seconds(service["TimeoutStopSec"]) > Settings().grace
    assert service["KillMode"] == "mixed"


@pytest.mark.behaviour("T-8e")
def test_the_unit_comes_back_after_a_crash_but_not_after_a_wrong_setting() -> None:
    service = unit()["Service"]
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"] == "2"
    said = subprocess.run(
        [REDRIVE, "--url", "mysql://nowhere", "stats"], capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 2, said.stderr


def test_the_unit_writes_only_where_its_database_is() -> None:
    service = unit()["Service"]
    assert service["ProtectSystem"] == "strict"
    name, _, value = service["Environment"].partition("=")
    assert name == "REDRIVE_URL"
    assert Path(value).parent == Path("/var/lib") / service["StateDirectory"]


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """Every setting is one that systemd knows, with a value that it takes."""
    if shutil.which("systemd-analyze") is None:
        unknown = [name for section in unit().values() for name in section if not name[:1].isupper()]
        assert unknown == []
        return
    text = (DEPLOY / "redrive.service").read_text("utf-8")
    text = text.replace("/opt/myapp/.venv/bin/redrive", str(REDRIVE)).replace("/opt/myapp", str(tmp_path))
    file = tmp_path / "redrive.service"
    file.write_text(text, "utf-8")
    verified = analyze("verify", "--man=no", str(file))
    assert verified.returncode == 0 and "redrive.service" not in verified.stderr, verified.stderr
    judged = analyze("security", "--offline=true", "--no-pager", str(file))
    level = re.search(r"exposure level for redrive\.service: ([\d.]+)", judged.stdout)
    assert level is not None, judged.stderr
    assert float(level[1]) <= SAFE_ENOUGH


def test_a_setting_that_systemd_does_not_know_is_noticed(tmp_path: Path) -> None:
    """The control: the test above can fail."""
    if shutil.which("systemd-analyze") is None:
        return
    file = tmp_path / "redrive.service"
    file.write_text(f"[Service]\nExecStart={REDRIVE} serve\nProtectEverything=yes\n", "utf-8")
    assert "redrive.service" in analyze("verify", "--man=no", str(file)).stderr


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip


# -- the image


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


def said(word: str) -> list[str]:
    return [rest for found, rest in instructions() if found == word]


KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
         "ENTRYPOINT", "CMD"}  # fmt: skip


def test_the_image_installs_extras_that_exist() -> None:
    assert {word for word, _ in instructions()} <= KNOWN
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (install,) = [rest for rest in said("RUN") if "pip install" in rest]
    extras = re.search(r'"\.\[([\w,]+)\]"', install)
    assert extras is not None
    everything = set(project["optional-dependencies"]) - {"all"}
    assert set(extras[1].split(",")) == everything
    assert "--no-cache-dir" in install


def test_the_image_has_what_its_build_reads() -> None:
    """The package's metadata names files; a COPY without them would fail to build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    copied = {word for rest in said("COPY") if "--from" not in rest for word in rest.split()[:-1]}
    assert {"pyproject.toml", "src", project["readme"], *project["license-files"]} == copied
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}


def test_the_image_runs_python_that_redrive_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (default,) = said("ARG")
    version = default.removeprefix("PYTHON=")
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    assert all(rest.startswith("python:${PYTHON}-slim") for rest in said("FROM"))


def test_the_image_runs_without_rights_on_a_volume_that_is_its_own() -> None:
    words = [word for word, _ in instructions()]
    (user,), (volume,) = said("USER"), said("VOLUME")
    assert user.split(":")[0].isdecimal() and int(user.split(":")[0]) >= 1000
    assert words.index("USER") < words.index("ENTRYPOINT")
    (folder,) = json.loads(volume)
    (environment,) = said("ENV")
    assert f"REDRIVE_URL={folder}/jobs.db" in environment.split()
    (made,) = [rest for rest in said("RUN") if "useradd" in rest]
    assert f"--uid {user.split(':')[0]} " in made and made.endswith(folder)


def test_the_image_starts_a_command_that_exists() -> None:
    (entry,), (command,) = said("ENTRYPOINT"), said("CMD")
    assert json.loads(entry) == ["redrive"]
    check_command(json.loads(command))


def check_command(words: list[str]) -> None:
    name, *options = words
    command = cli.commands[name]
    known = {option for parameter in command.params for option in parameter.opts}
    assert [word for word in options if word.startswith("--") and word not in known] == []


class Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_healthcheck_says_how_it_is(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch, status: int, healthy: bool
) -> None:
    monkeypatch.setattr(Health, "status", status)
    (check,) = said("HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    assert command[0] == "python" and "127.0.0.1:8420/healthz" in command[-1]
    command = [sys.executable, *command[1:-1], command[-1].replace(":8420", f":{server.server_port}")]
    ran = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (ran.returncode == 0) is healthy


# -- compose


def composed() -> dict[str, Any]:
    import yaml  # comes with schemathesis

    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return found


def test_compose_builds_our_image_and_keeps_its_volume() -> None:
    found = composed()
    service = found["services"]["redrive"]
    context = (DEPLOY / service["build"]["context"]).resolve()
    assert (context / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    volume, _, folder = service["volumes"][0].partition(":")
    assert volume in found["volumes"] and [folder] == json.loads(said("VOLUME")[0])
    check_command(service["command"])


def test_compose_gives_a_worker_the_time_to_stop_and_nobody_else_a_way_in() -> None:
    service = composed()["services"]["redrive"]
    assert seconds(service["stop_grace_period"]) > float(service["environment"]["REDRIVE_GRACE"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["cap_drop"] == ["ALL"] and service["read_only"] is True


def test_settings_in_deploy_are_settings() -> None:
    text = "\n".join(file.read_text("utf-8") for file in DEPLOY.iterdir())
    names = set(re.findall(r"REDRIVE_([A-Z_]+)", text))
    assert names - {"TOKEN"} <= {name.upper() for name in Settings.__struct_fields__}
    assert {"URL", "GRACE"} <= names
