"""A key that stands twice in one JSON object is refused, whatever it holds: a parser would drop one value silently."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core.json_keys import RepeatedKey, refuse_repeated_keys


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"a": 1, "a": 1}', "a"),
        ('{"x": [{"deep": {"to": 1, "\\u0074o": 2}}]}', "to"),
        ('[{"b": 1}, {"é": 1, "é": 2}]', "é"),
        ('{"": 1, "": 2}', ""),
        ('{"n": ' + "9" * 5000 + ', "n": 1}', "n"),
    ],
)
def test_a_key_that_stands_twice_is_named(text: str, key: str) -> None:
    for form in (text, text.encode()):
        with pytest.raises(RepeatedKey) as refused:
            refuse_repeated_keys(form)
        assert refused.value.key == key
        assert json.dumps(key) in str(refused.value)


@pytest.mark.parametrize(
    "text", ['{"a": {"b": 1}, "b": {"b": 1}}', '"{\\"a\\":1,\\"a\\":2}"', "[1, 1]", "{", "[" * 9000, ""]
)
def test_anything_else_passes(text: str) -> None:
    """Also what is no JSON: its parser says that."""
    refuse_repeated_keys(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_no_value_that_was_written_as_json_is_refused(value: object) -> None:
    refuse_repeated_keys(json.dumps(value))
