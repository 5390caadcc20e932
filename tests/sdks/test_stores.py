"""Redis, PostgreSQL, SQLAlchemy, NATS, gRPC and Google's API core."""

from __future__ import annotations

import warnings
from typing import Any

import grpc
import grpc.aio
import nats.errors
import nats.js.errors
import psycopg
import psycopg.errors
import pytest
import redis.exceptions
import sqlalchemy
import sqlalchemy.exc

from tests.sdks.judging import detail_of, raised_by

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ImportWarning)  # it misses an optional part of gRPC
    import google.api_core.exceptions as google_errors


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ConnectionError", "network"),
        ("TimeoutError", "timeout"),
        ("BusyLoadingError", "contention"),
        ("ReadOnlyError", "contention"),
        ("ClusterDownError", "server_error"),
        ("OutOfMemoryError", "contention"),
        ("AuthenticationError", "credentials"),
        ("NoPermissionError", "authority"),
        ("ResponseError", "invalid_input"),
    ],
)
def test_redis(name: str, expected: str) -> None:
    assert detail_of(getattr(redis.exceptions, name)("m")) == expected


POSTGRES = [
    ("SerializationFailure", "contention"),
    ("DeadlockDetected", "contention"),
    ("LockNotAvailable", "contention"),
    ("ConnectionFailure", "network"),
    ("TooManyConnections", "contention"),
    ("AdminShutdown", "server_error"),
    ("QueryCanceled", "timeout"),
    ("InvalidPassword", "credentials"),
    ("InsufficientPrivilege", "authority"),
    ("UniqueViolation", "invalid_input"),
    ("StringDataRightTruncation", "invalid_input"),
    ("UndefinedColumn", "invalid_input"),
    ("UndefinedTable", "bug"),
    ("SyntaxError", "bug"),
    ("StatementCompletionUnknown", "outcome_unknown"),
    ("TransactionResolutionUnknown", "outcome_unknown"),
]


@pytest.mark.parametrize(("name", "expected"), POSTGRES)
def test_psycopg_also_inside_sqlalchemy(name: str, expected: str) -> None:
    error = getattr(psycopg.errors, name)("m")
    assert detail_of(error) == expected
    assert detail_of(sqlalchemy.exc.DBAPIError("SELECT 1", {}, error)) == expected


def test_a_database_that_nobody_serves() -> None:
    error = raised_by(lambda: psycopg.connect("host=127.0.0.1 port=1 connect_timeout=2"))
    assert detail_of(error) == "network"
    lost = sqlalchemy.exc.OperationalError("SELECT 1", {}, Exception("gone"), connection_invalidated=True)
    assert detail_of(lost) == "network"


def test_sqlite_inside_sqlalchemy() -> None:
    engine = sqlalchemy.create_engine("sqlite://")

    def run(*statements: str) -> None:
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(sqlalchemy.text(statement))

    assert detail_of(raised_by(lambda: run("SELECT * FROM nothing"))) == "bug"
    twice = ("CREATE TABLE t (a INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (1)")
    assert detail_of(raised_by(lambda: run(*twice))) == "invalid_input"
    engine.dispose()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (nats.errors.TimeoutError(), "timeout"),
        (nats.errors.NoServersError(), "network"),
        (nats.errors.AuthorizationError(), "credentials"),
        (nats.errors.MaxPayloadError(), "invalid_input"),
        (nats.js.errors.ServiceUnavailableError(), "server_error"),
        (nats.js.errors.KeyWrongLastSequenceError("wrong last sequence: 5"), "contention"),
        (nats.js.errors.BadRequestError(code=400, err_code=10071, description="wrong last sequence"), "contention"),
        (nats.js.errors.BadRequestError(code=400, err_code=10003), "invalid_input"),
        (nats.js.errors.KeyNotFoundError(), "data_integrity"),
    ],
)
def test_nats(error: BaseException, expected: str) -> None:
    assert detail_of(error) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("UNAVAILABLE", "server_error"),
        ("DEADLINE_EXCEEDED", "timeout"),
        ("RESOURCE_EXHAUSTED", "rate_limited"),
        ("ABORTED", "contention"),
        ("INVALID_ARGUMENT", "invalid_input"),
        ("NOT_FOUND", "data_integrity"),
        ("PERMISSION_DENIED", "authority"),
        ("UNAUTHENTICATED", "credentials"),
    ],
)
def test_grpc(status: str, expected: str) -> None:
    metadata: Any = grpc.aio.Metadata()
    assert detail_of(grpc.aio.AioRpcError(grpc.StatusCode[status], metadata, metadata, "m")) == expected


def test_a_grpc_call_that_nobody_answers() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        call = channel.unary_unary("/service/method")
        assert detail_of(raised_by(lambda: call(b"", timeout=5))) == "server_error"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ServiceUnavailable", "server_error"),
        ("DeadlineExceeded", "timeout"),
        ("ResourceExhausted", "rate_limited"),
        ("TooManyRequests", "rate_limited"),
        ("Aborted", "contention"),
        ("Conflict", "contention"),
        ("InvalidArgument", "invalid_input"),
        ("Unauthenticated", "credentials"),
        ("Forbidden", "authority"),
        ("NotFound", "data_integrity"),
        ("InternalServerError", "server_error"),
    ],
)
def test_google_api_core(name: str, expected: str) -> None:
    assert detail_of(getattr(google_errors, name)("m")) == expected
