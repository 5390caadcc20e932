"""redrive: background work for AI agents that never disappears. One file, no server."""

from redrive.app import Redrive, default, reset_default
from redrive.core.job import Attempt, Budget, Cause, Failure, Job, State
from redrive.core.payload import Blob
from redrive.core.policy import PRESETS, Policy, Rate
from redrive.errors import (
    Cancel,
    CommitUnknown,
    ConfigError,
    GiveUp,
    IllegalMove,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    JobDead,
    JobDiscarded,
    JobError,
    JobNotFound,
    KeyReused,
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
from redrive.insight.health import Pain
from redrive.runtime.bus import BusEvent
from redrive.runtime.context import BlockingContext, Context, current
from redrive.tasks import Item, JobHandle, Many, Task

__version__ = "0.1.0"
get_queue = default

__all__ = [
    "PRESETS",
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
    "Failure",
    "GiveUp",
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
    "KeyReused",
    "Many",
    "OutcomeUnknown",
    "Pain",
    "Policy",
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
    "current",
    "default",
    "get_queue",
    "reset_default",
]
