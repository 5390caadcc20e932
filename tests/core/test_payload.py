"""Payloads: what is refused and why, and how every supported type comes back by its annotation."""

from __future__ import annotations

import enum
import json
import math
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.payload import DEPTH, LIMIT, Blob, Signature, blob_document, blob_from, encode, encode_result
from redrive.errors import InvalidPayload


def nested(levels: int, inner: Any = 1, kind: str = "object") -> dict[str, Any]:
    """A payload of so many containers, one inside the other."""
    value: Any = inner
    for _ in range(levels - 1):
        value = {"a": value} if kind == "object" else [value]
    return {"a": value}


# ---- what is refused


@pytest.mark.behaviour("000-31")
@pytest.mark.parametrize("payload", [[1, 2], "text", 7, None, b"{}", {1, 2}, 1.5, True])
def test_a_payload_is_an_object(payload: Any) -> None:
    with pytest.raises(InvalidPayload, match=f"payload: must be a JSON object, not {type(payload).__name__}"):
        encode(payload)


@pytest.mark.behaviour("000-31")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (lambda number: {"x": number}, "payload.x"),
        (lambda number: {"ok": 1, "deep": {"list": [1.0, number]}}, "payload.deep.list[1]"),
        (lambda number: {"x": (1, number)}, "payload.x[1]"),
        (lambda number: {"point": Point(1.0, number)}, "payload.point.y"),
        (lambda number: {"model": Model(number=number)}, "payload.model.number"),
    ],
    ids=["flat", "nested", "tuple", "dataclass", "pydantic"],
)
def test_numbers_that_json_does_not_have(number: float, payload: Any, field: str) -> None:
    with pytest.raises(InvalidPayload) as refused:
        encode(payload(number))
    assert refused.value.field == field


@pytest.mark.behaviour("000-31")
@pytest.mark.parametrize("value", [object(), lambda: None, open, ValueError("x"), Ellipsis, 1j])
def test_what_has_no_json_form_is_named(value: Any) -> None:
    with pytest.raises(InvalidPayload) as refused:
        encode({"good": 1, "bad": value})
    assert refused.value.field == "payload.bad"
    assert type(value).__name__ in refused.value.problem


def test_text_that_is_not_unicode_is_named() -> None:
    with pytest.raises(InvalidPayload) as refused:
        encode({"good": 1, "bad": "\ud800"})
    assert refused.value.field == "payload.bad"


@pytest.mark.parametrize("kind", ["object", "array"])
@pytest.mark.parametrize("inner", [1, None, "x", 1.5], ids=repr)
def test_as_deep_as_promised(kind: str, inner: Any) -> None:
    assert DEPTH == 64
    payload = nested(DEPTH, inner, kind)
    assert json.loads(encode(payload).text) == payload
    wide = {**payload, "beside": [[], [], {}]}
    assert json.loads(encode(wide).text) == wide


@pytest.mark.parametrize("kind", ["object", "array"])
@pytest.mark.parametrize("levels", [DEPTH + 1, 100, 900, 100_000])
def test_deeper_is_refused(kind: str, levels: int) -> None:
    with pytest.raises(InvalidPayload, match="nested deeper than 64 levels"):
        encode(nested(levels, kind=kind))


def test_a_payload_that_contains_itself_is_refused() -> None:
    payload: dict[str, Any] = {}
    payload["self"] = payload
    with pytest.raises(InvalidPayload, match="nested deeper"):
        encode(payload)


def test_the_limit_is_a_mebibyte_to_the_byte() -> None:
    frame = len('{"x":""}')
    assert LIMIT == 1024 * 1024
    assert len(encode({"x": "a" * (LIMIT - frame)}).text) == LIMIT
    with pytest.raises(InvalidPayload, match=f"is {LIMIT + 1} bytes, the limit is {LIMIT}"):
        encode({"x": "a" * (LIMIT - frame + 1)})


def test_the_limit_counts_bytes_and_may_be_another() -> None:
    with pytest.raises(InvalidPayload, match="the limit is 20"):
        encode({"x": "\u2603" * 6}, limit=20)
    assert encode({"x": "aaaaaa"}, limit=20).text == '{"x":"aaaaaa"}'


