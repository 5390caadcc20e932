"""The checker of histories: an honest one passes, and each kind of bad one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.app import make_app
from tests.chaos.history import assert_history, problems_in

pytestmark = pytest.mark.chaos

HONEST = """
accepted a
start a 1 10 1.0
end a 1 10 2.0
completed a 10 2.1
accepted b
start b 1 10 1.0
start b 2 11 9.0
end b 2 11 9.5
completed b 11 9.6
end b 1 10 12.0
effect key
settled a 1 done
final a done
settled b 1 lost
settled b 2 done
final b done
accepted c
start c 1 12 3.0
settled c 1 failed
final c dead
"""
"""Job b was lost to another process; its first one woke late, ended, and was told nothing."""

BAD = {
    "lost": ("final c dead\n", "", "c: it was accepted and is not stored"),
    "never ended": ("final c dead", "final c waiting", "c: it has not ended: waiting"),
    "stored twice": ("final c dead", "final c dead\nfinal c dead", "c: it is stored 2 times"),
    "done by nobody": ("settled a 1 done\n", "", "a: it is done, and no run of it was"),
    "settled twice": ("settled a 1 done", "settled a 1 done\nsettled a 1 failed", "a: run 1 was settled 2 times"),
    "two runs done": ("settled b 1 lost", "settled b 1 done", "b: runs [1, 2] are all done"),
    "ran again": ("final a done", "final a done\nstart a 2 11 5.0", "a: run 1 was done, and runs [2] were started"),
    "told twice": ("completed a 10 2.1", "completed a 10 2.1\ncompleted a 10 2.2", "a: 2 completions were told"),
    "a stranger": ("completed a 10 2.1", "completed a 99 2.1", "a: process 99 completed it and had not started it"),
    "a stale completion": (
        "completed b 11 9.6",
        "completed b 10 12.1",
        "b: run 1 was told as completed, and the store",
    ),
    "completed too late": (
        "completed b 11 9.6",
        "completed b 10 12.1",
        "b: run 1 of process 10 was completed although",
    ),
    "both of an overlap": (
        "final b done",
        "final b done\ncompleted b 10 12.1",
        "b: two runs at the same time were both",
    ),
    "an effect twice": ("effect key", "effect key\neffect key", "effect key happened 2 times"),
}


def test_an_honest_history_passes() -> None:
    assert problems_in(HONEST.splitlines()) == []


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_history_is_refused(kind: str) -> None:
    before, after, problem = BAD[kind]
    assert before in HONEST
    found = problems_in(HONEST.replace(before, after).splitlines())
    assert any(problem in each for each in found), found


async def test_what_a_real_run_writes_is_read(folder: Path) -> None:
    rd, ledger = make_app(folder)
    async with rd:
        for task in ("work", "flaky", "hopeless"):
            ledger.accepted([(await rd.enqueue(task, {"n": 1})).id])
        await rd.drain()
        await assert_history(rd, ledger)
        ledger.completed((await rd.enqueue("work", {"n": 2}, delay=60)).id)
        with pytest.raises(AssertionError, match="had not started it"):
            await assert_history(rd, ledger)
