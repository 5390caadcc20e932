"""Who asks: the name and the role behind the token of a request, what the role lacks, and how an act is signed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from redrive.core.tokens import OWNER, Role, in_words, may, signed
from redrive.doors.web.problems import Problem, problem

if TYPE_CHECKING:
    from starlette.types import Scope

CALLER: Final = "redrive.caller"
"""Where a request's scope carries who asks. The guard writes it; what finds none there lets nobody in."""


class Caller(NamedTuple):
    """Who asks. Without a name where no token is asked for, or where the token has none."""

    name: str | None
    role: Role

    def may(self, needs: Role) -> bool:
        return may(self.role, needs)

    def lacks(self, needs: Role) -> str | None:
        """Why this caller may not do what needs that role, in words; None where it may."""
        if self.may(needs):
            return None
        whose = f"the token {self.name!r}" if self.name is not None else "this token"
        return f"this needs the role {needs}; {whose} has the role {self.role}, which {in_words(self.role)}"

    def sign(self, said: str | None, otherwise: str) -> str:
        """Who did it, for the record: the token's name, with what the caller says of itself beside it."""
        if said is None or said == otherwise:
            return self.name or otherwise
        return signed(self.name, said)


ANYONE: Final = Caller(None, "purge")
"""Where no token is asked for."""
THE_OWNER: Final = Caller(OWNER, "purge")


def caller_of(scope: Scope) -> Caller:
    caller: Caller = scope[CALLER]
    return caller


def lacking(scope: Scope, needs: Role) -> Problem | None:
    """The refusal of a caller whose role is not enough."""
    why = caller_of(scope).lacks(needs)
    return None if why is None else problem("forbidden-role", why)