# ---- what is kept


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.behaviour("000-58")
@given(st.dictionaries(words, json_values, max_size=5))
def test_any_json_object_arrives_as_it_was_sent(payload: dict[str, Any]) -> None:
    assert json.loads(encode(payload).text) == payload


# ---- types


@dataclass
class Point:
    x: float
    y: float


class Model(pydantic.BaseModel):
    number: float
    names: list[str] = []


class Turn(msgspec.Struct):
    role: str
    text: str


class Colour(enum.Enum):
    red = "r"
    blue = "b"


class Level(enum.IntEnum):
    low = 1
    high = 2


class Order(TypedDict):
    id: int
    tags: list[str]


VALUES: list[tuple[Any, Any]] = [
    (Point, Point(1.0, 2.5)),
    (Model, Model(number=1.5, names=["a"])),
    (Turn, Turn("user", "hi")),
    (Colour, Colour.blue),
    (Level, Level.high),
    (datetime, datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (date, date(2025, 1, 2)),
    (timedelta, timedelta(seconds=90)),
    (uuid.UUID, uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")),
    (Decimal, Decimal("1.10")),
    (bytes, b"\x00\xff"),
    (Order, {"id": 1, "tags": ["a"]}),
    (list[Turn], [Turn("user", "hi"), Turn("model", "ho")]),
    (dict[str, Point], {"a": Point(0.0, 1.0)}),
    (list[Model], [Model(number=2.0)]),
    (Point | None, None),
    (int | str, "text"),
    (Any, {"free": [1, None]}),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "a")),
]


def signature_of(annotation: Any) -> Signature:
    def task(value: Any) -> Any: ...

    task.__annotations__ = {"value": annotation, "return": annotation}
    return Signature(task, skip_first=False)


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=[str(annotation) for annotation, _ in VALUES])
def test_a_value_comes_back_by_its_annotation(annotation: Any, value: Any) -> None:
    signature = signature_of(annotation)
    text = encode(signature.bind((value,), {})).text
    json.loads(text)
    found = signature.arguments(text)["value"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=[str(annotation) for annotation, _ in VALUES])
def test_a_result_comes_back_by_its_annotation(annotation: Any, value: Any) -> None:
    text, problem = encode_result(value)
    assert problem is None
    found = signature_of(annotation).result(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, '{"value":"seven"}'),
        (Point, '{"value":{"x":1.0}}'),
        (Model, '{"value":{"number":"many"}}'),
        (datetime, '{"value":"yesterday"}'),
        (Colour, '{"value":"green"}'),
        (int, "{}"),
        (int, '{"value":1,"other":2}'),
        (int, "[1]"),
        (int, "not json"),
    ],
)
def test_what_does_not_fit_the_signature_is_refused(annotation: Any, text: str) -> None:
    with pytest.raises(InvalidPayload):
        signature_of(annotation).arguments(text)


def test_arguments_are_bound_to_names() -> None:
    def task(ctx: Any, a: int, b: int = 2, *, c: str = "x") -> None: ...

    signature = Signature(task, skip_first=True)
    assert signature.bind((1,), {"c": "y"}) == {"a": 1, "c": "y"}
    assert signature.arguments('{"a":1}') == {"a": 1, "b": 2, "c": "x"}
    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"d": 4}), ((1,), {"a": 1})):
        with pytest.raises(InvalidPayload, match="arguments"):
            signature.bind(args, kwargs)


def test_defaults_are_the_functions_own() -> None:
    shared: list[int] = []

    def task(items: list[int] = shared) -> None: ...

    assert Signature(task, skip_first=False).arguments("{}")["items"] is shared


@pytest.mark.parametrize(
    ("other", "same"),
    [('{"a":1}', True), ('{"b":2,"a":1}', True), ('{"a":1,"b":3}', False), ('{"a":1', False), (None, False)],
)
def test_a_stored_call_is_the_same_with_a_default_spelled_out_and_not_where_it_is_damaged(
    other: str | None, same: bool
) -> None:
    def task(a: int, b: int = 2) -> None: ...

    assert Signature(task, skip_first=False).same('{"a":1}', other) is same


