"""Runs pytest as `./dev test` does: a test that fails beside others must then pass three times by itself.

Hundreds of tests start processes, servers and browsers on a machine that may have two cores, and all of them wait with
time limits. A test that fails beside others and passes three times alone does not fail the run. It is named at the end,
because it is a bug: of the test, or of redrive under load.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CACHE: Final = Path(".pytest_cache")
TIMES: Final = 3
MOST: Final = 5
"""More failures than this are no accident of timing."""
FAILED: Final = 1
"""pytest's exit status where tests ran and some failed."""


def run(arguments: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def failures() -> list[str]:
    """The tests that failed in the last run."""
    found = CACHE / "v" / "cache" / "lastfailed"
    return sorted(json.loads(found.read_text())) if found.exists() else []


def passes_alone(tests: Sequence[str]) -> bool:
    return all(run(["-p", "no:cacheprovider", *tests]) == 0 for _ in range(TIMES))


def main(arguments: Sequence[str]) -> int:
    shutil.rmtree(CACHE, ignore_errors=True)  # failures of an earlier run are not those of this one
    status = run(arguments)
    failed = failures()
    if status != FAILED or not 0 < len(failed) <= MOST:
        return status
    print(f"{len(failed)} failed beside others and must now pass {TIMES} times alone", flush=True)
    if not passes_alone(failed):
        return FAILED
    for test in failed:
        print(f"FLAKY: {test} failed once beside others and passed {TIMES} times alone: mend it", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
