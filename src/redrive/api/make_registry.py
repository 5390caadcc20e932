"""Makes the registry of tasks and policies from the settings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.config import Settings
from redrive.core.agents import AgentFleet
from redrive.core.policy import Policy, merge, with_seconds
from redrive.core.presets import combine
from redrive.engine.registry import Registry, Summarise
from redrive.errors import ConfigError
from redrive.retries.changes import Counter, estimate


def make_registry(settings: Settings, count_tokens: Counter | None, summarise: Summarise | None) -> Registry:
    """Makes the registry that these settings describe, over those of their presets; it knows no task yet."""
    ready_made = combine(settings.preset)
    of_all = Policy(
        fallback=settings.fallback,
        fallback_after=settings.fallback_after,
        comebacks=settings.comebacks if settings.triage else (),
    )
    escalation = ready_made.escalation if settings.escalation is None else settings.escalation  # empty turns it off
    return Registry(
        settings.queues,
        of_all,
        preset_queues=ready_made.queues,
        agent_policy=merge(settings.agent_policy, ready_made.agent_policy),
        fleet=AgentFleet({**ready_made.agents, **settings.agents}, settings.models, escalation or None),
        rules=[(f"redrive.toml rules[{number}]", rule.as_rule()) for number, rule in enumerate(settings.rules)],
        count=count_tokens or estimate,
        summarise=summarise,
        version=settings.version,
    )


def policies_of(queues: object) -> dict[str, Policy] | None:
    """Reads the argument `queues` of Redrive: policies, or dicts of their fields."""
    if queues is None:
        return None
    if not isinstance(queues, Mapping) or not all(isinstance(policy, Policy | Mapping) for policy in queues.values()):
        raise ConfigError("queues: must map names of queues to a redrive.Policy, or to a dict of its fields")
    try:
        return {
            name: policy if isinstance(policy, Policy) else msgspec.convert(with_seconds(policy), Policy)
            for name, policy in queues.items()
        }
    except msgspec.ValidationError as error:
        raise ConfigError(f"queues: {error}") from None
