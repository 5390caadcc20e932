"""`redrive worker APP --reload`: what was changed in the folder, for whoever starts the workers again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 0.5
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
MOST: Final = 20_000
"""Files that are looked at: somebody may work in the root of a disk."""

Seen = dict[Path, tuple[int, int]]


def sources(folder: Path) -> Seen:
    """Every Python file below the folder, with its time and size. Hidden folders and installed code are passed over."""
    found: Seen = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not _passed_over(root, name)]
        for name in files:
            if name.endswith(".py") and len(found) < MOST:
                path = Path(root, name)
                try:
                    stat = path.stat()
                except OSError:
                    continue  # being replaced this moment: the next look sees it
                found[path] = stat.st_mtime_ns, stat.st_size
    return found


def _passed_over(root: str, name: str) -> bool:
    return name.startswith(".") or name in _PASSED_OVER or os.path.exists(os.path.join(root, name, "pyvenv.cfg"))


def changed(before: Seen, after: Seen) -> list[Path]:
    """What is new, other or gone."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
