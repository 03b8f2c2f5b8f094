"""Tables as files: numbers in full, intervals as columns, and LaTeX that a TeX would read."""

import csv
import io
import math
import re
from pathlib import Path

import pandas as pd
import pytest

from analysis.pages.cells import NONE, number, shown
from analysis.pages.export import columns, latex, to_csv, to_latex, write_tables

SPECIAL = re.compile(r"(?<!\\)[&%#_$^~{}]")
ROWS = [
    {
        "law": "A_1 & B",
        "a": shown(1 / 3, ".2f", (0.25, 0.5)),
        "share": shown(0.123456, ".1%"),
        "runs": "1,204",
        "range": number("10¹² – 3·10¹²", NONE, (1e12, 3e12)),
        "N_opt at 8.95·10¹² FLOP": shown(2 / 3, ".1f", note="no power law"),
        "empty": "",
    },
    {"law": "50% of {x}", "a": "not identified", "runs": "−7", "N_opt at 8.95·10¹² FLOP": "-"},
]


def test_columns_hold_what_the_text_was_rounded_from() -> None:
    by_name = columns(ROWS)
    assert list(by_name) == [
        *("law", "a", "a low", "a high", "a note", "share", "runs", "range low", "range high"),
        *("N_opt at 8.95e12 FLOP", "N_opt at 8.95e12 FLOP note"),
    ]
    assert by_name["a"] == [1 / 3, None] and by_name["a low"] == [0.25, None]
    assert by_name["a note"] == [None, "not identified"]
    assert by_name["share"] == [0.123456, None] and by_name["runs"] == [1204, -7]
    assert by_name["range low"] == [1e12, None] and by_name["N_opt at 8.95e12 FLOP note"] == ["no power law", None]


def test_files_read_back(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables", {"one": ROWS})
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["one.csv", "one.parquet", "one.tex"]
    read = pd.read_parquet(tmp_path / "tables" / "one.parquet")
    assert read["a"][0] == 1 / 3 and math.isnan(read["a"][1]) and read["law"].tolist() == ["A_1 & B", "50% of {x}"]
    (head, first, second) = csv.reader(io.StringIO((tmp_path / "tables" / "one.csv").read_text()))
    assert dict(zip(head, first, strict=True))["a"] == repr(1 / 3) and dict(zip(head, second, strict=True))["a"] == ""
    assert to_csv(columns(ROWS)) == (tmp_path / "tables" / "one.csv").read_text()


def test_latex_is_escaped_and_has_the_texts_that_are_shown() -> None:
    text = to_latex(ROWS)
    lines = text.splitlines()
    assert lines[1] == r"\begin{tabular}{llrrrr}" and lines[-1] == r"\end{tabular}"
    assert [line for line in lines if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]
    rows = [line.removesuffix(r" \\") for line in lines if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {5} and len(rows) == 3
    assert "0.33 [0.25, 0.50]" in rows[1] and r"A\_1 \& B" in rows[1] and r"50\% of \{x\}" in rows[2]
    assert r"$10^{12}$ -- $3 \cdot 10^{12}$" in rows[1]


@pytest.mark.parametrize("text", ["a_b", "50%", "R^2", "x & y", "$5", "#1", "{z}", "~3 \\ 4", "≥ < > | ± ∞ − –"])
def test_nothing_special_is_left_bare(text: str) -> None:
    bare = re.sub(r"\\text\w+\{\}|\$[^$]*\$|\\[&%$#_{}]", "", latex(text))
    assert not SPECIAL.search(bare) and "\\" not in bare
