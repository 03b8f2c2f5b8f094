"""The report of a study of two architectures with benchmarks: its files, and what a browser makes of its page."""

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest

from analysis import stage
from analysis.figures import paper
from analysis.fits.fit import N_OPT
from analysis.fits.study_fits import read_fits
from analysis.report.page import Study, _lead, page
from analysis.report.section import Page
from analysis.run_table import RunTable
from data.files import read_json
from scaling.study.spec import StudySpec

from ..few_replicates import few_replicates
from ..fits.built import group_of, study_of
from ..pages.browser import Browser, find_browser
from .drawn_paper import check_paper
from .drawn_study import write_study

ARCHS = {"tnl": "TNL", "hgrn2": "HGRN2"}
FIGURES = len(ARCHS) + 1 + 5  # rows of figure 1; losses over tokens, comparison, held-out loss, benchmarks, tasks
PARTS = {"losses", "approaches", "checks", "comparison"}
PARTS |= {"benchmarks", "scores", "envelope", "runs"}
PARTS |= {"training", "corpus", "provenance", "checkpoints"}
PHONE, WINDOW = 390, 1300
# of each table: pixels that its box hides, how far it was scrolled to its end, where its first column then begins and
# which share of the box that takes
SCROLLED = """[...document.querySelectorAll('.wide table')].map((table) => {
  if (table.closest('details')) table.closest('details').open = true;
  const box = table.parentElement, hidden = box.scrollWidth - box.clientWidth;
  box.scrollLeft = hidden;
  const [cell, frame] = [table.rows[0].cells[0], box].map((one) => one.getBoundingClientRect());
  return [hidden, box.scrollLeft, cell.left - frame.left, hidden ? cell.width / frame.width : 0];
})"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudySpec, Path]:
    study = write_study(tmp_path_factory.mktemp("drawn"), tuple(ARCHS), small=("hgrn2",))
    with few_replicates():
        return study, stage.report(study, study.runs()).path


@pytest.fixture(scope="module")
def made(drawn: tuple[StudySpec, Path]) -> Page:
    """The page of the stored fits and tables."""
    study, _ = drawn
    bigram = {"loss": 2.0, "bits_per_byte": 2.9, "train_tokens": 1}
    return page(Study(study.name, read_fits(study.results / "fits.json"), stage.read_tables(study.results), bigram))


def test_the_report_tells_the_whole_study(drawn: tuple[StudySpec, Path]) -> None:
    """And needs no network."""
    study, path = drawn
    html = path.read_text()
    held_out = read_json(study.directory / "corpus" / "manifest.json")["splits"]["validation"]
    for run in study.runs():
        assert run.run_id in html and run.spec_hash in html
    assert html.count("<script src") == html.count("<link") == 0
    assert not re.search(r"<(script|img|iframe)[^>]*(src|href)\s*=", html)
    for text in (
        "2 pairs cross in the range, 3 are needed",
        "loss is nan at step 12",
        "training compute C (FLOP, exact)",
        "non-embedding parameters",
        "centred mean over 40,000 tokens",
        "seed-noise parametric bootstrap",
        "the line through the lowest loss at each compute under re-drawn seeds",
        "bigram",
        f"{held_out['documents']} documents, {held_out['bytes']:,} bytes, {held_out['tokens']:,} tokens",
        "torch 2.13.0",
        "Architectures compared along their optimal frontiers",
        "times HGRN2",
        "The optimal size by three approaches, and whether to believe it",
        "What the verdicts rest on",
    ):
        assert text in html, text
    assert "nats/byte" in html and "nats/token" not in html and "nats a token" not in html  # a corpus of bytes
    first = html.index(" has the lowest loss at C = ")
    summary, rest = html.split('<p class="contents">')
    assert first < len(summary) and summary.count('<div class="plot"') == summary.count("<table>") == 1
    sections = re.findall(r'<a href="#(part-\d+)">', rest)
    assert sections == re.findall(r'<h2 id="(part-\d+)">', rest) and len(sections) > 10
    assert (
        rest.index(">Runs, and what their training cost</h2>")
        < rest.index(">Methods and caveats</h2>")
        < rest.index(">Provenance</h2>")
    )
    assert "batch (tokens)" in html and "<td>2,048</td>" in html
    assert "<td>2026-" not in html  # no attempt recorded a day
    assert "<th>precision</th>" not in html and "<th>why</th>" in html  # columns that are empty go


def test_the_lead_counts_the_runs_that_the_plan_counts() -> None:
    """What `scaling try` and --set added is told apart, so that report and plan say one number."""
    fits = study_of(groups=[group_of("llama"), group_of("hgrn2")])
    runs = pd.DataFrame({"state": ["done", "done", "failed", "done"], "variant": ["", "", "", "lr0.005"]})
    empty = pd.DataFrame()
    assert _lead(fits, RunTable(runs, empty, empty)) == "LLaMA, HGRN2. 3 runs (2 done, 1 failed) and 1 of variants."
    assert _lead(fits, RunTable(runs[:3], empty, empty)) == "LLaMA, HGRN2. 3 runs (2 done, 1 failed)."
    unchecked = runs[:3].assign(arch=["llama", "hgrn2", "hgrn2"], checked=["", "no", "no"])
    lead = _lead(fits, RunTable(unchecked, empty, empty))
    assert lead.endswith("(2 done, 1 failed). Trained without the checks of their architecture: HGRN2.")


def test_every_table_is_a_file_with_the_numbers_that_are_shown(drawn: tuple[StudySpec, Path]) -> None:
    study, path = drawn
    html, folder = path.read_text(), path.parent / "tables"
    assert {file.name for file in folder.iterdir()} == {f"{name}.csv" for name in PARTS}
    assert set(re.findall(r'href="tables/([^"]+)"', html)) == {file.name for file in folder.iterdir()}
    fits = read_fits(study.results / "fits.json")
    laws = pd.read_csv(folder / "envelope.csv", index_col="architecture")
    text = re.sub(r"<[^>]+>", "", html)
    for group in fits.groups:
        row, law = laws.loc[ARCHS[group.name]], fits.envelope(group.name).law(N_OPT)
        if not law.identified:
            assert row["a (N_opt exponent) note"] == "not identified"
            continue
        result = [row[f"a (N_opt exponent){end}"] for end in ("", " low", " high")]
        assert result == [law.exponent.value, law.exponent.low, law.exponent.high]
        assert "{:.3f} [{:.3f}, {:.3f}]".format(*result) in text
    runs = pd.read_csv(folder / "runs.csv")
    assert len(runs) == len(study.runs()) == 16 and runs["tokens"].max() == 5_998_592
    checkpoints = pd.read_csv(folder / "checkpoints.csv")
    assert len(checkpoints) == 6 * 14 and checkpoints["loss (nats/byte)"].notna().all()


def test_the_page_is_whole_in_a_browser(drawn: tuple[StudySpec, Path], browser: None) -> None:
    """In a window, on a phone and printed: every figure has its traces, every table its rows, nothing sticks out, and
    the console has no error."""
    if (result := find_browser()) is None:
        pytest.skip("no Chrome or Chromium found")
    _, path = drawn
    with Browser(result) as browser:
        for width in (WINDOW, PHONE):
            browser.open(path, width)
            figures = browser.value(
                "[...document.querySelectorAll('.plot')].map((div) => [div.querySelectorAll('.main-svg').length > 0,"
                " div.querySelectorAll('.trace').length, div.getBoundingClientRect().width,"
                " div.closest('.wide').getBoundingClientRect().width])"
            )
            assert len(figures) == FIGURES
            for is_drawn, traces, wide, room in figures:
                assert is_drawn and traces > 0 and room <= width and (wide <= room or width == PHONE)
            legends = browser.value(
                "[...document.querySelectorAll('.infolayer > [class^=legend]')].map((one) => ["
                "one.closest('.plot').getBoundingClientRect().right - one.querySelector('.bg').getBoundingClientRect()"
                ".right, +one.querySelector('.scrollbar').getAttribute('height')])"
            )
            assert len(legends) == FIGURES
            for room, scrolled in legends:
                assert room >= -1 and scrolled == 0
            assert browser.value("document.documentElement.scrollWidth") <= width
        boxes = browser.value(SCROLLED)  # on a phone
        assert len(boxes) == len(PARTS) - 1 and sum(hidden > 0 for hidden, *_ in boxes) > len(PARTS) / 2
        for hidden, moved, first, share in boxes:
            assert moved == hidden and abs(first) < 1 and share < 0.5
        assert "linear-gradient" in browser.value("getComputedStyle(document.querySelector('.wide')).backgroundImage")
        rows = browser.value("[...document.querySelectorAll('table')].map((table) => table.rows.length)")
        assert len(rows) == len(PARTS) - 1 and min(rows) >= 2  # checkpoints are a file alone
        assert browser.printed().startswith(b"%PDF")
        assert browser.errors == []


def test_a_paper_has_every_figure_in_two_widths_with_its_fonts(made: Page, tmp_path: Path) -> None:
    """Of two figures, which stand for all."""
    two = dict(islice(made.figures.items(), 0, 8, 4))
    replace(made, figures=two).write_paper(tmp_path)
    assert {file.name for file in (tmp_path / "tables").iterdir()} == {f"{name}.tex" for name in made.tables}
    for width, inches in paper.WIDTHS.items():
        pages = sorted((tmp_path / width).glob("*.pdf"))
        assert {file.stem for file in pages} == set(two) and len(two) == 2
        for file in pages:
            content = file.read_bytes()
            assert b"/FontFile2" in content and b"/Type3" not in content
            box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", content)
            assert box and float(box[1]) == inches * 72 and float(box[2]) <= paper.HIGHEST * 72
            svg = file.with_suffix(".svg").read_text()
            assert "<text" not in svg and "<path" in svg


def test_a_figure_of_a_paper_shows_what_the_page_shows(made: Page) -> None:
    assert len(made.figures) == FIGURES
    for i, figure in enumerate(made.figures.values()):
        check_paper(figure, list(paper.WIDTHS.values())[: 2 if i == 0 else 1])  # one column has the least room
