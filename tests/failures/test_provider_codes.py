"""Provider codes are read where providers put them: the words around a code change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.core.job import Cause
from redrive.failures.capture import capture
from redrive.failures.classify import classify
from redrive.failures.classify.codes import _CODES_BY_DETAIL, code_detail

CODES = [(code, detail) for detail, codes in _CODES_BY_DETAIL.items() for code in codes.split()]


class ProviderError(Exception):
    """An exception of an SDK that nobody has listed, with what SDKs put on theirs."""

    def __init__(self, message: str, **traits: Any) -> None:
        super().__init__(message)
        self.__dict__.update(traits)


def answered(status: int | None, document: object) -> httpx2.Response:
    return httpx2.Response(status or 200, content=json.dumps(document).encode())


PLACES: dict[str, Callable[[int | None, str], dict[str, Any]]] = {
    "code": lambda status, code: {"code": code},
    "type": lambda status, code: {"type": code},
    "error_type": lambda status, code: {"code": None, "error_type": code},
    "code beside a type": lambda status, code: {"code": code, "type": "invalid_request_error"},
    "type beside no code": lambda status, code: {"code": None, "type": code},
    "error code of the body": lambda status, code: {"body": {"error": {"code": code, "message": "m"}}},
    "error type of the body": lambda status, code: {"body": {"type": "error", "error": {"type": code}}},
    "code of the inner body": lambda status, code: {"body": {"message": "m", "type": None, "code": code}},
    "body as text": lambda status, code: {"body": json.dumps({"error": {"code": code}})},
    "error code of the response": lambda status, code: {"response": answered(status, {"error": {"code": code}})},
    "error type of the response": lambda status, code: {"response": answered(status, {"error": {"type": code}})},
    "code of the response": lambda status, code: {"response": answered(status, {"code": code, "message": "m"})},
    "response beside a body that says nothing": lambda status, code: {
        "body": {"message": "m"},
        "response": answered(status, {"error": {"code": code}}),
    },
}  # fmt: skip


def caused(message: str, status: int | None, place: str, code: str) -> Cause:
    traits = PLACES[place](status, code)
    if status is not None:
        traits["status_code"] = status
    return classify(capture(ProviderError(message, **traits)))


@pytest.mark.behaviour("R-5a")
@pytest.mark.parametrize("status", [None, 400, 429, 503])
@pytest.mark.parametrize("place", PLACES)
def test_every_provider_code_is_read_from_every_place_without_a_word(place: str, status: int | None) -> None:
    silent = {code: caused("", status, place, code).detail for code, _ in CODES}
    assert silent == dict(CODES)
    assert silent == {code: caused(code.replace("_", " "), status, place, code).detail for code, _ in CODES}


@pytest.mark.behaviour("R-5a")
@given(
    st.sampled_from(CODES),
    st.sampled_from(list(PLACES)),
    st.sampled_from([None, 200, 400, 403, 409, 422, 429, 500, 503]),
    st.text(alphabet="bcdfghjklmnpqrstvwxz 0123456789", max_size=80),
    st.sampled_from([str, str.upper, lambda code: code.replace("_", "-"), lambda code: f"{code}_error"]),
)
@example(("server_is_overloaded", "provider_overloaded"), "type", 503, "bzz", str)
def test_random_words_around_a_code_change_nothing(
    listed: tuple[str, str], place: str, status: int | None, words: str, spelled: Callable[[str], str]
) -> None:
    code, expected = listed
    assert caused(words, status, place, spelled(code)).detail == expected


@pytest.mark.behaviour("R-5a")
def test_an_overload_is_read_beside_a_code_that_only_says_unavailable() -> None:
    """OpenAI sends both, and since version 3 of its SDK the message has neither."""
    for first, second in (("server_is_overloaded", "service_unavailable_error"), ("service_unavailable_error",
                          "server_is_overloaded"), ("server_error", "server_is_overloaded")):  # fmt: skip
        error = ProviderError("Error code: 503", status_code=503, code=first, type=second)
        assert classify(capture(error)).detail == "provider_overloaded"


def test_a_code_that_names_an_overload_in_another_way_is_known() -> None:
    assert code_detail("upstream_llm_overloaded") == "provider_overloaded"
