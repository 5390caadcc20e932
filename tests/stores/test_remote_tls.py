"""A client of a hub trusts the authorities that the usual variables name, and asks no proxy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from redrive.errors import ConfigError
from redrive.stores.remote.http import MEDIA, HttpTransport, read_servers
from redrive.stores.remote.transport import HubUnavailable
from tests.certificates import CA_CERTIFICATE, resolve_to_loopback, server_context, write
from tests.receiver import answer, receiving

pytestmark = pytest.mark.behaviour("H-6a")


async def asked(port: int) -> bytes:
    transport = HttpTransport(read_servers(f"https://hooks.example:{port}", "secret"))
    try:
        return await transport.ask(b"request", 5.0)
    finally:
        await transport.close()


async def test_an_own_authority_is_trusted_by_the_usual_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to_loopback(monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    async with receiving(answer("200 OK", b"answer", content_type=MEDIA), tls=server_context(tmp_path)) as hub:
        with pytest.raises(HubUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await asked(hub.port)
        monkeypatch.setenv("SSL_CERT_FILE", write(tmp_path, "ca.pem", CA_CERTIFICATE))
        assert await asked(hub.port) == b"answer"
    (seen,) = hub.requests
    assert (seen.path, seen.body, seen.headers["authorization"]) == ("/v1/hub", b"request", "Bearer secret")


async def test_certificates_that_cannot_be_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
    with pytest.raises(ConfigError, match="SSL_CERT_FILE"):
        await asked(9)


async def test_no_certificate_is_read_where_no_hub_has_https(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file")
    async with receiving(answer("200 OK", b"answer", content_type=MEDIA)) as hub:
        transport = HttpTransport(read_servers(f"http://127.0.0.1:{hub.port}", "secret"))
        assert await transport.ask(b"request", 5.0) == b"answer"
        await transport.close()


def test_the_command_names_them_in_one_line(tmp_path: Path) -> None:
    variables = {"REDRIVE_URL": "https://hooks.example", "REDRIVE_TOKEN": "x", "SSL_CERT_FILE": "/no/such/file"}
    ran = subprocess.run(
        [sys.executable, "-m", "redrive", "health"],
        cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode != 0 and "SSL_CERT_FILE" in ran.stderr and "Traceback" not in ran.stderr
