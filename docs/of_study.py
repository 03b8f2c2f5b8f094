"""Tables of the published study, generated from the files in its folder: for README.md and the study's findings."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.figures.axes import minus, power_of_ten
from analysis.figures.palette import name_of
from analysis.fits.settings import FITS
from analysis.fits.study_fits import StudyFits, read_fits
from analysis.fits.tasks.fit import by_length
from analysis.forecast.outcome import read_forecast
from analysis.last_steps import last_steps
from analysis.report.comparison import losses_table
from analysis.report.forecast import forecast_rows
from analysis.report.laws import check_rows, drawn_law, leading_law
from analysis.report.section import markdown_table as table
from analysis.report.tasks import length_rows
from analysis.report.words import NAMES, believed, exponent, size_of
from analysis.run_table import RunTable
from analysis.source.choose import source_of
from analysis.source.published import EVALS, RUNS, SCORES, Published
from data.files import parse_json
from flops.laws import paper_laws
from scaling.study.run import RunSpec
from scaling.study.spec import StudySpec, load_study

FOLDER = Path(__file__).resolve().parents[1] / "analysis" / "studies" / "h200-2026"


def summary() -> str:
    """A row an architecture, lowest loss first: its loss and compute beside the best one's, and its law of N_opt."""
    fits = _fits()
    losses = {row["architecture"]: row for row in losses_table(fits).rows}
    best = next(iter(losses))
    laws = {name_of(group.name): leading_law(fits, group.name) for group in fits.groups}
    rows = []
    for name, row in losses.items():
        law = laws[name]
        rows.append(
            {
                "": name,
                f"held-out loss at {_c(fits)} FLOP": row["loss at this C"],
                "above the lowest": row["above the lowest"] or "the lowest",
                f"compute for {best}'s loss, at optimal sizes": row["compute for the same loss"] or "1",
                "a (N_opt ~ C^a)": exponent(law) if law else "no law is believed",
                f"N_opt at {_c(fits)} FLOP": size_of(law.optima[0].n_params) if law else "",
                "verdict": believed(law) if law else "do not believe",
            }
        )
    return table(rows)


def beside_the_paper() -> str:
    """The exponents of the parametric laws beside those that Shen et al. 2024 print (table 3)."""
    fits, rows = _fits(), []
    printed = paper_laws().archs
    for arch in (group.name for group in fits.groups):
        law = drawn_law(fits, arch)
        assert law is not None and law.a.ends is not None
        low, high = law.a.ends
        paper = printed[arch].n_opt
        assert paper is not None
        rows.append(
            {
                "": name_of(arch),
                "a, here": f"{law.a.value:.3f} [{low:.3f}, {high:.3f}]",
                "verdict": believed(law),
                "a, the paper's": f"{paper.exponent:.3f}",
                "inside our interval": "yes" if low <= paper.exponent <= high else "no",
            }
        )
    return table(rows)


def checks() -> str:
    """What the verdicts on the parametric laws rest on."""
    return table([row for row in check_rows(_fits()) if row.pop("approach") == NAMES["parametric"]])


def inside() -> str:
    """Where each law's optimum lies among the sizes and tokens that were trained."""
    fits, rows = _fits(), []
    runs, _ = _tables()
    done = runs[runs["state"] == "done"]
    for arch in (group.name for group in fits.groups):
        law, mine = drawn_law(fits, arch), done[done["arch"] == arch]
        assert law is not None
        least, most = mine["n_params_non_embedding"].min(), mine["n_params_non_embedding"].max()
        read = mine["n_tokens"].max()
        places = [(at.flops, at.n_params.value or 0.0, at.n_tokens.value or math.inf) for at in law.curve]
        within = [c for c, n, d in places if least <= n <= most and d <= read]
        ends = dict.fromkeys(map(power_of_ten, (min(within), max(within)))) if within else ()
        places_text = f"{' to '.join(ends)} FLOP{' alone' * (len(ends) == 1)}" if ends else "nowhere"
        rows.append({"": name_of(arch), "N_opt and D_opt both inside what was trained": places_text})
    return table(rows)


def forecast() -> str:
    """What is predicted of the larger runs, and what was measured of those that are trained."""
    study, runs = _study()
    return table([row for one in read_forecast(study, source_of(study, runs)) for row in forecast_rows(one)])


