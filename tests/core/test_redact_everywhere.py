"""Masking is the same on every Python from 3.11 on, Debian 12's 3.11.2 included, by its standard library alone."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import redrive
from redrive.core import redact as module
from redrive.core.redact import MASK, redact_text
from tests.core.test_redact import ATOMS, CUT, KEY, ORDINARY, SECRETS
from tests.support import DEADLINE

SOURCES = Path(redrive.__file__).parent
READER = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("redact", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
json.dump([module.redact_text(text) for text in json.load(sys.stdin)], sys.stdout)
"""
END = "\n-----END RSA PRIVATE KEY-----"
HARD = [
    (f"{KEY}{END} and {KEY}{END}.", f"{MASK} and {MASK}."),
    (f"{KEY}{END}\n" * 3, f"{MASK}\n" * 3),
    ("Cookie: theme=dark; sid=hunter22", f"Cookie: {MASK}"),
    ("Cookie: a=b; sid=hunter22\r\nHost: x", f"Cookie: {MASK}\r\nHost: x"),
    ('Set-Cookie: a="b c"; sid=hunter22', f"Set-Cookie: {MASK}"),
]
"""Of which 3.11.2 left a part with possessive repeats: the body of the second key, the last letter of a cookie."""


def works(python: str) -> bool:
    """A shim of a version manager may stand for a Python that is not there."""
    return subprocess.run([python, "-I", "-c", ""], capture_output=True, timeout=DEADLINE, check=False).returncode == 0


def pythons() -> list[str]:
    """Each Python from 3.11 on that this machine has, this one first. `./dev test` installs Debian 12's."""
    path = "/usr/bin:/usr/local/bin"
    found = [shutil.which(f"python3.{minor}", path=where) for minor in range(11, 21) for where in (path, None)]
    others = dict.fromkeys(one for one in found if one is not None and works(one))
    return [sys.executable, *others]


def answers(python: str, texts: list[str]) -> list[str]:
    """What that Python makes of these texts. It sees no other package, nor its own folder or environment."""
    child = subprocess.run(
        [python, "-I", "-S", "-c", READER, str(module.__file__)],
        input=json.dumps(texts), capture_output=True, text=True, timeout=DEADLINE * 3, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    found: list[str] = json.loads(child.stdout)
    return found


@pytest.mark.behaviour("T-18a")
def test_every_python_masks_the_same() -> None:
    for python in pythons():
        masks_the_same(python)


def masks_the_same(python: str) -> None:
    texts = [text for text, _ in (*SECRETS, *CUT, *HARD)] + ORDINARY + [a + b + a for a in ATOMS for b in ATOMS]
    shown = dict(zip(texts, answers(python, texts), strict=True))
    assert [(python, shown[text]) for text, secret in SECRETS if secret in shown[text]] == []
    assert [shown[text] for text, _ in (*CUT, *HARD)] == [wanted for _, wanted in (*CUT, *HARD)], python
    assert [shown[text] for text in ORDINARY] == ORDINARY, python
    assert shown == {text: redact_text(text) for text in texts}, python


def patterns() -> Iterator[tuple[str, str | bytes]]:
    """Every text in the sources, since a pattern is put together from several; with where it stands."""
    for file in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                yield f"{file.relative_to(SOURCES)}:{node.lineno}", node.value


CLASS = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)
POSSESSIVE = re.compile(r"(?:[*+?]|\{\d*,?\d*\})\+|\(\?>")


def possessive(pattern: str) -> bool:
    """Whether it has such a repeat or an atomic group; in a class of characters and after a backslash they are none."""
    return POSSESSIVE.search(CLASS.sub("x", pattern)) is not None


def looks_like_a_pattern(text: str) -> bool:
    """Prose has none of these; a part of a pattern that repeats anything has one."""
    return re.search(r"\(\?|\\[sSdDwWbZ.]|\[\^|\[a-z|\[0-9|\[A-Z", text) is not None


@pytest.mark.behaviour("T-18b")
def test_no_pattern_has_what_python_3_11_2_matches_wrongly() -> None:
    texts = [(place, text.decode("latin-1") if isinstance(text, bytes) else text) for place, text in patterns()]
    assert [place for place, text in texts if looks_like_a_pattern(text) and possessive(text)] == []
    compiled = [value.pattern for value in vars(module).values() if isinstance(value, re.Pattern)]
    assert compiled and not any(possessive(pattern) for pattern in compiled)


@pytest.mark.parametrize(
    "pattern", [r"a*+", r"[^-]++", r"\s*+x", r"x{1,7}+", r"x?+", r"(?>a)", r"(?:a|b)*+", r"x{3,}+"]
)
def test_the_search_for_such_patterns_finds_them(pattern: str) -> None:
    assert possessive(pattern)


@pytest.mark.parametrize("pattern", [r"[!*+]", r"\*+", r"a+b", r"[0-9]{1,5}x", r"\{\+", r"(?:a+)", r"[]*+]"])
def test_the_search_for_such_patterns_leaves_others_alone(pattern: str) -> None:
    assert not possessive(pattern)
