"""A certificate authority of our own, and a server that it speaks for, for tests of TLS on loopback."""

import socket
import ssl
from pathlib import Path

import pytest


def server_context(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(write(folder, "server.pem", SERVER_CERTIFICATE + SERVER_KEY))
    return context


def hashed_folder(folder: Path) -> str:
    """Make a folder of certificates as `openssl rehash` does: each is named by `openssl x509 -subject_hash`."""
    folder.mkdir()
    write(folder, "e314e493.0", CA_CERTIFICATE)
    return str(folder)


def resolve_to_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, *args: object, **kwargs: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


# Made for these tests; valid from 2020 to 2120, for hooks.example only, and trusted by nobody else.
CA_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBiDCCAS6gAwIBAgIBBzAKBggqhkjOPQQDAjAaMRgwFgYDVQQDDA9yZWRyaXZl
IHRlc3QgQ0EwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBoxGDAW
BgNVBAMMD3JlZHJpdmUgdGVzdCBDQTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IA
BNz6fHMy6ST/5YSP1WcAlRjqWXYsLc5QCRVmzSVM4a2CqX+RLXnXv8R7OkBZfScI
5dj9swZ863tFoKz8j9DQ1VSjYzBhMA8GA1UdEwEB/wQFMAMBAf8wDgYDVR0PAQH/
BAQDAgIEMB0GA1UdDgQWBBREjSap59nyTNnbuqo8Do7erIkf3TAfBgNVHSMEGDAW
gBREjSap59nyTNnbuqo8Do7erIkf3TAKBggqhkjOPQQDAgNIADBFAiAEmC/66lWs
Dgku9wRlwE15MqyrHSPKwg974sEmMe7svQIhANCaVFF2QxLPebLGNdx9rmsMTgbN
ZGBQf0MY1CSP8wLg
-----END CERTIFICATE-----
"""
SERVER_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBsDCCAVegAwIBAgIBCDAKBggqhkjOPQQDAjAaMRgwFgYDVQQDDA9yZWRyaXZl
IHRlc3QgQ0EwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBgxFjAU
BgNVBAMMDWhvb2tzLmV4YW1wbGUwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAR+
mMxrsA6YAGvOToTkSPjw7Tt6NiiVEE0oBE/O2cMn03brJ/qgLj5Z35mHw8ZcB+Zf
vAhO4iKnpw3Lg5hVTfono4GNMIGKMAkGA1UdEwQCMAAwGAYDVR0RBBEwD4INaG9v
a3MuZXhhbXBsZTAfBgNVHSMEGDAWgBREjSap59nyTNnbuqo8Do7erIkf3TAdBgNV
HQ4EFgQUEo7U5tjYbGdYuSewtLCAdOaUeYUwDgYDVR0PAQH/BAQDAgeAMBMGA1Ud
JQQMMAoGCCsGAQUFBwMBMAoGCCqGSM49BAMCA0cAMEQCIAO0qglae6LErZd6oRUt
Nl3kakpgAU9xaMq1J/TJbdPwAiA7a02KoTPQhB0vBHMmrqIW83ZZaQ3CxVVUCyqM
K2Xh0A==
-----END CERTIFICATE-----
"""
SERVER_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg8yogrUAX5GjF3t5w
f+DmqZTM6DfsoNkN3pAWc89mqWOhRANCAAR+mMxrsA6YAGvOToTkSPjw7Tt6NiiV
EE0oBE/O2cMn03brJ/qgLj5Z35mHw8ZcB+ZfvAhO4iKnpw3Lg5hVTfon
-----END PRIVATE KEY-----
"""
