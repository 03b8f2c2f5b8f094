"""The study's last stages: fit and report. Each does only what is missing.

Fits and report carry the hash of everything they were made from; while it is unchanged they are left alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.figures import png
from analysis.forecast.outcome import read_forecast
from analysis.source.choose import source_of
from analysis.table_files import read_table
from arch.errors import InputError
from data.files import new_directory, read_manifest, write_bytes, write_json

if TYPE_CHECKING:
    import pandas as pd

    from analysis.fits.settings import FitSettings
    from analysis.fits.study_fits import StudyFits
    from analysis.fits.task_fits import TaskFits
    from analysis.run_table import RunTable
    from analysis.source.choose import Source
    from scaling.study.run import RunSpec
    from scaling.study.spec import StudySpec

FIT_VERSION = 45  # of the method and of the tables: raise it with every change of either, so that fits are made anew
REPORT_VERSION = 54  # of the page: raise it with every change of what a report shows, so that it is drawn again
TABLES = {
    "curves": "curves",
    "evals": "validation",
    "runs": "runs",
}  # its file; evals.parquet has all tasks
OWN_COLUMN = {"curves": "grad_norm", "evals": "perplexity", "runs": "state"}  # which the others of them lack
LIVE = "a page that is drawn while the study trains has none"


class Fitted(NamedTuple):
    """The fits, whether they were made now (False: found up to date), and which stored file was damaged (None: none
    was)."""

    fits: StudyFits
    fresh: bool
    damaged: str | None


def fit(study: StudySpec, runs: Sequence[RunSpec], force: bool = False) -> Fitted:
    """results/fits.json and the tables, from these runs' metrics and evaluations, or from the tables of a published
    study; with `force`, or where one is damaged, even where they are."""
    results, source = study.results, source_of(study, runs)
    stored, damaged = _stored(results)
    if not force and stored is not None and stored.inputs_hash == _inputs_hash(study, source):
        return Fitted(stored, False, None)
    from analysis.source.parquet import result_files

    fits, table = fits_of(study, runs, source)
    results.mkdir(parents=True, exist_ok=True)
    for name, content in result_files(table).items():
        write_bytes(results / f"{name}.parquet", content, kind="results")
    write_json(results / "fits.json", fits.to_dict(), kind="results")
    return Fitted(fits, True, damaged)


def fits_of(study: StudySpec, runs: Sequence[RunSpec], source: Source) -> tuple[StudyFits, RunTable]:
    """What fits.json holds, and the table that it was made from. Raises InputError where the source is damaged."""
    from analysis.fits.prepare import grouped
    from analysis.fits.study import fit_study
    from analysis.fits.variants import compare_variants
    from arch.registry import warnings_of

    table = source.table(_fit_settings(study), study.evaluation.validation_tokens)
    whole = grouped(table)
    fits = fit_study(whole, inputs=source.provenance()["metrics"])
    others = ({"run_id": run, "why": "not of the study file's grid"} for run in source.inputs["others"])
    fits = replace(
        fits,
        study=study.name,
        inputs_hash=_inputs_hash(study, source),
        left_out=(*fits.left_out, *others),
        variants=compare_variants(whole, table.settings.level),
        downstream=_downstream(fits, whole, source.scores()),
        warnings=tuple(warnings_of((run.size, run.config) for run in runs)),
    )
    return fits, table


def _inputs_hash(study: StudySpec, source: Source) -> str:
    settings, held_out = _fit_settings(study).to_dict(), study.evaluation.validation_tokens
    inputs: dict[str, Any] = {"version": FIT_VERSION, "settings": settings, "validation_tokens": held_out}
    if settings["control"] == "bigram":
        from analysis.bigram import OF_STRETCHES

        inputs["difficulty"] = OF_STRETCHES
    read = source.inputs
    inputs["files"] = read["files"]
    if read["others"]:
        inputs["others"] = read["others"]
    return _hash(inputs)


def _downstream(fits: StudyFits, tables: RunTable, scores: pd.DataFrame | None) -> TaskFits | None:
    """The laws of the other evaluations' scores; None where there are none."""
    from analysis.evals.registry import scales_of
    from analysis.fits.tasks.fit import fit_tasks

    if scores is None:
        return None
    evals = scores[scores["task"] != "validation"]
    known = {task: scales for task in evals["task"].unique() if (scales := scales_of(task))}
    return None if evals.empty else fit_tasks(fits, tables, evals, known)


