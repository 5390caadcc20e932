"""Defines what the operator permits deliveries to do. Small, because every program that uses redrive imports it."""

from __future__ import annotations

import os

import msgspec

MAX_TIMEOUT = 3600.0
HTTP_TASK = "redrive.http"
"""The name of the built-in task that sends a request."""


class DeliveryPolicy(msgspec.Struct, frozen=True):
    """The operator's permissions for deliveries: `[delivery]` in redrive.toml."""

    allow: tuple[str, ...] = ()  # networks, hosts, host:port, *.suffix: local services that jobs may call
    timeout: float = 30.0  # seconds for a whole delivery, unless the job says otherwise
    max_response: int = 65536  # bytes of an answer that are kept, counted after decompression
    credentials: tuple[str, ...] = ()  # which environment variables jobs may send, by name or pattern: "HOOK_*"
    ca_file: str | None = None  # certificates to trust; else those of SSL_CERT_FILE and SSL_CERT_DIR, else the system's

    def __post_init__(self) -> None:
        if self.allow:
            from redrive.http.address import read_allow

            read_allow(self.allow)
        if isinstance(self.timeout, bool) or not 0 < self.timeout <= MAX_TIMEOUT:
            raise ValueError(f"timeout must be more than 0 and at most {MAX_TIMEOUT:.0f} seconds")
        if self.max_response < 0:
            raise ValueError("max_response must not be negative")
        if self.ca_file is not None and not os.path.isfile(self.ca_file):
            raise ValueError(f"ca_file {self.ca_file} does not exist")
