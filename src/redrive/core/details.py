"""The details that a failure can have, what each means, and the other names under which people and programs say it."""

from __future__ import annotations

from typing import Final

from redrive.core.job import Category, Heals, Subclass

DETAILS: Final[dict[str, tuple[Category, Heals, Subclass]]] = {
    "network": ("transient", "at_once", "Transient"),
    "timeout": ("transient", "at_once", "Transient"),
    "server_error": ("transient", "at_once", "Transient"),
    "rate_limited": ("transient", "later", "Transient"),
    "provider_overloaded": ("transient", "later", "Transient"),
    "contention": ("transient", "later", "Resource"),
    "own_limits": ("transient", "later", "Resource"),
    "preempted": ("transient", "at_once", "Transient"),
    "asked_to_retry": ("transient", "later", "Transient"),
    "outcome_unknown": ("unknown", "person", "Logic"),
    "context_overflow": ("conditional", "changed", "Resource"),
    "hallucination_loop": ("conditional", "changed", "Logic"),
    "token_budget": ("conditional", "changed", "Resource"),
    "model_confusion": ("conditional", "changed", "Logic"),
    "invalid_output": ("conditional", "changed", "Logic"),
    "refusal": ("conditional", "changed", "Authority"),
    "authority": ("permanent", "person", "Authority"),
    "impossible_task": ("permanent", "person", "Logic"),
    "dependency_gone": ("permanent", "person", "Resource"),
    "data_integrity": ("permanent", "person", "Logic"),
    "invalid_input": ("permanent", "person", "Logic"),
    "needs_human": ("permanent", "person", "Authority"),
    "quota": ("permanent", "person", "Resource"),
    "bug": ("permanent", "person", "Logic"),
    "interrupted_itself": ("permanent", "person", "Logic"),
    "gave_up": ("permanent", "person", "Logic"),
    "unroutable": ("permanent", "person", "Resource"),
    "credentials": ("permanent", "person", "Authority"),
    "credentials_expired": ("permanent", "later", "Authority"),
    "suspended": ("control", "person", "Authority"),
    "released": ("control", "at_once", "Transient"),
    "unknown": ("unknown", "unknown", "Logic"),
}
"""What each detail means: (category, heals, sub-class)."""

ALIASES: Final[dict[str, str]] = {
    "llm_provider_timeout": "timeout",
    "llm_provider_rate_limit": "rate_limited",
    "network_transient": "network",
    "github_api_rate_limit": "rate_limited",
    "gke_node_preemption": "preempted",
    "context_window_overflow": "context_overflow",
    "token_budget_exceeded": "token_budget",
    "authority_exceeded": "authority",
    "dependency_unavailable": "dependency_gone",
    "refused": "authority",
    "transient": "server_error",
    "permanent": "invalid_input",
    "delivery_rejected": "invalid_input",
    "forbidden_address": "authority",
    "rate_limit": "rate_limited",
    "overloaded": "provider_overloaded",
    "connection": "network",
    "unreachable": "network",
    "unavailable": "server_error",
    "startup_race": "contention",
    "starting": "contention",
    "not_ready": "contention",
    "conflict": "contention",
    "uncertain": "outcome_unknown",
    "uncertain_write": "outcome_unknown",
    "post_write_uncertain": "outcome_unknown",
    "user_must_act": "needs_human",
    "user_action_required": "needs_human",
    "app_closed": "needs_human",
    "app_not_running": "needs_human",
    "plugin_missing": "needs_human",
    "plugin_disabled": "needs_human",
    "not_installed": "needs_human",
    "approval_required": "suspended",
    "input_required": "suspended",
    "expired_token": "credentials_expired",
    "token_expired": "credentials_expired",
    "authentication": "credentials",
    "forbidden": "authority",
    "permission_denied": "authority",
    "not_found": "data_integrity",
    "content_filter": "refusal",
    "insufficient_quota": "quota",
    "billing": "quota",
}
"""Other names under which an `error_kind` may arrive."""


def known_detail(kind: str) -> str | None:
    """A detail by its own name or an alias; None for a word that is neither."""
    if kind in DETAILS:
        return kind
    word = kind.strip().lower().replace("-", "_").replace(" ", "_")
    return word if word in DETAILS else ALIASES.get(word)
