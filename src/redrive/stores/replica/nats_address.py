"""Reads nats:// URLs: seeds, credentials, namespace and the options of a log. Credentials are never printed."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from redrive.errors import ConfigError

NAMESPACE: Final = "redrive"
LOG_BYTES: Final = 1 << 30
SNAPSHOT_BYTES: Final = 2 << 30
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")
_SIZE: Final = re.compile(r"(\d+)([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SWITCH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The address of one log on NATS, with credentials and options."""

    hosts: tuple[str, ...]
    namespace: str
    tls: bool = False
    user: str | None = None
    password: str | None = None
    """Without it `user` is a token."""
    replicas: int | None = None
    max_bytes: int | None = None
    snapshot_bytes: int | None = None
    """None leaves the limit of an existing stream as it is."""
    creds: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    synced: bool = False
    """The operator's promise that every server syncs before it acknowledges, which clients cannot ask for."""
    replica: bool = False

    def __repr__(self) -> str:
        return f"Address({self.public!r})"

    __str__ = __repr__

    @property
    def public(self) -> str:
        """The URL without credentials and options."""
        return f"{self._scheme}://{','.join(self.hosts)}/{self.namespace}"

    @property
    def seeds(self) -> list[str]:
        return [f"{self._scheme}://{host}" for host in self.hosts]

    @property
    def _scheme(self) -> str:
        return "tls" if self.tls else "nats"

    def context(self) -> ssl.SSLContext | None:
        """Make the context that checks TLS connections; None without TLS."""
        if not self.tls and self.tls_ca is None and self.tls_cert is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as error:
            raise ConfigError(f"{self.public}: tls_ca, tls_cert or tls_key cannot be used: {error}") from error
        return context


def read_address(url: str) -> Address:
    """Read a URL. Raises ConfigError that names the faulty part, never the credentials."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError("this NATS URL cannot be read: write nats://host:4222/namespace") from None
    if parts.scheme not in ("nats", "tls"):
        raise ConfigError("a NATS URL begins with nats:// or tls://")
    login, _, places = parts.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    return Address(
        hosts=tuple(_host(host) for host in places.split(",")),
        namespace=_namespace(parts.path.strip("/") or NAMESPACE),
        tls=parts.scheme == "tls",
        user=unquote(user) or None,
        password=unquote(password) if colon else None,
        **_read_options(parts.query),
    )


def _read_options(query: str) -> dict[str, Any]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options.keys() - _OPTIONS:
        raise ConfigError(f"{name!r} is no option of a NATS URL; there are {', '.join(sorted(_OPTIONS))}")
    return {name: _OPTIONS[name](name, text) for name, text in options.items()}


def _host(text: str) -> str:
    """Read host:port, with the port of NATS where none is given."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or 4222
    except ValueError:
        raise ConfigError(f"{text!r} is no host:port of a NATS server") from None
    if not host or "/" in text or "@" in text:
        raise ConfigError("a NATS URL names its servers: nats://host:4222,other:4222/namespace")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _namespace(text: str) -> str:
    name = text.upper()
    if not _NAME.fullmatch(text) or name.endswith(("_SNAP", "_TASKS", "_RETRY")) or "_DLQ_" in name:
        raise ConfigError(
            f"{text!r} cannot name a namespace: take up to 48 letters, digits, - and _, not ending in _SNAP, _TASKS or"
            " _RETRY, and without _DLQ_"
        )
    return text


def _replicas(name: str, text: str) -> int:
    if text not in ("1", "3", "5"):
        raise ConfigError(f"{name}={text}: a log has 1, 3 or 5 replicas")
    return int(text)


def _size(name: str, text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"{name}={text}: write bytes, or 512MB, 4GB")
    return int(match[1]) * _UNITS[match[2].lower()]


def _file(name: str, text: str) -> str:
    if not Path(text).is_file():
        raise ConfigError(f"{name}={text}: there is no such file")
    return text


def _switch(name: str, text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ConfigError(f"{name}={text}: write true or false")
    return _SWITCH[text.lower()]


_OPTIONS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "creds": _file,
    "max_bytes": _size,
    "replica": _switch,
    "replicas": _replicas,
    "snapshot_bytes": _size,
    "synced": _switch,
    "tls_ca": _file,
    "tls_cert": _file,
    "tls_key": _file,
}
