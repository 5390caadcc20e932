"""The other queues of the rows about one file, each with every commit synced to disk."""

from __future__ import annotations

from benchmarks import fleet_postgres, peers, peers_nats
from benchmarks.bench import Contestant

ROUNDS = 3
"""Shown beside redrive, and not what a row is judged by."""
VERBS = {
    "huey": {"enqueued", "drained", "failed"},
    "litequeue": {"enqueued", "enqueued_many", "drained"},
    "persist-queue": {"enqueued", "drained"},
    "pgqueuer": {"enqueued", "enqueued_many", "drained"},
    "procrastinate": {"enqueued", "enqueued_many", "drained", "failed"},
    "taskiq-nats": {"enqueued", "enqueued_many", "drained", "failed"},
}
"""What each has a way to do: litequeue and persist-queue retry nothing, huey and persist-queue put one by one."""
_NATS = {"enqueued": "one_by_one", "enqueued_many": "by_callers", "drained": "drained", "failed": "failed"}


def installed() -> list[str]:
    return [*peers.installed(), *fleet_postgres.installed(), *(["taskiq-nats"] if peers_nats.installed() else [])]


def contestants(verb: str, size: int, **given: object) -> dict[str, Contestant]:
    """Those that can do this work and are installed."""
    return {
        name: Contestant(function, {"size": size, **given, **options}, rounds=ROUNDS)
        for name in installed()
        if verb in VERBS[name]
        for function, options in [_function(name, verb)]
    }


def _function(name: str, verb: str) -> tuple[str, dict[str, bool]]:
    if name in peers.MODULES:
        return f"benchmarks.peers:{peers.MODULES[name]}_{verb}", {}
    if name in fleet_postgres.PROMISES:
        return f"benchmarks.fleet_postgres:{name}_{verb}", {"synced": True}
    return f"benchmarks.peers_nats:{_NATS[verb]}", {"synced": True}
