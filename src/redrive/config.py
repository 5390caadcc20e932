"""Settings: file < environment < arguments, merged once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from redrive.core.agents import Agent, Model
from redrive.core.checks import MOST, check_choice, check_number, check_range
from redrive.core.job import TRACE_ID
from redrive.core.notice import NotifyPolicy, check_notify
from redrive.core.pain import SignalPolicy, check_signals
from redrive.core.payload import LIMIT
from redrive.core.policy import DEFAULT, Policy, check, check_comebacks, with_seconds
from redrive.core.presets import PRESETS
from redrive.core.repeats import RepeatRule, check_repeats
from redrive.errors import ConfigError, InvalidInput
from redrive.failures.classify import DeclaredRule
from redrive.http.policy import DeliveryPolicy

FILE = "redrive.toml"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set. Names are the same in redrive.toml, as REDRIVE_* and as arguments."""

    url: str = ""
    preset: tuple[str, ...] = ()
    concurrency: int = 100
    agent_concurrency: int | None = None
    agent_scope: str = "process"
    """Where agent_concurrency counts: in each worker process, or "store": exactly, over all workers of all hosts."""
    grace: float = 30.0
    poll: float = 5.0
    payload_limit: int = LIMIT
    retention: float = DEFAULT.retention or 0.0
    key_retention: float | None = None
    replica: bool = False
    """With a nats:// URL: keep a replica of the log in this process instead of asking hubs."""
    replica_days: float = 30.0
    """A replica's file that was not opened for so many days is deleted before it is read: it may hold erased words."""
    replica_folder: str | None = None
    """Where this machine keeps replicas and what belongs to them; None for a folder below the XDG state folder."""
    inbox: str | None = None
    """The database in which `within=` leaves jobs; workers move them from there. postgresql://… or sqlite:///…"""
    spool: str | None = None
    fallback: bool = False
    fallback_after: float = DEFAULT.fallback_after or 0.0
    ring: int = 20
    repeats: int = 5
    repeats_window: int = 15
    version: str | None = None
    trace_url: str | None = None
    """Where a job's trace is shown: a URL with `{trace_id}`, of Sentry, Langfuse, Logfire or another collector."""
    escalation: str | None = None
    triage: bool = True
    """False is another way to say `comebacks = []`."""
    comebacks: tuple[float, ...] | None = None
    """When dead letters come back by themselves, for every queue that does not say: see Policy.comebacks."""
    agents: dict[str, Agent] = {}
    agent_policy: Policy | None = None
    models: dict[str, Model] = {}
    rules: tuple[DeclaredRule, ...] = ()
    queues: dict[str, Policy] = {}
    delivery: DeliveryPolicy = DeliveryPolicy()
    notify: NotifyPolicy = NotifyPolicy()
    signals: SignalPolicy = SignalPolicy()


def load(
    arguments: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Settings:
    """Merges the settings in force. One error names the setting and where it came from."""
    environ = os.environ if environ is None else environ
    merged = _from_file(environ, folder or Path.cwd()) | _from_environment(environ)
    merged |= {name: value for name, value in arguments.items() if value is not None}
    merged["preset"] = read_preset(merged.get("preset", ()))
    merged = _in_seconds(merged)
    try:
        settings = msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"setting refused: {error}") from None
    try:
        for name, policy in settings.queues.items():
            check(policy, f"queues.{name}")
        if settings.agent_policy is not None:
            check(settings.agent_policy, "agent_policy")
        for rule in settings.rules:
            rule.as_rule()
        check_notify(settings.notify)
        check_signals(settings.signals)
        if settings.comebacks is not None:
            check_comebacks("comebacks", settings.comebacks)
        check_repeats(RepeatRule(settings.repeats, settings.repeats_window))
        check_number("fallback_after", settings.fallback_after, above=True)
        check_trace_url(settings.trace_url)
        check_work(settings.concurrency, settings.agent_concurrency, settings.poll, settings.grace)
        check_choice("agent_scope", settings.agent_scope, ("process", "store"))
        check_number("replica_days", settings.replica_days, above=True)
    except InvalidInput as error:
        raise ConfigError(str(error)) from None
    return settings if settings.url else msgspec.structs.replace(settings, url=str(default_path(environ)))


