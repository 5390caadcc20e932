"""Says which redrive a contestant runs, without needing anything of it."""

from __future__ import annotations

from pathlib import Path


def which(folder: Path) -> str:
    """The folder of the package."""
    import redrive

    return str(Path(redrive.__file__ or "").resolve().parent.parent)
