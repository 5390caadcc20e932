"""Keys that tasks make of their payloads: refused at registration where no payload could fill them in."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.keys import check_template, key_for
from redrive.core.payload import Signature
from redrive.errors import InvalidOption


def send(to: str, number: int = 7, *, copies: list[str] | None = None) -> None: ...


def take(to: str, **more: Any) -> None: ...


SENDING = Signature(send, skip_first=False)
TAKING = Signature(take, skip_first=False)


@pytest.mark.parametrize(
    ("template", "payload", "key"),
    [
        ("nightly", {"to": "ada"}, "nightly"),
        ("mail_{to}", {"to": "ada"}, "mail_ada"),
        ("{to}_{number}", {"to": "ada"}, "ada_7"),
        ("{to}_{number:03d}", {"to": "ada", "number": 5}, "ada_005"),
        ("{copies[0]!r:>{number}}", {"copies": ["x"]}, "    'x'"),
        ("{copies}", {}, "None"),
        ("{{{to}}}", {"to": "ada"}, "{ada}"),
    ],
)
def test_a_template_is_filled_in_with_the_payload_and_the_defaults(
    template: str, payload: dict[str, Any], key: str
) -> None:
    assert check_template(template, SENDING) == template
    assert key_for(template, SENDING, payload) == key


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("k_{to", "expected '}'"), ("k_to}", "Single '}'"), ("{}", "positional"), ("{0}", "positional"),
        ("{to!z}", "conversion"), ("{to!s:d}", "format code 'd'"), ("{who}", "no parameter 'who'"),
        ("{to:{width}}", "no parameter 'width'"), ("{to}{a b}", "no parameter 'a b'"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_filled_in_is_refused(template: str, problem: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        check_template(template, SENDING)
    assert refused.value.field == "idempotency_key"
    assert refused.value.problem.startswith(f"template {template!r}: ") and problem in refused.value.problem


@pytest.mark.parametrize("template", ["", 5, b"k", "a\nb", "x" * 501, "\ud800"])
def test_a_template_is_a_text_that_can_be_a_key(template: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^idempotency_key: .* must be 1 to 500 printable characters$"):
        check_template(template, SENDING)


def test_what_takes_anything_may_be_asked_for_anything() -> None:
    assert check_template("{to}_{who.name}", TAKING)
    assert key_for("{who}", TAKING, {"to": "ada", "who": "bob"}) == "bob"


@pytest.mark.parametrize(
    ("template", "payload", "problem"),
    [
        ("{to}", {}, "no 'to'"), ("{copies[0]}", {"copies": []}, "no list index"),
        ("{to.name}", {"to": "a"}, "no 'str'"),
        ("{number:d}", {"number": "x"}, "format code 'd'"), ("{copies:5}", {}, "unsupported format"),
        ("{to.items}", {"to": {"items": 1}}, "to.items is a method"), ("{number:c}", {"number": 10**12}, "range"),
    ],
)  # fmt: skip
def test_a_payload_that_has_no_such_key_is_refused(template: str, payload: dict[str, Any], problem: str) -> None:
    check_template(template, SENDING)
    with pytest.raises(InvalidOption, match=f"^idempotency_key: template .*: .*{problem}"):
        key_for(template, SENDING, payload)