def _in_seconds(merged: dict[str, Any]) -> dict[str, Any]:
    """Durations such as "5m" as seconds: the settings' own, and those of the policies."""
    merged = with_seconds(merged, _DURATIONS)
    if isinstance(queues := merged.get("queues"), dict):
        merged["queues"] = {name: _policy_in_seconds(said) for name, said in queues.items()}
    if "agent_policy" in merged:
        merged["agent_policy"] = _policy_in_seconds(merged["agent_policy"])
    return merged


def _policy_in_seconds(said: Any) -> Any:
    return with_seconds(said) if isinstance(said, Mapping) else said


_DURATIONS = frozenset({"grace", "poll", "retention", "key_retention", "fallback_after", "comebacks"})


def read_preset(said: object) -> tuple[str, ...]:
    """Read the names of presets: one, several with commas between, or a list. Refuses a name that is no preset."""
    names = [name.strip() for name in said.split(",")] if isinstance(said, str) else said
    if not isinstance(names, list | tuple):
        raise ConfigError(f"preset: {said!r} is neither a name nor a list of names; the presets are {_KNOWN}")
    for name in names:
        if name != "" and (not isinstance(name, str) or name not in PRESETS):
            raise ConfigError(f"preset: there is no preset {name!r}; the presets are {_KNOWN}")
    return tuple(name for name in names if name)


_KNOWN = ", ".join(PRESETS)


def check_work(concurrency: object, agent_concurrency: object, poll: object, grace: object) -> None:
    """Checks how a worker works, whether it is set for all or asked of one."""
    check_range("concurrency", concurrency, 1, MOST)
    if agent_concurrency is not None:
        check_range("agent_concurrency", agent_concurrency, 1, MOST)
    check_number("poll", poll, above=True)
    check_number("grace", grace, endless=True)


def check_trace_url(said: str | None) -> None:
    """Refuse a template from which no link to a trace can be made."""
    if said is None:
        return
    if not said.startswith(("https://", "http://")) or TRACE_ID not in said:
        raise InvalidInput(field="trace_url", problem=f"{said[:200]!r} is no URL with {TRACE_ID} in it")


def _from_file(environ: Mapping[str, str], folder: Path) -> dict[str, Any]:
    named = environ.get("REDRIVE_CONFIG")
    path = Path(named).expanduser() if named else folder / FILE
    if not named and not path.exists():
        return {}
    import tomllib

    try:
        return _flattened(tomllib.loads(path.read_text(encoding="utf-8")), path)
    except FileNotFoundError:
        raise ConfigError(f"REDRIVE_CONFIG names {path}, which does not exist") from None
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _flattened(said: dict[str, Any], path: Path) -> dict[str, Any]:
    """Put the settings of a table `[redrive]` beside those at the top of the file; each may stand in one place only."""
    table = said.pop("redrive", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: redrive must be a table, [redrive]")
    if twice := sorted(said.keys() & table.keys()):
        raise ConfigError(f"{path}: {twice[0]} stands at the top and in [redrive]; keep one of them")
    return said | table


_PLAIN = ("url", "preset", "concurrency", "agent_concurrency", "agent_scope", "grace", "poll", "payload_limit",
          "retention", "key_retention", "replica", "replica_days", "replica_folder", "inbox", "spool", "fallback",
          "fallback_after", "ring", "repeats", "repeats_window", "version", "trace_url", "escalation",
          "triage")  # fmt: skip


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    return {name: environ[key] for name in _PLAIN if (key := f"REDRIVE_{name.upper()}") in environ}


def default_path(environ: Mapping[str, str]) -> Path:
    """Returns the default place of the store: the XDG state folder."""
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local" / "state")
    return Path(state) / "redrive" / "jobs.db"
