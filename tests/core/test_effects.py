"""What a retry may repeat."""

from __future__ import annotations

import pytest

from redrive.core.effects import EffectRecord, Status, next_step, proves_absent
from redrive.core.job import Failure
from tests.stores.jobs import T0


def known(status: Status) -> EffectRecord:
    return EffectRecord("pay", "job/pay", status, T0, 1)


@pytest.mark.parametrize(
    ("status", "can_verify", "idempotent", "expected"),
    [
        (None, False, False, "perform"),
        ("absent", False, False, "perform"),
        ("absent", True, True, "perform"),
        ("landed", False, False, "return_recorded"),
        ("landed", True, True, "return_recorded"),
        ("intended", True, False, "verify"),
        ("intended", True, True, "verify"),
        ("intended", False, True, "perform"),
        ("intended", False, False, "hold"),
        ("unknown", True, False, "verify"),
        ("unknown", False, True, "perform"),
        ("unknown", False, False, "hold"),
    ],
)
def test_what_a_replay_does(status: Status | None, can_verify: bool, idempotent: bool, expected: str) -> None:
    effect = known(status) if status else None
    assert next_step(effect, can_verify=can_verify, idempotent=idempotent) == expected


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 413, 422, 429])
def test_a_refusal_proves_that_nothing_happened(status: int) -> None:
    assert proves_absent(Failure("exception", ("x.Y",), status=status))


@pytest.mark.parametrize("status", [408, 409, 425, 499, 500, 502, 503, 504, None])
def test_other_answers_prove_nothing(status: int | None) -> None:
    assert not proves_absent(Failure("exception", ("x.Y",), status=status))


@pytest.mark.parametrize(
    "name",
    [
        "builtins.ConnectionRefusedError", "socket.gaierror", "httpx.ConnectError",
        "requests.exceptions.ConnectTimeout", "urllib3.exceptions.NewConnectionError",
        "aiohttp.client_exceptions.ConnectionTimeoutError",
        "botocore.exceptions.NoCredentialsError", "nats.errors.NoRespondersError",
    ],
)  # fmt: skip
def test_what_was_never_sent_did_not_happen(name: str) -> None:
    assert proves_absent(Failure("exception", ("x.Y", name)))


@pytest.mark.parametrize("name", ["httpx.ReadTimeout", "builtins.ConnectionResetError", "builtins.TimeoutError"])
def test_what_broke_on_the_way_may_have_happened(name: str) -> None:
    assert not proves_absent(Failure("exception", (name,)))
