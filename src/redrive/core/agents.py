"""Who can do what, with which models: alternates, escalation, context budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

USUAL_CONTEXT: Final = 150_000
"""Tokens a model may read where nothing better is known of it."""

CONTEXTS: Final[dict[str, int]] = {
    "claude-sonnet": 150_000,
    "claude-3-5-sonnet": 150_000,
    "claude-3-7-sonnet": 150_000,
    "claude-": 180_000,
    "gpt-4o": 115_000,
    "gpt-4.1": 900_000,
    "gpt-5": 245_000,
    "o3": 180_000,
    "o4": 180_000,
    "gemini-": 900_000,
}
"""Tokens that models of a family may read, by the beginning of their names, the first that fits: the window less a
margin."""


class Agent(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One who does work: the kinds of it, and the models it may use, from the smallest to the largest."""

    does: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


class Model(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is known of a model: how much it may read, and which to take instead."""

    context: int | None = None
    larger: str | None = None
    other: str | None = None


class AgentFleet(msgspec.Struct, frozen=True):
    """The agents in their declared order, the models, and who gets what no agent can do. Empty unless configured."""

    agents: Mapping[str, Agent] = {}
    models: Mapping[str, Model] = {}
    escalation: str | None = None

    def alternate(self, agent: str | None, work: str) -> str | None:
        """Name the first other agent that does this kind of work, else the escalation agent; None without either."""
        able = (name for name, known in self.agents.items() if name != agent and work in known.does)
        return next(able, self.escalation)

    def context(self, model: str | None) -> int:
        """Tokens the model may read: as declared, else by its family, else the usual."""
        known = self.known_context(model)
        return known if known is not None else USUAL_CONTEXT

    def known_context(self, model: str | None) -> int | None:
        """Tokens the model may read, as declared or by its family; None where that would be a guess."""
        known = self.models.get(model or "")
        if known is not None and known.context is not None:
            return known.context
        bare = (model or "").rpartition("/")[2]
        return next((size for start, size in CONTEXTS.items() if bare.startswith(start)), None)

    @property
    def smallest(self) -> int:
        """The fewest tokens that any model may read."""
        declared = (model.context for model in self.models.values() if model.context is not None)
        return min(USUAL_CONTEXT, *CONTEXTS.values(), *declared)

    def larger(self, model: str | None, agent: str | None) -> str | None:
        """Name the next larger model that is declared. None is guessed, because a larger model costs more."""
        known = self.models.get(model or "")
        if known is not None and known.larger is not None:
            return known.larger
        own = self._models_of(agent)
        place = own.index(model) if model in own else -1
        return own[place + 1] if 0 <= place < len(own) - 1 else None

    def other(self, model: str | None, agent: str | None) -> str | None:
        """Name another model, as declared."""
        known = self.models.get(model or "")
        if known is not None and known.other is not None:
            return known.other
        return next((name for name in self._models_of(agent) if name != model), None)

    def _models_of(self, agent: str | None) -> tuple[str, ...]:
        known = self.agents.get(agent or "")
        return known.models if known else ()