def report(study: StudySpec, runs: Sequence[RunSpec], force: bool = False, paper: Path | None = None) -> png.Drawn:
    """report/index.html, its tables as files (report/tables/*), and report/figures/*.png where Chrome is installed,
    from results/; figures and tables for a paper into the folder `paper`. Fits first if need be.

    What is drawn already is left alone, but with `force`, and where only the browser for the pictures was missing.
    """
    fits = fit(study, runs).fits
    directory, results, source = study.report, study.results, source_of(study, runs)
    corpus, baseline, evaluations = source.corpus(), source.baseline(), source.evaluations_page()
    from analysis.evals.registry import texts_of

    held_against, forecast = source.contamination(), [] if study.set_results else read_forecast(study, source)
    with_texts = texts_of(study.evaluation.tasks or [], study.evaluation.settings)
    wanted = _hash(
        {
            "version": REPORT_VERSION,
            "contamination": [held_against, with_texts],
            "fits": fits.inputs_hash,
            "corpus": corpus["fingerprint"] if corpus else None,
            "baseline": baseline,
            "evaluations": evaluations,
            "forecast": [round_.to_dict() for round_ in forecast],
            **({"published": study.evaluation.published} if study.evaluation.published else {}),
        }
    )
    manifest, is_drawn, missing = read_manifest(directory), False, None
    if not force and manifest is not None and manifest.get("inputs_hash") == wanted:
        missing = manifest["no_pictures"]
        is_drawn = missing not in (png.NO_BROWSER, png.NO_PACKAGE) or not png.has_browser()
    if is_drawn and paper is None:
        return png.Drawn(directory / "index.html", False, missing)

    from analysis.costs import study_costs
    from analysis.report.page import Study, page
    from analysis.report.runs import provenance_facts

    tables = read_tables(results)
    name = study.name + (f" ({', '.join(study.sets)})" if study.set_results else "")
    larger = None if study.set_results else source.forecast
    costs = study_costs(study, runs, tables.runs, None if larger is None else larger.runs)
    came = source.provenance()
    provenance = {"study file": str(study.path), "changes (--set)": ", ".join(study.sets) or "none"}
    provenance |= provenance_facts(fits, came)
    provenance["run spec hashes"] = ", ".join(map(" ".join, came["spec_hashes"].items()))
    of_classes = accuracies(study, tables.runs, source)
    beside = (baseline, corpus, provenance, evaluations, held_against, with_texts, costs, forecast, of_classes)
    made = page(Study(name, fits, tables, *beside), study.live)
    if not is_drawn:
        content: dict[str, Any] = {"kind": "report", "study": study.name, "inputs_hash": wanted}
        with new_directory(directory, content, kind="report") as temporary:
            made.write(temporary)
            missing = LIVE if study.live else png.write_pictures(made.figures, temporary / "figures")
            content["no_pictures"] = missing
    if paper is not None:
        made.write_paper(paper)
    return png.Drawn(directory / "index.html", not is_drawn, missing)


def accuracies(study: StudySpec, runs: pd.DataFrame, source: Source) -> list[dict[str, str]]:
    """The accuracies of the study's classifiers, or perplexities by the last task of these that it names, beside
    published ones; empty where none was evaluated."""
    from analysis.report.accuracy import CLASSIFY, accuracy_rows

    split, published = study.evaluation.settings.get(CLASSIFY, {}).get("split", "test"), study.evaluation.published
    of_text = [task for task in study.evaluation.tasks or [] if published and task.startswith("perplexity")]
    return accuracy_rows(runs, source.scores(), published, str(split), [CLASSIFY, *of_text][-1])


def read_tables(results: Path) -> RunTable:
    """The tables as `fit` stored them. Raises InputError for one that cannot be read."""
    from analysis.run_table import RunTable

    frames: dict[str, Any] = {
        name: read_table(path, "`scaling fit study` makes it again", ("run_id", OWN_COLUMN[name]))
        for name, path in zip(TABLES, _tables(results), strict=True)
    }
    return RunTable(**frames)


def _fit_settings(study: StudySpec) -> FitSettings:
    from analysis.fits.settings import settings_of

    return settings_of(study.fit, study.grid)


def _stored(results: Path) -> tuple[StudyFits | None, str | None]:
    """The fits of an earlier command, None where they or their tables are not whole; and the message about that file
    among them that is damaged, None where none is."""
    from analysis.fits.study_fits import read_fits

    path = results / "fits.json"
    try:
        fits = read_fits(path, "")
        read_tables(results)
        return fits, None
    except InputError as error:
        return None, str(error) if all(map(Path.exists, [path, *_tables(results)])) else None


def _tables(results: Path) -> list[Path]:
    return [results / f"{file}.parquet" for file in TABLES.values()]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
