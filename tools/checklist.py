"""docs/checklist.md, from tests/behaviours.toml and the behaviour marks on the tests.

python -m tools.checklist            writes the page
python -m tools.checklist --check    says whether it is up to date
"""

import ast
import functools
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEHAVIOURS = ROOT / "tests" / "behaviours.toml"
PAGE = ROOT / "docs" / "checklist.md"
DUE = {
    "heart": "comes with the core",
    "failure": "comes with the handling of failures",
    "agents": "comes with agents",
    "operations": "comes with operations",
    "truth": "comes with the truth",
    "recovery": "comes with the recovery",
    "fleet": "comes with the fleet",
    "later": "not promised yet",
    "claim": "a claim, needs no test",
}

INTRO = """\
# Checklist

What redrive does, line by line, and the tests that show it. Generated from `tests/behaviours.toml` and the
`behaviour` marks by `python -m tools.checklist`; edit those, not this page.
"""


@dataclass(frozen=True)
class Behaviour:
    id: str
    does: str
    due: str
    heading: str


Marks = dict[str, list[str]]  # behaviour id → the tests that show it


def behaviours() -> tuple[list[Behaviour], list[str]]:
    """Every line in the order of the file, and the parts whose lines must all be shown by now."""
    file = tomllib.loads(BEHAVIOURS.read_text("utf-8"))
    reached: list[str] = file.pop("reached")
    lines = [Behaviour(id, **line, heading=heading) for heading, rows in file.items() for id, line in rows.items()]
    ids = [line.id for line in lines]
    for line in lines:
        if line.due not in DUE or ids.count(line.id) > 1:
            raise SystemExit(
                f"{BEHAVIOURS.name}: {line.id} is there twice or is due {line.due!r}, not one of {', '.join(DUE)}"
            )
    return lines, reached


class _Marks(ast.NodeVisitor):
    """Collects `pytest.mark.behaviour("…")` wherever it stands: on a test, on a class, in pytestmark or in a param."""

    def __init__(self, file: str) -> None:
        self.scope = [file]
        self.found: list[tuple[str, str]] = []

    def visit_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self.scope.append(node.name)
        self.generic_visit(node)
        self.scope.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_scope

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Attribute(ast.Attribute(attr="mark") | ast.Name("mark"), "behaviour"):
                self.found += [(str(ast.literal_eval(arg)), "::".join(self.scope)) for arg in node.args]
        self.generic_visit(node)


@functools.cache
def marks(tests: Path = ROOT / "tests") -> Marks:
    shown: Marks = {}
    for path in sorted(tests.rglob("*.py")):
        text = path.read_text("utf-8")
        if "mark.behaviour" not in text:
            continue
        visitor = _Marks(path.relative_to(tests.parent).as_posix())
        visitor.visit(ast.parse(text, str(path)))
        for id, test in visitor.found:
            shown.setdefault(id, []).append(test)
    return shown


def page(lines: list[Behaviour], reached: list[str], shown: Marks) -> str:
    parts = [INTRO, _sum(lines, reached, shown)]
    for heading in dict.fromkeys(line.heading for line in lines):
        parts.append(f"## {heading}\n\n| line | redrive | shown by |\n|---|---|---|")
        parts += [
            f"| {line.id} | {line.does} | {_tests(shown, line.id) or DUE[line.due]} |"
            for line in lines
            if line.heading == heading
        ]
        parts.append("")
    return "\n".join(parts)


def _sum(lines: list[Behaviour], reached: list[str], shown: Marks) -> str:
    """Counts every line once: shown, due and not shown, not due yet, or a claim."""
    due = [line for line in lines if line.due in reached]
    claims = [line.id for line in lines if line.due == "claim"]
    rest = [line.id for line in lines if line.due not in (*reached, "claim")]
    proven = sum(line.id in shown for line in due)
    return (
        f"There are {len(lines)} lines. {len(due)} are due, and {proven} of these are shown by a test.\n"
        f"{len(rest)} are not due yet{_named(rest)}. {len(claims)} are claims that need no test{_named(claims)}.\n"
    )


def _named(ids: list[str]) -> str:
    return f" ({', '.join(ids)})" if ids else ""


def _tests(shown: Marks, id: str) -> str:
    return "<br>".join(f"`{test}`" for test in dict.fromkeys(shown.get(id, [])))


def stale() -> bool:
    return not PAGE.exists() or PAGE.read_text("utf-8") != page(*behaviours(), marks())


def main() -> None:
    if "--check" not in sys.argv[1:]:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(*behaviours(), marks()), "utf-8")
    elif stale():
        raise SystemExit("docs/checklist.md is out of date: run ./dev docs")


if __name__ == "__main__":
    main()
