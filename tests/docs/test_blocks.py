"""Every Python block of the docs runs, on a real file in a folder of its own, and prints what the page says."""

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.cli.zygote import start_zygote
from tests.docs.pages import PAGES, PYTHON, ROOT, Block, blocks, runnable

SECONDS = 60
QUOTES = {"performance.md"}
"""Quotes lines of benchmarks/, which run there."""
WITH_PYTHON = [page for page in PAGES if runnable(page) and page.name not in QUOTES]


def environment(folder: Path) -> dict[str, str]:
    """Nothing of ours leaks in; examples/ is there, as a reader of the repository has it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDRIVE_", "CMS_"))}
    return kept | {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT / "examples")}


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    found = runnable(page)
    file = tmp_path / "blocks.json"
    file.write_text(json.dumps([[block.page, block.line, block.text] for block in found]), "utf-8")
    runner = ROOT / "tests" / "docs" / "run_page.py"
    words = (str(runner), str(file))
    status, _, complaints = start_zygote().run(words, tmp_path, environment(tmp_path), None, SECONDS)
    assert status == 0, f"{page.name}:\n{complaints}"
    for block, printed in zip(found, json.loads(file.with_suffix(".out").read_text("utf-8")), strict=True):
        assert printed == (block.prints or printed), f"{block.page}:{block.line} prints something else"


def test_the_quickstart_runs_as_the_file_that_it_says(tmp_path: Path) -> None:
    found = runnable(ROOT / "docs" / "quickstart.md")
    body = textwrap.indent("\n".join(block.text for block in found), "    ")
    file = tmp_path / "quickstart.py"
    file.write_text(f"import asyncio\n\n\nasync def main():\n{body}\n\nasyncio.run(main())\n", "utf-8")
    ran = subprocess.run(
        [PYTHON, str(file)],
        cwd=tmp_path, env=environment(tmp_path), timeout=SECONDS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "".join(block.prints or "" for block in found)


def test_the_pages_that_teach_have_blocks() -> None:
    """A page whose fences are written in another way must not pass by running nothing."""
    taught = {page.relative_to(ROOT).as_posix() for page in WITH_PYTHON}
    assert taught >= {
        "docs/quickstart.md",
        "docs/coming-from.md",
        "docs/howto/recipes.md",
        "docs/howto/waiting.md",
        "docs/concepts.md",
        "docs/failures.md",
        "docs/strategies.md",
        "docs/preflight.md",
        "docs/breakers.md",
        "docs/howto/scripts.md",
        "docs/howto/jsonl.md",
        "docs/howto/groups.md",
        "docs/howto/redrive-many.md",
        "docs/howto/triage.md",
        "docs/howto/reports.md",
        "docs/howto/testing.md",
        "docs/agents.md",
        "docs/effects.md",
        "docs/once.md",
        "docs/consent.md",
        "docs/mcp.md",
        "docs/howto/schedules.md",
        "docs/howto/workflows.md",
        "docs/howto/notifications.md",
    }
    silent = {page.name for page in WITH_PYTHON if not any(block.prints for block in runnable(page))}
    assert silent == {"policies.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_that_does_not_run_is_still_python(page: Path) -> None:
    idle: list[Block] = [block for block in blocks(page) if block.language == "python" and block.mark == "not run"]
    for block in idle:
        compile(block.text, f"{block.page}:{block.line}", "exec", flags=0x2000)  # PyCF_ALLOW_TOP_LEVEL_AWAIT
