"""Row 8: importing and starting."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bench import Bench, Check, environment

IMPORT = "import redrive"
FIRST_USE = "import redrive; redrive.Redrive('jobs.db')"
FIXED = "import asyncio, msgspec"
"""What the first use needs and redrive cannot make faster."""


PROGRAMS = {"import": IMPORT, "first": FIRST_USE}


def added(folder: Path, program: str, times: int) -> float:
    """The median of what a program needs more than the bare interpreter; a first time compiles the modules."""
    commands = [[sys.executable, "-c", code] for code in ("pass", PROGRAMS[program])]
    taken = [[_milliseconds(command, folder) for command in commands] for _ in range(times + 1)]
    return statistics.median(more - bare for bare, more in taken[1:])


def _milliseconds(command: list[str], folder: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(command, cwd=folder, env=_compiled(folder), check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begun) * 1e3


def _compiled(folder: Path) -> dict[str, str]:
    """With compiled modules, as an installation has them; the warm-up compiles them into a folder of our own."""
    kept = {name: value for name, value in environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def row_8(bench: Bench) -> list[Check]:
    script = Path(sys.executable).parent / "redrive"
    program = [str(script)] if script.exists() else [sys.executable, "-m", "redrive"]
    commands = {
        "bare interpreter": [sys.executable, "-c", "pass"],
        "import redrive": [sys.executable, "-c", IMPORT],
        "with the first Redrive": [sys.executable, "-c", FIRST_USE],
        "asyncio and msgspec alone": [sys.executable, "-c", FIXED],
        "redrive --version": [*program, "--version"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}

    def measure(*, keep: bool) -> None:
        for name, command in commands.items():
            taken = _milliseconds(command, bench.folder)
            if keep:
                times[name].append(taken)

    bench.stages(
        "import and start",
        {
            "warm-up": lambda: measure(keep=False),
            **{f"{n + 1}": lambda: measure(keep=True) for n in range(bench.rounds(15))},
        },
    )

    def over_bare(name: str) -> float:
        return statistics.median(b - a for a, b in zip(times["bare interpreter"], times[name], strict=True))

    said = {name: f"{statistics.median(taken):.0f} ms" for name, taken in times.items()}
    version = statistics.median(times["redrive --version"])
    return [
        Check(8, "import redrive", over_bare("import redrive"), "<", 100, "ms added", _only(said, 2), times),
        Check(
            8,
            "import redrive and make the first Redrive",
            over_bare("with the first Redrive"),
            "≤",
            100,
            "ms added",
            {name: said[name] for name in ("with the first Redrive", "asyncio and msgspec alone")},
            aim=60,
        ),
        Check(8, "redrive --version", version, "<", 150, "ms", {"redrive": said["redrive --version"]}),
    ]


def _only(said: dict[str, str], count: int) -> dict[str, str]:
    return dict(list(said.items())[:count])
