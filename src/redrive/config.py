"""Settings: file < environment < arguments, merged once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from redrive.core.agents import ESCALATION, Agent, Model
from redrive.core.checks import MOST, check_number, check_range
from redrive.core.classify import DeclaredRule
from redrive.core.notices import NotifyPolicy, check_notify
from redrive.core.payload import LIMIT
from redrive.core.policy import DEFAULT, Policy, check
from redrive.errors import ConfigError, InvalidInput
from redrive.runtime.delivery_policy import DeliveryPolicy

FILE = "redrive.toml"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set. Names are the same in redrive.toml, as REDRIVE_* and as arguments."""

    url: str = ""
    concurrency: int = 100
    agent_concurrency: int | None = None
    grace: float = 30.0
    poll: float = 5.0
    payload_limit: int = LIMIT
    retention: float = DEFAULT.retention or 0.0
    key_retention: float | None = None
    spool: str | None = None
    ring: int = 20
    version: str | None = None
    escalation: str = ESCALATION
    triage: bool = False
    triage_owner: str = "person"
    triage_defer: float = 86400.0
    agents: dict[str, Agent] | None = None
    models: dict[str, Model] = {}
    rules: tuple[DeclaredRule, ...] = ()
    queues: dict[str, Policy] = {}
    delivery: DeliveryPolicy = DeliveryPolicy()
    notify: NotifyPolicy = NotifyPolicy()


def load(
    arguments: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Settings:
    """The settings in force. One error names the setting and where it came from."""
    environ = os.environ if environ is None else environ
    merged = _from_file(environ, folder or Path.cwd()) | _from_environment(environ)
    merged |= {name: value for name, value in arguments.items() if value is not None}
    try:
        settings = msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"setting refused: {error}") from None
    try:
        for name, policy in settings.queues.items():
            check(policy, f"queues.{name}")
        for rule in settings.rules:
            rule.as_rule()
        check_notify(settings.notify)
        check_work(settings.concurrency, settings.agent_concurrency, settings.poll, settings.grace)
    except InvalidInput as error:
        raise ConfigError(str(error)) from None
    if not settings.triage_owner or not 0 < settings.triage_defer <= 366 * 86400:
        raise ConfigError("triage_owner: must name somebody; triage_defer: must be at most a year of seconds")
    return settings if settings.url else msgspec.structs.replace(settings, url=str(default_path(environ)))


def check_work(concurrency: object, agent_concurrency: object, poll: object, grace: object) -> None:
    """How a worker works, whether it is set for all or asked of one."""
    check_range("concurrency", concurrency, 1, MOST)
    if agent_concurrency is not None:
        check_range("agent_concurrency", agent_concurrency, 1, MOST)
    check_number("poll", poll, above=True)
    check_number("grace", grace, endless=True)


def _from_file(environ: Mapping[str, str], folder: Path) -> dict[str, Any]:
    named = environ.get("REDRIVE_CONFIG")
    path = Path(named).expanduser() if named else folder / FILE
    if not named and not path.exists():
        return {}
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"REDRIVE_CONFIG names {path}, which does not exist") from None
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


_PLAIN = ("url", "concurrency", "agent_concurrency", "grace", "poll", "payload_limit", "retention", "key_retention",
          "spool", "ring", "version", "escalation", "triage", "triage_owner", "triage_defer")  # fmt: skip


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return {name: environ[key] for name in _PLAIN if (key := f"REDRIVE_{name.upper()}") in environ}


def default_path(environ: Mapping[str, str]) -> Path:
    """Where jobs live when nobody says: the XDG state folder."""
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local" / "state")
    return Path(state) / "redrive" / "jobs.db"
