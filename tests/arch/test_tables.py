"""The tables that commands print: alignment, and what a terminal that is too narrow gets."""

import io
import re

import pytest

from arch.tables import print_width, rows_table, text_table, wrapped

HEADS = ["run", "state", "N\nnon-emb.", "loss", "left", "reason"]
ROWS = [
    ["tnl-14k-s0", "done", "1,234", "2.345", "-", ""],
    ["llama-98k-s0", "failed", "98,304", "-", "-", "the loss became NaN or infinite at step 1,200 of 4,000"],
    ["total", "", "99,538", "2.345", "1:02", ""],
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_numbers_stand_on_the_right_words_on_the_left_and_totals_apart() -> None:
    assert text_table(HEADS, ROWS, last=1).splitlines() == [
        "                             N",
        "run           state   non-emb.   loss  left  reason",
        "------------  ------  --------  -----  ----  " + "-" * 54,
        "tnl-14k-s0    done       1,234  2.345     -",
        "llama-98k-s0  failed    98,304      -     -  the loss became NaN or infinite at step 1,200 of 4,000",
        "------------  ------  --------  -----  ----  " + "-" * 54,
        "total                   99,538  2.345  1:02",
    ]
    intervals = [["LLaMA", "-0.11 [-0.12, -0.10]", "about 3 M"], ["TNL", "not identified", "−2.1%"]]
    assert text_table(["", "a", "b"], intervals).splitlines()[-1] == "TNL          not identified      −2.1%"


def test_rows_by_name_may_lack_cells() -> None:
    assert rows_table([{"a": "x", "b": 1}, {"a": "y", "c": 2}]).splitlines() == [
        "a  b  c",
        "-  -  -",
        "x  1",
        "y     2",
    ]
    assert rows_table([]) == ""


def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = text_table(HEADS, ROWS)
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "48")
    drawn = text_table(HEADS, ROWS)
    assert drawn != whole and all(len(line) <= 48 for line in drawn.splitlines())
    assert drawn.count("llama-98k-s0") == 2, "the first columns stand in every part"
    assert set(re.findall(r"[\w,.:-]+", whole)) - {"-" * 54} <= set(re.findall(r"[\w,.:-]+", drawn))
    assert wrapped(["one " * 20]) == ["one " * 11 + "one", "  " + "one " * 7 + "one"]


def test_a_pipe_has_no_width_and_ascii_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "48")  # of the terminal that started the command
    assert print_width() is None and wrapped(["one " * 100]) == ["one " * 100]
    assert text_table(HEADS, [*ROWS, ["x" * 500, *ROWS[0][1:]]]).isascii()
