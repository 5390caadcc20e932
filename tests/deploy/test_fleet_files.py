"""The compose file and the systemd pair of a small fleet start commands that exist, on URLs that can be read."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from redrive.doors.cli import cli
from redrive.stores.replica.nats_address import read_address
from tests.deploy.test_files import DEPLOY, REDRIVE, Unit, analyze, seconds


def unit(name: str) -> Unit:
    found = Unit(strict=True, interpolation=None, comment_prefixes=("#",), delimiters=("=",))
    found.read_string((DEPLOY / name).read_text("utf-8"))
    return found


def composed() -> dict[str, Any]:
    import yaml  # comes with schemathesis

    found: dict[str, Any] = yaml.safe_load((DEPLOY / "fleet.compose.yaml").read_text("utf-8"))
    return found


@pytest.mark.parametrize(("name", "command"), [("redrive-hub.service", "hub"), ("redrive-worker.service", "worker")])
def test_a_unit_starts_its_command_and_systemd_understands_it(name: str, command: str, tmp_path: Path) -> None:
    service = unit(name)["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert words[0] == command and command in cli.commands
    assert service["Restart"] == "always" and service["RestartPreventExitStatus"] == "2"
    assert service["Environment"].partition("=")[2].startswith(f"/var/lib/{service['StateDirectory']}")
    if shutil.which("systemd-analyze") is None:
        return
    text = (DEPLOY / name).read_text("utf-8").replace(program, str(REDRIVE)).replace("/opt/myapp", str(tmp_path))
    (tmp_path / name).write_text(text, "utf-8")
    verified = analyze("verify", "--man=no", str(tmp_path / name))
    assert verified.returncode == 0 and name not in verified.stderr, verified.stderr


def test_compose_starts_three_servers_three_hubs_and_workers_that_know_all_servers() -> None:
    services = composed()["services"]
    address = read_address(services["worker"]["environment"]["REDRIVE_URL"])
    servers = [name for name in services if name.startswith("nats-")]
    assert [host.partition(":")[0] for host in address.hosts] == servers and address.replicas == len(servers) == 3
    assert address.synced and "sync_interval: always" in composed()["configs"]["node"]["content"]
    ours = {name: service for name, service in services.items() if name not in servers}
    assert {service["command"][0] for service in ours.values()} == {"serve", "hub", "worker"}
    assert all(seconds(service["stop_grace_period"]) > 30 for service in ours.values())
    volumes = {volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", ())}
    assert volumes == set(composed()["volumes"])
