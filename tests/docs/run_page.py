"""Runs the blocks of one page one after the other, in one namespace, as a reader would. Started by test_blocks.py.

argv: a JSON file with [[page, line, text], …]; the outputs, one per block, are written beside it.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import json
import sys
import types
from pathlib import Path


def main(file: Path) -> None:
    page = types.ModuleType("page")
    sys.modules["page"] = page
    outputs: list[str] = []
    with asyncio.Runner() as runner:
        for name, line, text in json.loads(file.read_text("utf-8")):
            printed = io.StringIO()
            code = compile("\n" * (line - 1) + text, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            with contextlib.redirect_stdout(printed):
                runner.run(run(code, vars(page)))
            outputs.append(printed.getvalue())
    file.with_suffix(".out").write_text(json.dumps(outputs), "utf-8")


async def run(code: types.CodeType, namespace: dict[str, object]) -> None:
    """A block with `await` at its top level is a coroutine; others are not."""
    found = eval(code, namespace)
    if inspect.isawaitable(found):
        await found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
