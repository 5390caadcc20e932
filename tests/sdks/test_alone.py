"""Kubernetes and githubkit, in the newest environment only: their modules of exceptions, without all their schemas."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from types import ModuleType
from typing import Any

import httpx
import pytest
import urllib3.exceptions

from tests.sdks.judging import cause_of, detail_of, raised_by


def module_of(library: str, path: str) -> ModuleType:
    """Load one module of an installed library, without the library around it."""
    name = path.removesuffix(".py").replace("/", ".")
    place = importlib.metadata.distribution(library).locate_file(path)
    spec = importlib.util.spec_from_file_location(name, str(place))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kubernetes: Any = module_of("kubernetes", "kubernetes/client/exceptions.py")
githubkit: Any = module_of("githubkit", "githubkit/exception.py")


@pytest.mark.parametrize(
    ("status", "expected"),
    [(401, "credentials"), (403, "authority"), (404, "data_integrity"), (409, "contention"), (422, "invalid_input"),
     (429, "rate_limited"), (500, "server_error"), (503, "server_error")],
)  # fmt: skip
def test_kubernetes(status: int, expected: str) -> None:
    assert detail_of(kubernetes.ApiException(status=status, reason="r")) == expected


@pytest.mark.behaviour("R-5f")
def test_kubernetes_without_a_status_is_a_connection_that_failed() -> None:
    assert detail_of(kubernetes.ApiException(status=0, reason="SSLError\nEOF occurred")) == "network"

    def call() -> None:
        try:
            raise urllib3.exceptions.SSLError("EOF occurred in violation of protocol")
        except urllib3.exceptions.SSLError as error:  # as its client does
            raise kubernetes.ApiException(status=0, reason=f"SSLError\n{error}")  # noqa: B904

    assert detail_of(raised_by(call)) == "network"


def answered(status: int, **headers: str) -> Any:
    request = httpx.Request("GET", "https://api.github.com/repos/a/b")
    response = httpx.Response(status, headers=headers, request=request)
    return type("Response", (), {"raw_request": request, "raw_response": response, "status_code": status,
                                 "headers": response.headers, "is_error": True})()  # fmt: skip


def test_githubkit() -> None:
    import datetime

    limited = githubkit.PrimaryRateLimitExceeded(answered(403), datetime.timedelta(seconds=90))
    cause = cause_of(limited)
    assert (cause.detail, cause.retry_after) == ("rate_limited", 90.0)
    assert detail_of(githubkit.RequestTimeout(httpx.ReadTimeout("m"))) == "timeout"
    assert detail_of(githubkit.AuthExpiredError("m")) == "credentials_expired"
    assert detail_of(githubkit.AuthCredentialError("m")) == "credentials"
    assert detail_of(githubkit.RequestFailed(answered(404))) == "data_integrity"
