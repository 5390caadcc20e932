"""Manifests: what a verifier's answer means, what several mean together, what a replay does about it."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from redrive.core.effects import Effect, Mode, Verdict, before_replay, combine_verdicts, read_verdict

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@pytest.mark.behaviour("003-13")
def test_there_are_four_verdicts() -> None:
    assert set(VERDICTS) == {"verified", "absent", "indeterminate", "partial"}


@pytest.mark.behaviour("B4", "003-13")
@pytest.mark.parametrize(
    ("found", "present", "absent"),
    [
        (True, "verified", "absent"),
        ("verified", "verified", "absent"),
        ({"id": "n1"}, "verified", "absent"),
        (["n1"], "verified", "absent"),
        (3, "verified", "absent"),
        (False, "absent", "verified"),
        (0, "absent", "verified"),
        ([], "absent", "verified"),
        ({}, "absent", "verified"),
        ("", "absent", "verified"),
        ("absent", "absent", "verified"),
        (None, "indeterminate", "indeterminate"),
        ("indeterminate", "indeterminate", "indeterminate"),
        ("partial", "indeterminate", "indeterminate"),
        ("not found", "indeterminate", "indeterminate"),
    ],
    ids=str,
)
def test_what_is_seen_of_an_effect_that_makes_and_of_one_that_removes(
    found: object, present: Verdict, absent: Verdict
) -> None:
    """After a successful delete the witness is gone, and that is what was wanted."""
    assert (read_verdict(found, "present"), read_verdict(found, "absent")) == (present, absent)


@pytest.mark.behaviour("B6")
@pytest.mark.parametrize(
    ("verdicts", "one_word"),
    [
        ((), "indeterminate"),
        (("verified",), "verified"),
        (("verified", "verified"), "verified"),
        (("verified", "absent"), "partial"),
        (("verified", "indeterminate"), "partial"),
        (("verified", "absent", "indeterminate"), "partial"),
        (("indeterminate", "indeterminate"), "indeterminate"),
        (("absent", "absent"), "absent"),
        (("absent", "indeterminate"), "absent"),
    ],
    ids=str,
)
def test_effects_together_in_one_word(verdicts: tuple[Verdict, ...], one_word: Verdict) -> None:
    assert combine_verdicts(verdicts) == one_word


@pytest.mark.behaviour("B6", "003-35")
@pytest.mark.parametrize("verdicts", list(product(("verified", "absent", "indeterminate"), repeat=3)), ids=str)
def test_no_unproven_effect_hides_behind_a_proven_one(verdicts: tuple[Verdict, ...]) -> None:
    assert (combine_verdicts(verdicts) == "verified") == (set(verdicts) == {"verified"})
    assert combine_verdicts(verdicts) == combine_verdicts(verdicts[::-1])


@pytest.mark.behaviour("C29", "003-32", "003-33", "003-36")
@pytest.mark.parametrize(
    ("verdicts", "harmless", "otherwise"),
    [
        (("verified",), "done", "done"),
        (("verified", "verified"), "done", "done"),
        (("absent",), "run", "run"),
        (("absent", "absent"), "run", "run"),
        (("verified", "absent"), "run", "hold"),
        (("verified", "indeterminate"), "run", "hold"),
        (("indeterminate",), "run", "hold"),
        (("absent", "indeterminate"), "run", "hold"),
        ((), "run", "hold"),
    ],
    ids=str,
)
def test_what_a_replay_does_about_it(verdicts: tuple[Verdict, ...], harmless: str, otherwise: str) -> None:
    """Repeating what perhaps, or partly, is there already needs a task that has said that it may be repeated."""
    assert before_replay(verdicts, idempotent=True) == harmless
    assert before_replay(verdicts, idempotent=False) == otherwise


def test_a_mode_that_nobody_knows_is_refused_with_its_name() -> None:
    with pytest.raises(ValueError, match=r"mode 'gone' of effect 'note'.*present and absent"):
        Effect("note", lambda payload, witness: True, mode="gone")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", get_args(Mode))
def test_an_effect_says_what_it_is(mode: Mode) -> None:
    assert repr(Effect("note", lambda payload, witness: True, mode=mode)) == f"Effect('note', mode={mode!r})"
