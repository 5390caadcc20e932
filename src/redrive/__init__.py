"""redrive: background work for AI agents that never disappears. One file, no server.

The names below are loaded when first used, so that `import redrive` costs next to nothing.
"""

import gc
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from redrive.version import VERSION

if TYPE_CHECKING:
    from redrive.api.process_wide import diverting, once, to_dead_letter
    from redrive.api.redrive import Redrive, default, reset_default
    from redrive.core.agents import Agent, Model
    from redrive.core.consent import Approval, Grant
    from redrive.core.effects import Effect
    from redrive.core.job import Attempt, Budget, Cause, Failure, Job, State
    from redrive.core.notice import Message, Notice
    from redrive.core.outcome import Outcome
    from redrive.core.pain import Pain
    from redrive.core.payload import Blob
    from redrive.core.policy import Policy, Rate
    from redrive.core.presets import PRESETS, Preset
    from redrive.core.schedule import cron
    from redrive.doors.web import asgi
    from redrive.engine.bus import BusEvent
    from redrive.engine.context import BlockingContext, Context, current
    from redrive.engine.probes import Probe
    from redrive.errors import (
        Cancel,
        CommitUnknown,
        ConfigError,
        DatabaseInUse,
        EffectNotFound,
        GiveUp,
        IllegalMove,
        InvalidInput,
        InvalidOption,
        InvalidPayload,
        JobDead,
        JobDiscarded,
        JobError,
        JobNotFound,
        JobNotReady,
        KeyReused,
        OnceInProgress,
        OutcomeUnknown,
        RedriveError,
        Retry,
        Snooze,
        StaleJob,
        StoreError,
        StoreFailed,
        StoreFull,
        StoreUnavailable,
    )
    from redrive.jobs.tasks import Item, JobHandle, Many, Task
    from redrive.retries.changes import Adapt

    get_queue = default

__version__ = VERSION

__all__ = [
    "PRESETS",
    "Adapt",
    "Agent",
    "Approval",
    "Attempt",
    "Blob",
    "BlockingContext",
    "Budget",
    "BusEvent",
    "Cancel",
    "Cause",
    "CommitUnknown",
    "ConfigError",
    "Context",
    "DatabaseInUse",
    "Effect",
    "EffectNotFound",
    "Failure",
    "GiveUp",
    "Grant",
    "IllegalMove",
    "InvalidInput",
    "InvalidOption",
    "InvalidPayload",
    "Item",
    "Job",
    "JobDead",
    "JobDiscarded",
    "JobError",
    "JobHandle",
    "JobNotFound",
    "JobNotReady",
    "KeyReused",
    "Many",
    "Message",
    "Model",
    "Notice",
    "OnceInProgress",
    "Outcome",
    "OutcomeUnknown",
    "Pain",
    "Policy",
    "Preset",
    "Probe",
    "Rate",
    "Redrive",
    "RedriveError",
    "Retry",
    "Snooze",
    "StaleJob",
    "State",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreUnavailable",
    "Task",
    "asgi",
    "cron",
    "current",
    "default",
    "diverting",
    "get_queue",
    "once",
    "reset_default",
    "to_dead_letter",
]

_WHERE = {
    name: module
    for module, names in {
        "redrive.api.redrive": "Redrive default get_queue reset_default",
        "redrive.api.process_wide": "diverting once to_dead_letter",
        "redrive.core.agents": "Agent Model",
        "redrive.retries.changes": "Adapt",
        "redrive.core.consent": "Approval Grant",
        "redrive.core.effects": "Effect",
        "redrive.core.job": "Attempt Budget Cause Failure Job State",
        "redrive.core.notice": "Message Notice",
        "redrive.core.outcome": "Outcome",
        "redrive.core.payload": "Blob",
        "redrive.core.policy": "Policy Rate",
        "redrive.core.presets": "PRESETS Preset",
        "redrive.core.schedule": "cron",
        "redrive.doors.web": "asgi",
        "redrive.errors": "Cancel CommitUnknown ConfigError DatabaseInUse EffectNotFound GiveUp IllegalMove "
        "InvalidInput InvalidOption InvalidPayload JobDead JobDiscarded JobError JobNotFound JobNotReady KeyReused "
        "OnceInProgress OutcomeUnknown RedriveError Retry Snooze StaleJob StoreError StoreFailed "
        "StoreFull StoreUnavailable",
        "redrive.core.pain": "Pain",
        "redrive.engine.bus": "BusEvent",
        "redrive.engine.probes": "Probe",
        "redrive.engine.context": "BlockingContext Context current",
        "redrive.jobs.tasks": "Item JobHandle Many Task",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name == "testing":
        return import_module("redrive.testing")
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'redrive' has no attribute {name!r}")
    value = globals()[name] = getattr(_load(module), name)
    return value


def _load(module: str) -> ModuleType:
    """Import a module without collecting garbage: imports make none, and looking for it takes a tenth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    """Public names only: what a shell offers after `redrive.` is what there is to use."""
    return sorted(__all__)