def test_open_parameters_take_anything_by_name() -> None:
    def task(a: int, **rest: Any) -> None: ...

    signature = Signature(task, skip_first=False)
    assert signature.bind((1,), {"b": 2}) == {"a": 1, "b": 2}
    assert signature.arguments('{"a":1,"b":[2]}') == {"a": 1, "b": [2]}


def test_parameters_without_a_name_are_refused() -> None:
    def task(*items: int) -> None: ...

    with pytest.raises(TypeError, match="items"):
        Signature(task, skip_first=False)


def test_parameters_with_only_a_place_are_refused() -> None:
    def task(ctx: Any, a: int, b: int, /, c: int) -> None: ...

    def fine(ctx: Any, /, c: int) -> None: ...

    with pytest.raises(TypeError, match="leave out the / that follows b,"):
        Signature(task, skip_first=True)
    assert Signature(fine, skip_first=True).names == ("c",)


# ---- blobs


def test_a_blob_is_stored_beside_and_put_back() -> None:
    def task(picture: Blob, pages: list[Blob], title: str) -> None: ...

    picture, page = Blob(b"\x89PNG" * 1_000_000, "image/png"), Blob(b"page")
    signature = Signature(task, skip_first=False)
    encoded = encode(signature.bind((picture, [page, page], "t"), {}))
    assert len(encoded.text) < 1_000
    assert encoded.blobs == (picture, page, page)
    stored = {number: blob_from(blob_document(blob)) for number, blob in enumerate(encoded.blobs)}
    assert signature.arguments(encoded.text, stored) == {"picture": picture, "pages": [page, page], "title": "t"}


@pytest.mark.parametrize(
    "payload",
    [
        {"x": {"y": [{"z": Blob(b"deep")}]}},
        {"a": {"b": {"c": {"d": {"e": [Blob(b"deep")]}}}}},
        {"x": (Blob(b"deep"),)},
    ],
    ids=["nested", "far down", "tuple"],
)
def test_a_blob_may_stand_anywhere(payload: dict[str, Any]) -> None:
    encoded = encode(payload)
    assert encoded.blobs == (Blob(b"deep"),)
    assert "deep" not in encoded.text


def test_a_blob_where_it_cannot_be_taken_out_is_refused_by_name() -> None:
    @dataclass
    class Page:
        scan: Any

    with pytest.raises(InvalidPayload, match=r"[Bb]lob"):
        encode({"page": Page(Blob(b"x"))})


@pytest.mark.parametrize("value", [{"$blob": 0}, {"$blob": 7, "media_type": "x", "size": 1}, {"$blob": "no"}])
def test_a_payload_that_only_looks_like_a_blob_does_no_harm(value: Any) -> None:
    signature = signature_of(Any)
    try:
        text = encode({"value": value}).text
    except InvalidPayload:
        return
    assert signature.arguments(text, {}) == {"value": value}
    assert signature.arguments(text) == {"value": value}


# ---- results


def test_no_result_is_no_text() -> None:
    assert encode_result(None) == (None, None)
    assert signature_of(int).result(None) is None


@pytest.mark.parametrize("value", [object(), open, {"x": object()}, 1j])
def test_a_result_that_is_not_json_never_fails_a_finished_job(value: Any) -> None:
    text, problem = encode_result(value)
    assert text is not None and problem is not None
    assert "$repr" in json.loads(text)
    assert "repr" in problem


def test_a_result_that_no_longer_fits_is_given_as_it_is() -> None:
    assert signature_of(int).result('"seven"') == "seven"


def test_a_result_whose_repr_raises_never_fails_a_finished_job() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    text, problem = encode_result(Rude())
    assert text is not None and problem is not None


def test_what_is_wrong_with_a_payload_does_not_quote_its_secrets() -> None:
    def login(mode: Literal["a"], password: Literal["b"] = "b") -> None: ...

    signature = Signature(login, skip_first=False)
    for payload in ({"mode": "sk-c4nary01abcdefgh"}, {"mode": "a", "password": "hunter22"}):
        with pytest.raises(InvalidPayload, match=r"Invalid enum value '\[redacted\]'") as refused:
            signature.arguments(msgspec.json.encode(payload).decode())
        assert "c4nary" not in str(refused.value) and "hunter22" not in str(refused.value)
    with pytest.raises(InvalidPayload, match="Invalid enum value 'other'"):
        signature.arguments('{"mode": "other"}')
