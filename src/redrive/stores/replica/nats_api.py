"""Reads the answers of JetStream's API, and translates its error codes for a log."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from redrive.stores.replica.log import LogFull, LogUnavailable

encode: Final = msgspec.json.Encoder().encode
FULL: Final = frozenset({10002, 10023, 10047, 10077})
"""Errors of a stream, an account or a server that is full. Their HTTP-like code is that of a missing leader: 503."""
NO_STREAM: Final = 10059
NO_MESSAGE: Final = 10037
NAME_IN_USE: Final = 10058
NO_LEADER: Final = (10008, 10009)
MOVED: Final = (10071, 10164)
"""Errors of a compare-and-set that met another value."""
T = TypeVar("T")


class ApiProblem(msgspec.Struct):
    """Why JetStream refused a request."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class JetStreamRefused(LogUnavailable):
    """JetStream answered with an error that has no other meaning here."""

    def __init__(self, problem: ApiProblem) -> None:
        super().__init__(f"{problem.description} ({problem.err_code})")
        self.number = problem.err_code


class JetStreamAnswer(msgspec.Struct):
    """Any answer of JetStream's API, of which sometimes only the error matters."""

    error: ApiProblem | None = None


class Ack(JetStreamAnswer):
    """The answer of a stream to a message."""

    seq: int = 0
    duplicate: bool = False


class StreamState(msgspec.Struct):
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    consumer_count: int = 0
    subjects: dict[str, int] | None = None


class Peer(msgspec.Struct):
    """Another server that keeps the stream."""

    name: str = ""
    current: bool = False
    offline: bool = False
    lag: int = 0


class Cluster(msgspec.Struct):
    leader: str = ""
    replicas: list[Peer] | None = None


class StreamInfo(JetStreamAnswer):
    """The part of STREAM.INFO that redrive uses."""

    created: str = ""
    ts: str = ""
    """The server's time."""
    cluster: Cluster | None = None
    config: dict[str, Any] = {}
    state: StreamState = msgspec.field(default_factory=StreamState)


class StreamNames(JetStreamAnswer):
    """One page of STREAM.NAMES."""

    streams: list[str] | None = None
    total: int = 0


class StreamList(JetStreamAnswer):
    """One page of STREAM.LIST."""

    streams: list[StreamInfo] | None = None
    total: int = 0


class StateInfo(JetStreamAnswer):
    """The part of STREAM.INFO that changes."""

    state: StreamState = msgspec.field(default_factory=StreamState)


class Stored(msgspec.Struct):
    """A message read from its stream."""

    subject: str
    seq: int
    time: str = ""
    data: bytes = b""
    hdrs: bytes = b""


class StoredAnswer(JetStreamAnswer):
    message: Stored | None = None


_decoders: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (Ack, StreamInfo, StreamList, StreamNames, StateInfo, StoredAnswer, JetStreamAnswer)
}


def api(verb: str) -> str:
    return f"$JS.API.{verb}"


def decode(kind: type[T], data: bytes) -> T:
    """Read an answer; translate and raise an error in it."""
    try:
        answer: Any = _decoders[kind].decode(data)
    except msgspec.MsgspecError as error:
        raise LogUnavailable(f"an answer of JetStream cannot be read: {error}") from error
    if answer.error is not None:
        raise _refusal(kind, answer.error)
    return answer  # type: ignore[no-any-return]


def check(data: bytes) -> None:
    decode(JetStreamAnswer, data)


def _refusal(kind: type, problem: ApiProblem) -> Exception:
    if kind is Ack and problem.err_code in FULL:
        return LogFull(f"{problem.description} ({problem.err_code})")
    return JetStreamRefused(problem)


def is_without_leader(answer: bytes) -> bool:
    """Whether a server knows no leader, as one does that is cut off from the others."""
    return len(answer) < 500 and any(b'"err_code":%d' % number in answer for number in NO_LEADER)


def read_header(block: bytes, name: str) -> str:
    """Read one header of a stored message."""
    for line in block.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip() == name.encode():
            return value.strip().decode()
    return ""
