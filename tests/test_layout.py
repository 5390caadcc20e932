"""Keeps the code easy to find one's way in: names, imports, and the functions that an everyday call passes through."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from subprocess import PIPE, run

import pytest

import redrive
from tools.walks import Limit

SOURCE = Path(redrive.__file__).parent
ROOT = Path(__file__).parent.parent
WALKS = {
    "enqueue": Limit(14, 6),
    "attempt ok": Limit(18, 9),
    "discard one": Limit(22, 10),
    "redrive one": Limit(30, 12),
    "morning": Limit(75, 23),
    "GET /v1/dead-letters": Limit(25, 10),
}
"""What the walks have come to. They may get shorter; what makes one longer says here why."""


def modules() -> dict[str, ast.Module]:
    return {name_of(path): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """The modules of redrive that a module imports anywhere, also only for its types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from {whole if whole in known else node.module} & known
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle_not_even_for_types() -> None:
    trees = modules()
    graph = {name: set(imported(tree, set(trees))) - {name} for name, tree in trees.items()}
    assert sum(map(len, graph.values())) > 1000, "imports are found"
    assert find_cycle(graph) == []


def test_a_circle_would_be_seen() -> None:
    assert set(find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()})) == {"a", "b", "c"}


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    assert len(places) > 500, "classes are found"
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.fixture(scope="module")
def listed() -> str:
    """What the tool lists in a process of its own: here, libraries of other tests would make redrive do more."""
    return run([sys.executable, "-m", "tools.walks", "--list"], stdout=PIPE, text=True, check=False, cwd=ROOT).stdout


@pytest.mark.parametrize("walk", WALKS)
def test_everyday_calls_pass_through_no_more_functions_and_files(walk: str, listed: str) -> None:
    (counted,) = re.findall(rf"^{walk} +(\d+)/(\d+) ", listed, re.MULTILINE)
    functions, files = map(int, counted)
    assert functions <= WALKS[walk].functions and files <= WALKS[walk].files, listed
