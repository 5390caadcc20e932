"""Presets: sets of queues and agents that a user may ask for by name. Without one there are none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from redrive.core.agents import Agent
from redrive.core.policy import Policy, merge

PresetName = Literal["agent_os", "seven_agents"]
"""The names that `Redrive(preset=…)` takes."""


class Preset(msgspec.Struct, frozen=True):
    """Queues, agents, who gets what no agent can do, and what holds for jobs with an agent. Settings go over it."""

    queues: Mapping[str, Policy] = {}
    agents: Mapping[str, Agent] = {}
    escalation: str | None = None
    agent_policy: Policy | None = None


PRESETS: Final[Mapping[str, Preset]] = {
    "agent_os": Preset(
        queues={
            "analytics_ingest": Policy(timeout=60.0, max_attempts=5, base=2.0, criticality="critical"),
            "learning_capture": Policy(timeout=600.0, max_attempts=3, base=1.0, criticality="critical"),
            "identity_provision": Policy(timeout=60.0, max_attempts=10, base=5.0, cap=600.0, criticality="high"),
            "feedback": Policy(timeout=60.0, max_attempts=5, base=2.0, criticality="critical"),
            "mesh_keys": Policy(timeout=60.0, max_attempts=10, base=5.0, cap=600.0, criticality="high"),
            "security_notify": Policy(timeout=60.0, max_attempts=5, base=3.0, criticality="high"),
            "artifact_delivery": Policy(timeout=60.0, max_attempts=5, base=2.0, criticality="critical"),
            "conversation_index": Policy(timeout=600.0, max_attempts=5, base=2.0, criticality="critical"),
            "graph_write": Policy(timeout=600.0, max_attempts=5, base=2.0, criticality="critical"),
            "knowledge_ingest": Policy(timeout=600.0, max_attempts=5, base=2.0, criticality="high"),
            "session_promotion": Policy(timeout=600.0, max_attempts=5, base=2.0, criticality="high"),
        }
    ),
    "seven_agents": Preset(
        agents={
            "cto": Agent(("code_review", "architecture", "technical_writing", "debugging")),
            "backend": Agent(("code_review", "implementation", "api_design", "debugging")),
            "frontend": Agent(("implementation", "ui_review", "technical_writing")),
            "marketing": Agent(("content_creation", "technical_writing", "social_media")),
            "devops": Agent(("deployment", "monitoring", "infrastructure", "debugging")),
            "cso": Agent(("security_review", "vulnerability_scan", "compliance")),
        },
        escalation="ceo",
        agent_policy=Policy(max_attempts=3, base=30.0, cap=300.0),
    ),
}
"""`agent_os`: eleven queues, a minute for what calls others, ten for what works through a text. `seven_agents`: six
agents and the one who gets what they cannot do; their jobs have three tries, 30 s doubling to 300 s."""


def combine(names: Iterable[str]) -> Preset:
    """Merge presets into one; a later one goes over an earlier one."""
    whole = Preset()
    for name in names:
        whole = _over(PRESETS[name], whole)
    return whole


def _over(later: Preset, earlier: Preset) -> Preset:
    return Preset(
        {**earlier.queues, **later.queues},
        {**earlier.agents, **later.agents},
        later.escalation if later.escalation is not None else earlier.escalation,
        merge(later.agent_policy, earlier.agent_policy) if later.agent_policy else earlier.agent_policy,
    )
