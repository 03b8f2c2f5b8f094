"""Tables as files: numbers in full, intervals as columns."""

import math
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from analysis.pages.cells import number, shown
from analysis.pages.export import columns, latex, write_latex, write_tables

ROWS = [
    {
        "law": "A_1 & B",
        "a": shown(1 / 3, ".2f", (0.25, 0.5)),
        "share": shown(0.123456, ".1%"),
        "runs": number("1,204", 1204),
        "range": number("10¹² – 3·10¹²", 2e12, (1e12, 3e12)),
        "N_opt at 8.95·10¹² FLOP": shown(2 / 3, ".1f", note="no power law"),
        "empty": "",
    },
    {"law": "50% of {x}", "a": "not identified", "runs": number("−7", -7), "N_opt at 8.95·10¹² FLOP": "-"},
]


def test_columns_hold_what_the_text_was_rounded_from() -> None:
    by_name = columns(ROWS)
    assert list(by_name) == [
        *("law", "a", "a low", "a high", "a note", "share", "runs", "range", "range low", "range high"),
        *("N_opt at 8.95e12 FLOP", "N_opt at 8.95e12 FLOP note"),
    ]
    assert by_name["a"] == [1 / 3, None] and by_name["a low"] == [0.25, None]
    assert by_name["a note"] == [None, "not identified"]
    assert by_name["share"] == [0.123456, None] and by_name["runs"] == [1204, -7]
    assert by_name["range low"] == [1e12, None] and by_name["N_opt at 8.95e12 FLOP note"] == ["no power law", None]


def test_files_read_back(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables", {"one": ROWS})
    read = pd.read_csv(tmp_path / "tables" / "one.csv")
    assert read["a"][0] == 1 / 3 and math.isnan(read["a"][1]) and read["law"].tolist() == ["A_1 & B", "50% of {x}"]


def test_a_latex_table_shows_the_texts_of_the_page() -> None:
    lines = latex(ROWS).splitlines()
    assert lines[:2] == [r"\begin{tabular}{@{}llrrll@{}}", r"\toprule"] and lines[-1] == r"\end{tabular}"
    head, first, second = lines[2], lines[4], lines[5]
    assert head.startswith("law & a & share & runs & range & ") and r"$N_\mathrm{opt}$ at" in head
    assert first.startswith(r"A\_1 \& B & 0.33 {[}0.25,~0.50] & 12.3\% & 1,204 & 10$^{12}$ -- 3$\cdot$10$^{12}$ & ")
    assert second.startswith(r"50\% of \{x\} & not identified &  & $-$7 &  & ")


def test_a_wide_latex_table_has_shorter_lines_and_nearer_columns() -> None:
    row = {f"column {i}": "1.2783 [1.2659, 1.2897]" for i in range(3)}
    assert latex([row]).startswith(r"\begin{tabular}") and " & 1.2783 {[}1.2659,~1.2897] & " in latex([row])
    wide = latex([row | {"a long name of what is there": "cosformer2-n55m-c2048-s30"}])
    assert wide.startswith("\\begingroup\\setlength{\\tabcolsep}{3pt}\n") and wide.endswith("\\endgroup\n")
    assert r"{@{}l@{}}1.2783 \\ {[}1.2659,~1.2897]\end{tabular}" in wide


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_latex_takes_every_letter(tmp_path: Path) -> None:
    odd = {"a": "\\ ~ ^ # $ < > ± ≤ × [x] – 2.0 [−1e-08, 3]", "long": "words of a run, " * 9, "n": "-0.5"}
    write_latex(tmp_path, {"odd": [odd, {"a": "[1, 2]", "long": "", "n": "2"}], "rows": ROWS})
    text = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{odd}\input{rows}\end{document}"
    (tmp_path / "paper.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout
