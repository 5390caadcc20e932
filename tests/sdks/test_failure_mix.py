"""The same worlds with the exceptions of the real libraries: they come to the rows that docs/strategies.md shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdks.judging import detail_of
from tests.sdks.voices import RealVoices
from tools.failure_mix import FIRST, PAGE, live, row, row_in
from tools.voices import StandIns, Voices
from tools.world import USUAL


@pytest.mark.parametrize("arm", ["redrive", "redrive, breakers off", "plain backoff"])
async def test_the_real_libraries_come_to_the_same_numbers(
    arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lived = await live(USUAL, FIRST, arm, RealVoices(), str(tmp_path / "jobs.db"))
    assert row(lived) == row_in(PAGE.read_text("utf-8"), (USUAL, FIRST, arm))


@pytest.mark.parametrize("voices", [RealVoices(), StandIns()], ids=lambda voices: type(voices).__name__)
def test_each_failure_is_known_for_what_it_is(voices: Voices) -> None:
    assert detail_of(voices.overloaded("overloaded")) == "provider_overloaded"
    assert detail_of(voices.overloaded("unavailable")) == "server_error"
    assert detail_of(voices.limited(30)) == detail_of(voices.limited(None)) == "rate_limited"
    assert detail_of(voices.github_limited(600)) == "rate_limited"
    assert detail_of(voices.unreachable("a.example", "dns")) == "network"
    assert detail_of(voices.unreachable("a.example", "tls")) == "timeout"
    assert {detail_of(voices.too_long(101_000, 100_000, number)) for number in range(6)} == {"context_overflow"}
    assert detail_of(voices.cut_off(0)) == "token_budget"
    assert detail_of(voices.confused("?")) == "model_confusion"
    causes = ["authority_exceeded", "data_integrity", "dependency_unavailable", "impossible_task"]
    known = ["authority", "data_integrity", "dependency_gone", "gave_up"]
    assert [detail_of(voices.refused(cause, 0)) for cause in causes] == known
