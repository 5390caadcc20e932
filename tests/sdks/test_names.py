"""The table of classes names what the libraries have: a class that was renamed or removed is found out here."""

from __future__ import annotations

import importlib
import os
import warnings

import pytest

from redrive.failures.capture import qualified
from redrive.failures.classify import CLASSES
from redrive.failures.classify.classes import canonical, name_in_package, package_of

NEWER = {"agents.exceptions.ModelTimeoutError"}
"""What the pinned versions do not have yet."""
LISTED = """
    agents.exceptions aiohttp.client_exceptions aiohttp.http_exceptions anthropic anthropic.lib.credentials anyio
    apsw botocore.eventstream botocore.exceptions botocore.parsers claude_agent_sdk github google.api_core.exceptions
    google.auth.exceptions google.genai.errors grpc h11 httpcore httpx jwt.exceptions langchain_core.exceptions
    langgraph.checkpoint.base langgraph.errors litellm.exceptions mcp.client.auth.exceptions
    mcp.client.streamable_http mcp.client.subscriptions mcp.server.mcpserver.exceptions mcp.shared.exceptions
    nats.errors nats.js.errors openai openai._extras openai.lib psycopg psycopg.errors pydantic_ai.exceptions
    redis.exceptions redis.multidb.exception requests sqlalchemy.exc sqlalchemy.orm.exc urllib3.exceptions
    websockets.exceptions
"""
MODULES = LISTED.split()


def _every_exception() -> set[str]:
    """The names of all exception classes of this process."""
    found: set[type] = set()
    left: list[type] = [BaseException]
    while left:
        kinds = set(type.__subclasses__(left.pop())) - found
        found |= kinds
        left += kinds
    return {name for kind in found for name in (canonical(qualified(kind)), name_in_package(qualified(kind)))}


@pytest.mark.behaviour("R-5i")
def test_every_class_of_the_table_is_there() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in MODULES:
            importlib.import_module(module)
    packages, known = {package_of(module) for module in MODULES}, _every_exception()
    listed = [name for name in CLASSES if package_of(name) in packages]
    assert len(listed) > 300
    missing = {name for name in listed if canonical(name) not in known and name_in_package(name) not in known}
    assert missing == (set() if os.environ["REDRIVE_SDKS"] == "sdks-newest" else NEWER)


@pytest.mark.parametrize("whose", ["AsyncResponseStream.__aiter__", "PoolByteStream.__aiter__", "Response.aiter_raw"])
def test_a_stream_that_a_library_abandoned_fails_no_test(whose: str) -> None:
    warnings.warn(unraisable(whose), stacklevel=1)


def test_a_generator_that_redrive_abandoned_fails_its_test() -> None:
    with pytest.raises(pytest.PytestUnraisableExceptionWarning):
        warnings.warn(unraisable("pages"), stacklevel=1)


def unraisable(whose: str) -> pytest.PytestUnraisableExceptionWarning:
    said = f"Exception ignored in: <async_generator object {whose} at 0x7f>\n\nValueError: already executing"
    return pytest.PytestUnraisableExceptionWarning(said)
