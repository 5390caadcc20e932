"""What a terminal that is narrow shows: numbers and ids whole, texts folded at words, commands that can be copied."""

import pytest

from redrive.doors.cli.output import fit_columns, fold_heading, make_columns
from redrive.doors.cli.text import fold_text
from tests.cli.shell import Shell
from tests.cli.test_output import on_a_terminal

WIDTHS = (60, 80, 100)
JOBS = ("id", "state", "task", "queue", "attempts", "changed", "last error")
ERROR = "TimeoutError: smtp.relay.example:587 did not answer within 10 s"


def taken(columns: list[str], rows: list[list[str]], width: int) -> tuple[int, dict[str, int], list[str]]:
    kept, out = fit_columns(make_columns(columns, rows), width)
    return sum(c.width for c in kept) + 2 * (len(kept) - 1), {c.name: c.width for c in kept}, out


@pytest.mark.parametrize("width", WIDTHS)
def test_ids_and_numbers_keep_their_width_and_texts_give_way(width: int) -> None:
    row = ["0e71972d", "discarded", "send_weekly_digest", "mail", "12/12", "58 min ago", ERROR]
    total, widths, out = taken(list(JOBS), [row], width)
    assert total <= width
    assert widths["id"] == 8 and widths["state"] == 9 and widths["changed"] == 10
    assert ("queue" in out) == (width < 100) and "last error" in widths
    assert not set(out) & set(widths)


def test_with_room_everything_is_shown_as_it_is() -> None:
    row = ["0e71972d", "dead", "send", "mail", "1/3", "now", ERROR]
    _, widths, out = taken(list(JOBS), [row], 200)
    assert widths == {name: max(len(name), len(cell)) for name, cell in zip(JOBS, row, strict=True)}
    assert out == []


def test_headings_are_folded_before_anything_is_left_out() -> None:
    names = ["week", "processed", "dead letters", "human-required"]
    rows = [["2026-W46 (from 09 Nov)", "1,247", "31", "109 (81 %)"]]
    kept, out = fit_columns(make_columns(names, rows), 55)
    assert [fold_heading(column) for column in kept] == ["week", "processed", "dead\nletters", "human-\nrequired"]
    assert out == [] and [column.right for column in kept] == [False, True, True, True]


def test_pictures_go_first_and_their_namesake_stays() -> None:
    names = ["queue", "succeeded", "backlog before", "succeeded"]
    kept, out = fit_columns(make_columns(names, [["mail", "90", "▁▂▃█" * 6, "▁█" * 12]]), 60)
    assert [column.name for column in kept] == ["queue", "succeeded", "backlog before"] and out == []
    kept, out = fit_columns(make_columns(names, [["mail", "90", "▁▂▃█" * 6, "▁█" * 12]]), 30)
    assert [column.name for column in kept] == ["queue", "succeeded"] and out == ["backlog before"]


def test_lines_end_at_words_and_commands_stay_whole() -> None:
    line = "  34 dead    send_digest: the receiver would not answer within ten seconds of the call"
    assert fold_text(line, 50).splitlines() == [
        "  34 dead    send_digest: the receiver would not",
        "             answer within ten seconds of the call",
    ]
    command = "redrive dead reassign 36445c48 --to NAME --why TEXT"
    assert fold_text(f"  Another agent should do it: {command}", 60).splitlines() == [
        "  Another agent should do it:", f"    {command}",
    ]  # fmt: skip
    assert fold_text(f"→ {command}", 20) == f"→ {command}"
    said = "redrive approve 2eb2459e says yes, redrive reject 2eb2459e says no; then it goes on"
    assert fold_text(said, 40).splitlines() == [
        "redrive approve 2eb2459e says yes,", "  redrive reject 2eb2459e says no; then", "  it goes on",
    ]  # fmt: skip
    quoted = """redrive enqueue TASK '{"a": 1, "b": 2}'"""
    assert fold_text(f"Accept one with: {quoted}", 20).splitlines()[-1].strip() == quoted


@pytest.mark.parametrize("width", WIDTHS)
def test_a_narrow_terminal_shows_ids_numbers_and_commands_whole(shell: Shell, width: int) -> None:
    ids = shell.dead_letters(12)
    for words in (("dead", "list"), ("jobs",), ("queues",), ("dead", "groups"), ("report", "load")):
        drawn = on_a_terminal(shell, *words, COLUMNS=str(width), NO_COLOR="1", TERM="dumb").replace("\r\n", "\n")
        assert all(len(line) <= width for line in drawn.splitlines()), drawn
        assert "12" in drawn.split() or all(id[-8:] in drawn.split() for id in ids), drawn
    told = on_a_terminal(shell, "dead", "show", ids[0], COLUMNS=str(width)).replace("\r\n", "\n")
    assert f"redrive dead reassign {ids[0][-8:]} --to NAME --why TEXT\n" in told
    narrow = on_a_terminal(shell, "queues", COLUMNS="50")
    assert "Left out, as the terminal is narrow: discarded, purged" in " ".join(narrow.split())


@pytest.mark.parametrize("width", [60, 80])
def test_rows_of_lists_are_cut_and_never_wrapped(shell: Shell, width: int) -> None:
    shell.enqueue("a_task_whose_name_is_much_longer_than_any_column_of_a_narrow_terminal")
    shell.dead_letters(3)
    for words, rows in ((("dead", "list"), 3), (("jobs",), 4), (("queues",), 2), (("tasks",), 2)):
        drawn = on_a_terminal(shell, *words, COLUMNS=str(width), NO_COLOR="1", TERM="dumb").replace("\r\n", "\n")
        body = drawn.partition("─\n")[2].partition("Left out")[0]
        lines = [line for line in body.splitlines() if line.strip()]
        named = [line for line in lines if any(name in line for name in ("broken", "a_task", "redriv"))]
        assert len(named) == len(lines) >= rows, drawn


def test_a_column_that_says_nothing_goes_first_and_is_not_missed() -> None:
    kept, out = fit_columns(make_columns(["queue", "paused", "purged"], [["mail", "", "12"]]), 14)
    assert [column.name for column in kept] == ["queue", "purged"] and out == []
