"""How everything is measured: contestants in turn, each in a process of its own, on new files, several rounds."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 900
"""After this a contestant is taken to hang."""
CALLERS = 100
"""How many enqueue at once, where many do."""
CONCURRENCY = 1_000
"""For jobs that do nothing more slots mean larger claims and commits; the default of 100 is shown beside it."""
Values = dict[str, list[float]]


class ContestantFailed(Exception):
    """A contestant did not do its work: there is nothing to compare."""


@dataclass(frozen=True)
class Contestant:
    """`benchmarks.module:function`, which gets a new folder and these arguments and returns a number."""

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    """It runs in the first rounds only, where it is shown beside the others and takes long."""
    source: Path | None = None
    """The `src` of another checkout of redrive, which runs instead of the one that is installed."""


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    row: int
    work: str
    reached: float | None
    """None where it could not be measured."""
    relation: Literal["≥", "≤", "<"]
    limit: float | None
    """None where it is measured and said, without a promise."""
    unit: str
    measured: dict[str, str]
    """What each contestant did, in words."""
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What each contestant did, round by round."""
    aim: float | None = None
    """What it should reach, beyond what it must."""

    @property
    def passed(self) -> bool | None:
        if self.reached is None:
            return None
        return self.limit is None or self._holds(self.reached, self.limit)

    @property
    def aimed(self) -> bool:
        """Whether the aim is reached, too."""
        return self.reached is not None and self.aim is not None and self._holds(self.reached, self.aim)

    def _holds(self, reached: float, limit: float) -> bool:
        if self.relation == "≥":
            return reached >= limit
        return reached < limit or (self.relation == "≤" and reached == limit)


class Steps(Protocol):
    """Who shows how far we are."""

    def begin(self, what: str, steps: int) -> None: ...
    def step(self, what: str) -> None: ...


class Bench:
    """Sizes, rounds, a folder on the disk to be measured, and somebody who shows the progress."""

    def __init__(
        self, folder: Path, steps: Steps, *, quick: bool, rounds: int | None = None, large: bool = False
    ) -> None:
        self.folder = folder
        self.quick = quick
        self.large = large
        self._rounds = rounds
        self._steps = steps

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def rounds(self, full: int = 5) -> int:
        return self._rounds or (min(full, 3) if self.quick else full)

    def contest(self, what: str, contestants: Mapping[str, Contestant], rounds: int | None = None) -> Values:
        """A B C, C B A, A B C, …: what disturbs the machine for a while disturbs all of them."""
        count = rounds or self.rounds()
        values: Values = {name: [] for name in contestants}
        self._steps.begin(what, sum(min(count, one.rounds or count) for one in contestants.values()))
        for number in range(count):
            runs = [name for name, one in contestants.items() if one.rounds is None or number < one.rounds]
            for name in runs[:: -1 if number % 2 else 1]:
                self._steps.step(f"{what}: {name}")
                values[name].append(self.once(contestants[name]))
        return values

    def once(self, contestant: Contestant) -> Any:
        """One run, in a new process and a new folder."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            return child(contestant.function, Path(folder), contestant.arguments, contestant.source)

    def stages(self, what: str, stages: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Things that must happen one after the other."""
        self._steps.begin(what, len(stages))
        found = {}
        for name, stage in stages.items():
            self._steps.step(f"{what}: {name}")
            found[name] = stage()
        return found


def command(function: str, folder: Path, arguments: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", "benchmarks.child", function, str(folder), json.dumps(arguments)]


def environment(source: Path | None = None) -> dict[str, str]:
    """This one, without settings that would change what is measured; processes started from it use the same source."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    path = [*([str(source)] if source else []), str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


def child(function: str, folder: Path, arguments: Mapping[str, Any], source: Path | None = None) -> Any:
    """Run a contestant in a process of its own; what it returns."""
    try:
        done = subprocess.run(
            command(function, folder, arguments),
            env=environment(source), cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ContestantFailed(f"{function}: not done after {LIMIT_SECONDS} s") from error
    if done.returncode != 0:
        raise ContestantFailed(f"{function}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def ratio(values: Values, ours: str, other: str) -> float | None:
    """The median of the rounds' ratios: each compares neighbours in time. Some contestants skip the later rounds."""
    if other not in values:
        return None
    return statistics.median(a / b for a, b in zip(values[ours], values[other], strict=False))


def per_second(values: Values, beside: str | None = None) -> dict[str, str]:
    """What each did, in words, and how much of another's that is."""
    said = {name: f"{statistics.median(rates):,.0f}/s" for name, rates in values.items()}
    if beside is None:
        return said
    shares = {name: ratio(values, name, beside) for name in values if name != beside}
    return {name: words + (f" ({shares[name]:.2f} ×)" if name in shares else "") for name, words in said.items()}


def amount(number: float) -> str:
    """Three digits that matter."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.{1 if number >= 10 else 2 if number >= 1 else 3}f}"
