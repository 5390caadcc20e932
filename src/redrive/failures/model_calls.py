"""Tells whether the code that raised had asked a model, by the libraries that its functions use.

A traceback alone does not show the call: `json.loads(reply)` fails after the call to the model has returned. So this
module also looks at the functions of the application in the traceback: what they call, and what their variables hold.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import chain, islice
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final

from redrive.failures.classify.classes import MODEL_PACKAGES, package_of
from redrive.failures.http_answers import answered_by_model
from redrive.failures.safe_getattr import SCALARS, attribute

_VALUES: Final = 200
"""Number of variables of one function, or attributes of one object, that are looked at."""
_CLIENTS: Final = frozenset({"httpx", "requests", "aiohttp"})
"""Libraries whose answers name the address they came from."""


@cache
def _library() -> tuple[str, ...]:
    """The folders of Python's own library."""
    import sysconfig

    return tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


@lru_cache(maxsize=2048)
def in_application(filename: str) -> bool:
    """Tells whether a file belongs to the application, not to a library."""
    return not (
        "site-packages" in filename or "dist-packages" in filename or filename.startswith(("<frozen", *_library()))
    )


def names_a_model(frame: FrameType) -> bool:
    """Tells whether a function belongs to a model library, or to the application and uses such a library."""
    if not in_application(frame.f_code.co_filename):
        return _is_models(frame.f_globals.get("__name__"))
    used = (frame.f_globals.get(name) for name in frame.f_code.co_names)
    return any(_comes_from_models(value) for value in islice(chain(list(frame.f_locals.values()), used), _VALUES))


def _comes_from_models(value: object, deeper: bool = True) -> bool:
    """Tells whether a value belongs to a model library, or is a function or an object that uses such a library."""
    kind: Any = type(value)
    if value is None or issubclass(kind, SCALARS):
        return False
    home = _home(value, kind)
    if _is_models(home) or (isinstance(home, str) and package_of(home) in _CLIENTS and answered_by_model(value)):
        return True
    return deeper and any(_comes_from_models(part, deeper=False) for part in islice(_parts(value, kind), _VALUES))


def _home(value: object, kind: Any) -> Any:
    """Returns the module of a value: its own for a module, a class or a function, else the module of its class."""
    if issubclass(kind, ModuleType):
        return attribute(value, "__name__")
    return attribute(value if issubclass(kind, type | FunctionType) else kind, "__module__")


def _parts(value: object, kind: Any) -> Iterator[Any]:
    """Yields what a function of the application uses, or what an object keeps: the client of an agent, for example."""
    if isinstance(value, FunctionType):
        if in_application(value.__code__.co_filename):
            yield from (value.__globals__.get(name) for name in value.__code__.co_names)
            yield from (attribute(cell, "cell_contents") for cell in value.__closure__ or ())
    elif not issubclass(kind, ModuleType | type):
        own = attribute(value, "__dict__")
        yield from list(own.values()) if isinstance(own, dict) else ()


def _is_models(module: object) -> bool:
    return isinstance(module, str) and package_of(module) in MODEL_PACKAGES and _installed(package_of(module))


def _installed(package: str) -> bool:
    """Tells whether a package is a library, not a package of the application with the same name, such as `agents`."""
    file = attribute(sys.modules.get(package), "__file__")
    return isinstance(file, str) and not in_application(file)
