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
LIMIT_SECONDS = 1_800
"""After this a contestant is taken to hang."""
Values = dict[str, list[float]]


class ContestantFailed(Exception):
    """A contestant did not do its work: there is nothing to compare."""


@dataclass(frozen=True)
class Contestant:
    """`benchmarks.module:function`, which gets a new folder and these arguments and returns a number."""

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)


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

    @property
    def passed(self) -> bool | None:
        if self.reached is None:
            return None
        if self.limit is None:
            return True
        if self.relation == "≥":
            return self.reached >= self.limit
        return self.reached < self.limit or (self.relation == "≤" and self.reached == self.limit)


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
        self._steps.begin(what, count * len(contestants))
        for number in range(count):
            for name in list(contestants)[:: -1 if number % 2 else 1]:
                self._steps.step(f"{what}: {name}")
                values[name].append(self.once(contestants[name]))
        return values

    def once(self, contestant: Contestant) -> Any:
        """One run, in a new process and a new folder."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            return child(contestant.function, Path(folder), contestant.arguments)

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


def environment() -> dict[str, str]:
    """This one, without settings that would change what is measured."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])}


def child(function: str, folder: Path, arguments: Mapping[str, Any]) -> Any:
    """Run a contestant in a process of its own; what it returns."""
    done = subprocess.run(
        command(function, folder, arguments),
        env=environment(), cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ContestantFailed(f"{function}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def ratio(values: Values, ours: str, other: str) -> float | None:
    """The median of the rounds' ratios: each compares neighbours in time."""
    if other not in values:
        return None
    return statistics.median(a / b for a, b in zip(values[ours], values[other], strict=True))


def per_second(values: Values) -> dict[str, str]:
    return {name: f"{statistics.median(rates):,.0f}/s" for name, rates in values.items()}
