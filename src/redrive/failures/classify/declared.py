"""Makes the user's own rules: by class (`retry_on=`, `give_up_on=`), or declared in redrive.toml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from redrive.core.details import DETAILS, known_detail
from redrive.core.job import Failure
from redrive.errors import InvalidOption
from redrive.failures.classify.classes import canonical
from redrive.failures.classify.codes import plain
from redrive.failures.classify.rules import Rule
from redrive.failures.classify.words import text_of


def by_class(names: Sequence[str], detail: str) -> Rule:
    """Makes a rule for `retry_on=` and `give_up_on=`: any of the classes, by qualified name."""
    wanted = frozenset(names) | frozenset(map(canonical, names))
    return lambda failure: detail if _is_any(failure.types, wanted) else None


@lru_cache(maxsize=2048)
def _is_any(types: tuple[str, ...], wanted: frozenset[str]) -> bool:
    return any(name in wanted or canonical(name) in wanted for name in types)


class DeclaredRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"class_": "class"}, kw_only=True):
    """One of `[[rules]]` in redrive.toml: a detail, and conditions that must all be true."""

    detail: str
    class_: str | None = None
    status: int | None = None
    code: str | None = None
    message: str | None = None
    error_kind: str | None = None

    def as_rule(self, field: str = "rules") -> Rule:
        """Makes the rule, or raises InvalidOption that names the problem. `field` is where the rule was written."""
        detail = known_detail(self.detail)
        if detail is None:
            known = ", ".join(sorted(DETAILS))
            raise InvalidOption(field=f"{field}.detail", problem=f"{self.detail!r} is not a detail; known are {known}")
        tests = self._tests()
        if not tests:
            raise InvalidOption(field=field, problem="needs at least one of class, status, code, message, error_kind")
        return lambda failure: detail if all(test(failure) for test in tests) else None

    def _tests(self) -> list[Callable[[Failure], bool]]:
        tests: list[Callable[[Failure], bool]] = []
        if self.class_:
            tests.append(_is_class(self.class_))
        if self.status is not None:
            tests.append(lambda failure: failure.status == self.status)
        if self.code:
            word = plain(self.code)
            tests.append(lambda failure: word in map(plain, failure.codes or (failure.code or "",)))
        if self.message:
            words = self.message.lower()
            tests.append(lambda failure: words in text_of(failure))
        if self.error_kind:
            tests.append(lambda failure: failure.error_kind == self.error_kind)
        return tests


def _is_class(name: str) -> Callable[[Failure], bool]:
    """Makes a test for a class by its qualified name, or by its bare name if no module is given."""
    if "." in name:
        wanted = frozenset({name, canonical(name)})
        return lambda failure: _is_any(failure.types, wanted)
    return lambda failure: any(entry.rpartition(".")[2] == name for entry in failure.types)
