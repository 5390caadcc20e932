"""The pages as tests see them: fenced blocks, command lines, headings and links."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.docs import PART, ROOT
from tools.docs import pages as all_pages

PAGES = [page for page in all_pages() if page.exists()]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
PYTHON = sys.executable
REDRIVE = str(Path(PYTHON).with_name("redrive"))

_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>not run|prints)(?:: [^\n]*)? -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (?P<title>.+)$", re.MULTILINE)


@dataclass
class Block:
    """A fenced block; `prints` is what the page says that it prints."""

    page: str
    line: int
    language: str
    text: str
    mark: str | None
    prints: str | None = None


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page that was written by hand. Generated ones are shown elsewhere to be right."""
    text = PART.sub(lambda part: "\n" * part[0].count("\n"), page.read_text("utf-8"))
    found: list[Block] = []
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start("text")) + 1
        block = Block(page.relative_to(ROOT).as_posix(), line, fence["language"], fence["text"], fence["mark"])
        if block.mark == "prints":
            found[-1].prints = block.text
        found.append(block)
    return found


def runnable(page: Path) -> list[Block]:
    """Python blocks, but for those that say why they do not run."""
    return [block for block in blocks(page) if block.language == "python" and block.mark is None]


def command_lines(page: Path) -> Iterator[tuple[str, bool]]:
    """Every `redrive …`, and whether it is there to be typed (shell blocks) or may be a mere name (inline)."""
    for block in blocks(page):
        lines = block.text.splitlines()
        if block.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        if block.language in ("console", "sh", "text"):
            yield from ((line, block.language != "text") for line in lines if line.startswith("redrive "))
    yield from ((span, False) for span in inline(page) if span.startswith("redrive "))


def inline(page: Path) -> list[str]:
    """What stands between single backticks, outside fenced blocks."""
    return _INLINE.findall(_FENCE.sub("", page.read_text("utf-8")))


def links(page: Path) -> list[str]:
    prose = _INLINE.sub("", _FENCE.sub("", page.read_text("utf-8")))
    return [link["target"] for link in _LINK.finditer(prose)]


def anchors(page: Path) -> set[str]:
    """Headings as the site and the forge name them."""
    titles = (heading["title"] for heading in _HEADING.finditer(_FENCE.sub("", page.read_text("utf-8"))))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
