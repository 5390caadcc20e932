"""One contestant in a process of its own: `python -m benchmarks.child module:function folder '{"size": 100}'`."""

import asyncio
import importlib
import inspect
import json
import logging
import sys
from pathlib import Path
from typing import Any


def quiet() -> None:
    """Log records are made, as in any program, and then dropped: terminals are not what we measure."""
    for name in ("redrive", "huey", "taskiq", "procrastinate", "pgqueuer"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False


def main(function: str, folder: str, arguments: str) -> None:
    quiet()
    module, _, name = function.partition(":")
    found: Any = getattr(importlib.import_module(module), name)(Path(folder), **json.loads(arguments))
    print(json.dumps(asyncio.run(found) if inspect.iscoroutine(found) else found))


if __name__ == "__main__":
    main(*sys.argv[1:])
