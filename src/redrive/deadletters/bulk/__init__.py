"""A bulk redrive as values: what was chosen, what became of each item, how fast it may go, and when it is over.

    chosen → frozen → canary → moving → settling → finished
                         ↘ paused ↙   ↘ cancelled

Which dead letters belong to it is frozen when it starts. Items are taken in order, so one number, `position`, says
which have been; what each was and became stands in chunks beside the run. Pure: time is an argument, and the app
writes what is decided here, a chunk and the run together with the moves themselves.
"""

from __future__ import annotations

from redrive.deadletters.bulk.choice import Chosen, Estimate, Plan, estimated, largest, last_usage, spread, token_for
from redrive.deadletters.bulk.progress import (
    BURST_SECONDS,
    OTHER_REASONS,
    REASONS_KEPT,
    REDRIVE,
    SETTLES_SECONDS,
    UNJUDGED,
    cancelled,
    defective,
    judged,
    noted,
    paced,
    paused,
    reasons,
    resumed,
    room,
    stopped_for_undo,
    turned,
    turns,
)
from redrive.deadletters.bulk.run import (
    CHUNK,
    HOLDS_GROUPS,
    LONGEST_REASON,
    PASS_RATE,
    UNDO,
    Canary,
    Flight,
    Flights,
    GroupScore,
    Item,
    ItemPage,
    ItemStatus,
    ItemView,
    RedriveRun,
    RunState,
    Verdict,
    begun,
    chunked,
    flight_of,
    in_the_way,
    settled,
    skipped,
    taken,
    viewed,
    with_errors,
)

__all__ = [
    "BURST_SECONDS", "CHUNK", "HOLDS_GROUPS", "LONGEST_REASON", "OTHER_REASONS", "PASS_RATE", "REASONS_KEPT",
    "REDRIVE", "SETTLES_SECONDS", "UNDO", "UNJUDGED", "Canary", "Chosen", "Estimate", "Flight", "Flights",
    "GroupScore", "Item", "ItemPage", "ItemStatus", "ItemView", "Plan", "RedriveRun", "RunState", "Verdict", "begun",
    "cancelled", "chunked", "defective", "estimated", "flight_of", "in_the_way", "judged", "largest", "last_usage",
    "noted", "paced", "paused", "reasons", "resumed", "room", "settled", "skipped", "spread", "stopped_for_undo",
    "taken", "token_for", "turned", "turns", "viewed", "with_errors",
]  # fmt: skip