def repeats() -> str:
    """The runs that were trained again on another machine: final losses, and the difference in standard deviations
    between seeds."""
    rows = []
    for run in parse_json((FOLDER / "repeats.json").read_bytes())["runs"]:
        final, name = run["final"], str(run["run"]).removeprefix("runs/")
        apart = (
            "none: bit-equal" if run["bit_equal"] else f"{final['difference']:+.5f}, {final['seed_sds']:+.2f} seed s.d."
        )
        rows.append(
            {
                "": name,
                "first": f"{final['a']:.5f}",
                "again": f"{final['b']:.5f}",
                "difference": apart,
            }
        )
    return table(rows)


def longer_contexts() -> str:
    """Perplexity of a byte at context lengths up to four times the training length: the largest size of the grid, and
    the forecast's."""
    fits = _fits().downstream
    assert fits is not None
    largest = {row.arch: row.n_params for row in fits.lengths}  # rows come small sizes first
    kept = [row for row in fits.lengths if row.n_params == largest[row.arch]]
    kept += by_length(*_of_forecast())
    return table(length_rows(sorted(kept, key=lambda row: list(largest).index(row.arch))))


def benchmarks() -> str:
    """Scores of the largest runs of each architecture, of the grid and of the forecast, beside chance."""
    runs, scores = _tables()
    forecast, forecast_scores = _of_forecast()
    wanted = {
        "PIQA, % (chance 50)": ("piqa", "acc", lambda value: f"{100 * value:.1f}"),
        "LAMBADA, % right": ("lambada", "acc", lambda value: f"{100 * value:.2f}"),
        "WikiText-2, bits/byte": ("wikitext", "bits_per_byte", lambda value: f"{value:.3f}"),
        "needle, easy (of 100)": ("niah-easy", "weighted_avg_acc", lambda value: f"{value:.1f}"),
        "needle, standard": ("niah-standard", "weighted_avg_acc", lambda value: f"{value:.1f}"),
    }
    scored, rows = pd.concat([scores, last_steps(forecast_scores, "task")]), []
    for arch in (group.name for group in _fits().groups):
        asked = scored[scored["task"] == "piqa"]
        for run in [*_largest(runs, arch, asked), *_largest(forecast.runs, arch, asked)]:
            mine = scored[scored["run_id"] == run.run_id].set_index(["task", "metric"])["value"]
            cells = {
                head: show(mine[task, metric]) if (task, metric) in mine.index else "not evaluated"
                for head, (task, metric, show) in wanted.items()
            }
            rows.append({"": name_of(arch), "run": run.run_id} | cells)
    return table(rows)


def losses() -> str:
    """Held-out losses at the ends of all runs, by size and seed."""
    runs, _ = _tables()
    last = last_steps(pd.read_parquet(FOLDER / EVALS)).set_index("run_id")["loss"]
    done = runs[(runs["state"] == "done") & (runs["variant"] == "")]
    sizes = dict.fromkeys(done.sort_values("n_params_non_embedding")["size"])
    rows = []
    for size in sizes:
        row = {"size": size}
        for arch in (group.name for group in _fits().groups):
            losses = [last[run_id] for run_id in done[(done["arch"] == arch) & (done["size"] == size)]["run_id"]]
            row[name_of(arch)] = ", ".join(minus(loss) for loss in losses)
        rows.append(row)
    return table(rows)


@cache
def _study() -> tuple[StudySpec, list[RunSpec]]:
    study = load_study(FOLDER, published=True)
    return study, study.runs()


@cache
def _of_forecast() -> tuple[RunTable, pd.DataFrame]:
    """The forecast runs, and all their scores."""
    folder = Published(FOLDER)
    tables, scores = folder.forecast(), folder.forecast_scores()
    assert tables is not None and scores is not None
    return tables, scores


@cache
def _fits() -> StudyFits:
    return read_fits(FOLDER / FITS)


@cache
def _tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs, and the scores of their last checkpoints."""
    return pd.read_parquet(FOLDER / RUNS), last_steps(pd.read_parquet(FOLDER / SCORES), "task")


def _c(fits: StudyFits) -> str:
    return power_of_ten(fits.verdicts[0].c or 0.0)


def _largest(runs: pd.DataFrame, arch: str, scored: pd.DataFrame) -> list[Any]:
    """The runs of the largest size of an architecture that have scores."""
    mine = runs[(runs["arch"] == arch) & runs["run_id"].isin(scored["run_id"])]
    return list(mine[mine["n_params_non_embedding"] == mine["n_params_non_embedding"].max()].itertuples())
