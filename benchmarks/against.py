"""Compares two checkouts of redrive in one run: `./dev bench --against PATH` measures that one before, this one after.

Both run the contestants of this checkout, in turn, so that what disturbs the machine disturbs both. Only what both have
can be measured: a contestant that fails in one of them is told, with its reason, and the others go on.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from benchmarks.bench import ROOT, Bench, Contestant, ContestantFailed, amount
from benchmarks.growth import MEASURES
from benchmarks.nats_server import find_server
from benchmarks.running import ATTEMPTS

Done = Callable[[str, float], None]
ROUNDS = 7
FEWEST = 3
"""Rounds, below which a difference says nothing."""
MANY = 10
"""Rounds, of which one may be an accident."""
NOISE = 0.03
"""Medians that differ by less are taken to be the same."""


@dataclass(frozen=True)
class Compared:
    """What both checkouts do, by the public API."""

    row: str
    work: str
    contestant: Contestant
    unit: str = "/s"
    better: Literal["more", "less"] = "more"
    key: str | int | None = None
    """Which of several figures, where the contestant returns more than one."""


@dataclass(frozen=True)
class Comparison:
    """Before and after, round by round."""

    row: str
    work: str
    unit: str
    better: str
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def ratios(self) -> list[float]:
        """How many times as good it is after, in each round: above 1 is better."""
        pairs = zip(self.before, self.after, strict=True)
        return sorted(b / a if self.better == "more" else a / b for a, b in pairs)

    @property
    def likely(self) -> tuple[float, float]:
        """The rounds' ratios from the lowest to the highest; of many rounds without one at each end."""
        ratios = self.ratios
        inner = ratios[1:-1] if len(ratios) >= MANY else ratios
        return inner[0], inner[-1]

    @property
    def verdict(self) -> str:
        if self.failure:
            return "not measured"
        if len(self.after) < FEWEST:
            return "too few rounds"
        lowest, highest = self.likely
        median = statistics.median(self.ratios)
        if highest < 1 and median < 1 - NOISE:
            return "SLOWER"
        return "faster" if lowest > 1 and median > 1 + NOISE else "the same"


def compared(bench: Bench) -> list[Compared]:
    """Everything that can be compared, by the name of its row."""
    size = {"size": bench.size(1_000, 50)}
    jobs = {"size": bench.size(20_000, 500)}
    rows = [
        Compared("enqueue", "enqueue, one at a time", Contestant("benchmarks.accepting:one_by_one", size)),
        Compared("callers", "100 callers", Contestant("benchmarks.accepting:by_callers", jobs)),
        Compared("bulk", "bulk enqueue", Contestant("benchmarks.accepting:many", jobs)),
        Compared("drain", "drain of no-op jobs", Contestant("benchmarks.running:drained", jobs)),
        Compared(
            "drain", "the same, concurrency 100",
            Contestant("benchmarks.running:drained", {**jobs, "concurrency": 100}),
        ),
        Compared(
            "failing", f"failing × {ATTEMPTS} to dead, attempts",
            Contestant("benchmarks.running:buried", {"size": bench.size(2_000, 50)}),
        ),
        *_latencies(bench),
        *_starts(bench),
        *_costs(bench),
        *_grown(bench),
    ]  # fmt: skip
    return rows + (_hub(bench) if find_server() else [])


def _latencies(bench: Bench) -> list[Compared]:
    here = Contestant("benchmarks.latency:same_process", {"size": bench.size(40, 5)})
    there = Contestant("benchmarks.latency:other_process", {"size": bench.size(40, 5)})
    return [
        Compared("latency", "enqueue → start, same process (p50)", here, "ms", "less", 0),
        Compared("latency", "enqueue → start, another process (p50)", there, "ms", "less"),
    ]


def _starts(bench: Bench) -> list[Compared]:
    times = {"times": bench.size(5, 1)}
    return [
        Compared(
            "start", f"{words}, over bare Python",
            Contestant("benchmarks.starting:added", {**times, "program": program}), "ms", "less",
        )
        for words, program in (("import redrive", "import"), ("first Redrive", "first"))
    ]  # fmt: skip


def _costs(bench: Bench) -> list[Compared]:
    idle = Contestant("benchmarks.idle:measured", {"seconds": bench.size(3, 1)})
    watched = Contestant("benchmarks.watched:cpu_per_job", {"size": bench.size(20_000, 500), "clients": 0})
    return [
        Compared("idle", "idle worker, wake-ups", idle, "/s", "less", "wake-ups"),
        Compared("idle", "idle worker, processor time", idle, "ms/s", "less", "CPU"),
        *_written("one", "enqueue", bench.size(500, 50)),
        *_written("drain", "drain", bench.size(10_000, 100)),
        Compared("watched", "`redrive serve`, processor time per job", watched, "µs", "less"),
        Compared("judging", "a failure judged, mean of all kinds", Contestant("benchmarks.failing:mean"), "µs", "less"),
        Compared(
            "opening", "a foreign file opened", Contestant("benchmarks.opening:announced", {"guarded": True}), "µs",
            "less",
        ),
    ]  # fmt: skip


def _written(verb: str, words: str, size: int) -> list[Compared]:
    run = Contestant("benchmarks.written:of_redrive", {"verb": verb, "size": size})
    return [
        Compared("written", f"{words}, processor time per job", run, "µs", "less", "CPU"),
        Compared("written", f"{words}, written per job", run, "bytes", "less", "disk"),
    ]


def _grown(bench: Bench) -> list[Compared]:
    """By the names of rooms inside redrive, which another checkout may not have."""
    jobs = bench.size(110_000, 1_100)
    grown = Contestant("benchmarks.growth:with_jobs", {"jobs": jobs, "times": bench.size(20, 3), "run": 1_000})
    server = Contestant("benchmarks.scale:medians", {"jobs": jobs, "times": bench.size(10, 1)})
    queues = Contestant("benchmarks.growth:in_queues", {"size": bench.size(5_000, 200), "queues": 1_000})
    two = Contestant("benchmarks.growth:drained_by", {"size": bench.size(20_000, 500), "processes": 2})
    return [
        *(
            Compared("growth", f"{words}, {jobs:,} jobs stored", grown, unit, "more" if unit == "/s" else "less", key)
            for key, (words, unit) in MEASURES.items()
        ),
        Compared("answers", f"pages, mean of medians, {jobs:,} jobs", server, "ms", "less", "pages"),
        Compared("answers", f"REST answers, mean of medians, {jobs:,} jobs", server, "ms", "less", "rest"),
        Compared("workers", "drain by two worker processes", two),
        Compared("queues", "drain of 1,000 queues", queues, "/s", "more", "drain"),
        Compared("queues", "overview of 1,000 queues", queues, "ms", "less", "overview"),
    ]


def _hub(bench: Bench) -> list[Compared]:
    lone, many = {"size": bench.size(1_000, 50)}, {"size": bench.size(10_000, 500)}
    return [
        Compared("hub-enqueue", "hub on JetStream, enqueue", Contestant("benchmarks.fleet:one_by_one", lone)),
        Compared("hub-callers", "hub on JetStream, 100 callers", Contestant("benchmarks.fleet:by_callers", many)),
        Compared("hub-bulk", "hub on JetStream, bulk enqueue", Contestant("benchmarks.fleet:many", many)),
        Compared("hub-drain", "hub on JetStream, drain", Contestant("benchmarks.fleet:drained", many)),
        Compared("thin", "through a hub, enqueue", Contestant("benchmarks.thin:one_by_one", lone)),
        Compared("thin", "through a hub, drain", Contestant("benchmarks.thin:drained", many)),
    ]


def source_of(checkout: Path) -> Path:
    """Where its package is: a checkout, or its src."""
    for source in (checkout / "src", checkout):
        if (source / "redrive" / "__init__.py").exists():
            return source.resolve()
    raise FileNotFoundError(f"{checkout} has no src/redrive: give the folder of a checkout of redrive")


def compare(bench: Bench, checkout: Path, names: Sequence[str], done: Done) -> list[Comparison]:
    """All rows that can be compared, or those of these names; `done` hears of each."""
    sources = {"before": source_of(checkout), "after": ROOT / "src"}
    for source in sources.values():
        ran = bench.once(Contestant("benchmarks.source:which", source=source))
        assert ran == str(source), f"{source} is asked for, and {ran} runs"
    rows = [one for one in compared(bench) if not names or one.row in names]
    return list(_compare(bench, rows, sources, done))


def _compare(bench: Bench, rows: list[Compared], sources: dict[str, Path], done: Done) -> Iterator[Comparison]:
    """What several rows read from one contestant is measured once."""
    runs: dict[str, dict[str, list[Any]] | str] = {}
    for row in rows:
        known = json.dumps(asdict(row.contestant), default=str)
        if known not in runs:
            begun = time.monotonic()
            runs[known] = _measured(bench, row, sources)
            done(row.work, begun)
        found = runs[known]
        if isinstance(found, str):
            yield Comparison(row.row, row.work, row.unit, row.better, failure=found)
        else:
            before, after = ([_figure(one, row.key) for one in found[side]] for side in ("before", "after"))
            yield Comparison(row.row, row.work, row.unit, row.better, before, after)


def _measured(bench: Bench, row: Compared, sources: dict[str, Path]) -> dict[str, list[Any]] | str:
    """The figures of both sides, or why there are none."""
    function, given = row.contestant.function, row.contestant.arguments
    sides = {name: Contestant(function, given, source=source) for name, source in sources.items()}
    try:
        return bench.contest(row.work, sides, bench.rounds(ROUNDS))
    except ContestantFailed as error:
        return str(error).splitlines()[-1]


def _figure(one: Any, key: str | int | None) -> float:
    """Nothing at all (no bytes written) cannot be divided by."""
    return max(float(one if key is None else one[key]), 1e-9)


def show(comparisons: Sequence[Comparison]) -> None:
    console = Console()
    table = Table("row", "work", "before", "after", "after ÷ before, better is above 1", "verdict")
    for one in comparisons:
        table.add_row(one.row, one.work, *_cells(one), one.verdict)
    (console if console.is_terminal else Console(width=200)).print(table)


def _cells(one: Comparison) -> tuple[str, str, str]:
    if one.failure:
        return "–", "–", one.failure[:100]
    before, after = (f"{amount(statistics.median(side))} {one.unit}" for side in (one.before, one.after))
    lowest, highest = one.likely
    return before, after, f"{statistics.median(one.ratios):.2f} ({lowest:.2f} to {highest:.2f})"


def data(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    return [
        {**asdict(one), "verdict": one.verdict, "ratio": None if one.failure else statistics.median(one.ratios)}
        for one in comparisons
    ]
